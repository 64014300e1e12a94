"""What a site owed at each moment, from the versions of an event as they were received.

A modification changes nothing before its receipt: until then the old obligation holds. It knows no meter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise

import numpy as np

from dispatcher.errors import BadInput
from dispatcher.verification.series import MeteredSeries, aware, resampled


@dataclass(frozen=True)
class Segment:
    """One stretch of an event: draw at most ``limit_w``, or ``committed_w`` less than the baseline, or both, from ``start`` on.

    ``end`` None: until cancelled. ``ramp_s``: time allowed for getting there; the limit is judged after it. Raises BadInput
    for naive times, an end that is not after the start, neither limit nor commitment, and numbers below 0.
    """

    start: datetime
    end: datetime | None
    limit_w: float | None = None
    committed_w: float | None = None
    ramp_s: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", aware("start", self.start))
        if self.end is not None:
            object.__setattr__(self, "end", aware("end", self.end))
            if self.end <= self.start:
                raise BadInput([("end", self.end.isoformat(), f"must be after the start {self.start.isoformat()}")])
        if self.limit_w is None and self.committed_w is None:
            raise BadInput([("limit_w", None, "a limit or a commitment is needed")])
        for name in ("limit_w", "committed_w", "ramp_s"):
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value) and value >= 0):
                raise BadInput([(name, value, "must be at least 0")])


@dataclass(frozen=True)
class Version:
    """The event as it stood from ``received_at`` on; no segments: cancelled. ``name`` is the sender's, such as
    "modification 2"."""

    received_at: datetime
    segments: tuple[Segment, ...]
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "received_at", aware("received_at", self.received_at))
        ordered = tuple(sorted(self.segments, key=lambda one: one.start))
        for one, other in pairwise(ordered):
            if one.end is None or other.start < one.end:
                raise BadInput([("segments", other.start.isoformat(), "must not begin before the one before it ends")])
        object.__setattr__(self, "segments", ordered)


@dataclass(frozen=True)
class Held:
    """A stretch in which one obligation was in force: owed over ``[start, end)``, judged over ``[hold_at, end)``."""

    start: datetime
    hold_at: datetime
    end: datetime
    limit_w: float | None
    committed_w: float | None
    version: int

    @property
    def seconds(self) -> float:
        """How long it was owed."""
        return (self.end - self.start).total_seconds()

    @property
    def owes(self) -> tuple[float | None, float | None]:
        """Limit and commitment."""
        return self.limit_w, self.committed_w


def in_force(versions: Sequence[Version], until: datetime) -> tuple[Held, ...]:
    """The obligations in force, in order, none after ``until``.

    Each version counts from its receipt to that of the next; the first too, so that an event joined late owes nothing
    before. What stays the same over a modification keeps its ramp; a limit that is loosened needs none.
    """
    until = aware("until", until)
    ordered = sorted(versions, key=lambda one: one.received_at)
    made: list[Held] = []
    for i, version in enumerate(ordered):
        stop = min(until, ordered[i + 1].received_at) if i + 1 < len(ordered) else until
        for segment in version.segments:
            start, end = max(segment.start, version.received_at), min(stop, segment.end or stop)
            if end <= start:
                continue
            hold_at = start + timedelta(seconds=segment.ramp_s)
            before = made[-1] if made and made[-1].end == start else None
            if before is not None and _no_stricter(segment, before):
                hold_at = max(start, before.hold_at)
            one = Held(start, min(hold_at, end), end, segment.limit_w, segment.committed_w, i)
            if before is not None and before.owes == one.owes:
                made[-1] = Held(before.start, before.hold_at, end, *one.owes, before.version)
            else:
                made.append(one)
    return tuple(made)


def without(owed: Sequence[Held], spans: Sequence[tuple[datetime, datetime]]) -> tuple[Held, ...]:
    """``owed`` less ``spans`` in which the site had opted out. After each of them the ramp is allowed anew."""
    left = list(owed)
    for begin, stop in spans:
        parts: list[Held] = []
        for one in left:
            if stop <= one.start or begin >= one.end:
                parts.append(one)
                continue
            if begin > one.start:
                parts.append(replace(one, end=begin, hold_at=min(one.hold_at, begin)))
            if stop < one.end:
                parts.append(replace(one, start=stop, hold_at=min(stop + (one.hold_at - one.start), one.end)))
        left = parts
    return tuple(left)


def _no_stricter(segment: Segment, before: Held) -> bool:
    limit = segment.limit_w is None or (before.limit_w is not None and segment.limit_w >= before.limit_w)
    committed = segment.committed_w is None or (before.committed_w is not None and segment.committed_w <= before.committed_w)
    return limit and committed


def target(held: Held, grid: MeteredSeries, baseline: MeteredSeries | None) -> MeteredSeries | None:
    """The highest draw (W) that meets an obligation, on the slots of ``grid``: its limit, its baseline less its commitment,
    or the lower of both. None where it is a commitment only and there is no baseline.
    """
    rows = []
    if held.limit_w is not None:
        rows.append(np.full(len(grid), held.limit_w))
    if held.committed_w is not None and baseline is not None:
        rows.append(resampled(baseline, grid.start, grid.step_s, len(grid)).watts - held.committed_w)
    if not rows:
        return None
    return MeteredSeries(grid.start, grid.step_s, np.minimum.reduce(rows), basis="target")
