"""The lease book of a node: which power limits stand on its GPUs, until when, from whom, and what stood before; on local disk.

It does not know the driver: caps.py sets limits and reads them back, always after what it needs to undo them is written here.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path

from .durable import is_at, open_lock, pack, set_aside, sync_folder, unpack, write_durably
from .epochs import FILE_NAME, Epochs
from .lease_terms import (
    ECONOMIC_TTL_S,
    BadLease,
    Clock,
    HeldElsewhere,
    Lease,
    LeaseError,
    NotWritten,
    Record,
    StaleEpoch,
    after_start,
    anchored,
    boot_id,
    check,
    limit_in_force,
    wanted_w,
)

__all__ = [
    "ECONOMIC_TTL_S",
    "BadLease",
    "Clock",
    "HeldElsewhere",
    "Lease",
    "LeaseBook",
    "LeaseError",
    "NotWritten",
    "Record",
    "StaleEpoch",
    "boot_id",
    "limit_in_force",
    "wanted_w",
]

log = logging.getLogger("gridshift.agent")

_ANCHOR_S = 5.0  # a wall clock that moved by more than this against boot time is noted, for the next reboot
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,99}\Z")


def _to_text(record: Record) -> str:
    return pack(asdict(record))


def _from_text(text: str, uuid: str) -> Record:
    body = unpack(text)
    if body.get("uuid") != uuid:
        raise ValueError(f"it speaks of {body.get('uuid')!r}")
    try:
        leases = tuple(Lease(**{f.name: item[f.name] for f in fields(Lease)}) for item in body["leases"])
        return Record(**{**{f.name: body[f.name] for f in fields(Record)}, "leases": leases})
    except (KeyError, TypeError) as error:
        raise ValueError(f"a field is missing: {error}") from None


def gpus_in(folder: Path) -> list[str]:
    """The GPUs of which a book in this folder has a file."""
    stems = (path.stem for path in sorted(folder.glob("*.json")))
    return [stem for stem in stems if f"{stem}.json" != FILE_NAME and _UUID.match(stem)]


class LeaseBook:
    """The records of a node's GPUs in a folder: one file a GPU, each under a lock that one agent at a time can have.

    A new lease that cannot be written is refused (NotWritten). What gives power back (release, expiry) takes effect at once and
    is written as soon as the disk allows; until then `notices` says so. Safe to use from several threads.
    """

    def __init__(
        self, folder: Path | str, clock: Clock | None = None, boot: str | None = None, epochs: Epochs | None = None
    ) -> None:
        self.folder = Path(folder)
        self.clock = clock or Clock()
        self.boot = boot or boot_id()
        self._locks: dict[str, int] = {}  # open lock files of the GPUs held
        self._records: dict[str, Record] = {}
        self._guards: dict[str, threading.RLock] = {}
        self._guard = threading.RLock()  # the tables above
        self._unwritten: set[str] = set()
        self._notices: dict[str, str] = {}
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise NotWritten(f"the agent's folder {self.folder} cannot be made: {error.strerror}") from error
        self._epochs = epochs or Epochs(self.folder)

    # -- holding GPUs

    def hold(self, uuid: str) -> Record:
        """Takes the GPU's lock and reads its record; HeldElsewhere says who has it. Held twice by the same book is fine."""
        if not _UUID.match(uuid):
            raise BadLease(f"uuid {uuid!r} is not a GPU's UUID: letters, digits and dashes")
        with self._guard:
            if uuid in self._locks:
                return self._records[uuid]
            self._locks[uuid] = self._lock(uuid)
            self._guards[uuid] = threading.RLock()
            found = self._read(uuid)
            now = after_start(found, self.boot, self.clock.boot_s(), self.clock.wall_s())
            self._records[uuid] = now
            self._epochs.raise_to(max((lease.epoch for lease in now.leases), default=0))
        with self._changing(uuid):
            if now.restore_default or now != found:
                self._give_back(uuid, now)
        return now

    def known(self) -> list[str]:
        """The GPUs that have a file here, held or not."""
        return gpus_in(self.folder)

    def load(self) -> dict[str, Record]:
        """Holds every GPU that has a file here and that can be held; gives the records that stand."""
        for uuid in self.known():
            try:
                self.hold(uuid)
            except LeaseError as error:
                log.warning("%s", error)
        return dict(self._records)

    def close(self) -> None:
        """Lets go of all GPUs; what stands goes on standing, for the next agent to take up."""
        with self._guard:
            for handle in self._locks.values():
                os.close(handle)
            self._locks.clear()
            self._records.clear()

    def _lock(self, uuid: str) -> int:
        path = self.folder / f"{uuid}.lock"
        while True:
            try:
                handle = open_lock(path)
            except OSError as error:
                raise NotWritten(f"the lock {path} cannot be opened: {error.strerror}") from error
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = os.read(handle, 200).decode(errors="replace").strip() or "an agent that has not said who it is"
                os.close(handle)
                raise HeldElsewhere(f"GPU {uuid} is held by {holder}; this agent leaves it alone") from None
            if is_at(handle, path):
                break
            os.close(handle)  # somebody deleted the lock file in between
        with contextlib.suppress(OSError):  # a full disk must not keep us from giving back
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()}".encode())
        return handle

    def _read(self, uuid: str) -> Record:
        path = self.folder / f"{uuid}.json"
        try:
            return _from_text(path.read_bytes().decode(), uuid)
        except FileNotFoundError:
            return Record(uuid, self.boot)
        except (OSError, ValueError) as error:
            aside = set_aside(path)
            where = f"kept as {aside.name}" if aside else "no copy could be kept"
            self._tell(f"damaged:{uuid}", f"{path.name} is damaged ({error}; {where}): the GPU goes back to its default limit")
            return Record(uuid, self.boot, restore_default=True)

    # -- the epoch

    @property
    def epoch(self) -> int:
        """The highest epoch heard here; 0 before the first order."""
        return self._epochs.highest

    # -- leases

    def grant(self, lease: Lease) -> Lease | None:
        """Writes down a new lease, or the new terms of one already here, whose old terms are given back.

        Raises StaleEpoch, BadLease (also for a lease that changes its GPU or kind: an event cap must not turn into one that
        silence ends), NotWritten. Returns only when the lease is on disk.
        """
        boot_s = self.clock.boot_s()
        check(lease, boot_s)
        with self._changing(lease.uuid):
            known = self.find(lease.lease_id)
            if known and (known.uuid, known.kind) != (lease.uuid, lease.kind):
                raise BadLease(f"lease {lease.lease_id} is already an {known.kind} lease of GPU {known.uuid}")
            self._epochs.see(lease.epoch)
            record = self._records[lease.uuid]
            others = tuple(other for other in record.leases if other.lease_id != lease.lease_id)
            self._write(lease.uuid, replace(record, leases=(*others, lease)))
        return known

    def release(self, lease_id: str, epoch: int | None = None) -> Lease | None:
        """Ends a lease now; None when there is none of that name. Without an epoch: by hand, at this machine.

        Raises StaleEpoch.
        """
        if epoch is not None:
            self._epochs.see(epoch, must_write=False)
        known = self.find(lease_id)
        if known is None:
            return None
        with self._changing(known.uuid):
            record = self._records[known.uuid]
            left = tuple(lease for lease in record.leases if lease.lease_id != lease_id)
            self._give_back(known.uuid, replace(record, leases=left))
        return known

    def expire(self, boot_s: float, uuid: str | None = None) -> list[Lease]:
        """Ends the leases that are over, of one GPU or of all, and gives them; also writes what could not be written before."""
        ended: list[Lease] = []
        for name in [uuid] if uuid else list(self._records):
            with self._changing(name):
                record = self._records[name]
                over = [lease for lease in record.leases if not lease.live(boot_s)]
                if over:
                    self._give_back(name, replace(record, leases=tuple(lease for lease in record.leases if lease.live(boot_s))))
                elif name in self._unwritten or self._wall_moved(record, boot_s):
                    self._give_back(name, record)
                ended += over
        return ended

    def _wall_moved(self, record: Record, boot_s: float) -> bool:
        """Whether the wall clock was set since the last writing, so that an end by wall time would be wrong after a reboot."""
        if not any(lease.kind == "event" and lease.ends_boot_s is not None for lease in record.leases):
            return False
        return abs((self.clock.wall_s() - boot_s) - (record.written_at - record.written_boot_s)) > _ANCHOR_S

    def save_limit(self, uuid: str, limit_w: float) -> None:
        """Writes down the limit that stands before the first cap; a later one changes nothing. Raises NotWritten."""
        with self._changing(uuid):
            record = self._records[uuid]
            if record.saved_w is None and not record.restore_default:
                self._write(uuid, replace(record, saved_w=limit_w))

    def forget(self, uuid: str) -> bool:
        """Call when the saved limit was set back and read back: nothing is left to undo. False when a lease came in between."""
        with self._changing(uuid):
            record = self._records[uuid]
            if record.leases:
                return False
            self._give_back(uuid, replace(record, saved_w=None, restore_default=False))
            return True

    # -- reading

    def record(self, uuid: str) -> Record:
        """What is known of a GPU held here; KeyError for another."""
        return self._records[uuid]

    def held(self) -> list[str]:
        """The GPUs whose lock this book has."""
        return list(self._records)

    def leases(self) -> list[Lease]:
        """All leases of the GPUs held here."""
        return [lease for record in list(self._records.values()) for lease in record.leases]

    def find(self, lease_id: str) -> Lease | None:
        """The lease of that name."""
        return next((lease for lease in self.leases() if lease.lease_id == lease_id), None)

    def notices(self) -> list[tuple[str, str]]:
        """What a person should know: damaged files, things not on disk yet; a key and a sentence each."""
        return [*self._epochs.notices.items(), *self._notices.items()]

    # -- writing

    @contextlib.contextmanager
    def _changing(self, uuid: str) -> Iterator[None]:
        guard = self._guards.get(uuid)
        if guard is None:
            raise BadLease(f"GPU {uuid} is not held by this agent")
        with guard:
            if uuid not in self._records:
                raise BadLease(f"GPU {uuid} is not held by this agent any more")
            yield

    def _write(self, uuid: str, record: Record) -> None:
        """First the disk, then what this process believes. Raises NotWritten and believes what it did before."""
        record = anchored(record, self.boot, self.clock.boot_s(), self.clock.wall_s())
        path = self.folder / f"{uuid}.json"
        try:
            write_durably(path, _to_text(record))
        except OSError as error:
            self._unwritten.add(uuid)  # the new text may stand there all the same: the old one is put back when possible
            raise NotWritten(f"{path} could not be written ({error.strerror}): no limit is set without it") from error
        self._records[uuid] = record
        self._written(uuid)

    def _give_back(self, uuid: str, record: Record) -> None:
        """First what this process believes, then the disk: a full one must not keep a cap. An empty record is no file."""
        record = anchored(record, self.boot, self.clock.boot_s(), self.clock.wall_s())
        self._records[uuid] = record
        path = self.folder / f"{uuid}.json"
        try:
            if not record.empty:
                write_durably(path, _to_text(record))
            else:
                path.unlink(missing_ok=True)
                sync_folder(self.folder)
        except OSError as error:
            self._unwritten.add(uuid)
            self._tell(f"unwritten:{uuid}", f"{path.name} is not up to date ({error.strerror}); tried again each second")
        else:
            self._written(uuid)

    def _written(self, uuid: str) -> None:
        self._unwritten.discard(uuid)
        self._notices.pop(f"unwritten:{uuid}", None)

    def _tell(self, key: str, sentence: str) -> None:
        if self._notices.get(key) != sentence:
            log.warning("%s", sentence)
        self._notices[key] = sentence
