"""What the benchmarks share: the shape of their last line, the machine it was measured on, and where open data lie."""

import json
import operator
import os
import platform
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
OPERATORS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}


def machine() -> str:
    """The machine in words."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    return f"{os.cpu_count()} cores, {model}, {platform.system()} {platform.release()}, Python {platform.python_version()}"


def data_folder(name: str) -> Path | None:
    """A folder of the open data: in $GRIDSHIFT_DATA, else beside the checkout; None where it is not there."""
    given = os.environ.get("GRIDSHIFT_DATA")
    places = [Path(given)] if given else [ROOT / "shared" / "data", ROOT.parent / "shared" / "data"]
    return next((place / name for place in places if (place / name).is_dir()), None)


def without_data(name: str) -> int:
    """Say that a folder of the open data is missing; returns the exit code of a benchmark that needs it."""
    print(f"no data folder: put data/{name} beside the checkout or name its parent in GRIDSHIFT_DATA", file=sys.stderr)
    return 1


def report(name: str, figures: dict[str, float], wanted: list[tuple[str, str, float]], method: str) -> int:
    """Print the benchmark's JSON object as the last line; returns 0 when every target was met, else 1."""
    targets: list[dict[str, Any]] = [
        {"figure": figure, "op": op, "limit": limit, "ok": figure in figures and OPERATORS[op](figures[figure], limit)}
        for figure, op, limit in wanted
    ]
    rounded = {key: round(value, 4) for key, value in figures.items()}
    print(json.dumps({"name": name, "figures": rounded, "targets": targets, "method": method, "machine": machine()}))
    return 0 if all(target["ok"] for target in targets) else 1
