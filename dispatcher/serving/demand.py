"""What interactive serving had to do, kept by quarter hour, and what is left free for it from now on.

Readings come each second and are kept as the mean and the highest of each quarter hour, in the signal store, so that a restart
forgets nothing, and a crash the quarter hour that is running. It decides nothing: policies.serving_headroom does.
"""

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

from dispatcher.config import Config, RegionConfig
from dispatcher.config_serving import ServingConfig
from policies.grid import MAX_SLOTS
from policies.serving_headroom import (
    BIN_S,
    RECENT,
    SILENT,
    WEEK,
    WEEKS,
    Declared,
    Recent,
    Seen,
    demand_quantile,
    headroom,
    near,
)
from policies.world import Reserved
from signals.points import MAX_VALUE, UNITS, Kind, Quality, SignalPoint

log = logging.getLogger(__name__)

MEAN, HIGHEST = "mean", "highest"
#: The last minutes are remembered in pieces of so long, s.
_PIECE_S = 15


class Signals(Protocol):
    """What it needs of a signal store."""

    def append(self, points: list[SignalPoint]) -> int:
        """Keep points."""
        ...

    def read(
        self, region: str, kind: Kind, start: datetime, end: datetime, as_of: datetime, source: str | None = None
    ) -> list[SignalPoint]:
        """Points as known at ``as_of``."""
        ...


@dataclass
class _Quarter:
    """The quarter hour that is running: its start and its readings so far, in the server's own unit."""

    start: datetime
    first: datetime
    last: datetime
    count: int
    total: float
    highest: float


@dataclass
class _Known:
    """One serving and what is known of its demand. ``history`` is in its load's own unit, by start."""

    config: ServingConfig
    declared: Declared
    zone: str
    history: list[Seen] = field(default_factory=list)
    quarter: _Quarter | None = None
    unwritten: list[Seen] = field(default_factory=list)
    recent: deque[tuple[datetime, float]] = field(default_factory=deque)
    last_at: datetime | None = None
    version: int = 0
    expected_as: object = None
    slots: list[tuple[datetime, datetime]] = field(default_factory=list)
    expected: list[float | None] = field(default_factory=list)
    reserved_as: object = None
    reserved: tuple[Reserved, ...] = ()

    @property
    def per_gpu(self) -> float:
        return self.config.load_per_gpu or 1.0


