"""What owners ask of their jobs: cancel, pause, resume, run now, delete. Each is written down durably and nothing more; the
control loop acts on it. It knows the store, no clusters.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from dispatcher.api.services import Services
from dispatcher.errors import IllegalMove, NotFound, StaleState
from dispatcher.store import Change, Job
from policies.turns import HELD, WAITING
from policies.world import ENDED, JobState, Pausable

#: How often an intent is decided anew when the job changed between reading and writing.
_TRIES = 8

#: From a job as it is: the fields to change and the sentence, or None when nothing needs to change.
Decision = Callable[[Job, datetime], tuple[dict[str, Any], str] | None]


def visible_job(services: Services, job_id: str) -> Job:
    """The job. Raises NotFound, with Ray's own words, for an unknown or deleted one. Blocks."""
    job = services.store.job(job_id) if job_id.isprintable() and len(job_id) <= 128 else None
    if job is None or job.deleted_at is not None:
        raise NotFound(f"Job {job_id[:200]} does not exist")
    return job


def whole_log(services: Services, job_id: str) -> str:
    """The logs of all attempts as one text. Raises NotFound. Blocks."""
    return services.logs.read_all(visible_job(services, job_id).id)


def _intend(services: Services, job_id: str, decide: Decision) -> Job:
    """Write down what ``decide`` says of the job as it is. Raises NotFound, IllegalMove or StoreUnavailable. Blocks."""
    for _ in range(_TRIES):
        job = visible_job(services, job_id)
        now = services.clock.now()
        decision = decide(job, now)
        if decision is None:
            return job
        fields, sentence = decision
        change = Change(job_id, now, "intent", sentence, expect=job.state, expect_attempt=job.attempt, fields=fields)
        outcome = services.store.apply([change]).result()[0]
        if isinstance(outcome, Job):
            services.nudge()
            return outcome
        if not isinstance(outcome, StaleState):
            raise outcome
    raise StaleState(f"job {job_id} keeps changing; try again")


def cancel(services: Services, job_id: str) -> Job:
    """Ask for the end of a job; one that is being cancelled already, or is cancelled, stays as it is."""

    def decide(job: Job, now: datetime) -> tuple[dict[str, Any], str] | None:
        if job.state is JobState.CANCELLED or (job.cancel_requested_at is not None and job.state not in ENDED):
            return None
        _refuse_ended(job, "cancelled")
        return {"cancel_requested_at": now}, "its owner asked for it to be cancelled"

    return _intend(services, job_id, decide)


def pause(services: Services, job_id: str) -> Job:
    """Ask that a job waits until it is resumed: one that has not begun is held, a running one is asked for a checkpoint,
    or frozen where it runs."""

    def decide(job: Job, now: datetime) -> tuple[dict[str, Any], str] | None:
        _refuse_ended(job, "paused")
        if job.cancel_requested_at is not None:
            raise IllegalMove(f"job {job.id} is being cancelled and cannot be paused")
        if job.held:
            return None
        if job.state not in WAITING and job.flex.pausable is Pausable.NO:
            raise IllegalMove(
                f"job {job.id} is {job.state} and cannot be paused: it was submitted without gridshift.pausable=checkpoint or "
                "freeze"
            )
        # When and where it was planned is not so any more, and nobody should read it until the control loop has looked.
        fields = {"held": True, "run_now_at": None, "planned_region": None, "planned_start_at": None}
        return fields, HELD if job.state in WAITING else "its owner paused it; it will wait until it is resumed"

    return _intend(services, job_id, decide)


def resume(services: Services, job_id: str) -> Job:
    """Withdraw a pause; a job that is not held stays as it is."""

    def decide(job: Job, now: datetime) -> tuple[dict[str, Any], str] | None:
        _refuse_ended(job, "resumed")
        return ({"held": False}, "its owner resumed it") if job.held else None

    return _intend(services, job_id, decide)


def run_now(services: Services, job_id: str) -> Job:
    """Ask that a job runs from now on whatever power costs, as soon as there is room: a pause of its owner's is over, and so is
    any wait for its earliest start, for a price or for the plan. Limits and events hold all the same."""

    def decide(job: Job, now: datetime) -> tuple[dict[str, Any], str] | None:
        _refuse_ended(job, "run now")
        if job.cancel_requested_at is not None:
            raise IllegalMove(f"job {job.id} is being cancelled and cannot be run now")
        if job.run_now_at is not None and not job.held:
            return None
        return {"held": False, "run_now_at": now}, "its owner asked for it to run now, whatever power costs"

    return _intend(services, job_id, decide)


def delete(services: Services, job_id: str) -> Job:
    """Hide an ended job; its id stays used. Raises IllegalMove for one that has not ended, with Ray's own words."""

    def decide(job: Job, now: datetime) -> tuple[dict[str, Any], str] | None:
        if job.state not in ENDED:
            raise IllegalMove(
                f"Attempted to delete job '{job.id}', but it is in a non-terminal state ({job.state}); stop it first"
            )
        return {"deleted_at": now}, f"deleted by its owner; before: {job.reason}"

    return _intend(services, job_id, decide)


def _refuse_ended(job: Job, what: str) -> None:
    if job.state in ENDED:
        raise IllegalMove(f"job {job.id} has ended ({job.state}) and cannot be {what}")
