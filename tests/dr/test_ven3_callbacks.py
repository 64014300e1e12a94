"""Registration, subscription and callbacks of the OpenADR 3 VEN: through the real API, with the VEN in its own thread."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from dispatcher.dr.ven3_state import VenState
from tests.api.fake import FakeServices, Server
from tests.dr.ven3_site import Site, site_fixture, soon, vtn_fixture
from tests.dr.vtn3 import Vtn, cap, stamp
from tests.helpers import free_port, wait_until

__all__ = ["site_fixture", "vtn_fixture"]


@pytest.fixture
def plane(vtn: Vtn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A control plane's API, whose VEN runs in its own thread and polls once an hour."""
    yield from _plane(vtn, tmp_path, monkeypatch)


def _plane(vtn: Vtn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("VEN_SECRET", vtn.secret)
    source = {"name": "utility", "protocol": "openadr-3.1" if vtn.version == "3.1" else "openadr-3.0", "region": "north"}
    source |= {"url": vtn.url, "client_id": "ven-1", "client_secret_env": "VEN_SECRET", "poll_every": "1h"}
    vtn.program()
    port = free_port()
    source["callback_url"] = f"http://127.0.0.1:{port}/v1/openadr3/callback"
    services = FakeServices(tmp_path, event_source=[source])
    with Server(services, port) as server:
        services.vens.start()
        wait_until(lambda: state_of(services).subscription == "there", 10, "the subscription")
        yield server
        services.vens.stop()


def state_of(services: FakeServices) -> VenState:
    return next(iter(services.vens)).state()


def held_kw(server: Server) -> list[float]:
    held = server.services.event_intake.held("utility").values()
    return sorted(s.limit_w / 1e3 for e in held if not e.cancelled for s in e.segments)


def test_it_registers_once_and_finds_itself_again(vtn: Vtn, site: Site) -> None:
    vtn.program()
    site.poll()
    ven_id = site.ven.state().ven_id
    assert ven_id in vtn.objects["vens"]
    site.start().poll()
    assert site.ven.state().ven_id == ven_id
    assert len(vtn.objects["vens"]) == 1


def test_a_callback_is_faster_than_the_poll(vtn: Vtn, plane: Server) -> None:
    program = next(iter(vtn.objects["programs"]))
    event = vtn.event(program, notify=True, **cap(40.0, soon(), 60))
    wait_until(lambda: held_kw(plane) == [40.0], 5, "the event")
    vtn.change(event, notify=True, **cap(30.0, soon(), 60))
    wait_until(lambda: held_kw(plane) == [30.0], 5, "its change")
    vtn.delete(event, notify=True)
    wait_until(lambda: held_kw(plane) == [], 5, "its release")
    assert vtn.called == [200, 200, 200]
    shown = requests.get(f"{plane.url}/v1/openadr3", timeout=5).json()["vens"][0]
    assert (shown["source"], shown["problem"], shown["subscription"]) == ("utility", None, "there")


def test_a_forged_release_lifts_nothing(vtn: Vtn, plane: Server) -> None:
    program = next(iter(vtn.objects["programs"]))
    event = vtn.event(program, notify=True, **cap(40.0, soon(), 60))
    wait_until(lambda: held_kw(plane) == [40.0], 5, "the event")
    item = vtn.objects["events"][event]
    vtn.notify("DELETE", item, token="guessed")
    assert vtn.called[-1] == 401
    asked = len(vtn.asked)
    vtn.notify("DELETE", item)  # with the right token, but not so
    vtn.notify("UPDATE", {**item, **cap(90.0, soon(), 60), "modificationDateTime": stamp(soon(0))})
    wait_until(lambda: sum("GET /events?" in line for line in vtn.asked[asked:]) >= 2, 5, "a look at the VTN")
    wait_until(lambda: not json.loads(plane.services.store.setting("openadr3.inbox.utility")), 5, "an empty inbox")
    assert held_kw(plane) == [40.0]


def test_while_the_vtn_cannot_be_asked_its_notices_take_away_and_never_give_back(vtn: Vtn, plane: Server) -> None:
    program, start = next(iter(vtn.objects["programs"])), soon()
    event = vtn.event(program, notify=True, **cap(40.0, start, 60))
    wait_until(lambda: held_kw(plane) == [40.0], 5, "the event")
    vtn.faults.status = 500
    vtn.event(program, notify=True, **cap(20.0, start, 60))
    wait_until(lambda: held_kw(plane) == [20.0, 40.0], 5, "the new event")
    vtn.change(event, notify=True, **cap(10.0, start, 60))
    wait_until(lambda: held_kw(plane) == [10.0, 20.0], 5, "the tighter limit")
    failures = state_of(plane.services).failures
    vtn.delete(event, notify=True)
    wait_until(lambda: state_of(plane.services).failures > failures, 5, "a poll that fails")
    assert held_kw(plane) == [10.0, 20.0]
    vtn.faults.status = None
    next(iter(plane.services.vens)).wake()
    wait_until(lambda: held_kw(plane) == [20.0], 10, "the release that the VTN confirms")


def test_a_notice_outlives_a_restart(vtn: Vtn, site: Site) -> None:
    vtn.program()
    site.poll()
    item = vtn.objects["events"][vtn.event(next(iter(vtn.objects["programs"])), **cap(40.0, soon(), 60))]
    kept = site.ven.notify({"objectType": "EVENT", "operation": "CREATE", "object": item})
    assert kept is not None
    kept.result(5)
    vtn.stop()
    site.start().poll()
    assert site.limits_kw == [40.0]
    vtn.__enter__()


def test_a_subscription_that_the_vtn_lost_is_made_again(vtn: Vtn, plane: Server) -> None:
    first = next(iter(vtn.objects["subscriptions"].values()))
    assert first["objectOperations"][0]["bearerToken"] == "token of utility"
    vtn.restart(forget=("subscriptions",))
    vtn.faults.status = 503
    ven = next(iter(plane.services.vens))
    ven.wake()
    wait_until(lambda: ven.state().failures > 0, 5, "the outage")
    vtn.faults.status = None
    ven.wake()
    wait_until(lambda: len(vtn.objects["subscriptions"]) == 1, 10, "a new subscription")


def test_a_vtn_that_wants_its_own_words_for_operations_gets_them(
    vtn: Vtn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if vtn.version != "3.0.1":
        pytest.skip("only 3.0.1 has two words for one thing")
    vtn.faults.verbs_only = True
    for server in _plane(vtn, tmp_path, monkeypatch):
        (held,) = vtn.objects["subscriptions"].values()
        assert held["objectOperations"][0]["operations"] == ["POST", "PUT", "DELETE"]
        assert state_of(server.services).subscription == "there"


def test_the_echo_gives_the_value_back_and_nothing_else(plane: Server) -> None:
    where = f"{plane.url}/v1/openadr3/callback"
    answer = requests.get(where, params={"echo": "<b>7f3</b>"}, timeout=5)
    assert (answer.status_code, answer.text) == (200, "<b>7f3</b>")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert requests.get(where, timeout=5).status_code == 422
    assert requests.get(where, params={"echo": "x" * 5000}, timeout=5).status_code == 422


@pytest.mark.parametrize("token", ["", "Bearer ", "Bearer wrong", "Basic token of utility", "Bearer token of utility2"])
def test_a_callback_without_the_right_token_is_refused(plane: Server, token: str) -> None:
    body = {"objectType": "EVENT", "operation": "DELETE", "object": {"id": "x"}}
    headers = {"Authorization": token} if token else {}
    assert requests.post(f"{plane.url}/v1/openadr3/callback", json=body, headers=headers, timeout=5).status_code == 401


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"objectType": "EVENT", "operation": "GREET", "object": {}}, 422),
        ({"objectType": "EVENT", "operation": "CREATE"}, 422),
        ([], 422),
        ({"objectType": "EVENT", "operation": "put", "object": {"id": "x"}}, 200),
        ({"objectType": "EVENT", "operation": "UPDATE", "object": {"id": "x"}}, 200),
    ],
)
def test_what_a_notification_must_be(plane: Server, body: Any, status: int) -> None:
    headers = {"Authorization": "Bearer token of utility"}
    assert requests.post(f"{plane.url}/v1/openadr3/callback", json=body, headers=headers, timeout=5).status_code == status


