"""AEMO: reports, monthly files and the dashboard; settlement dates are ends in UTC+10 all year."""

import io
import json
import zipfile
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.feeds.aemo import FEED, check
from signals.feeds.base import ParseResult, Query
from signals.points import Kind, Quality
from tests.signals.feeds.hostile import FUZZ, JSON, mutated, read, sound

PRICE, LOAD = Kind.PRICE, Kind.LOAD
T0 = datetime(2026, 3, 1, tzinfo=UTC)
FIVE = timedelta(minutes=5)
SA = {"region_id": "SA1"}
DISPATCH = "I,DISPATCH,PRICE,5,SETTLEMENTDATE,RUNNO,REGIONID,DISPATCHINTERVAL,INTERVENTION,RRP,EEP,ROP,APCFLAG,PRICE_STATUS"
TRADING = "I,TRADING,PRICE,3,SETTLEMENTDATE,RUNNO,REGIONID,PERIODID,RRP,EEP,INVALIDFLAG,LASTCHANGED,PRICE_STATUS"
MONTHLY = "REGION,SETTLEMENTDATE,TOTALDEMAND,RRP,PERIODTYPE"


def dispatch(time: str, price: Any, region: str = "SA1", intervention: int = 0, status: str = "FIRM") -> str:
    return f'D,DISPATCH,PRICE,5,"2026/03/01 {time}:00",1,{region},20260301072,{intervention},{price},0,{price},0,"{status}"'


def trading(time: str, price: Any, region: str = "SA1", flag: str = "0") -> str:
    return f'D,TRADING,PRICE,3,"2026/03/01 {time}:00",1,{region},121,{price},0,{flag},"2026/03/01 {time}:04",FIRM'


def report(*rows: str, counted: int | None = None) -> str:
    head = "C,NEMP.WORLD,DISPATCHIS,AEMO,PUBLIC,2026/03/01,10:00:05,0000000412683134,DISPATCHIS,0000000412683133"
    count = len(rows) + 2 if counted is None else counted
    return "\r\n".join([head, *rows, f'C,"END OF REPORT",{count}', ""])


