"""The book of measured energy on each database: a row counts once, sums are the meter's, gaps stay gaps."""

import random
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, event, func, insert, select, text

from dispatcher.errors import StoreUnavailable
from dispatcher.power.accounts import Turn
from dispatcher.power.energy import EnergyBook, EnergySum, Keep, KnownNode, Taken, checked
from dispatcher.store.engine import database, make_engine
from dispatcher.store.migrate import upgrade
from dispatcher.store.tables import ENERGY_HOUR, ENERGY_MINUTE, SETTING
from tests.power.energy_samples import T0, T0_S, at, wire

LATER = at(3 * 3600)
NORTH = Turn("north", None, None)


def take(book: EnergyBook, *rows: dict[str, Any]) -> Taken:
    return book.take(rows, LATER).result(10)


def total(sums: list[EnergySum], name: str = "energy_wh") -> float:
    return sum(getattr(one, name) or 0.0 for one in sums)


def count(book: EnergyBook, table: Any) -> int:
    with book._engine.connect() as connection:
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


def test_a_row_that_comes_twice_counts_once(book: EnergyBook) -> None:
    rows = [wire(n) for n in range(5)]
    assert take(book, *rows) == Taken(5, 0)
    assert take(book, *rows, wire(5)) == Taken(1, 5)
    assert take(book, wire(5), wire(5), wire(6)) == Taken(1, 2)
    assert take(book, wire(0, energy_wh=99.0)) == Taken(0, 1), "what was taken stands"
    assert total(book.sums(T0, at(600), 60)) == pytest.approx(7 * 6.0)


def test_many_senders_at_once(book: EnergyBook) -> None:
    rows = [wire(n, node_id=f"n{node}") for node in range(8) for n in range(20)]
    random.Random(1).shuffle(rows)
    with ThreadPoolExecutor(8) as pool:
        futures = list(pool.map(lambda at: book.take(rows[at : at + 40], LATER), range(0, 160, 20)))
    taken = [future.result(20) for future in futures]
    assert sum(one.new for one in taken) == 160 and sum(one.known for one in taken) == 140
    assert total(book.sums(T0, at(1200), 60)) == pytest.approx(160 * 6.0)


def test_a_large_batch(book: EnergyBook) -> None:
    rows = [wire(n % 60, uuid=f"GPU-{n // 60}") for n in range(1500)]
    assert take(book, *rows) == Taken(1500, 0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"energy_wh": -1.0}, "no energy"),
        ({"energy_wh": float("nan")}, "no energy"),
        ({"energy_wh": 1e6}, "no energy"),
        ({"line": "nobody"}, "must be job with an id"),
        ({"job_id": None}, "must be job with an id"),
        ({"end": T0_S}, "lasts 0 s"),
        ({"end": T0_S + 60 * 24 * 3600}, "an interval has"),
        ({"seconds": 61.0}, "measured of 60 s"),
        ({"idle_wh": 7.0}, "must be a part"),
        ({"idle_wh": [1.0]}, "is not of its type"),
        ({"idle_wh": 10**400}, "is not of its type"),
    ],
)
def test_what_cannot_be_true_is_refused_alone(sqlite_url: str, wrong: dict[str, Any], said: str) -> None:
    book = EnergyBook(make_engine(database(sqlite_url)))
    taken = take(book, wire(1), {**wire(0), **wrong}, wire(2))
    assert (taken.new, taken.known) == (2, 0) and said in taken.refused[0] and "GPU-0" in taken.refused[0]
    book.close()


def test_a_clock_that_is_ahead_is_told() -> None:
    with pytest.raises(ValueError, match="ends in the future; is the clock of its node right"):
        checked(wire(60), at(1800))
    assert checked(wire(30), at(1800)).start_s == T0_S + 1800


