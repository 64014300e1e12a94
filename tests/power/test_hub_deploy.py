"""Agents sent to clusters: once, whatever restarts, and told where it does not work."""

import io
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from dispatcher.clock import VirtualClock
from dispatcher.clusters import RayStatus
from dispatcher.clusters.simulated import SimulatedCluster, Workload
from dispatcher.config import RegionConfig
from dispatcher.packages import PackageStore
from dispatcher.power.deploy import AgentDeployer, has_gpus, package_files, store_agent_package, troubles
from dispatcher.regions import Region
from dispatcher.store.memory import MemoryStore
from tests.power.test_hub import START


class Place:
    """A region with a simulated cluster and a control plane that can be restarted."""

    def __init__(self, base: Path, address: str = "http://127.0.0.1:8265") -> None:
        self.clock = VirtualClock(START)
        self.workloads: dict[str, Workload] = {"gridshift-agents": Workload(run_s=1e8)}
        self.cluster = SimulatedCluster("north", self.clock, workloads=self.workloads)
        config = RegionConfig(name="north", address=address)
        self.region = Region(config, self.cluster, self.clock, wall=self.wall)
        self.store = MemoryStore()
        self.packages = PackageStore(base / "packages", 100_000_000)
        self.package = store_agent_package(self.packages)
        self.deployer = self.plane()

    def wall(self) -> float:
        return (self.clock.now() - START).total_seconds()

    def plane(self, **more: Any) -> AgentDeployer:
        """A control plane that has just started."""
        settings: dict[str, Any] = {"url": "http://127.0.0.1:8700", "token": "secret", "version": "1", **more}
        package = settings.pop("package", self.package)
        epoch = lambda: self.clock.now().timestamp()  # noqa: E731
        return AgentDeployer(
            self.region, self.store, self.packages, package, wall=self.wall, epoch=settings.pop("epoch", epoch), **settings
        )

    def look(self, times: int = 1, after_s: float = 10.0) -> None:
        """Let time pass and look, ``times`` times."""
        for _ in range(times):
            self.clock.advance(after_s)
            self.region.observe([])
            self.deployer.deploy(self.clock.now())

    def jobs(self) -> dict[str, str]:
        """Our jobs on the cluster by id, with their status."""
        names = [f"gridshift-agents-{number}" for number in range(1, 60)]
        return {sid: status.status.value for sid, status in self.cluster.statuses(names).items() if status is not None}

    def env(self, number: int) -> dict[str, str]:
        env: dict[str, str] = self.cluster._tries[f"gridshift-agents-{number}"].submission.runtime_env["env_vars"]
        return env


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_they_are_sent_once_and_marked_as_ours(place: Place) -> None:
    place.look(5)
    assert place.jobs() == {"gridshift-agents-1": "RUNNING"} and place.deployer.trouble is None
    submission = place.cluster._tries["gridshift-agents-1"].submission
    assert submission.metadata["gridshift.role"] == "agents"
    assert submission.entrypoint_num_gpus is None and submission.runtime_env["working_dir"] == f"gcs://{place.package}"
    assert place.cluster.packages() == {place.package}
    env = place.env(1)
    assert (env["GRIDSHIFT_AGENT_URL"], env["GRIDSHIFT_AGENT_REGION"]) == ("http://127.0.0.1:8700", "north")
    assert env["GRIDSHIFT_AGENT_TOKEN"] == "secret" and "GRIDSHIFT_JOB_ID" not in env


def test_restarts_of_the_control_plane_make_no_second_one(place: Place) -> None:
    place.look()
    for _ in range(3):
        place.deployer = place.plane()
        place.look(2)
    assert place.jobs() == {"gridshift-agents-1": "RUNNING"}


def test_a_cluster_that_was_started_anew_gets_them_again(place: Place) -> None:
    place.look()
    place.cluster.restart()
    place.look()
    assert place.jobs() == {}  # one answer that it is gone proves little
    place.look(3)
    assert place.jobs() == {"gridshift-agents-2": "RUNNING"}
    assert float(place.env(2)["GRIDSHIFT_AGENT_STAMP"]) > START.timestamp()


@pytest.mark.parametrize("restart", [False, True])
def test_an_answer_that_is_lost_makes_no_second_one(place: Place, restart: bool) -> None:
    place.region.observe([])
    place.cluster.lost_answers = 1
    place.deployer.deploy(place.clock.now())
    assert place.deployer.trouble is not None and "did not answer" in place.deployer.trouble
    if restart:
        place.deployer = place.plane()
    place.look(3)
    assert place.jobs() == {"gridshift-agents-1": "RUNNING"} and place.deployer.trouble is None


def test_a_cluster_that_cannot_be_reached_is_waited_for(place: Place) -> None:
    place.region.observe([])
    place.cluster.down = True
    place.deployer.deploy(place.clock.now())
    place.look(3)
    assert place.store.setting("agents.job north") is not None
    place.cluster.down = False
    place.look(2)
    assert place.jobs() == {"gridshift-agents-1": "RUNNING"}


