"""Energy-Charts: carbon intensity beside prices, never one for the other. (Prices are tested in
tests/signals/test_signal_feeds.py.)"""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.feeds.base import Query
from signals.feeds.energy_charts import FEED, check
from signals.points import Kind, Quality
from tests.signals.feeds.hostile import FUZZ, JSON, NOW, mutated, read, sound

PRICE, CARBON = Kind.PRICE, Kind.CARBON_AVERAGE
QUARTER = timedelta(minutes=15)
START = NOW - 2 * QUARTER


def body(**arrays: Any) -> dict[str, Any]:
    length = max((len(values) for values in arrays.values() if isinstance(values, list)), default=0)
    return {"unix_seconds": [int(START.timestamp()) + 900 * i for i in range(length)], "deprecated": False} | arrays


GOOD = body(co2eq=[491.5, 0, None, None], co2eq_forecast=[None, 480.0, 505.25, None])
PRICES = body(price=[1.0, -2.0, None, 0], unit="EUR / MWh")
SAMPLES: list[tuple[bytes, Kind, dict[str, Any]]] = [
    (json.dumps(GOOD).encode(), CARBON, {}),
    (json.dumps(PRICES).encode(), PRICE, {}),
]


def test_what_was_and_what_is_expected_are_separate_points() -> None:
    result = read(FEED, GOOD, CARBON)
    assert [((p.start - START) / QUARTER, p.value, p.quality, p.issued_at) for p in result.points] == [
        (0, 491.5, Quality.MEASURED, None),
        (1, 0.0, Quality.MEASURED, None),
        (1, 480.0, Quality.FORECAST, NOW),
        (2, 505.25, Quality.FORECAST, NOW),
    ]
    assert {(p.unit, p.end - p.start) for p in result.points} == {("gCO2e/kWh", QUARTER)}
    assert [(g.start - START) / QUARTER for g in result.gaps] == [3]  # the null in both; those filled by the other are none
    assert (result.warnings, result.error) == ((), None)


def test_forecast_alone_and_an_actual_of_the_future() -> None:
    assert [p.value for p in read(FEED, body(co2eq_forecast=[1.0, 2.0]), CARBON).points] == [1.0, 2.0]
    ahead = read(FEED, body(co2eq=[1.0, 2.0, 3.0]), CARBON)
    assert [p.value for p in ahead.points] == [1.0, 2.0]  # the third has not begun: no actual


@pytest.mark.parametrize(
    ("document", "asked", "kind", "words"),
    [
        (PRICES, CARBON, "invalid", "co2eq"),
        (GOOD, PRICE, "invalid", "price"),
        (body(co2eq=[None]), CARBON, "no_data", "published"),
        (body(co2eq=[1.0], unix_seconds=[1, 2]), CARBON, "truncated", "matched"),
        (body(co2eq=[1.0], unix_seconds=None), CARBON, "invalid", "unix_seconds"),
        (body(co2eq=[1.0], co2eq_forecast="x"), CARBON, "invalid", "co2eq_forecast"),
        ({"detail": "country unknown"}, CARBON, "invalid", "country unknown"),
        (body(co2eq=[-1.0, "5"]), CARBON, "no_data", "published"),
    ],
)
def test_what_cannot_be_used_says_why(document: Any, asked: Kind, kind: str, words: str) -> None:
    result = read(FEED, document, asked)
    assert result.points == () and result.error is not None
    assert result.error.kind == kind and words in result.error.message


@pytest.mark.parametrize(
    ("kind", "options", "path", "params"),
    [
        (CARBON, {"bzn": "DE-LU"}, "co2eq", {"country": "de"}),
        (CARBON, {"bzn": "DE-LU", "country": "at"}, "co2eq", {"country": "at"}),
        (CARBON, {"country": "FR"}, "co2eq", {"country": "fr"}),
        (PRICE, {"country": "de"}, "price", {"bzn": "DE-LU"}),
        (PRICE, {"country": "at"}, "price", {"bzn": "AT"}),
        (PRICE, {"bzn": "NO2"}, "price", {"bzn": "NO2"}),
    ],
)
def test_requests(kind: Kind, options: dict[str, Any], path: str, params: dict[str, str]) -> None:
    start = datetime(2026, 3, 1, 10, 20, tzinfo=UTC)
    (request,) = FEED.requests(Query(kind, options | {"base_url": "http://x/"}, start, start + timedelta(days=1), start))
    assert request.url == f"http://x/{path}"
    # From the start of the hour: the price under way has its label before the window.
    assert request.params == params | {"start": "2026-03-01T10:00+00:00", "end": "2026-03-02T10:20+00:00"}


def test_options() -> None:
    assert check({"bzn": "DE-LU"}) == [] and check({"country": "de"}) == []
    assert [p.key for p in check({})] == ["bzn"]
    assert [p.key for p in check({"country": "Germany"})] == ["country"]


@FUZZ
@given(payload=st.binary(max_size=200) | JSON, kind=st.sampled_from([PRICE, CARBON]))
def test_anything_is_points_or_an_error(payload: Any, kind: Kind) -> None:
    sound(read(FEED, payload, kind))


@FUZZ
@given(data=st.data(), good=st.sampled_from([GOOD, PRICES]), kind=st.sampled_from([PRICE, CARBON]))
def test_a_damaged_answer_is_points_or_an_error(data: st.DataObject, good: Any, kind: Kind) -> None:
    sound(read(FEED, mutated(data, good), kind))
