"""The control loop: observe, decide, act, record; one tick reads like that, and each part is a few lines.

What to do is decided by policies.decide on a frozen World; what an observation means is decided by dispatcher.reconcile.
This module only carries things between the store, the regions and those two. It asks nobody twice in one tick.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from dispatcher.api.services import AlarmStatus, LoopStatus, RegionStatus, Snapshot
from dispatcher.clock import Clock
from dispatcher.clusters import AttemptStatus, RayStatus
from dispatcher.config import Config, shift_windows
from dispatcher.errors import ClusterUnreachable, GridshiftError, LaunchRefused, StaleState, StoreUnavailable
from dispatcher.forecasts import Forecasts
from dispatcher.launch import JobEnvironment, submission_for, submission_id
from dispatcher.loops import Loop
from dispatcher.peaks import Peaks
from dispatcher.reconcile import Books, Seen, Usage, checkpoint_timeout, finish, reconcile, retry_after, settled
from dispatcher.regions import Region
from dispatcher.signal_book import SignalBook
from dispatcher.store import Attempt, Change, Job, Store
from dispatcher.store.copying import maker
from policies.decide import decide
from policies.registry import quota
from policies.runtimes import Learned
from policies.world import (
    ENDED,
    PLACED,
    Action,
    Alarm,
    AskCheckpoint,
    Budget,
    DemandCharge,
    EndCancelled,
    Hold,
    JobState,
    JobView,
    Launch,
    Plan,
    RegionView,
    StopAttempt,
    World,
)

log = logging.getLogger(__name__)
# A backtest makes hundreds of thousands of these.
_new_attempt, _new_change, _new_view = maker(Attempt), maker(Change), maker(JobView)

#: At most this many attempts of one region are being started at once: each is a new process on its head.
MAX_LAUNCHING = 32
#: Wall seconds for which an attempt that its cluster took counts as being started.
STARTING_S = 60.0
#: A stop is asked for again after this many wall seconds while the attempt still lives.
STOP_AGAIN_S = 5.0
#: Wall seconds before a launch that got no answer is tried again.
LAUNCH_AGAIN_S = 3.0
#: Wall seconds before an attempt that was lost is followed by the next: a driver orphaned by its head dies within seconds.
AFTER_LOSS_S = 10.0
#: Wall seconds for which an attempt that was lost is asked to stop until its cluster answers.
OWED_S = 900.0
#: Wall seconds of grace for a checkpoint acknowledgement that is under way when checkpoint_s has passed.
CHECKPOINT_GRACE_S = 2.0
#: Sentences written per tick at most; the rest follow in the next ticks.
MAX_HOLDS = 500
#: Wall seconds before a waiting job's sentence is written again when only its figures moved.
SAY_AGAIN_S = 15.0
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


class LogSink(Protocol):
    """What the control loop tells whoever keeps the jobs' logs."""

    def watch(self, attempt: Attempt) -> None:
        """Follow a live attempt's log."""
        ...

    def finalize(self, attempt: Attempt) -> None:
        """Fetch an ended attempt's whole log once more, then stop following it."""
        ...


class PackageSource(Protocol):
    """Where packages for the clusters come from."""

    def for_launch(self, runtime_env: Mapping[str, Any]) -> dict[str, Path]:
        """Files of the packages that a runtime_env names; raises PackageRejected for one that is missing or damaged."""
        ...


class Effects(Protocol):
    """Runs a blocking call to a region's cluster somewhere else than in the control loop."""

    def submit(self, region: str, call: Callable[[], None]) -> None:
        """Run ``call`` soon, beside other regions' calls."""
        ...


