"""What each region's power costs and emits, as the control plane uses it: fetched, kept, laid on the planner's slots.

It asks each feed no more often than the feed wishes, takes the first fresh source of a region's chain, and says which one and
why. It decides nothing; unknown stays unknown.
"""

import logging
import math
import threading
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

import requests

from dispatcher.config import Config, RegionConfig
from dispatcher.errors import ConfigError
from dispatcher.reconcile import Usage
from policies.accounting import energy_kwh, weighted_mean
from signals.feeds import FEEDS
from signals.forecast import slot_series
from signals.ingest import FetchResult, fetch
from signals.points import Kind, SignalPoint
from signals.series import SlotSeries

log = logging.getLogger(__name__)

#: How far back points are read to repeat an earlier day.
LOOK_BACK = timedelta(days=8)
#: How far ahead of a replay's present a file's values count as published, unless its options say otherwise: a replay that saw
#: the whole file would know the future.
REPLAY_LOOKAHEAD = "24h"


class Signals(Protocol):
    """The part of a signal store that is used here."""

    def append(self, points: list[SignalPoint]) -> int:
        """Keep points."""
        ...

    def note_gaps(self, gaps: Any, noted_at: datetime) -> int:
        """Keep gaps."""
        ...

    def prune(self, before: datetime) -> int:
        """Forget points of before a moment."""
        ...

    def read(
        self, region: str, kind: Kind, start: datetime, end: datetime, as_of: datetime, source: str | None = None
    ) -> list[SignalPoint]:
        """Points as known at ``as_of``."""
        ...


@dataclass
class _Source:
    """One link of a region's chain: what it is, when to ask it again, how it went last time."""

    feed: str
    options: dict[str, Any]
    name: str
    due_at: datetime | None = None
    failures: int = 0
    error: str | None = None


