"""EIA: what its answers mean, and what is asked."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.feeds.base import ParseResult, Query, Request
from signals.feeds.eia import FEED, check
from signals.points import Kind, Quality
from tests.helpers import data_dir
from tests.signals.feeds.hostile import FUZZ, JSON, mutated, read, sound

GENERATION, CARBON = Kind.GENERATION, Kind.CARBON_AVERAGE
T0 = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def row(hour: int, fuel: str, value: Any, **changes: Any) -> dict[str, Any]:
    return {
        "period": f"2026-03-01T{hour:02d}",
        "respondent": "CISO",
        "fueltype": fuel,
        "value": value,
        "value-units": "megawatthours",
    } | changes


def answer(*rows: Any, **changes: Any) -> dict[str, Any]:
    response = {"total": str(len(rows)), "dateFormat": 'YYYY-MM-DD"T"HH24', "frequency": "hourly", "data": list(rows)}
    return {"response": response | changes, "apiVersion": "2.1.12"}


GOOD = answer(row(1, "NG", "300"), row(1, "WND", 100), row(2, "NG", 200), row(2, "WND", "200"), row(2, "BAT", -40))
SAMPLES: list[tuple[bytes, Kind, dict[str, Any]]] = [
    (json.dumps(GOOD).encode(), kind, {"respondent": "CISO"}) for kind in (GENERATION, CARBON)
]


def said(result: ParseResult) -> list[tuple[str, int, float]]:
    return [(p.variant, p.start.hour, p.value) for p in result.points]


def error_of(result: ParseResult) -> tuple[str, str]:
    assert result.error is not None
    return result.error.kind, result.error.message


def test_recorded_answer_with_a_null_and_a_missing_row() -> None:
    payload = (data_dir() / "feeds/eia/fuel_type_with_nulls.json").read_bytes()
    result = read(FEED, payload, GENERATION)
    (point,) = result.points
    assert (point.value, point.unit, point.quality) == (400.0, "MW", Quality.MEASURED)
    assert (point.start, point.end) == (datetime(2022, 10, 31, 11, tzinfo=UTC), datetime(2022, 10, 31, 12, tzinfo=UTC))
    (gap,) = result.gaps
    assert (gap.start, gap.end) == (datetime(2022, 10, 31, 10, tzinfo=UTC), datetime(2022, 10, 31, 11, tzinfo=UTC))
    assert error_of(result) == ("truncated", "the answer says that there are 3 rows and holds 2")
    carbon = read(FEED, payload, CARBON)
    assert carbon.points == () and error_of(carbon)[0] == "truncated"


def test_generation_ends_with_its_label_and_may_be_a_text() -> None:
    result = read(FEED, GOOD, GENERATION)
    assert said(result) == [("battery", 1, -40), ("gas", 0, 300), ("gas", 1, 200), ("wind", 0, 100), ("wind", 1, 200)]
    assert result.error is None and result.warnings == ()


def test_carbon_is_the_mix_without_stores() -> None:
    result = read(FEED, GOOD, CARBON)
    assert said(result) == [("lifecycle", 0, (300 * 490 + 100 * 11) / 400), ("lifecycle", 1, (490 + 11) / 2)]
    assert {(p.unit, p.quality) for p in result.points} == {("gCO2e/kWh", Quality.ESTIMATED)}


def test_carbon_needs_the_whole_mix() -> None:
    body = answer(*(row(h, f, None if (h, f) == (2, "NG") else 100) for h in (1, 2, 3) for f in ("NG", "WND")))
    result = read(FEED, body, CARBON)
    assert [p.start.hour for p in result.points] == [0, 2]
    assert [(g.start.hour, g.end.hour) for g in result.gaps] == [(1, 2)]


def test_holes_are_gaps_and_zero_is_a_value() -> None:
    result = read(FEED, answer(row(1, "SUN", 0), row(4, "SUN", 5)), GENERATION)
    assert said(result) == [("solar", 0, 0), ("solar", 3, 5)]
    assert [(g.start.hour, g.end.hour) for g in result.gaps] == [(1, 3)]


def test_local_labels_carry_their_offset() -> None:
    result = read(FEED, answer(row(1, "NG", 1, period="2026-03-01T04-07"), frequency="local-hourly"), GENERATION)
    assert said(result) == [("gas", 10, 1)]


def test_authorities_are_kept_apart() -> None:
    body = answer(row(1, "NG", 1), row(1, "NG", 2, respondent="PJM"))
    assert said(read(FEED, body, GENERATION)) == [("CISO gas", 0, 1), ("PJM gas", 0, 2)]
    assert {p.variant for p in read(FEED, body, CARBON).points} == {"CISO lifecycle", "PJM lifecycle"}
    chosen = read(FEED, body, GENERATION, options={"respondent": "PJM"})
    assert said(chosen) == [("gas", 0, 2)] and "'CISO'" in chosen.warnings[0]


def test_a_row_given_twice_is_one() -> None:
    result = read(FEED, answer(row(1, "NG", 1), row(1, "NG", 1), row(2, "NG", 1), row(2, "NG", 3)), GENERATION)
    assert [(p.value, p.quality) for p in result.points] == [(1, Quality.MEASURED), (3, Quality.SUSPECT)]


@pytest.mark.parametrize("change", [{"value": "n/a"}, {"value": True}, {"value-units": "kWh"}, {"value": float("nan")}])
def test_what_is_no_number_of_megawatthours_is_missing(change: dict[str, Any]) -> None:
    result = read(FEED, answer(row(1, "NG", 5) | change, row(2, "NG", 5)), GENERATION)
    assert said(result) == [("gas", 1, 5)] and len(result.gaps) == 1 and len(result.warnings) == 1


@pytest.mark.parametrize("change", [{"period": "2026-03-01"}, {"period": 7}, {"period": "2026-13-01T01"}, {"fueltype": None}])
def test_a_row_without_an_hour_or_a_fuel_is_left_out(change: dict[str, Any]) -> None:
    result = read(FEED, answer(row(1, "NG", 9) | change, row(2, "NG", 5)), GENERATION)
    assert said(result) == [("gas", 1, 5)] and "left out" in result.warnings[0]


def test_the_sources_warnings_are_kept() -> None:
    result = read(FEED, answer(row(1, "NG", 5), warnings=[{"warning": "incomplete return"}]), GENERATION)
    assert "incomplete return" in result.warnings[0]


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("", "no_data", "empty"),
        ("<html>", "invalid", "HTML"),
        ('{"response": {"data": [{"per', "truncated", "middle"),
        ({"error": {"code": "API_KEY_INVALID", "message": "An invalid api_key was supplied."}}, "access", "API_KEY_INVALID"),
        ({"error": "Invalid facet 'respondant'", "code": 400}, "invalid", "respondant"),
        ({"x": 1}, "invalid", "response"),
        (answer(), "no_data", "no rows"),
        (answer(total=5), "no_data", "no rows"),
        (answer(row(1, "NG", None)), "no_data", "generation"),
        (answer(row(1, "NG", 3), frequency="daily"), "invalid", "daily"),
        (answer({"period": "2026-03-01T01", "type": "D", "value": 3}), "invalid", "type"),
        ({"response": {"data": {}}}, "invalid", "not a list"),
    ],
)
def test_that_cannot_be_used_says_why(body: Any, kind: str, words: str) -> None:
    result = read(FEED, body, GENERATION)
    assert result.points == () and error_of(result)[0] == kind and words in error_of(result)[1]


# --- asking ---------------------------------------------------------------------------------------------------------


def asked(start: float, end: float, **options: Any) -> list[Request]:
    query = Query(GENERATION, {"respondent": "CISO", "api_key": "s3cret"} | options, T0 + start * HOUR, T0 + end * HOUR, T0)
    requests = FEED.requests(query)
    assert all(r.params["api_key"] == "s3cret" and "s3cret" not in r.url for r in requests)
    return list(requests)


def test_what_is_asked() -> None:
    (request,) = asked(-5.5, 30)
    assert request.url == "https://api.eia.gov/v2/electricity/rto/fuel-type-data/data/"
    wanted = {
        "facets[respondent][]": "CISO",
        "data[0]": "value",
        "start": "2026-02-28T19",  # the hour of which 18:30 is a part ends at 19:00
        "end": "2026-03-01T00",
        "frequency": "hourly",
    }
    assert wanted.items() <= request.params.items()
    assert asked(0, 30) == []
    assert asked(-1, 0, base_url="http://127.0.0.1:9/")[0].url.startswith("http://127.0.0.1:9/electricity/")


def test_pages() -> None:
    (request,) = asked(-5, 0)
    first, second = answer(row(1, "NG", 1), row(2, "NG", 2), total="3"), answer(row(3, "NG", 3), total="3")
    pages = [json.dumps(page).encode() for page in (first, second)]
    assert FEED.paging is not None
    more = FEED.paging.following(pages[0], request)
    assert more is not None and more.params["offset"] == "2" and more.params["api_key"] == "s3cret"
    assert FEED.paging.following(pages[1], more) is None
    assert FEED.paging.following(b"garbage", request) is None
    whole = read(FEED, FEED.paging.join(pages), GENERATION)
    assert len(whole.points) == 3 and whole.error is None
    broken = read(FEED, FEED.paging.join([pages[0], b"<html>"]), GENERATION)
    assert len(broken.points) == 2 and error_of(broken)[0] == "truncated"
    assert error_of(read(FEED, FEED.paging.join([b"<html>"]), GENERATION))[0] == "invalid"


def test_wrong_options_are_named() -> None:
    assert check({"respondent": "ERCO"}) == []
    assert {p.key for p in check({})} == {"respondent"}
    assert {p.key for p in check({"respondent": 3, "base_url": "x"})} == {"respondent", "base_url"}


# --- hostile --------------------------------------------------------------------------------------------------------


@FUZZ
@given(payload=st.binary(max_size=200) | JSON, kind=st.sampled_from([GENERATION, CARBON]))
def test_any_payload(payload: Any, kind: Kind) -> None:
    sound(read(FEED, payload, kind))


@FUZZ
@given(data=st.data(), kind=st.sampled_from([GENERATION, CARBON]))
def test_damaged_documents(data: st.DataObject, kind: Kind) -> None:
    body = mutated(data, GOOD)
    sound(read(FEED, body, kind))
    assert FEED.paging is not None
    sound(read(FEED, FEED.paging.join([json.dumps(body).encode(), json.dumps(GOOD).encode()]), kind))
