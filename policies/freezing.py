"""How long a running job may stand frozen, what it draws meanwhile, and when it may be frozen again. Pure.

A frozen job is a running job that stands still: its processes are stopped, its GPUs and its memory stay its own, and its
deadline counts on. Who stops and wakes the processes is not known here. What a job stands is used up second by second while it
is frozen, and comes back second by second while it runs.
"""

from datetime import datetime, timedelta

from policies.sentences import hhmm, span
from policies.world import Flexibility, JobState, JobView, Pausable

#: What a job stands that does not say ``gridshift.freeze_max_s``, s: half of the ten minutes after which PyTorch's NCCL process
#: groups give up on a peer.
DEFAULT_FREEZE_MAX_S = 300.0
#: What a GPU job goes on drawing while it is frozen, as a share of what it states, where that is not measured: a resident
#: program keeps a GPU's clocks up (an L40S draws about 110 of its 350 W so). Stopped processes draw nothing on a CPU.
EXECUTION_IDLE_SHARE = 0.3
#: A job is woken this long before what it stands is used up, s: a tick, and the order's way to its nodes.
WAKE_EARLIER_S = 3.0
#: A job is frozen this long before a limit begins, s: likewise.
FREEZE_EARLIER_S = 5.0
#: A job is not woken so shortly before it would be frozen again, s.
NOT_WORTH_WAKING_S = 15.0
#: A gap in a plan shorter than this is not worth freezing for, s.
WORTH_FREEZING_S = 60.0


def freeze_max_s(flex: Flexibility) -> float:
    """The longest that a job stands to be frozen, s."""
    return DEFAULT_FREEZE_MAX_S if flex.freeze_max_s is None else flex.freeze_max_s


def idle_w(flex: Flexibility) -> float:
    """What a job is expected to draw while it is frozen, W at the GPU, where it is not measured."""
    return flex.power_w * EXECUTION_IDLE_SHARE if flex.gpus > 0 else 0.0


def used_s(rested_at: datetime | None, at: datetime) -> float:
    """How much of what a job stands is used up at ``at`` while it runs, s; ``rested_at`` is when it will be whole again."""
    return 0.0 if rested_at is None else max(0.0, (rested_at - at).total_seconds())


def frozen_until(flex: Flexibility, frozen_at: datetime, rested_at: datetime | None) -> datetime:
    """When a job that was frozen at ``frozen_at`` has stood all that it stands."""
    return frozen_at + timedelta(seconds=max(0.0, freeze_max_s(flex) - used_s(rested_at, frozen_at)))


def left_s(job: JobView, now: datetime) -> float:
    """For how long a job may be frozen from now on, s."""
    if job.frozen_at is not None:
        return (frozen_until(job.flex, job.frozen_at, job.rested_at) - now).total_seconds()
    return freeze_max_s(job.flex) - used_s(job.rested_at, now)


def wake_margin_s(job: JobView) -> float:
    """How long before the end of what it stands a job is woken, s; a short time is not used up by the margin."""
    return min(WAKE_EARLIER_S, 0.2 * freeze_max_s(job.flex))


def is_used_up(job: JobView, now: datetime) -> bool:
    """Whether a frozen job must be woken now."""
    return job.frozen_at is not None and left_s(job, now) <= wake_margin_s(job)


def why_not(job: JobView, now: datetime) -> str | None:
    """Why a job that runs cannot be frozen now; None when it can. A job that stood long runs on until it stands half of its
    time again: it would stop and go all the time otherwise."""
    if job.cannot_freeze:
        return job.cannot_freeze
    if left_s(job, now) < 0.5 * freeze_max_s(job.flex):
        most = span(freeze_max_s(job.flex))
        again = hhmm((job.rested_at or now) - timedelta(seconds=0.5 * freeze_max_s(job.flex)))
        return f"it stood frozen before, which used up more than half of the {most} that it stands, and can be again at {again}"
    return None


def freezes(job: JobView) -> bool:
    """Whether a job runs, and would be frozen rather than asked for a checkpoint if it had to give way."""
    return job.state is JobState.RUNNING and job.flex.flexible and job.flex.pausable is Pausable.FREEZE


def may_freeze(job: JobView, now: datetime) -> bool:
    """Whether a job runs and can be frozen now."""
    return freezes(job) and job.frozen_at is None and not job.cancel_requested and why_not(job, now) is None


def frozen_w(job: JobView) -> float:
    """What a job draws while it is frozen, W at the GPU: as measured, else as expected."""
    return job.frozen_w if job.frozen_w is not None else idle_w(job.flex)


def mean_power_w(flex: Flexibility, frozen_s: float, run_s: float) -> float:
    """The mean draw expected of a run of ``run_s``, W, of which the job stood frozen for ``frozen_s``."""
    share = min(1.0, frozen_s / run_s) if run_s > 0 else 0.0
    return flex.power_w + share * (idle_w(flex) - flex.power_w)
