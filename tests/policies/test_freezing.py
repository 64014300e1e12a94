"""Running jobs that may be frozen: when they are, for how long at most, when they run on, and what they draw meanwhile."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.decide import decide
from policies.freezing import (
    DEFAULT_FREEZE_MAX_S,
    EXECUTION_IDLE_SHARE,
    freeze_max_s,
    frozen_until,
    left_s,
    may_freeze,
    mean_power_w,
    why_not,
)
from policies.room import rooms
from policies.world import (
    Action,
    Alarm,
    AskCheckpoint,
    Budget,
    Freeze,
    Hold,
    JobState,
    JobView,
    Launch,
    Pausable,
    Placement,
    Plan,
    StopAttempt,
    Thaw,
    World,
)
from tests.policies.worlds import NOW, flex, job, region, running, world

H, S = timedelta(hours=1), timedelta(seconds=1)
FLAT: list[float | None] = [50.0] * 192


def freezer(job_id: str, where: str = "a", *, cannot: str = "", **more: Any) -> JobView:
    more.setdefault("deadline_at", None)
    return running(job_id, where, pausable=Pausable.FREEZE, cannot_freeze=cannot, **more)


def frozen(job_id: str, since_s: float, **more: Any) -> JobView:
    return freezer(job_id, frozen_at=NOW - since_s * S, **more)


def limited(limit_w: float, *, start_s: float = -60.0, last_s: float | None = 100.0) -> Budget:
    end = None if last_s is None else NOW + last_s * S
    return Budget("a", NOW + start_s * S, end, limit_w, "e1", "event e1")


def acts(jobs: list[JobView], *budgets: Budget, **where: Any) -> list[Action]:
    return decide(world(jobs, [region("a", FLAT, **where)], budgets=budgets))


def only(actions: list[Action]) -> Action:
    assert len(actions) == 1, actions
    return actions[0]


# --- what it stands -----------------------------------------------------------------------------------------------------


def test_what_a_job_stands_is_used_up_while_it_is_frozen_and_comes_back_while_it_runs() -> None:
    assert freeze_max_s(flex()) == DEFAULT_FREEZE_MAX_S and freeze_max_s(flex(freeze_max_s=40.0)) == 40.0
    assert left_s(freezer("j", freeze_max_s=100.0), NOW) == 100.0
    assert left_s(frozen("j", 30.0, freeze_max_s=100.0), NOW) == 70.0
    # It began with 20 s used up: they count.
    assert left_s(frozen("j", 30.0, freeze_max_s=100.0, rested_at=NOW - 10 * S), NOW) == 50.0
    rested = freezer("j", freeze_max_s=100.0, rested_at=NOW + 60 * S)
    assert left_s(rested, NOW) == 40.0 and left_s(rested, NOW + 60 * S) == 100.0
    assert not may_freeze(rested, NOW) and may_freeze(rested, NOW + 10 * S)
    most_of_it = freezer("j", freeze_max_s=300.0, rested_at=NOW + 217 * S)
    said = "it stood frozen before, which used up more than half of the 5 min that it stands, and can be again at "
    said += "2026-02-03 06:01Z"
    assert why_not(most_of_it, NOW) == said == why_not(most_of_it, NOW + 30 * S), "nothing in it moves all the time"


@given(
    most_s=st.floats(1.0, 1e5),
    steps=st.lists(st.tuples(st.floats(0.0, 1e4), st.booleans()), max_size=20),
)
def test_no_freeze_is_longer_than_the_job_stands_and_it_runs_at_least_half_as_long(
    most_s: float, steps: list[tuple[float, bool]]
) -> None:
    """However often a job is frozen and woken by the rules, it never stood for more than ``most_s`` longer than it ran."""
    view, now = freezer("j", freeze_max_s=most_s), NOW
    stood_s = ran_s = 0.0
    for wait_s, wake in steps:
        if view.frozen_at is None:
            now, ran_s = now + wait_s * S, ran_s + wait_s
            if may_freeze(view, now):
                view = replace(view, frozen_at=now)
            continue
        until = frozen_until(view.flex, view.frozen_at, view.rested_at)
        now = min(until, now + wait_s * S)
        if wake or now == until:
            lasted_s = (now - view.frozen_at).total_seconds()
            before_s = max(0.0, (view.rested_at - view.frozen_at).total_seconds()) if view.rested_at else 0.0
            assert lasted_s <= most_s + 1e-3
            stood_s += lasted_s
            view = replace(view, frozen_at=None, rested_at=now + (before_s + lasted_s) * S)
            assert stood_s <= most_s + ran_s + 1e-3


@pytest.mark.parametrize(
    "view",
    [
        freezer("j", cannot="no power agent in a is connected"),
        frozen("j", 5.0),
        freezer("j", cancel_requested=True),
        replace(freezer("j"), state=JobState.LAUNCHING),
        running("j", "a", pausable=Pausable.CHECKPOINT, cannot_freeze=""),
        running("j", "a", pausable=Pausable.NO, cannot_freeze=""),
    ],
)
def test_who_is_not_frozen(view: JobView) -> None:
    assert not may_freeze(view, NOW)


def test_the_mean_draw_of_a_run_counts_what_it_stood() -> None:
    one = flex(gpus=1.0, power_w=1000.0)
    assert mean_power_w(one, 0.0, 100.0) == 1000.0
    assert mean_power_w(one, 50.0, 100.0) == pytest.approx(500.0 + 500.0 * EXECUTION_IDLE_SHARE)
    assert mean_power_w(flex(gpus=0.0, power_w=100.0), 25.0, 100.0) == pytest.approx(75.0)
    assert mean_power_w(one, 200.0, 100.0) == pytest.approx(1000.0 * EXECUTION_IDLE_SHARE)


# --- limits -------------------------------------------------------------------------------------------------------------


def test_a_limit_freezes_where_a_checkpoint_would_be_asked_for() -> None:
    action = only(acts([freezer("j")], limited(400.0)))
    assert isinstance(action, Freeze)
    assert "400 W (event e1)" in action.reason and "frozen where it runs, for 5 min at most" in action.reason


def test_without_an_agent_nothing_is_frozen_and_the_alarm_says_why() -> None:
    alarm = only(acts([freezer("j", cannot="no power agent in a is connected")], limited(400.0)))
    assert isinstance(alarm, Alarm)
    assert "j cannot be frozen (no power agent in a is connected)" in alarm.sentence


def test_the_draw_that_stays_is_counted() -> None:
    stays_w = 1000.0 * EXECUTION_IDLE_SHARE
    one = frozen("j", 5.0)
    assert rooms(world([one], [region("a", FLAT, pue=1.5)]))["a"].draw_w == pytest.approx(stays_w * 1.5)
    measured = replace(one, frozen_w=120.0)
    assert rooms(world([measured], [region("a", FLAT, pue=1.5)]))["a"].draw_w == pytest.approx(180.0)
    # Two jobs must give way, because the first goes on drawing some.
    two = acts([freezer("j"), freezer("k")], limited(1200.0))
    assert [type(one) for one in two] == [Freeze, Freeze]
    # Nothing that could be frozen is enough: it is told, with what stays.
    both = acts([freezer("j")], limited(stays_w - 100.0))
    assert isinstance(both[0], Freeze) and isinstance(both[1], Alarm) and "100 W above" in both[1].sentence


def test_what_stays_away_until_the_limit_ends_goes_first() -> None:
    asks = running("c", "a", deadline_at=None)
    assert only(acts([asks, freezer("j")], limited(1500.0))).job_id == "j"  # type: ignore[union-attr]
    for longer in (limited(1500.0, last_s=3600.0), limited(1500.0, last_s=None)):
        action = only(acts([asks, freezer("j")], longer))
        assert isinstance(action, AskCheckpoint) and action.job_id == "c"


def test_an_event_of_ten_minutes_freezes_those_that_stand_it_before_anybody_saves_a_checkpoint() -> None:
    ten = limited(1900.0, start_s=0.0, last_s=600.0)
    stands = [freezer(f"f{at}", freeze_max_s=900.0, power_w=500.0) for at in range(3)]
    cheap = running("c", "a", deadline_at=None, power_w=500.0, checkpoint_s=1.0, restart_s=0.0)
    assert [(type(one), getattr(one, "job_id", "")) for one in acts([cheap, *stands], ten)] == [(Freeze, "f0")]
    deeper = acts([cheap, *stands], limited(900.0, start_s=0.0, last_s=600.0))
    assert [type(one) for one in deeper] == [Freeze, Freeze, Freeze, AskCheckpoint]
    # A lower priority goes first all the same, however it gives way.
    first = only(acts([replace(cheap, flex=replace(cheap.flex, priority=-1)), *stands], ten))
    assert isinstance(first, AskCheckpoint)


def test_gpus_that_serving_needs_are_not_freed_by_freezing() -> None:
    from policies.world import Reserved

    kept = (Reserved(NOW - H, NOW + H, 8.0, 0.0),)
    assert acts([freezer("j")], reserved=kept) == []


def test_a_frozen_job_stays_frozen_while_there_is_no_room_and_runs_on_when_there_is() -> None:
    one = frozen("j", 5.0)
    assert acts([one], limited(400.0)) == []
    action = only(acts([one]))
    assert isinstance(action, Thaw) and not action.used_up and "nothing keeps it frozen" in action.reason
    assert isinstance(only(acts([one], limited(1000.0))), Thaw)


def test_room_for_one_wakes_the_one_that_matters_more() -> None:
    jobs = [frozen("j", 5.0), frozen("k", 5.0, priority=3)]
    action = only(acts(jobs, limited(1400.0)))
    assert isinstance(action, Thaw) and action.job_id == "k"


def test_a_job_is_woken_before_it_has_stood_all_that_it_stands_and_the_limit_is_told() -> None:
    nearly = frozen("j", 57.5, freeze_max_s=60.0)
    thaw, alarm = acts([nearly], limited(400.0))
    assert isinstance(thaw, Thaw) and thaw.used_up and "as long as it may (1 min)" in thaw.reason
    assert isinstance(alarm, Alarm) and "600 W above" in alarm.sentence
    assert acts([frozen("j", 50.0, freeze_max_s=60.0)], limited(400.0)) == []
    tired = freezer("j", freeze_max_s=60.0, rested_at=NOW + 50 * S)
    told = only(acts([tired], limited(400.0)))
    assert isinstance(told, Alarm) and "j cannot be frozen (it stood frozen before, which used up" in told.sentence


def test_others_give_way_in_time_for_a_frozen_job_that_must_run_on() -> None:
    limit = limited(1400.0, last_s=None)
    asks = running("c", "a", deadline_at=None, checkpoint_s=30.0)
    assert acts([frozen("j", 100.0), asks], limit) == []  # 200 s are left: it is too early
    early = acts([frozen("j", 255.0), asks], limit)  # 42 s are left, and 45 s are needed
    assert isinstance(only(early), AskCheckpoint) and "must run on" in early[0].reason  # type: ignore[union-attr]
    fresh = freezer("k")
    assert acts([frozen("j", 280.0), fresh], limit) == []
    turn = only(acts([frozen("j", 293.0), fresh], limit))
    assert isinstance(turn, Freeze) and turn.job_id == "k"
    # While both stand still, the newly frozen one is not woken again at once.
    assert acts([frozen("j", 294.0), frozen("k", 1.0)], limit) != [Thaw("k", "")]
    assert all(one.job_id != "k" for one in acts([frozen("j", 294.0), frozen("k", 1.0)], limit))  # type: ignore[union-attr]


def test_a_frozen_job_does_not_wake_for_seconds_before_a_limit_that_serving_needs() -> None:
    from policies.world import Reserved

    soon = limited(1500.0, start_s=10.0, last_s=3600.0)
    then = Reserved(NOW + 10 * S, NOW + H, 1.0, 600.0)
    assert acts([frozen("j", 5.0)], soon, reserved=(then,)) == []
    assert isinstance(only(acts([frozen("j", 5.0)], soon, reserved=(replace(then, power_w=400.0),))), Thaw)


def test_a_coming_limit_freezes_just_before_it_begins_and_does_not_wake_for_seconds() -> None:
    one = freezer("j", remaining_s=7200.0)
    assert acts([one], limited(400.0, start_s=30.0)) == []
    action = only(acts([one], limited(400.0, start_s=4.0)))
    assert isinstance(action, Freeze) and "400 W from" in action.reason
    assert acts([frozen("j", 1.0)], limited(400.0, start_s=4.0)) == []


# --- owners and plans -----------------------------------------------------------------------------------------------------


def test_an_owner_freezes_a_job_until_it_is_resumed_or_has_stood_enough() -> None:
    action = only(acts([freezer("j", held=True)]))
    assert isinstance(action, Freeze) and "its owner paused it" in action.reason
    assert acts([frozen("j", 10.0, held=True)]) == []
    assert isinstance(only(acts([frozen("j", 10.0)])), Thaw)
    over = only(acts([frozen("j", 298.0, held=True)]))
    assert isinstance(over, Thaw) and over.used_up and "its owner's pause is over" in over.reason


def test_an_owner_is_told_why_a_job_is_not_frozen_once() -> None:
    one = freezer("j", held=True, cannot="no power agent in a is connected")
    told = only(acts([one]))
    assert isinstance(told, Hold) and "it runs on: no power agent in a is connected" in told.reason
    assert acts([replace(one, reason=told.reason)]) == []
    # Words are no deed: the limit's alarm still counts it.
    assert any(isinstance(a, Alarm) and "600 W above" in a.sentence for a in acts([one], limited(400.0)))


def test_a_frozen_job_that_is_cancelled_is_stopped() -> None:
    assert isinstance(only(acts([frozen("j", 10.0, cancel_requested=True)])), StopAttempt)


def planned(view: JobView, *spans: tuple[float, float], where: str = "a") -> World:
    intervals = tuple((NOW + a * S, NOW + b * S) for a, b in spans)
    placement = Placement(view.id, where, intervals, 1.0, 1.0, None, 0.0, "cheapest before its deadline")
    picture = world([view], [region("a", FLAT), region("b", FLAT)])
    return replace(picture, plan=Plan(NOW, NOW + 48 * H, 900, {view.id: placement}, {}, 1.0))


def test_a_gap_in_the_plan_is_frozen_through_if_the_job_stands_it() -> None:
    action = only(decide(planned(freezer("j"), (240.0, 4000.0))))
    assert isinstance(action, Freeze) and "cheapest before its deadline; frozen where it runs for 4 min" in action.reason
    for spans in (((400.0, 4000.0),), ((30.0, 4000.0),), ((-10.0, 4000.0),)):  # too long, too short, none
        assert decide(planned(freezer("j"), *spans)) == []
    assert decide(planned(freezer("j"), (240.0, 4000.0), where="b")) == []
    assert decide(planned(frozen("j", 10.0), (240.0, 4000.0))) == []
    assert isinstance(only(decide(planned(frozen("j", 10.0), (5.0, 4000.0)))), Thaw)


def test_a_job_without_agents_is_as_one_that_cannot_be_paused() -> None:
    """Whatever happens to it, in a backtest too: nobody says there that it can be frozen."""
    for state in (JobState.QUEUED, JobState.RUNNING, JobState.LAUNCHING):
        plain = job("j", state=state, region="a", run_started_at=NOW - H, deadline_at=None, pausable=Pausable.NO)
        other = job("j", state=state, region="a", run_started_at=NOW - H, deadline_at=None, pausable=Pausable.FREEZE)
        for budgets in ((), (limited(400.0),)):
            kinds = [[type(a) for a in acts([one], *budgets)] for one in (plain, other)]
            assert kinds[0] == kinds[1]


def test_woken_jobs_have_room_before_waiting_ones() -> None:
    waiting = job("w", flexible=False, deadline_at=None, power_w=500.0)
    actions = acts([frozen("j", 5.0), waiting], limited(1000.0))
    assert [type(one) for one in actions] == [Thaw, Hold]
    assert isinstance(acts([waiting], limited(1000.0))[0], Launch)
