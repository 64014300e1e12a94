"""Limits from outside: over our own API, and by signed webhook."""

import base64
import json
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from standardwebhooks import Webhook

from dispatcher.api.webhooks import BURST, verifiers
from dispatcher.config import Config
from dispatcher.errors import ConfigError
from tests.api.fake import FakeServices, Server

OLD, NEW = ("whsec_" + base64.b64encode(secrets.token_bytes(24)).decode() for _ in range(2))


@pytest.fixture
def hooked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("OLD_SECRET", OLD)
    monkeypatch.setenv("NEW_SECRET", NEW)
    webhook = [{"source": "utility", "secret_envs": ["OLD_SECRET", "NEW_SECRET"]}]
    with Server(FakeServices(tmp_path, webhook=webhook)) as running:
        yield running


def event(**more: Any) -> dict[str, Any]:
    return {"event_id": "e1", "region": "north", "limit_w": 1000, "duration": "2h", **more}


def send(
    server: Server,
    message: Any,
    *,
    secret: str = OLD,
    message_id: str | None = None,
    at: datetime | None = None,
    source: str = "utility",
    **headers: str,
) -> requests.Response:
    body = message if isinstance(message, str) else json.dumps(message)
    message_id, at = message_id or f"msg_{secrets.token_hex(8)}", at or datetime.now(UTC)
    signed = {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(secret).sign(message_id, at, body),
        **headers,
    }
    return server.call("POST", f"/v1/webhooks/{source}", data=body.encode(), headers=signed)


def budget(**more: Any) -> dict[str, Any]:
    return {"type": "power_budget", "data": event(**more)}


def release(**more: Any) -> dict[str, Any]:
    return {"type": "power_budget.cancelled", "data": {"event_id": "e1", **more}}


def test_a_signed_event_is_stored_before_it_is_answered(hooked: Server) -> None:
    services = hooked.services
    before = services.nudges
    answer = send(hooked, budget(reason="scarcity"))
    assert (answer.status_code, answer.json()) == (202, {"outcome": "accepted"})
    held = services.store.grid_events()[0]
    assert (held.source, held.event_id, held.version, held.limit_w, held.reason) == ("utility", "e1", 1, 1000.0, "scarcity")
    assert held.end is not None and held.end - held.start == timedelta(hours=2)
    assert services.nudges > before
    assert hooked.get("/v1/events")["events"][0]["state"] == "active"


def test_replayed_changed_and_ended(hooked: Server) -> None:
    store = hooked.services.store
    assert send(hooked, budget(), message_id="m1").json() == {"outcome": "accepted"}
    assert send(hooked, budget(limit_w=5), message_id="m1").json() == {"outcome": "duplicate"}
    assert store.grid_events()[0].limit_w == 1000.0
    assert send(hooked, budget(limit_w=500, start=datetime.now(UTC).isoformat())).json() == {"outcome": "accepted"}
    assert (store.grid_events()[0].limit_w, store.grid_events()[0].version) == (500.0, 2)
    assert send(hooked, budget(limit_w=7, version=1)).json() == {"outcome": "stale"}
    assert send(hooked, budget(limit_w=7, version=9)).json() == {"outcome": "accepted"}
    assert send(hooked, release(version=3)).json() == {"outcome": "stale"}
    assert send(hooked, release()).json() == {"outcome": "accepted"}
    assert store.grid_events()[0].cancelled
    assert send(hooked, release()).json() == {"outcome": "duplicate"}
    # messages come in any order: a cancel that is early is kept, and its event is ignored when it comes
    assert send(hooked, release(event_id="e2")).status_code == 202
    late = budget()
    late["data"]["event_id"] = "e2"
    assert send(hooked, late).json()["outcome"] == "stale"
    assert all(event.cancelled for event in store.grid_events())
    assert hooked.get("/v1/events")["events"][0]["state"] == "cancelled"


def test_a_cancel_names_what_is_wrong_with_it(hooked: Server) -> None:
    send(hooked, budget())
    for wrong, named in (({"version": 1 << 53}, "version"), ({"version": 10**30}, "version"), ({"version": True}, "version")):
        answer = send(hooked, release(**wrong))
        assert answer.status_code == 422 and answer.json()["error"]["problems"][0]["field"] == named, answer.text
    answer = send(hooked, {"type": "power_budget.cancelled", "data": ["e1"]})
    assert answer.status_code == 422 and "event_id" in answer.text
    assert not hooked.services.store.grid_events()[0].cancelled


