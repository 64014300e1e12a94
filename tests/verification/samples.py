"""Series and events that the tests of verification share."""

import csv
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from dispatcher.verification.like_days import Calendar, EventWindow
from dispatcher.verification.obligations import Held, Segment, Version, in_force
from dispatcher.verification.series import Floats, MeteredSeries, from_pairs
from tests.helpers import data_dir

#: A Tuesday.
DAY = datetime(2026, 6, 23, tzinfo=UTC)
UTC_DAYS = Calendar("UTC")


def at(hour: float, day: int = 0) -> datetime:
    """That hour of the event day, ``day`` days later."""
    return DAY + timedelta(days=day, hours=hour)


def flat(watts: float, hours: float = 24.0, step_s: float = 60.0, start: datetime = DAY) -> MeteredSeries:
    return MeteredSeries(start, step_s, np.full(round(hours * 3600 / step_s), watts))


def with_part(series: MeteredSeries, start: datetime, end: datetime, watts: float) -> MeteredSeries:
    """The same with ``[start, end)`` at ``watts`` (NaN: unknown)."""
    values = series.watts.copy()
    values[round(series.offset_s(start) / series.step_s) : round(series.offset_s(end) / series.step_s)] = watts
    return MeteredSeries(series.start, series.step_s, values)


def daily(levels_w: dict[date, float], step_s: float = 3600.0) -> MeteredSeries:
    """A history with one level a day in UTC; days that are not named are unknown."""
    first, last = min(levels_w), max(levels_w)
    slots = round(86400 / step_s)
    values: list[Floats] = []
    for i in range((last - first).days + 1):
        values.append(np.full(slots, levels_w.get(first + timedelta(days=i), np.nan)))
    return MeteredSeries(datetime(first.year, first.month, first.day, tzinfo=UTC), step_s, np.concatenate(values))


def weekdays_before(count: int, day: datetime = DAY) -> list[date]:
    """The latest working days before the event day, latest first."""
    found: list[date] = []
    back = 1
    while len(found) < count:
        if (one := (day - timedelta(days=back)).date()).weekday() < 5:
            found.append(one)
        back += 1
    return found


def window(start: float = 16, end: float = 18, notice: float | None = None) -> EventWindow:
    return EventWindow(at(start if notice is None else notice), at(start), at(end))


def owed(start: float = 16, end: float = 18, limit_w: float | None = 60_000.0, **more: float) -> tuple[Held, ...]:
    return in_force([Version(DAY, (Segment(at(start), at(end), limit_w, **more),))], at(end))


def emerald(name: str) -> MeteredSeries:
    """A published minute series of GPU power around a real event; skips where it is absent."""
    path = data_dir() / "power_curves" / "emerald" / name
    if not path.is_file():
        pytest.skip(f"{path} is absent (set GRIDSHIFT_DATA to the folder that has power_curves/emerald)")
    return from_pairs([(_stamp(row["timestamp"]), float(row["total"])) for row in _rows(path)], 60.0, "GPU power, published")


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _stamp(text: str) -> datetime:
    if len(text) > 5:
        return datetime.fromisoformat(text)
    hour, minute = text.split(":")  # only the time of day is published: the day is made up
    return datetime(2025, 5, 3, int(hour), int(minute), tzinfo=UTC)
