"""What an observation of a cluster means for a job: pure, from (job, attempt, what was seen) to a change or nothing.

It knows nothing of clusters or stores. A status that could not be fetched never reaches it: unknown moves nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any

from dispatcher.clusters import AttemptStatus, RayStatus
from dispatcher.function_runner import FAILED
from dispatcher.power.accounts import MODELLED, together
from dispatcher.store import Attempt, Change, Job
from dispatcher.store.copying import maker
from policies.freezing import frozen_until, used_s
from policies.world import JobState, Pausable

_new_change = maker(Change)  # a backtest makes hundreds of thousands of them
#: Ray error types that mean the attempt was lost with its machine, not that the job's own code failed.
LOST_ERRORS = frozenset({"JOB_SUPERVISOR_ACTOR_DIED", "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE"})
#: What Ray says of an attempt whose node it holds for dead, be it that its head only does not hear it.
NODE_DIED = "node has died"
#: A cluster that was not restarted and yet denies an attempt is believed after this many wall seconds: a proxy that has lost
#: its way says the same, while the attempt goes on.
SAME_SESSION_S = 60.0
#: An attempt that was last known to run so long before its loss was noticed (s) says so.
UNSEEN_S = 30.0
#: The outcome of an attempt that its cluster still keeps and cannot begin, while its job counts as cancelled.
UNBEGUN = "unbegun"
_TRACEBACK = "Traceback (most recent call last)"
#: No more characters of an exception stand in a job's reason.
_MOST_RAISED = 300
#: Ray says this of a job whose supervisor cannot be made, from a broken cluster as well as from a runtime_env that cannot work.
START_FAILURE = "JOB_SUPERVISOR_ACTOR_START_FAILURE"
#: So it is tried again, and after this many times in a row the job is at fault.
MAX_START_FAILURES = 3
#: Ray error types that mean the job never began: its cluster found no room or no worker for it in time.
NEVER_BEGAN = frozenset({"JOB_SUPERVISOR_ACTOR_START_TIMEOUT", START_FAILURE, "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE"})


@dataclass(frozen=True, slots=True)
class Seen:
    """One attempt as its cluster told it: ``status`` None is the cluster's own "I know no such submission". ``asked_at`` is
    when the question was sent, ``session`` who answered (both by the control plane's clock and the cluster's word);
    ``started_at``/``ended_at`` are already translated to the control plane's clock."""

    status: AttemptStatus | None
    asked_at: datetime
    session: str
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Energy at the meter (PUE included) and money of one attempt over its run; ``cost`` (planning currency) and ``carbon_kg``
    are None when a signal was missing for a part of it. ``basis`` is what the energy rests on (see power.accounts)."""

    energy_kwh: float
    cost: float | None
    carbon_kg: float | None
    basis: str = MODELLED


@dataclass(frozen=True, slots=True)
class Books:
    """What to write into a job's totals when an attempt ends: its usage (None: it never ran) and the planning currency."""

    usage: Usage | None
    currency: str


def _headline(message: str) -> str:
    """What happened, with the exception that ended the log, and without the rest of that log's end, which Ray appends (the log
    itself is kept)."""
    lines = [line.strip() for line in message.strip().split("\n") if line.strip()]
    if not lines:
        return ""
    # A Python traceback says what happened in its last line.
    told = lines[-1] if lines[0].startswith(_TRACEBACK) else lines[0]
    told, logs, _ = told.partition(", last available logs")
    raised = _raised(message.partition("\n")[2]) if logs else ""
    return f"{told.strip()}: {raised}" if raised else told.strip()


