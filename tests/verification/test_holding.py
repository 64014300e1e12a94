"""Compliance, tracking, times and rises against examples computed by hand."""

from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.verification.holding import NO_WHOLE_SLOT, compliance, time_to_target, tracking, worst_rise
from dispatcher.verification.obligations import Held
from dispatcher.verification.series import MeteredSeries
from tests.verification.samples import DAY, at, flat, owed, with_part

BASE = flat(100_000.0)
NAN = float("nan")


def minutes(*watts: float) -> MeteredSeries:
    """A meter by the minute from 16:00 on."""
    return MeteredSeries(at(16), 60, np.array(watts))


def for_min(count: int, limit_w: float = 60.0, ramp_s: float = 0.0):  # type: ignore[no-untyped-def]
    return owed(16, 16 + count / 60, limit_w, ramp_s=ramp_s)


def test_windows_are_judged_by_their_means() -> None:
    metered = minutes(60, 61, 59, 60, 60, 70, 50, 60, 60, 60)
    by_minute = compliance(metered, None, for_min(10), 60)
    assert (by_minute.windows, by_minute.measured, by_minute.within) == (10, 10, 8)
    assert by_minute.worst_excess_w == pytest.approx(10.0)
    assert by_minute.share == pytest.approx(0.8)
    by_five = compliance(metered, None, for_min(10), 300)
    assert (by_five.windows, by_five.within, by_five.worst_excess_w) == (2, 2, pytest.approx(0.0))
    assert compliance(metered, None, for_min(10), 60, tolerance_w=1.0).within == 9


def test_the_ramp_is_not_judged() -> None:
    metered = minutes(100, 80, 60, 60)
    assert compliance(metered, None, for_min(4, ramp_s=120), 60).share == 1.0
    assert compliance(metered, None, for_min(4), 60).within == 2
    none = compliance(metered, None, for_min(4, ramp_s=900), 60)
    assert none.share is None and none.reason == "no time was left after the ramps to judge"


def test_a_window_that_was_not_measured_is_not_within() -> None:
    got = compliance(minutes(60, NAN, 60, 60), None, for_min(4), 60)
    assert (got.windows, got.measured, got.within) == (4, 3, 3)
    assert got.share == pytest.approx(0.75)


@pytest.mark.parametrize("window_s", [0.5, 30.0])
def test_a_coarse_meter_cannot_tell_and_says_so(window_s: float) -> None:
    got = compliance(minutes(60, 60), None, for_min(2), window_s)
    assert got.share is None
    assert got.reason == "the meter's slots of 60 s are too coarse to tell"


def test_half_seconds_are_told_by_a_fast_meter() -> None:
    fast = MeteredSeries(at(16), 0.1, np.array([61.0] * 5 + [60.0] * 15))
    got = compliance(fast, None, owed(16, 16 + 2 / 3600, 60.0), 0.5)
    assert (got.windows, got.within) == (4, 3)


def test_a_commitment_needs_a_baseline() -> None:
    promise = owed(limit_w=None, committed_w=30_000.0)
    assert compliance(flat(70_000.0), BASE, promise, 60).share == 1.0
    assert compliance(flat(70_001.0), BASE, promise, 60).share == 0.0
    assert compliance(flat(70_000.0), None, promise, 60).reason == "there is no limit, and no baseline to tell one by"


def test_tracking_by_hand() -> None:
    # Against 60 W: +2, -4, 0, -10 W, a minute each.
    got = tracking(minutes(62, 56, 60, 50), None, for_min(4), reference_w=100.0)
    assert got.nrmse == pytest.approx(np.sqrt((4 + 16 + 0 + 100) / 4) / 100)
    assert got.worst_excess_w == pytest.approx(2.0)
    assert got.over_cap_kwh == pytest.approx(2 * 60 / 3.6e6)
    assert got.over_shed_w == pytest.approx(10.0)
    assert got.over_shed_kwh == pytest.approx(14 * 60 / 3.6e6)
    assert got.coverage == 1.0


def test_tracking_takes_the_mean_baseline_as_reference_and_tells_cuts() -> None:
    metered = with_part(flat(60_000.0), at(17), at(17) + timedelta(minutes=1), 75_000.0)
    got = tracking(metered, BASE, owed())
    assert got.reference_w == pytest.approx(100_000)
    assert got.hold_cut == pytest.approx((119 * 0.4 + 0.25) / 120)
    assert got.weakest_cut == pytest.approx(0.25)


def test_nothing_measured_is_unknown() -> None:
    got = tracking(flat(NAN), BASE, owed())
    assert (got.worst_excess_w, got.over_cap_kwh, got.nrmse, got.first_s, got.coverage) == (None, None, None, None, 0.0)


