"""When a GPU counts as not holding its cap: as long as a limit was ordered, and not before that had time to come there."""

import json
from typing import Any

from tests.power.test_power_loop import Agent, Site


class Slow(Agent):
    """An agent whose limits come when a test lets them, and whose answers say what a test wants."""

    ok = True
    holds: dict[str, float] | None = None

    def say(self, frame: dict[str, Any]) -> None:
        if frame["type"] == "results" and not self.ok:
            frame = {**frame, "results": [{**one, "ok": False, "error": "a call failed"} for one in frame["results"]]}
        super().say(frame)

    def cap(self, uuid: str) -> float:
        return super().cap(uuid) if self.holds is None else self.holds[uuid]


def site_of(**changes: Any) -> tuple[Site, Slow]:
    site = Site(**changes)
    for at in range(4):
        site.job(f"j{at}")
    agent = Slow(site, "n1", [[f"j{at}"] for at in range(4)])
    site.agents.append(agent)
    agent.hello()
    return site, agent


def modified(site: Site, limit_w: float) -> None:
    """Another version of the event."""
    site.budgets = ()
    site.event(limit_w, end_s=600.0)


def test_a_lower_limit_after_an_order_that_failed_has_its_time_too() -> None:
    site, agent = site_of()
    modified(site, 2400.0)
    site.seconds(10)
    assert site.sentences() == [] and site.drawn_w() <= 2400.0
    agent.ok = False  # the limits come, and the answer is that a call failed
    modified(site, 2300.0)
    site.seconds(4)
    agent.holds = {uuid: agent.cap(uuid) for uuid in agent.uuids}  # what is ordered from now on does not come
    modified(site, 2100.0)
    for _ in range(5):
        site.seconds(1)
        assert site.sentences() == [], "it was told of this limit less than five seconds ago"
        assert len(site.loop.lowest_w) == 4, "what caps can do is known all the while, so that nobody has to pause"
    site.seconds(2)
    (sentence,) = site.sentences()
    assert "4 of 4 GPUs of host-n1 do not hold their cap after 5 s" in sentence
    assert site.loop.lowest_w == {}


def test_limits_that_fall_again_and_again_put_no_alarm_off() -> None:
    site, agent = site_of()
    agent.holds = dict.fromkeys(agent.uuids, 700.0)
    for second in range(9):
        modified(site, 2400.0 - 25.0 * second)
        site.seconds(1)
    first = json.loads(json.dumps(agent.orders))[0]["set"][0]["limit_w"]
    (sentence,) = site.sentences()
    assert f"has 700 W where {first:.0f} W were ordered" not in sentence, "the one of five seconds ago is owed"
    assert "do not hold their cap after 5 s: GPU 0 has 700 W" in sentence
