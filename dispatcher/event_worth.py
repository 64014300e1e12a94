"""What an event that is still to be kept is worth by its programme, beside what it may cost the jobs; told before it is obeyed.

Pure, and it decides nothing: to opt out is the operator's. Amounts are expectations from what is known now; what is not known
is None, with the reason.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from dispatcher.config_programme import ProgrammeConfig
from dispatcher.store import GridEvent, GridStep
from dispatcher.verification.like_days import EventWindow
from dispatcher.verification.programme import Outcome, breaches_of, settle
from policies.world import ENDED, PLACED, JobView, Pausable

_J_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class Worth:
    """Amounts in ``currency``, above 0 what comes in. ``committed_kwh`` is what is left to deliver, by the terms or, without a
    promise there, by the draw now; ``if_met`` and ``if_nothing`` what it would bring if all or nothing of it were delivered,
    ``if_opted_out`` what opting out would. ``jobs_cost_at_most`` (in ``jobs_currency``) is what being late would cost, were
    every job of the region that may be paused to stand still for all of the rest of it. ``breaches``: terms that the call
    does not keep. ``reasons`` say why something is not known."""

    programme: str
    currency: str
    committed_kw: float | None
    committed_kwh: float | None
    if_met: float | None
    if_nothing: float | None
    if_opted_out: float
    jobs_cost_at_most: float | None
    jobs_currency: str
    jobs_counted: int
    breaches: tuple[str, ...]
    reasons: tuple[str, ...]
    sentence: str


def worth_of(
    event: GridEvent,
    config: ProgrammeConfig,
    now: datetime,
    *,
    draw_w: float | None,
    jobs: Iterable[JobView],
    late_cost_per_h: float,
    jobs_currency: str,
    fx: float | None,
    earlier: tuple[tuple[datetime, datetime], ...] = (),
) -> Worth:
    """See Worth. ``draw_w`` is the place's at its meter now (None: unknown), ``fx`` what a unit of the programme's currency is
    in the jobs' (None: no rate is configured)."""
    reasons: list[str] = []
    left = [_left(step, now) for step in event.steps if step.end is None or step.end > now]
    lengths = [None if end is None else (end - start).total_seconds() for start, end, _ in left]
    hours = None if None in lengths or not left else sum(length for length in lengths if length is not None) / 3600
    if not left:
        reasons.append("nothing is left to be kept")
    elif hours is None:
        reasons.append("the event has no end, so how much energy it asks for is not known")
    terms = config.terms()
    kw, kwh, excess_kwh = _asked(left, lengths, config, draw_w, reasons) if hours else (None, None, None)
    met = nothing = None
    if kwh is not None:
        met = settle(terms, Outcome(kwh, kwh, kw, 0.0, 0.0, 0.0)).total
        nothing = settle(terms, Outcome(0.0, kwh, kw, kwh, 0.0, excess_kwh)).total
    optional = settle(terms, Outcome(None, None, None, None, 0.0, None, opted_out=True)).total or 0.0
    breaches: tuple[str, ...] = ()
    start, end = event.steps[0].start if event.steps else event.start, event.end
    if end is not None and end > start:
        breaches = breaches_of(terms, EventWindow(event.received_at, start, end), earlier)
    cost, counted = None, 0
    if hours is not None:
        cost, counted = late_cost(jobs, event.region, max(now, start), hours * 3600, now, late_cost_per_h)
    return Worth(
        programme=config.name,
        currency=config.currency,
        committed_kw=kw,
        committed_kwh=kwh,
        if_met=met,
        if_nothing=nothing,
        if_opted_out=optional + 0.0,
        jobs_cost_at_most=cost,
        jobs_currency=jobs_currency,
        jobs_counted=counted,
        breaches=breaches,
        reasons=tuple(reasons),
        sentence=_said(config, met, nothing, optional + 0.0, cost, jobs_currency, fx),
    )


_Left = tuple[datetime, datetime | None, float]


def _left(step: GridStep, now: datetime) -> _Left:
    return max(step.start, now), step.end, step.limit_w


def _asked(
    left: Sequence[_Left], lengths: Sequence[float | None], config: ProgrammeConfig, draw_w: float | None, reasons: list[str]
) -> tuple[float | None, float | None, float | None]:
    """Mean kW and kWh that are to be delivered, and the kWh that would be drawn above the limit if nothing were."""
    spans = [(limit_w, seconds) for (_, _, limit_w), seconds in zip(left, lengths, strict=True) if seconds is not None]
    total_s = math.fsum(seconds for _, seconds in spans)
    level_w = config.firm_service_level_w
    above_kwh = None
    if draw_w is not None:
        limits = [(limit_w if level_w is None else min(limit_w, level_w), seconds) for limit_w, seconds in spans]
        above_kwh = math.fsum(max(0.0, draw_w - limit_w) * seconds for limit_w, seconds in limits) / _J_PER_KWH
    if config.commitment_w is not None:
        return config.commitment_w / 1e3, config.commitment_w * total_s / _J_PER_KWH, above_kwh
    if above_kwh is None:
        reasons.append("no reduction was agreed, and what is drawn now is not known")
        return None, None, None
    return above_kwh * 3600 / total_s, above_kwh, above_kwh


def late_cost(
    jobs: Iterable[JobView], region: str, start: datetime, lasts_s: float, now: datetime, per_h: float
) -> tuple[float, int]:
    """What being late would cost at most, and how many jobs that counts: those in ``region``, or planned there, that may be
    stopped, were they all to stand still for ``lasts_s`` from ``start`` on. What they would be late anyway is not counted."""
    cost, counted = 0.0, 0
    for job in jobs:
        flex = job.flex
        place = job.region if job.state in PLACED else job.planned_region
        stoppable = flex.flexible and (flex.pausable is not Pausable.NO or job.state not in PLACED)
        if place != region or not stoppable or job.state in ENDED or job.cancel_requested:
            continue
        counted += 1
        if flex.deadline_at is None:
            continue
        ran_s = (now - job.run_started_at).total_seconds() if job.run_started_at is not None else 0.0
        begins = max(now, job.planned_start_at or now) if job.state not in PLACED else now
        slack_s = (flex.deadline_at - begins).total_seconds() - max(0.0, job.remaining_s - ran_s)
        stopped_s = lasts_s + (flex.restart_s + flex.checkpoint_s if job.state in PLACED else 0.0)
        cost += max(0.0, stopped_s - max(0.0, slack_s)) / 3600 * per_h
    return cost, counted


def _said(
    config: ProgrammeConfig,
    met: float | None,
    nothing: float | None,
    optional: float,
    cost: float | None,
    jobs_currency: str,
    fx: float | None,
) -> str:
    """The comparison in words; a judgement only where both sides are known."""
    if met is None:
        return f"What {config.name} pays for it is not known."
    money = config.currency
    said = (
        f"{config.name}: {met:,.2f} {money} if it is met, {nothing:,.2f} if nothing is delivered, {optional:,.2f} if opted out"
    )
    if cost is None:
        return said + "; what it may cost the jobs is not known."
    said += f"; being late may cost the jobs up to {cost:,.2f} {jobs_currency}"
    if fx is None:
        return said + f" (no rate between the two: add {money} under [fx])."
    ours = (met - optional) * fx
    return said + (": worth keeping even then." if ours >= cost else ": less than that, should all of them be stopped.")
