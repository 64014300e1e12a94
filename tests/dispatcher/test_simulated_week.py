"""Simulated days: limits kept, deadlines met, nothing lost or doubled, every ended job with its energy."""

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from dispatcher.clusters.simulated import Workload
from dispatcher.config import Config
from dispatcher.simulation import Arrival, Simulation
from dispatcher.store import GridEvent, Job, Request
from policies.flexibility import parse_flexibility
from policies.world import JobState

START = datetime(2026, 3, 28, tzinfo=UTC)  # the days on which Europe's clocks change
DAYS = 2.5


def config() -> Config:
    regions = [
        {
            "name": name,
            "address": f"http://{name}",
            "gpus": gpus,
            "pue": 1.2,
            "observe_s": 30,
            "price": [{"feed": "synthetic", "price_mean": price, "phase_h": phase}],
            "carbon": [{"feed": "synthetic", "phase_h": phase}],
        }
        for name, gpus, price, phase in (("a", 16, 80, 0), ("b", 12, 70, 9))
    ]
    return Config.model_validate(
        {"region": regions, "planning": {"carbon_price_per_tonne": 50.0, "slot_minutes": 30, "horizon_hours": 30}}
    )


def arrivals(count: int) -> list[Arrival]:
    chance = random.Random(5)
    made = []
    for n in range(count):
        at = START + timedelta(seconds=chance.uniform(0, (DAYS - 1.5) * 86400))
        run_s = chance.uniform(900, 4 * 3600)
        gpus = chance.choice([1, 1, 2, 4])
        metadata: dict[str, str] = {}
        if chance.random() < 0.9:
            metadata = {
                "gridshift.deadline": f"{chance.uniform(1.5, 6) * run_s + 7200:.0f}",
                "gridshift.runtime": f"{run_s * chance.uniform(1.0, 1.2):.0f}",
                "gridshift.pausable": chance.choice(["no", "checkpoint"]),
                "gridshift.checkpoint_s": "120",
                "gridshift.restart_s": "180",
                "gridshift.power_w": str(gpus * 600),
            }
        flex = parse_flexibility(metadata, now=at, gpus_requested=gpus, regions=["a", "b"])
        request = Request("train", metadata=metadata, entrypoint_num_gpus=gpus)
        job = Job(f"j{n:03d}", request, flex, JobState.QUEUED, at, at, reason="submitted")
        made.append(Arrival(job, Workload(run_s=run_s, checkpoint_s=60.0, restart_s=120.0)))
    return made


def days(jobs: list[Arrival]) -> Simulation:
    simulation = Simulation(config(), START, jobs, tick_s=120.0, plan_s=3600.0, ingest_s=3600.0)
    for day, hours, limit_w in ((0, 3, 4000.0), (1, 2, 0.0)):
        start = START + timedelta(days=day, hours=17)
        event = GridEvent("test", f"e{day}", 1, "a", start, start + timedelta(hours=hours), limit_w, START)
        simulation.store.save_grid_event(event, None).result()
    return simulation


def log_of(simulation: Simulation, jobs: list[Arrival]) -> list[tuple[object, ...]]:
    return [
        (e.job_id, e.at, e.kind, e.old_state, e.new_state, e.reason, e.attempt, e.region)
        for arrival in jobs
        for e in simulation.store.events(arrival.job.id)
    ]


def test_days_keep_their_promises_and_are_the_same_twice() -> None:
    jobs = arrivals(45)
    simulation = days([replace(a, work=replace(a.work)) for a in jobs])
    simulation.run(START + timedelta(days=DAYS))
    ended = [simulation.store.job(arrival.job.id) for arrival in jobs]
    assert {job.state for job in ended if job is not None} == {JobState.SUCCEEDED}, [
        (job.id, job.state, job.reason) for job in ended if job is not None and job.state is not JobState.SUCCEEDED
    ]
    missed = [
        job.id for job in ended if job and job.flex.deadline_at and job.finished_at and job.finished_at > job.flex.deadline_at
    ]
    assert not missed, [(job_id, [e.reason for e in simulation.store.events(job_id)]) for job_id in missed[:2]]
    for job in ended:
        assert job is not None and job.energy_kwh is not None and job.energy_kwh > 0 and job.cost is not None
        attempts = simulation.store.attempts(job.id)
        assert all(
            before.ended_at is not None and before.ended_at <= after.launched_at for before, after in pairwise(attempts)
        ), "two attempts at once"
    assert sum(job.pauses for job in ended if job) > 0

    # what may be paused was gone from the region while nothing was allowed there
    start = START + timedelta(days=1, hours=17, minutes=5)
    for arrival in jobs:
        for attempt in simulation.store.attempts(arrival.job.id):
            pausable = arrival.job.flex.pausable == "checkpoint"
            if attempt.region == "a" and pausable and attempt.started_at and attempt.ended_at:
                assert not (attempt.started_at < start + timedelta(hours=1) and attempt.ended_at > start), attempt

    # the first hours of it again, event by event
    until = START + timedelta(hours=18)
    again = days([replace(a, work=replace(a.work)) for a in jobs])
    again.run(until)
    first = [row for row in log_of(simulation, jobs) if isinstance(row[1], datetime) and row[1] <= until]
    assert len(first) > 80 and log_of(again, jobs) == first
