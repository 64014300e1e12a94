"""What is done at a moment: wishes, limits, launches and pauses, each once and each with its sentence."""

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.decide import HELD, decide, last_safe_start
from policies.fit import uses_room
from policies.planner import plan
from policies.world import (
    Action,
    Alarm,
    AskCheckpoint,
    Budget,
    EndCancelled,
    Hold,
    JobState,
    JobView,
    Launch,
    Pausable,
    Placement,
    Plan,
    Reserved,
    StopAttempt,
    World,
)
from tests.policies.worlds import NOW, job, region, running, world

H = timedelta(hours=1)
FLAT = [50.0] * 192


def planned(picture: World, job_id: str, where: str, *spans: tuple[float, float]) -> World:
    """The picture with a plan that has one job run at these hours from now."""
    intervals = tuple((NOW + a * H, NOW + b * H) for a, b in spans)
    placement = Placement(job_id, where, intervals, 1.0, 1.0, None, 0.0, "cheapest before its deadline")
    return replace(picture, plan=Plan(NOW, NOW + 48 * H, 900, {job_id: placement}, {}, 1.0))


def rigid(job_id: str, **more: Any) -> JobView:
    return job(job_id, flexible=False, deadline_at=None, **more)


def only(actions: list[Action]) -> Action:
    assert len(actions) == 1, actions
    return actions[0]


def test_who_runs_in_a_region_that_is_gone_is_not_said_to_be_stopped() -> None:
    gone = running("j", "nowhere", cancel_requested=True)
    action = only(decide(world([gone], [region("a", FLAT)])))
    assert isinstance(action, Hold) and "nobody can stop it there" in action.reason
    assert decide(world([replace(gone, reason=action.reason)], [region("a", FLAT)])) == []


def test_after_a_limit_load_comes_back_step_by_step() -> None:
    over = Budget("a", NOW - 2 * H, NOW - timedelta(seconds=300), 1000.0, "e", "the event", recovery_s=900.0)
    runs = running("r", "a")
    waiting = [job(f"p{at}", state=JobState.PAUSED, region="a", attempt=1, deadline_at=NOW + H) for at in range(3)]
    picture = world([runs, *waiting], [region("a", FLAT)], budgets=(over,))
    # 1,000 W runs, 3,000 W were paused; a third of the way back 2,000 W may be drawn.
    launched = [action for action in decide(picture) if isinstance(action, Launch)]
    held = [action for action in decide(picture) if isinstance(action, Hold)]
    assert len(launched) == 1 and len(held) == 2
    assert "comes back step by step until 2026-02-03 06:10Z from the event: 2,000 W so far" in held[0].reason
    later = replace(picture, now=NOW + timedelta(seconds=600))
    assert len([action for action in decide(later) if isinstance(action, Launch)]) == 3
    urgent = job("now", flexible=False, deadline_at=None)
    assert Launch in {type(one) for one in decide(replace(picture, jobs=(runs, *waiting, urgent))) if one.job_id == "now"}


# --- wishes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (JobState.QUEUED, EndCancelled),
        (JobState.PAUSED, EndCancelled),
        (JobState.LAUNCHING, StopAttempt),
        (JobState.RUNNING, StopAttempt),
        (JobState.PAUSING, StopAttempt),
    ],
)
def test_cancelling(state: JobState, kind: type) -> None:
    one = job("j", state=state, region="a", cancel_requested=True, held=True)
    assert isinstance(only(decide(world([one], [region("a", FLAT)]))), kind)


def test_an_owner_pauses_a_running_job_and_holds_a_waiting_one() -> None:
    assert isinstance(only(decide(world([running("j", "a", held=True)], [region("a", FLAT)]))), AskCheckpoint)
    assert decide(world([running("j", "a", held=True, pausable=Pausable.NO)], [region("a", FLAT)])) == []
    assert only(decide(world([job("j", held=True)], [region("a", FLAT)]))) == Hold("j", HELD)


