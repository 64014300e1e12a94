"""The fleet and its energy over HTTP."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dispatcher.power.energy import KnownNode
from policies.world import JobState
from tests.api.fake import FakeServices, Server
from tests.power.energy_samples import T0, at, wire


class Session:
    """An agent's connection that hears nothing."""

    def send(self, text: str, *, is_order: bool = False) -> None:
        """Nothing."""

    def close(self, why: str) -> None:
        """Nothing."""


def connect(services: FakeServices, node_id: str = "n1", **more: Any) -> None:
    node = {"node_id": node_id, "hostname": f"host-{node_id}", "region": "north", "branch": "rack-1", "boot_id": "b"}
    leases = more.pop("leases", [])
    node |= {"ray_node_id": None, "version": "1", "simulated": False, "started_at": 1.0, **more}
    info = {"uuid": "GPU-0", "index": 0, "name": "H100", "min_w": 200.0, "max_w": 700.0, "default_w": 700.0, "limit_w": 700.0}
    info |= {"mig": False, "energy_counter": True, "power_is_average": True, "module_scope": False, "notes": []}
    hello = {"type": "hello", "protocol": 1, "node": node, "can_cap": True, "why_not": "", "leases": leases, "epoch": 0}
    hello |= {"gpus": [info | {"simulated": node["simulated"]}]}
    cap = {"uuid": "GPU-0", "wanted_w": 350.0, "limit_w": 350.0, "enforced_w": 350.0, "state": "enforced", "since": 1.0}
    figures = {"uuid": "GPU-0", "power_w": 340.0, "limit_w": 350.0, "enforced_w": 350.0, "temperature_c": 61.0}
    figures |= {"sm_util": 0.98, "throttle": ["sw_power_cap"], "idle_state": "active", "jobs": ["j1"]}
    live = {"type": "live", "at": 1.0, "gpus": [figures | {"cap": cap | {"detail": ""}}], "frozen": [], "alarms": []}
    session = Session()
    for frame in (hello, live):
        answer = services.hub.receive(session, node["region"], json.dumps(frame))
        assert answer is None, answer


def test_the_fleet(server: Server, services: FakeServices) -> None:
    empty = server.get("/v1/fleet")
    assert empty["draw"]["power_w"] is None and empty["basis"] == "modelled"
    assert [one["name"] for one in empty["regions"]] == ["north", "south"]
    assert server.get("/v1/status")["energy_basis"] == "modelled"
    connect(services)
    connect(services, "n2", simulated=True)
    told = server.get("/v1/fleet")
    assert (told["draw"]["power_w"], told["draw"]["gpus"], told["draw"]["simulated"]) == (680.0, 2, True)
    assert told["draw"]["sentence"] == "SIMULATED 680 W of 2 GPUs" and told["basis"] == "simulated"
    assert told["of"] == "the GPUs, without PUE"
    (branch,) = told["regions"][0]["branches"]
    assert (branch["name"], branch["power_limit_w"]) == ("rack-1", 5000.0)
    (gpu,) = branch["nodes"][0]["gpus"]
    assert gpu["jobs"] == ["j1"] and gpu["throttle"] == ["sw_power_cap"] and gpu["state"] == "active"
    assert (gpu["power_w"], gpu["enforced_w"], gpu["temperature_c"]) == (340.0, 350.0, 61.0)
    assert gpu["cap"]["state"] == "enforced" and gpu["cap"]["wanted_w"] == 350.0
    assert [one["name"] for one in server.get("/v1/fleet?region=south")["regions"]] == ["south"]
    assert server.get("/v1/status")["energy_basis"] == "simulated"
    for wrong in ("region=east", "regions=north"):
        answer = server.call("GET", f"/v1/fleet?{wrong}")
        assert answer.status_code == 422 and answer.json()["error"]["problems"][0]["remedy"]


def test_a_job_tells_which_of_its_gpus_are_capped_and_why(server: Server, services: FakeServices) -> None:
    server.submit("j1")
    attempt = services.launch("j1")
    held = {"lease_id": "event e GPU-0", "kind": "event", "uuid": "GPU-0", "limit_w": 350.0, "ends_in_s": 60.0, "epoch": 1}
    connect(services, leases=[held | {"reason": "evening peak: 350 W"}, held | {"lease_id": "plan j1 GPU-0", "limit_w": 420.0}])
    (cap,) = server.get("/v1/jobs/j1")["caps"]
    assert (cap["gpu"], cap["limit_w"], cap["default_w"], cap["reason"]) == (0, 350.0, 700.0, "evening peak: 350 W")
    services.end(attempt, JobState.SUCCEEDED)
    assert server.get("/v1/jobs/j1")["caps"] == []


