"""The console's pure parts: words, the picture that is drawn, how requests fail, how it is started."""

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.ui.fake_api import NOW, START, FakeControlPlane
from ui import charts, parts
from ui.api import Api, ApiError, job_path
from ui.launch import command
from ui.words import away_text, clock_text, duration_text, number_text, power_text, time_of


@pytest.mark.parametrize(
    ("watts", "text"),
    [
        (None, "unknown"),
        (0, "0 W"),
        (999.4, "999 W"),
        (1080, "1.1 kW"),
        (-2500.0, "-2.5 kW"),
        (3.2e6, "3.2 MW"),
        (True, "unknown"),
    ],
)
def test_power(watts: object, text: str) -> None:
    assert power_text(watts) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (float("nan"), "unknown"),
        (0, "0 kWh"),
        (0.5, "0.5 kWh"),
        (-1e-9, "0 kWh"),
        (0.000055, "0.000055 kWh"),
        (1234.5, "1,234.5 kWh"),
    ],
)
def test_numbers(value: object, text: str) -> None:
    assert number_text(value, "kWh") == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "unknown"),
        (3, "3 s"),
        (59.6, "1 min"),
        (3600, "1 h"),
        (28080, "7 h 48 min"),
        (49 * 3600, "2 d 1 h"),
        (172800, "2 d"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration_text(seconds) == text


def test_times() -> None:
    assert clock_text(NOW, NOW) == "03:12" and clock_text(NOW + timedelta(days=1), NOW) == "4 Mar 03:12"
    assert (
        clock_text("2025-12-31T23:00:00-05:00", NOW) == "1 Jan 04:00"
        and clock_text("2025-01-01T00:00Z", NOW) == "1 Jan 2025 00:00"
    )
    assert clock_text(None, NOW) == clock_text("2026-01-01T00:00", NOW) == "unknown", "a naive time is not one"
    assert away_text(NOW + timedelta(minutes=5), NOW) == "in 5 min" and away_text(NOW - timedelta(hours=2), NOW) == "2 h ago"
    assert time_of(5) is None


def test_planned_load_is_the_sum_of_the_placements() -> None:
    def place(region: str, energy_kwh: float | None, *hours: tuple[int, int]) -> dict[str, Any]:
        spans = [[(START + timedelta(hours=h)).isoformat() for h in span] for span in hours]
        return {"job_id": "j", "region": region, "energy_kwh": energy_kwh, "intervals": spans}

    plan = {"placements": [place("a", 4.0, (0, 1), (2, 3)), place("a", 3.0, (0, 3)), place("b", None, (0, 1)), place("b", 1.0)]}
    steps = charts.load_steps(plan)
    assert [(int((at - START).total_seconds() / 3600), kw) for at, kw in steps["a"]] == [(0, 3.0), (1, 1.0), (2, 3.0), (3, 0.0)]
    assert "b" not in steps, "an unknown energy is not a load of 0"


def test_the_picture_keeps_gaps_limits_and_units_apart() -> None:
    plane = FakeControlPlane()
    signals = [plane.signals({"region": r, "kind": k})[1] for r in ("eu-west", "nordics") for k in ("price", "carbon")]
    signals.append({**signals[0], "region": "us-east", "unit": "USD/MWh"})
    shown = charts.picture(plane.plan(), signals, plane.events, plane.regions(), NOW)
    assert set(shown.signals) == {("price", "EUR/MWh"), ("carbon", "gCO2e/kWh"), ("price", "USD/MWh")}
    frame = shown.signals[("price", "EUR/MWh")]
    west = frame[frame["region"] == "eu-west"]
    assert west["value"].isna().sum() == 8, "two unknown hours stay unknown"
    assert frame["at"].min() >= shown.start and frame["at"].max() <= shown.end
    assert set(shown.bands) == {("price", "EUR/MWh"), ("price", "USD/MWh")}, "carbon is not forecast here"
    assert list(shown.limits["nordics"]["kw"]) == [9.0, 3.0] and list(shown.limits["eu-west"]["kw"]) == [6.0, 2.0]
    assert max(shown.loads["nordics"]["kw"]) > 3.0 and set(shown.loads) == {"eu-west", "nordics"}

    drawn = [pane.to_dict() for _, pane in charts.draw(shown, parts.colours(plane.regions()))]
    titles = [pane["title"] for pane in drawn]
    assert [title.split(" (")[0] for title in titles] == [
        "eu-west: planned load",
        "nordics: planned load",
        "price",
        "carbon",
        "price",
    ]
    draws = {one["name"]: one["draw_w"] / 1e3 for one in plane.regions() if one["name"] in shown.loads}
    assert draws and all(
        f"expected to draw {kw:.2f} kW now" in titles[list(shown.loads).index(name)] for name, kw in draws.items()
    )
    axes = [pane["layer"][0]["encoding"]["y"]["axis"]["title"] for pane in drawn]
    assert axes == ["kW", "kW", "EUR/MWh", "gCO2e/kWh", "USD/MWh"]
    assert all(len(rows) for pane in drawn for rows in pane["datasets"].values())
    assert all(pane["layer"][0]["data"]["name"] in pane["datasets"] for pane in drawn)


def test_an_event_is_drawn_step_by_step_and_not_where_it_does_not_bind_the_site() -> None:
    plane = FakeControlPlane()
    event = {"event_id": "e", "region": "eu-west", "state": "active", "start": NOW.isoformat(), "end": None, "limit_w": 1000.0}
    half = NOW + timedelta(minutes=30)
    steps = [
        {"start": event["start"], "end": half.isoformat(), "limit_w": 2000.0},
        {"start": half.isoformat(), "end": None, "limit_w": 1000.0},
    ]
    shown = charts.picture(plane.plan(), [], [{**event, "steps": steps}], plane.regions(), NOW)
    assert list(shown.limits["eu-west"]["kw"]) == [6.0, 2.0, 1.0]
    for more in ({"branch": "rack-1"}, {"opted_out": "a deadline"}):
        elsewhere = charts.picture(plane.plan(), [], [{**event, "steps": steps, **more}], plane.regions(), NOW)
        assert list(elsewhere.limits["eu-west"]["kw"]) == [6.0], more
    told = parts.events([{**event, "branch": "rack-1", "opted_out": "a deadline"}], NOW)
    assert "eu-west / rack-1" in told and "opted out" in told


def test_a_band_is_drawn_where_something_is_forecast_and_breaks_where_nothing_is() -> None:
    hours = [START + timedelta(hours=i) for i in range(8)]
    low, high = [None, 1.0, 2.0, None, 3.0, None, None, None], [None, 5.0, 6.0, None, 7.0, 9.0, None, None]
    signal = {
        "region": "a", "kind": "price", "unit": "EUR/MWh", "source": "x", "start": START.isoformat(), "slot_s": 3600,
        "values": [3.0] * 8, "basis": ["published"] + ["model"] * 7, "low": low, "high": high,
    }  # fmt: skip
    shown = charts.picture(None, [signal], [], [{"name": "a"}], NOW)
    band = shown.bands[("price", "EUR/MWh")]
    drawn = [(row.at.to_pydatetime(), row.low, row.high, row.run) for row in band.itertuples()]
    assert drawn == [
        (hours[1], 1.0, 5.0, "a 1"),
        (hours[2], 2.0, 6.0, "a 1"),
        (hours[3], 2.0, 6.0, "a 1"),  # each run to the end of its last slot
        (hours[4], 3.0, 7.0, "a 2"),
        (hours[5], 3.0, 7.0, "a 2"),
    ]
    ((_, pane),) = charts.draw(shown, {"a": "#0072b2"})
    line, area, now = pane.to_dict()["layer"]
    assert (line["mark"]["type"], area["mark"]["type"], now["mark"]["type"]) == ("line", "area", "rule")
    assert (area["encoding"]["y"]["field"], area["encoding"]["y2"]["field"]) == ("low", "high")


def test_what_the_plan_is_made_with() -> None:
    def signal(*basis: str, reason: str = "") -> dict[str, Any]:
        return {"region": "<a>", "kind": "price", "start": START.isoformat(), "slot_s": 3600, "basis": basis, "reason": reason}

    told = parts.made_of([signal("published", "published", "repeat-day", reason="history of <7> days")], NOW)
    assert "<b>&lt;a&gt; price</b>: published until 05:00, then repeat-day until 06:00 (history of &lt;7&gt; days)." in told
    turns = parts.made_of([signal(*["held", "unknown"] * 5)], NOW)
    assert turns.count("until") == 4 and "and so on in turns" in turns
    assert parts.made_of([], NOW) == parts.made_of([signal()], NOW) == ""


def test_a_region_whose_sources_all_fail_says_so() -> None:
    fails = {"source": "x", "state": "failed", "chosen": False, "age_s": None, "error": "no answer"}
    signals = [{"region": "r", "kind": "price", "why": "x: no answer", "sources": [fails]}]
    said = parts.regions([{"name": "r", "reachable": True}], NOW, signals)
    assert "<small>no price source</small>" not in said and '<small title="x: no answer">x failed</small>' in said


def test_a_picture_of_nothing() -> None:
    shown = charts.picture(None, [], [], [], NOW)
    assert charts.draw(shown, {}) == [] and shown.end - shown.start >= charts.MIN_SPAN


def test_unknown_values_are_never_zero() -> None:
    bare = {"name": "r", "reachable": True}
    said = parts.regions([bare], NOW)
    assert said.count("unknown") >= 4 and ">0" not in said
    assert "unknown kWh" not in parts.savings_line({}) and "unknown" in parts.savings_line({})
    ended = {"totals": {"finished_late": 2, "failed_with_deadline": 1, "cancelled_with_deadline": 0, "deadline_misses": 3}}
    said = parts.savings_line(ended)
    assert (
        "finished after the deadline <b>2</b>" in said
        and "<b>1</b> failed, <b>0</b> cancelled" in said
        and "missed" not in said
    )
    assert parts.header({}, "a").count("unknown") == 3 and "unknown" in parts.counts({})


def test_a_region_never_seen_has_no_last_values() -> None:
    region = {
        "name": "r",
        "reachable": False,
        "observed_at": None,
        "gpus": 8,
        "gpus_used": 0.0,
        "draw_w": 0.0,
        "jobs_running": 0,
    }
    said = parts.regions([region], NOW)
    assert "UNREACHABLE" in said and "never seen" in said and "last:" not in said and "0 W" not in said


def test_jobs_not_placed_are_told_by_reason() -> None:
    plan = {
        "placements": [],
        "unplaced": {"a": "no region answers", "b": "no region answers", "c": "no region answers", "d": "<"},
    }
    assert "3 jobs (a ...): no region answers; d: &lt;" in parts.plan_line(plan, NOW)


def test_what_is_kept_free_for_serving_is_told_from_now_on() -> None:
    def kept(hours: float, sentence: str) -> dict[str, Any]:
        begin = NOW + timedelta(hours=hours)
        end = begin + timedelta(hours=1)
        return {"region": "north", "start": begin.isoformat(), "end": end.isoformat(), "sentence": sentence}

    told = parts.kept_free({"kept_free": [kept(-2, "over"), kept(0, "3 of 8 GPUs <b>")]}, NOW)
    assert "north: 3 of 8 GPUs &lt;b&gt;" in told and "over" not in told and "more" not in told
    assert "and 3 more" in parts.kept_free({"kept_free": [kept(n, str(n)) for n in range(9)]}, NOW)
    assert parts.kept_free({}, NOW) == "" == parts.kept_free({"kept_free": []}, NOW)
    assert "north: 1" in parts.why({"why": "it waits", "kept_free": [kept(1, "1")]}, NOW, "EUR")


def test_reads_are_kept_for_a_moment_and_failures_too(plane: FakeControlPlane) -> None:
    time_s = [0.0]
    api = Api(plane.address, clock=lambda: time_s[0])
    assert api.silence_s() is None
    first = api.read("/v1/status", keep_s=1.0)
    plane.stop()
    time_s[0] = 0.9
    assert api.read("/v1/status", keep_s=1.0) is first
    time_s[0] = 2.0
    with pytest.raises(ApiError, match=r"no connection to .*: connection refused") as caught:
        api.read("/v1/status", keep_s=1.0)
    assert caught.value.fatal and "gridshift serve" in caught.value.remedy and api.silence_s() == 2.0
    plane.start()
    with pytest.raises(ApiError, match="no connection"):
        api.read("/v1/status", keep_s=1.0)
    api.act(job_path(plane.jobs[0]["id"], "/cancel"))
    assert api.read("/v1/status", keep_s=1.0)["version"] == "0.1.0", "an action forgets what was kept"


def test_the_token_is_sent_and_problems_are_told(plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    api = Api(plane.address + "/", "secret\n")
    api.read("/v1/status")
    assert plane.tokens == {"Bearer secret"}
    problem = {"field": "state", "value": "x", "remedy": "must be a state"}
    plane.refuse["/v1/jobs"] = (422, {"error": {"message": "1 problem with the input", "problems": [problem]}})
    with pytest.raises(ApiError, match="1 problem with the input; state: must be a state") as caught:
        api.read("/v1/jobs", {"state": "x"})
    assert not caught.value.fatal and caught.value.status == 422


def test_a_job_id_cannot_leave_its_path() -> None:
    assert job_path("../status?x=1#y", "/cancel") == "/v1/jobs/..%2Fstatus%3Fx%3D1%23y/cancel"


def test_how_it_is_started() -> None:
    argv, env = command("http://127.0.0.1:8700", 8501, "gs_secret")
    assert argv[:4] == [sys.executable, "-m", "streamlit", "run"]
    assert {"--server.address=127.0.0.1", "--server.port=8501", "--server.headless=true"} <= set(argv)
    assert "--browser.gatherUsageStats=false" in argv and "gs_secret" not in " ".join(argv)
    assert env == {"GRIDSHIFT_ADDRESS": "http://127.0.0.1:8700", "GRIDSHIFT_TOKEN": "gs_secret"}
    assert command("http://x", 1)[1]["GRIDSHIFT_TOKEN"] == ""


def test_a_loop_in_a_replay_is_measured_in_wall_time() -> None:
    now = datetime(2026, 3, 3, tzinfo=UTC)
    loop = {"name": "plan", "period_s": 10.0, "last_run_at": (now - timedelta(hours=4)).isoformat()}
    assert parts.stuck_loops({"now": now.isoformat(), "speed": 720.0, "loops": [loop]}) == []
    assert len(parts.stuck_loops({"now": now.isoformat(), "speed": 1.0, "loops": [loop]})) == 1
