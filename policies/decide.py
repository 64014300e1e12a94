"""What to do now, once a second: from a World to a list of actions, each with its sentence. Pure.

The plan says when and where; this module keeps the promises around it: limits are never passed, owners' wishes come first, no
job starts later than its last safe moment, and nothing is done twice. It plans nothing itself.
"""

from datetime import UTC, datetime, timedelta

from policies.room import Room, rooms
from policies.sentences import hhmm, kw
from policies.world import (
    PLACED,
    Action,
    Alarm,
    AskCheckpoint,
    EndCancelled,
    Hold,
    JobState,
    JobView,
    Launch,
    Pausable,
    Placement,
    StopAttempt,
    World,
)

_NEVER = datetime.max.replace(tzinfo=UTC)
_WAITING = frozenset({JobState.QUEUED, JobState.PAUSED})
#: Seconds beyond a checkpoint's own time by which a job is asked before a limit begins: a few ticks and the stop itself.
ASK_EARLIER_S = 15.0


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
        wish = _wish(job, world)
        if wish is not None:
            act(job.id, wish)
    # 2. limits in force
    for region in room.values():
        for action in _meet_limit(region, world, acted):
            if isinstance(action, AskCheckpoint):
                act(action.job_id, action)
            else:
                actions.append(action)
    # 3. running jobs that the plan would rather have elsewhere, or later
    for job in world.jobs:
        if job.id not in acted and (reason := _plan_wants_pause(job, world)) is not None:
            act(job.id, AskCheckpoint(job.id, reason))
    # 4. launches, the most urgent first, so that the last room goes to whoever cannot wait
    waiting_jobs = [
        (last_safe_start(j, world), j) for j in world.jobs if j.state in _WAITING and not j.held and j.id not in acted
    ]
    waiting_jobs.sort(key=_urgency)
    for last, job in waiting_jobs:
        waiting = _launch_or_hold(job, last, world, room)
        if isinstance(waiting, Launch):
            room[waiting.region].take(job.flex.gpus, job.flex.power_w)
        if waiting is not None:
            act(job.id, waiting)
    return actions


# --- owners' wishes ---------------------------------------------------------------------------------------------------


def _wish(job: JobView, world: World) -> Action | None:
    if job.cancel_requested:
        if job.state in _WAITING:
            return EndCancelled(job.id, "cancelled before it started" if job.attempt == 0 else "cancelled while it waited")
        return StopAttempt(job.id, f"being cancelled: {job.region} was asked to stop it")
    if not job.held:
        return None
    if job.state is JobState.RUNNING and job.flex.pausable is Pausable.CHECKPOINT:
        may_ask = _may_ask(job, world.now, world.settings.checkpoint_retry_s)
        return AskCheckpoint(job.id, "its owner paused it") if may_ask else None
    if job.state in _WAITING and (job.reason != HELD or job.planned_start_at is not None):
        return Hold(job.id, HELD)
    return None


HELD = "paused by its owner; it waits until it is resumed"


# --- limits -----------------------------------------------------------------------------------------------------------


def _meet_limit(room: Room, world: World, acted: set[str]) -> list[Action]:
    """Pause what may be paused until the region is within its limit, cheapest loss first; say so when that is too little."""
    excess_w = room.excess_w
    if excess_w <= 0:
        return _prepare(room, world, acted)
    actions: list[Action] = []
    here = [job for job in world.jobs if job.region == room.view.name and job.state in PLACED]
    going = sum(job.flex.power_w * room.view.pue for job in here if job.id in acted and not _leaving(job))
    candidates = sorted(
        (job for job in here if job.id not in acted and _pausable_now(job)), key=lambda job: _pause_cost(job, world.now)
    )
    excess_w -= going
    for job in candidates:
        if excess_w <= 0:
            break
        if not _may_ask(job, world.now, world.settings.checkpoint_retry_s):
            continue
        excess_w -= job.flex.power_w * room.view.pue
        actions.append(
            AskCheckpoint(job.id, f"{room.view.name} may draw {kw(room.limit_w or 0.0)} ({room.limit_reason}): asked to pause")
        )
    if excess_w > 0:
        fixed = [job for job in here if not _leaving(job) and not _pausable_now(job)]
        deaf = [job.id for job in candidates if not _may_ask(job, world.now, world.settings.checkpoint_retry_s)]
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


