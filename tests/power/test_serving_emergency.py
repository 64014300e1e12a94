"""Power from interactive serving in an emergency: last of all, only where its operator allows it, and never below its floor."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from dispatcher.config_serving import ServingConfig
from dispatcher.power.caps import CapLoop
from dispatcher.power.emergency import Step
from policies.cap_model import LEAST_CAP
from policies.decide import decide
from policies.world import Action, AskCheckpoint, JobState, Launch, Pausable, World
from tests.power.test_power_loop import Site
from tests.power.test_serving_gpus import FOREIGN, SLO

#: 500 W at the GPUs of two GPUs of serving, which may draw 700 W each.
FLOOR_W = 625.0


class Hall(Site):
    """A node whose GPUs 0 and 1 a server has, at 600 W each (1,500 W at the meter), and jobs on others. Steps are kept."""

    def __init__(self, *, batch: int = 2, branch: str | None = None, **serving: Any) -> None:
        uuids = {"gpu_uuids": ["GPU-n1-0", "GPU-n1-1"]}
        one = {"name": "chat", "source": "metrics", "url": "http://chat/metrics", "slo": [SLO], **uuids}
        one |= {"allow_emergency": True, "floor_w": FLOOR_W, **serving}
        super().__init__(pue=1.25, branch=[{"name": "rack-1"}], serving=[one])
        self.steps: list[Step] = []
        self.loop = CapLoop(self.config, self.hub, mono=lambda: self.s, note=self.steps.append)
        for at in range(batch):
            self.job(f"j{at}")
        self.node = self.agent("n1", [[], [], *([f"j{at}"] for at in range(batch))], branch=branch)
        self.node.protected = dict.fromkeys(self.node.uuids[:2], FOREIGN)
        self.load_w = 600.0
        drawn_w: Callable[[str, list[str]], float] = self.node.power_w

        def power_w(uuid: str, jobs: list[str]) -> float:
            return min(self.node.cap(uuid), self.load_w) if uuid in self.node.uuids[:2] else drawn_w(uuid, jobs)

        self.node.power_w = power_w  # type: ignore[method-assign]

    def set(self, job_id: str, **more: Any) -> None:
        """Change a job's view."""
        self.jobs[job_id] = replace(self.jobs[job_id], **more)

    def emergency(self, limit_w: float, **more: Any) -> None:
        self.event(limit_w, **{"end_s": 600.0, "emergency": True, **more})

    def served(self) -> list[float]:
        """The caps on the server's GPUs."""
        return self.node.caps()[:2]

    def writes(self) -> int:
        """How often a limit was ordered for one of them."""
        return sum(one["uuid"] in self.node.uuids[:2] for order in self.node.orders for one in order["set"])

    def seen(self) -> World:
        """The world as the control loop has it: with what caps can do, and what draws beside the jobs."""
        world = self.world()
        jobs = tuple(replace(job, capped_w=self.loop.lowest_w.get(job.id)) for job in world.jobs)
        return replace(world, jobs=jobs, regions=tuple(replace(v, beside_w=self.loop.beside_w(v.name)) for v in world.regions))

    def decided(self) -> list[Action]:
        return decide(self.seen())


# --- the configuration --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpu_uuids": ["GPU-1"]}, "add floor_w or floor_gpus"),
        ({"floor_w": 700.0}, "add gpu_uuids, hostnames or branch"),
        ({"floor_gpus": 1}, "add gpu_uuids, hostnames or branch"),
    ],
)
def test_without_a_floor_or_a_place_it_may_not_be_allowed(given: dict[str, Any], said: str) -> None:
    one = {"name": "chat", "source": "metrics", "url": "http://chat/metrics", "slo": [SLO], **given}
    with pytest.raises(ValidationError, match=said):
        ServingConfig.model_validate({**one, "allow_emergency": True})
    assert ServingConfig.model_validate(one).allow_emergency is False


# --- when it is touched -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("serving", "event"),
    [({"allow_emergency": False}, {}), ({}, {"emergency": False}), ({"allow_emergency": False}, {"emergency": False})],
)
def test_unless_both_the_operator_and_the_event_say_so_its_limits_are_never_written(
    serving: dict[str, Any], event: dict[str, Any]
) -> None:
    hall = Hall(**serving)
    hall.emergency(1500.0, **event)
    hall.seconds(30)
    assert hall.node.caps() == [700.0, 700.0, 350.0, 350.0] and hall.writes() == 0 and hall.steps == []
    assert hall.loop.beside_w("north") == 0.0 or not event
    assert any("is 1,100 W above its limit" in one or "above its limit" in one for one in hall.sentences())


def test_what_batch_can_give_is_not_taken_from_it() -> None:
    hall = Hall()
    hall.emergency(2500.0)  # 1,500 W of serving and 2 x 437.5 W of batch at its least: 2,375 W
    hall.seconds(20)
    assert hall.drawn_w() <= 2500.0 and hall.writes() == 0 and hall.steps == [] and hall.sentences() == []


