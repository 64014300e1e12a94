"""Limits of a branch of the power tree: who is held, frozen and paused for them, and how much no more than needed."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.branches import SEEN_AFTER_S, unknown_share
from policies.decide import decide
from policies.room import rooms
from policies.world import (
    Action,
    Alarm,
    AskCheckpoint,
    BranchView,
    Budget,
    Freeze,
    Hold,
    JobState,
    JobView,
    Launch,
    Pausable,
    Placement,
    Plan,
    Thaw,
    World,
)
from tests.policies.worlds import NOW, job, region, running, world

H, S = timedelta(hours=1), timedelta(seconds=1)
FLAT: list[float | None] = [50.0] * 192
A8, B8 = BranchView("r1", gpus=8.0), BranchView("r2", gpus=8.0)


def on(job_id: str, share: dict[str, float] | str | None = "r1", **more: Any) -> JobView:
    """A job that runs in region a, on r1 unless said otherwise; nobody knows where for None."""
    shares = {share: 1.0} if isinstance(share, str) else share or {}
    more.setdefault("deadline_at", None)
    return running(job_id, "a", on_branches=shares, **more)


def freezer(job_id: str, **more: Any) -> JobView:
    return on(job_id, pausable=Pausable.FREEZE, cannot_freeze="", **more)


def event(limit_w: float, branch: str = "r1", *, start_s: float = -60.0, last_s: float | None = 3600.0, **more: Any) -> Budget:
    end = None if last_s is None else NOW + last_s * S
    return Budget("a", NOW + start_s * S, end, limit_w, "e1", "event e1", branch=branch, **more)


def site(jobs: list[JobView], *branches: BranchView, events: tuple[Budget, ...] = (), **more: Any) -> World:
    more = {"gpus": 16.0, **more}
    return replace(world(jobs, [region("a", FLAT, branches=branches or (A8, B8), **more)]), branch_budgets=events)


def acts(jobs: list[JobView], *branches: BranchView, events: tuple[Budget, ...] = (), **more: Any) -> list[Action]:
    return decide(site(jobs, *branches, events=events, **more))


def asked(actions: list[Action]) -> list[str]:
    return [one.job_id for one in actions if isinstance(one, AskCheckpoint | Freeze)]


def only(actions: list[Action]) -> Action:
    assert len(actions) == 1, actions
    return actions[0]


def now_job(job_id: str = "new", **more: Any) -> JobView:
    """A job that wants to start at once."""
    return job(job_id, flexible=False, deadline_at=None, **more)


# --- who gives way ----------------------------------------------------------------------------------------------------


def test_a_branchs_event_pauses_there_only_as_many_as_needed_the_cheapest_first() -> None:
    jobs = [on("a1", checkpoint_s=90.0), on("a2"), on("a3", priority=5), on("b1", "r2", priority=-9)]
    action = only(acts(jobs, events=(event(2500.0),)))
    assert isinstance(action, AskCheckpoint) and action.job_id == "a2", "b1 would be cheaper, and is elsewhere"
    assert action.reason == "branch r1 of a may draw 2,500 W (event e1): asked to pause"
    assert asked(acts(jobs, events=(event(1500.0),))) == ["a2", "a1"]
    assert acts(jobs, events=(event(3000.0),)) == [] and acts(jobs, events=(event(0.0, "r9"),)) == []


def test_a_standing_limit_of_a_branch_is_kept_the_same_way() -> None:
    low = replace(A8, power_limit_w=2500.0)
    action = only(acts([on("a1"), on("a2"), on("a3")], low, B8))
    assert isinstance(action, AskCheckpoint) and "(branch limit)" in action.reason
    assert asked(acts([on("a1"), on("a2"), on("a3")], replace(low, other_w=600.0), B8)) == ["a1", "a2"]


def test_what_caps_can_take_off_is_asked_of_nobody() -> None:
    capped = [on(f"a{at}", capped_w=600.0) for at in range(3)]
    assert acts(capped, events=(event(1800.0),)) == []
    assert asked(acts(capped, events=(event(1300.0),))) == ["a0"]
    assert acts(capped, events=(event(1300.0),), unheard=True) == [], "what caps can do is not known yet"


def test_of_a_job_on_several_branches_the_share_there_counts() -> None:
    wide = on("wide", {"r1": 0.25, "r2": 0.75}, gpus=4.0, power_w=4000.0, capped_w=2000.0)
    assert acts([wide, on("b1", "r2")], events=(event(500.0),)) == [], "a quarter of its 2,000 W lies there"
    assert asked(acts([wide, on("b1", "r2")], events=(event(499.0),))) == ["wide"]
    assert asked(acts([wide, on("b1", "r2")], events=(event(2400.0, "r2"),))) == ["b1"]
    # Pausing it frees 1,500 W on r2, not 2,000 W.
    assert asked(acts([wide, on("b1", "r2", priority=1)], events=(event(900.0, "r2"),))) == ["wide", "b1"]


def test_who_pauses_for_a_branch_counts_for_the_site() -> None:
    jobs = [on("a1", priority=3), on("b1", "r2"), on("b2", "r2")]
    picture = site(jobs, events=(event(0.0),))
    picture = replace(picture, budgets=(Budget("a", NOW - H, None, 2000.0, "s", "site event"),))
    assert asked(decide(picture)) == ["a1"], "the site is within its limit with that"
    leaving = replace(jobs[0], state=JobState.PAUSING, pause_requested=True)
    assert decide(replace(picture, jobs=(leaving, *jobs[1:]))) == []


def test_a_coming_limit_of_a_branch_is_prepared_for_in_time() -> None:
    one = on("a1", remaining_s=7200.0, checkpoint_s=60.0)
    assert acts([one], events=(event(0.0, start_s=300.0),)) == []
    action = only(acts([one], events=(event(0.0, start_s=70.0),)))
    assert isinstance(action, AskCheckpoint) and "branch r1 of a may draw 0 W from" in action.reason


def test_a_short_event_freezes_and_a_frozen_job_runs_on_when_its_branch_has_room() -> None:
    jobs = [freezer("f", freeze_max_s=900.0), on("c")]
    short = event(1400.0, last_s=600.0)
    action = only(acts(jobs, events=(short,)))
    assert isinstance(action, Freeze) and action.job_id == "f"
    assert asked(acts([freezer("f", freeze_max_s=300.0), on("c")], events=(short,))) == ["c"], "it would not stand that"
    still = replace(jobs[0], frozen_at=NOW - 30 * S)
    assert acts([still, jobs[1]], events=(short,)) == []
    assert isinstance(only(acts([still, jobs[1]], events=(event(1400.0, "r2", last_s=600.0),))), Thaw)
    assert isinstance(only(acts([still, jobs[1]])), Thaw)


def test_what_a_frozen_job_goes_on_drawing_counts_with_its_share() -> None:
    still = freezer("f", share={"r1": 0.5, "r2": 0.5}, frozen_at=NOW - 10 * S, frozen_w=300.0)
    there = {one.name: one.draw_w for one in rooms(site([still], events=(event(1.0),)))["a"].places}
    assert there == {"branch r1 of a": 150.0, "branch r2 of a": 150.0}


def test_what_does_not_suffice_is_one_alarm_with_the_shortfall() -> None:
    jobs = [on("a1"), on("fix", pausable=Pausable.NO)]
    ask, alarm = acts(jobs, events=(event(400.0),))
    assert isinstance(ask, AskCheckpoint) and isinstance(alarm, Alarm)
    assert (alarm.key, alarm.region) == ("limit a r1", "a")
    assert "branch r1 of a is 600 W above its limit of 400 W (event e1) even with everything pausable paused" in alarm.sentence
    assert "1 job there cannot be paused" in alarm.sentence


# --- nobody knows where they run -----------------------------------------------------------------------------------------


def test_where_agents_tell_a_job_that_none_sees_is_not_taken_to_be_there() -> None:
    assert unknown_share(on("u", None)) == 1.0 and unknown_share(on("p", {"r1": 0.5, "": 0.25})) == 0.25
    assert acts([on("u", None), on("a1")], events=(event(1000.0),)) == []


def test_on_a_branch_of_which_no_agent_tells_every_job_counts_and_nobody_is_paused_in_the_dark() -> None:
    dark = BranchView("r1")
    alarm = only(acts([on("u", None), on("b1", "r2")], dark, B8, events=(event(600.0),)))
    assert isinstance(alarm, Alarm) and "branch r1 of a is 400 W above its limit of 600 W" in alarm.sentence
    assert "no agent tells where 1 job runs, which counts here" in alarm.sentence
    held = acts([on("u", None), now_job()], dark, events=(event(1500.0),))
    assert isinstance(only(held), Hold) and "r1 may draw 1,500 W (event e1), draws 1,000 W (no agent" in held[0].reason  # type: ignore[union-attr]


def test_branches_of_which_no_agent_tells_share_what_nobody_sees_in_equal_parts() -> None:
    dark = BranchView("r1", 2000.0), BranchView("r2", 2000.0)
    jobs = [on(f"u{at}", None) for at in range(3)]
    assert acts(jobs, *dark) == [] and isinstance(only(acts([*jobs, now_job(power_w=500.0)], *dark)), Launch)
    assert isinstance(only(acts([*jobs, now_job(power_w=600.0)], *dark)), Hold)
    alarm = only(acts(jobs, *dark, events=(event(1000.0),)))
    assert (
        isinstance(alarm, Alarm)
        and "500 W above" in alarm.sentence
        and "3 jobs run, which count with 50% here" in alarm.sentence
    )


# --- launches -------------------------------------------------------------------------------------------------------------


def test_a_launch_is_held_while_no_branch_has_room_for_it() -> None:
    both = (event(1500.0), event(1200.0, "r2"))
    held = only(acts([on("a1"), on("b1", "r2"), now_job()], events=both))
    assert isinstance(held, Hold)
    assert held.reason == (
        "must wait: no branch of a with free GPUs has power for the 1,000 W of this job, and on which one it lands is for its "
        "cluster to decide: r1 may draw 1,500 W (event e1), draws 1,000 W; r2 may draw 1,200 W (event e1), draws 1,000 W"
    )
    assert isinstance(only(acts([on("a1"), on("b1", "r2"), now_job()], events=both[:1])), Launch), "there is room on r2"
    assert isinstance(only(acts([on("a1"), on("b1", "r2"), now_job(power_w=400.0)], events=both)), Launch)


def test_a_branch_without_free_gpus_is_no_place() -> None:
    full = on("b1", "r2", gpus=8.0, power_w=100.0)
    held = only(acts([on("a1"), full, now_job()], events=(event(1500.0),)))
    assert isinstance(held, Hold) and "r2 has too few GPUs free" not in held.reason.split(";")[0].split(":")[0]
    # Where no GPUs are free in a branch that is short of power either, it is not that which holds anybody up.
    busy = on("a1", gpus=8.0)
    assert isinstance(only(acts([busy, full, now_job()], events=(event(1500.0),))), Launch)


def test_gpus_that_lie_scattered_hold_nobody_up_where_there_is_power() -> None:
    jobs = [on("a1", gpus=4.0), on("b1", "r2", gpus=4.0), now_job(gpus=8.0)]
    assert isinstance(only(acts(jobs, events=(event(50_000.0),))), Launch)
    assert isinstance(only(acts(jobs, events=(event(1100.0),))), Hold)


def test_a_job_larger_than_a_branch_needs_power_for_all_of_it() -> None:
    large = now_job(gpus=12.0, power_w=12_000.0)
    assert isinstance(only(acts([large], events=(event(8000.0),))), Launch)
    assert isinstance(only(acts([large], events=(event(4000.0),))), Launch), "eight and four"
    assert isinstance(only(acts([large], events=(event(3000.0),))), Hold)


def test_what_was_just_launched_may_be_anywhere_until_it_is_seen() -> None:
    low = replace(A8, power_limit_w=1500.0), replace(B8, power_limit_w=1500.0)
    first, second = acts([now_job("n1"), now_job("n2")], *low)
    assert isinstance(first, Launch) and isinstance(second, Hold)
    assert "1,000 W more may be on the way there" in second.reason
    young = on("u", None, hours_ago=(SEEN_AFTER_S - 1.0) / 3600.0)
    assert isinstance(only(acts([young, now_job("n2")], *low)), Hold)
    seen = replace(young, on_branches={"r1": 1.0})
    assert isinstance(only(acts([seen, now_job("n2")], *low)), Launch)
    assert isinstance(only(acts([on("old", None), now_job("n2")], *low)), Launch)


def test_gpus_of_which_no_agent_tells_are_a_place_until_jobs_nobody_sees_fill_them() -> None:
    low, off = replace(A8, power_limit_w=500.0), BranchView("", gpus=2.0)
    assert isinstance(only(acts([on("u", None), now_job()], low, off)), Launch)
    assert isinstance(only(acts([on("u", None), on("v", None), now_job()], low, off)), Hold)


def test_a_launch_just_before_a_branchs_limit_would_be_paused_at_once() -> None:
    wants = job("w", deadline_at=NOW, run_now=True)
    every = event(500.0, start_s=30.0), event(500.0, "r2", start_s=30.0)
    assert isinstance(only(acts([wants], events=every)), Hold)
    assert isinstance(only(acts([wants], events=every[:1])), Launch)
    far = event(500.0, start_s=900.0), event(500.0, "r2", start_s=900.0)
    assert isinstance(only(acts([wants], events=far)), Launch)


def test_work_without_gpus_needs_a_branch_with_power() -> None:
    assert isinstance(only(acts([now_job(gpus=0.0)], events=(event(100.0),))), Launch)
    assert isinstance(only(acts([now_job(gpus=0.0)], events=(event(100.0), event(100.0, "r2")))), Hold)


def test_after_a_branchs_event_load_comes_back_step_by_step() -> None:
    over = tuple(event(1000.0, name, start_s=-3600.0, last_s=-300.0, recovery_s=900.0) for name in ("r1", "r2"))
    waits = [job(f"p{at}", state=JobState.PAUSED, region="a", attempt=1, deadline_at=NOW + H) for at in range(3)]
    actions = acts([on("a1"), on("b1", "r2"), *waits], events=over)
    # A third of the way from 1,000 W to the 4,000 W of all that was paused and what runs there: 2,000 W on each.
    assert [type(one) for one in actions] == [Launch, Hold, Hold]
    assert "comes back step by step until 2026-02-03 06:10Z from event e1" in actions[1].reason  # type: ignore[union-attr]
    later = replace(site([on("a1"), on("b1", "r2"), *waits], events=over), now=NOW + 601 * S)
    assert [type(one) for one in decide(later)] == [Launch] * 3
    urgent = now_job("urgent")
    assert isinstance(acts([on("a1"), on("b1", "r2"), *waits, urgent], events=over)[0], Launch)


def test_a_paused_job_is_not_put_where_it_would_be_paused_again() -> None:
    waits = job("p", state=JobState.PAUSED, region="a", attempt=1)
    placement = Placement("p", "a", ((NOW, NOW + H),), 1.0, 1.0, None, 0.0, "cheapest")
    known = Plan(NOW, NOW + 48 * H, 900, {"p": placement}, {}, 1.0)
    picture = replace(site([on("a1"), waits], events=(event(1500.0),)), plan=known)
    held = only(decide(picture))
    assert isinstance(held, Hold) and "to be paused again: r1 may draw 1,500 W (event e1), draws 1,000 W" in held.reason
    new = replace(waits, state=JobState.QUEUED, attempt=0)
    assert isinstance(only(decide(replace(picture, jobs=(picture.jobs[0], new)))), Launch), "it may well land on r2"
    urgent = replace(waits, flex=replace(waits.flex, deadline_at=NOW + H))
    assert isinstance(only(decide(replace(picture, jobs=(picture.jobs[0], urgent)))), Launch), "it cannot wait"
    assert isinstance(only(decide(replace(picture, branch_budgets=()))), Launch)
    full = replace(picture.jobs[0], flex=replace(picture.jobs[0].flex, gpus=8.0))
    assert isinstance(only(decide(replace(picture, jobs=(full, waits)))), Launch), "no GPUs are free on r1"


@pytest.mark.parametrize(("pue", "other_w", "starts"), [(1.0, 0.0, True), (1.5, 0.0, True), (1.5, 1.0, False)])
def test_a_branchs_limit_is_of_its_gpus_without_cooling(pue: float, other_w: float, starts: bool) -> None:
    tight = [replace(one, power_limit_w=2000.0, other_w=other_w) for one in (A8, B8)]
    jobs = [on("a1"), on("b1", "r2"), now_job()]
    action = only(acts(jobs, *tight, pue=pue))
    assert isinstance(action, Launch if starts else Hold)


def test_where_what_draws_is_not_known_nothing_more_is_put_on_a_branch_with_a_limit() -> None:
    dark = [replace(one, power_limit_w=9000.0, other_w=None) for one in (A8, B8)]
    action = only(acts([now_job()], *dark))
    assert isinstance(action, Hold) and "and what GPUs there draw that tell nothing of it" in action.reason
    assert isinstance(only(acts([now_job()], dark[0], B8)), Launch), "the other one is known, and has no limit"


def test_branches_are_looked_at_once_for_all_who_ask_until_something_is_launched() -> None:
    home = rooms(site([], *(replace(one, power_limit_w=1000.0) for one in (A8, B8))))["a"]
    assert home.refusal(1.0, 900.0) is None
    offers = next(iter(home.offers.values()))
    assert home.refusal(1.0, 1001.0, lead_s=60.0) is not None and [*home.offers.values()] == [offers]
    assert next(iter(home.offers.values())) is offers and len(home.answers) == 2
    home.take(1.0, 900.0)
    assert home.refusal(1.0, 900.0) is not None, "it may have landed on either"
    home.take(1.0, 900.0, times=-1)
    assert home.refusal(1.0, 900.0) is None


# --- what holds always --------------------------------------------------------------------------------------------------


@st.composite
def pictures(draw: st.DrawFn) -> World:
    jobs = []
    for at in range(draw(st.integers(0, 8))):
        share = draw(st.sampled_from([{"r1": 1.0}, {"r2": 1.0}, {"r1": 0.5, "r2": 0.5}, {"r1": 0.25}, {"": 1.0}, {}]))
        kind = draw(st.sampled_from([Pausable.NO, Pausable.CHECKPOINT, Pausable.FREEZE]))
        more = {"capped_w": draw(st.sampled_from([None, 300.0])), "priority": draw(st.integers(0, 2))}
        jobs.append(on(f"j{at}", share, pausable=kind, cannot_freeze="", **more))
    jobs += [now_job(f"n{at}", gpus=draw(st.sampled_from([0.0, 1.0, 12.0]))) for at in range(draw(st.integers(0, 4)))]
    limits = st.sampled_from([None, 0.0, 700.0, 1500.0, 4000.0])
    told = st.sampled_from([8.0, 2.0, None])
    branches = (BranchView("r1", draw(limits), 100.0, draw(told)), BranchView("r2", draw(limits), 0.0, draw(told)))
    events = draw(st.sampled_from([(), (event(900.0),), (event(500.0, "r2", start_s=20.0),), (event(0.0, last_s=-60.0),)]))
    return site(jobs, *branches, events=events, pue=draw(st.sampled_from([1.0, 1.5])))


@given(pictures())
@settings(max_examples=150, deadline=None)
def test_a_limit_is_met_or_told_and_nobody_elsewhere_gives_way(picture: World) -> None:
    actions = decide(picture)
    assert actions == decide(picture)
    gone = set(asked(actions))
    for place in rooms(picture)["a"].places:
        assert place.branch is not None
        left_w = place.branch.other_w or 0.0
        for one in picture.jobs:
            if one.state is JobState.RUNNING:
                watts = min(one.flex.power_w, one.capped_w or one.flex.power_w)
                rest_w = 0.3 * one.flex.power_w if one.flex.pausable is Pausable.FREEZE else 0.0
                watts = min(watts, rest_w) if one.id in gone else watts
                left_w += watts * place.share_of(one)  # no PUE: a branch's meter sees no cooling
        told = any(isinstance(one, Alarm) and one.key == f"limit a {place.branch.name}" for one in actions)
        if place.limit_w is not None:
            assert told == (left_w > place.limit_w + 1e-3)
        else:
            assert not told
    limited = {
        place.branch.name
        for place in rooms(picture)["a"].places
        if place.branch and (place.limit_w is not None or place.coming)
    }
    assert all(limited & set(one.on_branches) for one in picture.jobs if one.id in gone)


def test_without_limits_of_branches_there_are_no_places() -> None:
    assert rooms(world([on("a1", None)], [region("a", FLAT)]))["a"].places == ()


@pytest.mark.parametrize("share", [{}, {"r1": 1.0}])
def test_where_a_job_runs_changes_nothing_without_limits(share: dict[str, float]) -> None:
    assert acts([on("a1", share), now_job()]) == acts([on("a1", None), now_job()])
