"""Daily budgets of carbon and money: a surcharge a day on what is short, raised until the plan keeps within it. Pure numpy.

A budget is kept as far as deadlines allow: a job that must run runs, and the plan says by how much the day goes over.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, timedelta
from itertools import pairwise

import numpy as np

from policies.fleet import Layout
from policies.problem import Answer, Bools, Fleet, Floats, Ints, Work
from policies.world import World

#: How often surcharges are moved, and how often jobs are kept away from a day after that, at most.
SURCHARGES, EXCLUSIONS = 5, 8


@dataclass(frozen=True)
class _Use:
    """What a kWh at the GPU uses of one budget, by lane and slot, each day's limit, and its words."""

    per_kwh: Floats
    limit: float
    unit: str


def keep(world: World, layout: Layout, fleet: Fleet, work: Work, solve: Callable[[Fleet, Work], Answer]) -> tuple[Answer, str]:
    """Solve with ``solve`` under the budgets of ``world.settings``, of which one is set at least. Returns the answer at its
    true costs, with a bound that counts the budgets, and a sentence that names days which go over (else "").

    First a surcharge on a short day is raised (a multiplier of its budget: Lagrangian relaxation, so what it brings in is part
    of the bound); jobs that are all alike move together under it, so at last some are kept away from the day one by one.
    """
    uses, day_of = _uses(world, layout), _days(layout)
    days = int(day_of.max()) + 1
    surcharge = [np.zeros(days) for _ in uses]
    away: dict[int, set[int]] = {}  # days that a job is kept away from
    bound, best, best_used, least = -np.inf, None, [np.zeros(days) for _ in uses], np.inf
    for number in range(SURCHARGES + EXCLUSIONS):
        rate = fleet.rate.copy()
        for use, dear in zip(uses, surcharge, strict=True):
            rate += use.per_kwh * dear[day_of][None, :]
        priced = replace(fleet, rate=rate)
        clean = uses if number < SURCHARGES + EXCLUSIONS // 2 else []
        answer = solve(*_kept_away(priced, work, away, day_of, clean))
        if not away:
            paid = sum(float((dear * use.limit).sum()) for use, dear in zip(uses, surcharge, strict=True))
            bound = max(bound, answer.bound - paid)
        forced = [j for j in away if answer.lane[j] < 0]
        for j in forced:
            away[j] = set()  # a deadline is worth more than a budget
        by_job = [_by_job_and_day(layout, answer, work.power_w, use.per_kwh, day_of) for use in uses]
        used = [table.sum(axis=0) for table in by_job]
        true = _true_cost(layout, fleet, answer, work)
        over = [np.maximum(one - use.limit, 0.0) for use, one in zip(uses, used, strict=True)]
        excess = sum(float(one.sum()) / max(use.limit, 1e-9) for use, one in zip(uses, over, strict=True))
        total = 1e6 * (excess if excess > 1e-9 else 0.0) + float(true.sum()) + 1e9 * len(forced)
        if total < least:
            least, best, best_used = total, replace(answer, cost=true), used
        if excess <= 1e-9 and not forced:
            break
        for use, dear, one, short, table in zip(uses, surcharge, used, over, by_job, strict=True):
            if number < SURCHARGES - 1:
                usual = float(np.abs(fleet.rate).mean()) / max(float(np.nanmean(np.abs(use.per_kwh))), 1e-12)
                days_short = one > use.limit * (1 + 1e-9)
                dear[days_short] = np.maximum(dear[days_short] * 2.0, 0.1 * usual)
                continue
            for day in np.flatnonzero(short > 1e-9):
                _keep_some_away(table[:, day], float(short[day]), work, away, int(day))
        if number == SURCHARGES - 1:
            surcharge = [np.zeros(days) for _ in uses]
    assert best is not None
    note = "; ".join(
        f"the daily budget of {use.limit:g} {use.unit} was not kept on "
        f"{layout.grid.now + timedelta(days=int(day)):%Y-%m-%d}: {one[day]:.4g} {use.unit}; deadlines come first"
        for use, one in zip(uses, best_used, strict=True)
        for day in np.flatnonzero(one > use.limit * (1 + 1e-6))[:3]
    )
    return replace(best, bound=bound), note


def _keep_some_away(use: Floats, excess: float, work: Work, away: dict[int, set[int]], day: int) -> None:
    """Keep jobs away from a day until what they use there makes up the excess: those with the latest deadlines."""
    for j in np.lexsort((-use, -work.last_s)):
        if excess <= 1e-9:
            break
        days = away.get(int(j))
        if use[j] <= 0 or days == set():  # not there, or it has to be
            continue
        away.setdefault(int(j), set()).add(day)
        excess -= float(use[j])


