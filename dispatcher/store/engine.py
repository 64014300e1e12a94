"""Opens SQLite and PostgreSQL the one way the store needs them. Knows no tables.

SQLite: write-ahead log (readers are never blocked by the writer), a sync to disk at each commit, foreign keys, and BEGIN
IMMEDIATE where a connection says it will write. PostgreSQL: UTC, a limit on waiting for locks, dead connections noticed.
"""

import json
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import QueuePool

from dispatcher.errors import ConfigError

from .codec import to_json


def database(url: str) -> URL:
    """The parsed URL. Raises ConfigError (without the URL, which may hold a password) for what is not supported."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ConfigError("server.database_url: this is not a database URL; give sqlite:///FILE or postgresql://...") from None
    kind = parsed.get_backend_name()
    if kind == "postgres" or parsed.drivername == "postgresql":
        parsed, kind = parsed.set(drivername="postgresql+psycopg"), "postgresql"
    if kind not in ("sqlite", "postgresql"):
        raise ConfigError(f"server.database_url: {kind!r} is not supported; use sqlite:///FILE or postgresql://...")
    if kind == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ConfigError("server.database_url: SQLite in memory forgets everything; name a file, as in sqlite:///FILE")
    return parsed


def sqlite_path(url: URL) -> Path | None:
    """The file of a SQLite database; None for PostgreSQL."""
    return Path(str(url.database)).absolute() if url.get_backend_name() == "sqlite" else None


def describe(url: URL) -> str:
    """The database in words, without any password."""
    return str(sqlite_path(url) or url.set(query={}).render_as_string(hide_password=True))


def make_engine(url: URL, *, create: bool = False, wait_s: float = 5.0, pool_size: int = 8) -> Engine:
    """An engine. ``create`` allows making a SQLite file that does not exist; ``wait_s`` is how long to wait for a lock.

    Connections with the execution option ``write=True`` take SQLite's write lock when their transaction begins.
    """
    options: dict[str, Any] = {
        "json_serializer": to_json,
        "json_deserializer": json.loads,
        "pool_size": pool_size,
        "max_overflow": 3 * pool_size if pool_size > 1 else 0,
        "pool_timeout": wait_s + 5,
    }
    path = sqlite_path(url)
    if path is None:
        keep_alive = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 20_000}
        engine = create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": 5, **keep_alive}, **options)
        event.listen(engine, "connect", lambda connection, _: _set_up_postgres(connection, wait_s))
        return engine
    address = f"file:{quote(str(path))}?mode={'rwc' if create else 'rw'}"
    engine = create_engine(
        "sqlite://",
        poolclass=QueuePool,
        creator=lambda: sqlite3.connect(address, uri=True, timeout=wait_s, check_same_thread=False, isolation_level=None),
        **options,
    )
    event.listen(engine, "connect", lambda connection, _: _set_up_sqlite(connection))
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute("PRAGMA journal_size_limit=67108864")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # The driver would begin only before the first write: reads would not see one state, and a write could find, too late
    # to wait for it, that another had come between.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("write") else "BEGIN")


def _set_up_postgres(connection: Any, wait_s: float) -> None:
    cursor = connection.cursor()
    cursor.execute("SET TIME ZONE 'UTC'")
    cursor.execute(f"SET lock_timeout = {int(wait_s * 1000)}")
    cursor.execute("SET synchronous_commit = on")
    cursor.close()
    connection.commit()
