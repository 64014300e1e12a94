"""What readers share: rows to points, refusals, ranges; and what holds for each feed that uses it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.feeds import aemo, electricitymaps, http_feed, octopus_agile, openelectricity, watttime
from signals.feeds.base import Context, Feed, FeedError
from signals.feeds.reading import Row, objects, ranges, refusal, result, said, series, value_of
from signals.points import Kind, Quality
from tests.signals.feeds.hostile import FUZZ, JSON, LEAVES, read, sound

T0 = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def context(start: datetime | None = None, end: datetime | None = None) -> Context:
    return Context("r", Kind.PRICE, {}, T0, start, end)


def row(hour: float, value: float | None, quality: Quality = Quality.MEASURED, length: float | None = None) -> Row:
    start = T0 + hour * HOUR
    return Row(start, None if length is None else start + length * HOUR, value, quality)


def test_what_holds_for_longer_than_a_day_is_days_the_same_ones_for_every_window() -> None:
    year = [row(-24 * 200 + 7, 5.0, length=24 * 365), row(24 * 30, 6.0, length=24)]
    warnings: list[str] = []
    points, gaps = series(context(T0 + HOUR, T0 + 30 * HOUR), "s", "EUR/MWh", year, warnings)
    assert [(p.start, p.end) for p in points] == [(T0, T0 + 24 * HOUR), (T0 + 24 * HOUR, T0 + 48 * HOUR)]
    later, _ = series(context(T0 + 9 * HOUR, T0 + 60 * HOUR), "s", "EUR/MWh", year, warnings)
    assert later[:2] == points and len(later) == 3 and gaps == [] == warnings
    short = [row(-30, 1.0, length=24 * 20), row(-20, 2.0, length=24 * 20)]
    twice, _ = series(context(), "s", "EUR/MWh", short, warnings)
    assert len({(p.start, p.end) for p in twice}) == len(twice), "overlapping ones say no day twice"
    first = min(twice, key=lambda p: p.start)
    assert (first.start, first.end) == (T0 - 30 * HOUR, T0 - 24 * HOUR), "the first and the last day are as long as they are"
    assert warnings, "which of the two holds is not known"


def test_a_value_for_a_century_is_not_told_to_its_end() -> None:
    warnings: list[str] = []
    points, _ = series(context(), "s", "EUR/MWh", [row(0, 5.0, length=24 * 36_500)], warnings)
    assert len(points) == 366 and "told until" in warnings[0]
    wanted, _ = series(context(end=T0 + 48 * HOUR), "s", "EUR/MWh", [row(-24 * 9000, 5.0, length=24 * 36_500)], warnings)
    assert len(wanted) == 366


def test_a_value_beats_a_null_and_a_doubt_stays() -> None:
    warnings: list[str] = []
    rows = [row(0, 1), row(0, None), row(1, None), row(1, 2), row(2, 3), row(2, 4), row(2, 4)]
    points, gaps = series(context(), "s", "EUR/MWh", rows, warnings)
    assert [(p.value, p.quality) for p in points] == [
        (1.0, Quality.MEASURED),
        (2.0, Quality.MEASURED),
        (4.0, Quality.SUSPECT),
    ]
    assert gaps == [] and len(warnings) == 1


def test_rows_that_end_before_they_begin_are_named() -> None:
    warnings: list[str] = []
    points, _ = series(context(), "s", "EUR/MWh", [row(0, 1, length=-1), row(1, 2, length=1)], warnings)
    assert [p.value for p in points] == [2.0] and "2026-03-01T00:00:00Z" in warnings[0]


def test_an_entry_may_name_its_points() -> None:
    named = Context("r", Kind.PRICE, {"source": "utility"}, T0)
    points, _ = series(named, "s", "EUR/MWh", [row(0, 1)], [])
    assert [p.source for p in points] == ["utility"]


def test_only_the_window_counts() -> None:
    rows = [row(hour, hour) for hour in (0, 1, 2, 4, 5, 7)]
    points, gaps = series(context(T0 + 2 * HOUR, T0 + 5 * HOUR), "s", "EUR/MWh", rows, [])
    assert [p.value for p in points] == [2.0, 4.0]
    assert [(g.start - T0, g.end - T0) for g in gaps] == [(3 * HOUR, 4 * HOUR)]


def test_results_need_a_point_and_name_at_most_twenty_warnings() -> None:
    with pytest.raises(FeedError, match="nothing") as caught:
        result([], [], [], "nothing")
    assert caught.value.kind == "no_data"
    points, gaps = series(context(), "s", "EUR/MWh", [row(0, 1)], [])
    found = result(points, gaps, [str(i) for i in range(30)], "")
    assert len(found.warnings) == 21 and found.warnings[-1] == "and 10 more like these"


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("Invalid API key", "access"),
        ("You do not have sufficient ACCESS to this resource", "access"),
        ("Rate limit exceeded", "access"),
        ("No data for this zone", "no_data"),
        ("start must be before end", "invalid"),
    ],
)
def test_refusals_are_told_apart(words: str, kind: str) -> None:
    assert refusal(words).kind == kind


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": "a", "message": "b"}, "a: b"),
        ({"detail": {"x": 1}}, "{'x': 1}"),
        ({"error": None, "errors": []}, ""),
        ({}, ""),
    ],
)
def test_what_an_error_document_says(body: dict[str, Any], words: str) -> None:
    assert said(body) == words


def test_values_within_limits() -> None:
    warnings: list[str] = []
    assert [value_of(raw, "x", warnings, least=0.0, most=100.0) for raw in (5, 0, None, "7", -1, 101, float("nan"), True)] == [
        5.0,
        0.0,
        *[None] * 6,
    ]
    assert len(warnings) == 5


def test_lists_of_objects() -> None:
    warnings: list[str] = []
    assert objects([{"a": 1}, 5], "x", warnings) == [("x[0]", {"a": 1})] and "x[1]" in warnings[0]
    with pytest.raises(FeedError, match="'x'"):
        objects(None, "x", warnings)


def test_ranges_cover_the_window_without_overlap() -> None:
    parts = ranges(T0, T0 + 50 * HOUR, 24 * HOUR)
    assert parts == [(T0, T0 + 24 * HOUR), (T0 + 24 * HOUR, T0 + 48 * HOUR), (T0 + 48 * HOUR, T0 + 50 * HOUR)]
    assert ranges(T0, T0, HOUR) == []


ALL = (aemo.FEED, electricitymaps.FEED, http_feed.FEED, octopus_agile.FEED, openelectricity.FEED, watttime.FEED)
GOOD = [
    {"zone": "DE", "carbonIntensity": 216, "datetime": "2026-03-01T00:00:00Z", "emissionFactorType": "lifecycle"},
    {"5MIN": [{"SETTLEMENTDATE": "2026-03-01T10:05:00", "REGIONID": "SA1", "RRP": 80.5, "PERIODTYPE": "ACTUAL"}]},
    {"results": [{"value_exc_vat": 1, "value_inc_vat": 2, "valid_from": "2026-03-01T00:00Z", "valid_to": "2026-03-01T00:30Z"}]},
    {"data": [{"point_time": "2026-03-01T00:00Z", "value": 1}], "meta": {"units": "percentile", "region": "X"}},
]


@FUZZ
@given(data=st.data(), feed=st.sampled_from(ALL))
def test_any_options_of_any_feed(data: st.DataObject, feed: Feed) -> None:
    options = data.draw(st.dictionaries(st.sampled_from(sorted(feed.option_names)), LEAVES | JSON, max_size=4))
    for problem in feed.check(options):
        assert problem.key in feed.option_names and problem.remedy
    for kind in sorted(feed.kinds):
        sound(read(feed, data.draw(st.sampled_from(GOOD)), kind, options=options))


@pytest.mark.parametrize("feed", ALL, ids=[feed.name for feed in ALL])
def test_what_live_fetching_adds_are_options(feed: Feed) -> None:
    assert set(feed.defaults) <= feed.option_names
    assert not {secret.name for secret in feed.secrets} & feed.option_names
    assert feed.poll_s >= 300 and feed.pace_s > 0
