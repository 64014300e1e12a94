"""A forecast of one series with its 10, 50 and 90 % quantiles: fitted on the past, checked on the recent past, laid on slots.

Per hour of the day and day ahead, ridge regressions on a variance-stabilised scale, each shrunk towards one of four simple
forecasts, averaged by how well each did lately. The bands are the errors that the same method made over the last eight weeks,
each week with coefficients that knew nothing of it. It knows nothing of feeds or of what is being forecast.

Form and constants (regressors, PENALTY, SLOW_DAYS, HALF_LIVES_DAYS, SHARPNESS, TAIL) were chosen on the earliest part of open
data: hourly carbon intensity of six US balancing areas, January to June 2022, and the first year of four day-ahead markets.
Nothing in them was set on later data; coefficients, weights and bands are learned anew from the given history at each fit.
The idea of stabilised, regularised regressions per hour is that of Lago et al., Applied Energy 293 (2021) 116983.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
from numpy.typing import NDArray

from signals.forecasting.features import Design, companion, design, exogenous, summarise
from signals.forecasting.grid import HOLD_HOURS, HOUR_S, Floats, History, filled, on_wall_clock, wall_hours
from signals.forecasting.ridge import experts
from signals.forecasting.transform import transform_of
from signals.points import SignalError, require_utc

QUANTILES = (0.1, 0.5, 0.9)
MAX_DAYS = 7
#: Below this nothing is said; below MODEL_DAYS a naive forecast is given, and called so.
LEAST_DAYS, BLEND_DAYS, MODEL_DAYS = 2, 7, 28
#: What the regression looks back on, and after how long a day counts half; one regression for each, then averaged.
HISTORY_DAYS = 392
HALF_LIVES_DAYS = {"carbon": (40.0, 200.0), "price": (364.0,)}
#: Weeks of the recent past on which experts are weighed and bands measured.
CHECK_WEEKS = 8
#: How strongly an expert's recent error moves its weight.
SHARPNESS = 30.0
#: The share of recent errors left outside a band on each side; less than 0.1, as the future is always a little stranger.
TAIL = 0.09
#: Hours on each side whose errors are pooled with an hour's own.
NEIGHBOURS = 2
#: How far a companion may lag behind the series and still be used.
LATE_HOURS = 24
#: Days over which the pattern of quarters within an hour is averaged.
SHAPE_DAYS = 28


@dataclass(frozen=True)
class Forecast:
    """``slots`` of ``slot_s`` seconds from ``start``; NaN where nothing is known or the horizon ends.

    ``point`` is the forecast, near the median; ``quantiles[i]`` belongs to ``QUANTILES[i]`` and never crosses another.
    ``basis`` is "model", "repeat-day", "blend" or "unknown"; ``reason`` says it in a sentence.
    """

    start: datetime
    slot_s: int
    point: Floats
    quantiles: Floats
    basis: str
    reason: str


@dataclass(frozen=True)
class Model:
    """What a fit found: the forecast by wall-clock hour from the end of the history on, in the unit of the series.

    ``table[q, hour]`` with the point first, then QUANTILES; ``shape[hour of day, step]`` is added to the hour's value where the
    history is finer than an hour.
    """

    origin: datetime
    zone: str
    first_wall_hour: int
    table: Floats
    shape: Floats
    basis: str
    reason: str

    def predict(self, start: datetime, slots: int, slot_s: int) -> Forecast:
        """Means over slots. A slot that begins before the origin or ends beyond the last day is NaN."""
        start = require_utc("start", start)
        if slots < 0 or slot_s <= 0:
            raise SignalError(f"slots: {slots} of {slot_s} s; need a positive length and a count that is not negative")
        zone = ZoneInfo(self.zone)
        hour0 = self.origin.replace(minute=0, second=0, microsecond=0)
        edges = (start - hour0).total_seconds() + slot_s * np.arange(slots + 1, dtype=np.float64)
        hours = self.table.shape[1]
        walls = np.maximum(wall_hours(hour0, hours, zone) - self.first_wall_hour, 0)
        usable = walls < hours  # where clocks go forward the table ends an hour early
        values = np.where(usable, self.table[:, np.minimum(walls, hours - 1)], np.nan)
        of_day = (walls + self.first_wall_hour) % 24
        steps = (values[:, :, None] + self.shape[of_day][None]).reshape(len(values), -1)
        means = _means(steps, HOUR_S / self.shape.shape[1], edges)
        means[:, edges[:-1] < (self.origin - hour0).total_seconds()] = np.nan
        # sums round: a band of no width must not cross its own middle by the last bit
        quantiles = np.stack([np.minimum(means[1], means[0]), means[0], np.maximum(means[3], means[0])])
        return Forecast(start, slot_s, means[0], quantiles, self.basis, self.reason)


def fit(
    history: History,
    origin: datetime,
    *,
    zone: str = "UTC",
    positive: bool = False,
    exogenous_series: tuple[History, ...] = (),
    companions: tuple[History, ...] = (),
    days: int = MAX_DAYS,
) -> Model:
    """A model of what follows ``origin``, the end of what is known (for a day-ahead price, the end of the last published day).

    Values at or after ``origin`` are ignored, so they cannot leak in. ``zone`` is the calendar people and markets keep there.
    ``positive`` is for what cannot be zero or less, such as carbon intensity. ``exogenous_series`` are forecasts of load or
    renewables as they were known then, in the past and past ``origin``; one that does not reach a day is not used for it.
    ``companions`` are known for the past only, such as the shares of generation by fuel; they too are cut at ``origin``.
    ``days`` (1-7) is how far to look. Raises SignalError for an unknown zone, a naive time or days out of range.
    """
    origin = require_utc("origin", origin)
    if not 1 <= days <= MAX_DAYS:
        raise SignalError(f"days: {days}; need 1 to {MAX_DAYS}")
    try:
        tz = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise SignalError(f"zone: {zone!r} is not a time zone; give a name such as Europe/Berlin") from error
    known = _trimmed(history.before(origin))
    first, hourly = on_wall_clock(known, tz)
    origin = known.start + timedelta(seconds=known.step_s * len(known.values)) if len(known.values) else origin
    empty = Model(origin, zone, 0, np.full((1 + len(QUANTILES), 24 * days), np.nan), np.zeros((24, 1)), "unknown", "")
    if np.isfinite(hourly).sum() < 24 * LEAST_DAYS:
        hours = int(np.isfinite(hourly).sum())
        return replace(empty, reason=f"unknown: {hours} hours of history, {24 * LEAST_DAYS} needed")
    begun = int(np.argmax(np.isfinite(hourly)))
    count = min((len(hourly) - begun) // 24, HISTORY_DAYS)
    kept = hourly[len(hourly) - 24 * count :]
    transform = transform_of(kept[np.isfinite(kept)], positive)
    blocks = transform.forward(filled(kept)).reshape(-1, 24)
    seen = np.isfinite(kept).reshape(-1, 24)
    last = first + len(hourly)
    share = float(seen.mean())
    if count >= MODEL_DAYS and share >= 0.5:
        outside = [_aligned(series, tz, last - 24 * count, count + days) for series in exogenous_series]
        beside = [_aligned(series.before(origin), tz, last - 24 * count, count, LATE_HOURS) for series in companions]
        half_lives_days = HALF_LIVES_DAYS["carbon" if positive else "price"]
        point, errors = _regress(blocks, seen, last - 24 * count, days, outside, beside, half_lives_days)
        basis, reason = "model", f"model of {count} days of history"
    else:
        point, errors = _naive(blocks, seen, days)
        basis = "repeat-day" if count < BLEND_DAYS else "blend"
        words = {"repeat-day": "repeat-day", "blend": "blend of the last day and the 7-day mean"}
        gap = "" if share >= 0.5 else f", {share:.0%} of it known"
        reason = f"history of {count} days{gap}: {words[basis]}"
    z = np.concatenate([point[None], _bands(point, errors)])
    table = transform.back(z).reshape(len(z), -1)
    return replace(empty, first_wall_hour=last, table=table, shape=_shape(known, tz), basis=basis, reason=reason)


def _regress(
    blocks: Floats,
    seen: NDArray[np.bool_],
    first_wall_hour: int,
    days: int,
    outside: list[Floats],
    beside: list[Floats],
    half_lives_days: tuple[float, ...],
) -> tuple[Floats, list[Floats]]:
    """The point forecast (days, 24) on the transformed scale, and for each day ahead the recent errors (origins, 24)."""
    count = len(blocks)
    past = summarise(blocks)
    first_row = max(7, min(28, count // 3))
    # the oldest week that is checked still has two weeks of rows to learn from
    weeks = min(CHECK_WEEKS, (count - first_row - 2 * 7) // 7)
    cutoffs = [count - 7 * week for week in range(max(weeks, 1), 0, -1)] + [count]
    age = np.arange(count, -1, -1)
    # a companion that is not known throughout is not used
    level = [companion(series) for series in beside if np.isfinite(series).all()]
    points, errors = [], []
    for horizon in range(1, days + 1):
        extras = [x for series in outside if (x := exogenous(series[: count + horizon], horizon)) is not None]
        extra = np.concatenate(extras, axis=-1) if extras else None
        this = design(blocks, past, horizon, first_wall_hour, extra)
        ahead = np.full((count + 1, 24), np.nan)
        ahead[: count + 1 - horizon] = blocks[horizon - 1 :]
        told = np.zeros((count + 1, 24), dtype=bool)
        told[: count + 1 - horizon] = seen[horizon - 1 :]
        targets = np.where(told, ahead, this.base) - this.base
        designs = [this]
        if level:  # with and without: what the companions add is not worth its noise everywhere
            designs.append(Design(np.concatenate([this.rows, *level], axis=-1), this.base))
        found = [
            np.concatenate(experts(one, targets, told * 0.5 ** (age / half_life)[:, None], horizon, cutoffs, first_row))
            for one in designs
            for half_life in half_lives_days
        ]
        forecasts = np.concatenate(found, axis=-1)
        missed = np.where(told, ahead, np.nan)[cutoffs[0] :, :, None] - forecasts
        checked = missed[: len(missed) - horizon]
        worst = np.nanmean(np.abs(checked), axis=(0, 1)) if np.isfinite(checked).any() else np.ones(forecasts.shape[2])
        relative = worst / max(float(worst.mean()), 1e-12)
        weight = np.exp(-SHARPNESS * (relative - relative.min()))
        weight /= weight.sum()
        points.append(forecasts[-1] @ weight)
        errors.append(checked @ weight)
    return np.array(points), errors


def _naive(blocks: Floats, seen: NDArray[np.bool_], days: int) -> tuple[Floats, list[Floats]]:
    """Repeat the last day, or blend it with the 7-day mean once there are seven; errors as the same rule made them before."""
    count = len(blocks)
    mean = blocks[-7:].mean(axis=0)
    points: list[Floats] = []
    errors: list[Floats] = []
    for horizon in range(1, days + 1):
        weight = 0.5**horizon if count >= BLEND_DAYS else 1.0
        points.append(weight * blocks[-1] + (1 - weight) * mean)
        made = []
        for row in range(1, count - horizon + 1):
            before = weight * blocks[row - 1] + (1 - weight) * blocks[max(row - 7, 0) : row].mean(axis=0)
            made.append(np.where(seen[row + horizon - 1], blocks[row + horizon - 1] - before, np.nan))
        errors.append(np.array(made) if made else errors[-1] if errors else np.zeros((1, 24)))
    return np.array(points), errors


def _bands(point: Floats, errors: list[Floats]) -> Floats:
    """Quantiles (quantile, days, 24) of the forecast from errors of the same day ahead and about the same hour."""
    out = np.empty((len(QUANTILES), *point.shape))
    for day, made in enumerate(errors):
        if len(made) < 7:  # too few for each hour apart
            pooled = np.broadcast_to(made.reshape(-1, 1), (made.size, 24))
        else:
            near = [np.clip(np.arange(24) + shift, 0, 23) for shift in range(-NEIGHBOURS, NEIGHBOURS + 1)]
            pooled = np.concatenate([made[:, hours] for hours in near])
        whole = bool(np.isfinite(pooled).all())
        if not whole and not np.isfinite(pooled).any(axis=0).all():
            pooled, whole = np.nan_to_num(pooled), True
        low, high = (np.quantile if whole else np.nanquantile)(pooled, (TAIL, 1 - TAIL), axis=0)
        out[:, day] = point[day] + np.stack([np.minimum(low, 0), np.zeros(24), np.maximum(high, 0)])
    return out


def _trimmed(history: History) -> History:
    """Without a long unknown end: what is to be forecast then begins where knowledge ends; a short one is held."""
    finite = np.flatnonzero(np.isfinite(history.values))
    end = int(finite[-1]) + 1 if len(finite) else 0
    trailing_s = (len(history.values) - end) * history.step_s
    return history if trailing_s <= HOLD_HOURS * HOUR_S else History(history.start, history.step_s, history.values[:end])


def _aligned(series: History, zone: ZoneInfo, first_wall_hour: int, days: int, late_hours: int = 0) -> Floats:
    """An outside series (days, 24) on the blocks of the history and beyond it; unknown after its end.

    Up to ``late_hours`` after its end are filled like a gap, as some feeds lag behind others.
    """
    first, hourly = on_wall_clock(series, zone)
    out = np.full(24 * days, np.nan)
    begin, end = max(first, first_wall_hour), min(first + len(hourly), first_wall_hour + 24 * days)
    if end > begin:
        out[begin - first_wall_hour : end - first_wall_hour] = hourly[begin - first : end - first]
    reach = int(np.flatnonzero(np.isfinite(out))[-1]) + 1 if np.isfinite(out).any() else 0
    reach = min(reach + late_hours, len(out)) if reach else 0
    out[:reach] = filled(out[:reach])  # gaps inside are filled; what lies beyond its end stays unknown
    spread = float(np.nanstd(out)) if reach else 0.0
    result: Floats = (out / (spread if spread > 1e-9 else 1.0)).reshape(-1, 24)
    return result


def _shape(history: History, zone: ZoneInfo) -> Floats:
    """(hour of day, step): by how much the steps of an hour lie above or below its mean, averaged over the last weeks."""
    per_hour = HOUR_S // history.step_s
    hours = min(len(history.values) // per_hour, 24 * SHAPE_DAYS)
    out = np.zeros((24, per_hour))
    if per_hour == 1 or not hours:
        return out
    whole = len(history.values) // per_hour
    parts = history.values[: whole * per_hour].reshape(-1, per_hour)[whole - hours :]
    of_day = wall_hours(history.start + timedelta(hours=whole - hours), hours, zone) % 24
    complete = np.isfinite(parts).all(axis=1)
    deviation = parts[complete] - parts[complete].mean(axis=1, keepdims=True)
    counts = np.bincount(of_day[complete], minlength=24)
    np.add.at(out, of_day[complete], deviation)
    result: Floats = out / np.maximum(counts, 1)[:, None]
    return result


def _means(steps: Floats, step_s: float, edges: Floats) -> Floats:
    """Time-weighted means between ``edges`` (seconds from the first step) of each row of ``steps``; NaN where not covered."""
    ends = step_s * np.arange(steps.shape[1] + 1)
    inside = (edges[:-1] >= 0) & (edges[1:] <= ends[-1])
    out = np.full((len(steps), len(edges) - 1), np.nan)
    for row, values in enumerate(steps):
        known = np.isfinite(values)
        total = np.interp(edges, ends, np.concatenate(([0.0], np.cumsum(np.where(known, values, 0.0) * step_s))))
        covered = np.interp(edges, ends, np.concatenate(([0.0], np.cumsum(known * step_s))))
        width = edges[1:] - edges[:-1]
        whole = inside & (np.diff(covered) > width - 1e-6)
        out[row, whole] = (np.diff(total) / width)[whole]
    return out
