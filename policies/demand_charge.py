"""The monthly demand charge in a plan: what a new peak would cost, by slots for one job, exactly for a whole plan. Pure numpy.

A month is charged on its highest mean draw over measurement intervals, so only draw above the peak that stands anyway costs
anything, and whoever comes later under the new peak pays no more. That makes the price of a job depend on the others: a plan
is tried at several levels of draw, and the exact cost of each whole plan decides between them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from policies.grid import Bools, Floats, Grid, Ints, Lane
from policies.world import SLACK, DemandCharge, RegionView

#: How many times the real price is asked where a level is to be held: more than any shift could save, yet in time counts more.
HOLD = 1000.0
#: Draws are told apart from this many W on.
LEAST_W = 1.0

#: A draw over a stretch: seconds from now, and W at the meter.
Draw = tuple[float, float, float]


@dataclass(frozen=True)
class Peak:
    """One month of a region's demand charge on the grid. ``counts`` tells which slots count; a W above ``free_w`` in them costs
    ``per_w`` (planning currency). ``stands_w`` is the peak that the month has anyway: what it had already, or what the plan
    cannot change. ``edges`` are the (begin, end) seconds of the measurement intervals that count.
    """

    charge: DemandCharge
    counts: Bools
    per_w: float
    stands_w: float
    free_w: float
    edges: tuple[Floats, Floats]

    def at(self, free_w: float, times: float = 1.0) -> "Peak":
        """The same month with nothing to pay up to ``free_w`` and ``times`` the price above it."""
        return replace(self, free_w=max(free_w, self.stands_w), per_w=self.per_w * times)

    def highest_w(self, draws: Sequence[Draw], bypass_w: float) -> float:
        """The highest mean of a measurement interval under these draws; the standing peak when that is higher."""
        begins, ends = self.edges
        if not len(begins):
            return self.stands_w
        means = (_energy(draws, ends) - _energy(draws, begins)) / (ends - begins)
        return max(self.stands_w, float(means.max()) + bypass_w)


def _energy(draws: Sequence[Draw], until: Floats) -> Floats:
    """Energy drawn before each moment, W x s."""
    table = np.array(draws, dtype=np.float64).reshape(len(draws), 3)
    total = np.zeros(len(until))
    for column, sign in ((0, 1.0), (1, -1.0)):
        order = np.argsort(table[:, column], kind="stable")
        moments, watts = table[order, column], table[order, 2]
        seen = np.searchsorted(moments, until, side="right")
        sums = np.concatenate(([0.0], np.cumsum(watts)))
        moments_sums = np.concatenate(([0.0], np.cumsum(watts * moments)))
        total += sign * (until * sums[seen] - moments_sums[seen])
    return total


def peaks_of(view: RegionView, grid: Grid, fixed: Sequence[Draw]) -> tuple[Peak, ...]:
    """The months of a region's demand charge that the grid reaches; ``fixed`` draws are those that no plan changes. Empty
    without a charge, or while no rate to the planning currency is known."""
    found = []
    for charge in view.demand:
        per_w = charge.per_kw * view.fx / 1000.0
        if not per_w > 0:  # also without a rate, which is NaN
            continue
        counts = np.zeros(len(grid.edges) - 1, dtype=bool)
        begins: list[Floats] = []
        for window in charge.windows:
            begin, end = max(grid.seconds(window[0]), 0.0), min(grid.seconds(window[1]), float(grid.edges[-1]))
            if end - begin <= LEAST_W:
                continue
            counts |= (grid.edges[1:] > begin + SLACK) & (grid.edges[:-1] < end - SLACK)
            into = (grid.now.timestamp() + begin) % charge.interval_s
            begins.append(np.arange(begin - into, end - SLACK, charge.interval_s))
        starts = np.unique(np.concatenate(begins)) if begins else np.zeros(0)
        # Of the interval under way only the rest is looked at: what it drew so far is in the peak so far, or is not known.
        peak = Peak(charge, counts, per_w, charge.peak_w, charge.peak_w, (np.maximum(starts, 0.0), starts + charge.interval_s))
        stands_w = peak.highest_w(fixed, view.bypass_w)
        found.append(replace(peak, stands_w=stands_w, free_w=stands_w))
    return tuple(found)


# --- the price of one job ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Added:
    """What one job's draw would add to a region's demand charge beside what is reserved there: for each month the price of a W
    and the W by which each slot would raise the month's peak. Months it cannot raise are left out."""

    months: tuple[tuple[float, Floats], ...] = ()

    def costs(self, first: Ints, last: Ints) -> Floats:
        """Cost of drawing over slots ``[first, last)``, an element each; no range is empty."""
        total = np.zeros(len(first))
        for per_w, over_w in self.months:
            total += per_w * range_max(over_w, first, last)
        return total

    def cost(self, grid: Grid, intervals: Iterable[tuple[float, float]]) -> float:
        """Cost of drawing over all of ``intervals`` (seconds from now): a month's peak is paid once."""
        total = 0.0
        if self.months:
            spans = np.array(list(intervals), dtype=np.float64)
            first = np.maximum(np.searchsorted(grid.edges, spans[:, 0] + SLACK, side="right") - 1, 0).tolist()
            last = grid.slots_until(spans[:, 1]).tolist()
            for per_w, over_w in self.months:
                total += per_w * max(float(over_w[a : max(b, a + 1)].max()) for a, b in zip(first, last, strict=True))
        return total

    def new_peak(self) -> Bools:
        """Slots in which it would set a new peak; only where there are ``months``."""
        mask = self.months[0][1] > 0
        for _, over_w in self.months[1:]:
            mask = mask | (over_w > 0)
        return np.asarray(mask)


def added_to(lane: Lane, power_w: float) -> Added:
    """What a draw of ``power_w`` (at the GPU) would add in ``lane`` as it is reserved now."""
    found = []
    added_w = power_w * lane.view.pue
    for peak in lane.peaks:
        drawn = np.where(peak.counts, lane.power, 0.0)
        highest_w = float(drawn.max())
        level_w = max(peak.free_w, highest_w)
        if highest_w + added_w > level_w + SLACK and added_w > 0:
            found.append((peak.per_w, np.where(peak.counts, np.maximum(drawn + added_w - level_w, 0.0), 0.0)))
    return Added(tuple(found))


def reserved_cost(lanes: Iterable[Lane]) -> float:
    """What everything reserved in the lanes costs in demand charges together, slot by slot."""
    drawn = ((peak, float(np.where(peak.counts, lane.power, 0.0).max())) for lane in lanes for peak in lane.peaks)
    return sum(peak.per_w * max(0.0, high - peak.free_w) for peak, high in drawn)


def range_max(values: Floats, first: Ints, last: Ints) -> Floats:
    """The maximum of ``values[first:last]`` for each pair; every range holds something. Any range is covered by two stretches
    whose length is a power of two, and the maxima of those are made by doubling."""
    powers = np.floor(np.log2(last - first)).astype(np.intp)
    table, found = values, np.empty(len(first))
    for power in range(int(powers.max()) + 1 if len(powers) else 0):
        if power:
            half = 1 << (power - 1)
            table = np.maximum(table[:-half], table[half:])
        at = powers == power
        found[at] = np.maximum(table[first[at]], table[last[at] - (1 << power)])
    return found
