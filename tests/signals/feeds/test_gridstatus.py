"""US system operators: the document that is read, and how it is made with a stand-in for the library gridstatus."""

import json
import sys
import threading
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.feeds import gridstatus_isos
from signals.feeds.base import FeedError, Query
from signals.feeds.gridstatus_isos import FEED, check, load
from signals.points import Kind, Quality
from signals.secrets import MissingSecret, resolve
from tests.signals.feeds.hostile import FUZZ, JSON, mutated, read, sound

PRICE, LOAD, CARBON = Kind.PRICE, Kind.LOAD, Kind.CARBON_AVERAGE
T0 = datetime(2026, 3, 1, 8, tzinfo=UTC)  # midnight in California
HOUR = timedelta(hours=1)
HUB = "TH_NP15_GEN-APND"


def record(hour: float, length_h: float = 1.0, **values: Any) -> dict[str, Any]:
    start = T0 + hour * HOUR
    return {
        "Time": start.isoformat().replace("+00:00", "Z"),
        "Interval Start": start.isoformat().replace("+00:00", "Z"),
        "Interval End": (start + length_h * HOUR).isoformat().replace("+00:00", "Z"),
    } | values


def document(kind: Kind, *records: Any, **changes: Any) -> dict[str, Any]:
    market = "day_ahead_hourly" if kind is PRICE else None
    return {"iso": "CAISO", "kind": str(kind), "market": market, "failed": [], "records": list(records)} | changes


PRICES = document(
    PRICE,
    record(0, Location=HUB, LMP=31.5, Energy=30.0),
    record(1, Location=HUB, LMP=0, Energy=0),
    record(2, Location=HUB, LMP=-12.25, Energy=-10.0),
    record(0, Location="TH_SP15_GEN-APND", LMP=20.0, Energy=30.0),
)
LOADS = document(LOAD, record(0, 1 / 12, Load=24_000.5), record(1 / 12, 1 / 12, Load=None))
MIX = {"Solar": 100, "Wind": 300, "Natural Gas": 500, "Large Hydro": 60, "Small Hydro": 40, "Batteries": -500, "Imports": 9000}
MIXES = document(
    CARBON, record(0, **MIX), record(1, **MIX | {"Natural Gas": 0, "Solar": 600}), record(2, **MIX | {"Wind": None})
)
SAMPLES: list[tuple[bytes, Kind, dict[str, Any]]] = [
    (json.dumps(PRICES).encode(), PRICE, {}),
    (json.dumps(LOADS).encode(), LOAD, {}),
    (json.dumps(MIXES).encode(), CARBON, {}),
]


def test_prices_of_each_location_are_apart() -> None:
    result = read(FEED, PRICES, PRICE)
    assert [(p.variant, (p.start - T0) / HOUR, p.value) for p in result.points] == [
        (f"day_ahead_hourly {HUB}", 0, 31.5),
        (f"day_ahead_hourly {HUB}", 1, 0.0),
        (f"day_ahead_hourly {HUB}", 2, -12.25),
        ("day_ahead_hourly TH_SP15_GEN-APND", 0, 20.0),
    ]
    assert {(p.unit, p.end - p.start) for p in result.points} == {("USD/MWh", HOUR)}


def test_settlement_point_prices_load_and_gaps() -> None:
    texan = document(PRICE, record(0, Location="HB_NORTH", Market="DAY_AHEAD_HOURLY", SPP=25.0), market=None, iso="ERCOT")
    (point,) = read(FEED, texan, PRICE).points
    assert (point.value, point.variant) == (25.0, "DAY_AHEAD_HOURLY HB_NORTH")
    loads = read(FEED, LOADS, LOAD)
    assert [(p.value, p.unit, p.end - p.start) for p in loads.points] == [(24_000.5, "MW", timedelta(minutes=5))]
    assert len(loads.gaps) == 1


