"""Triggers at work: prices as known now, the events held so far, what `triggers.decide` says of both, and the intake.

It fetches nothing: what a region's price is, and whether it is published, is the signal book's.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from dispatcher.config_trigger import LEVEL, TriggerConfig
from dispatcher.dr.intake import EventIntake
from dispatcher.dr.model import DrEvent, Message, Notes, Segment
from dispatcher.dr.payloads import level_caps
from dispatcher.dr.triggers import Decision, Held, Price, Wanted, decide
from dispatcher.store import GridEvent
from signals.forecast import PUBLISHED, slot_series
from signals.points import Quality, SignalPoint
from signals.series import SlotSeries

#: Prices behind us that are looked at: a local day and its change of clocks, and an event of a day.
LOOK_BACK = timedelta(hours=26)
#: How a price came about that may start or end an event.
SETTLED = frozenset({Quality.MEASURED, Quality.ESTIMATED})


class Prices(Protocol):
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

    def __init__(self, triggers: Sequence[TriggerConfig], prices: Prices, intake: EventIntake, store: Events) -> None:
        self._triggers, self._prices, self._intake, self._store = tuple(triggers), prices, intake, store
        self._said: Mapping[str, _Said] = {}

    def look(self, now: datetime) -> None:
        """Make, change and end events as the prices known now ask for. Raises StoreUnavailable."""
        said: dict[str, _Said] = {}
        for trigger in self._triggers:
            rule = trigger.rule()
            prices, unit = self._known(trigger.region, now)
            decision = decide(rule, prices, self._held(trigger, rule.period(now)), now, unit)
            for wanted in decision.wanted:
                self._take(trigger, wanted, now)
            said[trigger.name] = _Said(decision, trigger.region)
        self._said = said

    def alarms(self, now: datetime) -> Iterator[tuple[str, str | None, str]]:
        """(key, region, sentence): prices that are not known, budgets that are used up."""
        for name, said in self._said.items():
            for what, sentence in said.decision.alarms:
                yield f"trigger {name} {what}", said.region, f"trigger {name}: {sentence}"

    def _known(self, region: str, now: datetime) -> tuple[list[Price], str]:
        """Published prices of the series that is in use, those behind us too. A feed's own forecast is none."""
        series = self._prices.series(region, "price")
        if series is None:
            return [], ""
        start, slots = series.start - LOOK_BACK, int(LOOK_BACK.total_seconds() // series.slot_s) + len(series.values)
        end = start + timedelta(seconds=slots * series.slot_s)
        points = self._prices.points(region, "price", start, end, now) or ()
        kept = [point for point in points if point.unit == series.unit and point.quality in SETTLED]
        known = slot_series(kept, now=now, start=start, slot_s=series.slot_s, slots=slots, unit=series.unit)
        return _published(known), series.unit

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


def _published(series: SlotSeries) -> list[Price]:
    """The slots, known where they are published: what is repeated from an earlier day starts nothing and ends nothing."""
    slot = timedelta(seconds=series.slot_s)
    return [
        Price(series.start + index * slot, series.start + (index + 1) * slot, value if basis == PUBLISHED else None)
        for index, (value, basis) in enumerate(zip(series.values, series.basis, strict=True))
    ]


def _spans(event: GridEvent) -> tuple[tuple[datetime, datetime], ...]:
    """When an event of ours asked, or asks, for something; one whose limit is not known, when it would."""
    if event.cancelled:
        at = event.received_at
        return tuple((s.start, at if s.end is None else min(s.end, at)) for s in event.steps if s.start < at)
    if event.steps:
        return tuple((step.start, step.end) for step in event.steps if step.end is not None)
    return ((event.start, event.end),) if event.end is not None and event.end > event.start else ()
