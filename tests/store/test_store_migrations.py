"""The migrated tables are the tables of the code, on both databases, and nothing else is written to."""

import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError
from sqlmodel import SQLModel

import signals.store  # noqa: F401  (registers its tables)
from dispatcher.errors import ConfigError, StoreUnavailable
from dispatcher.store.engine import database, describe, make_engine
from dispatcher.store.migrate import head, upgrade
from dispatcher.store.sql import SqlStore
from tests.store.store_samples import attempt, job


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/new folder/grid?shift%41.db".replace("?", "%3F")
    return str(request.getfixturevalue("empty_postgres_url"))


def test_migrated_tables_are_those_of_the_code(empty_url: str) -> None:
    assert upgrade(empty_url) == head()
    assert upgrade(empty_url) == head(), "again changes nothing"
    engine = make_engine(database(empty_url))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, SQLModel.metadata) == []
    engine.dispose()
    store = SqlStore(empty_url)
    assert store.add_job(job(), "submitted").result(10).seq == 1
    store.close()


def checks(connection: Connection) -> set[str]:
    if connection.dialect.name == "sqlite":
        rows = connection.execute(text("SELECT sql FROM sqlite_master WHERE type = 'table'")).scalars()
        words = " ".join(rows).replace(",", " ").split()
        return {words[at + 1] for at, word in enumerate(words) if word == "CONSTRAINT" and words[at + 2] == "CHECK"}
    ours = "contype = 'c' AND connamespace = 'public'::regnamespace"
    return set(connection.execute(text(f"SELECT conname FROM pg_constraint WHERE {ours}")).scalars())


def test_migrated_checks_are_those_of_the_code(database_url: str) -> None:
    expected = {
        str(one.name)
        for table in SQLModel.metadata.tables.values()
        for one in table.constraints
        if one.__class__.__name__ == "CheckConstraint"
    }
    engine = make_engine(database(database_url))
    with engine.connect() as connection:
        assert checks(connection) == expected and len(expected) >= 5
    engine.dispose()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE job SET state = 'sleeping' WHERE id = 'a'",
        "UPDATE job SET state = 'failed' WHERE id = 'a'",
        "UPDATE job SET seq = 4 WHERE id = 'a'",
        "UPDATE job_event SET new_state = 'sleeping'",
        "UPDATE attempt SET submission_id = 'b-1'",
        "UPDATE attempt SET job_id = 'nobody'",
        "DELETE FROM job WHERE id = 'a'",
        "INSERT INTO attempt (job_id, attempt, region, submission_id, launched_at, message, deleted_upstream) "
        "SELECT job_id, 2, region, 'x', launched_at, message, deleted_upstream FROM attempt WHERE job_id = 'a'",
    ],
)
def test_the_database_itself_keeps_the_promises(database_url: str, statement: str) -> None:
    store = SqlStore(database_url)
    for name in ("a", "b"):
        store.add_job(job(name), "submitted", attempt(name)).result(10)
    with pytest.raises(IntegrityError), store.engine.begin() as connection:
        connection.execute(text(statement))
    store.close()


def test_a_newer_database_is_refused(database_url: str) -> None:
    engine = make_engine(database(database_url))
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        connection.execute(text("INSERT INTO setting (key, value) VALUES ('k', 'v')"))
    with pytest.raises(StoreUnavailable, match=r"newer gridshift .*9999.*install that newer version"):
        upgrade(database_url)
    with pytest.raises(StoreUnavailable, match="newer gridshift"):
        SqlStore(database_url)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT value FROM setting")).scalar_one() == "v"
    engine.dispose()


def test_a_database_that_was_not_upgraded_is_named_with_the_remedy(empty_postgres_url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="run 'gridshift db upgrade'"):
        SqlStore(empty_postgres_url)
    sqlite3.connect(tmp_path / "x.db").close()
    with pytest.raises(StoreUnavailable, match="run 'gridshift db upgrade'"):
        SqlStore(f"sqlite:///{tmp_path}/x.db")


def test_no_database_is_made_by_opening_it(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="unable to open"):
        SqlStore(f"sqlite:///{tmp_path}/x.db")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(b"precious" * 1000)
    with pytest.raises(StoreUnavailable, match="not a database"):
        upgrade(f"sqlite:///{path}")
    assert path.read_bytes() == b"precious" * 1000


def test_a_failing_revision_leaves_the_database_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE job (mine TEXT)")
    connection.close()
    with pytest.raises(StoreUnavailable, match="nothing was changed"):
        upgrade(f"sqlite:///{path}")
    with sqlite3.connect(path) as connection:
        assert [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")] == ["job"]
    connection.close()


@pytest.mark.parametrize("url", ["", "sqlite://", "sqlite:///:memory:", "mysql://u:hidden@h/d", "what is this"])
def test_urls_that_cannot_be_used(url: str) -> None:
    with pytest.raises(ConfigError, match="database_url") as caught:
        database(url)
    assert "hidden" not in str(caught.value)


def test_passwords_stay_hidden() -> None:
    parsed = database("postgres://u:hidden@127.0.0.1:1/d?connect_timeout=1")
    assert parsed.drivername == "postgresql+psycopg" and "hidden" not in describe(parsed)
    with pytest.raises(StoreUnavailable) as caught:
        upgrade("postgresql://u:hidden@127.0.0.1:1/d")
    assert "hidden" not in str(caught.value) and "127.0.0.1" in str(caught.value)
