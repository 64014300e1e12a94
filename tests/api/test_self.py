"""What a running attempt may ask and say of itself."""

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
    assert told == {"job_id": "j", "attempt": 1, "current": True, "checkpoint_requested": False, "checkpoint_by": None}
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


def test_an_attempt_that_is_no_longer_the_current_one(server: Server, services: FakeServices, job: dict[str, str]) -> None:
    assert server.get("/v1/self", headers=job)["current"] is True
    services.end(services.store.attempts("j")[0], JobState.QUEUED, "lost")
    again = bearer(services, services.launch("j").submission_id)
    ask(services)
    told = server.get("/v1/self", headers=job)
    assert (told["current"], told["checkpoint_requested"], told["attempt"]) == (False, False, 1)
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
