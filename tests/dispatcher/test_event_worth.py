"""What an event is worth before it is kept; hand-computed."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dispatcher.config_programme import ProgrammeConfig
from dispatcher.event_worth import Worth, worth_of
from dispatcher.store import GridEvent, GridStep
from policies.world import Flexibility, JobState, JobView, Pausable

NOW = datetime(2026, 6, 23, 15, tzinfo=UTC)
HOUR = timedelta(hours=1)
TERMS = {"name": "p", "event_source": "grid", "currency": "EUR", "per_kwh": 0.5, "penalty_per_kwh": 2.0, "opt_out_cost": 30.0}


def event(*steps: tuple[float, float | None, float]) -> GridEvent:
    """Steps of (hours from now, hours from now, W)."""
    made = tuple(GridStep(NOW + a * HOUR, None if b is None else NOW + b * HOUR, watts) for a, b, watts in steps)
    return GridEvent("grid", "e1", 1, "eu", made[0].start, made[-1].end, made[0].limit_w, NOW, steps=made)


def worth(one: GridEvent, jobs: tuple[JobView, ...] = (), draw_w: float | None = 100_000.0, **terms: Any) -> Worth:
    config = ProgrammeConfig(**{**TERMS, **terms})
    given = {"late_cost_per_h": 10.0, "jobs_currency": "EUR", "fx": 1.0}
    return worth_of(one, config, NOW, draw_w=draw_w, jobs=jobs, **given)  # type: ignore[arg-type]


def job(name: str, spare_h: float | None, **more: Any) -> JobView:
    """A running job with so many hours to spare before its deadline."""
    deadline = None if spare_h is None else NOW + (2 + spare_h) * HOUR
    flex = Flexibility(True, deadline, None, 7200.0, True, 1.0, 500.0, Pausable.CHECKPOINT, 0.0, 0.0, tier="flex-2")
    given = {"region": "eu", "run_started_at": NOW, **more}
    return JobView(name, JobState.RUNNING, NOW, NOW, flex, 7200.0, **given)


def test_without_a_promise_the_draw_now_less_the_limits_stands_for_one() -> None:
    told = worth(event((1, 2, 80_000.0), (2, 3, 60_000.0)))
    assert (told.committed_kwh, told.committed_kw) == (60.0, 30.0)
    assert (told.if_met, told.if_nothing, told.if_opted_out) == (30.0, -120.0, -30.0)
    assert told.jobs_cost_at_most == 0.0 and told.sentence.endswith("worth keeping even then.")


def test_a_promise_counts_as_it_was_made_whatever_is_drawn() -> None:
    told = worth(event((1, 3, 60_000.0)), draw_w=None, commitment_w=25_000)
    assert (told.committed_kwh, told.if_met, told.if_nothing) == (50.0, 25.0, -100.0)


def test_what_is_not_known_is_told() -> None:
    unknown = worth(event((1, 3, 60_000.0)), draw_w=None)
    assert (unknown.if_met, unknown.committed_kwh) == (None, None) and "not known" in unknown.reasons[0]
    without_end = worth(event((1, None, 60_000.0)))
    assert without_end.if_met is None and "no end" in without_end.reasons[0] and without_end.jobs_cost_at_most is None


def test_jobs_are_late_by_what_they_cannot_spare() -> None:
    jobs = (job("a", 0.5), job("b", 5.0), job("c", None), job("d", 0.0, region="us"))
    told = worth(event((0, 2, 60_000.0)), jobs)
    # a would be an hour and a half late, b has time, c has no deadline, d is elsewhere.
    assert (told.jobs_cost_at_most, told.jobs_counted) == (pytest.approx(15.0), 3)
    costly = worth(event((0, 2, 60_000.0)), tuple(job(str(k), 0.0) for k in range(10)))
    assert costly.jobs_cost_at_most == 200.0 and "less than that" in costly.sentence


def test_only_the_rest_of_an_event_counts_and_breaches_are_told() -> None:
    told = worth(event((-1, 1, 60_000.0)), notice="30m", hours=[16, 21])
    assert told.committed_kwh == 40.0
    assert len(told.breaches) == 2 and "notice was 0.0 min" in told.breaches[0]


def test_a_firm_service_level_pays_by_excess() -> None:
    level = {"baseline": "firm-service-level", "firm_service_level_w": 55_000, "penalty_on": "excess", "per_kwh": 0.0}
    told = worth(event((0, 2, 70_000.0)), **level)
    assert (told.if_met, told.if_nothing) == (0.0, -180.0)
