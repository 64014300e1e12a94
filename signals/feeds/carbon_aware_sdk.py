"""Carbon intensity from a Carbon Aware SDK web API that somebody runs (Green Software Foundation; base_url names it).

It knows that the SDK passes on what its own data source gives - average intensities from Electricity Maps or the UK, marginal
ones from WattTime - under one name, so the option ``signal`` must say which it is. An answer that is read without it counts as
marginal, the word of the SDK's documentation, with a warning. Ratings are gCO2/kWh. An answer names the data source's own
region, which need not be the location that was asked for. Ratings of the SDK's JSON source are invented: use it for tests only.
"""

import json
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
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
    number,
    text_of,
    time_of,
)
from signals.feeds.reading import Row, base_url, objects, refusal, result, said, series, stamp, value_of
from signals.gaps import SignalGap
from signals.points import UNITS, Kind, Quality, SignalPoint

NAME = "carbon_aware_sdk"
SIGNALS = {"average": Kind.CARBON_AVERAGE, "marginal": Kind.CARBON_MARGINAL}
#: A .NET time span: "00:05:00", "1.00:00:00".
_SPAN = re.compile(r"(?:(\d{1,3})\.)?(\d{1,2}):(\d{2}):(\d{2})(?:\.\d+)?")
_LONGEST = timedelta(days=1)


def build_requests(query: Query) -> tuple[Request, ...]:
    """The past by location and time, the future as the current forecast."""
    base = base_url(query.options, "")
    location = str(query.options.get("location", ""))
    headers = {"Accept": "application/json"}
    found = []
    if query.start < query.now:
        params = {"location": location, "time": stamp(query.start), "toTime": stamp(min(query.end, query.now))}
        found.append(Request(f"{base}/emissions/bylocation", params, headers))
    if query.end > query.now:
        # No dataEndAt: the SDK refuses one beyond what its source forecasts, and the reader keeps to the window anyway.
        found.append(Request(f"{base}/emissions/forecasts/current", {"location": location}, headers))
    return tuple(found)


def read(payload: bytes, context: Context) -> ParseResult:
    """Points of a list of emissions (``time``, ``rating``, ``duration``) or of forecasts (``forecastData[]``), each region of
    the data source a variant."""
    warnings: list[str] = []
    _require_signal(context, warnings)
    items = _list(payload)
    if not items:
        raise FeedError(NO_DATA, "the source has no emissions for this window")
    by_region: dict[str, list[Row]] = {}
    known = False
    for where, item in objects(items, "answer", warnings):
        if "forecastData" in item:
            known = True
            issued_at = time_of(item.get("generatedAt")) or context.retrieved_at
            for place, part in objects(item["forecastData"], f"{where}.forecastData", warnings):
                region, row = _row(part, place, Quality.FORECAST, min(issued_at, context.retrieved_at), warnings)
                if row is not None:
                    by_region.setdefault(region, []).append(row)
        elif "rating" in item or "value" in item:
            known = True
            region, row = _row(item, where, Quality.MEASURED, None, warnings)
            if row is not None:
                by_region.setdefault(region, []).append(row)
    if not known:
        raise FeedError(INVALID, "no item has a field 'rating', 'value' or 'forecastData'; these are no emissions")
    points: list[SignalPoint] = []
    gaps: list[SignalGap] = []
    for region, rows in _chosen(by_region, context).items():
        some, none = series(context, NAME, UNITS[context.kind], rows, warnings, region)
        points += some
        gaps += none
    return result(points, gaps, warnings, "the answer has no emissions for this window")


def _require_signal(context: Context, warnings: list[str]) -> None:
    signal = context.options.get("signal")
    if signal is None:
        if context.kind is not Kind.CARBON_MARGINAL:
            raise FeedError(INVALID, "signal: the answer does not say that it is an average; set the option if it is")
        warnings.append(
            "read as marginal intensity, as the SDK's documentation calls it; its data source decides: give 'signal'"
        )
    elif SIGNALS.get(str(signal)) is not context.kind:
        raise FeedError(INVALID, f"signal: {str(signal)[:40]!r} is not {context.kind}")


