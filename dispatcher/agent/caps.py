"""Caps on this node's GPUs: takes orders, writes them into the lease book, has them set and read back, and tells how it stands.

It does not know why a cap is wanted, and never holds one without a lease.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from .cap_worker import CapState, GpuWorker
from .devices import DeviceInfo, Devices
from .lease_terms import SetCap
from .leases import BadLease, Clock, Lease, LeaseBook, LeaseError

__all__ = ["CapOrders", "CapResult", "CapState", "Enforcer", "SetCap"]

LEAST_SHARE = 0.5  # of the default limit; below, work per joule falls off a cliff, and pausing is better
APPLY_S = 2.0  # how long `apply` waits for the driver; what is not enforced by then is tried on by the GPU's own thread
STEP_WAIT_S = 0.25
STALE_S = 1.5  # a GPU's own thread looks each second; only one that is late is woken
ALARM_S = 60.0  # how long a drift that was put right is told


@dataclass(frozen=True)
class CapOrders:
    """What a control plane of this epoch wants done at once: caps to set, and leases to end."""

    epoch: int
    set: Sequence[SetCap] = ()
    release: Sequence[str] = ()


@dataclass(frozen=True)
class CapResult:
    """What came of one lease of an order. `ok`: the limit was read back as enforced, or the lease's limit as given back."""

    lease_id: str
    ok: bool
    enforced_w: float | None
    took_s: float
    error: str | None = None


