"""The plan worker with a real process: a policy that raises, hangs, or whose process dies, and one that works."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher.plan_worker import ForecastWorker, PlanWorker, warm_up
from dispatcher.planning import Made, NoPlanThere, PlanFailed
from policies import registry
from policies.world import World
from tests.dispatcher import faulty
from tests.helpers import wait_until
from tests.policies.worlds import job, region, world

Open = Callable[..., PlanWorker]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Makes workers that are closed at the end."""
    workers: list[PlanWorker] = []

    def make(make: Any, **more: Any) -> PlanWorker:
        workers.append(PlanWorker("run-now", make=make, **more))
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()


def picture(*names: str, **more: Any) -> World:
    return world([job(name, **more) for name in names], [region("a", [10.0] * 96), region("b", [20.0] * 96)])


def knows_no_plan(worker: PlanWorker) -> bool:
    """Whether it says that it has no plan; a process that is still starting is busy instead."""
    try:
        worker.explain(picture(), "j1")
    except NoPlanThere:
        return True
    except PlanFailed as error:
        assert "busy" in str(error)
    return False


def process_of(worker: PlanWorker) -> int:
    assert worker._worker is not None and worker._worker.pid is not None
    return worker._worker.pid


def test_one_policy_plans_inserts_forgets_and_explains_in_one_process(opened: Open) -> None:
    worker = opened(faulty.simple)
    wait_until(lambda: knows_no_plan(worker), 60, "the process, which has no plan yet")
    first = worker.plan(picture("j1"))
    pid = process_of(worker)
    placed = worker.insert(picture("not sent"), [job("j2")])
    worker.forget(["j1"])
    assert [other.region for other in worker.explain(picture(), "j2")] == ["b"]
    second = worker.plan(picture("j2"))
    assert placed.placements["j2"].reason == "insert 1" and second.plan.placements["j2"].reason == "plan 2"
    assert first.version < placed.version < second.version and process_of(worker) == pid and worker.trouble is None


def test_a_policy_that_raises_leaves_the_jobs_placed_one_by_one_and_is_tried_ever_later(opened: Open) -> None:
    now = 0.0
    worker = opened(faulty.raises, wall=lambda: now)
    pids = set()
    for moment, why in ((0.0, "as ever"), (1.0, "and rests from the second time"), (2.0, "resting"), (70.0, "tried again")):
        now = moment
        made = worker.plan(picture("j1"))
        assert set(made.plan.placements) == {"j1"}, why
        assert made.plan.note == worker.trouble
        assert "made no plan (ZeroDivisionError: its prices are all the same)" in made.plan.note
        pids.add(process_of(worker))
    assert len(pids) == 3, "each failure is followed by a fresh process, a rest by none"
    assert worker.insert(picture(), [job("j2")]).placements["j2"].region == "a"


def test_a_policy_that_hangs_is_given_up_in_time(opened: Open) -> None:
    worker = opened(faulty.hangs, limit_s=3.0)
    made = worker.plan(picture("j1"))
    assert set(made.plan.placements) == {"j1"} and "no answer within 3 s" in made.plan.note


def test_a_process_killed_in_the_middle_of_a_plan_is_replaced(opened: Open, tmp_path: Path) -> None:
    worker, gate = opened(faulty.waits), tmp_path / "go"
    there = picture("j1", group=str(gate))
    worker.plan(there)
    made: list[Made] = []
    thread = threading.Thread(target=lambda: made.append(worker.plan(there)))
    thread.start()
    wait_until(gate.with_suffix(".begun").exists, 20, "the plan to begin")
    assert worker.insert(picture(), [job("j2")]).placements["j2"].region == "a", "nobody waits for a plan"
    pid = process_of(worker)
    os.kill(pid, signal.SIGKILL)
    thread.join(30)
    assert set(made[0].plan.placements) == {"j1"} and "its process died" in made[0].plan.note
    assert process_of(worker) != pid
    made = [worker.plan(there)]
    assert made[0].plan.note == "" and worker.trouble is None, "one death is no habit"


def test_a_policy_that_raises_when_a_job_comes_is_not_trusted_with_its_memory(opened: Open) -> None:
    worker = opened(faulty.raises_on_insert)
    worker.plan(picture("j1"))
    with pytest.raises(PlanFailed, match="KeyError: 'row 7'"):
        worker.insert(picture(), [job("j2")])
    with pytest.raises(NoPlanThere):
        worker.insert(picture(), [job("j2")])
    assert "found no places" in (worker.trouble or "")
    assert set(worker.plan(picture("j1", "j2")).plan.placements) == {"j1", "j2"}


def test_a_closed_worker_fails_who_waits_and_who_comes_later(opened: Open, tmp_path: Path) -> None:
    worker, gate = opened(faulty.waits), tmp_path / "go"
    there = picture("j1", group=str(gate))
    worker.plan(there)
    failed: list[PlanFailed] = []

    def plan() -> None:
        try:
            worker.plan(there)
        except PlanFailed as error:
            failed.append(error)

    thread = threading.Thread(target=plan)
    thread.start()
    wait_until(gate.with_suffix(".begun").exists, 20, "the plan to begin")
    worker.close()
    thread.join(20)
    with pytest.raises(PlanFailed, match="stopping"):
        worker.plan(there)
    assert len(failed) == 1


def test_warming_up_asks_a_policy_for_everything_that_it_will_be_asked() -> None:
    policy = faulty.Simple()
    warm_up(lambda name, settings: policy, registry.OURS)
    assert (policy.plans, policy.inserts, policy.forgot) == (1, 1, ["j1", "j12"])


def test_a_forecaster_that_is_closed_says_so() -> None:
    worker = ForecastWorker()
    worker.close()
    with pytest.raises(PlanFailed, match="stopping"):
        worker.forecast(None, None)  # type: ignore[arg-type]
