"""A new monthly peak or holding the old one: whole plans at several levels of draw, compared by their exact cost. Pure.

It places nothing itself: whoever calls it brings the function that makes one plan on given lanes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from policies.demand_charge import HOLD, LEAST_W, Draw, Peak
from policies.grid import Bools, Grid, Lane
from policies.placing import Option, Task
from policies.sentences import kw
from policies.world import NewPeak

#: So many placements are tried for levels beyond the first two: few jobs get many levels, thousands get those two.
TRIES = 600
#: Levels between the peak that stands and the one of the cheapest energy, as shares of the way.
_LEVELS = (0.5, 0.25, 0.75, 0.1)

#: (seconds late, placed outside their rules, at unknown cost, without slack): what no saved peak may make worse.
Broken = tuple[float, int, int, int]


@dataclass(frozen=True)
class Outcome:
    """A whole plan: what it breaks, its cost without demand charges, and the highest mean draw it gives each month's peak."""

    chosen: dict[str, Option]
    lanes: dict[str, Lane]
    broken: Broken
    energy_cost: float
    highest_w: tuple[float, ...]
    demand_cost: float

    @property
    def order(self) -> tuple[Broken, float]:
        """Best first: promises before money."""
        return self.broken, self.energy_cost + self.demand_cost


@dataclass(frozen=True)
class Verdict:
    """The plan to follow, and what to say of its peaks: a sentence for each job that a peak concerns, and for each month."""

    outcome: Outcome
    notes: dict[str, str] = field(default_factory=dict)
    peaks: tuple[NewPeak, ...] = ()


#: Makes one plan on lanes: every job's option, and the lanes with them reserved.
Placer = Callable[[dict[str, Lane]], tuple[dict[str, Option], dict[str, Lane]]]


