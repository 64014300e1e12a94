"""What interactive serving had to do, kept by quarter hour, and what is left free for it from now on.

Readings come each second and are kept as the mean and the highest of each quarter hour, in the signal store, so that a restart
forgets nothing, and a crash the quarter hour that is running. It decides nothing: policies.serving_headroom does.

A clock that is set back takes nothing away: how old a reading is goes by another clock, one that only runs on. Nor does one
reading that is wrong decide what is kept for weeks: none counts for more than a serving may have, nor alone among many.
"""

import logging
import math
import threading
import time
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
#: Of so many readings in a quarter hour the highest counts as high as the second.
_MANY = 10
#: So many pieces of quarter hours are remembered: as many as there are in the weeks that count, and some that restarts split.
_MOST_SEEN = 2 * WEEKS * int(WEEK.total_seconds()) // BIN_S


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
    second: float

    @property
    def is_many(self) -> bool:
        return self.count >= _MANY

    def add(self, at: datetime, load: float) -> None:
        self.first, self.last = min(self.first, at), max(self.last, at)
        self.count, self.total = self.count + 1, self.total + load
        self.highest, self.second = max(self.highest, load), max(self.second, min(self.highest, load))

    def seen(self) -> Seen:
        """As far as it was read: after a restart the rest of it stands beside. One reading stands for a second."""
        end = min(self.last + timedelta(seconds=1), self.start + timedelta(seconds=BIN_S))
        highest = self.second if self.is_many else self.highest
        return Seen(self.first, end, (self.total - self.highest + highest) / self.count, highest)


@dataclass
class _Known:
    """One serving and what is known of its demand. ``history`` is in its load's own unit, as it was read. ``recent`` has the
    highest load of each of the last pieces, ``last_s`` when it was read last, both by the clock that only runs on."""

    config: ServingConfig
    declared: Declared
    zone: str
    history: list[Seen] = field(default_factory=list)
    quarter: _Quarter | None = None
    unwritten: list[Seen] = field(default_factory=list)
    recent: deque[tuple[float, float]] = field(default_factory=deque)
    last_s: float | None = None
    version: int = 0
    expected_as: object = None
    slots: list[tuple[datetime, datetime]] = field(default_factory=list)
    expected: list[float | None] = field(default_factory=list)
    reserved_as: object = None
    reserved: tuple[Reserved, ...] = ()

    @property
    def per_gpu(self) -> float:
        return self.config.load_per_gpu or 1.0

    @property
    def most(self) -> float:
        """The load that all GPUs bear that it may have."""
        return self.declared.most_gpus * self.per_gpu

    def gpus(self, load: float) -> float:
        return min(load, self.most) / self.per_gpu


class DemandBook:
    """See the module. Thread-safe. ``now`` is the control plane's clock; ``mono`` runs as fast and is never set, s."""

    def __init__(
        self, config: Config, signals: Signals, now: Callable[[], datetime], *, mono: Callable[[], float] = time.monotonic
    ) -> None:
        """Read what an earlier control plane kept."""
        self._signals, self._now, self._mono = signals, now, mono
        self._slot_s = config.planner_settings().slot_s
        self._lock = threading.Lock()
        self._began, self._began_s = now(), mono()
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
        at, at_s = self._now() - timedelta(seconds=age_s), self._mono() - age_s
        load = min(load, one.most)
        with self._lock:
            if one.last_s is not None and at_s <= one.last_s:
                return
            one.last_s = at_s
            piece = at_s // _PIECE_S * _PIECE_S
            if one.recent and one.recent[-1][0] == piece:
                one.recent[-1] = (piece, max(load, one.recent[-1][1]))
            else:
                one.recent.append((piece, load))
            while one.recent[0][0] <= at_s - RECENT.total_seconds():
                one.recent.popleft()
            start = _floor(at, BIN_S)
            if one.quarter is not None and one.quarter.start == start:
                one.quarter.add(at, load)
            else:
                # the next one, or another after the clock was set
                _finish(one)
                one.quarter = _Quarter(start, at, at, 1, load, load, 0.0)

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

    def ahead(self, region: str, name: str, span: timedelta) -> float | None:
        """The load, in the server's own unit, that a serving is expected not to exceed from now on for ``span``, nor had in the
        last minutes; None where that is not known."""
        now = self._now()
        with self._lock:
            one = self._known.get(region, {}).get(name)
            if one is None or not one.declared.is_read:
                return None
            self._expect(one, now)
            recent = self._recent(one, now)
            expected = [gpus for (start, _), gpus in zip(one.slots, one.expected, strict=True) if start < now + span]
            known = [gpus for gpus in expected if gpus is not None]
            if recent is None or recent.gpus is None or len(known) < len(expected):
                return None
            return max(recent.gpus, *known) * one.per_gpu

    # --- parts ----------------------------------------------------------------------------------------------------

    def _expect(self, one: _Known, now: datetime) -> object:
        """Work out what is expected of each slot, if the slot or what is known has changed; what that now rests on."""
        first, slot = _floor(now, self._slot_s), timedelta(seconds=self._slot_s)
        known = (first, one.version)
        if one.expected_as != known:
            # As far as any plan looks ahead, which is as many slots.
            one.slots = [(first + n * slot, first + (n + 1) * slot) for n in range(MAX_SLOTS + 1)]
            seen = [Seen(s.start, s.end, one.gpus(s.mean), one.gpus(s.highest)) for s in one.history]
            one.expected = demand_quantile(seen, now, one.slots, quantile=one.declared.quantile, zone=one.zone)
            one.expected_as = known
        return known

    def _reserved(self, one: _Known, now: datetime) -> tuple[Reserved, ...]:
        """As before, while neither the slot nor what is known has changed: it is asked for each second."""
        known = self._expect(one, now)
        recent = self._recent(one, now) if one.declared.is_read else None
        near_slots = near(one.slots, now, recent)
        whole = None if recent is None or recent.gpus is None else math.ceil(recent.gpus)
        if one.reserved_as != (known, whole, near_slots):
            one.reserved = headroom(one.declared, one.slots, one.expected, recent, near_slots)
            one.reserved_as = (known, whole, near_slots)
        return one.reserved

    def _recent(self, one: _Known, now: datetime) -> Recent | None:
        """The demand of the last minutes that were read; None while there was no time yet to read any."""
        now_s = self._mono()
        # When it was read by the clock as it is set now.
        last_at = None if one.last_s is None else now - timedelta(seconds=now_s - one.last_s)
        if one.last_s is not None and now_s - one.last_s < SILENT.total_seconds():
            return Recent(one.gpus(max(load for _, load in one.recent)), last_at)
        return Recent(None, last_at) if now_s - self._began_s > one.config.stale_s else None

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
        last = max(one.history, key=lambda seen: seen.end, default=None)
        # What an earlier control plane wrote by a clock that was ahead tells nothing of the present.
        if last is not None and timedelta(0) <= now - last.end < SILENT:
            one.last_s = self._began_s - (now - last.end).total_seconds()
            one.recent.append((one.last_s, last.highest))


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
    # By their number and not by their age: a clock that was ahead for a moment must not have them forgotten.
    seen = quarter.seen()
    one.history = [*one.history[-_MOST_SEEN:], seen]
    one.unwritten.append(seen)
    one.version += 1


def _floor(at: datetime, length_s: int) -> datetime:
    return datetime.fromtimestamp(at.timestamp() // length_s * length_s, UTC)
