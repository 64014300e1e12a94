"""Which events are listed, the limits beside them, and what a place drew lately, over the real API."""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dispatcher.api.event_list import limits_json
from dispatcher.api.event_list import listed as chosen
from dispatcher.api.services import AlarmStatus
from dispatcher.cli import main
from dispatcher.store import GridEvent, GridEventChange
from policies.world import BranchView, Budget
from tests.api.fake import FakeServices, Server
from tests.api.test_event_report import at, site_of
from tests.policies.worlds import NOW, region, world


def event(event_id: str, start: datetime, end: datetime | None, **more: Any) -> GridEvent:
    given: dict[str, Any] = {"region": "north", "limit_w": 1000.0, "received_at": start, **more}
    return GridEvent("utility", event_id, 1, start=start, end=end, **given)


@pytest.fixture
def server(tmp_path: Path) -> Any:
    services = FakeServices(tmp_path)
    now, day = services.clock.now(), timedelta(days=1)
    for one in (
        event("old", now - 40 * day, now - 40 * day + timedelta(hours=1)),
        event("old-and-open", now - 50 * day, None),
        event("recent", now - 20 * day, now - 20 * day + timedelta(hours=1)),
        event("soon", now + day, now + 2 * day),
        event("cancelled", now - 40 * day, now + day, received_at=now - day, cancelled=True),
    ):
        services.store.save_grid_event(
            one, None, change=GridEventChange(one.source, one.event_id, one.received_at, 1, "accepted", "at most 1 kW")
        ).result(10)
    with Server(services) as running:
        yield running


def listed(server: Server, query: str = "") -> list[str]:
    return [one["event_id"] for one in server.get(f"/v1/events{query}")["events"]]


def test_what_is_in_force_then_what_is_to_come_then_the_last_month(server: Server) -> None:
    assert listed(server) == ["old-and-open", "soon", "recent", "cancelled"]
    assert listed(server, "?since=1970-01-01T00:00:00Z") == ["old-and-open", "soon", "recent", "cancelled", "old"]
    assert listed(server, "?state=active,scheduled") == ["old-and-open", "soon"]
    assert listed(server, "?event_id=old") == ["old"], "an id is found however old"
    answer = server.get("/v1/events?limit=2")
    assert [one["event_id"] for one in answer["events"]] == ["old-and-open", "soon"], "what is not over is left out last"
    assert answer["left_out"] == 2


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("since=yesterday", "since"),
        ("since=2026-01-01T00:00:00", "since"),
        ("state=over", "state"),
        ("limit=0", "limit"),
        ("limit=10001", "limit"),
        ("limit=x", "limit"),
        ("source=utility", "source"),
    ],
)
def test_wrong_questions_are_told(server: Server, query: str, field: str) -> None:
    answer = server.call("GET", f"/v1/events?{query}")
    assert answer.status_code == 422 and [one["field"] for one in answer.json()["error"]["problems"]] == [field]


def test_the_command_lists_all_when_asked(server: Server) -> None:
    few = CliRunner().invoke(main, ["events", "list", "--address", server.url])
    every = CliRunner().invoke(main, ["events", "list", "--all", "--address", server.url])
    assert few.exit_code == 0 and "recent" in few.output and "old " not in few.output
    assert every.exit_code == 0 and "old " in every.output
    shown = CliRunner().invoke(main, ["events", "show", "old", "--address", server.url])
    assert shown.exit_code == 0 and "at most 1 kW" in shown.output, "an event is found however old"


def test_at_most_so_many_are_kept() -> None:
    over = [event(f"e{i}", NOW - timedelta(days=i + 1), NOW - timedelta(days=i)) for i in range(5)]
    opened = event("open", NOW - timedelta(days=90), None)
    assert [one.event_id for one in chosen([*over, opened], NOW, 3)] == ["open", "e0", "e1"]


def test_what_is_in_force_is_never_left_out_for_what_is_to_come() -> None:
    hour = timedelta(hours=1)
    ahead = [event(f"a{i}", NOW + (9 - i) * hour, NOW + (10 - i) * hour) for i in range(9)]
    live = [event("live-1", NOW - hour, NOW + hour), event("live-2", NOW - 2 * hour, None)]
    over = [event("over", NOW - 3 * hour, NOW - 2 * hour)]
    assert [one.event_id for one in chosen([*ahead, *live, *over], NOW, 4)] == ["live-2", "live-1", "a8", "a7"]
    assert [one.event_id for one in chosen([*ahead, *live, *over], NOW, 1)] == ["live-2", "live-1"]
    assert [one.event_id for one in chosen([*ahead, *live, *over], NOW, 99)][-2:] == ["a0", "over"]


