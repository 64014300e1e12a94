import json
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.client.fake_api import FakeApi

PLAN = {
    "made_at": "2026-01-01T00:00:00Z",
    "horizon_end": "2026-01-03T00:00:00Z",
    "slot_s": 900,
    "currency": "EUR",
    "objective": 12.5,
    "bound": 12.0,
    "gap": 0.04,
    "placements": [
        {
            "job_id": "j1",
            "region": "north",
            "intervals": [["2026-01-01T06:00:00Z", "2026-01-01T08:00:00Z"], ["2026-01-01T10:00:00Z", "2026-01-01T11:00:00Z"]],
            "cost": 1.5,
            "run_now_cost": 3.0,
            "energy_kwh": 10.0,
            "carbon_kg": 2.0,
            "late_s": 0.0,
            "reason": "cheapest start before the deadline",
        }
    ],
    "unplaced": {"j2": "no region has 16 GPUs"},
}
REGION = {
    "name": "north",
    "address": "http://10.0.0.1:8265",
    "reachable": True,
    "error": None,
    "gpus": 8,
    "gpus_used": 2,
    "jobs_running": 1,
    "draw_w": 1200.0,
    "power_limit_w": 4000.0,
    "budget_w": 2000.0,
    "price": {"unit": "EUR/MWh", "source": "energy_charts", "now": -3.25, "basis": "published"},
    "carbon": None,
}
NOTHING = {
    "power_w": None,
    "known_w": None,
    "gpus": 0,
    "unknown_gpus": 0,
    "simulated": False,
    "sentence": "unknown: no agent tells of any GPU here",
}
FLEET = {"at": "2026-01-01T00:00:00Z", "basis": "modelled", "draw": NOTHING, "regions": []}
SIGNAL = {
    "region": "north",
    "kind": "price",
    "unit": "EUR/MWh",
    "source": "energy_charts",
    "start": "2026-01-01T00:00:00Z",
    "slot_s": 3600,
    "values": [10.0, 20.0, None, -5.0, 0.0, *([50.0] * 8)],
    "basis": ["published"] * 5 + ["repeat-day"] * 8,
}


@pytest.fixture
def grid(api: FakeApi) -> FakeApi:
    answers: dict[str, Any] = {
        "/v1/plan": PLAN,
        "/v1/regions": {"regions": [REGION]},
        "/v1/fleet": FLEET,
        "/v1/signals": SIGNAL,
        "/v1/plan/j1": {
            "job": {"id": "j1", "state": "queued"},
            "placement": PLAN["placements"][0],  # type: ignore[index]
            "alternatives": [{"region": "south", "start_at": "2026-01-01T01:00:00Z", "cost": 4.0, "why_not": "dearer by 2.50"}],
            "why": "It waits for cheaper power.",
        },
        "/v1/savings": {
            "energy_basis": "modelled",
            "currency": "EUR",
            "totals": {"jobs": 3, "energy_kwh": 9.0, "cost": 5.0, "cost_run_now": 10.0, "carbon_kg": None,
                       "carbon_kg_run_now": 4.0, "deadline_misses": 0},
            "caveats": ["energy is modelled"],
        },
    }  # fmt: skip
    for path, answer in answers.items():
        api.answers["GET", path] = lambda _, answer=answer: (200, answer)  # type: ignore[misc]
    api.jobs["j1"] = {"id": "j1", "state": "queued", "deadline_at": "2026-01-01T18:00:00Z"}
    return api


def test_json_is_the_answer_of_the_api(grid: FakeApi, run: Run) -> None:
    assert json.loads(run("plan", "--json").stdout) == PLAN
    assert json.loads(run("plan", "show", "--json").stdout) == PLAN
    assert json.loads(run("fleet", "--json").stdout) == {"regions": [REGION], "fleet": FLEET, "alarms": None}
    assert json.loads(run("plan", "explain", "--json", "j1").stdout)["why"] == "It waits for cheaper power."
    assert json.loads(run("savings", "--json").stdout)["energy_basis"] == "modelled"


def test_explain_fleet_and_savings_for_people(grid: FakeApi, run: Run) -> None:
    told = run("plan", "explain", "j1").stdout
    assert "It waits for cheaper power." in told and "01-01 06:00 to 01-01 08:00" in told
    fleet = run("fleet").stdout
    assert "2/8" in fleet and "2,000 W" in fleet and "-3.2 EUR/MWh" in fleet
    saved = run("savings").stdout
    assert "5.00 EUR (50%)" in saved and "9.00 kWh (modelled)" in saved and "note: energy is modelled" in saved
    carbon = next(line for line in saved.splitlines() if line.startswith("carbon"))
    assert carbon.split() == ["carbon", "-", "4.00", "kg", "CO2e", "-"]  # unknown is not zero


