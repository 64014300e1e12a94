"""Spot prices and demand of Australia's National Electricity Market from AEMO (no key).

It knows AEMO's reports (rows C, I and D, zipped or not), its monthly price and demand files, and the dashboard's JSON. Every
settlement date is the END of its interval in UTC+10 all year round; trading intervals lasted 30 minutes up to 1 October 2021
and last 5 minutes since. Live it asks for the monthly files, and for the dashboard, which also holds the day's forecast.
The dashboard's interface is not documented by AEMO and may change without a word; how soon the file of the running month
grows is not known here.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from signals.feeds.base import (
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
    check_base_url,
    json_object,
    text_of,
)
from signals.feeds.documents import MAX_UNPACKED_BYTES, csv_rows, unzipped
from signals.feeds.reading import POLLED, Row, base_url, chosen, objects, refusal, result, said, series
from signals.gaps import SignalGap
from signals.points import UNITS, Kind, Quality, SignalPoint

NAME = "aemo"
_FILES = "https://aemo.com.au"
_DASHBOARD = "https://visualisations.aemo.com.au"
_REGIONS = ("NSW1", "QLD1", "SA1", "TAS1", "VIC1")
_TABLES = ("trading", "dispatch")
_NEM = timezone(timedelta(hours=10))
_FIVE, _THIRTY = timedelta(minutes=5), timedelta(minutes=30)
#: The settlement date up to which a trading interval lasted 30 minutes.
_HALF_HOURS_UNTIL = datetime(2021, 10, 1, tzinfo=_NEM)
#: The dashboard holds five-minute values of about the last 24 hours and half-hourly forecasts of about the next 16.
_RECENT = timedelta(hours=23)
#: Tables of reports that hold prices: name and sub-name in the rows, and what we call them. The two without a sub-name are
#: those of the daily "public prices".
_PRICES = {
    ("DISPATCH", "PRICE"): "dispatch",
    ("TRADING", "PRICE"): "trading",
    ("DREGION", ""): "dispatch",
    ("TREGION", ""): "trading",
}
_COLUMNS = {Kind.PRICE: "RRP", Kind.LOAD: "TOTALDEMAND"}


@dataclass(frozen=True, slots=True)
class _Entry:
    """One row of any of AEMO's tables, as text: ``table`` is "trading" or "dispatch", ``where`` says where it stands."""

    where: str
    table: str
    cells: Mapping[str, str]


def build_requests(query: Query) -> tuple[Request, ...]:
    """The dashboard for the last day and what lies ahead; for a window that begins before what polls ask for, the file of each
    month too."""
    options = query.options
    region = str(options.get("region_id", ""))
    base = base_url(options, _FILES)
    found = []
    # Seen from Brisbane: an interval belongs to the month in which it starts, its stamp may be the next month's midnight.
    at, last = query.start.astimezone(_NEM), min(query.end, query.now).astimezone(_NEM)
    at = at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    # The running month's file is half a megabyte: not for every five minutes.
    while at < last and query.start < query.now - POLLED:
        found.append(Request(f"{base}/aemo/data/nem/priceanddemand/PRICE_AND_DEMAND_{at:%Y%m}_{region}.csv"))
        at = (at + timedelta(days=32)).replace(day=1)
    if query.end > query.now - _RECENT:
        url = f"{base_url(options, _DASHBOARD)}/aemo/apps/api/report/5MIN"
        body = json.dumps({"timeScale": ["30MIN"]}).encode()
        found.append(Request(url, headers={"Content-Type": "application/json", "Accept": "application/json"}, body=body))
    return tuple(found)


