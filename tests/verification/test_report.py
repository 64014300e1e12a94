"""The report as a whole: its verdict and words, and that its CSV carries every figure of power."""

import csv
import io
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from dispatcher.verification.baselines import Baseline, counterfactual, firm_service_level, meter_before, stored_plan
from dispatcher.verification.drawings import require
from dispatcher.verification.export import CSV_COLUMNS
from dispatcher.verification.like_days import Calendar, EventWindow
from dispatcher.verification.obligations import Held, Segment, Version, without
from dispatcher.verification.programme import Programme
from dispatcher.verification.report import EventFacts, EventReport, TierCost, event_report, to_csv, to_json
from dispatcher.verification.report_html import page
from dispatcher.verification.series import MeteredSeries
from tests.verification.samples import DAY, at, flat, window, with_part

BASE_W = 100_000.0
EVENT = window(16, 18, notice=15.5)
FACTS = EventFacts("peak-17", "utility", "frankfurt", EVENT, "evening peak")
CALL = Segment(at(16), at(18), 70_000.0, ramp_s=600)
METERED = with_part(with_part(flat(BASE_W), at(16), at(18), 60_000.0), at(18), at(18.5), 110_000.0)
CALENDAR = Calendar("Europe/Berlin")
NAN = float("nan")


def baseline() -> Baseline:
    return counterfactual(flat(BASE_W), EVENT, DAY, over=(at(0), at(24)), step_s=60)


def report(metered: MeteredSeries = METERED, segment: Segment = CALL, facts: EventFacts = FACTS, **more: Any) -> EventReport:
    given = more.pop("baseline", None) or baseline()
    return event_report(facts, [Version(at(15.5), (segment,), "call")], metered, given, calendar=CALENDAR, **more)


def test_an_event_that_was_met() -> None:
    made = report()
    assert made.verdict == "met"
    assert made.headline == (
        "The site drew 40 kW less than expected (40 %) for 2 h. It stayed within the limit in every minute."
    )
    assert made.net_event_kwh is not None and made.net_event_kwh.value == pytest.approx(80 - 5)
    assert made.net_day_kwh is not None and made.net_day_kwh.value == pytest.approx(75)
    assert made.net_day_kwh.coverage == pytest.approx(22 / 24)  # the day in Berlin began two hours before the series
    assert "Afterwards the load rose to 10 % above its baseline." in made.caveats


def test_one_bad_minute_misses_unless_a_share_is_required() -> None:
    metered = with_part(METERED, at(17), at(17) + (at(1) - at(0)) / 60, 75_000.0)
    made = report(metered)
    assert made.verdict == "missed"
    assert "in 109 of 110 minutes, and was over it by up to 5,000 W." in made.headline
    assert report(metered, required_share=0.95).verdict == "met"


def test_a_gap_is_not_proven_whatever_else_was_good() -> None:
    made = report(with_part(METERED, at(17), at(17.5), NAN))
    assert made.verdict == "not proven"
    assert "in every minute that was measured, 72.7 % of all" in made.headline
    assert made.caveats[0].startswith("The meter covers 75 % of the event.")
    assert report(flat(NAN)).verdict == "unknown"


def test_a_commitment_is_judged_by_its_energy() -> None:
    promise = Segment(at(16), at(18), committed_w=40_000.0)
    assert report(segment=promise).verdict == "met"
    assert report(segment=replace(promise, committed_w=40_001.0)).verdict == "missed"
    assert "100 % of what it had promised" in report(segment=promise).headline


def test_other_verdicts() -> None:
    assert report(facts=replace(FACTS, opted_out="maintenance")).headline == "The site opted out: maintenance."
    late = event_report(FACTS, [Version(at(18), (CALL,))], METERED, baseline(), calendar=CALENDAR)
    assert (late.verdict, late.headline) == ("nothing owed", "The event was over before anything was owed.")
    assert (late.compliance, late.caveats) == ((), ())


def test_a_firm_service_level_has_compliance_and_no_delivery() -> None:
    made = report(baseline=firm_service_level(65_000))
    assert made.verdict == "met"
    assert made.delivered is None and made.aftermath is None
    assert made.owed[0].limit_w == 65_000  # the stricter of the two
    assert report(baseline=firm_service_level(55_000)).verdict == "missed"


