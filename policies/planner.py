"""The ``gridshift`` policy: one joint plan for all jobs over time, region, GPU type and power cap, with a proof of its quality.

It lays jobs and regions out as arrays (policies.book, policies.fleet), has them solved (policies.solver) and says the answer
in sentences. What the solver leaves out, because no place keeps every promise, is placed one by one (policies.one_by_one), and
so is everything where the joint plan would raise a demand charge and that costs less. Pure: it looks at nothing but the World
it is given and its own last plan.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from policies import book as col
from policies import daily_budgets, one_by_one, solver
from policies.at_once import Bars
from policies.book import Book
from policies.fleet import Layout, lay_out, work_of
from policies.policy import Knows
from policies.problem import Answer, Fleet, Ints, Work
from policies.sentences import hhmm, words
from policies.site_price import SitePrices
from policies.world import Alternative, JobState, JobView, Placement, Plan, RegionView, World

#: Rows kept free for jobs that come between two plans: a share of those there are, and at least so many.
SPARE_SHARE, SPARE = 0.05, 64


@dataclass
class _Standing:
    """The last plan as the solver holds it: ``at`` is where each job id stands among its rows, ``ids`` the other way round."""

    layout: Layout
    solver: solver.Solver
    at: dict[str, int]
    ids: list[str | None]
    spare: list[int]
    now_s: float


class Gridshift:
    """See the module. ``effort`` scales how long it looks for better plans; it is counted in tries, never in seconds."""

    name = "gridshift"
    knows = Knows.RUNTIME
    replans = True

    def __init__(self, effort: float = 1.0) -> None:
        self.effort = effort
        self._book: Book | None = None
        self._warm: tuple[float, solver.Warm] | None = None
        self._standing: _Standing | None = None
        self._said: dict[str, tuple[object, Placement]] = {}
        #: Every job there is, also those that no plan moves, as last seen.
        self._jobs: dict[str, JobView] = {}

    # --- the protocol ---------------------------------------------------------------------------------------------

    def plan(self, world: World) -> Plan:
        """The plan from ``world.now`` on."""
        joint = self._joint(world)
        if not any(view.demand for view in world.regions):
            return joint
        peaks = one_by_one.new_peaks(world, joint.placements)
        if not peaks:
            return joint
        careful, total = one_by_one.plan(world), joint.objective + sum(peak.cost for peak in peaks)
        promises = [(sum(p.late_s for p in one.placements.values()), len(one.unplaced)) for one in (joint, careful)]
        if promises[0] < promises[1] or (promises[0] == promises[1] and total < careful.objective - 1e-6 * abs(total)):
            return replace(joint, objective=total, gap=one_by_one.gap(total, joint.bound), peaks=peaks)
        self._standing = None
        return careful

    def _joint(self, world: World) -> Plan:
        self._jobs = {job.id: job for job in world.jobs}
        book = self._book = self._book or Book(world.now)
        silent = {view.name for view in world.regions if not view.reachable}
        # what runs where nobody answers is unknown: it is left where it is
        rows = book.take_in(world.jobs, lambda job: job.state is JobState.RUNNING and job.region in silent)
        layout = lay_out(world, book, rows, one_by_one.reserve_fixed)
        now_s = book.seconds(world.now, 0.0)
        spare = max(SPARE, round(SPARE_SHARE * len(rows)))
        work = work_of(layout, world, book, rows, spare)
        fleet = layout.with_masks()
        warm = self._warm[1].shifted(now_s - self._warm[0]) if self._warm is not None else None
        solving: solver.Solver | None = None

        def solve(one: Fleet, jobs: Work) -> Answer:
            nonlocal solving
            solving = solver.Solver(one, jobs)
            return solver.run(solving, self.effort, warm)

        note = ""
        if world.settings.daily_carbon_kg is None and world.settings.daily_cost is None:
            answer = solve(fleet, work)
        else:
            answer, note = daily_budgets.keep(world, layout, fleet, work, solve)
            solving = solver.Solver(fleet, work)  # without the surcharges and exclusions that led there
            solving.take(answer)
        assert solving is not None
        self._warm = (now_s, solving.warm())
        ids: list[str | None] = [self._view(row).id for row in rows]
        self._standing = _Standing(
            layout,
            solving,
            {job_id: i for i, job_id in enumerate(ids) if job_id is not None},
            ids + [None] * spare,
            list(range(len(rows) + spare - 1, len(rows) - 1, -1)),
            now_s,
        )
        return replace(self._tell(world, rows, answer), note=note)

    def insert(self, world: World, jobs: Sequence[JobView]) -> Mapping[str, Placement]:
        """Places for new jobs, and for those that had to make room for them."""
        standing, book = self._standing, self._book
        self._jobs.update({job.id: job for job in (*world.jobs, *jobs)})
        jobs = [job for job in jobs if col.plannable(job)]
        if standing is None or book is None or len(jobs) > len(standing.spare):
            return dict(self.plan(replace(world, jobs=tuple(self._jobs.values()))).placements) if jobs else {}
        moved: dict[int, None] = {}
        for job in jobs:
            if job.id in standing.at:
                self._leave(job.id)
            row = book.add(job)
            index = standing.spare.pop()
            standing.at[job.id], standing.ids[index] = index, job.id
            one = work_of(standing.layout, world, book, np.array([row]), 0)
            standing.solver.know_masks(standing.layout.mask_rows)
            standing.solver.admit(index, one)
            for other in standing.solver.insert(index):
                moved[other] = None
        answer: dict[str, Placement] = {}
        fresh, driven = {job.id for job in jobs}, []
        for index in moved:
            job_id = standing.ids[index]
            if job_id is None:
                continue
            option = standing.solver.option(index)
            view = self._view(book.row_of[job_id])
            if option is not None:
                answer[job_id] = self._place(world, view, standing.layout, option)
            elif job_id not in fresh:
                driven.append(view)
        left = [job for job in jobs if job.id not in answer] + driven
        if left:
            answer.update(self._leftovers(world, left))
        return answer

    def forget(self, job_ids: Iterable[str]) -> None:
        """These jobs need no place any more."""
        for job_id in job_ids:
            self._leave(job_id)
            self._said.pop(job_id, None)
            self._jobs.pop(job_id, None)
            if self._book is not None:
                self._book.drop(job_id)

    def gate(self, view: RegionView, now: datetime) -> float | None:
        """No bound of its own: the plan keeps all limits."""
        return None

    def explain(self, world: World, job_id: str) -> tuple[Alternative, ...]:
        """What else could have been done with a job and what each would have cost, beside the others of ``world.plan``."""
        return one_by_one.alternatives(world, job_id)

    # --- parts ----------------------------------------------------------------------------------------------------

    def _view(self, row: int) -> JobView:
        view = self._book.views[row] if self._book is not None else None
        assert view is not None
        return view

    def _leave(self, job_id: str) -> None:
        standing = self._standing
        index = standing.at.pop(job_id, None) if standing is not None else None
        if standing is not None and index is not None:
            standing.ids[index] = None
            standing.solver.dismiss(index)
            standing.spare.append(index)

    def _tell(self, world: World, rows: Ints, answer: Answer) -> Plan:
        """The answer as a Plan; what it leaves out is placed one by one in the room that is left."""
        standing = self._standing
        assert standing is not None and self._book is not None
        layout, grid = standing.layout, standing.layout.grid
        placements: dict[str, Placement] = {}
        left: list[JobView] = []
        facts = _Facts(layout, answer, len(rows), SitePrices(layout.base, grid, world.settings), Bars(lambda: world))
        for i, row in enumerate(rows):
            view = self._view(int(row))
            if answer.lane[i] < 0:
                left.append(view)
                continue
            barred = facts.barred(i, view, world)
            key = facts.key(i, barred)
            said = self._said.get(view.id)
            if said is not None and said[0] == key and _much_the_same(said[1].cost, float(answer.cost[i])):
                placements[view.id] = said[1]
                continue
            placement = facts.placement(i, view, world, barred)
            self._said[view.id] = (key, placement)
            placements[view.id] = placement
        objective = float(answer.cost[: len(rows)][answer.lane[: len(rows)] >= 0].sum())
        bound = answer.bound
        unplaced: dict[str, str] = {}
        if left:
            rest = one_by_one.fill_in(world, left, placements)
            placements.update(rest.placements)
            unplaced.update(rest.unplaced)
            objective += rest.objective
            mine = [standing.at[view.id] for view in left]
            # Without them the others' bound still holds; they themselves cost at least what they cost alone.
            bound += rest.bound - float(standing.solver.value[mine].sum())
        for job in world.jobs:  # jobs that can run nowhere
            if job.id not in placements and job.id not in unplaced and col.plannable(job):
                here = job.state is JobState.RUNNING and job.region is not None
                unplaced[job.id] = f"left where it runs, in {job.region}" if here else "no region can take it"
        if len(self._said) > 2 * len(world.jobs) + 1000:
            self._said = {job_id: said for job_id, said in self._said.items() if job_id in placements}
        bound = min(bound, objective)
        return Plan(
            made_at=world.now,
            horizon_end=grid.moment(grid.edges[-1]),
            slot_s=world.settings.slot_s,
            placements=placements,
            unplaced=unplaced,
            objective=objective,
            bound=bound,
            gap=one_by_one.gap(objective, bound),
        )

    def _leftovers(self, world: World, jobs: Sequence[JobView]) -> Mapping[str, Placement]:
        standing = self._standing
        assert standing is not None
        beside = {job_id: self._said[job_id][1] for job_id in standing.at if job_id in self._said}
        return one_by_one.fill_in(replace(world, jobs=tuple(self._jobs.values())), jobs, beside).placements

    def _place(self, world: World, view: JobView, layout: Layout, option: Answer) -> Placement:
        whole = Bars(lambda: replace(world, jobs=tuple(self._jobs.values())))
        facts = _Facts(layout, option, 1, SitePrices(layout.base, layout.grid, world.settings), whole)
        barred = facts.barred(0, view, world)
        placement = facts.placement(0, view, world, barred)
        self._said[view.id] = (facts.key(0, barred), placement)
        return placement


def _much_the_same(before: float | None, now: float) -> bool:
    """Whether a cost moved too little to say it anew: forecasts move a little all the time."""
    return before is not None and abs(now - before) <= 0.01 * max(abs(before), abs(now))


class _Facts:
    """An answer's figures for all its jobs at once, and each job's sentence from them."""

    def __init__(self, layout: Layout, answer: Answer, jobs: int, prices: SitePrices, bars: Bars) -> None:
        self.layout, self.answer, self.grid, self.prices, self.bars = layout, answer, layout.grid, prices, bars
        fleet = layout.fleet
        runs = int(answer.first[jobs])
        owner = np.repeat(np.arange(jobs), np.diff(answer.first[: jobs + 1]))
        begin, end = answer.begin_s[:runs], answer.end_s[:runs]
        lane = answer.lane[:jobs][owner] if jobs else np.zeros(0, dtype=np.int64)
        seconds, grams = end - begin, np.full(runs, np.nan)
        for number in np.unique(lane):
            mine = lane == number
            grams[mine] = np.interp(end[mine], fleet.edges_s, layout.carbon_s[number]) - np.interp(
                begin[mine], fleet.edges_s, layout.carbon_s[number]
            )
        self.seconds = np.bincount(owner, weights=seconds, minlength=jobs)
        self.gram_s_per_kwh = np.bincount(owner, weights=grams, minlength=jobs)

    def _intervals(self, i: int) -> tuple[tuple[float, float], ...]:
        runs = slice(int(self.answer.first[i]), int(self.answer.first[i + 1]))
        begins, ends = self.answer.begin_s[runs].tolist(), self.answer.end_s[runs].tolist()
        return tuple(zip(begins, ends, strict=True))

    def barred(self, i: int, view: JobView, world: World) -> str | None:
        """Why a job that is to begin later could not start as soon as it may; None where it could."""
        run = self.layout.at_once(view, world)
        if run is None or self._intervals(i)[0][0] <= run[1] + 1.0:
            return None
        return self.bars.why_not(view, *run)

    def key(self, i: int, barred: str | None) -> object:
        """When, where and why not at once, in a form that stays the same from plan to plan."""
        now_s = self.layout.now_s
        lane = self.layout.lanes[int(self.answer.lane[i])]
        return (
            lane.region,
            lane.gpu_type,
            int(self.answer.cap[i]),
            tuple((round(a + now_s), round(b + now_s)) for a, b in self._intervals(i)),
            None if barred is None else words(barred),
        )

    def placement(self, i: int, view: JobView, world: World, barred: str | None) -> Placement:
        """One job's place, in words too."""
        layout, grid = self.layout, self.grid
        lane = layout.lanes[int(self.answer.lane[i])]
        intervals = self._intervals(i)
        cap = layout.caps[int(self.answer.cap[i])]
        kw = view.flex.power_w * lane.draw * cap.draw / 1000.0 * lane.pue
        energy_kwh = float(self.seconds[i]) / 3600.0 * kw
        grams = float(self.gram_s_per_kwh[i]) / 3600.0 * kw
        placement = Placement(
            job_id=view.id,
            region=lane.region,
            intervals=tuple((grid.moment(a), grid.moment(b)) for a, b in intervals),
            cost=float(self.answer.cost[i]),
            energy_kwh=energy_kwh,
            carbon_kg=None if np.isnan(grams) else grams / 1000.0,
            late_s=0.0,
            reason=_sentence(view, world, lane.region, intervals, cap.cap, layout, self.prices, barred),
            run_now_cost=layout.run_now_cost(view, world),
            cap=cap.cap,
            gpu_type=lane.gpu_type,
        )
        return placement


