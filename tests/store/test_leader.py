"""One control plane a database, whatever becomes of the processes."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from dispatcher.errors import NotTheLeader, StoreUnavailable
from dispatcher.leader import Leadership
from dispatcher.store.engine import database
from tests.helpers import wait_until

REPOSITORY = Path(__file__).parents[2]
_LEADER = """
import sys, threading
from pathlib import Path
from dispatcher.leader import Leadership
with Leadership(sys.argv[1], Path(sys.argv[2])):
    print("leads", flush=True)
    threading.Event().wait()
"""


def test_one_leads(database_url: str, tmp_path: Path) -> None:
    # Data folders differ, as on two machines: the database decides.
    first, second = Leadership(database_url, tmp_path / "1"), Leadership(database_url, tmp_path / "2")
    assert not first.still_held()
    first.acquire()
    assert first.still_held()
    with pytest.raises(NotTheLeader, match=rf"{os.getpid()} on .*is the control plane of .*stop that one first"):
        second.acquire()
    assert first.still_held() and not second.still_held()
    first.release()
    assert not first.still_held()
    with second:
        assert second.still_held()
        with pytest.raises(NotTheLeader):
            first.acquire()
    with first:
        assert first.still_held()


def test_a_data_folder_has_one_leader_too(postgres_url: str, empty_postgres_url: str, tmp_path: Path) -> None:
    with Leadership(postgres_url, tmp_path), pytest.raises(NotTheLeader, match="data_dir of its own"):
        Leadership(empty_postgres_url, tmp_path).acquire()


@pytest.mark.real
def test_a_killed_leader_lets_go(database_url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _LEADER, database_url, str(tmp_path / "1")]
    leader = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY)
    try:
        assert leader.stdout is not None and leader.stdout.readline() == b"leads\n"
        mine = Leadership(database_url, tmp_path / "2")
        with pytest.raises(NotTheLeader, match=str(leader.pid)):
            mine.acquire()
    finally:
        leader.send_signal(signal.SIGKILL)
        leader.wait(10)
        leader.stdout.close()

    def acquired() -> bool:
        try:
            mine.acquire()
        except NotTheLeader:
            return False
        return True

    wait_until(acquired, 10, "the dead leader's lock")
    mine.release()


_LEADER_WITH_WORKER = """
import multiprocessing, os, sys, threading
from pathlib import Path
from dispatcher.leader import Leadership
def work():
    print("works", flush=True)
    os.read(int(sys.argv[3]), 1)
with Leadership(sys.argv[1], Path(sys.argv[2])):
    multiprocessing.get_context("fork").Process(target=work).start()
    threading.Event().wait()
"""


@pytest.mark.real
def test_a_worker_does_not_keep_a_dead_leaders_lock(sqlite_url: str, tmp_path: Path) -> None:
    until_closed, hold = os.pipe()
    command = [sys.executable, "-c", _LEADER_WITH_WORKER, sqlite_url, str(tmp_path), str(until_closed)]
    leader = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY, pass_fds=[until_closed])
    assert leader.stdout is not None
    try:
        assert leader.stdout.readline() == b"works\n"
        leader.send_signal(signal.SIGKILL)
        leader.wait(10)
        with Leadership(sqlite_url, tmp_path) as mine:
            assert mine.still_held()
            assert select.select([leader.stdout], [], [], 0)[0] == [], "the worker lives on, its output is open"
    finally:
        os.close(hold)  # ends the worker
        assert leader.stdout.read() == b""
        leader.stdout.close()
        os.close(until_closed)


def test_a_removed_lock_file_is_noticed(sqlite_url: str, tmp_path: Path) -> None:
    with Leadership(sqlite_url, tmp_path) as first:
        Path(f"{database(sqlite_url).database}.lock").unlink()
        assert not first.still_held()


def end_sessions(url: str) -> None:
    engine = create_engine(url)
    with engine.connect() as connection:
        others = "datname = current_database() AND pid <> pg_backend_pid()"
        connection.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))
    engine.dispose()


def test_a_session_lost_is_taken_again_unless_another_was_faster(postgres_url: str, tmp_path: Path) -> None:
    first, second = Leadership(postgres_url, tmp_path / "1"), Leadership(postgres_url, tmp_path / "2")
    first.acquire()
    end_sessions(postgres_url)
    assert first.still_held()
    end_sessions(postgres_url)
    second.acquire()
    assert not first.still_held() and second.still_held()
    first.release()
    second.release()


def test_a_database_that_cannot_be_reached(tmp_path: Path) -> None:
    one = Leadership("postgresql://nobody@127.0.0.1:1/none", tmp_path)
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        one.acquire()
    assert not one.still_held()


def test_one_leads_whatever_the_database_file_is_called(tmp_path: Path) -> None:
    real, other = tmp_path / "real", tmp_path / "other"
    real.mkdir()
    other.mkdir()
    (real / "g.db").touch()
    (other / "g.db").symlink_to(real / "g.db")
    with Leadership(f"sqlite:///{real / 'g.db'}", real), pytest.raises(NotTheLeader, match="is the control plane of"):
        Leadership(f"sqlite:///{other / 'g.db'}", other).acquire()
    (other / "h.db").hardlink_to(real / "g.db")
    with pytest.raises(StoreUnavailable, match="hard links"):
        Leadership(f"sqlite:///{other / 'h.db'}", other).acquire()


def test_a_data_folder_has_one_leader_whatever_the_databases(tmp_path: Path) -> None:
    shared = tmp_path / "data"
    with Leadership(f"sqlite:///{tmp_path / 'a.db'}", shared):
        second = Leadership(f"sqlite:///{tmp_path / 'b.db'}", shared)
        with pytest.raises(NotTheLeader, match="data_dir of its own"):
            second.acquire()
        # what it had taken before it failed is free again
        with Leadership(f"sqlite:///{tmp_path / 'b.db'}", tmp_path / "other"):
            pass
