"""Whether new values of a series can be what they claim: unit slips, yesterday repeated, flat lines, the impossible.

Pure. It knows the new points and recent ones of the same series, not the source; it changes no value and leaves none out: what
it doubts gets quality SUSPECT and a warning, and who uses the series decides. It cannot see a unit that was wrong from the
very first value, nor one that slips while a source gives only a value or two at a time and by less than a factor of ten.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise

from signals.points import Kind, Quality, SignalPoint

#: What a unit slip multiplies values by: MW and kW, or t and kg; lbs and kg; euro and cent. The first two and their inverses
#: are far outside of what a series does by itself; a grid's carbon may well double, so pounds need more evidence.
_SLIPS = {1000.0: "thousand", 0.001: "thousandth", 100.0: "hundred", 0.01: "hundredth"}
#: Cents per kWh are a tenth of euros per MWh. A market moves tenfold by itself, so this needs more evidence, too.
_TENS = {10.0: "ten", 0.1: "tenth"}
_POUNDS = {2.20462262: "pounds for kilograms", 0.45359237: "kilograms for pounds"}
_CARBON = frozenset({Kind.CARBON_AVERAGE, Kind.CARBON_MARGINAL})
_JUDGED = frozenset({Kind.PRICE, *_CARBON})
#: Lignite alone is at about 1,100 g/kWh, the worst oil plant below 1,500. No carbon intensity is negative.
_CARBON_RANGE = (0.0, 2000.0)
#: European auctions end at -500 and 4,000 EUR/MWh (raised after spikes), Australia's market at 20,300 AUD/MWh in 2025; the
#: limit is for what no market pays, in currencies worth about as much as a euro. Those worth much less (1 EUR = 25 CZK,
#: 11 SEK, 400 HUF) get as much more room by _CHEAP.
_PRICE_RANGE = (-5000.0, 25000.0)
_CHEAP = {"CZK": 25.0, "DKK": 8.0, "NOK": 12.0, "SEK": 12.0, "HUF": 400.0, "PLN": 5.0, "RON": 5.0, "JPY": 170.0, "INR": 100.0}
_REPEAT_LEAST = timedelta(hours=20)
_FLAT_LEAST = timedelta(hours=12)
_DAY = timedelta(days=1)
#: Fewer values than this say nothing about a level.
_SAMPLE = 6
_HISTORY_SAMPLE = 24


@dataclass(frozen=True, slots=True)
class Judgement:
    """The points, those that are doubted with quality SUSPECT, and a warning for each reason."""

    points: tuple[SignalPoint, ...]
    warnings: tuple[str, ...] = ()


def possible(point: SignalPoint) -> bool:
    """Whether any grid or market could have the value: what is not may serve nobody, whatever else is missing."""
    limits = _range(point)
    return limits is None or limits[0] <= point.value <= limits[1]


def _range(point: SignalPoint) -> tuple[float, float] | None:
    """The least and the largest value of the point's kind and unit; None where nothing is known of them."""
    if point.kind in _CARBON:
        return _CARBON_RANGE
    if point.kind is Kind.PRICE:
        worth = _CHEAP.get(point.unit[:3], 1.0)
        return _PRICE_RANGE[0] * worth, _PRICE_RANGE[1] * worth
    return None


def judge(points: Sequence[SignalPoint], history: Iterable[SignalPoint]) -> Judgement:
    """``points`` (new, of one region, kind and source) in the light of ``history`` (earlier ones of the same).

    Variants are judged apart. What is SUSPECT in the history is not taken as evidence. Prices and carbon intensities are
    judged; other kinds come back as they are.
    """
    if not points or points[0].kind not in _JUDGED:
        return Judgement(tuple(points))
    past: dict[tuple[str, str], list[SignalPoint]] = defaultdict(list)
    for point in history:
        if point.quality is not Quality.SUSPECT:
            past[point.variant, point.unit].append(point)
    doubts: dict[int, None] = {}
    warnings: list[str] = []
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, point in enumerate(points):
        groups[point.variant, point.unit].append(index)
    for key, indexes in groups.items():
        known = sorted(past[key], key=_when)
        left = sorted(indexes, key=lambda i: _when(points[i]))
        for test in (_impossible, _slipped, _repeated, _flat):
            found, says = test([points[i] for i in left], known)
            if found:
                warnings.append(says)
                doubts |= {left[i]: None for i in found}
                left = [index for position, index in enumerate(left) if position not in found]
    judged = tuple(replace(p, quality=Quality.SUSPECT) if index in doubts else p for index, p in enumerate(points))
    return Judgement(judged, tuple(warnings))


