"""The engine: exact times, room and limits at every moment, exact sums, and every job accounted for."""

import math
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.backtest.engine import run, run_in_full
from dispatcher.backtest.outcomes import Finished
from dispatcher.backtest.scenario import Scenario, SimRegion, TraceJob
from dispatcher.store import JobEvent
from dispatcher.store.memory import MemoryStore
from policies.policy import Knows, Policy
from policies.world import (
    Budget,
    CapPoint,
    GpuPool,
    JobState,
    JobView,
    Pausable,
    Placement,
    Plan,
    RegionView,
    Reserved,
    World,
)
from tests.backtest.engine_samples import (
    SETTINGS,
    T0,
    Base,
    Cleanest,
    H,
    Replanning,
    many_jobs,
    placement,
    scenario,
    table,
    trace_job,
)

S = JobState


def told(picture: Scenario, policy: Policy) -> tuple[Finished, dict[str, list[JobEvent]]]:
    """The run, and the events of each job."""
    store = MemoryStore()
    finished = run_in_full(picture, policy, store)
    return finished, {job.id: store.events(job.id) for job in picture.jobs}


def moments(events: Iterable[JobEvent], state: JobState) -> list[float]:
    """When a job came into a state, in hours after the start."""
    return [(e.at - T0) / H for e in events if e.new_state is state and e.old_state is not state]


class At(Base):
    """Each job runs in the spans that are given by its id, in hours after the start."""

    name = "at"

    def __init__(self, spans: dict[str, list[tuple[float, float]]], **more: Any) -> None:
        self._spans, self._more = spans, more

    def place(self, job: JobView, world: World) -> Placement:
        spans = [(T0 + a * H, T0 + b * H) for a, b in self._spans[job.id]]
        return placement(job, self.where(job, world), *spans, **self._more)


# --- one job ------------------------------------------------------------------------------------------------------------


def test_a_job_runs_when_the_policy_says_and_pays_the_true_price_of_just_that_time() -> None:
    price = np.full(15 * 24, 100.0)
    price[24 + 3] = 20.0  # from 03:00 to 04:00 on the first day
    carbon = np.full(15 * 24, 500.0)
    region = SimRegion("a", table(price=price, carbon=carbon), pue=1.5, fx=2.0)
    finished, events = told(scenario([trace_job(length_h=2.0)], region), At({"j": [(3.5, 5.5)]}))
    assert moments(events["j"], S.RUNNING) == [3.5] and moments(events["j"], S.SUCCEEDED) == [5.5]
    assert finished.run.energy_kwh == pytest.approx(2.0 * 1.5)
    assert finished.run.cost == pytest.approx(1.5 * (0.5 * 0.02 + 1.5 * 0.1) * 2.0)
    assert finished.run.carbon_kg == pytest.approx(1.5 * 2.0 * 0.5)
    assert finished.run.delay_mean_h == pytest.approx(3.5)
    assert finished.run.load_w["a"][:7].tolist() == pytest.approx([0, 0, 0, 750, 1500, 750, 0])


def test_its_story_is_the_one_a_live_job_would_have() -> None:
    _, events = told(scenario([trace_job()]), At({"j": [(2, 3)]}))
    assert [(e.kind, e.new_state, (e.at - T0) / H) for e in events["j"]] == [
        ("submitted", S.QUEUED, 0.0),
        ("plan", S.QUEUED, 0.0),
        ("state", S.LAUNCHING, 2.0),
        ("state", S.RUNNING, 2.0),
        ("state", S.SUCCEEDED, 3.0),
    ]
    assert events["j"][2].reason == "its place" and events["j"][4].reason == "finished in a"


def test_a_pause_keeps_the_work_and_costs_its_checkpoint_and_restart() -> None:
    job = trace_job(length_h=2.0, pausable=Pausable.CHECKPOINT, checkpoint_s=360.0, restart_s=720.0)
    finished, events = told(scenario([job]), At({"j": [(0, 1), (4, 5.2)]}))
    assert moments(events["j"], S.PAUSING) == [1.0] and moments(events["j"], S.PAUSED) == [pytest.approx(1.1)]
    assert moments(events["j"], S.RUNNING) == [0.0, 4.0]
    assert moments(events["j"], S.SUCCEEDED) == [pytest.approx(4.0 + 1.0 + 0.2)], "an hour to go, and the restart"
    assert finished.run.pauses == 1
    assert finished.run.energy_kwh == pytest.approx(1.1 + 1.2)
    assert [e.kind for e in events["j"] if e.kind == "checkpoint"] == ["checkpoint"]


