"""Windows of scheduled shifts: crontab's meaning, time zones, the days on which clocks change."""

from datetime import datetime

import pytest

from dispatcher.config import Config, shift_windows
from dispatcher.shifts import crontab_trigger


def windows(cron: str, duration: str, start: str, end: str, timezone: str = "Europe/Berlin") -> list[str]:
    config = Config.model_validate(
        {
            "region": [{"name": name, "address": "http://10.0.0.1:8265"} for name in ("a", "b")],
            "shift": [{"name": "n", "cron": cron, "timezone": timezone, "duration": duration, "from": "a", "to": "b"}],
        }
    )
    found = shift_windows(config, datetime.fromisoformat(start + "+00:00"), datetime.fromisoformat(end + "+00:00"))
    assert all((window.name, window.source, window.target) == ("n", "a", "b") for window in found)
    assert all(window.start.utcoffset().total_seconds() == 0 for window in found)  # type: ignore[union-attr]
    return [f"{window.start:%d %H:%M}-{window.end:%d %H:%M}" for window in found]


def test_a_window_that_began_before_and_lasts_into_the_range() -> None:
    assert windows("0 22 * * *", "8h", "2023-05-02T05:00", "2023-05-02T20:00") == []
    assert windows("0 22 * * *", "8h", "2023-05-02T03:59", "2023-05-02T20:00") == ["01 20:00-02 04:00"]
    assert windows("0 22 * * *", "8h", "2023-05-02T04:00", "2023-05-02T20:00") == []
    assert windows("0 22 * * *", "8h", "2023-05-02T04:00", "2023-05-02T20:01") == ["02 20:00-03 04:00"]


def test_nights_in_which_clocks_change_start_by_the_wall_and_last_elapsed_hours() -> None:
    spring = windows("0 22 * * *", "8h", "2023-03-25T06:00", "2023-03-27T12:00")
    assert spring == ["25 21:00-26 05:00", "26 20:00-27 04:00"]
    autumn = windows("0 22 * * *", "8h", "2023-10-28T06:00", "2023-10-30T12:00")
    assert autumn == ["28 20:00-29 04:00", "29 21:00-30 05:00"]


def test_a_wall_time_that_does_not_exist_or_comes_twice_begins_one_window() -> None:
    assert windows("30 2 * * *", "1h", "2023-03-25T12:00", "2023-03-27T12:00") == ["26 01:30-26 02:30", "27 00:30-27 01:30"]
    assert windows("30 2 * * *", "1h", "2023-10-28T12:00", "2023-10-30T12:00") == ["29 00:30-29 01:30", "30 01:30-30 02:30"]
    assert windows("30 2 * * *", "10m", "2023-10-29T01:31", "2023-10-29T12:00") == []


def test_an_hourly_rule_begins_in_both_equal_hours() -> None:
    assert windows("0 * * * *", "10m", "2023-10-29T00:00", "2023-10-29T03:00") == [
        "29 00:00-29 00:10",
        "29 01:00-29 01:10",
        "29 02:00-29 02:10",
    ]


@pytest.mark.parametrize(
    ("days", "dates"),
    [
        ("1-5", [1, 2, 3, 4, 5]),
        ("0", [7]),
        ("7", [7]),
        ("5-7", [5, 6, 7]),
        ("mon-fri", [1, 2, 3, 4, 5]),
        ("1,3", [1, 3]),
        ("*", [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_days_of_the_week_are_counted_as_in_crontab(days: str, dates: list[int]) -> None:
    found = windows(f"0 12 * * {days}", "1h", "2023-05-01T00:00", "2023-05-08T00:00", "UTC")
    assert [int(window[:2]) for window in found] == dates


@pytest.mark.parametrize(
    "cron", ["", "* * * *", "0 22 * * * *", "61 * * * *", "0 22 * * 8", "0 22 * * 5-1", "0 22 * * someday"]
)
def test_what_is_no_crontab_line_is_refused(cron: str) -> None:
    with pytest.raises(ValueError, match=r"crontab|day of the week"):
        crontab_trigger(cron, "UTC")
