"""Signals kept in memory, for simulation and tests: what signals.store.Signals promises, without a database.

It knows nothing of rows; what is new is decided as in the database's store.
"""

import threading
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from signals.gaps import SignalGap
from signals.points import Kind, SignalPoint, require_utc, standing
from signals.retention import KEEP, Retention, Thinned, hourly
from signals.store import checked, in_order, new_points, utc_times


class MemorySignalStore:
    """The store kept in this process, for simulation and tests."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, Kind], list[SignalPoint]] = defaultdict(list)
        self._gaps: dict[SignalGap, datetime] = {}
        self._lock = threading.RLock()

    def append(self, points: Iterable[SignalPoint]) -> int:
        """See Signals.append."""
        batch = checked(points)
        by_series: dict[tuple[str, Kind], list[SignalPoint]] = defaultdict(list)
        for point in batch:
            by_series[point.region, point.kind].append(point)
        with self._lock:
            count = 0
            for key, offered in by_series.items():
                fresh = new_points(self._series[key], offered)
                self._series[key].extend(fresh)
                count += len(fresh)
            return count

    def note_gaps(self, gaps: Iterable[SignalGap], noted_at: datetime) -> int:
        """See Signals.note_gaps."""
        noted_at = require_utc("noted_at", noted_at)
        with self._lock:
            fresh = {gap: noted_at for gap in gaps if gap not in self._gaps}
            self._gaps.update(fresh)
            return len(fresh)

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
        """See Signals.read."""
        start, end, as_of = utc_times(start, end, as_of)
        best: dict[tuple[str, str, datetime, datetime], SignalPoint] = {}
        with self._lock:
            for point in self._series.get((region, Kind(kind)), ()):
                if point.end <= start or point.start >= end or point.retrieved_at > as_of:
                    continue
                if point.issued_at is not None and point.issued_at > as_of:
                    continue
                if (source is not None and point.source != source) or (variant is not None and point.variant != variant):
                    continue
                key = (point.source, point.variant, point.start, point.end)
                if key not in best or _rank(point) >= _rank(best[key]):
                    best[key] = point
        return in_order(best.values())

    def read_gaps(self, region: str, kind: Kind, start: datetime, end: datetime, as_of: datetime) -> list[SignalGap]:
        """See Signals.read_gaps."""
        start, end, as_of = utc_times(start, end, as_of)
        with self._lock:
            found = [
                gap
                for gap, noted_at in self._gaps.items()
                if gap.region == region and gap.kind == kind and gap.start < end and gap.end > start and noted_at <= as_of
            ]
        return sorted(found, key=lambda g: (g.start, g.end, g.source, g.variant))

    def latest_retrieved(self, region: str, kind: Kind, source: str | None = None) -> datetime | None:
        """See Signals.latest_retrieved."""
        with self._lock:
            points = self._series.get((region, Kind(kind)), ())
            return max((p.retrieved_at for p in points if source is None or p.source == source), default=None)

    def prune(self, before: datetime) -> int:
        """See Signals.prune."""
        before = require_utc("before", before)
        with self._lock:
            gone = 0
            for key, points in self._series.items():
                kept = [p for p in points if p.end > before]
                gone += len(points) - len(kept)
                self._series[key] = kept
            old = [gap for gap in self._gaps if gap.end <= before]
            for gap in old:
                del self._gaps[gap]
            return gone + len(old)

    def thin(self, now: datetime, retention: Retention = KEEP, transactions: int | None = None) -> Thinned:
        """See Signals.thin. All of it is done at once, whatever ``transactions`` says."""
        cutoffs = retention.cutoffs(now)
        with self._lock:
            pruned = self.prune(cutoffs.drop_before)
            dropped = merged = 0
            for key, points in self._series.items():
                best: dict[tuple[str, str, datetime, datetime], SignalPoint] = {}
                for point in points:
                    interval = (point.source, point.variant, point.start, point.end)
                    if interval not in best or _rank(point) >= _rank(best[interval]):
                        best[interval] = point
                in_force = {id(point) for point in best.values()}
                kept = [p for p in points if p.end > cutoffs.revisions_before or id(p) in in_force]
                dropped += len(points) - len(kept)
                fine: dict[tuple[str, str], list[SignalPoint]] = defaultdict(list)
                for point in kept:
                    if point.end <= cutoffs.fine_before:
                        fine[point.source, point.variant].append(point)
                young = [point for point in kept if point.end > cutoffs.fine_before]
                for series in fine.values():
                    coarse = hourly(series)
                    merged += len(set(series) - set(coarse))
                    young += coarse
                self._series[key] = young
            return Thinned(dropped, merged, pruned)


def _rank(point: SignalPoint) -> tuple[int, datetime, datetime]:
    return (standing(point.quality), point.issued_at or point.retrieved_at, point.retrieved_at)
