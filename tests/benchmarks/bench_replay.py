"""A real day of two regions, compressed: 50 real jobs on two real Ray clusters under replayed prices and carbon.

Day, zones, jobs and deadlines are fixed here beforehand and never chosen by the outcome. Prices are known a day ahead and no
further, as in the market. Energy is modelled from each job's stated draw; price and carbon are those of the traces. How long
this machine takes to start as many jobs at once as there are GPUs is measured first: the plan counts with that for a launch,
and on a slow machine the clock runs slower. ``--quick`` replays 12 jobs four times as fast.
"""

import argparse
import csv
import gzip
import random
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import requests

sys.path.insert(0, str(Path(__file__).parents[2]))

from dispatcher.client import Client
from dispatcher.demo import probe
from dispatcher.demo_pace import launches_s
from tests.benchmarks.common import data_folder, report, without_data
from tests.real.harness import Plane, ray_clusters

ZONES = {"germany": "DE-LU", "spain": "ES"}
START = datetime(2023, 5, 16, 6, tzinfo=UTC)
ARRIVALS_H, SEED = 6.0, 7
GPUS = 4
#: Seconds of the day in one on the wall, where starting jobs takes no longer than it should: a day in eight minutes.
SPEED, SPEED_QUICK = 180.0, 720.0
#: Seconds of the day that a launch may take at most; the clock of a machine that is slower runs slower.
LAUNCH_S = 2400.0

HEAD = """
[planning]
currency = "EUR"
carbon_price_per_tonne = 80.0
horizon_hours = 30
min_chunk = "30m"
launch_time = "{launch_s:.0f}s"
[fx]
USD = 0.92
[replay]
start = "{start}"
speed = {speed}
"""
REGION = """
[[region]]
name = "{name}"
address = "{address}"
gpus = {gpus}
pue = 1.2
currency = "USD"
observe_s = 0.5
[[region.price]]
feed = "csv"
file = "{prices}"
zone = "{zone}"
lookahead = "24h"
[[region.carbon]]
feed = "csv"
file = "{carbon}"
zone = "{zone}"
column = "lca"
lookahead = "24h"
"""


def trace_jobs(traces: Path, count: int) -> list[dict[str, Any]]:
    """``count`` jobs: lengths from the PAI trace (clipped to 30-150 min), the rest drawn once from a fixed seed."""
    chance = random.Random(SEED)
    with gzip.open(traces / "jobs_gaia_pai_1k.csv.gz", "rt") as file:
        lengths = [float(row["length"]) for row in csv.DictReader(file)]
    jobs = []
    for n in range(count):
        length_s = min(max(chance.choice(lengths), 1800.0), 9000.0)
        jobs.append(
            {
                "id": f"job-{n:02d}",
                "at_s": ARRIVALS_H * 3600 * n / count,
                "length_s": length_s,
                "deadline": f"{chance.choice([8, 12, 16, 20])}h",
                "pausable": chance.choice(["no", "checkpoint"]),
                "power_w": chance.choice([700, 1400, 2800]),
            }
        )
    return jobs


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="12 jobs, four times as fast; about three minutes")
    quick = parser.parse_args().quick
    traces = data_folder("traces")
    if traces is None:
        return without_data("traces")
    jobs = trace_jobs(traces, 12 if quick else 50)
    work = Path(__file__).parents[1] / "real"
    with tempfile.TemporaryDirectory(prefix="gsb") as name, ray_clusters(Path(name), *ZONES, num_gpus=GPUS) as rays:
        base = Path(name)
        launch_s = probe(rays.values(), GPUS)
        speed = min(SPEED_QUICK if quick else SPEED, LAUNCH_S * (4 if quick else 1) / launch_s)
        print(f"{len(rays) * GPUS} jobs at once took {launch_s:.1f} s; {speed:.0f} times as fast", file=sys.stderr)
        config = HEAD.format(start=START.isoformat(), speed=speed, launch_s=launch_s * speed) + "".join(
            REGION.format(
                name=region,
                address=rays[region].address,
                gpus=GPUS,
                zone=zone,
                prices=traces / "price_hourly_2023.csv.gz",
                carbon=traces / "carbon_hourly_2023.csv.gz",
            )
            for region, zone in ZONES.items()
        )
        (base / "plane").mkdir()
        with Plane(base / "plane", config) as plane:
            outcome = play(plane, jobs, speed, work)
            for job in requests.get(f"{plane.address}/v1/jobs", params={"limit": 100}, timeout=10).json()["jobs"]:
                if job.get("late_s"):
                    told = f"started {job['started_at']}, ran for {job['runtime_s']:.0f} s as stated, due {job['deadline_at']}"
                    print(f"{job['id']} ended {job['late_s'] / speed:.1f} wall s late: {told}", file=sys.stderr)
    figures = {
        "jobs": float(len(jobs)),
        "succeeded": float(outcome["succeeded"]),
        "deadline_misses": float(outcome["totals"]["deadline_misses"]),
        "cost_eur": outcome["totals"]["cost"],
        "cost_run_now_eur": outcome["totals"]["cost_run_now"],
        "carbon_kg": outcome["totals"]["carbon_kg"],
        "carbon_run_now_kg": outcome["totals"]["carbon_kg_run_now"],
        "moved_or_paused": float(outcome["pauses"]),
        "launch_planned_s": launch_s,
        "launch_longest_s": max(outcome["launches_s"]),
    }
    figures["cost_share_of_run_now"] = figures["cost_eur"] / figures["cost_run_now_eur"]
    figures["carbon_share_of_run_now"] = figures["carbon_kg"] / figures["carbon_run_now_kg"]
    wanted: list[tuple[str, str, float]] = [
        ("succeeded", ">=", len(jobs)),
        ("deadline_misses", "<=", 0),
        ("cost_share_of_run_now", "<", 1),
        ("carbon_share_of_run_now", "<", 1),
    ]
    method = (
        f"two real Ray clusters, {', '.join(ZONES.values())} of data/traces from {START:%Y-%m-%d %H:%M}Z, replayed {speed:.0f} "
        f"times as fast, known 24 h ahead; modelled energy; run-now: each job's own run time from its submission on, in "
        f"{next(iter(ZONES))}, as if there were always room"
    )
    return report("replay", figures, wanted, method)


