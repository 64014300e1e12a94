"""``gridshift plan``: the chart at several widths, and why a job is planned as it is."""

import io
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from dispatcher.render_plan import cost, explanation, gantt
from tests.cli.conftest import Run
from tests.client.fake_api import FakeApi

T0 = datetime(2026, 1, 10, tzinfo=UTC)
WIDTHS = [80, 100, 133, 160, 200]


def iso(hours: float) -> str:
    return (T0 + timedelta(hours=hours)).isoformat()


def placement(job_id: str, region: str, *spans: tuple[float, float], **more: Any) -> dict[str, Any]:
    given = {
        "job_id": job_id,
        "region": region,
        "intervals": [[iso(begin), iso(end)] for begin, end in spans],
        "cost": 1.5,
        "run_now_cost": 3.0,
        "energy_kwh": 10.0,
        "carbon_kg": 2.0,
        "late_s": 0.0,
        "reason": "cheapest start before the deadline",
    }
    return given | more


def plan(*placements: dict[str, Any], **more: Any) -> dict[str, Any]:
    given = {
        "made_at": iso(0),
        "horizon_end": iso(48),
        "slot_s": 900,
        "currency": "EUR",
        "objective": 12.5,
        "bound": 12.0,
        "gap": 0.04,
        "placements": list(placements),
        "unplaced": {},
        "peaks": [],
    }
    return given | more


def signal(region: str, kind: str = "price", values: list[float | None] | None = None) -> dict[str, Any]:
    values = values or [10.0, 20.0, None, -5.0, *([50.0] * 44)]
    unit = "EUR/MWh" if kind == "price" else "gCO2e/kWh"
    return {"region": region, "kind": kind, "unit": unit, "start": iso(0), "slot_s": 3600, "values": values}


TWO = plan(
    placement("j1", "north", (6, 8), (12, 13)),
    placement("j2", "south", (0, 20), cost=0.0123),
    placement("a-job-with-a-rather-long-name-of-its-own", "north", (12, 14), cost=123456.789, late_s=7500.0),
    unplaced={"j9": "no region has 16 GPUs"},
    peaks=[{"region": "north", "sentence": "held at 4.0 kW: a higher peak would cost 80.00 EUR"}],
)
JOBS: Mapping[str, Any] = {
    "j1": {"deadline_at": iso(18)},
    "j2": {"deadline_at": iso(90)},
    "a-job-with-a-rather-long-name-of-its-own": {"deadline_at": iso(13)},
}
SIGNALS = [signal("north"), signal("north", "carbon"), signal("south", values=[None] * 48), signal("west")]


def chart(width: int, made: dict[str, Any] = TWO, **more: Any) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, highlight=False)
    console.print(gantt(made, JOBS, SIGNALS, width, **({"now": T0 + timedelta(minutes=70)} | more)))
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_chart_fits_and_time_is_to_scale(width: int) -> None:
    lines = chart(width)
    assert all(len(line) <= width for line in lines)
    (ticks,) = [line for line in lines if "12:00" in line]
    (bar,) = [line for line in lines if line.startswith("  j1 ")]
    first, pause, deadline = bar.index("█"), bar.index("─"), bar.index("|")
    assert abs(ticks.index("12:00") - (first + deadline) / 2) <= 1.5
    assert first < pause < bar.rindex("█") < deadline
    hour = (deadline - first) / 12
    assert bar.count("█") == pytest.approx(3 * hour, abs=3) and bar.endswith("1.50 EUR")
    assert bar[: bar.index("┊")].strip() == "j1" and set(bar[bar.index("┊") + 1 : first]) == {"·"}


@pytest.mark.parametrize("width", WIDTHS)
def test_now_stands_in_one_column(width: int) -> None:
    lines = chart(width)
    (head,) = [line for line in lines if "now 01:10" in line]
    column = head.index("┊")
    (bar,) = [line for line in lines if line.startswith("  j1 ")]
    (running,) = [line for line in lines if line.startswith("  j2 ")]
    assert bar[column] == "┊" and running[column] == "█"


