"""A database as an earlier revision made it, for tests of the migrations that came after."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Connection, text

from dispatcher.store.engine import database, make_engine
from dispatcher.store.migrate import _config
from tests.store.store_samples import at


def url_of(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    """Where the old database is to be: a file, or a schema of PostgreSQL, as the fixture's parameter says."""
    return f"sqlite:///{tmp_path}/old.db" if request.param == "sqlite" else str(request.getfixturevalue("empty_postgres_url"))


def put_event(connection: Connection, **more: Any) -> None:
    """Version 3 of an event of 5 kW in the region north, that is in force over the first hour; ``more`` are further columns."""
    given = {"source": "utility", "event_id": "e", "version": 3, "region": "north", "start": at(0), "end": at(60)}
    given |= {"limit_w": 5000.0, "received_at": at(0), "reason": "peak", "cancelled": False, "test": False, **more}
    columns, values = ", ".join(f'"{name}"' for name in given), ", ".join(f":{name}" for name in given)
    connection.execute(text(f"INSERT INTO grid_event ({columns}) VALUES ({values})"), given)


@contextmanager
def at_revision(url: str, revision: str) -> Iterator[Connection]:
    """A new database at ``revision``, and a connection to fill it; all is committed at the end."""
    engine = make_engine(database(url), create=True)
    with engine.execution_options(write=True).begin() as connection:
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        yield connection
    engine.dispose()
