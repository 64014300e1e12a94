"""``gridshift backtest``: small traces through the whole command, in this process and in one of its own."""

import csv
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dispatcher.backtest import run as runs
from dispatcher.cli import main
from dispatcher.cli_common import load_config, open_store
from policies import registry
from policies.world import JobState
from tests.backtest.report_samples import run as a_run
from tests.store.store_samples import at, attempt, change, job

START = datetime(2023, 3, 1, tzinfo=UTC)
Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("ADDRESS", "TOKEN", "CONFIG"):
        monkeypatch.delenv(f"GRIDSHIFT_{name}", raising=False)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Two jobs of 2 h and 1 kW that come at 00:00 and may wait 6 h, a third that may not wait; in ``north`` power is dear and
    dirty but for the two hours from 03:00 on."""
    hours = [START + timedelta(hours=h) for h in range(24 * 14)]

    def cheap(at: datetime) -> bool:
        return at.hour in (3, 4)

    prices = [f"{at:%Y-%m-%dT%H:%MZ},north,{10 if cheap(at) else 100}" for at in hours]
    carbon = [f"{at:%Y-%m-%dT%H:%MZ},north,{100 if cheap(at) else 400},{50 if cheap(at) else 350}" for at in hours]
    jobs = [
        "id,submitted_at,length_s,gpus,power_w,max_wait_s",
        "a,2023-03-01T00:00:00Z,7200,1,1000,21600",
        "b,2023-03-01T00:00:00Z,7200,1,1000,21600",
        "c,2023-03-01T06:00:00Z,3600,2,500,0",
    ]
    (tmp_path / "price.csv").write_text("\n".join(["datetime_utc,region,price_usd_mwh", *prices]) + "\n")
    (tmp_path / "carbon.csv").write_text("\n".join(["datetime_utc,region,ci_lca_gco2_kwh,ci_direct_gco2_kwh", *carbon]) + "\n")
    (tmp_path / "jobs.csv").write_text("\n".join(jobs) + "\n")
    return [
        *("--jobs", str(tmp_path / "jobs.csv")),
        *("--signals", str(tmp_path / "price.csv"), str(tmp_path / "carbon.csv")),
        *("--regions", "north", "--start", "2023-03-01T00:00Z", "--days", "1"),
        *("--forecast", "perfect", "--launch-s", "0"),
    ]


@pytest.fixture
def run() -> Run:
    def call(*args: str) -> Result:
        return CliRunner().invoke(main, ["backtest", *args])

    return call


#: Two jobs of 2 kWh and one of 0.5 kWh, all of it in dear hours; and with the two in the cheap hours.
RUN_NOW_COST, RUN_NOW_KG = 4.5 * 0.1, 4.5 * 0.4
BEST_COST, BEST_KG = 4.0 * 0.01 + 0.5 * 0.1, 4.0 * 0.1 + 0.5 * 0.4


def check_rows(told: Any) -> None:
    now, slot = told["rows"][:2]
    assert (now["policy"], slot["policy"]) == ("run-now", "lowest-slot")
    assert now["energy_kwh"] == slot["energy_kwh"] == pytest.approx(4.5)
    assert now["cost"] == pytest.approx(RUN_NOW_COST) and now["carbon_kg"] == pytest.approx(RUN_NOW_KG)
    assert slot["cost"] == pytest.approx(BEST_COST) and slot["carbon_kg"] == pytest.approx(BEST_KG)
    assert slot["cost_vs_run_now"] == pytest.approx((BEST_COST - RUN_NOW_COST) / RUN_NOW_COST)
    assert now["delay_mean_h"] == pytest.approx(0, abs=1e-6) and slot["delay_mean_h"] == pytest.approx(2.0)
    assert told["oracle"]["cost"] == pytest.approx(BEST_COST) and told["oracle"]["carbon_kg"] == pytest.approx(BEST_KG)
    assert all(row["deadline_misses"] == row["unfinished"] == 0 for row in told["rows"])


def test_json_has_run_now_first_and_the_figures_worked_out_by_hand(run: Run, files: list[str]) -> None:
    result = run(*files, "--policy", "lowest-slot", "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    check_rows(told)
    assert len(told["rows"]) == 2 and told["front"] == [] and told["jobs"] == 3 and told["currency"] == "USD"
    assert told["energy_basis"] == "simulated" and told["start"] == "2023-03-01T00:00:00+00:00"
    assert result.stderr == ""  # no progress where there is no terminal


def test_direct_intensities_pue_and_draw_count(run: Run, files: list[str]) -> None:
    result = run(*files, "--policy", "run-now", "--json", "--pue", "1.5", "--carbon", "direct")
    (only,) = json.loads(result.stdout)["rows"]
    assert only["energy_kwh"] == pytest.approx(4.5 * 1.5) and only["carbon_kg"] == pytest.approx(4.5 * 1.5 * 0.35)


def test_as_its_own_process(files: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dispatcher.cli", "backtest", *files, "--policy", "lowest-slot", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr
    check_rows(json.loads(done.stdout.splitlines()[-1]))


def test_the_table_and_the_report(run: Run, files: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the report needs matplotlib, the extra 'report'")
    report = tmp_path / "out.html"
    result = run(*files, "--policy", "lowest-slot", "--report", str(report))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("Simulated: lowest-slot would have saved 80.0 % of the cost")
    assert any(line.startswith("oracle (bound)") for line in result.stdout.splitlines())
    assert "lowest-slot would have saved" in report.read_text().replace("Lowest", "lowest")
    assert result.stderr == f"report: {report}\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_report_that_finds_no_room_does_not_take_the_figures_with_it(run: Run, files: list[str]) -> None:
    pytest.importorskip("matplotlib", reason="the report needs matplotlib, the extra 'report'")
    result = run(*files, "--policy", "lowest-slot", "--json", "--report", "/dev/full")
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    check_rows(json.loads(result.stdout))
    assert result.stderr == "gridshift: /dev/full: the report could not be written: No space left on device\n"


def test_a_jobs_file_with_a_header_only_is_wrong_input(run: Run, files: list[str], tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("id,submitted_at,length_s,gpus\n")
    result = run(*files, "--policy", "lowest-slot")
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", "jobs.csv: has a header but no job\n")


def test_workers_find_the_same(run: Run, files: list[str]) -> None:
    args = (*files, "--policy", "lowest-slot,lowest-window,carbon-time", "--json")
    one, two = json.loads(run(*args).stdout), json.loads(run(*args, "--workers", "2").stdout)
    for told in (one, two):
        for row in told["rows"]:
            row.pop("wall_s")
    assert one == two and [row["policy"] for row in one["rows"]] == ["run-now", "lowest-slot", "lowest-window", "carbon-time"]


class Broken(registry.RunNow):
    def insert(self, *_: Any) -> Any:
        raise ArithmeticError("divided by nothing")


def test_a_policy_that_fails_is_named_and_the_others_are_shown(
    run: Run, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = registry.make
    monkeypatch.setattr(runs, "make", lambda name, settings: Broken() if name == "lowest-window" else made(name, settings))
    result = run(*files, "--policy", "lowest-window,lowest-slot", "--json")
    assert result.exit_code == 1
    assert "gridshift: lowest-window failed: ArithmeticError: divided by nothing" in result.stderr
    told = json.loads(result.stdout)
    check_rows(told)
    assert [row["policy"] for row in told["rows"]] == ["run-now", "lowest-slot"]
    assert "lowest-window failed: ArithmeticError: divided by nothing" in told["warnings"]


def test_the_front_has_a_run_a_carbon_price(run: Run, files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made = registry.make
    prices: list[float] = []

    def stand_in(name: str, settings: Any) -> Any:
        if name == "gridshift":
            prices.append(settings.carbon_price)
        return made("lowest-slot" if name == "gridshift" else name, settings)

    monkeypatch.setattr(runs, "make", stand_in)
    result = run(*files, "--policy", "gridshift", "--carbon-price", "30", "--carbon-prices", "0,50,0", "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert prices == [30.0, 0.0, 50.0]
    assert [row["label"] for row in told["rows"]] == ["run-now", "gridshift"]
    assert [(row["policy"], row["label"]) for row in told["front"]] == [
        ("gridshift", "gridshift at 0 USD/t"),
        ("gridshift", "gridshift at 50 USD/t"),
    ]
    assert [row["settings"]["carbon_price"] for row in told["front"]] == [0.0, 50.0]


def test_without_run_now_there_is_nothing_to_tell(run: Run, files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "make", lambda name, settings: Broken())
    result = run(*files, "--policy", "lowest-slot", "--json")
    assert (result.exit_code, result.stdout) == (1, "") and "run-now could not be simulated" in result.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_ends_it_with_130(run: Run, files: list[str], monkeypatch: pytest.MonkeyPatch, workers: str) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "_one" if workers == "1" else "wait", interrupted)
    result = run(*files, "--policy", "lowest-slot", "--workers", workers)
    assert (result.exit_code, result.stdout) == (130, "") and result.stderr.endswith("interrupted\n")
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())
    assert not multiprocessing.active_children()


def test_a_process_that_dies_is_a_failure_of_its_policy(files: list[str], run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[runs.Task] = []
    start = runs._Workers.start

    def dying(self: Any) -> Any:
        worker = start(self)
        if not given:
            given.append(runs.Task("run-now"))
            return worker
        next(reversed(self._processes.values())).kill()
        return worker

    monkeypatch.setattr(runs._Workers, "start", dying)
    result = run(*files, "--policy", "lowest-slot", "--workers", "2", "--json")
    assert result.exit_code == 1 and "lowest-slot failed: its process ended with exit code -9" in result.stderr
    assert [row["policy"] for row in json.loads(result.stdout)["rows"]] == ["run-now"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"--policy": "lowest-windw"}, "did you mean 'lowest-window'?"),
        ({"--policy": "a,,b"}, "names with commas"),
        ({"--regions": "north,south"}, "south"),
        ({"--jobs": "/nowhere/jobs.csv"}, "/nowhere/jobs.csv"),
        ({"--start": "2023-03-01"}, "give a time such as"),
        ({"--start": "2031-03-01T00:00Z"}, "2023-03-01"),
        ({"--days": "0"}, "--days"),
        ({"--gpus": "=3"}, "'=3' must be N or REGION=N"),
        ({"--gpus": "many"}, "'many' is not a number"),
        ({"--gpus": "nan"}, "'nan' is not a number"),
        ({"--pue": "0.5"}, "PUE"),
        ({"--cap": "0.7:0.7"}, "CAP:DRAW:SPEED"),
        ({"--cap": "0.7:0.7:1.5"}, "at most 1"),
        ({"--carbon-prices": "0,-5"}, "from 0 on"),
        ({"--carbon-price": "-1"}, "from 0 on"),
        ({"--report": "/nowhere/at/all.html"}, "there is no such folder"),
        ({"--fx": "EUR"}, "KEY=VALUE"),
        ({"--max-wait": "soon"}, "soon"),
        ({"--workers": "0"}, "--workers"),
        ({"--forecast": "crystal-ball"}, "--forecast"),
    ],
)
def test_bad_input_is_exit_2_on_stderr(run: Run, files: list[str], changed: dict[str, str], said: str) -> None:
    args = list(files)
    for flag, value in changed.items():
        if flag in args:
            args[args.index(flag) + 1] = value
        else:
            args += [flag, value]
    result = run(*args)
    assert result.exit_code == 2, (result.stdout, result.stderr)
    assert said in result.stderr and result.stdout == ""


@pytest.mark.parametrize("missing", ["--jobs", "--signals", "--regions"])
def test_what_is_missing_is_asked_for(run: Run, files: list[str], missing: str) -> None:
    at = files.index(missing)
    end = next(i for i in range(at + 1, len(files) + 1) if i == len(files) or files[i].startswith("--"))
    result = run(*files[:at], *files[end:])
    assert result.exit_code == 2 and f"give {missing}" in result.stderr
    assert run("--stored-signals", *files).exit_code == 2


def test_a_bad_row_is_named_with_file_line_and_column(run: Run, files: list[str]) -> None:
    path = Path(files[files.index("--jobs") + 1])
    path.write_text(path.read_text().replace("7200,1,1000", "-5,1,1000", 1))
    result = run(*files)
    assert result.exit_code == 2 and "line 2" in result.stderr and "length_s" in result.stderr and "-5" in result.stderr


def test_our_own_history_becomes_a_trace(tmp_path: Path) -> None:
    config = tmp_path / "gridshift.toml"
    config.write_text(f'[server]\ndata_dir = "{tmp_path / "data"}"\n')
    with closing(open_store(load_config(config))) as store:
        for name in ("a", "b"):
            store.add_job(job(name), "submitted").result(10)
        ran = [
            change(JobState.LAUNCHING, seconds=1, new_attempt=attempt()),
            change(JobState.RUNNING, seconds=10, attempt_fields={"started_at": at(10)}),
            change(JobState.SUCCEEDED, seconds=310, attempt_fields={"ended_at": at(310), "outcome": "succeeded"}),
        ]
        for one in ran:
            assert not isinstance(store.apply([one]).result(10)[0], Exception)
    out = tmp_path / "trace.csv"
    result = CliRunner().invoke(main, ["backtest", "export", "--config", str(config), "--output", str(out)])
    assert result.exit_code == 0, result.stderr
    (row,) = csv.DictReader(out.read_text().splitlines())
    assert (row["id"], float(row["length_s"]), float(row["gpus"]), row["pausable"]) == ("a", 300.0, 1.0, "checkpoint")
    assert "1 jobs had not ended" in result.stderr and "1 jobs written" in result.stderr
    plain = CliRunner().invoke(main, ["backtest", "export", "--config", str(config)])
    assert plain.stdout == out.read_text()
    told = json.loads(CliRunner().invoke(main, ["backtest", "export", "--config", str(config), "--json"]).stdout)
    assert told == {
        "jobs": 1,
        "left_out": ["1 jobs had not ended and are left out: their length is not known."],
        "csv": plain.stdout,
    }
    nowhere = CliRunner().invoke(main, ["backtest", "export", "--config", str(config), "--output", "/nowhere/at/all.csv"])
    assert nowhere.exit_code == 2 and "there is no such folder" in nowhere.stderr


def test_what_all_policies_warn_of_is_said_once() -> None:
    def done(label: str, *warnings: str) -> runs.Done:
        return runs.Done(a_run(label, None, None), warnings)

    assert runs._said([done("a", "x", "y"), done("b", "x"), done("c", "x", "y")]) == ["all policies: x", "a, c: y"]
    assert runs._said([done("a", "x")]) == ["a: x"]


def test_the_signals_by_the_hour_are_means_of_what_is_known() -> None:
    import numpy as np

    from dispatcher.backtest.scenario import SignalTable

    table = SignalTable(
        "north", START - timedelta(hours=1), 1800, np.array([9.0, 9.0, 1.0, 3.0, np.nan, 4.0, np.nan, np.nan]), None
    )

    class Fake:
        start, end = START, START + timedelta(hours=4)

    hours = runs.region_hours(table, Fake, 4)  # type: ignore[arg-type]
    assert hours.price is not None and hours.carbon is None
    assert hours.price[:2].tolist() == [2.0, 4.0] and np.isnan(hours.price[2:]).all()
