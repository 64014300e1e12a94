"""What a feed is: one function that says what to ask, one that says what the answer means, both pure.

It knows nothing of HTTP, files on disk, clocks or stores; the helpers here are what parsers share.
"""

import difflib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from signals.gaps import SignalGap
from signals.points import Kind, SignalError, SignalPoint

#: Kinds of FeedError: nothing published (yet), not let in or not reached, not what it should be, cut short.
NO_DATA, ACCESS, INVALID, TRUNCATED = "no_data", "access", "invalid", "truncated"
#: Schemes of Request.url beside http and https: a path on this machine; nothing to fetch.
FILE, LOCAL = "file:", "local:"


class FeedError(SignalError):
    """A source gave nothing usable; ``kind`` is no_data, access, invalid or truncated, ``message`` a sentence."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.message = kind, message


class Problem(NamedTuple):
    """One wrong option of a feed: which key, the value given, what would be right."""

    key: str
    value: object
    remedy: str


@dataclass(frozen=True, slots=True)
class Request:
    """One GET, or a POST of ``body`` when there is one. ``url`` is http(s), ``file:PATH`` for a file here, or ``local:`` when
    there is nothing to fetch. Secrets travel in ``params``, ``headers`` or ``body``, which nothing logs; never in ``url``."""

    url: str
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """What is wanted of a feed: ``kind`` over ``[start, end)``, asked at ``now``.

    ``options`` are those of the configuration, with the feed's secrets under their own names (Secret.name) and, after a
    login, the session's token as "bearer".
    """

    kind: Kind
    options: Mapping[str, Any]
    start: datetime
    end: datetime
    now: datetime


@dataclass(frozen=True, slots=True)
class Secret:
    """A key that a feed needs. The configuration says where it is, as ``<name>_env`` (a variable) or ``<name>_file``; without
    either the variable ``env`` is read. ``obtain`` says where a user gets one. With ``needed_by`` only feeds that are given
    one of those options need it."""

    name: str
    env: str
    obtain: str
    needed_by: tuple[str, ...] = ()

    def is_needed(self, options: Mapping[str, Any]) -> bool:
        """Whether a feed with these options needs the secret."""
        return not self.needed_by or any(key in options for key in self.needed_by)


@dataclass(frozen=True, slots=True)
class Login:
    """How a feed's credentials become a session's token, good for ``ttl_s``: what to ask, and the token in the answer.

    ``token`` raises FeedError (access) when the answer holds none.
    """

    request: Callable[[Mapping[str, Any]], Request]
    token: Callable[[bytes], str]
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Paging:
    """How a long answer comes in pages: ``following`` is the request for the page after this one (None: it was the last),
    ``join`` makes one payload of all that came, whose reader then sees whether any are missing."""

    following: Callable[[bytes, Request], Request | None]
    join: Callable[[Sequence[bytes]], bytes]


@dataclass(frozen=True, slots=True)
class ParseResult:
    """What a payload means: points, explicit gaps, warnings, and why there is nothing or less than there should be."""

    points: tuple[SignalPoint, ...] = ()
    gaps: tuple[SignalGap, ...] = ()
    warnings: tuple[str, ...] = ()
    error: FeedError | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """What a parser must know beside the payload.

    ``retrieved_at`` is when the payload was fetched; values are wanted for ``[start, end)`` (None: all there are).
    """

    region: str
    kind: Kind
    options: Mapping[str, Any]
    retrieved_at: datetime
    start: datetime | None = None
    end: datetime | None = None

    def wants(self, start: datetime, end: datetime) -> bool:
        """Whether ``[start, end)`` overlaps the window asked for."""
        return (self.end is None or start < self.end) and (self.start is None or end > self.start)


@dataclass(frozen=True, slots=True)
class Feed:
    """One source of signals.

    ``requests(query)`` says what to ask. ``read(payload, context)`` says what an answer means and raises FeedError when it
    means nothing; callers use ``parse``. ``check(options)`` lists wrong options. ``poll_s`` is how often asking again is
    worth it, in seconds of the clock that the signal's times belong to; ``pace_s`` is the least time between two requests to
    the provider, in seconds of the wall. ``defaults`` are options that live fetching adds: they choose one series where an
    answer holds several, which reading a saved answer shows all. ``load``, where given, gets the payload from a library
    instead of ``requests``; it raises FeedError.
    """

    name: str
    kinds: frozenset[Kind]
    option_names: frozenset[str]
    requests: Callable[[Query], tuple[Request, ...]]
    read: Callable[[bytes, Context], ParseResult]
    check: Callable[[Mapping[str, Any]], list[Problem]]
    poll_s: float
    pace_s: float = 0.0
    secrets: tuple[Secret, ...] = ()
    login: Login | None = None
    paging: Paging | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    load: Callable[[Query], bytes] | None = None

    @property
    def all_option_names(self) -> frozenset[str]:
        """The feed's own options and those that say where its secrets are."""
        return self.option_names | {f"{secret.name}_{where}" for secret in self.secrets for where in ("env", "file")}

    def parse(
        self,
        payload: bytes,
        *,
        region: str,
        kind: Kind,
        retrieved_at: datetime,
        options: Mapping[str, Any] | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
    ) -> ParseResult:
        """What ``payload`` means; whatever it holds, the answer is a ParseResult, with ``error`` where it is unusable."""
        if kind not in self.kinds:
            return ParseResult(error=FeedError(INVALID, f"feed {self.name} has {', '.join(sorted(self.kinds))}, not {kind}"))
        try:
            return self.read(payload, Context(region, kind, options or {}, retrieved_at, start, end))
        except FeedError as error:
            return ParseResult(error=error)
        except SignalError as error:
            return ParseResult(error=FeedError(INVALID, str(error)))


