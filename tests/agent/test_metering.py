"""Readings of a GPU become minute rows: sums, splits, idle, gaps, clocks that are set, restarts. No clock runs here."""

import json
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.agent.devices import Reading
from dispatcher.agent.metering import EnergyRow, GpuMeter, Look, Meter, rows_energy_wh

#: A whole minute on the wall.
T0 = 1_800_000_000 // 60 * 60
Who = Mapping[str | None, int | None] | None
A: Who = {"a": 10}
NOBODY: Who = {}


@dataclass
class Gpu:
    """A GPU under a test's hand: its clocks, its counter, and the meter that it feeds."""

    meter: GpuMeter = field(default_factory=lambda: GpuMeter("GPU-1"))
    at: float = float(T0)
    boot_s: float = 1000.0
    energy_j: float = 5e6
    has_counter: bool = True
    limit_w: float | None = 700.0
    counter_factor: float = 1.0
    drawn_j: float = 0.0
    power_w: float = 0.0
    rows: list[EnergyRow] = field(default_factory=list)

    def look(self, who: Who, power_w: float | None, *, util: float | None = 0.9, throttle: tuple[str, ...] = ()) -> Look:
        energy_j = self.energy_j if self.has_counter else None
        reading = Reading(
            self.at, self.boot_s, power_w, energy_j, self.limit_w, self.limit_w, 60.0, util, util, throttle, 1500.0
        )
        return Look(reading, who)

    def pass_time(self, seconds: float, mean_w: float) -> None:
        """Let it draw without being read."""
        self.at += seconds
        self.boot_s += seconds
        self.drawn_j += mean_w * seconds
        self.energy_j += mean_w * seconds * self.counter_factor

    def run(self, seconds: int, who: Who, power_w: float = 400.0, **kwargs: Any) -> None:
        """Read it once a second at a steady power; the first of all readings only begins."""
        for _ in range(seconds):
            self.pass_time(1.0, power_w)
            self.rows += self.meter.feed(self.look(who, power_w, **kwargs))

    def begin(self, who: Who, power_w: float = 400.0, **kwargs: Any) -> "Gpu":
        self.rows += self.meter.feed(self.look(who, power_w, **kwargs))
        return self