class SignalBook:
    """Every region's price and carbon. ``refresh`` runs in one loop; reads are thread-safe."""

    def __init__(self, config: Config, signals: Signals) -> None:
        self._config, self._signals = config, signals
        self._regions = {region.name: region for region in config.regions}
        self._chains: dict[tuple[str, str], list[_Source]] = {}
        for region in config.regions:
            for what, chain in (("price", region.price), ("carbon", region.carbon)):
                self._chains[(region.name, what)] = [_source(entry, replaying=config.replay is not None) for entry in chain]
        self._lock = threading.Lock()
        self._series: dict[tuple[str, str], SlotSeries | None] = {}
        self._session = requests.Session()
        self.ready = False  # until every feed has been asked once: before that, unknown only means not asked yet

    # --- reading --------------------------------------------------------------------------------------------------

    def series(self, region: str, what: str) -> SlotSeries | None:
        """The region's "price" or "carbon" on the planner's slots, or None when it has none."""
        with self._lock:
            return self._series.get((region, what))

    def currency(self, region: str) -> str | None:
        """The currency of the region's price series, which is its feed's own; None while there is none."""
        series = self.series(region, "price")
        return series.unit.split("/")[0] if series is not None else None

    def fx(self, region: str) -> float:
        """Planning currency for one unit of the region's currency. NaN when no rate is configured: then price is unknown."""
        currency = self.currency(region) or self._regions[region].currency
        try:
            return self._config.fx_rate(currency)
        except ConfigError:
            return math.nan

    def usage(self, region: RegionConfig, power_w: float, start: datetime, end: datetime, as_of: datetime) -> Usage:
        """Modelled energy over ``[start, end)`` at the meter (PUE included), its cost in the planning currency and carbon."""
        kwh = energy_kwh(power_w * region.pue, start, end)
        price = self._mean(region.name, "price", start, end, as_of)
        carbon = self._mean(region.name, "carbon", start, end, as_of)
        fx = self.fx(region.name)
        return Usage(
            energy_kwh=kwh,
            cost=None if price is None or fx != fx else kwh * price * fx / 1000.0,
            carbon_kg=None if carbon is None else kwh * carbon / 1000.0,
        )

    def _mean(self, region: str, what: str, start: datetime, end: datetime, as_of: datetime) -> float | None:
        """Time-weighted mean over an interval from the source that is in use, as known now; None unless fully covered."""
        series = self.series(region, what)
        if series is None:
            return None
        points = self._signals.read(region, self._kind(region, what), start, end, as_of, source=series.source)
        return weighted_mean(points, start, end)

    def alarms(self, now: datetime) -> list[tuple[str, str, str]]:
        """(key, region, sentence) for each region and signal that is configured and unknown now."""
        found = []
        for (region, what), chain in self._chains.items():
            series = self.series(region, what)
            if not chain or (series is not None and series.at(now) is not None):
                continue
            errors = "; ".join(f"{source.feed}: {source.error or 'no value for now'}" for source in chain)
            found.append((f"signal {region} {what}", region, f"{what} of {region} is unknown: {errors}"))
        return found

    def prune(self, before: datetime) -> None:
        """Forget signals of before a moment."""
        self._signals.prune(before)

    def _kind(self, region: str, what: str) -> Kind:
        if what == "price":
            return Kind.PRICE
        return Kind.CARBON_MARGINAL if self._regions[region].carbon_signal == "marginal" else Kind.CARBON_AVERAGE

    # --- refreshing -----------------------------------------------------------------------------------------------

    def refresh(self, now: datetime) -> bool:
        """Ask the feeds that are due and lay everything on slots again; return whether a series changed."""
        changed = not self.ready
        for (region, what), chain in self._chains.items():
            for source in chain:
                self._ask(source, region, what, now)
            series = self._lay(region, what, chain, now)
            with self._lock:
                before = self._series.get((region, what))
                self._series[(region, what)] = series
            changed = (
                changed
                or (series is None) != (before is None)
                or (
                    series is not None
                    and before is not None
                    and (series.values, series.source) != (before.values, before.source)
                )
            )
        self.ready = True
        return changed

    def _ask(self, source: _Source, region: str, what: str, now: datetime) -> None:
        if source.due_at is not None and now < source.due_at:
            return
        horizon = timedelta(seconds=self._config.planner_settings().horizon_s)
        result: FetchResult = fetch(
            source.feed,
            source.options,
            region=region,
            kind=self._kind(region, what),
            now=now,
            window_start=now - LOOK_BACK,
            window_end=now + horizon + timedelta(days=1),
            session=self._session,
        )
        poll_s = float(FEEDS[source.feed].poll_s)
        if result.error is not None:
            source.failures += 1
            if source.error is None:
                log.warning("feed %s for %s of %s: %s", source.feed, what, region, result.error.message)
            source.error = result.error.message
            poll_s = min(poll_s * 2 ** min(source.failures, 12), max(poll_s, 3600.0))  # less often while it does not work
        else:
            source.failures, source.error = 0, None
        if result.points:
            self._signals.append(list(result.points))
        if result.gaps:
            self._signals.note_gaps(result.gaps, now)
        source.due_at = now + timedelta(seconds=poll_s)  # last: what could not be kept is fetched again

    def _lay(self, region: str, what: str, chain: list[_Source], now: datetime) -> SlotSeries | None:
        """The first source of the chain that knows the present wins; else the first that knows anything ahead."""
        settings = self._config.planner_settings()
        slot = timedelta(seconds=settings.slot_s)
        start = now - (now - datetime.min.replace(tzinfo=now.tzinfo)) % slot
        fallback: SlotSeries | None = None
        for source in chain:
            points = self._signals.read(
                region,
                self._kind(region, what),
                start - LOOK_BACK,
                start + timedelta(seconds=settings.horizon_s) + slot,
                now,
                source=source.name,
            )
            if not points:
                continue
            series = slot_series(
                points,
                now=now,
                start=start,
                slot_s=settings.slot_s,
                slots=int(settings.horizon_s // settings.slot_s) + 1,
                source=source.name,
            )
            if series.at(now) is not None and series.basis[0] == "published":
                return series
            if fallback is None and any(value is not None for value in series.values):
                fallback = series
        return fallback


def _source(entry: dict[str, Any], *, replaying: bool) -> _Source:
    options = {key: value for key, value in entry.items() if key != "feed"}
    feed = entry["feed"]
    if replaying and feed == "csv":
        options.setdefault("lookahead", REPLAY_LOOKAHEAD)
    return _Source(feed, options, str(options.get("source", feed)))
