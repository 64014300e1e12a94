"""Asks an OpenADR 3 VTN: access tokens, whole listings, single objects, new objects; each answer bounded in size and time.

It knows the protocol's transport and nothing of what the objects mean. Sources: the Alliance's OpenAPI files of 3.1.0 and
3.0.1, RFC 6749 4.4 (client credentials). One thread at a time.
"""

import contextlib
import http.client
import ipaddress
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError, MaxRetryError, NewConnectionError, SSLError, TimeoutError

from dispatcher.api.strict_json import TWICE, Twice, each_once, parse
from dispatcher.config_events import EventSourceConfig
from dispatcher.errors import BadInput, ConfigError, GridshiftError

#: The most objects that a VTN gives at once (3.1's own limit), and the most that are taken at all.
PAGE, MOST = 50, 5000
#: A token is renewed when this share of its life is left, but no sooner than RENEW_S before its end.
RENEW_SHARE, RENEW_S = 0.2, 60.0
#: What a token without a stated life is good for at least; a 401 renews it anyway.
TOKEN_S = 3600.0
#: The longest that a VTN may ask to be left alone.
_PEACE_S = 300.0
_SCOPES = {
    "openadr-3.1": "read_targets read_ven_objects write_reports write_subscriptions write_vens",
    "openadr-3.0": "read_all write_reports write_subscriptions write_vens",
}

Query = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one answer may cost: seconds to connect, between two bytes, in all; and bytes."""

    connect_s: float = 5.0
    read_s: float = 10.0
    total_s: float = 30.0
    max_bytes: int = 16 << 20


class VtnError(GridshiftError):
    """The VTN did not give what was asked for. ``status`` is its HTTP status, None where no answer came (then whether it acted
    is unknown); ``retry_after_s`` is how long it asked to be left alone."""

    def __init__(self, message: str, status: int | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects of a listing. ``complete``: every page came; ``unread`` says what of it could not be read."""

    items: tuple[dict[str, Any], ...]
    complete: bool
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    body: bytes
    location: str
    retry_after: str


def clock_offset_s(date: str | None, before: datetime, after: datetime) -> float | None:
    """By how much a sender's clock is ahead of ours (below 0: behind) at least, from its Date header and the times at which we
    asked and had the answer; 0 within what the header's whole seconds leave open, None without a readable header."""
    try:
        theirs = parsedate_to_datetime(date or "")
        ahead = (theirs - after).total_seconds()
        behind = (before - theirs).total_seconds() - 1.0
    except (ValueError, TypeError):
        return None
    return ahead if ahead > 0 else -behind if behind > 0 else 0.0


