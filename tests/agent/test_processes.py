"""Whose process it is: on a made-up /proc for what is rare, and on real processes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatcher.agent.devices import GpuProcess
from dispatcher.agent.processes import LOOKS_A_SCAN, Process, ProcessTable, job_in_environment, job_weights, read_process
from tests.helpers import wait_until


class FakeProc:
    """A folder that looks like /proc; ``pid`` 900 is the agent, a child of the raylet 100."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.add(1, 0, "systemd", start=1)
        self.add(100, 1, "raylet", start=50)
        self.add(101, 1, "gcs_server", start=50)
        self.add(900, 100, "ray::agent", start=60)

    def add(
        self, pid: int, parent: int, name: str, *, start: int, env: str | None = "", state: str = "S", cmd: str = ""
    ) -> None:
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        fields = ["0"] * 40
        fields[0], fields[1], fields[19] = state, str(parent), str(start)
        (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}")
        (folder / "cmdline").write_text(cmd)
        if env is None:
            (folder / "environ").mkdir(exist_ok=True)  # reading it fails, as for another user's process
        else:
            (folder / "environ").write_text(env)

    def end(self, pid: int) -> None:
        shutil.rmtree(self.root / str(pid))

    def table(self) -> ProcessTable:
        return ProcessTable(self.root, own_pid=900, boot_s=lambda: 0.0)  # what started last is of now


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def owners(table: ProcessTable, *pids: int) -> dict[int, str | None]:
    return table.owners([GpuProcess(pid, 1, None, None) for pid in pids])


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (b"A=1\0GRIDSHIFT_JOB_ID=gs-1\0B=2\0", "gs-1"),
        (b"GRIDSHIFT_JOB_ID=gs-1", "gs-1"),
        (b"XGRIDSHIFT_JOB_ID=gs-1\0", None),
        (b"GRIDSHIFT_JOB_ID=\0", None),
        (b"GRIDSHIFT_JOB_ID=a b\0", None),
        (b"GRIDSHIFT_JOB_ID=" + b"x" * 129, None),
        (b"GRIDSHIFT_JOB_ID=one\0GRIDSHIFT_JOB_ID=two\0", "one"),
        (b"", None),
        (b"\0\0\0garbage after a title\0GRIDSHIFT_JOB_ID=gs-2\0", "gs-2"),
    ],
)
def test_the_variable_in_an_environment(environment: bytes, expected: str | None) -> None:
    assert job_in_environment(environment) == expected


def test_a_name_with_parentheses_and_blanks_is_read(proc: FakeProc) -> None:
    proc.add(7, 1, "a) R 1 (b", start=99, state="T")
    process = read_process(7, proc.root)
    assert process == Process(7, 99, 1, "T", "a) R 1 (b") and process.is_stopped


@pytest.mark.parametrize("text", ["", "7 (x", "7 (x) S", "7 (x) S one 2"])
def test_a_damaged_or_ended_process_is_none(proc: FakeProc, text: str) -> None:
    proc.add(7, 1, "x", start=1)
    (proc.root / "7/stat").write_text(text)
    assert read_process(7, proc.root) is None
    proc.add(8, 1, "z", start=1, state="Z")
    assert read_process(8, proc.root) is None


def test_own_variable_wins_then_the_nearest_parents(proc: FakeProc) -> None:
    proc.add(10, 100, "ray::t", start=70, env="GRIDSHIFT_JOB_ID=a\0")
    proc.add(11, 10, "sh", start=71)
    proc.add(12, 11, "python", start=72)
    proc.add(13, 12, "python", start=73, env="GRIDSHIFT_JOB_ID=b\0")
    proc.add(14, 13, "python", start=74)
    assert owners(proc.table(), 10, 12, 13, 14, 999) == {10: "a", 12: "a", 13: "b", 14: "b", 999: None}


