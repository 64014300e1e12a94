"""One planner: its policy, jobs that come and go while it plans, and what it does when the policy cannot be asked."""

import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from dispatcher.planning import NO_PLACE, WARMING_UP, Made, NoPlanThere, Placed, Planner
from dispatcher.standing_plan import StandingPlan, wants_place
from policies.fit import never_fits
from policies.world import Alternative, JobState, JobView, Plan, Settings, World
from tests.dispatcher.faulty import Simple, Waits
from tests.helpers import wait_until
from tests.policies.worlds import NOW, job, region, running, world


def simple() -> tuple[Planner, Simple]:
    policy = Simple()
    return Planner(make=lambda name, settings: policy), policy


def two(*names: str, **settings: str) -> World:
    return world([job(name) for name in names], [region("a", [10.0] * 96), region("b", [20.0] * 96)], **settings)


def test_a_job_that_comes_is_placed_by_the_policy_and_one_that_leaves_is_forgotten() -> None:
    planner, policy = simple()
    with pytest.raises(NoPlanThere):
        planner.insert(two(), [job("early")])
    made = planner.plan(two("j1", "j2"))
    placed = planner.insert(two(), [job("j3")])
    assert placed.placements["j3"].reason == "insert 1" and placed.version > made.version
    planner.forget(["j1"])
    assert policy.forgot == ["j1"]


def test_the_policy_is_made_anew_only_when_another_is_configured() -> None:
    made: list[str] = []

    def make(name: str, settings: Settings) -> Simple:
        made.append(name)
        return Simple()

    planner = Planner(make=make)
    for name in ("one", "one", "two"):
        planner.plan(two("j1", policy=name))
    assert made == ["one", "two"]


def test_until_the_solver_is_compiled_jobs_are_placed_one_by_one_and_so_are_those_that_come() -> None:
    policy, ready = Simple(), False
    planner = Planner(make=lambda name, settings: policy, ready=lambda: ready)
    assert planner.warming_up
    made = planner.plan(two("j1"))
    assert made.plan.note == WARMING_UP and set(made.plan.placements) == {"j1"}
    ready = True  # the policy knows nothing of the plan that stands
    placed = planner.insert(two(), [job("j2")])
    assert policy.inserts == 0 and placed.placements["j2"].region == "a"
    made = planner.plan(two("j1", "j2"))
    assert made.plan.note == "" and made.plan.placements["j1"].reason == "plan 1"
    planner.insert(two(), [job("j3")])
    assert policy.inserts == 1


def test_what_no_region_can_take_is_told() -> None:
    planner, policy = simple()
    planner.plan(two("j1"))
    policy.place = lambda world, jobs, why: {}  # type: ignore[method-assign]
    placed = planner.insert(two(), [job("crowded", gpus=8.0)])
    assert placed.unplaced == {"crowded": NO_PLACE}


@pytest.mark.parametrize("policy", ["gridshift", "lowest-window", "simple"])
def test_why_no_region_can_ever_take_a_job_is_told_in_one_way(policy: str) -> None:
    planner = Planner() if policy != "simple" else simple()[0]
    around = world([job("j1"), job("wide", gpus=99.0)], [region("a", [10.0] * 96)], policy=policy)
    told = {planner.plan(around, instead).plan.unplaced.get("wide") for instead in ("", "warming up")}
    told.add(planner.insert(around, [job("wide too", gpus=99.0)]).unplaced["wide too"])
    if policy == "simple":
        told.discard(None)  # it places whatever it is asked
    [sentence] = told
    assert sentence == never_fits(job("wide", gpus=99.0).flex, around.regions, "a") and sentence is not None


def test_jobs_that_come_and_go_while_a_plan_is_made_are_in_it_or_not(tmp_path: Path) -> None:
    gate = tmp_path / "go"
    policy = Waits()
    planner = Planner(make=lambda name, settings: policy)
    first = world([job("j1", group=str(gate)), job("j2")], [region("a", [10.0] * 96), region("b", [20.0] * 96)])
    planner.plan(first)
    made: list[Made] = []
    thread = threading.Thread(target=lambda: made.append(planner.plan(first)))
    thread.start()
    try:
        wait_until(gate.with_suffix(".begun").exists, 10, "the plan to begin")
        placed = planner.insert(replace(first, jobs=()), [job("j3")])
        assert placed.placements["j3"].region == "a" and policy.inserts == 0, "placed beside the plan that stands, at once"
        planner.insert(replace(first, jobs=()), [job("j4")])
        planner.forget(["j2", "j4"])
        assert planner.explain(first, "j1") != ()
    finally:
        gate.touch()
        thread.join(10)
    assert set(made[0].plan.placements) == {"j1", "j3"} and made[0].version > placed.version
    assert made[0].plan.placements["j3"].reason == "insert 1" and policy.forgot == ["j2", "j4"]


