"""The feed that options describe: addresses, fields, times, units, and every mistake named."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.feeds.base import ParseResult, Query
from signals.feeds.http_feed import FEED, check
from signals.points import Kind, Quality
from tests.signals.feeds.hostile import FUZZ, JSON, LEAVES, read, sound

PRICE = Kind.PRICE
T0 = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
JSON_PRICES = {
    "kind": "price",
    "format": "json",
    "rows": "data.prices",
    "time": "from",
    "value": "eur",
    "unit": "EUR/MWh",
}
CSV_PRICES = {
    "kind": "price",
    "format": "csv",
    "time": "Zeit",
    "value": "Preis",
    "unit": "ct/kWh",
    "currency": "EUR",
    "time_format": "%d.%m.%Y %H:%M",
    "time_zone": "Europe/Berlin",
    "delimiter": ";",
    "decimal": ",",
}


def parsed(body: Any, options: dict[str, Any], kind: Kind = PRICE, **context: Any) -> ParseResult:
    return read(FEED, body, kind, options=options, **context)


def prices(*rows: tuple[str, Any]) -> dict[str, Any]:
    return {"data": {"prices": [{"from": time, "eur": value} for time, value in rows]}}


def test_rows_of_json() -> None:
    body = prices(
        ("2026-03-01T00:00Z", 50), ("2026-03-01T02:00+01:00", -1.5), ("2026-03-01T02:00Z", None), ("2026-03-01T04:00", 0)
    )
    result = parsed(body, JSON_PRICES)
    assert [(p.start - T0, p.value) for p in result.points] == [(0 * HOUR, 50.0), (HOUR, -1.5), (4 * HOUR, 0.0)]
    assert [(g.start - T0, g.end - T0) for g in result.gaps] == [(2 * HOUR, 3 * HOUR), (3 * HOUR, 4 * HOUR)]
    assert {(p.unit, p.quality, p.source, p.end - p.start) for p in result.points} == {
        ("EUR/MWh", Quality.MEASURED, "http", HOUR)
    }


def test_paths_with_stars_indexes_and_a_list_at_the_root() -> None:
    body = {"areas": [{"rows": [["2026-03-01T00:00Z", {"v": 1}]]}, {"rows": [["2026-03-01T01:00Z", {"v": 2}]]}]}
    options = JSON_PRICES | {"rows": "areas[*].rows[*]", "time": "[0]", "value": "[1].v"}
    assert [p.value for p in parsed(body, options).points] == [1.0, 2.0]
    first = parsed(body, options | {"rows": "areas[0].rows"})
    assert [p.value for p in first.points] == [1.0]
    root = [{"from": "2026-03-01T00:00Z", "eur": 7}]
    options = {key: value for key, value in JSON_PRICES.items() if key != "rows"}
    assert [p.value for p in parsed(root, options).points] == [7.0]
    assert [p.value for p in parsed(root[0], options).points] == [7.0]


def test_lists_beside_one_another() -> None:
    options = {"kind": "price", "time": "hourly.time[*]", "value": "hourly.price[*]", "unit": "EUR/kWh", "time_format": "unix"}
    start = int(T0.timestamp())
    result = parsed({"hourly": {"time": [start, start + 900], "price": [0.1, -0.00708]}}, options)
    assert [(p.start - T0, p.value) for p in result.points] == [(0 * HOUR, 100.0), (HOUR / 4, -7.08)]
    short = parsed({"hourly": {"time": [start, start + 900], "price": [0.1]}}, options)
    assert short.error is not None and short.error.kind == "truncated" and "2 of time, 1 of value" in short.error.message


def test_csv_with_local_labels_on_the_long_day() -> None:
    hours = ["00", "01", "02", "02", "03", *(f"{h:02d}" for h in range(4, 24))]
    lines = [f"25.10.2026 {h}:00;{i},5" for i, h in enumerate(hours)]
    for order in (lines, lines[::-1]):
        result = parsed("\n".join(["Zeit;Preis", *order]), CSV_PRICES)
        assert len(result.points) == 25 and result.gaps == () and result.error is None
        assert result.points[0].start == datetime(2026, 10, 24, 22, tzinfo=UTC)
        assert {p.end - p.start for p in result.points} == {HOUR}
        assert [p.value for p in result.points] == [i * 10 + 5.0 for i in range(25)]
        assert {p.unit for p in result.points} == {"EUR/MWh"}


def test_an_hour_that_spring_leaves_out_is_not_invented() -> None:
    lines = [f"29.03.2026 0{h}:00;{h}" for h in range(5)]
    result = parsed("\n".join(["Zeit;Preis", *lines]), CSV_PRICES)
    assert [p.value for p in result.points] == [0.0, 10.0, 30.0, 40.0] and result.gaps == ()
    assert "02:00" in result.warnings[0]


def test_a_csv_cut_short_and_lines_before_its_header() -> None:
    result = parsed("Quelle\nZeit;Preis\n01.03.2026 00:00;1.000,5\n01.03.2026 01", CSV_PRICES | {"skip_lines": 1})
    assert [p.value for p in result.points] == [10005.0]
    assert result.error is not None and result.error.kind == "truncated"


def test_labels_that_are_ends() -> None:
    body = prices(("2026-03-01T00:05Z", 1), ("2026-03-01T00:10Z", 2))
    result = parsed(body, JSON_PRICES | {"label": "end", "interval": "5m"})
    assert [(p.start - T0, p.end - T0) for p in result.points] == [
        (0 * HOUR, HOUR / 12),
        (HOUR / 12, HOUR / 6),
    ]


def test_end_fields_and_issue_times() -> None:
    row = {"from": "2026-03-01T00:00Z", "until": "2026-03-01T00:30Z", "eur": 9, "run": "2026-02-28T12:00Z"}
    options = JSON_PRICES | {"end": "until", "issued_at": "run", "forecast": "true"}
    (point,) = parsed({"data": {"prices": [row]}}, options).points
    assert (point.end - T0, point.issued_at, point.quality) == (HOUR / 2, T0 - 12 * HOUR, Quality.FORECAST)
    (point,) = parsed({"data": {"prices": [row | {"run": None}]}}, options).points
    assert point.issued_at == T0


def test_what_lies_ahead_is_a_forecast_except_a_price() -> None:
    body = prices(("2026-02-28T22:00Z", 1), ("2026-03-01T00:00Z", 2))
    carbon = JSON_PRICES | {"kind": "carbon_average", "unit": "kg/kWh"}
    result = parsed(body, carbon, Kind.CARBON_AVERAGE)
    assert [(p.value, p.quality, p.issued_at) for p in result.points] == [
        (1000.0, Quality.MEASURED, None),
        (2000.0, Quality.FORECAST, T0),
    ]
    assert {p.quality for p in parsed(body, JSON_PRICES).points} == {Quality.MEASURED}


@pytest.mark.parametrize(
    ("kind", "unit", "extra", "expected", "canonical"),
    [
        ("price", "EUR/kWh", {}, 2000.0, "EUR/MWh"),
        ("price", "p/kWh", {"currency": "GBP"}, 20.0, "GBP/MWh"),
        ("price", "ct/kWh", {"currency": "EUR", "factor": "0.5"}, 10.0, "EUR/MWh"),
        ("price", "USD/MWh", {}, 2.0, "USD/MWh"),
        ("carbon_marginal", "lbs/MWh", {}, 0.90718474, "gCO2e/kWh"),
        ("carbon_average", "t/MWh", {}, 2000.0, "gCO2e/kWh"),
        ("carbon_rank", "percentile", {}, 2.0, "percentile"),
        ("load", "GW", {}, 2000.0, "MW"),
        ("generation", "kW", {}, 0.002, "MW"),
    ],
)
def test_units(kind: str, unit: str, extra: dict[str, Any], expected: float, canonical: str) -> None:
    options = JSON_PRICES | {"kind": kind, "unit": unit} | extra
    (point,) = parsed(prices(("2026-02-01T00:00Z", 2)), options, Kind(kind)).points
    assert (point.value, point.unit, point.kind) == (expected, canonical, Kind(kind))


def test_what_means_missing() -> None:
    raws = [-999, "-999.0", "n/a", "", True, {"x": 1}, "1e999", "NaN", "3.5"]
    body = prices(*((f"2026-03-01T{h:02d}:00Z", raw) for h, raw in enumerate(raws)))
    for nulls in (["-999"], "-999,", -999):
        result = parsed(body, JSON_PRICES | {"null_values": nulls})
        assert [p.value for p in result.points] == [3.5]
        assert len(result.gaps) == 8 and len(result.warnings) == 3


def test_duplicates_are_one_suspect_value() -> None:
    result = parsed(prices(("2026-03-01T00:00Z", 1), ("2026-03-01T00:00Z", 2)), JSON_PRICES)
    assert [(p.value, p.quality) for p in result.points] == [(2.0, Quality.SUSPECT)] and len(result.warnings) == 1


@pytest.mark.parametrize(
    ("body", "options", "kind", "words"),
    [
        ("", JSON_PRICES, "no_data", "empty"),
        ('{"data": {"pri', JSON_PRICES, "truncated", "middle"),
        ("{nonsense}", JSON_PRICES, "invalid", "not JSON"),
        ("<html>", CSV_PRICES, "invalid", "HTML"),
        ({"data": {"prices": []}}, JSON_PRICES, "no_data", "empty"),
        ({"detail": "x"}, JSON_PRICES, "invalid", "'data.prices'; there are: detail"),
        ({"data": {"prices": [{"from": "2026-03-01", "usd": 1}]}}, JSON_PRICES, "invalid", "'eur'; there are: from, usd"),
        (prices(("soon", 1)), JSON_PRICES, "no_data", "window"),
        ("Zeit;Price\n1;2", CSV_PRICES, "invalid", "'Preis'; there are: Zeit, Price"),
        ("Zeit;Preis\n", CSV_PRICES, "no_data", "no rows"),
        (prices(("2026-03-01T00:00Z", 1)), JSON_PRICES | {"kind": "load", "unit": "MW"}, "invalid", "load, not price"),
        (prices(("2026-03-01T00:00Z", 1)), {}, "invalid", "say which field"),
    ],
)
def test_that_cannot_be_used_says_why(body: Any, options: dict[str, Any], kind: str, words: str) -> None:
    result = parsed(body, options)
    assert result.points == () and result.error is not None
    assert result.error.kind == kind and words in result.error.message


def test_what_is_asked() -> None:
    options = JSON_PRICES | {
        "url": "https://example.org/p?a={start}&b={to:unix_ms}&d={from:date}&m={end:%Y%m%d%H%M}&n={now:unix}",
        "headers": {"X-Who": "gridshift"},
        "token_header": "Authorization",
        "token_prefix": "Bearer ",
        "token": "s3cret",
        "time_zone": "Europe/Berlin",
    }
    (request,) = FEED.requests(Query(PRICE, options, T0 - HOUR, T0 + HOUR, T0))
    moment = int(T0.timestamp())
    assert request.url == (
        f"https://example.org/p?a=2026-02-28T23:00:00Z&b={(moment + 3600) * 1000}&d=2026-03-01&m=202603010200&n={moment}"
    )
    assert dict(request.headers) == {"Accept": "*/*", "X-Who": "gridshift", "Authorization": "Bearer s3cret"}
    parts = FEED.requests(Query(PRICE, options | {"max_range": "1d"}, T0, T0 + 50 * HOUR, T0))
    assert len(parts) == 3
    (keyed,) = FEED.requests(
        Query(PRICE, {"url": "https://x.org/", "token_param": "key", "token": "s3cret"}, T0, T0 + HOUR, T0)
    )
    assert keyed.params == {"key": "s3cret"} and "s3cret" not in keyed.url


def test_the_token_is_needed_only_where_it_goes_somewhere() -> None:
    (secret,) = FEED.secrets
    assert not secret.is_needed(JSON_PRICES)
    assert secret.is_needed(JSON_PRICES | {"token_param": "key"})


@pytest.mark.parametrize("options", [JSON_PRICES, CSV_PRICES])
def test_right_options(options: dict[str, Any]) -> None:
    assert check(options | {"url": "https://example.org/{start:date}.json"}) == []


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"url": None}, "url", "address"),
        ({"url": "ftp://example.org"}, "url", "https://"),
        ({"url": "https://u:p@example.org"}, "url", "password"),
        ({"url": "https://example.org/?apiKey=5"}, "url", "token_param"),
        ({"url": "https://example.org/{begin}"}, "url", "'{begin}'"),
        ({"url": "https://example.org/{start:day}"}, "url", "'day'"),
        ({"headers": "x"}, "headers", "table"),
        ({"headers": {"Authorization": "Bearer x"}}, "headers", "token_header"),
        ({"headers": {"X": "a\r\nY: b"}}, "headers", "one-line"),
        ({"token_header": "a b"}, "token_header", "plain"),
        ({"token_prefix": "Bearer "}, "token_header", "which header"),
        ({"format": "xml"}, "format", "'csv'"),
        ({"rows": "data..x"}, "rows", "path"),
        ({"time": ""}, "time", "text"),
        ({"label": "middle"}, "label", "'end'"),
        ({"label": "end"}, "interval", "how long"),
        ({"label": "end", "interval": "5m", "end": "x"}, "end", "either"),
        ({"interval": "five"}, "interval", "duration"),
        ({"interval": 0}, "interval", "longer"),
        ({"time_format": "julian"}, "time_format", "unix"),
        ({"time_zone": "Mars/Base"}, "time_zone", "Europe/Paris"),
        ({"kind": "weather"}, "kind", "carbon_average"),
        ({"unit": "EUR"}, "unit", "EUR/MWh"),
        ({"unit": "p/kWh"}, "currency", "code"),
        ({"currency": "GBP"}, "currency", "not converted"),
        ({"factor": 0}, "factor", "number"),
        ({"null_values": True}, "null_values", "list"),
        ({"forecast": "maybe"}, "forecast", "true or false"),
        ({"max_range": "1s"}, "max_range", "5 minutes"),
        ({"skip_lines": -1}, "skip_lines", "number"),
        ({"delimiter": "ab"}, "delimiter", "one character"),
        ({"decimal": ";"}, "decimal", "','"),
    ],
)
def test_each_mistake_is_named(changes: dict[str, Any], key: str, words: str) -> None:
    (problem,) = [p for p in check(JSON_PRICES | {"url": "https://example.org/"} | changes) if p.key == key]
    assert words in problem.remedy


def test_a_missing_field_option_is_named() -> None:
    assert {p.key for p in check({"url": "https://example.org/"})} == {"time", "value", "kind"}


@FUZZ
@given(payload=st.binary(max_size=200) | JSON, options=st.sampled_from([JSON_PRICES, CSV_PRICES, {}]))
def test_any_payload(payload: Any, options: dict[str, Any]) -> None:
    sound(parsed(payload, options))


@FUZZ
@given(rows=st.lists(st.tuples(LEAVES, LEAVES), max_size=6), form=st.sampled_from(["iso", "unix", "unix_ms", "%Y-%m-%d"]))
def test_any_rows(rows: list[tuple[Any, Any]], form: str) -> None:
    body = json.dumps({"data": {"prices": [{"from": a, "eur": b} for a, b in rows]}})
    sound(parsed(body, JSON_PRICES | {"time_format": form, "time_zone": "Australia/Sydney"}))


@FUZZ
@given(options=st.dictionaries(st.sampled_from(sorted(FEED.option_names)), LEAVES | JSON, max_size=6))
def test_any_options(options: dict[str, Any]) -> None:
    for merged in (options, JSON_PRICES | {"url": "https://example.org/"} | options):
        problems = check(merged)
        assert all(isinstance(p.remedy, str) and p.remedy for p in problems)
        sound(parsed(prices(("2026-03-01T00:00Z", 1)), merged))