@dataclass(frozen=True, slots=True)
class Secrets:
    """What the control plane needs to make job tokens and to tell jobs where it is."""

    job_token: Callable[[str], str]
    public_url: str
    checkpoint_dir: Callable[[str, str], str]
    helper_uri: str | None


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
        planner: Callable[[World], Plan],
        secrets: Secrets,
        forecasts: Forecasts | None = None,
        wall: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config, self.clock, self.store, self.book = config, clock, store, book
        self.regions = {region.name: region for region in regions}
        self.settings = config.planner_settings()
        self._packages, self._logs, self._effects, self._planner = packages, logs, effects, planner
        self._secrets, self._wall, self._forecasts = secrets, wall, forecasts
        tariffs = {region.name: region.tariff.tariff(region.name) for region in config.regions if region.tariff is not None}
        self._peaks = Peaks(tariffs, timedelta(seconds=self.settings.horizon_s))
        self._demand: dict[str, tuple[DemandCharge, ...]] = {}
        self.nudge: Callable[[], None] = lambda: None
        self.nudge_plan: Callable[[], None] = lambda: None
        self.nudge_ingest: Callable[[], None] = lambda: None
        self.nudge_forecast: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._inflight: set[str] = set()
        self._said_at: dict[str, float] = {}
        self._puzzles: dict[str, str] = {}
        #: Attempts that count as lost and may live after all, where nobody sees them, and since when (wall): to be stopped.
        self._owed: dict[str, tuple[Attempt, float]] = {}
        self._refused: dict[str, str] = {}
        self._stopped_at: dict[str, float] = {}
        self._fresh: set[str] = set()  # attempts that this process committed and has never tried to send
        self._again_at: dict[str, float] = {}
        self._last_post_at: dict[str, datetime] = {}
        self._jobs: dict[str, Job] = {}
        self._views: dict[str, tuple[tuple[int, float | None], JobView]] = {}
        self._runtimes = Learned()
        self._quota = quota(self.settings.policy)
        self._attempts: dict[str, Attempt] = {}
        self._seq = 0
        self._plan: Plan | None = None
        self._shifts_until: datetime | None = None
        self._shifts: tuple[Any, ...] = ()
        self._alarms: dict[str, AlarmStatus] = {}
        self._plan_wanted = False
        self._world: World | None = None
        self._begun_at = clock.now()
        self._thinned_at = float("-inf")
        self.loops = self._table()

    # --- the table of loops ---------------------------------------------------------------------------------------

    def _table(self) -> list[Loop]:
        """Name, period (wall seconds live), function of now. A replay's loops keep up with its faster time."""
        fast = self.clock.speed
        table = [
            Loop("control", 1.0 if fast <= 60 else 0.25, self.tick),
            Loop("plan", max(0.5, 30.0 / fast), self.plan),
            Loop("ingest", max(1.0, 60.0 / fast), self.ingest),
            Loop("settle", max(10.0, 900.0 / fast), self.settle),
            Loop("housekeeping", 600.0, self.housekeeping),
        ]
        if self._forecasts is not None:
            table.append(Loop("forecast", max(5.0, 60.0 / fast), self.forecast))
        for region in self.regions.values():
            table.append(Loop(f"observe {region.name}", region.config.observe_s, self._observer(region)))
        return table

    def _observer(self, region: Region) -> Callable[[datetime], None]:
        def observe(now: datetime) -> None:
            with self._lock:
                ids = [a.submission_id for a in self._attempts.values() if a.region == region.name]
            if region.due(len(ids)) and region.observe(ids):
                self.nudge()

        return observe

    def start(self) -> None:
        """Take over what an earlier control plane left: follow the logs of attempts that live, complete those that ended."""
        for region in self.regions.values():
            for attempt in self.store.ended_attempts_upstream(region.name, self.clock.now()):
                self._logs.finalize(attempt)
        for attempt in self.store.live_attempts():
            if attempt.accepted_at is not None and attempt.region in self.regions:
                self._logs.watch(attempt)
        for job in reversed(self.store.ray_jobs(LEARN_FROM)):
            self._learn(job)

    # --- one tick -------------------------------------------------------------------------------------------------

    def tick(self, now: datetime) -> None:
        """Observe, decide, act, record."""
        # 1. observe: the store, and the regions' last pictures
        self._refresh()
        self._record(self._changes_from_pictures(now))
        self._note_draws(now)
        # 2. decide, on one frozen picture
        world = self._build_world(now)
        actions = decide(world)
        # 3. act: what is decided is recorded first; effects follow what is recorded
        self._record(self._changes_from(actions, world, now))
        self._drive(now)
        # 4. remember what was seen, for whoever asks
        self._note_alarms(actions, now)
        before, self._world = self._world, world
        # 5. what changed beyond jobs asks for a new plan as well
        if self._plan_wanted or before is None or _surroundings(before) != _surroundings(world):
            self._plan_wanted = False
            self.nudge_plan()

    def _refresh(self) -> None:
        """Take in what changed in the store since the last look (submissions and intents from the API, our own changes)."""
        changed, seq = self.store.jobs_changed_since(self._seq)
        if not changed:
            self._seq = seq
            return
        attempts = {attempt.job_id: attempt for attempt in self.store.live_attempts()}
        for job in changed:
            before = self._jobs.get(job.id)
            if before is None or before.state is not job.state or before.held is not job.held:
                self._plan_wanted = True  # work or room came or went
            if job.state in ENDED:
                if before is not None:
                    self._learn(job)
                self._jobs.pop(job.id, None)
                self._views.pop(job.id, None)
                self._said_at.pop(job.id, None)
                self._puzzles.pop(job.id, None)
            else:
                self._jobs[job.id] = job
        with self._lock:
            gone = {a.submission_id for a in self._attempts.values()} - {a.submission_id for a in attempts.values()}
            self._attempts = attempts
        for sid in gone:
            self._forget(sid)
        self._seq = seq  # last: what could not be read is read again

    def _learn(self, job: Job) -> None:
        """Take in how long a job ran that has succeeded; its group's next jobs will hardly run for longer."""
        if job.state is not JobState.SUCCEEDED or job.flex.group is None or job.finished_at is None:
            return
        started_at = job.started_at
        if job.attempt > 1:  # its last attempt went on from its last durable progress
            last = max(self.store.attempts(job.id), key=lambda attempt: attempt.attempt, default=None)
            started_at = last.started_at if last is not None else None
        if started_at is not None and started_at <= job.finished_at:
            self._runtimes.note(job.flex.group, job.progress_s + (job.finished_at - started_at).total_seconds())

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
            try:
                change = self._change_from(job, attempt, seen, missing[attempt.submission_id], now)
            except Exception as error:
                if self._puzzles.get(job.id) != str(error):
                    log.exception("what %s shows of %s cannot be dealt with", attempt.region, attempt.submission_id)
                self._puzzles[job.id] = str(error)
                continue
            if change is not None:
                changes.append(change)
                if change.attempt_fields.get("outcome") == "lost":
                    self._owed[attempt.submission_id] = (attempt, self._wall())
        return changes

    def _change_from(self, job: Job, attempt: Attempt, seen: Seen | None, times_missing: int, now: datetime) -> Change | None:
        late = checkpoint_timeout(job, now, CHECKPOINT_GRACE_S * self.clock.speed)
        if late is not None or seen is None:
            return late
        if seen.status is None and attempt.accepted_at is None:
            # The cluster says it has no such submission, and was asked after our last try: it certainly never began.
            # (What an earlier control plane sent, it sent before this one began.)
            posted = self._last_post_at.get(attempt.submission_id, self._begun_at)
            settled = seen.asked_at > posted and times_missing >= 2 and not self._is_inflight(attempt.submission_id)
            if job.cancel_requested_at is None or not settled:
                return None
            books = Books(None, self.settings.currency)
            reason = "cancelled before its cluster took it"
            return finish(job, JobState.CANCELLED, reason, now, books=books, attempt=attempt, outcome="refused")
        if seen.status is not None and seen.status.status is RayStatus.PENDING and self._is_stopped(job, attempt):
            # Ray stops a submission that it has not placed yet only when it places it; its owner need not wait for that.
            books = Books(None, self.settings.currency)
            reason = f"cancelled; {attempt.region} had not begun it and was told to drop it"
            return finish(job, JobState.CANCELLED, reason, now, books=books, attempt=attempt, outcome="stopped")
        ended_at = min(max(seen.ended_at or now, attempt.started_at or attempt.launched_at), now)
        ended = seen.status is None or seen.status.status not in ("PENDING", "RUNNING")
        ran = ended and (attempt.started_at is not None or _ran(seen.status))
        return reconcile(
            job,
            attempt,
            seen,
            now,
            books=Books(self._usage(job, attempt, ended_at) if ran else None, self.settings.currency),
            retry=retry_after(self.store.attempts(job.id) if ended else (), AFTER_LOSS_S * self.clock.speed),
            times_missing=times_missing,
            missing_s=times_missing * self.regions[attempt.region].config.observe_s,
        )

    def _is_stopped(self, job: Job, attempt: Attempt) -> bool:
        """Whether a job that is being cancelled was stopped long enough ago for Ray to have done so."""
        asked = self._stopped_at.get(attempt.submission_id)
        return job.cancel_requested_at is not None and asked is not None and self._wall() - asked > STOP_AGAIN_S

    def _usage(self, job: Job, attempt: Attempt, ended_at: datetime) -> Usage | None:
        """Modelled energy, cost and carbon of an attempt over its run; None when it never ran."""
        # Too short to be seen running, or run while its cluster did not answer: it ran since it was taken, as far as is known.
        start = attempt.started_at or attempt.accepted_at
        if start is None or ended_at <= start:
            return None
        return self.book.usage(self.regions[attempt.region].config, job.flex.power_w, start, ended_at, self.clock.now())

    # --- the world ------------------------------------------------------------------------------------------------

    def _build_world(self, now: datetime) -> World:
        views = []
        for job in self._jobs.values():
            key = (job.seq, self._learned_s(job))
            cached = self._views.get(job.id)
            if cached is None or cached[0] != key:
                attempt = self._attempts.get(job.id) if job.state in PLACED else None
                cached = (key, view_of(job, key[1], attempt.gpu_type if attempt is not None else None))
                self._views[job.id] = cached
            views.append(cached[1])
        regions = tuple(self._region_view(region) for region in self.regions.values())
        return World(
            now=now,
            jobs=tuple(views),
            regions=regions,
            budgets=self._budgets(now),
            shifts=self._shift_windows(now),
            settings=self.settings,
            plan=self._plan,
            gates=self._gates(regions, now),
        )

    def _gates(self, regions: Sequence[RegionView], now: datetime) -> dict[str, float]:
        """The GPUs that the configured policy's quota leaves to flexible work in each region now."""
        if self._quota is None:
            return {}
        gates = {view.name: self._quota.gate(view, now) for view in regions}
        return {name: gate for name, gate in gates.items() if gate is not None}

    def _region_view(self, region: Region) -> RegionView:
        config = region.config
        pools = config.pools()
        return RegionView(
            name=region.name,
            reachable=region.reachable(),
            gpus=sum(pool.gpus for pool in pools) if pools else region.gpus(),
            max_jobs=config.max_jobs,
            power_limit_w=config.power_limit_w or None,
            price=self.book.series(region.name, "price"),
            carbon=self.book.series(region.name, "carbon"),
            currency=self.book.currency(region.name) or config.currency,
            fx=self.book.fx(region.name),
            pue=config.pue,
            carbon_kind=f"carbon_{config.carbon_signal}",
            demand=self._demand.get(region.name, ()),
            pools=pools,
            reserved=(),  # headroom for interactive serving: nothing declares any yet
        )

    def _note_draws(self, now: datetime) -> None:
        """What each site draws now, as modelled, for the peaks that its tariff charges."""
        if not self._peaks:
            return
        draws = Counter[str]()
        for job in self._jobs.values():
            attempt = self._attempts.get(job.id)
            if (
                attempt is not None
                and attempt.started_at is not None
                and job.state in PLACED
                and attempt.region in self.regions
            ):
                draws[attempt.region] += round(job.flex.power_w * self.regions[attempt.region].config.pue)
        for region in self.regions:
            self._peaks.note(region, now, float(draws[region]))
        self._demand = {region: self._peaks.charges(region, now) for region in self.regions}

    def _budgets(self, now: datetime) -> tuple[Budget, ...]:
        return tuple(
            Budget(e.region, e.start, e.end, e.limit_w, e.event_id, e.reason or f"event {e.event_id} from {e.source}")
            for e in self.store.grid_events(ended_after=now)
            if not e.test
        )

    def _shift_windows(self, now: datetime) -> tuple[Any, ...]:
        """Occurrences of the shift rules up to the horizon, made anew each hour of clock time."""
        if self._shifts_until is None or now >= self._shifts_until:
            self._shifts = shift_windows(self.config, now, now + timedelta(seconds=self.settings.horizon_s + 3600))
            self._shifts_until = now + timedelta(hours=1)
        return self._shifts

    # --- acting ---------------------------------------------------------------------------------------------------

    def _changes_from(self, actions: Sequence[Action], world: World, now: datetime) -> list[Change]:
        """The changes that record what was decided; effects are driven from the recorded state, never before it."""
        changes: list[Change] = []
        holds = 0
        launching = Counter(
            attempt.region
            for attempt in self._attempts.values()
            if attempt.ended_at is None and attempt.started_at is None and self._is_starting(attempt, now)
        )
        for action in actions:
            if isinstance(action, Alarm):
                continue
            job = self._jobs.get(action.job_id)
            if job is None:
                continue
            if isinstance(action, Launch):
                if launching[action.region] < MAX_LAUNCHING:
                    launching[action.region] += 1
                    changes.append(launch_change(job, action.region, action.reason, now, action.gpu_type))
            elif isinstance(action, AskCheckpoint):
                fields = {"pause_requested_at": now, "checkpoint_saved_at": None}
                changes.append(_change(job, now, "state", action.reason, to=JobState.PAUSING, fields=fields))
            elif isinstance(action, EndCancelled):
                books = Books(None, self.settings.currency)
                changes.append(
                    finish(job, JobState.CANCELLED, action.reason, now, books=books, attempt=None, outcome="stopped")
                )
            elif isinstance(action, StopAttempt):
                if job.reason != action.reason:
                    changes.append(_change(job, now, "note", action.reason))
            elif isinstance(action, Hold) and holds < MAX_HOLDS:
                planned = (action.planned_region, action.planned_start_at)
                same_plan = planned == (job.planned_region, job.planned_start_at)
                if same_plan and (job.reason == action.reason or action.planned_start_at is not None or self._said_lately(job)):
                    continue  # only the figures in its sentence moved
                holds += 1
                planned_fields = {"planned_region": planned[0], "planned_start_at": planned[1]}
                changes.append(_change(job, now, "plan", action.reason, fields=planned_fields))
        return changes

    def _is_starting(self, attempt: Attempt, now: datetime) -> bool:
        """Whether an attempt keeps its cluster busy with starting it. One that waits there for a node does not for long."""
        return attempt.accepted_at is None or now - attempt.accepted_at < timedelta(seconds=STARTING_S * self.clock.speed)

    def _said_lately(self, job: Job) -> bool:
        """Whether a waiting job got a new sentence moments ago: figures in it move all the time, and each is a row."""
        if self._wall() - self._said_at.get(job.id, float("-inf")) < SAY_AGAIN_S and not job.reason.startswith("submitted"):
            return True
        self._said_at[job.id] = self._wall()
        return False

    def _record(self, changes: Sequence[Change]) -> None:
        """Write changes; what went stale meanwhile is decided anew in the next tick."""
        if not changes:
            return
        for change, outcome in zip(changes, self.store.apply(changes).result(), strict=True):
            if isinstance(outcome, StaleState):
                log.debug("stale: %s", outcome)
            elif isinstance(outcome, StoreUnavailable):
                raise outcome
            elif isinstance(outcome, Exception):
                # One job's refused change must not stop everybody else's; it is told as an alarm until it works.
                log.error("job %s: %s", change.job_id, outcome)
                self._refused[change.job_id] = f"a change of job {change.job_id} was refused: {outcome}"
            elif "started_at" in change.attempt_fields and change.job_id in self._attempts:
                self._logs.watch(self._attempts[change.job_id])
            elif change.new_attempt is not None:
                with self._lock:
                    self._fresh.add(change.new_attempt.submission_id)
            elif change.attempt_fields.get("ended_at") is not None:
                attempt = self._attempts.get(change.job_id)
                if attempt is not None:
                    self._forget(attempt.submission_id)
                    self._logs.finalize(attempt)
        self._refresh()

    def _drive(self, now: datetime) -> None:
        """Bring the clusters to the recorded state: send what is launching, stop what is to stop. Safe to repeat."""
        for job in self._jobs.values():
            attempt = self._attempts.get(job.id)
            if attempt is None or job.state not in PLACED or attempt.region not in self.regions:
                continue
            to_stop = job.cancel_requested_at is not None or (
                job.state is JobState.PAUSING and job.checkpoint_saved_at is not None
            )
            if attempt.accepted_at is None and job.state is JobState.LAUNCHING and job.cancel_requested_at is None:
                self._start_effect(attempt, lambda job=job, attempt=attempt: self._launch(job, attempt))  # type: ignore[misc]
            elif to_stop:
                self._start_effect(attempt, self._stopper(attempt))
        for sid, (attempt, since) in list(self._owed.items()):
            if self._wall() - since > OWED_S or attempt.region not in self.regions:
                self._owed.pop(sid, None)
                self._forget(sid)
            else:
                self._start_effect(attempt, self._stopper(attempt, owed=True))

    def _is_inflight(self, sid: str) -> bool:
        with self._lock:
            return sid in self._inflight

    def _start_effect(self, attempt: Attempt, call: Callable[[], None]) -> None:
        sid = attempt.submission_id
        with self._lock:
            if sid in self._inflight or self._wall() < self._again_at.get(sid, 0.0):
                return
            self._inflight.add(sid)
        self._effects.submit(attempt.region, call)

    def _end_effect(self, sid: str, again_s: float) -> None:
        with self._lock:
            self._inflight.discard(sid)
            self._again_at[sid] = self._wall() + again_s

    def _forget(self, sid: str) -> None:
        with self._lock:
            self._again_at.pop(sid, None)
            self._last_post_at.pop(sid, None)
            self._fresh.discard(sid)
            self._stopped_at.pop(sid, None)

    def _launch(self, job: Job, attempt: Attempt) -> None:
        """Submit an attempt and record what came of it. Unless this process committed it and never tried before, it may have
        been sent already, so the cluster is asked first."""
        sid, region = attempt.submission_id, self.regions[attempt.region]
        with self._lock:
            maybe_sent = sid in self._last_post_at or sid not in self._fresh
            self._fresh.discard(sid)
        again_s = LAUNCH_AGAIN_S
        try:
            env = JobEnvironment(
                url=self._secrets.public_url,
                token=self._secrets.job_token(sid),
                checkpoint_dir=self._secrets.checkpoint_dir(attempt.region, job.id),
                helper_uri=self._secrets.helper_uri,
                clock_speed=self.clock.speed,
            )
            change: Change | None = None
            try:
                try:
                    submission = submission_for(job, attempt, env)
                except (TypeError, ValueError, AttributeError) as error:
                    raise GridshiftError(f"its runtime_env cannot be used: {error}") from error
                packages = self._packages.for_launch(submission.runtime_env)
                region.cluster.submit(submission, packages, maybe_sent=maybe_sent)
                change = self._accepted(job, attempt, region)
                again_s = 0.0
            except ClusterUnreachable as error:
                change = self._unanswered(job, attempt, error, maybe_sent)
            except GridshiftError as error:  # refused by the cluster, or a package that cannot be delivered
                books = Books(None, self.settings.currency)
                prefix = f"{region.name} refused it: " if isinstance(error, LaunchRefused) else ""
                change = finish(
                    job, JobState.FAILED, f"{prefix}{error}", self.clock.now(), books=books, attempt=attempt, outcome="refused"
                )
            with self._lock:
                self._last_post_at[sid] = self.clock.now()
            if change is not None:
                for outcome in self.store.apply([change]).result():
                    if isinstance(outcome, Exception) and not isinstance(outcome, StaleState):
                        raise outcome
        except Exception:
            log.exception("launch of %s in %s went wrong; it is tried again", sid, attempt.region)
        finally:
            self._end_effect(sid, again_s)
            self.nudge()

    def _accepted(self, job: Job, attempt: Attempt, region: Region) -> Change:
        accepted_at = self.clock.now()
        self._logs.watch(attempt)
        try:
            session: str | None = region.cluster.info().session
        except ClusterUnreachable:
            session = None
        fields = {"accepted_at": accepted_at, "ray_session": session}
        reason = f"starting in {region.name}"
        return _change(job, accepted_at, "note", reason, expect=JobState.LAUNCHING, attempt=attempt, attempt_fields=fields)

    def _unanswered(self, job: Job, attempt: Attempt, error: ClusterUnreachable, maybe_sent: bool) -> Change | None:
        """A launch without an answer: back to the queue when it certainly never left; else unknown, and unknown waits."""
        now = self.clock.now()
        if error.maybe_sent or maybe_sent:
            reason = f"unknown: {attempt.region} did not answer the launch ({error}); asking again"
            return (
                None if job.reason == reason else _change(job, now, "note", reason, expect=JobState.LAUNCHING, attempt=attempt)
            )
        back = JobState.PAUSED if job.pauses else JobState.QUEUED
        return _change(
            job,
            now,
            "state",
            f"{attempt.region} could not be reached to start it: {error}",
            expect=JobState.LAUNCHING,
            attempt=attempt,
            to=back,
            fields={"not_before_at": now + timedelta(seconds=LAUNCH_AGAIN_S * self.clock.speed)},
            attempt_fields={"ended_at": now, "outcome": "refused", "message": str(error)},
        )

    def _stopper(self, attempt: Attempt, *, owed: bool = False) -> Callable[[], None]:
        def stop() -> None:
            try:
                self.regions[attempt.region].cluster.stop(attempt.submission_id)
                if owed:
                    self._owed.pop(attempt.submission_id, None)
                else:
                    self._stopped_at.setdefault(attempt.submission_id, self._wall())
            except ClusterUnreachable as error:
                log.warning("stop of %s in %s got no answer: %s", attempt.submission_id, attempt.region, error)
            finally:
                self._end_effect(attempt.submission_id, STOP_AGAIN_S)

        return stop

    # --- submissions ----------------------------------------------------------------------------------------------

    def admit(self, job: Job) -> "Future[Job]":
        """Store a new job durably. One that nobody may hold is stored already launching, and sent on the moment that is
        committed; all others wait for the next tick. Thread-safe."""
        region = self._express_region(job)
        if region is None:
            future = self.store.add_job(job, job.reason or "submitted")
            future.add_done_callback(lambda done: self.nudge() if done.exception() is None else None)
            return future
        attempt = Attempt(job.id, 1, region, submission_id(job.id, 1), launched_at=job.submitted_at)
        with self._lock:
            # The same id twice: the store refuses the second, and nothing kept of the first may be touched for it.
            again = job.id in self._jobs or attempt.submission_id in self._inflight or attempt.submission_id in self._fresh
            if not again:
                self._inflight.add(attempt.submission_id)
                self._fresh.add(attempt.submission_id)
        if again:
            return self.store.add_job(job, "submitted")
        launching = replace(
            job,
            state=JobState.LAUNCHING,
            attempt=1,
            region=region,
            reason=f"passed through to {region} at once: it has no gridshift metadata",
        )

        def committed(done: "Future[Job]") -> None:
            if done.exception() is None:
                self._effects.submit(region, lambda: self._launch(launching, attempt))
            else:
                self._forget(attempt.submission_id)
                self._end_effect(attempt.submission_id, 0.0)

        future = self.store.add_job(launching, launching.reason, attempt)
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
        ):
            return None
        if any(budget.region == view.name for budget in world.budgets):
            return None
        with self._lock:
            crowded = len(self._inflight) >= MAX_LAUNCHING
        return None if crowded else view.name

    # --- the other loops ------------------------------------------------------------------------------------------

    def plan(self, now: datetime) -> None:
        """Make a new plan when there is flexible work; the planner runs elsewhere and is waited for."""
        world = self._world
        if world is None or not self.book.ready or not any(view.flex.flexible for view in world.jobs):
            return
        # The last tick may be older than the first prices: a plan always sees what is known now.
        regions = tuple(self._region_view(region) for region in self.regions.values())
        self._plan = self._planner(replace(world, now=now, regions=regions, plan=self._plan))
        self.nudge()

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
        changes = []
        for job in self.store.ray_jobs(SETTLED_JOBS):
            late = job.energy_kwh is not None and (job.cost is None or job.carbon_kg is None)
            if job.state in ENDED and late and job.finished_at is not None and now - job.finished_at < SETTLED_WITHIN:
                usages = [
                    usage
                    for attempt in self.store.attempts(job.id)
                    if attempt.ended_at is not None
                    and attempt.region in self.regions
                    and (attempt.started_at is not None or attempt.outcome in ("succeeded", "failed"))
                    and (usage := self._usage(job, attempt, attempt.ended_at)) is not None
                ]
                change = settled(job, usages, now)
                if change is not None:
                    changes.append(change)
        self._record(changes)

    def housekeeping(self, now: datetime) -> None:
        """Delete ended attempts on their clusters, late enough to be safe, and thin out signals that grow old."""
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
                if failures:
                    break  # the rest next time

    # --- what others may see --------------------------------------------------------------------------------------

    def _note_alarms(self, actions: Sequence[Action], now: datetime) -> None:
        raised = {a.key: AlarmStatus(a.key, a.region, a.sentence, now) for a in actions if isinstance(a, Alarm)}
        for region in self.regions.values():
            _, error, _ = region.picture()
            if error is not None and not region.reachable():
                key = f"unreachable {region.name}"
                raised[key] = AlarmStatus(key, region.name, f"{region.name} does not answer: {error}", now)
        for attempt in self._attempts.values():
            if attempt.region not in self.regions:
                key = f"unknown region {attempt.region}"
                sentence = (
                    f"jobs run in region {attempt.region}, which is not in the configuration; add it back to learn of them"
                )
                raised[key] = AlarmStatus(key, attempt.region, sentence, now)
        late = [p.job_id for p in self._plan.placements.values() if p.late_s > 0] if self._plan is not None else []
        late = sorted({job_id for job_id in late if job_id in self._jobs} | self._running_late(now))
        if late:
            named = ", ".join(late[:5]) + (f" and {len(late) - 5} more" if len(late) > 5 else "")
            sentence = f"{len(late)} cannot end by their deadlines any more as things stand: {named}"
            raised["late"] = AlarmStatus("late", None, sentence, now)
        for job_id, sentence in self._refused.items():
            raised[f"refused {job_id}"] = AlarmStatus(f"refused {job_id}", None, sentence, now)
        self._refused.clear()
        for loop in self.loops:
            if loop.last_error is not None and loop.name != "control":
                key = f"loop {loop.name}"
                raised[key] = AlarmStatus(key, None, f"the {loop.name} loop fails: {loop.last_error}", now)
        for key, region_name, sentence in self.book.alarms(now):
            raised[key] = AlarmStatus(key, region_name, sentence, now)
        self._alarms = {
            key: replace(alarm, since=self._alarms[key].since) if key in self._alarms else alarm
            for key, alarm in raised.items()
        }

    def _running_late(self, now: datetime) -> set[str]:
        """Placed jobs that will end after their deadlines, as expected: the plan has no word of those that it cannot move."""
        late = set()
        for job_id in self._attempts:
            view = self._views[job_id][1] if job_id in self._views else None
            if view is None or view.flex.deadline_at is None or view.cancel_requested or view.state not in PLACED:
                continue
            end = (view.run_started_at or now) + timedelta(seconds=view.remaining_s)
            if max(end, now) > view.flex.deadline_at:
                late.add(job_id)
        return late

    def snapshot(self) -> Snapshot:
        """The last world and what was observed. Thread-safe: it reads values that are replaced, never changed."""
        # Before the first tick there is no picture of jobs yet, and building one here would race with that tick.
        world = self._world or World(
            self.clock.now(), (), tuple(self._region_view(region) for region in self.regions.values()), settings=self.settings
        )
        return Snapshot(
            world=replace(world, plan=self._plan),
            regions=tuple(self._region_status(region, world) for region in self.regions.values()),
            alarms=tuple(self._alarms.values()),
            loops=tuple(
                LoopStatus(loop.name, loop.period_s, loop.last_run_at, loop.last_s, loop.runs, loop.last_error)
                for loop in self.loops
            ),
        )

    def _region_status(self, region: Region, world: World) -> RegionStatus:
        picture, error, _ = region.picture()
        placed = [view for view in world.jobs if view.state in PLACED and view.region == region.name]
        limits = [b.limit_w for b in world.budgets if b.region == region.name and b.start <= world.now]
        return RegionStatus(
            name=region.name,
            address=region.config.address,
            reachable=region.reachable(),
            observed_at=picture.taken_at if picture else None,
            error=error,
            ray_version=picture.info.ray_version if picture else None,
            gpus=region.gpus(),
            gpus_used=sum(view.flex.gpus for view in placed),
            jobs_running=sum(view.state is not JobState.LAUNCHING for view in placed),
            draw_w=sum(view.flex.power_w for view in placed if view.state is not JobState.LAUNCHING) * region.config.pue,
            budget_w=min(limits, default=None),
        )

    def job_token(self, sid: str) -> str:
        """The token of an attempt: anyone with the server's secret can make it, nobody else can guess it."""
        return self._secrets.job_token(sid)


