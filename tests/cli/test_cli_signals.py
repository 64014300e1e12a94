"""``gridshift signals``: what is listed, plotted and forecast, and what feeds say, with and without a control plane."""

import json
import math
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from dispatcher.leader import Leadership
from dispatcher.store.sql import SqlStore
from signals.points import Kind
from signals.store import SignalStore
from tests.cli.conftest import Run
from tests.client.fake_api import FakeApi

FAILS = {
    "feed": "entsoe", "source": "entsoe", "state": "disabled", "chosen": False, "why": "its secret is missing", "age_s": None,
    "known_until": None, "quality": None, "due_at": "2026-01-01T01:00:00Z", "error": "set ENTSOE_TOKEN\x1b[31m", "warnings": [],
}  # fmt: skip
HOLDS = {
    "feed": "energy_charts", "source": "energy_charts", "state": "fresh", "chosen": True, "why": "is fresh", "age_s": 372.0,
    "known_until": "2026-01-02T00:00:00Z", "quality": "measured", "due_at": "2026-01-01T00:20:00Z", "error": None,
    "warnings": ["2026-01-01 03:00: -900 EUR/MWh is hardly possible"],
}  # fmt: skip
PRICE: dict[str, Any] = {
    "region": "north", "kind": "price", "signal": "price", "unit": "EUR/MWh", "now": 10.0, "basis": "published", "low": None,
    "high": None, "source": "energy_charts", "why": "entsoe: its secret is missing; energy_charts: is fresh",
    "sources": [FAILS, HOLDS],
}  # fmt: skip
CARBON: dict[str, Any] = {
    "region": "north", "kind": "carbon", "signal": "carbon_marginal", "unit": "gCO2e/kWh", "now": 120.25, "basis": "model",
    "low": 90.0, "high": 150.0, "source": "gb", "why": "gb: fresh", "sources": [{**HOLDS, "source": "gb", "warnings": []}],
}  # fmt: skip
NONE: dict[str, Any] = {
    "region": "south", "kind": "price", "signal": "price", "unit": None, "now": None, "basis": "unknown", "low": None,
    "high": None, "source": None, "why": "no source is configured", "sources": [],
}  # fmt: skip
#: Two published hours and one that is not known, then a forecast to the end of the fifth hour.
SERIES: dict[str, Any] = PRICE | {
    "start": "2026-01-01T00:30:00Z", "slot_s": 1800,
    "values": [10.0, 20.0, 20.0, None, None, -5.0, 0.0, 50.0, 40.0],
    "basis": ["published"] * 3 + ["unknown"] * 2 + ["model"] * 4,
    "low": [None] * 5 + [-8.0, -4.0, 30.0, 25.0], "high": [None] * 5 + [-1.0, 6.0, 80.0, 65.0],
    "reason": "model of 182 days of history",
}  # fmt: skip


@pytest.fixture
def grid(api: FakeApi) -> FakeApi:
    api.answers["GET", "/v1/signals"] = lambda _: (200, SERIES if "region" in api.requests[-1][2] else {"signals": LISTED})
    return api


LISTED = [PRICE, CARBON, NONE]


# --- of the control plane -------------------------------------------------------------------------------------------


def test_the_list_says_where_each_value_is_from_and_what_fails(grid: FakeApi, run: Run) -> None:
    assert json.loads(run("signals", "--json").stdout) == {"signals": LISTED}
    lines = run("signals").stdout.splitlines()
    assert lines[1].split() == [
        "north", "price", "10.00", "EUR/MWh", "published", "energy_charts", "fresh", "6m", "12s"
    ]  # fmt: skip
    assert lines[2].split()[:6] == ["north", "carbon", "(marginal)", "120.25", "(90.0..150.0)", "gCO2e/kWh"]
    assert lines[3].split() == ["south", "price", "-", "unknown", "none", "-", "-"]
    assert lines[4] == "north price: entsoe disabled: set ENTSOE_TOKEN�[31m; asked again 01-01 01:00"
    assert lines[5] == "north price: energy_charts: 2026-01-01 03:00: -900 EUR/MWh is hardly possible"
    assert len(lines) == 6


