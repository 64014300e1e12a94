"""What a VEN concludes from two versions of an event, from silence and from a 404: pure.

It knows no transport and no store.
"""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta

from dispatcher.dr.ledger import Ledger
from dispatcher.dr.model import DrEvent, Segment


def lifts(held: DrEvent | None, new: DrEvent, now: datetime) -> bool:
    """Whether a new version allows more at any moment from now on than the one that is held."""
    if held is None or held.cancelled:
        return False
    if new.cancelled or new.completed:
        return any(s.end is None or s.end > now for s in held.segments)
    edges = {now, *(max(now, s.start) for s in (*held.segments, *new.segments))}
    edges |= {s.end for s in (*held.segments, *new.segments) if s.end is not None and s.end > now}
    for at in edges:
        before, after = _limit(held.segments, at), _limit(new.segments, at)
        if before is not None and (after is None or after > before):
            return True
    return False


def _limit(segments: Sequence[Segment], at: datetime) -> float | None:
    return min((s.limit_w for s in segments if s.covers(at)), default=None)


def subscription_w(held: Ledger, now: datetime) -> float | None:
    """The subscribed capacity that is known: that of now, else the latest before; the lowest where several are."""
    kind = "import_capacity_subscription"
    known = [
        signal
        for event in held.values()
        if not event.cancelled
        for signal in event.signals
        if signal.kind == kind and signal.unit == "W" and isinstance(signal.value, int | float) and signal.start <= now
    ]
    current = [s for s in known if s.end is None or s.end > now]
    latest = max((s.start for s in known), default=None)
    chosen = current or [s for s in known if s.start == latest]
    return min((float(s.value) for s in chosen if isinstance(s.value, int | float)), default=None)


def released(event: DrEvent, now: datetime) -> DrEvent:
    """The end of an event whose id its VTN does not know any more. A trifle older than what is held: should the VTN list the
    same version again, that is taken again."""
    version = event.version - timedelta(microseconds=1) if isinstance(event.version, datetime) else event.version
    body = json.dumps({"id": event.event_id, "status": 404})
    return DrEvent(
        event.source,
        event.event_id,
        version,
        now,
        cancelled=True,
        final=True,
        polled=True,
        recovery_s=event.recovery_s,
        body=body,
        warnings=("its VTN was asked for it by its id and has it no more",),
    )
