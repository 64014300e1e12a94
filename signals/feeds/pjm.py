"""Day-ahead prices, load and the five-minute solar forecast of PJM, from its Data Miner 2 interface (a free key;
https://apiportal.pjm.com).

It knows that times in fields named ``*_utc`` are UTC without saying so, that an answer says how many rows there are in all, and
that a forecast's issue time is ``evaluated_at_utc``. Prices are total locational marginal prices of a node, hourly. The solar
forecast's field is named as megawatthours, but a five-minute interval's value is its mean power as far as is known; a warning
says so. Solar behind the meter is load that nobody meters, not generation: left out. Prices older than two years are archived
by PJM and filtered otherwise: not asked here. Not run with a key of ours.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from signals.feeds.base import (
    INVALID,
    NO_DATA,
    TRUNCATED,
    Context,
    Feed,
    FeedError,
    Paging,
    ParseResult,
    Problem,
    Query,
    Request,
    Secret,
    check_base_url,
    check_text,
    json_object,
    number,
    time_of,
)
from signals.feeds.reading import Row, base_url, objects, ranges, refusal, result, said, series, value_of
from signals.gaps import SignalGap
from signals.points import UNITS, Kind, Quality, SignalPoint

NAME = "pjm"
_BASE_URL = "https://api.pjm.com/api/v1"
#: The most rows of one answer.
_PAGE = 50_000
_RANGE = timedelta(days=30)
#: Which endpoint has which kind, and the field that tells it from the others.
_ENDPOINTS = {
    Kind.PRICE: ("da_hrl_lmps", "total_lmp_da"),
    Kind.LOAD: ("inst_load", "instantaneous_load"),
    Kind.GENERATION: ("five_min_solar_power_forecast", "solar_forecast_mwh"),
}
_AREA = "PJM RTO"


def build_requests(query: Query) -> tuple[Request, ...]:
    """One request, which may have further pages, for each month of the window; none for the load of the future."""
    options = query.options
    headers = {"Ocp-Apim-Subscription-Key": str(options.get("api_key", "")), "Accept": "application/json"}
    endpoint, _ = _ENDPOINTS[query.kind]
    params = {"rowCount": str(_PAGE), "startRow": "1", "sort": "datetime_beginning_utc", "order": "Asc"}
    end = query.end
    if query.kind is Kind.PRICE:
        params |= {"pnode_id": str(options.get("pnode_id", "")), "row_is_current": "TRUE"}
        params["fields"] = "datetime_beginning_utc,pnode_id,pnode_name,row_is_current,total_lmp_da"
    elif query.kind is Kind.LOAD:
        params |= {"area": str(options.get("area", _AREA))}
        end = min(end, query.now)
    url = f"{base_url(options, _BASE_URL)}/{endpoint}"
    return tuple(
        Request(url, params | {"datetime_beginning_utc": f"{_stamp(a)}to{_stamp(b - timedelta(minutes=1))}"}, headers)
        for a, b in ranges(query.start, end, _RANGE)
    )


def _stamp(when: datetime) -> str:
    return when.strftime("%m/%d/%Y %H:%M")


def following(payload: bytes, request: Request) -> Request | None:
    """The page after this one while the answer says that there are more rows."""
    try:
        body = json_object(payload)
    except FeedError:
        return None  # the reader will say what is wrong with this page
    items, total = body.get("items"), number(body.get("totalRows"))
    if not isinstance(items, list) or not items or total is None:
        return None
    row = int(request.params.get("startRow", "1")) + len(items)
    return None if row > total else Request(request.url, dict(request.params) | {"startRow": str(row)}, request.headers)


def join(pages: Sequence[bytes]) -> bytes:
    """One document of the items of all pages up to the first that is none."""
    items: list[Any] = []
    first: dict[str, Any] | None = None
    for page in pages:
        try:
            body = json_object(page)
        except FeedError:
            break
        if not isinstance(body.get("items"), list):
            break
        items += body["items"]
        first = first or body
    if first is None:
        return pages[0] if pages else b""
    return json.dumps(first | {"items": items}).encode()


def read(payload: bytes, context: Context) -> ParseResult:
    """Points of an answer of the endpoint that has ``context.kind``."""
    body = json_object(payload)
    if "items" not in body:
        if said(body):
            raise refusal(said(body))
        raise FeedError(INVALID, f"field 'items' is missing; there are: {', '.join(sorted(body))[:200]}")
    warnings: list[str] = []
    items = objects(body["items"], "items", warnings)
    if not items:
        raise FeedError(NO_DATA, "the source has no rows for this window")
    endpoint, field = _ENDPOINTS[context.kind]
    if not any(field in item for _, item in items):
        raise FeedError(INVALID, f"no row has {field}, as {endpoint} has; there are: {', '.join(sorted(items[0][1]))[:200]}")
    total = number(body.get("totalRows"))
    error = None
    if total is not None and total > len(items):
        error = FeedError(TRUNCATED, f"the answer says that there are {total:.0f} rows and holds {len(items)}")
    if context.kind is Kind.PRICE:
        groups = _prices(items, context, warnings)
        unit = "USD/MWh"
    else:
        groups = _loads(items, context, warnings) if context.kind is Kind.LOAD else _forecasts(items, warnings)
        unit = UNITS[context.kind]
    points: list[SignalPoint] = []
    gaps: list[SignalGap] = []
    for (variant, _), rows in groups.items():
        some, none = series(context, NAME, unit, rows, warnings, variant)
        points += some
        gaps += none
    return result(points, gaps, warnings, f"the answer has no {context.kind} for this window", error)


_Groups = dict[tuple[str, datetime | None], list[Row]]


def _start(where: str, item: Mapping[str, Any], warnings: list[str]) -> datetime | None:
    start = time_of(item.get("datetime_beginning_utc"))
    if start is None:
        warnings.append(f"{where}: datetime_beginning_utc {str(item.get('datetime_beginning_utc'))[:40]!r} is none; left out")
    return start


def _prices(items: list[tuple[str, dict[str, Any]]], context: Context, warnings: list[str]) -> _Groups:
    asked = context.options.get("pnode_id")
    by_node: dict[str, list[Row]] = {}
    for where, item in items:
        start, node = _start(where, item, warnings), str(item.get("pnode_id", ""))[:20]
        if asked is not None and node != str(asked):
            warnings.append(f"{where}: pnode_id {node!r} is not {asked!r}; left out")
        elif start is not None and item.get("row_is_current") is not False:  # false: a version that has been replaced
            value = value_of(item.get("total_lmp_da"), f"{where}.total_lmp_da", warnings)
            by_node.setdefault(node, []).append(Row(start, start + timedelta(hours=1), value, Quality.MEASURED))
    return {(_name(node, by_node, asked), None): rows for node, rows in by_node.items()}


def _name(key: str, among: Mapping[str, object], asked: object) -> str:
    return "" if asked is not None or len(among) == 1 else key


def _loads(items: list[tuple[str, dict[str, Any]]], context: Context, warnings: list[str]) -> _Groups:
    asked = context.options.get("area")
    by_area: dict[str, list[Row]] = {}
    for where, item in items:
        start, area = _start(where, item, warnings), str(item.get("area", "")).strip()[:40]
        if asked is not None and area != asked:
            warnings.append(f"{where}: area {area!r} is not {asked!r}; left out")
        elif start is not None:
            value = value_of(item.get("instantaneous_load"), f"{where}.instantaneous_load", warnings)
            by_area.setdefault(area, []).append(Row(start, None, value, Quality.MEASURED))
    return {(_name(area, by_area, asked), None): rows for area, rows in by_area.items()}


def _forecasts(items: list[tuple[str, dict[str, Any]]], warnings: list[str]) -> _Groups:
    """Each run of the forecast apart, since one interval is forecast by many."""
    found: _Groups = {}
    for where, item in items:
        start, end = _start(where, item, warnings), time_of(item.get("datetime_ending_utc"))
        issued_at = time_of(item.get("evaluated_at_utc"))
        if start is None or issued_at is None or (end is not None and not timedelta(0) < end - start <= timedelta(hours=1)):
            warnings.append(f"{where}: evaluated_at_utc or datetime_ending_utc is no time, or does not fit; left out")
            continue
        value = value_of(item.get("solar_forecast_mwh"), f"{where}.solar_forecast_mwh", warnings)
        row = Row(start, end or start + timedelta(minutes=5), value, Quality.FORECAST, issued_at)
        found.setdefault(("solar", issued_at), []).append(row)
    if found:
        warnings.insert(0, "solar_forecast_mwh is named as MWh of five minutes; read as mean MW")
    return found


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options."""
    problems = check_text(options, "area") + check_base_url(options)
    node = options.get("pnode_id")
    if isinstance(node, bool) or not re.fullmatch(r"\d{1,12}", str(node), re.ASCII):
        problems.append(Problem("pnode_id", node, "give a pricing node's number, such as 51288 (the Western Hub)"))
    return problems


FEED = Feed(
    name=NAME,
    kinds=frozenset(_ENDPOINTS),
    option_names=frozenset({"pnode_id", "area", "base_url"}),
    requests=build_requests,
    read=read,
    check=check,
    poll_s=1800.0,
    pace_s=10.0,  # who is no member of PJM may ask six times a minute
    secrets=(Secret("api_key", "PJM_API_KEY", "https://apiportal.pjm.com"),),
    paging=Paging(following, join),
    defaults={"area": _AREA},
)