@pytest.mark.parametrize("deadline_at", [NOW + 12 * H, NOW + timedelta(minutes=5), NOW - H])
def test_a_held_job_that_says_so_is_left_alone_whatever_its_deadline(deadline_at: datetime) -> None:
    one = job("j", held=True, reason=HELD, deadline_at=deadline_at)
    picture = world([one], [region("a", FLAT)])
    assert decide(planned(picture, "j", "a", (0, 1))) == []


def test_a_held_job_that_gave_no_checkpoint_is_not_asked_again_at_once() -> None:
    one = running("j", "a", held=True, checkpoint_misses=1, last_pause_asked_at=NOW - timedelta(seconds=30))
    assert decide(world([one], [region("a", FLAT)])) == []
    later = replace(one, last_pause_asked_at=NOW - timedelta(seconds=601))
    assert isinstance(only(decide(world([later], [region("a", FLAT)]))), AskCheckpoint)


# --- launches ---------------------------------------------------------------------------------------------------------


def test_a_job_without_metadata_starts_at_once_at_home() -> None:
    regions = [region("b", [1.0] * 192), region("a", FLAT)]
    assert only(decide(world([rigid("j")], regions))) == Launch("j", "a", "starts at once: it has no gridshift metadata, in a")
    elsewhere = [region("b", FLAT), region("a", FLAT, reachable=False)]
    held = only(decide(world([rigid("j")], elsewhere)))
    assert isinstance(held, Hold) and "a does not answer" in held.reason, "never moved where its owner does not expect it"


def test_a_job_without_metadata_waits_only_for_room() -> None:
    budget = Budget("a", NOW - H, None, 500.0, "e1", "heat wave")
    held = only(decide(world([rigid("j")], [region("a", FLAT)], budgets=(budget,))))
    assert isinstance(held, Hold) and "heat wave" in held.reason and "500 W" in held.reason
    full = only(decide(world([rigid("j", gpus=8.0), running("r", "a")], [region("a", FLAT)])))
    assert isinstance(full, Launch), "Ray itself queues for GPUs, as it does without gridshift"


def test_the_plan_says_when_and_where() -> None:
    picture = world([job("j")], [region("a", FLAT), region("b", FLAT)])
    assert only(decide(planned(picture, "j", "b", (0, 1)))) == Launch("j", "b", "cheapest before its deadline")
    held = only(decide(planned(picture, "j", "b", (2, 3))))
    assert held == Hold("j", "cheapest before its deadline", "b", NOW + 2 * H)
    said = replace(picture.jobs[0], reason=held.reason, planned_region="b", planned_start_at=NOW + 2 * H)
    assert decide(planned(replace(picture, jobs=(said,)), "j", "b", (2, 3))) == []


def test_without_a_plan_a_flexible_job_waits_but_never_beyond_its_last_safe_moment() -> None:
    one = job("j", deadline_at=NOW + 2 * H)
    picture = world([one], [region("a", FLAT), region("b", [1.0] * 192)])
    assert isinstance(only(decide(picture)), Hold)
    last = last_safe_start(one, picture)
    assert last is not None and last < NOW + H
    assert isinstance(only(decide(replace(picture, now=last - timedelta(seconds=1)))), Hold)
    start = only(decide(replace(picture, now=last)))
    assert (
        isinstance(start, Launch)
        and start.region == "b"
        and "a later start could miss its deadline 2026-02-03 08:00Z" in start.reason
    )
    late = only(decide(replace(picture, now=NOW + 3 * H)))
    assert isinstance(late, Launch) and "will end after its deadline" in late.reason


def test_at_its_last_safe_moment_a_job_stays_with_its_data() -> None:
    one = job("j", deadline_at=NOW + H, data_gb=100.0, data_region="a")
    assert only(decide(world([one], [region("b", [1.0] * 192), region("a", FLAT)]))).region == "a"  # type: ignore[union-attr]


def test_what_may_not_start_yet() -> None:
    early = job("j", earliest_at=NOW + H)
    held = only(decide(planned(world([early], [region("a", FLAT)]), "j", "a", (0, 1))))
    assert isinstance(held, Hold) and held.reason == "may not start before 2026-02-03 07:00Z"
    refused = job("j", not_before_at=NOW + H)
    assert decide(planned(world([refused], [region("a", FLAT)]), "j", "a", (0, 1))) == []
    gone = planned(world([job("j")], [region("a", FLAT, reachable=False)]), "j", "a", (0, 1))
    assert "does not answer" in only(decide(gone)).reason  # type: ignore[union-attr]


