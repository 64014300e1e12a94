"""Peaks learned from draws as they change, and the demand charges made of them."""

from datetime import UTC, datetime, timedelta

import pytest

from dispatcher.peaks import Peaks
from signals.tariffs import DemandTerms, Tariff, TariffType
from signals.time_of_use import Period

NOW = datetime(2026, 1, 5, 12, 5, tzinfo=UTC)
JANUARY = datetime(2026, 1, 1, tzinfo=UTC)
M = timedelta(minutes=1)


def peaks(**terms: object) -> Peaks:
    demand = DemandTerms(12.0, **terms)  # type: ignore[arg-type]
    tariff = Tariff("t", TariffType.FIXED, "EUR", "UTC", energy_per_mwh=100.0, demand=demand)
    plain = Tariff("p", TariffType.FIXED, "EUR", "UTC", energy_per_mwh=100.0)
    return Peaks({"a": tariff, "b": plain}, timedelta(hours=48))


def test_a_region_without_a_demand_charge_has_none() -> None:
    book = peaks()
    book.note("b", NOW, 1e6)
    assert book.charges("b", NOW) == () and book.charges("unknown", NOW) == () and book.measured_kw("b") == {}


def test_the_highest_mean_of_whole_intervals_is_learned() -> None:
    book = peaks()
    book.note("a", NOW, 60_000.0)
    book.note("a", NOW + 5 * M, 0.0)  # 5 of the 15 minutes from 12:00
    assert book.measured_kw("a") == {JANUARY: pytest.approx(20.0)}
    book.note("a", NOW + 15 * M, 30_000.0)
    book.note("a", NOW + 60 * M, 0.0)
    assert book.measured_kw("a") == {JANUARY: pytest.approx(30.0)}
    assert [charge.peak_w for charge in book.charges("a", NOW + 60 * M)] == [pytest.approx(30_000.0)]


def test_a_stated_peak_stands_until_a_higher_one_is_seen() -> None:
    book = peaks(peak_kw=25.0)
    assert book.charges("a", NOW)[0].peak_w == 25_000.0 and book.charges("a", NOW)[0].per_kw == 12.0
    book.note("a", NOW, 40_000.0)
    book.note("a", NOW + 40 * M, 0.0)
    assert book.charges("a", NOW + 40 * M)[0].peak_w == pytest.approx(40_000.0)


def test_a_new_month_begins_with_its_own_peak() -> None:
    book = peaks()
    end = datetime(2026, 1, 31, 23, 0, tzinfo=UTC)
    book.note("a", end, 50_000.0)
    book.note("a", end + 60 * M, 10_000.0)
    book.note("a", end + 120 * M, 10_000.0)
    february = datetime(2026, 2, 1, tzinfo=UTC)
    assert book.measured_kw("a") == {JANUARY: pytest.approx(50.0), february: pytest.approx(10.0)}
    assert [charge.peak_w for charge in book.charges("a", end + 30 * M)] == pytest.approx([50_000.0, 10_000.0])


def test_only_hours_that_count_make_a_peak_and_time_runs_forward() -> None:
    book = peaks(windows=(Period("evening", from_min=17 * 60, to_min=20 * 60),))
    book.note("a", NOW, 90_000.0)
    book.note("a", NOW + 60 * M, 20_000.0)
    assert book.measured_kw("a") == {}
    book.note("a", NOW + 55 * M, 1e9)  # a clock that went back a little says nothing
    book.note("a", NOW + 360 * M, 0.0)
    assert book.measured_kw("a") == {JANUARY: pytest.approx(20.0)}


def test_a_clock_that_was_ahead_for_a_moment_stops_no_learning() -> None:
    book = peaks()
    book.note("a", NOW, 10_000.0)
    book.note("a", NOW + timedelta(hours=60), 10_000.0)
    book.note("a", NOW + 5 * M, 90_000.0)
    book.note("a", NOW + 40 * M, 0.0)
    assert book.measured_kw("a") == {JANUARY: pytest.approx(90.0)}