def by_line(rows: Iterable[EnergyRow]) -> dict[tuple[int, str, str | None], EnergyRow]:
    return {((row.start - T0) // 60, row.line, row.job_id): row for row in rows}


def test_a_whole_minute_of_one_job() -> None:
    gpu = Gpu().begin(A)
    gpu.run(60, A)
    assert gpu.rows == [
        EnergyRow(
            start=T0,
            end=T0 + 60,
            uuid="GPU-1",
            job_id="a",
            line="job",
            energy_wh=pytest.approx(400 * 60 / 3600, abs=1e-9),
            seconds=pytest.approx(60.0),
            quality="measured",
            split="exclusive",
            mean_w=pytest.approx(400.0),
            throttled_s=0.0,
            idle_wh=0.0,
            bridged_s=0.0,
        )
    ]


def test_readings_between_whole_seconds_fill_minutes_exactly() -> None:
    gpu = Gpu(at=T0 + 0.37).begin(A)
    gpu.run(200, A)
    seconds = [row.seconds for row in gpu.rows]
    assert seconds == pytest.approx([59.63, 60.0, 60.0])
    assert [row.quality for row in gpu.rows] == ["measured"] * 3
    assert gpu.rows[1].energy_wh == pytest.approx(400 / 60, abs=1e-9)


def test_no_row_before_its_minute_is_over_and_repeated_readings_count_once() -> None:
    gpu = Gpu().begin(A)
    gpu.run(59, A)
    assert gpu.rows == [] and gpu.meter.feed(gpu.look(A, 9999.0)) == []
    gpu.run(1, A)
    assert rows_energy_wh(gpu.rows) == pytest.approx(400 / 60, abs=1e-9)


def test_a_job_that_follows_another_shares_only_the_second_between() -> None:
    gpu = Gpu().begin(A)
    gpu.run(29, A)
    gpu.run(31, {"b": 10})
    lines = by_line(gpu.rows)
    a, b = lines[0, "job", "a"], lines[0, "job", "b"]
    assert (a.seconds, b.seconds) == pytest.approx((29.5, 30.5))
    assert a.energy_wh * 3600 == pytest.approx(29.5 * 400)
    assert (a.split, b.split, a.quality) == ("exclusive", "exclusive", "measured")


@pytest.mark.parametrize(
    ("who", "split", "expected"),
    [
        ({"a": 30, "b": 10}, "by time and memory", {("job", "a"): 0.75, ("job", "b"): 0.25}),
        ({"a": 30, None: 10}, "by time and memory", {("job", "a"): 0.75, ("unattributed", None): 0.25}),
        ({"a": 30, "b": None}, "by time", {("job", "a"): 0.5, ("job", "b"): 0.5}),
        ({"a": 0, "b": 0}, "by time", {("job", "a"): 0.5, ("job", "b"): 0.5}),
        (None, "exclusive", {("unattributed", None): 1.0}),
        ({}, "exclusive", {("idle", None): 1.0}),
        ({None: 5}, "exclusive", {("unattributed", None): 1.0}),
    ],
)
def test_how_a_gpu_is_divided(who: Who, split: str, expected: dict[tuple[str, str | None], float]) -> None:
    gpu = Gpu().begin(who, util=0.0)
    gpu.run(60, who, util=0.0)
    assert {(row.line, row.job_id): row.energy_wh / (400 / 60) for row in gpu.rows} == pytest.approx(expected)
    assert {row.split for row in gpu.rows} == {split}
    assert [row.seconds for row in gpu.rows] == pytest.approx([60.0] * len(gpu.rows))


def test_work_without_a_visible_process_is_unattributed_not_idle() -> None:
    gpu = Gpu().begin(NOBODY, util=0.5)
    gpu.run(60, NOBODY, util=0.5)
    lines = by_line(gpu.rows)
    assert lines[0, "unattributed", None].seconds == pytest.approx(59.5)
    assert lines[0, "idle", None].seconds == pytest.approx(0.5), "one look alone may be the tail of a job that just left"


def test_the_idle_time_of_a_resident_job_is_its_own_and_flagged() -> None:
    gpu = Gpu().begin(A)
    gpu.run(20, A, 400.0)
    assert gpu.meter.idle_state == "active"
    gpu.run(5, A, 100.0, util=0.0)
    assert gpu.meter.idle_state == "active", "not yet for 5 s"
    gpu.run(25, A, 100.0, util=0.04)
    assert gpu.meter.idle_state == "execution_idle"
    gpu.run(10, A, 400.0)
    (row,) = gpu.rows
    assert row.line == "job" and row.energy_wh * 3600 == pytest.approx(400 * 30 + 100 * 30)
    # Quiet at the readings of seconds 21 to 50; known to be idle from second 26 on.
    assert row.idle_wh is not None and row.idle_wh * 3600 == pytest.approx(100 * 24)


def test_idle_is_unknown_where_utilisation_is() -> None:
    gpu = Gpu().begin(A, util=None)
    gpu.run(60, A, 80.0, util=None)
    assert (gpu.rows[0].idle_wh, gpu.meter.idle_state) == (None, "active")


def test_a_gpu_with_nobody_on_it_is_deep_idle() -> None:
    gpu = Gpu().begin(NOBODY, 60.0, util=0.0)
    gpu.run(60, NOBODY, 60.0, util=0.0)
    (row,) = gpu.rows
    assert (gpu.meter.idle_state, row.line, row.job_id, row.idle_wh) == ("deep_idle", "idle", None, 0.0)


def test_throttled_seconds_are_those_that_slow_work() -> None:
    gpu = Gpu().begin(A)
    gpu.run(10, A, throttle=("sw_power_cap", "hw_thermal"))
    gpu.run(50, A, throttle=("idle", "app_clocks"))
    assert gpu.rows[0].throttled_s == pytest.approx(10.0)


# --- counters that cannot be believed ---------------------------------------------------------------------------------


def test_without_a_counter_power_is_integrated() -> None:
    gpu = Gpu(has_counter=False).begin(A, 100.0)
    gpu.run(30, A, 100.0)
    gpu.run(30, A, 300.0)
    (row,) = gpu.rows
    assert row.quality == "integrated" and row.energy_wh * 3600 == pytest.approx(100 * 30 + 200 + 300 * 29)


def test_power_alone_missing_leaves_the_counter() -> None:
    gpu = Gpu()
    gpu.meter.feed(gpu.look(A, None))
    for _ in range(60):
        gpu.pass_time(1.0, 250.0)
        gpu.rows += gpu.meter.feed(gpu.look(A, None))
    assert [(row.quality, row.mean_w) for row in gpu.rows] == [("measured", pytest.approx(250.0))]


def test_neither_counter_nor_power_is_a_gap() -> None:
    gpu = Gpu(has_counter=False).begin(A)
    gpu.run(20, A)
    for _ in range(20):
        gpu.pass_time(1.0, 400.0)
        gpu.rows += gpu.meter.feed(gpu.look(A, None))
    gpu.run(20, A)
    (row,) = gpu.rows
    assert (row.seconds, row.quality) == (pytest.approx(39.0), "partial")
    assert row.energy_wh * 3600 == pytest.approx(39 * 400)


@pytest.mark.parametrize("factor", [0.75, 1.3, 0.57])
def test_a_counter_that_disagrees_by_more_than_a_fifth_is_not_used(factor: float) -> None:
    gpu = Gpu(counter_factor=factor).begin(A)
    gpu.run(120, A)
    assert [(row.quality, row.mean_w) for row in gpu.rows] == [("integrated", pytest.approx(400.0))] * 2
    assert "where power over" in gpu.meter.check.why


@pytest.mark.parametrize("factor", [0.85, 1.15])
def test_a_counter_that_disagrees_by_less_is_used(factor: float) -> None:
    gpu = Gpu(counter_factor=factor).begin(A)
    gpu.run(60, A)
    assert [(row.quality, row.mean_w) for row in gpu.rows] == [("measured", pytest.approx(400.0 * factor))]


def test_a_stuck_counter_is_not_used_and_trusted_again_a_minute_after_it_moves() -> None:
    gpu = Gpu().begin(A)
    gpu.run(60, A)
    gpu.counter_factor = 0.0
    gpu.run(60, A)
    assert not gpu.meter.check.is_reliable(gpu.boot_s)
    gpu.counter_factor = 1.0
    gpu.run(240, A)
    qualities = [row.quality for row in gpu.rows]
    assert qualities[:2] == ["measured", "integrated"] and qualities[-1] == "measured"
    assert [row.mean_w for row in gpu.rows] == pytest.approx([400.0] * 6)


def test_a_counter_that_stands_still_on_an_idle_gpu_is_fine() -> None:
    gpu = Gpu(counter_factor=0.0).begin(NOBODY, 2.0, util=0.0)
    gpu.run(60, NOBODY, 2.0, util=0.0)
    assert gpu.rows[0].quality == "measured"


@pytest.mark.parametrize("jump_j", [1e6, -1e6, 4e9])
def test_a_jump_is_no_energy(jump_j: float) -> None:
    gpu = Gpu().begin(A)
    gpu.run(30, A)
    gpu.energy_j += jump_j
    gpu.run(30, A)
    assert [(row.quality, row.mean_w) for row in gpu.rows] == [("integrated", pytest.approx(400.0))]
    gpu.run(180, A)
    assert gpu.rows[-1].quality == "measured"


@pytest.mark.parametrize("reads_w", [4_294_967.295, 1e6, 20_000.0, 1500.0, -1.0, 0.0])
def test_a_reading_of_power_that_cannot_be_spoils_no_minute(reads_w: float) -> None:
    gpu = Gpu().begin(A)
    gpu.run(20, A)
    for _ in range(3):
        gpu.pass_time(1.0, 400.0)
        gpu.rows += gpu.meter.feed(gpu.look(A, reads_w))
    gpu.run(97, A)
    assert [(row.quality, row.mean_w) for row in gpu.rows] == [("measured", pytest.approx(400.0))] * 2
    assert gpu.meter.check.why == ""


def test_without_a_counter_a_reading_that_cannot_be_is_a_gap() -> None:
    gpu = Gpu(has_counter=False).begin(A)
    gpu.run(20, A)
    gpu.pass_time(1.0, 400.0)
    gpu.rows += gpu.meter.feed(gpu.look(A, 1e6))
    gpu.run(39, A)
    (row,) = gpu.rows
    assert (row.quality, row.seconds, row.mean_w) == ("partial", pytest.approx(58.0), pytest.approx(400.0))


def test_power_that_always_reads_nothing_is_not_nothing_where_the_counter_moves() -> None:
    gpu = Gpu().begin(A, 0.0)
    for _ in range(120):
        gpu.pass_time(1.0, 400.0)
        gpu.rows += gpu.meter.feed(gpu.look(A, 0.0))
    assert [(row.quality, row.mean_w) for row in gpu.rows] == [("measured", pytest.approx(400.0))] * 2


def test_a_cap_that_falls_is_no_jump() -> None:
    gpu = Gpu().begin(A, 690.0)
    gpu.run(30, A, 690.0)
    gpu.limit_w = 350.0
    gpu.run(3, A, 690.0)  # the driver is still at it
    gpu.run(27, A, 350.0)
    assert gpu.rows[0].quality == "measured" and gpu.meter.check.why == ""


# --- gaps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (A, A, ("job", "a")),
        (A, {"b": 1}, ("unattributed", None)),
        (A, NOBODY, ("unattributed", None)),
        (NOBODY, NOBODY, ("unattributed", None)),
        ({"a": 1, "b": 1}, {"a": 1, "b": 1}, ("unattributed", None)),
        (None, None, ("unattributed", None)),
    ],
)
def test_a_reliable_counter_bridges_a_gap(before: Who, after: Who, line: tuple[str, str | None]) -> None:
    gpu = Gpu().begin(before, util=0.0)
    gpu.run(30, before, util=0.0)
    gpu.pass_time(60.0, 200.0)
    gpu.begin(after, util=0.0)
    gpu.run(30, after, util=0.0)
    assert rows_energy_wh(gpu.rows) * 3600 == pytest.approx(gpu.drawn_j, abs=1e-6)
    bridged = [row for row in gpu.rows if row.bridged_s > 0]
    assert {(row.line, row.job_id) for row in bridged} == {line}
    assert math.fsum(row.bridged_s for row in bridged) == pytest.approx(60.0)
    assert {row.quality for row in gpu.rows} == {"measured"}


