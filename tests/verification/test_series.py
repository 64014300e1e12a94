"""Arithmetic on series with gaps."""

from datetime import datetime, timedelta

import numpy as np
import pytest

from dispatcher.errors import BadInput
from dispatcher.verification.series import (
    MeteredSeries,
    coverage,
    difference,
    energy_kwh,
    from_pairs,
    mean_w,
    resampled,
    windows,
)
from tests.verification.samples import DAY, at, flat

NAN = float("nan")


def test_resampling_weighs_by_time_across_slots() -> None:
    # 600 s slots of 100, 400, 700 W; a slot of 900 s from 300 s on has 300 s of 100 W and 600 s of 400 W.
    series = MeteredSeries(DAY, 600, np.array([100.0, 400.0, 700.0]))
    made = resampled(series, DAY + timedelta(seconds=300), 900, 1)
    assert made.watts[0] == pytest.approx((300 * 100 + 600 * 400) / 900)


def test_a_slot_too_little_of_which_is_known_is_unknown_not_zero() -> None:
    series = MeteredSeries(DAY, 60, np.array([100.0, NAN, 100.0, 100.0]))
    assert np.isnan(resampled(series, DAY, 240, 1).watts[0])
    assert resampled(series, DAY, 240, 1, min_coverage=0.75).watts[0] == pytest.approx(100.0)
    assert np.isnan(resampled(series, at(1), 60, 3).watts).all()


def test_estimates_stay_marked() -> None:
    series = MeteredSeries(DAY, 60, np.array([1.0, 2.0, 3.0, NAN]), np.array([False, True, False, False]))
    made = resampled(series, DAY, 120, 2, 0.5)
    assert [made.quality(k) for k in range(2)] == ["estimated", "measured"]
    assert [series.quality(k) for k in range(4)] == ["measured", "estimated", "measured", "missing"]


def test_energy_counts_what_is_known_and_says_how_much_that_is() -> None:
    series = MeteredSeries(DAY, 1800, np.array([2000.0, NAN]))
    made = energy_kwh(series, DAY, at(1))
    assert (made.value, made.coverage) == (pytest.approx(1.0), pytest.approx(0.5))
    assert not made.complete
    assert mean_w(series, DAY, at(1)).value == pytest.approx(2000.0)
    assert energy_kwh(series, at(0.5), at(1)).value is None
    assert coverage(series, DAY - timedelta(hours=1), at(1)) == pytest.approx(0.25)
    assert coverage(series, DAY, DAY) == 0.0


def test_the_last_window_is_what_is_left() -> None:
    means, lengths = windows(flat(5.0, hours=1), DAY, DAY + timedelta(seconds=150), 60)
    assert means.tolist() == pytest.approx([5.0, 5.0, 5.0])
    assert lengths.tolist() == pytest.approx([60.0, 60.0, 30.0])


def test_a_window_too_little_of_which_is_known_has_no_mean() -> None:
    series = MeteredSeries(DAY, 1.0, np.where(np.arange(120) % 60 < 50, 10.0, NAN))
    assert np.isnan(windows(series, DAY, at(0) + timedelta(seconds=120), 60)[0]).all()
    assert windows(series, DAY, at(0) + timedelta(seconds=120), 60, 0.8)[0].tolist() == pytest.approx([10.0, 10.0])


def test_a_difference_is_unknown_where_either_side_is() -> None:
    left = MeteredSeries(DAY, 120, np.array([10.0, NAN]))
    right = MeteredSeries(DAY, 60, np.array([1.0, NAN, 3.0, 4.0]))
    made = difference(left, right)
    assert made.watts[0] == pytest.approx(9.0)
    assert np.isnan(made.watts[1:]).all()


def test_pairs_make_a_series_with_gaps() -> None:
    series = from_pairs([(at(0) + timedelta(seconds=120), 3.0), (at(0), 1.0)], 60)
    assert series.start == DAY
    assert series.watts[[0, 2]].tolist() == [1.0, 3.0]
    assert np.isnan(series.watts[1])
    assert from_pairs([(at(1), 1.0)], 3600, stamp="end").start == DAY


@pytest.mark.parametrize(
    ("pairs", "word"),
    [
        ([], "pairs"),
        ([(datetime(2026, 1, 1), 1.0)], "offset"),  # noqa: DTZ001
        ([(at(0), 1.0), (at(0) + timedelta(seconds=30), 2.0)], "whole number of steps"),
        ([(at(0), 1.0), (at(0), 2.0)], "differs"),
        ([(at(0), float("inf"))], "finite"),
    ],
)
def test_bad_pairs_are_named(pairs: list[tuple[datetime, float]], word: str) -> None:
    with pytest.raises(BadInput, match=word):
        from_pairs(pairs, 60)


def test_bad_series_are_named() -> None:
    with pytest.raises(BadInput, match="step_s"):
        MeteredSeries(DAY, 0, np.zeros(1))
    with pytest.raises(BadInput, match="estimated"):
        MeteredSeries(DAY, 60, np.zeros(2), np.array([True]))


def test_a_series_cannot_be_changed() -> None:
    given = np.array([1.0])
    series = MeteredSeries(DAY, 60, given)
    given[0] = 2.0
    assert series.watts[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        series.watts[0] = 3.0


def test_spans_are_taken_out_with_every_slot_they_touch() -> None:
    series = flat(1.0, hours=1, step_s=600).without([(at(0) + timedelta(seconds=900), at(0) + timedelta(seconds=1500))])
    assert np.isnan(series.watts).tolist() == [False, True, True, False, False, False]
