"""The signal store: revisions, as-of reads, gaps; the same on memory, SQLite and PostgreSQL."""

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine, insert, make_url, text
from sqlalchemy.exc import IntegrityError
from sqlmodel import SQLModel

from dispatcher.store.engine import make_engine
from signals.gaps import SignalGap
from signals.memory_store import MemorySignalStore
from signals.points import Kind, Quality, SignalError, SignalPoint
from signals.store import MAX_SPAN, SignalGapRow, Signals, SignalStore
from tests.signals.samples import DAY, HOUR, T0, at, point

#: Writers of one series at once, and what each writes.
WRITERS, ROUNDS = 2, 15
TABLES = [SQLModel.metadata.tables[name] for name in ("signal_series", "signal_point", "signal_gap")]
POSTGRES = os.environ.get("GRIDSHIFT_TEST_POSTGRES", "")


def sqlite(folder: Path) -> Engine:
    return create_engine(f"sqlite:///{folder / 'signals.db'}")


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Signals]]:
    """Makes an empty store of each sort, whatever was written to it before."""
    with ExitStack() as at_end:
        if request.param == "memory":
            yield MemorySignalStore
            return
        if request.param == "sqlite":
            engine = sqlite(tmp_path)
        else:
            if not POSTGRES:
                pytest.skip("PostgreSQL: set GRIDSHIFT_TEST_POSTGRES to a SQLAlchemy URL of an empty database")
            schema = f"signals_{secrets.token_hex(4)}"
            engine = create_engine(POSTGRES, connect_args={"options": f"-csearch_path={schema} -ctimezone=Asia/Kolkata"})

            def run(statement: str) -> None:
                with engine.begin() as connection:
                    connection.execute(text(statement))

            at_end.callback(engine.dispose)
            run(f"CREATE SCHEMA {schema}")
            at_end.callback(run, f"DROP SCHEMA {schema} CASCADE")
        at_end.callback(engine.dispose)

        def fresh() -> Signals:
            SQLModel.metadata.drop_all(engine, TABLES)
            SQLModel.metadata.create_all(engine, TABLES)
            return SignalStore(engine)

        yield fresh


@pytest.fixture
def store(make: Callable[[], Signals]) -> Signals:
    return make()


def read(store: Signals, as_of: datetime = T0 + 30 * DAY, **more: str) -> list[SignalPoint]:
    return store.read("r", Kind.PRICE, T0 - 30 * DAY, T0 + 30 * DAY, as_of, **more)


def test_points_come_back_as_they_went_in(store: Signals) -> None:
    points = [
        point(0, -12.25, length_h=0.25),
        point(0.25, 0.0, length_h=0.25, issued_at=T0 - HOUR, quality=Quality.FORECAST, variant="x"),
        point(1, 0.1 + 0.2, retrieved_at=T0 + timedelta(microseconds=1)),
    ]
    assert store.append(points) == 3
    assert read(store) == points
    assert all(p.start.tzinfo is UTC and p.retrieved_at.utcoffset() == timedelta(0) for p in read(store))


def test_other_offsets_are_the_same_moment(store: Signals) -> None:
    kolkata = timezone(timedelta(hours=5, minutes=30))
    store.append([replace(point(0, 1.0), start=T0.astimezone(kolkata), end=at(1).astimezone(kolkata))])
    assert store.read("r", Kind.PRICE, T0.astimezone(kolkata), at(1), T0) == [point(0, 1.0)]


def test_identical_redelivery_is_not_stored_again_and_a_revision_is(store: Signals) -> None:
    first = point(0, 5.0)
    assert store.append([first, first]) == 1
    assert store.append([replace(first, retrieved_at=at(1))]) == 0
    assert store.append([replace(first, retrieved_at=at(2), value=6.0)]) == 1
    assert store.append([replace(first, retrieved_at=at(3), value=5.0)]) == 1  # back to what it was is a revision too
    assert store.append([replace(first, retrieved_at=at(4), quality=Quality.ESTIMATED)]) == 1
    seen = [read(store, at(h))[0] for h in range(5)]
    assert [p.value for p in seen] == [5.0, 5.0, 6.0, 5.0, 5.0]
    assert seen[4].quality is Quality.ESTIMATED


def test_nothing_is_seen_before_it_was_known(store: Signals) -> None:
    store.append([point(0, 1.0, retrieved_at=at(5)), point(1, 2.0, retrieved_at=at(0), issued_at=at(9))])
    assert read(store, at(4.99)) == []
    assert [p.value for p in read(store, at(5))] == [1.0]
    assert [p.value for p in read(store, at(9))] == [1.0, 2.0]


