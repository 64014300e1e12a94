"""The agent's connection to the control plane: a websocket that is made again whenever it breaks, and nothing else.

What is said over it is the runner's business; without it nothing on the node changes, except what leases say themselves.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

try:
    from websockets.exceptions import InvalidStatus, WebSocketException
    from websockets.sync.client import ClientConnection, connect
except ImportError:  # this Python is too old for it
    from .plain_socket import ClientConnection, InvalidStatus, WebSocketException, connect  # type: ignore[assignment,no-redef]

from .messages import MAX_FRAME_BYTES, MAX_TEXT, BadFrame, Frame, FromServer, decode, encode, from_server

log = logging.getLogger("gridshift.agent")

#: Seconds before the first try to connect again, and the longest between tries.
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 10.0
#: A connection that stood for less, s, was none: it is not tried again at once what is refused again and again.
STOOD_S = 2.0
#: Seconds within which a connection must be made.
OPEN_S = 10.0
#: Seconds without an answer to a ping after which the connection counts as dead.
PING_S = 10.0


def channel_url(server: str, region: str) -> str:
    """Where agents of a region connect. Raises ValueError for an address that is none."""
    parts = urlsplit(server if "://" in server else f"http://{server}")
    schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
    if parts.scheme not in schemes or not parts.hostname:
        raise ValueError(f"{server!r} must be the address of the control plane, such as https://gridshift.example.org:8700")
    path = f"{parts.path.rstrip('/')}/v1/agents/channel"
    return urlunsplit((schemes[parts.scheme], parts.netloc, path, f"region={quote(region, safe='')}", ""))


class Channel:
    """A thread that keeps one connection. ``hello`` makes the first frame of each; ``on_frame`` gets what comes and may return
    an answer; ``on_open`` is called after hello is sent. All three are called in this thread."""

    def __init__(
        self,
        server: str,
        region: str,
        token: str | None,
        *,
        hello: Callable[[], Frame],
        on_frame: Callable[[FromServer], Frame | None],
        on_open: Callable[[], None] = lambda: None,
        first_wait_s: float = FIRST_WAIT_S,
        longest_wait_s: float = LONGEST_WAIT_S,
    ) -> None:
        self._url, self._token = channel_url(server, region), token
        self._hello, self._on_frame, self._on_open = hello, on_frame, on_open
        self._first_wait_s, self._longest_wait_s = first_wait_s, longest_wait_s
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._connection: ClientConnection | None = None
        self._thread = threading.Thread(target=self._run, name="channel", daemon=True)
        #: Why there is no connection, as a sentence; None while there is one.
        self.trouble: str | None = "not connected yet"

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def stop(self) -> None:
        """Let go of the connection and end; safe to repeat."""
        self._stopping.set()
        with self._lock:
            connection = self._connection
        if connection is not None:
            connection.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(OPEN_S)

    @property
    def connected(self) -> bool:
        """Whether hello was sent on a connection that still stands, as far as is known."""
        return self._connection is not None

    def send(self, frame: Frame) -> bool:
        """Send now; False where there is no connection, or it broke. That it arrived is known only by an answer."""
        with self._lock:
            connection = self._connection
        if connection is None:
            return False
        try:
            connection.send(encode(frame))
        except (WebSocketException, OSError) as error:
            log.debug("a frame was not sent: %s", error)
            return False
        return True

    def _run(self) -> None:
        wait_s = self._first_wait_s
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                if self._serve_one() and time.monotonic() - began >= STOOD_S:
                    wait_s = self._first_wait_s
            except Exception:
                log.exception("the connection to the control plane went wrong; it is made anew")
            # Not all agents at once, after a restart of the control plane.
            if self._stopping.wait(wait_s * random.uniform(0.7, 1.3)):
                return
            wait_s = min(2 * wait_s, self._longest_wait_s)

    def _serve_one(self) -> bool:
        """One connection from beginning to end; whether it was made."""
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        more: dict[str, Any] = {"proxy": None}  # a proxy meant for the internet would hide the control plane
        made = False
        try:
            with connect(
                self._url,
                additional_headers=headers,
                max_size=MAX_FRAME_BYTES,
                open_timeout=OPEN_S,
                close_timeout=1.0,
                ping_interval=PING_S,
                ping_timeout=PING_S,
                user_agent_header="gridshift-agent",
                **more,
            ) as connection:
                made = True
                self._serve(connection)
        except (WebSocketException, OSError) as error:  # time-outs are OSErrors
            self._say(_why(error))
        finally:
            with self._lock:
                self._connection = None
        return made

    def _serve(self, connection: ClientConnection) -> None:
        connection.send(encode(self._hello()))
        with self._lock:
            self._connection = connection
        if self._stopping.is_set():
            return
        self.trouble = None
        log.info("connected to the control plane")
        self._on_open()
        for text in connection:
            self._take(connection, text)
        self._say("the control plane closed the connection")

    def _take(self, connection: ClientConnection, text: str | bytes) -> None:
        frame: Frame = {}
        try:
            frame = decode(text)
            reply = self._on_frame(from_server(frame))
        except BadFrame as error:
            log.warning("a frame of the control plane was not understood: %s", error)
            reply = _not_understood(frame, str(error))
        except Exception as error:  # whatever it was, the next order must still be heard
            log.exception("a frame of the control plane could not be dealt with")
            reply = _not_understood(frame, f"{type(error).__name__}: {error}")
        if reply is not None:
            connection.send(encode(reply))

    def _say(self, why: str) -> None:
        """Note why there is no connection; in the log once, not at every try."""
        if why != self.trouble and not self._stopping.is_set():
            log.warning("no connection to the control plane: %s", why)
        self.trouble = why


def _not_understood(frame: Frame, message: str) -> Frame:
    """The answer to a frame that could not be obeyed; it names the order that it was, so that nobody waits for it."""
    order = frame.get("order")
    named = {"order": order} if isinstance(order, str) and 0 < len(order) <= MAX_TEXT else {}
    return {"type": "error", "message": message[:MAX_TEXT], **named}


def _why(error: Exception) -> str:
    if isinstance(error, InvalidStatus):
        body = (error.response.body or b"")[:300].decode("utf-8", "replace").strip()
        return f"it answers HTTP {error.response.status_code}{': ' if body else ''}{body}"
    return str(error) or type(error).__name__
