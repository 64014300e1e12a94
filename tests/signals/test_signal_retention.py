"""Retention: what is kept how long, hourly means that invent nothing, and the same outcome on every store."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine
from sqlmodel import SQLModel

import signals.store
from signals.gaps import SignalGap
from signals.memory_store import MemorySignalStore
from signals.points import Kind, Quality, SignalError, SignalPoint
from signals.retention import Retention, hourly
from signals.store import Signals, SignalStore
from tests.signals.samples import DAY, HOUR, T0, at, point
from tests.signals.test_signal_store import TABLES, make

__all__ = ["make"]  # the fixture: a store of each sort

NOW = T0 + 1000 * DAY
#: Everything of the samples is older than this keeps whole.
OLD = Retention(10, 20, 2000)


def spans(points: list[SignalPoint]) -> list[tuple[float, float, float]]:
    return [((p.start - T0) / HOUR, (p.end - T0) / HOUR, p.value) for p in points]


def everything(store: Signals, as_of: Any = NOW) -> list[SignalPoint]:
    return store.read("r", Kind.PRICE, T0 - 30 * DAY, T0 + 30 * DAY, as_of)


# --- the decisions --------------------------------------------------------------------------------------------------


def test_ages_fall_on_whole_hours() -> None:
    cutoffs = Retention(1, 2, 3).cutoffs(at(100.7))
    assert (cutoffs.revisions_before, cutoffs.fine_before, cutoffs.drop_before) == (at(76), at(52), at(28))


@pytest.mark.parametrize(
    ("ages", "said"),
    [((0, 1, 2), "full_days: 0"), ((5, 4, 9), "fine_days: 4 must be at least full_days"), ((5, 6, 3), "keep_days: 3")],
)
def test_ages_out_of_order_are_refused(ages: tuple[int, int, int], said: str) -> None:
    with pytest.raises(SignalError, match=said):
        Retention(*ages)


def test_a_whole_hour_becomes_its_time_weighted_mean() -> None:
    parts = [point(0, 60.0, length_h=0.25), point(0.25, 20.0, length_h=0.75, retrieved_at=at(9), quality=Quality.ESTIMATED)]
    (mean,) = hourly(parts)
    assert spans([mean]) == [(0, 1, 30.0)]
    assert (mean.quality, mean.retrieved_at) == (Quality.ESTIMATED, at(9))


def test_missing_time_stays_missing() -> None:
    parts = [point(n / 4, float(n), length_h=0.25) for n in (0, 1, 3)]
    assert spans(hourly(parts)) == [(0, 0.5, 0.5), (0.75, 1, 3.0)]


def test_hours_and_points_across_hours_are_left_alone() -> None:
    points = [point(0, 1.0), point(1.75, 2.0, length_h=0.5), point(3, 3.0, length_h=6)]
    assert hourly(points) == points


def test_equal_parts_keep_their_value_exactly_and_units_are_not_mixed() -> None:
    thirds = [point(n / 12, 0.1 + 0.2, length_h=1 / 12) for n in range(12)]
    assert [p.value for p in hourly(thirds)] == [0.1 + 0.2]
    mixed = [point(0, 1.0, length_h=0.5), point(0.5, 3.0, length_h=0.5, unit="GBP/MWh")]
    assert spans(hourly(mixed)) == [(0, 0.5, 1.0), (0.5, 1, 3.0)]


def test_where_parts_overlap_the_finer_one_counts() -> None:
    parts = [point(0, 4.0, length_h=0.5), point(0.25, 8.0, length_h=0.25), point(0.5, 0.0, length_h=0.5)]
    assert spans(hourly(parts)) == [(0, 1, 3.0)]


PARTS = st.lists(
    st.tuples(
        st.integers(0, 47),  # start, in quarters
        st.sampled_from([1, 2, 4, 7]),  # length, in quarters
        st.integers(-3, 3),
        st.sampled_from(list(Quality)),
        st.integers(0, 5),  # retrieved
        st.sampled_from(["EUR/MWh", "EUR/MWh", "GBP/MWh"]),
    ),
    max_size=30,
)
Drawn = list[tuple[int, int, int, Quality, int, str]]


def drawn_points(drawn: Drawn) -> list[SignalPoint]:
    return [
        point(start / 4, float(value), length_h=length / 4, quality=quality, retrieved_at=at(retrieved), unit=unit)
        for start, length, value, quality, retrieved, unit in drawn
    ]


def quarters(points: list[SignalPoint]) -> set[int]:
    covered = set()
    for p in points:
        covered |= set(range(round((p.start - T0) / HOUR * 4), round((p.end - T0) / HOUR * 4)))
    return covered


@given(drawn=PARTS)
def test_means_cover_what_their_parts_covered_and_again_changes_nothing(drawn: Drawn) -> None:
    points = list({(p.start, p.end): p for p in drawn_points(drawn)}.values())
    once = hourly(points)
    assert quarters(once) == quarters(points)
    assert hourly(once) == once
    assert hourly(reversed(points)) == once
    if points:
        assert min(p.value for p in points) <= min(p.value for p in once)
        assert max(p.value for p in once) <= max(p.value for p in points)


# --- the stores -----------------------------------------------------------------------------------------------------


def test_old_revisions_go_and_young_ones_stay(make: Callable[[], Signals]) -> None:
    store = make()
    forecast = point(0, 1.0, issued_at=T0 - HOUR, retrieved_at=T0 - HOUR, quality=Quality.FORECAST)
    store.append([forecast, point(0, 2.0, retrieved_at=at(1)), point(0, 3.0, retrieved_at=at(2))])
    young = [replace(p, start=p.start + 5 * DAY, end=p.end + 5 * DAY) for p in (forecast, point(0, 2.0, retrieved_at=at(1)))]
    store.append(young)
    only_forecast = replace(forecast, start=at(3), end=at(4))
    store.append([only_forecast])
    now = T0 + 12 * DAY
    done = store.thin(now, OLD)
    assert (done.dropped, done.merged, done.pruned, done.finished) == (2, 0, 0, True)
    assert [p.value for p in everything(store, now)] == [3.0, 1.0, 2.0]
    assert [p.value for p in everything(store, T0)] == [1.0, 1.0], "the old hour was not known by then, as far as is known now"
    assert store.thin(now, OLD) == replace(done, dropped=0)


def test_fine_points_become_hours_and_gaps_and_ancient_points_go(make: Callable[[], Signals]) -> None:
    store = make()
    store.append([point(n / 4, float(n % 4), length_h=0.25) for n in range(-96, 96) if n != 5])
    store.note_gaps([SignalGap("s", "r", Kind.PRICE, at(-20), at(-19)), SignalGap("s", "r", Kind.PRICE, at(1), at(2))], T0)
    done = store.thin(T0 + 2000 * DAY, OLD)
    assert (done.dropped, done.merged, done.pruned) == (0, 94, 97), "a lone quarter is its own mean"
    kept = everything(store)
    assert len(kept) == 25 and spans(kept)[:4] == [(0, 1, 1.5), (1, 1.25, 0.0), (1.5, 2, 2.5), (2, 3, 1.5)]
    assert len(store.read_gaps("r", Kind.PRICE, T0 - DAY, T0 + DAY, NOW)) == 1
    assert store.thin(T0 + 2000 * DAY, OLD) == replace(done, merged=0, pruned=0)


def test_what_comes_late_is_merged_in_its_turn(make: Callable[[], Signals]) -> None:
    store = make()
    store.append([point(0, 1.0, length_h=0.5), point(5, 1.0, length_h=0.5)])
    store.thin(NOW, OLD)
    store.append([point(0.5, 2.0, length_h=0.25), point(0.75, 4.0, length_h=0.25)])
    assert store.thin(NOW, OLD).merged == 3
    assert spans(everything(store)) == [(0, 1, 2.0), (5, 5.5, 1.0)]


def test_a_series_of_which_nothing_is_left_is_forgotten(make: Callable[[], Signals]) -> None:
    store = make()
    store.append([point(0, 1.0), point(0, 1.0, source="b", retrieved_at=at(9))])
    assert store.thin(T0 + 3000 * DAY, OLD).pruned == 2
    assert store.latest_retrieved("r", Kind.PRICE) is None
    assert store.append([point(0, 1.0)]) == 1
    assert store.latest_retrieved("r", Kind.PRICE) == T0


def test_the_newest_retrieval_is_known_after_the_newest_row_went(make: Callable[[], Signals]) -> None:
    store = make()
    store.append([point(0, 1.0, retrieved_at=at(9)), point(5, 2.0, retrieved_at=at(6)), point(6, 2.0, retrieved_at=at(7))])
    store.prune(at(1))
    assert store.latest_retrieved("r", Kind.PRICE) == at(7)


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(drawn=PARTS, chunk=st.integers(1, 9), late=PARTS)
def test_every_store_thins_alike_whatever_the_chunks(
    make: Callable[[], Signals], drawn: Drawn, chunk: int, late: Drawn
) -> None:
    store, memory = make(), MemorySignalStore()
    if isinstance(store, SignalStore):
        store._pause = lambda _: None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signals.store, "CHUNK_ROWS", chunk)
        for batch in (drawn, late):
            store.append(drawn_points(batch))
            memory.append(drawn_points(batch))
            for retention in (Retention(995, 2000, 2000), Retention(995, 999.7, 2000), OLD):
                assert store.thin(NOW, retention) == memory.thin(NOW, retention)
                for hour in (0, 3, 24):
                    assert everything(store, at(hour)) == everything(memory, at(hour))
                assert store.latest_retrieved("r", Kind.PRICE) == memory.latest_retrieved("r", Kind.PRICE)
        assert store.prune(at(6)) == memory.prune(at(6))
        assert everything(store) == everything(memory)


def test_it_works_in_short_transactions_with_rests_and_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals.store, "CHUNK_ROWS", 16)
    engine = create_engine(f"sqlite:///{tmp_path / 'signals.db'}")
    SQLModel.metadata.create_all(engine, TABLES)
    rests: list[float] = []
    store = SignalStore(engine, pause=rests.append)
    store.append([point(n / 4, float(n), length_h=0.25) for n in range(96)])
    first = store.thin(NOW, OLD, transactions=2)
    assert not first.finished and 0 < first.merged < 96 and len(rests) == 1
    merged = first.merged
    while not (more := store.thin(NOW, OLD, transactions=2)).finished:
        merged += more.merged
    assert merged + more.merged == 96
    assert spans(everything(store)) == [(hour, hour + 1, 4 * hour + 1.5) for hour in range(24)]
    engine.dispose()


# --- reading, against the plain store -------------------------------------------------------------------------------

ROWS = st.lists(
    st.tuples(
        st.integers(0, 9),  # start
        st.sampled_from([1, 1, 1, 2, 5]),  # length
        st.integers(0, 9),  # retrieved
        st.one_of(st.none(), st.integers(0, 9)),  # issued
        st.integers(-1, 1),
        st.sampled_from([Quality.MEASURED, Quality.FORECAST]),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["EUR/MWh", "EUR/MWh", "GBP/MWh"]),
    ),
    min_size=1,
    max_size=25,
)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(batches=st.lists(ROWS, min_size=1, max_size=3), window=st.tuples(st.integers(-1, 9), st.integers(1, 6)))
def test_every_store_reads_alike_at_every_time(
    make: Callable[[], Signals], batches: list[list[Any]], window: tuple[int, int]
) -> None:
    store, memory = make(), MemorySignalStore()
    for batch in batches:
        points = [
            point(
                start,
                float(value),
                length_h=length,
                retrieved_at=at(retrieved) + timedelta(microseconds=start),
                issued_at=None if issued is None else at(issued) + timedelta(microseconds=start),
                quality=quality,
                source=source,
                unit=unit,
            )
            for start, length, retrieved, issued, value, quality, source, unit in batch
        ]
        assert store.append(points) == memory.append(points)
    start, end = at(window[0]), at(window[0] + window[1])
    for hour in range(-1, 11):
        seen = store.read("r", Kind.PRICE, start, end, at(hour))
        assert seen == memory.read("r", Kind.PRICE, start, end, at(hour))
        assert [type(p.quality) for p in seen] == [Quality] * len(seen)
