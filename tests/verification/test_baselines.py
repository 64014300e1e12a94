"""Each baseline against an example computed by hand, and each refusal."""

from datetime import date, timedelta

import numpy as np
import pytest

from dispatcher.errors import BadInput
from dispatcher.verification.baselines import (
    DAY_METHODS,
    FIFTEEN_IN_TWENTY,
    FIVE_IN_TEN,
    FOUR_IN_FIVE,
    TEN_IN_TEN,
    Baseline,
    BaselineRefused,
    DayMethod,
    SameDay,
    counterfactual,
    firm_service_level,
    first_that_holds,
    meter_before,
    of_like_days,
    stored_plan,
)
from dispatcher.verification.like_days import Calendar
from dispatcher.verification.series import MeteredSeries, resampled
from tests.verification.samples import DAY, UTC_DAYS, at, daily, flat, weekdays_before, window, with_part

#: kW of the 20 latest working days, latest first, in no order of size.
LEVELS = [50, 70, 60, 90, 80, 40, 30, 20, 110, 100, 10, 120, 130, 15, 25, 35, 45, 55, 65, 75]


def history(levels: list[int] = LEVELS, today_w: float = 60_000.0) -> MeteredSeries:
    rows = dict(zip(weekdays_before(len(levels)), (1000.0 * level for level in levels), strict=True))
    return daily(rows | {DAY.date(): today_w})


def level(baseline: Baseline) -> float:
    assert baseline.series is not None
    assert np.unique(baseline.series.watts).size == 1
    return float(baseline.series.watts[0])


@pytest.mark.parametrize(
    ("method", "expected_kw"),
    [
        (TEN_IN_TEN, sum(LEVELS[:10]) / 10),
        (FIVE_IN_TEN, (110 + 100 + 90 + 80 + 70) / 5),
        (FOUR_IN_FIVE, (90 + 80 + 70 + 60) / 4),
        (FIFTEEN_IN_TWENTY, sum(sorted(LEVELS, reverse=True)[:15]) / 15),
    ],
)
def test_like_days_by_hand(method: DayMethod, expected_kw: float) -> None:
    made = of_like_days(history(), UTC_DAYS, window(), method)
    assert level(made) == pytest.approx(expected_kw * 1000)
    assert made.flags == ()
    assert len(made.days) == method.pick
    assert DAY_METHODS[method.name] is method
    assert made.source == method.source


def test_days_are_ranked_by_the_event_hours_alone() -> None:
    first, second = weekdays_before(2)
    rows = daily(dict.fromkeys(weekdays_before(10), 50_000.0))
    # The first day is high in the event's hours, the second all the rest of the day.
    for day, begin, end in ((first, 16, 18), (second, 0, 16)):
        back = (DAY.date() - day).days
        rows = with_part(rows, at(begin, -back), at(end, -back), 90_000.0)
    made = of_like_days(rows, UTC_DAYS, window(), DayMethod("1-in-2", 1, 2, 1, "test"))
    assert made.days == (first,)
    assert level(made) == pytest.approx(90_000)


def test_the_profile_follows_the_clock() -> None:
    days = weekdays_before(10)
    start = DAY - timedelta(days=20)
    hours = np.arange(20 * 24) % 24 * 1000.0
    series = MeteredSeries(start, 3600, hours)
    made = of_like_days(series, UTC_DAYS, window(16, 19), step_s=3600)
    assert made.series is not None
    assert made.series.watts.tolist() == pytest.approx([16_000, 17_000, 18_000])
    assert set(made.days) == set(days)


def test_fewer_days_are_used_and_said() -> None:
    made = of_like_days(history(LEVELS[:7]), UTC_DAYS, window())
    assert level(made) == pytest.approx(sum(LEVELS[:7]) / 7 * 1000)
    assert made.flags == ("only 7 of 10 eligible days were found within 45 days",)


def test_too_few_days_are_refused_with_the_count() -> None:
    with pytest.raises(BaselineRefused, match="at least 5 eligible days within 45 days, found 4") as caught:
        of_like_days(history(LEVELS[:4]), UTC_DAYS, window())
    assert caught.value.reason == "too_few_days"
    with pytest.raises(BaselineRefused, match="holds none") as caught:
        of_like_days(flat(float("nan")), UTC_DAYS, window())
    assert caught.value.reason == "no_history"


