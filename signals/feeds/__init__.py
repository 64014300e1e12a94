"""The registry of feeds: a feed is one file, and one line here.

It knows which feeds there are and whether options are right; it fetches nothing (signals.ingest does).
"""

from collections.abc import Mapping
from typing import Any

from signals.feeds import (
    aemo,
    awattar,
    caiso,
    carbon_aware_sdk,
    csv_file,
    eia,
    electricitymaps,
    elering,
    energidataservice,
    energy_charts,
    energyzero,
    entsoe,
    gb_carbon,
    gridstatus_isos,
    http_feed,
    nyiso,
    octopus_agile,
    openelectricity,
    ote,
    pjm,
    synthetic,
    watttime,
)
from signals.feeds.base import (
    Context,
    Feed,
    FeedError,
    ParseResult,
    Problem,
    Query,
    Request,
    check_text,
    duration,
    unknown_keys,
)
from signals.points import Kind, SignalError

__all__ = ["FEEDS", "Context", "Feed", "FeedError", "ParseResult", "Problem", "Query", "Request", "validate_options"]

FEEDS: dict[str, Feed] = {
    feed.name: feed
    for feed in (
        synthetic.FEED,
        csv_file.FEED,
        http_feed.FEED,
        entsoe.FEED,
        energy_charts.FEED,
        gb_carbon.FEED,
        octopus_agile.FEED,
        electricitymaps.FEED,
        watttime.FEED,
        eia.FEED,
        caiso.FEED,
        nyiso.FEED,
        pjm.FEED,
        gridstatus_isos.FEED,
        openelectricity.FEED,
        aemo.FEED,
        elering.FEED,
        energidataservice.FEED,
        awattar.FEED,
        energyzero.FEED,
        ote.FEED,
        carbon_aware_sdk.FEED,
    )
}


#: Options that every entry of a chain may have: the name its points go by, and how old its last value may be.
ENTRY_OPTIONS = frozenset({"source", "max_age"})


def _entry_problems(options: Mapping[str, Any]) -> list[Problem]:
    problems = check_text(options, "source")
    if "max_age" in options:
        try:
            duration("max_age", options["max_age"])
        except SignalError:
            problems.append(Problem("max_age", options["max_age"], "must be seconds or a text such as '3h'"))
    return problems


def validate_options(feed_name: str, options: Mapping[str, Any], kind: Kind | None = None) -> list[Problem]:
    """What is wrong with a feed's options, as (key, value, remedy); empty when all is well. Reads no payload, asks no host.

    ``options`` may still hold the key ``feed``. With ``kind``, also whether the feed has that kind of signal.
    """
    feed = FEEDS.get(feed_name)
    if feed is None:
        return [Problem("feed", feed_name, f"no such feed; there are: {', '.join(sorted(FEEDS))}")]
    options = {key: value for key, value in options.items() if key != "feed"}
    problems = unknown_keys(feed.all_option_names | ENTRY_OPTIONS, options) + _entry_problems(options)
    if kind is not None and kind not in feed.kinds:
        having = ", ".join(sorted(name for name, other in FEEDS.items() if kind in other.kinds))
        problems.append(Problem("feed", feed_name, f"has no {kind}; feeds that have it: {having or 'none'}"))
    return problems + [problem for problem in feed.check(options) if problem not in problems]
