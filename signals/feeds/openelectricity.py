"""Wholesale prices and demand of Australia's NEM (and WEM) from OpenElectricity: API v4 (a key), and the older OpenNEM files.

It knows that a five-minute value is stamped with AEMO's settlement date, the END of its interval (documented in the guide on
curtailment, docs.openelectricity.org.au/guides/curtailment; OpenNEM, whose files the older ones are, stored prices under the
settlement date as AEMO gives it). Longer intervals are averages bucketed by that stamp: their labels are read as starts,
though the average begins one interval of the market earlier. Only five-minute values are asked for live. Request times are
naive network time, without daylight saving: UTC+10 (NEM), UTC+8 (WEM). This feed has not been run with a key.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
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
    Secret,
    check_base_url,
    json_object,
    time_of,
)
from signals.feeds.reading import Row, base_url, chosen, objects, ranges, refusal, result, said, series, value_of
from signals.gaps import SignalGap
from signals.points import Kind, Quality, SignalPoint

NAME = "openelectricity"
_BASE_URL = "https://api.openelectricity.org.au"
_METRICS = {Kind.PRICE: "price", Kind.LOAD: "demand"}
_NETWORKS = {"NEM": 10, "WEM": 8}
_STEP = timedelta(minutes=5)
#: A request for five-minute values may cover 7 days; one less leaves room for the edges.
_RANGE = timedelta(days=6)
_INTERVAL = re.compile(r"(\d{1,3})([mhd])")
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}
#: Longest interval whose label is the market's own stamp, and so an end: five minutes, thirty before October 2021.
_STAMPED = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class _Series:
    """One region's values as the answer gives them: label and value; ``short`` says how many are missing, if any."""

    where: str
    region: str
    unit: str
    interval: timedelta
    labelled: tuple[tuple[datetime, object], ...]
    short: str = ""


def build_requests(query: Query) -> tuple[Request, ...]:
    """Five-minute values of one region up to now, by ranges."""
    options = query.options
    network = str(options.get("network", "NEM"))
    offset = timedelta(hours=_NETWORKS.get(network, 10))
    params = {
        "metrics": _METRICS.get(query.kind, "price"),
        "interval": "5m",
        "primary_grouping": "network_region",
        "network_region": str(options.get("network_region", "")),
    }
    headers = {"Authorization": f"Bearer {options.get('api_key', '')}", "Accept": "application/json"}
    url = f"{base_url(options, _BASE_URL)}/v4/market/network/{network}"
    found = []
    for a, b in ranges(query.start, min(query.end, query.now), _RANGE):
        # A stamp is an end: the interval that ends at b or a little later belongs to [a, b), and date_end is exclusive.
        last = b + 2 * _STEP
        window = {key: (at + offset).strftime("%Y-%m-%dT%H:%M:%S") for key, at in (("date_start", a), ("date_end", last))}
        found.append(Request(url, params | window, headers))
    return tuple(found)


def read(payload: bytes, context: Context) -> ParseResult:
    """Points of the price or demand series; with several regions in an answer and none chosen, each is a variant."""
    body = json_object(payload)
    warnings: list[str] = []
    if "data" not in body or body.get("success") is False:
        if said(body):
            raise refusal(said(body))
        raise FeedError(INVALID, f"field 'data' is missing; there are: {', '.join(sorted(body))[:200]}")
    blocks = objects(body["data"], "data", warnings)
    metric = _METRICS[context.kind]
    own = [item for item in blocks if metric in (item[1].get("metric"), item[1].get("data_type"), item[1].get("type"))]
    if not own:
        if not blocks:
            raise FeedError(NO_DATA, "the source has no data for this window (field 'data' is empty)")
        there = sorted({str(b.get("metric") or b.get("data_type") or b.get("type")) for _, b in blocks})
        raise FeedError(INVALID, f"the answer has no {metric}; there is: {', '.join(there)[:200]}")
    found: list[_Series] = []
    for where, block in own:
        found += _of_v4(where, block, warnings) if "results" in block else _of_history(where, block, body)
    wanted = chosen(context.options, "network_region")
    regions = {one.region for one in found}
    if wanted is not None and found and wanted not in regions:
        raise FeedError(
            INVALID, f"network_region: {wanted!r} is not in the answer; there are: {', '.join(sorted(regions))[:200]}"
        )
    points: list[SignalPoint] = []
    gaps: list[SignalGap] = []
    error: FeedError | None = None
    for one in found:
        if wanted not in (None, one.region):
            continue
        variant = one.region if wanted is None and len(regions) > 1 else ""
        some, none = series(context, NAME, one.unit, _rows(one, context, warnings), warnings, variant)
        points += some
        gaps += none
        if one.short:
            error = FeedError(TRUNCATED, one.short)
    return result(points, gaps, warnings, "the answer has no value for this window", error)


def _rows(one: _Series, context: Context, warnings: list[str]) -> list[Row]:
    if one.interval > _STAMPED:
        warnings.append(f"{one.where}: labels of {one.interval} are read as starts; they may be one market interval late")
    rows = []
    for index, (label, raw) in enumerate(one.labelled):
        start = label - one.interval if one.interval <= _STAMPED else label
        value = value_of(raw, f"{one.where}[{index}]", warnings, least=0.0 if context.kind is Kind.LOAD else None)
        rows.append(Row(start, start + one.interval, value, Quality.MEASURED))
    return rows