def test_nothing_is_inherited_through_the_raylet(proc: FakeProc) -> None:
    proc.add(90, 1, "bash", start=40, env="GRIDSHIFT_JOB_ID=outer\0")
    proc.add(100, 90, "raylet", start=50, env="GRIDSHIFT_JOB_ID=outer\0")
    proc.add(10, 100, "ray::hidden", start=70)
    table = proc.table()
    assert owners(table, 10) == {10: None}
    table.scan()
    assert owners(table, 10) == {10: None}


def test_a_worker_gets_its_variable_by_a_later_exec(proc: FakeProc) -> None:
    proc.add(10, 100, "python", start=70, env="RAY_JOB_ID=01000000\0")
    table = proc.table()
    table.scan()
    assert owners(table, 10) == {10: None}
    proc.add(10, 100, "ray::IDLE", start=70, env="GRIDSHIFT_JOB_ID=a\0")
    table.scan()
    assert owners(table, 10) == {10: "a"}


def test_what_was_read_early_survives_a_title_and_the_parents_end(proc: FakeProc) -> None:
    proc.add(10, 100, "ray::t", start=70, env="GRIDSHIFT_JOB_ID=a\0")
    proc.add(11, 10, "python", start=71)
    table = proc.table()
    table.scan()
    proc.add(10, 100, "ray::t", start=70, env="\0" * 50)  # the title lies over the environment
    proc.end(10)
    proc.add(11, 1, "python", start=71)  # the system gave it a new parent
    table.scan()
    assert owners(table, 10, 11) == {10: None, 11: "a"}


def test_a_pid_that_is_used_again_is_somebody_else(proc: FakeProc) -> None:
    proc.add(10, 100, "ray::t", start=70, env="GRIDSHIFT_JOB_ID=a\0")
    table = proc.table()
    assert owners(table, 10) == {10: "a"}
    proc.add(10, 100, "other", start=700)
    assert owners(table, 10) == {10: None}
    table.scan()
    assert table.members("a") == []


def test_a_parent_younger_than_its_child_is_no_parent(proc: FakeProc) -> None:
    proc.add(10, 1, "reused", start=500, env="GRIDSHIFT_JOB_ID=a\0")
    proc.add(11, 10, "orphan", start=71)
    assert owners(proc.table(), 11) == {11: None}


def test_another_users_environment_is_not_guessed_but_its_parents_may_tell(proc: FakeProc) -> None:
    proc.add(10, 1, "secret", start=70, env=None)
    proc.add(20, 100, "ray::t", start=70, env="GRIDSHIFT_JOB_ID=a\0")
    proc.add(21, 20, "su", start=71, env=None)
    assert owners(proc.table(), 10, 21) == {10: None, 21: "a"}


def test_an_old_process_without_an_answer_is_asked_again_now_and_then(proc: FakeProc) -> None:
    proc.add(10, 1, "old", start=70)
    proc.add(999, 1, "new", start=10**7)
    table = proc.table()
    table.scan()
    proc.add(10, 1, "old", start=70, env="GRIDSHIFT_JOB_ID=a\0")
    table.scan()
    assert table.members("a") == []
    for _ in range(30):
        table.scan()
    assert [process.pid for process in table.members("a")] == [10]


