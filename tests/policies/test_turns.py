"""When a job must be looked at again: between two such moments, time alone changes nothing of what is decided."""

from dataclasses import replace
from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from policies.decide import decide
from policies.room import rooms
from policies.turns import last_safe_start, launch_or_hold, next_moment, plan_wants_pause, wanted_places, worth_starting
from policies.world import Budget, Hold, JobState, JobView, Launch, Pausable, Placement, World
from tests.policies.worlds import NOW, job, region, running, world

H = timedelta(hours=1)
FLAT = [50.0] * 192


def place(where: str, *spans: tuple[float, float]) -> Placement:
    return Placement("j", where, tuple((NOW + a * H, NOW + b * H) for a, b in spans), 1.0, 1.0, None, 0.0, "its place")


def test_a_waiting_job_is_looked_at_when_its_time_comes_or_when_it_can_wait_no_longer() -> None:
    picture = world([], [region("a", FLAT)])
    one = job("j")
    last = last_safe_start(one, picture)
    assert last is not None
    assert next_moment(one, place("a", (2, 3), (4, 5)), picture) == NOW + 2 * H
    assert next_moment(one, place("a", (20, 21)), picture) == last
    assert next_moment(one, None, picture) == last
    assert next_moment(job("j", deadline_at=None), None, picture) is None
    assert next_moment(job("j", earliest_at=NOW + H), place("a", (2, 3)), picture) == NOW + H
    assert next_moment(job("j", not_before_at=NOW + H), place("a", (0, 3)), picture) == NOW + H
    assert next_moment(one, place("a", (0, 1), (4, 5)), picture) == NOW + 4 * H, "it waits for room now, else for its next part"
    assert next_moment(job("j", deadline_at=NOW + 0.5 * H), place("a", (4, 5)), picture) is None, "only room holds it up"


def test_a_running_job_is_looked_at_when_its_part_ends() -> None:
    picture = world([], [region("a", FLAT)])
    one = running("j", "a", runtime_s=8 * 3600.0)
    assert next_moment(one, place("a", (-1, 2), (4, 9)), picture) == NOW + 2 * H
    assert next_moment(one, place("a", (-1, 2)), picture) is None, "it runs on to its end"
    young = running("j", "a", hours_ago=0.1, runtime_s=8 * 3600.0)
    assert next_moment(young, place("a", (-1, 0.05), (4, 9)), picture) == NOW + 0.15 * H, "not before it has run for a while"
    assert next_moment(running("j", "a", pausable=Pausable.NO), place("a", (-1, 2), (4, 9)), picture) is None


def test_a_job_whose_time_passed_while_there_was_no_room_takes_the_first_room_there_is() -> None:
    picture = world([job("j", deadline_at=None)], [region("a", FLAT)])
    over = place("a", (-3, -2))
    assert worth_starting(picture.jobs[0], over, picture)
    assert isinstance(launch_or_hold(picture.jobs[0], None, over, picture, rooms(picture)), Launch)


def test_nothing_is_started_that_would_be_asked_to_pause_at_once() -> None:
    one = job("j", pausable=Pausable.CHECKPOINT, checkpoint_s=60.0)
    soon = Budget("a", NOW + timedelta(seconds=70), None, 500.0, "e", "call")
    picture = world([one], [region("a", FLAT)], budgets=(soon,))
    held = launch_or_hold(one, None, place("a", (0, 3)), picture, rooms(picture))
    assert isinstance(held, Hold) and "may draw 500 W from" in held.reason
    far = replace(picture, budgets=(replace(soon, start=NOW + timedelta(seconds=80)),))
    assert isinstance(launch_or_hold(one, None, place("a", (0, 3)), far, rooms(far)), Launch)


