"""``gridshift demo``: two real Ray clusters on this machine, a dozen real jobs, and a day that passes in two minutes, or in
more on a machine that is too slow or too busy for that.

Time is a replay, prices and carbon are the shipped synthetic profile, and energy is modelled from each job's stated draw: all
three are said on the screen and in the JSON. The clusters, the jobs, the control plane and the pauses are real.
"""

import base64
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import requests
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from standardwebhooks import Webhook

from dispatcher.client import Client, ClientError, Job
from dispatcher.clock import SystemClock
from dispatcher.demo_pace import Pace, launches_s, pace_for, why_behind
from dispatcher.errors import GridshiftError
from dispatcher.local_ray import LocalRay, free_port
from dispatcher.up import end_process
from policies.sentences import kw

START = datetime(2026, 1, 14, 5, 0, tzinfo=UTC)
# Wall seconds at full speed. Scarcity is called once pausable work runs, not before the first of them.
LIMIT_S = 270.0
SCARCITY_AFTER_S, SCARCITY_LENGTH_S = 12.0, 50.0
SCARCE_REGION, OTHER_REGION = "north", "south"
STEP_S = 0.5
#: Probe jobs that each cluster runs at once before the start, and the wall s after which they are not waited for any more.
PROBES, PROBE_LIMIT_S = 2, 120.0
#: Where no terminal shows the picture, a line is printed each so many wall s.
SAY_EVERY_S = 15.0

#: name, steps, deadline (hours of the replay), pausable, draw W
JOBS = [
    ("train-a", 60, 22, "checkpoint", 5600),
    ("train-b", 56, 22, "checkpoint", 5600),
    ("train-c", 48, 20, "checkpoint", 4900),
    ("train-d", 44, 24, "checkpoint", 4900),
    ("tune-a", 24, 14, "checkpoint", 2800),
    ("tune-b", 24, 16, "checkpoint", 2800),
    ("eval-a", 10, 10, "no", 1400),
    ("eval-b", 10, 12, "no", 1400),
    ("eval-c", 8, 18, "no", 1400),
    ("index-a", 16, 20, "no", 2100),
    ("index-b", 16, 22, "no", 2100),
    ("report", 4, None, "no", 700),
]

CONFIG = """\
[server]
port = {port}
data_dir = "{data_dir}"
[planning]
currency = "EUR"
carbon_price_per_tonne = 80.0
horizon_hours = 30
default_runtime = "1h"
min_chunk = "30m"
launch_time = "{launch_s:.0f}s"
[replay]
start = "{start}"
speed = {speed}
[[webhook]]
source = "utility"
secret_env = "GRIDSHIFT_DEMO_WEBHOOK_SECRET"
"""
REGION = """\
[[region]]
name = "{name}"
address = "{address}"
gpus = 3
pue = 1.2
currency = "EUR"
observe_s = 0.5
[[region.price]]
feed = "synthetic"
currency = "EUR"
price_mean = {price}
price_swing = {swing}
phase_h = {phase}
[[region.carbon]]
feed = "synthetic"
carbon_mean = {carbon}
carbon_swing = {carbon_swing}
phase_h = {phase}
"""


@contextlib.contextmanager
def clusters(base: Path, say: Console) -> Iterator[dict[str, LocalRay]]:
    """Two Ray clusters side by side, gone at the end whatever happens."""
    logs = Path(tempfile.gettempdir())
    rays = {name: LocalRay(name, base_dir=base, num_cpus=8, num_gpus=3, log_dir=logs) for name in (SCARCE_REGION, OTHER_REGION)}
    try:
        with phase(say, "starting two Ray clusters on this machine ..."):
            start_all(rays.values(), say)
        yield rays
    finally:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda ray: ray.stop(), rays.values()))


def start_all(rays: Iterable[LocalRay], say: Console) -> None:
    """Start clusters side by side; those that a busy machine did not start in time once more, one after the other."""

    def start(ray: LocalRay) -> tuple[LocalRay, GridshiftError | None]:
        try:
            ray.start()
        except GridshiftError as error:
            return ray, error
        return ray, None

    with ThreadPoolExecutor(2) as pool:
        failed = [(ray, error) for ray, error in pool.map(start, rays) if error is not None]
    for ray, error in failed:
        say.print(f"{error}; trying once more, alone", style="yellow")
        ray.start()


