"""What an event cost the jobs, from histories as the control plane writes them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dispatcher.event_jobs import Told, names_of, tier_costs
from dispatcher.store import GridEvent, GridStep, Job, JobEvent, Request
from policies.world import Flexibility, JobState

START = datetime(2026, 6, 23, 16, tzinfo=UTC)
WINDOW = (START, START + timedelta(hours=2))
LATER = START + timedelta(hours=6)
NAMES = ("event e1", "hot evening")
Q, L, R, G, P, S = (
    JobState.QUEUED,
    JobState.LAUNCHING,
    JobState.RUNNING,
    JobState.PAUSING,
    JobState.PAUSED,
    JobState.SUCCEEDED,
)
Line = tuple[float, str, JobState | None, JobState, str]


def minutes(count: float) -> datetime:
    return START + timedelta(minutes=count)


def told(tier: str, lines: list[Line], *, attempt: int = 1, deadline: float | None = None, **more: Any) -> Told:
    """Lines are (minute, kind, from, to, sentence)."""
    flex = Flexibility(
        True, None if deadline is None else minutes(deadline), None, 3600.0, True, 1.0, 500.0, tier=tier, max_attempts=1
    )
    started = {"started_at": minutes(-60)} | more
    job = Job("j", Request("x"), flex, lines[-1][3], START, minutes(-120), region="eu", **started)
    events = [JobEvent(i, "j", minutes(m), kind, old, new, why, attempt) for i, (m, kind, old, new, why) in enumerate(lines)]
    return Told(job, events)


def test_a_pause_lasts_from_the_checkpoint_until_the_job_runs_again() -> None:
    paused = told(
        "flex-2",
        [
            (-60, "state", L, R, "running in eu"),
            (1, "state", R, G, "eu may draw 65 kW (hot evening): asked to pause"),
            (5, "state", G, P, "paused"),
            (65, "state", P, L, "starting in eu"),
            (66, "state", L, R, "running in eu"),
            (200, "state", R, S, "finished"),
        ],
        finished_at=minutes(200),
        deadline=190,
    )
    (cost,) = tier_costs([paused], NAMES, WINDOW, LATER)
    assert (cost.tier, cost.jobs, cost.allowed) == ("flex-2", 1, 0.25)
    assert cost.delay_mean_s == cost.delay_max_s == 61 * 60
    assert cost.lost_throughput == pytest.approx(61 / 120)
    assert cost.deadline_misses == 1


def test_a_freeze_a_wait_and_a_job_that_still_stands() -> None:
    frozen = told(
        "flex-1",
        [
            (-60, "state", L, R, "running in eu"),
            (10, "freeze", R, R, "eu may draw 65 kW (event e1): frozen where it runs"),
            (20, "thaw", R, R, "runs on in eu"),
        ],
    )
    waited = told(
        "flex-1",
        [
            (-5, "submitted", None, Q, "submitted"),
            (30, "plan", Q, Q, "eu may draw 65 kW (event e1), draws 64 kW and this job would add 2 kW"),
            (50, "state", Q, L, "starting in eu"),
        ],
        attempt=0,
        started_at=None,
    )
    standing = told(
        "flex-3",
        [
            (-60, "state", L, R, "running in eu"),
            (100, "state", R, G, "eu may draw 65 kW (event e1): asked to pause"),
            (110, "state", G, P, "paused"),
        ],
    )
    first, third = tier_costs([frozen, waited, standing], NAMES, WINDOW, LATER)
    assert (first.jobs, first.delay_mean_s, first.delay_max_s) == (2, 15 * 60, 20 * 60)
    assert first.lost_throughput == pytest.approx(10 / 120) and first.deadline_misses is None
    # Up to now, and of the event's own time only the last ten minutes.
    assert third.delay_max_s == 250 * 60 and third.lost_throughput == pytest.approx(10 / 120)


@pytest.mark.parametrize(
    "line",
    [
        (1, "state", R, G, "its owner paused it"),
        (1, "state", R, G, "eu may draw 40 kW (site limit): asked to pause"),
        (130, "state", R, G, "eu may draw 65 kW (event e1): asked to pause"),
    ],
)
def test_what_was_for_other_reasons_or_afterwards_is_not_the_events(line: Line) -> None:
    other = told("flex-2", [(-60, "state", L, R, "running"), line, (140, "state", G, P, "paused")])
    assert tier_costs([other], NAMES, WINDOW, LATER) == ()


def test_an_event_goes_by_its_id_and_its_reasons() -> None:
    steps = (GridStep(START, None, 5e3, reason="step one"), GridStep(START, None, 4e3))
    event = GridEvent("grid", "e1", 1, "eu", START, None, 5e3, START, "hot", steps=steps)
    assert names_of(event) == ("event e1", "hot", "step one")