def _ran(status: AttemptStatus | None) -> bool:
    """Whether an attempt that was never seen running ran all the same."""
    if status is None or status.status is RayStatus.STOPPED:
        return False
    return status.error_type is None or status.error_type.startswith("JOB_ENTRYPOINT")


def _surroundings(world: World) -> object:
    """What a plan depends on besides jobs: limits, and which regions answer with how many GPUs."""
    return world.budgets, [(view.name, view.reachable, view.gpus) for view in world.regions]


def _change(
    job: Job,
    at: datetime,
    kind: str,
    reason: str,
    *,
    expect: JobState | None = None,
    attempt: Attempt | None = None,
    to: JobState | None = None,
    fields: Mapping[str, Any] | None = None,
    attempt_fields: Mapping[str, Any] | None = None,
) -> Change:
    """A change to ``job`` expected as it was seen."""
    return Change(
        job_id=job.id,
        at=at,
        kind=kind,
        reason=reason,
        expect=expect or job.state,
        expect_attempt=attempt.attempt if attempt else job.attempt,
        to=to,
        fields=fields or {},
        attempt_fields=attempt_fields or {},
    )


def launch_change(job: Job, region: str, reason: str, now: datetime, gpu_type: str | None = None) -> Change:
    """The change that starts the next attempt of ``job`` in ``region``, on GPUs of ``gpu_type`` (None: any)."""
    number = job.attempt + 1
    attempt = _new_attempt(job.id, number, region, submission_id(job.id, number), launched_at=now, gpu_type=gpu_type)
    fields = {"attempt": number, "region": region, "not_before_at": None, "run_started_at": None}
    return _new_change(
        job_id=job.id,
        at=now,
        kind="state",
        reason=reason,
        expect=job.state,
        expect_attempt=job.attempt,
        expect_seq=job.seq,  # a cancel or a pause that came meanwhile wins
        to=JobState.LAUNCHING,
        fields=fields,
        new_attempt=attempt,
    )


def view_of(job: Job, learned_s: float | None = None, gpu_type: str | None = None) -> JobView:
    """What policies see of a job. ``learned_s`` is the run time that its group's earlier jobs tell where its owner gave none,
    ``gpu_type`` what its live attempt runs on."""
    flex = job.flex if learned_s is None else replace(job.flex, runtime_s=max(learned_s, 1.0))
    least_s = min(60.0, 0.1 * flex.runtime_s)
    return _new_view(
        id=job.id,
        state=job.state,
        state_since=job.state_since,
        submitted_at=job.submitted_at,
        flex=flex,
        remaining_s=max(flex.runtime_s - job.progress_s, least_s),
        region=job.region,
        run_started_at=job.run_started_at,
        attempt=job.attempt,
        held=job.held,
        cancel_requested=job.cancel_requested_at is not None,
        pause_requested=job.state is JobState.PAUSING,
        checkpoint_saved=job.checkpoint_saved_at is not None,
        checkpoint_misses=job.checkpoint_misses,
        last_pause_asked_at=job.pause_requested_at,
        not_before_at=job.not_before_at,
        reason=job.reason,
        planned_region=job.planned_region,
        planned_start_at=job.planned_start_at,
        gpu_type=gpu_type,
    )