def test_a_job_that_may_not_be_paused_is_not() -> None:
    finished, events = told(scenario([trace_job(length_h=2.0)]), At({"j": [(0, 1), (4, 5)]}))
    assert moments(events["j"], S.SUCCEEDED) == [2.0] and finished.run.pauses == 0


def test_a_launch_takes_its_time_and_steps_round_up() -> None:
    slow = replace(SETTINGS, launch_s=30.0)
    _, events = told(scenario([trace_job()], settings=slow), At({"j": [(2, 3)]}))
    assert moments(events["j"], S.LAUNCHING) == [2.0] and moments(events["j"], S.RUNNING) == [pytest.approx(2 + 30 / 3600)]
    job = trace_job(hour=1 / 3600, length_h=7.0 / 3600)
    _, events = told(scenario([job], step_s=5.0), Base())
    assert [round(at * 3600, 6) for at in moments(events["j"], S.RUNNING) + moments(events["j"], S.SUCCEEDED)] == [5.0, 15.0]


def test_the_last_safe_start_comes_before_the_plan() -> None:
    job = trace_job(max_wait_s=2 * 3600.0)
    finished, events = told(scenario([job]), At({"j": [(5, 6)]}))
    assert moments(events["j"], S.RUNNING) == [2.0] and finished.run.deadline_misses == 0
    assert "a later start could miss its deadline" in events["j"][2].reason


def test_a_deadline_that_cannot_be_met_is_counted_as_late_and_not_hidden() -> None:
    job = trace_job(length_h=4.0, max_wait_s=None, deadline_at=T0 + H)
    finished, events = told(scenario([job]), At({"j": [(5, 9)]}))
    assert moments(events["j"], S.RUNNING) == [0.0] and "it will end after its deadline" in events["j"][1].reason
    assert (finished.run.deadline_misses, finished.run.impossible) == (1, 1)


def test_a_job_of_no_length_ends_when_it_starts() -> None:
    finished, events = told(scenario([trace_job(length_h=0.0)]), At({"j": [(2, 2)]}))
    assert moments(events["j"], S.RUNNING) == [2.0] == moments(events["j"], S.SUCCEEDED)
    assert finished.run.energy_kwh == 0.0 and finished.run.cost == 0.0 and finished.run.unfinished == 0


def test_a_job_longer_than_all_known_signals_runs_and_is_told_as_unfinished() -> None:
    job = trace_job(length_h=1000.0, max_wait_s=0.0)
    finished, events = told(scenario([job]), Base())
    assert moments(events["j"], S.RUNNING) == [0.0] and moments(events["j"], S.SUCCEEDED) == []
    assert finished.run.unfinished == 1 and math.isnan(finished.jobs.ended_s[0])
    assert finished.run.energy_kwh == pytest.approx(14 * 24.0), "as far as the signals go"
    assert finished.run.deadline_misses == 0, "its deadline has not passed"
    delays = [finished.run.delay_mean_h, finished.run.delay_p95_h, *finished.run.delay_percentiles_h]
    assert np.isnan(delays).all(), "no job ended"
    assert any("1 of 1 jobs had not ended" in warning for warning in finished.warnings)


def test_a_job_that_no_region_can_ever_take_is_unfinished_and_misses_its_deadline() -> None:
    region = SimRegion("a", table(), gpus=2.0)
    finished, _ = told(scenario([trace_job("wide", gpus=4.0), trace_job("ok")], region), Base())
    assert (finished.run.unfinished, finished.run.deadline_misses, finished.run.jobs) == (1, 1, 2)
    away, events = told(scenario([trace_job(regions=("nowhere",))], region), _Nowhere())
    assert away.run.unfinished == 1 and "it cannot be placed" in events["j"][1].reason


class _Nowhere(Base):
    def insert(self, world: World, jobs: Any) -> dict[str, Placement]:
        return {}


