"""Fills a store with the past of a feed, in windows that the feed stands, leaving out what is there already and marking what
is hardly possible (signals.plausibility).

Which windows are asked for is decided purely; asking is signals.ingest.fetch. Stopped at any time it goes on where it was: what
is stored is not fetched again. Backfilled points count as retrieved when they were fetched, which is the truth, so a reading
``as_of`` an earlier time does not see them: whoever replays the past on backfilled values reads as of now, and should know that
he then sees revisions which nobody had at the time. A feed that gives issue times keeps them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import requests

from signals.feeds.base import NO_DATA, FeedError
from signals.ingest import FetchResult, fetch
from signals.manners import Manners
from signals.plausibility import judge
from signals.points import Kind, Quality, SignalError, SignalPoint, require_utc
from signals.store import Signals

#: A window that every feed we know answers in one go.
CHUNK = timedelta(days=7)
#: Windows in a row that may fail before the rest is left for another time.
GIVE_UP_AFTER = 3
#: How far before a window the values reach that it is judged by.
_JUDGED_BY = timedelta(days=8)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Span = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True)
class Step:
    """What became of one window ``[start, end)``: number ``done`` of ``total``, ``stored`` new points, or an ``error``."""

    start: datetime
    end: datetime
    done: int
    total: int
    stored: int
    error: FeedError | None


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What one run did: windows ``skipped`` (there already), ``fetched``, ``failed``, and those ``left`` after it gave up;
    new points ``stored``; the ``errors`` of the failed ones. A window of which the source has nothing counts as fetched.
    ``warnings`` say why values were stored as SUSPECT."""

    skipped: int
    fetched: int
    failed: int
    left: int
    stored: int
    errors: tuple[FeedError, ...]
    warnings: tuple[str, ...] = ()


def windows(start: datetime, end: datetime, chunk: timedelta = CHUNK) -> list[Span]:
    """``[start, end)`` cut at multiples of ``chunk`` since 1970, so that a second run with another start meets the same cuts.

    Raises SignalError for naive times, an end that is not after the start, or a chunk shorter than an hour.
    """
    start, end = require_utc("start", start), require_utc("end", end)
    if end <= start:
        raise SignalError(f"end: {end.isoformat()} must be after start {start.isoformat()}")
    if chunk < timedelta(hours=1):
        raise SignalError(f"chunk: {chunk} must be at least an hour")
    cuts = [start]
    while cuts[-1] < end:
        cuts.append(min(end, cuts[-1] + chunk - (cuts[-1] - _EPOCH) % chunk))
    return list(pairwise(cuts))


def covered(spans: Iterable[Span], start: datetime, end: datetime) -> bool:
    """Whether ``spans`` together cover all of ``[start, end)``."""
    reached = start
    for left, right in sorted(spans):
        if left > reached:
            break
        reached = max(reached, right)
    return reached >= end


def backfill(
    store: Signals,
    feed: str,
    options: Mapping[str, Any],
    *,
    region: str,
    kind: Kind,
    start: datetime,
    end: datetime,
    now: Callable[[], datetime],
    chunk: timedelta = CHUNK,
    again: bool = False,
    progress: Callable[[Step], None] | None = None,
    session: requests.Session | None = None,
    ask: Callable[..., FetchResult] = fetch,
) -> Backfilled:
    """Fetch ``[start, end)`` window by window, oldest first, and store what is new or revised.

    A window is skipped when values that are no forecasts, and gaps that were noted, cover it already, unless ``again``. One
    that fails is left for another run; after GIVE_UP_AFTER in a row the source is taken to be down. ``now`` is asked before
    each request. Raises SignalError as ``windows`` does, and whatever the store raises.
    """
    plan = windows(start, end, chunk)
    source = str(options.get("source", feed))
    missing = [span for span in plan if again or not _is_there(store, region, kind, source, *span, as_of=now())]
    stored, in_a_row, fetched = 0, 0, 0
    errors: list[FeedError] = []
    warnings: dict[str, None] = {}
    manners = Manners()  # one for all windows: they go to one provider
    for number, (left, right) in enumerate(missing, start=1):
        at = now()
        found = ask(
            feed,
            options,
            region=region,
            kind=kind,
            now=at,
            window_start=left,
            window_end=right,
            session=session,
            manners=manners,
        )
        # A source may send more than was asked for: that belongs to other windows.
        points = [point for point in found.points if point.start < right and point.end > left]
        points, doubts = _judged(store, points, region, kind, source, left, right, at)
        warnings |= dict.fromkeys(doubts)
        new = store.append(points)
        store.note_gaps([gap for gap in found.gaps if gap.start < right and gap.end > left], at)
        stored += new
        error = None if found.error is None or found.error.kind == NO_DATA else found.error
        if error is None:
            fetched, in_a_row = fetched + 1, 0
        else:
            errors.append(error)
            in_a_row += 1
        if progress is not None:
            progress(Step(left, right, number, len(missing), new, found.error))
        if in_a_row >= GIVE_UP_AFTER:
            break
    skipped = len(plan) - len(missing)
    return Backfilled(
        skipped, fetched, len(errors), len(missing) - fetched - len(errors), stored, tuple(errors), tuple(warnings)
    )


def _judged(
    store: Signals,
    points: list[SignalPoint],
    region: str,
    kind: Kind,
    source: str,
    start: datetime,
    end: datetime,
    as_of: datetime,
) -> tuple[list[SignalPoint], tuple[str, ...]]:
    """The points of a window, with those that are new there and hardly possible marked SUSPECT, and the reasons.

    They are judged by what is stored of the window and of the days before it, as a poll's are. What was doubted when it was
    said first stays doubted.
    """
    history = store.read(region, kind, start - _JUDGED_BY, end, as_of, source=source)
    known = {(point.variant, point.start, point.end): point for point in history}
    kept: list[SignalPoint] = []
    new: list[SignalPoint] = []
    for point in points:
        twin = known.get((point.variant, point.start, point.end))
        if twin is None or twin.value != point.value:
            new.append(point)
        else:
            kept.append(replace(point, quality=twin.quality) if twin.quality is Quality.SUSPECT else point)
    judgement = judge(new, history)
    return kept + list(judgement.points), judgement.warnings


def _is_there(store: Signals, region: str, kind: Kind, source: str, start: datetime, end: datetime, *, as_of: datetime) -> bool:
    points = store.read(region, kind, start, end, as_of, source=source)
    # Variants are different signals; each that is there must cover the window.
    by_variant: dict[str, list[Span]] = {}
    for point in points:
        if point.quality is not Quality.FORECAST:
            by_variant.setdefault(point.variant, []).append((point.start, point.end))
    noted: Sequence[Any] = [gap for gap in store.read_gaps(region, kind, start, end, as_of) if gap.source == source]
    return bool(by_variant) and all(
        covered([*spans, *((gap.start, gap.end) for gap in noted if gap.variant == variant)], start, end)
        for variant, spans in by_variant.items()
    )
