"""Whether a region could ever take a job, and what is said of one that none can."""

from typing import Any

import pytest

from policies import one_by_one, planner
from policies.decide import decide
from policies.fit import NEVER, never_fits, why_no_place
from policies.room import rooms
from policies.world import CapPoint, Floor, GpuPool, Hold, JobState, JobView, Launch, RegionView, World
from tests.policies.worlds import flex, job, region, world

FLAT: list[float | None] = [10.0] * 96
CHAT, BOT = Floor("serving chat", 2.0, 1400.0), Floor("serving bot", 1.0, 0.0)
H100, A100 = GpuPool("H100", 4.0), GpuPool("A100", 16.0)


def one(name: str = "a", **more: Any) -> RegionView:
    return region(name, FLAT, **more)


@pytest.mark.parametrize(
    ("wishes", "views", "said"),
    [
        ({"gpus": 9.0}, [one()], "it needs 9 GPUs and its region, a, has 8; ask for at most 8, or add GPUs there"),
        ({"gpus": 1.0}, [one(gpus=0.0)], "it needs 1 GPU and its region, a, has 0; ask for none, or add GPUs there"),
        (
            {"gpus": 9.0},
            [one("a", gpus=2.0), one("b", gpus=4.0)],
            "it needs 9 GPUs and the largest of its 2 regions, b, has 4; ask for at most 4, or add GPUs there",
        ),
        (
            {"gpus": 5.0, "regions": ("a",)},
            [one("a", gpus=2.0), one("b")],
            "it needs 5 GPUs and its region, a, has 2; ask for at most 2, or add GPUs there",
        ),
        (
            {"gpus": 8.0, "gpu_types": {"H100": 1.0}},
            [one(gpus=20.0, pools=(H100, A100))],
            "it needs 8 GPUs of H100 and its region, a, has 4; ask for at most 4, or add GPUs there",
        ),
        (
            {"power_w": 5000.0},
            [one(power_limit_w=4000.0, pue=1.2)],
            "a may draw 4000 W and it needs 6000 W there; ask for less, or raise what they may take",
        ),
        (
            {"gpus": 4.0},
            [one(gpus=4.0, floors=(CHAT, BOT))],
            "it needs 4 GPUs and its region, a, has 1 left: 3 of its 4 are always kept free for serving chat and serving bot; "
            "ask for at most 1, lower floor_gpus of what is served there, or add GPUs there",
        ),
        (
            {"gpus": 4.0, "gpu_types": {"H100": 1.0}},
            [one(gpus=5.0, pools=(H100, GpuPool("A100", 1.0)), floors=(CHAT,))],
            "it needs 4 GPUs of H100 and its region, a, has 3 left: 2 of its 5 are always kept free for serving chat; "
            "ask for at most 3, lower floor_gpus of what is served there, or add GPUs there",
        ),
        (
            {"power_w": 3000.0},
            [one(power_limit_w=4000.0, floors=(CHAT,))],
            "a may draw 4000 W, of which 1400 W are always kept free for serving chat, and it needs 3000 W there; "
            "ask for less, or raise what they may take",
        ),
        ({}, [one(max_jobs=0)], "a takes no jobs; ask for less, or raise what they may take"),
    ],
)
def test_what_no_region_could_ever_run(wishes: dict[str, Any], views: list[RegionView], said: str) -> None:
    assert never_fits(flex(**wishes), views, "a") == NEVER + said == why_no_place(flex(**wishes), views, "a")