def _prepare(room: Room, world: World, acted: set[str]) -> list[Action]:
    """Ask in time for a limit that is about to begin: a job is asked when its checkpoint would just be done by then."""
    actions: list[Action] = []
    asked: set[str] = set()
    for budget in room.coming:
        left_s = (budget.start - world.now).total_seconds()
        here = [job for job in world.jobs if job.region == room.view.name and job.state in PLACED]
        staying = [
            j for j in here if not _leaving(j) and j.id not in acted and j.id not in asked and _left_s(j, world) > left_s
        ]
        excess_w = sum(job.flex.power_w for job in staying) * room.view.pue + room.view.bypass_w - budget.limit_w
        for job in sorted((j for j in staying if _pausable_now(j)), key=lambda j: _pause_cost(j, world.now)):
            if excess_w <= 0:
                break
            if not _may_ask(job, world.now, world.settings.checkpoint_retry_s):
                continue
            excess_w -= job.flex.power_w * room.view.pue
            if left_s <= job.flex.checkpoint_s + ASK_EARLIER_S:
                asked.add(job.id)
                limit = f"{kw(budget.limit_w)} from {hhmm(budget.start)} ({budget.reason or f'event {budget.event_id}'})"
                actions.append(AskCheckpoint(job.id, f"{room.view.name} may draw {limit}: asked to pause"))
    return actions


def _left_s(job: JobView, world: World) -> float:
    """Seconds that a placed job will still run, as expected."""
    ran_s = (world.now - job.run_started_at).total_seconds() if job.run_started_at is not None else 0.0
    return job.remaining_s - ran_s


def _leaving(job: JobView) -> bool:
    return job.pause_requested or job.cancel_requested


def _pausable_now(job: JobView) -> bool:
    return job.state is JobState.RUNNING and job.flex.flexible and job.flex.pausable is Pausable.CHECKPOINT


def _pause_cost(job: JobView, now: datetime) -> tuple[int, int, float, str]:
    """Order of pausing: low priority, then flexible tiers, then the cheapest checkpoint and restart."""
    overhead = (job.flex.checkpoint_s + job.flex.restart_s) * job.flex.power_w
    return (job.flex.priority, -int(job.flex.tier[-1]), overhead, job.id)


def _may_ask(job: JobView, now: datetime, retry_s: float) -> bool:
    """A job that left a request for its checkpoint unanswered is not asked again at once."""
    if job.checkpoint_misses == 0 or job.last_pause_asked_at is None:
        return True
    return now >= job.last_pause_asked_at + timedelta(seconds=retry_s)


# --- the plan ---------------------------------------------------------------------------------------------------------


def _plan_wants_pause(job: JobView, world: World) -> str | None:
    """Why the plan wants a running job paused now, or None. Limits come first; this is only about money and carbon."""
    if not _pausable_now(job) or job.held or _leaving(job) or world.plan is None:
        return None
    placement = world.plan.placements.get(job.id)
    if placement is None or not placement.intervals or job.run_started_at is None or world.plan.made_at < job.run_started_at:
        return None  # a plan older than this run knows nothing of it
    settings = world.settings
    ran_s = (world.now - job.run_started_at).total_seconds()
    if ran_s < settings.min_chunk_s or job.remaining_s - ran_s < settings.min_chunk_s:
        return None
    if not _may_ask(job, world.now, settings.checkpoint_retry_s):
        return None
    if _running_at(placement, world) and placement.region == job.region:
        return None
    upcoming = [start for start, end in placement.intervals if end > world.now]
    if not upcoming:
        return None
    return f"{placement.reason}; asked to pause until {hhmm(max(upcoming[0], world.now))} in {placement.region}"


def _running_at(placement: Placement, world: World) -> bool:
    """Whether the plan has the job running now."""
    now = _plan_moment(world)
    return any(start <= now < end for start, end in placement.intervals)


def _plan_moment(world: World) -> datetime:
    """Now; a plan may be a moment younger than this world, and then speaks of its own moment."""
    return max(world.now, world.plan.made_at) if world.plan is not None else world.now


def _worth_starting(job: JobView, placement: Placement, world: World) -> bool:
    """Whether the plan has the job run now, for long enough to be worth a start."""
    enough_s = min(world.settings.min_chunk_s, job.remaining_s)
    now = _plan_moment(world)
    last = placement.intervals[-1]
    return any(
        start <= now < end and ((start, end) == last or (end - now).total_seconds() >= enough_s)
        for start, end in placement.intervals
    )