def test_a_tariff_does_not_hide_the_feed_behind_it_nor_the_one_that_was_lost(api: FakeApi, run: Run) -> None:
    why = "no value for now (its last ends 2026-01-01 00:00Z)"
    ended = {**FAILS, "source": "csv", "state": "stale", "error": None, "why": why}
    made_up = {**HOLDS, "source": "synthetic", "warnings": []}
    price = PRICE | {"source": "tariff:north", "sources": [ended, made_up]}
    api.answers["GET", "/v1/signals"] = lambda _: (200, {"signals": [price]})
    lines = run("signals").stdout.splitlines()
    assert "tariff:north (synthetic)" in lines[1]
    assert lines[2] == "north price: csv stale: no value for now (its last ends 2026-01-01 00:00Z)"


def test_a_signal_is_plotted_and_a_forecast_looks_different(grid: FakeApi, run: Run) -> None:
    assert json.loads(run("signals", "show", "north", "--json").stdout) == SERIES
    out = run("signals", "show", "north").stdout
    assert "\x1b" not in out
    lines = out.splitlines()
    assert lines[0] == "north price from energy_charts, EUR/MWh, times UTC"
    told = dict(line.split("  ", 1) for line in lines[1:5] if "  " in line)
    assert {key.strip(): value.strip() for key, value in told.items()} == {
        "now": "10.00 EUR/MWh",
        "lowest": "-5.00 at 01-01 03:00",
        "highest": "50.00 at 01-01 04:00",
        "made of": "published until 01-01 02:00, then unknown until 01-01 03:00, then model until 01-01 05:00"
        " (model of 182 days of history)",
    }
    plot = [line[10:] for line in lines[5:14]]
    assert lines[5].startswith("     80.0 ") and lines[13].startswith("     -8.0 ")
    wide = ["".join(column) for column in zip(*(line.ljust(9 * 13) for line in plot), strict=True)]
    assert len(wide) == 9 * 13, "each of the 9 slots is as wide as fits"
    columns = wide[6::13]  # the middle of each slot
    assert all("█" in column and "▒" not in column for column in columns[:3])
    assert all(set(column) <= {" ", "─"} for column in columns[3:5]), "what is unknown is blank, and not the zero line's value"
    assert all("▒" in column and "█" not in column for column in columns[5:])
    assert "░" in columns[8] and columns[7].index("░") == 0, "the band reaches to the highest quantile"
    assert any("█ published   ▒ forecast   ░ 10 to 90 %   blank: unknown" in line for line in lines)
    [used] = [line for line in lines if line.startswith("energy_charts *")]
    assert "fresh, heard 6m 12s ago" in used and "measured" in used
    assert any("its secret is missing" in line and "disabled" in line for line in lines)


def test_a_signal_of_which_nothing_is_known(api: FakeApi, run: Run) -> None:
    unknown = SERIES | {"values": [None] * 9, "basis": ["unknown"] * 9, "low": [None] * 9, "high": [None] * 9, "now": None}
    api.answers["GET", "/v1/signals"] = lambda _: (200, unknown)
    for command in ("show", "forecast"):
        result = run("signals", command, "north")
        assert result.exit_code == 0 and "nothing is known of it" in result.stdout and "█" not in result.stdout
    flat = SERIES | {"values": [0.0] * 9, "basis": ["published"] * 9, "low": [None] * 9, "high": [None] * 9}
    api.answers["GET", "/v1/signals"] = lambda _: (200, flat)
    assert "█" * 9 * 13 in run("signals", "show", "north").stdout


def test_the_forecast_of_a_region_by_the_hour(grid: FakeApi, run: Run) -> None:
    result = run("signals", "forecast", "north", "--kind", "price")
    assert result.exit_code == 0 and result.stderr == ""
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith("01-01 0")]
    assert rows == [
        ["01-01", "00:30", "10.00", "-", "-", "published"],
        ["01-01", "01:00", "20.00", "-", "-", "published"],
        ["01-01", "02:00", "unknown", "-", "-", "unknown"],
        ["01-01", "03:00", "-2.50", "-6.00", "2.50", "model"],
        ["01-01", "04:00", "45.00", "27.50", "72.50", "model"],
    ]
    assert grid.requests[-1][2] == {"region": "north", "kind": "price"}
    cut = json.loads(run("signals", "forecast", "north", "--hours", "2", "--json").stdout)
    assert cut["values"] == [10.0, 20.0, 20.0, None] and len(cut["low"]) == len(cut["high"]) == len(cut["basis"]) == 4
    result = run("signals", "forecast", "north", "--hours", "96")
    assert "the planner looks 4.5 h ahead" in result.stderr


