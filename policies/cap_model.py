"""How fast a job runs, and what it draws, when its GPUs' power limit is lowered. Pure.

The form is physical: draw grows with the clock, work that waits for memory or the host does not. Which parameters a kind of
work has was fitted on measured sweeps of a few GPU types; every other type goes by a proxy, and says so. It knows nothing of a
single job but what its group has shown (see `Learned`): with nothing shown it answers with the class and a wide bar.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

from policies.problem import Floats
from policies.world import CapPoint

#: Caps below this share of a GPU's default limit are never offered: speed falls off a cliff there, and pausing is better.
LEAST_CAP = 0.5
#: Caps that a plan may choose from.
PLANNED_CAPS = (0.9, 0.8, 0.7, 0.6, 0.5)
#: Caps by which a curve is laid down; between them it is taken as straight.
GRID = tuple(round(LEAST_CAP + 0.05 * step, 2) for step in range(11))
#: What part of a class's spread is the form's own misfit, and not a difference between workloads.
MISFIT = 0.75
#: Observations of a group that are kept, the latest.
LATEST = 200
#: How far an observed relative speed may be off by itself (data, clocks, neighbours), as a standard deviation.
SPEED_NOISE = 0.03
#: The same for what a group's jobs draw, as a share of the GPU's default limit, and how wide a class is in that.
DRAW_NOISE, DRAW_SPREAD = 0.05, 0.15
#: How much wider the bar is where another GPU type stands in for the asked one.
PROXY_SPREAD = 2.0
#: Clocks are not lowered below this share of the highest one.
_LEAST_CLOCK = 0.02


@dataclass(frozen=True, slots=True)
class Response:
    """How one kind of work answers to a cap. Powers are shares of the GPU's default limit: ``static`` is drawn under load at
    any clock, ``cubic`` is the part of the rest that grows with the cube of the clock (the other part grows with the clock
    itself), ``stalled`` is the share of run time that no clock shortens. ``stalled_by_draw`` is added to that for each unit of
    draw above ``DRAW_CENTRE``: work that draws more waits less."""

    static: float
    cubic: float
    stalled: float
    stalled_by_draw: float = 0.0


#: Draw (share of the default limit) at which ``stalled`` is meant as it stands.
DRAW_CENTRE = 0.85


@dataclass(frozen=True, slots=True)
class WorkClass:
    """A kind of work on one GPU type, as fitted: jobs that draw ``low`` to ``high`` of the default limit without a cap,
    ``mean`` on average. ``spread`` is the standard deviation of relative speed of workloads that took no part in the fit."""

    name: str
    gpu: str
    low: float
    high: float
    mean: float
    spread: float
    response: Response


# Printed by "python tests/benchmarks/bench_models.py --constants", which fits them on the sweeps in data/power_curves.
CLASSES: tuple[WorkClass, ...] = (
    WorkClass(
        name="A100 fine-tuning and inference",
        gpu="A100",
        low=0.0,
        high=9.0,
        mean=0.881,
        spread=0.0134,
        response=Response(static=0.2333, cubic=0.8594, stalled=0.3738, stalled_by_draw=0.0),
    ),
    WorkClass(
        name="A100 training",
        gpu="A100",
        low=0.0,
        high=9.0,
        mean=0.955,
        spread=0.0215,
        response=Response(static=0.1854, cubic=0.5089, stalled=0.1233, stalled_by_draw=0.0),
    ),
    WorkClass(
        name="A40 heavy",
        gpu="A40",
        low=0.8,
        high=9.0,
        mean=0.869,
        spread=0.0622,
        response=Response(static=0.2542, cubic=0.125, stalled=0.5388, stalled_by_draw=-1.0312),
    ),
    WorkClass(
        name="A40 medium",
        gpu="A40",
        low=0.0,
        high=0.8,
        mean=0.678,
        spread=0.1026,
        response=Response(static=0.2146, cubic=0.0, stalled=0.2893, stalled_by_draw=0.0),
    ),
    WorkClass(
        name="P100 medium",
        gpu="P100",
        low=0.0,
        high=0.8,
        mean=0.66,
        spread=0.0207,
        response=Response(static=0.1, cubic=0.9957, stalled=0.0, stalled_by_draw=0.0),
    ),
    WorkClass(
        name="RTX6000 heavy",
        gpu="RTX6000",
        low=0.8,
        high=9.0,
        mean=0.9,
        spread=0.042,
        response=Response(static=0.3667, cubic=0.9958, stalled=0.4032, stalled_by_draw=-0.4746),
    ),
    WorkClass(
        name="RTX6000 medium",
        gpu="RTX6000",
        low=0.0,
        high=0.8,
        mean=0.705,
        spread=0.047,
        response=Response(static=0.3719, cubic=0.9911, stalled=0.4952, stalled_by_draw=0.0),
    ),
    WorkClass(
        name="V100 heavy",
        gpu="V100",
        low=0.8,
        high=9.0,
        mean=0.89,
        spread=0.0422,
        response=Response(static=0.262, cubic=0.0, stalled=0.8177, stalled_by_draw=-1.3535),
    ),
    WorkClass(
        name="V100 medium",
        gpu="V100",
        low=0.0,
        high=0.8,
        mean=0.712,
        spread=0.0377,
        response=Response(static=0.1583, cubic=0.75, stalled=0.1062, stalled_by_draw=0.0),
    ),
)
_BY_GPU: dict[str, tuple[WorkClass, ...]] = {}
for _one in CLASSES:
    _BY_GPU[_one.gpu] = (*_BY_GPU.get(_one.gpu, ()), _one)


def speed_under(cap: Floats, draw: Floats, response: Response) -> Floats:
    """Throughput relative to none under a cap, for jobs that draw ``draw`` uncapped (both shares of the default limit)."""
    shape = (np.asarray(response.static), np.asarray(response.cubic))
    stalled = np.clip(response.stalled + response.stalled_by_draw * (np.asarray(draw) - DRAW_CENTRE), 0.0, 0.95)
    return speeds(np.asarray(cap, dtype=np.float64), np.asarray(draw, dtype=np.float64), *shape, stalled)


def speeds(cap: Floats, draw: Floats, static: Floats, cubic: Floats, stalled: Floats) -> Floats:
    """The same for arrays of parameters, broadcast together."""
    static = np.minimum(static, 0.95 * draw)
    clock = clock_at((cap - static) / np.maximum(draw - static, 1e-9), cubic)
    result: Floats = np.where(cap >= draw, 1.0, 1.0 / (stalled + (1.0 - stalled) / clock))
    return result


def clock_at(level: Floats, cubic: Floats) -> Floats:
    """The highest clock (share of the highest one) whose dynamic draw is no more than ``level`` of that at full clock."""
    level, cubic = np.broadcast_arrays(np.asarray(level, dtype=np.float64), np.asarray(cubic, dtype=np.float64))
    clock = np.ones(level.shape)
    for _ in range(10):  # Newton from above on a convex function: it never crosses the root
        square = cubic * clock * clock
        excess = (square + 1.0 - cubic) * clock - level
        clock = np.maximum(clock - excess / np.maximum(3.0 * square + 1.0 - cubic, 1e-9), _LEAST_CLOCK)
    result: Floats = np.minimum(clock, 1.0)
    return result


# --- which class a job is of --------------------------------------------------------------------------------------


#: Part of a GPU's name -> the GPU whose sweeps stand for it, and whether they are its own.
_FAMILIES: tuple[tuple[str, str, bool], ...] = (
    ("A100", "A100", True),
    ("V100", "V100", True),
    ("P100", "P100", True),
    ("RTX 6000 ADA", "A40", False),
    ("RTX 6000", "RTX6000", True),
    ("RTX6000", "RTX6000", True),
    ("A40", "A40", True),
    ("L40", "A40", False),
    ("L4", "A40", False),
    ("A10", "A40", False),
    ("T4", "RTX6000", False),
    ("RTX", "A40", False),
)


def family(gpu_type: str | None) -> tuple[str, bool]:
    """The measured GPU that stands for a type (NVML's or Ray's name), and whether it is that type itself. Everything newer than
    the sweeps, and what is not known, goes by the data-centre training card."""
    name = (gpu_type or "").upper().replace("-", " ")
    return next(((gpu, own) for part, gpu, own in _FAMILIES if part in name), ("A100", False))


def classes_of(gpu_type: str | None, draw: float) -> tuple[WorkClass, ...]:
    """The classes that a job with that uncapped draw may be of: those whose range it falls in, else the nearest."""
    there = _BY_GPU[family(gpu_type)[0]]
    fitting = tuple(one for one in there if one.low <= draw < one.high)
    if fitting:
        return fitting
    nearest = min(abs(one.mean - draw) for one in there)
    return tuple(one for one in there if abs(one.mean - draw) == nearest)


def usual_draw(gpu_type: str | None) -> float:
    """What jobs of the measured workloads draw uncapped on average, as a share of the default limit."""
    there = _BY_GPU[family(gpu_type)[0]]
    return sum(one.mean for one in there) / len(there)


# --- a curve ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CapCurve:
    """Throughput against cap of one group's jobs on one GPU type. ``draw`` is their uncapped draw as a share of the default
    limit, ``speed`` the relative speed expected at each cap of ``GRID``, ``bar`` its standard deviation there, and ``basis``
    says what it rests on."""

    draw: float
    speed: tuple[float, ...]
    bar: tuple[float, ...]
    observations: int
    proxy: bool
    basis: str

    def at(self, cap: float) -> tuple[float, float]:
        """Relative speed under a cap, and its standard deviation. Raises ValueError for a cap that is not offered."""
        if not LEAST_CAP - 1e-9 <= cap <= 1.0 + 1e-9:
            raise ValueError(
                f"cap: {cap:g} must be {LEAST_CAP:g} to 1 of the default limit; below that a job is paused instead"
            )
        if cap >= self.draw:
            return 1.0, 0.0
        caps = self.caps
        return float(np.interp(cap, caps, self.speeds)), float(np.interp(cap, caps, (*self.bar, 0.0)))

    @cached_property
    def caps(self) -> tuple[float, ...]:
        """Where ``speed`` and ``bar`` are meant: the caps of GRID, as far as they bind, and the draw itself, where speed is
        1."""
        return (*(min(cap, self.draw) for cap in GRID), self.draw)

    @property
    def speeds(self) -> tuple[float, ...]:
        """The relative speeds at ``caps``."""
        return (*self.speed, 1.0)

    def points(self, caps: Iterable[float] = PLANNED_CAPS) -> tuple[CapPoint, ...]:
        """Draw and speed, relative to none, under each of ``caps``, the highest first; those below LEAST_CAP are left out."""
        offered = sorted({cap for cap in caps if LEAST_CAP - 1e-9 <= cap < 1.0}, reverse=True)
        return tuple(CapPoint(cap, min(1.0, cap / self.draw), self.at(cap)[0]) for cap in offered)

    @cached_property
    def sure(self) -> tuple[float, ...]:
        """The speeds that the jobs reach at ``caps`` with some certainty: one standard deviation below the expected ones, never
        rising as the cap falls."""
        low = [*(max(0.0, speed - bar) for speed, bar in zip(self.speed, self.bar, strict=True)), 1.0]
        return tuple(min(low[i:]) for i in range(len(low)))

    def least_cap(self, loss: float) -> float:
        """The lowest cap at which a job surely keeps ``1 - loss`` of its speed; 1 where no lower one does."""
        if loss not in self._least:
            self._least[loss] = self._least_cap(loss)
        return self._least[loss]

    @cached_property
    def _least(self) -> dict[float, float]:
        return {}

    def _least_cap(self, loss: float) -> float:
        least, caps, sure = 1.0 - loss, self.caps, self.sure
        if sure[0] >= least:
            return LEAST_CAP
        i = next(i for i in range(1, len(caps)) if sure[i] >= least)
        part = (least - sure[i - 1]) / (sure[i] - sure[i - 1])
        return min(1.0, max(LEAST_CAP, caps[i - 1] + part * (caps[i] - caps[i - 1])))


# --- learning -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Observation:
    """What agents saw of a group's job: the cap (share of the default limit; 1: none), the mean draw under it (same unit) and
    the speed relative to running without a cap (None: not known). ``noise`` is the standard deviation of that speed."""

    cap: float
    draw: float
    speed: float | None = None
    noise: float = SPEED_NOISE

    def __post_init__(self) -> None:
        if not 0.0 < self.cap <= 1.5:
            raise ValueError(f"cap: {self.cap!r} must be a share of the default limit, such as 0.7")
        if not 0.0 <= self.draw <= 2.0:
            raise ValueError(f"draw: {self.draw!r} must be a share of the default limit, such as 0.85")
        if self.speed is not None and not 0.0 < self.speed <= 2.0:
            raise ValueError(f"speed: {self.speed!r} must be relative to running without a cap, such as 0.9")
        if not self.noise > 0.0:
            raise ValueError(f"noise: {self.noise!r} must be above 0")


@dataclass(frozen=True, slots=True)
class _Candidates:
    """A net over what responses there may be: one row for each, all of equal standing before any data."""

    static: Floats
    cubic: Floats
    stalled: Floats


def _candidates() -> _Candidates:
    static, cubic, stalled = np.meshgrid(
        np.linspace(0.1, 0.4, 7), np.linspace(0, 1, 5), np.linspace(0, 0.85, 18), indexing="ij"
    )
    return _Candidates(static.ravel()[:, None], cubic.ravel()[:, None], stalled.ravel()[:, None])


_NET = _candidates()


def _net_speeds(cap: Floats, draw: float) -> Floats:
    return speeds(cap[None, :], np.float64(draw), _NET.static, _NET.cubic, _NET.stalled)  # type: ignore[arg-type]


@dataclass(slots=True)
class Learned:
    """What groups of jobs have shown, by group and GPU type. Draw and response of a job start from its class and move towards
    what was seen as more is seen."""

    _seen: dict[tuple[str, str], list[Observation]] = field(default_factory=dict)
    _curves: dict[tuple[str, str, float], CapCurve] = field(default_factory=dict)
    _taught: set[tuple[str, str]] = field(default_factory=set)

    def observe(self, group: str, gpu_type: str | None, one: Observation) -> None:
        """Take in one observation of a group's jobs on a GPU type."""
        key = (group, gpu_type or "")
        seen = self._seen.setdefault(key, [])
        seen.append(one)
        del seen[:-LATEST]
        if one.speed is None or one.cap >= 1.0:
            return  # it says nothing of the curve
        self._taught.add(key)
        for stale in [known for known in self._curves if known[:2] == key]:
            del self._curves[stale]

    def draw(self, group: str | None, gpu_type: str | None, stated: float | None = None) -> tuple[float, float]:
        """Uncapped draw of a group's jobs as a share of the default limit, and its standard deviation. ``stated`` is what their
        owner says; without it the class's mean stands until something was seen."""
        prior = usual_draw(gpu_type) if stated is None else min(max(stated, 0.02), 1.2)
        seen = self._seen.get((group or "", gpu_type or ""), []) if group else []
        # A capped job that draws as much as it may could draw more: it only tells where the cap does not bind.
        free = [one.draw for one in seen if one.draw < 0.93 * one.cap or one.cap >= 1.0]
        weight, prior_weight = len(free) / DRAW_NOISE**2, 1.0 / DRAW_SPREAD**2
        mean = (sum(free) / DRAW_NOISE**2 + prior * prior_weight) / (weight + prior_weight)
        least = (float(np.var(free)) / len(free)) ** 0.5 if len(free) > 1 else 0.0
        return mean, max((weight + prior_weight) ** -0.5, least)

    def curve(self, group: str | None, gpu_type: str | None, draw: float | None = None) -> CapCurve:
        """The curve of a group's jobs on a GPU type; ``draw`` is their uncapped draw (share of the default limit) where it is
        known, else it is the learned one."""
        draw = self.draw(group, gpu_type)[0] if draw is None else draw
        draw = round(min(max(draw, 0.05), 1.0), 2)  # the default limit holds it already
        shown = group if group and (group, gpu_type or "") in self._taught else ""
        key = (shown, gpu_type or "", draw)
        if key not in self._curves:
            if len(self._curves) > 4096:
                self._curves.clear()
            seen = self._seen[key[:2]] if shown else []
            self._curves[key] = _curve(gpu_type, draw, [one for one in seen if one.speed is not None and one.cap < 1.0])
        return self._curves[key]


