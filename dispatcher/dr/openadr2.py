"""OpenADR 2.0b: the events of an oadrDistributeEvent message.

Sources: the OpenADR 2.0b profile's schema and rules (rule 47: a duration of zero has no end). It does not know what was held
before; `ledger` does.
"""

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from dispatcher.dr.model import (
    MAX_STEPS,
    Answer,
    DrEvent,
    Message,
    Notes,
    Refused,
    Segment,
    Signal,
    State,
    kw,
    power_w,
    refusal,
    shown,
    tidy,
)
from dispatcher.dr.openadr3 import Context
from dispatcher.dr.payloads import REFERENCE, Cap, Terms, less, level_caps
from dispatcher.dr.safe_xml import Element, parse
from dispatcher.dr.timing import Duration, Period, Slot, means_now, parse_duration, parse_time, schedule

_STATUSES = frozenset({"none", "far", "near", "active", "completed", "cancelled"})
_SCALES = {
    "none": 1.0,
    "k": 1e3,
    "m": 1e-3,
    "M": 1e6,
    "G": 1e9,
    "d": 0.1,
    "c": 0.01,
    "p": 1e-12,
    "n": 1e-9,
    "micro": 1e-6,
    "T": 1e12,
}
_PRICES = frozenset({"ELECTRICITY_PRICE", "ENERGY_PRICE", "DEMAND_CHARGE", "BID_PRICE"})
_WHOLE = re.compile(r"\d{1,15}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)


def read(body: bytes, context: Context) -> Message:
    """The events of a message. Raises Refused for what is no XML or no OpenADR 2.0b."""
    root = parse(body)
    message = next(root.find("oadrDistributeEvent"), None)
    if message is None:
        inner = next((child.name for signed in root.find("oadrSignedObject") for child in signed.children), root.name)
        if not any(True for _ in root.find("oadrSignedObject")) and root.name not in ("oadrPayload", "oadrPollResponse"):
            raise Refused("not_an_event", f"body: {shown(inner)}: must be an OpenADR 2.0b message with oadrDistributeEvent")
        return Message((Answer(State.IGNORED, warnings=(f"{inner}: a message without events",)),))
    vtn = message.word("vtnID")
    code = message.word("eiResponse", "responseCode")
    if code is not None and not code.startswith("2"):
        raise Refused(
            "error_response", f"responseCode: {shown(code)}: the sender reports an error, and its events are not used"
        )
    events = list(message.all("oadrEvent"))
    if len(events) > MAX_STEPS:
        raise Refused("too_large", f"oadrEvent: {len(events)}: at most {MAX_STEPS}")
    items = tuple(_item(event, vtn, context) for event in events)
    return Message(items, listing=len(items) != 1, complete=True)


@dataclass(frozen=True, slots=True)
class _Active:
    """An event's active period, with its random delay ``late`` in it."""

    period: Period
    late: timedelta
    ramp_s: float | None
    recovery_s: float | None


def _item(wrapper: Element, vtn: str | None, context: Context) -> DrEvent | Answer:
    notes = Notes()
    event = wrapper.first("eiEvent") or Element("eiEvent")
    about = event.first("eventDescriptor") or Element("eventDescriptor")
    event_id, source = about.word("eventID"), about.word("eiMarketContext", "marketContext") or vtn
    version: int | None = None
    try:
        if event_id is None or len(event_id) > 256:
            raise Refused("missing_field", f"eventID: {shown(event_id)}: must be given")
        version = _whole(about, "modificationNumber")
        if version is None:
            raise Refused("missing_field", "modificationNumber: missing: must be a whole number, 0 for the first version")
        return _event(event, about, event_id, source, version, context.about(event_id), notes)
    except Refused as error:
        return replace(refusal(error, event_id, source, version), warnings=notes.all())


def _whole(about: Element, name: str) -> int | None:
    text = about.word(name)
    if text is None:
        return None
    if not _WHOLE.fullmatch(text):
        raise Refused("bad_field", f"{name}: {shown(text)}: must be a whole number, 0 or more")
    return int(text)


def _event(
    event: Element, about: Element, event_id: str, source: str | None, version: int, context: Context, notes: Notes
) -> DrEvent:
    status = about.word("eventStatus")
    if status not in _STATUSES:
        raise Refused("bad_field", f"eventStatus: {shown(status)}: must be one of {', '.join(sorted(_STATUSES))}")
    received = _received(about, context)
    priority = _whole(about, "priority")
    test = about.word("testEvent")
    comment = about.word("vtnComment")
    if comment:
        notes.add(f"the sender's comment: {comment[:200]}")
    made = DrEvent(
        source=source,
        event_id=event_id,
        version=version,
        received_at=received,
        priority=priority,
        # 1 is the highest, and 0 means none: it comes last
        rank=priority or None,
        targets=tuple(
            f"{t.name}={t.text.strip()}" for target in event.all("eiTarget") for t in target.children if t.text.strip()
        ),
        test=test is not None and test.lower() != "false",
        polled=True,
        body=_body(event),
        load_w=context.terms.load_w,
        drawn=context.drawn,
    )
    if status == "cancelled":
        return replace(made, cancelled=True, warnings=notes.all())
    active = _active(event, context, notes)
    segments: list[Segment] = []
    signals: list[Signal] = []
    period = active.period
    life = schedule(period, [Period()], received=received, draw_s=None, zero_is_open=[True], notes=notes)[0]
    for signal in event.all("eiEventSignals", "eiEventSignal"):
        found = _signal(signal, active, life, context, received, notes)
        segments += found[0]
        signals += found[1]
    if len(segments) + len(signals) > MAX_STEPS:
        raise Refused("too_large", f"intervals: more than {MAX_STEPS}")
    if not any(True for _ in event.all("eiEventSignals", "eiEventSignal")):
        notes.add("no signal: nothing follows from it")
    if status == "active" and life.start > context.now + timedelta(seconds=2) and not context.earlier:
        notes.add("its status is active, but its start lies ahead: compare the clocks")
    return replace(
        made,
        start=life.start,
        end=life.end,
        segments=_strictest(segments) if status != "completed" else (),
        signals=tuple(signals),
        completed=status == "completed",
        recovery_s=active.recovery_s,
        lacking=notes.lacking,
        warnings=notes.all(),
    )


def _received(about: Element, context: Context) -> datetime:
    if not context.earlier:
        return context.now
    for name in ("modificationDateTime", "createdDateTime"):
        text = about.word(name)
        try:
            if text:
                return min(context.now, parse_time(text, name, context.terms.site.zone, Notes()))
        except Refused:
            continue
    return context.now


def _body(event: Element) -> str:
    """What an event says, without what changes while it stays the same: its status and when it was written."""
    parts: list[str] = []

    def walk(element: Element) -> None:
        if element.name not in ("eventStatus", "createdDateTime", "modificationDateTime", "currentValue"):
            parts.append(f"{element.name}={element.text.strip()}")
            for child in element.children:
                walk(child)
            parts.append(";")

    walk(event)
    return " ".join(parts)


def _active(event: Element, context: Context, notes: Notes) -> _Active:
    properties = event.first("eiActivePeriod", "properties")
    if properties is None:
        raise Refused("missing_field", "eiActivePeriod: missing: an event must say when it is")
    start = properties.word("dtstart", "date-time")
    if start is None:
        raise Refused("missing_field", "eiActivePeriod.dtstart: missing: an event must say when it begins")
    now = means_now(start)
    at = None if now else parse_time(start, "eiActivePeriod.dtstart", context.terms.site.zone, notes)
    length = properties.word("duration", "duration")
    after = properties.word("tolerance", "tolerate", "startafter")
    duration = Duration() if length is None else _duration(length, "eiActivePeriod.duration", notes)
    if length is None:
        notes.add("eiActivePeriod.duration: missing: read as 0, which has no end")
    late = timedelta() if after is None else _late(_duration(after, "startafter", notes), context, notes)
    return _Active(
        Period(at + late if at is not None else None, now, duration),
        late,
        _seconds(properties.word("x-eiRampUp", "duration"), "x-eiRampUp", notes),
        _seconds(properties.word("x-eiRecovery", "duration"), "x-eiRecovery", notes),
    )


def _late(window: Duration, context: Context, notes: Notes) -> timedelta:
    """2.0b's randomisation: the start lies at random within the window after dtstart."""
    draw_s = context.draw_s
    if window.endless or window.months or not window.rest:
        return timedelta()
    if draw_s is None and context.drawn is not None:
        notes.add(f"the start was drawn at random within {window.rest.total_seconds():g} s after dtstart")
        return window.rest * (1 + context.drawn) / 2
    if draw_s is None:
        most = f"{window.rest.total_seconds():g} s"
        notes.add(f"the start is drawn at random within {most} after dtstart, once an event; shown without the draw")
        return timedelta()
    drawn = max(timedelta(), min(window.rest, timedelta(seconds=draw_s)))
    if drawn.total_seconds() != draw_s:
        notes.add(f"draw {draw_s:g} s is outside 0 to {window.rest.total_seconds():g} s; used {drawn.total_seconds():g} s")
    return drawn


def _duration(text: str, where: str, notes: Notes) -> Duration:
    """A duration; "P" is how a VTN of openleadr writes none, and a limit without end must not be lost to that."""
    if text in ("P", "PT"):
        notes.add(f"{where}: {text} names no length; read as 0")
        return Duration()
    return parse_duration(text, where, notes)


def _seconds(text: str | None, where: str, notes: Notes) -> float | None:
    if text is None:
        return None
    duration = _duration(text, where, notes)
    return None if duration.endless or duration.months else duration.rest.total_seconds()


# --- signals --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a signal's numbers are: its name and type, and what one means in W or in what unit, where it says."""

    name: str
    type: str
    scale: float | None
    unit: str | None
    per_kwh: bool = False


def _kind(signal: Element) -> _Kind:
    name, kind = signal.word("signalName"), signal.word("signalType")
    if name is None or kind is None:
        raise Refused("missing_field", "eiEventSignal: signalName and signalType must be given")
    base = next((child for child in signal.children if child.word("itemUnits") is not None), None)
    if base is None:
        return _Kind(name, kind, None, None)
    code = base.word("siScaleCode") or "none"
    if code not in _SCALES:
        raise Refused("bad_units", f"siScaleCode: {shown(code)}: must be one of {', '.join(_SCALES)}")
    return _Kind(name, kind, _SCALES[code], base.word("itemUnits"), base.name.lower().endswith("perkwh"))


def _signal(
    signal: Element, active: _Active, life: Slot, context: Context, received: datetime, notes: Notes
) -> tuple[list[Segment], list[Signal]]:
    kind = _kind(signal)
    intervals = list(signal.all("intervals", "interval"))
    if not intervals:
        raise Refused("missing_field", f"{kind.name}.intervals: missing: a signal must have an interval")
    if len(intervals) > MAX_STEPS:
        raise Refused("too_large", f"{kind.name}.intervals: {len(intervals)}: at most {MAX_STEPS}")
    zone = context.terms.site.zone
    periods = []
    for index, interval in enumerate(intervals):
        where = f"{kind.name}.intervals[{index}]"
        start, length = interval.word("dtstart", "date-time"), interval.word("duration", "duration")
        at = None if start is None or means_now(start) else parse_time(start, f"{where}.dtstart", zone, notes)
        at = at + active.late if at is not None else None
        periods.append(Period(at, False, _duration(length, f"{where}.duration", notes) if length else None))
    fallback = active.period.duration if len(periods) == 1 else None
    if fallback is None and any(period.duration is None for period in periods):
        raise Refused("missing_field", f"{kind.name}.intervals: each of several intervals must say its duration")
    slots = schedule(
        Period(active.period.start, active.period.now, fallback),
        periods,
        received=received,
        draw_s=None,
        zero_is_open=[True] * len(periods),
        notes=notes,
    )
    segments: list[Segment] = []
    signals: list[Signal] = []
    for slot in slots:
        where = f"{kind.name}.intervals[{slot.index}]"
        end = life.end if slot.end is None or (life.end is not None and slot.end > life.end) else slot.end
        if end is not None and end <= slot.start:
            continue
        value = _value(intervals[slot.index], where)
        name = intervals[slot.index].word("uid", "text")
        interval_id: int | str = int(name) if name is not None and _WHOLE.fullmatch(name) else name or slot.index
        for cap in _caps(kind, value, where, context.terms, notes):
            segments.append(Segment(slot.start, end, cap.limit_w, interval_id, active.ramp_s, cap.reason))
        told = _as_signal(kind, value)
        if told is not None:
            signals.append(Signal(told[0], slot.start, end, told[1], told[2]))
    return segments, signals


def _value(interval: Element, where: str) -> float:
    payload = interval.first("signalPayload") or Element("signalPayload")
    text = next((word for child in payload.children if (word := child.word("value")) is not None), payload.word("value"))
    if text is None or not _DECIMAL.fullmatch(text):
        raise Refused("bad_value", f"{where}.signalPayload: {shown(text)}: must be a number")
    value = float(text)
    if abs(value) > 1e12:
        raise Refused("bad_value", f"{where}.signalPayload: {shown(text)}: must be a finite number of at most 1e12")
    return value


def _caps(kind: _Kind, value: float, where: str, terms: Terms, notes: Notes) -> list[Cap]:
    name = kind.name.upper()
    if name == "SIMPLE":
        if kind.type != "level" or value not in (0, 1, 2, 3):
            raise Refused("bad_value", f"{where}: {kind.type} {value:g}: SIMPLE is a level from 0 to 3")
        return level_caps(int(value), f"SIMPLE={int(value)}", terms, notes)
    if name != "LOAD_DISPATCH":
        if name not in _PRICES:
            notes.add(f"{kind.name} {kind.type}: kept, nothing follows from it")
        return []
    text = f"{kind.name} {kind.type}={value:g}"
    if kind.type in ("setpoint", "delta"):
        scale = _scale(kind, terms, notes)
        if kind.type == "setpoint":
            return [Cap(power_w(value, scale, where), f"{text} x {scale:g} W")]
        return _delta(value * scale, text, terms, notes)
    if kind.type == "multiplier" or kind.type == "percent":
        share = value if kind.type == "multiplier" else 1 + value / 100
        if not 0 <= share <= 1000:
            raise Refused("bad_value", f"{where}: {text}: must leave a share of the baseline, 0 or more")
        return _share(share, text, terms, notes)
    notes.add(f"{text}: a level of control, not of load: kept, nothing follows from it")
    return []


def _scale(kind: _Kind, terms: Terms, notes: Notes) -> float:
    """W for one unit of the signal's power."""
    if kind.unit is not None:
        if kind.unit != "W":
            raise Refused(
                "bad_units", f"{kind.name}.itemUnits: {shown(kind.unit)}: must be W, the profile's unit of real power"
            )
        return kind.scale if kind.scale is not None else 1.0
    if terms.site.power_scale is None:
        notes.add(f"{kind.name} does not say its unit of power; read as kW, in which the site's terms are written")
        return 1e3
    notes.add(f"{kind.name} does not say its unit of power; read by the site's power_unit")
    return terms.site.power_scale


def _delta(change_w: float, text: str, terms: Terms, notes: Notes) -> list[Cap]:
    if change_w > 0:
        notes.add(f"{text} asks for more load, which limits nothing")
        return []
    reference = _baseline(text, terms, notes)
    if reference is None:
        return []
    return [Cap(less(reference, power_w(-change_w, 1.0, text), notes), f"{text}: {kw(tidy(-change_w))} below {kw(reference)}")]


def _share(share: float, text: str, terms: Terms, notes: Notes) -> list[Cap]:
    if share >= 1:
        if share > 1:
            notes.add(f"{text} asks for more load, which limits nothing")
        return []
    reference = _baseline(text, terms, notes)
    if reference is None:
        return []
    return [Cap(tidy(share * reference), f"{text}: of {kw(reference)}")]


def _baseline(text: str, terms: Terms, notes: Notes) -> float | None:
    reference = terms.reference(notes)
    if reference is None:
        notes.lack(f"{text}: its baseline is not known: give {REFERENCE}")
    return reference


def _as_signal(kind: _Kind, value: float) -> tuple[str, float, str | None] | None:
    name = kind.name.upper()
    if name == "SIMPLE":
        return "level", int(value), None
    if name in ("ELECTRICITY_PRICE", "ENERGY_PRICE") and kind.type == "price":
        if kind.per_kwh and kind.unit:
            return "price", tidy(value * (kind.scale or 1.0) * 1e3), f"{kind.unit}/MWh"
        return "price", value, kind.unit
    if name == "LOAD_DISPATCH" and kind.type in ("setpoint", "delta", "multiplier", "percent"):
        return None
    return f"{name.lower()}_{kind.type}", value, kind.unit


def _strictest(segments: list[Segment]) -> tuple[Segment, ...]:
    """In order of time; of two limits over the same time the lower one."""
    lowest: dict[tuple[datetime, datetime | None], Segment] = {}
    for segment in segments:
        key = (segment.start, segment.end)
        if key not in lowest or segment.limit_w < lowest[key].limit_w:
            lowest[key] = segment
    return tuple(sorted(lowest.values(), key=lambda s: s.start))
