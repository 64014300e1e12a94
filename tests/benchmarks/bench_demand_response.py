"""Demand response: how good, how fast, and how safe.

(a) trial: on the fleet of the published field trial (256 GPUs, its own sweep and traces) our power loop against the best there
is, the trial's own result and its four simple strategies; (b) path: from a signed webhook to the last GPU's limit (dr_path);
(c) driver: a cut of 30 % on our own driver (dr_driver); (d) days: 72 h of events and faults (dr_days). ``--only`` chooses
parts, ``--quick`` shortens all of them, ``--plot FILE`` draws (a)."""

import argparse
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from dispatcher.config import Config
from dispatcher.power.caps import CapLoop
from policies.power_allocation import TIER_LOSS
from policies.problem import Floats
from policies.world import Budget, World
from tests.benchmarks import dr_days, dr_driver, dr_path
from tests.benchmarks.common import data_folder, report, without_data
from tests.benchmarks.dr_fleet import JOBS, REGION, THEIRS, Disturbance, Fleet, measured, optimum, strategies

TRIAL = (
    "trial: its fleet in virtual time, a second a step: six jobs on 256 GPUs that draw and run by its measured sweep, a "
    "lag of 1 s, played to the real power loop through its real hub; the loop knows neither the sweep nor what the jobs "
    "draw before it sees it; but for 'unlearned', each job's group was seen at 300, 250 and 200 W before, its speed off by "
    "a random 3 %; the same cuts as measured there, below the fleet's own base; throughput: of each job's slowest GPU, "
    "weighted by GPUs, mean over the hold; optimum: a linear programme over the true sweep, caps of at least 200 W, floors "
    "kept, at the power asked for; hold: from 5 min after a step; noisy: work varies by 2 %, sensors by 2 %, told 2 s late; "
    "over-shed: the lowest minute below what was asked, in points of base; strategies: at the same power, by the true sweep"
)
METHODS = {"trial": TRIAL, "path": dr_path.METHOD, "driver": dr_driver.METHOD, "days": dr_days.METHOD}
RECOVERY_S = 900.0
SETTLE_S = 300


@dataclass(frozen=True)
class Step:
    """A limit as a share of base, for so many seconds."""

    share: float
    seconds: int


@dataclass(frozen=True)
class Run:
    """Draw each second, W; what each job ran at each second; where each step begins and the last ends."""

    base_w: float
    draw_w: Floats
    speed: Floats
    edges: tuple[int, ...]


