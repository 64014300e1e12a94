"""INSERT and UPDATE of many rows in the driver's own words: what the toolkit does for each row costs more than the database.

It knows tables and how one database wants its values, and nothing of what the rows mean.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from sqlalchemy import Column, Connection, Dialect, Table

from signals.points import require_utc
from signals.rows import UTCDateTime

Row = tuple[Any, ...]


#: Rows of one INSERT at most, a power of two.
_TOGETHER = 64


class Bulk:
    """A statement with one value a column, in the order of ``columns``: an INSERT, or, given ``keys``, an UPDATE of the rows
    that these columns name (their values follow the others)."""

    def __init__(self, dialect: Dialect, table: Table, columns: Sequence[str], keys: Sequence[str] = ()) -> None:
        mark, quote = mark_of(dialect), dialect.identifier_preparer.quote
        name, quoted = quote(table.name), [quote(column) for column in columns]
        if keys:
            where = " AND ".join(f"{quote(key)} = {mark}" for key in keys)
            self.text = f"UPDATE {name} SET {', '.join(f'{column} = {mark}' for column in quoted)} WHERE {where}"
        else:
            self._values = f"({', '.join([mark] * len(quoted))})"
            self.text = f"INSERT INTO {name} ({', '.join(quoted)}) VALUES {self._values}"
        # SQLite's driver lets other threads run at each statement, and must then wait for its turn again: one for many rows.
        self._together = not keys and dialect.name == "sqlite"
        binders = [_binder(dialect, table.c[column]) for column in [*columns, *keys]]
        self._binders = [(at, bind) for at, bind in enumerate(binders) if bind is not None]

    def row(self, values: list[Any]) -> Row:
        """The values, one a column, as the driver takes them. Changes the list."""
        for at, bind in self._binders:
            # A missing value is NULL everywhere, and most columns of a new job are.
            if values[at] is not None:
                values[at] = bind(values[at])
        return tuple(values)

    def run(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Execute it for every row."""
        if not self._together:
            if rows:
                connection.exec_driver_sql(self.text, list(rows))
            return
        at = 0
        while at < len(rows):
            size = min(_TOGETHER, 1 << ((len(rows) - at).bit_length() - 1))  # few sizes, so that few statements are prepared
            text = self.text + f", {self._values}" * (size - 1)
            connection.exec_driver_sql(text, tuple(chain.from_iterable(rows[at : at + size])))
            at += size


def _binder(dialect: Dialect, column: Column[Any]) -> Any:
    if dialect.name == "sqlite" and isinstance(column.type, UTCDateTime):
        return _sqlite_time
    return column.type.dialect_impl(dialect).bind_processor(dialect)


def _sqlite_time(value: datetime) -> str:
    """The text that UTCDateTime stores, without its three detours."""
    if value.tzinfo is not UTC:
        value = require_utc("datetime", value)
    return value.isoformat(" ", "microseconds")[:26]


def mark_of(dialect: Dialect) -> str:
    """The place of a value in the driver's SQL."""
    return "?" if dialect.paramstyle == "qmark" else "%s"


def held_among(connection: Connection, column: Column[Any], values: Sequence[str]) -> set[str]:
    """Which of some texts a column holds. The list is filled up to a power of two, so that few statements are prepared."""
    if not values:
        return set()
    size = 1 << (len(values) - 1).bit_length()
    marks = ", ".join([mark_of(connection.dialect)] * size)
    query = f"SELECT {column.name} FROM {column.table.name} WHERE {column.name} IN ({marks})"
    found = connection.exec_driver_sql(query, (*values, *[values[-1]] * (size - len(values))))
    return set(found.scalars())
