"""What a site was expected to draw without an event: kept when notice of it comes, for whoever measures the event afterwards.

Past days of a site that shifts load are shaped by its own shifting; the plan that stood before the notice is not shaped by the
event. `BeforeEvents` takes the last picture of the world that knows nothing of an event and keeps what follows from it; the
control loop only hands that picture over. It decides nothing, and knows no programme and no report.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from dispatcher.config import Config
from dispatcher.dr.budgets import binds
from dispatcher.errors import StoreUnavailable
from dispatcher.store import OWN_SOURCE, BeforeEvent, GridEvent, GridEventChange, Store
from policies.fit import fits, uses_room
from policies.freezing import frozen_w
from policies.sentences import counted, kw
from policies.turns import leaving
from policies.world import PLACED, JobState, JobView, RegionView, World

log = logging.getLogger(__name__)

Span = tuple[datetime, datetime]
#: How long after an event's end what was expected is kept: for the load that comes back.
AFTER = timedelta(hours=3)
#: A job that runs for less than this may not yet draw what it will.
_SETTLES = timedelta(seconds=60)

NO_BRANCHES = "jobs are planned in regions, and what they draw on one branch is not foreseen"
NO_LOOK = "no look at the jobs from before the notice is at hand: the control plane was started since, or only just before it"
NO_WORK = "no plan stood when notice of the event came: there was no work to plan"
NO_PLAN = "no plan stood when notice of the event came: none had been made yet"


@dataclass(frozen=True, slots=True)
class Run:
    """A job at work over ``[start, end)``, with its mean draw at the GPUs (W) and its GPUs."""

    start: datetime
    end: datetime
    power_w: float
    gpus: float


# --- from a picture of the world to what was expected --------------------------------------------------------------


def expected(event: GridEvent, notice_at: datetime, world: World | None, measured_w: float | None, at: datetime) -> BeforeEvent:
    """What the place of ``event`` was expected to draw without it.

    ``world`` is the last picture that knows nothing of the event, with the plan of then (None: there is none); ``measured_w``
    is what the place drew then, W at its meter (None: not measured); ``at`` is now.
    """
    plan = world.plan if world is not None else None
    slot_s = plan.slot_s if plan is not None else world.settings.slot_s if world is not None else 900
    looked_at = world.now if world is not None else None
    start = _slot_of(looked_at or at, slot_s)
    nothing = BeforeEvent(
        source=event.source,
        event_id=event.event_id,
        notice_at=notice_at,
        looked_at=looked_at,
        plan_made_at=plan.made_at if plan is not None else None,
        start=start,
        slot_s=slot_s,
        plan_w=None,
        plan_why="",
        unshifted_w=None,
        unshifted_why="",
        jobs=0,
        measured_w=measured_w,
    )
    region = None if world is None else next((one for one in world.regions if one.name == event.region), None)
    if world is None or region is None or event.branch is not None:
        why = NO_BRANCHES if event.branch is not None else NO_LOOK
        if world is not None and region is None:
            why = f"region {event.region} is not configured"
        return replace(nothing, plan_why=why, unshifted_why=why)
    world = replace(world, jobs=tuple(job for job in world.jobs if job.submitted_at <= notice_at))
    horizon_end = plan.horizon_end if plan is not None else world.now + timedelta(seconds=world.settings.horizon_s)
    ends = [step.end for step in event.steps] or [event.end]
    last = None if None in ends else max(end for end in ends if end is not None)
    end = horizon_end if last is None or last >= horizon_end - AFTER else last + AFTER  # an end may lie in the year 9999
    slots = max(0, math.ceil((end - start).total_seconds() / slot_s - 1e-9))

    standing = standing_runs(world, region)
    share, other_w = measured_beside(world, region, measured_w)
    base_w = other_w if other_w is not None else region.bypass_w
    planned = [*planned_runs(world, region), *standing]
    plan_w = means(planned, start, slot_s, slots, world.now, region.pue * share, base_w)
    plan_why = _why_no_plan(world, notice_at) or ("" if slots else f"the plan reached only to {horizon_end:%Y-%m-%d %H:%M} UTC")
    runs, unshifted_why = unshifted_runs(world, region)
    unshifted_w = means(runs, start, slot_s, slots, world.now, region.pue * share, base_w)
    if not unshifted_why:
        unshifted_why = _why_not_at_once(runs, region, (world.now, end), unshifted_w, slots)
    return replace(
        nothing,
        plan_w=None if plan_why else plan_w,
        plan_why=plan_why,
        unshifted_w=None if unshifted_why else unshifted_w,
        unshifted_why=unshifted_why,
        jobs=len({job.id for job in world.jobs if _is_here(job, world, region)}),
        other_w=other_w,
        job_share=share,
        notes=tuple(_notes(world, region, share, other_w)),
    )


def planned_runs(world: World, region: RegionView) -> list[Run]:
    """When the plan has jobs at work in a region, under its caps and on its pools."""
    if world.plan is None:
        return []
    jobs = {job.id: job for job in world.jobs}
    found = []
    for job_id, placement in world.plan.placements.items():
        job = jobs.get(job_id)
        if job is None or placement.region != region.name or leaving(job):
            continue
        power_w = job.flex.power_w * _draw(region, placement.cap, placement.gpu_type)
        found += [Run(start, end, power_w, job.flex.gpus) for start, end in placement.intervals]
    return found


def standing_runs(world: World, region: RegionView) -> list[Run]:
    """Jobs that run in a region and that the plan has no say in: until they are expected to end."""
    placed = world.plan.placements if world.plan is not None else {}
    return [
        Run(job.run_started_at or world.now, _ends_at(job, world.now), _at_work_w(job, region), job.flex.gpus)
        for job in world.jobs
        if uses_room(job, region) and job.id not in placed and not leaving(job)
    ]


def unshifted_runs(world: World, region: RegionView) -> tuple[list[Run], str]:
    """Each job that is there from its arrival (or from when it may start at the earliest), uncapped and for its run time; what
    is never shifted as it is. And why that cannot be told (empty: it can). A job that no region can ever take is in neither."""
    found: list[Run] = []
    unknown = 0
    for job in world.jobs:
        if job.held or job.cancel_requested:
            continue
        if not job.flex.flexible and job.state in PLACED:
            if uses_room(job, region):
                found.append(Run(job.run_started_at or world.now, _ends_at(job, world.now), job.flex.power_w, job.flex.gpus))
            continue
        home = _home(job, world)
        if job.state not in PLACED and not _able(job, world):
            continue
        if home is None and (not job.flex.regions or region.name in job.flex.regions):
            unknown += 1
        if home == region.name:
            begin = max(job.submitted_at, job.flex.earliest_at or job.submitted_at)
            found.append(Run(begin, begin + timedelta(seconds=job.flex.runtime_s), job.flex.power_w, job.flex.gpus))
    if unknown:
        return found, f"where {counted(unknown, 'job')} would have run at once is not known: several regions may take them"
    return found, ""


def means(
    runs: Iterable[Run], start: datetime, slot_s: int, slots: int, since: datetime, factor: float, base_w: float
) -> tuple[float, ...]:
    """Mean draw of each slot, W: what runs draw times ``factor``, on ``base_w``. Of the first slot only what lies after
    ``since`` counts, which is then said of all of it."""
    first_s = min(max(0.0, (since - start).total_seconds()), slot_s - 1e-3)
    parts, steps = [0.0] * slots, [0.0] * (slots + 1)  # J of slots in part, and where W begin and end that fill slots
    for run in runs:
        begin_s = max(first_s, (run.start - start).total_seconds())
        end_s = min(float(slots * slot_s), (run.end - start).total_seconds())
        if end_s <= begin_s:
            continue
        a, b = int(begin_s // slot_s), min(slots - 1, int(end_s // slot_s))
        parts[a] += run.power_w * (min(end_s, float((a + 1) * slot_s)) - begin_s)
        if b > a:
            parts[b] += run.power_w * (end_s - b * slot_s)
            steps[a + 1] += run.power_w
            steps[b] -= run.power_w
    watts, whole_w = [], 0.0
    for at in range(slots):
        whole_w += steps[at]
        length_s = slot_s - first_s if at == 0 else float(slot_s)
        watts.append(round((whole_w + parts[at] / length_s) * factor + base_w, 3))
    return tuple(watts)


def measured_beside(world: World, region: RegionView, measured_w: float | None) -> tuple[float, float | None]:
    """What jobs draw relative to what is expected of them (at most 1), and what the site draws besides, W at the meter; None
    where that is not measured.

    More than the jobs are expected to draw is no job's: idle GPUs, others' work, the rest of the site. Less is theirs, as far
    as they have been at work for long enough: their owners state more than they draw.
    """
    if measured_w is None:
        return 1.0, None
    all_w = settled_w = 0.0
    for job in world.jobs:
        if job.state not in PLACED or job.region != region.name or job.run_started_at is None:
            continue
        watts = (frozen_w(job) if job.frozen_at is not None else _at_work_w(job, region)) * region.pue
        all_w += watts
        settled_w += watts if world.now - job.run_started_at >= _SETTLES else 0.0
    if measured_w >= all_w:
        return 1.0, measured_w - all_w
    return (min(1.0, measured_w / settled_w) if settled_w > 0 else 1.0), 0.0


def _slot_of(at: datetime, slot_s: int) -> datetime:
    return datetime.fromtimestamp(at.timestamp() // slot_s * slot_s, UTC)


def _draw(region: RegionView, cap: float, gpu_type: str | None) -> float:
    """What a job draws under a cap and on a pool, relative to what it states."""
    pool = next((one.draw for one in region.pools if one.gpu_type == gpu_type), 1.0)
    return pool * next((one.draw for one in region.caps if one.cap == cap), 1.0)


def _at_work_w(job: JobView, region: RegionView) -> float:
    return job.flex.power_w * _draw(region, job.cap, job.gpu_type)


def _ends_at(job: JobView, now: datetime) -> datetime:
    """When a job that runs is expected to end; not before now."""
    begin = job.run_started_at or now
    return max(now, begin + timedelta(seconds=job.remaining_s))


def _is_here(job: JobView, world: World, region: RegionView) -> bool:
    placement = world.plan.placements.get(job.id) if world.plan is not None else None
    if placement is not None:
        return placement.region == region.name
    return job.state in PLACED and job.region == region.name


def _able(job: JobView, world: World) -> list[str]:
    """The regions that may and could ever take a job."""
    return [one.name for one in world.regions if (not job.flex.regions or one.name in job.flex.regions) and fits(job.flex, one)]


def _home(job: JobView, world: World) -> str | None:
    """Where a job runs that is not shifted; None where that cannot be told."""
    allowed = _able(job, world) if job.state not in PLACED else job.flex.regions or [one.name for one in world.regions]
    if len(allowed) == 1:
        return allowed[0]
    default = world.settings.default_region
    return default if default in allowed else None


def _why_no_plan(world: World, notice_at: datetime) -> str:
    """Why what the plan would draw is not known; empty where it is."""
    plan = world.plan
    if plan is None:
        return NO_PLAN if any(job.flex.flexible for job in world.jobs) else NO_WORK
    if plan.made_at > notice_at:
        made, told = f"{plan.made_at:%Y-%m-%d %H:%M:%S}", f"{notice_at:%H:%M:%S}"
        return f"the plan that stood was made at {made} UTC, after notice of the event came at {told}"
    return ""


def _why_not_at_once(runs: Sequence[Run], region: RegionView, span: Span, watts: Sequence[float], slots: int) -> str:
    """Why jobs could not all have run on arrival; empty where they could."""
    if not slots:
        return f"nothing is foreseen beyond {span[1]:%Y-%m-%d %H:%M} UTC"
    unknown = "; which of them would have waited is not known"
    needed = _most_gpus(runs, span)
    if region.gpus is not None and needed > region.gpus + 1e-6:
        return f"the jobs there would need {counted(needed, 'GPU')} at once, and there are {region.gpus:g}{unknown}"
    if region.power_limit_w is not None and max(watts) > region.power_limit_w:
        most, limit = kw(max(watts)), kw(region.power_limit_w)
        return f"the jobs there would draw {most} at once, and the site may draw {limit}{unknown}"
    return ""


def _most_gpus(runs: Iterable[Run], span: Span) -> float:
    edges: list[tuple[datetime, float]] = []
    for run in runs:
        begin, end = max(run.start, span[0]), min(run.end, span[1])
        if begin < end:
            edges += [(begin, run.gpus), (end, -run.gpus)]
    used = most = 0.0
    for _, gpus in sorted(edges):
        used += gpus
        most = max(most, used)
    return most


def _notes(world: World, region: RegionView, share: float, other_w: float | None) -> Iterable[str]:
    placements = world.plan.placements if world.plan is not None else {}
    if not region.reachable:
        yield "the region's cluster did not answer then: what ran there is as it was last known"
    if other_w is None:
        base = f"the {kw(region.bypass_w)} that bypass gridshift are" if region.bypass_w else "nothing is"
        yield f"of what no job draws {base} in it: the site's draw was not measured when notice came"
    if share < 1:
        yield f"jobs count with {share:.0%} of the draw that is stated for them, for so much of it the meter saw"
    waiting = [
        job
        for job in world.jobs
        if job.state in (JobState.QUEUED, JobState.PAUSED) and not job.held and not job.cancel_requested
        if job.id not in placements and (not job.flex.regions or region.name in job.flex.regions)
    ]
    able = [job for job in waiting if _able(job, world)]
    if never := len(waiting) - len(able):
        yield f"left out: {counted(never, 'job')} that can never run: no region that may take it is large enough"
    waiting = able
    if waiting and world.plan is not None:
        waiting_w = sum(job.flex.power_w for job in waiting) * region.pue
        yield f"not in it: {counted(len(waiting), 'job')} without a place in the plan, which would draw {kw(waiting_w)}"
    over = [
        job
        for job in world.jobs
        if job.state is JobState.RUNNING and job.region == region.name and not leaving(job)
        if job.id not in placements and _ends_at(job, world.now) <= world.now
    ]
    if over:
        over_w = sum(_at_work_w(job, region) for job in over) * region.pue
        yield f"counted as over: {counted(len(over), 'job')} that had run for longer than expected, with {kw(over_w)}"


# --- keeping it -----------------------------------------------------------------------------------------------------


class BeforeEvents:
    """See the module. ``look`` is the control loop's and costs it nothing; ``keep`` is a loop of its own."""

    def __init__(self, config: Config, store: Store, measured: Callable[[str, str | None, datetime], float | None]) -> None:
        """``measured`` tells what a region (or a branch of it) drew at a time, W at its meter; None where that is not known."""
        self._sources = {source.name: source for source in config.event_sources}
        self._store, self._measured = store, measured
        self._seen: frozenset[tuple[str, str]] = frozenset()
        self._kept: set[tuple[str, str]] = set()
        self._waiting: deque[tuple[World | None, frozenset[tuple[str, str]]]] = deque()

    def look(self, before: World | None, world: World) -> None:
        """``world`` is what was decided on; ``before`` the picture before it (None: it is the first), with the plan of then. A
        limit that is new in ``world`` is one that nothing in ``before`` knew of."""
        limits = frozenset((one.source, one.event_id) for one in (*world.budgets, *world.branch_budgets))
        if new := limits - self._seen:
            self._waiting.append((before, new))
        self._seen = limits

    def keep(self, now: datetime) -> None:
        """Keep what is waiting to be. What cannot be stored is tried again at the next call. Raises StoreUnavailable."""
        while self._waiting:
            before, new = self._waiting[0]
            for event in self._store.grid_events(ended_after=now):
                name = (event.source, event.event_id)
                if name in self._kept or not binds(event, self._sources) or not any(_is_of(event, *one) for one in new):
                    continue
                try:
                    if self._store.before_event(*name) is None:
                        self._store.keep_before_event(self._expected(event, before, now)).result()
                except StoreUnavailable:
                    raise
                except Exception:  # one event must not cost the others theirs
                    log.exception("what %s was expected to draw without event %s cannot be worked out", event.region, name)
                self._kept.add(name)
            self._waiting.popleft()

    def _expected(self, event: GridEvent, before: World | None, now: datetime) -> BeforeEvent:
        notice_at = first_notice(event, self._store.grid_event_changes(event.source, event.event_id))
        measured_w = None if before is None else self._measured(event.region, event.branch, before.now)
        return expected(event, notice_at, before, measured_w, now)


def _is_of(event: GridEvent, source: str, limit_id: str) -> bool:
    """Whether a limit is one of an event's (see dr.budgets, which names them)."""
    same = event.source == (source or OWN_SOURCE)
    return same and (limit_id == event.event_id or limit_id.startswith(f"{event.event_id} from "))


def first_notice(event: GridEvent, changes: Iterable[GridEventChange]) -> datetime:
    """When the first version of an event came that limits something."""
    taken = (one.at for one in changes if one.what in ("accepted", "changed") and one.steps)
    return min(taken, default=event.received_at)
