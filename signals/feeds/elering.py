"""Day-ahead prices of Estonia, Latvia, Lithuania and Finland from Elering (dashboard.elering.ee; no key).

It knows that one answer holds all four areas, each a variant of its own, and that labels are starts in Unix seconds; the
resolution (an hour, since 2025-10-01 a quarter) follows from their spacing. No rate limit is documented.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

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
    time_of_unix,
)
from signals.feeds.reading import Row, base_url, objects, ranges, refusal, result, said, series, stamp, value_of
from signals.gaps import SignalGap
from signals.points import Kind, Quality, SignalPoint

NAME = "elering"
AREAS = ("ee", "fi", "lt", "lv")
_BASE_URL = "https://dashboard.elering.ee"
#: A month is half a megabyte; longer windows are asked in parts.
_RANGE = timedelta(days=31)


def build_requests(query: Query) -> tuple[Request, ...]:
    """The window by ranges of at most 31 days; the answer always has every area."""
    url = f"{base_url(query.options, _BASE_URL)}/api/nps/price"
    since = query.start.replace(minute=0, second=0, microsecond=0)  # the hour under way has its label before the window
    headers = {"Accept": "application/json"}
    return tuple(
        Request(url, {"start": stamp(start), "end": stamp(end)}, headers) for start, end in ranges(since, query.end, _RANGE)
    )


def read(payload: bytes, context: Context) -> ParseResult:
    """Points of each area in ``data``, or of the one that the option ``area`` names."""
    body = json_object(payload)
    data = body.get("data")
    if body.get("success") is False or (data is None and said(body)):
        raise refusal(said(body) or body.get("messages") or "no success")
    wanted = context.options.get("area")
    if isinstance(data, list):  # /price/EE/current: one area, which the answer does not name
        data = {str(wanted or ""): data}
    if not isinstance(data, dict):
        raise FeedError(INVALID, "field 'data' is missing or not an object of areas")
    if wanted is not None and data and wanted not in data:
        raise FeedError(INVALID, f"area: the answer holds {', '.join(sorted(data))[:100]}, asked was {wanted!r}")
    warnings: list[str] = []
    points: list[SignalPoint] = []
    gaps: list[SignalGap] = []
    for area in sorted(data):
        if wanted in (None, area):
            rows = []
            for where, item in objects(data[area], f"data.{area}"[:40], warnings):
                start = time_of_unix(item.get("timestamp"))
                if start is None:
                    warnings.append(f"{where}: timestamp {str(item.get('timestamp'))[:40]!r} is not a time; left out")
                    continue
                value = value_of(item.get("price"), f"{where}.price", warnings)
                rows.append(Row(start, None, value, Quality.MEASURED))
            some, none = series(context, NAME, "EUR/MWh", rows, warnings, area)
            points += some
            gaps += none
    return result(points, gaps, warnings, "no price is published for this window")


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options."""
    problems = check_base_url(options)
    if options.get("area") not in AREAS:
        problems.append(Problem("area", options.get("area"), f"give the area, one of {', '.join(map(repr, AREAS))}"))
    return problems


FEED = Feed(
    name=NAME,
    kinds=frozenset({Kind.PRICE}),
    option_names=frozenset({"area", "base_url"}),
    requests=build_requests,
    read=read,
    check=check,
    poll_s=1800.0,
    pace_s=1.0,  # no limit is documented
)
