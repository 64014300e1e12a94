"""Batch beside a Ray Serve application on this machine, for bench_serving: how late answers are without batch, with batch
that gridshift guards, and with batch that nobody does, and how much batch gets done.

Everything is a process of its own: Ray with its Serve, a Prometheus that scrapes it, `gridshift serve`, its agent, the jobs'
entrypoints, the users. Load, work, promise and order of the blocks are fixed here, before anything is measured.
"""

import contextlib
import csv
import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import requests

sys.path.insert(0, str(Path(__file__).parents[2]))

from dispatcher.local_ray import LocalRay
from policies.serving import Objective, Reading, SloWatch
from tests.benchmarks.common import ROOT
from tests.benchmarks.serving_batch import work as batch_work
from tests.helpers import free_port, wait_until
from tests.real.harness import Plane, clean_env, region
from tests.real.prometheus import prometheus

#: The server's replica is at work for so much of the time, on average.
LOAD = 0.35
#: The promise: this share of answers within so many s (a bound of Ray Serve's own buckets).
PERCENTILE, LIMIT_S = 0.95, 0.2
#: A block's arms each see the same stretch of the trace: s to settle, and s that count.
SETTLE_S, WINDOW_S, BLOCKS = 4.0, 45.0, 10
ARMS = ("none", "guarded", "unguarded")
#: The cluster has two GPUs, one for each core; each job takes one and works with so many tasks.
GPUS, TASKS = 2, 1
#: While it is tried how soon batch yields, so many times the load comes.
SURGE, TRIALS = 5.0, 5
SEED = 11

SERVING = """
[[region.serving]]
name = "chat"
source = "prometheus"
url = "{url}"
preset = "ray-serve"
match = 'application="chat"'
floor_gpus = 1
scrape_s = 0.5
[[region.serving.slo]]
metric = "e2e"
percentile = {percentile}
limit = {limit_s}
"""

METHOD = (
    "live: one Ray Serve replica whose answers take CPU, one step a generated token and one for 50 of the prompt, "
    "requests at work taking turns; arrivals and tokens of the Azure conversation trace of 2023, open loop, as fast"
    f" as keeps the replica at work for {LOAD:.0%} of the time; {BLOCKS} blocks, in each the same stretch of it for "
    "each arm, the order turning; two GPUs without a driver stand for two cores; batch: jobs of one GPU whose Ray "
    "task takes all the CPU of a core it can get, not niced, running before each stretch begins; guarded: by "
    "`gridshift serve` with floor_gpus = 1 and the promise p95 <= 0.2 s, read from a real Prometheus by the preset "
    "of Ray Serve; unguarded: by one that knows of no serving; users measure from when a request was due, with a "
    "priority of their own; bootstrap over blocks, 10,000 times, one-sided 95 %; work: hashes of batch at what one "
    "takes alone on the idle machine; idle: both cores less what everything but batch used of them in the same "
    f"stretch; reaction: at {SURGE:g} times the load, from the first moment at which the users' own figures put the "
    "promise at risk, to batch's last step"
)


@dataclass(frozen=True)
class Request:
    """When it comes, s after the trace's begin, and the steps that its answer takes."""

    at_s: float
    steps: int


@dataclass
class Stretch:
    """What was seen of one arm in one block: each answer's time (s), failures, batch's work and what idle capacity there was,
    both in CPU s, and how often batch had to step aside."""

    answers: list[float] = field(default_factory=list)
    failed: int = 0
    work_s: float = 0.0
    idle_s: float = 0.0
    steps_aside: int = 0


def trace(folder: Path) -> list[Request]:
    """The requests of the Azure conversation trace."""
    from tests.benchmarks.serving_app import steps_of

    with gzip.open(folder / "AzureLLMInferenceTrace_conv.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    return [
        Request((at - times[0]).total_seconds(), steps_of(int(row["ContextTokens"]), int(row["GeneratedTokens"])))
        for at, row in zip(times, rows, strict=True)
    ]


