"""How good and how fast the planner's solver is, on problems drawn from real prices, carbon and job traces.

Small ones are compared with the best there is (proven by a MIP, kept in planner_exact.json), large ones with the solver's own
bound; every answer is checked for broken rules by code that shares nothing with the solver, and every bound against plans that
are known. ``--quick`` takes under a minute; ``--prove`` proves the small ones anew (about a quarter of an hour).
"""

import argparse
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from policies.problem import Answer, Fleet, Work
from tests.benchmarks.common import report, without_data
from tests.benchmarks.planner_exact import Proof, keep, key_of, proofs, prove, verify
from tests.benchmarks.planner_instances import (
    CARBON_USD_PER_T,
    Case,
    data_folder,
    exact_cases,
    exact_shape,
    later,
    make,
    pick,
    scale_shape,
)

UTILISATIONS = (0.6, 0.8, 0.95)
SEEDS = 4
#: Jobs that arrive one by one, at most a twentieth of the plan.
ARRIVALS = 500
#: Slots of an hour, and the share of a week's jobs that come in it.
HOUR, IN_AN_HOUR = 4, 168


@dataclass(frozen=True)
class Run:
    """One answer: what was asked, the wall and CPU seconds it took, and what is wrong with it."""

    name: str
    answer: Answer
    wall_s: float
    cpu_s: float
    wrong: tuple[str, ...]

    @property
    def unserved(self) -> int:
        """Jobs without a place."""
        return int((self.answer.lane < 0).sum())

    @property
    def gap_pct(self) -> float:
        """How far it may be above the best, by its own bound."""
        return 100.0 * self.answer.gap


@dataclass
class Log:
    """What went wrong anywhere, and progress for whoever looks on."""

    violations: int = 0
    bad_bounds: int = 0
    loud: bool = True

    def say(self, words: str) -> None:
        """To the terminal's side."""
        if self.loud:
            print(words, file=sys.stderr, flush=True)

    def bound(self, run: Run, known: float, what: str) -> None:
        """A bound above a plan that is known is no bound."""
        if run.answer.bound > known + 1e-6 * max(1.0, abs(known)):
            self.bad_bounds += 1
            print(f"WRONG BOUND {run.name}: {run.answer.bound} is above {known} ({what})", file=sys.stderr, flush=True)


def ask(log: Log, name: str, fleet: Fleet, work: Work, solve: Callable[[], Answer]) -> Run:
    """Time one call and check its answer."""
    cpu, wall = time.process_time(), time.perf_counter()
    answer = solve()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    wrong = tuple(verify(fleet, work, answer))
    run = Run(name, answer, wall, cpu, wrong)
    log.violations += len(wrong)
    for words in wrong[:5]:
        print(f"VIOLATION {name}: {words}", file=sys.stderr, flush=True)
    log.bound(run, answer.objective, "its own objective")
    log.say(
        f"{name}: gap {run.gap_pct:.3f} %, {run.unserved} unserved, {wall:.3f} s wall, {cpu:.3f} s CPU, {answer.steps} steps"
        + (f", {len(wrong)} VIOLATIONS" if wrong else "")
    )
    return run


def ask_case(log: Log, case: Case) -> Run:
    """The solver's answer to a case."""
    from policies.solver import solve

    run = ask(log, case.name, case.fleet, case.work, partial(solve, case.fleet, case.work))
    log.bound(run, case.planted_cost, "the hidden plan")
    return run


# --- the parts of the solver that only this file's later sections use ---------------------------------------------------


def insert_each(fleet: Fleet, work: Work, before: Answer, jobs: int) -> tuple[Answer, list[float]]:
    """Insert the jobs after the first ``jobs`` into their plan, one by one; the plan after that and the seconds of each."""
    from policies import solver

    standing = solver.Standing(fleet, work, before)
    seconds = []
    for j in range(jobs, len(work)):
        begun = time.perf_counter()
        standing.insert(j)
        seconds.append(time.perf_counter() - begun)
    return standing.answer(), seconds


# --- small ones, against the best there is -----------------------------------------------------------------------------


def proven(log: Log, cases: Iterable[Case], *, anew: bool) -> list[tuple[Case, Proof]]:
    """Each case and its proof; those not known yet, or all of them ``anew``, are proven now and kept."""
    known, out = proofs(), []
    fresh = set[str]()
    for case in cases:
        key = key_of(case.fleet, case.work)
        if key not in known or anew:
            known[key], answer = prove(case.name, case.fleet, case.work, case.lane, case.begin_s)
            for words in verify(case.fleet, case.work, answer) if answer is not None else []:
                raise RuntimeError(f"the exact model broke a rule, {case.name}: {words}")
            fresh.add(key)
            log.say(f"{case.name}: {known[key]}")
            keep(known)
        out.append((case, known[key]))
    if anew:
        keep({key: known[key] for key in fresh})
    return out


