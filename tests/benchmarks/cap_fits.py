"""Sweeps of throughput against power cap, and the fit of policies.cap_model's classes on them; numpy only.

A class is all sweeps of one GPU type whose uncapped draw falls in one range (on the A100-class cluster: of one kind of work).
"""

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from policies.cap_model import DRAW_CENTRE, Response, WorkClass, clock_at, speed_under, speeds
from policies.problem import Floats

#: Default limits of the swept GPUs, W, and what they draw idle (data/power_curves/gpu_specs.csv), for the cube-root baseline.
DEFAULT_W = {"A100": 400.0, "V100": 250.0, "A40": 300.0, "RTX6000": 260.0, "P100": 250.0}
IDLE_W = {"A100": 55.0, "V100": 38.0, "A40": 22.0, "RTX6000": 20.0, "P100": 34.0}
#: Rescaled copies of another workload, which would count it three times.
COPIES = frozenset({"infer_llama_8b_32g", "infer_llama_8b_48g"})
#: Sweeps with fewer points show no curve.
FEWEST = 4
#: Draw is a share of the default limit: above the first, heavy; from the second on, medium; light work hardly meets a cap.
HEAVY, MEDIUM = 0.8, 0.55
#: Bounds of static, cubic, stalled and stalled_by_draw.
LOW, HIGH = np.array([0.1, 0.0, 0.0, -1.5]), np.array([0.4, 1.0, 0.85, 1.5])
#: Keeps stalled_by_draw small where the data hardly tell.
RIDGE = 3e-4
#: Points of the net from which a fit is refined, and in how many rounds.
STARTS, ROUNDS = 2, 12


@dataclass(frozen=True)
class Sweep:
    """One workload on one GPU type: relative speed (1 at the highest cap) against cap, powers as shares of the default
    limit."""

    gpu: str
    network: str
    setting: str
    cap: Floats
    speed: Floats
    draw: float