def test_a_minute_that_has_rows_takes_no_other_making_of_it(book: EnergyBook) -> None:
    first = [wire(0, "a"), wire(0, "b", split="by time"), wire(0, None, uuid="GPU-1"), wire(0, "a", node_id="n2")]
    assert take(book, *first) == Taken(4, 0)
    again = [wire(0, None, line="unattributed", energy_wh=5.0), wire(1, None, line="unattributed")]
    assert take(book, *again) == Taken(1, 1), "its energy is told on other lines already"
    assert take(book, wire(0, "c", uuid="GPU-1"), wire(0, "c", node_id="n3")) == Taken(1, 1)
    assert take(book, wire(0, None, start=T0_S + 1, end=T0_S + 61)) == Taken(1, 0), (
        "told once more by a clock that was set back"
    )
    assert total(book.sums(T0, at(60), 60)) == 6 * 6.0
    many = [wire(minute, "m", uuid=f"GPU-{number}") for minute in range(100, 160) for number in range(10)]
    assert take(book, *many) == Taken(600, 0)
    assert take(book, *[{**one, "job_id": "other"} for one in many]) == Taken(0, 600)


def test_rows_from_the_future_wait_for_their_time_and_are_not_lost(book: EnergyBook) -> None:
    rows = [wire(0), wire(30)]
    taken = book.take(rows, at(300)).result(10)
    assert (taken.new, taken.refused, taken.early, taken.ahead_s) == (1, (), 1, 1560.0)
    taken = book.take(rows, at(1860)).result(10)
    assert (taken.new, taken.known, taken.early) == (1, 1, 0)
    years = book.take([wire(60 * 24 * 400)], at(300)).result(10)  # it would keep those behind it waiting for ever
    assert years.early == 0 and "is the clock of its node right" in years.refused[0]


def test_gaps_stay_gaps(book: EnergyBook) -> None:
    take(book, wire(0), wire(3, seconds=20.0, energy_wh=2.0))
    sums = book.sums(T0, at(300), 60)
    assert [one.energy_wh for one in sums] == [6.0, None, None, 2.0, None]
    assert [one.gpu_seconds for one in sums] == [60.0, 0.0, 0.0, 20.0, 0.0]
    assert [(one.gpus, one.job_wh) for one in sums[1:3]] == [(0, None)] * 2
    (hour,) = book.sums(T0, at(300), 3600)
    assert (hour.energy_wh, hour.gpu_seconds, hour.gpus) == (8.0, 80.0, 1)


def test_sums_of_a_job_a_region_and_nodes(book: EnergyBook) -> None:
    take(
        book,
        wire(0, "a", split="by time", energy_wh=2.0),
        wire(0, "b", split="by time", energy_wh=1.0, idle_wh=0.5),
        wire(0, None, uuid="GPU-1", energy_wh=0.5),
        wire(0, None, node_id="n2", line="unattributed", energy_wh=0.25),
        wire(0, "a", node_id="n3", region="south", energy_wh=4.0, simulated=True),
    )
    (all_,) = book.sums(T0, at(60), 60)
    assert (all_.energy_wh, all_.job_wh, all_.idle_wh, all_.unattributed_wh) == (7.75, 7.0, 0.5, 0.25)
    assert (all_.gpus, all_.gpu_seconds, all_.execution_idle_wh, all_.simulated) == (4, 240.0, 0.5, True)
    (north,) = book.sums(T0, at(60), 60, region="north")
    assert (north.energy_wh, north.gpus, north.simulated) == (3.75, 3, False)
    (job,) = book.sums(T0, at(60), 60, job_id="a")
    assert (job.energy_wh, job.job_wh, job.gpus) == (6.0, 6.0, 2)
    (nodes,) = book.sums(T0, at(60), 60, node_ids=["n1", "n3"])
    assert nodes.energy_wh == 7.5
    assert book.sums(T0, at(60), 60, job_id="")[0].energy_wh is None


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("energy") / "empty.db"
    upgrade(f"sqlite:///{path}")
    return path


amounts = st.floats(0, 20, allow_nan=False)


