"""A year of hours brought down to what an eye takes in: the mean day, and one week that stands for the others. Pure numpy."""

from datetime import datetime, timedelta

import numpy as np

from dispatcher.backtest.results import Floats

DAY, WEEK = 24, 168


def hour_of(start: datetime) -> datetime:
    """The hour that a series of hours begins with."""
    return start.replace(minute=0, second=0, microsecond=0)


def hours_between(start: datetime, end: datetime) -> int:
    """How many hours of the clock ``[start, end)`` touches."""
    return max(1, -(-round((end - hour_of(start)).total_seconds()) // 3600))


def fitted(values: Floats, hours: int, beyond: float) -> Floats:
    """The first ``hours`` of a series, filled up with ``beyond`` where it is shorter."""
    return values[:hours] if len(values) >= hours else np.concatenate([values, np.full(hours - len(values), beyond)])


def mean_day(values: Floats, start: datetime) -> Floats:
    """Mean of the known values by hour of the day (UTC), 24 of them; NaN for an hour of which nothing is known."""
    hour = (hour_of(start).hour + np.arange(len(values))) % DAY
    known = ~np.isnan(values)
    count = np.bincount(hour[known], minlength=DAY).astype(float)
    total = np.bincount(hour[known], weights=values[known], minlength=DAY)
    day: Floats = np.divide(total, count, out=np.full(DAY, np.nan), where=count > 0)
    return day


def typical_week(load: Floats, start: datetime) -> slice:
    """The whole week (Monday to Sunday, UTC) of median energy among those in which anything ran; with no such week, as much of
    the beginning as a week holds."""
    hour = hour_of(start)
    to_monday = timedelta(days=-hour.weekday() % 7) - timedelta(hours=hour.hour)
    first = round(to_monday.total_seconds() / 3600)
    first += WEEK if first < 0 else 0
    weeks = max(0, (len(load) - first) // WEEK)
    sums = np.nansum(load[first : first + weeks * WEEK].reshape(weeks, WEEK), axis=1)
    busy = [int(week) for week in np.argsort(sums, kind="stable") if sums[week] > 0]
    if not busy:
        return slice(0, min(WEEK, len(load)))
    middle = busy[len(busy) // 2]
    return slice(first + middle * WEEK, first + (middle + 1) * WEEK)
