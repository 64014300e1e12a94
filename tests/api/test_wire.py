"""The HTTP API against clients that are wrong, careless or hostile: nothing is stored, and each is told what would be right."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher.api.patience import PatientProtocol
from dispatcher.errors import StoreUnavailable
from policies.world import JobState
from tests.api.fake import FakeServices, Server
from tests.helpers import wait_until

GOOD = {"entrypoint": "true"}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "entrypoint"),
        ({"entrypoint": ""}, "entrypoint"),
        ({"entrypoint": "  "}, "entrypoint"),
        ({"entrypoint": 5}, "entrypoint"),
        ({"entrypoint": ["python"]}, "entrypoint"),
        ({"entrypoint": "x" * 140_000}, "entrypoint"),
        ({**GOOD, "submission_id": "../x"}, "submission_id"),
        ({**GOOD, "submission_id": "a/b"}, "submission_id"),
        ({**GOOD, "submission_id": ""}, "submission_id"),
        ({**GOOD, "submission_id": "x" * 129}, "submission_id"),
        ({**GOOD, "submission_id": "x\n"}, "submission_id"),
        ({**GOOD, "submission_id": 7}, "submission_id"),
        ({**GOOD, "submission_id": "ü"}, "submission_id"),
        ({**GOOD, "submission_id": "a", "job_id": "b"}, "job_id"),
        ({**GOOD, "metadata": {"a": 1}}, "metadata.a"),
        ({**GOOD, "metadata": {"a": None}}, "metadata.a"),
        ({**GOOD, "metadata": ["a"]}, "metadata"),
        ({**GOOD, "metadata": "a"}, "metadata"),
        ({**GOOD, "runtime_env": "x"}, "runtime_env"),
        ({**GOOD, "runtime_env": {"env_vars": {"A": 1}}}, "runtime_env.env_vars"),
        ({**GOOD, "runtime_env": {"env_vars": "A=1"}}, "runtime_env.env_vars"),
        ({**GOOD, "runtime_env": {"working_dir": "gcs://_ray_pkg_ffffffffffffffff.zip"}}, "not held here; upload it first"),
        ({**GOOD, "runtime_env": {"working_dir": "gcs://../secret.zip"}}, "runtime_env.working_dir"),
        ({**GOOD, "entrypoint_num_cpus": "2"}, "entrypoint_num_cpus"),
        ({**GOOD, "entrypoint_num_gpus": -1}, "entrypoint_num_gpus"),
        ({**GOOD, "entrypoint_num_gpus": True}, "entrypoint_num_gpus"),
        ({**GOOD, "entrypoint_num_gpus": 10**300}, "entrypoint_num_gpus"),
        ({**GOOD, "entrypoint_memory": 1.5}, "entrypoint_memory"),
        ({**GOOD, "entrypoint_memory": 1 << 70}, "entrypoint_memory"),
        ({**GOOD, "entrypoint_resources": {"a": "1"}}, "entrypoint_resources.a"),
        ({**GOOD, "entrypoint_resources": [1]}, "entrypoint_resources"),
        ({**GOOD, "entrypoint_label_selector": {"a": 1}}, "entrypoint_label_selector.a"),
        ({**GOOD, "surprise": 1}, "surprise"),
        ({**GOOD, "metadata": {"gridshift.deadline": "2020-01-01T00:00:00Z"}}, "gridshift.deadline"),
        ({**GOOD, "metadata": {"gridshift.deadline": "2040-01-01T00:00:00"}}, "gridshift.deadline"),
        ({**GOOD, "metadata": {"gridshift.deadline": "1h", "gridshift.earliest": "2h"}}, "gridshift.earliest"),
        ({**GOOD, "metadata": {"gridshift.regions": "nrth"}}, "did you mean 'north'"),
        ({**GOOD, "metadata": {"gridshift.power_w": "-5"}}, "gridshift.power_w"),
        ({**GOOD, "metadata": {"gridshift.dedline": "1h"}}, "gridshift.deadline"),
    ],
)
def test_a_wrong_submission_is_refused_in_both_dialects(shared: Server, body: dict[str, Any], field: str) -> None:
    server, services = shared, shared.services
    as_ray = server.call("POST", "/api/jobs/", json=body)
    assert as_ray.status_code == 400 and as_ray.headers["content-type"].startswith("text/plain")
    assert field in as_ray.text
    ours = server.call("POST", "/v1/jobs", json=body)
    assert ours.status_code == 422
    problems = ours.json()["error"]["problems"]
    assert any(field in json.dumps(problem, ensure_ascii=False) for problem in problems)
    assert all(set(problem) == {"field", "value", "remedy"} and problem["remedy"] for problem in problems)
    assert services.store.counts() == {}
    assert len(as_ray.content) < 3000 and len(ours.content) < 3000


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({**GOOD, "metadata": {"a": "x" * 1_000_000}}, ["metadata"]),
        ({**GOOD, "metadata": {"a": "\N{SNOWMAN}" * 170_000}}, ["metadata"]),  # half as many bytes as Ray would get
        ({**GOOD, "metadata": {"a": "x" * 400_000}, "runtime_env": {"config": ["y" * 700_000]}}, ["runtime_env", "metadata"]),
    ],
)
def test_a_submission_that_no_ray_takes_is_refused(shared: Server, body: dict[str, Any], fields: list[str]) -> None:
    data = json.dumps(body, ensure_ascii=False).encode()
    answer = shared.call("POST", "/v1/jobs", data=data)
    assert answer.status_code == 422
    problems = answer.json()["error"]["problems"]
    assert [problem["field"] for problem in problems] == fields
    assert all(problem["value"].endswith(" bytes") and "1 MiB" in problem["remedy"] for problem in problems)
    as_ray = shared.call("POST", "/api/jobs/", data=data)
    assert as_ray.status_code == 400 and fields[0] in as_ray.text and "below 1,000,000 bytes" in as_ray.text
    assert shared.services.store.counts() == {}


def test_a_submission_that_ray_just_takes_is_taken(server: Server) -> None:
    assert server.call("POST", "/api/jobs/", json={**GOOD, "metadata": {"a": "x" * 999_000}}).status_code == 200


def test_every_problem_is_named_at_once(server: Server) -> None:
    answer = server.call("POST", "/v1/jobs", json={"entrypoint": 1, "metadata": {"a": 1, "b": 2}, "entrypoint_memory": "x"})
    assert {p["field"] for p in answer.json()["error"]["problems"]} == {
        "entrypoint",
        "metadata.a",
        "metadata.b",
        "entrypoint_memory",
    }


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b'{"entrypoint": "true", "entrypoint_num_gpus": NaN}',
        b'{"entrypoint": "true", "entrypoint_num_gpus": Infinity}',
        b'{"entrypoint": "true", "entrypoint_num_gpus": 1e400}',
        b'{"entrypoint": "true", "runtime_env": {"config": {"x": -1e999}}}',
        b'{"entrypoint": "true", "entrypoint_num_gpus": ' + b"9" * 5000 + b"}",
        b'{"entrypoint": "true\\u0000"}',
        b'{"entrypoint": "true", "metadata": {"\\ud800": "x"}}',
        b'{"entrypoint": "true", "runtime_env": {"x": ["\\udfff"]}}',
        b'{"entrypoint": "true", "runtime_env": {"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
        b'{"entrypoint": "true", "runtime_env": {"x": ' + b"[" * 70 + b"]" * 70 + b"}}",
        b'{"entrypoint": "true", "runtime_env": {"x": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}}",
        b"--boundary\r\nContent-Disposition: form-data\r\n",
    ],
)
def test_bodies_that_are_no_json_of_ours(shared: Server, body: bytes) -> None:
    server, services = shared, shared.services
    for path, status in (("/api/jobs/", 400), ("/v1/jobs", 422)):
        answer = server.call("POST", path, data=body, headers={"Content-Type": "text/html"})
        assert answer.status_code == status, answer.text
    assert services.store.counts() == {}


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("/v1/jobs", b'{"entrypoint": "true", "entrypoint": "rm -r x"}', "entrypoint"),
        ("/v1/jobs", b'{"entrypoint": "true", "metadata": {"gridshift.gpus": "1", "gridshift.gpus": "8"}}', "gridshift.gpus"),
        ("/api/jobs/", b'{"entrypoint": "true", "runtime_env": {"x": [{"a": 1, "\\u0061": 2}]}}', "a"),
        ("/v1/events", b'{"event_id": "e", "region": "north", "limit_w": 1e6, "limit_w": 0}', "limit_w"),
        ("/v1/jobs", b'{"entrypoint": "true", "\\ud800": 1, "\\ud800": 2}', "?"),
    ],
)
def test_a_key_that_is_given_twice_is_named_and_refused(shared: Server, path: str, body: bytes, key: str) -> None:
    answer = shared.call("POST", path, data=body)
    assert answer.status_code == (400 if path == "/api/jobs/" else 422), answer.text
    assert f"body: {key!r}: this key is given twice in one object" in answer.text or answer.json()["error"]["problems"] == [
        {"field": "body", "value": key, "remedy": "this key is given twice in one object; give it once"}
    ]
    assert shared.services.store.counts() == {} and not list(shared.services.store.grid_events())


def test_what_is_merely_unusual_is_taken(server: Server, services: FakeServices) -> None:
    body = b'{"entrypoint": "echo \\ud83d\\ude00", "metadata": null, "submission_id": "a.b-c_D9", "job_id": null, '
    body += b'"runtime_env": {"x": [[[1e300]]]}}'
    answer = server.call("POST", "/api/jobs", data=body, headers={"Content-Type": "text/plain"})
    assert answer.json() == {"job_id": "a.b-c_D9", "submission_id": "a.b-c_D9"}
    assert services.store.job("a.b-c_D9").request.entrypoint == "echo \N{GRINNING FACE}"
    legacy = server.call("POST", "/api/jobs/", json={"entrypoint": "true", "job_id": "old"})
    assert legacy.json()["submission_id"] == "old"
    assert server.submit("old").status_code == 400
    assert server.call("POST", "/v1/jobs", json={"entrypoint": "true", "submission_id": "old"}).status_code == 409
    assert server.call("POST", "/v1/jobs", json={"entrypoint": "true"}).json()["id"].startswith("gs-")


def raw(server: Server, head: str, *body: bytes) -> bytes:
    """Send bytes as they are and return the answer's first bytes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
        s.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n")
        for piece in body:
            s.sendall(piece)
        return s.recv(65536)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Server]:
    with Server(FakeServices(tmp_path, server={"max_body_mb": 0.1, "max_package_mb": 0.2})) as running:
        yield running