def test_multiplicative_adjustment_by_hand() -> None:
    # Like days draw 65 kW in the mean; today drew 66 kW in W.
    made = of_like_days(history(LEVELS[:10], 66_000.0), UTC_DAYS, window(), same_day=SameDay("multiplicative"))
    base = sum(LEVELS[:10]) / 10 * 1000
    change = made.adjustment
    assert change is not None
    assert (change.start, change.end) == (at(12), at(15))
    assert change.found == pytest.approx(66_000 / base)
    assert level(made) == pytest.approx(66_000)


def test_the_cap_cuts_and_is_said() -> None:
    base = sum(LEVELS[:10]) / 10 * 1000
    for today, ratio in ((base * 1.5, 1.2), (base * 0.5, 0.8)):
        made = of_like_days(history(LEVELS[:10], today), UTC_DAYS, window(), same_day=SameDay("multiplicative"))
        assert level(made) == pytest.approx(base * ratio)
        assert made.adjustment is not None and made.adjustment.clipped
        assert "the same-day adjustment was cut by its cap of 20%" in made.flags
    free = of_like_days(history(LEVELS[:10], base * 1.5), UTC_DAYS, window(), same_day=SameDay("multiplicative", cap=None))
    assert level(free) == pytest.approx(base * 1.5)


def test_additive_adjustment_by_hand() -> None:
    base = sum(LEVELS[:10]) / 10 * 1000
    made = of_like_days(history(LEVELS[:10], base + 7000), UTC_DAYS, window(), same_day=SameDay("additive", cap=None))
    assert level(made) == pytest.approx(base + 7000)
    cut = of_like_days(history(LEVELS[:10], base * 2), UTC_DAYS, window(), same_day=SameDay("additive", cap=0.1))
    assert level(cut) == pytest.approx(base * 1.1)


@pytest.mark.parametrize("kind", ["multiplicative", "additive"])
def test_load_raised_after_the_notice_does_not_raise_the_baseline(kind: str) -> None:
    event = window(16, 18, notice=12)
    honest = history(LEVELS[:10])
    raised = with_part(honest, at(12), at(16), 200_000.0)
    rule = SameDay(kind, cap=None)
    assert rule.span(event) == (at(8), at(11))
    before = of_like_days(honest, UTC_DAYS, event, same_day=rule)
    after = of_like_days(raised, UTC_DAYS, event, same_day=rule)
    assert level(before) == pytest.approx(level(after))


def test_an_adjustment_that_the_data_do_not_carry_is_refused() -> None:
    def reason(series: MeteredSeries, calendar: Calendar = UTC_DAYS) -> str:
        with pytest.raises(BaselineRefused) as caught:
            of_like_days(series, calendar, window(), same_day=SameDay("multiplicative"))
        return caught.value.reason

    assert reason(with_part(history(), at(12), at(15), float("nan"))) == "adjustment_uncovered"
    assert reason(history([0] * 10)) == "adjustment_of_zero"
    assert reason(history(), Calendar("UTC", events=((at(13), at(14)),))) == "adjustment_on_event"
    assert reason(history(), Calendar("UTC", outage_days=frozenset({DAY.date()}))) == "adjustment_on_outage"


def test_the_event_itself_may_stand_in_the_calendar() -> None:
    calendar = Calendar("UTC", events=((at(16), at(18)),))
    made = of_like_days(history(), calendar, window(), same_day=SameDay("additive"))
    assert made.adjustment is not None


def test_the_baseline_covers_what_is_asked() -> None:
    made = of_like_days(history(), UTC_DAYS, window(), over=(at(12), at(20)))
    assert made.series is not None
    assert (made.series.start, made.series.end) == (at(12), at(20))
    assert made.series.known.all()


def test_meter_before_by_hand() -> None:
    series = with_part(flat(80_000.0), at(15.5), at(15.75), 90_000.0)
    made = meter_before(series, window(16, 16.5, notice=15.75), before_s=1800)
    assert level(made) == pytest.approx(85_000)  # a quarter of an hour of each
    assert made.flags == ()
    assert meter_before(series, window(), before_s=600).flags == ("meter-before is meant for events of up to 30 min",)


