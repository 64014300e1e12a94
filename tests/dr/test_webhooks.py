"""Signed webhooks, our own body, and pointers: who sent it is proved first, pointers are never acted on."""

import base64
import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from standardwebhooks import Webhook

from dispatcher.dr.site import Site
from dispatcher.errors import BadInput
from tests.dr.dr_events import NOW, at, event, limits, understood

KEY = base64.b64encode(b"a key of thirty-two bytes, or so").decode()
OTHER = base64.b64encode(b"another key of more than 24 bytes").decode()
SECRET = "whsec_" + KEY
DATA: dict[str, Any] = {
    "event_id": "e-1",
    "version": 3,
    "start": "2026-03-02T14:00:00Z",
    "end": "2026-03-02T15:00:00Z",
    "limit_kw": 90,
}


def delivery(
    data: Any, message_id: str = "msg_1", sent: datetime = NOW, secret: str = SECRET, signatures: str = "{}", **headers: str
) -> dict[str, Any]:
    body = data if isinstance(data, str) else json.dumps(data)
    signature = Webhook(secret).sign(message_id, sent, body)
    made = {
        "Webhook-Id": message_id,
        "webhook-timestamp": str(int(sent.timestamp())),
        "WEBHOOK-SIGNATURE": signatures.format(signature),
        **headers,
    }
    return {"headers": made, "body": body}


def signed(data: Any, *after: Any, secrets: tuple[str, ...] = (SECRET,), **given: Any) -> dict[str, Any]:
    return understood(data, *after, protocol="standard-webhook", secrets=secrets, **given)


def message(data: dict[str, Any], kind: str = "event.created") -> dict[str, Any]:
    return {"type": kind, "timestamp": "2026-03-02T12:00:00Z", "data": data}


def test_a_signed_event_is_read() -> None:
    answer = signed(delivery(message(DATA)))
    assert (answer["state"], answer["event_id"], answer["version"]) == ("scheduled", "e-1", 3)
    assert limits(answer) == [("14:00", "15:00", 90000.0)] and answer["error"] is None


def test_the_text_of_an_http_request_is_read() -> None:
    made = delivery(message(DATA))
    head = "".join(f"{name}: {value}\r\n" for name, value in made["headers"].items())
    raw = f"POST /hook HTTP/1.1\r\nHost: x\r\n{head}\r\n{made['body']}".encode()
    assert signed(raw)["state"] == "scheduled"


def test_a_body_that_a_file_holds_as_json_is_read_where_its_text_can_be_found_again() -> None:
    made = delivery(json.dumps(message(DATA), separators=(",", ":")))
    made["body"] = json.loads(made["body"])
    assert signed(made)["state"] == "scheduled"


@pytest.mark.parametrize(
    "signatures",
    ["v1,bm90IGl0 {}", "{} v1,bm90IGl0", "v1a,abc {}", "nonsense {}", "v1, {}", "v1,%%% {}", "v2,é {}"],
)
def test_one_good_signature_is_enough(signatures: str) -> None:
    assert signed(delivery(message(DATA), signatures=signatures))["state"] == "scheduled"


def test_an_old_and_a_new_secret_are_tried() -> None:
    assert signed(delivery(message(DATA)), secrets=("whsec_" + OTHER, KEY))["state"] == "scheduled"


@pytest.mark.parametrize("signatures", ["v1,bm90IGl0", "v1a,{}", "", "v1", "é", "v1,é"])
def test_without_a_good_signature_nothing_is_used(signatures: str) -> None:
    answer = signed(delivery(message(DATA), signatures=signatures))
    assert (answer["state"], answer["segments"], answer["event_id"]) == ("rejected", [], None)
    assert answer["error"]["code"] in ("bad_signature", "unsigned")


def test_one_changed_byte_is_found() -> None:
    made = delivery(message(DATA))
    made["body"] = made["body"].replace("90", "91")
    assert signed(made)["error"]["code"] == "bad_signature"
    assert signed({**delivery(message(DATA)), "headers": {}})["error"]["code"] == "unsigned"
    assert signed(message(DATA))["error"]["code"] == "unsigned"


