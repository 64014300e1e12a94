"""The ways to place one job in one region, and the best of them. Pure numpy; it sees one region's free room at a time.

A job that may not be paused gets one window; one that can be paused may also get several chunks, each resume paid for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from policies.alone import alone, shape_of
from policies.demand_charge import Added, added_to
from policies.fit import fits, why_unfit
from policies.grid import Bools, Floats, Grid, Lane, shifted_away
from policies.world import SLACK, JobState, JobView, Pausable, RegionView, World

#: A new place must be this much cheaper (share of cost) before a running job is moved or a planned start is changed.
HYSTERESIS = 0.02
#: What each pause must save, as a share of the cost without it: every pause is also a risk, and a nuisance to its owner.
PAUSE_GAIN = 0.05
#: A day of waiting must save at least this share of a job's cost (half a thousandth an hour, chosen on the traces of 2022):
#: less is not worth making its owner wait.
WAIT_GAIN = 0.012
#: How far from the cheapest slots that could hold the work (0) towards all free slots (1) chunks are tried.
_SHARES = (0.0, 0.05, 0.12, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Option:
    """A way to place a job: intervals in seconds from now, cost in the planning currency (unknown stretches count as 0), late
    by ``late_s``; ``within_slack`` tells whether it keeps the slack for uncertain run times, ``within_rules`` the ceilings.
    ``peak_cost`` is what it added to a demand charge when it was found, beside the jobs that were placed then. ``wait_cost`` is
    what its wait must save: it weighs on the choice, and nobody pays it."""

    region: str
    intervals: tuple[tuple[float, float], ...]
    cost: float
    known: bool = True
    late_s: float = 0.0
    within_slack: bool = True
    within_rules: bool = True
    note: str = ""
    peak_cost: float = 0.0
    wait_cost: float = 0.0

    @property
    def total(self) -> float:
        """What it costs, with what it added to a demand charge."""
        return self.cost + self.peak_cost

    @property
    def weight(self) -> float:
        """What it costs, and what its wait must save: options are chosen by this."""
        return self.total + self.wait_cost

    @property
    def clean(self) -> bool:
        """Whether nothing but its cost could be better."""
        return self.late_s <= 0 and self.known and self.within_slack and self.within_rules

    @property
    def order(self) -> tuple[float, bool, bool, bool, float, float]:
        """Best first: in time, within its ceilings, known, with slack to spare, cheap, early."""
        return (
            self.late_s,
            not self.within_rules,
            not self.known,
            not self.within_slack,
            self.weight,
            self.intervals[0][0],
        )


@dataclass(frozen=True)
class Entry:
    """What beginning in a region costs a job that is not running there: ready after ``delay_s``, ``restart_s`` of extra run
    (restoring its checkpoint, fetching its data), ``cost`` for moving its data."""

    delay_s: float = 0.0
    restart_s: float = 0.0
    cost: float = 0.0


@dataclass
class Task:
    """A job to place and everything about it that does not change from round to round. Seconds count from now.

    ``rules`` has the slots a region's ceilings and shift rules forbid (None: none), ``entry`` what beginning there costs,
    ``alone`` its floor, cheapest window's cost and start were there no other job. ``wait_rate`` is what each second of waiting
    must save. ``urgency`` orders tasks.
    """

    job: JobView
    work_s: float
    earliest_s: float
    deadline_s: float
    slack_s: float
    running_in: str | None
    planned: tuple[str, float] | None
    regions: tuple[RegionView, ...]
    rules: dict[str, Bools | None] = field(default_factory=dict)
    entry: dict[str, Entry] = field(default_factory=dict)
    alone: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    wait_rate: float = 0.0

    @property
    def urgency(self) -> tuple[bool, int, float, float, str]:
        """Running first (they are there already), then by priority, then by the last safe start, then the large ones."""
        last = self.deadline_s - self.slack_s - self.work_s
        return (self.running_in is None, -self.job.flex.priority, last, -self.job.flex.gpus, self.job.id)

    @property
    def can_be_in_time(self) -> bool:
        """Whether it could end by its deadline with the whole fleet to itself."""
        return max(0.0, self.earliest_s) + self.work_s <= self.deadline_s

    def lay_rules(self, world: World, grid: Grid, lanes: dict[str, Lane]) -> None:
        """Lay ceilings and shift rules on the grid, once."""
        flex = self.job.flex
        allowed = {view.name for view in self.regions}
        for view in self.regions:
            lane = lanes[view.name]
            self.entry[view.name] = entry_of(self.job, view, world)
            if flex.max_price is None and flex.max_carbon is None and not world.shifts:
                self.rules[view.name] = None
                continue
            mask = shifted_away(view.name, allowed, world.shifts, grid)
            if flex.max_price is not None:
                mask |= ~(lane.price <= flex.max_price)
            if flex.max_carbon is not None:
                mask |= ~(lane.carbon <= flex.max_carbon)
            self.rules[view.name] = mask if mask.any() else None


def make_tasks(world: World) -> tuple[list[Task], dict[str, str]]:
    """A Task for each job that the plan may place, and why the others that wait cannot be placed."""
    tasks, unplaced = [], {}
    now, settings = world.now, world.settings
    for job in world.jobs:
        flex = job.flex
        movable = job.state is JobState.RUNNING and flex.pausable is Pausable.CHECKPOINT and not job.run_now
        if not flex.flexible or job.held or job.cancel_requested or job.pause_requested:
            continue
        if job.state not in (JobState.QUEUED, JobState.PAUSED) and not movable:
            continue
        work_s = job.remaining_s
        if movable and job.run_started_at is not None:
            resumed_s = flex.restart_s if job.attempt > 1 else 0.0
            work_s = max(work_s + resumed_s - (now - job.run_started_at).total_seconds(), min(60.0, work_s))
        named = [view for view in world.regions if not flex.regions or view.name in flex.regions]
        usable = tuple(v for v in named if (movable and v.name == job.region) or (v.reachable and fits(flex, v)))
        if not usable:
            unplaced[job.id] = f"waits: {why_unfit(flex, named)}"
            continue
        deadline = flex.deadline_at
        implied_s = (job.submitted_at - now).total_seconds() + settings.horizon_s
        deadline_s = (deadline - now).total_seconds() if deadline is not None else max(implied_s, 0.0)
        waits = [(when - now).total_seconds() for when in (flex.earliest_at, job.not_before_at) if when is not None]
        planned = None
        if job.planned_region is not None and job.planned_start_at is not None:
            planned = (job.planned_region, (job.planned_start_at - now).total_seconds())
        tasks.append(
            Task(
                job=job,
                work_s=work_s,
                earliest_s=max([0.0, *waits]),
                deadline_s=deadline_s,
                slack_s=settings.deadline_margin_s + settings.runtime_slack * work_s,
                running_in=job.region if movable and any(view.name == job.region for view in usable) else None,
                planned=planned,
                regions=usable,
            )
        )
    return tasks, unplaced


def entry_of(job: JobView, view: RegionView, world: World) -> Entry:
    """What beginning (or resuming) in a region costs a job that does not run there."""
    resumed = job.state in (JobState.PAUSED, JobState.RUNNING)
    origin = job.region if resumed else job.flex.data_region
    move_gb = job.flex.data_gb if origin is not None and origin != view.name else 0.0
    settings = world.settings
    # Nobody moves data ahead of a job: the attempt fetches it when it begins, and so runs longer by that.
    extra_s = move_gb / settings.move_gb_per_s if settings.move_gb_per_s > 0 else 0.0
    extra_s += settings.launch_s + (job.flex.restart_s if resumed else 0.0)
    delay_s = job.flex.checkpoint_s if job.state is JobState.RUNNING else 0.0
    return Entry(delay_s, extra_s, move_gb * settings.move_cost_per_gb)


def price_waits(tasks: Sequence[Task], lanes: dict[str, Lane]) -> None:
    """Fill each task's ``wait_rate``."""
    usual = float(np.mean([np.abs(lane.rate).mean() for lane in lanes.values()])) if lanes else 0.0
    for task in tasks:
        energy_kwh = task.job.flex.power_w / 1000.0 * task.work_s / 3600.0
        task.wait_rate = WAIT_GAIN / 86400.0 * usual * energy_kwh


