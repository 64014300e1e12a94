"""Jobs that come between two plans: rules, limits and everybody's places hold for them as in a plan."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

from policies.planner import Gridshift
from policies.world import JobState, Pausable, TeamShare
from tests.policies.worlds import NOW, job, region, running, world

H = timedelta(hours=1)
PRICES: list[float | None] = [30.0] * 16 + [16.0] * 16 + [10.0] * 16 + [40.0] * 144


def test_a_ceiling_that_is_new_holds_for_a_job_that_comes_later() -> None:
    policy, picture = Gridshift(), world([job("first")], [region("a", PRICES)])
    policy.plan(picture)
    found = policy.insert(replace(picture, jobs=()), [job("second", max_price=15.0), job("third", max_price=12.0)])
    assert all(NOW + 8 * H <= found[name].intervals[0][0] < NOW + 12 * H for name in ("second", "third"))


def test_more_jobs_than_there_are_spare_rows_still_see_what_runs() -> None:
    busy = running("busy", "a", pausable=Pausable.NO, gpus=8.0, remaining_s=4 * 3600.0)
    policy, picture = Gridshift(), world([busy], [region("a", PRICES)])
    policy.plan(picture)
    many = [job(f"j{n}", gpus=1.0, deadline_at=NOW + 47 * H, runtime_s=900.0) for n in range(70)]
    found = policy.insert(replace(picture, jobs=()), many)
    assert len(found) >= 70
    assert all(found[one.id].intervals[0][0] >= NOW + 3 * H for one in many)  # it ran for an hour of its four


def test_the_same_job_twice_takes_its_room_once() -> None:
    policy, picture = Gridshift(), world([], [region("a", PRICES, gpus=1.0)])
    policy.plan(picture)
    one = job("one", deadline_at=NOW + 13 * H, runtime_s=3600.0)
    policy.insert(picture, [one])
    again = policy.insert(picture, [one])
    others = [job(f"o{n}", deadline_at=NOW + 13 * H, runtime_s=3600.0) for n in range(3)]
    places = {**again, **policy.insert(picture, others)}
    begins = sorted(place.intervals[0] for place in places.values())
    assert len(places) == 4 and all(first[1] <= second[0] for first, second in pairwise(begins))


def test_a_team_never_gets_more_than_its_quota() -> None:
    jobs = [job(f"j{n}", team="blue", gpus=1.0, deadline_at=NOW + 30 * H, runtime_s=7200.0) for n in range(8)]
    picture = world(jobs, [region("a", PRICES)])
    picture = replace(picture, settings=replace(picture.settings, teams=(TeamShare("blue", quota_gpus=2.0),)))
    policy = Gridshift()
    placements = dict(policy.plan(picture).placements)
    late = [job(f"k{n}", team="blue", deadline_at=NOW + 30 * H, runtime_s=7200.0) for n in range(4)]
    placements |= policy.insert(picture, late)
    assert len(placements) == 12
    moments = [begin for place in placements.values() for begin, _ in place.intervals]
    for moment in moments:
        assert sum(a <= moment < b for place in placements.values() for a, b in place.intervals) <= 2


def test_what_runs_where_nobody_answers_is_left_alone() -> None:
    there = running("there", "b", hours_ago=0.5, remaining_s=6 * 3600.0, deadline_at=NOW + 40 * H)
    regions = [region("a", [10.0] * 192), region("b", [200.0] * 192, reachable=False)]
    made = Gridshift().plan(world([there], regions))
    assert there.state is JobState.RUNNING and "there" not in made.placements and "left where it runs" in made.unplaced["there"]
