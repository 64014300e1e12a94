"""kill -9 of the control plane at random moments under load: no job is lost, none runs twice, everything converges.

GRIDSHIFT_CHAOS_ROUNDS sets the number of kills (10 by default, 50 in ``make chaos``); the seed is printed.
"""

import contextlib
import json
import os
import random
import shutil
import threading
import time
from pathlib import Path

import pytest
import requests

from tests.real.harness import Plane, ray_clusters, region

pytestmark = pytest.mark.real

ROUNDS = int(os.environ.get("GRIDSHIFT_CHAOS_ROUNDS", "10"))
STEPS = 40


class Load:
    """Submits jobs without a pause, whatever happens to the control plane, and remembers which were answered."""

    def __init__(self, plane: Plane, runs: Path) -> None:
        self.plane, self.runs = plane, runs
        self.answered: set[str] = set()
        self.unanswered: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go, daemon=True)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _go(self) -> None:
        number = 0
        while not self._stop.wait(0.5):
            job_id = f"load-{number:04d}"
            number += 1
            body = {
                "submission_id": job_id,
                "entrypoint": f"echo start >> {self.runs}/{job_id}; sleep 0.2; echo end >> {self.runs}/{job_id}",
            }
            if number % 2:  # every other one is flexible, with a price that gives no reason to wait
                body["metadata"] = {"gridshift.deadline": "20m", "gridshift.runtime": "5s"}  # type: ignore[assignment]
            self.unanswered.add(job_id)
            while not self._stop.is_set():
                with contextlib.suppress(requests.RequestException):
                    answer = requests.post(f"{self.plane.address}/v1/jobs", json=body, timeout=5)
                    if answer.status_code in (201, 409):  # 409: an earlier try was stored though its answer was lost
                        self.answered.add(job_id)
                        self.unanswered.discard(job_id)
                        break
                time.sleep(0.05)


def test_kills_at_random_moments_lose_and_double_nothing(tmp_path: Path, short_tmp: Path) -> None:
    seed = int(os.environ.get("GRIDSHIFT_CHAOS_SEED", str(random.SystemRandom().randrange(10**6))))
    print(f"chaos seed {seed}, {ROUNDS} rounds")
    chance = random.Random(seed)
    runs, work = tmp_path / "runs", tmp_path / "work"
    runs.mkdir()
    work.mkdir()
    shutil.copy(Path(__file__).with_name("stepper.py"), work / "job.py")
    steps = tmp_path / "steps.txt"
    with ray_clusters(short_tmp, "one", "two") as rays:
        config = region("one", rays["one"].address, 50, gpus=4) + region("two", rays["two"].address, 50, gpus=4)
        plane = Plane(tmp_path, config)
        try:
            plane.start()
            metadata = {
                "gridshift.deadline": "2h",
                "gridshift.runtime": "40s",
                "gridshift.pausable": "checkpoint",
                "gridshift.checkpoint_s": "30",
                "gridshift.restart_s": "5",
            }
            arguments = ["--metadata-json", json.dumps(metadata), "--entrypoint-num-gpus", "1", "--working-dir", str(work)]
            plane.ray(
                "submit",
                "--submission-id",
                "stepper",
                *arguments,
                "--no-wait",
                "--",
                "python",
                "job.py",
                str(STEPS),
                "0.5",
                str(steps),
            )
            with Load(plane, runs) as load:
                for kill in range(ROUNDS):
                    time.sleep(chance.uniform(0.05, 2.5))  # the random moment itself, not a wait for something
                    if kill in (ROUNDS // 3, 2 * ROUNDS // 3):  # push the stepping job about while all this goes on
                        where = plane.job("stepper")["region"] or "one"
                        event = {"event_id": f"push-{kill}", "region": where, "limit_w": 0, "duration": "15s"}
                        requests.post(f"{plane.address}/v1/events", json=event, timeout=10).raise_for_status()
                    plane.kill()
                    plane.start()
            expected = {*load.answered, "stepper"}

            def story(job_id: str) -> object:
                events = requests.get(f"{plane.address}/v1/jobs/{job_id}/events", timeout=10).json()["events"]
                return (
                    job_id,
                    plane.job(job_id)["attempts"],
                    [f"{e['at'][11:22]} {e['new_state']}: {e['reason']}" for e in events],
                )

            def unfinished() -> list[str]:
                found = requests.get(f"{plane.address}/v1/jobs", params={"limit": 1000}, timeout=10).json()["jobs"]
                states = {job["id"]: job["state"] for job in found}
                assert expected <= set(states), f"lost: {expected - set(states)}"
                broken = [i for i, state in states.items() if state in ("failed", "cancelled")]
                assert not broken, json.dumps([story(i) for i in broken], indent=1)
                return [i for i, state in states.items() if state != "succeeded"]

            deadline = time.monotonic() + 60 + 3 * len(expected)
            while left := unfinished():
                assert time.monotonic() < deadline, (
                    json.dumps([story(i) for i in left[:4]], indent=1) + plane.log.read_text()[-2000:]
                )
                time.sleep(0.3)
        finally:
            plane.stop()
    assert len(load.answered) >= ROUNDS // 2
    for job_id in load.answered:
        assert (runs / job_id).read_text().split() == ["start", "end"], job_id
    lines = steps.read_text().splitlines()
    assert [line for line in lines if line.startswith("step")] == [f"step {n}" for n in range(STEPS)]
