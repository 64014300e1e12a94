"""Planning problems with a known feasible plan, drawn from real prices, carbon intensity and job traces. The same by seed.

Each is *planted*: first a hidden plan is made that serves every job at the wanted utilisation, then the fleet is given just
that much room (capacity = use / utilisation) and each job a window and regions around its hidden place. So every job can be
served, and an unserved one is the planner's fault. Costs are price + 100 USD/t of carbon. Lengths and widths come half from
the PAI and half from the Philly trace, arrivals are theirs, stretched to the horizon.

In power cases each region has a site limit a few percent above the hidden plan's draw, hour by hour, while jobs draw 150-700 W
a GPU: it binds nearly everywhere, whatever the utilisation of the GPUs.
"""

import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

from policies.problem import Answer, Fleet, Work
from tests.benchmarks import common

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CARBON_USD_PER_T = 100.0
GPU_W = (150.0, 700.0)
#: What unserved work costs, times the energy at the highest rate there is.
UNSERVED = 2.0
#: A site limit is at least this far above the hidden plan's mean draw of SMOOTH_S around, and never below its draw.
POWER_SLACK, SMOOTH_S = 0.03, 6 * 3600
#: Share of the jobs whose data lies in one region, and the most that fetching it elsewhere adds to the energy's cost.
WITH_DATA, MOVING = 0.5, 0.10
PUES = (1.1, 1.2, 1.3)
#: How often the hidden plan looks at each job, and how many places it weighs then.
PASSES, PLACES = 5, 16


@dataclass(frozen=True)
class Shape:
    """What a family of cases has in common. ``whole`` makes run times and windows whole slots. A job waits at most ``slack_h``
    (least, most; log-uniform) longer than it runs. Half the jobs may be paused, each time for ``again_s`` of run time."""

    jobs: int
    regions: int
    slots: int
    slot_s: int
    length_h: tuple[float, float]
    width: int
    slack_h: tuple[float, float]
    chunk_s: float
    again_s: float
    whole: bool = False

    @property
    def horizon_s(self) -> float:
        """Seconds that are planned."""
        return float(self.slots * self.slot_s)


@dataclass(frozen=True)
class Case:
    """One problem, and the hidden plan: lane and begin (s) of each job, run in one piece, and what it costs in all."""

    name: str
    shape: Shape
    utilisation: float
    tight: bool
    seed: int
    fleet: Fleet
    work: Work
    lane: Ints
    begin_s: Floats
    planted_cost: float


def exact_shape(jobs: int, regions: int) -> Shape:
    """Two days of hours, run times in whole hours: small enough for a proof."""
    return Shape(jobs, regions, 48, 3600, (1.0, 12.0), 4, (2.0, 24.0), chunk_s=7200.0, again_s=0.0, whole=True)


def scale_shape(jobs: int, extra_slots: int = 0) -> Shape:
    """A week of quarter hours in eight regions."""
    return Shape(jobs, 8, 672 + extra_slots, 900, (0.1, 24.0), 16, (2.0, 48.0), chunk_s=1800.0, again_s=60.0)


@lru_cache(maxsize=1)
def rates() -> tuple[tuple[str, ...], Floats]:
    """Regions that have price and carbon in 2023, and USD/kWh by region and hour; made-up days where the data is not there."""
    folder = data_folder()
    if folder is None:
        hours = np.arange(8760)
        day = [60 + 40 * np.sin((hours + 3 * i) * 2 * np.pi / 24) + 15 * np.sin(hours * (0.7 + i / 10)) for i in range(9)]
        return tuple(f"made-up-{i}" for i in range(9)), np.array(day) / 1000.0
    prices = _hourly(folder / "price_hourly_2023.csv.gz", "price_usd_mwh")
    carbon = _hourly(folder / "carbon_hourly_2023.csv.gz", "ci_direct_gco2_kwh")
    names = tuple(sorted(set(prices) & set(carbon)))
    return names, np.array([(prices[name] + carbon[name] * CARBON_USD_PER_T / 1000.0) / 1000.0 for name in names])


