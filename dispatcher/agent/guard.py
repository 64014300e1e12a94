"""Gives limits back and wakes frozen jobs when the agent is gone for good: a process beside an agent whose keeper may end too.

A Ray that is stopped takes the agents on its nodes along, and nobody would be left to end their leases. The guard waits for the
folder of the agent to be free for longer than a restart takes; then it keeps the leases until all that have an end are over.
The processes of a frozen job may outlive Ray, and one that is stopped cannot even end.
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
from .leases import LeaseBook, LeaseError, boot_id
from .node import FolderBusy, FolderLock, OwnDevices
from .processes import ProcessTable
from .service import set_up_log

log = logging.getLogger("gridshift.agent")

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
        ["/bin/sh", "-c", command, sys.executable, str(folder)],
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


def keep_leases(folder: Path, keep_s: float = KEEP_S) -> bool:
    """Do an agent's duty for a while: wake jobs whose time is up, put leases in force, end those that are over, give limits
    back. Returns whether there is more to do, which leases without an end are not: they are for a person to end."""
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
            return any((folder / "leases").glob("*.json"))
        try:
            book = LeaseBook(folder / "leases")
            enforcer = Enforcer(devices, book)
            try:
                until = time.monotonic() + keep_s
                enforcer.step()
                while is_needed(book) and time.monotonic() < until:
                    time.sleep(0.25)
                    enforcer.step()
                return is_needed(book)
            finally:
                enforcer.close()
        finally:
            devices.close()
    except (DeviceError, LeaseError) as error:
        log.warning("limits cannot be given back now: %s", error)
        return True


def is_needed(book: LeaseBook) -> bool:
    """Whether a lease has an end to come, or a limit is still to be given back."""
    for uuid in book.held():
        record = book.record(uuid)
        if any(lease.ends_boot_s is not None for lease in record.leases):
            return True
        if not record.leases and not record.empty:
            return True
    return False


class Guard:
    """Watches a folder; ``watch`` returns when there is nothing left to guard."""

    def __init__(self, folder: Path, mono: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._mono = folder, mono

    def watch(self) -> None:
        """Wait for the agent to go, then do its duty until that is done or an agent is there again."""
        seen = self._mono()
        while True:
            if agent_lives(self._folder):
                seen = self._mono()
            elif self._mono() - seen >= ALONE_S:
                log.warning("no agent works in %s: its leases are kept until they end", self._folder)
                if not keep_leases(self._folder):
                    return
                time.sleep(FREE_S)
                continue
            time.sleep(LOOK_S)


def main(folder: Path) -> int:
    """Guard ``folder``, unless somebody does already."""
    set_up_log()
    try:
        lock = FolderLock(folder, "guard.lock")
    except FolderBusy:
        return 0
    Guard(folder).watch()
    lock.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
