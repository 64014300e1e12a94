"""A real Ray on simulated GPUs: it counts them by itself, hands them out, and work on them is seen by NVML."""

import json
import sys
from collections.abc import Iterator

import pytest
import requests

from dispatcher.local_ray import LocalRay
from dispatcher.simgpu import SimGpus, environment
from tests.helpers import wait_until
from tests.simgpu.simulated import WORKLOAD

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalRay, SimGpus]]:
    folder = tmp_path_factory.mktemp("simgpu")
    gpus = SimGpus.create(folder / "gpus", 2)
    with LocalRay("simgpu", base_dir=folder, num_cpus=4, env=environment(gpus.path)) as ray:
        yield ray, gpus


def test_ray_counts_the_gpus_and_knows_their_type(node: tuple[LocalRay, SimGpus]) -> None:
    ray, _ = node
    nodes = requests.get(f"{ray.address}/api/v0/nodes", timeout=10).json()["data"]["result"]["result"]
    assert len(nodes) == 1
    resources = nodes[0]["resources_total"]
    assert resources["GPU"] == 2
    assert "accelerator_type:A100" in resources


def test_two_jobs_get_a_gpu_each_and_work_on_it(node: tuple[LocalRay, SimGpus]) -> None:
    ray, gpus = node
    ids = []
    for _ in range(2):
        body = {"entrypoint": f"{sys.executable} {WORKLOAD} --work-s 600", "entrypoint_num_gpus": 1}
        answer = requests.post(f"{ray.address}/api/jobs/", data=json.dumps(body), timeout=10)
        assert answer.ok, answer.text
        ids.append(answer.json()["submission_id"])
    wait_until(lambda: [gpu.power_w for gpu in gpus] == [380, 380], 90, "a job on each GPU")
    assert [len(gpu.pids) for gpu in gpus] == [1, 1] and gpus[0].pids != gpus[1].pids
    assert all(pid in ray.processes() for gpu in gpus for pid in gpu.pids)
    for id_ in ids:
        requests.post(f"{ray.address}/api/jobs/{id_}/stop", timeout=10)
    wait_until(lambda: [gpu.power_w for gpu in gpus] == [55, 55], 60, "the GPUs to be free")
