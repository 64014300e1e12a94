"""A job's processes are stopped and woken: real process trees, with every way in which we may go missing in the middle."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatcher.agent import freezing
from dispatcher.agent.freezing import Freezer, FreezeRefused, boottime_s
from dispatcher.agent.processes import ProcessTable, read_process
from tests.helpers import wait_until

Start = Callable[..., "subprocess.Popen[bytes]"]
BOOT = "boot-1"
ROOT = Path(__file__).parents[2]

#: A parent with a child that dropped the variable and a grandchild; prints their pids, then stays.
TREE = """
import os, subprocess, time
inner = "import subprocess; p = subprocess.Popen(['sleep', '300']); print(p.pid, flush=True); p.wait()"
child = subprocess.Popen(["PYTHON", "-c", inner], env={}, stdout=subprocess.PIPE)
print(os.getpid(), child.pid, int(child.stdout.readline()), flush=True)
time.sleep(300)
"""
#: Starts a child each 3 ms, 400 in all, and lets every one live; says when it has begun.
BROOD = """
import subprocess, time
for number in range(400):
    subprocess.Popen(["sleep", "300"])
    if number == 5:
        print("begun", flush=True)
    time.sleep(0.003)
time.sleep(300)
"""


class Time:
    """A boot clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def make(tmp_path: Path, clock: Time) -> Callable[..., Freezer]:
    """Makes an agent's freezer; a second one is its successor."""
    return lambda boot_id=BOOT: Freezer(tmp_path / "state", ProcessTable(), boot_id, clock)


def job(started: Start, job_id: str, code: str = TREE) -> "subprocess.Popen[bytes]":
    env = {**os.environ, "GRIDSHIFT_JOB_ID": job_id}
    return started([sys.executable, "-c", code.replace("PYTHON", sys.executable)], env=env, stdout=subprocess.PIPE)


def tree(started: Start, job_id: str) -> list[int]:
    process = job(started, job_id)
    assert process.stdout is not None
    return [int(pid) for pid in process.stdout.readline().split()]


def states(pids: list[int]) -> str:
    found = [read_process(pid) for pid in pids]
    return "".join("-" if process is None else "T" if process.is_stopped else "r" for process in found)


def test_the_whole_tree_stops_and_runs_again_and_others_are_left_alone(started: Start, make: Callable[..., Freezer]) -> None:
    mine, other = tree(started, "gs-a"), tree(started, "gs-b")
    freezer = make()
    entry = freezer.freeze("gs-a", ttl_s=60, freeze_max_s=600)
    assert (states(mine), states(other)) == ("TTT", "rrr")
    assert entry.complete and entry.until_boot_s == 1060.0 and {pid for pid, _ in entry.processes} == set(mine)
    assert freezer.frozen() == [entry]
    assert freezer.thaw("gs-a") == 3
    assert (states(mine), freezer.frozen(), freezer.thaw("gs-a")) == ("rrr", [], 0)


def test_children_started_while_it_is_being_stopped_stop_too(started: Start, make: Callable[..., Freezer]) -> None:
    parent = job(started, "gs-brood", BROOD)
    assert parent.stdout is not None and parent.stdout.readline() == b"begun\n"
    freezer = make()
    entry = freezer.freeze("gs-brood", 60, 600)
    table = ProcessTable()
    table.scan()
    members = table.members("gs-brood")
    assert 7 <= len(members) < 401, "the test is void unless it was stopped while it was at it"
    assert {process.key for process in members} == set(entry.processes)
    assert all(process.is_stopped for process in members)
    assert freezer.thaw_all() == len(members)


def test_what_somebody_else_stopped_stays_stopped(started: Start, make: Callable[..., Freezer]) -> None:
    parent, child, grandchild = tree(started, "gs-a")
    os.kill(child, signal.SIGSTOP)
    wait_until(lambda: states([child]) == "T", 10, "the child to stop")
    freezer = make()
    entry = freezer.freeze("gs-a", 60, 600)
    assert states([parent, child, grandchild]) == "TTT"
    assert {pid for pid, _ in entry.processes} == {parent, grandchild}
    freezer.step()
    assert freezer.thaw("gs-a") == 2
    assert states([parent, child, grandchild]) == "rTr"


def test_it_wakes_at_its_deadline_and_not_before(started: Start, make: Callable[..., Freezer], clock: Time) -> None:
    pids = tree(started, "gs-a")
    freezer = make()
    freezer.freeze("gs-a", 30, 600)
    clock.now = 1029.9
    assert (freezer.step(), states(pids)) == ([], "TTT")
    clock.now = 1030.0
    assert (freezer.step(), states(pids)) == (["gs-a runs again, its time is up: 3 processes"], "rrr")


