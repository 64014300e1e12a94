"""How many GPUs and W to keep for interactive serving, by time of week, with a quantile and a margin for bursts. Pure."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from zoneinfo import ZoneInfo

from policies.sentences import hhmm, kw
from policies.world import SLACK, Flexibility, KeptFree, RegionView, Reserved, World

WEEK, DAY, BIN_S = timedelta(days=7), timedelta(days=1), 900
#: Weeks that count, and how much less each counts than the one after it.
WEEKS, FADE = 4, 0.7
#: What was needed in the last minutes is kept for as many more, whatever was expected: bursts last.
RECENT = timedelta(minutes=5)
#: Metrics that were not read for so long tell nothing of the present, nor of as long a time ahead.
SILENT = timedelta(minutes=15)

#: Of so many regions it is said what serving keeps of them.
_NAMED = 3

Slots = Sequence[tuple[datetime, datetime]]


@dataclass(frozen=True, slots=True)
class Seen:
    """Demand as it was read over ``[start, end)``, within one quarter hour of UTC: mean and highest reading, GPUs."""

    start: datetime
    end: datetime
    mean: float
    highest: float


@dataclass(frozen=True, slots=True)
class Declared:
    """What is declared of a serving: GPUs and W (at the meter) that it always needs, the GPUs that it may have at most, what
    one of them draws (W at the meter), the ``quantile`` of its demand that is kept free, and whether its demand is read."""

    name: str
    floor_gpus: float
    most_gpus: float
    floor_w: float
    watts_per_gpu: float
    quantile: float = 0.95
    is_read: bool = True


@dataclass(frozen=True, slots=True)
class Recent:
    """The highest demand in the last minutes that were read, GPUs; None: none was for SILENT, ``since`` when (None: ever)."""

    gpus: float | None
    since: datetime | None = None


# --- demand by time of week -------------------------------------------------------------------------------------------

_Time = tuple[int, int]
_At = Mapping[_Time, Sequence[tuple[float, float, float]]]


def demand_quantile(
    history: Iterable[Seen], now: datetime, slots: Slots, *, quantile: float = 0.95, zone: str = "UTC"
) -> list[float | None]:
    """GPUs that demand does not exceed in ``quantile`` of the slots at that time, even by its highest reading; None where too
    little is known. Nothing that ended after ``now`` is looked at.

    Quarter hours of up to 4 weeks at the slot's time of week count, recent weeks more, where two weeks or more were seen at
    that time; else those at its time of day, of two days or more. Their mean is multiplied by the quantile of the ratios of
    each quarter hour's highest reading to the mean of the others at its time: four weeks are too few for a quantile of their
    own at each time, and one quantile on top of another would keep far too much.
    """
    tz = ZoneInfo(zone)
    bins: dict[int, list[Seen]] = defaultdict(list)
    for one in history:
        if one.end <= now and one.start >= now - WEEKS * WEEK:
            bins[int(one.start.timestamp()) // BIN_S].append(one)
    weekly: dict[_Time, list[tuple[float, float, float]]] = defaultdict(list)
    daily: dict[_Time, list[tuple[float, float, float]]] = defaultdict(list)
    for number, parts in bins.items():
        local = datetime.fromtimestamp(number * BIN_S, tz)
        long_s = [(one.end - one.start).total_seconds() for one in parts]
        mean = sum(one.mean * s for one, s in zip(parts, long_s, strict=True)) / sum(long_s)
        at = (mean, max(one.highest for one in parts), FADE ** ((now - local) // WEEK))
        for table, key in ((weekly, _time_of(local)), (daily, _time_of(local, weekly=False))):
            table[key].append(at)
    by_week, by_day = _levels(weekly, quantile), _levels(daily, quantile)
    out: list[float | None] = []
    for start, end in slots:
        first, last = int(start.timestamp()) // BIN_S, math.ceil(end.timestamp() / BIN_S)
        worst: float | None = 0.0
        # The dearest quarter hour of the slot counts: a mean over a long slot would hide it.
        for number in range(first, last):
            local = datetime.fromtimestamp(number * BIN_S, tz)
            level = by_week.get(_time_of(local))
            level = by_day.get(_time_of(local, weekly=False)) if level is None else level
            worst = None if worst is None or level is None else max(worst, level)
        out.append(worst)
    return out


def _time_of(local: datetime, *, weekly: bool = True) -> _Time:
    return (local.weekday() if weekly else -1, (local.hour * 60 + local.minute) // 15)


def _levels(table: _At, quantile: float) -> dict[_Time, float]:
    """What is kept at each time that was seen twice or more."""
    often = {key: at for key, at in table.items() if len(at) > 1}
    ratios = [pair for at in often.values() for pair in _ratios(at)]
    burst = _quantile(ratios, quantile) if ratios else 1.0
    return {key: burst * sum(m * w for m, _, w in at) / sum(w for _, _, w in at) for key, at in often.items()}


def _ratios(at: Sequence[tuple[float, float, float]]) -> Iterator[tuple[float, float]]:
    """Highest reading of each quarter hour at one time over the mean of the others, with its weight; against a mean that it is
    itself part of, a quarter hour would look calmer than the next one will be."""
    total, weight = sum(m * w for m, _, w in at), sum(w for _, _, w in at)
    for mean, top, w in at:
        others = (total - mean * w) / (weight - w)
        if others > 1e-9:
            yield top / others, w
        elif total > 0:
            yield top / (total / weight), w


def _quantile(weighted: Sequence[tuple[float, float]], quantile: float) -> float:
    """The smallest value at or below which ``quantile`` of the weight lies; of (value, weight)."""
    ordered = sorted(weighted)
    rest = quantile * sum(weight for _, weight in ordered)
    for value, weight in ordered:
        rest -= weight
        if rest <= 1e-9:
            return value
    return ordered[-1][0]


# --- what is kept -----------------------------------------------------------------------------------------------------


def near(slots: Slots, now: datetime, recent: Recent | None) -> int:
    """How many slots, from the one that is running on, what is known of the last minutes says something of."""
    if recent is None:
        return 0
    until = now + (SILENT if recent.gpus is None else RECENT)
    return next((number for number, (start, _) in enumerate(slots) if start >= until), len(slots))


def headroom(
    declared: Declared, slots: Slots, expected: Sequence[float | None], recent: Recent | None, near_slots: int
) -> tuple[Reserved, ...]:
    """What batch leaves alone for a serving in each slot, whole GPUs; slots that are alike are one. ``expected`` is as
    ``demand_quantile`` has it; ``recent`` counts in the first ``near_slots``; None: there was no time yet to read it.

    Unknown is not zero: where its demand is not known, all that a serving declares is kept.
    """
    kept = [
        (start, end, *_kept(declared, demand, recent if number < near_slots else None))
        for number, ((start, end), demand) in enumerate(zip(slots, expected, strict=True))
    ]
    out = []
    for (gpus, _), run in groupby(kept, key=lambda one: (one[2], one[3])):
        alike = list(run)
        power_w = max(declared.floor_w, gpus * declared.watts_per_gpu)
        if gpus > 0 or power_w > 0:
            demand = max((one[4] for one in alike), default=0.0)
            whom = f"serving {declared.name}"
            reason = f"kept free for {whom} ({alike[0][3].format(gpus=demand)})"
            out.append(Reserved(alike[0][0], alike[-1][1], gpus, power_w, reason, whom))
    return tuple(out)


def _kept(declared: Declared, demand: float | None, recent: Recent | None) -> tuple[float, str, float]:
    """GPUs for one slot, why, with a place for GPUs of demand, and those."""
    if not declared.is_read:
        return math.ceil(declared.floor_gpus), "its floor", 0.0
    if recent is not None and recent.gpus is None:
        since = f"since {recent.since:%H:%M}Z" if recent.since is not None else "yet"
        return math.ceil(declared.most_gpus), f"its metrics could not be read {since}: all that it may have", 0.0
    if demand is None:
        return math.ceil(declared.most_gpus), "too little is known of its demand at this hour: all that it may have", 0.0
    why = f"p{100 * declared.quantile:g} of demand at this hour {{gpus:.1f}} GPUs"
    if recent is not None and recent.gpus is not None and recent.gpus > demand:
        demand, why = recent.gpus, f"{{gpus:.1f}} GPUs needed in the last {RECENT.total_seconds() / 60:.0f} min"
    if demand <= declared.floor_gpus:
        return math.ceil(declared.floor_gpus), f"its floor; {why}", demand
    if demand > declared.most_gpus:
        return math.ceil(declared.most_gpus), f"all that it may have; {why}", demand
    return math.ceil(demand - 1e-9), why, demand


def kept_free(world: World, until: datetime) -> tuple[KeptFree, ...]:
    """What a plan leaves free before ``until`` and why, by region and start."""
    return tuple(
        told_of(view, one, world.now, until)
        for view in world.regions
        for one in sorted(view.reserved, key=lambda one: one.start)
        if one.start < until and one.end > world.now
    )


def told_of(view: RegionView, one: Reserved, now: datetime | None = None, until: datetime | None = None) -> KeptFree:
    """What is kept free of a region, with its sentence (``sentence_of``)."""
    return KeptFree(view.name, one.start, one.end, one.gpus, one.power_w, sentence_of(view, one, now, until))


def sentence_of(view: RegionView, one: Reserved, now: datetime | None = None, until: datetime | None = None) -> str:
    """What is kept free when, and why, in UTC; power only where it is limited, or all that is kept. Looked at
    ``now`` (None: when it begins) as far as ``until`` (None: to its end)."""
    what = []
    if one.gpus > 0:
        of = "" if view.gpus is None else f" of {view.gpus:g}"
        what.append(f"{one.gpus:g}{of} GPU{'' if one.gpus == 1 and not of else 's'}")
    if one.power_w > 0 and (view.power_limit_w is not None or not what):
        what.append(kw(one.power_w))
    return f"{_span(one, now or one.start, until)}: {' and '.join(what)} {one.reason}"


def _span(one: Reserved, now: datetime, until: datetime | None) -> str:
    """When something is kept. A day of the week is enough where it cannot be taken for that of another week."""
    start = f"{one.start:%a %H:%M}" if one.start - now < WEEK - DAY else hhmm(one.start).removesuffix("Z")
    if until is not None and one.end >= until:
        return f"{start}Z on"
    if one.end - one.start > DAY or one.start - now >= WEEK - DAY:
        return f"{start}Z until {hhmm(one.end)}"
    return f"{start}-{one.end:{'%H:%M' if one.start.date() == one.end.date() else '%a %H:%M'}}"


def why_kept(flex: Flexibility, view: RegionView, now: datetime, before: datetime | None = None) -> str | None:
    """What is kept of a region for serving, where a job has no place beside it even if nothing else ran there: the first
    stretch of such time from ``now`` on that begins ``before`` (None: ever), as a clause. Gaps too short for the job are part
    of it. None where there is no such time."""
    ahead = [one for one in view.reserved if one.end > now]
    most: dict[str, list[Reserved]] = defaultdict(list)
    for one in ahead:
        most[one.whom].append(one)
    highest = [Reserved(now, now, max(o.gpus for o in some), max(o.power_w for o in some)) for some in most.values()]
    if not _is_blocked(flex, view, highest):
        return None  # for most jobs nothing more has to be looked at
    edges = sorted({max(one.start, now) for one in ahead} | {one.end for one in ahead})
    found: list[tuple[datetime, datetime, list[Reserved]]] = []
    for start, end in pairwise(edges):
        here = [one for one in ahead if one.start < end and one.end > start]
        if not _is_blocked(flex, view, here):
            continue
        if found and (start - found[-1][1]).total_seconds() >= flex.runtime_s:
            break
        found.append((start, end, here))
    if not found or (before is not None and found[0][0] >= before):
        return None
    whom = " and ".join(dict.fromkeys(one.whom for *_, here in found for one in here))
    by_gpus = view.gpus is not None and any(_needs_gpus(flex, view, here) for *_, here in found)
    sums = [sum(one.gpus if by_gpus else one.power_w for one in here) for *_, here in found]
    more = " or more" if max(sums) > min(sums) else ""
    what = f"{min(sums):g}{more} of {view.gpus:g} GPUs" if by_gpus else f"{kw(min(sums))}{more} of {kw(view.power_limit_w)}"
    (start, *_), (_, end, _) = found[0], found[-1]
    begins = f" from {hhmm(start)}" if start > now else ""
    ends = " as far as plans look ahead" if end == edges[-1] else f" until {hhmm(end)}"
    return f"{what} in {view.name} are kept free for {whom}{begins}{ends}"


def why_nowhere(flex: Flexibility, views: Iterable[RegionView], now: datetime) -> str:
    """Why no region is left for a job that one of them could take."""
    views = list(views)
    clauses = [clause for view in views if (clause := why_kept(flex, view, now)) is not None]
    if clauses:
        return "; ".join(clauses[:_NAMED]) + (f"; and {len(clauses) - _NAMED} more" if len(clauses) > _NAMED else "")
    whom = " and ".join(dict.fromkeys(one.whom for view in views for one in view.reserved))
    return f"every slot is taken beside what is kept free for {whom}" if whom else "every slot is taken"


def _needs_gpus(flex: Flexibility, view: RegionView, here: Sequence[Reserved]) -> bool:
    kept = sum(one.gpus for one in here)
    return view.gpus is not None and flex.gpus > 0 and flex.gpus > view.gpus - kept + SLACK


def _is_blocked(flex: Flexibility, view: RegionView, here: Sequence[Reserved]) -> bool:
    """Whether a job has no room beside what is kept."""
    if not here:
        return False
    if _needs_gpus(flex, view, here):
        return True
    kept_w = sum(one.power_w for one in here)
    return view.power_limit_w is not None and flex.power_w * view.pue > view.power_limit_w - kept_w + SLACK