@pytest.mark.parametrize("kind", ["no counter", "distrusted", "started anew", "went mad", "too long"])
def test_other_gaps_stay_gaps(kind: str) -> None:
    gpu = Gpu(has_counter=kind != "no counter", counter_factor=0.5 if kind == "distrusted" else 1.0).begin(A)
    gpu.run(30, A)
    gpu.pass_time(49 * 3600.0 if kind == "too long" else 3600.0, 200.0)
    if kind == "started anew":
        gpu.energy_j = 2000.0
    if kind == "went mad":
        gpu.energy_j += 1e9
    gpu.begin(A)
    gpu.run(30, A)
    assert [(row.seconds, row.quality, row.bridged_s) for row in gpu.rows] == [(pytest.approx(30.0), "partial", 0.0)] * 2
    assert rows_energy_wh(gpu.rows) * 3600 == pytest.approx(60 * 400.0)


def test_a_counter_that_started_anew_and_ran_little_is_not_taken_for_the_old_one() -> None:
    gpu = Gpu(energy_j=1000.0).begin(A)
    gpu.run(30, A)
    gpu.pass_time(36_000.0, 0.0)
    gpu.energy_j += 20_000.0  # of a new count that has come past the old one
    gpu.begin(A)
    gpu.run(30, A)
    assert rows_energy_wh(gpu.rows) * 3600 == pytest.approx(60 * 400.0)


