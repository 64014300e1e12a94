"""A backtest: virtual time jumps from one due event to the next, and at each the same things are decided, by the same rules
and recorded by the same store, as a live tick would. What a job really has to do is known here and told to nobody.

What differs from live is little: clusters never fail, a start takes ``launch_s``, and a moment looks only at jobs that are due:
those whose own time has come (policies.turns.next_moment) and those that wait for room where some was freed.
"""

import gc
import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from dispatcher.backtest.journal import Journal
from dispatcher.backtest.knowledge import Lengths, submission
from dispatcher.backtest.meter import Meter, hours_of
from dispatcher.backtest.oracle import oracle
from dispatcher.backtest.outcomes import Finished, job_outcomes, new_tally, summary
from dispatcher.backtest.queues import Lines, Size, Urgency
from dispatcher.backtest.results import PolicyRun
from dispatcher.backtest.scenario import Scenario, TraceJob
from dispatcher.backtest.surroundings import Surroundings
from dispatcher.clusters import AttemptStatus, RayStatus
from dispatcher.job_changes import launch_change, view_of
from dispatcher.reconcile import Books, Retry, Seen, paused, reconcile
from dispatcher.store import Attempt, Change, Job, Store
from dispatcher.store.copying import maker
from policies.decide import meet_limit
from policies.policy import Knows, Policy
from policies.room import LEAD_S, Room
from policies.turns import (
    ASK_EARLIER_S,
    WAITING,
    last_safe_start,
    launch_or_hold,
    lead_s,
    next_moment,
    plan_wants_pause,
    urgency,
    wanted_places,
)
from policies.world import (
    Alarm,
    AskCheckpoint,
    Hold,
    JobState,
    JobView,
    Launch,
    Pausable,
    Placement,
    Plan,
    World,
)

__all__ = ["oracle", "run", "run_in_full"]

#: The kinds of events, in the order in which those of one moment are dealt with: what frees room first.
_END, _SAVED, _STARTED, _FORESIGHT, _LIMITS, _LOOK, _PLAN, _WAKE = range(8)
_change = maker(Change)
_EVERYTHING_WELL = Retry(0.0, 0)
_ZERO = timedelta(0)


class _Run:
    """One job of the trace on its way: its row in the store, its place in the plan, and what only the simulation knows."""

    __slots__ = (
        "attempt",
        "begin_s",
        "cap",
        "draw_w",
        "gpu_type",
        "index",
        "job",
        "left_s",
        "placement",
        "room",
        "speed",
        "ticket",
        "token",
        "trace",
        "view",
        "wake_at",
        "why",
    )

    def __init__(self, index: int, trace: TraceJob, job: Job) -> None:
        self.index, self.trace, self.job = index, trace, job
        self.left_s = trace.length_s  # what is still to do, uncapped
        self.view: JobView | None = None
        self.placement: Placement | None = None
        self.why: str | None = None  # why there is no placement
        self.attempt: Attempt | None = None
        self.room: Room | None = None  # where it is placed
        self.begin_s = 0.0  # when its run began, since the scenario's start
        self.speed, self.draw_w, self.cap = 1.0, trace.power_w, 1.0
        self.gpu_type: str | None = None
        self.token = 0  # of the next event of its attempt; events with others are stale
        self.ticket = 0
        self.wake_at: datetime | None = None


def run(
    scenario: Scenario, policy: Policy, store: Store | None = None, progress: Callable[[float], None] | None = None
) -> PolicyRun:
    """Run ``policy`` over ``scenario``. ``store`` is empty (None: one in memory); ``progress`` is told the share of the time
    that has passed, 0..1."""
    return run_in_full(scenario, policy, store, progress).run


