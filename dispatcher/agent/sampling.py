"""One look at every GPU at once, each by a thread of its own: a GPU that hangs is not known, and delays no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from .devices import DeviceError, Devices, GpuProcess, Reading

#: Seconds that all GPUs together have for one look.
LOOK_S = 0.6


@dataclass(frozen=True)
class GpuLook:
    """What was read of a GPU; None is what could not be read."""

    reading: Reading | None
    processes: list[GpuProcess] | None


NOTHING = GpuLook(None, None)


class _Sampler:
    """The thread that reads one GPU when it is asked to."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self._changed = threading.Condition()
        self._devices: Devices | None = None
        self._look: GpuLook | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"sample {uuid[:12]}", daemon=True)
        self._thread.start()

    def ask(self, devices: Devices) -> None:
        """Ask for a look; one that is still under way is the look."""
        with self._changed:
            self._look = None
            if self._devices is None:
                self._devices = devices
                self._changed.notify_all()

    def answer(self, until_s: float) -> GpuLook:
        """What was read, or nothing where it takes longer than until ``until_s`` (monotonic)."""
        with self._changed:
            self._changed.wait_for(lambda: self._look is not None, max(0.0, until_s - time.monotonic()))
            return self._look or NOTHING

    def stop(self) -> None:
        """End the thread when it comes back."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._devices is not None)
                if self._stopped:
                    return
                devices = self._devices
            assert devices is not None
            look = read(devices, self.uuid)
            with self._changed:
                self._look, self._devices = look, None
                self._changed.notify_all()


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
    """The samplers of all GPUs, made as GPUs appear."""

    def __init__(self) -> None:
        self._samplers: dict[str, _Sampler] = {}

    def look(self, devices: Devices, uuids: Iterable[str]) -> dict[str, GpuLook]:
        """Read them all, in ``LOOK_S`` s at most."""
        asked = []
        for uuid in uuids:
            sampler = self._samplers.get(uuid)
            if sampler is None:
                sampler = self._samplers[uuid] = _Sampler(uuid)
            sampler.ask(devices)
            asked.append(sampler)
        until_s = time.monotonic() + LOOK_S
        return {sampler.uuid: sampler.answer(until_s) for sampler in asked}

    def close(self) -> None:
        """End the threads; one that hangs in the driver is left behind."""
        for sampler in self._samplers.values():
            sampler.stop()
        self._samplers.clear()
