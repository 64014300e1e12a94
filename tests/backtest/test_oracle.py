"""The oracle against looking at every moment, and against every policy."""

import math
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.backtest.engine import oracle, run
from dispatcher.backtest.scenario import SignalTable, SimRegion
from policies.world import CapPoint, Pausable
from tests.backtest.engine_samples import T0, Base, Cleanest, many_jobs, scenario, table, trace_job

STEP_S = 300.0


def signal(values: list[float]) -> SignalTable:
    return SignalTable("a", T0, 3600, np.array(values), np.array(values))


def least(values: list[float], ready_s: float, until_s: float, length_s: float, pausable: bool) -> float:
    """Signal x hours at the best, by trying every moment that is a multiple of STEP_S."""
    count = round(length_s / STEP_S)
    moments = np.arange(round(ready_s / STEP_S), round(max(until_s, ready_s + length_s) / STEP_S))
    worth = np.array(values)[(moments * STEP_S // 3600).astype(int)] * STEP_S / 3600.0
    if pausable:
        known = np.sort(worth[~np.isnan(worth)])
        return float(known[:count].sum()) if len(known) >= count else math.inf
    sums = np.array([worth[k : k + count].sum() for k in range(len(worth) - count + 1)])
    return float(np.nanmin(sums)) if not np.isnan(sums).all() else math.inf


@given(
    st.lists(st.one_of(st.integers(-50, 300).map(float), st.just(math.nan)), min_size=30, max_size=30),
    st.integers(0, 100),
    st.integers(1, 60),
    st.integers(0, 120),
    st.booleans(),
)
@settings(max_examples=150)
def test_it_finds_the_best_moments(values: list[float], ready: int, length: int, wait: int, pausable: bool) -> None:
    ready_s, length_s = ready * STEP_S, length * STEP_S
    job = trace_job(
        hour=ready_s / 3600,
        length_h=length_s / 3600,
        max_wait_s=wait * STEP_S,
        pausable=Pausable.CHECKPOINT if pausable else Pausable.NO,
    )
    found = oracle(scenario([job], SimRegion("a", signal(values)), days=1))
    best = least(values, ready_s, min(ready_s + wait * STEP_S + length_s, 30 * 3600.0), length_s, pausable)
    if math.isinf(best):
        assert found.carbon_kg is None and found.cost is None
    else:
        assert found.carbon_kg == pytest.approx(best / 1000.0, abs=1e-9)
        assert found.cost == pytest.approx(best / 1000.0, abs=1e-9)


def test_regions_caps_and_data_count() -> None:
    cheap, dear = signal([10.0] * 48), signal([100.0] * 48)
    two = (SimRegion("a", dear, pue=1.5), SimRegion("b", replace(cheap, region="b"), fx=2.0))
    assert oracle(scenario([trace_job()], *two, days=1)).cost == pytest.approx(0.02)
    assert oracle(scenario([trace_job(regions=("a",))], *two, days=1)).cost == pytest.approx(0.15)
    heavy = trace_job(data_gb=5.0, data_region="a")
    assert oracle(scenario([heavy], *two, days=1)).cost == pytest.approx(0.02 + 5 * 0.02)
    capped = SimRegion("a", dear, caps=(CapPoint(0.7, 0.5, 0.8),))
    for tier, min_cap, share in (
        ("flex-2", 0.7, 0.5 / 0.8),
        ("flex-2", 0.9, 1.0),
        ("flex-2", None, 0.5 / 0.8),
        ("flex-0", None, 1.0),
        ("flex-0", 0.5, 1.0),
    ):
        found = oracle(scenario([trace_job(min_cap=min_cap, tier=tier)], capped, days=1))
        assert found.cost == pytest.approx(0.1 * share)
    low = SimRegion("a", dear, caps=(CapPoint(0.4, 0.3, 0.6),))
    assert oracle(scenario([trace_job(tier="flex-3")], low, days=1)).cost == pytest.approx(0.1)
    assert oracle(scenario([trace_job()], SimRegion("a", replace(dear, price=None)), days=1)).cost is None


def test_without_a_deadline_any_time_will_do_and_a_late_one_runs_at_once() -> None:
    values = [100.0] * 40 + [1.0] * 4 + [100.0] * 4
    region = SimRegion("a", signal(values))
    assert oracle(scenario([trace_job(max_wait_s=None)], region, days=1)).cost == pytest.approx(0.001)
    late = trace_job(length_h=2.0, max_wait_s=None, deadline_at=T0 + timedelta(minutes=5))
    assert oracle(scenario([late], region, days=1)).cost == pytest.approx(0.2)
    endless = trace_job(length_h=100.0)
    assert oracle(scenario([endless], region, days=1)).cost == pytest.approx(sum(values) / 1000.0)


@pytest.mark.parametrize("pausable", [True, False])
def test_no_policy_undercuts_it(pausable: bool) -> None:
    free = {"checkpoint_s": 0.0, "restart_s": 0.0}
    jobs = many_jobs(200, pausable=Pausable.CHECKPOINT if pausable else Pausable.NO, **free)
    picture = scenario(jobs, SimRegion("a", table()))
    bound = oracle(picture)
    assert bound.cost is not None and bound.carbon_kg is not None
    for policy in (Base(), Cleanest()):
        found = run(picture, policy)
        assert found.cost is not None and found.cost >= bound.cost - 1e-9
        assert found.carbon_kg is not None and found.carbon_kg >= bound.carbon_kg - 1e-9
    assert bound.carbon_kg < 0.8 * (run(picture, Base()).carbon_kg or 0.0)
