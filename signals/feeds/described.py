"""Values out of a JSON or CSV answer that options describe: where the rows are, what their fields, times and units mean.

It knows no provider; every mistake in a description is named by its option. The feed "http" asks and uses it.
"""

import csv
import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from signals.feeds.base import INVALID, NO_DATA, TRUNCATED, FeedError, Problem, check_text, duration, text_of, time_of_unix
from signals.feeds.documents import local_to_utc
from signals.points import UNITS, Kind, SignalError

FORMATS = ("json", "csv")
LABELS = ("start", "end")
#: Options that describe an answer.
NAMES = frozenset(
    {"format", "rows", "time", "end", "value", "issued_at", "time_format", "time_zone", "label", "interval", "kind", "unit"}
    | {"currency", "factor", "null_values", "forecast", "delimiter", "decimal", "skip_lines"}
)
_NULLS = ("", "null", "none", "nan", "n/a", "na", "-")
_PATH = re.compile(r"(?:[^.\[\]]+|\[(?:\d{1,9}|\*)\])(?:\.[^.\[\]]+|\[(?:\d{1,9}|\*)\])*")
_PART = re.compile(r"[^.\[\]]+|\[(?:\d+|\*)\]")
_PRICE = re.compile(r"([A-Z]{3}|ct|c|p)/([MkG])Wh")
_PER_MWH = {"M": 1.0, "k": 1000.0, "G": 0.001}
_INTENSITIES = {
    "g/kWh": 1.0,
    "gCO2e/kWh": 1.0,
    "gCO2eq/kWh": 1.0,
    "kg/MWh": 1.0,
    "kg/kWh": 1000.0,
    "t/MWh": 1000.0,
    "lbs/MWh": 0.45359237,
}
_FACTORS: dict[Kind, dict[str, float]] = {
    Kind.CARBON_AVERAGE: _INTENSITIES,
    Kind.CARBON_MARGINAL: _INTENSITIES,
    Kind.CARBON_RANK: {"percentile": 1.0, "fraction": 100.0},
    Kind.LOAD: {"MW": 1.0, "kW": 0.001, "GW": 1000.0},
    Kind.GENERATION: {"MW": 1.0, "kW": 0.001, "GW": 1000.0},
}
_TRUE, _FALSE = (True, "true", "yes", "1"), (False, "false", "no", "0")


@dataclass(frozen=True, slots=True)
class Value:
    """One row understood: ``end`` None, the spacing decides; ``value`` None, it is missing."""

    start: datetime
    end: datetime | None
    value: float | None
    issued_at: datetime | None


def unit_of(options: Mapping[str, Any], kind: Kind) -> tuple[str, float]:
    """The canonical unit, and what a value is multiplied by to be in it; raises SignalError that names the option."""
    unit, currency = options.get("unit"), options.get("currency")
    if currency is not None and not (isinstance(currency, str) and re.fullmatch("[A-Z]{3}", currency)):
        raise SignalError(f"currency: {currency!r} must be a currency code such as 'EUR'")
    try:
        scale = float(options.get("factor", 1.0))
    except (TypeError, ValueError):
        scale = math.nan
    if not math.isfinite(scale) or scale == 0 or isinstance(options.get("factor"), bool):
        raise SignalError(f"factor: {options['factor']!r} must be a number other than 0")
    if kind is not Kind.PRICE:
        factors = _FACTORS[kind]
        if not isinstance(unit, str) or unit not in factors:
            raise SignalError(f"unit: {unit!r} for {kind}; must be one of {', '.join(factors)}")
        return UNITS[kind], factors[unit] * scale
    match = _PRICE.fullmatch(unit) if isinstance(unit, str) else None
    if match is None:
        raise SignalError(f"unit: {unit!r} for a price; must be one such as 'EUR/MWh', 'EUR/kWh', 'ct/kWh' or 'p/kWh'")
    in_cents = match[1].islower()
    if in_cents and currency is None:
        raise SignalError(f"currency: not given, but {unit!r} names none; give a code such as 'EUR'")
    if not in_cents and currency not in (None, match[1]):
        raise SignalError(f"currency: {currency!r}, but unit is {unit!r}; prices are not converted")
    return f"{currency if in_cents else match[1]}/MWh", _PER_MWH[match[2]] * (0.01 if in_cents else 1.0) * scale


