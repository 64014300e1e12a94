"""What every Cluster does, asked of the simulated one and of a real Ray head."""

import itertools
import re
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dispatcher.clock import VirtualClock
from dispatcher.clusters import AttemptStatus, Cluster, RayStatus, Submission
from dispatcher.clusters.ray_http import RayCluster
from dispatcher.clusters.simulated import SimulatedCluster, Workload
from dispatcher.errors import LaunchRefused
from dispatcher.local_ray import LocalRay
from tests.helpers import log_of, wait_until

ENDED = (RayStatus.SUCCEEDED, RayStatus.FAILED, RayStatus.STOPPED)
NUMBERS = itertools.count(1)


class Simulated:
    """A simulated cluster, whose time moves while a test waits."""

    name = "simulated"

    def __init__(self) -> None:
        self.clock = VirtualClock(datetime(2026, 3, 1, tzinfo=UTC))
        self.work: dict[str, Workload] = {}
        self.sim = SimulatedCluster("r", self.clock, gpus=2, workloads=self.work)
        self.cluster: Cluster = self.sim

    def job(self, sid: str, *, run_s: float, exit_code: int = 0, **more: Any) -> Submission:
        self.work[sid.rpartition("-")[0]] = Workload(run_s=run_s, exit_code=exit_code)
        return Submission(sid, f"sleep {run_s}; exit {exit_code}", more.pop("runtime_env", {}), {"team": "a"}, **more)

    def wait(self, sid: str, *wanted: RayStatus) -> AttemptStatus:
        for _ in range(200):
            status = self.cluster.statuses([sid])[sid]
            assert status is not None
            if status.status in wanted:
                return status
            self.clock.advance(0.5)
        raise AssertionError(f"{sid} is {status}")


class Real:
    """A real Ray head; waiting is polling."""

    name = "real"

    def __init__(self, head: LocalRay) -> None:
        self.cluster: Cluster = RayCluster("r", head.address, None)

    def job(self, sid: str, *, run_s: float, exit_code: int = 0, **more: Any) -> Submission:
        return Submission(sid, f"sleep {run_s}; exit {exit_code}", more.pop("runtime_env", {}), {"team": "a"}, **more)

    def wait(self, sid: str, *wanted: RayStatus) -> AttemptStatus:
        def there() -> AttemptStatus | None:
            status = self.cluster.statuses([sid])[sid]
            assert status is not None
            return status if status.status in wanted else None

        found = wait_until(there, 60, f"{sid} to be {wanted}")
        assert found is not None
        return found


Lab = Simulated | Real


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.real)])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    made: Lab = Simulated() if request.param == "simulated" else Real(request.getfixturevalue("head"))
    yield made
    made.cluster.close()


@pytest.fixture
def sid() -> str:
    return f"job{next(NUMBERS)}-1"


def test_info_tells_session_version_and_gpus(lab: Lab) -> None:
    info = lab.cluster.info()
    assert info.session
    assert info == lab.cluster.info()
    assert re.match(r"\d+\.\d+", info.ray_version)
    assert info.gpus == 2


def test_an_unknown_submission_is_none_and_no_error(lab: Lab) -> None:
    assert lab.cluster.statuses(["no-such-1"]) == {"no-such-1": None}
    assert lab.cluster.statuses([]) == {}
    assert log_of(lab.cluster, "no-such-1") is None
    lab.cluster.stop("no-such-1")
    lab.cluster.delete("no-such-1")


def test_a_job_runs_to_its_end_and_is_then_forgotten(lab: Lab, sid: str) -> None:
    lab.cluster.submit(lab.job(sid, run_s=0.5), {}, maybe_sent=False)
    first = lab.cluster.statuses([sid])[sid]
    assert first is not None
    assert first.status in (RayStatus.PENDING, RayStatus.RUNNING)
    assert first.ended_at is None
    # Sent again, as after an answer that was lost: nothing more happens. Said to be new, it is somebody else's.
    lab.cluster.submit(lab.job(sid, run_s=0.5), {}, maybe_sent=True)
    with pytest.raises(LaunchRefused, match="not this one"):
        lab.cluster.submit(lab.job(sid, run_s=0.5), {}, maybe_sent=False)
    done = lab.wait(sid, *ENDED)
    assert (done.status, done.exit_code, done.error_type) == (RayStatus.SUCCEEDED, 0, None)
    assert done.started_at is not None
    assert done.ended_at is not None
    assert done.started_at < done.ended_at
    assert done.ended_at.tzinfo is UTC
    logs = log_of(lab.cluster, sid)
    assert logs is not None
    assert f"Running entrypoint for job {sid}" in logs
    lab.cluster.stop(sid)
    lab.cluster.delete(sid)
    assert lab.cluster.statuses([sid]) == {sid: None}


def test_a_failure_tells_its_exit_code(lab: Lab, sid: str) -> None:
    lab.cluster.submit(lab.job(sid, run_s=0.1, exit_code=3), {}, maybe_sent=False)
    done = lab.wait(sid, *ENDED)
    assert (done.status, done.exit_code) == (RayStatus.FAILED, 3)
    assert done.error_type == "JOB_ENTRYPOINT_COMMAND_ERROR"
    assert "3" in done.message


