"""Ray's own clients, unchanged, against the API: the command line and JobSubmissionClient."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from dispatcher.api.auth import hash_token, new_token
from dispatcher.store import Token
from policies.world import JobState
from tests.api.fake import FakeServices, Server
from tests.helpers import wait_until

RAY = Path(sys.executable).with_name("ray")
pytestmark = pytest.mark.real


@pytest.fixture
def moving(services: FakeServices) -> Iterator[FakeServices]:
    """A control plane whose jobs run at once."""
    stop = threading.Event()
    thread = threading.Thread(target=services.run_all, args=[stop])
    thread.start()
    yield services
    stop.set()
    thread.join()


def clean_env(home: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "GRIDSHIFT_"))}
    return {**kept, "HOME": str(home), "RAY_AUTH_MODE": "disabled", **more}


def ray(server: Server, tmp_path: Path, verb: str, *argv: str, fails: bool = False, **env: str) -> str:
    done = subprocess.run(
        [str(RAY), "job", verb, "--address", server.url, *argv],
        env=clean_env(tmp_path, **env),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode != 0) == fails, f"{argv} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_everything_the_command_line_can_ask_for(server: Server, services: FakeServices, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "job.py").write_text("print('hi')")
    said = ray(
        server,
        tmp_path,
        "submit",
        "--submission-id=my-job",
        "--no-wait",
        f"--working-dir={work}",
        '--runtime-env-json={"env_vars": {"A": "1"}}',
        '--metadata-json={"gridshift.deadline": "6h", "gridshift.runtime": "5m", "gridshift.pausable": "checkpoint", "x": "y"}',
        "--entrypoint-num-cpus=2",
        "--entrypoint-num-gpus=1.5",
        "--entrypoint-memory=1000000",
        '--entrypoint-resources={"fpga": 1}',
        '--entrypoint-label-selector={"region": "in(a,b)"}',
        "--",
        "python",
        "job.py",
        "--flag=a b",
    )
    assert "my-job" in said
    job = services.store.job("my-job")
    assert job.state is JobState.QUEUED
    request = job.request
    assert request.entrypoint == "python job.py '--flag=a b'"
    assert request.metadata["x"] == "y"
    assert (request.entrypoint_num_cpus, request.entrypoint_num_gpus, request.entrypoint_memory) == (2, 1.5, 1000000)
    assert request.entrypoint_resources == {"fpga": 1}
    assert request.entrypoint_label_selector == {"region": "in(a,b)"}
    assert request.runtime_env["env_vars"]["A"] == "1"
    package = request.runtime_env["working_dir"].removeprefix("gcs://")
    assert services.packages.verify(package) and services.packages.name_verified(package)
    assert (job.flex.flexible, job.flex.runtime_s, job.flex.pausable, job.flex.gpus) == (True, 300.0, "checkpoint", 1.5)
    # the same folder is not sent again
    again = ray(server, tmp_path, "submit", "--submission-id=other", "--no-wait", f"--working-dir={work}", "--", "true")
    assert "already exists, skipping upload" in again
    # a package that rotted is sent again
    services.packages.path(package).write_bytes(b"rot")
    again = ray(server, tmp_path, "submit", "--submission-id=third", "--no-wait", f"--working-dir={work}", "--", "true")
    assert "skipping upload" not in again and services.packages.verify(package)
    services.change(
        "my-job", reason="cheapest start before the deadline", planned_region="north", planned_start_at=job.submitted_at
    )
    status = ray(server, tmp_path, "status", "my-job")
    assert "PENDING" in status and "cheapest start before the deadline (planned start 20" in status
    listed = ray(server, tmp_path, "list")
    assert "my-job" in listed and "other" in listed
    assert "my-job" in ray(server, tmp_path, "stop", "my-job", "--no-wait")
    assert services.store.job("my-job").cancel_requested_at is not None
    said = ray(server, tmp_path, "delete", "my-job", fails=True)
    assert "it is in a non-terminal state" in said
    services.change("my-job", to=JobState.CANCELLED, reason="cancelled")
    assert "stopped" in ray(server, tmp_path, "status", "my-job")
    ray(server, tmp_path, "delete", "my-job")
    assert "does not exist" in ray(server, tmp_path, "status", "my-job", fails=True)


def test_waiting_submissions_show_the_log_and_tell_success_from_failure(
    server: Server, moving: FakeServices, tmp_path: Path
) -> None:
    said = ray(server, tmp_path, "submit", "--", "echo", "hi")
    assert "hello from the job" in said and "succeeded" in said
    said = ray(server, tmp_path, "submit", "--submission-id=bad", "--", "false", fails=True)
    assert "hello from the job" in said and "failed" in said
    assert ray(server, tmp_path, "logs", "bad").count("hello from the job") == 1
    said = ray(server, tmp_path, "submit", "--submission-id=long", "--no-wait", "--", "sleep", "100")
    assert "stopped" in ray(server, tmp_path, "stop", "long")


def test_what_is_wrong_is_shown(server: Server, services: FakeServices, tmp_path: Path) -> None:
    said = ray(
        server, tmp_path, "submit", "--no-wait", '--metadata-json={"gridshift.deadline": "yesterday"}', "--", "true", fails=True
    )
    assert "gridshift.deadline: 'yesterday': must be a time such as" in said
    assert services.store.counts() == {}
    ray(server, tmp_path, "submit", "--submission-id=twice", "--no-wait", "--", "true")
    said = ray(server, tmp_path, "submit", "--submission-id=twice", "--no-wait", "--", "true", fails=True)
    assert "Job with submission_id twice already exists" in said
    for verb in ("status", "logs", "stop", "delete"):
        assert "Job nobody does not exist" in ray(server, tmp_path, verb, "nobody", fails=True)


def test_tokens(server: Server, services: FakeServices, tmp_path: Path) -> None:
    token = new_token()
    services.store.add_token(Token("ci", hash_token(token), services.clock.now())).result()
    wait_until(lambda: server.call("GET", "/api/jobs/").status_code == 401, 10, "the token to count")
    assert "an API token is needed" in ray(server, tmp_path, "list", fails=True)
    file = tmp_path / "token"
    file.write_text(token)
    ray(server, tmp_path, "submit", "--no-wait", "--", "true", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(file))
    file.write_text(token + "x")
    said = ray(server, tmp_path, "list", fails=True, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(file))
    assert "not valid here" in said
    headers = json.dumps({"Authorization": f"Bearer {token}"})
    ray(server, tmp_path, "submit", f"--headers={headers}", "--no-wait", "--submission-id=h", "--", "true")
    attempt = services.launch("h")
    services.say(attempt, "said by h")
    services.end(attempt, JobState.SUCCEEDED)
    assert "said by h" in ray(server, tmp_path, "logs", "h", "--follow", f"--headers={headers}")
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{server.port}/api/jobs/h/logs/tail").close()
    assert refused.value.response.status_code == 401


@pytest.mark.filterwarnings("ignore:ssl=None is deprecated")  # Ray's own call of aiohttp
def test_the_python_client(server: Server, moving: FakeServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("HOME", str(tmp_path))
    from ray.job_submission import JobStatus, JobSubmissionClient

    client = JobSubmissionClient(server.url)
    assert client.get_version() == "4"
    module = tmp_path / "mymod"
    module.mkdir()
    (module / "__init__.py").write_text("")
    job_id = client.submit_job(entrypoint="true", runtime_env={"py_modules": [str(module)]}, metadata={"k": "v"})
    assert job_id.startswith("gs-")
    wait_until(lambda: client.get_job_status(job_id) == JobStatus.SUCCEEDED, 20, "success")
    info = client.get_job_info(job_id)
    assert (info.submission_id, info.metadata, info.entrypoint) == (job_id, {"k": "v"}, "true")
    assert info.start_time and info.end_time and info.end_time >= info.start_time
    assert client.get_job_logs(job_id) == "hello from the job\n"
    assert [job.submission_id for job in client.list_jobs()] == [job_id]
    assert client.stop_job(job_id) is False

    async def tail() -> str:
        return "".join([text async for text in client.tail_job_logs(job_id)])

    assert asyncio.run(tail()) == "hello from the job\n"
    assert client.delete_job(job_id) is True
    assert client.list_jobs() == []
    with pytest.raises(RuntimeError, match="does not exist"):
        client.get_job_info(job_id)


def test_a_tail_follows_all_attempts_and_ends_only_with_the_stored_job(server: Server, services: FakeServices) -> None:
    server.submit("j", metadata={"gridshift.pausable": "checkpoint"})
    with connect(f"ws://127.0.0.1:{server.port}/api/jobs/j/logs/tail") as tail:
        with pytest.raises(TimeoutError):
            tail.recv(timeout=1.5)  # held: silent, and open
        first = services.launch("j")
        services.say(first, "one\nhalf \xe9")
        text = tail.recv(timeout=10)
        while not text.endswith("half \xe9"):
            text += tail.recv(timeout=10)
        services.change("j", to=JobState.PAUSING)
        services.end(first, JobState.PAUSED)
        with pytest.raises(TimeoutError):
            tail.recv(timeout=1.5)
        second = services.launch("j", "south")
        services.say(second, "two\n")
        more = tail.recv(timeout=10)
        while not more.endswith("two\n"):
            more += tail.recv(timeout=10)
        assert "attempt 2 in region south" in more
        services.say(second, "end\n")
        services.end(second, JobState.SUCCEEDED)
        rest = "".join(tail)
        assert rest.endswith("end\n")
        assert tail.close_code == 1000
    assert server.get("/api/jobs/j/logs")["logs"] == text + more + rest


def test_a_tail_survives_a_store_that_is_away_and_is_cut_by_what_it_cannot_survive(
    server: Server, services: FakeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    from websockets.exceptions import ConnectionClosedError

    from dispatcher.errors import StoreUnavailable

    server.submit("j")
    asked = threading.Event()

    def away(job_id: str) -> None:
        asked.set()
        raise StoreUnavailable

    with connect(f"ws://127.0.0.1:{server.port}/api/jobs/j/logs/tail") as tail:
        monkeypatch.setattr(services.store, "job", away)
        assert asked.wait(10)
        with pytest.raises(TimeoutError):
            tail.recv(timeout=1.5)
        monkeypatch.setattr(services.store, "job", lambda job_id: 1 / 0)
        with pytest.raises(ConnectionClosedError):
            tail.recv(timeout=10)
        assert tail.close_code == 1006


def test_tailing_nobody(server: Server) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{server.port}/api/jobs/nobody/logs/tail").close()
    assert refused.value.response.status_code == 404
