"""What policies that place one job at a time on one site have in common: the job's home, how long it may wait, its placement.

They know neither capacity nor limits, events or shift rules: policies.decide keeps those whatever they say. Which moments are
best is each policy's own (policies.published).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from math import isfinite
from typing import NamedTuple

from policies.policy import Knows
from policies.timeline import SAME_S, Market, Span, Timeline
from policies.world import Alternative, JobState, JobView, Placement, Plan, RegionView, Settings, World

#: The shortest interval of a placement, s: a job of no length still has a moment at which it starts.
LEAST_S = 1.0
WAITING = frozenset({JobState.QUEUED, JobState.PAUSED})


class Ask(NamedTuple):
    """When should this job run in this region? Seconds count from ``ready``, the first moment at which it may start;
    ``begin_s`` is that moment in seconds after the start of ``line``, the signal (None: there is none). ``run_s`` is its run
    time as far as the policy may know it, ``wait_s`` how long it may wait, ``word`` what the signal is called."""

    job: JobView
    ready: datetime
    run_s: float
    wait_s: float
    line: Timeline | None
    begin_s: float
    word: str

    @property
    def best(self) -> str:
        """What the least of the signal is called."""
        return "cleanest" if self.word == "carbon" else "cheapest"

    @property
    def better(self) -> str:
        """What less of the signal is called."""
        return "cleaner" if self.word == "carbon" else "cheaper"


#: When to run, and why.
Answer = tuple[Sequence[Span], str]


class SingleSite:
    """A policy that places each job by itself, in its home; ``choose`` is what makes each one itself."""

    title = ""
    knows = Knows.NOTHING
    replans = False

    def __init__(self, by_price: bool = False) -> None:
        self.name = f"{self.title}:price" if by_price else self.title
        self._by_price = by_price
        self._markets: dict[str, Market] = {}

    # --- what a policy offers -----------------------------------------------------------------------------------------

    def insert(self, world: World, jobs: Sequence[JobView]) -> Mapping[str, Placement]:
        """Each job's place, by itself."""
        placements = {}
        for job in jobs:
            view = home(job, world)
            if view is not None:
                placements[job.id] = self.place(job, view, world)
        return placements

    def plan(self, world: World) -> Plan:
        """Places made before stay; jobs that have none, or whose time passed in vain, get one."""
        before = world.plan.placements if world.plan is not None else {}
        views = {view.name: view for view in world.regions}
        placements: dict[str, Placement] = {}
        unplaced: dict[str, str] = {}
        for job in world.jobs:
            if not job.flex.flexible or job.held or job.cancel_requested:
                continue
            kept = self.kept(job, before.get(job.id), views, world)
            if kept is not None:
                placements[job.id] = kept
            elif job.state in WAITING:
                view = home(job, world)
                if view is not None:
                    placements[job.id] = self.place(job, view, world)
                else:
                    unplaced[job.id] = _nowhere(job, world)
        costs = [placement.cost for placement in placements.values() if placement.cost is not None]
        late_h = sum(placement.late_s for placement in placements.values()) / 3600.0
        return Plan(
            made_at=world.now,
            horizon_end=world.now + timedelta(seconds=world.settings.horizon_s),
            slot_s=world.settings.slot_s,
            placements=placements,
            unplaced=unplaced,
            objective=sum(costs) + late_h * world.settings.late_cost_per_h,
        )

    def forget(self, job_ids: Iterable[str]) -> None:
        """Nothing is remembered of jobs."""

    def gate(self, view: RegionView, now: datetime) -> float | None:
        """No bound."""
        return None

    # --- one job ------------------------------------------------------------------------------------------------------

    def choose(self, ask: Ask, line: Timeline) -> Answer:
        """The best moments by ``line`` for a job that may wait."""
        raise NotImplementedError

    def answer(self, ask: Ask) -> Answer:
        """The best moments, or at once where there is nothing to choose."""
        if ask.wait_s <= 0:
            return once(0.0, ask.run_s), "starts at once: its deadline leaves no time to wait"
        if ask.line is None:
            return once(0.0, ask.run_s), "starts at once: neither carbon nor price is known"
        return self.choose(ask, ask.line)

    def kept(self, job: JobView, before: Placement | None, views: Mapping[str, RegionView], world: World) -> Placement | None:
        """The place a job has, as far as it still holds."""
        if before is None or not before.intervals or before.region not in views:
            return None
        if job.state not in WAITING:
            return before
        (start, first_end), last_end, now = before.intervals[0], before.intervals[-1][1], world.now
        if not views[before.region].reachable or last_end <= now:
            return None
        if start < now and job.state is JobState.QUEUED and len(before.intervals) == 1:
            # its time came and something held it up: it still goes first thing, and may be late by now
            end = now + (first_end - start)
            return replace(before, intervals=((now, end),), late_s=_late_s(job, end))
        return before

    def place(self, job: JobView, view: RegionView, world: World) -> Placement:
        """Where and when ``job`` runs in the region ``view``."""
        flex, ready = job.flex, world.now
        for moment in (flex.earliest_at, job.not_before_at):
            if moment is not None and moment > ready:
                ready = moment
        if not isfinite(job.remaining_s):
            raise ValueError(f"job {job.id}: remaining_s is {job.remaining_s!r}; it must be a finite number of seconds")
        market = self.market(view, world.now)
        line = market.signal
        begin_s = 0.0 if line is None else (ready - line.start).total_seconds()
        wait_s = _wait_s(job, ready, world.settings)
        ask = Ask(job, ready, job.remaining_s, wait_s, line, begin_s, market.word)
        if flex.max_price is None and flex.max_carbon is None:
            spans, reason = self.answer(ask)
        else:
            spans, reason = self.below_ceilings(ask, market)
        return _placement(ask, market, spans, f"{self.name}: {reason}", world.settings)

    def below_ceilings(self, ask: Ask, market: Market) -> Answer:
        """The best moments below the owner's ceilings; the last possible one where there are none."""
        line = market.within(ask.ready, ask.wait_s + ask.run_s, ask.job.flex.max_price, ask.job.flex.max_carbon)
        if ask.wait_s > 0 and line is not None:
            _, values = line.pieces(ask.begin_s, ask.begin_s + max(ask.wait_s + ask.run_s, LEAST_S))
            if all(value != value for value in values):
                line = None
        if ask.wait_s > 0 and line is None:
            return once(ask.wait_s, ask.run_s), "the last start in time: power is over its ceilings, or unknown, until then"
        return self.answer(ask._replace(line=line))

    def market(self, view: RegionView, now: datetime) -> Market:
        """A region's signals; made anew only when they are others."""
        market = self._markets.get(view.name)
        if market is None or not market.holds(view, now):
            market = self._markets[view.name] = Market(view, now, self._by_price)
        return market


