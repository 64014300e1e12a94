"""The ways to place one job in one region, and the best of them. Pure numpy; it sees one region's free room at a time.

A job that may not be paused gets one window; one that can be paused may also get several chunks, each resume paid for.
"""

from dataclasses import dataclass, field

import numpy as np

from policies.grid import Bools, Floats, Grid, Lane, shifted_away
from policies.room import SLACK
from policies.world import JobState, JobView, Pausable, RegionView, World

#: A new place must be this much cheaper (share of cost) before a running job is moved or a planned start is changed.
HYSTERESIS = 0.02
#: What each pause must save, as a share of the cost without it: every pause is also a risk, and a nuisance to its owner.
PAUSE_GAIN = 0.05
#: Share of the window's free slots, cheapest first, from which chunks are tried.
_SHARES = np.linspace(0.1, 1.0, 8)


@dataclass(frozen=True)
class Option:
    """A way to place a job: intervals in seconds from now, cost in the planning currency (unknown stretches count as 0), late
    by ``late_s``; ``within_slack`` tells whether it keeps the slack for uncertain run times, ``within_rules`` the ceilings."""

    region: str
    intervals: tuple[tuple[float, float], ...]
    cost: float
    known: bool = True
    late_s: float = 0.0
    within_slack: bool = True
    within_rules: bool = True
    note: str = ""

    @property
    def order(self) -> tuple[float, bool, bool, bool, float, float]:
        """Best first: in time, within its ceilings, known, with slack to spare, cheap, early."""
        return (
            self.late_s,
            not self.within_rules,
            not self.known,
            not self.within_slack,
            self.cost,
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

    ``rules`` has the slots a region's ceilings and shift rules forbid, ``entry`` what beginning there costs. ``urgency`` orders
    tasks, ``nowhere`` says why no region is left.
    """

    job: JobView
    work_s: float
    earliest_s: float
    deadline_s: float
    slack_s: float
    running_in: str | None
    planned: tuple[str, float] | None
    regions: tuple[RegionView, ...]
    nowhere: str
    rules: dict[str, Bools] = field(default_factory=dict)
    entry: dict[str, Entry] = field(default_factory=dict)

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
            mask = shifted_away(view.name, allowed, world.shifts, grid)
            if flex.max_price is not None:
                mask |= ~(lane.price <= flex.max_price)
            if flex.max_carbon is not None:
                mask |= ~(lane.carbon <= flex.max_carbon)
            self.rules[view.name] = mask
            self.entry[view.name] = _entry(self.job, view, world)


def make_tasks(world: World) -> tuple[list[Task], dict[str, str]]:
    """A Task for each job that the plan may place, and why the others that wait cannot be placed."""
    tasks, unplaced = [], {}
    now, settings = world.now, world.settings
    for job in world.jobs:
        flex = job.flex
        movable = job.state is JobState.RUNNING and flex.pausable is Pausable.CHECKPOINT
        if not flex.flexible or job.held or job.cancel_requested or job.pause_requested:
            continue
        if job.state not in (JobState.QUEUED, JobState.PAUSED) and not movable:
            continue
        work_s = job.remaining_s
        if movable and job.run_started_at is not None:
            resumed_s = flex.restart_s if job.attempt > 1 else 0.0
            work_s = max(work_s + resumed_s - (now - job.run_started_at).total_seconds(), min(60.0, work_s))
        named = [view for view in world.regions if not flex.regions or view.name in flex.regions]
        usable = tuple(view for view in named if (view.reachable or (movable and view.name == job.region)) and _fits(job, view))
        if not usable:
            silent = [view.name for view in named if not view.reachable]
            why = f"{', '.join(silent)} does not answer" if silent else f"it needs {flex.gpus:g} GPUs or {flex.power_w:g} W"
            unplaced[job.id] = f"waits: no region can take it now ({why})"
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
                running_in=job.region if movable else None,
                planned=planned,
                regions=usable,
                nowhere="every slot is taken",
            )
        )
    return tasks, unplaced


def _fits(job: JobView, view: RegionView) -> bool:
    """Whether the region could ever take the job."""
    gpus_fit = view.gpus is None or job.flex.gpus <= view.gpus + SLACK
    power_fits = view.power_limit_w is None or job.flex.power_w * view.pue <= view.power_limit_w + SLACK
    return gpus_fit and power_fits and (view.max_jobs is None or view.max_jobs > 0)


def _entry(job: JobView, view: RegionView, world: World) -> Entry:
    resumed = job.state in (JobState.PAUSED, JobState.RUNNING)
    origin = job.region if resumed else job.flex.data_region
    move_gb = job.flex.data_gb if origin is not None and origin != view.name else 0.0
    settings = world.settings
    # Nobody moves data ahead of a job: the attempt fetches it when it begins, and so runs longer by that.
    extra_s = move_gb / settings.move_gb_per_s if settings.move_gb_per_s > 0 else 0.0
    extra_s += job.flex.restart_s if resumed else 0.0
    delay_s = job.flex.checkpoint_s if job.state is JobState.RUNNING else 0.0
    return Entry(delay_s, extra_s, move_gb * settings.move_cost_per_gb)


# --- options ----------------------------------------------------------------------------------------------------------


def go_on(task: Task, lane: Lane, world: World, grid: Grid) -> Option | None:
    """Going on where it runs now, to its end or until a pause that pays or that a power limit asks for; None when a limit
    forbids it to go on at all."""
    whole = _stay(task, lane, grid)
    if whole is not None and not (whole.known and whole.within_slack):
        return whole
    taken = lane.blocked(task.job.flex.gpus, task.job.flex.power_w) | task.rules[lane.view.name]
    return _chunks(task, lane, world, grid, taken, whole, going_on=True) or whole


def _stay(task: Task, lane: Lane, grid: Grid) -> Option | None:
    end = task.work_s
    last = int(grid.slots_until(np.array([end]))[0])
    if (lane.power + task.job.flex.power_w * lane.view.pue > lane.limit_w + SLACK)[: max(last, 1)].any():
        return None
    begin, ends = np.array([0.0]), np.array([end])
    return Option(
        lane.view.name,
        ((0.0, end),),
        float(lane.cost(grid, task.job.flex.power_w, begin, ends)[0]),
        known=not bool(lane.unknown(grid, begin, ends)[0]),
        late_s=max(0.0, end - task.deadline_s),
        within_slack=end <= task.deadline_s - task.slack_s,
    )


def best_in_lane(task: Task, lane: Lane, world: World, grid: Grid) -> Option | None:
    """The best way to begin (or resume) the job in this region, or None when it has no room up to the horizon."""
    full = lane.blocked(task.job.flex.gpus, task.job.flex.power_w)
    rules = task.rules[lane.view.name]
    best = _window(task, lane, grid, full | rules)
    if rules.any() and (best is None or best.late_s > 0):
        # Its last chance is worth more than its ceilings: a job is never lost to them.
        forced = _window(task, lane, grid, full)
        if forced is not None and (best is None or forced.late_s < best.late_s):
            best = Option(
                forced.region,
                forced.intervals,
                forced.cost,
                forced.known,
                forced.late_s,
                forced.within_slack,
                within_rules=False,
                note="over its ceiling or against a shift rule, because it could not end in time otherwise",
            )
    if task.job.flex.pausable is Pausable.CHECKPOINT and (best is None or best.known):
        in_time = best is not None and best.within_slack and best.within_rules
        return _chunks(task, lane, world, grid, full | rules, best if in_time else None) or best
    return best


def _window(task: Task, lane: Lane, grid: Grid, taken: Bools) -> Option | None:
    """The best single window among all starts on the grid, and the first possible moment."""
    entry, power_w = task.entry[lane.view.name], task.job.flex.power_w
    ready = task.earliest_s + entry.delay_s
    run_s = task.work_s + entry.restart_s
    begins = np.concatenate(([ready], grid.edges[:-1][grid.edges[:-1] > ready + SLACK]))
    ends = begins + run_s
    before = np.concatenate(([0], np.cumsum(taken)))
    first = np.minimum(np.searchsorted(grid.edges, begins + SLACK, side="right") - 1, len(taken))
    free = (before[np.maximum(grid.slots_until(ends), first)] - before[first]) == 0
    free &= (ends <= grid.edges[-1] + SLACK) | (begins <= ready + SLACK)
    if not free.any():
        return None
    costs = lane.cost(grid, power_w, begins, ends) + entry.cost
    unknown = lane.unknown(grid, begins, ends)
    slack = ends <= task.deadline_s - task.slack_s

    def option(index: int) -> Option:
        return Option(
            lane.view.name,
            ((float(begins[index]), float(ends[index])),),
            float(costs[index]),
            known=not bool(unknown[index]),
            late_s=max(0.0, float(ends[index]) - task.deadline_s),
            within_slack=bool(slack[index]),
        )

    good = np.flatnonzero(free & ~unknown & slack)
    if len(good):
        least = float(costs[good].min())
        # the earliest of those that cost the same: a thousandth is not worth waiting for
        index = int(good[np.argmax(costs[good] <= least + 1e-3 * abs(least) + 1e-12)])
        return option(_as_planned(task, lane, begins, costs, good, index))
    # Without slack, or without a known price, waiting gains nothing that could be relied on: the first moment is best.
    return option(int(np.flatnonzero(free)[0]))


def _as_planned(task: Task, lane: Lane, begins: Floats, costs: Floats, good: np.ndarray, best: int) -> int:
    """Keep the start that was planned before while a better one gains too little to be worth the change."""
    if task.planned is None or task.planned[0] != lane.view.name:
        return best
    same = good[np.abs(begins[good] - max(task.planned[1], begins[0])) < 1.0]
    if len(same) and costs[same[0]] <= costs[best] + HYSTERESIS * abs(costs[best]):
        return int(same[0])
    return best


def _chunks(
    task: Task, lane: Lane, world: World, grid: Grid, taken: Bools, whole: Option | None, *, going_on: bool = False
) -> Option | None:
    """Several windows in cheap slots, each resume and checkpoint paid for with run time; None unless each pause among them
    makes it noticeably cheaper than ``whole`` (None: nothing else ends in time). ``going_on``: the first is the run that is under way."""
    min_chunk_s = max(world.settings.min_chunk_s, 2 * (task.job.flex.restart_s + task.job.flex.checkpoint_s))
    entry = Entry() if going_on else task.entry[lane.view.name]
    ready, last = task.earliest_s + entry.delay_s, task.deadline_s - task.slack_s
    begins, ends = np.maximum(grid.edges[:-1], ready), np.minimum(grid.edges[1:], last)
    usable = ~taken & (ends > begins + SLACK) & ~np.isnan(lane.price)
    if task.work_s < 2 * min_chunk_s or not usable.any():
        return None
    rates = np.sort(lane.rate[usable])
    best, best_cost = None, whole.cost if whole is not None else np.inf
    for share in _SHARES:
        cheap = usable & (lane.rate <= rates[int(share * (len(rates) - 1))] + 1e-12)
        if going_on and not cheap[0]:
            continue
        runs = _runs(cheap, begins, ends)
        runs = [run for run in runs if run[1] - run[0] >= min_chunk_s or (going_on and run[0] <= SLACK)]
        intervals = _trim(runs, task, entry.restart_s, min_chunk_s)
        if intervals is None or len(intervals) < 2:
            continue
        b, e = np.array([i[0] for i in intervals]), np.array([i[1] for i in intervals])
        cost = float(np.sum(lane.cost(grid, task.job.flex.power_w, b, e))) + entry.cost
        with_bother = cost + PAUSE_GAIN * abs(whole.cost if whole is not None else cost) * (len(intervals) - 1)
        if not lane.unknown(grid, b, e).any() and with_bother < best_cost:
            best, best_cost = Option(lane.view.name, tuple(intervals), cost), with_bother
    return best


def _runs(mask: Bools, begins: Floats, ends: Floats) -> list[tuple[float, float]]:
    """Stretches of neighbouring slots as (begin, end)."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.astype(np.int8), [0]))))
    return [(float(begins[a]), float(ends[b - 1])) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _trim(
    runs: list[tuple[float, float]], task: Task, first_restart_s: float, min_chunk_s: float
) -> list[tuple[float, float]] | None:
    """The first of ``runs`` that together hold the work, the last cut to what is left of it; None when they do not."""
    left_s = task.work_s + first_restart_s
    intervals: list[tuple[float, float]] = []
    for begin, end in runs:
        if intervals:
            left_s += task.job.flex.restart_s
        if end - begin >= left_s:
            intervals.append((begin, begin + max(left_s, 0.0)))
            return intervals if intervals[-1][1] - intervals[-1][0] >= min(min_chunk_s, left_s) else None
        intervals.append((begin, end))
        left_s -= end - begin - task.job.flex.checkpoint_s
    return None
