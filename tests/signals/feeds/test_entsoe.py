"""ENTSO-E: what its documents mean, and what is asked."""

import io
import zipfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.feeds.base import ParseResult, Query, Request
from signals.feeds.entsoe import FEED, check
from signals.feeds.entsoe_codes import NAMES, ZONES
from signals.points import Kind, Quality
from tests.helpers import data_dir
from tests.signals.feeds.hostile import FUZZ, read, sound
from tests.signals.feeds.mangled import mangled

PRICE, GENERATION, LOAD, CARBON = Kind.PRICE, Kind.GENERATION, Kind.LOAD, Kind.CARBON_AVERAGE
BE, FR = ZONES["BE"], ZONES["FR"]
T0 = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
XML = '<?xml version="1.0" encoding="utf-8"?>\n'


def period(
    values: dict[int, Any], field: str = "price.amount", start: str = "2026-03-01T00:00Z", hours: float = 1, step: str = "PT15M"
) -> str:
    begin = datetime.fromisoformat(start)
    end = begin + hours * HOUR
    points = "".join(f"<Point><position>{n}</position><{field}>{v}</{field}></Point>\n" for n, v in values.items())
    return (
        f"<Period><timeInterval><start>{begin:%Y-%m-%dT%H:%MZ}</start><end>{end:%Y-%m-%dT%H:%MZ}</end></timeInterval>"
        f"<resolution>{step}</resolution>\n{points}</Period>"
    )


def price_series(
    *periods: str, into: str = BE, out: str = BE, curve: str = "A03", sequence: int | None = None, **changes: str
) -> str:
    number = "classificationSequence_AttributeInstanceComponent.position"
    fields = {
        "mRID": "1",
        "in_Domain.mRID": into,
        "out_Domain.mRID": out,
        "contract_MarketAgreement.type": "A01",
        "currency_Unit.name": "EUR",
        "price_Measure_Unit.name": "MWH",
        "curveType": curve,
    } | ({} if sequence is None else {number: str(sequence)})
    fields |= {name.replace("__", "."): value for name, value in changes.items()}
    return "<TimeSeries>" + "".join(f"<{k}>{v}</{k}>" for k, v in fields.items()) + "".join(periods) + "</TimeSeries>\n"


def prices(*series: str) -> str:
    head = '<Publication_MarketDocument xmlns="urn:iec62325.351:tc57wg16:451-3:publicationdocument:7:3"><type>A44</type>'
    return f"{XML}{head}\n{''.join(series)}</Publication_MarketDocument>"


def plant(psr: str, *periods: str, zone: str = BE, consumption: bool = False, unit: str = "MAW", curve: str = "A01") -> str:
    way = "out" if consumption else "in"
    return (
        f"<TimeSeries><mRID>{psr}</mRID><{way}BiddingZone_Domain.mRID>{zone}</{way}BiddingZone_Domain.mRID>"
        f"<quantity_Measure_Unit.name>{unit}</quantity_Measure_Unit.name><curveType>{curve}</curveType>"
        f"<MktPSRType><psrType>{psr}</psrType></MktPSRType>{''.join(periods)}</TimeSeries>\n"
    )


def megawatts(*values: Any, **more: Any) -> str:
    sent = {n: v for n, v in enumerate(values, 1) if v is not None}
    return period(sent, "quantity", hours=len(values), step="PT60M", **more)


def generation(*series: str, kind: str = "A75", process: str = "A16") -> str:
    head = '<GL_MarketDocument xmlns="urn:iec62325.351:tc57wg16:451-6:generationloaddocument:3:0">'
    about = f"<type>{kind}</type><process.processType>{process}</process.processType>"
    return f"{XML}{head}{about}<createdDateTime>2026-03-01T09:00:00Z</createdDateTime>\n{''.join(series)}</GL_MarketDocument>"


def acknowledged(code: str, text: str) -> str:
    reason = f"<Reason><code>{code}</code><text>{text}</text></Reason>"
    return f'{XML}<Acknowledgement_MarketDocument xmlns="urn:x:7:0">{reason}</Acknowledgement_MarketDocument>'


