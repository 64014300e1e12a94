"""How fast a week of signals is read out of a year of them, as it was known at a time, and what the year takes on disk.

50 regions with a year of five-minute values (5.3 million rows) in the control plane's own SQLite file; beside them one region
with a 48 hour forecast issued every half hour. ``--quick`` has 5 regions.
"""

import argparse
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from sqlalchemy import event

from dispatcher.store.engine import database, make_engine
from dispatcher.store.migrate import upgrade
from signals.points import Kind, Quality, SignalPoint
from signals.retention import Retention
from signals.rows import micros
from signals.store import SignalStore
from tests.benchmarks.common import report

START = datetime(2025, 1, 1, tzinfo=UTC)
STEP, WEEK, YEAR = timedelta(minutes=5), timedelta(days=7), timedelta(days=365)
POINTS = YEAR // STEP
ISSUES, ISSUE_STEP, ISSUE_POINTS = 200, timedelta(minutes=30), timedelta(hours=48) // STEP
#: When the forecasts begin; their window is the week from here.
FORECASTS = START + timedelta(days=300)


def fill(path: Path, regions: int) -> None:
    """A year of values for each region, written in bulk: the first from here, the others as copies with values of their own."""
    step, first = micros(START + STEP) - micros(START), micros(START)
    known_after = 90_000_000
    series = "INSERT INTO signal_series VALUES (?, ?, 'carbon_average', 'bench', '', 'gCO2e/kWh', ?, ?, 1, NULL)"
    point = "INSERT INTO signal_point VALUES (1, 0, ?, ?, 0, NULL, ?, ?, 0, NULL)"
    copy = (
        "INSERT INTO signal_point SELECT ?, outranked, start_us, end_us, seq, issued_us, retrieved_us, value + ? / 7.0, "
        "quality, unit FROM signal_point WHERE series_id = 1"
    )
    chance = random.Random(5)
    starts = range(first, first + POINTS * step, step)
    with sqlite3.connect(path) as db:
        for number in range(1, regions + 1):
            db.execute(series, (number, f"r{number}", step, starts[-1] + step + known_after))
            if number == 1:
                db.executemany(point, ((at, at + step, at + step + known_after, 100 + 300 * chance.random()) for at in starts))
            else:
                db.execute(copy, (number, number))
            db.commit()
    db.close()


def values(region: str, start: datetime, count: int, retrieved_at: datetime, issued_at: datetime | None) -> list[SignalPoint]:
    """``count`` values from ``start``: a forecast when there is an issue time."""
    quality = Quality.MEASURED if issued_at is None else Quality.FORECAST
    times = [start + n * STEP for n in range(count + 1)]
    return [
        SignalPoint(
            region, Kind.CARBON_AVERAGE, "gCO2e/kWh", a, b, issued_at, retrieved_at, float(200 + n % 97), quality, "bench"
        )
        for n, (a, b) in enumerate(pairwise(times))
    ]


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Wall and processor time of a call, ms."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return (time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3


def spread(name: str, taken: list[tuple[float, float]]) -> dict[str, float]:
    """Median and 95th percentile of wall time, median of processor time."""
    walls = sorted(wall for wall, _ in taken)
    return {
        f"{name}_ms": statistics.median(walls),
        f"{name}_p95_ms": walls[min(len(walls) - 1, int(0.95 * len(walls)))],
        f"{name}_cpu_ms": statistics.median(cpu for _, cpu in taken),
    }


def week_reads(store: SignalStore, regions: int, times: int) -> dict[str, float]:
    """Reads of a week somewhere in the year: as known at its end, and as known in its middle."""
    chance = random.Random(11)

    def read(share: float) -> tuple[float, float]:
        region, start = f"r{chance.randint(1, regions)}", START + chance.randint(0, 350) * timedelta(days=1)
        as_of = start + share * WEEK + timedelta(minutes=10)
        return timed(lambda: store.read(region, Kind.CARBON_AVERAGE, start, start + WEEK, as_of))

    points = store.read("r1", Kind.CARBON_AVERAGE, START, START + WEEK, START + YEAR)
    if len(points) != WEEK // STEP:
        raise RuntimeError(f"a week has {len(points)} points")
    return spread("read_week", [read(1.0) for _ in range(times)]) | spread("read_half_known", [read(0.5) for _ in range(times)])


