"""Events as text for the store, so that what is held outlives the process; and the stored event that others act on.

It knows what the fields of `model.DrEvent` are, and no protocol.
"""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import datetime
from typing import Any

from dispatcher.config_events import EventSourceConfig
from dispatcher.dr.model import DrEvent, ReportDue, Segment, Signal, version_json
from dispatcher.dr.timing import LAST_YEAR
from dispatcher.store import GridEvent, GridStep

_TIMES = frozenset({"received_at", "start", "end", "effective_from", "version", "at"})
_PARTS: dict[str, Callable[..., Any]] = {"segments": Segment, "signals": Signal, "reports_due": ReportDue}


def text_of(event: DrEvent) -> str:
    """The event as JSON."""
    return json.dumps(_plain(event), separators=(",", ":"), allow_nan=False)


def _plain(value: object) -> Any:
    if isinstance(value, datetime):
        return {"at": value.isoformat()}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, DrEvent | Segment | Signal | ReportDue):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    return value


def event_of(text: str) -> DrEvent:
    """The event that `text_of` made a text of; fields that this version does not know are left out. Raises ValueError for
    what is none."""
    try:
        event: DrEvent = _made(DrEvent, json.loads(text))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"no event of this version: {error}") from None
    return event


def _made(kind: Callable[..., Any], data: dict[str, Any]) -> Any:
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: _value(name, value) for name, value in data.items() if name in known})


def _value(name: str, value: Any) -> Any:
    if name in _PARTS:
        return tuple(_made(_PARTS[name], one) for one in value)
    if name in _TIMES and isinstance(value, dict):
        return datetime.fromisoformat(value["at"])
    if name == "windows":  # a report's: pairs of times
        return tuple(tuple(_value("start", at) for at in window) for window in value)
    return tuple(_value("", one) for one in value) if isinstance(value, list) else value


def grid_event(event: DrEvent, source: EventSourceConfig, before: GridEvent | None) -> GridEvent:
    """The event as the store keeps it and the control loop acts on it, in place of ``before``.

    Its steps tell what was asked of us over all its versions: of an earlier one up to the moment at which this one came.
    """
    at = event.received_at
    ahead = tuple(
        GridStep(
            max(s.effective_from or s.start, at),
            _end(s.end),
            s.limit_w,
            s.interval_id,
            s.ramp_s if s.ramp_s is not None else source.ramp_s or None,
            s.reason,
            s.emergency or source.emergency,
        )
        for s in event.segments
        if s.end is None or s.end > at
    )
    steps = _joined(() if before is None else before.steps, ahead, at)
    ends = [step.end for step in ahead]
    end = (
        None
        if None in ends
        else max((e for e in (*ends, _end(event.end)) if e is not None), default=None if not event.cancelled else at)
    )
    lowest = min(ahead, key=lambda step: step.limit_w, default=None)
    return GridEvent(
        source=source.name,
        event_id=event.event_id,
        version=1 if before is None else before.version + 1,
        region=source.region,
        start=min([step.start for step in steps] + ([event.start] if event.start is not None else []), default=at),
        end=at if event.cancelled or event.completed else end,
        limit_w=lowest.limit_w if lowest is not None else None,
        received_at=at,
        reason=_reason(event, before, lowest),
        cancelled=event.cancelled,
        test=event.test,
        steps=steps,
        branch=source.branch,
        protocol=source.protocol,
        said_version=None if event.version is None else str(version_json(event.version)),
        rank=event.rank,
        recovery_s=source.recovery_s if event.recovery_s is None else event.recovery_s,
    )


def _end(end: datetime | None) -> datetime | None:
    """An end that means "none" is none, though it be written as a time such as 9999-12-31: no real one lies so far ahead."""
    return None if end is None or end.year >= LAST_YEAR else end


def _reason(event: DrEvent, before: GridEvent | None, lowest: GridStep | None) -> str:
    """Why there is a limit; of one that was released, why there was."""
    if lowest is not None:
        return lowest.reason
    if before is not None and before.reason and (event.cancelled or event.completed):
        return before.reason
    return "; ".join(event.warnings[:1])


def _joined(before: tuple[GridStep, ...], ahead: tuple[GridStep, ...], at: datetime) -> tuple[GridStep, ...]:
    past = [replace(s, end=at if s.end is None else min(s.end, at)) for s in before if s.start < at]
    steps = list(ahead)
    for index, step in enumerate(steps):
        same = next((s for s in past if s.end == step.start and _asks(s) == _asks(step)), None)
        if same is not None:
            past.remove(same)
            steps[index] = replace(step, start=same.start)
    return tuple(sorted((*past, *steps), key=lambda s: s.start))


def _asks(step: GridStep) -> object:
    return step.limit_w, step.interval_id, step.emergency