def measure_alone(tasks: Sequence[Task], lanes: dict[str, Lane], grid: Grid) -> None:
    """Fill each task's ``alone``."""
    for name, lane in lanes.items():
        here = [task for task in tasks if name in task.rules]
        if not here:
            continue
        found = alone(shape_of([_shape(task, name, task.deadline_s) for task in here]), lane, grid)
        for task, *figures in zip(here, found.floor.tolist(), found.cost.tolist(), found.start_s.tolist(), strict=True):
            task.alone[name] = (figures[0], figures[1], figures[2])


def _shape(task: Task, name: str, end_s: float) -> tuple[float, float, float, float, float, bool]:
    entry = Entry() if name == task.running_in else task.entry[name]
    whole = task.job.flex.pausable is not Pausable.CHECKPOINT
    ready_s = task.earliest_s + entry.delay_s
    return ready_s, end_s, task.work_s + entry.restart_s, task.job.flex.power_w, entry.cost, whole


def floors_when_late(tasks: Sequence[Task], lanes: dict[str, Lane], grid: Grid) -> list[float]:
    """For each task a cost that nothing undercuts, however late it may end and in however many pieces."""
    least = np.full(len(tasks), np.inf)
    for name, lane in lanes.items():
        here = [index for index, task in enumerate(tasks) if name in task.rules]
        if here:
            shapes = [(*_shape(tasks[index], name, float(grid.edges[-1]))[:5], False) for index in here]
            least[here] = np.minimum(least[here], alone(shape_of(shapes), lane, grid).floor)
    return [float(value) for value in least]


