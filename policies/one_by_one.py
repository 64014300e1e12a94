"""Jobs placed one at a time: the cheapest feasible window, or set of chunks, over time x region. Pure.

For what the joint solver leaves alone: sites with a demand charge, and jobs for which no place keeps every promise.

One job at a time, the least flexible first, each against what is left of GPUs, jobs and power; jobs that found no place in time
are promoted and the plan is made again (squeaky wheel), then each job is once more offered what the others left. The lower
bound gives every job its cheapest slots, whole or in part, as if it were alone. Where a site pays a demand charge, plans at
several levels of draw are compared (policies.peak_shaving).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from policies.at_once import Bars
from policies.demand_charge import Draw, peaks_of, reserved_cost
from policies.fit import cannot_begin, pool_for
from policies.grid import Grid, Lane, make_grid, make_lane
from policies.peak_shaving import Shaving, Verdict
from policies.placing import (
    HYSTERESIS,
    PAUSE_GAIN,
    Entry,
    Option,
    Task,
    best_in_lane,
    floors_when_late,
    go_on,
    make_tasks,
    measure_alone,
    price_waits,
)
from policies.sentences import FINEST, amount, hhmm, kw
from policies.serving_headroom import why_kept, why_nowhere
from policies.site_price import SitePrices
from policies.world import PLACED, SLACK, Alternative, JobState, JobView, NewPeak, Pausable, Placement, Plan, World

#: The plan is made anew with another order about once for so many jobs, at most MAX_ROUNDS times.
ROUNDS_FOR, MAX_ROUNDS = 600, 8
#: Beyond this many jobs one pass is already good, and improving it costs seconds.
IMPROVE_UP_TO = 2000
MAX_ALTERNATIVES = 4
#: Rounds for each level of draw that is tried where there is a demand charge: more levels find more than more rounds do.
SHAVING_ROUNDS = 1


def plan(world: World) -> Plan:
    """The plan from ``world.now`` on. Deterministic; looks at nothing but ``world``."""
    tasks, unplaced = make_tasks(world)
    last_s = max([world.settings.horizon_s, *(max(task.deadline_s, task.earliest_s + 1.5 * task.work_s) for task in tasks)])
    moments = [when for budget in world.budgets for when in (budget.start, budget.end) if when is not None]
    grid = make_grid(world.now, world.settings.slot_s, last_s, [(when - world.now).total_seconds() for when in moments])
    base = {view.name: make_lane(view, world, grid) for view in world.regions}
    fixed: dict[str, list[Draw]] = {name: [] for name in base}
    for job, where, length_s in reserve_fixed(world, grid, base):
        fixed[where].append((0.0, length_s, job.flex.power_w * base[where].view.pue))
    for task in tasks:
        task.lay_rules(world, grid, base)
    price_waits(tasks, base)
    measure_alone(tasks, base, grid)
    order = sorted(tasks, key=lambda task: task.urgency)
    best, lanes = _best_of_rounds(order, world, grid, base)
    verdict = _with_demand_charge(best, lanes, order, world, grid, base, fixed)
    if verdict is not None:
        best, lanes = verdict.outcome.chosen, verdict.outcome.lanes

    placements, prices, bars = {}, SitePrices(base, grid, world.settings), Bars(lambda: world)
    for task in tasks:
        option = best.get(task.job.id)
        if option is None:
            unplaced[task.job.id] = f"no region can take it: {why_nowhere(task.job.flex, task.regions, world.now)}"
        else:
            note = verdict.notes.get(task.job.id, "") if verdict is not None else ""
            placements[task.job.id] = _placement(task, option, world, grid, lanes, prices, bars, note)
    objective = _objective(best, tasks, world) + (verdict.outcome.demand_cost if verdict is not None else 0.0)
    bound = min(objective, _bound(best, tasks, grid, base))
    return Plan(
        made_at=world.now,
        horizon_end=grid.moment(grid.edges[-1]),
        slot_s=world.settings.slot_s,
        placements=placements,
        unplaced=unplaced,
        objective=objective,
        bound=bound,
        gap=gap(objective, bound),
        peaks=verdict.peaks if verdict is not None else (),
    )


def reserve_fixed(world: World, grid: Grid, lanes: dict[str, Lane]) -> list[tuple[JobView, str, float]]:
    """Take out what the plan cannot change: what runs and may not be paused, what is starting, leaving, or starts at once.
    What its cluster cannot begin takes nothing. Returns these jobs, each with its region and the seconds it will stay."""
    found: list[tuple[JobView, str, float]] = []
    for job in world.jobs:
        length_s = job.remaining_s
        where = job.region
        if job.state in PLACED:
            if job.state is JobState.PAUSING or job.cancel_requested:
                length_s = min(length_s, job.flex.checkpoint_s)
            elif job.state is JobState.RUNNING:
                pausable = job.flex.flexible and job.flex.pausable is Pausable.CHECKPOINT
                movable = pausable and not job.held and not job.run_now
                if movable:
                    continue
                ran_s = (world.now - job.run_started_at).total_seconds() if job.run_started_at else 0.0
                length_s = max(length_s - ran_s, min(60.0, job.remaining_s))
        elif job.flex.flexible or job.held or job.cancel_requested:
            continue
        else:
            where = world.settings.default_region
        if where is not None and where in lanes and not cannot_begin(job, lanes[where].view):
            lanes[where].reserve(grid, 0.0, length_s, job.flex.gpus, job.flex.power_w)
            found.append((job, where, length_s))
    return found


def new_peaks(world: World, placements: Mapping[str, Placement]) -> tuple[NewPeak, ...]:
    """The months whose demand charge these placements raise, each with what that costs."""
    last_s = max([0.0, *((end - world.now).total_seconds() for p in placements.values() for _, end in p.intervals)])
    grid = make_grid(world.now, world.settings.slot_s, max(world.settings.horizon_s, last_s))
    base = {view.name: make_lane(view, world, grid) for view in world.regions}
    fixed: dict[str, list[Draw]] = {name: [] for name in base}
    for job, where, length_s in reserve_fixed(world, grid, base):
        fixed[where].append((0.0, length_s, job.flex.power_w * base[where].view.pue))
    draws = {name: list(known) for name, known in fixed.items()}
    for job in world.jobs:
        placement = placements.get(job.id)
        if placement is not None and placement.region in draws:
            watts = job.flex.power_w * base[placement.region].view.pue
            draws[placement.region] += [(max(grid.seconds(a), 0.0), grid.seconds(b), watts) for a, b in placement.intervals]
    found = []
    for view in world.regions:
        for peak in peaks_of(view, grid, fixed[view.name]):
            high_w = peak.highest_w(draws[view.name], view.bypass_w)
            cost = peak.per_w * (high_w - peak.stands_w)
            if cost > 0:
                levels = f"{kw(high_w)} ({kw(peak.stands_w)} so far)"
                sentence = f"sets a new peak of {levels}, which costs less than holding it would"
                found.append(NewPeak(view.name, peak.stands_w, high_w, cost, sentence))
    return tuple(found)


def gap(objective: float, bound: float | None) -> float | None:
    """How far an objective may be above the best there is, as a share of it; None where there is no bound, and for an
    objective of nothing above a bound that lies lower."""
    if bound is None:
        return None
    if abs(objective) > 1e-9:
        return (objective - bound) / abs(objective)
    return 0.0 if objective - bound <= 1e-9 else None


@dataclass(frozen=True)
class FilledIn:
    """Jobs placed beside a plan: their placements, why others have none, what they cost and the least they could."""

    placements: dict[str, Placement]
    unplaced: dict[str, str]
    objective: float
    bound: float


def fill_in(world: World, jobs: Sequence[JobView], beside: Mapping[str, Placement]) -> FilledIn:
    """Place ``jobs``, one after the other, in the room that the placements ``beside`` leave; promises that cannot be kept all
    are broken in the order of Option.order. Limits are not, but for teams' quotas, and a region's pools count as one."""
    tasks, unplaced, grid, base, lanes = _beside(world, jobs, beside)
    best: dict[str, Option] = {}
    for task in sorted(tasks, key=lambda task: task.urgency):
        _place(task, best, world, grid, lanes)
    placements, prices, bars = {}, SitePrices(base, grid, world.settings), Bars(lambda: world)
    for task in tasks:
        option = best.get(task.job.id)
        if option is None:
            unplaced[task.job.id] = f"no region can take it: {why_nowhere(task.job.flex, task.regions, world.now)}"
        else:
            placements[task.job.id] = _placement(task, option, world, grid, lanes, prices, bars)
    return FilledIn(placements, unplaced, _objective(best, tasks, world), _bound(best, tasks, grid, base))


def alternatives(world: World, job_id: str) -> tuple[Alternative, ...]:
    """What ``world.plan`` could have done with a job instead, beside all others, and what each would cost."""
    job = next((one for one in world.jobs if one.id == job_id), None)
    placement = world.plan.placements.get(job_id) if world.plan is not None else None
    if job is None or placement is None or world.plan is None:
        return ()
    others = {other: placed for other, placed in world.plan.placements.items() if other != job_id}
    tasks, _, grid, _, lanes = _beside(world, [job], others)
    if not tasks or placement.region not in lanes:
        return ()
    spans = tuple((max(grid.seconds(a), 0.0), grid.seconds(b)) for a, b in placement.intervals)
    option = Option(placement.region, spans, placement.cost or 0.0, known=placement.cost is not None)
    at_once = _at_once(tasks[0], world, grid, lanes)
    return _alternatives(tasks[0], option, world, grid, lanes, at_once, Bars(lambda: world), "")


def _beside(
    world: World, jobs: Sequence[JobView], beside: Mapping[str, Placement]
) -> tuple[list[Task], dict[str, str], Grid, dict[str, Lane], dict[str, Lane]]:
    """Tasks of ``jobs``, and the lanes with nothing but what is fixed, and with what is placed ``beside``."""
    tasks, unplaced = make_tasks(replace(world, jobs=tuple(jobs)))
    last_s = max([world.settings.horizon_s, *(max(task.deadline_s, task.earliest_s + 1.5 * task.work_s) for task in tasks)])
    moments = [when for budget in world.budgets for when in (budget.start, budget.end) if when is not None]
    grid = make_grid(world.now, world.settings.slot_s, last_s, [(when - world.now).total_seconds() for when in moments])
    base = {view.name: make_lane(view, world, grid) for view in world.regions}
    reserve_fixed(world, grid, base)
    for task in tasks:
        task.lay_rules(world, grid, base)
    price_waits(tasks, base)
    measure_alone(tasks, base, grid)
    lanes = {name: lane.copy() for name, lane in base.items()}
    sizes = {job.id: job.flex for job in world.jobs}
    for job_id, placement in beside.items():
        flex = sizes.get(job_id)
        if flex is None or placement.region not in lanes:
            continue
        for begin, end in placement.intervals:
            begin_s, end_s = grid.seconds(begin), grid.seconds(end)
            if end_s > 0:
                lanes[placement.region].reserve(grid, max(begin_s, 0.0), end_s, flex.gpus, flex.power_w)
    return tasks, unplaced, grid, base, lanes


# --- choosing ---------------------------------------------------------------------------------------------------------


def _best_of_rounds(
    order: list[Task], world: World, grid: Grid, base: dict[str, Lane], most: int = MAX_ROUNDS
) -> tuple[dict[str, Option], dict[str, Lane]]:
    """Place everything a few times, at most ``most``, each time first those that came too late or were driven furthest from
    their best place; keep the best outcome."""
    best: dict[str, Option] = {}
    lanes, best_score = base, (np.inf, np.inf)
    rounds = min(most, 1 + ROUNDS_FOR // max(1, len(order)))
    for number in range(max(min(2, most), rounds)):
        trial = {name: lane.copy() for name, lane in base.items()}
        chosen: dict[str, Option] = {}
        for task in order:
            _place(task, chosen, world, grid, trial)
        if len(order) <= IMPROVE_UP_TO:
            for task in order:
                before = chosen.pop(task.job.id, None)
                if before is not None:
                    _reserve(task, before, grid, trial, -1.0)
                _place(task, chosen, world, grid, trial, keep=before)
        late = {task.job.id for task in order if task.job.id not in chosen or chosen[task.job.id].late_s > 0}
        lateness = sum(chosen[i].late_s if i in chosen else 1e9 for i in late)
        # what each job added when it was placed is not what all of them cost: a peak is paid once
        score = (lateness, sum(option.cost for option in chosen.values()) + reserved_cost(trial.values()))
        if score < best_score:
            best, best_score, lanes = chosen, score, trial
        promoted = [task for task in order if task.job.id in late and task.can_be_in_time]
        if not promoted and number + 1 < rounds:
            promoted = _driven_away(order, chosen)
        if not promoted:
            break
        moved = {task.job.id for task in promoted}
        order = promoted + [task for task in order if task.job.id not in moved]
    return best, lanes


def _with_demand_charge(
    best: dict[str, Option],
    lanes: dict[str, Lane],
    order: list[Task],
    world: World,
    grid: Grid,
    base: dict[str, Lane],
    fixed: Mapping[str, list[Draw]],
) -> Verdict | None:
    """The plan made as if peaks were free, or one that costs less with what new peaks cost; None without a demand charge."""
    peaks = [(view.name, peak) for view in world.regions for peak in peaks_of(view, grid, fixed[view.name])]
    if not peaks:
        return None
    shaving = Shaving(grid, order, base, fixed, peaks, world.settings.currency)
    return shaving.choose(
        shaving.weigh(best, lanes), lambda priced: _best_of_rounds(order, world, grid, priced, most=SHAVING_ROUNDS)
    )


def _driven_away(order: list[Task], chosen: dict[str, Option]) -> list[Task]:
    """Those whose place costs most above what they would pay alone: half of that regret, at least the first of them."""
    regrets = [
        (chosen[t.job.id].total - min(figures[0] for figures in t.alone.values()), t) for t in order if t.job.id in chosen
    ]
    regrets = [(regret, task) for regret, task in regrets if regret > 1e-9]
    regrets.sort(key=lambda pair: -pair[0])
    half = sum(regret for regret, _ in regrets) / 2
    worst: list[Task] = []
    for regret, task in regrets:
        if half <= 0:
            break
        worst.append(task)
        half -= regret
    return worst


def _reserve(task: Task, option: Option, grid: Grid, lanes: dict[str, Lane], sign: float = 1.0) -> None:
    for begin, end in option.intervals:
        lanes[option.region].reserve(grid, begin, end, task.job.flex.gpus, task.job.flex.power_w, sign)


def _place(
    task: Task, chosen: dict[str, Option], world: World, grid: Grid, lanes: dict[str, Lane], keep: Option | None = None
) -> None:
    unknown = task.running_in is not None and not lanes[task.running_in].view.reachable
    option = keep if unknown else _cheapest(task, world, grid, lanes) or keep
    if task.running_in is not None:
        here = go_on(task, lanes[task.running_in], world, grid)
        cheaper = option is not None and option.late_s <= 0 and _saves(option, here) if here else True
        option = option if option is not None and cheaper else here or option
    if option is not None:
        chosen[task.job.id] = option
        _reserve(task, option, grid, lanes)


def _cheapest(task: Task, world: World, grid: Grid, lanes: dict[str, Lane]) -> Option | None:
    """The best of all regions; one that cannot be better even without other jobs is not looked at."""
    best: Option | None = None
    planned = task.planned[0] if task.planned is not None else ""
    gain = 0.0
    for name in sorted(task.rules, key=lambda name: (name != planned, task.alone[name][0])):
        if not lanes[name].view.reachable:
            continue  # what runs there is unknown, and nothing new is sent there
        if best is not None and best.clean and task.alone[name][0] >= best.weight - gain * abs(best.cost):
            continue
        beat = best.weight if best is not None and best.clean else np.inf
        option = best_in_lane(task, lanes[name], world, grid, beat)
        if option is None:
            continue
        if best is None or option.order < best.order:
            if best is not None and best.clean and option.clean and option.weight >= best.weight - gain * abs(best.cost):
                continue
            best, gain = option, HYSTERESIS if name == planned else 0.0
    return best


def _saves(option: Option, here: Option) -> bool:
    """Whether pausing now for ``option`` saves enough against going on, each pause counted. A ceiling or a shift rule that
    going on would break is worth any pause."""
    if option.clean and not here.within_rules:
        return True
    more_pauses = 1 + len(option.intervals) - len(here.intervals)
    return option.weight < here.weight - PAUSE_GAIN * abs(here.cost) * max(1, more_pauses)


# --- telling ----------------------------------------------------------------------------------------------------------


def _objective(best: dict[str, Option], tasks: Iterable[Task], world: World) -> float:
    """Planning currency: energy and carbon, moving, restarting, and what finishing late costs."""
    total = 0.0
    for task in tasks:
        option = best.get(task.job.id)
        if option is not None:
            late_h = option.late_s / 3600.0 if task.job.flex.deadline_at is not None else 0.0
            total += option.cost + late_h * world.settings.late_cost_per_h
    return total


def _bound(best: dict[str, Option], tasks: Iterable[Task], grid: Grid, lanes: dict[str, Lane]) -> float:
    """No schedule can place these jobs cheaper: each at its cheapest place and time, as if it were alone."""
    total, late = 0.0, []
    for task in tasks:
        option = best.get(task.job.id)
        if option is None:
            continue
        if option.late_s > 0 or not option.within_rules:
            late.append((task, option))
        else:
            total += min(option.cost, *(figures[0] for figures in task.alone.values()))
    floors = floors_when_late([task for task, _ in late], lanes, grid)
    return total + sum(min(option.cost, floor) for (_, option), floor in zip(late, floors, strict=True))


def _placement(
    task: Task,
    option: Option,
    world: World,
    grid: Grid,
    lanes: dict[str, Lane],
    prices: SitePrices,
    bars: Bars,
    peak_note: str = "",
) -> Placement:
    lane, job = lanes[option.region], task.job
    begins, ends = np.array([i[0] for i in option.intervals]), np.array([i[1] for i in option.intervals])
    energy_kwh = float(np.sum(ends - begins)) * job.flex.power_w * lane.view.pue / 3.6e6
    carbon = _integral(lane.carbon, grid, begins, ends)
    at_once = _at_once(task, world, grid, lanes)
    others = dict(lanes)
    others[option.region] = lane.copy()
    _reserve(task, option, grid, others, -1.0)
    alternatives = _alternatives(task, option, world, grid, others, at_once, bars, peak_note)
    barred = None
    if at_once is not None and option.intervals[0][0] > at_once.begin_s + 1.0:
        barred = _barred(task, grid, others[at_once.region], at_once.begin_s, at_once.end_s, bars)
    reason = _sentence(task, option, grid, prices, at_once, barred)
    return Placement(
        job_id=job.id,
        region=option.region,
        intervals=tuple((grid.moment(a), grid.moment(b)) for a, b in option.intervals),
        cost=option.cost if option.known else None,
        energy_kwh=energy_kwh,
        carbon_kg=None if np.isnan(carbon) else carbon / 3600.0 * job.flex.power_w * lane.view.pue / 1e6,
        late_s=option.late_s if job.flex.deadline_at is not None else 0.0,
        reason=f"{reason}; {peak_note}" if peak_note else reason,
        run_now_cost=at_once.cost if at_once is not None else None,
        alternatives=alternatives,
        gpu_type=pool.gpu_type if (pool := pool_for(job.flex, lane.view)) is not None else None,
    )


def _integral(values: np.ndarray, grid: Grid, begins: np.ndarray, ends: np.ndarray) -> float:
    """Integral of a slot series over intervals, unit x s; NaN when a part is unknown."""
    total = 0.0
    for begin, end in zip(begins, ends, strict=True):
        overlap = np.clip(np.minimum(grid.edges[1:], end) - np.maximum(grid.edges[:-1], begin), 0.0, None)
        inside = overlap > 0
        total += float(np.sum(values[inside] * overlap[inside]))
    return total


@dataclass(frozen=True)
class _AtOnce:
    """The run that starts as soon as the job may: at home, else in its first region. ``cost`` has what a plan's cost has (None:
    a price is not known)."""

    region: str
    begin_s: float
    end_s: float
    cost: float | None

    @property
    def spans(self) -> tuple[tuple[float, float], ...]:
        return ((self.begin_s, self.end_s),)


def _at_once(task: Task, world: World, grid: Grid, lanes: dict[str, Lane]) -> _AtOnce | None:
    names = list(task.rules)
    if not names:
        return None
    home = task.running_in or (world.settings.default_region if world.settings.default_region in names else names[0])
    entry = Entry() if home == task.running_in else task.entry[home]
    begin_s = task.earliest_s + entry.delay_s
    end_s = begin_s + task.work_s + entry.restart_s
    lane, begin, end = lanes[home], np.array([begin_s]), np.array([end_s])
    known = not lane.unknown(grid, begin, end)[0]
    cost = float(lane.cost(grid, task.job.flex.power_w, begin, end)[0]) + entry.cost if known else None
    return _AtOnce(home, begin_s, end_s, cost)


def _alternatives(
    task: Task,
    option: Option,
    world: World,
    grid: Grid,
    lanes: dict[str, Lane],
    at_once: _AtOnce | None,
    bars: Bars,
    peak_note: str,
) -> tuple[Alternative, ...]:
    """What the plan would have done otherwise: start now, and the best in each other region, with what each would cost.
    ``lanes`` have all other jobs and not this one."""
    found = []
    if at_once is not None and (at_once.region != option.region or option.intervals[0][0] > at_once.begin_s + 1.0):
        name, cost, last_s = at_once.region, at_once.cost, at_once.end_s
        why = _why_not(task, option, world, grid, lanes[name], at_once.begin_s, last_s, cost, bars, peak_note)
        found.append(Alternative(name, grid.moment(at_once.begin_s), cost, why))
    for name, (_, alone_cost, start_s) in task.alone.items():
        if name == option.region:
            continue
        if not np.isfinite(alone_cost):
            found.append(Alternative(name, grid.moment(start_s), None, "would end after the deadline"))
            continue
        end_s = start_s + task.work_s + (0.0 if name == task.running_in else task.entry[name].restart_s)
        unknown = bool(lanes[name].unknown(grid, np.array([start_s]), np.array([end_s]))[0])
        cost = None if unknown else alone_cost
        why = _why_not(task, option, world, grid, lanes[name], start_s, end_s, cost, bars, peak_note)
        found.append(Alternative(name, grid.moment(start_s), cost, why))
    return tuple(found[:MAX_ALTERNATIVES])


def _touched(grid: Grid, begin_s: float, end_s: float) -> slice:
    """The slots that a run over ``[begin_s, end_s)`` touches."""
    first = max(int(np.searchsorted(grid.edges, begin_s + SLACK, side="right")) - 1, 0)
    return slice(first, max(int(grid.slots_until(np.array([end_s]))[0]), first + 1))


def _barred(task: Task, grid: Grid, lane: Lane, begin_s: float, end_s: float, bars: Bars) -> str | None:
    """Why there is no room for a run over ``[begin_s, end_s)``; None where there is."""
    if not lane.blocked(task.job.flex.gpus, task.job.flex.power_w)[_touched(grid, begin_s, end_s)].any():
        return None
    return bars.why_not(task.job, lane.view.name, begin_s, end_s) or "has no room for it then"


def _why_not(
    task: Task,
    option: Option,
    world: World,
    grid: Grid,
    lane: Lane,
    begin_s: float,
    end_s: float,
    cost: float | None,
    bars: Bars,
    peak_note: str,
) -> str:
    """Why a run over ``[begin_s, end_s)`` was not chosen: what stands against it, before what it costs."""
    touched = _touched(grid, begin_s, end_s)
    rules = task.rules[lane.view.name]
    if not lane.view.reachable:
        return "it does not answer"
    if (barred := _barred(task, grid, lane, begin_s, end_s, bars)) is not None:
        return barred
    if rules is not None and rules[touched].any():
        return "a ceiling or a shift rule forbids it"
    if cost is None or not option.known:
        return "its cost is unknown"
    if end_s > task.deadline_s - task.slack_s and option.within_slack:
        return "would leave too little time before its deadline"
    more = cost - option.cost
    if more > max(FINEST, 1e-3 * abs(option.cost)):
        return f"costs {amount(more, world.settings.currency)} more"
    if peak_note:
        return peak_note
    if more > -max(FINEST, 1e-3 * abs(option.cost)):
        return "costs the same"
    saved = amount(-more, world.settings.currency)
    return f"would save {saved}: too little for a change, or not known yet when the plan was made"


def _sentence(task: Task, option: Option, grid: Grid, prices: SitePrices, at_once: _AtOnce | None, barred: str | None) -> str:
    job = task.job
    start = grid.moment(option.intervals[0][0])
    deadline = f", deadline {hhmm(job.flex.deadline_at)}" if job.flex.deadline_at is not None else ""
    immediate = option.intervals[0][0] <= task.earliest_s + 1.0
    if option.note:
        return f"{option.note}: {option.region} from {hhmm(start)}{deadline}"
    if option.late_s > 0 and job.flex.deadline_at is not None:
        view = next(view for view in task.regions if view.name == option.region)
        kept = why_kept(job.flex, view, grid.moment(0.0), before=start)
        because = f"; {kept}" if kept is not None else ""
        return f"cannot end by its deadline any more: earliest in {option.region} from {hhmm(start)}{deadline}{because}"
    if not option.known:
        return f"price unknown, so waiting gains nothing it could know of: {option.region} from {hhmm(start)}{deadline}"
    if immediate and len(option.intervals) == 1:
        told = prices.told(option.region, option.intervals)
        at = "now" if option.intervals[0][0] <= 1.0 else f"from {hhmm(start)}, its earliest"
        return f"{option.region} {at}: {told}, no better time or place before it must end{deadline}"
    chunks = f" in {len(option.intervals)} parts" if len(option.intervals) > 1 else ""
    if barred is not None:  # what cannot be is no price to compare with
        told = prices.told(option.region, option.intervals)
        return f"{option.region} from {hhmm(start)}{chunks}: it cannot start at once ({barred}); {told}{deadline}"
    told = prices.told(option.region, option.intervals, *((at_once.region, at_once.spans) if at_once is not None else ()))
    return f"{option.region} from {hhmm(start)}{chunks}: {told}{deadline}"
