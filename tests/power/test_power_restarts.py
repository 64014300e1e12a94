"""What the power loop must not do while it does not know enough: let go of an event's caps."""

from dispatcher.power.caps import UNSEEN_S
from tests.power.test_power_loop import Agent, Site, four


def capped() -> tuple[Site, Agent]:
    """Four GPUs under an event of 2400 W that lasts, 3000 W without it."""
    site, agent = four()
    site.event(2400.0, end_s=900.0)
    site.seconds(30)
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


def _as_active(frame: dict[str, object]) -> dict[str, object]:
    gpus = frame.get("gpus")
    if frame.get("type") == "live" and isinstance(gpus, list):
        gpus[0]["idle_state"] = "active"
    return frame
