"""Getting the bytes of one request: over HTTP, within limits of time and size and with manners, or from a file here.

It knows nothing of what an answer means. Parameters, headers and bodies never reach a message or a log, nor hang on an
exception: they may hold secrets.
"""

import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import requests
import urllib3

from signals.feeds.base import ACCESS, FILE, INVALID, LOCAL, NO_DATA, TRUNCATED, FeedError, Request
from signals.manners import Manners, Validators

log = logging.getLogger(__name__)

#: The largest body accepted, after decompression of the transfer, and the largest file.
MAX_BODY_BYTES = 16 * 2**20
_CONNECT_S, _READ_S, _TOTAL_S = 5.0, 10.0, 30.0
_TRIES = 3
#: A pause that a provider asks for is waited out up to this; a longer one ends the fetch.
_PATIENCE_S = 5.0
_MAX_REDIRECTS = 3
_CHUNK = 65536
#: Statuses whose body may say what was wrong, and how much of it is read.
_TELLING, _TOLD_BYTES = (400, 404, 422), 65536


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one request in wall seconds and bytes; ``tries`` counts the first one too."""

    connect_s: float = _CONNECT_S
    read_s: float = _READ_S
    total_s: float = _TOTAL_S
    max_bytes: int = MAX_BODY_BYTES
    tries: int = _TRIES


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: the body, or ``unchanged`` when the provider says that it is as before."""

    body: bytes = b""
    unchanged: bool = False
    validators: Validators | None = None


class NotAllowed(FeedError):
    """The provider answers 401: it does not know us, or no longer."""


class Refused(FeedError):
    """The provider refuses a request, and ``body`` may say why. It may hold anything: only a feed's reader may quote it."""

    def __init__(self, error: FeedError, host: str, status: int, body: bytes) -> None:
        super().__init__(error.kind, error.message)
        self.host, self.status, self.body = host, status, body


@dataclass
class Line:
    """How requests of one fetch go out; ``warnings`` gathers what is noticed on the way."""

    session: requests.Session
    manners: Manners
    limits: Limits = LIMITS
    sleep: Callable[[float], None] = time.sleep
    pace_s: float = 0.0
    warnings: dict[str, None] = field(default_factory=dict)
    hosts: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Failure:
    """An attempt that brought nothing. ``again``: it may pass; ``wait_s`` is what the source asked for, if it did."""

    error: FeedError
    again: bool = False
    wait_s: float | None = None


def ask(request: Request, line: Line, validators: Validators | None = None) -> Answer:
    """One request's answer. 429, 5xx and broken connections are tried again a little later, with jitter; a provider that asks
    for a longer pause, or fails again and again, is not asked before its time. Raises FeedError."""
    if request.url.startswith(LOCAL):
        return Answer()
    if request.url.startswith(FILE):
        return Answer(_file(request.url.removeprefix(FILE), line.limits.max_bytes))
    host, manners = host_of(request.url), line.manners
    line.hosts.add(host)
    for attempt in range(1, line.limits.tries + 1):
        wait_s = manners.turn(host, line.pace_s)
        try:
            if wait_s > 0:
                line.sleep(wait_s)
            outcome = _once(request, line, host, validators)
        except BaseException:
            manners.gave_up(host)
            raise
        if isinstance(outcome, Answer):
            manners.went_well(host, unchanged=outcome.unchanged)
            return outcome
        if not outcome.again:
            manners.went_well(host)  # it is there and says what is wrong
            raise outcome.error
        if outcome.wait_s is not None and outcome.wait_s > _PATIENCE_S:
            manners.leave_alone(host, outcome.wait_s, outcome.error.message)
        else:
            manners.failed(host, outcome.error.message)
        if attempt == line.limits.tries:
            raise outcome.error
        manners.check(host)
        log.info("%s; trying again", outcome.error.message)
        # Jitter: many control planes must not come back at the same moment (no security depends on it).
        if outcome.wait_s is not None:
            manners.postpone(host, outcome.wait_s * random.uniform(1.0, 1.2))
        else:
            line.sleep(0.5 * 2**attempt * random.uniform(0.5, 1.0))
    raise FeedError(ACCESS, "tries: must be at least 1")


def host_of(url: str) -> str:
    """The host of a URL, with its port where one is given, as manners and messages name it."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname}:{parts.port}" if parts.port is not None else str(parts.hostname)
    except ValueError:  # a port that is no number
        return "an invalid URL"


def same_host(url: str, target: str) -> bool:
    """Whether ``target`` may be asked instead of ``url``: the same scheme, host and port, or its upgrade to https."""
    try:
        before, after = urlsplit(url), urlsplit(target)
        if (after.scheme, after.hostname, after.port) == (before.scheme, before.hostname, before.port):
            return True
        return after.hostname == before.hostname and (before.scheme, after.scheme, after.port) == ("http", "https", None)
    except ValueError:  # a port that is no number
        return False


def _file(path: str, max_bytes: int) -> bytes:
    try:
        with Path(path).open("rb") as file:
            body = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a path"
        raise FeedError(ACCESS, f"file {path!r} cannot be read: {why}") from error
    if len(body) > max_bytes:
        raise FeedError(INVALID, f"file {path!r} is larger than {max_bytes // 2**20} MiB; gzip or split it")
    return body


def _as_given(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Credentials are those of the request: without this, a .netrc file would put its own in their place."""
    return request


