"""What the fleet could give: hand-computed, and properties that hold of any jobs."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.flexibility import FOR_S, Measured, Shed, Task, ahead_of, capped_share, now_of, shed, stays
from dispatcher.power.fleet import BranchView, Draw, Fleet, GpuView, NodeView, RegionFleet
from dispatcher.power.hub import CapLive
from policies.world import (
    CapPoint,
    Flexibility,
    JobState,
    JobView,
    Pausable,
    Placement,
    Plan,
    RegionView,
    Reserved,
    World,
)

NOW = datetime(2026, 6, 23, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
NONE = Draw(None, None, 0, 0, False)
KNOWN = Measured(20_000.0, "measured", "")


def job(name: str, tier: str = "flex-2", power_w: float = 1000.0, state: JobState = JobState.RUNNING, **more: Any) -> JobView:
    flex_keys = set(Flexibility.__slots__)
    flex = Flexibility(
        **{
            "flexible": True,
            "deadline_at": None,
            "earliest_at": None,
            "runtime_s": 36_000.0,
            "runtime_given": True,
            "gpus": 2.0,
            "power_w": power_w,
            "tier": tier,
            **{key: value for key, value in more.items() if key in flex_keys},
        }
    )
    rest = {key: value for key, value in more.items() if key not in flex_keys}
    defaults: dict[str, Any] = {"remaining_s": 36_000.0, "region": "eu", "run_started_at": NOW, "cannot_freeze": ""}
    return JobView(name, state, NOW, NOW, flex, **{**defaults, **rest})


def gpu(name: str, jobs: tuple[str, ...] | None, power_w: float | None, protected: str = "") -> GpuView:
    cap = CapLive("none", None, None, "")
    return GpuView(name, 0, "H100", False, "active", jobs, power_w, 700.0, None, 700.0, None, None, (), cap, False, protected)


def fleet(**gpus: list[GpuView]) -> Fleet:
    """GPUs by branch ("none": on none)."""
    branches = tuple(
        BranchView(
            None if name == "none" else name,
            None,
            NONE,
            (NodeView("n", "h", False, NOW, True, "", False, NONE, tuple(here)),),
        )
        for name, here in gpus.items()
    )
    return Fleet(NOW, NONE, (RegionFleet("eu", NONE, branches),))


def region(**more: Any) -> RegionView:
    return RegionView("eu", True, 16.0, None, None, None, None, **{"pue": 1.25, **more})


def world(*jobs: JobView, **more: Any) -> World:
    return World(NOW, tuple(jobs), (region(),), **more)


def by_length(sheds: tuple[Shed, ...]) -> dict[float, tuple[float, float]]:
    return {one.for_s: (round(one.caps_w, 6), round(one.pauses_w, 6)) for one in sheds}


def test_caps_first_then_pauses_each_for_as_long_as_it_lasts() -> None:
    caps = job("a", capped_w=600.0)
    checkpoint = job("b", pausable=Pausable.CHECKPOINT, checkpoint_s=120.0, capped_w=700.0)
    freeze = job("c", pausable=Pausable.FREEZE, freeze_max_s=900.0, frozen_w=200.0)
    rigid = job("d", tier="flex-0", flexible=False)
    told = now_of(world(caps, checkpoint, freeze, rigid), fleet(), region(), None, KNOWN)
    # At the meter: (1000 - 600) + (1000 - 700) W by caps; 700 W more when b has its checkpoint; 800 W while c stands frozen.
    assert by_length(told.sheds) == {
        10.0: (875.0, 1000.0),
        30.0: (875.0, 1000.0),
        600.0: (875.0, 1875.0),
        1800.0: (875.0, 875.0),
        7200.0: (875.0, 875.0),
    }
    assert [one.within_s for one in told.sheds] == [0.0, 0.0, 120.0, 120.0, 120.0]
    assert (told.sheds[2].capped, told.sheds[2].paused) == (2, 2)
    assert told.stays is not None and told.draw_w == 20_000.0
    # d; a at its caps and c, which may not stand for two hours; b at rest; the rest of the site.
    assert (told.stays.flex_0_w, told.stays.floor_w, told.stays.at_rest_w) == (1250.0, 600 * 1.25 + 1250.0, 0.0)
    assert told.stays.other_w == 20_000.0 - 4 * 1250.0
    assert any("4 jobs count with the draw that their owners stated" in note for note in told.notes)
    assert any("1 job could be slowed, but how far" in note for note in told.notes)


def test_deadlines_and_ends_bound_what_can_be_held() -> None:
    tight = job("a", pausable=Pausable.CHECKPOINT, checkpoint_s=10.0, restart_s=50.0, deadline_at=NOW + 10 * HOUR + HOUR / 2)
    short = job("b", capped_w=500.0, remaining_s=900.0)
    told = by_length(now_of(world(tight, short), fleet(), region(pue=1.0), None, KNOWN).sheds)
    # a has 1,740 s to spare; b ends in a quarter of an hour.
    assert told == {10.0: (500, 0), 30.0: (500, 1000), 600.0: (500, 1000), 1800.0: (0, 0), 7200.0: (0, 0)}


def test_an_unknown_draw_is_unknown_with_its_reason() -> None:
    told = now_of(world(job("a")), fleet(), region(), None, Measured(None, "unknown", "the site has no meter"))
    assert (told.draw_w, told.reason) == (None, "the site has no meter")
    assert told.stays is not None and told.stays.other_w is None and told.stays.protected_w is None
    silent = now_of(world(job("a")), fleet(), replace(region(), reachable=False), None, KNOWN)
    assert "does not answer" in silent.notes[0]


def test_measured_draw_counts_and_a_branch_has_its_share() -> None:
    seen = fleet(r1=[gpu("g1", ("a",), 450.0), gpu("g3", (), 80.0, "work of others")], r2=[gpu("g2", ("a",), 350.0)])
    one = job("a", power_w=1400.0, capped_w=600.0)
    site = now_of(world(one, job("b")), seen, region(), None, KNOWN)
    assert by_length(site.sheds)[10.0][0] == pytest.approx((800 - 600) * 1.25)
    assert site.stays is not None and site.stays.protected_w == pytest.approx(100.0)
    branch = now_of(world(one, job("b")), seen, region(), "r1", Measured(5000.0, "measured", ""))
    # A branch's meter sees no cooling; half of the job's GPUs are here, so half of what its caps leave.
    assert by_length(branch.sheds)[10.0][0] == pytest.approx(450 - 300)
    assert any("on which branch 1 job" in note for note in branch.notes)


def test_a_job_on_a_shared_or_silent_gpu_counts_as_stated() -> None:
    shared = fleet(none=[gpu("g1", ("a", "b"), 450.0), gpu("g2", ("a",), None)])
    told = now_of(world(job("a", capped_w=600.0)), shared, region(pue=1.0), None, KNOWN)
    assert by_length(told.sheds)[10.0][0] == 400.0


def test_serving_is_kept() -> None:
    kept = region(reserved=(Reserved(NOW - HOUR, NOW + HOUR, 2.0, 3000.0),))
    told = now_of(world(), fleet(), kept, None, KNOWN)
    assert told.stays is not None and told.stays.serving_w == 3000.0


def test_the_next_day_by_slot_from_the_plan() -> None:
    place = region(pue=1.0, caps=(CapPoint(0.8, 0.85, 0.93), CapPoint(0.6, 0.65, 0.78), CapPoint(0.5, 0.55, 0.6)))
    waiting = job("a", state=JobState.QUEUED, region=None, pausable=Pausable.CHECKPOINT, run_started_at=None)
    rigid = job("b", tier="flex-0", power_w=400.0, flexible=False, remaining_s=1800.0)
    run = Placement("a", "eu", ((NOW + HOUR, NOW + 3 * HOUR),), None, 2.0, None, 0.0, "cheapest")
    plan = Plan(NOW, NOW + 48 * HOUR, 900, {"a": run}, {}, 0.0)
    slots = ahead_of(World(NOW, (waiting, rigid), (place,), plan=plan), place)
    assert len(slots) == 96 and slots[0].start == NOW and slots[-1].end == NOW + 24 * HOUR
    assert [slot.draw_w for slot in slots[:6]] == [400.0, 400.0, 0.0, 0.0, 1000.0, 1000.0]
    # flex-2 may lose a quarter of its speed: 0.6 of the limit, which takes 35 % off; then the rest, once its checkpoint is
    # there.
    assert by_length(slots[4].sheds) == {
        10.0: (350.0, 0.0),
        30.0: (350.0, 0.0),
        600.0: (350.0, 650.0),
        1800.0: (350.0, 650.0),
        7200.0: (350.0, 650.0),
    }
    assert by_length(slots[5].sheds)[7200.0] == (0.0, 0.0)  # the run ends before that
    assert ahead_of(World(NOW, (), (place,)), place) == []


def test_tiers_and_owners_bound_the_caps() -> None:
    place = region(caps=(CapPoint(0.8, 0.85, 0.93), CapPoint(0.5, 0.55, 0.6)))
    assert capped_share(job("a", tier="flex-1").flex, place) == 0.85
    assert capped_share(job("a", tier="flex-3").flex, place) == 0.55
    assert capped_share(job("a", tier="flex-3", min_cap=0.7).flex, place) == 0.85
    assert capped_share(job("a", tier="flex-0").flex, place) is None
    assert capped_share(job("a").flex, region()) is None


tasks = st.builds(
    Task,
    job_id=st.just("j"),
    tier=st.sampled_from(["flex-0", "flex-1", "flex-3"]),
    draw_w=st.floats(0, 1e6),
    lowest_w=st.none() | st.floats(0, 1e6),
    rests_w=st.floats(0, 1e6),
    may_rest_s=st.floats(0, 1e5),
    asks_s=st.floats(0, 1e4),
    runs_s=st.floats(0, 1e5),
)


@given(st.lists(tasks, max_size=6))
def test_never_more_than_is_drawn_and_caps_hold_no_more_for_longer(some: list[Task]) -> None:
    drawn = sum(task.draw_w for task in some)
    found = [shed(some, for_s) for for_s in FOR_S]
    assert all(one.total_w <= drawn * (1 + 1e-9) + 1e-6 and one.caps_w >= 0 and one.pauses_w >= 0 for one in found)
    assert all(later.caps_w <= sooner.caps_w + 1e-6 for sooner, later in pairwise(found))
    unable = [replace(task, lowest_w=None, may_rest_s=0.0) for task in some]
    assert all(shed(unable, for_s).total_w == 0 for for_s in FOR_S)
    assert stays(some, drawn, 0.0).other_w == pytest.approx(0.0, abs=1e-6)
