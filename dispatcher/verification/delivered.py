"""What was delivered: the baseline less the meter, over the event and after it.

Delivery below zero is shown as it is. What was not measured counts as not delivered; each figure says how much of its interval
was known.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from dispatcher.verification.obligations import Held
from dispatcher.verification.series import (
    J_PER_KWH,
    Figure,
    Floats,
    MeteredSeries,
    coverage,
    difference,
    energy_kwh,
    mean_w,
    resampled,
    windows,
)

AFTER = timedelta(hours=2)
MINUTE_S = 60.0


@dataclass(frozen=True)
class Delivered:
    """Delivery over the time that something was owed. Powers in W, energies in kWh.

    ``performance``: delivered over committed energy, the part that was not measured counted as not delivered.
    ``shortfall_kwh``: what was measured to be missing, interval by interval, so that excess in one does not pay for another;
    ``unmeasured_kwh``: what was committed while nothing was measured. ``mean_cut``: the delivery as a share of the baseline
    of the same moments. ``negative_kwh`` (0 or more): energy drawn above the baseline, already taken off ``energy_kwh``.
    ``least_kwh``: the energy if all that was not measured had been drawn at the worst case; None without one. Commitments
    default to the baseline less the limit, and then ``committed_by_limit`` is set. The verdict rests on the slots that lie
    wholly within what was owed, ``judged_s`` of it: ``judged_kwh`` is the delivery in those whose power is known, its coverage
    their share, and ``judged_owed_kwh`` what was committed in them.
    """

    series: MeteredSeries
    energy_kwh: Figure
    mean_w: Figure
    mean_cut: float | None
    negative_kwh: float | None
    committed_kwh: float | None
    committed_by_limit: bool
    performance: float | None
    shortfall_kwh: float | None
    unmeasured_kwh: float | None
    least_kwh: float | None
    judged_kwh: Figure
    judged_owed_kwh: float | None
    judged_s: float


def delivered_series(metered: MeteredSeries, baseline: MeteredSeries) -> MeteredSeries:
    """R(i) = B(i) - L(i) on the meter's slots (W); unknown where either is."""
    return difference(baseline, metered)


def delivered(
    metered: MeteredSeries,
    baseline: MeteredSeries,
    owed: Sequence[Held],
    worst_case_w: float | None = None,
    interval_s: float | None = None,
) -> Delivered:
    """R(i) = B(i) - L(i); energy = sum of R dt; performance = sum of R over sum of commitments, all over the obligations.

    Shortfall is told by intervals of ``interval_s`` (default: a minute, or the meter's slot if longer): the programme's
    settlement interval. ``worst_case_w``: what the site could draw at most.
    """
    series = delivered_series(metered, baseline)
    total_s = sum(one.seconds for one in owed)
    energy = summed([energy_kwh(series, one.start, one.end) for one in owed], [one.seconds for one in owed])
    below = replace(series, watts=np.where(series.known, np.maximum(-series.watts, 0.0), np.nan))
    negative = summed([energy_kwh(below, one.start, one.end) for one in owed], [one.seconds for one in owed]).value
    # Compared with the baseline of the same moments: what was not measured is in neither.
    alike = replace(
        series, watts=np.where(series.known, resampled(baseline, series.start, series.step_s, len(series)).watts, np.nan)
    )
    expected = summed([energy_kwh(alike, one.start, one.end) for one in owed], [one.seconds for one in owed])
    mean = Figure(
        None if energy.value is None else energy.value * J_PER_KWH / (total_s * energy.coverage), energy.coverage
    )  # over what is known
    committed, short, unmeasured = _against(series, baseline, owed, interval_s or max(MINUTE_S, series.step_s))
    sharp = series.sharp()
    whole = [_whole(sharp, one) for one in owed]
    judged = summed([energy_kwh(sharp, one.start, one.end) for one in whole], [one.seconds for one in whole])
    asked, _, unknown = _against(sharp, baseline, whole, series.step_s)
    cut = None
    if energy.value is not None and expected.value:
        cut = energy.value / expected.value
    least = None
    if worst_case_w is not None:
        worst = replace(metered, watts=np.where(metered.known, metered.watts, np.fmax(worst_case_w, _most(metered))))
        least = summed([_padded(worst, baseline, one, worst_case_w) for one in owed], [one.seconds for one in owed]).value
    return Delivered(
        series,
        energy,
        mean,
        cut,
        negative,
        committed,
        any(one.committed_w is None for one in owed),
        None if energy.value is None or not committed else energy.value / committed,
        short,
        unmeasured,
        least,
        judged,
        None if asked is None or unknown is None else asked - unknown,
        sum(one.seconds for one in whole),
    )