# --- options --------------------------------------------------------------------------------------------------------


def unknown_keys(names: Iterable[str], options: Mapping[str, Any]) -> list[Problem]:
    """A problem for each option that is not among ``names``, with the nearest name as remedy."""
    known = sorted(names)
    problems = []
    for key, value in options.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            remedy = f"no such option; did you mean {near[0]!r}?" if near else f"no such option; there are: {', '.join(known)}"
            problems.append(Problem(key, value, remedy))
    return problems


def check_text(options: Mapping[str, Any], *keys: str) -> list[Problem]:
    """A problem for each of ``keys`` that is given and is not a non-empty text."""
    return [
        Problem(key, options[key], "must be a non-empty text")
        for key in keys
        if key in options and not (isinstance(options[key], str) and options[key].strip())
    ]


def check_base_url(options: Mapping[str, Any]) -> list[Problem]:
    """A problem when ``base_url`` is not a plain http(s) URL. Credentials in a URL end up in logs, so they are refused."""
    if "base_url" not in options:
        return []
    url = options["base_url"]
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        good = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname)
        secret = parts is not None and (parts.username is not None or parts.password is not None)
        if good and parts is not None:
            _ = parts.port  # raises ValueError when it is not a number
    except ValueError:
        good, secret = False, False
    if secret:
        return [Problem("base_url", "(hidden)", "must not hold a user name or password")]
    return [] if good else [Problem("base_url", url, "must be a URL such as 'https://example.org'")]


