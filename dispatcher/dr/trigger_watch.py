"""Triggers at work: prices and loads as known now, the events held so far, what `triggers.decide` says of both, and the intake.

It fetches nothing: what a region's price or load is, and where that comes from, is the signal book's.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo

from dispatcher.config_trigger import LEVEL, TriggerConfig
from dispatcher.dr.intake import EventIntake
from dispatcher.dr.model import DrEvent, Message, Notes, Segment
from dispatcher.dr.payloads import level_caps
from dispatcher.dr.triggers import Decision, Held, Rule, Slot, Wanted, decide
from dispatcher.signal_book import HELD
from dispatcher.store import GridEvent
from signals.forecast import PUBLISHED, slot_series
from signals.points import Quality, SignalPoint
from signals.series import SlotSeries

#: Slots behind us that are looked at: a local day and its change of clocks, and an event of a day.
LOOK_BACK = timedelta(hours=26)
#: How a price came about that may start or end an event, and a load that counts as one that was.
SETTLED = frozenset({Quality.MEASURED, Quality.ESTIMATED})
#: Which loads ahead of us count, by where they come from: peaks of load are told by forecasts or not at all. One of an earlier
#: day says nothing of today's.
EXPECTED = frozenset({PUBLISHED, HELD, "model", "blend"})
#: What the grid's load was last is taken for what it is, for so long, until what came after is published.
LATE = timedelta(hours=2)
#: How often a month's highest load is looked for.
PEAK_AGAIN = timedelta(minutes=15)


class Signals(Protocol):
    """What it needs of the signal book."""

    def series(self, region: str, what: str) -> SlotSeries | None:
        """On the planner's slots from now on."""
        ...

    def points(self, region: str, what: str, start: datetime, end: datetime, as_of: datetime) -> Sequence[SignalPoint] | None:
        """As known at a time."""
        ...


class Events(Protocol):
    """What it needs of the store."""

    def grid_events(self, *, ended_after: datetime | None = None) -> list[GridEvent]:
        """Latest version of each event."""
        ...


@dataclass(frozen=True, slots=True)
class _Said:
    decision: Decision
    region: str


