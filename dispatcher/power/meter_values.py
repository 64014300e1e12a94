"""From what a meter said to what was drawn, when, and whether it can be believed. Pure: it knows no source, store or clock.

A reading is of a moment or of an interval. What is missing is a gap with a reason, never 0; what is implausible is kept, called
suspect and not used. Power in W, energy in kWh, temperature in degrees Celsius, times aware UTC, intervals half open.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from statistics import median

from dispatcher.config_power import MeterConfig

MEASURED, SUSPECT = "measured", "suspect"
#: So many cadences without a reading, beyond its usual delay, and a meter has stopped: what it measures is unknown.
STOPPED_CADENCES = 3
#: A level that was doubted is believed when so many readings in a row agree on it.
_AGREE = 3
#: Where nothing is configured: a meter may change by so much, or to ten times its last value, from one reading to the next.
_JUMP_W, _JUMP_TIMES = 10_000.0, 9.0
_JUMP_DEGC = 15.0
#: What no site draws, and temperatures that no inlet and no coolant has.
_MAX_W, _MIN_DEGC, _MAX_DEGC = 5e9, -40.0, 120.0
#: Increments of a counter from which its usual power is learned.
_LEARN_FROM = 3
_J_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class MeterReading:
    """What a meter said, in its unit (W, kWh or degC). ``end`` None: of the moment ``start``; otherwise of ``[start, end)``. A
    counter's value is kept as read."""

    region: str
    meter: str
    start: datetime
    value: float
    unit: str
    received_at: datetime
    end: datetime | None = None
    branch: str | None = None
    quality: str = MEASURED


@dataclass(frozen=True, slots=True)
class Span:
    """The mean over ``[start, end)``: W, or degC. ``reason`` says why a suspect one is suspect."""

    start: datetime
    end: datetime
    value: float
    quality: str = MEASURED
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MeterGap:
    """Time of which a meter says nothing, and why."""

    start: datetime
    end: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class Levels:
    """What a meter's readings come to, by time. ``not_used`` are the starts of readings that were set aside."""

    spans: tuple[Span, ...] = ()
    gaps: tuple[MeterGap, ...] = ()
    not_used: frozenset[datetime] = frozenset()


@dataclass(frozen=True, slots=True)
class Piece:
    """What the agents of a site measured over ``[start, end)``: the sum of its GPUs, W."""

    start: datetime
    end: datetime
    power_w: float


@dataclass(frozen=True, slots=True)
class Aligned:
    """A meter and the GPUs over the same time. ``agents_w`` is None where the agents do not cover enough of it."""

    start: datetime
    end: datetime
    meter_w: float
    agents_w: float | None


def about(at: datetime, cadence_s: float, delay_s: float) -> tuple[datetime, datetime]:
    """The interval that a reading seen at ``at`` is about: ``[at - delay - cadence, at - delay)``."""
    end = at - timedelta(seconds=delay_s)
    return end - timedelta(seconds=cadence_s), end


def unmetered(meter_w: float | None, agents_w: float | None, pue: float) -> float | None:
    """What the meter sees beyond the GPUs and their share of cooling: a line of its own, in W. Negative where the PUE promises
    too much. None where either is unknown."""
    return None if meter_w is None or agents_w is None else meter_w - agents_w * pue


# --- counters -----------------------------------------------------------------------------------------------------

_Point = tuple[datetime, float]


def power_from_counter(points: Sequence[_Point], max_w: float | None = None) -> Levels:
    """The mean power between readings ``(at, kWh counted so far)`` of a counter.

    A counter that goes backwards was reset or replaced: a gap, and counting begins anew. One reading out of line with its two
    neighbours, which fit each other, is set aside. Where both explanations are possible there is a gap. More than ``max_w`` is
    implausible (None: nothing is).
    """
    series = sorted({at: (at, value) for at, value in reversed(points)}.values())
    spans: list[Span] = []
    gaps: list[MeterGap] = []
    not_used: set[datetime] = set()
    anchor, k = 0, 1
    while k < len(series):
        a, b = series[anchor], series[k]
        c = series[k + 1] if k + 1 < len(series) else None
        if _fits(a, b, max_w):
            spans.append(Span(a[0], b[0], _mean_w(a, b)))
        elif c is not None and _fits(a, c, max_w):
            not_used.add(b[0])
            if b[1] < a[1] and _fits(b, c, max_w):
                reason = f"the counter went from {a[1]:g} back to {b[1]:g} and on to {c[1]:g} kWh: a reset or a wrong reading"
                gaps.append(MeterGap(a[0], c[0], reason))
            else:
                spans.append(Span(a[0], c[0], _mean_w(a, c)))
            k += 1
        elif b[1] < a[1]:
            gaps.append(MeterGap(a[0], b[0], f"the counter went from {a[1]:g} back to {b[1]:g} kWh: reset or replaced"))
        else:
            not_used.add(b[0])
            limit = f"more than the {max_w:.0f} W that are plausible" if max_w is not None else "implausible"
            gaps.append(MeterGap(a[0], b[0], f"the counter says {_mean_w(a, b):.0f} W, {limit}"))
        anchor = k
        k += 1
    return Levels(tuple(spans), tuple(gaps), frozenset(not_used))


def _mean_w(a: _Point, b: _Point) -> float:
    return (b[1] - a[1]) * _J_PER_KWH / (b[0] - a[0]).total_seconds()