def small(log: Log, *, quick: bool, anew: bool) -> dict[str, float]:
    """Gaps to the proven optimum: up to 80 %, and at 95 %."""
    pairs = proven(log, exact_cases(quick=quick), anew=anew)
    gaps: dict[str, list[float]] = {"exact_to80": [], "exact_95": []}
    at_most: dict[str, list[float]] = {"exact_to80": [], "exact_95": []}
    below, seconds, more = [], [], 0
    for case, proof in pairs:
        run = ask_case(log, case)
        if proof.unserved == 0:
            # a bound need not allow for jobs that are left out, which can be the cheapest thing to do
            log.bound(run, proof.primal, "the exact plan")
        if not proof.proven:
            continue
        group = "exact_95" if case.utilisation > 0.9 else "exact_to80"
        scale = max(abs(proof.primal), 1e-12)
        gaps[group].append(100.0 * (run.answer.objective - proof.primal) / scale)
        at_most[group].append(100.0 * (run.answer.objective - proof.bound) / scale)
        below.append(100.0 * (proof.primal - run.answer.bound) / scale)
        seconds.append(run.wall_s)
        more += max(run.unserved - proof.unserved, 0)
        log.say(f"    to the optimum {gaps[group][-1]:.3f} %, {case.name}")
    figures = {
        "exact_cases": float(len(pairs)),
        "exact_proven": float(len(seconds)),
        "exact_left_out_unproven": float(len(pairs) - len(seconds)),
        "exact_unserved_more": float(more),
        "exact_seconds_worst": max(seconds, default=0.0),
        "exact_bound_below_optimum_median_pct": statistics.median(below) if below else 0.0,
    }
    for group, values in gaps.items():
        if values:
            figures |= spread(f"{group}_gap", values)
            figures[f"{group}_gap_to_proven_bound_worst_pct"] = max(at_most[group])
    return figures


def spread(name: str, values: list[float]) -> dict[str, float]:
    """Median and worst, in percent."""
    return {f"{name}_median_pct": statistics.median(values), f"{name}_worst_pct": max(values)}


# --- large ones, against the own bound --------------------------------------------------------------------------------


def cell(log: Log, jobs: int, utilisation: float, *, tight: bool, seeds: int) -> dict[str, float]:
    """Several cases of one kind."""
    runs = [ask_case(log, make(scale_shape(jobs), utilisation, tight=tight, seed=seed)) for seed in range(seeds)]
    name = cell_name(jobs, utilisation, tight=tight)
    return {
        **spread(f"{name}_gap", [run.gap_pct for run in runs]),
        f"{name}_seconds_worst": max(run.wall_s for run in runs),
        f"{name}_cpu_seconds_worst": max(run.cpu_s for run in runs),
        f"{name}_unserved_worst_pct": max(100.0 * run.unserved / jobs for run in runs),
    }


def cell_name(jobs: int, utilisation: float, *, tight: bool) -> str:
    """As the figures name it."""
    return f"{jobs // 1000}k_{round(100 * utilisation)}{'_power' if tight else ''}"


def growth(log: Log, figures: dict[str, float], sizes: tuple[int, ...]) -> dict[str, float]:
    """Wall seconds by number of jobs at 80 %, and the exponent of the fit."""
    seconds = []
    for jobs in sizes:
        known = figures.get(f"{cell_name(jobs, 0.8, tight=False)}_seconds_worst")
        seconds.append(known or ask_case(log, make(scale_shape(jobs), 0.8, tight=False, seed=0)).wall_s)
    found = {f"growth_{jobs // 1000}k_seconds": taken for jobs, taken in zip(sizes, seconds, strict=True)}
    return {**found, "growth_exponent": float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])}


def first_plan(log: Log, jobs: int, seeds: int) -> dict[str, float]:
    """The quick first plan: seconds, and what it costs above the bound of the careful one."""
    from policies.solver import first, solve

    taken, above, unserved = [], [], []
    for seed in range(seeds):
        case = make(scale_shape(jobs), 0.8, tight=seed % 2 == 1, seed=seed)
        run = ask(log, f"first plan, {case.name}", case.fleet, case.work, partial(first, case.fleet, case.work))
        bound = solve(case.fleet, case.work).bound if seed == 0 else run.answer.bound
        taken.append(run.wall_s)
        unserved.append(run.unserved)
        if seed == 0:
            above.append(100.0 * (run.answer.objective - bound) / abs(bound))
    return {
        "first_plan_seconds_worst": max(taken),
        "first_plan_above_bound_pct": above[0],
        "first_plan_unserved_worst_pct": 100.0 * max(unserved) / jobs,
    }


