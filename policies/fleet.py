"""From a World to the solver's arrays and back to names: regions and their GPU pools as lanes, jobs' rows as work. Pure numpy.

It decides nothing: what may not be is left out of the arrays, and everything else is a number in them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from policies import book as col
from policies.book import NONE, Book
from policies.grid import Grid, Lane, kept_on, make_grid, make_lane, running_at, shifted_away
from policies.placing import HYSTERESIS, PAUSE_GAIN, WAIT_GAIN, entry_of
from policies.problem import Bools, Fleet, Floats, Ints, Work
from policies.world import CapPoint, JobView, RegionView, World

UNCAPPED = CapPoint(1.0, 1.0, 1.0)
#: Leaving a job out counts this many times its energy at the highest rate; each higher priority counts this much more.
UNSERVED, PRIORITY = 10.0, 2.0

#: Gives every lane what the plan cannot change, and says of whom: (job, region, seconds).
ReserveFixed = Callable[[World, Grid, dict[str, Lane]], Sequence[tuple[JobView, str, float]]]


@dataclass(frozen=True)
class LaneName:
    """A lane in words: its region and, where that has several pools, their type. ``draw`` is relative to what jobs state."""

    region: str
    gpu_type: str | None
    draw: float
    pue: float


@dataclass(frozen=True)
class Layout:
    """A World laid out: ``lanes`` names the fleet's lanes, ``caps`` its power caps. ``carbon_s`` (L, T+1) is the running
    integral of the carbon intensity (gCO2e/kWh x s, NaN from where it is unknown on), ``now_s`` the book's time of its first
    moment."""

    grid: Grid
    fleet: Fleet
    lanes: tuple[LaneName, ...]
    caps: tuple[CapPoint, ...]
    carbon_s: Floats
    now_s: float
    views: tuple[RegionView, ...]
    view_of_lane: Ints
    base: Mapping[str, Lane]
    team_gpus: Floats
    masks: dict[object, int] = field(default_factory=dict)
    mask_rows: list[Bools] = field(default_factory=list)
    tables: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def mean_rate(self) -> float:
        """Mean of what a kWh costs, as an amount, over all lanes and slots."""
        return float(np.mean(np.abs(self.fleet.rate))) if self.fleet.rate.size else 0.0

    @cached_property
    def dearest_rate(self) -> float:
        """The most that a kWh costs, as an amount."""
        return float(np.abs(self.fleet.rate).max()) if self.fleet.rate.size else 0.0

    def regions_of(self, book: Book) -> Ints:
        """The book's number of each lane's region."""
        if "regions" not in self.tables:
            self.tables["regions"] = np.array([book.region_index(name.region) for name in self.lanes], dtype=np.int64)
        found: Ints = self.tables["regions"]
        return found

    def allowed_of(self, book: Book) -> Bools:
        """Which lanes each of the book's sets of regions allows."""
        sets = book.allowed_sets
        if "allowed" not in self.tables or len(self.tables["allowed"]) != len(sets):
            rows = [[not names or lane.region in names for lane in self.lanes] for names in sets]
            self.tables["allowed"] = np.array(rows, dtype=bool).reshape(len(sets), len(self.lanes))
        found: Bools = self.tables["allowed"]
        return found

    def speeds_of(self, book: Book) -> Floats:
        """How fast each of the book's sets of GPU types runs on each lane; 0: not at all."""
        sets = book.type_sets
        if "speeds" not in self.tables or len(self.tables["speeds"]) != len(sets):
            rows = [[1.0 if lane.gpu_type is None else col.speeds(one, lane.gpu_type) for lane in self.lanes] for one in sets]
            self.tables["speeds"] = np.array(rows, dtype=np.float64).reshape(len(sets), len(self.lanes))
        found: Floats = self.tables["speeds"]
        return found

    def with_masks(self) -> Fleet:
        """The fleet with the sets of slots that the jobs laid out so far must not touch."""
        if not self.mask_rows:
            return self.fleet
        return replace(self.fleet, masks=np.concatenate((self.fleet.masks, np.array(self.mask_rows))))

    def at_once(self, view: JobView, world: World) -> tuple[str, float, float] | None:
        """Where a job would run if it started as soon as it may (at home, else in its first region), from when to when
        (seconds); None without a region."""
        names = [one.name for one in self.views if not view.flex.regions or one.name in view.flex.regions]
        if not names:
            return None
        if view.run_started_at is not None and view.region in names:
            ran_s = (world.now - view.run_started_at).total_seconds()
            return view.region, 0.0, max(view.remaining_s - ran_s, 0.0)
        home = world.settings.default_region if world.settings.default_region in names else names[0]
        entry = entry_of(view, self.base[home].view, world)
        waits = [(at - world.now).total_seconds() for at in (view.flex.earliest_at, view.not_before_at) if at is not None]
        begin_s = max([0.0, *waits]) + entry.delay_s
        return home, begin_s, begin_s + view.remaining_s + entry.restart_s

    def run_now_cost(self, view: JobView, world: World) -> float | None:
        """What ``at_once`` would cost, with all that a plan's cost has; None where that is not known."""
        run = self.at_once(view, world)
        if run is None:
            return None
        home, begin_s, end_s = run
        lane, edges = self.base[home], self.grid.edges
        if running_at(edges, lane.unknown_s, end_s) - running_at(edges, lane.unknown_s, begin_s) > 1e-6:
            return None
        stays = view.run_started_at is not None and view.region == home
        moving = 0.0 if stays else entry_of(view, lane.view, world).cost
        return (
            view.flex.power_w / 1000.0 * (running_at(edges, lane.integral, end_s) - running_at(edges, lane.integral, begin_s))
            + moving
        )


