"""What the power loop must not do while it does not know enough: let go of an event's caps."""

from dataclasses import replace
from typing import Any

from dispatcher.power.caps import ECONOMIC_S, LET_GO_S, UNSEEN_S
from policies.world import JobState
from tests.power.test_power_loop import Agent, Site, four


def capped(for_s: int = 30) -> tuple[Site, Agent]:
    """Four GPUs under an event of 2400 W that lasts, 3000 W without it; from 130 s on its caps move no more."""
    site, agent = four()
    site.event(2400.0, end_s=900.0)
    site.seconds(for_s)
    assert site.drawn_w() <= 2400.0 and len(agent.leases) == 4
    return site, agent


def round_without_live(site: Site) -> None:
    site.s += 1.0
    site.loop.power(site.world(), site.now())


def test_a_node_that_has_only_just_connected_keeps_its_caps_until_it_has_told_what_it_does() -> None:
    site, agent = capped()
    agent.hello()  # its agent was started anew
    assert not site.hub.nodes()[0].told
    round_without_live(site)
    assert len(agent.leases) == 4 and all(order["release"] == [] for order in agent.orders)
    site.seconds(5)
    assert len(agent.leases) == 4 and site.drawn_w() <= 2400.0


def test_a_new_control_plane_keeps_the_caps_of_the_one_before_whatever_owners_say_of_their_jobs() -> None:
    _, before = capped()
    site = Site()
    for at in range(4):
        site.job(f"j{at}", power_w=300.0)  # half of what it draws
    site.event(2400.0, end_s=870.0)
    agent = site.agent("n1", [[f"j{at}"] for at in range(4)], leases={k: {**v, "ends": None} for k, v in before.leases.items()})
    round_without_live(site)
    for _ in range(30):
        site.seconds(1)
        assert len(agent.leases) == 4 and site.drawn_w() <= 2400.0
    assert all(order["release"] == [] for order in agent.orders)


def test_a_look_that_fails_lifts_no_cap_and_a_free_gpu_has_none() -> None:
    site, agent = capped()
    live, jobs = agent.live, agent.jobs

    def without_jobs() -> None:
        agent.jobs = [[], *jobs[1:]]
        live()
        agent.jobs = jobs

    def say_active() -> None:
        # Nobody could tell who is on the first GPU, but it is at work.
        frame_say = agent.say
        agent.say = lambda frame: frame_say(_as_active(frame))  # type: ignore[method-assign]
        without_jobs()
        agent.say = frame_say  # type: ignore[method-assign]

    agent.live = say_active  # type: ignore[method-assign]
    site.seconds(int(UNSEEN_S) - 2)
    assert len(agent.leases) == 4
    agent.live = live  # type: ignore[method-assign]
    site.seconds(3)
    assert len(agent.leases) == 4

    agent.jobs = [[], *jobs[1:]]  # and now it is free
    site.seconds(3)
    assert len(agent.leases) == 3


def test_a_cap_that_is_not_needed_for_a_moment_stays_and_goes_when_it_is_not_needed_for_longer() -> None:
    site, agent = capped()
    jobs = agent.jobs
    agent.jobs = [[], *jobs[1:]]
    del site.jobs["j0"]  # it ends; the others fit below the limit without caps
    site.seconds(int(LET_GO_S) - 2)
    assert len(agent.leases) == 3 and site.drawn_w() <= 2400.0
    site.job("j4")
    agent.jobs = [["j4"], *jobs[1:]]  # and another takes its place
    site.seconds(3)
    assert len(agent.leases) == 4 and site.drawn_w() <= 2400.0
    assert not any(name.endswith(tuple(agent.uuids[1:])) for order in agent.orders for name in order["release"])

    agent.jobs = [[], *jobs[1:]]
    del site.jobs["j4"]
    site.seconds(int(LET_GO_S) + 2)
    assert not agent.leases


def test_a_cap_on_work_that_is_never_to_be_capped_goes_at_once() -> None:
    site, agent = capped()
    site.job("j0", tier="flex-0")
    site.seconds(2)
    assert len(agent.leases) == 3


def _as_active(frame: dict[str, object]) -> dict[str, object]:
    gpus = frame.get("gpus")
    if frame.get("type") == "live" and isinstance(gpus, list):
        gpus[0]["idle_state"] = "active"
    return frame