def test_a_missing_value_makes_the_sum_unknown_and_says_of_how_many_jobs() -> None:
    price = table().price
    assert price is not None
    price = price.copy()
    price[24 + 2] = math.nan
    region = SimRegion("a", table(price=price))
    jobs = [trace_job("x"), trace_job("y")]
    finished, _ = told(scenario(jobs, region), At({"x": [(1.5, 2.5)], "y": [(3, 4)]}))
    assert finished.run.cost is None and finished.run.carbon_kg is not None
    assert [warning for warning in finished.warnings if "the cost of 1 jobs is unknown" in warning]
    assert np.isnan(finished.jobs.cost).tolist() == [True, False]
    exactly, _ = told(scenario(jobs, region), At({"x": [(1, 2)], "y": [(3, 4)]}))
    assert exactly.run.cost is not None, "half open: the unknown hour is not touched"
    priceless, _ = told(scenario(jobs, SimRegion("a", table(price=None))), Base())
    assert priceless.run.cost is None and priceless.run.carbon_kg is not None


# --- room and limits ----------------------------------------------------------------------------------------------------


def test_freed_room_goes_to_the_most_urgent_job_that_fits() -> None:
    jobs = [
        trace_job("first", length_h=3.0, gpus=2.0),
        trace_job("later", hour=0.1, max_wait_s=20 * 3600.0),
        trace_job("urgent", hour=0.2, max_wait_s=9 * 3600.0),
        trace_job("wide", hour=0.3, gpus=2.0, max_wait_s=4 * 3600.0),
        trace_job("vip", hour=0.4, priority=5, max_wait_s=30 * 3600.0),
    ]
    _, events = told(scenario(jobs, SimRegion("a", table(), gpus=2.0)), Base())
    began = {name: moments(one, S.RUNNING)[0] for name, one in events.items()}
    assert began["vip"] == 3.0, "the highest priority first"
    assert began["urgent"] == 3.0, "wide is more urgent, but does not fit beside vip"
    assert began["wide"] == 4.0 and began["later"] == 5.0
    assert "0 of 2 GPUs free" in events["urgent"][1].reason


def test_an_event_pauses_what_may_be_paused_in_time_and_gives_the_room_back_after_it() -> None:
    call = Budget("a", T0 + 3 * H, T0 + 5 * H, 1500.0, "e1", "grid call")
    jobs = [
        trace_job("soft", length_h=6.0, pausable=Pausable.CHECKPOINT, checkpoint_s=60.0, tier="flex-2"),
        trace_job("firm", length_h=6.0),
        trace_job("late", hour=3.5, length_h=1.0),
    ]
    _, events = told(scenario(jobs, events=(call,)), Base())
    assert moments(events["soft"], S.PAUSING) == [pytest.approx(3 - 75 / 3600)], (
        "asked when its checkpoint is just done in time"
    )
    assert moments(events["soft"], S.RUNNING) == [0.0, 5.0], "it goes on when the event is over"
    assert moments(events["firm"], S.SUCCEEDED) == [6.0]
    assert moments(events["late"], S.RUNNING) == [5.0]
    assert any("grid call" in e.reason for e in events["late"])


def test_a_limit_that_cannot_be_met_is_a_warning() -> None:
    call = Budget("a", T0 + 1 * H, T0 + 2 * H, 500.0, "e1", "grid call")
    finished, _ = told(scenario([trace_job(length_h=3.0)], events=(call,)), Base())
    assert any("500 W above its limit of 500 W (grid call)" in warning for warning in finished.warnings)


def test_serving_gets_its_gpus_back() -> None:
    kept = Reserved(T0 + 2 * H, T0 + 4 * H, 3.0, 0.0)
    region = SimRegion("a", table(), gpus=4.0, reserved=(kept,))
    jobs = [
        trace_job("soft", length_h=5.0, pausable=Pausable.CHECKPOINT),
        trace_job("firm", length_h=5.0),
        trace_job("new", hour=2.5),
    ]
    _, events = told(scenario(jobs, region), Base())
    assert moments(events["soft"], S.PAUSED) == [2.0] and moments(events["soft"], S.RUNNING) == [0.0, 4.0]
    assert moments(events["new"], S.RUNNING) == [4.0] and moments(events["firm"], S.SUCCEEDED) == [5.0]


class Gated(Base):
    """No more than one GPU of flexible work until 02:00."""

    name = "gated"

    def gate(self, view: RegionView, now: datetime) -> float | None:
        return 1.0 if now < T0 + 2 * H else None


