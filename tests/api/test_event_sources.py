"""Events of utilities over HTTP: signed ones of any shape, hints, and what an operator sees of them and may do."""

import base64
import json
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher.api.flood import Bucket
from tests.api.fake import FakeServices, Server
from tests.api.test_events import event, send

SECRET = "whsec_" + base64.b64encode(secrets.token_bytes(24)).decode()


@pytest.fixture
def hooked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("SECRET", SECRET)
    terms = {"region": "north", "reference_w": 2e5, "serving_floor_w": 4e4}
    sources = [
        {"name": "signed", "protocol": "webhook", "secret_env": "SECRET", **terms},
        {"name": "aggregator", "protocol": "pointer", "url": "https://api.example/dispatches", **terms},
    ]
    with Server(FakeServices(tmp_path, event_source=sources)) as running:
        yield running


def shed(**more: Any) -> dict[str, Any]:
    """Two steps of a sender of its own kind: from now on 90 kW, then 60 kW, half an hour each."""
    now = datetime.now(UTC).replace(microsecond=0)
    steps = [
        {"start": (now + i * HALF).isoformat(), "end": (now + (i + 1) * HALF).isoformat(), "limit_kw": limit, "interval_id": i}
        for i, limit in enumerate((90, 60))
    ]
    return {"type": "event.created", "data": {"event_id": "e-1", "version": 3, "segments": steps, **more}}


HALF = timedelta(minutes=30)


def told(server: Server, message: Any, **more: Any) -> dict[str, Any]:
    """The answer to a message that was taken."""
    answer = send(server, message, secret=SECRET, source="signed", **more)
    assert answer.status_code == 202, answer.text
    (only,) = answer.json()["events"]
    return dict(only)


def test_a_signed_event_of_any_shape_binds_once_it_is_stored(hooked: Server) -> None:
    assert told(hooked, shed())["state"] == "active"
    shown = hooked.get("/v1/events")["events"][0]
    assert (shown["source"], shown["protocol"], shown["said_version"], shown["state"]) == ("signed", "webhook", "3", "active")
    assert [(step["limit_w"], step["interval_id"]) for step in shown["steps"]] == [(90_000.0, 0), (60_000.0, 1)]
    assert shown["limit_w"] == 60_000.0 and hooked.services.nudges == 1
    assert told(hooked, shed(version=2))["state"] == "ignored"
    assert told(hooked, {"type": "event.cancelled", "data": {"event_id": "e-1", "version": 4}})["state"] == "cancelled"
    one = hooked.get("/v1/events/signed/e-1")
    assert [line["what"] for line in one["history"]] == ["accepted", "ignored", "cancelled"]
    assert one["event"]["state"] == "cancelled" and "at most 90 kW" in one["history"][0]["sentence"]
    assert json.loads(one["history"][0]["message"])["segments"][0]["limit_kw"] == 90


def test_a_message_sent_again_changes_nothing_though_something_newer_came(hooked: Server) -> None:
    old = shed(version=None)
    assert told(hooked, old, message_id="m1")["state"] == "active"
    assert told(hooked, old, message_id="m2")["state"] == "ignored"
    assert told(hooked, shed(version=None, reason="more"), message_id="m3")["version"] == 2
    for message_id in ("m1", "m2"):
        assert told(hooked, old, message_id=message_id)["state"] == "ignored", message_id
    assert hooked.get("/v1/events")["events"][0]["steps"][0]["reason"].startswith("more")


def test_what_is_wrong_is_refused_and_not_stored(hooked: Server) -> None:
    unclear = {"type": "event.created", "data": {"event_id": "e-1", "limit": 90}}
    answer = send(hooked, unclear, secret=SECRET, source="signed")
    assert answer.status_code == 422 and "limit_w" in answer.text
    assert hooked.services.store.grid_events() == []
    assert hooked.get("/v1/events/signed/e-1")["event"] is None
    assert [line["what"] for line in hooked.get("/v1/events/signed/e-1")["history"]] == ["rejected"]
    other = "whsec_" + base64.b64encode(secrets.token_bytes(24)).decode()
    assert send(hooked, shed(), secret=other, source="signed").status_code == 401
    told(hooked, shed())
    assert send(hooked, shed(test=True), secret=SECRET, source="signed").status_code == 409
    assert any("says something else" in s for _, _, s in hooked.services.event_intake.alarms(datetime.now(UTC)))


def test_a_forged_release_is_as_hard_as_a_forged_shed(hooked: Server) -> None:
    told(hooked, shed())
    release = {"type": "event.cancelled", "data": {"event_id": "e-1", "version": 9}}
    other = "whsec_" + base64.b64encode(secrets.token_bytes(24)).decode()
    assert send(hooked, release, secret=other, source="signed").status_code == 401
    assert hooked.call("POST", "/v1/webhooks/signed", json=release).status_code == 401
    assert hooked.call("DELETE", "/v1/events/signed/e-1").status_code == 409
    assert hooked.get("/v1/events")["events"][0]["state"] == "active"


