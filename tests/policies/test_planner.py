"""Plans: the right window, place and sentence, and constraints that no plan breaks."""

import time
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies import one_by_one
from policies.planner import Gridshift, plan
from policies.world import Budget, GpuPool, JobState, Pausable, Reserved, ShiftWindow
from tests.policies.worlds import NOW, check_plan, job, region, running, series, world

H = timedelta(hours=1)
CHEAP_AT_NOON = [80.0] * 24 + [20.0] * 8 + [80.0] * 160  # 15-min slots from 06:00: cheap 12:00-14:00


def test_a_job_waits_for_the_cheapest_window_before_its_deadline() -> None:
    made = plan(world([job("j")], [region("a", CHEAP_AT_NOON)]))
    placement = made.placements["j"]
    assert placement.intervals[0][0] == NOW + 6 * H
    assert placement.cost == pytest.approx(0.02) and placement.run_now_cost == pytest.approx(0.08)
    assert "20 EUR/MWh against 80 for starting at once in a" in placement.reason
    assert made.gap == pytest.approx(0.0) and made.bound == pytest.approx(0.02)


def test_it_starts_at_once_when_waiting_gains_nothing() -> None:
    made = plan(world([job("j")], [region("a", [50.0] * 192)]))
    assert made.placements["j"].intervals[0][0] == NOW
    assert "now" in made.placements["j"].reason


def test_the_deadline_keeps_slack_for_uncertain_run_times() -> None:
    late_dip = [80.0] * 43 + [1.0] * 5 + [80.0] * 144  # cheap only in the last hour before 18:00
    made = plan(world([job("j")], [region("a", late_dip)]))
    assert made.placements["j"].intervals[0][1] <= NOW + 12 * H - timedelta(seconds=60 + 360)


def test_it_goes_where_power_is_cheap_unless_moving_costs_more() -> None:
    regions = [region("a", [80.0] * 192), region("b", [20.0] * 192)]
    assert plan(world([job("j")], regions)).placements["j"].region == "b"
    heavy = job("j", data_gb=100.0, data_region="a")
    assert plan(world([heavy], regions)).placements["j"].region == "a"
    picture = world([heavy], regions)
    alternatives = Gridshift().explain(replace(picture, plan=plan(picture)), "j")
    assert [a.region for a in alternatives] == ["b"] and "more" in alternatives[0].why_not


def test_carbon_counts_at_its_price() -> None:
    clean = replace(region("b", [60.0] * 192), carbon=series([100.0] * 192, "gCO2e/kWh"))
    dirty = replace(region("a", [50.0] * 192), carbon=series([700.0] * 192, "gCO2e/kWh"))
    assert plan(world([job("j")], [dirty, clean])).placements["j"].region == "a"
    placement = plan(world([job("j")], [dirty, clean], carbon_price=100.0)).placements["j"]
    assert placement.region == "b" and placement.carbon_kg == pytest.approx(0.1)


def test_jobs_share_a_cheap_window_only_as_far_as_there_is_room() -> None:
    made = plan(world([job(f"j{n}", gpus=4.0) for n in range(6)], [region("a", CHEAP_AT_NOON)]))
    starts = sorted((p.intervals[0][0] - NOW) / H for p in made.placements.values())
    assert starts.count(6.0) == 2 and starts.count(7.0) == 2 and len(starts) == 6
    check_plan(world([job(f"j{n}", gpus=4.0) for n in range(6)], [region("a", CHEAP_AT_NOON)]), made)


def test_a_power_budget_moves_work_out_of_its_hours() -> None:
    budget = Budget("a", NOW + 6 * H, NOW + 8 * H, 500.0, "e", "call")
    picture = world([job("j")], [region("a", CHEAP_AT_NOON)], budgets=(budget,))
    made = plan(picture)
    check_plan(picture, made)
    assert made.placements["j"].intervals[0][1] <= NOW + 6 * H or made.placements["j"].intervals[0][0] >= NOW + 8 * H


def test_a_job_need_not_wait_for_the_next_slot_when_a_call_ends_within_one() -> None:
    budget = Budget("a", NOW, NOW + timedelta(minutes=4), 0.0, "e", "call")
    picture = world([job("j")], [region("a", [50.0] * 192)], budgets=(budget,))
    made = plan(picture)
    check_plan(picture, made)
    assert made.placements["j"].intervals[0][0] == NOW + timedelta(minutes=4)


def test_a_pausable_job_takes_the_cheap_hours_in_parts_when_that_pays() -> None:
    valleys = ([20.0] * 8 + [200.0] * 8) * 12
    picture = world([job("j", runtime_s=4 * 3600.0, pausable=Pausable.CHECKPOINT)], [region("a", valleys)])
    made = plan(picture)
    check_plan(picture, made)
    assert len(made.placements["j"].intervals) > 1
    assert made.placements["j"].cost < 0.12
    whole = plan(world([job("j", runtime_s=4 * 3600.0)], [region("a", valleys)])).placements["j"]
    assert whole.cost > 0.4