def test_the_policys_own_bound_counts_for_flexible_work_that_can_wait() -> None:
    busy = running("r", "a", gpus=2.0)
    one = job("j", gpus=1.0)
    picture = replace(world([busy, one], [region("a", FLAT)]), gates={"a": 2.0})
    held = launch_or_hold(one, None, place("a", (0, 3)), picture, rooms(picture))
    assert isinstance(held, Hold) and "flexible work may use 2 GPUs in a now" in held.reason
    assert wanted_places(one, None, place("a", (0, 3)), picture, rooms(picture)) == [("a", None, 1.0, True)]
    assert isinstance(launch_or_hold(one, NOW, place("a", (0, 3)), picture, rooms(picture)), Launch), "its last safe start"
    assert wanted_places(one, NOW, place("a", (0, 3)), picture, rooms(picture)) == [("a", None, 1.0, False)]
    launches = [a for a in decide(replace(picture, jobs=(one,), gates={"a": 0.0})) if isinstance(a, Launch)]
    assert launches == []


def spans() -> st.SearchStrategy[list[tuple[float, float]]]:
    """Up to three parts of a plan, some of them past, in steps of six minutes."""
    edges = st.lists(st.integers(-20, 60), min_size=2, max_size=6, unique=True).map(sorted)
    return edges.map(lambda some: [(a / 10, b / 10) for a, b in zip(some[::2], some[1::2], strict=False)])


@st.composite
def turns(draw: st.DrawFn) -> tuple[JobView, Placement, World]:
    waiting = draw(st.booleans())
    more = {
        "deadline_at": draw(st.sampled_from([None, NOW + 3 * H, NOW + 12 * H])),
        "pausable": draw(st.sampled_from([Pausable.NO, Pausable.CHECKPOINT])),
        "runtime_s": draw(st.sampled_from([60.0, 3600.0, 4 * 3600.0])),
    }
    if waiting:
        one = job("j", earliest_at=draw(st.sampled_from([None, NOW + H])), not_before_at=None, **more)
        one = replace(one, state=draw(st.sampled_from([JobState.QUEUED, JobState.PAUSED])))
    else:
        one = running("j", "a", hours_ago=draw(st.sampled_from([0.1, 1.0])), **more)
    placement = place(draw(st.sampled_from(["a", "b"])), *draw(spans()))
    return one, placement, world([one], [region("a", FLAT), region("b", FLAT)])


def decided(one: JobView, placement: Placement, picture: World, when: datetime) -> object:
    """What is decided at a moment, less the times in its sentences."""
    then = replace(picture, now=when)
    if one.state in (JobState.QUEUED, JobState.PAUSED):
        action = launch_or_hold(one, last_safe_start(one, then), placement, then, rooms(replace(then, jobs=())))
        return (type(action), getattr(action, "region", None), getattr(action, "planned_start_at", None))
    return plan_wants_pause(one, placement, then) is None


@given(turns(), st.lists(st.integers(0, 420), min_size=1, max_size=12))
def test_between_two_moments_nothing_is_decided_otherwise(turn: tuple[JobView, Placement, World], minutes: list[int]) -> None:
    one, placement, picture = turn
    until = next_moment(one, placement, picture)
    first = decided(one, placement, picture, NOW)
    if first in ((Launch, "a", None), (Launch, "b", None), False):
        return  # it is acted on at once
    for minute in sorted(minutes):
        when = NOW + timedelta(minutes=minute)
        if until is not None and when >= until:
            break
        then = decided(one, placement, picture, when)
        assert then == first or (isinstance(then, tuple) and then[0] is not Launch and first[0] is not Launch), (minute, until)  # type: ignore[index]


def test_before_its_earliest_time_a_job_says_what_it_waits_for_the_longest() -> None:
    one = job("j", earliest_at=NOW + H)
    picture = world([one], [region("a", FLAT)])

    def told(*spans: tuple[float, float]) -> str:
        held = launch_or_hold(one, None, place("a", *spans), picture, rooms(picture))
        assert isinstance(held, Hold) and held.planned_start_at == NOW + spans[0][0] * H
        return held.reason

    assert told((1, 2)) == "may not start before 2026-02-03 07:00Z"
    assert told((6, 7)) == "its place", "the plan has it wait for something else"
