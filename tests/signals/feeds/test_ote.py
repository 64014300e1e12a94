"""OTE: what its answers mean, and what is asked."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.feeds.base import ParseResult, Query, Request
from signals.feeds.ote import FEED, check
from signals.points import Kind, Quality
from tests.helpers import data_dir
from tests.signals.feeds.hostile import FUZZ, read, sound
from tests.signals.feeds.mangled import mangled

PRICE = Kind.PRICE
HOUR, QUARTER = timedelta(hours=1), timedelta(minutes=15)
RECORDED = "feeds/ote/dam_2025-10-22.xml"


def item(day: str, index: Any, price: Any, resolution: str = "PT15M", hourly: Any = None, label: str = "") -> str:
    fields = {"Date": day, "PeriodResolution": resolution, "PeriodIndex": index, "PeriodInterval": label, "Price": price}
    fields["HourlyPrice"] = hourly
    inner = "".join(f"<{name}>{value}</{name}>" for name, value in fields.items() if value not in (None, ""))
    return f"<Item>{inner}</Item>\n"


def answer(*items: str) -> str:
    return (
        '<?xml version="1.0" ?>\n<S:Envelope xmlns:S="http://schemas.xmlsoap.org/soap/envelope/"><S:Body>'
        '<GetDamPricePeriodEResponse xmlns="http://www.ote-cr.cz/schema/service/public"><Result>\n'
        f"{''.join(items)}</Result></GetDamPricePeriodEResponse></S:Body></S:Envelope>"
    )


def day_of(day: str, count: int, resolution: str = "PT15M") -> str:
    """A day of ``count`` periods, each priced by its number."""
    return answer(*(item(day, n, n, resolution, (n - 1) // 4 + 0.5) for n in range(1, count + 1)))


GOOD = answer(item("2026-03-02", 1, 86.15, hourly=70, label="00:00-00:15"), item("2026-03-02", 2, -1, hourly=70))
SAMPLES: list[tuple[bytes, Kind, dict[str, Any]]] = [(GOOD.encode(), PRICE, {}), (GOOD.encode(), PRICE, {"series": "hourly"})]


def error_of(result: ParseResult) -> tuple[str, str]:
    assert result.error is not None
    return result.error.kind, result.error.message


def test_recorded_three_days_of_quarters() -> None:
    result = read(FEED, (data_dir() / RECORDED).read_bytes(), PRICE)
    values = [p.value for p in result.points]
    assert (len(values), min(values), max(values)) == (288, 32.79, 345.58)
    assert [round(sum(values[i : i + 96]) / 96, 4) for i in (0, 96, 192)] == [86.9003, 129.4631, 96.0412]
    assert result.points[0].start == datetime(2025, 10, 20, 22, tzinfo=UTC)
    assert result.points[-1].start == datetime(2025, 10, 23, 21, 45, tzinfo=UTC)
    assert all(a.end == b.start for a, b in pairwise(result.points))
    assert {(p.unit, p.variant, p.end - p.start, p.quality) for p in result.points} == {
        ("EUR/MWh", "", QUARTER, Quality.MEASURED)
    }
    assert (result.gaps, result.warnings, result.error) == ((), (), None)


def test_recorded_hourly_prices_are_another_series() -> None:
    result = read(FEED, (data_dir() / RECORDED).read_bytes(), PRICE, options={"series": "hourly"})
    assert [p.value for p in result.points[:2]] == [70.02, 56.22] and result.points[-1].value == 70.74
    assert len(result.points) == 72 and {(p.variant, p.end - p.start) for p in result.points} == {("hourly", HOUR)}
    assert result.gaps == () and result.warnings == ()


@pytest.mark.parametrize(
    ("day", "count", "first"),
    [("2026-03-29", 92, "2026-03-28T23:00"), ("2025-10-26", 100, "2025-10-25T22:00"), ("2026-01-05", 96, "2026-01-04T23:00")],
)
def test_days_have_92_96_or_100_quarters(day: str, count: int, first: str) -> None:
    result = read(FEED, day_of(day, count), PRICE)
    assert [p.value for p in result.points] == list(range(1, count + 1))
    start = datetime.fromisoformat(first).replace(tzinfo=UTC)
    assert [p.start for p in result.points] == [start + i * QUARTER for i in range(count)]
    assert result.gaps == () and result.warnings == ()
    hourly = read(FEED, day_of(day, count), PRICE, options={"series": "hourly"})
    assert [p.value for p in hourly.points] == [n + 0.5 for n in range(count // 4)]


@pytest.mark.parametrize(("day", "count"), [("2023-03-26", 23), ("2023-10-29", 25), ("2023-10-30", 24)])
def test_older_days_have_hours(day: str, count: int) -> None:
    document = answer(*(item(day, n, n, "PT60M") for n in range(1, count + 1)))
    for options in ({}, {"series": "hourly"}):
        result = read(FEED, document, PRICE, options=options)
        assert [p.value for p in result.points] == list(range(1, count + 1))
        assert all(a.end == b.start for a, b in pairwise(result.points)) and result.gaps == ()


@pytest.mark.parametrize(("day", "count"), [("2026-03-29", 93), ("2025-10-26", 101), ("2026-01-05", 97)])
def test_a_period_that_the_day_does_not_have_is_left_out(day: str, count: int) -> None:
    result = read(FEED, day_of(day, count), PRICE)
    assert len(result.points) == count - 1 and f"PeriodIndex '{count}'" in result.warnings[0]


def test_labels_of_a_clock_change_are_only_for_people() -> None:
    odd = {5: "01:00-01:15", 8: "01:45-03:00", 9: "03:00-03:15"}
    result = read(FEED, answer(*(item("2026-03-29", n, n, label=label) for n, label in odd.items())), PRICE)
    assert [p.start.strftime("%H:%M") for p in result.points] == ["00:00", "00:45", "01:00"] and result.warnings == ()
    wrong = read(FEED, answer(item("2026-03-02", 2, 1, label="00:00-00:15")), PRICE)
    assert len(wrong.points) == 1 and "begins at 00:15, its label says 00:00" in wrong.warnings[0]


def test_missing_periods_and_prices_are_gaps() -> None:
    items = [item("2026-03-02", n, None if n == 5 else 0 if n == 6 else n) for n in range(1, 95)]
    result = read(FEED, answer(*items), PRICE)
    midnight = datetime(2026, 3, 1, 23, tzinfo=UTC)
    assert [(g.start - midnight) / QUARTER for g in result.gaps] == [4, 94, 95]
    assert [p.value for p in result.points if p.start == midnight + 5 * QUARTER] == [0.0]


def test_the_same_period_twice() -> None:
    result = read(FEED, answer(item("2026-03-02", 1, 5), item("2026-03-02", 1, 6), item("2026-03-02", 2, 7)), PRICE)
    assert [(p.value, p.quality) for p in result.points] == [(6, Quality.SUSPECT), (7, Quality.MEASURED)]
    differing = answer(item("2026-03-02", 1, 5, hourly=1), item("2026-03-02", 2, 6, hourly=2))
    assert [(p.value, p.quality) for p in read(FEED, differing, PRICE, options={"series": "hourly"}).points] == [
        (2, Quality.SUSPECT)
    ]


@pytest.mark.parametrize(
    "bad", [item("soon", 1, 9), item("2026-03-02", "x", 9), item("2026-03-02", 0, 9), item("2026-03-02", 1, 9, "P1D")]
)
def test_items_that_are_nowhere_are_left_out(bad: str) -> None:
    result = read(FEED, answer(bad, item("2026-03-03", 1, 1)), PRICE)
    assert [p.value for p in result.points] == [1] and "left out" in result.warnings[0]


FAULT = '<E:Envelope xmlns:E="urn:e"><E:Body><E:Fault><faultstring>{}</faultstring></E:Fault></E:Body></E:Envelope>'


@pytest.mark.parametrize(
    ("document", "kind", "words"),
    [
        ("", "no_data", "empty"),
        ("<html></html>", "invalid", "HTML"),
        (answer(), "no_data", "no prices"),
        (answer(item("2026-03-02", 1, None)), "no_data", "no price"),
        (answer(item("2026-03-02", 1, "12,5")), "no_data", "no price"),
        (GOOD[:-80], "truncated", "middle"),
        (FAULT.format("StartDate is not a date"), "invalid", "StartDate"),
        (FAULT.format("Access denied"), "access", "denied"),
        ("<Other/>", "invalid", "Other"),
        ('<E:Envelope xmlns:E="urn:e"><E:Body><GetImPriceGResponse/></E:Body></E:Envelope>', "invalid", "GetDamPricePeriodE"),
    ],
)
def test_that_cannot_be_used_says_why(document: str, kind: str, words: str) -> None:
    result = read(FEED, document, PRICE)
    assert result.points == () and error_of(result)[0] == kind and words in error_of(result)[1]


def asked(start: str, end: str, **options: Any) -> tuple[Request, ...]:
    first, last = (datetime.fromisoformat(t).replace(tzinfo=UTC) for t in (start, end))
    return FEED.requests(Query(PRICE, options, first, last, first))


def test_local_days_are_asked() -> None:
    (request,) = asked("2026-03-01T22:30", "2026-03-02T23:00")
    assert request.url == "https://www.ote-cr.cz/services/PublicDataService"
    assert request.headers["SOAPAction"] == '"http://www.ote-cr.cz/schema/service/public/GetDamPricePeriodE"'
    assert request.body is not None and b"StartDate>2026-03-01<" in request.body and b"EndDate>2026-03-02<" in request.body
    assert b"PeriodResolution>PT15M<" in request.body
    months = asked("2026-01-01T00:00", "2026-03-01T00:00", base_url="http://127.0.0.1:9")
    assert len(months) == 2 and months[1].url.startswith("http://127.0.0.1:9/")
    assert months[1].body is not None and b"StartDate>2026-02-01<" in months[1].body


def test_wrong_options_are_named() -> None:
    assert check({}) == [] == check(dict(FEED.defaults))
    assert {p.key for p in check({"series": "daily", "base_url": 1})} == {"series", "base_url"}


@FUZZ
@given(payload=st.binary(max_size=200))
def test_any_payload(payload: bytes) -> None:
    sound(read(FEED, payload, PRICE))


@FUZZ
@given(data=st.data(), options=st.sampled_from([{}, {"series": "hourly"}]))
def test_damaged_documents(data: st.DataObject, options: dict[str, str]) -> None:
    sound(read(FEED, mangled(data, GOOD.encode()), PRICE, options=options))