def lay_out(world: World, book: Book, rows: Ints, reserve_fixed: ReserveFixed) -> Layout:
    """The regions of ``world`` on a grid that reaches to the last deadline of these jobs."""
    now_s, settings = book.seconds(world.now, 0.0), world.settings
    table = book.table[rows]
    deadline = table[:, col.DEADLINE] - now_s
    ends = np.where(np.isfinite(deadline), deadline, 0.0)
    late = np.maximum(table[:, col.EARLIEST] - now_s, 0.0) + 1.5 * table[:, col.REMAINING]
    last_s = max(float(settings.horizon_s), float(ends.max(initial=0.0)), float(late.max(initial=0.0)))
    moments = [at for budget in world.budgets for at in (budget.start, budget.end) if at is not None]
    moments += [at for view in world.regions for one in view.reserved for at in (one.start, one.end)]
    grid = make_grid(world.now, settings.slot_s, last_s, [(at - world.now).total_seconds() for at in moments])
    base = {view.name: make_lane(view, world, grid) for view in world.regions}
    limited = settings.teams or any(_limited(view, base[view.name]) for view in world.regions)
    fixed = reserve_fixed(world, grid, base) if limited else ()
    return _layout(world, book, grid, base, fixed, now_s)


def _limited(view: RegionView, lane: Lane) -> bool:
    return lane.limited or view.gpus is not None or view.max_jobs is not None or bool(view.pools)


