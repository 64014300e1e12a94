"""PJM: what its answers mean, and what is asked."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.feeds.base import ParseResult, Query, Request
from signals.feeds.pjm import FEED, check
from signals.points import Kind, Quality
from tests.helpers import data_dir
from tests.signals.feeds.hostile import FUZZ, JSON, mutated, read, sound

PRICE, LOAD, GENERATION = Kind.PRICE, Kind.LOAD, Kind.GENERATION
T0 = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def price(hour: int, value: Any, node: int = 51288, **changes: Any) -> dict[str, Any]:
    return {
        "datetime_beginning_utc": f"2026-03-01T{hour:02d}:00:00",
        "pnode_id": node,
        "pnode_name": "WESTERN HUB",
        "total_lmp_da": value,
        "row_is_current": True,
    } | changes


def load(minute: int, value: Any, area: str = "PJM RTO") -> dict[str, Any]:
    return {"datetime_beginning_utc": f"2026-03-01T00:{minute:02d}:00", "area": area, "instantaneous_load": value}


def solar(hour: int, value: Any, issued: str = "2026-03-01T00:00:00", **changes: Any) -> dict[str, Any]:
    return {
        "evaluated_at_utc": issued,
        "datetime_beginning_utc": f"2026-03-01T{hour:02d}:00:00",
        "datetime_ending_utc": f"2026-03-01T{hour:02d}:05:00",
        "solar_forecast_mwh": value,
        "solar_forecast_btm_mwh": 99.0,
    } | changes


def answer(*items: Any, **changes: Any) -> dict[str, Any]:
    return {"links": [], "items": list(items), "searchSpecification": {"startRow": 1}, "totalRows": len(items)} | changes


GOOD = {
    PRICE: answer(price(0, 30.5), price(1, -2)),
    LOAD: answer(load(0, 90_000), load(5, 90_100.5)),
    GENERATION: answer(solar(10, 5.0), solar(11, 6.0)),
}
SAMPLES: list[tuple[bytes, Kind, dict[str, Any]]] = [(json.dumps(body).encode(), kind, {}) for kind, body in GOOD.items()]


def error_of(result: ParseResult) -> tuple[str, str]:
    assert result.error is not None
    return result.error.kind, result.error.message


def test_recorded_solar_forecast_cut_to_two_rows() -> None:
    result = read(FEED, (data_dir() / "feeds/pjm/five_min_solar_forecast.json").read_bytes(), GENERATION)
    found = [(p.start, p.issued_at, p.value, p.quality, p.end - p.start) for p in result.points]
    five = timedelta(minutes=5)
    first, second = datetime(2024, 10, 1, 4, tzinfo=UTC), datetime(2024, 10, 2, 9, 45, tzinfo=UTC)
    assert found == [
        (first, first, 0.0, Quality.FORECAST, five),
        (second, datetime(2024, 10, 2, 3, 50, tzinfo=UTC), 0.0, Quality.FORECAST, five),
    ]
    assert error_of(result) == ("truncated", "the answer says that there are 10368 rows and holds 2")
    assert result.gaps == ()  # what lies between two runs of a forecast is no hole


def test_prices_of_hours() -> None:
    result = read(FEED, GOOD[PRICE], PRICE)
    assert [(p.start, p.value, p.unit, p.variant) for p in result.points] == [
        (T0, 30.5, "USD/MWh", ""),
        (T0 + HOUR, -2.0, "USD/MWh", ""),
    ]
    assert {p.end - p.start for p in result.points} == {HOUR}
    assert (result.gaps, result.warnings, result.error) == ((), (), None)


def test_holes_and_nulls_are_gaps_and_zero_is_a_value() -> None:
    result = read(FEED, answer(price(0, 0), price(1, None), price(4, 5)), PRICE)
    assert [(p.start.hour, p.value) for p in result.points] == [(0, 0.0), (4, 5.0)]
    assert [(g.start.hour, g.end.hour) for g in result.gaps] == [(1, 2), (2, 4)]


def test_versions_that_were_replaced_are_left_out() -> None:
    result = read(FEED, answer(price(0, 1), price(0, 9, row_is_current=False)), PRICE)
    assert [(p.value, p.quality) for p in result.points] == [(1.0, Quality.MEASURED)]


def test_nodes_are_kept_apart() -> None:
    body = answer(price(0, 1), price(0, 2, node=1))
    assert [(p.variant, p.value) for p in read(FEED, body, PRICE).points] == [("1", 2.0), ("51288", 1.0)]
    for node in (1, "1"):
        chosen = read(FEED, body, PRICE, options={"pnode_id": node})
        assert [(p.variant, p.value) for p in chosen.points] == [("", 2.0)] and "'51288'" in chosen.warnings[0]


def test_load_of_areas() -> None:
    body = answer(load(0, 5), load(5, 6), load(0, 1, "COMED"), load(5, 2, "COMED"))
    assert [(p.variant, p.value) for p in read(FEED, body, LOAD).points] == [
        ("COMED", 1), ("COMED", 2), ("PJM RTO", 5), ("PJM RTO", 6),
    ]  # fmt: skip
    chosen = read(FEED, body, LOAD, options=dict(FEED.defaults))
    assert [(p.variant, p.value, p.end - p.start) for p in chosen.points] == [
        ("", 5.0, timedelta(minutes=5)),
        ("", 6.0, timedelta(minutes=5)),
    ]


def test_runs_of_a_forecast_are_kept_apart() -> None:
    body = answer(solar(10, 5), solar(10, 7, "2026-03-01T06:00:00"), solar(11, None))
    result = read(FEED, body, GENERATION)
    assert {(p.value, p.issued_at, p.variant) for p in result.points} == {
        (5.0, T0, "solar"),
        (7.0, T0 + 6 * HOUR, "solar"),
    }
    assert "mean MW" in result.warnings[0]


@pytest.mark.parametrize("change", [{"evaluated_at_utc": "x"}, {"datetime_ending_utc": "2026-03-01T01:00:00"}])
def test_a_row_whose_times_make_no_sense_is_left_out(change: dict[str, str]) -> None:
    result = read(FEED, answer(solar(9, 9) | change, solar(10, 5)), GENERATION)
    assert [p.value for p in result.points] == [5.0] and "left out" in result.warnings[1]


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("", "no_data", "empty"),
        ("<html>", "invalid", "HTML"),
        ('{"items": [{"pno', "truncated", "middle"),
        ({"statusCode": 401, "message": "Access denied due to invalid subscription key."}, "access", "subscription"),
        ({"errors": [{"field": "pnode_id", "message": "must be a number"}]}, "invalid", "must be a number"),
        ({"x": 1}, "invalid", "items"),
        (answer(), "no_data", "no rows"),
        (answer(price(0, None)), "no_data", "price"),
        (answer(price(0, 1, datetime_beginning_utc="yesterday")), "no_data", "price"),
        ({"items": 3}, "invalid", "not a list"),
        (GOOD[LOAD], "invalid", "total_lmp_da"),
        (GOOD[GENERATION], "invalid", "total_lmp_da"),
    ],
)
def test_that_cannot_be_used_says_why(body: Any, kind: str, words: str) -> None:
    result = read(FEED, body, PRICE)
    assert result.points == () and error_of(result)[0] == kind and words in error_of(result)[1]


# --- asking ---------------------------------------------------------------------------------------------------------


def asked(kind: Kind, start: float, end: float, **options: Any) -> list[Request]:
    given = {"pnode_id": 51288, "api_key": "s3cret"} | dict(FEED.defaults) | options
    requests = FEED.requests(Query(kind, given, T0 + start * HOUR, T0 + end * HOUR, T0))
    assert all(r.headers["Ocp-Apim-Subscription-Key"] == "s3cret" and "s3cret" not in r.url + str(r.params) for r in requests)
    return list(requests)


def test_what_is_asked() -> None:
    (request,) = asked(PRICE, 0, 24)
    assert request.url == "https://api.pjm.com/api/v1/da_hrl_lmps"
    wanted = {"pnode_id": "51288", "datetime_beginning_utc": "03/01/2026 00:00to03/01/2026 23:59", "startRow": "1"}
    assert wanted.items() <= request.params.items()
    (past,) = asked(LOAD, -24, 24, base_url="http://127.0.0.1:9/v1/")
    assert past.url == "http://127.0.0.1:9/v1/inst_load" and past.params["area"] == "PJM RTO"
    assert past.params["datetime_beginning_utc"] == "02/28/2026 00:00to02/28/2026 23:59"
    assert asked(LOAD, 0, 24) == []
    assert [r.url.rpartition("/")[2] for r in asked(GENERATION, 0, 24)] == ["five_min_solar_power_forecast"]
    assert len(asked(PRICE, -24 * 45, 0)) == 2


def test_pages() -> None:
    (request,) = asked(PRICE, 0, 24)
    first, second = answer(price(0, 1), price(1, 2), totalRows=3), answer(price(2, 3), totalRows=3)
    pages = [json.dumps(page).encode() for page in (first, second)]
    assert FEED.paging is not None
    more = FEED.paging.following(pages[0], request)
    assert more is not None and more.params["startRow"] == "3" and more.headers == request.headers
    assert FEED.paging.following(pages[1], more) is None
    assert FEED.paging.following(b"[", request) is None
    whole = read(FEED, FEED.paging.join(pages), PRICE)
    assert len(whole.points) == 3 and whole.error is None
    broken = read(FEED, FEED.paging.join([pages[0], b"<html>"]), PRICE)
    assert len(broken.points) == 2 and error_of(broken)[0] == "truncated"
    assert error_of(read(FEED, FEED.paging.join([b"<html>"]), PRICE))[0] == "invalid"


def test_wrong_options_are_named() -> None:
    assert check({"pnode_id": 51288} | dict(FEED.defaults)) == [] == check({"pnode_id": "51288"})
    assert {p.key for p in check({})} == {"pnode_id"}
    wrong = {"pnode_id": "WESTERN HUB", "area": "", "base_url": "x"}
    assert {p.key for p in check(wrong)} == set(wrong)


# --- hostile --------------------------------------------------------------------------------------------------------


@FUZZ
@given(payload=st.binary(max_size=200) | JSON, kind=st.sampled_from(sorted(FEED.kinds)))
def test_any_payload(payload: Any, kind: Kind) -> None:
    sound(read(FEED, payload, kind))


@FUZZ
@given(data=st.data(), kind=st.sampled_from(sorted(FEED.kinds)))
def test_damaged_documents(data: st.DataObject, kind: Kind) -> None:
    body = mutated(data, GOOD[kind])
    sound(read(FEED, body, kind))
    assert FEED.paging is not None
    sound(read(FEED, FEED.paging.join([json.dumps(body).encode(), json.dumps(GOOD[kind]).encode()]), kind))
