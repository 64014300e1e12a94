"""Brings clusters to what is recorded: sends attempts that are launching, stops those that are to stop, and asks again.

Nothing is decided here. Every call may be lost or repeated: an attempt has one submission id, and one that may have been sent
is asked for before it is sent again. What came of a launch is recorded in the store.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from dispatcher.clock import Clock
from dispatcher.errors import ClusterUnreachable, GridshiftError, LaunchRefused, StaleState, StoreUnavailable
from dispatcher.job_changes import change
from dispatcher.launch import JobEnvironment, submission_for
from dispatcher.reconcile import Books, finish
from dispatcher.regions import Region
from dispatcher.store import Attempt, Change, Job, Store
from policies.sentences import counted
from policies.world import PLACED, JobState

log = logging.getLogger(__name__)

#: At most this many attempts of one region are being started at once: each is a new process on its head.
MAX_LAUNCHING = 32
#: A stop is asked for again after this many wall seconds while the attempt still lives; after more of them where the attempt
#: has not begun: Ray keeps each request until it begins.
STOP_AGAIN_S, STOP_WAITING_AGAIN_S = 5.0, 30.0
#: Wall seconds before a launch that got no answer is tried again.
LAUNCH_AGAIN_S = 3.0
#: Wall seconds for which an attempt that was lost is asked to stop until its cluster answers, and between such requests where
#: an answer proves nothing: a launch that got none may be taken up by a slow head long after.
OWED_S, OWED_AGAIN_S = 900.0, 20.0


def lacking(job: Job, region: Region) -> str:
    """What a region lacks to start a job, even with nothing else in it; empty where it lacks nothing that is known."""
    gpus = region.gpus()
    if gpus is None or job.flex.gpus <= gpus:
        return ""
    return f"{region.name} has {counted(gpus, 'GPU')} and it needs {job.flex.gpus:g}"


def too_large(job: Job, region: Region) -> str:
    """What is to be said of a job that its cluster takes and cannot start as it is: Ray lets it wait without a word."""
    needs = lacking(job, region)
    return f": {needs}, so it waits there until there are more or it is cancelled" if needs else ""


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


class Launching:
    """See the module. Thread-safe, but for ``drive``, which is the control loop's."""

    def __init__(
        self,
        *,
        regions: Mapping[str, Region],
        store: Store,
        clock: Clock,
        wall: Callable[[], float],
        effects: Effects,
        packages: PackageSource,
        logs: LogSink,
        secrets: Secrets,
        currency: str,
        nudge: Callable[[], None],
    ) -> None:
        """``currency`` is what an attempt that never ran has cost nothing in; ``nudge`` is called when a launch is through."""
        self._regions, self._store, self._clock, self._wall = regions, store, clock, wall
        self._effects, self._packages, self._logs, self._secrets = effects, packages, logs, secrets
        self._currency, self._nudge = currency, nudge
        self._begun_at = clock.now()
        self._lock = threading.Lock()
        self._inflight: set[str] = set()
        self._fresh: set[str] = set()  # attempts that this process committed and has never tried to send
        self._again_at: dict[str, float] = {}
        self._last_post_at: dict[str, datetime] = {}
        self._stopped_at: dict[str, float] = {}
        #: Attempts that count as lost and may live after all, where nobody sees them, and since when (wall): to be stopped.
        self._owed: dict[str, tuple[Attempt, float]] = {}

    # --- what is known of an attempt ------------------------------------------------------------------------------

    def is_sending(self, sid: str) -> bool:
        """Whether a call about this attempt is under way."""
        with self._lock:
            return sid in self._inflight

    @property
    def is_crowded(self) -> bool:
        """Whether so many calls are under way that new ones should wait for a tick."""
        with self._lock:
            return len(self._inflight) >= MAX_LAUNCHING

    def last_sent_at(self, sid: str) -> datetime:
        """When an attempt was last sent. What an earlier control plane sent, it sent before this one began."""
        return self._last_post_at.get(sid, self._begun_at)

    def was_stopped(self, sid: str) -> bool:
        """Whether its cluster took a request to stop it, long enough ago for Ray to have acted on it where it can."""
        asked = self._stopped_at.get(sid)
        return asked is not None and self._wall() - asked > STOP_AGAIN_S

    # --- what happens to one --------------------------------------------------------------------------------------

    def committed(self, sid: str) -> None:
        """The store has it, and it was never sent."""
        with self._lock:
            self._fresh.add(sid)

    def owes_a_stop(self, attempt: Attempt) -> None:
        """It counts as lost and may live after all, or begin yet: it is stopped when its cluster answers."""
        self._owed[attempt.submission_id] = (attempt, self._wall())

    def forget(self, sid: str) -> None:
        """This attempt has ended."""
        with self._lock:
            self._again_at.pop(sid, None)
            self._last_post_at.pop(sid, None)
            self._fresh.discard(sid)
            self._stopped_at.pop(sid, None)

    def claim(self, attempt: Attempt) -> bool:
        """Keep a new attempt for ``send``, once it is committed, or ``give_up``. False when there is one of its id already."""
        sid = attempt.submission_id
        with self._lock:
            if sid in self._inflight or sid in self._fresh:
                return False
            self._inflight.add(sid)
            self._fresh.add(sid)
            return True

    def send(self, job: Job, attempt: Attempt) -> None:
        """Send a claimed attempt now."""
        self._effects.submit(attempt.region, lambda: self._launch(job, attempt))

    def give_up(self, attempt: Attempt) -> None:
        """A claimed attempt was not committed."""
        self.forget(attempt.submission_id)
        self._end_effect(attempt.submission_id, 0.0)

    # --- all of them ----------------------------------------------------------------------------------------------

    def drive(self, jobs: Iterable[Job], attempts: Mapping[str, Attempt]) -> None:
        """Bring the clusters to the recorded state: send what is launching, stop what is to stop. Safe to repeat."""
        for job in jobs:
            attempt = attempts.get(job.id)
            if attempt is None or job.state not in PLACED or attempt.region not in self._regions:
                continue
            to_stop = job.cancel_requested_at is not None or (
                job.state is JobState.PAUSING and job.checkpoint_saved_at is not None
            )
            if attempt.accepted_at is None and job.state is JobState.LAUNCHING and job.cancel_requested_at is None:
                self._start_effect(attempt, lambda job=job, attempt=attempt: self._launch(job, attempt))  # type: ignore[misc]
            elif to_stop:
                # Before it was accepted a request to stop it may have found nothing.
                waits = job.state is JobState.LAUNCHING and attempt.accepted_at is not None
                again_s = STOP_WAITING_AGAIN_S if waits and self.was_stopped(attempt.submission_id) else STOP_AGAIN_S
                self._start_effect(attempt, self._stopper(attempt, again_s))
        for sid, (attempt, since) in list(self._owed.items()):
            if self._wall() - since > OWED_S or attempt.region not in self._regions:
                self._owed.pop(sid, None)
                self.forget(sid)
            else:
                self._start_effect(attempt, self._stopper(attempt, STOP_AGAIN_S, owed=True))

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

    def _launch(self, job: Job, attempt: Attempt) -> None:
        """Submit an attempt and record what came of it. Unless this process committed it and never tried before, it may have
        been sent already, so the cluster is asked first."""
        sid, region = attempt.submission_id, self._regions[attempt.region]
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
                clock_speed=self._clock.speed,
            )
            made: Change | None = None
            try:
                try:
                    submission = submission_for(job, attempt, env)
                except (TypeError, ValueError, AttributeError) as error:
                    raise GridshiftError(f"its runtime_env cannot be used: {error}") from error
                packages = self._packages.for_launch(submission.runtime_env)
                region.cluster.submit(submission, packages, maybe_sent=maybe_sent)
                made = self._accepted(job, attempt, region)
                again_s = 0.0
            except ClusterUnreachable as error:
                made = self._unanswered(job, attempt, error, maybe_sent)
            except StoreUnavailable as error:  # a package that cannot be read now: that is not the job's fault, and may pass
                reason = f"{error}; trying again"
                if job.reason != reason:
                    made = change(job, self._clock.now(), "note", reason, expect=JobState.LAUNCHING, attempt=attempt)
            except GridshiftError as error:  # refused by the cluster, or a package that cannot be delivered
                books = Books(None, self._currency)
                prefix = f"{region.name} refused it: " if isinstance(error, LaunchRefused) else ""
                made = finish(
                    job, JobState.FAILED, f"{prefix}{error}", self._clock.now(), books=books, attempt=attempt, outcome="refused"
                )
            with self._lock:
                self._last_post_at[sid] = self._clock.now()
            if made is not None:
                for outcome in self._store.apply([made]).result():
                    if isinstance(outcome, Exception) and not isinstance(outcome, StaleState):
                        raise outcome
        except Exception:
            log.exception("launch of %s in %s went wrong; it is tried again", sid, attempt.region)
        finally:
            self._end_effect(sid, again_s)
            self._nudge()

    def _accepted(self, job: Job, attempt: Attempt, region: Region) -> Change:
        accepted_at = self._clock.now()
        self._logs.watch(attempt)
        try:
            session: str | None = region.cluster.info().session
        except ClusterUnreachable:
            session = None
        fields = {"accepted_at": accepted_at, "ray_session": session}
        reason = f"starting in {region.name}{too_large(job, region)}"
        return change(job, accepted_at, "note", reason, expect=JobState.LAUNCHING, attempt=attempt, attempt_fields=fields)

    def _unanswered(self, job: Job, attempt: Attempt, error: ClusterUnreachable, maybe_sent: bool) -> Change | None:
        """A launch without an answer: back to the queue when it certainly never left; else unknown, and unknown waits."""
        now = self._clock.now()
        if error.maybe_sent or maybe_sent:
            reason = f"unknown: {attempt.region} did not answer the launch ({error}); asking again"
            return (
                None if job.reason == reason else change(job, now, "note", reason, expect=JobState.LAUNCHING, attempt=attempt)
            )
        back = JobState.PAUSED if job.pauses else JobState.QUEUED
        return change(
            job,
            now,
            "state",
            f"{attempt.region} could not be reached to start it: {error}",
            expect=JobState.LAUNCHING,
            attempt=attempt,
            to=back,
            fields={"not_before_at": now + timedelta(seconds=LAUNCH_AGAIN_S * self._clock.speed)},
            attempt_fields={"ended_at": now, "outcome": "refused", "message": str(error)},
        )

    def _stopper(self, attempt: Attempt, taken_again_s: float, *, owed: bool = False) -> Callable[[], None]:
        """Asks for a stop; once its cluster took that, not again before ``taken_again_s`` (wall)."""

        def stop() -> None:
            again_s = STOP_AGAIN_S
            try:
                self._regions[attempt.region].cluster.stop(attempt.submission_id)
                if not owed:
                    self._stopped_at.setdefault(attempt.submission_id, self._wall())
                    again_s = taken_again_s
                elif attempt.accepted_at is not None:
                    self._owed.pop(attempt.submission_id, None)
                else:
                    again_s = OWED_AGAIN_S
            except ClusterUnreachable as error:
                log.warning("stop of %s in %s got no answer: %s", attempt.submission_id, attempt.region, error)
            finally:
                self._end_effect(attempt.submission_id, again_s)

        return stop
