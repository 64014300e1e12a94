"""Limits given back when an agent is gone for good and nobody else is left to do it."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.agent import guard, node
from dispatcher.agent.caps import CapOrders, Enforcer, SetCap
from dispatcher.agent.devices import HeldByAnother
from dispatcher.agent.epochs import Epochs
from dispatcher.agent.freezing import Freezer, boottime_s
from dispatcher.agent.leases import LeaseBook, boot_id
from dispatcher.agent.node import FolderBusy, FolderLock, OwnDevices
from dispatcher.agent.processes import ProcessTable, read_process
from dispatcher.agent.release import release_here
from dispatcher.agent.service import taking_over
from dispatcher.simgpu import SimGpus
from tests.helpers import wait_until
from tests.simgpu.simulated import child_environment, simulated


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[SimGpus]:
    with simulated(tmp_path, 2) as made:
        yield made


def leave_leases(folder: Path, *caps: SetCap) -> None:
    """What an agent leaves that was killed."""
    devices = OwnDevices()
    enforcer = Enforcer(devices, LeaseBook(folder / "leases"))
    assert all(result.ok for result in enforcer.apply(CapOrders(1, caps)))
    enforcer.close()
    devices.close()


def test_it_keeps_leases_until_those_with_an_end_are_over(gpus: SimGpus, tmp_path: Path) -> None:
    economic = SetCap("l1", "economic", gpus[0].uuid, 250.0, 1.0)
    event = SetCap("e1", "event", gpus[1].uuid, 300.0, None)
    leave_leases(tmp_path, economic, event)
    gpus[1].set_limit(400.0)
    assert guard.keep_leases(tmp_path, keep_s=0.3) and gpus[0].limit_w == 250.0 and gpus[1].limit_w == 300.0
    wait_until(lambda: not guard.keep_leases(tmp_path, keep_s=4.0), 15, "the end of its duty")
    assert gpus[0].limit_w == 400.0 and gpus[1].limit_w == 300.0  # the open event is for a person to end


def test_an_event_lease_is_released_by_hand_while_a_guard_keeps_it(gpus: SimGpus, tmp_path: Path) -> None:
    leave_leases(tmp_path, SetCap("e1", "event", gpus[0].uuid, 300.0, 600.0))
    stop = threading.Event()

    def keep() -> None:
        while not stop.is_set() and guard.keep_leases(tmp_path, keep_s=4.0):
            pass

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        wait_until(lambda: guard.agent_lives(tmp_path), 10, "the guard at work")
        (released,) = release_here(tmp_path, "e1")
        assert released["ok"] and gpus[0].limit_w == 400.0
    finally:
        stop.set()
        thread.join(10)


def test_what_ended_while_nobody_was_there_is_given_back_by_the_command(gpus: SimGpus, tmp_path: Path) -> None:
    caps = SetCap("e1", "event", gpus[0].uuid, 300.0, 0.3), SetCap("e2", "event", gpus[1].uuid, 300.0, 600.0)
    leave_leases(tmp_path, *caps)
    book = LeaseBook(tmp_path / "leases")
    (e1,) = book.hold(gpus[0].uuid).leases
    book.close()
    wait_until(lambda: not e1.live(boottime_s()), 5, "the event's end")
    assert gpus[0].limit_w == 300.0
    (released,) = release_here(tmp_path, "e1")
    assert (released["lease_id"], released["ok"]) == ("e1", True) and (gpus[0].limit_w, gpus[1].limit_w) == (400.0, 300.0)


def test_an_agent_that_starts_takes_over_from_a_guard_and_not_from_another_agent(gpus: SimGpus, tmp_path: Path) -> None:
    held, its_own = FolderLock(tmp_path), FolderLock(tmp_path, guard.GUARD_LOCK)
    assert guard.holds(tmp_path)
    timer = threading.Timer(0.5, held.close)
    timer.start()
    taken = taking_over(lambda: FolderLock(tmp_path, tries=1), tmp_path)
    timer.join()
    (tmp_path / guard.GUARD_LOCK).write_text("process 1")
    began = time.monotonic()
    with pytest.raises(FolderBusy):
        taking_over(lambda: FolderLock(tmp_path, tries=1), tmp_path)
    assert time.monotonic() - began < 5.0
    taken.close()
    its_own.close()


def test_nobody_sets_the_limit_of_a_gpu_that_an_agent_of_another_folder_looks_after(gpus: SimGpus, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    leave_leases(folder, SetCap("l1", "economic", gpus[0].uuid, 250.0, 0.3), SetCap("e1", "event", gpus[1].uuid, 300.0, None))
    agent = OwnDevices()  # as that of an agent that came meanwhile
    assert len(agent.infos()) == 2
    assert guard.keep_leases(folder, keep_s=0.5)
    (released,) = release_here(folder, "e1")
    assert not released["ok"] and "another agent looks after" in released["error"]
    assert guard.keep_leases(folder, keep_s=0.5)
    assert (gpus[0].limit_w, gpus[1].limit_w) == (250.0, 300.0)
    agent.set_limit(gpus[0].uuid, 350.0)
    agent.close()
    wait_until(lambda: not guard.keep_leases(folder, keep_s=4.0), 20, "the end of its duty")
    assert (gpus[0].limit_w, gpus[1].limit_w) == (400.0, 400.0)


def test_a_gpu_is_claimed_beyond_network_namespaces_where_files_are_shared(
    gpus: SimGpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "CLAIMS_FOLDER", tmp_path)
    first = OwnDevices()
    assert len(first.infos()) == 2
    monkeypatch.setattr(node, "CLAIM", "\0another-namespace-{}")
    second = OwnDevices()
    assert second.infos() == [] and second.others == {one.uuid for one in gpus}
    with pytest.raises(HeldByAnother, match="another agent looks after"):
        second.set_limit(gpus[0].uuid, 300.0)
    first.close()
    assert list(tmp_path.glob("gridshift-agent-*.lock")) == [], "what is let go of leaves nothing behind"
    assert len(second.infos()) == 2 and second.others == set()
    second.set_limit(gpus[0].uuid, 300.0)
    second.close()
    with pytest.raises(HeldByAnother):
        second.set_limit(gpus[0].uuid, 350.0)  # of a thread that hung in the driver
    monkeypatch.setattr(node, "CLAIMS_FOLDER", tmp_path / "missing")
    alone = OwnDevices()
    assert len(alone.infos()) == 2, "without such a folder the socket alone must do"
    alone.close()


def test_it_leaves_everything_to_an_agent_that_lives(gpus: SimGpus, tmp_path: Path) -> None:
    leave_leases(tmp_path, SetCap("l1", "economic", gpus[0].uuid, 250.0, 0.2))
    with_agent = FolderLock(tmp_path)
    assert guard.agent_lives(tmp_path) and guard.keep_leases(tmp_path)
    assert gpus[0].limit_w == 250.0
    with_agent.close()
    assert not guard.agent_lives(tmp_path)


def test_without_a_driver_it_goes_on_trying(gpus: SimGpus, tmp_path: Path) -> None:
    assert not guard.keep_leases(tmp_path, keep_s=0.1)  # nothing to do
    leave_leases(tmp_path, SetCap("l1", "economic", gpus[0].uuid, 250.0, 30.0))
    gpus.set_driver_absent()
    assert guard.keep_leases(tmp_path, keep_s=0.1)


def test_a_node_without_gpus_has_nothing_to_guard_once_it_has_heard_an_epoch(gpus: SimGpus, tmp_path: Path) -> None:
    Epochs(tmp_path / "leases").see(7)
    gpus.set_driver_absent()
    assert not guard.keep_leases(tmp_path, keep_s=0.1)


AGENT = """
import sys, pathlib
from dispatcher.agent import guard, node
from dispatcher.agent.caps import CapOrders, Enforcer, SetCap
from dispatcher.agent.freezing import Freezer, boottime_s
from dispatcher.agent.leases import LeaseBook, boot_id
from dispatcher.agent.node import FolderLock, OwnDevices
from dispatcher.agent.processes import ProcessTable, read_process
folder = pathlib.Path(sys.argv[1])
lock, devices = FolderLock(folder), OwnDevices()
guard.start(folder)
enforcer = Enforcer(devices, LeaseBook(folder / "leases"))
cap = SetCap("l1", "economic", devices.infos()[0].uuid, 250.0, 3.0)
print(all(one.ok for one in enforcer.apply(CapOrders(1, [cap]))), flush=True)
sys.stdin.read()
"""


def guards(folder: Path) -> list[int]:
    found, ends = [], f"dispatcher.agent.guard\0{folder}\0".encode()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes().endswith(ends):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_a_killed_agent_without_a_successor_leaves_no_limit(gpus: SimGpus, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with subprocess.Popen(
        [sys.executable, "-c", AGENT, str(folder)],
        env=child_environment(gpus),
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"True\n" and gpus[0].limit_w == 250.0
        ends_s = time.monotonic() + 3.0
        (pid,) = wait_until(lambda: guards(folder), 20, "the guard")
        try:
            os.killpg(os.getpgid(process.pid), 0)
            process.kill()
            process.wait(10)
            wait_until(lambda: gpus[0].limit_w == 400.0, 25, "the limit to be given back")
            assert time.monotonic() - ends_s < 10.0
            wait_until(lambda: guards(folder) == [], 15, "the guard's end, its duty done")
        finally:
            if pid in guards(folder):
                os.kill(pid, signal.SIGKILL)


def test_it_wakes_a_frozen_job_when_its_time_is_up(gpus: SimGpus, tmp_path: Path) -> None:
    env = {**os.environ, "GRIDSHIFT_JOB_ID": "job-guarded"}
    with subprocess.Popen(["sleep", "300"], env=env) as process:
        try:
            began = boottime_s()
            freezer = Freezer(tmp_path, ProcessTable(), boot_id())
            freezer.freeze("job-guarded", 2.0, 60.0)  # then the agent is killed
            assert guard.keep_leases(tmp_path, keep_s=0.1) or boottime_s() - began >= 2.0
            wait_until(lambda: not guard.keep_leases(tmp_path, keep_s=0.1), 15, "the end of its duty")
            now = read_process(process.pid)
            assert boottime_s() - began >= 2.0 and now is not None and not now.is_stopped
        finally:
            process.kill()