@settings(max_examples=25)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["n1", "n2"]), st.integers(0, 130)),
        st.lists(st.tuples(st.sampled_from(["a", "b", "idle", "unattributed"]), amounts), min_size=1, max_size=4),
        max_size=12,
    ),
    st.integers(0, 2),
)
def test_the_lines_of_every_interval_add_up_to_the_meter(
    empty: Path, given_rows: dict[tuple[str, int], list[tuple[str, float]]], again: int
) -> None:
    book = EnergyBook(make_engine(database(f"sqlite:///{empty}")))
    with book._writer.begin() as connection:
        for table in ("energy_minute", "energy_hour"):
            connection.execute(text(f"DELETE FROM {table}"))
        connection.execute(text("DELETE FROM setting"))
    meter: dict[int, float] = defaultdict(float)
    rows = []
    for (node, minute), parts in given_rows.items():
        for owner, wh in dict(parts).items():
            line = owner if owner in ("idle", "unattributed") else "job"
            rows.append(wire(minute, None if line != "job" else owner, line=line, node_id=node, energy_wh=wh, seconds=10.0))
            meter[minute // 60] += wh
    for _ in range(again + 1):
        take(book, *rows)

    def check() -> None:
        sums = book.sums(T0, at(3 * 3600), 3600)
        for hour, one in enumerate(sums):
            assert (one.energy_wh is None) == (hour not in meter)
            if one.energy_wh is not None:
                assert one.energy_wh == pytest.approx(meter[hour], abs=1e-6)
                lines = (one.job_wh or 0) + (one.idle_wh or 0) + (one.unattributed_wh or 0)
                assert lines == pytest.approx(one.energy_wh, abs=1e-6)
        jobs = sum(total(book.sums(T0, at(3 * 3600), 3600, job_id=one)) for one in "ab")
        assert jobs == pytest.approx(total(sums, "job_wh"), abs=1e-6)

    check()
    book.thin(at(51 * 3600 + 120))  # the first two hours are summed up
    check()
    take(book, *[row for row in rows if row["start"] >= T0_S + 7200])
    check()
    book.thin(at(40 * 24 * 3600))
    check()
    assert count(book, ENERGY_MINUTE) == 0
    book.close()
    book._engine.dispose()


def test_minutes_become_hours_and_go(book: EnergyBook, caplog: pytest.LogCaptureFixture) -> None:
    take(book, *[wire(n, "c", uuid="GPU-1", split="by time") for n in range(60)], wire(3, "d", uuid="GPU-1", split="by time"))
    rows = [wire(n, "a" if n % 2 else "b", split="by time", quality="partial" if n == 5 else "measured") for n in range(130)]
    take(book, *rows)
    before = book.sums(T0, at(3 * 3600), 3600)
    book.thin(at(49 * 3600 + 3600))
    assert count(book, ENERGY_HOUR) == 4 and count(book, ENERGY_MINUTE) == 191
    with book._engine.connect() as connection:
        held = connection.execute(select(ENERGY_HOUR).where(ENERGY_HOUR.c.job_id == "a")).first()
    assert held is not None and (held.energy_wh, held.seconds, held.quality, held.split) == (180.0, 1800.0, "partial", "summed")
    assert held.end_s - held.start_s == 3600 and held.simulated is False
    assert book.sums(T0, at(3 * 3600), 3600) == before
    late = book.take([wire(0, "late"), wire(61, "a")], at(49 * 3600 + 3600)).result(10)
    assert late.new == 0 and late.known == 1 and "summed up before it came" in late.refused[0]
    assert "1 rows of energy came too late and are lost" in caplog.text
    ((key, region, told),) = book.alarms()
    assert (key, region) == ("late energy north", "north")
    assert "1 rows of energy in north came too late since 2026-03-03 14:00 UTC and are lost, from n1" in told
    assert total(book.sums(T0, at(3 * 3600), 3600)) == total(before)
    assert [one.energy_wh for one in book.sums(T0, at(120), 60)] == [12.0, 12.0], "minutes are kept beside their hours"
    book.thin(at(35 * 24 * 3600 + 3600 + 60))
    assert count(book, ENERGY_MINUTE) == 70
    assert total(book.sums(T0, at(3 * 3600), 3600)) == pytest.approx(total(before))
    assert total(book.sums(T0, at(3 * 3600), 60)) == pytest.approx(total(before)), "hours serve where minutes are gone"
    book.thin(at(1200 * 24 * 3600))
    assert count(book, ENERGY_HOUR) == count(book, ENERGY_MINUTE) == 0
    book.thin(at(1200 * 24 * 3600))


@pytest.mark.parametrize("ahead_days", [3, 90])
def test_a_clock_that_was_ahead_for_a_while_loses_no_energy_afterwards(book: EnergyBook, ahead_days: int) -> None:
    """Ninety days ahead the minutes are dropped too: then the hour that was summed up half-way takes no more."""
    take(book, *[wire(n) for n in range(150)])
    book.thin(at(ahead_days * 24 * 3600))
    assert count(book, ENERGY_MINUTE) == (150 if ahead_days == 3 else 0)
    again = EnergyBook(book._engine)  # by what the database says
    rows = [wire(n) for n in range(150, 300)]
    taken = again.take(rows, at(5 * 3600)).result(10)
    lost = 0 if ahead_days == 3 else 30
    assert (taken.new, len(taken.refused)) == (150 - lost, lost)
    assert bool(again.alarms()) == bool(lost)
    for now in (at(5 * 3600), at(60 * 3600), at(60 * 24 * 3600)):
        again.thin(now)
        assert total(again.sums(T0, at(5 * 3600), 3600)) == pytest.approx((300 - lost) * 6.0)
        assert total(again.sums(T0, at(5 * 3600), 60)) == pytest.approx((300 - lost) * 6.0)
    again.close()


def test_a_mark_in_the_future_that_a_database_has_already_is_put_back(book: EnergyBook) -> None:
    take(book, *[wire(n) for n in range(60)])
    with book._engine.begin() as connection:
        connection.execute(insert(SETTING), [{"key": "energy.rolled_until_s", "value": str(T0_S + 90 * 86_400)}])
    assert take(book, wire(60)) == Taken(1, 0)
    assert total(book.sums(T0, at(2 * 3600), 3600)) == pytest.approx(61 * 6.0)
    assert book.alarms() == []


def test_hours_in_which_nothing_came_are_not_marked_as_summed(book: EnergyBook) -> None:
    book.thin(at(90 * 24 * 3600))
    assert book.take([wire(0)], at(90 * 24 * 3600)).result(10) == Taken(1, 0)
    book.thin(at(10 * 24 * 3600))
    assert total(book.sums(T0, at(3600), 3600)) == 6.0


def test_late_rows_are_told_of_for_a_day(book: EnergyBook) -> None:
    mono = 0.0
    watched = EnergyBook(book._engine, mono=lambda: mono)
    now = at(50 * 3600)
    watched.take([wire(0)], now).result(10)
    watched.thin(now)
    watched.take([wire(n, node_id=f"n{n % 7}") for n in range(20)], now).result(10)
    assert "20 rows" in watched.alarms()[0][2] and "and 2 more" in watched.alarms()[0][2]
    mono = 86_401.0
    assert watched.alarms() == []
    watched.close()


def test_how_long_things_are_kept_is_configured(book: EnergyBook) -> None:
    short = EnergyBook(book._engine, Keep(minutes_days=3, hours_days=5))
    take(short, *[wire(n) for n in range(120)], *[wire(n, region="south", node_id="s") for n in range(60)])
    short.thin(at(4 * 24 * 3600))
    assert (count(book, ENERGY_MINUTE), count(book, ENERGY_HOUR)) == (0, 3)
    short.thin(at(6 * 24 * 3600))
    assert count(book, ENERGY_HOUR) == 0
    short.close()


def test_energy_of_an_attempt(book: EnergyBook) -> None:
    take(book, *[wire(n) for n in range(10)], *[wire(n, "other", uuid="GPU-1") for n in range(10)])
    found = book.energy_of("j", NORTH, at(15), at(580), gpus=1.0, power_w=300.0)
    assert found is not None and (found.basis, found.covered) == ("measured", 1.0)
    assert found.energy_kwh == pytest.approx(0.06)
    assert book.energy_of("nobody", NORTH, at(0), at(600), gpus=1.0, power_w=300.0) is None
    assert book.energy_of("j", Turn("south", None, None), at(0), at(600), gpus=1.0, power_w=300.0) is None
    first = book.energy_of("j", Turn("north", None, at(240)), at(0), at(240), gpus=1.0, power_w=300.0)
    second = book.energy_of("j", Turn("north", at(240), None), at(250), at(600), gpus=1.0, power_w=300.0)
    assert first is not None and second is not None
    assert [first.energy_kwh, second.energy_kwh] == pytest.approx([0.024, 0.036])


def test_a_gpu_that_waited_for_its_job_was_measured_too(book: EnergyBook) -> None:
    take(book, *[wire(n, None) for n in range(5)], *[wire(n) for n in range(5, 10)], *[wire(n, None) for n in range(10, 20)])
    found = book.energy_of("j", NORTH, at(0), at(600), gpus=1.0, power_w=300.0)
    assert found is not None and (found.basis, found.covered) == ("measured", 1.0)
    assert found.energy_kwh == pytest.approx(0.03)


def test_energy_of_a_job_whose_first_minutes_are_hours_by_now(book: EnergyBook) -> None:
    short = EnergyBook(book._engine, Keep(minutes_days=3))
    take(short, *[wire(n) for n in range(180)])
    short.thin(at(3 * 24 * 3600 + 2 * 3600))
    assert count(short, ENERGY_MINUTE) == 60
    found = short.energy_of("j", NORTH, at(0), at(3 * 3600), gpus=1.0, power_w=300.0)
    assert found is not None and found.energy_kwh == pytest.approx(1.08) and found.basis == "measured"
    short.close()


def test_which_jobs_rows_came_for(book: EnergyBook) -> None:
    take(book, wire(0, "a"), wire(1, "b"), wire(2, None))
    assert book.touched() == {"a", "b"}
    book.settled(["a", "zzz"])
    assert book.touched() == {"b"}
    take(book, wire(3, "a"))
    assert book.touched() == {"a", "b"}


def test_nodes_are_remembered(book: EnergyBook) -> None:
    one = KnownNode("n1", "host-1", "north", None, False, ({"uuid": "GPU-0", "index": 0, "name": "H100"},), T0)
    two = KnownNode("n2", "host-2", "south", "rack-1", True, (), T0)
    book.note_nodes([one, two])
    later = KnownNode("n1", "host-1", "north", "rack-7", False, (), at(60))
    book.note_nodes([later])
    assert book.known_nodes() == [later, two] and book.known_nodes("south") == [two]


def test_a_database_that_fails_acknowledges_nothing(sqlite_url: str) -> None:
    engine = make_engine(database(sqlite_url), wait_s=0.1)
    book = EnergyBook(engine)
    blocker = engine.execution_options(write=True).connect()
    transaction = blocker.begin()
    with pytest.raises(StoreUnavailable, match="rows of energy were not stored"):
        take(book, wire(0))
    transaction.rollback()
    blocker.close()
    assert take(book, wire(0)) == Taken(1, 0), "sent again, it is taken"
    book.close()
    engine.dispose()


def test_batches_that_wait_share_a_commit(book: EnergyBook) -> None:
    commits: list[Connection] = []
    event.listen(book._engine, "commit", commits.append)
    with book._lock:  # nobody is written before all have come
        futures = []
        with ThreadPoolExecutor(6) as pool:
            for node in range(6):
                futures.append(pool.submit(book.take, [wire(0, node_id=f"n{node}")], LATER))
            book._lock.release()
            taken = [future.result(10).result(10) for future in futures]
            book._lock.acquire()
    assert sum(one.new for one in taken) == 6 and 1 <= len(commits) <= 6
    assert total(book.sums(T0, at(60), 60)) == 36.0


def test_what_waits_is_written_before_the_end(sqlite_url: str) -> None:
    engine = make_engine(database(sqlite_url))
    book = EnergyBook(engine)
    futures = [book.take([wire(n)], LATER) for n in range(20)]
    book.close()
    assert all(future.done() and future.result() == Taken(1, 0) for future in futures)
    engine.dispose()


def test_what_only_counters_know_stays_apart_by_the_minute_and_by_the_hour(book: EnergyBook) -> None:
    take(book, wire(0), wire(1, bridged_s=45.0), wire(2, bridged_s=60.0), wire(1, uuid="GPU-1", bridged_s=15.0))
    assert [one.bridged_s for one in book.sums(T0, at(180), 60)] == [0.0, 60.0, 60.0]
    book.thin(at(60 * 3600))
    (hour,) = book.sums(T0, at(60), 3600)
    assert (hour.bridged_s, hour.gpu_seconds) == (120.0, 240.0)
    assert take(book, wire(9, bridged_s=61.0)).refused != (), "more than was measured"