def play(plane: Plane, jobs: list[dict[str, Any]], speed: float, work: Path) -> dict[str, Any]:
    """Submit as time passes, wait for the end, return totals."""
    client = Client(plane.address)
    output = plane.base / "out"
    output.mkdir()
    waiting = list(jobs)
    limit = time.monotonic() + 30 * 3600 / speed + 120
    begun_at = datetime.fromisoformat(requests.get(f"{plane.address}/v1/status", timeout=10).json()["now"])
    while True:
        now = datetime.fromisoformat(requests.get(f"{plane.address}/v1/status", timeout=10).json()["now"])
        while waiting and begun_at + timedelta(seconds=waiting[0]["at_s"]) <= now:
            job = waiting.pop(0)
            steps = max(1, round(job["length_s"] / speed / 0.25))
            flex: dict[str, Any] = {"deadline": job["deadline"], "pausable": job["pausable"]}
            flex["runtime"] = job["length_s"] + speed  # a second on the wall for Python to start
            if job["pausable"] == "checkpoint":
                flex |= {"checkpoint_s": 4 * speed, "restart_s": 3 * speed}
            command = f"python stepper.py {steps} 0.25 {output / job['id']}"
            client.submit(command, submission_id=job["id"], num_gpus=1, power_w=job["power_w"], working_dir=str(work), **flex)
        states = [job.state for job in client.list()]
        ended = sum(state in ("succeeded", "failed", "cancelled") for state in states)
        if sys.stderr.isatty():
            print(f"\r{now:%d %b %H:%M}Z  {ended}/{len(jobs)} ended", end="", file=sys.stderr, flush=True)
        if ended == len(jobs):
            break
        if time.monotonic() > limit:
            raise RuntimeError(f"not done in time: {states}")
        time.sleep(0.3)
    for job in jobs:  # each step exactly once, whatever was paused or moved
        lines = [line for line in (output / job["id"]).read_text().splitlines() if line.startswith("step")]
        assert lines == [f"step {n}" for n in range(len(lines))], job["id"]
    savings = requests.get(f"{plane.address}/v1/savings", timeout=30).json()
    final = [requests.get(f"{plane.address}/v1/jobs/{job['id']}", timeout=10).json() for job in jobs]
    return {
        "succeeded": sum(job["state"] == "succeeded" for job in final),
        "pauses": sum(job["pauses"] for job in final),
        "launches_s": launches_s(final, speed),
        "totals": savings["totals"],
    }


if __name__ == "__main__":
    sys.exit(main())