def test_limits_are_those_of_the_decisions() -> None:
    hour = timedelta(hours=1)
    step = f"e1 from {NOW - hour:%Y-%m-%dT%H:%M:%S.%fZ}"
    budgets = (
        Budget("north", NOW - hour, NOW + hour, 3000.0, step, "scarcity", "utility"),
        Budget("north", NOW + hour, None, 2000.0, "e2", "peak"),
        Budget("north", NOW - 2 * hour, NOW - hour, 1000.0, "over", ""),
        Budget("north", NOW - 2 * hour, NOW - hour, 1000.0, "back", "", recovery_s=7200.0),
    )
    view = region("north", None, power_limit_w=9000.0, branches=(BranchView("rack-1", 4000.0),))
    told = limits_json(world([], [view], budgets=budgets), NOW)
    assert [(one["branch"], one["limit_w"], one["event_id"], one["source"], one["holds"]) for one in told] == [
        (None, 9000.0, None, None, True),
        ("rack-1", 4000.0, None, None, True),
        (None, 1000.0, "back", "api", False),
        (None, 3000.0, "e1", "utility", True),
        (None, 2000.0, "e2", "api", False),
    ]
    assert told[2]["way_back"] == pytest.approx(0.5)


def test_a_site_s_draw_is_that_of_its_meter(tmp_path: Path) -> None:
    with site_of(tmp_path) as site:
        site.minutes(at(14), at(16), lambda when: None if at(15) <= when < at(15.25) else 90_000.0)
        _draw_is_told(site.server)


def _draw_is_told(server: Server) -> None:
    told = server.get("/v1/draw?region=north&hours=2")
    assert (told["basis"], told["estimated"], told["simulated"], told["note"]) == ("site meter", False, False, None)
    known = [value for value in told["watts"] if value is not None]
    assert told["step_s"] == 60.0 and set(known) == {90_000.0} and 100 < len(known) < 110, "a gap stays a gap"
    assert server.get("/v1/draw?region=north&branch=rack-1")["note"] == "nothing was measured in this time"
    wrong = server.call("GET", "/v1/draw?region=south&hours=49&x=1")
    assert {one["field"] for one in wrong.json()["error"]["problems"]} == {"region", "hours", "x"}
    assert server.call("GET", "/v1/draw?region=north&branch=rack-9").status_code == 422


def test_nothing_is_measured_in_a_replay(tmp_path: Path) -> None:
    with site_of(tmp_path, replay={"start": "2026-06-01T00:00:00Z"}) as replayed:
        told = replayed.server.get("/v1/draw?region=north")
    assert told["watts"] == [] and "time is replayed" in told["note"]


def test_an_event_says_where_nodes_refuse_our_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    services = FakeServices(tmp_path)
    before = services.snapshot()
    why = "nodes of north have obeyed a newer control plane (epoch 6, ours is 5) and refuse our orders"
    alarm = AlarmStatus("epoch north", "north", why, services.clock.now())
    with Server(services) as running:
        asked = {"region": "north", "limit_w": 1000.0}
        made = running.call("POST", "/v1/events", json={"event_id": "e1", **asked})
        assert made.status_code == 201 and made.json()["event"]["warning"] is None
        monkeypatch.setattr(services, "snapshot", lambda: replace(before, alarms=(alarm,)))
        made = running.call("POST", "/v1/events", json={"event_id": "e2", **asked})
        said = f"not in force on GPUs there: {why}"
        assert made.status_code == 201 and made.json()["event"]["warning"] == said
        assert {one["warning"] for one in running.get("/v1/events")["events"]} == {said}
        assert running.get("/v1/events/api/e1")["event"]["warning"] == said
        created = CliRunner().invoke(
            main, ["events", "create", "--region", "north", "--limit-w", "1", "--address", running.url]
        )
        assert created.exit_code == 0 and said in created.stderr
        shown = CliRunner().invoke(main, ["events", "list", "--address", running.url], env={"COLUMNS": "200"})
        assert "not in force" in shown.stdout
        assert why in " ".join(CliRunner().invoke(main, ["events", "show", "e1", "--address", running.url]).stdout.split())
        running.call("DELETE", "/v1/events/api/e2")
        assert running.get("/v1/events/api/e2")["event"]["warning"] is None