def _whole(series: MeteredSeries, one: Held) -> Held:
    """An obligation over the slots that lie wholly within it: none, and it has no length."""
    start, end = series.whole_slots(one.start, one.end)
    return replace(one, start=start, hold_at=min(max(start, one.hold_at), end), end=end)


def _most(metered: MeteredSeries) -> float:
    return float(np.nanmax(metered.watts)) if metered.known.any() else 0.0


def _padded(worst: MeteredSeries, baseline: MeteredSeries, one: Held, worst_case_w: float) -> Figure:
    inside = energy_kwh(difference(baseline, worst), one.start, one.end)
    # Where the series does not reach at all, the baseline is all that is known of these hours.
    outside_s = one.seconds * (1 - coverage(worst, one.start, one.end))
    expected = mean_w(baseline, one.start, one.end)
    if expected.value is None:
        return Figure(None, 0.0)
    return Figure((inside.value or 0.0) + outside_s * (expected.value - worst_case_w) / J_PER_KWH, 1.0)


def summed(figures: Sequence[Figure], lengths_s: Sequence[float]) -> Figure:
    """The energies of several stretches as one; the coverage is weighted by their lengths."""
    known = [figure.value for figure in figures if figure.value is not None]
    total_s = sum(lengths_s)
    share = sum(one.coverage * length for one, length in zip(figures, lengths_s, strict=True)) / total_s if total_s else 0.0
    return Figure(sum(known) if known else None, min(1.0, share))


def _against(
    series: MeteredSeries, baseline: MeteredSeries, owed: Sequence[Held], step_s: float
) -> tuple[float | None, float | None, float | None]:
    """Committed, missing and unmeasured energy; None where there is no baseline to tell the commitment by."""
    committed = short = unmeasured = 0.0
    for one in owed:
        got, lengths = windows(series, one.start, one.end, step_s)
        if one.committed_w is not None:
            promise = np.full(lengths.size, one.committed_w)
        else:
            expected, _ = windows(baseline, one.start, one.end, step_s)
            promise = np.maximum(expected - (one.limit_w or 0.0), 0.0)
            if np.isnan(promise).any():
                return None, None, None
        known = ~np.isnan(got)
        committed += float((promise * lengths).sum()) / J_PER_KWH
        short += float((np.maximum(promise - got, 0.0)[known] * lengths[known]).sum()) / J_PER_KWH
        unmeasured += float((promise * lengths)[~known].sum()) / J_PER_KWH
    return committed, short, unmeasured


# --- afterwards, and what is left over the whole day ------------------------------------------------------------------------


@dataclass(frozen=True)
class Aftermath:
    """The ``hours`` after the event. ``snapback``: S = max of (L - B) / B, below 0 where the load stayed under its baseline;
    ``rebound_kwh``: sum of max(0, L - B) dt; ``rebound_share``: that over the energy delivered.
    """

    hours: float
    snapback: float | None
    snapback_at: datetime | None
    rebound_kwh: Figure
    rebound_share: float | None


def aftermath(
    metered: MeteredSeries,
    baseline: MeteredSeries,
    end: datetime,
    delivered_kwh: float | None = None,
    after: timedelta = AFTER,
) -> Aftermath:
    """Snapback by means of a minute (or of the meter's slot if longer), rebound by the meter's slots."""
    hours = after.total_seconds() / 3600
    step_s = max(MINUTE_S, metered.step_s)
    load, _ = windows(metered, end, end + after, step_s)
    expected, _ = windows(baseline, end, end + after, step_s)
    known = ~np.isnan(load) & (expected > 0)
    share: Floats = np.full(load.size, np.nan)
    share[known] = load[known] / expected[known] - 1.0
    more = difference(metered, resampled(baseline, metered.start, metered.step_s, len(metered)))
    extra = energy_kwh(replace(more, watts=np.where(more.known, np.maximum(more.watts, 0.0), np.nan)), end, end + after)
    back = extra.value / delivered_kwh if extra.value is not None and delivered_kwh is not None and delivered_kwh > 0 else None
    if not known.any():
        return Aftermath(hours, None, None, extra, back)
    k = int(np.nanargmax(share))
    return Aftermath(hours, float(share[k]), end + timedelta(seconds=k * step_s), extra, back)


def net_shed_kwh(metered: MeteredSeries, baseline: MeteredSeries, start: datetime, end: datetime) -> Figure:
    """Energy below the baseline less energy above it over ``[start, end)``: what is left of a delivery once the load that
    was moved before and after it is counted. Taken from the notice to two hours after the event, and over the whole local
    day.
    """
    return energy_kwh(delivered_series(metered, baseline), start, end)