# --- options ----------------------------------------------------------------------------------------------------------


def go_on(task: Task, lane: Lane, world: World, grid: Grid) -> Option | None:
    """Going on where it runs now, to its end or until a pause that pays or that a power limit asks for; None when a limit
    forbids it to go on at all."""
    added = added_to(lane, task.job.flex.power_w)
    whole = _stay(task, lane, grid, added)
    if whole is not None and not (whole.known and whole.within_slack):
        return whole
    taken, rules = lane.blocked(task.job.flex.gpus, task.job.flex.power_w), task.rules[lane.view.name]
    if rules is not None:
        taken |= rules
    return _parts(task, lane, world, grid, taken, added, whole, going_on=True) or whole


def _stay(task: Task, lane: Lane, grid: Grid, added: Added) -> Option | None:
    end = task.work_s
    last = int(grid.slots_until(np.array([end]))[0])
    if (lane.power + task.job.flex.power_w * lane.view.pue > lane.limit_w + SLACK)[: max(last, 1)].any():
        return None
    rules = task.rules[lane.view.name]
    begin, ends = np.array([0.0]), np.array([end])
    return Option(
        lane.view.name,
        ((0.0, end),),
        float(lane.cost(grid, task.job.flex.power_w, begin, ends)[0]),
        known=not bool(lane.unknown(grid, begin, ends)[0]),
        late_s=max(0.0, end - task.deadline_s),
        within_slack=end <= task.deadline_s - task.slack_s,
        within_rules=rules is None or not bool(rules[: max(last, 1)].any()),
        peak_cost=added.cost(grid, ((0.0, end),)),
    )


def best_in_lane(task: Task, lane: Lane, world: World, grid: Grid, beat: float = np.inf) -> Option | None:
    """The best way to begin (or resume) the job in this region, or None when it has no room up to the horizon. Parts that
    could not cost less than ``beat`` are not looked for."""
    full = lane.blocked(task.job.flex.gpus, task.job.flex.power_w)
    rules = task.rules[lane.view.name]
    taken = full if rules is None else full | rules
    added = added_to(lane, task.job.flex.power_w)
    best = _window(task, lane, grid, taken, added)
    if rules is not None and task.job.flex.deadline_at is not None and (best is None or best.late_s > 0):
        # Its last chance is worth more than its ceilings: a job is never lost to them.
        forced = _window(task, lane, grid, full, added)
        if forced is not None and (best is None or forced.late_s < best.late_s):
            note = "over its ceiling or against a shift rule, because it could not end in time otherwise"
            best = replace(forced, within_rules=False, note=note)
    if task.job.flex.pausable is Pausable.CHECKPOINT and (best is None or best.known):
        in_time = best is not None and best.within_slack and best.within_rules
        return _parts(task, lane, world, grid, taken, added, best if in_time else None, beat=beat) or best
    return best


