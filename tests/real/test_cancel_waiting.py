"""A job that is cancelled while it waits in a real Ray cluster: Ray runs its command for a moment when it drops it, so it is
not said to be cancelled before that."""

from pathlib import Path

import pytest
import requests

from tests.helpers import wait_until
from tests.real.harness import Plane, ray_clusters, region

pytestmark = pytest.mark.real


def test_a_cancelled_job_runs_nothing_once_it_is_said_to_be_cancelled(tmp_path: Path, short_tmp: Path) -> None:
    began = tmp_path / "began"
    with ray_clusters(short_tmp, "one") as rays, Plane(tmp_path, region("one", rays["one"].address, 40)) as plane:
        cpus = requests.get(f"{rays['one'].address}/api/v0/nodes?detail=true", timeout=10).json()
        total = cpus["data"]["result"]["result"][0]["resources_total"]["CPU"]

        def submit(job_id: str, entrypoint: str) -> None:
            body = {"entrypoint": entrypoint, "submission_id": job_id, "entrypoint_num_cpus": total}
            requests.post(f"{plane.address}/v1/jobs", json=body, timeout=10).raise_for_status()

        def told() -> str:
            reason: str = plane.job("next")["reason"]
            return reason

        submit("full", "sleep 300")
        plane.wait_state("full", "running")
        submit("next", f"while true; do echo runs >> {began}; sleep 0.1; done")
        wait_until(lambda: "next-1" in requests.get(f"{rays['one'].address}/api/jobs/", timeout=10).text, 30, "Ray to have it")
        requests.post(f"{plane.address}/api/jobs/next/stop", timeout=10).raise_for_status()
        wait_until(lambda: "has not begun it yet and drops it" in told(), 30, "it to wait for its end")
        assert plane.job("next")["state"] == "launching" and not began.exists()

        requests.post(f"{plane.address}/api/jobs/full/stop", timeout=10).raise_for_status()
        done = plane.wait_state("next", "cancelled", timeout_s=60)
        lines = began.read_text() if began.exists() else ""
        upstream = requests.get(f"{rays['one'].address}/api/jobs/next-1", timeout=10).json()
        assert upstream["status"] == "STOPPED" and done["attempts"][-1]["outcome"] == "stopped"
        print(f"its command ran {lines.count('runs')} rounds before it was said to be cancelled")
        submit("after", "sleep 1")
        plane.wait_state("after", "succeeded")
        assert (began.read_text() if began.exists() else "") == lines, "nothing of it runs after that"
