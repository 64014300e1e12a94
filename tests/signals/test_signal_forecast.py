"""Points laid on slots: weights, partial cover, overlaps, repeating a day, unknown."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from signals.forecast import MIN_COVER, PUBLISHED, REPEAT_DAY, REPEAT_DAYS, UNKNOWN, slot_series
from signals.points import Kind, Quality, SignalError, SignalPoint
from signals.series import SlotForecast, SlotSeries
from tests.signals.samples import DAY, T0, at, point


def lay(points: list[SignalPoint], *, slots: int = 4, slot_s: int = 900, start: datetime = T0, **more: str) -> SlotSeries:
    return slot_series(points, now=more.pop("now", T0), start=start, slot_s=slot_s, slots=slots, **more)  # type: ignore[arg-type]


def test_an_hour_fills_its_quarters_and_quarters_average_to_an_hour() -> None:
    series = lay([point(0, 7.3)], slots=5)
    assert series.values == (7.3, 7.3, 7.3, 7.3, None)
    assert series.basis == (PUBLISHED,) * 4 + (UNKNOWN,)
    assert (series.unit, series.source, series.slot_s, series.start) == ("EUR/MWh", "s", 900, T0)
    quarters = [point(i / 4, float(v), length_h=0.25) for i, v in enumerate((1, 2, 3, 6))]
    assert lay(quarters, slots=1, slot_s=3600).values == (3.0,)


def test_time_weighted_when_edges_do_not_meet() -> None:
    # a slot of an hour: 20 minutes of 30, then 40 minutes of 60
    points = [point(-2 / 3, 30.0), point(1 / 3, 60.0)]
    assert lay(points, slots=1, slot_s=3600).values[0] == pytest.approx(50.0)


@pytest.mark.parametrize(("length_h", "value"), [(0.5, 4.0), (0.75, 4.0), (0.49, None), (0.0001, None)])
def test_half_a_slot_must_be_covered(length_h: float, value: float | None) -> None:
    assert lay([point(0, 4.0, length_h=length_h)], slots=1, slot_s=3600).values == (value,)


def test_zero_and_negative_are_values_and_missing_is_not_zero() -> None:
    assert lay([point(0, 0.0), point(1, -5.0)], slots=3, slot_s=3600).values == (0.0, -5.0, None)


def test_repeats_the_latest_known_day_at_the_same_time() -> None:
    yesterday, before = point(-24, 1.0), point(-48, 2.0)
    only_before = point(-47, 3.0)
    series = lay([yesterday, before, only_before], slots=3, slot_s=3600)
    assert series.values == (1.0, 3.0, None)
    assert series.basis == (REPEAT_DAY, REPEAT_DAY, UNKNOWN)
    # published values of tomorrow are the latest known day of the day after
    ahead = lay([point(0, 9.0), point(-24, 1.0)], slots=49, slot_s=3600)
    assert (ahead.values[0], ahead.basis[0]) == (9.0, PUBLISHED)
    assert (ahead.values[24], ahead.values[48]) == (9.0, 9.0)
    assert ahead.basis[24] == REPEAT_DAY


def test_a_day_older_than_the_limit_is_not_repeated() -> None:
    assert lay([point(-24 * REPEAT_DAYS, 1.0)], slots=1, slot_s=3600).values == (1.0,)
    assert lay([point(-24 * (REPEAT_DAYS + 1), 1.0)], slots=1, slot_s=3600).values == (None,)


def test_finer_wins_then_actual_then_newer() -> None:
    coarse, fine = point(0, 1.0, retrieved_at=T0), point(0.25, 5.0, length_h=0.25, retrieved_at=T0 - DAY)
    assert lay([coarse, fine]).values == (1.0, 5.0, 1.0, 1.0)
    older, newer = point(0, 1.0, retrieved_at=T0 - DAY), point(0, 2.0, retrieved_at=T0, source="t")
    assert lay([newer, older], slots=1).values == (2.0,)
    forecast = point(0, 3.0, issued_at=T0, quality=Quality.FORECAST)
    assert lay([older, forecast], slots=1).values == (1.0,)


def test_later_knowledge_is_not_used() -> None:
    points = [point(0, 1.0, retrieved_at=T0 - DAY), point(0, 9.0), point(0, 8.0, issued_at=at(1), variant="")]
    assert slot_series(points, now=T0 - DAY, start=T0, slot_s=3600, slots=1).values == (1.0,)
    assert slot_series(points, now=T0, start=T0, slot_s=3600, slots=1).values == (9.0,)


def test_source_and_variant_choose() -> None:
    points = [point(0, 1.0, source="a"), point(0, 2.0, source="b", variant="v", retrieved_at=T0 - DAY)]
    assert lay(points, slots=1, source="b").values == (2.0,)
    assert lay(points, slots=1, source="b").source == "b"
    assert lay(points, slots=1).values == (1.0,)  # the variant retrieved last; variants never mix
    assert lay(points, slots=1, variant="v").source == "b"
    nothing = lay(points, slots=2, source="c", unit="EUR/MWh")
    assert (nothing.values, nothing.basis, nothing.unit) == ((None, None), (UNKNOWN, UNKNOWN), "EUR/MWh")


@pytest.mark.parametrize(
    ("other", "word"),
    [
        ({"region": "q"}, "region"),
        ({"kind": Kind.CARBON_AVERAGE}, "kind"),
    ],
)
def test_what_cannot_be_compared_is_refused(other: dict[str, Any], word: str) -> None:
    with pytest.raises(SignalError, match=word):
        lay([point(0, 1.0), point(1, 1.0, **other)])


def test_of_several_units_the_newest_is_one_series() -> None:
    euros = [point(h, 1.0, retrieved_at=T0 - DAY) for h in (-24, 0, 1)]
    series = lay([*euros, point(0, 25.0, unit="CZK/MWh", retrieved_at=T0)], slots=2, slot_s=3600)
    assert (series.values, series.unit) == ((25.0, None), "CZK/MWh")


def test_the_variant_is_told() -> None:
    points = [point(0, 1.0, variant="a", retrieved_at=T0 - DAY), point(0, 2.0, variant="b")]
    assert (lay(points, slots=1).variant, lay(points, slots=1, variant="a").variant) == ("b", "a")
    assert lay([], slots=1, unit="EUR/MWh").variant == ""


def test_what_is_doubted_comes_after_everything_else() -> None:
    doubted = [point(h, 99.0, quality=Quality.SUSPECT) for h in range(4)]
    made = SlotForecast(T0 + DAY / 24, 3600, (5.0,), (4.0,), (6.0,), "model", "why")
    series = slot_series(
        [point(-24, 1.0), *doubted, point(3, 7.0, retrieved_at=T0)], now=T0, start=T0, slot_s=3600, slots=5, beyond=made
    )
    assert series.values == (1.0, 5.0, 99.0, 7.0, None)
    assert series.basis == (REPEAT_DAY, "model", "suspect", PUBLISHED, UNKNOWN)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(SignalError, match="slots"):
        lay([], slot_s=0)
    with pytest.raises(SignalError, match="start"):
        lay([], start=datetime(2026, 3, 1))  # noqa: DTZ001 - the mistake under test
    with pytest.raises(SignalError, match="unit"):
        lay([point(0, 1.0)], unit="SEK/MWh")


def test_days_of_23_and_25_hours_do_not_shift_anything() -> None:
    # Across Europe's clock changes 24 UTC hours back is the same UTC time, whatever the wall clocks say.
    for change in (datetime.fromisoformat("2026-03-29T00:00+00:00"), datetime.fromisoformat("2026-10-25T00:00+00:00")):
        hours = [
            point(0, float(h), start=change - DAY + timedelta(hours=h), end=change - DAY + timedelta(hours=h + 1))
            for h in range(24)
        ]
        series = slot_series(hours, now=T0 + 365 * DAY, start=change, slot_s=3600, slots=48)
        assert series.values == tuple(float(h) for h in range(24)) * 2
        assert set(series.basis) == {REPEAT_DAY}


INTERVALS = st.lists(st.tuples(st.integers(-3000, 300), st.integers(1, 120), st.integers(-50, 50), st.booleans()), max_size=12)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=INTERVALS, slot_min=st.sampled_from([5, 15, 30, 60]))
def test_agrees_with_minute_by_minute_painting(drawn: list[tuple[int, int, int, bool]], slot_min: int) -> None:
    points = [
        point(
            0,
            float(value),
            start=T0 + timedelta(minutes=start),
            end=T0 + timedelta(minutes=start + length),
            quality=Quality.FORECAST if forecast else Quality.MEASURED,
        )
        for start, length, value, forecast in drawn
    ]
    slots = 4
    series = lay(points, slots=slots, slot_s=slot_min * 60)
    paint: dict[int, float] = {}
    order = sorted(points, key=lambda p: (p.start - p.end, p.quality is not Quality.FORECAST))
    ties = {(p.start - p.end, p.quality is not Quality.FORECAST) for p in points}
    for p in order:  # the best last
        first = int((p.start - T0).total_seconds()) // 60
        for minute in range(first, first + int((p.end - p.start).total_seconds()) // 60):
            paint[minute] = p.value
    for i in range(slots):
        found: float | None = None
        for day in range(REPEAT_DAYS + 1):
            window = range(i * slot_min - day * 1440, (i + 1) * slot_min - day * 1440)
            known = [paint[m] for m in window if m in paint]
            if known and len(known) >= MIN_COVER * slot_min:
                found = sum(known) / len(known)
                break
        value = series.values[i]
        assert (value is None) == (found is None)
        if value is not None and found is not None and len(ties) == len(points):  # without ties the winner is certain
            assert value == pytest.approx(found, abs=1e-9)


def test_a_forecast_comes_after_what_is_published_and_before_a_repeated_day() -> None:
    points = [point(h, float(h)) for h in range(-24, 3)]
    values = (9.0, 10.0, 11.0, 12.0, None)
    beyond = SlotForecast(
        at(1), 3600, values, (1.0, 2.0, 3.0, 4.0, None), (19.0, 20.0, 21.0, 22.0, None), "model", "of 60 days"
    )
    series = slot_series(points, now=T0, start=T0, slot_s=3600, slots=6, beyond=beyond)
    assert series.values == (0.0, 1.0, 2.0, 11.0, 12.0, -19.0)
    assert series.basis == ("published",) * 3 + ("model",) * 2 + ("repeat-day",)
    assert series.low == (None, None, None, 3.0, 4.0, None) and series.high == (None, None, None, 21.0, 22.0, None)
    assert series.reason == "of 60 days"
    # one on other slots, or of times that are known anyway, says nothing
    for other in (replace(beyond, slot_s=900), replace(beyond, start=at(-9))):
        assert slot_series(points, now=T0, start=T0, slot_s=3600, slots=6, beyond=other).low == ()