def test_a_lost_gpu_waits_for_its_return_and_then_gives_up() -> None:
    gpu = Gpu().begin(A)
    gpu.run(30, A)
    assert gpu.meter.lost(gpu.boot_s + 1) == [] and gpu.meter.idle_state == "lost"
    rows = gpu.meter.lost(gpu.boot_s + 600)
    assert [(row.seconds, row.quality) for row in rows] == [(pytest.approx(30.0), "partial")]
    gpu.pass_time(700, 300.0)
    assert gpu.meter.lost(gpu.boot_s) == []
    gpu.begin(A)
    assert gpu.meter.idle_state == "active"
    gpu.run(60, A)
    assert rows_energy_wh(gpu.rows) * 3600 == pytest.approx(50 * 400.0), "nothing of the time away"


# --- clocks that are set ----------------------------------------------------------------------------------------------


def test_slewing_clocks_leave_minutes_whole() -> None:
    gpu = Gpu().begin(A)
    for _ in range(180):
        gpu.run(1, A)
        gpu.at += 0.0005
    assert [(row.seconds, row.quality) for row in gpu.rows] == [(pytest.approx(60.0), "measured")] * 3
    assert rows_energy_wh(gpu.rows) * 3600 == pytest.approx(gpu.drawn_j, rel=0.01)


