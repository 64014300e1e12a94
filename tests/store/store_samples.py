"""Values that the store's tests share."""

from datetime import UTC, datetime, timedelta
from typing import Any

from dispatcher.store import Attempt, BeforeEvent, Change, Job, Judged, ObjectiveCounts, Request, ServingQuarter
from policies.world import ENDED, Flexibility, JobState, Pausable

T0 = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def flex(**more: Any) -> Flexibility:
    given: dict[str, Any] = {
        "flexible": True,
        "deadline_at": at(3600),
        "earliest_at": None,
        "runtime_s": 600.0,
        "runtime_given": True,
        "gpus": 1.0,
        "power_w": 400.0,
        "pausable": Pausable.CHECKPOINT,
        "regions": ("north", "south"),
        "gpu_types": {"H100": 1.0},
    }
    return Flexibility(**(given | more))


def job(job_id: str = "a", submitted_s: float = 0.0, **more: Any) -> Job:
    request = Request(
        "python run.py",
        runtime_env={"env_vars": {"A": "ü"}, "pip": ["x"]},
        metadata={"k": "v"},
        entrypoint_num_gpus=0.5,
        entrypoint_resources={"r": 1.0},
    )
    given: dict[str, Any] = {"request": request, "flex": flex(), "state": JobState.QUEUED, "reason": "waits"}
    return Job(id=job_id, submitted_at=at(submitted_s), state_since=at(submitted_s), **(given | more))


def attempt(job_id: str = "a", number: int = 1, launched_s: float = 1.0, **more: Any) -> Attempt:
    given: dict[str, Any] = {"region": "north", "submission_id": f"{job_id}-{number}", "gpu_type": "H100"}
    return Attempt(job_id, number, launched_at=at(launched_s), **(given | more))


def change(to: JobState | None = None, job_id: str = "a", seconds: float = 2.0, **more: Any) -> Change:
    given: dict[str, Any] = {"kind": "state" if to else "note", "reason": f"to {to}"}
    return Change(job_id, at(seconds), to=to, **(given | more))


def moves(job_id: str, *states: JobState, seconds: float = 1.0) -> list[Change]:
    """Changes that bring a queued job through ``states``, starting and ending attempts on the way."""
    changes, number = [], 0
    for index, to in enumerate(states):
        when = seconds + index
        more: dict[str, Any] = {}
        if to is JobState.LAUNCHING:
            number += 1
            more["new_attempt"] = attempt(job_id, number, when)
        elif number and (to in ENDED or to in (JobState.PAUSED, JobState.QUEUED)):
            more["attempt_fields"] = {"ended_at": at(when), "outcome": "stopped"}
        changes.append(change(to, job_id, when, **more))
    return changes


def before_event(**more: Any) -> BeforeEvent:
    given: dict[str, Any] = {
        "source": "utility",
        "event_id": "e",
        "notice_at": at(-5),
        "looked_at": at(-6),
        "plan_made_at": at(-30),
        "start": at(-600),
        "slot_s": 900,
        "plan_w": (1000.0, 1500.25, 0.0),
        "plan_why": "",
        "unshifted_w": None,
        "unshifted_why": "9 GPUs at once",
        "jobs": 3,
        "measured_w": 1200.5,
        "other_w": 0.0,
        "job_share": 0.875,
        "notes": ("so", "and so"),
    }
    return BeforeEvent(**(given | more))


def serving_quarter(**more: Any) -> ServingQuarter:
    counts = ObjectiveCounts("e2e p99 <= 0.5 s", 0.99, Judged(100.0, 1.0, 300.0, 5.0), Judged(50.0, 2.5, 60.0, 0.0))
    gauge = ObjectiveCounts("queue <= 4", None, Judged(300.0, 0.0, 300.0), Judged())
    given: dict[str, Any] = {
        "region": "north",
        "name": "chat",
        "start": at(0),
        "part": "a",
        "objectives": (counts, gauge),
        "level_s": (300.0, 20.0, 10.0, 5.5, 0.0),
        "beside_s": 60.0,
        "beside_gpu_s": 240.0,
        "region_gpu_s": 480.0,
        "rises": 2,
        "rises_beside": 1,
        "frozen": 3,
        "capped": 1,
        "asked": 0,
        "yield_s": (1.25,),
    }
    return ServingQuarter(**(given | more))
