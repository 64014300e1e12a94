"""Who may call, with tokens and without."""

from pathlib import Path
from typing import Any

import pytest

from dispatcher.api import auth
from dispatcher.api.auth import hash_token, is_loopback, new_token
from dispatcher.errors import StoreUnavailable
from dispatcher.store import Token
from tests.api.fake import FakeServices, Server

EVIL = {"Origin": "http://evil.example"}


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.9.9.9:1", "[::1]:8700", "localhost.:80"])
def test_this_machines_names_are_answered_without_tokens(shared: Server, host: str) -> None:
    assert shared.call("GET", "/v1/status", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8700", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", "[", "[::2]"]
)
def test_other_names_are_not(shared: Server, host: str) -> None:
    server, services = shared, shared.services
    for path in ("/v1/status", "/api/version", "/api/jobs/", "/docs", "/metrics"):
        answer = server.call("GET", path, headers={"Host": host})
        assert answer.status_code == 421 and "gridshift tokens create" in answer.text
    answer = server.call("POST", "/api/jobs/", json={"entrypoint": "true"}, headers={"Host": host})
    assert answer.status_code == 421 and services.store.counts() == {}


@pytest.mark.parametrize(
    "headers",
    [
        EVIL,
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://localhost:1"},
        {"Origin": "http://localhost:3000"},
    ],
)
def test_pages_of_others_cannot_use_a_browser(shared: Server, headers: dict[str, str]) -> None:
    server, services = shared, shared.services
    for path in ("/api/jobs/", "/v1/jobs"):
        answer = server.call("POST", path, data=b'{"entrypoint": "true"}', headers={"Content-Type": "text/plain", **headers})
        assert answer.status_code == 403
    assert services.store.counts() == {}


def test_its_own_pages_can(server: Server) -> None:
    own = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
    assert server.call("POST", "/v1/jobs", json={"entrypoint": "true"}, headers=own).status_code == 201


def with_token(services: FakeServices, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(auth, "REMEMBER_S", 0.0)
    token = new_token()
    services.store.add_token(Token("t", hash_token(token), services.clock.now())).result()
    return token


def test_tokens_in_every_place(server: Server, services: FakeServices, monkeypatch: pytest.MonkeyPatch) -> None:
    token = with_token(services, monkeypatch)
    for headers in (
        {"Authorization": f"Bearer {token}"},
        {"Authorization": f"bearer  {token} "},
        {"X-Ray-Authorization": f"Bearer {token}"},
        {"X-Gridshift-Token": token},
        {"Cookie": f"a=b; ray-authentication-token={token}"},
        {"Authorization": "Basic abc", "X-Ray-Authorization": f"Bearer {token}"},
    ):
        assert server.call("GET", "/v1/status", headers=headers).status_code == 200, headers
        assert server.call("GET", "/v1/status", headers={**headers, "Host": "gridshift.example"}).status_code == 200
        assert server.call("POST", "/api/jobs/", json={}, headers={**headers, **EVIL}).status_code == 403
    wrongs: list[dict[str, Any]] = [
        {},
        {"Authorization": token},
        {"Authorization": f"Basic {token}"},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {token}x"},
        {"Authorization": f"Bearer {hash_token(token)}"},
        {"X-Gridshift-Token": "\xe9"},
        {"Cookie": f"other={token}"},
        {"Cookie": "ray-authentication-token="},
    ]
    for headers in wrongs:
        for path in ("/v1/status", "/api/jobs/", "/api/version", "/docs", "/openapi.json", "/metrics", "/v1/nothing"):
            answer = server.call("GET", path, headers=headers)
            assert answer.status_code == 401, (headers, path)
            assert token not in answer.text and answer.headers["WWW-Authenticate"].startswith("Bearer")
    for path in ("/healthz", "/readyz"):
        assert server.call("GET", path).status_code == 200
    assert server.call("GET", "/v1/self").status_code == 401
    assert server.call("POST", "/v1/webhooks/x", data=b"").status_code == 404


def test_a_revoked_token_no_longer_counts(server: Server, services: FakeServices, monkeypatch: pytest.MonkeyPatch) -> None:
    token = with_token(services, monkeypatch)
    second = new_token()
    services.store.add_token(Token("u", hash_token(second), services.clock.now())).result()
    assert server.call("GET", "/v1/status", headers={"X-Gridshift-Token": token}).status_code == 200
    services.store.revoke_token("t").result()
    assert server.call("GET", "/v1/status", headers={"X-Gridshift-Token": token}).status_code == 401


def test_elsewhere_than_loopback_no_tokens_means_nobody(tmp_path: Path) -> None:
    services = FakeServices(tmp_path, server={"host": "0.0.0.0"})
    with Server(services) as server:
        assert server.call("GET", "/v1/status").status_code == 401
        assert server.call("GET", "/healthz").status_code == 200


def test_a_configured_name_is_ours(tmp_path: Path) -> None:
    with Server(FakeServices(tmp_path, server={"public_url": "https://grid.example:443"})) as server:
        assert server.call("GET", "/v1/status", headers={"Host": "grid.example"}).status_code == 200
        own = {"Host": "inner:1", "Origin": "https://grid.example:443"}
        assert server.call("GET", "/v1/status", headers=own).status_code == 421


def test_tokens_that_cannot_be_read(server: Server, services: FakeServices, monkeypatch: pytest.MonkeyPatch) -> None:
    token = with_token(services, monkeypatch)
    assert server.call("GET", "/v1/status", headers={"X-Gridshift-Token": token}).status_code == 200

    def away() -> None:
        raise StoreUnavailable

    monkeypatch.setattr(services.store, "tokens", away)
    assert server.call("GET", "/v1/status", headers={"X-Gridshift-Token": token}).status_code == 200
    assert server.call("GET", "/v1/status").status_code == 401  # not open because the database is away
    monkeypatch.setattr(auth, "FORGET_S", -1.0)
    assert server.call("GET", "/v1/status", headers={"X-Gridshift-Token": token}).status_code == 503


def test_tokens_are_random_and_hosts_are_told_apart() -> None:
    assert new_token() != new_token() and len(new_token()) > 40
    assert len(hash_token("x")) == 64
    assert is_loopback("::1") and not is_loopback("") and not is_loopback("0.0.0.0")
