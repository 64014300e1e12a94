"""What no schedule that meets its deadlines can undercut: each job by itself at its cheapest, and at its cleanest, with
everything known beforehand.

A job that may be paused takes the cheapest seconds of its window, another the cheapest stretch; room is without end. The
cheapest stretch begins or ends where a slot does, or at an end of the window, because the signals are constant within slots.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dispatcher.backtest.results import Floats, Oracle
from dispatcher.backtest.scenario import Scenario, SimRegion, TraceJob
from policies.world import Pausable

Ints = NDArray[np.int64]
#: Seconds that are rounding.
_ROUNDING_S = 1e-3
#: The lowest cap that a job stands which names none: as in policies.book.
_LEAST_CAP = 0.5
#: So many moments are looked at in one go: it bounds the memory.
_CELLS = 2_000_000


@dataclass(frozen=True)
class _Jobs:
    """Jobs as arrays; times are seconds since the scenario's start, ``due_s`` inf without a deadline, ``min_cap`` inf where a
    job is never capped."""

    ready_s: Floats
    due_s: Floats
    length_s: Floats
    power_w: Floats
    pausable: NDArray[np.bool_]
    min_cap: Floats
    data_gb: Floats


def oracle(scenario: Scenario) -> Oracle:
    """The sums over all jobs. None where a signal that is needed is missing altogether for a job: in all its regions, or over
    its whole window. A job that cannot end before the signals do counts as run from its submission on, as far as they go; one
    whose deadline cannot be met as run at once."""
    jobs = _arrays(scenario)
    count = len(jobs.ready_s)
    cost, carbon = np.full(count, np.inf), np.full(count, np.inf)
    for region in scenario.regions:
        allowed = np.fromiter((not job.regions or region.name in job.regions for job in scenario.jobs), bool, count)
        if not allowed.any():
            continue
        table = region.signals
        away = np.fromiter(
            (job.data_region is not None and job.data_region != region.name for job in scenario.jobs), bool, count
        )
        moving = np.where(away, jobs.data_gb * scenario.settings.move_cost_per_gb, 0.0)
        for values, factor, fixed, best in (
            (table.price, region.fx, moving, cost),
            (table.carbon, 1.0, np.zeros(count), carbon),
        ):
            if values is not None:
                here = _least(scenario, region, jobs, allowed, values) * (factor * region.pue / 3.6e9) + fixed
                np.minimum(best, np.where(allowed, here, np.inf), out=best)
    return Oracle(_total(cost), _total(carbon))


def _total(values: Floats) -> float | None:
    total = float(values.sum())
    return total if np.isfinite(total) else None


def _arrays(scenario: Scenario) -> _Jobs:
    start, jobs = scenario.start, scenario.jobs

    def column(values: list[float]) -> Floats:
        return np.array(values, dtype=np.float64)

    return _Jobs(
        ready_s=column([(max(job.submitted_at, job.earliest_at or job.submitted_at) - start).total_seconds() for job in jobs]),
        due_s=column([(due - start).total_seconds() if (due := job.due_at) is not None else np.inf for job in jobs]),
        length_s=column([job.length_s for job in jobs]),
        power_w=column([job.power_w for job in jobs]),
        pausable=np.array([job.pausable is Pausable.CHECKPOINT for job in jobs], dtype=bool),
        min_cap=column([_least_cap(job) for job in jobs]),
        data_gb=column([job.data_gb for job in jobs]),
    )


def _least_cap(job: TraceJob) -> float:
    if job.tier == "flex-0":
        return np.inf
    return _LEAST_CAP if job.min_cap is None else job.min_cap


@dataclass(frozen=True)
class _Signal:
    """One region's signal: its values (0 where unknown), and by slot edge its integral and the unknown seconds so far."""

    values: Floats
    integral: Floats
    unknown_s: Floats
    slot_s: float

    @property
    def end_s(self) -> float:
        """The end of its last slot."""
        return len(self.values) * self.slot_s


def _signal(values: Floats, slot_s: int) -> _Signal:
    gaps = np.isnan(values)
    known = np.where(gaps, 0.0, values)
    return _Signal(
        known,
        np.concatenate([[0.0], np.cumsum(known) * slot_s]),
        np.concatenate([[0.0], np.cumsum(gaps) * float(slot_s)]),
        float(slot_s),
    )


def _least(scenario: Scenario, region: SimRegion, jobs: _Jobs, allowed: NDArray[np.bool_], values: Floats) -> Floats:
    """The least signal x W x s at the GPU of each job in a region, over the power caps it accepts; inf where unknown."""
    table = region.signals
    from_s = (table.start - scenario.start).total_seconds()
    signal = _signal(values, table.slot_s)
    best = np.full(len(jobs.ready_s), np.inf)
    draws = {1.0, *(pool.draw for pool in region.pools)}
    for cap, speed, draw in [(np.inf, 1.0, 1.0), *((one.cap, one.speed, one.draw) for one in region.caps)]:
        chosen = np.flatnonzero(allowed & (jobs.min_cap <= cap) if np.isfinite(cap) else allowed)
        if not len(chosen) or speed <= 0:
            continue
        found = _search(
            signal,
            jobs.ready_s[chosen] - from_s,
            jobs.due_s[chosen] - from_s,
            jobs.length_s[chosen] / speed,
            jobs.pausable[chosen],
        )
        for pool_draw in (min(draws), max(draws)):  # where power costs less than nothing, more is better
            best[chosen] = np.minimum(best[chosen], found * (jobs.power_w[chosen] * draw * pool_draw))
    return best


