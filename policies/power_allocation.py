"""Which power caps keep every limit of a site's power tree at the least loss of work. Pure, numpy; the same input gives the
same caps.

Limits are nested (a node's within its branch's within the site's), and each job's throughput is taken as concave in its power,
so filling up from the lowest allowed caps, the best gain per W first and never past a limit, is optimal. It knows nothing of
time: what caps alone cannot reach is said in W, with the jobs that would have to pause."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policies.problem import Bools, Floats, Ints

#: Throughput that a job of each tier may lose to a cap.
TIER_LOSS = {"flex-0": 0.0, "flex-1": 0.10, "flex-2": 0.25, "flex-3": 0.50}
#: W by which sums may be off.
SLACK_W = 1e-6
#: Rounds in which the parts of jobs that lie on several branches are brought to one cap.
_ROUNDS = 6


@dataclass(frozen=True)
class Tree:
    """A power tree of m limits, parents before their children: ``parent`` (-1: the site), ``limit_w`` (inf: none) and
    ``fixed_w``, which is drawn right there whatever is capped. Both in W at the meter; a W of a GPU is ``pue`` W there."""

    names: tuple[str, ...]
    parent: Ints
    limit_w: Floats
    fixed_w: Floats
    pue: float = 1.0

    def __post_init__(self) -> None:
        sizes = {len(self.names), len(self.parent), len(self.limit_w), len(self.fixed_w)}
        if len(sizes) != 1:
            raise ValueError(f"names, parent, limit_w and fixed_w must be equally long, not {sorted(sizes)}")
        for at, parent in enumerate(self.parent):
            if not -1 <= parent < at:
                raise ValueError(f"parent[{at}]: {parent} must be -1 or the number of a limit before it")
        if np.any(np.isnan(self.limit_w)) or np.any(self.limit_w < 0) or not np.all(np.isfinite(self.fixed_w)):
            raise ValueError("limit_w must be 0 W or more (inf: no limit) and fixed_w finite")
        if not 1.0 <= self.pue <= 10.0:
            raise ValueError(f"pue: {self.pue!r} must be 1 or more")

    def levels(self) -> list[Ints]:
        """For each depth, the deepest first: which ancestor at that depth each limit has (itself at its own; -1: none)."""
        depth = np.zeros(len(self.parent), dtype=np.int64)
        for at, parent in enumerate(self.parent):
            depth[at] = 0 if parent < 0 else depth[parent] + 1
        found = []
        at_depth = np.arange(len(self.parent), dtype=np.int64)
        for level in range(int(depth.max(initial=0)), -1, -1):
            own = depth[at_depth] > level
            at_depth = np.where(own, self.parent[at_depth], at_depth)
            found.append(np.where(depth[at_depth] == level, at_depth, -1))
        return found


@dataclass(frozen=True)
class Units:
    """n groups of GPUs that are capped alike: those of one job below one limit of the tree (``leaf``).

    Per GPU: ``watts`` and ``speed`` (n, p) are points of its curve by rising power, ``full_w`` what it draws uncapped,
    ``low_w`` the lowest cap it may be given (``full_w`` where it must not be capped at all). ``gpus`` is how many there are,
    ``weight`` what one GPU's full speed is worth. Units with the same ``job`` (-1: none) run as fast as the slowest of them.
    ``pause_rank`` orders jobs by how soon they would be paused (nan: never)."""

    leaf: Ints
    gpus: Floats
    watts: Floats
    speed: Floats
    full_w: Floats
    low_w: Floats
    weight: Floats
    job: Ints
    pause_rank: Floats

    def __post_init__(self) -> None:
        if self.watts.shape != self.speed.shape or self.watts.ndim != 2:
            raise ValueError(f"watts {self.watts.shape} and speed {self.speed.shape} must be of one shape (units, points)")
        if np.any(np.diff(self.watts, axis=1) < 0) or np.any(np.diff(self.speed, axis=1) < -1e-9):
            raise ValueError("watts must rise along a curve, and speed never fall")
        for name in ("gpus", "full_w", "low_w", "weight"):
            values = getattr(self, name)
            if not np.all(np.isfinite(values)) or np.any(values < 0):
                raise ValueError(f"{name}: must be finite and 0 or more")
        if np.any(self.low_w > self.full_w + SLACK_W):
            raise ValueError("low_w must not be above full_w; give full_w where a unit must not be capped")


@dataclass(frozen=True)
class Shortfall:
    """A limit that caps alone cannot keep: ``short_w`` (at the meter) with everything at its lowest cap, the jobs that would
    have to pause, and what would still be missing then."""

    name: str
    short_w: float
    pause: tuple[int, ...]
    missing_w: float


@dataclass(frozen=True)
class Allocation:
    """``draw_w`` is each unit's draw per GPU, ``capped`` whether it needs a cap (of that many W) for it, ``speed`` its expected
    relative speed, ``throughput`` the weighted sum of all."""

    draw_w: Floats
    capped: Bools
    speed: Floats
    throughput: float
    shortfalls: tuple[Shortfall, ...]

    @property
    def met(self) -> bool:
        """Whether every limit is kept."""
        return not self.shortfalls


def allocate(units: Units, tree: Tree) -> Allocation:
    """Caps for these units, see the module."""
    high = units.full_w.copy()
    levels = tree.levels()
    draw = _fill(units, tree, levels, high)
    shared = _on_several(units)
    for _ in range(_ROUNDS if len(shared) else 0):
        # A job runs as fast as its slowest part: what the others could draw beyond that is better given to other jobs.
        slowest = np.full(int(units.job.max()) + 1, np.inf)
        slack = np.where(draw < units.full_w - SLACK_W, draw, np.inf)
        np.minimum.at(slowest, units.job[shared], slack[shared])
        high[shared] = np.maximum(np.minimum(high[shared], slowest[units.job[shared]]), units.low_w[shared])
        before, draw = draw, _fill(units, tree, levels, high)
        if np.allclose(before, draw, atol=1e-3):
            break
    speed = speed_at(units, draw)
    if len(shared):
        least = np.full(int(units.job.max()) + 1, np.inf)
        np.minimum.at(least, units.job[shared], speed[shared])
        speed[shared] = least[units.job[shared]]
    total = float(np.sum(units.weight * units.gpus * speed))
    return Allocation(draw, draw < units.full_w - 1e-3, speed, total, _shortfalls(units, tree, levels))


def _on_several(units: Units) -> Ints:
    """Units of jobs that have more than one."""
    known = units.job >= 0
    counts = np.bincount(units.job[known], minlength=1)
    several: Ints = np.flatnonzero(known & (counts[np.where(known, units.job, 0)] > 1))
    return several


def speed_at(units: Units, draw_w: Floats) -> Floats:
    """Relative speed of each unit when each of its GPUs draws that much."""
    watts, speed = units.watts, units.speed
    cell = np.clip((watts <= draw_w[:, None]).sum(axis=1) - 1, 0, watts.shape[1] - 2) if watts.shape[1] > 1 else None
    if cell is None:
        return speed[:, 0].copy()
    row = np.arange(len(draw_w))
    left, right = watts[row, cell], watts[row, cell + 1]
    part = np.clip(np.where(right > left, (draw_w - left) / np.where(right > left, right - left, 1.0), 1.0), 0.0, 1.0)
    found: Floats = speed[row, cell] + part * (speed[row, cell + 1] - speed[row, cell])
    return found


def segments(units: Units, high_w: Floats) -> tuple[Floats, Floats]:
    """(W per GPU, weighted speed per W) of each step of each unit's curve from its lowest cap to ``high_w``, the gain
    falling."""
    low, high = units.low_w, np.maximum(high_w, units.low_w)
    inner = np.clip(units.watts, low[:, None], high[:, None])
    watts = np.concatenate((low[:, None], inner, high[:, None]), axis=1)
    ends = speed_at(units, low)[:, None], speed_at(units, high)[:, None]
    within = np.where(units.watts <= low[:, None], ends[0], np.where(units.watts >= high[:, None], ends[1], units.speed))
    speed = _concave(watts, np.concatenate((ends[0], within, ends[1]), axis=1))
    width = np.diff(watts, axis=1)
    gain = np.where(width > 0, np.diff(speed, axis=1) / np.where(width > 0, width, 1.0), 0.0) * units.weight[:, None]
    return width, gain


def _concave(watts: Floats, speed: Floats) -> Floats:
    """The lowest concave curves above these: between two caps a limit can be kept by time on each."""
    width = np.diff(watts, axis=1)
    slope = np.where(width > 0, np.diff(speed, axis=1) / np.where(width > 0, width, 1.0), np.nan)
    at = np.flatnonzero((slope[:, 1:] > np.fmin.accumulate(slope, axis=1)[:, :-1] + 1e-12).any(axis=1))
    if not len(at):
        return speed
    raised = speed.copy()
    x, y = watts[at], speed[at]
    best = y.copy()
    for k in range(1, x.shape[1] - 1):
        (x0, y0), (x1, y1) = ((of[:, :k, None] for of in (x, y)), (of[:, None, k + 1 :] for of in (x, y)))
        span = x1 - x0
        part = np.where(span > 0, (x[:, k, None, None] - x0) / np.where(span > 0, span, 1.0), 0.0)
        best[:, k] = np.maximum(best[:, k], (y0 + part * (y1 - y0)).max(axis=(1, 2)))
    raised[at] = best
    return raised


def _below(values: Floats, leaf: Ints, tree: Tree) -> Floats:
    """Sums of values over everything below each limit of the tree."""
    sums = np.bincount(leaf, weights=values, minlength=len(tree.parent)).astype(np.float64)
    for at in range(len(tree.parent) - 1, 0, -1):
        if tree.parent[at] >= 0:
            sums[tree.parent[at]] += sums[at]
    return sums


def _fixed_below(tree: Tree) -> Floats:
    return _below(tree.fixed_w, np.arange(len(tree.parent)), tree)


def _fill(units: Units, tree: Tree, levels: Sequence[Ints], high: Floats) -> Floats:
    """Draw of each unit per GPU: from the lowest caps up, the best gain per W first, within every limit."""
    width, gain = segments(units, high)
    total = width * units.gpus[:, None]
    lowest = _below(units.low_w * units.gpus, units.leaf, tree)
    room = np.maximum((tree.limit_w - _fixed_below(tree)) / tree.pue - lowest, 0.0)
    scale = float(gain.max(initial=0.0)) or 1.0
    rank = -np.round(gain / scale, 12)
    unit, step = np.nonzero(total > 0)
    size, order_by = total[unit, step], rank[unit, step]
    for above in levels:
        node = above[units.leaf[unit]]
        size = _cut(size, order_by, node, room)
    taken = np.zeros(total.shape)
    taken[unit, step] = size
    filled = np.where(units.gpus > 0, taken.sum(axis=1) / np.where(units.gpus > 0, units.gpus, 1.0), 0.0)
    result: Floats = np.minimum(units.low_w + filled, units.full_w)
    return result


def _cut(size: Floats, rank: Floats, node: Ints, room: Floats) -> Floats:
    """What of each step fits below its limit, the lowest rank first; steps of one rank get equal shares of what is left."""
    asked = np.bincount(node[node >= 0], weights=size[node >= 0], minlength=len(room))
    tight = (node >= 0) & (asked > room)[node]
    which = np.flatnonzero(tight)
    if not len(which):
        return size
    order = which[np.lexsort((rank[which], node[which]))]
    wanted, there, by = size[order], node[order], rank[order]
    first = np.flatnonzero(np.concatenate(([True], (there[1:] != there[:-1]) | (by[1:] != by[:-1]))))
    sums = np.add.reduceat(wanted, first)
    whose = there[first]
    new = np.concatenate(([True], whose[1:] != whose[:-1]))
    running = np.concatenate(([0.0], np.cumsum(sums)))[:-1]
    before = running - running[new][np.cumsum(new) - 1]
    share = np.clip((room[whose] - before) / np.where(sums > 0, sums, 1.0), 0.0, 1.0)
    cut = size.copy()
    cut[order] = wanted * np.repeat(share, np.diff(np.concatenate((first, [len(order)]))))
    return cut


# --- what caps cannot do ------------------------------------------------------------------------------------------


def _shortfalls(units: Units, tree: Tree, levels: Sequence[Ints]) -> tuple[Shortfall, ...]:
    """Limits below which the lowest caps draw too much, the deepest first; a job that pauses for one counts for those above."""
    draw = units.low_w * units.gpus
    fixed = _fixed_below(tree)
    if np.all(_below(draw, units.leaf, tree) * tree.pue + fixed <= tree.limit_w + SLACK_W):
        return ()
    found = []
    left = draw.copy()
    for above in levels:
        for node in np.unique(above[above >= 0]):
            below = np.flatnonzero(above[units.leaf] == node)
            short_w = float(left[below].sum() * tree.pue + fixed[node] - tree.limit_w[node])
            if short_w <= SLACK_W:
                continue
            pause: list[int] = []
            missing_w = short_w
            for job in _by_rank(units, below, left):
                if missing_w <= SLACK_W:
                    break
                missing_w -= float(left[below[units.job[below] == job]].sum()) * tree.pue
                left[units.job == job] = 0.0  # it pauses everywhere
                pause.append(job)
            found.append(Shortfall(tree.names[node], short_w, tuple(pause), max(missing_w, 0.0)))
    return tuple(found)


def _by_rank(units: Units, which: Ints, left: Floats) -> list[int]:
    """The jobs among these units that may pause and still draw, the first one first."""
    able = which[(units.job[which] >= 0) & ~np.isnan(units.pause_rank[which]) & (left[which] > 0)]
    ranked = {int(units.job[at]): float(units.pause_rank[at]) for at in able}
    return sorted(ranked, key=lambda job: (ranked[job], job))
