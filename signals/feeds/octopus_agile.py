"""Half-hourly unit rates of Octopus Energy's Agile tariff in Great Britain (api.octopus.energy; no key).

It knows rates with and without VAT as two variants, rates by payment method, and that a day's rates appear at about 16:00
UK time and reach to 23:00 UTC: later half hours are absent until then, never zero. Rates are what a customer pays for a
unit, without the standing charge. Other products' unit rates have the same form.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

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
    check_base_url,
    json_object,
    number,
    time_of,
)
from signals.feeds.reading import (
    Row,
    base_url,
    chosen,
    following_link,
    joined_results,
    objects,
    refusal,
    result,
    said,
    series,
    stamp,
    value_of,
)
from signals.gaps import SignalGap
from signals.points import Kind, Quality, SignalPoint

NAME = "octopus_agile"
_BASE_URL = "https://api.octopus.energy"
_VAT = ("exc_vat", "inc_vat")
_METHODS = ("DIRECT_DEBIT", "NON_DIRECT_DEBIT")
#: Letters of the grid supply point groups; there is no I and no O.
_GSP = "ABCDEFGHJKLMNP"
_PAGE = 1500
_DAY, _HALF_HOUR = timedelta(days=1), timedelta(minutes=30)
_LONDON = ZoneInfo("Europe/London")
#: How long after now an open rate is taken to hold: the next one may be published any day.
_OPEN_AT_MOST = timedelta(days=2)
#: A rate is not told for more than this: no window that is asked for is longer.
_LONGEST = timedelta(days=366)


def build_requests(query: Query) -> tuple[Request, ...]:
    """The whole window at once; long ones come in pages of at most a month's half hours."""
    product = quote(str(query.options.get("product", "")), safe="")
    tariff = f"E-1R-{product}-{quote(str(query.options.get('gsp', '')), safe='')}"
    url = f"{base_url(query.options, _BASE_URL)}/v1/products/{product}/electricity-tariffs/{tariff}/standard-unit-rates/"
    params = {"period_from": stamp(query.start), "period_to": stamp(query.end), "page_size": str(_PAGE)}
    return (Request(url, params, {"Accept": "application/json"}),)


def read(payload: bytes, context: Context) -> ParseResult:
    """Points of ``results``, converted from p/kWh to GBP/MWh. Where payment methods pay differently they are different
    series; an open rate (``valid_to`` null) holds until the next one, else to the end of the window's last day in Great Britain
    (without a window for a day), and at most two days from now. What holds for longer than a day is told by half hours, so that
    a later window, or the rate's end once there is one, repeats the points that are there."""
    body = json_object(payload)
    if "results" not in body and said(body):
        raise refusal(said(body))
    warnings: list[str] = []
    items = objects(body.get("results"), "results", warnings)
    if not items and not warnings:
        raise FeedError(NO_DATA, "no rates are published for this window")
    if not any(f"value_{vat}" in item for _, item in items for vat in _VAT):
        raise FeedError(INVALID, "no row of 'results' has a value_exc_vat or value_inc_vat; these are not unit rates")
    differ = _methods_differ(items)
    wanted_vat, wanted_method = chosen(context.options, "vat"), chosen(context.options, "payment_method")
    starts = sorted({start for _, item in items if (start := time_of(item.get("valid_from"))) is not None})
    found: dict[str, list[Row]] = {}
    for where, item in items:
        method = item.get("payment_method")
        if differ and wanted_method is not None and method not in (None, wanted_method):
            continue
        spans = _spans(where, item, starts, context, warnings)
        for vat in _VAT if wanted_vat is None else (wanted_vat,):
            variant = f"{vat}/{method}" if differ and wanted_method is None and method is not None else str(vat)
            pence = value_of(item.get(f"value_{vat}"), f"{where}.value_{vat}", warnings)
            # 1 p/kWh is 10 GBP/MWh; rounding takes away what the binary fraction adds, nothing of the value.
            value = None if pence is None else round(pence * 10, 9)
            found.setdefault(variant, []).extend(Row(*span, value, Quality.MEASURED) for span in spans)
    points: list[SignalPoint] = []
    gaps: list[SignalGap] = []
    for variant, rows in found.items():
        some, none = series(context, NAME, "GBP/MWh", rows, warnings, variant)
        points += some
        gaps += none
    return result(points, gaps, warnings, "no rate of the answer is for this window", _cut(body, len(items)))


