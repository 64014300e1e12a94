"""From a signed webhook to the last GPU's read-back limit, for bench_demand_response: the control plane is `gridshift serve`
itself in a process of its own, with its loops and its database; the agents are sessions over real websockets in another.

Run as a program, this file is those agents: each sets what it is ordered after its driver's lag, reads it back, answers, and
tells what its GPUs draw then. What their work would draw is fixed; nothing here is a GPU.
"""

import asyncio
import base64
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import requests
from standardwebhooks import Webhook

sys.path.insert(0, str(Path(__file__).parents[2]))

from dispatcher.api.patience import allow_many_files
from dispatcher.store import Attempt, Change, Job, Request
from dispatcher.store.migrate import upgrade
from dispatcher.store.sql import SqlStore
from policies.world import Flexibility, JobState
from tests.benchmarks.power_fleet import DEFAULT_W, hello, uuid
from tests.helpers import free_port, wait_until
from tests.real.harness import Plane, region

ROOT = Path(__file__).parents[2]
GPUS_A_NODE, PUE = 8, 1.25
#: From a driver's call to the limit that it reads back, s.
LAG_S = 0.25
#: Each agent tells its figures so often, s, and again when an order has changed them.
TELL_S = 5.0
SECRET = base64.b64encode(b"thirty-two bytes for a benchmark").decode()
METHOD = (
    "path: 'gridshift serve' with its own loops and SQLite, one running job a GPU in half of the nodes and one of eight GPUs "
    "in the others; agents as websocket sessions in a process of their own, which set a limit and read it back 0.25 s "
    "later; from before a signed webhook is sent until the last of the event's GPUs has read back its limit and, by what the "
    "drivers hold, the fleet's draw x PUE is below the event's; each event cuts 5 to 25 %, and is released by a signed webhook"
)


# --- the jobs -----------------------------------------------------------------------------------------------------


def job_of(node: int, at: int) -> str:
    """The job on a GPU: one of its own on even nodes, one of the whole node on odd ones."""
    return f"j-{node}-{at}" if node % 2 == 0 else f"j-{node}"


def full_w(node: int, at: int) -> float:
    """What a GPU's work draws without a cap, W."""
    return 500.0 + ((node * 31 + at * 57) % 200 if node % 2 == 0 else (node * 31) % 200)


def jobs_on(nodes: int, now: datetime) -> list[Job]:
    """The jobs that the agents will tell of."""
    tiers = ("flex-1", "flex-2", "flex-3", "flex-3")
    made = []
    for node in range(nodes):
        for at in range(GPUS_A_NODE if node % 2 == 0 else 1):
            gpus = 1.0 if node % 2 == 0 else float(GPUS_A_NODE)
            draw_w = gpus * full_w(node, at)
            flex = Flexibility(
                True, now + timedelta(days=2), None, 86400.0, True, gpus, draw_w, tier=tiers[(node + at) % 4],
                group=f"group-{node % 40}",
            )  # fmt: skip
            request = Request("python train.py", entrypoint_num_gpus=gpus)
            made.append(Job(job_of(node, at), request, flex, JobState.QUEUED, now, now))
    return made


def seed(folder: Path, jobs: Sequence[Job]) -> None:
    """A database of a control plane in ``folder`` in which these jobs run in "north", as an earlier one would have left it."""
    url = f"sqlite:///{folder}/data/gridshift.db"
    (folder / "data").mkdir(parents=True, exist_ok=True)
    upgrade(url)
    store, now = SqlStore(url, data_dir=folder / "data"), datetime.now(UTC)
    try:
        for first in range(0, len(jobs), 1000):
            some = jobs[first : first + 1000]
            for future in [store.add_job(job, "submitted") for job in some]:
                future.result(60)
            launch, run = [], []
            for job in some:
                attempt = Attempt(job.id, 1, "north", f"{job.id}-1", now, accepted_at=now)
                launch.append(
                    Change(job.id, now, "state", "starting in north", expect=JobState.QUEUED, to=JobState.LAUNCHING,
                           new_attempt=attempt, fields={"region": "north"})
                )  # fmt: skip
                run.append(
                    Change(job.id, now, "state", "running in north", expect=JobState.LAUNCHING, to=JobState.RUNNING,
                           fields={"started_at": now, "run_started_at": now}, attempt_fields={"started_at": now})
                )  # fmt: skip
            for changes in (launch, run):
                wrong = [one for one in store.apply(changes).result(60) if isinstance(one, Exception)]
                if wrong:
                    raise wrong[0]
    finally:
        store.close()


