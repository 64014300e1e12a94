"""The picture of the world that is decided on: regions with their signals, limits and gates, as far as they are known now.

Jobs are the control loop's; everything around them is put together here. Nothing is decided.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from dispatcher.config import Config, shift_windows
from dispatcher.config_events import MAX_RECOVERY_S
from dispatcher.dr.budgets import budgets_of
from dispatcher.peaks import Peaks
from dispatcher.power.hub import NodeLive
from dispatcher.power.placements import Placements
from dispatcher.regions import Region
from dispatcher.signal_book import SignalBook
from dispatcher.store import Attempt, Job, Store
from policies.freezing import idle_w
from policies.registry import quota
from policies.room import LEAD_S
from policies.world import (
    PLACED,
    Budget,
    CapPoint,
    DemandCharge,
    Floor,
    Guarded,
    JobView,
    Plan,
    RegionView,
    Reserved,
    Settings,
    World,
)

#: Events that ended so long ago may still have load come back from them.
MOST_BACK = timedelta(seconds=MAX_RECOVERY_S)


class WorldBuilder:
    """See the module. ``build`` and ``note_draws`` are the control loop's; ``region_views`` may be called from any thread."""

    def __init__(
        self,
        config: Config,
        settings: Settings,
        store: Store,
        book: SignalBook,
        regions: Mapping[str, Region],
        caps: Callable[[str], tuple[CapPoint, ...]] = lambda region: (),
        unheard: Callable[[str], bool] = lambda region: False,
        nodes: Callable[[], Iterable[NodeLive]] = lambda: (),
        guards: Callable[[str], tuple[Guarded, ...]] = lambda region: (),
        reserved: Callable[[str], tuple[Reserved, ...]] = lambda region: (),
        beside_w: Callable[[str], float] = lambda region: 0.0,
    ) -> None:
        """``caps`` tells the power caps that a region's GPUs can be given now, ``unheard`` whether that is not known yet;
        ``nodes`` are those that agents tell of, ``guards`` tells what batch has to give for a region's serving now, and
        ``reserved`` what it leaves free for it from now on; ``beside_w`` what GPUs without jobs draw there in an
        emergency (RegionView)."""
        self._beside_w = beside_w
        self._caps, self._unheard, self._nodes, self._guards, self._reserved = caps, unheard, nodes, guards, reserved
        self._branches = {
            region.name: {one.name: one.power_limit_w or None for one in region.branches} for region in config.regions
        }
        self._placements = Placements()
        self._on_branches: dict[str, tuple[JobView, JobView]] = {}
        self._config, self._settings, self._store, self._book, self._regions = config, settings, store, book, regions
        tariffs = {region.name: region.tariff.tariff(region.name) for region in config.regions if region.tariff is not None}
        self._peaks = Peaks(tariffs, timedelta(seconds=settings.horizon_s))
        self._demand: dict[str, tuple[DemandCharge, ...]] = {}
        self._quota = quota(settings.policy)
        self._sources = {source.name: source for source in config.event_sources}
        self._shifts_until: datetime | None = None
        self._shifts: tuple[Any, ...] = ()

    def build(self, now: datetime, regions: tuple[RegionView, ...], jobs: Sequence[JobView], plan: Plan | None) -> World:
        """The world at ``now``; ``regions`` are as ``region_views`` had them, looked at before the jobs were."""
        budgets = budgets_of(self._store.grid_events(ended_after=now - MOST_BACK), self._sources, now)
        regions, views = self._by_branch(regions, jobs, [one for one in budgets if one.branch is not None], now)
        return World(
            now=now,
            jobs=views,
            regions=regions,
            budgets=tuple(budget for budget in budgets if budget.branch is None),
            shifts=self._shift_windows(now),
            settings=self._settings,
            plan=plan,
            gates=self._gates(regions, now),
            branch_budgets=tuple(budget for budget in budgets if budget.branch is not None),
        )

    def _by_branch(
        self, regions: tuple[RegionView, ...], jobs: Sequence[JobView], budgets: Sequence[Budget], now: datetime
    ) -> tuple[tuple[RegionView, ...], tuple[JobView, ...]]:
        """The regions with their branches, and the jobs with their shares on them, where a branch has a limit now or soon."""
        limits: dict[str, dict[str, float | None]] = {}
        for name, standing in self._branches.items():
            if any(limit_w is not None for limit_w in standing.values()):
                limits[name] = dict(standing)
        soon = now + timedelta(seconds=LEAD_S)
        for budget in budgets:
            near = budget.start <= soon and not budget.is_over(now)
            if budget.branch is not None and (near or budget.way_back(now) is not None):
                limits.setdefault(budget.region, dict(self._branches.get(budget.region, {}))).setdefault(budget.branch, None)
        if not limits:
            self._on_branches.clear()
            return regions, tuple(jobs)
        nodes = [*self._nodes()]
        placed: dict[str, dict[str, JobView]] = {name: {} for name in limits}
        for job in jobs:
            if job.state in PLACED and job.region in placed:
                placed[job.region][job.id] = job
        told, shares = [], dict[str, Mapping[str, float]]()
        for view in regions:
            if (of_view := limits.get(view.name)) is not None:
                # GPUs off the branches are there where some pools name one, and others do not.
                off = any(pool.branch for pool in view.pools) and any(not pool.branch for pool in view.pools)
                there = self._placements.of(view.name, nodes, placed[view.name], of_view, gpus=view.gpus, off_branches=off)
                view = replace(view, branches=there.branches)
                shares |= there.shares
            told.append(view)
        views = tuple(self._with_shares(job, shares[job.id]) if job.id in shares else job for job in jobs)
        self._on_branches = {job_id: known for job_id, known in self._on_branches.items() if job_id in shares}
        return tuple(told), views

    def _with_shares(self, job: JobView, shares: Mapping[str, float]) -> JobView:
        """A job with its shares on branches: the same value as long as nothing changes, for there may be thousands."""
        known = self._on_branches.get(job.id)
        if known is None or known[0] is not job or known[1].on_branches != shares:
            known = self._on_branches[job.id] = (job, replace(job, on_branches=shares))
        return known[1]

    def region_views(self) -> tuple[RegionView, ...]:
        """Each region as it is known this moment."""
        return tuple(self._region_view(region) for region in self._regions.values())

    def note_draws(self, jobs: Iterable[Job], attempts: Mapping[str, Attempt], now: datetime) -> None:
        """What each site draws now, as modelled, for the peaks that its tariff charges."""
        if not self._peaks:
            return
        draws = Counter[str]()
        for job in jobs:
            attempt = attempts.get(job.id)
            running = attempt is not None and attempt.started_at is not None and job.state in PLACED
            if attempt is not None and running and attempt.region in self._regions:
                power_w = job.flex.power_w if job.frozen_at is None else idle_w(job.flex)
                draws[attempt.region] += round(power_w * self._regions[attempt.region].config.pue)
        for region in self._regions:
            self._peaks.note(region, now, float(draws[region]))
        self._demand = {region: self._peaks.charges(region, now) for region in self._regions}

    def _region_view(self, region: Region) -> RegionView:
        config = region.config
        pools = config.pools()
        return RegionView(
            name=region.name,
            reachable=region.reachable(),
            gpus=sum(pool.gpus for pool in pools) if pools else region.gpus(),
            max_jobs=config.max_jobs,
            power_limit_w=config.power_limit_w or None,
            price=self._book.series(region.name, "price"),
            carbon=self._book.series(region.name, "carbon"),
            currency=self._book.currency(region.name) or config.currency,
            fx=self._book.fx(region.name),
            pue=config.pue,
            carbon_kind=f"carbon_{config.carbon_signal}",
            demand=self._demand.get(region.name, ()),
            pools=pools,
            caps=self._caps(region.name),
            unheard=self._unheard(region.name),
            reserved=self._reserved(region.name),
            guards=self._guards(region.name),
            beside_w=self._beside_w(region.name),
            floors=tuple(
                Floor(f"serving {one.name}", one.floor_gpus, always_w)
                for one in config.serving
                if (always_w := one.always_w(self._config.planning.default_gpu_power_w, config.pue)) > 0
            ),
        )

    def _gates(self, regions: Sequence[RegionView], now: datetime) -> dict[str, float]:
        """The GPUs that the configured policy's quota leaves to flexible work in each region now."""
        if self._quota is None:
            return {}
        gates = {view.name: self._quota.gate(view, now) for view in regions}
        return {name: gate for name, gate in gates.items() if gate is not None}

    def _shift_windows(self, now: datetime) -> tuple[Any, ...]:
        """Occurrences of the shift rules up to the horizon, made anew each hour of clock time."""
        if self._shifts_until is None or now >= self._shifts_until:
            self._shifts = shift_windows(self._config, now, now + timedelta(seconds=self._settings.horizon_s + 3600))
            self._shifts_until = now + timedelta(hours=1)
        return self._shifts