def last_safe_start(job: JobView, world: World) -> datetime | None:
    """The last moment at which a waiting job may start and still end by its deadline, with slack for what is uncertain; None
    without a deadline."""
    deadline = job.flex.deadline_at
    if deadline is None:
        return None
    settings = world.settings
    slack_s = settings.launch_s + settings.deadline_margin_s + settings.runtime_slack * job.remaining_s
    restart_s = job.flex.restart_s if job.state is JobState.PAUSED else 0.0
    return deadline - timedelta(seconds=job.remaining_s + restart_s + slack_s)


def _urgency(waiting: tuple[datetime | None, JobView]) -> tuple[bool, int, datetime, str]:
    """Inflexible jobs first, then by priority, then by last safe start."""
    last, job = waiting
    return (job.flex.flexible, -job.flex.priority, last if last is not None else _NEVER, job.id)


def _launch_or_hold(job: JobView, last: datetime | None, world: World, room: dict[str, Room]) -> Action | None:
    now = world.now
    if job.not_before_at is not None and now < job.not_before_at:
        return None  # its sentence already says what happened
    if not job.flex.flexible:
        return _launch_anywhere(job, world, room, "starts at once: it has no gridshift metadata", home=True)
    if job.flex.earliest_at is not None and now < job.flex.earliest_at:
        return _hold(job, f"may not start before {hhmm(job.flex.earliest_at)}", world)
    if last is not None and now >= last:
        late = job.flex.deadline_at is not None and now + timedelta(seconds=job.remaining_s) > job.flex.deadline_at
        because = "it will end after its deadline" if late else "a later start could miss its deadline"
        return _launch_anywhere(job, world, room, f"starts now: {because} {hhmm(job.flex.deadline_at or now)}", home=False)
    placement = world.plan.placements.get(job.id) if world.plan is not None else None
    if placement is None:
        why = world.plan.unplaced.get(job.id) if world.plan is not None else None
        return _hold(job, why or "waits for the plan, which is being made", world)
    if _worth_starting(job, placement, world):
        refusal = (
            room[placement.region].refusal(job.flex.gpus, job.flex.power_w) if placement.region in room else "no such region"
        )
        if refusal is None:
            return Launch(job.id, placement.region, placement.reason)
        return _hold(job, f"its time has come but {refusal}; waiting for a new plan", world)
    return _hold(job, placement.reason, world, placement)


def _hold(job: JobView, reason: str, world: World, placement: Placement | None = None) -> Hold | None:
    """A Hold, or None when the job says all this already."""
    region, start = None, None
    if placement is not None:
        region = placement.region
        start = next((begin for begin, end in placement.intervals if end > world.now), None)
    if (job.reason, job.planned_region, job.planned_start_at) == (reason, region, start):
        return None
    return Hold(job.id, reason, region, start)


def _launch_anywhere(job: JobView, world: World, room: dict[str, Room], sentence: str, *, home: bool) -> Action | None:
    """Launch in the best region with room now: for an inflexible job its home, for another the cheapest allowed one."""
    allowed = [name for name in room if not job.flex.regions or name in job.flex.regions]
    if home:
        first = world.settings.default_region
        allowed.sort(key=lambda name: name != first)  # without GPUs free there it starts all the same: Ray queues for them
    else:
        origin = job.region if job.state is JobState.PAUSED else job.flex.data_region
        far = job.flex.data_gb > 0 and origin is not None  # fetching data takes time that is not there any more
        allowed.sort(key=lambda name: (far and name != origin, _price_now(room[name], world)))
    refusals = []
    for name in allowed:
        refusal = room[name].refusal(job.flex.gpus, job.flex.power_w, limits_only=home)
        if refusal is None:
            return Launch(job.id, name, f"{sentence}, in {name}")
        refusals.append(refusal)
        if home:
            break  # it waits for its home rather than surprise its owner elsewhere
    why = "; ".join(refusals) or "no region is configured"
    return _hold(job, f"must wait: {why}", world)


def _price_now(room: Room, world: World) -> float:
    price = room.view.price.at(world.now) if room.view.price is not None else None
    return float("inf") if price is None else price * room.view.fx * room.view.pue
