"""What parsers share: XML, ZIP, CSV, decimals and local times, from honest and from hostile payloads."""

import io
import zipfile
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree as ET
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.feeds import documents
from signals.feeds.base import FeedError
from signals.feeds.documents import csv_rows, day_starts, decimal, local_to_utc, text_at, unzipped, xml_root
from tests.signals.feeds.hostile import FUZZ

BERLIN, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")
QUARTER, HOUR = timedelta(minutes=15), timedelta(hours=1)


def zipped(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def kind_of(error: pytest.ExceptionInfo[FeedError]) -> str:
    return error.value.kind


# --- XML ------------------------------------------------------------------------------------------------------------


def test_namespaces_are_stripped_and_text_is_found() -> None:
    root = xml_root(b'<?xml version="1.0"?>\n<a:Root xmlns:a="urn:x"><a:B.c> 7 </a:B.c><D/><E><F>x</F></E></a:Root>\n')
    assert root.tag == "Root"
    assert [text_at(root, path) for path in ("B.c", "D", "E/F", "G")] == ["7", None, "x", None]


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"<a>" * (16 * 2**20 // 3), "64 levels"),
        (b"<r>" + b"<a/>" * (16 * 2**20 // 4), "300,000 elements"),
        (b"<r>" + b"<a></a>" * (16 * 2**20 // 7), "300,000 elements"),
        (b"<r>" + b"".join(b"<t%d/>" % n for n in range(400_000)), "1000 names"),
    ],
    ids=["deep", "wide", "wide with ends", "names"],
)
def test_xml_beyond_any_document_of_a_source_is_refused_before_it_costs_much(
    payload: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []

    class Counting(ET.TreeBuilder):
        def start(self, tag: str, attributes: dict[str, str], /) -> ET.Element:
            built.append(1)
            return super().start(tag, attributes)

    monkeypatch.setattr(documents.ET, "TreeBuilder", Counting)
    with pytest.raises(FeedError, match=said) as error:
        xml_root(payload)
    assert kind_of(error) == "invalid"
    most = {"64 levels": documents.MAX_XML_DEPTH, "1000 names": documents._MAX_XML_NAMES}
    assert 0 < len(built) <= most.get(said, documents.MAX_XML_ELEMENTS)  # the rest of the payload was not looked at


def test_xml_as_deep_as_is_allowed_is_read() -> None:
    deepest = documents.MAX_XML_DEPTH
    assert len(list(xml_root(b"<a>" * deepest + b"</a>" * deepest).iter())) == deepest


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (b"", "no_data"),
        (b"  \n ", "no_data"),
        (b"<!doctype html><html></html>", "invalid"),
        (b"<html><body>Bad gateway</body></html>", "invalid"),
        (b"<a><b>1</b><b>", "truncated"),
        (b"<a>\n<b>1</b>\n<b", "truncated"),
        (b"<a><b></a></b>", "invalid"),
        (b"no xml at all", "invalid"),
        (b"\x00\x01\x02", "invalid"),
        (b'<?xml version="1.0" encoding="no-such"?><a/>', "invalid"),
    ],
)
def test_xml_that_cannot_be_read_says_why(payload: bytes, kind: str) -> None:
    with pytest.raises(FeedError) as error:
        xml_root(payload)
    assert kind_of(error) == kind


@pytest.mark.parametrize(
    "declaration",
    [
        b'<!DOCTYPE a [<!ENTITY x "y"><!ENTITY z "&x;&x;&x;">]>',
        b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>',
        b'<!DOCTYPE a SYSTEM "http://192.0.2.1/a.dtd">',
    ],
)
def test_a_document_type_is_refused(declaration: bytes) -> None:
    with pytest.raises(FeedError, match="document type") as error:
        xml_root(b'<?xml version="1.0"?>' + declaration + b"<a>&z;&x;</a>")
    assert kind_of(error) == "invalid"


@FUZZ
@given(payload=st.binary(max_size=200))
def test_any_bytes(payload: bytes) -> None:
    for reader in (xml_root, unzipped):
        try:
            reader(payload)
        except FeedError as error:
            assert error.message


# --- ZIP ------------------------------------------------------------------------------------------------------------


def test_members_of_an_archive() -> None:
    assert unzipped(zipped(a=b"1", b=b"22")) == {"a": b"1", "b": b"22"}


def test_archives_that_cannot_be_read_say_why() -> None:
    good = zipped(a=b"x" * 1000)
    for payload, kind in ((good[:-30], "truncated"), (b"PK", "truncated"), (b"a,b\n", "invalid"), (b"", "no_data")):
        with pytest.raises(FeedError) as error:
            unzipped(payload)
        assert kind_of(error) == kind
    with pytest.raises(FeedError, match="empty"):
        unzipped(zipped())


def test_a_damaged_member_is_noticed() -> None:
    damaged = bytearray(zipped(a=bytes(range(256)) * 8))
    damaged[60:64] = b"\xff\xff\xff\xff"
    with pytest.raises(FeedError):
        unzipped(bytes(damaged))


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_UNPACKED_BYTES", 2**20)
    assert len(unzipped(zipped(a=bytes(2**20)))["a"]) == 2**20
    for members in ({"a": bytes(2**20 + 1)}, {"a": bytes(2**19), "b": bytes(2**19 + 1)}):
        with pytest.raises(FeedError, match="refused"):
            unzipped(zipped(**members))


# --- CSV and numbers ------------------------------------------------------------------------------------------------


def test_rows_of_csv() -> None:
    assert csv_rows('a,"b, c"\r\n\r\n,\r\n1,2\n') == [["a", "b, c"], ["1", "2"]]
    with pytest.raises(FeedError) as error:
        csv_rows("x" * 200_000)
    assert kind_of(error) == "invalid"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12.5", 12.5), (" -0.01 ", -0.01), ("0", 0.0), ("1e3", 1000.0), (".5", 0.5), ("5.", 5.0),
        (None, None), ("", None), ("NaN", None), ("inf", None), ("1,5", None), ("1_000", None), ("0x10", None), ("1e999", None),
        ("٣", None), ("--1", None),
    ],
)  # fmt: skip
def test_decimals(text: str | None, value: float | None) -> None:
    assert decimal(text) == value


# --- local times ----------------------------------------------------------------------------------------------------


def local(*labels: str) -> list[datetime]:
    return [datetime.fromisoformat(label) for label in labels]


def test_the_repeated_hour_is_two_hours() -> None:
    labels = local("2018-11-04T00:00", "2018-11-04T01:00", "2018-11-04T01:00", "2018-11-04T02:00")
    assert [t.hour for t in local_to_utc(labels, NEW_YORK) if t] == [4, 5, 6, 7]


def test_the_repeated_hour_in_quarters() -> None:
    labels = [datetime.fromisoformat(f"2024-10-27T02:{m:02d}") for _ in range(2) for m in (0, 15, 30, 45)]
    found = [t for t in local_to_utc(labels, BERLIN) if t]
    assert found == [datetime(2024, 10, 27, 0, tzinfo=UTC) + i * QUARTER for i in range(8)]


def test_the_hour_left_out_never_was() -> None:
    labels = local("2026-03-29T01:00", "2026-03-29T02:00", "2026-03-29T03:00")
    assert local_to_utc(labels, BERLIN) == [datetime(2026, 3, 29, 0, tzinfo=UTC), None, datetime(2026, 3, 29, 1, tzinfo=UTC)]


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-03-30", 24), ("2025-10-26", 25)])
def test_days_are_as_long_as_they_are(day: str, hours: int) -> None:
    starts = day_starts(datetime.fromisoformat(day), BERLIN, QUARTER)
    assert len(starts) == 4 * hours and len(set(starts)) == len(starts)
    assert starts[0].astimezone(BERLIN).replace(tzinfo=None) == datetime.fromisoformat(day)
    assert len(day_starts(datetime.fromisoformat(day), BERLIN, HOUR)) == hours
