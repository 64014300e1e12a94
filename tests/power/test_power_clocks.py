"""Whatever becomes of the control plane's clock, an event's caps stand until the event is over or is taken back."""

from dataclasses import replace
from datetime import timedelta

import pytest

from dispatcher.power.caps import CapLoop
from dispatcher.power.hub import Hub
from tests.power.test_power_loop import START, Agent, Site, four


def capped(end_s: float | None = 900.0, recovery_s: float | None = None) -> tuple[Site, Agent]:
    """Four GPUs, 3000 W without limits, 10 s under an event of 2400 W."""
    site, agent = four()
    site.event(2400.0, end_s=end_s, recovery_s=recovery_s)
    site.seconds(10)
    assert max(agent.caps()) < 600.0
    return site, agent


@pytest.mark.parametrize("recovery_s", [None, 300.0])
@pytest.mark.parametrize("end_s", [900.0, None])
@pytest.mark.parametrize("step_s", [-86400.0, -600.0, -20.0, 3600.0, 200_000.0])
def test_a_clock_that_is_set_lifts_no_cap_and_what_is_over_ends_by_the_nodes_clock(
    step_s: float, end_s: float | None, recovery_s: float | None
) -> None:
    site, agent = capped(end_s, recovery_s)
    caps = agent.caps()
    site.clock_s = step_s
    for _ in range(30):
        site.seconds(1)
        assert max(agent.caps()) <= max(caps)
    site.clock_s = 0.0
    site.seconds(30)
    assert site.drawn_w() <= 2400.0
    if end_s is None:
        site.budgets = ()
    else:
        site.s = end_s + (recovery_s or 0.0)
    site.seconds(15)
    assert agent.leases == {} and agent.caps() == [700.0] * 4


@pytest.mark.parametrize("step_s", [-20.0, 300.0])
def test_what_is_taken_back_is_let_go_of_while_the_clock_is_wrong(step_s: float) -> None:
    site, agent = capped()
    site.clock_s = step_s
    site.seconds(5)
    site.budgets = ()
    site.seconds(2)
    assert agent.leases == {} and agent.caps() == [700.0] * 4


def test_a_start_that_is_moved_to_later_is_obeyed() -> None:
    site, agent = capped()
    (budget,) = site.budgets
    site.budgets = (replace(budget, start=START + timedelta(seconds=300), end=START + timedelta(seconds=600)),)
    site.seconds(15)
    assert agent.caps() == [700.0] * 4
    site.s = 300.0
    site.seconds(10)
    assert max(agent.caps()) < 600.0


@pytest.mark.parametrize("step_s", [-600.0, 3600.0])
def test_a_control_plane_that_starts_with_a_wrong_clock_lifts_no_cap(step_s: float) -> None:
    before, agent = capped()
    caps = agent.caps()
    site, leases = Site(), agent.leases
    site.s, site.clock_s, site.budgets, site.jobs = before.s, step_s, before.budgets, before.jobs
    site.hub = Hub(epoch=3, now=site.now, mono=lambda: site.s)
    site.loop = CapLoop(site.config, site.hub, mono=lambda: site.s)
    agent = site.agent("n1", [[f"j{at}"] for at in range(4)], leases=leases)
    for _ in range(30):
        site.seconds(1)
        assert max(agent.caps()) <= max(caps)
    site.s = 900.0 + max(0.0, -step_s)  # over by both clocks
    site.seconds(15)
    assert agent.leases == {}


def test_leases_that_nobody_knows_are_let_go_of_once_the_clocks_are_seen_to_agree() -> None:
    _, agent = capped()
    site = Site()
    for at in range(4):
        site.job(f"j{at}")
    left = {name: {**one, "ends": 10_000.0} for name, one in agent.leases.items()}
    agent = site.agent("n1", [[f"j{at}"] for at in range(4)], leases=left)
    site.seconds(1)
    assert len(agent.leases) == 4, "one look tells nothing of a clock"
    site.seconds(10)
    assert agent.leases == {}
