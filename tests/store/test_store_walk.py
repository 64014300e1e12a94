"""Random lives of jobs: whatever is asked of a store, its promises hold, and every store tells the same story."""

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

from dispatcher.errors import GridshiftError
from dispatcher.states import EDGES
from dispatcher.store import Change, Job, Store
from dispatcher.store.memory import MemoryStore
from dispatcher.store.sql import SqlStore
from dispatcher.store.tables import ATTEMPT, JOB, JOB_EVENT
from policies.world import ENDED, JobState
from tests.store.store_samples import at, attempt, change, job

JOBS = [f"j{n}" for n in range(4)]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(JOBS), st.booleans()),
        st.tuples(
            st.just("change"),
            st.sampled_from(JOBS),
            st.one_of(st.none(), st.sampled_from(JobState)),  # to
            st.one_of(st.none(), st.sampled_from(JobState)),  # expect
            st.one_of(st.none(), st.integers(1, 3)),  # new attempt
            st.booleans(),  # end the current attempt
        ),
    ),
    max_size=60,
)


def build(step: tuple[Any, ...], when: float) -> Change:
    _, job_id, to, expect, number, end = step
    more: dict[str, Any] = {"expect": expect}
    if number is not None:
        more["new_attempt"] = attempt(job_id, number, when)
    if end:
        more["attempt_fields"] = {"ended_at": at(when), "outcome": "stopped"}
    return change(to, job_id, when, **more)


def play(store: Store, plan: list[tuple[Any, ...]], group: int) -> list[str]:
    """Perform ``plan``, ``group`` changes at a time; returns what came of each step."""
    outcomes: list[str] = []
    changes: list[Change] = []

    def flush() -> None:
        for one in store.apply(changes).result(10):
            outcomes.append(f"{one.state} {one.seq}" if isinstance(one, Job) else f"{type(one).__name__}: {one}")
        changes.clear()

    for when, step in enumerate(plan):
        if step[0] == "change":
            changes.append(build(step, when))
            if len(changes) == group:
                flush()
            continue
        flush()
        first = attempt(step[1], 1, when) if step[2] else None
        try:
            stored = store.add_job(job(step[1], when), "submitted", first).result(10)
            outcomes.append(f"{stored.state} {stored.seq}")
        except GridshiftError as error:
            outcomes.append(f"{type(error).__name__}: {error}")
    flush()
    return outcomes


def check(store: Store) -> list[object]:
    """Assert every promise; returns all there is to know."""
    known: list[object] = []
    seqs = []
    for job_id in JOBS:
        got, events, attempts = store.job(job_id), store.events(job_id), store.attempts(job_id)
        known.append((got, events, attempts))
        if got is None:
            assert events == [] and attempts == []
            continue
        seqs += [event.seq for event in events]
        assert events[0].kind == "submitted" and events[0].old_state is None
        for before, after in pairwise(events):
            assert after.old_state is before.new_state, "an event is missing"
            assert after.old_state is after.new_state or (after.old_state, after.new_state) in EDGES
        assert (got.seq, got.state) == (events[-1].seq, events[-1].new_state)
        assert (got.state in ENDED) == (got.finished_at is not None)
        assert sum(one.ended_at is None for one in attempts) <= 1
        assert got.attempt == max((one.attempt for one in attempts), default=0)
    assert sorted(seqs) == list(range(1, len(seqs) + 1))
    known.append([(a.job_id, a.attempt) for a in store.live_attempts()])
    known.append([one.id for one in store.ray_jobs(2)])
    known.append(store.jobs_changed_since(0))
    known.append(store.jobs_changed_since(len(seqs) // 2))
    known.append(store.counts())
    return known


@given(steps, st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_memory(plan: list[tuple[Any, ...]], group: int) -> None:
    store = MemoryStore()
    play(store, plan, group)
    check(store)


@pytest.fixture
def sql_store(database_url: str) -> Iterator[SqlStore]:
    store = SqlStore(database_url)
    yield store
    store.close()


@given(plan=steps, group=st.integers(1, 8))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sql_tells_the_same_story_as_memory(sql_store: SqlStore, plan: list[tuple[Any, ...]], group: int) -> None:
    with sql_store.engine.begin() as connection:
        for table in (JOB_EVENT, ATTEMPT, JOB):
            connection.execute(delete(table))
    memory = MemoryStore()
    assert play(sql_store, plan, group) == play(memory, plan, group)
    assert check(sql_store) == check(memory)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_long_walk_along_allowed_edges(sql_store: SqlStore, seed: int) -> None:
    """Most random steps are refused; this one makes mostly good ones, in batches, and gets jobs to their ends."""
    choose = random.Random(seed)
    memory = MemoryStore()
    plan: list[tuple[Any, ...]] = [("add", job_id, choose.random() < 0.3) for job_id in JOBS]
    state = {step[1]: JobState.LAUNCHING if step[2] else JobState.QUEUED for step in plan}
    number = {step[1]: int(step[2]) for step in plan}
    for _ in range(200):
        job_id = choose.choice(JOBS)
        targets = [b for a, b in EDGES if a is state[job_id] and (b not in ENDED or choose.random() < 0.02)]
        if not targets:
            continue
        to = choose.choice(targets)
        starts = to is JobState.LAUNCHING
        number[job_id] += starts
        ends = number[job_id] > 0 and (to in ENDED or to in (JobState.QUEUED, JobState.PAUSED))
        plan.append(("change", job_id, to, state[job_id], number[job_id] if starts else None, ends))
        state[job_id] = to
    assert play(sql_store, plan, 16) == play(memory, plan, 16)
    assert check(sql_store) == check(memory)
    assert sum(len(memory.attempts(job_id)) for job_id in JOBS) > 8