def read(payload: bytes, context: Context) -> ParseResult:
    """Points of any of the forms. Several regions, and the trading and the dispatch price, are series of their own; the
    variant is the table's name, with the region where an answer holds several and none is chosen."""
    warnings: list[str] = []
    entries, error = _entries(payload, context.kind, warnings)
    wanted, table = chosen(context.options, "region_id"), chosen(context.options, "table")
    regions = {_region(entry) for entry in entries}
    if wanted is not None and entries and wanted not in regions:
        raise FeedError(INVALID, f"region_id: {wanted!r} is not in the answer; there are: {', '.join(sorted(regions))[:200]}")
    found: dict[str, list[Row]] = {}
    for entry in entries:
        region = _region(entry)
        if wanted not in (None, region) or table not in (None, entry.table):
            continue
        row = _row(entry, context, warnings)
        if row is not None:
            several = wanted is None and len(regions) > 1
            found.setdefault(f"{entry.table}/{region}" if several else entry.table, []).append(row)
    unit = "AUD/MWh" if context.kind is Kind.PRICE else UNITS[context.kind]
    points: list[SignalPoint] = []
    gaps: list[SignalGap] = []
    for variant, rows in found.items():
        some, none = series(context, NAME, unit, rows, warnings, variant)
        points += some
        gaps += none
    return result(points, gaps, warnings, "the answer has no value for this window", error)


# --- the rows of each form ------------------------------------------------------------------------------------------

_Entries = tuple[list[_Entry], FeedError | None]


def _entries(payload: bytes, kind: Kind, warnings: list[str]) -> _Entries:
    if payload.lstrip()[:1] == b"{":
        return _of_dashboard(json_object(payload), warnings), None
    entries: list[_Entry] = []
    error: FeedError | None = None
    for content in _members(payload) if payload.startswith(b"PK") else (payload,):
        some, fault = _of_csv(content, kind, warnings)
        entries += some
        error = error or fault
    if not entries:
        raise error or FeedError(INVALID, f"no table of the report has {_COLUMNS[kind]} by settlement date and region")
    return entries, error


def _members(payload: bytes) -> Iterator[bytes]:
    """CSV files of an archive; an archive of a day holds one archive for each interval."""
    left = MAX_UNPACKED_BYTES
    for content in unzipped(payload).values():
        for inner in unzipped(content).values() if content.startswith(b"PK") else (content,):
            left -= len(inner)
            if left < 0:
                raise FeedError(INVALID, f"the archive unpacks to more than {MAX_UNPACKED_BYTES // 2**20} MiB; refused")
            yield inner


def _of_csv(content: bytes, kind: Kind, warnings: list[str]) -> _Entries:
    table = csv_rows(text_of(content))
    if not table:
        raise FeedError(NO_DATA, "the answer has no rows")
    if table[0][0].strip().upper() == "REGION":
        return _of_monthly(table, warnings)
    if table[0][0].strip().upper() not in ("C", "I", "D"):
        raise FeedError(INVALID, f"the answer is no report of AEMO; it begins {','.join(table[0])[:80]!r}")
    return _of_report(table, kind, warnings)


def _of_monthly(table: Sequence[Sequence[str]], warnings: list[str]) -> _Entries:
    header = [name.strip().upper() for name in table[0]]
    entries = []
    error = None
    for number, row in enumerate(table[1:], 2):
        if len(row) == len(header):
            entries.append(_Entry(f"row {number}", "trading", dict(zip(header, row, strict=True))))
            continue
        warnings.append(f"row {number}: {len(row)} fields, the header has {len(header)}; left out")
        if number == len(table):
            error = FeedError(TRUNCATED, f"the file ends in the middle of row {number}")
    return entries, error


def _of_report(table: Sequence[Sequence[str]], kind: Kind, warnings: list[str]) -> _Entries:
    """The price rows. A demand that dispatch foresaw is not what was drawn, so reports give prices only."""
    headers: dict[str, list[str]] = {}
    entries = []
    counted: int | None = None
    for number, row in enumerate(table, 1):
        cells = [cell.strip() for cell in row]
        mark, key = cells[0].upper(), tuple(cell.upper() for cell in cells[1:3])
        if mark == "C" and key[:1] == ("END OF REPORT",):
            counted = int(cells[2]) if len(cells) > 2 and cells[2].isdigit() and len(cells[2]) < 10 else None
        elif mark in ("I", "D") and len(key) == 2:
            name = _PRICES.get((key[0], key[1])) if kind is Kind.PRICE else None
            if name is None:
                continue
            if mark == "I":
                headers[name] = [cell.upper() for cell in cells[4:]]
            elif len(cells) - 4 == len(headers.get(name, [])):
                entries.append(_Entry(f"row {number}", name, dict(zip(headers[name], cells[4:], strict=True))))
            else:
                warnings.append(f"row {number}: its fields do not fit the header of its table; left out")
    if counted is None:
        return entries, FeedError(TRUNCATED, "the report has no last row 'END OF REPORT' with a count; it is cut short")
    if len(table) < counted:
        return entries, FeedError(TRUNCATED, f"the report has {counted} rows by its own count, {len(table)} came")
    return entries, None


