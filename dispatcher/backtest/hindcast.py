"""What the forecaster of signals.forecasting would have said at every hour of a year, from what was known then. Pure.

It is the same method with the same constants, laid out for many origins at once: one set of regressions serves all origins of a
week that lie on the same hour, and what does not differ between weeks is computed once. Differences to a fit at each origin:
coefficients are those of the week's first origin, the scale that values are stabilised on is found every EPOCH_WEEKS, a day has
24 hours (standard time all year), a gap is filled from what lies before it only, and no quantiles are made.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from signals.forecasting.features import design, summarise
from signals.forecasting.grid import HOLD_HOURS, Floats
from signals.forecasting.model import (
    BLEND_DAYS,
    CHECK_WEEKS,
    HALF_LIVES_DAYS,
    HISTORY_DAYS,
    LEAST_DAYS,
    MODEL_DAYS,
    SHARPNESS,
)
from signals.forecasting.ridge import ODDER, PENALTY, priors
from signals.forecasting.transform import Transform, transform_of

#: Changes when the same history would give other forecasts, so that kept ones are made anew.
VERSION = 2
#: An epoch is at most so long, and no longer than half of the history at its start.
EPOCH_WEEKS = 14
#: Days that a row needs behind it before anything is learned from it, and days of rows that are learned from.
_WARM_DAYS = 28
_LEARNED_DAYS = HISTORY_DAYS - _WARM_DAYS


def hindcast(
    values: Floats,
    first: int,
    last: int,
    *,
    days: int = 4,
    positive: bool,
    wall_hour: int = 0,
) -> Floats:
    """Forecasts ``(last - first, 24 * days)`` from hourly ``values`` (NaN unknown): row ``k`` is made at hour ``first + k``
    from values before it, and says what that hour and the following ones will be. NaN where there is too little history.

    ``positive`` is for what cannot be zero or less. ``wall_hour`` is the hour of the week (0: Monday, midnight) of
    ``values[0]`` where people keep their calendar.
    """
    out = np.full((last - first, 24 * days), np.nan)
    known = np.flatnonzero(np.isfinite(values))
    if not len(known) or last <= first:
        return out
    begun = int(known[0])
    held = _held(values[begun:])
    seen = np.isfinite(values[begun:])
    for origin, weeks in _epochs(first - begun, last - begun):
        past = held[max(origin - 24 * HISTORY_DAYS, 0) : max(origin, 24 * LEAST_DAYS)]
        transform = transform_of(past, positive)
        with np.errstate(divide="ignore", invalid="ignore"):  # the logarithm of a zero is held at the scale's limit
            z = transform.forward(np.maximum(held, 1e-12) if transform.log else held)
        for phase in range(24):
            _one_phase(z, held, seen, origin + phase, weeks, first - begun, out, days, positive, wall_hour + begun, transform)
    return out


def _epochs(first: int, last: int) -> list[tuple[int, int]]:
    """Hours that epochs begin at, counted from the first that is known, and their weeks."""
    out = []
    while first < last:
        weeks = min(max(first // (2 * 168), 1), EPOCH_WEEKS, -(-(last - first) // 168))
        out.append((first, weeks))
        first += 168 * weeks
    return out


def _held(values: Floats) -> Floats:
    """Gaps filled from what lies before them: held for HOLD_HOURS, then the same hour of the day before."""
    out = values.copy()
    gap = 0
    for index in np.flatnonzero(~np.isfinite(out)).tolist():
        gap = gap + 1 if index and not np.isfinite(values[index - 1]) else 1
        out[index] = out[index - 24] if gap > HOLD_HOURS and index >= 24 else out[index - 1]
    return out


def _one_phase(
    z: Floats,
    held: Floats,
    seen: NDArray[np.bool_],
    origin: int,
    weeks: int,
    first: int,
    out: Floats,
    days: int,
    positive: bool,
    wall_hour: int,
    transform: Transform,
) -> None:
    """Forecasts from the origins ``origin + 24 * k`` of ``weeks`` weeks, written to ``out``; hours count from the first
    known."""
    row = max(origin // 24, 0)  # complete blocks before the first origin
    phase = origin % 24
    low = max(row - HISTORY_DAYS - 7 * CHECK_WEEKS, 0)
    begin = phase + 24 * low
    count = max((min(len(z), origin + 168 * weeks) - begin) // 24, 0)
    blocks, told = z[begin : begin + 24 * count].reshape(-1, 24), seen[begin : begin + 24 * count].reshape(-1, 24)
    rows = origin // 24 + np.arange(7 * weeks)
    values = np.full((7 * weeks, 24 * days), np.nan)
    for k, at in enumerate(rows.tolist()):
        if LEAST_DAYS <= at < MODEL_DAYS + 7 and phase + 24 * at <= len(held):
            values[k] = _naive(held[phase : phase + 24 * at].reshape(-1, 24), days)
    cuts = [int(at) - low for at in rows[::7] if MODEL_DAYS <= at <= low + count]
    if cuts:
        half_lives_days = HALF_LIVES_DAYS["carbon" if positive else "price"]
        made = transform.back(_regressed(blocks, told, cuts, low, wall_hour + begin, days, half_lives_days))
        at = int(cuts[0] + low - rows[0])
        values[at : at + len(made)] = made
    index = origin - first + 24 * np.arange(7 * weeks)
    good = (index >= 0) & (index < len(out)) & (rows >= 0) & (rows <= low + count)
    out[index[good]] = values[good]


def _naive(blocks: Floats, days: int) -> Floats:
    """The last day, blended with the mean of a week once there is one: what is said on short histories."""
    mean, last = blocks[-7:].mean(axis=0), blocks[-1]
    share = [0.5 ** (day + 1) if len(blocks) >= BLEND_DAYS else 1.0 for day in range(days)]
    return np.concatenate([weight * last + (1 - weight) * mean for weight in share])


@dataclass(frozen=True)
class _Cuts:
    """Where coefficients are found: ``every`` in rows, a week apart; the last ``used`` of them are forecast with, those before
    are for weighing experts. Groups of rows end at ``groups``, ``first`` is the first row that is learned from."""

    every: NDArray[np.int64]
    used: int
    groups: NDArray[np.int64]
    first: int


def _cuts(cuts: list[int], low: int) -> _Cuts:
    first = _WARM_DAYS if low else max(7, min(_WARM_DAYS, cuts[0] // 3))
    checks = max(min(CHECK_WEEKS, (cuts[0] - first - 14) // 7), 1)
    every = np.array([cuts[0] - 7 * week for week in range(checks, 0, -1)] + cuts)
    back = max(-(-(int(every[0]) - first) // 7), 1)
    groups = np.concatenate([every[0] - 7 * np.arange(back - 1, 0, -1), every])
    return _Cuts(every, len(cuts), groups, first)


def _regressed(
    blocks: Floats,
    seen: NDArray[np.bool_],
    rows: list[int],
    low: int,
    first_wall_hour: int,
    days: int,
    half_lives_days: tuple[float, ...],
) -> Floats:
    """The point forecast (7 * cuts, 24 * days) on the transformed scale for the rows of each week that begins at a cut."""
    cuts = _cuts(rows, low)
    past = summarise(blocks)
    out = np.empty((7 * cuts.used, 24 * days))
    for horizon in range(1, days + 1):
        this = design(blocks, past, horizon, first_wall_hour)
        ahead = np.full((len(blocks) + 1, 24), np.nan)
        ahead[: max(len(blocks) + 1 - horizon, 0)] = blocks[horizon - 1 :]
        told = np.zeros((len(blocks) + 1, 24), dtype=bool)
        told[: max(len(blocks) + 1 - horizon, 0)] = seen[horizon - 1 :]
        targets = np.where(told, ahead, this.base) - this.base
        ends = cuts.groups - horizon + 1
        begin, end = int(ends[0]) - 7, int(ends[-1])
        learn = _piece(this.rows, begin, end, cuts.first)
        target, weight = _piece(targets, begin, end, cuts.first), _piece(told.astype(np.float64), begin, end, cuts.first)
        apply = _piece(this.rows, int(cuts.every[0]), int(cuts.every[-1]) + 7, 0).reshape(-1, 7, 24, learn.shape[2])
        apply = _bounded(apply, learn, cuts, valid=np.arange(begin, end) >= cuts.first)
        base = _piece(this.base, int(cuts.every[0]), int(cuts.every[-1]) + 7, 0)
        found = [_experts(learn, target, weight, apply, cuts, horizon, half_life) for half_life in half_lives_days]
        made = base[:, :, None] + np.concatenate(found, axis=-1)
        actual = _piece(np.where(told, ahead, np.nan), int(cuts.every[0]), int(cuts.every[-1]) + 7, 0, fill=np.nan)
        missed = np.abs(actual[:, :, None] - made)
        checks = len(cuts.every) - cuts.used
        for k in range(cuts.used):
            # of the weeks before the cut, the rows whose target had come to pass
            recent = missed[7 * max(checks + k - CHECK_WEEKS, 0) : 7 * (checks + k) + 1 - horizon]
            known = np.isfinite(recent).any()
            worst = np.nanmean(recent, axis=(0, 1)) if known else np.ones(made.shape[2])
            relative = worst / max(float(worst.mean()), 1e-12)
            share = np.exp(-SHARPNESS * (relative - relative.min()))
            week = slice(7 * (checks + k), 7 * (checks + k) + 7)
            out[7 * k : 7 * k + 7, 24 * (horizon - 1) : 24 * horizon] = made[week] @ (share / share.sum())
    return out


def _piece(values: Floats, begin: int, end: int, first: int, fill: float = 0.0) -> Floats:
    """Rows ``[begin, end)``; ``fill`` for those before ``first`` and outside of ``values``."""
    out = np.full((end - begin, *values.shape[1:]), fill)
    left, right = max(begin, first, 0), min(end, len(values))
    if right > left:
        out[left - begin : right - begin] = values[left:right]
    return out


def _bounded(apply: Floats, learn: Floats, cuts: _Cuts, valid: NDArray[np.bool_]) -> Floats:
    """Regressors no odder than what was learned from by ODDER of its range: nothing is known of what such ones would do."""
    grouped = learn.reshape(len(cuts.groups), 7, *learn.shape[1:])
    inside = valid.reshape(-1, 7)[:, :, None, None]
    lowest = np.where(inside, grouped, np.inf).min(axis=1)
    highest = np.where(inside, grouped, -np.inf).max(axis=1)
    offset = len(cuts.groups) - len(cuts.every)
    out = np.empty_like(apply)
    for k in range(len(cuts.every)):
        window = slice(max(offset + k + 1 - _LEARNED_DAYS // 7, 0), offset + k + 1)
        least, most = lowest[window].min(axis=0), highest[window].max(axis=0)
        if not np.isfinite(least).all():  # nothing to learn from: the prior speaks
            out[k] = apply[k]
            continue
        room = ODDER * (most - least)
        out[k] = np.clip(apply[k], least - room, most + room)
    return out


def _experts(
    learn: Floats, target: Floats, told: Floats, apply: Floats, cuts: _Cuts, horizon: int, half_life_days: float
) -> Floats:
    """What each expert says of the deviation from the base, (rows, 24, experts), with each week's own coefficients."""
    groups, features = len(cuts.groups), learn.shape[2]
    fading = np.tile(0.5 ** ((6 + horizon - np.arange(7)) / half_life_days), groups)
    # (group, hour, feature, row): small products, one for each group and hour
    part = np.ascontiguousarray(learn.reshape(groups, 7, 24, features).transpose(0, 2, 3, 1))
    weight = (told * fading[:, None]).reshape(groups, 7, 24).transpose(0, 2, 1)[:, :, None, :]
    weighted = part * weight
    grams = weighted @ part.transpose(0, 1, 3, 2)
    moments = weighted @ target.reshape(groups, 7, 24).transpose(0, 2, 1)[..., None]
    age = cuts.every[:, None] - cuts.groups[None, :]
    share = np.where((age >= 0) & (age < _LEARNED_DAYS), 0.5 ** (np.maximum(age, 0) / half_life_days), 0.0)
    gram = (share @ grams.reshape(groups, -1)).reshape(-1, 24, features, features)
    moment = (share @ moments.reshape(groups, -1)).reshape(-1, 24, features, 1)
    prior = priors(features, horizon)
    right = moment - gram @ prior
    index = np.arange(features)
    gram[..., index, index] += PENALTY[horizon - 1] * gram[..., index, index] + 1e-6
    coefficients = prior + np.linalg.solve(gram, right)
    return (apply.transpose(0, 2, 1, 3) @ coefficients).transpose(0, 2, 1, 3).reshape(-1, 24, coefficients.shape[-1])
