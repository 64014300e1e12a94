"""`gridshift up` on a machine with nothing configured: a job is held with a reason, and runs when and where the plan says.

Time is replayed (240 times as fast, from an evening peak of the synthetic profile) so that its hours pass in a minute.
"""

import json
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import requests

from dispatcher.client import Client
from tests.helpers import free_port, wait_until
from tests.real.harness import BIN, clean_env, run

pytestmark = pytest.mark.real

CONFIG = """
[server]
port = {port}
[planning]
launch_time = "16m"
[replay]
start = "2026-01-14T17:00Z"
speed = 240
"""


def test_a_held_job_runs_then_and_there_and_functions_bring_their_values(tmp_path: Path, short_tmp: Path) -> None:
    port = free_port()
    (tmp_path / "gridshift.toml").write_text(CONFIG.format(port=port) + "", encoding="utf-8")
    work = tmp_path / "work"
    work.mkdir()
    (work / "job.py").write_text("import sys, pathlib; pathlib.Path(sys.argv[1]).write_text('done'); print('hello')")
    output = tmp_path / "output"
    env = clean_env(GRIDSHIFT_ADDRESS=f"http://127.0.0.1:{port}", TMPDIR=str(short_tmp))
    log = (tmp_path / "up.log").open("wb")
    process = subprocess.Popen(
        [str(BIN / "gridshift"), "up", "--no-console"], cwd=tmp_path, env=env, stdout=log, stderr=log, start_new_session=True
    )
    address = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        assert process.poll() is None, (tmp_path / "up.log").read_text()
        try:
            regions = requests.get(f"{address}/v1/regions", timeout=2).json()["regions"]
        except requests.RequestException:
            return False
        return bool(regions[0]["reachable"] and regions[0]["price"])

    try:
        wait_until(ready, 90, "the control plane and its local Ray")
        metadata = {"gridshift.deadline": "6h", "gridshift.runtime": "5m", "gridshift.pausable": "checkpoint"}
        submit = ["--metadata-json", json.dumps(metadata), "--working-dir", str(work), "--submission-id", "held", "--no-wait"]
        run(str(BIN / "ray"), "job", "submit", "--address", address, *submit, "--", "python", "job.py", str(output), env=env)

        def planned() -> dict[str, object] | None:
            job = requests.get(f"{address}/v1/jobs/held", timeout=5).json()
            assert job["state"] in ("queued", "launching"), job
            return job if job["planned_start_at"] else None

        job = wait_until(planned, 20, "a plan")
        status = run(str(BIN / "ray"), "job", "status", "--address", address, "held", env=env)
        assert "PENDING" in status and "EUR/MWh" in status, status
        told = json.loads(run(str(BIN / "gridshift"), "plan", "explain", "held", "--json", env=env))
        start_at = datetime.fromisoformat(told["placement"]["intervals"][0][0])
        assert told["placement"]["region"] == "local" and "EUR/MWh" in told["why"]
        now = datetime.fromisoformat(requests.get(f"{address}/v1/status", timeout=5).json()["now"])
        assert start_at > now + timedelta(minutes=30), "an evening peak is no time to start"
        assert not output.exists()

        wait_until(output.exists, 110, "the job to run")
        attempt = requests.get(f"{address}/v1/jobs/held", timeout=5).json()["attempts"][0]
        launched_at = datetime.fromisoformat(attempt["launched_at"])
        planned_at = datetime.fromisoformat(str(job["planned_start_at"]))  # type: ignore[index]
        assert abs(launched_at - planned_at) <= timedelta(minutes=30), (launched_at, planned_at)
        assert attempt["region"] == "local"
        assert "hello" in run(str(BIN / "ray"), "job", "logs", "--address", address, "held", env=env)

        def seven_times(number: int) -> int:
            return 7 * number

        def broken(number: int) -> int:
            raise ValueError(f"cannot do {number}")

        client = Client(address)
        assert client.flexible(deadline="3h", runtime="4m")(seven_times).remote(6).result(timeout=120) == 42
        with pytest.raises(ValueError, match="cannot do 3") as caught:
            client.flexible()(broken).remote(3).result(timeout=120)
        assert "in broken" in str(caught.value.__cause__)
    finally:
        process.terminate()
        process.wait(30)
        log.close()
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if _mentions(p, str(tmp_path))]
    assert not left, [p.read_text() for p in left]


def _mentions(path: Path, text: str) -> bool:
    try:
        return text in path.read_text()
    except OSError:
        return False
