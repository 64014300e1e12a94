"""GPUs that interactive serving has: no limit is ever set on them, and batch beside serving at risk is capped for a minute at a
time."""

from dataclasses import replace
from typing import Any

import pytest

from dispatcher.power.tuned_caps import TunedCap
from policies.cap_model import LEAST_CAP
from policies.serving import Level
from policies.world import Guarded, World
from tests.power.test_power_loop import Agent, Site

FOREIGN = "process 7 there is of no job of gridshift's"
SLO = {"metric": "queue", "limit": 4, "gauge": "waiting"}


def shared(**where: Any) -> tuple[Site, Agent]:
    """A node whose first GPU is shared by a server and a job, and whose others run a job each."""
    serving = {"name": "chat", "source": "metrics", "url": "http://chat/metrics", "slo": [SLO], **where}
    site = Site(branch=[{"name": "rack"}], serving=[serving])
    for at in range(3):
        site.job(f"j{at}")
    agent = site.agent("n1", [[f"j{at}"] for at in range(3)])
    agent.protected[agent.uuids[0]] = FOREIGN
    return site, agent


@pytest.mark.parametrize("where", [{}, {"gpu_uuids": ["GPU-n1-0"]}])
def test_an_event_caps_the_batch_around_it_and_never_the_server(where: dict[str, Any]) -> None:
    site, agent = shared(**where)
    site.event(1800.0, end_s=600.0)
    site.seconds(20)
    assert agent.caps()[0] == 700.0 and all(cap < 600.0 for cap in agent.caps()[1:])
    assert not any(one["uuid"] == agent.uuids[0] for order in agent.orders for one in order["set"]), "not even once"
    # what cannot be met without it is said, and it is spared all the same
    site.event(800.0, end_s=600.0, event_id="hard")
    site.seconds(5)
    assert agent.caps()[0] == 700.0
    assert any("1 GPUs are not capped: interactive serving chat has them" in one for one in site.sentences())


def test_where_it_is_not_declared_an_event_caps_that_gpu_too() -> None:
    site, agent = shared(branch="rack")  # the node is on no branch
    site.event(1800.0, end_s=600.0)
    site.seconds(20)
    assert agent.caps()[0] < 600.0


def guarded(site: Site, monkeypatch: pytest.MonkeyPatch, level: Level, *job_ids: str) -> None:
    plain = Site.world

    def world(self: Site) -> World:
        seen = plain(self)
        guard = Guarded("chat", level, "serving chat: slow", frozenset(job_ids) if job_ids else None)
        return replace(seen, regions=tuple(replace(view, guards=(guard,)) for view in seen.regions))

    monkeypatch.setattr(Site, "world", world)


def test_batch_beside_serving_at_risk_is_capped_for_a_minute_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    site, agent = shared()
    site.job("fixed", tier="flex-0")
    other = site.agent("n2", [["fixed"]])
    guarded(site, monkeypatch, Level.HOLD)
    site.seconds(5)
    assert agent.caps() == [700.0] * 3
    with monkeypatch.context() as patch:
        guarded(site, patch, Level.CAP)
        site.seconds(2)
        assert agent.caps() == [700.0, LEAST_CAP * 700.0, LEAST_CAP * 700.0] and other.caps() == [700.0]
        (order,) = agent.orders
        assert {(one["kind"], one["ttl_s"], one["reason"]) for one in order["set"]} == {
            ("economic", 60.0, "serving chat: slow")
        }
        site.seconds(90)
        assert agent.caps()[1] == LEAST_CAP * 700.0, "renewed while it lasts"
    site.seconds(3)
    assert agent.caps() == [700.0] * 3


def test_only_what_shares_its_machines_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    site, agent = shared()
    guarded(site, monkeypatch, Level.PAUSE, "j2")
    site.seconds(3)
    assert agent.caps() == [700.0, 700.0, LEAST_CAP * 700.0]


def alone(**where: Any) -> tuple[Site, Agent]:
    """A node whose first two GPUs have a server, and whose third one runs a job."""
    serving = {"name": "chat", "source": "metrics", "url": "http://chat/metrics", "slo": [SLO], **where}
    site = Site(serving=[serving])
    site.job("j0")
    agent = site.agent("n1", [[], [], ["j0"]])
    agent.protected = dict.fromkeys(agent.uuids[:2], FOREIGN)
    return site, agent


def test_serving_that_asks_for_it_is_capped_for_a_minute_at_a_time_and_let_go_of_at_once() -> None:
    site, agent = alone(gpu_uuids=["GPU-n1-0", "GPU-n1-1"])
    asked = {uuid: TunedCap("chat", 454.2, "little to do") for uuid in agent.uuids}
    site.loop.tuned = lambda region: asked
    site.seconds(2)
    assert agent.caps() == [455.0, 455.0, 700.0], "the job's GPU is not the server's"
    (order,) = agent.orders
    terms = {(one["kind"], one["ttl_s"], one["reason"], one["foreign_ok"]) for one in order["set"]}
    assert terms == {("economic", 60.0, "little to do", True)}
    site.seconds(100)
    assert agent.caps() == [455.0, 455.0, 700.0], "renewed while it is asked for"
    asked.clear()
    site.seconds(1)
    assert agent.caps() == [700.0] * 3 and agent.leases == {}, "not when the lease ends"
    # a control plane that is gone renews nothing
    asked.update({agent.uuids[0]: TunedCap("chat", 454.2, "little to do")})
    site.seconds(3)
    assert agent.caps() == [455.0, 700.0, 700.0]
    site.s += 61.0
    assert agent.caps() == [700.0] * 3


def test_serving_is_not_capped_where_it_is_not_named_nor_beside_a_job_nor_below_half() -> None:
    site, agent = alone(gpu_uuids=["GPU-n1-0", "GPU-n1-2"])
    site.loop.tuned = lambda region: {uuid: TunedCap("chat", 100.0, "") for uuid in agent.uuids}
    site.seconds(3)
    assert agent.caps() == [LEAST_CAP * 700.0, 700.0, 700.0]
    agent.unsure = True
    site.seconds(3)
    assert agent.caps() == [700.0] * 3, "nobody knows who is there"
    unnamed, other = alone()
    unnamed.loop.tuned = lambda region: {uuid: TunedCap("chat", 400.0, "") for uuid in other.uuids}
    unnamed.seconds(3)
    assert other.caps()[2] == 700.0


def test_a_tuned_cap_of_another_region_or_serving_is_none() -> None:
    site, agent = alone(gpu_uuids=["GPU-n1-0", "GPU-n1-1"])
    site.loop.tuned = lambda region: {uuid: TunedCap("other", 400.0, "") for uuid in agent.uuids}
    site.seconds(3)
    assert agent.orders == []