def test_a_running_job_moves_only_when_that_pays_for_itself() -> None:
    dear, cheap = region("a", [90.0] * 192), region("b", [30.0] * 192)
    long = running("j", "a", runtime_s=5 * 3600.0)
    moved = plan(world([long], [dear, cheap])).placements["j"]
    assert moved.region == "b" and moved.intervals[0][0] > NOW
    small = plan(world([long], [region("a", [30.4] * 192), cheap])).placements["j"]
    assert small.region == "a" and small.intervals[0][0] == NOW
    fixed = plan(world([running("j", "a", pausable=Pausable.NO)], [dear, cheap]))
    assert "j" not in fixed.placements


def test_ceilings_hold_until_the_last_chance() -> None:
    picky = job("j", max_price=30.0)
    assert plan(world([picky], [region("a", CHEAP_AT_NOON)])).placements["j"].intervals[0][0] == NOW + 6 * H
    forced = plan(world([picky], [region("a", [80.0] * 192)])).placements["j"]
    assert "over its ceiling" in forced.reason and forced.late_s == 0


def test_a_shift_rule_sends_work_to_its_target() -> None:
    shift = ShiftWindow("night", "a", "b", NOW, NOW + 24 * H)
    picture = replace(world([job("j")], [region("a", [10.0] * 192), region("b", [90.0] * 192)]), shifts=(shift,))
    assert plan(picture).placements["j"].region == "b"
    bound = replace(picture, jobs=(job("j", regions=("a",)),))
    assert plan(bound).placements["j"].region == "a", "a rule cannot send a job where its owner forbids it"


def test_unknown_prices_are_a_last_resort_and_never_wait() -> None:
    blind = plan(world([job("j")], [region("a", None)])).placements["j"]
    assert blind.intervals[0][0] == NOW and blind.cost is None and "unknown" in blind.reason
    both = plan(world([job("j")], [region("a", None), region("b", [500.0] * 192)])).placements["j"]
    assert both.region == "b"


def test_beyond_the_series_its_last_day_repeats() -> None:
    day = [80.0] * 48 + [20.0] * 8 + [80.0] * 40
    made = plan(world([job("j", deadline_at=NOW + 47 * H, earliest_at=NOW + 25 * H)], [region("a", day)])).placements["j"]
    assert made.intervals[0][0] == NOW + 36 * H


def test_late_jobs_are_placed_as_soon_as_possible_and_called_late() -> None:
    late = plan(world([job("j", deadline_at=NOW + timedelta(minutes=30))], [region("a", CHEAP_AT_NOON)])).placements["j"]
    assert late.intervals[0][0] == NOW and late.late_s == pytest.approx(1800) and "cannot end by its deadline" in late.reason


def test_jobs_that_fit_nowhere_are_named() -> None:
    made = plan(world([job("j", gpus=9.0)], [region("a", CHEAP_AT_NOON)]))
    assert "has 8 GPUs and it needs 9" in made.unplaced["j"] and not made.placements
    down = plan(world([job("j")], [region("a", CHEAP_AT_NOON, reachable=False)]))
    assert "does not answer" in down.unplaced["j"]


def test_promotion_finds_room_for_those_that_would_be_late() -> None:
    # the wide job needs all GPUs and ends just in time only if the small ones let it go first
    wide = job("wide", gpus=8.0, deadline_at=NOW + 6 * H, runtime_s=2 * 3600.0)
    small = [job(f"s{n}", gpus=1.0, deadline_at=NOW + 5 * H, runtime_s=3600.0) for n in range(8)]
    picture = world([wide, *small], [region("a", [20.0, 20.0] * 96)])
    made = plan(picture)
    check_plan(picture, made)
    assert all(p.late_s == 0 for p in made.placements.values())


PRICES = st.lists(st.floats(-50, 300), min_size=192, max_size=192)


@st.composite
def pictures(draw: st.DrawFn):  # type: ignore[no-untyped-def]
    regions = [
        region(
            name,
            draw(st.one_of(st.none(), PRICES)),
            gpus=float(draw(st.integers(1, 8))),
            pue=draw(st.sampled_from([1.0, 1.3])),
            power_limit_w=draw(st.sampled_from([None, 2500.0, 6000.0])),
            reachable=draw(st.sampled_from([True, True, True, False])),
        )
        for name in ("a", "b", "c")[: draw(st.integers(1, 3))]
    ]
    names = [view.name for view in regions]
    jobs = []
    for n in range(draw(st.integers(0, 8))):
        hours = draw(st.floats(0.2, 6.0))
        wishes = {
            "runtime_s": hours * 3600.0,
            "gpus": float(draw(st.integers(0, 4))),
            "power_w": draw(st.sampled_from([300.0, 1000.0, 2000.0])),
            "pausable": draw(st.sampled_from([Pausable.NO, Pausable.CHECKPOINT])),
            "deadline_at": draw(st.sampled_from([None, NOW + hours * H * 0.8, NOW + hours * H * 1.5, NOW + 20 * H])),
            "earliest_at": draw(st.sampled_from([None, NOW + 0.5 * H])),
            "regions": draw(st.sampled_from([(), (names[0],)])),
            "max_price": draw(st.sampled_from([None, 100.0])),
        }
        if draw(st.booleans()):
            jobs.append(job(f"j{n}", **wishes))
        else:
            jobs.append(
                running(f"j{n}", draw(st.sampled_from(names)), hours_ago=0.1, **{**wishes, "gpus": 0.0, "power_w": 100.0})
            )
    budgets = draw(st.sampled_from([(), (Budget(names[0], NOW + H, NOW + 4 * H, 1500.0, "e", "call"),)]))
    return world(jobs, regions, budgets=budgets, carbon_price=0.0)


