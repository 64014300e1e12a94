"""What a policy may know of a job's length before it ran, and a job of a trace as the store and the policies see it."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from dispatcher.backtest.scenario import TraceJob
from dispatcher.store import Job, Request
from dispatcher.store.copying import copier, maker
from policies.policy import Knows
from policies.world import Flexibility, JobState

#: The run time that stands for a kind of jobs of which none has ended and nothing else is known, s.
UNKNOWN_S = 3600.0
#: A mean that was given beforehand counts as much as so many ended jobs.
PRIOR_JOBS = 10

_flexibility, _job_with = maker(Flexibility), copier(Job)
_ALL_ALIKE: dict[str, float] = {}
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_BLANK = Job(
    "",
    Request("simulated"),
    Flexibility(True, None, None, 0.0, False, 0.0, 0.0),
    JobState.QUEUED,
    _LONG_AGO,
    _LONG_AGO,
    reason="submitted",
)


class Lengths:
    """The run time that a policy is told of a job. Who is not entitled to a job's own gets the mean of its queue: given once
    and for all when ``fixed``, else learned from jobs that have ended, from the given mean on."""

    def __init__(self, knows: Knows, means_s: Mapping[str, float], *, fixed: bool) -> None:
        self._own = knows is Knows.RUNTIME
        self._fixed = fixed
        self._means_s = means_s
        self._seen: dict[str, tuple[int, float]] = {}

    def told_s(self, job: TraceJob) -> float:
        """What the policy is told at this moment."""
        if self._own:
            return job.length_s if job.declared_s is None else job.declared_s
        given = self._means_s.get(job.queue)
        count, total_s = self._seen.get(job.queue, (0, 0.0))
        if given is None:
            return total_s / count if count else UNKNOWN_S
        return (total_s + PRIOR_JOBS * given) / (count + PRIOR_JOBS) if count else given

    def learn(self, job: TraceJob) -> None:
        """A job has ended, and its length is known from now on."""
        if self._own or self._fixed:
            return
        count, total_s = self._seen.get(job.queue, (0, 0.0))
        self._seen[job.queue] = (count + 1, total_s + job.length_s)


def submission(job: TraceJob, told_s: float, *, given: bool) -> Job:
    """The job as it is submitted, when its run time is told as ``told_s`` (``given``: as its owner's own word). Where a trace
    has no deadline, what it may wait bounds its end by that run time."""
    deadline = job.deadline_at
    if deadline is None and job.max_wait_s is not None:
        deadline = job.submitted_at + timedelta(seconds=job.max_wait_s + told_s)
    flex = _flexibility(
        True,  # flexible
        deadline,
        job.earliest_at,
        told_s,
        given,
        job.gpus,
        job.power_w,
        job.pausable,
        job.checkpoint_s,
        job.restart_s,
        job.regions,
        job.data_gb,
        job.data_region,
        job.tier,
        job.priority,
        job.group,
        job.team,
        None,  # max_price
        None,  # max_carbon
        job.min_cap,
        _ALL_ALIKE,
        None,  # freeze_max_s
        1,  # max_attempts
    )
    return _job_with(_BLANK, {"id": job.id, "flex": flex, "submitted_at": job.submitted_at, "state_since": job.submitted_at})