def run_in_full(
    scenario: Scenario, policy: Policy, store: Store | None = None, progress: Callable[[float], None] | None = None
) -> Finished:
    """The same, with what became of each job."""
    begun = time.perf_counter()
    with _no_garbage_collection():
        engine = _Engine(scenario, policy, store, progress)
        stopped_s = engine.run()
        jobs = job_outcomes(scenario, engine.tally, stopped_s)
        first = scenario.start.replace(minute=0, second=0, microsecond=0)
        first_s = (first - scenario.start).total_seconds()
        hours = hours_of(list(engine.meters.values()), first_s, (scenario.end - scenario.start).total_seconds())
        load_w = {name: meter.load_w(first_s, hours) for name, meter in engine.meters.items()}
        wall_s = time.perf_counter() - begun
        told, warnings = summary(scenario, policy.name, jobs, engine.tally, load_w, wall_s)
    return Finished(told, jobs, warnings)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Nothing here makes cycles, and the collector would walk over millions of values again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Engine:
    """One policy over one scenario. ``run`` takes it to the end."""

    def __init__(
        self, scenario: Scenario, policy: Policy, store: Store | None, progress: Callable[[float], None] | None
    ) -> None:
        self.scenario, self.policy, self.settings = scenario, policy, scenario.settings
        self._progress = progress or (lambda share: None)
        self._journal = Journal(store)
        self.now = scenario.start
        self.meters = {region.name: Meter(region, scenario.start) for region in scenario.regions}
        self.tally = new_tally(len(scenario.jobs))
        self._lengths = Lengths(policy.knows, scenario.mean_by_queue_s, fixed=scenario.means_fixed)
        self._given = policy.knows is Knows.RUNTIME
        self._stop_at = max(scenario.end, min((r.signals.end for r in scenario.regions), default=scenario.end))
        self._heap: list[tuple[datetime, int, int, Any, int]] = []
        self._order = itertools.count()
        self._tickets = itertools.count(1)
        self._runs: dict[int, _Run] = {}  # unfinished, in order of submission
        self._by_id: dict[str, _Run] = {}
        self._placed: dict[str, dict[int, _Run]] = {region.name: {} for region in scenario.regions}
        self._lines: dict[str, Lines[_Run]] = {region.name: Lines() for region in scenario.regions}
        self._unplaced: dict[int, _Run] = {}
        self._dirty: set[str] = set()
        self._looks: set[tuple[str, datetime]] = set()
        self._plan: Plan | None = None
        self._due: dict[int, _Run] = {}
        self._world: World | None = None
        self._seen = Seen(AttemptStatus(RayStatus.RUNNING), scenario.start, "simulated")
        self._done = Seen(AttemptStatus(RayStatus.SUCCEEDED), scenario.start, "simulated")
        self._no_books = Books(None, self.settings.currency)
        self._launch = timedelta(seconds=self.settings.launch_s)
        self._around = Surroundings(scenario, policy)
        self._rooms = self._around.rooms

    # --- time -----------------------------------------------------------------------------------------------------

    def run(self) -> float:
        """Take it to the end; seconds from the start to there."""
        scenario = self.scenario
        self._set_timers()
        arrivals = iter(enumerate(scenario.jobs))
        coming = next(arrivals, None)
        heap = self._heap
        while coming is not None or self._runs:
            arrives_at = self._rounded(coming[1].submitted_at) if coming is not None else None
            when = heap[0][0] if heap else arrives_at
            if arrives_at is not None and when is not None and arrives_at < when:
                when = arrives_at
            if when is None or when > self._stop_at:
                break
            self.now, self._world = when, None
            while heap and heap[0][0] <= when:
                _, kind, _, what, token = heapq.heappop(heap)
                self._happen(kind, what, token)
            arrived: list[_Run] = []
            while coming is not None and self._rounded(coming[1].submitted_at) <= when:
                arrived.append(self._arrive(*coming))
                coming = next(arrivals, None)
            if arrived:
                self._insert(arrived)
            if self._due or self._dirty:
                self._settle()
        if self._runs and self.now < self._stop_at:
            self.now = self._stop_at
        self._cut()
        self._journal.close()
        self._progress(1.0)
        return (self.now - scenario.start).total_seconds()

    def _rounded(self, when: datetime) -> datetime:
        """``when``, up to the next step."""
        step_s = self.scenario.step_s
        if step_s <= 0:
            return when
        since_s = (when - self.scenario.start).total_seconds()
        return self.scenario.start + timedelta(seconds=math.ceil(since_s / step_s - 1e-9) * step_s)

    def _push(self, when: datetime, kind: int, what: Any = None, token: int = 0) -> None:
        heapq.heappush(self._heap, (self._rounded(when), kind, next(self._order), what, token))

    def _set_timers(self) -> None:
        scenario = self.scenario
        self._push(scenario.foresight.next_change(scenario.start), _FORESIGHT)
        if self.policy.replans:
            self._push(scenario.start, _PLAN)
        lead = timedelta(seconds=LEAD_S)
        moments = {at for b in scenario.events for at in (b.start - lead, b.start, b.end) if at is not None}
        moments |= {at for region in scenario.regions for one in region.reserved for at in (one.start, one.end)}
        for at in sorted(moments):
            if at > scenario.start:
                self._push(at, _LIMITS)
        self._set_limits()

    def _happen(self, kind: int, what: Any, token: int) -> None:
        if kind <= _STARTED:
            if what.token == token:
                (self._end, self._saved, self._started)[kind](what)
        elif kind == _WAKE:
            if what.wake_at == self.now and what.index in self._runs:
                what.wake_at = None
                self._due[what.index] = what
        elif kind == _FORESIGHT:
            self._around.look(self.now)
            self._dirty.update(self._around.set_gates(self.now))
            self._world = None
            self._insert(list(self._unplaced.values()))
            self._push(self.scenario.foresight.next_change(self.now), _FORESIGHT)
            span = self.scenario.end - self.scenario.start
            self._progress(min(1.0, (self.now - self.scenario.start) / span) if span > _ZERO else 0.0)
        elif kind == _LIMITS:
            self._around.look(self.now)
            self._world = None
            self._set_limits()
        elif kind == _LOOK:
            self._dirty.add(what)
        else:
            self._replan()
            self._push(self.now + timedelta(seconds=self.scenario.plan_s), _PLAN)

    # --- the surroundings -----------------------------------------------------------------------------------------

    def _set_limits(self) -> None:
        for name in self._around.set_limits(self.now):
            self._dirty.add(name)
        for name, room in self._rooms.items():
            if room.coming:
                for one in self._placed[name].values():
                    self._look_in_time(room, one)

    def _look_in_time(self, room: Room, one: _Run) -> None:
        """Look at a region again when one of its jobs must be asked to pause before a limit begins."""
        if one.trace.pausable is not Pausable.CHECKPOINT:
            return
        for budget in room.coming:
            at = budget.start - timedelta(seconds=one.trace.checkpoint_s + ASK_EARLIER_S)
            if at > self.now and (room.view.name, at) not in self._looks:
                self._looks.add((room.view.name, at))
                self._push(at, _LOOK, room.view.name)

    def _picture(self) -> World:
        """The world at this moment, without its jobs."""
        if self._world is None:
            self._world = self._around.world(self.now, self._plan)
        return self._world

    def _view(self, one: _Run) -> JobView:
        """What policies see of a job."""
        view = one.view
        if view is None:
            view = view_of(one.job, None, one.gpu_type if one.room is not None else None)
            if one.room is not None and one.cap != 1.0:
                view = replace(view, cap=one.cap)
            one.view = view
        return view

    # --- planning -------------------------------------------------------------------------------------------------

    def _arrive(self, index: int, trace: TraceJob) -> _Run:
        new = submission(trace, self._lengths.told_s(trace), given=self._given)
        one = _Run(index, trace, self._journal.add(new, "submitted"))
        self._runs[index] = one
        self._by_id[trace.id] = one
        return one

    def _insert(self, new: Sequence[_Run]) -> None:
        """Ask the policy for places of jobs that have none."""
        if not new:
            return
        placements = self.policy.insert(self._picture(), [self._view(one) for one in new])
        placed = 0
        for one in new:
            placement = placements.get(one.trace.id)
            if placement is None:
                one.why = "it cannot be placed"
                self._unplaced[one.index] = one
            else:
                one.placement = placement
                placed += 1
                self._unplaced.pop(one.index, None)
            self._due[one.index] = one
        if len(placements) > placed:  # others made room
            self._take_over(placements.items())

    def _replan(self) -> None:
        if not self._runs:
            return
        world = replace(self._picture(), jobs=tuple(self._view(one) for one in self._runs.values()))
        plan = self.policy.plan(world)
        self._plan, self._world = plan, None
        if plan.gap is not None:
            self.tally.gaps.append(plan.gap)
        self._unplaced.clear()
        for one in self._runs.values():
            if one.trace.id not in plan.placements:
                why = plan.unplaced.get(one.trace.id)
                if one.placement is not None or one.why != why:
                    one.placement, one.why = None, why
                    self._due[one.index] = one
        self._take_over(plan.placements.items())

    def _take_over(self, placements: Iterable[tuple[str, Placement]]) -> None:
        """Note new places; a job whose next step they change is due."""
        for job_id, placement in placements:
            one = self._by_id.get(job_id)
            if one is None:
                continue
            before, one.placement = one.placement, placement
            if before is placement:
                continue
            one.why = None
            self._unplaced.pop(one.index, None)
            if before is None or _next_step(before, self.now) != _next_step(placement, self.now):
                self._due[one.index] = one

    # --- one moment -----------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Decide on whoever is due, and on whoever waits where room was freed."""
        world, rooms = self._picture(), self._rooms
        if not self._dirty and len(self._due) == 1:  # mostly
            _, one = self._due.popitem()
            if one.job.state in WAITING:
                view = self._view(one)
                self._decide_waiting(one, view, last_safe_start(view, world), world)
                if one.ticket < 0:
                    self._stand_in_line(one, world)
                if not self._dirty and not self._due:
                    return
            else:
                self._due[one.index] = one
        # 1. limits in force, or about to be
        for name in sorted(self._dirty):
            room = rooms[name]
            room.now = self.now
            if room.coming or room.excess_w > 0 or room.excess_gpus > 0:
                self._meet(room, world)
        # 2. running jobs that the plan would rather have elsewhere, or later
        waiting: list[tuple[Urgency, int, _Run]] = []
        due = self._due
        while due:
            self._due = {}
            for one in due.values():
                if one.job.state in WAITING:
                    view = self._view(one)
                    heapq.heappush(waiting, (urgency(last_safe_start(view, world), view), one.index, one))
                elif one.job.state is JobState.RUNNING and one.trace.pausable is Pausable.CHECKPOINT:
                    self._consider_pause(one, world)
            due = self._due  # whoever was paused just now waits already
        # 3. launches, the most urgent first
        self._due = {}
        tried: set[int] = set()
        while True:
            best = waiting[0] if waiting else None
            for name in sorted(self._dirty):
                lines = self._lines[name]
                found = lines.first_fitting(rooms[name]) if lines else None
                if found is not None and (best is None or found[0] < best[0]):
                    best = (found[0], -1, found[1])
            if best is None:
                break
            if waiting and best is waiting[0]:
                heapq.heappop(waiting)
            one = best[2]
            if one.index in tried:
                continue
            tried.add(one.index)
            view = self._view(one)
            self._decide_waiting(one, view, last_safe_start(view, world), world)
        self._dirty.clear()
        for index in tried:
            one = self._runs.get(index)  # type: ignore[assignment]
            if one is not None and one.ticket < 0:
                self._stand_in_line(one, world)

    def _meet(self, room: Room, world: World) -> None:
        here = [self._view(one) for one in self._placed[room.view.name].values()]
        for action in meet_limit(room, here, world):
            if isinstance(action, AskCheckpoint):
                self._ask(self._by_id[action.job_id], action.reason)
            elif isinstance(action, Alarm):
                self.tally.alarms.setdefault(f"{action.key} {room.limit_reason}", action.sentence)

    def _consider_pause(self, one: _Run, world: World) -> None:
        reason = plan_wants_pause(self._view(one), one.placement, world)
        if reason is not None:
            self._ask(one, reason)
        else:
            self._wake(one, world)

    def _decide_waiting(self, one: _Run, view: JobView, last: datetime | None, world: World) -> None:
        one.ticket = 0
        action = launch_or_hold(view, last, one.placement, world, self._rooms, one.why)
        if isinstance(action, Launch):
            self._start(one, action, forced=last is not None and self.now >= last)
            return
        if isinstance(action, Hold):
            self._hold(one, action)
        one.ticket = -1  # it may stand in line once this moment is over
        self._wake(one, world)

    def _stand_in_line(self, one: _Run, world: World) -> None:
        one.ticket = 0
        view = self._view(one)
        last = last_safe_start(view, world)
        places = wanted_places(view, last, one.placement, world, self._rooms)
        if not places:
            return
        one.ticket = next(self._tickets)
        for name, gpu_type, cap, gated in places:
            power_w = self._rooms[name].draw_of(one.trace.power_w, gpu_type, cap)
            size = Size(one.trace.gpus, power_w, gpu_type, gated, lead_s(view, world) if view.flex.flexible else 0.0)
            self._lines[name].add(size, urgency(last, view), one)

    def _wake(self, one: _Run, world: World) -> None:
        """Look at a job again when its time has come."""
        at = next_moment(self._view(one), one.placement, world)
        if at is None:
            one.wake_at = None
            return
        at = self._rounded(at)
        if at != one.wake_at:
            one.wake_at = at
            heapq.heappush(self._heap, (at, _WAKE, next(self._order), one, 0))

    # --- what happens to a job --------------------------------------------------------------------------------------

    def _write(self, one: _Run, change: Change) -> None:
        one.job, one.view = self._journal.apply(change), None

    def _hold(self, one: _Run, action: Hold) -> None:
        job = one.job
        planned = (action.planned_region, action.planned_start_at)
        if planned == (job.planned_region, job.planned_start_at) and (
            job.reason == action.reason or action.planned_start_at is not None
        ):
            return  # only the figures in its sentence moved
        fields = {"planned_region": planned[0], "planned_start_at": planned[1]}
        self._write(
            one,
            _change(job.id, self.now, "plan", action.reason, job.state, job.attempt, None, None, fields, None, _NOTHING),
        )

    def _start(self, one: _Run, action: Launch, *, forced: bool) -> None:
        room, trace, before = self._rooms[action.region], one.trace, one.job
        change = launch_change(before, action.region, action.reason, self.now, action.gpu_type)
        one.attempt = change.new_attempt
        origin = before.region if before.attempt else trace.data_region
        moved = origin is not None and origin != action.region
        self.tally.moves += moved
        self._write(one, change)
        if forced:
            one.placement = None  # the plan knows nothing of this run, and is not asked whether to pause it
        self._unplaced.pop(one.index, None)
        one.room, one.gpu_type, one.cap = room, action.gpu_type, action.cap
        one.speed = 1.0
        if action.cap != 1.0:
            one.speed *= next((point.speed for point in room.view.caps if point.cap == action.cap), 1.0)
        if action.gpu_type is not None:
            one.speed *= before.flex.gpu_types.get(action.gpu_type, 1.0)
        one.draw_w = room.draw_of(trace.power_w, action.gpu_type, action.cap)
        room.take(trace.gpus, one.draw_w, gpu_type=one.gpu_type, flexible=True)
        self._placed[action.region][one.index] = one
        one.wake_at = None
        one.token += 1
        delay = self._launch
        if moved and trace.data_gb > 0:
            if self.settings.move_gb_per_s > 0:
                delay += timedelta(seconds=trace.data_gb / self.settings.move_gb_per_s)
            self.tally.cost[one.index] += trace.data_gb * self.settings.move_cost_per_gb
        if delay > _ZERO:
            self._push(self.now + delay, _STARTED, one, one.token)
        else:
            self._started(one)

    def _started(self, one: _Run) -> None:
        """Its cluster runs it: the start of what it uses."""
        assert one.attempt is not None and one.room is not None
        change = reconcile(
            one.job,
            one.attempt,
            self._seen,
            self.now,
            books=self._no_books,
            retry=_EVERYTHING_WELL,
            times_missing=0,
        )
        assert change is not None
        self._write(one, change)
        one.begin_s = (self.now - self.scenario.start).total_seconds()
        again_s = one.trace.restart_s if one.job.pauses else 0.0
        one.token += 1
        self._push(self.now + timedelta(seconds=(one.left_s + again_s) / one.speed), _END, one, one.token)
        if one.trace.pausable is Pausable.CHECKPOINT:
            if one.placement is not None:
                self._wake(one, self._picture())
            if one.room.coming:
                self._look_in_time(one.room, one)
            if one.room.coming or one.room.limit_w is not None or one.room.kept_gpus > 0:
                self._dirty.add(one.room.view.name)  # now it can be asked to pause

    def _ask(self, one: _Run, reason: str) -> None:
        """Ask a running job to save and stop; while it saves it gets no further."""
        job, room = one.job, one.room
        assert room is not None
        fields = {"pause_requested_at": self.now, "checkpoint_saved_at": None}
        self._write(
            one,
            _change(job.id, self.now, "state", reason, job.state, job.attempt, None, JobState.PAUSING, fields, None, _NOTHING),
        )
        room.leaving_w += one.draw_w * room.view.pue
        room.leaving_gpus += one.trace.gpus
        since_s = (self.now - self.scenario.start).total_seconds() - one.begin_s
        again_s = one.trace.restart_s if one.job.pauses else 0.0
        one.left_s -= max(0.0, since_s * one.speed - again_s)
        one.token += 1
        one.wake_at = None
        if one.trace.checkpoint_s > 0:
            self._push(self.now + timedelta(seconds=one.trace.checkpoint_s), _SAVED, one, one.token)
        else:
            self._saved(one)

    def _saved(self, one: _Run) -> None:
        """Its checkpoint is written and it has stopped."""
        job = one.job
        if one.trace.checkpoint_s > 0:
            fields = {"checkpoint_saved_at": self.now}
            said = f"attempt {job.attempt} saved its checkpoint"
            self._write(
                one,
                _change(job.id, self.now, "checkpoint", said, job.state, job.attempt, None, None, fields, None, _NOTHING),
            )
        self._write(one, paused(one.job, self.now, self.now, books=self._books(one)))
        self.tally.pauses += 1
        self._leave(one)
        self._due[one.index] = one

    def _end(self, one: _Run) -> None:
        """It has done all it had to."""
        assert one.attempt is not None
        change = reconcile(
            one.job,
            one.attempt,
            self._done,
            self.now,
            books=self._books(one),
            retry=_EVERYTHING_WELL,
            times_missing=0,
        )
        assert change is not None
        self._write(one, change)
        self._leave(one)
        self.tally.ended_s[one.index] = (self.now - self.scenario.start).total_seconds()
        self._lengths.learn(one.trace)
        one.token += 1
        one.wake_at = None
        del self._runs[one.index], self._by_id[one.trace.id]
        self.policy.forget((one.trace.id,))

    def _books(self, one: _Run) -> Books:
        """What a run that ends now used."""
        assert one.room is not None
        now_s = (self.now - self.scenario.start).total_seconds()
        usage = self.meters[one.room.view.name].book(one.begin_s, now_s, one.draw_w)
        tally, index = self.tally, one.index
        tally.energy_kwh[index] += usage.energy_kwh
        tally.cost[index] += usage.cost if usage.cost is not None else math.nan
        tally.carbon_kg[index] += usage.carbon_kg if usage.carbon_kg is not None else math.nan
        return Books(usage, self.settings.currency)

    def _leave(self, one: _Run) -> None:
        """Its place is free again."""
        room = one.room
        assert room is not None
        if one.job.state is JobState.PAUSED:
            room.leaving_w -= one.draw_w * room.view.pue
            room.leaving_gpus -= one.trace.gpus
        room.take(one.trace.gpus, one.draw_w, gpu_type=one.gpu_type, flexible=True, times=-1)
        del self._placed[room.view.name][one.index]
        if not self._placed[room.view.name]:
            # Nothing is there: what sums of floats left behind goes.
            room.gpus_used = room.flexible_gpus = room.leaving_w = room.leaving_gpus = 0.0
            room.draw_w = room.view.bypass_w
            room.pool_gpus.clear()
            room.pool_w.clear()
        one.room, one.view = None, None
        if self._lines[room.view.name] or room.coming:
            self._dirty.add(room.view.name)

    def _cut(self) -> None:
        """The backtest ends: what still runs is booked up to here."""
        for one in self._runs.values():
            if one.job.state is JobState.RUNNING or one.job.state is JobState.PAUSING:
                self._books(one)


_NOTHING: dict[str, Any] = {}


def _next_step(placement: Placement, now: datetime) -> tuple[Any, ...]:
    """What a placement means for a job from now on, up to its next start and stop."""
    for start, end in placement.intervals:
        if end > now:
            return (placement.region, placement.gpu_type, placement.cap, max(start, now), end)
    return (placement.region, placement.gpu_type, placement.cap)
