"""A price site, a Ray cluster and a control plane as processes of their own, in the night in which clocks go forward: the job
waits for the hour that is cheap, by the source that is fresh, and its own file shows that it ran."""

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import free_port, wait_until
from tests.real.harness import Plane, ray_clusters

pytestmark = pytest.mark.real

CONFIG = """
[replay]
start = "2026-03-28T19:00Z"
speed = 480

[[region]]
name = "berlin"
address = "{address}"
gpus = 2
observe_s = 0.5
timezone = "Europe/Berlin"
"""
PRICE = """
[[region.price]]
feed = "http"
source = "{name}"
kind = "price"
url = "http://127.0.0.1:{port}/{name}?from={{start}}&to={{end}}&now={{now}}"
rows = "data[*]"
time = "from"
value = "price"
unit = "EUR/MWh"
currency = "EUR"
time_zone = "Europe/Berlin"
interval = "1h"
"""


def price(plane: Plane) -> dict[str, Any]:
    listed = plane.gridshift("signals", "list")["signals"]
    found: dict[str, Any] = next(one for one in listed if one["kind"] == "price")
    return found


def test_a_job_runs_in_the_hour_that_the_freshest_site_calls_cheap(tmp_path: Path, short_tmp: Path) -> None:
    port, output = free_port(), tmp_path / "ran.txt"
    site = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("price_provider.py")), str(port), "2026-03-28T22:30+00:00"]
    )
    try:
        with ray_clusters(short_tmp, "berlin") as rays:
            chain = PRICE.format(name="market", port=port) + PRICE.format(name="fallback", port=port)
            with Plane(tmp_path, CONFIG.format(address=rays["berlin"].address) + chain) as plane:
                # 1. the market has published nothing yet: the second source serves, and the list says why
                wait_until(lambda: price(plane)["source"] == "fallback", 20, "the second source to be chosen")
                states = {one["source"]: one["state"] for one in price(plane)["sources"]}
                assert states["fallback"] == "fresh" and states["market"] != "fresh"
                metadata = {"gridshift.deadline": "12h", "gridshift.runtime": "30m", "gridshift.power_w": "1000"}
                plane.ray(
                    "submit", "--submission-id", "night", "--metadata-json", json.dumps(metadata), "--no-wait", "--",
                    "sh", "-c", f"date +%s > {output}",
                )  # fmt: skip
                # 2. it publishes, and from then on its prices are planned with
                wait_until(lambda: price(plane)["source"] == "market", 60, "the market to be chosen")
                shown = plane.gridshift("signals", "show", "berlin", "--kind", "price")
                hours = [v for v, basis in zip(shown["values"], shown["basis"], strict=True) if basis == "published"]
                assert hours.count(10.0) == 8, "two cheap hours in quarters, none lost or doubled by the change of clocks"
                # 3. the job runs in the cheap hours: 05:00 and 06:00 of a day that has no 02:00
                ended = plane.wait_state("night", "succeeded", timeout_s=120)
                started = datetime.fromisoformat(ended["attempts"][0]["accepted_at"])
                assert datetime.fromisoformat("2026-03-29T03:00Z") <= started < datetime.fromisoformat("2026-03-29T05:00Z")
    finally:
        site.kill()
        site.wait()
    assert output.read_text().strip().isdigit()
