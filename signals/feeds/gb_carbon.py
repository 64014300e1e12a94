"""The carbon intensity of Great Britain's grid, half-hourly, national or of a region (api.carbonintensity.org.uk; no key).

It knows that actuals are revised for about a day and forecasts even after the fact; the API gives no issue times, so a
forecast counts as issued when it was retrieved. Regions have forecasts only: one for a period that is over is the last estimate
that the provider has, never an actual, and gets the quality "estimated". No rate limit is documented.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from signals.feeds.base import (
    ACCESS,
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
    time_of,
)
from signals.feeds.reading import Row, base_url, ranges, result, series, value_of
from signals.gaps import SignalGap
from signals.points import UNITS, Kind, Quality, SignalPoint

NAME = "gb_carbon"
_BASE_URL = "https://api.carbonintensity.org.uk"
#: The API answers at most this long a range at once.
_RANGE = timedelta(days=14)
#: Actuals younger than this are still being revised.
_SETTLED = timedelta(hours=24)
#: The regions of the API by number; 15 to 17 are nations.
REGIONS = (
    "North Scotland",
    "South Scotland",
    "North West England",
    "North East England",
    "Yorkshire",
    "North Wales and Merseyside",
    "South Wales",
    "West Midlands",
    "East Midlands",
    "East England",
    "South West England",
    "South England",
    "London",
    "South East England",
    "England",
    "Scotland",
    "Wales",
)
_POSTCODE = re.compile(r"[A-Z]{1,2}[0-9][0-9A-Z]?")


def build_requests(query: Query) -> tuple[Request, ...]:
    """The past by ranges of at most 14 days, the future by the 48 hours' forecast."""
    base, place = base_url(query.options, _BASE_URL), ""
    region_id, postcode = _region_id(query.options.get("regionid")), query.options.get("postcode")
    if region_id is not None:
        base, place = f"{base}/regional", f"/regionid/{region_id}"
    elif postcode is not None:
        base, place = f"{base}/regional", f"/postcode/{str(postcode).strip().upper()}"
    headers = {"Accept": "application/json"}
    requests = [
        Request(f"{base}/intensity/{_stamp(start)}/{_stamp(end)}{place}", headers=headers)
        for start, end in ranges(query.start, min(query.end, query.now), _RANGE)
    ]
    if query.end > query.now:
        requests.append(Request(f"{base}/intensity/{_stamp(max(query.start, query.now))}/fw48h{place}", headers=headers))
    return tuple(requests)