def _search(signal: _Signal, ready_s: Floats, due_s: Floats, run_s: Floats, pausable: NDArray[np.bool_]) -> Floats:
    """The least integral of the signal over each job's run; times count from the signal's first slot on."""
    found = np.full(len(ready_s), np.inf)
    inside = (ready_s >= 0) & (ready_s < signal.end_s)
    run_s = np.where(inside, np.minimum(run_s, signal.end_s - ready_s), run_s)
    until_s = np.maximum(np.minimum(due_s, signal.end_s), ready_s + run_s)
    found[run_s <= 0] = 0.0
    inside &= run_s > 0
    slots = np.ceil((until_s - ready_s) / signal.slot_s).astype(np.int64) + 2
    for kind, search in ((pausable, _seconds), (~pausable, _stretch)):
        mine = np.flatnonzero(inside & kind)
        mine = mine[np.argsort(slots[mine], kind="stable")]
        while len(mine):
            count = len(mine)
            while count > 1 and count * int(slots[mine[count - 1]]) > _CELLS:
                count = max(1, count // 2)
            part, mine = mine[:count], mine[count:]
            found[part] = search(signal, ready_s[part], until_s[part], run_s[part], int(slots[part[-1]]))
    return found


def _stretch(signal: _Signal, ready_s: Floats, until_s: Floats, run_s: Floats, width: int) -> Floats:
    """The least integral over a run in one piece; inf where each holds something unknown."""
    slot_s, slots = signal.slot_s, len(signal.values)
    last_s = until_s - run_s
    ahead = np.arange(width)
    whole = np.floor(run_s / slot_s).astype(np.int64)[:, None]
    part_s = run_s[:, None] - whole * slot_s
    values = np.append(signal.values, 0.0)
    curves = [(signal.integral, values)]
    if signal.unknown_s[-1] > 0:
        curves.append((signal.unknown_s, np.append(np.diff(signal.unknown_s) / slot_s, 0.0)))

    def between(begin_s: Floats, end_s: Floats, of: tuple[Floats, Floats]) -> Floats:
        return _at(of, slot_s, end_s) - _at(of, slot_s, begin_s)

    ends = np.stack([ready_s, last_s], axis=1)
    found = [between(ends, np.minimum(ends + run_s[:, None], signal.end_s), of) for of in curves]
    best = _known_least(found, np.ones_like(ends, dtype=bool))
    # It begins with a slot, or it ends with one.
    first = np.ceil(ready_s / slot_s).astype(np.int64)[:, None] + ahead
    fits = first * slot_s <= last_s[:, None]
    begin = np.minimum(first, slots)
    end = np.minimum(begin + whole, slots)
    found = [total[end] + rate[end] * part_s - total[begin] for total, rate in curves]
    best = np.minimum(best, _known_least(found, fits))
    last = np.ceil((ready_s + run_s) / slot_s).astype(np.int64)[:, None] + ahead
    fits = last * slot_s <= until_s[:, None]
    end = np.minimum(last, slots)
    begin = np.maximum(end - whole, 0)
    found = [total[end] - total[begin] + rate[np.maximum(begin - 1, 0)] * part_s for total, rate in curves]
    return np.minimum(best, _known_least(found, fits))


def _at(of: tuple[Floats, Floats], slot_s: float, when_s: Floats) -> Floats:
    total, rate = of
    slot = np.minimum((when_s / slot_s).astype(np.int64), len(total) - 1)
    return np.asarray(total[slot] + rate[slot] * (when_s - slot * slot_s))


def _known_least(found: list[Floats], fits: NDArray[np.bool_]) -> Floats:
    """The least of each row among what fits and is known."""
    if len(found) > 1:
        fits = fits & (found[1] <= _ROUNDING_S)
    return np.asarray(np.where(fits, found[0], np.inf).min(axis=1))


def _seconds(signal: _Signal, ready_s: Floats, until_s: Floats, run_s: Floats, width: int) -> Floats:
    """The least integral over ``run_s`` known seconds, in as many pieces as it takes; inf where fewer are known."""
    slot_s, slots = signal.slot_s, len(signal.values)
    slot = np.floor(ready_s / slot_s).astype(np.int64)[:, None] + np.arange(width)
    held_s = np.minimum(until_s[:, None], (slot + 1) * slot_s) - np.maximum(ready_s[:, None], slot * slot_s)
    inside = np.minimum(slot, slots - 1)
    usable = (held_s > 0) & (slot < slots) & (np.diff(signal.unknown_s)[inside] == 0)
    held_s = np.where(usable, held_s, 0.0)
    values = np.where(usable, signal.values[inside], np.inf)
    order = np.argsort(values, axis=1, kind="stable")
    values, held_s = np.take_along_axis(values, order, axis=1), np.take_along_axis(held_s, order, axis=1)
    before_s = np.cumsum(held_s, axis=1) - held_s
    taken_s = np.clip(run_s[:, None] - before_s, 0.0, held_s)
    total = np.where(taken_s > 0, np.where(np.isfinite(values), values, 0.0) * taken_s, 0.0).sum(axis=1)
    return np.asarray(np.where(run_s - held_s.sum(axis=1) <= _ROUNDING_S, total, np.inf))