def zipped(*documents: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for index, document in enumerate(documents):
            archive.writestr(f"{index}.xml", document)
    return buffer.getvalue()


def values(result: ParseResult) -> list[float]:
    return [p.value for p in result.points]


def error_of(result: ParseResult) -> tuple[str, str]:
    assert result.error is not None
    return result.error.kind, result.error.message


MIX = generation(plant("B04", megawatts(300, 200)), plant("B19", megawatts(100, 200)), plant("B10", megawatts(50, 0)))
CONSUMED = generation(
    plant("B10", megawatts(50, 0)), plant("B10", megawatts(0, 70), consumption=True), plant("B04", megawatts(5, 5))
)
DEMAND = generation(
    f"<TimeSeries><outBiddingZone_Domain.mRID>{BE}</outBiddingZone_Domain.mRID><curveType>A01</curveType>"
    f"{megawatts(9000, 9100)}</TimeSeries>",
    kind="A65",
)
DAY = prices(price_series(period({1: 10, 2: 0, 4: -5.5})))
SAMPLES: list[tuple[bytes, Kind, dict[str, Any]]] = [
    (DAY.encode(), PRICE, {}),
    (MIX.encode(), GENERATION, {}),
    (MIX.encode(), CARBON, {}),
    (DEMAND.encode(), LOAD, {}),
]


# --- recorded documents ---------------------------------------------------------------------------------------------


def saved(name: str, kind: Kind = PRICE, **context: Any) -> ParseResult:
    return read(FEED, (data_dir() / "feeds/entsoe" / name).read_bytes(), kind, **context)


def summary(numbers: Sequence[float]) -> tuple[int, float, float, float]:
    return len(numbers), min(numbers), max(numbers), round(sum(numbers) / len(numbers), 4)


def test_recorded_day_of_hours() -> None:
    result = saved("BE_60M.xml", options={"zone": "BE", "sequence": 1})
    assert summary(values(result)) == (24, 47.05, 115.47, 70.4983)
    assert result.points[0].start == datetime(2024, 10, 7, 22, tzinfo=UTC)
    assert result.points[-1].start == datetime(2024, 10, 8, 21, tzinfo=UTC)
    assert {(p.unit, p.variant, p.quality, p.end - p.start) for p in result.points} == {("EUR/MWh", "", Quality.MEASURED, HOUR)}
    assert (result.gaps, result.warnings, result.error) == ((), (), None)


def test_recorded_mix_of_quarters_and_hours() -> None:
    result = saved("BE_60M_15M_mix.xml")
    assert len(result.points) == 216 and result.points[-1].end == datetime(2024, 10, 8, 22, tzinfo=UTC)
    first, second, third = result.points[:96], result.points[96:192], result.points[192:]
    assert [p.start for p in (first[0], second[0], third[0])] == [datetime(2024, 10, d, 22, tzinfo=UTC) for d in (5, 6, 7)]
    assert {p.end - p.start for p in first + second} == {HOUR / 4} and {p.end - p.start for p in third} == {HOUR}
    assert summary([p.value for p in first]) == (96, -0.01, 81.92, 38.4867)
    assert summary([p.value for p in second]) == (96, 29.48, 159.2, 73.6071)
    assert (min(p.value for p in third), max(p.value for p in third)) == (47.05, 115.47)
    assert result.gaps == ()


def test_recorded_position_outside_its_period_is_invalid() -> None:
    result = saved("BE_15M_avg.xml")
    quarters = [p for p in result.points if p.end - p.start == HOUR / 4]
    assert summary([p.value for p in quarters]) == (20, 28.37, 55.35, 35.263)
    hours = [(p.start.hour, p.value) for p in result.points if p.end - p.start == HOUR]
    assert hours == [(3, 64.98), (4, 64.98)]
    assert len(result.warnings) == 1 and "position '3'" in result.warnings[0] and "invalid" in result.warnings[0]


def test_recorded_border_auction_is_no_zone_price() -> None:
    result = saved("publication_a03_pt1h.xml")
    assert values(result) == [50, 50, 55, 55, 55, 60]
    assert {p.variant for p in result.points} == {"border CZ>SK"}
    assert len(result.warnings) == 1 and "between two zones" in result.warnings[0]
    for zone in ("SK", "CZ", "BE"):
        kind, message = error_of(saved("publication_a03_pt1h.xml", options={"zone": zone, "sequence": 1}))
        assert kind == "invalid" and "border CZ>SK" in message


@pytest.mark.parametrize("kind", sorted(FEED.kinds))
def test_recorded_acknowledgement_is_no_data(kind: Kind) -> None:
    assert error_of(saved("acknowledgement_no_data.xml", kind))[0] == "no_data"


# --- prices ---------------------------------------------------------------------------------------------------------


def test_a03_holds_and_zero_and_negative_are_values() -> None:
    result = read(FEED, DAY, PRICE)
    assert values(result) == [10, 0, 0, -5.5]
    assert {p.quality for p in result.points} == {Quality.MEASURED}


def test_a01_does_not_hold() -> None:
    result = read(FEED, prices(price_series(period({1: 10, 2: 0, 4: 5}), curve="A01")), PRICE)
    assert values(result) == [10, 0, 5]
    assert [(g.start, g.end) for g in result.gaps] == [(T0 + HOUR / 2, T0 + 3 * HOUR / 4)]


def test_a03_before_its_first_position_is_a_gap() -> None:
    result = read(FEED, prices(price_series(period({3: 7}))), PRICE)
    assert values(result) == [7, 7] and len(result.gaps) == 2


def test_a_hole_between_periods_is_a_gap() -> None:
    later = period({1: 3}, start="2026-03-01T03:00Z")
    result = read(FEED, prices(price_series(period({1: 1}), later)), PRICE)
    assert [(g.start, g.end) for g in result.gaps] == [(T0 + HOUR, T0 + 3 * HOUR)]


@pytest.mark.parametrize(("step", "count"), [("PT15M", 8), ("PT30M", 4), ("PT60M", 2), ("PT1H", 2)])
def test_resolutions(step: str, count: int) -> None:
    result = read(FEED, prices(price_series(period({1: 1}, hours=2, step=step))), PRICE)
    assert len(result.points) == count and result.points[-1].end == T0 + 2 * HOUR


@pytest.mark.parametrize(("start", "hours"), [("2026-03-28T23:00Z", 23), ("2025-10-25T22:00Z", 25)])
def test_days_of_a_clock_change(start: str, hours: int) -> None:
    result = read(FEED, prices(price_series(period({1: 1, 4 * hours: 2}, start=start, hours=hours))), PRICE)
    assert len({p.start for p in result.points}) == 4 * hours and result.warnings == ()


def test_sequences_are_kept_apart() -> None:
    document = prices(price_series(period({1: 10}), sequence=1), price_series(period({1: 99}), sequence=2))
    both = read(FEED, document, PRICE)
    assert {(p.variant, p.value) for p in both.points} == {("", 10.0), ("sequence 2", 99.0)}
    assert set(values(read(FEED, document, PRICE, options={"zone": "BE", "sequence": 1}))) == {10.0}
    second = read(FEED, document, PRICE, options={"sequence": 2})
    assert {(p.variant, p.value) for p in second.points} == {("sequence 2", 99.0)}
    kind, message = error_of(read(FEED, document, PRICE, options={"sequence": 3}))
    assert kind == "no_data" and "sequence 1, sequence 2" in message


def test_intraday_auctions_are_kept_apart() -> None:
    document = prices(price_series(period({1: 10})), price_series(period({1: 5}), contract_MarketAgreement__type="A07"))
    assert {(p.variant, p.value) for p in read(FEED, document, PRICE).points} == {("", 10.0), ("intraday", 5.0)}
    assert set(values(read(FEED, document, PRICE, options={"zone": "BE", "sequence": 1}))) == {10.0}


def test_zones_and_currencies_are_kept_apart() -> None:
    document = prices(price_series(period({1: 1})), price_series(period({1: 2}), into=FR, out=FR))
    assert {(p.variant, p.value) for p in read(FEED, document, PRICE).points} == {("BE", 1.0), ("FR", 2.0)}
    assert set(values(read(FEED, document, PRICE, options={"zone": "FR"}))) == {2.0}
    document = prices(price_series(period({1: 1})), price_series(period({1: 4}), currency_Unit__name="PLN"))
    assert {(p.variant, p.unit) for p in read(FEED, document, PRICE).points} == {("EUR", "EUR/MWh"), ("PLN", "PLN/MWh")}


@pytest.mark.parametrize(("year", "coupled", "other"), [(2024, 60, 15), (2026, 15, 60)])
def test_two_resolutions_of_the_same_hours_are_two_auctions(year: int, coupled: int, other: int) -> None:
    start = f"{year}-03-01T00:00Z"
    quarters, hours = (price_series(period({1: n}, start=start, step=f"PT{n}M")) for n in (15, 60))
    result = read(FEED, prices(quarters, hours), PRICE)
    assert {(p.variant, p.value) for p in result.points} == {("", coupled), (f"{other} minutes", other)}
    assert "second resolution" in result.warnings[0]
    live = read(FEED, prices(quarters, hours), PRICE, options={"zone": "BE", "sequence": 1})
    assert {(p.variant, p.value) for p in live.points} == {("", coupled)}


@pytest.mark.parametrize("change", [{"currency_Unit__name": "euro"}, {"price_Measure_Unit__name": "KWH"}, {"curveType": "A05"}])
def test_a_series_that_is_not_understood_is_left_out(change: dict[str, str]) -> None:
    result = read(FEED, prices(price_series(period({1: 1})), price_series(period({1: 9}), **change)), PRICE)
    assert set(values(result)) == {1.0} and len(result.warnings) == 1


def test_a_position_given_twice() -> None:
    twice = period({1: 1, 3: 5}).replace(
        "</Period>", "<Point><position>3</position><price.amount>6</price.amount></Point></Period>"
    )
    result = read(FEED, prices(price_series(twice)), PRICE)
    assert [(p.value, p.quality is Quality.SUSPECT) for p in result.points] == [(1, False), (1, False), (6, True), (6, True)]
    assert "given twice, 5.0 and 6.0" in result.warnings[0]


def test_a_position_without_a_number_is_missing() -> None:
    result = read(FEED, prices(price_series(period({1: 1, 2: "NaN", 3: 3, 4: 4}))), PRICE)
    assert values(result) == [1, 3, 4] and len(result.gaps) == 1 and "position 2" in result.warnings[0]


@pytest.mark.parametrize("position", ["0", "5", "-1", "1.5", "", "99999999999", "٣"])
def test_positions_outside_are_never_placed(position: str) -> None:
    result = read(FEED, prices(price_series(period({1: 1, position: 7}))), PRICE)
    assert set(values(result)) == {1.0} and "invalid" in result.warnings[0]


@pytest.mark.parametrize(
    "bad",
    [
        period({1: 9}, step="P1M"),
        period({1: 9}, hours=0.4),
        period({1: 9}, hours=-1),
        period({1: 9}).replace("2026-03-01T00:00Z", "soon"),
    ],
)
def test_periods_that_make_no_sense_are_left_out(bad: str) -> None:
    result = read(FEED, prices(price_series(bad, period({1: 1}, start="2026-03-02T00:00Z"))), PRICE)
    assert set(values(result)) == {1.0} and len(result.warnings) == 1


def test_an_answer_of_too_many_positions_is_refused() -> None:
    endless = price_series(*[period({1: 9}, hours=8760, step="PT1M")] * 2)
    assert error_of(read(FEED, prices(endless), PRICE)) == ("invalid", "the answer has more than 1000000 positions; refused")
    assert len(read(FEED, zipped(DAY, prices(endless)), PRICE).points) == 4


def test_only_the_window_asked_for() -> None:
    result = read(FEED, DAY, PRICE, start=T0 + HOUR / 4, end=T0 + HOUR / 2)
    assert values(result) == [0]


# --- archives, pages, refusals --------------------------------------------------------------------------------------


def test_an_archive_of_documents() -> None:
    second = prices(price_series(period({1: 4}, start="2026-03-01T01:00Z")))
    result = read(FEED, zipped(DAY, second, acknowledged("999", "No matching data found")), PRICE)
    assert values(result) == [10, 0, 0, -5.5, 4, 4, 4, 4] and result.error is None
    cut = read(FEED, zipped(DAY, second[:-100]), PRICE)
    assert len(cut.points) == 4 and error_of(cut)[0] == "truncated"


def test_a_full_answer_has_another_page() -> None:
    (request,) = asked(PRICE, 0, 24)
    full = prices(*[price_series(period({1: n})) for n in range(100)])
    assert FEED.paging is not None
    following, join = FEED.paging.following, FEED.paging.join
    second = following(full.encode(), request)
    assert second is not None and second.params["offset"] == "100"
    third = following(full.encode(), second)
    assert third is not None and third.params["offset"] == "200"
    assert following(DAY.encode(), third) is None
    (generated,) = asked(GENERATION, -24, 0)
    assert following(full.encode(), generated) is None
    assert error_of(read(FEED, full, PRICE))[0] == "truncated"
    later = prices(price_series(period({1: 7}, start="2026-03-02T00:00Z")))
    for last in (later, acknowledged("999", "No matching data found")):
        assert read(FEED, join([full.encode(), last.encode()]), PRICE).error is None
    assert read(FEED, join([full.encode(), later.encode()]), PRICE).points[-1].value == 7.0


@pytest.mark.parametrize(
    ("document", "kind", "words"),
    [
        (acknowledged("999", "No matching data found for Data item DAY_AHEAD_PRICES"), "no_data", "No matching"),
        (acknowledged("999", "The number of instances (365) exceeds the allowed maximum (100)"), "invalid", "exceeds"),
        (acknowledged("401", "Unauthorized. Missing or invalid security token"), "access", "token"),
        (acknowledged("A99", "The combination of in_Domain is not valid"), "invalid", "A99"),
        (acknowledged("", ""), "invalid", "nothing"),
        (f"{XML}<Other_MarketDocument><type>A44</type></Other_MarketDocument>", "invalid", "Other_MarketDocument"),
        (prices(), "no_data", "no series"),
        (prices(price_series()), "no_data", "no price"),
        (MIX, "invalid", "A75"),
        (DAY[:-60], "truncated", "middle"),
        ("", "no_data", "empty"),
        ("<html><body>Service unavailable</body></html>", "invalid", "HTML"),
        ('{"error": "x"}', "invalid", "not XML"),
        (f"{XML}<!DOCTYPE a><Publication_MarketDocument/>", "invalid", "document type"),
    ],
)
def test_that_cannot_be_used_says_why(document: str, kind: str, words: str) -> None:
    result = read(FEED, document, PRICE)
    assert result.points == () and error_of(result)[0] == kind and words in error_of(result)[1]


# --- generation, load, carbon ---------------------------------------------------------------------------------------


def test_generation_by_kind_of_plant() -> None:
    result = read(FEED, CONSUMED, GENERATION)
    assert {p.variant: [q.value for q in result.points if q.variant == p.variant] for p in result.points} == {
        "gas": [5, 5],
        "pumped_storage": [50, 0],
        "pumped_storage consumption": [0, 70],
    }
    assert {p.unit for p in result.points} == {"MW"}


def test_carbon_is_the_mix_without_stores() -> None:
    result = read(FEED, MIX, CARBON)
    assert values(result) == [(300 * 490 + 100 * 11) / 400, (490 + 11) / 2]
    assert {(p.variant, p.unit, p.quality) for p in result.points} == {("lifecycle", "gCO2e/kWh", Quality.ESTIMATED)}
    assert set(values(read(FEED, CONSUMED, CARBON))) == {490.0}


def test_carbon_needs_the_whole_mix() -> None:
    document = generation(plant("B04", megawatts(300, None, 100)), plant("B19", megawatts(100, 200, 100)))
    result = read(FEED, document, CARBON)
    assert [(p.start, p.value) for p in result.points] == [(T0, (300 * 490 + 100 * 11) / 400), (T0 + 2 * HOUR, (490 + 11) / 2)]
    assert [(g.start, g.end) for g in result.gaps] == [(T0 + HOUR, T0 + 2 * HOUR)]
    assert "gas is missing in 1 of 3" in result.warnings[0]


def test_carbon_of_what_has_no_factor_is_not_guessed() -> None:
    result = read(FEED, generation(plant("B07", megawatts(300)), plant("B19", megawatts(100))), CARBON)
    assert error_of(result)[0] == "no_data"


def test_unknown_kinds_units_and_zones() -> None:
    result = read(FEED, generation(plant("B77", megawatts(3)), plant("B04", megawatts(4), unit="KWT")), GENERATION)
    assert [(p.variant, p.value) for p in result.points] == [("B77", 3.0)]
    assert "KWT" in result.warnings[0]
    two = generation(plant("B04", megawatts(3)), plant("B04", megawatts(4), zone=FR))
    assert error_of(read(FEED, two, GENERATION))[0] == "invalid"
    assert values(read(FEED, two, GENERATION, options={"zone": "FR"})) == [4.0]
    assert error_of(read(FEED, two, GENERATION, options={"zone": "NL"}))[0] == "invalid"


def test_load_and_its_forecast() -> None:
    actual = read(FEED, DEMAND, LOAD, options={"zone": "BE"})
    assert [(p.value, p.quality, p.issued_at) for p in actual.points] == [
        (9000.0, Quality.MEASURED, None),
        (9100.0, Quality.MEASURED, None),
    ]
    ahead = read(FEED, DEMAND.replace("A16", "A01"), LOAD)
    assert {(p.quality, p.issued_at) for p in ahead.points} == {(Quality.FORECAST, datetime(2026, 3, 1, 9, tzinfo=UTC))}


@pytest.mark.parametrize(
    ("document", "kind"), [(DAY, GENERATION), (DAY, LOAD), (DAY, CARBON), (MIX, LOAD), (DEMAND, GENERATION), (DEMAND, PRICE)]
)
def test_another_kind_is_refused(document: str, kind: Kind) -> None:
    result = read(FEED, document, kind)
    assert result.points == () and error_of(result)[0] == "invalid"


# --- asking ---------------------------------------------------------------------------------------------------------


def asked(kind: Kind, start: float, end: float, **options: Any) -> list[Request]:
    query = Query(kind, {"zone": "BE", "token": "s3cret"} | options, T0 + start * HOUR, T0 + end * HOUR, T0)
    requests = FEED.requests(query)
    assert all(r.params["securityToken"] == "s3cret" and "s3cret" not in r.url for r in requests)
    return list(requests)


def test_what_is_asked() -> None:
    (price,) = asked(PRICE, -1.5, 24.2)
    assert price.url == "https://web-api.tp.entsoe.eu/api"
    wanted = {"documentType": "A44", "in_Domain": BE, "out_Domain": BE, "contract_MarketAgreement.type": "A01"}
    assert dict(price.params) == {
        "securityToken": "s3cret",
        **wanted,
        "periodStart": "202602282200",
        "periodEnd": "202603020100",
    }
    (made,) = asked(GENERATION, -24, 24, zone="de-lu")
    assert (made.params["processType"], made.params["in_Domain"], made.params["periodEnd"]) == (
        "A16",
        "10Y1001A1001A82H",
        "202603010000",
    )
    assert asked(GENERATION, 1, 24) == []
    past, ahead = asked(LOAD, -24, 24, zone=FR, base_url="http://127.0.0.1:9/api/")
    assert [r.params["processType"] for r in (past, ahead)] == ["A16", "A01"]
    assert (past.url, past.params["outBiddingZone_Domain"]) == ("http://127.0.0.1:9/api", FR)


def test_long_windows_are_asked_in_parts() -> None:
    parts = [(r.params["periodStart"], r.params["periodEnd"]) for r in asked(PRICE, -24 * 100, 0)]
    assert len(parts) == 3 and all(a[1] == b[0] for a, b in pairwise(parts))
    assert len(asked(CARBON, -24 * 60, 0)) == 2


def test_zones_are_codes_of_16_characters() -> None:
    assert len(NAMES) == len(ZONES) and all(len(eic) == 16 for eic in NAMES)
    assert all(check({"zone": zone}) == [] for zone in (*ZONES, *NAMES, "de-lu"))


def test_wrong_options_are_named() -> None:
    assert check({"zone": "FR"} | dict(FEED.defaults)) == []
    assert {p.key for p in check({})} == {"zone"}
    wrong = {"zone": "Germany", "sequence": 0, "base_url": "ftp://x"}
    assert {p.key for p in check(wrong)} == set(wrong)
    assert FEED.all_option_names >= {"zone", "sequence", "base_url", "token_env", "token_file"}


# --- hostile --------------------------------------------------------------------------------------------------------


@FUZZ
@given(payload=st.binary(max_size=200), kind=st.sampled_from(sorted(FEED.kinds)))
def test_any_payload(payload: bytes, kind: Kind) -> None:
    sound(read(FEED, payload, kind))


@FUZZ
@given(data=st.data())
def test_damaged_documents(data: st.DataObject) -> None:
    payload, kind, _ = data.draw(st.sampled_from(SAMPLES))
    sound(read(FEED, mangled(data, payload), kind))