_Test = Callable[[list[SignalPoint], list[SignalPoint]], tuple[set[int], str]]
_NOTHING: tuple[set[int], str] = (set(), "")


def _when(point: SignalPoint) -> tuple[datetime, datetime, datetime]:
    return (point.start, point.end, point.issued_at or point.retrieved_at)


def _span(points: Sequence[SignalPoint]) -> str:
    return f"{points[0].start:%Y-%m-%d %H:%M}Z to {points[-1].end:%Y-%m-%d %H:%M}Z"


def _impossible(points: list[SignalPoint], known: list[SignalPoint]) -> tuple[set[int], str]:
    """Values that no grid or market has."""
    found = {i for i, point in enumerate(points) if not possible(point)}
    limits = _range(points[min(found)]) if found else None
    if limits is None:
        return _NOTHING
    (low, high), first = limits, points[min(found)]
    unit = first.unit
    says = f"{len(found)} values outside {low:g} to {high:g} {unit}, the first {first.value:g} at {first.start:%Y-%m-%d %H:%M}Z"
    return found, f"impossible: {says}"


def _slipped(points: list[SignalPoint], known: list[SignalPoint]) -> tuple[set[int], str]:
    """All new values off by the factor of a mistaken unit."""
    if not points:
        return _NOTHING
    everything = set(range(len(points)))
    before = {(p.start, p.end): p.value for p in known}
    ratios = [p.value / before[p.start, p.end] for p in points if before.get((p.start, p.end))]
    others = _TENS if points[0].kind is Kind.PRICE else _POUNDS
    for factor, name in (_SLIPS | others).items():
        # The same periods again, each by the same factor: nothing but a unit does that.
        close = [r for r in ratios if abs(r / factor - 1.0) < 0.02]
        if len(close) >= 4 and len(close) >= 0.8 * len(ratios):
            return everything, f"unit: {len(close)} values are revised by the factor {factor:g} ({name}); a mistaken unit"
    if len(known) < _HISTORY_SAMPLE:
        return _NOTHING
    past = [p.value for p in known]
    centre = statistics.median(past)
    values = [p.value for p in points]
    if len(points) < _SAMPLE:
        return _slipped_singly(values, past)
    ratio = statistics.median(values) / centre if centre else 0.0
    for factor, name in _SLIPS.items():
        if 0.5 < ratio / factor < 2.0 and _same_shape(values, past, factor, 0.3, 3.0):
            return everything, f"unit: the values of {_span(points)} are {ratio:.3g} times the usual ({name}); a mistaken unit?"
    if points[0].kind is Kind.PRICE and len(points) >= 20:
        for factor, name in _TENS.items():
            if 0.7 < ratio / factor < 1.4 and _same_shape(values, past, factor, 0.5, 2.0):
                says = f"unit: the values of {_span(points)} are {ratio:.3g} times the usual ({name}); a mistaken unit?"
                return everything, says
    if points[0].kind in _CARBON and len(points) >= 20 and _steady(known, centre):
        for factor, name in _POUNDS.items():
            if abs(ratio / factor - 1.0) < 0.05 and _same_shape(values, past, factor, 0.8, 1.25):
                return everything, f"unit: the values of {_span(points)} are {ratio:.3g} times the usual; {name}?"
    return _NOTHING


def _slipped_singly(values: list[float], past: list[float]) -> tuple[set[int], str]:
    """Of too few values for a shape: those far outside of the past's range that a slip would bring from inside it."""
    low, high = min(past), max(past)
    if low <= 0:  # a range that holds zero holds every value's thousandth
        return _NOTHING
    found = {
        i
        for i, value in enumerate(values)
        for factor in _SLIPS
        if low <= value / factor <= high and not low / 5.0 <= value <= high * 5.0
    }
    return (found, f"unit: {values[min(found)]:g} where {low:g} to {high:g} was usual; a mistaken unit?") if found else _NOTHING


