"""Interactive serving with public commands only: answers get slow by a job beside their server, and the job steps aside.

Server, Ray cluster and control plane are processes of their own.
"""

import json
import shutil
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests

from dispatcher.store.engine import database, make_engine
from dispatcher.store.migrate import upgrade
from signals.points import Kind, Quality, SignalPoint
from signals.store import SignalStore
from tests.helpers import wait_until
from tests.real.harness import Plane, chat_server, ray_clusters, region

pytestmark = pytest.mark.real

SERVING = """
[[region.serving]]
name = "chat"
source = "metrics"
url = "{url}/metrics"
scrape_s = 0.5
[[region.serving.slo]]
metric = "e2e"
percentile = 0.9
limit = 0.1
histogram = "chat_request_seconds"
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The server's address; somebody asks it for something all the time."""
    done = threading.Event()
    with chat_server(tmp_path / "output.txt") as url:

        def users() -> None:
            with requests.Session() as session:
                while not done.wait(0.02):
                    session.get(f"{url}/", timeout=10)

        asking = [threading.Thread(target=users, daemon=True) for _ in range(4)]
        for one in asking:
            one.start()
        yield url
        done.set()
        for one in asking:
            one.join(15)


def test_a_job_steps_aside_for_a_server_that_it_slows_down_and_comes_back(tmp_path: Path, short_tmp: Path, server: str) -> None:
    work, output = tmp_path / "work", tmp_path / "output.txt"
    work.mkdir()
    shutil.copy(Path(__file__).with_name("stepper.py"), work / "job.py")
    metadata = {
        "gridshift.runtime": "1m",
        "gridshift.pausable": "checkpoint",
        "gridshift.checkpoint_s": "20",
        "gridshift.restart_s": "5",
    }
    with ray_clusters(short_tmp, "north") as rays:
        config = region("north", rays["north"].address, 40) + SERVING.format(url=server)
        with Plane(tmp_path, config) as plane:

            def submit(job_id: str, *argv: str) -> None:
                plane.ray("submit", "--submission-id", job_id, "--no-wait", *argv)

            def chat() -> dict[str, Any]:
                (one,) = plane.gridshift("serving")["serving"]
                return dict(one)

            wait_until(lambda: chat()["objectives"][0]["state"] == "met", 30, "the promise to be kept without batch")
            command = ("python", "job.py", "80", "0.25", str(output))
            submit("beside", "--metadata-json", json.dumps(metadata), "--working-dir", str(work), "--", *command)
            plane.wait_state("beside", "running")
            paused = plane.wait_state("beside", "paused", timeout_s=40)
            assert "serving chat: e2e p90 <= 0.1 s is at risk" in paused["reason"] or paused["pauses"] == 1, paused
            at = output.read_text()
            assert "paused attempt=1" in at and "end" not in at

            # nothing else starts either, not even what starts at once elsewhere
            submit("late", "--", "python", "-c", "print('late')")

            def held() -> dict[str, Any] | None:
                one = plane.job("late")
                return one if "starts nothing: serving chat" in one["reason"] else None

            try:
                waiting = wait_until(held, 15, "the reason of a job that waits")
            except AssertionError as error:
                raise AssertionError(f"{error}; {plane.job('late')}; {chat()}") from None
            assert isinstance(waiting, dict) and waiting["state"] == "queued"

            # users are served in time again, so that after a while it comes back, and goes on where it was
            ended = plane.wait_state("beside", "succeeded", timeout_s=150)
            assert (ended["attempt"], ended["pauses"]) == (2, 1)
            plane.wait_state("late", "succeeded", timeout_s=30)
            steps = [line for line in output.read_text().splitlines() if line.startswith("step")]
            assert steps == [f"step {n}" for n in range(80)]
            (told,) = plane.gridshift("serving", "north", "chat")["serving"]
            said = [line["sentence"].split(":")[0] for line in reversed(told["history"])]
            assert said[:2] == ["no batch starts", "batch is asked for checkpoints"] and said[-1] == "batch runs freely"


HEADROOM = """
load_gauge = "chat_running"
load_per_gpu = 10
max_gpus = 2
[[region.serving.slo]]
"""


def test_plans_leave_gpus_free_by_what_was_seen_of_a_server(tmp_path: Path, short_tmp: Path, server: str) -> None:
    """Three days were seen in which it needed half a GPU. A job of one GPU runs beside it, one of both waits and says why."""
    (tmp_path / "data").mkdir()
    url = f"sqlite:///{tmp_path / 'data' / 'gridshift.db'}"
    upgrade(url)
    quarter, now = timedelta(minutes=15), datetime.now(UTC)
    first = datetime.fromtimestamp(now.timestamp() // 900 * 900, UTC)
    store = SignalStore(make_engine(database(url)))

    def seen(n: int, what: str) -> SignalPoint:
        start = first - n * quarter
        common = ("north", Kind.SERVING, "requests", start, start + quarter, None, start + quarter, 5.0, Quality.MEASURED)
        return SignalPoint(*common, "chat", f"chat_running {what}")

    store.append([seen(n, what) for n in range(1, 3 * 96 + 1) for what in ("mean", "highest")])
    serving = SERVING.format(url=server).replace("\n[[region.serving.slo]]\n", HEADROOM)
    job = {"gridshift.runtime": "1m", "gridshift.deadline": "2h"}
    with ray_clusters(short_tmp, "north") as rays:
        plane = Plane(tmp_path, region("north", rays["north"].address, 40) + serving)
        with plane:
            for job_id, gpus in (("wide", "2"), ("narrow", "1")):
                given = ("--submission-id", job_id, "--entrypoint-num-gpus", gpus, "--metadata-json", json.dumps(job))
                plane.ray("submit", *given, "--no-wait", "--", "python", "-c", "print('done')")
            plane.wait_state("narrow", "succeeded")
            told = plane.gridshift("plan")["kept_free"]
            said = "1 of 2 GPUs kept free for serving chat (p95 of demand at this hour 0.5 GPUs)"
            assert told and all(one["gpus"] == 1 and one["sentence"].endswith(said) for one in told), told
            waits = plane.gridshift("plan", "explain", "wide")
            assert waits["job"]["state"] == "queued" and waits["kept_free"][0]["sentence"].endswith(said)
        # what it was stopped in is kept too, and the next control plane goes on with it
        later = datetime.now(UTC) + quarter
        read = [p for p in store.read("north", Kind.SERVING, first, later, later) if p.variant.endswith(" mean")]
        assert read and all(0 < one.value <= 4 for one in read), "four users ask it"
        with plane:
            wait_until(lambda: plane.job("wide")["reason"], 20, "its reason")
            assert plane.job("wide")["state"] == "queued"