@pytest.mark.parametrize(
    ("wishes", "views"),
    [
        ({"gpus": 8.0}, [one()]),
        ({"gpus": 2.0, "power_w": 2600.0}, [one(gpus=4.0, power_limit_w=4000.0, floors=(CHAT,))]),  # it fits beside
        ({"gpus": 0.0}, [one(gpus=1.0, floors=(CHAT,))]),
        ({"gpus": 9.0}, [one(gpus=None, floors=(CHAT,))]),
        ({"gpus": 9.0}, [one(gpus=None)]),  # nobody knows how many it has
        ({"gpus": 9.0}, [one(), one("b", reachable=False)]),  # nor how many that has by now
        ({"gpus": 9.0}, [one(), one("b", gpus=9.0)]),
        ({"gpus": 9.0}, []),
        ({"power_w": 5000.0, "tier": "flex-3"}, [one(power_limit_w=4000.0, caps=(CapPoint(0.7, 0.7, 0.9),))]),
        ({"power_w": 5000.0}, [one(power_limit_w=4000.0, pools=(GpuPool("H100", 8.0, draw=0.5),))]),
        ({"power_w": 5000.0}, [one(power_limit_w=4000.0, unheard=True)]),
        ({"gpus": 9.0, "flexible": False}, [one("b")]),  # it goes to its home, which is not there
    ],
)
def test_what_may_run_yet_is_not_said_to_never_run(wishes: dict[str, Any], views: list[RegionView]) -> None:
    assert never_fits(flex(**wishes), views, "a") is None


def test_a_region_that_is_full_of_serving_is_told_beside_others() -> None:
    views = [one("a", gpus=4.0, floors=(CHAT,)), one("b", reachable=False)]
    said = "waits: b does not answer; a has 4 GPUs, of which 2 are always kept free for serving chat, and it needs 3"
    assert why_no_place(flex(gpus=3.0), views, "a") == said


def test_why_there_is_no_place_while_a_region_is_silent() -> None:
    views = [one("a", gpus=2.0), one("b", reachable=False)]
    assert why_no_place(flex(gpus=9.0), views, "a") == "waits: b does not answer; a has 2 GPUs and it needs 9"
    assert why_no_place(flex(gpus=2.0), views, "a") is None


def test_a_job_without_wishes_is_told_of_its_home_and_goes_there_all_the_same() -> None:
    wishes = flex(gpus=9.0, flexible=False, deadline_at=None)
    told = never_fits(wishes, [one("b", gpus=99.0), one("a")], "a")
    assert told is not None and "its region, a, has 8" in told
    [action] = decide(world([job("j", gpus=9.0, flexible=False, deadline_at=None)], [one()]))
    assert isinstance(action, Launch), "Ray queues for GPUs, and may get some"


@pytest.mark.parametrize("run_now", [False, True])
def test_it_is_held_with_that_sentence_whatever_its_deadline_is(run_now: bool) -> None:
    picture = world([job("j", gpus=9.0, deadline_at=None, run_now=run_now), job("late", gpus=9.0, runtime_s=1e6)], [one()])
    sentence = never_fits(flex(gpus=9.0), picture.regions, None)
    assert sentence is not None and decide(picture) == [Hold("late", sentence), Hold("j", sentence)]


def too_large(state: JobState = JobState.LAUNCHING) -> JobView:
    return job("wide", state=state, region="a", attempt=1, flexible=False, gpus=16.0, power_w=9000.0)


@pytest.mark.parametrize("make", [one_by_one.plan, planner.plan], ids=["one by one", "joint"])
@pytest.mark.parametrize("state", [JobState.LAUNCHING, JobState.QUEUED])
def test_what_its_cluster_cannot_begin_takes_no_room(make: Any, state: JobState) -> None:
    picture = world([too_large(state), job("j", gpus=8.0)], [one(power_limit_w=9500.0)])
    assert rooms(picture)["a"].gpus_used == 0.0 and rooms(picture)["a"].draw_w == 0.0
    assert make(picture).placements["j"].intervals[0][0] == picture.now


def test_what_runs_and_what_may_begin_where_nobody_answers_takes_room_as_ever() -> None:
    def used(picture: World) -> float:
        return rooms(picture)["a"].gpus_used

    assert used(world([too_large(JobState.RUNNING)], [one()])) == 16.0
    assert used(world([too_large()], [one(reachable=False)])) == 16.0 == used(world([too_large()], [one(gpus=None)]))
