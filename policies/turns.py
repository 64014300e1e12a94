"""One job at one moment: what its owner wants, whether its turn has come, whether the plan wants it paused, and when to look
again. Pure; policies.decide asks this of every job each tick, a backtest of those whose moment it is.
"""

from datetime import UTC, datetime, timedelta

from policies.fit import never_fits
from policies.freezing import WORTH_FREEZING_S, freezes, left_s, may_freeze, wake_margin_s, why_not
from policies.room import Room
from policies.sentences import hhmm, span
from policies.world import (
    Action,
    AskCheckpoint,
    EndCancelled,
    Freeze,
    Hold,
    JobState,
    JobView,
    Launch,
    Pausable,
    Placement,
    StopAttempt,
    World,
)

NEVER = datetime.max.replace(tzinfo=UTC)
WAITING = frozenset({JobState.QUEUED, JobState.PAUSED})
HELD = "paused by its owner; it waits until it is resumed"
RUN_NOW = "starts now: its owner asked for it, whatever power costs"
#: Seconds beyond a checkpoint's own time by which a job is asked before a limit begins: a few ticks and the stop itself.
ASK_EARLIER_S = 15.0


def owners_wish(job: JobView, world: World) -> Action | None:
    """What the job's owner asked for and has not got yet."""
    if job.cancel_requested:
        if job.state in WAITING:
            return EndCancelled(job.id, "cancelled before it started" if job.attempt == 0 else "cancelled while it waited")
        if any(view.name == job.region for view in world.regions):
            return StopAttempt(job.id, f"being cancelled: {job.region} was asked to stop it")
        gone = f"being cancelled: {job.region}, where it runs, is not configured any more, so nobody can stop it there"
        return Hold(job.id, gone) if job.reason != gone else None
    if not job.held:
        return None
    if job.state is JobState.RUNNING and job.flex.pausable is Pausable.CHECKPOINT:
        return AskCheckpoint(job.id, "its owner paused it") if may_ask(job, world) else None
    if freezes(job) and job.frozen_at is None:
        if (refusal := why_not(job, world.now)) is None:
            return Freeze(job.id, f"its owner paused it: {frozen_for(job, world.now)}")
        sentence = f"its owner paused it, and it runs on: {refusal}"
        return Hold(job.id, sentence) if job.reason != sentence else None
    if job.state in WAITING and (job.reason != HELD or job.planned_start_at is not None):
        return Hold(job.id, HELD)
    return None


def limit_key(region: str, branch: str | None = None) -> str:
    """The key of the alarm that a limit of a region, or of one branch of it, is not kept, whoever raises it."""
    return f"limit {region}" if branch is None else f"limit {region} {branch}"


def may_ask(job: JobView, world: World) -> bool:
    """A job that left a request for its checkpoint unanswered is not asked again at once."""
    if job.checkpoint_misses == 0 or job.last_pause_asked_at is None:
        return True
    return world.now >= job.last_pause_asked_at + timedelta(seconds=world.settings.checkpoint_retry_s)


def leaving(job: JobView) -> bool:
    """Whether a placed job is being paused or stopped already."""
    return job.pause_requested or job.cancel_requested


def pausable_now(job: JobView) -> bool:
    """Whether a job runs and may be asked for a checkpoint."""
    return job.state is JobState.RUNNING and job.flex.flexible and job.flex.pausable is Pausable.CHECKPOINT


def frozen_for(job: JobView, now: datetime) -> str:
    """The end of the sentence of a job that is frozen now."""
    return f"frozen where it runs, for {span(left_s(job, now) - wake_margin_s(job))} at most"


# --- running ----------------------------------------------------------------------------------------------------------


def plan_wants_pause(job: JobView, placement: Placement | None, world: World) -> str | None:
    """Why the plan wants a running job paused now, or None. ``placement`` was made knowing of this run. Limits come first; this
    is only about money and carbon."""
    if placement is None or not placement.intervals or job.run_started_at is None:
        return None
    if not pausable_now(job) or job.held or job.run_now or leaving(job):
        return None
    settings = world.settings
    ran_s = (world.now - job.run_started_at).total_seconds()
    if ran_s < settings.min_chunk_s or job.remaining_s - ran_s < settings.min_chunk_s:
        return None
    if not may_ask(job, world):
        return None
    now = _plan_moment(world)
    if placement.region == job.region and any(start <= now < end for start, end in placement.intervals):
        return None
    upcoming = next((start for start, end in placement.intervals if end > world.now), None)
    if upcoming is None:
        return None
    return f"{placement.reason}; asked to pause until {hhmm(max(upcoming, world.now))} in {placement.region}"


def planned_gap_s(job: JobView, placement: Placement | None, world: World) -> float | None:
    """For how long from now on the plan has a running job not run, to go on where it is after that; None where it has it run
    now or elsewhere, or says nothing. ``placement`` was made knowing of this run."""
    if placement is None or placement.region != job.region or job.run_now:
        return None
    now = _plan_moment(world)
    if any(start <= now < end for start, end in placement.intervals):
        return None
    upcoming = next((start for start, _ in placement.intervals if start > now), None)
    return None if upcoming is None else (upcoming - world.now).total_seconds()