def _methods_differ(items: list[tuple[str, dict[str, Any]]]) -> bool:
    """Whether, for any interval, payment methods have different rates; rows repeated for each with one rate are one."""
    seen: dict[tuple[str, str], dict[str, tuple[object, ...]]] = {}
    for _, item in items:
        rates = tuple(item.get(f"value_{vat}") for vat in _VAT)
        key = (str(item.get("valid_from")), str(item.get("valid_to")))
        seen.setdefault(key, {})[str(item.get("payment_method"))] = rates
    return any(len({repr(rates) for rates in of.values()}) > 1 for of in seen.values())


def _spans(
    where: str, item: Mapping[str, Any], starts: list[datetime], context: Context, warnings: list[str]
) -> list[tuple[datetime, datetime]]:
    """The interval of a rate; of an open one the half hours that concern the window; none of what is no interval."""
    start = time_of(item.get("valid_from"))
    if start is None:
        warnings.append(f"{where}.valid_from: {str(item.get('valid_from'))[:40]!r} is not a time; left out")
        return []
    if item.get("valid_to") is not None:
        end = time_of(item["valid_to"])
        if end is None or end <= start:
            warnings.append(f"{where}.valid_to: {str(item['valid_to'])[:40]!r} is not a time after valid_from; left out")
            return []
    else:
        later = bisect_right(starts, start)
        end = starts[later] if later < len(starts) else None
    if end is not None and end - start <= _DAY:
        return [(start, end)]
    begin, until = _told(start, end, context)
    if end is None and begin < until:
        warnings.append(f"{where}: the rate from {stamp(start)} is open; taken to hold until {stamp(until)}")
    return half_hours(begin, until)


def _told(start: datetime, end: datetime | None, context: Context) -> tuple[datetime, datetime]:
    """The part of a long rate (``end`` None: an open one) that is told; empty where it is not known to hold."""
    if context.end is None:
        return start, start + _DAY if end is None else min(end, start + _LONGEST)
    last_day = (context.end - timedelta(microseconds=1)).astimezone(_LONDON).replace(tzinfo=None)
    midnight = (last_day + _DAY).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=_LONDON).astimezone(UTC)
    until = min(midnight, _whole(context.retrieved_at) + _OPEN_AT_MOST if end is None else end)
    begin = until - _LONGEST if context.start is None else max(context.start, until - _LONGEST)
    return max(start, _whole(begin)), until


def _whole(when: datetime) -> datetime:
    """The half hour that ``when`` is in begins."""
    return when - (when - datetime(2000, 1, 1, tzinfo=UTC)) % _HALF_HOUR


def half_hours(start: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    """``[start, end)`` cut at the clock's half hours; none when it is empty."""
    parts = []
    while start < end:
        to = min(_whole(start) + _HALF_HOUR, end)
        parts.append((start, to))
        start = to
    return parts


def _cut(body: Mapping[str, Any], rows: int) -> FeedError | None:
    count = number(body.get("count"))
    if count is not None and rows < count:
        return FeedError(TRUNCATED, f"the source has {count:.0f} rates for this window, {rows} came")
    if body.get("next") is not None:
        return FeedError(TRUNCATED, f"the answer has a next page; {rows} rates came")
    return None


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options."""
    problems = check_base_url(options)
    product, gsp = options.get("product"), options.get("gsp")
    if not isinstance(product, str) or not re.fullmatch(r"[A-Z0-9-]{3,60}", product):
        problems.append(Problem("product", product, "give the product code, such as 'AGILE-24-10-01'"))
    if not isinstance(gsp, str) or len(gsp) != 1 or gsp not in _GSP:
        problems.append(Problem("gsp", gsp, f"give the letter of the grid supply point: one of {', '.join(_GSP)}"))
    for key, allowed in (("vat", _VAT), ("payment_method", _METHODS)):
        if options.get(key, allowed[0]) not in allowed:
            problems.append(Problem(key, options[key], f"must be one of {', '.join(map(repr, allowed))}"))
    return problems


FEED = Feed(
    name=NAME,
    kinds=frozenset({Kind.PRICE}),
    option_names=frozenset({"product", "gsp", "vat", "payment_method", "base_url"}),
    requests=build_requests,
    read=read,
    check=check,
    poll_s=1800.0,  # once a day there is something new, some time between 16:00 and 20:00 UK time
    pace_s=1.0,
    paging=Paging(following_link, joined_results),
    defaults={"vat": "exc_vat", "payment_method": "DIRECT_DEBIT"},
)
