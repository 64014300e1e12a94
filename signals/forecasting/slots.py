"""From a series' past to its forecast on a planner's slots, as one call that a worker process can be asked for. Pure."""

import math
from datetime import UTC, datetime, timedelta

import numpy as np

from signals.forecasting.grid import STEPS_S, Floats, History
from signals.forecasting.model import fit
from signals.series import Past, SlotForecast, Wanted

#: A step that is covered less than this is unknown.
_MIN_COVER = 0.5
_WEEK_S = 7 * 86400.0


def forecast(past: Past, wanted: Wanted) -> SlotForecast:
    """The forecast of what follows ``wanted.origin``. Nothing of ``past`` at or after it is used. Raises SignalError for an
    unknown zone."""
    model = fit(
        history_of(past, wanted.origin), wanted.origin, zone=wanted.zone, positive=wanted.positive, days=min(wanted.days, 7)
    )
    slot = timedelta(seconds=wanted.slot_s)
    start = wanted.origin - (wanted.origin - datetime.fromtimestamp(0, UTC)) % slot
    made = model.predict(start, wanted.days * 86400 // wanted.slot_s + 1, wanted.slot_s)

    def plain(values: Floats) -> tuple[float | None, ...]:
        return tuple(None if math.isnan(value) else value for value in values.tolist())

    return SlotForecast(
        start, wanted.slot_s, plain(made.point), plain(made.quantiles[0]), plain(made.quantiles[-1]), made.basis, made.reason
    )


def history_of(past: Past, end: datetime) -> History:
    """Time-weighted means on a regular grid up to ``end``, from the first whole hour that is known.

    The step is that of the series in its last week, an hour where that is longer or irregular. Where values overlap, as around
    a change of resolution, they are averaged by their length.
    """
    starts, ends, values = (np.asarray(each, dtype=np.float64) for each in (past.starts_s, past.ends_s, past.values))
    limit = end.timestamp()
    kept = (starts < limit) & (ends > starts)
    starts, ends, values = starts[kept], np.minimum(ends[kept], limit), values[kept]
    if not len(starts):
        return History(end.replace(minute=0, second=0, microsecond=0), STEPS_S[-1], np.empty(0))
    recent = ends > ends.max() - _WEEK_S
    shortest = max(float((ends - starts)[recent].min()), STEPS_S[0])
    step_s = next((step for step in STEPS_S if step >= shortest), STEPS_S[-1])
    origin_s = float(starts.min() // 3600 * 3600)
    count = int(-(-(limit - origin_s) // step_s))
    sums, cover = np.zeros(count), np.zeros(count)
    first = ((starts - origin_s) // step_s).astype(np.int64)
    last = (-(-(ends - origin_s) // step_s)).astype(np.int64)
    for ahead in range(int((last - first).max())):
        index = first + ahead
        here = index < last
        left = np.maximum(starts[here], origin_s + index[here] * step_s)
        right = np.minimum(ends[here], origin_s + (index[here] + 1) * step_s)
        np.add.at(sums, index[here], values[here] * (right - left))
        np.add.at(cover, index[here], right - left)
    means = np.where(cover >= _MIN_COVER * step_s, sums / np.maximum(cover, 1e-9), np.nan)
    return History(datetime.fromtimestamp(origin_s, UTC), step_s, means)