def test_another_secret_or_none_proves_nothing() -> None:
    assert signed(delivery(message(DATA)), secrets=("whsec_" + OTHER,))["error"]["code"] == "bad_signature"
    assert signed(delivery(message(DATA)), secrets=())["error"]["code"] == "no_secret"


@pytest.mark.parametrize(("late_s", "state"), [(300, "scheduled"), (-300, "scheduled"), (301, "rejected"), (-301, "rejected")])
def test_five_minutes_are_accepted(late_s: int, state: str) -> None:
    assert signed(delivery(message(DATA)), now=NOW + timedelta(seconds=late_s))["state"] == state


def test_a_secret_that_is_none_is_wrong_input() -> None:
    for secret in ("", "whsec_", "whsec_short", "a pass phrase!"):
        with pytest.raises(BadInput, match="secret"):
            signed(delivery(message(DATA)), secrets=(secret,))


def test_the_same_message_sent_again_is_a_duplicate() -> None:
    first = delivery(message(DATA))
    again = delivery(message(DATA), sent=NOW + timedelta(hours=1))
    answer = signed(again, first, now=NOW + timedelta(hours=1))
    assert (answer["state"], limits(answer)) == ("ignored", [("14:00", "15:00", 90000.0)])


def test_an_unproved_earlier_message_does_not_count() -> None:
    forged = delivery(message({**DATA, "version": 9}, "event.cancelled"), "msg_0", secret="whsec_" + OTHER)
    answer = signed(delivery(message(DATA)), forged)
    assert answer["state"] == "scheduled" and "not counted" in answer["warnings"][-1]


def test_a_cancellation_ends_it_and_a_late_copy_does_not_bring_it_back() -> None:
    made, gone = delivery(message(DATA)), delivery(message({"id": "e-1", "version": 4}, "event.cancelled"), "msg_2")
    assert signed(gone, made)["state"] == "cancelled"
    answer = signed(delivery(message(DATA), "msg_3"), made, gone)
    assert (answer["state"], answer["segments"], answer["version"]) == ("ignored", [], 4)


@pytest.mark.parametrize(
    ("fields", "limit_w"),
    [
        ({"limit_w": 90000}, 90000.0),
        ({"capKw": 90}, 90000.0),
        ({"max_power_kw": 90}, 90000.0),
        ({"site_power_limit_mw": 0.09}, 90000.0),
        ({"limit": {"value": 90, "unit": "kW"}}, 90000.0),
        ({"reduce_kw": 50}, 150000.0),
        ({"reduction_percent": 25}, 150000.0),
    ],
)
def test_a_limit_is_read_where_its_unit_stands_in_its_name(fields: dict[str, Any], limit_w: float) -> None:
    bare = {key: value for key, value in DATA.items() if key != "limit_kw"}
    assert limits(signed(delivery(message({**bare, **fields})))) == [("14:00", "15:00", limit_w)]


@pytest.mark.parametrize(
    "fields", [{"limit": 90}, {"power": 90}, {"limit_kw": -1}, {"limit_kw": "90"}, {"target_kw": 90}, {"limit_kw": None}]
)
def test_what_would_have_to_be_guessed_is_refused(fields: dict[str, Any]) -> None:
    bare = {key: value for key, value in DATA.items() if key != "limit_kw"}
    answer = signed(delivery(message({**bare, **fields})))
    assert (answer["state"], answer["segments"], answer["event_id"]) == ("rejected", [], "e-1")


def test_steps_of_a_signed_event() -> None:
    steps = [
        {"start": "2026-03-02T14:00:00Z", "end": "2026-03-02T15:00:00Z", "cap_kw": 90},
        {"start": "2026-03-02T15:00:00Z", "duration": "PT30M", "cap_kw": 80},
    ]
    answer = signed(delivery(message({"id": "e-2", "segments": steps})))
    assert limits(answer) == [("14:00", "15:00", 90000.0), ("15:00", "15:30", 80000.0)]