@lru_cache(maxsize=1)
def traces() -> tuple[tuple[Floats, Floats, Floats], ...]:
    """Arrival (h), length (h) and GPUs of each job of the PAI and the Philly trace by arrival; made up without the data."""
    folder = data_folder()
    if folder is None:
        draw = np.random.default_rng(7)
        made = (np.sort(draw.uniform(0, 8760, 20_000)), draw.lognormal(0.0, 1.3, 20_000), 2.0 ** draw.integers(0, 4, 20_000))
        return made, made
    pai = _columns(folder / "jobs_gaia_pai-100k.csv.gz", ("arrival_time", "length", "cpus"))
    philly = _columns(folder / "jobs_philly_gavel_msr_seed0.csv.gz", ("arrival_s", "duration_s_v100_est", "num_gpus"))
    philly = philly[:, np.isfinite(philly[1])] / np.array([[3600.0], [3600.0], [1.0]])
    philly = philly[:, np.argsort(philly[0], kind="stable")]
    return (pai[0], pai[1], pai[2]), (philly[0], philly[1], philly[2])


def data_folder() -> Path | None:
    """The traces beside the checkout, if they are there."""
    return common.data_folder("traces")


def _hourly(path: Path, column: str) -> dict[str, Floats]:
    """The year's hours of each region, in order; a missing value is the one before."""
    found: dict[str, list[float]] = {}
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            values = found.setdefault(row["region"], [])
            values.append(float(row[column]) if row[column] else values[-1])
    return {name: np.array(values) for name, values in found.items()}


def _columns(path: Path, names: tuple[str, ...]) -> Floats:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return np.array([[float(row[name] or "nan") for name in names] for row in csv.DictReader(file)]).T


