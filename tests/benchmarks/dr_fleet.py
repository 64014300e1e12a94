"""A fleet of GPUs in virtual time for bench_demand_response: what the published field trial ran, by its own measured sweep.

Agents are played to the power loop through its real hub, frame by frame: they keep leases and their ends, draw with a lag, and
tell what they measured, with noise and late if asked. How fast a job runs under a cap is the sweep's; the controller never
sees that, nor the sweep.
"""

import csv
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from dispatcher.power.hub import Hub
from policies.cap_model import Learned, Observation
from policies.power_allocation import TIER_LOSS
from policies.problem import Floats
from policies.world import Flexibility, JobState, JobView, RegionView

REGION, GPUS_A_NODE = "phoenix", 8
DEFAULT_W, MIN_W, LEAST_CAP_W = 400.0, 100.0, 200.0
GPU_NAME = "NVIDIA A100-SXM4-80GB"
#: As an agent: it tells at once what has changed by more than this, W or as a share, and all of it each so many seconds.
QUIET_W, QUIET_SHARE, TELL_S = 5.0, 0.02, 5
#: Time constant with which a GPU's draw follows its limit, s.
LAG_S = 1.0
#: The jobs of the trial's first event: workload of the sweep, GPUs, tier. Its sheet of results names them, their sizes are the
#: sweep's, and together they are the 256 GPUs of the trial.
JOBS = (
    ("ft_llama_8b_p3", 32, "flex-2"),
    ("infer_llama_8b_32g", 32, "flex-3"),
    ("infer_llama_8b_48g", 48, "flex-1"),
    ("infer_llama_8b_48g", 48, "flex-2"),
    ("pt_mpt_13b_sm", 48, "flex-3"),
    ("pt_mpt_7b_fast", 48, "flex-3"),
)
#: What the trial's authors report of those jobs: throughput during the event, relative to normal.
THEIRS = (0.939635, 0.973165, 1.0, 0.992455, 0.666923, 0.743277)


@dataclass(frozen=True)
class Sweep:
    """Of one workload: caps, W, what a GPU draws under each, W, and its throughput relative to the highest cap's."""

    caps: Floats
    draw: Floats
    speed: Floats


