"""What each feed's answers mean, from payloads made by hand and from real traces."""

import gzip
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from signals.feeds import FEEDS, FeedError, ParseResult, Query, validate_options
from signals.feeds.base import duration, steps
from signals.feeds.synthetic import value_at
from signals.points import Kind, Quality, SignalError
from tests.helpers import data_dir
from tests.signals.samples import DAY, HOUR, T0, at, charts, gb, parse, values

PRICE, CARBON = Kind.PRICE, Kind.CARBON_AVERAGE
EXPORT = (
    "Datetime (UTC),Country,Zone name,Zone id,Carbon intensity gCO\u2082eq/kWh (direct),"
    "Carbon intensity gCO\u2082eq/kWh (Life cycle),Carbon-free energy percentage (CFE%),Renewable energy percentage (RE%),"
    "Data source,Data estimated,Data estimation method\n"
)
OLD_EXPORT = (
    "Datetime (UTC),Country,Zone Name,Zone Id,Carbon Intensity gCO2eq/kWh (direct),Carbon Intensity gCO2eq/kWh (LCA),X,Y\n"
)
TRACE = "datetime_utc,region,price_usd_mwh\n"


def export_row(time: str, direct: str, lca: str, estimated: str = "false", zone: str = "SE") -> str:
    return f"{time},Sweden,Sweden,{zone},{direct},{lca},99.4,60.1,svk.se,{estimated},\n"


def no_error(result: ParseResult) -> ParseResult:
    assert result.error is None, result.error
    return result


def error_kind(result: ParseResult) -> str:
    assert result.error is not None
    return result.error.kind


# --- csv ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "expected"), [({}, 30.02), ({"column": "lca"}, 30.02), ({"column": "direct"}, 2.54)])
def test_electricity_maps_export(options: dict[str, str], expected: float) -> None:
    body = EXPORT + export_row("2026-02-01 00:00:00", "2.54", "30.02", "true") + export_row("2026-02-01 01:00:00", "2", "31")
    result = no_error(parse("csv", body, CARBON, options=options))
    first, second = result.points
    assert (first.value, first.unit, first.quality) == (expected, "gCO2e/kWh", Quality.ESTIMATED)
    assert second.quality is Quality.MEASURED
    assert (first.start, first.end) == (datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 2, 1, 1, tzinfo=UTC))
    assert first.variant == options.get("column", "lca")
    assert result.gaps == ()


def test_older_export_spelling_byte_order_mark_and_crlf() -> None:
    body = "\ufeff" + OLD_EXPORT + "2026-02-01 00:00:00,A,A,AT,100,120.5,1,2\n"
    assert values(no_error(parse("csv", body.replace("\n", "\r\n"), CARBON))) == [("02-01T00:00", 120.5)]


def test_trace_format_currency_negative_and_zero() -> None:
    body = TRACE + "2026-02-01T00:00Z,AT,-1.5\n2026-02-01T01:00Z,AT,0\n2026-02-01T00:00Z,BE,9\n"
    result = no_error(parse("csv", gzip.compress(body.encode()), PRICE, options={"zone": "AT"}))
    assert values(result) == [("02-01T00:00", -1.5), ("02-01T01:00", 0.0)]
    assert {p.unit for p in result.points} == {"USD/MWh"}


def test_blank_unreadable_and_absent_rows_are_gaps() -> None:
    rows = ["00:00,1", "01:00,", "02:00,n/a", "03:00,4", "05:00,6", "06:00,nan"]
    body = TRACE.replace("region,", "") + "".join(f"2026-02-01T{r.replace(',', 'Z,')}\n" for r in rows)
    result = no_error(parse("csv", body, PRICE))
    assert values(result) == [("02-01T00:00", 1.0), ("02-01T03:00", 4.0), ("02-01T05:00", 6.0)]
    assert [(g.start.hour, g.end.hour) for g in result.gaps] == [(1, 2), (2, 3), (4, 5), (6, 7)]
    assert len(result.warnings) == 2 and "line 4" in result.warnings[0]


def test_lookahead_hides_what_is_not_published_yet() -> None:
    body = TRACE + "".join(f"{at(h):%Y-%m-%dT%H:%MZ},AT,{h}\n" for h in range(-3, 60))
    seen = no_error(parse("csv", body, PRICE, options={"lookahead": "24h"})).points
    assert max(p.start for p in seen) == at(23)
    assert len(no_error(parse("csv", body, PRICE)).points) == 63
    assert len(no_error(parse("csv", body, PRICE, options={"lookahead": 0})).points) == 3
    later = no_error(parse("csv", body, PRICE, options={"lookahead": "1d"}, now=at(5))).points
    assert max(p.start for p in later) == at(28)


