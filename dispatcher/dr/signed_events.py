"""Events in signed webhooks of senders that follow no standard: read only where each number's unit stands in its name.

The shape: ``{"type", "data": {"event_id", "version", "start", "end", "limit_kw" or "reduce_kw", ..}}``, the limits perhaps in a
list of ``segments``. What is not understood is said; what would have to be guessed is refused.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from dispatcher.dr.model import MAX_STEPS, Answer, DrEvent, Notes, Refused, Segment, kw, number, power_w, refusal, shown, span
from dispatcher.dr.openadr3 import Context
from dispatcher.dr.payloads import REFERENCE, less
from dispatcher.dr.timing import means_now, parse_duration, parse_time

_IDS = ("event_id", "dispatch_id", "id")
_VERSIONS = ("version", "modification_number", "revision", "sequence")
_STARTS = ("start", "start_at", "starts_at", "start_time", "from")
_ENDS = ("end", "end_at", "ends_at", "end_time", "until", "to")
_LISTS = ("segments", "intervals", "steps")
_SOURCES = ("source", "program_id", "program")
_OTHERS = (
    *("duration", "duration_s", "priority", "test", "reason", "state", "status", "cancelled", "interval_id", "emergency"),
)
_KNOWN = frozenset((*_IDS, *_VERSIONS, *_STARTS, *_ENDS, *_LISTS, *_SOURCES, *_OTHERS))
_UNITS = {"w": 1.0, "kw": 1e3, "mw": 1e6}
_LIMIT = re.compile(r"(?:[a-z]+_)*(?:limit|cap|setpoint|budget)_(w|kw|mw)|max_(?:[a-z]+_)*(w|kw|mw)")
_REDUCE = re.compile(r"(?:reduce|reduce_by|reduction|drop|drop_by|shed|curtail|curtailment|commitment)_(w|kw|mw|percent|pct)")
_GONE = ("cancel", "delete", "withdraw", "release", "revoke")


def _named(data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields by names in small letters, the unit of ``{"value", "unit"}`` moved into the name."""
    out: dict[str, Any] = {}
    for key, value in data.items():
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()
        unit = value.get("unit", value.get("units")) if isinstance(value, dict) else None
        if isinstance(value, dict) and isinstance(unit, str) and "value" in value:
            name, value = f"{name}_{unit.lower()}", value["value"]
        out.setdefault(name, value)
    return out


def read_signed_event(data: Any, context: Context) -> DrEvent | Answer:
    """The event in a proved body, or why it is none."""
    event_id: str | None = None
    notes = Notes()
    try:
        inner = data.get("data", data) if isinstance(data, dict) else data
        inner = inner.get("event", inner) if isinstance(inner, dict) else inner
        if not isinstance(data, dict) or not isinstance(inner, dict):
            raise Refused("not_an_event", f"data: {shown(inner)}: must be an object that describes an event")
        inner = _named(inner)
        event_id = _id(inner)
        return _event(data, inner, event_id, context.about(event_id), notes)
    except Refused as error:
        return replace(refusal(error, event_id), warnings=notes.all())