@pytest.mark.parametrize(
    ("when", "field"),
    [
        ({"end": "9999-12-31T23:59:59Z"}, "end"),
        ({"start": "9999-12-31T23:00:00Z"}, "start"),
        ({"start": "9999-12-31T23:00:00Z", "duration": "9h"}, "start"),
        ({"duration": "370d"}, "duration"),
        ({"duration": 0.000008}, "duration"),
        ({"steps": [{"limit_w": 5, "duration": "1h"}, {"limit_w": 6, "end": "9999-12-31T23:59:59Z"}]}, "steps[1].end"),
    ],
)
def test_a_limit_that_lasts_or_lies_beyond_all_sense_is_refused(hooked: Server, when: dict[str, Any], field: str) -> None:
    given = {"event_id": "e1", "region": "north", "recovery": "1h", **({} if "steps" in when else {"limit_w": 1000}), **when}
    answer = send(hooked, {"type": "power_budget", "data": given})
    assert answer.status_code == 422, answer.text
    assert [one["field"] for one in answer.json()["error"]["problems"]] == [field], answer.text
    assert hooked.services.store.grid_events() == []


def test_another_content_under_the_same_version_is_refused(hooked: Server) -> None:
    store = hooked.services.store
    assert send(hooked, budget(version=5)).json() == {"outcome": "accepted"}
    assert send(hooked, budget(version=5)).json() == {"outcome": "duplicate"}
    for change in ({"limit_w": 2}, {"duration": "5h"}, {"start": "2027-06-01T00:00Z"}):
        answer = send(hooked, budget(version=5, **change))
        assert answer.status_code == 409 and "under a higher version" in answer.json()["error"]["message"], change
    assert store.grid_events()[0].limit_w == 1000.0


def test_both_secrets_hold_while_they_are_rotated(hooked: Server) -> None:
    assert send(hooked, budget(), secret=NEW).status_code == 202
    assert send(hooked, budget(), secret=OLD).status_code == 202


@pytest.mark.parametrize(
    "forged",
    [
        {"webhook-signature": "v1,AAAA"},
        {"webhook-signature": "v1"},
        {"webhook-signature": ""},
        {"webhook-signature": "v1,not base64!"},
        {"webhook-signature": "v2,AAAA v1a,BBBB"},
        {"webhook-signature": "v1,\xe9"},
        {"webhook-timestamp": "nan"},
        {"webhook-timestamp": "soon"},
        {"webhook-timestamp": "1e400"},
        {"webhook-timestamp": "99999999999999999999"},
        {"webhook-id": "another"},
    ],
)
def test_forged_releases_change_nothing(hooked: Server, forged: dict[str, str]) -> None:
    send(hooked, budget())
    answer = send(hooked, release(), **forged)
    assert answer.status_code == 401, answer.text
    assert not hooked.services.store.grid_events()[0].cancelled


def test_wrong_secret_old_message_changed_body_and_no_signature(hooked: Server) -> None:
    stranger = "whsec_" + base64.b64encode(b"x" * 24).decode()
    assert send(hooked, budget(), secret=stranger).status_code == 401
    for minutes in (-6, 6):
        assert send(hooked, budget(), at=datetime.now(UTC) + timedelta(minutes=minutes)).status_code == 401
    good = send(hooked, budget()).request
    assert isinstance(good.body, bytes)
    signature = {name: value for name, value in good.headers.items() if name.startswith("webhook-")}
    changed = hooked.call("POST", "/v1/webhooks/utility", data=good.body + b" ", headers=signature)
    assert changed.status_code == 401
    assert hooked.call("POST", "/v1/webhooks/utility", json=budget()).status_code == 401
    assert hooked.call("POST", "/v1/webhooks/utility", data=b"\xff\xfe").status_code == 401
    assert hooked.call("POST", "/v1/webhooks/nobody", json=budget()).status_code == 404
    assert len(hooked.services.store.grid_events()) == 1


@pytest.mark.parametrize(
    "message",
    [
        *("", "{", "[]", {"type": "power_budget"}, {"type": "x", "data": event()}, {"data": event()}),
        *(budget(limit_w="5"), budget(region="mars"), release(event_id=5), {**release(), "data": []}),
    ],
)
def test_signed_nonsense(hooked: Server, message: Any) -> None:
    answer = send(hooked, message)
    assert answer.status_code == 422 and answer.json()["error"]["problems"]
    assert hooked.services.store.grid_events() == []


def test_a_source_that_sends_too_much_is_slowed_down_and_strangers_cannot_use_up_its_share(hooked: Server) -> None:
    for _ in range(BURST + 20):
        assert hooked.call("POST", "/v1/webhooks/utility", json=budget()).status_code == 401
    answers = [send(hooked, budget()).status_code for _ in range(BURST + 20)]
    assert answers[0] == 202 and 429 in answers