def test_an_actual_beats_a_forecast_and_a_newer_issue_an_older(store: Signals) -> None:
    def forecast(issued: float, value: float, retrieved: float) -> SignalPoint:
        return point(0, value, issued_at=at(issued), retrieved_at=at(retrieved), quality=Quality.FORECAST)

    store.append([forecast(1, 10.0, 1), forecast(2, 20.0, 2), forecast(1.5, 15.0, 3)])
    assert [read(store, at(h))[0].value for h in (1, 2, 3)] == [10.0, 20.0, 20.0]
    store.append([point(0, 99.0, retrieved_at=at(4)), forecast(5, 50.0, 5)])
    assert [read(store, at(h))[0].value for h in (3, 4, 5)] == [20.0, 99.0, 99.0]


def test_forecasts_without_an_issue_time_do_not_pile_up(store: Signals) -> None:
    def polled(hour: float, value: float) -> SignalPoint:
        return point(9, value, issued_at=at(hour), retrieved_at=at(hour), quality=Quality.FORECAST)

    assert [store.append([polled(h, v)]) for h, v in ((0, 1.0), (1, 1.0), (2, 2.0), (3, 2.0), (4, 1.0))] == [1, 0, 1, 0, 1]
    assert [read(store, at(h))[0].value for h in range(5)] == [1.0, 1.0, 2.0, 2.0, 1.0]


def test_sources_variants_kinds_and_regions_stand_apart(store: Signals) -> None:
    carbon = point(0, 7.0, kind=Kind.CARBON_AVERAGE)
    points = [
        point(0, 1.0, source="a"),
        point(0, 2.0, source="b"),
        point(0, 3.0, source="b", variant="v"),
        point(0, 4.0, region="q"),
        carbon,
    ]
    assert store.append(points) == 5
    assert [p.value for p in read(store)] == [1.0, 2.0, 3.0]
    assert [p.value for p in read(store, source="b")] == [2.0, 3.0]
    assert [p.value for p in read(store, source="b", variant="")] == [2.0]
    assert store.read("r", Kind.CARBON_AVERAGE, T0, at(1), T0) == [carbon]
    assert store.read("r", Kind.CARBON_MARGINAL, T0, at(1), T0) == []


def test_windows_are_half_open_and_long_points_reach_in(store: Signals) -> None:
    month = replace(point(0, 9.0), start=T0 - MAX_SPAN + HOUR, end=T0 + HOUR, variant="long")
    store.append([point(0, 1.0), point(1, 2.0), point(2, 3.0), month])
    window = store.read("r", Kind.PRICE, at(1), at(2), T0)
    assert [p.value for p in window] == [2.0]
    assert [p.value for p in store.read("r", Kind.PRICE, at(0.99), at(2.01), T0)] == [9.0, 1.0, 2.0, 3.0]


def test_a_point_longer_than_a_month_is_refused_and_nothing_stored(store: Signals) -> None:
    with pytest.raises(SignalError, match="split"):
        store.append([point(0, 1.0), point(1, 1.0, length_h=32 * 24)])
    assert read(store) == []


def test_naive_times_are_refused(store: Signals) -> None:
    naive = datetime(2026, 3, 1)  # noqa: DTZ001 - the mistake under test
    with pytest.raises(SignalError, match="start"):
        store.read("r", Kind.PRICE, naive, T0, T0)
    with pytest.raises(SignalError, match="as_of"):
        store.read("r", Kind.PRICE, T0, T0 + DAY, naive)
    with pytest.raises(SignalError, match="before"):
        store.prune(naive)
    with pytest.raises(SignalError, match="noted_at"):
        store.note_gaps([], naive)


def test_gaps_are_noted_once_and_as_of_when(store: Signals) -> None:
    gap = SignalGap("s", "r", Kind.PRICE, at(1), at(2))
    other = replace(gap, variant="v")
    assert store.note_gaps([gap, gap], at(0)) == 1
    assert store.note_gaps([gap, other], at(1)) == 1
    assert store.note_gaps([], at(1)) == 0
    assert store.read_gaps("r", Kind.PRICE, at(0), at(9), at(0)) == [gap]
    assert store.read_gaps("r", Kind.PRICE, at(0), at(9), at(1)) == [gap, other]
    assert store.read_gaps("r", Kind.PRICE, at(2), at(9), at(9)) == []
    assert store.read_gaps("q", Kind.PRICE, at(0), at(9), at(9)) == []