def _of_dashboard(body: Mapping[str, Any], warnings: list[str]) -> list[_Entry]:
    if "5MIN" not in body:
        if said(body):
            raise refusal(said(body))
        raise FeedError(INVALID, f"field '5MIN' is missing; there are: {', '.join(sorted(body))[:200]}")
    entries = []
    for where, item in objects(body["5MIN"], "5MIN", warnings):
        cells = {name.upper(): "" if value is None else str(value) for name, value in item.items()}
        # The dashboard shows the price of dispatch, which since 2021 is that of the trading interval.
        entries.append(_Entry(where, "trading", cells))
    if not entries:
        raise FeedError(NO_DATA, "the dashboard has no rows")
    return entries


# --- what a row means -----------------------------------------------------------------------------------------------


def _region(entry: _Entry) -> str:
    return (entry.cells.get("REGIONID") or entry.cells.get("REGION") or "?").strip().upper()


def _row(entry: _Entry, context: Context, warnings: list[str]) -> Row | None:
    cells = entry.cells
    # When AEMO intervenes, dispatch is solved twice: with the intervention (1, what plants did) and without (0, what sets
    # the price that is paid).
    if cells.get("INTERVENTION", "0").strip() not in ("0", ""):
        return None
    end = _settlement(cells.get("SETTLEMENTDATE", ""))
    if end is None:
        warnings.append(f"{entry.where}: SETTLEMENTDATE {cells.get('SETTLEMENTDATE', '')[:40]!r} is not a time; left out")
        return None
    column = _COLUMNS[context.kind]
    if column not in cells:
        raise FeedError(INVALID, f"no column {column}; there are: {', '.join(cells)[:200]}")
    value = _amount(cells[column].strip(), f"{entry.where}: {column}", warnings)
    length = _THIRTY if entry.table == "trading" and end <= _HALF_HOURS_UNTIL else _FIVE
    quality, issued_at = Quality.MEASURED, None
    if "FORECAST" in cells.get("PERIODTYPE", "").upper():
        # Pre-dispatch is solved by half hours.
        quality, issued_at, length = Quality.FORECAST, context.retrieved_at, _THIRTY
    elif context.kind is Kind.PRICE and not _is_firm(cells):
        quality = Quality.SUSPECT
    return Row(end - length, end, value, quality, issued_at)


def _amount(text: str, where: str, warnings: list[str]) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        warnings.append(f"{where} {text[:40]!r} is not a number; counted as missing")
        return None
    return value


def _is_firm(cells: Mapping[str, str]) -> bool:
    """Whether AEMO stands by the price: prices under review are "NOT FIRM", wrong ones are flagged."""
    flag = cells.get("INVALIDFLAG", "").strip().upper()
    return cells.get("PRICE_STATUS", "FIRM").strip().upper() in ("FIRM", "") and flag in ("", "0", "N")


def _settlement(text: str) -> datetime | None:
    """A settlement date, in UTC+10 whatever the season, as UTC."""
    try:
        when = datetime.fromisoformat(text.strip().replace("/", "-"))
    except ValueError:
        return None
    if not 1990 <= when.year <= 2200:
        return None
    return (when.replace(tzinfo=_NEM) if when.tzinfo is None else when).astimezone(UTC)


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options."""
    problems = check_base_url(options)
    if options.get("region_id") not in _REGIONS:
        problems.append(Problem("region_id", options.get("region_id"), f"must be one of {', '.join(_REGIONS)}"))
    if options.get("table", _TABLES[0]) not in _TABLES:
        problems.append(Problem("table", options["table"], f"must be one of {', '.join(map(repr, _TABLES))}"))
    return problems


FEED = Feed(
    name=NAME,
    kinds=frozenset({Kind.PRICE, Kind.LOAD}),
    option_names=frozenset({"region_id", "table", "base_url"}),
    requests=build_requests,
    read=read,
    check=check,
    poll_s=300.0,  # a price every five minutes
    pace_s=2.0,
    defaults={"table": "trading"},
)
