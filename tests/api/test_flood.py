"""Agents that send too much: what they are allowed, and that they slow nobody else."""

import contextlib
import json
import time

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from dispatcher.agent.channel import channel_url
from dispatcher.agent.messages import MAX_FRAME_BYTES, MAX_ROWS
from dispatcher.api.flood import Allowance, Bucket
from tests.agent.test_channel import hello
from tests.api.fake import FakeServices, Server
from tests.helpers import wait_until


def test_a_bucket_fills_up_and_no_further() -> None:
    bucket = Bucket(per_s=2.0, most=4.0, left=4.0, at_s=10.0)
    assert [bucket.take(2.0, 10.0) for _ in range(3)] == [True, True, False]
    assert bucket.take(2.0, 11.0) and not bucket.take(1.0, 11.0)
    assert bucket.take(4.0, 99.0) and not bucket.take(0.5, 99.0)
    assert not bucket.take(0.5, 98.0), "a clock that goes back gives nothing"


def test_what_an_agent_says_in_earnest_is_never_too_much() -> None:
    allowance = Allowance(MAX_FRAME_BYTES, 0.0)
    for second in range(3600):  # figures, a batch of rows, answers to an order of a large node
        assert [allowance.excess(size, float(second)) for size in (150_000, 200_000, 300_000)] == [None] * 3


def test_each_bound_has_its_sentence() -> None:
    allowance = Allowance(1000, 0.0)
    assert allowance.excess(1001, 0.0) == "a frame has 1001 characters; 1000 are allowed"
    said = [allowance.excess(10, 0.0) for _ in range(101)]
    assert said[:100] == [None] * 100 and said[100] == "too many frames; 20 a second are allowed"
    large = Allowance(MAX_FRAME_BYTES, 0.0)
    assert [large.excess(MAX_FRAME_BYTES, 0.0) for _ in range(5)][4] == "too many bytes; 1048576 a second are allowed"


def test_answers_to_orders_are_paid_for_by_the_orders_and_nothing_else_is() -> None:
    allowance = Allowance(MAX_FRAME_BYTES, 0.0)
    for _ in range(500):
        allowance.ordered(200)
    said = [allowance.excess(2000, 0.0) for _ in range(601)]
    assert said[:600] == [None] * 600 and said[600] == "too many frames; 20 a second are allowed"
    assert allowance.excess(2000, 0.0) is not None, "an order is paid for once"
    for _ in range(100_000):  # to an agent that answers none
        allowance.ordered(200)
    assert [allowance.excess(10, 0.0) for _ in range(10_001)][-1] is not None


def test_an_agent_that_answers_a_thousand_orders_at_once_is_not_cut_off(services: FakeServices, server: Server) -> None:
    with connect(channel_url(server.url, "north"), proxy=None) as raw:
        raw.send(json.dumps(hello("n1")))
        wait_until(lambda: services.hub.nodes(), 10, "the node")
        asked = [services.hub.thaw(f"job-{number}") for number in range(1200)]  # all frozen jobs are woken when an event ends
        orders = [json.loads(raw.recv(10)) for _ in asked]
        for order in orders:
            raw.send(json.dumps({"type": "results", "order": order["order"], "results": [{"ok": True, "processes": 1}]}))
        assert all(future.result(10)[0].ok for future in asked)
        assert services.hub.nodes()[0].connected
        assert "too many frames" in flood(raw, json.dumps({"type": "live", "gpus": []}))


def flood(raw: ClientConnection, text: str) -> str:
    """Send a frame again and again; returns why the connection is closed."""
    with contextlib.suppress(ConnectionClosed):
        for _ in range(2000):
            raw.send(text)
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            raw.recv(10)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (json.dumps({"type": "live", "gpus": []}), "too many frames"),
        ("what", "too many frames"),
        ("[" * 600_000, "too many bytes"),
        ("x" * (MAX_FRAME_BYTES + 1), f"{MAX_FRAME_BYTES} are allowed"),
    ],
)
def test_a_flood_is_cut_off_and_others_are_not_slowed(services: FakeServices, server: Server, text: str, reason: str) -> None:
    url = channel_url(server.url, "north")
    with connect(url, proxy=None) as quiet, connect(url, proxy=None) as hostile:
        quiet.send(json.dumps(hello("quiet")))
        hostile.send(json.dumps(hello("hostile")))
        wait_until(lambda: len(services.hub.nodes()) == 2, 10, "both")
        assert reason in flood(hostile, text)
        began = time.monotonic()
        quiet.send(json.dumps({"type": "live", "gpus": [{"uuid": "GPU-1", "power_w": 77.0}]}))
        wait_until(lambda: [n.gpus[0].power_w for n in services.hub.nodes() if n.node_id == "quiet"] == [77.0], 5, "figures")
        assert time.monotonic() - began < 1.0
        wait_until(lambda: {n.node_id: n.connected for n in services.hub.nodes()} == {"quiet": True, "hostile": False}, 10)


def test_too_many_rows_in_a_frame_are_refused(services: FakeServices, server: Server) -> None:
    row = {"start": 60, "end": 120, "uuid": "G", "line": "idle", "energy_wh": 1.0, "seconds": 60, "quality": "measured"}
    with connect(channel_url(server.url, "north"), proxy=None) as raw:
        raw.send(json.dumps(hello()))
        raw.send(json.dumps({"type": "energy", "batch": 1, "rows": [row] * (MAX_ROWS + 1)}))
        assert f"must be a list of at most {MAX_ROWS}" in json.loads(raw.recv(5))["message"]
