"""One look at every GPU: a GPU that hangs is not known, and delays no other.

While the driver answers, one thread reads them all, for threads that take turns cost more than what they read.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from .devices import DeviceError, Devices, GpuProcess, Reading

#: Seconds that all GPUs together have for one look.
LOOK_S = 0.6
#: Seconds without an answer after which each GPU that waits to be read gets a thread of its own.
STALL_S = 0.05


@dataclass(frozen=True)
class GpuLook:
    """What was read of a GPU; None is what could not be read."""

    reading: Reading | None
    processes: list[GpuProcess] | None


NOTHING = GpuLook(None, None)


def read(devices: Devices, uuid: str) -> GpuLook:
    """One look at one GPU; may take as long as the driver takes."""
    try:
        # Who is there first: somebody who leaves in between has drawn what the reading shows.
        processes: list[GpuProcess] | None = devices.processes(uuid)
    except DeviceError:
        processes = None
    try:
        return GpuLook(devices.reading(uuid), processes)
    except DeviceError:
        return GpuLook(None, processes)


class Samplers:
    """Threads that read GPUs when they are asked to: one, and as many more as there were GPUs that hung at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._work, self._answered = threading.Condition(self._lock), threading.Condition(self._lock)
        self._devices: Devices | None = None
        self._waiting: deque[str] = deque()
        self._under_way: set[str] = set()
        self._looks: dict[str, GpuLook] = {}
        self._threads = self._resting = 0
        self._stopped = False

    def look(self, devices: Devices, uuids: Iterable[str]) -> dict[str, GpuLook]:
        """Read them all, in ``LOOK_S`` s at most. A reading that is still under way from before is the look."""
        asked = list(uuids)
        until_s = time.monotonic() + LOOK_S
        with self._lock:
            self._devices, self._looks = devices, {}
            self._waiting = deque(uuid for uuid in asked if uuid not in self._under_way)
            self._put_to_work(1)
            while len(self._looks) < len(asked) and (left_s := until_s - time.monotonic()) > 0:
                before = len(self._looks)
                self._answered.wait_for(lambda: len(self._looks) >= len(asked), min(STALL_S, left_s))
                if len(self._looks) == before:
                    self._put_to_work(len(self._waiting))
            self._waiting.clear()
            return {uuid: self._looks.get(uuid, NOTHING) for uuid in asked}

    def close(self) -> None:
        """End the threads; one that hangs in the driver is left behind."""
        with self._lock:
            self._stopped = True
            self._work.notify_all()

    def _put_to_work(self, count: int) -> None:
        """See that so many more threads read what waits (the lock is held)."""
        count = min(count, len(self._waiting))
        self._work.notify(count)
        for _ in range(count - self._resting):
            self._threads += 1
            threading.Thread(target=self._run, name=f"sample {self._threads}", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._resting += 1
                self._work.wait_for(lambda: self._stopped or self._waiting)
                self._resting -= 1
                if self._stopped:
                    return
                uuid, devices = self._waiting.popleft(), self._devices
                self._under_way.add(uuid)
            assert devices is not None
            look = NOTHING
            try:
                look = read(devices, uuid)
            finally:
                with self._lock:
                    self._under_way.discard(uuid)
                    self._looks[uuid] = look
                    if not self._waiting:
                        self._answered.notify()
