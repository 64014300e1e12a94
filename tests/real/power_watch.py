"""Watches of simulated GPUs and of their agents' lease files, from outside: what the drivers themselves say, and when."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from dispatcher.agent.durable import unpack
from dispatcher.simgpu import SimGpus
from dispatcher.simgpu.state import SimGpu

#: Seconds between two looks.
LOOK_S = 0.02
MINUTE_S = 60


@dataclass
class Seen:
    """What a driver has shown of one GPU. Times are unix s: changes of its limit, W, with what stood at first; its true energy,
    J, at each whole minute, and when each process came and went."""

    gpu: SimGpu
    limits: list[tuple[float, float]] = field(default_factory=list)
    minutes: dict[int, float] = field(default_factory=dict)
    came: dict[int, float] = field(default_factory=dict)  # energy, J, at a process' coming
    went: dict[int, float] = field(default_factory=dict)

    def look(self) -> None:
        """One look."""
        record, at = self.gpu.read(), time.time()
        limit_w, energy_j = record.limit_mw / 1000, record.energy_mj / 1000
        if not self.limits or self.limits[-1][1] != limit_w:
            self.limits.append((at, limit_w))
        minute = int(at // MINUTE_S) * MINUTE_S
        if minute not in self.minutes:
            # Power hardly moves within a look; the first minute was under way already.
            self.minutes[minute] = energy_j - self.gpu.power_w * (at - minute)
        pids = {int(process.pid) for process in record.processes[: record.process_count]}
        for pid in pids - self.came.keys():
            self.came[pid] = energy_j
        for pid in self.came.keys() - self.went.keys() - pids:
            self.went[pid] = energy_j

    def first_at(self, after: float, limit_below_w: float | None = None, limit_w: float | None = None) -> float | None:
        """When the limit was first below, or at, something after a moment; None so far."""
        for at, stood_w in list(self.limits):
            if at >= after and ((limit_below_w is not None and stood_w < limit_below_w) or stood_w == limit_w):
                return at
        return None


class Watcher:
    """A thread that looks again and again while it is used as a context manager; what breaks it fails the test."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: BaseException | None = None

    def look(self) -> None:
        """One look."""
        raise NotImplementedError

    def _run(self) -> None:
        try:
            while not self._stop.wait(LOOK_S):
                self.look()
        except BaseException as error:  # noqa: BLE001 - raised again where the test hears it
            self._error = error

    def __enter__(self) -> Self:
        self.look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error


class DriverWatch(Watcher):
    """What the drivers of several nodes show; ``seen`` by UUID."""

    def __init__(self, *nodes: SimGpus) -> None:
        super().__init__()
        self.seen = {gpu.uuid: Seen(gpu) for gpus in nodes for gpu in gpus}

    def look(self) -> None:
        """See Watcher."""
        for one in self.seen.values():
            one.look()

    def minutes(self) -> set[int]:
        """The whole minutes at which every GPU's energy is known; the first was under way when this began."""
        return set.intersection(*(set(list(one.minutes)[1:]) for one in self.seen.values())) or {0}

    def drawn_wh(self, start: int, end: int) -> float:
        """True energy between two whole minutes that were watched, of all GPUs."""
        return sum(one.minutes[end] - one.minutes[start] for one in self.seen.values()) / 3600