def test_a_policys_own_bound_holds_until_it_changes_but_never_beyond_the_last_safe_start() -> None:
    jobs = [
        trace_job("one", length_h=5.0),
        trace_job("two", length_h=1.0),
        trace_job("now", length_h=1.0, max_wait_s=1800.0),
    ]
    _, events = told(scenario(jobs), Gated())
    assert moments(events["now"], S.RUNNING) == [0.0]
    assert moments(events["one"], S.RUNNING) == [1.0], "when the one that could not wait is done"
    assert moments(events["two"], S.RUNNING) == [2.0], "when the bound is lifted"
    assert any("flexible work may use 1 GPU in" in e.reason for e in events["one"])
    assert moments(told(scenario(jobs[:1]), Gated())[1]["one"], S.RUNNING) == [0.0]


def test_a_power_cap_makes_a_run_longer_and_draw_less() -> None:
    region = SimRegion("a", table(), caps=(CapPoint(0.5, 0.6, 0.8),), power_limit_w=700.0)
    finished, events = told(scenario([trace_job(length_h=2.0, tier="flex-3")], region), At({"j": [(0, 2.5)]}, cap=0.5))
    assert moments(events["j"], S.SUCCEEDED) == [2.5] and finished.run.energy_kwh == pytest.approx(2.5 * 0.6)


def test_gpus_of_one_type_are_counted_by_themselves() -> None:
    region = SimRegion("a", table(), gpus=3.0, pools=(GpuPool("H100", 1.0, draw=2.0), GpuPool("A100", 2.0)))
    jobs = [trace_job("x"), trace_job("y")]
    finished, events = told(scenario(jobs, region), At({"x": [(0, 1)], "y": [(0, 1)]}, gpu_type="H100"))
    assert sorted(moments(events["x"], S.RUNNING) + moments(events["y"], S.RUNNING)) == [0.0, 1.0]
    assert finished.run.energy_kwh == pytest.approx(4.0)
    forced = [trace_job("x", max_wait_s=0.0), trace_job("y", max_wait_s=0.0)]
    _, events = told(scenario(forced, region), At({"x": [(0, 1)], "y": [(0, 1)]}, gpu_type="H100"))
    assert moments(events["x"], S.RUNNING) == [0.0] == moments(events["y"], S.RUNNING), "in haste any type will do"


def test_a_move_is_counted_and_its_data_take_their_time_and_money() -> None:
    job = trace_job(data_gb=36.0, data_region="b", regions=("a",))
    finished, events = told(scenario([job], SimRegion("a", table()), SimRegion("b", table("b"))), Base())
    assert finished.run.moves == 1 and moments(events["j"], S.RUNNING) == [pytest.approx(0.1)]
    plain, _ = told(scenario([replace(job, data_gb=0.0, submitted_at=T0 + 0.1 * H)], SimRegion("a", table())), Base())
    assert finished.run.cost == pytest.approx((plain.run.cost or 0.0) + 36 * 0.02)


# --- planning anew ------------------------------------------------------------------------------------------------------


def test_a_policy_that_plans_anew_does_so_and_its_gaps_are_told() -> None:
    finished, events = told(scenario(many_jobs(60, days=2.0), plan_s=1800.0), Replanning())
    assert finished.run.gap == 0.25 and finished.run.unfinished == 0 and finished.run.deadline_misses == 0
    assert any(sum(e.kind == "plan" for e in one) >= 1 for one in events.values())


class _Late(Base):
    """It places nothing when jobs come, and all of it in the plan at 02:00."""

    name = "late"
    replans = True

    def insert(self, world: World, jobs: Any) -> dict[str, Placement]:
        return {}

    def plan(self, world: World) -> Plan:
        places = {job.id: self.place(job, world) for job in world.jobs} if world.now >= T0 + 2 * H else {}
        return Plan(world.now, world.now + 48 * H, 3600, places, {job.id: "not yet" for job in world.jobs}, 0.0)


def test_a_plan_places_what_could_not_be_placed_before() -> None:
    _, events = told(scenario([trace_job()], plan_s=3600.0), _Late())
    assert moments(events["j"], S.RUNNING) == [2.0]
    assert [e.reason for e in events["j"]][1:3] == ["it cannot be placed", "not yet"]


# --- what a policy is told ----------------------------------------------------------------------------------------------


