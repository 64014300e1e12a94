"""What each job would cost if it had a region to itself: for many jobs at once, so that most are then looked at in few regions.

Pure numpy. It knows ceilings and shift rules no more than it knows other jobs: what it says is never above what can be had.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policies.grid import Bools, Floats, Grid, Lane
from policies.world import SLACK

#: Jobs worked on at once: enough to be quick, few enough to stay in the processor's cache.
_BLOCK = 256


@dataclass(frozen=True, slots=True)
class Shape:
    """What matters of jobs in one region, an element each: seconds from now, draw in W, ``fixed`` in planning currency.
    ``whole`` tells which may not be paused."""

    ready_s: Floats
    end_s: Floats
    run_s: Floats
    power_w: Floats
    fixed: Floats
    whole: Bools

    def part(self, which: slice) -> "Shape":
        """Some of the jobs."""
        return Shape(*(getattr(self, name)[which] for name in self.__slots__))


@dataclass(frozen=True)
class Alone:
    """An element a job. ``floor`` is a cost that no schedule in this region undercuts (inf where none ends in time); ``cost``
    and ``start_s`` are of its best single window from the start of a slot (inf and the first moment where there is none)."""

    floor: Floats
    cost: Floats
    start_s: Floats


def alone(shape: Shape, lane: Lane, grid: Grid) -> Alone:
    """The jobs in one region, each as if nobody else were there; unknown stretches count as 0."""
    n = len(shape.ready_s)
    made = Alone(np.empty(n), np.empty(n), np.empty(n))
    for at in range(0, n, _BLOCK):
        part = slice(at, at + _BLOCK)
        jobs = shape.part(part)
        cost, start_s = _windows(jobs, lane, grid)
        floor = np.where(jobs.whole, np.minimum(cost, _ending_on_edges(jobs, lane, grid)), _pieces(jobs, lane, grid))
        made.cost[part], made.start_s[part] = _priced(cost, jobs), start_s
        made.floor[part] = _priced(floor, jobs)
    return made


def _priced(per_kw: Floats, jobs: Shape) -> Floats:
    """What the jobs cost at so much per kW; inf stays inf, also for a job that draws nothing (inf x 0 is no number)."""
    drawn = np.full_like(per_kw, np.inf)
    np.multiply(per_kw, jobs.power_w / 1000.0, out=drawn, where=per_kw != np.inf)
    return drawn + jobs.fixed


def _windows(jobs: Shape, lane: Lane, grid: Grid) -> tuple[Floats, Floats]:
    """Least cost per kW of a window that begins as soon as possible or with a slot, and its start."""
    first = jobs.ready_s[:, None]
    begins = np.maximum(grid.edges[None, :-1], first)
    ends = begins + jobs.run_s[:, None]
    costs = np.interp(ends, grid.edges, lane.integral) - np.interp(begins, grid.edges, lane.integral)
    costs[(ends > jobs.end_s[:, None] + SLACK) | (ends > grid.edges[-1] + SLACK)] = np.inf
    best = np.argmin(costs, axis=1)
    rows = np.arange(len(best))
    least = costs[rows, best]
    return least, np.where(np.isfinite(least), begins[rows, best], jobs.ready_s)


def _ending_on_edges(jobs: Shape, lane: Lane, grid: Grid) -> Floats:
    """Least cost per kW of a window that ends with a slot or at the deadline: with a price that is constant in each slot, the
    best of all windows begins or ends on an edge."""
    ends = np.minimum(grid.edges[None, 1:], jobs.end_s[:, None])
    begins = ends - jobs.run_s[:, None]
    costs = np.interp(ends, grid.edges, lane.integral) - np.interp(begins, grid.edges, lane.integral)
    costs[begins < jobs.ready_s[:, None] - SLACK] = np.inf
    least: Floats = costs.min(axis=1)
    return least


def _pieces(jobs: Shape, lane: Lane, grid: Grid) -> Floats:
    """Least cost per kW of the run time cut in any pieces."""
    order = np.argsort(lane.rate, kind="stable")
    begins, ends = grid.edges[:-1][order], grid.edges[1:][order]
    seconds = np.minimum(ends[None, :], jobs.end_s[:, None]) - np.maximum(begins[None, :], jobs.ready_s[:, None])
    np.maximum(seconds, 0.0, out=seconds)
    done = np.minimum(np.cumsum(seconds, axis=1), jobs.run_s[:, None])
    least: Floats = np.diff(done, axis=1, prepend=0.0) @ (lane.rate[order] / 3600.0)
    least[done[:, -1] < jobs.run_s - SLACK] = np.inf
    return least


def shape_of(jobs: Sequence[tuple[float, float, float, float, float, bool]]) -> Shape:
    """A Shape from (ready_s, end_s, run_s, power_w, fixed, whole) of each job."""
    table = np.array(jobs, dtype=np.float64).reshape(len(jobs), 6)
    ready_s, end_s, run_s, power_w, fixed, whole = table.T
    return Shape(ready_s, end_s, run_s, power_w, fixed, whole > 0)
