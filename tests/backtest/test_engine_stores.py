"""A backtest writes the same rows whatever store it runs on: the rules are the store's, and there is one set of them."""

from dataclasses import replace
from pathlib import Path

from dispatcher.backtest.engine import run_in_full
from dispatcher.backtest.scenario import Scenario, SimRegion
from dispatcher.store import Store
from dispatcher.store.memory import MemoryStore
from dispatcher.store.sql import SqlStore
from policies.world import Budget, JobState
from tests.backtest.engine_samples import SETTINGS, T0, Cleanest, H, many_jobs, scenario, table


def crowded() -> Scenario:
    """500 jobs that compete for room in two regions, with pauses and an event."""
    call = Budget("a", T0 + 41 * H, T0 + 44 * H, 1000.0, "e1", "grid call")
    return scenario(
        many_jobs(500),
        SimRegion("a", table("a"), gpus=24.0, power_limit_w=8000.0),
        SimRegion("b", table("b", seed=2), gpus=16.0, pue=1.3),
        settings=replace(SETTINGS, launch_s=20.0, runtime_slack=0.05, deadline_margin_s=60.0),
        events=(call,),
    )


def rows(store: Store, picture: Scenario) -> list[object]:
    return [(store.job(job.id), store.events(job.id), store.attempts(job.id)) for job in picture.jobs]


def test_every_row_is_the_same_in_memory_and_in_sqlite(sqlite_url: str, tmp_path: Path) -> None:
    picture, memory = crowded(), MemoryStore()
    first = run_in_full(picture, Cleanest(), memory)
    kept = SqlStore(sqlite_url)
    try:
        second = run_in_full(picture, Cleanest(), kept)
        assert rows(memory, picture) == rows(kept, picture)
        assert memory.counts() == kept.counts() == {JobState.SUCCEEDED: 500}
    finally:
        kept.close()
    assert first.run.pauses == second.run.pauses > 20
    assert (first.run.cost, first.run.carbon_kg) == (second.run.cost, second.run.carbon_kg)
    told = [event.reason for job in picture.jobs for event in memory.events(job.id)]
    assert any("GPUs free" in reason for reason in told), "room was short"
    assert any("grid call" in reason and "asked to pause" in reason for reason in told), "the event asked some to pause"


def test_the_totals_are_the_sums_of_the_rows() -> None:
    picture, memory = crowded(), MemoryStore()
    told = run_in_full(picture, Cleanest(), memory)
    jobs = [memory.job(job.id) for job in picture.jobs]
    assert abs(sum(job.energy_kwh or 0.0 for job in jobs if job) - told.run.energy_kwh) < 1e-6
    assert abs(sum(job.cost or 0.0 for job in jobs if job) - (told.run.cost or 0.0)) < 1e-6
    assert sum(job.pauses for job in jobs if job) == told.run.pauses