def test_caveats_are_said() -> None:
    marked = replace(METERED, estimated=np.arange(len(METERED)) < 17 * 60, basis="GPUs times PUE")
    made = report(
        marked, facts=replace(FACTS, test=True, open_end=True), baseline=meter_before(marked, EVENT, over=(at(0), at(24)))
    )
    told = " ".join(made.caveats)
    for words in (
        "test event",
        "no end yet",
        "50 % of what is known is estimated",
        "GPUs times PUE",
        "up to 30 min",
        "steepest rise",
    ):
        assert words in told
    odd = report(segment=replace(CALL, ramp_s=30.0))
    assert "slots of 60 s reach beyond it" in " ".join(odd.caveats)


def rows_of(made: EventReport) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(made))))


def test_figures_follow_from_the_csv() -> None:
    metered = with_part(with_part(METERED, at(17), at(17.1), NAN), at(16.5), at(16.6), 80_000.0)
    made = report(metered)
    rows = rows_of(made)
    assert tuple(rows[0]) == CSV_COLUMNS
    assert (rows[0]["slot_start_utc"], rows[-1]["slot_start_utc"]) == ("2026-06-23T14:30:00+00:00", "2026-06-23T19:59:00+00:00")
    kwh = 1 / 3_600_000

    def total(name: str, condition: str) -> float:
        return sum(
            float(row[name]) * float(row["slot_s"]) * kwh for row in rows if row[condition] not in ("", "0") and row[name]
        )

    assert made.delivered is not None and made.aftermath is not None
    assert total("delivered_w", "limit_w") == pytest.approx(made.delivered.energy_kwh.value)
    judged = [row for row in rows if row["judged"] == "1"]
    known = [row for row in judged if row["metered_w"]]
    over = [max(0.0, float(row["metered_w"]) - float(row["limit_w"])) for row in known]
    assert sum(over) * 60 * kwh == pytest.approx(made.tracking.over_cap_kwh)
    one = next(one for one in made.compliance if one.window_s == 60)
    assert (one.windows, one.measured, one.within) == (len(judged), len(known), sum(1 for value in over if value == 0))
    squares = [(float(row["metered_w"]) - float(row["limit_w"])) ** 2 for row in known]
    assert np.sqrt(np.mean(squares)) / (made.tracking.reference_w or 1) == pytest.approx(made.tracking.nrmse)
    after = [row for row in rows if row["slot_start_utc"] >= "2026-06-23T18:00:00"]
    back = sum(max(0.0, float(row["metered_w"]) - float(row["baseline_w"])) for row in after) * 60 * kwh
    assert back == pytest.approx(made.aftermath.rebound_kwh.value)
    gaps = [row for row in rows if row["quality"] == "missing"]
    assert len(gaps) == 6 and all(row["metered_w"] == row["delivered_w"] == "" for row in gaps)


def test_the_json_is_plain_and_complete() -> None:
    made = report(
        jobs=[TierCost("flex-2", 3, 60.0, 90.0, 0.1, 0.25, 0)],
        programme=Programme("Peak", "EUR", per_kwh=2.0, notice_s=3600),
        beside=[meter_before(METERED, EVENT), firm_service_level(65_000)],
        refused=[("10-in-10", "too few days")],
        worst_case_w=150_000,
    )
    plain = json.loads(json.dumps(to_json(made), allow_nan=False))
    assert plain["schema"] == "gridshift.event-report/1"
    assert plain["facts"]["window"]["start"] == "2026-06-23T16:00:00Z"
    assert plain["delivered"]["energy_kwh"] == {"value": pytest.approx(80.0), "coverage": 1.0}
    assert plain["delivered"]["least_kwh"] == pytest.approx(80.0)
    assert plain["compliance"][0]["reason"] == "the meter's slots of 60 s are too coarse to tell"
    assert plain["settlement"]["total"] == pytest.approx(120.0)  # 60 kWh implied by the limit, at 2 EUR
    assert plain["settlement"]["breaches"] == ["notice was 30.0 min, the terms say 60.0 min"]
    assert [one["energy_kwh"] for one in plain["beside"]] == [pytest.approx(80.0), None]
    assert "Outside the programme's terms" in " ".join(plain["caveats"])