@pytest.mark.parametrize("secret", ["password", "whsec_", "whsec_!!!", "whsec_c2hvcnQ=", "correct horse battery staple"])
def test_weak_secrets_are_refused_at_the_start_and_not_shown(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S", secret)
    with pytest.raises(ConfigError) as refused:
        verifiers(Config(webhook=[{"source": "u", "secret_env": "S"}]))  # type: ignore[call-arg]
    assert secret.removeprefix("whsec_") not in str(refused.value) or secret == "whsec_"


# --- over our own API ---------------------------------------------------------------------------------------------


def test_create_change_and_cancel(server: Server, services: FakeServices) -> None:
    made = server.call("POST", "/v1/events", json=event(event_id="e:1/x"))
    assert made.status_code == 201 and made.json()["event"]["state"] == "active"
    start = made.json()["event"]["start"]
    again = server.call("POST", "/v1/events", json=event(event_id="e:1/x", start=start))
    assert again.status_code == 200 and again.json()["outcome"] == "duplicate"
    changed = server.call("POST", "/v1/events", json=event(event_id="e:1/x", limit_w=0, duration=None))
    assert changed.json()["event"]["version"] == 2 and changed.json()["event"]["end"] is None
    gone = server.call("DELETE", "/v1/events/api/e:1%2Fx")
    assert gone.json()["event"]["state"] == "cancelled"
    assert server.call("DELETE", "/v1/events/api/e:1%2Fx").json()["outcome"] == "duplicate"
    assert server.call("DELETE", "/v1/events/api/nothing").status_code == 404
    assert services.store.grid_events(ended_after=services.clock.now()) == []


def test_scheduled_and_expired(server: Server) -> None:
    now = datetime.now(UTC)
    later = event(event_id="later", start=(now + timedelta(hours=1)).isoformat(), test=True)
    assert server.call("POST", "/v1/events", json=later).json()["event"]["state"] == "scheduled"
    assert server.get("/v1/events")["events"][0]["test"] is True


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"event_id": None}, "event_id"),
        ({"event_id": "a b"}, "event_id"),
        ({"event_id": "x" * 200}, "event_id"),
        ({"version": -1}, "version"),
        ({"version": True}, "version"),
        ({"version": 1.5}, "version"),
        ({"region": None}, "region"),
        ({"region": ["north"]}, "region"),
        ({"limit_w": -1}, "limit_w"),
        ({"limit_w": None}, "limit_w"),
        ({"limit_w": True}, "limit_w"),
        ({"limit_w": "1"}, "limit_w"),
        ({"start": "2026-01-01T00:00:00"}, "start"),
        ({"start": 5}, "start"),
        ({"start": "0001-01-01T00:00:00+23:00"}, "start"),
        ({"duration": "soon"}, "duration"),
        ({"duration": -5}, "duration"),
        ({"duration": 1e12}, "duration"),
        ({"duration": True}, "duration"),
        ({"end": "2040-01-01T00:00:00Z"}, "duration"),
        ({"duration": None, "end": "2020-01-01T00:00:00Z"}, "end"),
        ({"duration": None, "start": "2020-01-01T00:00:00Z", "end": "2020-01-02T00:00:00Z"}, "end"),
        ({"duration": None, "end": "2040-01-01"}, "end"),
        ({"reason": 5}, "reason"),
        ({"reason": "x" * 5000}, "reason"),
        ({"test": "no"}, "test"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_wrong_events(shared: Server, wrong: dict[str, Any], field: str) -> None:
    answer = shared.call("POST", "/v1/events", json={**event(), **wrong})
    assert answer.status_code == 422, answer.text
    assert field in {problem["field"] for problem in answer.json()["error"]["problems"]}
    assert shared.services.store.grid_events() == []


def test_an_emergency_is_kept_shown_and_no_other_version_of_the_same_number(server: Server) -> None:
    answer = server.call("POST", "/v1/events", json=event(emergency=True, version=1)).json()["event"]
    assert answer["emergency"] is True and [step["emergency"] for step in answer["steps"]] == [True]
    assert server.call("POST", "/v1/events", json=event(version=1)).status_code == 409, "it would say something else"
    (line,) = server.call("GET", "/v1/events/api/e1").json()["history"]
    assert line["sentence"] == "at most 1,000 W; an emergency"
    refused = server.call("POST", "/v1/events", json=event(event_id="e2", emergency="yes"))
    assert refused.status_code == 422 and "emergency" in refused.text and "must be true or false" in refused.text
    plain = server.call("POST", "/v1/events", json=event(event_id="e3")).json()["event"]
    assert plain["emergency"] is False


def test_a_webhook_source_may_mark_all_its_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLD_SECRET", OLD)
    hooks = [{"source": "utility", "secret_env": "OLD_SECRET", "emergency": True}]
    with Server(FakeServices(tmp_path, webhook=hooks)) as running:
        assert send(running, budget()).status_code == 202
        assert running.services.store.grid_events()[0].emergency
