"""Databases that are full, locked, gone or killed: nothing is half stored, everybody is told, and work goes on after."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event, make_url, text

from dispatcher.errors import StoreUnavailable
from dispatcher.store import Job
from dispatcher.store.sql import SqlStore
from tests.helpers import wait_until
from tests.store.store_samples import attempt, change, job

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def sqlite_store(sqlite_url: str) -> Iterator[SqlStore]:
    store = SqlStore(sqlite_url, wait_s=0.3)
    yield store
    store.close()


@pytest.fixture
def postgres_store(postgres_url: str) -> Iterator[SqlStore]:
    store = SqlStore(postgres_url, wait_s=1.0)
    yield store
    store.close()


def file_of(url: str) -> Path:
    return Path(str(make_url(url).database))


# --- locked ---------------------------------------------------------------------------------------------------------


def test_a_locked_database_refuses_and_recovers(sqlite_url: str, sqlite_store: SqlStore) -> None:
    sqlite_store.add_job(job("before"), "submitted").result(10)
    other = sqlite3.connect(file_of(sqlite_url), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    futures = [sqlite_store.add_job(job(f"j{n}"), "submitted") for n in range(5)]
    changes = sqlite_store.apply([change(job_id="before")])
    for future in [*futures, changes]:
        with pytest.raises(StoreUnavailable, match="locked; nothing was stored"):
            future.result(20)
    assert [one.id for one in sqlite_store.jobs_changed_since(0)[0]] == ["before"], "readers go on"
    other.execute("ROLLBACK")
    other.close()
    assert sqlite_store.add_job(job("j0"), "submitted").result(10).seq == 2


def test_a_locked_table_on_postgres(postgres_url: str, postgres_store: SqlStore) -> None:
    with postgres_store.engine.begin() as connection:
        connection.execute(text("LOCK TABLE job IN EXCLUSIVE MODE"))
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            postgres_store.add_job(job(), "submitted").result(20)
    assert postgres_store.add_job(job(), "submitted").result(10).seq == 1
    assert len(postgres_store.events("a")) == 1


# --- full -----------------------------------------------------------------------------------------------------------


def test_a_full_database_stores_nothing_by_half(sqlite_store: SqlStore) -> None:
    kept = sqlite_store.add_job(job("kept"), "submitted").result(10)
    pages = {"limit": 0}

    def limit(connection: object, _: object) -> None:
        if pages["limit"]:
            connection.execute(f"PRAGMA max_page_count={pages['limit']}")  # type: ignore[attr-defined]

    writes = sqlite_store._writer._engine
    event.listen(writes, "connect", limit)
    with sqlite_store.engine.connect() as connection:
        pages["limit"] = connection.execute(text("PRAGMA page_count")).scalar_one() + 2
    sqlite_store._writer.reconnect()
    batch = [sqlite_store.add_job(job(f"big{n}", reason="x" * 3000), "submitted", attempt(f"big{n}")) for n in range(20)]
    failed = [future for future in batch if isinstance(future.exception(20), StoreUnavailable)]
    assert failed and "full (" in str(failed[0].exception()) and "MB are free" in str(failed[0].exception())
    stored = {one.id for one in sqlite_store.jobs_changed_since(0)[0]} - {"kept"}
    assert stored == {future.result().id for future in batch if future not in failed}
    for n in range(20):
        expected = 2 if f"big{n}" in stored else 0
        assert len(sqlite_store.events(f"big{n}")) == expected and len(sqlite_store.attempts(f"big{n}")) == expected // 2
    assert sqlite_store.job("kept") == kept
    pages["limit"] = 0
    sqlite_store._writer.reconnect()
    assert sqlite_store.add_job(job("after"), "submitted").result(10).state == "queued"


@pytest.mark.real
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_disk(sqlite_template: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        path = disk / "gridshift.db"
        path.write_bytes(sqlite_template.read_bytes())
        store = SqlStore(f"sqlite:///{path}", data_dir=disk, wait_s=0.3)
        ballast = disk / "ballast"
        ballast.write_bytes(b"\0" * (os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize - 200_000))
        stored, refused = [], []
        for n in range(100):
            future = store.add_job(job(f"j{n}", reason="x" * 8000), "submitted")
            (refused if isinstance(future.exception(20), StoreUnavailable) else stored).append(f"j{n}")
        assert stored and refused
        assert {one.id for one in store.jobs_changed_since(0)[0]} == set(stored)
        ballast.unlink()
        assert store.add_job(job("after"), "submitted").result(10).id == "after"
        assert len(store.jobs_changed_since(0)[0]) == len(stored) + 1
        store.close()
        with sqlite3.connect(path) as check:
            assert check.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        check.close()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# --- gone -----------------------------------------------------------------------------------------------------------


def test_a_file_that_is_gone_is_noticed(sqlite_url: str, sqlite_store: SqlStore) -> None:
    sqlite_store.add_job(job("a"), "submitted").result(10)
    path = file_of(sqlite_url)
    moved = path.with_suffix(".moved")
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").rename(f"{moved}{suffix}")
    assert not sqlite_store.healthy()
    with pytest.raises(StoreUnavailable, match="gone"):
        sqlite_store.add_job(job("b"), "submitted").result(10)
    assert not path.exists(), "no empty database is put in its place"
    for suffix in ("", "-wal", "-shm"):
        Path(f"{moved}{suffix}").rename(f"{path}{suffix}")
    assert sqlite_store.add_job(job("b"), "submitted").result(10).seq == 2
    assert sqlite_store.healthy()


def test_a_restored_backup_is_written_to_and_not_the_lost_file(sqlite_url: str, sqlite_store: SqlStore) -> None:
    sqlite_store.add_job(job("a"), "submitted").result(10)
    path = file_of(sqlite_url)
    backup = path.with_suffix(".backup")
    with sqlite3.connect(path) as source, sqlite3.connect(backup) as copy:
        source.backup(copy)
    source.close()
    copy.close()
    sqlite_store.add_job(job("after the backup"), "submitted").result(10)
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink()
    backup.rename(path)
    assert sqlite_store.add_job(job("b"), "submitted").result(10).seq == 2
    assert [one.id for one in sqlite_store.jobs_changed_since(0)[0]] == ["a", "b"]
    with sqlite3.connect(path) as look:
        assert look.execute("SELECT id FROM job ORDER BY id").fetchall() == [("a",), ("b",)]
    look.close()


def test_sessions_that_postgres_ends_are_replaced(postgres_store: SqlStore) -> None:
    postgres_store.add_job(job("a"), "submitted").result(10)
    with postgres_store.engine.connect() as connection:
        others = "datname = current_database() AND pid <> pg_backend_pid()"
        connection.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))
    got = postgres_store.job("a")
    assert got is not None
    assert postgres_store.add_job(job("b"), "submitted").result(10).seq == 2


def test_a_session_lost_within_a_commit_that_took_place(postgres_store: SqlStore) -> None:
    """The answer to a COMMIT is lost, the commit is not: the caller is told the truth."""
    engine = postgres_store._writer._engine
    lost = []

    def lose(connection: object) -> None:
        if lost:
            return
        lost.append(1)
        raw = connection.connection.dbapi_connection  # type: ignore[attr-defined]
        raw.commit()
        raw.close()

    event.listen(engine, "commit", lose)
    stored = postgres_store.add_job(job("a"), "submitted").result(20)
    assert lost and stored.seq == 1 and postgres_store.job("a") == stored


def test_a_session_lost_before_its_commit(postgres_store: SqlStore) -> None:
    engine = postgres_store._writer._engine
    lost = []

    def lose(connection: object) -> None:
        if not lost:
            lost.append(1)
            connection.connection.dbapi_connection.close()  # type: ignore[attr-defined]

    event.listen(engine, "commit", lose)
    with pytest.raises(StoreUnavailable, match="nothing was stored"):
        postgres_store.add_job(job("a"), "submitted").result(20)
    assert postgres_store.job("a") is None
    assert postgres_store.add_job(job("a"), "submitted").result(10).seq == 1


# --- one bad item ---------------------------------------------------------------------------------------------------


def test_what_a_database_refuses_fails_alone(database_url: str) -> None:
    """A value that passes every check of ours and not the database's own (here: an impossible number)."""
    store = SqlStore(database_url)
    hold = threading.Event()
    holding = threading.Event()

    def block(connection: object) -> None:
        holding.set()
        assert hold.wait(10)

    blocked = store._call(block)
    assert holding.wait(10)
    # All of these wait in line meanwhile, and so share one transaction.
    good = [store.add_job(job(f"g{n}"), "submitted") for n in range(5)]
    bad = store.add_job(job("bad", exit_code=2**70), "submitted")
    changes = store.apply([change(job_id="g0"), change(job_id="g1", fields={"exit_code": 2**70}), change(job_id="g2")])
    more = [store.add_job(job(f"h{n}"), "submitted") for n in range(5)]
    hold.set()
    blocked.result(10)
    assert [future.result(10).id for future in good + more] == [f"g{n}" for n in range(5)] + [f"h{n}" for n in range(5)]
    with pytest.raises(Exception, match="cannot hold it"):
        bad.result(10)
    results = changes.result(10)
    assert [isinstance(one, Job) for one in results] == [True, False, True]
    assert store.job("bad") is None and len(store.events("g1")) == 1 and len(store.events("g0")) == 2
    store.close()


