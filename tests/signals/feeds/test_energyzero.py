"""EnergyZero: four series that are never mixed, EUR/kWh as text, one request a day."""

import json
from datetime import UTC, datetime, timedelta
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.feeds.base import Query
from signals.feeds.energyzero import FEED, SERIES, check
from signals.points import Kind, Quality
from tests.helpers import data_dir
from tests.signals.feeds.hostile import FUZZ, JSON, mutated, read, sound

T0 = datetime(2026, 2, 28, 23, tzinfo=UTC)  # midnight in Amsterdam
QUARTER = timedelta(minutes=15)


def rows(*values: Any, step: timedelta = QUARTER, start: datetime = T0) -> list[dict[str, Any]]:
    return [
        {
            "start": (start + i * step).isoformat().replace("+00:00", "Z"),
            "end": (start + (i + 1) * step).isoformat().replace("+00:00", "Z"),
            "price": {"value": value},
        }
        for i, value in enumerate(values)
    ]


def body(**series: Any) -> dict[str, Any]:
    return {"interval": 1, "range": {"start": "2026-02-28T23:00:00Z", "end": "2026-03-01T00:00:00Z"}} | series


GOOD = body(base=rows("0.07994", "0", "-0.0125", "0.1"), all_in=rows("0.2", "0.12", "0.1075", "0.22"))
SAMPLES: list[tuple[bytes, Kind, dict[str, Any]]] = [(json.dumps(GOOD).encode(), Kind.PRICE, {})]


def test_recorded_quarters_to_the_digit() -> None:
    result = read(FEED, (data_dir() / "feeds/energyzero/electricity_quarter.json").read_bytes(), Kind.PRICE)
    assert (result.gaps, result.warnings, result.error) == ((), (), None)
    by_series = {name: [p for p in result.points if p.variant == name] for name in SERIES}
    assert {name: len(points) for name, points in by_series.items()} == dict.fromkeys(SERIES, 288)
    base = by_series["base"]
    assert (min(p.value for p in base), max(p.value for p in base)) == (7.08, 173.75)
    assert (base[0].start, base[-1].start) == (
        datetime(2025, 12, 15, 23, tzinfo=UTC),
        datetime(2025, 12, 18, 22, 45, tzinfo=UTC),
    )
    assert {p.end - p.start for p in result.points} == {QUARTER} and {p.unit for p in result.points} == {"EUR/MWh"}
    all_in = [p.value for p in by_series["all_in_with_vat"]]
    assert (min(all_in), max(all_in)) == (131.4302, 333.1009)
    assert base[0].value == 79.94 and fmean(p.value for p in base) < fmean(all_in)


def test_option_chooses_one_series_and_only_what_is_there() -> None:
    chosen = read(FEED, GOOD, Kind.PRICE, options={"series": "base"})
    assert [(p.value, p.variant) for p in chosen.points] == [(79.94, "base"), (0.0, "base"), (-12.5, "base"), (100.0, "base")]
    assert {p.variant for p in read(FEED, GOOD, Kind.PRICE).points} == {"base", "all_in"}
    absent = read(FEED, GOOD, Kind.PRICE, options={"series": "base_with_vat"})
    assert absent.error is not None and absent.error.kind == "invalid" and "base, all_in" in absent.error.message


def test_missing_is_a_gap_and_tomorrow_is_not_zero() -> None:
    result = read(FEED, body(base=rows("0.1", None, "")), Kind.PRICE)
    assert [p.value for p in result.points] == [100.0]
    assert [(g.start, g.end) for g in result.gaps] == [
        (T0 + QUARTER, T0 + 2 * QUARTER),
        (T0 + 2 * QUARTER, T0 + 3 * QUARTER),
        (T0 + 3 * QUARTER, T0 + 4 * QUARTER),  # the answer's range goes on, its rows do not
    ]
    assert result.warnings == ()