def _raised(log: str) -> str:
    """The exception, in one line, by which the program ended that wrote this: as our runner of functions tells it, or as Python
    does where its traceback is the last that was written. Empty where there is none."""
    lines = [line.rstrip() for line in log.strip().split("\n")]
    ours = [line.strip() for line in lines if line.startswith(FAILED)]
    if ours:
        return ours[-1].removeprefix(FAILED)[:_MOST_RAISED]
    begins = [i for i, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    after = lines[begins[-1] + 1 :] if begins else []
    outside = [line for line in after if line and not line[0].isspace()]
    return outside[0][:_MOST_RAISED] if outside and outside[0] is after[-1] else ""


@dataclass(frozen=True, slots=True)
class Retry:
    """``after_s`` (clock seconds) is how long the next attempt waits after a loss, and ``orphan_s`` how long after the head or
    the node was last known to live: so long an attempt may outlive it. ``losses`` is how many came before.
    ``never_began`` is how many attempts in a row before this one never began, ``unstarted`` how many of those, in a row, their
    cluster could not start."""

    after_s: float
    losses: int
    never_began: int = 0
    unstarted: int = 0
    orphan_s: float = 0.0


def retry_after(attempts: Sequence[Attempt], after_s: float, orphan_s: float) -> Retry:
    """What a job's attempts so far mean for its next one."""
    ended = sorted((a for a in attempts if a.ended_at is not None), key=lambda a: a.attempt, reverse=True)
    idle = list(takewhile(lambda a: a.outcome in ("refused", "unstarted") and a.accepted_at is not None, ended))
    unstarted = len(list(takewhile(lambda a: a.outcome == "unstarted", idle)))
    return Retry(after_s, sum(a.outcome == "lost" for a in attempts), len(idle), unstarted, orphan_s)


def _usage_fields(job: Job, books: Books) -> dict[str, Any]:
    """Add an attempt's usage to the job's totals; once a part is unknown the total stays unknown."""
    usage, currency = books.usage, books.currency
    if usage is None:
        return (
            {} if job.energy_kwh is not None else {"energy_kwh": 0.0, "cost": 0.0, "cost_currency": currency, "carbon_kg": 0.0}
        )
    first = job.energy_kwh is None

    def total(before: float | None, now: float | None) -> float | None:
        if now is None or (before is None and not first):
            return None
        return (before or 0.0) + now

    return {
        "energy_kwh": (job.energy_kwh or 0.0) + usage.energy_kwh,
        "cost": total(job.cost, usage.cost),
        "cost_currency": currency,
        "carbon_kg": total(job.carbon_kg, usage.carbon_kg),
        "energy_basis": together(job.energy_basis, usage.basis),
    }


def settled(job: Job, usages: Sequence[Usage], now: datetime) -> Change | None:
    """The change that books what an ended job drew, cost and emitted, from the usage of all its attempts that ran, once that is
    known; None when it tells nothing new."""
    cost = sum(u.cost for u in usages if u.cost is not None) if usages and all(u.cost is not None for u in usages) else None
    known = [u.carbon_kg for u in usages if u.carbon_kg is not None]
    carbon_kg = sum(known) if usages and len(known) == len(usages) else None
    fields: dict[str, Any] = {
        name: value
        for name, value in (("cost", cost), ("carbon_kg", carbon_kg))
        if value is not None and getattr(job, name) is None
    }
    energy_kwh, basis = sum(usage.energy_kwh for usage in usages), together(*(usage.basis for usage in usages))
    if basis not in (None, MODELLED) and (basis != job.energy_basis or not _alike(energy_kwh, job.energy_kwh)):
        # More was measured than when it ended: what it cost is that of the energy that it drew, known or not.
        fields = {"energy_kwh": energy_kwh, "energy_basis": basis, "cost": cost, "carbon_kg": carbon_kg}
    if not fields:
        return None
    return Change(job_id=job.id, at=now, kind="settle", reason=job.reason, expect=job.state, fields=fields)


def _alike(one: float, other: float | None) -> bool:
    return other is not None and math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)


def finish(
    job: Job,
    to: JobState,
    reason: str,
    at: datetime,
    *,
    books: Books,
    attempt: Attempt | None,
    outcome: str,
    seen: AttemptStatus | None = None,
) -> Change:
    """The change that ends a job in ``to``."""
    message = seen.message if seen is not None and seen.message else reason
    fields: dict[str, Any] = {"finished_at": at, "run_started_at": None, **_usage_fields(job, books)}
    if job.frozen_at is not None:
        fields["frozen_at"] = None
    if seen is not None:
        fields |= {"error_type": seen.error_type if to is JobState.FAILED else None, "exit_code": seen.exit_code}
    return _new_change(
        job_id=job.id,
        at=at,
        kind="state",
        reason=reason,
        expect=job.state,
        expect_attempt=job.attempt,
        to=to,
        fields=fields,
        attempt_fields={"ended_at": at, "outcome": outcome, "message": message, **stood(job, attempt, at)} if attempt else {},
    )