def test_carbon_ahead_is_a_forecast_and_a_price_ahead_is_published() -> None:
    carbon = "datetime_utc,region,ci_direct_gco2_kwh,ci_lca_gco2_kwh,estimated\n" + "".join(
        f"{at(h):%Y-%m-%dT%H:%MZ},AT,5,7,1\n" for h in (-1, 0, 1)
    )
    assert [p.quality for p in parse("csv", carbon, CARBON).points] == [Quality.ESTIMATED, Quality.FORECAST, Quality.FORECAST]
    price = TRACE + "".join(f"{at(h):%Y-%m-%dT%H:%MZ},AT,5\n" for h in (-1, 0, 1))
    assert {p.quality for p in parse("csv", price, PRICE).points} == {Quality.MEASURED}


def test_a_grids_load_ahead_is_a_forecast() -> None:
    rows = "".join(f"{at(h):%Y-%m-%dT%H:%MZ},{50_000 + h}\n" for h in (-1, 0)) + f"{at(1):%Y-%m-%dT%H:%MZ},-3\n"
    for header in ("load_mw", "Load (MW)", "demand_mw"):
        result = no_error(parse("csv", f"Datetime (UTC),{header}\n{rows}", Kind.LOAD))
        assert [(p.value, p.unit, p.quality) for p in result.points] == [
            (49_999.0, "MW", Quality.MEASURED),
            (50_000.0, "MW", Quality.FORECAST),
        ]
        assert len(result.gaps) == 1 and "not a possible value" in result.warnings[0]
    assert "no load column such as 'load_mw'" in str(parse("csv", f"datetime,load_gw\n{rows}", Kind.LOAD).error)


def test_same_time_twice_is_one_suspect_value() -> None:
    body = TRACE + "2026-02-01T00:00Z,AT,1\n2026-02-01T00:00Z,AT,2\n2026-02-01T01:00Z,AT,3\n2026-02-01T01:00Z,AT,3\n"
    result = no_error(parse("csv", body, PRICE))
    assert [(p.value, p.quality) for p in result.points] == [(2.0, Quality.SUSPECT), (3.0, Quality.MEASURED)]
    assert len(result.warnings) == 1


def test_a_file_cut_short_gives_its_whole_rows_and_says_so() -> None:
    result = parse("csv", TRACE + "2026-02-01T00:00Z,AT,1\n2026-02-01T01:0", PRICE)
    assert values(result) == [("02-01T00:00", 1.0)]
    assert error_kind(result) == "truncated"


@pytest.mark.parametrize(
    ("body", "options", "kind", "words"),
    [
        ("", {}, "no_data", "empty"),
        ("<!DOCTYPE html><p>login", {}, "invalid", "HTML"),
        (b"\xff\xfe\x00", {}, "invalid", "UTF-8"),
        (gzip.compress(TRACE.encode() * 1000)[:-20], {}, "truncated", "gzip"),
        (b"\x1f\x8bgarbage that is no gzip", {}, "invalid", "gzip"),
        ("a,b\n1,2\n", {}, "invalid", "Datetime"),
        ("datetime_utc,load\n2026-02-01T00:00Z,2\n", {}, "invalid", "price column"),
        ("datetime_utc,price\n2026-02-01T00:00Z,2\n", {}, "invalid", "currency"),
        (TRACE + "2026-02-01T00:00Z,AT,2\n", {"currency": "EUR"}, "invalid", "USD"),
        (TRACE, {}, "no_data", "no readable row"),
        (TRACE + "2026-02-01T00:00Z,AT,2\n", {"zone": "DE"}, "invalid", "AT"),
        (TRACE + "2026-02-01T00:00Z,AT,2\n2026-02-01T00:00Z,BE,2\n", {}, "invalid", "AT, BE"),
        (TRACE + "2026-02-01T00:00Z,AT,2\n", {"lookahead": "soon"}, "invalid", "lookahead"),
        (TRACE + "2026-02-01T00:00Z,AT,\n", {}, "no_data", "covers"),
        (TRACE + '2026-02-01T00:00Z,"AT', {}, "invalid", "CSV"),
    ],
)
def test_csv_that_cannot_be_used_says_why(body: bytes | str, options: dict[str, Any], kind: str, words: str) -> None:
    result = parse("csv", body, PRICE, options=options)
    assert error_kind(result) == kind
    assert words in str(result.error) and result.points == ()


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2025-10-26", 25)])
def test_days_of_23_and_25_hours(day: str, hours: int) -> None:
    # European clock changes: the local day has 23 or 25 hours, the rows are plain UTC hours and none is lost or doubled.
    start = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(hours=1 if hours == 23 else 2)
    body = TRACE + "".join(f"{start + i * HOUR:%Y-%m-%dT%H:%MZ},DE-LU,{i}\n" for i in range(hours))
    result = no_error(parse("csv", body, PRICE))
    assert [p.value for p in result.points] == [float(i) for i in range(hours)] and result.gaps == ()
    assert {p.end - p.start for p in result.points} == {HOUR}
    quarters = charts(start, 900, [float(i) for i in range(4 * hours)])
    priced = no_error(parse("energy_charts", quarters, PRICE))
    assert len(priced.points) == 4 * hours and priced.gaps == ()
    assert priced.points[-1].end - priced.points[0].start == hours * HOUR


