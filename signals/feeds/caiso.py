"""Prices of a node of the California ISO, from its OASIS interface (no key; http://oasis.caiso.com).

It knows that an answer is a ZIP archive of CSV files, or of an XML file that says why not (code 1000: nothing there), that only
rows of LMP_TYPE "LMP" are prices and the others their parts, and that the column of the value has another name in each market.
Times are in GMT. OASIS answers one request in five seconds; to faster ones it answers 429, or an HTML page with status 200.
History is kept for about three years. The versions of the real-time reports are those in wide use; asked here, by us, never.
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
    check_text,
    text_of,
    time_of,
)
from signals.feeds.documents import csv_rows, decimal, text_at, unzipped, xml_root
from signals.feeds.reading import Row, base_url, ranges, refusal, result, series
from signals.gaps import SignalGap
from signals.points import Kind, Quality, SignalPoint

NAME = "caiso"
_BASE_URL = "https://oasis.caiso.com"
#: Market -> report, its version and the longest range of one request (31 days by OASIS's rules; less for finer intervals, so
#: that answers stay small).
_MARKETS = {
    "DAM": ("PRC_LMP", "12", timedelta(days=30)),
    "RTPD": ("PRC_RTPD_LMP", "3", timedelta(days=14)),
    "RTM": ("PRC_INTVL_LMP", "3", timedelta(days=7)),
}
#: Columns that hold the value, by market.
_VALUES = ("MW", "VALUE", "PRC", "LMP_PRC")
_NEEDED = ("INTERVALSTARTTIME_GMT", "INTERVALENDTIME_GMT", "LMP_TYPE")


def build_requests(query: Query) -> tuple[Request, ...]:
    """One request for each part of the window; none for real-time prices of the future."""
    market = str(query.options.get("market", "DAM"))
    report, version, longest = _MARKETS.get(market, _MARKETS["DAM"])
    params = {
        "queryname": report,
        "market_run_id": market,
        "version": version,
        "resultformat": "6",  # CSV
        "node": str(query.options.get("node", "")),
    }
    end = query.end if market == "DAM" else min(query.end, query.now)
    url = f"{base_url(query.options, _BASE_URL)}/oasisapi/SingleZip"
    return tuple(
        Request(url, params | {"startdatetime": _stamp(a), "enddatetime": _stamp(b)})
        for a, b in ranges(query.start, end, longest)
    )


def _stamp(when: datetime) -> str:
    return when.strftime("%Y%m%dT%H:%M-0000")


def read(payload: bytes, context: Context) -> ParseResult:
    """Points of every CSV file of the archive; an unpacked file is read too."""
    low = payload[:4000].lower()
    if b"<html" in low and (b"acceptable use" in low or b"too many requests" in low or b"throttl" in low):
        raise FeedError(
            ACCESS, "the source answers with a page that refuses: asked too often (once in five seconds is allowed)"
        )
    parts = unzipped(payload) if payload.startswith(b"PK") else {"": payload}
    warnings: list[str] = []
    errors: list[FeedError] = []
    groups: dict[tuple[str, str], list[Row]] = {}
    for name in sorted(parts):
        try:
            if parts[name].lstrip()[:1] == b"<":
                raise _refused(parts[name])
            _add(groups, parts[name], context, warnings)
        except FeedError as error:
            errors.append(error)
    worst = next((error for error in errors if error.kind != NO_DATA), None)
    if not groups and errors:
        raise worst or errors[0]
    markets, nodes = ({key[i] for key in groups} for i in (0, 1))
    points: list[SignalPoint] = []
    gaps: list[SignalGap] = []
    for (market, node), rows in groups.items():
        words = (market if len(markets) > 1 else "", node if len(nodes) > 1 else "")
        some, none = series(context, NAME, "USD/MWh", rows, warnings, " ".join(word for word in words if word))
        points += some
        gaps += none
    return result(points, gaps, warnings, "the answer has no price for this window", worst)


def _refused(content: bytes) -> FeedError:
    try:
        error = next(xml_root(content).iter("ERROR"), None)
    except FeedError as unreadable:
        return unreadable
    if error is None:
        return FeedError(INVALID, "the answer is XML without an ERROR; CSV was expected (resultformat 6)")
    code, text = text_at(error, "ERR_CODE") or "none", text_at(error, "ERR_DESC") or "nothing"
    if code == "1000":
        return FeedError(NO_DATA, f"the source says: {text[:200]} (code 1000)")
    return FeedError(refusal(text).kind, f"the source says: {text[:200]} (code {code[:20]})")


def _add(groups: dict[tuple[str, str], list[Row]], content: bytes, context: Context, warnings: list[str]) -> None:
    """Add the file's rows of prices, by market and node."""
    header, *lines = csv_rows(text_of(content)) or [[]]
    columns = {name.strip(): index for index, name in enumerate(header)}
    value_column = next((name for name in _VALUES if name in columns), None)
    lacking = [name for name in _NEEDED if name not in columns]
    if lacking or value_column is None:
        wanted = ", ".join(lacking) or f"one of {', '.join(_VALUES)}"
        raise FeedError(INVALID, f"column {wanted} is missing; there are: {', '.join(columns)[:200]}")
    asked = {key: context.options.get(key) for key in ("market", "node")}
    seen = False
    for number, line in enumerate(lines, 2):
        cells = {name: line[index].strip() for name, index in columns.items() if index < len(line)}
        if cells.get("LMP_TYPE") != "LMP":
            continue
        seen = True
        node = (cells.get("NODE") or cells.get("NODE_ID") or cells.get("NODE_ID_XML") or "")[:60]
        market = cells.get("MARKET_RUN_ID", "")[:10]
        if (asked["node"] not in (None, node) and node) or (asked["market"] not in (None, market) and market):
            warnings.append(f"line {number}: {market} {node} was not asked for; left out")
            continue
        start, end = (time_of(cells.get(name)) for name in _NEEDED[:2])
        if start is None or end is None or not timedelta(0) < end - start <= timedelta(hours=1):
            warnings.append(f"line {number}: the GMT times are not an interval of at most an hour; left out")
            continue
        text = cells.get(value_column) or None
        value = decimal(text)
        if text is not None and value is None:
            warnings.append(f"line {number}: {value_column} {text[:20]!r} is not a number; counted as missing")
        groups.setdefault((market, node), []).append(Row(start, end, value, Quality.MEASURED))
    if not seen:
        raise FeedError(NO_DATA if not lines else INVALID, "no row of the file is of LMP_TYPE 'LMP'")


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options."""
    problems = check_text(options, "node") + check_base_url(options)
    if "node" not in options:
        problems.append(Problem("node", None, "give a pricing node, such as 'TH_NP15_GEN-APND'"))
    if options.get("market", "DAM") not in tuple(_MARKETS):
        problems.append(Problem("market", options["market"], "must be DAM (hours), RTPD (15 minutes) or RTM (5 minutes)"))
    return problems


FEED = Feed(
    name=NAME,
    kinds=frozenset({Kind.PRICE}),
    option_names=frozenset({"node", "market", "base_url"}),
    requests=build_requests,
    read=read,
    check=check,
    poll_s=1800.0,
    pace_s=6.0,  # one request in five seconds, by OASIS's acceptable use policy
    defaults={"market": "DAM"},
)