def test_bodies_that_are_too_large(small: Server) -> None:
    large = b'{"entrypoint": "' + b"x" * 150_000 + b'"}'
    assert small.call("POST", "/api/jobs/", data=large).status_code == 413
    assert (
        small.call("POST", "/v1/jobs", data=large).json()["error"]["message"].startswith("the body is larger than the 100,000")
    )
    assert small.call("POST", "/api/jobs/", data=iter([large])).status_code == 413  # chunked, without a length
    assert small.call("POST", "/v1/webhooks/x", data=b"x" * 70_000).status_code == 413
    name = "_ray_pkg_0123456789abcdef.zip"
    assert small.call("PUT", f"/api/packages/gcs/{name}", data=b"x" * 300_000).status_code == 413
    assert small.call("PUT", f"/api/packages/gcs/{name}", data=iter([b"x" * 50_000] * 6)).status_code == 413
    assert small.call("GET", f"/api/packages/gcs/{name}").status_code == 404
    assert [path.name for path in (small.services.data_dir / "packages").iterdir()] == []
    chunk = b"%x\r\n" % 50_000 + b"y" * 50_000 + b"\r\n"
    head = f"POST /api/jobs/ HTTP/1.1\nHost: 127.0.0.1:{small.port}\nTransfer-Encoding: chunked"
    assert b"413" in raw(small, head, *[chunk] * 5).split(b"\r\n")[0]
    assert small.services.store.counts() == {}


