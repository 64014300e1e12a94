"""The registry of feeds: a feed is one file, and one line here.

It knows which feeds there are and whether options are right; it fetches nothing (signals.ingest does).
"""

from collections.abc import Mapping
from typing import Any

from signals.feeds import csv_file, energy_charts, gb_carbon, synthetic
from signals.feeds.base import Context, Feed, FeedError, ParseResult, Problem, Query, Request, unknown_keys
from signals.points import Kind

__all__ = ["FEEDS", "Context", "Feed", "FeedError", "ParseResult", "Problem", "Query", "Request", "validate_options"]

FEEDS: dict[str, Feed] = {
    feed.name: feed
    for feed in (
        csv_file.FEED,
        gb_carbon.FEED,
        energy_charts.FEED,
        synthetic.FEED,
    )
}


def validate_options(feed_name: str, options: Mapping[str, Any], kind: Kind | None = None) -> list[Problem]:
    """What is wrong with a feed's options, as (key, value, remedy); empty when all is well. Reads no payload, asks no host.

    ``options`` may still hold the key ``feed``. With ``kind``, also whether the feed has that kind of signal.
    """
    feed = FEEDS.get(feed_name)
    if feed is None:
        return [Problem("feed", feed_name, f"no such feed; there are: {', '.join(sorted(FEEDS))}")]
    options = {key: value for key, value in options.items() if key != "feed"}
    problems = unknown_keys(feed.all_option_names, options)
    if kind is not None and kind not in feed.kinds:
        having = ", ".join(sorted(name for name, other in FEEDS.items() if kind in other.kinds))
        problems.append(Problem("feed", feed_name, f"has no {kind}; feeds that have it: {having or 'none'}"))
    return problems + feed.check(options)
