import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.cap_model import (
    CLASSES,
    GRID,
    LEAST_CAP,
    PLANNED_CAPS,
    Learned,
    Observation,
    classes_of,
    clock_at,
    common_points,
    family,
    speed_under,
    usual_draw,
)

TYPES = st.sampled_from(["NVIDIA A100-SXM4-80GB", "H100", "V100", "Quadro RTX 6000", "A40", "P100", "L4", None])
DRAWS = st.floats(0.1, 1.1)


def test_the_clock_draws_exactly_what_it_may() -> None:
    level, cubic = np.linspace(0.05, 1.0, 20)[:, None], np.linspace(0.0, 1.0, 11)[None, :]
    clock = clock_at(level, cubic)
    assert np.allclose(cubic * clock**3 + (1 - cubic) * clock, level, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "draw", "cap", "speed"),
    [
        # Relative speeds measured at 75, 62.5 and 50 % of the default limit, mean of the class's sweeps.
        ("A100 training", 0.955, 0.75, 0.87),
        ("A100 training", 0.955, 0.50, 0.63),
        ("A100 fine-tuning and inference", 0.88, 0.75, 0.94),
        ("A100 fine-tuning and inference", 0.88, 0.50, 0.79),
        ("V100 heavy", 0.89, 0.60, 0.84),
        ("RTX6000 heavy", 0.90, 0.60, 0.84),
        ("A40 heavy", 0.87, 0.75, 0.93),
    ],
)
def test_the_classes_say_what_was_measured(name: str, draw: float, cap: float, speed: float) -> None:
    response = next(one.response for one in CLASSES if one.name == name)
    assert float(speed_under(np.array(cap), np.array(draw), response)) == pytest.approx(speed, abs=0.03)


@given(TYPES, DRAWS)
@settings(deadline=None)
def test_curves_fall_with_the_cap_and_are_never_offered_below_half(gpu_type: str | None, draw: float) -> None:
    curve = Learned().curve(None, gpu_type, draw)
    speeds = [curve.at(cap)[0] for cap in GRID]
    assert speeds == sorted(speeds) and all(0.0 < speed <= 1.0 for speed in speeds)
    assert curve.at(1.0) == (1.0, 0.0)
    points = curve.points([0.1, 0.49, 0.5, 0.7, 0.9, 1.0])
    assert [point.cap for point in points] == [0.9, 0.7, 0.5]
    assert all(point.draw == pytest.approx(min(1.0, point.cap / curve.draw)) for point in points)
    for cap in (0.49, 1.01):
        with pytest.raises(ValueError, match=r"must be 0\.5 to 1 of the default limit"):
            curve.at(cap)


@given(TYPES, DRAWS, st.sampled_from([0.0, 0.1, 0.25, 0.5]))
@settings(deadline=None)
def test_the_least_cap_keeps_what_a_tier_promises_with_some_certainty(gpu_type: str | None, draw: float, loss: float) -> None:
    curve = Learned().curve(None, gpu_type, draw)
    least = curve.least_cap(loss)
    assert LEAST_CAP <= least <= 1.0
    speed, bar = curve.at(least)
    assert least == 1.0 or speed - bar >= 1.0 - loss - 0.01
    assert loss > 0.0 or speed == 1.0
    assert least <= curve.least_cap(0.0)


def test_nothing_seen_is_the_class_with_a_wide_bar_and_more_seen_a_narrow_one() -> None:
    learned = Learned()
    prior = learned.curve("train", "A100", 0.9)
    assert prior.observations == 0 and not prior.proxy and "0 observations" in prior.basis
    bars = [prior.at(0.6)[1]]
    for count in (1, 4, 20):
        while learned.curve("train", "A100", 0.9).observations < count:
            learned.observe("train", "A100", Observation(0.6, 0.6, 0.62))
        bars.append(learned.curve("train", "A100", 0.9).at(0.6)[1])
    assert bars == sorted(bars, reverse=True) and bars[-1] < bars[0] / 2
    assert learned.curve("train", "A100", 0.9).at(0.6)[0] == pytest.approx(0.62, abs=0.03)
    # Another group, or another type of GPU, has learned nothing by that.
    assert learned.curve("other", "A100", 0.9) == learned.curve(None, "A100", 0.9)
    assert learned.curve("train", "V100", 0.9).observations == 0


