"""Between values and rows: one function either way. Knows the fields and the columns, no database and no rules.

Rows are read as plain tuples in the order of the fields, because lists of thousands of jobs are read often.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any

from sqlalchemy import Column, null

from dispatcher.errors import BadInput
from dispatcher.store import (
    Attempt,
    BeforeEvent,
    GridEvent,
    GridEventChange,
    GridStep,
    Job,
    JobEvent,
    Judged,
    ObjectiveCounts,
    Request,
    ServingQuarter,
    Token,
)
from dispatcher.store.tables import (
    API_TOKEN,
    ATTEMPT,
    GRID_EVENT,
    GRID_EVENT_BEFORE,
    GRID_EVENT_CHANGE,
    JOB,
    JOB_EVENT,
    SERVING_QUARTER,
)
from policies.world import Flexibility, JobState, Pausable


def _columns(table: Any, value_type: Any) -> list[Column[Any]]:
    return [table.c[f.name] for f in fields(value_type)]


#: What to select for each kind of value, in the order of its fields.
JOB_COLUMNS = _columns(JOB, Job)
ATTEMPT_COLUMNS = _columns(ATTEMPT, Attempt)
EVENT_COLUMNS = _columns(JOB_EVENT, JobEvent)
GRID_EVENT_COLUMNS = _columns(GRID_EVENT, GridEvent)
GRID_EVENT_CHANGE_COLUMNS = _columns(GRID_EVENT_CHANGE, GridEventChange)
BEFORE_EVENT_COLUMNS = _columns(GRID_EVENT_BEFORE, BeforeEvent)
SERVING_QUARTER_COLUMNS = _columns(SERVING_QUARTER, ServingQuarter)
TOKEN_COLUMNS = _columns(API_TOKEN, Token)

# The columns that are written, in this order; a new job's seq is known only in its transaction, so it stands last.
_JOB_BUT_SEQ = [f.name for f in fields(Job) if f.name != "seq"]
JOB_INSERT = [*_JOB_BUT_SEQ, "team", "seq"]
JOB_CHANGING = [f.name for f in fields(Job) if f.name not in ("id", "submitted_at", "request", "flex")]
ATTEMPT_INSERT = [f.name for f in fields(Attempt)]
ATTEMPT_CHANGING = [name for name in ATTEMPT_INSERT if name not in ("job_id", "attempt", "submission_id")]
EVENT_INSERT = [f.name for f in fields(JobEvent)]
_read_new_job, _read_changing = attrgetter(*_JOB_BUT_SEQ), attrgetter(*JOB_CHANGING)
_read_attempt, _read_changing_attempt = attrgetter(*ATTEMPT_INSERT), attrgetter(*ATTEMPT_CHANGING)
_read_event = attrgetter(*EVENT_INSERT)
_NEW_REQUEST_AT, _NEW_FLEX_AT, _NEW_STATE_AT = map(_JOB_BUT_SEQ.index, ("request", "flex", "state"))
_CHANGING_STATE_AT = JOB_CHANGING.index("state")

_STATES = {state.value: state for state in JobState}
_PAUSABLE = {kind.value: kind for kind in Pausable}
_JOB = [f.name for f in fields(Job)]
_REQUEST = [f.name for f in fields(Request)]
_FLEX = [f.name for f in fields(Flexibility)]
_FLEX_OWN = ("deadline_at", "earliest_at", "gpu_types")
_FLEX_SHARED = [name for name in _FLEX if name not in _FLEX_OWN]
_read_flex_shared = attrgetter(*_FLEX_SHARED)
_REQUEST_AT, _FLEX_AT, _STATE_AT = _JOB.index("request"), _JOB.index("flex"), _JOB.index("state")
_STEPS_AT = [f.name for f in fields(GridEvent)].index("steps")
_CHANGE_STEPS_AT = [f.name for f in fields(GridEventChange)].index("steps")
_BEFORE = [f.name for f in fields(BeforeEvent)]
_SERVING = [f.name for f in fields(ServingQuarter)]
_JUDGED = [f.name for f in fields(Judged)]
_OLD_AT, _NEW_AT = EVENT_INSERT.index("old_state"), EVENT_INSERT.index("new_state")


class Encoded(str):
    """JSON text that is ready; the engine's serializer passes it through."""

    __slots__ = ()