def stood(job: Job, attempt: Attempt, until: datetime) -> dict[str, Any]:
    """What an attempt remembers of a freeze that is over at ``until``; nothing where its job stood not frozen."""
    return {"frozen_s": attempt.frozen_s + _stood_s(job, until)} if job.frozen_at is not None else {}


def _stood_s(job: Job, until: datetime) -> float:
    """For how long a frozen job has stood, s. No longer than it stands: its agents wake it then, whoever else is away."""
    if job.frozen_at is None:
        return 0.0
    end = min(until, frozen_until(job.flex, job.frozen_at, job.rested_at))
    return max(0.0, (end - job.frozen_at).total_seconds())


def freeze(job: Job, reason: str, now: datetime) -> Change:
    """The change that has a running job stand frozen from now on. Its attempt lives on, in the same state."""
    return _new_change(
        job_id=job.id,
        at=now,
        kind="freeze",
        reason=reason,
        expect=JobState.RUNNING,
        expect_attempt=job.attempt,
        expect_seq=job.seq,  # a cancel or a resume that came meanwhile wins
        fields={"frozen_at": now},
    )


def thaw(
    job: Job, attempt: Attempt, reason: str, now: datetime, *, used_up: bool = False, at_most_s: float | None = None
) -> Change:
    """The change that has a frozen job run on. What it stood comes back as it runs.

    With ``used_up`` it has stood all that it stands, and an owner's pause ends with that. ``at_most_s`` bounds for how long it
    can have been frozen, where it was not watched.
    """
    assert job.frozen_at is not None
    lasted_s = _stood_s(job, now)
    if at_most_s is not None:
        lasted_s = min(lasted_s, at_most_s)
    left = used_s(job.rested_at, job.frozen_at)
    fields: dict[str, Any] = {"frozen_at": None, "rested_at": now + timedelta(seconds=left + lasted_s)}
    if used_up and job.held:
        fields["held"] = False
    return _new_change(
        job_id=job.id,
        at=now,
        kind="thaw",
        reason=reason,
        expect=JobState.RUNNING,
        expect_attempt=job.attempt,
        fields=fields,
        attempt_fields={"frozen_s": attempt.frozen_s + lasted_s},
    )


def lost(
    job: Job,
    attempt: Attempt,
    why: str,
    now: datetime,
    *,
    books: Books,
    retry: Retry,
    known_until: datetime | None = None,
    lived_until: datetime | None = None,
) -> Change:
    """The change for an attempt that is gone without an end: checkpoint jobs are queued again, others while attempts last.

    It counts up to ``known_until``, when it was last known to run (None: until now): nobody knows what it used after that.

    The next attempt waits ``retry.after_s``, and where its head or node was lost (it lived until ``lived_until`` at least) for
    ``retry.orphan_s`` from then on: so long the attempt may run on, unheard.
    """
    next_at = now + timedelta(seconds=retry.after_s)
    if lived_until is not None:
        next_at = max(next_at, lived_until + timedelta(seconds=retry.orphan_s))
    ended_at = now if known_until is None else known_until
    if (now - ended_at).total_seconds() >= UNSEEN_S and attempt.started_at is not None:
        why += f"; it is known to have run until {ended_at:%Y-%m-%d %H:%M:%S}Z, and used at least what it had by then"
    left = {"ended_at": ended_at, "outcome": "lost", "message": why, **stood(job, attempt, ended_at)}
    again = job.flex.pausable is Pausable.CHECKPOINT or retry.losses + 1 < job.flex.max_attempts
    if job.cancel_requested_at is not None:
        made = finish(job, JobState.CANCELLED, f"cancelled; {why}", now, books=books, attempt=attempt, outcome="lost")
        return replace(made, attempt_fields={**left, "message": f"cancelled; {why}"})
    if not again:
        limit = job.flex.max_attempts
        reason = f"attempt {job.attempt} was lost: {why}; it is not restarted because gridshift.max_attempts is {limit}"
        made = finish(job, JobState.FAILED, reason, now, books=books, attempt=attempt, outcome="lost")
        return replace(made, attempt_fields={**left, "message": reason})
    to = JobState.QUEUED
    if job.state is JobState.LAUNCHING and job.pauses > 0:
        to = JobState.PAUSED
    return _new_change(
        job_id=job.id,
        at=now,
        kind="state",
        reason=f"attempt {job.attempt} was lost: {why}; it will be started again",
        expect=job.state,
        expect_attempt=job.attempt,
        to=to,
        fields={
            "run_started_at": None,
            "pause_requested_at": None,
            "checkpoint_saved_at": None,
            "not_before_at": next_at,
            **({"frozen_at": None, "rested_at": None} if job.frozen_at is not None or job.rested_at is not None else {}),
            **_usage_fields(job, books),
        },
        attempt_fields=left,
    )


