"""From stored events to what binds: what was released, and ends that no calendar reaches beyond."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dispatcher.dr.budgets import budgets_of
from dispatcher.dr.kept import grid_event
from dispatcher.dr.model import DrEvent, Segment
from dispatcher.store import GridEvent, GridStep
from tests.dr.rig import Rig

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def event(start: datetime, end: datetime | None, **more: Any) -> GridEvent:
    return GridEvent("utility", "e", 1, "north", start, end, 500.0, NOW, **more)


@pytest.mark.parametrize("end", [NOW + 11 * MINUTE, None])
@pytest.mark.parametrize("recovery_s", [None, 900.0])
@pytest.mark.parametrize("steps", [1, 2])
def test_an_event_that_was_cancelled_before_it_began_never_binds(
    end: datetime | None, recovery_s: float | None, steps: int
) -> None:
    middle = NOW + 10.5 * MINUTE
    parts = (GridStep(NOW + 10 * MINUTE, middle, 500.0), GridStep(middle, end, 400.0)) if steps == 2 else ()
    asked = event(NOW + 10 * MINUTE, end, steps=parts, recovery_s=recovery_s)
    assert len(budgets_of([asked], {}, NOW)) == steps
    cancelled = event(NOW + 10 * MINUTE, end, steps=parts, recovery_s=recovery_s, cancelled=True)
    for minutes in (0, 5, 10, 10.7, 30):
        assert budgets_of([cancelled], {}, NOW + minutes * MINUTE) == [], minutes


def test_an_event_that_is_cancelled_in_force_ends_then_and_load_comes_back_from_it() -> None:
    cancelled = event(NOW - MINUTE, NOW + 5 * MINUTE, recovery_s=600.0, cancelled=True)
    (left,) = budgets_of([cancelled], {}, NOW + MINUTE)
    assert (left.start, left.end, left.is_over(NOW + MINUTE)) == (NOW - MINUTE, NOW, True)
    assert budgets_of([cancelled], {}, NOW + 11 * MINUTE) == []


def test_an_end_at_the_end_of_all_calendars_costs_no_other_event_its_limit() -> None:
    last = datetime.max.replace(tzinfo=UTC)
    far = event(NOW - MINUTE, last, recovery_s=86400.0)
    near = GridEvent("utility", "near", 1, "north", NOW - MINUTE, NOW + MINUTE, 100.0, NOW)
    assert [one.event_id for one in budgets_of([far, near], {}, NOW)] == ["e", "near"]


def test_an_end_that_is_written_as_a_time_and_means_none_is_none() -> None:
    last = datetime.max.replace(tzinfo=UTC)
    asked = DrEvent("utility", "e", 1, NOW, start=NOW, end=last, segments=(Segment(NOW, last, 500.0),))
    kept = grid_event(asked, Rig().config_of("utility"), None)
    assert (kept.end, [step.end for step in kept.steps]) == (None, [None])
