"""The planner against an exhaustive search on tiny cases, and its bound against everything it could have done."""

from datetime import timedelta
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.alone import alone, shape_of
from policies.grid import make_grid, make_lane
from policies.planner import plan
from policies.world import Pausable, RegionView, World
from tests.policies.worlds import NOW, check_plan, job, region, series, world

H = timedelta(hours=1)
SLOTS = 8  # of an hour each
EXACT = {"slot_s": 3600, "horizon_s": SLOTS * 3600, "launch_s": 0.0, "runtime_slack": 0.0, "deadline_margin_s": 0.0}
PRICES = st.lists(st.integers(1, 200).map(float), min_size=SLOTS, max_size=SLOTS)


def hourly(name: str, prices: list[float], gpus: float = 8.0) -> RegionView:
    return region(name, None, gpus=gpus, price=series(list(prices), slot_s=3600))


@st.composite
def tiny(draw: st.DrawFn) -> World:
    regions = [hourly(name, draw(PRICES), float(draw(st.integers(1, 2)))) for name in "ab"[: draw(st.integers(1, 2))]]
    jobs = []
    for n in range(draw(st.integers(1, 3))):
        hours = draw(st.integers(1, 3))
        deadline = draw(st.integers(hours, SLOTS))
        jobs.append(job(f"j{n}", runtime_s=hours * 3600.0, deadline_at=NOW + deadline * H, gpus=float(draw(st.integers(0, 1)))))
    return world(jobs, regions, **EXACT)


def cheapest(picture: World) -> float | None:
    """The least cost of all ways to start every job in time on the hour, or None when there is none."""
    ways = []
    for one in picture.jobs:
        hours, until = int(one.remaining_s // 3600), one.flex.deadline_at
        assert until is not None
        last = int((until - NOW) / H) - hours
        ways.append([(view, start, hours) for view in picture.regions for start in range(last + 1)])
    best = None
    for choice in product(*ways):
        use = {(view.name, hour): 0.0 for view in picture.regions for hour in range(SLOTS)}
        cost = 0.0
        for one, (view, start, hours) in zip(picture.jobs, choice, strict=True):
            for hour in range(start, start + hours):
                use[view.name, hour] += one.flex.gpus
                cost += (view.price.values[hour] or 0.0) * one.flex.power_w / 1e6 if view.price is not None else 0.0
        fits = all(use[view.name, hour] <= (view.gpus or 0.0) for view in picture.regions for hour in range(SLOTS))
        if fits and (best is None or cost < best):
            best = cost
    return best


@given(tiny())
@settings(max_examples=120, deadline=None)
def test_tiny_cases_come_close_to_the_exhaustive_optimum(picture: World) -> None:
    made, best = plan(picture), cheapest(picture)
    check_plan(picture, made)
    assert made.bound is not None
    if best is None:
        return
    assert made.bound <= best + 1e-9, "no schedule undercuts the bound"
    if all(placement.late_s == 0 for placement in made.placements.values()):
        assert made.objective >= best - 1e-9
    if len(picture.jobs) == 1:
        assert made.objective == pytest.approx(best, rel=2e-3)


def test_the_mean_of_tiny_cases_is_within_a_few_percent_of_the_optimum() -> None:
    chance = np.random.default_rng(7)
    ratios, late = [], 0
    for _ in range(150):
        regions = [hourly(name, [float(p) for p in chance.integers(1, 200, SLOTS)], 1.0) for name in "ab"]
        jobs = [
            job(f"j{n}", runtime_s=3600.0 * chance.integers(1, 4), deadline_at=NOW + int(chance.integers(4, 9)) * H)
            for n in range(3)
        ]
        picture = world(jobs, regions, **EXACT)
        made, best = plan(picture), cheapest(picture)
        if best is None:
            continue
        if any(placement.late_s > 0 for placement in made.placements.values()):
            late += 1
            continue
        ratios.append(made.objective / best)
    assert late == 0
    assert np.mean(ratios) < 1.03 and np.percentile(ratios, 90) < 1.10


@given(PRICES, st.floats(0, 4), st.floats(0.5, 4), st.booleans(), st.integers(0, 40))
@settings(max_examples=200, deadline=None)
def test_no_window_undercuts_the_floor(prices: list[float], ready_h: float, run_h: float, whole: bool, step: int) -> None:
    picture = world([], [hourly("a", prices)], **EXACT)
    grid = make_grid(NOW, 3600, SLOTS * 3600.0)
    lane = make_lane(picture.regions[0], picture, grid)
    shape = shape_of([(ready_h * 3600, SLOTS * 3600.0, run_h * 3600, 1000.0, 0.5, whole)])
    found = alone(shape, lane, grid)
    begin = np.array([ready_h * 3600 + step * 360.0])
    if begin[0] + run_h * 3600 <= SLOTS * 3600.0:
        cost = float(lane.cost(grid, 1000.0, begin, begin + run_h * 3600)[0]) + 0.5
        assert found.floor[0] <= cost + 1e-9
    if np.isfinite(found.cost[0]):
        start = found.start_s
        assert found.cost[0] == pytest.approx(float(lane.cost(grid, 1000.0, start, start + run_h * 3600)[0]) + 0.5)
        assert found.floor[0] <= found.cost[0] + 1e-9


def test_a_pausable_plan_never_undercuts_its_bound() -> None:
    chance = np.random.default_rng(3)
    for _ in range(40):
        prices = [float(p) for p in chance.normal(60, 40, 192)]
        one = job("j", runtime_s=float(chance.integers(1, 8)) * 1800, pausable=Pausable.CHECKPOINT)
        made = plan(world([one], [region("a", prices)]))
        assert made.bound is not None and made.bound <= made.objective + 1e-9
        cost, now_cost = made.placements["j"].cost, made.placements["j"].run_now_cost
        assert cost is not None and now_cost is not None and cost <= now_cost + 0.02 * abs(now_cost) + 1e-6
