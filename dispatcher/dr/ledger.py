"""What is held of each event, and what one more version changes: the newest wins, what is cancelled stays so.

It knows no wire format and no site. ``received_at`` of each version says when it came.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from dispatcher.dr.model import Answer, DrEvent, Segment, State, Version, iso, kw, version_json

#: Events by id, each as it is held.
Ledger = Mapping[str, DrEvent]


def order(one: Version, other: Version) -> int | None:
    """-1, 0 or 1 as ``one`` is older than, as old as or newer than ``other``; None where that cannot be told."""
    if isinstance(one, datetime) and isinstance(other, datetime):
        return (one > other) - (one < other)
    if isinstance(one, int) and isinstance(other, int):
        return (one > other) - (one < other)
    return None


def receive(held: Ledger, event: DrEvent, now: datetime, *, listed: bool = False) -> tuple[Ledger, Answer]:
    """What is held after one more version came, and how that version is understood at ``now``. ``listed``: it came in a list of
    all there is, in which what is held already is nothing to remark on."""
    old = held.get(event.event_id)
    if old is None:
        first = replace(event, version=1) if event.counted and event.version is None else event
        taken = joined(first, None)
        return {**held, event.event_id: taken}, _told(taken, first, now)
    ignored = _why_ignored(event, old)
    if ignored is not None:
        answer = view(old, now)
        conflict = ignored == "conflict"
        if listed and event.polled and order(event.version, old.version) == 0 and not conflict and not old.final:
            return held, answer  # a listing repeats what is in force
        text = _CONFLICT.format(version_json(old.version)) if conflict else ignored
        answer = replace(answer, state=State.IGNORED, warnings=tuple(dict.fromkeys((*event.warnings, text))))
        return held, replace(answer, code="version_conflict", message=text) if conflict else answer
    if event.version is None and isinstance(old.version, int):
        event = replace(event, version=old.version + 1)
    elif event.version is None and event.cancelled:
        event = replace(event, version=old.version)
    taken = joined(event, old)
    return {**held, event.event_id: taken}, _told(taken, event, now)


_CONFLICT = "version {} is held already and says something else: what is held stays; read the event again from its sender"


def stale(version: Version, held: Version) -> str:
    """What to say of an old version."""
    return f"stale: version {version_json(version)} is older than {version_json(held)}, which is held; read the event again"


def _why_ignored(event: DrEvent, old: DrEvent) -> str | None:
    """Why a version changes nothing; None when it does."""
    came = order(event.version, old.version)
    if old.final:
        if event.final:
            return "a duplicate: it was cancelled already"
        if not (event.polled and came == 1):
            return "it was cancelled for good: only its sender's own listing could bring it back"
        return None
    if event.final:
        return None
    if came == -1:
        return stale(event.version, old.version)
    if came == 0 or (came is None and event.version is None):
        if event.body == old.body:
            return f"a duplicate of version {version_json(old.version)}, which is held"
        if came == 0:
            return "conflict"
    return None


def joined(event: DrEvent, old: DrEvent | None) -> DrEvent:
    """An event as it is in force from its receipt on, after what was in force before it."""
    if event.cancelled:
        return replace(event, segments=(), signals=(), reports_due=())
    at = event.received_at
    running = [s for s in old.segments if s.covers(at)] if old is not None and not old.cancelled else []
    before = min(running, key=lambda s: s.limit_w) if running else None
    segments = [_joined(s, before, at) for s in event.segments if s.end is None or s.end > at]
    return replace(event, segments=tuple(segments))


def _joined(segment: Segment, before: Segment | None, at: datetime) -> Segment:
    if segment.start >= at:
        return segment
    if before is None:
        return replace(segment, start=at)
    start = max(segment.start, before.start)
    if segment.limit_w == before.limit_w:
        return replace(segment, start=start, effective_from=before.effective_from)
    reason = f"{segment.reason}; {kw(before.limit_w)} until {iso(at)}"
    return replace(segment, start=start, effective_from=at, reason=reason)


def view(event: DrEvent, now: datetime) -> Answer:
    """How an event that is held stands at ``now``: what is over is left out."""
    answer = Answer(
        _state(event, now),
        event.event_id,
        event.source,
        event.version,
        event.priority,
        tuple(s for s in event.segments if s.end is None or s.end > now),
        tuple(s for s in event.signals if s.end is None or s.end > now),
        event.reports_due,
        event.targets,
        event.test,
        event.recovery_s,
        (event.start - event.received_at).total_seconds() if event.start is not None else None,
        event.warnings,
    )
    if answer.state in (State.CANCELLED, State.EXPIRED):
        return replace(answer, segments=(), signals=())
    notes = []
    if any(s.end is None for s in answer.segments):
        notes.append("without end: it holds until it is released; somebody should be told when it holds for long")
    if event.test:
        notes.append("a test: recorded, not enforced")
    if event.recovery_s and answer.segments:
        notes.append(f"recovery: load may come back over {event.recovery_s:g} s after the end")
    if event.lacking is not None:
        answer = replace(answer, code="no_reference", message=event.lacking)
    return answer.warned(*notes)


def _state(event: DrEvent, now: datetime) -> State:
    if event.cancelled:
        return State.CANCELLED
    if event.completed or (event.end is not None and event.end <= now):
        return State.EXPIRED
    return State.SCHEDULED if event.start is not None and now < event.start else State.ACTIVE


def _told(taken: DrEvent, event: DrEvent, now: datetime) -> Answer:
    answer = view(taken, now)
    if answer.state is State.CANCELLED:
        return answer.warned("cancelled: load comes back by the recovery ramp, not in one step")
    if answer.state is State.EXPIRED:
        return answer.warned("came after its end: recorded as late, nothing follows from it")
    late = event.start is not None and event.start < event.received_at and not any(s.effective_from for s in taken.segments)
    if late and event.start is not None and any(s.start == event.received_at for s in taken.segments):
        answer = answer.warned(f"came {(event.received_at - event.start).total_seconds():g} s after its start: joined midway")
    changed = next((s for s in taken.segments if s.effective_from == event.received_at), None)
    if changed is not None:
        answer = answer.warned("changed on the way: what was in force before stays the obligation up to the change")
    return answer
