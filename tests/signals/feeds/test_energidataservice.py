"""Energi Data Service: two price datasets with a cut-over, carbon that was and that is expected, answers cut at a limit."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.feeds.base import Query
from signals.feeds.energidataservice import FEED, check
from signals.points import Kind, Quality
from tests.signals.feeds.hostile import FUZZ, JSON, mutated, read, sound

PRICE, CARBON = Kind.PRICE, Kind.CARBON_AVERAGE
T0 = datetime(2026, 3, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def label(minutes: float) -> str:
    return (T0 + minutes * MINUTE).strftime("%Y-%m-%dT%H:%M:%S")


def quarter(minutes: int, eur: Any, dkk: Any = None, area: str = "DK1") -> dict[str, Any]:
    return {"TimeUTC": label(minutes), "PriceArea": area, "DayAheadPriceEUR": eur, "DayAheadPriceDKK": dkk}


def emission(minutes: int, value: Any, area: str = "DK1") -> dict[str, Any]:
    return {"Minutes5UTC": label(minutes), "PriceArea": area, "CO2Emission": value}


def body(*records: Any, **changes: Any) -> dict[str, Any]:
    return {"total": len(records), "limit": 0, "dataset": "DayAheadPrices", "records": list(records)} | changes


PRICES = body(quarter(30, 0, 0.0), quarter(15, -3.25, -24.2), quarter(0, 99.269997, 740.951258))  # newest first
CARBONS = body(emission(-10, 94.0), emission(-5, 0.0), dataset="CO2Emis")
PROGNOSIS = body(emission(0, 80.0), emission(5, 81.0), dataset="CO2EmisProg")
SAMPLES: list[tuple[bytes, Kind, dict[str, Any]]] = [
    (json.dumps(PRICES).encode(), PRICE, {}),
    (json.dumps(CARBONS).encode(), CARBON, {}),
    (json.dumps(PROGNOSIS).encode(), CARBON, {}),
]


def test_prices_in_euro_or_kroner_never_both() -> None:
    result = read(FEED, PRICES, PRICE)
    assert [(p.start, p.value) for p in result.points] == [
        (T0, 99.269997), (T0 + 15 * MINUTE, -3.25), (T0 + 30 * MINUTE, 0.0),
    ]  # fmt: skip
    assert {(p.unit, p.end - p.start, p.variant, p.quality) for p in result.points} == {
        ("EUR/MWh", 15 * MINUTE, "DK1", Quality.MEASURED)
    }
    kroner = read(FEED, PRICES, PRICE, options={"currency": "DKK"})
    assert [(p.value, p.unit) for p in kroner.points][:2] == [(740.951258, "DKK/MWh"), (-24.2, "DKK/MWh")]
    (single,) = read(FEED, body(quarter(0, 5.0)), PRICE).points
    assert single.end - single.start == 15 * MINUTE


def test_the_older_prices_are_hours() -> None:
    records = [{"HourUTC": "2025-09-30T21:00:00", "PriceArea": "DK1", "SpotPriceDKK": 690.700059, "SpotPriceEUR": 92.540001}]
    (point,) = read(FEED, body(*records, dataset="Elspotprices"), PRICE).points
    assert (point.value, point.start, point.end - point.start) == (
        92.540001,
        datetime(2025, 9, 30, 21, tzinfo=UTC),
        60 * MINUTE,
    )


def test_areas_are_apart() -> None:
    both = body(quarter(0, 1.0), quarter(0, 2.0, area="DK2"), quarter(15, 3.0), quarter(15, 4.0, area="DK2"))
    assert [(p.variant, p.value) for p in read(FEED, both, PRICE).points] == [
        ("DK1", 1.0), ("DK1", 3.0), ("DK2", 2.0), ("DK2", 4.0),
    ]  # fmt: skip
    assert [p.value for p in read(FEED, both, PRICE, options={"price_area": "DK2"}).points] == [2.0, 4.0]
    wrong = read(FEED, both, PRICE, options={"price_area": "SE3"})
    assert wrong.error is not None and wrong.error.kind == "invalid" and "DK1, DK2" in wrong.error.message


def test_carbon_that_was_and_carbon_expected() -> None:
    was = read(FEED, CARBONS, CARBON).points
    assert [(p.value, p.quality, p.issued_at, p.end - p.start) for p in was] == [
        (94.0, Quality.MEASURED, None, 5 * MINUTE),
        (0.0, Quality.MEASURED, None, 5 * MINUTE),
    ]
    assert [(p.value, p.quality, p.issued_at) for p in read(FEED, PROGNOSIS, CARBON).points] == [
        (80.0, Quality.FORECAST, T0),
        (81.0, Quality.FORECAST, T0),
    ]
    nameless = body(emission(-5, 70.0), emission(0, 71.0), dataset=None)
    assert [p.quality for p in read(FEED, nameless, CARBON).points] == [Quality.ESTIMATED, Quality.FORECAST]
    assert {p.unit for p in was} == {"gCO2e/kWh"}


def test_an_answer_cut_at_its_limit_gives_its_points_and_says_so() -> None:
    result = read(FEED, PRICES | {"total": 288, "limit": 3}, PRICE)
    assert len(result.points) == 3 and result.error is not None
    assert (result.error.kind, "3 records of 288" in result.error.message) == ("truncated", True)
    assert read(FEED, PRICES | {"total": 6, "offset": 3}, PRICE).error is None


def test_nulls_holes_and_doubles() -> None:
    result = read(FEED, body(quarter(0, 1.0), quarter(15, None), quarter(60, 2.0), quarter(75, 3.0), quarter(75, 4.0)), PRICE)
    assert [(p.value, p.quality) for p in result.points] == [
        (1.0, Quality.MEASURED), (2.0, Quality.MEASURED), (4.0, Quality.SUSPECT),
    ]  # fmt: skip
    assert [((g.start - T0) / MINUTE, (g.end - T0) / MINUTE) for g in result.gaps] == [(15, 30), (30, 60)]
    assert len(result.warnings) == 1


@pytest.mark.parametrize(
    ("document", "asked", "kind", "words"),
    [
        (body(), PRICE, "no_data", "no records"),
        (body(quarter(0, None)), PRICE, "no_data", "published"),
        (CARBONS, PRICE, "invalid", "day-ahead price"),
        (PRICES, CARBON, "invalid", "CO2Emission"),
        ({"message": "Max allowed requests; too many"}, PRICE, "access", "too many"),
        ({"statusCode": 400, "message": "Invalid column"}, PRICE, "invalid", "Invalid column"),
        ({"total": 1}, PRICE, "invalid", "records"),
        (body(emission(0, -4.0)), CARBON, "no_data", "published"),
    ],
)
def test_what_cannot_be_used_says_why(document: Any, asked: Kind, kind: str, words: str) -> None:
    result = read(FEED, document, asked)
    assert result.points == () and result.error is not None
    assert result.error.kind == kind and words in result.error.message


def test_price_requests_split_where_the_dataset_changes() -> None:
    cutover = datetime(2025, 9, 30, 22, tzinfo=UTC)
    options = {"price_area": "DK1", "base_url": "http://x/"}
    requests = FEED.requests(Query(PRICE, options, cutover - timedelta(days=1), cutover + timedelta(days=1), T0))
    assert [(r.url, r.params["start"], r.params["end"]) for r in requests] == [
        ("http://x/dataset/Elspotprices", "2025-09-29T22:00", "2025-09-30T22:00"),
        ("http://x/dataset/DayAheadPrices", "2025-09-30T22:00", "2025-10-01T22:00"),
    ]
    assert requests[0].params["limit"] == "0" and requests[0].params["timezone"] == "utc"
    assert json.loads(requests[0].params["filter"]) == {"PriceArea": ["DK1"]}


def test_carbon_requests_the_past_and_the_expected() -> None:
    now = T0 + 7 * MINUTE
    requests = FEED.requests(Query(CARBON, {"price_area": "DK1"}, T0 - timedelta(hours=1), T0 + timedelta(hours=1), now))
    assert [(r.url.rpartition("/")[2], r.params["start"], r.params["end"]) for r in requests] == [
        ("CO2Emis", "2026-02-28T23:00", "2026-03-01T00:05"),
        ("CO2EmisProg", "2026-03-01T00:05", "2026-03-01T01:00"),  # with the five minutes under way
    ]


def test_options() -> None:
    assert check({"price_area": "DK1", "currency": "DKK"}) == []
    assert [p.key for p in check({})] == ["price_area"]
    assert [p.key for p in check({"price_area": " ", "currency": "SEK"})] == ["price_area", "currency"]


@FUZZ
@given(payload=st.binary(max_size=200) | JSON, kind=st.sampled_from([PRICE, CARBON]))
def test_anything_is_points_or_an_error(payload: Any, kind: Kind) -> None:
    sound(read(FEED, payload, kind))


@FUZZ
@given(data=st.data(), good=st.sampled_from([PRICES, CARBONS]), kind=st.sampled_from([PRICE, CARBON]))
def test_a_damaged_answer_is_points_or_an_error(data: st.DataObject, good: Any, kind: Kind) -> None:
    sound(read(FEED, mutated(data, good), kind))
