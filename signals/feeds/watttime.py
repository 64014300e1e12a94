"""Marginal emissions and their rank from WattTime, API v3 (user name and password; free for region CAISO_NORTH).

It knows three answers: historical and forecast marginal rates (signal co2_moer, lbs/MWh, converted once to g/kWh) and the
signal index, a percentile that only orders moments within a region and is never an intensity. Average rates (co2_aoer) and
health damage are refused rather than passed off as marginal. It has not been run against a paid plan.
"""

import base64
import math
import re
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
    Login,
    ParseResult,
    Problem,
    Query,
    Request,
    Secret,
    check_base_url,
    json_object,
    number,
    time_of,
)
from signals.feeds.reading import (
    Row,
    base_url,
    chosen,
    objects,
    ranges,
    refusal,
    result,
    said,
    series,
    stamp,
    token_in,
    value_of,
)
from signals.points import UNITS, Kind, Quality

NAME = "watttime"
_BASE_URL = "https://api.watttime.org"
_SIGNAL = "co2_moer"
#: One historical request covers at most 32 days; the provider's own client asks for 30.
_RANGE = timedelta(days=30)
_MAX_HORIZON_H = 72
#: lbs/MWh to g/kWh: 453.59237 g to the pound, 1000 kWh to the MWh.
_G_PER_KWH = 0.45359237
_POUNDS = ("lbs_co2_per_mwh", "lbs_co2e_per_mwh")


def build_requests(query: Query) -> tuple[Request, ...]:
    """For the rate: the past by ranges, the future as a forecast. For the rank: the signal index, which is only of now."""
    options = query.options
    base = f"{base_url(options, _BASE_URL)}/v3"
    params = {"region": str(options.get("region", "")), "signal_type": _SIGNAL}
    headers = {"Authorization": f"Bearer {options.get('bearer', '')}", "Accept": "application/json"}
    if query.kind is Kind.CARBON_RANK:
        return (Request(f"{base}/signal-index", params, headers),)
    found = [
        Request(f"{base}/historical", params | {"start": stamp(a), "end": stamp(b)}, headers)
        for a, b in ranges(query.start, min(query.end, query.now), _RANGE)
    ]
    if query.end > query.now:
        hours = math.ceil((query.end - query.now) / timedelta(hours=1))
        found.append(Request(f"{base}/forecast", params | {"horizon_hours": str(min(hours, _MAX_HORIZON_H))}, headers))
    return tuple(found)


def login_request(options: Mapping[str, Any]) -> Request:
    """The request that trades user name and password for a token of half an hour."""
    pair = f"{options.get('username', '')}:{options.get('password', '')}".encode()
    headers = {"Authorization": f"Basic {base64.b64encode(pair).decode()}", "Accept": "application/json"}
    return Request(f"{base_url(options, _BASE_URL)}/login", headers=headers)


def read(payload: bytes, context: Context) -> ParseResult:
    """Points of a ``historical``, ``forecast``, ``forecast/historical`` or ``signal-index`` answer."""
    body = json_object(payload)
    meta = body.get("meta")
    if "data" not in body and said(body):
        # Whatever WattTime says instead of data is about the account, its plan or the region it may see.
        raise refusal(said(body), otherwise=ACCESS)
    warnings: list[str] = []
    items = objects(body.get("data"), "data", warnings)
    if not isinstance(meta, dict):
        raise FeedError(INVALID, "field 'meta' is missing or not an object; it says what the values are")
    factor = _factor(meta, context)
    asked, answered = chosen(context.options, "region"), meta.get("region")
    if asked is not None and answered not in (None, asked):
        raise FeedError(INVALID, f"region: the answer is for {str(answered)[:40]!r}, asked was {asked!r}")
    warnings += _told(meta.get("warnings"))
    period = number(meta.get("data_point_period_seconds"))
    step = timedelta(seconds=period) if period is not None and 1 <= period <= 86400 else None
    rows: list[Row] = []
    if any("forecast" in item for _, item in items):
        for where, run in items:
            issued_at = time_of(run.get("generated_at"))
            if issued_at is None:
                warnings.append(f"{where}.generated_at: {str(run.get('generated_at'))[:40]!r} is not a time; left out")
            else:
                own = objects(run.get("forecast"), f"{where}.forecast", warnings)
                rows += _rows(own, context, factor, step, issued_at, warnings)
    else:
        issued_at = (time_of(meta["generated_at"]) or context.retrieved_at) if "generated_at" in meta else None
        rows = _rows(items, context, factor, step, issued_at, warnings)
    if not rows:
        raise FeedError(NO_DATA, "the source has no values for this window (field 'data' has no usable row)")
    points, gaps = series(context, NAME, UNITS[context.kind], rows, warnings)
    return result(points, gaps, warnings, "the answer has no value for this window")