class Users:
    """Requests of a stretch of the trace, sent by a process of their own."""

    def __init__(self, url: str, requests_: Sequence[Request], from_s: float, length_s: float, speed: float) -> None:
        """``length_s`` of the wall from ``from_s`` of the trace on, ``speed`` times as fast."""
        self.began = time.monotonic() + 1.0
        due = [
            (self.began + (one.at_s - from_s) / speed, one.steps)
            for one in requests_
            if 0 <= one.at_s - from_s < length_s * speed
        ]
        self._out = tempfile.TemporaryFile("w+")  # noqa: SIM115  # as long as this object
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("serving_users.py")), url],
            stdin=subprocess.PIPE, stdout=self._out, env=clean_env(), text=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.writelines(f"{at:.4f} {steps}\n" for at, steps in due)
        self._process.stdin.close()

    def answers(self) -> list[tuple[float, float, int]]:
        """(due, took, status) of each, once all have been answered."""
        assert self._process.wait(150) == 0, "the users' process failed"
        self._out.seek(0)
        return [(float(a), float(b), int(c)) for a, b, c in (line.split() for line in self._out)]

    def stop(self) -> None:
        """Send no more, whatever was asked."""
        self._process.kill()
        self._process.wait()


class Batch:
    """Jobs of a control plane, one GPU each, and the work they write down."""

    def __init__(self, plane: Plane, folder: Path, name: str, runs: int) -> None:
        """Submit two and wait until ``runs`` of them have been at work for a moment."""
        self._plane, self._folder, self._name = plane, folder, name
        self._ids = [f"{name}-{number}" for number in range(GPUS)]
        flex = {"gridshift.pausable": "freeze", "gridshift.runtime": "1h", "gridshift.deadline": "3d"}
        script = str(Path(__file__).with_name("serving_batch.py"))
        for job_id in self._ids:
            given = ("--submission-id", job_id, "--entrypoint-num-gpus", "1", "--metadata-json", json.dumps(flex), "--no-wait")
            plane.ray("submit", *given, "--", sys.executable, script, str(folder / job_id), str(TASKS))
        wait_until(lambda: len(self._files()) >= runs * TASKS, 120, f"{runs} of {self._ids} to work")

    def _files(self) -> list[Path]:
        return [path for job_id in self._ids for path in self._folder.glob(f"{job_id}.*")]

    def _lines(self) -> Iterator["np.ndarray[Any, np.dtype[np.float64]]"]:
        for path in self._files():
            whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
            yield np.array([[float(x) for x in line.split()] for line in whole.splitlines()]).reshape(-1, 3)

    def done(self, from_s: float, to_s: float) -> tuple[float, float]:
        """Units of work and CPU s between two moments."""
        units = cpu_s = 0.0
        for table in self._lines():
            if len(table):
                at, *columns = table.T
                amounts = [float(np.interp(to_s, at, column) - np.interp(from_s, at, column)) for column in columns]
                units, cpu_s = units + amounts[0], cpu_s + amounts[1]
        return units, cpu_s

    def last_step_before_rest(self, after_s: float, rest_s: float = 1.0) -> float | None:
        """When the last process made its last step before all stood still for ``rest_s``; None: they have not."""
        times = np.sort(np.concatenate([table[:, 0] for table in self._lines()]))
        times = np.append(times[times >= after_s], time.monotonic())
        rests = np.flatnonzero(np.diff(times) > rest_s)
        return float(times[rests[0]]) if len(rests) else None

    def end(self) -> None:
        """Cancel them all and wait until they are gone."""
        for job_id in self._ids:
            self._plane.gridshift("jobs", "cancel", job_id)
        for job_id in self._ids:
            self._plane.wait_state(job_id, "cancelled", timeout_s=60)


