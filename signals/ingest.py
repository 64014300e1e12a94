"""Fetching signals: asks a source within limits of time and size, and turns whatever comes back into points or one error.

It knows HTTP and files, not what any payload means (signals.feeds) nor where points are kept (signals.store). URLs'
parameters, headers and bodies never reach a message or a log: they may hold secrets.
"""

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
import urllib3

from signals.feeds import FEEDS, FeedError, Query, Request, validate_options
from signals.feeds.base import ACCESS, FILE, INVALID, LOCAL, NO_DATA, TRUNCATED
from signals.gaps import SignalGap
from signals.points import Kind, SignalPoint, require_utc

log = logging.getLogger(__name__)

#: The largest body accepted, after decompression of the transfer, and the largest file.
MAX_BODY_BYTES = 16 * 2**20
_CONNECT_S, _READ_S, _TOTAL_S = 5.0, 10.0, 30.0
_TRIES = 3
_MAX_WAIT_S = 5.0
_MAX_REDIRECTS = 3
_CHUNK = 65536


@dataclass(frozen=True, slots=True)
class FetchResult:
    """What one fetch of one feed brought.

    ``error`` None means that the whole answer was understood. With an error there may still be points: those of the parts
    that could be read. ``source`` is the points' source.
    """

    feed: str
    source: str
    region: str
    kind: Kind
    retrieved_at: datetime
    points: tuple[SignalPoint, ...] = ()
    gaps: tuple[SignalGap, ...] = ()
    warnings: tuple[str, ...] = ()
    error: FeedError | None = None

    def known_until(self) -> datetime | None:
        """End of the last point, or None without any."""
        return max((p.end for p in self.points), default=None)

    def is_fresh(self, now: datetime, max_age_s: float) -> bool:
        """Whether some value covers ``now`` or ended at most ``max_age_s`` before."""
        floor = now - timedelta(seconds=max_age_s)
        return any(p.start <= now and p.end > floor for p in self.points)


