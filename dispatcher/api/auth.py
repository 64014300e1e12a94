"""Who may call: API tokens, and, while there are none, this machine only and no browser on somebody else's behalf.

It knows tokens by their hash only, and never writes one down. Webhooks and jobs prove themselves by other means (see
`webhooks` and `self_service`), so their paths pass here.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from dispatcher.api.answers import Refused, error_response, in_thread
from dispatcher.api.services import Services
from dispatcher.errors import StoreUnavailable

#: Seconds for which the store's tokens are remembered; a revoked one works that much longer.
REMEMBER_S = 2.0
#: Seconds after which tokens that could not be read again are no longer trusted.
FORGET_S = 30.0
#: Paths that need no token: they say nothing, or have credentials of their own.
_OPEN = ("/healthz", "/readyz")
_OWN_CREDENTIALS = ("/v1/webhooks/", "/v1/openadr3/callback", "/v1/self", "/v1/agents/channel")
#: What browsers send and Ray's clients do not: it needs the long look.
_OF_BROWSERS = (b"origin", b"sec-fetch-site", b"cookie")
_COOKIE = "ray-authentication-token"


def new_token() -> str:
    """A new API token, to be shown once and stored as its hash."""
    return f"gs_{secrets.token_urlsafe(32)}"


def hash_token(token: str) -> str:
    """What is stored of a token: its SHA-256, hex. Tokens are random and long, so a slow hash would add nothing."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def presented(headers: Headers) -> list[str]:
    """Every token that a request carries, in any of the places where Ray's clients and ours put it."""
    found = [headers[name][7:].strip() for name in ("authorization", "x-ray-authorization") if _is_bearer(headers.get(name))]
    if "x-gridshift-token" in headers:
        found.append(headers["x-gridshift-token"].strip())
    if "cookie" in headers and _COOKIE in headers["cookie"]:
        try:
            morsel = SimpleCookie(headers["cookie"]).get(_COOKIE)
        except CookieError:
            morsel = None
        if morsel is not None:
            found.append(morsel.value)
    return [token for token in found if token]


def _is_bearer(value: str | None) -> bool:
    return value is not None and value[:7].lower() == "bearer "


def is_loopback(host: str) -> bool:
    """Whether a host name or address (no port) means this machine."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def host_of(value: str) -> str:
    """The host of a Host header or of a URL's network location, lower case, without port; "" when there is none."""
    try:
        return (urlsplit(f"//{value}").hostname or "").lower()
    except ValueError:
        return ""


# Clients name the same few hosts again and again.
_known_host, _is_loopback = lru_cache(64)(host_of), lru_cache(64)(is_loopback)


class Auth:
    """ASGI middleware that lets a request pass or answers it 401 (token), 403 (foreign page) or 421 (foreign host name)."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app, self._services = app, services
        #: The way of its own for submissions (see dispatcher.api.intake), for a server that knows it.
        self.express: object | None = None
        self._hashes: frozenset[str] | None = None
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        server = services.config.server
        self._loopback_only = server.is_loopback
        self._public = urlsplit(server.public_url).netloc.lower() if server.public_url else ""
        self._hosts = {host_of(self._public), host_of(server.host)} - {"", "0.0.0.0", "::"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the class."""
        if scope["type"] in ("http", "websocket") and not scope["path"].startswith(_OWN_CREDENTIALS):
            refusal = await self._refusal(scope)
            if refusal is not None:
                await refuse(scope, receive, send, refusal)
                return
        await self._app(scope, receive, send)

    async def _refusal(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), scope["path"]
        try:
            self._check_page(headers)
            if path in _OPEN:
                return None
            hashes = await self._tokens()
            if hashes or not self._loopback_only:
                _check_token(headers, hashes)
            else:
                self._check_host(headers)
        except (Refused, StoreUnavailable) as error:
            return error_response(path, error)
        return None

    def passes(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a request with these headers (each at most once) may surely pass, told without waiting. False means only that
        it must be looked at in the usual way."""
        if any(name in headers for name in _OF_BROWSERS) or self._hashes is None or not self._is_fresh():
            return False
        if self._age_s() > REMEMBER_S / 2 and self._reading is None:
            # Read again before the old ones are too old: otherwise every now and then everybody waits for them.
            self._reading = asyncio.get_running_loop().create_task(self._read_early())
        if self._hashes or not self._loopback_only:
            try:
                _check_token(Headers(raw=list(headers.items())), self._hashes)
            except Refused:
                return False
            return True
        host = headers.get(b"host")
        return host is not None and self._is_here(host.decode("latin-1"))

    async def _read_early(self) -> None:
        try:
            await self._read()
        except StoreUnavailable:
            pass  # whoever needs them when they are too old learns of it
        finally:
            self._reading = None

    def _age_s(self) -> float:
        return time.monotonic() - self._read_at

    def _is_fresh(self) -> bool:
        return self._age_s() < REMEMBER_S

    def _check_page(self, headers: Headers) -> None:
        """Refuse what a page of another origin makes a browser send: it would ride on the browser's cookie or position."""
        origin = headers.get("origin")
        if headers.get("sec-fetch-site") == "cross-site" or (origin is not None and not self._own_origin(origin, headers)):
            raise Refused(403, "requests that other web pages make are not answered; open gridshift's own address")

    def _own_origin(self, origin: str, headers: Headers) -> bool:
        place = origin.partition("://")[2].lower()
        return bool(place) and place in (headers.get("host", "").lower(), self._public)

    def _check_host(self, headers: Headers) -> None:
        """Without tokens: refuse names that do not mean this machine, or a page could point its own name at us."""
        if not self._is_here(headers.get("host", "")):
            host = host_of(headers.get("host", ""))
            raise Refused(
                421,
                f"this control plane has no API tokens and so answers only as localhost or 127.0.0.1, not as {host[:100]!r}; "
                "use that address, set server.public_url, or create a token with 'gridshift tokens create NAME'",
            )

    def _is_here(self, named: str) -> bool:
        host = _known_host(named)
        return _is_loopback(host) or host in self._hosts

    async def _tokens(self) -> frozenset[str]:
        if self._hashes is not None and self._is_fresh():
            return self._hashes
        async with self._lock:
            if self._hashes is not None and self._is_fresh():
                return self._hashes
            try:
                return await self._read()
            except StoreUnavailable:
                if self._hashes is None or self._age_s() > FORGET_S:
                    raise
            return self._hashes

    async def _read(self) -> frozenset[str]:
        now = time.monotonic()
        self._hashes = frozenset(token.sha256 for token in await in_thread(self._services.store.tokens))
        self._read_at = now
        return self._hashes


def _check_token(headers: Headers, hashes: Iterable[str]) -> None:
    tokens = [hash_token(token) for token in presented(headers)]
    matches = [hmac.compare_digest(token, known) for token in tokens for known in hashes]  # all of them, in the same time
    if any(matches):
        return
    what = "this API token is not valid here (any more)" if tokens else "an API token is needed"
    raise Refused(401, f"{what}; send it as 'Authorization: Bearer TOKEN'", {"WWW-Authenticate": 'Bearer realm="gridshift"'})


async def refuse(scope: Scope, receive: Receive, send: Send, response: Response) -> None:
    """Answer with ``response``; a websocket that is not accepted yet is refused with it, or closed where that is unknown."""
    if scope["type"] == "http" or "websocket.http.response" in scope.get("extensions", {}):
        await response(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008})
