"""The published events, measured again: the figures are those that a reading of the same files by hand gives."""

from datetime import datetime, timedelta

import pytest

from dispatcher.verification.baselines import meter_before
from dispatcher.verification.delivered import aftermath, delivered
from dispatcher.verification.holding import tracking, worst_rise
from dispatcher.verification.like_days import EventWindow
from dispatcher.verification.obligations import Segment, Version, in_force
from tests.verification.samples import emerald


def local(text: str) -> datetime:
    return datetime.fromisoformat(f"2025-05-04 {text}:00-07:00")


def test_srp_event() -> None:
    metered = emerald("SRP_total_power.csv")
    window = EventWindow(local("16:00"), local("16:10"), local("19:30"))
    over = (metered.start, metered.end)
    baseline = meter_before(metered, window, before_s=3600, over=over)
    assert baseline.series is not None
    base_w = float(baseline.series.watts[0])
    assert base_w == pytest.approx(93_104, abs=1)
    limit_w = base_w * 0.71
    versions = [Version(local("16:00"), (Segment(window.start, window.end, limit_w, ramp_s=1200),))]
    owed = in_force(versions, window.end)

    kept = tracking(metered, baseline.series, owed)
    assert kept.hold_cut == pytest.approx(0.314, abs=0.0005)
    assert kept.weakest_cut == pytest.approx(0.294, abs=0.0005)
    assert kept.first_s == 4 * 60
    assert kept.steady_s == 16 * 60
    assert kept.over_cap_kwh == 0.0
    assert limit_w - (kept.over_shed_w or 0.0) == pytest.approx(46_600, abs=50)
    rise = worst_rise(metered, window.start, window.end + timedelta(hours=2))
    assert rise is not None and rise.rise_w == pytest.approx(14_148, abs=1)
    assert rise.at == local("19:36")

    made = delivered(metered, baseline.series, owed)
    assert made.energy_kwh.complete
    after = aftermath(metered, baseline.series, window.end, made.energy_kwh.value)
    # The series ends after 110 of the 120 min: the rest is unknown, not calm.
    assert after.rebound_kwh.coverage == pytest.approx(110 / 120)
    assert after.snapback is not None and after.snapback < 0  # published: no minute above 97.6 % of the base


def test_caiso_event_has_two_steps() -> None:
    metered = emerald("CAISOexp_totalpower_cleaned.csv")
    start = metered.start
    event = EventWindow(start + timedelta(minutes=60), start + timedelta(minutes=65), start + timedelta(minutes=365))
    baseline = meter_before(metered, event, before_s=3600, over=(metered.start, metered.end))
    assert baseline.series is not None
    assert float(baseline.series.watts[0]) == pytest.approx(91_200, abs=1000)

    def cut(first: int, last: int) -> float | None:
        segment = Segment(start + timedelta(minutes=first), start + timedelta(minutes=last), 76_000.0)
        return tracking(metered, baseline.series, in_force([Version(start, (segment,))], metered.end)).hold_cut

    assert cut(80, 225) == pytest.approx(0.186, abs=0.005)
    assert cut(245, 365) == pytest.approx(0.311, abs=0.005)
    rise = worst_rise(metered, start, metered.end)
    assert rise is not None and rise.rise_w == pytest.approx(19_348, abs=1)
