"""Batch beside interactive serving at risk: it does not start, is frozen, is asked to pause, and comes back; no more."""

from datetime import timedelta
from typing import Any

import pytest

from policies.decide import decide
from policies.serving import Level
from policies.world import Action, AskCheckpoint, Freeze, Guarded, Hold, JobView, Launch, Pausable, Thaw
from tests.policies.worlds import NOW, job, region, running, world

WHY = "chat is slower than promised"
FLAT: list[float | None] = [50.0] * 192


def guarded(level: Level, *job_ids: str) -> Guarded:
    return Guarded("chat", level, WHY, frozenset(job_ids) if job_ids else None)


def acts(level: Level, jobs: list[JobView], *only: str) -> list[Action]:
    return decide(world(jobs, [region("a", FLAT, guards=(guarded(level, *only),)), region("b", FLAT)]))


def freezer(job_id: str, **more: Any) -> JobView:
    return running(job_id, "a", pausable=Pausable.FREEZE, cannot_freeze="", deadline_at=None, **more)


@pytest.mark.parametrize("flexible", [True, False])
def test_nothing_starts_there_from_hold_on_and_elsewhere_everything_does(flexible: bool) -> None:
    waiting = job("w", flexible=flexible, run_now=flexible)
    assert isinstance(acts(Level.CALM, [waiting])[0], Launch)
    (told,) = acts(Level.HOLD, [job("w", flexible=flexible, run_now=flexible, regions=("a",))])
    assert isinstance(told, Hold) and told.reason == f"must wait: a starts nothing: {WHY}"
    # what may run elsewhere does; what has its home there waits for it
    (elsewhere,) = acts(Level.PAUSE, [waiting])
    if flexible:
        assert isinstance(elsewhere, Launch) and elsewhere.region == "b"
    else:
        assert isinstance(elsewhere, Hold)


def test_batch_is_frozen_first_and_then_asked_to_pause() -> None:
    jobs = [freezer("f"), running("c", "a"), running("fixed", "a", pausable=Pausable.NO), running("other", "b")]
    assert acts(Level.HOLD, jobs) == acts(Level.CAP, jobs) == []
    (frozen,) = acts(Level.FREEZE, jobs)
    assert isinstance(frozen, Freeze) and frozen.job_id == "f" and frozen.reason.startswith(f"{WHY}: frozen where it runs")
    asked = acts(Level.PAUSE, jobs)
    assert {(type(one), getattr(one, "job_id", "")) for one in asked} == {(Freeze, "f"), (AskCheckpoint, "c")}
    assert next(one for one in asked if isinstance(one, AskCheckpoint)).reason == f"{WHY}: asked to pause"


def test_only_what_shares_its_machines_steps_aside() -> None:
    jobs = [freezer("f"), freezer("g"), running("c", "a"), running("d", "a")]
    assert {getattr(one, "job_id", "") for one in acts(Level.PAUSE, jobs, "f", "d")} == {"f", "d"}


def test_what_stands_frozen_runs_on_when_it_may_and_not_before() -> None:
    frozen = freezer("f", frozen_at=NOW - timedelta(seconds=20))
    assert acts(Level.FREEZE, [frozen]) == [] == acts(Level.PAUSE, [frozen])
    (on,) = acts(Level.CAP, [frozen])
    assert isinstance(on, Thaw)
    (elsewhere,) = acts(Level.FREEZE, [frozen], "another")
    assert isinstance(elsewhere, Thaw)


def test_who_left_a_request_unanswered_is_not_asked_each_second() -> None:
    deaf = running("c", "a", checkpoint_misses=1, last_pause_asked_at=NOW - timedelta(seconds=30))
    assert acts(Level.PAUSE, [deaf]) == []
