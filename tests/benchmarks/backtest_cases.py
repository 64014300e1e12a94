"""What bench_backtest runs: scenarios from the open traces, one policy over one of them, and many of those side by side.

Nothing here judges a figure.
"""

import resource
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from dispatcher.backtest.build import Options, build
from dispatcher.backtest.engine import oracle, run_in_full
from dispatcher.backtest.results import Floats, Oracle
from dispatcher.backtest.scenario import Scenario
from policies.registry import make
from policies.world import Settings
from tests.benchmarks import common

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "hindcasts"
#: Regions with both a price and carbon.
REGIONS = ("US-CAL-CISO", "DE-LU", "US-TEX-ERCO", "ES", "CA-ON", "AU-NSW", "AU-VIC", "BR-SP", "US-NY-NYIS")
YEAR = 2023
WAITS = "short:6h,long:24h"
#: Where GPUs are scarce, jobs wider than this are left out: the widest would need more than there are.
WIDEST = 16
#: What the papers assume: run times are right, a start takes no time, and suspending is free in parts of any length.
FREE = Settings(
    price_weight=0.0, carbon_price=0.0, runtime_slack=0.0, min_chunk_s=0.0, deadline_margin_s=0.0, launch_s=0.0,
    checkpoint_retry_s=0.0,
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A scenario in words, and the policy to run over it. ``every`` takes each n-th job only. Forecasts are for ``days`` from
    1 January of ``year`` on, of which the jobs of the first ``weeks`` are run (None: all). ``utilisation`` (0..1) is the mean
    use of all GPUs there are, shared evenly among the regions (None: GPUs without limit). ``carbon_price`` None plans by carbon
    alone, else by price and carbon at that price (gridshift only)."""

    policy: str
    regions: tuple[str, ...]
    forecast: str = "as-of"
    trace: str = "jobs_gaia_pai-100k"
    year: int = YEAR
    days: float = 365
    weeks: float | None = None
    every: int = 1
    utilisation: float | None = None
    carbon_price: float | None = None

    @property
    def scene(self) -> "Case":
        """The same without what differs from policy to policy."""
        return replace(self, policy="", carbon_price=None)

    @property
    def label(self) -> str:
        """A few words for people."""
        where = self.regions[0] if len(self.regions) == 1 else f"{len(self.regions)} regions"
        weight = "" if self.carbon_price is None else f" at {self.carbon_price:g}/t"
        full = "" if self.utilisation is None else f" {100 * self.utilisation:g} % full"
        return f"{self.policy}{weight}, {where}{full}, {self.forecast}"


@dataclass(frozen=True)
class Row:
    """What came of a case: per job the seconds from the start to its submission, carbon (kg), cost and delay (h). ``gpus`` are
    those of the first region."""

    case: Case
    jobs: int
    submitted_s: Floats
    carbon_kg: Floats
    cost: Floats
    delay_h: Floats
    misses: int
    pauses: int
    moves: int
    unfinished: int
    wall_s: float
    cpu_s: float
    bound: Oracle
    gpus: float | None

    @property
    def delay_mean_h(self) -> float:
        """Mean delay of the jobs that ended."""
        return float(np.nanmean(self.delay_h))


def data_folder() -> Path | None:
    """The open traces beside the checkout, if they are there."""
    return common.data_folder("traces")


@lru_cache(maxsize=1)
def scenario(case: Case, workers: int = 1) -> Scenario:
    """The scenario of ``case.scene``; ``workers`` processes make forecasts that are not kept yet."""
    folder = data_folder()
    if folder is None:
        raise FileNotFoundError("no folder of traces; set GRIDSHIFT_DATA to one that has it")
    years = (case.year - 1, case.year)
    made = build(
        Options(
            jobs=[folder / f"{case.trace}.csv.gz"],
            signals=[folder / f"{what}_hourly_{year}.csv.gz" for what in ("carbon", "price") for year in years],
            regions=case.regions,
            start=datetime(case.year, 1, 1, tzinfo=UTC),
            days=case.days,
            time_unit="hours" if case.trace.endswith("100k") else "seconds",
            max_wait=WAITS,
            pausable=True,
            forecast=case.forecast,
            settings=FREE,
            cache_dir=CACHE,
            workers=workers,
        )
    )
    if case.weeks is not None:
        end = made.start + timedelta(weeks=case.weeks)
        made = replace(made, end=end, jobs=tuple(job for job in made.jobs if job.submitted_at < end))
    if case.every > 1:
        made = replace(made, jobs=made.jobs[:: case.every])
    if case.utilisation is not None:
        made = replace(made, jobs=tuple(job for job in made.jobs if job.gpus <= WIDEST))
        gpus = capacity(made, case.utilisation) / len(case.regions)
        made = replace(made, regions=tuple(replace(region, gpus=float(round(gpus))) for region in made.regions))
    return made


def capacity(made: Scenario, utilisation: float) -> float:
    """GPUs of which the jobs would use that share in the mean. Raises ValueError when those are too few for the widest job."""
    span_s = (made.end - made.start).total_seconds()
    gpus = sum(job.gpus * job.length_s for job in made.jobs) / span_s / utilisation
    if gpus < WIDEST:
        raise ValueError(f"{gpus:.1f} GPUs would do for {len(made.jobs)} jobs, too few for {WIDEST} at once; take more jobs")
    return gpus


@lru_cache(maxsize=1)
def _bound(case: Case) -> Oracle:
    return oracle(scenario(case))


def run(case: Case) -> Row:
    """Run one case in this process."""
    made = scenario(case.scene)
    settings = made.settings
    if case.carbon_price is not None:
        settings = replace(settings, price_weight=1.0, carbon_price=case.carbon_price)
    begun, cpu = time.perf_counter(), time.process_time()
    found = run_in_full(replace(made, settings=settings), make(case.policy, settings))
    wall_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu
    jobs, told = found.jobs, found.run
    if told.jobs != len(made.jobs):
        raise AssertionError(f"{case.label}: {told.jobs} of {len(made.jobs)} jobs came out")
    return Row(
        case, told.jobs, jobs.submitted_s, jobs.carbon_kg, jobs.cost, jobs.delay_h, told.deadline_misses, told.pauses,
        told.moves, told.unfinished, wall_s, cpu_s, _bound(case.scene), made.regions[0].gpus,
    )  # fmt: skip


def compile_first() -> None:
    """Have the planner compiled (kept on disk from then on), so that no clock runs while it is."""
    scene = Case("gridshift", REGIONS[:1], "perfect", days=2, every=20)
    run(scene)
    run(replace(scene, utilisation=0.9))
    scenario.cache_clear()
    _bound.cache_clear()


def forecast_first(case: Case, workers: int) -> float:
    """Make the forecasts of a case's regions where they are not kept yet; the seconds that took."""
    begun = time.perf_counter()
    scenario(case.scene, workers)
    scenario.cache_clear()
    return time.perf_counter() - begun


def side_by_side(cases: Sequence[Case], workers: int) -> Iterator[Row]:
    """Run cases in ``workers`` processes; rows come as they are done. Cases of one scenario go to one process in turn."""
    scenes: dict[Case, list[Case]] = {}
    for case in cases:
        scenes.setdefault(case.scene, []).append(case)
    begun, done = time.monotonic(), 0
    tell = sys.stderr.isatty()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(_all, group) for group in scenes.values()]):
            for row in future.result():
                done += 1
                yield row
            if tell:
                left_s = (time.monotonic() - begun) / done * (len(cases) - done)
                print(f"\r{done} of {len(cases)} runs, about {left_s / 60:.0f} min left  ", end="", file=sys.stderr, flush=True)
    if tell:
        print(file=sys.stderr)


def _all(cases: Sequence[Case]) -> list[Row]:
    return [run(case) for case in cases]


def alone(case: Case) -> tuple[Row, float, float]:
    """Run one case in a process of its own: its row, its seconds with reading all files, and its peak memory (MiB)."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measured, case).result()


def _measured(case: Case) -> tuple[Row, float, float]:
    if case.policy == "gridshift":
        compile_first()
    begun = time.perf_counter()
    row = run(case)
    return row, time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
