"""Where readings come from: a Prometheus query, a message, a file that grows. Each gives times and numbers as they were said.

It knows no units, no plausibility and no store. What is not a number (NaN, infinite, absent) is a gap with a reason.
"""

import csv
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import requests

from dispatcher.config_power import MeterConfig
from dispatcher.config_sections import read_secret
from dispatcher.errors import GridshiftError
from dispatcher.power.meter_values import from_epoch
from signals.feeds.base import ACCESS, FeedError, Request
from signals.manners import Manners
from signals.transport import Limits, Line, Refused, ask, host_of

#: A meter is asked again soon anyway, so one try, and briefly.
_LIMITS = Limits(connect_s=2.0, read_s=5.0, total_s=8.0, max_bytes=2**20, tries=1)
#: A server that keeps failing is asked again after this, in wall seconds: without its meter a site is half blind.
_LEFT_ALONE_MOST_S = 60.0
#: So much of a file is read at once; of one that was there before, only its end.
_CHUNK_BYTES = 4 * 2**20
#: So many bytes before where we stopped are remembered, to see that the file is still the same.
_TAIL_BYTES = 256
#: What is larger, whichever way, no meter has said: times a factor it would soon be no number any more.
MAX_VALUE = 1e15
#: Longest line that counts as one.
_LINE_BYTES = 65536


class MeterProblem(GridshiftError):
    """A meter's source gave no reading; the message says why."""


@dataclass(frozen=True, slots=True)
class Said:
    """One number and the time it carries; ``start`` only where the source names an interval, which then ends ``at``."""

    at: datetime
    value: float
    start: datetime | None = None


# --- Prometheus ---------------------------------------------------------------------------------------------------


def prometheus_request(meter: MeterConfig, at: datetime, token: str | None) -> Request:
    """The instant query for the meter's value at ``at``."""
    params = {"query": meter.query, "time": f"{at.timestamp():.3f}", "timeout": f"{_LIMITS.read_s:g}s"}
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    return Request(f"{meter.url}/api/v1/query", params, headers)


def parse_prometheus(body: bytes) -> Said:
    """The one value of an instant query's answer. Raises MeterProblem for anything else, and for no value."""
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise MeterProblem("the answer is not JSON; is url a Prometheus server?") from error
    if not isinstance(answer, dict):
        raise MeterProblem("the answer is not what Prometheus sends; is url a Prometheus server?")
    if answer.get("status") != "success":
        told = str(answer.get("error", "no reason given"))[:200]
        raise MeterProblem(f"Prometheus refuses the query ({answer.get('errorType', 'unknown')}): {told}")
    data = answer.get("data")
    kind: Any = data.get("resultType") if isinstance(data, dict) else None
    result: Any = data.get("result") if isinstance(data, dict) else None
    pair: Any
    if kind == "vector":
        if not isinstance(result, list):
            raise MeterProblem("the answer holds no list of series")
        if not result:
            raise MeterProblem("the query has no value now: no series matches, or its target is down")
        if len(result) > 1:
            raise MeterProblem(f"the query gives {len(result)} series; make it one, such as sum(...)")
        series = result[0]
        pair = series.get("value") if isinstance(series, dict) else None
        if pair is None:
            raise MeterProblem("the query gives a histogram; ask for a number, such as its sum")
    elif kind == "scalar":
        pair = result
    else:
        raise MeterProblem(f"the query gives a {kind}; an instant vector with one series or a scalar is needed")
    try:
        seconds, text = pair
        value, at = float(text), from_epoch(float(seconds))
    except (TypeError, ValueError) as error:
        raise MeterProblem(f"{str(pair)[:80]} is not a time and a number") from error
    if not abs(value) <= MAX_VALUE:
        raise MeterProblem(f"the query gives {text}, which is no reading")
    return Said(at, value)


class Prometheus:
    """Asks servers with manners, from any thread."""

    def __init__(self, environ: Mapping[str, str] | None = None, manners: Callable[[], Manners] = Manners) -> None:
        self._environ = environ
        self._new_manners = manners
        self._manners: dict[str, Manners] = {}

    def read(self, meter: MeterConfig, at: datetime) -> Said:
        """The meter's value at ``at``. Raises MeterProblem."""
        environ = os.environ if self._environ is None else self._environ
        host = host_of(meter.url)
        manners = self._manners.get(host)
        if manners is None or manners.wait_s(host) > _LEFT_ALONE_MOST_S:
            manners = self._manners[host] = self._new_manners()
        try:
            token = read_secret(f"meter {meter.name}: token", meter.token_env, meter.token_file, environ)
            with requests.Session() as session:
                return parse_prometheus(ask(prometheus_request(meter, at, token), Line(session, manners, _LIMITS)).body)
        except Refused as error:  # 400 and 422 say in the body what is wrong with the query
            raise self._refusal(error) from None
        except FeedError as error:
            raise MeterProblem(error.message) from None
        except MeterProblem:
            raise
        except GridshiftError as error:
            raise MeterProblem(str(error)) from None

    @staticmethod
    def _refusal(error: Refused) -> MeterProblem:
        try:
            parse_prometheus(error.body)
        except MeterProblem as problem:
            if b'"errorType"' in error.body:
                return problem
        return MeterProblem(
            error.message if error.kind == ACCESS else f"{error.message}; url must be the server's address alone"
        )


# --- CSV ----------------------------------------------------------------------------------------------------------


