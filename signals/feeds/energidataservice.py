"""Danish and neighbouring day-ahead prices and Denmark's carbon intensity from Energinet (api.energidataservice.dk; no key).

It knows that prices by the hour (Elspotprices) end where those by the quarter (DayAheadPrices) begin, with delivery on
2025-10-01 Danish time; that CO2Emis is what was and CO2EmisProg what is expected, both for electricity consumed, in g/kWh by
five minutes; and that an answer is silently cut at its ``limit`` (100 rows when nothing is asked), which ``total`` shows. The
forecast carries no issue time, so it counts as issued when retrieved. From the service's API guide; data are CC BY 4.0.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
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
    check_text,
    json_object,
    number,
    time_of,
)
from signals.feeds.reading import Row, base_url, objects, ranges, refusal, result, said, series, value_of
from signals.gaps import SignalGap
from signals.points import UNITS, Kind, Quality, SignalPoint

NAME = "energidataservice"
CURRENCIES = ("EUR", "DKK")
_BASE_URL = "https://api.energidataservice.dk"
#: Where DayAheadPrices take over from Elspotprices: midnight in Denmark.
_CUTOVER = datetime(2025, 9, 30, 22, tzinfo=UTC)
_HOUR, _QUARTER, _FIVE_MINUTES = timedelta(hours=1), timedelta(minutes=15), timedelta(minutes=5)
_RANGE = timedelta(days=31)
_ACTUAL, _FORECAST = "CO2Emis", "CO2EmisProg"


def build_requests(query: Query) -> tuple[Request, ...]:
    """Each dataset for its part of the window, at most 31 days at once, with no limit of rows."""
    # The period under way has its label before the window.
    start, end = query.start.replace(minute=0, second=0, microsecond=0), query.end
    now = query.now - timedelta(minutes=query.now.minute % 5, seconds=query.now.second, microseconds=query.now.microsecond)
    if query.kind is Kind.PRICE:
        parts = [
            ("Elspotprices", "HourUTC", start, min(end, _CUTOVER)),
            ("DayAheadPrices", "TimeUTC", max(start, _CUTOVER), end),
        ]
    else:
        parts = [
            (_ACTUAL, "Minutes5UTC", start, min(end, now)),
            (_FORECAST, "Minutes5UTC", max(start, now), end),
        ]
    area = json.dumps({"PriceArea": [str(query.options.get("price_area", ""))]}, separators=(",", ":"))
    found = []
    for dataset, label, since, until in parts:
        for a, b in ranges(since, until, _RANGE):
            params = {"start": _stamp(a), "end": _stamp(b), "timezone": "utc", "filter": area, "sort": label, "limit": "0"}
            url = f"{base_url(query.options, _BASE_URL)}/dataset/{dataset}"
            found.append(Request(url, params, {"Accept": "application/json"}))
    return tuple(found)


def _stamp(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M")


def read(payload: bytes, context: Context) -> ParseResult:
    """Points of ``records[]``, each price area a variant; fewer records than ``total`` says is truncated.

    Prices are given in EUR and DKK, the same price twice: the option ``currency`` chooses, without it EUR where there is one.
    """
    body = json_object(payload)
    if "records" not in body and said(body):
        raise refusal(said(body))
    warnings: list[str] = []
    items = objects(body.get("records"), "records", warnings)
    if not items:
        raise FeedError(NO_DATA, "the source has no records for this window")
    wanted = context.options.get("price_area")
    by_area: dict[str, list[Row]] = {}
    unit = UNITS.get(context.kind, "")
    if context.kind is Kind.PRICE:
        label, column, unit = _price_columns(items, context)
    else:
        label, column = "Minutes5UTC", "CO2Emission"
        if not any(column in item for _, item in items):
            raise FeedError(INVALID, "no record has a CO2Emission; this is no carbon intensity")
    for where, item in items:
        start = time_of(item.get(label))
        if start is None:
            warnings.append(f"{where}.{label}: {str(item.get(label))[:40]!r} is not a time; left out")
            continue
        area = item.get("PriceArea", wanted or "")
        if not isinstance(area, str):
            warnings.append(f"{where}.PriceArea: {str(area)[:40]!r} is not a text; left out")
            continue
        least = None if context.kind is Kind.PRICE else 0.0
        value = value_of(item.get(column), f"{where}.{column}", warnings, least)
        row = Row(start, start + _HOUR if label == "HourUTC" else None, value, Quality.MEASURED)
        if context.kind is not Kind.PRICE:
            row = _carbon(row, body.get("dataset"), context)
        by_area.setdefault(area, []).append(row)
    if wanted is not None and by_area and wanted not in by_area:
        raise FeedError(INVALID, f"price_area: the answer holds {', '.join(sorted(by_area))[:100]}, asked was {wanted!r}")
    points: list[SignalPoint] = []
    gaps: list[SignalGap] = []
    for area, rows in by_area.items():
        if wanted in (None, area):
            if len({row.start for row in rows}) == 1:  # no spacing to tell the length from
                rows = [row if row.end is not None else replace(row, end=row.start + _QUARTER) for row in rows]
            some, none = series(context, NAME, unit, rows, warnings, area)
            points += some
            gaps += none
    return result(points, gaps, warnings, "no value is published for this window", _cut(body, len(items)))


def _price_columns(items: list[tuple[str, dict[str, Any]]], context: Context) -> tuple[str, str, str]:
    """The columns of the label and of the price, and the unit."""
    there = {key for _, item in items for key in item}
    currency = context.options.get("currency")
    for label, prefix in (("TimeUTC", "DayAheadPrice"), ("HourUTC", "SpotPrice")):
        for code in CURRENCIES if currency is None else (currency,):
            if f"{prefix}{code}" in there:
                return label, f"{prefix}{code}", f"{code}/MWh"
    asked = "a day-ahead price" if currency is None else f"a day-ahead price in {currency}"
    raise FeedError(INVALID, f"no record has {asked}; there are: {', '.join(sorted(there))[:200]}")


def _carbon(row: Row, dataset: object, context: Context) -> Row:
    """The row with its five minutes, as a forecast where it is one: by the dataset's name, or because it lies ahead."""
    end = row.start + _FIVE_MINUTES
    if dataset == _FORECAST or (dataset != _ACTUAL and end > context.retrieved_at):
        return replace(row, end=end, quality=Quality.FORECAST, issued_at=context.retrieved_at)
    return replace(row, end=end, quality=Quality.MEASURED if dataset == _ACTUAL else Quality.ESTIMATED)


def _cut(body: Mapping[str, Any], rows: int) -> FeedError | None:
    total, offset = number(body.get("total")), number(body.get("offset")) or 0.0
    if total is None or rows + offset >= total:
        return None
    return FeedError(TRUNCATED, f"{rows} records of {total:.0f}; ask with limit=0")


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options."""
    problems = check_base_url(options) + check_text(options, "price_area")
    if "price_area" not in options:
        problems.append(Problem("price_area", None, "give the price area, such as 'DK1', 'DK2', 'DE', 'NO2', 'SE3' or 'SE4'"))
    if "currency" in options and options["currency"] not in CURRENCIES:
        problems.append(Problem("currency", options["currency"], "must be 'EUR' or 'DKK'"))
    return problems


FEED = Feed(
    name=NAME,
    kinds=frozenset({Kind.PRICE, Kind.CARBON_AVERAGE}),
    option_names=frozenset({"price_area", "currency", "base_url"}),
    requests=build_requests,
    read=read,
    check=check,
    poll_s=900.0,
    pace_s=0.5,  # 40 requests in 10 s are allowed (API guide); half of that
    defaults={"currency": "EUR"},
)
