"""What a backtest runs on, as values: jobs, regions with their true signals, what is known when, and what was assumed.

It reads no files and runs nothing: dispatcher.backtest.build makes a Scenario, dispatcher.backtest.engine runs it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from policies.world import Budget, CapPoint, GpuPool, Pausable, Reserved, Settings, ShiftWindow
from signals.series import SlotSeries

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace. ``length_s`` is its true run time without a power cap, ``gpus`` its width (or CPUs, where a trace
    counts those), ``power_w`` the whole job's mean draw before PUE.

    ``queue`` is "short" or "long", or the trace's own name. It must end by ``deadline_at`` where the trace has one, else by
    ``submitted_at + max_wait_s + length_s``; with neither it may wait for ever. ``declared_s`` is the run time its owner
    states, None for the true one. ``min_cap`` is the lowest power cap it accepts, None: half of the default limit. A job of
    tier flex-0 is never capped, whatever it says there.
    """

    id: str
    submitted_at: datetime
    length_s: float
    gpus: float
    power_w: float
    queue: str = "all"
    max_wait_s: float | None = None
    deadline_at: datetime | None = None
    pausable: Pausable = Pausable.NO
    restart_s: float = 0.0
    checkpoint_s: float = 0.0
    declared_s: float | None = None
    earliest_at: datetime | None = None
    regions: tuple[str, ...] = ()
    tier: str = "flex-0"
    priority: int = 0
    team: str | None = None
    group: str | None = None
    data_gb: float = 0.0
    data_region: str | None = None
    min_cap: float | None = None

    @property
    def due_at(self) -> datetime | None:
        """By when it must have ended; None: no bound."""
        if self.deadline_at is not None or self.max_wait_s is None:
            return self.deadline_at
        return self.submitted_at + timedelta(seconds=self.max_wait_s + self.length_s)


@dataclass(frozen=True)
class SignalTable:
    """The truth of one region, which energy is accounted by: values on slots of ``slot_s`` seconds from ``start``, NaN where
    unknown. ``price`` is in ``currency``/MWh, ``carbon`` in gCO2e/kWh of ``carbon_kind``; None without such a signal. Both have
    the same length. What lies before a scenario's start is history that a forecast may learn from; a table goes on after a
    scenario's end as far as the data does.
    """

    region: str
    start: datetime
    slot_s: int
    price: Floats | None
    carbon: Floats | None
    currency: str = "EUR"
    carbon_kind: str = "carbon_average"
    carbon_variant: str = ""
    source: str = "file"

    @property
    def slots(self) -> int:
        """Number of slots."""
        for values in (self.price, self.carbon):
            if values is not None:
                return len(values)
        return 0

    @property
    def end(self) -> datetime:
        """End of the last slot."""
        return self.start + timedelta(seconds=self.slot_s * self.slots)


@dataclass(frozen=True, slots=True)
class Known:
    """A region's signals as known at one moment, from the slot under way on; None where it has no such signal."""

    price: SlotSeries | None
    carbon: SlotSeries | None


class Foresight(Protocol):
    """What a policy may know of the signals at a moment. Everything that a policy learns of them comes through here."""

    #: "perfect", "as-of" or "noisy"
    mode: str

    def views(self, now: datetime) -> Mapping[str, Known]:
        """By region what is known at ``now``; the same object as long as nothing changes."""
        ...

    def next_change(self, now: datetime) -> datetime:
        """The first moment after ``now`` at which ``views`` changes."""
        ...


@dataclass(frozen=True)
class SimRegion:
    """One region as it is simulated; the fields mean what they mean in policies.world.RegionView."""

    name: str
    signals: SignalTable
    gpus: float | None = None
    max_jobs: int | None = None
    power_limit_w: float | None = None
    pue: float = 1.0
    fx: float = 1.0
    pools: tuple[GpuPool, ...] = ()
    caps: tuple[CapPoint, ...] = ()
    reserved: tuple[Reserved, ...] = ()


@dataclass(frozen=True)
class Scenario:
    """Everything that runs of several policies have in common. ``jobs`` are in order of submission and lie in
    ``[start, end)``; the engine may run on after ``end`` as far as the regions' signals go, so that what came last can end.

    ``step_s`` rounds events up to multiples of it (0: exact). ``plan_s`` is how often policies that plan anew do so.
    ``mean_by_queue_s`` are the run times that a policy which knows only the kind of a job is told: fixed for the whole
    backtest when ``means_fixed`` (a look-ahead that GAIA's rules ask for), else what it starts from until jobs have ended.
    ``assumptions`` and ``warnings`` are sentences.
    """

    start: datetime
    end: datetime
    jobs: tuple[TraceJob, ...]
    regions: tuple[SimRegion, ...]
    foresight: Foresight
    settings: Settings
    events: tuple[Budget, ...] = ()
    shifts: tuple[ShiftWindow, ...] = ()
    step_s: float = 0.0
    plan_s: float = 900.0
    mean_by_queue_s: Mapping[str, float] = field(default_factory=dict)
    means_fixed: bool = False
    jobs_file: str = ""
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
