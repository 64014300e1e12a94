"""Submissions that go straight from the parser to the store: nothing may tell them from those that go the usual way."""

import json
import socket

import pytest

from dispatcher.api import auth
from dispatcher.api.intake import Express
from dispatcher.errors import StoreUnavailable
from tests.api.fake import FakeServices, Server


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bodies that went the short way."""
    bodies: list[bytes] = []
    submit = Express.submit

    def noted(self: Express, loop: object, body: bytes, answer: object) -> None:
        bodies.append(body)
        submit(self, loop, body, answer)  # type: ignore[arg-type]

    monkeypatch.setattr(Express, "submit", noted)
    monkeypatch.setattr(auth, "REMEMBER_S", 600.0)  # on a slow machine tokens must not grow old within a test
    return bodies


def post(server: Server, body: bytes, *, target: str = "/api/jobs/", more: str = "", length: bool = True) -> bytes:
    declared = f"Content-Length: {len(body)}\r\n" if length else ""
    return f"POST {target} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n{declared}{more}\r\n".encode() + body


def answers(connection: socket.socket, count: int) -> list[tuple[dict[bytes, bytes], bytes]]:
    """(headers with the status under b"", body) of each answer."""
    held, found = b"", []
    while len(found) < count:
        head, ended, rest = held.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        named = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
        length = int(named.get(b"content-length", b"0"))
        if ended and len(rest) >= length:
            found.append(({b"": lines[0], **named}, rest[:length]))
            held = rest[length:]
            continue
        more = connection.recv(65_536)
        assert more, f"closed after {held!r}"
        held += more
    assert not held
    return found


def connect(server: Server) -> socket.socket:
    server.http.get(f"{server.url}/v1/jobs", timeout=20)  # from here on the tokens are known
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


@pytest.mark.parametrize(
    "body", [b'{"entrypoint":"true"}', b'{"entrypoint":""}', b"no json", b"", b'{"entrypoint":"true","submission_id":"used"}']
)
def test_both_ways_answer_alike(server: Server, taken: list[bytes], body: bytes) -> None:
    server.submit("used")
    taken.clear()
    with connect(server) as connection:
        connection.sendall(post(server, body))
        short = answers(connection, 1)[0]
        assert taken == [body]
        connection.sendall(post(server, body, target="/api/jobs/?usual=1"))
        usual = answers(connection, 1)[0]
        assert taken == [body]
    for named, _ in (short, usual):
        named.pop(b"date", None)
    if short[0][b""].endswith(b"200 OK"):
        said = json.loads(short[1])
        assert said["job_id"] == said["submission_id"] and server.services.store.job(said["job_id"]) is not None
        assert set(said) == set(json.loads(usual[1]))
        assert short[0] == usual[0]
    else:
        assert short == usual and b" 400 " in short[0][b""]


@pytest.mark.parametrize(
    "more", ["Expect: 100-continue\r\n", "Origin: http://evil.example\r\n", "X-A: 1\r\nX-A: 2\r\n", "Cookie: a=b\r\n"]
)
def test_what_is_not_plain_goes_the_usual_way(server: Server, taken: list[bytes], more: str) -> None:
    with connect(server) as connection:
        connection.sendall(post(server, b'{"entrypoint":"true"}', more=more))
        first = connection.recv(100)
    assert taken == []
    assert b" 403 " in first if "Origin" in more else b" 200 " in first or b" 100 " in first


@pytest.mark.parametrize(("filling", "short"), [(60_000, True), (65_536, False), (120_000, False)])
def test_a_large_body_is_taken_either_way(server: Server, taken: list[bytes], filling: int, short: bool) -> None:
    body = json.dumps({"entrypoint": "x" * filling, "submission_id": "large"}).encode()
    with connect(server) as connection:
        connection.sendall(post(server, body))
        assert json.loads(answers(connection, 1)[0][1])["job_id"] == "large"
    assert bool(taken) is short


def test_many_in_one_piece_are_answered_in_order(server: Server, taken: list[bytes]) -> None:
    bodies = [json.dumps({"entrypoint": "true", "submission_id": f"p{n}"}).encode() for n in range(5)]
    with connect(server) as connection:
        connection.sendall(b"".join(post(server, body) for body in bodies))
        got = [json.loads(body)["job_id"] for _, body in answers(connection, 5)]
    assert got == [f"p{n}" for n in range(5)] and taken


def test_a_connection_that_is_to_be_closed_is(server: Server, taken: list[bytes]) -> None:
    with connect(server) as connection:
        connection.sendall(post(server, b'{"entrypoint":"true"}', more="Connection: close\r\n"))
        named, _ = answers(connection, 1)[0]
        assert named[b"connection"] == b"close" and connection.recv(10) == b""
    assert len(taken) == 1


def test_whoever_leaves_before_the_answer_is_stored_all_the_same(server: Server, taken: list[bytes]) -> None:
    with connect(server) as connection:
        connection.sendall(post(server, b'{"entrypoint":"true","submission_id":"gone"}'))
    with connect(server) as connection:  # the server goes on
        connection.sendall(post(server, b'{"entrypoint":"true","submission_id":"next"}'))
        assert json.loads(answers(connection, 1)[0][1]) == {"job_id": "next", "submission_id": "next"}
    assert server.services.store.job("gone") is not None and len(taken) == 2


def test_a_store_that_fails_is_told(server: Server, services: FakeServices, taken: list[bytes]) -> None:
    with connect(server) as connection:
        original = services.admit

        def fail(job: object) -> object:
            raise StoreUnavailable("the disk is full; nothing was stored")

        services.admit = fail  # type: ignore[assignment, method-assign]
        connection.sendall(post(server, b'{"entrypoint":"true"}'))
        named, body = answers(connection, 1)[0]
        services.admit = original  # type: ignore[method-assign]
    assert b" 503 " in named[b""] and named[b"retry-after"] == b"1" and b"disk is full" in body and len(taken) == 1