def test_a_clock_set_forward_invents_nothing() -> None:
    gpu = Gpu().begin(A)
    gpu.run(30, A)
    gpu.at += 3600.0
    gpu.run(30, A)
    assert [(row.start - T0, row.seconds) for row in gpu.rows] == [(0, pytest.approx(30.0)), (3600, pytest.approx(30.0))]
    assert rows_energy_wh(gpu.rows) * 3600 == pytest.approx(gpu.drawn_j, abs=1e-6)


@pytest.mark.parametrize("back_s", [0.6, 2.0, 90.0, 600.0, 3000.0, 86_400.0])
@pytest.mark.parametrize("power_w", [50.0, 690.0])
def test_a_clock_set_back_hides_nothing_and_no_row_takes_anothers_name(back_s: float, power_w: float) -> None:
    gpu = Gpu(at=T0 + 86_400.0).begin(A, power_w)
    gpu.run(150, A, power_w)
    gpu.at -= back_s
    gpu.run(240, A, power_w)
    gpu.rows += gpu.meter.flush()
    starts = [row.start for row in gpu.rows]
    assert len(starts) == len(set(starts)) and all(row.seconds <= 60.0 for row in gpu.rows)
    assert math.fsum(row.seconds for row in gpu.rows) == pytest.approx(390.0), "no second is cut off"
    assert all(row.energy_wh * 3600 == pytest.approx(row.seconds * power_w) for row in gpu.rows), "nor poured into a minute"
    assert rows_energy_wh(gpu.rows) * 3600 == pytest.approx(gpu.drawn_j, abs=1e-6)


def test_after_a_clock_was_set_back_rows_are_of_the_time_that_it_tells_then() -> None:
    gpu = Gpu(at=T0 + 3600.0).begin(A)
    gpu.run(90, A)
    gpu.at = T0 + 30.0
    gpu.run(180, A)
    told = [(row.start - T0, row.seconds, row.quality) for row in gpu.rows]
    assert told == [
        (3600, pytest.approx(60.0), "measured"),
        (3660, pytest.approx(30.0), "partial"),
        (1, pytest.approx(31.0), "partial"),
        (61, pytest.approx(60.0), "measured"),
        (121, pytest.approx(60.0), "measured"),
    ]


