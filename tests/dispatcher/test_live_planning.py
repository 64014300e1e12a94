"""Jobs that come while a plan stands get a place in it; a whole plan is made each period, and when limits change."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from dispatcher.clusters.simulated import Workload
from dispatcher.config import Config
from dispatcher.planning import WARMING_UP, Made, NoPlanThere, Placed, PlanFailed, Planner
from dispatcher.simulation import Simulation
from dispatcher.standing_plan import MANY, StandingPlan
from dispatcher.store import Change, GridEvent, Job, Request
from policies.flexibility import parse_flexibility
from policies.world import JobState, JobView, World
from tests.dispatcher.faulty import Simple
from tests.policies.worlds import job, region, world

START = datetime(2026, 3, 2, tzinfo=UTC)


class Counting(Planner):
    """The planner, with what it was asked; ``fails`` makes the next insert fail."""

    def __init__(self) -> None:
        super().__init__()
        self.plans, self.inserted, self.forgotten = 0, [list[str]()], list[str]()
        self.fails: Exception | None = None
        self.warm, self.wrong = True, ""

    @property
    def warming_up(self) -> bool:
        return not self.warm

    @property
    def trouble(self) -> str | None:
        return self.wrong or None

    def plan(self, world: World, instead: str = "") -> Made:
        self.plans += 1
        return super().plan(world, instead)

    def insert(self, world: World, jobs: Sequence[JobView]) -> Placed:
        self.inserted.append([one.id for one in jobs])
        if self.fails is not None:
            error, self.fails = self.fails, None
            raise error
        return super().insert(world, jobs)

    def forget(self, job_ids: Sequence[str]) -> None:
        self.forgotten += job_ids
        super().forget(job_ids)


@pytest.fixture
def planner() -> Counting:
    return Counting()


@pytest.fixture
def sim(planner: Counting) -> Simulation:
    """A region with 4 GPUs and a job ``first`` that waits, planned; no period comes to an end."""
    one = {"name": "a", "address": "http://a", "gpus": 4, "price": [{"feed": "synthetic", "price_swing": 40.0}]}
    config = Config.model_validate({"region": [one], "planning": {"horizon_hours": 24}})
    made = Simulation(config, START, [], planning=planner, tick_s=1.0, plan_s=36000.0, start_s=2.0)
    advance(made, 3)
    made.loops = [loop for loop in made.loops if loop.name not in ("plan", "ingest")]  # no plan but those asked for
    submit(made, "first", deadline="20h", runtime="30m")
    advance(made, 3)
    assert planner.plans == 1 and state(made, "first") is JobState.QUEUED
    return made


def submit(sim: Simulation, job_id: str, run_s: float = 60.0, **metadata: str) -> Job:
    now = sim.clock.now()
    given = {f"gridshift.{key}": value for key, value in metadata.items()}
    flex = parse_flexibility(given, now=now, gpus_requested=1.0, regions=["a"])
    sim.clusters["a"].workloads[job_id] = Workload(run_s=run_s, checkpoint_s=3.0)
    made = Job(
        job_id, Request("true", metadata=given, entrypoint_num_gpus=1.0), flex, JobState.QUEUED, now, now, reason="submitted"
    )
    return sim.control.admit(made).result()


def advance(sim: Simulation, seconds: float) -> None:
    sim.run(sim.clock.now() + timedelta(seconds=seconds))


def state(sim: Simulation, job_id: str) -> JobState:
    found = sim.store.job(job_id)
    assert found is not None
    return found.state


def intend(sim: Simulation, job_id: str, **fields: object) -> None:
    outcome = sim.store.apply([Change(job_id, sim.clock.now(), "intent", "asked", fields=fields)]).result()[0]
    assert isinstance(outcome, Job)


def test_a_job_that_comes_gets_a_place_and_a_reason_without_a_new_plan(sim: Simulation, planner: Counting) -> None:
    submit(sim, "second", deadline="20h", runtime="30m")
    sim.control.place(sim.clock.now())
    plan = sim.control.snapshot().world.plan
    assert plan is not None and set(plan.placements) == {"first", "second"}, "even before the next tick"
    advance(sim, 2)
    found = sim.store.job("second")
    assert found is not None and found.planned_start_at is not None and found.reason == plan.placements["second"].reason
    assert planner.plans == 1 and planner.inserted[1:] == [["second"]]


def test_jobs_that_end_or_are_held_are_forgotten_and_placed_again_when_let_go(sim: Simulation, planner: Counting) -> None:
    submit(sim, "second", deadline="20h", runtime="30m")
    advance(sim, 2)
    intend(sim, "second", held=True)
    advance(sim, 2)
    assert planner.forgotten == ["second"]
    intend(sim, "second", held=False)
    intend(sim, "first", cancel_requested_at=sim.clock.now())
    advance(sim, 3)
    assert state(sim, "first") is JobState.CANCELLED and "first" in planner.forgotten
    assert planner.inserted[1:] == [["second"], ["second"]] and planner.plans == 1


def test_a_new_limit_asks_for_a_whole_plan(sim: Simulation, planner: Counting) -> None:
    event = GridEvent("test", "e1", 1, "a", START + timedelta(hours=1), START + timedelta(hours=2), 0.0, START)
    sim.store.save_grid_event(event, None).result()
    advance(sim, 2)
    assert planner.plans == 2


@pytest.mark.parametrize("error", [PlanFailed("its process died"), NoPlanThere("fresh")])
def test_a_job_that_got_no_place_is_in_the_next_plan_which_is_made_at_once(
    sim: Simulation, planner: Counting, error: Exception
) -> None:
    planner.fails = error
    submit(sim, "second", deadline="20h", runtime="30m")
    advance(sim, 2)
    plan = sim.control.snapshot().world.plan
    assert planner.plans == 2 and plan is not None and set(plan.placements) == {"first", "second"}


def test_very_many_jobs_at_once_are_planned_together(sim: Simulation, planner: Counting) -> None:
    for n in range(MANY + 1):
        submit(sim, f"j{n:03d}", earliest="6h", runtime="1m")
    sim.control.place(sim.clock.now())
    assert planner.inserted == [[]]
    advance(sim, 2)
    plan = sim.control.snapshot().world.plan
    assert planner.plans == 2 and plan is not None and len(plan.placements) == MANY + 2


def test_jobs_are_not_added_to_a_plan_that_is_too_old(sim: Simulation, planner: Counting) -> None:
    sim.control._plan_loop.period_s = 30.0
    advance(sim, 300)
    submit(sim, "second", deadline="20h", runtime="30m")
    advance(sim, 2)
    assert planner.plans == 2 and planner.inserted == [[]]


def test_an_operator_sees_that_the_planner_warms_up_or_fails(sim: Simulation, planner: Counting) -> None:
    assert sim.control.snapshot().planner == "ready"
    planner.warm = False
    assert sim.control.snapshot().planner == "planner warming up"
    planner.warm, planner.wrong = True, "gridshift made no plan (KeyError: 7); until it does, jobs are placed one by one"
    advance(sim, 2)
    snapshot = sim.control.snapshot()
    assert snapshot.planner == planner.wrong
    assert [alarm.sentence for alarm in snapshot.alarms if alarm.key == "planner"] == [planner.wrong]


def test_a_job_is_explained_by_whoever_planned_it(sim: Simulation) -> None:
    (now_instead,) = sim.control.explain("first")
    assert now_instead.region == "a" and "more" in now_instead.why_not
    assert sim.control.explain("nobody") == ()


def test_plans_and_new_jobs_from_many_threads_end_and_lose_nobody() -> None:
    standing = StandingPlan(Planner(make=lambda name, settings: Simple()))
    there = world([job("old")], [region("a", [10.0] * 96)])
    standing.renew(there)
    ended: list[str] = []

    def plan() -> None:
        for _ in range(30):
            standing.renew(there)
        ended.append("plan")

    def come(name: str) -> None:
        for n in range(30):
            standing.came_back(f"{name}{n}")
            standing.take_in(there, lambda job_id, _: job(job_id))
            standing.left(f"{name}x{n}")
        ended.append(name)

    calls = [plan, plan, lambda: come("p"), lambda: come("q"), lambda: come("r")]
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(ended) == ["p", "plan", "plan", "q", "r"]
    standing.renew(there)
    assert standing.plan is not None and set(standing.plan.placements) == {"old"}


def test_a_waiting_job_has_the_reason_of_the_plan_that_stands(sim: Simulation, planner: Counting) -> None:
    """What the planner says once it is warm replaces what was said in its place, though nothing moved."""

    def told(by: str, note: str) -> str:
        """The job's reason after a plan by somebody else, which leaves the job where it is."""
        own = planner.plan

        def plan(world: World, instead: str = "") -> Made:
            made = own(world, instead)
            places = {name: replace(one, reason=f"{one.region} later: by {by}") for name, one in made.plan.placements.items()}
            return replace(made, plan=replace(made.plan, placements=places, note=note))

        planner.plan = plan  # type: ignore[method-assign]
        sim.control.plan(sim.clock.now())
        planner.plan = own  # type: ignore[method-assign]
        advance(sim, 3)
        found = sim.store.job("first")
        assert found is not None and found.planned_start_at is not None
        return found.reason

    assert told("the stand-in", WARMING_UP) == "a later: by the stand-in"
    assert told("the planner at 41 EUR/MWh", "") == "a later: by the planner at 41 EUR/MWh"
    before = "a later: by the planner at 41 EUR/MWh"
    assert told("the planner at 42 EUR/MWh", "") == before, "its figures move all the time, and each is a row"
