"""How many GPUs to keep for interactive serving: its demand by time of week, with a quantile and a margin for bursts. Pure."""

import math
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from policies.world import Reserved

DAY, WEEK, BIN_S = timedelta(days=1), timedelta(days=7), 900
#: Weeks that count, and how much less each counts than the one after it.
WEEKS, FADE = 4, 0.7

History = Sequence[tuple[datetime, float | None]]
Slots = Sequence[tuple[datetime, datetime]]


def _quantile(weighted: Sequence[tuple[float, float]], quantile: float) -> float:
    """The smallest value at or below which ``quantile`` of the weight lies; of (value, weight)."""
    ordered = sorted(weighted)
    rest = quantile * sum(weight for _, weight in ordered)
    for value, weight in ordered:
        rest -= weight
        if rest <= 1e-9:
            return value
    return ordered[-1][0]


def _ratios(at: Sequence[tuple[float, float, float]]) -> list[tuple[float, float]]:
    """Highest sample of each quarter hour at one time of week over the mean of the others, with its weight; against a mean
    that it is itself part of, a quarter hour would look calmer than the next one will be."""
    total, weight = sum(m * w for m, _, w in at), sum(w for _, _, w in at)
    out = []
    for mean, top, w in at:
        others = (total - mean * w) / (weight - w) if len(at) > 1 else mean
        if others > 1e-9:
            out.append((top / others, w))
        elif total > 0:
            out.append((top / (total / weight), w))
    return out


def _known(history: History, now: datetime) -> list[tuple[datetime, float]]:
    since = now - WEEKS * WEEK
    return sorted((at, v) for at, v in history if v is not None and math.isfinite(v) and v >= 0 and since <= at <= now)


def demand_quantile(
    history: History, now: datetime, slots: Slots, *, quantile: float = 0.95, zone: str = "UTC"
) -> list[float | None]:
    """GPUs of demand that ``quantile`` of the time is not exceeded, per slot; None: nothing is known.

    ``history`` holds regular samples in GPUs (None: a gap). Quarter hours of up to 4 weeks at the slot's time of week count,
    recent weeks more; at its time of day with less than a week; the highest seen with less than a day, or where nothing was
    seen at that time. Their mean is multiplied by the quantile of the ratios of each quarter hour's highest sample to the mean
    of the others at its time: four weeks are too few for a quantile of their own at each time, and one quantile on top of
    another would keep far too much. The next two slots never get less than the last sample.
    """
    known = _known(history, now)
    if not known:
        return [None] * len(slots)
    tz = ZoneInfo(zone)
    bins: dict[int, list[float]] = defaultdict(list)
    for at, value in known:
        bins[int(at.timestamp()) // BIN_S].append(value)
    means = {b: sum(values) / len(values) for b, values in bins.items()}
    seen = now - known[0][0]
    highest = max(value for _, value in known)
    at_time: dict[tuple[int, int], list[tuple[float, float, float]]] = defaultdict(list)
    for b, values in bins.items():
        local = datetime.fromtimestamp(b * BIN_S, tz)
        at_time[_time_of(local, seen >= WEEK)].append((means[b], max(values), FADE ** ((now - local) // WEEK)))
    level = {t: sum(m * w for m, _, w in at) / sum(w for _, _, w in at) for t, at in at_time.items()}
    ratios = [pair for at in at_time.values() for pair in _ratios(at)]
    burst = _quantile(ratios, quantile) if ratios else 1.0
    out: list[float | None] = []
    upcoming = 0
    for start, end in slots:
        first, last = int(start.timestamp()) // BIN_S, math.ceil(end.timestamp() / BIN_S)
        times = {_time_of(datetime.fromtimestamp(b * BIN_S, tz), seen >= WEEK) for b in range(first, last)}
        # The dearest quarter hour of the slot counts: a mean over a long slot would hide it.
        tops = [level[key] * burst for key in times if key in level]
        expected = max(tops) if tops and seen >= DAY else highest
        if end > now and upcoming < 2:
            upcoming += 1
            expected = max(expected, known[-1][1])
        out.append(expected)
    return out


def _time_of(local: datetime, weekly: bool) -> tuple[int, int]:
    return (local.weekday() if weekly else -1, (local.hour * 60 + local.minute) // 15)


def headroom(
    history: History,
    now: datetime,
    slots: Slots,
    *,
    name: str,
    held_gpus: float,
    floor_gpus: float,
    most_gpus: float,
    watts_per_gpu: float,
    quantile: float = 0.95,
    zone: str = "UTC",
) -> list[Reserved]:
    """What batch leaves alone in each slot for serving ``name``, beyond ``held_gpus``, which serving occupies already and which
    are counted elsewhere. Demand is kept between ``floor_gpus`` and ``most_gpus``; unknown demand keeps ``most_gpus``.
    ``watts_per_gpu`` is at the meter. Slots for which nothing is to be kept are left out."""
    known = _known(history, now)
    weeks = min(WEEKS, (now - known[0][0]) // WEEK) if known else 0
    days = (now - known[0][0]) // DAY if known else 0
    since = f"last {weeks} weeks" if weeks > 1 else "last week" if weeks else "last days" if days else "last hours"
    expected = demand_quantile(history, now, slots, quantile=quantile, zone=zone)
    out = []
    for (start, end), demand in zip(slots, expected, strict=True):
        wanted = most_gpus if demand is None else min(max(demand, floor_gpus), most_gpus)
        gpus = max(0.0, wanted - held_gpus)
        if gpus <= 0:
            continue
        when = f"{start.astimezone(ZoneInfo(zone)):%a %H:%M}"
        if demand is None:
            reason = f"kept for {name}: its demand is unknown, so all {most_gpus:g} GPUs it may have, {when}"
        elif days:
            reason = (
                f"kept for {name}: {demand:.1f} GPUs expected at most here with {100 * quantile:g} %, {when}, of the {since}"
            )
        else:
            reason = f"kept for {name}: {demand:.1f} GPUs at most were needed in the {since}, {when}"
        out.append(Reserved(start, end, gpus, gpus * watts_per_gpu, reason))
    return out