def test_minutes_are_whole_ones_again_when_time_comes_that_was_not_told_yet() -> None:
    gpu = Gpu().begin(A)
    gpu.run(150, A)
    gpu.at -= 60.0
    gpu.run(20, A)
    gpu.at -= 60.0
    gpu.run(300, A)
    starts = [row.start - T0 for row in gpu.rows]
    assert starts == [0, 60, 120, 61, 2, 62, 122, 180, 240]
    assert {row.start % 60 for row in gpu.rows[-2:]} == {0} and gpu.rows[-1].seconds == pytest.approx(60.0)


@given(st.integers(0, 2**32 - 1))
def test_however_a_clock_is_set_the_rows_sum_to_the_meter(seed: int) -> None:
    rng, gpu = random.Random(seed), Gpu().begin(A)
    first_j = gpu.energy_j
    for _ in range(rng.randint(1, 12)):
        gpu.run(rng.randint(1, 150), A)
        gpu.at += rng.choice([-4000.0, -120.0, -61.0, -0.4, 0.0, 0.3, 30.0, 4000.0]) * rng.random()
        if rng.random() < 0.3:
            meter, rows = successor(gpu)
            gpu.meter, gpu.rows = meter._meters["GPU-1"], gpu.rows + rows
    gpu.rows += gpu.meter.flush()
    assert rows_energy_wh(gpu.rows) == pytest.approx((gpu.energy_j - first_j) / 3600, abs=1e-6)
    names = [(row.start, row.line, row.job_id) for row in gpu.rows]
    assert len(names) == len(set(names)) and all(row.seconds <= 60.0 for row in gpu.rows)


# --- restarts ---------------------------------------------------------------------------------------------------------


def successor(gpu: Gpu, boot_id: str = "b1") -> tuple[Meter, list[EnergyRow]]:
    """A meter restored from what another wrote down, through JSON as on the disk."""
    old, new = Meter("n1"), Meter("n2")
    old._meters["GPU-1"] = gpu.meter
    return new, new.restore(json.loads(json.dumps(old.state("b1"), allow_nan=False)), boot_id)


@pytest.mark.parametrize("away_s", [2.0, 20.0, 300.0])
def test_an_agent_that_restarts_loses_nothing(away_s: float) -> None:
    gpu = Gpu().begin({"a": 30, None: 10})
    gpu.run(15, {"a": 30, None: 10}, 300.0)
    gpu.run(15, A, 300.0)
    meter, rows = successor(gpu)
    assert rows == []
    gpu.meter = meter._meters["GPU-1"]
    gpu.pass_time(away_s, 350.0)
    gpu.begin(A)
    gpu.run(90, A)
    gpu.rows += gpu.meter.flush()
    assert rows_energy_wh(gpu.rows) * 3600 == pytest.approx(gpu.drawn_j, abs=1e-6)
    assert len({(row.start, row.line, row.job_id) for row in gpu.rows}) == len(gpu.rows)


def test_distrust_survives_a_restart() -> None:
    gpu = Gpu(counter_factor=0.5).begin(A)
    gpu.run(30, A)
    meter, _ = successor(gpu)
    assert list(meter.distrust(gpu.boot_s)) == ["GPU-1"]


def test_after_a_reboot_only_the_unfinished_minute_is_taken() -> None:
    gpu = Gpu().begin(A)
    gpu.run(30, A)
    meter, rows = successor(gpu, "b2")
    assert [(row.start, row.seconds, row.quality) for row in rows] == [(T0, pytest.approx(30.0), "partial")]
    assert rows[0].node_id == "n1", "as it was called when that was drawn"
    assert meter.idle_state("GPU-1") == "lost"
    gpu.boot_s = 10.0
    assert meter.feed("GPU-1", gpu.look(A, 400.0)) == []