def test_what_a_forecast_needs(grid: FakeApi, run: Run) -> None:
    for args, said in (
        ([], "name a REGION"),
        (["north", "--option", "file=x.csv"], "go with --feed"),
        (["north", "--kind", "wind"], "must be price, carbon or load"),
        (["--feed", "nope"], "there are: "),
        (["--feed", "csv"], "file: None: give the path of a CSV file"),
        (["--feed", "csv", "--option", "file=x.csv", "--now", "2026-01-01"], "give a time such as"),
        (["--feed", "gb_carbon", "--kind", "price"], "has carbon_average"),
    ):
        result = run("signals", "forecast", *args)
        assert result.exit_code == 2 and said in result.stderr and result.stdout == "", args


# --- without a control plane ----------------------------------------------------------------------------------------

SUNDAY = datetime(2026, 3, 1, tzinfo=UTC)


def a_file(path: Path, hours: int, *, beyond: float | None = None) -> str:
    """Prices that rise and fall with the day, from 60 days before SUNDAY for so many hours more; ``beyond``: from SUNDAY on
    all of them are this."""
    rows = []
    for i in range(-60 * 24, hours):
        at = SUNDAY + timedelta(hours=i)
        value = 50 + 30 * math.sin(2 * math.pi * at.hour / 24) + (at.day * 7 % 5)
        rows.append(f"{at:%Y-%m-%dT%H:%M:%SZ},{value if beyond is None or i < 0 else beyond:.3f}")
    path.write_text("datetime_utc,price_eur_mwh\n" + "\n".join(rows) + "\n")
    return f"file={path}"


