"""What a running attempt may ask and say of itself."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from policies.world import JobState
from tests.api.fake import FakeServices, Server

FLEX = {"gridshift.pausable": "checkpoint", "gridshift.checkpoint_s": "30"}


@pytest.fixture
def job(server: Server, services: FakeServices) -> dict[str, str]:
    """A running job; its attempt's credentials."""
    server.submit("j", metadata=FLEX)
    return bearer(services, services.launch("j").submission_id)


def bearer(services: FakeServices, submission_id: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {services.job_token(submission_id)}"}


def ask(services: FakeServices) -> None:
    services.change("j", to=JobState.PAUSING, pause_requested_at=services.clock.now())


def saved(server: Server, headers: dict[str, str], attempt: Any = 1) -> int:
    return server.call("POST", "/v1/self/checkpoint", json={"attempt": attempt}, headers=headers).status_code


def test_asked_for_a_checkpoint(server: Server, services: FakeServices, job: dict[str, str]) -> None:
    told = server.get("/v1/self", headers=job)
    assert told == {
        "job_id": "j",
        "attempt": 1,
        "current": True,
        "superseded": False,
        "checkpoint_requested": False,
        "checkpoint_by": None,
    }
    assert saved(server, job) == 409  # nobody asked: the job goes on
    ask(services)
    told = server.get("/v1/self", headers=job)
    assert told["checkpoint_requested"] is True and told["checkpoint_by"] > services.clock.now().isoformat()
    before = services.nudges
    assert saved(server, job) == 200
    assert services.store.job("j").checkpoint_saved_at is not None and services.nudges > before
    events = len(services.store.events("j"))
    assert saved(server, job) == 200  # told again, because the answer was lost
    assert len(services.store.events("j")) == events


def test_a_job_that_is_being_cancelled_is_to_end_once_it_saved(
    server: Server, services: FakeServices, job: dict[str, str]
) -> None:
    services.change("j", cancel_requested_at=services.clock.now())
    assert server.get("/v1/self", headers=job)["checkpoint_requested"] is False  # Ray's SIGTERM asks, nobody here does
    answer = server.call("POST", "/v1/self/checkpoint", json={"attempt": 1}, headers=job)
    assert (answer.status_code, answer.json()["saved"], answer.json()["cancel_requested"]) == (200, True, True)
    assert services.store.job("j").checkpoint_saved_at is None, "nothing resumes from it"
    assert saved(server, bearer(services, "j-9")) == 401 and saved(server, job, 2) == 409


def test_a_pause_that_is_acknowledged_says_that_nothing_is_cancelled(
    server: Server, services: FakeServices, job: dict[str, str]
) -> None:
    ask(services)
    answer = server.call("POST", "/v1/self/checkpoint", json={"attempt": 1}, headers=job)
    assert answer.json() == {"job_id": "j", "attempt": 1, "saved": True, "cancel_requested": False}


@pytest.mark.real
def test_a_cancelled_job_saves_once_and_exits(
    server: Server, services: FakeServices, job: dict[str, str], tmp_path: Path
) -> None:
    code = """
import sys, time
from dispatcher.client import checkpoint_requested, checkpoint_saved
checkpoint_requested()
print("started", flush=True)
for step in range(2000):
    time.sleep(0.01)
    if checkpoint_requested():
        print("saved", flush=True)
        if checkpoint_saved():
            sys.exit(0)
"""
    ours = {"GRIDSHIFT_URL": server.url, "GRIDSHIFT_JOB_TOKEN": job["Authorization"].split()[1], "GRIDSHIFT_ATTEMPT": "1"}
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **ours}, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        services.change("j", cancel_requested_at=services.clock.now())
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=20)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out) == (0, "saved\n")


