"""What to do now, once a second: from a World to a list of actions, each with its sentence. Pure.

The plan says when and where; this module keeps the promises around it: limits are never passed, owners' wishes come first, no
job starts later than its last safe moment, and nothing is done twice. It plans nothing itself. What is asked of one job alone
stands in policies.turns.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from policies.branches import unlocated
from policies.fit import uses_room
from policies.freezing import (
    FREEZE_EARLIER_S,
    NOT_WORTH_WAKING_S,
    freeze_max_s,
    freezes,
    is_used_up,
    left_s,
    may_freeze,
    wake_margin_s,
    why_not,
)
from policies.room import Room, drawn_w, least_w, limits_on, rests_w, rooms, running_w
from policies.sentences import counted, hhmm, kw, some, span
from policies.serving import Level
from policies.turns import (
    ASK_EARLIER_S,
    HELD,
    WAITING,
    frozen_for,
    last_safe_start,
    launch_or_hold,
    leaving,
    limit_key,
    may_ask,
    owners_wish,
    pausable_now,
    plan_wants_freeze,
    plan_wants_pause,
    planned_gap_s,
    urgency,
)
from policies.world import (
    PLACED,
    SLACK,
    Action,
    Alarm,
    AskCheckpoint,
    Budget,
    Freeze,
    Hold,
    JobView,
    Launch,
    Placement,
    Thaw,
    World,
)

__all__ = ["HELD", "decide", "last_safe_start", "meet_limit"]


def decide(world: World) -> list[Action]:
    """Actions for this moment, at most one a job. Linear in the number of jobs."""
    actions: list[Action] = []
    room = rooms(world)
    acted: set[str] = set()

    def act(job_id: str, action: Action) -> None:
        acted.add(job_id)
        actions.append(action)

    # 1. what owners asked for
    frozen: list[JobView] = []
    for job in world.jobs:
        wish = owners_wish(job, world)
        if isinstance(wish, Hold) and job.state in PLACED:
            actions.append(wish)  # only words: it goes on
        elif wish is not None:
            act(job.id, wish)
        if job.frozen_at is not None:
            frozen.append(job)
    # 2. frozen jobs that have stood what they stand run on, before anything counts on them; then limits in force
    for job in frozen:
        if job.id not in acted and is_used_up(job, world.now):
            act(job.id, Thaw(job.id, _stood_enough(job), used_up=True))
            _run_on(room, job)
    placed: dict[str, list[JobView]] = {name: [] for name in room}
    for job in world.jobs:
        at = room.get(job.region or "")
        if at is not None and uses_room(job, at.view):
            placed[at.view.name].append(job)
    for region in room.values():
        for there in (*region.places, region):  # branches first: who gives way for one counts for the site too
            here = placed[region.view.name] if there is region else there.here
            for action in meet_limit(there, here, world, acted):
                if isinstance(action, AskCheckpoint | Freeze):
                    act(action.job_id, action)
                else:
                    actions.append(action)
    for name, here in placed.items():
        for action in _step_aside(room[name], here, world, acted):
            act(action.job_id, action)
    # 3. running jobs that the plan would rather have elsewhere, or later; and frozen ones that nothing keeps any more
    for job in world.jobs:
        if job.id in acted:
            continue
        if (reason := plan_wants_pause(job, _known_to_plan(job, world), world)) is not None:
            act(job.id, AskCheckpoint(job.id, reason))
        elif freezes(job) and (reason := plan_wants_freeze(job, _known_to_plan(job, world), world)) is not None:
            act(job.id, Freeze(job.id, reason))
    for job in sorted(frozen, key=lambda job: (-job.flex.priority, left_s(job, world.now), job.id)):
        if job.id not in acted and (home := room.get(job.region or "")) is not None and _may_thaw(job, home, frozen, world):
            act(job.id, Thaw(job.id, f"runs on in {home.view.name}: nothing keeps it frozen any more"))
            _run_on(room, job)
    # 4. launches, the most urgent first, so that the last room goes to whoever cannot wait
    waiting_jobs = [
        (last_safe_start(j, world), j) for j in world.jobs if j.state in WAITING and not j.held and j.id not in acted
    ]
    waiting_jobs.sort(key=lambda one: urgency(*one))
    placements = world.plan.placements if world.plan is not None else {}
    unplaced = world.plan.unplaced if world.plan is not None else {}
    for last, job in waiting_jobs:
        waiting = launch_or_hold(job, last, placements.get(job.id), world, room, unplaced.get(job.id))
        if isinstance(waiting, Launch):
            home = room[waiting.region]
            power_w = home.draw_of(job.flex.power_w, waiting.gpu_type, waiting.cap)
            home.take(job.flex.gpus, power_w, gpu_type=waiting.gpu_type, flexible=job.flex.flexible)
        if waiting is not None:
            act(job.id, waiting)
    return actions


def _known_to_plan(job: JobView, world: World) -> Placement | None:
    """A running job's place in the plan; None where the plan is older than this run and knows nothing of it."""
    if world.plan is None or job.run_started_at is None or world.plan.made_at < job.run_started_at:
        return None
    return world.plan.placements.get(job.id)


