"""From stored events to the limits that bind: a budget for each step that is not over, after the source's rule for overlaps.

The strictest limit wins wherever several hold, which is for whoever keeps to budgets; only a source that has agreed on it lets
its events of a higher priority set aside its others. It knows no store and no protocol.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from dispatcher.config_events import EventSourceConfig
from dispatcher.store import OWN_SOURCE, GridEvent, GridStep
from policies.world import Budget

_NEVER = datetime.max.replace(tzinfo=UTC)


def binds(event: GridEvent, sources: Mapping[str, EventSourceConfig]) -> bool:
    """Whether an event limits anything: not released, not opted out of, and no test that is only to be recorded."""
    return _acts(event, sources) and not event.cancelled


def _acts(event: GridEvent, sources: Mapping[str, EventSourceConfig]) -> bool:
    source = sources.get(event.source)
    acts = not event.test or (source is not None and source.test_events == "act")
    return acts and event.opted_out is None


def budgets_of(events: Iterable[GridEvent], sources: Mapping[str, EventSourceConfig], now: datetime) -> list[Budget]:
    """A budget for each step of each event that binds and is not over at ``now``, those of branches too; and of steps that
    are over, by their end or by a release, for as long as load comes back from them (policies.world.Budget)."""
    binding = [(event, _until_released(event)) for event in events if _acts(event, sources)]
    made: list[Budget] = []
    for event, steps in binding:
        source = sources.get(event.source)
        above: list[GridStep] = []
        if source is not None and source.overlap == "priority":
            above = [s for one, of in binding if one.source == event.source and _rank(one) < _rank(event) for s in of]
        # From now back: an end may lie so far ahead that no calendar holds a time after it.
        gone = now - timedelta(seconds=event.recovery_s or 0.0)
        for whole in steps:
            for step in _left_over(whole, above):
                if step.end is None or step.end > gone:
                    made.append(_budget(event, step, several=len(steps) > 1))
    return made


def _until_released(event: GridEvent) -> tuple[GridStep, ...]:
    """The steps of an event; of one that was released, as if it had been asked for up to then only, which is nothing where it
    had not begun."""
    if not event.cancelled:
        return event.steps
    at = event.received_at
    return tuple(replace(s, end=min(s.end or at, at)) for s in event.steps if s.start < at)


def _rank(event: GridEvent) -> float:
    return float("inf") if event.rank is None else event.rank


def _left_over(step: GridStep, above: Iterable[GridStep]) -> list[GridStep]:
    """The parts of a step in which no step of a higher priority (``above``) limits anything."""
    parts = [(step.start, step.end or _NEVER)]
    for other in above:
        begin, end = other.start, other.end or _NEVER
        parts = [
            piece
            for start, stop in parts
            for piece in ((start, min(stop, begin)), (max(start, end), stop))
            if piece[0] < piece[1]
        ]
    return [replace(step, start=start, end=None if stop == _NEVER else stop) for start, stop in parts]


def _budget(event: GridEvent, step: GridStep, several: bool) -> Budget:
    own = event.source == OWN_SOURCE
    reason = step.reason or event.reason or f"event {event.event_id}" + ("" if own else f" from {event.source}")
    return Budget(
        region=event.region,
        start=step.start,
        end=step.end,
        limit_w=step.limit_w,
        # Steps of one event are limits of their own: each has a name.
        event_id=f"{event.event_id} from {step.start:%Y-%m-%dT%H:%M:%S.%fZ}" if several else event.event_id,
        reason=reason,
        source="" if own else event.source,
        branch=event.branch,
        ramp_s=step.ramp_s,
        recovery_s=event.recovery_s,
        emergency=step.emergency,
        of_event=event.event_id if several else "",
    )
