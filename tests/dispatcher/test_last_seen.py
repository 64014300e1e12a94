"""An attempt that is lost counts up to when it was last known to run, also over a restart of the control plane."""

from datetime import UTC, datetime, timedelta

import pytest

from dispatcher.last_seen import LastSeen
from dispatcher.reconcile import Books, Retry, lost
from dispatcher.store import Attempt, Change, Job, Request
from dispatcher.store.memory import MemoryStore
from policies.flexibility import parse_flexibility
from policies.world import JobState

T0 = datetime(2026, 3, 2, tzinfo=UTC)
S = timedelta(seconds=1)
ATTEMPT = Attempt("j", 1, "a", "j-1", T0, accepted_at=T0, started_at=T0 + 2 * S)


def test_it_ran_until_it_was_last_seen() -> None:
    seen = LastSeen(MemoryStore(), lambda: 0.0)
    assert seen.until(ATTEMPT, T0 + 200 * S) == T0 + 2 * S, "never seen: it ran when it began, and no more is known"
    seen.saw(ATTEMPT, T0 + 20 * S)
    assert seen.until(ATTEMPT, T0 + 200 * S) == T0 + 20 * S
    assert seen.until(ATTEMPT, T0 + 10 * S) == T0 + 10 * S, "a replay may have begun again"


def test_what_was_seen_before_a_restart_is_known_after_it() -> None:
    store, wall = MemoryStore(), [0.0]
    first = LastSeen(store, lambda: wall[0])
    for second in range(2, 19):
        wall[0] = float(second)
        first.saw(ATTEMPT, T0 + second * S)
    later = LastSeen(store, lambda: 0.0)
    assert later.until(ATTEMPT, T0 + 185 * S) == T0 + 12 * S, "written every ten seconds"
    newer = Attempt("k", 1, "a", "k-1", T0 + 15 * S, started_at=T0 + 16 * S)
    assert later.until(newer, T0 + 185 * S) == T0 + 16 * S, "it began after that"
    assert later.until(Attempt("x", 1, "b", "x-1", T0), T0 + 185 * S) == T0, "another region's says nothing"


@pytest.mark.parametrize(("attempts", "state"), [("1", None), ("2", JobState.QUEUED)])
def test_a_loss_says_until_when_it_counts(attempts: str, state: JobState | None) -> None:
    flex = parse_flexibility({"gridshift.max_attempts": attempts}, now=T0, gpus_requested=1.0, regions=["a"])
    job = Job("j", Request("true"), flex, JobState.RUNNING, T0, T0, attempt=1, region="a", run_started_at=T0 + 2 * S)

    def noticed(at: datetime) -> Change:
        books = Books(None, "EUR")
        return lost(job, ATTEMPT, "a was restarted", at, books=books, retry=Retry(10.0, 0), known_until=T0 + 20 * S)

    made = noticed(T0 + 185 * S)
    assert made.attempt_fields["ended_at"] == T0 + 20 * S and made.attempt_fields["outcome"] == "lost"
    assert f"known to have run until {T0 + 20 * S:%Y-%m-%d %H:%M:%S}Z, and used at least what it had by then" in made.reason
    assert made.to is (state or JobState.FAILED)
    assert "at least" not in noticed(T0 + 22 * S).reason
