"""How far the forecaster lay off, and truth with errors of that kind. Pure.

A forecast's errors grow with the time ahead, go on from hour to hour, and hardly change from one forecast to the next; errors
drawn anew for each value would be unrealistically easy to plan with.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from dispatcher.backtest.scenario import Floats, SignalTable
from dispatcher.errors import BadInput

#: Forecasts are kept in half the room: their seventh digit means nothing.
Rows = NDArray[np.float32]
HOUR_S = 3600


@dataclass(frozen=True)
class Hindcasts:
    """Forecasts of one signal: ``rows[k]`` was made at ``start`` + k hours and begins with that hour. NaN: nothing is said."""

    start: datetime
    rows: Rows


def whole_hour(at: datetime) -> datetime:
    """The start of the hour."""
    return at.replace(minute=0, second=0, microsecond=0)


def hourly(table: SignalTable, what: str) -> tuple[datetime, Floats]:
    """Means over whole hours and the first hour's start; NaN where less than half of an hour is known."""
    values: Floats = getattr(table, what)
    start = whole_hour(table.start)
    per_hour = HOUR_S // table.slot_s
    if per_hour == 1 and start == table.start:
        return start, values
    lead = (table.start - start) // timedelta(seconds=table.slot_s)
    padded = np.full(-(-(lead + len(values)) // per_hour) * per_hour, np.nan)
    padded[lead : lead + len(values)] = values
    parts = padded.reshape(-1, per_hour)
    known = np.isfinite(parts).sum(axis=1)
    sums = np.where(np.isfinite(parts), parts, 0.0).sum(axis=1)
    return start, np.where(2 * known >= per_hour, sums / np.maximum(known, 1), np.nan)


@dataclass(frozen=True)
class ErrorModel:
    """How far forecasts lie off: ``spread[k]`` is the standard deviation of the error ``k`` hours ahead (0: the hour under
    way), relative to the value (``relative``) or to ``level``, the mean absolute value. Errors of neighbouring hours correlate
    by ``along``, those of one hour forecast in consecutive hours by ``between``."""

    relative: bool
    level: float
    spread: Floats
    along: float
    between: float

    def sentence(self, label: str) -> str:
        """How large it is, for a report."""
        ahead = [k for k in (0, 23, len(self.spread) - 1) if k < len(self.spread)]
        sizes = ", ".join(f"{self.spread[k]:.1%} {k} h ahead" for k in ahead)
        base = "the value" if self.relative else f"{self.level:.4g}"
        return (
            f"Noise on the {label}: standard deviation {sizes} (of {base}), correlation {self.along:.2f} from hour to hour and "
            f"{self.between:.3f} from one forecast to the next, as the forecaster's own errors on these data."
        )


def error_model(table: SignalTable, what: str, made: Hindcasts) -> ErrorModel:
    """The errors that ``made`` had. Carbon errs in proportion, price by an amount, as it may be zero or less.

    The spread is the mean absolute error by lead, scaled as for a normal distribution: single spikes do not rule it.
    """
    start, truth = hourly(table, what)
    width = made.rows.shape[1]
    index = (made.start - start) // timedelta(seconds=HOUR_S) + np.arange(len(made.rows))
    padded = np.concatenate([truth, np.full(width, np.nan)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, width)
    inside = (index >= 0) & (index < len(windows))
    actual = np.full(made.rows.shape, np.nan)
    actual[inside] = windows[index[inside]]
    rows = made.rows.astype(np.float64)
    level = float(np.nanmean(np.abs(actual[:, 0]))) if np.isfinite(actual[:, 0]).any() else 1.0
    relative = what == "carbon" and bool((truth[np.isfinite(truth)] > 0).all())
    with np.errstate(divide="ignore", invalid="ignore"):
        missed = np.log(rows / actual) if relative else (rows - actual) / (level or 1.0)
    missed[~np.isfinite(missed)] = np.nan
    if not np.isfinite(missed).any(axis=0).all():
        raise BadInput(
            [(f"{what} of {table.region}", len(made.rows), "hours of forecasts are too few to measure their errors")]
        )
    spread = np.nanmean(np.abs(missed), axis=0) * np.sqrt(np.pi / 2)
    scaled = np.clip(missed / np.maximum(spread, 1e-9), -4, 4)
    return ErrorModel(
        relative=relative,
        level=level,
        spread=np.maximum.accumulate(spread),
        along=_correlation(scaled[:, :-1], scaled[:, 1:]),
        between=_correlation(scaled[:-1, 1:], scaled[1:, :-1]),
    )


def _correlation(left: Floats, right: Floats) -> float:
    both = np.isfinite(left) & np.isfinite(right)
    a, b = left[both], right[both]
    if len(a) < 2 or not a.std() or not b.std():
        return 0.0
    return float(np.clip(np.corrcoef(a, b)[0, 1], 0.0, 0.999))


def disturbed(
    table: SignalTable, what: str, model: ErrorModel, start: datetime, end: datetime, *, seed: list[int], scale: float = 1.0
) -> Rows:
    """The truth with errors, a row for each hour of ``[start, end)``; the same seed gives the same rows."""
    first_hour, truth = hourly(table, what)
    width = len(model.spread)
    begin = whole_hour(start)
    hours = max(-(-(end - begin) // timedelta(seconds=HOUR_S)), 0)
    offset = (begin - first_hour) // timedelta(seconds=HOUR_S)
    padded = np.concatenate([np.full(max(-offset, 0), np.nan), truth[max(offset, 0) :], np.full(hours + width, np.nan)])
    actual = np.lib.stride_tricks.sliding_window_view(padded, width)[:hours]
    errors = correlated(hours, width, model.along, model.between, np.random.default_rng(seed)) * (model.spread * scale)
    rows = actual * np.exp(errors) if model.relative else actual + model.level * errors
    return rows.astype(np.float32)


def correlated(rows: int, width: int, along: float, between: float, random: np.random.Generator) -> Floats:
    """Standard normal errors: AR(1) along each row, and from one row to the next for the same hour (a column further left)."""
    lags = np.abs(np.arange(width)[:, None] - np.arange(width)[None, :])
    fresh = random.standard_normal((rows, width)) @ np.linalg.cholesky(along**lags + 1e-9 * np.eye(width)).T
    out = np.empty((rows, width))
    new = float(np.sqrt(1 - between**2))
    for k in range(rows):
        out[k] = fresh[k]
        if k:
            out[k, :-1] = between * out[k - 1, 1:] + new * fresh[k, :-1]
            # the hour that comes into view has no error yet: it follows from its neighbour's
            out[k, -1] = along * out[k, -2] + fresh[k, -1] - along * fresh[k, -2]
    return out