def test_standing_alarms_are_told_beside_what_was_asked_for(grid: FakeApi, run: Run) -> None:
    grid.answers["GET", "/v1/events"] = lambda _: (200, {"events": []})
    alarm = {
        "key": "limit north",
        "region": "north",
        "sentence": "north is 0.3 kW above\x1b its limit",
        "since": "2026-01-01T05:00Z",
    }
    for alarms in ([alarm], []):
        grid.answers["GET", "/v1/status"] = lambda _, alarms=alarms: (200, {"alarms": alarms})  # type: ignore[misc]
        for command in ("jobs", "events", "fleet"):
            result = run(command)
            told = result.stdout if command == "fleet" else result.stderr
            assert ("ALARM since 01-01 05:00Z: north is 0.3 kW above\ufffd its limit" in told) is bool(alarms), command
            assert json.loads(run(command, "--json").stdout)["alarms"] == alarms
    del grid.answers["GET", "/v1/status"]
    result = run("jobs")
    assert result.exit_code == 0 and "does not say whether there are alarms" in result.stderr


def test_events(api: FakeApi, run: Run) -> None:
    posted: list[dict[str, Any]] = []
    event = {
        "source": "native",
        "event_id": "e1",
        "version": 1,
        "region": "north",
        "start": "2026-01-01T00:00:00Z",
        "end": None,
        "limit_w": 2000.0,
        "state": "active",
        "received_at": "2026-01-01T00:00:00Z",
        "reason": "heat",
        "test": True,
    }

    def create(body: bytes) -> tuple[int, Any]:
        posted.append(json.loads(body))
        return 201, event

    api.answers["POST", "/v1/events"] = create
    api.answers["GET", "/v1/events"] = lambda _: (200, {"events": [event]})
    result = run("events", "create", "--region", "north", "--limit-w", "2000", "--duration", "2h", "--id", "e1", "--test")
    assert result.stdout == "e1\n"
    assert posted == [{"event_id": "e1", "region": "north", "limit_w": 2000.0, "duration": "2h", "test": True}]
    result = run("events", "create", "--region", "n", "--limit-w", "1", "--duration", "2h", "--end", "x")
    assert result.exit_code == 2 and len(posted) == 1
    out = run("events").stdout
    assert "active (test)" in out and "open" in out and "2,000 W" in out and "01-01 00:00:00" in out
    assert json.loads(run("events", "list", "--json").stdout) == {"events": [event], "alarms": None}
    steps = [{"start": event["start"], "end": None, "limit_w": 2000.0, "interval_id": 4, "ramp_s": 60.0, "reason": "heat"}]
    line = {"at": event["start"], "version": 1, "what": "accepted", "sentence": "at most 2 kW", "message": ""}
    whole = {**event, "steps": steps, "branch": "rack-1", "opted_out": "a deadline"}
    api.answers["GET", "/v1/events/native/e1"] = lambda _: (200, {"event": whole, "history": [line]})
    assert json.loads(run("events", "show", "e1", "--json").stdout) == {**whole, "history": [line]}
    out = run("events", "show", "e1").stdout
    assert "rack-1" in out and "60 s" in out and "at most 2 kW" in out and "a deadline" in out
    told: list[dict[str, Any]] = []
    api.answers["POST", "/v1/events/native/e1/opt-out"] = lambda body: (told.append(json.loads(body)), (200, {"event": whole}))[
        1
    ]
    api.answers["DELETE", "/v1/events/native/e1/opt-out"] = lambda _: (200, {"event": event})
    assert run("events", "opt-out", "e1").exit_code == 2 and told == []
    assert "opted out" in run("events", "opt-out", "e1", "--reason", "a deadline").stdout and told == [{"reason": "a deadline"}]
    assert "binds again" in run("events", "opt-out", "e1", "--back").stdout
    assert "heat" in run("events", "show", "e1").stdout
    api.answers["DELETE", "/v1/events/native/e1"] = lambda _: (200, {**event, "state": "cancelled"})
    assert run("events", "cancel", "e1").stdout == "event e1 is cancelled\n"
    api.answers["GET", "/v1/events"] = lambda _: (200, {"events": [event, {**event, "source": "utility"}]})
    result = run("events", "cancel", "e1")
    assert result.exit_code == 2 and "one of native, utility" in result.stderr
    assert run("events", "cancel", "e1", "--source", "native").exit_code == 0
