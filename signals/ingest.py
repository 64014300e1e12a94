"""Fetching signals: asks a source, with manners, and turns whatever comes back into points or one error.

It knows how a feed is asked (secrets, logins, pages), not what any payload means (signals.feeds), how bytes travel
(signals.transport) nor where points are kept (signals.store). Secrets never reach a message, a log or a result.
"""

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import requests

from signals.feeds import FEEDS, FeedError, Query, Request, validate_options
from signals.feeds.base import ACCESS, INVALID, NO_DATA, TRUNCATED, Feed
from signals.gaps import SignalGap
from signals.manners import Manners
from signals.points import Kind, SignalError, SignalPoint, require_utc
from signals.secrets import MissingSecret, resolve, scrub
from signals.transport import LIMITS, MAX_BODY_BYTES, Limits, Line, NotAllowed, Refused, ask, host_of, same_host

__all__ = ["MAX_BODY_BYTES", "ChainResult", "FetchResult", "Limits", "chain", "fetch", "owner_of"]

#: An answer in more pages than this is not read to its end.
MAX_PAGES = 200
#: All pages of an answer together may be so many times as large as one body.
_PAGES_BODIES = 4
#: Options that are about a chain's entry and not for the feed.
_ENTRY_OPTIONS = ("feed", "max_age")
#: How readers begin the sentence that repeats what a provider says of itself.
_PROVIDERS_WORDS = "the source "


