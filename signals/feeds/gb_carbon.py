"""The carbon intensity of Great Britain's grid, national, half-hourly (api.carbonintensity.org.uk; no key).

It knows that actuals are revised for about a day and forecasts even after the fact; the API gives no issue times, so a
forecast counts as issued when it was retrieved.
"""

from collections.abc import Mapping
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
    holes,
    json_object,
    number,
    time_of,
)
from signals.gaps import SignalGap
from signals.points import UNITS, Kind, Quality, SignalPoint

NAME = "gb_carbon"
_BASE_URL = "https://api.carbonintensity.org.uk"
#: The API answers at most this long a range at once.
_RANGE = timedelta(days=14)
#: Actuals younger than this are still being revised.
_SETTLED = timedelta(hours=24)


def build_requests(query: Query) -> tuple[Request, ...]:
    """The past by ranges of at most 14 days, the future by the 48 hours' forecast."""
    base = str(query.options.get("base_url", _BASE_URL)).rstrip("/")
    start, end, now = query.start, query.end, query.now
    headers = {"Accept": "application/json"}
    requests = []
    at, past_end = start, min(end, now)
    while at < past_end:
        to = min(at + _RANGE, past_end)
        requests.append(Request(f"{base}/intensity/{_stamp(at)}/{_stamp(to)}", headers=headers))
        at = to
    if end > now:
        requests.append(Request(f"{base}/intensity/{_stamp(max(start, now))}/fw48h", headers=headers))
    return tuple(requests)


def _stamp(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%MZ")


def read(payload: bytes, context: Context) -> ParseResult:
    """Points of ``data[].intensity``: ``actual`` and ``forecast`` each make one; a period with neither is a gap."""
    body = json_object(payload)
    if "error" in body:
        error = body["error"]
        said = error.get("message") if isinstance(error, dict) else error
        raise FeedError(ACCESS, f"the source answered with an error: {str(said)[:200]}")
    data = body.get("data")
    if not isinstance(data, list):
        raise FeedError(INVALID, "field 'data' is missing or not a list")
    if not data:
        raise FeedError(NO_DATA, "the source has no periods for this window")
    warnings: list[str] = []
    best: dict[tuple[datetime, datetime, bool], SignalPoint] = {}
    spans: set[tuple[datetime, datetime]] = set()
    empty: set[tuple[datetime, datetime]] = set()
    for index, item in enumerate(data):
        start, end = (time_of(item.get(name)) for name in ("from", "to")) if isinstance(item, dict) else (None, None)
        if start is None or end is None or not timedelta(0) < end - start <= timedelta(hours=1):
            warnings.append(f"data[{index}]: 'from' and 'to' are not a period of at most an hour; left out")
            continue
        intensity = item.get("intensity")
        values = intensity if isinstance(intensity, dict) else {}
        if not context.wants(start, end):
            continue
        spans.add((start, end))
        found = False
        for name, is_actual in (("actual", True), ("forecast", False)):
            value = number(values.get(name))
            if value is None or (is_actual and end > context.retrieved_at):
                continue
            if value < 0:
                warnings.append(f"data[{index}]: {name} {value} g/kWh is negative; left out")
                continue
            found = True
            point = _point(context, start, end, value, is_actual)
            previous = best.get((start, end, is_actual))
            if previous is not None and previous.value != value:
                warnings.append(f"{_stamp(start)}: {name} given twice, {previous.value} and {value}; the last is used, suspect")
                point = _point(context, start, end, value, is_actual, Quality.SUSPECT if is_actual else None)
            best[start, end, is_actual] = point
        if not found:
            empty.add((start, end))
    empty -= {(start, end) for start, end, _ in best}
    if not best:
        raise FeedError(NO_DATA, "no period of the answer has a value" if spans else "the answer has no period of this window")
    nothing = tuple(SignalGap(NAME, context.region, context.kind, start, end) for start, end in sorted(empty))
    gaps = sorted(nothing + holes(context, NAME, "", sorted(spans)), key=lambda g: g.start)
    points = sorted(best.values(), key=lambda p: (p.start, p.quality is not Quality.FORECAST))
    return ParseResult(tuple(points), tuple(gaps), tuple(warnings))


def _point(
    context: Context, start: datetime, end: datetime, value: float, is_actual: bool, quality: Quality | None = None
) -> SignalPoint:
    if is_actual:
        usual = Quality.MEASURED if context.retrieved_at - end >= _SETTLED else Quality.ESTIMATED
    else:
        usual = Quality.FORECAST
    return SignalPoint(
        region=context.region,
        kind=context.kind,
        unit=UNITS[context.kind],
        start=start,
        end=end,
        issued_at=None if is_actual else context.retrieved_at,
        retrieved_at=context.retrieved_at,
        value=value,
        quality=quality or usual,
        source=NAME,
    )


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options."""
    return check_base_url(options)


FEED = Feed(
    name=NAME,
    kinds=frozenset({Kind.CARBON_AVERAGE}),
    option_names=frozenset({"base_url"}),
    requests=build_requests,
    read=read,
    check=check,
    poll_s=900.0,
)
