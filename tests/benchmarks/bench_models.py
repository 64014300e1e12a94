"""How well policies.cap_model tells the speed of a workload that it has not seen, against simple rules.

Errors are mean absolute relative errors of the speed under a cap, with the workload left out of the fit. A workload is one
training configuration (or one job of the A100-class cluster), and all points of its sweep count, as in the figures aimed at;
beside them stands the stricter error: whole networks left out, and without the points that are 1 by definition.
``--constants`` prints the classes as they stand in policies/cap_model.py instead.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from policies.cap_model import CLASSES, Learned, Observation
from policies.problem import Floats
from tests.benchmarks.cap_fits import Sweep, baselines, by_class, fitted, left_out, points_of, read_sweeps
from tests.benchmarks.common import data_folder, report, without_data

#: The errors to reach, %.
LIMITS = {
    "A100 training": 2.1,
    "A100 fine-tuning and inference": 1.7,
    "V100 heavy": 3.6,
    "RTX6000 heavy": 4.8,
    "A40 heavy": 6.1,
}
METHOD = (
    "sweeps of data/power_curves; left out: one workload at a time (each batch size and optimiser is one), all points of its "
    "sweep; *_strict: one whole network at a time, without the points at the highest cap, which are 1 by definition; "
    "*_offered: strict, of caps of at least half of the default limit, the only ones ever set; *_learned: points between the "
    "lowest and the highest offered cap that binds, for a group of which those two were seen; *_not_learned: the same points "
    "from the class alone; linear: speed in proportion to power; cube_root: clock as the cube root of power above idle. "
    "The A100-class cluster does not state its GPU (400 W default limit); for H100, H200, B200 and all other types these "
    "classes are proxies, with wider bars; its three inference jobs are one workload; no capped decode sweep is public, so "
    "decode goes by the inference class, a proxy"
)


def percent(errors: Floats) -> float:
    """Mean absolute error, %."""
    return 100.0 * float(np.mean(np.abs(errors)))


def learned_errors(sweeps: list[Sweep]) -> tuple[float, float]:
    """Errors, %, at the offered caps of a sweep that are not shown: once its lowest and highest are, and before."""
    errors, before = [], []
    for one in sweeps:
        offered = [i for i in range(len(one.cap) - 1) if 0.5 - 1e-9 <= one.cap[i] < one.draw]
        if len(offered) < 3:
            continue
        group = Learned()
        for i in (offered[0], offered[-1]):
            group.observe("one", one.gpu, Observation(float(one.cap[i]), min(one.cap[i], one.draw), float(one.speed[i])))
        curve = group.curve("one", one.gpu, one.draw)
        prior = Learned().curve(None, one.gpu, one.draw)
        errors += [curve.at(float(one.cap[i]))[0] / one.speed[i] - 1.0 for i in offered[1:-1]]
        before += [prior.at(float(one.cap[i]))[0] / one.speed[i] - 1.0 for i in offered[1:-1]]
    return (percent(np.array(errors)), percent(np.array(before))) if errors else (float("nan"), float("nan"))


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the same; it takes seconds")
    parser.add_argument("--constants", action="store_true", help="print the fitted classes")
    options = parser.parse_args()
    folder = data_folder("power_curves")
    if folder is None:
        return without_data("power_curves")
    groups = by_class(read_sweeps(folder))
    classes = [fitted(name, sweeps) for name, sweeps in sorted(groups.items())]
    if options.constants:
        for one in classes:
            print(f"    {one!r},")
        return 0
    figures: dict[str, float] = {}
    wanted: list[tuple[str, str, float]] = []
    for name, sweeps in sorted(groups.items()):
        key = name.lower().replace(" ", "_").replace("-", "_")
        points = points_of(sweeps)
        errors, _ = left_out(sweeps, lambda one: f"{one.network} {one.setting}")
        strict, top = left_out(sweeps, lambda one: one.network)
        linear, cube = baselines(sweeps)
        offered = ~top & (points.cap >= 0.5 - 1e-9)
        learned, not_learned = learned_errors(sweeps)
        figures |= {
            f"{key}_pct": percent(errors),
            f"{key}_strict_pct": percent(strict[~top]),
            f"{key}_offered_pct": percent(strict[offered]),
            f"{key}_learned_pct": learned,
            f"{key}_not_learned_pct": not_learned,
            f"{key}_linear_pct": percent(linear),
            f"{key}_cube_root_pct": percent(cube),
            f"{key}_sweeps": float(len(sweeps)),
        }
        if name in LIMITS:
            wanted.append((f"{key}_pct", "<=", LIMITS[name]))
    figures["classes_as_committed"] = float(tuple(classes) == CLASSES)
    wanted.append(("classes_as_committed", ">=", 1))
    return report("models", {name: value for name, value in figures.items() if value == value}, wanted, METHOD)


if __name__ == "__main__":
    sys.exit(main())