# --- what comes later --------------------------------------------------------------------------------------------------


def replan(log: Log, jobs: int, seeds: int) -> dict[str, float]:
    """The plan an hour on, from the one before: an hour's arrivals are new. Against a cold plan of the same."""
    from policies.solver import solve

    taken, cold, above, unserved = [], [], [], []
    for seed in range(seeds):
        case = make(scale_shape(jobs + jobs // IN_AN_HOUR), 0.8, tight=seed % 2 == 1, seed=100 + seed)
        order = np.random.default_rng(seed).permutation(len(case.work))
        case = replace(case, work=pick(case.work, order), lane=case.lane[order], begin_s=case.begin_s[order])
        known = pick(case.work, np.arange(jobs))
        before = ask(log, f"before, {case.name}", case.fleet, known, partial(solve, case.fleet, known))
        fleet, work, _ = later(case, before.answer, jobs, HOUR)
        warm = before.answer.warm.shifted(3600.0)
        run = ask(log, f"an hour on, {case.name}", fleet, work, partial(solve, fleet, work, warm=warm))
        fresh = ask(log, f"the same, cold, {case.name}", fleet, work, partial(solve, fleet, work))
        taken.append(run.wall_s)
        cold.append(fresh.wall_s)
        best = max(run.answer.bound, fresh.answer.bound)
        above.append(100.0 * (run.answer.objective - best) / abs(best))
        unserved.append(run.unserved - fresh.unserved)
    return {
        "replan_warm_seconds_worst": max(taken),
        "replan_cold_seconds_worst": max(cold),
        "replan_warm_gap_worst_pct": max(above),
        "replan_warm_unserved_more_worst": float(max(unserved)),
    }


def arrivals(log: Log, jobs: int, seeds: int) -> dict[str, float]:
    """Jobs that come one by one into a plan: ms each, and the plan after all of them against one made afresh."""
    from policies.solver import solve

    coming = min(ARRIVALS, jobs // 20)
    taken: list[float] = []
    above, more = [], []
    for seed in range(seeds):
        case = make(scale_shape(jobs + coming), 0.8, tight=False, seed=200 + seed)
        order = np.random.default_rng(seed).permutation(len(case.work))
        work = pick(case.work, order)
        before = solve(case.fleet, pick(work, np.arange(jobs)))
        after, seconds = insert_each(case.fleet, work, before, jobs)
        taken += seconds
        wrong = verify(case.fleet, work, after)
        log.violations += len(wrong)
        for words in wrong[:5]:
            print(f"VIOLATION after {coming} arrivals, {case.name}: {words}", file=sys.stderr, flush=True)
        fresh = ask(log, f"afresh, {case.name}", case.fleet, work, partial(solve, case.fleet, work))
        above.append(100.0 * (after.objective - fresh.answer.objective) / abs(fresh.answer.objective))
        more.append(int((after.lane < 0).sum()) - fresh.unserved)
        log.say(
            f"    {coming} arrivals: {above[-1]:.3f} % above afresh, {more[-1]} more unserved, "
            f"p99 {1e3 * quantile(seconds):.2f} ms"
        )
    return {
        "arrival_p50_ms": 1e3 * statistics.median(taken),
        "arrival_p99_ms": 1e3 * quantile(taken),
        "arrival_worst_ms": 1e3 * max(taken),
        "arrivals_above_fresh_worst_pct": max(above),
        "arrivals_unserved_more_worst": float(max(more)),
    }


def quantile(values: list[float], share: float = 0.99) -> float:
    """The value that this share of them does not exceed."""
    return float(np.quantile(values, share))


# --- all of it ----------------------------------------------------------------------------------------------------------


def warm_up(log: Log) -> dict[str, float]:
    """Compile everything once, on problems of every kind; seconds of the first call of each function."""
    from policies.solver import first, solve

    begun = time.perf_counter()
    case = make(replace(scale_shape(60), regions=3), 0.8, tight=True, seed=0)
    begun_calls = time.perf_counter()
    answer = solve(case.fleet, case.work)
    first(case.fleet, case.work)
    solve(case.fleet, case.work, warm=answer.warm)
    insert_each(case.fleet, case.work, solve(case.fleet, pick(case.work, np.arange(50))), 50)
    compiled = time.perf_counter() - begun_calls
    free = make(exact_shape(20, 2), 0.8, tight=False, seed=0)
    solve(free.fleet, free.work)
    log.say(f"compiled or loaded in {compiled:.1f} s, cases in {begun_calls - begun:.1f} s")
    return {"first_calls_seconds": compiled}


def targets(*, quick: bool) -> list[tuple[str, str, float]]:
    """What is wanted of each figure."""
    wanted: list[tuple[str, str, float]] = [
        ("violations", "<=", 0),
        ("bounds_above_a_known_plan", "<=", 0),
        *([] if quick else [("exact_proven", ">=", 100.0)]),
        ("exact_to80_gap_median_pct", "<=", 0.5),
        ("exact_to80_gap_worst_pct", "<=", 2),
        ("exact_95_gap_median_pct", "<=", 1),
        ("exact_95_gap_worst_pct", "<=", 4),
    ]
    for tight, utilisation, median, worst, seconds in (
        (False, 0.6, 0.5, 1.5, 3.0),
        (False, 0.8, 0.5, 1.5, 3.0),
        (True, 0.6, 1.5, 3.0, 5.0),
        (True, 0.8, 1.5, 3.0, 5.0),
        (False, 0.95, 1.0, 3.0, None),
    ):
        name = cell_name(10_000, utilisation, tight=tight)
        wanted += [(f"{name}_gap_median_pct", "<=", median), (f"{name}_gap_worst_pct", "<=", worst)]
        if seconds is not None:
            wanted.append((f"{name}_seconds_worst", "<=", seconds))
    wanted.append((f"{cell_name(10_000, 0.95, tight=False)}_unserved_worst_pct", "<=", 0.05))
    for tight, worst in ((False, 0.5), (True, 2.0)):
        name = cell_name(100_000, 0.8, tight=tight)
        wanted += [(f"{name}_gap_worst_pct", "<=", worst), (f"{name}_seconds_worst", "<=", 30)]
    return [
        *wanted,
        ("first_plan_seconds_worst", "<=", 1),
        ("replan_warm_seconds_worst", "<=", 1),
        ("arrival_p99_ms", "<=", 5),
        ("arrivals_above_fresh_worst_pct", "<=", 1),
        ("arrivals_unserved_more_worst", "<=", 0),
    ]


def peak_mb() -> float:
    """The most memory this process held so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="six small cases and up to 3,000 jobs; under a minute")
    parser.add_argument("--prove", action="store_true", help="prove the small cases anew")
    parser.add_argument("--only", choices=["small", "cells", "huge", "first", "replan", "arrivals", "growth"], nargs="*")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="cases of each kind at 10,000 jobs")
    parser.add_argument("--quiet", action="store_true", help="no line for each answer")
    arguments = parser.parse_args()
    quick, log = arguments.quick, Log(loud=not arguments.quiet)
    if data_folder() is None:
        return without_data("traces")
    parts = arguments.only or ["small", "cells", "first", "replan", "arrivals", "growth", *([] if quick else ["huge"])]
    jobs, seeds = (1000, 1) if quick else (10_000, arguments.seeds)
    figures = warm_up(log)
    if "small" in parts:
        figures |= small(log, quick=quick, anew=arguments.prove)
    if "cells" in parts:
        for utilisation in UTILISATIONS:
            for tight in (False, True):
                figures |= cell(log, jobs, utilisation, tight=tight, seeds=seeds)
    for name, measure in (("first", first_plan), ("replan", replan), ("arrivals", arrivals)):
        if name in parts:
            figures |= measure(log, jobs, max(1, seeds // 2))
    figures["peak_memory_mb"] = peak_mb()
    if "huge" in parts:
        for tight in (False, True):
            figures |= cell(log, 100_000, 0.8, tight=tight, seeds=min(seeds, 3))
        figures["peak_memory_100k_mb"] = peak_mb()
    if "growth" in parts:
        figures |= growth(log, figures, (1000, 3000) if quick else (1000, 3000, 10_000, 30_000, 100_000))
    figures |= {"violations": float(log.violations), "bounds_above_a_known_plan": float(log.bad_bounds)}
    wanted = [one for one in targets(quick=quick) if one[0] in figures or not (quick or arguments.only)]
    method = (
        f"2023 prices + {CARBON_USD_PER_T:g} USD/t carbon, PAI and Philly jobs, planted at 60, 80 and 95 % of the GPUs: "
        "every job can be served; half of the jobs pausable, windows 2-48 h longer than the run, power cases with a site limit "
        "about 3 % above the hidden plan's draw; small: 48 hours x 2-3 regions against a MIP optimum proven to 0.5 %; large: "
        f"672 quarter hours x 8 regions, {seeds} seeds a cell, gap to the solver's own bound, unserved jobs count at twice the "
        "peak rate; seconds are wall of one call after compiling, CPU beside it; every answer is checked by separate code"
    )
    return report("planner", figures, wanted, method)


if __name__ == "__main__":
    sys.exit(main())