def test_another_version_or_address_follows_and_is_the_later_one(place: Place) -> None:
    place.look()
    place.deployer = place.plane(url="http://127.0.0.1:9999", epoch=lambda: 0.0)  # and its clock was set back
    place.look(3)
    assert place.jobs().keys() == {"gridshift-agents-1", "gridshift-agents-2"}
    assert float(place.env(2)["GRIDSHIFT_AGENT_STAMP"]) > float(place.env(1)["GRIDSHIFT_AGENT_STAMP"])


def test_numbers_that_somebody_has_used_are_passed_over(place: Place) -> None:
    place.look()
    place.store = MemoryStore()  # a control plane with another database
    place.deployer = place.plane(token="other")
    place.look()
    assert place.jobs().keys() == {"gridshift-agents-1", "gridshift-agents-2"}
    assert place.env(2)["GRIDSHIFT_AGENT_TOKEN"] == "other"
    place.look(3)
    assert len(place.jobs()) == 2


def test_a_job_that_ends_is_followed_ever_more_slowly_and_told(place: Place) -> None:
    place.workloads["gridshift-agents"].run_s = 1.0
    place.workloads["gridshift-agents"].exit_code = 1
    place.look(2)
    assert "failed with exit code 1" in str(place.deployer.trouble)
    assert troubles({"north": place.deployer})[0][:2] == ("agents north", "north")
    place.look(60)  # ten minutes
    assert 4 <= len(place.jobs()) <= 8
    place.workloads["gridshift-agents"].run_s = 1e8
    place.look(70)
    assert list(place.jobs().values()).count(RayStatus.RUNNING) == 1 and place.deployer.trouble is None


def test_a_refusal_is_told_and_tried_again_later(place: Place) -> None:
    place.cluster.refuses = "no room"
    place.look()
    assert "no room" in str(place.deployer.trouble) and place.jobs() == {}
    place.cluster.refuses = None
    place.look(3)
    assert len(place.jobs()) == 1 and place.deployer.trouble is None


def test_without_use_for_them_none_are_sent(place: Place) -> None:
    place.deployer = place.plane(wanted=lambda: has_gpus(place.region))
    place.cluster.gpus = 0.0
    place.look(3)
    assert place.jobs() == {}
    place.cluster.gpus = 8.0
    place.look()
    assert len(place.jobs()) == 1
    place.cluster.gpus = None  # could not be read: they stay
    place.look(3)
    assert place.jobs() == {"gridshift-agents-1": "RUNNING"}


def test_switched_off_they_are_withdrawn_once(place: Place) -> None:
    place.deployer = place.plane(enabled=False)
    place.look(2)
    assert place.jobs() == {}
    place.deployer = place.plane()
    place.look()
    place.deployer = place.plane(enabled=False)
    place.look(3)
    assert place.jobs() == {"gridshift-agents-1": "STOPPED"}
    place.deployer = place.plane()
    place.look(2)
    assert place.jobs() == {"gridshift-agents-1": "STOPPED", "gridshift-agents-2": "RUNNING"}


def test_agents_elsewhere_cannot_call_a_loopback_address(tmp_path: Path) -> None:
    place = Place(tmp_path, "http://cluster.example.org:8265")
    place.look()
    assert place.jobs() == {} and "set server.public_url" in str(place.deployer.trouble)
    place.deployer = place.plane(url="https://gridshift.example.org")
    place.look()
    assert len(place.jobs()) == 1


def test_a_damaged_note_is_no_end(place: Place) -> None:
    place.store.set_setting("agents.job north", "{").result()
    place.look(2)
    assert place.jobs() == {"gridshift-agents-1": "RUNNING"}


def test_what_is_shipped_runs_alone(place: Place, tmp_path: Path) -> None:
    """The package, unpacked, in an interpreter that has no site-packages."""
    data = place.packages.path(place.package).read_bytes()
    assert len(data) < 2_000_000 and store_agent_package(place.packages) == place.package
    zipfile.ZipFile(io.BytesIO(data)).extractall(tmp_path / "unpacked")
    names = package_files()
    assert "pynvml.py" in names and "websockets/sync/client.py" in names and "dispatcher/agent/runner.py" in names
    assert names["dispatcher/__init__.py"] == b"" and not any(name.endswith(".so") for name in names)
    code = (
        "import dispatcher.agent.ray_actor as r, dispatcher.agent.runner as a, websockets.sync.client, pynvml, sys\n"
        "assert all('unpacked' in m.__file__ for m in (r, a, websockets, pynvml)), r.__file__\n"
        "assert a.once()['error']"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'unpacked')!r})\n{code}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_whether_foreign_work_is_protected_is_told_to_the_agents_and_a_change_sends_them_anew(place: Place) -> None:
    place.look(2)
    assert place.env(1)["GRIDSHIFT_AGENT_PROTECT_FOREIGN"] == "1"
    place.deployer = place.plane(protect_foreign=False)
    place.look(2)
    assert place.env(2)["GRIDSHIFT_AGENT_PROTECT_FOREIGN"] == "0"