def test_other_shapes_may_be_signed_too() -> None:
    notification = {"objectType": "EVENT", "operation": "CREATE", "object": event()}
    assert limits(signed(delivery(notification))) == [("14:00", "15:00", 120000.0)]
    native = {"type": "power_budget", "data": {"event_id": "n-1", "region": "north", "limit_w": 5000, "duration": "1h"}}
    assert limits(signed(delivery(native))) == [("12:00", "13:00", 5000.0)]
    assert signed(delivery({"event": {"name": "dispatch.create"}, "resource": "/dispatches/7"}))["state"] == "fetch"


# --- our own body ---------------------------------------------------------------------------------------------------

OWN: dict[str, Any] = {
    "event_id": "n-1",
    "region": "north",
    "limit_w": 70000,
    "start": "2026-03-02T14:00:00Z",
    "duration": "1h",
}


def native(data: Any, *after: Any, **given: Any) -> dict[str, Any]:
    return understood(data, *after, protocol="native", **given)


def test_our_own_body_is_read_as_the_api_reads_it() -> None:
    answer = native(OWN)
    assert (answer["state"], answer["version"], limits(answer)) == ("scheduled", 1, [("14:00", "15:00", 70000.0)])
    assert native({"type": "power_budget", "data": OWN})["state"] == "scheduled"


def test_without_an_end_it_is_open() -> None:
    answer = native({"event_id": "n-1", "region": "north", "limit_w": 70000})
    assert (answer["state"], limits(answer)) == ("active", [("12:00", None, 70000.0)])


def test_without_a_version_what_differs_is_the_next_one() -> None:
    answer = native({**OWN, "limit_w": 60000}, OWN)
    assert (answer["state"], answer["version"], limits(answer)) == ("scheduled", 2, [("14:00", "15:00", 60000.0)])
    assert native(OWN, OWN)["state"] == "ignored"
    assert native({**OWN, "version": 1, "limit_w": 60000}, {**OWN, "version": 1})["error"]["code"] == "version_conflict"


def test_its_cancellation() -> None:
    gone = {"type": "power_budget.cancelled", "data": {"event_id": "n-1"}}
    assert native(gone, OWN)["state"] == "cancelled"
    assert native({**OWN, "version": 7}, OWN, gone)["state"] == "ignored"


@pytest.mark.parametrize(
    "fields", [{"limit_w": -1}, {"limit_w": "5"}, {"start": "14:00"}, {"event_id": ""}, {"colour": "red"}, {"region": 5}]
)
def test_what_the_api_refuses_is_refused(fields: dict[str, Any]) -> None:
    answer = native({**OWN, **fields})
    assert (answer["state"], answer["segments"]) == ("rejected", []) and next(iter(fields)) in answer["error"]["message"]


def test_what_is_over_has_expired() -> None:
    assert native(OWN, now=at("16:00:00"))["state"] == "expired"


def test_a_list_of_our_own() -> None:
    answer = native([OWN, {**OWN, "event_id": "n-2", "limit_w": 50000, "test": True}])
    assert [b["limit_w"] for b in answer["binding"]] == [70000.0]


# --- pointers -------------------------------------------------------------------------------------------------------

HOOK: dict[str, Any] = {"event": {"name": "dispatch.update"}, "resource": "/dispatches/d-7"}
FETCHED: dict[str, Any] = {
    "id": "d-7",
    "authorized": True,
    "test": False,
    "start_time": "2026-03-02T14:00:00Z",
    "end_time": "2026-03-02T15:00:00Z",
    "modification_number": 2,
    "program": {"id": 9, "name": "reserve", "timezone": "US/Central"},
    "sites": [{"id": "s1", "customer_location_id": "hall-9", "commitment": 50}, {"id": "s2", "drop_by": 9}],
}


