"""What every store promises, on each of them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from datetime import datetime, timedelta, timezone

import pytest

from dispatcher.errors import AlreadyExists, BadInput, IllegalMove, NotFound, StaleState, StoreUnavailable
from dispatcher.store import GridEvent, GridEventChange, GridStep, Job, Request, Store, Token, memory, sql
from policies.world import JobState
from tests.store.store_samples import T0, at, attempt, before_event, change, flex, job, moves, serving_quarter

S = JobState


def add(store: Store, *jobs: Job) -> None:
    for one in jobs:
        store.add_job(one, "submitted").result(10)


def apply(store: Store, *changes: object) -> list[Job]:
    results = store.apply(list(changes)).result(10)  # type: ignore[arg-type]
    for one in results:
        if isinstance(one, Exception):
            raise one
    return results  # type: ignore[return-value]


# --- submissions ----------------------------------------------------------------------------------------------------


def test_a_job_comes_back_as_it_was_given(store: Store) -> None:
    given = job(
        "a",
        owner="ö",
        held=True,
        progress_s=1.5,
        pauses=2,
        planned_region="north",
        planned_start_at=at(9),
        not_before_at=at(8),
        cost=0.0,
        cost_currency="EUR",
        energy_basis="partly measured",
    )
    stored = store.add_job(given, "submitted").result(10)
    assert stored == replace(given, seq=1)
    assert store.job("a") == stored
    got = store.job("a")
    assert got is not None
    assert {f.name: type(getattr(got, f.name)) for f in fields(Job)} == {
        f.name: type(getattr(stored, f.name)) for f in fields(Job)
    }
    assert got.flex.regions == ("north", "south") and got.flex.deadline_at == at(3600)
    assert got.submitted_at.utcoffset() == timedelta(0)
    assert store.job("b") is None
    assert store.attempts("a") == [] and store.events("b") == []


def test_submission_event(store: Store) -> None:
    add(store, job())
    (event,) = store.events("a")
    assert (event.seq, event.kind, event.old_state, event.new_state) == (1, "submitted", None, S.QUEUED)
    assert (event.at, event.reason, event.attempt, event.region) == (T0, "submitted", 0, None)


def test_submission_with_an_attempt_is_launching_at_once(store: Store) -> None:
    launching = job(state=S.LAUNCHING, attempt=1, region="north", reason="passed through")
    first = attempt(launched_s=0)
    stored = store.add_job(launching, "passed through", first).result(10)
    assert stored == replace(launching, seq=2)
    assert store.attempts("a") == [first] == store.live_attempts()
    assert [(e.old_state, e.new_state, e.kind, e.attempt, e.region) for e in store.events("a")] == [
        (None, S.QUEUED, "submitted", 0, None),
        (S.QUEUED, S.LAUNCHING, "state", 1, "north"),
    ]
    assert store.events("a")[1].reason == "passed through"
    queued = store.add_job(job("b"), "go", attempt("b", region="south")).result(10)
    assert (queued.state, queued.attempt, queued.region) == (S.LAUNCHING, 1, "south")


def test_an_id_is_used_once(store: Store) -> None:
    add(store, job())
    with pytest.raises(AlreadyExists, match="id a exists"):
        add(store, job(reason="other"))
    apply(store, *moves("a", S.CANCELLED), change(expect=S.CANCELLED, fields={"deleted_at": at(3)}))
    with pytest.raises(AlreadyExists):
        add(store, job())
    futures = [store.add_job(job("b", reason=str(n)), "submitted") for n in range(20)]
    assert sum(future.exception(10) is None for future in futures) == 1
    assert len(store.events("b")) == 1


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (job(submitted_s=0, not_before_at=datetime(2026, 1, 1)), "not_before_at"),  # noqa: DTZ001
        (job(flex=flex(deadline_at=datetime(2026, 1, 1))), "deadline_at"),  # noqa: DTZ001
        (job("a\x00b"), "id"),
    ],
)
def test_bad_submissions_store_nothing(store: Store, wrong: Job, word: str) -> None:
    with pytest.raises(BadInput, match=word):
        store.add_job(wrong, "submitted").result(10)
    assert store.jobs_changed_since(0) == ([], 0)


def test_awkward_text_survives_or_is_replaced(store: Store) -> None:
    odd = Request("echo 'x\u0000\ud800'", metadata={"n": "\u0000"}, runtime_env={"env_vars": {"E": "€\U0001f600"}})
    add(store, job(request=odd, reason="log: \x00 \ud800"))
    got = store.job("a")
    assert got is not None and got.request == odd and got.reason == "log: \ufffd ?"


def test_times_in_another_zone_are_the_same_moment(store: Store) -> None:
    plus2 = timezone(timedelta(hours=2))
    add(store, replace(job(), submitted_at=T0.astimezone(plus2)))
    got = store.job("a")
    assert got is not None and got.submitted_at == T0 and got.submitted_at.utcoffset() == timedelta(0)


# --- changes --------------------------------------------------------------------------------------------------------


def test_a_life_with_its_events_and_attempts(store: Store) -> None:
    add(store, job())
    path = (S.LAUNCHING, S.RUNNING, S.PAUSING, S.PAUSED, S.LAUNCHING, S.RUNNING, S.SUCCEEDED)
    results = apply(store, *moves("a", *path))
    assert [one.state for one in results] == list(path)
    last = store.job("a")
    assert last == results[-1]
    assert last is not None and (last.seq, last.attempt, last.region, last.finished_at) == (8, 2, "north", at(7))
    assert last.state_since == at(7) and last.reason == "to succeeded"
    events = store.events("a")
    assert [e.seq for e in events] == list(range(1, 9))
    assert [e.new_state for e in events] == [S.QUEUED, *path]
    assert [e.old_state for e in events] == [None, S.QUEUED, *path[:-1]]
    assert [(a.attempt, a.ended_at, a.outcome) for a in store.attempts("a")] == [(1, at(4), "stopped"), (2, at(7), "stopped")]
    assert store.live_attempts() == []


def test_changes_of_fields(store: Store) -> None:
    add(store, job())
    fields_ = {"held": True, "cancel_requested_at": at(5), "cost": None, "flex": flex(priority=3, team="t"), "energy_kwh": 1.25}
    (got,) = apply(store, change(kind="intent", reason="held", fields=fields_))
    assert got == store.job("a")
    assert (got.held, got.cancel_requested_at, got.flex.priority, got.energy_kwh) == (True, at(5), 3, 1.25)
    assert (got.state, got.state_since) == (S.QUEUED, T0)
    assert [one.id for one in store.page(team="t").jobs] == ["a"]
    (got,) = apply(store, change(fields={"cancel_requested_at": None}))
    assert got.cancel_requested_at is None and got == store.job("a")


def test_compare_and_set(store: Store) -> None:
    add(store, job(), job("b"))
    results = store.apply(
        [
            change(S.CANCELLED, expect=S.RUNNING),
            change(S.CANCELLED, expect_attempt=1),
            change(S.CANCELLED, expect_seq=7),
            change(S.CANCELLED, "nobody"),
            change(S.RUNNING),
            change(fields={"seq": 3}),
            change(fields={"colour": 3}),
            change(attempt_fields={"outcome": "lost"}),
            change(S.CANCELLED, "b", expect=S.QUEUED, expect_attempt=0, expect_seq=2),
            change(S.CANCELLED, expect=S.QUEUED),
            change(S.CANCELLED, expect=S.QUEUED),
            change(fields={"held": True}),
            change(expect=S.CANCELLED, kind="result", fields={"has_result": True}),
        ]
    ).result(10)
    kinds = [type(one) for one in results]
    assert kinds == [StaleState] * 3 + [
        NotFound,
        IllegalMove,
        BadInput,
        BadInput,
        StaleState,
        Job,
        Job,
        StaleState,
        StaleState,
        Job,
    ]
    assert "queued -> running" in str(results[4]) and "submitted -> queued: submitted" in str(results[4])
    assert [e.seq for e in store.events("a") + store.events("b")] == [1, 4, 5, 2, 3]
    got = store.job("a")
    assert got is not None and got.has_result and got.seq == 5 and got.finished_at == at(2)


def test_one_live_attempt(store: Store) -> None:
    add(store, job())
    apply(store, *moves("a", S.LAUNCHING))
    back = change(S.QUEUED)
    again = change(S.LAUNCHING, seconds=4, new_attempt=attempt(number=2))
    results = store.apply([back, again]).result(10)
    assert isinstance(results[0], Job) and isinstance(results[1], IllegalMove)
    assert [a.attempt for a in store.live_attempts()] == [1]
    ended = change(attempt_fields={"ended_at": at(3), "outcome": "lost", "message": "m", "ray_session": "s"})
    same_number = change(S.LAUNCHING, seconds=4, new_attempt=attempt(number=1, submission_id="x"))
    results = store.apply([ended, same_number, again]).result(10)
    assert isinstance(results[1], AlreadyExists) and isinstance(results[2], Job)
    assert [a.attempt for a in store.live_attempts()] == [2]
    first = store.attempts("a")[0]
    assert (first.outcome, first.message, first.ray_session, first.ended_at) == ("lost", "m", "s", at(3))


def test_a_submission_id_is_used_once_and_others_in_its_batch_are_not_hurt(store: Store) -> None:
    add(store, job(), job("b"), job("c"))
    apply(store, *moves("a", S.LAUNCHING))
    results = store.apply(
        [
            change(S.CANCELLED, "c"),
            change(S.LAUNCHING, "b", new_attempt=attempt("b", submission_id="a-1")),
            change(None, "b", reason="note"),
        ]
    ).result(10)
    assert [type(one) for one in results] == [Job, AlreadyExists, Job]
    got = store.job("b")
    assert got is not None and got.state is S.QUEUED and got.reason == "note"
    assert len(store.events("b")) == 2 and store.attempts("b") == []


def test_many_callers_at_once(store: Store) -> None:
    def submit(n: int) -> Job:
        stored = store.add_job(job(f"j{n}", n), "submitted").result(30)
        results = store.apply(moves(stored.id, S.LAUNCHING, S.RUNNING)).result(30)
        assert all(isinstance(one, Job) for one in results)
        return stored

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(submit, range(100)))
    seqs = [event.seq for n in range(100) for event in store.events(f"j{n}")]
    assert len(seqs) == 300 and len(set(seqs)) == 300
    jobs, highest = store.jobs_changed_since(0)
    assert len(jobs) == 100 and highest == max(seqs)
    assert all(one.seq == store.events(one.id)[-1].seq for one in jobs)
    assert store.counts() == {S.RUNNING: 100} and len(store.live_attempts()) == 100


def test_a_future_resolves_when_it_can_be_read(store: Store) -> None:
    seen: list[Job | None] = []
    done = threading.Event()

    def look(_: object) -> None:
        seen.append(store.job("a"))
        done.set()

    store.add_job(job(), "submitted").add_done_callback(look)
    assert done.wait(10) and seen[0] is not None


def test_nothing_to_apply(store: Store) -> None:
    assert store.apply([]).result(10) == []


# --- reads ----------------------------------------------------------------------------------------------------------


def test_changed_since(store: Store) -> None:
    assert store.jobs_changed_since(0) == ([], 0)
    add(store, job("a"), job("b"), job("c"))
    jobs, seq = store.jobs_changed_since(0)
    assert [one.id for one in jobs] == ["a", "b", "c"] and seq == 3
    assert store.jobs_changed_since(3) == ([], 3)
    apply(store, *moves("b", S.CANCELLED), change(job_id="a"))
    jobs, seq = store.jobs_changed_since(3)
    assert [one.id for one in jobs] == ["b", "a"] and seq == 5
    jobs, seq = store.jobs_changed_since(0)
    assert [one.id for one in jobs] == ["c", "a"] and seq == 5


def test_ray_jobs(store: Store) -> None:
    add(store, *(job(f"j{n}", n) for n in range(6)))
    for n, when in ((0, 100.0), (1, 300.0), (2, 200.0), (3, 400.0)):
        apply(store, *moves(f"j{n}", S.CANCELLED, seconds=when))
    apply(store, change(job_id="j3", expect=S.CANCELLED, fields={"deleted_at": at(500)}))
    assert [one.id for one in store.ray_jobs(2)] == ["j5", "j4", "j2", "j1"]
    assert [one.id for one in store.ray_jobs()] == ["j5", "j4", "j2", "j1", "j0"]
    assert [one.id for one in store.ray_jobs(0)] == ["j5", "j4"]
    assert [one.id for one in store.ray_jobs(deleted=True)] == ["j5", "j4", "j3", "j2", "j1", "j0"]
    assert [one.id for one in store.ray_jobs(2, deleted=True)] == ["j5", "j4", "j3", "j1"], "the latest, deleted or not"
    assert [one.id for one in store.ray_jobs(0, deleted=True)] == ["j5", "j4"]


def test_pages(store: Store) -> None:
    # Several submitted in the same microsecond: the cursor must neither repeat nor skip.
    add(store, *(job(f"j{n}", n // 3, flex=flex(team="x" if n % 2 else None)) for n in range(10)))
    apply(store, *moves("j4", S.CANCELLED), change(job_id="j4", expect=S.CANCELLED, fields={"deleted_at": at(9)}))
    apply(store, *moves("j5", S.LAUNCHING))
    seen, cursor = [], None
    for _ in range(5):
        page = store.page(cursor=cursor, limit=2)
        seen += [one.id for one in page.jobs]
        cursor = page.next_cursor
    assert cursor is None and seen == ["j9", "j8", "j7", "j6", "j5", "j3", "j2", "j1", "j0"]
    assert [one.id for one in store.page(state=S.LAUNCHING).jobs] == ["j5"]
    assert [one.id for one in store.page(team="x", limit=3).jobs] == ["j9", "j7", "j5"]
    assert [one.id for one in store.page(team="x", limit=3, cursor=store.page(team="x", limit=3).next_cursor).jobs] == [
        "j3",
        "j1",
    ]
    assert store.page(limit=9).next_cursor is None
    assert store.page(team="nobody").jobs == ()


@pytest.mark.parametrize("cursor", ["", "x", "!!", "bnVsbA", "WyIyMDI2LTAxLTAxIiwiYSJd", "é", "W10"])
def test_wrong_cursors(store: Store, cursor: str) -> None:
    with pytest.raises(BadInput, match="cursor"):
        store.page(cursor=cursor)
    with pytest.raises(BadInput, match="limit"):
        store.page(limit=0)


def test_counts(store: Store) -> None:
    add(store, job("a"), job("b"), job("c"))
    apply(store, *moves("b", S.LAUNCHING, S.RUNNING), *moves("c", S.CANCELLED))
    assert store.counts() == {S.QUEUED: 1, S.RUNNING: 1, S.CANCELLED: 1}
    apply(store, change(job_id="c", expect=S.CANCELLED, fields={"deleted_at": at(9)}))
    assert store.counts() == {S.QUEUED: 1, S.RUNNING: 1}


def test_attempts_to_delete_upstream(store: Store) -> None:
    add(store, *(job(f"j{n}") for n in range(4)))
    for n in range(3):
        apply(store, *moves(f"j{n}", S.LAUNCHING, S.FAILED, seconds=10 - n))
    apply(store, *moves("j3", S.LAUNCHING))
    assert [a.submission_id for a in store.ended_attempts_upstream("north", at(100))] == ["j2-1", "j1-1", "j0-1"]
    assert [a.submission_id for a in store.ended_attempts_upstream("north", at(100), limit=1)] == ["j2-1"]
    assert [a.submission_id for a in store.ended_attempts_upstream("north", at(10))] == ["j2-1"]
    assert store.ended_attempts_upstream("south", at(100)) == []
    store.mark_deleted_upstream(["j2-1", "j0-1", "unknown"]).result(10)
    assert [a.submission_id for a in store.ended_attempts_upstream("north", at(100))] == ["j1-1"]
    assert store.attempts("j2")[0].deleted_upstream


# --- grid events, tokens, settings ----------------------------------------------------------------------------------


def grid_event(**more: object) -> GridEvent:
    given: dict[str, object] = {"version": 1, "start": at(0), "end": at(60), "limit_w": 5000.0, "received_at": at(-5)}
    return GridEvent("utility", region="north", **({"event_id": "e"} | given | more))  # type: ignore[arg-type]


def test_grid_events(store: Store) -> None:
    first = grid_event(reason="peak")
    assert store.save_grid_event(first, "m1").result(10) == "accepted"
    assert store.save_grid_event(grid_event(version=2), "m1").result(10) == "duplicate"
    assert store.save_grid_event(first, "m2").result(10) == "duplicate"
    newer = grid_event(version=3, limit_w=4000.0, end=None)
    assert store.save_grid_event(newer, None).result(10) == "accepted"
    assert store.save_grid_event(grid_event(version=2), "m3").result(10) == "stale"
    assert store.save_grid_event(grid_event(version=9), "m3").result(10) == "duplicate"
    other = grid_event(event_id="f", start=at(-10), test=True)
    assert store.save_grid_event(other, "m4").result(10) == "accepted"
    assert store.grid_events() == [other, newer]
    assert store.grid_events(ended_after=at(60)) == [newer]
    assert store.grid_events(ended_after=at(59)) == [other, newer]
    gone = grid_event(version=4, cancelled=True)
    assert store.save_grid_event(gone, "m5").result(10) == "accepted"
    assert store.grid_events(ended_after=at(59)) == [other]
    with pytest.raises(BadInput, match="start"):
        store.save_grid_event(grid_event(start=datetime(2026, 1, 1)), "m6").result(10)  # noqa: DTZ001


def test_receipts_are_kept_for_days_and_not_for_ever(store: Store) -> None:
    def send(message: str, version: int, days: float) -> str:
        return store.save_grid_event(grid_event(version=version, received_at=at(days * 86400)), message).result(10)

    assert send("m", 1, 0) == "accepted"
    assert send("m", 2, 4.5) == "duplicate"
    assert send("n", 2, 8) == "accepted"
    assert send("m", 3, 8) == "accepted"


def test_tokens(store: Store) -> None:
    b, a = Token("b", "2" * 64, T0), Token("a", "1" * 64, T0)
    store.add_token(b).result(10)
    store.add_token(a).result(10)
    assert store.tokens() == [a, b]
    for wrong in (Token("a", "3" * 64, T0), Token("c", "1" * 64, T0)):
        with pytest.raises(AlreadyExists):
            store.add_token(wrong).result(10)
    store.revoke_token("a").result(10)
    with pytest.raises(NotFound, match="'a'"):
        store.revoke_token("a").result(10)
    assert store.tokens() == [b]


def test_settings(store: Store) -> None:
    assert store.setting("k") is None
    store.set_setting("k", "1").result(10)
    store.set_setting("k", "2").result(10)
    assert store.setting("k") == "2"


def test_a_closed_store_refuses_writes(store: Store) -> None:
    pending = [store.add_job(job(f"j{n}"), "submitted") for n in range(50)]
    assert store.healthy()
    store.close()
    assert all(future.result(10) for future in pending)
    with pytest.raises(StoreUnavailable, match="closed"):
        store.add_job(job(), "submitted").result(10)
    assert not store.healthy()


def test_a_grid_event_keeps_its_whole_schedule_its_history_and_what_is_held_for_its_sender(store: Store) -> None:
    steps = (GridStep(at(0), at(30), 5000.0, 7, 60.0, "peak"), GridStep(at(30), None, 4000.0, "b", emergency=True))
    event = grid_event(limit_w=4000.0, end=None, steps=steps, branch="rack-1", protocol="openadr-3.1", rank=0, recovery_s=9.5)
    line = GridEventChange("utility", "e", at(-5), 1, "accepted", "at most 5 kW", '{"id": 1}')
    first = replace(line, steps=steps)
    assert store.save_grid_event(event, None, change=first, held="the first").result(10) == "accepted"
    assert store.save_grid_event(event, None, change=line, held="again").result(10) == "duplicate"
    assert store.grid_event("utility", "e") == event and store.grid_event("utility", "other") is None
    assert store.held_grid_event("utility", "e") == "the first" and store.held_grid_event("other", "e") is None
    store.opt_out_grid_event(replace(line, what="opted_out", sentence="no"), "no").result(10)
    with pytest.raises(NotFound, match="other"):
        store.opt_out_grid_event(replace(line, event_id="other"), "no").result(10)
    newer = replace(event, version=2, received_at=at(40), said_version="2026-01-01", cancelled=True, end=at(40))
    assert store.save_grid_event(newer, None, change=replace(line, version=2, what="cancelled")).result(10) == "accepted"
    assert store.grid_event("utility", "e") == replace(newer, opted_out="no")
    assert store.held_grid_events("utility", at(39)) == {"e": "the first"}, "what is not given anew stays"
    assert store.held_grid_events("utility", at(40)) == {} and store.held_grid_events("other", at(0)) == {}
    store.note_grid_event(replace(line, event_id="x", version=None, what="rejected", sentence="bad\x00text")).result(10)
    history = store.grid_event_changes("utility", "e")
    assert [one.what for one in history] == ["accepted", "opted_out", "cancelled"]
    assert [one.steps for one in history] == [steps, None, None]
    (refused,) = store.grid_event_changes("utility", "x")
    assert (refused.version, refused.sentence) == (None, "bad\ufffdtext") and refused.seq == 4


def test_what_was_expected_without_an_event_is_kept_once(store: Store) -> None:
    assert store.before_event("utility", "e") is None
    first = before_event()
    assert store.keep_before_event(first).result(10) is True
    assert store.keep_before_event(before_event(plan_w=(9.0,), notice_at=at(50))).result(10) is False, "the first notice counts"
    assert store.before_event("utility", "e") == first
    # A new version of the event, and its end, leave it as it is.
    for version in (1, 2):
        store.save_grid_event(grid_event(version=version, cancelled=version == 2), None).result(10)
    assert store.before_event("utility", "e") == first
    nothing = before_event(
        event_id="f", looked_at=None, plan_made_at=None, plan_w=None, other_w=None, measured_w=None, notes=()
    )
    assert store.keep_before_event(nothing).result(10) is True
    assert store.before_event("utility", "f") == nothing and store.before_event("other", "e") is None
    with pytest.raises(BadInput, match="start"):
        store.keep_before_event(before_event(event_id="g", start=datetime(2026, 1, 1))).result(10)  # noqa: DTZ001


def test_what_was_seen_of_serving_is_kept_by_part_and_written_again_it_is_replaced(store: Store) -> None:
    first, later = serving_quarter(), serving_quarter(start=at(15), part="b", yield_s=(), objectives=())
    other = serving_quarter(name="code")
    store.keep_serving([later, first, other]).result(10)
    assert store.serving_quarters("north", "chat", at(0), at(60)) == [first, later]
    assert store.serving_quarters("north", "chat", at(1), at(15)) == [] == store.serving_quarters("x", "chat", at(0), at(60))
    grown, beside = serving_quarter(rises=9), serving_quarter(part="c")
    store.keep_serving([grown, beside]).result(10)
    assert store.serving_quarters("north", "chat", at(0), at(15)) == [grown, beside]
    assert store.serving_quarters("north", "code", at(0), at(60)) == [other]
    with pytest.raises(BadInput, match="start"):
        store.keep_serving([serving_quarter(start=datetime(2026, 1, 1))]).result(10)  # noqa: DTZ001


def test_an_event_that_limits_nothing_has_no_steps_and_one_with_a_limit_has_that(store: Store) -> None:
    price = grid_event(event_id="price", limit_w=None)
    limit = grid_event(event_id="limit", reason="peak")
    for event in (price, limit):
        assert store.save_grid_event(event, None).result(10) == "accepted"
    assert store.grid_events() == [limit, price]
    assert (price.steps, limit.steps) == ((), (GridStep(at(0), at(60), 5000.0, reason="peak"),))


def test_of_an_events_history_the_latest_lines_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (memory, sql):
        monkeypatch.setattr(module, "CHANGES_KEPT", 3)
    for number in range(5):
        for event_id in ("a", "b"):
            line = GridEventChange("utility", event_id, at(number), 1, "ignored", str(number))
            store.note_grid_event(line).result(10)
    for event_id in ("a", "b"):
        assert [line.sentence for line in store.grid_event_changes("utility", event_id)] == ["2", "3", "4"]


def test_receipts_are_not_dropped_by_a_clock_that_was_set(database_url: str) -> None:
    steady = False
    store = sql.SqlStore(database_url, steady=lambda _: steady)

    def send(message: str, version: int, days: float) -> str:
        return store.save_grid_event(grid_event(version=version, received_at=at(days * 86400)), message).result(10)

    assert [send("m", 1, 0), send("n", 2, 8), send("m", 3, 0)] == ["accepted", "accepted", "duplicate"]
    steady = True
    assert [send("o", 3, 8), send("m", 4, 8)] == ["accepted", "accepted"]
    store.close()
