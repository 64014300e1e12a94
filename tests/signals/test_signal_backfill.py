"""Backfill: which windows are asked for, what is skipped on the next run, what happens when the source fails."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from signals.backfill import GIVE_UP_AFTER, Step, backfill, covered, windows
from signals.feeds.base import ACCESS, NO_DATA, FeedError
from signals.gaps import SignalGap
from signals.ingest import FetchResult
from signals.memory_store import MemorySignalStore
from signals.points import Kind, Quality, SignalError
from tests.signals.samples import DAY, HOUR, T0, at, point

NOW = T0 + 30 * DAY


class Source:
    """A feed with hourly values, which remembers what it was asked and fails as it is told."""

    def __init__(self, fail: Callable[[datetime], FeedError | None] = lambda start: None) -> None:
        self.asked: list[datetime] = []
        self.fail = fail
        self.value = 1.0

    def __call__(self, feed: str, options: Any, **asked: Any) -> FetchResult:
        start, end, now = asked["window_start"], asked["window_end"], asked["now"]
        self.asked.append(start)
        error = self.fail(start)
        hours = 0 if error else (end - start) // HOUR + 2  # more than was wanted
        first = (start - T0) / HOUR - 1
        points = tuple(point(first + n, self.value, source=feed, retrieved_at=now) for n in range(int(hours)))
        return FetchResult(feed, feed, "r", Kind.PRICE, now, points, error=error)


def run(store: MemorySignalStore, source: Source, **more: Any) -> Any:
    wanted = {"region": "r", "kind": Kind.PRICE, "start": T0, "end": T0 + 4 * DAY, "chunk": DAY, "now": lambda: NOW}
    return backfill(store, "f", {}, ask=source, **(wanted | more))


def test_windows_cover_the_span_and_their_cuts_do_not_depend_on_the_start() -> None:
    cut = windows(T0 + HOUR, T0 + 3 * DAY, DAY)
    assert cut == [(T0 + HOUR, T0 + DAY), (T0 + DAY, T0 + 2 * DAY), (T0 + 2 * DAY, T0 + 3 * DAY)]
    assert windows(T0 + 5 * HOUR, T0 + 3 * DAY, DAY)[1:] == cut[1:]
    with pytest.raises(SignalError, match=r"end: .* must be after start"):
        windows(T0, T0)
    with pytest.raises(SignalError, match="chunk"):
        windows(T0, T0 + DAY, timedelta(0))
    with pytest.raises(SignalError, match=r"start: .* no UTC offset"):
        windows(T0.replace(tzinfo=None), T0)


def test_covered() -> None:
    assert covered([(at(1), at(2)), (at(0), at(1))], at(0), at(2))
    assert covered([(at(0), at(5)), (at(1), at(2))], at(0), at(5))
    assert not covered([(at(0), at(1)), (at(1.5), at(2))], at(0), at(2))
    assert not covered([], at(0), at(1))


def test_a_second_run_asks_nothing_and_a_forced_one_stores_revisions() -> None:
    store, source, steps = MemorySignalStore(), Source(), list[Step]()
    done = run(store, source, progress=steps.append)
    assert (done.skipped, done.fetched, done.failed, done.left, done.stored) == (0, 4, 0, 0, 96)
    assert [(step.done, step.total, step.stored) for step in steps] == [(1, 4, 24), (2, 4, 24), (3, 4, 24), (4, 4, 24)]
    assert len(store.read("r", Kind.PRICE, T0 - DAY, T0 + 9 * DAY, NOW)) == 96, "nothing outside what was wanted"
    assert run(store, source).skipped == 4 and len(source.asked) == 4
    source.value = 2.0
    assert run(store, source, again=True, now=lambda: NOW + DAY).stored == 96
    assert store.read("r", Kind.PRICE, T0, T0 + HOUR, NOW)[0].value == 1.0
    assert store.read("r", Kind.PRICE, T0, T0 + HOUR, NOW + DAY)[0].value == 2.0


def test_backfilled_points_were_not_known_before() -> None:
    store = MemorySignalStore()
    run(store, Source())
    assert store.read("r", Kind.PRICE, T0, T0 + 4 * DAY, NOW - HOUR) == []


def test_holes_forecasts_and_other_sources_do_not_count_as_there() -> None:
    store, source = MemorySignalStore(), Source()
    hours = [point(n, 1.0, source="f", retrieved_at=NOW) for n in range(96)]
    hours[30] = replace(hours[30], quality=Quality.FORECAST, issued_at=T0)  # the second day
    hours[60] = replace(hours[60], source="g")  # the third
    del hours[90]  # the fourth, whose hole is known
    store.append(hours)
    store.note_gaps([SignalGap("f", "r", Kind.PRICE, at(90), at(91))], NOW)
    assert run(store, source).skipped == 2
    assert source.asked == [T0 + DAY, T0 + 2 * DAY]


def test_nothing_published_is_no_failure() -> None:
    source = Source(lambda start: FeedError(NO_DATA, "nothing") if start == T0 + DAY else None)
    done = run(MemorySignalStore(), source)
    assert (done.fetched, done.failed, done.stored) == (4, 0, 72)


def test_a_failed_window_is_left_for_the_next_run() -> None:
    down = [True]
    source = Source(lambda start: FeedError(ACCESS, "down") if down[0] and start == T0 + DAY else None)
    store = MemorySignalStore()
    done = run(store, source)
    assert (done.fetched, done.failed, done.left, [e.message for e in done.errors]) == (3, 1, 0, ["down"])
    down[0] = False
    assert run(store, source).fetched == 1 and source.asked[-1] == T0 + DAY


def test_a_source_that_is_down_is_not_asked_for_every_window() -> None:
    source = Source(lambda start: FeedError(ACCESS, "down"))
    done = run(MemorySignalStore(), source, end=T0 + 20 * DAY)
    assert (done.failed, done.left, len(source.asked)) == (GIVE_UP_AFTER, 20 - GIVE_UP_AFTER, GIVE_UP_AFTER)


def test_what_a_window_says_is_judged_by_the_days_before() -> None:
    """A source whose unit slips in the third window: its values are stored, marked, and the caller is told."""

    class Slipping(Source):
        def __call__(self, feed: str, options: Any, **asked: Any) -> FetchResult:
            found = super().__call__(feed, options, **asked)
            factor = 100.0 if T0 + 2 * DAY <= asked["window_start"] < T0 + 3 * DAY else 1.0
            points = [replace(p, value=factor * (50.0 + 3.7 * ((p.start - T0) // HOUR * 7 % 24))) for p in found.points]
            return replace(found, points=tuple(points))

    store, source = MemorySignalStore(), Slipping()
    done = run(store, source)
    assert (done.fetched, done.failed, done.stored) == (4, 0, 96)
    doubted = [p.start for p in store.read("r", Kind.PRICE, T0, T0 + 4 * DAY, NOW) if p.quality is Quality.SUSPECT]
    assert doubted == [T0 + 2 * DAY + n * HOUR for n in range(24)]
    assert any("a mistaken unit" in warning for warning in done.warnings)
    again = run(store, source, again=True, now=lambda: NOW + DAY)
    assert again.stored == 0, "what was doubted stays so, and is not stored once more as if it were not"
