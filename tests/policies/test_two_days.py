"""Planner and decisions together over simulated days: what users are promised holds from submission to end."""

import math
import random
from datetime import timedelta

import pytest

from policies.world import Budget, JobView, Pausable, RegionView, Settings
from tests.policies.simulated import Simulation
from tests.policies.worlds import NOW, SETTINGS, flex, job, region

H = timedelta(hours=1)


def wave(seed: int, peak_at: int) -> list[float | None]:
    """Four days of prices with one peak a day and noise."""
    noise = random.Random(seed)
    return [60 + 30 * math.cos((n - peak_at) * 2 * math.pi / 96) + noise.gauss(0, 8) for n in range(384)]


def regions(seed: int) -> tuple[RegionView, ...]:
    return region("a", wave(seed, 10)), region("b", wave(seed + 100, 45))


def work(seed: int, count: int, pausable: float = 0.6) -> list[JobView]:
    """Jobs over the first twelve hours; a tenth has no deadline, a share of ``pausable`` may be paused."""
    chance = random.Random(seed)
    made = []
    for n in range(count):
        runtime_s = chance.choice([1800.0, 3600.0, 7200.0, 4 * 3600.0, 6 * 3600.0])
        at = NOW + timedelta(seconds=30 * chance.randrange(0, 12 * 120))
        slack_s = 0.3 * runtime_s + 900 + chance.random() * 16 * 3600
        wishes = flex(
            runtime_s=runtime_s,
            deadline_at=None if chance.random() < 0.1 else at + timedelta(seconds=runtime_s + slack_s),
            pausable=Pausable.CHECKPOINT if chance.random() < pausable else Pausable.NO,
        )
        made.append(JobView(f"j{n:02d}", job("x").state, at, at, wishes, runtime_s))
    return made


def run_now_cost(one: JobView, home: RegionView) -> float:
    assert home.price is not None
    minutes = range(int(one.remaining_s // 60))
    prices = [home.price.at(one.submitted_at + timedelta(minutes=m)) or 0.0 for m in minutes]
    return sum(prices) * one.flex.power_w * home.pue / 60 / 1e6


@pytest.mark.parametrize("seed", [1, 2])
def test_two_days_cost_less_miss_nothing_and_pause_seldom(seed: int) -> None:
    jobs = work(seed, 16)
    there = regions(seed)
    done = Simulation(NOW, there, list(jobs), SETTINGS).run(50)
    assert set(done.ended_at) == {one.id for one in jobs}, "every job ends, with or without a deadline"
    late = [one.id for one in jobs if one.flex.deadline_at is not None and done.ended_at[one.id] > one.flex.deadline_at]
    assert late == []
    assert sum(done.cost.values()) < 0.9 * sum(run_now_cost(one, there[0]) for one in jobs)
    assert max(done.pauses.values(), default=0) <= 8 and sum(done.pauses.values()) <= 2 * len(jobs)


def test_an_announced_limit_is_met_from_its_first_second_to_its_last() -> None:
    jobs = work(5, 12, pausable=1.0)
    budget = Budget("a", NOW + 4 * H, NOW + 7 * H, 1000.0, "e1", "grid call")
    done = Simulation(NOW, regions(5), list(jobs), SETTINGS, (budget,)).run(50)
    assert done.over_w == [] and done.alarms == []
    assert set(done.ended_at) == {one.id for one in jobs}


def test_a_job_goes_on_until_a_pause_pays_and_is_not_paused_to_go_on_at_once() -> None:
    prices: list[float | None] = ([20.0] * 8 + [100.0] * 16) * 16  # two cheap hours, four dear ones
    one = job("j", runtime_s=4 * 3600.0, deadline_at=NOW + 30 * H, pausable=Pausable.CHECKPOINT)
    done = Simulation(NOW, (region("a", prices),), [one], SETTINGS).run(31)
    assert 1 <= done.pauses["j"] <= 3, "three cheap windows at most, as each resume costs a minute"
    assert done.cost["j"] < 0.1


def test_data_far_away_is_fetched_once_and_the_job_still_starts_elsewhere_when_that_pays() -> None:
    heavy = job("j", runtime_s=3600.0, data_gb=100.0, data_region="a", power_w=100_000.0)
    there = (region("a", [100.0] * 384), region("b", [20.0] * 384))
    done = Simulation(NOW, there, [heavy], Settings(default_region="a")).run(3)
    assert "j" in done.ended_at and done.cost["j"] == pytest.approx(2.0, rel=0.1)
