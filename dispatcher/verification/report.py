"""The report of one event: every figure of it with its method and its weaknesses.

It puts together what the other modules of this folder measure; it reads no store and no clock.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import numpy as np

from dispatcher.verification.baselines import Baseline
from dispatcher.verification.delivered import AFTER, aftermath, delivered, net_shed_kwh
from dispatcher.verification.event import Beside, EventFacts, EventReport, TierCost
from dispatcher.verification.export import to_csv, to_json
from dispatcher.verification.holding import WINDOWS_S, Compliance, Tracking, compliance, tracking, worst_rise
from dispatcher.verification.like_days import Calendar
from dispatcher.verification.obligations import Held, Version, in_force, without
from dispatcher.verification.programme import Outcome, Programme, breaches_of, settle
from dispatcher.verification.series import Figure, MeteredSeries, coverage, mean_w
from dispatcher.verification.wording import caveats_of, headline_of, verdict_of

__all__ = ["EventFacts", "EventReport", "TierCost", "event_report", "to_csv", "to_json"]


def event_report(
    facts: EventFacts,
    versions: Sequence[Version],
    metered: MeteredSeries,
    baseline: Baseline,
    *,
    calendar: Calendar,
    beside: Sequence[Baseline] = (),
    refused: Sequence[tuple[str, str]] = (),
    jobs: Sequence[TierCost] = (),
    programme: Programme | None = None,
    earlier: tuple[tuple[datetime, datetime], ...] = (),
    worst_case_w: float | None = None,
    reference_w: float | None = None,
    tolerance_w: float = 0.0,
    interval_s: float | None = None,
    required_share: float = 1.0,
) -> EventReport:
    """Measure an event. ``versions`` are the event as it was received, in any order; ``baseline`` is the one that counts,
    ``beside`` are others to show with it. Where the baseline covers the hours around the event, rebound and nets are told
    too.
    """
    window = facts.window
    owed = in_force(versions, window.end)
    if (level_w := baseline.service_level_w) is not None:
        owed = tuple(replace(one, limit_w=level_w if one.limit_w is None else min(level_w, one.limit_w)) for one in owed)
    if owed and owed[-1].end < window.end:  # cancelled or shortened: what came after its end came after the event
        window = replace(window, end=owed[-1].end)
        facts = replace(facts, window=window, asked_until=facts.window.end)
    base = baseline.series
    interval = interval_s or max(60.0, metered.step_s)
    made = delivered(metered, base, owed, worst_case_w, interval) if base is not None and owed else None
    held = without(owed, facts.opted_out_spans)
    kept = tracking(metered, base, held, reference_w)
    # Where nothing was owed there is nothing to judge, and no baseline to be missed.
    lengths = _window_lengths(metered) if owed else ()
    judged = [compliance(metered, base, held, one, tolerance_w) for one in lengths]
    after = None
    nets: tuple[Figure | None, Figure | None] = (None, None)
    if base is not None and owed:
        after = aftermath(metered, base, window.end, made.energy_kwh.value if made else None)
        days = calendar.days(window.start, window.end)
        nets = (
            net_shed_kwh(metered, base, window.known_at, window.end + AFTER),
            net_shed_kwh(metered, base, _midnight(calendar, days[0]), _midnight(calendar, days[-1] + timedelta(days=1))),
        )
    share = coverage(metered.sharp(), window.start, window.end)
    energy_share = coverage(metered, window.start, window.end)
    guesses = replace(metered, watts=np.where(metered.known, metered.estimated.astype(np.float64), np.nan))
    estimated = mean_w(guesses, window.start, window.end).value or 0.0
    report = EventReport(
        facts=facts,
        verdict="unknown",
        headline="",
        timezone=calendar.timezone,
        versions=tuple(sorted(versions, key=lambda one: one.received_at)),
        owed=owed,
        metered=metered,
        baseline=baseline,
        delivered=made,
        tracking=kept,
        compliance=_within(judged, (window.end - window.start).total_seconds()),
        rise=worst_rise(metered, window.start, window.end + AFTER) if owed else None,
        aftermath=after,
        net_event_kwh=nets[0],
        net_day_kwh=nets[1],
        coverage=share,
        spread_s=(energy_share - share) * (window.end - window.start).total_seconds() if energy_share - share > 1e-6 else 0.0,
        estimated=estimated,
        tolerance_w=tolerance_w,
        interval_s=interval,
        required_share=required_share,
        beside=tuple(_beside(one, metered, owed, interval) for one in beside),
        refused=tuple(refused) if owed else (),
        jobs=tuple(jobs),
        held=held,
    )
    if programme is not None:
        # An opt-out takes nothing off what the programme's terms say of all that was asked.
        outcome = _outcome(report, kept if held == owed else tracking(metered, base, owed, reference_w))
        report = replace(report, settlement=settle(programme, outcome, breaches_of(programme, window, earlier)))
    mine = made
    if held != owed and base is not None:  # what was delivered is told of all that was asked; we are judged by the rest of it
        mine = delivered(metered, base, held, worst_case_w, interval) if held else None
    report = replace(report, verdict=verdict_of(report, mine))
    return replace(report, headline=headline_of(report), caveats=caveats_of(report))


def _midnight(calendar: Calendar, day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=calendar.zone).astimezone(UTC)


def _window_lengths(metered: MeteredSeries) -> tuple[float, ...]:
    """The usual windows, and the meter's own slot where it is longer than all of them."""
    return WINDOWS_S if metered.step_s <= max(WINDOWS_S) else (*WINDOWS_S, metered.step_s)


def _within(judged: Sequence[Compliance], event_s: float) -> tuple[Compliance, ...]:
    """Without windows longer than the event, which it never filled; the shortest that tells anything stays."""
    shortest = min((one.window_s for one in judged if one.reason is None), default=0.0)
    return tuple(one for one in judged if one.reason is not None or one.window_s <= max(event_s, shortest) + 1e-9)


def _beside(baseline: Baseline, metered: MeteredSeries, owed: Sequence[Held], interval_s: float) -> Beside:
    if baseline.series is None or not owed:
        return Beside(baseline.method, None, None, baseline.sentences, flags=baseline.flags, series=baseline.series)
    made = delivered(metered, baseline.series, owed, None, interval_s)
    return Beside(
        method=baseline.method,
        energy_kwh=made.energy_kwh.value,
        performance=made.performance,
        sentences=baseline.sentences,
        mean_w=made.mean_w.value,
        flags=baseline.flags,
        series=baseline.series,
    )


def _outcome(report: EventReport, kept: Tracking) -> Outcome:
    made = report.delivered
    seconds = sum(one.seconds for one in report.owed)
    kw = made.committed_kwh * 3600 / seconds if made is not None and made.committed_kwh is not None and seconds else None
    return Outcome(
        delivered_kwh=made.energy_kwh.value if made else None,
        committed_kwh=made.committed_kwh if made else None,
        committed_kw=kw,
        shortfall_kwh=made.shortfall_kwh if made else None,
        unmeasured_kwh=(made.unmeasured_kwh or 0.0) if made else 0.0,
        over_cap_kwh=kept.over_cap_kwh,
        unmeasured_over_cap=kept.coverage < 1,
        opted_out=bool(report.facts.opted_out),
    )
