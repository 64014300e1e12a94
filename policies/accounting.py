"""Energy, money and carbon of what ran: pure arithmetic over signals, time-weighted. Unknown in, unknown out."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from datetime import datetime, timedelta

from signals.points import Quality, SignalPoint


def energy_kwh(power_w: float, start: datetime, end: datetime) -> float:
    """Energy of a constant draw in W over ``[start, end)``, kWh; 0 when the interval is empty."""
    return power_w * max(0.0, (end - start).total_seconds()) / 3_600_000.0


def weighted_mean(points: Sequence[SignalPoint], start: datetime, end: datetime, tolerance_s: float = 1.0) -> float | None:
    """Time-weighted mean of ``points`` over ``[start, end)``, in their unit; None unless they cover it but for ``tolerance_s``.

    Where points overlap, the one that starts later (the finer or newer one) holds from its start on. A value that is doubted
    covers nothing, and values in several units have no mean.
    """
    whole_s = (end - start).total_seconds()
    if whole_s <= 0:
        return None
    known = [p for p in points if p.quality is not Quality.SUSPECT and p.end > start and p.start < end]
    if len({p.unit for p in known}) > 1:
        return None
    inside = sorted(known, key=lambda p: (p.start, -p.end.timestamp()))
    total, covered_s, reached = 0.0, 0.0, start
    for index, point in enumerate(inside):
        follower = inside[index + 1].start if index + 1 < len(inside) else end
        begin, stop = max(point.start, reached), min(point.end, end, max(follower, reached))
        if stop > begin:
            seconds = (stop - begin).total_seconds()
            total, covered_s, reached = total + point.value * seconds, covered_s + seconds, stop
    return total / covered_s if covered_s > 0 and covered_s >= whole_s - tolerance_s else None


class MeansOf:
    """Means of one signal over many short intervals: as ``weighted_mean``, which would look at every point each time."""

    def __init__(self, points: Sequence[SignalPoint]) -> None:
        self._points = sorted(points, key=lambda p: p.start)
        self._starts = [p.start for p in self._points]
        self._longest = max((p.end - p.start for p in self._points), default=timedelta(0))

    def over(self, start: datetime, end: datetime) -> float | None:
        """Time-weighted mean over ``[start, end)``; None unless it is covered."""
        first, last = bisect_right(self._starts, start - self._longest), bisect_left(self._starts, end)
        return weighted_mean(self._points[max(0, first - 1) : last], start, end)
