"""Energy and time-weighted means: unknown stays unknown."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.accounting import energy_kwh, weighted_mean
from signals.points import Kind, Quality, SignalPoint

NOW = datetime(2026, 2, 3, 6, 0, tzinfo=UTC)
H = timedelta(hours=1)


def point(start_h: float, end_h: float, value: float) -> SignalPoint:
    start, end = NOW + start_h * H, NOW + end_h * H
    return SignalPoint("a", Kind.PRICE, "EUR/MWh", start, end, None, NOW, value, Quality.MEASURED, "test")


def test_energy_of_a_constant_draw() -> None:
    assert energy_kwh(1500.0, NOW, NOW + 2 * H) == pytest.approx(3.0)
    assert energy_kwh(1500.0, NOW, NOW - H) == 0.0


def test_a_mean_is_weighted_by_time() -> None:
    points = [point(0, 1, 10.0), point(1, 2, 40.0), point(2, 3, -20.0)]
    assert weighted_mean(points, NOW + 0.5 * H, NOW + 2 * H) == pytest.approx(30.0)
    assert weighted_mean(list(reversed(points)), NOW, NOW + 3 * H) == pytest.approx(10.0)


@pytest.mark.parametrize("gap", [(0.0, 0.5), (1.0, 1.5), (2.5, 3.0)])
def test_a_hole_makes_it_unknown(gap: tuple[float, float]) -> None:
    points = [p for p in (point(0, gap[0], 5.0) if gap[0] > 0 else None, point(gap[1], 3, 5.0) if gap[1] < 3 else None) if p]
    assert weighted_mean(points, NOW, NOW + 3 * H) is None
    assert weighted_mean([], NOW, NOW + H) is None
    assert weighted_mean([point(0, 1, 1.0)], NOW, NOW) is None


def test_where_points_overlap_the_finer_one_holds() -> None:
    assert weighted_mean([point(0, 2, 10.0), point(1, 2, 30.0)], NOW, NOW + 2 * H) == pytest.approx(20.0)


def test_what_is_doubted_covers_nothing() -> None:
    doubted = replace(point(1, 2, 900.0), quality=Quality.SUSPECT)
    assert weighted_mean([point(0, 1, 5.0), doubted], NOW, NOW + 2 * H) is None
    assert weighted_mean([point(0, 2, 5.0), doubted], NOW, NOW + 2 * H) == pytest.approx(5.0)


def test_values_in_several_units_have_no_mean() -> None:
    crowns = replace(point(1, 2, 900.0), unit="CZK/MWh")
    assert weighted_mean([point(0, 1, 5.0), crowns], NOW, NOW + 2 * H) is None
    assert weighted_mean([point(0, 1, 5.0), crowns], NOW, NOW + H) == pytest.approx(5.0)


@given(st.lists(st.floats(-500, 500), min_size=1, max_size=12), st.integers(0, 11), st.integers(1, 12))
def test_a_mean_lies_between_the_values_it_covers(values: list[float], first: int, length: int) -> None:
    points = [point(n, n + 1, value) for n, value in enumerate(values)]
    mean = weighted_mean(points, NOW + first * H, NOW + (first + length) * H)
    covered = values[first : first + length]
    if len(covered) < length:
        assert mean is None
    else:
        assert mean is not None and min(covered) - 1e-6 <= mean <= max(covered) + 1e-6
