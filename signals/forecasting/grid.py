"""A series on a regular UTC grid, and its hours on the wall clock of a time zone.

People and markets keep local time, so the model works on wall-clock hours, 24 a day: the hour that a clock change repeats is
averaged, the one it skips is unknown and then filled like any gap.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from signals.points import SignalError, require_utc

Floats = NDArray[np.float64]
HOUR_S = 3600
STEPS_S = (300, 900, 1800, 3600)
#: A gap up to this long is filled with the last value; a longer one with the same hours of the day before.
HOLD_HOURS = 6
_EPOCH = datetime(1970, 1, 5)  # noqa: DTZ001 - wall-clock hours are counted from a Monday, in no zone


@dataclass(frozen=True)
class History:
    """``values[i]`` covers ``[start + i*step_s, start + (i+1)*step_s)``; NaN is unknown, never zero.

    ``start`` is aware UTC on a whole hour; ``step_s`` is one of 300, 900, 1800, 3600. Raises SignalError otherwise, and for
    an infinite value.
    """

    start: datetime
    step_s: int
    values: Floats

    def __post_init__(self) -> None:
        start = require_utc("start", self.start)
        if (start.minute, start.second, start.microsecond) != (0, 0, 0):
            raise SignalError(f"start: {start.isoformat()}; need a whole hour")
        if self.step_s not in STEPS_S:
            raise SignalError(f"step_s: {self.step_s}; need one of {', '.join(map(str, STEPS_S))}")
        values = np.array(self.values, dtype=np.float64)  # a copy: what the caller changes later does not reach us
        if values.ndim != 1 or np.isinf(values).any():
            raise SignalError(f"values: shape {values.shape}; need one finite number or NaN a step")
        values.setflags(write=False)
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "values", values)

    @cached_property
    def hourly(self) -> Floats:
        """Means of whole hours; NaN where less than half of the hour is known."""
        per_hour = HOUR_S // self.step_s
        if per_hour == 1:
            return self.values
        padded = np.full(-(-len(self.values) // per_hour) * per_hour, np.nan)
        padded[: len(self.values)] = self.values
        parts = padded.reshape(-1, per_hour)
        known = np.isfinite(parts).sum(axis=1)
        sums = np.where(np.isfinite(parts), parts, 0.0).sum(axis=1)
        return np.where(2 * known >= per_hour, sums / np.maximum(known, 1), np.nan)

    def before(self, when: datetime) -> "History":
        """What covers time before ``when`` only; a step that ends after it is dropped."""
        steps = int((require_utc("origin", when) - self.start).total_seconds() // self.step_s)
        return History(self.start, self.step_s, self.values[: max(steps, 0)])


def wall_hours(start: datetime, hours: int, zone: ZoneInfo) -> NDArray[np.int64]:
    """For each of ``hours`` UTC hours from ``start``, the wall-clock hour it begins in, counted from a Monday's midnight.

    Twice the same number where clocks go back, one left out where they go forward.
    """
    out = np.empty(hours, dtype=np.int64)
    index = 0
    while index < hours:
        # offsets change at most a few times a year: ask once a day, and each hour only on a day when it changed
        first, last = (_wall(start + timedelta(hours=index + ahead), zone) for ahead in (0, 23))
        span = min(24, hours - index)
        if last - first == 23:
            out[index : index + span] = first + np.arange(span)
        else:
            out[index : index + span] = [_wall(start + timedelta(hours=index + ahead), zone) for ahead in range(span)]
        index += span
    return out


def _wall(when: datetime, zone: ZoneInfo) -> int:
    local = when.astimezone(zone).replace(tzinfo=None)
    return int((local - _EPOCH).total_seconds() // HOUR_S)


def on_wall_clock(history: History, zone: ZoneInfo) -> tuple[int, Floats]:
    """The first wall-clock hour of ``history`` and its hourly values from there on, NaN where unknown."""
    hourly = history.hourly
    if not len(hourly):
        return _wall(history.start, zone), np.empty(0)
    walls = wall_hours(history.start, len(hourly), zone)
    first, count = int(walls[0]), int(walls.max() - walls[0]) + 1
    known = np.isfinite(hourly)
    sums = np.bincount(walls[known] - first, weights=hourly[known], minlength=count)
    counts = np.bincount(walls[known] - first, minlength=count)
    return first, np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def filled(values: Floats) -> Floats:
    """Gaps filled so that every hour has a number: held, when long repeated from the day before; leading ones from behind."""
    out = values.copy()
    unknown = np.isnan(out)
    if not unknown.any() or unknown.all():
        return out
    first = int(np.argmin(unknown))
    out[:first] = out[first]
    edges = np.flatnonzero(np.diff(np.concatenate(([False], unknown[first:], [False])).astype(np.int8)))
    for left, right in zip(edges[::2] + first, edges[1::2] + first, strict=True):
        for index in range(left, right):
            far = right - left > HOLD_HOURS and index >= 24
            out[index] = out[index - 24] if far else out[index - 1]
    return out
