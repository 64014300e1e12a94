"""What power control costs and how good it is: agents' share of a core, caps for ten thousand GPUs, and how near the allocation
comes to the best there is. GPUs are simulated throughout; ``--quick`` watches the agent for a shorter while."""

import argparse
import contextlib
import gc
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from dispatcher.api.patience import allow_many_files
from dispatcher.config import Config
from dispatcher.power.caps import CapLoop
from dispatcher.power.hub import CapOrder, Hub
from dispatcher.simgpu import SimGpus
from policies.power_allocation import allocate
from policies.world import Budget, Flexibility, JobState, JobView, RegionView, World
from tests.api.fake import FakeServices, Server
from tests.benchmarks.common import report
from tests.benchmarks.power_fleet import a_site, live, optimum
from tests.helpers import wait_until
from tests.simgpu.simulated import child_environment, simulated, working

NODES, GPUS_A_NODE = 1250, 8
ROOT = Path(__file__).parents[2]
METHOD = (
    "agent: 'gridshift agent' with its supervisor on 8 GPUs of our simulated driver, a process at work on each and a cap on "
    "each renewed every 20 s, user and system time of all its processes; whole path: 1,250 sessions of 8 simulated GPUs in a "
    "process of their own over websockets to the real endpoint, one job a GPU, an event begins: from the beginning of the "
    "power loop's round to the last order read by an agent; compute: the round alone; control_plane_cpu_s: time of all threads "
    "on the control plane's side until the last answer; medians of the rounds; allocation: site and 50 branch limits binding, "
    "all tiers, three GPU types, a tenth of the jobs of eight on two branches, against a linear programme on the same concave "
    "curves, worst of the cases"
)


# --- the agent ----------------------------------------------------------------------------------------------------


def cpu_s(pids: set[int]) -> float:
    """User and system time of these processes so far, s."""
    total = 0.0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def family(pid: int) -> set[int]:
    """A process and all that descend from it."""
    found, new = {pid}, {pid}
    while new:
        children: set[int] = set()
        for parent in new:
            for task in Path(f"/proc/{parent}/task").iterdir():
                with contextlib.suppress(OSError):
                    children |= {int(child) for child in (task / "children").read_text(encoding="ascii").split()}
        new = children - found
        found |= new
    return found


def agent_cost(watch_s: float) -> dict[str, float]:
    """The agent's share of a core on a node of eight busy, capped GPUs, %."""
    with tempfile.TemporaryDirectory(prefix="gsp") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        gpus: SimGpus = stack.enter_context(simulated(folder, 8))
        services = FakeServices(folder)
        server = stack.enter_context(Server(services))
        for at in range(8):
            stack.enter_context(working(gpus, visible=str(at), GRIDSHIFT_JOB_ID=f"job-{at}"))
        argv = [sys.executable, "-m", "dispatcher.cli", "agent", "--server", server.url, "--region", "north"]
        argv += ["--node-id", "n1", "--state-dir", str(folder / "state")]
        agent = stack.enter_context(_child(argv, env=child_environment(gpus)))
        hub: Hub = services.hub
        wait_until(lambda: any(node.connected and node.can_cap for node in hub.nodes()), 60, "the agent to connect")
        orders = [CapOrder(f"bench {at}", "economic", "n1", gpus[at].uuid, 250.0, 60.0, "a benchmark") for at in range(8)]
        results = hub.order_caps(orders).result(20)
        if not all(one.ok for one in results):
            raise RuntimeError(f"caps were not set: {[one.error for one in results if not one.ok]}")
        time.sleep(5.0)  # what it takes to start is not what it costs
        pids = family(agent.pid)
        before, began = cpu_s(pids), time.monotonic()
        renewed = began
        while time.monotonic() - began < watch_s:
            time.sleep(0.5)
            if time.monotonic() - renewed > 20.0:
                renewed = time.monotonic()
                hub.order_caps(orders)
        spent, took = cpu_s(pids) - before, time.monotonic() - began
    return {"agent_core_pct": 100.0 * spent / took, "agent_caps_took_s": max(one.took_s or 0.0 for one in results)}


@contextlib.contextmanager
def _child(argv: list[str], **more: Any) -> "Iterator[subprocess.Popen[str]]":
    with subprocess.Popen(argv, cwd=ROOT, text=True, **more) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


# --- ten thousand GPUs --------------------------------------------------------------------------------------------


def a_world(limit_w: float | None) -> World:
    """One job a GPU; an event when a limit is given."""
    now = datetime.now(UTC)
    tiers = ("flex-1", "flex-2", "flex-3", "flex-3")
    jobs = []
    for node in range(NODES):
        for at in range(GPUS_A_NODE):
            flex = Flexibility(
                True, None, None, 86400.0, True, 1.0, 600.0, tier=tiers[(node + at) % 4], group=f"group-{node % 40}"
            )
            jobs.append(
                JobView(
                    f"j-{node}-{at}", JobState.RUNNING, now, now, flex, 86400.0, region="north", run_started_at=now, attempt=1
                )
            )
    end = now + timedelta(hours=1)
    budgets = () if limit_w is None else (Budget("north", now, end, limit_w, "bench", "a benchmark's event"),)
    return World(now, tuple(jobs), (RegionView("north", True, None, None, None, None, None, pue=1.25),), budgets)


