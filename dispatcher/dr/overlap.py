"""Several events at once: which limit binds, and when.

The standards leave it open what wins. The strictest limit does, unless a site has agreed that the highest priority does.
"""

import heapq
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from dispatcher.dr.model import DrEvent, Segment, iso

_LAST = 1 << 62  # an event without priority comes after all that have one

Binding = tuple[datetime, datetime | None, float]


def binding(events: Iterable[DrEvent], now: datetime, *, by_priority: bool = False) -> list[Binding]:
    """(start, end, limit_w) wherever some event limits the load from ``now`` on, in order of time; None: open.

    With ``by_priority`` only the events of the highest priority count at each moment, of those the strictest. Events that are
    cancelled, over or tests limit nothing.
    """
    waiting = sorted(
        (_begin(segment), number, _key(event, segment, by_priority), segment)
        for number, (event, segment) in enumerate(
            (event, segment)
            for event in events
            if not (event.cancelled or event.completed or event.test)
            for segment in event.segments
            if segment.end is None or segment.end > now
        )
    )
    edges = sorted({at for begin, _, _, s in waiting for at in (begin, s.end) if at is not None})
    open_: list[tuple[tuple[float, ...], int, Segment]] = []  # a heap: what binds is first, what is over is taken out late
    out: list[Binding] = []
    position = 0
    for index, start in enumerate(edges):
        end = edges[index + 1] if index + 1 < len(edges) else None
        while position < len(waiting) and waiting[position][0] <= start:
            _, number, key, segment = waiting[position]
            heapq.heappush(open_, (key, number, segment))
            position += 1
        while open_ and (until := open_[0][2].end) is not None and until <= start:
            heapq.heappop(open_)
        if not open_:
            continue
        limit_w = open_[0][2].limit_w
        if out and out[-1][1] == start and out[-1][2] == limit_w:
            out[-1] = (out[-1][0], end, limit_w)
        else:
            out.append((start, end, limit_w))
    return out


def _key(event: DrEvent, segment: Segment, by_priority: bool) -> tuple[float, ...]:
    """Orders limits: the one that binds first."""
    rank = _LAST if event.rank is None else event.rank
    return (rank, segment.limit_w) if by_priority else (segment.limit_w,)


def _begin(segment: Segment) -> datetime:
    return segment.effective_from or segment.start


def binding_json(found: Sequence[Binding]) -> list[dict[str, Any]]:
    """As ``gridshift events explain --json`` prints it."""
    return [{"start": iso(start), "end": iso(end), "limit_w": limit_w} for start, end, limit_w in found]
