"""CAISO: what its archives mean, and what is asked."""

import io
import zipfile
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.feeds.base import ParseResult, Query, Request
from signals.feeds.caiso import FEED, check
from signals.points import Kind, Quality
from tests.signals.feeds.hostile import FUZZ, read, sound
from tests.signals.feeds.mangled import mangled

PRICE = Kind.PRICE
T0 = datetime(2026, 3, 1, 8, tzinfo=UTC)
HOUR = timedelta(hours=1)
NODE = "TH_NP15_GEN-APND"
HEADER = (
    "INTERVALSTARTTIME_GMT,INTERVALENDTIME_GMT,OPR_DT,OPR_HR,OPR_INTERVAL,NODE_ID_XML,NODE_ID,NODE,MARKET_RUN_ID,LMP_TYPE,"
    "XML_DATA_ITEM,PNODE_RESMRID,GRP_TYPE,POS,MW,GROUP\n"
)
ERROR = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<m:OASISReport xmlns:m="http://www.caiso.com/soa/OASISReport_v1.xsd">'
    "<m:MessagePayload><m:RTO><m:name>CAISO</m:name><m:ERROR><m:ERR_CODE>{}</m:ERR_CODE><m:ERR_DESC>{}</m:ERR_DESC></m:ERROR>"
    "</m:RTO></m:MessagePayload></m:OASISReport>"
)
NOTHING = ERROR.format(1000, "No data returned for the specified selection")


def line(hour: int, value: Any, part: str = "LMP", node: str = NODE, market: str = "DAM", minutes: int = 60) -> str:
    start = T0 + hour * HOUR
    end = start + timedelta(minutes=minutes)
    times = f"{start:%Y-%m-%dT%H:%M:%S}-00:00,{end:%Y-%m-%dT%H:%M:%S}-00:00"
    return f"{times},2026-03-01,{hour + 1},0,{node},{node},{node},{market},{part},LMP_PRC,{node},ALL,1,{value},1\n"


