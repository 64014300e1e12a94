"""A series' past as points becomes a forecast on slots, the same whatever comes after its origin."""

from array import array
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from signals.forecasting.slots import forecast, history_of
from signals.points import SignalError
from signals.series import Past, SlotForecast, Wanted

ORIGIN = datetime(2026, 3, 1, tzinfo=UTC)


def past(days: int, *, step_s: int = 3600, noise: float = 5.0) -> Past:
    count = days * 86400 // step_s
    starts = ORIGIN.timestamp() + step_s * np.arange(-count, 0.0)
    rng = np.random.default_rng(3)
    values = 200 + 50 * np.sin(starts / 86400 * 2 * np.pi) + rng.normal(0, noise, count)
    return Past(array("d", starts), array("d", starts + step_s), array("d", values))


def wanted(**changes: object) -> Wanted:
    fields: dict[str, object] = {"origin": ORIGIN, "slot_s": 900, "days": 7, "zone": "UTC", "positive": True}
    return Wanted(**(fields | changes))  # type: ignore[arg-type]


def test_a_daily_pattern_is_found_with_its_band() -> None:
    made = forecast(past(60), wanted())
    assert made.basis == "model" and "60 days" in made.reason
    assert (made.start, made.slot_s, len(made.values)) == (ORIGIN, 900, 7 * 96 + 1)
    for hour in (1, 30, 100):
        at = ORIGIN + timedelta(hours=hour)
        truth = 200 + 50 * np.sin((at.timestamp() + 1800) / 86400 * 2 * np.pi)
        told = made.at(at)
        assert told is not None and abs(told[0] - truth) < 12 and told[1] < told[0] < told[2]
    assert made.at(ORIGIN + timedelta(days=7)) is None and made.at(ORIGIN - timedelta(minutes=15)) is None
    assert made.at(ORIGIN + timedelta(minutes=5)) is None


def test_what_comes_after_the_origin_changes_nothing() -> None:
    before = past(40)
    future = Past(*(array("d", column) for column in (before.starts_s, before.ends_s, before.values)))
    for hour in range(50):
        future.starts_s.append(ORIGIN.timestamp() + 3600 * hour)
        future.ends_s.append(ORIGIN.timestamp() + 3600 * (hour + 1))
        future.values.append(1e6)
    assert forecast(before, wanted()) == forecast(future, wanted())


def test_little_history_says_so_and_none_is_unknown() -> None:
    short = forecast(past(4), wanted())
    assert short.basis == "repeat-day" and "4 days" in short.reason and short.values[0] is not None
    none = forecast(Past(array("d"), array("d"), array("d")), wanted())
    assert none.basis == "unknown" and set(none.values) == {None} and isinstance(none, SlotForecast)
    with pytest.raises(SignalError, match="Mars"):
        forecast(past(40), wanted(zone="Mars/Base"))


def test_points_on_a_grid_by_their_time() -> None:
    t = ORIGIN.timestamp()
    starts = [t - 7200, t - 3600, t - 2700, t - 1800, t - 900, t + 900]
    ends = [t - 3600, t - 2700, t - 1800, t - 900, t - 600, t + 1800]
    history = history_of(Past(array("d", starts), array("d", ends), array("d", [10, 1, 2, 3, 4, 99])), ORIGIN)
    assert history.start == ORIGIN - timedelta(hours=2) and history.step_s == 300
    known = history.values[~np.isnan(history.values)]
    assert list(known) == [10.0] * 12 + [1.0] * 3 + [2.0] * 3 + [3.0] * 3 + [4.0]
    quarter = history_of(Past(array("d", starts[:4]), array("d", ends[:4]), array("d", [10, 1, 2, 3])), ORIGIN)
    assert quarter.step_s == 900 and list(quarter.values[:7]) == [10.0] * 4 + [1.0, 2.0, 3.0] and np.isnan(quarter.values[7])
