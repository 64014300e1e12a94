"""The agents' side of the API: one websocket a node, on which frames go both ways (see dispatcher.agent.messages).

It knows who may speak for which region and how to send from any thread; what a frame means is the hub's business.
"""

import asyncio
import contextlib
import hmac
import logging
import threading
import time
from collections import deque

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from dispatcher.agent.messages import MAX_FRAME_BYTES, encode
from dispatcher.api.answers import Refused, error_response, in_thread
from dispatcher.api.auth import hash_token, host_of, is_loopback, presented, refuse
from dispatcher.api.flood import Allowance
from dispatcher.api.services import Services
from dispatcher.errors import GridshiftError

log = logging.getLogger(__name__)

PATH = "/v1/agents/channel"
#: Characters that may wait for an agent that does not read; with more it is cut off, and connects again.
MOST_WAITING = 16 * MAX_FRAME_BYTES
#: Seconds for which an agent that is cut off is waited for to read why.
CLOSE_S = 2.0


class AgentSocket:
    """One agent's connection as the hub sees it (dispatcher.power.hub.Session)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[str] = deque()
        self._waiting_size = 0
        self._allowance = Allowance(MAX_FRAME_BYTES, time.monotonic())
        self._lock = threading.Lock()
        self._woken = False
        self._wake = asyncio.Event()
        self.closed_why: str | None = None

    def send(self, text: str, *, is_order: bool = False) -> None:
        """Queue a frame; many queued at once cost the event loop one wake-up."""
        with self._lock:
            if self.closed_why is not None:
                return  # nobody will read it
            self._waiting.append(text)
            self._waiting_size += len(text)
            if is_order:
                self._allowance.ordered(len(text))
            if self._waiting_size > MOST_WAITING:
                self.closed_why = "frames are not read"
        self._call()

    def excess(self, size: int) -> str | None:
        """Why a frame of this size is more than the agent may send now, as a sentence; None when it is not."""
        with self._lock:
            return self._allowance.excess(size, time.monotonic())

    def close(self, why: str) -> None:
        """End the connection after what is queued."""
        with self._lock:
            if self.closed_why is None:
                self.closed_why = why
        self._call()

    def _call(self) -> None:
        with self._lock:
            wake, self._woken = not self._woken, True
        if wake:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the connection
                self._loop.call_soon_threadsafe(self._wake.set)

    async def write(self, socket: WebSocket) -> None:
        """Send what is queued until the connection is closed; runs on the event loop."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            with self._lock:
                frames, self._waiting, self._woken = self._waiting, deque(), False
            for text in frames:
                await socket.send_text(text)
                with self._lock:
                    self._waiting_size -= len(text)
            if self.closed_why is not None and not self._waiting:
                await socket.close(1000, self.closed_why[:100])
                return


class AgentsApi:
    """The endpoint of agents."""

    def __init__(self, services: Services) -> None:
        self._services, self._hub = services, services.hub

    def routes(self) -> list[BaseRoute]:
        """Where it listens."""
        return [WebSocketRoute(PATH, self.channel)]

    async def channel(self, socket: WebSocket) -> None:
        """Take an agent's frames and send it orders until either side goes."""
        region = socket.query_params.get("region", "")
        try:
            proven = await self._check(socket, region)
        except GridshiftError as error:
            await refuse(socket.scope, socket.receive, socket.send, error_response(PATH, error))
            return
        await socket.accept()
        session = AgentSocket(asyncio.get_running_loop())
        tasks = [asyncio.create_task(task) for task in (self._read(socket, session, region, proven), session.write(socket))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if tasks[0].done() and session.closed_why is not None:
                self._hub.gone(session)
                await asyncio.wait(tasks[1:], timeout=CLOSE_S)  # it is told why, if it reads
        except (WebSocketDisconnect, RuntimeError) as error:  # starlette says RuntimeError for sending after the end
            log.debug("an agent of %s went: %s", region, error)
        finally:
            self._hub.gone(session)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, socket: WebSocket, session: AgentSocket, region: str, proven: bool) -> None:
        while True:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            frame = text if text is not None else message.get("bytes") or b""
            if (excess := session.excess(len(frame))) is not None:
                log.warning("an agent of %s is cut off: %s", region, excess)
                session.send(encode({"type": "error", "message": excess}))
                session.close(excess)
                return
            reply = self._hub.receive(session, region, frame, proven=proven)
            if reply is not None:
                session.send(reply)

    async def _check(self, socket: WebSocket, region: str) -> bool:
        """Whether the caller's token is that of the agents of ``region``; raises Refused unless it may speak for them."""
        tokens, config = presented(socket.headers), self._services.config
        if "origin" in socket.headers:  # a foreign page could use the token in its visitor's cookie
            raise Refused(403, "agents are no browsers: a request with an Origin header is not one of theirs")
        if region not in {one.name for one in config.regions}:
            known = ", ".join(one.name for one in config.regions) or "none is configured"
            raise Refused(404, f"region {region[:100]!r} is not known here; known: {known}")
        if any(hmac.compare_digest(token.encode(), self._services.agent_token(region).encode()) for token in tokens):
            return True
        known_tokens = {token.sha256 for token in await in_thread(self._services.store.tokens)}
        if any(hash_token(token) in known_tokens for token in tokens):
            return False
        is_here = config.server.is_loopback and is_loopback(host_of(socket.headers.get("host", "")))
        if not tokens and not known_tokens and is_here:
            return False  # as for everything else here: without API tokens, this machine may
        what = "this token is not one of the region's agents" if tokens else "a token is needed"
        raise Refused(
            401,
            f"{what}; give 'gridshift agent' an API token ('gridshift tokens create NAME') with --token-file or --token-env",
            {"WWW-Authenticate": "Bearer"},
        )
