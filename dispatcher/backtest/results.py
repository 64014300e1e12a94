"""What a backtest found, as values: filled by the engine, written by the report. It computes and draws nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RegionHours:
    """One region's signals by the hour over the backtest, NaN where unknown. ``price`` is in ``currency``/MWh, ``carbon`` in
    gCO2e/kWh; None where the region has no such signal."""

    region: str
    currency: str
    price: Floats | None
    carbon: Floats | None


@dataclass(frozen=True)
class PolicyRun:
    """One policy over the whole backtest. Money is in the planning currency. ``cost`` and ``carbon_kg`` are None when a signal
    was missing for a part of what ran.

    ``delay`` of a job is its end against the end it would have had from its submission on without waiting, over the jobs that
    ended; NaN when no job ended. The percentiles are 0..100. ``deadline_misses`` are jobs that ended after their deadline, or
    had not ended when it passed; ``impossible`` those of them that no policy could have met; ``unfinished`` jobs had not ended
    when the backtest did. ``load_w`` is the mean draw at the meter by region and hour. ``gap`` is the mean relative gap of the
    plans to their bounds, None without bounds.
    """

    policy: str
    label: str
    settings: Mapping[str, float | str]
    jobs: int
    energy_kwh: float
    cost: float | None
    carbon_kg: float | None
    delay_mean_h: float
    delay_p95_h: float
    delay_percentiles_h: Floats
    deadline_misses: int
    impossible: int
    unfinished: int
    pauses: int
    moves: int
    gap: float | None
    wall_s: float
    load_w: Mapping[str, Floats]


@dataclass(frozen=True)
class Oracle:
    """What no schedule that meets its deadlines can undercut: every job at its cheapest (its cleanest) allowed time and
    region with everything known beforehand, room without end and free suspension of those that may be paused."""

    cost: float | None
    carbon_kg: float | None


@dataclass(frozen=True)
class BacktestResult:
    """All runs over the same jobs and signals. ``runs[0]`` is ``run-now``, which the others are held against; ``front`` has the
    runs of ``gridshift`` at other carbon prices. ``assumptions`` are sentences, ``energy_basis`` is always "simulated"."""

    start: datetime
    end: datetime
    currency: str
    jobs_file: str
    regions: tuple[RegionHours, ...]
    runs: tuple[PolicyRun, ...]
    front: tuple[PolicyRun, ...]
    oracle: Oracle
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    energy_basis: str = "simulated"
