"""Prices, carbon intensities or a grid's load from a CSV file, plain or gzipped: an Electricity Maps export, or one row an hour
and region.

It knows headers by their beginnings (their spelling changed over the years) and that labels are starts in UTC; it does not
know where the file came from, nor whether its licence lets you use it.
"""

import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from signals.feeds.base import (
    FILE,
    INVALID,
    NO_DATA,
    TRUNCATED,
    Context,
    Feed,
    FeedError,
    ParseResult,
    Problem,
    Query,
    Request,
    check_text,
    duration,
    holes,
    steps,
    text_of,
    time_of,
)
from signals.gaps import SignalGap
from signals.points import UNITS, Kind, Quality, SignalError, SignalPoint

NAME = "csv"
_COLUMNS = ("lca", "direct")
_PRICE = re.compile(r"price(?:_([a-z]{3}))?(?:_(?:per_)?mwh)?|price \(([a-z]{3})/mwh\)")
_LOAD = re.compile(r"(load|demand)(_mw| \(mw\))")
_TRUE = frozenset({"1", "true", "yes", "t"})
#: A gzip file may grow to this many bytes.
_MAX_BYTES = 256 * 2**20
_MAX_WARNINGS = 20


@dataclass(frozen=True, slots=True)
class _Row:
    start: datetime
    end: datetime
    value: float | None
    estimated: bool
    doubtful: bool


@dataclass(frozen=True, slots=True)
class _Table:
    rows: tuple[_Row, ...]
    unit: str
    warnings: tuple[str, ...]
    error: FeedError | None


def build_requests(query: Query) -> tuple[Request, ...]:
    """Each of the files."""
    return tuple(Request(f"{FILE}{path}") for path in _files(query.options))


def _files(options: Mapping[str, Any]) -> tuple[str, ...]:
    given = options.get("file", ())
    return (given,) if isinstance(given, str) else tuple(str(path) for path in given)


def read(payload: bytes, context: Context) -> ParseResult:
    """Points of one zone of the file; blank or unreadable values and missing rows are gaps.

    Values that start ``lookahead`` or more after ``retrieved_at`` count as not yet published. A carbon value or a load that
    lies ahead is a forecast; a price that lies ahead is a published price.
    """
    options = context.options
    if context.kind in (Kind.PRICE, Kind.LOAD):
        column, variant = str(context.kind), ""
    else:
        column = variant = str(options.get("column", "lca"))
        if column not in _COLUMNS:
            raise FeedError(INVALID, f"column: {column!r}; must be 'lca' or 'direct'")
    zone, currency = options.get("zone"), options.get("currency")
    source = str(options.get("source", NAME))
    horizon = _horizon(options, context.retrieved_at)
    table = _table(payload, None if zone is None else str(zone), column, None if currency is None else str(currency))
    unit = table.unit if context.kind is Kind.PRICE else UNITS[context.kind]
    points, gaps, spans = [], [], []
    for row in table.rows:
        if horizon is not None and row.start >= horizon:
            break
        spans.append((row.start, row.end))
        if not context.wants(row.start, row.end):
            continue
        if row.value is None:
            gaps.append(SignalGap(source, context.region, context.kind, row.start, row.end, variant))
            continue
        if row.doubtful:
            quality = Quality.SUSPECT
        elif context.kind is not Kind.PRICE and row.end > context.retrieved_at:
            quality = Quality.FORECAST
        else:
            quality = Quality.ESTIMATED if row.estimated else Quality.MEASURED
        points.append(
            SignalPoint(
                region=context.region,
                kind=context.kind,
                unit=unit,
                start=row.start,
                end=row.end,
                issued_at=None,
                retrieved_at=context.retrieved_at,
                value=row.value,
                quality=quality,
                source=source,
                variant=variant,
            )
        )
    if not points:
        first, last = table.rows[0].start, table.rows[-1].end
        raise FeedError(NO_DATA, f"no value for this window; the file covers {first.isoformat()} to {last.isoformat()}")
    gaps = sorted([*gaps, *holes(context, source, variant, spans)], key=lambda g: g.start)
    return ParseResult(tuple(points), tuple(gaps), table.warnings, table.error)