def test_a_minute_in_which_the_machine_was_started_anew_gets_no_second_row_of_its_name() -> None:
    gpu = Gpu().begin(A)
    gpu.run(20, A)
    meter, rows = successor(gpu, "b2")
    gpu.pass_time(10.0, 0.0)  # back within the minute
    gpu.boot_s, began_j = 5.0, gpu.drawn_j
    for _ in range(120):
        rows += meter.feed("GPU-1", gpu.look(A, 400.0))
        gpu.pass_time(1.0, 400.0)
    assert [(row.start - T0, row.seconds) for row in rows] == [(0, 20.0), (1, 30.0), (60, 60.0)]
    assert rows_energy_wh(rows[1:]) * 3600 == pytest.approx(90 * 400.0) and gpu.drawn_j > began_j


def test_a_clock_that_ran_far_ahead_before_a_reboot_holds_no_minute_back() -> None:
    gpu = Gpu(at=T0 + 86_400.0).begin(A)
    gpu.run(90, A)
    meter, _ = successor(gpu, "b2")
    gpu.at, gpu.boot_s, rows = float(T0), 5.0, []
    for _ in range(121):
        rows += meter.feed("GPU-1", gpu.look(A, 400.0))
        gpu.pass_time(1.0, 400.0)
    assert [(row.start - T0, row.seconds) for row in rows] == [(-59, 1.0), (1, 60.0)]


@pytest.mark.parametrize("state", [{}, {"boot_id": "b1", "meters": [{}]}, {"boot_id": "b1", "meters": 3}])
def test_a_state_that_is_none_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Meter().restore(state, "b1")


def test_meters_of_two_gpus_stay_apart() -> None:
    meter, one, two = Meter(), Gpu(), Gpu()
    rows: list[EnergyRow] = []
    for _ in range(61):
        rows += meter.feed("GPU-1", one.look(A, 400.0)) + meter.feed("GPU-2", two.look(NOBODY, 50.0, util=0.0))
        one.pass_time(1.0, 400.0)
        two.pass_time(1.0, 50.0)
    assert {(row.uuid, row.line): row.mean_w for row in rows} == pytest.approx({("GPU-1", "job"): 400, ("GPU-2", "idle"): 50})
    assert (meter.idle_state("GPU-2"), meter.idle_state("GPU-9"), meter.distrust(0.0)) == ("deep_idle", "lost", {})
    assert meter.lost("GPU-1", one.boot_s) == [] and meter.idle_state("GPU-1") == "lost"


@given(st.integers(0, 2**32 - 1))
def test_the_rows_of_a_gpu_sum_to_its_meter(seed: int) -> None:
    """Whatever comes and goes, with gaps that the counter bridges: no joule is lost and none is invented, to 1e-6 Wh."""
    rng = random.Random(seed)
    gpu, who = Gpu(at=T0 + rng.random() * 60).begin(A), A
    first_j, last_w = gpu.energy_j, 400.0
    for _ in range(rng.randint(2, 200)):
        if rng.random() < 0.2:
            names = rng.sample(["a", "b", "c", None], rng.randint(0, 3))
            who = {name: rng.choice([None, rng.randint(0, 10**10)]) for name in names}
        power_w = rng.uniform(50.0, 690.0) if rng.random() < 0.1 else last_w
        gpu.pass_time(rng.choice([0.25, 1.0, 1.0, 1.1, 3.0, 70.0]), (last_w + power_w) / 2)
        gpu.rows += gpu.meter.feed(gpu.look(who, power_w, util=rng.choice([0.0, 0.5])))
        last_w = power_w
    gpu.rows += gpu.meter.flush()
    assert gpu.meter.check.why == ""
    assert rows_energy_wh(gpu.rows) == pytest.approx((gpu.energy_j - first_j) / 3600, abs=1e-6)
    assert all(row.seconds <= 60 and row.energy_wh >= 0 and row.start % 60 == 0 for row in gpu.rows)
    keys = [(row.start, row.line, row.job_id) for row in gpu.rows]
    assert len(keys) == len(set(keys))
