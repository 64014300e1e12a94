"""What an operator sees of the control plane: alarms, and each region as it was last observed. Pure, but for asking regions for
their last pictures and loops how long ago they ran."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from dispatcher.api.services import AlarmStatus, LoopStatus, RegionStatus
from dispatcher.loops import Loop
from dispatcher.regions import Region
from dispatcher.store import Attempt
from policies.fit import always_kept, never_fits, uses_room
from policies.freezing import frozen_w
from policies.sentences import counted, kw, some
from policies.turns import WAITING
from policies.world import PLACED, Action, Alarm, JobState, JobView, Plan, RegionView, World

#: So many job ids are named in an alarm.
_NAMED = 5
#: What it means that a loop fails, where that is not plain.
_MEANS = {"control": ", so nothing new is decided: no job starts and no new limit comes into force"}
#: The key of the alarm of jobs that no region could ever run.
TOO_LARGE = "jobs too large"
#: How the key of the alarm begins of serving that always keeps more than a region has.
FLOORS = "serving floors"


def decided(actions: Sequence[Action], now: datetime) -> list[AlarmStatus]:
    """Alarms that a decision raised."""
    return [AlarmStatus(a.key, a.region, a.sentence, now) for a in actions if isinstance(a, Alarm)]


def by_key(raised: Iterable[AlarmStatus], before: Mapping[str, AlarmStatus]) -> dict[str, AlarmStatus]:
    """One alarm a key: what several tell of the same trouble (of a limit: what is expected, and what is measured) stands in one
    sentence. One that stood ``before`` is as old as it was."""
    told: dict[str, AlarmStatus] = {}
    for alarm in raised:
        known = told.get(alarm.key)
        if known is None:
            told[alarm.key] = replace(alarm, since=before[alarm.key].since) if alarm.key in before else alarm
        elif alarm.sentence not in known.sentence:
            told[alarm.key] = replace(known, sentence=f"{known.sentence}; {alarm.sentence}")
    return told


def unreachable(regions: Iterable[Region], now: datetime) -> list[AlarmStatus]:
    """Regions that do not answer."""
    silent = [(region.name, region.picture()[1]) for region in regions if not region.reachable()]
    return [
        AlarmStatus(f"unreachable {name}", name, f"{name} does not answer: {error}", now)
        for name, error in silent
        if error is not None
    ]


def strangers(attempts: Iterable[Attempt], regions: Mapping[str, Region], now: datetime) -> list[AlarmStatus]:
    """Regions where jobs run and that are not configured any more."""
    return [
        AlarmStatus(
            f"unknown region {name}",
            name,
            f"jobs run in region {name}, which is not in the configuration; add it back to learn of them",
            now,
        )
        for name in dict.fromkeys(attempt.region for attempt in attempts)
        if name not in regions
    ]


def running_late(views: Iterable[JobView], now: datetime) -> set[str]:
    """Placed jobs that will end after their deadlines, as expected: the plan has no word of those that it cannot move."""
    late = set()
    for view in views:
        if view.flex.deadline_at is None or view.cancel_requested or view.state not in PLACED:
            continue
        end = (view.run_started_at or now) + timedelta(seconds=view.remaining_s)
        if max(end, now) > view.flex.deadline_at:
            late.add(view.id)
    return late


def overdue(views: Iterable[JobView], now: datetime) -> set[str]:
    """Waiting jobs whose deadlines have passed: the plan has no word of those that it cannot place."""
    return {
        view.id
        for view in views
        if view.flex.deadline_at is not None
        and view.flex.deadline_at < now
        and view.state in WAITING
        and not view.cancel_requested
    }


def too_large(world: World, now: datetime) -> list[AlarmStatus]:
    """One alarm for all jobs that no region could run even with nothing else in it."""
    home = world.settings.default_region
    found = {view.id: why for view in world.jobs if (why := _never_fits(view, world.regions, home)) is not None}
    if not found:
        return []
    ids = sorted(found)
    others = f" ({len(ids)} such jobs: {some(ids, _NAMED)})" if len(ids) > 1 else ""
    return [AlarmStatus(TOO_LARGE, None, f"job {ids[0]} {found[ids[0]]}{others}", now)]


def floors_too_large(world: World, now: datetime) -> list[AlarmStatus]:
    """An alarm for each region where serving always keeps more than there is: how many GPUs there are, its cluster tells."""
    found = []
    for view in world.regions:
        (gpus, power_w), much = always_kept(view), []
        if view.reachable and view.gpus is not None and gpus > view.gpus:
            each = ", ".join(f"{one.whom} {one.gpus:g}" for one in view.floors if one.gpus)
            much.append(f"floor_gpus ({each}) keep {gpus:g} GPUs and {view.name} has {view.gpus:g}")
        if view.power_limit_w is not None and power_w > view.power_limit_w:
            each = ", ".join(f"{one.whom} {kw(one.power_w)}" for one in view.floors if one.power_w)
            much.append(f"floors ({each} at the meter) keep {kw(power_w)} and {view.name} may draw {kw(view.power_limit_w)}")
        if much:
            sentence = "what is always kept free for serving is more than there is, so that no batch job can start: "
            found.append(AlarmStatus(f"{FLOORS} {view.name}", view.name, sentence + "; ".join(much), now))
    return found


def _never_fits(view: JobView, regions: Sequence[RegionView], home: str | None) -> str | None:
    waits = view.state in WAITING or view.state is JobState.LAUNCHING
    return never_fits(view.flex, regions, home) if waits and not view.cancel_requested else None


def late(plan: Plan | None, views: Mapping[str, JobView], placed: Iterable[str], now: datetime) -> list[AlarmStatus]:
    """One alarm for all jobs that cannot end in time: those that the plan has late, those that run late
    (``placed``), and those that wait after their deadlines."""
    planned = {p.job_id for p in plan.placements.values() if p.late_s > 0} if plan is not None else set()
    running = running_late((views[job_id] for job_id in placed if job_id in views), now)
    ids = sorted((planned & views.keys()) | running | overdue(views.values(), now))
    if not ids:
        return []
    theirs = "its deadline" if len(ids) == 1 else "their deadlines"
    sentence = f"{counted(len(ids), 'job')} cannot end by {theirs} any more as things stand: {some(ids, _NAMED)}"
    return [AlarmStatus("late", None, sentence, now)]


def failing(loops: Iterable[Loop]) -> list[AlarmStatus]:
    """Loops whose last run failed."""
    alarms = []
    for loop in loops:
        error, since = loop.last_error, loop.failing_since
        if error is not None and since is not None:
            sentence = f"the {loop.name} loop fails{_MEANS.get(loop.name, '')}: {error}"
            alarms.append(AlarmStatus(f"loop {loop.name}", None, sentence, since))
    return alarms


def region_status(region: Region, world: World) -> RegionStatus:
    """A region as last observed, and what is placed there."""
    picture, error, _ = region.picture()
    placed = [view for view in world.jobs if view.state in PLACED and view.region == region.name]
    views = [view for view in world.regions if view.name == region.name]
    using = [job for job in placed if not views or uses_room(job, views[0])]
    begun = [view for view in placed if view.state is not JobState.LAUNCHING]
    limits = [b.limit_w for b in world.budgets if b.region == region.name and b.holds(world.now)]
    return RegionStatus(
        name=region.name,
        address=region.config.address,
        reachable=region.reachable(),
        observed_at=picture.taken_at if picture else None,
        error=error,
        ray_version=picture.info.ray_version if picture else None,
        gpus=region.gpus(),
        gpus_used=sum(view.flex.gpus for view in using),
        jobs_running=len(begun),
        draw_w=sum(view.flex.power_w if view.frozen_at is None else frozen_w(view) for view in begun) * region.config.pue,
        budget_w=min(limits, default=None),
    )


def loop_status(loop: Loop) -> LoopStatus:
    """How a loop does."""
    silent_s = None if loop.last_run_mono is None else time.monotonic() - loop.last_run_mono
    return LoopStatus(loop.name, loop.period_s, loop.last_run_at, loop.last_s, loop.runs, loop.last_error, silent_s)
