"""How long signals are kept and how finely: pure decisions on points; it knows no database and asks no clock.

Young points are kept with every revision. Older ones keep only the value in force, still older ones only hourly means, and at
last they are dropped. Nothing is invented on the way: a mean covers exactly the time that its parts covered.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise

from signals.points import SignalError, SignalPoint, require_utc, standing

HOUR = timedelta(hours=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: From the best to the worst.
_WORSE = {quality: place for place, quality in enumerate(("measured", "estimated", "imputed", "forecast", "held", "suspect"))}


@dataclass(frozen=True, slots=True)
class Cutoffs:
    """Whole hours of UTC. Points that end at or before ``revisions_before`` keep only the value in force, those at or before
    ``fine_before`` only hourly means, those at or before ``drop_before`` go."""

    revisions_before: datetime
    fine_before: datetime
    drop_before: datetime


@dataclass(frozen=True, slots=True)
class Retention:
    """Ages in days, counted from a point's end: every revision for ``full_days``, the source's own resolution for
    ``fine_days``, anything at all for ``keep_days``. Raises SignalError unless each is at least as long as the one before."""

    full_days: float = 90
    fine_days: float = 400
    keep_days: float = 1200

    def __post_init__(self) -> None:
        if not 0 < self.full_days < float("inf"):
            raise SignalError(f"full_days: {self.full_days!r} must be a positive number of days")
        for name, floor_name in (("fine_days", "full_days"), ("keep_days", "fine_days")):
            value, floor = getattr(self, name), getattr(self, floor_name)
            if not floor <= value < float("inf"):
                raise SignalError(f"{name}: {value!r} must be at least {floor_name}, which is {floor!r}")

    def cutoffs(self, now: datetime) -> Cutoffs:
        """Where the ages fall at ``now``, rounded back to whole hours so that no hour is thinned in two halves."""
        now = require_utc("now", now)
        return Cutoffs(*(hour_of(now - timedelta(days=days)) for days in (self.full_days, self.fine_days, self.keep_days)))


#: What is kept unless somebody says otherwise.
KEEP = Retention()


@dataclass(frozen=True, slots=True)
class Thinned:
    """What one run did: rows ``dropped`` as history of what is in force, rows ``merged`` into means, rows ``pruned`` as too
    old. ``finished`` is False when it stopped at its limit of transactions and the rest is left for the next run."""

    dropped: int = 0
    merged: int = 0
    pruned: int = 0
    finished: bool = True


def hour_of(when: datetime) -> datetime:
    """The start of the hour of UTC that ``when`` lies in."""
    return when - (when - _EPOCH) % HOUR


def is_part(point: SignalPoint) -> bool:
    """Whether a point is shorter than an hour and lies within one: such points are merged, others are left as they are."""
    return point.end - point.start < HOUR and point.end <= hour_of(point.start) + HOUR


def hourly(points: Iterable[SignalPoint]) -> list[SignalPoint]:
    """The points of one series (one source, region, kind, variant), in force, with the parts of each hour merged; by start.

    Each stretch of an hour that is covered without a break, in one unit, becomes one point with the time-weighted mean. It has
    the worst quality of its parts, and counts as retrieved (and issued) when the last of them was, so that no reading sees it
    before all it is made of was known. Where parts overlap the shorter one counts, then an actual, then the newer; a point
    for the whole hour that is there already stays where it is the better one. Applied to its own result it changes nothing.
    """
    result: dict[tuple[datetime, datetime], SignalPoint] = {}
    hours: dict[datetime, list[SignalPoint]] = defaultdict(list)
    for point in points:
        if is_part(point):
            hours[hour_of(point.start)].append(point)
        else:
            result[point.start, point.end] = point
    for parts in hours.values():
        for mean in map(_mean, _stretches(_segments(parts))):
            there = result.get((mean.start, mean.end))
            if there is None or _worth(mean) > _worth(there):
                result[mean.start, mean.end] = mean
    return [result[interval] for interval in sorted(result)]


def _worth(point: SignalPoint) -> tuple[timedelta, int, datetime, datetime, datetime]:
    issued_at = point.issued_at or point.retrieved_at
    return (point.start - point.end, standing(point.quality), issued_at, point.retrieved_at, point.start)


def _segments(parts: Sequence[SignalPoint]) -> list[SignalPoint]:
    """``parts`` cut so that they do not overlap, by start; neighbours cut from one part stay one."""
    edges = sorted({edge for part in parts for edge in (part.start, part.end)})
    found: list[SignalPoint] = []
    for start, end in pairwise(edges):
        there = [part for part in parts if part.start <= start and part.end >= end]
        if there:
            found.append(replace(max(there, key=_worth), start=start, end=end))
    return found


def _stretches(segments: Sequence[SignalPoint]) -> list[list[SignalPoint]]:
    """Runs of segments that meet end to start and have one unit."""
    breaks = [0]
    for before, after in pairwise(segments):
        breaks.append(breaks[-1] + (before.end != after.start or before.unit != after.unit))
    return [[segment for segment, _ in run] for _, run in groupby(zip(segments, breaks, strict=True), key=lambda one: one[1])]


def _mean(stretch: Sequence[SignalPoint]) -> SignalPoint:
    first, last = stretch[0], stretch[-1]
    if all(part.value == first.value for part in stretch):
        value = first.value  # exactly, without rounding
    else:
        total_s = (last.end - first.start).total_seconds()
        value = sum(part.value * ((part.end - part.start).total_seconds() / total_s) for part in stretch)
    return replace(
        first,
        end=last.end,
        value=value,
        quality=max((part.quality for part in stretch), key=lambda quality: _WORSE[quality]),
        issued_at=max((part.issued_at for part in stretch if part.issued_at is not None), default=None),
        retrieved_at=max(part.retrieved_at for part in stretch),
    )
