"""What a report says in words: the verdict, the sentence at its head, and what to know before relying on it."""

from datetime import UTC, datetime, timedelta

from dispatcher.verification.delivered import Delivered
from dispatcher.verification.event import EventReport
from dispatcher.verification.holding import NO_WHOLE_SLOT, Compliance
from policies.sentences import kw

#: Said: a recovery steeper than this share of the reference in a minute, and a load afterwards so far above its baseline.
RISE_BAR, SNAPBACK_BAR = 0.05, 0.02
#: Of less of what was owed nothing is said to be met, however good that part was.
LEAST_JUDGED = 0.9


def decisive(report: EventReport) -> Compliance | None:
    """The compliance that the verdict rests on: by the minute, else by the shortest window that the meter can tell."""
    told = [one for one in report.compliance if one.reason is None]
    return next((one for one in told if one.window_s == 60.0), told[0] if told else None)


def verdict_of(report: EventReport, made: Delivered | None) -> str:
    """The verdict in one word or two; see EventReport. ``made`` is what was delivered in the time that is judged."""
    opted_out = report.facts.opted_out or report.facts.opted_out_spans
    if opted_out and (not report.held or not report.facts.opted_out_spans):
        return "opted out"
    if not report.owed:
        return "nothing owed"
    held = decisive(report)
    limited = any(one.limit_w is not None for one in report.held)
    promised = any(one.committed_w is not None for one in report.held)
    if (limited and held is None) or (not limited and (made is None or made.performance is None)):
        return "unknown"
    if not limited and made is not None and made.judged_kwh.value is None:
        return "unknown"
    kept = True
    if limited and held is not None:
        if held.measured == 0:
            return "unknown"
        needed = report.required_share * held.windows - 1e-9
        if held.within + held.windows - held.measured < needed:
            return "missed"
        kept = held.within >= needed and not held.unjudged_holds
    if promised and made is not None and made.judged_kwh.value is not None and made.performance is not None:
        # What was measured is held against what was committed in the time that was measured; load from outside that time, which
        # is in slots that reach beyond it, is no matter of the event.
        if made.judged_kwh.value < (made.judged_owed_kwh or 0.0) * (1 - 1e-9):
            return "missed"
        half_s = sum(one.seconds for one in report.held) / 2
        kept = kept and made.judged_kwh.complete and made.judged_s >= half_s - 1e-6
    if not kept:
        return "not proven"
    return "partly judged" if limited and judged_share(report) < LEAST_JUDGED - 1e-9 else "met"


def judged_share(report: EventReport) -> float:
    """The share of the holds that lies in slots of the meter which do not reach beyond them; 1 where nothing was held."""
    held_s = sum((one.end - one.hold_at).total_seconds() for one in report.held)
    return 1.0 - _unjudged_s(report) / held_s if held_s > 0 else 1.0


def percent(share: float | None, digits: int = 1) -> str:
    """A share in percent, or "unknown"; only a whole is 100 %."""
    if share is None:
        return "unknown"
    text = f"{share * 100:.{digits}f}"
    if share < 1 and float(text) >= 100:
        text = f"{100 - 10**-digits:.{digits}f}"
    return f"{text.removesuffix('.' + '0' * digits) if digits else text} %"