def test_energy_by_the_minute(server: Server, services: FakeServices) -> None:
    rows = [wire(0), wire(1, None, energy_wh=1.0), wire(4, region="south", node_id="s", energy_wh=2.0)]
    services.energy.take(rows, T0 + timedelta(hours=1)).result(10)
    span = {"start": T0.isoformat(), "end": at(300).isoformat()}
    told = server.get("/v1/energy", params=span)
    assert told["step"] == "minute" and [one["energy_wh"] for one in told["intervals"]] == [6.0, 1.0, None, None, 2.0]
    assert told["gaps"] == [{"start": at(120).isoformat(), "end": at(240).isoformat()}]
    total = told["total"]
    assert (total["energy_wh"], total["job_wh"], total["idle_wh"], total["unattributed_wh"]) == (9.0, 8.0, 1.0, 0.0)
    assert total["gpu_seconds"] == 180.0 and told["simulated"] is False and told["note"] is None
    assert [one["covered"] for one in told["intervals"]] == [1.0, 1.0, 0.0, 0.0, 1.0]
    assert server.get("/v1/energy", params={**span, "region": "south"})["total"]["energy_wh"] == 2.0
    hour = server.get("/v1/energy", params={**span, "step": "hour"})
    assert [one["energy_wh"] for one in hour["intervals"]] == [9.0] and hour["gaps"] == []


def test_a_node_that_is_there_and_tells_nothing_is_not_covered(server: Server, services: FakeServices) -> None:
    gpus = ({"uuid": "GPU-0", "index": 0, "name": "H100"},)
    for minute in (0, 3):  # both are heard from the start on, n2 for the last time in its fourth minute
        heard = [KnownNode(name, f"host-{name}", "north", None, False, gpus, at(60 * minute)) for name in ("n1", "n2")]
        services.energy.note_nodes(heard)
    services.energy.note_nodes([replace(heard[0], last_seen_at=at(7200))])
    services.energy.take([wire(minute) for minute in (0, 1, 119)], T0 + timedelta(hours=3)).result(10)
    span = {"start": T0.isoformat(), "end": at(180).isoformat()}
    told = server.get("/v1/energy", params={**span, "region": "north"})
    assert [one["covered"] for one in told["intervals"]] == [0.5, 0.5, 0.0]
    assert told["total"]["covered"] == pytest.approx(2 / 6) and told["total"]["energy_wh"] == 12.0
    later = server.get("/v1/energy", params={"start": at(7140).isoformat(), "end": at(7200).isoformat()})
    assert later["total"]["covered"] == 1.0, "an hour after its last word a node is gone"
    assert server.get("/v1/energy", params={**span, "region": "south"})["total"]["covered"] == 0.0


def test_energy_of_a_job(server: Server, services: FakeServices) -> None:
    now = datetime.now(UTC)
    server.submit("mine")
    attempt = services.launch("mine")
    start = int(now.timestamp()) // 60 * 60 - 120
    rows = [wire(0, "mine", start=start + 60 * n, end=start + 60 * n + 60) for n in range(2)]
    services.energy.take(rows, now).result(10)
    span = {"start": (now - timedelta(minutes=5)).isoformat(), "end": now.isoformat()}
    told = server.get("/v1/energy", params={"job": "mine", **span})
    assert told["job"] == "mine" and told["total"]["job_wh"] == 12.0 and told["step"] == "minute"
    services.end(attempt, JobState.SUCCEEDED)
    assert server.get("/v1/energy?job=mine")["job"] == "mine", "from its start to its end"
    assert server.call("GET", "/v1/energy?job=nobody").status_code == 404
    last = server.get("/v1/energy")
    end = datetime.fromisoformat(last["end"])
    assert (end.second, end.microsecond) == (0, 0) and datetime.now(UTC) - end >= timedelta(seconds=20), (
        "a minute that is not over is no gap"
    )
    assert end - datetime.fromisoformat(last["start"]) == timedelta(hours=1)
    day = server.get("/v1/energy?step=hour")
    assert datetime.fromisoformat(day["end"]) - datetime.fromisoformat(day["start"]) == timedelta(days=1)


def test_what_cannot_be_asked(server: Server) -> None:
    for wrong, said in (
        ("step=day", "minute or hour"),
        ("start=yesterday", "with an offset"),
        ("start=2026-01-01T00:00:00", "with an offset"),
        ("start=0001-01-01T00:00:00%2B14:00", "with an offset"),
        ("start=9999-12-31T23:59:59Z", "with an offset"),
        ("region=east", "must be one of north, south"),
        ("job=a&region=north", "not both"),
        ("jobs=a", "no such parameter"),
        ("start=2026-01-02T00:00:00Z&end=2026-01-01T00:00:00Z", "after start"),
        ("start=2025-01-01T00:00:00Z&end=2026-01-01T00:00:00Z&step=minute", "step=hour"),
    ):
        answer = server.call("GET", f"/v1/energy?{wrong}")
        assert answer.status_code == 422 and said in answer.text, (wrong, answer.text)


def test_a_replay_says_that_meters_run_by_the_walls_clock(tmp_path: Any) -> None:
    services = FakeServices(tmp_path, replay={"start": "2026-01-01T00:00:00Z", "speed": 60.0})
    with Server(services) as server:
        assert "wall's clock" in server.get("/v1/energy")["note"]