def test_a_period_given_twice_is_one_suspect_value() -> None:
    twice = rows("0.1", "0.2")
    result = read(FEED, body(base=[*twice, *rows("0.3")]), Kind.PRICE)
    assert [(p.value, p.quality) for p in result.points] == [(300.0, Quality.SUSPECT), (200.0, Quality.MEASURED)]
    assert len(result.warnings) == 1


@pytest.mark.parametrize(
    ("document", "kind", "words"),
    [
        ({"code": 3, "message": "invalid DailyEnergyPricesRequest.Date", "details": []}, "invalid", "DailyEnergyPricesRequest"),
        ({"interval": 4}, "invalid", "'base'"),
        (body(base=[]), "no_data", "published"),
        (body(base=rows(None, None)), "no_data", "published"),
        (body(base="0.1"), "invalid", "base"),
        (body(base=rows("0.4", step=timedelta(days=1))), "invalid", "no price of electricity"),  # gas comes by the day
        (body(base=rows("NaN", "1e9", "1_0", True, {})), "no_data", "published"),
        ('{"base": [{"start"', "truncated", "middle"),
    ],
)
def test_what_cannot_be_used_says_why(document: Any, kind: str, words: str) -> None:
    result = read(FEED, document, Kind.PRICE)
    assert result.points == () and result.error is not None
    assert result.error.kind == kind and words in result.error.message


def test_one_request_for_each_local_day() -> None:
    query = Query(
        Kind.PRICE,
        {"base_url": "http://x/", "interval": "hour"},
        T0,
        T0 + timedelta(hours=24, minutes=1),
        T0 + timedelta(hours=12),
    )
    requests = FEED.requests(query)
    assert [r.params["date"] for r in requests] == ["01-03-2026", "02-03-2026"]
    assert requests[0].url == "http://x/public/v1/prices"
    assert requests[0].params == {"energyType": "ENERGY_TYPE_ELECTRICITY", "date": "01-03-2026", "interval": "INTERVAL_HOUR"}
    whole = FEED.requests(Query(Kind.PRICE, {}, T0, T0 + timedelta(hours=24), T0))
    assert len(whole) == 1 and whole[0].params["interval"] == "INTERVAL_QUARTER"


def test_days_of_23_and_25_hours_are_asked_once() -> None:
    for month, day, hours in ((3, 29, 23), (10, 25, 25)):
        start = datetime(2026, month, day, tzinfo=UTC) - timedelta(hours=1 if month == 3 else 2)
        (request,) = FEED.requests(Query(Kind.PRICE, {}, start, start + timedelta(hours=hours), start))
        assert request.params["date"] == f"{day:02d}-{month:02d}-2026"


def test_days_whose_prices_are_not_published_are_not_asked() -> None:
    midnight = datetime(2026, 2, 28, 23, tzinfo=UTC)

    def asked(hour: int) -> list[str]:
        now = midnight + timedelta(hours=hour)
        query = Query(Kind.PRICE, {}, midnight - timedelta(days=1), midnight + timedelta(days=4), now)
        return [request.params["date"] for request in FEED.requests(query)]

    assert asked(11) == ["28-02-2026", "01-03-2026"]
    assert asked(12) == ["28-02-2026", "01-03-2026", "02-03-2026"]


def test_options() -> None:
    assert check({}) == [] and check({"series": "all_in", "interval": "quarter"}) == []
    assert [p.key for p in check({"series": "x", "interval": 3, "base_url": "ftp://x"})] == ["base_url", "series", "interval"]
    assert FEED.defaults == {"series": "base"}


@FUZZ
@given(payload=st.binary(max_size=200) | JSON)
def test_anything_is_points_or_an_error(payload: Any) -> None:
    sound(read(FEED, payload, Kind.PRICE))


@FUZZ
@given(data=st.data())
def test_a_damaged_answer_is_points_or_an_error(data: st.DataObject) -> None:
    sound(read(FEED, mutated(data, GOOD), Kind.PRICE))