def _stamp(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%MZ")


def _region_id(raw: object) -> int | None:
    """The number of a region given by number or name; None when there is no such region."""
    if isinstance(raw, str):
        names = {name.lower(): number for number, name in enumerate(REGIONS, 1)}
        text = raw.strip().lower()
        return names.get(text, int(text) if re.fullmatch("[1-9]|1[0-7]", text) else None)
    return raw if isinstance(raw, int) and not isinstance(raw, bool) and 1 <= raw <= len(REGIONS) else None


def read(payload: bytes, context: Context) -> ParseResult:
    """Points of ``data[].intensity``: ``actual`` and ``forecast`` each make one; a period with neither is a gap. Of a regional
    answer, in any of its shapes, each region is a variant."""
    body = json_object(payload)
    if "error" in body:
        error = body["error"]
        said = error.get("message") if isinstance(error, dict) else error
        raise FeedError(ACCESS, f"the source answered with an error: {str(said)[:200]}")
    if not isinstance(body.get("data"), list | dict):
        raise FeedError(INVALID, "field 'data' is missing or neither a list nor an object")
    if not body["data"]:
        raise FeedError(NO_DATA, "the source has no periods for this window")
    warnings: list[str] = []
    rows: dict[str, list[Row]] = {}
    for where, variant, start, end, intensity in _periods(body["data"], warnings):
        found = list(_values(where, variant, start, end, intensity, context, warnings))
        rows.setdefault(variant, []).extend(found or [Row(start, end, None, Quality.ESTIMATED)])
    points: list[SignalPoint] = []
    gaps: list[SignalGap] = []
    for variant, own in _chosen(rows, context).items():
        some, none = series(context, NAME, UNITS[context.kind], own, warnings, variant)
        points += some
        gaps += none
    empty = "no period of the answer has a value" if gaps else "the answer has no period of this window"
    return result(points, gaps, warnings, empty)


def _periods(data: Any, warnings: list[str]) -> Iterator[tuple[str, str, datetime, datetime, Mapping[str, Any]]]:
    """Where it stands, the variant, start, end and intensity of each period: of the national list, of one region's object (or
    a list of such), and of the list that has all regions in each period."""
    if isinstance(data, dict) and not isinstance(data.get("data"), list):
        raise FeedError(INVALID, "field 'data' is an object without a list 'data'")
    blocks = [data] if isinstance(data, dict) else [item for item in data if isinstance(item, dict) and "regionid" in item]
    for block in blocks:
        variant = f"region {block.get('regionid')}"
        inner = block.get("data")
        for index, item in enumerate(inner if isinstance(inner, list) else [inner]):
            yield from _period(f"{variant}: data[{index}]", variant, item, warnings)
    if not blocks:
        for index, item in enumerate(data):
            yield from _period(f"data[{index}]", "", item, warnings)


def _period(
    where: str, variant: str, item: Any, warnings: list[str]
) -> Iterator[tuple[str, str, datetime, datetime, Mapping[str, Any]]]:
    start, end = (time_of(item.get(name)) for name in ("from", "to")) if isinstance(item, dict) else (None, None)
    if start is None or end is None or not timedelta(0) < end - start <= timedelta(hours=1):
        warnings.append(f"{where}: 'from' and 'to' are not a period of at most an hour; left out")
        return
    if isinstance(item.get("regions"), list):
        for region in item["regions"]:
            if isinstance(region, dict) and "regionid" in region:
                yield where, f"region {region['regionid']}", start, end, _object(region.get("intensity"))
        return
    yield where, variant, start, end, _object(item.get("intensity"))


def _object(raw: object) -> Mapping[str, Any]:
    return raw if isinstance(raw, dict) else {}


def _values(
    where: str,
    variant: str,
    start: datetime,
    end: datetime,
    intensity: Mapping[str, Any],
    context: Context,
    warnings: list[str],
) -> Iterator[Row]:
    now = context.retrieved_at
    forecast = value_of(intensity.get("forecast"), f"{where}.forecast", warnings, 0.0)
    if forecast is not None:
        if variant and end <= now:
            yield Row(start, end, forecast, Quality.ESTIMATED)
        else:
            yield Row(start, end, forecast, Quality.FORECAST, now)
    # An "actual" of a period that is not over is a placeholder.
    actual = value_of(intensity.get("actual"), f"{where}.actual", warnings, 0.0) if end <= now else None
    if actual is not None:
        yield Row(start, end, actual, Quality.MEASURED if now - end >= _SETTLED else Quality.ESTIMATED)


def _chosen(rows: dict[str, list[Row]], context: Context) -> dict[str, list[Row]]:
    """The series of the options: the region's, any single region's for a postcode, else all that there are."""
    region_id = _region_id(context.options.get("regionid"))
    regional = {variant: own for variant, own in rows.items() if variant}
    if not rows or (region_id is None and "postcode" not in context.options):
        return rows
    if region_id is not None and f"region {region_id}" in rows:
        return {f"region {region_id}": rows[f"region {region_id}"]}
    if region_id is None and len(regional) == 1:
        return regional
    there = ", ".join(sorted(variant or "national" for variant in rows))[:100]
    raise FeedError(INVALID, f"{'postcode' if region_id is None else 'regionid'}: the answer is for another place ({there})")


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options."""
    problems = check_base_url(options)
    if "regionid" in options and _region_id(options["regionid"]) is None:
        problems.append(Problem("regionid", options["regionid"], f"must be 1 to 17 or one of: {', '.join(REGIONS)}"))
    postcode = options.get("postcode", "SW1")
    if not isinstance(postcode, str) or not _POSTCODE.fullmatch(postcode.strip().upper()):
        problems.append(Problem("postcode", options["postcode"], "must be the first half of a British postcode, such as 'SW1'"))
    if "postcode" in options and "regionid" in options:
        problems.append(Problem("postcode", options["postcode"], "give regionid or postcode, not both"))
    return problems


FEED = Feed(
    name=NAME,
    kinds=frozenset({Kind.CARBON_AVERAGE}),
    option_names=frozenset({"regionid", "postcode", "base_url"}),
    requests=build_requests,
    read=read,
    check=check,
    poll_s=900.0,
    pace_s=1.0,  # no limit is documented
)