def test_a_body_of_a_gigabyte_is_refused_at_its_head(plane: Server) -> None:
    with socket.create_connection(("127.0.0.1", plane.port), timeout=5) as connection:
        head = (
            f"POST /v1/openadr3/callback HTTP/1.1\r\nHost: 127.0.0.1:{plane.port}\r\nAuthorization: Bearer token of utility\r\n"
        )
        connection.sendall((head + "Content-Length: 1000000000\r\n\r\n").encode() + b"x" * 1000)
        assert b" 413 " in connection.recv(200)


def test_a_body_of_unknown_length_is_refused_when_it_is_too_much(plane: Server) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(20):
            yield b"x" * 10_000

    headers = {"Authorization": "Bearer token of utility"}
    answer = requests.post(f"{plane.url}/v1/openadr3/callback", data=chunks(), headers=headers, timeout=5)
    assert answer.status_code == 413


def test_a_flood_of_callbacks_is_no_flood_of_polls(vtn: Vtn, plane: Server) -> None:
    asked = len(vtn.asked)
    headers = {"Authorization": "Bearer token of utility"}
    body = {"objectType": "EVENT", "operation": "UPDATE", "object": {"id": "x"}}
    began = time.monotonic()
    with requests.Session() as http:
        statuses = [
            http.post(f"{plane.url}/v1/openadr3/callback", json=body, headers=headers, timeout=5).status_code
            for _ in range(300)
        ]
    took_s = time.monotonic() - began
    assert set(statuses) == {200, 429}
    assert statuses.count(200) <= 60 + 5 * took_s + 1

    def polls() -> int:
        return sum("GET /events?" in line and "skip=0" in line for line in vtn.asked[asked:])

    wait_until(polls, 5, "a look at the VTN")
    assert polls() <= took_s + 2