def _of_v4(where: str, block: Mapping[str, Any], warnings: list[str]) -> Iterator[_Series]:
    network = str(block.get("network_code", "NEM"))
    zone = _offset(block.get("network_timezone_offset"), network)
    interval, unit = _interval(block.get("interval"), where), _unit(block.get("unit"), where)
    for inner, item in objects(block.get("results"), f"{where}.results", warnings):
        columns = item.get("columns")
        columns = columns if isinstance(columns, dict) else {}
        data = item.get("data")
        if not isinstance(data, list):
            raise FeedError(INVALID, f"field '{inner}.data' is missing or not a list")
        labelled = []
        for index, pair in enumerate(data):
            label = _label(pair[0], zone) if isinstance(pair, list) and len(pair) == 2 else None
            if label is None:
                warnings.append(f"{inner}.data[{index}]: {str(pair)[:60]} is not a time and a value; left out")
            else:
                labelled.append((label, pair[1]))
        region = str(columns.get("region") or columns.get("network_region") or network)
        yield _Series(f"{inner}.data", region, unit, interval, tuple(labelled))


def _of_history(where: str, block: Mapping[str, Any], body: Mapping[str, Any]) -> Iterator[_Series]:
    history = block.get("history")
    data = history.get("data") if isinstance(history, dict) else None
    if not isinstance(history, dict) or not isinstance(data, list):
        raise FeedError(INVALID, f"field '{where}' has neither 'results' nor a 'history' with 'data'")
    zone = _offset(None, "NEM")
    interval, first, last = (
        _interval(history.get("interval"), f"{where}.history"),
        _label(history.get("start"), zone),
        _label(history.get("last"), zone),
    )
    if first is None:
        raise FeedError(INVALID, f"{where}.history.start: {str(history.get('start'))[:40]!r} is not a time")
    short = ""
    if last is not None:
        expected = (last - first) // interval + 1  # both ends have a label
        if len(data) < expected:
            short = f"{where}.history has {len(data)} values, but {expected} from 'start' to 'last'"
        elif len(data) > expected:
            raise FeedError(INVALID, f"{where}.history has {len(data)} values for {expected} labels; they cannot be matched")
    try:
        labelled = tuple((first + index * interval, value) for index, value in enumerate(data))
    except OverflowError as error:
        raise FeedError(INVALID, f"{where}.history: {len(data)} times {interval} reach beyond the calendar") from error
    region = str(block.get("region") or body.get("region") or "")
    yield _Series(f"{where}.history.data", region, _unit(block.get("units"), where), interval, labelled, short)


def _interval(text: object, where: str) -> timedelta:
    match = _INTERVAL.fullmatch(text) if isinstance(text, str) else None
    interval = int(match[1]) * _UNITS[match[2]] if match else timedelta(0)
    if not timedelta(0) < interval <= timedelta(days=1):
        raise FeedError(INVALID, f"{where}.interval: {str(text)[:40]!r} must be one such as '5m', '1h' or '1d'")
    return interval


def _unit(text: object, where: str) -> str:
    """The canonical unit. A bare dollar is Australia's: both networks are."""
    unit = {"$/MWh": "AUD/MWh", "AUD/MWh": "AUD/MWh", "MW": "MW"}.get(text) if isinstance(text, str) else None
    if unit is None:
        raise FeedError(INVALID, f"{where}.unit: {str(text)[:40]!r} must be '$/MWh', 'AUD/MWh' or 'MW'")
    return unit


def _offset(text: object, network: str) -> timezone:
    match = re.fullmatch(r"([+-])(\d{2}):?(\d{2})", text) if isinstance(text, str) else None
    if match and int(match[2]) < 15 and int(match[3]) < 60:
        offset = timedelta(hours=int(match[2]), minutes=int(match[3]))
        return timezone(-offset if match[1] == "-" else offset)
    return timezone(timedelta(hours=_NETWORKS.get(network, 10)))


def _label(text: object, zone: timezone) -> datetime | None:
    """A label as UTC; one without an offset is network time."""
    found = time_of(text)
    if found is None or not isinstance(text, str):
        return None
    naive = datetime.fromisoformat(text.strip())
    return naive.replace(tzinfo=zone).astimezone(UTC) if naive.tzinfo is None else found


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options."""
    problems = check_base_url(options)
    network = options.get("network", "NEM")
    if network not in tuple(_NETWORKS):
        problems.append(Problem("network", network, "must be 'NEM' or 'WEM'"))
    region = options.get("network_region")
    if not isinstance(region, str) or not re.fullmatch("[A-Z]{2,4}1?", region):
        problems.append(Problem("network_region", region, "give the region: NSW1, QLD1, SA1, TAS1, VIC1 or WEM"))
    return problems


FEED = Feed(
    name=NAME,
    kinds=frozenset({Kind.PRICE, Kind.LOAD}),
    option_names=frozenset({"network", "network_region", "base_url"}),
    requests=build_requests,
    read=read,
    check=check,
    poll_s=600.0,  # answers are cached for five minutes, and the free plan counts requests by the day
    pace_s=1.0,
    secrets=(Secret("api_key", "OPENELECTRICITY_API_KEY", "https://platform.openelectricity.org.au"),),
)