def launch_failed(job: Job, why: str, now: datetime, retry: Retry, outcome: str = "refused") -> Change:
    """The change for an attempt that never began: the job waits for its turn again, and no attempt counts as lost."""
    return _new_change(
        job_id=job.id,
        at=now,
        kind="state",
        reason=f"could not be started: {why}; it waits for its turn again",
        expect=JobState.LAUNCHING,
        expect_attempt=job.attempt,
        to=JobState.PAUSED if job.pauses else JobState.QUEUED,
        # Each time it waits twice as long: what did not start five times is not waited for by others.
        fields={"not_before_at": now + timedelta(seconds=retry.after_s * 2 ** min(retry.never_began, 6))},
        attempt_fields={"ended_at": now, "outcome": outcome, "message": why},
    )


def paused(job: Job, now: datetime, ended_at: datetime, *, books: Books) -> Change:
    """The change from pausing to paused: the checkpoint is saved and the attempt has ended.

    The run up to the acknowledgement becomes durable progress, less what a resumed attempt first lost on restarting.
    """
    saved_at = job.checkpoint_saved_at or ended_at
    ran_s = (saved_at - job.run_started_at).total_seconds() if job.run_started_at else 0.0
    if job.pauses:
        ran_s -= job.flex.restart_s
    return _new_change(
        job_id=job.id,
        at=now,
        kind="state",
        reason=f"paused: checkpoint saved, attempt {job.attempt} stopped"
        + ("; its owner paused it, and it waits until it is resumed" if job.held else ""),
        expect=JobState.PAUSING,
        expect_attempt=job.attempt,
        to=JobState.PAUSED,
        fields={
            "run_started_at": None,
            "pause_requested_at": None,
            "checkpoint_saved_at": None,
            "checkpoint_misses": 0,
            "pauses": job.pauses + 1,
            "progress_s": job.progress_s + max(0.0, ran_s),
            **_usage_fields(job, books),
        },
        attempt_fields={"ended_at": ended_at, "outcome": "stopped", "message": "stopped after its checkpoint"},
    )


def checkpoint_timeout(job: Job, now: datetime, grace_s: float) -> Change | None:
    """Back to running when the job left the request for a checkpoint unanswered for ``checkpoint_s`` + ``grace_s``: stopping
    it would lose its work."""
    if job.state is not JobState.PAUSING or job.checkpoint_saved_at or not job.pause_requested_at or job.cancel_requested_at:
        return None
    if now < job.pause_requested_at + timedelta(seconds=job.flex.checkpoint_s + grace_s):
        return None
    return _new_change(
        job_id=job.id,
        at=now,
        kind="state",
        reason=f"still running: no checkpoint within {job.flex.checkpoint_s:g} s of asking, and a stop would lose its work",
        expect=JobState.PAUSING,
        expect_attempt=job.attempt,
        expect_seq=job.seq,  # an acknowledgement that came meanwhile wins
        to=JobState.RUNNING,
        fields={"checkpoint_misses": job.checkpoint_misses + 1},
    )