def _layout(
    world: World,
    book: Book,
    grid: Grid,
    base: dict[str, Lane],
    fixed: Sequence[tuple[JobView, str, float]],
    now_s: float,
) -> Layout:
    slots = len(grid.edges) - 1
    names: list[LaneName] = []
    rate, known, gpus, lane_w, carbon, region_of, region_w, starts = [], [], [], [], [], [], [], []
    lengths = grid.lengths
    for number, view in enumerate(world.regions):
        lane = base[view.name]
        kept_gpus, _ = kept_on(view, grid)
        there = lane.known & view.reachable
        running = np.concatenate(([0.0], np.cumsum(lane.carbon * lengths)))
        free = np.full(slots, np.inf) if view.gpus is None else np.maximum(view.gpus - lane.gpus, 0.0)
        pools = view.pools or (None,)
        for pool in pools:
            names.append(
                LaneName(view.name, None, 1.0, view.pue)
                if pool is None
                else LaneName(view.name, pool.gpu_type, pool.draw, view.pue)
            )
            rate.append(lane.rate)
            known.append(there)
            carbon.append(running)
            region_of.append(number)
            if pool is None:
                gpus.append(free)
                lane_w.append(np.full(slots, np.inf))
                continue
            used, drawn = np.zeros(slots), np.zeros(slots)
            for job, where, seconds in fixed:
                if where != view.name:
                    continue
                part = 1.0 if job.gpu_type == pool.gpu_type else 0.0
                if job.gpu_type is None:  # not known on which: on all of them in part
                    part = pool.gpus / max(sum(one.gpus for one in pools if one is not None), 1e-9)
                until = int(grid.slots_until(np.array([seconds]))[0])
                used[:until] += part * job.flex.gpus
                drawn[:until] += part * job.flex.power_w * pool.draw * view.pue
            share = pool.gpus / max(sum(one.gpus for one in pools if one is not None), 1e-9)
            gpus.append(np.maximum(pool.gpus - used - share * kept_gpus, 0.0))
            lane_w.append(np.full(slots, np.inf) if pool.power_limit_w is None else np.maximum(pool.power_limit_w - drawn, 0.0))
        region_w.append(np.maximum(lane.limit_w - lane.power, 0.0))
        starts.append(np.full(slots, np.inf) if view.max_jobs is None else np.maximum(view.max_jobs - lane.jobs, 0.0))
    region = np.array(region_of, dtype=np.int64)
    fleet = Fleet(
        edges_s=grid.edges,
        rate=np.array(rate).reshape(len(names), slots),
        known=np.array(known, dtype=bool).reshape(len(names), slots),
        region=region,
        pue=np.array([name.pue for name in names]),
        gpus=np.array(gpus).reshape(len(names), slots),
        lane_w=np.array(lane_w).reshape(len(names), slots),
        region_w=np.array(region_w).reshape(len(world.regions), slots),
        starts=np.array(starts).reshape(len(world.regions), slots),
        masks=np.zeros((1, slots), dtype=bool),
    )
    return Layout(
        grid, fleet, tuple(names), _caps(world.regions), np.array(carbon).reshape(len(names), slots + 1), now_s,
        tuple(world.regions), region, base, _team_gpus(world, book, grid, fixed),
    )  # fmt: skip


def _caps(views: Sequence[RegionView]) -> tuple[CapPoint, ...]:
    """The caps that every region can set, after none at all."""
    common = [cap for cap in views[0].caps if all(cap in view.caps for view in views)] if views else []
    return (UNCAPPED, *(cap for cap in common if cap.cap < 1.0))


def _team_gpus(world: World, book: Book, grid: Grid, fixed: Sequence[tuple[JobView, str, float]]) -> Floats:
    """GPUs that each of the book's teams may still use; row 0 is everybody else, without a bound."""
    quotas = {team.name: team.quota_gpus for team in world.settings.teams}
    for name in quotas:
        book.team_index(name)
    free = np.full((len(book.teams) + 1, len(grid.edges) - 1), np.inf)
    for name, index in book.teams.items():
        quota = quotas.get(name)
        if quota is None:
            continue
        free[index] = quota
        for job, _, seconds in fixed:
            if job.flex.team == name:
                free[index, : int(grid.slots_until(np.array([seconds]))[0])] -= job.flex.gpus
    left: Floats = np.maximum(free, 0.0)
    return left


# --- jobs -------------------------------------------------------------------------------------------------------------


