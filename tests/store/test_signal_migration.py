"""Signals of the first release come through the upgrade: every revision, every time, every reading."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import bindparam, text

from dispatcher.store.engine import database, make_engine
from dispatcher.store.migrate import upgrade
from signals.memory_store import MemorySignalStore
from signals.points import Kind, Quality, SignalPoint
from signals.store import SignalStore, UTCDateTime
from tests.signals.samples import DAY, HOUR, T0, at, point
from tests.store.old_database import at_revision, url_of


@pytest.fixture(params=["sqlite", "postgres"])
def old_url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    """A database at revision 0001."""
    url = url_of(request, tmp_path)
    with at_revision(url, "0001"):
        pass
    return url


def history() -> list[SignalPoint]:
    us = timedelta(microseconds=1)
    forecasts = [
        point(n, float(10 * issue + n), issued_at=at(issue), retrieved_at=at(issue) + us, quality=Quality.FORECAST)
        for issue in range(4)
        for n in range(6)
    ]
    return [
        *forecasts,
        point(0, 1.5, retrieved_at=at(3)),
        point(0, 2.5, retrieved_at=at(4) + 999_999 * us, quality=Quality.ESTIMATED),
        point(0, 3.5, retrieved_at=at(4) + 999_999 * us),
        point(1, -4.0, retrieved_at=at(5), unit="GBP/MWh"),
        point(1, 0.0, retrieved_at=at(2), region="q", kind=Kind.CARBON_AVERAGE, variant="v"),
        point(-700, 5.0, length_h=710, source="long"),
    ]


def test_signals_survive_the_upgrade(old_url: str) -> None:
    memory = MemorySignalStore()
    points = sorted(history(), key=lambda p: p.retrieved_at)
    assert memory.append(points) == len(points)
    engine = make_engine(database(old_url))
    kept = UTCDateTime()
    columns = ("source", "region", "kind", "variant", "unit", "start", "end", "issued_at", "retrieved_at", "value", "quality")
    with engine.execution_options(write=True).begin() as connection:
        names = ", ".join(f'"{name}"' for name in columns)
        statement = text(f"INSERT INTO signal_point ({names}) VALUES ({', '.join(':' + name for name in columns)})")
        bound = statement.bindparams(*(_time(name, kept) for name in ("start", "end", "issued_at", "retrieved_at")))
        connection.execute(bound, [{name: _value(p, name) for name in columns} for p in points])
    engine.dispose()
    upgrade(old_url)
    engine = make_engine(database(old_url))
    store = SignalStore(engine)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM signal_point")).scalar_one() == len(points)
    for region, kind in (("r", Kind.PRICE), ("q", Kind.CARBON_AVERAGE)):
        for hour in range(-1, 8):
            window = (region, kind, T0 + HOUR, T0 + DAY, at(hour))
            assert store.read(*window) == memory.read(*window)
            everything = (region, kind, T0 - 60 * DAY, T0 + DAY, at(hour))
            assert store.read(*everything) == memory.read(*everything)
        assert store.latest_retrieved(region, kind) == memory.latest_retrieved(region, kind)
    again = [*points[::3], point(0, 9.0, retrieved_at=at(7)), point(2, 9.0, retrieved_at=at(7))]
    assert store.append(again) == memory.append(again) == 2
    assert store.read("r", Kind.PRICE, T0, T0 + DAY, at(9)) == memory.read("r", Kind.PRICE, T0, T0 + DAY, at(9))
    engine.dispose()


def test_a_database_without_signals_is_upgraded_too(old_url: str) -> None:
    upgrade(old_url)
    engine = make_engine(database(old_url))
    assert SignalStore(engine).append([point(0, 1.0)]) == 1
    engine.dispose()


def _time(name: str, kept: UTCDateTime) -> Any:
    return bindparam(name, type_=kept)


def _value(p: SignalPoint, name: str) -> Any:
    value = getattr(p, name)
    return str(value) if name in ("kind", "quality") else value
