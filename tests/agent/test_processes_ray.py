"""A real Ray job with a task, an actor and children that drop their environment: every process is its job's, and it freezes."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from dispatcher.agent.devices import GpuProcess
from dispatcher.agent.freezing import Freezer
from dispatcher.agent.processes import ProcessTable, read_process
from dispatcher.local_ray import LocalRay
from tests.helpers import wait_until

pytestmark = pytest.mark.real

DRIVER = """
import json, os, subprocess, sys, time
from pathlib import Path
import ray

ray.init(address="auto", runtime_env={"env_vars": {"OWN": "1"}})
out = Path(sys.argv[1])

def bare():
    "A child without any environment of its own."
    return subprocess.Popen(["sleep", "600"], env={}).pid

@ray.remote(num_cpus=0)
class Actor:
    def pids(self):
        return [os.getpid(), bare()]

@ray.remote(num_cpus=1)
def task(out):
    pids = [os.getpid(), bare()]
    Path(out, "task").write_text(json.dumps(pids))
    while not Path(out, "end").exists():
        time.sleep(0.05)

actor = Actor.remote()
ref = task.remote(str(out))
pids = {"driver": [os.getpid(), bare()], "actor": ray.get(actor.pids.remote())}
while not (out / "task").exists():
    time.sleep(0.05)
pids["task"] = json.loads((out / "task").read_text())
(out / "pids.new").write_text(json.dumps(pids))
(out / "pids.new").rename(out / "pids")
ray.get(ref)
"""


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRay]:
    with LocalRay("agent", base_dir=tmp_path_factory.mktemp("ray"), num_cpus=4, num_gpus=0) as ray:
        yield ray


class Job:
    """A submitted job of that id, which waits until ``end``."""

    def __init__(self, head: LocalRay, job_id: str, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.job_id = folder, job_id
        self._url = f"{head.address}/api/jobs/"
        (folder / "driver.py").write_text(DRIVER)
        body = {
            "entrypoint": f"{sys.executable} {folder}/driver.py {folder}",
            "submission_id": f"{job_id}-1",
            "runtime_env": {"env_vars": {"GRIDSHIFT_JOB_ID": job_id, "GRIDSHIFT_ATTEMPT": "1"}},
        }
        requests.post(self._url, json=body, timeout=30).raise_for_status()

    def pids(self) -> dict[str, list[int]]:
        wait_until(lambda: (self.folder / "pids").exists() or self.status() == "FAILED", 90, "the job's processes")
        found: dict[str, list[int]] = json.loads((self.folder / "pids").read_text())
        return found

    def status(self) -> Any:
        return requests.get(f"{self._url}{self.job_id}-1", timeout=30).json()["status"]

    def end(self) -> None:
        (self.folder / "end").touch()


def stopped(pids: list[int]) -> list[bool]:
    found = [read_process(pid) for pid in pids]
    return [process is not None and process.is_stopped for process in found]


def test_every_process_of_a_ray_job_is_its_own_and_can_be_frozen(head: LocalRay, tmp_path: Path) -> None:
    jobs = [Job(head, name, tmp_path / name) for name in ("gs-one", "gs-two")]
    all_pids = {job.job_id: [pid for pids in job.pids().values() for pid in pids] for job in jobs}
    table = ProcessTable()

    # Asked without any earlier scan: Ray's workers still show their environment.
    owners = table.owners(GpuProcess(pid, 1, None, None) for pids in all_pids.values() for pid in pids)
    assert owners == {pid: job_id for job_id, pids in all_pids.items() for pid in pids}
    table.scan()
    ray_only = head.processes() - {process.pid for job in jobs for process in table.members(job.job_id)}
    assert {read.name for pid in ray_only if (read := read_process(pid))} >= {"raylet", "gcs_server"}

    freezer = Freezer(tmp_path / "state", table, "b")
    freezer.freeze("gs-one", ttl_s=120, freeze_max_s=600)
    assert all(stopped(all_pids["gs-one"])) and not any(stopped(all_pids["gs-two"]))
    assert not any(stopped(sorted(ray_only)))
    ours = head.processes()  # other clusters may run on this machine, with supervisors of their own
    supervisors = [pid for pid, why in table.protected().items() if pid in ours and why == "it answers the job's status"]
    assert len(supervisors) == 2 and not any(stopped(supervisors))

    # The cluster answers for a frozen job, and works for others.
    started = time.monotonic()
    assert [job.status() for job in jobs] == ["RUNNING", "RUNNING"]
    for job in jobs:
        job.end()
    wait_until(lambda: jobs[1].status() == "SUCCEEDED", 60, "the other job's end")
    assert jobs[0].status() == "RUNNING" and time.monotonic() - started < 60

    assert freezer.thaw("gs-one") >= 6
    wait_until(lambda: jobs[0].status() == "SUCCEEDED", 60, "the end of the job that was frozen")
