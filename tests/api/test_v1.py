"""Our own API: jobs, intents, the plan, regions and the control plane's own state."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from dispatcher.api import savings, views
from dispatcher.cli import main
from dispatcher.clock import VirtualClock
from dispatcher.config import RegionConfig
from dispatcher.errors import GridshiftError
from dispatcher.power.agent_sums import AgentsDraw
from dispatcher.power.meter_store import MemoryMeterStore
from dispatcher.power.site_meters import SiteMeters
from dispatcher.store import Attempt, Job, Request
from policies.flexibility import parse_flexibility
from policies.world import Alternative, Budget, JobState, KeptFree, Pausable, Placement, Plan, RegionView
from signals.points import Kind, Quality, SignalPoint
from tests.api.fake import FakeServices, Server, in_an_hour
from tests.policies import worlds

FLEX = {"gridshift.pausable": "checkpoint", "gridshift.team": "vision", "gridshift.group": "nightly"}


def act(server: Server, job_id: str, what: str) -> Any:
    return server.call("POST", f"/v1/jobs/{job_id}/{what}")


def test_submit_and_read_back(server: Server, services: FakeServices) -> None:
    deadline = in_an_hour()
    body = {"entrypoint": "python t.py", "metadata": {**FLEX, "gridshift.deadline": deadline, "gridshift.runtime": "10m"}}
    answer = server.call("POST", "/v1/jobs", json=body)
    assert answer.status_code == 201
    job = answer.json()
    assert (job["state"], job["team"], job["group"], job["runtime_s"]) == ("queued", "vision", "nightly", 600.0)
    assert datetime.fromisoformat(job["deadline_at"]) == datetime.fromisoformat(deadline)
    attempt = services.launch(job["id"])
    found = server.get(f"/v1/jobs/{job['id']}")
    assert found["state"] == "running" and found["region"] == "north"
    assert found["attempts"][0]["submission_id"] == attempt.submission_id == f"{job['id']}-1"
    kinds = [event["new_state"] for event in server.get(f"/v1/jobs/{job['id']}/events")["events"]]
    assert kinds == ["queued", "launching", "running"]
    services.say(attempt, "line\n")
    assert server.call("GET", f"/v1/jobs/{job['id']}/logs").text == "line\n"
    assert server.call("GET", f"/v1/jobs/{job['id']}/result").status_code == 404


@pytest.mark.parametrize("given", [{"gridshift.deadline": "1h", "gridshift.runtime": "2h"}, {"gridshift.deadline": "1m"}])
def test_a_deadline_that_cannot_be_met_is_taken_with_a_warning(
    server: Server, services: FakeServices, given: dict[str, str]
) -> None:
    answer = server.call("POST", "/v1/jobs", json={"entrypoint": "true", "metadata": given})
    assert answer.status_code == 201
    job = answer.json()
    assert job["warning"].startswith("cannot end by its deadline") and "counts as late" in job["warning"]
    assert job["reason"] == f"submitted; warning: it {job['warning']}" and job["late_s"] is None
    assert server.get(f"/v1/jobs/{job['id']}")["warning"] == job["warning"]
    assert "warning: it cannot end by its deadline" in server.get(f"/api/jobs/{job['id']}")["message"]
    fine = server.call("POST", "/v1/jobs", json={"entrypoint": "true", "metadata": {"gridshift.deadline": "6h"}}).json()
    assert fine["warning"] is None and fine["reason"] == "submitted"


def large(gpus: float) -> RegionView:
    return RegionView("north", True, gpus, None, None, None, None)


def test_a_job_that_no_region_can_ever_run_is_taken_with_a_warning(server: Server, services: FakeServices) -> None:
    south = RegionView("south", True, 1.0, None, None, None, None)
    services.views = (large(1.0), south)
    body = {"entrypoint": "true", "entrypoint_num_gpus": 8, "metadata": {"gridshift.deadline": "6h"}}
    answer = server.call("POST", "/v1/jobs", json=body)
    assert answer.status_code == 201
    job = answer.json()
    said = "it needs 8 GPUs and the largest of its 2 regions, north, has 1; ask for at most 1, or add GPUs there"
    assert job["warning"] == job["reason"] == f"can never start as things are: {said}"
    assert server.get(f"/api/jobs/{job['id']}")["message"] == job["reason"]
    assert server.get(f"/v1/plan/{job['id']}")["why"] == job["reason"]
    assert server.get("/v1/jobs")["jobs"][0]["warning"] == job["reason"]
    caveats = server.get("/v1/savings")["caveats"]
    assert f"1 job waits that no region can ever run as things are: {job['id']}" in caveats
    plain = server.call("POST", "/v1/jobs", json={"entrypoint": "true", "entrypoint_num_gpus": 8}).json()
    assert "its region, north, has 1" in plain["warning"], "a job without wishes goes to the default region"
    for known in ((large(8.0), south), (large(1.0), replace(south, reachable=False))):
        services.views = known
        assert server.get(f"/v1/jobs/{job['id']}")["warning"] is None, "a region grew, or one is not known any more"
    assert server.call("POST", "/v1/jobs", json=body).json()["reason"] == "submitted"


def test_a_job_tells_whether_it_kept_its_deadline(server: Server, services: FakeServices) -> None:
    services.clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
    for job_id in ("in time", "late", "fails", "goes", "waits"):
        job_id = job_id.replace(" ", "-")
        assert server.submit(job_id, metadata={**FLEX, "gridshift.deadline": "2h", "gridshift.runtime": "1h"}).ok
    server.submit("free", metadata=FLEX)
    attempts = {job_id: services.launch(job_id) for job_id in ("in-time", "late", "fails", "free")}
    services.clock.advance(3600)
    services.end(attempts["in-time"], JobState.SUCCEEDED)
    services.end(attempts["fails"], JobState.FAILED)
    services.end(attempts["free"], JobState.SUCCEEDED)
    services.change("goes", to=JobState.CANCELLED)
    assert server.get("/v1/jobs/waits")["deadline_met"] is None
    services.clock.advance(2 * 3600)
    services.end(attempts["late"], JobState.SUCCEEDED)
    told = {job["id"]: (job["deadline_met"], job["late_s"]) for job in server.get("/v1/jobs")["jobs"]}
    assert told == {
        "in-time": (True, 0.0),
        "late": (False, 3600.0),
        "fails": (False, 0.0),
        "goes": (None, None),
        "free": (None, None),
        "waits": (False, 3600.0),
    }
    savings_told = server.get("/v1/savings")
    assert savings_told["totals"]["deadline_misses"] == 3
    assert "deadline misses count 1 of jobs that wait and whose deadlines have passed" in savings_told["caveats"]


def test_what_remains_of_a_job_counts_down_while_it_runs(server: Server, services: FakeServices) -> None:
    services.clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))

    def remaining_s() -> float:
        told = server.get("/v1/jobs/j")["remaining_s"]
        assert [told] == [job["remaining_s"] for job in server.get("/v1/jobs")["jobs"]]
        return float(told)

    assert server.submit("j", metadata={**FLEX, "gridshift.runtime": "4m"}).ok
    assert remaining_s() == 240.0
    attempt = services.launch("j")
    services.clock.advance(150)
    assert remaining_s() == 90.0
    services.clock.advance(150)
    assert remaining_s() == 0.0
    services.end(attempt, JobState.SUCCEEDED)
    assert remaining_s() == 0.0


def test_what_remains_stands_while_a_job_is_frozen_and_while_it_restores_its_checkpoint() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    flex = parse_flexibility({"gridshift.runtime": "1h"}, now=start, gpus_requested=0.0, regions=["north"])
    job = Job("j", Request("true"), flex, JobState.RUNNING, start, start, run_started_at=start)

    def left_s(one: Job, minutes: float, frozen_s: float = 0.0) -> float:
        return views.remaining_s(one, start + timedelta(minutes=minutes), frozen_s)

    assert left_s(job, 10) == 3000.0 and left_s(job, 10, frozen_s=120.0) == 3120.0
    assert left_s(replace(job, frozen_at=start + timedelta(minutes=6)), 10) == 3240.0
    assert left_s(replace(job, pauses=1, progress_s=600.0), 10) == 2400.0 + flex.restart_s
    assert left_s(replace(job, run_started_at=None, progress_s=600.0), 10) == 3000.0


def test_pages(server: Server, services: FakeServices) -> None:
    for n in range(5):
        server.submit(f"j{n}", metadata={"gridshift.team": "a" if n % 2 else "b"})
    services.change("j0", to=JobState.CANCELLED)
    seen: list[str] = []
    cursor = None
    while True:
        page = server.get("/v1/jobs", params={"limit": 2, "cursor": cursor})
        seen += [job["id"] for job in page["jobs"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == ["j4", "j3", "j2", "j1", "j0"]
    assert [job["id"] for job in server.get("/v1/jobs?state=cancelled")["jobs"]] == ["j0"]
    assert [job["id"] for job in server.get("/v1/jobs?team=a")["jobs"]] == ["j3", "j1"]
    for wrong in ("state=done", "limit=0", "limit=x", "limit=99999", "cursor=zzz", "stat=queued", "limit=²"):
        assert server.call("GET", f"/v1/jobs?{wrong}").status_code == 422, wrong


def test_cancel(server: Server, services: FakeServices) -> None:
    server.submit("j")
    before = services.nudges
    assert act(server, "j", "cancel").json()["cancel_requested"] is True
    assert services.nudges > before
    events = len(services.store.events("j"))
    assert act(server, "j", "cancel").status_code == 200
    assert len(services.store.events("j")) == events
    assert act(server, "j", "pause").status_code == 409
    services.change("j", to=JobState.CANCELLED)
    assert act(server, "j", "cancel").json()["state"] == "cancelled"
    server.submit("k")
    services.end(services.launch("k"), JobState.SUCCEEDED)
    told = act(server, "k", "cancel")
    assert told.status_code == 409 and told.json()["error"]["message"] == "job k has ended (succeeded) and cannot be cancelled"
    assert server.call("POST", "/api/jobs/k/stop").json() == {"stopped": False}
    assert services.store.job("k").cancel_requested_at is None


def test_pause_and_resume(server: Server, services: FakeServices) -> None:
    server.submit("plain")
    server.submit("check", metadata=FLEX)
    assert act(server, "plain", "pause").json()["held"] is True
    assert act(server, "plain", "pause").status_code == 200
    assert act(server, "plain", "resume").json()["held"] is False
    assert act(server, "plain", "resume").status_code == 200
    services.launch("plain")
    told = act(server, "plain", "pause")
    assert told.status_code == 409 and "without gridshift.pausable=checkpoint" in told.json()["error"]["message"]
    services.launch("check")
    assert act(server, "check", "pause").json()["held"] is True
    services.change("check", to=JobState.SUCCEEDED)
    for what in ("pause", "resume"):
        assert act(server, "check", what).status_code == 409


def test_a_job_that_its_owner_paused_says_so_at_once_and_shows_no_plan(server: Server, services: FakeServices) -> None:
    server.submit("j", metadata=FLEX)
    now = datetime.now(UTC)
    placement = Placement("j", "north", ((now, now + timedelta(hours=1)),), 5.0, 1.5, None, 0.0, "cheapest start")
    services.plan = Plan(now, now + timedelta(days=2), 900, {"j": placement}, {"j": "every slot is taken"}, 5.0)
    services.change("j", reason="cheapest start", planned_region="north", planned_start_at=now)
    told = act(server, "j", "pause").json()
    assert told["reason"] == "paused by its owner; it waits until it is resumed"
    assert (told["planned_region"], told["planned_start_at"]) == (None, None)
    assert server.get("/api/jobs/j")["message"] == told["reason"]
    explained = server.get("/v1/plan/j")
    assert explained["placement"] is None and explained["why"] == told["reason"]
    services.change("j", reason="cheapest start", planned_region="north", planned_start_at=now)  # a tick that did not know yet
    assert server.get("/v1/plan/j")["why"] == told["reason"]
    act(server, "j", "resume")
    assert server.get("/v1/plan/j")["placement"] is not None
    services.launch("j")
    told = act(server, "j", "pause").json()
    assert told["reason"] == "its owner paused it; it will wait until it is resumed"
    assert server.get("/v1/plan/j")["placement"] is None


def test_run_now_ends_a_pause_and_is_withdrawn_by_the_next(server: Server, services: FakeServices) -> None:
    server.submit("j", metadata={**FLEX, "gridshift.earliest": "6h"})
    act(server, "j", "pause")
    before = services.nudges
    told = act(server, "j", "run-now").json()
    assert (told["run_now"], told["held"]) == (True, False) and services.nudges > before
    reasons = [event["reason"] for event in server.get("/v1/jobs/j/events")["events"]]
    assert reasons[-1] == "its owner asked for it to run now, whatever power costs"
    assert act(server, "j", "run-now").status_code == 200 and len(services.store.events("j")) == len(reasons)
    told = act(server, "j", "pause").json()
    assert (told["run_now"], told["held"]) == (False, True)
    act(server, "j", "cancel")
    assert "is being cancelled" in act(server, "j", "run-now").json()["error"]["message"]
    services.change("j", to=JobState.CANCELLED)
    assert act(server, "j", "run-now").status_code == 409


def test_delete_hides_and_keeps_the_id(server: Server, services: FakeServices) -> None:
    server.submit("j")
    server.submit("k")
    assert server.call("DELETE", "/api/jobs/j").status_code == 400
    told = server.call("DELETE", "/v1/jobs/k")
    assert told.status_code == 409 and "non-terminal state (queued)" in told.json()["error"]["message"]
    services.change("k", to=JobState.CANCELLED)
    assert server.call("DELETE", "/v1/jobs/k").json() == {"id": "k", "deleted": True}
    assert server.call("DELETE", "/v1/jobs/k").status_code == 404
    services.change("j", to=JobState.CANCELLED)
    assert server.call("DELETE", "/api/jobs/j").json() == {"deleted": True}
    assert server.call("DELETE", "/api/jobs/j").status_code == 404
    assert server.get("/api/jobs/") == [] and server.get("/v1/jobs")["jobs"] == []
    assert server.call("GET", "/v1/jobs/j").status_code == 404
    assert server.submit("j").status_code == 400


def test_an_intent_that_loses_a_race_is_decided_anew(
    server: Server, services: FakeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.submit("j")
    real, raced = services.store.apply, []

    def apply(changes: Any) -> Any:
        if not raced:
            raced.append(1)
            services.launch("j")
        return real(changes)

    monkeypatch.setattr(services.store, "apply", apply)
    assert act(server, "j", "cancel").status_code == 200
    job = services.store.job("j")
    assert job.cancel_requested_at is not None and job.state is JobState.RUNNING


def test_the_plan(server: Server, services: FakeServices) -> None:
    assert server.call("GET", "/v1/plan").status_code == 404
    server.submit("j", metadata=FLEX)
    server.submit("k", metadata=FLEX)
    now = datetime.now(UTC)
    late = Alternative("south", now, 9.0, "dearer by 4.00 EUR")
    times = ((now, now + timedelta(hours=1)),)
    placement = Placement("j", "north", times, 5.0, 1.5, None, 0.0, "cheapest start", run_now_cost=7.0, alternatives=(late,))
    services.plan = Plan(now, now + timedelta(days=2), 900, {"j": placement}, {"k": "no region has room"}, 5.0, 4.5, 0.1)
    plan = server.get("/v1/plan")
    assert plan["placements"][0]["intervals"] == [[now.isoformat(), (now + timedelta(hours=1)).isoformat()]]
    assert (plan["currency"], plan["bound"], plan["gap"], plan["unplaced"]) == ("EUR", 4.5, 0.1, {"k": "no region has room"})
    told = server.get("/v1/plan/j")
    assert told["placement"]["run_now_cost"] == 7.0 and told["alternatives"][0]["why_not"] == "dearer by 4.00 EUR"
    assert told["why"] == "submitted; plan: cheapest start"
    assert told["planning"] == {
        "currency": "EUR",
        "carbon_price": 0.0,
        "price_weight": 1.0,
        "pue": {"north": 1.0, "south": 1.0},
    }
    assert (told["placement"]["cap"], told["placement"]["gpu_type"]) == (1.0, None)
    assert server.get("/v1/plan/k")["why"] == "submitted; not placed: no region has room"
    services.change("k", reason="no region has room")
    assert server.get("/v1/plan/k")["why"] == "no region has room", "said once"
    services.change("j", reason="what an older plan said", planned_region="north", planned_start_at=now)
    assert server.get("/v1/plan/j")["why"] == "cheapest start", "one reason: that of the plan that stands"
    assert plan["note"] is None and told["alternatives_missing"] is None
    services.change("j", to=JobState.CANCELLED, reason="cancelled")
    assert server.get("/v1/plan/j")["placement"] is None


def test_a_plan_tells_what_it_keeps_free_for_serving(server: Server, services: FakeServices) -> None:
    server.submit("j", metadata=FLEX)
    server.submit("k", metadata=FLEX)
    now = datetime.now(UTC)
    hours = [now + n * timedelta(hours=1) for n in range(5)]
    kept = tuple(
        KeptFree(where, start, end, 3.0, 2100.0, f"{where} keeps 3")
        for where, start, end in (("north", *hours[:2]), ("north", *hours[2:4]), ("north", *hours[3:5]), ("south", *hours[:2]))
    )
    placement = Placement("j", "north", ((hours[1], hours[2]),), 5.0, 1.5, None, 0.0, "cheapest start")
    services.plan = Plan(now, hours[4], 900, {"j": placement}, {"k": "no room"}, 5.0, kept=kept)
    told = server.get("/v1/plan")["kept_free"]
    assert len(told) == 4 and told[0] == {
        "region": "north", "start": now.isoformat(), "end": hours[1].isoformat(),
        "gpus": 3.0, "power_w": 2100.0, "sentence": "north keeps 3",
    }  # fmt: skip
    placed = server.get("/v1/plan/j")["kept_free"]
    assert [(one["region"], one["start"]) for one in placed] == [("north", now.isoformat()), ("north", hours[2].isoformat())]
    assert {one["region"] for one in server.get("/v1/plan/k")["kept_free"]} == {"north", "south"}, "wherever it may run"
    services.change("j", to=JobState.CANCELLED, reason="cancelled")
    assert server.get("/v1/plan/j")["kept_free"] == []


def test_a_plan_tells_what_runs_and_which_limits_it_is_laid_around() -> None:
    hour = timedelta(hours=1)
    jobs = [
        worlds.running("fixed", "a", pausable=Pausable.NO, runtime_s=7200.0),
        worlds.running("planned", "b"),
        worlds.running("overdue", "a", pausable=Pausable.NO, runtime_s=1800.0),
        worlds.job("starts", state=JobState.LAUNCHING, region="a"),
        worlds.job("waits"),
    ]
    now = worlds.NOW
    budgets = (
        Budget("b", now + 2 * hour, now + 3 * hour, 2000.0, "e2", "evening peak"),
        Budget("a", now - hour, None, 1500.0, "e1", ""),
        Budget("a", now - 3 * hour, now - hour, 900.0, "over", ""),
        Budget("a", now + 60 * hour, now + 61 * hour, 900.0, "far", ""),
    )
    regions = [worlds.region("a", [50.0], power_limit_w=9000.0), worlds.region("b", [50.0])]
    rack = Budget("b", now + hour, now + 2 * hour, 700.0, "e3", "", branch="rack-1")
    picture = replace(worlds.world(jobs, regions, budgets=budgets), branch_budgets=(rack,))
    placement = Placement("planned", "b", ((now, now + 4 * hour),), 1.0, 1.0, None, 0.0, "goes on")
    plan = Plan(now, now + 48 * hour, 900, {"planned": placement}, {}, 1.0)
    told = views.plan_json(plan, "EUR", picture)
    assert [(one["job_id"], one["region"], one["state"], one["expected_end_at"]) for one in told["running"]] == [
        ("fixed", "a", "running", (now + hour).isoformat()),
        ("planned", "b", "running", (now + 4 * hour).isoformat()),
        ("overdue", "a", "running", None),
        ("starts", "a", "launching", None),
    ]
    assert [(one["event_id"], one["region"], one["branch"], one["limit_w"]) for one in told["limits"]] == [
        (None, "a", None, 9000.0),
        ("e1", "a", None, 1500.0),
        ("e3", "b", "rack-1", 700.0),
        ("e2", "b", None, 2000.0),
    ]
    assert told["limits"][1]["end"] is None and told["limits"][3]["why"] == "evening peak"
    assert (told["limits"][3]["start"], told["limits"][3]["end"]) == (
        budgets[0].start.isoformat(),
        (now + 3 * hour).isoformat(),
    )


def test_alternatives_are_asked_for_when_a_policy_makes_no_list_of_them(server: Server, services: FakeServices) -> None:
    server.submit("j", metadata=FLEX)
    now = datetime.now(UTC)
    placement = Placement("j", "north", ((now, now + timedelta(hours=1)),), 5.0, 1.5, None, 0.0, "cheapest start")
    services.plan = Plan(now, now + timedelta(days=2), 900, {"j": placement}, {}, 5.0, note="jobs are placed one by one")
    assert server.get("/v1/plan")["note"] == "jobs are placed one by one"
    services.explains = (Alternative("south", now, 9.0, "costs 4 EUR more"),)
    told = server.get("/v1/plan/j")
    assert [other["region"] for other in told["alternatives"]] == ["south"] and told["alternatives_missing"] is None
    services.explains = GridshiftError("the planner is busy; ask again in a moment")
    told = server.get("/v1/plan/j")
    assert told["placement"]["region"] == "north" and told["alternatives"] == []
    assert told["alternatives_missing"] == "not available now: the planner is busy; ask again in a moment"


def test_status_says_how_the_planner_is(server: Server, services: FakeServices) -> None:
    assert server.get("/v1/status")["planner"] == "ready"
    services.planner = "planner warming up"
    assert server.get("/v1/status")["planner"] == "planner warming up"


def test_regions(server: Server) -> None:
    north, south = server.get("/v1/regions")["regions"]
    price = {"unit": "EUR/MWh", "source": "csv", "now": 50.0, "basis": "published", "low": None, "high": None}
    assert north["price"] == price
    assert north["carbon"] is None and north["budget_w"] == 500.0 and north["power_limit_w"] is None
    assert south["reachable"] is False and south["error"] == "refused" and south["observed_at"] is None
    assert (north["draw_w"], north["site_w"], north["site_basis"]) == (800.0, None, "unknown")


def test_a_region_tells_what_its_site_draws_beside_what_its_jobs_are_stated_to(server: Server, services: FakeServices) -> None:
    services.meters = SiteMeters(services.config, MemoryMeterStore(), agents=lambda *_: AgentsDraw(400.0))
    services.meters.read_meters(services.clock.now())
    north = server.get("/v1/regions")["regions"][0]
    assert (north["draw_w"], north["site_w"], north["site_basis"]) == (800.0, 400.0 * north["pue"], "estimated")


def test_status_health_and_metrics(server: Server, services: FakeServices) -> None:
    server.submit("j")
    server.submit("j")
    status = server.get("/v1/status")
    assert status["counts"]["queued"] == 1 and status["counts"]["failed"] == 0
    assert status["alarms"][0]["sentence"] == "south does not answer" and status["replay"] is False
    figures = server.call("GET", "/metrics").text
    for line in (
        'gridshift_jobs{state="queued"} 1.0',
        'gridshift_region_reachable{region="south"} 0.0',
        'gridshift_region_draw_watts{region="north"} 800.0',
        'gridshift_submissions_total{outcome="accepted"} 1.0',
        'gridshift_submissions_total{outcome="refused"} 1.0',
        'gridshift_loop_last_seconds{loop="control"} 0.01',
    ):
        assert line in figures
    assert server.get("/readyz") == {"ready": True, "problems": []}
    services.control_error = "ValueError: x"
    services.control_silent_s = 120.0
    ready = server.call("GET", "/readyz")
    assert ready.status_code == 503 and len(ready.json()["problems"]) == 2
    assert server.get("/healthz") == {"ok": True}


def test_documented(server: Server) -> None:
    paths = server.get("/openapi.json")["paths"]
    assert {"/v1/jobs", "/v1/plan/{job_id}", "/v1/webhooks/{source}", "/v1/self", "/metrics"} <= set(paths)
    assert all(operation["summary"] for path in paths.values() for operation in path.values())
    assert server.call("GET", "/docs").status_code == 200


def test_savings_compare_with_running_at_once(server: Server, services: FakeServices) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    services.clock = VirtualClock(start)
    prices = (100.0, 100.0, 100.0, 10.0, 10.0, 10.0)
    services.signals.append(
        [
            SignalPoint("north", Kind.PRICE, "EUR/MWh", start + timedelta(hours=n), start + timedelta(hours=n + 1), None, start,
                        price, Quality.MEASURED, "csv")
            for n, price in enumerate(prices)
        ]
    )  # fmt: skip
    server.submit("j", metadata={**FLEX, "gridshift.power_w": "1000", "gridshift.deadline": "5h", "gridshift.runtime": "1h"})
    server.submit("unknown", metadata={**FLEX, "gridshift.power_w": "1000", "gridshift.regions": "south"})
    services.clock.advance(3 * 3600)
    first, second = services.launch("j"), services.launch("unknown", "south")
    services.clock.advance(3 * 3600)  # ends an hour after its deadline
    for attempt, cost in ((first, 0.02), (second, None)):
        services.change(attempt.job_id, energy_kwh=2.0, cost=cost, cost_currency="EUR", carbon_kg=None)
        services.end(attempt, JobState.SUCCEEDED)
    told = server.get("/v1/savings")
    totals = told["totals"]
    assert totals["jobs"] == 2 and totals["energy_kwh"] == 4.0 and totals["deadline_misses"] == 1
    assert totals["cost"] == 0.02 and totals["cost_run_now"] == pytest.approx(0.2)  # 2 h at 100 EUR/MWh and 1 kW
    assert totals["carbon_kg"] is None and totals["carbon_kg_run_now"] is None
    assert told["energy_basis"] == "modelled"
    assert "cost: 1 of 2 jobs are left out on both sides, because a signal is unknown" in told["caveats"]
    assert told["energy_bases"] == {"modelled": 2}


def test_savings_keep_jobs_that_were_late_apart_from_those_that_never_finished(server: Server, services: FakeServices) -> None:
    services.clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
    due = {**FLEX, "gridshift.power_w": "1000", "gridshift.deadline": "5h", "gridshift.runtime": "1h"}
    ends = {"late": JobState.SUCCEEDED, "failed": JobState.FAILED, "cancelled": JobState.CANCELLED, "kept": JobState.SUCCEEDED}
    for name in ends:
        server.submit(name, metadata=due)
    for name in ("failed", "cancelled", "kept"):
        services.end(services.launch(name), ends[name])
    late = services.launch("late")
    services.clock.advance(6 * 3600)
    services.end(late, ends["late"])
    totals = server.get("/v1/savings")["totals"]
    told = [totals[key] for key in ("finished_late", "failed_with_deadline", "cancelled_with_deadline", "deadline_misses")]
    assert told == [1, 1, 1, 2]
    lines = CliRunner().invoke(main, ["savings", "--address", server.url]).output
    assert "1 job finished after its deadline" in lines
    assert "1 job with a deadline failed, 1 was cancelled" in lines and "missed" not in lines


@pytest.mark.parametrize(
    ("given", "run_now_s"),
    [
        ({}, 120.0),  # the 60 s that planning assumes of a restart are half of the job, and nobody measured them
        ({"gridshift.restart_s": "2"}, 118.0),
        ({"gridshift.restart_s": "60"}, 108.0),  # a tenth at most
    ],
)
def test_a_pause_takes_off_the_baseline_what_is_known_of_its_restart(
    server: Server, services: FakeServices, given: dict[str, str], run_now_s: float
) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    services.clock = VirtualClock(start)
    services.signals.append(
        [
            SignalPoint(
                "north", Kind.PRICE, "EUR/MWh", start, start + timedelta(hours=1), None, start, 100.0, Quality.MEASURED, "csv"
            )
        ]
    )
    server.submit("j", metadata={**FLEX, **given, "gridshift.power_w": "3600000"})
    attempt = services.launch("j")
    services.clock.advance(121)
    # 120 s at 3600 kW are 120 kWh: 12 EUR at 100 EUR/MWh, in the same hour whenever it runs
    services.change("j", energy_kwh=120.0, cost=12.0, cost_currency="EUR", pauses=1)
    services.end(attempt, JobState.SUCCEEDED)
    told = server.get("/v1/savings")
    assert told["totals"]["cost"] == 12.0
    assert told["totals"]["cost_run_now"] == pytest.approx(run_now_s / 120 * 12)
    (caveat,) = [one for one in told["caveats"] if "restart" in one]
    assert "takes gridshift.restart_s off that time where the job's owner stated it" in caveat and "at most 10%" in caveat


def test_deleting_a_job_takes_nothing_out_of_savings(server: Server, services: FakeServices) -> None:
    services.clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
    for job_id in ("j", "k"):
        server.submit(job_id)
        attempt = services.launch(job_id)
        services.clock.advance(3600)
        services.change(job_id, energy_kwh=2.0, cost=0.4, carbon_kg=0.6, cost_currency="EUR")
        services.end(attempt, JobState.SUCCEEDED)
    kept = services.store.ray_jobs()
    assert server.call("DELETE", "/v1/jobs/k").json() == {"id": "k", "deleted": True}
    assert [job["id"] for job in server.get("/v1/jobs")["jobs"]] == ["j"]
    told = server.get("/v1/savings")
    assert told["totals"]["jobs"] == len(kept) == 2 and told["totals"]["energy_kwh"] == 4.0
    assert told["deleted_jobs"] == ["k"]
    assert "1 of the ended jobs were deleted since, and count all the same: k" in told["caveats"]


def test_the_time_of_a_run_is_without_the_time_it_stood_frozen() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    ran = Attempt("j", 1, "north", "j-1", start, started_at=start, ended_at=start + timedelta(seconds=500), frozen_s=200.0)
    lasts = Attempt("j", 2, "north", "j-2", start, started_at=start)
    assert savings.ran_seconds([ran, lasts]) == 300.0


def test_the_message_for_ray_says_the_planned_start_once(server: Server, services: FakeServices) -> None:
    server.submit("j")
    start = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
    services.change("j", reason="north from 2026-01-01 12:00Z: 40 EUR/MWh", planned_region="north", planned_start_at=start)
    assert views.ray_message(services.store.job("j")) == "north from 2026-01-01 12:00Z: 40 EUR/MWh"
    services.change("j", reason="no room", planned_region="north", planned_start_at=start)
    assert views.ray_message(services.store.job("j")) == "no room (planned start 2026-01-01 12:00Z in north)"


def test_savings_before_the_first_signals_say_that_they_are_still_read(server: Server, services: FakeServices) -> None:
    north = services.config.regions[0]
    config = RegionConfig.model_validate({"name": north.name, "address": north.address, "price": [{"feed": "synthetic"}]})
    server.submit("j")
    attempt = services.launch("j")
    services.clock = VirtualClock(services.clock.now() + timedelta(hours=1))
    services.change("j", energy_kwh=2.0, cost=None, energy_basis="simulated")
    services.end(attempt, JobState.SUCCEEDED)
    job = services.store.job("j")
    world = services.snapshot().world
    world = replace(world, regions=tuple(replace(view, price=None) for view in world.regions))
    assert job is not None
    told = savings.report([job], world, {north.name: config}, services.signals, services.clock.now(), {})
    assert "because signals are still being read: ask again soon" in told["caveats"][-2] + told["caveats"][-1]