def without_lists(agent: Agent, *, silent_on: set[int]) -> None:
    """From now on the driver of these GPUs, which are at work, does not say who is there."""
    say = agent.say

    def told(frame: dict[str, Any]) -> None:
        for at in silent_on if frame["type"] == "live" else ():
            frame["gpus"][at] |= {"jobs": None, "idle_state": "active"}
        say(frame)

    agent.say = told  # type: ignore[method-assign]


def test_a_list_that_stays_unknown_lifts_no_cap_of_an_event_and_moves_none() -> None:
    site, agent = capped(130)
    caps = agent.caps()
    without_lists(agent, silent_on={0, 1})
    site.seconds(120)
    assert site.hub.nodes()[0].gpus[0].jobs is None
    assert agent.caps() == caps and all(order["release"] == [] for order in agent.orders)

    site.jobs["j0"] = replace(site.jobs["j0"], state=JobState.SUCCEEDED)  # somebody else may be there by now
    site.seconds(60)
    assert agent.cap(agent.uuids[0]) == caps[0]
    site.budgets = ()  # cancelled: nothing is left to hold for
    site.seconds(3)
    assert agent.leases == {}


def test_a_list_that_stays_unknown_lifts_no_cap_of_a_standing_limit() -> None:
    site, agent = four(power_limit_w=2400.0)
    site.seconds(5)
    caps = agent.caps()
    without_lists(agent, silent_on={0})
    site.jobs["j0"] = replace(site.jobs["j0"], state=JobState.SUCCEEDED)
    site.seconds(int(2 * ECONOMIC_S))
    assert agent.cap(agent.uuids[0]) == caps[0] < 700.0


def test_a_new_control_plane_that_is_never_told_who_is_there_keeps_an_events_caps() -> None:
    _, before = capped()
    site = Site()
    for at in range(4):
        site.job(f"j{at}")
    site.event(2400.0, end_s=870.0)
    agent = site.agent("n1", [[f"j{at}"] for at in range(4)], leases={k: {**v, "ends": None} for k, v in before.leases.items()})
    without_lists(agent, silent_on={0, 1, 2, 3})
    site.seconds(60)
    assert agent.caps() == before.caps() and all(order["release"] == [] for order in agent.orders)


def test_a_limit_holds_though_the_plans_caps_were_lost_with_control_plane_and_agent() -> None:
    before, agent = four(power_limit_w=2400.0)
    for at in range(4):
        before.loop.launched(f"j{at}", 0.6, before.now())  # so that all four fit
    before.seconds(5)
    assert agent.caps() == [420.0] * 4
    site, agent = four(power_limit_w=2400.0)  # both began anew; the agent was ended in order and gave its limits back
    assert agent.caps() == [700.0] * 4 and site.drawn_w() > 2400.0
    site.seconds(2)
    assert [site.loop.cap_of(f"j{at}") for at in range(4)] == [1.0] * 4, "nobody remembers what was planned"
    assert site.drawn_w() <= 2400.0, "but the limit is a limit"


def test_an_agent_that_cannot_cap_for_a_while_keeps_its_events_caps() -> None:
    site, agent = capped(130)
    before = agent.caps()
    agent.can_cap = False
    agent.hello()
    site.seconds(30)
    assert agent.caps() == before and all(order["release"] == [] for order in agent.orders)
    assert site.sentences() == []  # they hold
    agent.can_cap = True
    agent.hello()
    site.seconds(30)
    assert agent.caps() == before and all(order["release"] == [] for order in agent.orders)
    site.s = 900.0
    site.seconds(2)
    assert agent.leases == {}


def test_a_gpu_that_does_not_tell_its_limits_for_a_while_keeps_its_events_caps() -> None:
    site, agent = capped(130)
    before, say = agent.caps(), agent.say

    def without_limits(frame: dict[str, Any]) -> None:
        say({**frame, "gpus": [{**gpu, "min_w": None, "max_w": None, "default_w": None} for gpu in frame["gpus"]]})

    agent.say = without_limits  # type: ignore[method-assign]
    agent.hello()
    agent.say = say  # type: ignore[method-assign]
    site.seconds(90)
    assert agent.caps() == before and site.sentences() == []
    agent.hello()
    site.seconds(30)
    assert agent.caps() == before and all(order["release"] == [] for order in agent.orders)


