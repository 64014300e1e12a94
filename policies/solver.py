"""Near-optimal placement of many jobs with a proof: prices on capacity, then a repair that makes room. Pure and deterministic.

Prices on GPUs, W and places make every job choose for itself (Lagrangian relaxation); what all of them then cost, less the
worth of the room, is a lower bound. The plan takes jobs one by one at those prices, and then moves them, one or several at a
time, while that saves something (ejection chains; Glover 1996). It knows no jobs by name, no clock and no sentences.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from policies import solver_core as core
from policies.problem import SLACK, Answer, Bools, Fleet, Floats, Ints, Work

#: Jobs are looked at by so many workers at most; the sums are made in an order that does not depend on it.
CHUNKS = 8
THREADS = 2


@dataclass(frozen=True)
class Warm:
    """What is kept from one answer for the next: prices by slot, and the edges they belong to."""

    edges_s: Floats
    gpu: Floats
    lane_watt: Floats
    region_watt: Floats
    start: Floats
    team: Floats


class Solver:
    """One problem being solved."""

    def __init__(self, fleet: Fleet, work: Work) -> None:
        self.fleet, self.work = fleet, work
        jobs, lanes, slots, regions = len(work), len(fleet.rate), fleet.rate.shape[1], len(fleet.region_w)
        self.jobs, self.lanes, self.slots, self.regions = jobs, lanes, slots, regions
        self.supply = core.Supply(
            fleet.edges_s, fleet.rate * fleet.lengths_s / 3600.0, fleet.known, fleet.region, fleet.pue, fleet.masks
        )
        self.has_team = bool(np.isfinite(work.team_gpus).any())
        self.has_limits = self.has_team or any(
            bool(np.isfinite(limit).any()) for limit in (fleet.lane_w, fleet.region_w, fleet.starts)
        )
        self.pool = ThreadPoolExecutor(THREADS)
        self.spaces = [core.space(slots) for _ in range(CHUNKS)]
        self.parts = [np.arange(at, jobs, CHUNKS) for at in range(CHUNKS)]
        self.value, self.worth = np.zeros(jobs), np.full(jobs, -np.inf)
        self.demand = self._demand()
        self.gpu, self.lane_watt = np.zeros((lanes, slots)), np.zeros((lanes, slots))
        self.region_watt, self.start = np.zeros((regions, slots)), np.zeros((regions, slots))
        self.team = np.zeros(work.team_gpus.shape)
        self._use = [
            (np.zeros((lanes, slots)), np.zeros((lanes, slots)), np.zeros((lanes, slots)), np.zeros(work.team_gpus.shape))
            for _ in range(CHUNKS)
        ]

    def _demand(self) -> core.Demand:
        work = self.work
        able = np.isfinite(work.ready_s)
        for lane in range(self.lanes):
            able[work.here == lane, lane] = True
        planned = np.full((self.jobs, 2), -1.0) if work.planned is None else work.planned
        demand = core.Demand(
            work.last_s, work.gpus, work.power_w / 1000.0, work.pausable, work.again_s, work.chunk_s, work.pause_cost,
            work.unserved_cost, work.team, work.ready_s, work.run_s, work.fixed, work.mask, work.draw, work.cap_draw,
            work.cap_speed, work.caps, work.here, planned,
            np.zeros(self.jobs) if work.keep_gain is None else work.keep_gain,
            np.where(able, -np.inf, np.inf), np.zeros((self.jobs, self.lanes), dtype=np.int64),
        )  # fmt: skip
        # The floor of each lane: the job alone there, at no prices.
        floor = np.full((self.jobs, self.lanes), np.inf)
        for lane in range(self.lanes):
            here = np.flatnonzero(able[:, lane])
            one = demand._replace(
                order=np.full((self.jobs, 1), lane), floor=np.where(able, -np.inf, np.inf), unserved=np.full(self.jobs, np.inf)
            )
            self._respond(np.array_split(here, CHUNKS), one, self._free_prices())
            floor[here, lane] = self.value[here]
        floor = np.where(np.isfinite(floor), floor - 1e-9 * np.abs(floor), np.inf)
        return demand._replace(floor=floor, order=np.argsort(floor, axis=1, kind="stable"))

    def _free_prices(self) -> core.Prices:
        zero = np.zeros((self.lanes, self.slots))
        return core.Prices(zero, zero, zero, np.zeros(self.work.team_gpus.shape))

    @property
    def prices(self) -> core.Prices:
        """Prices as lanes see them."""
        region = self.fleet.region
        return core.Prices(self.gpu, self.lane_watt + self.region_watt[region], self.start[region], self.team)

    def _respond(self, parts: Sequence[Ints], demand: core.Demand, prices: core.Prices, steps: int = 6) -> None:
        use = getattr(self, "_use", None) or [
            (np.zeros_like(prices.gpu), np.zeros_like(prices.gpu), np.zeros_like(prices.gpu), np.zeros_like(prices.team))
            for _ in range(CHUNKS)
        ]

        def one(at: int) -> None:
            for table in use[at]:
                table[:] = 0.0
            core.respond(
                parts[at], self.supply, demand, prices, self.has_team, steps, *use[at], self.value, self.worth, self.spaces[at]
            )

        list(self.pool.map(one, range(CHUNKS)))

    # --- the bound ------------------------------------------------------------------------------------------------

    def price(self, steps: int, first: float, last: float) -> float:
        """Move the prices for so many steps, their sizes from ``first`` to ``last`` times the usual worth of a slot's room;
        leaves the best prices and each job's value at them. Returns the bound.

        Subgradient steps scaled by their recent size (Kingma & Ba 2015), and the mean of the last prices, which is steadier
        than any of them.
        """
        fleet, work = self.fleet, self.work
        worth = float(np.mean(np.abs(fleet.rate))) * float(np.mean(fleet.lengths_s)) / 3600.0
        kw_per_gpu = float(work.power_w.sum()) / 1000.0 / max(float(work.gpus.sum()), SLACK)
        kinds = [  # price, limit, usual worth of a unit
            (self.gpu, fleet.gpus, worth * kw_per_gpu),
            (self.lane_watt, fleet.lane_w, worth / 1000.0 / float(fleet.pue.mean())),
            (self.region_watt, fleet.region_w, worth / 1000.0 / float(fleet.pue.mean())),
            (self.start, fleet.starts, worth * float(work.power_w.mean()) / 1000.0),
            (self.team, work.team_gpus, worth * kw_per_gpu),
        ]
        kinds = [kind for kind in kinds if np.isfinite(kind[1]).any()]
        moments = [(np.zeros_like(price), np.zeros_like(price)) for price, _, _ in kinds]
        means = [price.copy() for price, _, _ in kinds]
        best, kept, values = -np.inf, [price.copy() for price, _, _ in kinds], self.value.copy()

        def judge() -> None:
            nonlocal best, kept, values
            bound = self._bound()
            if bound > best:
                best, kept, values = bound, [price.copy() for price, _, _ in kinds], self.value.copy()

        for step in range(1, steps + 1):
            self._respond(self.parts, self.demand, self.prices)
            judge()
            size = first * (last / first) ** (step / steps)
            for (price, limit, unit), (mean, spread), steady in zip(kinds, moments, means, strict=True):
                over = (self._used(price) - limit) / np.maximum(limit, 1.0)
                over[~np.isfinite(over)] = 0.0
                mean += 0.2 * (over - mean)
                spread += 0.05 * (over * over - spread)
                scaled = mean / (1 - 0.8**step) / (np.sqrt(spread / (1 - 0.95**step)) + 1e-3)
                np.maximum(price + size * unit * scaled, 0.0, out=price)
                price[~np.isfinite(limit)] = 0.0
                steady += (0.2 if step > steps // 4 else 1.0) * (price - steady)
        for (price, _, _), steady in zip(kinds, means, strict=True):
            price[:] = steady
        self._respond(self.parts, self.demand, self.prices, 14)
        judge()
        for (price, _, _), one in zip(kinds, kept, strict=True):
            price[:] = one
        self.value[:] = values
        return best

    def _used(self, price: Floats) -> Floats:
        at = {id(self.gpu): 0, id(self.lane_watt): 1, id(self.region_watt): 1, id(self.start): 2, id(self.team): 3}[id(price)]
        total = self._use[0][at].copy()
        for use in self._use[1:]:
            total += use[at]
        if price is self.region_watt or price is self.start:
            by_region = np.zeros((self.regions, self.slots))
            np.add.at(by_region, self.fleet.region, total)
            return by_region
        return total

    def _bound(self) -> float:
        total = float(self.value.sum())
        for price, limit in (
            (self.gpu, self.fleet.gpus), (self.lane_watt, self.fleet.lane_w), (self.region_watt, self.fleet.region_w),
            (self.start, self.fleet.starts), (self.team, self.work.team_gpus),
        ):  # fmt: skip
            total -= float(np.sum(price * np.where(np.isfinite(limit), limit, 0.0)))
        return total

    # --- the plan -------------------------------------------------------------------------------------------------

    def empty(self) -> None:
        """Begin a plan with nothing placed."""
        fleet, work = self.fleet, self.work
        self.free = core.Free(
            fleet.gpus.copy(), fleet.lane_w.copy(), fleet.region_w.copy(), fleet.starts.copy(), work.team_gpus.copy()
        )
        self.placed = places(self.jobs, self.lanes)
        self.placed.cost[:] = work.unserved_cost
        self.undo = places(core_MOST, 1)
        self.touched, self.waiting = np.zeros(core_MOST, dtype=np.int64), np.zeros(core_MOST, dtype=np.int64)
        self.out = core.found()
        self.space = self.spaces[0]

    def place(self, order: Ints, theta: float) -> int:
        return int(
            core.place_each(
                order, self.supply, self.demand, self.prices, self.free, self.placed, theta, self.has_limits, self.space, self.out
            )
        )

    def offer(self, order: Ints, theta: float = 0.0) -> float:
        return float(
            core.offer_again(
                order, self.supply, self.demand, self.prices, self.free, self.placed, theta, self.has_limits, self.space, self.out, self.undo
            )
        )

    def room(self, order: Ints, rho: float, most: int) -> float:
        saved = 0.0
        prices = self.prices
        for j in order:
            saved += core.make_room(
                j, self.supply, self.demand, prices, self.free, self.placed, rho, self.has_limits, most, self.space, self.out,
                self.undo, self.touched, self.waiting,
            )  # fmt: skip
        return saved


core_MOST = 64


def places(jobs: int, lanes: int) -> core.Placed:
    """Room to write down where so many jobs are; nobody is placed."""
    runs = (jobs, core.MAX_RUNS)
    return core.Placed(
        np.full(jobs, core.NOWHERE, dtype=np.int64), np.zeros(jobs, dtype=np.int64), np.zeros(jobs, dtype=np.int64),
        np.zeros(runs), np.zeros(runs), np.zeros(runs, dtype=np.int64), np.zeros(runs, dtype=np.int64),
        np.zeros(jobs), np.zeros(jobs), np.zeros((lanes, jobs), dtype=np.int64), np.zeros(lanes, dtype=np.int64),
        np.zeros(jobs, dtype=np.int64),
    )  # fmt: skip