@given(pictures())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_no_plan_breaks_a_constraint_and_every_job_is_accounted_for(picture) -> None:  # type: ignore[no-untyped-def]
    made = plan(picture)
    movable = {j.id for j in picture.jobs if j.state is JobState.QUEUED or j.flex.pausable is Pausable.CHECKPOINT}
    assert set(made.placements) | set(made.unplaced) == movable
    placed_fixed = [j for j in picture.jobs if j.id not in movable]
    if not placed_fixed:
        check_plan(picture, made)
    assert made.bound is not None and made.bound <= made.objective + 1e-9
    assert plan(picture) == made, "the same world gives the same plan"


def test_a_thousand_jobs_are_planned_in_time_for_the_next_slot() -> None:
    jobs = [job(f"j{n}", gpus=1.0, runtime_s=1800.0 + 60 * (n % 90), deadline_at=NOW + (4 + n % 40) * H) for n in range(1000)]
    regions = [region(name, [(20 + (7 * n + shift) % 60) for n in range(192)], gpus=40.0) for shift, name in enumerate("abc")]
    started = time.perf_counter()
    made = plan(world(jobs, regions))
    assert len(made.placements) == 1000
    print(f"1000 jobs x 3 regions: {time.perf_counter() - started:.2f} s, gap {made.gap:.3f}")


def test_what_the_solver_leaves_keeps_to_headroom_and_gpu_types() -> None:
    kept = Reserved(NOW, NOW + timedelta(hours=9), 4.0, 0.0)
    wide = job("wide", gpus=8.0, deadline_at=NOW + timedelta(hours=2))
    placed = plan(world([wide], [region("a", [50.0] * 192, reserved=(kept,))])).placements["wide"]
    assert placed.intervals[0][0] >= NOW + timedelta(hours=9) and placed.late_s > 0
    pools = (GpuPool("A100", 8.0),)
    picky = job("picky", gpu_types={"H100": 1.0}, deadline_at=NOW + timedelta(minutes=30))
    made = plan(world([picky], [region("a", [50.0] * 192, pools=pools)]))
    assert "8 A100" in made.unplaced["picky"] and "H100" in made.unplaced["picky"]


@pytest.mark.parametrize("call", [False, True])
@pytest.mark.parametrize(("left", "power_w"), [(0, 1000.0), (1, 1000.0), (1, 100.0), (4, 100.0), (6, 100.0)])
def test_the_bound_of_a_few_jobs_owes_nothing_to_the_crowd_before_them(left: int, power_w: float, call: bool) -> None:
    budgets = (Budget("a", NOW + 2 * H, NOW + 4 * H, 1500.0, "e", "call"),) if call else ()
    prices = [60.0 + (7 * n) % 40 for n in range(192)]
    policy = Gridshift()
    crowd = [job(f"j{n}", gpus=1 + n % 2) for n in range(20)]
    policy.plan(world(crowd, [region("a", prices, gpus=4.0)], budgets=budgets))
    few = [job(f"k{n}", power_w=power_w) for n in range(left)]
    made = policy.plan(world(few, [region("a", prices, gpus=4.0)], budgets=budgets))
    assert len(made.placements) == left and made.bound is not None and made.gap is not None
    assert made.bound >= 0.0, "where nothing pays for being drawn, no plan costs less than nothing"
    assert 0.0 <= made.objective - made.bound <= 0.01 * made.objective + 1e-9
    assert 0.0 <= made.gap <= 0.01


def test_no_price_of_a_limit_that_is_gone_is_left_in_the_bound() -> None:
    prices = [60.0 + (7 * n) % 40 for n in range(192)]
    crowd = [job(f"j{n}") for n in range(12)]
    here = region("a", prices, gpus=8.0)
    policy = Gridshift()
    policy.plan(world(crowd, [here], budgets=(Budget("a", NOW, NOW + 10 * H, 2000.0, "e", "call"),)))
    made, fresh = policy.plan(world(crowd, [here])), plan(world(crowd, [here]))
    assert made.bound is not None and made.bound <= min(made.objective, fresh.objective) + 1e-9
    standing = policy._standing
    assert standing is not None and not standing.solver.region_watt.any(), "its price would be added to the costs of all jobs"


def test_a_gap_is_no_share_of_nothing() -> None:
    assert one_by_one.gap(0.0, -0.14) is None, "not 0 %: the bound says nothing of the kind"
    assert one_by_one.gap(0.0, 0.0) == 0.0 and one_by_one.gap(2.0, 1.0) == 0.5
