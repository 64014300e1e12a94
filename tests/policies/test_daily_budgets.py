"""Daily budgets of carbon and money: kept where deadlines allow, said where they do not, and part of the bound."""

from dataclasses import replace
from datetime import timedelta

import pytest

from policies.planner import plan
from policies.world import Plan, World
from tests.policies.worlds import NOW, job, region, series, world

H = timedelta(hours=1)
#: Two days of hours, dear by day and cheap by night, and as much carbon in each.
PRICES: list[float | None] = [float(20 + 80 * (6 <= (n // 4) % 24 < 22)) for n in range(192)]
CARBON: list[float | None] = [300.0] * 192


def picture(jobs: int, **settings: float) -> World:
    many = [job(f"j{n}", deadline_at=NOW + 40 * H, power_w=10_000.0) for n in range(jobs)]
    made = world(many, [region("a", PRICES, carbon=series(CARBON, "gCO2e/kWh"))])
    return replace(made, settings=replace(made.settings, **settings))


def by_day(made: Plan, per_kwh: float) -> dict[str, float]:
    """Energy that ends on each UTC day, times a factor."""
    total: dict[str, float] = {}
    for placement in made.placements.values():
        for begin, end in placement.intervals:
            assert begin.date() == end.date()
            hours = (end - begin).total_seconds() / 3600.0
            total[str(begin.date())] = total.get(str(begin.date()), 0.0) + 10.0 * hours * per_kwh
    return total


def test_a_carbon_budget_spreads_work_over_the_days() -> None:
    free, kept = plan(picture(6)), plan(picture(6, daily_carbon_kg=12.0))
    assert max(by_day(free, 0.3).values()) > 12.0
    assert max(by_day(kept, 0.3).values()) <= 12.0 + 1e-6 and not kept.note
    assert set(kept.placements) == {f"j{n}" for n in range(6)}
    assert kept.bound is not None and kept.bound <= kept.objective + 1e-9 and kept.objective >= free.objective - 1e-9


def test_a_deadline_beats_a_budget_and_the_plan_says_so() -> None:
    made = plan(picture(6, daily_carbon_kg=1.0))
    assert set(made.placements) == {f"j{n}" for n in range(6)} and all(p.late_s == 0 for p in made.placements.values())
    assert "daily budget of 1 kg CO2e was not kept on" in made.note


def test_money_is_a_budget_too_and_costs_are_told_without_surcharges() -> None:
    made = plan(picture(2, daily_cost=1.0))
    assert all(p.cost == pytest.approx(0.2, rel=0.3) for p in made.placements.values())
    assert not made.note
