"""Ten thousand GPUs for bench_power: their jobs, their power tree, the linear programme that judges an allocation, and their
agents as sessions over real websockets, which this file runs as a program of its own."""

import asyncio
import contextlib
import json
import resource
import sys
import time
from typing import Any

import numpy as np

from policies.cap_model import GRID, Learned
from policies.power_allocation import TIER_LOSS, Tree, Units, segments, speed_at

TIERS = tuple(TIER_LOSS)
DEFAULT_W, MIN_W = 700.0, 200.0


def a_site(gpus: int, branches: int, share: float, seed: int, spread: float = 0.1) -> tuple[Units, Tree]:
    """Single GPUs and jobs of eight, drawing 50 to 100 % of their limits, of all tiers; ``spread`` of the jobs of eight lie on
    two branches. The site may draw ``share`` of what all draw uncapped, each branch between that and all of it."""
    rng = np.random.default_rng(seed)
    learned = Learned()
    rows: list[tuple[int, float, Any, float, int]] = []
    count, job = 0, 0
    while count < gpus:
        size = 8 if rng.random() < 0.5 and gpus - count >= 8 else 1
        draw, tier = round(float(rng.uniform(0.5, 1.0)), 2), TIERS[int(rng.integers(0, 4))]
        curve = learned.curve(None, str(rng.choice(["H100", "A40", "V100"])), draw)
        low = DEFAULT_W * (curve.draw if tier == "flex-0" else min(curve.draw, max(0.5, curve.least_cap(TIER_LOSS[tier]))))
        leaf = 1 + int(rng.integers(0, branches))
        if size == 8 and rng.random() < spread:
            rows += [(leaf, 4.0, curve, low, job), (1 + leaf % branches, 4.0, curve, low, job)]
        else:
            rows.append((leaf, float(size), curve, low, job))
        count, job = count + size, job + 1
    units = Units(
        leaf=np.array([row[0] for row in rows], dtype=np.int64),
        gpus=np.array([row[1] for row in rows]),
        watts=np.array([[DEFAULT_W * cap for cap in row[2].caps] for row in rows]).reshape(len(rows), len(GRID) + 1),
        speed=np.array([[*row[2].speed, 1.0] for row in rows]).reshape(len(rows), len(GRID) + 1),
        full_w=np.array([DEFAULT_W * row[2].draw for row in rows]),
        low_w=np.array([row[3] for row in rows]),
        weight=np.ones(len(rows)),
        job=np.array([row[4] for row in rows], dtype=np.int64),
        pause_rank=np.full(len(rows), np.nan),
    )
    pue = 1.25
    full = np.bincount(units.leaf, weights=units.full_w * units.gpus, minlength=branches + 1) * pue
    low_sum = np.bincount(units.leaf, weights=units.low_w * units.gpus, minlength=branches + 1) * pue
    limits = np.maximum(full * rng.uniform(share, 1.0, branches + 1), low_sum)
    limits[0] = max(full.sum() * share, low_sum.sum())
    names = ("site", *(f"branch {at}" for at in range(branches)))
    parent = np.array([-1] + [0] * branches, dtype=np.int64)
    return units, Tree(names, parent, limits, np.zeros(branches + 1), pue)


def optimum(units: Units, tree: Tree) -> float:
    """The best weighted throughput by a linear programme over the same concave curves; all parts of a job under one cap."""
    import highspy

    width, gain = segments(units, units.full_w)
    rows_of = {job: np.flatnonzero(units.job == job) for job in set(units.job[np.bincount(units.job)[units.job] > 1].tolist())}
    entries: list[tuple[float, float, dict[int, float]]] = []
    for at in range(len(units.leaf)):
        parts = rows_of.get(int(units.job[at]), np.array([at]))
        if parts[0] != at:
            continue
        loads: dict[int, float] = {}
        for part in parts:
            for node in {int(units.leaf[part]), 0}:
                loads[node] = loads.get(node, 0.0) + float(units.gpus[part]) * tree.pue
        total = float(units.gpus[parts].sum())
        entries += [(float(width[at, k]), float(gain[at, k]) * total, loads) for k in range(width.shape[1]) if width[at, k] > 0]
    low = np.bincount(units.leaf, weights=units.low_w * units.gpus, minlength=len(tree.names)) * tree.pue
    low[0] = low.sum()
    programme = highspy.HighsLp()
    programme.num_col_, programme.num_row_ = len(entries), len(tree.names)
    programme.col_cost_ = np.array([-value for _, value, _ in entries])
    programme.col_lower_, programme.col_upper_ = np.zeros(len(entries)), np.array([most for most, _, _ in entries])
    programme.row_lower_ = np.full(len(tree.names), -highspy.kHighsInf)
    programme.row_upper_ = np.maximum(tree.limit_w - tree.fixed_w - low, 0.0)
    programme.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    programme.a_matrix_.start_ = np.concatenate(([0], np.cumsum([len(loads) for _, _, loads in entries])))
    programme.a_matrix_.index_ = np.array([node for _, _, loads in entries for node in loads])
    programme.a_matrix_.value_ = np.array([load for _, _, loads in entries for load in loads.values()])
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.passModel(programme)
    solver.run()
    lowest = float(np.sum(units.weight * units.gpus * speed_at(units, units.low_w)))
    return lowest - float(solver.getInfo().objective_function_value)


