"""How well a limit was held: by windows, by energy and by time, from a metered series and obligations.

A window that was not measured is not within the limit. Only slots that lie wholly within a hold are judged: the mean of one
that reaches beyond would judge load from outside it. It knows neither money nor what happened after the event.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from dispatcher.verification.delivered import MINUTE_S, delivered_series, summed
from dispatcher.verification.obligations import Held, target
from dispatcher.verification.series import J_PER_KWH, MIN_COVERAGE, MeteredSeries, difference, energy_kwh, windows

#: The windows over which limits are judged (s): from fast response to settlement.
WINDOWS_S = (0.5, 30.0, 60.0, 300.0)
#: Why nothing can be told of a hold that is too short for the meter.
NO_WHOLE_SLOT = "no reading lies wholly within the time that the limit was to be held"


@dataclass(frozen=True)
class Compliance:
    """How many windows of one length had a mean within the limit. A window that was not measured is not within.

    ``reason`` says why there is no figure (the meter is too coarse, nothing was to be held); then all counts are 0.
    ``unjudged_s``: seconds of the holds in slots that reach beyond them, which no window counts; ``unjudged_holds``: holds of
    which those are more than a half.
    """

    window_s: float
    windows: int = 0
    measured: int = 0
    within: int = 0
    worst_excess_w: float | None = None
    reason: str | None = None
    unjudged_s: float = 0.0
    unjudged_holds: int = 0

    @property
    def share(self) -> float | None:
        """Windows within the limit as a share of all windows; None without any."""
        return self.within / self.windows if self.windows else None


def compliance(
    metered: MeteredSeries,
    baseline: MeteredSeries | None,
    owed: Sequence[Held],
    window_s: float,
    tolerance_w: float = 0.0,
    min_coverage: float = MIN_COVERAGE,
) -> Compliance:
    """The windows of each hold, judged by their means; ``tolerance_w`` is how much a mean may lie above and still count."""
    if metered.step_s > window_s + 1e-9:
        return Compliance(window_s, reason=f"the meter's slots of {metered.step_s:g} s are too coarse to tell")
    excess = [np.zeros(0)]
    unjudged_s, unjudged = 0.0, 0
    for one in owed:
        over = _excess(metered, baseline, one)
        if over is None:
            return Compliance(window_s, reason="there is no limit, and no baseline to tell one by")
        start, end = over.whole_slots(one.hold_at, one.end)
        excess.append(windows(over, start, end, window_s, min_coverage)[0])
        judged_s = (end - start).total_seconds()
        left_s = (one.end - one.hold_at).total_seconds() - judged_s
        unjudged_s, unjudged = unjudged_s + left_s, unjudged + (left_s > judged_s)
    every = np.concatenate(excess)
    if not every.size:
        why = NO_WHOLE_SLOT if unjudged_s > 0 else "no time was left after the ramps to judge"
        return Compliance(window_s, reason=why, unjudged_s=unjudged_s, unjudged_holds=unjudged)
    known = every[~np.isnan(every)]
    worst = float(max(0.0, known.max())) if known.size else None
    slack = tolerance_w + 1e-6
    within = int((known <= slack).sum())
    return Compliance(window_s, int(every.size), int(known.size), within, worst, None, unjudged_s, unjudged)


def _excess(metered: MeteredSeries, baseline: MeteredSeries | None, one: Held) -> MeteredSeries | None:
    """The meter less the target (W), where the power is known and not only the energy of a longer stretch."""
    most = target(one, metered, baseline)
    return None if most is None else difference(metered, most).sharp()


@dataclass(frozen=True)
class Tracking:
    """How close the draw kept to the target while it was held. W, kWh, s; None where it cannot be told.

    ``first_s`` and ``steady_s``: seconds from the start of the first obligation to the first slot within the target, and to
    the slot from which all measured ones were. ``resolution_s`` is the meter's slot: times are no finer than it. ``nrmse``
    is relative to
    ``reference_w``. ``weakest_cut``: the smallest cut in any minute (or slot, if longer) of the hold, as a share of the
    baseline. ``coverage``: the share of the holds that all of it rests on: slots that lie wholly within them and are known.
    """

    first_s: float | None
    steady_s: float | None
    resolution_s: float
    worst_excess_w: float | None
    over_cap_kwh: float | None
    over_shed_w: float | None
    over_shed_kwh: float | None
    nrmse: float | None
    reference_w: float | None
    hold_cut: float | None
    weakest_cut: float | None
    coverage: float


def tracking(
    metered: MeteredSeries, baseline: MeteredSeries | None, owed: Sequence[Held], reference_w: float | None = None
) -> Tracking:
    """Over the holds: nRMSE = sqrt(mean((L - target)^2)) / reference; over-cap energy = sum of max(0, L - target) dt;
    over-shed the same the other way; the worst of each. The reference is given, or the mean baseline over the holds.
    """
    gaps, lengths, held_s = [np.zeros(0)], [np.zeros(0)], 0.0
    for one in owed:
        over = _excess(metered, baseline, one)
        if over is None:
            continue
        means, spans = windows(over, *over.whole_slots(one.hold_at, one.end), metered.step_s)
        gaps.append(means)
        lengths.append(spans)
        held_s += (one.end - one.hold_at).total_seconds()
    gap, length = np.concatenate(gaps), np.concatenate(lengths)
    known = ~np.isnan(gap)
    first, steady = time_to_target(metered, baseline, owed)
    reference = reference_w if reference_w is not None else _mean_over_holds(baseline, owed)
    cut, weakest = _cuts(metered, baseline, owed)
    if not known.any():
        return Tracking(first, steady, metered.step_s, None, None, None, None, None, reference, cut, weakest, 0.0)
    over_w, under_w = np.maximum(gap[known], 0.0), np.maximum(-gap[known], 0.0)
    seconds = length[known]
    rmse = float(np.sqrt((gap[known] ** 2 * seconds).sum() / seconds.sum()))
    return Tracking(
        first,
        steady,
        metered.step_s,
        float(over_w.max()),
        float((over_w * seconds).sum()) / J_PER_KWH,
        float(under_w.max()),
        float((under_w * seconds).sum()) / J_PER_KWH,
        rmse / reference if reference else None,
        reference,
        cut,
        weakest,
        float(seconds.sum() / held_s),
    )


def _mean_over_holds(baseline: MeteredSeries | None, owed: Sequence[Held]) -> float | None:
    if baseline is None:
        return None
    lengths = [(one.end - one.hold_at).total_seconds() for one in owed]
    total = summed([energy_kwh(baseline, one.hold_at, one.end) for one in owed], lengths)
    return None if total.value is None else total.value * J_PER_KWH / (sum(lengths) * total.coverage)


def _cuts(metered: MeteredSeries, baseline: MeteredSeries | None, owed: Sequence[Held]) -> tuple[float | None, float | None]:
    """Mean and smallest cut over the holds as shares of the baseline."""
    if baseline is None:
        return None, None
    step_s = max(MINUTE_S, metered.step_s)
    series = delivered_series(metered, baseline).sharp()
    spans = [series.whole_slots(one.hold_at, one.end) for one in owed]
    got = [windows(series, *one, step_s)[0] for one in spans]
    expected = [windows(baseline, *one, step_s)[0] for one in spans]
    lengths = [windows(baseline, *one, step_s)[1] for one in spans]
    if not got:
        return None, None
    r, b, s = np.concatenate(got), np.concatenate(expected), np.concatenate(lengths)
    known = ~np.isnan(r) & ~np.isnan(b) & (b > 0)
    if not known.any():
        return None, None
    return float((r * s)[known].sum() / (b * s)[known].sum()), float((r[known] / b[known]).min())


def time_to_target(
    metered: MeteredSeries, baseline: MeteredSeries | None, owed: Sequence[Held]
) -> tuple[float | None, float | None]:
    """Seconds from the start of the first obligation to the first slot at or below the target, and to the slot from which
    all known ones of that obligation are; None where that never came.
    """
    if not owed:
        return None, None
    one = owed[0]
    over = _excess(metered, baseline, one)
    if over is None:
        return None, None
    start, end = over.whole_slots(one.start, one.end)
    lead_s = (start - one.start).total_seconds()
    gap, _ = windows(over, start, end, metered.step_s)
    within = gap <= 1e-6
    if not within.any():
        return None, None
    bad = np.flatnonzero(~np.isnan(gap) & ~within)
    after = np.flatnonzero(within & (np.arange(gap.size) > (bad[-1] if bad.size else -1)))
    steady = float(lead_s + after[0] * metered.step_s) if after.size else None
    return float(lead_s + np.argmax(within) * metered.step_s), steady


@dataclass(frozen=True)
class Rise:
    """The largest rise between two means of a minute that follow each other (W), and when the second one begins."""

    rise_w: float
    at: datetime


def worst_rise(metered: MeteredSeries, start: datetime, end: datetime) -> Rise | None:
    """The steepest rise of ``[start, end)`` from one minute to the next; None for slots above a minute, or without two
    neighbours."""
    if metered.step_s > MINUTE_S:
        return None
    start, end = metered.whole_slots(start, end)
    means, _ = windows(metered.sharp(), start, end, MINUTE_S)
    rises = np.diff(means)
    if not rises.size or np.isnan(rises).all():
        return None
    k = int(np.nanargmax(rises))
    return Rise(float(rises[k]), start + timedelta(seconds=(k + 1) * MINUTE_S))
