"""Forecasts of the regions' prices and carbon beyond what is published: when one is made anew, and of which past.

It reads the signal store and has forecasts made elsewhere (a worker process); how that is done is signals.forecasting's. A
series without one simply repeats its last day.
"""

import logging
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from signals.points import Kind, Quality, SignalError, SignalPoint
from signals.series import Past, SlotForecast, Wanted

log = logging.getLogger(__name__)

#: How much of the past a forecast learns from. More helps prices a little, and costs memory and time for each series.
LEARNED = timedelta(days=182)
#: Points are read in pieces, so that nobody waits long for the database or for the interpreter.
PIECE = timedelta(days=14)
#: A forecast is made anew when values for so much more time are known, and not more often than this, in wall seconds.
ADVANCE = timedelta(hours=1)
AGAIN_S = 60.0
#: How far ahead forecasts reach.
DAYS = 7


class Readable(Protocol):
    """The part of a signal store that is read here."""

    def read(
        self, region: str, kind: Kind, start: datetime, end: datetime, as_of: datetime, source: str | None = None
    ) -> list[SignalPoint]:
        """Points as known at ``as_of``."""
        ...


@dataclass(frozen=True, slots=True)
class Series:
    """One series that is planned with: a region's "price", "carbon" or "load" from one source, in its calendar's time zone."""

    region: str
    what: str
    kind: Kind
    source: str
    zone: str
    variant: str = ""


class Forecasts:
    """The forecasts in use, by series. ``refresh`` runs in one loop; ``of`` is thread-safe. ``wall`` measures seconds."""

    def __init__(
        self, signals: Readable, make: Callable[[Past, Wanted], SlotForecast], *, slot_s: int, wall: Callable[[], float]
    ) -> None:
        self._signals, self._make, self._slot_s, self._wall = signals, make, slot_s, wall
        self._lock = threading.Lock()
        self._made: dict[Series, SlotForecast] = {}
        self._made_at: dict[Series, float] = {}
        self._known_until: dict[Series, datetime] = {}

    def of(self, series: Series) -> SlotForecast | None:
        """The newest forecast of a series, or None while there is none."""
        with self._lock:
            return self._made.get(series)

    def refresh(self, wanted: Sequence[Series], now: datetime) -> bool:
        """Make forecasts anew where more has become known; return whether one changed. One that fails keeps the old one."""
        changed = False
        # The one that was tried longest ago first, so that one that fails holds up no other.
        for series in sorted(wanted, key=lambda one: self._made_at.get(one, float("-inf"))):
            made_at = self._made_at.get(series)
            if made_at is not None and self._wall() - made_at < AGAIN_S:
                continue
            recent = self._read(series, now - timedelta(days=DAYS), now + timedelta(days=3), now)
            until = max((p.end for p in recent), default=None)
            before = self._known_until.get(series)
            if until is None or (before is not None and until < before + ADVANCE):
                continue
            self._made_at[series] = self._wall()
            try:
                made = self._make(
                    self._past(series, until, now), Wanted(until, self._slot_s, DAYS, series.zone, series.what != "price")
                )
            except Exception as error:  # whatever it is, the others have theirs; the loop tries again
                told = (series.what, series.region, series.source, error)
                log.warning("no forecast of %s of %s (%s): %s", *told, exc_info=not isinstance(error, SignalError))
                continue
            self._known_until[series] = until
            with self._lock:
                self._made[series] = made
            changed = True
        with self._lock:
            for gone in set(self._made_at) - set(wanted):
                for kept in (self._made, self._made_at, self._known_until):
                    kept.pop(gone, None)
        return changed

    def _past(self, series: Series, until: datetime, now: datetime) -> Past:
        starts, ends, values = array("d"), array("d"), array("d")
        first, end = until - LEARNED, until
        unit: str | None = None
        # From the newest piece back, as far as the unit stays the same: a change of currency begins a new series.
        while end > first:
            at = max(end - PIECE, first)
            points = self._read(series, at, end, now)
            if unit is None and points:
                unit = max(points, key=lambda p: (p.end, p.retrieved_at)).unit
            for point in points:
                # one that reaches over an edge comes with both pieces, and counts once
                if point.unit == unit and (point.start >= at or at == first):
                    starts.append(point.start.timestamp())
                    ends.append(point.end.timestamp())
                    values.append(point.value)
            if any(point.unit != unit for point in points):
                break
            end = at
        return Past(starts, ends, values)

    def _read(self, series: Series, start: datetime, end: datetime, now: datetime) -> list[SignalPoint]:
        """What was measured or published: a publisher's own forecast is not learned from, and neither is what is doubted."""
        points = self._signals.read(series.region, series.kind, start, end, now, source=series.source)
        return [p for p in points if p.variant == series.variant and p.quality not in (Quality.FORECAST, Quality.SUSPECT)]