def test_an_events_caps_outlast_a_job_that_is_not_known_here_any_more_but_spare_work_that_is_never_capped() -> None:
    site, agent = capped()
    before = agent.caps()
    del site.jobs["j1"]
    site.seconds(5)
    assert agent.caps() == before
    site.job("j1", flexible=False, tier="flex-0")
    site.seconds(5)
    assert agent.caps()[1] == 700.0


def test_a_process_of_nobody_we_know_lifts_no_events_cap() -> None:
    site, agent = capped()
    before = agent.caps()
    agent.protected = {agent.uuids[0]: "process 7 there is of no job of gridshift's, so it is not capped"}
    site.seconds(15)
    assert agent.caps() == before
    agent.jobs = [[], *agent.jobs[1:]]  # and the job's own processes cannot be seen among them
    agent.busy = True
    site.seconds(15)
    assert len(agent.leases) == 4 and agent.caps()[0] == before[0]


def test_an_event_caps_gpus_with_work_of_others_too_and_a_standing_limit_spares_them() -> None:
    site, agent = four(power_limit_w=2700.0)
    agent.protected = dict.fromkeys(agent.uuids, "process 7 there is of no job of gridshift's, so it is not capped")
    site.seconds(10)
    assert agent.leases == {}
    site.event(2400.0, end_s=900.0)
    site.seconds(10)
    assert site.drawn_w() <= 2400.0 and {one["kind"] for one in agent.leases.values()} == {"event"}


def of_limit(site: Site) -> list[str]:
    return [sentence for key, _, sentence in site.loop.alarms(site.now()) if key.startswith("limit ")]


def test_an_agent_that_is_silent_for_a_moment_counts_with_the_event_caps_that_stand_there() -> None:
    site, agent = capped()
    assert of_limit(site) == []
    site.hub.gone(agent)
    for _ in range(8):
        round_without_live(site)
        assert not site.hub.nodes()[0].connected and of_limit(site) == []


def test_free_gpus_of_an_agent_that_is_silent_for_a_moment_count_with_what_they_drew() -> None:
    site = Site()
    site.job("j0")
    agent = site.agent("n1", [["j0"], [], [], []])
    site.event(1000.0, end_s=900.0)  # 975 W are drawn; three free GPUs at work would draw 2625 W more
    site.seconds(10)
    assert of_limit(site) == []
    agent.hello()
    for _ in range(int(UNSEEN_S) - 2):
        round_without_live(site)
        assert not site.hub.nodes()[0].told and of_limit(site) == []
    for _ in range(4):
        round_without_live(site)
    assert "3 GPUs whose power is unknown counted at the limit" in of_limit(site)[0]


def test_a_gpu_that_we_cannot_cap_counts_with_the_limit_that_somebody_else_has_set() -> None:
    site, agent = four()
    agent.jobs = [["theirs"], ["j1"], ["j2"], ["j3"]]  # not known here
    agent.leases = {"own": {"lease_id": "own", "kind": "economic", "uuid": agent.uuids[0], "limit_w": 300.0, "ends": None}}
    del site.jobs["j0"]
    for at in range(1, 4):
        site.jobs[f"j{at}"] = replace(site.jobs[f"j{at}"], flex=replace(site.jobs[f"j{at}"].flex, tier="flex-0"))
    site.event(2700.0, end_s=900.0)
    site.seconds(10)
    assert site.drawn_w() == 2625.0 and of_limit(site) == []


def test_a_limit_that_is_broken_is_told_by_how_much_it_is_and_not_by_our_margin() -> None:
    site, _ = four()
    for at in range(4):
        site.jobs[f"j{at}"] = replace(site.jobs[f"j{at}"], flex=replace(site.jobs[f"j{at}"].flex, tier="flex-0"))
    site.event(2990.0, end_s=900.0)
    site.seconds(10)
    (sentence,) = of_limit(site)
    assert site.drawn_w() == 3000.0 and "north is 10 W above its limit" in sentence
    site.budgets = ()
    site.event(3001.0, end_s=900.0, event_id="next")
    site.seconds(10)
    assert of_limit(site) == [], "within the limit, if not within the margin"