def _first(data: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((data[name] for name in names if data.get(name) is not None), None)


def _id(data: Mapping[str, Any]) -> str:
    value = _first(data, _IDS)
    if not isinstance(value, str) or not 0 < len(value) <= 256:
        raise Refused("bad_field", f"event_id: {shown(value)}: must be the event's id")
    return value


def _event(envelope: Mapping[str, Any], data: Mapping[str, Any], event_id: str, context: Context, notes: Notes) -> DrEvent:
    kind = str(envelope.get("type", ""))
    version: datetime | int | None = _first(data, _VERSIONS)
    if isinstance(version, str):
        version = (
            int(version)
            if version.isascii() and version.isdigit() and len(version) < 16
            else parse_time(version, "version", None, notes)
        )
    if isinstance(version, bool) or not isinstance(version, int | datetime | None):
        raise Refused("bad_field", f"version: {shown(version)}: must be a whole number or a time")
    source = _first(data, _SOURCES)
    priority = data.get("priority")
    state = str(data.get("state", data.get("status", ""))).lower()
    cancelled = data.get("cancelled") is True or any(word in text for word in _GONE for text in (kind.lower(), state))
    made = DrEvent(
        source=source if isinstance(source, str) else "standard-webhook",
        event_id=event_id,
        version=version,
        received_at=context.now,
        priority=priority if isinstance(priority, int) and not isinstance(priority, bool) else None,
        test=data.get("test") is True,
        counted=True,
        cancelled=cancelled,
        final=cancelled and version is None,
        body=json.dumps(data, sort_keys=True, default=str),
        load_w=context.terms.load_w,
    )
    if cancelled:
        return made
    steps = _first(data, _LISTS)
    if steps is not None and (not isinstance(steps, list) or not steps or not all(isinstance(step, dict) for step in steps)):
        raise Refused("bad_field", f"segments: {shown(steps)}: must be a list of objects with start, end and a limit")
    if steps is None:
        segments = [_segment(data, {}, None, "data", context, notes)]
    else:
        segments = [_segment(_named(s), data, i, f"segments[{i}]", context, notes) for i, s in enumerate(steps[:MAX_STEPS])]
    for key in data:
        if key not in _KNOWN and not _LIMIT.fullmatch(key) and not _REDUCE.fullmatch(key):
            notes.add(f"{shown(key)}: not understood, left out")
    ends = [s.end for s in segments if s.end is not None]
    end = max(ends) if len(ends) == len(segments) else None
    return replace(made, start=min(s.start for s in segments), end=end, segments=tuple(segments), warnings=notes.all())


def _segment(
    step: Mapping[str, Any], event: Mapping[str, Any], index: int | None, where: str, context: Context, notes: Notes
) -> Segment:
    zone, given = context.terms.site.zone, {**event, **step}
    begin, until, duration = _first(given, _STARTS), _first(given, _ENDS), _first(given, ("duration", "duration_s"))
    start = context.now if begin is None or means_now(begin) else parse_time(begin, f"{where}.start", zone, notes)
    end = None if until is None else parse_time(until, f"{where}.end", zone, notes, is_end=True)
    if end is None and isinstance(duration, str):
        end = parse_duration(duration, f"{where}.duration", notes).after(start)
    elif end is None and duration is not None:
        end = span(start, number(duration, f"{where}.duration_s"))
    if end is not None and end <= start:
        raise Refused("bad_time", f"{where}.end: {shown(until)}: must be after the start")
    limit_w, reason = _limit(step, where, context, notes) or _limit(event, where, context, notes) or _none(where)
    said, named = given.get("reason"), step.get("interval_id", index)
    interval_id = named if isinstance(named, int | str) and not isinstance(named, bool) else index
    emergency = given.get("emergency")
    if not isinstance(emergency, bool | None):
        raise Refused("bad_field", f"{where}.emergency: {shown(emergency)}: must be true or false")
    why = f"{said}: {reason}" if isinstance(said, str) else reason
    return Segment(start, end, limit_w, interval_id, None, why, emergency=bool(emergency))


def _limit(data: Mapping[str, Any], where: str, context: Context, notes: Notes) -> tuple[float, str] | None:
    """A limit in W and where it comes from; None where none is given."""
    for key, value in data.items():
        limit, reduce = _LIMIT.fullmatch(key), _REDUCE.fullmatch(key)
        if value is None or not (limit or reduce):
            continue
        if limit:
            return power_w(value, _UNITS[limit[1] or limit[2]], f"{where}.{key}"), f"{key}={value}"
        reference = context.terms.reference(notes)
        if reference is None:
            raise Refused("no_reference", f"{where}.{key}: from which load is not known: give {REFERENCE}")
        unit = reduce[1] if reduce else ""
        if unit in _UNITS:
            down_w = power_w(value, _UNITS[unit], f"{where}.{key}")
        else:
            percent = number(value, f"{where}.{key}")
            if not 0 <= percent <= 100:
                raise Refused("bad_value", f"{where}.{key}: {shown(value)}: must be 0 to 100 percent")
            down_w = reference * percent / 100
        return less(reference, down_w, notes), f"{key}={value}: {kw(down_w)} below {kw(reference)}"
    return None


def _none(where: str) -> tuple[float, str]:
    text = "a limit must be given with its unit in its name, such as limit_w, limit_kw or reduce_kw"
    raise Refused("missing_field", f"{where}.limit_w: missing: {text}")
