"""``gridshift fleet``: once and quiet where it is no terminal, kept up to date on one."""

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from dispatcher import cli_fleet, render
from tests.cli.conftest import Run
from tests.cli.test_cli_grid import REGION
from tests.client.fake_api import FakeApi
from tests.power.fleet_samples import busy_fleet


@pytest.fixture
def fleet(api: FakeApi) -> FakeApi:
    api.answers["GET", "/v1/fleet"] = lambda _: (200, busy_fleet())
    api.answers["GET", "/v1/regions"] = lambda _: (200, {"regions": [REGION, {**REGION, "name": "nordics"}]})
    return api


def test_for_people(fleet: FakeApi, run: Run) -> None:
    result = run("fleet")
    assert result.exit_code == 0, result.output
    said = result.stdout
    assert "GPUs draw SIMULATED 1,696 W known; 2 of 8 GPUs unknown (without PUE)" in said
    row = next(line for line in said.splitlines() if "train-a" in line and "342 W" in line)
    assert "350 W" in row and "60 °C" in row and "90%" in row and "capped to 50%; throttled: sw power cap" in row
    assert "cap drifted: someone else set 700 W" in said and "SILENT since 03-01 11:57 UTC: its draw is unknown" in said
    assert "cannot cap: it has no right to set limits" in said and "idle, held" in said and "lost" in said
    silent = said[said.index("host-s2") :]
    assert "?" in silent and " 0 W" not in said and "SIMULATED" in silent
    assert "rack-1" in said and "2,000 W" in next(line for line in said.splitlines() if "rack-1" in line)
    assert "\x1b" not in said, "no control characters where it is no terminal"


def test_a_limit_stands_beside_what_is_measured_where_that_is_known(fleet: FakeApi, run: Run) -> None:
    regions = [{**REGION, "draw_w": 1548.0, "site_w": 1073.0}, {**REGION, "name": "nordics", "draw_w": 1548.0, "site_w": None}]
    fleet.answers["GET", "/v1/regions"] = lambda _: (200, {"regions": regions})
    said = run("fleet").stdout
    assert "1,073 W" in next(line for line in said.splitlines() if "north" in line)
    assert "1,548 W stated" in next(line for line in said.splitlines() if "nordics" in line)


def test_a_cap_is_told_with_its_reason_and_an_events_end(fleet: FakeApi, run: Run) -> None:
    told = busy_fleet()
    one = told["regions"][1]["branches"][0]["nodes"][0]
    lease = {"lease_id": "plan a", "kind": "economic", "uuid": "GPU-0", "limit_w": 500.0, "reason": "planned", "ends_at": None}
    event = {**lease, "lease_id": "event a", "kind": "event", "limit_w": 350.0, "reason": "evening peak"}
    one["leases"] = [lease, event, {**event, "uuid": "GPU-1", "limit_w": 1.0, "reason": "of another GPU"}]
    fleet.answers["GET", "/v1/fleet"] = lambda _: (200, told)
    assert "capped to 50% (evening peak, until released)" in run("fleet").stdout
    event["ends_at"] = "2026-03-01T18:30:00Z"
    one["leases"] = [lease, event]
    assert "capped to 50% (evening peak, until 03-01 18:30)" in run("fleet").stdout
    one["leases"] = [lease]
    assert "capped to 50% (planned); throttled" in run("fleet").stdout


def test_json_is_what_the_api_tells(fleet: FakeApi, run: Run) -> None:
    told = json.loads(run("fleet", "--json").stdout)
    assert told["fleet"] == busy_fleet() and [one["name"] for one in told["regions"]] == ["north", "nordics"]
    one = json.loads(run("fleet", "--json", "--region", "north").stdout)
    assert [one["name"] for one in one["regions"]] == ["north"]
    assert ("GET", "/v1/fleet", {"region": "north"}) in fleet.requests


def test_no_gpu_is_told_with_what_to_do(fleet: FakeApi, run: Run) -> None:
    draw = {"power_w": None, "known_w": None, "gpus": 0, "unknown_gpus": 0, "simulated": False, "sentence": "unknown: no agent"}
    fleet.answers["GET", "/v1/fleet"] = lambda _: (200, {"draw": draw, "regions": []})
    said = run("fleet").stdout
    assert "GPUs draw unknown: no agent" in said and "gridshift agent" in said and "2/8" in said


def test_a_region_that_is_not_there(fleet: FakeApi, run: Run) -> None:
    problem = {"field": "region", "value": "east", "remedy": "must be one of north"}
    fleet.answers["GET", "/v1/fleet"] = lambda _: (422, {"error": {"message": "1 problem", "problems": [problem]}})
    result = run("fleet", "--region", "east")
    assert result.exit_code == 2 and "must be one of north" in result.stderr


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal of 150 columns was sent."""
    out = io.StringIO()

    def console(*, stderr: bool = False) -> Console:
        return Console(file=out, force_terminal=True, width=150, height=60, highlight=False, markup=False, color_system=None)

    monkeypatch.setattr(render, "console", console)
    return out


def rounds(monkeypatch: pytest.MonkeyPatch, *what: Callable[[], Any]) -> None:
    """Between looks do this, and then Ctrl-C."""
    to_do = list(what)

    def sleep(_: float) -> None:
        if not to_do:
            raise KeyboardInterrupt
        to_do.pop(0)()

    monkeypatch.setattr(cli_fleet.time, "sleep", sleep)


def test_a_terminal_is_kept_up_to_date(
    fleet: FakeApi, run: Run, terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = busy_fleet()
    later["regions"][1]["branches"][0]["nodes"][0]["gpus"][0]["power_w"] = 222.0

    def change() -> None:
        fleet.answers["GET", "/v1/fleet"] = lambda _: (200, later)

    def fail() -> None:
        fleet.answers["GET", "/v1/fleet"] = lambda _: (503, {"error": {"message": "the database is locked", "problems": []}})

    rounds(monkeypatch, change, fail, change)
    result = run("fleet")
    assert result.exit_code == 0, result.output
    said = terminal.getvalue()
    assert said.index("342 W") < said.index("222 W") < said.index("no news: the database is locked") < said.rindex("222 W")
    assert "what stands above is of the past" in said


def test_once_on_a_terminal_too(fleet: FakeApi, run: Run, terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds(monkeypatch)
    assert run("fleet", "--once").exit_code == 0
    assert terminal.getvalue().count("342 W") == 1