def _fits(a: _Point, b: _Point, max_w: float | None) -> bool:
    return b[1] >= a[1] and (max_w is None or _mean_w(a, b) <= max_w)


def usual_limit_w(points: Sequence[_Point]) -> float | None:
    """What a counter may plausibly say at most where nothing is configured: ten times its usual power; None while too little is
    known of it."""
    powers = [_mean_w(a, b) for a, b in pairwise(sorted(points)) if b[0] > a[0] and b[1] > a[1]]
    return max(_JUMP_W, (1 + _JUMP_TIMES) * median(powers)) if len(powers) >= _LEARN_FROM else None


# --- plausibility -------------------------------------------------------------------------------------------------


def levels(meter: MeterConfig, readings: Sequence[MeterReading], limit_w: float | None = None) -> Levels:
    """What a meter's ``readings`` come to. ``limit_w`` is the power limit of what it measures (None: none is known); twice that
    is implausible, unless the configuration says what is."""
    highest = meter.max_value or (2 * limit_w if limit_w else None)
    if meter.unit == "kWh" and meter.cumulative:
        points = [(r.start, r.value) for r in readings]
        counted = power_from_counter(points, highest if highest is not None else usual_limit_w(points))
        judged = plausible(meter, counted.spans, highest)
        return replace(counted, spans=judged)
    raw = [
        Span(r.start, r.end, r.value if meter.unit != "kWh" else r.value * _J_PER_KWH / (r.end - r.start).total_seconds())
        for r in sorted(readings, key=lambda r: r.start)
        if r.end is not None and r.end > r.start
    ]
    spans = plausible(meter, raw, highest)
    return Levels(spans, not_used=frozenset(span.start for span in spans if span.quality == SUSPECT))


def plausible(meter: MeterConfig, spans: Sequence[Span], highest: float | None = None) -> tuple[Span, ...]:
    """``spans``, by time, with those marked suspect that are out of range or jump too far from the last one believed. A jump is
    believed when the readings after it agree on the new level."""
    lowest, top = (0.0, highest or _MAX_W) if meter.is_power else (_MIN_DEGC, meter.max_value or _MAX_DEGC)
    unit = "W" if meter.is_power else "degC"
    judged: list[Span] = []
    last: Span | None = None
    doubted: list[float] = []
    for span in spans:
        if not lowest <= span.value <= top:
            reason = f"{span.value:.1f} {unit} is not between {lowest:g} and {top:g} {unit}"
            judged.append(replace(span, quality=SUSPECT, reason=reason))
            continue
        allowed = _allowed_jump(meter, last.value) if last is not None else float("inf")
        since_s = (span.start - last.end).total_seconds() if last is not None else 0.0
        if last is not None and abs(span.value - last.value) > allowed and since_s <= STOPPED_CADENCES * meter.cadence_s:
            if doubted and abs(span.value - doubted[-1]) > allowed:
                doubted.clear()
            doubted.append(span.value)
            if len(doubted) < _AGREE:
                reason = f"{span.value:.1f} {unit} after {last.value:.1f} {unit}: more than {allowed:.0f} {unit} at once"
                judged.append(replace(span, quality=SUSPECT, reason=reason))
                continue
        doubted.clear()
        last = span
        judged.append(span)
    return tuple(judged)


def _allowed_jump(meter: MeterConfig, value: float) -> float:
    if meter.max_jump:
        return meter.max_jump
    return max(_JUMP_W, _JUMP_TIMES * abs(value)) if meter.is_power else _JUMP_DEGC


# --- alignment ----------------------------------------------------------------------------------------------------


def at_time(spans: Sequence[Span], at: datetime, reach_s: float) -> Span | None:
    """The believed span that tells of ``at``: the latest that begins by then, if it ended at most ``reach_s`` before."""
    for span in reversed(spans[: bisect_right(spans, at, key=lambda one: one.start)]):
        if span.quality == MEASURED:
            return span if (at - span.end).total_seconds() <= reach_s else None
    return None


def mean_w(pieces: Sequence[Piece], start: datetime, end: datetime, least_cover: float = 0.9) -> float | None:
    """The time-weighted mean of ``pieces`` (by time, not overlapping) over ``[start, end)``; None where they cover less of it
    than ``least_cover``."""
    first = max(bisect_left(pieces, start, key=lambda piece: piece.start) - 1, 0)
    joules = covered_s = 0.0
    for piece in pieces[first:]:
        if piece.start >= end:
            break
        overlap_s = (min(piece.end, end) - max(piece.start, start)).total_seconds()
        if overlap_s > 0:
            joules += piece.power_w * overlap_s
            covered_s += overlap_s
    if covered_s <= 0 or covered_s < least_cover * (end - start).total_seconds():
        return None
    return joules / covered_s


def align(spans: Sequence[Span], pieces: Sequence[Piece], least_cover: float = 0.9) -> list[Aligned]:
    """Each believed span of a meter beside what the agents measured over the very same time."""
    return [
        Aligned(span.start, span.end, span.value, mean_w(pieces, span.start, span.end, least_cover))
        for span in spans
        if span.quality == MEASURED
    ]


def from_epoch(seconds: float) -> datetime:
    """Seconds since 1970 as aware UTC. Raises ValueError for what is no time of this century or so."""
    if not 0 <= seconds < 1e11:
        raise ValueError(f"{seconds:g} is no time in seconds since 1970")
    return datetime.fromtimestamp(seconds, UTC)
