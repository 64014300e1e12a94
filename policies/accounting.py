"""Energy, money and carbon of what ran: pure arithmetic over signals, time-weighted. Unknown in, unknown out."""

from collections.abc import Sequence
from datetime import datetime

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
    return total / covered_s if covered_s >= whole_s - tolerance_s else None
