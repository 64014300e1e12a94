"""Dutch day-ahead prices from EnergyZero (public.api.energyzero.nl; no key), by the quarter hour or the hour.

It knows that one answer holds four series - the exchange's price (``base``), that with energy tax and surcharges (``all_in``),
and both with VAT - and never mixes them: each is a variant of its own. Values are EUR/kWh as decimal texts. One request is for
one day of Amsterdam; an answer may hold the days beside it too. The request is that of the client python-energyzero; how long
back the service answers is not documented.
"""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from signals.feeds.base import (
    INVALID,
    Context,
    Feed,
    FeedError,
    ParseResult,
    Problem,
    Query,
    Request,
    check_base_url,
    json_object,
    number,
    time_of,
)
from signals.feeds.reading import Row, base_url, last_published, objects, refusal, result, said, series
from signals.gaps import SignalGap
from signals.points import Kind, Quality, SignalPoint

NAME = "energyzero"
SERIES = ("base", "base_with_vat", "all_in", "all_in_with_vat")
_BASE_URL = "https://public.api.energyzero.nl"
_INTERVALS = {"quarter": "INTERVAL_QUARTER", "hour": "INTERVAL_HOUR"}
_ZONE = ZoneInfo("Europe/Amsterdam")
#: What this source writes for a number; "1e5", "NaN" and "1_000" are none.
_DECIMAL = re.compile(r"\s*-?\d{1,9}(\.\d{1,15})?\s*")
_LONGEST = timedelta(hours=1)
#: The local hour from which tomorrow's prices may be there: the auction's results come at about one.
_PUBLISHED_FROM = 12


def build_requests(query: Query) -> tuple[Request, ...]:
    """One request for each local day that the window touches and whose prices may be published."""
    url = f"{base_url(query.options, _BASE_URL)}/public/v1/prices"
    interval = _INTERVALS.get(str(query.options.get("interval", "quarter")), _INTERVALS["quarter"])
    day = query.start.astimezone(_ZONE).date()
    last = (query.end - timedelta(microseconds=1)).astimezone(_ZONE).date()
    last = min(last, last_published(query.now, _ZONE, _PUBLISHED_FROM))
    found = []
    while day <= last:
        params = {"energyType": "ENERGY_TYPE_ELECTRICITY", "date": day.strftime("%d-%m-%Y"), "interval": interval}
        found.append(Request(url, params, {"Accept": "application/json"}))
        day += timedelta(days=1)
    return tuple(found)


def read(payload: bytes, context: Context) -> ParseResult:
    """Points of each of the four series, or of the one that the option ``series`` names."""
    body = json_object(payload)
    there = [name for name in SERIES if name in body]
    if not there:
        if said(body):
            raise refusal(said(body))
        raise FeedError(INVALID, f"no field {', '.join(map(repr, SERIES))}; there are: {', '.join(sorted(body))[:200]}")
    wanted = context.options.get("series")
    if wanted is not None and wanted not in there:
        raise FeedError(INVALID, f"series: the answer holds {', '.join(there)}, asked was {wanted!r}")
    warnings: list[str] = []
    points: list[SignalPoint] = []
    gaps: list[SignalGap] = []
    usable, unusable = 0, 0
    for name in there:
        if wanted in (None, name):
            rows, wrong = _rows(body, name, warnings)
            usable, unusable = usable + len(rows), unusable + wrong
            some, none = series(context, NAME, "EUR/MWh", rows, warnings, name)
            points += some
            gaps += none
            gaps += _unpublished(body, context, name, rows)
    if unusable and not usable:
        raise FeedError(INVALID, "no row is a period of at most an hour; this is no price of electricity")
    return result(points, gaps, warnings, "no price is published for this window")


def _rows(body: Mapping[str, Any], name: str, warnings: list[str]) -> tuple[list[Row], int]:
    """The rows of one series, and how many were no period of electricity (gas comes by the day in the same shape)."""
    rows, wrong = [], 0
    for where, item in objects(body[name], name, warnings):
        start, end = time_of(item.get("start")), time_of(item.get("end"))
        if start is None or end is None or not timedelta(0) < end - start <= _LONGEST:
            warnings.append(f"{where}: 'start' and 'end' are not a period of at most an hour; left out")
            wrong += 1
            continue
        rows.append(Row(start, end, _price(item.get("price"), where, warnings), Quality.MEASURED))
    return rows, wrong


def _price(raw: object, where: str, warnings: list[str]) -> float | None:
    value = raw.get("value") if isinstance(raw, dict) else raw
    if value is None or value == "":
        return None
    plain = float(value) if isinstance(value, str) and _DECIMAL.fullmatch(value) else number(value)
    if plain is None or abs(plain) > 1e6:
        warnings.append(f"{where}.price: {str(value)[:40]!r} is not a price in EUR/kWh; counted as missing")
        return None
    return round(plain * 1000.0, 9)  # EUR/kWh to EUR/MWh; the rounding takes away only what the product adds


def _unpublished(body: Mapping[str, Any], context: Context, name: str, rows: list[Row]) -> list[SignalGap]:
    """The end of the answer's own range that no row covers: tomorrow, before it is published."""
    span = body.get("range")
    end = time_of(span.get("end")) if isinstance(span, dict) else None
    reached: datetime | None = max((row.end for row in rows if row.end is not None), default=None)
    if end is None or reached is None or reached >= end or not context.wants(reached, end):
        return []
    return [SignalGap(NAME, context.region, context.kind, reached, end, name)]


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options."""
    problems = check_base_url(options)
    for key, allowed in (("series", SERIES), ("interval", tuple(_INTERVALS))):
        if key in options and options[key] not in allowed:
            problems.append(Problem(key, options[key], f"must be one of {', '.join(map(repr, allowed))}"))
    return problems


FEED = Feed(
    name=NAME,
    kinds=frozenset({Kind.PRICE}),
    option_names=frozenset({"series", "interval", "base_url"}),
    requests=build_requests,
    read=read,
    check=check,
    poll_s=1800.0,
    pace_s=1.0,  # no limit is documented; one a second is what a person would do
    defaults={"series": "base"},
)
