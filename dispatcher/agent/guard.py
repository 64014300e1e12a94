"""Gives limits back and wakes frozen jobs when the agent is gone for good: a process beside an agent whose keeper may end too.

A Ray that is stopped takes the agents on its nodes along, and an agent that is stopped in order leaves event limits standing:
nobody would be left to end their leases. The guard waits for the folder of the agent to be free for longer than a restart
takes; then it keeps the leases until all that have an end are over. The processes of a frozen job may outlive Ray, and one that
is stopped cannot even end.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from .caps import Enforcer
from .devices import DeviceError
from .freezing import Freezer
from .lease_terms import is_owed
from .leases import LeaseBook, LeaseError, boot_id, gpus_in
from .node import FolderBusy, FolderLock, OwnDevices
from .processes import ProcessTable
from .release import answer_requests
from .service import set_up_log

log = logging.getLogger("gridshift.agent")

#: The lock of the one guard of a folder.
GUARD_LOCK = "guard.lock"
#: Seconds between two looks at whether the agent lives.
LOOK_S = 1.0
#: Seconds without an agent after which the guard takes over: no limit may outlive its lease by more than 10 s.
ALONE_S = 6.0
#: Seconds for which it keeps the leases at a time, and then leaves the folder free for an agent that comes back.
KEEP_S, FREE_S = 4.0, 1.5


def start(folder: Path) -> None:
    """Start the guard of ``folder``, as nobody's child, so that nothing that ends us ends it. A second one ends by itself."""
    # The shell ends at once and leaves its child to the machine's first process.
    command = 'exec "$0" -m dispatcher.agent.guard "$1" & '
    path = os.pathsep.join([str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, str(folder.absolute())],
        env={**os.environ, "PYTHONPATH": path},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        check=False,
    )


def agent_lives(folder: Path) -> bool:
    """Whether somebody works in the folder now."""
    try:
        FolderLock(folder, tries=1).close()
    except FolderBusy:
        return True
    return False


def holds(folder: Path) -> bool:
    """Whether it is a guard that works in the folder: an agent that starts has it in a few seconds."""
    try:
        return (folder / "agent.lock").read_bytes() == (folder / GUARD_LOCK).read_bytes()
    except OSError:
        return False


def keep_leases(folder: Path, keep_s: float = KEEP_S) -> bool:
    """Do an agent's duty for a while: wake jobs whose time is up, put leases in force, end those that are over, give limits
    back, release by hand what is asked for. Returns whether there is more to do, which leases without an end are not: they are
    for a person to end."""
    try:
        lock = FolderLock(folder)
    except FolderBusy:
        return True
    try:
        stand = wake_due(folder)
        return _keep_limits(folder, keep_s) or stand
    finally:
        lock.close()


def wake_due(folder: Path) -> bool:
    """Wake the frozen jobs whose time is up; whether others still stand."""
    try:
        freezer = Freezer(folder, ProcessTable(), boot_id())
        for sentence in freezer.step():
            log.warning("%s", sentence)
    except OSError as error:
        log.warning("frozen jobs cannot be looked at now: %s", error)
        return True
    return bool(freezer.frozen())


def _keep_limits(folder: Path, keep_s: float) -> bool:
    try:
        try:
            devices = OwnDevices()
        except DeviceError as error:
            log.warning("limits cannot be given back now: %s", error)
            return bool(gpus_in(folder / "leases"))
        try:
            book = LeaseBook(folder / "leases")
            enforcer = Enforcer(devices, book, meet=False)
            try:
                until = time.monotonic() + keep_s
                enforcer.step()
                answer_requests(folder, book, enforcer)
                while is_needed(book) and time.monotonic() < until:
                    time.sleep(0.25)
                    enforcer.step()
                    answer_requests(folder, book, enforcer)
                return is_needed(book)
            finally:
                enforcer.close()
        finally:
            devices.close()
    except (DeviceError, LeaseError, OSError) as error:
        log.warning("limits cannot be given back now: %s", error)
        return True


def is_needed(book: LeaseBook) -> bool:
    """Whether a lease has an end to come, a limit is still to be given back, or a GPU's lease could not be looked at yet."""
    if set(book.known()) - set(book.held()):
        return True
    records = [book.record(uuid) for uuid in book.held()]
    return any(is_owed(one) or any(lease.ends_boot_s is not None for lease in one.leases) for one in records)


class Guard:
    """Watches a folder; ``watch`` returns when there is nothing left to guard."""

    def __init__(self, folder: Path, mono: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._mono = folder, mono

    def watch(self) -> None:
        """Wait for the agent to go, then do its duty until that is done or an agent is there again."""
        seen, told = self._mono(), False
        while self._folder.is_dir():
            if agent_lives(self._folder):
                seen, told = self._mono(), False
            elif self._mono() - seen >= ALONE_S:
                if not told:
                    log.warning("no agent works in %s: its leases are kept until they end", self._folder)
                    told = True
                if not keep_leases(self._folder):
                    log.warning("nothing is left to guard in %s", self._folder)
                    return
                time.sleep(FREE_S)
                continue
            time.sleep(LOOK_S)


def main(folder: Path, wait: bool = False) -> int:
    """Guard ``folder``, unless somebody does already; with ``wait``, when that one is gone."""
    set_up_log()
    while True:
        try:
            lock = FolderLock(folder, GUARD_LOCK)
            break
        except FolderBusy:
            if not wait:
                return 0
            time.sleep(LOOK_S)
    Guard(folder).watch()
    lock.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[-1]), wait="--wait" in sys.argv[1:-1]))
