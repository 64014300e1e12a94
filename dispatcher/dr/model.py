"""One model for demand-response events of every protocol: what is asked, from when to when, under which version.

It knows no wire format. Powers are W, times aware UTC, intervals half-open; an end of None means open: until it is released.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from dispatcher.api.strict_json import parse
from dispatcher.errors import BadInput
from policies import sentences

#: More than this is a slip of the unit, not a site.
MAX_W = 1e12
#: No event needs more steps than this; what would give more is cut, and says so.
MAX_STEPS = 5000

#: A version that orders: the time of modification (OpenADR 3) or a number. None: the sender gave none.
Version = datetime | int | None


class State(StrEnum):
    """What has become of a message."""

    SCHEDULED = "scheduled"  # begins later
    ACTIVE = "active"  # has begun, has not ended
    EXPIRED = "expired"  # has ended by itself
    CANCELLED = "cancelled"  # released by its sender
    IGNORED = "ignored"  # changes nothing: stale, a duplicate, about something else
    REJECTED = "rejected"  # wrong; nothing of it is used
    FETCH = "fetch"  # says only where to look
    PING = "ping"  # asks only whether somebody listens


class Refused(Exception):
    """A message that must not be acted on: a short ``code``, and a message with field, value and remedy."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


def json_of(body: bytes) -> Any:
    """The JSON in a message. Raises Refused for what is none, or says a thing twice."""
    try:
        return parse(body)
    except BadInput as error:
        raise Refused("bad_json", str(error)) from None


@dataclass(frozen=True, slots=True)
class Segment:
    """A limit over time. ``effective_from`` is later than ``start`` where a running limit was changed on the way.
    ``emergency``: its sender says that the grid is in danger."""

    start: datetime
    end: datetime | None
    limit_w: float
    interval_id: int | str | None = None
    ramp_s: float | None = None
    reason: str = ""
    effective_from: datetime | None = None
    emergency: bool = False

    def covers(self, at: datetime) -> bool:
        """Whether it limits anything at that moment."""
        return self.start <= at and (self.end is None or at < self.end)


@dataclass(frozen=True, slots=True)
class Signal:
    """A value over time that limits nothing by itself: a price, an intensity, a level, an alert."""

    kind: str
    start: datetime
    end: datetime | None
    value: object
    unit: str | None


@dataclass(frozen=True, slots=True)
class ReportDue:
    """A report the sender wants. ``at`` is None where we may choose the time. ``windows`` are the spans of its intervals, in
    their order; an end of None is open."""

    at: datetime | None
    payload_type: str
    interval_ids: tuple[int | str, ...]
    reading_type: str | None = None
    units: str | None = None
    aggregate: bool = False
    windows: tuple[tuple[datetime, datetime | None], ...] = ()


@dataclass(frozen=True, slots=True)
class DrEvent:
    """One version of an event as its sender means it: the whole schedule, whatever the time is.

    ``rank`` orders events by priority across protocols, lowest first; None comes last. ``start`` and ``end`` span its life.
    ``final``: no other version may follow. ``counted``: without a version, what differs is the next one. ``polled``: it was
    read from its sender, so it is the truth, not one message of many. ``body`` is what it said, to tell a repetition from a
    different text under the same version. ``lacking``: what it asks for needs a term that the site has not given.
    ``load_w`` and ``drawn`` are what it was read with: the load when it was first heard of, W, and the random draw, -1 to 1.
    """

    source: str | None
    event_id: str
    version: Version
    received_at: datetime
    priority: int | None = None
    rank: int | None = None
    start: datetime | None = None
    end: datetime | None = None
    segments: tuple[Segment, ...] = ()
    signals: tuple[Signal, ...] = ()
    reports_due: tuple[ReportDue, ...] = ()
    targets: tuple[str, ...] = ()
    test: bool = False
    cancelled: bool = False
    completed: bool = False
    final: bool = False
    polled: bool = False
    counted: bool = False
    recovery_s: float | None = None
    lacking: str | None = None
    body: str = ""
    warnings: tuple[str, ...] = ()
    load_w: float | None = None
    drawn: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """How one message is understood now."""

    state: State
    event_id: str | None = None
    source: str | None = None
    version: Version = None
    priority: int | None = None
    segments: tuple[Segment, ...] = ()
    signals: tuple[Signal, ...] = ()
    reports_due: tuple[ReportDue, ...] = ()
    targets: tuple[str, ...] = ()
    test: bool = False
    recovery_s: float | None = None
    notice_s: float | None = None
    warnings: tuple[str, ...] = ()
    code: str | None = None
    message: str | None = None

    def warned(self, *texts: str) -> "Answer":
        """The same with more warnings, each once."""
        return replace(self, warnings=tuple(dict.fromkeys((*self.warnings, *texts))))


