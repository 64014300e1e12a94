"""A week in seconds: the same loops, state table and policies as live, over simulated clusters, under a virtual clock.

What differs from live stands here and is little: arrivals are a list, effects run at once, and jobs answer a request for a
checkpoint as their Workload says. Its results are simulated and must be called so wherever they are shown.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dispatcher.clock import VirtualClock
from dispatcher.clusters.simulated import SimulatedCluster, Workload
from dispatcher.config import Config
from dispatcher.control import Control
from dispatcher.launching import Secrets
from dispatcher.loops import Loop, run_virtual
from dispatcher.planning import Planner, Planning
from dispatcher.regions import Region
from dispatcher.signal_book import SignalBook
from dispatcher.store import Attempt, Change, Job, Store
from dispatcher.store.memory import MemoryStore
from policies.world import JobState
from signals.memory_store import MemorySignalStore


class _AtOnce:
    """Effects without threads."""

    def submit(self, region: str, call: Callable[[], None]) -> None:
        """Run the call now."""
        call()


class _NoPackages:
    """Simulated clusters need no files."""

    def for_launch(self, runtime_env: Mapping[str, Any]) -> dict[str, Path]:
        """Nothing to deliver."""
        return {}


class _NoLogs:
    """Simulated jobs say nothing."""

    def watch(self, attempt: Attempt) -> None:
        """Nothing to follow."""

    def finalize(self, attempt: Attempt) -> None:
        """Nothing to fetch."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job, submitted at ``job.submitted_at``, and what it really has to do, which nobody is told."""

    job: Job
    work: Workload


class Simulation:
    """Builds a control plane over simulated clusters; ``run`` takes it to a moment.

    Plans are made by the configured policy in a Planner, as they are in the live worker process, or by ``planning``. ``tick_s``
    is how often the control loop runs, ``plan_s`` how often a plan is made at least, ``ingest_s`` how often feeds are asked,
    all in clock seconds.
    """

    def __init__(
        self,
        config: Config,
        start: datetime,
        arrivals: Sequence[Arrival],
        *,
        store: Store | None = None,
        planning: Planning | None = None,
        tick_s: float = 60.0,
        plan_s: float = 900.0,
        ingest_s: float = 900.0,
        start_s: float = 5.0,
    ) -> None:
        self.clock = VirtualClock(start)
        self.store: Store = store or MemoryStore()
        self._arrivals = sorted(arrivals, key=lambda arrival: (arrival.job.submitted_at, arrival.job.id))
        self._workloads = {arrival.job.id: arrival.work for arrival in arrivals}

        def wall() -> float:
            return self.clock.now().timestamp()

        self.clusters = {
            region.name: SimulatedCluster(
                region.name,
                self.clock,
                gpus=region.gpus,
                start_s=start_s,
                workloads=self._workloads,
                on_checkpoint=self._saved,
                wall=wall,
            )
            for region in config.regions
        }
        self.control = Control(
            config=config,
            clock=self.clock,
            store=self.store,
            book=SignalBook(config, MemorySignalStore()),
            regions=[Region(region, self.clusters[region.name], self.clock, wall, wall) for region in config.regions],
            packages=_NoPackages(),
            logs=_NoLogs(),
            effects=_AtOnce(),
            planning=planning or Planner(),
            secrets=Secrets(lambda sid: sid, "http://simulation", lambda region, job_id: f"/{job_id}", None),
            wall=wall,
        )
        self._plan_wanted = self._place_wanted = False
        self.control.nudge_plan, self.control.nudge_place = self._want_plan, self._want_place
        periods = {"control": tick_s, "plan": plan_s, "ingest": ingest_s, "settle": 900.0, "housekeeping": 3600.0}
        table = {loop.name: loop for loop in self.control.loops}
        for name, period_s in periods.items():
            table[name].period_s = period_s
        for name, loop in table.items():
            if name.startswith("observe"):
                loop.period_s = tick_s
        # Regions and feeds are looked at before anything is decided at the same moment, as a live tick would find them.
        observing = [loop for name, loop in table.items() if name.startswith("observe")]
        self.loops = [
            table["ingest"],
            Loop("arrivals", tick_s, self._arrive),
            Loop("jobs", tick_s, self._ask_jobs),
            *observing,
            Loop("place if wanted", tick_s, self._place_if_wanted),
            table["control"],
            Loop("plan if wanted", tick_s, self._plan_if_wanted),
            table["plan"],
            table["settle"],
            table["housekeeping"],
        ]

    def run(self, until: datetime) -> None:
        """Take the simulation to ``until``; an error in a loop is raised."""
        run_virtual(self.loops, self.clock, until)

    def _want_plan(self) -> None:
        self._plan_wanted = True

    def _want_place(self) -> None:
        self._place_wanted = True

    def _place_if_wanted(self, now: datetime) -> None:
        if self._place_wanted:
            self._place_wanted = False
            self.control.place(now)

    def _plan_if_wanted(self, now: datetime) -> None:
        """What the tick at this moment asked for, live a moment later."""
        wanted = self._plan_wanted or self._place_wanted
        self._place_if_wanted(now)
        if self._plan_wanted:
            self._plan_wanted = False
            self.control.plan(now)
            self._place_if_wanted(now)
        if wanted:
            self.control.tick(now)

    def _arrive(self, now: datetime) -> None:
        while self._arrivals and self._arrivals[0].job.submitted_at <= now:
            self.control.admit(self._arrivals.pop(0).job).result()

    def _ask_jobs(self, now: datetime) -> None:
        """A real job learns over HTTP that its checkpoint is asked for; a simulated one is told by its cluster."""
        for attempt in self.store.live_attempts():
            job = self.store.job(attempt.job_id)
            if job is not None and job.state is JobState.PAUSING and job.checkpoint_saved_at is None:
                self.clusters[attempt.region].request_checkpoint(attempt.submission_id)

    def _saved(self, submission_id: str, at: datetime) -> None:
        job_id, _, attempt = submission_id.rpartition("-")
        reason = f"attempt {attempt} saved its checkpoint"
        self.store.apply(
            [
                Change(
                    job_id,
                    at,
                    "checkpoint",
                    reason,
                    expect=JobState.PAUSING,
                    expect_attempt=int(attempt),
                    fields={"checkpoint_saved_at": at},
                )
            ]
        ).result()
