"""Fixtures that many tests share: stores of each kind, each empty and of its own."""

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import create_engine, make_url, text

from dispatcher.store import Store
from dispatcher.store.memory import MemoryStore
from dispatcher.store.migrate import upgrade
from dispatcher.store.sql import SqlStore

# How fast examples come says more of the machine's load than of the code.
settings.register_profile("gridshift", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gridshift")


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An upgraded, empty SQLite file; copying it is faster than making one."""
    path = tmp_path_factory.mktemp("template") / "empty.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """An empty SQLite database."""
    path = tmp_path / "gridshift.db"
    shutil.copy(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def postgres_server() -> str:
    """The server of GRIDSHIFT_TEST_POSTGRES (see tests/postgres.sh); skips, saying so, where there is none."""
    url = os.environ.get("GRIDSHIFT_TEST_POSTGRES", "")
    if not url:
        if os.environ.get("GRIDSHIFT_REQUIRE_POSTGRES"):
            pytest.fail("GRIDSHIFT_REQUIRE_POSTGRES is set, but GRIDSHIFT_TEST_POSTGRES names no server")
        pytest.skip("no PostgreSQL: set GRIDSHIFT_TEST_POSTGRES (tests/postgres.sh start DIR prints it)")
    return url


def _database(server: str, template: str) -> Iterator[str]:
    name = f"gs_{uuid.uuid4().hex[:12]}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.execute(text(f'CREATE DATABASE {name} TEMPLATE "{template}"'))
        yield make_url(server).set(database=name).render_as_string(hide_password=False)
        with engine.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    finally:
        engine.dispose()


@pytest.fixture(scope="session")
def postgres_template(postgres_server: str) -> Iterator[str]:
    """The name of an upgraded, empty database to copy."""
    for url in _database(postgres_server, "template1"):
        upgrade(url)
        yield str(make_url(url).database)


@pytest.fixture
def empty_postgres_url(postgres_server: str) -> Iterator[str]:
    """A PostgreSQL database without any table."""
    yield from _database(postgres_server, "template1")


@pytest.fixture
def postgres_url(postgres_server: str, postgres_template: str) -> Iterator[str]:
    """An empty, upgraded PostgreSQL database."""
    yield from _database(postgres_server, postgres_template)


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """An empty, upgraded database of each kind."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """An empty store of each kind."""
    make: Callable[[], Store] = MemoryStore
    if request.param != "memory":
        url = str(request.getfixturevalue(f"{request.param}_url"))
        make = lambda: SqlStore(url)  # noqa: E731
    one = make()
    yield one
    one.close()
