"""The connection between agents and the control plane, over real websockets."""

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from dispatcher.agent import channel, plain_socket
from dispatcher.agent.channel import Channel, channel_url
from dispatcher.agent.messages import FromServer, Orders
from dispatcher.api.auth import hash_token, new_token
from dispatcher.power.hub import CapOrder
from dispatcher.store import Token
from tests.api.fake import FakeServices, Server
from tests.helpers import free_port, wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True, params=["library", "standard library alone"])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything here holds for both clients: the library's, and the one for Pythons that are too old for it."""
    if request.param != "library":
        for name in ("ClientConnection", "InvalidStatus", "WebSocketException", "connect"):
            monkeypatch.setattr(channel, name, getattr(plain_socket, name))


def hello(node_id: str = "n1") -> dict[str, Any]:
    node = {"node_id": node_id, "hostname": "h", "region": "north", "branch": None, "simulated": True}
    gpu = {"uuid": "GPU-1", "index": 0, "name": "Card", "default_w": 700.0}
    return {"type": "hello", "protocol": 1, "node": node, "can_cap": True, "why_not": "", "gpus": [gpu], "epoch": 0}


class Node:
    """An agent without GPUs: it answers every order as done."""

    def __init__(self, url: str, token: str | None = None, region: str = "north", node_id: str = "n1") -> None:
        self.got: list[FromServer] = []
        self.opened = threading.Event()
        self.channel = Channel(
            url,
            region,
            token,
            hello=lambda: hello(node_id),
            on_frame=self.take,
            on_open=self.opened.set,
            first_wait_s=0.05,
            longest_wait_s=0.2,
        )

    def take(self, frame: FromServer) -> dict[str, Any] | None:
        self.got.append(frame)
        if not isinstance(frame, Orders):
            return None
        if frame.set and frame.set[0].reason == "break":
            raise RuntimeError("the card caught fire")
        results = [{"lease_id": cap.lease_id, "ok": True, "enforced_w": cap.limit_w, "took_s": 0.01} for cap in frame.set]
        return {"type": "results", "order": frame.order, "results": results}

    def __enter__(self) -> "Node":
        self.channel.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.stop()


def order(reason: str = "night", node_id: str = "n1") -> CapOrder:
    return CapOrder("l1", "economic", node_id, "GPU-1", 350.0, 60.0, reason)


@pytest.mark.parametrize(
    ("server", "url"),
    [
        ("http://cp:8700", "ws://cp:8700/v1/agents/channel?region=north%20%26"),
        ("https://cp/base/", "wss://cp/base/v1/agents/channel?region=north%20%26"),
        ("cp:8700", "ws://cp:8700/v1/agents/channel?region=north%20%26"),
    ],
)
def test_the_address_of_the_channel(server: str, url: str) -> None:
    assert channel_url(server, "north &") == url


@pytest.mark.parametrize("server", ["ftp://cp", "http://", ""])
def test_an_address_that_is_none_is_refused(server: str) -> None:
    with pytest.raises(ValueError, match="address of the control plane"):
        channel_url(server, "north")


def test_orders_go_out_and_results_come_back(services: FakeServices, server: Server) -> None:
    with Node(server.url) as node:
        wait_until(lambda: services.hub.nodes(), 10, "hello")
        (result,) = services.hub.order_caps([order()]).result(10)
        assert (result.ok, result.enforced_w) == (True, 350.0)
        assert node.channel.connected and node.channel.trouble is None
        assert node.channel.send({"type": "live", "gpus": [{"uuid": "GPU-1", "power_w": 123.0}]})
        wait_until(lambda: services.hub.nodes()[0].gpus[0].power_w == 123.0, 10, "figures")
    wait_until(lambda: not services.hub.nodes()[0].connected, 10, "the goodbye")
    assert not node.channel.connected and not node.channel.send({"type": "live", "gpus": []})


def test_an_order_that_breaks_the_agent_is_answered_and_the_next_is_heard(services: FakeServices, server: Server) -> None:
    with Node(server.url) as node:
        wait_until(lambda: services.hub.nodes(), 10, "hello")
        broken = services.hub.order_caps([order("break")])
        assert services.hub.order_caps([order()]).result(10)[0].ok
        (undone,) = broken.result(5)
        assert not undone.ok and "its agent did not understand the order" in str(undone.error)
        assert len(node.got) == 2, "what an agent says of our frames is not answered"


def test_frames_that_mean_nothing_are_answered_and_the_connection_stays(services: FakeServices, server: Server) -> None:
    with connect(channel_url(server.url, "north"), proxy=None) as raw:
        for text in ("what", '{"type":"live","gpus":[]}', b"\x00\x01", '{"type":"hello"}'):
            raw.send(text)
            assert json.loads(raw.recv(5))["type"] == "error"
        raw.send(json.dumps(hello()))
        wait_until(lambda: services.hub.nodes(), 10, "hello")


def test_a_frame_that_is_too_long_ends_the_connection_and_nothing_else(services: FakeServices, tmp_path: Path) -> None:
    with Server(services) as server, Node(server.url) as node:
        wait_until(lambda: services.hub.nodes(), 10, "hello")
        with connect(channel_url(server.url, "north"), proxy=None) as raw:
            raw.send("x" * ((1 << 20) + 1))
            reply = json.loads(raw.recv(5))  # this server's own limit is higher; the control plane's is the same as ours
            assert "allowed" in reply["message"]
        assert services.hub.order_caps([order()]).result(10)[0].ok and node.channel.connected