def test_an_upload_that_breaks_off_leaves_nothing(server: Server) -> None:
    head = f"PUT /api/packages/gcs/_ray_pkg_aa.zip HTTP/1.1\nHost: 127.0.0.1:{server.port}\nContent-Length: 5000"
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
        s.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\nPK")
    folder = server.services.data_dir / "packages"
    wait_until(lambda: list(folder.iterdir()) == [], 10, "the broken upload to be dropped")
    assert server.call("GET", "/api/packages/gcs/_ray_pkg_aa.zip").status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/api/packages/gcs/..%2f..%2fetc%2fpasswd",
        "/api/packages/gcs/%2e%2e",
        "/api/packages/gcs/a%00.zip",
        "/api/packages/file/_ray_pkg_aa.zip",
        "/api/packages/gcs/evil.sh",
    ],
)
def test_package_names_that_lead_elsewhere(shared: Server, path: str) -> None:
    server = shared
    assert server.call("PUT", path, data=b"x").status_code in (400, 404, 405)
    assert server.call("GET", path).status_code in (400, 404)
    assert list((server.services.data_dir / "packages").iterdir()) == []


def test_a_package_that_is_no_zip(server: Server) -> None:
    answer = server.call("PUT", "/api/packages/gcs/_ray_pkg_aa.zip", data=b"not a zip")
    assert answer.status_code == 400 and "not a sound archive" in answer.text


@pytest.mark.parametrize("job_id", ["x", "a%2Fb", "..", "%2e%2e", "a%00b", "%ff", "x" * 500, "a b", "é"])
def test_unknown_ids(shared: Server, job_id: str) -> None:
    server = shared
    for method, path in (
        ("GET", "/api/jobs/{}"),
        ("DELETE", "/api/jobs/{}"),
        ("POST", "/api/jobs/{}/stop"),
        ("GET", "/api/jobs/{}/logs"),
        ("GET", "/v1/jobs/{}"),
        ("GET", "/v1/jobs/{}/events"),
        ("GET", "/v1/jobs/{}/logs"),
        ("GET", "/v1/jobs/{}/result"),
        ("POST", "/v1/jobs/{}/cancel"),
        ("POST", "/v1/jobs/{}/pause"),
        ("POST", "/v1/jobs/{}/resume"),
        ("GET", "/v1/plan/{}"),
        ("DELETE", "/v1/events/api/{}"),
    ):
        answer = raw(
            server, f"{method} {path.format(job_id)} HTTP/1.1\nHost: localhost\nConnection: close".replace("é", "%C3%A9")
        )
        status = answer.split(b" ")[1]
        assert status in (b"404", b"400", b"405", b"307"), (method, path, answer)