def test_a_part_is_not_begun_for_its_last_minutes() -> None:
    paused = job("j", state=JobState.PAUSED, region="a", attempt=1, pausable=Pausable.CHECKPOINT)
    picture = world([paused], [region("a", FLAT)])
    assert isinstance(only(decide(planned(picture, "j", "a", (-1, 0.1), (5, 6)))), Hold)
    assert isinstance(only(decide(planned(picture, "j", "a", (-1, 0.5), (5, 6)))), Launch)


def test_the_last_room_goes_to_the_job_with_the_highest_priority() -> None:
    jobs = [rigid("x", power_w=500.0), rigid("y", power_w=500.0, priority=3)]
    actions = decide(world(jobs, [region("a", FLAT, power_limit_w=800.0)]))
    assert [a.job_id for a in actions if isinstance(a, Launch)] == ["y"]


# --- limits and pauses ------------------------------------------------------------------------------------------------


def test_a_limit_pauses_the_cheapest_losses_and_no_more_than_it_takes() -> None:
    jobs = [
        running("vip", "a", priority=5),
        running("easy", "a", tier="flex-3"),
        running("hard", "a", tier="flex-1"),
        running("fixed", "a", pausable=Pausable.NO),
    ]
    budget = Budget("a", NOW - H, None, 2500.0, "e1", "grid call")
    asked = decide(world(jobs, [region("a", FLAT)], budgets=(budget,)))
    assert [a.job_id for a in asked if isinstance(a, AskCheckpoint)] == ["easy", "hard"]
    assert all("grid call" in a.reason for a in asked if isinstance(a, AskCheckpoint))
    going = replace(jobs[1], state=JobState.PAUSING, pause_requested=True)
    again = decide(world([jobs[0], going, *jobs[2:]], [region("a", FLAT)], budgets=(budget,)))
    assert [a.job_id for a in again] == ["hard"], "what is going already counts"


def test_a_limit_that_cannot_be_met_is_an_alarm_with_the_shortfall() -> None:
    budget = Budget("a", NOW - H, None, 400.0, "e1", "grid call")
    alarm = only(decide(world([running("fixed", "a", pausable=Pausable.NO)], [region("a", FLAT)], budgets=(budget,))))
    assert isinstance(alarm, Alarm) and alarm.region == "a" and "600 W above its limit of 400 W" in alarm.sentence
    assert "are expected to draw" in alarm.sentence and "1 job there cannot be paused" in alarm.sentence


def test_a_job_that_does_not_answer_is_named_when_a_limit_is_not_met() -> None:
    deaf = running("deaf", "a", checkpoint_misses=1, last_pause_asked_at=NOW - timedelta(seconds=5))
    alarm = only(decide(world([deaf], [region("a", FLAT)], budgets=(Budget("a", NOW - H, None, 0.0, "e1", "grid call"),))))
    assert isinstance(alarm, Alarm) and "deaf did not answer when asked for a checkpoint" in alarm.sentence


def test_a_coming_limit_asks_in_time_for_the_checkpoint_and_no_earlier() -> None:
    one = running("j", "a", runtime_s=6 * 3600.0, checkpoint_s=120.0)

    def ahead(seconds: float) -> list[Action]:
        budget = Budget("a", NOW + timedelta(seconds=seconds), None, 500.0, "e1", "grid call")
        return decide(world([one], [region("a", FLAT)], budgets=(budget,)))

    assert ahead(600) == []
    assert "from 2026-02-03 06:02Z (grid call)" in only(ahead(125)).reason  # type: ignore[union-attr]


