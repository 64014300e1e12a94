"""A limit that is known the day before: flexible work goes before it or elsewhere, checkpoints are asked for before it begins,
and no plan breaks it."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

from policies.decide import decide
from policies.planner import plan
from policies.world import AskCheckpoint, Budget, Launch, Pausable, Plan, World
from tests.policies.worlds import NOW, check_plan, job, region, running, world

H = timedelta(hours=1)
#: From 16:00 to 20:00 tomorrow, told now.
START, END = NOW + 34 * H, NOW + 38 * H
LIMIT = Budget("a", START, END, 2000.0, "day-ahead", "scarcity tomorrow", source="utility")
FLAT: list[float | None] = [50.0] * 192


def drawn_w(picture: World, made: Plan, where: str) -> float:
    """The most that planned jobs draw in a region while the limit lasts, W at the meter."""
    jobs, view = {one.id: one for one in picture.jobs}, next(v for v in picture.regions if v.name == where)
    spans = [(a, b, jobs[p.job_id].flex.power_w) for p in made.placements.values() if p.region == where for a, b in p.intervals]
    edges = sorted({START, END, *(at for a, b, _ in spans for at in (a, b) if START <= at <= END)})
    return max(sum(w for s, e, w in spans if s < b and a < e) * view.pue for a, b in pairwise(edges))


def test_work_goes_before_the_limit() -> None:
    # the hours of the limit are the cheapest: without it all would run there
    cheap: list[float | None] = [10.0 if 136 <= slot < 152 else 50.0 for slot in range(192)]
    jobs = [job(f"j{n}", deadline_at=END) for n in range(6)]
    free, picture = (world(jobs, [region("a", cheap)], budgets=budgets) for budgets in ((), (LIMIT,)))
    assert drawn_w(free, plan(free), "a") > LIMIT.limit_w
    made = plan(picture)
    check_plan(picture, made)
    assert len(made.placements) == 6 and not any(p.late_s for p in made.placements.values())
    assert drawn_w(picture, made, "a") <= LIMIT.limit_w


def test_work_goes_to_another_region() -> None:
    jobs = [job(f"j{n}", earliest_at=START, deadline_at=END) for n in range(4)]
    dear: list[float | None] = [90.0] * 192
    regions = [region("a", FLAT), region("b", dear)]
    assert {p.region for p in plan(world(jobs, regions)).placements.values()} == {"a"}
    picture = world(jobs, regions, budgets=(replace(LIMIT, limit_w=0.0),))
    made = plan(picture)
    check_plan(picture, made)
    assert {p.region for p in made.placements.values()} == {"b"} and len(made.placements) == 4


def test_a_long_job_is_asked_for_its_checkpoint_before_the_limit_begins() -> None:
    long = running(
        "long", "a", runtime_s=60 * 3600.0, deadline_at=NOW + 100 * H, checkpoint_s=120.0, pausable=Pausable.CHECKPOINT
    )
    picture = world([long], [region("a", FLAT)], budgets=(replace(LIMIT, limit_w=0.0),))
    asked = None
    for minute in range(-60, 2):
        now = START + timedelta(minutes=minute)
        actions = decide(replace(picture, now=now, plan=plan(replace(picture, now=now))))
        if any(isinstance(one, AskCheckpoint) for one in actions):
            asked = now
            break
    assert asked is not None and asked + timedelta(seconds=120) <= START


def test_what_cannot_end_before_the_limit_is_not_begun_right_before_it() -> None:
    fixed = job("fixed", runtime_s=3600.0, deadline_at=END + 10 * H, pausable=Pausable.NO)
    now = START - timedelta(minutes=20)
    picture = replace(world([fixed], [region("a", FLAT)], budgets=(replace(LIMIT, limit_w=0.0),)), now=now)
    made = plan(picture)
    assert made.placements["fixed"].intervals[0][0] >= END
    assert not any(isinstance(one, Launch) for one in decide(replace(picture, plan=made)))
