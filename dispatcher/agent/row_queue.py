"""Energy rows wait here, on disk, until the control plane has them: written before they are sent, forgotten when acknowledged.

Each row is one line with its own checksum, in segment files that are only appended to, so that a crash in the middle of a
write costs that line at most. It holds 48 hours of minutes; beyond that, and on a full disk, the oldest go first, and that is
told. It knows nothing of how rows are made or sent; a row may be sent twice, and the receiver takes it once, by what names it.
The receiver takes no more rows of a GPU's minute once it has some, so those go together always.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .durable import pack, sync_folder, unpack, write_durably
from .metering import EnergyRow, Meter

#: Rows of so many different minutes wait at most: 48 hours. Counted in minutes that were metered, not by the wall clock: one
#: that is set wrongly must not empty the queue.
MAX_MINUTES = 48 * 60
#: However many GPUs there are, the files together stay below this, bytes.
MAX_BYTES = 256 << 20
#: A segment is full at so many bytes or minutes; a whole one is dropped at a time.
SEGMENT_BYTES = 256 << 10
SEGMENT_MINUTES = 60
#: A row that ends further ahead than this, s, waits for its time to come; by more than two days it does not, for the receiver
#: refuses it.
AHEAD_S, WAITS_S = 60.0, MAX_MINUTES * 60.0
#: Rows of one GPU's minute that go together, however few were asked for.
MAX_TOGETHER = 2000
#: Rows that are held in memory while the disk takes none.
MAX_MEMORY_ROWS = 10_000
PREFIX, SUFFIX = "rows-", ".log"
ACKNOWLEDGED, CHECKPOINT = "acknowledged", "meters.json"


@dataclass
class Segment:
    """One file of rows: the numbers of its first and last row, its size, and the minutes in it."""

    path: Path
    first: int
    last: int
    size: int
    minutes: set[int]


def line_of(number: int, row: EnergyRow) -> bytes:
    """One row as a line: checksum, number, JSON."""
    text = f"{number} {json.dumps(vars(row), sort_keys=True, allow_nan=False)}".encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def row_of(line: bytes) -> tuple[int, EnergyRow] | None:
    """(number, row) of a line; None when it was cut short or changed."""
    check, _, text = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or check != b"%08x" % zlib.crc32(text):
        return None
    number, _, body = text.partition(b" ")
    try:
        return int(number), EnergyRow(**json.loads(body))
    except (ValueError, TypeError):
        return None  # a row of another version of this program


class RowQueue:
    """The queue in ``folder``, which it makes. Not thread-safe. Rows are numbered in order; a batch's number is its last row's.

    ``told`` gathers sentences about what was lost or is at risk, for whoever shows them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._segments: deque[Segment] = deque()
        self._memory: deque[tuple[int, EnergyRow]] = deque()
        self._open: int | None = None
        self.told: list[str] = []
        self.dropped = 0
        self._disk_fails = ""
        #: Until when there are rows of each GPU, unix s, among those that a predecessor left.
        self.told_until: dict[str, int] = {}
        self._acknowledged = self._read_acknowledged()
        for path in sorted(folder.glob(f"{PREFIX}*{SUFFIX}")):
            self._find(path)
        last = max((segment.last for segment in self._segments), default=0)
        self._next = max(last, self._acknowledged) + 1
        self._forget_acknowledged()

    def __len__(self) -> int:
        """The rows that wait, about: damaged ones among them count."""
        on_disk = sum(segment.last - max(segment.first - 1, self._acknowledged) for segment in self._segments)
        return max(on_disk, 0) + len(self._memory)

    @property
    def alarm(self) -> str | None:
        """What is wrong with the disk now, as a sentence; None when nothing is."""
        if not self._disk_fails:
            return None
        return f"energy rows cannot be written to {self._folder} ({self._disk_fails}); {len(self._memory)} wait in memory"

    @property
    def next_number(self) -> int:
        """The number that the next row gets."""
        return self._next

    def append(self, rows: Iterable[EnergyRow]) -> None:
        """Take rows; when this returns they are on the disk, or in memory with an ``alarm`` when the disk takes none. Without
        new rows it tries again for those in memory."""
        for row in rows:
            self._memory.append((self._next, row))
            self._next += 1
        self._write_memory()
        if len(self._memory) > MAX_MEMORY_ROWS:
            count = len(self._memory) - MAX_MEMORY_ROWS
            for _ in range(count):
                self._memory.popleft()
            self._tell_dropped(count, "the disk takes none and memory is bounded")
        self._bound()

    def batch(self, limit: int = 500, now_s: float = math.inf) -> tuple[int, list[EnergyRow]] | None:
        """The oldest rows that wait, about ``limit`` of them, and the batch's number; None when none wait. Those of a clock
        that was ahead, whose time has not come at ``now_s`` (unix s), go behind the others."""
        found: list[tuple[int, EnergyRow]] = []
        early: list[tuple[int, EnergyRow]] = []
        for number, row in self._waiting():
            if AHEAD_S < row.end - now_s <= WAITS_S:
                if found:
                    break
                early.append((number, row))
                continue
            last = found[-1][1] if found else row
            together = (row.uuid, row.start, row.node_id) == (last.uuid, last.start, last.node_id)
            if (len(found) >= limit and not together) or len(found) >= max(limit, MAX_TOGETHER):
                break
            found.append((number, row))
        if found and early:  # they are there twice for a moment, which changes nothing
            self.append(row for _, row in early)
            self.acknowledge(early[-1][0])
        return (found[-1][0], [row for _, row in found]) if found else None

    def acknowledge(self, batch: int) -> None:
        """The control plane has this batch and all before it. A number that was never given is ignored."""
        if not self._acknowledged < batch < self._next:
            return
        self._acknowledged = batch
        while self._memory and self._memory[0][0] <= batch:
            self._memory.popleft()
        self._forget_acknowledged()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_durably(self._folder / ACKNOWLEDGED, pack({"number": batch}))
        except OSError as error:
            # Rows are sent once more after a restart, and the control plane takes them once.
            self._disk_fails = str(error)

    def close(self) -> None:
        """Let go of the open file."""
        if self._open is not None:
            os.close(self._open)
            self._open = None

    # --- writing ------------------------------------------------------------------------------------------------------

    def _write_memory(self) -> None:
        if not self._memory and not self._disk_fails:
            return
        try:
            while self._memory:
                number, row = self._memory[0]
                self._write(number, row)
                self._memory.popleft()
            if self._open is not None:
                os.fsync(self._open)
            self._disk_fails = ""
        except OSError as error:
            self._disk_fails = str(error)
            self.close()  # the next try starts a segment of its own, behind whatever half line lies in this one

    def _write(self, number: int, row: EnergyRow) -> None:
        data, segment = line_of(number, row), self._segments[-1] if self._segments else None
        full = segment is not None and (
            segment.size + len(data) > SEGMENT_BYTES or len(segment.minutes | {row.start}) > SEGMENT_MINUTES
        )
        if self._open is None or segment is None or full:
            segment = self._new_segment(number)
        assert self._open is not None
        before = segment.size
        left = data
        try:
            while left:
                left = left[os.write(self._open, left) :]
        except OSError:
            os.ftruncate(self._open, before)
            raise
        segment.size += len(data)
        segment.last = number
        segment.minutes.add(row.start)

    def _new_segment(self, number: int) -> Segment:
        if self._open is not None:
            os.fsync(self._open)
        self.close()
        if self._segments and self._segments[-1].size == 0:
            self._segments.pop().path.unlink(missing_ok=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{PREFIX}{number:012d}{SUFFIX}"
        # Rows of this number can only be the remains of a failed write, so they are written over.
        self._open = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        segment = Segment(path, number, number - 1, 0, set())
        self._segments.append(segment)
        sync_folder(self._folder)
        return segment

    def _bound(self) -> None:
        """Drop the oldest segments until what is left fits."""
        while len(self._segments) > 1 and (
            len(set().union(*(segment.minutes for segment in self._segments))) > MAX_MINUTES
            or sum(segment.size for segment in self._segments) > MAX_BYTES
        ):
            segment = self._segments.popleft()
            count = segment.last - max(segment.first - 1, self._acknowledged)
            segment.path.unlink(missing_ok=True)
            self._acknowledged = max(self._acknowledged, segment.last)
            self._tell_dropped(count, f"{MAX_MINUTES // 60} hours of rows wait already")

    def _tell_dropped(self, count: int, why: str) -> None:
        self.dropped += count
        self.told.append(f"the oldest {count} energy rows were dropped: {why}")

    # --- reading ------------------------------------------------------------------------------------------------------

    def _waiting(self) -> Iterator[tuple[int, EnergyRow]]:
        for segment in self._segments:
            yield from (item for item in self._read(segment.path)[0] if self._acknowledged < item[0] <= segment.last)
        yield from self._memory

    def _read(self, path: Path) -> tuple[list[tuple[int, EnergyRow]], int]:
        """The rows of a segment and how many of its lines mean nothing."""
        try:
            lines = path.read_bytes().splitlines(keepends=True)
        except OSError as error:
            self._disk_fails = str(error)
            return [], 0
        rows = [row_of(line) for line in lines]
        return [row for row in rows if row is not None], rows.count(None)

    def _find(self, path: Path) -> None:
        """Take up a predecessor's segment."""
        rows, damaged = self._read(path)
        if damaged:
            self.told.append(f"{damaged} damaged lines in {path} were skipped")
        if not rows:
            _remove(path)
            return
        for _, row in rows:
            self.told_until[row.uuid] = max(row.end, self.told_until.get(row.uuid, 0))
        minutes = {row.start for _, row in rows}
        self._segments.append(Segment(path, rows[0][0], rows[-1][0], path.stat().st_size, minutes))

    def _read_acknowledged(self) -> int:
        try:
            return int(unpack((self._folder / ACKNOWLEDGED).read_text(encoding="utf-8"))["number"])
        except FileNotFoundError:
            return 0
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.told.append(f"{self._folder / ACKNOWLEDGED} is damaged ({error}); waiting rows are sent again")
            return 0

    def _forget_acknowledged(self) -> None:
        while (
            self._segments and self._segments[0].last <= self._acknowledged and (len(self._segments) > 1 or self._open is None)
        ):
            _remove(self._segments.popleft().path)


def _remove(path: Path) -> None:
    """One that stays, on a disk that takes no writing, is read once more by the next agent and means nothing to it."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def save_meter(folder: Path, meter: Meter, boot_id: str, rows: Sequence[EnergyRow] = (), number: int = 0) -> None:
    """Write down what a successor of ``meter`` needs: each few seconds, and whenever it has made ``rows``, before they are
    queued from ``number`` on. So they are queued once, wherever in between an agent is killed. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {"number": number, "rows": [vars(row) for row in rows]}
    write_durably(folder / CHECKPOINT, pack({**meter.state(boot_id), "made": made}))


def load_meter(
    folder: Path, boot_id: str, node_id: str | None, next_number: int, told: Mapping[str, int] | None = None
) -> tuple[Meter, list[EnergyRow], str | None]:
    """The meter to go on with as ``node_id``; rows to queue (made and not queued yet, as ``next_number`` of the queue shows, or
    the last of a former boot); and a sentence when the file was damaged and is not used. ``told``: see Meter.restore."""
    meter = Meter(node_id)
    try:
        state = unpack((folder / CHECKPOINT).read_text(encoding="utf-8"))
        made = state.get("made") or {"number": 0, "rows": []}
        rows = [EnergyRow(**row) for row in made["rows"][max(0, next_number - made["number"]) :]]
        return meter, [*rows, *meter.restore(state, boot_id, told)], None
    except FileNotFoundError:
        return meter, [], None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        damaged = f"{folder / CHECKPOINT} is damaged ({error}); the energy since the last full minute is not known"
        return Meter(node_id), [], damaged
