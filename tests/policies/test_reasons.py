"""What a plan says of its reasons: prices of the same kind on both sides, a wait that pays for itself, true why-nots."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from policies import one_by_one, planner
from policies.grid import make_grid, make_lane
from policies.sentences import amount, rates
from policies.site_price import SitePrices
from policies.world import Budget, CapPoint, GpuPool, Pausable, Plan, Reserved, World
from tests.policies.worlds import NOW, job, region, running, world

H = timedelta(hours=1)
#: 55 until noon, then 49: what a minute's job waits for.
DIP = [55.0] * 24 + [49.0] * 8 + [55.0] * 160
BOTH = pytest.mark.parametrize("make", [one_by_one.plan, planner.plan], ids=["one by one", "joint"])


@BOTH
def test_prices_in_a_reason_are_the_sites_own_on_both_sides(make: object) -> None:
    """PUE, and the seconds of a launch, belong to a run's cost and not to the price of its energy."""
    picture = world([job("j", runtime_s=60.0, gpus=0.0)], [region("a", DIP, pue=1.4)], launch_s=10.0)
    placement = _made(make, picture).placements["j"]
    assert placement.intervals[0][0] == NOW + 6 * H
    assert "energy at 49 EUR/MWh against 55 for starting at once in a" in placement.reason
    seconds = 70.0
    assert placement.run_now_cost == pytest.approx(1.4 * 0.055 * seconds / 3600), "with its launch, as the plan's cost has it"
    assert placement.cost == pytest.approx(1.4 * 0.049 * seconds / 3600)


@BOTH
def test_a_price_in_another_currency_and_carbon_are_told_as_they_are_planned(make: object) -> None:
    view = replace(region("a", DIP, pue=1.2), fx=2.0, currency="USD")
    assert "energy at 98 EUR/MWh against 110" in _made(make, world([job("j")], [view])).placements["j"].reason


def test_under_a_cap_the_price_is_still_that_of_the_energy() -> None:
    capped = region("a", [59.6] * 24 + [49.0] * 8 + [59.6] * 160, caps=(CapPoint(0.8, 0.7, 0.95),), pue=1.1)
    placement = planner.plan(world([job("j", min_cap=0.5)], [capped])).placements["j"]
    assert placement.cap == 0.8
    assert "capped at 80 %: energy at 49 EUR/MWh against 60 for starting at once" in placement.reason


def test_sites_with_another_pue_say_so_because_the_dearer_energy_may_be_the_cheaper_run() -> None:
    lean, fat = region("b", [52.0] * 192, pue=1.1), region("a", [50.0] * 192, pue=1.6)
    placement = one_by_one.plan(world([job("j", earliest_at=NOW + H)], [fat, lean])).placements["j"]
    assert placement.region == "b" and placement.reason.startswith(
        "b from 2026-02-03 07:00Z, its earliest: energy at 52 EUR/MWh, no"
    )
    picture = world([], [fat, lean])
    grid = make_grid(NOW, 900, 48 * 3600.0)
    prices = SitePrices({view.name: make_lane(view, picture, grid) for view in picture.regions}, grid, picture.settings)
    told = prices.told("b", [(0.0, 600.0)], "a", [(0.0, 600.0)])
    assert told == "energy at 52 EUR/MWh (PUE 1.1) against 50 (PUE 1.6) for starting at once in a"


def test_an_unknown_price_is_not_told_as_a_number() -> None:
    gap = region("a", [50.0, None, 50.0] + [50.0] * 189)
    picture = world([], [gap])
    grid = make_grid(NOW, 900, 6 * 3600.0)
    prices = SitePrices({"a": make_lane(gap, picture, grid)}, grid, picture.settings)
    assert prices.over("a", [(0.0, 1800.0)]) is None and prices.over("a", [(0.0, 900.0), (1800.0, 2700.0)]) == pytest.approx(50)
    assert prices.told("a", [(0.0, 1800.0)]) == "energy at an unknown price"


def test_plans_by_carbon_alone_tell_carbon() -> None:
    clean = [500.0] * 24 + [100.0] * 8 + [500.0] * 160
    view = replace(region("a", None), carbon=replace(region("a", clean).price, unit="gCO2e/kWh"))
    reason = one_by_one.plan(world([job("j")], [view], price_weight=0.0)).placements["j"].reason
    assert "energy at 100 gCO2e/kWh against 500" in reason


@BOTH
@pytest.mark.parametrize(("low", "waits"), [(99.85, False), (99.2, True)])
def test_a_wait_must_save_what_a_wait_is_worth(make: object, low: float, waits: bool) -> None:
    """Six hours must save 0.3 % at either planner."""
    prices = [100.0] * 24 + [low] * 8 + [100.0] * 160
    placement = _made(make, world([job("j")], [region("a", prices)])).placements["j"]
    assert (placement.intervals[0][0] > NOW) is waits


def test_a_wait_counts_against_another_region_too() -> None:
    """A tenth of a percent is not worth six hours, wherever it is."""
    later = region("b", [100.0] * 24 + [99.9] * 8 + [100.0] * 160)
    placement = one_by_one.plan(world([job("j")], [region("a", [100.0] * 192), later])).placements["j"]
    assert placement.intervals[0][0] == NOW


def test_why_not_names_what_stands_against_it() -> None:
    """On an idle cluster there is room, so that is never why."""
    idle = world([job("j", runtime_s=60.0, gpus=0.0)], [region("a", DIP)], launch_s=10.0)
    assert _why_not(idle, "j", "a") == "costs 0.00012 EUR more"
    busy = world(
        [job("j"), running("r", "a", gpus=8.0, remaining_s=2 * 3600.0, tier="flex-0", pausable="no")], [region("a", DIP)]
    )
    assert _why_not(busy, "j", "a") == "a has 0 of 8 GPUs free and it needs 1"
    dear = world([job("j", max_price=50.0)], [region("a", DIP)])
    assert _why_not(dear, "j", "a") == "a ceiling or a shift rule forbids it"


