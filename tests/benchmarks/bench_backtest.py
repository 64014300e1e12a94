"""Backtests over open traces: how quick they are, and what gridshift saves beside the published policies.

Parts: ``speed`` (a year of 100,000 jobs in one region), ``grid`` (nine regions, real as-of forecasts, no limits: against the
published policies with a paired bootstrap, and once with perfect forecasts), ``front`` (cost against carbon over the carbon
price, with a picture in build/), ``regions`` (what several regions add) and ``tight`` (deadline misses against saving where
GPUs are scarce). ``--part`` runs some of them, ``--quick`` a small piece of each in under a minute. Settings were chosen on
2022 (``--year 2022``); figures are of 2023.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.backtest_blocks import Floats, blocks_of, by_block, gain
from tests.benchmarks.backtest_cases import (
    REGIONS,
    YEAR,
    Case,
    Row,
    alone,
    compile_first,
    data_folder,
    forecast_first,
    side_by_side,
)
from tests.benchmarks.backtest_front import draw
from tests.benchmarks.common import report, without_data

OURS, BASE = "gridshift", "run-now"
RIVALS = ("lowest-window", "carbon-time", "ecovisor", "wait-awhile")
PARTS = ("speed", "grid", "front", "regions", "tight")
SPAN_S = 365 * 86400.0
#: How far gridshift may lie below a published policy in any one region, and below wait-awhile when all is known, points.
WORST, AT_PAR = -0.3, -0.2
CARBON_PRICES = (0.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
FULL = (0.6, 0.8, 0.95)
#: Targets that hold however little is run.
SURE = ("lowest_window_1k_30_days_s", "perfect_gain_worst_region")


@dataclass
class Found:
    """Figures, wanted values and sentences so far."""

    figures: dict[str, float] = field(default_factory=dict)
    wanted: list[tuple[str, str, float]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def want(self, figure: str, value: float, op: str, limit: float) -> None:
        """Note a figure that has a target."""
        self.figures[figure] = value
        self.wanted.append((figure, op, limit))


@dataclass(frozen=True)
class Size:
    """How much of everything is run."""

    year: int
    workers: int
    regions: tuple[str, ...]
    every: int
    front_regions: tuple[str, ...]
    front_every: int
    tight_every: int
    days: float
    weeks: int
    full: tuple[float, ...]
    quick: bool


def saved(row: Row, base: Row) -> float:
    """Carbon saved against run-now, %."""
    return 100.0 * (1.0 - float(row.carbon_kg.sum()) / float(base.carbon_kg.sum()))


def cheaper(row: Row, base: Row) -> float:
    """Cost saved against run-now, %."""
    return 100.0 * (1.0 - float(row.cost.sum()) / float(base.cost.sum()))


def bound(row: Row, base: Row) -> float:
    """Carbon that no schedule could save more than, %."""
    kg = row.bound.carbon_kg
    return float("nan") if kg is None else 100.0 * (1.0 - kg / float(base.carbon_kg.sum()))


# --- speed ------------------------------------------------------------------------------------------------------------


def speed(size: Size, found: Found) -> None:
    """A year of 100,000 jobs, and a month of a thousand."""
    year = Case("", REGIONS[:1], "perfect", year=size.year, days=size.days, every=size.every)
    share = "" if size.every == 1 and size.days == 365 else f"_{size.days:g}d_every_{size.every}"
    for policy, limit_s in (("lowest-window", 60.0), (OURS, 300.0)):
        row, seconds, peak_mib = alone(replace(year, policy=policy))
        name = f"{policy.replace('-', '_')}_100k{share}"
        if share:
            found.figures[f"{name}_s"] = seconds
        else:
            found.want(f"{name}_s", seconds, "<=", limit_s)
        found.figures[f"{name}_cpu_s"] = row.cpu_s
        found.want(f"{name}_peak_mib", peak_mib, "<=", 2048.0)
        print(f"{row.case.label}: {row.jobs} jobs in {seconds:.1f} s (simulation {row.wall_s:.1f} s), {peak_mib:.0f} MiB")
    month = Case("lowest-window", REGIONS[:1], "perfect", trace="jobs_gaia_pai_1k", year=size.year, days=30)
    row = alone(month)[0]
    found.want("lowest_window_1k_30_days_s", row.wall_s, "<=", 0.5)
    print(f"{row.case.label}: {row.jobs} jobs in {row.wall_s:.2f} s")


# --- the grid ---------------------------------------------------------------------------------------------------------


def grid(size: Size, found: Found) -> None:
    """Every policy in every region without limits, with real forecasts; and with perfect ones gridshift and wait-awhile."""
    begun = time.monotonic()
    found.figures["forecasts_s"] = forecast_first(
        Case("", size.regions, year=size.year, days=size.days, every=1000), size.workers
    )
    each = Case("", (), year=size.year, days=size.days, every=size.every)
    cases = [replace(each, policy=p, regions=(r,)) for r in size.regions for p in (OURS, *RIVALS, BASE)]
    known = replace(each, forecast="perfect")
    cases += [replace(known, policy=p, regions=(r,)) for r in size.regions for p in (OURS, "wait-awhile", BASE)]
    rows = {(r.case.forecast, r.case.regions[0], r.case.policy): r for r in side_by_side(cases, size.workers)}
    for forecast, policies in (("as-of", (OURS, *RIVALS)), ("perfect", (OURS, "wait-awhile"))):
        _table(size, rows, forecast, policies)
    sums = {key: by_block(row.carbon_kg, blocks_of(row.submitted_s, size.days * 86400.0)) for key, row in rows.items()}

    def of(policy: str) -> dict[str, Floats]:
        return {region: sums["as-of", region, policy] for region in size.regions}

    worst = np.inf
    for rival in RIVALS:
        one = gain(of(BASE), of(rival), of(OURS))
        name = rival.replace("-", "_")
        found.figures[f"gain_over_{name}_points"] = one.pooled
        found.want(f"gain_over_{name}_low_95", one.low, ">", 0.0)
        where, least = min(one.by_region.items(), key=lambda pair: pair[1])
        found.figures[f"gain_over_{name}_worst_region"] = least
        worst = min(worst, least)
        print(
            f"gridshift saves {one.pooled:.2f} points more than {rival} (95 %: {one.low:.2f} to {one.high:.2f}), "
            f"least in {where}: {least:.2f}"
        )
    found.want("gain_worst_region", worst, ">=", WORST)
    for policy in (OURS, *RIVALS):
        name = policy.replace("-", "_")
        mine = [rows["as-of", region, policy] for region in size.regions]
        found.figures[f"{name}_saved_percent"] = float(
            np.mean([saved(row, rows["as-of", row.case.regions[0], BASE]) for row in mine])
        )
        found.figures[f"{name}_delay_h"] = float(np.mean([row.delay_mean_h for row in mine]))
        found.figures[f"{name}_misses"] = float(sum(row.misses for row in mine))
    longer = found.figures["gridshift_delay_h"] - found.figures["wait_awhile_delay_h"]
    found.want("delay_beyond_wait_awhile_h", longer, "<=", 0.0)
    at_par = {
        region: saved(rows["perfect", region, OURS], rows["perfect", region, BASE])
        - saved(rows["perfect", region, "wait-awhile"], rows["perfect", region, BASE])
        for region in size.regions
    }
    found.figures["perfect_gain_over_wait_awhile"] = float(np.mean(list(at_par.values())))
    found.want("perfect_gain_worst_region", min(at_par.values()), ">=", AT_PAR)
    minutes = (time.monotonic() - begun) / 60.0
    found.want("grid_min", minutes, "<", 60.0)
    print(f"the grid took {minutes:.1f} min in {size.workers} processes")


def _table(size: Size, rows: dict[tuple[str, str, str], Row], forecast: str, policies: Sequence[str]) -> None:
    print(f"\nforecasts {forecast}: carbon saved against run-now % / mean delay h, and the oracle's bound")
    print(f"{'':12s}" + "".join(f"{policy:>16s}" for policy in policies) + f"{'oracle':>9s}{'run-now kg':>12s}")
    for region in size.regions:
        base = rows[forecast, region, BASE]
        cells = [rows[forecast, region, policy] for policy in policies]
        told = "".join(f"{saved(row, base):9.2f} /{row.delay_mean_h:5.2f}" for row in cells)
        print(f"{region:12s}{told}{bound(base, base):9.2f}{float(base.carbon_kg.sum()):12.1f}")
    print()


# --- price and carbon -------------------------------------------------------------------------------------------------


def front(size: Size, found: Found) -> None:
    """Cost against carbon: gridshift at several carbon prices, the published policies and their ``:price`` variants."""
    each = Case("", (), year=size.year, days=size.days, every=size.front_every)
    plain = [BASE, *RIVALS, *(f"{name}:price" for name in RIVALS)]
    weights: list[float | None] = [*CARBON_PRICES, None]
    cases = [replace(each, policy=p, regions=(r,)) for r in size.front_regions for p in plain]
    cases += [replace(each, policy=OURS, regions=(r,), carbon_price=w) for r in size.front_regions for w in weights]
    rows = {(r.case.regions[0], r.case.policy, r.case.carbon_price): r for r in side_by_side(cases, size.workers)}
    points: list[tuple[str, float, float]] = []
    print("\nprice and carbon, mean over " + ", ".join(size.front_regions))
    print(f"{'':28s}{'cost saved %':>14s}{'carbon saved %':>16s}{'delay h':>9s}")
    for policy, weight in [*((name, None) for name in plain), *((OURS, weight) for weight in weights)]:
        pairs = [(rows[region, policy, weight], rows[region, BASE, None]) for region in size.front_regions]
        cost, carbon = (float(np.mean([figure(*pair) for pair in pairs])) for figure in (cheaper, saved))
        label = policy if policy != OURS else "carbon only" if weight is None else f"{weight:g} a tonne"
        points.append((label if policy != OURS else f"{OURS} {label}", cost, carbon))
        delay_h = float(np.mean([row.delay_mean_h for row, _ in pairs]))
        print(f"{points[-1][0]:28s}{cost:14.2f}{carbon:16.2f}{delay_h:9.2f}")
    mine = [point for point in points if point[0].startswith(OURS)]
    others = [point for point in points if not point[0].startswith(OURS)]
    ahead = sum(any(cost >= c and carbon >= g for _, cost, carbon in mine) for _, c, g in others)
    found.want("front_published_points_not_beaten", float(len(others) - ahead), "<=", 0.0)
    found.figures["front_carbon_saved_at_best_cost"] = max(mine, key=lambda point: point[1])[2]
    found.figures["front_best_cost_saved_percent"] = max(point[1] for point in mine)
    found.figures["front_best_carbon_saved_percent"] = max(point[2] for point in mine)
    where = ", ".join(size.front_regions)
    title = f"{size.year}, every {size.front_every}. job, mean over {where}, forecasts as of each hour"
    draw(mine, [point for point in others if point[0] != BASE], title)


# --- several regions --------------------------------------------------------------------------------------------------


def regions(size: Size, found: Found) -> None:
    """What choosing the region adds to choosing the time, when data need not move and there is room everywhere."""
    home = size.regions[:1]
    one = Case(OURS, home, year=size.year, days=size.days, weeks=4.0 * size.weeks, every=size.front_every)
    cases = [replace(one, policy=BASE), one, replace(one, regions=size.regions)]
    # a price for carbon: money and carbon together
    cases += [replace(one, carbon_price=100.0), replace(one, regions=size.regions, carbon_price=100.0)]
    base, alone_, all_, both, both_all = _in_order(cases, size.workers)
    print(f"\n{home[0]} alone, and with {len(size.regions)} regions to choose from ({base.jobs} jobs)")
    rows = {"carbon only, one": alone_, "carbon only, all": all_, "100 a tonne, one": both, "100 a tonne, all": both_all}
    for name, row in rows.items():
        figures = f"carbon {saved(row, base):6.2f} %, cost {cheaper(row, base):6.2f} %, delay {row.delay_mean_h:.2f} h"
        print(f"{name:18s} {figures}, moves {row.moves}")
    print(f"oracle: {bound(alone_, base):.2f} % in one, {bound(all_, base):.2f} % in all")
    found.figures["regions_one_saved_percent"] = saved(alone_, base)
    found.figures["regions_all_saved_percent"] = saved(all_, base)
    found.want("regions_add_points", saved(all_, base) - saved(alone_, base), ">", 0.0)


def _in_order(cases: Sequence[Case], workers: int) -> list[Row]:
    rows = {row.case: row for row in side_by_side(cases, workers)}
    return [rows[case] for case in cases]


# --- scarce GPUs ------------------------------------------------------------------------------------------------------


def tight(size: Size, found: Found) -> None:
    """Deadline misses against saving where GPUs are scarce: no policy may be better at both than gridshift."""
    names = (BASE, *RIVALS, "cap-quota", "cap-quota/wait-awhile", OURS)
    one = Case("", size.regions[:1], year=size.year, days=size.days, weeks=size.weeks, every=size.tight_every)
    cases = [replace(one, policy=name, utilisation=full) for full in size.full for name in names]
    rows = {(row.case.utilisation, row.case.policy): row for row in side_by_side(cases, size.workers)}
    better = 0
    for full in size.full:
        base, mine = rows[full, BASE], rows[full, OURS]
        print(f"\n{base.gpus:g} GPUs ({100 * full:g} % used in the mean), {size.weeks} weeks, {base.jobs} jobs")
        for name in names:
            row = rows[full, name]
            ahead = name != OURS and row.misses < mine.misses and saved(row, base) > saved(mine, base)
            better += ahead
            print(
                f"{name:22s} saved {saved(row, base):6.2f} %, misses {row.misses:5d}, delay {row.delay_mean_h:6.2f} h, "
                f"unfinished {row.unfinished}, {row.wall_s:.0f} s{'  better at both' if ahead else ''}"
            )
        found.figures[f"tight_{100 * full:g}_saved_percent"] = saved(mine, base)
        found.figures[f"tight_{100 * full:g}_misses"] = mine.misses
        found.figures[f"tight_{100 * full:g}_run_now_misses"] = base.misses
    found.want("tight_policies_better_at_both", float(better), "<=", 0.0)


# --- all of it --------------------------------------------------------------------------------------------------------


def main() -> int:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small piece of each part")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be given again")
    parser.add_argument("--year", type=int, default=YEAR, choices=(2022, 2023), help="the year of the signals")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--every", type=int, default=1, help="take each n-th job of the speed and grid parts only")
    parser.add_argument("--regions", type=int, default=len(REGIONS), help="how many of the nine regions")
    args = parser.parse_args()
    if data_folder() is None:
        return without_data("traces")
    if args.quick:
        size = Size(args.year, args.workers, REGIONS[:2], 20, REGIONS[:1], 60, 2, 14.0, 1, (0.8,), True)
    else:
        some, few, less = REGIONS[: args.regions], max(10, args.every), 2
        size = Size(args.year, args.workers, some, args.every, some[:3], few, less, 365.0, 8, FULL, False)
    found = Found()
    compile_first()
    parts = {"speed": speed, "grid": grid, "front": front, "regions": regions, "tight": tight}
    for name in args.part or PARTS:
        parts[name](size, found)
    piece = "a piece of it" if args.quick else "all jobs" if args.every == 1 else f"every {args.every}. job"
    method = (
        f"PAI trace of GAIA ({piece}), {args.year} life-cycle carbon and prices, waits 6 h for jobs under 2 h, else 24 h; GPUs "
        "without limit but in tight; free suspension; as-of forecasts refitted weekly, made at each hour from what lies before "
        "it; each policy knows of run times what its paper says; gains in points of run-now's carbon, regions weighted alike, "
        f"95 % by 10,000 draws of 4-week blocks; every {size.front_every}. job in front and regions, every {size.tight_every}. "
        "in tight, without those wider than 16; planner compiled beforehand"
    )
    # a few jobs over a few days say nothing of which policy saves more
    wanted = [one for one in found.wanted if not size.quick or one[0] in SURE]
    return report("backtest", found.figures, wanted, method)


if __name__ == "__main__":
    sys.exit(main())
