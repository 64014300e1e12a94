"""Agents on a real Ray with simulated GPUs, sent there by a control plane that is a process of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from dispatcher.local_ray import LocalRay
from dispatcher.simgpu import SimGpus, environment
from tests.helpers import wait_until
from tests.real.harness import Plane, region
from tests.real.nodes import raylets, second_node
from tests.simgpu.simulated import WORKLOAD

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]


class OrderingPlane(Plane):
    """A control plane that tests can make order limits."""

    def __init__(self, base: Path, config: str) -> None:
        self.orders = base / "orders"
        self.orders.mkdir()
        super().__init__(base, config, TEST_ORDERS=str(self.orders), PYTHONPATH=str(ROOT), GRIDSHIFT_AGENTS__DEPLOY="auto")

    def start(self) -> "OrderingPlane":
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.agent.ordering_plane", "serve", "--config", str(self.config)],
                env=self.env,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        wait_until(self.ready, 60, f"the control plane ({self.log.read_text()[-1500:]})")
        return self

    def order(self, *caps: dict[str, Any], releases: tuple[dict[str, Any], ...] = ()) -> list[dict[str, Any]]:
        """Order limits and wait for what comes of it."""
        name = f"{time.monotonic_ns()}"
        new = self.orders / f"{name}.draft"
        new.write_text(json.dumps({"caps": caps, "releases": releases}))
        new.rename(self.orders / f"{name}.order")
        answer = self.orders / f"{name}.results"
        wait_until(answer.exists, 40, "the results")
        results: list[dict[str, Any]] = json.loads(answer.read_text())
        return results

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes as the fleet view tells them."""
        return [node for branch in self.branches() for node in branch["nodes"]]

    def branches(self) -> list[dict[str, Any]]:
        """The branches as the fleet view tells them."""
        answer = requests.get(f"{self.address}/v1/fleet", timeout=10)
        answer.raise_for_status()
        return [branch for region in answer.json()["regions"] for branch in region["branches"]]


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A folder with a short path, for Ray's sockets."""
    path = Path(tempfile.mkdtemp(prefix="gsa"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def gpus(short_tmp: Path) -> SimGpus:
    return SimGpus.create(short_tmp / "simgpu", 2)


@pytest.fixture
def ray(short_tmp: Path, gpus: SimGpus) -> Iterator[LocalRay]:
    env = {**environment(gpus.path, base={}), "GRIDSHIFT_AGENT_DIR": str(short_tmp / "agent")}
    with LocalRay("north", base_dir=short_tmp / "ray", num_cpus=4, env=env) as running:
        yield running


def agent_jobs(ray: LocalRay) -> list[dict[str, Any]]:
    jobs = requests.get(f"{ray.address}/api/jobs/", timeout=10).json()
    return [job for job in jobs if str(job["submission_id"]).startswith("gridshift-agents-")]


def actor_pids(ray: LocalRay) -> list[int]:
    found = []
    for pid in ray.processes():
        try:
            if b"ray::NodeAgent" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found


def test_agents_come_with_ray_measure_cap_and_survive(short_tmp: Path, gpus: SimGpus, ray: LocalRay) -> None:
    with OrderingPlane(short_tmp, region("north", ray.address, 50.0)) as plane:
        # 1. the control plane sends the agents by itself, and sees the node
        (node,) = wait_until(plane.nodes, 90, f"the node; {plane.log.read_text()[-2000:]}")  # type: ignore[misc]
        assert {gpu["uuid"] for gpu in node["gpus"]} == {gpu.uuid for gpu in gpus} and node["simulated"]
        (job,) = agent_jobs(ray)
        assert job["metadata"]["gridshift.role"] == "agents" and job["status"] == "RUNNING"
        assert requests.get(f"{plane.address}/v1/jobs", timeout=10).json()["jobs"] == []  # ours is nobody's job

        # 2. a user's job is seen with its draw
        work = ("python", str(WORKLOAD), "--work-s", "600")
        plane.ray("submit", "--no-wait", "--submission-id", "busy", "--entrypoint-num-gpus", "1", "--", *work)

        def busy_gpu() -> dict[str, Any] | None:
            found = [gpu for one in plane.nodes() for gpu in one["gpus"] if "busy" in (gpu["jobs"] or ())]
            seen = [gpu for gpu in found if (gpu["power_w"] or 0) > 300]
            return seen[0] if seen else None

        busy: Any = wait_until(busy_gpu, 60, "the job's draw")
        driver = SimGpus.open(gpus.path).by_uuid(busy["uuid"])
        assert driver.limit_w == 400.0

        # 3. an order caps it; the driver itself says so
        cap = {"lease_id": "l1", "kind": "economic", "node_id": node["node_id"], "uuid": busy["uuid"], "limit_w": 250.0}
        (result,) = plane.order({**cap, "ttl_s": 25.0, "reason": "a test"})
        assert result["ok"] and result["enforced_w"] == 250.0 and driver.limit_w == 250.0
        capped_at = time.monotonic()

        # 4. the agent is killed and comes back, and the lease ends when it should
        (pid,) = actor_pids(ray)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: (pids := actor_pids(ray)) and pid not in pids, 20, "the agent to come back")
        assert driver.limit_w == 250.0
        wait_until(lambda: driver.limit_w == 400.0, 40, "the limit to be given back")
        assert 24.0 < time.monotonic() - capped_at < 35.0

        # 5. the control plane is killed and comes back: the same agents, and no second job
        plane.kill()
        plane.start()
        wait_until(lambda: any(not one["silent"] for one in plane.nodes()), 30, "the agent to connect again")
        assert [one["submission_id"] for one in agent_jobs(ray)] == [job["submission_id"]]
        assert plane.order({**cap, "ttl_s": 5.0, "reason": "again"})[0]["ok"]

        # 6. a node that joins gets its agent, which knows its branch
        more = SimGpus.create(short_tmp / "more", 1)
        joining = second_node(ray, more, short_tmp / "agent-2")

        def joined() -> dict[str, Any] | None:
            return next((one for one in plane.nodes() if any(gpu["uuid"] == more[0].uuid for gpu in one["gpus"])), None)

        wait_until(lambda: len(raylets(ray)) == 2, 60, "the second node")
        began = time.monotonic()
        second: Any = wait_until(joined, 90, f"its agent; {plane.log.read_text()[-1000:]}")
        print(f"the new node's agent was heard {time.monotonic() - began:.1f} s after its raylet began")
        (branch,) = [one for one in plane.branches() if second["node_id"] in ids(one)]
        assert branch["name"] == "rack-2"

        # 7. Ray is killed there, and its agent with it: the limit is given back all the same
        cap |= {"node_id": second["node_id"], "uuid": more[0].uuid}
        assert plane.order({**cap, "ttl_s": 12.0, "reason": "a test"})[0]["ok"] and more[0].limit_w == 250.0
        ends_s = time.monotonic() + 12.0
        argvs = raylets(ray)
        os.kill(max(argvs), signal.SIGKILL)
        joining.kill()
        joining.wait(10)
        wait_until(lambda: more[0].limit_w == 400.0, 40, "the limit to be given back")
        assert -1.0 < time.monotonic() - ends_s < 10.0
        silent: Any = wait_until(lambda: [one for one in plane.nodes() if one["silent"]], 30, "the node to be silent")
        assert [one["node_id"] for one in silent] == [second["node_id"]] and silent[0]["gpus"][0]["power_w"] is None


def ids(branch: dict[str, Any]) -> list[str]:
    return [node["node_id"] for node in branch["nodes"]]