def read_sweeps(folder: Path) -> list[Sweep]:
    """All sweeps of data/power_curves, in a stable order."""
    rows: dict[tuple[str, str, str], list[tuple[float, float, float]]] = {}
    with (folder / "emerald" / "dvfs_sweep.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["Workload"] not in COPIES:
                point = float(row["GPU power cap"]), float(row["throughput"]), float(row["power per GPU"])
                rows.setdefault(("A100", row["Workload"], ""), []).append(point)
    for gpu in ("V100", "A40", "RTX6000", "P100"):
        with (folder / "zeus" / f"summary_power_{gpu.lower()}.csv").open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                key = gpu, f"{row['dataset']}/{row['network']}", f"{row['batch_size']} {row['optimizer']}"
                point = float(row["power_limit"]), 1.0 / float(row["time_per_epoch"]), float(row["average_power"])
                rows.setdefault(key, []).append(point)
    sweeps = []
    for (gpu, network, setting), points in sorted(rows.items()):
        table = np.array(sorted(points))
        if len(table) >= FEWEST:
            top, limit = table[-1], DEFAULT_W[gpu]
            sweeps.append(Sweep(gpu, network, setting, table[:, 0] / limit, table[:, 1] / top[1], float(top[2] / limit)))
    return sweeps


def by_class(sweeps: Iterable[Sweep]) -> dict[str, list[Sweep]]:
    """Sweeps by the name of their class; light ones have none."""
    groups: dict[str, list[Sweep]] = {}
    for one in sweeps:
        if one.gpu == "A100":
            kind = "training" if one.network.startswith("pt_") else "fine-tuning and inference"
        else:
            kind = "heavy" if one.draw > HEAVY else "medium" if one.draw >= MEDIUM else ""
        if kind:
            groups.setdefault(f"{one.gpu} {kind}", []).append(one)
    return groups


def has_slope(sweeps: Sequence[Sweep]) -> bool:
    """Whether a class has sweeps enough, and wide enough in draw, to tell how stalling goes with draw: the heavy ones."""
    return sweeps[0].gpu != "A100" and sweeps[0].draw > HEAVY


@dataclass(frozen=True)
class Points:
    """The points of several sweeps below one another; ``of`` is the number of each point's sweep, ``top`` marks the ones at the
    highest cap, where the relative speed is 1 by its definition."""

    cap: Floats
    speed: Floats
    draw: Floats
    of: Floats
    top: Floats


def points_of(sweeps: Sequence[Sweep]) -> Points:
    """All points of these sweeps."""
    return Points(
        np.concatenate([one.cap for one in sweeps]),
        np.concatenate([one.speed for one in sweeps]),
        np.concatenate([np.full(len(one.cap), one.draw) for one in sweeps]),
        np.concatenate([np.full(len(one.cap), number) for number, one in enumerate(sweeps)]),
        np.concatenate([np.arange(len(one.cap)) == len(one.cap) - 1 for one in sweeps]),
    )


class Fit:
    """Fits a class on any part of its points: a net over all parameters, then finer nets around the best of it. The net's
    errors are worked out once for all parts."""

    def __init__(self, points: Points, *, slope: bool) -> None:
        self._points = points
        self._power = 1.5 if slope else 2.0
        self._steps = np.array([10, 8, 15, 9 if slope else 1])
        self._slope = slope
        self._net = _net(LOW if slope else LOW * [1, 1, 1, 0], HIGH if slope else HIGH * [1, 1, 1, 0], tuple(self._steps))
        self._errors = self._errors_of(self._net, np.ones(len(points.cap), dtype=bool))

    def _errors_of(self, net: Floats, which: Floats) -> Floats:
        p = self._points
        stalled = np.clip(net[:, 2:3] + net[:, 3:4] * (p.draw[None, which] - DRAW_CENTRE), 0.0, 0.95)
        found = speeds(p.cap[None, which], p.draw[None, which], net[:, 0:1], net[:, 1:2], stalled)
        return np.abs(found / p.speed[None, which] - 1.0) ** self._power

    def on(self, which: Floats) -> Response:
        """The response that fits the points marked in ``which`` best."""
        which = which & ~self._points.top
        errors = self._errors[:, which].mean(axis=1) + RIDGE * self._net[:, 3] ** 2
        found = [self._refined(self._net[start], float(errors[start]), which) for start in np.argsort(errors)[:STARTS]]
        return Response(*(round(float(value), 4) for value in min(found, key=lambda one: one[1])[0]))

    def _refined(self, best: Floats, least: float, which: Floats) -> tuple[Floats, float]:
        """The best point found from a start, by ever smaller steps in all directions at once, and its error."""
        reach = (HIGH - LOW) / np.maximum(self._steps - 1, 1) / 2 * (1, 1, 1, self._slope)
        for _ in range(ROUNDS):
            net = _net(np.maximum(best - reach, LOW), np.minimum(best + reach, HIGH), (3, 3, 3, 3 if self._slope else 1))
            if not self._slope:
                net[:, 3] = 0.0
            errors = self._errors_of(net, which).mean(axis=1) + RIDGE * net[:, 3] ** 2
            if errors.min() < least:
                best, least = net[int(np.argmin(errors))], float(errors.min())
            else:
                reach = reach / 2
        return best, least


def _net(low: Floats, high: Floats, steps: tuple[int, ...]) -> Floats:
    axes = [np.linspace(a, b, n) for a, b, n in zip(low, high, steps, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 4)


def left_out(sweeps: Sequence[Sweep], key: Callable[[Sweep], str]) -> tuple[Floats, Floats]:
    """(relative errors, whether the point is a reference) of every point, predicted by a fit without its ``key``."""
    points = points_of(sweeps)
    fit = Fit(points, slope=has_slope(sweeps))
    keys = np.array([key(one) for one in sweeps])[points.of.astype(int)]
    errors = np.zeros(len(points.cap))
    for name in sorted(set(keys.tolist())):
        out = keys == name
        response = fit.on(~out)
        errors[out] = speed_under(points.cap[out], points.draw[out], response) / points.speed[out] - 1.0
    return errors, points.top


def baselines(sweeps: Sequence[Sweep]) -> tuple[Floats, Floats]:
    """Relative errors of every point by two common rules: speed in proportion to power, and the clock as the cube root of the
    power above idle."""
    points, gpu = points_of(sweeps), sweeps[0].gpu
    idle = IDLE_W[gpu] / DEFAULT_W[gpu]
    linear = np.minimum(points.cap / points.draw, 1.0)
    level = np.clip((points.cap - idle) / (points.draw - idle), 1e-6, 1.0)
    cube = np.where(points.cap >= points.draw, 1.0, clock_at(level, np.ones(len(level))))
    return linear / points.speed - 1.0, cube / points.speed - 1.0


def fitted(name: str, sweeps: Sequence[Sweep]) -> WorkClass:
    """The class as policies.cap_model has it, fitted on all of its sweeps."""
    points = points_of(sweeps)
    response = Fit(points, slope=has_slope(sweeps)).on(np.ones(len(points.cap), dtype=bool))
    errors, top = left_out(sweeps, lambda one: one.network)
    binding = ~top & (points.cap >= 0.5 - 1e-9) & (points.cap < points.draw)
    spread = float(np.sqrt(np.mean((errors[binding] * points.speed[binding]) ** 2)))
    kind = name.split(" ", 1)[1]
    low, high = {"heavy": (HEAVY, 9.0), "medium": (0.0, HEAVY)}.get(kind, (0.0, 9.0))
    mean = float(np.mean([one.draw for one in sweeps]))
    return WorkClass(name, sweeps[0].gpu, low, high, round(mean, 3), round(spread, 4), response)