@pytest.mark.parametrize(
    ("watts", "first", "steady"),
    [
        ((100, 80, 60, 60, 60), 120, 120),
        ((100, 60, 70, 60, 60), 60, 180),
        ((60, 60, 60, 60, 60), 0, 0),
        ((100, 90, 80, 70, 61), None, None),
        ((100, 60, 60, 60, 61), 60, None),
        ((100, NAN, 60, NAN, 60), 120, 120),
    ],
)
def test_time_to_target(watts: tuple[float, ...], first: float | None, steady: float | None) -> None:
    assert time_to_target(minutes(*watts), None, for_min(5)) == (first, steady)


def test_the_worst_rise_is_between_neighbouring_minutes() -> None:
    rise = worst_rise(minutes(50, 55, NAN, 90, 95, 103), at(16), at(16.1))
    assert rise is not None
    assert rise.rise_w == pytest.approx(8.0)
    assert rise.at == at(16) + timedelta(minutes=5)
    assert worst_rise(MeteredSeries(DAY, 300, np.ones(10)), DAY, at(0.5)) is None
    assert worst_rise(minutes(1.0), at(16), at(16) + timedelta(minutes=1)) is None


# --- what lies outside a hold is not judged -------------------------------------------------------------------------------


def off_grid(outside: float, inside: float, count: int = 6) -> tuple[MeteredSeries, tuple[Held, ...]]:
    """Minutes of a hold that begins and ends half way through one: in those two the mean is that of both levels."""
    half = (outside + inside) / 2
    hold = owed(16 + 0.5 / 60, 16 + (count - 0.5) / 60, 60.0)
    return minutes(half, *[inside] * (count - 2), half, outside), hold


def test_a_slot_that_reaches_beyond_a_hold_is_not_judged() -> None:
    metered, hold = off_grid(100.0, 58.0)
    got = compliance(metered, None, hold, 60)
    assert (got.windows, got.measured, got.within, got.unjudged_s, got.unjudged_holds) == (4, 4, 4, 60.0, 0)
    over = compliance(off_grid(10.0, 61.0)[0], None, hold, 60)
    assert (over.windows, over.within) == (4, 0), "nor does low load outside it hide what was drawn within"
    held = tracking(metered, None, hold, 100.0)
    assert (held.over_cap_kwh, held.worst_excess_w, held.coverage) == (0.0, 0.0, pytest.approx(4 / 5))
    assert time_to_target(metered, None, hold) == (30.0, 30.0)


def test_where_no_slot_lies_within_a_hold_nothing_can_be_told() -> None:
    got = compliance(minutes(10.0, 10.0), None, owed(16 + 0.5 / 60, 16 + 1.4 / 60, 60.0), 60)
    assert (got.windows, got.share, got.reason) == (0, None, NO_WHOLE_SLOT)


def test_a_change_of_the_limit_within_a_slot_leaves_that_slot_out_of_both_holds() -> None:
    first, second = owed(16, 16 + 2.5 / 60, 100.0), owed(16 + 2.5 / 60, 16 + 5 / 60, 50.0)
    got = compliance(minutes(100, 100, 75, 50, 50), None, (*first, *second), 60)
    assert (got.windows, got.within, got.unjudged_s) == (4, 4, 60.0)


@given(
    st.lists(st.floats(0.0, 60.0), min_size=3, max_size=8),
    st.floats(0.01, 0.99),
    st.floats(0.01, 0.99),
    st.floats(0.0, 1e6),
)
def test_load_from_outside_a_hold_is_never_over_its_limit(
    inside: list[float], head: float, tail: float, outside: float
) -> None:
    """``inside`` are the levels of the hold's minutes; of its first and last one a part lies outside it."""
    values = list(inside)
    values[0] = head * outside + (1 - head) * inside[0]
    values[-1] = tail * inside[-1] + (1 - tail) * outside
    hold = owed(16 + head / 60, 16 + (len(inside) - 1 + tail) / 60, 60.0)
    got = compliance(minutes(*values), None, hold, 60)
    assert got.within == got.windows == len(inside) - 2


def test_the_energy_of_a_longer_stretch_says_nothing_of_power() -> None:
    spread = MeteredSeries(at(16), 60, np.full(4, 40.0), spread=np.array([False, True, True, False]))
    got = compliance(spread, None, for_min(4), 60)
    assert (got.windows, got.measured, got.within) == (4, 2, 2)
    assert tracking(spread, None, for_min(4), 100.0).coverage == pytest.approx(0.5)
