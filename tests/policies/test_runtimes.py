"""Run times learned from a group's earlier jobs."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.runtimes import ENOUGH, LATEST, Learned, estimate


def test_the_middle_and_the_long_end_of_the_latest_runs() -> None:
    made = estimate([60.0 * minute for minute in range(1, 11)])
    assert made is not None and (made.median_s, made.high_s, made.runs) == (330.0, 540.0, 10)
    assert made.for_job(has_deadline=True) == 540.0 and made.for_job(has_deadline=False) == 330.0
    assert estimate([1.0] * (ENOUGH - 1)) is None and estimate([]) is None
    old = estimate([9e9] * 100 + [5.0] * LATEST)
    assert old is not None and (old.high_s, old.runs) == (5.0, LATEST), "what is long ago counts no more"


@pytest.mark.parametrize("wrong", [-1.0, nan, inf])
def test_what_is_no_run_time_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="0 s or more, and finite"):
        estimate([1.0, 2.0, 3.0, wrong])


@given(st.lists(st.floats(0, 1e7), min_size=ENOUGH, max_size=80))
def test_an_estimate_lies_among_the_runs(runs: list[float]) -> None:
    made = estimate(runs)
    assert made is not None
    latest = runs[-LATEST:]
    assert min(latest) <= made.median_s <= made.high_s <= max(latest)
    assert sum(run <= made.high_s for run in latest) >= 0.9 * len(latest)


def test_each_group_learns_for_itself() -> None:
    learned = Learned()
    for run_s in (10.0, 20.0, 30.0):
        assert learned.of("nightly") is None
        learned.note("nightly", run_s)
    made = learned.of("nightly")
    assert made is not None and made.median_s == 20.0
    assert learned.of("other") is None
    learned.note("nightly", 40.0)
    again = learned.of("nightly")
    assert again is not None and again.median_s == 25.0