def probe(rays: Iterable[LocalRay], each: int = PROBES) -> float:
    """Wall s that the clusters take to run so many jobs ``each`` that do next to nothing, all at once. Raises GridshiftError
    where one fails, or none ends in time."""
    began = time.monotonic()
    waiting = []
    body = {"entrypoint": f"{sys.executable} -c 'import requests'"}
    with requests.Session() as http:
        http.trust_env = False
        for ray in rays:
            for _ in range(each):
                answer = http.post(f"{ray.address}/api/jobs/", json=body, timeout=60)
                answer.raise_for_status()
                waiting.append(f"{ray.address}/api/jobs/{answer.json()['submission_id']}")
        while waiting and time.monotonic() - began < PROBE_LIMIT_S:
            time.sleep(0.1)
            told = http.get(waiting[0], timeout=60).json()
            if told["status"] in ("FAILED", "STOPPED"):
                raise GridshiftError(f"Ray cannot run a job here: {told.get('message') or told['status']}")
            if told["status"] == "SUCCEEDED":
                waiting.pop(0)
    if waiting:
        raise GridshiftError(
            f"Ray did not run a job that does next to nothing within {PROBE_LIMIT_S:g} s: is the machine busy?"
        )
    return time.monotonic() - began


@contextlib.contextmanager
def phase(say: Console, what: str) -> Iterator[None]:
    """Say what is done now: while it lasts on a terminal, else as a line."""
    if say.is_terminal:
        with say.status(what):
            yield
    else:
        say.print(what)
        yield


@contextlib.contextmanager
def control_plane(base: Path, rays: dict[str, LocalRay], secret: str, pace: Pace) -> Iterator[str]:
    """A control plane of our own over ``rays``; yields its address."""
    port = free_port()
    north = REGION.format(
        name=SCARCE_REGION, address=rays[SCARCE_REGION].address, price=70, swing=45, phase=0, carbon=260, carbon_swing=140
    )
    south = REGION.format(
        name=OTHER_REGION, address=rays[OTHER_REGION].address, price=85, swing=60, phase=8, carbon=320, carbon_swing=200
    )
    config = base / "gridshift.toml"
    config.write_text(
        CONFIG.format(
            port=port,
            data_dir=base / "data",
            start=START.isoformat(),
            speed=pace.speed,
            launch_s=pace.launch_s * pace.speed,
        )
        + north
        + south,
        encoding="utf-8",
    )
    log = base / "control-plane.log"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "GRIDSHIFT_"))}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "dispatcher.cli", "serve", "--config", str(config)],
            env={**env, "GRIDSHIFT_DEMO_WEBHOOK_SECRET": secret},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 30 * pace.stretch
        while True:
            with contextlib.suppress(requests.RequestException):
                if requests.get(f"{address}/readyz", timeout=1).ok:
                    break
            if process.poll() is not None or time.monotonic() > deadline:
                where = ""
                with contextlib.suppress(OSError):
                    kept = Path(tempfile.gettempdir()) / "gridshift-demo-control-plane.log"
                    shutil.copy(log, kept)
                    where = f"; what it said is in {kept}"
                raise GridshiftError(f"the control plane did not start in time{where}")
            time.sleep(0.1)
        yield address
    finally:
        end_process(process, 15)


def submit_all(client: Client, workdir: Path, pace: Pace) -> list[str]:
    """Submit the dozen jobs; returns their ids."""
    shutil.copy(Path(__file__).with_name("demo_job.py"), workdir / "job.py")
    ids = []
    for name, steps, deadline_h, pausable, power_w in JOBS:
        step_s = STEP_S * pace.stretch
        runtime_s = (steps * step_s + pace.stretch) * pace.speed
        flex: dict[str, Any] = {}
        if deadline_h is not None:
            flex = {"deadline": f"{deadline_h}h", "runtime": f"{runtime_s:.0f}s", "pausable": pausable, "power_w": power_w}
        if pausable == "checkpoint":
            flex |= {"checkpoint_s": 5 * pace.stretch * pace.speed, "restart_s": 3 * pace.stretch * pace.speed}
        job = client.submit(
            f"python job.py {steps} {step_s:g}", submission_id=name, num_gpus=1, working_dir=str(workdir), group=None, **flex
        )
        ids.append(job.id)
    return ids


def call_scarcity(address: str, secret: str, now: datetime, length: timedelta) -> None:
    """Send the one event of the demonstration as a utility would: signed, over HTTP."""
    body = json.dumps(
        {
            "type": "power_budget",
            "data": {
                "event_id": "scarcity-1",
                "region": SCARCE_REGION,
                "start": now.isoformat(),
                "end": (now + length).isoformat(),
                "limit_w": 0,
                "reason": "scarcity: the grid operator asks for everything that can go",
            },
        }
    )
    sent_at, message_id = SystemClock().now(), f"msg_{secrets.token_hex(8)}"
    headers = {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(sent_at.timestamp())),
        "webhook-signature": Webhook(secret).sign(message_id, sent_at, body),
        "content-type": "application/json",
    }
    requests.post(f"{address}/v1/webhooks/utility", data=body, headers=headers, timeout=10).raise_for_status()


def _hhmm(value: str | None) -> str:
    return datetime.fromisoformat(value).strftime("%a %H:%M") if value else "-"