def plan_wants_freeze(job: JobView, placement: Placement | None, world: World) -> str | None:
    """Why the plan wants a running job frozen now, or None: a gap in its run that it stands, and that is worth it."""
    if not may_freeze(job, world.now) or job.held:
        return None
    gap_s = planned_gap_s(job, placement, world)
    if gap_s is None or placement is None or not WORTH_FREEZING_S <= gap_s <= left_s(job, world.now) - wake_margin_s(job):
        return None
    return f"{placement.reason}; frozen where it runs for {span(gap_s)}"


def _plan_moment(world: World) -> datetime:
    """Now; a plan may be a moment younger than this world, and then speaks of its own moment."""
    return max(world.now, world.plan.made_at) if world.plan is not None else world.now


# --- waiting ----------------------------------------------------------------------------------------------------------


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


def urgency(last: datetime | None, job: JobView) -> tuple[bool, int, datetime, str]:
    """The order in which waiting jobs get room: inflexible ones first, then by priority, then by last safe start."""
    return (job.flex.flexible, -job.flex.priority, last if last is not None else NEVER, job.id)


def worth_starting(job: JobView, placement: Placement, world: World) -> bool:
    """Whether the plan has the job run now, for long enough to be worth a start. A job that was refused room until its time was
    over goes on waiting for room: its time has come."""
    if not placement.intervals:
        return False
    now = _plan_moment(world)
    if now >= placement.intervals[-1][1]:
        return True
    last = placement.intervals[-1]
    enough_s = min(world.settings.min_chunk_s, job.remaining_s)
    return any(
        start <= now < end and ((start, end) == last or (end - now).total_seconds() >= enough_s)
        for start, end in placement.intervals
    )


def launch_or_hold(
    job: JobView,
    last: datetime | None,
    placement: Placement | None,
    world: World,
    room: dict[str, Room],
    why_unplaced: str | None = None,
) -> Action | None:
    """Start a waiting job now, or say what it waits for (None: it says so already). ``last`` is its last safe start,
    ``why_unplaced`` why there is no placement."""
    now, flex = world.now, job.flex
    if job.not_before_at is not None and now < job.not_before_at:
        return None  # its sentence already says what happened
    if not flex.flexible:
        return _launch_anywhere(job, world, room, "starts at once: it has no gridshift metadata", home=True)
    never = never_fits(flex, (here.view for here in room.values()), None)
    if never is not None:
        return _hold(job, never, world)
    if job.run_now:
        return _launch_anywhere(job, world, room, RUN_NOW, home=False, lead_s=lead_s(job, world))
    if flex.earliest_at is not None and now < flex.earliest_at:
        start = _next_start(placement, now)
        if placement is not None and start is not None and start > flex.earliest_at:
            return _hold(job, placement.reason, world, placement)  # that it waits for longer says more
        return _hold(job, f"may not start before {hhmm(flex.earliest_at)}", world, placement)
    if last is not None and now >= last:
        late = flex.deadline_at is not None and now + timedelta(seconds=job.remaining_s) > flex.deadline_at
        because = "it will end after its deadline" if late else "a later start could miss its deadline"
        sentence = f"starts now: {because} {hhmm(flex.deadline_at or now)}"
        return _launch_anywhere(job, world, room, sentence, home=False, lead_s=lead_s(job, world))
    if placement is None:
        return _hold(job, why_unplaced or "waits for the plan, which is being made", world)
    if not worth_starting(job, placement, world):
        return _hold(job, placement.reason, world, placement)
    here = room.get(placement.region)
    if here is None:
        refusal: str | None = "no such region"
    else:
        refusal = here.refusal(
            flex.gpus,
            here.draw_of(flex.power_w, placement.gpu_type, placement.cap),
            gpu_type=placement.gpu_type,
            gated=True,
            lead_s=lead_s(job, world),
            wherever=job.state is JobState.PAUSED,
        )
    if refusal is None:
        return Launch(job.id, placement.region, placement.reason, placement.gpu_type, placement.cap)
    return _hold(job, f"its time has come but {refusal}; waiting for a new plan", world)


def wanted_places(
    job: JobView, last: datetime | None, placement: Placement | None, world: World, room: dict[str, Room]
) -> list[tuple[str, str | None, float, bool]]:
    """Where ``launch_or_hold`` would start a waiting job at this moment if only there were room: region, GPU type (None: any),
    power cap, and whether the policy's own bound counts. Empty while it waits for its time."""
    now, flex = world.now, job.flex
    if (job.not_before_at is not None and now < job.not_before_at) or job.held:
        return []
    if not flex.flexible:
        return [(name, None, 1.0, False) for name in allowed_regions(job, world, room, home=True)]
    if job.run_now:
        return [(name, None, 1.0, False) for name in allowed_regions(job, world, room, home=False)]
    if flex.earliest_at is not None and now < flex.earliest_at:
        return []
    if last is not None and now >= last:
        return [(name, None, 1.0, False) for name in allowed_regions(job, world, room, home=False)]
    if placement is None or placement.region not in room or not worth_starting(job, placement, world):
        return []
    return [(placement.region, placement.gpu_type, placement.cap, True)]


