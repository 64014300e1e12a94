"""A job that may be frozen gives way where it runs: the same process stands still and goes on, and does nothing twice."""

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
import requests

from dispatcher.local_ray import LocalRay
from tests.helpers import wait_until
from tests.real.harness import Plane, region

pytestmark = pytest.mark.real

#: Writes "number pid time" each 0.2 s until it is told to end; says so when it is asked to stop.
WRITER = """
import os, signal, sys, time
out, end = sys.argv[1:]
with open(out, "a", buffering=1) as file:
    def stop(*_):
        file.write("asked to stop\\n")
        sys.exit(1)
    signal.signal(signal.SIGTERM, stop)
    number = 0
    while not os.path.exists(end):
        file.write(f"{number} {os.getpid()} {time.monotonic():.3f}\\n")
        print("line", number, flush=True)
        number += 1
        time.sleep(0.2)
"""
MOST_S = 30.0


class Writer:
    """A submitted writer and what it has written."""

    def __init__(self, plane: Plane, job_id: str, folder: Path, **metadata: str) -> None:
        self.plane, self.job_id = plane, job_id
        self.out, self.end = folder / f"{job_id}.out", folder / f"{job_id}.end"
        script = folder / "writer.py"
        script.write_text(WRITER)
        given = {"gridshift.pausable": "freeze", "gridshift.runtime": "10m", "gridshift.power_w": "1000"}
        given |= {f"gridshift.{key}": value for key, value in metadata.items()}
        told = ("--submission-id", job_id, "--metadata-json", json.dumps(given), "--no-wait")
        plane.ray("submit", *told, "--", "python", str(script), str(self.out), str(self.end))

    def lines(self) -> list[tuple[int, int, float]]:
        rows = [line.split() for line in self.out.read_text().splitlines() if line[0].isdigit()]
        return [(int(number), int(pid), float(at)) for number, pid, at in rows if at]

    def grows(self, timeout_s: float, what: str) -> float:
        """Wait until it writes again; how long that took."""
        before, began = len(self.lines()), time.monotonic()
        wait_until(lambda: len(self.lines()) > before, timeout_s, what)
        return time.monotonic() - began

    def gaps(self) -> list[float]:
        times = [at for _, _, at in self.lines()]
        return [later - at for at, later in itertools.pairwise(times) if later - at > 3.0]

    def is_frozen(self) -> bool:
        return self.plane.job(self.job_id)["frozen_at"] is not None

    def reasons(self) -> list[str]:
        return [event["reason"] for event in self.plane.gridshift("jobs", "events", self.job_id)["events"]]


def test_a_job_stands_still_during_an_event_and_goes_on(tmp_path: Path, short_tmp: Path) -> None:
    env = {"GRIDSHIFT_AGENT_DIR": str(short_tmp / "agent")}
    with (
        LocalRay("north", base_dir=short_tmp / "ray", num_cpus=4, env=env) as ray,
        Plane(tmp_path, region("north", ray.address, 50.0), GRIDSHIFT_AGENTS__DEPLOY="auto") as plane,
    ):
        writer = Writer(plane, "writer", tmp_path, freeze_max_s=f"{MOST_S:g}s")
        other = Writer(plane, "other", tmp_path)
        for one in (writer, other):
            plane.wait_state(one.job_id, "running")
            wait_until(one.out.exists, 20, "its first line")

        def agents() -> list[Any]:
            regions = requests.get(f"{plane.address}/v1/fleet", timeout=10).json()["regions"]
            return [node for one in regions for branch in one["branches"] for node in branch["nodes"] if not node["silent"]]

        wait_until(agents, 90, f"an agent; {plane.log.read_text()[-2000:]}")

        # 1. an event: both stand still where they run; to Ray they run
        plane.gridshift("events", "create", "--region", "north", "--limit-w", "100", "--duration", "14s", "--id", "call-1")
        wait_until(lambda: writer.is_frozen() and other.is_frozen(), 10, "the freeze")
        assert "call-1" in plane.job("writer")["reason"] and plane.job("writer")["state"] == "running"
        status = requests.get(f"{plane.address}/api/jobs/writer", timeout=10).json()
        assert status["status"] == "RUNNING" and "frozen where it runs" in status["message"]
        wait_until(lambda: time.monotonic() - writer.lines()[-1][2] > 3.0, 10, "it to stand still")

        # 2. one that is stopped meanwhile is woken, and ends in order
        began = time.monotonic()
        requests.post(f"{plane.address}/api/jobs/other/stop", timeout=10).raise_for_status()
        plane.wait_state("other", "cancelled", timeout_s=20)
        print(f"a frozen job was stopped in {time.monotonic() - began:.1f} s")
        assert other.out.read_text().endswith("asked to stop\n") and writer.is_frozen()

        # 3. the event ends: it goes on
        wait_until(lambda: not writer.is_frozen(), 20, "the thaw")
        writer.grows(3.0, "it to go on")
        assert "nothing keeps it frozen" in plane.job("writer")["reason"]
        print(f"stood still for {writer.gaps()} s")
        assert len(writer.gaps()) == 1 and 10.0 < writer.gaps()[0] < 20.0

        # 4. an open event, and the control plane dies: the agent wakes the job by itself
        plane.gridshift("events", "create", "--region", "north", "--limit-w", "100", "--id", "call-2")
        wait_until(writer.is_frozen, 10, "the second freeze")
        wait_until(lambda: time.monotonic() - writer.lines()[-1][2] > 2.0, 10, "it to stand still")
        plane.kill()
        writer.grows(MOST_S + 5.0, "its agent to wake it")
        plane.start()
        wait_until(lambda: not writer.is_frozen(), 40, f"the record to follow; {plane.job('writer')}")
        assert plane.job("writer")["reason"].startswith("runs on: ")

        def alarms() -> list[str]:
            told = requests.get(f"{plane.address}/v1/status", timeout=10).json()
            return [alarm["sentence"] for alarm in told["alarms"] if "writer cannot be frozen" in alarm["sentence"]]

        wait_until(lambda: any("it stood frozen before" in sentence for sentence in alarms()), 20, "an alarm that says so")
        plane.gridshift("events", "cancel", "call-2")
        wait_until(lambda: not writer.is_frozen(), 20, "it to run on")

        # 5. the same process wrote each line once, and it ends as any job does
        writer.end.touch()
        ended = plane.wait_state("writer", "succeeded", timeout_s=30)
        assert ended["attempt"] == 1 and ended["frozen_at"] is None and ended["energy_kwh"] > 0
        lines = writer.lines()
        assert [number for number, _, _ in lines] == list(range(len(lines))) and len({pid for _, pid, _ in lines}) == 1
        assert len(writer.gaps()) >= 2 and all(gap <= MOST_S for gap in writer.gaps()), writer.gaps()
        assert plane.ray("logs", "writer").count("line ") >= len(lines)
        print(*writer.reasons(), sep="\n")
