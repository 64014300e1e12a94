"""What a policy may know of the signals at each moment of a backtest: all of it, what our forecaster would have said, or the
truth with errors of the forecaster's size.

Everything that policies learn of signals comes through here, so this is where nothing may be seen too early. The truth itself
is dispatcher.backtest.signals'.
"""

import hashlib
import io
import logging
import os
import signal
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from multiprocessing import get_context
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from dispatcher.backtest.hindcast import VERSION, hindcast
from dispatcher.backtest.noise import HOUR_S, ErrorModel, Hindcasts, Rows, disturbed, hourly, whole_hour
from dispatcher.backtest.scenario import Floats, Known, SignalTable
from dispatcher.errors import BadInput
from signals.forecasting.model import HISTORY_DAYS, MAX_DAYS
from signals.series import SlotSeries

log = logging.getLogger(__name__)

#: How far ahead signals are told, days.
DAYS = 4
#: What a forecast learns from, and the weeks before in which its experts were checked.
LEARNED = timedelta(days=HISTORY_DAYS + 56)
#: Local hour at which the prices of the next day are published, where day-ahead prices count as known from then on.
PUBLISHED_HOUR = 13
#: So few hours of forecasts are not worth a process.
_SMALL_HOURS = 1000
#: Ctrl-C is for the process that started the others; it ends them.
_DEAF = (signal.SIGINT, signal.SIG_IGN)
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_EPOCH = datetime.fromtimestamp(0, UTC)
Progress = Callable[[str, int, int], None]


class _BySlot:
    """What all kinds of foresight share: views change with each slot, and stay the same object within one."""

    mode = ""

    def __init__(self, slot_s: int) -> None:
        self._slot_s = slot_s
        self._slot = -1
        self._views: Mapping[str, Known] = {}

    def views(self, now: datetime) -> Mapping[str, Known]:
        """By region what is known at ``now``."""
        slot = (now - _EPOCH) // timedelta(seconds=self._slot_s)
        if slot != self._slot:
            self._views = self._at(_EPOCH + timedelta(seconds=self._slot_s * slot))
            self._slot = slot
        return self._views

    def next_change(self, now: datetime) -> datetime:
        """The next slot's start."""
        slot = (now - _EPOCH) // timedelta(seconds=self._slot_s)
        return _EPOCH + timedelta(seconds=self._slot_s * (slot + 1))

    def _at(self, start: datetime) -> Mapping[str, Known]:
        raise NotImplementedError


class Perfect(_BySlot):
    """Knows everything: the truth from the slot under way on, ``days`` ahead, and no further than the data."""

    mode = "perfect"

    def __init__(self, tables: Mapping[str, SignalTable], *, days: int = DAYS) -> None:
        super().__init__(min(table.slot_s for table in tables.values()))
        self._days = days
        self._tables = tables
        self._truth = {
            (name, what): _Truth(table, what)
            for name, table in tables.items()
            for what in ("price", "carbon")
            if getattr(table, what) is not None
        }

    def _at(self, start: datetime) -> Mapping[str, Known]:
        out = {}
        for name, table in self._tables.items():
            slots = self._days * 86400 // table.slot_s
            told = {
                what: self._truth[name, what].from_(start, slots) if (name, what) in self._truth else None for what in _WHATS
            }
            out[name] = Known(told["price"], told["carbon"])
        return out


_WHATS = ("price", "carbon")


class _Truth:
    """One table's column, ready to be sliced into series."""

    def __init__(self, table: SignalTable, what: str) -> None:
        values: Floats = getattr(table, what)
        self._values = tuple(None if value != value else value for value in values.tolist())
        self._basis = tuple("unknown" if value is None else "published" for value in self._values)
        self._start, self._slot_s, self._source = table.start, table.slot_s, table.source
        self._unit = f"{table.currency}/MWh" if what == "price" else "gCO2e/kWh"
        self._variant = "" if what == "price" else table.carbon_variant

    def from_(self, start: datetime, slots: int) -> SlotSeries:
        """From the slot in which ``start`` lies."""
        at = (start - self._start) // timedelta(seconds=self._slot_s)
        begin = max(at, 0)
        stop = max(at + slots, begin)
        return SlotSeries(
            self._start + timedelta(seconds=self._slot_s * begin),
            self._slot_s,
            self._values[begin:stop],
            self._basis[begin:stop],
            self._unit,
            self._source,
            variant=self._variant,
        )


# --- one forecast for every hour ------------------------------------------------------------------------------------


