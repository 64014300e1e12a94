"""Three days of live use across a change of the clocks, under virtual time: no lost or doubled hour, no invented number.

The provider speaks HTTP on loopback and publishes the next local day, of 23, 24 or 25 hours, at 13:00 local time.
"""

import json
import math
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import requests

from dispatcher.clock import VirtualClock
from dispatcher.config import Config
from dispatcher.signal_book import SignalBook
from signals.manners import Manners
from signals.memory_store import MemorySignalStore
from signals.points import Kind, Quality
from tests.signals.provider import Asked, Provider, Reply, direct_session, provider

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
#: The hour of the middle day that the source has no value for, counted from local midnight.
HOLE = 9


class DayAhead:
    """Prices of a zone by its local days, in the form of Energy-Charts; each hour has a value of its own."""

    def __init__(self, zone: str, middle: date, clock: VirtualClock) -> None:
        self.zone, self.middle, self.clock = ZoneInfo(zone), middle, clock

    def midnight(self, day: date) -> datetime:
        return datetime.combine(day, time(), self.zone).astimezone(UTC)

    def hours(self, day: date) -> list[datetime]:
        start, end = self.midnight(day), self.midnight(day + DAY)
        return [start + n * HOUR for n in range(int((end - start) / HOUR))]

    def price(self, hour: datetime) -> float:
        n = int(hour.timestamp() // 3600)
        return round(50 + 30 * math.sin(n / 24 * 2 * math.pi) + (n * 7919 % 1000) / 100, 2)

    def published(self, now: datetime) -> dict[datetime, float | None]:
        local = now.astimezone(self.zone)
        last = local.date() + (DAY if local.hour >= 13 else timedelta())
        days = [self.middle + n * DAY for n in range(-9, 4)]
        hours = [hour for day in days if day <= last for hour in self.hours(day)]
        hole = self.hours(self.middle)[HOLE]
        return {hour: None if hour == hole else self.price(hour) for hour in hours}

    def play(self, asked: Asked) -> Reply:
        start, end = (datetime.fromisoformat(asked.params[key]) for key in ("start", "end"))
        rows = {h: v for h, v in self.published(self.clock.now()).items() if start <= h < end}
        body = {"unix_seconds": [int(h.timestamp()) for h in rows], "price": list(rows.values()), "unit": "EUR / MWh"}
        return Reply(200, json.dumps(body | {"deprecated": False}).encode())


@pytest.fixture
def host() -> Iterator[Provider]:
    with provider() as one:
        yield one


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with direct_session() as session:
        yield session


@pytest.mark.parametrize(
    ("zone", "middle", "length"),
    [
        ("Europe/Berlin", date(2026, 3, 29), 23),
        ("Europe/Berlin", date(2026, 10, 25), 25),
        ("America/New_York", date(2026, 3, 8), 23),
        ("America/New_York", date(2026, 11, 1), 25),
        ("Australia/Sydney", date(2026, 10, 4), 23),
        ("Australia/Sydney", date(2026, 4, 5), 25),
    ],
)
def test_three_days_across_a_change(host: Provider, session: requests.Session, zone: str, middle: date, length: int) -> None:
    start = datetime.combine(middle - DAY, time(), ZoneInfo(zone)).astimezone(UTC)
    clock = VirtualClock(start)
    market = DayAhead(zone, middle, clock)
    assert len(market.hours(middle)) == length
    host.plays["/price"] = market.play
    entry: dict[str, Any] = {"feed": "energy_charts", "bzn": "DE-LU", "base_url": host.url}
    config = Config.model_validate({"region": [{"name": "r", "address": "http://r", "price": [entry]}]})
    store = MemorySignalStore()
    manners = Manners(monotonic=lambda: clock.now().timestamp(), wall=clock.now)
    book = SignalBook(config, store, manners=manners, session=session)
    hole = market.hours(middle)[HOLE]
    end = market.midnight(middle + 2 * DAY)
    while clock.now() < end:
        now = clock.now()
        book.refresh(now)
        series = book.series("r", "price")
        assert series is not None
        known = market.published(now)
        for index, value in enumerate(series.values):
            slot = series.start + timedelta(minutes=15 * index)
            hour = slot.replace(minute=0)
            if series.basis[index] == "published":
                assert value == known[hour], (now, slot)
            elif series.basis[index] == "repeat-day":
                assert value in {known.get(hour - n * DAY) for n in range(1, 8)}  # an earlier day's, as it was
            else:
                assert value is None
        if now - HOUR > start:
            assert series.basis[0] == "published" or hole <= now < hole + HOUR
        clock.advance(1800)

    points = store.read("r", Kind.PRICE, market.midnight(middle - DAY), end, clock.now())
    published = {h: v for h, v in market.published(end).items() if market.midnight(middle - DAY) <= h < end}
    assert {p.start: p.value for p in points} == {h: v for h, v in published.items() if v is not None}
    assert len(points) == len(published) - 1 == 24 + length + 24 - 1
    assert all(p.end - p.start == HOUR and p.quality is not Quality.SUSPECT for p in points)
    gaps = store.read_gaps("r", Kind.PRICE, market.midnight(middle - DAY), end, clock.now())
    assert (hole, hole + HOUR) in {(g.start, g.end) for g in gaps}
    assert not {(p.start, p.end) for p in points} & {(hole, hole + HOUR)}
    assert len(host.asked) <= 3 * 48 + 2 and {asked.path for asked in host.asked} == {"/price"}