def _list(payload: bytes) -> list[Any]:
    text = text_of(payload)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        cut = text.lstrip()[:1] in "[{" and (error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"))
        if cut:
            raise FeedError(TRUNCATED, f"the JSON ends in the middle, after {len(text)} characters") from error
        raise FeedError(INVALID, f"the answer is not JSON: {error.msg} at character {error.pos}") from error
    except (RecursionError, ValueError) as error:  # absurd nesting; a number of thousands of digits
        raise FeedError(INVALID, f"the answer is not usable JSON: {type(error).__name__}") from error
    if isinstance(value, dict) and ("forecastData" in value or "rating" in value):
        return [value]
    if isinstance(value, dict) and (said(value) or value.get("title")):  # an RFC 9457 problem
        raise refusal(said(value) or value["title"])
    if not isinstance(value, list):
        raise FeedError(INVALID, f"the answer is a JSON {type(value).__name__}; a list of emissions was expected")
    return value


def _row(
    item: Mapping[str, Any], where: str, quality: Quality, issued_at: datetime | None, warnings: list[str]
) -> tuple[str, Row | None]:
    """The region that the item names, and its row; None when it has no time (the SDK writes the year 1 or 9999 for none)."""
    at = item.get("timestamp", item.get("time"))
    start = time_of(at)
    region = item.get("location")
    name = region if isinstance(region, str) else ""
    if start is None:
        warnings.append(f"{where}: {str(at)[:40]!r} is not a time between 1990 and 2200; left out")
        return name, None
    length = _length(item.get("duration"))
    value = value_of(item.get("value", item.get("rating")), where, warnings, 0.0)
    # A duration of zero says nothing about how long the value holds: then the spacing does.
    return name, Row(start, start + length if length else None, value, quality, issued_at)


def _length(raw: object) -> timedelta | None:
    """A duration in minutes or as a .NET time span; None for zero and for what is no length up to a day."""
    minutes = number(raw)
    if isinstance(raw, str) and (match := _SPAN.fullmatch(raw.strip())):
        days, hours, mins, seconds = (int(part or 0) for part in match.groups())
        minutes = days * 1440 + hours * 60 + mins + seconds / 60
    if minutes is None or not 0 < minutes <= _LONGEST.total_seconds() / 60:
        return None
    return timedelta(minutes=minutes)


def _chosen(by_region: dict[str, list[Row]], context: Context) -> dict[str, list[Row]]:
    """All regions without the option; with it the only one, whatever its name, or of several the one so named."""
    location = context.options.get("location")
    if location is None or len(by_region) < 2:
        return by_region
    if location not in by_region:
        raise FeedError(INVALID, f"location: the answer holds {', '.join(sorted(by_region))[:100]}, asked was {location!r}")
    return {location: by_region[location]}


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options."""
    problems = check_base_url(options) + check_text(options, "location")
    if "base_url" not in options:
        problems.append(Problem("base_url", None, "give the address of your Carbon Aware SDK web API"))
    if "location" not in options:
        problems.append(Problem("location", None, "give a location that your SDK knows, such as 'westeurope'"))
    if options.get("signal") not in tuple(SIGNALS):
        remedy = (
            "say 'average' or 'marginal': what your SDK's data source gives (WattTime: marginal, Electricity Maps: average)"
        )
        problems.append(Problem("signal", options.get("signal"), remedy))
    return problems


FEED = Feed(
    name=NAME,
    kinds=frozenset({Kind.CARBON_AVERAGE, Kind.CARBON_MARGINAL}),
    option_names=frozenset({"location", "signal", "base_url"}),
    requests=build_requests,
    read=read,
    check=check,
    poll_s=900.0,
)