def test_a_file_is_forecast_without_knowledge_of_what_came_later(run: Run, tmp_path: Path) -> None:
    def told(option: str, *more: str) -> dict[str, Any]:
        result = run("signals", "forecast", "--feed", "csv", "--option", option, "--zone", "Europe/Berlin", "--json",
                     "--now", "2026-03-01T00:00Z", "--hours", "48", *more)  # fmt: skip
        assert result.exit_code == 0, result.stderr
        answer: dict[str, Any] = json.loads(result.stdout)
        return answer

    alone = told(a_file(tmp_path / "a.csv", 0))
    later = told(a_file(tmp_path / "b.csv", 48, beyond=4000.0))
    assert alone["values"] == later["values"] and alone["low"] == later["low"]
    assert set(alone["basis"]) == {"model"} and alone["start"] == "2026-03-01T00:00:00+00:00" and len(alone["values"]) == 192
    assert alone["learned_from"] == ["2025-12-31T00:00:00Z", "2026-03-01T00:00:00Z"]
    assert "60 days" in alone["reason"]
    truth = [50 + 30 * math.sin(2 * math.pi * (i // 4) / 24) + 2 for i in range(96)]
    off = [abs(value - true) for value, true in zip(alone["values"], truth, strict=False)]
    assert sum(off) / len(off) < 4
    assert all(low <= value <= high for low, value, high in zip(alone["low"], alone["values"], alone["high"], strict=True))

    ahead = told(f"file={tmp_path / 'b.csv'}", "--option", "lookahead=24h")
    assert ahead["basis"] == ["published"] * 96 + ["model"] * 96 and ahead["values"][:96] == [4000.0] * 96
    assert ahead["now"] == 4000.0 and ahead["low"][0] is None and ahead["low"][-1] is not None
    people = run("signals", "forecast", "--feed", "csv", "--option", f"file={tmp_path / 'a.csv'}", "--now", "2026-03-01T00:00Z")
    assert "made of  model until 03-05 00:00 (model of 60 days of history)" in people.stdout and "░" in people.stdout


def test_a_carbon_file_is_found_to_be_one_and_an_hour_not_yet_over_is_not_known(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    rows = [f"{SUNDAY + timedelta(hours=i):%Y-%m-%d %H:%M:%S},{300 + 100 * (i % 24 >= 12)}" for i in range(-40 * 24, 1)]
    path.write_text("Datetime (UTC),Carbon intensity gCO₂eq/kWh (Life cycle)\n" + "\n".join(rows) + "\n")
    args = ["--feed", "csv", "--option", f"file={path}", "--now", "2026-03-01T00:30Z", "--hours", "24", "--json"]
    answer = json.loads(run("signals", "forecast", *args, "west").stdout)
    assert (answer["region"], answer["kind"], answer["signal"]) == ("west", "carbon", "carbon_average")
    assert answer["learned_from"][1] == "2026-03-01T00:00:00Z" and set(answer["basis"]) == {"model"}
    assert answer["unit"] == "gCO2e/kWh" and min(answer["low"]) > 0
    assert all(abs(value - 300) < 40 for value in answer["values"][4:36])
    assert all(abs(value - 400) < 40 for value in answer["values"][56:84])


def test_a_file_that_ends_long_before_now_or_is_gone(run: Run, tmp_path: Path) -> None:
    option = a_file(tmp_path / "a.csv", 0)
    result = run("signals", "forecast", "--feed", "csv", "--option", option, "--now", "2027-03-01T00:00Z")
    assert result.exit_code == 1 and result.stdout == ""
    assert "the file covers 2025-12-31" in result.stderr and "give a --now that lies within it" in result.stderr
    result = run("signals", "forecast", "--feed", "csv", "--option", option, "--now", "2026-03-01T00:00Z", "--zone", "Mars/X")
    assert result.exit_code == 2 and "'Mars/X' is not a time zone" in result.stderr
    result = run("signals", "forecast", "--feed", "csv", "--option", f"file={tmp_path}/no.csv")
    assert result.exit_code == 1 and "csv could not be asked" in result.stderr


GB = """{"data": [
 {"from": "2026-01-01T00:00Z", "to": "2026-01-01T00:30Z", "intensity": {"forecast": 100, "actual": 90, "index": "low"}},
 {"from": "2026-01-01T00:30Z", "to": "2026-01-01T01:00Z", "intensity": {"forecast": null, "actual": null, "index": "low"}}]}"""


def test_parse_says_what_a_response_means(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "gb.json"
    file.write_text(GB)
    args = ["signals", "parse", "--feed", "gb_carbon", "--retrieved-at", "2026-02-01T00:00Z", str(file)]
    result = run(*args, "--region", "uk", "--json")
    answer = json.loads(result.stdout)
    assert result.exit_code == 0 and set(answer) == {"points", "gaps", "warnings", "error"} and answer["error"] is None
    measured = [p for p in answer["points"] if p["quality"] == "measured"]
    assert measured == [
        {"region": "uk", "kind": "carbon_average", "variant": measured[0]["variant"], "start": "2026-01-01T00:00:00Z",
         "end": "2026-01-01T00:30:00Z", "value": 90.0, "unit": "gCO2e/kWh", "quality": "measured", "issued_at": None}
    ]  # fmt: skip
    assert {"start": "2026-01-01T00:30:00Z", "end": "2026-01-01T01:00:00Z"} in answer["gaps"]
    people = run(*args).stdout
    assert "90.00" in people and "gap: 2026-01-01T00:30:00Z" in people


def test_parse_of_a_table_finds_the_kind_that_is_there(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "p.csv"
    file.write_text("datetime_utc,price_eur_per_mwh\n2026-01-01T00:00:00Z,-1.5\n2026-01-01T01:00:00Z,0\n")
    answer = json.loads(run("signals", "parse", "--feed", "csv", "--json", str(file)).stdout)
    assert answer["error"] is None
    got = [(p["kind"], p["value"], p["unit"]) for p in answer["points"]]
    assert got == [("price", -1.5, "EUR/MWh"), ("price", 0.0, "EUR/MWh")]
    file.write_text("Datetime (UTC),Zone id,Carbon intensity gCO₂eq/kWh (Life cycle)\n2026-01-01 00:00:00,DE,400\n")
    answer = json.loads(run("signals", "parse", "--feed", "csv", "--json", str(file)).stdout)
    assert [(p["kind"], p["value"]) for p in answer["points"]] == [("carbon_average", 400.0)]


def test_parse_errors(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "gb.json"
    file.write_text(GB[:150])
    result = run("signals", "parse", "--feed", "gb_carbon", "--json", str(file))
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["kind"] == "truncated" and "truncated" in result.stderr
    for args, said in (
        (["--feed", "nope"], "there are: aemo, "),
        (["--feed", "gb_carbon", "--kind", "price"], "has carbon_average"),
        (["--feed", "gb_carbon", "--option", "x=1"], "no such option"),
        (["--feed", "gb_carbon", "--retrieved-at", "2026-01-01"], "give a time such as"),
    ):
        result = run("signals", "parse", *args, str(file))
        assert result.exit_code == 2 and said in result.stderr, args
    assert run("signals", "parse", "--feed", "csv", str(tmp_path / "absent")).exit_code == 2


def test_fetch_asks_now_and_stores_nothing(run: Run) -> None:
    answer = json.loads(run("signals", "fetch", "--feed", "synthetic", "--kind", "price", "--hours", "1", "--json").stdout)
    assert answer["error"] is None and len(answer["points"]) in {8, 9}


def test_a_feed_that_cannot_be_asked_shows_no_empty_table(run: Run, tmp_path: Path) -> None:
    args = ["signals", "fetch", "--feed", "csv", "--kind", "price", "--option", f"file={tmp_path}/gone.csv"]
    result = run(*args)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("gridshift: csv could not be asked: ") and "gone.csv" in result.stderr
    result = run(*args, "--json")
    assert result.exit_code == 1 and json.loads(result.stdout)["error"]["kind"] == "access"


# --- filling the database -------------------------------------------------------------------------------------------

CONFIG = """
[server]
data_dir = "data"

[[region]]
name = "north"
address = "http://127.0.0.1:1"
price = [{ feed = "synthetic" }, { feed = "synthetic", price_mean = 90 }, { feed = "csv", file = "gone.csv", source = "table" }]
"""


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    path = tmp_path / "gridshift.toml"
    path.write_text(CONFIG)
    return path


def test_a_backfill_beside_a_control_plane(run: Run, configured: Path) -> None:
    args = ["signals", "backfill", "north", "--days", "2", "--json", "--config", str(configured)]
    assert run("db", "upgrade", "--config", str(configured)).exit_code == 0
    data = configured.parent / "data"
    url = f"sqlite:///{data / 'gridshift.db'}"
    leading = Leadership(url, data)
    leading.acquire()
    try:
        with closing(SqlStore(url, data_dir=data)) as store:
            result = run(*args)
            assert leading.still_held(), "a backfill does not ask for the lead"
            told = json.loads(result.stdout)
            assert result.exit_code == 0 and told["source"] == "synthetic" and told["failed"] == told["left"] == 0
            start, end = datetime.fromisoformat(told["start"]), datetime.fromisoformat(told["end"])
            assert end - start == timedelta(days=2) and told["stored"] in {192, 193}
            points = SignalStore(store.engine).read("north", Kind.PRICE, start, end, end + timedelta(days=1))
            assert len(points) == told["stored"] and {p.source for p in points} == {"synthetic"}
            second = json.loads(run(*args, "--source", "synthetic-2").stdout)
            assert second["source"] == "synthetic-2" and second["stored"] > 0, "two zones of one feed stay apart"
    finally:
        leading.release()
    again = json.loads(run(*args, "--again").stdout)
    assert again["skipped"] == 0 and again["stored"] <= 1, "what is there already is not stored twice"


def test_a_backfill_says_what_went_wrong(run: Run, configured: Path) -> None:
    for args, said in (
        (["nowhere"], "region: 'nowhere': must be one of north"),
        (["north", "--kind", "carbon"], "region north has no source for it"),
        (["north", "--source", "x"], "must be one of synthetic, synthetic-2, table"),
    ):
        result = run("signals", "backfill", *args, "--config", str(configured))
        assert result.exit_code == 2 and said in result.stderr, (args, result.stderr)
    result = run("signals", "backfill", "north", "--source", "table", "--days", "60", "--config", str(configured))
    assert result.exit_code == 1 and "gone.csv" in result.stderr and "run it again later" in result.stderr
    assert "3 failed" in result.stdout and "0 new points" in result.stdout


def test_a_backfill_whose_database_fails_says_so_in_one_line(
    run: Run, configured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ["signals", "backfill", "north", "--days", "2", "--config", str(configured)]

    def locked(*_: object) -> int:
        raise OperationalError("INSERT", {}, sqlite3.OperationalError("database is locked"))

    with monkeypatch.context() as patched:
        patched.setattr(SignalStore, "append", locked)
        result = run(*args)
    assert result.exit_code == 1 and "Traceback" not in result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("gridshift: ")]
    assert "database is locked" in line and "run it again" in line
    with closing(sqlite3.connect(configured.parent / "data" / "gridshift.db")) as database:
        database.execute("DROP TABLE signal_point")
    result = run(*args)
    assert result.exit_code == 1 and "no such table: signal_point" in result.stderr