def test_alternatives_are_worked_out_on_demand_or_are_the_policys_own() -> None:
    planner, policy = simple()
    with pytest.raises(NoPlanThere):
        planner.explain(two(), "j1")
    planner.plan(two("j1", "j2"))
    assert [other.region for other in planner.explain(two(), "j1")] == ["b"]
    assert planner.explain(two(), "unknown") == ()
    own = Alternative("b", NOW, 3.0, "says the policy")
    policy.explain = lambda world, job_id: (own,)  # type: ignore[attr-defined]
    assert planner.explain(two(), "j1") == (own,)


def test_a_simulated_planner_is_ours_with_its_memory() -> None:
    planner = Planner()
    made = planner.plan(two("j1", "j2"))
    placed = planner.insert(two(), [job("j3")])
    assert set(made.plan.placements) == {"j1", "j2"} and "j3" in placed.placements
    assert made.plan.note == "" and not planner.warming_up and planner.trouble is None


# --- the plan that stands ---------------------------------------------------------------------------------------------


class Slow:
    """Whoever plans, with answers that a test makes."""

    warming_up = False
    trouble: str | None = None

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.forgot: list[str] = []
        self.next: list[object] = []

    def plan(self, world: World) -> Made:
        answer = self.next.pop(0)
        if callable(answer):
            answer = answer()
        assert isinstance(answer, Made)
        return answer

    def insert(self, world: World, jobs: list[JobView]) -> Placed:
        self.asked.append([one.id for one in jobs])
        answer = self.next.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Placed)
        return answer

    def forget(self, job_ids: list[str]) -> None:
        self.forgot += job_ids

    def explain(self, world: World, job_id: str) -> tuple[Alternative, ...]:
        return ()


def plan_of(*names: str, why: str = "plan") -> Plan:
    placements = Simple().place(two(), [job(name) for name in names], why)
    return Plan(NOW, NOW + timedelta(hours=48), 900, placements, {}, 1.0)


def placed_of(version: tuple[int, int], *names: str, why: str = "insert") -> Placed:
    return Placed(version, plan_of(*names, why=why).placements, {})


def told(standing: StandingPlan) -> dict[str, str]:
    assert standing.plan is not None
    return {job_id: one.reason for job_id, one in standing.plan.placements.items()}


def view(job_id: str, _: object) -> JobView:
    return job(job_id)


def test_answers_that_overtake_each_other_leave_the_newest_places() -> None:
    slow = Slow()
    standing = StandingPlan(slow)  # type: ignore[arg-type]
    slow.next = [Made((1, 1), plan_of("j1"))]
    standing.renew(two("j1"))

    def late() -> Made:
        # made before, and told after, a place that the policy gave when the plan was done
        slow.next = [placed_of((1, 3), "j2")]
        standing.came_back("j2")
        assert standing.take_in(two(), view)
        return Made((1, 2), plan_of("j1", why="second plan"))

    slow.next = [late]
    standing.renew(two("j1"))
    assert told(standing) == {"j1": "second plan", "j2": "insert"}

    def early() -> Made:
        # given for the time being while the plan is made, which knows better
        slow.next = [placed_of((1, 4), "j3")]
        standing.came_back("j3")
        standing.take_in(two(), view)
        assert told(standing)["j3"] == "insert"
        return Made((1, 5), plan_of("j1", "j2", "j3", why="third plan"))

    slow.next = [early]
    standing.renew(two("j1"))
    assert set(told(standing).values()) == {"third plan"}


def test_jobs_that_got_no_place_are_remembered_and_those_a_plan_lacks_are_placed() -> None:
    slow = Slow()
    standing = StandingPlan(slow)  # type: ignore[arg-type]
    slow.next = [Made((1, 1), plan_of("j1"))]
    standing.renew(two("j1", "j2"))
    assert standing.behind
    slow.next = [NoPlanThere("fresh"), placed_of((2, 2), "j2")]
    with pytest.raises(NoPlanThere):
        standing.take_in(two(), view)
    standing.left("j1")
    assert standing.take_in(two(), view) and not standing.behind
    assert slow.asked == [["j2"], ["j2"]] and slow.forgot == ["j1"] and "j2" in told(standing)


def test_only_what_waits_and_may_be_planned_wants_a_place() -> None:
    assert wants_place(job("j")) and wants_place(job("j", state=JobState.PAUSED))
    assert not any(
        wants_place(one)
        for one in (job("j", flexible=False), job("j", held=True), running("j", "a"), job("j", cancel_requested=True))
    )
