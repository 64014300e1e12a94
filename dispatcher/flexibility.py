"""What the fleet could give now and in the next hours: how much less it could draw, for how long, and what must stay.

Pure: a world, the fleet and the draw of each site in, figures out. It is what could be done within what jobs' owners allow:
caps that their tiers accept, then pauses of jobs that may pause. What is not known is None, with the reason, and never 0.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from dispatcher.power.fleet import Fleet, GpuView
from policies.cap_model import LEAST_CAP
from policies.fit import uses_room
from policies.freezing import freezes, frozen_w, left_s, may_freeze
from policies.power_allocation import TIER_LOSS
from policies.room import kept_at
from policies.sentences import counted
from policies.turns import leaving, pausable_now
from policies.world import Flexibility, JobView, Pausable, Placement, RegionView, World

#: For how long less is to be drawn, s.
FOR_S = (10.0, 30.0, 600.0, 1800.0, 7200.0)
AHEAD = timedelta(hours=24)
NO_PLAN = "there is no plan yet"
NO_BRANCHES = "the plan places jobs in regions, not on branches"


@dataclass(frozen=True, slots=True)
class Task:
    """A job as far as it can give. Powers are W at the meter of the place that is told of.

    ``lowest_w`` is what it draws at the lowest caps that it accepts (None: not known, or it cannot be capped); ``rests_w`` is
    what it draws while it is paused or frozen. ``may_rest_s`` is for how long it may (0: not at all), ``asks_s`` how long it
    takes until it does. ``runs_s`` is for how long it will still run, as expected: nothing can be held with it beyond that.
    """

    job_id: str
    tier: str
    draw_w: float
    lowest_w: float | None
    rests_w: float
    may_rest_s: float
    asks_s: float
    runs_s: float

    def by_caps_w(self, for_s: float) -> float:
        """What caps can take off it for so long."""
        return max(0.0, self.draw_w - self.lowest_w) if self.lowest_w is not None and self.runs_s >= for_s else 0.0

    def by_rest_w(self, for_s: float) -> float:
        """What it gives beside, by pausing or freezing for so long. One that takes as long to pause as it is wanted gives
        nothing."""
        if self.runs_s < for_s or self.may_rest_s < for_s or self.asks_s >= for_s:
            return 0.0
        return max(0.0, self.draw_w - self.by_caps_w(for_s) - self.rests_w)


@dataclass(frozen=True, slots=True)
class Shed:
    """What can be held off for ``for_s``: by caps alone, and by pauses beside them, W at the meter. ``within_s`` is how long it
    takes until the last of those that pause has (None: none does); caps act within seconds."""

    for_s: float
    caps_w: float
    pauses_w: float
    within_s: float | None
    capped: int
    paused: int

    @property
    def total_w(self) -> float:
        """Both."""
        return self.caps_w + self.pauses_w


@dataclass(frozen=True, slots=True)
class Stays:
    """What stays of the draw, whatever is asked within what owners allow, W at the meter: jobs of tier flex-0, what others draw
    at their lowest caps where they may not pause for 2 h, what those that do draw at rest, and everything that is no job's:
    idle GPUs, work of others, the rest of the site (None: the draw is not known). Of all this ``protected_w`` is drawn by GPUs
    on which others are at work (None: not measured), and ``serving_w`` is what batch is to leave to serving."""

    flex_0_w: float
    floor_w: float
    at_rest_w: float
    other_w: float | None
    protected_w: float | None
    serving_w: float


@dataclass(frozen=True, slots=True)
class Outlook:
    """A site, or a branch of it (``branch``), over ``[start, end)``; ``end`` None: now. ``draw_w`` is None where it is not
    known, with the ``reason``; ``sheds`` is then what jobs can give all the same. ``notes`` say what is not in it."""

    region: str
    branch: str | None
    start: datetime
    end: datetime | None
    draw_w: float | None
    basis: str
    reason: str
    sheds: tuple[Shed, ...]
    stays: Stays | None
    notes: tuple[str, ...] = ()


def shed(tasks: Sequence[Task], for_s: float) -> Shed:
    """What these jobs together can give for so long."""
    capped = [task for task in tasks if task.by_caps_w(for_s) > 0]
    paused = [task for task in tasks if task.by_rest_w(for_s) > 0]
    return Shed(
        for_s=for_s,
        caps_w=math.fsum(task.by_caps_w(for_s) for task in capped),
        pauses_w=math.fsum(task.by_rest_w(for_s) for task in paused),
        within_s=max((task.asks_s for task in paused), default=None),
        capped=len(capped),
        paused=len(paused),
    )


def stays(tasks: Sequence[Task], draw_w: float | None, serving_w: float, protected_w: float | None = None) -> Stays:
    """What stays, by why it does."""
    longest = FOR_S[-1]
    flex_0 = math.fsum(task.draw_w for task in tasks if task.tier == "flex-0")
    floor = rest = 0.0
    for task in tasks:
        if task.tier == "flex-0":
            continue
        if task.by_rest_w(longest) > 0:
            rest += min(task.rests_w, task.draw_w)
        else:
            floor += task.draw_w if task.lowest_w is None else min(task.lowest_w, task.draw_w)
    other = None if draw_w is None else max(0.0, draw_w - math.fsum(task.draw_w for task in tasks))
    return Stays(flex_0, floor, rest, other, protected_w, serving_w)


# --- now ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """What a place draws now, W at its meter (None: unknown), what that rests on, and what is to be said of it."""

    draw_w: float | None
    quality: str
    reason: str


def now_of(world: World, fleet: Fleet, region: RegionView, branch: str | None, measured: Measured) -> Outlook:
    """A site, or a branch of it, as it is now."""
    pue = region.pue if branch is None else 1.0
    gpus = _gpus_by_job(fleet, region.name)
    here = [job for job in world.jobs if uses_room(job, region) and not leaving(job)]
    tasks: list[Task] = []
    stated = unknown_caps = unplaced = 0
    for job in here:
        mine = gpus.get(job.id, ())
        share = 1.0
        if branch is not None:
            if not mine:
                unplaced += 1
                continue
            share = sum(place == branch for place, _ in mine) / len(mine)
            if share == 0:
                continue
        drawn = _drawn_w(job, mine, branch)
        stated += drawn is None
        expected_w = share * (frozen_w(job) if job.frozen_at is not None else job.flex.power_w)
        task = _task(job, expected_w if drawn is None else drawn, share, pue, world.now)
        unknown_caps += job.flex.may_be_slowed and job.capped_w is None
        tasks.append(task)
    notes = []
    if not region.reachable:
        notes.append("the region's cluster does not answer: what runs there is as it was last known")
    if stated:
        notes.append(
            f"{counted(stated, 'job')} count with the draw that their owners stated: no agent measures them alone on their GPUs"
        )
    if unknown_caps:
        notes.append(
            f"{counted(unknown_caps, 'job')} could be slowed, but how far their GPUs can be capped is not known: caps count 0 "
            "there"
        )
    if unplaced:
        notes.append(f"on which branch {counted(unplaced, 'job')} of this region run is not known: they are not counted")
    serving_w = kept_at(region, world.now)[1] if branch is None else 0.0
    return Outlook(
        region=region.name,
        branch=branch,
        start=world.now,
        end=None,
        draw_w=measured.draw_w,
        basis=measured.quality,
        reason=measured.reason,
        sheds=tuple(shed(tasks, for_s) for for_s in FOR_S),
        stays=stays(tasks, measured.draw_w, serving_w, _protected_w(fleet, region.name, branch, pue)),
        notes=tuple(notes),
    )


def _gpus_by_job(fleet: Fleet, region: str) -> Mapping[str, Sequence[tuple[str | None, GpuView]]]:
    """The GPUs of each job with their branch, as the agents of a region see them."""
    found: dict[str, list[tuple[str | None, GpuView]]] = defaultdict(list)
    for one in fleet.regions:
        for branch in one.branches if one.name == region else ():
            for node in branch.nodes:
                for gpu in node.gpus:
                    for job_id in gpu.jobs or ():
                        found[job_id].append((branch.name, gpu))
    return found


def _protected_w(fleet: Fleet, region: str, branch: str | None, pue: float) -> float | None:
    """What GPUs draw on which no job of ours is at work and others are; None where no agent tells, or one of them does not."""
    places = [place for one in fleet.regions if one.name == region for place in one.branches]
    gpus = [gpu for place in places if branch in (None, place.name) for node in place.nodes for gpu in node.gpus]
    powers = [gpu.power_w for gpu in gpus if gpu.protected]
    known = [power for power in powers if power is not None]
    return math.fsum(known) * pue if gpus and len(known) == len(powers) else None


def _drawn_w(job: JobView, mine: Sequence[tuple[str | None, GpuView]], branch: str | None) -> float | None:
    """What a job's GPUs (of a branch) draw now; None unless all are seen, tell it, and are the job's alone."""
    if len(mine) < math.ceil(job.flex.gpus - 1e-9) or not mine:
        return None
    powers = [gpu.power_w for place, gpu in mine if branch is None or place == branch]
    alone = all(gpu.jobs == (job.id,) for _, gpu in mine)
    known = [power for power in powers if power is not None]
    return math.fsum(known) if alone and len(known) == len(powers) else None


def _task(job: JobView, drawn_w: float, share: float, pue: float, now: datetime) -> Task:
    """``drawn_w`` is at the GPUs; ``share`` of the job is in the place that is told of."""
    flex = job.flex
    ran_s = (now - job.run_started_at).total_seconds() if job.run_started_at is not None else 0.0
    runs_s = max(0.0, job.remaining_s - ran_s)
    rests_w, may_s, asks_s = 0.0, 0.0, 0.0
    if job.frozen_at is None and may_freeze(job, now):
        rests_w, may_s = frozen_w(job) * share * pue, min(left_s(job, now), _slack_s(flex, now, runs_s, 0.0))
    elif pausable_now(job) and not freezes(job):
        may_s, asks_s = _slack_s(flex, now, runs_s, flex.checkpoint_s + flex.restart_s), flex.checkpoint_s
    lowest_w = None if job.capped_w is None or not flex.may_be_slowed else job.capped_w * share * pue
    return Task(job.id, flex.tier, drawn_w * pue, lowest_w, rests_w, max(0.0, may_s), asks_s, runs_s)


def _slack_s(flex: Flexibility, at: datetime, runs_s: float, more_s: float) -> float:
    """For how long a job can stand still and still meet its deadline, s; one without a deadline for as long as wanted."""
    if flex.deadline_at is None:
        return math.inf
    return (flex.deadline_at - at).total_seconds() - runs_s - more_s


# --- planned ------------------------------------------------------------------------------------------------------


def ahead_of(world: World, region: RegionView) -> list[Outlook]:
    """A site in each slot of the plan for the next 24 hours, from what the plan and the jobs that run now would draw there.
    Empty without a plan."""
    plan = world.plan
    if plan is None:
        return []
    slot = timedelta(seconds=plan.slot_s)
    first = plan.made_at + ((world.now - plan.made_at) // slot) * slot
    until = min(world.now + AHEAD, plan.horizon_end)
    runs = [*_planned_runs(world, region), *_standing_runs(world, region)]
    found = []
    start = first
    while start < until:
        end = start + slot
        tasks = [task for run in runs if (task := run.task(start, end, region)) is not None]
        serving_w = kept_at(region, max(start, world.now))[1]
        found.append(
            Outlook(
                region=region.name,
                branch=None,
                start=start,
                end=end,
                draw_w=math.fsum(task.draw_w for task in tasks) + region.bypass_w,
                basis="planned",
                reason="",
                sheds=tuple(shed(tasks, for_s) for for_s in FOR_S),
                stays=stays(tasks, math.fsum(task.draw_w for task in tasks) + region.bypass_w, serving_w),
            )
        )
        start = end
    return found


def outlooks_of(world: World, fleet: Fleet, region: str, branch: str | None) -> list[Outlook]:
    """What jobs in a region, or on a branch of it, can give now and, for a region, in the plan's slots. Empty for a region that
    is not known."""
    view = next((one for one in world.regions if one.name == region), None)
    if view is None:
        return []
    now = now_of(world, fleet, view, branch, Measured(None, "unknown", "not asked"))
    return [now, *(ahead_of(world, view) if branch is None else ())]


@dataclass(frozen=True, slots=True)
class _Run:
    """A job over ``[start, end)``, at a cap; ``capped_share`` is its draw at the lowest caps it accepts, relative to none."""

    job: JobView
    start: datetime
    end: datetime
    draw_share: float
    capped_share: float | None

    def task(self, start: datetime, end: datetime, region: RegionView) -> Task | None:
        """As it is in a slot; None where it does not run in it."""
        overlap_s = (min(end, self.end) - max(start, self.start)).total_seconds()
        if overlap_s <= 0:
            return None
        flex, part = self.job.flex, overlap_s / (end - start).total_seconds()
        watts = flex.power_w * region.pue * part
        runs_s = (self.end - max(start, self.start)).total_seconds()
        may_s, asks_s, rests_w = 0.0, 0.0, 0.0
        if flex.flexible and flex.pausable is Pausable.CHECKPOINT:
            asks_s = flex.checkpoint_s
            may_s = _slack_s(flex, start, runs_s, flex.checkpoint_s + flex.restart_s)
        elif flex.flexible and flex.pausable is Pausable.FREEZE and not self.job.cannot_freeze:
            may_s = min(left_s(self.job, start), _slack_s(flex, start, runs_s, 0.0))
            rests_w = frozen_w(self.job) * region.pue * part
        lowest_w = None if self.capped_share is None else watts * min(self.capped_share, self.draw_share)
        return Task(self.job.id, flex.tier, watts * self.draw_share, lowest_w, rests_w, max(0.0, may_s), asks_s, runs_s)


def _planned_runs(world: World, region: RegionView) -> Iterable[_Run]:
    jobs = {job.id: job for job in world.jobs}
    placements: Mapping[str, Placement] = world.plan.placements if world.plan is not None else {}
    for placement in placements.values():
        job = jobs.get(placement.job_id)
        if job is None or placement.region != region.name:
            continue
        pool = next((one.draw for one in region.pools if one.gpu_type == placement.gpu_type), 1.0)
        own = next((one.draw for one in region.caps if one.cap == placement.cap), 1.0)
        capped = capped_share(job.flex, region)
        for start, end in placement.intervals:
            yield _Run(job, start, end, own * pool, None if capped is None else capped * pool)


def _standing_runs(world: World, region: RegionView) -> Iterable[_Run]:
    """Jobs that run here now and that the plan has nothing about: until they are expected to end."""
    placed = world.plan.placements if world.plan is not None else {}
    for job in world.jobs:
        if not uses_room(job, region) or job.id in placed or leaving(job):
            continue
        ran_s = (world.now - job.run_started_at).total_seconds() if job.run_started_at is not None else 0.0
        end = world.now + timedelta(seconds=max(0.0, job.remaining_s - ran_s))
        share = job.capped_w / job.flex.power_w if job.capped_w is not None and job.flex.power_w > 0 else None
        yield _Run(job, world.now, end, 1.0, share if job.flex.may_be_slowed else None)


def capped_share(flex: Flexibility, region: RegionView) -> float | None:
    """What a job would draw at the lowest cap of those that can be set in a region and that its tier accepts, relative to none;
    None where it accepts none, or none can be set."""
    least = max(LEAST_CAP, flex.min_cap or 0.0)
    loss = TIER_LOSS.get(flex.tier, 0.0)
    found = [one.draw for one in region.caps if one.cap >= least and one.speed >= 1.0 - loss - 1e-9 and flex.may_be_slowed]
    return min(found, default=None)