@dataclass(frozen=True, slots=True)
class ChainResult:
    """Which source of a chain won. ``chosen`` is None when none is fresh; ``why`` is a sentence, ``tried`` all fetched."""

    chosen: FetchResult | None
    why: str
    tried: tuple[FetchResult, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one request in wall seconds and bytes; ``tries`` counts the first one too."""

    connect_s: float = _CONNECT_S
    read_s: float = _READ_S
    total_s: float = _TOTAL_S
    max_bytes: int = MAX_BODY_BYTES
    tries: int = _TRIES


def fetch(
    feed_name: str,
    options: Mapping[str, Any],
    *,
    region: str,
    kind: Kind,
    now: datetime,
    window_start: datetime,
    window_end: datetime,
    session: requests.Session | None = None,
    limits: Limits = Limits(),
    sleep: Callable[[float], None] = time.sleep,
) -> FetchResult:
    """Ask one feed for ``[window_start, window_end)``; the points count as retrieved at ``now``.

    Never raises for what a source or an option is or does: that is in ``error``. 429, 5xx and broken connections are tried
    again a little later, with jitter. Raises SignalError only for naive times.
    """
    now, start, end = (require_utc(n, v) for n, v in (("now", now), ("window_start", window_start), ("window_end", window_end)))
    options = {key: value for key, value in options.items() if key != "feed"}
    source = str(options.get("source", feed_name))

    def failed(error: FeedError) -> FetchResult:
        return FetchResult(feed_name, source, region, kind, now, error=error)

    feed = FEEDS.get(feed_name)
    problems = validate_options(feed_name, options, kind)
    if feed is None or problems:
        return failed(FeedError(INVALID, "; ".join(f"{key} = {value!r}: {remedy}" for key, value, remedy in problems)))
    if end <= start:
        return failed(FeedError(INVALID, f"window_end: {end.isoformat()} must be after window_start {start.isoformat()}"))
    points: dict[tuple[Any, ...], SignalPoint] = {}
    gaps: dict[SignalGap, None] = {}
    warnings: list[str] = []
    errors: list[FeedError] = []
    own_session = session is None
    session = session or requests.Session()
    try:
        for request in feed.requests(Query(kind, options, start, end, now)):
            try:
                payload = _payload(request, session, limits, sleep)
            except FeedError as error:
                errors.append(error)
                continue
            result = feed.parse(payload, region=region, kind=kind, retrieved_at=now, options=options, start=start, end=end)
            # Requests of one window meet at their edges, where the same period comes twice; the later answer stands.
            points |= {(p.variant, p.start, p.end, p.issued_at): p for p in result.points}
            gaps |= dict.fromkeys(result.gaps)
            warnings += result.warnings
            if result.error is not None:
                errors.append(result.error)
    finally:
        if own_session:
            session.close()
    if points:  # one part of a window may well have nothing: a file of another year, a day not yet published
        errors = [error for error in errors if error.kind != NO_DATA]
    filled = {(p.start, p.end) for p in points.values()}
    return FetchResult(
        feed=feed_name,
        source=source,
        region=region,
        kind=kind,
        retrieved_at=now,
        points=tuple(sorted(points.values(), key=lambda p: (p.start, p.end))),
        gaps=tuple(sorted((g for g in gaps if (g.start, g.end) not in filled), key=lambda g: (g.start, g.end))),
        warnings=tuple(warnings),
        error=errors[0] if errors else None,
    )


def chain(
    specs: Sequence[Mapping[str, Any]],
    *,
    region: str,
    kind: Kind,
    now: datetime,
    window_start: datetime,
    window_end: datetime,
    session: requests.Session | None = None,
    max_age_s: float = 3 * 3600.0,
    limits: Limits = Limits(),
    sleep: Callable[[float], None] = time.sleep,
) -> ChainResult:
    """Ask the sources (``{"feed": NAME, **options}``) in order until one is fresh: has a value for now, or for at most
    ``max_age_s`` ago. Those after the winner are not asked."""
    tried: list[FetchResult] = []
    said: list[str] = []
    for spec in specs:
        result = fetch(
            str(spec.get("feed", "")),
            spec,
            region=region,
            kind=kind,
            now=now,
            window_start=window_start,
            window_end=window_end,
            session=session,
            limits=limits,
            sleep=sleep,
        )
        tried.append(result)
        if result.is_fresh(now, max_age_s):
            why = f"{result.source} is fresh" if said else f"{result.source}, the first source, is fresh"
            return ChainResult(result, "; ".join([*said, why]), tuple(tried))
        said.append(f"{result.source}: {_stale(result)}")
    return ChainResult(None, "; ".join(said) or "no source is configured", tuple(tried))


def _stale(result: FetchResult) -> str:
    until = result.known_until()
    if result.error is not None:
        return result.error.message
    return "no values" if until is None else f"no value for now (its last ends {until.isoformat()})"


# --- getting the bytes ----------------------------------------------------------------------------------------------


class _Again(Exception):
    """An attempt failed in a way that may pass; ``wait_s`` is what the source asked for, if it did."""

    def __init__(self, error: FeedError, wait_s: float | None = None) -> None:
        super().__init__(error.message)
        self.error, self.wait_s = error, wait_s


def _payload(request: Request, session: requests.Session, limits: Limits, sleep: Callable[[float], None]) -> bytes:
    if request.url.startswith(LOCAL):
        return b""
    if request.url.startswith(FILE):
        return _file(request.url.removeprefix(FILE), limits.max_bytes)
    for attempt in range(1, limits.tries + 1):
        try:
            return _get(request, session, limits)
        except _Again as again:
            if attempt == limits.tries:
                raise again.error from again
            log.info("%s; trying again", again.error.message)
            wait_s = again.wait_s if again.wait_s is not None else 0.5 * 2**attempt
            # Full jitter: many control planes must not come back at the same moment (no security depends on it).
            sleep(min(wait_s, _MAX_WAIT_S) * random.uniform(0.5, 1.0))
    raise FeedError(ACCESS, "tries: must be at least 1")


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


def _get(request: Request, session: requests.Session, limits: Limits) -> bytes:
    """One GET, following redirects on the same host only. Raises FeedError, or _Again when another try may help."""
    url: str = request.url
    params: Mapping[str, str] | None = request.params
    deadline = time.monotonic() + limits.total_s
    host = urlsplit(url).hostname
    for _ in range(_MAX_REDIRECTS + 1):
        try:
            with session.get(
                url,
                params=params,
                headers=dict(request.headers),
                timeout=(limits.connect_s, limits.read_s),
                allow_redirects=False,
                stream=True,
            ) as response:
                if not response.is_redirect:
                    return _body(response, str(host), limits, deadline)
                target = urljoin(response.url, response.headers["Location"])
        except (requests.Timeout, urllib3.exceptions.TimeoutError) as error:
            raise _Again(FeedError(ACCESS, f"{host} does not answer within {limits.read_s:g} s")) from error
        except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema, requests.exceptions.MissingSchema) as error:
            raise FeedError(INVALID, f"the URL for {host} is not valid ({type(error).__name__})") from error
        except urllib3.exceptions.HTTPError as error:  # while the body was read
            raise _Again(FeedError(TRUNCATED, f"{host} broke off in the middle of its answer")) from error
        except (requests.RequestException, ValueError) as error:
            # The text of these exceptions may hold the whole URL, so only their name is told.
            raise _Again(FeedError(ACCESS, f"{host} cannot be reached ({type(error).__name__})")) from error
        if not _same_host(url, target):
            elsewhere = urlsplit(target).hostname or "nowhere"
            raise FeedError(ACCESS, f"{host} redirects to {elsewhere}, another address than was asked for; not followed")
        url, params = target, None
    raise FeedError(ACCESS, f"{host} redirects more than {_MAX_REDIRECTS} times")


def _same_host(url: str, target: str) -> bool:
    """Whether ``target`` may be asked instead of ``url``: the same scheme, host and port, or its upgrade to https."""
    before, after = urlsplit(url), urlsplit(target)
    try:
        if (after.scheme, after.hostname, after.port) == (before.scheme, before.hostname, before.port):
            return True
        return after.hostname == before.hostname and (before.scheme, after.scheme, after.port) == ("http", "https", None)
    except ValueError:  # a port that is no number
        return False


def _body(response: requests.Response, host: str, limits: Limits, deadline: float) -> bytes:
    status = response.status_code
    if status == 429 or status >= 500:
        raise _Again(FeedError(ACCESS, f"{host} answers {status}"), _retry_after(response))
    if status in (204, 404):
        raise FeedError(NO_DATA, f"{host} answers {status}: nothing there for this window (or base_url is wrong)")
    if status in (401, 403, 407):
        raise FeedError(ACCESS, f"{host} answers {status}: not allowed; check the credentials or the licence")
    if not 200 <= status < 300:
        raise FeedError(ACCESS, f"{host} answers {status}")
    body = bytearray()
    # read1 returns with what has come; iter_content would sit on a trickling answer until a whole chunk is there.
    while chunk := response.raw.read1(_CHUNK, decode_content=True):
        body += chunk
        if len(body) > limits.max_bytes:
            raise FeedError(INVALID, f"{host} sends more than {limits.max_bytes} bytes; not read further")
        if time.monotonic() > deadline:
            raise _Again(FeedError(ACCESS, f"{host} is not done after {limits.total_s:g} s"))
    return bytes(body)


def _retry_after(response: requests.Response) -> float | None:
    try:
        return max(float(response.headers["Retry-After"]), 0.0)
    except (KeyError, ValueError):
        return None  # absent, or a date: our own waiting time will do