# --- where, and how long it may wait ----------------------------------------------------------------------------------


def home(job: JobView, world: World) -> RegionView | None:
    """The one region that a job is for: where it last ran, else the default region, else the first that it may use and that can
    take it; None where there is none."""
    named = job.flex.regions
    able = [view for view in world.regions if (not named or view.name in named) and _takes(view, job)]
    if len(able) < 2:
        return able[0] if able else None
    for name in (job.region if job.state is JobState.PAUSED else None, world.settings.default_region):
        for view in able:
            if view.name == name:
                return view
    return able[0]


def _takes(view: RegionView, job: JobView) -> bool:
    """Whether a region answers and could ever run the job."""
    return (
        view.reachable
        and (view.gpus is None or job.flex.gpus <= view.gpus + SAME_S)
        and (view.power_limit_w is None or job.flex.power_w * view.pue <= view.power_limit_w + SAME_S)
    )


def _nowhere(job: JobView, world: World) -> str:
    named = [view for view in world.regions if not job.flex.regions or view.name in job.flex.regions]
    clauses = [f"{view.name} {'is too small for it' if view.reachable else 'does not answer'}" for view in named]
    return f"waits: {'; '.join(clauses) or 'no region is configured'}"


def _wait_s(job: JobView, ready: datetime, settings: Settings) -> float:
    """How long a job may wait from ``ready`` on, s: what its deadline leaves, less its run time and what the settings keep in
    reserve for a late launch and a longer run; without a deadline the horizon, from its submission on."""
    deadline = job.flex.deadline_at
    if deadline is None:
        return max(0.0, settings.horizon_s - (ready - job.submitted_at).total_seconds())
    reserve_s = settings.launch_s + settings.deadline_margin_s + settings.runtime_slack * job.remaining_s
    return max(0.0, (deadline - ready).total_seconds() - job.remaining_s - reserve_s)


def _late_s(job: JobView, end: datetime) -> float:
    deadline = job.flex.deadline_at
    return 0.0 if deadline is None or end <= deadline else (end - deadline).total_seconds()


# --- answers ----------------------------------------------------------------------------------------------------------


def once(begin_s: float, run_s: float) -> tuple[Span]:
    """One run without a pause."""
    return ((begin_s, begin_s + run_s),)


def unknown(ask: Ask) -> Answer:
    """The answer where the signal says nothing of any time the job could run in."""
    return once(0.0, ask.run_s), f"starts at once: no {ask.word} is known for the time it could run in"


def _placement(ask: Ask, market: Market, spans: Sequence[Span], reason: str, settings: Settings) -> Placement:
    job, ready, power_w = ask.job, ask.ready, ask.job.flex.power_w
    work = spans if len(spans) == 1 else _first(spans, ask.run_s)
    cost, carbon_kg = market.figures(power_w, ready, work, settings.carbon_price)
    run_now_cost = cost
    alternatives: tuple[Alternative, ...] = ()
    if len(spans) > 1 or spans[0][0] > SAME_S:
        run_now_cost, now_kg = market.figures(power_w, ready, once(0.0, ask.run_s), settings.carbon_price)
        emits = "" if now_kg is None else f", which emits {now_kg:.4g} kg CO2e"
        alternatives = (Alternative(market.view.name, ready, run_now_cost, f"starting at once{emits}"),)
    end_s = work[-1][1]
    return Placement(
        job_id=job.id,
        region=market.view.name,
        intervals=tuple(
            [(ready + timedelta(seconds=a), ready + timedelta(seconds=b if b > a + LEAST_S else a + LEAST_S)) for a, b in spans]
        ),
        cost=cost,
        energy_kwh=power_w * market.view.pue * ask.run_s / 3.6e6,
        carbon_kg=carbon_kg,
        late_s=0.0 if job.flex.deadline_at is None else _late_s(job, ready + timedelta(seconds=end_s)),
        reason=reason,
        run_now_cost=run_now_cost,
        alternatives=alternatives,
    )


def _first(spans: Sequence[Span], run_s: float) -> list[Span]:
    """The first ``run_s`` seconds of spans."""
    taken: list[Span] = []
    left = run_s
    for begin, end in spans:
        if left <= 0 and taken:
            break
        taken.append((begin, min(end, begin + left)))
        left -= end - begin
    return taken
