"""From the rows of an answer to the points and gaps of one series; what several feeds' readers share.

It knows duplicates, spacing, holes and windows; it knows no provider's format.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from signals.feeds.base import (
    ACCESS,
    INVALID,
    NO_DATA,
    Context,
    FeedError,
    ParseResult,
    Request,
    holes,
    json_object,
    number,
    steps,
)
from signals.gaps import SignalGap
from signals.points import Quality, SignalPoint

#: A window that begins longer ago than this fills the past; one that begins later is a poll, often repeated, for which what is
#: large or not part of every plan is not asked.
POLLED = timedelta(days=3)
_MAX_WARNINGS = 20
_DAY = timedelta(days=1)
#: A value that holds for longer, where no window says how much of it is wanted, is told for as many days and no more.
_MOST_DAYS = 366
#: Words by which sources say that they will not answer, and that they have nothing.
_REFUSING = (
    "access", "auth", "token", "api key", "api_key", "apikey", "permission", "forbidden", "denied", "credential", "login",
    "password", "plan", "subscri", "quota", "rate limit", "too many", "scope", "upgrade", "expired", "licen",
)  # fmt: skip
_EMPTY = ("no data", "no recent data", "not found", "not available", "no market data", "no results", "nothing")


@dataclass(frozen=True, slots=True)
class Row:
    """One value as a source gives it, already in the series' unit; ``value`` None: said to be missing. ``end`` None: as long
    as the spacing of the labels shows."""

    start: datetime
    end: datetime | None
    value: float | None
    quality: Quality
    issued_at: datetime | None = None


def series(
    context: Context, source: str, unit: str, rows: Iterable[Row], warnings: list[str], variant: str = ""
) -> tuple[list[SignalPoint], list[SignalGap]]:
    """Points and gaps of one series within the window. The same interval twice with different values: the last counts, as
    suspect, with a warning; with equal values: once. A value that holds for longer than a day is a point for each day (UTC)
    that the window touches, the same ones whatever window asks."""
    rows = list(rows)
    source = chosen(context.options, "source") or source  # an entry of a chain may give its points another name
    starts = sorted({row.start for row in rows})
    length = dict(zip(starts, steps(starts), strict=True))
    kept: dict[tuple[datetime, datetime, datetime | None], Row] = {}
    for row in rows:
        end = row.end if row.end is not None else row.start + length[row.start]
        if end <= row.start:
            warnings.append(f"{stamp(row.start)}: ends at {stamp(end)}, before it begins; left out")
            continue
        for left, right in _by_days(row.start, end, context, warnings):
            key = (left, right, row.issued_at)
            before, said_now = kept.get(key), row
            if before is not None and None not in (before.value, row.value) and before.value != row.value:
                warnings.append(f"{stamp(left)}: given twice, {before.value} and {row.value}; the last is used, suspect")
                said_now = replace(row, quality=Quality.SUSPECT)
            elif before is not None and (row.value is None or before.quality is Quality.SUSPECT):
                said_now = before  # a value is better than none, and a doubt once raised stays
            kept[key] = said_now
    points, gaps = [], []
    for (start, end, issued_at), row in sorted(kept.items(), key=lambda item: item[0][:2]):
        if not context.wants(start, end):
            continue
        if row.value is None:
            gaps.append(SignalGap(source, context.region, context.kind, start, end, variant))
            continue
        points.append(
            SignalPoint(
                region=context.region,
                kind=context.kind,
                unit=unit,
                start=start,
                end=end,
                issued_at=issued_at,
                retrieved_at=context.retrieved_at,
                value=row.value,
                quality=row.quality,
                source=source,
                variant=variant,
            )
        )
    filled = {(p.start, p.end) for p in points}
    gaps = [gap for gap in gaps if (gap.start, gap.end) not in filled]
    gaps += holes(context, source, variant, sorted(key[:2] for key in kept))
    return points, gaps


def _by_days(start: datetime, end: datetime, context: Context, warnings: list[str]) -> list[tuple[datetime, datetime]]:
    """An interval of at most a day as it is; a longer one cut at midnights (UTC), without the days outside of the window.

    What is stored has a longest interval, and a year's contract should not reach into years that nobody asked for.
    """
    if end - start <= _DAY:
        return [(start, end)]
    begin = start if context.start is None else max(start, _midnight(context.start))
    until = end if context.end is None else min(end, _midnight(context.end - timedelta(microseconds=1)) + _DAY)
    most = _midnight(begin) + _MOST_DAYS * _DAY
    if (context.start is None or context.end is None) and until > most:
        warnings.append(f"{stamp(start)}: holds until {stamp(end)}; told until {stamp(most)} only")
        until = most
    parts = []
    while begin < until:
        to = min(_midnight(begin) + _DAY, until)
        parts.append((begin, to))
        begin = to
    return parts


def _midnight(when: datetime) -> datetime:
    return when.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def result(
    points: Iterable[SignalPoint],
    gaps: Iterable[SignalGap],
    warnings: Sequence[str],
    empty: str,
    error: FeedError | None = None,
) -> ParseResult:
    """All series of one answer together; raises FeedError (``error``, else no_data with ``empty``) when there is no point."""
    points = sorted(points, key=lambda p: (p.variant, p.start, p.end))
    if not points:
        raise error or FeedError(NO_DATA, empty)
    some = tuple(warnings[:_MAX_WARNINGS])
    if len(warnings) > _MAX_WARNINGS:
        some += (f"and {len(warnings) - _MAX_WARNINGS} more like these",)
    return ParseResult(tuple(points), tuple(sorted(gaps, key=lambda g: (g.start, g.variant))), some, error)


def value_of(
    raw: object, where: str, warnings: list[str], least: float | None = None, most: float | None = None
) -> float | None:
    """``raw`` as a number; None when it is null, and None with a warning when it is no number or outside ``least..most``."""
    if raw is None:
        return None
    value = number(raw)
    if value is None:
        warnings.append(f"{where}: {str(raw)[:40]!r} is not a number; counted as missing")
    elif (least is not None and value < least) or (most is not None and value > most):
        warnings.append(f"{where}: {value:g} is not possible here; counted as missing")
        value = None
    return value


def objects(raw: object, where: str, warnings: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """The objects of a JSON list, each with the words that say where it stands; raises FeedError when it is no list."""
    if not isinstance(raw, list):
        raise FeedError(INVALID, f"field {where!r} is missing or not a list")
    found = []
    for index, item in enumerate(raw):
        if isinstance(item, dict):
            found.append((f"{where}[{index}]", item))
        else:
            warnings.append(f"{where}[{index}]: {str(item)[:40]!r} is not an object; left out")
    return found


def refusal(said: object, otherwise: str = INVALID) -> FeedError:
    """The error that a source's own words amount to: access, no_data, or else ``otherwise``."""
    text = " ".join(str(said).split())[:300]
    low = text.lower()
    if any(word in low for word in _REFUSING):
        kind = ACCESS
    elif any(word in low for word in _EMPTY):
        kind = NO_DATA
    else:
        kind = otherwise
    return FeedError(kind, f"the source says: {text}")