def _horizon(options: Mapping[str, Any], now: datetime) -> datetime | None:
    if options.get("lookahead") is None:
        return None
    try:
        return now + duration("lookahead", options["lookahead"])
    except OverflowError:
        return None  # farther than the calendar reaches is no limit


# A replay reads the same bytes again every simulated hour; parsing a year of 18 zones takes longer than all else together.
@lru_cache(maxsize=8)
def _table(payload: bytes, zone: str | None, column: str, currency: str | None) -> _Table:
    reader = csv.reader(io.StringIO(text_of(_unpacked(payload))), strict=True)
    warnings: list[str] = []
    values: dict[datetime, tuple[float | None, bool, bool]] = {}
    zones: set[str] = set()
    cut = False
    try:
        header = [_plain(name) for name in next(reader, [])]
        at = _find(header, lambda name: name.startswith("datetime"))
        if at is None:
            raise FeedError(INVALID, f"no column whose header begins with 'Datetime'; there are: {', '.join(header)[:200]}")
        value_at, unit = _value_column(header, column, currency)
        zones_at = [i for i, name in enumerate(header) if name in ("zone id", "zone_id", "region", "zone")]
        estimated_at = _find(header, lambda name: name in ("data estimated", "estimated"))
        for row in reader:
            if not row:
                continue
            cut = len(row) < len(header)
            if len(row) != len(header):
                warnings.append(f"line {reader.line_num}: {len(row)} fields, the header has {len(header)}; left out")
                continue
            own = {row[i].strip() for i in zones_at}
            if zone is not None and zones_at and zone not in own:
                zones |= own if len(zones) < 100 else set()
                continue
            if zone is None and zones_at:
                zones.add(row[zones_at[0]].strip())
                if len(zones) > 1:
                    raise FeedError(INVALID, f"zone: not given, but the file holds several, such as {', '.join(sorted(zones))}")
            start = time_of(row[at])
            if start is None:
                warnings.append(f"line {reader.line_num}: {row[at][:40]!r} is not a time; left out")
                continue
            value = _number(row[value_at], column, reader.line_num, warnings)
            estimated = estimated_at is not None and row[estimated_at].strip().lower() in _TRUE
            doubtful = False
            if start in values and values[start][0] != value:
                warnings.append(f"line {reader.line_num}: {start.isoformat()} given twice with different values; suspect")
                doubtful = True
                value = values[start][0] if value is None else value
            values[start] = (value, estimated, doubtful)
    except csv.Error as error:
        raise FeedError(INVALID, f"line {reader.line_num} is not CSV: {error}") from error
    fault = FeedError(TRUNCATED, f"the file ends in the middle of line {reader.line_num}") if cut else None
    if not values:
        if fault is not None:
            raise fault
        if zone is not None and zones:
            raise FeedError(INVALID, f"zone: {zone!r} is not in the file; it holds {', '.join(sorted(zones)[:40])}")
        raise FeedError(NO_DATA, "the file has a header but no readable row")
    starts = sorted(values)
    rows = [_Row(s, s + step, *values[s]) for s, step in zip(starts, steps(starts), strict=True)]
    if len(warnings) > _MAX_WARNINGS:
        warnings[_MAX_WARNINGS:] = [f"and {len(warnings) - _MAX_WARNINGS} more like these"]
    return _Table(tuple(rows), unit, tuple(warnings), fault)