def test_a_coming_limit_leaves_to_serving_what_is_kept_for_it_then() -> None:
    one = running("j", "a", runtime_s=6 * 3600.0, checkpoint_s=120.0)
    begins = NOW + timedelta(seconds=125)
    budget = Budget("a", begins, None, 1500.0, "e1", "grid call")

    def ahead(kept_w: float, start: datetime, end: datetime) -> list[Action]:
        kept = Reserved(start, end, 1.0, kept_w)
        return decide(world([one], [region("a", FLAT, reserved=(kept,))], budgets=(budget,)))

    assert ahead(400.0, NOW - H, NOW + 4 * H) == [], "both have room below it"
    asked = only(ahead(600.0, NOW - H, NOW + 4 * H))
    assert isinstance(asked, AskCheckpoint) and "may draw 1,500 W from 2026-02-03 06:02Z" in asked.reason
    assert isinstance(only(ahead(600.0, begins, NOW + 4 * H)), AskCheckpoint), "kept from its start on"
    assert ahead(600.0, NOW - H, begins) == [], "no more is kept once it begins"


def test_a_job_does_not_start_into_a_coming_limit_that_serving_needs() -> None:
    waiting = job("j", checkpoint_s=120.0, pausable=Pausable.CHECKPOINT)
    begins = NOW + timedelta(seconds=60)
    budget = Budget("a", begins, None, 1500.0, "e1", "grid call")

    def start(kept_w: float, start: datetime, end: datetime) -> Action:
        here = region("a", FLAT, reserved=(Reserved(start, end, 1.0, kept_w),))
        return only(decide(planned(world([waiting], [here], budgets=(budget,)), "j", "a", (0, 2))))

    assert isinstance(start(600.0, begins, NOW + 4 * H), Hold), "it would be asked to pause at once"
    assert isinstance(start(600.0, NOW - H, begins), Launch), "what is kept ends before the limit begins"


def test_a_deadline_starts_nothing_that_a_coming_limit_would_pause_at_once() -> None:
    urgent = job("j", checkpoint_s=120.0, pausable=Pausable.CHECKPOINT, deadline_at=NOW + 1.1 * H)

    def start(begins_s: float) -> Action:
        budget = Budget("a", NOW + timedelta(seconds=begins_s), None, 500.0, "e1", "grid call")
        return only(decide(world([urgent], [region("a", FLAT)], budgets=(budget,))))

    assert isinstance(start(600.0), Launch), "until then it gets on"
    held = start(60.0)
    assert isinstance(held, Hold) and "may draw 500 W from" in held.reason


def test_the_plan_pauses_a_running_job_only_when_that_can_pay() -> None:
    def wants(one: JobView, **plan_at: Any) -> list[Action]:
        picture = planned(world([one], [region("a", FLAT), region("b", FLAT)]), "j", "b", (2, 8))
        return decide(replace(picture, plan=replace(picture.plan, **plan_at)) if plan_at else picture)

    one = running("j", "a", runtime_s=8 * 3600.0)
    assert "asked to pause until 2026-02-03 08:00Z in b" in only(wants(one)).reason  # type: ignore[union-attr]
    assert wants(running("j", "a", hours_ago=0.1, runtime_s=8 * 3600.0)) == [], "it has only just begun"
    assert wants(running("j", "a", runtime_s=3700.0)) == [], "it is nearly done"
    assert wants(one, made_at=NOW - 2 * H) == [], "the plan is older than this run"
    assert wants(running("j", "a", runtime_s=8 * 3600.0, pausable=Pausable.NO)) == []
    missed = replace(one, checkpoint_misses=1, last_pause_asked_at=NOW - timedelta(seconds=60))
    assert wants(missed) == [], "it did not answer lately"
    inside = planned(world([one], [region("a", FLAT)]), "j", "a", (0, 1), (3, 8))
    assert decide(inside) == []


# --- what always holds --------------------------------------------------------------------------------------------------