@dataclass(frozen=True)
class Shaving:
    """What stays the same between the plans that are compared. ``peaks`` has (region, month) pairs, ``fixed`` the draws that no
    plan changes, a list a region."""

    grid: Grid
    tasks: Sequence[Task]
    base: Mapping[str, Lane]
    fixed: Mapping[str, Sequence[Draw]]
    peaks: Sequence[tuple[str, Peak]]
    currency: str

    def weigh(self, chosen: dict[str, Option], lanes: dict[str, Lane]) -> Outcome:
        """A plan's exact cost, measured as the meter would."""
        draws: dict[str, list[Draw]] = {region: list(self.fixed[region]) for region, _ in self.peaks}
        broken = [0.0, 0, 0, 0]
        for task in self.tasks:
            option = chosen.get(task.job.id)
            if option is None:
                broken[0] += 1e9
                continue
            broken[0] += option.late_s
            broken[1] += not option.within_rules
            broken[2] += not option.known
            broken[3] += not option.within_slack
            if option.region in draws:
                power_w = task.job.flex.power_w * self.base[option.region].view.pue
                draws[option.region] += [(begin, end, power_w) for begin, end in option.intervals]
        highest = tuple(peak.highest_w(draws[region], self.base[region].view.bypass_w) for region, peak in self.peaks)
        demand = sum(self._price(at, high) for at, high in enumerate(highest))
        energy = sum(option.cost for option in chosen.values())
        return Outcome(chosen, lanes, (broken[0], int(broken[1]), int(broken[2]), int(broken[3])), energy, highest, demand)

    def choose(self, unaware: Outcome, place: Placer) -> Verdict:
        """The best of ``unaware`` (made as if peaks were free) and plans that hold or price them."""
        if unaware.demand_cost <= 0:
            return Verdict(unaware)  # its peaks are free: nothing can be cheaper
        held = self._held(place)
        best = min((unaware, held, *self._others(unaware, place)), key=lambda outcome: outcome.order)
        best = self._mixed(unaware, best, place)
        return Verdict(best, *self._tell(best, unaware, held))

    def _price(self, at: int, highest_w: float) -> float:
        peak = self.peaks[at][1]
        return peak.per_w * max(0.0, highest_w - peak.stands_w)

    def _try(self, place: Placer, levels: Sequence[Peak]) -> Outcome:
        lanes = {
            name: replace(lane, peaks=tuple(new for (region, _), new in zip(self.peaks, levels, strict=True) if region == name))
            for name, lane in self.base.items()
        }
        return self.weigh(*place(lanes))

    def _held(self, place: Placer) -> Outcome:
        """No new peak but what deadlines ask for."""
        return self._try(place, [peak.at(peak.stands_w, HOLD) for _, peak in self.peaks])

    def _others(self, unaware: Outcome, place: Placer) -> Iterator[Outcome]:
        yield self._try(place, [peak for _, peak in self.peaks])  # each job pays for what it adds
        for share in _LEVELS[: TRIES // max(1, len(self.tasks))]:
            yield self._try(
                place,
                [
                    peak.at(peak.stands_w + share * (high - peak.stands_w), HOLD)
                    for (_, peak), high in zip(self.peaks, unaware.highest_w, strict=True)
                ],
            )

    def _mixed(self, unaware: Outcome, best: Outcome, place: Placer) -> Outcome:
        """One month at a time let go or held, where there are several."""
        touched = [at for at, high in enumerate(unaware.highest_w) if self._price(at, high) > 0]
        if len(touched) < 2 or len(self.tasks) * len(touched) * 2 > TRIES:
            return best
        for at in touched:
            for level in (self.peaks[at][1].stands_w, unaware.highest_w[at]):
                levels = [peak.at(high, HOLD) for (_, peak), high in zip(self.peaks, best.highest_w, strict=True)]
                levels[at] = self.peaks[at][1].at(level, HOLD)
                best = min(best, self._try(place, levels), key=lambda outcome: outcome.order)
        return best

    # --- telling ------------------------------------------------------------------------------------------------------

    def _tell(self, best: Outcome, unaware: Outcome, held: Outcome) -> tuple[dict[str, str], tuple[NewPeak, ...]]:
        """Notes of the jobs that were moved out of a peak, or that are in a new one, and each month's account."""
        notes: dict[str, str] = {}
        told = []
        for at, (region, peak) in enumerate(self.peaks):
            high, other = best.highest_w[at], unaware.highest_w[at]
            if high < other - LEAST_W:
                sentence = self._held_below(at, best, unaware)
                mask = peak.counts & (unaware.lanes[region].power > max(high, peak.stands_w) + SLACK_W)
                for job_id in self._in_slots(unaware.chosen, region, mask):
                    if _elsewhere(unaware.chosen[job_id], best.chosen.get(job_id)):
                        notes.setdefault(job_id, sentence)
            elif high > peak.stands_w + LEAST_W:
                sentence = self._accepted(at, best, held)
            else:
                continue
            if high > peak.stands_w + LEAST_W:
                accepted = self._accepted(at, best, held)
                mask = peak.counts & (best.lanes[region].power > peak.stands_w + SLACK_W)
                for job_id in self._in_slots(best.chosen, region, mask):
                    notes.setdefault(job_id, accepted)
            told.append(NewPeak(region, peak.stands_w, high, self._price(at, high), sentence))
        return notes, tuple(told)

    def _held_below(self, at: int, best: Outcome, unaware: Outcome) -> str:
        """Why a new peak was not set."""
        peak = self.peaks[at][1]
        level_w, high_w = best.highest_w[at], unaware.highest_w[at]
        more = self._price(at, high_w) - self._price(at, level_w)
        saving = max(0.0, best.energy_cost - unaware.energy_cost)
        start = f"held below {kw(max(level_w, peak.stands_w))}: a new peak of {kw(high_w)} would cost {self._money(more)}"
        if unaware.broken > best.broken:
            return f"{start}, and jobs would be late"
        if more > saving:
            return f"{start}, more than the {self._money(saving)} it would save"
        total = unaware.demand_cost - best.demand_cost
        return f"{start}, with others {self._money(total)}, more than the {self._money(saving)} they would save"

    def _accepted(self, at: int, best: Outcome, held: Outcome) -> str:
        """Why a new peak is set all the same."""
        peak = self.peaks[at][1]
        high_w, cost = best.highest_w[at], self._price(at, best.highest_w[at])
        start = f"sets a new peak of {kw(high_w)} ({kw(peak.stands_w)} so far), which costs {self._money(cost)}"
        if held.highest_w[at] >= high_w - LEAST_W:
            return f"{start}: jobs could not all end in time without it"
        if held.broken > best.broken:
            return f"{start}: below {kw(max(held.highest_w[at], peak.stands_w))} jobs would be late"
        extra = held.energy_cost + held.demand_cost - best.energy_cost - best.demand_cost
        return (
            f"{start}: staying below {kw(max(held.highest_w[at], peak.stands_w))} would cost {self._money(extra)} more in all"
        )

    def _in_slots(self, chosen: Mapping[str, Option], region: str, mask: Bools) -> Iterator[str]:
        """Jobs that draw in a region in some of these slots."""
        edges = self.grid.edges
        before = np.concatenate(([0], np.cumsum(mask)))
        for task in self.tasks:
            option = chosen.get(task.job.id)
            if option is None or option.region != region:
                continue
            spans = np.array(option.intervals)
            first = np.maximum(np.searchsorted(edges, spans[:, 0] + 1e-6, side="right") - 1, 0)
            last = np.searchsorted(edges[:-1], spans[:, 1] - 1e-6, side="left")
            if (before[last] > before[first]).any():
                yield task.job.id

    def _money(self, amount: float) -> str:
        return f"{amount:.0f} {self.currency}" if abs(amount) >= 10 else f"{amount:.2g} {self.currency}"


#: Slots whose draw is above a level by no more than this many W are at it.
SLACK_W = 1e-3


def _elsewhere(one: Option, other: Option | None) -> bool:
    return other is None or (one.region, one.intervals) != (other.region, other.intervals)