def test_meter_before_and_after_is_a_straight_line() -> None:
    series = with_part(flat(80_000.0), at(17), at(24), 100_000.0)
    made = meter_before(series, window(16, 16.5), recovered_at=at(17), over=(at(16), at(17)), step_s=1800)
    assert made.series is not None
    # The line goes from 80 kW at 16:00 to 100 kW at 17:00; each slot has its value in the middle.
    assert made.series.watts.tolist() == pytest.approx([85_000, 95_000])
    with pytest.raises(BadInput, match="recovered_at"):
        meter_before(series, window(16, 18), recovered_at=at(17))


def test_meter_before_is_refused_without_a_meter() -> None:
    series = with_part(flat(80_000.0), at(15.9), at(16), float("nan"))
    with pytest.raises(BaselineRefused, match="covers 40%") as caught:
        meter_before(series, window(), before_s=600)
    assert caught.value.reason == "before_uncovered"
    gone = with_part(flat(80_000.0), at(19), at(24), float("nan"))
    with pytest.raises(BaselineRefused) as caught:
        meter_before(gone, window(), recovered_at=at(19))
    assert caught.value.reason == "after_uncovered"


def test_a_firm_service_level_measures_no_delivery() -> None:
    made = firm_service_level(50_000)
    assert made.series is None
    assert made.service_level_w == 50_000
    with pytest.raises(BadInput, match="level_w"):
        firm_service_level(-1)


def test_a_counterfactual_must_have_been_stored_before_the_notice() -> None:
    plan = flat(90_000.0)
    event = window(notice=15)
    made = counterfactual(plan, event, at(15))
    assert level(made) == pytest.approx(90_000)
    with pytest.raises(BaselineRefused) as caught:
        counterfactual(plan, event, at(15) + timedelta(seconds=1))
    assert caught.value.reason == "made_after_notice"
    with pytest.raises(BaselineRefused) as caught:
        counterfactual(flat(90_000.0, hours=17), event, at(15))
    assert caught.value.reason == "uncovered"


def test_a_stored_plan_must_have_been_made_before_the_notice_and_cover_the_event() -> None:
    event = window(notice=15)
    made = stored_plan(
        flat(90_000.0), event, at(14.9), told=["2 jobs are in it."], flags=["1 job came later"], over=(at(0), at(24))
    )
    assert made.method == "stored plan" and level(made) == pytest.approx(90_000)
    assert "made at 2026-06-23 14:54:00 UTC" in made.sentences[0] and made.sentences[1:] == ("2 jobs are in it.",)
    assert made.flags == ("this is a model of the load, not a meter's history", "1 job came later")
    for schedule, made_at, reason in ((flat(9.0), at(15.1), "made_after_notice"), (flat(9.0, hours=17), at(14), "uncovered")):
        with pytest.raises(BaselineRefused) as caught:
            stored_plan(schedule, event, made_at)
        assert caught.value.reason == reason


def test_of_an_event_that_was_told_of_late_the_notice_counts_and_not_the_start() -> None:
    event = window(notice=16.05)
    assert level(stored_plan(flat(90_000.0), event, at(16.02))) == pytest.approx(90_000)
    with pytest.raises(BaselineRefused, match="after the event was known"):
        stored_plan(flat(90_000.0), event, at(16.06))


def test_a_chain_takes_the_first_that_holds_and_keeps_the_reasons() -> None:
    series, event = history(LEVELS[:4]), window()
    fine = resampled(series, DAY, 60, 1440)
    made, refused = first_that_holds(
        [("10-in-10", lambda: of_like_days(series, UTC_DAYS, event)), ("meter before", lambda: meter_before(fine, event))]
    )
    assert made.method == "meter before"
    assert [name for name, _ in refused] == ["10-in-10"]
    with pytest.raises(BaselineRefused, match="10-in-10") as caught:
        first_that_holds([("10-in-10", lambda: of_like_days(series, UTC_DAYS, event))])
    assert caught.value.reason == "none"


def test_holidays_do_not_count_as_days() -> None:
    first = weekdays_before(1)[0]
    made = of_like_days(history(), Calendar("UTC", holidays=frozenset({first})), window(), FOUR_IN_FIVE)
    assert first not in made.days
    assert (first, "holiday") in made.passed_over
    assert isinstance(made.days[0], date)


def test_bad_adjustments_are_named() -> None:
    for wrong in ({"kind": "by feel"}, {"kind": "additive", "length_s": 0.0}, {"kind": "additive", "cap": -0.1}):
        with pytest.raises(BadInput):
            SameDay(**wrong)  # type: ignore[arg-type]