def test_whoever_stopped_waiting_has_nothing_written(sqlite_store: SqlStore) -> None:
    hold, holding = threading.Event(), threading.Event()

    def block(connection: object) -> None:
        holding.set()
        assert hold.wait(10)

    sqlite_store._call(block)
    assert holding.wait(10)
    future = sqlite_store.add_job(job("a"), "submitted")
    assert future.cancel()
    hold.set()
    sqlite_store.add_job(job("b"), "submitted").result(10)
    assert sqlite_store.job("a") is None


def test_readers_are_not_blocked_by_the_writer(sqlite_store: SqlStore) -> None:
    sqlite_store.add_job(job("a"), "submitted").result(10)
    hold, holding = threading.Event(), threading.Event()

    def block(connection: object) -> None:
        holding.set()
        assert hold.wait(10)

    blocked = sqlite_store._call(block)
    assert holding.wait(10)
    assert len(sqlite_store.jobs_changed_since(0)[0]) == 1 and sqlite_store.healthy()
    assert not blocked.done()
    hold.set()
    blocked.result(10)


# --- killed ---------------------------------------------------------------------------------------------------------

_VICTIM = """
import sys, threading
from dispatcher.store.sql import SqlStore
from tests.store.store_samples import attempt, job
store = SqlStore(sys.argv[1])
lock = threading.Lock()
def submit(caller):
    for n in range(100000):
        name = f"{sys.argv[2]}-{caller}-{n}"
        store.add_job(job(name, n), "submitted", attempt(name)).result()
        with lock:
            sys.stdout.write(name + "\\n")
            sys.stdout.flush()
for caller in range(8):
    threading.Thread(target=submit, args=(caller,), daemon=True).start()
threading.Event().wait()
"""


@pytest.mark.real
def test_what_was_answered_outlives_kill_9(database_url: str, tmp_path: Path) -> None:
    told: list[str] = []
    for round_, seconds in enumerate((0.05, 0.21, 0.43)):
        out = tmp_path / f"out{round_}"
        with out.open("wb") as sink:
            victim = subprocess.Popen([sys.executable, "-c", _VICTIM, database_url, f"r{round_}"], stdout=sink, cwd=REPOSITORY)
        try:
            wait_until(lambda out=out: out.stat().st_size > 0, 60, "the first answered submission")
            time.sleep(seconds)  # not for luck: any moment will do, and these differ
        finally:
            victim.send_signal(signal.SIGKILL)
            victim.wait(10)
        # The last line may be cut off by the kill.
        told += out.read_text().rpartition("\n")[0].split("\n")
        store = SqlStore(database_url)
        jobs, highest = store.jobs_changed_since(0)
        stored = {one.id: one for one in jobs}
        assert set(told) <= set(stored) and len(told) > 8
        for one in jobs:
            assert [e.new_state for e in store.events(one.id)] == ["queued", "launching"] and len(store.attempts(one.id)) == 1
        assert highest == 2 * len(jobs)
        store.close()
