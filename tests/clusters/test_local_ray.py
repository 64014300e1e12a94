"""LocalRay: two heads side by side, one with a token, and nothing left behind."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from dispatcher import local_ray
from dispatcher.clusters import RayStatus, Submission
from dispatcher.clusters.ray_http import RayCluster
from dispatcher.errors import ClusterAccessDenied, GridshiftError
from dispatcher.local_ray import MARK, LocalRay, end_marked, free_ports, marked_processes
from tests.helpers import wait_until


@pytest.fixture
def base() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="gst"))
    yield path
    shutil.rmtree(path)


def test_ports_differ() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(1024 <= port <= 65535 for port in ports)


def test_an_address_before_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GridshiftError, match="has not been started"):
        _ = LocalRay("x", base_dir=tmp_path, num_cpus=1).address


def test_our_secrets_and_another_rays_address_do_not_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://elsewhere:8265")
    monkeypatch.setenv("GRIDSHIFT_TOKEN", "secret")
    env = LocalRay("x", base_dir=tmp_path, num_cpus=1)._env(tmp_path)
    assert "RAY_ADDRESS" not in env
    assert "GRIDSHIFT_TOKEN" not in env
    assert env["RAY_AUTH_MODE"] == "disabled"
    assert env["PATH"].startswith(f"{Path(sys.executable).parent}:")


def test_temporary_files_go_with_it_unless_the_user_wants_them_elsewhere(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(tempfile.mkdtemp(prefix="gs", dir=base))
    ray = LocalRay("x", base_dir=base, num_cpus=1)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(base))
    assert ray._env(home)["TMPDIR"] == str(home / "t") and (home / "t").is_dir()
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/a/large/disk")
    assert ray._env(home).get("TMPDIR") == os.environ.get("TMPDIR")


def test_a_head_that_does_not_start_is_one_sentence_and_its_words_are_kept(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Traceback (most recent call last):\n  File a, line 1\nException: The current node timed out during startup."
    monkeypatch.setattr(LocalRay, "_command", lambda *_: [sys.executable, "-c", f"import sys; sys.exit({said!r})"])
    with pytest.raises(GridshiftError) as told:
        LocalRay("x", base_dir=base, num_cpus=1).start()
    sentence = str(told.value)
    assert "\n" not in sentence and "Traceback" not in sentence and "too busy" in sentence and "try again later" in sentence
    assert str(base / "local-ray-x.log") in sentence
    assert (base / "local-ray-x.log").read_text().strip() == said


def _sleep(home: str) -> None:
    os.setsid()
    os.chdir(home)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pause()


def test_leftovers_of_a_crash_are_found_and_ended(base: Path) -> None:
    home = Path(tempfile.mkdtemp(prefix="gs"))
    process = multiprocessing.get_context("spawn").Process(target=_sleep, args=(str(home),))
    process.start()
    wait_until(lambda: process.pid in marked_processes(home), 20, "the process to be known by its folder")
    (base / "local-ray-x.json").write_text(json.dumps({"home": str(home)}))
    ray = LocalRay("x", base_dir=base, num_cpus=1)
    ray._take_over()
    process.join(10)
    assert process.exitcode == -signal.SIGKILL
    assert not home.exists()
    with pytest.raises(GridshiftError, match="another gridshift process runs"):
        LocalRay("x", base_dir=base, num_cpus=1).start()
    ray.stop()
    assert not (base / "local-ray-x.json").exists()


def test_a_death_without_warning_is_cleaned_up_after(base: Path) -> None:
    home = Path(tempfile.mkdtemp(prefix="gs"))
    script = (
        "import sys, time; from pathlib import Path; from dispatcher.local_ray import start_guard\n"
        "guard = start_guard(Path(sys.argv[1])); print('ready', flush=True); time.sleep(60)"
    )
    root = Path(local_ray.__file__).parents[1]
    sleeper = subprocess.Popen(["/bin/sleep", "60"], env={MARK: str(home)}, start_new_session=True)
    owner = subprocess.Popen([sys.executable, "-c", script, str(home)], cwd=root, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"ready\n"
    assert marked_processes(home) == {sleeper.pid}
    owner.kill()
    owner.communicate()
    assert sleeper.wait(30) == -signal.SIGTERM
    wait_until(lambda: not home.exists(), 30, "the folder to go")


def test_another_folder_with_the_same_beginning_is_not_ours(tmp_path: Path) -> None:
    assert marked_processes(tmp_path / "gs") == set()
    end_marked(tmp_path / "gs", grace_s=0.1)


@pytest.mark.real
def test_two_heads_side_by_side_one_with_a_token(base: Path) -> None:
    plain = LocalRay("plain", base_dir=base, num_cpus=4, num_gpus=1)
    locked = LocalRay("locked", base_dir=base, num_cpus=4, num_gpus=3, token_mode=True)
    rays = [plain, locked]
    homes = []
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda ray: ray.start(), rays))
        homes = [ray.temp_dir.parent for ray in rays if ray.temp_dir is not None]
        north = RayCluster("north", plain.address, None)
        south = RayCluster("south", locked.address, locked.token)
        assert (north.info().gpus, south.info().gpus) == (1, 3)
        assert north.info().session != south.info().session
        for cluster in (north, south):
            cluster.submit(Submission("job-1", f"echo $HOME ${MARK}; sleep 300", {}, {}), {}, maybe_sent=False)
        for cluster in (north, south):
            wait_until(lambda c=cluster: running(c), 60, "the job to run")  # type: ignore[misc]

        with pytest.raises(ClusterAccessDenied, match="wants a token, and none is configured"):
            RayCluster("south", locked.address, None).info()
        with pytest.raises(ClusterAccessDenied, match="does not accept our token"):
            RayCluster("south", locked.address, "wrong").statuses(["job-1"])
        assert requests.get(f"{locked.address}/api/jobs/", timeout=5).status_code == 401

        # The machine loses power; the head comes back where it was, and remembers nothing.
        before, address = north.info().session, plain.address
        plain.kill()
        assert plain.processes() == set()
        plain.start()
        homes += [plain.temp_dir.parent] if plain.temp_dir is not None else []
        assert plain.address == address
        assert north.info().session != before
        assert north.statuses(["job-1"]) == {"job-1": None}
        assert running(south)
        north.close()
        south.close()
    finally:
        for ray in rays:
            ray.stop()
    assert len(homes) == 3
    for home in homes:
        assert marked_processes(home) == set()
        assert not home.exists()


def running(cluster: RayCluster) -> bool:
    status = cluster.statuses(["job-1"])["job-1"]
    return status is not None and status.status is RayStatus.RUNNING