def test_regions_are_groups_with_their_signals_above_their_jobs() -> None:
    lines = chart(120)
    north, south, west = (
        next(i for i, line in enumerate(lines) if line.startswith(name)) for name in ("north:", "south:", "west:")
    )
    assert lines[north] == "north: 2 jobs" and lines[south] == "south: 1 job" and lines[west] == "west: no job"
    assert lines[north + 1].startswith("  price") and lines[north + 1].endswith("-5..50 EUR/MWh")
    assert "·" in lines[north + 1]  # an hour that is not known
    assert lines[north + 2].startswith("  carbon") and lines[north + 2].endswith("-5..50 gCO2e/kWh")
    assert lines[north + 3].startswith("  j1 ") and lines[north + 4].startswith("  a-job") and "…" in lines[north + 4]
    assert lines[south + 1].endswith("unknown") and lines[south + 2].endswith("0.0123 EUR")


def test_what_is_late_what_has_no_place_and_what_a_peak_costs_is_said() -> None:
    text = "\n".join(chart(100))
    assert "late 2h 5m" in text and "j9: not placed: no region has 16 GPUs" in text
    assert "north: held at 4.0 kW" in text
    assert "objective 12.50 EUR, proven lower bound 12.00 EUR, gap 4.0%" in text


def kept(hours: float, sentence: str, region: str = "north") -> dict[str, Any]:
    return {"region": region, "start": iso(hours), "end": iso(hours + 1), "gpus": 3.0, "power_w": 0.0, "sentence": sentence}


SERVING = "Sat 12:00-12:30: 3 of 8 GPUs kept free for serving chat (p95 of demand at this hour 2.4 GPUs)"


def test_what_is_kept_free_for_serving_is_said_as_far_as_the_chart_reaches() -> None:
    few = plan(placement("j1", "north", (1, 2)), kept_free=[kept(1, SERVING), kept(40, "beyond the chart")])
    lines = chart(140, few)
    assert f"north: {SERVING}" in lines and not any("beyond" in line for line in lines)
    many = plan(placement("j1", "north", (1, 2)), kept_free=[kept(n / 4, f"number {n}") for n in range(12)])
    lines = chart(140, many)
    assert "north: number 7" in lines and "north: number 8" not in lines
    assert "and 4 more that are kept free for serving: --json shows all" in lines


def test_more_jobs_than_wanted_are_counted() -> None:
    many = plan(*(placement(f"j{i:03d}", "north" if i % 3 else "south", (i / 10, i / 10 + 1)) for i in range(90)))
    lines = chart(120, many, limit=30)
    assert sum(line.startswith("  j") for line in lines) == 30
    assert "north: 60 jobs, 40 of them not shown: --limit shows more" in lines
    assert len([line for line in chart(120, many, limit=200) if line.startswith("  j")]) == 90


def test_an_empty_plan_and_a_late_now() -> None:
    assert "nothing is planned" in chart(80, plan())
    lines = chart(80, TWO, now=T0 + timedelta(hours=17, minutes=30))
    (head,) = [line for line in lines if "now 17:30" in line]
    assert len(head) <= 80
    early = chart(80, TWO, now=T0 - timedelta(hours=1))
    assert any("now 23:00" in line for line in early)
    without = chart(80, TWO, now=None)
    assert not any("┊now" in line or "now┊" in line for line in without)


def test_control_characters_of_names_do_not_reach_the_terminal() -> None:
    text = "\n".join(chart(100, plan(placement("x\x1b[31m", "north\x07", (1, 2)), unplaced={"y\x1b": "z\x9b"})))
    assert "\x1b" not in text and "\x07" not in text and "\x9b" not in text


# --- explain ------------------------------------------------------------------------------------------------------------