def whole_path(rounds: int) -> dict[str, float]:
    """Seconds until ten thousand GPUs have their caps; the median of some rounds, each with an event of its own."""
    allow_many_files()
    full_w = sum(gpu["power_w"] for node in range(NODES) for gpu in live(node, GPUS_A_NODE)["gpus"]) * 1.25
    compute, cpu, cpu_all, sent, answered, count = [], [], [], [], [], 0
    with tempfile.TemporaryDirectory(prefix="gsp") as name, contextlib.ExitStack() as stack:
        services = FakeServices(Path(name))
        server = stack.enter_context(Server(services))
        hub: Hub = services.hub
        url = f"{server.url.replace('http', 'ws')}/v1/agents/channel?region=north"
        argv = [sys.executable, "-m", "tests.benchmarks.power_fleet", url, str(NODES), str(GPUS_A_NODE)]
        agents = stack.enter_context(_child(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        stdin: Any = agents.stdin
        stdout: Any = agents.stdout
        stack.callback(stdin.close)

        def told() -> dict[str, Any]:
            stdin.write("?\n")
            stdin.flush()
            return dict(json.loads(stdout.readline()))

        wait_until(lambda: sum(node.connected and bool(node.gpus[0].jobs) for node in hub.nodes()) == NODES, 300, "all agents")
        region = {"name": "north", "address": "http://north", "price": [{"feed": "synthetic"}]}
        config = Config.model_validate({"region": [region]})
        free = a_world(None)
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)  # as the control plane does
        for number in range(rounds):
            loop = CapLoop(config, hub)
            loop.power(free, free.now)  # as each second before: draws are known
            world = a_world((0.9 - 0.05 * number) * full_w)
            before = told()["caps"]
            futures = []
            order_caps = hub.order_caps

            def keep(orders: Any, releases: Any = (), order_caps: Any = order_caps, futures: list[Any] = futures) -> Any:
                futures.append(order_caps(orders, releases))
                return futures[-1]

            hub.order_caps = keep  # type: ignore[method-assign]
            loop._answers.clear()
            began, began_cpu, began_all = time.monotonic(), time.thread_time(), time.process_time()
            loop.power(world, world.now)
            compute.append(time.monotonic() - began)
            cpu.append(time.thread_time() - began_cpu)
            results = futures[0].result(30)
            answered.append(time.monotonic() - began)
            cpu_all.append(time.process_time() - began_all)
            hub.order_caps = order_caps  # type: ignore[method-assign]
            state = told()
            sent.append(state["last"] - began)
            count = state["caps"] - before
            if count != len(results) or not all(one.ok for one in results):
                raise RuntimeError(f"{count} orders came, {len(results)} were sent")
            if number == rounds - 1:
                break
            loop.power(free, world.now)  # the event is over: all is released, and the next round begins in peace
            wait_until(partial(_has_answers, loop, count), 30, "the releases to be done")
    return {
        "gpus": float(NODES * GPUS_A_NODE),
        "gpus_capped": float(count),
        "caps_compute_s": median(compute),
        "caps_compute_cpu_s": median(cpu),
        "control_plane_cpu_s": median(cpu_all),
        "caps_sent_s": median(sent),
        "caps_sent_worst_s": max(sent),
        "caps_answered_s": median(answered),
    }


def _has_answers(loop: CapLoop, count: int) -> bool:
    return len(loop._answers) >= count


def allocation(quick: bool) -> dict[str, float]:
    """How far the allocation is from the best, %, and how long it takes for 10,000 GPUs, s."""
    gaps, took = [], []
    for seed, share in enumerate((0.9, 0.8) if quick else (0.95, 0.9, 0.85, 0.8, 0.75, 0.7)):
        units, tree = a_site(10_000, 50, share, seed)
        began = time.perf_counter()
        found = allocate(units, tree)
        took.append(time.perf_counter() - began)
        load = np.bincount(units.leaf, weights=found.draw_w * units.gpus, minlength=len(tree.names)) * tree.pue
        load[0] = load.sum()
        if np.any(load > tree.limit_w + 1e-3):
            raise RuntimeError("a limit is broken")
        gaps.append(100.0 * (1.0 - found.throughput / optimum(units, tree)))
    return {"allocation_gap_pct": max(gaps), "allocation_s": max(took)}


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="watch the agent for 10 s instead of 60 s, fewer cases")
    quick = parser.parse_args().quick
    logging.getLogger("uvicorn.error").disabled = True  # it tells of its own end as of a fault
    figures = allocation(quick) | whole_path(1 if quick else 5) | agent_cost(10.0 if quick else 60.0)
    wanted: list[tuple[str, str, float]] = [
        ("agent_core_pct", "<=", 1.0),
        ("caps_sent_s", "<=", 1.0),
        ("allocation_gap_pct", "<=", 1.0),
        ("allocation_s", "<=", 1.0),
    ]
    return report("power", figures, wanted, METHOD)


if __name__ == "__main__":
    sys.exit(main())
