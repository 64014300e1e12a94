"""What a report says in words: the verdict, the sentence at its head, and what to know before relying on it."""

from dispatcher.verification.event import EventReport
from dispatcher.verification.holding import Compliance

#: Said: a recovery steeper than this share of the reference in a minute, and a load afterwards so far above its baseline.
RISE_BAR, SNAPBACK_BAR = 0.05, 0.02


def decisive(report: EventReport) -> Compliance | None:
    """The compliance that the verdict rests on: by the minute, else by the shortest window that the meter can tell."""
    told = [one for one in report.compliance if one.reason is None]
    return next((one for one in told if one.window_s == 60.0), told[0] if told else None)


def verdict_of(report: EventReport) -> str:
    """The verdict in one word or two; see EventReport."""
    if report.facts.opted_out:
        return "opted out"
    if not report.owed:
        return "nothing owed"
    held, made = decisive(report), report.delivered
    limited = any(one.limit_w is not None for one in report.owed)
    promised = any(one.committed_w is not None for one in report.owed)
    if (limited and held is None) or (not limited and (made is None or made.performance is None)):
        return "unknown"
    kept = True
    if limited and held is not None:
        if held.measured == 0:
            return "unknown"
        needed = report.required_share * held.windows - 1e-9
        if held.within + held.windows - held.measured < needed:
            return "missed"
        kept = held.within >= needed
    if promised and made is not None and made.energy_kwh.value is not None and made.performance is not None:
        # What was measured is held against what was committed in the time that was measured.
        owed_kwh = (made.committed_kwh or 0.0) - (made.unmeasured_kwh or 0.0)
        if made.energy_kwh.value < owed_kwh * (1 - 1e-9):
            return "missed"
        kept = kept and made.energy_kwh.complete
    return "met" if kept else "not proven"


def kw(watts: float | None, digits: int = 1) -> str:
    """A power in kW, or "unknown"."""
    return "unknown" if watts is None else f"{watts / 1000:,.{digits}f} kW"


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


def headline_of(report: EventReport) -> str:
    """What happened, in one or two sentences."""
    held, made = decisive(report), report.delivered
    if report.verdict == "opted out":
        return f"The site opted out: {report.facts.opted_out.rstrip('.')}."
    if report.verdict == "nothing owed":
        return "The event was over or cancelled before anything was owed."
    if report.verdict == "unknown":
        return "What was delivered is not known: too little was measured, or there is nothing to measure it by."
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
        if held.within == held.windows:
            parts.append(f"It stayed within the limit in every {size}")
        elif held.within == held.measured:
            told = f"It stayed within the limit in every {size} that was measured"
            parts.append(f"{told}, {percent(held.measured / held.windows)} of all")
        else:
            told = f"It stayed within the limit in {held.within:,} of {held.windows:,} {size}s"
            parts.append(f"{told}, and was over it by up to {kw(held.worst_excess_w)}")
    return ("So far: " if goes_on else "") + ". ".join(parts) + "."


def caveats_of(report: EventReport) -> tuple[str, ...]:
    """What somebody must know before relying on the figures."""
    said: list[str] = []
    if report.facts.test:
        said.append("This was a test event.")
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
    if _off_grid(report):
        said.append("Some obligations begin or end within a slot of the meter: there its mean stands for each part.")
    return tuple(said)


def _off_grid(report: EventReport) -> bool:
    metered = report.metered
    edges = [edge for one in report.owed for edge in (one.start, one.hold_at, one.end)]
    return any(abs(part - round(part)) > 1e-6 for part in (metered.offset_s(edge) / metered.step_s for edge in edges))
