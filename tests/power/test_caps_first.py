"""Caps come before pauses: what they can take off a region's draw is asked of nobody, and what they cannot is."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from dispatcher.power.caps import CapLoop
from dispatcher.power.hub import Former, Hub
from policies.cap_model import LEAST_CAP
from policies.decide import decide
from policies.flexibility import FlexibilityDefaults, parse_flexibility
from policies.world import Action, AskCheckpoint, Pausable, World
from tests.dispatcher.test_control import advance, simulation, submit
from tests.power.test_power_loop import START, Site, four


def world(site: Site) -> World:
    """The site as the control loop sees it, with what its caps can do."""
    seen = site.world()
    jobs = tuple(replace(job, capped_w=site.loop.lowest_w.get(job.id)) for job in seen.jobs)
    return replace(seen, jobs=jobs, regions=tuple(replace(one, unheard=site.loop.unheard(one.name)) for one in seen.regions))


def asked(actions: list[Action]) -> list[str]:
    return [action.job_id for action in actions if isinstance(action, AskCheckpoint)]


def pausable(**more: Any) -> Site:
    """One node whose four GPUs run one job each that may be paused, 3000 W at the meter."""
    site, _ = four()
    for at in range(4):
        site.job(f"j{at}", pausable=Pausable.CHECKPOINT, **more)
    return site


def test_an_event_that_caps_can_meet_pauses_nobody() -> None:
    site = pausable()
    site.seconds(2)
    site.event(2400.0, end_s=900.0)
    before = world(site)
    assert asked(decide(replace(before, jobs=site.world().jobs))) == ["j0"], "without caps one has to go"
    assert decide(before) == []
    site.seconds(5)
    assert site.drawn_w() <= 2400.0 and decide(world(site)) == []


def test_what_caps_cannot_take_off_is_paused_and_no_more() -> None:
    site = pausable()
    site.seconds(2)
    site.event(1400.0, end_s=900.0)  # at their lowest the four draw 4 x 350 x 1.25 = 1750 W, and each gives 437.5 W
    actions = decide(world(site))
    assert asked(actions) == ["j0"] and len(actions) == 1


def test_caps_stay_within_what_tiers_may_lose() -> None:
    site = pausable(tier="flex-0")
    site.seconds(2)
    assert site.loop.lowest_w == {}
    strict, soft = pausable(tier="flex-1"), pausable(tier="flex-3")
    for one in (strict, soft):
        one.seconds(2)
    assert set(soft.loop.lowest_w.values()) == {LEAST_CAP * 700.0}
    assert all(500.0 < low_w < 600.0 for low_w in strict.loop.lowest_w.values())
    assert set(pausable(min_cap=0.75).loop.lowest_w) == set()  # nothing was heard yet


def test_a_gpu_that_does_not_hold_its_cap_is_not_counted_on() -> None:
    site = pausable()
    site.agents[0].obeys = False
    site.event(2400.0, end_s=900.0)
    site.seconds(4)
    assert asked(decide(world(site))) == []
    site.seconds(4)
    assert site.loop.lowest_w == {} and asked(decide(world(site))) == ["j0"]
    site.agents[0].obeys = True
    site.seconds(8)
    assert asked(decide(world(site))) == []


def test_an_events_caps_on_a_silent_node_still_count() -> None:
    site = pausable()
    site.event(2400.0, end_s=900.0)
    site.seconds(5)
    (agent,) = site.agents
    caps = agent.caps()
    site.agents = []
    site.seconds(25)
    assert [site.loop.lowest_w[f"j{at}"] for at in range(4)] == caps
    assert asked(decide(world(site))) == []


def test_a_connection_that_is_back_within_a_moment_pauses_nobody() -> None:
    site = pausable()
    site.event(2800.0, end_s=900.0)
    site.seconds(5)
    (agent,) = site.agents
    assert agent.caps() != [350.0] * 4
    site.event(2000.0, end_s=900.0, event_id="deeper", start_s=20.0)  # what the first event's caps leave is too much for it
    site.seconds(2)
    assert asked(decide(world(site))) == []
    site.hub.gone(agent)
    site.agents = []
    site.seconds(2)
    assert [node.connected for node in site.hub.nodes()] == [False] and asked(decide(world(site))) == []
    agent.hello()
    site.agents = [agent]
    site.seconds(2)
    assert asked(decide(world(site))) == []
    site.hub.gone(agent)
    site.agents = []
    site.seconds(11)
    assert asked(decide(world(site))) == ["j0", "j1"], "one that stays away can set no lower cap"


def test_of_a_job_on_a_node_that_cannot_cap_the_draw_there_counts_in_full() -> None:
    site = Site()
    site.job("wide", gpus=3.0)
    site.agent("n1", [["wide"]])
    site.agent("n2", [["wide"]], can_cap=False)
    site.seconds(2)
    assert site.loop.lowest_w == {"wide": 350.0 + 600.0 + 600.0}  # the third GPU no agent sees: what its owner says
    site.job("other")
    site.agents[0].jobs[0] = ["wide", "other"]
    site.seconds(2)
    assert site.loop.lowest_w == {}


def test_a_plain_job_of_a_region_with_a_default_tier_is_capped_and_never_paused() -> None:
    defaults = FlexibilityDefaults(tier="flex-2")
    plain = parse_flexibility({}, now=START, gpus_requested=1.0, regions=["north"], defaults=defaults)
    assert (plain.flexible, plain.tier, plain.pausable) == (False, "flex-2", Pausable.NO)
    site = Site()
    for at in range(2):
        site.job(f"j{at}", flexible=False, tier="flex-2")
    agent = site.agent("n1", [["j0"], ["j1"]])
    site.event(1300.0, end_s=900.0)
    site.seconds(5)
    lowest_w = site.loop.lowest_w["j0"]
    assert site.drawn_w() <= 1300.0 and all(lowest_w <= cap < 600.0 for cap in agent.caps())
    assert decide(world(site)) == []
    site.event(800.0, end_s=900.0, event_id="deeper")
    site.seconds(5)
    assert agent.caps() == [lowest_w] * 2, "to what its tier may lose, and no further"
    assert asked(decide(world(site))) == []


def test_the_control_loop_knows_what_caps_can_do() -> None:
    sim = simulation(gpus=4)
    submit(sim, "j0", gpus=1.0)
    advance(sim, 5)

    sim.control._caps = SimpleNamespace(lowest_w={"j0": 350.0}, cap_of=lambda job_id: 1.0)  # type: ignore[assignment]
    (view,) = sim.control._job_views(sim.clock.now())
    assert view.capped_w == 350.0


def test_after_a_restart_nobody_is_asked_before_the_agents_have_told_what_they_hold() -> None:
    site = pausable()
    site.event(2400.0, end_s=900.0)
    site.seconds(5)
    (agent,) = site.agents
    caps, orders = agent.caps(), len(agent.orders)
    # A new control plane: it knows of the node only from its records.
    site.hub = Hub(epoch=3, now=site.now, mono=lambda: site.s)
    site.hub.remember([Former("n1", "north", site.now())])
    site.loop = CapLoop(site.config, site.hub, mono=lambda: site.s)
    site.agents = []
    for _ in range(5):
        site.seconds()
        assert site.loop.unheard("north") and decide(world(site)) == []
    agent.hello()
    site.seconds()
    assert site.loop.unheard("north") and decide(world(site)) == [], "it has not told yet what its GPUs do"
    site.agents, agent.unsure = [agent], True
    site.seconds(2)
    assert site.loop.unheard("north") and decide(world(site)) == [], "it could not look yet who is on its GPUs"
    agent.unsure = False
    site.seconds(2)
    assert not site.loop.unheard("north") and decide(world(site)) == []
    assert agent.caps() == caps and len(agent.orders) == orders + 1


def test_agents_that_do_not_come_back_are_not_waited_for_long() -> None:
    site = pausable()
    site.event(2400.0, end_s=900.0)
    site.hub = Hub(epoch=3, now=site.now, mono=lambda: site.s)
    site.agents = []
    assert not CapLoop(site.config, site.hub, mono=lambda: site.s).unheard("north"), "there were none"
    site.hub.remember([Former("n1", "north", site.now())])
    site.loop = CapLoop(site.config, site.hub, mono=lambda: site.s)
    site.seconds(29)
    assert decide(world(site)) == []
    site.seconds(2)
    assert asked(decide(world(site))) == ["j0"]
