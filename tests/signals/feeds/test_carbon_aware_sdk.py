"""Carbon Aware SDK: ratings and forecasts, two spellings of durations, placeholder times, average or marginal by option."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.feeds.base import Query
from signals.feeds.carbon_aware_sdk import FEED, check
from signals.points import Kind, Quality
from tests.signals.feeds.hostile import FUZZ, JSON, mutated, read, sound

AVERAGE, MARGINAL = Kind.CARBON_AVERAGE, Kind.CARBON_MARGINAL
NOW = datetime(2022, 11, 2, 10, 28, tzinfo=UTC)
T0 = datetime(2022, 11, 2, 10, 30, tzinfo=UTC)
FIVE = timedelta(minutes=5)


def rating(minutes: int, value: Any, duration: Any = "00:05:00", **changes: Any) -> dict[str, Any]:
    time = (T0 + timedelta(minutes=minutes)).isoformat()
    return {"location": "PJM_ROANOKE", "time": time, "rating": value, "duration": duration} | changes


def ahead(minutes: int, value: Any, duration: Any = 5, **changes: Any) -> dict[str, Any]:
    time = (T0 + timedelta(minutes=minutes)).isoformat()
    return {"location": "PJM_ROANOKE", "timestamp": time, "duration": duration, "value": value} | changes


def forecast(*points: Any, **changes: Any) -> list[dict[str, Any]]:
    head = {
        "generatedAt": "2022-11-02T10:25:00+00:00",
        "requestedAt": "2022-11-02T10:28:46.8644078+00:00",
        "location": "eastus",
        "dataStartAt": "2022-11-02T10:30:00+00:00",
        "dataEndAt": "2022-11-03T10:30:00+00:00",
        "windowSize": 5,
        "optimalDataPoints": [ahead(990, 1.0)],
        "forecastData": list(points),
    }
    return [head | changes]


RATINGS = [rating(-15, 545.67162111), rating(-10, 0), rating(-5, 500)]
FORECAST = forecast(ahead(0, 547.3183851085558), ahead(5, 547.66173548531))
SAMPLES: list[tuple[bytes, Kind, dict[str, Any]]] = [
    (json.dumps(RATINGS).encode(), MARGINAL, {}),
    (json.dumps(FORECAST).encode(), MARGINAL, {}),
    (json.dumps(RATINGS).encode(), AVERAGE, {"signal": "average"}),
]


def parse(document: Any, kind: Kind = MARGINAL, signal: str | None = "marginal", **options: Any) -> Any:
    return read(FEED, document, kind, now=NOW, options=options if signal is None else options | {"signal": signal})


def test_ratings() -> None:
    result = parse(RATINGS)
    assert [(p.value, p.start, p.end - p.start, p.quality, p.issued_at) for p in result.points] == [
        (545.67162111, T0 - 3 * FIVE, FIVE, Quality.MEASURED, None),
        (0.0, T0 - 2 * FIVE, FIVE, Quality.MEASURED, None),
        (500.0, T0 - FIVE, FIVE, Quality.MEASURED, None),
    ]
    assert {(p.unit, p.kind, p.variant) for p in result.points} == {("gCO2e/kWh", MARGINAL, "PJM_ROANOKE")}
    assert result.warnings == ()


def test_forecast_has_its_issue_time_and_not_the_best_window() -> None:
    result = parse(FORECAST, AVERAGE, "average", location="eastus")
    assert [(p.value, p.quality, p.kind) for p in result.points] == [
        (547.3183851085558, Quality.FORECAST, AVERAGE),
        (547.66173548531, Quality.FORECAST, AVERAGE),
    ]
    assert {p.issued_at for p in result.points} == {datetime(2022, 11, 2, 10, 25, tzinfo=UTC)}


@pytest.mark.parametrize("generated", ["0001-01-01T00:00:00+00:00", None, "9999-12-31T23:59:59+00:00"])
def test_a_forecast_without_issue_time_counts_as_issued_now(generated: Any) -> None:
    assert {p.issued_at for p in parse(forecast(ahead(0, 1.0), generatedAt=generated)).points} == {NOW}


def test_duration_zero_says_nothing_and_placeholders_for_times_are_left_out() -> None:
    zero = [ahead(0, 1.0, 0), ahead(5, 2.0, 0), ahead(10, 3.0, 0), ahead(15, 4.0, 0, timestamp="0001-01-01T00:00:00")]
    result = parse(forecast(*zero))
    assert [p.end - p.start for p in result.points] == [FIVE] * 3 and len(result.warnings) == 1
    spans = [rating(0, 1.0, "08:00:00"), rating(480, 2.0, "1.00:00:00"), rating(2000, 3.0, "nonsense")]
    lengths = [(p.end - p.start).total_seconds() / 3600 for p in parse(spans).points]
    assert lengths[:2] == [8.0, 24.0]


def test_average_and_marginal_are_never_guessed_twice() -> None:
    assert [w for w in parse(RATINGS, MARGINAL, None).warnings if "signal" in w]
    for kind, signal in ((AVERAGE, None), (AVERAGE, "marginal"), (MARGINAL, "average"), (MARGINAL, "both")):
        result = parse(RATINGS, kind, signal)
        assert result.points == () and result.error is not None and "signal" in result.error.message


def test_regions_are_apart_and_a_location_chooses() -> None:
    two = [rating(-5, 1.0), rating(-5, 2.0, location="westus")]
    assert [(p.variant, p.value) for p in parse(two).points] == [("PJM_ROANOKE", 1.0), ("westus", 2.0)]
    assert [p.value for p in parse(two, location="westus").points] == [2.0]
    assert "asked was 'x'" in str(parse(two, location="x").error)


@pytest.mark.parametrize(
    ("document", "kind", "words"),
    [
        ([], "no_data", "no emissions"),
        (forecast(), "no_data", "window"),
        ([{"a": 1}], "invalid", "forecastData"),
        ({"title": "Internal Server Error", "status": 500}, "invalid", "Internal Server Error"),
        ({"title": "UnauthorizedException", "detail": "Authentication failed"}, "access", "Authentication"),
        ({"a": 1}, "invalid", "list of emissions"),
        (forecast(forecastData=3), "invalid", "forecastData"),
        ([rating(0, -1.0)], "no_data", "window"),
        ('[{"location":"a","time":"2022', "truncated", "middle"),
        ("[1, 2", "truncated", "middle"),
        ("[" * 100_000, "invalid", "JSON"),
        ("<html>", "invalid", "HTML"),
        ("", "no_data", "empty"),
    ],
)
def test_what_cannot_be_used_says_why(document: Any, kind: str, words: str) -> None:
    result = parse(document)
    assert result.points == () and result.error is not None
    assert result.error.kind == kind and words in result.error.message


def test_requests() -> None:
    options = {"location": "eastus", "base_url": "http://x/", "signal": "marginal"}
    past, future = FEED.requests(Query(MARGINAL, options, NOW - timedelta(hours=1), NOW + timedelta(hours=1), NOW))
    assert (past.url, future.url) == ("http://x/emissions/bylocation", "http://x/emissions/forecasts/current")
    assert past.params == {"location": "eastus", "time": "2022-11-02T09:28:00Z", "toTime": "2022-11-02T10:28:00Z"}
    assert len(FEED.requests(Query(MARGINAL, options, NOW, NOW + FIVE, NOW))) == 1


def test_options() -> None:
    assert check({"base_url": "http://sdk:8080", "location": "westeurope", "signal": "average"}) == []
    assert [p.key for p in check({})] == ["base_url", "location", "signal"]
    assert [p.key for p in check({"base_url": "x", "location": 1, "signal": []})] == ["base_url", "location", "signal"]


@FUZZ
@given(payload=st.binary(max_size=200) | JSON, signal=st.sampled_from([None, "average"]))
def test_anything_is_points_or_an_error(payload: Any, signal: str | None) -> None:
    sound(parse(payload, AVERAGE if signal else MARGINAL, signal))


@FUZZ
@given(data=st.data(), good=st.sampled_from([RATINGS, FORECAST]))
def test_a_damaged_answer_is_points_or_an_error(data: st.DataObject, good: Any) -> None:
    sound(parse(mutated(data, good)))
