"""Money by a programme's terms, computed by hand, and calls outside the terms."""

from dataclasses import replace
from datetime import timedelta

import pytest

from dispatcher.errors import BadInput
from dispatcher.verification.like_days import EventWindow
from dispatcher.verification.programme import Outcome, Programme, breaches_of, settle
from tests.verification.samples import at, window

TERMS = Programme("Peak", "EUR", per_kwh=2.0, per_kw=5.0, penalty_per_kwh=3.0)
#: 30 kW promised for two hours; 50 of 60 kWh delivered, 12 kWh short in some intervals.
SOME = Outcome(50.0, 60.0, 30.0, 12.0, 0.0, 4.0)


def amounts(programme: Programme, outcome: Outcome) -> list[float | None]:
    return [line.amount for line in settle(programme, outcome).lines]


def test_payment_and_penalty_by_hand() -> None:
    made = settle(TERMS, SOME)
    assert [line.amount for line in made.lines] == pytest.approx([100.0, 30 * 50 / 60 * 5, -36.0])
    assert made.total == pytest.approx(100 + 125 - 36)
    assert made.least == made.total
    assert made.currency == "EUR"


def test_energy_is_paid_up_to_the_commitment_unless_terms_say_more() -> None:
    plenty = replace(SOME, delivered_kwh=90.0, shortfall_kwh=0.0)
    assert amounts(TERMS, plenty) == pytest.approx([120.0, 150.0, 0.0])
    assert amounts(replace(TERMS, paid_up_to=None), plenty)[0] == pytest.approx(180.0)
    assert amounts(replace(TERMS, paid_up_to=1.2), plenty)[0] == pytest.approx(144.0)


def test_negative_delivery_is_not_paid_and_its_shortfall_costs() -> None:
    worse = replace(SOME, delivered_kwh=-10.0, shortfall_kwh=70.0)
    assert amounts(TERMS, worse) == pytest.approx([0.0, 0.0, -210.0])
    assert amounts(Programme("Voluntary", "USD", per_kwh=2.0), Outcome(-10.0, None, None, None, 0.0, None)) == [0.0]


def test_below_the_least_performance_nothing_is_paid() -> None:
    made = settle(replace(TERMS, minimum_performance=0.9), SOME)
    assert [line.amount for line in made.lines] == pytest.approx([0.0, 0.0, -36.0])
    assert made.remarks == ("Nothing is paid below a performance of 90%.",)


def test_a_penalty_may_be_on_what_was_drawn_above_the_limit() -> None:
    level = Programme("Firm level", "USD", penalty_per_kwh=6.0, penalty_on="excess")
    assert settle(level, SOME).total == pytest.approx(-24.0)
    unmeasured = settle(level, replace(SOME, unmeasured_over_cap=True))
    assert unmeasured.total == pytest.approx(-24.0)
    assert unmeasured.least is None


def test_unmeasured_energy_may_cost_a_penalty() -> None:
    made = settle(TERMS, replace(SOME, unmeasured_kwh=10.0))
    assert made.least == pytest.approx((made.total or 0.0) - 30.0)


def test_unknown_delivery_has_no_amount() -> None:
    made = settle(TERMS, Outcome(None, 60.0, 30.0, None, 60.0, None))
    assert made.total is None
    assert made.least is None
    assert settle(Programme("Nothing", "EUR"), SOME).total is None


def test_an_opt_out_costs_what_the_terms_say() -> None:
    made = settle(replace(TERMS, opt_out_cost=250.0), replace(SOME, opted_out=True))
    assert (made.total, made.least) == (-250.0, -250.0)
    assert settle(TERMS, replace(SOME, opted_out=True)).total == 0.0


def test_the_seasons_payment_is_told_and_not_counted() -> None:
    made = settle(replace(TERMS, per_kw_season=40.0), SOME)
    assert made.total == settle(TERMS, SOME).total
    assert "40.00 EUR a kW" in made.remarks[0]


def test_calls_outside_the_terms_are_said() -> None:
    terms = Programme(
        "Peak", "USD", notice_s=1800, months=frozenset({5, 7}), hours=(16, 21), max_event_hours=1.5, max_events=2, max_hours=5,
        timezone="America/Phoenix",
    )  # fmt: skip
    late = EventWindow(at(21.9), at(22), at(24))  # 15:00 to 17:00 there, in June
    earlier = ((at(22, -2), at(24, -2)), (at(22, -1), at(24, -1)))
    assert breaches_of(terms, late, earlier) == (
        "notice was 6.0 min, the terms say 30.0 min",
        "June is outside the season",
        "15:00 to 17:00 America/Phoenix is not within 16 to 21 h",
        "it lasted 2 h, the terms say 1.5 h at most",
        "it was event 3 of a season that may have 2",
        "it brought the season to 6 h, the terms say 5 h",
    )
    assert breaches_of(Programme("Any", "EUR"), late, earlier) == ()


def test_hours_end_before_their_last_moment() -> None:
    terms = Programme("Peak", "EUR", hours=(16, 18))
    assert breaches_of(terms, window(16, 18)) == ()
    assert len(breaches_of(terms, EventWindow(at(16), at(16), at(18) + timedelta(seconds=1)))) == 1
    assert len(breaches_of(Programme("Day", "EUR", hours=(0, 24)), window(22, 26))) == 1


def test_bad_terms_are_all_named() -> None:
    with pytest.raises(BadInput) as caught:
        Programme("x", "euro", per_kwh=-1.0, penalty_on="mood", months=frozenset({13}), hours=(20, 8), timezone="Nowhere")
    assert [field for field, _, _ in caught.value.problems] == [
        "currency",
        "per_kwh",
        "penalty_on",
        "months",
        "hours",
        "timezone",
    ]