def zipped(**members: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


TABLE = HEADER + line(1, 40.5) + line(0, "-3.25") + line(0, 7, "MCC") + line(0, 8, "MCE") + line(0, 9, "MCL") + line(2, 0)
SAMPLES: list[tuple[bytes, Kind, dict[str, Any]]] = [(zipped(a=TABLE), PRICE, {"node": NODE, "market": "DAM"})]


def error_of(result: ParseResult) -> tuple[str, str]:
    assert result.error is not None
    return result.error.kind, result.error.message


@pytest.mark.parametrize("payload", [zipped(a=TABLE), TABLE.encode()])
def test_only_the_whole_price_counts(payload: bytes) -> None:
    result = read(FEED, payload, PRICE)
    assert [((p.start - T0) / HOUR, p.value) for p in result.points] == [(0, -3.25), (1, 40.5), (2, 0.0)]
    assert {(p.unit, p.variant, p.quality, p.end - p.start) for p in result.points} == {("USD/MWh", "", Quality.MEASURED, HOUR)}
    assert (result.gaps, result.warnings, result.error) == ((), (), None)


@pytest.mark.parametrize(("market", "column", "minutes"), [("RTM", "VALUE", 5), ("RTPD", "PRC", 15), ("DAM", "LMP_PRC", 60)])
def test_the_value_has_another_column_in_each_market(market: str, column: str, minutes: int) -> None:
    table = HEADER.replace(",MW,", f",{column},") + line(0, 5, market=market, minutes=minutes)
    (point,) = read(FEED, zipped(a=table), PRICE).points
    assert (point.value, point.end - point.start) == (5.0, timedelta(minutes=minutes))


def test_nodes_and_markets_are_kept_apart() -> None:
    table = HEADER + line(0, 1) + line(0, 2, node="TH_SP15_GEN-APND")
    assert [(p.variant, p.value) for p in read(FEED, zipped(a=table), PRICE).points] == [
        (NODE, 1.0),
        ("TH_SP15_GEN-APND", 2.0),
    ]
    chosen = read(FEED, zipped(a=table), PRICE, options={"node": NODE})
    assert [(p.variant, p.value) for p in chosen.points] == [("", 1.0)] and "not asked for" in chosen.warnings[0]
    both = HEADER + line(0, 1) + line(0, 3, market="RUC")
    assert {(p.variant, p.value) for p in read(FEED, zipped(a=both), PRICE).points} == {("DAM", 1.0), ("RUC", 3.0)}
    assert [p.value for p in read(FEED, zipped(a=both), PRICE, options={"market": "DAM"}).points] == [1.0]


def test_several_files_of_an_archive() -> None:
    result = read(FEED, zipped(a=HEADER + line(0, 1), b=HEADER + line(3, 4), c=NOTHING), PRICE)
    assert [p.value for p in result.points] == [1.0, 4.0] and result.error is None
    assert [(g.start, g.end) for g in result.gaps] == [(T0 + HOUR, T0 + 3 * HOUR)]
    partly = read(FEED, zipped(a=HEADER + line(0, 1), b=ERROR.format(1015, "GroupZip is being assembled")), PRICE)
    assert len(partly.points) == 1 and error_of(partly)[0] == "invalid"


def test_blank_and_odd_values_are_missing() -> None:
    result = read(FEED, zipped(a=HEADER + line(0, "") + line(1, "n/a") + line(2, 3) + "short,row\n"), PRICE)
    assert [p.value for p in result.points] == [3.0] and len(result.gaps) == 2
    assert len(result.warnings) == 1 and "'n/a'" in result.warnings[0]


def test_a_row_without_an_interval_is_left_out() -> None:
    table = HEADER + line(0, 1, minutes=0) + line(0, 1, minutes=90) + line(1, 3)
    result = read(FEED, zipped(a=table), PRICE)
    assert [p.value for p in result.points] == [3.0] and len(result.warnings) == 2


@pytest.mark.parametrize(
    ("payload", "kind", "words"),
    [
        (zipped(x=NOTHING), "no_data", "No data returned"),
        (NOTHING.encode(), "no_data", "code 1000"),
        (zipped(x=ERROR.format(1001, "Invalid node")), "invalid", "Invalid node (code 1001)"),
        (zipped(x="<a/>"), "invalid", "ERROR"),
        (zipped(x="A,B\n1,2\n"), "invalid", "INTERVALSTARTTIME_GMT"),
        (zipped(x=HEADER), "no_data", "LMP"),
        (zipped(x=HEADER + line(0, 1, "MCC")), "invalid", "LMP"),
        (zipped(x=""), "no_data", "empty"),
        (zipped(x=TABLE)[:-40], "truncated", "damaged"),
        (b"<html><body>You exceed the Acceptable Use policy</body></html>", "access", "too often"),
        (b"<html><body>Maintenance</body></html>", "invalid", "HTML"),
        (b"", "no_data", "empty"),
    ],
)
def test_that_cannot_be_used_says_why(payload: bytes, kind: str, words: str) -> None:
    result = read(FEED, payload, PRICE)
    assert result.points == () and error_of(result)[0] == kind and words in error_of(result)[1]


def asked(start: float, end: float, **options: Any) -> tuple[Request, ...]:
    given = {"node": NODE} | dict(FEED.defaults) | options
    return FEED.requests(Query(PRICE, given, T0 + start * HOUR, T0 + end * HOUR, T0))


def test_what_is_asked() -> None:
    (request,) = asked(0, 24)
    assert request.url == "https://oasis.caiso.com/oasisapi/SingleZip"
    assert request.params == {
        "queryname": "PRC_LMP", "market_run_id": "DAM", "version": "12", "resultformat": "6", "node": NODE,
        "startdatetime": "20260301T08:00-0000", "enddatetime": "20260302T08:00-0000",
    }  # fmt: skip
    assert [r.params["queryname"] for r in asked(-24 * 8, 24, market="RTM")] == ["PRC_INTVL_LMP"] * 2
    assert asked(0, 24, market="RTM") == () and len(asked(-24 * 31, 0)) == 2
    assert asked(0, 1, base_url="http://127.0.0.1:9/")[0].url == "http://127.0.0.1:9/oasisapi/SingleZip"
    assert FEED.pace_s >= 5.0


def test_wrong_options_are_named() -> None:
    assert check({"node": NODE} | dict(FEED.defaults)) == []
    assert {p.key for p in check({})} == {"node"}
    wrong = {"node": "", "market": "HASP", "base_url": "x"}
    assert {p.key for p in check(wrong)} == set(wrong)


@FUZZ
@given(payload=st.binary(max_size=200), packed=st.booleans())
def test_any_payload(payload: bytes, packed: bool) -> None:
    sound(read(FEED, zipped(a=payload.decode("latin-1")) if packed else payload, PRICE))


@FUZZ
@given(data=st.data(), document=st.sampled_from([TABLE, NOTHING]))
def test_damaged_documents(data: st.DataObject, document: str) -> None:
    sound(read(FEED, mangled(data, document.encode()), PRICE))
