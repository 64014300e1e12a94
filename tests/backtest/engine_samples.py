"""Small scenarios for the engine's tests, and foresights and policies that do as little as they can."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from dispatcher.backtest.scenario import Known, Scenario, SignalTable, SimRegion, TraceJob
from policies.policy import Knows
from policies.world import JobView, Pausable, Placement, Plan, RegionView, Settings, World
from signals.series import SlotSeries

T0 = datetime(2023, 5, 1, tzinfo=UTC)
H = timedelta(hours=1)
SETTINGS = Settings(
    default_region="a", min_chunk_s=0.0, launch_s=0.0, runtime_slack=0.0, deadline_margin_s=0.0, carbon_price=0.0
)


class TrueForesight:
    """Everything is known beforehand."""

    mode = "perfect"

    def __init__(self, tables: Sequence[SignalTable]) -> None:
        self._tables = tables
        self._known: tuple[datetime, dict[str, Known]] | None = None

    def views(self, now: datetime) -> Mapping[str, Known]:
        hour = now.replace(minute=0, second=0, microsecond=0)
        if self._known is None or self._known[0] != hour:
            self._known = (hour, {table.region: self._of(table, hour) for table in self._tables})
        return self._known[1]

    def next_change(self, now: datetime) -> datetime:
        return now.replace(minute=0, second=0, microsecond=0) + H

    def _of(self, table: SignalTable, hour: datetime) -> Known:
        return Known(*(self._series(table, values, hour) for values in (table.price, table.carbon)))

    def _series(self, table: SignalTable, values: Any, hour: datetime) -> SlotSeries | None:
        if values is None:
            return None
        first = int((hour - table.start).total_seconds() // table.slot_s)
        seen = self.seen(values, first)
        return SlotSeries(hour, table.slot_s, seen, ("published",) * len(seen), "u", "t")

    def seen(self, values: Any, first: int) -> tuple[float | None, ...]:
        return tuple(None if value != value else float(value) for value in values[first : first + 96])


class YesterdayForesight(TrueForesight):
    """Every hour will be as it was a day before: nothing from now on is looked at."""

    mode = "as-of"

    def seen(self, values: Any, first: int) -> tuple[float | None, ...]:
        day = [float(value) for value in values[first - 24 : first]]
        return tuple((day * 4)[:96])


class Base:
    """A policy that places each job by itself and never again."""

    name = "base"
    knows = Knows.RUNTIME
    replans = False

    def insert(self, world: World, jobs: Sequence[JobView]) -> Mapping[str, Placement]:
        return {job.id: self.place(job, world) for job in jobs}

    def place(self, job: JobView, world: World) -> Placement:
        return placement(job, self.where(job, world), (world.now, world.now + timedelta(seconds=job.remaining_s)))

    def where(self, job: JobView, world: World) -> RegionView:
        return next(view for view in world.regions if not job.flex.regions or view.name in job.flex.regions)

    def plan(self, world: World) -> Plan:
        raise AssertionError("it does not plan anew")

    def forget(self, job_ids: Iterable[str]) -> None:
        pass

    def gate(self, view: RegionView, now: datetime) -> float | None:
        return None


class Cleanest(Base):
    """The cleanest start on a full hour that its deadline allows; a job that may be paused takes the cleanest hours."""

    name = "cleanest"

    def place(self, job: JobView, world: World) -> Placement:
        view = self.where(job, world)
        series = view.carbon or view.price
        assert series is not None
        run = timedelta(seconds=job.remaining_s)
        last = (job.flex.deadline_at or world.now + 24 * H) - run
        starts = [world.now]
        hour = world.now.replace(minute=0, second=0, microsecond=0) + H
        while hour <= last:
            starts.append(hour)
            hour += H
        if job.flex.pausable is not Pausable.CHECKPOINT:
            best = min(starts, key=lambda at: (mean(series, at, run), at))
            return placement(job, view, (best, best + run))
        left, spans = job.remaining_s, []
        for at in sorted(starts, key=lambda at: (series.at(at) or 0.0, at)):
            until = min(at.replace(minute=0, second=0, microsecond=0) + H, at + timedelta(seconds=left))
            left -= (until - at).total_seconds()
            spans.append((at, until))
            if left <= 1e-6:
                break
        if left > 1e-6:  # an hour in whose middle it ends is no start, and may be needed
            return placement(job, view, (world.now, world.now + run))
        return placement(job, view, *sorted(spans))


class Replanning(Cleanest):
    """The same, made anew for all that wait."""

    name = "replanning"
    replans = True

    def plan(self, world: World) -> Plan:
        kept = world.plan.placements if world.plan is not None else {}
        places = {}
        for job in world.jobs:
            if job.run_started_at is None and job.state.value in ("queued", "paused"):
                places[job.id] = self.place(job, world)
            elif job.id in kept:
                places[job.id] = kept[job.id]
        return Plan(world.now, world.now + 48 * H, 3600, places, {}, 0.0, gap=0.25)


def mean(series: SlotSeries, at: datetime, run: timedelta) -> float:
    hours = max(1, round(run / H))
    return sum(series.at(at + n * H) or 0.0 for n in range(hours)) / hours


def placement(job: JobView, view: RegionView, *spans: tuple[datetime, datetime], **more: Any) -> Placement:
    return Placement(job.id, view.name, spans, None, 0.0, None, 0.0, "its place", **more)


def table(region: str = "a", *, days: int = 14, seed: int = 1, **more: Any) -> SignalTable:
    """A signal with days and nights, from a day before T0 on."""
    rng = np.random.default_rng(seed)
    hours = np.arange((days + 1) * 24)
    wave = np.sin(hours * 2 * np.pi / 24.0)
    fields: dict[str, Any] = {
        "price": 60.0 + 40.0 * wave + rng.normal(0.0, 8.0, len(hours)),
        "carbon": 300.0 + 150.0 * wave + rng.normal(0.0, 20.0, len(hours)),
    }
    return SignalTable(region, T0 - 24 * H, 3600, **{**fields, **more})


def trace_job(job_id: str = "j", hour: float = 0.0, length_h: float = 1.0, **more: Any) -> TraceJob:
    fields: dict[str, Any] = {"gpus": 1.0, "power_w": 1000.0, "max_wait_s": 12 * 3600.0}
    return TraceJob(job_id, T0 + hour * H, length_h * 3600.0, **{**fields, **more})


def scenario(
    jobs: Sequence[TraceJob], *regions: SimRegion, days: int = 7, settings: Settings = SETTINGS, **more: Any
) -> Scenario:
    regions = regions or (SimRegion("a", table()),)
    foresight = more.pop("foresight", None) or TrueForesight([region.signals for region in regions])
    return Scenario(
        T0, T0 + timedelta(days=days), tuple(jobs), tuple(regions), foresight, replace(settings, slot_s=3600), **more
    )


def many_jobs(count: int, *, days: float = 4.0, seed: int = 3, **more: Any) -> list[TraceJob]:
    """Jobs as a cluster gets them: many short ones and a long tail, in bursts; half of them may be paused."""
    rng = np.random.default_rng(seed)
    at = np.sort(rng.uniform(0.0, days * 24.0, count))
    length_s = np.clip(np.round(rng.lognormal(7.5, 1.5, count)), 0.0, 2 * 86400.0)
    gpus = rng.choice([0.5, 1.0, 2.0, 4.0, 8.0], count, p=[0.2, 0.4, 0.2, 0.15, 0.05])
    jobs = []
    for n in range(count):
        fields: dict[str, Any] = {
            "gpus": float(gpus[n]),
            "power_w": float(round(300.0 * gpus[n])),
            "max_wait_s": 6 * 3600.0 if length_s[n] < 7200.0 else 24 * 3600.0,
            "queue": "short" if length_s[n] < 7200.0 else "long",
            "pausable": Pausable.CHECKPOINT if n % 2 else Pausable.NO,
            "checkpoint_s": float(n % 4) * 20.0,
            "restart_s": float(n % 3) * 30.0,
            "priority": n % 3,
            "tier": f"flex-{n % 4}",
        }
        jobs.append(TraceJob(f"j{n}", T0 + float(at[n]) * H, float(length_s[n]), **{**fields, **more}))
    return jobs