def zipped(**files: bytes | str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def spans(result: ParseResult) -> list[tuple[timedelta, timedelta, float]]:
    return [(p.start - T0, p.end - p.start, p.value) for p in result.points]


def test_dispatch_report_stamps_are_ends_in_utc_plus_ten() -> None:
    body = report(DISPATCH, dispatch("10:05", -63.45), dispatch("10:10", 0), dispatch("10:20", "17500"))
    result = read(FEED, body, PRICE)
    assert spans(result) == [(0 * FIVE, FIVE, -63.45), (FIVE, FIVE, 0.0), (3 * FIVE, FIVE, 17500.0)]
    assert [(g.start - T0, g.end - T0) for g in result.gaps] == [(2 * FIVE, 3 * FIVE)]
    assert {(p.unit, p.quality, p.variant) for p in result.points} == {("AUD/MWh", Quality.MEASURED, "dispatch")}
    assert result.error is None and result.warnings == ()


def test_zips_and_zips_of_zips() -> None:
    first, second = report(DISPATCH, dispatch("10:05", 1)), report(DISPATCH, dispatch("10:10", 2))
    assert [p.value for p in read(FEED, zipped(a=first), PRICE).points] == [1.0]
    day = zipped(a=zipped(a=first), b=zipped(b=second))
    assert [p.value for p in read(FEED, day, PRICE).points] == [1.0, 2.0]
    cut = read(FEED, day[: len(day) // 2], PRICE)
    assert cut.error is not None and cut.error.kind == "truncated"


def test_only_the_run_without_intervention_sets_the_price() -> None:
    body = report(DISPATCH, dispatch("10:05", 90), dispatch("10:05", 300, intervention=1))
    result = read(FEED, body, PRICE)
    assert [(p.value, p.quality) for p in result.points] == [(90.0, Quality.MEASURED)] and result.warnings == ()


def test_prices_that_aemo_does_not_stand_by_are_suspect() -> None:
    body = report(DISPATCH, dispatch("10:05", 90, status="NOT FIRM"), dispatch("10:10", 91))
    assert [p.quality for p in read(FEED, body, PRICE).points] == [Quality.SUSPECT, Quality.MEASURED]
    flagged = read(FEED, report(TRADING, trading("10:05", 90, flag="1"), trading("10:10", 91)), PRICE)
    assert [p.quality for p in flagged.points] == [Quality.SUSPECT, Quality.MEASURED]


def test_regions_and_tables_stay_apart() -> None:
    body = report(DISPATCH, dispatch("10:05", 1), dispatch("10:05", 2, "VIC1"), TRADING, trading("10:05", 3))
    assert [(p.variant, p.value) for p in read(FEED, body, PRICE).points] == [
        ("dispatch/SA1", 1.0),
        ("dispatch/VIC1", 2.0),
        ("trading/SA1", 3.0),
    ]
    assert [(p.variant, p.value) for p in read(FEED, body, PRICE, options=SA).points] == [("dispatch", 1.0), ("trading", 3.0)]
    live = read(FEED, body, PRICE, options=SA | dict(FEED.defaults))
    assert [(p.variant, p.value) for p in live.points] == [("trading", 3.0)]
    other = read(FEED, body, PRICE, options={"region_id": "TAS1"})
    assert other.error is not None and other.error.kind == "invalid" and "SA1, VIC1" in other.error.message


def test_public_prices_of_a_day() -> None:
    head = "I,DREGION,,3,SETTLEMENTDATE,RUNNO,REGIONID,INTERVENTION,RRP"
    body = report(head, 'D,DREGION,,3,"2026/03/01 10:05:00",1,SA1,0,44.5')
    assert [(p.variant, p.value) for p in read(FEED, body, PRICE).points] == [("dispatch", 44.5)]


def test_trading_intervals_lasted_half_an_hour_until_october_2021() -> None:
    rows = ["SA1,2021/10/01 00:00:00,1500,10,TRADE", "SA1,2021/10/01 00:05:00,1501,11,TRADE"]
    result = read(FEED, "\n".join([MONTHLY, *rows]), PRICE)
    assert [(p.start, p.end - p.start) for p in result.points] == [
        (datetime(2021, 9, 30, 13, 30, tzinfo=UTC), 6 * FIVE),
        (datetime(2021, 9, 30, 14, 0, tzinfo=UTC), FIVE),
    ]


def test_monthly_files_have_price_and_demand() -> None:
    rows = [
        "SA1,2026/03/01 10:05:00,1500.5,-10.25,TRADE",
        "SA1,2026/03/01 10:10:00,,,TRADE",
        "SA1,2026/03/01 10:15:00,1490,x,TRADE",
    ]
    body = "\n".join([MONTHLY, *rows])
    price, load = read(FEED, body, PRICE), read(FEED, body, LOAD)
    assert spans(price) == [(0 * FIVE, FIVE, -10.25)] and len(price.gaps) == 2 and len(price.warnings) == 1
    assert spans(load) == [(0 * FIVE, FIVE, 1500.5), (2 * FIVE, FIVE, 1490.0)]
    assert {(p.unit, p.variant) for p in load.points} == {("MW", "trading")}
    cut = read(FEED, body + "\nSA1,2026/03/01 10:2", PRICE)
    assert len(cut.points) == 1 and cut.error is not None and cut.error.kind == "truncated"


def test_no_daylight_saving_in_either_season() -> None:
    for day, utc in (
        ("2026/01/15", datetime(2026, 1, 14, 14, tzinfo=UTC)),
        ("2026/07/15", datetime(2026, 7, 14, 14, tzinfo=UTC)),
    ):
        (point,) = read(FEED, f"{MONTHLY}\nSA1,{day} 00:05:00,1,1,TRADE", PRICE).points
        assert point.start == utc
    labels = [
        datetime(2026, 4, 5, tzinfo=UTC) + (i + 1) * FIVE for i in range(288)
    ]  # the day on which Adelaide's clocks go back
    rows = [f"SA1,{label:%Y/%m/%d %H:%M:%S},1,{i},TRADE" for i, label in enumerate(labels)]
    result = read(FEED, "\n".join([MONTHLY, *rows]), PRICE)
    assert len(result.points) == 288 and result.gaps == ()


def test_dashboard_actuals_and_half_hourly_forecast() -> None:
    rows = [
        {
            "SETTLEMENTDATE": "2026-03-01T10:00:00",
            "REGIONID": "SA1",
            "RRP": 80.5,
            "TOTALDEMAND": 1400.0,
            "PERIODTYPE": "ACTUAL",
        },
        {"SETTLEMENTDATE": "2026-03-01T10:30:00", "REGIONID": "SA1", "RRP": -5, "TOTALDEMAND": None, "PERIODTYPE": "FORECAST"},
        {"SETTLEMENTDATE": "2026-03-01T10:30:00", "REGIONID": "VIC1", "RRP": 7, "TOTALDEMAND": 9, "PERIODTYPE": "FORECAST"},
    ]
    result = read(FEED, {"5MIN": rows}, PRICE, options=SA)
    assert spans(result) == [(-FIVE, FIVE, 80.5), (0 * FIVE, 6 * FIVE, -5.0)]
    assert [(p.quality, p.issued_at) for p in result.points] == [(Quality.MEASURED, None), (Quality.FORECAST, T0)]
    assert [p.value for p in read(FEED, {"5MIN": rows}, LOAD, options=SA).points] == [1400.0]


def test_a_report_shorter_than_its_count_is_truncated() -> None:
    for body in (report(DISPATCH, dispatch("10:05", 1), counted=9), report(DISPATCH, dispatch("10:05", 1)).rpartition("C,")[0]):
        result = read(FEED, body, PRICE)
        assert [p.value for p in result.points] == [1.0]
        assert result.error is not None and result.error.kind == "truncated"


@pytest.mark.parametrize(
    ("body", "options", "kind", "words"),
    [
        ("", {}, "no_data", "empty"),
        ("<html><body>Reports</body></html>", {}, "invalid", "HTML"),
        ("hello,world", {}, "invalid", "no report"),
        (report("I,DISPATCH,REGIONSUM,9,SETTLEMENTDATE", 'D,DISPATCH,REGIONSUM,9,"x"'), {}, "invalid", "RRP"),
        (report(dispatch("10:05", 1)), {}, "invalid", "RRP"),
        (report(DISPATCH, dispatch("25:05", 1)), {}, "no_data", "window"),
        (report(DISPATCH, dispatch("10:05", "")), {}, "no_data", "window"),
        ("REGION,SETTLEMENTDATE\nSA1,2026/03/01 10:05:00", {}, "invalid", "RRP"),
        (zipped(), {}, "no_data", "empty"),
        ({"5MIN": []}, {}, "no_data", "no rows"),
        ({"error": "Forbidden"}, {}, "access", "Forbidden"),
        ({"x": 1}, {}, "invalid", "5MIN"),
        (report(DISPATCH, dispatch("10:05", 1)), {"table": "trading"}, "no_data", "window"),
    ],
)
def test_that_cannot_be_used_says_why(body: Any, options: dict[str, Any], kind: str, words: str) -> None:
    result = read(FEED, body, PRICE, options=options)
    assert result.points == () and result.error is not None
    assert result.error.kind == kind and words in result.error.message


def test_what_is_asked() -> None:
    options = SA | dict(FEED.defaults)
    now = datetime(2026, 3, 1, 2, tzinfo=UTC)
    requests = FEED.requests(Query(PRICE, options, now - timedelta(days=40), now + timedelta(days=1), now))
    prefix = "https://aemo.com.au/aemo/data/nem/priceanddemand/PRICE_AND_DEMAND_"
    assert [r.url for r in requests] == [
        f"{prefix}202601_SA1.csv",
        f"{prefix}202602_SA1.csv",
        f"{prefix}202603_SA1.csv",
        "https://visualisations.aemo.com.au/aemo/apps/api/report/5MIN",
    ]
    assert requests[-1].body is not None and json.loads(requests[-1].body) == {"timeScale": ["30MIN"]}
    old = FEED.requests(Query(PRICE, options, now - timedelta(days=40), now - timedelta(days=30), now))
    assert [r.url[-15:] for r in old] == ["_202601_SA1.csv"]
    ahead = FEED.requests(Query(PRICE, options, now, now + timedelta(hours=5), now))
    assert [r.url.rpartition("/")[2] for r in ahead] == ["5MIN"]
    poll = FEED.requests(Query(PRICE, options, now - timedelta(days=2), now + timedelta(hours=5), now))
    assert [r.url.rpartition("/")[2] for r in poll] == ["5MIN"]
    days = FEED.requests(Query(PRICE, options, now - timedelta(days=4), now + timedelta(hours=5), now))
    assert [r.url.rpartition("/")[2] for r in days] == [
        "PRICE_AND_DEMAND_202602_SA1.csv",
        "PRICE_AND_DEMAND_202603_SA1.csv",
        "5MIN",
    ]


def test_wrong_options_are_named() -> None:
    assert check(SA | dict(FEED.defaults)) == []
    assert {p.key for p in check({})} == {"region_id"}
    assert {p.key for p in check({"region_id": "NSW", "table": "spot", "base_url": "x"})} == {"region_id", "table", "base_url"}


@FUZZ
@given(payload=st.binary(max_size=200) | JSON, kind=st.sampled_from([PRICE, LOAD]))
def test_any_payload(payload: Any, kind: Kind) -> None:
    sound(read(FEED, payload, kind))
    if isinstance(payload, bytes):
        sound(read(FEED, b"PK" + payload, kind))
        sound(read(FEED, zipped(a=payload), kind))


@FUZZ
@given(data=st.data(), kind=st.sampled_from([PRICE, LOAD]))
def test_damaged_reports(data: st.DataObject, kind: Kind) -> None:
    whole = data.draw(
        st.sampled_from(
            [
                report(DISPATCH, dispatch("10:05", 1), TRADING, trading("10:05", 3)),
                f"{MONTHLY}\nSA1,2026/03/01 10:05:00,1500,-10.25,TRADE\nSA1,2026/03/01 10:10:00,1,2,TRADE\n",
            ]
        )
    )
    at = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, 30))
    sound(read(FEED, whole[:at] + data.draw(st.text(max_size=5)) + whole[at + length :], kind))


@FUZZ
@given(data=st.data())
def test_damaged_dashboards(data: st.DataObject) -> None:
    row = {"SETTLEMENTDATE": "2026-03-01T10:05:00", "REGIONID": "SA1", "RRP": 80.5, "PERIODTYPE": "ACTUAL"}
    sound(read(FEED, mutated(data, {"5MIN": [row, row]}), PRICE))
