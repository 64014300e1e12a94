"""What is known at the end of a day about the days after it: the regressors of each horizon, in the transformed series.

A block is 24 wall-clock hours that end where the history ends, so that "the last day" is always complete. Row ``b`` of a
design knows blocks before ``b`` only; the target of horizon ``h`` is block ``b + h - 1``.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from signals.forecasting.grid import Floats

#: Time constant of the slow mean, days: longer than weather lasts, shorter than a season.
SLOW_DAYS = 12.0
OWN_LAST, OWN_SLOW = 0, 5  # positions that the experts' priors name


@dataclass(frozen=True)
class Design:
    """``rows[b, hour, feature]`` for b = 0..blocks (the last is the forecast's own), ``base[b, hour]`` the 7-day mean."""

    rows: Floats
    base: Floats


@dataclass(frozen=True)
class Past:
    """Summaries of the blocks before each row, shape (blocks + 1, 24) each; shared by all horizons."""

    last: Floats
    second: Floats
    third: Floats
    week: Floats
    month: Floats
    slow: Floats


def summarise(blocks: Floats) -> Past:
    """Lags and running means of ``blocks`` (days, 24); the first rows, which have nothing behind them, are NaN."""
    return Past(
        lagged(blocks, 1), lagged(blocks, 2), lagged(blocks, 3), mean_of(blocks, 7), mean_of(blocks, 28), slow_mean(blocks)
    )


def lagged(blocks: Floats, days: int) -> Floats:
    """Row b: the block ``days`` before block b."""
    out = np.full((len(blocks) + 1, 24), np.nan)
    out[days:] = blocks[: max(len(blocks) + 1 - days, 0)]
    return out


def mean_of(blocks: Floats, days: int) -> Floats:
    """Row b: the mean of the ``days`` blocks before b, or of as many as there are."""
    sums = np.vstack([np.zeros((1, 24)), np.cumsum(blocks, axis=0)])
    ends = np.arange(len(blocks) + 1)
    begins = np.maximum(ends - days, 0)
    out: Floats = (sums[ends] - sums[begins]) / np.maximum(ends - begins, 1)[:, None]
    out[0] = np.nan
    return out


def slow_mean(blocks: Floats) -> Floats:
    """Row b: the mean of the blocks before b, each weighing less the longer ago it was."""
    keep = float(np.exp(-1 / SLOW_DAYS))
    out = np.full((len(blocks) + 1, 24), np.nan)
    total, weight = np.zeros(24), 0.0
    for index, block in enumerate(blocks):
        total, weight = keep * total + block, keep * weight + 1
        out[index + 1] = total / weight
    return out


def design(blocks: Floats, past: Past, horizon: int, first_wall_hour: int, extra: Floats | None = None) -> Design:
    """The regressors of ``horizon`` (days ahead, from 1).

    Own hour and day level of the last three days, the same weekday, four weeks and the slow mean, against the 7-day mean;
    parts of the last day, latest hours first; its range; the kind of day. ``extra`` (blocks + 1, 24, n) is appended as it is.
    """
    base = past.week
    same_weekday = lagged(blocks, 7 * ((horizon + 6) // 7) - horizon + 1)
    own = [x - base for x in (past.last, past.second, past.third, same_weekday, past.month, past.slow)]
    level = [x.mean(axis=1) for x in (own[0], own[1], own[2], own[4], own[5])]
    parts = [own[0][:, a:b].mean(axis=1) for a, b in ((23, 24), (22, 23), (20, 24), (12, 18), (6, 12), (0, 6))]
    span = [past.last.max(axis=1) - base.max(axis=1), past.last.min(axis=1) - base.min(axis=1)]
    shared = np.stack([*level, *parts, *span], axis=-1)
    hours = first_wall_hour + 24 * np.arange(len(base))[:, None] + np.arange(24)
    target_day = weekday(hours + 24 * (horizon - 1))
    kind = [(target_day == day).astype(np.float64) for day in range(7)]
    kind.append((weekday(hours - 24) >= 5).astype(np.float64))
    pieces = [
        np.stack(own, axis=-1),
        np.broadcast_to(shared[:, None, :], (len(base), 24, shared.shape[1])),
        np.stack(kind, axis=-1),
    ]
    return Design(np.concatenate([*pieces, *([] if extra is None else [extra])], axis=-1), base)


def weekday(wall_hours: NDArray[np.int64]) -> NDArray[np.int64]:
    """0 = Monday; wall-clock hours are counted from a Monday."""
    out: NDArray[np.int64] = wall_hours // 24 % 7
    return out


def companion(blocks: Floats) -> Floats:
    """Regressors of a series known for the past only, on the same ``blocks``: where its level stands, how the last day ended.

    What makes an intensity high matters for how long it stays so: wind comes back in days, a reactor in weeks.
    """
    week = mean_of(blocks, 7)
    recent = lagged(blocks, 1) - week
    levels = (recent.mean(axis=1), (mean_of(blocks, 28) - week).mean(axis=1), recent[:, 20:].mean(axis=1))
    return np.broadcast_to(np.stack(levels, axis=-1)[:, None, :], (len(blocks) + 1, 24, len(levels)))


def exogenous(blocks: Floats, horizon: int) -> Floats | None:
    """Regressors of one outside series whose ``blocks`` reach ``horizon`` or more days past the history; None when they do not.

    The value at the target's own hour, that day's level, and the last day's own hour, each against the 7 days before.
    """
    rows = len(blocks) - horizon + 1  # the last of them is the forecast's own row
    ahead = blocks[horizon - 1 :]
    if not np.isfinite(ahead[-1]).all():
        return None
    base, last = mean_of(blocks, 7)[:rows], lagged(blocks, 1)[:rows]
    now = ahead - base
    level = np.broadcast_to(now.mean(axis=1, keepdims=True), now.shape)
    return np.stack([now, level, last - base], axis=-1)