def test_it_connects_again_when_the_control_plane_comes_back(tmp_path: Path) -> None:
    port = free_port()
    with Node(f"http://127.0.0.1:{port}") as node:
        wait_until(lambda: "refused" in str(node.channel.trouble).lower(), 10, "a refusal")
        for name in ("first", "second"):
            services = FakeServices(tmp_path / name)
            (tmp_path / name).mkdir(exist_ok=True)
            with Server(services, port):
                wait_until(lambda services=services: services.hub.nodes(), 10, f"the {name} control plane to see it")  # type: ignore[misc]
                assert services.hub.order_caps([order()]).result(10)[0].ok
            wait_until(lambda: not node.channel.connected, 10, "the end to be noticed")


def test_the_regions_own_token_opens_it_and_no_other_does(services: FakeServices, server: Server) -> None:
    api_token = new_token()
    services.store.add_token(Token("ops", hash_token(api_token), services.clock.now())).result()
    for token in (services.agent_token("north"), api_token):
        with Node(server.url, token) as node:
            assert node.opened.wait(10)
    for token, region, says in (
        (None, "north", "a token is needed"),
        ("wrong", "north", "not one of the region's agents"),
        (services.agent_token("south"), "north", "not one of the region's agents"),
        (services.agent_token("north"), "nowhere", "is not known here; known: north, south"),
    ):
        with Node(server.url, token, region) as node:
            wait_until(lambda node=node, says=says: says in str(node.channel.trouble), 10, says)  # type: ignore[misc]
            assert not node.opened.is_set()
    assert (
        server.call("GET", "/v1/jobs", headers={"Authorization": f"Bearer {services.agent_token('north')}"}).status_code == 401
    )


def test_a_web_page_cannot_open_it(server: Server) -> None:
    with pytest.raises(InvalidStatus) as caught:
        connect(channel_url(server.url, "north"), proxy=None, origin="http://evil.example")  # type: ignore[arg-type]
    assert caught.value.response.status_code == 403


def test_nor_with_a_token_from_a_cookie(services: FakeServices, server: Server) -> None:
    cookie = {"Cookie": f"ray-authentication-token={services.agent_token('north')}"}
    url = channel_url(server.url, "north")
    with pytest.raises(InvalidStatus) as caught:
        connect(url, proxy=None, origin="http://evil.example", additional_headers=cookie)  # type: ignore[arg-type]
    assert caught.value.response.status_code == 403


AGENT = """
import sys
from tests.agent.test_channel import Node
with Node(sys.argv[1], node_id="other-process"):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_an_agent_in_a_process_of_its_own(services: FakeServices, server: Server) -> None:
    command = [sys.executable, "-c", AGENT, server.url]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        wait_until(lambda: services.hub.node("other-process"), 20, "hello of the other process")
        assert services.hub.order_caps([order(node_id="other-process")]).result(10)[0].ok
        process.kill()
        process.wait(10)
    wait_until(lambda: not services.hub.nodes()[0].connected, 10, "its end to be seen")
    assert "not connected" in str(services.hub.order_caps([order(node_id="other-process")]).result(1)[0].error)


def test_long_frames_of_both_sizes_pass_both_ways(services: FakeServices, server: Server) -> None:
    with Node(server.url) as node:
        wait_until(lambda: services.hub.nodes(), 10, "hello")
        for size in (100, 1000, 100_000):
            alarm = {"key": "k", "sentence": "x" * 1000}
            live = {"type": "live", "gpus": [{"uuid": "GPU-1", "power_w": size / 1000}], "alarms": [alarm] * (size // 1000)}
            assert node.channel.send(live)
            wait_until(lambda size=size: services.hub.nodes()[0].gpus[0].power_w == size / 1000, 10, f"{size} bytes")  # type: ignore[misc]
            orders = [CapOrder(f"l{i}", "economic", "n1", "GPU-1", 350.0, 60.0, "y" * 500) for i in range(size // 500)]
            assert all(result.ok for result in services.hub.order_caps(orders).result(10))


def test_silence_is_answered_with_a_ping_and_then_given_up() -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(0.05)
    with plain_socket.ClientConnection(ours, b"", 1000) as connection:
        with pytest.raises(plain_socket.WebSocketException, match="no answer to a ping"):
            list(connection)
        assert theirs.recv(100)[0] == 0x89
    theirs.close()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x81\x7e\x10\x00", "longer than 1000"),
        (b"\x81\x80\x00\x00\x00\x00", "not agreed"),
        (b"\x80\x01x", "mixes up"),
        (b"\x83\x00", "unknown kind 3"),
        (b"", "closed the connection"),
    ],
)
def test_what_breaks_the_protocol_ends_the_connection(data: bytes, says: str) -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(data)
    theirs.shutdown(socket.SHUT_WR)
    with (
        plain_socket.ClientConnection(ours, b"", 1000) as connection,
        pytest.raises(plain_socket.WebSocketException, match=says),
    ):
        list(connection)
    theirs.close()


def test_parts_of_a_message_are_put_together_and_pings_answered() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(b"\x01\x02he" + b"\x89\x01p" + b"\x80\x03llo" + b"\x82\x01b" + b"\x88\x02\x03\xe8")
    with plain_socket.ClientConnection(ours, b"", 1000) as connection:
        assert list(connection) == ["hello", b"b"]
        pong = theirs.recv(100)
        assert pong[0] == 0x8A and plain_socket.masked(pong[6:], pong[2:6]) == b"p"
    theirs.close()