class Rig:
    """Ray with the application, a Prometheus that scrapes it, and the control planes."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path) -> None:
        self._stack, self._folder, self._plane_count = stack, folder, 0
        self.work = folder / "work"
        self.work.mkdir()
        env = {
            "PYTHONPATH": str(ROOT),
            "RAY_metrics_report_interval_ms": "500",  # ten seconds otherwise
            "GRIDSHIFT_AGENT_DIR": str(folder / "a"),
        }
        self.ray = LocalRay("live", base_dir=folder / "ray", num_cpus=8, num_gpus=GPUS, env=env)
        stack.callback(self.ray.stop)
        self.ray.start()
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/"
        app = {"name": "chat", "import_path": "tests.benchmarks.serving_app:app", "route_prefix": "/"}
        asked = {
            "http_options": {"host": "127.0.0.1", "port": port},
            "logging_config": {"enable_access_log": False},
            "applications": [app],
        }
        requests.put(f"{self.ray.address}/api/serve/applications/", json=asked, timeout=60).raise_for_status()
        wait_until(self._answers, 90, "the application")
        assert self.ray.temp_dir is not None
        targets = self.ray.temp_dir / "prom_metrics_service_discovery.json"
        self.prometheus = stack.enter_context(prometheus(folder / "p", targets, every="500ms"))

    def _answers(self) -> bool:
        with contextlib.suppress(requests.RequestException):
            return requests.get(self.url, params={"steps": 1}, timeout=5).ok
        return False

    def plane(self, *, knows_of_serving: bool) -> Plane:
        """A new control plane; one that knows of serving brings its agent along."""
        self._plane_count += 1
        folder = self._folder / f"plane{self._plane_count}"
        folder.mkdir()
        config = region("here", self.ray.address, 50.0, gpus=GPUS)
        if not knows_of_serving:
            return Plane(folder, config)
        config += SERVING.format(url=self.prometheus, percentile=PERCENTILE, limit_s=LIMIT_S)
        return Plane(folder, config, GRIDSHIFT_AGENTS__DEPLOY="auto")


def _has_agent(plane: Plane) -> bool:
    regions = requests.get(f"{plane.address}/v1/fleet", timeout=10).json()["regions"]
    return any(not node["silent"] for one in regions for branch in one["branches"] for node in branch["nodes"])


def _is_met(plane: Plane) -> bool:
    (one,) = plane.gridshift("serving")["serving"]
    return bool(one["level"] == "calm" and all(risk["state"] == "met" for risk in one["objectives"]))


def _steps_aside(plane: Plane) -> int:
    (one,) = plane.gridshift("serving", "here", "chat")["serving"]
    return sum("batch is frozen" in line["sentence"] for line in one["history"])


def _busy_s() -> float:
    """CPU s that this machine has used since it started, all cores; interrupts count, what the hypervisor stole does not."""
    fields = [float(x) for x in Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq = fields[:7]
    return (user + nice + system + irq + softirq) / 100.0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _stretch(
    rig: Rig, plane: Plane, arm: str, number: int, requests_: Sequence[Request], speed: float, unit_s: float
) -> Stretch:
    """One arm of one block."""
    batch = None
    if arm != "none":
        batch = Batch(plane, rig.work, f"{arm}-{number}", 1 if arm == "guarded" else GPUS)
    before = _steps_aside(plane) if arm == "guarded" else 0
    long_s = SETTLE_S + WINDOW_S
    users = Users(rig.url, requests_, number * WINDOW_S * speed, long_s, speed)
    from_s = users.began + SETTLE_S
    time.sleep(max(0.0, from_s - time.monotonic()))
    from_s, busy_s = time.monotonic(), _busy_s()
    time.sleep(WINDOW_S)
    to_s, busy_s = time.monotonic(), _busy_s() - busy_s
    answers = users.answers()
    counted = [(took, status) for due, took, status in answers if due >= users.began + SETTLE_S]
    out = Stretch([took for took, status in counted if status == 200], sum(status != 200 for _, status in counted))
    batch_cpu_s = 0.0
    if batch is not None:
        units, batch_cpu_s = batch.done(from_s, to_s)
        out.work_s = units * unit_s
        batch.end()
    out.idle_s = GPUS * (to_s - from_s) - (busy_s - batch_cpu_s)
    if arm == "guarded":
        out.steps_aside = _steps_aside(plane) - before
    return out


def _reaction_s(rig: Rig, number: int, requests_: Sequence[Request], speed: float) -> float:
    """From the first moment at which the users' own figures put the promise at risk to the last step of batch, s."""
    with rig.plane(knows_of_serving=True) as plane:
        wait_until(lambda: _has_agent(plane) and _is_met(plane), 120, "an agent and a promise kept")
        batch = Batch(plane, rig.work, f"surge-{number}", 1)
        answers = Users(rig.url, requests_, 100.0 * number, 8.0, speed).answers()
        surge = Users(rig.url, requests_, 600.0 + 100.0 * number, 8.0, SURGE * speed)
        answers += surge.answers()
        rest_s = wait_until(lambda: batch.last_step_before_rest(surge.began), 30, "batch to stand still")
        batch.end()
    at_risk_s = _at_risk_s(answers, surge.began)
    assert isinstance(rest_s, float) and at_risk_s is not None, "the surge put nothing at risk"
    return rest_s - at_risk_s