class _Listens(Base):
    name = "listens"

    def __init__(self, knows: Knows) -> None:
        self.knows = knows
        self.told: dict[str, tuple[float, float]] = {}

    def place(self, job: JobView, world: World) -> Placement:
        deadline = job.flex.deadline_at
        assert deadline is not None
        wait_s = (deadline - job.submitted_at).total_seconds() - job.flex.runtime_s
        self.told[job.id] = (job.flex.runtime_s, wait_s)
        return super().place(job, world)


def test_a_policy_is_told_no_more_of_run_times_than_it_may_know() -> None:
    jobs = [
        trace_job("a", length_h=1.0, queue="q"),
        trace_job("b", hour=2.0, length_h=3.0, queue="q"),
        trace_job("c", hour=9.0, length_h=5.0, queue="q", declared_s=60.0),
        trace_job("d", hour=20.0, length_h=7.0, queue="other"),
    ]

    def listened(knows: Knows, **more: Any) -> dict[str, float]:
        policy = _Listens(knows)
        run(scenario(jobs, **more), policy)
        assert [wait_s for _, wait_s in policy.told.values()] == pytest.approx([12 * 3600.0] * 4), "what it may wait is its own"
        return {name: runtime_s / 3600 for name, (runtime_s, _) in policy.told.items()}

    def hours(told: dict[str, float]) -> list[float]:
        return [told[name] for name in "abcd"]

    assert hours(listened(Knows.RUNTIME)) == [1.0, 3.0, 1 / 60, 7.0]
    assert hours(listened(Knows.GROUP_MEAN)) == [1.0, 1.0, 2.0, 1.0], "learned from what has ended; an hour where nothing has"
    prior = {"q": 4 * 3600.0, "other": 3600.0}
    assert hours(listened(Knows.NOTHING, mean_by_queue_s=prior, means_fixed=True)) == [4.0, 4.0, 4.0, 1.0]
    learned = hours(listened(Knows.GROUP_MEAN, mean_by_queue_s=prior))
    assert learned == pytest.approx([4.0, (40 + 1) / 11, (40 + 4) / 12, 1.0])


# --- what always holds --------------------------------------------------------------------------------------------------


@st.composite
def pictures(draw: st.DrawFn) -> tuple[Scenario, Policy]:
    count = draw(st.integers(1, 25))
    jobs = []
    for n in range(count):
        jobs.append(
            trace_job(
                f"j{n}",
                hour=draw(st.floats(0.0, 20.0)),
                length_h=draw(st.sampled_from([0.0, 0.01, 0.5, 1.0, 2.5, 7.0])),
                gpus=draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])),
                power_w=draw(st.sampled_from([0.0, 300.0, 1000.0])),
                max_wait_s=draw(st.sampled_from([None, 0.0, 3600.0, 12 * 3600.0])),
                pausable=draw(st.sampled_from([Pausable.NO, Pausable.CHECKPOINT])),
                checkpoint_s=draw(st.sampled_from([0.0, 60.0])),
                restart_s=draw(st.sampled_from([0.0, 120.0])),
                priority=draw(st.integers(0, 2)),
                regions=draw(st.sampled_from([(), ("a",), ("b",)])),
                earliest_at=draw(st.sampled_from([None, None, T0 + 25 * H])),
            )
        )
    jobs.sort(key=lambda job: job.submitted_at)
    regions = [
        SimRegion(
            name,
            table(name, seed=seed, days=7),
            gpus=draw(st.sampled_from([None, 3.0, 5.0])),
            max_jobs=draw(st.sampled_from([None, 4])),
            power_limit_w=draw(st.sampled_from([None, 2500.0])),
        )
        for seed, name in enumerate("ab")
    ]
    events = draw(st.sampled_from([(), (Budget("a", T0 + 5 * H, T0 + 9 * H, 1200.0, "e", "call"),)]))
    policy = draw(st.sampled_from([Base(), Cleanest(), Replanning()]))
    launch_s = draw(st.sampled_from([0.0, 20.0]))
    picture = scenario(
        jobs,
        *regions,
        days=5,
        settings=replace(SETTINGS, launch_s=launch_s),
        events=events,
        step_s=draw(st.sampled_from([0.0, 0.0, 300.0])),
        plan_s=7200.0,
    )
    return picture, policy


