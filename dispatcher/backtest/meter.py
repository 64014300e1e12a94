"""What simulated runs use, by the true signals: energy, money and carbon exactly over ``[begin, end)``, and load by the hour.

Times are seconds since the scenario's start. It knows regions and their signals, and nothing of jobs or policies.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate

import numpy as np

from dispatcher.backtest.scenario import Floats, SimRegion
from dispatcher.reconcile import Usage

#: Seconds of a run without a value that count as rounding of its ends.
_ROUNDING_S = 1e-3


@dataclass(frozen=True, slots=True)
class _Curve:
    """One signal: its values (0 where unknown), their integral up to each slot, and the unknown seconds up to each slot
    (empty: all are known)."""

    values: list[float]
    integral: list[float]
    unknown_s: list[float]


def _curve(values: Floats | None, slot_s: int) -> _Curve | None:
    if values is None:
        return None
    gaps = np.isnan(values)
    known = np.where(gaps, 0.0, values).tolist()
    unknown: list[float] = []
    if gaps.any():
        unknown = [0.0, *accumulate((gaps * float(slot_s)).tolist())]
    return _Curve(known, [0.0, *accumulate(value * slot_s for value in known)], unknown)


class Meter:
    """One region's. ``draws`` of runs are W at the GPU; what it says is at the meter, in the planning currency."""

    def __init__(self, region: SimRegion, start: datetime) -> None:
        self._pue, self._fx = region.pue, region.fx
        table = region.signals
        self._slot_s = float(table.slot_s)
        self._from_s = (table.start - start).total_seconds()
        self._slots = table.slots
        self._price, self._carbon = _curve(table.price, table.slot_s), _curve(table.carbon, table.slot_s)
        self._begin_s, self._end_s, self._draw_w = array("d"), array("d"), array("d")

    def book(self, begin_s: float, end_s: float, power_w: float) -> Usage:
        """What a run of ``power_w`` (at the GPU) over ``[begin_s, end_s)`` used; it counts in ``load_w``. ``cost`` and
        ``carbon_kg`` are None when a value was missing for a part of it."""
        draw_w = power_w * self._pue
        self._begin_s.append(begin_s)
        self._end_s.append(end_s)
        self._draw_w.append(draw_w)
        if end_s <= begin_s:
            return Usage(0.0, 0.0, 0.0)
        cost = self._integral(self._price, begin_s, end_s)
        carbon = self._integral(self._carbon, begin_s, end_s)
        return Usage(
            draw_w * (end_s - begin_s) / 3.6e6,
            None if cost is None else cost * draw_w * self._fx / 3.6e9,
            None if carbon is None else carbon * draw_w / 3.6e9,
        )

    def _integral(self, curve: _Curve | None, begin_s: float, end_s: float) -> float | None:
        """The signal x seconds; None where a part is unknown."""
        if curve is None:
            return None
        slot_s = self._slot_s
        begin_s -= self._from_s
        end_s -= self._from_s
        first, last = int(begin_s // slot_s), int(end_s // slot_s)
        if last >= self._slots:
            if end_s > self._slots * slot_s + _ROUNDING_S:
                return None
            last = self._slots - 1
        if first < 0 or first > last:
            return None
        if curve.unknown_s:
            unknown_s = curve.unknown_s[last] - curve.unknown_s[first]
            if curve.unknown_s[last + 1] > curve.unknown_s[last]:
                unknown_s += end_s - last * slot_s
            if curve.unknown_s[first + 1] > curve.unknown_s[first]:
                unknown_s -= begin_s - first * slot_s
            if unknown_s > _ROUNDING_S:
                return None
        if first == last:
            return curve.values[first] * (end_s - begin_s)
        # Summed from the run's own slots outward, so that a slot counts by its value alone.
        return (
            curve.integral[last]
            - curve.integral[first]
            + curve.values[last] * (end_s - last * slot_s)
            - curve.values[first] * (begin_s - first * slot_s)
        )

    @property
    def last_s(self) -> float:
        """The end of the last run booked."""
        return max(self._end_s, default=0.0)

    def load_w(self, first_s: float, hours: int) -> Floats:
        """The mean draw at the meter in each of ``hours`` hours from ``first_s`` on, W."""
        if not self._begin_s or not hours:
            return np.zeros(hours)
        times = np.concatenate([np.asarray(self._begin_s), np.asarray(self._end_s)])
        draws = np.asarray(self._draw_w)
        order = np.argsort(times, kind="stable")
        level_w = np.cumsum(np.concatenate([draws, -draws])[order])
        times = times[order]
        energy = np.concatenate([[0.0], np.cumsum(level_w[:-1] * np.diff(times))])
        edges = first_s + 3600.0 * np.arange(hours + 1)
        return np.asarray(np.maximum(np.diff(np.interp(edges, times, energy)) / 3600.0, 0.0))


def hours_of(meters: Sequence[Meter], first_s: float, end_s: float) -> int:
    """How many hours from ``first_s`` cover everything up to ``end_s`` and all that ran after it."""
    last_s = max([end_s, *(meter.last_s for meter in meters)])
    return int(-(-(last_s - first_s) // 3600.0))