@dataclass(frozen=True, slots=True)
class FetchResult:
    """What one fetch of one feed brought.

    ``error`` None means that the whole answer was understood. With an error there may still be points: those of the parts
    that could be read. ``source`` is the points' source. ``unchanged``: the provider says that all is as we had it, or that
    there is nothing beside that.
    ``disabled``: a secret is missing, so there is no use in asking again until somebody gives it. ``wait_s``: the provider is
    to be left alone for so many wall seconds.
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
    unchanged: bool = False
    disabled: bool = False
    wait_s: float = 0.0

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


def owner_of(feed_name: str, source: str, region: str, kind: Kind) -> str:
    """Who keeps what a fetch brings, for ``Manners.forget`` when it could not be kept after all."""
    return "|".join((feed_name, source, region, kind))


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
    limits: Limits = LIMITS,
    sleep: Callable[[float], None] = time.sleep,
    manners: Manners | None = None,
    environ: Mapping[str, str] | None = None,
) -> FetchResult:
    """Ask one feed for ``[window_start, window_end)``; the points count as retrieved at ``now``.

    Never raises for what a source or an option is or does: that is in ``error``. 429, 5xx and broken connections are tried
    again a little later, with jitter. ``manners`` is what is remembered between calls (default: nothing), ``environ`` where
    secrets are looked up (default: the process's). Raises SignalError only for naive times; what ``sleep`` raises ends it.
    """
    now, start, end = (require_utc(n, v) for n, v in (("now", now), ("window_start", window_start), ("window_end", window_end)))
    options = {key: value for key, value in options.items() if key != "feed"}
    source = str(options.get("source", feed_name))

    def failed(error: FeedError, disabled: bool = False) -> FetchResult:
        return FetchResult(feed_name, source, region, kind, now, error=error, disabled=disabled)

    feed = FEEDS.get(feed_name)
    problems = validate_options(feed_name, options, kind)
    if feed is None or problems:
        return failed(FeedError(INVALID, "; ".join(f"{key} = {value!r}: {remedy}" for key, value, remedy in problems)))
    if end <= start:
        return failed(FeedError(INVALID, f"window_end: {end.isoformat()} must be after window_start {start.isoformat()}"))
    options = {**feed.defaults, **{key: value for key, value in options.items() if key not in _ENTRY_OPTIONS}}
    try:
        secrets = resolve(feed, options, os.environ if environ is None else environ)
    except MissingSecret as missing:
        return failed(_plain(missing), disabled=True)
    own_session = session is None
    session = session or requests.Session()
    line = Line(session, manners or Manners(), limits, sleep, feed.pace_s)
    try:
        return _Asking(feed, source, region, Query(kind, options, start, end, now), secrets, line).result()
    finally:
        if own_session:
            session.close()


class _Asking:
    """One fetch under way."""

    def __init__(self, feed: Feed, source: str, region: str, query: Query, secrets: dict[str, str], line: Line) -> None:
        self._feed, self._source, self._region, self._query, self._line = feed, source, region, query, line
        #: What must not be told: the secrets, and the session's token once there is one.
        self._secrets = dict(secrets)
        self._owner = owner_of(feed.name, source, region, query.kind)
        self._session_key = _digest(feed.name, repr(query.options.get("base_url")), *sorted(secrets.items()))
        self._logged_in_again = False
        self._errors: list[FeedError] = []
        self._warnings: dict[str, None] = {}
        self._points: dict[tuple[Any, ...], SignalPoint] = {}
        self._gaps: dict[SignalGap, None] = {}
        self._unchanged = 0

    def result(self) -> FetchResult:
        """Ask everything that the feed wants asked, and say what it brought."""
        count = 0
        try:
            if self._feed.load is not None:
                count = 1
                self._keep(self._load(self._feed.load))
            else:
                count = len(self._requests())
                for index in range(count):
                    self._ask(index)
        except FeedError as error:  # no session: nothing can be asked
            self._errors.append(error)
        errors, points = self._errors, self._points
        if points or self._unchanged:  # one part may well have nothing: a file of another year, a day not yet published
            errors = [error for error in errors if error.kind != NO_DATA]
        filled = {(p.start, p.end) for p in points.values()}
        gaps = (g for g in self._gaps if (g.start, g.end) not in filled)
        manners, hosts = self._line.manners, self._line.hosts
        return FetchResult(
            feed=self._feed.name,
            source=self._source,
            region=self._region,
            kind=self._query.kind,
            retrieved_at=self._query.now,
            points=tuple(sorted(points.values(), key=lambda p: (p.start, p.end))),
            gaps=tuple(sorted(gaps, key=lambda g: (g.start, g.end))),
            warnings=tuple(scrub(text, self._secrets) for text in (*self._line.warnings, *self._warnings)),
            error=_plain(errors[0], self._secrets) if errors else None,
            unchanged=self._unchanged > 0 and not (points or self._gaps or errors),
            wait_s=max((manners.wait_s(host) for host in hosts), default=0.0),
        )

    # --- asking ---------------------------------------------------------------------------------------------------

    def _options(self) -> dict[str, Any]:
        return {**self._query.options, **self._secrets}

    def _requests(self) -> tuple[Request, ...]:
        if self._feed.login is not None and "bearer" not in self._secrets:
            self._log_in()
        return self._feed.requests(replace(self._query, options=self._options()))

    def _log_in(self) -> None:
        """Have a session: the one that is there already, else a new one."""
        login, manners = self._feed.login, self._line.manners
        assert login is not None
        with manners.login(self._session_key):
            token = manners.token(self._session_key)
            if token is None:
                try:
                    token = login.token(ask(login.request(self._options()), self._line).body)
                except FeedError as error:
                    raise FeedError(error.kind, f"login: {error.message}") from None
                manners.keep_token(self._session_key, token, login.ttl_s)
        self._secrets["bearer"] = token

    def _ask(self, index: int) -> None:
        """Ask one of the feed's requests; once in a fetch, a session that has ended is opened again."""
        try:
            try:
                self._exchange(self._requests()[index])
            except NotAllowed:
                if self._feed.login is None or self._logged_in_again:
                    raise
                self._logged_in_again = True
                self._line.manners.drop_token(self._session_key, self._secrets.pop("bearer"))
                self._exchange(self._requests()[index])
        except Refused as refused:
            self._errors.append(self._refusal(refused))
        except FeedError as error:
            self._errors.append(error)

    def _refusal(self, refused: Refused) -> FeedError:
        """What the provider says of its refusal, where the feed's reader finds its words; else the status alone."""
        query = self._query
        read = self._feed.parse(
            refused.body, region=self._region, kind=query.kind, retrieved_at=query.now, options=query.options
        )
        said = read.error
        if said is None or not said.message.startswith(_PROVIDERS_WORDS):
            return FeedError(refused.kind, refused.message)
        return FeedError(said.kind, f"{refused.host} answers {refused.status}: {said.message}")

    def _exchange(self, request: Request) -> None:
        feed, manners = self._feed, self._line.manners
        if feed.paging is not None:
            payload, error = self._pages(request)
            noticed = self._keep(payload)
            if error is not None and noticed:
                self._warnings[error.message] = None  # the reader says that there is less, this says why
            elif error is not None:
                self._errors.append(error)
            return
        headers = sorted(request.headers.items())
        identity = _digest(request.url, *sorted(request.params.items()), *headers, request.body)
        answer = ask(request, self._line, manners.validators(self._owner, identity))
        if answer.unchanged:
            self._unchanged += 1
        elif not self._keep(answer.body):
            # Only what was understood need not be sent again.
            manners.remember(self._owner, identity, answer.validators)

    def _pages(self, request: Request) -> tuple[bytes, FeedError | None]:
        """All pages from the first on, joined, and why there are not more. Raises FeedError when there is not even one."""
        paging = self._feed.paging
        assert paging is not None
        pages = [ask(request, self._line).body]
        seen = {_digest(request.url, *sorted(request.params.items()), request.body)}
        error: FeedError | None = None
        room = self._line.limits.max_bytes * _PAGES_BODIES - len(pages[0])
        while error is None:
            try:
                following = paging.following(pages[-1], request)
                if following is None:
                    break
                mark = _digest(following.url, *sorted(following.params.items()), following.body)
                if mark in seen:
                    error = FeedError(
                        TRUNCATED, f"page {len(pages)} names a page that came before as the next; not read further"
                    )
                elif not same_host(request.url, following.url):
                    elsewhere = host_of(following.url)
                    error = FeedError(
                        ACCESS, f"the next page is at {elsewhere}, another address than was asked for; not followed"
                    )
                elif len(pages) >= MAX_PAGES:
                    error = FeedError(TRUNCATED, f"there are more than {MAX_PAGES} pages; not read further")
                else:
                    page = ask(following, self._line).body
                    room -= len(page)
                    if room < 0:
                        error = FeedError(TRUNCATED, f"page {len(pages) + 1} makes the answer too large; not read further")
                    else:
                        seen.add(mark)
                        pages.append(page)
                        request = following
            except NotAllowed:
                if self._feed.login is not None and not self._logged_in_again:
                    raise  # asked again from the first page, with a new session
                error = FeedError(ACCESS, f"page {len(pages) + 1}: not allowed (401)")
            except SignalError as problem:
                error = problem if isinstance(problem, FeedError) else FeedError(INVALID, str(problem))
                error = FeedError(error.kind, f"page {len(pages) + 1}: {error.message}")
        return paging.join(pages), error

    def _load(self, load: Callable[[Query], bytes]) -> bytes:
        """The payload from a library, with the manners that a host gets: its own retries are not ours to count."""
        name, manners = self._feed.name, self._line.manners
        self._line.hosts.add(name)
        wait_s = manners.turn(name, self._line.pace_s)
        problem: FeedError
        try:
            if wait_s > 0:
                self._line.sleep(wait_s)
        except BaseException:
            manners.gave_up(name)
            raise
        try:
            payload = load(replace(self._query, options=self._options()))
        except FeedError as error:
            if error.kind == ACCESS:
                manners.failed(name, scrub(error.message, self._secrets))
            else:
                manners.went_well(name)
            raise
        except Exception as error:  # noqa: BLE001 - a library's own, whatever it is; its text may hold anything
            problem = FeedError(ACCESS, f"the library that {name} asks failed ({type(error).__name__})")
        except BaseException:
            manners.gave_up(name)
            raise
        else:
            manners.went_well(name)
            return payload
        manners.failed(name, problem.message)
        raise problem

    # --- keeping --------------------------------------------------------------------------------------------------

    def _keep(self, payload: bytes) -> bool:
        """Read a payload into the result; return whether something was wrong with it."""
        query = self._query
        result = self._feed.parse(
            payload,
            region=self._region,
            kind=query.kind,
            retrieved_at=query.now,
            options=query.options,
            start=query.start,
            end=query.end,
        )
        # Requests of one window meet at their edges, where the same period comes twice; the later answer stands.
        for point in result.points:
            named = point if point.source == self._source else replace(point, source=self._source)
            self._points[named.variant, named.start, named.end, named.issued_at] = named
        for gap in result.gaps:
            self._gaps[gap if gap.source == self._source else replace(gap, source=self._source)] = None
        self._warnings |= dict.fromkeys(result.warnings)
        if result.error is not None:
            self._errors.append(result.error)
        return result.error is not None


def _digest(*parts: object) -> str:
    """A name for what may hold secrets, from which nobody can read them."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _plain(error: FeedError, secrets: Mapping[str, str] | None = None) -> FeedError:
    """The same error without what hangs on an exception (its traceback, its cause) and without secrets."""
    return FeedError(error.kind, scrub(error.message, secrets or {}))


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
    limits: Limits = LIMITS,
    sleep: Callable[[float], None] = time.sleep,
    manners: Manners | None = None,
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
            manners=manners,
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
