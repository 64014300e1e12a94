"""Demand charges in plans: a new peak that costs more than it saves is not set, one that pays is, and no deadline is missed."""

from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.demand_charge import peaks_of, range_max
from policies.grid import make_grid
from policies.planner import plan
from policies.world import PLACED, DemandCharge, Pausable, Plan, World
from tests.policies.simulated import TICK, Simulation
from tests.policies.worlds import NOW, SETTINGS, check_plan, job, region, running, world

H = timedelta(hours=1)
CHEAP_AT_NOON = [80.0] * 24 + [20.0] * 8 + [80.0] * 160  # 15-min slots from 06:00: cheap 12:00-14:00
ALWAYS = ((NOW - 24 * H, NOW + 20 * 24 * H),)


def charge(per_kw: float, peak_w: float = 0.0, **more: object) -> DemandCharge:
    return replace(DemandCharge(per_kw, peak_w, ALWAYS), **more)  # type: ignore[arg-type]


def mean_draws(picture: World, made: Plan, where: str, step_s: int = 900) -> dict[datetime, float]:
    """Mean draw (W at the meter) of each measurement interval from now on, added up interval by interval."""
    view = next(view for view in picture.regions if view.name == where)
    jobs = {one.id: one for one in picture.jobs}
    begin = NOW - timedelta(seconds=NOW.timestamp() % step_s)
    sums: dict[datetime, float] = {}
    for job_id, placement in made.placements.items():
        for start, end in placement.intervals if placement.region == where else ():
            at = begin + timedelta(seconds=step_s * ((start - begin) // timedelta(seconds=step_s)))
            while at < end:
                share = (min(end, at + timedelta(seconds=step_s)) - max(start, at)).total_seconds() / step_s
                sums[at] = sums.get(at, view.bypass_w) + share * jobs[job_id].flex.power_w * view.pue
                at += timedelta(seconds=step_s)
    return sums


def demand_cost(picture: World, made: Plan) -> float:
    """What the month's bill rises by."""
    total = 0.0
    for view in picture.regions:
        for one in view.demand:
            inside = [
                draw
                for at, draw in mean_draws(picture, made, view.name).items()
                if any(at < end and at + timedelta(seconds=one.interval_s) > begin for begin, end in one.windows)
            ]
            total += one.per_kw * view.fx / 1000.0 * max(0.0, max(inside, default=0.0) - max(one.peak_w, view.bypass_w))
    return total


def energy_cost(made: Plan) -> float:
    return sum(placement.cost or 0.0 for placement in made.placements.values())


def lateness(made: Plan) -> float:
    return sum(placement.late_s for placement in made.placements.values())


def unaware(picture: World) -> Plan:
    return plan(replace(picture, regions=tuple(replace(view, demand=()) for view in picture.regions)))


def starts(made: Plan) -> list[float]:
    return sorted((placement.intervals[0][0] - NOW) / H for placement in made.placements.values())


# --- what a user sees -------------------------------------------------------------------------------------------------


def test_a_new_peak_that_costs_more_than_the_shift_saves_is_seen() -> None:
    jobs = [job(f"j{n}", runtime_s=7200.0, power_w=20_000.0) for n in range(4)]
    view = region("a", CHEAP_AT_NOON, demand=(charge(12.0, 40_000.0),))
    picture = world(jobs, [view])
    assert starts(unaware(picture)) == [6.0] * 4
    made = plan(picture)
    check_plan(picture, made)
    assert starts(made).count(6.0) == 2 and max(mean_draws(picture, made, "a").values()) == pytest.approx(40_000.0)
    assert demand_cost(picture, made) == 0.0 and lateness(made) == 0.0
    sentence = "held below 40 kW: a new peak of 80 kW would cost 480 EUR, more than the 4.8 EUR it would save"
    moved = [placement for placement in made.placements.values() if placement.intervals[0][0] != NOW + 6 * H]
    assert len(moved) == 2 and all(placement.reason.endswith(sentence) for placement in moved)
    assert [(peak.region, peak.standing_w, peak.planned_w, peak.cost) for peak in made.peaks] == [
        ("a", 40_000.0, 40_000.0, 0.0)
    ]
    assert made.peaks[0].sentence == sentence


def test_a_peak_that_pays_is_set_and_says_so() -> None:
    jobs = [job(f"j{n}", runtime_s=7200.0, power_w=20_000.0) for n in range(4)]
    picture = world(jobs, [region("a", CHEAP_AT_NOON, demand=(charge(0.01, 40_000.0),))])
    made = plan(picture)
    assert starts(made) == [6.0] * 4
    assert made.objective == pytest.approx(energy_cost(made) + 0.4)
    assert made.peaks[0].cost == pytest.approx(0.4) and made.peaks[0].planned_w == pytest.approx(80_000.0)
    assert "sets a new peak of 80 kW (40 kW so far), which costs 0.4 EUR: staying below" in made.placements["j0"].reason
    assert made.bound is not None and made.bound <= made.objective


def test_a_deadline_is_never_missed_to_save_a_peak() -> None:
    jobs = [job(f"j{n}", power_w=20_000.0, deadline_at=NOW + 1.2 * H) for n in range(3)]
    picture = world(jobs, [region("a", CHEAP_AT_NOON, demand=(charge(1e6, 20_000.0),))])
    made = plan(picture)
    assert lateness(made) == 0.0 and starts(made) == [0.0] * 3
    assert "jobs could not all end in time without it" in made.placements["j0"].reason
    assert made.peaks[0].cost == pytest.approx(40e6)


def test_draw_under_the_peak_so_far_is_free() -> None:
    picture = world([job(f"j{n}", power_w=20_000.0) for n in range(4)], [region("a", CHEAP_AT_NOON)])
    charged = replace(picture, regions=(replace(picture.regions[0], demand=(charge(500.0, 80_000.0),)),))
    assert plan(charged) == plan(picture)


def test_a_running_load_that_nobody_can_move_sets_the_peak_that_stands() -> None:
    fixed = running("f", "a", pausable=Pausable.NO, power_w=50_000.0, runtime_s=4 * 3600.0)
    picture = world([fixed, job("j", power_w=50_000.0)], [region("a", CHEAP_AT_NOON, demand=(charge(12.0),))])
    made = plan(picture)
    assert made.placements["j"].intervals[0][0] == NOW + 6 * H, "after the other has ended, under its peak"
    assert made.peaks == () and "peak" not in made.placements["j"].reason


def test_only_the_hours_that_count_are_kept_clear() -> None:
    noon = ((NOW + 6 * H, NOW + 8 * H),)
    jobs = [job(f"j{n}", power_w=20_000.0) for n in range(3)]
    picture = world(jobs, [region("a", CHEAP_AT_NOON, demand=(charge(12.0, 20_000.0, windows=noon),))])
    made = plan(picture)
    inside = [start for start in starts(made) if 5.0 < start < 8.0]
    assert len(inside) == 2 and demand_cost(picture, made) == 0.0, "one an hour at noon, the third at any other time"
    early = ((NOW, NOW + 3 * H),)
    free = replace(picture, regions=(replace(picture.regions[0], demand=(charge(12.0, 0.0, windows=early),)),))
    assert starts(plan(free)) == [6.0] * 3


def test_each_month_has_its_own_peak() -> None:
    cheap_tomorrow = [80.0] * 96 + [10.0] * 96
    this, following = ((NOW, NOW + 24 * H),), ((NOW + 24 * H, NOW + 48 * H),)
    both = (charge(12.0, 100_000.0, windows=this), charge(12.0, 0.0, windows=following))
    jobs = [job(f"j{n}", power_w=20_000.0, deadline_at=NOW + 40 * H) for n in range(2)]
    picture = world(jobs, [region("a", cheap_tomorrow, demand=both)])
    assert min(starts(unaware(picture))) >= 24.0
    assert max(starts(plan(picture))) < 24.0


def test_work_goes_where_no_new_peak_is_paid() -> None:
    jobs = [job(f"j{n}", power_w=20_000.0) for n in range(2)]
    regions = [region("a", [20.0] * 192, demand=(charge(12.0, 20_000.0),)), region("b", [50.0] * 192)]
    picture = world([replace(one, flex=replace(one.flex, deadline_at=NOW + 1.3 * H)) for one in jobs], regions)
    made = plan(picture)
    assert sorted(placement.region for placement in made.placements.values()) == ["a", "b"]
    assert "held below 20 kW" in next(p.reason for p in made.placements.values() if p.region == "b")


def test_a_pausable_job_runs_in_parts_around_the_peak_of_others() -> None:
    fixed = [
        job("f1", power_w=30_000.0, runtime_s=3600.0, earliest_at=NOW + 3 * H, deadline_at=NOW + 4.2 * H),
        job("long", power_w=30_000.0, runtime_s=6 * 3600.0, pausable=Pausable.CHECKPOINT, deadline_at=NOW + 9 * H),
    ]
    picture = world(fixed, [region("a", [50.0] * 192, demand=(charge(12.0, 30_000.0),))])
    made = plan(picture)
    check_plan(picture, made)
    assert demand_cost(picture, made) == 0.0 and len(made.placements["long"].intervals) == 2


def test_a_region_without_a_rate_has_no_priced_peak() -> None:
    view = region("a", CHEAP_AT_NOON, demand=(charge(12.0),), fx=float("nan"))
    assert peaks_of(view, make_grid(NOW, 900, 3600.0), []) == ()
    assert plan(world([job("j")], [view])).placements["j"].cost is None


# --- properties -------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40), st.data())
@settings(max_examples=100, deadline=None)
def test_range_maxima_are_maxima(values: list[float], data: st.DataObject) -> None:
    first = data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=10))
    last = [data.draw(st.integers(begin + 1, len(values))) for begin in first]
    found = range_max(np.array(values), np.array(first), np.array(last))
    assert found.tolist() == [max(values[a:b]) for a, b in zip(first, last, strict=True)]


