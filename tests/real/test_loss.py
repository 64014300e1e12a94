"""A Ray head that dies and comes back: checkpoint jobs go on from their checkpoint, others are told lost, neighbours do not
notice."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import requests

from tests.helpers import wait_until
from tests.real.harness import Plane, ray_clusters, region

pytestmark = pytest.mark.real

STEPS = 40
FLEX = {"gridshift.deadline": "2h", "gridshift.runtime": "30s", "gridshift.checkpoint_s": "20", "gridshift.restart_s": "5"}


def test_a_lost_head_loses_no_job_and_runs_none_twice_at_once(tmp_path: Path, short_tmp: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    shutil.copy(Path(__file__).with_name("stepper.py"), work / "job.py")
    steps = tmp_path / "steps.txt"
    with ray_clusters(short_tmp, "one", "two") as rays:
        config = region("one", rays["one"].address, 40) + region("two", rays["two"].address, 90)
        with Plane(tmp_path, config) as plane:
            metadata = {**FLEX, "gridshift.pausable": "checkpoint", "gridshift.regions": "one"}
            arguments = ["--metadata-json", json.dumps(metadata), "--working-dir", str(work), "--no-wait", "--submission-id"]
            plane.ray("submit", *arguments, "stepper", "--", "python", "job.py", str(STEPS), "0.5", str(steps))
            for job_id, where in (("plain", "one"), ("neighbour", "two")):
                body = {"entrypoint": "sleep 25", "submission_id": job_id}
                body["metadata"] = {**FLEX, "gridshift.regions": where}  # type: ignore[assignment]
                requests.post(f"{plane.address}/v1/jobs", json=body, timeout=10).raise_for_status()
            for job_id in ("stepper", "plain", "neighbour"):
                plane.wait_state(job_id, "running", timeout_s=60)

            rays["one"].kill()

            def unreachable() -> bool:
                regions = requests.get(f"{plane.address}/v1/regions", timeout=10).json()["regions"]
                return not next(r for r in regions if r["name"] == "one")["reachable"]

            wait_until(unreachable, 30, "the loss to be noticed")
            assert plane.job("stepper")["state"] == "running", "unknown moves nothing"
            assert plane.job("plain")["state"] == "running"
            rays["one"].start()

            lost = plane.wait_state("plain", "failed", timeout_s=60)
            assert "lost" in lost["reason"] and "max_attempts" in lost["reason"]
            plane.wait_state("neighbour", "succeeded", timeout_s=60)
            done = plane.wait_state("stepper", "succeeded", timeout_s=120)
            assert [a["outcome"] for a in done["attempts"]] == ["lost", "succeeded"]
    lines = steps.read_text().splitlines()
    second = next(n for n, line in enumerate(lines) if line.startswith("start attempt=2"))
    assert "end" not in lines[:second], "the first attempt never ended by itself"
    # no checkpoint was asked for, so the second attempt begins anew; the first wrote nothing more once it had begun
    assert lines[second + 1 : second + 1 + STEPS] == [f"step {n}" for n in range(STEPS)]


#: It does not know of gridshift: a process below a process tells that it lives, beside one that left its process group.
BEATS = (
    'sh -c \'setsid sh -c "while sleep 0.1; do date +%s.%N; done >> \\"$1.own.$GRIDSHIFT_ATTEMPT\\"" &'
    ' while sleep 0.1; do date +%s.%N; done >> "$1.$GRIDSHIFT_ATTEMPT"\' beats {beats}; echo never'
)


def test_what_a_lost_head_leaves_running_is_ended_before_the_job_begins_anew(tmp_path: Path, short_tmp: Path) -> None:
    def beats(name: str) -> list[float]:
        path = tmp_path / f"beats.{name}"
        return [float(line) for line in path.read_text().splitlines()] if path.exists() else []

    with ray_clusters(short_tmp, "one") as rays, Plane(tmp_path, region("one", rays["one"].address, 40)) as plane:
        metadata = {**FLEX, "gridshift.max_attempts": "2"}
        body = {"entrypoint": BEATS.format(beats=tmp_path / "beats"), "submission_id": "beats", "metadata": metadata}
        requests.post(f"{plane.address}/v1/jobs", json=body, timeout=10).raise_for_status()
        wait_until(lambda: len(beats("1")) > 5 and len(beats("own.1")) > 5, 60, "the job to run")

        (gcs,) = (pid for pid in rays["one"].processes() if Path(f"/proc/{pid}/comm").read_text().startswith("gcs_server"))
        os.kill(gcs, signal.SIGKILL)  # and nothing else: Ray ends itself, and leaves what its job had started
        wait_until(rays["one"].death, 90, "the head to give up")
        died_at = time.time()

        def silent() -> bool:
            return time.time() - max(beats("1")[-1], beats("own.1")[-1], died_at) > 3.0

        wait_until(silent, 20, "what the job had started to be ended")
        last = max(beats("1")[-1], beats("own.1")[-1])
        rays["one"].start()  # only now: it ends what its former self left
        wait_until(lambda: len(beats("2")) > 5 and len(beats("own.2")) > 5, 150, "the job to run again")
        assert last == max(beats("1")[-1], beats("own.1")[-1]) < min(beats("2")[0], beats("own.2")[0])
        assert last - died_at < 10.0
        first, second = plane.job("beats")["attempts"]
        assert (first["outcome"], second["outcome"]) == ("lost", None)
        plane.ray("stop", "beats", "--no-wait")
        plane.wait_state("beats", "cancelled")


def test_a_cluster_and_a_gateway_that_want_tokens(tmp_path: Path, short_tmp: Path) -> None:
    from dispatcher.local_ray import LocalRay
    from tests.real.harness import BIN, clean_env, run

    with LocalRay("guarded", base_dir=short_tmp, num_cpus=4, token_mode=True) as ray:
        answer = requests.get(f"{ray.address}/api/jobs/", timeout=10)
        assert answer.status_code == 401, "the cluster itself wants a token"
        token_file = tmp_path / "ray_token"
        token_file.write_text(str(ray.token))
        token_file.chmod(0o600)
        plane = Plane(tmp_path, region("guarded", ray.address, 50, token_file=str(token_file)))
        made = run(str(BIN / "gridshift"), "tokens", "create", "alice", "--config", str(plane.config), "--json", env=plane.env)
        token = json.loads(made)["token"]
        with plane:
            assert requests.get(f"{plane.address}/api/jobs/", timeout=10).status_code == 401
            env = clean_env(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token)
            submit = [
                "submit",
                "--address",
                plane.address,
                "--submission-id",
                "guarded-job",
                "--",
                "echo",
                "through both doors",
            ]
            assert "through both doors" in run(str(BIN / "ray"), "job", *submit, env=env)
            headers = json.dumps({"Authorization": f"Bearer {token}"})
            listed = run(str(BIN / "ray"), "job", "list", "--address", plane.address, "--headers", headers, env=clean_env())
            assert "guarded-job" in listed
            assert token not in plane.log.read_text() and str(ray.token) not in plane.log.read_text()