@lru_cache(maxsize=512)
def _prior(gpu_type: str, draw: float) -> tuple[Floats, Floats, tuple[WorkClass, ...], bool]:
    """(speeds of the net on GRID, log weight of each of its rows, classes, proxy) before anything was seen."""
    grid = np.array(GRID)
    net = _net_speeds(grid, draw)
    classes, proxy = classes_of(gpu_type, draw), not family(gpu_type)[1]
    parts = []
    for one in classes:
        spread = one.spread * (PROXY_SPREAD if proxy else 1.0)
        own = speed_under(grid, np.full(len(grid), draw), one.response)
        parts.append(-0.5 * np.mean(((net - own[None, :]) / spread) ** 2, axis=1))
    weight: Floats = np.logaddexp.reduce(np.array(parts), axis=0)
    return net, weight, classes, proxy


def _curve(gpu_type: str | None, draw: float, seen: list[Observation]) -> CapCurve:
    net, log_weight, classes, proxy = _prior(gpu_type or "", draw)
    floor = min(one.spread for one in classes)
    if seen:
        caps, shown = np.array([one.cap for one in seen]), np.array([one.speed for one in seen])
        # Where the form itself fits a class badly, one point says less of the others.
        noise = np.hypot([one.noise for one in seen], MISFIT * floor)
        log_weight = log_weight - 0.5 * np.sum(((_net_speeds(caps, draw) - shown[None, :]) / noise[None, :]) ** 2, axis=1)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    mean = np.minimum(weight @ net, 1.0)
    scatter = np.sqrt(np.maximum(weight @ (net - mean[None, :]) ** 2, 0.0))
    # The form itself is only so good: with much data the bar shrinks to a part of the class's own spread, not to nothing. Where
    # the cap does not bind there is nothing to be unsure of.
    binds = np.array(GRID) < draw
    mean = np.where(binds, mean, 1.0)
    least = np.where(binds, floor / (1.0 + len(seen)) ** 0.5, 0.0)
    bar = np.where(binds, np.sqrt(scatter**2 + least**2), 0.0)
    names = " or ".join(one.name for one in classes)
    basis = f"{names}, measured on {classes[0].gpu}{' as a proxy' if proxy else ''}, {len(seen)} observations of the group"
    return CapCurve(draw, tuple(map(float, mean)), tuple(map(float, bar)), len(seen), proxy, basis)


def common_points(curves: Iterable[CapCurve], caps: Iterable[float] = PLANNED_CAPS) -> tuple[CapPoint, ...]:
    """Points that hold for all of these curves: the lowest speed and the highest draw of each cap."""
    caps = tuple(caps)
    found: dict[float, CapPoint] = {}
    for curve in curves:
        for point in curve.points(caps):
            other = found.get(point.cap, point)
            found[point.cap] = replace(point, draw=max(point.draw, other.draw), speed=min(point.speed, other.speed))
    return tuple(found[cap] for cap in sorted(found, reverse=True))