def work_of(layout: Layout, world: World, book: Book, rows: Ints, spare: int) -> Work:
    """The jobs of these rows for the solver, and so many rows more for jobs to come. Their seconds count from the layout's
    first moment; none begins before ``world.now``."""
    settings, fleet = world.settings, layout.fleet
    n, lanes = len(rows), len(layout.lanes)
    t = book.table[rows]
    floor_s = book.seconds(world.now, 0.0) - layout.now_s
    movable = t[:, col.MOVABLE] > 0
    ran = np.where(movable, floor_s + layout.now_s - t[:, col.RUN_STARTED], 0.0)
    ran = np.where(np.isfinite(ran), ran, 0.0)
    resumed_s = np.where(t[:, col.WAITS] > 0, t[:, col.RESTART], 0.0)
    work_s = np.where(
        movable,
        np.maximum(t[:, col.REMAINING] + resumed_s - ran, np.minimum(60.0, t[:, col.REMAINING])),
        t[:, col.REMAINING],
    )
    implied = np.maximum(t[:, col.SUBMITTED] + settings.horizon_s - layout.now_s, 0.0)
    deadline = np.where(np.isfinite(t[:, col.DEADLINE]), t[:, col.DEADLINE] - layout.now_s, implied)
    last = np.minimum(deadline - settings.deadline_margin_s - settings.runtime_slack * work_s, fleet.edges_s[-1])
    earliest = np.maximum(t[:, col.EARLIEST] - layout.now_s, floor_s)

    regions = layout.regions_of(book)
    allowed, speed = layout.allowed_of(book)[book.allowed[rows]], layout.speeds_of(book)[book.types[rows]]
    resumed = t[:, col.RESUMED] > 0
    origin = np.where(resumed, book.region[rows], book.data_region[rows])
    far = (origin[:, None] != NONE) & (origin[:, None] != regions[None, :])
    moved_gb = np.where(far, t[:, col.DATA_GB][:, None], 0.0)
    extra = settings.launch_s + np.where(resumed, t[:, col.RESTART], 0.0)[:, None]
    if settings.move_gb_per_s > 0:
        extra = extra + moved_gb / settings.move_gb_per_s
    delay = np.where(movable, t[:, col.CHECKPOINT], 0.0)
    ready = np.where(allowed & (speed > 0), (earliest + delay)[:, None], np.inf)
    run_s = work_s[:, None] / np.where(speed > 0, speed, 1.0) + extra
    fixed = moved_gb * settings.move_cost_per_gb
    here = np.full(n, NONE, dtype=np.int64)
    for i in np.flatnonzero(movable):
        view = book.views[int(rows[i])]
        for lane, name in enumerate(layout.lanes):
            there = view is not None and name.region == view.region and name.gpu_type in (None, view.gpu_type)
            if there and allowed[i, lane]:
                here[i] = lane
                run_s[i, lane] = work_s[i] / max(speed[i, lane], 1e-9)
    overhead = t[:, col.CHECKPOINT] + t[:, col.RESTART]
    usual = t[:, col.POWER_W] / 1000.0 * work_s / 3600.0 * layout.mean_rate
    planned = np.full((n, 2), -1.0)
    for i in np.flatnonzero(np.isfinite(t[:, col.PLANNED])):
        lane = int(np.argmax(regions == book.planned_region[rows[i]]))
        if regions[lane] == book.planned_region[rows[i]]:
            planned[i] = lane, max(t[i, col.PLANNED] - layout.now_s, floor_s)
    caps = np.array([cap.cap for cap in layout.caps]), np.array([cap.speed for cap in layout.caps])
    accepts = (caps[0][None, :] >= t[:, col.LEAST_CAP][:, None] - 1e-9) & (
        caps[1][None, :] >= t[:, col.LEAST_SPEED][:, None] - 1e-9
    )
    accepts[:, 0] = True
    work = Work(
        last_s=last,
        gpus=t[:, col.GPUS].copy(),
        power_w=t[:, col.POWER_W].copy(),
        pausable=t[:, col.PAUSABLE] > 0,
        again_s=settings.launch_s + overhead,
        chunk_s=np.maximum(max(settings.min_chunk_s, 1.0), 2.0 * overhead),
        pause_cost=np.where(overhead > 0, PAUSE_GAIN * usual, 0.0),
        unserved_cost=_unserved(world, book, rows, work_s, layout),
        team=np.where(book.team[rows] < len(layout.team_gpus), book.team[rows], 0),
        team_gpus=layout.team_gpus,
        ready_s=ready,
        run_s=run_s,
        fixed=fixed,
        mask=_masks(layout, world, book, rows),
        draw=np.tile(np.array([lane.draw for lane in layout.lanes]), (n, 1)),
        cap_draw=np.array([cap.draw for cap in layout.caps]),
        cap_speed=caps[1],
        caps=accepts,
        here=here,
        planned=planned,
        keep_gain=HYSTERESIS * usual,
        wait_cost=WAIT_GAIN / 86400.0 * usual,
    )
    return _with_spare(work, spare, lanes) if spare else work


