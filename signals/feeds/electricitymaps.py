"""Carbon intensity of a zone from Electricity Maps, API v3 (a token; https://www.electricitymaps.com).

It knows that labels are starts, that values marked as estimated are revised for days and that lifecycle and direct intensities
are different series; a row that does not say which it is counts as lifecycle, the API's default. Forecast documents carry
their issue time in ``updatedAt``. The forecast's horizons and the longest ranges are from the provider's documentation; this
feed has not been run against a paid plan. The data's licence allows no redistribution: keep them to yourself.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
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
    Secret,
    check_base_url,
    check_text,
    json_object,
    time_of,
)
from signals.feeds.reading import POLLED, Row, base_url, chosen, objects, ranges, refusal, result, said, series, stamp, value_of
from signals.gaps import SignalGap
from signals.points import UNITS, Kind, Quality, SignalPoint

NAME = "electricitymaps"
_BASE_URL = "https://api.electricitymaps.com"
_TYPES = ("lifecycle", "direct")
_HOUR = timedelta(hours=1)
#: Granularity -> interval and the longest range of one past-range request.
_GRANULARITIES = {
    "hourly": (_HOUR, timedelta(days=10)),
    "15_minutes": (timedelta(minutes=15), timedelta(days=3)),
    "5_minutes": (timedelta(minutes=5), timedelta(days=1)),
}
#: Forecast horizons that can be asked for, in hours; plans differ in the longest.
_HORIZONS = (6, 24, 48, 72)


def build_requests(query: Query) -> tuple[Request, ...]:
    """The last day from ``history`` (every plan has it), the future as a forecast, and an older past by ranges.

    Ranges are not part of every plan and are asked last, and only for a window that begins before what polls ask for: a
    refusal would be an error of every poll, whose values came all the same.
    """
    options = query.options
    base = f"{base_url(options, _BASE_URL)}/v3/carbon-intensity"
    headers = {"auth-token": str(options.get("token", "")), "Accept": "application/json"}
    granularity = str(options.get("granularity", "hourly"))
    step, longest = _GRANULARITIES.get(granularity, _GRANULARITIES["hourly"])
    params = {"zone": str(options.get("zone", ""))}
    if options.get("emission_factor_type") == "direct":
        params["emissionFactorType"] = "direct"
    if granularity != "hourly":
        params["temporalGranularity"] = granularity
    found = []
    now_label = _floor(query.now, step)
    start = _floor(query.start, step)
    day_ago = now_label - timedelta(hours=23)
    if start <= now_label and query.end > day_ago:
        found.append(Request(f"{base}/history", params, headers))
    if query.end > query.now:
        most = int(options.get("horizon_h", _HORIZONS[-1]))
        needed = (query.end - query.now) / _HOUR
        horizon = next((h for h in _HORIZONS if h >= needed), _HORIZONS[-1])
        found.append(Request(f"{base}/forecast", params | {"horizonHours": str(min(horizon, most))}, headers))
    if start < day_ago and query.start < query.now - POLLED:
        for a, b in ranges(start, min(query.end, day_ago), longest):
            found.append(Request(f"{base}/past-range", params | {"start": stamp(a), "end": stamp(b)}, headers))
    return tuple(found)


def _floor(when: datetime, step: timedelta) -> datetime:
    return when - (when - datetime(2000, 1, 1, tzinfo=UTC)) % step


def read(payload: bytes, context: Context) -> ParseResult:
    """Points of a ``latest``, ``history``, ``past-range`` or ``forecast`` answer, each emission factor type its own variant."""
    body = json_object(payload)
    warnings: list[str] = []
    rows = _rows(body, warnings)
    zone = chosen(context.options, "zone")
    # For a zone that it does not know, the API may answer with the zone of the caller's address.
    if zone is not None and body.get("zone") not in (None, zone):
        raise FeedError(INVALID, f"zone: the answer is for {str(body['zone'])[:40]!r}, asked was {zone!r}")
    is_forecast = "forecast" in body
    issued_at = (time_of(body.get("updatedAt")) or context.retrieved_at) if is_forecast else None
    wanted = chosen(context.options, "emission_factor_type")
    found: dict[str, list[Row]] = {}
    for where, item in rows:
        if zone is not None and item.get("zone") not in (None, zone):
            warnings.append(f"{where}: zone {str(item['zone'])[:40]!r} is not {zone!r}; left out")
            continue
        start = time_of(item.get("datetime"))
        if start is None:
            warnings.append(f"{where}: datetime {str(item.get('datetime'))[:40]!r} is not a time; left out")
            continue
        variant = item.get("emissionFactorType", wanted or _TYPES[0])
        if variant not in _TYPES:
            warnings.append(f"{where}: emissionFactorType {str(variant)[:40]!r} is neither lifecycle nor direct; left out")
            continue
        end = _end(start, item.get("temporalGranularity", body.get("temporalGranularity")))
        value = value_of(item.get("carbonIntensity"), f"{where}.carbonIntensity", warnings, least=0.0)
        found.setdefault(variant, []).append(Row(start, end, value, _quality(item, is_forecast, where, warnings), issued_at))
    if wanted is not None and found and wanted not in found:
        raise FeedError(INVALID, f"emission_factor_type: the answer holds {', '.join(sorted(found))}, asked was {wanted!r}")
    points: list[SignalPoint] = []
    gaps: list[SignalGap] = []
    for variant, own in found.items():
        if wanted in (None, variant):
            some, none = series(context, NAME, UNITS[Kind.CARBON_AVERAGE], own, warnings, variant)
            points += some
            gaps += none
    return result(points, gaps, warnings, "the answer has no carbon intensity for this window")


def _end(start: datetime, granularity: object) -> datetime | None:
    """The end that the answer's granularity gives; None (the spacing decides) when it states none."""
    if granularity is None:
        return None
    if not isinstance(granularity, str) or granularity not in _GRANULARITIES:
        raise FeedError(INVALID, f"temporalGranularity: {str(granularity)[:40]!r}; must be one of {', '.join(_GRANULARITIES)}")
    return start + _GRANULARITIES[granularity][0]


