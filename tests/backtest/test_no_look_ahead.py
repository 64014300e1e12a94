"""Whatever is yet to come may be anything at all: what was decided before it is the same, bit for bit."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest

from dispatcher.backtest.engine import run_in_full
from dispatcher.backtest.scenario import Scenario, SignalTable, SimRegion, TraceJob
from dispatcher.store import JobEvent
from dispatcher.store.memory import MemoryStore
from policies.policy import Knows, Policy
from policies.registry import make
from tests.backtest.engine_samples import (
    T0,
    Base,
    Cleanest,
    H,
    Replanning,
    YesterdayForesight,
    many_jobs,
    scenario,
    table,
)


class Blind(Cleanest):
    """It is told no run times, so that they may be corrupted too."""

    name = "blind"
    knows = Knows.GROUP_MEAN


def built(jobs: list[TraceJob], tables: list[SignalTable]) -> Scenario:
    regions = [SimRegion(one.region, one, gpus=16.0) for one in tables]
    return scenario(jobs, *regions, foresight=YesterdayForesight(tables), plan_s=3600.0)


def corrupted(one: SignalTable, now: datetime) -> SignalTable:
    """Nothing of the slot under way or of any later one is as it was."""
    first = int((now - one.start).total_seconds() // one.slot_s)
    assert one.price is not None and one.carbon is not None
    price, carbon = one.price.copy(), one.carbon.copy()
    price[first:] = 1e6 * np.cos(np.arange(len(price) - first))
    carbon[first:] = np.where(np.arange(len(carbon) - first) % 7 == 0, np.nan, 1e6)
    return replace(one, price=price, carbon=carbon)


def until(picture: Scenario, policy: Policy, now: datetime) -> list[JobEvent]:
    """All that was decided and all that happened before ``now``, in order."""
    store = MemoryStore()
    run_in_full(picture, policy, store)
    events = sorted((e for job in picture.jobs for e in store.events(job.id)), key=lambda e: e.seq)
    return [event for event in events if event.at < now]


def ended_before(picture: Scenario, policy: Policy, now: datetime) -> set[str]:
    """Jobs that have ended by ``now``: of all others the run time is yet to show."""
    store = MemoryStore()
    run_in_full(picture, policy, store)
    jobs = (store.job(job.id) for job in picture.jobs)
    return {job.id for job in jobs if job is not None and job.finished_at is not None and job.finished_at < now}


NAMES = ("lowest-slot", "lowest-window", "carbon-time", "wait-awhile", "ecovisor", "cap-quota")
POLICIES: list[Callable[[], Policy]] = [
    Base,
    Blind,
    Replanning,
    *((lambda name=name: make(name)) for name in NAMES),  # type: ignore[misc]
]


@pytest.mark.parametrize("make_policy", POLICIES)
@pytest.mark.parametrize("hour", [7.5, 31.0, 60.25])
def test_what_is_yet_to_come_changes_nothing_of_what_was_decided(make_policy: Callable[[], Policy], hour: float) -> None:
    nothing_changes(make_policy, hour, 120)


def test_what_is_yet_to_come_changes_nothing_of_joint_plans() -> None:
    """One moment and few jobs: each of its runs makes many plans."""
    nothing_changes(lambda: make("gridshift"), 31.0, 40)


def nothing_changes(make_policy: Callable[[], Policy], hour: float, count: int) -> None:
    now = T0 + hour * H
    jobs = [replace(job, declared_s=job.length_s) for job in many_jobs(count)]
    tables = [table("a"), table("b", seed=2)]
    true = built(jobs, tables)
    over = ended_before(true, make_policy(), now)
    longer = [job if job.id in over else replace(job, length_s=job.length_s * 3 + 50000.0) for job in jobs]
    assert longer != jobs
    false = built(longer, [corrupted(one, now) for one in tables])
    before = until(true, make_policy(), now)
    assert len(before) >= 10
    assert until(false, make_policy(), now) == before


def test_the_corruption_would_be_seen_by_a_policy_that_looks_ahead() -> None:
    """The test itself is sharp: with perfect foresight it fails."""
    now = T0 + 31 * H
    tables = [table("a")]
    seen = scenario(many_jobs(120), SimRegion("a", tables[0], gpus=16.0))
    spoilt = scenario(many_jobs(120), SimRegion("a", corrupted(tables[0], now), gpus=16.0))
    assert until(seen, Cleanest(), now) != until(spoilt, Cleanest(), now)
