"""A metered series: the mean power of equal slots one after the other, with gaps kept as gaps.

It does arithmetic on time and knows nothing of events or baselines. A gap is NaN and is said as coverage; it is never 0 W.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt

from dispatcher.errors import BadInput

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

J_PER_KWH = 3_600_000.0
#: A mean stands for its slot where so much of it was measured; utilities differ, so every report states it.
MIN_COVERAGE = 0.9
#: Shares of seconds that only rounding makes of whole ones.
_EPS = 1e-6


def aware(name: str, at: datetime) -> datetime:
    """``at`` in UTC. Raises BadInput for a time without offset, which could mean any of 38 hours."""
    if at.tzinfo is None or at.utcoffset() is None:
        raise BadInput([(name, at.isoformat(), "must have an offset, such as 2026-07-01T16:00:00+00:00")])
    return at.astimezone(UTC)


@dataclass(frozen=True)
class Figure:
    """A number and the share (0 to 1) of its interval in which everything it rests on was known; None: nothing was."""

    value: float | None
    coverage: float

    @property
    def complete(self) -> bool:
        """Whether nothing was missing."""
        return self.value is not None and self.coverage >= 1 - _EPS


def _none() -> Flags:
    return np.zeros(0, dtype=np.bool_)


@dataclass(frozen=True)
class MeteredSeries:
    """Mean power (W, draw positive) of the slots ``[start + k * step_s, start + (k + 1) * step_s)``; NaN where unknown.

    ``estimated`` marks values that no meter of the site gave (GPUs times PUE, a reading carried over); ``basis`` says what the
    rest is, such as "site meter" or "GPUs times PUE". ``spread`` marks the slots of stretches that are longer than a slot: the
    energy of the stretch is known, not how it lies in its slots, so their means are no measure of power. Raises BadInput for a
    naive start, a step that is not above 0 or values that are infinite.
    """

    start: datetime
    step_s: float
    watts: Floats
    estimated: Flags = field(default_factory=_none)
    basis: str = "site meter"
    spread: Flags = field(default_factory=_none)

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", aware("start", self.start))
        watts = np.array(self.watts, dtype=np.float64)
        if not (np.isfinite(self.step_s) and self.step_s > 0):
            raise BadInput([("step_s", self.step_s, "must be above 0 seconds")])
        if watts.ndim != 1 or np.isinf(watts).any():
            raise BadInput([("watts", watts.shape, "must be one row of finite numbers, NaN where nothing is known")])
        watts.flags.writeable = False
        object.__setattr__(self, "watts", watts)
        for name in ("estimated", "spread"):
            flags = np.array(getattr(self, name), dtype=np.bool_)
            if flags.shape != watts.shape:
                if flags.size:
                    raise BadInput([(name, flags.size, f"must have one mark for each of the {watts.size} values")])
                flags = np.zeros(watts.shape, dtype=np.bool_)
            flags.flags.writeable = False
            object.__setattr__(self, name, flags)

    def __len__(self) -> int:
        return int(self.watts.size)

    @property
    def end(self) -> datetime:
        """The first moment that is no longer covered."""
        return self.start + timedelta(seconds=self.step_s * len(self))

    @property
    def known(self) -> Flags:
        """Which slots have a value."""
        known: Flags = ~np.isnan(self.watts)
        return known

    def at(self, k: int) -> datetime:
        """When slot ``k`` begins."""
        return self.start + timedelta(seconds=self.step_s * k)

    def offset_s(self, at: datetime) -> float:
        """Seconds from the start to ``at``."""
        return (at - self.start).total_seconds()

    def quality(self, k: int) -> str:
        """What slot ``k`` is: ``measured``, ``estimated``, ``spread`` or ``missing``."""
        if np.isnan(self.watts[k]):
            return "missing"
        return "spread" if self.spread[k] else "estimated" if self.estimated[k] else "measured"

    def sharp(self) -> "MeteredSeries":
        """The same with unknown power where only the energy of a longer stretch is known."""
        if not self.spread.any():
            return self
        return replace(self, watts=np.where(self.spread, np.nan, self.watts), spread=_none())

    def whole_slots(self, start: datetime, end: datetime) -> tuple[datetime, datetime]:
        """From where to where slots lie wholly within ``[start, end)``; twice the same where none does. The mean of a slot that
        reaches beyond says nothing of its part within."""
        first = int(np.ceil(self.offset_s(start) / self.step_s - _EPS))
        last = int(np.floor(self.offset_s(end) / self.step_s + _EPS))
        # Rounding must not put an edge beyond what was asked for.
        begin = max(start, self.at(first))
        return begin, max(begin, min(end, self.at(last)))

    def without(self, spans: Sequence[tuple[datetime, datetime]]) -> "MeteredSeries":
        """The same with every slot unknown that touches one of ``spans``."""
        watts = self.watts.copy()
        for start, end in spans:
            first = int(np.floor(self.offset_s(start) / self.step_s + _EPS))
            last = int(np.ceil(self.offset_s(end) / self.step_s - _EPS))
            watts[max(0, first) : max(0, last)] = np.nan
        return replace(self, watts=watts)


def _sums(series: MeteredSeries, edges_s: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Value-seconds and known seconds between consecutive edges (s from the start); beyond the series nothing is known."""
    # Only the slots between the edges are looked at: a history may hold months of seconds.
    low = int(np.clip(np.floor(edges_s[0] / series.step_s), 0, len(series)))
    high = int(np.clip(np.ceil(edges_s[-1] / series.step_s), low, len(series)))
    part = values[low:high]
    known = ~np.isnan(part)
    ticks = (low + np.arange(part.size + 1)) * series.step_s
    value_s = np.concatenate([[0.0], np.cumsum(np.where(known, part, 0.0)) * series.step_s])
    known_s = np.concatenate([[0.0], np.cumsum(known) * series.step_s])
    return np.diff(np.interp(edges_s, ticks, value_s)), np.diff(np.interp(edges_s, ticks, known_s))


