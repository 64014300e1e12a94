"""Great Britain's regions: forecasts only, three shapes of answer, never mixed with the nation. (The national answer is tested
in tests/signals/test_signal_feeds.py.)"""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.feeds.base import Query
from signals.feeds.gb_carbon import FEED, REGIONS, check
from signals.points import Kind, Quality
from tests.signals.feeds.hostile import FUZZ, JSON, mutated, read, sound

CARBON = Kind.CARBON_AVERAGE
NOW = datetime(2026, 3, 1, tzinfo=UTC)
HALF = timedelta(minutes=30)
LONDON = "region 13"


def period(half: int, forecast: Any, **intensity: Any) -> dict[str, Any]:
    start = NOW + half * HALF
    span = {"from": start.strftime("%Y-%m-%dT%H:%MZ"), "to": (start + HALF).strftime("%Y-%m-%dT%H:%MZ")}
    return span | {"intensity": {"forecast": forecast, "index": "low"} | intensity}


def region(*periods: Any, regionid: Any = 13) -> dict[str, Any]:
    return {"regionid": regionid, "dnoregion": "UKPN London", "shortname": "London", "data": list(periods)}


OBJECT = {"data": region(period(-1, 162), period(0, 164), period(1, 0))}
LIST = {"data": [region(period(-1, 162), period(0, 164), period(1, 0))]}
NATIONAL = {"data": [period(-1, 200, actual=190), period(0, 210, actual=None)]}
SAMPLES: list[tuple[bytes, Kind, dict[str, Any]]] = [
    (json.dumps(document).encode(), CARBON, {}) for document in (OBJECT, LIST, NATIONAL)
]


@pytest.mark.parametrize("document", [OBJECT, LIST])
def test_a_region_has_forecasts_and_estimates_never_actuals(document: Any) -> None:
    for options in ({}, {"regionid": 13}, {"regionid": "London"}, {"postcode": "SW1"}):
        result = read(FEED, document, CARBON, options=options)
        assert [(p.value, p.quality, p.issued_at) for p in result.points] == [
            (162.0, Quality.ESTIMATED, None),
            (164.0, Quality.FORECAST, NOW),
            (0.0, Quality.FORECAST, NOW),
        ]
        assert {p.variant for p in result.points} == {LONDON} and result.error is None


def test_all_regions_in_each_period() -> None:
    regions = [{"regionid": i, "intensity": {"forecast": 100 + i}} for i in (1, 13)]
    document = {"data": [period(half, None) | {"regions": regions} for half in (0, 1)]}
    assert [(p.variant, p.value) for p in read(FEED, document, CARBON).points] == [
        ("region 1", 101.0), ("region 1", 101.0), (LONDON, 113.0), (LONDON, 113.0),
    ]  # fmt: skip
    assert {p.variant for p in read(FEED, document, CARBON, options={"regionid": 1}).points} == {"region 1"}


@pytest.mark.parametrize("options", [{"regionid": 12}, {"regionid": "Wales"}])
def test_another_place_than_asked_is_refused(options: dict[str, Any]) -> None:
    for document in (OBJECT, NATIONAL):
        result = read(FEED, document, CARBON, options=options)
        assert result.points == () and result.error is not None
        assert result.error.kind == "invalid" and "another place" in result.error.message
    refused = read(FEED, NATIONAL, CARBON, options={"postcode": "SW1"})
    assert refused.error is not None and "national" in refused.error.message


def test_gaps_doubles_and_impossible_values_of_a_region() -> None:
    document = {"data": region(period(0, 100), period(0, 120), period(1, None), period(3, -5), period(4, 90))}
    result = read(FEED, document, CARBON)
    assert [(p.value, p.quality) for p in result.points] == [(120.0, Quality.SUSPECT), (90.0, Quality.FORECAST)]
    assert [((g.start - NOW) / HALF, (g.end - NOW) / HALF, g.variant) for g in result.gaps] == [
        (1, 2, LONDON), (2, 3, LONDON), (3, 4, LONDON),
    ]  # fmt: skip
    assert len(result.warnings) == 2


@pytest.mark.parametrize(
    ("document", "kind", "words"),
    [
        ({"error": {"code": "500 Internal Server Error", "message": "An error occurred"}}, "access", "An error occurred"),
        ({"data": {}}, "no_data", "no periods"),
        ({"data": {"regionid": 13}}, "invalid", "without a list"),
        ({"data": region()}, "no_data", "no period"),
        ({"data": region(period(0, None))}, "no_data", "has a value"),
        ({"data": [region(3, None)]}, "no_data", "no period"),
        ({"data": "x"}, "invalid", "data"),
    ],
)
def test_what_cannot_be_used_says_why(document: Any, kind: str, words: str) -> None:
    result = read(FEED, document, CARBON)
    assert result.points == () and result.error is not None
    assert result.error.kind == kind and words in result.error.message


@pytest.mark.parametrize(
    ("options", "place"),
    [({"regionid": 13}, "regionid/13"), ({"regionid": "wales"}, "regionid/17"), ({"postcode": " sw1 "}, "postcode/SW1")],
)
def test_regional_requests(options: dict[str, Any], place: str) -> None:
    query = Query(CARBON, options | {"base_url": "http://x/"}, NOW - timedelta(days=1), NOW + timedelta(days=1), NOW)
    assert [r.url for r in FEED.requests(query)] == [
        f"http://x/regional/intensity/2026-02-28T00:00Z/2026-03-01T00:00Z/{place}",
        f"http://x/regional/intensity/2026-03-01T00:00Z/fw48h/{place}",
    ]


def test_options() -> None:
    assert check({}) == [] and check({"regionid": 17}) == [] and check({"regionid": "South Wales"}) == []
    assert check({"postcode": "EC1A"}) == [] and len(REGIONS) == 17
    for wrong in (0, 18, True, "18", "Cornwall", None, 1.5):
        assert [p.key for p in check({"regionid": wrong})] == ["regionid"]
    for wrong in ("SW1A 1AA", "../13", 7, ""):
        assert [p.key for p in check({"postcode": wrong})] == ["postcode"]
    assert [p.key for p in check({"regionid": 1, "postcode": "SW1"})] == ["postcode"]


@FUZZ
@given(payload=st.binary(max_size=200) | JSON)
def test_anything_is_points_or_an_error(payload: Any) -> None:
    sound(read(FEED, payload, CARBON))


@FUZZ
@given(data=st.data(), good=st.sampled_from([OBJECT, LIST, NATIONAL]), options=st.sampled_from([{}, {"regionid": 13}]))
def test_a_damaged_answer_is_points_or_an_error(data: st.DataObject, good: Any, options: dict[str, Any]) -> None:
    sound(read(FEED, mutated(data, good), CARBON, options=options))
