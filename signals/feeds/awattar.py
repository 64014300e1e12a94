"""Day-ahead prices of Germany and Austria from aWATTar (api.awattar.de and .at; no key).

It knows that times are milliseconds since the epoch and prices EUR/MWh without tax; the service answers for the range asked
and no further. Known from clients of the service; not asked live by this project.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from signals.feeds.base import (
    INVALID,
    NO_DATA,
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
    time_of_unix,
)
from signals.feeds.reading import Row, base_url, objects, ranges, refusal, result, said, series, value_of
from signals.points import Kind, Quality

NAME = "awattar"
COUNTRIES = ("at", "de")
_RANGE = timedelta(days=31)
_LONGEST = timedelta(hours=1)


def build_requests(query: Query) -> tuple[Request, ...]:
    """The window by ranges of at most 31 days, both ends given: without an end the service answers for one day only."""
    base = base_url(query.options, f"https://api.awattar.{query.options.get('country', 'de')}")
    since = query.start.replace(minute=0, second=0, microsecond=0)  # the hour under way has its label before the window
    headers = {"Accept": "application/json"}
    return tuple(
        Request(f"{base}/v1/marketdata", {"start": _milliseconds(start), "end": _milliseconds(end)}, headers)
        for start, end in ranges(since, query.end, _RANGE)
    )


def _milliseconds(when: datetime) -> str:
    return str(round(when.timestamp()) * 1000)


def read(payload: bytes, context: Context) -> ParseResult:
    """Points of ``data[]``; a row in another unit than EUR/MWh is an error, not a price."""
    body = json_object(payload)
    if "data" not in body and said(body):
        raise refusal(said(body))
    warnings: list[str] = []
    items = objects(body.get("data"), "data", warnings)
    if not items and not warnings:
        raise FeedError(NO_DATA, "the source has no price for this window")
    rows = []
    for where, item in items:
        unit = item.get("unit")
        if not isinstance(unit, str) or unit.replace(" ", "").lower() != "eur/mwh":
            raise FeedError(INVALID, f"{where}.unit: {str(unit)[:40]!r} is not 'Eur/MWh'")
        start, end = _time(item.get("start_timestamp")), _time(item.get("end_timestamp"))
        if start is None or end is None or not timedelta(0) < end - start <= _LONGEST:
            warnings.append(f"{where}: start_timestamp and end_timestamp are not a period of at most an hour; left out")
            continue
        rows.append(Row(start, end, value_of(item.get("marketprice"), f"{where}.marketprice", warnings), Quality.MEASURED))
    if not rows:
        raise FeedError(INVALID, f"no row is a price of a period; {warnings[0]}")
    points, gaps = series(context, NAME, "EUR/MWh", rows, warnings)
    return result(points, gaps, warnings, "no price is published for this window")


def _time(milliseconds: object) -> datetime | None:
    value = number(milliseconds)
    return time_of_unix(value / 1000.0) if value is not None else None


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options."""
    problems = check_base_url(options)
    if options.get("country") not in COUNTRIES:
        problems.append(Problem("country", options.get("country"), "give the country, 'de' or 'at'"))
    return problems


FEED = Feed(
    name=NAME,
    kinds=frozenset({Kind.PRICE}),
    option_names=frozenset({"country", "base_url"}),
    requests=build_requests,
    read=read,
    check=check,
    poll_s=1800.0,
    pace_s=2.0,  # clients tell of a refusal that lifts after some seconds (header x-retry-in); the exact limit is not known
)