@st.composite
def moments(draw: st.DrawFn) -> World:
    regions = [
        region(
            name,
            FLAT,
            gpus=float(draw(st.integers(0, 6))),
            max_jobs=draw(st.sampled_from([None, 1, 3])),
            power_limit_w=draw(st.sampled_from([None, 1500.0, 4000.0])),
            reachable=draw(st.booleans()),
        )
        for name in ("a", "b")
    ]
    jobs = []
    for n in range(draw(st.integers(0, 10))):
        state = draw(
            st.sampled_from([JobState.QUEUED, JobState.PAUSED, JobState.LAUNCHING, JobState.RUNNING, JobState.PAUSING])
        )
        flexible = draw(st.booleans())
        jobs.append(
            job(
                f"j{n}",
                state=state,
                region=draw(st.sampled_from(["a", "b"])) if state is not JobState.QUEUED else None,
                run_started_at=NOW - 0.5 * H if state in (JobState.RUNNING, JobState.PAUSING) else None,
                pause_requested=state is JobState.PAUSING,
                attempt=0 if state is JobState.QUEUED else 1,
                held=draw(st.sampled_from([False, False, True])),
                cancel_requested=draw(st.sampled_from([False, False, True])),
                not_before_at=draw(st.sampled_from([None, None, NOW + H])),
                flexible=flexible,
                gpus=float(draw(st.integers(0, 3))),
                power_w=draw(st.sampled_from([200.0, 1000.0])),
                deadline_at=draw(st.sampled_from([None, NOW - H, NOW + 1.1 * H, NOW + 12 * H])),
                pausable=draw(st.sampled_from([Pausable.NO, Pausable.CHECKPOINT])),
                regions=draw(st.sampled_from([(), ("b",)])),
            )
        )
    budgets = draw(
        st.sampled_from(
            [(), (Budget("a", NOW - H, None, 900.0, "e", "call"),), (Budget("a", NOW + 0.01 * H, None, 0.0, "e", ""),)]
        )
    )
    return world(jobs, regions, budgets=budgets)


@given(moments(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_no_job_gets_two_actions_and_no_launch_passes_a_limit(picture: World, with_plan: bool) -> None:
    if with_plan:
        picture = replace(picture, plan=plan(picture))
    actions = decide(picture)
    assert actions == decide(picture)
    jobs, views = {one.id: one for one in picture.jobs}, {view.name: view for view in picture.regions}
    counts = Counter(a.job_id for a in actions if not isinstance(a, Alarm))
    assert all(n == 1 for n in counts.values())
    for action in actions:
        if isinstance(action, Alarm):
            assert "above its limit" in action.sentence
            continue
        assert action.reason
        one = jobs[action.job_id]
        if isinstance(action, AskCheckpoint):
            assert one.state is JobState.RUNNING and one.flex.pausable is Pausable.CHECKPOINT and not one.cancel_requested
        if isinstance(action, Launch):
            assert one.state in (JobState.QUEUED, JobState.PAUSED) and not one.held and not one.cancel_requested
            assert one.not_before_at is None and views[action.region].reachable
            assert not one.flex.regions or action.region in one.flex.regions
    for view in picture.regions:
        launched = [jobs[a.job_id] for a in actions if isinstance(a, Launch) and a.region == view.name]
        if not launched:
            continue
        there = [*launched, *(one for one in picture.jobs if uses_room(one, view))]
        draw_w = sum(one.flex.power_w for one in there) * view.pue
        limits = [b.limit_w for b in picture.budgets if b.region == view.name and b.start <= NOW]
        assert draw_w <= min([*limits, view.power_limit_w or float("inf")]) + 1e-6
        assert view.max_jobs is None or len(there) <= view.max_jobs
        if any(one.flex.gpus > 0 and one.flex.flexible for one in launched) and all(one.flex.flexible for one in launched):
            assert view.gpus is not None and sum(one.flex.gpus for one in there) <= view.gpus + 1e-6


def test_each_of_ten_thousand_jobs_is_decided_on() -> None:
    jobs = [job(f"j{n}", deadline_at=NOW + (2 + n % 40) * H) for n in range(10_000)]
    picture = world(jobs, [region("a", FLAT)])
    spans = {j.id: Placement(j.id, "a", ((NOW + 5 * H, NOW + 6 * H),), 1.0, 1.0, None, 0.0, "cheapest") for j in jobs}
    picture = replace(picture, plan=Plan(NOW, NOW + 48 * H, 900, spans, {}, 1.0))
    assert {action.job_id for action in decide(picture) if isinstance(action, Hold)} == set(spans)
