"""How serving did without batch beside it and with it, what batch got done meanwhile, and how often it had to step aside. Pure.

The two were seen at different hours, so their difference alone proves no cause: batch runs most when there is least to serve.
What was not seen is told beside, and never counts as met.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from dispatcher.store import Judged, ServingQuarter
from policies.serving import Level

#: The normal quantile of a two-sided interval of 95 %.
_Z = 1.959964


@dataclass(frozen=True, slots=True)
class Attained:
    """How one objective did: requests (of a gauge: seconds) in all and bad ones, the ``share`` that was good with its 95 %
    interval ``low`` to ``high`` (None: nothing was counted; a gauge's seconds depend on each other and have no interval),
    whether that kept the promise, and the seconds in which it was known how it stood, and was not."""

    total: float
    bad: float
    share: float | None
    low: float | None
    high: float | None
    is_met: bool | None
    known_s: float
    unknown_s: float


@dataclass(frozen=True, slots=True)
class ObjectiveReport:
    """One objective without batch beside it and with it. ``promised`` is the share of requests (None: a gauge)."""

    name: str
    promised: float | None
    alone: Attained
    beside: Attained


@dataclass(frozen=True, slots=True)
class ServingReport:
    """A serving between two moments. ``watched_s`` is how long it was watched; GPU-hours are those of batch beside it, of these
    in troughs (quarter hours with fewer requests a second than the mean of all; None: no objective counts requests), and in
    the whole region. ``level_s`` are the seconds at each level of the guard, ``yield_s`` what passed from risk until the first
    job gave way, each time one did."""

    region: str
    name: str
    start: datetime
    end: datetime
    objectives: tuple[ObjectiveReport, ...]
    watched_s: float
    beside_s: float
    batch_gpu_h: float
    trough_gpu_h: float | None
    region_gpu_h: float
    level_s: dict[str, float]
    rises: int
    rises_beside: int
    frozen: int
    capped: int
    asked: int
    yield_s: tuple[float, ...]


def make_report(region: str, name: str, start: datetime, end: datetime, quarters: Sequence[ServingQuarter]) -> ServingReport:
    """Add up what was seen. Objectives are told apart by name, promise and, where two have both in common, by their order."""
    sums: dict[tuple[str, float | None, int], list[Judged]] = {}
    for one in quarters:
        seen: dict[tuple[str, float | None], int] = defaultdict(int)
        for counts in one.objectives:
            at = seen[counts.name, counts.share]
            seen[counts.name, counts.share] += 1
            pair = sums.setdefault((counts.name, counts.share, at), [Judged(), Judged()])
            pair[:] = [pair[0] + counts.alone, pair[1] + counts.beside]
    objectives = tuple(
        ObjectiveReport(slo, promised, _attained(alone, promised), _attained(beside, promised))
        for (slo, promised, _), (alone, beside) in sums.items()
    )
    levels = [sum(column) for column in zip(*(one.level_s for one in quarters), strict=True)] or [0.0] * len(Level)
    trough = _trough_gpu_s(quarters)
    return ServingReport(
        region=region,
        name=name,
        start=start,
        end=end,
        objectives=objectives,
        watched_s=sum(levels),
        beside_s=sum(one.beside_s for one in quarters),
        batch_gpu_h=sum(one.beside_gpu_s for one in quarters) / 3600.0,
        trough_gpu_h=None if trough is None else trough / 3600.0,
        region_gpu_h=sum(one.region_gpu_s for one in quarters) / 3600.0,
        level_s={level.name.lower(): seconds for level, seconds in zip(Level, levels, strict=True)},
        rises=sum(one.rises for one in quarters),
        rises_beside=sum(one.rises_beside for one in quarters),
        frozen=sum(one.frozen for one in quarters),
        capped=sum(one.capped for one in quarters),
        asked=sum(one.asked for one in quarters),
        yield_s=tuple(sorted(s for one in quarters for s in one.yield_s)),
    )


def wilson(good: float, total: float) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927, "Probable inference"), which holds for few requests and for shares near 1.
    ``total`` is above 0."""
    p, z2 = good / total, _Z**2
    middle = (p + z2 / (2 * total)) / (1 + z2 / total)
    half = _Z / (1 + z2 / total) * math.sqrt(p * (1 - p) / total + z2 / (4 * total**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def _attained(of: Judged, promised: float | None) -> Attained:
    if of.total <= 0:
        return Attained(0.0, 0.0, None, None, None, None, of.known_s, of.unknown_s)
    share = 1.0 - of.bad / of.total
    if promised is None:
        return Attained(of.total, of.bad, share, None, None, of.bad <= 0, of.known_s, of.unknown_s)
    low, high = wilson(of.total - of.bad, of.total)
    return Attained(of.total, of.bad, share, low, high, share >= promised, of.known_s, of.unknown_s)


def _trough_gpu_s(quarters: Iterable[ServingQuarter]) -> float | None:
    """GPU-seconds of batch in quarter hours with fewer requests a second than the mean."""
    loads: dict[datetime, tuple[float, float, float]] = defaultdict(lambda: (0.0, 0.0, 0.0))
    for one in quarters:
        counted = [counts for counts in one.objectives if counts.share is not None]
        most = max(counted, key=lambda counts: counts.alone.total + counts.beside.total, default=None)
        if most is not None:
            total, known_s, gpu_s = loads[one.start]
            loads[one.start] = (
                total + most.alone.total + most.beside.total,
                known_s + most.alone.known_s + most.beside.known_s,
                gpu_s + one.beside_gpu_s,
            )
    known = [one for one in loads.values() if one[1] > 0]
    if not known:
        return None
    mean = sum(total for total, _, _ in known) / sum(known_s for _, known_s, _ in known)
    return sum(gpu_s for total, known_s, gpu_s in known if total / known_s < mean)
