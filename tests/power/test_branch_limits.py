"""Where agents see jobs run, and what the control loop does under a branch's limit that caps cannot meet."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from dispatcher.clock import VirtualClock
from dispatcher.clusters.simulated import SimulatedCluster
from dispatcher.power.placements import Placed, Placements
from dispatcher.regions import Region
from dispatcher.signal_book import SignalBook
from dispatcher.store import GridEvent
from dispatcher.store.memory import MemoryStore
from dispatcher.world_builder import WorldBuilder
from policies.decide import decide
from policies.world import Action, AskCheckpoint, Hold, JobState, JobView, Pausable, World
from signals.memory_store import MemorySignalStore
from tests.dispatcher.test_control import advance, simulation, state, submit
from tests.power.test_power_loop import START, Site

RACKS = [{"name": "rack-1"}, {"name": "rack-2"}]
BOTH: dict[str, float | None] = {"rack-1": None, "rack-2": None}


def where(site: Site, known: Placements | None = None, gpus: float | None = None, **more: bool) -> Placed:
    placements = known if known is not None else Placements()
    return placements.of("north", site.hub.nodes(), site.jobs, BOTH, gpus=gpus, **more)


class Plane:
    """The power loop and the control loop's picture of one site, over the same agents."""

    def __init__(self, *, limit_w: float = 0.0, **jobs: Any) -> None:
        self.site = Site(branch=[{"name": "rack-1", "power_limit_w": limit_w}, {"name": "rack-2"}], pue=1.25)
        for at in range(4):
            self.site.job(f"j{at}", pausable=Pausable.CHECKPOINT, **jobs)
        self.rack = self.site.agent("n1", [["j0"], ["j1"]], branch="rack-1")
        self.other = self.site.agent("n2", [["j2"], ["j3"]], branch="rack-2")
        self.store = MemoryStore()
        config = self.site.config
        region = Region(config.regions[0], SimulatedCluster("north", VirtualClock(START), gpus=4.0), VirtualClock(START))
        book = SignalBook(config, MemorySignalStore())
        loop = self.site.loop
        self.builder = WorldBuilder(
            config,
            config.planner_settings(),
            self.store,
            book,
            {"north": region},
            loop.points,
            loop.unheard,
            self.site.hub.nodes,
        )

    def event(self, limit_w: float, **more: Any) -> None:
        end = START + timedelta(hours=1)
        told = GridEvent("grid", "e", 1, "north", START, end, limit_w, START, "hot", branch="rack-1", **more)
        self.store.save_grid_event(told, None).result()
        self.site.branch_budgets = self.world().branch_budgets

    def world(self, *more: JobView) -> World:
        lowest_w = self.site.loop.lowest_w
        jobs = [replace(job, capped_w=lowest_w.get(job.id)) for job in self.site.jobs.values()]
        built = self.builder.build(self.site.now(), self.builder.region_views(), [*jobs, *more], None)
        return replace(built, regions=tuple(replace(view, reachable=True) for view in built.regions))

    def asked(self) -> list[Action]:
        """What is decided now, but for words."""
        return [one for one in decide(self.world()) if not isinstance(one, Hold)]


# --- where agents see jobs run ----------------------------------------------------------------------------------------


def test_shares_of_jobs_and_what_else_draws_on_a_branch() -> None:
    site = Site()
    for job_id, gpus in (("one", 1.0), ("wide", 4.0), ("gone", 1.0)):
        site.job(job_id, gpus=gpus)
    site.agent("n1", [["one"], ["wide"], []], branch="rack-1")
    site.agent("n2", [["wide"], ["wide", "one"], ["stranger"]], branch="rack-2")
    site.agent("n3", [[]])
    site.seconds(1)
    told = where(site)
    assert told.shares == {"one": {"rack-1": 0.5, "rack-2": 0.5}, "wide": {"rack-1": 0.25, "rack-2": 0.5}}
    assert [(one.name, one.gpus) for one in told.branches] == [("rack-1", 3.0), ("rack-2", 3.0), ("", 1.0)]
    # An idle GPU draws 60 W, and one with work of nobody we know 600 W.
    assert [one.other_w for one in told.branches] == [60.0, 600.0, 60.0]


def test_a_gpu_whose_user_is_not_told_keeps_who_was_there_and_else_counts_as_others() -> None:
    site, known = Site(), Placements()
    site.job("one")
    agent = site.agent("n1", [["one"]], branch="rack-1")
    site.seconds(1)
    assert where(site, known).shares == {"one": {"rack-1": 1.0}}
    agent.jobs[0] = None  # type: ignore[call-overload]
    site.seconds(1)
    assert where(site, known).shares == {"one": {"rack-1": 1.0}}
    new = where(site)
    assert new.shares == {} and (new.branches[0].other_w or 0.0) > 0, "it draws all the same"
    site.agents = []
    site.seconds(20)
    assert where(site, known).shares == {"one": {"rack-1": 1.0}}, "its agent is silent"
    assert where(site).branches[0].other_w == 700.0, "of which nothing is known counts with the most it may draw"
    site.jobs.clear()
    assert where(site, known).shares == {}