TOLD: dict[str, Any] = {
    "job": {"id": "j1", "state": "queued", "deadline_at": iso(18)},
    "placement": placement("j1", "north", (6, 8), (12, 13)) | {"cap": 0.8, "gpu_type": "H100"},
    "alternatives": [
        {"region": "south", "start_at": iso(1), "cost": 4.0, "why_not": "dearer by 2.50 EUR"},
        {"region": "north", "start_at": iso(2), "cost": None, "why_not": "its price is not known"},
        {"region": "north", "start_at": iso(3), "cost": 1.5, "why_not": "no room"},
    ],
    "planning": {"currency": "EUR", "carbon_price": 50.0, "price_weight": 1.0, "pue": {"north": 1.2, "south": 1.0}},
    "why": "It waits for cheaper power.",
}


def explained(told: Mapping[str, Any], width: int = 120) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, highlight=False).print(explanation(told))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_the_choice_and_what_it_lost_to_have_their_costs() -> None:
    lines = explained(TOLD)
    rows = {" ".join(line.split("  ")[0].split()): line for line in lines}
    assert lines[:2] == ["j1 is queued", "It waits for cheaper power."]
    assert rows["cost"].endswith(" 1.50 EUR") and rows["if run now"].endswith("3.00 EUR (1.50 EUR more)")
    assert rows["energy"].endswith("10.000 kWh") and rows["carbon"].endswith("2.000 kg CO2e")
    assert rows["GPU type"].endswith("H100") and rows["power cap"].endswith("80% of the default limit")
    assert "4.00 EUR" in rows["south"] and "2.50 EUR more" in rows["south"] and rows["south"].endswith("dearer by 2.50 EUR")
    (unknown,) = [line for line in lines if "its price is not known" in line]
    assert "unknown" in unknown and "more" not in unknown
    (equal,) = [line for line in lines if line.endswith("no room")]
    assert "1.50 EUR" in equal and "more" not in equal and "less" not in equal
    assert lines[-1].startswith("costs are as planned: energy at the expected price, PUE 1.2 included; carbon at 50 EUR/t")


def test_what_an_alternative_costs_more_is_said_once() -> None:
    told = TOLD | {"alternatives": [TOLD["alternatives"][0] | {"why_not": "costs 2.50 EUR more"}]}
    (line,) = [line for line in explained(told) if "south" in line]
    assert "4.00 EUR" in line and line.endswith("costs 2.50 EUR more") and line.count("2.50 EUR more") == 1


@pytest.mark.parametrize("width", [80, 120])
def test_an_explanation_fits(width: int) -> None:
    long = TOLD | {"alternatives": [TOLD["alternatives"][0] | {"why_not": "a long sentence of why it was not chosen " * 4}]}
    assert all(len(line) <= width for line in explained(long, width))


def test_what_is_not_said_is_not_made_up() -> None:
    free = TOLD | {"planning": TOLD["planning"] | {"carbon_price": 0.0, "price_weight": 0.5}}
    assert "weighted by 0.5; carbon is not priced" in explained(free, 160)[-1]
    silent = explained({key: value for key, value in TOLD.items() if key != "planning"})
    assert not any("PUE" in line or "EUR/t" in line for line in silent)
    unknown = explained(TOLD | {"placement": TOLD["placement"] | {"cost": None, "carbon_kg": None}, "alternatives": []})
    assert any("unknown: a price is missing" in line for line in unknown)
    ended = explained({"job": {"id": "j", "state": "succeeded"}, "placement": None, "alternatives": [], "why": "done"})
    assert ended == ["j is succeeded", "done"]


def test_what_is_kept_free_meanwhile_is_part_of_the_explanation() -> None:
    lines = explained(TOLD | {"kept_free": [kept(1, SERVING)]}, 140)
    at = lines.index("kept free for serving meanwhile:")
    assert lines[at + 1] == f"  north: {SERVING}"


def test_costs_have_their_currency() -> None:
    assert [cost(amount, "EUR") for amount in (1.234, -3.0, 0.0123, 0, 1234.5, None, True)] == [
        "1.23 EUR", "-3.00 EUR", "0.0123 EUR", "0.00 EUR", "1,234.50 EUR", None, None,
    ]  # fmt: skip


# --- through the command ------------------------------------------------------------------------------------------------


