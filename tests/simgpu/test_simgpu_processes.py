"""Many processes on the same simulated GPUs: killed, stopped and at the same time, at any instruction."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml as nv
import pytest

from dispatcher.simgpu import SimGpus
from tests.helpers import wait_until
from tests.simgpu.simulated import child_environment, simulated, working

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[SimGpus]:
    with simulated(tmp_path, 2) as gpus:
        nv.nvmlInit()
        yield gpus


def start(gpus: SimGpus, code: str) -> "subprocess.Popen[str]":
    """A Python process with ``gpus`` open, running ``code``."""
    head = "import os, sys\nfrom pathlib import Path\nfrom dispatcher.simgpu import SimGpus\n"
    head += f"gpus = SimGpus.open(Path({str(gpus.path)!r}))\n"
    argv = [sys.executable, "-c", head + textwrap.dedent(code)]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, env=child_environment(gpus), cwd=ROOT, stdin=pipe, stdout=pipe, text=True)


def end(process: Any) -> None:
    process.kill()
    process.communicate()


def test_two_processes_work_on_their_own_gpus_and_one_kill_ends_one(gpus: SimGpus) -> None:
    with working(gpus, visible="0") as first, working(gpus, visible=gpus[1].uuid, intensity=0.5) as second:
        assert [gpu.pids for gpu in gpus] == [[first.pid], [second.pid]]
        wait_until(lambda: gpus[0].power_w == 380, 10, "the first")
        wait_until(lambda: gpus[1].power_w == pytest.approx(72 + 308 / 2), 10, "the second")
        first.kill()
        first.wait()
        assert gpus[0].power_w == 55 and gpus[0].pids == []
        assert nv.nvmlDeviceGetComputeRunningProcesses(nv.nvmlDeviceGetHandleByIndex(0)) == []
        wait_until(lambda: gpus[1].power_w == pytest.approx(226), 10, "the second to go on")


def test_two_processes_on_one_gpu_get_half_each(gpus: SimGpus) -> None:
    with working(gpus, visible="0") as first, working(gpus, visible="0") as second:
        wait_until(lambda: gpus[0].moment().speed == 0.5, 10, "both at work")
        handle = nv.nvmlDeviceGetHandleByIndex(0)
        assert {p.pid for p in nv.nvmlDeviceGetComputeRunningProcesses(handle)} == {first.pid, second.pid}
        assert gpus[0].power_w == 380


def test_a_stopped_process_holds_the_gpu_does_no_work_and_goes_on_later(gpus: SimGpus) -> None:
    with working(gpus) as process:
        wait_until(lambda: gpus[0].power_w == 380, 10, "work")
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: gpus[0].power_w == 90, 10, "the stop")
        before, after = gpus[0].read(), gpus[0].read()
        assert gpus[0].pids == [process.pid]
        assert after.work_done_s == before.work_done_s
        assert after.energy_mj - before.energy_mj == pytest.approx((after.updated_ns - before.updated_ns) * 90 / 1e6)
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: gpus[0].power_w == 380, 10, "work again")
        assert gpus[0].read().work_done_s > after.work_done_s


def test_a_stop_that_nobody_saw_is_not_counted_as_work(gpus: SimGpus) -> None:
    with working(gpus) as process:
        wait_until(lambda: gpus[0].power_w == 380, 10, "work")
        process.send_signal(signal.SIGSTOP)
        # nobody looks at the GPU until the process itself does so again
        wait_until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", 10, "the stop")
        gpus[0].write(capped_s=0.0)
        before = gpus[0].read()
        stopped_s = 0.8
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(stopped_s)
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: gpus[0].power_w == 380, 10, "work again")
        after = gpus[0].read()
        passed_s = (after.updated_ns - before.updated_ns) / 1e9
        assert after.work_done_s - before.work_done_s <= passed_s - stopped_s + 0.01


def test_a_process_killed_in_the_middle_of_changes_wedges_nobody(gpus: SimGpus) -> None:
    holder = start(gpus, "for _ in range(31): gpus[0].begin_change_and_leave()\nprint('held', flush=True)\nsys.stdin.read()")
    try:
        assert holder.stdout and holder.stdout.readline() == "held\n"
    finally:
        end(holder)
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    nv.nvmlDeviceSetPowerManagementLimit(handle, 200_000)
    for limit_mw in range(100_000, 140_000, 1000):
        nv.nvmlDeviceSetPowerManagementLimit(handle, limit_mw)
        assert nv.nvmlDeviceGetPowerManagementLimit(handle) == limit_mw


def test_a_process_stopped_in_the_middle_of_a_change_wedges_nobody(gpus: SimGpus) -> None:
    holder = start(gpus, "gpus[0].begin_change_and_leave()\nprint('held', flush=True)\nsys.stdin.read()")
    try:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGSTOP)
        for limit_w in range(100, 200):
            gpus[0].set_limit(limit_w)
            assert gpus[0].limit_w == limit_w
    finally:
        end(holder)


def test_kills_at_random_moments_leave_whole_records(gpus: SimGpus) -> None:
    code = """
    from threading import Thread
    def write():
        while True:
            for value in range(100, 400):
                gpus[0].write(limit_mw=value * 1000)
    for _ in range(2): Thread(target=write, daemon=True).start()
    print("writing", flush=True)
    sys.stdin.read()
    """
    for _ in range(5):
        writer = start(gpus, code)
        try:
            assert writer.stdout and writer.stdout.readline() == "writing\n"
            changes = [gpus[0].limit_w for _ in range(50)]
        finally:
            end(writer)
        assert all(limit_w == int(limit_w) and 100 <= limit_w <= 400 for limit_w in changes)
        gpus[0].set_limit(250)
        assert (gpus[0].limit_w, gpus[0].uuid[:4]) == (250, "GPU-")


def test_no_change_of_many_at_once_is_lost(gpus: SimGpus) -> None:
    # each process attaches to the GPU eight times; each attachment is one change of the same record
    code = """
    from dispatcher.simgpu.workload import Workload
    sys.stdin.readline()
    held = [Workload(0.0, 1 << 20) for _ in range(8)]
    print("attached", flush=True)
    sys.stdin.read()
    """
    processes = [start(gpus, code) for _ in range(4)]
    try:
        for process in processes:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            assert process.stdout and process.stdout.readline() == "attached\n"
        record = gpus[1].read()
        rows = record.processes[: record.process_count]
        assert len({int(row.serial) for row in rows}) == 32
        assert sorted({int(row.pid) for row in rows}) == sorted(process.pid for process in processes)
    finally:
        for process in processes:
            end(process)
    assert gpus[1].read().process_count == 0


def test_a_pid_that_another_process_got_is_not_the_old_one(gpus: SimGpus) -> None:
    with working(gpus) as process:
        offset = type(gpus[0].read()).processes.offset
        record = gpus[0].read()
        assert record.processes[0].pid == process.pid
        # as if the pid belonged to a process that was started at another time
        record.processes[0].start_ticks += 1
        gpus[0]._library.gridshift_simgpu_write(
            gpus[0]._handle, 0, offset, bytes(record.processes[0]), len(bytes(record.processes[0]))
        )
        assert gpus[0].pids == []


def test_a_forked_child_is_its_own_process(gpus: SimGpus) -> None:
    code = """
    from dispatcher.simgpu.workload import Workload
    mine = Workload(0.0)
    if (child := os.fork()) == 0:
        theirs = Workload(0.0)
        print(os.getpid(), flush=True)
        sys.stdin.read()
        os._exit(0)
    sys.stdin.read()
    os.waitpid(child, 0)
    """
    parent = start(gpus, code)
    try:
        assert parent.stdout
        child = int(parent.stdout.readline())
        assert gpus[0].pids == sorted([parent.pid, child])
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: gpus[0].pids == [parent.pid], 10, "the child's end")
    finally:
        end(parent)
