"""Worlds for the tests of policies, and what must hold of every plan."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from policies.world import (
    Budget,
    Flexibility,
    JobState,
    JobView,
    Pausable,
    Plan,
    RegionView,
    Settings,
    World,
)
from signals.series import SlotSeries

NOW = datetime(2026, 2, 3, 6, 0, tzinfo=UTC)
SETTINGS = Settings(default_region="a", min_chunk_s=900.0, launch_s=0.0)


def series(values: list[float | None], unit: str = "EUR/MWh", start: datetime = NOW, slot_s: int = 900) -> SlotSeries:
    return SlotSeries(
        start, slot_s, tuple(values), tuple("published" if v is not None else "unknown" for v in values), unit, "t"
    )


def region(name: str, prices: list[float | None] | None, **more: Any) -> RegionView:
    fields: dict[str, Any] = {"reachable": True, "gpus": 8.0, "max_jobs": None, "power_limit_w": None, "carbon": None}
    fields["price"] = None if prices is None else series(prices)
    return RegionView(name=name, **{**fields, **more})


def flex(**more: Any) -> Flexibility:
    fields: dict[str, Any] = {
        "flexible": True,
        "deadline_at": NOW + timedelta(hours=12),
        "earliest_at": None,
        "runtime_s": 3600.0,
        "runtime_given": True,
        "gpus": 1.0,
        "power_w": 1000.0,
        "tier": "flex-1",
    }
    return Flexibility(**{**fields, **more})


def job(job_id: str, *, state: JobState = JobState.QUEUED, remaining_s: float | None = None, **more: Any) -> JobView:
    own = {key: more.pop(key) for key in list(more) if key in JobView.__dataclass_fields__}
    wishes = flex(**more)
    return JobView(job_id, state, NOW, NOW, wishes, wishes.runtime_s if remaining_s is None else remaining_s, **own)


def running(job_id: str, where: str, hours_ago: float = 1.0, **more: Any) -> JobView:
    more.setdefault("pausable", Pausable.CHECKPOINT)
    since = NOW - timedelta(hours=hours_ago)
    return job(job_id, state=JobState.RUNNING, region=where, attempt=1, run_started_at=since, **more)


def world(jobs: list[JobView], regions: list[RegionView], *, budgets: tuple[Budget, ...] = (), **settings: Any) -> World:
    return World(NOW, tuple(jobs), tuple(regions), budgets, settings=replace(SETTINGS, **settings))


def check_plan(picture: World, plan: Plan) -> None:
    """Every constraint that a plan must keep, checked minute-free on the edges of its own intervals."""
    jobs = {one.id: one for one in picture.jobs}
    regions = {view.name: view for view in picture.regions}
    use: list[tuple[datetime, datetime, str, float, float, bool]] = []
    for job_id, placement in plan.placements.items():
        one = jobs[job_id]
        view = regions[placement.region]
        stays = one.state is JobState.RUNNING and one.region == placement.region and placement.intervals[0][0] <= picture.now
        assert view.reachable or stays
        assert not one.flex.regions or placement.region in one.flex.regions
        assert all(start < end for start, end in placement.intervals)
        assert all(a[1] <= b[0] for a, b in zip(placement.intervals, placement.intervals[1:], strict=False))
        # one that runs has begun already, for whatever reason: its earliest time binds it no more
        earliest = None if one.run_started_at else one.flex.earliest_at
        first = max(picture.now, earliest or picture.now, one.not_before_at or picture.now)
        assert stays or placement.intervals[0][0] >= first - timedelta(seconds=1)
        if one.flex.pausable is not Pausable.CHECKPOINT:
            assert len(placement.intervals) == 1
        length = sum((end - start).total_seconds() for start, end in placement.intervals)
        done = (picture.now - one.run_started_at).total_seconds() if one.run_started_at else 0.0
        assert length >= max(one.remaining_s - done, 0.0) - 1.0
        if one.flex.deadline_at is not None and placement.late_s == 0:
            assert placement.intervals[-1][1] <= one.flex.deadline_at + timedelta(seconds=1)
        for start, end in placement.intervals:
            use.append((start, end, placement.region, one.flex.gpus, one.flex.power_w * view.pue, stays))
    for moment in {start for start, *_ in use}:
        for view in picture.regions:
            here = [u for u in use if u[2] == view.name and u[0] <= moment < u[1]]
            newcomers = any(not u[5] for u in here)
            if view.gpus is not None and newcomers:
                assert sum(u[3] for u in here) <= view.gpus + 1e-6
            limits = [
                b.limit_w
                for b in picture.budgets
                if b.region == view.name and b.start <= moment and (b.end is None or moment < b.end)
            ]
            limit = min([*limits, view.power_limit_w or float("inf")])
            assert sum(u[4] for u in here) + view.bypass_w <= limit + 1e-3 or not here