def test_latest_retrieved_and_prune(store: Signals) -> None:
    assert store.latest_retrieved("r", Kind.PRICE) is None
    store.append([point(0, 1.0), point(1, 2.0, retrieved_at=at(3)), point(2, 2.0, source="b", retrieved_at=at(2))])
    store.note_gaps([SignalGap("s", "r", Kind.PRICE, at(0), at(1)), SignalGap("s", "r", Kind.PRICE, at(5), at(6))], T0)
    assert store.latest_retrieved("r", Kind.PRICE) == at(3)
    assert store.latest_retrieved("r", Kind.PRICE, "b") == at(2)
    assert store.latest_retrieved("r", Kind.LOAD) is None
    assert store.prune(at(1)) == 2
    assert [p.value for p in read(store)] == [2.0, 2.0]
    assert len(store.read_gaps("r", Kind.PRICE, T0, T0 + DAY, T0)) == 1
    assert store.prune(at(1)) == 0


def test_empty_append(store: Signals) -> None:
    assert store.append([]) == 0


def test_two_weeks_of_quarters_come_once(store: Signals) -> None:
    points = [point(q / 4, float(q % 96), length_h=0.25) for q in range(14 * 96)]
    assert store.append(points) == len(points)
    assert store.append([replace(p, retrieved_at=at(1)) for p in points]) == 0
    assert len(store.read("r", Kind.PRICE, at(0), at(72), at(2))) == 72 * 4


def test_a_failing_database_leaves_nothing_half_written(tmp_path: Path) -> None:
    engine = sqlite(tmp_path)
    SQLModel.metadata.create_all(engine, TABLES)
    store = SignalStore(engine)
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TRIGGER no BEFORE INSERT ON signal_point WHEN NEW.value = 13 BEGIN SELECT RAISE(ABORT, 'full'); END")
        )
    with pytest.raises(Exception, match="full"):
        store.append([point(h, float(h)) for h in range(20)])
    assert read(store) == []
    assert store.append([point(0, 1.0)]) == 1
    engine.dispose()


def test_the_database_itself_refuses_a_gap_twice(tmp_path: Path) -> None:
    engine = sqlite(tmp_path)
    SQLModel.metadata.create_all(engine, TABLES)
    row = {"source": "s", "region": "r", "kind": "price", "variant": "", "start": at(0), "end": at(1), "noted_at": at(0)}
    with pytest.raises(IntegrityError), engine.begin() as connection:
        connection.execute(insert(SignalGapRow), [row, row | {"noted_at": at(2)}])
    engine.dispose()


# --- no look-ahead: a property --------------------------------------------------------------------------------------

REVISIONS = st.lists(
    st.tuples(
        st.integers(0, 3),  # interval
        st.integers(0, 8),  # retrieved
        st.one_of(st.none(), st.integers(0, 8)),  # issued
        st.integers(-2, 2),  # value
        st.sampled_from([Quality.MEASURED, Quality.FORECAST]),
    ),
    max_size=14,
)


def revisions(drawn: list[tuple[int, int, int | None, int, Quality]]) -> list[SignalPoint]:
    return [
        point(
            interval,
            float(value),
            retrieved_at=at(retrieved),
            issued_at=None if issued is None else at(issued),
            quality=quality,
        )
        for interval, retrieved, issued, value, quality in drawn
    ]


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(drawn=REVISIONS, as_of=st.integers(0, 8))
def test_what_is_learned_later_never_changes_an_earlier_reading(
    make: Callable[[], Signals], drawn: list[tuple[int, int, int | None, int, Quality]], as_of: int
) -> None:
    points = revisions(drawn)
    honest, corrupted = make(), MemorySignalStore()
    honest.append(points)
    # Whatever was retrieved or issued after as_of might as well have been anything else, or not be there at all.
    later = {p for p in points if p.retrieved_at > at(as_of) or (p.issued_at is not None and p.issued_at > at(as_of))}
    corrupted.append([replace(p, value=p.value + 1000) if p in later else p for p in points])
    assert read(honest, at(as_of)) == read(corrupted, at(as_of))
    without = MemorySignalStore()
    without.append([p for p in points if p not in later])
    assert read(honest, at(as_of)) == read(without, at(as_of))


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(drawn=REVISIONS)
def test_one_by_one_and_all_at_once_read_the_same_at_every_time(
    make: Callable[[], Signals], drawn: list[tuple[int, int, int | None, int, Quality]]
) -> None:
    points = sorted(revisions(drawn), key=lambda p: p.retrieved_at)
    at_once, one_by_one = make(), MemorySignalStore()
    at_once.append(points)
    for one in points:
        one_by_one.append([one])
    for hour in range(9):
        assert read(at_once, at(hour)) == read(one_by_one, at(hour))


