"""Day-ahead prices of European bidding zones and the carbon intensity of countries, from Energy-Charts (Fraunhofer ISE;
api.energy-charts.info; no key).

It knows that labels are starts, that the resolution follows from their spacing and that null means not published. The carbon
intensity (gCO2eq/kWh) comes as what was (``co2eq``) beside what is expected (``co2eq_forecast``); no issue time is given, so a
forecast counts as issued when it was retrieved. No rate limit is documented.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from signals.feeds.base import (
    INVALID,
    TRUNCATED,
    Context,
    Feed,
    FeedError,
    ParseResult,
    Problem,
    Query,
    Request,
    check_base_url,
    check_text,
    json_object,
    time_of_unix,
)
from signals.feeds.reading import Row, base_url, refusal, result, said, series, value_of
from signals.points import UNITS, Kind, Quality

NAME = "energy_charts"
_BASE_URL = "https://api.energy-charts.info"
_UNIT = re.compile(r"\s*([A-Z]{3})\s*/\s*MWh\s*")
_ZONE = re.compile(r"[A-Za-z]{2}")


def build_requests(query: Query) -> tuple[Request, ...]:
    """One request for the whole window, in UTC. The bidding zone's first letters are the country, unless that is given; a
    country that is one bidding zone is its own (Germany's is DE-LU)."""
    base = base_url(query.options, _BASE_URL)
    since = query.start.replace(minute=0, second=0, microsecond=0)  # the period under way has its label before the window
    params = {"start": _stamp(since), "end": _stamp(query.end)}
    headers = {"Accept": "application/json"}
    zone, country = str(query.options.get("bzn", "")), str(query.options.get("country", ""))
    if query.kind is Kind.PRICE:
        zone = zone or {"DE": "DE-LU"}.get(country.upper(), country.upper())
        return (Request(f"{base}/price", {"bzn": zone} | params, headers),)
    return (Request(f"{base}/co2eq", {"country": (country or zone[:2]).lower()} | params, headers),)


def _stamp(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M+00:00")


def read(payload: bytes, context: Context) -> ParseResult:
    """Points of the parallel arrays ``unix_seconds`` and ``price``, or ``co2eq`` and ``co2eq_forecast``; a null and a missing
    label are gaps."""
    body = json_object(payload)
    warnings = ["the source says that this interface is deprecated"] if body.get("deprecated") is True else []
    if context.kind is Kind.PRICE:
        unit = _price_unit(body)
        rows = _rows(body, "price", Quality.MEASURED, None, warnings)
    else:
        unit = UNITS[context.kind]
        if not isinstance(body.get("co2eq"), list) and not isinstance(body.get("co2eq_forecast"), list):
            raise _other(body, "fields 'co2eq' and 'co2eq_forecast' are no lists")
        rows = []
        if body.get("co2eq") is not None:
            actual = _rows(body, "co2eq", Quality.MEASURED, None, warnings)
            rows += [row for row in actual if row.value is None or row.start < context.retrieved_at]
        if body.get("co2eq_forecast") is not None:
            rows += _rows(body, "co2eq_forecast", Quality.FORECAST, context.retrieved_at, warnings)
    points, gaps = series(context, NAME, unit, rows, warnings)
    return result(points, list(dict.fromkeys(gaps)), warnings, "nothing is published for this window")


def _price_unit(body: Mapping[str, Any]) -> str:
    if not isinstance(body.get("unix_seconds"), list) or not isinstance(body.get("price"), list):
        raise _other(body, "fields 'unix_seconds' and 'price' are not two lists")
    unit = body.get("unit")
    match = _UNIT.fullmatch(unit) if isinstance(unit, str) else None
    if match is None:
        raise FeedError(INVALID, f"unit: {str(unit)[:40]!r} is not a currency per MWh such as 'EUR / MWh'")
    return f"{match[1]}/MWh"


def _other(body: Mapping[str, Any], what: str) -> FeedError:
    """The error for a document that is not the one asked for, in the source's own words where it has some."""
    return refusal(said(body)) if said(body) else FeedError(INVALID, what)


def _rows(body: Mapping[str, Any], field: str, quality: Quality, issued_at: datetime | None, warnings: list[str]) -> list[Row]:
    seconds, values = body.get("unix_seconds"), body[field]
    if not isinstance(seconds, list) or not isinstance(values, list):
        raise FeedError(INVALID, f"fields 'unix_seconds' and {field!r} are not two lists")
    if len(seconds) != len(values):
        raise FeedError(TRUNCATED, f"{len(seconds)} times but {len(values)} of {field}; they cannot be matched")
    least = None if field == "price" else 0.0
    rows = []
    for index, (second, raw) in enumerate(zip(seconds, values, strict=True)):
        start = time_of_unix(second)
        if start is None:
            warnings.append(f"unix_seconds[{index}]: {str(second)[:40]} is not a time; left out")
            continue
        rows.append(Row(start, None, value_of(raw, f"{field}[{index}]", warnings, least), quality, issued_at))
    return rows


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options."""
    problems = check_text(options, "bzn") + check_base_url(options)
    if "country" in options and not (isinstance(options["country"], str) and _ZONE.fullmatch(options["country"])):
        problems.append(Problem("country", options["country"], "must be two letters, such as 'de'"))
    if "bzn" not in options and "country" not in options:
        problems.append(Problem("bzn", None, "give the bidding zone, such as 'DE-LU' (for carbon, 'country' will do)"))
    return problems


FEED = Feed(
    name=NAME,
    kinds=frozenset({Kind.PRICE, Kind.CARBON_AVERAGE}),
    option_names=frozenset({"bzn", "country", "base_url"}),
    requests=build_requests,
    read=read,
    check=check,
    poll_s=1800.0,
    pace_s=1.0,  # no limit is documented
)