@dataclass
class CsvTail:
    """Follows a file that a logger appends to. A new file of that name (rotation) is begun after the old one was read to its
    end; a file that was cut and written anew is read from its start again. Reading something twice is left to the store."""

    meter: MeterConfig
    chunk_bytes: int = _CHUNK_BYTES
    _file: IO[bytes] | None = None
    _offset: int = 0
    _before: bytes = b""
    _columns: tuple[int, int, str] | None = None
    _skip_line: bool = False
    problems: list[str] = field(default_factory=list)

    def read(self) -> list[Said]:
        """What was added since the last look. ``problems`` holds what was wrong with rows that gave nothing. Raises
        MeterProblem when the file cannot be read or has no such columns."""
        self.problems = []
        path = Path(self.meter.path)
        found: list[Said] = []
        try:
            try:
                there = path.stat()
            except FileNotFoundError:
                if self._file is not None:  # renamed, and its successor is not there yet
                    found += self._rest()
                raise
            if self._file is not None:
                held = os.fstat(self._file.fileno())
                if (held.st_ino, held.st_dev) != (there.st_ino, there.st_dev):
                    found += self._rest()
                    self.close()
                elif held.st_size < self._offset or not self._is_as_before():
                    self._rewind()
            if self._file is None:
                self._file = path.open("rb")
                self._rewind()
                self._skip_to_end()
            found += self._rest()
        except OSError as error:
            if not found:
                raise MeterProblem(f"{path}: cannot be read: {error.strerror or type(error).__name__}") from error
        return found

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _rewind(self) -> None:
        self._offset, self._before, self._columns, self._skip_line = 0, b"", None, False

    def _is_as_before(self) -> bool:
        assert self._file is not None
        self._file.seek(self._offset - len(self._before))
        return self._file.read(len(self._before)) == self._before

    def _skip_to_end(self) -> None:
        """Of a file larger than one chunk take the header and the last chunk."""
        assert self._file is not None
        size = os.fstat(self._file.fileno()).st_size
        if size > self.chunk_bytes:
            header = self._file.readline(_LINE_BYTES)
            self._take_header(header)
            self._offset = size - self.chunk_bytes
            self._skip_line = True  # most likely in the middle of one

    def _rest(self) -> list[Said]:
        """The complete lines from where we are, at most a chunk of them."""
        assert self._file is not None
        self._file.seek(self._offset)
        data = self._file.read(self.chunk_bytes)
        end = data.rfind(b"\n") + 1
        if not end:
            if len(data) > _LINE_BYTES:
                raise MeterProblem(f"{self.meter.path}: a line is longer than {_LINE_BYTES} bytes; is it a CSV file?")
            return []
        lines = data[:end].splitlines()
        self._offset += end
        self._before = (self._before + data[:end])[-_TAIL_BYTES:]
        if self._skip_line:
            lines, self._skip_line = lines[1:], False
        return list(self._rows(lines))

    def _rows(self, lines: list[bytes]) -> Iterator[Said]:
        for line in lines:
            if not line.strip():
                continue
            if self._columns is None:
                self._take_header(line)
                continue
            try:
                said = self._row(line)
            except (ValueError, csv.Error) as error:
                self.problems.append(f"{line[:80].decode(errors='replace')!r}: {error}")
                continue
            yield said

    def _take_header(self, line: bytes) -> None:
        text = line.decode("utf-8-sig", "replace").strip()
        delimiter = max(",;\t", key=text.count)
        names = [name.strip() for name in next(csv.reader([text], delimiter=delimiter), [])]
        for column in (self.meter.time_column, self.meter.value_column):
            if column not in names:
                self._rewind()  # look again: it may be written anew
                raise MeterProblem(
                    f"{self.meter.path}: has no column {column!r} in its first line; columns there: {', '.join(names)[:200]}; "
                    "set time_column and value_column"
                )
        self._columns = names.index(self.meter.time_column), names.index(self.meter.value_column), delimiter

    def _row(self, line: bytes) -> Said:
        assert self._columns is not None
        at_column, value_column, delimiter = self._columns
        cells = next(csv.reader([line.decode("utf-8", "replace")], delimiter=delimiter))
        if len(cells) <= max(at_column, value_column):
            raise ValueError("too few columns")
        return Said(parse_time(cells[at_column].strip()), parse_number(cells[value_column].strip(), delimiter))


def parse_time(value: Any) -> datetime:
    """A time with an offset (ISO 8601), or seconds since 1970 as text. Raises ValueError with the remedy."""
    if not isinstance(value, str) or not value:
        raise ValueError("must be a time with an offset, such as 2026-01-31T17:00:00Z")
    if value.replace(".", "", 1).isdigit() and len(value.partition(".")[0]) > 8:
        return from_epoch(float(value))
    try:
        at = datetime.fromisoformat(value)
        if at.tzinfo is not None:
            return at.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError("must be a time with an offset, such as 2026-01-31T17:00:00Z")


def parse_number(text: str, delimiter: str) -> float:
    """A finite number, with a comma for the point where that is not the delimiter. Raises ValueError."""
    if not text:
        raise ValueError("no value")
    value = float(text.replace(",", ".") if delimiter != "," else text)
    if not math.isfinite(value):
        raise ValueError("no finite number")
    if abs(value) > MAX_VALUE:
        raise ValueError("no reading of any meter: it is too large")
    return value
