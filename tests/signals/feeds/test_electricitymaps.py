"""Electricity Maps: what its answers mean, and what is asked."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.feeds.base import Query
from signals.feeds.electricitymaps import FEED, check
from signals.points import Kind, Quality
from tests.helpers import data_dir
from tests.signals.feeds.hostile import FUZZ, JSON, mutated, read, sound

CARBON = Kind.CARBON_AVERAGE
T0 = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def row(hour: int, value: Any, **changes: Any) -> dict[str, Any]:
    return {
        "zone": "DE",
        "carbonIntensity": value,
        "datetime": f"2026-03-01T{hour:02d}:00:00.000Z",
        "updatedAt": "2026-03-01T12:00:00.000Z",
        "emissionFactorType": "lifecycle",
        "isEstimated": False,
        "estimationMethod": None,
    } | changes


def history(*rows: Any, **changes: Any) -> dict[str, Any]:
    return {"zone": "DE", "history": list(rows)} | changes


def test_recorded_history_to_the_digit() -> None:
    result = read(FEED, (data_dir() / "feeds/electricitymaps/carbon_intensity_history.json").read_bytes(), CARBON)
    values = [p.value for p in result.points]
    assert (len(values), min(values), max(values)) == (24, 492.0, 689.0)
    assert result.points[0].start == datetime(2024, 3, 5, 20, tzinfo=UTC)
    assert result.points[-1].start == datetime(2024, 3, 6, 19, tzinfo=UTC)
    assert all(p.end - p.start == HOUR and p.unit == "gCO2e/kWh" and p.variant == "lifecycle" for p in result.points)
    assert [p.start.hour for p in result.points if p.quality is Quality.ESTIMATED] == [18, 19]
    assert (result.gaps, result.warnings, result.error) == ((), (), None)


def test_recorded_latest_whose_update_is_before_its_hour() -> None:
    result = read(FEED, (data_dir() / "feeds/electricitymaps/latest_carbon_intensity.json").read_bytes(), CARBON)
    (point,) = result.points
    assert (point.value, point.quality, point.issued_at) == (216.0, Quality.ESTIMATED, None)
    assert (point.start, point.end) == (datetime(2024, 3, 6, 19, tzinfo=UTC), datetime(2024, 3, 6, 20, tzinfo=UTC))


def test_recorded_zone_list_has_no_points() -> None:
    result = read(FEED, (data_dir() / "feeds/electricitymaps/zones.json").read_bytes(), CARBON)
    assert result.points == () and result.error is not None
    assert (result.error.kind, "400 zones (191 with a countryName)" in result.error.message) == ("no_data", True)


def test_null_and_missing_hours_are_gaps_and_zero_is_a_value() -> None:
    result = read(FEED, history(row(0, 0), row(1, None), row(2, 300), row(4, 310)), CARBON)
    assert [(p.start.hour, p.value) for p in result.points] == [(0, 0.0), (2, 300.0), (4, 310.0)]
    assert [(g.start.hour, g.end.hour) for g in result.gaps] == [(1, 2), (3, 4)]


def test_lifecycle_and_direct_are_never_mixed() -> None:
    body = history(row(0, 300), row(0, 250, emissionFactorType="direct"), row(1, 310))
    both = read(FEED, body, CARBON)
    assert [(p.variant, p.value) for p in both.points] == [("direct", 250.0), ("lifecycle", 300.0), ("lifecycle", 310.0)]
    assert both.warnings == ()
    direct = read(FEED, body, CARBON, options={"emission_factor_type": "direct"})
    assert [p.value for p in direct.points] == [250.0]
    wrong = read(FEED, history(row(0, 300)), CARBON, options={"emission_factor_type": "direct"})
    assert wrong.points == () and wrong.error is not None and wrong.error.kind == "invalid"


def test_forecast_knows_when_it_was_issued() -> None:
    rows = [{"carbonIntensity": 100 + h, "datetime": f"2026-03-01T{h:02d}:00:00.000Z"} for h in range(3)]
    body = {"zone": "DE", "forecast": rows, "updatedAt": "2026-02-28T23:41:00.000Z"}
    result = read(FEED, body, CARBON)
    assert {p.quality for p in result.points} == {Quality.FORECAST}
    assert {p.issued_at for p in result.points} == {datetime(2026, 2, 28, 23, 41, tzinfo=UTC)}
    assert {p.variant for p in result.points} == {"lifecycle"}
    del body["updatedAt"]
    assert {p.issued_at for p in read(FEED, body, CARBON).points} == {T0}


def test_finer_granularity_comes_from_the_answer() -> None:
    rows = [row(0, 1), row(0, 2, datetime="2026-03-01T00:05:00Z")]
    result = read(FEED, history(*rows, temporalGranularity="5_minutes"), CARBON)
    assert {p.end - p.start for p in result.points} == {timedelta(minutes=5)}
    daily = read(FEED, history(*rows, temporalGranularity="daily"), CARBON)
    assert daily.error is not None and "daily" in daily.error.message


def test_same_hour_with_two_values_is_one_suspect() -> None:
    result = read(FEED, history(row(0, 300), row(0, 320), row(1, 5), row(1, 5)), CARBON)
    assert [(p.value, p.quality) for p in result.points] == [(320.0, Quality.SUSPECT), (5.0, Quality.MEASURED)]
    assert len(result.warnings) == 1


def test_sandbox_values_are_suspect_and_negative_ones_missing() -> None:
    result = read(FEED, history(row(0, 300, estimationMethod="SANDBOX_MODE_DATA"), row(1, -5), row(2, 7)), CARBON)
    assert [(p.value, p.quality) for p in result.points] == [(300.0, Quality.SUSPECT), (7.0, Quality.MEASURED)]
    assert "sandbox" in result.warnings[0] and "-5" in result.warnings[1]


@pytest.mark.parametrize(
    ("body", "options", "kind", "words"),
    [
        ("", {}, "no_data", "empty"),
        ("{}", {}, "no_data", "empty"),
        ("<html>", {}, "invalid", "HTML"),
        ('{"zone": "DE", "history": [{"zo', {}, "truncated", "middle"),
        ({"error": "Invalid auth-token"}, {}, "access", "auth-token"),
        ({"message": "Zone FR not in your plan"}, {}, "access", "plan"),
        ({"status": "error", "message": "No recent data for zone \"XX\""}, {}, "no_data", "XX"),
        ({"zone": "DE", "history": []}, {}, "no_data", "history"),
        ({"zone": "DE", "history": 3}, {}, "invalid", "not a list"),
        ({"zone": "DE", "history": [{"datetime": "2026-03-01T00:00Z", "powerConsumptionTotal": 5}]}, {}, "invalid", "power"),
        ({"zone": "DE", "powerConsumptionTotal": 5}, {}, "invalid", "powerConsumptionTotal"),
        (history(row(0, None)), {}, "no_data", "window"),
        (history(row(0, 300)), {"zone": "FR"}, "invalid", "'DE'"),
        (history(row(0, 300, zone="FR"), zone=None), {"zone": "DE"}, "no_data", "window"),
    ],
)  # fmt: skip
def test_that_cannot_be_used_says_why(body: Any, options: dict[str, Any], kind: str, words: str) -> None:
    result = read(FEED, body, CARBON, options=options)
    assert result.points == () and result.error is not None
    assert result.error.kind == kind and words in result.error.message


def asked(start: float, end: float, **options: Any) -> list[tuple[str, dict[str, str]]]:
    query = Query(CARBON, {"zone": "DE", "token": "s3cret"} | options, T0 + start * HOUR, T0 + end * HOUR, T0)
    requests = FEED.requests(query)
    assert all(r.headers["auth-token"] == "s3cret" and "s3cret" not in r.url + str(r.params) for r in requests)
    return [(r.url.rpartition("/")[2], dict(r.params)) for r in requests]


def test_what_is_asked() -> None:
    assert asked(-5, 30) == [("history", {"zone": "DE"}), ("forecast", {"zone": "DE", "horizonHours": "48"})]
    assert asked(-5, 0) == [("history", {"zone": "DE"})]
    assert asked(1, 200, horizon_h=24) == [("forecast", {"zone": "DE", "horizonHours": "24"})]
    old = asked(-24 * 25, -24 * 4, emission_factor_type="direct")
    assert [(name, p["start"], p["end"]) for name, p in old] == [
        ("past-range", "2026-02-04T00:00:00Z", "2026-02-14T00:00:00Z"),
        ("past-range", "2026-02-14T00:00:00Z", "2026-02-24T00:00:00Z"),
        ("past-range", "2026-02-24T00:00:00Z", "2026-02-25T00:00:00Z"),
    ]
    assert {p["emissionFactorType"] for _, p in old} == {"direct"}
    mixed = asked(-24 * 4, 0.5, granularity="5_minutes")
    assert [name for name, _ in mixed] == ["history", "forecast", *["past-range"] * 4]
    assert (mixed[2][1]["start"], mixed[-1][1]["end"]) == ("2026-02-25T00:00:00Z", "2026-02-28T01:00:00Z")


def test_a_poll_asks_only_for_what_every_plan_has() -> None:
    for hours in (5, 25, 48, 71):
        assert [name for name, _ in asked(-hours, 30)] == ["history", "forecast"]


def test_wrong_options_are_named() -> None:
    assert check({"zone": "DE"} | dict(FEED.defaults)) == []
    assert {p.key for p in check({})} == {"zone"}
    wrong = {"zone": 7, "emission_factor_type": "lca", "granularity": "daily", "horizon_h": 12, "base_url": "ftp://x"}
    assert {p.key for p in check(wrong)} == set(wrong)


@FUZZ
@given(payload=st.binary(max_size=200) | JSON)
def test_any_payload(payload: Any) -> None:
    sound(read(FEED, payload, CARBON))


@FUZZ
@given(data=st.data())
def test_damaged_documents(data: st.DataObject) -> None:
    good = data.draw(st.sampled_from([row(0, 300), history(row(0, 300), row(1, 310), temporalGranularity="hourly")]))
    sound(read(FEED, mutated(data, good), CARBON))