def refusal(error: Refused, event_id: str | None = None, source: str | None = None, version: Version = None) -> Answer:
    """The answer to a message that is refused. It never holds a limit."""
    return Answer(State.REJECTED, event_id, source, version, code=error.code, message=error.message)


@dataclass(frozen=True, slots=True)
class Message:
    """What one file held: events and answers that need no more, in its order; ``listing``: it was a list."""

    items: tuple[DrEvent | Answer, ...]
    listing: bool = False
    #: Events held but not in here are over (OpenADR 2.0b), or must be asked about (OpenADR 3).
    complete: bool = False
    warnings: tuple[str, ...] = ()
    #: Proved identity of the message, for replays.
    message_id: str | None = None


@dataclass
class Notes:
    """Collects warnings while a message is read, each once."""

    texts: dict[str, None] = field(default_factory=dict)
    #: Why no limit follows from a message that is right: a term that the site has not given.
    lacking: str | None = None

    def add(self, text: str) -> None:
        """Note it."""
        self.texts.setdefault(text)

    def lack(self, text: str) -> None:
        """Note that something is asked for and cannot be computed."""
        self.lacking = self.lacking or text

    def all(self) -> tuple[str, ...]:
        """What was noted, in order."""
        return tuple(self.texts)


def power_w(value: object, scale: float, where: str) -> float:
    """A limit in W from a number times ``scale``. Raises Refused for what is no power: text, NaN, negative, beyond 1 TW."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refused("bad_value", f"{where}: {shown(value)}: must be a number")
    if not 0 <= value <= MAX_W / scale:
        raise Refused("bad_value", f"{where}: {shown(value)}: must be a power from 0 to {MAX_W / scale:g}")
    return tidy(value * scale)


def number(value: object, where: str) -> float:
    """A finite number. Raises Refused."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_W:
        raise Refused("bad_value", f"{where}: {shown(value)}: must be a finite number of at most {MAX_W:g}")
    return value


def tidy(value: float) -> float:
    """Without the dust that a change of unit leaves on a float."""
    return round(value, 6)


def shown(value: object) -> str:
    """A value in a message, never long."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def kw(watts: float) -> str:
    """A power that somebody stated, for people: as exact as it was."""
    return sentences.kw(watts, exact=True)


def iso(at: datetime | None) -> str | None:
    """ISO 8601 in UTC with Z, or None."""
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def span(start: datetime, seconds: float) -> datetime:
    """So many seconds later, never beyond what a calendar holds."""
    try:
        return start + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if seconds > 0 else datetime.min.replace(tzinfo=UTC)


def version_json(version: Version) -> str | int | None:
    """A version as JSON: a time as text, a number as it is."""
    return iso(version) if isinstance(version, datetime) else version


def answer_json(answer: Answer) -> dict[str, Any]:
    """The object that ``gridshift events explain --json`` prints."""
    return {
        "event_id": answer.event_id,
        "source": answer.source,
        "version": version_json(answer.version),
        "priority": answer.priority,
        "state": str(answer.state),
        "segments": [_segment_json(segment) for segment in answer.segments],
        "signals": [
            {"kind": s.kind, "start": iso(s.start), "end": iso(s.end), "value": s.value, "unit": s.unit} for s in answer.signals
        ],
        "reports_due": [
            {"at": iso(r.at), "payloadType": r.payload_type, "interval_ids": list(r.interval_ids)} for r in answer.reports_due
        ],
        "warnings": list(answer.warnings),
        "error": None if answer.code is None else {"code": answer.code, "message": answer.message},
    }


def _segment_json(segment: Segment) -> dict[str, Any]:
    out: dict[str, Any] = {
        "start": iso(segment.start),
        "end": iso(segment.end),
        "limit_w": segment.limit_w,
        "interval_id": segment.interval_id,
        "ramp_s": segment.ramp_s,
        "reason": segment.reason,
    }
    if segment.effective_from is not None:
        out["effective_from"] = iso(segment.effective_from)
    if segment.emergency:
        out["emergency"] = True
    return out


Json = Mapping[str, Any]