def _factor(meta: Mapping[str, Any], context: Context) -> float:
    """What a value is to be multiplied by; raises FeedError when the answer is not of the kind asked for."""
    signal, units = meta.get("signal_type"), meta.get("units")
    if signal not in (None, _SIGNAL):
        raise FeedError(INVALID, f"signal_type: {str(signal)[:40]!r}; only {_SIGNAL!r} is read")
    if units == "percentile":
        kind, factor = Kind.CARBON_RANK, 1.0
    elif units in _POUNDS:
        kind, factor = Kind.CARBON_MARGINAL, _G_PER_KWH
    else:
        raise FeedError(INVALID, f"units: {str(units)[:40]!r}; must be 'percentile' or {_POUNDS[0]!r}")
    if kind is not context.kind:
        raise FeedError(INVALID, f"the answer is in {units}, which is {kind}, not {context.kind}")
    return factor


def _rows(
    items: list[tuple[str, dict[str, Any]]],
    context: Context,
    factor: float,
    step: timedelta | None,
    issued_at: datetime | None,
    warnings: list[str],
) -> list[Row]:
    rank = context.kind is Kind.CARBON_RANK
    found = []
    for where, item in items:
        start = time_of(item.get("point_time"))
        if start is None:
            warnings.append(f"{where}.point_time: {str(item.get('point_time'))[:40]!r} is not a time; left out")
            continue
        limits = (0.0, 100.0) if rank else (None, None)
        raw = value_of(item.get("value"), f"{where}.value", warnings, *limits)
        value = None if raw is None else round(raw * factor, 9)
        if issued_at is not None:
            quality = Quality.FORECAST
        elif item.get("imputed_data_used") is True:
            quality = Quality.IMPUTED
        else:
            # The index ranks the present rate among forecast ones, so it is not a measurement.
            quality = Quality.ESTIMATED if rank else Quality.MEASURED
        found.append(Row(start, start + step if step is not None else None, value, quality, issued_at))
    return found


def _told(warnings: object) -> list[str]:
    told = []
    for item in warnings if isinstance(warnings, list) else []:
        words = [str(item[key]) for key in ("type", "message") if item.get(key)] if isinstance(item, dict) else [str(item)]
        told.append(f"the source warns: {': '.join(words)}"[:300])
    return told


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options."""
    problems = check_base_url(options)
    region = options.get("region")
    if not isinstance(region, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", region):
        problems.append(Problem("region", region, "give WattTime's region code, such as 'CAISO_NORTH' (the free one)"))
    return problems


_OBTAIN = "https://docs.watttime.org (register)"
FEED = Feed(
    name=NAME,
    kinds=frozenset({Kind.CARBON_MARGINAL, Kind.CARBON_RANK}),
    option_names=frozenset({"region", "base_url"}),
    requests=build_requests,
    read=read,
    check=check,
    poll_s=300.0,  # a point every five minutes
    pace_s=0.2,  # 3000 requests in 5 minutes are allowed, 100 logins
    secrets=(Secret("username", "WATTTIME_USERNAME", _OBTAIN), Secret("password", "WATTTIME_PASSWORD", _OBTAIN)),
    login=Login(login_request, token_in, ttl_s=25 * 60.0),  # a token lives for 30 minutes
)
