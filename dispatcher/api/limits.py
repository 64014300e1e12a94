"""How much body a request may bring: declared or counted while it streams in, and answered with 413 past that.

It knows sizes and paths only.
"""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dispatcher.api.answers import Refused, error_response
from dispatcher.config import Config

WEBHOOK_BYTES = 64 * 1024


def body_bytes(config: Config) -> int:
    """The most that a body may have where nothing else is said."""
    return int(config.server.max_body_mb * 1e6)


class BodyLimit:
    """ASGI middleware. A body that is too large is not read on; the server discards the rest, so that a client which sends
    first and reads later still learns why."""

    def __init__(self, app: ASGIApp, config: Config) -> None:
        self._app = app
        self._default = body_bytes(config)
        self._package = int(config.server.max_package_mb * 1e6)

    def _limit(self, path: str) -> tuple[int, str]:
        if path.startswith("/api/packages/"):
            return self._package, "exclude files, or raise server.max_package_mb"
        if path.startswith(("/v1/webhooks/", "/v1/openadr3/")):
            return WEBHOOK_BYTES, "send one event at a time"
        return self._default, "send less, or raise server.max_body_mb"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the class."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        limit, remedy = self._limit(scope["path"])
        refusal = Refused(413, f"the body is larger than the {limit:,} bytes that are taken here; {remedy}")
        headers = Headers(scope=scope)
        declared = headers.get("content-length", "")
        if declared.isdigit() and int(declared) > limit:
            await error_response(scope["path"], refusal)(scope, receive, send)
            return
        if declared.isdigit() and "transfer-encoding" not in headers:
            await self._app(scope, receive, send)  # the server reads no more than was declared
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise refusal  # in the handler that reads, which answers with it
            return message

        await self._app(scope, counted, send)
