"""What the command line does with signals without a control plane: reads a feed, forecasts what follows, fills a database.

It composes signals' parts and knows nothing of terminals. Nothing is stored but by ``backfill_of``.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from dispatcher.config import Config
from dispatcher.errors import BadInput
from dispatcher.forecasts import DAYS, LEARNED
from dispatcher.signal_book import sources_of
from signals.backfill import Backfilled, Step, backfill
from signals.feeds.base import INVALID, NO_DATA, FeedError
from signals.forecast import slot_series, usable
from signals.forecasting.slots import forecast
from signals.ingest import FetchResult, fetch
from signals.points import Kind, Quality, SignalPoint
from signals.series import Past, SlotSeries, Wanted
from signals.store import Signals

#: Slots of a forecast without a control plane, as the planner's are by default.
SLOT_S = 900


def those_that_hold(results: Sequence[Any], kinds: Sequence[Kind]) -> list[Any]:
    """Of one answer read as each of ``kinds``: the readings that found something. A source holds some of the kinds; what the
    others complain of counts only when it holds none."""
    found = [r for r in results if r.points or r.gaps]
    errors = {kind: r.error for kind, r in zip(kinds, results, strict=True) if r.error is not None}
    if found or len(errors) < 2:
        return found or list(results[:1])
    telling = [e for e in errors.values() if e.kind != INVALID]  # it was read, and something else was amiss
    if telling:
        return [replace(results[0], error=telling[0])]
    return [replace(results[0], error=FeedError(INVALID, "; ".join(f"as {kind}: {e.message}" for kind, e in errors.items())))]


def iso(at: datetime | None) -> str | None:
    """ISO 8601 with Z, or None."""
    return at.isoformat().replace("+00:00", "Z") if at is not None else None


def points_json(results: Sequence[Any]) -> dict[str, Any]:
    """What several reads of one feed mean, as one object; an error only when one of them went wrong."""
    points = {
        (p.region, p.kind, p.variant, p.start, p.end, p.issued_at, p.quality, p.value): {
            "region": p.region,
            "kind": p.kind,
            "variant": p.variant,
            "start": iso(p.start),
            "end": iso(p.end),
            "value": p.value,
            "unit": p.unit,
            "quality": p.quality,
            "issued_at": iso(p.issued_at),
        }
        for result in results
        for p in result.points
    }
    gaps = {(g.start, g.end) for result in results for g in result.gaps}
    error = next((result.error for result in results if result.error is not None), None)
    return {
        "points": list(points.values()),
        "gaps": [{"start": iso(start), "end": iso(end)} for start, end in sorted(gaps)],
        "warnings": list(dict.fromkeys(w for result in results for w in result.warnings)),
        "error": None if error is None else {"kind": error.kind, "message": error.message},
    }


# --- a forecast from a feed's own past ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FeedForecast:
    """A feed's values from ``now`` on and our forecast beyond them, on slots; ``learned_from`` is the past that was used."""

    region: str
    kind: Kind
    series: SlotSeries
    learned_from: tuple[datetime, datetime]
    warnings: tuple[str, ...]


def forecast_of_feed(
    feed: str,
    options: Mapping[str, Any],
    *,
    region: str,
    kinds: Sequence[Kind],
    now: datetime,
    zone: str,
    hours: float,
    hindsight: bool,
    ask: Callable[..., FetchResult] = fetch,
) -> FeedForecast:
    """Read the past half year of the first of ``kinds`` that the feed has, and say what follows ``now`` on slots.

    ``hindsight``: ``now`` is in the past, so the feed knows more today than it did. Then nothing that begins at or after
    ``now`` is used (nor a carbon intensity of an interval that was not over), unless the feed says that it was issued before,
    or its ``lookahead`` option says how far ahead it published. Raises FeedError when the feed has nothing, SignalError for
    an unknown ``zone``.
    """
    error: FeedError | None = None  # of the kinds that are not there
    for kind in kinds:
        found = ask(
            feed,
            options,
            region=region,
            kind=kind,
            now=now,
            window_start=now - LEARNED,
            window_end=now + timedelta(hours=hours) + timedelta(days=1),
        )
        known = [p for p in found.points if not hindsight or "lookahead" in options or _known_at(p, now)]
        measured = [p for p in usable(known, now) if p.quality not in (Quality.FORECAST, Quality.SUSPECT)]
        if measured:
            break
        if error is None or error.kind == INVALID:  # of another kind's columns, say: what else was amiss tells more
            error = found.error or error
    else:
        raise error or FeedError(NO_DATA, f"{feed} has no value of before {iso(now)} to forecast from")
    until = max(p.end for p in measured)
    past = Past(
        array("d", [p.start.timestamp() for p in measured]),
        array("d", [p.end.timestamp() for p in measured]),
        array("d", [p.value for p in measured]),
    )
    made = forecast(past, Wanted(until, SLOT_S, DAYS, zone, kind is not Kind.PRICE))
    start = now - timedelta(seconds=now.timestamp() % SLOT_S)
    series = slot_series(
        known, now=now, start=start, slot_s=SLOT_S, slots=max(1, round(hours * 3600 / SLOT_S)), source=found.source, beyond=made
    )
    return FeedForecast(region, kind, series, (min(p.start for p in measured), until), found.warnings)


def _known_at(point: SignalPoint, now: datetime) -> bool:
    """Whether a point that is read today was known at ``now``."""
    if point.issued_at is not None:
        return point.issued_at <= now
    return point.start < now if point.kind is Kind.PRICE else point.end <= now


# --- filling the database -------------------------------------------------------------------------------------------


def backfill_of(
    config: Config,
    store: Signals,
    *,
    region: str,
    what: str,
    days: float,
    source: str | None,
    again: bool,
    now: Callable[[], datetime],
    progress: Callable[[Step], None],
    ask: Callable[..., FetchResult] = fetch,
) -> tuple[str, datetime, datetime, Backfilled]:
    """Fill the store with the last ``days`` days of a region's "price", "carbon" or "load" from one of its configured sources,
    the first unless ``source`` names another; return that source's name, the time filled and what became of it.

    Raises BadInput when there is no such region or source, and whatever the store raises.
    """
    regions = {each.name: each for each in config.regions}
    if region not in regions:
        raise BadInput(
            [("region", region, "must be one of " + (", ".join(regions) or "the configured regions: there is none"))]
        )
    links = {link.name: link for link in sources_of(regions[region].chain(what), what, replaying=config.replay is not None)}
    if not links:
        raise BadInput([("kind", what, f"region {region} has no source for it: name one in the configuration")])
    if source is not None and source not in links:
        raise BadInput([("source", source, "must be one of " + ", ".join(links))])
    link = links[source] if source is not None else next(iter(links.values()))
    end = now()
    start = end - timedelta(days=days)
    done = backfill(
        store,
        link.feed,
        link.options,
        region=region,
        kind=regions[region].signal_kind(what),
        start=start,
        end=end,
        now=now,
        again=again,
        progress=progress,
        ask=ask,
    )
    return link.name, start, end, done
