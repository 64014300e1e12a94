"""Stops and wakes all processes of a job on this machine, and wakes them on time whatever happens to us.

The deadline and the processes are on disk before the first SIGSTOP; a successor of a killed agent reads them and wakes on time.
It does not know GPUs: a frozen job keeps its GPU memory, and its GPU goes on drawing execution-idle power. Nobody wakes the
processes while neither the agent nor its supervisor lives, and peers of a frozen process may give up on it: hence
``freeze_max_s``.
"""

from __future__ import annotations

import errno
import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .durable import pack, set_aside, unpack, write_durably
from .processes import Process, ProcessTable, read_process

#: Longest time to chase a job that starts processes while it is being stopped, s.
CHASE_S = 5.0
#: Pause between two looks at processes that were told to stop and have not yet, s.
LOOK_AGAIN_S = 0.002
#: The name of the file in the agent's state folder.
FILE_NAME = "frozen.json"


class FreezeRefused(Exception):
    """Nothing was stopped, or all of it runs again; the message says why."""


@dataclass(frozen=True)
class Frozen:
    """A job that stands still until ``until_boot_s`` (CLOCK_BOOTTIME, s). ``processes`` holds (pid, start ticks) of those that
    we stopped, in that order. ``complete`` is False while they are still being stopped."""

    job_id: str
    since_boot_s: float
    until_boot_s: float
    processes: tuple[tuple[int, int], ...]
    complete: bool


def boottime_s() -> float:
    """Seconds since boot, asleep or awake; no setting of the wall clock moves it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def send(key: tuple[int, int], signum: signal.Signals) -> bool:
    """Signal exactly the process with this pid and start; False when it is gone. Raises PermissionError for another user's."""
    pid, start_ticks = key
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EINVAL, errno.EPERM):
            raise
        handle = -1  # an old kernel or a strict sandbox: the pid alone must do
    try:
        process = read_process(pid)
        if process is None or process.start_ticks != start_ticks:
            return False
        if handle < 0:
            os.kill(pid, signum)
        else:
            signal.pidfd_send_signal(handle, signum)
        return True
    except ProcessLookupError:
        return False
    finally:
        if handle >= 0:
            os.close(handle)


