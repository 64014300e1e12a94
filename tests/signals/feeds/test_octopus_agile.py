"""Octopus Agile: VAT, payment methods, open rates, pages and the end of what is published."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.feeds.base import Query, Request
from signals.feeds.octopus_agile import FEED, check
from signals.points import Kind, Quality
from tests.signals.feeds.hostile import FUZZ, JSON, mutated, read, sound

PRICE = Kind.PRICE
T0 = datetime(2026, 3, 1, tzinfo=UTC)
HALF = timedelta(minutes=30)
EXC = {"vat": "exc_vat"}


def z(halves: float) -> str:
    return (T0 + halves * HALF).strftime("%Y-%m-%dT%H:%M:%SZ")


def rate(half: int, exc: Any, inc: Any = None, method: str | None = None, **changes: Any) -> dict[str, Any]:
    inc = exc * 1.05 if inc is None and isinstance(exc, int | float) else inc
    row = {"value_exc_vat": exc, "value_inc_vat": inc, "valid_from": z(half), "valid_to": z(half + 1)}
    return row | {"payment_method": method} | changes


def page(*rows: Any, **changes: Any) -> dict[str, Any]:
    return {"count": len(rows), "next": None, "previous": None, "results": list(rows)} | changes


def test_pence_newest_first_zero_and_negative() -> None:
    result = read(FEED, page(rate(2, -3.15), rate(1, 0), rate(0, 17.22)), PRICE, options=EXC)
    assert [(p.start, p.value) for p in result.points] == [(T0, 172.2), (T0 + HALF, 0.0), (T0 + 2 * HALF, -31.5)]
    assert {(p.unit, p.end - p.start, p.variant, p.quality) for p in result.points} == {
        ("GBP/MWh", HALF, "exc_vat", Quality.MEASURED)
    }
    assert (result.gaps, result.warnings, result.error) == ((), (), None)


def test_with_and_without_vat_are_two_series() -> None:
    result = read(FEED, page(rate(0, 20, 21)), PRICE)
    assert [(p.variant, p.value) for p in result.points] == [("exc_vat", 200.0), ("inc_vat", 210.0)]
    assert [p.value for p in read(FEED, page(rate(0, 20, 21)), PRICE, options={"vat": "inc_vat"}).points] == [210.0]


def test_payment_methods_with_one_rate_are_one() -> None:
    result = read(FEED, page(rate(0, 20, 21, "DIRECT_DEBIT"), rate(0, 20, 21, "NON_DIRECT_DEBIT")), PRICE)
    assert [(p.variant, p.value) for p in result.points] == [("exc_vat", 200.0), ("inc_vat", 210.0)]
    assert result.warnings == ()


def test_payment_methods_with_two_rates_stay_apart() -> None:
    body = page(rate(0, 20, 21, "NON_DIRECT_DEBIT"), rate(0, 18, 19, "DIRECT_DEBIT"), rate(1, 17, 18))
    result = read(FEED, body, PRICE, options=EXC)
    assert [(p.variant, p.value) for p in result.points] == [
        ("exc_vat", 170.0),
        ("exc_vat/DIRECT_DEBIT", 180.0),
        ("exc_vat/NON_DIRECT_DEBIT", 200.0),
    ]
    live = read(FEED, body, PRICE, options=FEED.defaults)
    assert [(p.variant, p.value) for p in live.points] == [("exc_vat", 180.0), ("exc_vat", 170.0)]


def test_the_published_end_at_23_utc_is_an_end_and_not_a_price_of_zero() -> None:
    rows = [rate(half, 10 + half) for half in range(46)]
    result = read(FEED, page(*reversed(rows)), PRICE, options=EXC, start=T0, end=T0 + timedelta(days=1))
    assert len(result.points) == 46 and result.error is None
    assert max(p.end for p in result.points) == T0 + timedelta(hours=23)
    assert result.gaps == ()


def test_holes_and_nulls_are_gaps() -> None:
    result = read(FEED, page(rate(3, 4), rate(1, None, None), rate(0, 1)), PRICE, options=EXC)
    assert [p.value for p in result.points] == [10.0, 40.0]
    assert [(g.start - T0, g.end - T0) for g in result.gaps] == [(HALF, 2 * HALF), (2 * HALF, 3 * HALF)]


def test_open_rates_hold_to_the_next_the_windows_last_day_or_a_day() -> None:
    body = page(rate(4, 30, valid_to=None), rate(0, 20, valid_to=None))
    result = read(FEED, body, PRICE, options=EXC)
    assert (result.points[0].start, result.points[0].end) == (T0, T0 + 4 * HALF)
    assert [(p.start, p.end) for p in result.points[1:]] == [(T0 + n * HALF, T0 + (n + 1) * HALF) for n in range(4, 52)]
    assert len(result.warnings) == 1 and "open" in result.warnings[0]
    window = read(FEED, body, PRICE, options=EXC, start=T0, end=T0 + 10 * HALF)
    assert window.points[-1].end == T0 + 10 * HALF, "nothing beyond what was asked"


def test_an_open_rate_is_the_same_half_hours_from_poll_to_poll_and_when_it_ends() -> None:
    years, days = 365 * 48, 48
    fixed = page(rate(-years, 25, valid_to=None))
    polls = []
    for halves in (0, 1.7, 3.1, 60):
        now = T0 + halves * HALF
        result = read(FEED, fixed, PRICE, now=now, options=EXC, start=now - 2 * days * HALF, end=now + 9 * days * HALF)
        spans = {(p.start, p.end) for p in result.points}
        assert {end - start for start, end in spans} == {HALF}
        assert max(end for _, end in spans) <= now + 2 * days * HALF, "nobody knows that it holds for longer"
        polls.append(spans)
    assert len(polls[1] - polls[0]) == 1 and len(polls[2] - polls[1]) == 2
    ended = page(rate(-years, 25, valid_to=z(10 * days)))
    known = read(FEED, ended, PRICE, options=EXC, start=T0 - 2 * days * HALF, end=T0 + 9 * days * HALF)
    assert polls[0] <= {(p.start, p.end) for p in known.points}
    assert known.points[-1].end == T0 + 9 * days * HALF and known.warnings == ()
    later = read(FEED, fixed, PRICE, options=EXC, start=T0 + 20 * days * HALF, end=T0 + 21 * days * HALF)
    assert later.points == () and later.error is not None and later.error.kind == "no_data"


def test_same_half_hour_with_two_rates_is_one_suspect() -> None:
    result = read(FEED, page(rate(0, 20), rate(0, 22), rate(1, 5), rate(1, 5)), PRICE, options=EXC)
    assert [(p.value, p.quality) for p in result.points] == [(220.0, Quality.SUSPECT), (50.0, Quality.MEASURED)]
    assert len(result.warnings) == 1


def test_fewer_rates_than_counted_are_truncated() -> None:
    for changes in ({"count": 3}, {"next": "https://api.octopus.energy/v1/x/?page=2"}):
        result = read(FEED, page(rate(0, 20), **changes), PRICE, options=EXC)
        assert len(result.points) == 1 and result.error is not None and result.error.kind == "truncated"


def test_pages_are_followed_and_joined() -> None:
    assert FEED.paging is not None
    first_request = Request("https://api.octopus.energy/v1/x/", {"page_size": "1"}, {"Accept": "application/json"})
    link = "https://api.octopus.energy/v1/x/?page=2&page_size=1"
    first = json.dumps(page(rate(1, 20), count=2, next=link)).encode()
    second = json.dumps(page(rate(0, 10), count=2)).encode()
    following = FEED.paging.following(first, first_request)
    assert following == Request(link, {}, {"Accept": "application/json"})
    assert FEED.paging.following(second, first_request) is None
    assert FEED.paging.following(b"<html>", first_request) is None
    assert FEED.paging.following(b'{"next": "file:/etc/passwd"}', first_request) is None
    whole = read(FEED, FEED.paging.join([first, second]), PRICE, options=EXC)
    assert [p.value for p in whole.points] == [100.0, 200.0] and whole.error is None
    cut = read(FEED, FEED.paging.join([first, b"<html>"]), PRICE, options=EXC)
    assert len(cut.points) == 1 and cut.error is not None and cut.error.kind == "truncated"
    assert FEED.paging.join([b"<html>", second]) == b"<html>" and FEED.paging.join([]) == b""


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("", "no_data", "empty"),
        (page(), "no_data", "published"),
        ({"detail": "Not found."}, "no_data", "Not found"),
        ({"detail": "Invalid period_from"}, "invalid", "period_from"),
        ({"results": 5}, "invalid", "not a list"),
        (page({"consumption": 0.5, "interval_start": z(0)}), "invalid", "unit rates"),
        (page(rate(0, "x", "y")), "no_data", "window"),
        (page(rate(0, 1, valid_from="soon")), "no_data", "window"),
        (page(rate(0, 1, valid_to=z(-1))), "no_data", "window"),
    ],
)
def test_that_cannot_be_used_says_why(body: Any, kind: str, words: str) -> None:
    result = read(FEED, body, PRICE)
    assert result.points == () and result.error is not None
    assert result.error.kind == kind and words in result.error.message


def test_what_is_asked() -> None:
    options = {"product": "AGILE-24-10-01", "gsp": "C"}
    (request,) = FEED.requests(Query(PRICE, options, T0, T0 + timedelta(days=2), T0))
    tariff = "/v1/products/AGILE-24-10-01/electricity-tariffs/E-1R-AGILE-24-10-01-C/standard-unit-rates/"
    assert request.url == f"https://api.octopus.energy{tariff}"
    assert request.params == {
        "period_from": "2026-03-01T00:00:00Z",
        "period_to": "2026-03-03T00:00:00Z",
        "page_size": "1500",
    }


def test_wrong_options_are_named() -> None:
    good = {"product": "AGILE-24-10-01", "gsp": "C"}
    assert check(good | dict(FEED.defaults)) == []
    assert {p.key for p in check({})} == {"product", "gsp"}
    wrong = {"product": "../x", "gsp": "I", "vat": "with", "payment_method": "CASH", "base_url": "x"}
    assert {p.key for p in check(wrong)} == set(wrong)


@FUZZ
@given(payload=st.binary(max_size=200) | JSON)
def test_any_payload(payload: Any) -> None:
    sound(read(FEED, payload, PRICE))


@FUZZ
@given(data=st.data(), options=st.sampled_from([{}, EXC, dict(FEED.defaults)]))
def test_damaged_documents(data: st.DataObject, options: dict[str, str]) -> None:
    good = page(rate(1, 20, 21, "DIRECT_DEBIT"), rate(1, 22, 23, "NON_DIRECT_DEBIT"), rate(0, 1, valid_to=None))
    sound(read(FEED, mutated(data, good), PRICE, options=options))
