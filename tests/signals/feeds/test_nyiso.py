"""NYISO: what its files mean, and what is asked."""

import io
import zipfile
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.feeds.base import ParseResult, Query
from signals.feeds.nyiso import FEED, check
from signals.points import Kind, Quality
from tests.signals.feeds.hostile import FUZZ, read, sound
from tests.signals.feeds.mangled import mangled

PRICE = Kind.PRICE
HOUR = timedelta(hours=1)
T0 = datetime(2026, 3, 1, 5, tzinfo=UTC)  # midnight in New York
HEADER = '"Time Stamp","Name","PTID","LBMP ($/MWHr)","Marginal Cost Losses ($/MWHr)","Marginal Cost Congestion ($/MWHr)"\n'


def line(label: str, zone: str, price: Any) -> str:
    return f'"{label}","{zone}",61761,{price},1.5,-0.5\n'


def day(date: str, hours: list[int], *zones: str) -> str:
    """A file of a day: each hour lists all zones, priced by the line's number."""
    lines = [(f"{date} {hour:02d}:00", zone) for hour in hours for zone in zones]
    return HEADER + "".join(line(label, zone, n) for n, (label, zone) in enumerate(lines))


def zipped(**members: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


GOOD = day("03/01/2026", [0, 1, 2], "N.Y.C.", "WEST")
SAMPLES: list[tuple[bytes, Kind, dict[str, Any]]] = [(GOOD.encode(), PRICE, {}), (GOOD.encode(), PRICE, {"zone": "WEST"})]


def error_of(result: ParseResult) -> tuple[str, str]:
    assert result.error is not None
    return result.error.kind, result.error.message


def test_labels_are_local_starts_and_zones_are_kept_apart() -> None:
    result = read(FEED, GOOD, PRICE)
    assert [(p.variant, (p.start - T0) / HOUR, p.value) for p in result.points] == [
        ("N.Y.C.", 0, 0), ("N.Y.C.", 1, 2), ("N.Y.C.", 2, 4), ("WEST", 0, 1), ("WEST", 1, 3), ("WEST", 2, 5),
    ]  # fmt: skip
    assert {(p.unit, p.end - p.start, p.quality) for p in result.points} == {("USD/MWh", HOUR, Quality.MEASURED)}
    chosen = read(FEED, GOOD, PRICE, options={"zone": "west"})
    assert [(p.variant, p.value) for p in chosen.points] == [("", 1.0), ("", 3.0), ("", 5.0)]


@pytest.mark.parametrize(
    ("date", "hours", "first"),
    [
        ("11/04/2018", [0, 1, 1, *range(2, 24)], datetime(2018, 11, 4, 4, tzinfo=UTC)),
        ("03/08/2026", [0, 1, *range(3, 24)], datetime(2026, 3, 8, 5, tzinfo=UTC)),
    ],
)
def test_days_of_a_clock_change(date: str, hours: list[int], first: datetime) -> None:
    result = read(FEED, day(date, hours, "N.Y.C.", "WEST"), PRICE, options={"zone": "WEST"})
    assert len(result.points) == len(hours) and result.points[0].start == first
    assert all(a.end == b.start and a.value < b.value for a, b in pairwise(result.points))
    assert result.gaps == () and result.warnings == ()


def test_an_hour_that_never_was_is_left_out() -> None:
    result = read(FEED, day("03/08/2026", [1, 2, 3], "WEST"), PRICE)
    assert [p.start.hour for p in result.points] == [6, 7] and "clocks went forward" in result.warnings[0]


def test_holes_and_blanks_are_gaps_and_zero_and_negative_are_values() -> None:
    labels = {"00": "0.00", "01": "", "03": "-4.5", "04": "n/a", "05": 1}
    table = HEADER + "".join(line(f"03/01/2026 {hour}:00", "WEST", value) for hour, value in labels.items())
    result = read(FEED, table, PRICE)
    assert [((p.start - T0) / HOUR, p.value) for p in result.points] == [(0, 0), (3, -4.5), (5, 1)]
    assert [(g.start - T0) / HOUR for g in result.gaps] == [1, 2, 4] and "'n/a'" in result.warnings[0]


def test_the_archive_of_a_month() -> None:
    later = day("03/02/2026", [0, 1], "WEST")
    result = read(FEED, zipped(b=later, a=day("03/01/2026", list(range(24)), "WEST")), PRICE)
    assert len(result.points) == 26 and result.gaps == ()
    partly = read(FEED, zipped(a=GOOD, b="garbage\n"), PRICE, options={"zone": "WEST"})
    assert len(partly.points) == 3 and error_of(partly)[0] == "invalid"


def test_a_label_that_is_none_is_left_out() -> None:
    bad = ["03/01/2026 24:00", "13/01/2026 00:00", "2026-03-01 00:00", "03/01/2026 00:30", "03/01/0026 00:00"]
    table = HEADER + "".join(line(label, "WEST", 9) for label in bad) + line("03/01/2026 00:00", "WEST", 1)
    result = read(FEED, table, PRICE)
    assert [p.value for p in result.points] == [1.0] and len(result.warnings) == len(bad)


@pytest.mark.parametrize(
    ("payload", "kind", "words"),
    [
        ("", "no_data", "empty"),
        ("<html>", "invalid", "HTML"),
        (HEADER, "no_data", "no rows"),
        ("a,b\n1,2\n", "invalid", "Time Stamp"),
        (HEADER + line("03/01/2026 00:05:00", "WEST", 1), "invalid", "real-time"),
        (HEADER + line("03/01/2026 00:00", "WEST", ""), "no_data", "no price"),
        (zipped(a=GOOD)[:-30], "truncated", "damaged"),
    ],
)
def test_that_cannot_be_used_says_why(payload: Any, kind: str, words: str) -> None:
    result = read(FEED, payload, PRICE)
    assert result.points == () and error_of(result)[0] == kind and words in error_of(result)[1]


def test_a_zone_that_the_file_does_not_have() -> None:
    assert error_of(read(FEED, GOOD, PRICE, options={"zone": "LONGIL"})) == ("no_data", "zone: the file has no LONGIL")


def asked(start: datetime, end: datetime, now: datetime, **options: Any) -> list[str]:
    return [r.url for r in FEED.requests(Query(PRICE, {"zone": "WEST"} | options, start, end, now))]


def test_days_of_late_and_months_before_are_asked() -> None:
    base = "http://mis.nyiso.com/public/csv/damlbmp/"
    later = T0 + 10 * HOUR
    assert asked(T0, T0 + 25 * HOUR, later) == [f"{base}20260301damlbmp_zone.csv", f"{base}20260302damlbmp_zone.csv"]
    assert asked(T0, T0 + 99 * HOUR, later)[2:] == [], "the day after tomorrow is not published"
    assert asked(T0, T0 + 99 * HOUR, T0) == [f"{base}20260301damlbmp_zone.csv"], "nor tomorrow, by night"
    assert asked(T0 + 72 * HOUR, T0 + 99 * HOUR, T0) == []
    old = asked(T0 - 40 * 24 * HOUR, T0 - 6 * 24 * HOUR, T0)
    assert old == [
        f"{base}20260101damlbmp_zone_csv.zip",
        f"{base}20260201damlbmp_zone_csv.zip",
        f"{base}20260221damlbmp_zone.csv",
        f"{base}20260222damlbmp_zone.csv",
    ]
    assert asked(T0, T0 + HOUR, T0, base_url="http://127.0.0.1:9/")[0].startswith("http://127.0.0.1:9/public/")


def test_wrong_options_are_named() -> None:
    assert check({"zone": "N.Y.C."}) == [] == check({"zone": "hud vl"})
    assert {p.key for p in check({})} == {"zone"}
    assert {p.key for p in check({"zone": "NYC", "base_url": "x"})} == {"zone", "base_url"}


@FUZZ
@given(payload=st.binary(max_size=200), packed=st.booleans())
def test_any_payload(payload: bytes, packed: bool) -> None:
    sound(read(FEED, zipped(a=payload.decode("latin-1")) if packed else payload, PRICE))


@FUZZ
@given(data=st.data())
def test_damaged_documents(data: st.DataObject) -> None:
    sound(read(FEED, mangled(data, GOOD.encode()), PRICE))


def test_a_file_cut_inside_a_number_gives_no_such_number() -> None:
    whole = day("03/01/2026", [0, 1, 2], "N.Y.C.").replace(",2,1.5", ",155.51,1.5")
    for cut in (whole[: whole.rindex("5.51")], whole[: whole.rindex(",1.5")]):
        result = read(FEED, cut.encode(), PRICE)
        assert result.error is not None and result.error.kind == "truncated"
        assert [p.value for p in result.points] == [0.0, 1.0]
