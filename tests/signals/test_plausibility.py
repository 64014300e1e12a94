"""What is doubted and what is not: slips of the unit, repeats, flat lines, the impossible, and the innocent look-alikes."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.plausibility import judge, possible
from signals.points import Kind, Quality, SignalPoint
from tests.signals.samples import point

CARBON = Kind.CARBON_AVERAGE


def line(values: list[float], first_h: float = 0.0, **changes: Any) -> list[SignalPoint]:
    return [point(first_h + i, value, **changes) for i, value in enumerate(values)]


def daily(days: int, level: float = 300.0, seed: int = 1, noise: float = 20.0) -> list[float]:
    """Hours of a series with a daily shape and some noise."""
    chance = random.Random(seed)
    return [level + 0.3 * level * math.sin(h / 24 * 2 * math.pi) + chance.gauss(0, noise) for h in range(24 * days)]


HISTORY = line(daily(6), -144.0, kind=CARBON)
PRICES = line(daily(6, 60.0, noise=8.0), -144.0)


def doubted(points: list[SignalPoint], history: list[SignalPoint]) -> tuple[int, str]:
    judgement = judge(points, history)
    assert [replace(p, quality=Quality.MEASURED) for p in judgement.points] == points  # nothing else changes
    count = sum(p.quality is Quality.SUSPECT for p in judgement.points)
    assert bool(count) == bool(judgement.warnings)
    return count, "; ".join(judgement.warnings)


def test_the_usual_is_not_doubted() -> None:
    for seed in range(20):
        assert doubted(line(daily(2, seed=seed), kind=CARBON), HISTORY) == (0, "")
        assert doubted(line(daily(2, 60.0, seed=seed, noise=8.0)), PRICES) == (0, "")
    assert doubted([], HISTORY) == (0, "")
    assert doubted(line(daily(2), kind=CARBON), []) == (0, "")


@pytest.mark.parametrize("factor", [1000.0, 0.001, 100.0, 0.01])
@pytest.mark.parametrize("count", [1, 3, 24])
def test_a_thousandfold_or_hundredfold_unit(factor: float, count: int) -> None:
    points = line([value * factor for value in daily(1, seed=3)][:count], kind=CARBON)
    found, says = doubted(points, HISTORY)
    assert found == count and ("unit" in says or "impossible" in says), says
    prices = line([value * factor for value in daily(1, 60.0, seed=3, noise=3.0)][:count])
    assert doubted(prices, [replace(p, value=max(p.value, 5.0)) for p in PRICES])[0] == count


@pytest.mark.parametrize("factor", [2.20462262, 0.45359237])
def test_pounds_for_kilograms(factor: float) -> None:
    values = daily(1, seed=4)
    count, says = doubted(line([v * factor for v in values], kind=CARBON), HISTORY)
    assert count == 24 and "pounds" in says
    # the same periods again, all by one factor, need no long history
    before = line(values[:6], kind=CARBON)
    assert doubted(line([v * factor for v in values[:6]], kind=CARBON), before)[0] == 6
    # a windless week doubles a grid's carbon without the spread doubling too
    assert doubted(line([v + 300 * (factor - 1) for v in values], kind=CARBON), HISTORY)[0] == 0


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_cents_per_kwh_for_euros_per_mwh(factor: float) -> None:
    values = daily(1, 60.0, seed=3, noise=3.0)
    count, says = doubted(line([v * factor for v in values]), PRICES)
    assert count == 24 and says.startswith("unit: the values of"), says
    # the same periods again need no long history
    assert doubted(line([v * factor for v in values[:6]]), line(values[:6]))[0] == 6
    # a level that moves without its spread, a few hours, and carbon are something else
    assert doubted(line([v + 60.0 * (factor - 1) for v in values]), PRICES) == (0, "")
    assert doubted(line([v * factor for v in values[:12]]), PRICES) == (0, "")
    assert doubted(line([150.0 * factor / 10 for _ in range(3)], kind=CARBON), HISTORY) == (0, "")


def test_a_market_that_moves_is_not_a_slip() -> None:
    spring = line([0.5 + 5 * math.sin(h) for h in range(144)], -144.0)  # around zero
    assert doubted(line(daily(1, 50.0, noise=8.0)), spring) == (0, "")
    assert doubted(line([800.0, 900.0, 1200.0]), PRICES) == (0, "")  # a spike
    assert doubted(line([-80.0] * 5 + [0.0] * 3), PRICES) == (0, "")


@pytest.mark.parametrize(
    ("kind", "value", "unit"),
    [
        (CARBON, -1.0, None),
        (CARBON, 2500.0, None),
        (Kind.PRICE, -6000.0, "EUR/MWh"),
        (Kind.PRICE, 30000.0, "AUD/MWh"),
        (Kind.PRICE, 700000.0, "CZK/MWh"),
    ],
)
def test_the_impossible(kind: Kind, value: float, unit: str | None) -> None:
    changes: dict[str, Any] = {"kind": kind} | ({"unit": unit} if unit else {})
    count, says = doubted(line([50.0, value, 60.0], **changes), [])
    assert count == 1 and says.startswith("impossible") and f"{value:g}" in says


def test_what_is_possible_at_all() -> None:
    assert [possible(point(0, v)) for v in (-6000.0, -500.0, 0.0, 25000.0, 25001.0)] == [False, True, True, True, False]
    assert [possible(point(0, v, kind=CARBON)) for v in (-1.0, 0.0, 2500.0)] == [False, True, False]
    assert possible(point(0, 700000.0, unit="HUF/MWh")) and possible(point(0, -5.0, kind=Kind.LOAD))


def test_the_barely_possible() -> None:
    assert doubted(line([-500.0, 0.0, 4000.0, 20300.0]), [])[0] == 0
    assert doubted(line([0.0, 1400.0], kind=CARBON), [])[0] == 0
    assert doubted(line([100000.0], unit="CZK/MWh"), [])[0] == 0


def test_yesterday_once_more() -> None:
    yesterday = HISTORY[-24:]
    again = line([p.value for p in yesterday], kind=CARBON)
    count, says = doubted(again, HISTORY)
    assert count == 24 and "exactly the day before" in says
    assert doubted(again[:19], HISTORY) == (0, "")  # too short to tell
    assert doubted([*again[:20], replace(again[20], value=1.0), *again[21:]], HISTORY)[0] == 20
    # within one answer, too
    whole = line([*daily(3), *daily(3)[-24:]], kind=CARBON)
    assert doubted(whole, [])[0] == 24


def test_a_tariff_repeats_every_day() -> None:
    hours = [20.0] * 7 + [35.0] * 12 + [28.0] * 5
    tariff = line(hours * 6, -144.0)
    assert doubted(line(hours), tariff) == (0, "")
    assert doubted(line(hours * 4), []) == (0, "")


def test_flat_lines_where_there_were_none() -> None:
    count, says = doubted(line([250.0] * 12, kind=CARBON), HISTORY)
    assert count == 12 and says.startswith("flat: 250")
    assert doubted(line([250.0] * 11, kind=CARBON), HISTORY) == (0, "")
    assert doubted(line([0.0] * 14, kind=CARBON), HISTORY) == (0, "")  # zero may be
    regulated = line([25.0] * 144, -144.0)
    assert doubted(line([25.0] * 48), regulated) == (0, "")
    # one value after the other: the last of a run is doubted when the run is long enough
    held = line([250.0] * 11, -11.0, kind=CARBON)
    assert doubted(line([250.0], kind=CARBON), [*HISTORY[:-11], *held])[0] == 1


def test_doubted_history_is_no_evidence() -> None:
    wrong = [replace(p, value=p.value * 1000, quality=Quality.SUSPECT) for p in HISTORY[-24:]]
    assert doubted(line(daily(1, seed=9), kind=CARBON), [*HISTORY[:-24], *wrong]) == (0, "")


def test_other_kinds_and_variants() -> None:
    load = line([-5.0] * 20, kind=Kind.LOAD)
    assert judge(load, []).points == tuple(load)
    apart = [replace(p, variant="lifecycle", value=p.value * 1000) for p in line(daily(1), kind=CARBON)]
    assert "impossible" in doubted(apart, HISTORY)[1]  # nothing is known of that variant but what is possible at all


@given(st.lists(st.floats(-1e9, 1e9), max_size=40), st.lists(st.floats(-1e9, 1e9), max_size=40))
def test_nothing_is_lost_or_changed(new: list[float], old: list[float]) -> None:
    for kind in (Kind.PRICE, CARBON):
        doubted(line(new, kind=kind), line(old, -len(old), kind=kind))