def test_if_run_now_and_the_alternative_now_agree() -> None:
    picture = world([job("j", runtime_s=60.0)], [region("a", DIP)], launch_s=10.0)
    made = planner.plan(picture)
    told = one_by_one.alternatives(replace(picture, plan=made), "j")
    assert [one.cost for one in told] == [pytest.approx(made.placements["j"].run_now_cost)]


def test_a_job_that_was_planned_says_so_when_a_change_would_save_too_little() -> None:
    """What costs less than what stands is not said to lack room."""
    kept = job("j", planned_region="a", planned_start_at=NOW + 6 * H)
    picture = world([kept], [region("a", [99.5] * 24 + [100.0] * 8 + [100.0] * 160)])
    made = one_by_one.plan(picture)
    assert made.placements["j"].intervals[0][0] == NOW + 6 * H
    assert made.placements["j"].alternatives[0].why_not.startswith("would save 0.00050 EUR: too little for a change")


def test_a_job_without_gpus_is_under_no_cap() -> None:
    views = [region("a", DIP, caps=(CapPoint(0.8, 0.7, 0.95),), pools=(GpuPool("H100", 8.0),))]
    made = planner.plan(world([job("cpu", gpus=0.0, min_cap=0.5), job("gpu", min_cap=0.5)], views))
    assert made.placements["gpu"].cap == 0.8
    cpu = made.placements["cpu"]
    assert cpu.cap == 1.0 and "capped" not in cpu.reason
    assert sum((end - start).total_seconds() for start, end in cpu.intervals) == pytest.approx(3600.0)


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.0, "0.00 EUR"), (-1e-12, "0.00 EUR"), (4.73e-8, "0.00 EUR"), (0.000055, "0.000055 EUR"), (-0.0042, "-0.0042 EUR"),
     (0.42, "0.42 EUR"), (1234.5, "1,234.50 EUR")],
)  # fmt: skip
def test_small_sums_keep_figures_and_nothing_has_no_sign(value: float, told: str) -> None:
    assert amount(value, "EUR") == told


def test_two_prices_are_told_so_that_they_differ() -> None:
    assert rates(49.2, 55.1) == ("49", "55") and rates(67.9, 68.2) == ("67.9", "68.2")
    assert rates(5.0, 5.0) == ("5", "5") and rates(-0.2, -0.2) == ("0", "0")


def _made(make: object, picture: World) -> Plan:
    assert callable(make)
    made: Plan = make(picture)
    assert np.isfinite(made.objective)
    return made


def _why_not(picture: World, job_id: str, where: str) -> str:
    told = one_by_one.plan(picture).placements[job_id].alternatives
    return next(one.why_not for one in told if one.region == where)


@BOTH
def test_where_a_limit_or_serving_keeps_a_job_from_starting_at_once_that_is_its_reason(make: object) -> None:
    """The price of a start that cannot be is nothing to compare with."""
    flat, one = [97.0] * 4 + [98.0] * 188, job("j", runtime_s=600.0)
    limit = Budget("a", NOW - H, NOW + H, 700.0, "e", "event e1")
    reason = _made(make, world([one], [region("a", flat)], budgets=(limit,))).placements["j"].reason
    barred = "it cannot start at once (a may draw 700 W (event e1), draws 0 W and this job would add 1,000 W)"
    assert reason.startswith(f"a from 2026-02-03 07:00Z: {barred}; energy at 98 EUR/MWh, deadline")
    assert _why_not(world([one], [region("a", flat)], budgets=(limit,)), "j", "a").startswith("a may draw 700 W (event e1)")
    kept = region("a", flat, reserved=(Reserved(NOW, NOW + H, 8.0, 0.0),))
    reason = _made(make, world([one], [kept])).placements["j"].reason
    assert "it cannot start at once (a has 0 of 8 GPUs free besides 8 kept for serving and it needs 1)" in reason
    busy = running("r", "a", gpus=8.0, remaining_s=2 * 3600.0, pausable=Pausable.NO)
    reason = _made(make, world([busy, one], [region("a", flat)])).placements["j"].reason
    assert "it cannot start at once (a has 0 of 8 GPUs free and it needs 1)" in reason


@BOTH
def test_a_limit_that_begins_during_a_run_is_named_with_when_it_does(make: object) -> None:
    limit = Budget("a", NOW + 0.5 * H, NOW + 2 * H, 700.0, "e", "event e1")
    picture = world([job("j")], [region("a", [97.0] * 4 + [98.0] * 188)], budgets=(limit,))
    reason = _made(make, picture).placements["j"].reason
    assert "it cannot start at once (from 2026-02-03 06:30Z a may draw 700 W (event e1)" in reason
    assert "for starting at once" not in reason


@BOTH
def test_a_reason_is_told_anew_once_its_limit_has_gone(make: object) -> None:
    one, dip = job("j", runtime_s=600.0), region("a", DIP)
    limit = Budget("a", NOW - H, NOW + H, 700.0, "e", "event e1")
    planned = planner.Gridshift().plan if make is planner.plan else one_by_one.plan
    assert "it cannot start at once" in planned(world([one], [dip], budgets=(limit,))).placements["j"].reason
    assert "against 55 for starting at once in a" in planned(world([one], [dip])).placements["j"].reason