def _rows(body: Mapping[str, Any], warnings: list[str]) -> list[tuple[str, dict[str, Any]]]:
    if not body:
        raise FeedError(NO_DATA, "the answer is an empty object")
    lists = [key for key in ("history", "data", "forecast") if key in body]
    if lists:
        rows = objects(body[lists[0]], lists[0], warnings)
        if not rows:
            raise FeedError(NO_DATA, f"the source has no rows for this window (field {lists[0]!r} is empty)")
    elif "carbonIntensity" in body:
        rows = [("latest", dict(body))]
    elif all(isinstance(zone, dict) and "zoneName" in zone for zone in body.values()):
        with_country = sum("countryName" in zone for zone in body.values())
        raise FeedError(NO_DATA, f"a list of {len(body)} zones ({with_country} with a countryName), not of values")
    elif said(body):
        raise refusal(said(body))
    else:
        raise FeedError(INVALID, f"no field 'carbonIntensity', 'history', 'data' or 'forecast'; there are: {_names(body)}")
    if not any("carbonIntensity" in item for _, item in rows):
        raise FeedError(INVALID, f"no row has a carbonIntensity; there are: {_names(rows[0][1])}")
    return rows


def _names(body: Mapping[str, Any]) -> str:
    return ", ".join(sorted(body))[:200]


def _quality(item: Mapping[str, Any], is_forecast: bool, where: str, warnings: list[str]) -> Quality:
    if str(item.get("estimationMethod", "")).upper().startswith("SANDBOX"):
        warnings.append(f"{where}: sandbox data, invented by the provider for tests; suspect")
        return Quality.SUSPECT
    if is_forecast:
        return Quality.FORECAST
    return Quality.ESTIMATED if item.get("isEstimated") is True else Quality.MEASURED


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options."""
    problems = check_text(options, "zone") + check_base_url(options)
    if "zone" not in options:
        problems.append(Problem("zone", None, "give the zone, such as 'DE' or 'US-CAL-CISO'"))
    choices = (("emission_factor_type", _TYPES), ("granularity", tuple(_GRANULARITIES)), ("horizon_h", _HORIZONS))
    for key, allowed in choices:
        value = options.get(key, allowed[0])
        if isinstance(value, bool) or value not in allowed:
            problems.append(Problem(key, value, f"must be one of {', '.join(map(repr, allowed))}"))
    return problems


FEED = Feed(
    name=NAME,
    kinds=frozenset({Kind.CARBON_AVERAGE}),
    option_names=frozenset({"zone", "emission_factor_type", "granularity", "horizon_h", "base_url"}),
    requests=build_requests,
    read=read,
    check=check,
    poll_s=900.0,
    pace_s=1.0,  # free plans allow some tens of requests an hour; a second apart is no burst on any plan
    secrets=(Secret("token", "ELECTRICITYMAPS_TOKEN", "https://portal.electricitymaps.com"),),
    defaults={"emission_factor_type": "lifecycle"},
)
