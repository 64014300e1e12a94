"""Tariffs: the price of every hour, days on which clocks change, wholesale that is unknown, and the lines of a bill."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from signals.bills import Load, bill, peak
from signals.demand_months import counted, demand_months
from signals.points import Kind, Quality, SignalError, SignalPoint
from signals.series import SlotSeries
from signals.tariffs import DemandTerms, Tariff, TariffType, price_points, price_series
from signals.time_of_use import Period, cover_problems, months, parse_days, parse_minute, parse_months, segments

H = timedelta(hours=1)
MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
WEEKDAYS = frozenset(range(5))
DAY = Period("day", days=WEEKDAYS, from_min=8 * 60, to_min=20 * 60, per_mwh=180.0)
NIGHT = Period("night", days=WEEKDAYS, from_min=20 * 60, to_min=8 * 60, per_mwh=95.0)
WEEKEND = Period("weekend", days=frozenset({5, 6}), per_mwh=80.0)
BERLIN = ZoneInfo("Europe/Berlin")


def tariff(kind: TariffType = TariffType.FIXED, **more: Any) -> Tariff:
    own: dict[TariffType, dict[str, Any]] = {
        TariffType.FIXED: {"energy_per_mwh": 120.0},
        TariffType.TIME_OF_USE: {"periods": (DAY, NIGHT, WEEKEND)},
        TariffType.INDEXED: {"factor": 1.1, "adder_per_mwh": 12.0},
    }
    return Tariff(**{"name": "t", "type": kind, "currency": "EUR", "timezone": "Europe/Berlin", **own[kind], **more})


def wholesale(start: datetime, values: list[float | None], **more: Any) -> list[SignalPoint]:
    made = []
    for n, value in enumerate(values):
        if value is not None:
            at = start + n * H
            point = SignalPoint("a", Kind.PRICE, "EUR/MWh", at, at + H, None, start, value, Quality.FORECAST, "market")
            made.append(replace(point, **more))
    return made


def value_at(points: list[SignalPoint], when: datetime) -> float | None:
    found = [point.value for point in points if point.start <= when < point.end]
    assert len(found) <= 1, "a moment has one price"
    return found[0] if found else None


# --- prices -----------------------------------------------------------------------------------------------------------


def test_a_fixed_price_with_everything_on_it() -> None:
    made = tariff(grid_fee_per_mwh=30.0, taxes_per_mwh=20.0, vat=0.2)
    points = price_points(made, None, MONDAY, MONDAY + 48 * H, region="a", known_at=MONDAY)
    assert len(points) == 1 and points[0].value == pytest.approx((120 + 30 + 20) * 1.2)
    assert (points[0].source, points[0].variant, points[0].unit) == ("tariff:t", "retail", "EUR/MWh")
    assert price_points(made, None, MONDAY, MONDAY, region="a", known_at=MONDAY) == []


def test_time_of_use_follows_the_wall_clock() -> None:
    points = price_points(tariff(TariffType.TIME_OF_USE), None, MONDAY, MONDAY + 7 * 24 * H, region="a", known_at=MONDAY)
    assert value_at(points, MONDAY + 6.99 * H) == 95.0 and value_at(points, MONDAY + 7 * H) == 180.0, "08:00 in Berlin"
    assert value_at(points, MONDAY + 19 * H) == 95.0
    assert value_at(points, MONDAY + 5 * 24 * H) == 80.0
    assert all(one.end == other.start for one, other in pairwise(points))


def test_a_holiday_counts_as_a_sunday() -> None:
    made = tariff(TariffType.TIME_OF_USE, holidays=frozenset({date(2026, 1, 6)}))
    points = price_points(made, None, MONDAY, MONDAY + 72 * H, region="a", known_at=MONDAY)
    assert value_at(points, MONDAY + 36 * H) == 80.0 and value_at(points, MONDAY + 60 * H) == 180.0


@pytest.mark.parametrize(("day", "hours", "night_hours"), [(date(2026, 3, 29), 23, 5), (date(2026, 10, 25), 25, 7)])
def test_days_of_23_and_25_hours(day: date, hours: int, night_hours: int) -> None:
    night = Period("night", from_min=0, to_min=360, per_mwh=50.0)
    rest = Period("rest", from_min=360, per_mwh=100.0)
    start = datetime(day.year, day.month, day.day, tzinfo=BERLIN).astimezone(UTC)
    end = datetime(day.year, day.month, day.day + 1, tzinfo=BERLIN).astimezone(UTC)
    points = price_points(tariff(TariffType.TIME_OF_USE, periods=(night, rest)), None, start, end, region="a", known_at=start)
    assert (end - start) / H == hours
    assert sum((p.end - p.start) / H for p in points if p.value == 50.0) == night_hours


def test_an_hour_that_comes_twice_counts_twice() -> None:
    half = Period("half", from_min=150, to_min=180)  # 02:30-03:00, twice in that night
    start = datetime(2026, 10, 24, 22, tzinfo=UTC)
    found = [(a, b) for a, b, p in segments((half,), BERLIN, frozenset(), start, start + 25 * H) if p is half]
    assert found == [(start + 2.5 * H, start + 3 * H), (start + 3.5 * H, start + 4 * H)]
    spring = datetime(2026, 3, 28, 23, tzinfo=UTC)
    assert all(p is None for _, _, p in segments((half,), BERLIN, frozenset(), spring, spring + 23 * H)), "it never came"


@given(st.integers(0, 365 * 96), st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_every_moment_has_the_price_of_its_wall_clock(first: int, quarters: int) -> None:
    start = MONDAY + first * H / 4
    end = start + quarters * H / 4
    points = price_points(tariff(TariffType.TIME_OF_USE), None, start, end, region="a", known_at=start)
    assert points[0].start == start and points[-1].end == end
    for n in range(0, quarters, max(1, quarters // 40)):
        wall = (start + n * H / 4).astimezone(BERLIN)
        weekend = wall.weekday() >= 5
        assert value_at(points, start + n * H / 4) == (80.0 if weekend else 180.0 if 8 <= wall.hour < 20 else 95.0)


def test_an_indexed_price_follows_and_unknown_stays_unknown() -> None:
    made = tariff(TariffType.INDEXED, grid_fee_per_mwh=30.0, vat=0.2)
    points = price_points(
        made, wholesale(MONDAY, [100.0, None, -40.0, 0.0]), MONDAY, MONDAY + 4 * H, region="a", known_at=MONDAY
    )
    assert [(p.start - MONDAY) / H for p in points] == [0.0, 2.0, 3.0]
    assert [p.value for p in points] == pytest.approx([(110 + 42) * 1.2, (-44 + 42) * 1.2, 42 * 1.2])
    assert all((p.quality, p.variant, p.source) == (Quality.FORECAST, "retail", "tariff:t") for p in points)
    assert price_points(made, None, MONDAY, MONDAY + H, region="a", known_at=MONDAY) == []


def test_grid_fees_cut_a_wholesale_hour() -> None:
    fees = (
        Period("low", from_min=0, to_min=8 * 60 + 30, per_mwh=10.0),
        Period("high", from_min=8 * 60 + 30, per_mwh=30.0),
    )
    made = tariff(TariffType.INDEXED, grid_fee_periods=fees)
    points = price_points(made, wholesale(MONDAY + 7 * H, [100.0]), MONDAY, MONDAY + 24 * H, region="a", known_at=MONDAY)
    assert [((p.start - MONDAY) / H, p.value) for p in points] == [(7.0, pytest.approx(132.0)), (7.5, pytest.approx(152.0))]


@pytest.mark.parametrize("more", [{"unit": "SEK/MWh"}, {"variant": "retail"}])
def test_retail_is_not_mixed_with_other_money_or_with_retail(more: dict[str, str]) -> None:
    with pytest.raises(SignalError, match="tariff t: "):
        price_points(
            tariff(TariffType.INDEXED), wholesale(MONDAY, [1.0], **more), MONDAY, MONDAY + H, region="a", known_at=MONDAY
        )


def test_a_series_has_the_mean_of_each_slot_and_keeps_what_is_unknown() -> None:
    market = SlotSeries(MONDAY, 3600, (100.0, None, 50.0), ("published", "unknown", "repeat-day"), "EUR/MWh", "market")
    made = price_series(tariff(TariffType.INDEXED), market, start=MONDAY, slot_s=3600, slots=3)
    assert made is not None and made.values == (pytest.approx(122.0), None, pytest.approx(67.0))
    assert (made.basis, made.source, made.unit) == (market.basis, "tariff:t", "EUR/MWh")
    mixed = (Period("a", to_min=8 * 60 + 15, per_mwh=100.0), Period("b", from_min=8 * 60 + 15, per_mwh=200.0))
    start = MONDAY + 6 * H
    tou = price_series(tariff(TariffType.TIME_OF_USE, periods=mixed), None, start=start, slot_s=3600, slots=3)
    assert tou is not None and tou.values == pytest.approx((100.0, 175.0, 200.0)) and set(tou.basis) == {"published"}
    assert price_series(tariff(TariffType.INDEXED), None, start=MONDAY, slot_s=3600, slots=3) is None
    longer = replace(market, values=(*market.values, 10.0), basis=(*market.basis, "model"), low=(None, None, None, 0.0))
    told = price_series(tariff(TariffType.INDEXED, vat=0.2), longer, start=MONDAY, slot_s=3600, slots=3)
    assert told is not None and told.values[3] == pytest.approx(23 * 1.2) and told.low[3] == pytest.approx(12 * 1.2)
    assert told.low[0] is None and told.high == () and told.basis[3] == "model"
    with pytest.raises(SignalError, match="currency is EUR"):
        price_series(tariff(TariffType.INDEXED), replace(market, unit="SEK/MWh"), start=MONDAY, slot_s=3600, slots=3)


# --- contracts that are wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"energy_per_mwh": None}, "a fixed tariff needs energy_per_mwh"),
        ({"factor": 1.0}, "factor and adder_per_mwh belong to a tariff of type indexed"),
        ({"type": TariffType.INDEXED, "energy_per_mwh": None, "factor": 1.0}, "an indexed tariff needs factor and adder"),
        ({"energy_per_mwh": float("nan")}, "energy_per_mwh: nan is not a finite number"),
        ({"vat": 19.0}, "vat: 19.0 is a fraction below 1"),
        ({"vat": -0.1}, "vat: -0.1 must not be negative"),
        ({"currency": "euro"}, "currency: 'euro' must be a code"),
        ({"timezone": "Berlin"}, "timezone: 'Berlin' must be an IANA"),
        ({"grid_fee_per_mwh": 1.0, "grid_fee_periods": (Period("p", per_mwh=1.0),)}, "grid fee: give one figure or one"),
        ({"grid_fee_periods": (DAY,)}, "grid fee: no period covers Mondays 00:00-08:00 in January and other hours"),
        ({"grid_fee_periods": (Period("p"),)}, "grid fee 'p': has no price"),
        ({"demand": DemandTerms(1.0, interval_s=7)}, "interval_s: 7 must divide an hour"),
        ({"demand": DemandTerms(-1.0)}, "per_kw_month: -1.0 must not be negative"),
    ],
)
def test_a_contract_that_contradicts_itself(more: dict[str, Any], message: str) -> None:
    with pytest.raises(SignalError, match=message.replace("(", r"\(")):
        tariff(**more) if "type" not in more else Tariff(**{"name": "t", "currency": "EUR", "timezone": "UTC", **more})


def test_uncovered_and_doubled_hours_are_named() -> None:
    assert cover_problems((DAY, NIGHT, WEEKEND)) == []
    assert cover_problems((DAY, NIGHT)) == [
        "no period covers Saturdays 00:00-24:00 in January and other hours; add one that does"
    ]
    only_june = replace(NIGHT, months=frozenset({6}), days=frozenset({2}), from_min=600, to_min=660, name="extra")
    assert cover_problems((DAY, NIGHT, WEEKEND, only_june)) == [
        "'day' and 'extra' both cover Wednesdays 10:00-11:00 in June; change the hours, days or months of one"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("mon-fri", {0, 1, 2, 3, 4}), ("Sat, sun", {5, 6}), ("fri-mon", {4, 5, 6, 0}), ("wednesday", {2})],
)
def test_days_in_words(text: str, expected: set[int]) -> None:
    assert parse_days(text) == expected


def test_months_and_times_in_words() -> None:
    assert parse_months("nov-feb") == {11, 12, 1, 2} and parse_months("may") == {5}
    assert [parse_minute(text) for text in ("0:00", "08:30", "24:00", "06:00:00")] == [0, 510, 1440, 360]
    for wrong in ("24:01", "8", "08:60", "", "-1:00"):
        with pytest.raises(ValueError, match="is not a time of day"):
            parse_minute(wrong)
    for wrong in ("", "mo", "mon-", "mon;fri"):
        with pytest.raises(ValueError, match="is not a day of the week"):
            parse_days(wrong)


# --- the demand charge ------------------------------------------------------------------------------------------------

EVENING = Period("evening", days=WEEKDAYS, from_min=17 * 60, to_min=20 * 60)


def test_months_are_those_of_the_time_zone() -> None:
    assert list(months(BERLIN, datetime(2026, 2, 28, 23, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))) == [
        (datetime(2026, 2, 28, 23, tzinfo=UTC), datetime(2026, 3, 31, 22, tzinfo=UTC))
    ]


def test_the_peak_so_far_is_what_is_stated_or_measured() -> None:
    made = tariff(vat=0.25, demand=DemandTerms(12.0, peak_kw=310.0, peak_month="2026-01"))
    now, until = datetime(2026, 1, 31, 12, tzinfo=UTC), datetime(2026, 2, 2, tzinfo=UTC)
    january, february = datetime(2025, 12, 31, 23, tzinfo=UTC), datetime(2026, 1, 31, 23, tzinfo=UTC)
    found = demand_months(made, now, until, {})
    assert [(m.start, m.peak_kw, m.per_kw) for m in found] == [(january, 310.0, 15.0), (february, 0.0, 15.0)]
    assert found[0].windows == ((now, february),) and found[1].windows == ((february, until),)
    measured = demand_months(made, now, until, {january: 290.0, february: 20.0})
    assert [m.peak_kw for m in measured] == [310.0, 20.0]
    assert demand_months(tariff(), now, until, {}) == []


def test_only_the_hours_of_the_windows_count() -> None:
    made = tariff(demand=DemandTerms(12.0, windows=(EVENING,), peak_kw=0.0))
    assert counted(made, MONDAY, MONDAY + 48 * H) == (
        (MONDAY + 16 * H, MONDAY + 19 * H),
        (MONDAY + 40 * H, MONDAY + 43 * H),
    )
    assert counted(tariff(), MONDAY, MONDAY + H) == ()


# --- bills ------------------------------------------------------------------------------------------------------------


def flat_load(start: datetime, end: datetime, load_kw: float, step: timedelta = H / 4) -> list[Load]:
    return [Load(start + n * step, start + (n + 1) * step, load_kw) for n in range(int((end - start) / step))]


def test_a_month_as_a_bill() -> None:
    start, end = datetime(2025, 12, 31, 23, tzinfo=UTC), datetime(2026, 1, 31, 23, tzinfo=UTC)
    load = flat_load(start, end, 100.0)
    load[40] = replace(load[40], load_kw=340.0)
    made = bill(
        tariff(grid_fee_per_mwh=30.0, taxes_per_mwh=20.0, vat=0.2, demand=DemandTerms(12.0, peak_kw=0.0)), load, start, end
    )
    kwh = 100.0 * 31 * 24 + 240.0 / 4
    assert made.energy_kwh == pytest.approx(kwh) and made.missing == ()
    amounts = {line.what: line.amount for line in made.lines}
    net = [kwh * 0.12, kwh * 0.03, kwh * 0.02, 340 * 12.0]
    assert [amounts[key] for key in ("energy", "grid fee", "taxes", "demand 2026-01")] == pytest.approx(net)
    assert amounts["VAT"] == pytest.approx(0.2 * sum(net)) and made.total == pytest.approx(1.2 * sum(net))
    assert made.peaks_kw == ((load[40].start, pytest.approx(340.0)),)


def test_a_bill_of_periods_names_them() -> None:
    made = bill(tariff(TariffType.TIME_OF_USE), flat_load(MONDAY, MONDAY + 168 * H, 10.0, H), MONDAY, MONDAY + 168 * H)
    assert {line.what: line.quantity for line in made.lines} == {
        "energy, night": pytest.approx(600.0),
        "energy, day": pytest.approx(600.0),
        "energy, weekend": pytest.approx(480.0),
    }


def test_what_is_missing_has_no_total() -> None:
    load = flat_load(MONDAY, MONDAY + 4 * H, 10.0)
    hole = bill(tariff(), load[:4] + load[8:], MONDAY, MONDAY + 4 * H)
    assert hole.total is None and hole.missing == ((MONDAY + H, MONDAY + 2 * H),)
    assert hole.known_total == pytest.approx(30 * 0.12)
    prices = wholesale(MONDAY, [100.0, 100.0, None, -10.0])
    indexed = bill(tariff(TariffType.INDEXED), load, MONDAY, MONDAY + 4 * H, wholesale=prices)
    assert indexed.total is None and indexed.missing == ((MONDAY + 2 * H, MONDAY + 3 * H),)
    assert indexed.known_total == pytest.approx(10 * (2 * 122 + 1) / 1000)
    assert bill(tariff(TariffType.INDEXED), load, MONDAY, MONDAY + 4 * H).known_total == 0.0


def test_a_peak_is_a_mean_over_its_interval_in_hours_that_count() -> None:
    made = tariff(demand=DemandTerms(10.0, windows=(EVENING,), peak_kw=0.0))
    minute = timedelta(minutes=1)
    load = flat_load(MONDAY, MONDAY + 24 * H, 100.0, minute)
    load[16 * 60] = replace(load[16 * 60], load_kw=1600.0)  # one minute at the window's start: 200 kW over 15
    load[12 * 60] = replace(load[12 * 60], load_kw=9000.0)  # does not count
    assert peak(made, load, MONDAY, MONDAY + 24 * H) == (MONDAY + 16 * H, pytest.approx(200.0))
    assert peak(made, load[: 16 * 60], MONDAY, MONDAY + 24 * H) is None
    charged = bill(made, load, MONDAY, MONDAY + 24 * H, peak_kw=250.0)
    assert next(line.amount for line in charged.lines if line.what.startswith("demand")) == pytest.approx(2500.0)


@pytest.mark.parametrize(
    "load",
    [
        [Load(MONDAY, MONDAY + 2 * H, 1.0), Load(MONDAY + H, MONDAY + 3 * H, 1.0)],
        [Load(MONDAY, MONDAY + H, -1.0)],
        [Load(MONDAY, MONDAY + H, float("nan"))],
        [Load(MONDAY + H, MONDAY, 1.0)],
    ],
)
def test_a_load_that_is_none_is_refused(load: list[Load]) -> None:
    with pytest.raises(SignalError, match="load: "):
        bill(tariff(), load, MONDAY, MONDAY + 3 * H)


@given(st.lists(st.floats(0, 500), min_size=1, max_size=60), st.floats(-100, 300), st.floats(0, 0.3))
@settings(max_examples=60, deadline=None)
def test_a_bill_is_energy_at_the_retail_price(loads: list[float], market: float, vat: float) -> None:
    made = tariff(TariffType.INDEXED, grid_fee_per_mwh=33.0, taxes_per_mwh=7.0, vat=vat)
    end = MONDAY + len(loads) * H
    prices = wholesale(MONDAY, [market + n for n in range(len(loads))])
    load = [Load(MONDAY + n * H, MONDAY + (n + 1) * H, kw) for n, kw in enumerate(loads)]
    retail = price_points(made, prices, MONDAY, end, region="a", known_at=MONDAY)
    expected = sum(kw * (value_at(retail, MONDAY + n * H) or 0.0) / 1000 for n, kw in enumerate(loads))
    assert bill(made, load, MONDAY, end, wholesale=prices).total == pytest.approx(expected, abs=1e-9)