def test_renewals_end_at_what_the_job_stands(started: Start, make: Callable[..., Freezer], clock: Time) -> None:
    pids = tree(started, "gs-a")
    freezer = make()
    assert freezer.freeze("gs-a", 30, 50).until_boot_s == 1030.0
    clock.now = 1025.0
    assert freezer.freeze("gs-a", 30, 50).until_boot_s == 1050.0
    clock.now = 1051.0
    with pytest.raises(FreezeRefused, match="has been frozen for the 50 s that it stands"):
        freezer.freeze("gs-a", 30, 50)
    freezer.step()
    assert states(pids) == "rrr"


def test_what_wakes_or_starts_in_a_frozen_job_is_stopped_by_the_next_step(started: Start, make: Callable[..., Freezer]) -> None:
    pids = tree(started, "gs-a")
    freezer = make()
    freezer.freeze("gs-a", 60, 600)
    os.kill(pids[0], signal.SIGCONT)
    late = tree(started, "gs-a")  # a task that Ray starts for a job whose driver stands still
    freezer.step()
    wait_until(lambda: states(pids + late) == "TTTTTT", 10, "all to stop")
    assert freezer.thaw("gs-a") == 6


def test_refused_without_a_process_here(make: Callable[..., Freezer], tmp_path: Path) -> None:
    with pytest.raises(FreezeRefused, match="no process of gs-none runs on this node"):
        make().freeze("gs-none", 60, 600)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(("ttl_s", "freeze_max_s"), [(0, 60), (-1, 60), (float("nan"), 60), (60, 0), (60, float("inf"))])
def test_refused_without_a_sound_length(make: Callable[..., Freezer], ttl_s: float, freeze_max_s: float) -> None:
    with pytest.raises(FreezeRefused, match="must be a number of seconds above 0"):
        make().freeze("gs-a", ttl_s, freeze_max_s)


