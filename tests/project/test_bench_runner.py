"""The runner of all benchmarks: its table, and what it says of one that fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import run, table

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

RESULT = {
    "name": "x",
    "figures": {"rate_per_s": 512.0, "other": 1.5},
    "targets": [
        {"figure": "rate_per_s", "op": ">=", "limit": 500, "ok": True},
        {"figure": "lost", "op": "<=", "limit": 0, "ok": False},
    ],
    "method": "how",
    "machine": "where",
}


def test_a_row_a_figure_and_one_for_a_target_without_figure() -> None:
    rows = table([RESULT]).splitlines()
    assert "| x | rate_per_s | 512 | >= 500 | yes |" in rows and "| x | other | 1.5 |  |  |" in rows
    assert "| x | lost | missing | <= 0 | no |" in rows and rows[-1] == "- x: how (where)"


def test_a_benchmark_that_breaks_is_a_row_too(tmp_path: Path) -> None:
    script = tmp_path / "bench_sad.py"
    script.write_text("raise SystemExit('no luck')")
    result = run(script, [])
    assert result["name"] == "sad" and "exit code 1" in table([result])
    script.write_text('print(\'words\')\nprint(\'{"figures": {}, "name": "sad", "targets": []}\')')
    assert run(script, [])["figures"] == {}


@pytest.mark.parametrize("name", ["models", "replay", "planner", "forecast", "backtest"])
def test_without_the_open_data_a_benchmark_says_what_it_needs(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / f"bench_{name}.py"), "--quick"]
    env = {**os.environ, "GRIDSHIFT_DATA": str(tmp_path)}
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1 and ended.stdout == ""
    (sentence,) = ended.stderr.splitlines()
    assert sentence.startswith("no data folder: put data/") and "GRIDSHIFT_DATA" in sentence
