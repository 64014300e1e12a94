"""What a site can tell a VTN of itself: what it drew by its meter, else by its GPUs times PUE, and how it stood to an event.

It reads what is stored, so that a restart loses nothing. What has no basis is None; it decides nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from dispatcher.config import Config
from dispatcher.config_events import EventSourceConfig
from dispatcher.config_power import MeterConfig
from dispatcher.dr.model import tidy
from dispatcher.dr.ven3_reports import Reading
from dispatcher.errors import StoreUnavailable
from dispatcher.flexibility import Outlook
from dispatcher.power.energy import EnergyBook
from dispatcher.power.meter_state import limit_of
from dispatcher.power.meter_store import MeterReadings
from dispatcher.power.meter_values import MEASURED, levels
from dispatcher.store import GridEvent

#: Readings before an interval that are judged with it: a jump is seen only beside what came before.
_BEFORE_CADENCES = 20
#: GPUs are summed up by the minute.
_MINUTE_S = 60
#: For so long what could be given now is told of an interval.
_NOW = timedelta(minutes=5)


class Events(Protocol):
    """What it needs of the store."""

    def grid_event(self, source: str, event_id: str) -> GridEvent | None:
        """The latest version of one event, or None."""
        ...


class SiteReadings:
    """See `ven3_reports.Readings`. All may be called from any thread."""

    def __init__(
        self,
        config: Config,
        meters: MeterReadings,
        energy: EnergyBook,
        events: Events,
        outlooks: Callable[[str, str | None], Sequence[Outlook]] = lambda region, branch: (),
    ) -> None:
        """``outlooks`` tells what a region, or a branch of it, could give, now and later."""
        self._config, self._meters, self._energy, self._events = config, meters, energy, events
        self._outlooks = outlooks
        self._sources = {source.name: source for source in config.event_sources}

    def draw(self, source: str, start: datetime, end: datetime) -> Reading | None:
        """By the site's (or branch's) power meter; where it says nothing by what the GPUs drew, for a site times its PUE."""
        one = self._sources[source]
        meter = self._meter(one)
        try:
            found = self._metered(one, meter, start, end) if meter is not None else None
            return found if found is not None else self._of_gpus(one, start, end)
        except StoreUnavailable:
            return None

    def baseline(self, source: str, event_id: str, start: datetime, end: datetime) -> Reading | None:
        """The load that was agreed as the reference; None where none was."""
        reference_w = self._sources[source].reference_w
        return None if reference_w is None else Reading(reference_w, measured=False)

    def shed_available_w(self, source: str, start: datetime, end: datetime) -> float | None:
        """What could be held off throughout an interval that has not begun long ago: the least that is foreseen in it, for the
        shortest of the lengths that are worked out which is as long. None where nothing is foreseen."""
        one = self._sources[source]
        found = []
        for outlook in self._outlooks(one.region, one.branch):
            if outlook.start < end and (outlook.start + _NOW if outlook.end is None else outlook.end) > start:
                long_enough = [part for part in outlook.sheds if part.for_s >= (end - start).total_seconds()]
                found.append(min(long_enough or outlook.sheds[-1:], key=lambda part: part.for_s).total_w)
        return min(found, default=None)

    def operating_state(self, source: str, event_id: str, start: datetime, end: datetime) -> str | None:
        """Whether the event was followed: opted out of, a limit and a draw below it, or a draw above it (an error)."""
        try:
            event = self._events.grid_event(source, event_id)
        except StoreUnavailable:
            return None
        if event is None:
            return None
        if event.opted_out is not None:
            return "RUNNING_OPTED_OUT"
        if event.test and self._sources[source].test_events == "log":
            return "NORMAL"
        # What was asked over all its versions: a release, too, leaves what was in force before it.
        limits = [step for step in event.steps if step.start < end and (step.end is None or step.end > start)]
        if not limits:
            return "NORMAL"
        # What was only just asked need not hold yet.
        owed_from = event.received_at + timedelta(seconds=self._sources[source].response_s)
        drawn = self.draw(source, owed_from if start < owed_from < end else start, end)
        if drawn is None:
            return None
        # Over several steps a mean says nothing against the lowest of them.
        highest = max(s.limit_w for s in limits)
        if drawn.mean_w <= highest:
            return "RUNNING_CURTAILED"
        return "ERROR" if owed_from < end else None

    def _meter(self, source: EventSourceConfig) -> MeterConfig | None:
        scope = "site" if source.branch is None else "branch"
        meters = self._config.region(source.region).meters
        fits = (m for m in meters if m.is_power and m.scope == scope and (source.branch is None or m.of == source.branch))
        return next(fits, None)

    def _metered(self, source: EventSourceConfig, meter: MeterConfig, start: datetime, end: datetime) -> Reading | None:
        region = self._config.region(source.region)
        before = timedelta(seconds=_BEFORE_CADENCES * meter.cadence_s)
        # Half of a counter's span lies after its start, and a late reading may reach back into the interval.
        stored = self._meters.between(region.name, meter.name, start - before, end + timedelta(seconds=meter.cadence_s))
        spans = levels(meter, stored, limit_of(region, meter)).spans
        return _mean(((s.start, s.end, s.value) for s in spans if s.quality == MEASURED), start, end)

    def _of_gpus(self, source: EventSourceConfig, start: datetime, end: datetime) -> Reading | None:
        region = self._config.region(source.region)
        nodes: list[str] | None = None
        pue = region.pue
        if source.branch is not None:
            nodes, pue = [n.node_id for n in self._energy.known_nodes(region.name) if n.branch == source.branch], 1.0
        sums = self._energy.sums(start, end, _MINUTE_S, region=region.name, node_ids=nodes)
        if not sums or any(one.simulated for one in sums):
            return None  # what is played is nothing to tell a utility
        most = max(one.gpus for one in sums)
        whole_s = most * _MINUTE_S
        # A minute in which not all GPUs were heard says less than what was drawn: it is not known.
        known = (
            (one.start, one.end, one.energy_wh * 3600 / _MINUTE_S * pue)
            for one in sums
            if one.energy_wh is not None and one.gpu_seconds >= 0.98 * whole_s
        )
        found = _mean(known, start, end)
        return None if found is None else Reading(found.mean_w, found.coverage, measured=False)


def _mean(spans: Iterable[tuple[datetime, datetime, float]], start: datetime, end: datetime) -> Reading | None:
    """The time-weighted mean of what is known of ``[start, end)``; None where nothing is."""
    joules = known_s = 0.0
    until = start
    for a, b, watts in sorted(spans):
        overlap_s = (min(b, end) - max(a, until)).total_seconds()
        if overlap_s > 0:
            joules += watts * overlap_s
            known_s += overlap_s
            until = min(b, end)
    length_s = (end - start).total_seconds()
    return Reading(tidy(joules / known_s), min(1.0, known_s / length_s)) if known_s > 0 and length_s > 0 else None