def test_hints_are_answered_kept_and_bounded(hooked: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    hint = {"event": {"name": "dispatch.create"}, "resource": "/dispatches/d-1"}
    answer = hooked.call("POST", "/v1/webhooks/aggregator", json=hint)
    assert (answer.status_code, answer.json()) == (200, {"outcome": "fetch", "event_id": "d-1"})
    assert "d-1" in str(hooked.services.store.setting("events.hints.aggregator"))
    ping = {"event": {"name": ""}, "resource": ""}
    assert hooked.call("POST", "/v1/webhooks/aggregator", json=ping).json()["outcome"] == "ping"
    elsewhere = {**hint, "resource": "http://10.0.0.1/dispatches/d-1"}
    assert hooked.call("POST", "/v1/webhooks/aggregator", json=elsewhere).status_code == 422
    monkeypatch.setattr(Bucket, "take", lambda self, amount, now_s: False)
    assert hooked.call("POST", "/v1/webhooks/aggregator", json=hint).status_code == 429
    assert hooked.services.store.grid_events() == []


def test_opting_out_is_visible_and_can_be_taken_back(hooked: Server) -> None:
    told(hooked, shed())
    path = "/v1/events/signed/e-1/opt-out"
    assert hooked.call("POST", path, json={}).status_code == 422
    assert hooked.call("POST", path, json={"reason": " "}).status_code == 422
    nudges = hooked.services.nudges
    out = hooked.call("POST", path, json={"reason": "a customer's deadline"}).json()["event"]
    assert out["opted_out"] == "a customer's deadline" and out["state"] == "active" and hooked.services.nudges == nudges + 1
    assert len(out["steps"]) == 2, "what was asked for stays"
    assert hooked.services.event_intake.opted_out("signed") == {"e-1": "a customer's deadline"}
    told(hooked, shed(version=4, reason="again"))
    assert hooked.get("/v1/events")["events"][0]["opted_out"] == "a customer's deadline", "whatever its sender says"
    assert hooked.call("DELETE", path).json()["event"]["opted_out"] is None
    lines = hooked.get("/v1/events/signed/e-1")["history"]
    assert [line["what"] for line in lines] == ["accepted", "opted_out", "changed", "opted_in"]
    assert hooked.call("POST", "/v1/events/signed/none/opt-out", json={"reason": "x"}).status_code == 404


def test_our_own_events_have_a_history_and_can_be_opted_out_of_too(server: Server) -> None:
    server.call("POST", "/v1/events", json=event())
    server.call("POST", "/v1/events", json=event(limit_w=500, version=2))
    assert server.call("POST", "/v1/events/api/e1/opt-out", json={"reason": "a slip"}).status_code == 200
    server.call("DELETE", "/v1/events/api/e1")
    one = server.get("/v1/events/api/e1")
    assert [(line["what"], line["version"]) for line in one["history"]] == [
        ("accepted", 1),
        ("accepted", 2),
        ("opted_out", 2),
        ("cancelled", 3),
    ]
    assert server.call("POST", "/v1/events/api/e1/opt-out", json={"reason": "late"}).status_code == 409
    assert server.call("GET", "/v1/events/api/none").status_code == 404


def test_a_schedule_of_our_own_for_a_branch(tmp_path: Path) -> None:
    region = {"name": "north", "address": "http://127.0.0.1:1", "branch": [{"name": "rack-1"}]}
    steps = [{"limit_w": 900, "duration": "1h"}, {"limit_w": 600, "duration": "30m", "reason": "worse"}, {"limit_w": 800}]
    with Server(FakeServices(tmp_path, region=[region])) as server:
        body = {"event_id": "e1", "region": "north", "branch": "rack-1", "reason": "peak", "steps": steps, "version": 1}
        made = server.call("POST", "/v1/events", json=body)
        assert made.status_code == 201, made.text
        shown = made.json()["event"]
        assert (shown["branch"], shown["limit_w"], shown["end"]) == ("rack-1", 600.0, None)
        assert [(s["limit_w"], s["reason"]) for s in shown["steps"]] == [(900.0, "peak"), (600.0, "worse"), (800.0, "peak")]
        assert shown["steps"][1]["start"] == shown["steps"][0]["end"] and shown["steps"][0]["start"] == shown["start"]
        assert server.call("POST", "/v1/events", json=body).json()["outcome"] == "duplicate"
        changed = [*steps[:2], {"limit_w": 700}]
        assert server.call("POST", "/v1/events", json={**body, "steps": changed}).status_code == 409
        for wrong, field in (
            ({"branch": "rack-9"}, "branch"),
            ({"limit_w": 5}, "limit_w"),
            ({"steps": []}, "steps"),
            ({"steps": [{"limit_w": 1}, {"limit_w": 2}]}, "steps[0].end"),
            ({"steps": [{"limit_w": -1}]}, "steps[0].limit_w"),
            ({"steps": [{"limit_w": 1, "start": "noon"}]}, "steps[0].start"),
            ({"steps": [{"limit_w": 1, "watts": 1}]}, "steps[0].watts"),
            ({"steps": [steps[0], {"limit_w": 1, "start": "2020-01-01T00:00:00Z"}]}, "steps[1].start"),
            ({"steps": [{"limit_w": 1, "start": "2020-01-01T00:00:00Z", "duration": 60}]}, "steps[0].end"),
        ):
            answer = server.call("POST", "/v1/events", json={**body, "version": 2, **wrong})
            assert answer.status_code == 422, wrong
            assert field in {problem["field"] for problem in answer.json()["error"]["problems"]}, (wrong, answer.text)
