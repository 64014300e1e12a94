"""Between values and rows: one function either way. Knows the fields and the columns, no database and no rules.

Rows are read as plain tuples in the order of the fields, because lists of thousands of jobs are read often.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Column

from dispatcher.errors import BadInput
from dispatcher.store import Attempt, GridEvent, Job, JobEvent, Request, Token
from dispatcher.store.tables import API_TOKEN, ATTEMPT, GRID_EVENT, JOB, JOB_EVENT
from policies.world import Flexibility, JobState, Pausable


def _columns(table: Any, value_type: Any) -> list[Column[Any]]:
    return [table.c[f.name] for f in fields(value_type)]


#: What to select for each kind of value, in the order of its fields.
JOB_COLUMNS = _columns(JOB, Job)
ATTEMPT_COLUMNS = _columns(ATTEMPT, Attempt)
EVENT_COLUMNS = _columns(JOB_EVENT, JobEvent)
GRID_EVENT_COLUMNS = _columns(GRID_EVENT, GridEvent)
TOKEN_COLUMNS = _columns(API_TOKEN, Token)

_STATES = {state.value: state for state in JobState}
_PAUSABLE = {kind.value: kind for kind in Pausable}
_JOB = [f.name for f in fields(Job)]
_REQUEST = [f.name for f in fields(Request)]
_FLEX = [f.name for f in fields(Flexibility)]
_ATTEMPT = [f.name for f in fields(Attempt)]
_EVENT = [f.name for f in fields(JobEvent)]
_REQUEST_AT, _FLEX_AT, _STATE_AT = _JOB.index("request"), _JOB.index("flex"), _JOB.index("state")
_OLD_AT, _NEW_AT = _EVENT.index("old_state"), _EVENT.index("new_state")


class Encoded(str):
    """JSON text that is ready; the engine's serializer passes it through."""

    __slots__ = ()


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
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
    return _encoded("flex", flex, _FLEX)


def _flex(data: dict[str, Any]) -> Flexibility:
    for name in ("deadline_at", "earliest_at"):
        if data[name] is not None:
            data[name] = datetime.fromisoformat(data[name]).astimezone(UTC)
    data["pausable"] = _PAUSABLE[data["pausable"]]
    data["regions"] = tuple(data["regions"])
    return Flexibility(**data)


def job_values(job: Job) -> dict[str, Any]:
    """A new job's row. Raises BadInput for a request that JSON cannot say."""
    values = {name: getattr(job, name) for name in _JOB}
    values["request"], values["flex"] = request_json(job.request), flex_json(job.flex)
    values["state"], values["team"] = job.state.value, job.flex.team
    return values


def job_of(row: Sequence[Any]) -> Job:
    """The job of a row of JOB_COLUMNS."""
    values = list(row)
    values[_REQUEST_AT] = Request(**values[_REQUEST_AT])
    values[_FLEX_AT] = _flex(values[_FLEX_AT])
    values[_STATE_AT] = _STATES[values[_STATE_AT]]
    return Job(*values)


def attempt_values(attempt: Attempt) -> dict[str, Any]:
    """An attempt's row."""
    return {name: getattr(attempt, name) for name in _ATTEMPT}


def attempt_of(row: Sequence[Any]) -> Attempt:
    """The attempt of a row of ATTEMPT_COLUMNS."""
    return Attempt(*row)


def event_values(event: JobEvent) -> dict[str, Any]:
    """An event's row."""
    values = {name: getattr(event, name) for name in _EVENT}
    values["new_state"] = event.new_state.value
    values["old_state"] = event.old_state.value if event.old_state else None
    return values


def event_of(row: Sequence[Any]) -> JobEvent:
    """The event of a row of EVENT_COLUMNS."""
    values = list(row)
    values[_NEW_AT] = _STATES[values[_NEW_AT]]
    values[_OLD_AT] = _STATES[values[_OLD_AT]] if values[_OLD_AT] is not None else None
    return JobEvent(*values)