def lead_s(job: JobView, world: World) -> float:
    """A job that starts so shortly before a limit begins would be asked to pause as soon as it runs, s."""
    return world.settings.launch_s + job.flex.checkpoint_s + ASK_EARLIER_S


def _hold(job: JobView, reason: str, world: World, placement: Placement | None = None) -> Hold | None:
    """A Hold, or None when the job says all this already."""
    region, start = None, None
    if placement is not None:
        region = placement.region
        start = _next_start(placement, world.now)
    if (job.reason, job.planned_region, job.planned_start_at) == (reason, region, start):
        return None
    return Hold(job.id, reason, region, start)


def _next_start(placement: Placement | None, now: datetime) -> datetime | None:
    """The begin of the first part of a job's place that is not over."""
    return next((begin for begin, end in placement.intervals if end > now), None) if placement is not None else None


def allowed_regions(job: JobView, world: World, room: dict[str, Room], *, home: bool) -> list[str]:
    """Where a job that must start now may go, the best place first: an inflexible job's home, for another the cheapest."""
    allowed = [name for name in room if not job.flex.regions or name in job.flex.regions]
    if home:
        first = world.settings.default_region
        allowed.sort(key=lambda name: name != first)
        return allowed[:1]  # it waits for its home rather than surprise its owner elsewhere
    if len(allowed) > 1:
        origin = job.region if job.state is JobState.PAUSED else job.flex.data_region
        far = job.flex.data_gb > 0 and origin is not None  # fetching data takes time that is not there any more
        allowed.sort(key=lambda name: (far and name != origin, _price_now(room[name], world)))
    return allowed


def gpu_types_of(job: JobView, room: Room) -> list[str | None]:
    """The GPU types of a region that a job may run on, its fastest first; one None where GPUs are all alike."""
    if not room.view.pools:
        return [None]
    speed = job.flex.gpu_types
    types = dict.fromkeys(pool.gpu_type for pool in room.view.pools if not speed or pool.gpu_type in speed)
    return [*sorted(types, key=lambda name: -speed.get(name, 1.0))]


def _launch_anywhere(
    job: JobView, world: World, room: dict[str, Room], sentence: str, *, home: bool, lead_s: float = 0.0
) -> Action | None:
    """Launch in the best region with room now, and for the next ``lead_s``. Without GPUs free at home an inflexible job starts
    all the same: Ray queues for them."""
    refusals = []
    for name in allowed_regions(job, world, room, home=home):
        here = room[name]
        refusal: str | None = f"{name} has no GPUs of a type it runs on"
        for gpu_type in gpu_types_of(job, here):
            power_w = here.draw_of(job.flex.power_w, gpu_type, 1.0)
            refusal = here.refusal(job.flex.gpus, power_w, limits_only=home, gpu_type=gpu_type, lead_s=lead_s)
            if refusal is None:
                return Launch(job.id, name, f"{sentence}, in {name}", gpu_type)
        refusals.append(refusal or "")
    why = "; ".join(refusals) or "no region is configured"
    return _hold(job, f"must wait: {why}", world)


def _price_now(room: Room, world: World) -> float:
    price = room.view.price.at(world.now) if room.view.price is not None else None
    return float("inf") if price is None else price * room.view.fx * room.view.pue


# --- when to look again -------------------------------------------------------------------------------------------------


def next_moment(job: JobView, placement: Placement | None, world: World) -> datetime | None:
    """When what is decided on a job may change by time alone, after ``world.now``; None: never. What else may change it is
    room, limits, a new plan and its owner."""
    now = world.now
    if job.state in WAITING:
        first = max(job.not_before_at or now, now if job.run_now else job.flex.earliest_at or now)
        if first > now:
            return first
        soonest = last_safe_start(job, world)
        if soonest is not None and soonest <= now:
            return None  # it may start at once: only room holds it up
        if placement is not None:
            for start, end in placement.intervals:
                if start > now:
                    return start if soonest is None else min(start, soonest)
                if end > now:
                    # While it waits for room, this part may grow too short to begin; the last one's end never matters.
                    continue
        return soonest
    if placement is None or not pausable_now(job) or job.run_started_at is None or leaving(job) or not placement.intervals:
        return None
    stop = now
    if placement.region == job.region:
        stop = next((end for start, end in placement.intervals if start <= now < end), now)
    if stop >= placement.intervals[-1][1]:
        return None
    settings = world.settings
    stop = max(stop, job.run_started_at + timedelta(seconds=settings.min_chunk_s))
    if job.checkpoint_misses and job.last_pause_asked_at is not None:
        stop = max(stop, job.last_pause_asked_at + timedelta(seconds=settings.checkpoint_retry_s))
    return stop if stop > now else None
