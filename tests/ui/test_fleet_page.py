"""The Fleet page: its parts, the page itself against a control plane, and a picture of it in a real browser."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from streamlit.testing.v1 import AppTest

from tests.helpers import wait_until
from tests.power.fleet_samples import NOW, an_hour, busy_fleet, fleet
from tests.ui.app_page import html, page_of
from tests.ui.fake_api import FakeControlPlane
from ui import fleet as parts

LIMIT_S = 60


@pytest.fixture
def page(plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    """The Fleet page, not yet run."""
    return page_of(plane, monkeypatch, "fleet")


def test_the_page_says_what_is_so(page: AppTest) -> None:
    said = html(page.run())
    assert "<b>Fleet</b>" in said and '<a href="?page=">Jobs and plan</a>' in said and "No job matches" not in said
    assert "1.7 kW known" in said and "2 of 8 GPUs unknown" in said and "SIMULATED" in said
    assert "branch rack-1" in said and "limit 2.0 kW at its meter" in said
    assert "capped to 50% of 700 W" in said and "throttled: sw power cap" in said
    assert "cap drifted: someone else set 700 W; it is put right" in said
    assert "idle, held by a job" in said and "MIG: one draw" in said and "cannot cap: it has no right to set limits" in said
    assert "GPU-1 does not answer: it has fallen off the bus" in said and "frozen here: frozen-1" in said
    assert "SILENT</span> since 03:09 UTC (3 min ago): its draw is unknown" in said
    assert "eval&lt;b&gt;" in said and "eval<b>" not in said
    assert "nothing measured for 7 min" in said and "of it while idle" in said
    assert "no agent tells of any GPU here" in said, "eu-west has none"


def test_a_console_without_agents_says_what_to_do(page: AppTest, plane: FakeControlPlane) -> None:
    plane.fleet = _no_fleet()
    plane.energy = {**plane.energy, "intervals": [], "gaps": [], "total": {}}
    said = html(page.run())
    assert "No agent tells of any GPU." in said and "gridshift agent" in said and "energy and power are modelled" in said


def _no_fleet() -> dict[str, Any]:
    from dispatcher.api.fleet import fleet_json

    return fleet_json(fleet())


def test_an_older_control_plane_is_told(page: AppTest, plane: FakeControlPlane) -> None:
    plane.refuse["/v1/fleet"] = (404, {"error": {"message": "there is no /v1/fleet here", "problems": []}})
    assert "The fleet unknown:</b> there is no /v1/fleet here" in html(page.run())


def test_gaps_stay_gaps_in_the_chart() -> None:
    frame = parts.energy_frame(an_hour())
    jobs = frame[frame["line"] == "jobs"]
    begin = NOW.replace(second=0) - timedelta(hours=1)
    minutes = [round((at - begin).total_seconds() / 60) for at in jobs["at"]]
    assert minutes == [n for n in range(60) if not 25 <= n < 32]
    assert jobs["kw"].iloc[0] == pytest.approx(18.0 * 60 / 1000)
    top = frame.groupby("at")["high"].max().iloc[0]
    assert top == pytest.approx(21.0 * 60 / 1000), "one line on the other"
    assert parts.energy_chart({**an_hour(), "intervals": []}) is None
    assert parts.energy_chart(an_hour()).to_dict()["mark"]["type"] == "rect"


def test_a_large_fleet_is_narrowed(monkeypatch: pytest.MonkeyPatch) -> None:
    told = busy_fleet()
    assert "host-n2" not in parts.regions(told, NOW, "notebook") and "host-n1" in parts.regions(told, NOW, "notebook")
    assert "host-s1" in parts.regions(told, NOW, " RACK-9 ") and "no node here holds that text" in parts.regions(
        told, NOW, "rack-9"
    )
    monkeypatch.setattr(parts, "MOST_GPUS", 4)
    assert "and 2 more GPUs" in parts.regions(told, NOW) and "1.5 kW known" in parts.regions(told, NOW), "sums are of all"


def test_unknown_is_never_a_zero() -> None:
    told = parts.regions(busy_fleet(), NOW)
    silent = told[told.index("host-s2") :]
    assert "unknown" in silent and ">0 W" not in told and ">0 kW" not in told


@pytest.mark.real
def test_an_operator_looks_at_the_fleet(
    plane: FakeControlPlane, console: str, browser: webdriver.Chrome, tmp_path: Path
) -> None:
    browser.get(console)
    wait_until(lambda: browser.find_elements(By.LINK_TEXT, "Fleet"), 90, "the link to the fleet")[0].click()

    def text() -> str:
        return str(browser.execute_script("return document.body.innerText"))

    words = ("2 of 8 GPUs unknown", "branch rack-1", "SILENT", "SIMULATED", "Measured in the last hour", "1.5 kW")
    wait_until(lambda: all(word in text() for word in words), 90, f"{words} on the page")
    wait_until(lambda: browser.find_elements(By.CSS_SELECTOR, "[data-testid='stVegaLiteChart']"), 90, "the chart")
    assert "Traceback" not in text() and "was not understood" not in text()
    shot = tmp_path / "fleet.png"
    browser.save_screenshot(str(shot))
    assert shot.stat().st_size > 20_000