def _at_risk_s(answers: Sequence[tuple[float, float, int]], from_s: float) -> float | None:
    """When the promise was first at risk after ``from_s`` by what was answered until then."""
    watch = SloWatch(Objective("e2e", PERCENTILE, LIMIT_S))
    done = np.array(sorted((due + took, took) for due, took, _ in answers))
    for at_s in np.arange(done[0, 0], done[-1, 0], 0.05):
        until = done[done[:, 0] <= at_s, 1]
        watch.add(Reading(float(at_s), float(np.sum(until <= LIMIT_S)), float(len(until))))
        if at_s >= from_s and watch.risk(float(at_s)).state == "at_risk":
            return float(at_s)
    return None


def _speed(rig: Rig, requests_: Sequence[Request]) -> tuple[float, float]:
    """How fast the trace has to come, and the s that a step takes: what a long answer takes longer than a short one, alone."""

    def took_s(steps: int) -> float:
        began = time.monotonic()
        requests.get(rig.url, params={"steps": steps}, timeout=60).raise_for_status()
        return time.monotonic() - began

    took_s(1000)
    step_s = (min(took_s(2000) for _ in range(7)) - min(took_s(500) for _ in range(7))) / 1500.0
    mean_s = step_s * float(np.mean([one.steps for one in requests_]))
    return LOAD / (mean_s * len(requests_) / requests_[-1].at_s), step_s


def _p99_ratio(blocks: dict[str, list[Stretch]], arm: str) -> tuple[float, float, float]:
    """p99 of an arm over that without batch, with its one-sided 95 % bounds: lower, upper; blocks are drawn, arms together."""
    chance = np.random.default_rng(SEED)
    count = len(blocks[arm])
    mine, none = ([np.array(one.answers) for one in blocks[which]] for which in (arm, "none"))

    def ratio(drawn: Sequence[int]) -> float:
        a, b = (float(np.percentile(np.concatenate([of[n] for n in drawn]), 99)) for of in (mine, none))
        return a / b

    drawn = [ratio(chance.integers(count, size=count).tolist()) for _ in range(10_000)]
    return ratio(range(count)), float(np.percentile(drawn, 5)), float(np.percentile(drawn, 95))


