"""Readings of meters in the database, each moment or interval of a meter once. It does not know what they mean."""

from bisect import insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import Engine, delete, insert, select
from sqlalchemy.exc import SQLAlchemyError

from dispatcher.errors import StoreUnavailable
from dispatcher.power.meter_values import MeterReading
from dispatcher.store.tables import METER_READING

_FIELDS = ("region", "meter", "start", "value", "unit", "received_at", "end", "branch", "quality")
_BATCH = 500


class MeterReadings(Protocol):
    """What both stores of readings do. Reads and writes raise StoreUnavailable when the database does not answer."""

    def add(self, readings: Sequence[MeterReading]) -> int:
        """Keep those whose start is new for their meter, durably when this returns; how many those were. Whoever adds to one
        meter does so from one thread at a time."""
        ...

    def at(self, region: str, meter: str, starts: Sequence[datetime]) -> dict[datetime, MeterReading]:
        """The readings held for these starts."""
        ...

    def between(self, region: str, meter: str, start: datetime, end: datetime) -> list[MeterReading]:
        """Readings that begin in ``[start, end)``, by start."""
        ...

    def latest(self, region: str, meter: str, count: int) -> list[MeterReading]:
        """The ``count`` latest, by start."""
        ...

    def forget(self, before: datetime) -> int:
        """Delete readings that begin before ``before``; how many."""
        ...


class MeterStore:
    """On the control plane's database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, readings: Sequence[MeterReading]) -> int:
        """See MeterReadings."""
        wanted: dict[tuple[str, str, datetime], MeterReading] = {}
        for reading in readings:
            wanted.setdefault((reading.region, reading.meter, reading.start), reading)
        try:
            with self._engine.connect().execution_options(write=True) as connection, connection.begin():
                by_meter: dict[tuple[str, str], list[datetime]] = defaultdict(list)
                for region, meter, start in wanted:
                    by_meter[region, meter].append(start)
                for (region, meter), starts in by_meter.items():
                    for held in self._starts(connection, region, meter, starts):
                        del wanted[region, meter, held]
                rows = [{name: getattr(reading, name) for name in _FIELDS} for reading in wanted.values()]
                for i in range(0, len(rows), _BATCH):
                    connection.execute(insert(METER_READING), rows[i : i + _BATCH])
        except SQLAlchemyError as error:
            raise StoreUnavailable(f"readings of meters were not stored: {type(error).__name__}") from error
        return len(wanted)

    @staticmethod
    def _starts(connection: Any, region: str, meter: str, starts: Sequence[datetime]) -> list[datetime]:
        table, found = METER_READING.c, []
        for i in range(0, len(starts), _BATCH):
            chosen = table.start.in_(starts[i : i + _BATCH])
            query = select(table.start).where(table.region == region, table.meter == meter, chosen)
            found += connection.scalars(query).all()
        return found

    def at(self, region: str, meter: str, starts: Sequence[datetime]) -> dict[datetime, MeterReading]:
        """See MeterReadings."""
        table, found = METER_READING.c, []
        for i in range(0, len(starts), _BATCH):
            query = select(METER_READING).where(table.region == region, table.meter == meter)
            found += self._read(query.where(table.start.in_(starts[i : i + _BATCH])))
        return {reading.start: reading for reading in found}

    def between(self, region: str, meter: str, start: datetime, end: datetime) -> list[MeterReading]:
        """See MeterReadings."""
        table = METER_READING.c
        query = select(METER_READING).where(table.region == region, table.meter == meter)
        return self._read(query.where(table.start >= start, table.start < end).order_by(table.start))

    def latest(self, region: str, meter: str, count: int) -> list[MeterReading]:
        """See MeterReadings."""
        table = METER_READING.c
        query = select(METER_READING).where(table.region == region, table.meter == meter)
        return self._read(query.order_by(table.start.desc()).limit(count))[::-1]

    def forget(self, before: datetime) -> int:
        """See MeterReadings."""
        try:
            with self._engine.connect().execution_options(write=True) as connection, connection.begin():
                return connection.execute(delete(METER_READING).where(METER_READING.c.start < before)).rowcount
        except SQLAlchemyError as error:
            raise StoreUnavailable(f"old readings of meters were not deleted: {type(error).__name__}") from error

    def _read(self, query: Any) -> list[MeterReading]:
        try:
            with self._engine.connect() as connection:
                return [_reading(row) for row in connection.execute(query).mappings()]
        except SQLAlchemyError as error:
            raise StoreUnavailable(f"readings of meters cannot be read: {type(error).__name__}") from error


def _reading(row: Mapping[Any, Any]) -> MeterReading:
    return MeterReading(**{name: row[name] for name in _FIELDS})


class MemoryMeterStore:
    """The same in memory, for simulation."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], list[MeterReading]] = defaultdict(list)

    def add(self, readings: Sequence[MeterReading]) -> int:
        """See MeterReadings."""
        new = 0
        for reading in readings:
            held = self._held[reading.region, reading.meter]
            if all(one.start != reading.start for one in held):
                insort(held, reading, key=lambda one: one.start)
                new += 1
        return new

    def at(self, region: str, meter: str, starts: Sequence[datetime]) -> dict[datetime, MeterReading]:
        """See MeterReadings."""
        wanted = set(starts)
        return {one.start: one for one in self._held[region, meter] if one.start in wanted}

    def between(self, region: str, meter: str, start: datetime, end: datetime) -> list[MeterReading]:
        """See MeterReadings."""
        return [one for one in self._held[region, meter] if start <= one.start < end]

    def latest(self, region: str, meter: str, count: int) -> list[MeterReading]:
        """See MeterReadings."""
        return self._held[region, meter][-count:] if count else []

    def forget(self, before: datetime) -> int:
        """See MeterReadings."""
        gone = 0
        for key, held in self._held.items():
            kept = [one for one in held if one.start >= before]
            gone += len(held) - len(kept)
            self._held[key] = kept
        return gone
