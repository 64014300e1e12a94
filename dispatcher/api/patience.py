"""How long the server waits for a client that says nothing, or only half of what it began: uvicorn itself waits for ever.

It knows connections and headers only; how much body a request may bring is dispatcher.api.limits'.
"""

import asyncio
import resource

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Wall seconds from a connection, or from the first byte of a request, to the end of its headers.
HEADERS_S = 20.0


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, closing connections whose headers do not come: a few hundred of them would use up every file that
    the process may open, and then nobody is answered."""

    headers_s = HEADERS_S
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait."""
        super().connection_made(transport)
        self._wait()

    def on_message_begin(self) -> None:
        """Begin to wait anew for a request on a connection that is kept."""
        self._wait()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Wait no longer."""
        self._wait_no_more()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._wait_no_more()
        self._waiting = self.loop.call_later(self.headers_s, self.transport.abort)

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