STYLE = {"running": "bold green", "succeeded": "green", "failed": "bold red", "pausing": "yellow", "paused": "bold yellow"}


def picture(status: dict[str, Any], regions: list[dict[str, Any]], jobs: list[Job]) -> Group:
    """The live view: time, regions, jobs with their sentences."""
    now, speed = datetime.fromisoformat(status["now"]), float(status["speed"])
    head = Text.assemble(
        ("gridshift demo  ", "bold"),
        f"{now:%a %H:%M}Z ",
        (f" time x{speed:g}: a day in {86400 / speed:.0f} s · synthetic prices and carbon · modelled energy", "dim"),
    )
    grid = Table(box=None, pad_edge=False)
    for title in ("region", "price now", "carbon now", "GPUs", "draw", "limit"):
        grid.add_column(title, justify="left" if title == "region" else "right")
    for r in regions:
        price, carbon = r.get("price") or {}, r.get("carbon") or {}
        budget = r.get("budget_w")
        grid.add_row(
            r["name"] if r["reachable"] else f"{r['name']} (unreachable)",
            "unknown" if price.get("now") is None else f"{price['now']:.0f} {price['unit']}",
            "unknown" if carbon.get("now") is None else f"{carbon['now']:.0f} g/kWh",
            f"{r['gpus_used']:g}/{r['gpus']:g}" if r.get("gpus") is not None else f"{r['gpus_used']:g}",
            kw(r["draw_w"]),
            Text("-" if budget is None else kw(budget), style="" if budget is None else "bold red"),
        )
    table = Table(box=None, pad_edge=False, expand=True)
    for title, width in (("job", 8), ("state", 9), ("region", 6)):
        table.add_column(title, no_wrap=True, min_width=width)
    table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=1)
    for job in jobs:
        table.add_row(job.id, Text(job.state, style=STYLE.get(job.state, "")), job["region"] or "-", job.reason)
    return Group(head, grid, Text(), table)


def result(address: str, client: Client, ids: list[str], pace: Pace, slowest_answer_s: float) -> dict[str, Any]:
    """The final object of ``gridshift demo --json``."""
    jobs = [client.get(job_id) for job_id in ids]
    savings = requests.get(f"{address}/v1/savings", timeout=30).json()
    totals = savings["totals"]
    keys = ("id", "region", "state", "deadline_at", "started_at", "finished_at", "pauses", "energy_kwh", "cost", "carbon_kg")
    rows = [{key: job[key] for key in keys} for job in jobs]
    wanted = ("energy_kwh", "cost", "cost_run_now", "carbon_kg", "carbon_kg_run_now", "deadline_misses")
    launches = launches_s((job.data for job in jobs), pace.speed)
    behind = why_behind(pace, launches, slowest_answer_s, totals["deadline_misses"])
    return {
        "jobs": rows,
        "energy_basis": savings["energy_basis"],
        "currency": savings["currency"],
        "time": f"replay, {pace.speed:g} times as fast as the wall clock",
        "signals": "synthetic",
        "totals": {key: totals[key] for key in wanted},
        "machine": {
            "kept_up": behind is None,
            "says": behind,
            "speed": pace.speed,
            "probe_s": round(pace.probe_s, 1),
            "launch_planned_s": round(pace.launch_s, 1),
            "launch_longest_s": round(max(launches), 1) if launches else None,
            "answer_longest_s": round(slowest_answer_s, 1),
        },
    }