class VtnClient:
    """The VTN of one ``[[event_source]]``. Making one raises ConfigError for a URL or certificate that cannot be used."""

    def __init__(
        self,
        source: EventSourceConfig,
        *,
        now: Callable[[], datetime],
        limits: Limits | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._now, self._monotonic = source, now, monotonic
        self._limits = limits or Limits()
        self._base = source.url.rstrip("/")
        parts = urlsplit(self._base)
        self._host = (parts.hostname or "").lower()
        if parts.scheme != "https" and not _is_here(self._host) and source.verify_tls:
            raise ConfigError(
                f"event_source {source.name}: url: {source.url!r}: must begin with https:// (a secret is sent to it); "
                "for a VTN of your own on a network that you trust set verify_tls = false"
            )
        self._pools = urllib3.PoolManager(num_pools=2, retries=False, ssl_context=_tls(source))
        self._pools.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
        self._secret = source.client_secret() if source.client_id else None
        self._token: str | None = None
        self._renew_at = self._ends_at = 0.0
        #: The clock's offset as the answers since it was last set to None show it: the smallest, for one can be delayed.
        self.offset_s: float | None = None

    def close(self) -> None:
        """Let go of connections."""
        self._pools.clear()

    # --- objects --------------------------------------------------------------------------------------------------

    def all(self, path: str, query: Query = ()) -> Listing:
        """Every page of a listing. Raises VtnError when one of them does not come, or is no list."""
        found: dict[str, dict[str, Any]] = {}
        nameless: list[dict[str, Any]] = []
        unread: list[str] = []
        skip, first = 0, None
        while skip < MOST:
            reply = self._ask("GET", path, (*query, ("skip", str(skip)), ("limit", str(PAGE))))
            items = self._items(path, reply, unread)
            if not items:  # some VTNs give fewer than asked for, so that only an empty page is surely the last
                return Listing((*found.values(), *nameless), True, tuple(unread))
            ids = [item.get("id") for item in items]
            if ids == first:
                # It repeats itself, so it does not know pages: all is here, unless it cut at one page.
                complete = skip != PAGE
                if not complete:
                    unread.append(f"{path}: the VTN gives the same {PAGE} objects for every page: there may be more")
                return Listing((*found.values(), *nameless), complete, tuple(unread))
            first = first or ids
            for item in items:
                if isinstance(item.get("id"), str):
                    found.setdefault(item["id"], item)
                else:
                    nameless.append(item)
            skip += len(items)
        unread.append(f"{path}: more than {MOST} objects; the rest was not read")
        return Listing((*found.values(), *nameless), False, tuple(unread))

    def one(self, path: str) -> dict[str, Any] | None:
        """One object; None only where the VTN itself says that there is none (404). Raises VtnError for all else."""
        try:
            reply = self._ask("GET", path)
        except VtnError as error:
            if error.status == 404:
                return None
            raise
        return self._object(path, reply)

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """A new object, as the VTN keeps it. Raises VtnError."""
        return self._object(path, self._ask("POST", path, body=body))

    def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """An object under its id, as the VTN keeps it. Raises VtnError."""
        return self._object(path, self._ask("PUT", path, body=body))

    # --- one question ---------------------------------------------------------------------------------------------

    def _ask(self, verb: str, path: str, query: Query = (), body: Mapping[str, Any] | None = None) -> _Reply:
        url = self._base + path + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        token = self._bearer()
        reply = self._send(verb, url, data, "application/json", token)
        if reply.status == 401 and token is not None:  # it may have forgotten our token: once with a new one
            self._token = None
            reply = self._send(verb, url, data, "application/json", self._bearer())
        return self._checked(f"{verb} {path}", reply)

    def _checked(self, what: str, reply: _Reply) -> _Reply:
        if 300 <= reply.status < 400:
            raise VtnError(
                f"{what}: it redirects to {reply.location[:200]!r}, which is not followed; configure where it really is"
            )
        if not 200 <= reply.status < 300:
            raise VtnError(f"{what}: HTTP {reply.status}{_said(reply.body)}", reply.status, _peace(reply.retry_after))
        return reply

    def _send(self, verb: str, url: str, data: bytes | None, kind: str, token: str | None) -> _Reply:
        headers = {"Accept": kind if kind == "application/xml" else "application/json", "User-Agent": "gridshift"}
        if data is not None:
            headers["Content-Type"] = kind
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        deadline = self._monotonic() + self._limits.total_s
        before = self._now()
        try:
            response = self._pools.request(
                verb,
                url,
                body=data,
                headers=headers,
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
                timeout=urllib3.Timeout(connect=self._limits.connect_s, read=self._limits.read_s),
            )
            try:
                self._note_clock(response.headers.get("Date"), before)
                body = self._body(response, deadline)
            finally:
                # What was not read to its end would come before the next answer.
                response.close() if not response.closed else response.release_conn()
        except (HTTPError, OSError, http.client.HTTPException, ValueError) as error:
            raise VtnError(f"{verb} {urlsplit(url).path}: {_why(error)}") from error
        return _Reply(response.status, body, response.headers.get("Location", ""), response.headers.get("Retry-After", ""))

    def _body(self, response: urllib3.BaseHTTPResponse, deadline: float) -> bytes:
        """The body, unless it is too large or too slow: a socket's own limit starts anew with each byte."""
        got = bytearray()
        while chunk := response.read1(1 << 16, decode_content=False):
            got += chunk
            if len(got) > self._limits.max_bytes:
                raise ValueError(f"its answer has more than {self._limits.max_bytes} bytes")
            if self._monotonic() > deadline:
                raise ValueError(f"its answer took longer than {self._limits.total_s:g} s")
        return bytes(got)

    def _note_clock(self, date: str | None, before: datetime) -> None:
        offset = clock_offset_s(date, before, self._now())
        if offset is not None and (self.offset_s is None or abs(offset) < abs(self.offset_s)):
            self.offset_s = offset

    # --- reading answers ------------------------------------------------------------------------------------------

    def _items(self, path: str, reply: _Reply, unread: list[str]) -> list[dict[str, Any]]:
        try:
            data = parse(reply.body)
        except BadInput as error:
            data = _readable(reply.body, unread)
            if data is None:
                raise VtnError(f"GET {path}: its answer cannot be read: {error}"[:500]) from None
        if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
            raise VtnError(f"GET {path}: its answer is no list of objects")
        return data

    @staticmethod
    def _object(path: str, reply: _Reply) -> dict[str, Any]:
        try:
            data = parse(reply.body)
        except BadInput as error:
            raise VtnError(f"{path}: its answer cannot be read: {error}"[:500]) from None
        if not isinstance(data, dict):
            raise VtnError(f"{path}: its answer is no object")
        return data

    # --- tokens ---------------------------------------------------------------------------------------------------

    def _bearer(self) -> str | None:
        """The token to ask with; None for a VTN that wants none. Raises VtnError when none can be had."""
        if not self._source.client_id:
            return None
        if self._token is None or self._monotonic() >= self._renew_at:
            try:
                self._fetch_token()
            except VtnError:
                # Renewed before its end, so that a short failure of the token server changes nothing.
                if self._token is None or self._monotonic() >= self._ends_at:
                    self._token = None
                    raise
        return self._token

    def _fetch_token(self) -> None:
        form = {
            "grant_type": "client_credentials",
            "client_id": self._source.client_id,
            "client_secret": self._secret or "",
            "scope": self._source.scope or _SCOPES.get(self._source.protocol, ""),
        }
        asked_at = self._monotonic()
        reply = self._send("POST", self._token_url(), urlencode(form).encode(), "application/x-www-form-urlencoded", None)
        answer = self._object("token", self._checked("token", reply))
        token, life_s = answer.get("access_token"), answer.get("expires_in")
        if not isinstance(token, str) or not 0 < len(token) <= 8192 or not token.isascii() or not token.isprintable():
            raise VtnError("token: its answer holds no usable access_token")
        if isinstance(life_s, bool) or not isinstance(life_s, int | float) or not 0 < life_s < 1e9:
            life_s = TOKEN_S
        self._token, self._ends_at = token, asked_at + life_s
        self._renew_at = self._ends_at - min(RENEW_S, RENEW_SHARE * life_s)

    def _token_url(self) -> str:
        if self._source.token_url:
            return self._source.token_url
        if self._source.protocol != "openadr-3.1":
            return self._base + "/auth/token"
        reply = self._send("GET", self._base + "/auth/server", None, "", None)
        if reply.status in (404, 501):
            return self._base + "/auth/token"
        told = self._object("/auth/server", self._checked("GET /auth/server", reply)).get("tokenURL")
        parts = urlsplit(told) if isinstance(told, str) else None
        if parts is None or parts.scheme not in ("http", "https"):
            raise VtnError(f"GET /auth/server: tokenURL: {told!r}: must be a URL"[:300])
        if (parts.hostname or "").lower() != self._host or parts.scheme != urlsplit(self._base).scheme:
            raise VtnError(
                f"the VTN wants our secret sent to {parts.scheme}://{parts.netloc}, another host: "
                f"if that is right, set token_url = '{told}'"[:500]
            )
        return str(told)


def path_of(*parts: str) -> str:
    """A path below the VTN's root, with ids that cannot leave their place."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def _is_here(host: str) -> bool:
    """Whether a host can only be this machine."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _tls(source: EventSourceConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=source.ca_file or os.environ.get("REQUESTS_CA_BUNDLE") or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if not source.verify_tls:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if source.client_cert_file:
            context.load_cert_chain(source.client_cert_file, source.client_key_file or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"event_source {source.name}: a certificate file cannot be used: {error}") from error
    return context


@dataclass(frozen=True, slots=True)
class _Doubled:
    """An object that has ``key`` twice; ``named`` is its id."""

    key: str
    named: Any

    def refuse(self) -> Any:
        """Raises BadInput."""
        raise BadInput([("body", self.key[:80], TWICE)])


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Doubled:
    try:
        return each_once(pairs)
    except Twice as error:
        return _Doubled(str(error), dict(pairs).get("id"))


def _readable(body: bytes, unread: list[str]) -> list[dict[str, Any]] | None:
    """Of a list in which something is no proper JSON (NaN, broken text, a key twice) the objects that are; None when it is no
    list at all. One broken event must not hide the others."""
    try:
        data = json.loads(body, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, list):
        return None
    good: list[dict[str, Any]] = []
    for item in data:
        try:
            checked = parse(json.dumps(item, default=_Doubled.refuse).encode())
        except (BadInput, RecursionError) as error:
            named = item.get("id") if isinstance(item, dict) else item.named if isinstance(item, _Doubled) else None
            unread.append(f"object {str(named)[:128]!r} cannot be read: {error}"[:300])
            continue
        if isinstance(checked, dict):
            good.append(checked)
    return good


def _said(body: bytes) -> str:
    """What the VTN says of an error (a ``problem``, or OAuth2's), shortened; nothing for anything else."""
    try:
        problem = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(problem, dict):
        return ""
    words = [problem.get(key) for key in ("title", "detail", "error", "error_description")]
    text = ": ".join(" ".join(word.split()) for word in words if isinstance(word, str) and word.strip())
    return f" ({text[:200]})" if text else ""


def _peace(retry_after: str) -> float | None:
    return min(float(retry_after), _PEACE_S) if retry_after.isascii() and retry_after.isdigit() else None


def _why(error: Exception) -> str:
    if isinstance(error, MaxRetryError) and error.reason is not None:
        error = error.reason
    if isinstance(error, NewConnectionError):
        return "no connection could be made"
    if isinstance(error, SSLError | ssl.SSLError):
        return f"its certificate or TLS is not accepted: {error}"[:300]
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return f"{error}"[:300] or type(error).__name__


# --- the head of an answer, too, must come in time ------------------------------------------------------------------

#: Seconds in which the head of an answer must have come; a socket's own limit starts anew with each byte.
HEAD_S = 30.0


class _Cut:
    """While it lasts, a socket that is still in use after HEAD_S is shut down, so that whoever reads from it goes on."""

    def __init__(self, sock: socket.socket | None) -> None:
        self._sock = sock
        self._timer = threading.Timer(HEAD_S, self._now)
        self._timer.daemon = True

    def _now(self) -> None:
        if self._sock is not None:
            with contextlib.suppress(OSError):  # closed meanwhile
                self._sock.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


class _Connection(HTTPConnection):
    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]  # as urllib3 itself has it
        with _Cut(self.sock):
            return super().getresponse()


class _TlsConnection(HTTPSConnection):
    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]  # as urllib3 itself has it
        with _Cut(self.sock):
            return super().getresponse()


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection
