"""A region's signals as running sums, so that what a run emits or costs is two look-ups. Plain lists: jobs come one by one.

Beyond the end of a series its last day repeats, as in policies.grid; before its start nothing is known. It chooses nothing.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from math import isfinite, nan

from policies.world import RegionView
from signals.series import SlotSeries

DAY_S = 86400
#: Seconds of two offsets that mean the same moment.
SAME_S = 1e-6

#: Seconds from a moment that is named beside them.
Span = tuple[float, float]


class Timeline:
    """One signal from ``start`` on in slots of ``slot_s`` seconds. ``values`` are NaN where unknown; ``sums[i]`` is the sum of
    the first i values, unknown ones counted as 0, and ``gaps[i]`` how many of them are unknown (empty where none is)."""

    __slots__ = ("_own", "gaps", "slot_s", "start", "sums", "values")

    def __init__(self, start: datetime, slot_s: int, values: Iterable[float | None]) -> None:
        self.start, self.slot_s = start, slot_s
        given = list(values)
        try:
            whole = isfinite(sum(given))  # type: ignore[arg-type]  # None raises
        except TypeError:
            whole = False
        self.values: list[float] = given if whole else [nan if v is None or not isfinite(v) else v for v in given]  # type: ignore[assignment]
        self.gaps: list[int] = []
        self.sums: list[float] = []
        self._own = len(given)
        self._sum_up(not whole)

    def _sum_up(self, partly_unknown: bool) -> None:
        if partly_unknown:
            self.sums = list(accumulate((0.0 if value != value else value for value in self.values), initial=0.0))
            self.gaps = list(accumulate((int(value != value) for value in self.values), initial=0))
        else:
            self.sums = list(accumulate(self.values, initial=0.0))

    def reach(self, slots: int) -> None:
        """Go on to at least so many slots by repeating the last day; what a shorter series lacks of a day stays unknown."""
        values = self.values
        if slots <= len(values):
            return
        per_day = max(1, DAY_S // self.slot_s)
        short = len(values) < per_day
        if short:
            values.extend([nan] * (per_day - len(values)))
        while len(values) < slots:
            values.extend(values[-per_day:])
        self._sum_up(short or bool(self.gaps))

    def total(self, begin_s: float, end_s: float) -> float:
        """The integral over [begin_s, end_s) after the start, value x slots; NaN when some of it is unknown."""
        slot_s = self.slot_s
        first, last = int(begin_s // slot_s), int(end_s // slot_s)
        if last >= len(self.values):
            self.reach(last + 1)
        if begin_s < 0:
            return nan if end_s > begin_s else 0.0
        sums, values = self.sums, self.values
        part, rest = begin_s / slot_s - first, end_s / slot_s - last
        if self.gaps:
            if self.gaps[last + (rest > SAME_S)] > self.gaps[first]:
                return nan
            # what is not counted at either end may be unknown
            head = part * values[first] if part and values[first] == values[first] else 0.0
            tail = rest * values[last] if rest > SAME_S else 0.0
            return sums[last] + tail - sums[first] - head
        return sums[last] + rest * values[last] - sums[first] - part * values[first]

    def windows(self, begin_s: float, length_s: float, wait_s: float) -> list[float]:
        """The integrals of windows of ``length_s`` that begin at ``begin_s`` and then each slot later up to ``wait_s``, value x
        slots; NaN when some of one is unknown. ``begin_s`` is not before the start."""
        slot_s = self.slot_s
        more = int((wait_s + SAME_S) // slot_s)
        end_s = begin_s + length_s
        first, last = int(begin_s // slot_s), int(end_s // slot_s)
        if last + more + 1 > len(self.values):
            self.reach(last + more + 1)
        part, rest = begin_s / slot_s - first, end_s / slot_s - last
        sums, values = self.sums, self.values
        if self.gaps:
            return [self.total(begin_s + k * slot_s, end_s + k * slot_s) for k in range(more + 1)]
        stop, until = first + more + 1, last + more + 1
        return [
            upto + rest * tail - before - part * head
            for upto, tail, before, head in zip(
                sums[last:until], values[last:until], sums[first:stop], values[first:stop], strict=True
            )
        ]

    def at(self, offset_s: float) -> float:
        """The value in force, NaN where unknown."""
        index = int(offset_s // self.slot_s)
        if index < 0:
            return nan
        self.reach(index + 1)
        return self.values[index]

    def pieces(self, begin_s: float, end_s: float) -> tuple[int, list[float]]:
        """The slots that [begin_s, end_s) touches: the number of the first, and their values."""
        first = int(begin_s // self.slot_s)
        until = max(first + 1, -int(-(end_s - SAME_S) // self.slot_s))
        self.reach(until)
        return first, self.values[first:until]


def timeline_of(series: SlotSeries, now: datetime) -> Timeline:
    """A series as a timeline that begins no later than ``now``."""
    early_s = (series.start - now).total_seconds()
    if early_s <= 0:
        return Timeline(series.start, series.slot_s, series.values)
    slots = -int(-early_s // series.slot_s)
    start = series.start - timedelta(seconds=slots * series.slot_s)
    return Timeline(start, series.slot_s, [*([nan] * slots), *series.values])


class Market:
    """One region's price and carbon as timelines, and ``signal``, the one that a policy looks at: carbon where there is some,
    else the price, or the price first where ``by_price``. None where the region has neither."""

    __slots__ = ("by_price", "carbon", "price", "signal", "view", "word")

    def __init__(self, view: RegionView, now: datetime, by_price: bool) -> None:
        self.view, self.by_price = view, by_price
        self.price = timeline_of(view.price, now) if view.price is not None else None
        self.carbon = timeline_of(view.carbon, now) if view.carbon is not None else None
        first, second = (self.price, self.carbon) if by_price else (self.carbon, self.price)
        self.signal = first if first is not None else second
        self.word = "carbon" if self.signal is self.carbon and self.carbon is not None else "price"

    def holds(self, view: RegionView, now: datetime) -> bool:
        """Whether it still says what ``view`` does, and of ``now``."""
        mine = self.view
        if view is not mine:
            if view.price is not mine.price or view.carbon is not mine.carbon:
                return False
            self.view = view
        return self.signal is None or now >= self.signal.start

    def figures(
        self, power_w: float, start: datetime, spans: Sequence[Span], carbon_price: float
    ) -> tuple[float | None, float | None]:
        """Cost in the planning currency and kg of carbon of a draw over ``spans`` after ``start``; None where unknown."""
        view = self.view
        kw = power_w * view.pue / 1000.0
        cost, carbon_kg = nan, nan
        if self.carbon is not None:
            line, offset = self.carbon, (start - self.carbon.start).total_seconds()
            total = sum(line.total(offset + begin, offset + end) for begin, end in spans)
            carbon_kg = total * line.slot_s / 3.6e6 * kw
        if self.price is not None:
            line, offset = self.price, (start - self.price.start).total_seconds()
            total = sum(line.total(offset + begin, offset + end) for begin, end in spans)
            cost = total * line.slot_s / 3.6e6 * kw * view.fx
            if carbon_price > 0:
                cost += carbon_kg / 1000.0 * carbon_price
        return None if cost != cost else cost, None if carbon_kg != carbon_kg else carbon_kg

    def within(self, start: datetime, length_s: float, max_price: float | None, max_carbon: float | None) -> Timeline | None:
        """The signal over the next ``length_s``, unknown wherever the price or the carbon is over its ceiling or unknown; None
        when the region lacks a signal that is bounded."""
        line = self.signal
        if line is None:
            return None
        slots = int(((start - line.start).total_seconds() + length_s) // line.slot_s) + 2
        line.reach(slots)
        values = line.values[:slots]
        for other, bound in ((self.price, max_price), (self.carbon, max_carbon)):
            if bound is None:
                continue
            if other is None:
                return None
            ahead_s = (line.start - other.start).total_seconds()
            for index in range(int((start - line.start).total_seconds() // line.slot_s), slots):
                begin_s = ahead_s + index * line.slot_s
                _, over = other.pieces(max(begin_s, 0.0), max(begin_s, 0.0) + line.slot_s)
                if begin_s < 0 or not all(value <= bound for value in over):
                    values[index] = nan
        return Timeline(line.start, line.slot_s, values)