def _window(task: Task, lane: Lane, grid: Grid, taken: Bools, added: Added) -> Option | None:
    """The best single window among all starts on the grid, and the first possible moment."""
    entry, kw = task.entry[lane.view.name], task.job.flex.power_w / 1000.0
    ready = task.earliest_s + entry.delay_s
    run_s = task.work_s + entry.restart_s
    n = len(taken)
    follower = min(int(np.searchsorted(grid.edges, ready + SLACK, side="right")), n)
    begins = np.concatenate(([ready], grid.edges[follower:n]))
    ends = begins + run_s
    before = np.concatenate(([0], np.cumsum(taken)))
    free = before[grid.slots_until(ends)] <= before[follower - 1 : n]
    within = int(np.searchsorted(ends, min(task.deadline_s - task.slack_s, grid.edges[-1] + SLACK), side="right"))
    sure = free[:within]
    if lane.partly_unknown:
        sure = sure & ~lane.unknown(grid, begins[:within], ends[:within])
    good = np.flatnonzero(sure)
    if len(good):
        spans = np.interp(ends[good], grid.edges, lane.integral) - np.interp(begins[good], grid.edges, lane.integral)
        costs = kw * spans + entry.cost
        totals = costs
        if added.months:
            slots = follower - 1 + good
            totals = costs + added.costs(slots, np.maximum(grid.slots_until(ends[good]), slots + 1))
        waits = task.wait_rate * (begins[good] - ready)
        totals = totals + waits
        least = int(np.argmin(totals))
        # the earliest of those that cost the same: a thousandth is not worth waiting for
        best = int(np.argmax(totals <= totals[least] + 1e-3 * abs(costs[least]) + 1e-12))
        best = _as_planned(task, lane, begins[good], costs, totals, best)
        begin, end = float(begins[good[best]]), float(ends[good[best]])
        return Option(
            lane.view.name,
            ((begin, end),),
            float(costs[best]),
            late_s=max(0.0, end - task.deadline_s),
            peak_cost=float(totals[best] - costs[best] - waits[best]),
            wait_cost=float(waits[best]),
        )
    # Without slack, or without a known price, waiting gains nothing that could be relied on: the first moment is best.
    possible = free & (ends <= grid.edges[-1] + SLACK)
    possible[0] = free[0]
    if not possible.any():
        return None
    index = int(np.argmax(possible))
    first, last = begins[index : index + 1], ends[index : index + 1]
    return Option(
        lane.view.name,
        ((float(first[0]), float(last[0])),),
        float(lane.cost(grid, task.job.flex.power_w, first, last)[0]) + entry.cost,
        known=not bool(lane.unknown(grid, first, last)[0]),
        late_s=max(0.0, float(last[0]) - task.deadline_s),
        within_slack=bool(last[0] <= task.deadline_s - task.slack_s),
        peak_cost=added.cost(grid, ((float(first[0]), float(last[0])),)),
    )


def _as_planned(task: Task, lane: Lane, begins: Floats, costs: Floats, totals: Floats, best: int) -> int:
    """Keep the start that was planned before while a better one gains too little to be worth the change."""
    if task.planned is None or task.planned[0] != lane.view.name:
        return best
    same = np.flatnonzero(np.abs(begins - max(task.planned[1], begins[0])) < 1.0)
    if len(same) and totals[same[0]] <= totals[best] + HYSTERESIS * abs(costs[best]):
        return int(same[0])
    return best


def _parts(
    task: Task,
    lane: Lane,
    world: World,
    grid: Grid,
    taken: Bools,
    added: Added,
    whole: Option | None,
    *,
    going_on: bool = False,
    beat: float = np.inf,
) -> Option | None:
    """The best chunks; where a demand charge is near, those that set no new peak, and others only where that takes one."""
    if not added.months:
        return _chunks(task, lane, world, grid, taken, added, whole, going_on=going_on, beat=beat)
    low = _chunks(task, lane, world, grid, taken | added.new_peak(), Added(), whole, going_on=going_on, beat=beat)
    if whole is not None and whole.peak_cost == 0.0:
        return low
    high = _chunks(task, lane, world, grid, taken, added, whole, going_on=going_on, beat=beat)
    return high if high is not None and (low is None or high.total < low.total) else low