def test_carbon_of_whole_mixes_without_stores_and_imports() -> None:
    result = read(FEED, MIXES, CARBON)
    expected = (100 * 48 + 300 * 11 + 500 * 490 + 100 * 24) / 1000
    clean = (600 * 48 + 300 * 11 + 100 * 24) / 1000
    assert [(p.value, p.quality) for p in result.points] == [
        (pytest.approx(expected), Quality.ESTIMATED),
        (pytest.approx(clean), Quality.ESTIMATED),
    ]
    assert [(g.start - T0) / HOUR for g in result.gaps] == [2]  # no wind figure: not a mix without wind
    assert "wind is missing" in result.warnings[0]


def test_plants_of_both_markings_are_added_and_doubles_are_suspect() -> None:
    split = {"Coal Market": 100, "Coal Self": 300, "Wind": 600}
    southwest = document(CARBON, record(0, **split), record(1, **split), record(1, **split | {"Wind": 0}), iso="SPP")
    first, second = read(FEED, southwest, CARBON).points
    assert (first.value, first.quality) == (pytest.approx((400 * 820 + 600 * 11) / 1000), Quality.ESTIMATED)
    assert (second.value, second.quality) == (pytest.approx(820), Quality.SUSPECT)


def test_days_that_failed_make_it_truncated() -> None:
    result = read(FEED, PRICES | {"failed": ["2026-03-02: HTTPError"]}, PRICE)
    assert len(result.points) == 4 and result.error is not None and result.error.kind == "truncated"
    assert "2026-03-02" in result.error.message


@pytest.mark.parametrize(
    ("payload", "kind", "words"),
    [
        (LOADS, "invalid", "holds load"),
        ({"a": 1}, "invalid", "'iso'"),
        (document(PRICE, iso=["CAISO"]), "invalid", "'iso'"),
        (document(PRICE), "no_data", "nothing"),
        (document(PRICE, records=None), "invalid", "records"),
        (document(PRICE, record(0, 5, Location=HUB, LMP=1.0)), "no_data", "nothing"),
        (document(PRICE, record(0, Location=HUB, LMP="1")), "no_data", "nothing"),
    ],
)
def test_what_cannot_be_used_says_why(payload: Any, kind: str, words: str) -> None:
    result = read(FEED, payload, PRICE)
    assert result.points == () and result.error is not None
    assert result.error.kind == kind and words in result.error.message


# --- making the document --------------------------------------------------------------------------------------------


class NoDataFoundException(Exception):
    """As the library names it."""


class Operator:
    """A stand-in for one of the library's classes; it remembers what was asked."""

    asked: list[dict[str, Any]]

    def __init__(self) -> None:
        Operator.asked = []

    def get_lmp(self, date: Any, market: str, locations: Any = None, end: Any = None, error: str = "ignore") -> Any:
        import pandas as pd

        Operator.asked.append({"date": date, "end": end, "error": error, "what": (market, locations)})
        if len(Operator.asked) == 2:
            raise NoDataFoundException("nothing yet")
        if len(Operator.asked) == 3:
            raise ValueError("https://x.org/?key=secret")
        starts = pd.date_range(date, end, freq="h", inclusive="left")
        table = {"Interval Start": starts, "Interval End": starts + pd.Timedelta(hours=1), "Location": HUB, "LMP": 5.5}
        return pd.concat([pd.DataFrame(table), pd.DataFrame(table | {"Location": "elsewhere"})])

    def get_load(self, date: Any, verbose: bool = False) -> Any:
        import pandas as pd

        start = [date + pd.Timedelta(minutes=5 * i) for i in range(2)]
        return pd.DataFrame(
            {"Interval Start": start, "Interval End": [s + pd.Timedelta(minutes=5) for s in start], "Load": [1.0, None]}
        )

    def get_fuel_mix(self, date: Any, end: Any = None, verbose: bool = False) -> Any:
        raise ValueError("https://x.org/?key=secret")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    module = ModuleType("gridstatus")
    for name in ("CAISO", "Ercot", "MISO"):
        setattr(module, name, Operator)
    monkeypatch.setitem(sys.modules, "gridstatus", module)
    monkeypatch.setattr(gridstatus_isos, "PACE_S", 0.0)


