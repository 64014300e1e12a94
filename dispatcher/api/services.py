"""What the API needs of the control plane, and the values in which the control plane tells what it last saw.

The API sees nothing else of it: no clusters, no loops, no secrets.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from dispatcher.clock import Clock
from dispatcher.config import Config
from dispatcher.dr.hints import Hints
from dispatcher.dr.intake import EventIntake
from dispatcher.dr.vens import Vens
from dispatcher.packages import PackageStore
from dispatcher.power.energy import EnergyBook
from dispatcher.power.fleet import Fleet
from dispatcher.power.hub import Hub
from dispatcher.power.site_meters import SiteMeters
from dispatcher.serving.watch import ServingStatus
from dispatcher.signal_book import ChainStatus
from dispatcher.store import Job, Store
from policies.world import Alternative, RegionView, World
from signals.points import Kind, SignalPoint
from signals.series import SlotSeries


@dataclass(frozen=True, slots=True)
class RegionStatus:
    """One region as last observed. ``observed_at`` is when it last answered, ``error`` what went wrong since (None: nothing).
    ``draw_w`` is modelled from what runs there; ``budget_w`` is the lowest limit in force now (None: none)."""

    name: str
    address: str
    reachable: bool
    observed_at: datetime | None
    error: str | None
    ray_version: str | None
    gpus: float | None
    gpus_used: float
    jobs_running: int
    draw_w: float
    budget_w: float | None


@dataclass(frozen=True, slots=True)
class AlarmStatus:
    """Something an operator must know, and since when."""

    key: str
    region: str | None
    sentence: str
    since: datetime


@dataclass(frozen=True, slots=True)
class LoopStatus:
    """One loop of the control plane; ``period_s``, ``last_s`` (how long its last run took) and ``silent_s`` (since it last
    began, whatever the clock was set to meanwhile; None: it never did) are wall seconds."""

    name: str
    period_s: float
    last_run_at: datetime | None
    last_s: float
    runs: int
    last_error: str | None
    silent_s: float | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The last world that was decided on, and what was observed. ``planner`` says how whoever makes plans is: "ready", that it
    is warming up, or what is wrong with it."""

    world: World
    regions: tuple[RegionStatus, ...]
    alarms: tuple[AlarmStatus, ...]
    loops: tuple[LoopStatus, ...]
    planner: str = "ready"


class Logs(Protocol):
    """The local copies of jobs' logs, as far as the API reads them."""

    def read_all(self, job_id: str) -> str:
        """All attempts as one text. Blocks."""
        ...

    def tail(self, job_id: str, is_ended: Callable[[], bool]) -> AsyncIterator[str]:
        """The same text as it grows, until ``is_ended()`` (asked on the event loop, so cheap) and the last lines have come."""
        ...


class Signals(Protocol):
    """Stored signals, as far as the API reads them."""

    def read(
        self,
        region: str,
        kind: Kind,
        start: datetime,
        end: datetime,
        as_of: datetime,
        source: str | None = None,
        variant: str | None = None,
    ) -> list[SignalPoint]:
        """Points that overlap ``[start, end)`` as they were known at ``as_of``, by start. Blocks."""
        ...


class Services(Protocol):
    """The control plane as the API sees it. Methods may be called from any thread."""

    @property
    def config(self) -> Config:
        """The configuration."""
        ...

    @property
    def clock(self) -> Clock:
        """Where time comes from."""
        ...

    @property
    def store(self) -> Store:
        """The durable memory."""
        ...

    @property
    def packages(self) -> PackageStore:
        """Ray packages that clients uploaded."""
        ...

    @property
    def logs(self) -> Logs:
        """Logs of jobs."""
        ...

    @property
    def signals(self) -> Signals:
        """Prices and carbon intensities."""
        ...

    @property
    def hub(self) -> Hub:
        """The agents that are connected."""
        ...

    @property
    def meters(self) -> SiteMeters:
        """The sites' own meters."""
        ...

    @property
    def event_intake(self) -> EventIntake:
        """What is held of the sources of demand-response events."""
        ...

    @property
    def hints(self) -> Mapping[str, Hints]:
        """Who follows the hints of each source that sends only those."""
        ...

    @property
    def vens(self) -> Vens:
        """Who asks the OpenADR 3 sources."""
        ...

    @property
    def energy(self) -> EnergyBook:
        """What the GPUs drew."""
        ...

    @property
    def data_dir(self) -> Path:
        """Folder for what jobs hand in."""
        ...

    def admit(self, job: Job) -> "Future[Job]":
        """Store a new job durably (one that nobody may hold at once in ``launching``); resolves after the commit. Raises
        through the Future what Store.add_job raises."""
        ...

    def nudge(self) -> None:
        """Something changed: run the control loop now. Cheap."""
        ...

    def snapshot(self) -> Snapshot:
        """What was last seen. Cheap."""
        ...

    def region_views(self) -> tuple[RegionView, ...]:
        """The regions as they were last decided on; none before that. Cheap."""
        ...

    def fleet(self) -> Fleet:
        """What every GPU draws now, as far as it is heard. Cheap."""
        ...

    def explain(self, job_id: str) -> tuple[Alternative, ...]:
        """What else could have been done with a planned job. Blocks for a few seconds at most. Raises GridshiftError with why
        nothing can be said now."""
        ...

    def serving(self) -> list[ServingStatus]:
        """How each interactive serving stands, and what batch has to give for it. Cheap."""
        ...

    def signal_series(self, region: str, what: str) -> SlotSeries | None:
        """A region's "price", "carbon" or "load" on the planner's slots; None where nothing is known of it. Cheap."""
        ...

    def signal_chains(self, now: datetime) -> list[ChainStatus]:
        """How each region's signals stood at the last look at their sources, ages as of ``now``. Cheap."""
        ...

    def job_token(self, submission_id: str) -> str:
        """The token that an attempt was given."""
        ...

    def agent_token(self, region: str) -> str:
        """The token that a region's agents are given."""
        ...
