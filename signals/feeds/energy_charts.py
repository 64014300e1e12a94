"""Day-ahead prices of European bidding zones from Energy-Charts (api.energy-charts.info; no key).

It knows that labels are starts, that the resolution follows from their spacing and that null means not published.
"""

import re
from collections.abc import Mapping
from datetime import datetime
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
    holes,
    json_object,
    number,
    steps,
    time_of_unix,
)
from signals.gaps import SignalGap
from signals.points import Kind, Quality, SignalPoint

NAME = "energy_charts"
_BASE_URL = "https://api.energy-charts.info"
_UNIT = re.compile(r"\s*([A-Z]{3})\s*/\s*MWh\s*")


def build_requests(query: Query) -> tuple[Request, ...]:
    """One request for the whole window, in UTC."""
    base = str(query.options.get("base_url", _BASE_URL)).rstrip("/")
    params = {"bzn": str(query.options.get("bzn", "")), "start": _stamp(query.start), "end": _stamp(query.end)}
    return (Request(f"{base}/price", params=params, headers={"Accept": "application/json"}),)


def _stamp(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M+00:00")


def read(payload: bytes, context: Context) -> ParseResult:
    """Points of the parallel arrays ``unix_seconds`` and ``price``; a null and a missing label are gaps."""
    body = json_object(payload)
    seconds, prices, unit = body.get("unix_seconds"), body.get("price"), body.get("unit")
    if not isinstance(seconds, list) or not isinstance(prices, list):
        said = f"; it says: {str(body['detail'])[:200]}" if "detail" in body else ""
        raise FeedError(INVALID, f"fields 'unix_seconds' and 'price' are not two lists{said}")
    if len(seconds) != len(prices):
        raise FeedError(TRUNCATED, f"{len(seconds)} times but {len(prices)} prices; they cannot be matched")
    match = _UNIT.fullmatch(unit) if isinstance(unit, str) else None
    if match is None:
        raise FeedError(INVALID, f"unit: {str(unit)[:40]!r} is not a currency per MWh such as 'EUR / MWh'")
    warnings = ["the source says that this interface is deprecated"] if body.get("deprecated") is True else []
    values: dict[datetime, float | None] = {}
    doubtful = set()
    for index, (second, price) in enumerate(zip(seconds, prices, strict=True)):
        start, value = time_of_unix(second), number(price)
        if start is None:
            warnings.append(f"unix_seconds[{index}]: {str(second)[:40]} is not a time; left out")
            continue
        if price is not None and value is None:
            warnings.append(f"price[{index}]: {str(price)[:40]!r} is not a number; counted as missing")
        if start in values and values[start] != value:
            warnings.append(f"{_stamp(start)}: given twice, {values[start]} and {value}; the last value is used, suspect")
            doubtful.add(start)
            value = values[start] if value is None else value
        values[start] = value
    starts = sorted(values)
    spans = [(start, start + step) for start, step in zip(starts, steps(starts), strict=True)]
    points, gaps = [], []
    for start, end in spans:
        if not context.wants(start, end):
            continue
        value = values[start]
        if value is None:
            gaps.append(SignalGap(NAME, context.region, context.kind, start, end))
            continue
        points.append(
            SignalPoint(
                region=context.region,
                kind=context.kind,
                unit=f"{match[1]}/MWh",
                start=start,
                end=end,
                issued_at=None,
                retrieved_at=context.retrieved_at,
                value=value,
                quality=Quality.SUSPECT if start in doubtful else Quality.MEASURED,
                source=NAME,
            )
        )
    if not points:
        raise FeedError(NO_DATA, "no price is published for this window")
    gaps = sorted([*gaps, *holes(context, NAME, "", spans)], key=lambda g: g.start)
    return ParseResult(tuple(points), tuple(gaps), tuple(warnings))


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options."""
    problems = check_text(options, "bzn") + check_base_url(options)
    if "bzn" not in options:
        problems.append(Problem("bzn", None, "give the bidding zone, such as 'DE-LU'"))
    return problems


FEED = Feed(
    name=NAME,
    kinds=frozenset({Kind.PRICE}),
    option_names=frozenset({"bzn", "base_url"}),
    requests=build_requests,
    read=read,
    check=check,
    poll_s=1800.0,
)