def test_the_stored_plan_stands_beside_in_every_form() -> None:
    require()
    late = "2 jobs that came after the notice are not in it; they drew 3.00 kWh in the event"
    plan = stored_plan(flat(80_000.0), EVENT, at(15), told=["7 jobs are in it."], flags=[late], over=(at(0), at(24)))
    made = report(beside=[plan])
    (beside,) = to_json(made)["beside"]
    # 80 kW were planned and 60 kW drawn, for two hours.
    assert (beside["method"], beside["mean_w"], beside["energy_kwh"]) == ("stored plan", 20_000.0, pytest.approx(40.0))
    assert late in beside["flags"] and "7 jobs are in it." in beside["sentences"]
    rows = list(csv.DictReader(io.StringIO(to_csv(made))))
    assert {(row["baseline_w"], row["stored_plan_w"]) for row in rows} == {("100000.000", "80000.000")}
    html = page(made)
    assert "stored plan" in html and "20 kW" in html and "2 jobs that came after the notice" in html
    assert "planned before the notice" in html, "the drawing has it too"
    # Chosen, it is what counts, and its weaknesses are the report's.
    chosen = report(baseline=plan, beside=[baseline()])
    assert chosen.delivered is not None and chosen.delivered.energy_kwh.value == pytest.approx(40.0)
    assert f"Baseline: {late}." in chosen.caveats
    assert "planned before the notice" not in page(chosen)
    without = list(csv.DictReader(io.StringIO(to_csv(report()))))
    assert {row["stored_plan_w"] for row in without} == {""}


def test_the_page_stands_alone_and_escapes_what_others_wrote() -> None:
    require()
    evil = replace(FACTS, event_id="<script>x</script>", reason="a & b", source='"><img src=x>')
    html = page(
        report(facts=evil, jobs=[TierCost("<b>", 1, 5.0, 6.0, 0.1, 0.05, 1)], programme=Programme("<i>", "EUR", per_kwh=1.0))
    )
    assert "<script" not in html and "<img" not in html and "<i>" not in html and "<b>&lt;" not in html
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', html)
    assert html.count("<svg") == 3
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert "NaN" not in html and "nan" not in re.sub(r"base64,[^\"]*", "", html)


@pytest.mark.parametrize(
    "metered",
    [
        METERED,
        flat(NAN),
        with_part(METERED, at(18), at(24), NAN),
        MeteredSeries(datetime(2026, 6, 23, 15, tzinfo=UTC), 900, np.full(12, 6e4)),
    ],
    ids=["whole", "nothing", "nothing after", "quarter hours"],
)
@pytest.mark.parametrize("method", [baseline, lambda: firm_service_level(65_000)], ids=["baseline", "level"])
def test_every_report_can_be_written(metered: MeteredSeries, method: Any) -> None:
    made = report(metered, baseline=method(), programme=Programme("Peak", "EUR", per_kwh=2.0, penalty_per_kwh=1.0))
    assert "<h1>" in page(made)
    json.dumps(to_json(made), allow_nan=False)
    assert len(rows_of(made)) > 0


def test_a_long_fine_series_is_drawn_by_its_extremes_and_left_in_its_own_file() -> None:
    fast = MeteredSeries(DAY, 1.0, np.repeat(METERED.watts, 60))
    spike = with_part(fast, at(17), at(17) + (at(1) - at(0)) / 3600, 99_000.0)
    made = report(spike)
    assert made.tracking.worst_excess_w == pytest.approx(29_000)
    one = {row.window_s: row for row in made.compliance}
    assert one[0.5].reason is not None and one[30.0].share == 1.0
    assert len(page(made)) < 4_000_000


def test_after_a_cancellation_comes_the_recovery() -> None:
    metered = with_part(METERED, at(17), at(17.5), 120_000.0)
    versions = [Version(at(15.5), (CALL,)), Version(at(17), (), "cancelled")]
    made = event_report(FACTS, versions, metered, baseline(), calendar=CALENDAR)
    assert made.verdict == "met"
    assert (made.facts.window.end, made.facts.asked_until) == (at(17), at(18))
    assert made.delivered is not None and made.delivered.energy_kwh.value == pytest.approx(40.0)
    assert made.aftermath is not None and made.aftermath.snapback == pytest.approx(0.2)
    assert "The event was ended early, at 17:00:00 UTC instead of 18:00:00." in made.caveats