@pytest.mark.parametrize("kind", [PRICE, CARBON])
def test_real_traces(kind: Kind) -> None:
    name = "price_hourly_2023.csv.gz" if kind is PRICE else "carbon_hourly_2023.csv.gz"
    payload = (data_dir() / "traces" / name).read_bytes()
    now = datetime(2023, 5, 1, tzinfo=UTC)
    for zone in ("DE-LU", "ES", "US-TEX-ERCO"):
        result = no_error(
            parse("csv", payload, kind, now, options={"zone": zone, "lookahead": "24h"}, start=now - 7 * DAY, end=now + 3 * DAY)
        )
        assert len(result.points) == 8 * 24 and result.gaps == ()
        assert all(a.end == b.start for a, b in pairwise(result.points))
    if kind is PRICE:
        year = no_error(parse("csv", payload, kind, datetime(2024, 1, 1, tzinfo=UTC), options={"zone": "DE-LU"}))
        assert min(p.value for p in year.points) < 0 < max(p.value for p in year.points)


# --- gb_carbon ------------------------------------------------------------------------------------------------------


def test_gb_forecast_and_actual_are_separate_points() -> None:
    body = gb(
        ("2026-02-27T00:00Z", "2026-02-27T00:30Z", 200, 190),
        ("2026-02-28T23:30Z", "2026-03-01T00:00Z", 210, 0),
        ("2026-03-01T00:00Z", "2026-03-01T00:30Z", 220, None),
    )
    result = no_error(parse("gb_carbon", body, CARBON))
    assert [(p.value, p.quality, p.issued_at) for p in result.points] == [
        (200.0, Quality.FORECAST, T0),
        (190.0, Quality.MEASURED, None),
        (210.0, Quality.FORECAST, T0),
        (0.0, Quality.ESTIMATED, None),
        (220.0, Quality.FORECAST, T0),
    ]
    assert [(g.start.day, g.end.day) for g in result.gaps] == [(27, 28)]


def test_gb_null_is_a_gap_and_a_future_actual_is_none() -> None:
    body = gb(
        ("2026-03-01T00:00Z", "2026-03-01T00:30Z", None, None),
        ("2026-03-01T00:30Z", "2026-03-01T01:00Z", 100, 0),  # "0" for an hour that has not been yet
    )
    result = no_error(parse("gb_carbon", body, CARBON))
    assert values(result) == [("03-01T00:30", 100.0)]
    assert [g.start for g in result.gaps] == [T0]


