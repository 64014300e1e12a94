"""What a job would cost if it had a region to itself."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from policies.alone import alone, shape_of
from policies.grid import Grid

H = 3600.0


@pytest.mark.parametrize("whole", [True, False])
def test_a_job_that_draws_nothing_costs_what_is_fixed_and_one_that_does_not_fit_cannot_be_had(whole: bool) -> None:
    rate = np.array([0.3, 0.1, 0.2])
    grid = Grid(datetime(2026, 1, 1, tzinfo=UTC), 3600, np.array([0.0, H, 2 * H, 3 * H]))
    lane: Any = SimpleNamespace(rate=rate, integral=np.append(0.0, np.cumsum(rate)))
    jobs = [(0.0, end_h * H, H, power_w, 2.0, whole) for power_w in (0.0, 1000.0) for end_h in (3.0, 0.5)]
    found = alone(shape_of(jobs), lane, grid)  # warnings are errors here
    assert found.cost.tolist() == found.floor.tolist() == [2.0, np.inf, pytest.approx(2.1), np.inf]