def sweeps(folder: Path) -> dict[str, Sweep]:
    """The trial's sweep by workload."""
    rows: dict[str, list[tuple[float, float, float]]] = {}
    with (folder / "dvfs_sweep.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            point = (float(row["GPU power cap"]), float(row["power per GPU"]), float(row["normalized throughput"]))
            rows.setdefault(row["Workload"], []).append(point)
    return {name: Sweep(*np.array(sorted(points)).T) for name, points in rows.items()}


def measured(path: Path) -> tuple[list[str], Floats]:
    """(time stamps, W) of a trace of the trial, a minute apart."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [(row["timestamp"], float(row["total"])) for row in csv.DictReader(file) if row["total"]]
    return [at for at, _ in rows], np.array([watts for _, watts in rows])


@dataclass(frozen=True)
class Disturbance:
    """What is not ideal: standard deviations as shares of the draw, s of delay of what is told."""

    work_noise: float = 0.0
    meter_noise: float = 0.0
    delay_s: int = 0


@dataclass(eq=False)
class Session:
    """One node's agent, as the hub sees it; orders wait in ``inbox`` until the fleet's next second."""

    inbox: list[dict[str, Any]] = field(default_factory=list)

    def send(self, text: str, *, is_order: bool = False) -> None:
        """Take a frame."""
        self.inbox.append(json.loads(text))

    def close(self, why: str) -> None:
        """A control plane that turns an agent away would spoil the run."""
        raise RuntimeError(f"the hub closed a session: {why}")


class Fleet:
    """See the module. ``step`` is one second of virtual time."""

    def __init__(
        self, folder: Path, start: datetime, how: Disturbance, seed: int = 1, work: tuple[tuple[str, int, str], ...] = JOBS
    ) -> None:
        """``work``: workload, GPUs and tier of each job."""
        self.now, self._begin, self.work = start, start, work
        self.hub = Hub(epoch=1, now=lambda: self.now, mono=self.mono)
        self._how, self._rng = how, np.random.default_rng(seed)
        table = sweeps(folder)
        self.job = np.repeat(np.arange(len(work)), [gpus for _, gpus, _ in work])
        self._sweeps = [table[name] for name, _, _ in work]
        self.count = len(self.job)
        self.limit_w = np.full(self.count, DEFAULT_W)
        self._wanted_w = self._undisturbed()
        self.draw_w = self._wanted_w.copy()
        self.base_w = float(self.draw_w.sum())
        self._work = np.zeros(self.count)
        self._told: list[Floats] = [self.draw_w.copy()]
        self._said: dict[int, tuple[Floats, Floats, list[dict[str, Any]]]] = {}
        self._leases: dict[tuple[int, str], tuple[float, float]] = {}
        self._sessions = [Session() for _ in range(self.count // GPUS_A_NODE)]
        for node, session in enumerate(self._sessions):
            self._say(session, self._hello(node))
        self._tell()

    def mono(self) -> float:
        """Seconds since the start."""
        return (self.now - self._begin).total_seconds()

    def jobs(self) -> tuple[JobView, ...]:
        """The jobs as the planner sees them: they run throughout, and their owners say nothing of what they draw."""
        views = []
        for at, (name, gpus, tier) in enumerate(self.work):
            flex = Flexibility(True, None, None, 864000.0, False, float(gpus), 300.0 * gpus, tier=tier, group=name)
            since = self._begin - timedelta(hours=1)
            ran: dict[str, Any] = {"region": REGION, "run_started_at": since, "attempt": 1}
            views.append(JobView(f"job-{at}", JobState.RUNNING, since, since, flex, 864000.0, **ran))
        return tuple(views)

    def region(self) -> RegionView:
        """Its region: GPU power alone, as the trial's traces have it."""
        return RegionView(REGION, True, None, None, None, None, None, pue=1.0)

    def teach(self, learned: Learned) -> None:
        """What earlier jobs of the same groups have shown under caps, each speed off by 3 %."""
        for (name, _, _), sweep in zip(self.work, self._sweeps, strict=True):
            for cap in (300.0, 250.0, 200.0):
                draw, speed = (float(np.interp(cap, sweep.caps, values)) for values in (sweep.draw, sweep.speed))
                seen = speed * (1.0 + float(self._rng.normal(0.0, 0.03)))
                learned.observe(name, GPU_NAME, Observation(cap / DEFAULT_W, draw / DEFAULT_W, seen, noise=0.03))

    def speed(self) -> Floats:
        """Throughput of each job now, relative to normal: of its slowest GPU, by its limit."""
        found = np.empty(len(self.work))
        for at, sweep in enumerate(self._sweeps):
            found[at] = np.interp(self.limit_w[self.job == at], sweep.caps, sweep.speed).min()
        return found

    def step(self) -> float:
        """One second passes: agents obey, GPUs follow, agents tell. Returns what was drawn, W."""
        self.now += timedelta(seconds=1)
        for node, session in enumerate(self._sessions):
            frames, session.inbox = session.inbox, []
            for frame in frames:
                self._obey(node, session, frame)
        self._expire()
        how = self._how
        if how.work_noise:
            self._work += (self._rng.normal(0.0, how.work_noise, self.count) - self._work) / 30.0
        wanted = self._undisturbed() * (1.0 + self._work * 5.0)
        wanted = np.minimum(wanted, self.limit_w)  # the driver holds the limit itself
        self.draw_w += (wanted - self.draw_w) * (1.0 - np.exp(-1.0 / LAG_S))
        self._told.append(self.draw_w * (1.0 + self._rng.normal(0.0, how.meter_noise, self.count) if how.meter_noise else 1.0))
        del self._told[: -1 - how.delay_s]
        self._tell()
        return float(self.draw_w.sum())

    def _undisturbed(self) -> Floats:
        draws = np.empty(self.count)
        for at, sweep in enumerate(self._sweeps):
            of_job = self.job == at
            draws[of_job] = np.interp(self.limit_w[of_job], sweep.caps, sweep.draw)
        return draws

    # --- the agents' side ---------------------------------------------------------------------------------------------

    def _say(self, session: Session, frame: dict[str, Any]) -> None:
        answer = self.hub.receive(session, REGION, json.dumps(frame), proven=True)
        if answer is not None:
            raise RuntimeError(f"the hub did not take a frame: {answer}")

    def _hello(self, node: int) -> dict[str, Any]:
        return {
            "type": "hello", "protocol": 1, "can_cap": True, "why_not": "", "leases": [], "epoch": 0,
            "node": {"node_id": f"n{node}", "hostname": f"host-{node}", "branch": None, "simulated": True},
            "gpus": [
                {"uuid": f"GPU-{node}-{at}", "index": at, "name": GPU_NAME, "min_w": MIN_W, "max_w": DEFAULT_W,
                 "default_w": DEFAULT_W}
                for at in range(GPUS_A_NODE)
            ],
        }  # fmt: skip

    def _tell(self) -> None:
        told, mono = self._told[0].round(1).tolist(), self.mono()
        leases: dict[int, list[dict[str, Any]]] = {}
        for (gpu, name), (limit_w, ends_s) in self._leases.items():
            one = {"lease_id": name, "kind": "event", "uuid": _uuid(gpu), "limit_w": limit_w, "epoch": 1, "reason": ""}
            leases.setdefault(gpu // GPUS_A_NODE, []).append({**one, "ends_in_s": ends_s - mono})
        now_s = int(mono)
        for node, session in enumerate(self._sessions):
            here = slice(node * GPUS_A_NODE, (node + 1) * GPUS_A_NODE)
            state = (self._told[0][here], self.limit_w[here].copy(), leases.get(node, []))
            if (before := self._said.get(node)) is not None and (now_s + node) % TELL_S:
                quiet = np.all(np.abs(state[0] - before[0]) < np.maximum(QUIET_W, QUIET_SHARE * before[0]))
                if quiet and np.array_equal(state[1], before[1]) and len(state[2]) == len(before[2]):
                    continue  # as agents do: nothing new
            self._said[node] = state
            gpus = []
            for at in range(GPUS_A_NODE):
                gpu = node * GPUS_A_NODE + at
                gpus.append(
                    {"uuid": _uuid(gpu), "power_w": told[gpu], "limit_w": float(self.limit_w[gpu]),
                     "enforced_w": float(self.limit_w[gpu]), "temperature_c": 60.0, "sm_util": 1.0, "throttle": [],
                     "idle_state": "active", "jobs": [f"job-{self.job[gpu]}"]}
                )  # fmt: skip
            self._say(
                session,
                {"type": "live", "at": self.now.replace(tzinfo=UTC).timestamp(), "gpus": gpus, "frozen": [], "alarms": [],
                 "leases": leases.get(node, [])},
            )  # fmt: skip

    def _obey(self, node: int, session: Session, frame: dict[str, Any]) -> None:
        if frame["type"] != "orders":
            return
        results = []
        for one in frame["set"]:
            gpu = int(one["uuid"].rsplit("-", 1)[1]) + node * GPUS_A_NODE
            ends_s = self.mono() + (one["ttl_s"] if one["ttl_s"] is not None else 1e9)
            self._leases[gpu, one["lease_id"]] = (one["limit_w"], ends_s)
            results.append({"lease_id": one["lease_id"], "ok": True, "enforced_w": one["limit_w"]})
        for name in frame["release"]:
            for key in [key for key in self._leases if key[1] == name and key[0] // GPUS_A_NODE == node]:
                del self._leases[key]
            results.append({"lease_id": name, "ok": True})
        self._say(session, {"type": "results", "order": frame["order"], "results": results})

    def _expire(self) -> None:
        mono = self.mono()
        for key in [key for key, (_, ends_s) in self._leases.items() if ends_s <= mono]:
            del self._leases[key]
        self.limit_w = np.full(self.count, DEFAULT_W)
        for (gpu, _), (limit_w, _) in self._leases.items():
            self.limit_w[gpu] = min(self.limit_w[gpu], limit_w)


def _uuid(gpu: int) -> str:
    return f"GPU-{gpu // GPUS_A_NODE}-{gpu % GPUS_A_NODE}"


# --- what others would do, and the best there is -------------------------------------------------------------------


def optimum(folder: Path, target_w: float) -> float:
    """The best GPU-weighted throughput (1: normal) under ``target_w``: a linear programme over the true sweep, caps of at
    least 200 W, every tier's floor kept."""
    import highspy

    table = sweeps(folder)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    draw_row: list[tuple[int, float]] = []
    column = 0
    total = sum(gpus for _, gpus, _ in JOBS)
    for name, gpus, tier in JOBS:
        sweep = table[name]
        points = [(d, s) for c, d, s in zip(sweep.caps, sweep.draw, sweep.speed, strict=True) if c >= LEAST_CAP_W]
        first = column
        for draw, speed in points:  # shares of time at each cap
            solver.addVar(0.0, 1.0)
            solver.changeColCost(column, -speed * gpus / total)
            draw_row.append((column, draw * gpus))
            column += 1
        mine = list(range(first, column))
        solver.addRow(1.0, 1.0, len(mine), mine, [1.0] * len(mine))
        solver.addRow(1.0 - TIER_LOSS[tier], 1.0, len(mine), mine, [speed for _, speed in points])
    solver.addRow(0.0, target_w, len(draw_row), [at for at, _ in draw_row], [value for _, value in draw_row])
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise RuntimeError(f"{target_w:.0f} W cannot be kept within the tiers' floors")
    return -float(solver.getInfo().objective_function_value)


def strategies(folder: Path, target_w: float) -> dict[str, tuple[float, int]]:
    """GPU-weighted throughput and how many tiers' floors are broken, of the trial's four simple strategies at the same power:
    one cap for all; one cap of at least 300 W, then pauses; pauses alone; every job on fewer GPUs. Pauses take the most
    flexible and then the smallest job first; what the last one gives too much is not used."""
    table = [sweeps(folder)[name] for name, _, _ in JOBS]
    gpus = np.array([count for _, count, _ in JOBS], dtype=np.float64)
    floors = np.array([1.0 - TIER_LOSS[tier] for _, _, tier in JOBS])
    order = sorted(range(len(JOBS)), key=lambda at: (-int(JOBS[at][2][-1]), JOBS[at][1], at))

    def at_cap(cap: float) -> tuple[Floats, Floats]:
        draw = np.array([np.interp(cap, one.caps, one.draw) for one in table])
        return draw, np.array([np.interp(cap, one.caps, one.speed) for one in table])

    def told(speed: Floats) -> tuple[float, int]:
        return float(speed @ gpus / gpus.sum()), int(np.sum(speed < floors - 1e-9))

    def paused(cap: float) -> tuple[float, int]:
        draw, speed = at_cap(cap)
        for at in order:
            if draw @ gpus <= target_w:
                break
            draw[at], speed[at] = 0.0, 0.0
        return told(speed)

    low, high = MIN_W, DEFAULT_W
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if at_cap(middle)[0] @ gpus <= target_w else (low, middle)
    full = at_cap(DEFAULT_W)[0] @ gpus
    return {
        "even_caps": told(at_cap(low)[1]),
        "caps_and_pause": paused(300.0),
        "greedy_pause": paused(DEFAULT_W),
        "pause_and_resize": told(np.full(len(JOBS), min(1.0, target_w / full))),
    }
