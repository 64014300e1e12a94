"""Day-ahead prices of the Czech Republic from its market operator OTE (SOAP service, no key; https://www.ote-cr.cz).

It knows that a price belongs to the n-th period of a local day in Prague, which has 92, 96 or 100 quarters (or 23, 24 or 25
hours): the index counts, the label beside it is only for people and odd on days of a clock change. ``Price`` is the quarter's;
``HourlyPrice`` is another series, the hour's, repeated in its quarters. The answer names no currency; the service is documented
to give EUR/MWh. The service's terms allow no redistribution. No limit of range is documented; a month is asked at once.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from typing import Any
from xml.etree.ElementTree import Element
from zoneinfo import ZoneInfo

from signals.feeds.base import INVALID, NO_DATA, Context, Feed, FeedError, ParseResult, Problem, Query, Request, check_base_url
from signals.feeds.documents import day_starts, decimal, text_at, xml_root
from signals.feeds.reading import Row, base_url, refusal, result, series
from signals.points import Kind, Quality

NAME = "ote"
_BASE_URL = "https://www.ote-cr.cz"
_NAMESPACE = "http://www.ote-cr.cz/schema/service/public"
_PRAGUE = ZoneInfo("Europe/Prague")
_STEPS = {"PT15M": timedelta(minutes=15), "PT60M": timedelta(hours=1)}
_HOUR = timedelta(hours=1)
_SERIES = ("period", "hourly")
_DAYS = 31


def build_requests(query: Query) -> tuple[Request, ...]:
    """One SOAP call for each month of local days that the window touches."""
    first = query.start.astimezone(_PRAGUE).date()
    last = (query.end - timedelta(microseconds=1)).astimezone(_PRAGUE).date()
    headers = {"Content-Type": "text/xml; charset=utf-8", "SOAPAction": f'"{_NAMESPACE}/GetDamPricePeriodE"'}
    found = []
    while first <= last:
        to = min(first + timedelta(days=_DAYS - 1), last)
        found.append(Request(f"{base_url(query.options, _BASE_URL)}/services/PublicDataService", {}, headers, _call(first, to)))
        first = to + timedelta(days=1)
    return tuple(found)


def _call(first: date, last: date) -> bytes:
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        f'<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" xmlns:p="{_NAMESPACE}"><s:Body><p:GetDamPricePeriodE>'
        f"<p:StartDate>{first}</p:StartDate><p:EndDate>{last}</p:EndDate><p:PeriodResolution>PT15M</p:PeriodResolution>"
        "</p:GetDamPricePeriodE></s:Body></s:Envelope>"
    ).encode()


def read(payload: bytes, context: Context) -> ParseResult:
    """Points of ``Price``, or with the option series = "hourly" of ``HourlyPrice``."""
    root = xml_root(payload)
    fault = next(root.iter("Fault"), None)
    if fault is not None:
        raise refusal(text_at(fault, "faultstring") or "".join(fault.itertext()) or "a fault without a word")
    items = list(root.iter("Item"))
    if root.tag != "Envelope" or (not items and next(root.iter("GetDamPricePeriodEResponse"), None) is None):
        raise FeedError(INVALID, f"the answer is a {root.tag[:60]}, not a SOAP envelope with GetDamPricePeriodEResponse")
    if not items:
        raise FeedError(NO_DATA, "the source has no prices for these days (yet)")
    hourly = context.options.get("series") == "hourly"
    warnings: list[str] = []
    rows: list[Row] = []
    days: dict[tuple[date, timedelta], set[int]] = {}
    for number, item in enumerate(items, 1):
        placed = _placed(item, f"Item {number}", warnings)
        if placed is None:
            continue
        day, step, index, start = placed
        days.setdefault((day, step), set()).add(index)
        name = "HourlyPrice" if hourly and (step < _HOUR or text_at(item, "HourlyPrice")) else "Price"
        text = text_at(item, name)
        value = decimal(text)
        if text is not None and value is None:
            warnings.append(f"Item {number}: {name} {text[:20]!r} is not a number; counted as missing")
        if hourly:
            start, step = start.replace(minute=0), _HOUR
        rows.append(Row(start, start + step, value, Quality.MEASURED))
    rows += _absent(days, hourly)
    points, gaps = series(context, NAME, "EUR/MWh", rows, warnings, "hourly" if hourly else "")
    return result(points, gaps, warnings, "the answer has no price for this window")


def _placed(item: Element, where: str, warnings: list[str]) -> tuple[date, timedelta, int, datetime] | None:
    """The local day, length, number in the day and UTC start of an item's period; None, with a warning, when it has none."""
    day_text, index_text, resolution = (text_at(item, name) or "" for name in ("Date", "PeriodIndex", "PeriodResolution"))
    try:
        day = date.fromisoformat(day_text)
    except ValueError:
        day = date.min
    step = _STEPS.get(resolution)
    if not 1990 <= day.year <= 2200 or step is None:
        warnings.append(f"{where}: Date {day_text[:20]!r} or PeriodResolution {resolution[:20]!r} is none; left out")
        return None
    starts = _starts(day, step)
    if not re.fullmatch(r"[1-9]\d{0,2}", index_text, re.ASCII) or int(index_text) > len(starts):
        warnings.append(f"{where}: PeriodIndex {index_text[:20]!r} is not one of {day}'s {len(starts)} periods; left out")
        return None
    start = starts[int(index_text) - 1]
    label = re.match(r"(\d\d):(\d\d)-", text_at(item, "PeriodInterval") or "", re.ASCII)
    local = start.astimezone(_PRAGUE)
    if label and (int(label[1]), int(label[2])) != (local.hour, local.minute):
        warnings.append(f"{where}: PeriodIndex {index_text} of {day} begins at {local:%H:%M}, its label says {label[0][:-1]}")
    return day, step, int(index_text), start


@lru_cache(128)
def _starts(day: date, step: timedelta) -> Sequence[datetime]:
    return tuple(day_starts(datetime.combine(day, time.min), _PRAGUE, step))


def _absent(days: Mapping[tuple[date, timedelta], set[int]], hourly: bool) -> list[Row]:
    """A row without a value for each period of the answer's days that is not listed; only where a day has one resolution."""
    rows = []
    resolutions: dict[date, int] = {}
    for day, _ in days:
        resolutions[day] = resolutions.get(day, 0) + 1
    for (day, step), present in days.items():
        if resolutions[day] > 1:
            continue
        for index, start in enumerate(_starts(day, step), 1):
            if index not in present:
                start, length = (start.replace(minute=0), _HOUR) if hourly else (start, step)
                rows.append(Row(start, start + length, None, Quality.MEASURED))
    return rows


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options."""
    problems = check_base_url(options)
    if options.get("series", _SERIES[0]) not in _SERIES:
        problems.append(Problem("series", options["series"], "must be 'period' (quarters, the default) or 'hourly'"))
    return problems


FEED = Feed(
    name=NAME,
    kinds=frozenset({Kind.PRICE}),
    option_names=frozenset({"series", "base_url"}),
    requests=build_requests,
    read=read,
    check=check,
    poll_s=1800.0,
    pace_s=1.0,  # no limit is published
    defaults={"series": "period"},
)
