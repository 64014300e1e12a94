"""A provider on loopback with the manners, good and bad, of real ones, scripted per path; and time that only tests move."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import requests

from signals.manners import Manners


class Time:
    """The wall and the monotonic clock of a test: sleeping moves both, nothing else does."""

    def __init__(self, start: datetime = datetime(2026, 3, 1, tzinfo=UTC)) -> None:
        self.now_at = start
        self.slept: list[float] = []
        self._began = start

    def wall(self) -> datetime:
        return self.now_at

    def monotonic(self) -> float:
        return 1000.0 + (self.now_at - self._began).total_seconds()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_at += timedelta(seconds=seconds)

    def manners(self) -> Manners:
        return Manners(monotonic=self.monotonic, wall=self.wall)


@dataclass(frozen=True)
class Asked:
    """One request as it came in."""

    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    """One answer: ``cut`` bytes of the body are promised and not sent, ``trickle`` sends blanks until the provider closes."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: int = 0
    trickle: bool = False
    silent: bool = False


Play = Callable[[Asked], Reply]


class Provider:
    """A loopback HTTP server; ``plays`` maps a path's beginning to what is answered there, the longest beginning first.

    ``date`` is what its clock says (the Date header); None sends none.
    """

    def __init__(self, date: Callable[[], datetime] | None = None) -> None:
        self.plays: dict[str, Play] = {}
        self.asked: list[Asked] = []
        self.release = threading.Event()
        self.lock = threading.Lock()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked = Asked(self.command, parts.path, dict(parse_qsl(parts.query)), dict(self.headers), body)
                with provider.lock:
                    provider.asked.append(asked)
                    beginnings = [beginning for beginning in provider.plays if asked.path.startswith(beginning)]
                    play = provider.plays[max(beginnings, key=len)] if beginnings else lambda asked: Reply(404)
                    answer = play(asked)
                if answer.silent:
                    provider.release.wait(20)
                    self.close_connection = True
                    return
                self.send_response_only(answer.status)
                if date is not None:
                    self.send_header("Date", format_datetime(date(), usegmt=True))
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(10**6 if answer.trickle else len(answer.body)))
                self.end_headers()
                if answer.trickle:
                    while not provider.release.wait(0.05):
                        self.wfile.write(b" ")
                self.wfile.write(answer.body[: len(answer.body) - answer.cut])
                if answer.cut or answer.trickle:
                    self.close_connection = True

            do_POST = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # clients that hang up are part of the play

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.host = f"127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=lambda: self.server.serve_forever(poll_interval=0.05))
        self.thread.start()

    def paths(self) -> list[str]:
        return [asked.path for asked in self.asked]

    def close(self) -> None:
        self.release.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@contextmanager
def provider(date: Callable[[], datetime] | None = None) -> Iterator[Provider]:
    one = Provider(date)
    try:
        yield one
    finally:
        one.close()


def direct_session() -> requests.Session:
    """A session that no proxy of the environment comes between."""
    session = requests.Session()
    session.trust_env = False
    return session


# --- plays ----------------------------------------------------------------------------------------------------------


def always(body: bytes, status: int = 200, **headers: str) -> Play:
    return lambda asked: Reply(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


def one_after_another(*replies: Reply) -> Play:
    """Each answer once, the last one again and again."""
    left = list(replies)
    return lambda asked: left.pop(0) if len(left) > 1 else left[0]


def tagged(body: Callable[[], bytes]) -> Play:
    """With an ETag of the body; 304 to who has it already."""

    def play(asked: Asked) -> Reply:
        payload = body()
        tag = f'"{hashlib.sha256(payload).hexdigest()[:16]}"'
        if asked.headers.get("If-None-Match") == tag:
            return Reply(304, headers={"ETag": tag})
        return Reply(200, payload, {"ETag": tag})

    return play


def rate_limited(inner: Play, clock: Callable[[], datetime], per_s: float, retry_after: str) -> Play:
    """At most one request in ``per_s`` seconds, else 429."""
    last: list[datetime] = []

    def play(asked: Asked) -> Reply:
        now = clock()
        if last and (now - last[-1]).total_seconds() < per_s:
            return Reply(429, b"slow down", {"Retry-After": retry_after})
        last.append(now)
        return inner(asked)

    return play


def behind_login(inner: Play, tokens: list[str]) -> Play:
    """Only with the newest of ``tokens`` as bearer, else 401 that repeats what it refuses."""

    def play(asked: Asked) -> Reply:
        given = asked.headers.get("Authorization", "")
        if not tokens or given != f"Bearer {tokens[-1]}":
            return Reply(401, f"invalid token {given}".encode())
        return inner(asked)

    return play