# --- the measurement ----------------------------------------------------------------------------------------------


class Utility:
    """Sends signed events to a control plane."""

    def __init__(self, address: str) -> None:
        self._url, self._http, self._sent = f"{address}/v1/webhooks/utility", requests.Session(), 0

    def send(self, kind: str, data: dict[str, Any]) -> float:
        """Send one; returns s until it was answered. Raises RuntimeError where it was not taken."""
        self._sent += 1
        body = json.dumps({"type": kind, "data": data})
        name, now = f"msg-{self._sent}", datetime.now(UTC)
        headers = {
            "webhook-id": name,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": Webhook(SECRET).sign(name, now, body),
            "content-type": "application/json",
        }
        began = time.monotonic()
        answer = self._http.post(self._url, data=body, headers=headers, timeout=60)
        if answer.status_code != 202:
            raise RuntimeError(f"{kind} was answered {answer.status_code}: {answer.text[:500]}")
        return time.monotonic() - began


@dataclass(frozen=True)
class Paths:
    """Of each event, s: until it was answered, until the last order had come at an agent, until all was read back and kept."""

    answered: list[float]
    ordered: list[float]
    kept: list[float]
    gpus_capped: int


@contextlib.contextmanager
def agents(port: int, nodes: int) -> "Iterator[Any]":
    """The agents' process; yields a function that asks it something, a line each way."""
    argv = [
        sys.executable,
        "-m",
        "tests.benchmarks.dr_path",
        f"ws://127.0.0.1:{port}/v1/agents/channel?region=north",
        str(nodes),
    ]
    with subprocess.Popen(argv, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        stdin: Any = process.stdin
        stdout: Any = process.stdout

        def ask(**what: Any) -> dict[str, Any]:
            stdin.write(json.dumps(what) + "\n")
            stdin.flush()
            return dict(json.loads(stdout.readline()))

        try:
            yield ask
        finally:
            stdin.close()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def paths(nodes: int, events: int) -> Paths:
    """So many events on so many nodes, one after the other."""
    allow_many_files()
    total_w = PUE * sum(full_w(node, at) for node in range(nodes) for at in range(GPUS_A_NODE))
    config = region("north", f"http://127.0.0.1:{free_port()}", 50.0, gpus=nodes * GPUS_A_NODE, pue=PUE) + (
        '\n[[event_source]]\nname = "utility"\nprotocol = "webhook"\nregion = "north"\nsecret_env = "UTILITY"\n'
        'response = "10s"\nrecovery_s = 0.0\n'
    )
    with tempfile.TemporaryDirectory(prefix="gsd") as name:
        folder = Path(name)
        seed(folder, jobs_on(nodes, datetime.now(UTC)))
        found = Paths([], [], [], 0)
        with Plane(folder, config, UTILITY=SECRET) as plane, agents(plane.port, nodes) as ask:
            utility = Utility(plane.address)
            wait_until(lambda: ask()["ready"] == nodes, 300, "all agents")
            http = requests.Session()

            def settled() -> bool:
                fleet = http.get(f"{plane.address}/v1/status", timeout=60)
                return fleet.ok and time.monotonic() - began > 15.0

            began = time.monotonic()
            wait_until(settled, 120, "the control plane to have looked at all of it")
            for number in range(events):
                limit_w = total_w * (0.95 - 0.2 * number / max(events - 1, 1))
                event_id = f"event-{number}"
                ask(event=event_id, limit_w=limit_w / PUE)
                began = time.monotonic()
                data = {"event_id": event_id, "region": "north", "limit_w": limit_w, "duration": "1h"}
                found.answered.append(utility.send("power_budget", data))
                kept: Any = wait_until(lambda: _kept(ask()), 60, f"{event_id} to be kept: {ask()}")
                found.ordered.append(kept["ordered_at"] - began)
                found.kept.append(max(kept["below_at"], kept["read_at"]) - began)
                most = max(found.gpus_capped, kept["capped"])
                found = Paths(found.answered, found.ordered, found.kept, most)
                print(
                    f"{nodes * GPUS_A_NODE} GPUs, {event_id}: {kept['capped']} limits, {found.kept[-1]:.2f} s", file=sys.stderr
                )
                utility.send("power_budget.cancelled", {"event_id": event_id})
                wait_until(lambda: ask()["leases"] == 0, 60, "its caps to go")
                # Events come at any moment of the loops' second; steps of a golden share of it walk over all of it evenly.
                time.sleep(TELL_S / 2 + number * 0.618 % 1.0)
        return found


def _kept(told: dict[str, Any]) -> dict[str, Any] | None:
    """The agents' answer, once what was asked is kept and no order has come for a second."""
    done = told["below_at"] is not None and told["ordered_at"] is not None
    return told if done and told["now"] - max(told["ordered_at"], told["below_at"]) > 1.0 else None


def figures(quick: bool) -> tuple[dict[str, float], list[tuple[str, str, float]]]:
    """The figures of 1,000 and of 10,000 GPUs, and their targets."""
    out: dict[str, float] = {}
    for nodes, events in ((125, 5 if quick else 40), (1250, 2 if quick else 30)):
        found = paths(nodes, events)
        name = f"path_{nodes * GPUS_A_NODE}"
        out |= {
            f"{name}_events": float(len(found.kept)),
            f"{name}_gpus_capped": float(found.gpus_capped),
            f"{name}_answered_p99_s": float(np.quantile(found.answered, 0.99)),
            f"{name}_ordered_p99_s": float(np.quantile(found.ordered, 0.99)),
            f"{name}_p50_s": float(np.quantile(found.kept, 0.5)),
            f"{name}_p99_s": float(np.quantile(found.kept, 0.99)),
            f"{name}_worst_s": max(found.kept),
        }
    return out, [("path_1000_p99_s", "<=", 2.0), ("path_10000_p99_s", "<=", 5.0)]


# --- the agents, as a program ---------------------------------------------------------------------------------------


@dataclass
class Node:
    """One node's agent: the leases that it keeps, by name, and the limits that its driver holds."""

    number: int
    leases: dict[str, tuple[str, float, float]] = field(default_factory=dict)
    ends_s: dict[str, float] = field(default_factory=dict)

    def limit_w(self, at: int) -> float:
        """Of one GPU."""
        name = uuid(self.number, at)
        return min([DEFAULT_W, *(limit_w for on, limit_w, _ in self.leases.values() if on == name)])

    def draw_w(self, at: int) -> float:
        """Of one GPU."""
        return min(full_w(self.number, at), self.limit_w(at))

    def live(self) -> str:
        """What it says each few seconds."""
        now = time.monotonic()
        gpus = [
            {"uuid": uuid(self.number, at), "power_w": self.draw_w(at), "limit_w": self.limit_w(at),
             "enforced_w": self.limit_w(at), "temperature_c": 60.0, "sm_util": 1.0, "throttle": [], "idle_state": "active",
             "jobs": [job_of(self.number, at)]}
            for at in range(GPUS_A_NODE)
        ]  # fmt: skip
        leases = [
            {
                "lease_id": name,
                "kind": "event",
                "uuid": on,
                "limit_w": limit_w,
                "epoch": 1,
                "reason": "",
                "ends_in_s": end - now,
            }
            for name, (on, limit_w, end) in self.leases.items()
        ]
        return json.dumps({"type": "live", "at": time.time(), "gpus": gpus, "frozen": [], "alarms": [], "leases": leases})


class Agents:
    """All nodes, and what is measured on them."""

    def __init__(self, nodes: int) -> None:
        self.nodes = [Node(number) for number in range(nodes)]
        self.drawn_w = sum(node.draw_w(at) for node in self.nodes for at in range(GPUS_A_NODE))
        self.ready = 0
        self.event, self.limit_w = "", float("inf")
        self.ordered_at: float | None = None
        self.read_at: float | None = None
        self.below_at: float | None = None
        self.seen: set[str] = set()

    def watch(self, event: str, limit_w: float) -> None:
        """From now on this event is measured; W at the GPUs."""
        self.event, self.limit_w, self.seen = event, limit_w, set()
        self.ordered_at = self.read_at = self.below_at = None

    async def session(self, url: str, node: Node) -> None:
        """One agent."""
        from websockets.asyncio.client import connect

        async with connect(url, max_size=1 << 20, compression=None, ping_interval=None) as socket:
            await socket.send(json.dumps(hello(node.number, GPUS_A_NODE)))
            await socket.send(node.live())
            self.ready += 1

            async def tell() -> None:
                await asyncio.sleep(TELL_S * node.number / len(self.nodes))
                while True:
                    await socket.send(node.live())
                    await asyncio.sleep(TELL_S)

            telling = asyncio.create_task(tell())
            obeying: set[asyncio.Task[None]] = set()
            try:
                async for text in socket:
                    frame = json.loads(text)
                    if frame["type"] == "orders":
                        task = asyncio.create_task(self._obey(node, socket, frame, time.monotonic()))
                        obeying.add(task)
                        task.add_done_callback(obeying.discard)
            finally:
                telling.cancel()

    async def _obey(self, node: Node, socket: Any, frame: dict[str, Any], came_at: float) -> None:
        await asyncio.sleep(LAG_S)
        before_w = sum(node.draw_w(at) for at in range(GPUS_A_NODE))
        first = [one for one in frame["set"] if self.event and f"event {self.event} " in one["lease_id"]]
        for one in frame["set"]:
            end = came_at + (one["ttl_s"] if one["ttl_s"] is not None else 1e9)
            node.leases[one["lease_id"]] = (one["uuid"], one["limit_w"], end)
        for name in frame["release"]:
            node.leases.pop(name, None)
        self.drawn_w += sum(node.draw_w(at) for at in range(GPUS_A_NODE)) - before_w
        now = time.monotonic()
        if new := {one["lease_id"] for one in first} - self.seen:
            self.seen |= new
            self.ordered_at, self.read_at = came_at, now
        if self.below_at is None and self.event and self.drawn_w <= self.limit_w:
            self.below_at = now
        results = [{"lease_id": one["lease_id"], "ok": True, "enforced_w": one["limit_w"]} for one in frame["set"]]
        results += [{"lease_id": name, "ok": True} for name in frame["release"]]
        await socket.send(json.dumps({"type": "results", "order": frame["order"], "results": results}))
        await socket.send(node.live())

    def told(self) -> dict[str, Any]:
        """How things stand."""
        return {
            "ready": self.ready, "ordered_at": self.ordered_at, "read_at": self.read_at, "below_at": self.below_at,
            "capped": len(self.seen), "leases": sum(len(node.leases) for node in self.nodes), "now": time.monotonic(),
        }  # fmt: skip


async def _run(url: str, nodes: int) -> None:
    found = Agents(nodes)
    sessions = []
    for node in found.nodes:
        sessions.append(asyncio.create_task(found.session(url, node)))
        if node.number % 50 == 49:
            while found.ready < node.number - 20:
                await asyncio.sleep(0.05)
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():  # the end of the input ends this program
        what = json.loads(line)
        if "event" in what:
            found.watch(what["event"], what["limit_w"])
        print(json.dumps(found.told()), flush=True)
    for session in sessions:
        session.cancel()
    await asyncio.gather(*sessions, return_exceptions=True)


if __name__ == "__main__":
    allow_many_files()
    asyncio.run(_run(sys.argv[1], int(sys.argv[2])))