# --- several writers at once ----------------------------------------------------------------------------------------

WRITER = """
import sys
from datetime import timedelta
from sqlalchemy import make_url
from dispatcher.store.engine import make_engine
from signals.gaps import SignalGap
from signals.points import Kind
from signals.store import SignalStore
from tests.signals.samples import DAY, at, point

url, number, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = SignalStore(make_engine(make_url(url)))
print("ready", flush=True)
sys.stdin.readline()
for n in range(rounds):
    learned = at(n) + number * timedelta(minutes=1)
    store.append([point(hour, 100.0 * number + n + hour, retrieved_at=learned) for hour in range(24)])
    store.note_gaps([SignalGap("s", "r", Kind.PRICE, at(n), at(n + 1))], learned)
    if n % 5 == 4:
        store.prune(at(-DAY.days))
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database with empty tables of signals, as the control plane opens it."""
    with ExitStack() as at_end:
        if request.param == "sqlite":
            url = f"sqlite:///{tmp_path / 'shared.db'}"
        else:
            if not POSTGRES:
                pytest.skip("PostgreSQL: set GRIDSHIFT_TEST_POSTGRES to a SQLAlchemy URL of an empty database")
            name = f"signals_{secrets.token_hex(4)}"
            server = create_engine(POSTGRES, isolation_level="AUTOCOMMIT")
            at_end.callback(server.dispose)

            def run(statement: str) -> None:
                with server.connect() as connection:
                    connection.execute(text(statement))

            run(f"CREATE DATABASE {name}")
            at_end.callback(run, f"DROP DATABASE {name} WITH (FORCE)")
            url = make_url(POSTGRES).set(database=name).render_as_string(hide_password=False)
        engine = make_engine(make_url(url), create=True)
        SQLModel.metadata.create_all(engine, TABLES)
        engine.dispose()
        yield url


def test_two_processes_write_one_series_at_once(shared_url: str) -> None:
    command = [sys.executable, "-c", WRITER, shared_url]
    writers = [
        subprocess.Popen(
            [*command, str(number), str(ROUNDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for number in range(WRITERS)
    ]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        _, said = writer.communicate(timeout=60)
        assert writer.returncode == 0, said
    engine = make_engine(make_url(shared_url))
    try:
        with engine.connect() as connection:
            count = "SELECT count(*) FROM signal_point WHERE outranked = 0 GROUP BY series_id, start_us, end_us"
            assert connection.execute(text(count)).scalars().all() == [1] * 24, "one row in force for each interval"
            assert connection.execute(text("SELECT count(*) FROM signal_series")).scalar_one() == 1
            assert connection.execute(text("SELECT count(*) FROM signal_point")).scalar_one() == 24 * WRITERS * ROUNDS
        store = SignalStore(engine)
        last = [point.value for point in read(store, at(24 * 90))]
        assert last == [100.0 * (WRITERS - 1) + ROUNDS - 1 + hour for hour in range(24)], "the last that was learned"
        assert len(store.read_gaps("r", Kind.PRICE, T0, at(24 * 90), at(24 * 90))) == ROUNDS
    finally:
        engine.dispose()


def test_what_is_doubted_never_hides_what_was_believed(store: Signals) -> None:
    good = point(0, 58.0, retrieved_at=T0 - DAY)
    doubted = point(0, 0.058, quality=Quality.SUSPECT)
    told = point(1, 61.0, quality=Quality.FORECAST, issued_at=T0 - DAY, retrieved_at=T0 - DAY)
    worse = point(1, 0.061, quality=Quality.SUSPECT)
    store.append([good, told])
    store.append([doubted, worse])
    for as_of in (T0, T0 + 30 * DAY):
        assert [p.value for p in store.read("r", Kind.PRICE, T0, at(2), as_of)] == [58.0, 61.0]
    store.append([point(0, 57.0, retrieved_at=at(3))])
    assert [p.value for p in store.read("r", Kind.PRICE, T0, at(1), at(4))] == [57.0]
    assert [p.value for p in store.read("r", Kind.PRICE, T0, at(1), at(2))] == [58.0]
    alone = point(5, 7.0, quality=Quality.SUSPECT)
    store.append([alone])
    assert [p.quality for p in store.read("r", Kind.PRICE, at(5), at(6), at(9))] == [Quality.SUSPECT]