def test_gb_duplicate_period_with_two_values_is_one_and_flagged() -> None:
    body = gb(
        ("2026-02-27T19:00Z", "2026-02-27T19:30Z", 200, 190),
        ("2026-02-27T19:00Z", "2026-02-27T19:30Z", 200, 180),
    )
    result = no_error(parse("gb_carbon", body, CARBON))
    assert [(p.value, p.quality) for p in result.points] == [(200.0, Quality.FORECAST), (180.0, Quality.SUSPECT)]
    assert len(result.warnings) == 1


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ({"error": {"code": "500", "message": "Internal error"}}, "access", "Internal error"),
        ({"data": []}, "no_data", "no periods"),
        ({"data": {"a": 1}}, "invalid", "data"),
        (gb(("2026-02-27T19:00Z", "2026-02-27T19:30Z", None, None)), "no_data", "value"),
        (gb(("2026-02-27T19:00Z", "2026-02-29T19:30Z", 1, 1)), "no_data", "window"),
        ('{"data":[{"from":"2026-02-27T19:00Z","to":"2026', "truncated", "middle"),
        ("{'data': []}", "invalid", "JSON"),
        ("[" * 100_000, "invalid", "JSON"),
        ("[1]", "invalid", "list"),
        ("  \n", "no_data", "empty"),
        ("<html><body>502 Bad Gateway", "invalid", "HTML"),
    ],
)
def test_gb_that_cannot_be_used_says_why(body: Any, kind: str, words: str) -> None:
    result = parse("gb_carbon", body, CARBON)
    assert error_kind(result) == kind
    assert words in str(result.error)


def test_gb_requests_the_past_by_ranges_and_the_future_as_forecast() -> None:
    urls = [r.url for r in FEEDS["gb_carbon"].requests(Query(CARBON, {"base_url": "http://x/"}, T0 - 20 * DAY, T0 + DAY, T0))]
    assert urls == [
        "http://x/intensity/2026-02-09T00:00Z/2026-02-23T00:00Z",
        "http://x/intensity/2026-02-23T00:00Z/2026-03-01T00:00Z",
        "http://x/intensity/2026-03-01T00:00Z/fw48h",
    ]
    assert len(FEEDS["gb_carbon"].requests(Query(CARBON, {}, T0 - DAY, T0, T0))) == 1


# --- energy_charts --------------------------------------------------------------------------------------------------


def test_energy_charts_values_nulls_and_resolution() -> None:
    result = no_error(parse("energy_charts", charts(T0, 900, [1.0, None, 0, -5.5]), PRICE))
    assert values(result) == [("03-01T00:00", 1.0), ("03-01T00:30", 0.0), ("03-01T00:45", -5.5)]
    assert {p.end - p.start for p in result.points} == {timedelta(minutes=15)}
    assert [(g.start, g.end) for g in result.gaps] == [(at(0.25), at(0.5))]
    assert {p.unit for p in result.points} == {"EUR/MWh"}


def test_energy_charts_change_from_hours_to_quarters_and_a_hole() -> None:
    start = datetime(2025, 9, 30, 20, tzinfo=UTC)
    hours = [int(start.timestamp()) + 3600 * i for i in range(2)]
    quarters = [int(start.timestamp()) + 7200 + 900 * i for i in range(12) if i not in (5, 6, 7)]
    seconds = hours + quarters
    result = no_error(
        parse("energy_charts", {"unix_seconds": seconds, "price": [1.0] * len(seconds), "unit": "EUR/MWh"}, PRICE)
    )
    assert [int((p.end - p.start).total_seconds()) for p in result.points] == [3600] * 2 + [900] * 9
    assert [(g.end - g.start) for g in result.gaps] == [timedelta(minutes=45)]


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (charts(T0, 900, [1.0], unit="EUR / kWh"), "invalid", "unit"),
        (charts(T0, 900, [1.0], unit=None), "invalid", "unit"),
        (charts(T0, 900, [1.0, 2.0], price=[1.0]), "truncated", "matched"),
        (charts(T0, 900, [None, None]), "no_data", "published"),
        (charts(T0, 900, []), "no_data", "published"),
        ({"detail": "bzn unknown"}, "invalid", "bzn unknown"),
        (charts(T0, 900, ["1.0", True]), "no_data", "published"),
    ],
)
def test_energy_charts_that_cannot_be_used_says_why(body: Any, kind: str, words: str) -> None:
    result = parse("energy_charts", body, PRICE)
    assert error_kind(result) == kind
    assert words in str(result.error)


def test_energy_charts_warns_of_deprecation_and_doubles() -> None:
    body = charts(T0, 3600, [1.0, 2.0, 3.0], deprecated=True)
    body["unix_seconds"][1] = body["unix_seconds"][0]
    result = no_error(parse("energy_charts", body, PRICE))
    assert [(p.value, p.quality) for p in result.points] == [(2.0, Quality.SUSPECT), (3.0, Quality.MEASURED)]
    assert len(result.warnings) == 2