def test_one_odd_observation_hardly_moves_a_class() -> None:
    learned = Learned()
    before = learned.curve("g", "A100", 0.9).at(0.7)[0]
    learned.observe("g", "A100", Observation(0.7, 0.7, 0.5, noise=0.2))
    assert learned.curve("g", "A100", 0.9).at(0.7)[0] == pytest.approx(before, abs=0.02)


def test_what_is_a_proxy_says_so_and_is_less_sure() -> None:
    own, other = Learned().curve(None, "A100", 0.9), Learned().curve(None, "NVIDIA H200", 0.9)
    assert not own.proxy and other.proxy and "as a proxy" in other.basis
    assert other.at(0.6)[1] > own.at(0.6)[1]
    assert other.least_cap(0.25) >= own.least_cap(0.25)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", ("A100", True)),
        ("NVIDIA H100 80GB HBM3", ("A100", False)),
        ("Tesla V100-SXM2-32GB", ("V100", True)),
        ("NVIDIA RTX 6000 Ada Generation", ("A40", False)),
        ("Quadro RTX 6000", ("RTX6000", True)),
        ("NVIDIA L40S", ("A40", False)),
        ("NVIDIA A10G", ("A40", False)),
        ("NVIDIA A40", ("A40", True)),
        ("", ("A100", False)),
        (None, ("A100", False)),
    ],
)
def test_each_gpu_has_a_measured_one_that_stands_for_it(name: str | None, expected: tuple[str, bool]) -> None:
    assert family(name) == expected


def test_light_work_goes_by_the_nearest_class_and_hardly_meets_a_cap() -> None:
    assert [one.name for one in classes_of("P100", 0.9)] == ["P100 medium"]
    assert Learned().curve(None, "V100", 0.4).at(0.5) == (1.0, 0.0)


def test_draw_moves_from_what_is_stated_to_what_was_seen() -> None:
    learned = Learned()
    assert learned.draw("g", "A100") == (pytest.approx(usual_draw("A100")), pytest.approx(0.15))
    assert learned.draw("g", "A100", stated=0.5)[0] == pytest.approx(0.5)
    for _ in range(30):
        learned.observe("g", "A100", Observation(1.0, 0.7))
    mean, bar = learned.draw("g", "A100", stated=0.95)
    assert mean == pytest.approx(0.7, abs=0.01) and bar < 0.02
    # What a job draws at its cap does not say what it would draw without.
    capped = Learned()
    capped.observe("g", "A100", Observation(0.6, 0.6))
    assert capped.draw("g", "A100", stated=0.9)[0] == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ((0.0, 0.5), "cap: 0.0 must be a share"),
        ((0.7, float("nan")), "draw: nan must be a share"),
        ((0.7, 0.7, 0.0), "speed: 0.0 must be relative"),
        ((0.7, 0.7, 0.9, 0.0), "noise: 0.0 must be above 0"),
    ],
)
def test_an_observation_that_cannot_be_is_refused(fields: tuple[float, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Observation(*fields)


def test_points_for_several_gpu_types_hold_for_each() -> None:
    learned = Learned()
    curves = [learned.curve(None, name, usual_draw(name)) for name in ("A100", "V100", "A40")]
    common = {point.cap: point for point in common_points(curves)}
    assert tuple(common) == PLANNED_CAPS
    for curve in curves:
        for point in curve.points():
            assert common[point.cap].speed <= point.speed and common[point.cap].draw >= point.draw