# --- frozen jobs ------------------------------------------------------------------------------------------------------


def _stood_enough(job: JobView) -> str:
    most = f"it has stood frozen for as long as it may ({span(freeze_max_s(job.flex))})"
    return f"runs on: {most}; its owner's pause is over" if job.held else f"runs on: {most}"


def _returns_w(room: Room, job: JobView) -> float:
    """What a frozen job adds at the meter when it runs again, W."""
    return max(0.0, running_w(room, job) - drawn_w(room, job)) * room.view.pue


def _run_on(rooms_of: Mapping[str, Room], job: JobView) -> None:
    """Count that a frozen job runs again, in its region and on its branches."""
    home = rooms_of.get(job.region or "")
    for there in (home, *home.places) if home is not None else ():
        there.draw_w += _returns_w(there, job)


def _returning_w(room: Room, frozen: Iterable[JobView], within_s: float, now: datetime) -> float:
    """What the frozen jobs of a region that must run on ``within_s`` from now will add by then, W at the meter."""
    return sum(
        _returns_w(room, job)
        for job in frozen
        if job.region == room.view.name and job.frozen_at is not None and left_s(job, now) - wake_margin_s(job) <= within_s
    )


def _may_thaw(job: JobView, room: Room, frozen: Sequence[JobView], world: World) -> bool:
    """Whether neither its owner, nor a limit in force or about to be, nor the plan keeps a frozen job where it is."""
    if job.held or leaving(job):
        return False
    if any(guard.level >= Level.FREEZE and guard.concerns(job) for guard in room.view.guards):
        return False
    gap_s = planned_gap_s(job, _known_to_plan(job, world), world)
    if gap_s is not None and gap_s > NOT_WORTH_WAKING_S:
        return False
    others = [one for one in frozen if one.id != job.id]
    there = [place for place in room.places if place.share_of(job) > 0]
    return all(_has_power_for(one, job, others, world.now) for one in (room, *there))


def _has_power_for(room: Room, job: JobView, others: Sequence[JobView], now: datetime) -> bool:
    """Whether a frozen job may run again as far as the limits on a region, or on a branch, go; ``others`` stand frozen too."""
    draw_w = room.staying_w + _returns_w(room, job)
    draw_w += _returning_w(room, others, NOT_WORTH_WAKING_S, now)
    soon = [budget for budget in room.coming if (budget.start - now).total_seconds() <= NOT_WORTH_WAKING_S]
    limits = [budget.limit_w - room.kept_w_at(budget.start) for budget in soon]
    if room.limit_w is not None:
        limits.append(room.limit_w - room.kept_w)
    if room.back_w is not None and room.draw_w + _returns_w(room, job) > room.back_w + SLACK:
        return False
    return all(draw_w <= limit_w + SLACK for limit_w in limits)


# --- serving ----------------------------------------------------------------------------------------------------------


def _step_aside(room: Room, here: Sequence[JobView], world: World, acted: set[str]) -> list[AskCheckpoint | Freeze]:
    """What batch beside serving at risk has to do, besides not starting and being capped: it is frozen, then asked to pause."""
    actions: dict[str, AskCheckpoint | Freeze] = {}
    for guard in room.view.guards:
        for job in here if guard.level >= Level.FREEZE else ():
            if job.id in acted or job.id in actions or not guard.concerns(job):
                continue
            if may_freeze(job, world.now):
                actions[job.id] = Freeze(job.id, f"{guard.reason}: {frozen_for(job, world.now)}")
            elif guard.level >= Level.PAUSE and pausable_now(job) and not leaving(job) and may_ask(job, world):
                actions[job.id] = AskCheckpoint(job.id, f"{guard.reason}: asked to pause")
    return list(actions.values())