def test_gpus_that_no_agent_tells_of_are_where_no_agent_tells() -> None:
    site = Site()
    site.agent("n1", [[], []], branch="rack-1")
    site.seconds(1)
    assert [(one.name, one.gpus) for one in where(site, gpus=8.0).branches] == [("rack-1", 2.0), ("rack-2", None)]
    site.agent("n2", [[]], branch="rack-2")
    site.seconds(1)
    assert [(one.name, one.gpus) for one in where(site, gpus=8.0).branches] == [("rack-1", 2.0), ("rack-2", 1.0)]
    some = [(one.name, one.gpus) for one in where(site, gpus=8.0, off_branches=True).branches]
    assert some == [("rack-1", 2.0), ("rack-2", 1.0), ("", 5.0)]
    assert [one.name for one in where(site, gpus=3.0, off_branches=True).branches] == ["rack-1", "rack-2"]


def test_a_gpu_that_tells_neither_draw_nor_limits_makes_its_branch_s_draw_unknown() -> None:
    site = Site()
    site.agent("n1", [[], []], branch="rack-1")
    site.agent("n2", [[]], branch="rack-2")
    site.seconds(1)
    silent = []
    for node in site.hub.nodes():
        gpus = [replace(gpu, power_w=None, default_w=None, max_w=None) for gpu in node.gpus]
        silent.append(replace(node, gpus=tuple(gpus)) if node.branch == "rack-2" else node)
    told = Placements().of("north", silent, site.jobs, BOTH)
    assert [one.other_w for one in told.branches] == [120.0, None]


# --- the control loop ---------------------------------------------------------------------------------------------------


def test_branches_are_looked_at_only_while_one_has_a_limit() -> None:
    plane = Plane()
    plane.site.seconds(2)
    assert plane.world().regions[0].branches == () and all(not job.on_branches for job in plane.world().jobs)
    plane.event(1000.0)
    world = plane.world()
    assert [one.name for one in world.regions[0].branches] == ["rack-1", "rack-2"]
    assert [dict(job.on_branches) for job in world.jobs] == [{"rack-1": 1.0}] * 2 + [{"rack-2": 1.0}] * 2


def test_what_a_branchs_caps_can_meet_pauses_nobody_and_what_they_cannot_one_job_of_it() -> None:
    plane = Plane()
    plane.site.seconds(2)
    plane.event(900.0)  # at their lowest the two draw 2 x 350 = 700 W; its meter sees no cooling
    plane.site.seconds(5)
    assert plane.asked() == []
    deeper = Plane()
    deeper.site.seconds(2)
    deeper.event(500.0)
    action = deeper.asked()
    assert [type(one) for one in action] == [AskCheckpoint]
    assert action[0].job_id == "j0" and "branch rack-1 of north may draw 500 W (hot)" in action[0].reason  # type: ignore[union-attr]
    going = deeper.site.jobs["j0"]
    deeper.site.jobs["j0"] = replace(going, state=JobState.PAUSING, pause_requested=True)
    deeper.site.seconds(5)
    assert deeper.asked() == []


@pytest.mark.parametrize(("limit_w", "asked"), [(900.0, 0), (600.0, 1), (100.0, 2)])
def test_a_standing_limit_of_a_branch_that_caps_cannot_keep_pauses_jobs_there(limit_w: float, asked: int) -> None:
    plane = Plane(limit_w=limit_w)
    plane.site.seconds(5)
    ids = [one.job_id for one in plane.asked() if isinstance(one, AskCheckpoint)]
    assert ids == ["j0", "j1"][:asked]


def test_a_job_nobody_may_hold_waits_for_a_branch_with_power_and_starts_when_there_is() -> None:
    sim = simulation(branch=[{"name": "rack-1", "power_limit_w": 600.0}])
    advance(sim, 1)
    submit(sim, "j0", gpus=1.0)
    advance(sim, 5)
    submit(sim, "j1", gpus=1.0)
    advance(sim, 5)
    assert (state(sim, "j0"), state(sim, "j1")) == (JobState.RUNNING, JobState.QUEUED)
    waits = sim.store.job("j1")
    assert waits is not None and "rack-1 may draw 600 W (branch limit)" in waits.reason
    advance(sim, 70)
    assert (state(sim, "j0"), state(sim, "j1")) == (JobState.SUCCEEDED, JobState.RUNNING)


def test_the_same_job_is_the_same_value_as_long_as_it_stays_where_it_is() -> None:
    plane = Plane(limit_w=5000.0)
    plane.site.seconds(2)
    jobs = [*plane.site.jobs.values()]
    first, again = (plane.builder.build(plane.site.now(), plane.builder.region_views(), jobs, None).jobs for _ in range(2))
    assert all(one is other for one, other in zip(first, again, strict=True)) and first[0].on_branches == {"rack-1": 1.0}
    plane.rack.jobs, plane.other.jobs = plane.other.jobs, plane.rack.jobs
    plane.site.seconds(1)
    assert plane.builder.build(plane.site.now(), plane.builder.region_views(), jobs, None).jobs[0].on_branches == {
        "rack-2": 1.0
    }
