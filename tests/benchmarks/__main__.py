"""Runs every benchmark here, one after another, prints a table and writes it to build/benchmarks.md and .json.

It knows only the shape of a benchmark's last line, nothing of what is measured.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build"


def run(script: Path, args: list[str]) -> dict[str, Any]:
    """The JSON object that ``script`` ends with, or one that says how it failed."""
    print(f"{script.name} ...", flush=True)
    done = subprocess.run([sys.executable, str(script), *args], stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    try:
        result: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    except json.JSONDecodeError:
        result = {}
    if "figures" not in result:
        return {"name": script.stem.removeprefix("bench_"), "error": f"ended with exit code {done.returncode} and no figures"}
    return result


def table(results: list[dict[str, Any]]) -> str:
    """Markdown: one row a figure, with its target where it has one."""
    rows = ["| benchmark | figure | value | target | met |", "|---|---|---:|---|---|"]
    for result in results:
        name = result["name"]
        if "error" in result:
            rows.append(f"| {name} | | | {result['error']} | no |")
            continue
        targets = {target["figure"]: target for target in result["targets"]}
        for figure in [*result["figures"], *(set(targets) - set(result["figures"]))]:
            value, target = result["figures"].get(figure), targets.get(figure)
            wanted, met = (f"{target['op']} {target['limit']:g}", "yes" if target["ok"] else "no") if target else ("", "")
            rows.append(f"| {name} | {figure} | {'missing' if value is None else f'{value:g}'} | {wanted} | {met} |")
    notes = [f"- {result['name']}: {result['method']} ({result['machine']})" for result in results if "method" in result]
    return "\n".join([*rows, "", *notes, ""])


def main(args: list[str]) -> int:
    """Run all; 0 when every benchmark ran and met its targets."""
    results = [run(script, args) for script in sorted(HERE.glob("bench_*.py"))]
    BUILD.mkdir(exist_ok=True)
    (BUILD / "benchmarks.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    (BUILD / "benchmarks.md").write_text(table(results), encoding="utf-8")
    print(table(results))
    return 0 if all(target["ok"] for result in results for target in result.get("targets", [{"ok": False}])) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
