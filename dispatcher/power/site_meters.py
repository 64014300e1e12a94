"""A site's own meters and thermometers: readings taken in, judged, kept, and what the site draws by the best that is known.

Where there is a meter it is the truth; without one the agents' sum x PUE is the estimate, and without agents what is modelled.
It knows no routes, and of agents only a sum of power.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from dispatcher.clock import always
from dispatcher.config import Config, MeterConfig
from dispatcher.errors import BadInput, NotFound, StoreUnavailable
from dispatcher.power.agent_sums import AgentsDraw, AgentSums, Place
from dispatcher.power.meter_sources import CsvTail, MeterProblem, Prometheus, Said
from dispatcher.power.meter_state import (
    Meter,
    MeterView,
    below_gpus,
    grid,
    limit_of,
    place_of,
    reading_of,
    require_same,
    view_of,
)
from dispatcher.power.meter_store import MeterReadings
from dispatcher.power.meter_values import (
    MEASURED,
    SUSPECT,
    Aligned,
    Levels,
    MeterReading,
    Span,
    about,
    align,
    at_time,
    levels,
    power_from_counter,
    unmetered,
)

__all__ = [
    "AgentsDraw",
    "Aligned",
    "MeterView",
    "SiteMeters",
    "SitePower",
    "about",
    "align",
    "power_from_counter",
    "unmetered",
]

log = logging.getLogger(__name__)

#: Readings may come this late, and no reading may be of a time further ahead than clocks differ, seconds.
LATE_S, AHEAD_S = 48 * 3600.0, 2.0
#: Readings of a meter that are kept at hand.
_AT_HAND = 1500
#: What is modelled is of now: it says nothing of a time further away than this, seconds.
_NOW_S = 60.0
#: How often readings that are too old are deleted.
_FORGET_EACH = timedelta(hours=1)
#: Sources asked at the same time.
_AT_ONCE = 4
#: Rows of a file that are of a time yet to come are kept until it has.
_PENDING = 10_000


#: What is said of a difference between a meter and GPUs that are played.
SIMULATED_GPUS = "the GPUs that the meter is compared with are simulated, and so is the difference"


@dataclass(frozen=True, slots=True)
class SitePower:
    """What a place draws. ``value_w`` None: unknown. ``quality``: measured (a meter), estimated (agents), simulated, modelled,
    or unknown. ``difference_w`` is what the meter sees beyond the GPUs (for a site: beyond GPUs x PUE), None without both.
    ``at`` is the time asked for, ``start`` and ``end`` the interval that a meter's value is of, ``reason`` why it is no better,
    or the difference is none of real GPUs.
    """

    value_w: float | None
    quality: Literal["measured", "estimated", "simulated", "modelled", "unknown"]
    source: Literal["meter", "agents x PUE", "agents", "modelled", "none"]
    difference_w: float | None
    at: datetime
    start: datetime | None = None
    end: datetime | None = None
    reason: str = ""


class SiteMeters:
    """All meters of all regions. Thread-safe: API and loops use it at once."""

    def __init__(
        self,
        config: Config,
        store: MeterReadings,
        *,
        agents: Callable[[str, str | None], AgentsDraw | None] = lambda region, branch: None,
        modelled: Callable[[str], float | None] = lambda region: None,
        prometheus: Prometheus | None = None,
        steady: Callable[[datetime], bool] = always,
    ) -> None:
        """``agents`` gives the sum of a region's or a branch's GPUs now (None: not all of it is known), ``modelled`` a region's
        modelled draw at the meter, W. ``steady`` tells whether old readings may be dropped by a time (see clock.Steady)."""
        self._config, self._store, self._steady = config, store, steady
        self._modelled = modelled
        self._prometheus = prometheus or Prometheus()
        # Who writes holds the one for as long as the database takes; who reads waits only for values to be replaced.
        self._writing, self._lock = threading.RLock(), threading.Lock()
        self._meters = {
            (region.name, meter.name): Meter(region, meter, limit_of(region, meter))
            for region in config.regions
            for meter in region.meters
        }
        self._sums = AgentSums(agents)
        self._places: set[Place] = {(region.name, None) for region in config.regions}
        self._places |= {place_of(meter) for meter in self._meters.values()}
        self._seen_at: datetime | None = None
        self._forgot_at: datetime | None = None
        self._pool: ThreadPoolExecutor | None = None

    def close(self) -> None:
        """Stop asking and let go of files."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        for meter in self._meters.values():
            if meter.tail is not None:
                meter.tail.close()

    @property
    def period_s(self) -> float:
        """How often `read_meters` wants to be called, in seconds of the clock: as often as the fastest meter speaks, or to sum
        up agents."""
        return min([5.0, *(meter.config.cadence_s for meter in self._meters.values())])

    # --- taking in ----------------------------------------------------------------------------------------------------

    def read_meters(self, now: datetime) -> None:
        """One round: sum up the agents, ask the sources that are due, keep what they say. A source in trouble holds up no other
        and is told of in `alarms`."""
        self._seen_at = now
        self._sums.note(self._places, now)
        asked: list[tuple[Meter, Future[list[Said]]]] = []
        for meter in self._meters.values():
            self._load(meter, now)
            at = grid(now, meter.config.cadence_s)
            # One that was asked in a time yet to come was asked by a clock that was ahead.
            if meter.config.source == "push" or (meter.asked_at is not None and at <= meter.asked_at <= now):
                continue
            meter.asked_at = at
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="meters")
            asked.append((meter, self._pool.submit(self._ask, meter, at)))
        for meter, answer in asked:
            try:
                said = answer.result()
            except MeterProblem as problem:
                self._note(meter, str(problem))
                continue
            except Exception as error:
                log.exception("meter %s of %s cannot be read", meter.config.name, meter.region.name)
                self._note(meter, f"{type(error).__name__}: {error}")
                continue
            self._note(meter, None)
            self._take_pulled(meter, said, now)
        self._forget(now)

    def _forget(self, now: datetime) -> None:
        """Every hour delete what is older than the configuration wants kept."""
        if self._forgot_at is not None and abs(now - self._forgot_at) < _FORGET_EACH:
            return
        if not self._steady(now):
            return
        self._forgot_at = now
        try:
            self._store.forget(now - timedelta(days=self._config.energy.readings_kept_days))
        except StoreUnavailable as error:
            log.warning("%s; tried again later", error)

    def _ask(self, meter: Meter, at: datetime) -> list[Said]:
        if meter.config.source == "prometheus":
            return [self._prometheus.read(meter.config, at)]
        if meter.tail is None:
            meter.tail = CsvTail(meter.config)
        return meter.tail.read()

    def _note(self, meter: Meter, problem: str | None) -> None:
        if problem is not None and meter.problem is None:
            log.warning("meter %s of %s: %s", meter.config.name, meter.region.name, problem)
        meter.problem = problem

    def _take_pulled(self, meter: Meter, said: Sequence[Said], now: datetime) -> None:
        """Keep what a source gave; what is of a time to come waits for it, what is too old or odd is left out with a word."""
        if meter.tail is not None and meter.tail.problems:
            meter.gap = f"{len(meter.tail.problems)} rows give no reading, the last: {meter.tail.problems[-1]}"
        all_said = [*meter.pending, *said]
        ripe = [one for one in all_said if (one.at - now).total_seconds() <= AHEAD_S]
        meter.pending = [one for one in all_said if (one.at - now).total_seconds() > AHEAD_S][-_PENDING:]
        fresh = [one for one in ripe if (now - one.at).total_seconds() <= LATE_S + meter.config.delay_s]
        if fresh:
            try:
                self._keep(meter, [reading_of(meter, one, now) for one in fresh], now)
            except StoreUnavailable as error:
                self._note(meter, str(error))
                if meter.config.source == "csv":  # the file still has them; a query is asked anew anyway
                    meter.pending = [*fresh, *meter.pending][-_PENDING:]

    def push(self, region: str, name: str, said: Sequence[Said], now: datetime) -> tuple[int, int]:
        """Keep what a meter's gateway sent: how many readings were new, and how many were held already.

        Raises NotFound, BadInput for times out of bounds, AlreadyExists when a reading of the same time with another value is
        held, StoreUnavailable; then nothing was kept.
        """
        meter = self._meters.get((region, name))
        if meter is None:
            known = ", ".join(sorted(f"{r}/{n}" for r, n in self._meters)) or "none is configured"
            raise NotFound(f"there is no meter {name[:64]!r} in region {region[:64]!r}; known: {known}")
        if meter.config.source != "push":
            remedy = "must be a meter with source = 'push'; this one is read from " + meter.config.source
            raise BadInput([("meter", name, remedy)])
        self._check_times(meter, said, now)
        self._load(meter, now)
        with self._writing:
            wanted: dict[datetime, MeterReading] = {}
            for reading in (reading_of(meter, one, now) for one in said):
                require_same(wanted.setdefault(reading.start, reading), reading)
            held = self._store.at(region, name, list(wanted))
            for start, reading in held.items():
                require_same(reading, wanted[start])
            new = [reading for start, reading in wanted.items() if start not in held]
            if new:
                self._keep(meter, new, now)
            return len(new), len(said) - len(new)

    @staticmethod
    def _check_times(meter: Meter, said: Sequence[Said], now: datetime) -> None:
        problems: list[tuple[str, object, str]] = []
        for i, one in enumerate(said):
            if (one.at - now).total_seconds() > AHEAD_S:
                problems.append((f"[{i}].at", one.at.isoformat(), f"must not be in the future; it is {now.isoformat()} here"))
            elif (now - one.at).total_seconds() > LATE_S + meter.config.delay_s:
                remedy = f"must be of the last {LATE_S / 3600:g} h; it is {now.isoformat()} here"
                problems.append((f"[{i}].at", one.at.isoformat(), remedy))
            if one.start is not None and meter.config.cumulative:
                problems.append((f"[{i}].start", one.start.isoformat(), "must be left out: a counter is read at a moment"))
        if problems:
            raise BadInput(problems)

    def _load(self, meter: Meter, now: datetime) -> None:
        """After a restart: what is in the store."""
        with self._writing:
            meter.since = meter.since or now
            if meter.loaded:
                return
            try:
                readings = self._store.latest(meter.region.name, meter.config.name, _AT_HAND)
            except StoreUnavailable as error:
                self._note(meter, str(error))
                return
            judged = levels(meter.config, readings, meter.limit_w)
            with self._lock:
                meter.readings, meter.levels, meter.loaded = readings, judged, True

    def _keep(self, meter: Meter, readings: Sequence[MeterReading], now: datetime) -> None:
        """Judge, store durably, remember."""
        with self._writing:
            held = {reading.start for reading in meter.readings}
            new = {reading.start: reading for reading in reversed(readings) if reading.start not in held}
            if not new:
                return
            together = sorted([*meter.readings, *new.values()], key=lambda one: one.start)
            judged = levels(meter.config, together, meter.limit_w)
            self._store.add([replace(r, quality=SUSPECT if r.start in judged.not_used else MEASURED) for r in new.values()])
            with self._lock:
                meter.readings, meter.levels = together[-_AT_HAND:], judged
                recent = now - timedelta(seconds=10 * meter.config.cadence_s)
                reasons = [(gap.end, gap.reason) for gap in judged.gaps[-1:]]
                reasons += [(span.end, span.reason) for span in judged.spans[-len(new) :] if span.quality == SUSPECT]
                if reasons and max(reasons)[0] >= recent:
                    meter.gap = max(reasons)[1]

    # --- what is known ------------------------------------------------------------------------------------------------

    def site_power(self, region: str, at: datetime) -> SitePower:
        """What a region's site draws at ``at``, at its meter, by the best that is known."""
        return self._power(region, None, at)

    def branch_power(self, region: str, branch: str, at: datetime) -> SitePower:
        """What a branch draws at ``at``. A branch's own meter sees no cooling, so its GPUs are compared without PUE."""
        return self._power(region, branch, at)

    def temperature(self, region: str, zone: str, at: datetime) -> Span | None:
        """The warmest believed temperature of a cooling zone at ``at``, degC; None when it is unknown."""
        found = [
            span
            for meter in self._meters.values()
            if meter.region.name == region and (meter.config.scope, meter.config.of) == ("cooling_zone", zone)
            if not meter.config.is_power and (span := self._span_at(meter, at)) is not None
        ]
        return max(found, key=lambda span: span.value, default=None)

    def aligned(self, region: str, name: str) -> list[Aligned]:
        """The believed levels of a power meter at hand beside what the agents measured over the same times."""
        meter = self._meters[region, name]
        with self._lock:
            return align(meter.levels.spans, self._sums.pieces(place_of(meter)))

    def meter_of(self, region: str, branch: str | None) -> MeterConfig | None:
        """The meter of a site's power, or of a branch's; None where there is none."""
        meter = self._power_meter(region, branch)
        return None if meter is None else meter.config

    def history(self, region: str, branch: str | None, start: datetime, end: datetime) -> Levels:
        """What the meter of a site's power, or of a branch's, said of ``[start, end)``, judged anew from what is stored; empty
        without a meter. Reads the store. Raises StoreUnavailable."""
        meter = self._power_meter(region, branch)
        if meter is None:
            return Levels()
        # A counter tells by two readings, and a reading is judged by those before it.
        around = timedelta(seconds=meter.config.delay_s + 10 * meter.config.cadence_s)
        stored = self._store.between(region, meter.config.name, start - around, end + around)
        found = levels(meter.config, stored, meter.limit_w)
        return replace(found, spans=tuple(span for span in found.spans if span.end > start and span.start < end))

    def _power_meter(self, region: str, branch: str | None) -> Meter | None:
        scope = "site" if branch is None else "branch"
        for meter in self._meters.values():
            same = meter.region.name == region and meter.config.scope == scope and (branch is None or meter.config.of == branch)
            if same and meter.config.is_power:
                return meter
        return None

    def _power(self, region: str, branch: str | None, at: datetime) -> SitePower:
        scope = "site" if branch is None else "branch"
        pue = self._config.region(region).pue if branch is None else 1.0
        reason = f"the {scope} has no meter"
        for meter in self._meters.values():
            same = meter.region.name == region and meter.config.scope == scope and (branch is None or meter.config.of == branch)
            if not same or not meter.config.is_power:
                continue
            span = self._span_at(meter, at)
            if span is None:
                reason = f"meter {meter.config.name} has no believable reading for {at:%H:%M:%S}Z"
                continue
            agents = self._sums.mean((region, branch), span.start, span.end)
            if (below := below_gpus(meter, span, agents)) is not None:
                reason = below
                continue
            difference_w = unmetered(span.value, agents.power_w if agents is not None else None, pue)
            reason = SIMULATED_GPUS if difference_w is not None and agents is not None and agents.simulated else ""
            return SitePower(span.value, "measured", "meter", difference_w, at, span.start, span.end, reason)
        if (agents := self._sums.at((region, branch), at)) is not None:
            quality: Literal["simulated", "estimated"] = "simulated" if agents.simulated else "estimated"
            source: Literal["agents x PUE", "agents"] = "agents x PUE" if branch is None else "agents"
            return SitePower(agents.power_w * pue, quality, source, None, at, reason=reason)
        if branch is None and (modelled_w := self._modelled_at(region, at)) is not None:
            return SitePower(modelled_w, "modelled", "modelled", None, at, reason=f"{reason}, and no agents tell")
        return SitePower(None, "unknown", "none", None, at, reason=f"{reason}, and no agents tell")

    def _modelled_at(self, region: str, at: datetime) -> float | None:
        seen_at = self._seen_at
        if seen_at is None or abs((at - seen_at).total_seconds()) > _NOW_S:
            return None
        return self._modelled(region)

    def _span_at(self, meter: Meter, at: datetime) -> Span | None:
        with self._lock:
            known = meter.levels.spans
            at_hand = bool(meter.readings) and meter.readings[0].start <= at - timedelta(seconds=meter.reach_s)
            full = len(meter.readings) >= _AT_HAND
        if full and not at_hand:
            around = timedelta(seconds=meter.reach_s + 10 * meter.config.cadence_s)
            stored = self._store.between(meter.region.name, meter.config.name, at - around, at + around)
            known = levels(meter.config, stored, meter.limit_w).spans
        return at_time(known, at, meter.reach_s)

    def views(self, now: datetime) -> list[MeterView]:
        """Every meter as it stands at ``now``, in the order of the configuration."""
        with self._lock:
            return [view_of(meter, now) for meter in self._meters.values()]

    def alarms(self, now: datetime) -> Iterable[tuple[str, str, str]]:
        """(key, region, sentence) of what an operator must know: meters that stopped, are reset or cannot be right."""
        for view in self.views(now):
            name, region = view.config.name, view.region
            meter = self._meters[region, name]
            why = f": {view.problem}" if view.problem else ""
            silent = meter.since is not None and (now - meter.since).total_seconds() > meter.reach_s
            if view.state == "stopped" and view.last is not None:
                since = (view.last.end or view.last.start).strftime("%Y-%m-%d %H:%M:%S")
                sentence = f"meter {name} of {region} has stopped: nothing since {since}Z; what it measures is unknown{why}"
                yield f"meter {region}/{name}", region, sentence
            elif view.state == "waiting" and silent:
                yield f"meter {region}/{name}", region, f"meter {name} of {region} has not given a reading yet{why}"
            elif view.state == "suspect":
                sentence = f"what meter {name} of {region} says is not believed, so that it is unknown: {view.gap}"
                yield f"meter {region}/{name}", region, sentence
            elif view.level is not None and view.config.is_power and view.config.scope != "cooling_zone":
                below = below_gpus(meter, view.level, self._sums.mean(place_of(meter), view.level.start, view.level.end))
                if below is not None:
                    yield f"meter {region}/{name} low", region, below
