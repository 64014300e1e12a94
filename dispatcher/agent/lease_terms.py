"""What a power lease says, and what a GPU's leases together mean: values and pure functions, without files or a driver.

Ends are counted on CLOCK_BOOTTIME, so a jumping wall clock moves none of them; wall time serves only to carry an event lease
over a reboot.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

ECONOMIC_TTL_S = 60.0  # longest life of an economic lease: with silence it is gone within a minute


class LeaseError(Exception):
    """The lease is not accepted."""


class StaleEpoch(LeaseError):
    """The order is of an older control plane than one already heard here, or of another of the same epoch."""


class LateOrder(LeaseError):
    """The order was under way for so long that it may not be what its sender wants now."""


class BadLease(LeaseError):
    """The lease makes no sense."""


class NotWritten(LeaseError):
    """The lease could not be written to disk, so the GPU was not touched."""


class HeldElsewhere(LeaseError):
    """Another agent on this machine holds the GPU, so this one leaves it alone."""


@dataclass(frozen=True)
class SetCap:
    """One limit to hold or renew: ``ttl_s`` s from arrival, None until released (events only); ``min_ok`` allows less than half
    the default limit, ``foreign_ok`` an economic one on work of no job of ours: whose work it is asked for it."""

    lease_id: str
    kind: str
    uuid: str
    limit_w: float
    ttl_s: float | None
    reason: str = ""
    min_ok: bool = False
    test: bool = False
    foreign_ok: bool = False


class Clock:
    """The machine's clocks; tests put their own in its place."""

    def boot_s(self) -> float:
        """Seconds since boot, suspended time included (CLOCK_BOOTTIME): never set, never jumps."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall_s(self) -> float:
        """Unix time in seconds: may jump."""
        return time.time()


def boot_id() -> str:
    """What tells one boot of this machine from the next (Linux' random boot id)."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


@dataclass(frozen=True)
class Lease:
    """One permission to hold a GPU at a limit. `ends_boot_s` (CLOCK_BOOTTIME) is what counts; None means until released."""

    lease_id: str
    kind: str  # "economic" | "event"
    uuid: str
    limit_w: float
    epoch: int
    reason: str
    ends_boot_s: float | None
    ends_at: float | None  # the same end in unix seconds, as the wall clock stood when last written
    boot_id: str
    test: bool = False

    def live(self, boot_s: float) -> bool:
        """Whether it still stands at this boot time; the end itself is not part of it."""
        return self.ends_boot_s is None or boot_s < self.ends_boot_s

    def told(self) -> str:
        """What it holds and until when, in words."""
        until = "it is released"
        if self.ends_at is not None:
            until = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.ends_at))
        return f"{self.limit_w:g} W on {self.uuid} until {until} ({self.reason or self.lease_id})"


@dataclass(frozen=True)
class Record:
    """What is known of one GPU. `saved_w`: the limit to give back; `restore_default`: it is lost, the default limit is due."""

    uuid: str
    boot_id: str
    written_boot_s: float = 0.0
    written_at: float = 0.0
    saved_w: float | None = None
    restore_default: bool = False
    leases: tuple[Lease, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing stands and nothing is to be given back."""
        return not self.leases and self.saved_w is None and not self.restore_default


def is_owed(record: Record) -> bool:
    """Whether no lease stands on a GPU any more, and its limit is still to be given back."""
    return not record.leases and not record.empty


def limit_in_force(leases: Iterable[Lease], boot_s: float) -> float | None:
    """The lowest limit of the live leases, in W; None when none lives."""
    return min((lease.limit_w for lease in leases if lease.live(boot_s)), default=None)


def wanted_w(record: Record, boot_s: float, default_w: float | None) -> float | None:
    """The limit the GPU should have, in W; None: none of ours.

    A cap never raises a limit: it is the lower of the lowest live lease and what is to be given back later.
    """
    back_w = default_w if record.restore_default else record.saved_w
    cap_w = limit_in_force(record.leases, boot_s)
    return min((w for w in (cap_w, back_w) if w is not None), default=None)


def after_start(record: Record, boot: str, boot_s: float, wall_s: float) -> Record:
    """What a record read from disk means now.

    In the same boot it stands as it is. After a reboot the driver has forgotten all limits: economic leases are dropped,
    nothing is to be given back, and an event lease goes on for what the wall clock leaves of it, at most for what was left
    when it was last written.
    """
    if record.boot_id == boot and boot_s >= record.written_boot_s - 1.0:
        return record
    carried = (_carried(lease, record, boot, boot_s, wall_s) for lease in record.leases if lease.kind == "event")
    return Record(record.uuid, boot, boot_s, wall_s, leases=tuple(lease for lease in carried if lease.live(boot_s)))


def _carried(lease: Lease, record: Record, boot: str, boot_s: float, wall_s: float) -> Lease:
    if lease.ends_boot_s is None or lease.ends_at is None:
        return replace(lease, boot_id=boot)
    left_s = min(lease.ends_at - wall_s, lease.ends_boot_s - record.written_boot_s)
    return replace(lease, boot_id=boot, ends_boot_s=boot_s + left_s, ends_at=wall_s + left_s)


def anchored(record: Record, boot: str, boot_s: float, wall_s: float) -> Record:
    """The record as it is written now: wall ends follow the wall clock of this moment, boot-time ends stay."""

    def moved(lease: Lease) -> Lease:
        return lease if lease.ends_boot_s is None else replace(lease, ends_at=wall_s + lease.ends_boot_s - boot_s)

    return replace(record, boot_id=boot, written_boot_s=boot_s, written_at=wall_s, leases=tuple(map(moved, record.leases)))


def check(lease: Lease, boot_s: float) -> None:
    """Raises BadLease, naming the field, when the lease makes no sense at this boot time."""
    if not isinstance(lease.lease_id, str) or not 1 <= len(lease.lease_id) <= 200:
        raise BadLease(f"lease_id {lease.lease_id!r} must be a text of 1 to 200 characters")
    if not isinstance(lease.reason, str) or len(lease.reason) > 1000:
        raise BadLease("reason must be a text of 1000 characters at most")
    if lease.kind not in ("economic", "event"):
        raise BadLease(f"kind {lease.kind!r} must be economic or event")
    if not _number(lease.limit_w) or lease.limit_w <= 0:
        raise BadLease(f"limit_w {lease.limit_w!r} must be a number of watts above 0")
    if not isinstance(lease.epoch, int) or isinstance(lease.epoch, bool) or lease.epoch < 0:
        raise BadLease(f"epoch {lease.epoch!r} must be a whole number, 0 or more")
    if lease.ends_boot_s is None:
        if lease.kind == "economic":
            raise BadLease(f"an economic lease needs an end: ttl_s above 0 and at most {ECONOMIC_TTL_S:g}")
        return
    if not _number(lease.ends_boot_s) or not lease.live(boot_s):
        raise BadLease("the lease is over before it begins: ttl_s must be a number of seconds above 0")
    if lease.kind == "economic" and lease.ends_boot_s - boot_s > ECONOMIC_TTL_S + 1e-3:
        ttl_s = lease.ends_boot_s - boot_s
        raise BadLease(f"ttl_s {ttl_s:g} is too long: an economic lease lasts {ECONOMIC_TTL_S:g} s at most")


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