# --- synthetic ------------------------------------------------------------------------------------------------------


def test_synthetic_is_plausible_deterministic_and_says_what_it_is() -> None:
    options = {"price_mean": 100.0, "price_swing": 40.0, "currency": "SEK", "noise": 0.0}
    window = {"start": T0, "end": T0 + 7 * DAY}
    first = no_error(parse("synthetic", b"", PRICE, options=options, **window))
    assert first == parse("synthetic", b"", PRICE, options=options, **window)
    assert len(first.points) == 7 * 96
    assert {(p.source, p.unit) for p in first.points} == {("synthetic", "SEK/MWh")}
    assert sum(p.value for p in first.points) / len(first.points) == pytest.approx(100.0, abs=0.1)
    monday = [p.value for p in first.points[96:192]]  # 2026-03-01 is a Sunday
    assert max(range(96), key=monday.__getitem__) // 4 in (18, 19)
    assert min(monday) < 80 < 130 < max(monday)
    assert sum(monday) > sum(p.value for p in first.points[:96])


def test_synthetic_phase_and_carbon() -> None:
    shifted = value_at(PRICE, T0 + 25 * HOUR, {"phase_h": 6, "noise": 0})
    assert shifted == value_at(PRICE, T0 + 19 * HOUR, {"noise": 0})
    carbon = parse("synthetic", b"", CARBON, start=T0, end=T0 + DAY, options={"carbon_mean": 10, "carbon_swing": 200})
    assert min(p.value for p in carbon.points) == 0.0
    # the window's edges need not lie on quarter hours
    odd = parse("synthetic", b"", CARBON, start=T0 + timedelta(minutes=7), end=T0 + timedelta(minutes=16)).points
    assert [p.start.minute for p in odd] == [0, 15]


# --- all feeds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("feed", "options", "keys"),
    [
        ("nope", {}, ["feed"]),
        ("csv", {}, ["file"]),
        ("csv", {"file": "/does/not/exist.csv"}, []),
        ("csv", {"file": ["/does/not/exist.csv", 3]}, ["file"]),
        ("csv", {"file": __file__, "zone": "", "column": "mean", "lookahead": "x", "currency": "eur"}, None),
        ("csv", {"file": __file__, "zon": "DE"}, ["zon"]),
        ("csv", {"file": __file__, "source": "synthetic"}, ["source"]),
        ("gb_carbon", {"base_url": "ftp://x"}, ["base_url"]),
        ("gb_carbon", {"base_url": "https://me:secret@x"}, ["base_url"]),
        ("gb_carbon", {"base_url": "https://x:port"}, ["base_url"]),
        ("energy_charts", {}, ["bzn"]),
        ("energy_charts", {"bzn": 3}, ["bzn"]),
        ("synthetic", {"noise": -1, "price_mean": "high", "currency": "Euro"}, ["price_mean", "noise", "currency"]),
    ],
)
def test_wrong_options_are_named(feed: str, options: dict[str, Any], keys: list[str] | None) -> None:
    problems = validate_options(feed, options)
    assert [p.key for p in problems] == (keys if keys is not None else ["zone", "column", "currency", "lookahead"])
    assert all(p.remedy for p in problems)
    assert "secret" not in str(problems)


