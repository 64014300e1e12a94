"""Near-optimal placement of many jobs with a proof: prices on capacity, then a repair that makes room. Pure and deterministic.

Prices on GPUs, W and places make every job choose for itself (Lagrangian relaxation); what all of them then cost, less the
worth of the room, is a lower bound. The plan takes jobs one by one at those prices, and then moves them, one or several at a
time, while that saves something (ejection chains; Glover 1996). It knows no jobs by name, no clock and no sentences.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from policies import solver_core as core
from policies.problem import SLACK, Answer, Bools, Fleet, Floats, Ints, Work

CAREFUL = core.CAREFUL
#: Jobs are looked at in so many parts by so many threads: what comes out depends on the first number only.
CHUNKS, THREADS = 8, 2
#: Fewer jobs are not worth handing to threads.
FEW = 1000
#: A chain of moves touches no more jobs than this.
MOST_TOUCHED = 32
#: How strongly a slot that fills faster than the work is placed gets dearer, in usual prices of its room.
PACE = 0.5
#: How steeply prices rise with crowding at first and at last, while jobs haggle for room.
STEEP = (0.5, 20.0)
#: How often all jobs are asked then: when prices are new, and when they are those of the plan before.
HAGGLE, HAGGLE_WARM = 16, 8
#: A plan of what was haggled for is made until so many in a row were no better.
KEEP = 3
#: How often the pace is looked at while a plan is made.
BLOCKS = 60
#: Steps of the prices: from nothing, and from those of the plan before; their sizes at first and at last.
COLD, WARM = (40, 0.8, 0.005), (12, 0.1, 0.005)
#: Where power is limited prices have further to go: up to what a job left out costs.
COLD_POWER, WARM_POWER = (60, 3.0, 0.01), (15, 0.3, 0.01)
#: Jobs of a small problem are looked at so often in the end, and how hot that begins and ends, in the usual cost of a job.
ANNEAL, ANNEAL_WARM, HOT, COLD_SHARE, LOUD = 300, 4, 0.2, 0.001, 4.0
#: Of so few jobs one misplaced is much of the whole: they are annealed several times over.
HANDFUL, ANNEAL_AGAIN = 120, 4
#: A handful of jobs needs fewer looks each than so many.
ANNEAL_JOBS = 40
#: A plan within this share of its bound is not improved by chance any more.
GOOD_ENOUGH = 1e-3
#: How dear the room of others is taken to be when a job drives them away, one try after the other.
DRIVEN = (1.2, 0.3, 4.0)


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "solver")


@dataclass(frozen=True)
class Warm:
    """What is kept from one answer for the next: the prices by slot, and where those slots begin and end (s)."""

    edges_s: Floats
    gpu: Floats
    lane_watt: Floats
    region_watt: Floats
    start: Floats
    team: Floats

    def shifted(self, seconds: float) -> "Warm":
        """The same as seen ``seconds`` later."""
        return replace(self, edges_s=self.edges_s - seconds)


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
        options = lanes * len(work.cap_speed)
        self.spaces = [core.space(slots, options) for _ in range(CHUNKS)]
        self.parts = [np.arange(at, jobs, CHUNKS) for at in range(CHUNKS)]
        self.value, self.worth = np.zeros(jobs), np.full(jobs, -np.inf)
        self._all_free = self._room()
        self.demand = self._demand()
        self.gpu, self.lane_watt = np.zeros((lanes, slots)), np.zeros((lanes, slots))
        self.region_watt, self.start = np.zeros((regions, slots)), np.zeros((regions, slots))
        self.team = np.zeros(work.team_gpus.shape)
        self._use = [
            (np.zeros((lanes, slots)), np.zeros((lanes, slots)), np.zeros((lanes, slots)), np.zeros(work.team_gpus.shape))
            for _ in range(CHUNKS)
        ]

        worth = float(np.mean(np.abs(fleet.rate))) * float(np.mean(fleet.lengths_s)) / 3600.0
        kw_per_gpu = float(work.power_w.sum()) / 1000.0 / max(float(work.gpus.sum()), SLACK)
        #: What room is usually worth: a GPU, and a W at the meter, for a slot.
        self._unit_gpu, self._unit_watt = worth * kw_per_gpu, worth / 1000.0 / float(fleet.pue.mean())
        self._unit_start = (
            worth * float(work.power_w[work.gpus + work.power_w > 0].mean()) / 1000.0 if work.power_w.any() else 0.0
        )
        run_s = np.where(np.isfinite(work.ready_s), work.run_s, np.inf).min(axis=1, initial=np.inf)
        #: How much room each job takes: GPUs and kW over its run time.
        self.area = np.where(np.isfinite(run_s), run_s, 0.0) * (
            work.gpus / max(float(work.gpus.mean()), SLACK) + work.power_w / max(float(work.power_w.mean()), SLACK)
            if jobs
            else 0.0
        )
        self.undo = core.places(MOST_TOUCHED, 1)
        self.touched, self.waiting = np.zeros(MOST_TOUCHED, dtype=np.int64), np.zeros(MOST_TOUCHED, dtype=np.int64)
        self.out = core.found()

    def admit(self, j: int, one: Work) -> None:
        """Write a new job, the only one of ``one``, into the free row ``j``."""
        demand, work = self.demand, self.work
        for mine, theirs in zip(_columns(work), _columns(one), strict=True):
            if mine is not None and theirs is not None:
                mine[j] = theirs[0]
        demand.kw[j] = one.power_w[0] / 1000.0
        demand.planned[j] = one.planned[0] if one.planned is not None else -1.0
        demand.keep[j] = one.keep_gain[0] if one.keep_gain is not None else 0.0
        demand.wait[j] = one.wait_cost[0] if one.wait_cost is not None else 0.0
        able = np.isfinite(one.ready_s[0])
        if one.here[0] >= 0:
            able[one.here[0]] = True
        # no floors yet: every lane is looked at, once
        demand.floor[j] = np.where(able, -np.inf, np.inf)
        demand.order[j] = np.argsort(~able, kind="stable")
        self.placed.cost[j] = one.unserved_cost[0]

    def know_masks(self, rows: Sequence[Bools]) -> None:
        """Take in sets of forbidden slots that were made after the plan; they come behind the empty set."""
        if len(rows) + 1 > len(self.supply.masks):
            masks = np.zeros((len(rows) + 1, self.slots), dtype=bool)
            masks[1:] = np.array(rows)
            self.supply = self.supply._replace(masks=masks)

    def insert(self, j: int) -> list[int]:
        """Place one job in the standing plan, where there is room or where others make some for it; whose places are new."""
        self.placed.cost[j] = self.work.unserved_cost[j]
        one = np.array([j])
        self.place(one, 0.0, self.prices)
        if not self.is_free and self.placed.cost[j] > self.value_of(j) + 1e-9:
            self.touched[:] = -1
            if self.make_room(one) > 0.0:
                return [int(other) for other in self.touched if other >= 0]
        return [j]

    def dismiss(self, j: int) -> None:
        """Take a job out, and give back its room."""
        core.occupy(j, self.supply, self.demand, self.free, self.placed, -1)
        self.placed.lane[j], self.placed.runs[j] = core.NOWHERE, 0
        self.placed.cost[j] = self.placed.load[j] = self.value[j] = 0.0
        self.demand.floor[j] = np.inf
        self.work.unserved_cost[j] = 0.0

    def option(self, j: int) -> Answer | None:
        """Where one job is, as an Answer for it alone; None when it is nowhere."""
        placed = self.placed
        if placed.lane[j] == core.NOWHERE:
            return None
        runs = int(placed.runs[j])
        return Answer(
            placed.lane[j : j + 1].copy(), placed.cap[j : j + 1].copy(), np.array([0, runs]), placed.begin[j, :runs].copy(),
            placed.end[j, :runs].copy(), placed.cost[j : j + 1].copy(), -np.inf, 0,
        )  # fmt: skip

    def value_of(self, j: int) -> float:
        """What a job would pay at its best place, room included."""
        self._respond_one(np.array([j]))
        return float(self.value[j])

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
            np.zeros(self.jobs) if work.wait_cost is None else work.wait_cost,
            np.where(able, -np.inf, np.inf), np.zeros((self.jobs, self.lanes), dtype=np.int64),
        )  # fmt: skip
        # The floor of each lane: the job alone there, at no prices.
        floor = np.full((self.jobs, self.lanes), np.inf)
        for lane in range(self.lanes):
            here = np.flatnonzero(able[:, lane])
            one = demand._replace(
                order=np.full((self.jobs, 1), lane), floor=np.where(able, -np.inf, np.inf), unserved=np.full(self.jobs, np.inf)
            )
            self._respond(np.array_split(here, CHUNKS), one, self._free_prices(), 0)
            floor[here, lane] = self.value[here]
        able = np.isfinite(floor)
        floor[able] -= 1e-9 * np.abs(floor[able])
        return demand._replace(floor=floor, order=np.argsort(floor, axis=1, kind="stable"))

    def _free_prices(self) -> core.Prices:
        zero = np.zeros((self.lanes, self.slots))
        return core.Prices(zero, zero, zero, np.zeros(self.work.team_gpus.shape))

    @property
    def prices(self) -> core.Prices:
        """Prices as lanes see them."""
        region = self.fleet.region
        return core.Prices(self.gpu, self.lane_watt + self.region_watt[region], self.start[region], self.team)

    def _respond_one(self, one: Ints) -> None:
        core.respond(
            one, self.supply, self.demand, self.prices, self.has_team, CAREFUL, *self._use[0], self.value, self.worth,
            self._all_free, self.spaces[0],
        )  # fmt: skip

    def _respond(self, parts: Sequence[Ints], demand: core.Demand, prices: core.Prices, steps: int = 6) -> None:
        use = getattr(self, "_use", None) or [
            (np.zeros_like(prices.gpu), np.zeros_like(prices.gpu), np.zeros_like(prices.gpu), np.zeros_like(prices.team))
            for _ in range(CHUNKS)
        ]

        def one(at: int) -> None:
            for table in use[at]:
                table[:] = 0.0
            core.respond(
                parts[at], self.supply, demand, prices, self.has_team, steps, *use[at], self.value, self.worth,
                self._all_free, self.spaces[at],
            )  # fmt: skip

        if sum(len(part) for part in parts) < FEW:
            for at in range(CHUNKS):
                one(at)
        else:
            list(_pool().map(one, range(CHUNKS)))

    # --- the bound ------------------------------------------------------------------------------------------------

    def price(self, steps: int, first: float, last: float) -> float:
        """Move the prices for so many steps, their sizes from ``first`` to ``last`` times the usual worth of a slot's room;
        leaves the prices and each job's value at them. Returns the bound.

        Subgradient steps scaled by their recent size (Kingma & Ba 2015), and the mean of the last prices, which is steadier
        than any of them.
        """
        fleet, work = self.fleet, self.work
        kinds = [  # price, limit, usual worth of a unit
            (self.gpu, fleet.gpus, self._unit_gpu),
            (self.lane_watt, fleet.lane_w, self._unit_watt),
            (self.region_watt, fleet.region_w, self._unit_watt),
            (self.start, fleet.starts, self._unit_start),
            (self.team, work.team_gpus, self._unit_gpu),
        ]
        # A price on room that all jobs together cannot fill, left over from a plan before, would only weaken the bound; one on
        # what has no limit any more would make it wrong.
        scarce = [np.isfinite(limit) & (limit < most) for (_, limit, _), most in zip(kinds, self._most_used, strict=True)]
        for (price, _, _), binds in zip(kinds, scarce, strict=True):
            price[~binds] = 0.0
        scarce = [binds for binds, kind in zip(scarce, kinds, strict=True) if np.isfinite(kind[1]).any()]
        kinds = [kind for kind in kinds if np.isfinite(kind[1]).any()]
        moments = [(np.zeros_like(price), np.zeros_like(price)) for price, _, _ in kinds]
        means = [price.copy() for price, _, _ in kinds]
        for step in range(1, steps + 1):
            self._respond(self.parts, self.demand, self.prices, 0)  # a rough answer of those who may be paused will do
            size = first * (last / first) ** (step / steps)
            for (price, limit, unit), (mean, spread), steady, bounded in zip(kinds, moments, means, scarce, strict=True):
                most = np.where(bounded, limit, 0.0)
                over = np.where(bounded, (self._used(price) - most) / np.maximum(most, 1.0), 0.0)
                mean += 0.2 * (over - mean)
                spread += 0.05 * (over * over - spread)
                scaled = mean / (1 - 0.8**step) / (np.sqrt(spread / (1 - 0.95**step)) + 1e-3)
                np.maximum(price + size * unit * scaled, 0.0, out=price)
                price[~bounded] = 0.0
                steady += (0.2 if step > steps // 4 else 1.0) * (price - steady)
        for (price, _, _), steady in zip(kinds, means, strict=True):
            price[:] = steady
        self.respond_carefully()
        bound = self._bound()
        if bound < self._bound_at_no_prices():  # not settled yet: no prices at all prove more
            self._forget_prices()
            self.respond_carefully()
            bound = self._bound()
        return bound

    def keep_prices(self) -> bool:
        """Whether the prices as they are prove more than none; else they are dropped. Those of a plan before do not when its
        jobs have gone, or drew far more than those that are left: steps in today's sizes would not bring them down in time."""
        self._respond(self.parts, self.demand, self.prices, 0)
        if self._bound() >= self._bound_at_no_prices():
            return True
        self._forget_prices()
        return False

    def _forget_prices(self) -> None:
        for price in (self.gpu, self.lane_watt, self.region_watt, self.start, self.team):
            price[:] = 0.0

    def _bound_at_no_prices(self) -> float:
        """What all jobs cost at least, each as if it were alone."""
        return float(np.minimum(self.demand.floor.min(axis=1, initial=np.inf), self.work.unserved_cost).sum())

    @property
    def _most_used(self) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """The most that all jobs together could use at once, beside each kind of limit: GPUs and W at the meter by lane, W
        and places by region, GPUs by team."""
        work, fleet = self.work, self.fleet
        able = np.isfinite(self.demand.floor)
        watts = able * work.power_w[:, None] * work.draw * fleet.pue[None, :] * float(work.cap_draw.max(initial=1.0))
        by_region, places = np.zeros(self.regions), np.zeros(self.regions)
        for region in range(self.regions):
            here = fleet.region == region
            by_region[region] = watts[:, here].max(axis=1, initial=0.0).sum()
            places[region] = able[:, here].any(axis=1).sum()
        by_team = np.bincount(work.team, weights=work.gpus, minlength=len(work.team_gpus))
        # rounding must not take a price off room that is just filled
        return tuple(
            most[:, None] * (1 + 1e-9)
            for most in ((able * work.gpus[:, None]).sum(axis=0), watts.sum(axis=0), by_region, places, by_team)
        )  # type: ignore[return-value]

    def respond_carefully(self) -> None:
        """Work out what each job would pay at its best place at the prices, as tightly as can be."""
        self._respond(self.parts, self.demand, self.prices, CAREFUL)

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
        self.free = self._room()
        self.placed = core.places(self.jobs, self.lanes)
        self.placed.cost[:] = self.work.unserved_cost

    def _room(self) -> core.Free:
        """All there is."""
        fleet, work = self.fleet, self.work
        return core.Free(
            fleet.gpus.copy(), fleet.lane_w.copy(), fleet.region_w.copy(), fleet.starts.copy(), work.team_gpus.copy()
        )

    def _tools(self) -> tuple[core.Space, core.Found]:
        return self.spaces[0], self.out

    def place(self, order: Ints, theta: float, prices: core.Prices) -> int:
        """Place jobs one by one at their cost and ``theta`` times the prices; how many found no room."""
        return int(
            core.place_each(
                order, self.supply, self.demand, prices, self.free, self.placed, theta, self.has_limits, *self._tools()
            )
        )

    def place_at_pace(self, order: Ints) -> int:
        """Place all jobs one by one at the prices, dearer where a slot has been filled more than its share of the work so far:
        jobs for which places are equally good then do not all choose the same. How many found no room."""
        self.empty()
        prices = self.prices
        if not any(bool(table.any()) for table in prices):
            return self.place(order, 1.0, prices)
        room, has = [], []
        for limit in (self.fleet.gpus, self.fleet.region_w[self.fleet.region]):
            has.append(bool(np.isfinite(limit).any()))
            room.append(np.where(np.isfinite(limit), limit, np.inf))
        units = (self._unit_gpu, self._unit_watt)
        area = self.area[order]
        total, done, left_out = max(float(area.sum()), SLACK), 0.0, 0
        for block in np.array_split(np.arange(len(order)), max(1, min(BLOCKS, len(order) // 4))):
            if not len(block):
                continue
            moved = []
            tables = (prices.gpu, prices.watt)
            free = (self.free.gpus, self.free.region_w[self.fleet.region])
            for table, limit, left, unit, there in zip(tables, room, free, units, has, strict=True):
                if not there:
                    moved.append(table)
                    continue
                there_is = np.isfinite(limit)
                most = np.where(there_is, limit, 1.0)
                ahead = np.where(there_is, (most - np.where(there_is, left, 0.0)) / np.maximum(most, 1.0), 0.0) - done / total
                moved.append(np.where(table > 0.0, np.maximum(table + PACE * unit * ahead, 0.0), 0.0))
            left_out += self.place(order[block], 1.0, prices._replace(gpu=moved[0], watt=moved[1]))
            done += float(area[block].sum())
        core.weigh(self.supply, self.demand, prices, self.placed)
        return left_out

    def settle(self, passes: int, seed: int = 0) -> int:
        """A plan by haggling: in each pass the jobs choose anew, in an order by chance, at prices that rise at once with what
        is taken beyond a limit and fall with what is free, ever more steeply; after it the prices move on by what is still over
        or free (an augmented Lagrangian, one job at a time: Bertsekas 1982). Then those that fit stay, the larger first, and
        the others take what is free. How many found no room."""
        fleet, work = self.fleet, self.work
        prices = core.Prices(*(np.array(table) for table in self.prices))
        watts = np.minimum(fleet.region_w[fleet.region], fleet.lane_w)
        limits = (fleet.gpus, watts, fleet.starts[fleet.region], work.team_gpus)
        units = (self._unit_gpu, self._unit_watt, self._unit_start, self._unit_gpu)
        rise = core.Prices(
            *(
                np.where(np.isfinite(limit), np.maximum(table, unit) / np.maximum(limit, 1.0), 0.0)
                for table, limit, unit in zip(prices, limits, units, strict=True)
            )
        )
        self.empty()
        by_chance = np.random.default_rng(seed)
        for number in range(passes):
            rho = STEEP[0] * (STEEP[1] / STEEP[0]) ** (number / max(passes - 1, 1)) if number else 0.0
            core.settle_each(
                by_chance.permutation(self.jobs), number, self.supply, self.demand, prices, rise, self.free, self.placed, rho,
                self.has_limits, *self._tools(),
            )  # fmt: skip
            free = self.free
            left = (free.gpus, np.minimum(free.region_w[fleet.region], free.lane_w), free.starts[fleet.region], free.team)
            for table, by, there in zip(prices, rise, left, strict=True):
                np.maximum(table - rho * by * np.where(by > 0.0, there, 0.0), 0.0, out=table)
        return self._keep(self.placed)

    def _by_size(self) -> Floats:
        """Each job's place in the order of size, the largest first, as a share of all."""
        rank = np.empty(self.jobs)
        rank[np.argsort(-self.area, kind="stable")] = np.arange(self.jobs) / max(self.jobs, 1)
        return rank

    def _keep(self, wanted: core.Placed) -> int:
        """Make a plan of what each job wants, the larger jobs first; those that do not fit take what is free. Done a few times,
        each time with those first that found no room; the best is kept. How many found no room."""
        rank = self._by_size()
        best, kept, idle = np.inf, (self.placed, self.free), 0
        while idle < KEEP:
            self.empty()
            order = np.argsort(rank, kind="stable")
            core.keep_each(
                order, wanted, self.supply, self.demand, self.prices, self.free, self.placed, self.has_limits, *self._tools()
            )
            cost = float(self.placed.cost.sum())
            idle += 1
            if cost < best:
                best, kept, idle = cost, (self.placed, self.free), 0
            nowhere = self.placed.lane == core.NOWHERE
            if not nowhere.any():
                break
            rank[nowhere] -= 1.0
        self.placed, self.free = kept
        core.weigh(self.supply, self.demand, self.prices, self.placed)
        return int((self.placed.lane == core.NOWHERE).sum())

    def offer(self, order: Ints) -> float:
        """Offer each job what is free now; what that saves."""
        return float(
            core.offer_again(
                order,
                self.supply,
                self.demand,
                self.prices,
                self.free,
                self.placed,
                0.0,
                self.has_limits,
                *self._tools(),
                self.undo,
            )
        )

    def make_room(self, order: Ints, rho: float = DRIVEN[0]) -> float:
        """Give each job a better place even where others must leave it; what that saves."""
        return float(
            core.make_room_each(
                order, self.supply, self.demand, self.prices, self.free, self.placed, rho, self.has_limits, MOST_TOUCHED,
                *self._tools(), self.undo, self.touched, self.waiting,
            )
        )  # fmt: skip

    def regret(self) -> Floats:
        """How much each job pays, room included, above its best at the prices."""
        return np.asarray(self.placed.cost + self.placed.load - self.value)

    def plan(self, rounds: int, passes: int, sweeps: int) -> None:
        """Make the plan ``rounds`` times anew by placing jobs one by one, each time first those that found no room or are far
        from their best, and once by haggling in so many ``passes``; then improve the best of them ``sweeps`` times."""
        rank = self._by_size()
        ahead = np.zeros(self.jobs)
        best, kept = np.inf, None
        for number in range(rounds + 1):
            order = np.argsort(rank - ahead, kind="stable")
            left_out = self.place_at_pace(order) if number < rounds else self.settle(passes)
            nowhere, regret = self.placed.lane == core.NOWHERE, np.maximum(self.regret(), 0.0)
            self.offer(np.argsort(-regret, kind="stable"))
            cost = float(self.placed.cost.sum())
            if cost < best:
                best, kept = cost, (self.placed, self.free)
            ahead[nowhere] += 1.0
            if not left_out:
                regret[nowhere] = 0.0
                worst = np.argsort(-regret, kind="stable")
                ahead[worst[: int(np.searchsorted(np.cumsum(regret[worst]), 0.3 * regret.sum()))]] += 0.3
        if kept is not None:
            self.placed, self.free = kept
        for _ in range(sweeps):
            regret = self.regret()
            worst = np.argsort(-regret, kind="stable")
            worst = worst[regret[worst] > 1e-6 * abs(best) / max(self.jobs, 1)]
            saved = self.make_room(worst) + self.offer(worst)
            for rho in DRIVEN[1:]:
                nowhere = np.flatnonzero(self.placed.lane == core.NOWHERE)
                if len(nowhere):
                    saved += self.make_room(nowhere[np.argsort(-self.work.unserved_cost[nowhere], kind="stable")], rho)
            if saved <= 1e-5 * abs(best):
                break

    def anneal(self, looks: float, seed: int = 0) -> None:
        """Improve the plan by chance, with so many looks a job (fewer where there are few); the same ``seed`` gives the same
        plan."""
        alive = self.wanted
        steps = round(looks * len(alive) * min(1.0, len(alive) / ANNEAL_JOBS, (HANDFUL / max(len(alive), 1)) ** 2))
        if len(alive) < 2 or not steps:
            return
        usual = float(np.abs(self.placed.cost[alive]).mean()) + 1e-12
        best, chosen = core.places(self.jobs, 1), np.zeros(MOST_TOUCHED // 2, dtype=np.int64)
        gained, last = core.anneal(
            steps, seed, HOT * usual, COLD_SHARE * usual, alive, self.area,
            self._free_prices(), LOUD * self._unit_gpu, self.supply, self.demand, self.prices, self.free,
            self.placed, self.has_limits, *self._tools(), self.undo, chosen, best,
        )  # fmt: skip
        if gained <= last:
            return
        for j in alive:
            core.occupy(j, self.supply, self.demand, self.free, self.placed, -1)
        for j in alive:
            core.copy_place(j, best, j, self.placed)
            core.occupy(j, self.supply, self.demand, self.free, self.placed, 1)

    @property
    def wanted(self) -> Ints:
        """The jobs that could run somewhere."""
        return np.flatnonzero(np.isfinite(self.demand.floor.min(axis=1, initial=np.inf)))

    def answer(self, bound: float, steps: int) -> Answer:
        """The plan as it is."""
        placed = self.placed
        first = np.concatenate(([0], np.cumsum(placed.runs)))
        mine = np.arange(core.MAX_RUNS)[None, :] < placed.runs[:, None]
        return Answer(
            placed.lane.copy(), placed.cap.copy(), first, placed.begin[mine], placed.end[mine], placed.cost.copy(),
            bound, steps, self.warm(),
        )  # fmt: skip

    def take(self, answer: Answer) -> None:
        """Take over a plan for the first jobs, as many as it has; the others are not placed yet."""
        self.empty()
        for j in range(len(answer.lane)):
            lane, runs = int(answer.lane[j]), slice(int(answer.first[j]), int(answer.first[j + 1]))
            if lane == core.NOWHERE:
                continue
            begins, ends = answer.begin_s[runs], answer.end_s[runs]
            n = len(begins)
            self.out.what[:] = lane, answer.cap[j], n
            self.out.begin[:n], self.out.end[:n] = begins, ends
            self.out.first[:n] = np.maximum(np.searchsorted(self.fleet.edges_s, begins + SLACK, side="right") - 1, 0)
            self.out.stop[:n] = np.searchsorted(self.fleet.edges_s, ends - SLACK, side="left")
            self.out.cost[0] = answer.cost[j]
            core.put(j, self.supply, self.demand, self.prices, self.out, self.placed)
            core.occupy(j, self.supply, self.demand, self.free, self.placed, 1)

    def warm(self) -> Warm:
        """The prices, for the next time."""
        return Warm(self.fleet.edges_s, self.gpu, self.lane_watt, self.region_watt, self.start, self.team)

    def warm_up(self, warm: Warm) -> bool:
        """Begin with prices of before, where the lanes are the same; slots beyond what they knew begin with the last day."""
        if warm.gpu.shape[0] != self.lanes or warm.region_watt.shape[0] != self.regions or len(warm.team) != len(self.team):
            return False
        middle = (self.fleet.edges_s[:-1] + self.fleet.edges_s[1:]) / 2
        end = float(warm.edges_s[-1])
        middle = np.where(middle < end, middle, middle - 86400.0 * np.ceil((middle - end + 1.0) / 86400.0))
        at = np.clip(np.searchsorted(warm.edges_s, middle, side="right") - 1, 0, warm.gpu.shape[1] - 1)
        share = self.fleet.lengths_s / np.diff(warm.edges_s)[at]  # a price is for a whole slot
        for mine, before in (
            (self.gpu, warm.gpu), (self.lane_watt, warm.lane_watt), (self.region_watt, warm.region_watt),
            (self.start, warm.start), (self.team, warm.team),
        ):  # fmt: skip
            mine[:] = before[:, at] * share
        return True

    @cached_property
    def is_free(self) -> bool:
        """Whether no limit could bind: then every job has its best place."""
        limits = (self.fleet.gpus, self.fleet.lane_w, self.fleet.region_w, self.fleet.starts, self.work.team_gpus)
        return not any(bool(np.isfinite(limit).any()) for limit in limits)


def _columns(work: Work) -> tuple[Floats | None, ...]:
    """The columns of a Work that have a row a job, but those that the kernels read in another form."""
    return (
        work.last_s, work.gpus, work.power_w, work.pausable, work.again_s, work.chunk_s, work.pause_cost, work.unserved_cost,
        work.team, work.ready_s, work.run_s, work.fixed, work.mask, work.draw, work.caps, work.here,
    )  # type: ignore[return-value]  # fmt: skip


# --- what others call -------------------------------------------------------------------------------------------------


def run(solver: Solver, effort: float = 1.0, warm: Warm | None = None) -> Answer:
    """Price and plan the problem of ``solver``. ``effort`` scales the number of tries; it is counted in work and not in
    seconds, so that the same problem always has the same answer."""
    jobs = solver.jobs
    if solver.is_free:
        solver.respond_carefully()
        solver.empty()
        solver.place(np.arange(jobs), 0.0, solver.prices)
        return solver.answer(float(solver.value.sum()), 0)
    known = warm is not None and solver.warm_up(warm) and solver.keep_prices()
    power = bool(np.isfinite(solver.fleet.region_w).any() or np.isfinite(solver.fleet.lane_w).any())
    steps, first, last = (WARM_POWER if known else COLD_POWER) if power else (WARM if known else COLD)
    steps = max(2, round(steps * max(1.0, effort)))
    bound = solver.price(steps, first, last)
    passes = round(effort * (HAGGLE_WARM if known else HAGGLE))
    # of a few jobs many orders can be tried; many jobs find their places by haggling
    rounds = max(1, round(effort * min(24, 24_000 / max(jobs, 1)))) if jobs <= FEW else 0
    solver.plan(rounds, max(1, passes), max(1, round(3 * effort)))
    if jobs <= FEW and float(solver.placed.cost.sum()) - bound > GOOD_ENOUGH * abs(bound):
        before = np.inf
        for seed in range(1 if known or jobs > HANDFUL else ANNEAL_AGAIN):
            solver.anneal(effort * (ANNEAL_WARM if known else ANNEAL), seed)
            cost = float(solver.placed.cost.sum())
            if seed > 0 and before - cost <= 1e-4 * abs(cost) and not (solver.placed.lane[solver.wanted] == core.NOWHERE).any():
                break
            before = cost
    return solver.answer(bound, steps)


def solve(fleet: Fleet, work: Work, *, effort: float = 1.0, warm: Warm | None = None) -> Answer:
    """A near-optimal answer with its bound. Deterministic. ``warm`` are prices of a problem much like this one."""
    return run(Solver(fleet, work), effort, warm)


def first(fleet: Fleet, work: Work) -> Answer:
    """A feasible answer, quickly: rough prices and one plan made at them."""
    solver = Solver(fleet, work)
    bound = solver.price(0 if solver.is_free else 4, 1.0, 0.5)
    solver.place_at_pace(np.argsort(-solver.area, kind="stable"))
    return solver.answer(bound, 4)


class Standing:
    """A plan that stands, into which jobs come one by one. ``work`` has the rows of those that will come behind those that
    ``answer`` placed."""

    def __init__(self, fleet: Fleet, work: Work, answer: Answer) -> None:
        self.solver = Solver(fleet, work)
        if answer.warm is not None:
            self.solver.warm_up(answer.warm)
        self.solver.take(answer)
        self._bound, self._known = answer.bound, len(answer.lane)

    def insert(self, j: int) -> None:
        """Place job ``j``, moving others where that is worth it."""
        self.solver.insert(j)

    def answer(self) -> Answer:
        """The plan as it stands; its bound is that of before, which more jobs only raise when their costs are not negative."""
        return self.solver.answer(self._bound, 0)
