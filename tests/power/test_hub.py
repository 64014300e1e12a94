"""The hub: who is connected, what they say, and what becomes of orders to them."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dispatcher.agent import messages
from dispatcher.power.energy import Taken
from dispatcher.power.hub import MISSED_S, MOST_CLAIMS, CapOrder, CapResult, Former, Hub, Release

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Time:
    """Moves when told."""

    def __init__(self) -> None:
        self.s = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.s)

    def mono(self) -> float:
        return self.s


class Agent:
    """A session that keeps what it was sent."""

    def __init__(self, hub: Hub, node_id: str = "n1", region: str = "north", gpus: int = 2, **hello: Any) -> None:
        self.hub, self.node_id, self.region = hub, node_id, region
        self.sent: list[dict[str, Any]] = []
        self.closed: str | None = None
        self.clock_s = 0.0  # ahead of the hub's
        self.uuids = [f"GPU-{node_id}-{i}" for i in range(gpus)]
        self.hello = {
            "type": "hello",
            "protocol": 1,
            "node": {"node_id": node_id, "hostname": f"host-{node_id}", "branch": "rack-1", "simulated": True},
            "can_cap": True,
            "why_not": "",
            "gpus": [
                {"uuid": uuid, "index": i, "name": "Card", "min_w": 200.0, "max_w": 700.0, "default_w": 700.0}
                for i, uuid in enumerate(self.uuids)
            ],
            "leases": [],
            "epoch": 0,
            **hello,
        }

    def send(self, text: str, *, is_order: bool = False) -> None:
        self.sent.append(json.loads(text))

    def close(self, why: str) -> None:
        self.closed = why

    def say(self, frame: Mapping[str, Any]) -> dict[str, Any] | None:
        reply = self.hub.receive(self, self.region, json.dumps(frame))
        return None if reply is None else dict(json.loads(reply))

    def connect(self) -> "Agent":
        assert self.say(self.hello) is None
        return self

    def live(self, power_w: float | None = 400.0, **more: Any) -> None:
        gpu = {"uuid": self.uuids[0], "power_w": power_w, "limit_w": 700.0, "idle_state": "active", "jobs": ["j1"], **more}
        at = self.hub._now().timestamp() + self.clock_s
        assert self.say({"type": "live", "at": at, "gpus": [gpu], "frozen": [], "alarms": []}) is None

    def answer(self, order: Mapping[str, Any], **more: Any) -> None:
        said = [{"lease_id": one["lease_id"], "ok": True, "enforced_w": one["limit_w"], "took_s": 0.02} for one in order["set"]]
        said += [{"lease_id": lease, "ok": True} for lease in order["release"]]
        assert self.say({"type": "results", "order": order["order"], "results": [{**one, **more} for one in said]}) is None


def make(**more: Any) -> tuple[Hub, Time]:
    time = Time()
    return Hub(epoch=5, now=time.now, mono=time.mono, **more), time


def cap(agent: Agent, lease_id: str = "l1", limit_w: float = 350.0) -> CapOrder:
    return CapOrder(lease_id, "economic", agent.node_id, agent.uuids[0], limit_w, 60.0, "night")


def test_a_node_is_seen_with_its_figures() -> None:
    hub, _ = make()
    agent = Agent(hub).connect()
    agent.live(412.5, cap={"state": "enforced", "wanted_w": 350.0, "since": START.timestamp(), "detail": "as ordered"})
    (node,) = hub.nodes()
    assert (node.node_id, node.region, node.branch, node.connected, node.simulated) == ("n1", "north", "rack-1", True, True)
    first, second = node.gpus
    assert (first.power_w, first.jobs, first.default_w, first.cap.state, first.cap.since) == (
        412.5,
        ("j1",),
        700.0,
        "enforced",
        START,
    )
    assert (second.power_w, second.cap.state) == (None, "unknown")  # nothing was said of it: that is not 0 W
    assert hub.gpus_of("j1") == [first] and hub.gpus_of("j2") == []


def test_a_node_that_comes_back_under_another_id_is_not_counted_twice() -> None:
    hub, time = make()
    old, other = Agent(hub, "old").connect(), Agent(hub, "other").connect()
    new = Agent(hub, "new")
    new.uuids, new.hello["gpus"] = old.uuids, old.hello["gpus"]
    new.hello["node"]["hostname"] = "host-old"
    hub.gone(old)
    hub.gone(other)
    time.s = 11.0
    hub.sweep()
    assert [node.node_id for node in hub.nodes()] == ["old", "other"]  # nobody tells of their GPUs: unknown, not gone
    new.connect()
    hub.sweep()
    assert [node.node_id for node in hub.nodes()] == ["new", "other"]
    assert [key for key, _, _ in hub.alarms()] == ["silent other"]


def test_a_silent_node_without_gpus_is_no_alarm() -> None:
    hub, time = make()
    Agent(hub, gpus=0).connect()
    time.s = 11.0
    assert not hub.nodes()[0].connected and hub.alarms() == []


def test_the_figures_of_a_silent_node_are_unknown_and_it_is_an_alarm() -> None:
    hub, time = make()
    agent = Agent(hub).connect()
    agent.live()
    time.s = 10.0
    assert hub.nodes()[0].gpus[0].power_w == 400.0 and hub.alarms() == []
    time.s = 10.5
    (node,) = hub.nodes()
    assert not node.connected and node.gpus[0].power_w is None and node.gpus[0].cap.state == "unknown"
    assert node.last_seen_at == START and hub.gpus_of("j1") == []
    ((key, region, sentence),) = hub.alarms()
    assert (key, region) == ("silent n1", "north") and "silent since 2026-03-01 12:00:00 UTC" in sentence
    agent.live(300.0)
    assert hub.nodes()[0].gpus[0].power_w == 300.0 and hub.alarms() == []


def test_a_node_that_is_gone_for_long_is_forgotten() -> None:
    hub, time = make()
    hub.gone(Agent(hub).connect())
    time.s = 3600.0
    hub.sweep()
    assert [node.connected for node in hub.nodes()] == [False]
    time.s = 3601.0
    hub.sweep()
    assert hub.nodes() == [] and hub.node("n1") is None


def test_the_branch_is_looked_up_where_the_node_names_none() -> None:
    hub, _ = make(branch_of=lambda region, hostname: f"{region}/{hostname}")
    Agent(hub, node={"node_id": "n1", "hostname": "h"}).connect()
    assert hub.nodes()[0].branch == "north/h"


def test_orders_go_out_one_frame_a_node_and_come_back_one_result_each() -> None:
    hub, _ = make()
    one, two = Agent(hub, "n1").connect(), Agent(hub, "n2").connect()
    orders = [cap(two, "l2", 300.0), cap(one, "l1"), CapOrder("l3", "event", "n1", one.uuids[1], 400.0, None, "event")]
    future = hub.order_caps(orders, [Release("n2", "old")])
    assert len(one.sent) == len(two.sent) == 1 and not future.done()
    frame = one.sent[0]
    assert frame["type"] == "orders" and frame["epoch"] == 5 and frame["release"] == []
    assert [(c["lease_id"], c["ttl_s"], c["limit_w"]) for c in frame["set"]] == [("l1", 60.0, 350.0), ("l3", None, 400.0)]
    one.answer(frame)
    assert not future.done()
    two.answer(two.sent[0])
    results = future.result(0)
    assert [(r.node_id, r.lease_id, r.ok, r.enforced_w) for r in results] == [
        ("n2", "l2", True, 300.0),
        ("n1", "l1", True, 350.0),
        ("n1", "l3", True, 400.0),
        ("n2", "old", True, None),
    ]


def test_what_a_node_refuses_is_told() -> None:
    hub, _ = make()
    agent = Agent(hub).connect()
    future = hub.order_caps([cap(agent)])
    agent.answer(agent.sent[0], ok=False, enforced_w=None, error="no right to set limits")
    assert future.result(0) == [CapResult("n1", "l1", False, None, 0.02, "no right to set limits")]


def test_an_answer_that_says_nothing_is_no_success() -> None:
    hub, _ = make()
    agent = Agent(hub).connect()
    future = hub.order_caps([cap(agent)])
    agent.say({"type": "results", "order": agent.sent[0]["order"]})
    assert "said nothing of this lease" in str(future.result(0)[0].error)


def test_an_order_that_an_agent_makes_nothing_of_fails_at_once() -> None:
    hub, _ = make()
    one, two = Agent(hub, "n1").connect(), Agent(hub, "n2").connect()
    future = hub.order_caps([cap(one, "l1"), cap(two, "l2")])
    one.say({"type": "error", "message": "orders.set[0].limit_w: must be a number"})  # of no order that it names
    assert not future.done()
    one.say({"type": "error", "order": one.sent[0]["order"], "message": "orders.release: must be a list"})
    two.answer(two.sent[0])
    first, second = future.result(0)
    assert first.error == "its agent did not understand the order: orders.release: must be a list" and second.ok


def test_a_limit_that_lasts_longer_than_orders_may_is_ordered_as_long_as_they_may() -> None:
    hub, _ = make()
    agent = Agent(hub).connect()
    hub.order_caps([cap(agent)._replace(kind="event", ttl_s=5000 * 86400.0)])
    orders = messages.from_server(agent.sent[0])
    assert isinstance(orders, messages.Orders) and orders.wrong == ()
    assert orders.set[0].ttl_s == messages.MAX_TTL_S


def test_orders_to_nobody_fail_at_once() -> None:
    hub, _ = make()
    agent = Agent(hub).connect()
    hub.gone(agent)
    unknown = CapOrder("l9", "economic", "n9", "GPU-9", 300.0, 60.0, "")
    results = hub.order_caps([cap(agent), unknown]).result(0)
    assert [r.error for r in results] == ["its agent is not connected", "no agent of it is known"]
    assert hub.order_caps([]).result(0) == []


def test_an_order_without_an_answer_is_unknown_not_done() -> None:
    hub, time = make()
    one, two = Agent(hub, "n1").connect(), Agent(hub, "n2").connect()
    future = hub.order_caps([cap(one, "l1"), cap(two, "l2")])
    one.answer(one.sent[0])
    hub.sweep()
    assert not future.done()
    time.s = 10.0
    hub.sweep()
    first, second = future.result(0)
    assert first.ok and not second.ok and "not known whether it was done" in str(second.error)
    two.answer(two.sent[0])  # too late: nobody waits, nothing breaks


def test_a_connection_that_is_lost_ends_what_waits_for_it() -> None:
    hub, _ = make()
    agent = Agent(hub).connect()
    future = hub.order_caps([cap(agent)])
    hub.gone(agent)
    assert "connection was lost" in str(future.result(0)[0].error)


def test_a_node_that_connects_again_replaces_its_old_connection() -> None:
    hub, _ = make()
    old = Agent(hub).connect()
    future = hub.order_caps([cap(old)])
    new = Agent(hub).connect()
    assert old.closed is not None and "connected anew" in str(future.result(0)[0].error)
    hub.gone(old)  # the old one's end comes late, and takes nothing from the new one
    assert hub.nodes()[0].connected
    assert old.say({"type": "live", "gpus": []}) == {"type": "error", "message": "the first frame must be hello"}
    hub.order_caps([cap(new)])
    assert len(new.sent) == 1 and len(old.sent) == 1


def test_a_node_is_of_the_region_that_it_first_said_hello_from() -> None:
    hub, time = make()
    north = Agent(hub).connect()
    hub.gone(north)
    time.s = 600.0  # silent for long: no reason to give it to another
    thief = Agent(hub, region="south")
    assert thief.say(thief.hello) is None
    assert thief.closed is not None and "is of region north" in thief.closed
    assert "a node has one region" in thief.sent[0]["message"]
    assert [(node.region, node.connected) for node in hub.nodes()] == [("north", False)]
    assert thief.say({"type": "live", "gpus": []}) == {"type": "error", "message": "the first frame must be hello"}
    claims = [(region, said) for key, region, said in hub.alarms() if key == "claim south n1"]
    assert claims == [
        (
            "north",
            "an agent of host-n1 in south says that it is node n1, which is north's: it was refused; two agents need two ids "
            "(gridshift agent --node-id)",
        )
    ]
    time.s = 901.0
    assert [key for key, _, _ in hub.alarms()] == ["silent n1"]
    time.s = 3601.0
    hub.sweep()
    assert Agent(hub, region="south").connect().closed is None, "a node that is forgotten may come back anywhere"


def test_a_regions_own_token_outweighs_one_that_opens_all() -> None:
    hub, _ = make()
    first = Agent(hub).connect()
    hello = json.dumps(first.hello)
    own, other = Agent(hub, region="south"), Agent(hub, region="west")
    assert hub.receive(own, "south", hello, proven=True) is None
    assert first.closed is not None and [node.region for node in hub.nodes()] == ["south"]
    hub.receive(other, "west", hello, proven=True)
    assert other.closed is not None and [node.region for node in hub.nodes()] == ["south"]


def test_which_region_a_node_is_of_outlasts_a_restart() -> None:
    hub, time = make()
    hub.remember([Former("n1", "north", START - timedelta(minutes=50)), Former("n2", "north", START - timedelta(minutes=70))])
    for proven in (False, True):
        thief = Agent(hub, region="south")
        hub.receive(thief, "south", json.dumps(thief.hello), proven=proven)
        assert thief.closed is not None and hub.nodes() == []
    Agent(hub, "n2", region="south").connect()
    time.s = 601.0
    Agent(hub, region="south").connect()
    assert [node.region for node in hub.nodes()] == ["south", "south"]


def test_who_was_there_before_a_restart_and_is_not_heard_again_is_an_alarm() -> None:
    hub, time = make()
    seen = START - timedelta(minutes=2)
    hub.remember(
        [
            Former("lost", "north", seen, "host-9", ("GPU-lost",)),
            Former("without", "north", seen, "host-8"),
            Former("renamed", "north", seen, "host-7", tuple(gpu["uuid"] for gpu in Agent(hub).hello["gpus"])),
        ]
    )
    time.s = MISSED_S - 1.0
    assert hub.alarms() == []
    Agent(hub).connect().live()  # the same machine under another id
    time.s = MISSED_S
    told = {key: sentence for key, _, sentence in hub.alarms() if key.startswith("silent")}
    assert list(told) == ["silent lost"]
    assert "host-9 in north was there until 2026-03-01 11:58:00 UTC" in told["silent lost"]
    Agent(hub, "lost").connect()
    assert not [key for key, _, _ in hub.alarms() if key == "silent lost"]


def test_claims_that_are_told_of_are_bounded() -> None:
    hub, _ = make()
    for number in range(MOST_CLAIMS + 20):
        Agent(hub, f"n{number}").connect()
        thief = Agent(hub, f"n{number}", region="south")
        thief.say(thief.hello)
    assert len([key for key, _, _ in hub.alarms() if key.startswith("claim")]) == MOST_CLAIMS


def test_frames_that_mean_nothing_are_answered_and_change_nothing() -> None:
    hub, _ = make()
    agent = Agent(hub)
    assert agent.say({"type": "live", "gpus": []}) == {"type": "error", "message": "the first frame must be hello"}
    agent.connect().live()
    for frame in (
        {"type": "dance"},
        {"type": "live", "gpus": [{"uuid": 3}]},
        {"type": "results"},
        {"type": "energy", "rows": 3},
    ):
        reply = agent.say(frame)
        assert reply is not None and reply["type"] == "error" and reply["message"]
    for text in ("no json", b"\x00", "[]"):
        assert json.loads(str(hub.receive(agent, "north", text)))["type"] == "error"
    assert hub.nodes()[0].gpus[0].power_w == 400.0


def test_energy_is_acknowledged_once_it_is_stored_and_not_before() -> None:
    hub, _ = make()
    taken: list[Sequence[Mapping[str, Any]]] = []
    future: Future[None] = Future()

    def take(rows: Sequence[Mapping[str, Any]]) -> "Future[None]":
        taken.append(rows)
        return future

    row = {"start": 60, "end": 120, "uuid": "GPU-n1-0", "job_id": "j", "line": "job", "energy_wh": 2.0, "seconds": 60}
    frame = {"type": "energy", "batch": 8, "rows": [{**row, "quality": "measured"}]}
    agent = Agent(hub).connect()
    assert agent.say(frame) is None and agent.sent == []  # nobody stores yet, so the agent keeps them
    hub.on_energy = take
    assert agent.say(frame) is None and agent.sent == []
    assert taken[0][0]["node_id"] == "n1" and taken[0][0]["region"] == "north" and taken[0][0]["simulated"] is True
    future.set_result(None)
    assert agent.sent == [{"type": "energy_ack", "batch": 8}]


def test_energy_from_the_future_stays_with_its_agent_and_its_clock_is_an_alarm() -> None:
    hub, time = make()
    futures: list[Future[Taken]] = [Future(), Future()]
    waiting = iter(futures)
    hub.on_energy = lambda rows: next(waiting)
    row = {"start": 60, "end": 120, "uuid": "GPU-n1-0", "job_id": "j", "line": "job", "energy_wh": 2.0, "seconds": 60}
    agent = Agent(hub).connect()
    agent.say({"type": "energy", "batch": 8, "rows": [{**row, "quality": "measured"}]})
    futures[0].set_result(Taken(0, 0, early=1, ahead_s=3600.0))
    assert agent.sent == []
    ((key, region, sentence),) = hub.alarms()
    assert (key, region) == ("clock n1", "north") and "the clock of host-n1 (node n1) is ahead" in sentence
    agent.say({"type": "energy", "batch": 8, "rows": [{**row, "quality": "measured"}]})
    futures[1].set_result(Taken(1, 0))
    assert agent.sent == [{"type": "energy_ack", "batch": 8}]
    time.s = 301.0
    agent.live()
    assert hub.alarms() == []


def test_a_row_is_of_the_node_that_made_it_whatever_that_is_called_now() -> None:
    hub, _ = make()
    taken: list[str] = []

    def take(rows: Sequence[Mapping[str, Any]]) -> "Future[None]":
        taken.extend(row["node_id"] for row in rows)
        return Future()

    hub.on_energy = take
    Agent(hub, "south-1", region="south").connect()
    agent = Agent(hub, "n2").connect()
    row = {"start": 60, "end": 120, "uuid": "GPU-n1-0", "job_id": "j", "line": "job", "energy_wh": 2.0, "seconds": 60}
    made_by: list[dict[str, Any]] = [{"node_id": "n1"}, {"node_id": None}, {}, {"node_id": "south-1"}]
    agent.say({"type": "energy", "batch": 8, "rows": [{**row, "quality": "measured", **one} for one in made_by]})
    assert taken == ["n1", "n2", "n2", "n2"], "another region's node is not to be spoken for"


def test_energy_that_could_not_be_stored_is_not_acknowledged() -> None:
    hub, _ = make()
    future: Future[None] = Future()
    hub.on_energy = lambda rows: future
    agent = Agent(hub).connect()
    agent.say({"type": "energy", "batch": 8, "rows": []})
    future.set_exception(OSError("disk full"))
    assert agent.sent == []


def test_a_freeze_goes_to_every_node_of_the_region() -> None:
    hub, _ = make()
    north, south = Agent(hub, "n1").connect(), Agent(hub, "n2", "south").connect()
    future = hub.freeze("j1", ttl_s=30.0, freeze_max_s=60.0, region="north")
    assert south.sent == [] and north.sent[0]["job_id"] == "j1" and north.sent[0]["ttl_s"] == 30.0
    north.say({"type": "results", "order": north.sent[0]["order"], "results": [{"ok": True, "processes": 3}]})
    (result,) = future.result(0)
    assert (result.node_id, result.ok, result.processes) == ("n1", True, 3)
    everywhere = hub.thaw("j1")
    assert [agent.sent[-1]["type"] for agent in (north, south)] == ["thaw", "thaw"] and not everywhere.done()


def test_leases_are_known_from_hello_and_kept_up_by_live() -> None:
    hub, time = make()
    lease = {"lease_id": "a", "kind": "event", "uuid": "GPU-n1-0", "limit_w": 300.0, "ends_in_s": 90.0, "epoch": 4}
    agent = Agent(hub, leases=[lease]).connect()
    (held,) = hub.nodes()[0].leases
    assert (held.lease_id, held.kind, held.limit_w, held.epoch) == ("a", "event", 300.0, 4)
    assert held.ends_at == START + timedelta(seconds=90)
    time.s = 5.0
    agent.live()
    assert hub.nodes()[0].leases == (held,)
    agent.say({"type": "live", "gpus": [], "leases": [{**lease, "ends_in_s": None}]})
    assert hub.nodes()[0].leases[0].ends_at is None


def test_a_node_that_obeyed_a_newer_control_plane_is_an_alarm() -> None:
    seen: list[int] = []
    hub, _ = make(on_epoch=seen.append)
    Agent(hub, epoch=5).connect()
    assert seen == [] and hub.alarms() == []
    Agent(hub, "n2", epoch=9).connect()
    assert seen == [9] and "epoch 9, ours is 5" in hub.alarms()[0][2]


def test_many_nodes_are_ordered_at_once_without_a_thread_each() -> None:
    hub, _ = make()
    agents = [Agent(hub, f"n{i:04}", gpus=8).connect() for i in range(1250)]
    before = threading.active_count()
    future = hub.order_caps([cap(agent, f"l-{agent.node_id}") for agent in agents])
    assert threading.active_count() == before
    assert all(len(agent.sent) == 1 for agent in agents)
    for agent in agents:
        agent.answer(agent.sent[0])
    assert all(result.ok for result in future.result(0)) and len(hub.nodes()) == 1250


def test_orders_and_answers_may_come_from_many_threads() -> None:
    hub, _ = make()
    agents = [Agent(hub, f"n{i}").connect() for i in range(8)]
    futures: list[Future[list[CapResult]]] = []

    def run(calls: Sequence[Callable[[], object]]) -> None:
        threads = [threading.Thread(target=call) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)

    run([lambda i=i: futures.append(hub.order_caps([cap(a, f"{i}") for a in agents])) for i in range(8)])  # type: ignore[misc]
    run([lambda a=a: [a.answer(frame) for frame in list(a.sent)] for a in agents])  # type: ignore[misc]
    assert len(futures) == 8 and all(result.ok for future in futures for result in future.result(5))


def test_numbers_that_no_float_holds_are_unknown_and_cost_nobody_else_its_figures() -> None:
    hub, _ = make()
    agent, other = Agent(hub).connect(), Agent(hub, "n2").connect()
    other.live(300.0)
    for number in ("1" + "0" * 400, "1e999", "-1e999", "1e300"):
        cap = f'{{"state": "enforced", "wanted_w": {number}, "limit_w": {number}, "since": {number}}}'
        text = f'{{"type": "live", "gpus": [{{"uuid": "{agent.uuids[0]}", "power_w": 1.0, "cap": {cap}}}]}}'
        assert hub.receive(agent, "north", text) is None
        first, second = hub.nodes()
        assert (first.gpus[0].cap.wanted_w, first.gpus[0].cap.since, second.gpus[0].power_w) == (None, None, 300.0)


def test_a_draw_below_nothing_is_unknown() -> None:
    hub, _ = make()
    Agent(hub).connect().live(-1e8)
    assert hub.nodes()[0].gpus[0].power_w is None


def test_text_that_no_database_can_hold_is_refused() -> None:
    hub, _ = make()
    agent = Agent(hub)
    for hostname in ("half \ud800", "nul \0"):
        node = {**agent.hello["node"], "hostname": hostname}
        reply = agent.say({**agent.hello, "node": node})
        assert reply is not None and "NUL or half a character" in reply["message"]
    agent.hello["node"]["hostname"] = "größer \\u0000"  # written with a backslash, it is text like any other
    agent.connect()
    nested = '{"type": "live", "x": ' + "[" * 800 + '"\\u00fc"' + "]" * 800 + "}"
    assert hub.receive(agent, "north", nested) in (None, hub.receive(agent, "north", nested))
    assert [node.hostname for node in hub.nodes()] == ["größer \\u0000"]


def test_a_connection_speaks_for_one_node() -> None:
    hub, time = make()
    agent = Agent(hub).connect()
    reply = agent.say({**agent.hello, "node": {**agent.hello["node"], "node_id": "n2"}})
    assert reply is not None and "this connection is node 'n1''s" in reply["message"]
    assert agent.say(agent.hello) is None  # it may say anew what it has
    hub.gone(agent)
    time.s = 4000.0
    hub.sweep()
    assert hub.nodes() == []


def test_the_highest_epoch_is_kept_and_none_that_is_made_up() -> None:
    seen: list[int] = []
    hub, _ = make(on_epoch=seen.append)
    for at, epoch in enumerate((10, 7, 1 << 62, 12)):
        Agent(hub, f"n{at}", epoch=epoch).connect()
    assert seen == [10, 12]


def twin(hub: Hub, hostname: str = "host-other", boot_id: str | None = "boot-2") -> Agent:
    agent = Agent(hub)
    agent.hello["node"] |= {"hostname": hostname, "boot_id": boot_id}
    return agent


def test_two_machines_with_one_id_are_an_alarm_and_the_first_stays() -> None:
    hub, time = make()
    first = Agent(hub)
    first.hello["node"]["boot_id"] = "boot-1"
    first.connect().live(300.0)
    for _ in range(20):
        second = twin(hub)
        assert second.say(second.hello) is None and second.closed is not None and "each machine needs its own" in second.closed
        assert first.closed is None and hub.nodes()[0].gpus[0].power_w == 300.0
    ((key, region, sentence),) = hub.alarms()
    assert (key, region) == ("claim north n1", "north")
    assert "host-n1 (boot boot-1) and host-other (boot boot-2) both say that they are node n1" in sentence
    time.s = 10.5
    assert twin(hub).connect().closed is None, "the first is silent"
    assert hub.nodes()[0].hostname == "host-other"
    back = Agent(hub)
    back.hello["node"]["boot_id"] = "boot-1"
    back.say(back.hello)
    assert back.closed is not None


def test_an_agent_that_starts_anew_on_its_machine_is_no_other_machine() -> None:
    hub, _ = make()
    first = Agent(hub)
    first.hello["node"]["boot_id"] = "boot-1"
    first.connect()
    assert twin(hub, "host-n1", "boot-1").connect().closed is None and first.closed is not None
    assert twin(hub, "host-n1", None).connect().closed is None


def test_orders_say_who_we_are_what_our_clock_says_and_how_long_ago_the_node_was_heard() -> None:
    hub, time = make()
    agent = Agent(hub, boot_s=1000.0).connect()
    time.s = 3.0
    hub.order_caps([cap(agent)])
    hub.thaw("j1")
    for frame in agent.sent:
        assert (frame["epoch"], frame["plane"], frame["at"]) == (5, hub.plane, START.timestamp() + 3.0)
        assert (frame["heard_boot_s"], frame["heard_ago_s"]) == (1000.0, 3.0)
    assert agent.say({"type": "live", "at": 0.0, "boot_s": 1004.5, "gpus": []}) is None
    hub.freeze("j1", ttl_s=30.0, freeze_max_s=60.0)
    assert (agent.sent[-1]["heard_boot_s"], agent.sent[-1]["heard_ago_s"]) == (1004.5, 0.0)
    assert Hub(epoch=5).plane != Hub(epoch=5).plane


def test_a_node_that_obeyed_another_control_plane_of_our_epoch_is_an_alarm() -> None:
    hub, _ = make()
    Agent(hub, epoch=5, plane=hub.plane).connect()
    Agent(hub, "n2", epoch=4, plane="b").connect()
    assert hub.alarms() == []
    Agent(hub, "n3", epoch=5, plane="b").connect()
    ((key, _, sentence),) = hub.alarms()
    assert key == "epoch north" and "another control plane of our own epoch 5" in sentence


@pytest.mark.parametrize("reads_w", [1e6, 20_001.0, 1401.0, -1.0])
def test_power_that_no_gpu_draws_is_unknown(reads_w: float) -> None:
    hub, _ = make()
    agent = Agent(hub).connect()
    for _ in range(3):
        agent.live(reads_w)
        assert hub.nodes()[0].gpus[0].power_w is None
    agent.live(690.0)
    agent.live(690.0, limit_w=300.0)
    assert hub.nodes()[0].gpus[0].power_w == 690.0, "the draw comes down after its limit does"
    agent.live(1e6, limit_w=None)
    assert hub.nodes()[0].gpus[0].power_w is None


@pytest.mark.parametrize(("clock_s", "said"), [(40.0, "is 40 s ahead"), (-40.0, "is 40 s behind"), (-4.0, None)])
def test_a_nodes_clock_that_differs_is_an_alarm(clock_s: float, said: str | None) -> None:
    hub, _ = make()
    agent = Agent(hub).connect()
    agent.clock_s = clock_s
    for _ in range(3):
        assert hub.alarms() == [], "one frame may have been late"
        agent.live()
    assert hub.doubting() == ({"n1"} if said else set())
    found = hub.alarms()
    assert [key for key, _, _ in found] == (["clock n1"] if said else [])
    assert said is None or f"the clock of host-n1 (node n1) {said}" in found[0][2]
    agent.clock_s = 0.0
    for _ in range(3):
        agent.live()
    assert hub.alarms() == []


def test_frames_that_come_late_are_no_clock_that_is_behind() -> None:
    hub, _ = make()
    agent = Agent(hub).connect()
    for clock_s in (-30.0, -20.0, 0.0, -30.0, -20.0, 0.0, -9.0):
        agent.clock_s = clock_s
        agent.live()
    assert hub.alarms() == []


def test_where_the_clocks_of_most_nodes_differ_it_is_ours_that_is_wrong() -> None:
    hub, _ = make()
    agents = [Agent(hub, f"n{at}").connect() for at in range(4)]
    for agent in agents:
        agent.clock_s = -3600.0
    agents[3].clock_s = 0.0
    for agent in agents * 3:
        agent.live()
    assert [(key, region) for key, region, _ in hub.alarms()] == [("clock", None), ("clock n3", "north")]
    assert "our clock is 3600 s ahead of those of most nodes" in hub.alarms()[0][2]
    assert hub.doubting() == {"n0", "n1", "n2"}
    for agent in agents:
        agent.clock_s = 0.0
    agents[0].clock_s = -3600.0
    for agent in agents * 3:
        agent.live()
    assert [key for key, _, _ in hub.alarms()] == ["clock n0"] and hub.doubting() == set(), "most say that ours is right"