def _plain(value: object) -> Any:
    if isinstance(value, datetime):
        return (value if value.tzinfo is UTC else value.astimezone(UTC)).isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} cannot be stored")


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_plain).encode


def to_json(value: Any) -> str:
    """JSON text; NaN and what JSON cannot say raise ValueError or TypeError. Used by the engine too."""
    return value if isinstance(value, Encoded) else _encode(value)


def _encoded(name: str, value: Any, names: Sequence[str]) -> Encoded:
    try:
        return Encoded(_encode({one: getattr(value, one) for one in names}))
    except (ValueError, TypeError, RecursionError) as error:
        raise BadInput([(name, "...", f"must be plain JSON: {error}")]) from None


def request_json(request: Request) -> Encoded:
    """A request as its column holds it. Raises BadInput for what JSON cannot say."""
    return _encoded("request", request, _REQUEST)


def flex_json(flex: Flexibility) -> Encoded:
    """A job's flexibility as its column holds it. Raises BadInput for what JSON cannot say."""
    try:
        own = _encode({name: getattr(flex, name) for name in _FLEX_OWN})
        return Encoded(f"{own[:-1]},{_flex_shared(*_read_flex_shared(flex))[1:]}")
    except (ValueError, TypeError, RecursionError) as error:
        raise BadInput([("flex", "...", f"must be plain JSON: {error}")]) from None


@lru_cache(512, typed=True)
def _flex_shared(*values: Any) -> str:
    # Jobs that come in great number differ in their times only.
    return _encode(dict(zip(_FLEX_SHARED, values, strict=True)))


def _flex(data: dict[str, Any]) -> Flexibility:
    for name in ("deadline_at", "earliest_at"):
        if data[name] is not None:
            data[name] = datetime.fromisoformat(data[name]).astimezone(UTC)
    data["pausable"] = _PAUSABLE[data["pausable"]]
    data["regions"] = tuple(data["regions"])
    return Flexibility(**data)


def job_values(job: Job) -> list[Any]:
    """The values of JOB_INSERT. Raises BadInput for a request that JSON cannot say."""
    values = list(_read_new_job(job))
    values[_NEW_REQUEST_AT], values[_NEW_FLEX_AT] = request_json(job.request), flex_json(job.flex)
    values[_NEW_STATE_AT] = job.state.value
    values += (job.flex.team, job.seq)
    return values


def job_of(row: Sequence[Any]) -> Job:
    """The job of a row of JOB_COLUMNS."""
    values = list(row)
    values[_REQUEST_AT] = Request(**values[_REQUEST_AT])
    values[_FLEX_AT] = _flex(values[_FLEX_AT])
    values[_STATE_AT] = _STATES[values[_STATE_AT]]
    return Job(*values)


def changed_job_values(job: Job) -> list[Any]:
    """The values of JOB_CHANGING."""
    values = list(_read_changing(job))
    values[_CHANGING_STATE_AT] = job.state.value
    return values


def attempt_values(attempt: Attempt) -> list[Any]:
    """The values of ATTEMPT_INSERT."""
    return list(_read_attempt(attempt))


def changed_attempt_values(attempt: Attempt) -> list[Any]:
    """The values of ATTEMPT_CHANGING."""
    return list(_read_changing_attempt(attempt))


def attempt_of(row: Sequence[Any]) -> Attempt:
    """The attempt of a row of ATTEMPT_COLUMNS."""
    return Attempt(*row)


def event_values(event: JobEvent) -> list[Any]:
    """The values of EVENT_INSERT."""
    values = list(_read_event(event))
    values[_NEW_AT] = event.new_state.value
    values[_OLD_AT] = event.old_state.value if event.old_state else None
    return values


