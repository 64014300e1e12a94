"""aWATTar: milliseconds, EUR/MWh, never more than the range asked."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.feeds.awattar import FEED, check
from signals.feeds.base import Query
from signals.points import Kind, Quality
from tests.signals.feeds.hostile import FUZZ, JSON, mutated, read, sound

T0 = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def ms(when: datetime) -> int:
    return int(when.timestamp()) * 1000


def row(hour: float, price: Any, **changes: Any) -> dict[str, Any]:
    start = T0 + hour * HOUR
    return {"start_timestamp": ms(start), "end_timestamp": ms(start + HOUR), "marketprice": price, "unit": "Eur/MWh"} | changes


def body(*rows: Any) -> dict[str, Any]:
    return {"object": "list", "data": list(rows), "url": "/de/v1/marketdata"}


GOOD = body(row(0, 42.09), row(1, 0), row(2, -5.0), row(4, 7.77))
SAMPLES: list[tuple[bytes, Kind, dict[str, Any]]] = [(json.dumps(GOOD).encode(), Kind.PRICE, {})]


def test_values_zero_negative_and_a_hole() -> None:
    result = read(FEED, GOOD, Kind.PRICE)
    assert [(p.start, p.value) for p in result.points] == [
        (T0, 42.09), (T0 + HOUR, 0.0), (T0 + 2 * HOUR, -5.0), (T0 + 4 * HOUR, 7.77),
    ]  # fmt: skip
    assert [(g.start, g.end) for g in result.gaps] == [(T0 + 3 * HOUR, T0 + 4 * HOUR)]
    assert {(p.unit, p.quality, p.variant, p.issued_at) for p in result.points} == {("EUR/MWh", Quality.MEASURED, "", None)}


def test_quarters_nulls_and_doubles() -> None:
    quarter = row(0, 1.0, end_timestamp=ms(T0 + HOUR / 4))
    result = read(FEED, body(quarter, row(1, None), row(2, 3.0), row(2, 4.0), row(2, 4.0)), Kind.PRICE)
    assert [(p.value, p.end - p.start, p.quality) for p in result.points] == [
        (1.0, HOUR / 4, Quality.MEASURED),
        (4.0, HOUR, Quality.SUSPECT),
    ]
    assert [(g.start - T0) / HOUR for g in result.gaps] == [0.25, 1.0] and len(result.warnings) == 1


@pytest.mark.parametrize(
    ("document", "kind", "words"),
    [
        (body(), "no_data", "no price"),
        (body(row(0, None)), "no_data", "published"),
        (body(row(0, 1.0, unit="Cent/kWh")), "invalid", "Cent/kWh"),
        (body(row(0, 1.0, end_timestamp=ms(T0 + 2 * HOUR))), "invalid", "at most an hour"),
        (body(row(0, 1.0, start_timestamp=1_700_000_000)), "invalid", "at most an hour"),  # seconds for milliseconds
        (body(3), "invalid", "not an object"),
        ({"message": "Too many requests"}, "access", "Too many"),
        ({"object": "list"}, "invalid", "data"),
    ],
)
def test_what_cannot_be_used_says_why(document: Any, kind: str, words: str) -> None:
    result = read(FEED, document, Kind.PRICE)
    assert result.points == () and result.error is not None
    assert result.error.kind == kind and words in result.error.message


def test_requests_name_both_ends() -> None:
    now = T0 + timedelta(minutes=20)
    (request,) = FEED.requests(Query(Kind.PRICE, {"country": "at"}, now, now + 24 * HOUR, now))
    assert (request.url, request.params) == (
        "https://api.awattar.at/v1/marketdata",
        {"start": str(ms(T0)), "end": str(ms(now + 24 * HOUR))},
    )
    parts = FEED.requests(Query(Kind.PRICE, {"country": "de", "base_url": "http://x"}, T0, T0 + timedelta(days=50), T0))
    assert [r.url for r in parts] == ["http://x/v1/marketdata"] * 2 and parts[0].params["end"] == parts[1].params["start"]


def test_options() -> None:
    assert check({"country": "de"}) == []
    assert [p.key for p in check({})] == ["country"]
    assert [p.key for p in check({"country": ["de"], "base_url": "x"})] == ["base_url", "country"]


@FUZZ
@given(payload=st.binary(max_size=200) | JSON)
def test_anything_is_points_or_an_error(payload: Any) -> None:
    sound(read(FEED, payload, Kind.PRICE))


@FUZZ
@given(data=st.data())
def test_a_damaged_answer_is_points_or_an_error(data: st.DataObject) -> None:
    sound(read(FEED, mutated(data, GOOD), Kind.PRICE))