class Freezer:
    """The frozen jobs of this machine; their file lies in ``folder``. Not thread-safe; call ``step`` about once a second.

    ``boot_id`` tells this boot from others: after a reboot nothing of the file is true any more.
    """

    def __init__(self, folder: Path, table: ProcessTable, boot_id: str, clock: Callable[[], float] = boottime_s) -> None:
        self._path = folder / FILE_NAME
        self._table, self._boot_id, self._clock = table, boot_id, clock
        self._saved = True
        self._wake_strays = False
        self._told: list[str] = []
        self._frozen = self._load()

    def frozen(self) -> list[Frozen]:
        """The jobs that stand still now."""
        return list(self._frozen.values())

    def freeze(self, job_id: str, ttl_s: float, freeze_max_s: float) -> Frozen:
        """Stop every process of the job here for ``ttl_s`` from now, or renew that; never longer than ``freeze_max_s`` since it
        was first stopped. Processes that somebody else has stopped are left alone, now and when waking.

        Raises FreezeRefused when no process of the job is here, one belongs to another user, the deadline cannot be saved, or
        the job starts processes faster than they can be stopped."""
        for name, value in (("ttl_s", ttl_s), ("freeze_max_s", freeze_max_s)):
            if not (math.isfinite(value) and value > 0):
                raise FreezeRefused(f"{name}: {value!r}: must be a number of seconds above 0")
        now, old = self._clock(), self._frozen.get(job_id)
        since = now if old is None else old.since_boot_s
        until = min(now + ttl_s, since + freeze_max_s)
        if until <= now:
            raise FreezeRefused(f"{job_id} has been frozen for the {freeze_max_s:g} s that it stands")
        self._check(job_id)
        ours = () if old is None else old.processes
        plan = Frozen(job_id, since, until, ours, complete=old is not None and old.complete)
        try:
            self._keep(plan)
            plan = self._chase(plan)
        except BaseException as error:
            self._give_back(job_id, old, error)
            if isinstance(error, OSError):
                raise FreezeRefused(f"{job_id} is not frozen: {error}") from error
            raise
        return plan

    def thaw(self, job_id: str) -> int:
        """Wake the processes that we stopped, and no others; how many. 0 for a job that does not stand still."""
        entry = self._frozen.pop(job_id, None)
        if entry is None:
            return 0
        self._saved = False
        woken = self._wake(entry)
        self._save_again()
        return woken

    def thaw_all(self) -> int:
        """Wake every job: for an agent that ends in order and will not be there at the deadlines."""
        return sum(self.thaw(job_id) for job_id in list(self._frozen))

    def step(self) -> list[str]:
        """Wake what is due, stop what a frozen job has started or somebody has woken since, and say what should be known."""
        now = self._clock()
        for entry in list(self._frozen.values()):
            if not entry.complete:
                count = self.thaw(entry.job_id)
                self._told.append(f"{entry.job_id} was only partly frozen when the agent ended; {count} processes run again")
            elif entry.until_boot_s <= now:
                count = self.thaw(entry.job_id)
                self._told.append(f"{entry.job_id} runs again, its time is up: {count} processes")
        if self._frozen or self._wake_strays:
            self._table.scan()
            self._sweep()
        self._save_again()
        told, self._told = self._told, []
        return told

    # --- stopping ---------------------------------------------------------------------------------------------------

    def _targets(self, job_id: str) -> list[Process]:
        protected = self._table.protected()
        return [process for process in self._table.members(job_id) if process.pid not in protected]

    def _check(self, job_id: str) -> None:
        self._table.scan()
        targets = self._targets(job_id)
        if not targets:
            why = {self._table.protected().get(process.pid, "") for process in self._table.members(job_id)}
            if why:
                raise FreezeRefused(f"none of the processes of {job_id} here may be stopped: {'; '.join(sorted(why))}")
            raise FreezeRefused(f"no process of {job_id} runs on this node")
        for process in targets:
            try:
                os.kill(process.pid, 0)
            except ProcessLookupError:
                continue
            except PermissionError:
                raise FreezeRefused(
                    f"process {process.pid} of {job_id} belongs to another user; the agent must run as that user or as root"
                ) from None

    def _chase(self, plan: Frozen) -> Frozen:
        """Stop until nothing new is found and all of it stands."""
        # The monotonic clock: the chase is a matter of this process, whatever clock the deadlines follow.
        give_up = time.monotonic() + CHASE_S
        while True:
            self._table.scan()
            targets = self._targets(plan.job_id)
            ours = set(plan.processes)
            fresh = [process for process in targets if process.key not in ours and not process.is_stopped]
            moving = [process for process in targets if process.key in ours and not process.is_stopped]
            late = time.monotonic() > give_up
            if fresh and late:
                raise FreezeRefused(f"{plan.job_id} starts processes faster than they can be stopped")
            # One that is deep in the kernel stops when it comes out; the signal waits for it.
            if not fresh and (late or not moving):
                plan = replace(plan, complete=True)
                self._keep(plan)
                return plan
            if fresh:
                plan = replace(plan, processes=(*plan.processes, *(process.key for process in fresh)))
                self._keep(plan)  # before the signal: what is stopped is always known to a successor
            for process in [*fresh, *moving]:
                send(process.key, signal.SIGSTOP)
            if not fresh:
                time.sleep(LOOK_AGAIN_S)

    def _give_back(self, job_id: str, old: Frozen | None, error: BaseException) -> None:
        """After a failure: a job that was frozen before stays so until its old deadline, another runs again."""
        entry = self._frozen.get(job_id)
        if old is not None and isinstance(error, OSError):
            self._frozen[job_id] = old if entry is None else replace(old, processes=entry.processes)
            self._saved = False
        else:
            self.thaw(job_id)

    def _sweep(self) -> None:
        if self._wake_strays:
            self._wake_all_stopped()
        for entry in list(self._frozen.values()):
            ours = set(entry.processes)
            moving = [process for process in self._targets(entry.job_id) if not process.is_stopped]
            fresh = tuple(process.key for process in moving if process.key not in ours)
            try:
                if fresh:
                    self._keep(replace(entry, processes=(*entry.processes, *fresh)))
                for process in moving:
                    send(process.key, signal.SIGSTOP)
            except OSError as error:
                self._frozen[entry.job_id] = entry
                self._told.append(f"{len(moving)} processes of the frozen {entry.job_id} run: {error}")

    # --- waking -----------------------------------------------------------------------------------------------------

    def _wake(self, entry: Frozen) -> int:
        woken = 0
        for key in reversed(entry.processes):  # children first, so that a parent finds them as it left them
            try:
                woken += send(key, signal.SIGCONT)
            except OSError as error:
                self._told.append(f"process {key[0]} of {entry.job_id} could not be woken: {error}")
        return woken

    def _wake_all_stopped(self) -> None:
        """Without a readable file nobody knows who stopped a job's process; a job that stands for ever is the worse mistake."""
        self._wake_strays = False
        for process in self._table.scan().values():
            job_id = self._table.job_of(process)
            if process.state == "T" and job_id is not None and job_id not in self._frozen:
                try:
                    send(process.key, signal.SIGCONT)
                    self._told.append(f"process {process.pid} of {job_id} stood still and was woken")
                except OSError as error:
                    self._told.append(f"process {process.pid} of {job_id} could not be woken: {error}")

    # --- the file ---------------------------------------------------------------------------------------------------

    def _keep(self, entry: Frozen) -> None:
        """Remember ``entry``, durably. Raises OSError, and then remembers it in memory only."""
        self._frozen[entry.job_id] = entry
        self._saved = False
        self._save()

    def _save_again(self) -> None:
        if not self._saved:
            try:
                self._save()
            except OSError as error:
                self._told.append(f"{self._path} could not be written: {error}")

    def _save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        body = {"boot_id": self._boot_id, "frozen": [asdict(entry) for entry in self._frozen.values()]}
        write_durably(self._path, pack(body))
        self._saved = True

    def _load(self) -> dict[str, Frozen]:
        try:
            body = unpack(self._path.read_text(encoding="utf-8"))
            if body["boot_id"] != self._boot_id:
                return {}  # the machine has started anew: none of those processes is left
            return {entry.job_id: entry for entry in map(_entry, body["frozen"])}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._wake_strays = True
            self._told.append(f"{self._path} is damaged ({error}); every stopped process of a job is woken")
            set_aside(self._path)
            self._saved = False  # written over by the first step
            return {}


def _entry(raw: dict[str, Any]) -> Frozen:
    return Frozen(
        job_id=str(raw["job_id"]),
        since_boot_s=float(raw["since_boot_s"]),
        until_boot_s=float(raw["until_boot_s"]),
        processes=tuple((int(pid), int(start)) for pid, start in raw["processes"]),
        complete=bool(raw["complete"]),
    )
