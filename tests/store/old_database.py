"""A database as an earlier revision made it, for tests of the migrations that came after."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Connection

from dispatcher.store.engine import database, make_engine
from dispatcher.store.migrate import _config


def url_of(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    """Where the old database is to be: a file, or a schema of PostgreSQL, as the fixture's parameter says."""
    return f"sqlite:///{tmp_path}/old.db" if request.param == "sqlite" else str(request.getfixturevalue("empty_postgres_url"))


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
