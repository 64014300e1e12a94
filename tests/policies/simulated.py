"""A tiny world in virtual time in which planner and decisions run as they do live: minutes pass, jobs start, pause and end.

One policy object plans now and then, is given the jobs that come in between, and told of those that end.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from policies.decide import decide
from policies.policy import Policy
from policies.registry import make
from policies.world import (
    PLACED,
    Alarm,
    AskCheckpoint,
    Budget,
    EndCancelled,
    Hold,
    JobState,
    JobView,
    Launch,
    Plan,
    RegionView,
    Settings,
    World,
)

TICK = timedelta(seconds=60)
PLAN_EACH = timedelta(minutes=30)


@dataclass
class Simulation:
    """Run time lost on a resume is modelled; a checkpoint takes what the job says. ``over_w`` collects (when, region,
    W over)."""

    now: datetime
    regions: tuple[RegionView, ...]
    coming: list[JobView]
    settings: Settings
    budgets: tuple[Budget, ...] = ()
    jobs: dict[str, JobView] = field(default_factory=dict)
    ended_at: dict[str, datetime] = field(default_factory=dict)
    pauses: Counter[str] = field(default_factory=Counter)
    cost: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    over_w: list[tuple[datetime, str, float]] = field(default_factory=list)
    alarms: list[Alarm] = field(default_factory=list)
    plan: Plan | None = None
    planned_at: datetime | None = None
    policy: Policy = field(init=False)

    def __post_init__(self) -> None:
        self.policy = make(self.settings.policy, self.settings)

    def run(self, hours: float) -> "Simulation":
        """Let time pass."""
        end = self.now + timedelta(hours=hours)
        while self.now < end:
            self._arrive()
            self._progress()
            self._act()
            self._meter()
            self.now += TICK
        return self

    def _arrive(self) -> None:
        new = [j for j in self.coming if j.submitted_at <= self.now]
        for one in new:
            self.coming.remove(one)
            self.jobs[one.id] = one
        if new and self.plan is not None and len(self.jobs) > len(new):
            world = World(self.now, (), self.regions, self.budgets, (), self.settings)
            placements = self.policy.insert(world, new)
            self.plan = replace(self.plan, placements={**self.plan.placements, **placements})

    def _progress(self) -> None:
        for one in list(self.jobs.values()):
            lost_s = one.flex.restart_s if self.pauses[one.id] else 0.0
            since_s = (self.now - (one.run_started_at or self.now)).total_seconds()
            if one.state is JobState.LAUNCHING:
                self.jobs[one.id] = replace(one, state=JobState.RUNNING, run_started_at=self.now)
            elif one.state is JobState.RUNNING and since_s - lost_s >= one.remaining_s:
                self.ended_at[one.id] = self.now
                del self.jobs[one.id]
                self.policy.forget([one.id])
            elif one.state is JobState.PAUSING and (self.now - one.state_since).total_seconds() >= one.flex.checkpoint_s:
                self.pauses[one.id] += 1
                done_s = max(0.0, (one.state_since - (one.run_started_at or self.now)).total_seconds() - lost_s)
                self.jobs[one.id] = replace(
                    one,
                    state=JobState.PAUSED,
                    run_started_at=None,
                    pause_requested=False,
                    remaining_s=max(1.0, one.remaining_s - done_s),
                )

    def _act(self) -> None:
        world = World(self.now, tuple(self.jobs.values()), self.regions, self.budgets, (), self.settings, self.plan)
        if self.jobs and (self.planned_at is None or self.now >= self.planned_at + PLAN_EACH):
            self.plan, self.planned_at = self.policy.plan(world), self.now
            world = replace(world, plan=self.plan)
        for action in decide(world):
            if isinstance(action, Alarm):
                self.alarms.append(action)
                continue
            one = self.jobs[action.job_id]
            if isinstance(action, Launch):
                state = {"state": JobState.LAUNCHING, "region": action.region, "attempt": one.attempt + 1}
                self.jobs[one.id] = replace(one, **state, planned_region=None, planned_start_at=None)
            elif isinstance(action, AskCheckpoint):
                asked = {"pause_requested": True, "last_pause_asked_at": self.now, "state_since": self.now}
                self.jobs[one.id] = replace(one, state=JobState.PAUSING, **asked)
            elif isinstance(action, Hold):
                says = {"planned_region": action.planned_region, "planned_start_at": action.planned_start_at}
                self.jobs[one.id] = replace(one, reason=action.reason, **says)
            elif isinstance(action, EndCancelled):
                del self.jobs[one.id]

    def _meter(self) -> None:
        for view in self.regions:
            here = [one for one in self.jobs.values() if one.state in PLACED and one.region == view.name]
            assert view.gpus is None or sum(one.flex.gpus for one in here) <= view.gpus + 1e-6
            price = view.price.at(self.now) if view.price is not None else None
            for one in here:
                kwh = one.flex.power_w * view.pue * TICK.total_seconds() / 3.6e6
                self.cost[one.id] += kwh * (price or 0.0) / 1000.0
            draw_w = sum(one.flex.power_w for one in here) * view.pue
            for budget in self.budgets:
                on = budget.region == view.name and budget.start <= self.now and (budget.end is None or self.now < budget.end)
                if on and draw_w > budget.limit_w + 1e-6:
                    self.over_w.append((self.now, view.name, draw_w - budget.limit_w))
