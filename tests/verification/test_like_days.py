"""Which days are like an event's day, over weekends, holidays, other events and clock changes."""

from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest

from dispatcher.errors import BadInput
from dispatcher.verification.like_days import Calendar, EventWindow, like_days, load_on, moments
from dispatcher.verification.series import MeteredSeries
from tests.verification.samples import DAY, UTC_DAYS, at, daily, weekdays_before, window, with_part

BERLIN = Calendar("Europe/Berlin")
MONTH = {DAY.date() - timedelta(days=back): 1000.0 * back for back in range(1, 41)}


def found(
    calendar: Calendar = UTC_DAYS, event: EventWindow | None = None, series: MeteredSeries | None = None, wanted: int = 10
):  # type: ignore[no-untyped-def]
    event = event or window()
    span = (event.start, event.end)
    return like_days(series if series is not None else daily(MONTH), calendar, event, [span], wanted, 3600)


def days(backs: tuple[int, ...], day: datetime = DAY) -> list[date]:
    return [day.date() - timedelta(days=back) for back in backs]


def test_a_working_day_has_the_latest_working_days() -> None:
    assert days(found().eligible) == weekdays_before(10)


def test_a_weekend_day_has_weekend_days() -> None:
    saturday = EventWindow(at(16, -3), at(16, -3), at(18, -3))
    got = days(found(event=saturday, wanted=3).eligible, DAY - timedelta(days=3))
    assert [day.weekday() for day in got] == [6, 5, 6]


def test_holidays_events_and_outages_are_passed_over_with_the_reason() -> None:
    first, second, third, fourth = weekdays_before(4)
    events = ((_noon(third), _noon(third) + timedelta(hours=1)),)
    calendar = Calendar("UTC", frozenset({first}), frozenset({second}), events)
    got = found(calendar, wanted=1)
    assert days(got.eligible) == [fourth]
    reasons = dict(got.passed_over)
    assert (reasons[first], reasons[second], reasons[third]) == ("holiday", "outage day", "event day")


def _noon(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, 12, tzinfo=UTC)


def test_a_day_that_the_meter_missed_is_passed_over() -> None:
    first, second = weekdays_before(2)
    series = with_part(daily(MONTH), _noon(first) + timedelta(hours=4), _noon(first) + timedelta(hours=5), float("nan"))
    got = found(series=series, wanted=1)
    assert days(got.eligible) == [second]
    assert dict(got.passed_over)[first] == "meter covers 50%"


def test_days_from_the_notice_on_are_no_reference() -> None:
    got = found(event=EventWindow(at(9, -1), at(16), at(18)), wanted=1)  # told the day before
    assert days(got.eligible) == [weekdays_before(2)[1]]
    assert dict(got.passed_over)[weekdays_before(1)[0]] == "not before the day of the notice"


def test_a_notice_after_the_start_counts_as_none() -> None:
    assert EventWindow(at(17), at(16), at(18)).known_at == at(16)


def test_wall_clock_time_is_kept_over_a_clock_change() -> None:
    # 16:00 in Berlin is 14:00 UTC on Monday 30 March 2026, and was 15:00 UTC on Friday before the change.
    monday = datetime(2026, 3, 30, 14, tzinfo=UTC)
    assert moments(BERLIN, monday, 3) == [datetime(2026, 3, 27, 15, tzinfo=UTC)]


def test_the_skipped_hour_has_no_moment_and_the_repeated_one_two() -> None:
    after_spring = datetime(2026, 4, 5, 0, 30, tzinfo=UTC)  # 02:30 in Berlin, a week after it was skipped
    assert moments(BERLIN, after_spring, 7) == []
    after_autumn = datetime(2026, 11, 1, 1, 30, tzinfo=UTC)  # 02:30, a week after it came twice
    assert len(moments(BERLIN, after_autumn, 7)) == 2


def test_a_day_whose_clocks_changed_in_the_event_hours_is_passed_over() -> None:
    sunday = datetime(2026, 4, 5, tzinfo=UTC)
    series = MeteredSeries(sunday - timedelta(days=40), 3600, np.full(41 * 24, 7.0))
    event = EventWindow(sunday, sunday, sunday + timedelta(hours=2))  # 02:00 to 04:00
    got = like_days(series, BERLIN, event, [(event.start, event.end)], 3, 3600)
    assert dict(got.passed_over)[date(2026, 3, 29)] == "clocks changed"
    assert days(got.eligible, sunday) == [date(2026, 4, 4), date(2026, 3, 28), date(2026, 3, 22)]


def test_an_event_in_the_repeated_hour_takes_its_equal_twice() -> None:
    start = datetime(2026, 10, 25, 0, tzinfo=UTC)  # 02:00 summer time, then 02:00 winter time, then 03:00
    series = MeteredSeries(start - timedelta(days=8), 3600, np.arange(10 * 24, dtype=float))
    got = load_on(series, BERLIN, start, 3600, 3, 7)
    assert got[0] == got[1]
    assert got[2] == got[1] + 1


def test_an_event_over_midnight_needs_both_days_to_be_alike() -> None:
    # Monday 22:00 to Tuesday 02:00: a Sunday night has a weekend day in it, a Friday night too.
    event = EventWindow(at(22, -1), at(22, -1), at(26, -1))
    series = daily(MONTH | {DAY.date(): 5.0})
    got = like_days(series, UTC_DAYS, event, [(event.start, event.end)], 4, 3600)
    assert [day.weekday() for day in days(got.eligible, DAY - timedelta(days=1))] == [3, 2, 1, 0]


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd"])
def test_an_unknown_zone_is_named(zone: str) -> None:
    with pytest.raises(BadInput, match="timezone"):
        Calendar(zone)


@pytest.mark.parametrize("back", range(1, 12))
@pytest.mark.parametrize("hour", [-3, 0, 2, 14])
def test_slots_are_mapped_alike_near_and_far_from_a_change(back: int, hour: int) -> None:
    start = datetime(2026, 4, 3, tzinfo=UTC) + timedelta(hours=hour)
    series = MeteredSeries(start - timedelta(days=20), 1800, np.arange(21 * 48, dtype=float))
    got = load_on(series, BERLIN, start, 1800, 8, back)
    for k in range(8):
        equal = moments(BERLIN, start + timedelta(seconds=1800 * k), back)
        if len(equal) == 1:
            assert got[k] == series.offset_s(equal[0]) / 1800
        else:
            assert np.isnan(got[k])