def said(body: Mapping[str, Any]) -> str:
    """What an error document says in its usual fields; empty when it says nothing."""
    words = [body[key] for key in ("error", "message", "detail", "errors") if body.get(key) not in (None, "", [], {}, False)]
    return ": ".join(str(word) for word in words if not isinstance(word, bool))


def token_in(payload: bytes) -> str:
    """The session's token in a login's answer ``{"token": ..}``; raises FeedError (access) when there is none."""
    try:
        body = json_object(payload)
    except FeedError as error:
        raise FeedError(ACCESS, f"the login's answer is of no use: {error.message}") from error
    token = body.get("token")
    if not isinstance(token, str) or not token.strip():
        raise FeedError(ACCESS, "the login was answered without a token; check user name and password")
    return token.strip()


def following_link(payload: bytes, request: Request) -> Request | None:
    """The page after this one by the absolute link in ``next``; None on the last page."""
    try:
        link = json_object(payload).get("next")
    except FeedError:
        return None  # the reader will say what is wrong with this page
    if not isinstance(link, str) or not link.startswith(("http://", "https://")):
        return None
    return Request(link, headers=request.headers)


def joined_results(pages: Sequence[bytes]) -> bytes:
    """One document of the pages' ``results``, up to the first page that is no such document; the ``next`` and ``count`` of
    the last one taken tell the reader whether any are missing."""
    results: list[Any] = []
    last: dict[str, Any] | None = None
    for page in pages:
        try:
            body = json_object(page)
        except FeedError:
            break
        if not isinstance(body.get("results"), list):
            break
        results += body["results"]
        last = body
    if last is None:
        return pages[0] if pages else b""
    return json.dumps(last | {"results": results}).encode()


def ranges(start: datetime, end: datetime, longest: timedelta) -> list[tuple[datetime, datetime]]:
    """``[start, end)`` in parts of at most ``longest``; none when it is empty."""
    parts = []
    while start < end:
        to = min(start + longest, end)
        parts.append((start, to))
        start = to
    return parts


def last_published(now: datetime, zone: ZoneInfo, hour: int) -> date:
    """The last local day of which day-ahead prices may be known at ``now``: today, and from ``hour`` on tomorrow."""
    local = now.astimezone(zone)
    return local.date() + (_DAY if local.hour >= hour else timedelta(0))


def chosen(options: Mapping[str, Any], key: str) -> str | None:
    """The option as text; None when it is not given, and all series of an answer are wanted."""
    return None if options.get(key) is None else str(options[key])


def base_url(options: Mapping[str, Any], default: str) -> str:
    """The option ``base_url`` or ``default``, without the slash at its end."""
    return str(options.get("base_url", default)).rstrip("/")


def stamp(when: datetime) -> str:
    """A UTC time as "2026-03-01T00:00:00Z"."""
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