def _unpacked(payload: bytes) -> bytes:
    if payload[:2] != b"\x1f\x8b":
        return payload
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(payload)) as packed:
            plain = packed.read(_MAX_BYTES + 1)
    except EOFError as error:
        raise FeedError(TRUNCATED, "the gzip file ends too early") from error
    except (OSError, zlib.error) as error:
        raise FeedError(INVALID, f"the gzip file is damaged: {error}") from error
    if len(plain) > _MAX_BYTES:
        raise FeedError(INVALID, f"the gzip file unpacks to more than {_MAX_BYTES // 2**20} MiB; split it")
    return plain


def _plain(name: str) -> str:
    return " ".join(name.replace("\u2082", "2").lower().split())


def _find(header: list[str], wanted: Any) -> int | None:
    return next((i for i, name in enumerate(header) if wanted(name)), None)


def _value_column(header: list[str], column: str, currency: str | None) -> tuple[int, str]:
    """Where the values stand, and a price's unit ("" for others, whose unit follows from the kind)."""
    if column == "load":
        at = _find(header, lambda name: _LOAD.fullmatch(name) is not None)
        if at is None:
            raise FeedError(INVALID, f"no load column such as 'load_mw'; there are: {', '.join(header)[:200]}")
        return at, ""
    if column == "price":
        for i, name in enumerate(header):
            match = _PRICE.fullmatch(name)
            if match:
                code = (match[1] or match[2] or currency or "").upper()
                if not re.fullmatch("[A-Z]{3}", code):
                    raise FeedError(INVALID, f"currency: header {name!r} names none; give one such as 'EUR'")
                if currency is not None and code != currency.upper():
                    raise FeedError(
                        INVALID, f"currency: {currency!r}, but header {name!r} says {code}; prices are not converted"
                    )
                return i, f"{code}/MWh"
        raise FeedError(INVALID, f"no price column such as 'price_eur_mwh'; there are: {', '.join(header)[:200]}")
    words = ("life cycle", "lca", "lifecycle") if column == "lca" else ("direct",)
    for i, name in enumerate(header):
        if name.startswith("carbon intensity") and any(word in name for word in words):
            return i, ""
        if name == f"ci_{column}_gco2_kwh":
            return i, ""
    raise FeedError(INVALID, f"no carbon intensity column ({column}); there are: {', '.join(header)[:200]}")


def _number(text: str, column: str, line: int, warnings: list[str]) -> float | None:
    text = text.strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (column != "price" and value < 0):
        warnings.append(f"line {line}: {text[:40]!r} is not a possible value; counted as missing")
        return None
    return value


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options. A file that is not there (any more) is a failure of the source, told when it is asked, and no reason for a
    control plane not to start."""
    problems = check_text(options, "zone", "source")
    given = options.get("file")
    if given is None:
        problems.append(Problem("file", None, "give the path of a CSV file (.csv or .csv.gz), or a list of them"))
    elif not given or not isinstance(given, str | list | tuple) or not all(isinstance(path, str) and path for path in given):
        problems.append(Problem("file", given, "must be a path or a list of paths"))
    if options.get("column", "lca") not in _COLUMNS:
        problems.append(Problem("column", options["column"], "must be 'lca' or 'direct'"))
    if "currency" in options and not re.fullmatch("[A-Z]{3}", str(options["currency"])):
        problems.append(Problem("currency", options["currency"], "must be a currency code such as 'EUR'"))
    if options.get("lookahead") is not None:
        try:
            duration("lookahead", options["lookahead"])
        except SignalError:
            problems.append(Problem("lookahead", options["lookahead"], "must be seconds or a text such as '24h'"))
    if str(options.get("source", NAME)) in ("synthetic", "gb_carbon", "energy_charts"):
        problems.append(Problem("source", options["source"], "is the name of another feed; choose one that says what it is"))
    return problems


FEED = Feed(
    name=NAME,
    kinds=frozenset({Kind.PRICE, Kind.CARBON_AVERAGE, Kind.LOAD}),
    option_names=frozenset({"file", "zone", "column", "currency", "lookahead", "source"}),
    requests=build_requests,
    read=read,
    check=check,
    poll_s=900.0,
)
