"""A week on 64 GPUs, simulated: interactive serving alone, with batch beside it, and with batch that nobody holds back.

Time is virtual. The product's own code learns serving's demand, steps its guard, plans and decides; only the cluster, the
server and the requests are made up (serving_load). Alone: ``python tests/benchmarks/serving_week.py [--quick] [--plot FILE]``.
"""

import argparse
import heapq
import logging
import math
import sys
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))

from dispatcher.config import Config
from dispatcher.serving.demand import DemandBook
from dispatcher.serving.metrics import Counted
from dispatcher.serving.watch import ServingWatch
from dispatcher.store import GridEventChange
from policies import registry
from policies.decide import decide
from policies.problem import Floats
from policies.serving import Level
from policies.turns import WAITING
from policies.world import (
    PLACED,
    Action,
    Alarm,
    AskCheckpoint,
    Budget,
    Flexibility,
    Hold,
    JobState,
    JobView,
    Launch,
    Pausable,
    Plan,
    RegionView,
    Settings,
    World,
)
from signals.memory_store import MemorySignalStore
from signals.series import SlotSeries
from tests.benchmarks.common import data_folder, report, without_data
from tests.benchmarks.serving_load import (
    DAY_S,
    FEWEST,
    FIRST_S,
    IDLE_W,
    IN_LINE,
    JOULES,
    LATE,
    LATE_TOKENS,
    MOST,
    NEXT_S,
    REQUESTS,
    TARGET,
    TOKENS,
    WRITING,
    Curve,
    Replicas,
    Server,
    Traffic,
    curve,
    traffic,
)

# --- the site: fixed before anything was run ----------------------------------------------------------------------------

GPUS, PUE, REGION = 64, 1.2, "site"
#: A local Monday 00:00, and prices of that week: day-ahead, published at 13:00 local time for the next day.
MONDAY, ZONE, MARKET = datetime(2023, 10, 9, 7, tzinfo=UTC), "America/Los_Angeles", "US-CAL-CISO"
PUBLISHED_HOUR = 13
#: What serving declares that a GPU of it draws, W: the most that one does, 70 % of it reading prompts at 700 W.
SERVING_GPU_W = 660.0
#: Events: day and hour of their start, hours, share of what the site draws with every GPU on batch, minutes told before.
EVENTS = ((2, 14.0, 3.0, 0.80, 15), (5, 19.0, 2.0, 0.60, 5))
#: Batch: rows of the PAI trace at most so wide, of so many hours or more (nine tenths of the work of all, and less than half of
#: the jobs) and cut at so many, as many as fill so much of what serving leaves idle; how long they may wait beyond their run
#: time; which share of them cannot be paused.
WIDEST, LEAST_H, CLIP_H, FILL, WAIT_H, RIGID = 8, 1.0, 24.0, 0.60, 24.0, 0.2
CHECKPOINT_S, RESTART_S, LAUNCH_S = 60, 60, 10
#: How often all is decided anew when nothing happens, and planned anew, s; jobs that come get a place at once.
DECIDE_S, PLAN_S = 10, 3600
WARM_UP_DAYS = 21
METHOD = (
    "week (simulated): 64 H100 in virtual time, one seed for requests and one for jobs; serving: gemma-3-27b, a GPU a "
    "replica, 32 answers at once, W and time to the next token by how many are written from ML.ENERGY's measurements, prompts"
    " read at half the card's FLOPS and at 700 W beside them, for 70 % of the time at most, an idle GPU 75 W, requests spread"
    " evenly; scaled as Ray Serve does it (12 requests a replica, mean of 30 s, up after 30 s, down after 600 s, 60 s to load"
    " a model, 6 to 48 GPUs); requests: three services of 70, 25 and 5 %, lengths drawn from Azure's conversation and code "
    "traces and Mooncake's (prompts cut at 8192), 54 a second at the peak; by the hour a cosine with its peak at 15:00, "
    "valleys of 1/3.3 and 1/34.6 (code) of it, weekends at 80 and 35 %, days that differ by 6 %, a drift of 4 %, three surges"
    " a week by half for 15 min, all assumed; bursts: pieces of 5 min of the traces' own counts, as many traces beside each "
    "other as reach the peak; promised: p99 of first tokens in 2 s and of next tokens in 100 ms; violations: requests whose "
    "first token is later; the same requests in every arm; batch: PAI jobs of up to 8 GPUs and an hour or more, cut at 24 h, "
    "60 % of what serving leaves idle, may wait 24 h, one in five cannot be paused, checkpoint and restart 60 s each; a GPU "
    "of it draws and makes what the same model does at its fullest (tokens of all work are serving's and these, as if it were"
    " offline inference); with: demand learned from the 21 days before (quick: 14) by DemandBook, ServingWatch and Guard each"
    " second, decide each 10 s and when the guard moves, the planner each hour and for jobs as they come, prices "
    "(US-CAL-CISO, 9 to 15 Oct 2023) as published by then; neither power caps nor freezing: only pausing; naive: jobs start "
    "as soon as GPUs are free, without planner, headroom and guard; GPUs that are free go to serving first; nodes are not "
    "told apart; events: 80 % of the draw with every GPU on batch Wed 14-17, told 15 min before, 60 % Sat 19-21, told 5 min "
    "before: above what serving alone draws; over: minutes of an event whose mean is above its limit; refused: GPU seconds "
    "that serving wanted and batch had; used: GPUs with a replica that is up or a batch job that runs; oracle: what serving "
    "alone leaves idle known perfectly, work that divides without end, events kept, and the same work in the cheapest quarter"
    " hours; quick: Wednesday alone, of which little is batch's, as most of it waits for the cheaper night after"
)