# --- limits -----------------------------------------------------------------------------------------------------------


def meet_limit(room: Room, here: Sequence[JobView], world: World, acted: Iterable[str] = ()) -> list[Action]:
    """Pause or freeze what may be until the region, or the branch, is within its limit, cheapest loss first; say so when that
    is too little. What power caps can do is left to them: only what they cannot take off is asked of anybody.

    ``here`` are the jobs placed there, or that may be; those in ``acted`` are not asked (again), nor is one of which nobody
    tells that it is there: it could pause for nothing.
    """
    acted = acted if isinstance(acted, set) else set(acted)
    if room.view.unheard:
        return []  # what caps can do is not known yet, and those of a limit outlast a restart of ours
    excess_w, excess_gpus = room.excess_w, room.excess_gpus
    if excess_w <= 0 and excess_gpus <= 0:
        return [*_before_they_return(room, here, world, acted), *_prepare(room, here, world, acted)]
    actions: list[Action] = []
    going = [job for job in here if job.id in acted and not leaving(job) and job.frozen_at is None]
    candidates = _candidates(room, here, world, acted, world.now)
    excess_w -= sum(_gives_w(room, job) for job in going)
    excess_gpus -= sum(job.flex.gpus for job in going if not freezes(job))
    limited = excess_w > 0
    for job in candidates:
        if excess_w <= 0 and excess_gpus <= 0:
            break
        if not may_ask(job, world):
            continue
        why = (
            f"{room.name} may draw {kw(room.limit_w or 0.0)} ({room.limit_reason})"
            if excess_w > 0
            else f"{room.view.name} keeps {counted(room.kept_gpus, 'GPU')} for serving"
        )
        if freezes(job):
            if excess_w <= 0 or _gives_w(room, job) <= 0:
                continue  # a frozen job keeps its GPUs
        else:
            excess_gpus -= job.flex.gpus
        actions.append(_give_way(job, why, world))
        excess_w -= _gives_w(room, job)
    if limited and excess_w > 0:
        told = [job for job in here if room.is_told(job)]
        fixed = [job for job in told if not leaving(job) and not pausable_now(job) and not freezes(job)]
        deaf = [job.id for job in candidates if not may_ask(job, world)]
        parts = [f"{counted(len(fixed), 'job')} there cannot be paused"] if fixed else []
        if deaf:
            names = some(deaf, 3)
            parts.append(f"{names} did not answer when asked for a checkpoint")
        parts += _unfrozen(told, world.now)
        if room.unlocated:
            parts.append(unlocated(room))
        capped = "jobs capped as far as they accept and " if room.caps_w > 0 else ""
        what = " and ".join(parts) or "what draws there is not gridshift's to pause"
        sentence = (
            f"by what its jobs are expected to draw {room.name} is {kw(excess_w)} above its limit of "
            f"{kw(room.limit_w or 0.0)} ({room.limit_reason}) even with {capped}everything pausable paused: "
            f"{what}; cancelling jobs or raising the limit would meet it"
        )
        branch = room.branch.name if room.branch is not None else None
        actions.append(Alarm(limit_key(room.view.name, branch), room.view.name, sentence))
    return actions


def _unfrozen(here: Iterable[JobView], now: datetime) -> list[str]:
    """Why jobs that would be frozen are not, the jobs of one reason together."""
    reasons: dict[str, list[str]] = {}
    for job in here:
        if freezes(job) and job.frozen_at is None and (why := why_not(job, now)) is not None:
            reasons.setdefault(why, []).append(job.id)
    told = []
    for why, ids in reasons.items():
        names = some(ids, 3)
        told.append(f"{names} cannot be frozen ({why})")
    return told


def _gives_w(room: Room, job: JobView) -> float:
    """What a running job, capped as far as it accepts, no longer draws at the meter once it has given way, W."""
    power_w = least_w(room, job)
    return (max(0.0, power_w - rests_w(room, job)) if freezes(job) else power_w) * room.view.pue


