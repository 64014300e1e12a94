"""/v1/meters over HTTP: readings pushed by a gateway, and every meter as it stands."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher.api.auth import hash_token, new_token
from dispatcher.clock import VirtualClock
from dispatcher.power.agent_sums import AgentsDraw
from dispatcher.power.meter_store import MemoryMeterStore
from dispatcher.power.site_meters import SiteMeters
from dispatcher.store import Token
from tests.api.fake import FakeServices, Server

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
REGION: dict[str, Any] = {
    "name": "eu",
    "address": "http://127.0.0.1:1",
    "pue": 1.5,
    "branch": [{"name": "r1", "cooling_zone": "hall"}],
    "meter": [
        {"name": "main", "source": "push"},
        {"name": "pdu", "scope": "branch", "of": "r1", "unit": "kWh", "source": "push"},
        {"name": "inlet", "scope": "cooling_zone", "of": "hall", "unit": "degC", "source": "csv", "path": "/none"},
    ],
}


@pytest.fixture
def metered(tmp_path: Path) -> Iterator[Server]:
    services = FakeServices(tmp_path, region=[REGION])
    services.clock = VirtualClock(NOW)
    services.meters = SiteMeters(services.config, MemoryMeterStore(), agents=lambda *_: AgentsDraw(20_000.0))
    with Server(services) as running:
        yield running
    services.meters.close()


def at(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat()


def test_one_reading_and_the_same_again(metered: Server) -> None:
    for seconds in range(-60, 1, 5):
        metered.services.meters.read_meters(NOW + timedelta(seconds=seconds))
    body = {"at": "2026-03-01T13:00:00+01:00", "value": 41_000}
    assert (metered.call("POST", "/v1/meters/eu/main", json=body).json()) == {"accepted": 1, "duplicates": 0}
    again = metered.call("POST", "/v1/meters/eu/main", json=[body])
    assert (again.status_code, again.json()) == (202, {"accepted": 0, "duplicates": 1})
    told = metered.call("GET", "/v1/meters").json()
    main = told["meters"][0]
    assert (main["region"], main["name"], main["state"], main["quality"], main["age_s"]) == (
        "eu",
        "main",
        "ok",
        "measured",
        0.0,
    )
    assert main["last"]["value"] == 41_000.0 and main["level"]["power_w"] == 41_000.0
    assert (main["level"]["start"], main["level"]["end"]) == (at(-60), at(0))
    site, branch = told["power"]
    assert (site["power_w"], site["quality"], site["source"], site["difference_w"]) == (41_000.0, "measured", "meter", 11_000.0)
    assert (branch["branch"], branch["source"], branch["power_w"]) == ("r1", "agents", 20_000.0)


def test_a_list_of_a_counter(metered: Server) -> None:
    readings = [{"at": at(-60 * i), "value": 500.0 - i} for i in range(3)]
    assert metered.call("POST", "/v1/meters/eu/pdu", json=readings).json() == {"accepted": 3, "duplicates": 0}
    pdu = metered.call("GET", "/v1/meters").json()["meters"][1]
    assert (pdu["unit"], pdu["counter"], pdu["last"]["value"], pdu["last"]["end"]) == ("kWh", True, 500.0, None)
    assert pdu["level"]["power_w"] == 60_000.0


def test_meters_without_a_reading_are_unknown_and_not_zero(metered: Server) -> None:
    metered.services.meters.read_meters(NOW)
    told = metered.call("GET", "/v1/meters").json()
    inlet = told["meters"][2]
    assert (inlet["state"], inlet["quality"], inlet["last"], inlet["level"], inlet["age_s"]) == (
        "waiting",
        "unknown",
        None,
        None,
        None,
    )
    assert "cannot be read" in inlet["problem"]
    assert told["power"][0]["source"] == "agents x PUE" and told["power"][0]["power_w"] == 30_000.0


@pytest.mark.parametrize(
    ("body", "field", "remedy"),
    [
        ({"at": at(3), "value": 1}, "[0].at", "must not be in the future"),
        ({"at": at(-49 * 3600), "value": 1}, "[0].at", "must be of the last 48 h"),
        ({"at": "2026-03-01T12:00:00", "value": 1}, "at", "must be a time with an offset"),
        ({"at": 5, "value": 1}, "at", "must be a time with an offset"),
        ({"value": 1}, "at", "give the time of the reading as at"),
        ({"at": at(0), "end": at(0), "value": 1}, "at", "give the time of the reading as at"),
        ({"start": at(0), "end": at(-60), "value": 1}, "end", "must be after start"),
        ({"at": at(0)}, "value", "must be a number in the meter's unit"),
        ({"at": at(0), "value": None}, "value", "must be a number in the meter's unit"),
        ({"at": at(0), "value": True}, "value", "must be a number in the meter's unit"),
        ({"at": at(0), "value": "41"}, "value", "must be a number in the meter's unit"),
        ({"at": at(0), "value": 1e300}, "value", "must be a number in the meter's unit"),
        ({"at": at(0), "value": 1, "unit": "kW"}, "unit", "no such field"),
        ([{"at": at(0), "value": 1}, 7], "[1]", "must be an object"),
        ([], "body", "must be 1 to 10000 readings"),
        ("x", "body", "must be an object"),
    ],
)
def test_a_bad_reading_names_the_field_and_the_remedy(metered: Server, body: Any, field: str, remedy: str) -> None:
    answer = metered.call("POST", "/v1/meters/eu/main", json=body)
    problem = answer.json()["error"]["problems"][0]
    assert answer.status_code == 422 and problem["field"] == field and remedy in problem["remedy"]
    assert metered.call("GET", "/v1/meters").json()["meters"][0]["last"] is None


def test_not_a_number_is_not_even_json(metered: Server) -> None:
    answer = metered.call("POST", "/v1/meters/eu/main", data=b'{"at": "2026-03-01T12:00:00Z", "value": NaN}')
    assert answer.status_code == 422 and "no JSON number" in answer.json()["error"]["problems"][0]["remedy"]


def test_another_value_for_the_same_time_is_refused(metered: Server) -> None:
    metered.call("POST", "/v1/meters/eu/main", json={"at": at(0), "value": 1})
    answer = metered.call("POST", "/v1/meters/eu/main", json={"at": at(0), "value": 2})
    assert answer.status_code == 409 and "has 1 W for" in answer.json()["error"]["message"]


def test_unknown_meters_and_meters_that_are_read_otherwise(metered: Server) -> None:
    answer = metered.call("POST", "/v1/meters/eu/nope", json={"at": at(0), "value": 1})
    assert answer.status_code == 404 and "known: eu/inlet, eu/main, eu/pdu" in answer.json()["error"]["message"]
    answer = metered.call("POST", "/v1/meters/eu/inlet", json={"at": at(0), "value": 1})
    assert answer.status_code == 422 and "read from csv" in answer.json()["error"]["problems"][0]["remedy"]


def test_a_token_is_needed_where_there_are_tokens(metered: Server) -> None:
    token = new_token()
    metered.services.store.add_token(Token("gateway", hash_token(token), NOW)).result()
    body = {"at": at(0), "value": 41_000}
    assert metered.call("POST", "/v1/meters/eu/main", json=body).status_code == 401
    allowed = metered.call("POST", "/v1/meters/eu/main", json=body, headers={"Authorization": f"Bearer {token}"})
    assert (allowed.status_code, allowed.json()) == (202, {"accepted": 1, "duplicates": 0})


def test_the_api_page_shows_them(metered: Server) -> None:
    paths = metered.call("GET", "/openapi.json").json()["paths"]
    assert "get" in paths["/v1/meters"] and "post" in paths["/v1/meters/{region}/{meter}"]
