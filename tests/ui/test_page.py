"""The console's script against a control plane: normal, empty, in trouble, and away."""

from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from tests.ui.app_page import html, page_of
from tests.ui.fake_api import FakeControlPlane

LIMIT_S = 60


@pytest.fixture
def page(plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    """The page, not yet run, for ``plane``."""
    return page_of(plane, monkeypatch)


def table(page: AppTest) -> Any:
    """The jobs as they are shown."""
    return page.dataframe[0].value


def test_the_page_says_what_is_so(page: AppTest) -> None:
    said = html(page.run())
    assert "ALARM</b> us-east does not answer: connection refused" in said
    assert "Tue 3 Mar 2026 03:12:05 UTC" in said and "<b>modelled</b>" in said and "REPLAY" not in said
    assert "<b>6</b> queued" in said and "<b>3</b> succeeded" in said
    assert "4.3 kW OVER" in said and "budget 3.0 kW" in said
    assert "UNREACHABLE" in said and "unknown<small>last: 2 of 8, 1 job running" in said
    assert "41.5 EUR/MWh</span><small>energy_charts, published" in said and "(price and carbon synthetic)" in said
    assert "fresh, heard 6 min ago; entsoe failed</small>" in said and "<small>no carbon source</small>" in said
    assert 'title="entsoe: no answer &lt;i&gt;within&lt;/i&gt; 20 s; energy_charts: is fresh"' in said
    assert "<b>nordics price</b>: published until 23:00, then model until 5 Mar 03:00 (model of 182 days of history)" in said
    assert "by 25 min" in said and "no room: needs 16 GPUs" in said and "grid scarcity · utility · evt-20260303-01" in said
    assert "at once 0.93 EUR" in said and "not metered" in said


def test_active_jobs_come_first_with_their_reasons(page: AppTest) -> None:
    page.run()
    html(page)
    shown = table(page)
    assert len(shown) == 20
    assert list(shown["state"][:5]) == ["running"] * 4 + ["pausing"] and shown["state"].iloc[-1] == "succeeded"
    assert all(shown["reason"])
    queued = shown[shown["state"] == "queued"].iloc[0]
    assert queued["region"] == "→ nordics" and queued["planned"].isoformat() == "2026-03-03T11:00:00+00:00"


def test_filters_by_state_and_team(page: AppTest) -> None:
    page.run()
    page.get("button_group")[0].set_value(["paused", "failed"]).run()
    html(page)
    assert set(table(page)["state"]) == {"paused", "paused, held", "failed"}
    page.text_input(key="team").set_value("vision").run()
    assert set(table(page)["team"]) == {"vision"}
    page.text_input(key="team").set_value("nobody").run()
    assert "No job matches these filters" in html(page)


def test_a_job_is_shown_with_its_plan_attempts_and_events(page: AppTest, plane: FakeControlPlane) -> None:
    page.run()
    page.text_input(key="search").set_value(plane.jobs[9]["id"]).run()
    said = html(page)
    assert (
        "11:00 UTC (in 7 h 48 min) in nordics" in said and "dearer by 0.20 EUR" in said and "submitted with a deadline" in said
    )
    page.text_input(key="search").set_value(plane.jobs[6]["id"]).run()
    assert "stopped after its checkpoint was saved" in html(page)
    page.text_input(key="search").set_value("nobody/../here").run()
    assert "There is no such job." in html(page)


def test_a_click_changes_nothing_before_it_is_confirmed(page: AppTest, plane: FakeControlPlane) -> None:
    page.run()
    chosen = plane.jobs[8]["id"]
    page.text_input(key="search").set_value(chosen).run()
    assert page.button(key="pause").disabled, "it is held already"
    page.button(key="resume").click().run()
    assert f"Resume {chosen}?" in html(page) and plane.posts == []
    page.button(key="no").click().run()
    page.button(key="resume").click().run()
    page.button(key="yes").click().run()
    assert f"resume requested for {chosen}" in html(page) and plane.posts == [f"resume {chosen}"]


def test_a_refused_click_says_why(page: AppTest, plane: FakeControlPlane) -> None:
    page.run()
    plane.jobs[0]["pausable"] = "no"
    page.text_input(key="search").set_value(plane.jobs[0]["id"]).run()
    page.button(key="pause").click().run()
    page.button(key="yes").click().run()
    assert "cannot be paused while it runs" in html(page)


def test_text_of_others_is_never_markup(page: AppTest, plane: FakeControlPlane) -> None:
    plane.jobs[0] |= {"reason": "<img src=x onerror=alert(1)>", "entrypoint": "<script>1</script>", "team": "<i>t</i>"}
    plane.jobs[0]["id"] = "<b>id"
    page.run()
    page.text_input(key="search").set_value("<b>id").run()
    said = html(page)
    assert "&lt;img" in said and "<img" not in said and "<script" not in said and "<b>id" not in said and "<i>t" not in said


def test_a_replay_is_called_one(page: AppTest, plane: FakeControlPlane) -> None:
    plane.replay, plane.speed = True, 720.0
    assert "REPLAY x720: not today's grid" in html(page.run())


def test_a_stuck_loop_is_told(page: AppTest, plane: FakeControlPlane) -> None:
    status = plane.status()
    status["loops"][0] |= {"last_run_at": "2026-03-03T03:02:05+00:00", "last_error": "the database is locked"}
    plane.refuse["/v1/status"] = (200, status)
    said = html(page.run())
    assert "loop control has not run for 10 min; it should every 1 s" in said and "the database is locked" in said


def test_nothing_yet(page: AppTest, plane: FakeControlPlane) -> None:
    plane.jobs, plane.planned, plane.alarmed = [], False, False
    said = html(page.run())
    assert "No alarms." in said and "No jobs yet." in said and "No plan yet" in said and "None. A utility" in said
    assert f"ray job submit --address {plane.address}" in page.code[0].value


def test_no_region(page: AppTest, plane: FakeControlPlane) -> None:
    plane.regions_known = False
    said = html(page.run())
    assert "No region is configured" in said and "No price and no carbon is known" in said


def test_the_control_plane_is_away_and_comes_back(page: AppTest, plane: FakeControlPlane) -> None:
    plane.stop()
    said = html(page.run())
    assert "Control plane unreachable" in said and "connection refused" in said and "gridshift serve" in said
    assert not page.dataframe
    plane.start()
    page.session_state.api._kept.clear()
    assert "ALARM" in html(page.run()) and len(table(page)) == 20


def test_it_goes_away_while_it_is_watched(page: AppTest, plane: FakeControlPlane) -> None:
    page.run()
    plane.stop()
    page.session_state.api._kept.clear()
    said = html(page.run())
    assert "Control plane unreachable" in said and "It last answered" in said and "ALARM" not in said


def test_a_token_is_missing(page: AppTest, plane: FakeControlPlane) -> None:
    plane.token = "gs_secret"
    said = html(page.run())
    assert "refuses this console" in said and "gridshift tokens create console" in said and "gs_secret" not in said


def test_the_database_is_in_trouble(page: AppTest, plane: FakeControlPlane) -> None:
    trouble = (503, {"error": {"message": "the database is locked", "problems": []}})
    plane.refuse |= {"/v1/jobs": trouble, "/v1/plan": trouble, "/v1/events": trouble}
    said = html(page.run())
    assert "Jobs that are running unknown:</b> the database is locked" in said and "Plan unknown:" in said
    assert "No jobs yet" not in said, "unknown is not none"
    assert "41.5 EUR/MWh" in said, "what is known is shown"
    plane.refuse = {"/v1/status": trouble}
    page.session_state.api._kept.clear()
    assert "The control plane is in trouble" in html(page.run())


@pytest.mark.parametrize("path", ["/v1/regions", "/v1/plan", "/v1/events", "/v1/jobs"])
def test_an_answer_of_another_shape_is_told_in_its_place(page: AppTest, plane: FakeControlPlane, path: str) -> None:
    plane.refuse[path] = (200, {"unexpected": [1]})
    page.run()
    said = html(page)
    assert "ALARM" in said and "was not understood" in said


def test_something_else_answers(page: AppTest, plane: FakeControlPlane) -> None:
    plane.refuse["/v1/status"] = (404, {"detail": "Not Found"})
    said = html(page.run())
    assert "is not a gridshift control plane" in said and "GRIDSHIFT_ADDRESS" in said


def test_the_address_is_no_url(page: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDSHIFT_ADDRESS", "localhost:8700")
    said = html(page.run())
    assert "GRIDSHIFT_ADDRESS is &#x27;localhost:8700&#x27;, which is not a URL" in said


def test_an_answer_without_sources_leaves_the_values(page: AppTest, plane: FakeControlPlane) -> None:
    plane.refuse["/v1/signals"] = (422, {"error": {"message": "1 problem", "problems": []}})
    said = html(page.run())
    assert "41.5 EUR/MWh</span><small>energy_charts, published" in said and "heard" not in said
    assert not page.exception