def figures(folder: Path, quick: bool) -> tuple[dict[str, float], list[tuple[str, str, float]]]:
    """The figures and their targets; ``folder`` is that of the open data. ``quick``: two blocks and one surge."""
    count, trials = (2, 1) if quick else (BLOCKS, TRIALS)
    requests_ = trace(folder)
    begun_s = time.monotonic()
    units, alone_s = batch_work("/dev/null", 3.0)
    unit_s = alone_s / units
    blocks: dict[str, list[Stretch]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory(prefix="gsv") as name, contextlib.ExitStack() as stack:
        rig = Rig(stack, Path(name))
        speed, step_s = _speed(rig, requests_)
        _say(f"a step takes {1e6 * step_s:.0f} us: the trace comes {speed:.2f} times as fast")
        assert (count * WINDOW_S + SETTLE_S) * speed < requests_[-1].at_s, "the trace is too short for this machine"
        with rig.plane(knows_of_serving=True) as guarded, rig.plane(knows_of_serving=False) as unguarded:
            wait_until(lambda: _has_agent(guarded) and _is_met(guarded), 120, "an agent and a promise kept")
            for number in range(count):
                for turn in range(len(ARMS)):
                    arm = ARMS[(number + turn) % len(ARMS)]
                    plane = unguarded if arm == "unguarded" else guarded
                    wait_until(lambda: _is_met(guarded), 360, "calm")
                    found = _stretch(rig, plane, arm, number, requests_, speed, unit_s)
                    blocks[arm].append(found)
                    p50, p95, p99 = 1000.0 * np.percentile(found.answers, (50, 95, 99))
                    _say(
                        f"{time.monotonic() - begun_s:5.0f} s  block {number + 1}/{count} {arm:9s}: "
                        f"{len(found.answers)} answers, "
                        f"p50 {p50:.0f} p95 {p95:.0f} p99 {p99:.0f} ms, batch {found.work_s:.1f} of {found.idle_s:.1f} idle "
                        f"CPU s, stepped aside {found.steps_aside} times"
                    )
        reactions = []
        for number in range(trials):
            reactions.append(_reaction_s(rig, number, requests_, speed))
            _say(f"surge {number + 1}/{trials}: batch stood still {reactions[-1]:.2f} s after the promise was at risk")
    guarded_ratio, unguarded_ratio = _p99_ratio(blocks, "guarded"), _p99_ratio(blocks, "unguarded")
    out = {
        "live_blocks": float(count),
        "live_step_us": 1e6 * step_s,
        "live_requests_least": float(min(sum(len(one.answers) for one in some) for some in blocks.values())),
        "live_failed": float(sum(one.failed for some in blocks.values() for one in some)),
        "live_p99_guarded_ratio": guarded_ratio[0],
        "live_p99_guarded_ratio_upper": guarded_ratio[2],
        "live_p99_unguarded_ratio": unguarded_ratio[0],
        "live_p99_unguarded_ratio_lower": unguarded_ratio[1],
        "live_reaction_worst_s": max(reactions),
        "live_reaction_p50_s": float(np.median(reactions)),
    }
    for arm, some in blocks.items():
        answers = np.concatenate([one.answers for one in some])
        out |= {f"live_{arm}_p{q}_ms": 1000.0 * float(np.percentile(answers, q)) for q in (50, 95, 99)}
        out[f"live_{arm}_within_promise_pct"] = 100.0 * float(np.mean(answers <= LIMIT_S))
        if arm != "none":
            done, idle = sum(one.work_s for one in some), sum(one.idle_s for one in some)
            out[f"live_{arm}_work_of_idle_pct"] = 100.0 * done / idle
    out["live_guarded_steps_aside"] = float(sum(one.steps_aside for one in blocks["guarded"]))
    return out, [
        ("live_blocks", ">=", 10),
        ("live_requests_least", ">=", 3000),
        ("live_failed", "<=", 0),
        ("live_p99_guarded_ratio_upper", "<=", 1.25),
        ("live_p99_unguarded_ratio", ">=", 2.0),
        ("live_guarded_work_of_idle_pct", ">=", 70.0),
        ("live_reaction_worst_s", "<=", 3.0),
    ]