def make(shape: Shape, utilisation: float, *, tight: bool, seed: int) -> Case:
    """The case of that seed."""
    draw = np.random.default_rng([seed, shape.jobs, shape.regions, round(100 * utilisation), int(tight)])
    n, t = shape.jobs, shape.slots
    names, all_rates = rates()
    picked = np.sort(draw.choice(len(names), shape.regions, replace=False))
    pue = draw.choice(PUES, shape.regions)
    hours = int(np.ceil(shape.horizon_s / 3600))
    at = int(draw.integers(0, all_rates.shape[1] - hours))
    hourly = all_rates[picked, at : at + hours] * pue[:, None]
    rate = np.repeat(hourly, 3600 // shape.slot_s, axis=1)[:, :t]

    arrival, run_s, gpus = _demand(shape, draw)
    allowed = _allowed(shape, draw)
    slots = np.ceil(run_s / shape.slot_s - 1e-9).astype(np.int64)
    share = draw.dirichlet(np.full(shape.regions, 8.0))
    order = np.argsort(-(gpus * slots), kind="stable")
    places = draw.random((n, PASSES, PLACES, 2))
    lane, slot = _plant(order, np.floor(arrival * t).astype(np.int64), slots, gpus, allowed, share, places, t, shape.slot_s)
    begin_s = slot * float(shape.slot_s)
    power_w = gpus * np.round(draw.uniform(*GPU_W, n), 0)
    used, drawn = _use(lane, slot, slots, gpus, power_w * pue[lane], shape.regions, t)

    ready_s, last_s = _windows(shape, begin_s, run_s, draw)
    energy_kwh = power_w * run_s / 3.6e6
    data_in = np.where(draw.random(n) < WITH_DATA, lane, -1)
    moving = draw.uniform(0.0, MOVING, (n, shape.regions)) * (energy_kwh * np.abs(hourly).mean())[:, None]
    far = (data_in[:, None] >= 0) & (np.arange(shape.regions) != data_in[:, None])
    pausable = draw.random(n) < 0.5

    gpu_room = np.array([_room(row, utilisation) for row in used])
    watts = _site_limit(drawn, shape.slot_s) if tight else np.full((shape.regions, t), np.inf)
    fleet = Fleet(
        edges_s=np.arange(t + 1, dtype=np.float64) * shape.slot_s,
        rate=np.ascontiguousarray(rate),
        known=np.ones((shape.regions, t), dtype=bool),
        region=np.arange(shape.regions, dtype=np.int64),
        pue=pue.astype(np.float64),
        gpus=gpu_room,
        lane_w=np.full((shape.regions, t), np.inf),
        region_w=watts,
        starts=np.full((shape.regions, t), np.inf),
        masks=np.zeros((1, t), dtype=bool),
    )
    work = Work(
        last_s=last_s,
        gpus=gpus,
        power_w=power_w,
        pausable=pausable,
        again_s=np.full(n, shape.again_s),
        chunk_s=np.full(n, shape.chunk_s),
        pause_cost=np.zeros(n),
        unserved_cost=UNSERVED * float(rate.max()) * energy_kwh,
        team=np.zeros(n, dtype=np.int64),
        team_gpus=np.full((1, t), np.inf),
        ready_s=np.where(allowed, ready_s[:, None], np.inf),
        run_s=np.repeat(run_s[:, None], shape.regions, axis=1),
        fixed=np.where(far, moving, 0.0),
        mask=np.zeros((n, shape.regions), dtype=np.int64),
        draw=np.ones((n, shape.regions)),
        cap_draw=np.ones(1),
        cap_speed=np.ones(1),
        caps=np.ones((n, 1), dtype=bool),
        here=np.full(n, -1, dtype=np.int64),
    )
    cost = float(whole_costs(fleet, work, lane, begin_s).sum())
    name = f"{n} jobs {round(100 * utilisation)} %{' power' if tight else ''} seed {seed}"
    return Case(name, shape, utilisation, tight, seed, fleet, work, lane, begin_s, cost)


def _demand(shape: Shape, draw: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """Arrival (share of the horizon), run time (s) and GPUs: half the jobs a stretch of each trace, which repeats when it ends.
    Of a few jobs only the arrivals are a stretch: some stretches have nothing but jobs of minutes."""
    parts = []
    for (arrival_h, length_h, width), n in zip(traces(), (shape.jobs - shape.jobs // 2, shape.jobs // 2), strict=True):
        index = (int(draw.integers(len(arrival_h))) + np.arange(n)) % len(arrival_h)
        which = draw.integers(len(arrival_h), size=n) if shape.whole else index
        gaps = np.diff(arrival_h[index], prepend=arrival_h[index[0]])
        gaps[gaps < 0] = np.median(gaps[gaps >= 0])
        when = np.cumsum(gaps)
        parts.append(
            (when / max(when[-1], 1e-9), np.clip(length_h[which], *shape.length_h), np.clip(width[which], 1, shape.width))
        )
    arrival, length_h, width = (np.concatenate(column) for column in zip(*parts, strict=True))
    if shape.whole:
        length_h = np.ceil(length_h)
    return arrival, np.round(length_h * 3600.0), np.round(width)


def _allowed(shape: Shape, draw: np.random.Generator) -> NDArray[np.bool_]:
    """From one region to all of them, each number as likely."""
    rank = np.argsort(draw.random((shape.jobs, shape.regions)), axis=1).argsort(axis=1)
    return np.asarray(rank < draw.integers(1, shape.regions + 1, shape.jobs)[:, None])


def _windows(shape: Shape, begin_s: Floats, run_s: Floats, draw: np.random.Generator) -> tuple[Floats, Floats]:
    """Ready and last second of each job: its hidden place with slack divided at random before and after it."""
    n = len(begin_s)
    slack_s = 3600.0 * np.exp(draw.uniform(*np.log(shape.slack_h), n))
    before = draw.random(n) * slack_s
    ready_s = np.maximum(begin_s - before, 0.0)
    last_s = np.minimum(begin_s + run_s + slack_s - before, shape.horizon_s)
    if shape.whole:
        ready_s, last_s = (shape.slot_s * np.round(values / shape.slot_s) for values in (ready_s, last_s))
        return np.minimum(ready_s, begin_s), np.maximum(last_s, begin_s + run_s)
    return np.floor(ready_s), np.ceil(last_s)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _plant(order, arrival, slots, gpus, allowed, share, places, t, slot_s):  # type: ignore[no-untyped-def]
    """Lane and first slot of each job: of some random places within a day of its arrival the one where least is, and then a
    few times over, each time among others: use becomes level over time and over regions by their share."""
    n, lanes = allowed.shape
    used = np.zeros((lanes, t))
    lane, slot = np.full(n, -1, np.int64), np.zeros(n, np.int64)
    day = 86400 // slot_s
    for passed in range(places.shape[1]):
        for j in order:
            if passed:
                for s in range(slot[j], slot[j] + slots[j]):
                    used[lane[j], s] -= gpus[j]
            best = np.inf
            for p in range(places.shape[2] + 1):
                if p < places.shape[2]:
                    at = int(places[j, passed, p, 0] * allowed[j].sum())
                    where = -1
                    for candidate in range(lanes):
                        if allowed[j, candidate]:
                            at -= 1
                            if at < 0:
                                where = candidate
                                break
                    first = min(max(arrival[j] + int((2.0 * places[j, passed, p, 1] - 1.0) * day), 0), t - slots[j])
                elif passed:
                    where, first = lane[j], slot[j]
                else:
                    continue
                total = 0.0
                for s in range(first, first + slots[j]):
                    total += used[where, s]
                # what the sum of squares of use grows by
                height = (2.0 * total / slots[j] + gpus[j]) / share[where]
                if height < best:
                    best = height
                    new_lane, new_slot = where, first
            lane[j], slot[j] = new_lane, new_slot
            for s in range(slot[j], slot[j] + slots[j]):
                used[lane[j], s] += gpus[j]
    return lane, slot


@njit(cache=True)  # type: ignore[untyped-decorator]
def _use(lane, slot, slots, gpus, watts, lanes, t):  # type: ignore[no-untyped-def]
    """GPUs and W in use by lane and slot."""
    used, drawn = np.zeros((lanes, t)), np.zeros((lanes, t))
    for j in range(len(lane)):
        for s in range(slot[j], slot[j] + slots[j]):
            used[lane[j], s] += gpus[j]
            drawn[lane[j], s] += watts[j]
    return used, drawn


def _room(used: Floats, utilisation: float) -> Floats:
    """A level number of GPUs, more only where the hidden plan uses more: in all it uses ``utilisation`` of them."""
    levels = np.arange(0, np.ceil(used.max() / utilisation) + 2)
    off = [abs(used.sum() / max(np.maximum(level, used).sum(), 1.0) - utilisation) for level in levels]
    return np.maximum(levels[int(np.argmin(off))], used)


def _site_limit(drawn: Floats, slot_s: int) -> Floats:
    """W at the meter by region and slot: the hidden draw, smoothed, plus POWER_SLACK; in whole W, never below the draw."""
    wide = max(1, SMOOTH_S // slot_s)
    near = np.array(
        [np.convolve(np.pad(row, wide, mode="edge"), np.ones(wide) / wide, mode="same")[wide:-wide] for row in drawn]
    )
    return np.ceil(np.maximum(near * (1 + POWER_SLACK), drawn))


def whole_costs(fleet: Fleet, work: Work, lane: Ints, begin_s: Floats) -> Floats:
    """What each job costs in one piece, uncapped, in ``lane`` from ``begin_s``: energy, carbon and beginning there."""
    jobs = np.arange(len(work))
    integral = np.concatenate((np.zeros((len(fleet.rate), 1)), np.cumsum(fleet.rate * fleet.lengths_s, axis=1)), axis=1)
    end_s = begin_s + work.run_s[jobs, lane]
    out = np.zeros(len(work))
    for number, row in enumerate(integral):
        mine = lane == number
        span = np.interp(end_s[mine], fleet.edges_s, row) - np.interp(begin_s[mine], fleet.edges_s, row)
        out[mine] = work.power_w[mine] * work.draw[mine, number] * span / 3.6e6
    return np.asarray(out + work.fixed[jobs, lane])


# --- lists of cases, and what comes after one --------------------------------------------------------------------------


def exact_cases(*, quick: bool = False) -> Iterator[Case]:
    """The fixed list of small ones: 126 of them, 6 when quick. Of the largest there are few: they take long to prove."""
    for jobs, regions, seeds in ((40, 2, 1),) if quick else ((40, 2, 10), (50, 3, 8), (60, 2, 3)):
        for utilisation in (0.6, 0.8, 0.95):
            for tight in (False, True):
                for seed in range(seeds):
                    yield make(exact_shape(jobs, regions), utilisation, tight=tight, seed=seed)


def pick(work: Work, jobs: NDArray[np.bool_] | Ints) -> Work:
    """The same work with these jobs only."""
    shared = ("team_gpus", "cap_draw", "cap_speed")
    mine = {name: values[jobs] for name, values in vars(work).items() if name not in shared and values is not None}
    return replace(work, **mine)


def later(case: Case, answer: Answer, first: int, slots: int) -> tuple[Fleet, Work, Ints]:
    """The problem ``slots`` slots on, when ``answer`` for the first ``first`` jobs was followed and the others have come.

    What has ended is gone. What runs and cannot be paused keeps its room; what was paused or can be goes on with what is left.
    Returns the fleet, the work and which of the case's jobs it holds.
    """
    fleet, work = case.fleet, case.work
    now = float(fleet.edges_s[slots])
    edges, lengths = fleet.edges_s, fleet.lengths_s
    gpus, watts = fleet.gpus[:, slots:].copy(), fleet.region_w[:, slots:].copy()
    keep, here = np.ones(len(work), dtype=bool), np.full(len(work), -1, dtype=np.int64)
    run_s, ready_s, fixed = work.run_s.copy(), work.ready_s.copy(), work.fixed.copy()
    assert len(lengths) == fleet.rate.shape[1]
    for j in range(first):
        lane = int(answer.lane[j])
        runs = slice(int(answer.first[j]), int(answer.first[j + 1]))
        begin, end = answer.begin_s[runs], answer.end_s[runs]
        if lane < 0 or begin[0] >= now:
            continue
        done_s = float(np.clip(np.minimum(end, now) - begin, 0.0, None).sum())
        left_s = float((end - begin).sum()) - done_s
        if left_s <= 1e-6:
            keep[j] = False
        elif not work.pausable[j]:
            keep[j] = False
            held = np.searchsorted(edges, end[-1] - 1e-6) - slots
            gpus[lane, :held] -= work.gpus[j]
            watts[fleet.region[lane], :held] -= work.power_w[j] * work.draw[j, lane] * fleet.pue[lane]
        else:
            running = bool(((begin < now) & (end > now)).any())
            more = int((end > now).sum()) - 1
            # elsewhere it could go on too, but its state lies here
            ready_s[j, np.arange(len(fleet.rate)) != lane] = np.inf
            run_s[j] = left_s - more * work.again_s[j]
            fixed[j, lane] = 0.0
            here[j] = lane if running else -1
    kept = np.flatnonzero(keep)
    moved = replace(
        fleet,
        edges_s=edges[slots:] - now,
        rate=np.ascontiguousarray(fleet.rate[:, slots:]),
        known=np.ascontiguousarray(fleet.known[:, slots:]),
        gpus=gpus,
        lane_w=np.ascontiguousarray(fleet.lane_w[:, slots:]),
        region_w=watts,
        starts=np.ascontiguousarray(fleet.starts[:, slots:]),
        masks=np.ascontiguousarray(fleet.masks[:, slots:]),
    )
    changed = replace(
        work,
        last_s=work.last_s - now,
        ready_s=np.maximum(ready_s - now, 0.0),
        run_s=run_s,
        fixed=fixed,
        here=here,
        team_gpus=np.ascontiguousarray(work.team_gpus[:, slots:]),
    )
    return moved, pick(changed, kept), kept
