"""How long the server waits for a client that says nothing, or only half of what it began: uvicorn itself waits for ever.

It knows connections and headers only; how much body a request may bring is dispatcher.api.limits'.
"""

import asyncio
import resource

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Wall seconds from a connection, or from the first byte of a request, to the end of its headers.
HEADERS_S = 20.0
#: A body must bring so many bytes in so many wall seconds.
BODY_S, BODY_BYTES = 20.0, 1000


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, closing connections whose headers do not come and whose bodies only trickle: a few hundred of them
    would use up every file that the process may open, and then nobody is answered."""

    headers_s, body_s = HEADERS_S, BODY_S
    _waiting: asyncio.TimerHandle | None = None
    _arrived = 0
    _begun = _headers_complete = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for headers."""
        super().connection_made(transport)
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a request that is not whole; most come in one piece and cost no timer."""
        self._arrived += len(data)
        before = (self._begun, self._headers_complete)
        super().data_received(data)
        if self._begun and (self._waiting is None or (self._begun, self._headers_complete) != before):
            if self._headers_complete:
                self._wait_for_body()
            else:
                self._wait_for_headers()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._begun, self._headers_complete = True, False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its headers are there; when it becomes a websocket's, nothing more is waited for."""
        self._headers_complete = True
        if self.parser.should_upgrade():
            self._begun = False
            self._wait_no_more()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Wait no longer; only when it was answered before it was whole, nobody else waits for the next request."""
        self._begun = False
        self._wait_no_more()
        super().on_message_complete()
        if self.cycle is not None and self.cycle.response_complete:
            self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait_for_headers(self) -> None:
        self._wait_no_more()
        self._waiting = self.loop.call_later(self.headers_s, self.transport.abort)

    def _wait_for_body(self) -> None:
        self._wait_no_more()
        self._waiting = self.loop.call_later(self.body_s, self._look, self._arrived)

    def _look(self, arrived_before: int) -> None:
        # While we ourselves have stopped reading, the client cannot send.
        if self.flow.read_paused or self._arrived - arrived_before >= BODY_BYTES:
            self._wait_for_body()
        else:
            self.transport.abort()

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


def allow_many_files() -> tuple[int, int]:
    """Raise the number of files that this process may open to what the system allows it; returns (before, now)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
