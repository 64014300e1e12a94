"""Rows of CSV files, plain or gzipped, in chunks by column, with every fault named by line and column.

It knows nothing of what the columns mean. A file is read once from front to end, and never wholly held as text.
"""

import csv
import gc
import gzip
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Self, cast

import numpy as np
from numpy.typing import NDArray

from dispatcher.errors import BadInput

Floats = NDArray[np.float64]

CHUNK_ROWS = 50_000
#: Faults that are told one by one; the rest is counted.
MAX_PROBLEMS = 20
#: Longest piece of a value that a message repeats.
_SHOWN = 60


@contextmanager
def uncollected() -> Iterator[None]:
    """Read without Python's collector of cycles: it would walk a million live rows again and again, and find none."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


@dataclass
class Problems:
    """Faults found in files, the first MAX_PROBLEMS of them in words."""

    told: list[tuple[str, object, str]] = field(default_factory=list)
    count: int = 0

    def add(self, where: str, value: object, remedy: str) -> None:
        """Note one: where it is, what stands there, what would be right."""
        self.count += 1
        if len(self.told) < MAX_PROBLEMS:
            self.told.append((where, value[:_SHOWN] if isinstance(value, str) else value, remedy))

    def check(self) -> None:
        """Raise BadInput when there are any."""
        if not self.count:
            return
        if self.count > len(self.told):
            more = self.count - len(self.told)
            self.told.append(("further rows", more, "like these are wrong too; mend the first and try again"))
        raise BadInput(self.told)


@dataclass(frozen=True)
class Chunk:
    """Some rows: ``columns[name]`` has the texts of one column, ``lines[i]`` is the line that row ``i`` begins in."""

    columns: dict[str, tuple[str, ...]]
    lines: Sequence[int]


class Table:
    """One CSV file, to be used as a context. ``header`` has the column names in lower case; ``chunks`` goes through its rows
    once."""

    def __init__(self, path: Path, problems: Problems) -> None:
        """Open it and read the header. Raises BadInput when there is none."""
        self.path, self._problems = path, problems
        self.name = path.name
        self.rows = 0
        self.blank = 0
        self._file = _opened(path)
        self._reader = csv.reader(self._file, strict=True)
        self.header: list[str] = []
        with self._reading():
            first = next(self._reader, None)
            self.header = [name.strip().lower() for name in first or ()]
        if not any(self.header):
            self._file.close()
            raise BadInput([(self.name, "", "is empty: a header and one row a record are needed")])
        twice = sorted({name for name in self.header if self.header.count(name) > 1})
        if twice:
            self._file.close()
            raise BadInput([(f"{self.name} line 1", ", ".join(twice), "each column may stand there once only")])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _reading(self) -> "_Faults":
        return _Faults(self)

    def at_line(self) -> int:
        """The line read last."""
        return self._reader.line_num

    def chunks(self) -> Iterator[Chunk]:
        """The rows. One with too few or too many fields is noted as a problem and left out; blank lines are counted."""
        width = len(self.header)
        while True:
            before = self._reader.line_num
            with self._reading():
                rows = list(islice(self._reader, CHUNK_ROWS))
            if not rows:
                return
            lines: Sequence[int] = range(before + 1, before + 1 + len(rows))
            if self._reader.line_num - before != len(rows):
                lines = _begins(rows, before)
            if any(map(width.__ne__, map(len, rows))):
                kept = []
                for line, row in zip(lines, rows, strict=True):
                    if len(row) == width:
                        kept.append((line, row))
                    elif row:
                        self._problems.add(
                            f"{self.name} line {line}", ",".join(row), f"{len(row)} fields; the header has {width}"
                        )
                    else:
                        self.blank += 1
                if not kept:
                    continue
                lines, rows = [line for line, _ in kept], [row for _, row in kept]
            self.rows += len(rows)
            yield Chunk(dict(zip(self.header, zip(*rows, strict=True), strict=True)), lines)

    def numbers(
        self, chunk: Chunk, column: str, *, wanted: str, good: Callable[[Floats], NDArray[np.bool_]], empty: float | None = None
    ) -> Floats:
        """A column as finite numbers that are ``good``; the others are noted as problems (and NaN here), saying what is
        ``wanted``. ``empty`` is what a blank field means, None when it may not be blank."""
        texts = chunk.columns[column]
        try:
            if "_" in "".join(texts):  # Python reads 1_000 as a number; nobody else does
                raise ValueError
            values = np.fromiter(map(float, texts), np.float64, len(texts))
        except ValueError:
            values = np.fromiter((_number(text, empty) for text in texts), np.float64, len(texts))
        blank = np.zeros(len(values), dtype=bool)
        bad = ~np.isfinite(values)
        if empty is not None and bad.any():
            blank[bad] = [not texts[int(i)].strip() for i in np.flatnonzero(bad)]
            bad &= ~blank
        bad |= ~blank & np.isfinite(values) & ~good(values)
        for i in np.flatnonzero(bad):
            self._problems.add(f"{self.name} line {chunk.lines[int(i)]}, column {column}", texts[int(i)], f"must be {wanted}")
        values[bad] = np.nan
        return values


def _number(text: str, empty: float | None) -> float:
    if empty is not None and not text.strip():
        return empty
    try:
        return math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan


def _begins(rows: Sequence[Sequence[str]], before: int) -> list[int]:
    """The line that each row begins in, where some fields hold line breaks."""
    out, line = [], before + 1
    for row in rows:
        out.append(line)
        line += 1 + sum(text.count("\n") for text in row)
    return out


def _opened(path: Path) -> IO[str]:
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        opener = gzip.open if packed else open
        return cast(IO[str], opener(path, "rt", encoding="utf-8-sig", newline=""))
    except OSError as error:
        raise BadInput([("file", str(path), f"cannot be read: {error.strerror or error}")]) from error


class _Faults:
    """What reading a file may raise, as BadInput that names the line."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        remedy = None
        if isinstance(error, csv.Error):
            remedy = f"is not CSV: {error}"
        elif isinstance(error, UnicodeDecodeError):
            remedy = "is not text in UTF-8"
        elif isinstance(error, EOFError):
            remedy = "the gzip file ends too early; fetch it anew"
        elif isinstance(error, zlib.error | OSError):
            remedy = f"cannot be read: {error}"
        if remedy is not None:
            self._table._file.close()
            line = self._table.at_line() + 1
            raise BadInput([(f"{self._table.name} near line {line}", "", remedy)]) from error
