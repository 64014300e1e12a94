"""OpenElectricity: the v4 API and the older OpenNEM files."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.feeds.base import Query
from signals.feeds.openelectricity import FEED, check
from signals.points import Kind, Quality
from tests.helpers import data_dir
from tests.signals.feeds.hostile import FUZZ, JSON, mutated, read, sound

PRICE, LOAD = Kind.PRICE, Kind.LOAD
T0 = datetime(2026, 3, 1, tzinfo=UTC)
FIVE = timedelta(minutes=5)


def block(metric: str = "price", unit: str = "$/MWh", interval: str = "5m", **regions: list[Any]) -> dict[str, Any]:
    """Values from 10:05 network time on, which is the interval from 00:00 to 00:05 UTC."""
    step = {"5m": 5, "1h": 60}[interval]
    return {
        "network_code": "NEM",
        "metric": metric,
        "unit": unit,
        "interval": interval,
        "groupings": ["network_region"],
        "network_timezone_offset": "+10:00",
        "results": [
            {
                "name": f"{metric}_{region}",
                "columns": {"region": region},
                "data": [[f"2026-03-01T1{step * i // 60}:{(5 + step * i) % 60:02d}:00+10:00", v] for i, v in enumerate(values)],
            }
            for region, values in regions.items()
        ],
    }


def v4(*blocks: Any) -> dict[str, Any]:
    return {"version": "4.5.16", "created_at": "2026-03-01T11:07:20+10:00", "success": True, "data": list(blocks)}


def opennem(data: list[Any], last: str = "2026-03-01T10:20:00+10:00", **changes: Any) -> dict[str, Any]:
    history = {"start": "2026-03-01T10:05:00+10:00", "last": last, "interval": "5m", "data": data}
    item = {"type": "price", "data_type": "price", "units": "AUD/MWh", "region": "SA1", "history": history}
    return {"type": "power", "version": "3", "network": "nem", "region": "SA1", "data": [item | changes]}


def test_recorded_week_to_the_digit() -> None:
    result = read(FEED, (data_dir() / "feeds/openelectricity/nem_sa1_7d_price_only.json").read_bytes(), PRICE)
    values = [p.value for p in result.points]
    assert (len(values), min(values), max(values)) == (2017, -997.7, 350.0)
    assert (sum(v < 0 for v in values), values.count(0.0)) == (681, 2)
    assert sum(values) / len(values) == pytest.approx(42.7391, abs=5e-5)
    # The labels are 01:30 UTC on both days, and labels are ends.
    assert result.points[0].end == datetime(2023, 1, 17, 1, 30, tzinfo=UTC)
    assert result.points[-1].end == datetime(2023, 1, 24, 1, 30, tzinfo=UTC)
    assert {p.end - p.start for p in result.points} == {FIVE} and {p.unit for p in result.points} == {"AUD/MWh"}
    assert (result.gaps, result.warnings, result.error) == ((), (), None)


def test_v4_stamps_are_ends_and_nulls_gaps() -> None:
    result = read(FEED, v4(block(SA1=[-12.5, None, 0, 80])), PRICE)
    assert [(p.start - T0, p.value) for p in result.points] == [(0 * FIVE, -12.5), (2 * FIVE, 0.0), (3 * FIVE, 80.0)]
    assert [(g.start - T0, g.end - T0) for g in result.gaps] == [(FIVE, 2 * FIVE)]
    assert {(p.unit, p.quality, p.variant) for p in result.points} == {("AUD/MWh", Quality.MEASURED, "")}


def test_regions_stay_apart() -> None:
    body = v4(block(SA1=[1, 2], VIC1=[3, 4]))
    assert [(p.variant, p.value) for p in read(FEED, body, PRICE).points] == [
        ("SA1", 1.0),
        ("SA1", 2.0),
        ("VIC1", 3.0),
        ("VIC1", 4.0),
    ]
    chosen = read(FEED, body, PRICE, options={"network_region": "VIC1"})
    assert [(p.variant, p.value) for p in chosen.points] == [("", 3.0), ("", 4.0)]
    other = read(FEED, body, PRICE, options={"network_region": "TAS1"})
    assert other.error is not None and other.error.kind == "invalid" and "SA1, VIC1" in other.error.message


def test_price_and_demand_are_not_mixed() -> None:
    body = v4(block(SA1=[1]), block("demand", "MW", SA1=[1500.5]))
    assert [(p.value, p.unit) for p in read(FEED, body, LOAD).points] == [(1500.5, "MW")]
    assert [(p.value, p.unit) for p in read(FEED, body, PRICE).points] == [(1.0, "AUD/MWh")]
    only = read(FEED, v4(block(SA1=[1])), LOAD)
    assert only.points == () and only.error is not None and only.error.kind == "invalid"


def test_older_v4_shape_with_utc_and_naive_times() -> None:
    body = v4(block(SA1=[1, 2]))
    body["data"][0]["results"][0] = {
        "columns": {"network_region": "SA1"},
        "data": [["2026-03-01T00:05:00Z", 1], ["2026-03-01T10:10:00", 2]],
    }
    assert [p.start - T0 for p in read(FEED, body, PRICE).points] == [0 * FIVE, FIVE]


def test_longer_intervals_are_read_as_starts_with_a_word() -> None:
    result = read(FEED, v4(block(interval="1h", SA1=[1, 2])), PRICE)
    assert [p.start - T0 for p in result.points] == [FIVE, FIVE + timedelta(hours=1)]
    assert {p.end - p.start for p in result.points} == {timedelta(hours=1)} and "starts" in result.warnings[0]


def test_fewer_values_than_the_file_says_are_truncated() -> None:
    result = read(FEED, opennem([1, 2]), PRICE)
    assert [p.value for p in result.points] == [1.0, 2.0]
    assert result.error is not None and result.error.kind == "truncated"
    whole = read(FEED, opennem([1, None, 3, -4.5]), PRICE)
    assert whole.error is None and [p.value for p in whole.points] == [1.0, 3.0, -4.5] and len(whole.gaps) == 1


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("", "no_data", "empty"),
        ({"detail": "Invalid API key"}, "access", "API key"),
        ({"success": False, "error": "Date range too large for 5m interval", "data": []}, "invalid", "too large"),
        ({"detail": "No market data available for network NEM"}, "no_data", "NEM"),
        (v4(), "no_data", "empty"),
        ({"version": "4"}, "invalid", "version"),
        (v4(block("emissions", "t", SA1=[1])), "invalid", "emissions"),
        (v4(block(unit="MWh", SA1=[1])), "invalid", "MWh"),
        (v4(block(SA1=[1]) | {"interval": "1M"}), "invalid", "1M"),
        (v4(block(SA1=[None])), "no_data", "window"),
        (v4(block(SA1=[1]) | {"results": 5}), "invalid", "results"),
        (opennem([1, 2, 3, 4, 5]), "invalid", "cannot be matched"),
        (opennem([1], history=None), "invalid", "history"),
    ],
)
def test_that_cannot_be_used_says_why(body: Any, kind: str, words: str) -> None:
    result = read(FEED, body, PRICE)
    assert result.points == () and result.error is not None
    assert result.error.kind == kind and words in result.error.message


def test_what_is_asked_is_in_network_time_without_daylight_saving() -> None:
    options = {"network_region": "SA1", "api_key": "k3y"}
    summer = datetime(2026, 1, 10, tzinfo=UTC)
    requests = FEED.requests(Query(PRICE, options, summer - timedelta(days=8), summer + timedelta(days=1), summer))
    assert [(r.params["date_start"], r.params["date_end"]) for r in requests] == [
        ("2026-01-02T10:00:00", "2026-01-08T10:10:00"),
        ("2026-01-08T10:00:00", "2026-01-10T10:10:00"),
    ]
    first = requests[0]
    assert first.url == "https://api.openelectricity.org.au/v4/market/network/NEM"
    assert first.headers["Authorization"] == "Bearer k3y" and "k3y" not in str(first.params)
    assert (first.params["metrics"], first.params["interval"], first.params["network_region"]) == ("price", "5m", "SA1")
    (demand,) = FEED.requests(Query(LOAD, options | {"network": "WEM"}, T0 - FIVE, T0, T0))
    assert demand.params["metrics"] == "demand" and demand.params["date_start"] == "2026-03-01T07:55:00"
    assert FEED.requests(Query(PRICE, options, T0, T0 + FIVE, T0)) == ()


def test_wrong_options_are_named() -> None:
    assert check({"network_region": "NSW1"}) == []
    assert check({"network_region": "WEM", "network": "WEM"}) == []
    assert {p.key for p in check({"network": "AU", "base_url": "x"})} == {"network", "network_region", "base_url"}


@FUZZ
@given(payload=st.binary(max_size=200) | JSON, kind=st.sampled_from([PRICE, LOAD]))
def test_any_payload(payload: Any, kind: Kind) -> None:
    sound(read(FEED, payload, kind))


@FUZZ
@given(data=st.data())
def test_damaged_documents(data: st.DataObject) -> None:
    good = data.draw(st.sampled_from([v4(block(SA1=[1, 2], VIC1=[3])), opennem([1, 2, 3, 4])]))
    sound(read(FEED, mutated(data, good), PRICE))