@given(
    st.lists(st.tuples(st.floats(0, 9000), st.floats(1, 9000), st.floats(0, 5e5)), max_size=8),
    st.sampled_from([300, 900, 1800]),
    st.floats(0, 1000),
)
@settings(max_examples=100, deadline=None)
def test_the_metered_peak_is_the_highest_mean(draws: list[tuple[float, float, float]], step_s: int, bypass_w: float) -> None:
    spans = [(begin, begin + length, watts) for begin, length, watts in draws]
    grid = make_grid(NOW, 900, 20_000.0)
    peak = peaks_of(region("a", None, demand=(charge(1.0, interval_s=float(step_s)),)), grid, [])[0]
    means = [
        sum(watts * max(0.0, min(end, at + step_s) - max(begin, at)) for begin, end, watts in spans) / step_s
        for at in range(0, 20_000, step_s)
    ]
    assert peak.highest_w(spans, bypass_w) == pytest.approx(max(means) + bypass_w, abs=1e-3)


@st.composite
def pictures(draw: st.DrawFn) -> World:
    regions = []
    for name in ("a", "b")[: draw(st.integers(1, 2))]:
        prices = draw(st.lists(st.floats(-20, 200), min_size=24, max_size=24))
        peak_w = draw(st.sampled_from([0.0, 1500.0, 3000.0]))
        per_kw = draw(st.sampled_from([0.0, 0.02, 0.2, 10.0]))
        windows = draw(st.sampled_from([ALWAYS, ((NOW + 2 * H, NOW + 5 * H),)]))
        demand = () if draw(st.integers(0, 4)) == 0 else (DemandCharge(per_kw, peak_w, windows),)
        limit = draw(st.sampled_from([None, 6000.0]))
        pue = draw(st.sampled_from([1.0, 1.3]))
        hours = [price for price in prices for _ in range(4)] * 2
        regions.append(region(name, hours, demand=demand, power_limit_w=limit, pue=pue))
    jobs = []
    for n in range(draw(st.integers(1, 7))):
        hours_long = draw(st.floats(0.3, 4.0))
        wishes = {
            "runtime_s": hours_long * 3600.0,
            "power_w": draw(st.sampled_from([500.0, 1000.0, 2000.0])),
            "pausable": draw(st.sampled_from([Pausable.NO, Pausable.CHECKPOINT])),
            "deadline_at": draw(st.sampled_from([None, NOW + hours_long * H * 1.5, NOW + 8 * H, NOW + 20 * H])),
        }
        jobs.append(job(f"j{n}", **wishes) if draw(st.integers(0, 3)) else running(f"j{n}", "a", hours_ago=0.1, **wishes))
    jobs = [one for one in jobs if one.run_started_at is None or one.flex.pausable is Pausable.CHECKPOINT]
    return world(jobs, regions)