def test_what_batch_cannot_give_is_taken_evenly_and_given_back_at_the_end() -> None:
    hall = Hall()
    hall.emergency(2100.0)
    hall.seconds(10)
    assert hall.node.caps()[2:] == [LEAST_CAP * 700.0] * 2, "batch is at its least"
    low = hall.served()
    assert low[0] == low[1] and 350.0 < low[0] < 500.0 and 2060.0 < hall.drawn_w() <= 2100.0
    (order,) = [one for one in hall.node.leases.values() if one["uuid"] == "GPU-n1-0"]
    assert order["kind"] == "event" and "an emergency (event ev), and batch has given all that it may" in order["reason"]
    hall.seconds(60)
    assert hall.served() == pytest.approx(low, abs=8.0), "its own cap does not make its cause go away"
    (told,) = hall.sentences()
    assert told.startswith("serving chat may draw ") and "on 2 GPUs (its floor is 625 W at the meter)" in told
    (step,) = hall.steps
    assert step[:4] == ("north", "chat", "api", "ev") and step.sentence.split("W are missing")[0][:60] == told[:60]
    hall.s = 599.0
    hall.seconds(3)
    assert hall.node.caps() == [700.0] * 4 and hall.node.leases == {} and hall.sentences() == []
    assert hall.steps[1:] == [Step("north", "chat", "api", "ev", "serving chat is not capped any more: the emergency is over")]


@pytest.mark.parametrize(
    ("serving", "cap_w"),
    [
        ({"floor_w": 1.0}, 350.0),  # half of the default limit
        ({"floor_w": 1250.0}, 500.0),  # 2 x 500 W x 1.25
        ({"floor_w": 1251.0}, 501.0),
        ({"floor_w": 0.0, "floor_gpus": 2, "gpu_power_w": 450.0}, 450.0),  # of two, not of each
        ({"floor_w": 5000.0}, 700.0),
    ],
)
def test_never_below_its_floor_and_the_rest_is_told_as_missing(serving: dict[str, Any], cap_w: float) -> None:
    hall = Hall(**serving)
    hall.emergency(500.0)
    hall.seconds(20)
    assert hall.served() == [cap_w] * 2
    short_w = hall.drawn_w() - 500.0
    (told,) = [one for one in hall.sentences() if "above its limit" in one]
    assert f" is {short_w:,.0f} W above its limit" in told, (short_w, told)
    assert bool(hall.writes()) == (cap_w < 700.0) == bool(hall.steps)


def test_a_standing_limit_below_the_emergencys_is_not_the_emergencys() -> None:
    hall = Hall()
    hall.limit_w = 1500.0
    hall.loop._branches = {}
    hall.emergency(2500.0)
    hall.seconds(20)
    assert hall.writes() == 0
    hall.emergency(2100.0, event_id="deeper")
    hall.seconds(20)
    assert hall.writes() and sum(hall.served()) * 1.25 + 2 * 350.0 * 1.25 > 2040.0, "to what the emergency asks, and no further"


# --- batch first, and back last -----------------------------------------------------------------------------------------


def test_not_while_a_job_could_still_pause_is_pausing_or_is_about_to_run() -> None:
    hall = Hall()
    hall.job("j1", pausable=Pausable.CHECKPOINT)
    hall.emergency(1900.0)
    hall.seconds(5)
    assert hall.writes() == 0
    assert [one.job_id for one in hall.decided() if isinstance(one, AskCheckpoint)] == ["j1"], "though it states too little"
    hall.set("j1", pause_requested=True, state=JobState.PAUSING)
    hall.seconds(5)
    assert hall.writes() == 0
    hall.set("j1", pause_requested=False, state=JobState.LAUNCHING)
    hall.seconds(5)
    assert hall.writes() == 0
    # it has paused: what is left is 1,500 W of serving, 437.5 W of a job, and 75 W of the GPU that it left
    hall.set("j1", state=JobState.PAUSED)
    hall.node.jobs[3] = []
    hall.seconds(15)
    assert max(hall.served()) < 600.0 and hall.drawn_w() <= 1900.0
    # one that does not answer when it is asked cannot pay
    hall.set("j1", state=JobState.RUNNING, checkpoint_misses=1, last_pause_asked_at=hall.now())
    hall.node.jobs[3] = ["j1"]
    hall.seconds(15)
    assert max(hall.served()) < 600.0


def test_jobs_that_draw_more_than_they_state_are_asked_for_it_first() -> None:
    hall = Hall()
    hall.job("j1", pausable=Pausable.CHECKPOINT, power_w=100.0)
    hall.emergency(2250.0)
    hall.seconds(2)  # 1,500 W of serving, 437.5 W of j0, and 125 W by what j1 states
    assert hall.decided() == []
    hall.seconds(12)
    assert [one.job_id for one in hall.decided() if isinstance(one, AskCheckpoint)] == ["j1"] and hall.writes() == 0
    hall.set("j1", state=JobState.PAUSED, run_now=True)
    hall.node.jobs[3] = []
    hall.seconds(60)
    assert hall.writes() == 0 and hall.drawn_w() <= 2250.0, "that was enough"
    assert not any(isinstance(one, Launch) for one in hall.decided()), "nor does it come back by what it states"
    hall.s = 599.0
    hall.seconds(3)
    assert hall.loop.beside_w("north") == 0.0 and any(isinstance(one, Launch) for one in hall.decided())