def _same_shape(values: list[float], past: list[float], factor: float, least: float, most: float) -> bool:
    """Whether the spread of ``values`` is that of ``past`` times ``factor``, within bounds: a level that really moved keeps
    the spread that it had, a unit multiplies that too."""
    spread, usual = _spread(values), _spread(past)
    if usual == 0.0:
        return spread == 0.0
    return least <= spread / (usual * factor) <= most


def _spread(values: list[float]) -> float:
    quarters = statistics.quantiles(values, n=4)
    return quarters[2] - quarters[0]


def _steady(known: list[SignalPoint], centre: float) -> bool:
    """Whether no day of the last ones was far from the usual: then one that doubles is no weather."""
    days: dict[object, list[float]] = defaultdict(list)
    for point in known:
        days[point.start.date()].append(point.value)
    medians = [statistics.median(values) for values in days.values()]
    return len(medians) >= 3 and all(0.75 * centre <= m <= 1.25 * centre for m in medians)


def _repeated(points: list[SignalPoint], known: list[SignalPoint]) -> tuple[set[int], str]:
    """The day before once more: at least 20 hours, each value exactly that of 24 hours earlier, and not one value only."""
    before = {(p.start, p.end): p.value for p in (*known, *points)}
    found: set[int] = set()
    for run in _runs(points, lambda p: before.get((p.start - _DAY, p.end - _DAY)) == p.value):
        held = [points[i] for i in run]
        covered = sum((p.end - p.start for p in held), timedelta())
        # A tariff by the hour is the same every day: then the day before repeats the one before it too. Where that day is not
        # known, nothing can be said.
        earlier = [(p, before.get((p.start - 2 * _DAY, p.end - 2 * _DAY))) for p in held]
        differ = [p for p, value in earlier if value is not None and value != p.value]
        if covered >= _REPEAT_LEAST and len({p.value for p in held}) > 2 and 2 * len(differ) > len(held):
            found |= set(run)
    if not found:
        return _NOTHING
    return found, f"repeats: {_span([points[i] for i in sorted(found)])} is exactly the day before"


def _flat(points: list[SignalPoint], known: list[SignalPoint]) -> tuple[set[int], str]:
    """The same non-zero value for at least 12 hours, in a series whose history does not do that."""
    if not points or len(known) < _HISTORY_SAMPLE:
        return _NOTHING
    found: set[int] = set()
    fresh = {(p.start, p.end) for p in points}
    since = points[0].start - 2 * _FLAT_LEAST
    line = sorted([*(p for p in known if p.start >= since and (p.start, p.end) not in fresh), *points], key=_when)
    where = {id(p): i for i, p in enumerate(points)}
    for run in _equal_runs(line):
        if run[0].value != 0.0 and run[-1].end - run[0].start >= _FLAT_LEAST:
            found |= {where[id(p)] for p in run if id(p) in where}
    if not found or _longest_flat(known) >= _FLAT_LEAST:
        return _NOTHING
    held = [points[i] for i in sorted(found)]
    return found, f"flat: {held[0].value:g} {held[0].unit} without a change, {_span(held)}"


def _longest_flat(points: list[SignalPoint]) -> timedelta:
    return max((run[-1].end - run[0].start for run in _equal_runs(points) if run[0].value != 0.0), default=timedelta())


def _equal_runs(points: list[SignalPoint]) -> list[list[SignalPoint]]:
    """Points that follow each other without a hole and have one value."""
    runs: list[list[SignalPoint]] = []
    for point in points:
        if runs and runs[-1][-1].value == point.value and point.start <= runs[-1][-1].end:
            runs[-1].append(point)
        else:
            runs.append([point])
    return runs


def _runs(points: list[SignalPoint], holds: Callable[[SignalPoint], bool]) -> list[list[int]]:
    """Positions of points that follow each other without a hole and for all of which ``holds`` is true."""
    marked = [i for i, point in enumerate(points) if holds(point)]
    runs: list[list[int]] = [marked[:1]] if marked else []
    for earlier, later in pairwise(marked):
        if later == earlier + 1 and points[later].start <= points[earlier].end:
            runs[-1].append(later)
        else:
            runs.append([later])
    return runs
