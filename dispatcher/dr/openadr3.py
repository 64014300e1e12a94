"""OpenADR 3.1 and 3.0.1: notifications, events, lists of events, and programs given beside, to events.

What differs between the two versions is in ``Dialect``. Sources: the Alliance's schemas and User Guide. It does not know what
was held before; `ledger` does.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

from dispatcher.dr.model import MAX_STEPS, Answer, DrEvent, Message, Notes, Refused, Segment, Signal, State, refusal, shown
from dispatcher.dr.payloads import Asked, Descriptor, Terms, read_payloads
from dispatcher.dr.reports import reports_due
from dispatcher.dr.timing import Duration, Life, Period, Slot, fitted, means_now, parse_duration, parse_time, schedule, split

#: What may happen to an object, in the words of both versions.
OPERATIONS = {
    "CREATE": "create",
    "POST": "create",
    "UPDATE": "update",
    "PUT": "update",
    "PATCH": "update",
    "DELETE": "delete",
    "READ": "read",
    "GET": "read",
}
_ID = re.compile(r"[a-zA-Z0-9_-]{1,128}", re.ASCII)
_OTHER_OBJECTS = ("REPORT", "SUBSCRIPTION", "VEN", "RESOURCE")
#: Payload types of one moment: for them a zero duration is no infinity in 3.0.1 either.
_MOMENTARY = frozenset({"PRICE", "PRICE_ALTERNATE", "EXPORT_PRICE", "GHG"})


@dataclass(frozen=True, slots=True)
class Dialect:
    """Where the versions differ. ``zero_is_open``: a duration of zero means "no end" (3.0.1), not "nothing" (3.1)."""

    name: str
    zero_is_open: bool
    needs_intervals: bool


V31 = Dialect("3.1", zero_is_open=False, needs_intervals=False)
V30 = Dialect("3.0", zero_is_open=True, needs_intervals=True)


@dataclass(frozen=True, slots=True)
class Program:
    """What an event takes from its program."""

    descriptors: Mapping[str, Descriptor] = field(default_factory=dict)
    zone: tzinfo | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """What a message is read against. ``earlier``: it came before ``now``, at the time it was sent as far as is known.

    A random start is drawn as ``draw_s``, or as ``drawn``, -1 to 1 of what it may move. ``recall`` gives what is to be used for
    one event: its first load and draw are kept over all its versions.
    """

    now: datetime
    terms: Terms
    draw_s: float | None = None
    earlier: bool = False
    programs: Mapping[str, Program] = field(default_factory=dict)
    drawn: float | None = None
    recall: Callable[[str], tuple[float | None, float | None]] | None = None

    def about(self, event_id: str) -> "Context":
        """The context of one event."""
        if self.recall is None:
            return self
        load_w, drawn = self.recall(event_id)
        return replace(self, terms=replace(self.terms, load_w=load_w), drawn=drawn, recall=None)


def programs_in(data: Any) -> dict[str, Program]:
    """The programs that a message or file holds, by id."""
    found = {}
    for _, item in _objects(data):
        if isinstance(item, dict) and _is_program(item) and isinstance(item.get("id"), str):
            found[item["id"]] = _program(item)
    return found


def read(data: Any, dialect: Dialect, context: Context) -> Message:
    """The events in a notification, an event, a list of either, or an object with ``events`` and perhaps ``programs``."""
    programs = {**context.programs, **programs_in(data)}
    context = replace(context, programs=programs)
    listing = isinstance(data, list) or (isinstance(data, dict) and isinstance(data.get("events"), list))
    objects = list(_objects(data))
    events = [(operation, item) for operation, item in objects if not (isinstance(item, dict) and _is_program(item))]
    objects = events if listing else events[:1] or objects[:1]
    items = tuple(_item(operation, item, dialect, context) for operation, item in objects[:MAX_STEPS])
    polled = listing and all(operation is None for operation, _ in objects)
    return Message(items, listing, complete=polled)


def _objects(data: Any) -> list[tuple[object, Any]]:
    """(operation or None, object) for everything that the data holds."""
    if isinstance(data, list):
        return [pair for item in data for pair in ([(None, item)] if isinstance(item, list) else _objects(item))]
    if isinstance(data, dict) and "object" in data:
        return [(data.get("operation"), data["object"])]
    if isinstance(data, dict) and not isinstance(data.get("programID"), str):
        inner: list[tuple[object, Any]] = []
        for key in ("programs", "program", "events", "event"):
            value = data.get(key)
            if isinstance(value, list):
                inner += [pair for item in value for pair in ([(None, item)] if isinstance(item, list) else _objects(item))]
            elif isinstance(value, dict):
                inner += _objects(value)
        if inner or isinstance(data.get("events"), list):
            return inner
    return [(None, data)]


def _is_program(item: Mapping[str, Any]) -> bool:
    return item.get("objectType") == "PROGRAM" or ("programName" in item and "programID" not in item)


def _program(item: Mapping[str, Any]) -> Program:
    zone: tzinfo | None = None
    try:
        if item.get("timeZoneOffset") is not None:
            offset = parse_duration(item["timeZoneOffset"], "timeZoneOffset", Notes(), signed=True)
            zone = timezone(offset.rest)
        descriptors = _descriptors(item.get("payloadDescriptors"), "program.payloadDescriptors")
    except (Refused, ValueError):
        return Program()
    return Program(descriptors, zone)


def _descriptors(value: object, where: str) -> dict[str, Descriptor]:
    if value is None:
        return {}
    if not isinstance(value, list):
        raise Refused("bad_field", f"{where}: {shown(value)}: must be a list")
    found = {}
    for index, item in enumerate(value):
        kind = item.get("payloadType") if isinstance(item, dict) else None
        if not isinstance(item, dict) or not isinstance(kind, str):
            raise Refused("bad_field", f"{where}[{index}].payloadType: must be given")
        if item.get("objectType") == "REPORT_PAYLOAD_DESCRIPTOR":
            continue
        texts = [item.get(key) for key in ("units", "currency")]
        if not all(text is None or isinstance(text, str) for text in texts):
            raise Refused("bad_field", f"{where}[{index}]: units and currency must be text")
        found[kind] = Descriptor(texts[0], texts[1])
    return found


# --- one event ------------------------------------------------------------------------------------------------------


def _item(operation: object, item: Any, dialect: Dialect, context: Context) -> DrEvent | Answer:
    event_id = source = None
    version: datetime | None = None
    notes = Notes()
    try:
        done = None if operation is None else OPERATIONS.get(operation.upper() if isinstance(operation, str) else "")
        if operation is not None and done is None:
            known = ", ".join(OPERATIONS)
            raise Refused("bad_operation", f"operation: {shown(operation)}: must be one of {known}")
        if not isinstance(item, dict):
            raise Refused("not_an_event", f"object: {shown(item)}: must be an object of type EVENT")
        event_id, source = _text_or_none(item.get("id")), _text_or_none(item.get("programID"))
        if _is_program(item):
            text = "a program: its descriptors and time zone apply to its events"
            return Answer(State.IGNORED, event_id, warnings=(text,))
        if item.get("objectType") in _OTHER_OBJECTS:
            return Answer(State.IGNORED, event_id, warnings=(f"about a {item['objectType']}, not an event",))
        if item.get("objectType") not in (None, "EVENT"):
            raise Refused("not_an_event", f"objectType: {shown(item['objectType'])}: must be EVENT")
        if event_id is None or not _ID.fullmatch(event_id):
            raise Refused("bad_field", f"id: {shown(item.get('id'))}: must be 1 to 128 letters, digits, _ and -")
        version = _version(item, _zone(source, context), done == "delete", notes)
        if done == "delete":
            received = _received(version, context)
            return DrEvent(
                source,
                event_id,
                version,
                received,
                cancelled=True,
                final=True,
                targets=_targets(item, Notes()),
                body=_body(item),
            )
        return _event(item, event_id, version, done, dialect, context.about(event_id), notes)
    except Refused as error:
        return replace(refusal(error, event_id, source, version), warnings=notes.all())


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _body(item: Mapping[str, Any]) -> str:
    return json.dumps(item, sort_keys=True, ensure_ascii=False, default=str)


def _zone(program_id: str | None, context: Context) -> tzinfo | None:
    """What times without an offset mean: the program says it, or the site."""
    return context.programs.get(program_id or "", Program()).zone or context.terms.site.zone


def _version(item: Mapping[str, Any], zone: tzinfo | None, lenient: bool, notes: Notes) -> datetime | None:
    for key in ("modificationDateTime", "createdDateTime"):
        if item.get(key) is None:
            continue
        try:
            return parse_time(item[key], key, zone, notes)
        except Refused:
            if not lenient:
                raise
    notes.add("modificationDateTime is missing: an older version cannot be told from a newer one")
    return None


def _received(version: datetime | None, context: Context) -> datetime:
    """What came earlier came when it was sent, as far as anybody can tell now."""
    return min(context.now, version) if context.earlier and version is not None else context.now


def _event(
    item: Mapping[str, Any],
    event_id: str,
    version: datetime | None,
    operation: str | None,
    dialect: Dialect,
    context: Context,
    notes: Notes,
) -> DrEvent:
    received = _received(version, context)
    if version is not None and (version - context.now).total_seconds() > 2:
        notes.add(f"sent {(version - context.now).total_seconds():g} s in the future: compare the clocks")
    program_id = item.get("programID")
    if not isinstance(program_id, str) or not program_id:
        raise Refused("missing_field", f"programID: {shown(program_id)}: must be the id of the event's program")
    program = context.programs.get(program_id, Program())
    zone = _zone(program_id, context)
    descriptors = {**program.descriptors, **_descriptors(item.get("payloadDescriptors"), "payloadDescriptors")}
    priority = item.get("priority")
    if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority < 1 << 53):
        raise Refused("bad_field", f"priority: {shown(priority)}: must be a whole number, 0 (the highest) or more")
    default = _period(item.get("intervalPeriod"), "intervalPeriod", zone, notes)
    length = None if item.get("duration") is None else parse_duration(item["duration"], "duration", notes)
    made = DrEvent(
        source=program_id,
        event_id=event_id,
        version=version,
        received_at=received,
        priority=priority,
        rank=priority,
        targets=_targets(item, notes),
        polled=operation in (None, "read"),
        body=_body(item),
        load_w=context.terms.load_w,
        drawn=context.drawn,
    )
    intervals = item.get("intervals")
    if intervals is None and not dialect.needs_intervals:
        intervals = []
    if not isinstance(intervals, list):
        raise Refused("missing_field", f"intervals: {shown(intervals)}: must be a list of intervals")
    if len(intervals) > MAX_STEPS:
        raise Refused("too_large", f"intervals: {len(intervals)}: at most {MAX_STEPS}")
    if _cancels(default, intervals, operation, dialect, notes):
        return replace(made, cancelled=True, warnings=notes.all())
    ids, own, asked = _intervals(intervals, descriptors, zone, context.terms, notes)
    if default is None and any(period is None for period in own):
        raise Refused("missing_field", "intervalPeriod: missing: where the event has none, every interval needs its own")
    periods = [period or Period() for period in own]
    life = _life(default, periods, asked, received, length, dialect, context, notes)
    if not dialect.zero_is_open and life.slots and all(slot.end == slot.start for slot in life.slots):
        notes.add("all its intervals have no length: it asks for nothing")
        return replace(made, cancelled=True, warnings=notes.all())
    wanted = item.get("reportDescriptors")
    due = [report for cycle in life.cycles or ((),) for report in reports_due(wanted, cycle, ids, notes)]
    segments, signals = _filled(life.slots, ids, asked, notes)
    if not intervals:
        life = _implied(default, received, length, context, notes)
    return replace(
        made,
        start=life.start,
        end=life.end,
        completed=not life.slots and not due,
        segments=segments,
        signals=signals,
        reports_due=tuple(due),
        lacking=notes.lacking,
        warnings=notes.all(),
    )


def _targets(item: Mapping[str, Any], notes: Notes) -> tuple[str, ...]:
    """3.1's list of texts, or 3.0.1's list of types with values."""
    found: list[str] = []
    given = item.get("targets")
    for target in given if isinstance(given, list) else ():
        if isinstance(target, str):
            found.append(target)
        elif isinstance(target, dict) and isinstance(target.get("values"), list):
            found += [f"{target.get('type')}={value}" for value in target["values"]]
        else:
            notes.add(f"targets: {shown(target)}: not understood, left out")
    return tuple(found)


def _period(value: object, where: str, zone: tzinfo | None, notes: Notes) -> Period | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise Refused("bad_field", f"{where}: {shown(value)}: must be an object with start and duration")
    start, duration, randomize = value.get("start"), value.get("duration"), value.get("randomizeStart")
    now = start is not None and means_now(start)
    at = None if start is None or now else parse_time(start, f"{where}.start", zone, notes)
    length = None if duration is None else parse_duration(duration, f"{where}.duration", notes)
    window = None if randomize is None else parse_duration(randomize, f"{where}.randomizeStart", notes, signed=True)
    if window is not None and (window.endless or window.months):
        raise Refused("bad_duration", f"{where}.randomizeStart: {shown(randomize)}: must be a length in days or less")
    return Period(at, now, length, window.rest if window else None)


def _intervals(
    intervals: list[Any], descriptors: Mapping[str, Descriptor], zone: tzinfo | None, terms: Terms, notes: Notes
) -> tuple[list[int | str], list[Period | None], list[Asked]]:
    ids: list[int | str] = []
    own: list[Period | None] = []
    asked: list[Asked] = []
    for index, interval in enumerate(intervals):
        where = f"intervals[{index}]"
        if not isinstance(interval, dict):
            raise Refused("bad_field", f"{where}: {shown(interval)}: must be an object with id and payloads")
        number = interval.get("id", index)
        if isinstance(number, bool) or not isinstance(number, int) or abs(number) >= 1 << 53:
            raise Refused("bad_field", f"{where}.id: {shown(number)}: must be a whole number")
        ids.append(number)
        own.append(_period(interval.get("intervalPeriod"), f"{where}.intervalPeriod", zone, notes))
        asked.append(read_payloads(interval.get("payloads"), descriptors, where, terms, notes))
    return ids, own, asked


def _cancels(default: Period | None, intervals: list[Any], operation: str | None, dialect: Dialect, notes: Notes) -> bool:
    """3.1's other way to cancel: start "now", duration zero. A new event with intervals that last on their own is none."""
    if default is None or not default.now or default.duration is None or not default.duration.zero:
        return False
    if dialect.zero_is_open:
        notes.add("it begins now and lasts 0, which has no end in this version; in 3.1 it would cancel: only DELETE does here")
        return False
    return operation == "update" or not any(_lasts(interval) for interval in intervals)