class DemandBook:
    """See the module. Thread-safe. ``now`` is the control plane's clock."""

    def __init__(self, config: Config, signals: Signals, now: Callable[[], datetime]) -> None:
        """Read what an earlier control plane kept."""
        self._signals, self._now, self._slot_s = signals, now, config.planner_settings().slot_s
        self._lock = threading.Lock()
        self._began = now()
        self._known: dict[str, dict[str, _Known]] = {}
        for region in config.regions:
            self._known[region.name] = {
                one.name: _Known(one, _declared(one, region, config.planning.default_gpu_power_w), region.timezone or "UTC")
                for one in region.serving
                if one.keeps_free
            }
            for one in self._known[region.name].values():
                if one.declared.is_read:
                    self._read(region.name, one)

    def note(self, region: str, name: str, load: float, age_s: float = 0.0) -> None:
        """A serving's load as it was read ``age_s`` ago, in the server's own unit."""
        one = self._known[region].get(name)
        if one is None or not math.isfinite(load) or not 0 <= load <= MAX_VALUE:
            return
        at = self._now() - timedelta(seconds=age_s)
        with self._lock:
            if one.last_at is not None and at <= one.last_at:
                return
            one.last_at = at
            piece = _floor(at, _PIECE_S)
            if one.recent and one.recent[-1][0] == piece:
                one.recent[-1] = (piece, max(load, one.recent[-1][1]))
            else:
                one.recent.append((piece, load))
            while one.recent[0][0] <= at - RECENT:
                one.recent.popleft()
            start = _floor(at, BIN_S)
            if one.quarter is not None and one.quarter.start == start:
                quarter = one.quarter
                quarter.last, quarter.count = at, quarter.count + 1
                quarter.total, quarter.highest = quarter.total + load, max(quarter.highest, load)
            else:
                _finish(one)
                one.quarter = _Quarter(start, at, at, 1, load, load)

    def keep(self, now: datetime) -> None:
        """Write down the quarter hours that are over."""
        self._write(now, lambda quarter: quarter.start + timedelta(seconds=BIN_S) <= now)

    def close(self) -> None:
        """Write down what there is of the one that is running too."""
        self._write(self._now(), lambda quarter: True)

    def reserved(self, region: str) -> tuple[Reserved, ...]:
        """What batch leaves free in a region from now on."""
        now = self._now()
        with self._lock:
            return tuple(kept for one in self._known.get(region, {}).values() for kept in self._reserved(one, now))

    # --- parts ----------------------------------------------------------------------------------------------------

    def _reserved(self, one: _Known, now: datetime) -> tuple[Reserved, ...]:
        """As before, while neither the slot nor what is known has changed: it is asked for each second."""
        first, slot = _floor(now, self._slot_s), timedelta(seconds=self._slot_s)
        known = (first, one.version)
        if one.expected_as != known:
            # As far as any plan looks ahead, which is as many slots.
            one.slots = [(first + n * slot, first + (n + 1) * slot) for n in range(MAX_SLOTS + 1)]
            seen = [Seen(s.start, s.end, s.mean / one.per_gpu, s.highest / one.per_gpu) for s in one.history]
            one.expected = demand_quantile(seen, now, one.slots, quantile=one.declared.quantile, zone=one.zone)
            one.expected_as = known
        recent = self._recent(one, now) if one.declared.is_read else None
        near_slots = near(one.slots, now, recent)
        whole = None if recent is None or recent.gpus is None else math.ceil(recent.gpus)
        if one.reserved_as != (known, whole, near_slots):
            one.reserved = headroom(one.declared, one.slots, one.expected, recent, near_slots)
            one.reserved_as = (known, whole, near_slots)
        return one.reserved

    def _recent(self, one: _Known, now: datetime) -> Recent | None:
        """The demand of the last minutes that were read; None while there was no time yet to read any."""
        if one.last_at is not None and now - one.last_at < SILENT:
            return Recent(max(load for _, load in one.recent) / one.per_gpu, one.last_at)
        patience = timedelta(seconds=one.config.stale_s)
        return Recent(None, one.last_at) if now - self._began > patience else None

    def _write(self, now: datetime, is_over: Callable[[_Quarter], bool]) -> None:
        for region, some in self._known.items():
            for one in some.values():
                with self._lock:
                    if one.quarter is not None and is_over(one.quarter):
                        _finish(one)
                    offered = list(one.unwritten)
                if offered:
                    # What cannot be written is tried again the next time: the loop tells why it failed.
                    self._signals.append([point for seen in offered for point in _points(region, one.config, seen, now)])
                    with self._lock:
                        del one.unwritten[: len(offered)]

    def _read(self, region: str, one: _Known) -> None:
        now = self._began
        points = self._signals.read(region, Kind.SERVING, now - WEEKS * WEEK, now, now, source=one.config.name)
        metric = _metric(one.config)
        highest = {(p.start, p.end): p.value for p in points if p.variant == f"{metric} {HIGHEST}"}
        for point in points:
            top = highest.get((point.start, point.end))
            if point.variant == f"{metric} {MEAN}" and top is not None:
                one.history.append(Seen(point.start, point.end, point.value, top))
        if one.history and now - one.history[-1].end < SILENT:
            one.last_at = one.history[-1].end
            one.recent.append((one.last_at, one.history[-1].highest))


def _declared(one: ServingConfig, region: RegionConfig, gpu_power_w: float) -> Declared:
    is_read = one.load_per_gpu is not None
    return Declared(
        name=one.name,
        floor_gpus=one.floor_gpus,
        most_gpus=one.most_gpus if is_read else one.floor_gpus,
        floor_w=one.floor_w,
        watts_per_gpu=(one.gpu_power_w or gpu_power_w) * region.pue,
        quantile=one.headroom_quantile,
        is_read=is_read,
    )


def _metric(config: ServingConfig) -> str:
    """What its load is read from: of another metric nothing is learned."""
    return "+".join(measure.gauge or measure.total for measure in config.loads())


def _points(region: str, config: ServingConfig, seen: Seen, now: datetime) -> Sequence[SignalPoint]:
    return [
        SignalPoint(
            region=region,
            kind=Kind.SERVING,
            unit=UNITS[Kind.SERVING],
            start=seen.start,
            end=seen.end,
            issued_at=None,
            retrieved_at=now,
            value=value,
            quality=Quality.MEASURED,
            source=config.name,
            variant=f"{_metric(config)} {what}",
        )
        for what, value in ((MEAN, seen.mean), (HIGHEST, seen.highest))
    ]


def _finish(one: _Known) -> None:
    """Put the quarter hour that was running to the history."""
    quarter, one.quarter = one.quarter, None
    if quarter is None:
        return
    # As far as it was read: after a restart the rest of it stands beside. One reading stands for a second.
    end = min(quarter.last + timedelta(seconds=1), quarter.start + timedelta(seconds=BIN_S))
    seen = Seen(quarter.first, end, quarter.total / quarter.count, quarter.highest)
    oldest = quarter.last - WEEKS * WEEK
    one.history = [*(s for s in one.history if s.start >= oldest), seen]
    one.unwritten.append(seen)
    one.version += 1


def _floor(at: datetime, length_s: int) -> datetime:
    return datetime.fromtimestamp(at.timestamp() // length_s * length_s, UTC)