def query(kind: Kind, days: float, **options: Any) -> Query:
    end = T0 + timedelta(days=days)
    return Query(kind, {"iso": "CAISO", "location": HUB} | options, T0, end, end)


def local_days(kind: Kind, start_h: float, end_h: float, **options: Any) -> list[int]:
    """The days of March in California that are asked at noon of 1 March, hours from then."""
    noon = T0 + 12 * HOUR
    asked = Query(kind, options, noon + start_h * HOUR, noon + end_h * HOUR, noon)
    is_ahead = options.get("market") == "day_ahead_hourly"
    return [day.day for day, _ in gridstatus_isos._days(asked, ZoneInfo("US/Pacific"), is_ahead)]


def test_only_days_that_can_have_data_are_asked_and_polls_ask_from_yesterday_on() -> None:
    assert local_days(PRICE, -48, 96, market="day_ahead_hourly") == [28, 1, 2]
    assert local_days(PRICE, -48, 96, market="real_time_5_min") == [28, 1]
    assert local_days(LOAD, -6, 96) == [1] and local_days(LOAD, 24, 96) == []
    assert local_days(CARBON, -24 * 5, 96) == [24, 25, 26, 27, 28, 1]


@pytest.mark.usefixtures("library")
def test_load_asks_by_local_day_and_keeps_what_came() -> None:
    asked = query(PRICE, 8)  # into the day of 23 hours
    payload = load(asked)
    assert [a["date"].isoformat() for a in Operator.asked[:2]] == ["2026-03-01T00:00:00-08:00", "2026-03-02T00:00:00-08:00"]
    assert len(Operator.asked) == 9 and {a["error"] for a in Operator.asked} == {"raise"}
    assert Operator.asked[0]["what"] == ("DAY_AHEAD_HOURLY", [HUB])
    assert (Operator.asked[7]["end"] - Operator.asked[7]["date"]) == 23 * HOUR
    assert b"secret" not in payload and b"elsewhere" not in payload
    result = FEED.parse(
        payload, region="r", kind=PRICE, retrieved_at=T0, options=asked.options, start=asked.start, end=asked.end
    )
    assert result.error is not None and "2026-03-03: ValueError" in result.error.message
    # Days 1 and 4 to 9 of the library's, up to the window's end; day 8 has 23 hours.
    assert len(result.points) == 24 * 6 and {p.value for p in result.points} == {5.5}
    assert [(g.end - g.start) / HOUR for g in result.gaps] == [48.0]


@pytest.mark.usefixtures("library")
def test_a_day_ahead_that_is_not_there_yet_is_no_failure() -> None:
    asked = query(PRICE, 3)
    payload = load(Query(PRICE, asked.options, asked.start, asked.end, T0 + 11 * HOUR))
    assert len(Operator.asked) == 2, "no operator publishes the day after tomorrow"
    assert read(FEED, payload, PRICE).error is None and len(read(FEED, payload, PRICE).points) == 24