def test_an_attempt_that_is_no_longer_the_current_one(server: Server, services: FakeServices, job: dict[str, str]) -> None:
    assert server.get("/v1/self", headers=job)["current"] is True
    services.end(services.store.attempts("j")[0], JobState.QUEUED, "lost")
    told = server.get("/v1/self", headers=job)
    assert (told["current"], told["superseded"]) == (False, False), "nobody has taken its place yet"
    again = bearer(services, services.launch("j").submission_id)
    ask(services)
    told = server.get("/v1/self", headers=job)
    assert (told["current"], told["checkpoint_requested"], told["attempt"]) == (False, False, 1)
    assert told["superseded"] is True and server.get("/v1/self", headers=again)["superseded"] is False
    assert saved(server, job) == 409
    assert saved(server, again) == 409  # its own token, but another attempt's number
    assert server.call("PUT", "/v1/self/result", data=b"stale", headers=job).status_code == 409
    assert saved(server, again, 2) == 200


@pytest.mark.parametrize("attempt", [None, "1", 1.0, True, [1]])
def test_an_attempt_that_is_no_number(server: Server, services: FakeServices, job: dict[str, str], attempt: Any) -> None:
    ask(services)
    assert saved(server, job, attempt) == 422


def test_strangers(server: Server, services: FakeServices, job: dict[str, str]) -> None:
    ask(services)
    for headers in ({}, {"Authorization": "Bearer x"}, bearer(services, "j-2"), bearer(services, "j"), {"Authorization": "x"}):
        assert server.call("GET", "/v1/self", headers=headers).status_code == 401
        assert saved(server, headers) == 401
        assert server.call("PUT", "/v1/self/result", data=b"x", headers=headers).status_code == 401
    assert services.store.job("j").checkpoint_saved_at is None
    assert not (services.data_dir / "results").exists()


def test_results(server: Server, services: FakeServices, job: dict[str, str]) -> None:
    assert server.call("PUT", "/v1/self/result", data=b"\0first", headers=job).status_code == 204
    assert server.call("PUT", "/v1/self/result", data=b"\0second", headers=job).status_code == 204
    assert server.get("/v1/jobs/j")["has_result"] is True
    answer = server.call("GET", "/v1/jobs/j/result")
    assert answer.content == b"\0second" and answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    services.end(services.store.attempts("j")[0], JobState.SUCCEEDED)
    assert server.call("GET", "/v1/jobs/j/result").content == b"\0second"
    assert server.call("PUT", "/v1/self/result", data=b"late", headers=job).status_code == 409
    assert [path.name for path in (services.data_dir / "results").iterdir()] == ["j-1"]


def test_a_result_that_is_too_large_is_told_so(tmp_path: Path) -> None:
    services = FakeServices(tmp_path, server={"max_body_mb": 0.01})
    with Server(services) as server:
        server.submit("j")
        headers = bearer(services, services.launch("j").submission_id)
        assert server.call("PUT", "/v1/self/result", data=b"x" * 20_000_000, headers=headers).status_code == 413
        assert server.call("PUT", "/v1/self/result", data=b"small", headers=headers).status_code == 204


def test_a_disk_that_does_not_take_the_result(
    server: Server, services: FakeServices, job: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (services.data_dir / "results").write_text("in the way")
    assert server.call("PUT", "/v1/self/result", data=b"x", headers=job).status_code == 503
    assert services.store.job("j").has_result is False


def test_a_flood_of_strangers_does_not_keep_a_job_waiting(
    server: Server, services: FakeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    real = services.store.live_attempts
    monkeypatch.setattr(services.store, "live_attempts", lambda: looks.append(1) or real())  # type: ignore[func-returns-value]
    with ThreadPoolExecutor(40) as pool:
        answers = list(
            pool.map(
                lambda n: requests.get(f"{server.url}/v1/self", headers={"Authorization": f"Bearer junk{n}"}, timeout=30),
                range(40),
            )
        )
    assert {answer.status_code for answer in answers} == {401}
    assert 0 < len(looks) < 10