def _unserved(world: World, book: Book, rows: Ints, work_s: Floats, layout: Layout) -> Floats:
    """Cost of having no place, so high that only room decides, and higher the more a job's priority says and the less its team
    has had."""
    t = book.table[rows]
    dearest = max(layout.dearest_rate, 1e-6)
    ranks = np.unique(t[:, col.PRIORITY], return_inverse=True)[1] if len(rows) > 1 else np.zeros(len(rows))
    weight: Floats = PRIORITY ** np.minimum(ranks, 16.0)
    shares = {team.name: team.share for team in world.settings.teams}
    if shares:
        asked = np.bincount(book.team[rows], weights=t[:, col.GPUS] * work_s, minlength=len(book.teams) + 1)
        for name, index in book.teams.items():
            fair = shares.get(name, 1.0) / sum(shares.values())
            had = asked[index] / max(asked.sum(), 1e-9)
            weight[book.team[rows] == index] *= float(np.clip(fair / max(had, 1e-9), 0.7, 1.4))
    energy_kwh: Floats = np.maximum(t[:, col.POWER_W] / 1000.0 * work_s / 3600.0, 1e-9)
    cost: Floats = np.multiply(UNSERVED * dearest * weight, energy_kwh)
    return cost


def _masks(layout: Layout, world: World, book: Book, rows: Ints) -> Ints:
    """Which slots ceilings and shift rules forbid each job in each lane, as an index into the fleet's masks."""
    t = book.table[rows]
    mask = np.zeros((len(rows), len(layout.lanes)), dtype=np.int64)
    ceilings = np.isfinite(t[:, col.MAX_PRICE]) | np.isfinite(t[:, col.MAX_CARBON])
    those = np.arange(len(rows)) if world.shifts else np.flatnonzero(ceilings)
    for i in those:
        price, carbon = t[i, col.MAX_PRICE], t[i, col.MAX_CARBON]
        names = book.allowed_sets[book.allowed[rows[i]]]
        for number, lane in enumerate(layout.lanes):
            key = (lane.region, names if world.shifts else (), str(price), str(carbon))
            if key not in layout.masks:
                base = layout.base[lane.region]
                allowed = set(names) or {view.name for view in layout.views}
                slots = shifted_away(lane.region, allowed, world.shifts, layout.grid)
                if np.isfinite(price):
                    slots |= ~(base.price <= price)
                if np.isfinite(carbon):
                    slots |= ~(base.carbon <= carbon)
                layout.mask_rows.append(slots)
                layout.masks[key] = len(layout.mask_rows) if slots.any() else 0
            mask[i, number] = layout.masks[key]
    return mask


def _with_spare(work: Work, spare: int, lanes: int) -> Work:
    """The same work with rows of no job behind it."""
    made: dict[str, object] = {}
    shared = ("team_gpus", "cap_draw", "cap_speed")
    empty = {"ready_s": np.inf, "here": NONE, "planned": -1.0, "run_s": 1.0, "draw": 1.0, "last_s": 0.0}
    for name, values in vars(work).items():
        if name in shared or values is None:
            made[name] = values
        else:
            shape = (spare, *values.shape[1:])
            made[name] = np.concatenate((values, np.full(shape, empty.get(name, 0), dtype=values.dtype)))
    return Work(**made)  # type: ignore[arg-type]