@pytest.mark.usefixtures("library")
def test_load_by_a_method_without_an_end() -> None:
    result = read(FEED, load(query(LOAD, 0.5, iso="miso")), LOAD)
    assert [p.value for p in result.points] == [1.0] and len(result.gaps) == 1
    assert result.points[0].start == datetime(2026, 3, 1, 5, tzinfo=UTC)  # MISO keeps Eastern Standard Time all year


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("asked", "kind", "words"),
    [
        (query(CARBON, 1), "access", "2026-03-01: ValueError"),
        (query(PRICE, 1, location="Nowhere"), "no_data", "is the name right"),
        (query(PRICE, 1, location=None), "invalid", "location"),
        (query(PRICE, 1, market="monthly"), "invalid", "day_ahead_hourly, real_time_15_min"),
        (query(LOAD, 1, iso="SPP"), "invalid", "288 times"),
        (query(PRICE, 1, iso="AESO"), "invalid", "CAISO, ERCOT"),
        (query(PRICE, 1, iso="PJM"), "access", "PJM_API_KEY"),
    ],
)
def test_load_that_fails_says_why(asked: Query, kind: str, words: str) -> None:
    with pytest.raises(FeedError) as caught:
        load(asked)
    assert caught.value.kind == kind and words in caught.value.message and "secret" not in caught.value.message


@pytest.mark.usefixtures("library")
def test_a_call_that_hangs_is_given_up_and_not_joined_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    release, asked = threading.Event(), list[Any]()

    def hang(self: Operator, date: Any, verbose: bool = False) -> Any:
        asked.append(date)
        release.wait(30)

    monkeypatch.setattr(Operator, "get_load", hang)
    monkeypatch.setattr(gridstatus_isos, "CALL_LIMIT_S", 0.05)
    monkeypatch.setattr(gridstatus_isos, "_given_up", {})
    try:
        for words in (r"no answer within 0\.05 s", "still without an answer"):
            with pytest.raises(FeedError, match=words) as caught:
                load(query(LOAD, 5, iso="MISO"))
            assert caught.value.kind == "access"
        assert len(asked) == 1, "neither another day nor another poll waits beside it"
    finally:
        release.set()
    gridstatus_isos._given_up["MISO"].join(30)
    with pytest.raises(FeedError, match="no answer") as caught:  # it has ended: asked again
        release.clear()
        load(query(LOAD, 5, iso="MISO"))
    release.set()
    assert len(asked) == 2


@pytest.mark.usefixtures("library")
def test_only_pjm_needs_a_key_and_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingSecret, match="PJM_API_KEY"):
        resolve(FEED, {"iso": "pjm"}, {})
    assert resolve(FEED, {"iso": "CAISO"}, {}) == {}
    assert resolve(FEED, {"iso": "PJM"}, {"PJM_API_KEY": "k3y"}) == {"api_key": "k3y"}
    given = []

    class Keyed(Operator):
        def __init__(self, api_key: str | None = None) -> None:
            super().__init__()
            given.append(api_key)

    monkeypatch.setattr(sys.modules["gridstatus"], "PJM", Keyed, raising=False)
    load(query(LOAD, 1, iso="PJM", api_key="k3y"))
    assert given == ["k3y"]


def test_polling_is_gentle() -> None:
    assert FEED.poll_s >= 1800 and FEED.pace_s >= 1


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gridstatus", None)
    with pytest.raises(FeedError, match=r"pip install 'gridshift\[us\]'"):
        load(query(LOAD, 1))


def test_options() -> None:
    assert check({"iso": "CAISO", "location": HUB, "market": "real_time_5_min"}) == [] and check({"iso": "ercot"}) == []
    assert [p.key for p in check({})] == ["iso"]
    assert [p.key for p in check({"iso": "MISO", "market": ["x"], "location": 3})] == ["location", "market"]
    assert [r.url for r in FEED.requests(query(LOAD, 1))] == ["local:"]


@FUZZ
@given(payload=st.binary(max_size=200) | JSON, kind=st.sampled_from([PRICE, LOAD, CARBON]))
def test_anything_is_points_or_an_error(payload: Any, kind: Kind) -> None:
    sound(read(FEED, payload, kind))


@FUZZ
@given(data=st.data(), good=st.sampled_from([PRICES, LOADS, MIXES]))
def test_a_damaged_document_is_points_or_an_error(data: st.DataObject, good: Any) -> None:
    for kind in (PRICE, LOAD, CARBON):
        sound(read(FEED, mutated(data, good), kind))
