"""WattTime: what its answers mean, what is asked, and how a login becomes a token."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.feeds.base import FeedError, Query
from signals.feeds.watttime import FEED, check
from signals.points import Kind, Quality
from tests.helpers import data_dir
from tests.signals.feeds.hostile import FUZZ, JSON, mutated, read, sound

RATE, RANK = Kind.CARBON_MARGINAL, Kind.CARBON_RANK
T0 = datetime(2026, 3, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def row(minute: int, value: Any, **changes: Any) -> dict[str, Any]:
    return {"point_time": f"2026-03-01T00:{minute:02d}:00+00:00", "value": value} | changes


def answer(*rows: Any, **meta: Any) -> dict[str, Any]:
    usual = {"data_point_period_seconds": 300, "region": "PJM_DC", "signal_type": "co2_moer", "units": "lbs_co2_per_mwh"}
    return {"data": list(rows), "meta": usual | {"warnings": [], "model": {"date": "2023-03-01"}} | meta}


def test_documented_history_to_the_digit() -> None:
    body = (data_dir() / "feeds/watttime/historical.json").read_bytes()
    result = read(FEED, body, RATE)
    assert [p.value for p in result.points] == pytest.approx([394.6253619, 390.0894382], abs=1e-12)
    assert [p.start for p in result.points] == [datetime(2022, 7, 15, 0, m, tzinfo=UTC) for m in (0, 5)]
    assert all(p.end - p.start == 5 * MINUTE and p.quality is Quality.IMPUTED and p.issued_at is None for p in result.points)
    assert {p.unit for p in result.points} == {"gCO2e/kWh"}
    assert result.warnings == ("the source warns: EXAMPLE_WARNING: This is just an example",)
    assert result.error is None
    rank = read(FEED, body, RANK)
    assert rank.points == () and rank.error is not None and rank.error.kind == "invalid"


def test_recorded_index_is_a_rank_and_never_an_intensity() -> None:
    body = (data_dir() / "feeds/watttime/signal_index.json").read_bytes()
    (point,) = read(FEED, body, RANK).points
    assert (point.value, point.unit, point.start) == (96.0, "percentile", datetime(2024, 6, 18, 18, 40, tzinfo=UTC))
    rate = read(FEED, body, RATE)
    assert rate.points == () and rate.error is not None
    assert rate.error.kind == "invalid" and "percentile" in rate.error.message


@pytest.mark.parametrize("kind", [RATE, RANK])
def test_recorded_refusal_is_an_access_error(kind: Kind) -> None:
    result = read(FEED, (data_dir() / "feeds/watttime/error_invalid_scope.json").read_bytes(), kind)
    assert result.points == () and result.error is not None
    assert result.error.kind == "access" and "Invalid scope" in result.error.message


def test_a_thousand_pounds_a_megawatt_hour() -> None:
    assert [p.value for p in read(FEED, answer(row(0, 1000)), RATE).points] == [453.59237]


def test_forecast_knows_when_it_was_issued() -> None:
    result = read(FEED, answer(row(0, 100), row(5, 0), generated_at="2026-02-28T23:55:00+00:00"), RATE)
    assert [(p.quality, p.issued_at) for p in result.points] == [(Quality.FORECAST, T0 - 5 * MINUTE)] * 2
    assert result.points[1].value == 0.0
    unclear = read(FEED, answer(row(0, 100), generated_at="soon"), RATE)
    assert [p.issued_at for p in unclear.points] == [T0]


def test_old_forecasts_stay_apart_by_issue_time() -> None:
    runs = [{"generated_at": f"2026-02-28T23:{m}:00+00:00", "forecast": [row(0, 100 + m), row(5, 200)]} for m in (50, 55)]
    result = read(FEED, answer(*runs), RATE)
    assert len(result.points) == 4 and result.warnings == ()
    first = [(p.issued_at, round(p.value, 3)) for p in result.points if p.start == T0]
    assert first == [(T0 - 10 * MINUTE, 68.039), (T0 - 5 * MINUTE, 70.307)]


def test_null_and_missing_rows_are_gaps() -> None:
    result = read(FEED, answer(row(0, 1), row(5, None), row(10, "x"), row(20, 2)), RATE)
    assert [p.start.minute for p in result.points] == [0, 20]
    assert [(g.start.minute, g.end.minute) for g in result.gaps] == [(5, 10), (10, 15), (15, 20)]
    assert len(result.warnings) == 1


def test_period_from_the_spacing_when_the_answer_states_none() -> None:
    result = read(FEED, answer(row(0, 1), row(15, 2), data_point_period_seconds=None), RATE)
    assert {p.end - p.start for p in result.points} == {15 * MINUTE}


def test_same_time_twice() -> None:
    result = read(FEED, answer(row(0, 1000), row(0, 2000), row(5, 1000), row(5, 1000)), RATE)
    assert [(p.value, p.quality) for p in result.points] == [
        (907.18474, Quality.SUSPECT),
        (453.59237, Quality.MEASURED),
    ]
    assert len(result.warnings) == 1


@pytest.mark.parametrize(
    ("body", "kind", "error", "words"),
    [
        ("", RATE, "no_data", "empty"),
        (answer(), RATE, "no_data", "no usable row"),
        ({"detail": "Token is expired"}, RATE, "access", "expired"),
        ({"error": "InvalidRegion", "message": "no such region"}, RATE, "access", "InvalidRegion"),
        ({"data": 1, "meta": {}}, RATE, "invalid", "not a list"),
        ({"data": []}, RATE, "invalid", "meta"),
        (answer(row(0, 1), units="lbs_health"), RATE, "invalid", "lbs_health"),
        (answer(row(0, 1), signal_type="co2_aoer"), RATE, "invalid", "co2_aoer"),
        (answer(row(0, 101), units="percentile"), RANK, "no_data", "window"),
        (answer(row(0, 1))["data"], RATE, "invalid", "list"),
    ],
)
def test_that_cannot_be_used_says_why(body: Any, kind: Kind, error: str, words: str) -> None:
    result = read(FEED, body, kind)
    assert result.points == () and result.error is not None
    assert result.error.kind == error and words in result.error.message


def test_an_answer_for_another_region_is_refused() -> None:
    result = read(FEED, answer(row(0, 1)), RATE, options={"region": "CAISO_NORTH"})
    assert result.error is not None and "PJM_DC" in result.error.message


def test_what_is_asked() -> None:
    options = {"region": "PJM_DC", "bearer": "t0ken", "username": "u", "password": "p4ss"}
    query = Query(RATE, options, T0 - timedelta(days=40), T0 + timedelta(hours=5.5), T0)
    requests = FEED.requests(query)
    assert [(r.url, dict(r.params)) for r in requests] == [
        (
            "https://api.watttime.org/v3/historical",
            {"region": "PJM_DC", "signal_type": "co2_moer", "start": a, "end": b},
        )
        for a, b in [("2026-01-20T00:00:00Z", "2026-02-19T00:00:00Z"), ("2026-02-19T00:00:00Z", "2026-03-01T00:00:00Z")]
    ] + [("https://api.watttime.org/v3/forecast", {"region": "PJM_DC", "signal_type": "co2_moer", "horizon_hours": "6"})]
    assert {r.headers["Authorization"] for r in requests} == {"Bearer t0ken"}
    far = FEED.requests(Query(RATE, options, T0, T0 + timedelta(days=9), T0))
    assert [r.params["horizon_hours"] for r in far] == ["72"]
    (index,) = FEED.requests(Query(RANK, options, T0, T0 + timedelta(days=1), T0))
    assert index.url.endswith("/v3/signal-index")


def test_login() -> None:
    assert FEED.login is not None
    request = FEED.login.request({"username": "ann", "password": "s3cret"})
    assert request.url == "https://api.watttime.org/login"
    assert request.headers["Authorization"] == "Basic YW5uOnMzY3JldA=="
    assert FEED.login.token(b'{"token": "abc"}') == "abc"
    assert FEED.login.ttl_s < 30 * 60
    for bad in (b"", b"{}", b'{"token": ""}', b'{"token": 5}', b"<html>", b'{"error": "x"}'):
        with pytest.raises(FeedError) as caught:
            FEED.login.token(bad)
        assert caught.value.kind == "access"


def test_wrong_options_are_named() -> None:
    assert check({"region": "CAISO_NORTH"}) == []
    assert {p.key for p in check({})} == {"region"}
    assert {p.key for p in check({"region": "a/b", "base_url": 1})} == {"region", "base_url"}


@FUZZ
@given(payload=st.binary(max_size=200) | JSON, kind=st.sampled_from([RATE, RANK]))
def test_any_payload(payload: Any, kind: Kind) -> None:
    sound(read(FEED, payload, kind))


@FUZZ
@given(data=st.data(), kind=st.sampled_from([RATE, RANK]))
def test_damaged_documents(data: st.DataObject, kind: Kind) -> None:
    runs = [{"generated_at": "2026-02-28T23:50:00+00:00", "forecast": [row(0, 100), row(5, 200)]}]
    unit = "percentile" if kind is RANK else "lbs_co2_per_mwh"
    good = data.draw(st.sampled_from([answer(row(0, 1), row(5, 2), units=unit), answer(*runs, units=unit)]))
    sound(read(FEED, mutated(data, good), kind))
