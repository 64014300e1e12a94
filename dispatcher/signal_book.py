"""What each region's power costs and emits, and its grid's load, as the control plane uses them: fetched, doubted, kept, laid
on the planner's slots.

It asks each feed no more often than the feed wishes, and those further down a region's chain only while the first is not fresh;
it takes the first fresh and plausible source, and says which one and why. It decides nothing; unknown stays unknown.
"""

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

import requests

from dispatcher.config import Config, RegionConfig
from dispatcher.config_sections import SIGNALS
from dispatcher.errors import ConfigError, GridshiftError
from dispatcher.forecasts import Series
from dispatcher.power.accounts import JobEnergy, Slice, integrated
from dispatcher.reconcile import Usage
from policies.accounting import MeansOf, energy_kwh, weighted_mean
from signals.feeds import FEEDS
from signals.feeds.base import duration
from signals.forecast import PUBLISHED, REPEAT_DAY, SUSPECT, UNKNOWN, slot_series, usable
from signals.ingest import FetchResult, fetch, owner_of
from signals.manners import Manners
from signals.plausibility import judge, possible
from signals.points import Kind, Quality, SignalError, SignalPoint
from signals.retention import Retention
from signals.series import SlotForecast, SlotSeries
from signals.tariffs import Tariff, price_points, price_series

log = logging.getLogger(__name__)

#: How far back points are read to repeat an earlier day.
LOOK_BACK = timedelta(days=8)
#: How far ahead of a replay's present a file's values count as published, unless its options say otherwise: a replay that saw
#: the whole file would know the future. Prices are published a day ahead, what was emitted or drawn is measured.
REPLAY_LOOKAHEAD = {"price": "24h", "carbon": "0s", "load": "0s"}
#: A publisher's forecast that is older than this says nothing of the present.
FORECAST_AGE = timedelta(hours=6)
#: What a source said of the past may be revised for so long; asked anew, it need not say again what was before.
REVISED = timedelta(days=2)
#: How old a source's last value may be, unless its entry says ``max_age``. Carbon is published an hour or two late and moves
#: slowly, as load does, which is published sooner; a price is known ahead or not at all.
MAX_AGE = {"price": timedelta(0), "carbon": timedelta(hours=3), "load": timedelta(hours=1)}
#: Wall seconds that a refresh waits for answers, before it asks the next of the chain, and again for those.
PATIENCE_S = 3.0
#: A feed that publishes nothing new is asked less and less often, up to so many times its own period and this.
_IDLE_MOST, _IDLE_MOST_S = 4.0, 3600.0
#: Wall seconds after which a failed feed is asked again, then twice as many, and so on, while nothing of its chain is fresh.
_RETRY_S, _RETRY_MOST_S = 60.0, 3600.0
#: Wall seconds between two questions to a feed that is not on this machine, however fast a replay's clock runs.
_MIN_WALL_S = 5.0
_HERE = frozenset({"csv", "synthetic"})
#: Options that say of which place a feed's values are: a source is named after the first of them that is given.
_PLACES = (
    "zone",
    "bzn",
    "node",
    "pnode_id",
    "price_area",
    "area",
    "location",
    "respondent",
    "network_region",
    "region_id",
    "regionid",
    "region",
    "postcode",
    "gsp",
    "country",
)
_PLACE_CHARACTERS = 60
#: Asking times drift apart by up to this share, so that not everybody asks at once.
_JITTER = 0.1
#: Transactions of one round of thinning out; a later round goes on where it stopped.
THIN_TRANSACTIONS = 200
#: Failures in a row after which a feed counts as one that does not work.
ALARM_FAILURES = 3
#: Basis of a slot that has a source's last value, for want of anything better.
HELD = "held"
#: How a basis that is not published is told.
_BASES = {
    HELD: "its last value is held",
    "model": "our forecast serves",
    "blend": "our forecast serves",
    REPEAT_DAY: "earlier days are repeated",
    SUSPECT: "its values are doubted",
    UNKNOWN: "nothing is known for now",
}

State = Literal["fresh", "stale", "suspect", "failed", "disabled", "waiting"]