class _Rows(_BySlot):
    """Foresight by rows of hourly forecasts. With ``published``, time zones by region, the truth of prices is told as far as
    it was published."""

    def __init__(
        self,
        tables: Mapping[str, SignalTable],
        rows: Mapping[tuple[str, str], Hindcasts],
        basis: str,
        *,
        published: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(HOUR_S)
        self._tables, self._rows, self._basis = tables, rows, basis
        self._published = {name: _zone(zone) for name, zone in (published or {}).items()}
        self._hourly = {
            name: np.asarray(hourly(table, "price")[1])
            for name, table in tables.items()
            if name in self._published and table.price is not None
        }

    def _at(self, start: datetime) -> Mapping[str, Known]:
        return {name: Known(self._series(name, "price", start), self._series(name, "carbon", start)) for name in self._tables}

    def _series(self, name: str, what: str, start: datetime) -> SlotSeries | None:
        found = self._rows.get((name, what))
        if found is None:
            return None
        index = (start - found.start) // timedelta(seconds=HOUR_S)
        width = found.rows.shape[1]
        known: list[float] = []
        if what == "price" and name in self._published:
            known = self._told(name, start)[:width]
        at = index + len(known)
        made = found.rows[at].tolist()[: width - len(known)] if 0 <= at < len(found.rows) else [np.nan] * (width - len(known))
        values = tuple(None if value != value else value for value in [*known, *made])
        if None in values:
            later = ["published"] * len(known) + [self._basis] * len(made)
            basis = tuple("unknown" if value is None else word for value, word in zip(values, later, strict=True))
        else:
            basis = ("published",) * len(known) + (self._basis,) * len(made)
        table = self._tables[name]
        unit = f"{table.currency}/MWh" if what == "price" else "gCO2e/kWh"
        variant = "" if what == "price" else table.carbon_variant
        return SlotSeries(start, HOUR_S, values, basis, unit, table.source, variant=variant)

    def _told(self, name: str, start: datetime) -> list[float]:
        """Prices published by ``start``: to the end of the local day, and of the next one from PUBLISHED_HOUR on. Days
        are those on the market's clock, summer time included."""
        zone = self._published[name]
        local = start.astimezone(zone)
        last = local.date() + timedelta(days=2 if local.hour >= PUBLISHED_HOUR else 1)
        until = datetime.combine(last, time(), zone).astimezone(UTC)
        values = self._hourly[name]
        first = (start - whole_hour(self._tables[name].start)) // timedelta(seconds=HOUR_S)
        hours = -(-(until - start) // timedelta(seconds=HOUR_S))
        told: list[float] = values[max(first, 0) : max(first + hours, 0)].tolist()
        return told


class AsOf(_Rows):
    """What our forecaster would have said: at each hour from the hours before it only (the one under way is its first step),
    with coefficients found anew each week. Where day-ahead prices count as published, the truth as far as it was."""

    mode = "as-of"

    def __init__(
        self,
        tables: Mapping[str, SignalTable],
        rows: Mapping[tuple[str, str], Hindcasts],
        published: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(tables, rows, "model", published=published)


class Noisy(_Rows):
    """The truth with errors of the size, growth and persistence of the forecaster's own (ErrorModel), drawn from a seed."""

    mode = "noisy"

    def __init__(
        self,
        tables: Mapping[str, SignalTable],
        errors: Mapping[tuple[str, str], ErrorModel],
        start: datetime,
        end: datetime,
        *,
        seed: int,
        scale: float = 1.0,
    ) -> None:
        """``scale`` multiplies the errors: 0 is perfect."""
        rows = {
            (name, what): Hindcasts(
                start,
                disturbed(
                    tables[name], what, model, start, end, seed=[seed, zlib.crc32(f"{name} {what}".encode())], scale=scale
                ),
            )
            for (name, what), model in errors.items()
        }
        super().__init__(tables, rows, "model")


def offset_hours(zone: str, at: datetime) -> float:
    """How far standard time of a zone lies ahead of UTC, hours. Raises BadInput for an unknown one."""
    tz = _zone(zone)
    found = []
    for month in (1, 7):
        offset = at.replace(month=month, day=1).astimezone(tz).utcoffset()
        found.append(offset.total_seconds() / 3600 if offset is not None else 0.0)
    return min(found)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise BadInput([("zone", name, "is no time zone; give a name such as Europe/Berlin")]) from error


# --- made once, and kept --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Task:
    name: str
    what: str
    values: Floats
    first: int
    last: int
    wall_hour: int
    days: int

    def key(self) -> str:
        """A name for exactly this forecast."""
        words = f"{VERSION} {self.what} {self.first} {self.last} {self.wall_hour} {self.days} {len(self.values)} "
        return hashlib.sha256(words.encode() + np.ascontiguousarray(self.values).tobytes()).hexdigest()[:40]


def _made(task: _Task) -> Rows:
    """In a worker process: the rows of one signal."""
    positive = task.what == "carbon"
    rows = hindcast(task.values, task.first, task.last, days=task.days, positive=positive, wall_hour=task.wall_hour)
    return rows.astype(np.float32)


def hindcasts(
    tables: Mapping[str, SignalTable],
    start: datetime,
    end: datetime,
    *,
    days: int = DAYS,
    zones: Mapping[str, str] | None = None,
    cache_dir: Path | None = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> dict[tuple[str, str], Hindcasts]:
    """Forecasts made at every hour of ``[start, end)`` for each signal of each region, kept in ``cache_dir``.

    They learn from what a table has before each hour, at most LEARNED. ``zones`` are time zones by region ("" for the others),
    for the days of the week; UTC without. ``workers`` processes share the work.
    """
    if not 1 <= days <= MAX_DAYS:
        raise BadInput([("days ahead", days, f"must be 1 to {MAX_DAYS}")])
    begin = whole_hour(start)
    hours = -(-(end - begin) // timedelta(seconds=HOUR_S))
    tasks = []
    for name, table in tables.items():
        offset_h = offset_hours(zone_of(zones, name), begin)
        for what in _WHATS:
            if getattr(table, what) is not None:
                first_hour, values = hourly(table, what)
                since = max(first_hour, begin - LEARNED)
                values = values[(since - first_hour) // timedelta(seconds=HOUR_S) :]
                first = (begin - since) // timedelta(seconds=HOUR_S)
                local = since + timedelta(hours=offset_h)
                values = values[: first + hours]
                tasks.append(_Task(name, what, values, first, first + hours, local.weekday() * 24 + local.hour, days))
    done: dict[tuple[str, str], Hindcasts] = {}
    missing = []
    for task in tasks:
        rows = kept(cache_dir, task.key(), (hours, 24 * days))
        if rows is None:
            missing.append(task)
        else:
            done[task.name, task.what] = Hindcasts(begin, rows)

    def keep(task: _Task, rows: Rows) -> None:
        keep_rows(cache_dir, task.key(), rows)
        done[task.name, task.what] = Hindcasts(begin, rows)
        if progress is not None:
            progress("forecasts", len(done), len(tasks))

    if progress is not None and missing:
        progress("forecasts", len(done), len(tasks))
    if sum(task.last - task.first for task in missing) <= _SMALL_HOURS:
        for task in missing:
            keep(task, _made(task))
    else:
        pool = ProcessPoolExecutor(
            min(max(workers, 1), len(missing)), mp_context=get_context("spawn"), initializer=signal.signal, initargs=_DEAF
        )
        with _one_thread(), _ended(pool):
            futures = {pool.submit(_made, task): task for task in missing}
            for future in as_completed(futures):
                keep(futures[future], future.result())
    return {(task.name, task.what): done[task.name, task.what] for task in tasks}


@contextmanager
def _ended(pool: ProcessPoolExecutor) -> Iterator[None]:
    """When this is left early, as on Ctrl-C, its processes end at once and not when all is done."""
    try:
        yield
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processes started herein use one thread each: the systems are many and small, and more would only wait for each other
    (that alone makes it ten times slower). The libraries read this as they are loaded, so it takes a process of its own."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def zone_of(zones: Mapping[str, str] | None, region: str) -> str:
    """A region's time zone, else that of "", else UTC."""
    return (zones or {}).get(region) or (zones or {}).get("", "UTC")


def cache_folder(given: Path | None = None) -> Path:
    """Where forecasts are kept: as given, else in the user's cache."""
    if given is not None:
        return given
    base = os.environ.get("XDG_CACHE_HOME") or ""
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "gridshift" / "hindcasts"


_DIGEST = 32


def kept(folder: Path | None, key: str, shape: tuple[int, int]) -> Rows | None:
    """Rows kept before; None when there are none, or when they are damaged and must be made anew."""
    if folder is None:
        return None
    try:
        raw = (folder / f"{key}.rows").read_bytes()
        body = raw[:-_DIGEST]
        if hashlib.sha256(body).digest() != raw[-_DIGEST:]:
            return None
        rows = np.load(io.BytesIO(body), allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return rows if rows.shape == shape and rows.dtype == np.float32 else None


def keep_rows(folder: Path | None, key: str, rows: Rows) -> None:
    """Keep rows for the next time. A disk that does not take them costs time later and nothing else."""
    if folder is None:
        return
    body = io.BytesIO()
    np.save(body, rows, allow_pickle=False)
    raw = body.getvalue()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # under a name of its own first: two runs may make the same at once
        with tempfile.NamedTemporaryFile(dir=folder, prefix=key, suffix=".part", delete=False) as file:
            part = Path(file.name)
            try:
                file.write(raw + hashlib.sha256(raw).digest())
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        part.replace(folder / f"{key}.rows")
    except OSError as error:
        log.warning("forecasts are not kept for the next time: %s: %s", folder, error)
