"""What to do now, once a second: from a World to a list of actions, each with its sentence. Pure.

The plan says when and where; this module keeps the promises around it: limits are never passed, owners' wishes come first, no
job starts later than its last safe moment, and nothing is done twice. It plans nothing itself. What is asked of one job alone
stands in policies.turns.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from policies.room import Room, drawn_w, rooms
from policies.sentences import hhmm, kw
from policies.turns import (
    ASK_EARLIER_S,
    HELD,
    WAITING,
    last_safe_start,
    launch_or_hold,
    leaving,
    may_ask,
    owners_wish,
    pausable_now,
    plan_wants_pause,
    urgency,
)
from policies.world import PLACED, Action, Alarm, AskCheckpoint, JobView, Launch, Placement, World

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
    for job in world.jobs:
        wish = owners_wish(job, world)
        if wish is not None:
            act(job.id, wish)
    # 2. limits in force
    placed: dict[str, list[JobView]] = {name: [] for name in room}
    for job in world.jobs:
        if job.state in PLACED and job.region in placed:
            placed[job.region].append(job)
    for region in room.values():
        for action in meet_limit(region, placed[region.view.name], world, acted):
            if isinstance(action, AskCheckpoint):
                act(action.job_id, action)
            else:
                actions.append(action)
    # 3. running jobs that the plan would rather have elsewhere, or later
    for job in world.jobs:
        if job.id not in acted and (reason := plan_wants_pause(job, _known_to_plan(job, world), world)) is not None:
            act(job.id, AskCheckpoint(job.id, reason))
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
            there = room[waiting.region]
            power_w = there.draw_of(job.flex.power_w, waiting.gpu_type, waiting.cap)
            there.take(job.flex.gpus, power_w, gpu_type=waiting.gpu_type, flexible=job.flex.flexible)
        if waiting is not None:
            act(job.id, waiting)
    return actions


def _known_to_plan(job: JobView, world: World) -> Placement | None:
    """A running job's place in the plan; None where the plan is older than this run and knows nothing of it."""
    if world.plan is None or job.run_started_at is None or world.plan.made_at < job.run_started_at:
        return None
    return world.plan.placements.get(job.id)


# --- limits -----------------------------------------------------------------------------------------------------------


def meet_limit(room: Room, here: Sequence[JobView], world: World, acted: Iterable[str] = ()) -> list[Action]:
    """Pause what may be paused until the region is within its limit, cheapest loss first; say so when that is too little.

    ``here`` are the jobs placed there; those in ``acted`` are not asked (again).
    """
    acted = acted if isinstance(acted, set) else set(acted)
    excess_w, excess_gpus = room.excess_w, room.excess_gpus
    if excess_w <= 0 and excess_gpus <= 0:
        return _prepare(room, here, world, acted)
    actions: list[Action] = []
    going = [job for job in here if job.id in acted and not leaving(job)]
    candidates = sorted(
        (job for job in here if job.id not in acted and pausable_now(job)), key=lambda job: _pause_cost(job, world.now)
    )
    excess_w -= sum(drawn_w(room, job) * room.view.pue for job in going)
    excess_gpus -= sum(job.flex.gpus for job in going)
    limited = excess_w > 0
    for job in candidates:
        if excess_w <= 0 and excess_gpus <= 0:
            break
        if not may_ask(job, world):
            continue
        why = (
            f"{room.view.name} may draw {kw(room.limit_w or 0.0)} ({room.limit_reason})"
            if excess_w > 0
            else f"{room.view.name} keeps {room.kept_gpus:g} GPUs for serving"
        )
        excess_w -= drawn_w(room, job) * room.view.pue
        excess_gpus -= job.flex.gpus
        actions.append(AskCheckpoint(job.id, f"{why}: asked to pause"))
    if limited and excess_w > 0:
        fixed = [job for job in here if not leaving(job) and not pausable_now(job)]
        deaf = [job.id for job in candidates if not may_ask(job, world)]
        parts = [f"{len(fixed)} jobs there cannot be paused"] if fixed else []
        if deaf:
            names = ", ".join(deaf[:3]) + (f" and {len(deaf) - 3} more" if len(deaf) > 3 else "")
            parts.append(f"{names} did not answer when asked for a checkpoint")
        what = " and ".join(parts) or "what draws there is not gridshift's to pause"
        sentence = (
            f"{room.view.name} is {kw(excess_w)} above its limit of {kw(room.limit_w or 0.0)} ({room.limit_reason}) even with "
            f"everything pausable paused: {what}; cancelling jobs or raising the limit would meet it"
        )
        actions.append(Alarm(f"limit {room.view.name}", room.view.name, sentence))
    return actions


def _prepare(room: Room, here: Sequence[JobView], world: World, acted: set[str]) -> list[Action]:
    """Ask in time for a limit that is about to begin: a job is asked when its checkpoint would just be done by then."""
    actions: list[Action] = []
    asked: set[str] = set()
    for budget in room.coming:
        left_s = (budget.start - world.now).total_seconds()
        staying = [j for j in here if not leaving(j) and j.id not in acted and j.id not in asked and _left_s(j, world) > left_s]
        excess_w = sum(drawn_w(room, job) for job in staying) * room.view.pue + room.view.bypass_w - budget.limit_w
        for job in sorted((j for j in staying if pausable_now(j)), key=lambda j: _pause_cost(j, world.now)):
            if excess_w <= 0:
                break
            if not may_ask(job, world):
                continue
            excess_w -= drawn_w(room, job) * room.view.pue
            if left_s <= job.flex.checkpoint_s + ASK_EARLIER_S:
                asked.add(job.id)
                limit = f"{kw(budget.limit_w)} from {hhmm(budget.start)} ({budget.reason or f'event {budget.event_id}'})"
                actions.append(AskCheckpoint(job.id, f"{room.view.name} may draw {limit}: asked to pause"))
    return actions


def _left_s(job: JobView, world: World) -> float:
    """Seconds that a placed job will still run, as expected."""
    ran_s = (world.now - job.run_started_at).total_seconds() if job.run_started_at is not None else 0.0
    return job.remaining_s - ran_s


def _pause_cost(job: JobView, now: datetime) -> tuple[int, int, float, str]:
    """Order of pausing: low priority, then flexible tiers, then the cheapest checkpoint and restart."""
    overhead = (job.flex.checkpoint_s + job.flex.restart_s) * job.flex.power_w
    return (job.flex.priority, -int(job.flex.tier[-1]), overhead, job.id)
