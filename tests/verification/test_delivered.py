"""Delivery, rebound and nets against examples computed by hand."""

import numpy as np
import pytest

from dispatcher.verification.delivered import aftermath, delivered, net_shed_kwh
from dispatcher.verification.series import MeteredSeries
from tests.verification.samples import DAY, at, flat, owed, with_part

BASE = flat(100_000.0)
#: 60 kW in the event, 110 kW in the hour after it.
METERED = with_part(with_part(flat(100_000.0), at(16), at(18), 60_000.0), at(18), at(19), 110_000.0)
NAN = float("nan")


def test_a_delivery_by_hand() -> None:
    made = delivered(METERED, BASE, owed(limit_w=70_000.0, committed_w=30_000.0))
    assert made.energy_kwh.value == pytest.approx(80.0)  # 40 kW for 2 h
    assert made.energy_kwh.complete
    assert made.mean_w.value == pytest.approx(40_000)
    assert made.mean_cut == pytest.approx(0.4)
    assert made.committed_kwh == pytest.approx(60.0)
    assert made.performance == pytest.approx(80 / 60)
    assert (made.shortfall_kwh, made.unmeasured_kwh, made.negative_kwh) == (0.0, 0.0, 0.0)
    assert not made.committed_by_limit


def test_excess_in_one_interval_does_not_pay_for_another() -> None:
    metered = with_part(with_part(flat(100_000.0), at(16), at(17), 40_000.0), at(17), at(18), 90_000.0)
    made = delivered(metered, BASE, owed(committed_w=30_000.0))
    assert made.energy_kwh.value == pytest.approx(70.0)
    assert made.performance == pytest.approx(70 / 60)
    assert made.shortfall_kwh == pytest.approx(20.0)  # 20 kW for the second hour
    # A programme that settles by two hours sees none.
    assert delivered(metered, BASE, owed(committed_w=30_000.0), interval_s=7200).shortfall_kwh == 0.0


def test_a_negative_delivery_is_shown_and_taken_off() -> None:
    metered = with_part(METERED, at(17), at(18), 120_000.0)
    made = delivered(metered, BASE, owed(committed_w=30_000.0))
    assert made.energy_kwh.value == pytest.approx(40.0 - 20.0)
    assert made.negative_kwh == pytest.approx(20.0)
    assert made.shortfall_kwh == pytest.approx(50.0)
    worse = delivered(flat(120_000.0), BASE, owed(committed_w=30_000.0))
    assert worse.performance == pytest.approx(-40 / 60)


def test_the_limit_implies_a_commitment_where_none_was_agreed() -> None:
    made = delivered(METERED, BASE, owed(limit_w=70_000.0))
    assert made.committed_by_limit
    assert made.committed_kwh == pytest.approx(60.0)


def test_what_is_missing_is_not_delivered() -> None:
    metered = with_part(METERED, at(17), at(18), NAN)
    made = delivered(metered, BASE, owed(committed_w=30_000.0), worst_case_w=150_000.0)
    assert made.energy_kwh.value == pytest.approx(40.0)
    assert made.energy_kwh.coverage == pytest.approx(0.5)
    assert made.mean_w.value == pytest.approx(40_000)
    assert made.performance == pytest.approx(40 / 60)
    assert (made.shortfall_kwh, made.unmeasured_kwh) == (0.0, pytest.approx(30.0))
    assert made.least_kwh == pytest.approx(40.0 - 50.0)  # had it drawn 150 kW in that hour


def test_a_meter_that_ends_early_is_missing_too() -> None:
    short = MeteredSeries(DAY, 60, METERED.watts[: 17 * 60])
    made = delivered(short, BASE, owed(committed_w=30_000.0), worst_case_w=150_000.0)
    assert made.energy_kwh.coverage == pytest.approx(0.5)
    assert made.unmeasured_kwh == pytest.approx(30.0)
    assert made.least_kwh == pytest.approx(-10.0)


def test_nothing_measured_is_unknown_not_zero() -> None:
    made = delivered(flat(NAN), BASE, owed(committed_w=30_000.0))
    assert made.energy_kwh.value is None
    assert made.performance is None
    assert made.unmeasured_kwh == pytest.approx(60.0)


def test_rebound_and_snapback_by_hand() -> None:
    after = aftermath(METERED, BASE, at(18), delivered_kwh=80.0)
    assert after.snapback == pytest.approx(0.10)
    assert after.snapback_at == at(18)
    assert after.rebound_kwh.value == pytest.approx(10.0)
    assert after.rebound_share == pytest.approx(0.125)
    calm = aftermath(flat(95_000.0), BASE, at(18), delivered_kwh=80.0)
    assert calm.snapback == pytest.approx(-0.05)
    assert calm.rebound_kwh.value == 0.0


def test_unknown_hours_after_the_event_are_no_calm_ones() -> None:
    after = aftermath(with_part(METERED, at(18), at(24), NAN), BASE, at(18), 80.0)
    assert (after.snapback, after.rebound_kwh.value, after.rebound_share) == (None, None, None)


def test_the_net_counts_load_moved_before_and_after() -> None:
    moved = with_part(METERED, at(15), at(16), 130_000.0)
    assert net_shed_kwh(moved, BASE, at(15), at(20)).value == pytest.approx(80 - 30 - 10)
    assert net_shed_kwh(moved, BASE, at(0), at(24)).value == pytest.approx(40)
    assert net_shed_kwh(moved, flat(100_000.0, hours=12), at(0), at(24)).coverage == pytest.approx(0.5)


def test_a_fine_meter_and_a_coarse_baseline_agree() -> None:
    fine = MeteredSeries(DAY, 1.0, np.repeat(METERED.watts, 60))
    coarse = MeteredSeries(DAY, 900.0, np.full(96, 100_000.0))
    assert delivered(fine, coarse, owed()).energy_kwh.value == pytest.approx(80.0)
