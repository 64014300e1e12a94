"""Time cut into the planner's slots, what each region costs in them, and what is still free. Pure numpy.

The first slot begins now and ends at the next boundary; all others are whole. Beyond the end of a series its last day repeats.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from policies.world import SLACK, Budget, RegionView, ShiftWindow, World
from signals.series import SlotSeries

if TYPE_CHECKING:
    from policies.demand_charge import Peak

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]

DAY_S = 86400
#: The longest look-ahead, slots of any length: beyond it a repeated day says nothing new.
MAX_SLOTS = 1344
#: Slots are cut at no more limits than this.
MAX_BREAKS = 100


@dataclass(frozen=True)
class Grid:
    """``edges`` are seconds from ``now``: n + 1 of them for n slots, the first 0."""

    now: datetime
    slot_s: int
    edges: Floats

    @property
    def lengths(self) -> Floats:
        """Seconds of each slot."""
        return np.diff(self.edges)

    def seconds(self, when: datetime) -> float:
        """``when`` in seconds from now."""
        return (when - self.now).total_seconds()

    def moment(self, seconds: float) -> datetime:
        """The moment ``seconds`` from now."""
        return self.now + timedelta(seconds=float(seconds))

    def slots_until(self, ends: Floats) -> NDArray[np.intp]:
        """For each end (seconds) the number of slots that begin before it."""
        return np.searchsorted(self.edges[:-1], ends - SLACK, side="left")


def make_grid(now: datetime, slot_s: int, last_s: float, breaks: Iterable[float] = ()) -> Grid:
    """A grid from ``now`` to at least ``last_s`` seconds later, at most MAX_SLOTS slots. Slots are cut at ``breaks`` (seconds
    from now) too, where a limit begins or ends: a job need not wait for the next slot when a call is over."""
    into_slot = now.timestamp() % slot_s
    first = slot_s - into_slot
    n = int(min(max(np.ceil((last_s - first) / slot_s) + 1, 1), MAX_SLOTS))
    edges = np.concatenate(([0.0], first + slot_s * np.arange(n, dtype=np.float64)))
    wanted = (at for at in sorted(set(breaks)) if 1.0 < at < edges[-1] and np.abs(edges - at).min() > 1.0)
    cuts = list(islice(wanted, MAX_BREAKS))
    return Grid(now, slot_s, np.sort(np.concatenate((edges, cuts))) if cuts else edges)


def on_grid(series: SlotSeries | None, grid: Grid) -> Floats:
    """A signal's values on the grid, NaN where unknown; the last known day repeats beyond the end of the series."""
    n = len(grid.edges) - 1
    if series is None:
        return np.full(n, np.nan)
    starts = grid.edges[:-1] + 1e-3
    offset = (grid.now - series.start).total_seconds()
    index = np.floor((starts + offset) / series.slot_s).astype(int)
    known = np.array([np.nan if value is None else value for value in series.values], dtype=np.float64)
    per_day = max(1, DAY_S // series.slot_s)
    beyond = index >= len(known)
    if beyond.any():
        back = np.ceil((index - len(known) + 1) / per_day).astype(int)
        index = np.where(beyond, index - back * per_day, index)
    inside = (index >= 0) & (index < len(known))
    values = np.full(n, np.nan)
    values[inside] = known[index[inside]]
    return values


def running_at(edges: Floats, table: Floats, when: float, *, beyond: bool = False) -> float:
    """A running integral over the edges at one moment; numpy's own is slow for a single one. After the last edge it stands, or
    goes on as in the last slot (``beyond``)."""
    i = min(max(int(np.searchsorted(edges, when, side="right")) - 1, 0), len(edges) - 2)
    share = max((when - edges[i]) / (edges[i + 1] - edges[i]), 0.0)
    return float(table[i] + (table[i + 1] - table[i]) * (share if beyond else min(share, 1.0)))


@dataclass
class Lane:
    """One region on the grid: what a kWh costs there and what is free. Reservations change ``gpus``, ``jobs`` and ``power``.

    ``rate`` is planning currency per kWh at the GPU (PUE and carbon price included), 0 where it is not ``known``; ``integral``
    and ``unknown_s`` are its running integrals over the edges (currency per kW; seconds). ``limit_w`` is per slot, inf without.
    ``peaks`` are the months of a demand charge that reservations are priced by, none where there is no such charge.
    """

    view: RegionView
    price: Floats
    carbon: Floats
    rate: Floats
    known: Bools
    integral: Floats
    unknown_s: Floats
    limit_w: Floats
    gpus: Floats
    jobs: Floats
    power: Floats
    limited: bool
    partly_unknown: bool
    peaks: tuple["Peak", ...] = ()

    def cost(self, grid: Grid, power_w: float, begin: Floats, end: Floats) -> Floats:
        """Cost of a draw over each [begin, end) (seconds from now), planning currency; unknown stretches count as 0."""
        span = np.interp(end, grid.edges, self.integral) - np.interp(begin, grid.edges, self.integral)
        return power_w / 1000.0 * span

    def unknown(self, grid: Grid, begin: Floats, end: Floats) -> Bools:
        """Whether some of each [begin, end) has no known cost."""
        span = np.interp(end, grid.edges, self.unknown_s) - np.interp(begin, grid.edges, self.unknown_s)
        return np.asarray(span > SLACK)

    def copy(self) -> "Lane":
        """The same lane with reservations of its own."""
        return replace(self, gpus=self.gpus.copy(), jobs=self.jobs.copy(), power=self.power.copy())

    def blocked(self, gpus: float, power_w: float) -> Bools:
        """Slots in which a job of that size has no room."""
        if self.limited:
            full = self.power + power_w * self.view.pue > self.limit_w + SLACK
        else:
            full = np.zeros(len(self.power), dtype=bool)
        if self.view.gpus is not None and gpus > 0:
            full |= self.gpus + gpus > self.view.gpus + SLACK
        if self.view.max_jobs is not None:
            full |= self.jobs + 1 > self.view.max_jobs
        return np.asarray(full)

    def reserve(self, grid: Grid, begin: float, end: float, gpus: float, power_w: float, sign: float = 1.0) -> None:
        """Take (or with ``sign`` -1 give back) room over [begin, end)."""
        first, last = np.searchsorted(grid.edges, (begin + SLACK, end - SLACK), side="right")
        part = slice(max(int(first) - 1, 0), max(int(last), 0))
        self.gpus[part] += sign * gpus
        self.jobs[part] += sign
        self.power[part] += sign * power_w * self.view.pue


def _limits(view: RegionView, budgets: tuple[Budget, ...], grid: Grid) -> Floats:
    limit = np.full(len(grid.edges) - 1, np.inf if view.power_limit_w is None else view.power_limit_w)
    for budget in budgets:
        if budget.region == view.name:
            begin = grid.seconds(budget.start)
            end = np.inf if budget.end is None else grid.seconds(budget.end)
            inside = (grid.edges[1:] > begin + SLACK) & (grid.edges[:-1] < end - SLACK)
            limit = np.where(inside, np.minimum(limit, budget.limit_w), limit)
    return limit


def kept_on(view: RegionView, grid: Grid) -> tuple[Floats, Floats]:
    """GPUs and W (at the meter) that batch leaves to serving in each slot."""
    gpus, watts = np.zeros(len(grid.edges) - 1), np.zeros(len(grid.edges) - 1)
    for one in view.reserved:
        inside = (grid.edges[1:] > grid.seconds(one.start) + SLACK) & (grid.edges[:-1] < grid.seconds(one.end) - SLACK)
        gpus, watts = gpus + inside * one.gpus, watts + inside * one.power_w
    return gpus, watts


def make_lane(view: RegionView, world: World, grid: Grid) -> Lane:
    """A region on the grid with nothing reserved but what bypasses gridshift and what is kept for serving."""
    settings = world.settings
    price, carbon = on_grid(view.price, grid), on_grid(view.carbon, grid)
    per_mwh = np.zeros(len(price)) if settings.price_weight == 0 else settings.price_weight * price * view.fx
    if settings.carbon_price > 0 or settings.price_weight == 0:
        # without a price for carbon either, plans by carbon alone count a tonne as one
        per_mwh = per_mwh + carbon * (settings.carbon_price or 1.0) / 1000.0
    unknown = np.isnan(per_mwh)
    rate = np.where(unknown, 0.0, per_mwh) / 1000.0 * view.pue
    lengths, n = grid.lengths, len(grid.edges) - 1
    kept_gpus, kept_w = kept_on(view, grid)
    limit_w = _limits(view, world.budgets, grid)
    return Lane(
        view=view,
        price=price,
        carbon=carbon,
        rate=rate,
        known=~unknown,
        integral=np.concatenate(([0.0], np.cumsum(rate * lengths / 3600.0))),
        unknown_s=np.concatenate(([0.0], np.cumsum(unknown * lengths))),
        limit_w=limit_w,
        gpus=kept_gpus,
        jobs=np.zeros(n),
        power=view.bypass_w + kept_w,
        limited=bool(np.isfinite(limit_w).any()),
        partly_unknown=bool(unknown.any()),
    )


def shifted_away(region: str, allowed: set[str], shifts: tuple[ShiftWindow, ...], grid: Grid) -> Bools:
    """Slots of ``region`` in which a shift rule sends a job with these allowed regions elsewhere."""
    away = np.zeros(len(grid.edges) - 1, dtype=bool)
    for window in shifts:
        if window.source == region and window.target in allowed:
            away |= (grid.edges[1:] > grid.seconds(window.start) + SLACK) & (grid.edges[:-1] < grid.seconds(window.end) - SLACK)
    return away