def _chunks(
    task: Task,
    lane: Lane,
    world: World,
    grid: Grid,
    taken: Bools,
    added: Added,
    whole: Option | None,
    *,
    going_on: bool = False,
    beat: float = np.inf,
) -> Option | None:
    """Several windows in cheap slots, each resume and checkpoint paid for with run time; None unless each pause among them
    makes it noticeably cheaper than ``whole`` (None: nothing else ends in time). ``going_on``: the first is the run
    that is under way."""
    min_chunk_s = max(world.settings.min_chunk_s, 2 * (task.job.flex.restart_s + task.job.flex.checkpoint_s))
    entry = Entry() if going_on else task.entry[lane.view.name]
    ready, last = task.earliest_s + entry.delay_s, task.deadline_s - task.slack_s
    if task.work_s < 2 * min_chunk_s:
        return None
    begins, ends = np.maximum(grid.edges[:-1], ready), np.minimum(grid.edges[1:], last)
    usable = ~taken & (ends > begins + SLACK)
    if lane.partly_unknown:
        usable &= np.diff(lane.unknown_s) <= SLACK
    rates = np.sort(lane.rate[usable])
    # So many of the cheapest slots at least; fewer could not hold the work.
    needed = int(task.work_s // world.settings.slot_s)
    kw = task.job.flex.power_w / 1000.0
    if whole is not None:
        beat = min(beat, whole.weight - PAUSE_GAIN * abs(whole.cost))
    if needed >= len(rates) or kw * float(rates[:needed].sum()) * world.settings.slot_s / 3600.0 + entry.cost >= beat:
        return None
    best, best_cost = None, whole.weight if whole is not None else np.inf
    tried = -np.inf
    for share in _SHARES:
        dearest = float(rates[int(needed + share * (len(rates) - 1 - needed))])
        if dearest <= tried:
            continue
        tried = dearest
        cheap = usable & (lane.rate <= dearest + 1e-12)
        if going_on and not cheap[0]:
            continue
        runs = _runs(cheap, begins, ends)
        runs = [run for run in runs if run[1] - run[0] >= min_chunk_s or (going_on and run[0] <= SLACK)]
        again_s = task.job.flex.restart_s + world.settings.launch_s
        intervals = _trim(runs, task, entry.restart_s, again_s, min_chunk_s)
        if intervals is None:
            continue
        if len(intervals) < 2:
            break  # dearer slots only make the one window longer
        spans = np.interp(np.array(intervals), grid.edges, lane.integral)
        cost = kw * float(np.sum(spans[:, 1] - spans[:, 0])) + entry.cost
        peak_cost = added.cost(grid, intervals)
        bother = PAUSE_GAIN * abs(whole.cost if whole is not None else cost) * (len(intervals) - 1)
        lengths = [end - begin for begin, end in intervals]
        waited_s = sum(s * (begin - ready) for s, (begin, _) in zip(lengths, intervals, strict=True)) / sum(lengths)
        wait_cost = task.wait_rate * max(waited_s, 0.0)
        if cost + peak_cost + bother + wait_cost < best_cost:
            best = Option(lane.view.name, tuple(intervals), cost, peak_cost=peak_cost, wait_cost=wait_cost)
            best_cost = cost + peak_cost + bother + wait_cost
    return best


def _runs(mask: Bools, begins: Floats, ends: Floats) -> list[tuple[float, float]]:
    """Stretches of neighbouring slots as (begin, end)."""
    padded = np.zeros(len(mask) + 2, dtype=bool)
    padded[1:-1] = mask
    edges = np.flatnonzero(padded[1:] != padded[:-1])
    return list(zip(begins[edges[::2]].tolist(), ends[edges[1::2] - 1].tolist(), strict=True))


def _trim(
    runs: list[tuple[float, float]], task: Task, first_restart_s: float, again_s: float, min_chunk_s: float
) -> list[tuple[float, float]] | None:
    """The first of ``runs`` that together hold the work, the last cut to what is left of it; None when they do not."""
    left_s = task.work_s + first_restart_s
    intervals: list[tuple[float, float]] = []
    for begin, end in runs:
        if intervals:
            left_s += again_s
        if end - begin >= left_s:
            intervals.append((begin, begin + max(left_s, 0.0)))
            return intervals if intervals[-1][1] - intervals[-1][0] >= min(min_chunk_s, left_s) else None
        intervals.append((begin, end))
        left_s -= end - begin - task.job.flex.checkpoint_s
    return None
