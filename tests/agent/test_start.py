"""What an agent does at its start when a GPU hangs, files are damaged, or the disk takes no writing any more."""

import errno
import fcntl
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher.agent import runner, service
from dispatcher.agent.caps import CapOrders, Enforcer, SetCap
from dispatcher.agent.devices import Devices
from dispatcher.agent.durable import open_lock, unpack
from dispatcher.agent.leases import LeaseBook
from dispatcher.agent.node import Settings
from dispatcher.agent.runner import Agent
from dispatcher.agent.service import BUSY, Supervisor
from dispatcher.simgpu import SimGpus
from tests.helpers import wait_until
from tests.simgpu.simulated import simulated


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[SimGpus]:
    with simulated(tmp_path, 2) as made:
        yield made


def settings(folder: Path) -> Settings:
    return Settings("http://127.0.0.1:1", "north", None, folder / "state", "n1", "h1")


def test_a_gpu_that_hangs_at_the_start_keeps_no_other_limit_from_being_given_back(gpus: SimGpus, tmp_path: Path) -> None:
    gpus[0].set_limit(390)
    before = Enforcer(Devices(), LeaseBook(tmp_path / "state" / "leases"))
    cap = SetCap("e1", "event", gpus[0].uuid, 250.0, 3.0)
    assert before.apply(CapOrders(1, [cap]))[0].ok
    before.close()
    gpus[1].set_slow(20.0)
    agent = Agent(settings(tmp_path)).start()
    try:
        wait_until(lambda: gpus[0].limit_w == 390.0, 8, "the limit to be given back")
        hello: Any = wait_until(lambda: agent.hello() if agent.hello()["gpus"] else None, 8, "the GPU that answers")
        assert [one["uuid"] for one in hello["gpus"]] == [gpus[0].uuid]
        assert hello["can_cap"] and "does not answer for GPU 1" in agent._no_gpus
    finally:
        gpus[1].set_slow(0.0)
        agent.stop()


def test_an_agent_that_could_not_cap_asks_again_and_says_so(
    gpus: SimGpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LOOK_FOR_GPUS_S", 0.2)
    for gpu in gpus:
        gpu.set_no_permission(True)
    agent = Agent(settings(tmp_path)).start()
    try:
        assert not agent.hello()["can_cap"] and agent.hello()["why_not"]
        for gpu in gpus:
            gpu.set_no_permission(False)
        wait_until(lambda: agent.hello()["can_cap"], 8, "the right to cap to be seen")
    finally:
        agent.stop()


def test_a_file_of_brackets_is_a_damaged_file() -> None:
    with pytest.raises(ValueError, match="nested"):
        unpack("[" * 200_000)


def test_a_lock_is_taken_on_a_disk_that_takes_no_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lock").touch()
    opened: Callable[..., int] = os.open

    def refuse(path: Any, flags: int, *more: Any) -> int:
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, "Read-only file system")
        return opened(path, flags, *more)

    monkeypatch.setattr(os, "open", refuse)
    handle = open_lock(tmp_path / "lock")
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(handle)
    with pytest.raises(OSError, match="Read-only"):
        open_lock(tmp_path / "other")


def test_a_folder_that_is_taken_later_on_does_not_end_the_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "AT_ONCE_S", 1.0)
    lives = tmp_path / "lives"
    code = f"""if True:
        import time
        with open({str(lives)!r}, 'a') as file:
            file.write('x')
        time.sleep(1.2 if len(open({str(lives)!r}).read()) == 1 else 0)
        raise SystemExit({BUSY} if len(open({str(lives)!r}).read()) == 2 else 1)"""
    supervisor = Supervisor(settings(tmp_path), [sys.executable, "-c", code])
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    wait_until(lambda: lives.exists() and len(lives.read_text()) >= 3, 20, "a third life")
    supervisor.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_a_limit_is_given_back_to_the_milliwatt(gpus: SimGpus, tmp_path: Path) -> None:
    gpus[0].set_limit(250.6)
    enforcer = Enforcer(Devices(), LeaseBook(tmp_path / "leases"))
    try:
        assert enforcer.apply(CapOrders(1, [SetCap("l1", "economic", gpus[0].uuid, 250.0, 60.0)]))[0].ok
        assert gpus[0].limit_w == 250.0
        enforcer.apply(CapOrders(1, release=["l1"]))
        wait_until(lambda: gpus[0].limit_w == 250.6, 8, "the limit to be given back")
    finally:
        enforcer.close()
