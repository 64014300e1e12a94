"""Day-ahead prices of New York's load zones from the NYISO's public files (no key; http://mis.nyiso.com).

It knows that a label is the local start of an hour, that the hour which the autumn repeats is listed twice, the earlier one
first, and that days older than about ten are only in the archive of their month. Files of real-time prices look alike but are
labelled by the end of five minutes, with seconds: refused.
"""

import re
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

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
    text_of,
)
from signals.feeds.documents import csv_rows, decimal, local_to_utc, unzipped
from signals.feeds.reading import Row, base_url, last_published, result, series
from signals.gaps import SignalGap
from signals.points import Kind, Quality, SignalPoint

NAME = "nyiso"
#: The files are known under http; with an https mirror give it as base_url.
_BASE_URL = "http://mis.nyiso.com"
_NEW_YORK = ZoneInfo("America/New_York")
_HOUR = timedelta(hours=1)
#: Days younger than this are asked as files of their own.
_RECENT = timedelta(days=8)
#: The local hour from which tomorrow's file may be there; it is published at about eleven.
_PUBLISHED_FROM = 9
_ZONES = (
    "CAPITL", "CENTRL", "DUNWOD", "GENESE", "H Q", "HUD VL", "LONGIL", "MHK VL", "MILLWD", "N.Y.C.", "NORTH", "NPX", "O H",
    "PJM", "WEST",
)  # fmt: skip
_NEEDED = ("Time Stamp", "Name", "LBMP ($/MWHr)")
_LABEL = re.compile(r"(\d\d)/(\d\d)/(\d{4}) (\d\d):(\d\d)(:\d\d)?", re.ASCII)


def build_requests(query: Query) -> tuple[Request, ...]:
    """One file for each local day of late, one archive for each month before; none for days that cannot be published yet."""
    first, last = (t.astimezone(_NEW_YORK).date() for t in (query.start, query.end - timedelta(microseconds=1)))
    last = min(last, last_published(query.now, _NEW_YORK, _PUBLISHED_FROM))
    recent = (query.now - _RECENT).astimezone(_NEW_YORK).date()
    base = f"{base_url(query.options, _BASE_URL)}/public/csv/damlbmp"
    urls: dict[str, None] = {}
    for day in (first + timedelta(days=i) for i in range((last - first).days + 1)):
        name = f"{day:%Y%m%d}damlbmp_zone.csv" if day >= recent else f"{day:%Y%m}01damlbmp_zone_csv.zip"
        urls[f"{base}/{name}"] = None
    return tuple(Request(url) for url in urls)


def read(payload: bytes, context: Context) -> ParseResult:
    """Points of a file, or of all files of an archive; each zone is a variant, or the one that the option asks for."""
    parts = unzipped(payload) if payload.startswith(b"PK") else {"": payload}
    asked = _zone(context.options.get("zone"))
    warnings: list[str] = []
    errors: list[FeedError] = []
    labels: dict[str, list[tuple[datetime, float | None]]] = {}
    for name in sorted(parts):
        try:
            for zone, label, value in _lines(parts[name], warnings, errors):
                if asked in (None, zone):
                    labels.setdefault(zone, []).append((label, value))
        except FeedError as error:
            errors.append(error)
    worst = next((error for error in errors if error.kind != NO_DATA), None)
    if not labels and errors:
        raise worst or errors[0]
    if not labels:
        raise FeedError(NO_DATA, f"zone: the file has no {asked}" if asked else "the file has no rows")
    points: list[SignalPoint] = []
    gaps: list[SignalGap] = []
    for zone, own in labels.items():
        rows = []
        for start, (label, value) in zip(local_to_utc((label for label, _ in own), _NEW_YORK), own, strict=True):
            if start is None:
                warnings.append(f"{zone}: {label:%Y-%m-%d %H:%M} never was in New York, clocks went forward; left out")
            else:
                rows.append(Row(start, start + _HOUR, value, Quality.MEASURED))
        some, none = series(context, NAME, "USD/MWh", rows, warnings, "" if asked or len(labels) == 1 else zone)
        points += some
        gaps += none
    return result(points, gaps, warnings, "the file has no price for this window", worst)


def _lines(content: bytes, warnings: list[str], errors: list[FeedError]) -> list[tuple[str, datetime, float | None]]:
    """Zone, local label and price of each line; a last line that is cut short is an error beside the others."""
    header, *lines = csv_rows(text_of(content)) or [[]]
    columns = {name.strip(): index for index, name in enumerate(header)}
    lacking = [name for name in _NEEDED if name not in columns]
    if lacking:
        raise FeedError(INVALID, f"column {', '.join(lacking)} is missing; there are: {', '.join(columns)[:200]}")
    found = []
    for number, line in enumerate(lines, 2):
        if len(line) < len(header):  # the number in it may have lost its last digits
            said = f"line {number} has {len(line)} of {len(header)} fields"
            if number == len(lines) + 1:
                errors.append(FeedError(TRUNCATED, f"{said}: the file is cut short"))
            else:
                warnings.append(f"{said}; left out")
            continue
        label_text, zone, text = (line[columns[name]].strip() if columns[name] < len(line) else "" for name in _NEEDED)
        match = _LABEL.fullmatch(label_text)
        if match and match[6]:
            raise FeedError(
                INVALID, f"line {number}: {label_text} has seconds: a file of real-time prices, not of the day ahead"
            )
        label = _label(match)
        if label is None or not zone:
            warnings.append(f"line {number}: {label_text[:20]!r} of {zone[:20]!r} is no hour of a zone; left out")
            continue
        value = decimal(text)
        if text and value is None:
            warnings.append(f"line {number}: price {text[:20]!r} is not a number; counted as missing")
        found.append((zone[:20], label, value))
    return found


def _label(match: re.Match[str] | None) -> datetime | None:
    if match is None:
        return None
    month, day, year, hour, minute = (int(match[i]) for i in range(1, 6))
    try:
        midnight = datetime.combine(date(year, month, day), datetime.min.time())
    except ValueError:
        return None
    if not 1990 <= year <= 2200 or hour > 23 or minute:
        return None
    return midnight + timedelta(hours=hour)


def _zone(option: object) -> str | None:
    return None if option is None else str(option).strip().upper()


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options."""
    problems = check_base_url(options)
    zone = options.get("zone")
    if not isinstance(zone, str) or _zone(zone) not in _ZONES:
        problems.append(Problem("zone", zone, f"must be one of {', '.join(_ZONES)}"))
    return problems


FEED = Feed(
    name=NAME,
    kinds=frozenset({Kind.PRICE}),
    option_names=frozenset({"zone", "base_url"}),
    requests=build_requests,
    read=read,
    check=check,
    poll_s=1800.0,
    pace_s=1.0,  # no limit is published
)