def _candidates(room: Room, here: Sequence[JobView], world: World, acted: set[str], when: datetime) -> list[JobView]:
    """Who may be asked to give way to the limits of ``when``, the cheapest first. One that would have to run on before the
    limit ends comes after its equals that stay away."""
    able = (job for job in here if pausable_now(job) or may_freeze(job, world.now))
    found = [job for job in able if job.id not in acted and room.is_told(job)]
    end = _limit_end(room, world, when) if any(map(freezes, found)) else None

    def cost(job: JobView) -> tuple[int, int, float, str]:
        if not freezes(job):
            return _pause_cost(job, world.now)
        lasts = end is not None and (end - world.now).total_seconds() <= left_s(job, world.now) - wake_margin_s(job)
        return (job.flex.priority, -int(job.flex.tier[-1]), 0.0 if lasts else float("inf"), job.id)

    return sorted(found, key=cost)


def _limit_end(room: Room, world: World, when: datetime) -> datetime | None:
    """When the lowest limit in force at ``when`` ends; None for one that stands, or is open."""
    mine = [budget for budget in limits_on(room, world) if budget.holds(when)]
    lowest: Budget | None = min(mine, key=lambda b: b.limit_w, default=None)
    if lowest is None or (room.standing_w is not None and room.standing_w <= lowest.limit_w):
        return None
    return lowest.end


def _before_they_return(room: Room, here: Sequence[JobView], world: World, acted: set[str]) -> list[Action]:
    """Let others give way in time when frozen jobs have to run on while their limit lasts."""
    frozen = [job for job in here if job.frozen_at is not None]
    if not frozen or room.limit_w is None:
        return []
    actions: list[Action] = []
    over_w = room.staying_w + room.kept_w - room.limit_w
    for job in _candidates(room, here, world, acted, world.now):
        returning_w = _returning_w(room, frozen, _lead_s(job), world.now)
        if returning_w <= 0 or over_w + returning_w <= 0 or not may_ask(job, world) or _gives_w(room, job) <= 0:
            continue
        over_w -= _gives_w(room, job)
        acted.add(job.id)
        why = f"{room.name} may draw {kw(room.limit_w)} ({room.limit_reason}) and jobs that stand frozen must run on"
        actions.append(_give_way(job, why, world))
    return actions


def _lead_s(job: JobView) -> float:
    """How long before it must be gone a running job is asked, s."""
    return FREEZE_EARLIER_S if freezes(job) else job.flex.checkpoint_s + ASK_EARLIER_S


def _give_way(job: JobView, why: str, world: World) -> Action:
    if freezes(job):
        return Freeze(job.id, f"{why}: {frozen_for(job, world.now)}")
    return AskCheckpoint(job.id, f"{why}: asked to pause")


def _prepare(room: Room, here: Sequence[JobView], world: World, acted: set[str]) -> list[Action]:
    """Ask in time for a limit that is about to begin: a job is asked when its checkpoint would just be done by then, or frozen
    when it would just stand still."""
    actions: list[Action] = []
    asked: set[str] = set()
    for budget in room.coming:
        until_s = (budget.start - world.now).total_seconds()
        staying = [
            j for j in here if not leaving(j) and j.id not in acted and j.id not in asked and _left_s(j, world) > until_s
        ]
        excess_w = sum(least_w(room, job) for job in staying) * room.view.pue + room.other_w
        excess_w -= budget.limit_w - room.kept_w_at(budget.start)
        excess_w += _returning_w(room, staying, until_s, world.now)
        for job in _candidates(room, staying, world, acted, budget.start):
            if excess_w <= 0:
                break
            if not may_ask(job, world):
                continue
            excess_w -= _gives_w(room, job)
            if until_s <= _lead_s(job):
                asked.add(job.id)
                limit = f"{kw(budget.limit_w)} from {hhmm(budget.start)} ({budget.why})"
                actions.append(_give_way(job, f"{room.name} may draw {limit}", world))
    return actions


def _left_s(job: JobView, world: World) -> float:
    """Seconds that a placed job will still run, as expected."""
    ran_s = (world.now - job.run_started_at).total_seconds() if job.run_started_at is not None else 0.0
    return job.remaining_s - ran_s


def _pause_cost(job: JobView, now: datetime) -> tuple[int, int, float, str]:
    """Order of pausing: low priority, then flexible tiers, then the cheapest checkpoint and restart."""
    overhead = (job.flex.checkpoint_s + job.flex.restart_s) * job.flex.power_w
    return (job.flex.priority, -int(job.flex.tier[-1]), overhead, job.id)