def kind_of(options: Mapping[str, Any]) -> Kind:
    """The kind that the values are of; raises SignalError."""
    known = (Kind.PRICE, *_FACTORS)
    if options.get("kind") not in known:
        raise SignalError(f"kind: {options.get('kind')!r}; say what the values are: {', '.join(known)}")
    return Kind(options["kind"])


def is_true(options: Mapping[str, Any], key: str) -> bool:
    """A yes or no, also as text; no when it is not given. Raises SignalError."""
    value = options.get(key, False)
    value = value.lower() if isinstance(value, str) else value
    if value not in _TRUE + _FALSE or not isinstance(value, bool | str):
        raise SignalError(f"{key}: {options[key]!r} must be true or false")
    return value in _TRUE


def zone_of(options: Mapping[str, Any]) -> ZoneInfo:
    """The zone of times without an offset; raises SignalError."""
    name = options.get("time_zone", "UTC")
    try:
        return ZoneInfo(name)
    except (TypeError, ValueError, OSError, KeyError) as error:  # ZoneInfoNotFoundError is a KeyError
        raise SignalError(f"time_zone: {name!r} must be a name such as 'Europe/Paris' or 'UTC'") from error


def problems(options: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with a description."""
    found = check_text(options, "rows", "time", "end", "value", "issued_at", "delimiter")
    wrong = {problem.key for problem in found}
    for key in ("time", "value"):
        if key not in options:
            found.append(Problem(key, None, f"say which field holds the {key}, such as 'data.{key}' or a column's name"))
    for key, allowed in (("format", FORMATS), ("label", LABELS), ("decimal", (".", ","))):
        if options.get(key, allowed[0]) not in allowed:
            found.append(Problem(key, options[key], f"must be one of {', '.join(map(repr, allowed))}"))
    if options.get("format", "json") == "json":
        for key in ("rows", "time", "end", "value", "issued_at"):
            if key in options and key not in wrong and not _PATH.fullmatch(options[key]):
                found.append(Problem(key, options[key], "must be a path such as 'data.items[*].price' or '[0]'"))
    elif "rows" in options:
        found.append(Problem("rows", options["rows"], "is for JSON; a CSV's rows are its lines"))
    if options.get("label") == "end":
        if "interval" not in options:
            found.append(Problem("interval", None, "say how long an interval is, such as '5m': labels are ends"))
        if "end" in options:
            found.append(Problem("end", options["end"], "leave out either this field or label = 'end'"))
    pattern = options.get("time_format", "iso")
    if pattern not in ("iso", "unix", "unix_ms") and not (isinstance(pattern, str) and "%" in pattern):
        found.append(Problem("time_format", pattern, "must be 'iso', 'unix', 'unix_ms' or a pattern such as '%d.%m.%Y %H:%M'"))
    skip = options.get("skip_lines", 0)
    if not re.fullmatch(r"\d{1,4}", str(skip)):
        found.append(Problem("skip_lines", skip, "must be a number of lines"))
    if len(str(options.get("delimiter", ","))) != 1:
        found.append(Problem("delimiter", options["delimiter"], "must be one character"))
    nulls = options.get("null_values", [])
    if isinstance(nulls, bool) or not isinstance(nulls, str | int | float | list | tuple):
        found.append(Problem("null_values", nulls, "must be a list of what means missing, such as ['-999', 'n/a']"))
    checks: tuple[Callable[[], object], ...] = (
        lambda: unit_of(options, kind_of(options)),
        lambda: is_true(options, "forecast"),
        lambda: zone_of(options),
        lambda: _interval(options),
    )
    for examine in checks:
        try:
            examine()
        except SignalError as error:
            key, _, remedy = str(error).partition(": ")
            found.append(Problem(key, options.get(key), remedy))
    return found


def _interval(options: Mapping[str, Any]) -> timedelta | None:
    if options.get("interval") is None:
        return None
    interval = duration("interval", options["interval"])
    if not timedelta(0) < interval <= timedelta(days=366):
        raise SignalError(f"interval: {options['interval']!r} must be longer than nothing and at most a year")
    return interval


def values(payload: bytes, options: Mapping[str, Any], warnings: list[str]) -> tuple[list[Value], FeedError | None]:
    """All rows of ``payload`` as the description has them, and an error when it is cut short. Raises FeedError."""
    wrong = problems(options)
    if wrong:
        raise FeedError(INVALID, "; ".join(f"{key} = {value!r}: {remedy}" for key, value, remedy in wrong)[:500])
    kind = kind_of(options)
    _, factor = unit_of(options, kind)
    fields = [key for key in ("time", "value", "end", "issued_at") if key in options]
    read = _json_columns if options.get("format", "json") == "json" else _csv_columns
    columns, error = read(payload, options, fields, warnings)
    starts = _times(columns["time"], options, "time", warnings)
    ends = _times(columns["end"], options, "end", warnings) if "end" in columns else [None] * len(starts)
    issued = _times(columns["issued_at"], options, "issued_at", warnings) if "issued_at" in columns else [None] * len(starts)
    interval = _interval(options)
    found = []
    for index, (start, end, issued_at, raw) in enumerate(zip(starts, ends, issued, columns["value"], strict=True)):
        if start is None:
            continue  # _times has said so
        if interval is not None and end is None:
            start, end = (start - interval, start) if options.get("label") == "end" else (start, start + interval)
        value = _amount(raw, options, f"value {index + 1}", warnings)
        value = None if value is None else round(value * factor, 9)
        if value is not None and _impossible(kind, value):
            warnings.append(f"value {index + 1}: {value:g} is not possible for {kind}; counted as missing")
            value = None
        found.append(Value(start, end, value, issued_at))
    return found, error


def _impossible(kind: Kind, value: float) -> bool:
    if not math.isfinite(value):
        return True
    return (kind is Kind.CARBON_AVERAGE and value < 0) or (kind is Kind.CARBON_RANK and not 0 <= value <= 100)


# --- where the values are -------------------------------------------------------------------------------------------

_Columns = tuple[dict[str, list[object]], FeedError | None]


def _json_columns(payload: bytes, options: Mapping[str, Any], fields: Sequence[str], warnings: list[str]) -> _Columns:
    root = _json(payload)
    if "rows" not in options and "[*]" in str(options["time"]):
        columns = {key: _at(root, options[key]) for key in fields}  # lists beside one another
        lengths = {key: len(column) for key, column in columns.items()}
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{length} of {key}" for key, length in lengths.items())
            raise FeedError(TRUNCATED, f"the lists differ in length and cannot be matched: {said}")
        if not columns["time"]:
            raise FeedError(INVALID, f"time: there is nothing at {options['time']!r}; {_there(root)}")
        return columns, None
    rows = _at(root, options["rows"]) if "rows" in options else [root]
    if len(rows) == 1 and isinstance(rows[0], list) and "[*]" not in str(options.get("rows", "")):
        rows = rows[0]
        if not rows:
            raise FeedError(NO_DATA, "the source has no rows for this window (the list is empty)")
    if not rows:
        raise FeedError(INVALID, f"rows: there is nothing at {options['rows']!r}; {_there(root)}")
    columns = {key: [next(iter(_at(row, options[key])), None) for row in rows] for key in fields}
    for key in ("time", "value"):
        if all(not _at(row, options[key]) for row in rows):
            raise FeedError(INVALID, f"{key}: no row has anything at {options[key]!r}; {_there(rows[0])}")
    return columns, None


def _json(payload: bytes) -> object:
    text = text_of(payload)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
            raise FeedError(TRUNCATED, f"the JSON ends in the middle, after {len(text)} characters") from error
        raise FeedError(INVALID, f"the answer is not JSON: {error.msg} at character {error.pos}") from error
    except (RecursionError, ValueError) as error:
        raise FeedError(INVALID, f"the answer is not usable JSON: {type(error).__name__}") from error


def _at(value: object, path: str) -> list[object]:
    """Everything at ``path``: none when there is no such place, several where it has ``[*]``."""
    here = [value]
    for part in _PART.findall(path):
        if part == "[*]":
            here = [item for one in here if isinstance(one, list) for item in one]
        elif part.startswith("["):
            index = int(part[1:-1])
            here = [one[index] for one in here if isinstance(one, list) and index < len(one)]
        else:
            here = [one[part] for one in here if isinstance(one, dict) and part in one]
    return here


def _there(value: object) -> str:
    if isinstance(value, dict):
        return f"there are: {', '.join(map(str, value))[:200]}" if value else "the object is empty"
    return f"there is a list of {len(value)}" if isinstance(value, list) else f"there is {str(value)[:40]!r}"


def _csv_columns(payload: bytes, options: Mapping[str, Any], fields: Sequence[str], warnings: list[str]) -> _Columns:
    text = text_of(payload)
    lines = text.splitlines(keepends=True)[int(options.get("skip_lines", 0)) :]
    reader = csv.reader(io.StringIO("".join(lines), newline=""), delimiter=str(options.get("delimiter", ",")))
    try:
        table = [row for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise FeedError(INVALID, f"the answer is not CSV: {error}") from error
    if not table:
        raise FeedError(NO_DATA, "the answer has no lines")
    header = [name.strip() for name in table[0]]
    at: dict[str, int] = {}
    for key in fields:
        if options[key] not in header:
            raise FeedError(INVALID, f"{key}: no column {options[key]!r}; there are: {', '.join(header)[:200]}")
        at[key] = header.index(options[key])
    columns: dict[str, list[object]] = {key: [] for key in fields}
    cut: FeedError | None = None
    for number, row in enumerate(table[1:], 2):
        if len(row) != len(header):
            warnings.append(f"row {number}: {len(row)} fields, the header has {len(header)}; left out")
            if number == len(table) and len(row) < len(header):
                cut = FeedError(TRUNCATED, f"the file ends in the middle of row {number}")
            continue
        for key in fields:
            columns[key].append(row[at[key]])
    if not columns["time"]:
        raise cut or FeedError(NO_DATA, "the answer has a header but no rows")
    return columns, cut


# --- what a time and an amount mean ---------------------------------------------------------------------------------


def _times(raws: Sequence[object], options: Mapping[str, Any], key: str, warnings: list[str]) -> list[datetime | None]:
    """Each as UTC. Times without an offset are read in the order of the list, so that an hour that autumn repeats is two."""
    pattern = str(options.get("time_format", "iso"))
    read = [_time(raw, pattern) for raw in raws]
    naive = [(index, when) for index, when in enumerate(read) if when is not None and when.tzinfo is None]
    if len(naive) > 1 and naive[0][1] > naive[-1][1]:
        naive.reverse()  # newest first would make the repeated hour run backwards
    for (index, _), when in zip(naive, local_to_utc([when for _, when in naive], zone_of(options)), strict=True):
        read[index] = when
    result: list[datetime | None] = []
    for index, (raw, when) in enumerate(zip(raws, read, strict=True), 1):
        if when is None and (key == "time" or raw is not None):
            done = "left out" if key == "time" else "not used"
            warnings.append(f"{key} {index}: {str(raw)[:40]!r} is not a time in {pattern!r}; {done}")
        result.append(None if when is None else when.astimezone(UTC))
    return result


def _time(raw: object, pattern: str) -> datetime | None:
    if pattern in ("unix", "unix_ms"):
        if isinstance(raw, str):
            raw = float(raw) if re.fullmatch(r"\s*\d{1,15}(\.\d{1,9})?\s*", raw) else None
        if isinstance(raw, int | float) and not isinstance(raw, bool) and abs(raw) < 1e16:
            return time_of_unix(raw / 1000 if pattern == "unix_ms" else raw)
        return None
    if not isinstance(raw, str):
        return None
    text = raw.strip()
    try:
        # A time without an offset stays naive here; the caller knows the zone.
        when = datetime.fromisoformat(text) if pattern == "iso" else datetime.strptime(text, pattern)  # noqa: DTZ007
    except (ValueError, OverflowError, re.error):
        return None
    return when if 1990 <= when.year <= 2200 else None


def _amount(raw: object, options: Mapping[str, Any], where: str, warnings: list[str]) -> float | None:
    if raw is None:
        return None
    given = options.get("null_values", ())
    nulls = [str(one) for one in given] if isinstance(given, list | tuple) else str(given).split(",")
    text = str(raw).strip()
    if text.lower() in _NULLS or text in [one.strip() for one in nulls]:
        return None
    if isinstance(raw, str) and options.get("decimal") == ",":
        text = text.replace(".", "").replace(",", ".")
    try:
        value = math.nan if isinstance(raw, bool) or not isinstance(raw, str | int | float) else float(text)
    except (ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        warnings.append(f"{where}: {text[:40]!r} is not a number; counted as missing")
        return None
    return None if any(_same(one, value) for one in nulls) else value


def _same(text: str, value: float) -> bool:
    try:
        return float(text) == value
    except ValueError:
        return False