def forecast_reads(store: SignalStore, times: int) -> dict[str, float]:
    """A region where ISSUES forecasts overlap the week, whose first two days are measured by then."""
    taken = []
    for n in range(ISSUES):
        issued = FORECASTS + n * ISSUE_STEP
        points = values("forecast", issued, ISSUE_POINTS, issued + STEP, issued)
        taken.append(timed(lambda points=points: store.append(points)))  # type: ignore[misc]
    measured = timedelta(days=2) // STEP
    last = FORECASTS + ISSUES * ISSUE_STEP
    store.append(values("forecast", FORECASTS, measured, last, None))

    def read(as_of: datetime) -> tuple[float, float]:
        return timed(lambda: store.read("forecast", Kind.CARBON_AVERAGE, FORECASTS, FORECASTS + WEEK, as_of))

    return (
        spread("read_forecast_now", [read(last + YEAR) for _ in range(times)])
        | spread("read_forecast_past", [read(FORECASTS + timedelta(hours=2 * (n % 40) + 2)) for n in range(times)])
        | spread("append_forecast", taken)
    )


def appends(store: SignalStore, times: int) -> dict[str, float]:
    """2,000 new points for one region at the end of its year, and the same delivered again."""
    first, again = [], []
    for n in range(times):
        points = values(f"r{n % 5 + 1}", START + YEAR + (n // 5) * 2000 * STEP, 2000, START + 3 * YEAR, None)
        first.append(timed(lambda points=points: store.append(points)))  # type: ignore[misc]
        again.append(timed(lambda points=points: store.append(points)))  # type: ignore[misc]
    return spread("append_2000", first) | spread("append_2000_again", again)


def thinning(store: SignalStore, transactions: int) -> dict[str, float]:
    """Hourly means of old values, and how long its transactions keep other writers waiting."""
    begun: list[float] = []
    taken: list[float] = []
    event.listen(store.engine, "begin", lambda _: begun.append(time.perf_counter()))
    event.listen(store.engine, "commit", lambda _: taken.append((time.perf_counter() - begun[-1]) * 1e3))
    started = time.perf_counter()
    done = store.thin(START + YEAR, Retention(10, 20, 1200), transactions=transactions)
    if not (done.merged and taken):
        raise RuntimeError(f"nothing was thinned: {done}")
    return {
        "thin_transaction_ms": statistics.median(taken),
        "thin_transaction_longest_ms": max(taken),
        "thin_rows_per_s": (done.merged + done.dropped) / (time.perf_counter() - started),
    }


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="5 regions; under a minute")
    quick = parser.parse_args().quick
    regions, times = (5, 40) if quick else (50, 200)
    with tempfile.TemporaryDirectory(prefix="gsb") as name:
        path = Path(name) / "signals.db"
        url = f"sqlite:///{path}"
        upgrade(url)
        empty = path.stat().st_size
        began = time.perf_counter()
        fill(path, regions)
        figures = {
            "points": float(regions * POINTS),
            "fill_s": time.perf_counter() - began,
            "disk_mb": (path.stat().st_size - empty) / 1e6,
            "disk_bytes_per_point": (path.stat().st_size - empty) / (regions * POINTS),
        }
        engine = make_engine(database(url))
        store = SignalStore(engine, pause=lambda _: None)
        figures |= week_reads(store, regions, times)
        figures |= appends(store, 10)
        figures |= forecast_reads(store, times // 4)
        figures |= thinning(store, 50 if quick else 300)
        engine.dispose()
    wanted = [("read_week_ms", "<=", 20.0), ("append_2000_ms", "<=", 1000.0), ("thin_transaction_longest_ms", "<=", 200.0)]
    method = (
        f"{regions} regions with a year of five-minute values in one SQLite file (WAL, synchronous=FULL), read through "
        f"SignalStore by one thread: {times} weeks at random places as known at their end (2,016 points) or middle; appends of "
        f"2,000 new points and the same again; {ISSUES} issues of a 48 hour forecast over one week, as known now and at times "
        "within it; a thinning transaction is from its beginning to its commit, not yet synced, with no rest "
        "between them; _cpu_ms is processor time of the process"
    )
    return report("signals", figures, wanted, method)


if __name__ == "__main__":
    sys.exit(main())