def pointed(data: Any, *after: Any, **given: Any) -> dict[str, Any]:
    return understood(data, *after, protocol="pointer", **given)


def test_a_pointer_alone_is_only_fetched() -> None:
    answer = pointed(HOOK)
    assert (answer["state"], answer["event_id"], answer["segments"]) == ("fetch", "d-7", [])
    assert pointed({"webhook": HOOK})["state"] == "fetch"


def test_empty_texts_are_a_sign_of_life() -> None:
    assert pointed({"event": {"name": ""}, "resource": ""})["state"] == "ping"


@pytest.mark.parametrize("resource", ["/../admin", "/a/../b", "", 7, "/a b", "\\\\x\\y"])
def test_a_resource_that_is_no_path_is_refused(resource: Any) -> None:
    assert pointed({"event": {"name": "dispatch.create"}, "resource": resource})["state"] == "rejected"


def test_another_host_is_warned_of() -> None:
    answer = pointed({"event": {"name": "dispatch.create"}, "resource": "https://other.example/dispatches/7"})
    assert answer["state"] == "fetch" and any("other.example" in w for w in answer["warnings"])


@pytest.mark.parametrize("data", [{"webhook": HOOK, "fetched": FETCHED}, FETCHED])
def test_what_was_fetched_is_the_event(data: dict[str, Any]) -> None:
    answer = pointed(data)
    assert (answer["state"], answer["version"], answer["source"]) == ("scheduled", 2, "9")
    assert limits(answer) == [("14:00", "15:00", 150000.0)]


def test_the_old_name_of_a_commitment_and_local_times() -> None:
    old = {
        **FETCHED,
        "sites": [{"id": "hall-9", "drop_by": 20}],
        "start_time": "2026-03-02T08:00:00",
        "end_time": "2026-03-02T09:00:00",
    }
    assert limits(pointed(old)) == [("14:00", "15:00", 180000.0)]


def test_a_dispatch_for_other_sites_limits_nothing() -> None:
    answer = pointed({**FETCHED, "sites": [{"id": "elsewhere", "commitment": 5}]})
    assert (answer["state"], answer["segments"]) == ("scheduled", [])


def test_versions_of_a_dispatch() -> None:
    assert pointed(FETCHED, held_version="3")["state"] == "ignored"
    assert pointed(FETCHED, FETCHED)["state"] == "ignored"
    gone = {**FETCHED, "authorized": False, "modification_number": 3}
    answer = pointed({"webhook": HOOK, "fetched": gone}, {"webhook": HOOK, "fetched": FETCHED})
    assert (answer["state"], answer["version"], answer["segments"]) == ("cancelled", 3, [])
    assert pointed(FETCHED, gone)["state"] == "ignored"
    moved = {**FETCHED, "modification_number": 3, "start_time": "2026-03-02T13:00:00Z"}
    assert limits(pointed(moved, FETCHED)) == [("13:00", "15:00", 150000.0)]


@pytest.mark.parametrize(
    "fields",
    [
        {"authorized": "yes"},
        {"modification_number": "2"},
        {"start_time": None},
        {"sites": [{"id": "hall-9"}]},
        {"id": None},
        {"sites": 5},
    ],
)
def test_a_wrong_dispatch_is_refused(fields: dict[str, Any]) -> None:
    answer = pointed({**FETCHED, **fields})
    assert (answer["state"], answer["segments"]) == ("rejected", []) and answer["error"]["message"]


def test_the_webhook_must_point_to_what_was_fetched() -> None:
    assert pointed({"webhook": HOOK, "fetched": {**FETCHED, "id": "d-8"}})["error"]["code"] == "wrong_resource"


def test_without_a_site_file_only_one_site_can_be_meant() -> None:
    assert pointed(FETCHED, site=Site(), load_w=1e5)["error"]["code"] == "which_site"
    one = {**FETCHED, "sites": FETCHED["sites"][:1]}
    assert limits(pointed(one, site=Site(), load_w=100000.0)) == [("14:00", "15:00", 50000.0)]