def test_a_look_reads_what_came_and_what_is_young_and_no_more(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    proc.add(10, 1, "old", start=70, env="GRIDSHIFT_JOB_ID=a\0")
    proc.add(20, 1, "young", start=10**7)
    table = proc.table()
    table.look()  # the first one reads all
    read: list[int] = []

    def reading(pid: int, root: Path) -> Process | None:
        read.append(pid)
        return read_process(pid, root)

    monkeypatch.setattr("dispatcher.agent.processes.read_process", reading)
    proc.add(30, 10, "come", start=10**7 + 1)
    table.look()
    assert set(read) == {20, 30} and {process.pid for process in table.members("a")} == {10, 30}
    proc.add(20, 1, "young", start=10**7, env="GRIDSHIFT_JOB_ID=b\0")
    proc.end(10)
    proc.add(30, 1, "come", start=10**7 + 1)
    table.look()
    assert {process.pid for process in table.members("a")} == {30}
    assert {process.pid for process in table.members("b")} == {20}
    proc.add(20, 1, "young", start=10**7 + 5)  # another one under the same pid
    table.look()
    assert table.members("b") == []


def test_looks_find_in_time_what_a_scan_would(proc: FakeProc) -> None:
    proc.add(10, 1, "old", start=70)
    proc.add(999, 1, "new", start=10**7)
    table = proc.table()
    table.look()
    proc.add(10, 1, "old", start=70, env="GRIDSHIFT_JOB_ID=a\0")
    for _ in range(LOOKS_A_SCAN + 1):
        table.look()
    assert [process.pid for process in table.members("a")] == [10]


def test_a_process_on_a_gpu_is_asked_until_it_answers_and_then_now_and_again(proc: FakeProc) -> None:
    proc.add(10, 1, "train", start=70)
    proc.add(999, 1, "new", start=10**7)
    table = proc.table()
    table.look()
    assert owners(table, 10) == {10: None}
    proc.add(10, 1, "train", start=70, env="GRIDSHIFT_JOB_ID=a\0")
    assert owners(table, 10) == {10: "a"}
    proc.add(10, 1, "train", start=70, env="GRIDSHIFT_JOB_ID=b\0")
    assert owners(table, 10) == {10: "a"}
    for _ in range(LOOKS_A_SCAN + 1):
        table.look()
    assert owners(table, 10) == {10: "b"}


def test_members_come_parents_first_and_the_protected_are_named(proc: FakeProc) -> None:
    proc.add(30, 100, "ray::JobSup", start=70, env="GRIDSHIFT_JOB_ID=a\0", cmd="ray::JobSupervisor   ")
    proc.add(40, 30, "sh", start=71, env="GRIDSHIFT_JOB_ID=a\0", cmd="sh -c JobSupervisor")
    proc.add(39, 40, "python", start=72)
    table = proc.table()
    table.scan()
    assert [process.pid for process in table.members("a")] == [30, 40, 39]
    assert table.protected() == {
        1: "it is a parent of this agent",
        30: "it answers the job's status",
        100: "it is a parent of this agent",
        101: "it is Ray's gcs_server",
        900: "it is this agent",
    }


def test_in_a_foreign_pid_namespace_a_pid_counts_only_with_a_gpu_open(proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    proc.add(10, 1, "train", start=70, env="GRIDSHIFT_JOB_ID=a\0")
    proc.add(11, 1, "other", start=70, env="GRIDSHIFT_JOB_ID=b\0")
    (proc.root / "10/fd").mkdir()
    (proc.root / "10/fd/5").symlink_to("/dev/nvidia0")
    monkeypatch.setattr("dispatcher.agent.processes._is_foreign_namespace", lambda _: True)
    assert owners(proc.table(), 10, 11) == {10: "a", 11: None}


def test_memory_by_job_is_unknown_where_one_process_is() -> None:
    processes = [GpuProcess(1, 5, None, None), GpuProcess(2, 7, None, None), GpuProcess(3, None, None, None)]
    assert job_weights(processes, {1: "a", 2: "a", 3: None}) == {"a": 12, None: None}
    assert job_weights(processes, {1: "a", 2: None}) == {"a": 5, None: None}
    assert job_weights([], {}) == {}


def test_real_processes_keep_their_job_when_they_drop_it(started: Callable[..., "subprocess.Popen[bytes]"]) -> None:
    child = (
        "import os, subprocess, time; p = subprocess.Popen(['sleep', '60'], env={}); print(p.pid, flush=True); time.sleep(60)"
    )
    parent = started([sys.executable, "-c", child], env={**os.environ, "GRIDSHIFT_JOB_ID": "gs-real"}, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    table = ProcessTable()
    assert owners(table, parent.pid, pid, os.getpid()) == {parent.pid: "gs-real", pid: "gs-real", os.getpid(): None}
    table.scan()
    assert {process.pid for process in table.members("gs-real")} == {parent.pid, pid}
    parent.kill()
    parent.wait()
    wait_until(lambda: (p := read_process(pid)) is not None and p.parent != parent.pid, 10, "a new parent")
    table.scan()
    assert owners(table, pid) == {pid: "gs-real"}
