"""The Demand response page: its parts, the page itself against a control plane, and in a real browser."""

import re
import shlex
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from streamlit.testing.v1 import AppTest

from tests.helpers import wait_until
from tests.ui import fake_events
from tests.ui.app_page import html, page_of
from tests.ui.fake_api import FakeControlPlane
from tests.ui.fake_events import NOW, SIX, draw_now, event, iso, limit, of_event
from ui import event_charts, event_outcomes, events

LIMIT_S = 60


@pytest.fixture
def page(plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    """The page, not yet run."""
    return page_of(plane, monkeypatch, "events")


def bound(*limits: Any, power: Any = None, **more: Any) -> str:
    drawn = {events.place_of(power): power} if power else {}
    return events.binding(limits, drawn, NOW, **more)


def test_the_page_says_in_order_what_binds_what_comes_and_what_is_done(page: AppTest, plane: FakeControlPlane) -> None:
    fake_events.leases(plane.fleet)
    plane.jobs[2] |= {"frozen_at": iso(NOW), "reason": "nordics may draw 3.0 kW (grid scarcity): frozen where it runs"}
    said = html(page.run())
    parts = (
        "What binds now",
        "What is coming",
        "What is done for it",
        "Alarms of",
        "Draw against",
        "Flexibility now",
        "Past events",
    )
    assert [said.index(part) for part in parts] == sorted(said.index(part) for part in parts)
    assert said.index("1.3 kW OVER") < said.index("unknown of 6.0 kW") < said.index("1.5 kW of 2.0 kW"), "the worst one first"
    assert "<b>2 h 48 min left</b>" in said and "measured by the site's meter, mean of 03:11:00 to 03:12:00 UTC" in said
    assert "also at most 9.0 kW: always" in said and "next: 2.5 kW from 06:00 UTC" in said
    assert (
        "meter main of eu-west has said &lt;nothing&gt;" in said
        and "does not bind (opted out: a customer&#x27;s &lt;i&gt;" in said
    )
    assert "if nothing is delivered -160 EUR, if opted out -25.5 EUR" in said and "if met unknown" in said
    assert "<b>2</b> of 8 GPUs capped for a limit (1 of them not as set)" in said
    assert "<b>1</b> job frozen" in said and f'href="?page=&amp;job={plane.jobs[2]["id"]}"' in said
    assert "No alarm of demand response." in said and "1 of other things" in said
    assert "SIMULATED" in said and "event evt-&lt;b&gt;" in said and "evt-<b>" not in said
    assert plane.posts == [], "the page acts by itself never"


def test_past_events_come_with_what_they_delivered(page: AppTest, plane: FakeControlPlane) -> None:
    assert "HTML report" in html(page.run())
    wait_until(lambda: "being worked out" not in html(page.run()), LIMIT_S, "the reports")
    said = html(page)
    assert "<b>2.4 kW</b> mean, 4.82 kWh" in said and "80.3 % of what was due" in said and ">missed</span>" in said
    assert "has no readings to be measured by" in said and "amount unknown" in said
    assert f'href="{plane.address}/v1/events/utility/evt-20260302-07/report?format=html"' in said


def test_a_browser_without_the_token_gets_the_command(page: AppTest, plane: FakeControlPlane, monkeypatch: Any) -> None:
    plane.token = "gs_secret"
    monkeypatch.setenv("GRIDSHIFT_TOKEN", plane.token)
    said = html(page.run())
    assert "gridshift events report --source utility --html report.html -- evt-20260302-07" in said
    assert "HTML report" not in said and "gs_secret" not in said


def test_a_command_to_copy_runs_nothing_that_a_sender_put_into_an_id() -> None:
    event = {"event_id": "-x; rm -rf ~ $(id)", "source": "a 'b'", "state": "expired", "region": "eu"}
    told = unescape(event_outcomes.past([event], {}, datetime(2026, 3, 2, tzinfo=UTC), "http://a", linked=False))
    (command,) = re.findall(r"gridshift events report[^<]*", told)
    assert shlex.split(command) == [
        *("gridshift", "events", "report", "--source", "a 'b'", "--html", "report.html", "--", "-x; rm -rf ~ $(id)")
    ]


def test_an_empty_page_says_how_events_come_in(page: AppTest, plane: FakeControlPlane) -> None:
    plane.alarmed = False
    said = html(page.run())
    assert "Nothing limits power now." in said and "No event is known." in said and "Nothing is announced." in said
    assert "gridshift events create --region eu-west" in said and "[[event_source]]" in said
    assert "No event ended in the last 30 days." in said


def test_trouble_is_told_and_unknown_is_not_none(page: AppTest, plane: FakeControlPlane) -> None:
    trouble = (503, {"error": {"message": "the database is locked", "problems": []}})
    plane.refuse = {"/v1/events": trouble, "/v1/flexibility": trouble}
    said = html(page.run())
    assert said.count("Events unknown:</b> the database is locked") == 1 and "Flexibility unknown:" in said
    assert "Nothing limits" not in said and "No event" not in said


def test_a_control_plane_that_tells_no_limits_is_another_version(page: AppTest, plane: FakeControlPlane) -> None:
    plane.refuse = {"/v1/events": (200, {"events": []})}
    assert "was not understood (KeyError" in html(page.run())


def test_a_replay_measures_nothing(page: AppTest, plane: FakeControlPlane) -> None:
    plane.replay = True
    said = html(page.run())
    assert "modelled from what jobs are expected to draw, not measured; time is replayed" in said
    assert "measured by the" not in said and "REPLAY" in said


def test_opting_out_takes_a_reason_and_a_second_word(page: AppTest, plane: FakeControlPlane) -> None:
    page.run()
    assert page.button(key="opt_out").disabled
    page.text_input(key="opt_reason").set_value("a customer's deadline").run()
    page.button(key="opt_out").click().run()
    assert plane.posts == [] and "Opt out of nordics · utility, event evt-20260303-01" in html(page)
    page.button(key="opt_no").click().run()
    page.button(key="opt_out").click().run()
    page.button(key="opt_yes").click().run()
    assert plane.posts == ["POST evt-20260303-01 a customer's deadline"]
    page.run()
    page.button(key="opt_in").click().run()
    page.button(key="opt_yes").click().run()
    assert plane.posts[1:] == ["DELETE evt-20260303-01 None"]


def test_a_linked_job_is_open(page: AppTest, plane: FakeControlPlane) -> None:
    page.query_params["page"] = ""
    page.query_params["job"] = plane.jobs[2]["id"]
    assert f"gridshift jobs logs {plane.jobs[2]['id']}" in html(page.run())


def test_a_limit_is_told_as_what_it_is() -> None:
    hour = timedelta(hours=1)
    call = of_event("north", 1000.0, NOW - timedelta(minutes=1), NOW + timedelta(seconds=65))
    drawn = draw_now("north", 1200.0, "measured", start=iso(NOW - timedelta(minutes=3)), end=iso(NOW - timedelta(minutes=2)))
    said = bound(call, power=drawn)
    assert "1:05 min left" in said and "200 W OVER</span> (measured before it began)" in said and "gs-alarm" not in said
    fresh = {**drawn, "end": iso(NOW)}
    assert "gs-alarm" in bound(call, power=fresh)
    ramp = {**call, "ramp_s": 600.0}
    assert "200 W to go</b> by 03:21 UTC (its ramp)" in bound(ramp, power=fresh) and "gs-alarm" not in bound(ramp, power=fresh)
    assert "until it is released</b>" in bound({**call, "end": None}, power=fresh)
    assert "draw unknown" in bound(call) and "unknown of 1.0 kW" in bound(call) and "0 W" not in bound(call)
    kept = bound(call, power={**fresh, "power_w": 900.0})
    assert "<b>100 W</b> of room" in kept and "gs-fine" in kept
    assert "gs-warn" in bound(call, power={**fresh, "power_w": 900.0}, alarmed=["limit north"])
    back = limit("north", 1000.0, holds=False, event_id="e", source="api", end=iso(NOW - hour), way_back=0.25)
    assert "25% of the way back from 1.0 kW" in bound(back) and "Nothing limits power now." in bound(back)
    assert "0 W of 0 W" in bound(of_event("north", 0.0, NOW - hour, SIX), power=draw_now("north", 0.0, "simulated"))


def test_why_an_active_event_does_not_bind() -> None:
    free = event("e1", "north", "active", NOW, None, 5.0)
    assert "another limit or step takes its place" in events.not_binding([free], [])
    assert "recorded only" in events.not_binding([{**free, "test": True}], [])
    assert "it limits no power" in events.not_binding([{**free, "limit_w": None}], [])
    assert events.not_binding([free], [of_event("north", 5.0, NOW, None, "e1")]) == ""


def test_jobs_that_wait_for_a_price_do_not_give_way() -> None:
    waits = {"id": "j", "state": "queued", "reason": "waits for the cheapest hours before its deadline"}
    assert event_outcomes.gives_way(waits, fake_events.some_limits()) == ""
    held = {**waits, "reason": "nordics may draw 3.0 kW (grid scarcity), draws 3.0 kW and this job needs 0.4 kW"}
    assert event_outcomes.gives_way(held, []) == "held"
    said = event_outcomes.doing([held], [], None, NOW, cut=True)
    assert "at least 1</b> job held" in said and "GPUs capped: unknown" in said


def test_charts_keep_gaps_and_past_limits() -> None:
    drawn = list(event_charts.drawn_rows(fake_events.draw("nordics")))
    assert len(drawn) == 210 and all(row["kw"] > 0 for row in drawn), "a gap has no row"
    limits, told = fake_events.some_limits(), fake_events.some_events()
    start, end = event_charts.window(limits, ("nordics", None), NOW)
    assert (start, end) == (NOW - timedelta(hours=4), SIX + timedelta(hours=1, minutes=30))
    spans = event_charts.limit_spans(limits, told, ("nordics", None), start, end)
    assert sorted(kw for _, _, kw, _ in spans) == [2.5, 3.0, 9.0]
    gone = event_charts.limit_spans(limits, told, ("us-east", None), start, end)
    assert [(a, b, kw) for a, b, kw, _ in gone] == [(NOW - timedelta(hours=3), NOW - timedelta(hours=2), 0.3)], (
        "not the opted out"
    )
    assert event_charts.draw_chart({}, [], [], ("us-east", None), NOW) is None
    made = event_charts.draw_chart(fake_events.draw("nordics"), limits, told, ("nordics", None), NOW).to_dict()
    assert [layer["mark"]["type"] for layer in made["layer"]] == ["rect", "rule", "rule"]
    assert event_charts.flexibility_chart({"sheds": [{"for_s": 10.0, "caps_w": 0.0, "pauses_w": 0.0}]}) is None
    assert event_charts.flexibility_chart({"sheds": None}) is None


@pytest.mark.real
def test_an_operator_opts_out_in_a_browser(
    plane: FakeControlPlane, console: str, browser: webdriver.Chrome, tmp_path: Path
) -> None:
    browser.get(console)
    wait_until(lambda: browser.find_elements(By.LINK_TEXT, "Demand response"), 90, "the link")[0].click()

    def text() -> str:
        return str(browser.execute_script("return document.body.innerText"))

    words = ("1.3 kW OVER", "2 h 48 min left", "What is coming", "missed", "Flexibility now", "Opt out of an event")
    wait_until(lambda: all(word in text() for word in words), 90, f"{words} on the page")
    charts = "[data-testid='stVegaLiteChart']"
    wait_until(lambda: len(browser.find_elements(By.CSS_SELECTOR, charts)) >= 5, 90, "the charts")
    assert "Traceback" not in text() and "was not understood" not in text()
    shot = tmp_path / "events.png"
    browser.save_screenshot(str(shot))
    assert shot.stat().st_size > 20_000
    browser.find_element(By.XPATH, "//summary[contains(., 'Opt out of an event')]").click()
    reason = wait_until(lambda: browser.find_elements(By.XPATH, "//input[@aria-label='Why']"), 90, "the reason's box")[0]
    reason.send_keys("a customer's deadline", Keys.ENTER)
    for label in ("Opt out", "Yes, opt out"):
        found = f"//button[not(@disabled)][normalize-space()='{label}']"
        button = wait_until(lambda found=found: browser.find_elements(By.XPATH, found), 90, label)[0]  # type: ignore[misc]
        browser.execute_script("arguments[0].click()", button)
    wait_until(lambda: "opted out of utility, event evt-20260303-01" in text(), 90, "the notice")
    assert plane.posts == ["POST evt-20260303-01 a customer's deadline"]