class Signals(Protocol):
    """The part of a signal store that is used here."""

    def append(self, points: list[SignalPoint]) -> int:
        """Keep points."""
        ...

    def note_gaps(self, gaps: Any, noted_at: datetime) -> int:
        """Keep gaps."""
        ...

    def thin(self, now: datetime, keep: Retention, *, transactions: int | None = None) -> Any:
        """Drop revisions, forecasts and resolution that are old enough."""
        ...

    def read(
        self, region: str, kind: Kind, start: datetime, end: datetime, as_of: datetime, source: str | None = None
    ) -> list[SignalPoint]:
        """Points as known at ``as_of``."""
        ...


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How one link of a chain stands.

    ``state``: fresh (it knows the present, or did within its ``max_age``), suspect (it does, but that is hardly possible),
    stale (its last value is too old), failed (it has nothing and could not be asked), disabled (a secret is missing), waiting
    (not asked yet, or no answer yet). ``age_s``: seconds since it last answered well; ``known_until``: end of its last value,
    whose quality is ``quality``; ``due_at``: when it is asked again, if it is needed then; ``why``: a sentence.
    """

    feed: str
    source: str
    state: State
    chosen: bool
    why: str
    age_s: float | None
    known_until: datetime | None
    quality: str | None
    due_at: datetime | None
    error: str | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChainStatus:
    """How a region's "price", "carbon" or "load" came about: every source in order, and the choice in a sentence."""

    region: str
    what: str
    kind: str
    why: str
    sources: tuple[SourceStatus, ...]


@dataclass
class Source:
    """One link of a region's chain: what it is, when to ask it again, how it went last time."""

    feed: str
    options: dict[str, Any]
    name: str
    max_age: timedelta
    due_at: datetime | None = None
    failures: int = 0
    idle: int = 0
    error: str | None = None
    disabled: bool = False
    good_at: datetime | None = None
    until: datetime | None = None  # end of the last value it ever gave
    warnings: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    flight: "Future[FetchResult] | None" = None
    slow: bool = False
    # What the store holds of it, as seen at ``seen_at``:
    seen_at: datetime | None = None
    points: list[SignalPoint] = field(default_factory=list)
    used: list[SignalPoint] = field(default_factory=list)  # those of the one series (variant, unit) that is in use
    last: SignalPoint | None = None
    state: State = "waiting"
    lacks: str = ""  # why it is not fresh, where it has values for now
    units: tuple[str, ...] = ()  # the several units of its points, where it changed them


class Closing(GridshiftError):
    """A request that waited for its turn was broken off: nobody asks any more."""


