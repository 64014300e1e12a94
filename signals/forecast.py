"""Signals laid on a planner's slots: published values first, then our forecast, then the same time of the latest known day,
then what is doubted, then unknown.

Pure; it knows no feeds, stores or time zones. Days are 24 hours of UTC, so no clock change can shift or double an hour.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from signals.points import Quality, SignalError, SignalPoint, require_utc
from signals.series import SlotForecast, SlotSeries

PUBLISHED, REPEAT_DAY, SUSPECT, UNKNOWN = "published", "repeat-day", "suspect", "unknown"
#: How many days back a repeated value may be taken from; readers fetch points from this long before the first slot.
REPEAT_DAYS = 7
HISTORY = timedelta(days=REPEAT_DAYS)
#: A slot's value needs at least this share of the slot to be covered by points.
MIN_COVER = 0.5

_DAY_S = 86400.0


def usable(points: Iterable[SignalPoint], now: datetime, variant: str | None = None) -> list[SignalPoint]:
    """Of the points known at ``now`` those of one series: of ``variant``, without one of that retrieved last; of those the ones
    in the unit retrieved last, for a source that changes its currency begins a new series."""
    known = [p for p in points if p.retrieved_at <= now and (p.issued_at is None or p.issued_at <= now)]
    if variant is None:
        variant = max(known, key=lambda p: (p.retrieved_at, p.variant)).variant if known else ""
    known = [p for p in known if p.variant == variant]
    unit = max(known, key=lambda p: (p.retrieved_at, p.end, p.unit)).unit if known else ""
    return [p for p in known if p.unit == unit]


def slot_series(
    points: Iterable[SignalPoint],
    *,
    now: datetime,
    start: datetime,
    slot_s: int,
    slots: int,
    source: str | None = None,
    variant: str | None = None,
    unit: str = "",
    beyond: SlotForecast | None = None,
) -> SlotSeries:
    """``points`` of one region and kind resampled, time-weighted, to ``slots`` slots of ``slot_s`` seconds from ``start``.

    Nothing retrieved or issued after ``now`` is used. Where points overlap, the finer one wins, then an actual over a
    forecast, then the newer. A slot that is partly covered has the mean of the covered part when that is at least half of
    it. A slot without a value has that of ``beyond``, a forecast on the same slots; without one it repeats the latest earlier
    day (at most REPEAT_DAYS back) that has a value at the same time. Points that are doubted come after all that.

    ``source`` restricts to one source (all by default, and the series' source then names those that were used). Variants are
    different signals: without ``variant`` the one retrieved last is used; so are units (currencies), of which only the one
    retrieved last is used. ``unit`` is the series' unit when there are no points. Raises SignalError when points of different
    regions or kinds meet or are in another unit than that, or times are naive.
    """
    now, start = require_utc("now", now), require_utc("start", start)
    if slot_s <= 0 or slots < 0:
        raise SignalError(f"slots: {slots} of {slot_s} s; need a positive length and a count that is not negative")
    given = [p for p in points if source is None or p.source == source]
    known = usable(given, now, variant)
    used_unit = known[0].unit if known else unit
    for name, found in (
        ("region", sorted({p.region for p in given})),
        ("kind", sorted({str(p.kind) for p in given})),
        ("unit", sorted({used_unit, unit or used_unit})),
    ):
        if len(found) > 1:
            raise SignalError(f"{name}: {' and '.join(found)} cannot be in one series; choose one")
    used_variant = known[0].variant if known else variant or ""

    origin = start.timestamp()
    segments = _segments([p for p in known if p.quality is not Quality.SUSPECT], origin)
    doubted = _segments([p for p in known if p.quality is Quality.SUSPECT], origin)
    values: list[float | None] = []
    basis: list[str] = []
    low: list[float | None] = [None] * slots
    high: list[float | None] = [None] * slots
    made = beyond if beyond is not None and beyond.slot_s == slot_s else None
    for index in range(slots):
        at = float(index * slot_s)
        value, label = segments.mean(at, at + slot_s), PUBLISHED
        if value is None and made is not None and (told := made.at(start + timedelta(seconds=at))) is not None:
            (value, low[index], high[index]), label = told, made.basis
        day = 0
        while value is None and day < REPEAT_DAYS:
            day += 1
            value, label = segments.mean(at - day * _DAY_S, at - day * _DAY_S + slot_s), REPEAT_DAY
        if value is None:
            value, label = doubted.mean(at, at + slot_s), SUSPECT
        values.append(value)
        basis.append(label if value is not None else UNKNOWN)
    used_source = source or "+".join(sorted({p.source for p in known}))
    if made is None or not any(label == made.basis for label in basis):
        return SlotSeries(start, slot_s, tuple(values), tuple(basis), used_unit, used_source, variant=used_variant)
    bands = tuple(low), tuple(high)
    return SlotSeries(start, slot_s, tuple(values), tuple(basis), used_unit, used_source, *bands, made.reason, used_variant)


class _Steps:
    """A function of time with one value on each of some disjoint intervals; seconds from an origin."""

    def __init__(self, starts: Sequence[float], ends: Sequence[float], values: Sequence[float]) -> None:
        self._starts, self._ends, self._values = starts, ends, values

    def mean(self, start: float, end: float) -> float | None:
        """Time-weighted mean over the covered part of ``[start, end)``, or None when too little of it is covered."""
        index = max(bisect_right(self._starts, start) - 1, 0)
        parts: list[tuple[float, float]] = []
        while index < len(self._starts) and self._starts[index] < end:
            length = min(end, self._ends[index]) - max(start, self._starts[index])
            if length > 0:
                parts.append((self._values[index], length))
            index += 1
        covered = sum(length for _, length in parts)
        if covered < MIN_COVER * (end - start) or not parts:
            return None
        if all(value == parts[0][0] for value, _ in parts):
            return parts[0][0]  # exactly, without rounding
        return sum(value * (length / covered) for value, length in parts)


def _segments(points: Sequence[SignalPoint], origin: float) -> _Steps:
    """The points' values over time, at each moment that of the best point there: sweep the edges with a heap of live ones."""
    ranked = sorted(points, key=_worth, reverse=True)
    spans = [(p.start.timestamp() - origin, p.end.timestamp() - origin) for p in ranked]
    by_start = sorted(range(len(ranked)), key=lambda rank: spans[rank][0])
    edges = sorted({edge for span in spans for edge in span})
    starts: list[float] = []
    ends: list[float] = []
    values: list[float] = []
    live: list[int] = []  # ranks, best first
    arriving = 0
    for left, right in pairwise(edges):
        while arriving < len(by_start) and spans[by_start[arriving]][0] <= left:
            heapq.heappush(live, by_start[arriving])
            arriving += 1
        while live and spans[live[0]][1] <= left:
            heapq.heappop(live)
        if live:
            starts.append(left)
            ends.append(right)
            values.append(ranked[live[0]].value)
    return _Steps(starts, ends, values)


def _worth(point: SignalPoint) -> tuple[timedelta, bool, datetime, datetime]:
    return (
        point.start - point.end,  # shorter is larger
        point.quality is not Quality.FORECAST,
        point.issued_at or point.retrieved_at,
        point.retrieved_at,
    )
