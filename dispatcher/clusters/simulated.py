"""A Ray cluster with a memory but without processes: for simulations, backtests and tests, in a clock's own time.

It knows what Ray would: GPUs, a queue, packages, statuses, logs. It knows nothing of prices or plans, and it never waits: its
state is worked out anew, from what was submitted when, whenever somebody asks.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from dispatcher.clock import Clock
from dispatcher.clusters import AttemptStatus, ClusterInfo, RayStatus, Submission
from dispatcher.errors import ClusterUnreachable, LaunchRefused

#: How long a job runs that nobody described, s.
DEFAULT_RUN_S = 60.0
#: Where a submission may say its own run length, in its env_vars or metadata, s.
RUN_KEY = "gridshift.sim_runtime_s"
#: Ray takes this long to notice that a package is missing, s.
SETUP_FAILURE_S = 6.0


@dataclass(slots=True)
class Workload:
    """What one job has to do, over all its attempts and clusters, s. ``saved_s`` is what a checkpoint keeps. A checkpoint
    takes ``checkpoint_s`` during which the job makes no progress (None: it never answers); a resume costs ``restart_s``."""

    run_s: float = DEFAULT_RUN_S
    checkpoint_s: float | None = 0.0
    restart_s: float = 0.0
    exit_code: int = 0
    saved_s: float = 0.0


@dataclass(slots=True)
class _Try:
    """One submission; times are the clock's."""

    submission: Submission
    work: Workload
    gpus: float
    submitted_at: datetime
    status: RayStatus = RayStatus.PENDING
    ends_at: datetime | None = None
    ended_at: datetime | None = None
    stop_asked: bool = False
    saving_s: float | None = None
    error_type: str | None = None
    exit_code: int | None = None
    message: str = ""
    log: list[str] = field(default_factory=list)


