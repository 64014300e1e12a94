"""A job's energy from the rows of its GPUs: what is covered, what is missing, and to which attempt a row belongs."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.power.accounts import (
    EnergyRow,
    JobEnergy,
    integrated,
    job_energy,
    metered_seconds,
    together,
    turns,
)

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
T0_S = int(T0.timestamp())


def row(minute: int = 0, **more: object) -> EnergyRow:
    start_s = T0_S + 60 * minute
    given = EnergyRow("n", "GPU-0", start_s, "j", "job", start_s + 60, "r", 6.0, 0.0, 60.0, "measured", "exclusive", False)
    return replace(given, **more)  # type: ignore[arg-type]


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def energy(
    rows: list[EnergyRow], start_s: float, end_s: float, gpus: float = 1.0, around: list[EnergyRow] | None = None
) -> JobEnergy:
    found = job_energy(rows, around or rows, at(start_s), at(end_s), gpus=gpus, power_w=360.0)
    assert found is not None
    return found


def test_a_run_that_was_measured_is_the_sum_of_its_rows() -> None:
    found = energy([row(n) for n in range(10)], 12.5, 595.0)
    assert (found.basis, found.covered, found.modelled_kwh) == ("measured", 1.0, 0.0)
    assert found.energy_kwh == pytest.approx(0.06) and len(found.slices) == 10
    assert found.slices[3].start == at(180) and found.slices[3].energy_kwh == pytest.approx(0.006)


def test_what_was_measured_for_a_job_was_measured_while_it_ran() -> None:
    # the meter was first read 20 s into the minute, the job ran from second 25 on and came to the GPU 2 s later
    own = row(energy_wh=3.3, seconds=33.0)
    idle = row(job_id="", line="idle", energy_wh=0.1, idle_wh=None, seconds=7.0)
    found = energy([own], 25.0, 60.0, around=[own, idle])
    assert (found.basis, found.modelled_kwh) == ("measured", 0.0) and found.energy_kwh == pytest.approx(0.0033)


def test_a_gap_is_modelled_and_said() -> None:
    found = energy([row(n) for n in range(10) if n not in (4, 5, 6)], 0, 600)
    assert found.basis == "partly measured" and found.covered == pytest.approx(0.7)
    assert found.modelled_kwh == pytest.approx(0.36 * 180 / 3600)
    assert found.energy_kwh == pytest.approx(7 * 0.006 + 0.018)
    assert [one.energy_kwh for one in found.slices[4:7]] == pytest.approx([0.006] * 3), "each in its own minute"


def test_a_gap_of_a_twentieth_is_left_out() -> None:
    found = energy([row(n, seconds=57.0, energy_wh=5.7) for n in range(10)], 0, 600)
    assert (found.basis, found.modelled_kwh) == ("measured", 0.0) and found.energy_kwh == pytest.approx(0.057)


@pytest.mark.parametrize("off_minutes", [-60, -3, -1, 1, 4, 60])
def test_a_node_whose_clock_is_off_costs_no_energy_twice(off_minutes: int) -> None:
    found = energy([row(n + off_minutes) for n in range(10)], 0, 600)
    assert (found.basis, found.covered, found.modelled_kwh) == ("measured", pytest.approx(1.0), 0.0)
    assert found.energy_kwh == pytest.approx(0.06)
    found = energy([row(n + off_minutes) for n in range(8)], 0, 600)
    assert found.basis == "partly measured" and found.covered == pytest.approx(0.8)
    assert found.energy_kwh == pytest.approx(0.06), "only the two minutes without a row are modelled"


def test_nothing_measured_is_none() -> None:
    assert job_energy([], [row()], at(0), at(60), gpus=1.0, power_w=1.0) is None


def test_a_gpu_that_reads_idle_before_the_first_process_was_measured() -> None:
    idle = [row(n, job_id="", line="idle", energy_wh=1.0) for n in range(5)]
    own = [row(n) for n in range(5, 10)]
    assert energy(own, 0, 600).basis == "partly measured"
    found = energy(own, 0, 600, around=[*idle, *own])
    assert (found.basis, found.covered) == ("measured", 1.0) and found.energy_kwh == pytest.approx(0.03)


def test_gpus_that_were_never_seen_are_missing() -> None:
    rows = [row(n, uuid=f"GPU-{gpu}") for n in range(10) for gpu in range(4)]
    assert energy(rows, 0, 600, gpus=4.0).basis == "measured"
    found = energy(rows, 0, 600, gpus=8.0)
    assert (found.basis, found.gpus) == ("partly measured", 8) and found.covered == pytest.approx(0.5)
    assert found.modelled_kwh == pytest.approx(0.36 * 600 / 3600 / 2)
    assert energy(rows, 0, 600, gpus=0.5).gpus == 4, "more than it asked for"


def test_simulated_stays_simulated() -> None:
    assert energy([row(n, simulated=n == 3) for n in range(10)], 0, 600).basis == "simulated"
    assert energy([row(0, simulated=True)], 0, 600).basis == "simulated"


def test_seconds_of_those_who_share_a_gpu_are_the_same_seconds() -> None:
    shared = [row(job_id=one, split="by time and memory", seconds=30.0) for one in "ab"]
    assert metered_seconds(shared) == 30.0
    assert metered_seconds([*shared, row(job_id="", line="idle", seconds=30.0)]) == 60.0
    assert metered_seconds([row(seconds=20.0), row(job_id="b", seconds=40.0)]) == 60.0
    assert metered_seconds([row(), row(job_id="b")]) == 60.0


def test_a_bridged_interval_counts_in_every_minute() -> None:
    rows = [row(0), row(1, end_s=T0_S + 540, seconds=480.0, energy_wh=48.0), row(9)]
    found = energy(rows, 0, 600)
    assert (found.basis, found.covered) == ("measured", pytest.approx(1.0)) and found.energy_kwh == pytest.approx(0.06)


@given(
    kept=st.sets(st.integers(0, 19)),
    start_s=st.floats(0, 599),
    length_s=st.floats(1, 600),
    seconds=st.floats(0, 60),
    gpus=st.sampled_from([0.0, 0.25, 1.0, 2.0]),
)
def test_never_more_than_measured_and_modelled(
    kept: set[int], start_s: float, length_s: float, seconds: float, gpus: float
) -> None:
    rows = [row(n, seconds=seconds) for n in sorted(kept)]
    found = job_energy(rows, rows, at(start_s), at(start_s + length_s), gpus=gpus, power_w=360.0)
    if found is None:
        assert not kept
        return
    measured = sum(one.energy_wh for one in rows) / 1000
    assert 0 <= found.covered <= 1
    assert found.energy_kwh == pytest.approx(measured + found.modelled_kwh)
    assert sum(one.energy_kwh for one in found.slices) == pytest.approx(found.energy_kwh)
    assert 0 <= found.modelled_kwh <= 0.36 * length_s / 3600 + 1e-9
    if found.basis == "partly measured":
        assert found.modelled_kwh == pytest.approx((1 - found.covered) * 0.36 * length_s / 3600, rel=1e-6, abs=1e-9)


def test_bases_together() -> None:
    assert together("measured", "measured") == "measured"
    assert together("measured", "modelled") == together("partly measured", "measured") == "partly measured"
    assert together("simulated", "measured") == "simulated"
    assert together(None, "modelled") == "modelled" and together() is None


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 300)), min_size=1, max_size=5),
    st.sampled_from(["a", "b"]),
    st.integers(-10, 20),
)
def test_each_row_belongs_to_one_attempt_at_most(launches: list[tuple[str, int]], region: str, minute: int) -> None:
    numbered = [(n + 1, place, at(offset)) for n, (place, offset) in enumerate(sorted(launches, key=lambda one: one[1]))]
    start = at(60 * minute)
    owners = [
        number
        for number, turn in turns(numbered).items()
        if turn.region == region and (turn.first is None or start >= turn.first) and (turn.until is None or start < turn.until)
    ]
    assert len(owners) == (1 if any(place == region for _, place, _ in numbered) else 0)


def test_money_is_that_of_the_minute() -> None:
    found = energy([row(n, energy_wh=float(n)) for n in range(3)], 0, 180)
    prices = {at(60): 10.0, at(120): 100.0}
    assert integrated(found.slices, lambda start, end: prices.get(start)) == pytest.approx(0.001 * 10 + 0.002 * 100)
    assert integrated(found.slices, lambda start, end: None) is None
