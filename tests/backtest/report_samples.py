"""Made-up results of backtests."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from dispatcher.backtest.results import BacktestResult, Oracle, PolicyRun, RegionHours

START = datetime(2023, 3, 1, tzinfo=UTC)  # a Wednesday
DAYS = 21


def load(level_w: float, hours: int = DAYS * 24) -> Mapping[str, Any]:
    hour = np.arange(hours)
    return {"north": level_w * (1 + 0.5 * np.sin(hour / 4)), "south": np.full(hours, level_w / 2)}


def run(policy: str, cost: float | None, carbon_kg: float | None, **fields: Any) -> PolicyRun:
    delay = float(fields.pop("delay_mean_h", 0.0))
    base = PolicyRun(
        policy=policy,
        label=policy,
        settings={"carbon_price": 100.0, "price_weight": 1.0},
        jobs=200,
        energy_kwh=1234.5,
        cost=cost,
        carbon_kg=carbon_kg,
        delay_mean_h=delay,
        delay_p95_h=delay * 3,
        delay_percentiles_h=np.linspace(0, delay * 4, 101),
        deadline_misses=0,
        impossible=0,
        unfinished=0,
        pauses=0,
        moves=0,
        gap=None,
        wall_s=1.5,
        load_w=load(4000.0 if policy == "run-now" else 3900.0),
    )
    return replace(base, **fields)


def result(**fields: Any) -> BacktestResult:
    hours = np.arange(DAYS * 24)
    price = 80 + 30 * np.cos(hours * 2 * np.pi / 24)
    price[50:55] = np.nan
    base = BacktestResult(
        start=START,
        end=START + timedelta(days=DAYS),
        currency="EUR",
        jobs_file="jobs.csv",
        regions=(
            RegionHours("north", "EUR", price, 300 - 100 * np.cos(hours * 2 * np.pi / 24)),
            RegionHours("south", "USD", price * 2, None),
        ),
        runs=(
            run("run-now", 1000.0, 500.0),
            run("lowest-window", 900.0, 430.0, delay_mean_h=5.25, pauses=3),
            run("gridshift", 800.0, 425.0, delay_mean_h=4.5, pauses=1234, moves=56, gap=0.0043),
            run("ecovisor", 700.0, 400.0, delay_mean_h=6.0, deadline_misses=7, impossible=3, unfinished=1),
        ),
        front=tuple(
            replace(
                run("gridshift", 780.0 + price, 440.0 - price / 2, delay_mean_h=4.5),
                label=f"gridshift at {price:g} EUR/t",
                settings={"carbon_price": price, "price_weight": 1.0},
            )
            for price in (0.0, 50.0, 100.0)
        ),
        oracle=Oracle(650.0, 350.0),
        assumptions=("A job draws 400 W for each GPU while it runs.",),
        warnings=("price of north: 5 hours are missing",),
    )
    return replace(base, **fields)