def _kept_away(fleet: Fleet, work: Work, away: dict[int, set[int]], day_of: Ints, uses: Sequence[_Use]) -> tuple[Fleet, Work]:
    """The same problem with jobs kept away from days: from all lanes, or, with ``uses``, from all but the one that uses least
    of each."""
    lanes = work.mask.shape[1]
    spared = {int(np.argmin(use.per_kwh.mean(axis=1))) for use in uses} if lanes > 1 else set()
    masks, mask, rows = [fleet.masks], work.mask.copy(), len(fleet.masks)
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    for j, days in away.items():
        for lane in sorted(set(range(lanes)) - spared) if days else ():
            key = (int(work.mask[j, lane]), tuple(sorted(days)))
            if key not in known:
                known[key] = rows + len(known)
                masks.append((fleet.masks[key[0]] | np.isin(day_of, key[1]))[None, :])
            mask[j, lane] = known[key]
    return replace(fleet, masks=np.concatenate(masks)), replace(work, mask=mask)


def _uses(world: World, layout: Layout) -> list[_Use]:
    """The budgets that are set."""
    settings, found = world.settings, []
    pue = layout.fleet.pue[:, None]
    if settings.daily_carbon_kg is not None:
        grams = np.array([layout.base[lane.region].carbon for lane in layout.lanes])
        found.append(_Use(_pessimistic(grams * pue / 1000.0), settings.daily_carbon_kg, "kg CO2e"))
    if settings.daily_cost is not None:
        views = {view.name: view for view in layout.views}
        price = np.array([layout.base[lane.region].price * views[lane.region].fx for lane in layout.lanes])
        found.append(_Use(_pessimistic(price * pue / 1000.0), settings.daily_cost, settings.currency))
    return found


def _pessimistic(table: Floats) -> Floats:
    """What is not known counts as much as the most that is known: it must not look like nothing."""
    known = table[np.isfinite(table)]
    return np.where(np.isfinite(table), table, known.max() if len(known) else 0.0)


def _days(layout: Layout) -> Ints:
    """The UTC day of each slot, counted from that of the first."""
    midnight = layout.grid.now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    into_s = (layout.grid.now - midnight).total_seconds()
    return np.floor((layout.grid.edges[:-1] + into_s + 1e-3) / 86400.0).astype(np.int64)


def _each(layout: Layout, answer: Answer, power_w: Floats) -> tuple[Ints, Floats]:
    """For every run its job, and its kW at the GPU."""
    owner = np.repeat(np.arange(len(answer.lane)), np.diff(answer.first))
    draw = np.array([lane.draw for lane in layout.lanes])[answer.lane[owner]]
    capped = np.array([cap.draw for cap in layout.caps])[answer.cap[owner]]
    return owner, power_w[owner] / 1000.0 * draw * capped


def _by_job_and_day(layout: Layout, answer: Answer, power_w: Floats, per_kwh: Floats, day_of: Ints) -> Floats:
    """What each job uses on each day."""
    owner, kw = _each(layout, answer, power_w)
    edges = layout.grid.edges
    total = np.zeros((len(answer.lane), int(day_of.max()) + 1))
    bounds = np.concatenate(([0], np.flatnonzero(np.diff(day_of)) + 1, [len(day_of)]))
    running = np.concatenate((np.zeros((len(per_kwh), 1)), np.cumsum(per_kwh * np.diff(edges) / 3600.0, axis=1)), axis=1)
    for lane in range(len(per_kwh)):
        mine = answer.lane[owner] == lane
        for first, stop in pairwise(bounds):
            begin = np.clip(answer.begin_s[mine], edges[first], edges[stop])
            end = np.clip(answer.end_s[mine], edges[first], edges[stop])
            span = np.interp(end, edges, running[lane]) - np.interp(begin, edges, running[lane])
            np.add.at(total[:, day_of[first]], owner[mine], span * kw[mine])
    return total


def _true_cost(layout: Layout, fleet: Fleet, answer: Answer, work: Work) -> Floats:
    """Cost of each job at the rates without surcharges; what it costs to have no place, where it has none."""
    owner, kw = _each(layout, answer, work.power_w)
    edges, cost = layout.grid.edges, np.zeros(len(answer.lane))
    running = np.concatenate((np.zeros((len(fleet.rate), 1)), np.cumsum(fleet.rate * np.diff(edges) / 3600.0, axis=1)), axis=1)
    for lane in range(len(fleet.rate)):
        mine: Bools = answer.lane[owner] == lane
        span = np.interp(answer.end_s[mine], edges, running[lane]) - np.interp(answer.begin_s[mine], edges, running[lane])
        np.add.at(cost, owner[mine], span * kw[mine])
    cost += work.fixed[np.arange(len(work)), np.maximum(answer.lane, 0)] * (answer.lane != work.here)
    return np.where(answer.lane >= 0, cost, work.unserved_cost)
