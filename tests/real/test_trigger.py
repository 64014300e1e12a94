"""A control plane as a process of its own, on a replayed day whose price has a spike, or whose grid has its highest load: it
makes an event that limits the region, and its history tells the figures."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.helpers import free_port, wait_until
from tests.real.harness import Plane

pytestmark = pytest.mark.real

START = datetime(2026, 7, 1, 12, tzinfo=UTC)
CONFIG = """
[replay]
start = "2026-07-01T12:00Z"
speed = 600

[[region]]
name = "north"
address = "http://127.0.0.1:{port}"
gpus = 2
[[region.{what}]]
feed = "csv"
file = "{signals}"
lookahead = "24h"

[[trigger]]
name = "spike"
region = "north"
limit_w = 1000
recovery_s = 60
{rule}
"""
PRICE = 'kind = "price-above"\nabove_per_mwh = 500\nrelease_per_mwh = 300'
LOAD = 'kind = "load-highest"\nhighest_hours = 1\nof_month_peak = 0.95'


@pytest.mark.parametrize(
    ("what", "column", "rule", "event_id", "said"),
    [
        ("price", "price_eur_mwh", PRICE, "2026-07-01T1400Z", "900 EUR/MWh, at or above 500"),
        ("load", "load_mw", LOAD, "2026-07-01", "the 1 hour of highest load of 2026-07-01, each at 900 MW or more"),
    ],
)
def test_a_spike_limits_the_region_while_it_lasts(
    tmp_path: Path, what: str, column: str, rule: str, event_id: str, said: str
) -> None:
    signals = tmp_path / "signals.csv"
    hours = [START + timedelta(hours=n) for n in range(-48, 60)]
    rows = [f"{at:%Y-%m-%dT%H:%M:%SZ},{900 if START + timedelta(hours=2) == at else 40 + at.hour}" for at in hours]
    signals.write_text("\n".join([f"datetime,{column}", *rows]), encoding="utf-8")
    with Plane(tmp_path, CONFIG.format(port=free_port(), signals=signals, what=what, rule=rule)) as plane:

        def events() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = requests.get(f"{plane.address}/v1/events", timeout=10).json()["events"]
            return found

        def budget_w() -> float | None:
            regions = requests.get(f"{plane.address}/v1/regions", timeout=10).json()["regions"]
            limit: float | None = regions[0]["budget_w"]
            return limit

        (event,) = wait_until(events, 20, "the event")  # told two hours ahead, as the value is
        assert (event["source"], event["event_id"]) == ("trigger spike", event_id)
        assert event["limit_w"] == 1000 and said in event["reason"]
        wait_until(lambda: budget_w() == 1000, 30, "the limit to be in force")
        wait_until(lambda: budget_w() is None, 30, "its end")
        shown = plane.gridshift("events", "show", event["event_id"])
        assert [line["what"] for line in shown["history"]] == ["accepted"]
        assert len(events()) == 1
