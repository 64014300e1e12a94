"""What the benchmarks share: the shape of their last line, and the machine it was measured on."""

import json
import operator
import os
import platform
from pathlib import Path
from typing import Any

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


def report(name: str, figures: dict[str, float], wanted: list[tuple[str, str, float]], method: str) -> int:
    """Print the benchmark's JSON object as the last line; returns 0 when every target was met, else 1."""
    targets: list[dict[str, Any]] = [
        {"figure": figure, "op": op, "limit": limit, "ok": figure in figures and OPERATORS[op](figures[figure], limit)}
        for figure, op, limit in wanted
    ]
    rounded = {key: round(value, 4) for key, value in figures.items()}
    print(json.dumps({"name": name, "figures": rounded, "targets": targets, "method": method, "machine": machine()}))
    return 0 if all(target["ok"] for target in targets) else 1