class SignalBook:
    """Every region's price, carbon and load. ``refresh`` runs in one loop; reads are thread-safe.

    ``parallel`` feeds are asked at the same time, each in a thread; 0: one after the other in the caller, as under a virtual
    clock. With threads, ``arrived`` is called (in one of them) when an answer came too late for the refresh that asked for it:
    another refresh will lay it. ``ask`` fetches, ``rng`` spreads the asking times (default: with threads only).
    """

    def __init__(
        self,
        config: Config,
        signals: Signals,
        *,
        parallel: int = 0,
        patience_s: float = PATIENCE_S,
        manners: Manners | None = None,
        session: requests.Session | None = None,
        ask: Callable[..., FetchResult] = fetch,
        rng: random.Random | None = None,
        forecast_of: Callable[[Series], SlotForecast | None] = lambda series: None,
    ) -> None:
        self._config, self._signals = config, signals
        self._parallel, self._patience_s, self._fetch = parallel, patience_s, ask
        self._speed = config.replay.speed if config.replay is not None else 1.0
        self._rng = rng or (random.Random() if parallel else None)
        self._forecast_of = forecast_of
        self._regions = {region.name: region for region in config.regions}
        self._tariffs = {
            region.name: region.tariff.tariff(region.name) for region in config.regions if region.tariff is not None
        }
        #: What the feeds say, where what the site pays is something else.
        self._wholesale: dict[str, SlotSeries | None] = {}
        #: What is wrong with a region's tariff and the price that it follows, and with the means of a signal: told once.
        self._wrong: dict[tuple[str, str], str] = {}
        self._chains: dict[tuple[str, str], list[Source]] = {}
        for region in config.regions:
            for what in SIGNALS:
                asked = region.chain(what) if what != "price" or self._unasked(region.name) is None else []
                self._chains[(region.name, what)] = list(sources_of(asked, what, replaying=config.replay is not None))
        self._lock = threading.Lock()
        self._series: dict[tuple[str, str], SlotSeries | None] = {}
        self._status: tuple[ChainStatus, ...] = ()
        self._status_at: datetime | None = None
        self._refreshed_at: datetime | None = None
        self._session = session or requests.Session()
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="feed") if parallel else None
        self._closing = threading.Event()
        self.manners = manners or Manners()
        self.arrived: Callable[[], None] = lambda: None
        self.ready = False  # until every feed has been asked once: before that, unknown only means not asked yet

    def close(self) -> None:
        """Ask nobody any more. Requests under way end by themselves within their limits of time."""
        self._closing.set()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    # --- reading --------------------------------------------------------------------------------------------------

    def series(self, region: str, what: str) -> SlotSeries | None:
        """The region's "price", "carbon" or "load" on the planner's slots, or None when it has none."""
        with self._lock:
            return self._series.get((region, what))

    def currency(self, region: str) -> str | None:
        """The currency of the region's price series, which is its feed's own; None while there is none."""
        series = self.series(region, "price")
        return series.unit.split("/")[0] if series is not None else None

    def fx(self, region: str) -> float:
        """Planning currency for one unit of the region's currency. NaN when no rate is configured: then price is unknown."""
        config = self._regions[region]
        currency = self.currency(region) or (config.tariff.currency if config.tariff is not None else config.currency)
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

    def usage_of(self, region: RegionConfig, drawn: JobEnergy, as_of: datetime) -> Usage:
        """As ``usage``, of energy that was measured at the GPUs: each interval at the price and the carbon of its own time, and
        all of it times the region's PUE, for what the building adds is not measured by the job."""
        bills = {what: self._integral(region.name, what, drawn.slices, as_of) for what in ("price", "carbon")}
        price, carbon, fx = bills["price"], bills["carbon"], self.fx(region.name)
        return Usage(
            energy_kwh=drawn.energy_kwh * region.pue,
            cost=None if price is None or fx != fx else price * region.pue * fx / 1000.0,
            carbon_kg=None if carbon is None else carbon * region.pue / 1000.0,
            basis=drawn.basis,
        )

    def _integral(self, region: str, what: str, slices: Sequence[Slice], as_of: datetime) -> float | None:
        """Energy times signal over ``slices``; None unless the signal is known wherever something was drawn."""
        if not slices:
            return 0.0
        start, end = min(one.start for one in slices), max(one.end for one in slices)
        try:
            points = self._points_over(region, what, start, end, as_of)
        except SignalError as error:
            self._tell_wrong(region, f"mean of {what}", str(error))
            return None
        self._tell_wrong(region, f"mean of {what}", None)
        return integrated(slices, MeansOf(points).over) if points is not None else None

    def _mean(self, region: str, what: str, start: datetime, end: datetime, as_of: datetime) -> float | None:
        """Time-weighted mean over an interval from the source that is in use, as known now; None unless it is fully covered by
        values of that series that nobody doubts."""
        try:
            mean = self._mean_of(region, what, start, end, as_of)
        except SignalError as error:  # a tariff in other money than the price that it follows
            self._tell_wrong(region, f"mean of {what}", str(error))
            return None
        self._tell_wrong(region, f"mean of {what}", None)
        return mean

    def _mean_of(self, region: str, what: str, start: datetime, end: datetime, as_of: datetime) -> float | None:
        points = self._points_over(region, what, start, end, as_of)
        return None if points is None else weighted_mean(points, start, end)

    def _points_over(
        self, region: str, what: str, start: datetime, end: datetime, as_of: datetime
    ) -> Sequence[SignalPoint] | None:
        """What is known of a region's price, carbon or load in ``[start, end)``; None where it has none."""
        if what == "price" and (tariff := self._tariffs.get(region)) is not None:
            with self._lock:
                wholesale = self._wholesale.get(region)
            points = None
            if tariff.needs_wholesale:
                if wholesale is None:
                    return None
                points = self._of_series(wholesale, region, what, start, end, as_of)
            return price_points(tariff, points, start, end, region=region, known_at=as_of)
        series = self.series(region, what)
        if series is None:
            return None
        return self._of_series(series, region, what, start, end, as_of)

    def points(self, region: str, what: str, start: datetime, end: datetime, as_of: datetime) -> Sequence[SignalPoint] | None:
        """What was known at ``as_of`` of the series that is in use, over ``[start, end)``; None where there is none."""
        try:
            return self._points_over(region, what, start, end, as_of)
        except SignalError:  # told where the price is laid: a tariff in other money than the price that it follows
            return None

    def _of_series(
        self, series: SlotSeries, region: str, what: str, start: datetime, end: datetime, as_of: datetime
    ) -> list[SignalPoint]:
        """The possible points of the series that is planned with: its source, its variant, its money."""
        points = self._signals.read(region, self._kind(region, what), start, end, as_of, source=series.source)
        return [p for p in points if (p.variant, p.unit) == (series.variant, series.unit) and possible(p)]

    def _tell_wrong(self, region: str, what: str, sentence: str | None) -> None:
        """Log what is wrong once, and again when it changes; None: nothing is."""
        with self._lock:
            before = self._wrong.pop((region, what), None)
            if sentence is not None:
                self._wrong[(region, what)] = sentence
        if sentence is not None and sentence != before:
            log.warning("%s of region %s: %s", what, region, sentence)

    def _unasked(self, region: str) -> str | None:
        """Why a region's price feeds are not asked; None when they are."""
        tariff = self._tariffs.get(region)
        return None if tariff is None or tariff.needs_wholesale else f"a {tariff.type} tariff: no feed is asked for the price"

    def status(self, now: datetime) -> list[ChainStatus]:
        """How each configured chain stood at the last refresh, with ages as of ``now``; thread-safe."""
        with self._lock:
            chains, seen_at = self._status, self._status_at
        since_s = (now - seen_at).total_seconds() if seen_at is not None else 0.0

        def aged(source: SourceStatus) -> SourceStatus:
            return source if source.age_s is None else replace(source, age_s=max(source.age_s + since_s, 0.0))

        return [replace(chain, sources=tuple(aged(source) for source in chain.sources)) for chain in chains]

    def alarms(self, now: datetime) -> list[tuple[str, str, str]]:
        """(key, region, sentence) for each region and signal that is configured and unknown now, or soon may be: no feed of
        its chain works, and what is planned with is what they said before."""
        found = []
        for (region, what), chain in self._chains.items():
            series = self.series(region, what)
            if not chain:
                continue
            with self._lock:
                wrong = self._wrong.get((region, "tariff")) if what == "price" else None
            errors = wrong or "; ".join(f"{source.feed}: {source.error or source.lacks or _doubts(source)}" for source in chain)
            if series is None or series.at(now) is None:
                found.append((f"signal {region} {what}", region, f"{what} of {region} is unknown: {errors}"))
            elif all(source.failures >= ALARM_FAILURES or source.disabled for source in chain):
                until = max((p.end for source in chain for p in source.points), default=None)
                ends = "nothing is kept" if until is None else f"what they said before serves until {until:%Y-%m-%d %H:%M}Z"
                sentence = f"no feed for the {what} of {region} works; {ends}: {errors}"
                found.append((f"signal {region} {what}", region, sentence))
        return found

    def thin(self, now: datetime) -> None:
        """Drop what nobody reads any more of old signals, a part of it at a time."""
        self._signals.thin(now, Retention(), transactions=THIN_TRANSACTIONS)

    def learnable(self) -> list[Series]:
        """The series that are planned with now, for which a forecast is wanted."""
        found = []
        for (region, what), chain in self._chains.items():
            with self._lock:
                series = self._wholesale.get(region) if what == "price" else None
                series = series or self._series.get((region, what))
            if chain and series is not None and any(source.name == series.source for source in chain):
                found.append(self._series_of(region, what, series.source, series.variant))
        return found

    def _series_of(self, region: str, what: str, source: str, variant: str) -> Series:
        config = self._regions[region]
        zone = config.timezone or (config.tariff.timezone if config.tariff is not None else "UTC")
        return Series(region, what, self._kind(region, what), source, zone, variant=variant)

    def _kind(self, region: str, what: str) -> Kind:
        return self._regions[region].signal_kind(what)

    # --- refreshing -----------------------------------------------------------------------------------------------

    def refresh(self, now: datetime) -> bool:
        """Ask the feeds that are due and needed, and lay everything on slots again; return whether a series changed.

        With threads it waits only a few seconds for answers; what comes later is laid by a later refresh.
        """
        self._follow_clock(now)
        self._collect(now)
        if self._pool is None:
            while self._send(now):
                self._collect(now)
        else:
            self._send_and_wait(now)
        changed = not self.ready
        chains = []
        for (region, what), chain in self._chains.items():
            series, status = self._lay(region, what, chain, now)
            if what == "price" and (tariff := self._tariffs.get(region)) is not None:
                with self._lock:
                    self._wholesale[region] = series
                series = self._retail(region, tariff, series, now)
                status = self._with_tariff(region, status)
            with self._lock:
                before = self._series.get((region, what))
                self._series[(region, what)] = series
            changed = changed or _differ(before, series)
            if status is not None:
                chains.append(status)
        with self._lock:
            self._status, self._status_at = tuple(chains), now
        self.ready = True
        return changed

    def _send(self, now: datetime) -> list["Future[FetchResult]"]:
        """Ask the next source of each chain that needs one; without threads the answers are there on return."""
        sent = []
        for (region, what), chain in self._chains.items():
            source = self._next(region, what, chain, now)
            if source is None or self._closing.is_set():
                continue
            since = self._since(source, region, what, now)
            if self._pool is not None:
                source.flight = self._pool.submit(self._ask, source, region, what, now, since)
            else:
                source.flight = Future()
                try:
                    source.flight.set_result(self._ask(source, region, what, now, since))
                except Exception as error:  # noqa: BLE001 - it is told when the answer is taken
                    source.flight.set_exception(error)
            source.slow = False
            sent.append(source.flight)
        return sent

    def _send_and_wait(self, now: datetime) -> None:
        for _ in range(2):  # the second time for those whose first choice is slow
            deadline = time.monotonic() + self._patience_s
            self._send(now)
            while pending := [source.flight for source in self._flying() if not source.slow and source.flight is not None]:
                done, _rest = wait(pending, max(deadline - time.monotonic(), 0.0), FIRST_COMPLETED)
                if not done:
                    break
                self._collect(now)
                self._send(now)
            late = [source for source in self._flying() if not source.slow]
            if not late:
                return
            for source in late:
                source.slow = True
                if source.flight is not None:
                    source.flight.add_done_callback(self._tell)

    def _tell(self, flight: "Future[FetchResult]") -> None:
        if not flight.cancelled() and not self._closing.is_set():
            self.arrived()

    def _flying(self) -> list[Source]:
        return [source for chain in self._chains.values() for source in chain if source.flight is not None]

    def _next(self, region: str, what: str, chain: list[Source], now: datetime) -> Source | None:
        """The first source that is due, as long as none before it is fresh: later ones are asked only when needed."""
        for source in chain:
            if source.flight is not None:
                if source.slow:
                    continue
                return None
            if source.due_at is None or now >= source.due_at:
                return source
            self._look(source, region, what, now)
            if source.state == "fresh":
                return None
        return None

    def _since(self, source: Source, region: str, what: str, now: datetime) -> datetime:
        """From when on a source is asked: all that is looked back at, or only what it may have revised since it said it."""
        if source.good_at is None or now - source.good_at > REVISED:
            return now - LOOK_BACK
        self._look(source, region, what, now)
        actual = [p.end for p in source.used if p.quality not in (Quality.FORECAST, Quality.SUSPECT)]
        return max(now - LOOK_BACK, min(max(actual), now) - REVISED) if actual else now - LOOK_BACK

    def _ask(self, source: Source, region: str, what: str, now: datetime, since: datetime) -> FetchResult:
        horizon = timedelta(seconds=self._config.planner_settings().horizon_s)
        return self._fetch(
            source.feed,
            source.options,
            region=region,
            kind=self._kind(region, what),
            now=now,
            window_start=since,
            window_end=now + horizon + timedelta(days=1),
            session=self._session,
            manners=self.manners,
            sleep=self._sleep,
        )

    def _sleep(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise Closing

    def _collect(self, now: datetime) -> None:
        """Take what has come."""
        for (region, what), chain in self._chains.items():
            for source in chain:
                if source.flight is not None and source.flight.done():
                    flight, source.flight, source.slow = source.flight, None, False
                    try:
                        self._take(source, region, what, flight.result(), now)
                    except Exception as error:  # whatever it is, it is this source's trouble and nobody else's
                        if self._closing.is_set():
                            continue  # broken off
                        log.debug("feed %s for %s of %s", source.name, what, region, exc_info=error)
                        source.seen_at = None
                        self._failed(source, region, what, f"it could not be asked ({type(error).__name__})", now)

    def _take(self, source: Source, region: str, what: str, result: FetchResult, now: datetime) -> None:
        """Keep an answer and decide when to ask again."""
        source.seen_at, source.warnings, source.disabled = None, result.warnings, result.disabled
        new = 0
        try:
            if result.points and (points := self._judged(source, result, now)):
                new = self._signals.append(points)
            if result.gaps:
                self._signals.note_gaps(result.gaps, now)
        except Exception as error:
            self.manners.forget(owner_of(source.feed, source.name, region, result.kind))
            why = str(error) if isinstance(error, SignalError) else type(error).__name__
            log.debug("feed %s for %s of %s", source.name, what, region, exc_info=error)
            self._failed(source, region, what, f"what it says could not be kept: {why}", now, result.wait_s)
            return
        source.until = max((t for t in (source.until, result.known_until()) if t is not None), default=None)
        if result.error is not None:
            self._failed(source, region, what, result.error.message, now, result.wait_s)
            return
        source.failures, source.error, source.good_at = 0, None, result.retrieved_at
        source.idle = 0 if new else source.idle + 1
        poll_s = float(FEEDS[source.feed].poll_s)
        most_s = max(poll_s, min(poll_s * _IDLE_MOST, _IDLE_MOST_S))
        self._postpone(source, min(poll_s * 2 ** min(max(source.idle - 1, 0), 12), most_s), now, result.wait_s)

    def _follow_clock(self, now: datetime) -> None:
        """Where the clock was ahead and is right again, feeds wait as long as they were to, and not until it comes there."""
        before, self._refreshed_at = self._refreshed_at, now
        if before is None or now >= before:
            return
        for source in (one for chain in self._chains.values() for one in chain):
            if source.due_at is not None:
                source.due_at -= before - now

    def _failed(self, source: Source, region: str, what: str, why: str, now: datetime, wait_s: float = 0.0) -> None:
        """Note a failure. The source is asked again soon while its chain knows nothing better, else less and less often."""
        if source.error != why:
            log.warning("feed %s for %s of %s: %s", source.name, what, region, why)
        source.error = why
        source.failures += 1
        source.due_at = now
        poll_s = float(FEEDS[source.feed].poll_s)
        most_s = max(poll_s, _RETRY_MOST_S)
        if source.disabled or self._any_fresh(region, what, now):
            again_s = poll_s * 2 ** min(source.failures, 12)
        else:
            again_s = _RETRY_S * self._speed * 2 ** min(source.failures - 1, 12)
        self._postpone(source, min(again_s, most_s), now, wait_s)

    def _any_fresh(self, region: str, what: str, now: datetime) -> bool:
        chain = self._chains[(region, what)]
        for source in chain:
            self._look(source, region, what, now)
        return any(source.state == "fresh" for source in chain)

    def _postpone(self, source: Source, again_s: float, now: datetime, wait_s: float) -> None:
        """Ask again after ``again_s`` on the clock and ``wait_s`` on the wall."""
        if self._rng is not None:
            again_s *= self._rng.uniform(1.0, 1.0 + _JITTER)
        if self._config.replay is not None and source.feed not in _HERE:
            wait_s = max(wait_s, _MIN_WALL_S)
        source.due_at = now + timedelta(seconds=max(again_s, wait_s * self._speed))

    def _judged(self, source: Source, result: FetchResult, now: datetime) -> list[SignalPoint]:
        """The answer's points without those that are as they were; those that are new and hardly possible marked SUSPECT."""
        start = min(min(p.start for p in result.points) - timedelta(days=2), now - LOOK_BACK)
        end = max(p.end for p in result.points)
        history = self._signals.read(result.region, result.kind, start, end, now, source=source.name)
        known = {(p.variant, p.start, p.end): p for p in history}
        kept: list[SignalPoint] = []
        new: list[SignalPoint] = []
        for point in result.points:
            twin = known.get((point.variant, point.start, point.end))
            if twin is None or twin.value != point.value:
                new.append(point)
            elif twin.quality is Quality.SUSPECT:  # judged when it was said first
                kept.append(replace(point, quality=twin.quality))
            elif (twin.quality, twin.unit, twin.issued_at) != (point.quality, point.unit, point.issued_at):
                kept.append(point)
        judgement = judge(new, history)
        if new:
            source.doubts = judgement.warnings
        for doubt in judgement.warnings:
            log.warning("feed %s for %s of %s: %s", source.name, result.kind, result.region, doubt)
        return kept + list(judgement.points)

    # --- choosing and laying --------------------------------------------------------------------------------------

    def _look(self, source: Source, region: str, what: str, now: datetime) -> None:
        """See what the store holds of a source, and so how it stands."""
        if source.seen_at == now:
            return
        settings = self._config.planner_settings()
        ahead = timedelta(seconds=settings.horizon_s + 2 * settings.slot_s)
        kind = self._kind(region, what)
        source.points = self._signals.read(
            region, kind, now - LOOK_BACK - timedelta(hours=1), now + ahead, now, source=source.name
        )
        source.seen_at = now
        source.used = usable(source.points, now)
        source.last = max(source.points, key=lambda p: (p.end, p.start, p.retrieved_at), default=None)
        source.lacks = ""
        current = _current(source.used, now, source.max_age)
        trusted = [p for p in current if p.quality is not Quality.SUSPECT and possible(p)]
        if any(p.quality is not Quality.FORECAST or now - _told_at(p, source) <= FORECAST_AGE for p in trusted):
            source.state = "fresh"
        elif trusted:
            source.state = "stale"
            source.lacks = f"only a forecast of {max(_told_at(p, source) for p in trusted):%Y-%m-%d %H:%M}Z for now"
        elif current:
            source.state = "suspect"
        elif source.disabled:
            source.state = "disabled"
        elif source.flight is not None or source.due_at is None:
            source.state = "waiting"
        else:
            source.state = "failed" if source.error is not None and not source.points else "stale"

    def _lay(self, region: str, what: str, chain: list[Source], now: datetime) -> tuple[SlotSeries | None, ChainStatus | None]:
        """The first source that is fresh wins; else the first that has some value for now, be it an earlier day's; else the
        first whose value for now is doubted; else the first that knows anything ahead."""
        if not chain:
            why = self._unasked(region) if what == "price" else None
            return None, None if why is None else ChainStatus(region, what, str(self._kind(region, what)), why, ())
        for source in chain:
            self._look(source, region, what, now)
        chosen, series = self._choose(region, what, chain, now)
        basis = _basis_at(series, now)
        reasons = {id(s): _why(s, s is chosen, chosen, basis, first=s is chain[0]) for s in chain}
        sources = tuple(self._source_status(s, s is chosen, reasons[id(s)], now) for s in chain)
        # Those before the chosen one say why they lost.
        lost = chain[: chain.index(chosen)] if chosen is not None else chain
        sentences = [f"{s.name}: {reasons[id(s)]}" for s in [*lost, *([chosen] if chosen is not None else [])]]
        return series, ChainStatus(region, what, str(self._kind(region, what)), "; ".join(sentences), sources)

    def _choose(self, region: str, what: str, chain: list[Source], now: datetime) -> tuple[Source | None, SlotSeries | None]:
        laid: list[tuple[Source, SlotSeries]] = []
        for source in [*(s for s in chain if s.state == "fresh"), *(s for s in chain if s.state != "fresh")]:
            series = self._on_slots(source, region, what, now)
            if series is None:
                continue
            if source.state == "fresh":
                return source, series
            laid.append((source, series))
        doubt = {SUSPECT: 1, UNKNOWN: 2}
        # The first of the best: what is not doubted and not unknown is as good as published.
        return min(laid, key=lambda one: doubt.get(_basis_at(one[1], now), 0), default=(None, None))

    def _slots(self, now: datetime) -> tuple[datetime, int, int]:
        """The planner's slots from the one under way on: start, length in s, number."""
        settings = self._config.planner_settings()
        start = now - (now - datetime.min.replace(tzinfo=now.tzinfo)) % timedelta(seconds=settings.slot_s)
        return start, settings.slot_s, int(settings.horizon_s // settings.slot_s) + 1

    def _retail(self, region: str, tariff: Tariff, wholesale: SlotSeries | None, now: datetime) -> SlotSeries | None:
        """What the site pays, on the planner's slots; None while its wholesale price is unknown or in other money."""
        start, slot_s, slots = self._slots(now)
        wrong, series = None, None
        try:
            series = price_series(tariff, wholesale, start=start, slot_s=slot_s, slots=slots)
        except SignalError as error:
            wrong = str(error)
        self._tell_wrong(region, "tariff", wrong)
        return series

    def _with_tariff(self, region: str, status: ChainStatus | None) -> ChainStatus | None:
        """How a price came about, with what is wrong with the tariff that makes it."""
        with self._lock:
            wrong = self._wrong.get((region, "tariff"))
        return status if status is None or wrong is None else replace(status, why=f"{status.why}; {wrong}")

    def _on_slots(self, source: Source, region: str, what: str, now: datetime) -> SlotSeries | None:
        """A source's points on the planner's slots; None when that leaves every slot unknown."""
        start, slot_s, slots = self._slots(now)
        # What is doubted serves where nothing else is there; what is impossible serves nobody.
        doubted = source.state == "suspect"
        points = [p for p in source.used if possible(p) and (doubted or p.quality is not Quality.SUSPECT)]
        if not points:
            return None
        variant = points[0].variant
        units = tuple(sorted({p.unit for p in source.points if p.variant == variant}))
        if len(units) > 1 and units != source.units:
            log.warning(
                "feed %s for %s of %s: it changed its unit; of %s only %s is used",
                *(source.name, what, region, " and ".join(units), points[0].unit),
            )
        source.units = units
        # A forecast that learned from values in another unit would be wrong by the rate between them.
        beyond = self._forecast_of(self._series_of(region, what, source.name, variant)) if len(units) == 1 else None
        series = slot_series(
            points, now=now, start=start, slot_s=slot_s, slots=slots, source=source.name, variant=variant, beyond=beyond
        )
        if source.state in ("fresh", "suspect"):
            trusted = [p for p in points if p.quality is not Quality.SUSPECT]
            series = _hold(series, trusted, now, source.max_age, first=what != "price")
        return series if any(value is not None for value in series.values) else None

    @staticmethod
    def _source_status(source: Source, chosen: bool, why: str, now: datetime) -> SourceStatus:
        last = source.last
        good_at = source.good_at or max((p.retrieved_at for p in source.points), default=None)
        return SourceStatus(
            feed=source.feed,
            source=source.name,
            state=source.state,
            chosen=chosen,
            why=why,
            age_s=None if good_at is None else (now - good_at).total_seconds(),
            known_until=max((t for t in (source.until, last.end if last else None) if t is not None), default=None),
            quality=None if last is None else str(last.quality),
            due_at=source.due_at,
            error=source.error,
            warnings=(*source.doubts, *source.warnings)[:10],
        )


def _differ(before: SlotSeries | None, after: SlotSeries | None) -> bool:
    if before is None or after is None:
        return before is not after
    return (before.values, before.unit, before.source) != (after.values, after.unit, after.source)


def _doubts(source: Source) -> str:
    """What is amiss with a source that answers well."""
    doubted = source.state == "suspect"
    return ("; ".join(source.doubts) or "its values are doubted") if doubted else "no value for now"


def _current(points: list[SignalPoint], now: datetime, max_age: timedelta) -> list[SignalPoint]:
    """The points in force now; without any the last ones before, when they ended at most ``max_age`` ago."""
    begun = [p for p in points if p.start <= now]
    covering = [p for p in begun if p.end > now]
    if covering or not begun:
        return covering
    last = max(p.end for p in begun)
    return [p for p in begun if p.end == last] if last + max_age > now else []


def _told_at(point: SignalPoint, source: Source) -> datetime:
    """When a value was said last: its issue, or the last good answer, for what is said again is not kept again."""
    return point.issued_at or max(point.retrieved_at, source.good_at or point.retrieved_at)


def _basis_at(series: SlotSeries | None, now: datetime) -> str:
    """Where the value for now comes from."""
    if series is None or series.at(now) is None:
        return UNKNOWN
    return series.basis[int((now - series.start).total_seconds() // series.slot_s)]


def _hold(series: SlotSeries, points: list[SignalPoint], now: datetime, max_age: timedelta, *, first: bool) -> SlotSeries:
    """The series with the last value where none is published, as long as that may be ``max_age`` old. With ``first`` it comes
    before forecasts and earlier days: what moves slowly is most likely as it just was."""
    weaker = (UNKNOWN, SUSPECT) if not first else (UNKNOWN, SUSPECT, REPEAT_DAY, "model", "blend")
    current = _current(points, now, max_age)
    if not current or _basis_at(series, now) not in weaker:
        return series
    last = max(current, key=lambda p: (p.start, p.retrieved_at))
    values, basis, low, high = list(series.values), list(series.basis), list(series.low), list(series.high)
    for index in range(len(values)):
        start = series.start + timedelta(seconds=series.slot_s * index)
        if basis[index] not in weaker or start >= last.end + max_age:
            break
        values[index], basis[index] = last.value, HELD
        if low and high:
            low[index] = high[index] = None
    return replace(series, values=tuple(values), basis=tuple(basis), low=tuple(low), high=tuple(high))


def _why(source: Source, is_chosen: bool, chosen: Source | None, basis: str, *, first: bool) -> str:
    """Why a source was chosen or not, in a few words; ``basis`` is that of the chosen one's value for now."""
    ends = "no values" if source.last is None else f"no value for now (its last ends {source.last.end:%Y-%m-%d %H:%M}Z)"
    ends = source.lacks or ends
    doubts = "; ".join(source.doubts) or "its values are doubted"
    if is_chosen:
        said = "" if basis == PUBLISHED else _BASES.get(basis, basis)
        if source.state == "fresh":
            return ("the first source, is fresh" if first else "is fresh") + (f"; {said}" if said else "")
        if source.state == "suspect":
            serves = "" if basis in (SUSPECT, UNKNOWN) else f"; {said}"
            return f"is suspect, and nothing better is there ({doubts}){serves}"
        return f"{source.error or ends}; {said or 'it serves'}, for nothing better is there"
    if source.state == "fresh":
        return f"is fresh too; {chosen.name if chosen is not None else 'none'} comes first"
    if source.state == "suspect":
        return f"is suspect ({doubts})"
    if source.error is not None:
        return source.error
    if source.flight is not None:
        return "has not answered yet"
    if source.state == "waiting":
        return "is not needed" if chosen is not None and chosen.state == "fresh" else "is not asked yet"
    return ends


def sources_of(chain: list[dict[str, Any]], what: str, *, replaying: bool) -> Iterator[Source]:
    """The links of a configured chain of "price", "carbon" or "load".

    Without a ``source`` of its own a link is named after its feed and the place that it is asked for, so that another place's
    values never continue a series. A feed that comes twice gets a second name.
    """
    names: set[str] = set()
    for entry in chain:
        options = {key: value for key, value in entry.items() if key != "feed"}
        feed = str(entry["feed"])
        if replaying and feed == "csv":
            options.setdefault("lookahead", REPLAY_LOOKAHEAD[what])
        place = next((str(options[key])[:_PLACE_CHARACTERS] for key in _PLACES if key in options), None)
        plain = str(options.get("source", feed if place is None else f"{feed}:{place}"))
        name, count = plain, 1
        while name in names:  # the same feed twice, of two zones, say: their points must not mix
            count += 1
            name = f"{plain}-{count}"
        if name != feed:
            options["source"] = name
        names.add(name)
        max_age = duration("max_age", options["max_age"]) if "max_age" in options else MAX_AGE[what]
        yield Source(feed, options, name, max_age)