def boot_s() -> float:
    """The clock that leases count by."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Promise:
    """An event that was told to the control plane: no cap for it may go before its end, unix s."""

    event_id: str
    ends_at: float


class LeaseWatch(Watcher):
    """The promises of leases on one node, checked at every look: what broke one is in ``broken``, a sentence each.

    ``folder`` is the agent's, ``saved`` the limits that stood before, in the GPUs' order. A cap may outlive its lease by
    ``late_s``; an event's cap may go ``early_s`` before its end, for ends are told in whole frames over a connection.
    """

    def __init__(self, gpus: SimGpus, folder: Path, saved: Sequence[float], late_s: float = 10.0, early_s: float = 0.3) -> None:
        super().__init__()
        self._gpus, self._folder, self._late_s, self._early_s = list(gpus), folder / "leases", late_s, early_s
        self._saved = {gpu.uuid: saved_w for gpu, saved_w in zip(self._gpus, saved, strict=True)}
        self._stood = {gpu.uuid: boot_s() for gpu in self._gpus}  # boot s at which a lease was last seen to stand
        self._above = {gpu.uuid: 0.0 for gpu in self._gpus}  # boot s at which the limit was last seen to obey
        self._held: dict[tuple[str, str], float] = {}  # GPU, event: when first seen
        self._epoch = 0
        self.promises: dict[str, Promise] = {}
        self.broken: list[str] = []
        self.event_leases = 0
        self.economic_leases = 0
        self.longest_late_s = 0.0

    def look(self) -> None:
        """See Watcher."""
        epoch = max([self._epoch_of(), *(lease["epoch"] for gpu in self._gpus for lease in self._leases(gpu.uuid))])
        if epoch < self._epoch:
            self._break(f"the epoch fell from {self._epoch} to {epoch}")
        self._epoch = max(epoch, self._epoch)
        for gpu in self._gpus:
            self._check(gpu)

    def _epoch_of(self) -> int:
        try:
            return int(unpack((self._folder / "epoch.json").read_text())["epoch"])
        except FileNotFoundError:
            return self._epoch

    def _leases(self, uuid: str) -> list[dict[str, Any]]:
        try:
            leases: list[dict[str, Any]] = unpack((self._folder / f"{uuid}.json").read_text())["leases"]
        except FileNotFoundError:
            return []
        return leases

    def _check(self, gpu: SimGpu) -> None:
        uuid, saved_w = gpu.uuid, self._saved[gpu.uuid]
        # The lease is written before its limit is set, and struck off before the limit is given back.
        limit_w, leases = gpu.limit_w, self._leases(uuid)
        now, wall = boot_s(), time.time()
        live = [lease for lease in leases if lease["ends_boot_s"] is None or now < lease["ends_boot_s"]]
        if live:
            self._stood[uuid] = now
        if limit_w == saved_w or live:
            self._above[uuid] = now if limit_w == saved_w or self._obeys(limit_w, live) else self._above[uuid]
        elif limit_w < saved_w:
            late_s = now - self._stood[uuid]
            self.longest_late_s = max(self.longest_late_s, late_s)
            if late_s > self._late_s:
                self._break(f"GPU {gpu.index} has {limit_w:g} W though its last lease ended {late_s:.1f} s ago")
        if limit_w > saved_w:
            self._break(f"GPU {gpu.index} has {limit_w:g} W, more than the {saved_w:g} W that stood before")
        self._check_events(gpu, limit_w, live, now, wall)

    @staticmethod
    def _obeys(limit_w: float, live: list[dict[str, Any]]) -> bool:
        return limit_w <= min(float(lease["limit_w"]) for lease in live) + 1.0

    def _check_events(self, gpu: SimGpu, limit_w: float, live: list[dict[str, Any]], now: float, wall: float) -> None:
        here = {lease["lease_id"] for lease in live}
        self.economic_leases += any(lease["kind"] == "economic" for lease in live)
        for promise in list(self.promises.values()):
            key = (gpu.uuid, promise.event_id)
            name = f"event {promise.event_id} {gpu.uuid}"
            if name in here and key not in self._held:
                self._held[key] = now
                self.event_leases += 1
            if key not in self._held or wall >= promise.ends_at - self._early_s:
                continue
            left_s = promise.ends_at - wall
            if name not in here:
                self._break(f"the lease of {promise.event_id} on GPU {gpu.index} is gone {left_s:.1f} s before its end")
                del self._held[key]
            elif limit_w == self._saved[gpu.uuid] and now - self._held[key] > 5.0:
                self._break(f"GPU {gpu.index} is not capped {left_s:.1f} s before the end of {promise.event_id}")

    def _break(self, sentence: str) -> None:
        self.broken.append(f"{time.strftime('%H:%M:%S')}.{int(time.time() % 1 * 1000):03d} {sentence}")


@contextmanager
def watched(*watchers: Watcher) -> Iterator[None]:
    """All of them at once."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        for watcher in watchers:
            stack.enter_context(watcher)
        yield
