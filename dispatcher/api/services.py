"""What the API needs of the control plane, and the values in which the control plane tells what it last saw.

The API sees nothing else of it: no clusters, no loops, no secrets.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from dispatcher.clock import Clock
from dispatcher.config import Config
from dispatcher.packages import PackageStore
from dispatcher.store import Attempt, Job, Store
from policies.world import World


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
    """One loop of the control plane; ``period_s`` and ``last_s`` (how long its last run took) are wall seconds."""

    name: str
    period_s: float
    last_run_at: datetime | None
    last_s: float
    runs: int
    last_error: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The last world that was decided on, and what was observed."""

    world: World
    regions: tuple[RegionStatus, ...]
    alarms: tuple[AlarmStatus, ...]
    loops: tuple[LoopStatus, ...]


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

    def job_token(self, submission_id: str) -> str:
        """The token that an attempt was given."""
        ...
