"""Statements that hold for any load: no delivery out of nothing, none out of gaps, none out of when it was."""

from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.verification.baselines import DAY_METHODS, SameDay, meter_before, of_like_days
from dispatcher.verification.delivered import delivered
from dispatcher.verification.holding import compliance, tracking
from dispatcher.verification.like_days import Calendar, EventWindow
from dispatcher.verification.obligations import Segment, Version, in_force
from dispatcher.verification.series import MeteredSeries, energy_kwh, mean_w, resampled
from tests.verification.samples import DAY, UTC_DAYS, at, daily, owed, weekdays_before, window

EVENT_SLOTS = 24  # of five minutes: two hours
loads = st.lists(st.floats(0, 200_000), min_size=EVENT_SLOTS, max_size=EVENT_SLOTS)
masks = st.lists(st.booleans(), min_size=EVENT_SLOTS, max_size=EVENT_SLOTS)
BASE = MeteredSeries(at(16), 300, np.full(EVENT_SLOTS, 100_000.0))


def metered(watts: list[float], missing: list[bool] | None = None) -> MeteredSeries:
    values = np.array(watts)
    if missing is not None:
        values[np.array(missing)] = np.nan
    return MeteredSeries(at(16), 300, values)


@given(
    st.floats(1.0, 1e8),
    st.sampled_from(sorted(DAY_METHODS)),
    st.sampled_from([None, SameDay("multiplicative"), SameDay("additive"), SameDay("additive", cap=None)]),
    st.floats(0, 6),
)
@settings(max_examples=30, deadline=None)
def test_a_constant_load_delivers_nothing(watts: float, name: str, rule: SameDay | None, notice_h: float) -> None:
    series = daily(dict.fromkeys([*weekdays_before(25), DAY.date()], watts))
    event = window(16, 18, notice=16 - notice_h)
    held = owed(limit_w=None, committed_w=1000.0)
    for made in (of_like_days(series, UTC_DAYS, event, DAY_METHODS[name], rule), meter_before(series, event)):
        assert made.series is not None
        got = delivered(resampled(series, at(16), 300, EVENT_SLOTS), made.series, held).energy_kwh
        assert got.value == pytest.approx(0.0, abs=watts * 2 / 1000 * 1e-9)
        assert got.complete


@given(loads, masks, st.floats(0, 100_000))
@settings(max_examples=100, deadline=None)
def test_missing_data_never_raise_a_figure_silently(watts: list[float], missing: list[bool], limit_w: float) -> None:
    held = owed(limit_w=limit_w)
    whole, partial = metered(watts), metered(watts, missing)
    most = 200_000.0
    full, some = delivered(whole, BASE, held, most), delivered(partial, BASE, held, most)
    assert some.energy_kwh.complete == (not any(missing))
    if (some.energy_kwh.value or 0.0) > (full.energy_kwh.value or 0.0) + 1e-9:
        assert some.energy_kwh.coverage < 1  # a slot above the baseline is gone: it must show
    assert some.least_kwh is not None and full.energy_kwh.value is not None
    assert some.least_kwh <= full.energy_kwh.value + 1e-6
    assert (some.shortfall_kwh or 0.0) <= (full.shortfall_kwh or 0.0) + 1e-9
    judged, part = compliance(whole, BASE, held, 300), compliance(partial, BASE, held, 300)
    assert part.within <= judged.within
    assert part.windows == judged.windows


@given(loads, st.integers(-60, 60), st.floats(0, 100_000))
@settings(max_examples=80, deadline=None)
def test_when_it_was_makes_no_difference(watts: list[float], weeks: int, limit_w: float) -> None:
    by = timedelta(weeks=weeks)
    moved = MeteredSeries(at(16) + by, 300, np.array(watts))
    base = MeteredSeries(at(16) + by, 300, BASE.watts)
    held = in_force([Version(DAY + by, (Segment(at(16) + by, at(18) + by, limit_w),))], at(18) + by)
    one, other = delivered(metered(watts), BASE, owed(limit_w=limit_w)), delivered(moved, base, held)
    assert one.energy_kwh == other.energy_kwh
    assert one.shortfall_kwh == other.shortfall_kwh
    assert tracking(metered(watts), BASE, owed(limit_w=limit_w)) == tracking(moved, base, held)


@given(st.lists(st.integers(0, 100_000), min_size=10, max_size=10), st.integers(1, 100_000), st.floats(0.25, 4.0))
@settings(max_examples=25, deadline=None)
def test_load_that_is_always_there_neither_adds_nor_takes(levels: list[int], more_w: int, times: float) -> None:
    def energy(change: float, scale: float) -> float:
        rows = dict(zip(weekdays_before(10), (level * scale + change for level in levels), strict=True))
        series = daily(rows | {DAY.date(): 30_000.0 * scale + change})
        made = of_like_days(series, UTC_DAYS, window(), same_day=SameDay("additive", cap=None))
        assert made.series is not None
        got = delivered(resampled(series, at(16), 300, EVENT_SLOTS), made.series, owed(committed_w=1.0)).energy_kwh
        assert got.value is not None
        return got.value

    assert energy(float(more_w), 1.0) == pytest.approx(energy(0.0, 1.0), abs=1e-6)
    assert energy(0.0, times) == pytest.approx(energy(0.0, 1.0) * times, abs=1e-6)


@given(loads, masks, st.integers(0, 7000), st.integers(60, 7200))
@settings(max_examples=60, deadline=None)
def test_energies_of_parts_add_up(watts: list[float], missing: list[bool], cut_s: int, step_s: int) -> None:
    series = metered(watts, missing)
    cut = at(16) + timedelta(seconds=cut_s)
    parts = [energy_kwh(series, at(16), cut), energy_kwh(series, cut, at(18))]
    whole = energy_kwh(series, at(16), at(18))
    assert sum(part.value or 0.0 for part in parts) == pytest.approx(whole.value or 0.0, abs=1e-6)
    count = -(-7200 // step_s)
    fine = resampled(series, at(16), step_s, count, 0.0)
    known = [mean_w(series, fine.at(k), fine.at(k + 1)).value is not None for k in range(count)]
    assert fine.known.tolist() == known


@given(st.floats(1.0, 20.0), st.floats(0.5, 12.0))
@settings(max_examples=20, deadline=None)
def test_pre_running_never_raises_a_baseline(times: float, notice_h: float) -> None:
    event = EventWindow(at(16 - notice_h), at(16), at(18))
    levels = dict.fromkeys(weekdays_before(10), 50_000.0) | {DAY.date(): 50_000.0}
    honest = resampled(daily(levels), at(0, -20), 60, 21 * 1440)
    raised = honest.watts.copy()
    begin, end = (int(honest.offset_s(one) / 60) for one in (event.notice_at + timedelta(minutes=1), event.start))
    raised[begin:end] *= times
    series = MeteredSeries(honest.start, 60, raised)
    calendar = Calendar("UTC")
    for rule in (None, SameDay("multiplicative", cap=None), SameDay("additive", gap_s=0.0, cap=None)):
        made = of_like_days(series, calendar, event, same_day=rule).series
        assert made is not None
        assert made.watts.max() == pytest.approx(50_000)
    before = meter_before(series, event).series
    assert before is not None and before.watts.max() == pytest.approx(50_000)
