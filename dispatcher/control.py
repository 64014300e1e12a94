"""The control loop: observe, decide, act, record; one tick reads like that, and each part is a few lines.

What to do is decided by policies.decide on a frozen World; what an observation means is decided by dispatcher.reconcile.
This module only carries things between the store, the regions and those two. It asks nobody twice in one tick.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime, timedelta

from dispatcher import status
from dispatcher.api.services import AlarmStatus, Snapshot
from dispatcher.before_events import BeforeEvents
from dispatcher.clock import Clock, always
from dispatcher.clusters import AttemptStatus, RayStatus
from dispatcher.config import Config
from dispatcher.errors import ClusterUnreachable, StaleState, StoreUnavailable
from dispatcher.forecasts import Forecasts
from dispatcher.freezing import Freezes
from dispatcher.job_changes import change, freezing_view, launch_change, view_of
from dispatcher.last_seen import LastSeen
from dispatcher.launch import submission_id
from dispatcher.launching import MAX_LAUNCHING, Effects, Launching, LogSink, PackageSource, Secrets, lacking, too_large
from dispatcher.loops import Loop
from dispatcher.planning import NoPlanThere, PlanFailed, Planning
from dispatcher.power.accounts import JobEnergy, turns
from dispatcher.power.caps import CapLoop
from dispatcher.power.energy import EnergyBook
from dispatcher.power.hub import NodeLive
from dispatcher.reconcile import (
    UNBEGUN,
    Books,
    Seen,
    Usage,
    checkpoint_timeout,
    finish,
    freeze,
    reconcile,
    retry_after,
    settled,
    stood,
    thaw,
)
from dispatcher.regions import Region
from dispatcher.signal_book import SignalBook
from dispatcher.standing_plan import StandingPlan, wants_place
from dispatcher.store import Attempt, Change, Job, Store
from dispatcher.world_builder import WorldBuilder
from policies.decide import decide
from policies.freezing import mean_power_w
from policies.runtimes import Learned
from policies.sentences import words
from policies.world import (
    ENDED,
    PLACED,
    Action,
    Alarm,
    Alternative,
    AskCheckpoint,
    EndCancelled,
    Freeze,
    Guarded,
    Hold,
    JobState,
    JobView,
    Launch,
    Pausable,
    Plan,
    RegionView,
    Reserved,
    StopAttempt,
    Thaw,
    World,
)

log = logging.getLogger(__name__)

#: Wall seconds for which an attempt that its cluster took counts as being started, and one whose launch got no answer yet
#: (which may take a minute in itself): those that never get one must not keep all others from being launched.
STARTING_S, UNANSWERED_S = 60.0, 120.0
#: At most so many launches of one region stand without an answer: once it answers they may all begin at once.
MAX_UNANSWERED = 4 * MAX_LAUNCHING
#: Wall seconds before an attempt that was lost is followed by the next: its guard (see launch.py) ends it within seconds once
#: its supervisor is gone.
AFTER_LOSS_S = 10.0
#: The supervisor lives until Ray ends its node, which it does 60 s after it last heard its head. Wall seconds since then.
ORPHAN_S = 75.0
#: Wall seconds of grace for a checkpoint acknowledgement that is under way when checkpoint_s has passed.
CHECKPOINT_GRACE_S = 2.0
#: Sentences written per tick at most; the rest follow in the next ticks.
MAX_HOLDS = 500
#: Wall seconds before a waiting job's sentence is written again when only its figures moved.
SAY_AGAIN_S = 15.0
#: The same for the sentence of a plan that has not moved it; who made the plan, once it is somebody else, is said at once.
SAY_PLAN_AGAIN_S = 900.0
#: Ended jobs that are looked at, the latest, and for how long after their end, to book what was not known then.
SETTLED_JOBS = 1000
SETTLED_WITHIN = timedelta(days=3)
#: Ended jobs, the latest, that run times are learned from when the control plane starts.
LEARN_FROM = 1000
#: Wall seconds between two rounds of thinning out old signals.
THIN_AGAIN_S = 3600.0
#: So many submissions that cannot be deleted in one go mean that the cluster has a problem.
MAX_DELETE_FAILURES = 5
#: Attempts that ended this many wall seconds ago are deleted on their cluster (sooner can bring them back as FAILED).
FORGET_UPSTREAM_S = 3600.0
#: A plan that missed this many of its periods is too old to add jobs to.
STALE_PLANS = 3


class Control:
    """Everything the loops need, and the loops themselves. Thread-safe where it says so."""

    def __init__(
        self,
        *,
        config: Config,
        clock: Clock,
        store: Store,
        book: SignalBook,
        regions: Sequence[Region],
        packages: PackageSource,
        logs: LogSink,
        effects: Effects,
        planning: Planning,
        secrets: Secrets,
        forecasts: Forecasts | None = None,
        energy: EnergyBook | None = None,
        caps: CapLoop | None = None,
        freezes: Freezes | None = None,
        nodes: Callable[[], Iterable[NodeLive]] = lambda: (),
        wall: Callable[[], float] = time.monotonic,
        steady: Callable[[datetime], bool] = always,
    ) -> None:
        self.config, self.clock, self.store, self.book = config, clock, store, book
        self.regions = {region.name: region for region in regions}
        self.settings = config.planner_settings()
        self._logs, self._secrets, self._wall, self._forecasts = logs, secrets, wall, forecasts
        self._steady = steady
        #: What the GPUs drew; None where nothing is measured, or where the clock is not that of the meters.
        self._energy, self._energy_looked = energy, False
        #: Who else knows of alarms: (key, region, sentence) at a time.
        self.alarm_sources: list[Callable[[datetime], Iterable[tuple[str, str | None, str]]]] = []
        self.nudge: Callable[[], None] = lambda: None
        self.nudge_plan: Callable[[], None] = lambda: None
        self.nudge_power: Callable[[], None] = lambda: None
        self.nudge_place: Callable[[], None] = lambda: None
        self.nudge_ingest: Callable[[], None] = lambda: None
        self.nudge_forecast: Callable[[], None] = lambda: None
        self._caps = caps
        #: Who keeps what was expected without an event when notice of it comes; None where events are never measured.
        self.before_events: BeforeEvents | None = None
        #: What batch has to give for the interactive serving of a region.
        self.guards: Callable[[str], tuple[Guarded, ...]] = lambda region: ()
        #: What batch leaves free in a region for its interactive serving.
        self.reserved: Callable[[str], tuple[Reserved, ...]] = lambda region: ()
        #: Who stops and wakes jobs where they run; None where nobody can.
        self.freezes = freezes
        around = (config, self.settings, store, book, self.regions)
        # Who tells them is set later.
        guards, reserved = (lambda region: self.guards(region)), (lambda region: self.reserved(region))
        if caps is not None:
            drawn = (lambda: caps.uncapped(nodes())), guards, reserved, caps.beside_w
            self._around = WorldBuilder(*around, caps.points, caps.unheard, *drawn)
        else:
            self._around = WorldBuilder(*around, nodes=nodes, guards=guards, reserved=reserved)
        self._standing = StandingPlan(planning)
        self._launching = Launching(
            regions=self.regions,
            store=store,
            clock=clock,
            wall=wall,
            effects=effects,
            packages=packages,
            logs=logs,
            secrets=secrets,
            currency=self.settings.currency,
            nudge=lambda: self.nudge(),
        )
        self._lock = threading.Lock()
        self._said_at: dict[str, float] = {}
        #: The note of the plan that a waiting job's sentence is of: another one's figures are not like it.
        self._said_by: dict[str, str] = {}
        self._last_seen = LastSeen(store, wall)
        self._puzzles: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        self._jobs: dict[str, Job] = {}
        self._views: dict[str, tuple[tuple[object, ...], JobView]] = {}
        self._runtimes = Learned()
        self._attempts: dict[str, Attempt] = {}
        #: Attempts of cancelled jobs that their clusters keep and cannot begin, by submission id: stopped should they begin.
        self._waits_upstream: dict[str, Attempt] = {}
        self._seq = 0
        self._alarms: dict[str, AlarmStatus] = {}
        self._was_warm = True
        self._world: World | None = None
        self._thinned_at = float("-inf")
        self.loops = self._table()
        self._plan_loop = next(loop for loop in self.loops if loop.name == "plan")

    # --- the table of loops --------------------------------------------------------------------------------------------

    def _table(self) -> list[Loop]:
        """Name, period (wall seconds live), function of now. A replay's loops keep up with its faster time."""
        fast = self.clock.speed
        table = [
            Loop("control", 1.0 if fast <= 60 else 0.25, self.tick),
            Loop("plan", max(0.5, 30.0 / fast), self.plan),
            Loop("place", max(0.5, 10.0 / fast), self.place),
            Loop("ingest", max(1.0, 60.0 / fast), self.ingest),
            Loop("settle", max(10.0, 900.0 / fast), self.settle),
            Loop("housekeeping", 600.0, self.housekeeping),
        ]
        if self._forecasts is not None:
            table.append(Loop("forecast", max(5.0, 60.0 / fast), self.forecast))
        if self._energy is not None:
            table.append(Loop("energy", 30.0, self.settle_energy))
        if self._caps is not None:
            table.append(Loop("power", 1.0, self.power))
        for region in self.regions.values():
            table.append(Loop(f"observe {region.name}", region.config.observe_s, self._observer(region)))
        return table

    def _observer(self, region: Region) -> Callable[[datetime], None]:
        def observe(now: datetime) -> None:
            with self._lock:
                live = [*self._attempts.values(), *self._waits_upstream.values()]
                ids = [a.submission_id for a in live if a.region == region.name]
            if region.due(len(ids)) and region.observe(ids):
                self.nudge()

        return observe

    def start(self) -> None:
        """Take over what an earlier control plane left: follow the logs of attempts that live, complete those that ended."""
        for region in self.regions.values():
            for attempt in self.store.ended_attempts_upstream(region.name, self.clock.now()):
                self._logs.finalize(attempt)
                if attempt.outcome == UNBEGUN:
                    self._waits_upstream[attempt.submission_id] = attempt
        for attempt in self.store.live_attempts():
            if attempt.accepted_at is not None and attempt.region in self.regions:
                self._logs.watch(attempt)
        for job in reversed(self.store.ray_jobs(LEARN_FROM)):
            self._learn(job)

    # --- one tick ------------------------------------------------------------------------------------------------------

    def tick(self, now: datetime) -> None:
        """Observe, decide, act, record."""
        # 1. observe: the store, and the regions' last pictures
        self._refresh()
        self._record(self._changes_from_pictures(now))
        self._stop_what_began_after_all()
        self._record(self._freezes_that_lapsed(now))
        self._around.note_draws(self._jobs.values(), self._attempts, now)
        # 2. decide, on one frozen picture
        # The regions first: one whose agents are heard by now has told what caps can do for its jobs.
        regions = self._around.region_views()
        world = self._around.build(now, regions, self._job_views(now), self._standing.plan)
        actions = decide(world)
        # 3. act: what is decided is recorded first; effects follow what is recorded
        self._record(self._changes_from(actions, world, now))
        if self.freezes is not None:
            self.freezes.drive(self._jobs, now)  # first: what is to stop must be awake to do so in order
        self._launching.drive(self._jobs.values(), self._attempts)
        # 4. remember what was seen, for whoever asks
        self._note_alarms(actions, world, now)
        before, self._world = self._world, world
        if self.before_events is not None:
            self.before_events.look(before, world)
        if before is None or (before.budgets, before.branch_budgets) != (world.budgets, world.branch_budgets):
            self.nudge_power()  # caps for a new limit need not wait for the next second
        # 5. new limits ask for a new plan; jobs that came, for places in the plan that stands
        self._replan_where_needed(before, world)

    def _stop_what_began_after_all(self) -> None:
        """Watch what clusters keep of jobs that count as cancelled, until they drop it. Each keeps our request to stop it; one
        that begins all the same is stopped again."""
        for sid, attempt in list(self._waits_upstream.items()):
            picture = self.regions[attempt.region].picture()[0] if attempt.region in self.regions else None
            seen = picture.seen.get(sid) if picture is not None else None
            if seen is None or attempt.ended_at is None or seen.asked_at <= attempt.ended_at:
                continue
            status = seen.status.status if seen.status is not None else None
            if status is RayStatus.RUNNING:
                self._launching.owes_a_stop(attempt)
            elif status is not RayStatus.PENDING:
                with self._lock:
                    del self._waits_upstream[sid]
                self._launching.forget(sid)

    def _freezes_that_lapsed(self, now: datetime) -> list[Change]:
        """Jobs that are recorded as frozen, and run."""
        if self.freezes is None:
            return []
        changes = []
        for job_id, lapse in self.freezes.look(self._jobs.values()).items():
            job, attempt = self._jobs[job_id], self._attempts.get(job_id)
            if attempt is not None:
                changes.append(thaw(job, attempt, lapse.reason, now, at_most_s=lapse.at_most_s))
        return changes

    def _replan_where_needed(self, before: World | None, world: World) -> None:
        warm, standing = not self._standing.warming_up, self._standing
        changed = before is None or _surroundings(before) != _surroundings(world) or warm is not self._was_warm
        needed = standing.plan is None and not standing.is_being_made and any(map(wants_place, world.jobs))
        if changed or needed:
            self.nudge_plan()
        self._was_warm = warm
        if self._standing.behind:
            self.nudge_place()

    def _refresh(self) -> None:
        """Take in what changed in the store since the last look (submissions and intents from the API, our own changes)."""
        changed, seq = self.store.jobs_changed_since(self._seq)
        if not changed:
            self._seq = seq
            return
        attempts = {attempt.job_id: attempt for attempt in self.store.live_attempts()}
        for job in changed:
            before = self._jobs.get(job.id)
            self._tell_plan(before, job)
            if job.state in ENDED:
                if before is not None:
                    self._learn(job)
                self._jobs.pop(job.id, None)
                self._views.pop(job.id, None)
                self._said_at.pop(job.id, None)
                self._said_by.pop(job.id, None)
                self._puzzles.pop(job.id, None)
            else:
                self._jobs[job.id] = job
        with self._lock:
            gone = {a.submission_id for a in self._attempts.values()} - {a.submission_id for a in attempts.values()}
            self._attempts = attempts
        for sid in gone:
            self._launching.forget(sid)
        self._seq = seq  # last: what could not be read is read again

    def _tell_plan(self, before: Job | None, job: Job) -> None:
        """Work came or went, or waits again."""
        if job.state in ENDED or (
            before is not None and wants_place(before) and job.state not in PLACED and not wants_place(job)
        ):
            self._standing.left(job.id)
        elif wants_place(job) and before is None:
            self._standing.came(job)
        elif wants_place(job) and before is not None and not wants_place(before):
            self._standing.came_back(job.id)

    def _learn(self, job: Job) -> None:
        """Take in how long a job ran that has succeeded; its group's next jobs will hardly run for longer."""
        if job.state is not JobState.SUCCEEDED or job.flex.group is None or job.finished_at is None:
            return
        started_at = job.started_at
        if job.attempt > 1:  # its last attempt went on from its last durable progress
            last = max(self.store.attempts(job.id), key=lambda attempt: attempt.attempt, default=None)
            started_at = last.started_at if last is not None else None
        if started_at is not None and started_at <= job.finished_at:
            run_s = job.progress_s + (job.finished_at - started_at).total_seconds()
            if job.flex.pausable is Pausable.FREEZE:
                run_s -= sum(one.frozen_s for one in self.store.attempts(job.id) if one.attempt == job.attempt)
            if self._caps is not None:
                usual = self._runtimes.of(job.flex.group)
                run_s = self._caps.uncapped_s(job.id, job.flex.group, run_s, usual.median_s if usual is not None else None)
            self._runtimes.note(job.flex.group, run_s)

    def _learned_s(self, job: Job) -> float | None:
        """The run time learned for a job whose owner gave none; None where its group has not told enough yet."""
        if job.flex.runtime_given or job.flex.group is None:
            return None
        learned = self._runtimes.of(job.flex.group)
        return learned.for_job(job.flex.deadline_at is not None) if learned is not None else None

    def _changes_from_pictures(self, now: datetime) -> list[Change]:
        """What the last pictures of the regions mean for the jobs placed there. What goes wrong with one holds up no other."""
        changes: list[Change] = []
        pictures = {name: region.picture() for name, region in self.regions.items()}
        for job in list(self._jobs.values()):
            attempt = self._attempts.get(job.id)
            if job.state not in PLACED or attempt is None:
                continue
            picture, _, missing = pictures.get(attempt.region, (None, None, Counter[str]()))
            seen = picture.seen.get(attempt.submission_id) if picture is not None else None
            if picture is not None and seen is not None and seen.status is not None and seen.status.status == "RUNNING":
                self._last_seen.saw(attempt, picture.taken_at)
            try:
                made = self._change_from(job, attempt, seen, missing[attempt.submission_id], now)
            except Exception as error:
                if self._puzzles.get(job.id) != str(error):
                    log.exception("what %s shows of %s cannot be dealt with", attempt.region, attempt.submission_id)
                self._puzzles[job.id] = str(error)
                continue
            if made is not None:
                changes.append(made)
                never_taken = attempt.accepted_at is None and made.attempt_fields.get("outcome") == "refused"
                if made.attempt_fields.get("outcome") == "lost" or never_taken:
                    self._launching.owes_a_stop(attempt)
                elif made.attempt_fields.get("outcome") == UNBEGUN:
                    with self._lock:
                        self._waits_upstream[attempt.submission_id] = replace(attempt, ended_at=now, outcome=UNBEGUN)
        return changes

    def _change_from(self, job: Job, attempt: Attempt, seen: Seen | None, times_missing: int, now: datetime) -> Change | None:
        late = checkpoint_timeout(job, now, CHECKPOINT_GRACE_S * self.clock.speed)
        if late is not None or seen is None:
            return late
        if seen.status is None and attempt.accepted_at is None:
            # The cluster says it has no such submission, and was asked after our last try: it certainly never began.
            posted = self._launching.last_sent_at(attempt.submission_id)
            settled = seen.asked_at > posted and times_missing >= 2 and not self._launching.is_sending(attempt.submission_id)
            if job.cancel_requested_at is None or not settled:
                return None
            books = Books(None, self.settings.currency)
            reason = "cancelled before its cluster took it"
            return finish(job, JobState.CANCELLED, reason, now, books=books, attempt=attempt, outcome="refused")
        if self._is_dropped(job, attempt, seen):
            if lacks := lacking(job, self.regions[attempt.region]):
                # It may never begin, and so never end there: its owner does not wait for that, and we watch it.
                books = Books(None, self.settings.currency)
                reason = f"cancelled; {attempt.region} never began it: {lacks}"
                return finish(job, JobState.CANCELLED, reason, now, books=books, attempt=attempt, outcome=UNBEGUN)
            reason = _dropped(attempt.region)
            return None if job.reason == reason else change(job, now, "note", reason, attempt=attempt)
        gone_at = now if seen.status is not None else self._last_seen.until(attempt, now)
        ended_at = min(max(seen.ended_at or gone_at, attempt.started_at or attempt.launched_at), now)
        ended = seen.status is None or seen.status.status not in ("PENDING", "RUNNING")
        ran = ended and (attempt.started_at is not None or _ran(seen.status))
        return reconcile(
            job,
            attempt,
            seen,
            now,
            books=Books(self._usage(job, attempt, ended_at) if ran else None, self.settings.currency),
            retry=retry_after(
                self.store.attempts(job.id) if ended else (), AFTER_LOSS_S * self.clock.speed, ORPHAN_S * self.clock.speed
            ),
            times_missing=times_missing,
            missing_s=times_missing * self.regions[attempt.region].config.observe_s,
            known_until=ended_at,
            too_large=too_large(job, self.regions[attempt.region]),
        )

    def _is_dropped(self, job: Job, attempt: Attempt, seen: Seen | None) -> bool:
        """Whether a job that is being cancelled waits in its cluster to be dropped: Ray stops what it has not placed only when
        it places it, and runs its command for a moment then, so it has not ended before Ray says so."""
        return (
            job.state is JobState.LAUNCHING
            and job.cancel_requested_at is not None
            and seen is not None
            and seen.status is not None
            and seen.status.status is RayStatus.PENDING
            and self._launching.was_stopped(attempt.submission_id)
        )

    def _takes_no_room(self) -> set[str]:
        """Jobs that are placed and will use nothing: nobody's launch need wait for what waits only to be dropped."""
        cancelled = [job for job in self._jobs.values() if job.cancel_requested_at is not None and job.id in self._attempts]
        pictures = {name: region.picture()[0] for name, region in self.regions.items()} if cancelled else {}
        found = set()
        for job in cancelled:
            attempt = self._attempts[job.id]
            picture = pictures.get(attempt.region)
            if picture is not None and self._is_dropped(job, attempt, picture.seen.get(attempt.submission_id)):
                found.add(job.id)
        return found

    def _usage(self, job: Job, attempt: Attempt, ended_at: datetime) -> Usage | None:
        """Energy, cost and carbon of an attempt over its run, measured as far as it was; None when it never ran."""
        # Too short to be seen running, or run while its cluster did not answer: it ran since it was taken, as far as is known.
        start = attempt.started_at or attempt.accepted_at
        if start is None or ended_at <= start:
            return None
        region = self.regions[attempt.region].config
        stands = attempt.attempt == job.attempt and job.frozen_at is not None
        frozen_s: float = stood(job, attempt, ended_at)["frozen_s"] if stands else attempt.frozen_s
        power_w = mean_power_w(job.flex, frozen_s, (ended_at - start).total_seconds()) if frozen_s else job.flex.power_w
        drawn = self._drawn(job, attempt, start, ended_at, power_w)
        if drawn is not None:
            return self.book.usage_of(region, drawn, self.clock.now())
        return self.book.usage(region, power_w, start, ended_at, self.clock.now())

    def _drawn(self, job: Job, attempt: Attempt, start: datetime, end: datetime, power_w: float) -> JobEnergy | None:
        """What was measured of an attempt's energy, and the rest as expected; None where nothing was measured, or where that
        cannot be read now."""
        if self._energy is None:
            return None
        shares = turns([(one.attempt, one.region, one.launched_at) for one in self.store.attempts(job.id)])
        turn = shares.get(attempt.attempt)
        if turn is None:
            return None
        try:
            return self._energy.energy_of(job.id, turn, start, end, gpus=job.flex.gpus, power_w=power_w)
        except StoreUnavailable as error:
            log.warning("the energy of job %s is modelled for now: %s", job.id, error)
            return None

    # --- the world -----------------------------------------------------------------------------------------------------

    def _job_views(self, now: datetime) -> list[JobView]:
        views, roomless = [], self._takes_no_room()
        for job in self._jobs.values():
            if job.id in roomless:
                continue
            cap, capped_w = 1.0, None
            if self._caps is not None and job.state in PLACED:
                cap, capped_w = self._caps.cap_of(job.id), self._caps.lowest_w.get(job.id)
            learned_s = self._learned_s(job)
            key: tuple[object, ...] = (job.seq, learned_s, cap)
            stands = None
            if job.flex.pausable is Pausable.FREEZE and job.state is JobState.RUNNING and self.freezes is not None:
                stands = self.freezes.of(job)
                key = (*key, stands, None if job.frozen_at is None else now)
            cached = self._views.get(job.id)
            if cached is None or cached[0] != key:
                attempt = self._attempts.get(job.id) if job.state in PLACED else None
                view = view_of(job, learned_s, attempt.gpu_type if attempt is not None else None)
                if stands is not None and attempt is not None:
                    view = freezing_view(view, job, attempt.frozen_s, now, stands.cannot, stands.frozen_w)
                cached = (key, view if cap == 1.0 else replace(view, cap=cap))
                self._views[job.id] = cached
            if cached[1].capped_w != capped_w:
                cached = self._views[job.id] = (key, replace(cached[1], capped_w=capped_w))
            views.append(cached[1])
        return views

    def _view_to_place(self, job_id: str, job: Job | None) -> JobView | None:
        """A job as the plan sees it; None when it needs no place (any more)."""
        job = self._jobs.get(job_id, job)
        return view_of(job, self._learned_s(job)) if job is not None and wants_place(job) else None

    # --- acting --------------------------------------------------------------------------------------------------------

    def _changes_from(self, actions: Sequence[Action], world: World, now: datetime) -> list[Change]:
        """The changes that record what was decided; effects are driven from the recorded state, never before it."""
        changes: list[Change] = []
        holds = 0
        launching = Counter(
            attempt.region
            for attempt in self._attempts.values()
            if attempt.ended_at is None and attempt.started_at is None and self._is_starting(attempt, now)
        )
        unanswered = Counter(attempt.region for attempt in self._attempts.values() if self._is_unanswered(attempt))
        for action in actions:
            if isinstance(action, Alarm):
                continue
            job = self._jobs.get(action.job_id)
            if job is None:
                continue
            if isinstance(action, Launch):
                if launching[action.region] < MAX_LAUNCHING and unanswered[action.region] < MAX_UNANSWERED:
                    launching[action.region] += 1
                    unanswered[action.region] += 1
                    if self._caps is not None:
                        self._caps.launched(action.job_id, action.cap, now)
                    changes.append(launch_change(job, action.region, action.reason, now, action.gpu_type))
            elif isinstance(action, AskCheckpoint):
                fields = {"pause_requested_at": now, "checkpoint_saved_at": None}
                changes.append(change(job, now, "state", action.reason, to=JobState.PAUSING, fields=fields))
            elif isinstance(action, Freeze):
                changes.append(freeze(job, action.reason, now))
            elif isinstance(action, Thaw):
                attempt = self._attempts.get(job.id)
                if attempt is not None:
                    changes.append(thaw(job, attempt, action.reason, now, used_up=action.used_up))
            elif isinstance(action, EndCancelled):
                books = Books(None, self.settings.currency)
                changes.append(
                    finish(job, JobState.CANCELLED, action.reason, now, books=books, attempt=None, outcome="stopped")
                )
            elif isinstance(action, StopAttempt):
                if job.reason not in (action.reason, _dropped(job.region or "")):
                    changes.append(change(job, now, "note", action.reason))
            elif isinstance(action, Hold) and holds < MAX_HOLDS:
                planned = (action.planned_region, action.planned_start_at)
                same_plan = planned == (job.planned_region, job.planned_start_at)
                if same_plan and (job.reason == action.reason or self._said_lately(job, action, world.plan)):
                    continue  # only the figures in its sentence moved
                self._said_at[job.id] = self._wall()
                self._said_by[job.id] = world.plan.note if world.plan is not None else ""
                holds += 1
                planned_fields = {"planned_region": planned[0], "planned_start_at": planned[1]}
                # What its owner asked for meanwhile is not talked over by what was decided before.
                changes.append(change(job, now, "plan", action.reason, expect_seq=job.seq, fields=planned_fields))
        return changes

    def _is_starting(self, attempt: Attempt, now: datetime) -> bool:
        """Whether an attempt keeps its cluster busy with starting it. One that waits there for a node does not for long, nor
        does one that gets no answer, or is being cancelled."""
        if self._is_cancelled(attempt):
            return False
        since, most_s = attempt.accepted_at, STARTING_S
        if since is None:
            since, most_s = attempt.launched_at, UNANSWERED_S
        return now - since < timedelta(seconds=most_s * self.clock.speed)

    def _is_unanswered(self, attempt: Attempt) -> bool:
        """Whether an attempt may have been sent, is wanted, and its cluster has not said that it took it."""
        return attempt.ended_at is None and attempt.accepted_at is None and not self._is_cancelled(attempt)

    def _is_cancelled(self, attempt: Attempt) -> bool:
        job = self._jobs.get(attempt.job_id)
        return job is not None and job.cancel_requested_at is not None

    def _said_lately(self, job: Job, action: Hold, plan: Plan | None) -> bool:
        """Whether a waiting job got a new sentence moments ago: figures in it move all the time, and each is a row. Where the
        plan now gives another reason than the one that stands, that is said at once."""
        by_plan = plan is not None and action.planned_start_at is not None
        again_s = SAY_PLAN_AGAIN_S if by_plan else SAY_AGAIN_S
        moved = plan is not None and self._said_by.get(job.id, plan.note) != plan.note
        other = by_plan and (moved or words(job.reason) != words(action.reason))
        recent = self._wall() - self._said_at.get(job.id, float("-inf")) < again_s
        return recent and not other and not job.held and not job.reason.startswith("submitted")

    def _record(self, changes: Sequence[Change]) -> None:
        """Write changes; what went stale meanwhile is decided anew in the next tick."""
        if not changes:
            return
        for made, outcome in zip(changes, self.store.apply(changes).result(), strict=True):
            if isinstance(outcome, StaleState):
                log.debug("stale: %s", outcome)
            elif isinstance(outcome, StoreUnavailable):
                raise outcome
            elif isinstance(outcome, Exception):
                # One job's refused change must not stop everybody else's; it is told as an alarm until it works.
                log.error("job %s: %s", made.job_id, outcome)
                self._refused[made.job_id] = f"a change of job {made.job_id} was refused: {outcome}"
            elif "started_at" in made.attempt_fields and made.job_id in self._attempts:
                self._logs.watch(self._attempts[made.job_id])
            elif made.new_attempt is not None:
                self._launching.committed(made.new_attempt.submission_id)
            elif made.attempt_fields.get("ended_at") is not None:
                attempt = self._attempts.get(made.job_id)
                if attempt is not None:
                    self._launching.forget(attempt.submission_id)
                    self._last_seen.forget(attempt.submission_id)
                    self._logs.finalize(attempt)
        self._refresh()

    # --- submissions ---------------------------------------------------------------------------------------------------

    def admit(self, job: Job) -> "Future[Job]":
        """Store a new job durably. One that nobody may hold is stored already launching, and sent on the moment that is
        committed; all others wait for the next tick. Thread-safe."""
        region = self._express_region(job)
        if region is None:
            return self._store_new(job)
        attempt = Attempt(job.id, 1, region, submission_id(job.id, 1), launched_at=job.submitted_at)
        # The same id twice: the store refuses the second, and nothing kept of the first may be touched for it.
        if job.id in self._jobs or not self._launching.claim(attempt):
            return self.store.add_job(job, "submitted")
        waits = too_large(job, self.regions[region])
        launching = replace(
            job,
            state=JobState.LAUNCHING,
            attempt=1,
            region=region,
            reason=f"starting in {region}{waits}"
            if waits
            else f"passed through to {region} at once: it has no gridshift metadata",
        )

        def committed(done: "Future[Job]") -> None:
            if done.exception() is None:
                self._launching.send(launching, attempt)
            else:
                self._launching.give_up(attempt)

        future = self.store.add_job(launching, launching.reason, attempt)
        future.add_done_callback(committed)
        return future

    def _store_new(self, job: Job) -> "Future[Job]":
        """Store a job that waits for a tick; one that waits for a place in the plan is given one meanwhile."""

        def committed(done: "Future[Job]") -> None:
            if done.exception() is None:
                if wants_place(job):
                    self._standing.came(job)
                    self.nudge_place()
                self.nudge()

        future = self.store.add_job(job, job.reason or "submitted")
        future.add_done_callback(committed)
        return future

    def _express_region(self, job: Job) -> str | None:
        """Where an inflexible job may go without asking the policies: the default region, while nothing limits it."""
        world = self._world
        if job.flex.flexible or world is None or self.settings.default_region is None:
            return None
        view = next((one for one in world.regions if one.name == self.settings.default_region), None)
        if (
            view is None
            or not self.regions[view.name].reachable()
            or view.max_jobs is not None
            or view.power_limit_w is not None
            or view.branches
            or view.reserved
            or self.guards(view.name)
        ):
            return None
        if any(budget.region == view.name and not budget.is_over(world.now) for budget in world.budgets):
            return None
        return None if self._launching.is_crowded else view.name

    # --- the other loops -----------------------------------------------------------------------------------------------

    def plan(self, now: datetime) -> None:
        """Make a new plan when there is flexible work; the planner runs elsewhere and is waited for."""
        world = self._world
        if world is None or not self.book.ready or not any(view.flex.flexible for view in world.jobs):
            return
        # The last tick may be older than the first prices: a plan always sees what is known now.
        self._standing.renew(replace(world, now=now, regions=self._around.region_views()))
        self.nudge_place()
        self.nudge()

    def place(self, now: datetime) -> None:
        """Give places in the plan that stands to jobs that came, and forget those that left."""
        world = self._world
        if world is None or not self.book.ready or not self._standing.behind:
            return
        oldest = timedelta(seconds=STALE_PLANS * self._plan_loop.period_s * self.clock.speed)
        if not self._standing.takes_in(now, oldest):
            if not self._standing.is_being_made:
                self.nudge_plan()
            return
        around = replace(world, now=now, regions=self._around.region_views())
        try:
            changed = self._standing.take_in(around, self._view_to_place)
        except (PlanFailed, NoPlanThere) as error:
            log.warning("new jobs get no place in the plan: %s; it is made anew", error)
            self.nudge_plan()
            return
        if changed:
            self.nudge()

    def explain(self, job_id: str) -> tuple[Alternative, ...]:
        """What else could have been done with a job. Thread-safe; takes seconds at most. Raises PlanFailed, NoPlanThere."""
        world = self._world
        if world is None:
            raise NoPlanThere("no plan has been made yet")
        around = replace(world, now=self.clock.now(), regions=self._around.region_views())
        return self._standing.explain(around, job_id)

    def ingest(self, now: datetime) -> None:
        """Fetch what feeds have to say and lay it on the planner's slots."""
        if self.book.refresh(now):
            self.nudge_plan()
            self.nudge_forecast()

    def forecast(self, now: datetime) -> None:
        """Make forecasts anew where more has become known; ingest lays them on the planner's slots."""
        if self._forecasts is not None and self.book.ready and self._forecasts.refresh(self.book.learnable(), now):
            self.nudge_ingest()

    def settle(self, now: datetime) -> None:
        """Book anew what jobs that ended lately cost and emitted, where a feed was late; it is known by now, or tried again."""
        jobs = self.store.ray_jobs(SETTLED_JOBS, deleted=True)
        self._settle([job for job in jobs if job.energy_kwh is not None and (job.cost is None or job.carbon_kg is None)], now)

    def settle_energy(self, now: datetime) -> None:
        """Book anew what jobs drew that have ended, where rows of it came in since: the last minute of a job is told of after
        its end."""
        if self._energy is None:
            return
        touched = [job_id for job_id in self._energy.touched() if job_id not in self._jobs]
        found = [self.store.job(job_id) for job_id in sorted(touched)]
        jobs = {job.id: job for job in found if job is not None}
        if not self._energy_looked:  # rows may have come just before an earlier control plane stopped
            jobs |= {job.id: job for job in self.store.ray_jobs(SETTLED_JOBS, deleted=True)}
        self._settle([job for job in jobs.values() if job.energy_kwh is not None], now)
        self._energy.settled(job_id for job_id in touched if job_id not in jobs or jobs[job_id].state in ENDED)
        self._energy_looked = True

    def _settle(self, jobs: Sequence[Job], now: datetime) -> None:
        """Book these jobs anew, as far as they have ended lately and ran in regions that are known."""
        seen_to_run = ("succeeded", "failed")
        changes = []
        for job in jobs:
            if job.state not in ENDED or job.finished_at is None or now - job.finished_at >= SETTLED_WITHIN:
                continue
            ran = [
                attempt
                for attempt in self.store.attempts(job.id)
                if attempt.ended_at is not None and (attempt.started_at is not None or attempt.outcome in seen_to_run)
            ]
            known = [attempt for attempt in ran if attempt.region in self.regions]
            usages = [
                usage
                for attempt in known
                if attempt.ended_at is not None and (usage := self._usage(job, attempt, attempt.ended_at)) is not None
            ]
            made = settled(job, usages, now) if len(known) == len(ran) else None
            if made is not None:
                changes.append(made)
        self._record(changes)

    def power(self, now: datetime) -> None:
        """Let the GPUs' power caps stand as limits and the plan have them."""
        world = self._world
        if self._caps is not None and world is not None:
            self._caps.power(replace(world, plan=self._standing.plan), now)

    def housekeeping(self, now: datetime) -> None:
        """Delete ended attempts on their clusters, late enough to be safe, and thin out signals that grow old; not by a clock
        that was set a short while ago."""
        if not self._steady(now):
            return
        if self._wall() - self._thinned_at >= THIN_AGAIN_S:
            self._thinned_at = self._wall()
            self.book.thin(now)
        before = now - timedelta(seconds=FORGET_UPSTREAM_S * self.clock.speed)
        for region in self.regions.values():
            if not region.reachable():
                continue
            while attempts := self.store.ended_attempts_upstream(region.name, before):
                done, failures = [], 0
                for attempt in attempts:
                    if attempt.submission_id in self._waits_upstream:
                        continue  # Ray deletes nothing that waits to begin
                    try:
                        region.cluster.delete(attempt.submission_id)
                        done.append(attempt.submission_id)
                    except ClusterUnreachable as error:
                        failures += 1
                        log.warning("%s was not deleted in %s: %s", attempt.submission_id, region.name, error)
                        if failures > MAX_DELETE_FAILURES:
                            break
                if done:
                    self.store.mark_deleted_upstream(done).result()
                if failures or not done:
                    break  # the rest next time

    # --- what others may see -------------------------------------------------------------------------------------------

    def _note_alarms(self, actions: Sequence[Action], world: World, now: datetime) -> None:
        views = {job_id: view for job_id, (_, view) in self._views.items()}
        raised = [
            *status.decided(actions, now),
            *status.unreachable(self.regions.values(), now),
            *status.strangers(self._attempts.values(), self.regions, now),
            *status.late(self._standing.plan, views, self._attempts, now),
            *status.too_large(world, now),
            *status.floors_too_large(world, now),
            *(AlarmStatus(f"refused {job_id}", None, sentence, now) for job_id, sentence in self._refused.items()),
            *(AlarmStatus(key, region, sentence, now) for key, region, sentence in self.book.alarms(now)),
            *(AlarmStatus(*alarm, now) for source in self.alarm_sources for alarm in source(now)),
        ]
        if (trouble := self._standing.trouble) is not None:
            raised.append(AlarmStatus("planner", None, trouble, now))
        self._refused.clear()
        self._alarms = status.by_key(raised, self._alarms)

    def snapshot(self) -> Snapshot:
        """The last world and what was observed. Thread-safe: it reads values that are replaced, never changed."""
        # Before the first tick there is no picture of jobs yet, and building one here would race with that tick.
        world = self._world or World(self.clock.now(), (), self._around.region_views(), settings=self.settings)
        return Snapshot(
            world=replace(world, plan=self._standing.plan),
            regions=tuple(status.region_status(region, world) for region in self.regions.values()),
            # The loops' own are looked at now: where the control loop fails, nobody else would raise them.
            alarms=(*status.failing(self.loops), *self._alarms.values()),
            loops=tuple(status.loop_status(loop) for loop in self.loops),
            planner=self._standing.told,
        )

    def region_views(self) -> tuple[RegionView, ...]:
        """The regions as they were last decided on; none before the first tick. Thread-safe."""
        world = self._world
        return world.regions if world is not None else ()

    def job_token(self, sid: str) -> str:
        """The token of an attempt: anyone with the server's secret can make it, nobody else can guess it."""
        return self._secrets.job_token(sid)


def _dropped(region: str) -> str:
    return f"being cancelled: {region} has not begun it yet and drops it when it would begin"


def _ran(status: AttemptStatus | None) -> bool:
    """Whether an attempt that was never seen running ran all the same."""
    if status is None or status.status is RayStatus.STOPPED:
        return False
    return status.error_type is None or status.error_type.startswith("JOB_ENTRYPOINT")


def _surroundings(world: World) -> object:
    """What a plan depends on besides jobs: limits, which regions answer with how many GPUs, and what serving keeps of them."""
    regions = [(view.name, view.reachable, view.gpus, view.reserved) for view in world.regions]
    return world.budgets, world.branch_budgets, regions
