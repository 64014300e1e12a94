"""Submissions straight from the parser to the store and back: the framework's and the server's layers (a task, a scope, a
conversation of messages for each request) cost more than everything else that a submission needs.

Taken here is only what is certainly plain: one POST to Ray's path, of a caller who may call, with a small body of declared
length, while nothing else is under way on its connection. All the rest goes the usual way and is answered there.
"""

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from starlette.responses import Response
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from dispatcher.api.answers import error_response, text_response
from dispatcher.api.auth import Auth
from dispatcher.api.patience import PatientProtocol
from dispatcher.api.ray_jobs import SUBMIT_PATHS, RayJobs
from dispatcher.errors import GridshiftError
from dispatcher.store import Job

log = logging.getLogger(__name__)

_PATHS = frozenset(path.encode() for path in SUBMIT_PATHS)
#: Headers that ask for more than a plain request does.
_SPECIAL = (b"transfer-encoding", b"expect", b"upgrade")


class Handback:
    """Brings what the store's thread finished back to the event loop: many answers, one wake-up."""

    def __init__(self) -> None:
        self._done: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._called = False

    def when_done(self, loop: asyncio.AbstractEventLoop, future: "Future[Job]", then: "Callable[[Future[Job]], None]") -> None:
        """Call ``then(future)`` on the loop once the future is done."""

        def done(future: "Future[Job]") -> None:
            with self._lock:
                self._done.append(lambda: then(future))
                wake, self._called = not self._called, True
            if wake:
                with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever waited
                    loop.call_soon_threadsafe(self._drain)

        future.add_done_callback(done)

    def _drain(self) -> None:
        with self._lock:
            done, self._done, self._called = self._done, deque(), False
        for call in done:
            try:
                call()
            except Exception:  # one connection's trouble is not the others'
                log.exception("an answer could not be sent")


class Express:
    """What the protocol below needs of the application: who may submit here and now, and how."""

    def __init__(self, auth: Auth, jobs: RayJobs, max_bytes: int) -> None:
        self._auth, self._jobs = auth, jobs
        # uvicorn stops reading above its limit until the body is asked for; here nobody asks.
        self._max_bytes = min(max_bytes, HIGH_WATER_LIMIT)
        self._handback = Handback()

    def takes(self, headers: list[tuple[bytes, bytes]]) -> bool:
        """Whether a submission with these headers is a plain one that may pass."""
        named = dict(headers)
        length = named.get(b"content-length", b"")
        return (
            len(named) == len(headers)
            and not any(name in named for name in _SPECIAL)
            and length.isdigit()
            and int(length) <= self._max_bytes
            and self._auth.passes(named)
        )

    def submit(self, loop: asyncio.AbstractEventLoop, body: bytes, answer: "Callable[[Job | Response], None]") -> None:
        """Take a submission. ``answer`` is called on the loop with the job once it is durably stored, or with the error."""
        try:
            job_id, future = self._jobs.begin(body)
        except GridshiftError as error:
            answer(error_response(SUBMIT_PATHS[0], error))
        except Exception:
            log.exception("a submission went wrong")
            answer(text_response("Internal Server Error", 500))
        else:
            self._handback.when_done(loop, future, lambda done: self._end(job_id, done, answer))

    def _end(self, job_id: str, done: "Future[Job]", answer: "Callable[[Job | Response], None]") -> None:
        try:
            answer(self._jobs.end(job_id, done))
        except GridshiftError as error:
            answer(error_response(SUBMIT_PATHS[0], error))
        except Exception:
            log.exception("a submission went wrong")
            answer(text_response("Internal Server Error", 500))


class _Quiet:
    """Nobody waits for messages of a submission."""

    def set(self) -> None:
        """Nothing."""


class Taken:
    """A submission under way, in the place of uvicorn's own RequestResponseCycle; the names are uvicorn's."""

    __slots__ = ("body", "disconnected", "keep_alive", "more_body", "response_complete")

    message_event = _Quiet()

    def __init__(self, keep_alive: bool) -> None:
        self.keep_alive = keep_alive
        self.body = bytearray()
        self.more_body = True
        self.response_complete = self.disconnected = False


class IntakeProtocol(PatientProtocol):
    """uvicorn's HTTP/1.1 with patience, and with a way of its own for submissions when the application has one."""

    def __init__(self, config: Any, *args: Any, **named: Any) -> None:
        super().__init__(config, *args, **named)
        self._express: Express | None = getattr(config.app, "express", None)

    def on_headers_complete(self) -> None:
        """Take a plain submission; leave everything else to uvicorn."""
        if self._is_plain_submission():
            self._headers_complete = True
            self.cycle = Taken(self.parser.should_keep_alive())  # type: ignore[assignment]
        else:
            super().on_headers_complete()

    def _is_plain_submission(self) -> bool:
        return (
            self._express is not None
            and self.url in _PATHS
            and self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and (self.cycle is None or self.cycle.response_complete)
            and not self.pipeline
            and not self.flow.write_paused  # whoever does not read answers waits in the usual way
            and not self.config.access_log
            and self._express.takes(self.headers)
        )

    def on_message_complete(self) -> None:
        """The submission is whole."""
        super().on_message_complete()
        cycle: Any = self.cycle
        if self._express is not None and type(cycle) is Taken and not cycle.response_complete:
            self._express.submit(self.loop, bytes(cycle.body), lambda answer: self._answer(cycle, answer))

    def _answer(self, cycle: Taken, answer: Job | Response) -> None:
        cycle.response_complete = True
        if cycle.disconnected or self.transport.is_closing():
            return
        if isinstance(answer, Response):
            status, named, body = answer.status_code, answer.raw_headers, bytes(answer.body)
        else:
            # An id has no character that JSON would have to escape (submissions.JOB_ID).
            status, body = 200, b'{"job_id":"%b","submission_id":"%b"}' % (answer.id.encode(), answer.id.encode())
            named = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
        head = [STATUS_LINE[status]]
        for name, value in [*self.server_state.default_headers, *named]:
            head += (name, b": ", value, b"\r\n")
        if not cycle.keep_alive:
            head.append(b"connection: close\r\n")
        self.transport.write(b"".join([*head, b"\r\n", body]))
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()