def event_of(row: Sequence[Any]) -> JobEvent:
    """The event of a row of EVENT_COLUMNS."""
    values = list(row)
    values[_NEW_AT] = _STATES[values[_NEW_AT]]
    values[_OLD_AT] = _STATES[values[_OLD_AT]] if values[_OLD_AT] is not None else None
    return JobEvent(*values)


def grid_event_values(event: GridEvent) -> dict[str, Any]:
    """The values of GRID_EVENT_COLUMNS by name."""
    values = {name: getattr(event, name) for name in event.__slots__}
    values["steps"] = _steps_json(event.steps)
    return values


def grid_event_change_values(change: GridEventChange) -> dict[str, Any]:
    """The values of GRID_EVENT_CHANGE_COLUMNS by name."""
    values = {name: getattr(change, name) for name in change.__slots__}
    values["steps"] = null() if change.steps is None else _steps_json(change.steps)
    return values


def _steps_json(steps: Iterable[GridStep]) -> list[list[Any]]:
    # A step that is no emergency is written as those were of which that was not asked yet.
    return [
        [_time_text(s.start), _time_text(s.end), s.limit_w, s.interval_id, s.ramp_s, s.reason, *[True] * s.emergency]
        for s in steps
    ]


def _time_text(at: datetime | None) -> str | None:
    return None if at is None else _plain(at)


def grid_event_of(row: Sequence[Any]) -> GridEvent:
    """The event of a row of GRID_EVENT_COLUMNS."""
    values = list(row)
    values[_STEPS_AT] = _steps_of(values[_STEPS_AT] or ())
    return GridEvent(*values)


def grid_event_change_of(row: Sequence[Any]) -> GridEventChange:
    """The line of history of a row of GRID_EVENT_CHANGE_COLUMNS."""
    values = list(row)
    values[_CHANGE_STEPS_AT] = None if values[_CHANGE_STEPS_AT] is None else _steps_of(values[_CHANGE_STEPS_AT])
    return GridEventChange(*values)


def _steps_of(rows: Iterable[Sequence[Any]]) -> tuple[GridStep, ...]:
    return tuple(
        GridStep(datetime.fromisoformat(start), None if end is None else datetime.fromisoformat(end), *rest)
        for start, end, *rest in rows
    )


def before_event_values(kept: BeforeEvent) -> dict[str, Any]:
    """The values of BEFORE_EVENT_COLUMNS by name."""
    values = {name: getattr(kept, name) for name in _BEFORE}
    for name in ("plan_w", "unshifted_w", "notes"):
        values[name] = null() if values[name] is None else list(values[name])
    return values


def before_event_of(row: Sequence[Any]) -> BeforeEvent:
    """What was kept, of a row of BEFORE_EVENT_COLUMNS."""
    values = dict(zip(_BEFORE, row, strict=True))
    for name in ("plan_w", "unshifted_w", "notes"):
        values[name] = None if values[name] is None else tuple(values[name])
    return BeforeEvent(**values)


def serving_quarter_values(kept: ServingQuarter) -> dict[str, Any]:
    """The values of SERVING_QUARTER_COLUMNS by name."""
    values = {name: getattr(kept, name) for name in _SERVING}
    values["objectives"] = [[one.name, one.share, _judged(one.alone), _judged(one.beside)] for one in kept.objectives]
    return values | {"level_s": list(kept.level_s), "yield_s": list(kept.yield_s)}


def _judged(one: Judged) -> list[float]:
    return [getattr(one, name) for name in _JUDGED]


def serving_quarter_of(row: Sequence[Any]) -> ServingQuarter:
    """What was seen of a serving, of a row of SERVING_QUARTER_COLUMNS."""
    values = dict(zip(_SERVING, row, strict=True))
    values["objectives"] = tuple(
        ObjectiveCounts(name, share, Judged(*alone), Judged(*beside)) for name, share, alone, beside in values["objectives"]
    )
    return ServingQuarter(**values | {"level_s": tuple(values["level_s"]), "yield_s": tuple(values["yield_s"])})