def test_refused_for_another_users_processes(
    started: Start, make: Callable[..., Freezer], monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tree(started, "gs-a")
    real = os.kill

    def kill(pid: int, signum: int) -> None:
        if pid == pids[1] and signum == 0:
            raise PermissionError(errno.EPERM, "not yours")
        real(pid, signum)

    monkeypatch.setattr(os, "kill", kill)
    with pytest.raises(FreezeRefused, match=f"process {pids[1]} of gs-a belongs to another user"):
        make().freeze("gs-a", 60, 600)
    assert states(pids) == "rrr"


def test_we_never_stop_ourselves_or_our_parents(started: Start, tmp_path: Path) -> None:
    code = f"""
import os, subprocess, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from dispatcher.agent.freezing import Freezer, FreezeRefused
from dispatcher.agent.processes import ProcessTable
freezer = Freezer(Path({str(tmp_path)!r}), ProcessTable(), "b")
try:
    freezer.freeze("gs-self", 60, 600)
except FreezeRefused as error:
    print(error)
child = subprocess.Popen(["sleep", "60"])
print([pid for pid, _ in freezer.freeze("gs-self", 60, 600).processes] == [child.pid])
"""
    agent = job(started, "gs-self", code)
    assert agent.stdout is not None
    assert agent.stdout.readline() == b"none of the processes of gs-self here may be stopped: it is this agent\n"
    assert agent.stdout.readline() == b"True\n"


def killed_agent(started: Start, folder: Path, job_id: str, boot_id: str, *, after_stops: int) -> None:
    """An agent of its own that freezes ``job_id`` for 60 s and dies by SIGKILL right after that many processes stand."""
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from dispatcher.agent import freezing
from dispatcher.agent.processes import ProcessTable
real, left = freezing.send, [{after_stops}]
def send(key, signum):
    done = real(key, signum)
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return done
freezing.send = send
freezing.Freezer(Path({str(folder)!r}), ProcessTable(), {boot_id!r}, lambda: 1000.0).freeze({job_id!r}, 60, 600)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert started([sys.executable, "-c", code]).wait(timeout=60) == -signal.SIGKILL


def test_an_agent_killed_while_frozen_has_a_successor_that_wakes_on_time(
    started: Start, make: Callable[..., Freezer], clock: Time, tmp_path: Path
) -> None:
    pids = tree(started, "gs-a")
    killed_agent(started, tmp_path / "state", "gs-a", BOOT, after_stops=0)
    assert states(pids) == "TTT"
    successor = make()
    assert [entry.job_id for entry in successor.frozen()] == ["gs-a"]
    clock.now = 1059.0
    assert (successor.step(), states(pids)) == ([], "TTT")
    clock.now = 1060.0
    assert (successor.step(), states(pids)) == (["gs-a runs again, its time is up: 3 processes"], "rrr")
    assert make().frozen() == []


@pytest.mark.parametrize("after_stops", [1, 2, 3])
def test_an_agent_killed_in_the_middle_of_stopping_has_a_successor_that_wakes_at_once(
    started: Start, make: Callable[..., Freezer], tmp_path: Path, after_stops: int
) -> None:
    pids = tree(started, "gs-a")
    killed_agent(started, tmp_path / "state", "gs-a", BOOT, after_stops=after_stops)
    assert states(pids).count("T") == after_stops
    successor = make()
    assert successor.step() == ["gs-a was only partly frozen when the agent ended; 3 processes run again"]
    assert states(pids) == "rrr"


def test_a_reboot_forgets(started: Start, make: Callable[..., Freezer]) -> None:
    pids = tree(started, "gs-a")
    freezer = make()
    freezer.freeze("gs-a", 60, 600)
    after = make("boot-2")
    assert (after.frozen(), after.step()) == ([], [])
    assert states(pids) == "TTT", "they are other processes now, for all that the new boot knows"
    assert freezer.thaw("gs-a") == 3


def test_a_pid_that_was_used_again_is_not_signalled(started: Start) -> None:
    process = started(["sleep", "60"])
    found = read_process(process.pid)
    assert found is not None
    assert not freezing.send((process.pid, found.start_ticks + 1), signal.SIGSTOP)
    assert states([process.pid]) == "r"
    assert freezing.send(found.key, signal.SIGSTOP)
    wait_until(lambda: states([process.pid]) == "T", 10, "it to stop")
    process.kill()
    process.wait()
    assert not freezing.send(found.key, signal.SIGCONT)


def test_an_old_kernel_without_process_handles_will_do(
    started: Start, make: Callable[..., Freezer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(pid: int) -> int:
        raise OSError(errno.ENOSYS, "no such call")

    monkeypatch.setattr(os, "pidfd_open", missing)
    pids = tree(started, "gs-a")
    freezer = make()
    freezer.freeze("gs-a", 60, 600)
    assert (states(pids), freezer.thaw("gs-a"), states(pids)) == ("TTT", 3, "rrr")


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_nothing_stops_when_the_deadline_cannot_be_saved(
    started: Start, make: Callable[..., Freezer], monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tree(started, "gs-a")
    freezer = make()
    monkeypatch.setattr(freezing, "write_durably", full_disk)
    with pytest.raises(FreezeRefused, match=r"gs-a is not frozen: .*No space left"):
        freezer.freeze("gs-a", 60, 600)
    assert (states(pids), freezer.frozen()) == ("rrr", [])


def test_on_a_full_disk_a_renewal_fails_and_the_old_deadline_stands(
    started: Start, make: Callable[..., Freezer], clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tree(started, "gs-a")
    freezer = make()
    freezer.freeze("gs-a", 60, 600)
    monkeypatch.setattr(freezing, "write_durably", full_disk)
    clock.now = 1030.0
    with pytest.raises(FreezeRefused, match="No space left"):
        freezer.freeze("gs-a", 60, 600)
    assert (states(pids), freezer.frozen()[0].until_boot_s) == ("TTT", 1060.0)
    clock.now = 1060.0
    told = freezer.step()
    assert "gs-a runs again, its time is up: 3 processes" in told and any("could not be written" in text for text in told)
    assert states(pids) == "rrr"


def test_a_job_that_cannot_be_caught_runs_again(
    started: Start, make: Callable[..., Freezer], monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tree(started, "gs-a")
    freezer = make()
    real_send, extra = freezing.send, []

    def send(key: tuple[int, int], signum: signal.Signals) -> bool:
        if signum is signal.SIGSTOP:
            extra.extend(tree(started, "gs-a"))
        return real_send(key, signum)

    monkeypatch.setattr(freezing, "send", send)
    monkeypatch.setattr(freezing, "CHASE_S", 0.2)
    with pytest.raises(FreezeRefused, match="starts processes faster than they can be stopped"):
        freezer.freeze("gs-a", 60, 600)
    assert set(states(pids + extra)) == {"r"} and freezer.frozen() == []


@pytest.mark.parametrize("damage", ["", "{}", '{"body": {"boot_id": "boot-1"}}', "\0\0\0"])
def test_a_damaged_file_is_told_kept_aside_and_stopped_jobs_wake(
    started: Start, make: Callable[..., Freezer], tmp_path: Path, damage: str
) -> None:
    pids = tree(started, "gs-a")
    make().freeze("gs-a", 60, 600)
    file = tmp_path / "state/frozen.json"
    file.write_text(damage)
    successor = make()
    told = successor.step()
    assert "is damaged" in told[0]
    assert {f"process {pid} of gs-a stood still and was woken" for pid in pids} <= set(told)
    assert states(pids) == "rrr"
    assert [path.read_text() for path in (tmp_path / "state").glob("*damaged*")] == [damage]
    assert make().step() == []


def test_the_boot_clock_runs() -> None:
    assert abs(boottime_s() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 5