def test_a_database_that_is_away(server: Server, services: FakeServices, monkeypatch: pytest.MonkeyPatch) -> None:
    server.submit("j")

    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("the database is locked; nothing was stored")

    for name in ("job", "ray_jobs", "page", "counts", "apply", "add_job", "grid_events"):
        monkeypatch.setattr(services.store, name, away)
    monkeypatch.setattr(services.store, "healthy", lambda: False)
    for method, path in (
        ("GET", "/api/jobs/"),
        ("GET", "/api/jobs/j"),
        ("POST", "/api/jobs/j/stop"),
        ("GET", "/v1/jobs"),
        ("POST", "/v1/jobs/j/cancel"),
        ("GET", "/v1/status"),
        ("GET", "/v1/events"),
    ):
        answer = server.call(method, path)
        assert answer.status_code == 503 and "locked" in answer.text
    assert server.submit("k").status_code == 503
    assert server.call("POST", "/v1/jobs", json=GOOD).status_code == 503
    assert server.call("GET", "/healthz").status_code == 200
    ready = server.call("GET", "/readyz")
    assert ready.status_code == 503 and ready.json()["problems"] == ["the database does not answer"]
    assert "gridshift_jobs{" not in server.call("GET", "/metrics").text


def test_wrong_paths_and_methods(server: Server) -> None:
    assert server.call("GET", "/v1/nothing").json()["error"]["message"] == "there is no /v1/nothing here"
    assert server.call("DELETE", "/v1/jobs").status_code == 405
    assert server.call("GET", "/api/nothing").headers["content-type"].startswith("text/plain")


def test_secrets_stay_out_of_what_browsers_and_lists_show(server: Server) -> None:
    server.submit("j", runtime_env={"env_vars": {"PASSWORD": "hunter2"}})
    assert "hunter2" in server.call("GET", "/api/jobs/j").text  # Ray's client gets what it sent
    for path in ("/api/jobs/j", "/api/jobs/"):
        text = server.call("GET", path, headers={"User-Agent": "Mozilla/5.0"}).text
        assert "hunter2" not in text and "PASSWORD" in text
    for path in ("/v1/jobs", "/v1/jobs/j"):
        assert "hunter2" not in server.call("GET", path).text


def test_list_holds_every_active_job_and_the_latest_ended(server: Server, services: FakeServices) -> None:
    for n in range(1003):
        server.submit(f"e{n}")
        services.change(f"e{n}", to=JobState.CANCELLED)
    server.submit("active")
    listed = server.get("/api/jobs/")
    assert len(listed) == 1001
    assert listed[0]["submission_id"] == "active" and "e0" not in {job["submission_id"] for job in listed}
    assert {job["status"] for job in listed} == {"PENDING", "STOPPED"}


def test_half_a_request_is_not_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PatientProtocol, "headers_s", 0.2)
    whole = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n".encode()
    for said in (b"", b"GET /hea", whole, whole + b"\r\n" + whole):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
            s.sendall(said)
            answers = b""
            with contextlib.suppress(ConnectionResetError):
                while chunk := s.recv(1000):
                    answers += chunk
        assert answers.count(b"200 OK") == (1 if said.count(b"GET") == 2 else 0)
    # a request whose body takes longer than its headers may is waited for
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
        s.sendall(whole.replace(b"GET /healthz", b"POST /api/jobs/") + b"Content-Length: 22\r\n\r\n" + b'{"entrypoint"')
        time.sleep(0.5)  # longer than headers may take: that is what is tested
        s.sendall(b':"true" }')
        assert b"200 OK" in s.recv(1000)


def test_a_body_that_only_trickles_is_not_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PatientProtocol, "body_s", 0.2)
    head = f"POST /v1/webhooks/nobody HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 5000\r\n\r\n".encode()
    for path in (b"/v1/webhooks/nobody", b"/api/jobs/"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
            s.sendall(head.replace(b"/v1/webhooks/nobody", path) + b"x")
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                while s.recv(1000):
                    s.sendall(b"x")  # also after it was answered
    # one that is large and steady is taken
    body = b'{"entrypoint": "' + b"x" * 60_000 + b'"}'
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
        s.sendall(f"POST /api/jobs/ HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        for at in range(0, len(body), 15_000):
            s.sendall(body[at : at + 15_000])
            time.sleep(0.15)  # in all longer than one look
        assert b"200 OK" in s.recv(1000)