@given(pictures())
@settings(max_examples=40)
def test_every_job_is_accounted_for_does_exactly_its_work_and_no_launch_passes_a_limit(given_: tuple[Scenario, Policy]) -> None:
    picture, policy = given_
    finished, events = told(picture, policy)
    jobs = {job.id: job for job in picture.jobs}
    ended = {name for name, one in events.items() if one[-1].new_state is S.SUCCEEDED}
    assert len(ended) + finished.run.unfinished == finished.run.jobs == len(jobs)
    assert finished.run.unfinished == 0, "each fits somewhere, and there is time enough"
    launch_s, step_s = picture.settings.launch_s, picture.step_s
    for name, one in events.items():
        job, states = jobs[name], [e for e in one if e.kind == "state"]
        ready = max(job.submitted_at, job.earliest_at or job.submitted_at)
        assert states[0].at >= ready
        ran = sum(((b.at - a.at).total_seconds() for a, b in pairwise(states) if a.new_state is S.RUNNING), 0.0)
        resumes = sum(e.new_state is S.RUNNING for e in states) - 1
        work_s = job.length_s + resumes * job.restart_s
        if step_s == 0 and not resumes:
            assert ran == pytest.approx(work_s, abs=1e-3)
        elif step_s == 0:
            # a run that was paused before it had restarted has done nothing, and lost no more than it ran
            assert job.length_s - 1e-3 <= ran <= work_s + 1e-3
        else:
            assert job.length_s - 1e-3 <= ran <= work_s + step_s * (resumes + 1) + 1e-3
    _check_room(picture, events, launch_s)
    hours = {name: load.sum() / 1000.0 for name, load in finished.run.load_w.items()}
    assert sum(hours.values()) == pytest.approx(finished.run.energy_kwh, abs=1e-6)
    assert finished.jobs.energy_kwh.sum() == pytest.approx(finished.run.energy_kwh)


def _check_room(picture: Scenario, events: dict[str, list[JobEvent]], launch_s: float) -> None:
    """At each launch, and at each end of one, what is placed is within the region's room and the limits in force."""
    jobs = {job.id: job for job in picture.jobs}
    placed: dict[str, dict[str, TraceJob]] = {region.name: {} for region in picture.regions}
    log = sorted((e for one in events.values() for e in one), key=lambda e: e.seq)
    assert [e.at for e in log] == sorted(e.at for e in log) or picture.step_s > 0, "time never goes back"
    for event in log:
        if event.new_state is S.LAUNCHING and event.kind == "state":
            region = next(r for r in picture.regions if r.name == event.region)
            here = placed[region.name]
            here[event.job_id] = jobs[event.job_id]
            assert not jobs[event.job_id].regions or region.name in jobs[event.job_id].regions
            assert region.gpus is None or sum(job.gpus for job in here.values()) <= region.gpus + 1e-6
            assert region.max_jobs is None or len(here) <= region.max_jobs
            limits = [
                b.limit_w
                for b in picture.events
                if b.region == region.name and b.start <= event.at and (b.end is None or event.at < b.end)
            ]
            limit_w = min([*limits, region.power_limit_w or math.inf])
            assert sum(job.power_w for job in here.values()) * region.pue <= limit_w + 1e-6
        elif event.new_state in (S.PAUSED, S.SUCCEEDED) and event.kind == "state":
            assert event.region is not None
            placed[event.region].pop(event.job_id, None)


@pytest.mark.parametrize("policy", [Base(), Cleanest(), Replanning()])
def test_the_same_run_twice_is_the_same(policy: Policy) -> None:
    region = SimRegion("a", table(), gpus=12.0)
    first, events = told(scenario(many_jobs(120), region), policy)
    second, again = told(scenario(many_jobs(120), region), policy)
    assert events == again and first.run.cost == second.run.cost


def test_progress_is_told_from_nothing_to_everything() -> None:
    shares: list[float] = []
    run(scenario(many_jobs(20)), Base(), progress=shares.append)
    assert shares == sorted(shares) and shares[-1] == 1.0 and len(shares) > 10


def test_a_scenario_without_jobs_is_no_error() -> None:
    finished, _ = told(scenario([]), Base())
    assert finished.run.jobs == 0 and finished.run.energy_kwh == 0.0 and finished.run.cost == 0.0
    assert timedelta(hours=len(finished.run.load_w["a"])) == timedelta(days=7)
