"""From readings to power: counters, plausibility, alignment with the agents. All of it is pure."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.config import MeterConfig
from dispatcher.power.meter_values import (
    MEASURED,
    SUSPECT,
    Levels,
    MeterReading,
    Piece,
    Span,
    about,
    align,
    at_time,
    levels,
    mean_w,
    power_from_counter,
    unmetered,
)

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)


def t(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def counter(*values: float, cadence_s: float = 60.0) -> list[tuple[datetime, float]]:
    return [(t(i * cadence_s), value) for i, value in enumerate(values)]


def meter(**fields: Any) -> MeterConfig:
    return MeterConfig(**{"name": "m", "source": "push", **fields})


def read(config: MeterConfig, *values: float, limit_w: float | None = None) -> Levels:
    readings = []
    for i, value in enumerate(values):
        start, end = about(t((i + 1) * config.cadence_s), config.cadence_s, 0)
        span = (end, None) if config.cumulative else (start, end)
        readings.append(MeterReading("eu", "m", span[0], value, config.unit, T0, span[1]))
    return levels(config, readings, limit_w)


def test_a_reading_is_about_the_cadence_before_its_delay() -> None:
    assert about(t(100), 15, 30) == (t(55), t(70))


def test_the_difference_is_a_line_of_its_own() -> None:
    assert unmetered(50_000.0, 30_000.0, 1.2) == 14_000.0
    assert unmetered(30_000.0, 30_000.0, 1.2) == -6_000.0
    assert unmetered(None, 1.0, 1.2) is None and unmetered(1.0, None, 1.2) is None


# --- counters -----------------------------------------------------------------------------------------------------


def test_power_is_the_increment_over_the_time() -> None:
    got = power_from_counter(counter(10.0, 10.1, 10.3))
    assert [(span.start, span.end, round(span.value)) for span in got.spans] == [(t(0), t(60), 6000), (t(60), t(120), 12000)]
    assert got.gaps == () and got.not_used == frozenset()


def test_a_counter_covers_the_time_in_which_it_was_not_read() -> None:
    got = power_from_counter([(t(0), 10.0), (t(3600), 12.0)])
    assert [(span.end, span.value) for span in got.spans] == [(t(3600), 2000.0)]


def test_a_reset_is_a_gap_with_a_reason_and_not_negative_energy() -> None:
    got = power_from_counter(counter(500.0, 500.1, 0.1, 0.2))
    assert [round(span.value) for span in got.spans] == [6000, 6000]
    assert [(gap.start, gap.end) for gap in got.gaps] == [(t(60), t(120))]
    assert got.gaps[0].reason == "the counter went from 500.1 back to 0.1 kWh: reset or replaced"


def test_one_wrong_reading_between_two_that_fit_is_set_aside() -> None:
    for wrong in (0.0, 9000.0):
        got = power_from_counter(counter(500.0, 500.1, wrong, 500.3, 500.4), max_w=50_000)
        assert [round(span.value) for span in got.spans] == [6000, 6000, 6000], wrong
        assert got.not_used == {t(120)} and got.gaps == ()


def test_a_reset_that_could_be_a_wrong_reading_is_a_gap() -> None:
    got = power_from_counter(counter(0.3, 0.0, 0.4, 0.5), max_w=50_000)
    assert [(gap.start, gap.end) for gap in got.gaps] == [(t(0), t(120))]
    assert [round(span.value) for span in got.spans] == [6000]


def test_more_than_is_plausible_is_a_gap_at_once() -> None:
    got = power_from_counter(counter(500.0, 500.1, 9000.0), max_w=50_000)
    assert [round(span.value) for span in got.spans] == [6000]
    assert "more than the 50000 W that are plausible" in got.gaps[0].reason and got.not_used == {t(120)}


def test_readings_out_of_order_and_twice_give_the_same() -> None:
    points = counter(10.0, 10.1, 10.3, 10.4)
    assert power_from_counter([points[2], points[0], points[3], points[0], points[1]]) == power_from_counter(points)


steps = st.lists(st.floats(0, 5, allow_nan=False), min_size=1, max_size=40)


def kwh(got: Levels) -> float:
    return sum(span.value * (span.end - span.start).total_seconds() / 3.6e6 for span in got.spans)


@given(st.floats(0, 1e6), steps)
def test_a_counter_that_only_rises_gives_all_its_energy(start: float, increments: list[float]) -> None:
    values = [start]
    for step in increments:
        values.append(values[-1] + step)
    got = power_from_counter(counter(*values))
    assert got.gaps == () and kwh(got) == pytest.approx(values[-1] - values[0], abs=1e-6)


@given(
    st.lists(st.one_of(st.floats(0, 5), st.just("reset")), min_size=1, max_size=40), st.one_of(st.none(), st.just(400_000.0))
)
def test_whatever_a_counter_does_energy_is_never_negative_nor_more_than_was_counted(
    happens: list[float | str], max_w: float | None
) -> None:
    value, counted, values = 100.0, 0.0, [100.0]
    for one in happens:
        if one == "reset":
            value = 0.0
        else:
            value += float(one)
            counted += float(one)
        values.append(value)
    got = power_from_counter(counter(*values), max_w)
    assert all(span.value >= 0 and span.start < span.end for span in got.spans)
    assert kwh(got) <= counted + 1e-6
    together = sorted([*((s.start, s.end) for s in got.spans), *((g.start, g.end) for g in got.gaps)])
    assert all(a[1] == b[0] for a, b in pairwise(together)), "each moment is told of once"
    assert (together[0][0], together[-1][1]) == (t(0), t(60 * (len(values) - 1)))


@given(st.lists(st.floats(-1e7, 1e7), max_size=30), st.one_of(st.none(), st.floats(1, 1e6)))
def test_nonsense_gives_no_negative_power(values: list[float], max_w: float | None) -> None:
    got = power_from_counter(counter(*values), max_w)
    assert all(span.value >= 0 and (max_w is None or span.value <= max_w * (1 + 1e-9)) for span in got.spans)
    assert all(gap.reason for gap in got.gaps)


def test_a_counters_usual_power_says_what_is_implausible() -> None:
    values = [100 + i * 0.1 for i in range(6)]
    got = read(meter(unit="kWh"), *values, 900.0)
    assert len(got.spans) == 5 and "60000 W that are plausible" in got.gaps[0].reason


# --- plausibility -------------------------------------------------------------------------------------------------


def qualities(got: Levels) -> list[str]:
    return ["ok" if span.quality == MEASURED else span.reason.split(":")[0] for span in got.spans]


def test_a_jump_is_suspect_until_readings_agree_on_it() -> None:
    got = read(meter(max_jump=5000), 40_000, 41_000, 90_000, 41_500, 42_000)
    assert qualities(got) == ["ok", "ok", "90000.0 W after 41000.0 W", "ok", "ok"]
    assert got.not_used == {t(120)}
    got = read(meter(max_jump=5000), 40_000, 60_000, 61_000, 60_500, 60_000)
    assert [span.quality for span in got.spans] == [MEASURED, SUSPECT, SUSPECT, MEASURED, MEASURED]


def test_without_configuration_a_meter_may_rise_to_ten_times_its_value() -> None:
    assert qualities(read(meter(), 40_000, 390_000))[-1] == "ok"
    assert qualities(read(meter(), 40_000, 4_000_000))[-1] == "4000000.0 W after 40000.0 W"
    assert qualities(read(meter(), 300, 9_000))[-1] == "ok"


def test_negative_power_and_twice_the_limit_are_suspect() -> None:
    got = read(meter(), -50, 40_000, 130_000, limit_w=60_000)
    expected = ["-50.0 W is not between 0 and 120000 W", "ok", "130000.0 W is not between 0 and 120000 W"]
    assert qualities(got) == expected


def test_zero_is_a_value() -> None:
    assert qualities(read(meter(), 0, 0)) == ["ok", "ok"]


def test_a_thermometer_may_be_below_zero_but_not_jump() -> None:
    config = meter(unit="degC", scope="cooling_zone", of="hall")
    assert qualities(read(config, -5, -4, 40, -3)) == ["ok", "ok", "40.0 degC after -4.0 degC", "ok"]
    assert qualities(read(config, 900))[0].startswith("900.0 degC is not between")


def test_energy_of_each_cadence() -> None:
    got = read(meter(unit="kWh", counter=False), 0.5, 0.0, 0.6)
    assert [round(span.value) for span in got.spans] == [30_000, 0, 36_000]


# --- alignment ----------------------------------------------------------------------------------------------------


def test_the_agents_are_averaged_over_the_very_time_of_the_reading() -> None:
    spans = [Span(t(0), t(60), 5000.0), Span(t(60), t(120), 6000.0), Span(t(120), t(180), 1.0, SUSPECT, "odd")]
    pieces = [Piece(t(-30), t(30), 1000.0), Piece(t(30), t(60), 3000.0), Piece(t(60), t(100), 3000.0)]
    got = align(spans, pieces)
    assert [(one.meter_w, one.agents_w) for one in got] == [(5000.0, 2000.0), (6000.0, None)], "40 of 60 s are not enough"
    assert mean_w(pieces, t(60), t(120), least_cover=0.5) == 3000.0
    assert mean_w([], t(0), t(60)) is None


def test_a_span_tells_until_three_cadences_after_it() -> None:
    spans = [Span(t(0), t(60), 5000.0), Span(t(60), t(120), 9.0, SUSPECT, "odd")]
    for seconds, expected in ((-1, None), (0, 5000.0), (90, 5000.0), (240, 5000.0), (241, None)):
        found = at_time(spans, t(seconds), 180)
        assert (found.value if found is not None else None) == expected, seconds


@given(
    st.lists(st.tuples(st.integers(1, 30), st.floats(0, 1e5)), min_size=1, max_size=20),
    st.integers(0, 100),
    st.integers(1, 100),
)
def test_a_mean_lies_between_the_least_and_the_most(parts: list[tuple[int, float]], start: int, length: int) -> None:
    pieces, at = [], 0
    for seconds, power_w in parts:
        pieces.append(Piece(t(at), t(at + seconds), power_w))
        at += seconds
    got = mean_w(pieces, t(start), t(start + length))
    if got is None:
        assert min(at, start + length) - start < 0.9 * length
    else:
        assert min(p.power_w for p in pieces) - 1e-6 <= got <= max(p.power_w for p in pieces) + 1e-6