def test_stop_ends_a_running_job(lab: Lab, sid: str) -> None:
    lab.cluster.submit(lab.job(sid, run_s=300), {}, maybe_sent=False)
    lab.wait(sid, RayStatus.RUNNING)
    lab.cluster.stop(sid)
    done = lab.wait(sid, *ENDED)
    assert done.status is RayStatus.STOPPED
    assert done.exit_code is None


def test_a_stopped_job_that_has_not_begun_ends_only_when_it_would_begin(lab: Lab) -> None:
    first, second, third = (f"stop{next(NUMBERS)}-1" for _ in range(3))
    lab.cluster.submit(lab.job(first, run_s=300, entrypoint_num_gpus=2), {}, maybe_sent=False)
    lab.wait(first, RayStatus.RUNNING)
    lab.cluster.submit(lab.job(second, run_s=300, entrypoint_num_gpus=2), {}, maybe_sent=False)
    for _ in range(3):
        lab.cluster.stop(second)
    lab.cluster.submit(lab.job(third, run_s=0.1), {}, maybe_sent=False)
    lab.wait(third, RayStatus.SUCCEEDED)
    waiting = lab.cluster.statuses([second])[second]
    assert waiting is not None and waiting.status is RayStatus.PENDING
    lab.cluster.stop(first)
    assert lab.wait(second, *ENDED).status is RayStatus.STOPPED


def test_gpus_are_not_handed_out_twice(lab: Lab) -> None:
    first, second, third = (f"gpu{next(NUMBERS)}-1" for _ in range(3))
    lab.cluster.submit(lab.job(first, run_s=300, entrypoint_num_gpus=2), {}, maybe_sent=False)
    lab.wait(first, RayStatus.RUNNING)
    lab.cluster.submit(lab.job(second, run_s=0.1, entrypoint_num_gpus=1), {}, maybe_sent=False)
    lab.cluster.submit(lab.job(third, run_s=0.1), {}, maybe_sent=False)
    lab.wait(third, RayStatus.SUCCEEDED)
    waiting = lab.cluster.statuses([second])[second]
    assert waiting is not None
    assert waiting.status is RayStatus.PENDING
    lab.cluster.stop(first)
    assert lab.wait(second, *ENDED).status is RayStatus.SUCCEEDED


def test_many_are_asked_for_at_once(lab: Lab, sid: str) -> None:
    lab.cluster.submit(lab.job(sid, run_s=0.1), {}, maybe_sent=False)
    ids = [sid, *(f"no-such{n}-1" for n in range(30))]
    found = lab.cluster.statuses(ids)
    assert list(found) == ids[: len(found)] and len(found) > 16, "what could not be asked for this time is left out"
    assert [name for name, status in found.items() if status is not None] == [sid]
    lab.wait(sid, RayStatus.SUCCEEDED)


def test_a_package_is_delivered_with_the_job(lab: Lab, sid: str, tmp_path: Path) -> None:
    name = f"_ray_pkg_{sid.replace('-', '')}.zip"
    with zipfile.ZipFile(tmp_path / name, "w") as package:
        package.writestr("word.txt", "from the package")
    env = {"working_dir": f"gcs://{name}"}
    job = Submission(sid, "cat word.txt; sleep 0.1", env, {})
    lab.cluster.submit(job, {name: tmp_path / name}, maybe_sent=False)
    assert lab.wait(sid, *ENDED).status is RayStatus.SUCCEEDED
    if isinstance(lab, Simulated):
        assert name in lab.sim.packages()
    else:
        assert "from the package" in (log_of(lab.cluster, sid) or "")


def test_a_missing_package_file_is_a_refusal(lab: Lab, sid: str, tmp_path: Path) -> None:
    job = lab.job(sid, run_s=1, runtime_env={"working_dir": "gcs://_ray_pkg_gone.zip"})
    with pytest.raises(LaunchRefused, match=r"_ray_pkg_gone\.zip cannot be read here"):
        lab.cluster.submit(job, {"_ray_pkg_gone.zip": tmp_path / "gone"}, maybe_sent=False)
    assert lab.cluster.statuses([sid]) == {sid: None}


def test_a_refusal_says_why(lab: Lab, sid: str) -> None:
    job = lab.job(sid, run_s=1)
    if isinstance(lab, Simulated):
        lab.sim.refuses = "metadata values must be strings"
    else:
        job.metadata["n"] = 1  # type: ignore[index]
    with pytest.raises(LaunchRefused, match="refused the job: metadata values must be strings") as caught:
        lab.cluster.submit(job, {}, maybe_sent=False)
    assert "\n" not in str(caught.value)
    assert lab.cluster.statuses([sid]) == {sid: None}


def test_a_body_that_is_too_large_is_a_refusal(lab: Lab, sid: str) -> None:
    if isinstance(lab, Simulated):
        pytest.skip("a simulated cluster takes bodies of any size")
    job = lab.job(sid, run_s=1, runtime_env={"env_vars": {"A": "b"}})
    job.metadata["much"] = "x" * 1_050_000  # type: ignore[index]
    with pytest.raises(LaunchRefused, match=r"no body above 1 MiB, and this one has 1,050,\d+ bytes \(metadata 1,050,\d+\)"):
        lab.cluster.submit(job, {}, maybe_sent=False)
    assert lab.cluster.statuses([sid]) == {sid: None}