def test_right_options_and_kinds(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x")
    file = str(tmp_path / "a.csv")
    assert validate_options("csv", {"feed": "csv", "file": file, "zone": "DE-LU", "lookahead": 3600.0}, PRICE) == []
    assert validate_options("csv", {"file": [file, file], "column": "direct", "source": "mine"}, CARBON) == []
    assert validate_options("energy_charts", {"bzn": "DE-LU", "base_url": "http://127.0.0.1:1/x"}) == []
    assert validate_options("synthetic", {}, Kind.CARBON_MARGINAL) == []
    assert [p.key for p in validate_options("energy_charts", {"bzn": "DE-LU"}, Kind.LOAD)] == ["feed"]
    near = validate_options("csv", {"file": file, "lookahed": "24h"})
    assert "lookahead" in near[0].remedy


def test_a_kind_that_the_feed_has_not_is_an_error_not_a_mixture() -> None:
    assert error_kind(parse("gb_carbon", gb(), Kind.CARBON_MARGINAL)) == "invalid"
    assert error_kind(parse("energy_charts", charts(T0, 900, [1.0]), CARBON)) == "invalid"


@pytest.mark.parametrize(
    ("value", "seconds"), [("90m", 5400), ("24h", 86400), ("2d", 172800), ("1.5h", 5400), (7, 7), ("30", 30), (0, 0)]
)
def test_durations(value: Any, seconds: float) -> None:
    assert duration("x", value) == timedelta(seconds=seconds)


@pytest.mark.parametrize("value", ["", "h", "-3h", -1, True, None, "9" * 30 + "d", float("nan"), 1e300])
def test_no_durations(value: Any) -> None:
    with pytest.raises(SignalError, match="x:"):
        duration("x", value)


def test_single_start_lasts_an_hour_and_holes_are_not_bridged() -> None:
    assert steps([]) == []
    assert steps([T0]) == [HOUR]
    assert steps([T0, at(1), at(5), at(6)]) == [HOUR] * 4
    assert steps([T0, at(24)]) == [HOUR, HOUR]


# Slow machines are not what these tests are about.
FUZZ = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=150)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["2026-03-01T00:00Z", "2026-03-01T00:30Z", "EUR / MWh", 1772323200, 10**400]),
)
KEYS = st.sampled_from(
    ["data", "from", "to", "intensity", "forecast", "actual", "error", "unix_seconds", "price", "unit", "deprecated", "detail"]
)
DOCUMENTS = st.recursive(
    LEAVES, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=6)), max_leaves=25
)
CELLS = st.one_of(
    st.sampled_from(
        [
            "2026-03-01T00:00Z",
            "2026-03-01 01:00:00",
            "datetime_utc",
            "region",
            "price_usd_mwh",
            "DE",
            "",
            "1.5",
            "-1",
            "nan",
            "1e999",
        ]
    ),
    st.text(max_size=8),
)
TABLES = st.lists(st.lists(CELLS, max_size=5).map(",".join), max_size=8).map("\n".join)
HEADERS = st.sampled_from(["", TRACE, EXPORT, OLD_EXPORT])


def check_result(result: ParseResult) -> None:
    assert result.error is None or isinstance(result.error, FeedError)
    assert result.points or result.error is not None
    assert all(p.region == "r" for p in result.points)


@FUZZ
@given(payload=st.binary(max_size=200), feed=st.sampled_from(sorted(FEEDS)), kind=st.sampled_from([PRICE, CARBON]))
def test_fuzz_bytes(payload: bytes, feed: str, kind: Kind) -> None:
    for body in (payload, gzip.compress(payload), b"\x1f\x8b" + payload):
        check_result(parse(feed, body, kind))


@FUZZ
@given(document=st.dictionaries(KEYS, DOCUMENTS, max_size=6), feed=st.sampled_from(["gb_carbon", "energy_charts"]))
def test_fuzz_json(document: dict[str, Any], feed: str) -> None:
    check_result(parse(feed, document, CARBON if feed == "gb_carbon" else PRICE))


@FUZZ
@given(seconds=st.lists(LEAVES, max_size=8), prices=st.lists(LEAVES, max_size=8))
def test_fuzz_energy_charts(seconds: list[Any], prices: list[Any]) -> None:
    size = min(len(seconds), len(prices))
    body = {"unix_seconds": seconds[:size], "price": prices[:size], "unit": "EUR / MWh"}
    check_result(parse("energy_charts", body, PRICE))


@FUZZ
@given(header=HEADERS, table=TABLES, kind=st.sampled_from([PRICE, CARBON]), zone=st.sampled_from([None, "DE"]))
def test_fuzz_csv(header: str, table: str, kind: Kind, zone: str | None) -> None:
    options = {} if zone is None else {"zone": zone}
    check_result(parse("csv", (header + table).encode("utf-8", "replace"), kind, options=options))


OPTION_NAMES = sorted({name for feed in FEEDS.values() for name in feed.option_names})


@FUZZ
@given(
    options=st.dictionaries(
        st.sampled_from(OPTION_NAMES),
        LEAVES | st.lists(LEAVES),
        max_size=4,
    ),
    feed=st.sampled_from(sorted(FEEDS)),
)
def test_fuzz_options(options: dict[str, Any], feed: str) -> None:
    for problem in validate_options(feed, options):
        assert problem.key in options or problem.value is None, "a wrong option, or one that is missing"
    if feed == "synthetic":
        check_result(parse(feed, b"", PRICE, options=options, start=T0, end=T0 + DAY))