def _once(request: Request, line: Line, host: str, validators: Validators | None) -> Answer | _Failure:
    """One attempt, following redirects on the same host only. Failures are returned, not raised while another exception is
    handled: those of the HTTP library hold whole URLs."""
    url: str = request.url
    params: Mapping[str, str] | None = request.params
    headers = dict(request.headers) | (validators.headers() if validators is not None else {})
    deadline = time.monotonic() + line.limits.total_s
    for _ in range(_MAX_REDIRECTS + 1):
        try:
            with line.session.request(
                "GET" if request.body is None else "POST",
                url,
                params=params,
                headers=headers,
                data=request.body,
                timeout=(line.limits.connect_s, line.limits.read_s),
                allow_redirects=False,
                stream=True,
                auth=_as_given,
            ) as response:
                if not response.is_redirect:
                    return _read(response, line, host, validators, deadline)
                if request.body is not None and response.status_code not in (307, 308):
                    return _Failure(FeedError(ACCESS, f"{host} redirects a POST; not followed"))
                target = urljoin(response.url, response.headers["Location"])
        except (requests.Timeout, urllib3.exceptions.TimeoutError):
            return _Failure(FeedError(ACCESS, f"{host} does not answer within {line.limits.read_s:g} s"), again=True)
        except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema, requests.exceptions.MissingSchema) as error:
            return _Failure(FeedError(INVALID, f"the URL for {host} is not valid ({type(error).__name__})"))
        except urllib3.exceptions.HTTPError:  # while the body was read
            return _Failure(FeedError(TRUNCATED, f"{host} broke off in the middle of its answer"), again=True)
        except (requests.RequestException, ValueError) as error:
            return _Failure(FeedError(ACCESS, f"{host} cannot be reached ({_name(error)})"), again=True)
        if not same_host(url, target):
            elsewhere = host_of(target)
            says = f"{host} redirects to {elsewhere}, another address than was asked for; not followed"
            return _Failure(FeedError(ACCESS, says))
        url, params = target, None
    return _Failure(FeedError(ACCESS, f"{host} redirects more than {_MAX_REDIRECTS} times"))


def _name(error: Exception) -> str:
    """The kind of an exception, without its text; a name that does not resolve is told apart from a closed door."""
    cause = getattr(error.args[0], "reason", None) if error.args else None
    if isinstance(cause, urllib3.exceptions.NameResolutionError):
        return "its name is not known"
    return type(error).__name__


def _read(
    response: requests.Response, line: Line, host: str, validators: Validators | None, deadline: float
) -> Answer | _Failure:
    headers, status = response.headers, response.status_code
    skewed = line.manners.skew(host, headers.get("Date"), headers.get("Age"))
    if skewed is not None:
        line.warnings[skewed] = None
    if status == 304 and validators is not None:
        return Answer(unchanged=True, validators=validators)
    if status == 429 or status >= 500:
        wait_s = line.manners.retry_after_s(headers.get("Retry-After"))
        return _Failure(FeedError(ACCESS, f"{host} answers {status}"), again=True, wait_s=wait_s)
    if status in (204, 404):
        says = f"{host} answers {status}: nothing there for this window (or base_url is wrong)"
        error = FeedError(NO_DATA, says)
        return _Failure(Refused(error, host, status, _told(response, deadline)) if status in _TELLING else error)
    if status in (401, 403, 407):
        says = f"{host} answers {status}: not allowed; check the credentials or the licence"
        return _Failure(NotAllowed(ACCESS, says) if status == 401 else FeedError(ACCESS, says))
    if not 200 <= status < 300:
        error = FeedError(ACCESS, f"{host} answers {status}")
        return _Failure(Refused(error, host, status, _told(response, deadline)) if status in _TELLING else error)
    body = bytearray()
    # read1 returns with what has come; iter_content would sit on a trickling answer until a whole chunk is there.
    while chunk := response.raw.read1(_CHUNK, decode_content=True):
        body += chunk
        if len(body) > line.limits.max_bytes:
            return _Failure(FeedError(INVALID, f"{host} sends more than {line.limits.max_bytes} bytes; not read further"))
        if time.monotonic() > deadline:
            return _Failure(FeedError(ACCESS, f"{host} is not done after {line.limits.total_s:g} s"), again=True)
    return Answer(bytes(body), validators=Validators(headers.get("ETag"), headers.get("Last-Modified")))


def _told(response: requests.Response, deadline: float) -> bytes:
    """The body of a refusal; nothing when it is too large, too slow or broken: the status says enough."""
    body = bytearray()
    try:
        while chunk := response.raw.read1(_CHUNK, decode_content=True):
            body += chunk
            if len(body) > _TOLD_BYTES or time.monotonic() > deadline:
                return b""
    except (urllib3.exceptions.HTTPError, requests.RequestException, OSError):
        return b""
    return bytes(body)


class _WithoutQuery(logging.Filter):
    """The HTTP library writes whole request lines when debugging; keys of providers that want them there must not show."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Cut every argument that looks like a path at its question mark."""
        if isinstance(record.args, tuple):
            record.args = tuple(a.split("?")[0] + "?..." if isinstance(a, str) and "?" in a else a for a in record.args)
        return True


logging.getLogger("urllib3.connectionpool").addFilter(_WithoutQuery())