class Triggers:
    """All triggers of a configuration; ``look`` is a loop's, ``alarms`` the control loop's."""

    def __init__(self, triggers: Sequence[TriggerConfig], signals: Signals, intake: EventIntake, store: Events) -> None:
        self._triggers, self._signals, self._intake, self._store = tuple(triggers), signals, intake, store
        self._said: Mapping[str, _Said] = {}
        self._peaks: dict[str, tuple[datetime, float | None]] = {}

    def look(self, now: datetime) -> None:
        """Make, change and end events as the prices and loads known now ask for. Raises StoreUnavailable."""
        said: dict[str, _Said] = {}
        for trigger in self._triggers:
            rule = self._rule(trigger, now)
            slots, unit = self._known(trigger.region, rule.what, now)
            decision = decide(rule, slots, self._held(trigger, rule.period(now)), now, unit)
            for wanted in decision.wanted:
                self._take(trigger, wanted, now)
            said[trigger.name] = _Said(decision, trigger.region)
        self._said = said

    def alarms(self, now: datetime) -> Iterator[tuple[str, str | None, str]]:
        """(key, region, sentence): prices and loads that are not known, budgets that are used up."""
        for name, said in self._said.items():
            for what, sentence in said.decision.alarms:
                yield f"trigger {name} {what}", said.region, f"trigger {name}: {sentence}"

    def _rule(self, trigger: TriggerConfig, now: datetime) -> Rule:
        """The trigger's rule, with what its share of the month's highest load comes to."""
        rule = trigger.rule()
        if trigger.of_month_peak is None:
            return rule
        peak = self._peaks.get(trigger.region)
        if peak is None or not timedelta(0) <= now - peak[0] < PEAK_AGAIN:
            peak = self._peaks[trigger.region] = (now, self._month_peak(trigger.region, rule.zone, now))
        shares = [] if peak[1] is None else [trigger.of_month_peak * peak[1]]
        return replace(rule, above=max([*shares, *([] if rule.above is None else [rule.above])], default=None))

    def _month_peak(self, region: str, zone: str, now: datetime) -> float | None:
        """The highest load, MW, that is known to have been this month, by the calendar of ``zone``."""
        first = now.astimezone(ZoneInfo(zone)).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        points = self._signals.points(region, "load", first.astimezone(UTC), now, now) or ()
        return max((point.value for point in points if point.quality in SETTLED), default=None)

    def _known(self, region: str, what: str, now: datetime) -> tuple[list[Slot], str]:
        """The slots of the series that is in use, those behind us too, and its unit. Of prices only what is published counts,
        and a feed's own forecast is not; of loads what is expected, too."""
        series = self._signals.series(region, what)
        if series is None:
            return [], ""
        behind = int(LOOK_BACK.total_seconds() // series.slot_s)
        start, slots = series.start - behind * timedelta(seconds=series.slot_s), behind + len(series.values)
        end = start + timedelta(seconds=slots * series.slot_s)
        points = self._signals.points(region, what, start, end, now) or ()
        kept = [point for point in points if point.unit == series.unit and point.quality in SETTLED]
        known = slot_series(kept, now=now, start=start, slot_s=series.slot_s, slots=slots, unit=series.unit)
        values = [value if basis == PUBLISHED else None for value, basis in zip(known.values, known.basis, strict=True)]
        if what == "load":
            told = zip(series.values, series.basis, strict=True)
            values = [*_carried(values[:behind], series.slot_s), *(v if basis in EXPECTED else None for v, basis in told)]
        slot = timedelta(seconds=series.slot_s)
        return [Slot(start + n * slot, start + (n + 1) * slot, value) for n, value in enumerate(values)], series.unit

    def _held(self, trigger: TriggerConfig, since: datetime) -> dict[str, Held]:
        """The events that it has made so far and that its budget counts, or that are not over."""
        return {
            event.event_id: Held(_spans(event), event.cancelled)
            for event in self._store.grid_events(ended_after=since - LOOK_BACK)
            if event.source == trigger.source_name
        }

    def _take(self, trigger: TriggerConfig, wanted: Wanted, now: datetime) -> None:
        held = self._intake.held(trigger.source_name).get(wanted.event_id)
        if not wanted.spans and (held is None or held.cancelled):
            return
        # What a share counts from is the load when the event was first decided on, over all its versions.
        context, notes = self._intake.context(trigger.source_name).about(wanted.event_id), Notes()
        caps = level_caps(LEVEL, f"trigger {trigger.name}: {wanted.sentence}", context.terms, notes) if wanted.spans else []
        spans = [[start.isoformat(), end.isoformat()] for start, end in wanted.spans]
        body = json.dumps({"spans": spans, "limits_w": [cap.limit_w for cap in caps], "test": trigger.test})
        if held is not None and held.body == body and not held.cancelled:
            return
        event = DrEvent(
            trigger.source_name,
            wanted.event_id,
            None,
            now,
            start=wanted.spans[0][0] if wanted.spans else held.start if held is not None else None,
            end=wanted.spans[-1][1] if wanted.spans else now,
            segments=tuple(Segment(start, end, cap.limit_w, reason=cap.reason) for start, end in wanted.spans for cap in caps),
            test=trigger.test,
            cancelled=not wanted.spans,
            counted=True,
            recovery_s=trigger.recovery_s,
            lacking=notes.lacking,
            body=body,
            warnings=(wanted.sentence, *notes.all()),
            load_w=context.terms.load_w,
        )
        self._intake.take(trigger.source_name, Message((event,)), raw=body)


def _carried(values: Sequence[float | None], slot_s: int) -> Iterator[float | None]:
    """The values, with those that are not known as the last one before, where that is not longer ago than LATE."""
    last, age_s = None, 0.0
    for value in values:
        last, age_s = (last, age_s + slot_s) if value is None else (value, 0.0)
        yield last if age_s <= LATE.total_seconds() else None


def _spans(event: GridEvent) -> tuple[tuple[datetime, datetime], ...]:
    """When an event of ours asked, or asks, for something; one whose limit is not known, when it would."""
    if event.cancelled:
        at = event.received_at
        return tuple((s.start, at if s.end is None else min(s.end, at)) for s in event.steps if s.start < at)
    if event.steps:
        return tuple((step.start, step.end) for step in event.steps if step.end is not None)
    return ((event.start, event.end),) if event.end is not None and event.end > event.start else ()