# --- agents -------------------------------------------------------------------------------------------------------


def hello(node: int, gpus: int) -> dict[str, Any]:
    """What the agent of a simulated node says first."""
    return {
        "type": "hello",
        "protocol": 1,
        "node": {"node_id": f"n{node:05d}", "hostname": f"host-{node:05d}", "branch": f"rack-{node % 50}", "simulated": True},
        "can_cap": True,
        "why_not": "",
        "gpus": [
            {"uuid": uuid(node, at), "index": at, "name": "NVIDIA H100 80GB HBM3", "min_w": MIN_W, "max_w": DEFAULT_W,
             "default_w": DEFAULT_W}
            for at in range(gpus)
        ],
        "leases": [],
        "epoch": 0,
    }  # fmt: skip


def uuid(node: int, gpu: int) -> str:
    """The name of a simulated GPU."""
    return f"GPU-{node:05d}-{gpu}"


def live(node: int, gpus: int) -> dict[str, Any]:
    """What it says each second: each GPU runs a job of its own at 500 to 700 W."""
    return {
        "type": "live",
        "at": time.time(),
        "gpus": [
            {"uuid": uuid(node, at), "power_w": 500.0 + (node * 31 + at * 57) % 200, "limit_w": DEFAULT_W, "enforced_w":
            DEFAULT_W,
             "temperature_c": 60.0, "sm_util": 1.0, "throttle": [], "idle_state": "active", "jobs": [f"j-{node}-{at}"]}
            for at in range(gpus)
        ],
        "frozen": [],
        "alarms": [],
    }  # fmt: skip


async def _session(url: str, node: int, gpus: int, told: dict[str, Any]) -> None:
    from websockets.asyncio.client import connect

    async with connect(url, max_size=1 << 20, compression=None, ping_interval=None) as socket:
        await socket.send(json.dumps(hello(node, gpus)))
        await socket.send(json.dumps(live(node, gpus)))
        told["ready"] += 1

        async def tell() -> None:
            await asyncio.sleep(5.0 * node / max(told["nodes"], 1))
            while True:
                await socket.send(json.dumps(live(node, gpus)))
                await asyncio.sleep(5.0)

        telling = asyncio.create_task(tell())
        try:
            async for text in socket:
                at = time.monotonic()
                frame = json.loads(text)
                said = [{"lease_id": one["lease_id"], "ok": True, "enforced_w": one["limit_w"]} for one in frame["set"]]
                said += [{"lease_id": name, "ok": True} for name in frame["release"]]
                told["caps"] += len(frame["set"])
                told["last"] = at
                await socket.send(json.dumps({"type": "results", "order": frame["order"], "results": said}))
        finally:
            telling.cancel()


async def _run(url: str, nodes: int, gpus: int) -> None:
    told: dict[str, Any] = {"ready": 0, "caps": 0, "last": 0.0, "nodes": nodes}
    sessions = []
    for node in range(nodes):
        sessions.append(asyncio.create_task(_session(url, node, gpus, told)))
        if node % 50 == 49:
            while told["ready"] < node - 20:
                await asyncio.sleep(0.05)
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():  # each line asks how things stand; the end of the input ends this program
        print(json.dumps(told), flush=True)
    for session in sessions:
        session.cancel()
    await asyncio.gather(*sessions, return_exceptions=True)


if __name__ == "__main__":
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    asyncio.run(_run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