def test_the_command_asks_for_what_it_draws(api: FakeApi, run: Run) -> None:
    answers: dict[str, Any] = {
        "/v1/plan": TWO,
        "/v1/plan/j1": TOLD,
        "/v1/regions": {"regions": [{"name": "north"}]},
        "/v1/signals": signal("north"),
        "/v1/status": {"now": iso(1)},
    }
    for path, answer in answers.items():
        api.answers["GET", path] = lambda _, answer=answer: (200, answer)  # type: ignore[misc]
    api.jobs["j1"] = {"id": "j1", "state": "queued", "deadline_at": iso(18)}
    drawn = run("plan").stdout
    assert "┊now 01:00" in drawn and all(len(line) <= 160 for line in drawn.splitlines())
    assert json.loads(run("plan", "--json").stdout) == TWO
    assert "north: 2 jobs, 2 of them not shown" in run("plan", "show", "--limit", "1").stdout  # j2 starts first
    assert "1.50 EUR more" in run("plan", "explain", "j1").stdout
    assert json.loads(run("plan", "explain", "--json", "j1").stdout) == TOLD
    del api.answers["GET", "/v1/status"]  # a control plane that does not say when it is
    without = run("plan")
    assert without.exit_code == 0 and "┊now" not in without.stdout


@pytest.mark.parametrize(
    ("sums", "told"),
    [
        ({"objective": 12.5, "bound": 12.0, "gap": 0.04}, "gap 4.0% (at most 0.50 EUR above it)"),
        ({"objective": 0.0268, "bound": -0.13, "gap": 5.998}, "proven lower bound -0.13 EUR, at most 0.16 EUR above it"),
        ({"objective": 0.0, "bound": -0.14, "gap": None}, "proven lower bound -0.14 EUR, at most 0.14 EUR above it"),
        ({"objective": 0.0, "bound": 0.0, "gap": 0.0}, "proven lower bound 0.00 EUR, gap 0.0%"),
    ],
)
def test_the_gap_is_told_in_money_and_as_a_share_only_where_one_says_something(sums: dict[str, Any], told: str) -> None:
    assert chart(200, plan(**sums))[0].endswith(told)


def runs(job_id: str, region: str, hours: float | None, state: str = "running") -> dict[str, Any]:
    end = None if hours is None else iso(hours)
    return {"job_id": job_id, "region": region, "state": state, "started_at": iso(0), "expected_end_at": end}


def limit(region: str, watts: float, event_id: str | None = None, **more: Any) -> dict[str, Any]:
    given = {"region": region, "branch": None, "event_id": event_id, "limit_w": watts, "start": None, "end": None}
    return given | {"why": "standing limit of the site"} | more


def test_what_runs_and_which_limits_hold_stand_under_their_region() -> None:
    running = [runs("r1", "north", 2), runs("r2", "north", None), runs("r3", "east", None, "launching")]
    limits = [
        limit("north", 9000.0),
        limit("north", 2000.0, "e1", start=iso(17), end=iso(19)),
        limit("east", 700.0, "e2", start=iso(1), branch="rack-1"),
    ]
    lines = chart(120, TWO | {"running": running, "limits": limits})
    north, east = lines.index("north: 2 jobs"), lines.index("east: no job")
    assert lines[north + 3 : north + 6] == [
        "  running: r1 until about 01-10 02:00, r2 (has run for longer than expected)",
        "  limit 9,000 W: standing limit of the site",
        "  limit 2,000 W from 01-10 17:00 until 01-10 19:00: event e1",
    ]
    assert lines[east + 1 : east + 3] == [
        "  running: r3 (launching)",
        "  limit of branch rack-1 700 W from 01-10 01:00 without an end yet: event e2",
    ]
    many = chart(120, TWO | {"running": [runs(f"r{n}", "north", 2) for n in range(8)], "limits": limits[:1] * 7})
    assert any(line.endswith("and 3 more") for line in many) or "and 3 more" in " ".join(many)
    assert "  and 2 limits more: --json shows all" in many
