"""What a submission or a change does to a job, its attempts and its events: the rules that every store keeps.

Pure: it is given what is stored and the next sequence number, and returns what to write. It knows no database.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, TypeVar, get_args

from dispatcher.errors import AlreadyExists, BadInput, IllegalMove, StaleState
from dispatcher.states import EDGES, check_move
from dispatcher.store import Attempt, BeforeEvent, Change, GridEvent, GridEventChange, Job, JobEvent, ServingQuarter, Token
from dispatcher.store.copying import copier, maker
from policies.world import ENDED, JobState

_JOB_FIELDS = frozenset(f.name for f in fields(Job)) - {"id", "seq", "state"}
_ATTEMPT_FIELDS = frozenset(f.name for f in fields(Attempt)) - {"job_id", "attempt", "submission_id"}
T = TypeVar("T", Job, Attempt, GridEvent, GridEventChange, BeforeEvent, ServingQuarter, Token)
_job_with, _attempt_with, _event = copier(Job), copier(Attempt), maker(JobEvent)


def _times_and_texts(kind: type[Any]) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    names = tuple(f.name for f in fields(kind) if {str, datetime} & {f.type, *get_args(f.type)})
    return names, attrgetter(*names)


#: The fields that hold a time or a text, by class, and their values: all others are stored as they are.
_TO_CLEAN = {
    kind: _times_and_texts(kind) for kind in (Job, Attempt, GridEvent, GridEventChange, BeforeEvent, ServingQuarter, Token)
}
#: How many of its last events an IllegalMove tells.
STORY_EVENTS = 5


@dataclass(frozen=True, slots=True)
class Written:
    """What to store: the job as it is now, its new events in order, and its attempts that are new or changed."""

    job: Job
    events: tuple[JobEvent, ...]
    new_attempt: Attempt | None = None
    changed_attempt: Attempt | None = None


_written = maker(Written)


def clean(text: str) -> str:
    """Text that every database can hold: NUL and lone surrogates (a log line may carry both) become U+FFFD or '?'."""
    if text.isascii():
        return text.replace("\x00", "\ufffd") if "\x00" in text else text
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def utc(name: str, value: datetime) -> datetime:
    """``value`` in UTC; raises BadInput when it has no offset."""
    if value.tzinfo is UTC:
        return value
    if value.tzinfo is None:
        raise BadInput([(name, value.isoformat(), "give a time with an offset, such as 2026-01-01T00:00:00Z")])
    return value.astimezone(UTC)


def storable(value: T) -> T:
    """The same value with UTC times and clean text. Raises BadInput for a naive time."""
    changed: dict[str, Any] = {}
    names, values_of = _TO_CLEAN[type(value)]
    for name, old in zip(names, values_of(value), strict=True):
        if old is None:
            continue
        if type(old) is str:
            if not old.isascii() or "\x00" in old:
                changed[name] = clean(old)
        elif isinstance(old, datetime) and old.tzinfo is not UTC:
            changed[name] = utc(name, old)
    return replace(value, **changed) if changed else value


def _checked(values: Mapping[str, Any], allowed: frozenset[str], what: str) -> dict[str, Any]:
    checked = dict(values)
    for name, value in values.items():
        if name not in allowed:
            wrong = [name for name in values if name not in allowed]
            raise BadInput([(f"{what}.{one}", values[one], "no field that a change may set") for one in wrong])
        if type(value) is str:
            if not value.isascii() or "\x00" in value:
                checked[name] = clean(value)
        elif isinstance(value, datetime) and value.tzinfo is not UTC:
            checked[name] = utc(name, value)
    return checked


def checked_submission(job: Job, reason: str, attempt: Attempt | None) -> tuple[Job, Attempt | None]:
    """A new job as it will be stored (all but ``seq``), and its first attempt. Raises BadInput.

    With an attempt the job is stored ``launching``. A job has an end time if and only if it has ended.
    """
    if clean(job.id) != job.id or not job.id:
        raise BadInput([("id", job.id, "must be printable text")])
    job = storable(job)
    for name in ("deadline_at", "earliest_at"):
        at = getattr(job.flex, name)
        if at is not None:
            utc(f"flex.{name}", at)
    given: dict[str, Any] = {}
    if attempt is not None:
        attempt = storable(attempt)
        if attempt.job_id != job.id or attempt.attempt < 1 or attempt.ended_at is not None:
            raise BadInput([("attempt", f"{attempt.job_id} {attempt.attempt}", f"must be a live attempt of job {job.id}")])
        if job.state not in (JobState.QUEUED, JobState.LAUNCHING):
            raise BadInput([("state", str(job.state), "a job submitted with an attempt starts as launching")])
        given = {"state": JobState.LAUNCHING, "attempt": attempt.attempt, "region": attempt.region}
        if job.state is not JobState.LAUNCHING:
            given["state_since"] = attempt.launched_at
    if not job.reason:
        given["reason"] = clean(reason)
    if (job.state in ENDED) != (job.finished_at is not None):
        given["finished_at"] = job.state_since if job.state in ENDED else None
    return (_job_with(job, given) if given else job), attempt


def submitted(job: Job, reason: str, attempt: Attempt | None, seq: int) -> Written:
    """Store a job that ``checked_submission`` returned; its first event gets ``seq``."""
    if attempt is None:
        event = _event(seq, job.id, job.submitted_at, "submitted", None, job.state, clean(reason), job.attempt, job.region)
        return Written(_job_with(job, {"seq": seq}), (event,))
    events = (
        JobEvent(seq, job.id, job.submitted_at, "submitted", None, JobState.QUEUED, "submitted"),
        JobEvent(
            seq + 1,
            job.id,
            attempt.launched_at,
            "state",
            JobState.QUEUED,
            JobState.LAUNCHING,
            clean(reason),
            attempt.attempt,
            attempt.region,
        ),
    )
    return Written(_job_with(job, {"seq": seq + 1}), events, new_attempt=attempt)


def tell(events: Sequence[JobEvent]) -> str:
    """The last events as a story for an error message."""
    lines = (f"{e.at:%Y-%m-%dT%H:%M:%SZ} {e.kind} -> {e.new_state}: {e.reason}" for e in events[-STORY_EVENTS:])
    return "Its story: " + "; ".join(lines)


def changed(
    job: Job, current: Attempt | None, change: Change, seq: int, story: Callable[[], Sequence[JobEvent]] = lambda: ()
) -> Written:
    """Apply ``change`` to ``job``, whose current attempt is ``current``; the event gets ``seq``.

    ``attempt_fields`` go to the current attempt, before ``new_attempt`` takes its place. A move to an end sets
    ``finished_at`` where the change does not. Raises StaleState, IllegalMove, AlreadyExists or BadInput.
    """
    _compare(job, change)
    values = _checked(change.fields, _JOB_FIELDS, "fields")
    attempt_values = _checked(change.attempt_fields, _ATTEMPT_FIELDS, "attempt_fields") if change.attempt_fields else {}
    at, reason = utc("at", change.at), clean(change.reason)
    state = job.state
    if change.to is not None:
        check_move(job.id, job.state, change.to, "" if (job.state, change.to) in EDGES else tell(story()))
        state = change.to
        values.setdefault("state_since", at)
    changed_attempt = None
    if attempt_values:
        if current is None:
            raise StaleState(f"job {job.id} has no attempt to change ({reason}); nothing was written")
        changed_attempt = current = _attempt_with(current, attempt_values)
    new_attempt = None
    if change.new_attempt is not None:
        new_attempt = _next_attempt(job, current, change.new_attempt)
        values["attempt"] = new_attempt.attempt
        values.setdefault("region", new_attempt.region)
    # An end time belongs to ended jobs only: "latest ended" is found by it.
    if state in ENDED:
        if values.get("finished_at", job.finished_at) is None:
            values["finished_at"] = at
    elif values.get("finished_at", job.finished_at) is not None:
        values["finished_at"] = None
    if state is not JobState.RUNNING and values.get("frozen_at", job.frozen_at) is not None:
        values["frozen_at"] = None  # what does not run does not stand still either
    values["state"], values["reason"], values["seq"] = state, reason, seq
    now = _job_with(job, values)
    event = _event(seq, job.id, at, change.kind, job.state, state, reason, now.attempt, now.region)
    return _written(now, (event,), new_attempt, changed_attempt)


def _compare(job: Job, change: Change) -> None:
    """Raise StaleState unless the job is as the change expects it."""
    if change.expect is None and job.state in ENDED:
        raise StaleState(f"job {job.id} has ended ({job.state}); nothing was written of: {change.reason}")
    if change.expect is not None and job.state is not change.expect:
        raise StaleState(f"job {job.id} is {job.state}, not {change.expect}; nothing was written of: {change.reason}")
    if change.expect_attempt is not None and job.attempt != change.expect_attempt:
        raise StaleState(
            f"job {job.id} is at attempt {job.attempt}, not {change.expect_attempt}; nothing was written of: {change.reason}"
        )
    if change.expect_seq is not None and job.seq != change.expect_seq:
        raise StaleState(f"job {job.id} has changed since this was decided; nothing was written of: {change.reason}")


def _next_attempt(job: Job, current: Attempt | None, attempt: Attempt) -> Attempt:
    attempt = storable(attempt)
    if attempt.job_id != job.id:
        raise BadInput([("new_attempt.job_id", attempt.job_id, f"must be {job.id}")])
    if current is not None and current.ended_at is None:
        raise IllegalMove(f"job {job.id}: attempt {current.attempt} in {current.region} lives; no other may start beside it")
    if attempt.attempt <= job.attempt:
        raise AlreadyExists(f"job {job.id}: attempt {attempt.attempt} is not after attempt {job.attempt}")
    return attempt