def span(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def awaited_until(report: EventReport) -> datetime | None:
    """Until when readings of the event's time that have not come yet may still come, rounded up to the minute; None where all
    are there, or will not come any more."""
    facts, metered = report.facts, report.metered
    if facts.told_at is None:
        return None
    first = int(metered.offset_s(facts.window.start) // metered.step_s)
    last = int(-(-metered.offset_s(facts.window.end) // metered.step_s))
    late = timedelta(seconds=facts.late_s)
    known = metered.known
    for k in range(last - 1, first - 1, -1):
        if 0 <= k < len(metered) and known[k]:
            continue
        until = metered.at(k + 1) + late
        if until <= facts.told_at:
            return None  # what is missing from further back has had its time
        return until.replace(second=0, microsecond=0) + timedelta(minutes=1 if until.second or until.microsecond else 0)
    return None


def _awaited(report: EventReport) -> str:
    """That readings are still to come; empty where none is."""
    until = awaited_until(report)
    if until is None:
        return ""
    return f"Not all readings of the event's time have come yet: ask again later (from {until.astimezone(UTC):%H:%M} UTC)"


def headline_of(report: EventReport) -> str:
    """What happened, in one or two sentences, and whether it is too early to say."""
    told = f"{_headline(report)}{_opted_out_told(report)}"
    still = _awaited(report) if report.verdict in ("not proven", "unknown") else ""
    return f"{told} {still}." if still else told


def _opted_out_told(report: EventReport) -> str:
    """When the site had opted out, where it is judged by the rest; else empty."""
    if report.verdict in ("opted out", "nothing owed") or not report.facts.opted_out_spans:
        return ""
    one_day = report.facts.window.start.date() == report.facts.window.end.date()
    form = "%H:%M:%S" if one_day else "%Y-%m-%d %H:%M:%S"
    spans = [f"from {a.astimezone(UTC):{form}} to {b.astimezone(UTC):{form}}" for a, b in report.facts.opted_out_spans]
    why = f" ({report.facts.opted_out.rstrip('.')})" if report.facts.opted_out else ""
    return f" The site had opted out {' and '.join(spans)} UTC{why}: that time is not judged."


def _cannot_tell(report: EventReport) -> str:
    """Why there is no verdict."""
    if any(one.limit_w is not None for one in report.owed):
        start = "Whether the limit was held cannot be told"
        if decisive(report) is None and any(one.reason == NO_WHOLE_SLOT for one in report.compliance):
            return f"{start}: {NO_WHOLE_SLOT}."
        if report.spread_s > 0:
            return f"{start}: only the energy of the event's time is known, not how much was drawn when."
    return "What was delivered is not known: too little was measured, or there is nothing to measure it by."


def _headline(report: EventReport) -> str:
    held, made = decisive(report), report.delivered
    if report.verdict == "opted out":
        why = f": {report.facts.opted_out.rstrip('.')}" if report.facts.opted_out else " for all of it"
        return f"The site opted out{why}."
    if report.verdict == "nothing owed":
        if not report.versions[-1].segments:
            return "The event was cancelled before it began: nothing was owed."
        return "The event was over before anything was owed."
    if report.verdict == "unknown":
        return _cannot_tell(report)
    parts: list[str] = []
    goes_on = report.facts.open_end or report.facts.runs_until is not None
    if made is not None and made.mean_w.value is not None:
        less = made.mean_w.value >= 0
        told = f"The site drew {kw(abs(made.mean_w.value))} {'less' if less else 'more'} than expected"
        if made.mean_cut is not None:
            told += f" ({percent(abs(made.mean_cut))})"
        told += f" for {span(sum(one.seconds for one in report.owed))}"
        if made.performance is not None and not made.committed_by_limit:
            told += f", {percent(made.performance)} of what it had promised"
        parts.append(told)
    if held is not None and any(one.limit_w is not None for one in report.owed):
        size = "minute" if held.window_s == 60 else f"window of {span(held.window_s)}"
        if held.unjudged_s > 1e-6:
            size += " that lies wholly within its time"
        if report.verdict == "partly judged":
            parts.append(_partly(report, held))
        elif held.within == held.windows:
            told = ", which are too few to tell by" if held.unjudged_holds else ""
            parts.append(f"It stayed within the limit in every {size}{told}")
        elif held.within == held.measured:
            told = f"It stayed within the limit in every {size} that was measured"
            parts.append(f"{told}, {percent(held.measured / held.windows)} of all")
        else:
            sizes = "minutes" if held.window_s == 60 else f"windows of {span(held.window_s)}"
            told = f"It stayed within the limit in {held.within:,} of {held.windows:,} {sizes}"
            parts.append(f"{told}, and was over it by up to {kw(held.worst_excess_w)}")
    return ("So far: " if goes_on else "") + ". ".join(parts) + "."


def _partly(report: EventReport, held: Compliance) -> str:
    """That the part that could be judged was met, and how much of the whole that is."""
    held_s = sum((one.end - one.hold_at).total_seconds() for one in report.held)
    size = "minutes" if held.window_s == 60 else f"windows of {span(held.window_s)}"
    whole = max(held.windows + 1, round(held_s / held.window_s))
    kept = (
        "stayed within the limit there" if held.within == held.windows else f"stayed within the limit in {held.within} of them"
    )
    return f"Met in what could be judged ({held.windows:,} of {whole:,} {size}): it {kept}"


def caveats_of(report: EventReport) -> tuple[str, ...]:
    """What somebody must know before relying on the figures."""
    said: list[str] = []
    if report.owed and report.verdict not in ("not proven", "unknown") and (told := _awaited(report)):
        said.append(f"{told}.")
    if report.facts.test:
        said.append("This was a test event.")
    if not report.owed:
        return tuple(said)  # the rest is of figures, and there are none
    if report.facts.open_end:
        said.append("The event has no end yet: figures are up to where measuring stopped.")
    if report.facts.runs_until is not None:
        told = f"{report.facts.runs_until:%Y-%m-%d %H:%M:%S} UTC; figures are up to {report.facts.window.end:%H:%M:%S}"
        said.append(f"The event goes on until {told}.")
    if report.facts.asked_until is not None:
        told = f"{report.facts.window.end:%H:%M:%S} UTC instead of {report.facts.asked_until:%H:%M:%S}"
        said.append(f"The event was ended early, at {told}.")
    if report.coverage < 1:
        said.append(
            f"The meter covers {percent(report.coverage)} of the event. What is missing is counted neither as delivered nor as "
            "within the limit."
        )
    if report.spread_s > 0:
        share = percent(report.spread_s / (report.facts.window.end - report.facts.window.start).total_seconds())
        said.append(
            f"For {span(report.spread_s)} of the event ({share}) only the energy of a longer stretch is known, not how much "
            "was drawn when: a counter ran on while nobody read it, or one reading stands for all of it. It counts as energy, "
            "and says nothing of the limit."
        )
    if report.estimated > 0:
        said.append(f"{percent(report.estimated)} of what is known is estimated, not metered.")
    if report.metered.basis != "site meter":
        said.append(f"Draw is from: {report.metered.basis}. Utilities settle by their own meter.")
    said += [f"Baseline: {flag}." for flag in report.baseline.flags]
    made, after = report.delivered, report.aftermath
    if made is not None and made.committed_by_limit:
        said.append("No reduction was agreed: what is committed is taken as the baseline less the limit.")
    if made is not None and (made.negative_kwh or 0.0) > 0:
        said.append(
            f"{made.negative_kwh:,.2f} kWh were drawn above the baseline in the event; they are taken off the delivery."
        )
    if after is not None and after.rebound_kwh.coverage < 1:
        said.append(f"Only {percent(after.rebound_kwh.coverage)} of the {after.hours:g} h after the event is known.")
    if after is not None and after.snapback is not None and after.snapback > SNAPBACK_BAR:
        said.append(f"Afterwards the load rose to {percent(after.snapback)} above its baseline.")
    reference = report.tracking.reference_w
    if report.rise is not None and reference and report.rise.rise_w > RISE_BAR * reference:
        share = percent(report.rise.rise_w / reference)
        said.append(f"The steepest rise within a minute was {kw(report.rise.rise_w)}, {share} of the reference.")
    if report.net_day_kwh is not None and report.net_day_kwh.coverage < 1:
        said.append(f"The net over the day rests on {percent(report.net_day_kwh.coverage)} of it.")
    if report.settlement is not None:
        said += [f"Outside the programme's terms: {one}." for one in report.settlement.breaches]
    if (left_s := _unjudged_s(report)) > 1e-6:
        said.append(
            f"For {span(left_s)} of what was owed the meter's slots of {span(report.metered.step_s)} reach beyond it: whether "
            "the limit was held is not judged there, and in energies their mean stands for each part."
        )
    return tuple(said)


def _unjudged_s(report: EventReport) -> float:
    """Seconds of the holds that lie in slots of the meter which reach beyond them."""
    whole = [report.metered.whole_slots(one.hold_at, one.end) for one in report.held]
    held_s = sum((one.end - one.hold_at).total_seconds() for one in report.held)
    return held_s - sum((end - start).total_seconds() for start, end in whole)