def reconcile(
    job: Job,
    attempt: Attempt,
    seen: Seen,
    now: datetime,
    *,
    books: Books,
    retry: Retry,
    times_missing: int,
    missing_s: float = 0.0,
    known_until: datetime | None = None,
    too_large: str = "",
) -> Change | None:
    """What ``seen`` means for ``job``, or None when it says nothing new. ``too_large`` is why its cluster cannot start it.

    ``books`` hold what the attempt has used up to its end, should it turn out to have ended; one that its cluster knows no more
    ended at ``known_until`` (None: now), as far as is known. ``times_missing`` counts the
    observations in a row (this one included) in which the cluster did not know the attempt, over ``missing_s`` wall seconds.
    """
    status = seen.status
    if status is None:
        # An answer to a question older than the acceptance says nothing; one never accepted is simply sent again.
        if attempt.accepted_at is None or seen.asked_at < attempt.accepted_at or times_missing < 2:
            return None
        restarted = attempt.ray_session is not None and seen.session != attempt.ray_session
        if not restarted and missing_s < SAME_SESSION_S:
            return None
        if job.state is JobState.PAUSING and job.checkpoint_saved_at is not None and job.cancel_requested_at is None:
            return paused(job, now, now, books=books)  # what it was to keep is kept
        why = (
            f"{attempt.region} was restarted and knows it no more"
            if restarted
            else f"{attempt.region} knows it no more (deleted there?)"
        )
        return lost(job, attempt, why, now, books=books, retry=retry, known_until=known_until, lived_until=known_until or now)

    if status.status is RayStatus.PENDING:
        sentence = f"starting in {attempt.region}" + (too_large or (f": {status.message}" if status.message else ""))
        waits = job.state is JobState.LAUNCHING and attempt.accepted_at is not None and job.cancel_requested_at is None
        if waits and sentence != job.reason:
            return _new_change(
                job_id=job.id, at=now, kind="note", reason=sentence, expect=JobState.LAUNCHING, expect_attempt=job.attempt
            )
        return None

    if status.status is RayStatus.RUNNING:
        if job.state is not JobState.LAUNCHING:
            return None
        return _new_change(
            job_id=job.id,
            at=now,
            kind="state",
            reason=f"running in {attempt.region}",
            expect=JobState.LAUNCHING,
            expect_attempt=job.attempt,
            to=JobState.RUNNING,
            fields={
                "run_started_at": now,
                "started_at": job.started_at or now,
                "planned_region": None,
                "planned_start_at": None,
            },
            attempt_fields={
                "started_at": now,
                "accepted_at": attempt.accepted_at or now,
                "ray_session": attempt.ray_session or seen.session,
            },
        )

    ended_at = min(max(seen.ended_at or now, attempt.started_at or attempt.launched_at), now)
    saved = job.state is JobState.PAUSING and job.checkpoint_saved_at is not None
    if saved and job.cancel_requested_at is None:
        return paused(job, now, ended_at, books=books)
    if status.status is RayStatus.SUCCEEDED and not saved:
        return finish(
            job,
            JobState.SUCCEEDED,
            f"finished in {attempt.region}",
            ended_at,
            outcome="succeeded",
            books=books,
            attempt=attempt,
            seen=status,
        )
    if job.cancel_requested_at is not None:
        return finish(
            job,
            JobState.CANCELLED,
            f"cancelled; it was stopped in {attempt.region}",
            ended_at,
            outcome="stopped",
            books=books,
            attempt=attempt,
            seen=status,
        )
    if status.status is RayStatus.STOPPED:
        if job.state is JobState.PAUSING:
            return lost(job, attempt, "it was stopped before its checkpoint was saved", now, retry=retry, books=books)
        reason = f"stopped in {attempt.region} by someone other than gridshift"
        return finish(job, JobState.CANCELLED, reason, ended_at, outcome="stopped", books=books, attempt=attempt, seen=status)
    if status.error_type in NEVER_BEGAN and job.state is JobState.LAUNCHING:
        why = _headline(status.message) or str(status.error_type)
        broken = status.error_type == START_FAILURE
        if broken and retry.unstarted + 1 >= MAX_START_FAILURES:
            reason = f"{attempt.region} could not start it {MAX_START_FAILURES} times: {why}"
            return finish(
                job, JobState.FAILED, reason, ended_at, outcome="unstarted", books=books, attempt=attempt, seen=status
            )
        return launch_failed(job, why, now, retry, "unstarted" if broken else "refused")
    if status.error_type in LOST_ERRORS:
        silent = NODE_DIED in status.message
        why = status.message or str(status.error_type)
        return lost(job, attempt, why, now, retry=retry, books=books, lived_until=now if silent else None)
    reason = _headline(status.message) or f"failed in {attempt.region}"
    return finish(job, JobState.FAILED, reason, ended_at, outcome="failed", books=books, attempt=attempt, seen=status)