def _lasts(interval: Any) -> bool:
    period = interval.get("intervalPeriod") if isinstance(interval, dict) else None
    length = period.get("duration") if isinstance(period, dict) else None
    try:
        return length is not None and not parse_duration(length, "duration", Notes()).zero
    except Refused:
        return True


def _life(
    default: Period | None,
    own: list[Period],
    asked: list[Asked],
    received: datetime,
    length: Duration | None,
    dialect: Dialect,
    context: Context,
    notes: Notes,
) -> Life:
    zero_is_open = [
        dialect.zero_is_open and not (one.values and not one.caps and all(v.kind.upper() in _MOMENTARY for v in one.values))
        for one in asked
    ]
    # In 3.0.1 a duration that is not given is zero; in 3.1 that of the whole event may stand for its only interval's.
    fallback = Duration() if dialect.zero_is_open else length if len(own) == 1 and length and not length.zero else None
    slots = schedule(
        default,
        own,
        received=received,
        draw_s=context.draw_s,
        drawn=context.drawn,
        zero_is_open=zero_is_open,
        notes=notes,
        fallback=fallback,
    )
    return fitted(slots, length, context.now, notes)


def _implied(default: Period | None, received: datetime, length: Duration | None, context: Context, notes: Notes) -> Life:
    """The life of an event without intervals, which only asks for reports."""
    if default is None:
        return Life(None, None, (), ())
    period = replace(default, duration=length or default.duration or Duration(endless=True))
    slots = schedule(
        period,
        [Period()],
        received=received,
        draw_s=context.draw_s,
        drawn=context.drawn,
        zero_is_open=[True],
        notes=notes,
    )
    return fitted(slots, None, context.now, notes)


def _filled(
    slots: tuple[Slot, ...], ids: list[int | str], asked: list[Asked], notes: Notes
) -> tuple[tuple[Segment, ...], tuple[Signal, ...]]:
    segments: list[Segment] = []
    signals: list[Signal] = []
    for slot in slots:
        if slot.end is not None and slot.end - slot.start <= timedelta():
            continue
        one = asked[slot.index]
        if one.caps:
            lowest = min(one.caps, key=lambda cap: cap.limit_w)
            others = [cap.reason for cap in one.caps if cap is not lowest]
            reason = "; ".join([lowest.reason, *(f"above it: {other}" for other in others)])
            asks = Segment(slot.start, slot.end, lowest.limit_w, ids[slot.index], None, reason, emergency=one.emergency)
            segments.append(asks)
        for value in one.values:
            if len(value.values) > 1 and slot.end is None:
                notes.add(f"{value.kind}: several values in an interval without end: only the first has a meaning")
            signals += [Signal(value.kind, start, end, v, value.unit) for start, end, v in split(slot, value.values)]
        if len(signals) > MAX_STEPS:
            raise Refused("too_large", f"intervals: more than {MAX_STEPS} values")
    return tuple(segments), tuple(signals)
