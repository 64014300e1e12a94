"""What an event cost the jobs, by tier, from their histories: who was stopped or kept waiting for it, and for how long.

Pure. It sees what the histories say: stops and waits whose sentence names the event. Caps slow jobs down without a line there,
and work that a plan placed around the event beforehand has none either; neither is counted.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from dispatcher.store import GridEvent, Job, JobEvent
from dispatcher.verification.event import TierCost
from policies.power_allocation import TIER_LOSS
from policies.world import ENDED, JobState

Span = tuple[datetime, datetime]
#: What is not in the figures, for whoever reads them.
NOT_COUNTED = (
    "What it cost the jobs: counted are those that were paused, frozen or kept waiting for it. How much caps slowed others "
    "down is not on record, nor is what the plan placed elsewhere beforehand."
)


@dataclass(frozen=True, slots=True)
class Told:
    """A job and its history, by time."""

    job: Job
    events: Sequence[JobEvent]


def names_of(event: GridEvent) -> tuple[str, ...]:
    """What sentences call an event: its reasons, or its id."""
    reasons = {event.reason, *(step.reason for step in event.steps)} - {""}
    return (f"event {event.event_id}", *sorted(reasons))


def tier_costs(told: Iterable[Told], names: Sequence[str], window: Span, until: datetime) -> tuple[TierCost, ...]:
    """The cost by tier of the event that ran over ``window``, as far as it is known at ``until``; tiers without a touched job
    are left out."""
    by_tier: dict[str, list[_Cost]] = defaultdict(list)
    for one in told:
        cost = _cost(one, names, window, until)
        if cost is not None:
            by_tier[one.job.flex.tier].append(cost)
    return tuple(_tier(tier, by_tier[tier]) for tier in sorted(by_tier))


@dataclass(frozen=True, slots=True)
class _Cost:
    delay_s: float
    stopped_s: float
    would_have_run_s: float
    missed: bool | None


def _tier(tier: str, costs: Sequence[_Cost]) -> TierCost:
    would_s = sum(one.would_have_run_s for one in costs)
    deadlines = [one.missed for one in costs if one.missed is not None]
    return TierCost(
        tier=tier,
        jobs=len(costs),
        delay_mean_s=sum(one.delay_s for one in costs) / len(costs),
        delay_max_s=max(one.delay_s for one in costs),
        lost_throughput=sum(one.stopped_s for one in costs) / would_s if would_s > 0 else None,
        allowed=TIER_LOSS.get(tier),
        deadline_misses=sum(deadlines) if deadlines else None,
    )


def _cost(told: Told, names: Sequence[str], window: Span, until: datetime) -> _Cost | None:
    """What one job lost; None where the event did not touch it."""
    stops, waits = _stops(told, names, window, until), _waits(told, names, window, until)
    if not stops and not waits:
        return None
    job = told.job
    stopped_s = sum(_overlap_s(one, window) for one in stops)
    ran_from = job.started_at
    would_s = 0.0
    if stops and ran_from is not None:
        would_s = _overlap_s((ran_from, job.finished_at or until), (window[0], min(window[1], until)))
    missed = None
    if job.flex.deadline_at is not None and (job.finished_at is not None or until > job.flex.deadline_at):
        missed = (job.finished_at or until) > job.flex.deadline_at
    delay_s = sum((end - start).total_seconds() for start, end in (*stops, *waits))
    return _Cost(delay_s, stopped_s, would_s, missed)


def _stops(told: Told, names: Sequence[str], window: Span, until: datetime) -> list[Span]:
    """When the job stood still for the event, having run: paused until it ran again, or frozen until it was let go."""
    found: list[Span] = []
    asked = False
    since: datetime | None = None
    for event in told.events:
        if event.kind == "freeze" and since is None and _named(event, names) and event.at < window[1]:
            since = event.at
        elif event.kind == "thaw" and since is not None:
            found.append((since, event.at))
            since = None
        elif event.new_state is JobState.PAUSING and event.old_state is JobState.RUNNING:
            asked = _named(event, names) and event.at < window[1]
        elif event.new_state is JobState.PAUSED and event.old_state is JobState.PAUSING and asked:
            since = event.at if since is None else since
            asked = False
        elif since is not None and event.old_state is not event.new_state and _moves_on(event):
            found.append((since, event.at))
            since = None
    if since is not None:
        found.append((since, max(since, until)))
    return found


def _waits(told: Told, names: Sequence[str], window: Span, until: datetime) -> list[Span]:
    """When the job was kept from its first start by the event: from when that was first said until it was sent on its way."""
    since: datetime | None = None
    for event in told.events:
        waiting = event.new_state is JobState.QUEUED and event.attempt == 0
        if since is None and waiting and _named(event, names) and window[0] <= event.at < window[1]:
            since = event.at
        elif since is not None and not waiting:
            return [(since, event.at)]
    return [(since, max(since, until))] if since is not None else []


def _moves_on(event: JobEvent) -> bool:
    return event.new_state is JobState.RUNNING or event.new_state in ENDED


def _named(event: JobEvent, names: Sequence[str]) -> bool:
    return any(name in event.reason for name in names)


def _overlap_s(one: Span, other: Span) -> float:
    return max(0.0, (min(one[1], other[1]) - max(one[0], other[0])).total_seconds())