Columns = dict[str, Floats]


def local(day: int, hour: float) -> int:
    """Seconds since the week began."""
    return round(day * DAY_S + hour * 3600)


# --- batch ----------------------------------------------------------------------------------------------------------------


@dataclass
class Job:
    """A batch job on its way: what policies see of it, and what only the simulation knows."""

    view: JobView
    left_s: float
    began_s: int = 0
    token: int = 0
    again_s: int = 0

    @property
    def gpus(self) -> int:
        return round(self.view.flex.gpus)


def jobs_of(folder: Path, begin_s: int, days: int, gpu_hours: float, gpu_w: float, seed: int) -> list[JobView]:
    """Jobs that come in so many days, with so many GPU hours of work: rows of the trace in order, their arrivals kept, of the
    first of its weeks that has as much; fewer of them by chance where it has more."""
    rng = np.random.default_rng(seed)
    table = pd.read_csv(folder / "jobs_gaia_pai-100k.csv.gz")
    table = table[(table.cpus <= WIDEST) & (table.length >= LEAST_H) & (table.arrival_time >= begin_s / 3600)]
    table = table[table.arrival_time < begin_s / 3600 + days * 24]
    length_h = np.minimum(table.length.to_numpy(), CLIP_H)
    work_h = length_h * table.cpus.to_numpy()
    # Where a week has less than what is wanted, jobs come several times over, minutes apart.
    times, found = gpu_hours / work_h.sum(), []
    rigid = rng.random(len(table) * math.ceil(times)) < RIGID
    for round_ in range(math.ceil(times)):
        for row, (arrival_h, gpus) in enumerate(zip(table.arrival_time, table.cpus, strict=True)):
            number = round_ * len(table) + row
            if rng.random() >= min(1.0, times - round_):
                continue
            at_s = (arrival_h - begin_s / 3600) * 3600 + rng.uniform(0, 900) * (round_ > 0)
            at, run_s = MONDAY + timedelta(seconds=begin_s + round(at_s)), 3600.0 * length_h[row]
            flex = Flexibility(
                flexible=True, deadline_at=at + timedelta(hours=WAIT_H, seconds=run_s), earliest_at=None, runtime_s=run_s,
                runtime_given=True, gpus=float(gpus), power_w=gpus * gpu_w,
                pausable=Pausable.NO if rigid[number] else Pausable.CHECKPOINT,
                checkpoint_s=float(CHECKPOINT_S), restart_s=float(RESTART_S),
            )  # fmt: skip
            found.append(JobView(f"j{number:05}", JobState.QUEUED, at, at, flex, run_s))
    return sorted(found, key=lambda job: job.submitted_at)