class SimulatedCluster:
    """Runs submissions first come first served, a later one passing an earlier one that does not fit, as Ray does.

    ``workloads`` (job id -> Workload) is shared with whoever drives the simulation and with the other clusters, so that saved
    progress moves with the job; a job that is not in it gets the run length it states itself, else DEFAULT_RUN_S.
    ``on_checkpoint(submission_id, at)`` is called when a checkpoint asked for with ``request_checkpoint`` has been saved.
    Statuses carry times of ``wall`` (seconds since the epoch) as a real cluster's do: so long ago on the wall as it was on the
    clock, divided by the clock's speed. Set ``down``, ``refuses``, ``lost_answers`` to make it fail.
    """

    def __init__(
        self,
        region: str,
        clock: Clock,
        *,
        gpus: float | None = 8.0,
        start_s: float = 0.0,
        stop_s: float = 0.0,
        workloads: MutableMapping[str, Workload] | None = None,
        on_checkpoint: Callable[[str, datetime], None] | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.region, self.gpus = region, gpus
        self.workloads: MutableMapping[str, Workload] = {} if workloads is None else workloads
        self.on_checkpoint = on_checkpoint
        #: No call gets through.
        self.down = False
        #: The next so many calls act, and their answer is lost.
        self.lost_answers = 0
        #: Why every submission is refused; None: none is.
        self.refuses: str | None = None
        self._clock, self._wall = clock, wall
        self._start_s, self._stop_s = start_s, stop_s
        self._lock = threading.RLock()
        self._boots = 0
        self._order = itertools.count()
        self._tries: dict[str, _Try] = {}
        self._packages: set[str] = set()
        self._due: list[tuple[datetime, int, str, str]] = []
        self._queue: list[str] = []
        self._used = 0.0

    # --- the Cluster protocol -------------------------------------------------------------------------------------

    def info(self) -> ClusterInfo:
        """Ask who is there."""
        with self._call():
            return ClusterInfo(session=self._session(), ray_version="2.60.0+simulated", gpus=self.gpus)

    def statuses(self, submission_ids: Sequence[str]) -> dict[str, AttemptStatus | None]:
        """The status of each; None where no such submission is known."""
        with self._call():
            return {sid: self._told(self._tries[sid]) if sid in self._tries else None for sid in submission_ids}

    def submit(self, submission: Submission, packages: Mapping[str, Path], *, maybe_sent: bool) -> None:
        """Take a submission (see Cluster.submit)."""
        with self._call() as now:
            sid = submission.submission_id
            if sid in self._tries:
                if not maybe_sent:
                    raise LaunchRefused(f"the cluster of {self.region} has a submission {sid} that is not this one")
                return
            for name, file in packages.items():
                if name not in self._packages and not file.is_file():
                    raise LaunchRefused(f"package {name} cannot be read here: no such file")
                self._packages.add(name)
            if self.refuses is not None:
                raise LaunchRefused(f"the cluster of {self.region} refused the job: {self.refuses}")
            gpus = max(float(submission.entrypoint_num_gpus or 0.0), _number(submission.metadata.get("gridshift.gpus")))
            job = _Try(submission, self._workload(submission), gpus, now)
            job.log.append(f"Running entrypoint for job {sid}: {submission.entrypoint}\n")
            self._tries[sid] = job
            self._queue.append(sid)
            self._plan(now + timedelta(seconds=self._start_s), "room", sid)
            self._advance(now)

    def stop(self, submission_id: str) -> None:
        """Ask for a stop. A job that waits for GPUs begins when it gets them, and is stopped then, as with Ray."""
        with self._call() as now:
            job = self._tries.get(submission_id)
            if job is not None and not job.stop_asked and job.ended_at is None:
                job.stop_asked = True
                if job.status is RayStatus.RUNNING:
                    self._plan(now + timedelta(seconds=self._stop_s), "stopped", submission_id)
                    self._advance(now)

    def delete(self, submission_id: str) -> None:
        """Forget an ended submission; unknown is no error."""
        with self._call():
            job = self._tries.get(submission_id)
            if job is not None and job.ended_at is None:
                raise ClusterUnreachable(f"the cluster of {self.region} will not delete {submission_id}: it is {job.status}")
            self._tries.pop(submission_id, None)

    def copy_logs(self, submission_id: str, take: Callable[[str], bool]) -> bool:
        """Hand the log to ``take``; False for an unknown submission."""
        with self._call():
            job = self._tries.get(submission_id)
            pieces = None if job is None else list(job.log)
        for piece in pieces or []:
            if not take(piece):
                break
        return pieces is not None

    def close(self) -> None:
        """Nothing to let go of."""

    # --- for whoever drives the simulation ------------------------------------------------------------------------

    def next_event_at(self) -> datetime | None:
        """When something will change here by itself next (in the clock's time); None: never."""
        with self._lock:
            self._advance(self._clock.now())
            while self._due and self._is_stale(self._due[0]):
                heapq.heappop(self._due)
            return self._due[0][0] if self._due else None

    def request_checkpoint(self, submission_id: str) -> None:
        """Tell a running job to save, as it would learn from the control plane; a job that already saves goes on with that."""
        with self._lock:
            now = self._clock.now()
            self._advance(now)
            job = self._tries.get(submission_id)
            if job is None or job.status is not RayStatus.RUNNING or job.saving_s is not None or job.ends_at is None:
                return
            wait_s = job.work.checkpoint_s
            if wait_s is None:
                return
            job.saving_s = self._done_s(job, now)
            job.ends_at += timedelta(seconds=wait_s)
            self._plan(now + timedelta(seconds=wait_s), "saved", submission_id)
            self._plan(job.ends_at, "end", submission_id)
            self._advance(now)

    def say(self, submission_id: str, text: str) -> None:
        """Add to a job's log."""
        with self._lock:
            self._tries[submission_id].log.append(text)

    def restart(self) -> None:
        """The head restarts without a memory: a new session, no jobs, no packages; what was not saved is lost."""
        with self._lock:
            self._advance(self._clock.now())
            self._boots += 1
            self._tries.clear()
            self._queue.clear()
            self._due.clear()
            self._packages.clear()
            self._used = 0.0

    def lose_packages(self) -> None:
        """Uploaded packages vanish, as they do on live clusters."""
        with self._lock:
            self._packages.clear()

    def packages(self) -> frozenset[str]:
        """The names of the packages held."""
        with self._lock:
            return frozenset(self._packages)

    def gpus_used(self) -> float:
        """GPUs that running jobs hold now."""
        with self._lock:
            self._advance(self._clock.now())
            return self._used

    # --- inside -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _call(self) -> Iterator[datetime]:
        """A call from outside at this moment: it may not get through, or its answer may be lost."""
        with self._lock:
            if self.down:
                message = f"the cluster of {self.region} cannot be reached: no connection"
                raise ClusterUnreachable(message, maybe_sent=False)
            now = self._clock.now()
            self._advance(now)
            yield now
            if self.lost_answers > 0:
                self.lost_answers -= 1
                raise ClusterUnreachable(f"the cluster of {self.region} did not answer in time")

    def _session(self) -> str:
        return f"session_simulated_{self.region}_{self._boots}"

    def _workload(self, submission: Submission) -> Workload:
        env: Mapping[str, Any] = submission.runtime_env.get("env_vars") or {}
        job_id = str(env.get("GRIDSHIFT_JOB_ID") or submission.submission_id.rpartition("-")[0])
        if job_id not in self.workloads:
            stated = _number(env.get(RUN_KEY)) or _number(submission.metadata.get(RUN_KEY))
            self.workloads[job_id] = Workload(run_s=stated or DEFAULT_RUN_S)
        return self.workloads[job_id]

    def _plan(self, at: datetime, what: str, sid: str) -> None:
        heapq.heappush(self._due, (at, next(self._order), what, sid))

    def _is_stale(self, due: tuple[datetime, int, str, str]) -> bool:
        at, _, what, sid = due
        job = self._tries.get(sid)
        return job is None or job.ended_at is not None or (what == "end" and at != job.ends_at)

    def _advance(self, now: datetime) -> None:
        """Let everything happen that is due by ``now``, in order."""
        while self._due and self._due[0][0] <= now:
            due = heapq.heappop(self._due)
            if self._is_stale(due):
                continue
            at, _, what, sid = due
            job = self._tries[sid]
            if what == "saved":
                job.work.saved_s = job.saving_s or 0.0
                job.saving_s = None
                job.log.append("checkpoint saved\n")
                if self.on_checkpoint is not None:
                    self.on_checkpoint(sid, at)
            elif what == "stopped":
                self._end(job, at, RayStatus.STOPPED, "Job was intentionally stopped.")
            elif what == "end":
                self._end_by_itself(job, at)
            self._start_waiting(at)

    def _start_waiting(self, at: datetime) -> None:
        waiting = []
        for sid in self._queue:
            job = self._tries.get(sid)
            if job is None:
                continue
            ready = at >= job.submitted_at + timedelta(seconds=self._start_s)
            if ready and (self.gpus is None or self._used + job.gpus <= self.gpus + 1e-9):
                self._start(sid, job, at)
            else:
                waiting.append(sid)
        self._queue = waiting

    def _start(self, sid: str, job: _Try, at: datetime) -> None:
        job.status = RayStatus.RUNNING
        self._used += job.gpus
        if job.stop_asked:
            self._plan(at + timedelta(seconds=self._stop_s), "stopped", sid)
        if not _wanted_packages(job.submission.runtime_env) <= self._packages:
            job.error_type = "RUNTIME_ENV_SETUP_FAILURE"
            job.ends_at = at + timedelta(seconds=SETUP_FAILURE_S)
        else:
            work = job.work
            restart_s = work.restart_s if work.saved_s > 0 else 0.0
            job.ends_at = at + timedelta(seconds=max(0.0, work.run_s - work.saved_s) + restart_s)
        self._plan(job.ends_at, "end", sid)

    def _done_s(self, job: _Try, now: datetime) -> float:
        """Work that is behind the job at ``now``, saved or not."""
        left_s = max(0.0, (job.ends_at - now).total_seconds()) if job.ends_at else job.work.run_s
        return max(job.work.saved_s, job.work.run_s - left_s)

    def _end_by_itself(self, job: _Try, at: datetime) -> None:
        if job.error_type is not None:
            self._end(job, at, RayStatus.FAILED, "Failed to set up runtime environment: a package is missing")
            return
        job.exit_code = job.work.exit_code
        if job.exit_code == 0:
            self._end(job, at, RayStatus.SUCCEEDED, "Job finished successfully.")
        else:
            job.error_type = "JOB_ENTRYPOINT_COMMAND_ERROR"
            message = f"Job entrypoint command failed with exit code {job.exit_code}"
            self._end(job, at, RayStatus.FAILED, message)

    def _end(self, job: _Try, at: datetime, status: RayStatus, message: str) -> None:
        job.status, job.ended_at, job.message = status, at, message
        self._used = max(0.0, self._used - job.gpus)

    def _told(self, job: _Try) -> AttemptStatus:
        pending = "Job has not started yet." if job.status is RayStatus.PENDING else "Job is currently running."
        return AttemptStatus(
            status=job.status,
            message=job.message or pending,
            error_type=job.error_type if job.ended_at else None,
            exit_code=job.exit_code,
            started_at=self._wall_time(job.submitted_at),
            ended_at=self._wall_time(job.ended_at),
        )

    def _wall_time(self, at: datetime | None) -> datetime | None:
        if at is None:
            return None
        ago_s = (self._clock.now() - at).total_seconds() / self._clock.speed
        return datetime.fromtimestamp(round(self._wall() - ago_s, 3), UTC)


def _number(text: Any) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        return 0.0


def _wanted_packages(runtime_env: Mapping[str, Any]) -> set[str]:
    uris = [runtime_env.get("working_dir"), *(runtime_env.get("py_modules") or [])]
    return {uri.removeprefix("gcs://") for uri in uris if isinstance(uri, str) and uri.startswith("gcs://")}