def run(folder: Path, steps: tuple[Step, ...], how: Disturbance, after_s: int, *, learned: bool = True) -> Run:
    """An event of these steps. ``learned``: the jobs' groups have run under caps before."""
    before_s = 900
    start = datetime(2025, 5, 4, 22, 0, tzinfo=UTC)
    fleet = Fleet(folder, start, how)
    region = {"name": REGION, "address": "http://phoenix", "price": [{"feed": "synthetic"}]}
    loop = CapLoop(Config.model_validate({"region": [region]}), fleet.hub, mono=fleet.mono)
    if learned:
        fleet.teach(loop.learned)
    jobs, view, budgets, edges = fleet.jobs(), fleet.region(), list[Budget](), [before_s]
    at = start + timedelta(seconds=before_s)
    for step in steps:
        end = at + timedelta(seconds=step.seconds)
        last = step is steps[-1]
        back_s = RECOVERY_S if last else None
        budgets.append(Budget(REGION, at, end, step.share * fleet.base_w, "trial", "the trial's event", recovery_s=back_s))
        edges.append(edges[-1] + step.seconds)
        at = end
    draws, speeds = [], []
    total = edges[-1] + after_s
    for second in range(total):
        known = tuple(b for b in budgets if b.end is not None and b.end + timedelta(seconds=b.recovery_s or 0.0) > fleet.now)
        loop.power(World(fleet.now, jobs, (view,), known), fleet.now)
        draws.append(fleet.step())
        speeds.append(fleet.speed())
        if sys.stderr.isatty() and second % 60 == 0:
            print(f"\r{second / total:4.0%}", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r    \r", end="", file=sys.stderr)
    return Run(fleet.base_w, np.array(draws), np.array(speeds), tuple(edges))


def minutes(draw_w: Floats) -> Floats:
    """Means by the minute, W."""
    whole = len(draw_w) // 60 * 60
    means: Floats = draw_w[:whole].reshape(-1, 60).mean(axis=1)
    return means


def judged(name: str, folder: Path, steps: tuple[Step, ...], found: Run) -> dict[str, float]:
    """The figures of one run."""
    weights = np.array([gpus for _, gpus, _ in JOBS]) / sum(gpus for _, gpus, _ in JOBS)
    ratio, cut, error, over, shed, to_target, broken = [], [], list[Floats](), 0, 0.0, 0.0, 0
    for step, begin, end in zip(steps, found.edges, found.edges[1:], strict=False):
        target = step.share * found.base_w
        hold = slice(begin + SETTLE_S, end)
        speed = found.speed[hold].mean(axis=0)
        ratio.append(float(speed @ weights) / optimum(folder, target))
        cut.append(1.0 - float(found.draw_w[hold].mean()) / found.base_w)
        error.append((found.draw_w[hold] - target) / found.base_w)
        by_minute = minutes(found.draw_w[hold])
        over += int(np.sum(by_minute > target))
        shed = max(shed, float(target - by_minute.min()) / found.base_w)
        reached = np.flatnonzero(found.draw_w[begin:end] <= target)
        to_target = max(to_target, float(reached[0]) if len(reached) else float("inf"))
        floors = np.array([1.0 - TIER_LOSS[tier] for _, _, tier in JOBS])
        broken += int(np.sum(speed < floors - 0.005))
    event = slice(found.edges[0], found.edges[-1])
    rises = np.diff(minutes(found.draw_w[found.edges[0] :])) / found.base_w
    after = minutes(found.draw_w[found.edges[-1] :])
    return {
        f"{name}_cut_pct": 100.0 * cut[-1],
        f"{name}_throughput": float(found.speed[event].mean(axis=0) @ weights),
        f"{name}_of_optimum_pct": 100.0 * min(ratio),
        f"{name}_minutes_over": float(over),
        f"{name}_over_shed_points": 100.0 * shed,
        f"{name}_worst_rise_pct": 100.0 * float(rises.max()),
        f"{name}_nrmse_pct": 100.0 * float(np.sqrt(np.mean(np.concatenate(error) ** 2))),
        f"{name}_snapback_pct": 100.0 * max(0.0, float(after.max()) / found.base_w - 1.0),
        f"{name}_to_target_s": to_target,
        f"{name}_floors_broken": float(broken),
    }


def draw(path: Path, runs: dict[str, tuple[tuple[Step, ...], Run]], theirs: dict[str, Floats]) -> None:
    """Load over time: asked, ours, theirs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(runs), 1, figsize=(9, 3.2 * len(runs)), squeeze=False)
    for axis, (name, (steps, found)) in zip(axes[:, 0], runs.items(), strict=True):
        hours = np.arange(len(found.draw_w)) / 3600.0
        axis.plot(hours, 100.0 * found.draw_w / found.base_w, label="gridshift", color="tab:blue", linewidth=1.2)
        for step, begin, end in zip(steps, found.edges, found.edges[1:], strict=False):
            label = "asked" if step is steps[0] else None
            axis.plot([begin / 3600, end / 3600], [100 * step.share] * 2, "k--", linewidth=1, label=label)
        if name in theirs:
            trace = theirs[name]
            at = np.arange(len(trace)) / 60.0
            axis.plot(at, 100.0 * trace, label="field trial, measured", color="tab:orange", linewidth=1)
        axis.set(title=name, xlabel="hours", ylabel="load, % of base", ylim=(40, 110))
        axis.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


CASES = ("srp", "caiso", "srp_noisy", "srp_unlearned")


def trial(
    folder: Path, only: tuple[str, ...], plot: Path | None, *, quick: bool
) -> tuple[dict[str, float], list[tuple[str, str, float]]]:
    """The figures of part (a), and their targets."""
    hour = 900 if quick else 3600
    after_s = 1500 if quick else 5400
    srp = (Step(1.0 - 0.314, 3 * hour),)
    caiso = (Step(1.0 - 0.186, 3 * hour), Step(1.0 - 0.311, 2 * hour + hour // 3))
    noisy = Disturbance(work_noise=0.02, meter_noise=0.02, delay_s=2)
    cases = {
        "srp": (srp, Disturbance(), True),
        "caiso": (caiso, Disturbance(), True),
        "srp_noisy": (srp, noisy, True),
        "srp_unlearned": (srp, Disturbance(), False),
    }
    runs = {
        name: (steps, run(folder, steps, how, after_s, learned=learned))
        for name, (steps, how, learned) in cases.items()
        if name in only
    }
    figures: dict[str, float] = {}
    for name, (steps, found) in runs.items():
        figures |= judged(name, folder, steps, found)
    target = srp[0].share * next(iter(runs.values()))[1].base_w
    figures["srp_optimum"] = optimum(folder, target)
    weights = np.array([gpus for _, gpus, _ in JOBS]) / sum(gpus for _, gpus, _ in JOBS)
    figures["theirs_by_gpus"], figures["theirs_as_published"] = float(np.array(THEIRS) @ weights), 0.909560245
    for name, (throughput, floors) in strategies(folder, target).items():
        figures[f"{name}_throughput"], figures[f"{name}_floors_broken"] = throughput, float(floors)
    if plot:
        _, trace = measured(folder / "SRP_total_power.csv")
        shown = np.concatenate((np.full(15, np.nan), trace[90:])) / trace[:60].mean()
        draw(plot, runs, {"srp": shown})
    wanted: list[tuple[str, str, float]] = []
    for name in runs:
        wanted += [
            *([(f"{name}_of_optimum_pct", ">=", 99.0)] if name != "srp_unlearned" else []),
            (f"{name}_minutes_over", "<=", 0.0),
            (f"{name}_over_shed_points", "<=", 3.0),
            (f"{name}_worst_rise_pct", "<=", 5.0),
            (f"{name}_nrmse_pct", "<=", 4.0),
            (f"{name}_snapback_pct", "<=", 2.0),
            (f"{name}_floors_broken", "<=", 0.0),
        ]
    return figures, wanted


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short events, few of them, and 6 h instead of 72 h")
    parser.add_argument("--only", nargs="*", choices=[*METHODS, *CASES], help="parts, or cases of the trial")
    parser.add_argument("--plot", type=Path, help="draw the trial's loads into this file")
    args = parser.parse_args()
    only = set(args.only or METHODS)
    curves = data_folder("power_curves")
    if curves is None:
        return without_data("power_curves")
    folder = curves / "emerald"
    figures: dict[str, float] = {}
    wanted: list[tuple[str, str, float]] = []
    parts: list[str] = []

    def add(name: str, found: tuple[dict[str, float], list[tuple[str, str, float]]]) -> None:
        figures.update(found[0])
        wanted.extend(found[1])
        parts.append(METHODS[name])

    cases = CASES if "trial" in only else tuple(case for case in CASES if case in only)
    if cases:
        add("trial", trial(folder, cases, args.plot, quick=args.quick))
    if "path" in only:
        add("path", dr_path.figures(args.quick))
    if "driver" in only:
        add("driver", dr_driver.figures(args.quick))
    if "days" in only:
        add("days", dr_days.figures(folder, args.quick))
    return report("demand_response", figures, wanted, "; ".join(parts))


if __name__ == "__main__":
    sys.exit(main())