def test_a_cut_is_told_against_the_baseline_of_what_was_measured() -> None:
    rising = MeteredSeries(DAY, 3600, np.where(np.arange(24) < 17, 100_000.0, 200_000.0))
    made = report(
        with_part(METERED, at(17), at(18), NAN), baseline=counterfactual(rising, EVENT, DAY, over=(at(0), at(24)), step_s=60)
    )
    assert made.delivered is not None and made.delivered.mean_cut == pytest.approx(0.4)


def test_the_net_of_an_event_begins_at_its_notice() -> None:
    made = report(with_part(METERED, at(15.5), at(16), 120_000.0))  # pre-running: 10 kWh
    assert made.net_event_kwh is not None and made.net_event_kwh.value == pytest.approx(80 - 5 - 10)


# --- what cannot be told is said --------------------------------------------------------------------------------------------


def half_way(low_w: float, minutes: int = 10) -> tuple[MeteredSeries, Segment, EventFacts]:
    """An event that begins and ends half way through a minute of the meter, and the draw of a site that kept ``low_w``."""
    half = timedelta(seconds=30)
    start, end = at(16) + half, at(16) + timedelta(minutes=minutes) - half
    metered = with_part(flat(BASE_W), start + half, end - half, low_w)
    for edge in (start - half, end - half):
        metered = with_part(metered, edge, edge + 2 * half, (BASE_W + low_w) / 2)
    return metered, Segment(start, end, 70_000.0), replace(FACTS, window=EventWindow(at(15.5), start, end))


def test_an_event_that_was_kept_is_met_whatever_was_drawn_before_and_after() -> None:
    metered, call, facts = half_way(60_000.0, 12)
    made = report(metered, call, facts)
    assert made.verdict == "met"
    assert made.headline.endswith("It stayed within the limit in every minute that lies wholly within its time.")
    assert any("For 60 s of what was owed the meter's slots of 60 s reach beyond it" in line for line in made.caveats)
    assert made.tracking.over_cap_kwh == 0.0
    promise = replace(call, limit_w=None, committed_w=40_000.0)
    assert report(metered, promise, facts).verdict == "met"
    assert report(metered, replace(promise, committed_w=40_001.0), facts).verdict == "missed"
    missed = report(half_way(70_500.0, 12)[0], call, facts)
    assert missed.verdict == "missed" and "in 0 of 10 minutes, and was over it by up to 500 W." in missed.headline
    small = report(half_way(70_000.04, 12)[0], call, facts)
    assert "over it by up to 0.04 W." in small.headline


@pytest.mark.parametrize(("minutes", "told"), [(3, "1 of 2 minutes"), (6, "4 of 5 minutes"), (10, "8 of 9 minutes")])
def test_what_could_be_judged_only_in_part_is_not_called_met(minutes: int, told: str) -> None:
    metered, call, facts = half_way(60_000.0, minutes)
    made = report(metered, call, facts)
    assert made.verdict == to_json(made)["verdict"] == "partly judged"
    assert f"Met in what could be judged ({told}): it stayed within the limit there." in made.headline
    assert 'class="mark verdict bad">partly judged<' in page(made)
    assert report(half_way(70_500.0, minutes)[0], call, facts).verdict == "missed"


def test_windows_longer_than_the_event_are_not_shown() -> None:
    for minutes, shown in ((2, [60.0]), (3, [60.0]), (5, [60.0, 300.0]), (30, [60.0, 300.0])):
        end = at(16) + timedelta(minutes=minutes)
        facts = replace(FACTS, window=EventWindow(at(15.5), at(16), end))
        made = report(flat(60_000.0), Segment(at(16), end, 70_000.0), facts)
        assert [one.window_s for one in made.compliance if one.reason is None] == shown
        assert made.verdict == "met"