@given(pictures())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_the_bill_is_never_higher_and_no_job_later_than_without_looking_at_peaks(picture: World) -> None:
    made, before = plan(picture), unaware(picture)
    queued_only = all(one.run_started_at is None for one in picture.jobs)
    if queued_only:
        check_plan(picture, made)
    assert lateness(made) <= lateness(before) + 1e-6 and set(made.placements) == set(before.placements)
    if lateness(made) == pytest.approx(lateness(before), abs=1e-6):
        total, total_before = energy_cost(made) + demand_cost(picture, made), energy_cost(before) + demand_cost(picture, before)
        assert total <= total_before + 1e-6
    assert made.bound is not None and made.bound <= made.objective + 1e-9
    if not any(view.demand for view in picture.regions):
        assert made == before
    assert plan(picture) == made


def test_the_level_is_close_to_the_best_constant_one() -> None:
    """Equal jobs of an hour, prices that fall by the hour: the best peak can be counted out."""
    prices = [float(100 - 8 * hour) for hour in range(10) for _ in range(4)] + [100.0] * 152
    for per_kw in (0.005, 0.02, 0.05, 0.2):
        jobs = [job(f"j{n}", power_w=1000.0, deadline_at=NOW + 10.5 * H, gpus=0.0) for n in range(10)]
        picture = world(jobs, [region("a", prices, gpus=None, demand=(charge(per_kw),))], deadline_margin_s=0.0)
        made = plan(picture)
        best = min(sum((100 - 8 * (9 - n // high)) / 1000.0 for n in range(10)) + per_kw * high for high in range(1, 11))
        assert energy_cost(made) + demand_cost(picture, made) <= best * 1.1 + 1e-9


# --- plans and decisions together -------------------------------------------------------------------------------------


class Metered(Simulation):
    """A simulation with a meter: each month's peak is what was drawn so far, and the planner is told."""

    sums: dict[datetime, float]

    def _meter(self) -> None:
        super()._meter()
        view = self.regions[0]
        draw_w = sum(one.flex.power_w for one in self.jobs.values() if one.state in PLACED and one.region == view.name)
        at = self.now - timedelta(seconds=self.now.timestamp() % 900)
        self.sums[at] = self.sums.get(at, 0.0) + draw_w * view.pue * TICK.total_seconds() / 900
        if view.demand:
            told = replace(view.demand[0], peak_w=max(view.demand[0].peak_w, *self.sums.values()))
            self.regions = (replace(view, demand=(told,)),)


def test_over_half_a_day_the_meter_shows_a_lower_peak_and_every_deadline_is_kept() -> None:
    jobs = [
        job(f"j{n}", power_w=1000.0, runtime_s=3600.0, gpus=0.0, deadline_at=NOW + (3 + n) * H, restart_s=0.0) for n in range(8)
    ]
    bills, peaks = [], []
    for per_kw in (0.0, 12.0):
        view = region("a", CHEAP_AT_NOON, gpus=None, demand=(charge(per_kw),))
        done = Metered(NOW, (view,), list(jobs), replace(SETTINGS, runtime_slack=0.02))
        done.sums = {}
        done.run(11)
        assert set(done.ended_at) == {one.id for one in jobs}
        assert all(done.ended_at[one.id] <= (one.flex.deadline_at or NOW) for one in jobs)
        peaks.append(max(done.sums.values()))
        bills.append(sum(done.cost.values()) + 12.0 * peaks[-1] / 1000.0)
    assert peaks[1] <= 2000.0 + 1e-6 < peaks[0] and bills[1] < bills[0]