def _sentence(
    view: JobView,
    world: World,
    region: str,
    intervals: Sequence[tuple[float, float]],
    cap: float,
    layout: Layout,
    prices: SitePrices,
    barred: str | None,
) -> str:
    deadline = f", deadline {hhmm(view.flex.deadline_at)}" if view.flex.deadline_at is not None else ""
    capped = f" capped at {100 * cap:.0f} %" if cap < 1.0 else ""
    start = layout.grid.moment(intervals[0][0])
    earliest = max([world.now, *(at for at in (view.flex.earliest_at, view.not_before_at) if at is not None)])
    if start <= earliest + timedelta(seconds=1) and len(intervals) == 1:
        told = prices.told(region, intervals)
        at = "now" if intervals[0][0] <= layout.grid.seconds(world.now) + 1.0 else f"from {hhmm(start)}, its earliest"
        return f"{region} {at}{capped}: {told}, no better time or place before it must end{deadline}"
    chunks = f" in {len(intervals)} parts" if len(intervals) > 1 else ""
    if barred is not None:  # what cannot be is no price to compare with
        told = prices.told(region, intervals)
        return f"{region} from {hhmm(start)}{chunks}{capped}: it cannot start at once ({barred}); {told}{deadline}"
    run = layout.at_once(view, world)
    told = prices.told(region, intervals, *((run[0], ((run[1], run[2]),)) if run is not None else ()))
    return f"{region} from {hhmm(start)}{chunks}{capped}: {told}{deadline}"


def plan(world: World) -> Plan:
    """The plan from ``world.now`` on, by a policy without a memory. Deterministic; looks at nothing but ``world``."""
    return Gridshift().plan(world)
