"""The main job with public commands only: held, paused in one region, resumed in the other, each step done exactly once."""

import json
import shutil
from pathlib import Path

import pytest

from tests.real.harness import Plane, ray_clusters, region

pytestmark = pytest.mark.real

STEPS = 60


def test_a_checkpointing_job_is_paused_in_one_region_and_resumed_in_the_other(tmp_path: Path, short_tmp: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    shutil.copy(Path(__file__).with_name("stepper.py"), work / "job.py")
    (work / "data.txt").write_text("carried along")
    output = tmp_path / "output.txt"
    with ray_clusters(short_tmp, "cheap", "dear") as rays:
        config = region("cheap", rays["cheap"].address, 40) + region("dear", rays["dear"].address, 90)
        with Plane(tmp_path, config) as plane:
            metadata = {
                "gridshift.deadline": "6h",
                "gridshift.runtime": "2m",
                "gridshift.pausable": "checkpoint",
                "gridshift.checkpoint_s": "20",
                "gridshift.restart_s": "5",
                "gridshift.power_w": "1000",
            }
            submitted = plane.ray(
                "submit",
                "--submission-id",
                "mover",
                "--metadata-json",
                json.dumps(metadata),
                "--runtime-env-json",
                json.dumps({"env_vars": {"MY_SETTING": "kept"}}),
                "--entrypoint-num-gpus",
                "1",
                "--working-dir",
                str(work),
                "--no-wait",
                "--",
                "sh",
                "-c",
                f"python job.py {STEPS} 0.25 {output} && cat data.txt && echo MY_SETTING=$MY_SETTING",
            )
            assert "mover" in submitted
            first = plane.wait_state("mover", "running")
            assert first["region"] == "cheap"

            # a call of the utility: nothing may draw power in the first region for eight hours, longer than it can wait
            plane.gridshift("events", "create", "--region", "cheap", "--limit-w", "0", "--duration", "8h", "--id", "call-1")
            moved = plane.wait_state("mover", "paused", "launching", "succeeded", timeout_s=60)
            assert moved["pauses"] == 1
            ended = plane.wait_state("mover", "succeeded", timeout_s=120)
            assert (ended["region"], ended["attempt"], ended["pauses"]) == ("dear", 2, 1)
            assert ended["energy_kwh"] > 0 and ended["cost"] > 0

            logs = plane.ray("logs", "mover")
            assert "all steps done" in logs and "carried along" in logs and "MY_SETTING=kept" in logs
            why = [event["reason"] for event in plane.gridshift("jobs", "events", "mover")["events"]]
            assert any("call-1" in reason or "limit" in reason for reason in why), why

    lines = output.read_text().splitlines()
    assert [line for line in lines if line.startswith("step")] == [f"step {n}" for n in range(STEPS)]
    starts = [line for line in lines if line.startswith("start")]
    assert [line.split()[1] for line in starts] == ["attempt=1", "attempt=2"]
    paused_at = next(int(line.split("at=")[1]) for line in lines if line.startswith("paused"))
    assert 0 < paused_at < STEPS and starts[1].endswith(f"from={paused_at}")