def show(outcome: dict[str, Any], say: Console) -> None:
    """Print the final table."""
    table = Table(title="what ran where and when (synthetic prices, modelled energy)", box=None, padding=(0, 2, 0, 0))
    for title in ("job", "region", "started", "finished", "deadline", "paused", "kWh", "EUR", "kg CO2e"):
        table.add_column(title, justify="right" if title in ("paused", "kWh", "EUR", "kg CO2e") else "left", no_wrap=True)
    for job in outcome["jobs"]:
        number = [("unknown" if job[key] is None else f"{job[key]:.2f}") for key in ("energy_kwh", "cost", "carbon_kg")]
        times = [_hhmm(job[key]) for key in ("started_at", "finished_at", "deadline_at")]
        name = job["id"] if job["state"] == "succeeded" else f"{job['id']} ({job['state']})"
        table.add_row(name, job["region"] or "-", *times, str(job["pauses"]), *number)
    say.print(table)
    totals = outcome["totals"]
    for name, unit in (("cost", "EUR"), ("carbon_kg", "kg CO2e")):
        ours, base = totals[name], totals[f"{name}_run_now"]
        if ours is None or base is None:
            say.print(f"{name}: unknown")
        else:
            share = f"{(1 - ours / base) * 100:.0f} % less" if base > 0 else "no baseline"
            say.print(f"{unit}: {ours:.2f} against {base:.2f} if each job had run at once ({share})")
    say.print(f"missed deadlines: {totals['deadline_misses']}")
    if not outcome["machine"]["kept_up"]:
        say.print(outcome["machine"]["says"], style="bold yellow")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main(*, as_json: bool = False) -> int:
    """Run the demonstration; returns the exit code. Everything it started is gone at the end, also after Ctrl-C."""
    say = Console(stderr=as_json)
    signal.signal(signal.SIGTERM, _interrupt)
    secret = "whsec_" + base64.b64encode(secrets.token_bytes(24)).decode()
    base = Path(tempfile.mkdtemp(prefix="gsd"))
    try:
        with clusters(base, say) as rays:
            with phase(say, "measuring how fast this machine is ..."):
                pace = pace_for(probe(rays.values()))
            if pace.stretch > 1:
                say.print(
                    f"this machine took {pace.probe_s:.0f} s for a probe, so the clock runs {pace.stretch:g} times slower: "
                    f"a day in {86400 / pace.speed / 60:.0f} minutes",
                    style="yellow",
                )
            with control_plane(base, rays, secret, pace) as address:
                outcome = _play(address, base, secret, say, pace)
    except KeyboardInterrupt:
        print("interrupted; everything that was started has been stopped", file=sys.stderr)
        return 1
    except (GridshiftError, ClientError, requests.RequestException) as error:
        print(f"gridshift: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(base, ignore_errors=True)
    if as_json:
        if not outcome["machine"]["kept_up"]:
            print(outcome["machine"]["says"], file=sys.stderr)
        print(json.dumps(outcome))
    else:
        show(outcome, say)
    return 0 if all(job["state"] == "succeeded" for job in outcome["jobs"]) else 1


@dataclass(slots=True)
class Teller:
    """What is said where no terminal shows the picture: a line when something begins, and one now and then."""

    say: Console
    clock: Callable[[], float] = time.monotonic
    said_s: float = float("-inf")
    began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.began_s = self.clock()

    def line(self, text: str) -> None:
        """Say it, where nobody sees the picture."""
        if not self.say.is_terminal:
            self.say.print(f"{self.clock() - self.began_s:4.0f} s  {text}", soft_wrap=True)

    def look(self, status: dict[str, Any]) -> None:
        """How the jobs are, not too often."""
        if self.clock() - self.said_s >= SAY_EVERY_S:
            self.said_s = self.clock()
            counts = ", ".join(f"{count} {state}" for state, count in status["counts"].items() if count)
            self.line(f"{datetime.fromisoformat(status['now']):%a %H:%M}Z: {counts}")


def _play(address: str, base: Path, secret: str, say: Console, pace: Pace) -> dict[str, Any]:
    client, teller = Client(address), Teller(say)
    workdir = base / "job"
    workdir.mkdir()
    ids = submit_all(client, workdir, pace)
    teller.line(f"{len(ids)} jobs are submitted; a day passes in {86400 / pace.speed:.0f} s")
    started, called, slowest_answer_s = time.monotonic(), False, 0.0
    live = Live(console=say, refresh_per_second=4) if say.is_terminal else contextlib.nullcontext()
    with live as view:
        while True:
            asked = time.monotonic()
            status = requests.get(f"{address}/v1/status", timeout=30).json()
            slowest_answer_s = max(slowest_answer_s, time.monotonic() - asked)
            jobs = [client.get(job_id) for job_id in ids]
            elapsed_s = time.monotonic() - started
            in_the_way = any(
                job.state == "running" and job["region"] == SCARCE_REGION and job["pausable"] == "checkpoint" for job in jobs
            )
            if not called and elapsed_s >= SCARCITY_AFTER_S * pace.stretch and in_the_way:
                length = timedelta(seconds=SCARCITY_LENGTH_S * pace.stretch * pace.speed)
                call_scarcity(address, secret, datetime.fromisoformat(status["now"]), length)
                called = True
                teller.line(
                    f"scarcity: {SCARCE_REGION} may draw nothing for {length.total_seconds() / 3600:.0f} h of the replay"
                )
            teller.look(status)
            if view is not None:
                view.update(picture(status, requests.get(f"{address}/v1/regions", timeout=30).json()["regions"], jobs))
            if all(job.ended for job in jobs):
                if not called:
                    say.print("no pausable job ran in the scarce region, so scarcity was never called", style="yellow")
                return result(address, client, ids, pace, slowest_answer_s)
            if elapsed_s > LIMIT_S * pace.stretch:
                waiting = ", ".join(
                    f"{job['id']} is {job['state']} ({job['reason']})" for job in jobs if not job["finished_at"]
                )
                raise GridshiftError(f"not done after {LIMIT_S * pace.stretch:.0f} s: {waiting}")
            time.sleep(0.4)