_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def duration(key: str, value: object) -> timedelta:
    """A length of time from seconds or a text such as "90m", "24h" or "2d"; raises SignalError when it is none."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    try:
        if match:
            return timedelta(seconds=float(match[1]) * _SECONDS[match[2]])
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
            return timedelta(seconds=value)
    except (OverflowError, ValueError):
        pass  # too large for a timedelta, or not a number: the same remedy as for other wrong values
    raise SignalError(f"{key}: {value!r} is not a duration; give seconds or a text such as '24h'")


# --- payloads -------------------------------------------------------------------------------------------------------


def text_of(payload: bytes) -> str:
    """The payload as text; raises FeedError for an empty one, for HTML and for bytes that are not UTF-8."""
    try:
        text = payload.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FeedError(INVALID, f"the answer is not UTF-8 text (byte {error.start})") from error
    head = text.lstrip()[:15].lower()
    if not head:
        raise FeedError(NO_DATA, "the answer is empty")
    if head.startswith(("<!doctype html", "<html", "<head", "<body")):
        raise FeedError(INVALID, "the answer is an HTML page, not data; check base_url and any proxy or login page between")
    return text


def json_object(payload: bytes) -> dict[str, Any]:
    """The payload as a JSON object; raises FeedError (invalid or truncated) when it is anything else."""
    text = text_of(payload)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        # A body cut short is whole up to its end; garbage goes wrong earlier.
        if text.lstrip()[:1] == "{" and (error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")):
            raise FeedError(TRUNCATED, f"the JSON ends in the middle, after {len(text)} characters") from error
        raise FeedError(INVALID, f"the answer is not JSON: {error.msg} at character {error.pos}") from error
    except (RecursionError, ValueError) as error:  # absurd nesting; a number of thousands of digits
        raise FeedError(INVALID, f"the answer is not usable JSON: {type(error).__name__}") from error
    if not isinstance(value, dict):
        raise FeedError(INVALID, f"the answer is a JSON {type(value).__name__}; an object was expected")
    return value


def number(value: object) -> float | None:
    """``value`` as a finite float, or None when it is not one (null, text, true, NaN)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        as_float = float(value)
    except OverflowError:
        return None
    return as_float if math.isfinite(as_float) else None


def time_of(text: object) -> datetime | None:
    """An ISO 8601 time as aware UTC; a time without offset is read as UTC (for columns and fields named so); else None."""
    if not isinstance(text, str):
        return None
    try:
        value = datetime.fromisoformat(text.strip())
        value = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return value if 1990 <= value.year <= 2200 else None


def time_of_unix(seconds: object) -> datetime | None:
    """Seconds since the epoch as aware UTC; None when it is no such number or no plausible time."""
    value = number(seconds)
    if value is None or not 631_152_000 <= value <= 7_258_118_400:  # 1990 to 2200
        return None
    return datetime.fromtimestamp(value, UTC)


_USUAL_STEPS = frozenset(timedelta(minutes=m) for m in (1, 5, 10, 15, 30, 60))
_HOUR = timedelta(hours=1)


def steps(starts: Sequence[datetime]) -> list[timedelta]:
    """How long the interval of each start lasts, from the spacing of strictly rising ``starts``.

    Publishers change resolution (an hour to a quarter) and leave holes. A start is as long as the shorter of the distances
    to its neighbours, so that a value is never stretched over a hole; an unusual distance is a hole, bridged by the series'
    most common usual one. A single start lasts an hour.
    """
    distances = [b - a for a, b in pairwise(starts)]
    common = Counter(d for d in distances if d in _USUAL_STEPS).most_common(1)
    fallback = common[0][0] if common else min([*distances, _HOUR])
    result = []
    for i in range(len(starts)):
        beside = [d for d in distances[max(i - 1, 0) : i + 1] if d in _USUAL_STEPS]
        ahead = distances[i] if i < len(distances) else None
        step = min(beside, default=fallback)
        result.append(min(step, ahead) if ahead is not None else step)
    return result


def holes(context: Context, source: str, variant: str, spans: Iterable[tuple[datetime, datetime]]) -> tuple[SignalGap, ...]:
    """Gaps between successive ``spans`` (sorted by start) where one ends before the next begins, within the window."""
    found = []
    reached: datetime | None = None
    for start, end in spans:
        if reached is not None and start > reached and context.wants(reached, start):
            found.append(SignalGap(source, context.region, context.kind, reached, start, variant))
        reached = end if reached is None else max(reached, end)
    return tuple(found)