def resampled(
    series: MeteredSeries, start: datetime, step_s: float, count: int, min_coverage: float = MIN_COVERAGE
) -> MeteredSeries:
    """``count`` slots of ``step_s`` from ``start``: time-weighted means of what is known.

    A slot of which less than ``min_coverage`` is known is unknown; one with any estimated part is estimated, and so with
    ``spread``. Within a slot
    of the original the power is taken as constant, so a finer step shows no more than was measured.
    """
    start = aware("start", start)
    made = MeteredSeries(start, step_s, np.full(count, np.nan), basis=series.basis)
    if not len(series) or not count:
        return made
    edges = (series.offset_s(start) + np.arange(count + 1) * step_s).astype(np.float64)
    joules, known_s = _sums(series, edges, series.watts)
    enough = known_s >= max(min_coverage * step_s, _EPS * step_s) - _EPS * step_s
    enough &= known_s > 0
    watts = np.full(count, np.nan)
    watts[enough] = joules[enough] / known_s[enough]
    marks: dict[str, Flags] = {}
    for name in ("estimated", "spread"):
        if (flags := getattr(series, name)).any():
            marked_s, _ = _sums(series, edges, np.where(series.known, flags.astype(np.float64), np.nan))
            marks[name] = (marked_s > _EPS) & enough
    return replace(made, watts=watts, estimated=marks.get("estimated", _none()), spread=marks.get("spread", _none()))