def test_time_that_was_opted_out_of_is_not_judged_and_is_said() -> None:
    metered = with_part(METERED, at(16.5), at(17), 99_000.0)
    call = replace(CALL, ramp_s=0.0)
    assert report(metered, call).verdict == "missed"
    facts = replace(FACTS, opted_out_spans=((at(16.5), at(17)),))
    made = report(metered, call, facts)
    assert made.verdict == "met"
    assert made.headline.endswith("The site had opted out from 16:30:00 to 17:00:00 UTC: that time is not judged.")
    minute = next(one for one in made.compliance if one.window_s == 60.0)
    assert (minute.windows, minute.within) == (90, 90) and made.tracking.over_cap_kwh == 0.0
    assert sum(row["judged"] == "1" for row in rows_of(made)) == 90
    assert made.delivered is not None and made.delivered.energy_kwh.value == pytest.approx(60.5), "all that was asked for"
    late = with_part(metered, at(17.5), at(17.6), 99_000.0)
    assert report(late, call, facts).verdict == "missed", "outside that time it is judged as ever"
    # To the end: what came before is judged, and the reason is said.
    rest = replace(facts, opted_out="a release", opted_out_spans=((at(16.5), at(18)),))
    made = report(metered, call, rest)
    assert made.verdict == "met" and made.headline.endswith("to 18:00:00 UTC (a release): that time is not judged.")
    whole = replace(facts, opted_out="a release", opted_out_spans=((at(16), at(18)),))
    assert report(metered, call, whole).verdict == "opted out"


def test_after_an_opt_out_the_ramp_is_allowed_anew() -> None:
    held = without((Held(at(16), at(16.1), at(18), 70_000.0, None, 0),), [(at(17), at(17.5))])
    assert [(one.start, one.hold_at, one.end) for one in held] == [
        (at(16), at(16.1), at(17)),
        (at(17.5), at(17.5) + (at(16.1) - at(16)), at(18)),
    ]


def test_nothing_is_met_from_nothing() -> None:
    start = at(16) + timedelta(seconds=20)
    facts = replace(FACTS, window=EventWindow(at(15.5), start, start + timedelta(seconds=70)))
    for watts in (10_000.0, 99_000.0):
        made = report(flat(watts), Segment(start, start + timedelta(seconds=70), 70_000.0), facts)
        assert made.verdict == "unknown"
        assert made.headline == (
            "Whether the limit was held cannot be told: no reading lies wholly within the time that the limit was to be held."
        )
    # Of two minutes and a half one lies within: too little to call all of it kept, enough to see that it was not.
    longer = Segment(start, start + timedelta(seconds=130), 70_000.0)
    facts = replace(facts, window=EventWindow(at(15.5), start, start + timedelta(seconds=130)))
    assert report(flat(10_000.0), longer, facts).verdict == "not proven"
    assert report(flat(99_000.0), longer, facts).verdict == "missed"


def test_what_counters_bridged_is_energy_and_no_proof() -> None:
    spread = (np.arange(len(METERED)) >= 17 * 60) & (np.arange(len(METERED)) < 17.5 * 60)
    made = report(replace(METERED, spread=spread))
    assert made.verdict == "not proven" and made.coverage == pytest.approx(0.75) and made.spread_s == pytest.approx(1800.0)
    assert made.delivered is not None and made.delivered.energy_kwh.complete
    assert any("For 30 min of the event (25 %) only the energy of a longer stretch is known" in one for one in made.caveats)
    promise = replace(CALL, limit_w=None, committed_w=40_000.0)
    assert report(replace(METERED, spread=spread), promise).verdict == "not proven"
    all_of_it = report(replace(METERED, spread=np.ones(len(METERED), dtype=np.bool_)))
    assert all_of_it.verdict == "unknown" and "only the energy of the event's time is known" in all_of_it.headline


def test_readings_that_are_still_to_come_are_said() -> None:
    early = with_part(METERED, at(18) - timedelta(minutes=2), at(24), NAN)
    facts = replace(FACTS, told_at=at(18) + timedelta(seconds=10), late_s=180.0)
    made = report(early, facts=facts)
    assert made.verdict == "not proven"
    assert made.headline.endswith("Not all readings of the event's time have come yet: ask again later (from 18:03 UTC).")
    over = report(with_part(early, at(17), at(17.1), 99_000.0), facts=facts)
    assert over.verdict == "missed" and over.caveats[0].endswith("ask again later (from 18:03 UTC).")
    assert "ask again" not in report(early, facts=replace(facts, told_at=at(19))).headline, "they will not come any more"
    assert "ask again" not in " ".join(report(facts=facts).caveats), "all are there"
    gap = with_part(METERED, at(17), at(17.1), NAN)
    assert "ask again" not in report(gap, facts=facts).headline, "what is missing from an hour ago is missing"
