"""Whose process is it? From a pid, as the GPU's driver names it, to the id of the job that owns it, through Linux's /proc.

A job's processes carry ``GRIDSHIFT_JOB_ID`` in their environment: the driver of a Ray job, its tasks and actors on every node
(Ray 2.60 starts such a worker without it and adds it with a second ``exec`` about a second later), and whatever they start. A
child that drops the variable belongs to the nearest ancestor that has it, up to the raylet and no further: all jobs' workers
are children of one raylet. An answer once found is remembered for the pid and its start time, because a process may overwrite
its environment with a title, and its parents may end.

What cannot be seen, and is answered with None, never with a guess: processes of other users when we are not root (their
environment is secret, and ``hidepid`` hides all of them); a process that drops the variable and leaves its parents before the
first scan; work done through a CUDA MPS server, which belongs to the server; processes in a PID namespace other than ours. A
process that was given another job's id by its own user is believed: the variable is a label, no proof.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .devices import GpuProcess

#: The variable that every process of a job carries.
JOB_VARIABLE = "GRIDSHIFT_JOB_ID"
#: The PID namespace that a machine starts with; the driver's pids are those of this one.
FIRST_PID_NAMESPACE = "pid:[4026531836]"
#: Names of Ray's own node processes, the parents of all jobs' workers.
RAY_NODE_PROCESSES = frozenset({"raylet", "gcs_server"})
#: The actor that waits for a job's entrypoint and answers the job's status; it is idle, and stopping it would silence the job.
SUPERVISOR_TITLE = b"JobSupervisor"
#: A process younger than this, seconds, may still be on its way to its last ``exec``, so its environment is read again, while
#: it is new at each look, then each so many looks.
NEW_S, YOUNG_S, YOUNG_LOOKS = 5.0, 30.0, 5
#: Without an answer, an older process is asked again each this many looks; one with an answer that holds a GPU, too.
ASK_AGAIN_LOOKS = 30
#: One look in so many reads every process anew; nothing but a freeze depends on what is read then.
LOOKS_A_SCAN = 30
#: The parent of all threads of the kernel, which have no environment.
KERNEL_PARENT = 2
#: More parents than any real process has; a loop can only come from a pid that was used again while we looked.
MAX_ANCESTORS = 200

_JOB_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class Process:
    """A live process. ``start_ticks``, clock ticks after boot, tells it from a later one with the same pid; ``state`` is the
    letter of proc(5), T when stopped, t when a debugger holds it."""

    pid: int
    start_ticks: int
    parent: int
    state: str
    name: str

    @property
    def key(self) -> tuple[int, int]:
        """What identifies it until the next boot."""
        return self.pid, self.start_ticks

    @property
    def is_stopped(self) -> bool:
        """Whether it is held by SIGSTOP or a debugger."""
        return self.state in "Tt"


def _read(proc: Path, pid: int, name: str) -> bytes:
    # Thousands of times in a row on a large machine: file objects would cost more than the kernel does.
    handle = os.open(f"{proc}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(handle, 1 << 16)
        while more := os.read(handle, 1 << 16):
            data += more
        return data
    finally:
        os.close(handle)


def read_process(pid: int, proc: Path = Path("/proc")) -> Process | None:
    """The process of that pid now; None when there is none, it is a zombie, or it is hidden from us."""
    try:
        # The name in parentheses may itself hold spaces and parentheses.
        head, _, tail = _read(proc, pid, "stat").rpartition(b")")
        fields = tail.split()
        state = fields[0].decode()
        if state in "ZXx":
            return None
        name = head.partition(b"(")[2].decode("utf-8", "replace")
        return Process(pid, int(fields[19]), int(fields[1]), state, name)
    except (OSError, ValueError, IndexError):
        return None


def job_in_environment(environment: bytes) -> str | None:
    """The job id in the bytes of an ``environ`` file: the first one, as getenv sees it. Empty or odd values count as none."""
    mark = f"\0{JOB_VARIABLE}=".encode()
    found = (b"\0" + environment).partition(mark)[2].partition(b"\0")[0]
    return found.decode("ascii") if _JOB_ID.fullmatch(found) else None


def boottime_s() -> float:
    """Seconds since boot, on the clock that processes' starts are told by."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ProcessTable:
    """The processes of this machine and what was learned of them. Not thread-safe: one thread looks and asks.

    Call ``look`` about once a second, also while no GPU is in use: what is read early is known later. ``scan`` where it matters
    that every process is seen as it is now.
    """

    def __init__(
        self, proc: Path = Path("/proc"), own_pid: int | None = None, boot_s: Callable[[], float] = boottime_s
    ) -> None:
        self._proc, self._boot_s = proc, boot_s
        self._own_pid = os.getpid() if own_pid is None else own_pid
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._names: set[str] = set()  # what was in /proc at the last look
        self._processes: dict[int, Process] = {}
        self._young: dict[int, Process] = {}
        self._known: dict[tuple[int, int], str] = {}
        self._asked: dict[tuple[int, int], int] = {}  # at which look
        self._looks = 0
        self._newest_ticks = 0
        self._foreign_namespace = _is_foreign_namespace(proc)

    def scan(self) -> dict[int, Process]:
        """Look at all processes, and remember which job each belongs to."""
        self._looks += 1
        self._names = set(os.listdir(self._proc))  # noqa: PTH208 - each second, and only the names are wanted
        found = (read_process(int(name), self._proc) for name in self._names if name.isdigit())
        self._processes = {process.pid: process for process in found if process is not None}
        live = {process.key for process in self._processes.values()}
        self._known = {key: job_id for key, job_id in self._known.items() if key in live}
        self._asked = {key: look for key, look in self._asked.items() if key in live}
        self._learn(list(self._processes.values()))
        return dict(self._processes)

    def look(self) -> None:
        """Take in what came and went since the last look, and what is young enough to change; the rest stays as it was read.
        Costs little however many processes there are."""
        if self._looks % LOOKS_A_SCAN == 0:
            self.scan()
            return
        self._looks += 1
        names = set(os.listdir(self._proc))  # noqa: PTH208 - each second, and only the names are wanted
        come, gone = names - self._names, self._names - names
        self._names = names
        for name in gone:
            if name.isdigit():
                self._forget(int(name))
        found = []
        again = {process.pid for process in self._young.values() if self._is_due(process)}
        for pid in {int(name) for name in come if name.isdigit()} | again:
            process, before = read_process(pid, self._proc), self._processes.get(pid)
            if before is not None and (process is None or process.key != before.key):
                self._forget(pid)
            if process is not None:
                self._processes[pid] = process
                found.append(process)
        self._learn(found)

    def _forget(self, pid: int) -> None:
        process = self._processes.pop(pid, None)
        if process is not None:
            self._asked.pop(process.key, None)
            self._known.pop(process.key, None)

    def _learn(self, processes: list[Process]) -> None:
        """Ask those whose environment may have changed, and remember what each of these processes inherits."""
        newest = max((process.start_ticks for process in processes), default=0)
        self._newest_ticks = max(self._newest_ticks, newest, int(self._boot_s() * self._ticks_per_s))
        for process in processes:
            if KERNEL_PARENT in (process.pid, process.parent):
                continue
            young = self._age_s(process) < YOUNG_S
            if young:
                self._young[process.pid] = process
            if (young or process.key not in self._known) and self._is_due(process):
                self._ask(process)
        self._young = {pid: one for pid, one in self._young.items() if pid in self._processes and self._age_s(one) < YOUNG_S}
        # A child's answer may rest on its parents', who may end before the child: keep it as long as the child lives.
        answers: dict[int, str | None] = {}
        for process in processes:
            job_id = self._inherited(process, answers)
            if job_id is not None:
                self._known[process.key] = job_id

    def _age_s(self, process: Process) -> float:
        return (self._newest_ticks - process.start_ticks) / self._ticks_per_s

    def _is_due(self, process: Process) -> bool:
        """Whether its environment was not read for so long that it may have changed."""
        age_s, asked = self._age_s(process), self._asked.get(process.key)
        pause = 1 if age_s < NEW_S else YOUNG_LOOKS if age_s < YOUNG_S else ASK_AGAIN_LOOKS
        return asked is None or self._looks - asked >= pause

    def owners(self, processes: Iterable[GpuProcess]) -> dict[int, str | None]:
        """Each GPU process's job by pid; None when it is nobody's or cannot be known. Looked at anew, as it may be new."""
        return {process.pid: self._owner_now(process.pid) for process in processes}

    def job_of(self, process: Process) -> str | None:
        """The job of a process of the last scan."""
        return self._known.get(process.key)

    def members(self, job_id: str) -> list[Process]:
        """The job's processes in the last scan, parents first, as far as they are known."""
        mine = [process for process in self._processes.values() if self._known.get(process.key) == job_id]
        return sorted(mine, key=lambda process: (process.start_ticks, process.pid))

    def protected(self) -> dict[int, str]:
        """The pids of the last scan that must never be stopped, and why: ourselves and our parents, and what Ray needs to stay
        a cluster that answers."""
        reasons = {1: "it is the first process of the machine"}
        for process in self._processes.values():
            if process.name in RAY_NODE_PROCESSES:
                reasons[process.pid] = f"it is Ray's {process.name}"
            elif self._is_supervisor(process):
                reasons[process.pid] = "it answers the job's status"
        reasons.update(dict.fromkeys(self._ancestors(self._own_pid), "it is a parent of this agent"))
        reasons[self._own_pid] = "it is this agent"
        return reasons

    def _owner_now(self, pid: int) -> str | None:
        if self._foreign_namespace and not self._uses_gpu(pid):
            return None
        process = read_process(pid, self._proc)
        if process is None:
            return None
        self._processes[pid] = process
        if process.key not in self._known or self._is_due(process):
            self._ask(process)
        if process.key not in self._known:
            for ancestor in self._ancestors(pid, fresh=True):
                self._ask(self._processes[ancestor])
            job_id = self._inherited(process, {})
            if job_id is not None:
                self._known[process.key] = job_id
        return self._known.get(process.key)

    def _ask(self, process: Process) -> None:
        """Read its own environment; what is found there replaces what was remembered, because an ``exec`` can change it."""
        if process.state == "D":
            return  # reading the memory of one that hangs in the kernel may hang us with it
        self._asked[process.key] = self._looks
        try:
            job_id = job_in_environment(_read(self._proc, process.pid, "environ"))
        except OSError:
            return  # it ended, or it is another user's
        # The pid may have been used again between the two reads.
        again = None if job_id is None else read_process(process.pid, self._proc)
        if job_id is not None and again is not None and again.key == process.key:
            self._known[process.key] = job_id

    def _inherited(self, process: Process, answers: dict[int, str | None]) -> str | None:
        """Its own job, else that of its nearest ancestor that has one, below the raylet. ``answers`` spares a second walk."""
        walked: list[int] = []
        job_id: str | None = None
        at: Process | None = process
        while at is not None and len(walked) < MAX_ANCESTORS:
            if at.name in RAY_NODE_PROCESSES and walked:
                break
            if at.pid in answers:
                job_id = answers[at.pid]
                break
            walked.append(at.pid)
            job_id = self._known.get(at.key)
            if job_id is not None:
                break
            parent = self._processes.get(at.parent)
            # A parent that is younger than its child is none: the pid was used again.
            at = None if parent is None or parent.start_ticks > at.start_ticks else parent
        answers.update(dict.fromkeys(walked, job_id))
        return job_id

    def _ancestors(self, pid: int, fresh: bool = False) -> list[int]:
        """Its parents, nearest first."""
        chain: list[int] = []
        child = self._processes.get(pid)
        while child is not None and child.parent > 0 and len(chain) < MAX_ANCESTORS:
            parent = read_process(child.parent, self._proc) if fresh else self._processes.get(child.parent)
            if parent is None or parent.start_ticks > child.start_ticks:
                break
            self._processes.setdefault(parent.pid, parent)
            chain.append(parent.pid)
            child = parent
        return chain

    def _is_supervisor(self, process: Process) -> bool:
        parent = self._processes.get(process.parent)
        if parent is None or parent.name != "raylet" or process.state == "D":
            return False
        try:
            title = _read(self._proc, process.pid, "cmdline")
        except OSError:
            return False
        return title.startswith(b"ray::") and SUPERVISOR_TITLE in title

    def _uses_gpu(self, pid: int) -> bool:
        """Whether it has an NVIDIA device open: in a foreign PID namespace the driver's pid may name somebody else here."""
        try:
            links = [os.readlink(entry) for entry in (self._proc / str(pid) / "fd").iterdir()]  # noqa: PTH115
        except OSError:
            return False
        return any(link.startswith("/dev/nvidia") for link in links)


def _is_foreign_namespace(proc: Path) -> bool:
    """Whether pids here may differ from the driver's. Without an NVIDIA device the driver is a simulation of ours, which has
    our pids."""
    try:
        return os.readlink(proc / "self/ns/pid") != FIRST_PID_NAMESPACE and Path("/dev/nvidiactl").exists()  # noqa: PTH115
    except OSError:
        return False


def job_weights(processes: Iterable[GpuProcess], owners: Mapping[int, str | None]) -> dict[str | None, int | None]:
    """GPU memory, bytes, by job (None: nobody's); the whole sum is None where the driver does not tell a process's memory."""
    weights: dict[str | None, int | None] = {}
    for process in processes:
        job_id = owners.get(process.pid)
        before = weights.get(job_id, 0)
        weights[job_id] = None if before is None or process.memory_bytes is None else before + process.memory_bytes
    return weights
