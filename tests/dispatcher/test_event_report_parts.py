"""From stored events and measurements to what reports are made of."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.config_programme import ProgrammeConfig
from dispatcher.event_report import earlier_in_season, season_of, segments_of, span_of, versions_of
from dispatcher.event_series import BRIDGED, joined, series_of, spans_of_energy, usual_length_s
from dispatcher.power.energy import EnergySum
from dispatcher.power.meter_values import SUSPECT, Span
from dispatcher.store import GridEvent, GridEventChange, GridStep
from dispatcher.verification.like_days import Calendar
from dispatcher.verification.obligations import in_force
from dispatcher.verification.programme import Programme

T0 = datetime(2026, 6, 23, 16, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return T0 + timedelta(minutes=minutes)


def grid_event(*steps: GridStep, received: float = -60, cancelled: bool = False, **more: object) -> GridEvent:
    end = steps[-1].end if steps else None
    given = {"steps": steps, "cancelled": cancelled, **more}
    return GridEvent("grid", "e1", 1, "eu", steps[0].start if steps else T0, end, None, at(received), **given)  # type: ignore[arg-type]


# --- versions -----------------------------------------------------------------------------------------------------


def test_steps_follow_each_other_and_of_several_the_strictest_holds() -> None:
    steps = (
        GridStep(at(0), at(60), 80e3, ramp_s=300.0),
        GridStep(at(30), at(90), 60e3, ramp_s=120.0),
        GridStep(at(100), None, 50e3),
    )
    found = [(one.start, one.end, one.limit_w, one.ramp_s) for one in segments_of(steps, at(-60))]
    assert found == [
        (at(0), at(30), 80e3, 300.0),
        (at(30), at(90), 60e3, 120.0),
        (at(100), None, 50e3, 0.0),
    ]


def test_a_response_class_gives_time_from_the_message_on() -> None:
    (late,) = segments_of((GridStep(at(0), at(60), 80e3),), at(-4), 600.0)
    assert late.ramp_s == 360.0
    (early,) = segments_of((GridStep(at(0), at(60), 80e3),), at(-20), 600.0)
    assert early.ramp_s == 0.0
    (running,) = segments_of((GridStep(at(-30), at(60), 80e3),), at(0), 600.0)
    assert running.ramp_s == 600.0


def test_an_event_without_a_history_has_the_version_that_is_stored() -> None:
    step = GridStep(at(0), at(60), 80e3)
    (only,) = versions_of(grid_event(step), ())
    assert only.received_at == at(-60) and only.segments[0].limit_w == 80e3
    owed = in_force(versions_of(grid_event(step, received=30, cancelled=True), ()), at(120))
    assert [(one.start, one.end) for one in owed] == [(at(0), at(30))]


def test_only_versions_that_were_taken_count() -> None:
    step = GridStep(at(0), at(60), 80e3)
    lines = [
        GridEventChange("grid", "e1", at(-60), 1, "accepted", "", steps=(step,)),
        GridEventChange("grid", "e1", at(-50), 1, "ignored", "a duplicate"),
        GridEventChange("grid", "e1", at(-40), 1, "opted_out", "no"),
        GridEventChange("grid", "e1", at(20), 2, "cancelled", "", steps=(step,)),
    ]
    versions = versions_of(grid_event(step), lines)
    assert [(one.name, len(one.segments)) for one in versions] == [("version 1", 1), ("version 2, cancelled", 0)]


step_lists = st.lists(
    st.builds(
        lambda start, length, limit, ramp: GridStep(at(start), at(start + length), limit, ramp_s=ramp),
        st.integers(0, 200),
        st.integers(1, 100),
        st.sampled_from([10.0, 20.0, 30.0]),
        st.none() | st.sampled_from([60.0]),
    ),
    max_size=6,
).map(tuple)


@given(step_lists)
def test_at_each_moment_the_strictest_step_is_what_is_owed(steps: tuple[GridStep, ...]) -> None:
    segments = segments_of(steps, at(-60))
    for minute in range(0, 301):
        here = [one.limit_w for one in steps if one.start <= at(minute) and (one.end is None or at(minute) < one.end)]
        owed = [one.limit_w for one in segments if one.start <= at(minute) and (one.end is None or at(minute) < one.end)]
        assert owed == ([min(here)] if here else [])


def test_when_an_event_moved_its_site() -> None:
    step = GridStep(at(0), at(60), 80e3)
    assert span_of(grid_event(step), at(200)) == (at(0), at(60))
    assert span_of(grid_event(step, received=30, cancelled=True), at(200)) == (at(0), at(30))
    assert span_of(grid_event(step, received=-30, cancelled=True), at(200)) is None
    assert span_of(grid_event(GridStep(at(0), None, 80e3)), at(200)) == (at(0), at(200))
    assert span_of(grid_event(), at(200)) is None


def test_a_season_is_a_run_of_months_or_the_year() -> None:
    january = datetime(2026, 1, 20, tzinfo=UTC)
    utc = Calendar("UTC")
    winter = Programme("p", "EUR", months=frozenset({11, 12, 1, 2}))
    assert season_of(winter, january, utc) == datetime(2025, 11, 1, tzinfo=UTC)
    assert season_of(Programme("p", "EUR"), january, utc) == datetime(2026, 1, 1, tzinfo=UTC)
    config = ProgrammeConfig(name="p", event_source=["grid"], currency="EUR", months="jun-sep")
    own = grid_event(GridStep(at(0), at(60), 1.0))
    may = GridEvent("grid", "may", 1, "eu", T0 - timedelta(days=40), T0 - timedelta(days=39), 1.0, T0)
    june = GridEvent("grid", "june", 1, "eu", T0 - timedelta(days=4), T0 - timedelta(days=3), 1.0, T0)
    other = GridEvent("other", "june", 1, "eu", T0 - timedelta(days=4), T0 - timedelta(days=3), 1.0, T0)
    assert earlier_in_season(config, own, [may, june, other, own], at(200)) == ((june.start, june.end),)


# --- series -------------------------------------------------------------------------------------------------------


def span(start: float, end: float, watts: float, quality: str = "measured") -> Span:
    return Span(at(start), at(end), watts, quality)


def test_slots_begin_where_the_readings_do_and_gaps_stay() -> None:
    spans = [span(0.5, 1.5, 10.0), span(1.5, 2.5, 20.0), span(4.5, 5.5, 40.0), span(3.5, 4.5, 9e9, SUSPECT)]
    made = series_of(spans, at(0), at(6), 60.0, "site meter")
    assert made.start == at(-0.5)
    assert np.array_equal(made.watts, [np.nan, 10, 20, np.nan, np.nan, 40, np.nan], equal_nan=True)
    assert not made.estimated.any()


def test_a_long_reading_says_of_a_slot_what_it_says_of_its_neighbours() -> None:
    made = series_of([span(0, 60, 10.0), span(60, 61, 30.0)], at(0), at(62), 60.0, "m")
    assert made.watts[:61].tolist() == [10.0] * 60 + [30.0] and np.isnan(made.watts[61])
    assert made.estimated.tolist() == [True] * 60 + [False, False]


def test_a_coarser_slot_needs_nine_tenths() -> None:
    fives = series_of([span(k, k + 1, 60.0) for k in range(9) if k != 2], at(0), at(10), 300.0, "m")
    assert np.isnan(fives.watts).all()
    assert series_of([span(k, k + 1, 10.0 * k) for k in range(5)], at(0), at(5), 300.0, "m").watts.tolist() == [20.0]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20), st.floats(0, 1e6)), max_size=8))
def test_energy_of_readings_is_kept_and_nothing_is_invented(raw: list[tuple[int, int, float]]) -> None:
    spans = [span(start, start + length, watts) for start, length, watts in raw]
    made = series_of(spans, at(0), at(80), 60.0, "m")
    for k in range(len(made)):
        here = [one.value for one in spans if one.start <= made.at(k) < one.end]
        assert bool(here) == bool(made.known[k])
        assert not here or min(here) - 1e-6 <= made.watts[k] <= max(here) + 1e-6


def energy(start: float, minutes: float, wh: float | None, gpus: int, seconds: float) -> EnergySum:
    return EnergySum(at(start), at(start + minutes), wh, wh, None, None, None, gpus, seconds, False)


def test_agents_energy_times_pue_as_far_as_enough_was_measured() -> None:
    sums = [
        energy(0, 1, 20.0, 2, 120.0),
        energy(1, 1, 19.0, 2, 114.0),  # one GPU told 54 s: the other six seconds were like them
        energy(2, 1, 10.0, 1, 60.0),  # of two GPUs one is silent
        energy(3, 1, None, 0, 0.0),
    ]
    found = spans_of_energy(sums, lambda start, end: 2 * (end - start).total_seconds(), 1.5)
    assert [(one.start, pytest.approx(one.value)) for one in found] == [(at(0), 1800.0), (at(1), 1800.0)]


def test_a_row_of_an_hour_in_the_place_of_a_minute_is_an_hour() -> None:
    (one,) = spans_of_energy([energy(0, 1, 600.0, 1, 3600.0)], lambda start, end: (end - start).total_seconds(), 1.0)
    assert (one.end, one.value) == (at(60), 600.0)


def test_parts_that_follow_are_one_series() -> None:
    first = series_of([span(0, 2, 10.0)], at(0), at(2), 60.0, "m")
    later = series_of([span(4, 5, 30.0)], at(3), at(5), 60.0, "m")
    whole = joined([later, first])
    assert whole.start == at(0)
    assert np.array_equal(whole.watts, [10, 10, np.nan, np.nan, 30], equal_nan=True)


def test_readings_are_as_long_as_most_of_the_time_is() -> None:
    spans = [span(0, 1, 1.0), span(1, 2, 1.0), span(2, 4, 1.0), span(4, 5, 1.0), span(5, 6, 1.0, SUSPECT)]
    assert usual_length_s(spans, at(0), at(10)) == 60.0
    assert usual_length_s([*spans, span(6, 66, 1.0)], at(0), at(66)) == 3600.0
    assert usual_length_s(spans, at(20), at(30)) == 0.0


def test_minutes_that_only_counters_know_are_one_stretch_that_tells_no_power() -> None:
    whole = [energy(k, 1, 20.0, 2, 120.0) for k in range(8)]
    bridged = {2: 50.0, 3: 120.0, 4: 70.0, 6: 8.0}  # seconds of both GPUs; the last are less than a tenth of the minute
    sums = [replace(one, energy_wh=10.0 * k, bridged_s=bridged.get(k, 0.0)) for k, one in enumerate(whole)]
    spans = spans_of_energy(sums, lambda start, end: 2 * (end - start).total_seconds(), 1.0)
    assert [(one.start, one.end, one.reason) for one in spans if one.reason] == [(at(2), at(5), BRIDGED)]
    made = series_of(spans, at(0), at(8), 60.0, "m")
    assert made.watts.tolist() == pytest.approx([0, 600, 1800, 1800, 1800, 3000, 3600, 4200])  # the mean of 20, 30 and 40 Wh
    assert made.spread.tolist() == [False] * 2 + [True] * 3 + [False] * 3
    assert np.isnan(made.sharp().watts).tolist() == made.spread.tolist()