def test_jobs_elsewhere_need_not_have_paused_for_a_branch() -> None:
    hall = Hall(branch="rack-1")
    hall.job("far", pausable=Pausable.CHECKPOINT)
    hall.agent("n2", [["far"]])
    hall.emergency(1500.0, branch="rack-1")
    hall.branch_budgets, hall.budgets = hall.budgets, ()
    hall.seconds(15)
    assert 1400.0 < hall.node.drawn_w() <= 1500.0, "W of the GPUs: a branch's meter sees no cooling"
    assert max(hall.served()) < 600.0 and hall.agents[1].caps() == [700.0]


def test_batch_comes_back_after_serving() -> None:
    hall = Hall(batch=1)
    hall.job("waits", flexible=False)
    waits = replace(hall.jobs["waits"].flex, power_w=300.0)
    hall.set("waits", flex=waits, state=JobState.QUEUED, region=None, run_started_at=None, attempt=0)
    hall.emergency(1800.0)
    hall.seconds(15)
    assert max(hall.served()) < 600.0
    waiting = [one for one in hall.decided() if getattr(one, "job_id", "") == "waits"]
    assert waiting and not any(isinstance(one, Launch) for one in waiting), "what the caps took off is not batch's"
    # its load falls: its caps go at once, and only what it does not draw then is batch's
    hall.load_w = 200.0
    hall.seconds(90)
    assert hall.served() == [700.0] * 2 and hall.steps[-1].sentence == "serving chat is not capped any more: it is not needed"
    assert any(isinstance(one, Launch) for one in hall.decided())
    # and rises again
    hall.load_w = 600.0
    hall.seconds(10)
    assert max(hall.served()) < 600.0 and hall.drawn_w() <= 1800.0


def test_a_job_beside_it_on_its_gpus_is_not_slowed_more_than_it_accepts() -> None:
    for tier, floor in (("flex-0", 700.0), ("flex-1", 500.0), ("flex-3", 350.0)):
        hall = Hall(floor_w=1.0)
        hall.job("guest", tier=tier, flexible=False)
        hall.node.jobs[0] = ["guest"]
        hall.emergency(500.0)
        hall.seconds(20)
        assert hall.served()[0] >= floor and hall.served()[1] == 350.0


# --- what nobody knows ---------------------------------------------------------------------------------------------------


def test_after_a_restart_its_caps_stand_and_are_given_back_at_the_end() -> None:
    hall = Hall()
    hall.emergency(2100.0)
    hall.seconds(10)
    low = hall.served()
    hall.loop = CapLoop(hall.config, hall.hub, mono=lambda: hall.s, note=hall.steps.append)
    for _ in range(40):
        hall.seconds()
        assert hall.served() == pytest.approx(low, abs=8.0)
    hall.s = 599.0
    hall.seconds(3)
    assert hall.node.caps() == [700.0] * 4


def test_a_node_that_falls_silent_keeps_its_caps_and_nothing_else_is_said() -> None:
    hall = Hall()
    hall.emergency(2100.0)
    hall.seconds(10)
    low, steps = hall.served(), len(hall.steps)
    hall.hub.gone(hall.node)
    hall.agents = []
    hall.seconds(20)
    assert hall.served() == low and len(hall.steps) == steps
    hall.node.hello()
    hall.agents = [hall.node]
    hall.seconds(10)
    assert hall.served() == low


def test_an_emergency_that_is_taken_back_gives_its_power_back_at_once() -> None:
    hall = Hall()
    hall.emergency(2100.0, recovery_s=300.0)
    hall.seconds(10)
    assert max(hall.served()) < 600.0
    hall.budgets = ()
    hall.seconds(2)
    assert hall.served() == [700.0] * 2


def test_where_power_comes_back_slowly_serving_has_its_own_at_once() -> None:
    hall = Hall()
    hall.emergency(2100.0, recovery_s=300.0)
    hall.seconds(10)
    hall.s = 599.0
    hall.seconds(5)
    assert hall.served() == [700.0] * 2 and min(hall.node.caps()[2:]) < 600.0


def test_a_history_that_cannot_be_written_holds_up_nothing() -> None:
    hall = Hall()

    def fails(step: Step) -> None:
        raise OSError("no disk")

    hall.loop = CapLoop(hall.config, hall.hub, mono=lambda: hall.s, note=fails)
    hall.emergency(2100.0)
    hall.seconds(10)
    assert max(hall.served()) < 600.0