def windows(
    series: MeteredSeries, start: datetime, end: datetime, window_s: float, min_coverage: float = MIN_COVERAGE
) -> tuple[Floats, Floats]:
    """Means (W, NaN where less than ``min_coverage`` is known) and lengths (s) of the windows of ``[start, end)``.

    The last window is what is left, so that nothing at the end goes unseen.
    """
    length_s = (end - start).total_seconds()
    if length_s <= 0:
        return np.zeros(0), np.zeros(0)
    edges = np.append(np.arange(0.0, length_s - _EPS, window_s), length_s)
    lengths = np.diff(edges)
    means = np.full(lengths.size, np.nan)
    if len(series):
        joules, known_s = _sums(series, series.offset_s(start) + edges, series.watts)
        enough = (known_s > 0) & (known_s >= (min_coverage - _EPS) * lengths)
        means[enough] = joules[enough] / known_s[enough]
    return means, lengths


def coverage(series: MeteredSeries, start: datetime, end: datetime) -> float:
    """The share of ``[start, end)`` in which the series is known, 0 to 1; 0 for an interval without length."""
    return mean_w(series, start, end).coverage


def mean_w(series: MeteredSeries, start: datetime, end: datetime) -> Figure:
    """Time-weighted mean power over the known part of ``[start, end)``."""
    length_s = (end - start).total_seconds()
    if length_s <= 0 or not len(series):
        return Figure(None, 0.0)
    joules, known_s = _sums(series, np.array([series.offset_s(start), series.offset_s(end)]), series.watts)
    share = float(np.clip(known_s[0] / length_s, 0.0, 1.0))
    return Figure(float(joules[0] / known_s[0]) if known_s[0] > _EPS else None, 1.0 if share > 1 - _EPS else share)


def energy_kwh(series: MeteredSeries, start: datetime, end: datetime) -> Figure:
    """Energy of the known part of ``[start, end)``; what is missing adds nothing and lowers the coverage."""
    mean = mean_w(series, start, end)
    if mean.value is None:
        return mean
    return Figure(mean.value * mean.coverage * (end - start).total_seconds() / J_PER_KWH, mean.coverage)


def difference(left: MeteredSeries, right: MeteredSeries) -> MeteredSeries:
    """``left - right`` on the slots of ``right``; unknown where either is, estimated where either is."""
    other = resampled(left, right.start, right.step_s, len(right))
    return replace(
        right,
        watts=other.watts - right.watts,
        estimated=other.estimated | right.estimated,
        spread=other.spread | right.spread,
        basis=f"{left.basis}, {right.basis}",
    )


def from_pairs(
    pairs: Sequence[tuple[datetime, float]], step_s: float, basis: str = "site meter", stamp: str = "start"
) -> MeteredSeries:
    """A series from (time, W) in any order; slots nobody names are gaps.

    ``stamp`` says whether a time is the ``start`` or the ``end`` of its slot. Raises BadInput for an empty list, for two
    values of one slot that differ, and for times that lie off the grid of the first one by more than a tenth of a step.
    """
    if not pairs:
        raise BadInput([("pairs", 0, "must hold at least one value")])
    if stamp not in ("start", "end"):
        raise BadInput([("stamp", stamp, "must be start or end")])
    timed = sorted((aware("time", at), value) for at, value in pairs)
    first = timed[0][0]
    places = np.array([(at - first).total_seconds() / step_s for at, _ in timed])
    slots = np.rint(places).astype(np.int64)
    if (off := np.abs(places - slots) > 0.1).any():
        at = timed[int(np.argmax(off))][0]
        raise BadInput([("time", at.isoformat(), f"must be a whole number of steps of {step_s:g} s after {first.isoformat()}")])
    watts = np.full(int(slots[-1]) + 1, np.nan)
    for slot, (at, value) in zip(slots, timed, strict=True):
        if not np.isnan(watts[slot]) and watts[slot] != value:
            raise BadInput([("value", value, f"differs from {watts[slot]:g}, given for {at.isoformat()} too")])
        watts[slot] = value
    shift = timedelta(seconds=step_s) if stamp == "end" else timedelta()
    return MeteredSeries(first - shift, step_s, watts, basis=basis)
