"""Elering: four areas in one answer, labels that are starts, an hour or a quarter by their spacing."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.feeds.base import Query
from signals.feeds.elering import FEED, check
from signals.points import Kind, Quality
from tests.signals.feeds.hostile import FUZZ, JSON, mutated, read, sound

T0 = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def rows(*prices: Any, step_s: int = 3600, start: datetime = T0) -> list[dict[str, Any]]:
    return [{"timestamp": int(start.timestamp()) + i * step_s, "price": price} for i, price in enumerate(prices)]


def body(**areas: Any) -> dict[str, Any]:
    return {"success": True, "data": areas}


GOOD = body(ee=rows(40.5, 0, -3.21), fi=rows(1.5, 2.5, 3.5))
SAMPLES: list[tuple[bytes, Kind, dict[str, Any]]] = [(json.dumps(GOOD).encode(), Kind.PRICE, {})]


def test_each_area_is_its_own_series() -> None:
    result = read(FEED, GOOD, Kind.PRICE)
    assert [(p.variant, p.value) for p in result.points] == [
        ("ee", 40.5), ("ee", 0.0), ("ee", -3.21), ("fi", 1.5), ("fi", 2.5), ("fi", 3.5),
    ]  # fmt: skip
    assert {p.end - p.start for p in result.points} == {HOUR} and {p.unit for p in result.points} == {"EUR/MWh"}
    assert [p.value for p in read(FEED, GOOD, Kind.PRICE, options={"area": "fi"}).points] == [1.5, 2.5, 3.5]
    wrong = read(FEED, GOOD, Kind.PRICE, options={"area": "lv"})
    assert wrong.error is not None and "ee, fi" in wrong.error.message


def test_the_current_price_of_one_area() -> None:
    (point,) = read(FEED, {"success": True, "data": rows(40.5)}, Kind.PRICE, options={"area": "ee"}).points
    assert (point.variant, point.value, point.start, point.end) == ("ee", 40.5, T0, T0 + HOUR)


def test_change_from_hours_to_quarters_and_holes() -> None:
    change = datetime(2025, 9, 30, 22, tzinfo=UTC)
    mixed = rows(1.0, 2.0, start=change - 2 * HOUR) + rows(3.0, 4.0, None, 6.0, step_s=900, start=change)
    result = read(FEED, body(ee=mixed), Kind.PRICE)
    assert [int((p.end - p.start).total_seconds()) for p in result.points] == [3600, 3600, 900, 900, 900]
    assert [(g.start, g.end, g.variant) for g in result.gaps] == [
        (change + timedelta(minutes=30), change + timedelta(minutes=45), "ee")
    ]


def test_one_label_twice_is_one_suspect_value() -> None:
    result = read(FEED, body(ee=rows(1.0, 2.0) + rows(9.0)), Kind.PRICE)
    assert [(p.value, p.quality) for p in result.points] == [(9.0, Quality.SUSPECT), (2.0, Quality.MEASURED)]
    assert len(result.warnings) == 1


@pytest.mark.parametrize("hours", [23, 25])
def test_days_of_a_clock_change_have_each_hour_once(hours: int) -> None:
    start = datetime(2026, 3, 28, 22, tzinfo=UTC) if hours == 23 else datetime(2026, 10, 24, 21, tzinfo=UTC)
    result = read(FEED, body(ee=rows(*range(hours), start=start)), Kind.PRICE)
    assert [p.value for p in result.points] == [float(i) for i in range(hours)] and result.gaps == ()
    assert result.points[-1].end - result.points[0].start == hours * HOUR


@pytest.mark.parametrize(
    ("document", "kind", "words"),
    [
        ({"success": False, "messages": ["Too many requests"]}, "access", "Too many"),
        ({"success": False}, "invalid", "no success"),
        (body(), "no_data", "published"),
        (body(ee=[]), "no_data", "published"),
        (body(ee=rows(None, None)), "no_data", "published"),
        (body(ee={"timestamp": 1}), "invalid", "data.ee"),
        ({"success": True}, "invalid", "data"),
        ({"success": True, "data": "ee"}, "invalid", "data"),
    ],
)
def test_what_cannot_be_used_says_why(document: Any, kind: str, words: str) -> None:
    result = read(FEED, document, Kind.PRICE)
    assert result.points == () and result.error is not None
    assert result.error.kind == kind and words in result.error.message


def test_requests_by_months_from_the_hour_under_way() -> None:
    query = Query(Kind.PRICE, {"area": "ee", "base_url": "http://x/"}, T0 + timedelta(minutes=20), T0 + timedelta(days=40), T0)
    assert [(r.url, r.params["start"], r.params["end"]) for r in FEED.requests(query)] == [
        ("http://x/api/nps/price", "2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z"),
        ("http://x/api/nps/price", "2026-04-01T00:00:00Z", "2026-04-10T00:00:00Z"),
    ]


def test_options() -> None:
    assert check({"area": "ee"}) == []
    assert [p.key for p in check({})] == ["area"]
    assert [p.key for p in check({"area": "EE", "base_url": 1})] == ["base_url", "area"]


@FUZZ
@given(payload=st.binary(max_size=200) | JSON)
def test_anything_is_points_or_an_error(payload: Any) -> None:
    sound(read(FEED, payload, Kind.PRICE))


@FUZZ
@given(data=st.data())
def test_a_damaged_answer_is_points_or_an_error(data: st.DataObject) -> None:
    sound(read(FEED, mutated(data, GOOD), Kind.PRICE))