class Prices:
    """USD/MWh by the hour, and what is known of them: what was published, and beyond that the day before once more."""

    def __init__(self, folder: Path) -> None:
        table = pd.read_csv(folder / "price_hourly_2023.csv.gz")
        table = table[table.region == MARKET].sort_values("datetime_utc")
        self._first = datetime.fromisoformat(table.datetime_utc.iloc[0].replace("Z", "+00:00"))
        self._values = table.price_usd_mwh.to_numpy(float)
        self.of_week = self._values[self._hour(MONDAY) :][: 10 * 24]

    def _hour(self, at: datetime) -> int:
        return int((at - self._first).total_seconds() // 3600)

    def known(self, now: datetime, slots: int) -> SlotSeries:
        """On quarter hours from now on."""
        since = (now - MONDAY).total_seconds()
        ends = (since // DAY_S + 1 + (since % DAY_S >= PUBLISHED_HOUR * 3600)) * DAY_S
        last = self._hour(MONDAY + timedelta(seconds=ends))
        start = now.replace(minute=now.minute // 15 * 15, second=0, microsecond=0)
        hours = [self._hour(start + timedelta(seconds=900 * n)) for n in range(slots)]
        values = [float(self._values[h if h < last else h - 24 * ((h - last) // 24 + 1)]) for h in hours]
        basis = tuple("published" if h < last else "repeat-day" for h in hours)
        return SlotSeries(start, 900, tuple(values), basis, "USD/MWh", MARKET)


# --- an arm ---------------------------------------------------------------------------------------------------------------


@dataclass
class Now:
    """The clocks that the product's code reads; ``second`` counts from the week's begin."""

    second: int = 0

    def at(self) -> datetime:
        return MONDAY + timedelta(seconds=self.second)

    def mono(self) -> float:
        return 1e7 + self.second


@dataclass
class Page:
    """The server's metrics, as the product reads them."""

    good: float = 0.0
    total: float = 0.0
    good_tokens: float = 0.0
    tokens: float = 0.0
    load: float = 0.0

    def take(self, told: Sequence[float]) -> None:
        """A second more."""
        self.good += told[REQUESTS] - told[LATE]
        self.total += told[REQUESTS]
        self.good_tokens += told[TOKENS] - told[LATE_TOKENS]
        self.tokens += told[TOKENS]
        self.load = told[WRITING] + told[IN_LINE]

    def read(self) -> list[Counted]:
        """What a reader tells."""
        return [Counted(self.good, self.total), Counted(self.good_tokens, self.tokens), Counted(value=self.load)]

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Notes:
    """What guards did."""

    count: int = 0

    def note_grid_event(self, change: GridEventChange) -> None:
        """One step of one."""
        self.count += 1


def config() -> Config:
    """As an operator would write it."""
    serving = {
        "name": "chat", "preset": "vllm", "source": "metrics", "url": "http://chat:8000/metrics",
        "load_per_gpu": TARGET, "floor_gpus": FEWEST, "max_gpus": MOST, "gpu_power_w": SERVING_GPU_W,
        "slo": [
            {"metric": "ttft", "limit": FIRST_S, "percentile": 0.99},
            {"metric": "inter_token", "limit": NEXT_S, "percentile": 0.99},
        ],
    }  # fmt: skip
    region = {
        "name": REGION, "address": "http://site:8265", "gpus": GPUS, "pue": PUE, "timezone": ZONE,
        "price": [{"feed": "synthetic"}], "serving": [serving],
    }  # fmt: skip
    return Config.model_validate({"region": [region]})


#: What is noted each second: GPUs that serving has, that are up, that it wants and has not; GPUs of batch that run, and that
#: are held; GPUs kept free; W of the site, of serving; requests, violations, tokens, late tokens; demand in GPUs; the guard's
#: level.
NOTED = (
    "held", "ready", "missing", "running", "taken", "kept", "site_w", "serving_w", "requests", "late", "tokens", "late_tokens",
    "demand", "level",
)  # fmt: skip


@dataclass
class Week:
    """One arm. ``kind``: "alone", "with" or "naive"."""

    kind: str
    server: Server
    replicas: Replicas
    gpu: Curve
    prices: Prices
    book: DemandBook
    now: Now
    jobs: Sequence[JobView]
    events: Sequence[Budget]
    told: list[float] = field(default_factory=lambda: [0.0] * 8)
    page: Page = field(default_factory=Page)
    notes: Notes = field(default_factory=Notes)
    pauses: int = 0
    launches: int = 0
    alarms: set[str] = field(default_factory=set)
    done: list[Job] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._all: dict[str, Job] = {}
        self._pending: list[Job] = []  # launched, without GPUs as yet
        self._heap: list[tuple[int, int, str, Job, int]] = []
        self._order = 0
        self._taken = self._running = 0
        self._plan: Plan | None = None
        self._policy = registry.make("run-now" if self.kind == "naive" else "gridshift")
        self._plan_again_s, self._new = 0, list[JobView]()
        self._nudged = True
        self._world: World | None = None
        self._settings = Settings(currency="USD", launch_s=LAUNCH_S)
        self._watch = ServingWatch(
            config(), lambda one: self.page, self.notes, changed=self._nudge, mono=self.now.mono, demand=self._note
        )  # fmt: skip

    def _nudge(self) -> None:
        self._nudged = True

    def _note(self, region: str, name: str, load: float, age_s: float) -> None:
        self.book.note(region, name, load, age_s)

    def run(self, begin_s: int, end_s: int, offset_s: int) -> Columns:
        """From second to second of the week; the requests' own seconds begin ``offset_s`` before it."""
        rows = np.zeros((end_s - begin_s, len(NOTED)))
        coming = list(reversed(self.jobs))
        batch_w, kept = self.gpu.full_w, 0.0
        with_batch = self.kind != "alone"
        show = sys.stderr.isatty()
        for second in range(begin_s, end_s):
            self.now.second = second
            # 1. the cluster
            while self._heap and self._heap[0][0] <= second:
                _, _, what, job, token = heapq.heappop(self._heap)
                if token == job.token:
                    getattr(self, f"_{what}")(job)
            load = self.told[WRITING] + self.told[IN_LINE]
            self.replicas.step(second, load, GPUS - self.replicas.held - self._taken)
            if self._pending:
                self._place()
            told = self.told = self.server.second(second + offset_s, self.replicas.ready)
            self.page.take(told)
            idle = GPUS - self.replicas.ready - self._running
            site_w = PUE * (told[JOULES] + batch_w * self._running + IDLE_W * idle)
            # 2. the control plane
            if with_batch:
                new = []
                while coming and coming[-1].submitted_at <= self.now.at():
                    new.append(coming.pop())
                self._all |= {view.id: Job(view, view.remaining_s) for view in new}
                self._world = None if new else self._world
                if self.kind == "with":
                    self._watch.read_all()
                    self._watch.look(self._picture(idle), self.now.at())
                self._new += new
                if self._nudged or second % DECIDE_S == 0:
                    self._nudged, self._world = False, None
                    world = self._planned(self._picture(idle))
                    kept = sum(one.gpus for one in world.regions[0].reserved if one.start <= world.now < one.end)
                    self._act(decide(world))
            if second % 900 == 0 and self.kind == "with":
                self.book.keep(self.now.at())
            level = max((one.level for one in self._watch.guards(REGION)), default=0) if self.kind == "with" else 0
            rows[second - begin_s] = (
                self.replicas.held, self.replicas.ready, self.replicas.missing, self._running, self._taken, kept, site_w,
                PUE * (told[JOULES] + IDLE_W * len(self.replicas.loading)), told[REQUESTS], told[LATE], told[TOKENS],
                told[LATE_TOKENS], (told[WRITING] + told[IN_LINE]) / TARGET, level,
            )  # fmt: skip
            if show and second % 3600 == 0:
                print(f"\r{self.kind} {(second - begin_s) / (end_s - begin_s):4.0%} ", end="", file=sys.stderr)
        if show:
            print("\r                \r", end="", file=sys.stderr)
        return {name: rows[:, number] for number, name in enumerate(NOTED)}

    # --- what the control plane sees ----------------------------------------------------------------------------------

    def _picture(self, idle: int) -> World:
        if self._world is None:
            now = self.now.at()
            ours = self.kind == "with"
            view = RegionView(
                name=REGION, reachable=True, gpus=float(GPUS), max_jobs=None, power_limit_w=None,
                price=None, carbon=None, currency="USD", pue=PUE,
                bypass_w=PUE * (IDLE_W * idle + (0.0 if ours else self.told[JOULES])),
                reserved=self.book.reserved(REGION) if ours else (),
                guards=self._watch.guards(REGION) if ours else (),
            )  # fmt: skip
            told = tuple(one for one, at_s in self._told() if at_s <= self.now.second and not one.is_over(now))
            jobs = tuple(job.view for job in self._all.values())
            self._world = World(now, jobs, (view,), told, settings=self._settings, plan=self._plan)
        return self._world

    def _planned(self, world: World) -> World:
        """With a new plan when it is time for one, and places for jobs that came since."""
        if self._plan is None or self.now.second >= self._plan_again_s:
            view = replace(world.regions[0], price=self.prices.known(world.now, 193))
            self._plan = self._policy.plan(replace(world, regions=(view,)))
            self._plan_again_s = self.now.second + PLAN_S
        elif self._new:
            view = replace(world.regions[0], price=self.prices.known(world.now, 193))
            found = self._policy.insert(replace(world, jobs=(), regions=(view,)), self._new)
            self._plan = replace(self._plan, placements={**self._plan.placements, **found})
        self._new = []
        return replace(world, plan=self._plan)

    def _told(self) -> Iterable[tuple[Budget, int]]:
        for one, (_, _, _, _, minutes) in zip(self.events, EVENTS, strict=False):
            yield one, round((one.start - MONDAY).total_seconds()) - 60 * minutes

    # --- what is done -------------------------------------------------------------------------------------------------

    def _act(self, actions: Iterable[Action]) -> None:
        now = self.now.at()
        for action in actions:
            if isinstance(action, Alarm):
                self.alarms.add(action.sentence)
                continue
            job = self._all[action.job_id]
            if isinstance(action, Launch):
                self.launches += 1
                self._set(
                    job, state=JobState.LAUNCHING, state_since=now, region=REGION, attempt=job.view.attempt + 1,
                    reason=action.reason,
                )  # fmt: skip
                self._pending.append(job)
            elif isinstance(action, AskCheckpoint):
                self.pauses += 1
                ran_s = self.now.second - job.began_s
                job.left_s -= max(0.0, ran_s - job.again_s)
                self._set(
                    job, state=JobState.PAUSING, state_since=now, pause_requested=True, last_pause_asked_at=now,
                    reason=action.reason,
                )  # fmt: skip
                self._later(job, CHECKPOINT_S, "saved")
            elif isinstance(action, Hold):
                self._set(
                    job, reason=action.reason, planned_region=action.planned_region, planned_start_at=action.planned_start_at
                )
            else:
                raise AssertionError(f"nothing here asks for {action}")

    def _set(self, job: Job, **changes: Any) -> None:
        job.view = replace(job.view, **changes)
        self._world = None

    def _later(self, job: Job, delay_s: float, what: str) -> None:
        job.token += 1
        self._order += 1
        heapq.heappush(self._heap, (self.now.second + math.ceil(delay_s), self._order, what, job, job.token))

    def _place(self) -> None:
        """Jobs that were launched get GPUs in the order in which they came, as far as there are any."""
        for job in list(self._pending):
            if job.gpus <= GPUS - self.replicas.held - self._taken:
                self._pending.remove(job)
                self._taken += job.gpus
                self._later(job, LAUNCH_S, "started")

    def _started(self, job: Job) -> None:
        job.began_s, job.again_s = self.now.second, RESTART_S if job.view.attempt > 1 else 0
        self._running += job.gpus
        self._set(job, state=JobState.RUNNING, state_since=self.now.at(), run_started_at=self.now.at())
        self._later(job, job.left_s + job.again_s, "ended")

    def _saved(self, job: Job) -> None:
        self._taken, self._running = self._taken - job.gpus, self._running - job.gpus
        self._set(
            job, state=JobState.PAUSED, state_since=self.now.at(), run_started_at=None, pause_requested=False,
            remaining_s=max(1.0, job.left_s),
        )  # fmt: skip

    def _ended(self, job: Job) -> None:
        self._taken, self._running = self._taken - job.gpus, self._running - job.gpus
        self._set(job, state=JobState.SUCCEEDED, state_since=self.now.at())
        job.left_s = 0.0
        self.done.append(job)
        del self._all[job.view.id]
        self._policy.forget((job.view.id,))

    # --- what came of it ----------------------------------------------------------------------------------------------

    def useful_s(self, end_s: int) -> float:
        """GPU seconds of batch that were work: neither restarts nor what a pause lost."""
        total = sum(job.view.flex.runtime_s * job.gpus for job in self.done)
        for job in self._all.values():
            ran_s = end_s - job.began_s - job.again_s if job.view.state is JobState.RUNNING else 0.0
            total += (job.view.flex.runtime_s - job.left_s + max(0.0, ran_s)) * job.gpus
        return total

    def late_jobs(self, end: datetime) -> int:
        """Jobs that missed their deadline."""
        missed = sum(job.view.state_since > _deadline(job) for job in self.done)
        return missed + sum(_deadline(job) < end for job in self._all.values() if job.view.state in WAITING | PLACED)


def _deadline(job: Job) -> datetime:
    assert job.view.flex.deadline_at is not None
    return job.view.flex.deadline_at


# --- the oracle -----------------------------------------------------------------------------------------------------------


def oracle(
    alone: Columns, jobs: Sequence[JobView], events: Sequence[Budget], begin_s: int, batch_w: float, prices: Floats
) -> tuple[Floats, Floats]:
    """(GPUs of batch each second that no schedule could have more work with, GPUs that it could have): whatever serving alone
    left idle, as far as limits go, and as much as had come. The work divides without end and starts at once."""
    room = GPUS - alone["held"]
    for one in events:
        first, last = (round((at - MONDAY).total_seconds()) - begin_s for at in (one.start, one.end or one.start))
        spare_w = one.limit_w - alone["site_w"][max(first, 0) : max(last, 0)]
        here = slice(max(first, 0), max(last, 0))
        room[here] = np.clip(spare_w / (PUE * (batch_w - IDLE_W)), 0.0, room[here])
    came = np.zeros(len(room))
    for job in jobs:
        second = round((job.submitted_at - MONDAY).total_seconds()) - begin_s
        came[min(second, len(room) - 1)] += job.flex.runtime_s * job.flex.gpus
    used, left = np.zeros(len(room)), 0.0
    for second, (more, most) in enumerate(zip(came.tolist(), room.tolist(), strict=True)):
        left += more
        used[second] = min(most, left)
        left -= used[second]
    return used, room


def cheapest(room: Floats, price: Floats, work_s: float) -> float:
    """The mean price of so many GPU seconds in the cheapest quarter hours."""
    slots = room.reshape(-1, 900).sum(axis=1)
    each = price.reshape(-1, 900)[:, 0]
    left, cost = work_s, 0.0
    for slot in np.argsort(each, kind="stable"):
        took = min(left, slots[slot])
        left, cost = left - took, cost + took * each[slot]
    return float(cost / max(work_s - left, 1.0))


# --- the figures ----------------------------------------------------------------------------------------------------------


@dataclass
class Found:
    """All arms of one week."""

    arms: dict[str, Columns]
    weeks: dict[str, Week]
    price: Floats
    events: list[Budget]
    begin_s: int
    best: Floats
    room: Floats
    jobs: list[JobView]
    gpu: Curve


def warmed(requests: Traffic, gpu: Curve, warm_s: int, begin_s: int) -> tuple[Server, Replicas, DemandBook, Now, list[float]]:
    """Serving alone up to where the week begins, and what was learned of it until then."""
    server, replicas, now = Server(requests, gpu), Replicas(FEWEST), Now(begin_s - warm_s)
    book = DemandBook(config(), MemorySignalStore(), now.at, mono=now.mono)
    told = [0.0] * 8
    for second in range(begin_s - warm_s, begin_s):
        now.second = second
        load = told[WRITING] + told[IN_LINE]
        replicas.step(second, load, GPUS - replicas.held)
        told = server.second(second - begin_s + warm_s, replicas.ready)
        book.note(REGION, "chat", told[WRITING] + told[IN_LINE])
        if sys.stderr.isatty() and second % DAY_S == 0:
            print(f"\rbefore {(second - begin_s + warm_s) / warm_s:4.0%} ", end="", file=sys.stderr)
    return server, replicas, book, now, told


def week(folder: Path, quick: bool, seed: int, kinds: Sequence[str] = ("alone", "with", "naive")) -> Found:
    """One week of all arms; ``quick``: its Wednesday."""
    first_day, days = (2, 1) if quick else (0, 7)
    warm_days = 14 if quick else WARM_UP_DAYS
    begin_s, end_s = first_day * DAY_S, (first_day + days) * DAY_S
    gpu, prices = curve(folder / "power_curves"), Prices(folder / "traces")
    requests = traffic(folder / "serving", warm_days + days, (first_day - warm_days) % 7, seed)
    full_w = PUE * gpu.full_w * GPUS
    events = [
        Budget(
            REGION, MONDAY + timedelta(seconds=local(day, hour)), MONDAY + timedelta(seconds=local(day, hour + hours)),
            share * full_w, f"event-{number}", "demand response",
        )
        for number, (day, hour, hours, share, _) in enumerate(EVENTS, 1)
    ]  # fmt: skip
    arms: dict[str, Columns] = {}
    weeks: dict[str, Week] = {}
    jobs: list[JobView] = []
    server, replicas, book, now, told = warmed(requests, gpu, warm_days * DAY_S, begin_s)
    for kind in kinds:
        beside = jobs if kind != "alone" else ()
        one = Week(kind, server.copy(), deepcopy(replicas), gpu, prices, book, now, beside, events, told)
        arms[kind], weeks[kind] = one.run(begin_s, end_s, warm_days * DAY_S - begin_s), one
        if kind == "alone":
            idle_h = float((GPUS - arms[kind]["held"]).sum()) / 3600
            jobs = jobs_of(folder / "traces", begin_s, days, FILL * idle_h, gpu.full_w, seed + 100)
    price = np.repeat(prices.of_week, 3600)[begin_s:end_s]
    best, room = oracle(arms["alone"], jobs, events, begin_s, gpu.full_w, price)
    return Found(arms, weeks, price, events, begin_s, best, room, jobs, gpu)


def judged(found: Found) -> dict[str, float]:
    """The figures of a week."""
    out: dict[str, float] = {}
    gpu, hours = found.gpu, len(found.price) / 3600
    in_event = np.zeros(len(found.price), dtype=bool)
    for one in found.events:
        first, last = (round((at - MONDAY).total_seconds()) - found.begin_s for at in (one.start, one.end or one.start))
        in_event[max(first, 0) : max(last, 0)] = True
    for kind, arm in found.arms.items():
        over, worst = 0, 0.0
        for one in found.events:
            first, last = (round((at - MONDAY).total_seconds()) - found.begin_s for at in (one.start, one.end or one.start))
            if 0 <= first < last <= len(found.price):
                means = arm["site_w"][first:last].reshape(-1, 60).mean(axis=1)
                over += int((means > one.limit_w).sum())
                worst = max(worst, float(means.max()) / one.limit_w)
        work_s = found.weeks[kind].useful_s(found.begin_s + len(found.price))
        kwh, serving_kwh = arm["site_w"] / 3.6e6, arm["serving_w"] / 3.6e6
        tokens = float(arm["tokens"].sum())
        all_tokens = tokens + work_s * gpu.full_tokens_per_s
        cost, serving_cost = float((kwh * found.price).sum()) / 1e3, float((serving_kwh * found.price).sum()) / 1e3
        out |= {
            f"{kind}_violations": float(arm["late"].sum()),
            f"{kind}_violations_pct": 100.0 * float(arm["late"].sum() / arm["requests"].sum()),
            f"{kind}_late_tokens_pct": 100.0 * float(arm["late_tokens"].sum() / arm["tokens"].sum()),
            f"{kind}_gpu_seconds_refused_serving": float(arm["missing"].sum()),
            f"{kind}_gpus_used_pct": 100.0 * float((arm["ready"] + arm["running"]).mean()) / GPUS,
            f"{kind}_energy_kwh": float(kwh.sum()),
            f"{kind}_cost_usd": cost,
            f"{kind}_j_per_serving_token": 3.6e6 * float(serving_kwh.sum()) / tokens,
            f"{kind}_usd_per_million_serving_tokens": 1e6 * serving_cost / tokens,
            f"{kind}_j_per_token_of_all_work": 3.6e6 * float(kwh.sum()) / all_tokens,
            f"{kind}_usd_per_million_tokens_of_all_work": 1e6 * cost / all_tokens,
            f"{kind}_event_minutes_over": float(over),
            f"{kind}_event_worst_of_limit_pct": 100.0 * worst,
            f"{kind}_event_violations": float(arm["late"][in_event].sum()),
            f"{kind}_event_gpu_seconds_refused_serving": float(arm["missing"][in_event].sum()),
        }
        if kind != "alone":
            one_week = found.weeks[kind]
            end = MONDAY + timedelta(seconds=found.begin_s + len(found.price))
            mean_price = float((arm["running"] * found.price).sum() / max(arm["running"].sum(), 1.0))
            out |= {
                f"{kind}_batch_gpu_hours": work_s / 3600,
                f"{kind}_batch_of_oracle_pct": 100.0 * work_s / float(found.best.sum()),
                f"{kind}_batch_usd_per_mwh": mean_price,
                f"{kind}_batch_pauses": float(one_week.pauses),
                f"{kind}_batch_jobs_late": float(one_week.late_jobs(end)),
                f"{kind}_more_violations": out[f"{kind}_violations"] - out["alone_violations"],
                f"{kind}_more_late_tokens_pct": out[f"{kind}_late_tokens_pct"] - out["alone_late_tokens_pct"],
            }
    ours = found.arms.get("with")
    if ours is not None:
        out["with_guarded_hours"] = float((ours["level"] > Level.CALM).sum()) / 3600
        work_s = found.weeks["with"].useful_s(found.begin_s + len(found.price))
        least = cheapest(found.room, found.price, work_s)
        out["oracle_batch_usd_per_mwh"] = least
        out["with_batch_cost_above_oracle_pct"] = 100.0 * (out["with_batch_usd_per_mwh"] / least - 1.0)
        out["with_gpus_kept_mean"] = float(ours["kept"].mean())
    out |= {
        "hours": hours,
        "jobs": float(len(found.jobs)),
        "requests_millions": float(found.arms["alone"]["requests"].sum()) / 1e6,
        "serving_gpus_mean": float(found.arms["alone"]["held"].mean()),
        "serving_gpus_most": float(found.arms["alone"]["held"].max()),
        "oracle_batch_gpu_hours": float(found.best.sum()) / 3600,
        "oracle_gpus_used_pct": 100.0 * float((found.arms["alone"]["ready"] + found.best).mean()) / GPUS,
        "mean_usd_per_mwh": float(found.price.mean()),
        "events": float(np.count_nonzero(np.diff(in_event.astype(int)) > 0)),
    }
    return out


def draw(path: Path, found: Found) -> None:
    """The week as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ours, alone = found.arms["with"], found.arms["alone"]
    every = 300
    hours = (np.arange(len(found.price) // every) + 0.5) * every / 3600

    def mean(values: Floats) -> Floats:
        means: Floats = values[: len(hours) * every].reshape(-1, every).mean(axis=1)
        return means

    figure, axes = pyplot.subplots(4, 1, figsize=(13, 11), sharex=True, height_ratios=(3, 2, 1.2, 1.2))
    axis = axes[0]
    axis.stackplot(
        hours, mean(ours["held"]), mean(ours["running"]), labels=("serving has", "batch runs"),
        colors=("tab:blue", "tab:orange"), alpha=0.6, linewidth=0,
    )  # fmt: skip
    axis.plot(hours, mean(ours["kept"]), color="black", linewidth=0.9, label="kept free for serving")
    axis.plot(hours, mean(ours["demand"]), color="navy", linewidth=0.7, label="serving's demand")
    axis.axhline(GPUS, color="grey", linewidth=0.8)
    axis.set(ylabel="GPUs", ylim=(0, GPUS + 4), title="A simulated week on 64 GPUs: interactive serving with batch beside it")
    axis.legend(loc="upper center", ncols=4, fontsize=8, framealpha=0.9)
    axis = axes[1]
    axis.plot(hours, mean(ours["site_w"]) / 1e3, color="tab:red", linewidth=1, label="with batch")
    axis.plot(hours, mean(alone["site_w"]) / 1e3, color="tab:blue", linewidth=1, label="serving alone")
    for number, one in enumerate(found.events):
        first, last = ((at - MONDAY).total_seconds() / 3600 - found.begin_s / 3600 for at in (one.start, one.end or one.start))
        if 0 <= first < len(found.price) / 3600:
            label = "limit of an event" if number == 0 else None
            axis.plot([first, last], [one.limit_w / 1e3] * 2, color="black", linewidth=2.5, label=label)
            for other in axes:
                other.axvspan(first, last, color="red", alpha=0.10, linewidth=0)
    axis.set(ylabel="site, kW")
    axis.legend(loc="lower right", ncols=3, fontsize=8)
    axes[2].step(hours, mean(found.price), color="tab:green", linewidth=1, where="mid")
    axes[2].set(ylabel="USD/MWh")
    axis = axes[3]
    for kind, color in (("naive", "tab:orange"), ("with", "tab:red"), ("alone", "tab:blue")):
        if kind in found.arms:
            axis.plot(hours, np.cumsum(mean(found.arms[kind]["late"]) * every), color=color, label=kind, linewidth=1.2)
    axis.set(ylabel="violations so far", xlabel="hours since local midnight of the first day", xlim=(0, hours[-1]))
    axis.set_yscale("symlog", linthresh=1000)
    axis.legend(loc="upper left", ncols=3, fontsize=8)
    for axis in axes:
        axis.set_xticks(np.arange(0, hours[-1] + 1, 24 if hours[-1] > 48 else 3))
        axis.grid(visible=True, axis="x", linewidth=0.4)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def figures(quick: bool, plot: Path | None = None) -> tuple[dict[str, float], list[tuple[str, str, float]]]:
    """The figures, and their targets. Raises FileNotFoundError without the open data."""
    traces = data_folder("traces")
    if traces is None:
        raise FileNotFoundError("data/traces")
    logging.getLogger("dispatcher.serving").setLevel(logging.WARNING)
    found = week(traces.parent, quick, seed=1)
    if plot is not None:
        draw(plot, found)
    out = {f"week_{name}": value for name, value in judged(found).items()}
    wanted = [
        ("week_with_more_violations", "<=", 0.0),
        ("week_with_more_late_tokens_pct", "<=", 0.0),
        *([] if quick else [("week_naive_more_violations", ">", 0.0)]),
        ("week_with_event_minutes_over", "<=", 0.0),
        ("week_with_event_gpu_seconds_refused_serving", "<=", 0.0),
    ]
    return out, wanted


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one day instead of seven")
    parser.add_argument("--plot", type=Path, help="draw the week into this file")
    args = parser.parse_args()
    if data_folder("traces") is None:
        return without_data("traces")
    out, wanted = figures(args.quick, args.plot)
    return report("serving_week", out, wanted, METHOD)


if __name__ == "__main__":
    sys.exit(main())