class Enforcer:
    """Keeps all GPUs of the node at what their leases say. Making one takes up what the book holds, before anything else.

    Each GPU is kept by a thread of its own, which also ends leases in time when nobody calls `step`. `protected` gives a
    sentence when a GPU must not be capped for economy now because of who works on it; events reach it all the same. Without
    `meet` it begins with the GPUs that have a record, and `watch` brings the others.
    """

    def __init__(
        self,
        devices: Devices,
        book: LeaseBook,
        clock: Clock | None = None,
        protected: Callable[[str], str | None] | None = None,
        meet: bool = True,
    ) -> None:
        self._devices, self._book = devices, book
        self._clock = clock or book.clock
        self._protected = protected
        self._workers: dict[str, GpuWorker] = {}
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="caps orders")
        for uuid in book.known():  # before any GPU is met: one that hangs must not keep another's limit from being given back
            self._add(uuid, None)
        if meet:
            self.watch(devices.infos())
        self.step(self._clock.boot_s())

    def watch(self, infos: Iterable[DeviceInfo]) -> None:
        """Takes over GPUs not known yet, and new facts of known ones."""
        for info in infos:
            self._add(info.uuid, info)

    def _add(self, uuid: str, info: DeviceInfo | None) -> None:
        worker = self._workers.get(uuid)
        if worker is None:
            worker = self._workers[uuid] = GpuWorker(uuid, info, self._devices, self._book, self._clock)
            worker.start()
        elif info is not None:
            worker.info = info

    # -- each second

    def step(self, boot_s: float | None = None) -> list[CapState]:
        """Ends leases that are over, has each GPU looked at, and tells how all stand. Waits 0.25 s for the driver at most."""
        now_s = self._clock.boot_s() if boot_s is None else boot_s
        ended = {lease.uuid for lease in self._book.expire(now_s)}
        until_s = time.monotonic() + STEP_WAIT_S
        due = [w for w in list(self._workers.values()) if w.uuid in ended or w.stale(STALE_S)]
        woken = [(w, w.wake()) for w in due if w.busy_s() < STALE_S]  # one that hangs is not waited for
        for worker, number in woken:
            worker.wait(number, until_s)
        return self.states()

    def states(self) -> list[CapState]:
        """How all GPUs stand, as last seen."""
        return [worker.state() for worker in list(self._workers.values())]

    def alarms(self) -> list[tuple[str, str]]:
        """What a person should know now: a key and a sentence each."""
        found = list(self._book.notices())
        for worker in list(self._workers.values()):
            state, drift = worker.state(), worker.drift_note
            if state.state in ("failed", "unable", "drifted") and state.detail:
                found.append((f"cap:{state.uuid}", f"GPU {state.uuid}: {state.detail}"))
            elif drift and time.monotonic() - drift[0] < ALARM_S:
                found.append((f"drift:{state.uuid}", f"GPU {state.uuid}: {drift[1]}"))
        return found

    # -- orders

    def apply(self, orders: CapOrders) -> list[CapResult]:
        """Carries orders out and waits, two seconds at most, until each is read back. One result a lease, in the order given.

        An order that is refused leaves everything as it was. One that is accepted but not read back in time has `ok` false and
        an error that says so: its lease stands, and it is tried on until the lease ends.
        """
        start_s = time.monotonic()
        granted = list(self._pool.map(lambda one: self._grant(one, orders.epoch), orders.set))
        released = [self._release(lease_id, orders.epoch) for lease_id in orders.release]
        touched = {one[0].uuid for one in (*granted, *released) if not isinstance(one, str)}
        waits = [(self._workers[uuid], self._workers[uuid].wake(new_order=True)) for uuid in touched if uuid in self._workers]
        for worker, number in waits:
            worker.wait(number, start_s + APPLY_S, settled=True)
        results = [self._result(one.lease_id, granted[i], start_s) for i, one in enumerate(orders.set)]
        return results + [self._released(lease_id, released[i], start_s) for i, lease_id in enumerate(orders.release)]

    def _grant(self, order: SetCap, epoch: int) -> tuple[Lease, Lease | None] | str:
        """The lease written down and the one it replaces, or why not."""
        try:
            lease = self._lease(order, epoch)
            self._allowed(order)
            return lease, self._book.grant(lease)
        except LeaseError as error:
            return str(error)

    def _lease(self, order: SetCap, epoch: int) -> Lease:
        boot_s, ttl_s = self._clock.boot_s(), order.ttl_s
        if ttl_s is not None and (not isinstance(ttl_s, (int, float)) or isinstance(ttl_s, bool)):
            raise BadLease(f"ttl_s {ttl_s!r} must be a number of seconds, or null for an open event")
        return Lease(
            lease_id=order.lease_id,
            kind=order.kind,
            uuid=order.uuid,
            limit_w=order.limit_w,
            epoch=epoch,
            reason=order.reason,
            ends_boot_s=None if ttl_s is None else boot_s + ttl_s,
            ends_at=None if ttl_s is None else self._clock.wall_s() + ttl_s,
            boot_id=self._book.boot,
            test=order.test,
        )

    def _allowed(self, order: SetCap) -> None:
        worker = self._workers.get(order.uuid)
        if worker is None:
            raise BadLease(f"GPU {order.uuid} is not on this node")
        info, limit_w = worker.info, order.limit_w
        if info is None or info.min_w is None or info.max_w is None or info.default_w is None:
            raise BadLease(f"GPU {order.uuid} does not tell which limits it allows, so it is not capped")
        if not isinstance(limit_w, (int, float)) or isinstance(limit_w, bool):
            raise BadLease(f"limit_w {limit_w!r} must be a number of watts")
        if limit_w < info.min_w:
            raise BadLease(f"limit_w {limit_w:g} is below what GPU {order.uuid} allows: {info.min_w:g} to {info.max_w:g} W")
        if limit_w < LEAST_SHARE * info.default_w and not order.min_ok:
            least_w = LEAST_SHARE * info.default_w
            raise BadLease(f"limit_w {limit_w:g} is below half the default limit ({least_w:g} W): pause instead, or say min_ok")
        spares = order.kind == "economic" and not order.foreign_ok
        why = self._protected(order.uuid) if self._protected and spares else None
        if why:
            raise BadLease(why)

    def _release(self, lease_id: str, epoch: int) -> tuple[Lease, None] | str:
        try:
            lease = self._book.release(lease_id, epoch)
        except LeaseError as error:
            return str(error)
        return (lease, None) if lease else ""

    def _result(self, lease_id: str, got: tuple[Lease, Lease | None] | str, start_s: float) -> CapResult:
        took_s = time.monotonic() - start_s
        if isinstance(got, str):
            return CapResult(lease_id, False, None, took_s, got)
        lease, before = got
        worker = self._workers[lease.uuid]
        state = worker.state()
        if state.state == "enforced":
            return CapResult(lease_id, True, state.enforced_w, took_s)
        if worker.refused:
            return CapResult(lease_id, False, state.enforced_w, took_s, self._withdraw(lease, before, worker))
        said = f"not read back yet ({state.state}{': ' + state.detail if state.detail else ''}): the lease stands, tried on"
        return CapResult(lease_id, False, state.enforced_w, took_s, said)

    def _withdraw(self, lease: Lease, before: Lease | None, worker: GpuWorker) -> str:
        """Takes back a lease the driver will not carry out, so that nobody counts on it; gives the reason."""
        why = worker.refused or "refused"
        try:
            if before is not None and before.live(self._clock.boot_s()):
                self._book.grant(replace(before, epoch=max(before.epoch, lease.epoch)))
            else:
                self._book.release(lease.lease_id)
        except LeaseError as error:
            why = f"{why}; {error}"
        worker.wake(new_order=True)
        return why

    def _released(self, lease_id: str, got: tuple[Lease, None] | str, start_s: float) -> CapResult:
        took_s = time.monotonic() - start_s
        if isinstance(got, str):  # an empty sentence: there is no such lease, which is what was wanted
            return CapResult(lease_id, not got, None, took_s, got or None)
        worker = self._workers[got[0].uuid]
        state, moving = worker.state(), worker.moving()
        moving = moving or state.state in ("failed", "unable", "drifted")
        said = f"the lease is over, but the limit is not where it should be yet ({state.state}: {state.detail})"
        return CapResult(lease_id, not moving, state.enforced_w, took_s, said if moving else None)

    # -- the end

    def give_back(self, kind: str | None = None, wait_s: float = 3.0) -> list[CapState]:
        """Ends all leases (of one kind) by hand and waits for the limits to be back: for an agent that stops for good."""
        gone = [lease for lease in self._book.leases() if kind is None or lease.kind == kind]
        for lease in gone:
            self._book.release(lease.lease_id)
        until_s = time.monotonic() + wait_s
        for worker, number in [(self._workers[uuid], self._workers[uuid].wake(True)) for uuid in {one.uuid for one in gone}]:
            worker.wait(number, until_s, settled=True)
        return self.states()

    def close(self) -> None:
        """Stops the threads and lets go of the GPUs; caps stay, for the next agent to take up."""
        for worker in self._workers.values():
            worker.stop()
        self._pool.shutdown(wait=False)
        self._book.close()
