"""Energy rows on disk: kept until acknowledged, whatever happens in the middle of a write, on a full disk, after two days."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dispatcher.agent import row_queue
from dispatcher.agent.devices import Reading
from dispatcher.agent.metering import EnergyRow, Look, Meter
from dispatcher.agent.row_queue import RowQueue, line_of, load_meter, row_of, save_meter

ROOT = Path(__file__).parents[2]
T0 = 1_800_000_000 // 60 * 60


def row(minute: int, job_id: str | None = "a", energy_wh: float = 0.1) -> EnergyRow:
    start = T0 + 60 * minute
    line = "idle" if job_id is None else "job"
    return EnergyRow(start, start + 60, "GPU-1", job_id, line, energy_wh, 60.0, "measured", "exclusive", 6.0, 0.0, None, 0.0)


def waiting(queue: RowQueue) -> list[int]:
    batch = queue.batch(limit=10**6)
    return [] if batch is None else [(one.start - T0) // 60 for one in batch[1]]


def test_a_row_survives_its_line() -> None:
    one = row(3, energy_wh=1 / 3)
    line = line_of(7, one)
    assert row_of(line) == (7, one) and line.count(b"\n") == 1


def test_a_line_with_any_byte_changed_or_cut_means_nothing() -> None:
    line = line_of(7, row(3))
    assert all(row_of(line[:length]) is None for length in range(len(line)))
    assert all(row_of(line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]) is None for at in range(len(line)))


def test_rows_wait_in_order_until_they_are_acknowledged(tmp_path: Path) -> None:
    queue = RowQueue(tmp_path / "q")
    assert queue.batch() is None and len(queue) == 0
    queue.append([row(0), row(0, None)])
    queue.append([row(1)])
    batch = queue.batch(limit=2)
    assert batch == (2, [row(0), row(0, None)]) and queue.batch(limit=2) == batch, "a batch that got no answer comes again"
    queue.acknowledge(2)
    assert queue.batch() == (3, [row(1)]) and len(queue) == 1
    queue.acknowledge(99)
    queue.acknowledge(1)
    assert len(queue) == 1, "numbers that were never given, or earlier ones, change nothing"
    queue.acknowledge(3)
    assert queue.batch() is None and len(queue) == 0


def test_a_successor_finds_what_waits_and_numbers_go_on(tmp_path: Path) -> None:
    first = RowQueue(tmp_path)
    first.append(row(minute) for minute in range(5))
    first.acknowledge(2)
    first.close()
    second = RowQueue(tmp_path)
    assert (waiting(second), len(second), second.told) == ([2, 3, 4], 3, [])
    second.append([row(9)])
    assert second.batch(limit=9) == (6, [row(2), row(3), row(4), row(9)])
    second.acknowledge(6)
    second.close()
    third = RowQueue(tmp_path)
    third.append([row(10)])
    assert third.batch() == (7, [row(10)])
    third.close()


def test_acknowledged_segments_leave_the_disk(tmp_path: Path) -> None:
    queue = RowQueue(tmp_path)
    queue.append(row(minute) for minute in range(200))
    assert len(list(tmp_path.glob("rows-*.log"))) == 4
    queue.acknowledge(130)
    assert len(list(tmp_path.glob("rows-*.log"))) == 2
    assert waiting(queue) == list(range(130, 200))
    queue.close()


def test_kill_in_the_middle_of_a_write_costs_that_row_alone(
    tmp_path: Path, started: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from dispatcher.agent import row_queue
from tests.agent.test_metering_queue import row
real, left = os.write, [4]
def write(handle, data):
    left[0] -= 1
    if left[0] == 0:
        real(handle, data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    return real(handle, data)
queue = row_queue.RowQueue(Path({str(tmp_path)!r}))
row_queue.os.write = write
queue.append([row(minute) for minute in range(9)])
"""
    assert started([sys.executable, "-c", code]).wait(timeout=60) == -signal.SIGKILL
    queue = RowQueue(tmp_path)
    assert waiting(queue) == [0, 1, 2] and "1 damaged lines" in queue.told[0]
    queue.append([row(20)])
    queue.close()
    assert waiting(RowQueue(tmp_path)) == [0, 1, 2, 20]


def test_damage_in_the_middle_of_a_file_costs_its_lines_alone(tmp_path: Path) -> None:
    queue = RowQueue(tmp_path)
    queue.append(row(minute) for minute in range(4))
    queue.close()
    (file,) = tmp_path.glob("rows-*.log")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + b"\0" * 40 + lines[1] + b"nonsense\n" + lines[2] + lines[3][:-3])
    assert waiting(RowQueue(tmp_path)) == [0, 2]
    (tmp_path / "acknowledged").write_text("?")
    again = RowQueue(tmp_path)
    assert waiting(again) == [0, 2] and any("waiting rows are sent again" in text for text in again.told)


def test_two_days_of_minutes_are_kept_and_the_oldest_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_queue, "MAX_MINUTES", 240)
    queue = RowQueue(tmp_path)
    for minute in range(400):
        queue.append([row(minute), row(minute, None)])
    left = waiting(queue)
    assert left[-1] == 399 and 180 <= len(set(left)) <= 240 and len(left) == 2 * len(set(left))
    assert queue.dropped == 800 - len(left) and "were dropped: 4 hours of rows wait already" in queue.told[0]
    assert sum(path.stat().st_size for path in tmp_path.glob("rows-*.log")) < 200_000
    queue.close()


def test_the_bound_stands_after_a_restart_and_a_wrong_clock_drops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_queue, "MAX_MINUTES", 120)
    queue = RowQueue(tmp_path)
    queue.append(row(minute) for minute in range(100))
    queue.append([row(10**7)])
    queue.close()
    assert queue.told == []
    again = RowQueue(tmp_path)
    again.append(row(minute) for minute in range(100, 150))
    assert again.dropped == 60 and waiting(again)[0] == 60
    again.close()


def test_many_gpus_are_bounded_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_queue, "MAX_BYTES", 40_000)
    monkeypatch.setattr(row_queue, "SEGMENT_BYTES", 10_000)
    queue = RowQueue(tmp_path)
    for _ in range(400):
        queue.append([row(0)])
    assert sum(path.stat().st_size for path in tmp_path.glob("rows-*.log")) <= 40_000
    assert queue.dropped > 0 and queue.dropped + len(waiting(queue)) == 400
    queue.close()


class Disk:
    """A disk that can be full: then a write gets half of its bytes down and fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self._write = os.write
        monkeypatch.setattr(row_queue.os, "write", self.write)

    def write(self, handle: int, data: bytes) -> int:
        if self.is_full:
            if len(data) > 20:
                return self._write(handle, data[:20])
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._write(handle, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_rows_that_a_full_disk_refuses_wait_in_memory_and_go_down_later(tmp_path: Path, disk: Disk) -> None:
    queue = RowQueue(tmp_path)
    queue.append([row(0)])
    disk.is_full = True
    queue.append([row(1), row(2)])
    queue.append([row(3)])
    assert queue.alarm is not None and "No space left" in queue.alarm and "3 wait in memory" in queue.alarm
    assert (waiting(queue), len(queue)) == ([0, 1, 2, 3], 4)
    disk.is_full = False
    queue.append([])
    assert queue.alarm is None
    queue.append([row(4)])
    queue.close()
    again = RowQueue(tmp_path)
    assert (waiting(again), again.told) == ([0, 1, 2, 3, 4], [])


def test_what_waits_in_memory_can_be_sent_and_acknowledged(tmp_path: Path, disk: Disk) -> None:
    queue = RowQueue(tmp_path)
    disk.is_full = True
    queue.append([row(0), row(1)])
    assert queue.batch() == (2, [row(0), row(1)])
    queue.acknowledge(2)
    assert queue.batch() is None


def test_memory_is_bounded_too_and_what_is_dropped_is_told(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_queue, "MAX_MEMORY_ROWS", 10)
    queue = RowQueue(tmp_path)
    disk.is_full = True
    queue.append(row(minute) for minute in range(25))
    assert waiting(queue) == list(range(15, 25)) and queue.dropped == 15
    assert queue.told == ["the oldest 15 energy rows were dropped: the disk takes none and memory is bounded"]


def test_a_folder_that_cannot_be_made_is_an_alarm_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "q").write_text("in the way")
    queue = RowQueue(tmp_path / "q" / "rows")
    queue.append([row(0)])
    assert queue.alarm is not None and waiting(queue) == [0]


def test_the_rows_of_a_gpus_minute_go_together(tmp_path: Path) -> None:
    queue = RowQueue(tmp_path)
    queue.append([row(0), row(0, None), row(1), row(1, "b"), row(1, None), row(2)])
    assert [(queue.batch(limit=limit) or (0,))[0] for limit in (1, 2, 3, 4, 5, 6, 9)] == [2, 2, 5, 5, 5, 6, 6]
    queue.acknowledge(2)
    assert (queue.batch(limit=1) or (0,))[0] == 5
    queue.close()


def test_rows_whose_time_has_not_come_hold_nothing_back(tmp_path: Path) -> None:
    queue = RowQueue(tmp_path)
    now_s = float(T0 + 5 * 60)
    queue.append([row(3), row(90), row(91), row(4), row(90, "b")])
    assert queue.batch(9, now_s) == (1, [row(3)])
    queue.acknowledge(1)
    batch = queue.batch(9, now_s)
    assert batch is not None and batch[1] == [row(4)]
    queue.acknowledge(batch[0])
    assert queue.batch(9, now_s) is None and len(queue) == 3
    queue.append([row(5)])
    queue.close()
    again = RowQueue(tmp_path)
    batch = again.batch(9, now_s + 60)
    assert batch is not None and batch[1] == [row(5)]
    again.acknowledge(batch[0])
    assert sorted(waiting(again)) == [90, 90, 91] and again.told == []
    batch = again.batch(9, now_s + 90 * 60)
    assert batch is not None and len(batch[1]) == 3, "their time has come"
    again.acknowledge(batch[0])
    again.append([row(60 * 24 * 400)])
    assert again.batch(9, now_s) is not None, "what nobody will ever take does not stay for ever"
    again.close()


# --- the meter's own state --------------------------------------------------------------------------------------------


def look(second: float) -> Look:
    return Look(
        Reading(T0 + second, 100 + second, 400.0, 400.0 * second, 700.0, 700.0, 60.0, 0.9, 0.5, ("idle",), None), {"a": 1}
    )


def test_a_meter_goes_on_from_its_file(tmp_path: Path) -> None:
    meter = Meter()
    for second in range(31):
        meter.feed("GPU-1", look(second))
    save_meter(tmp_path / "new", meter, "b1")
    again, rows, told = load_meter(tmp_path / "new", "b1", "n1", 1)
    assert (rows, told) == ([], None)
    rows = [made for second in range(31, 61) for made in again.feed("GPU-1", look(second))]
    assert [(made.job_id, made.seconds, made.mean_w) for made in rows] == [
        ("a", pytest.approx(60.0), pytest.approx(400.0)),
    ]
    _, rows, _ = load_meter(tmp_path / "new", "b2", "n1", 1)
    assert [(made.seconds, made.quality) for made in rows] == [(pytest.approx(30.0), "partial")]


@pytest.mark.parametrize("queued", [0, 1, 2])
def test_rows_are_queued_once_wherever_an_agent_is_killed_and_keep_the_name_they_were_made_under(
    tmp_path: Path, queued: int
) -> None:
    queue, meter = RowQueue(tmp_path), Meter("n1")
    queue.append([row(-1)])
    made = [made for second in range(61) for made in meter.feed("GPU-1", look(second))]
    made += [made for second in range(61, 121) for made in meter.feed("GPU-1", look(second))]
    save_meter(tmp_path, meter, "b1", made, queue.next_number)
    queue.append(made[:queued])
    queue.close()  # killed

    after = RowQueue(tmp_path)
    again, left, _ = load_meter(tmp_path, "b1", "n2", after.next_number)
    after.append(left)
    batch = after.batch()
    assert batch is not None and batch[1] == [row(-1), *made] and {one.node_id for one in made} == {"n1"}
    later = [one for second in range(121, 181) for one in again.feed("GPU-1", look(second))]
    assert [(one.start - T0, one.node_id) for one in later] == [(120, "n2")]
    after.close()


@pytest.mark.parametrize("boot_id", ["b1", "b2"])
def test_minutes_of_which_there_are_rows_are_not_told_again_from_an_older_state(tmp_path: Path, boot_id: str) -> None:
    """As after a disk that took no state for a while but took the rows, and a kill."""
    queue, meter = RowQueue(tmp_path), Meter("n1")
    for second in range(31):
        meter.feed("GPU-1", look(second))
    save_meter(tmp_path, meter, "b1", (), queue.next_number)
    queue.append([made for second in range(31, 190) for made in meter.feed("GPU-1", look(second))])
    queue.close()

    after = RowQueue(tmp_path)
    again, left, _ = load_meter(tmp_path, boot_id, "n1", after.next_number, after.told_until)
    assert left == []
    away = [look(second) for second in range(200, 301)]
    if boot_id != "b1":
        away = [replace(one, reading=replace(one.reading, boot_s=one.reading.at - T0 - 190)) for one in away]
    left += [made for one in away for made in again.feed("GPU-1", one)]
    after.append(left)
    batch = after.batch()
    assert batch is not None
    names = [(one.start - T0, one.line, one.job_id) for one in batch[1]]
    assert len(names) == len(set(names)) == 5
    joules = sum(one.energy_wh for one in batch[1]) * 3600
    assert joules == pytest.approx(400.0 * (300 if boot_id == "b1" else 280))
    after.close()


def test_a_state_older_than_rows_of_a_clock_that_was_ahead_is_a_gap_and_no_standstill(tmp_path: Path) -> None:
    meter = Meter("n1")
    for second in range(31):
        meter.feed("GPU-1", look(second))
    save_meter(tmp_path, meter, "b1")
    again, _, _ = load_meter(tmp_path, "b1", "n1", 1, {"GPU-1": T0 + 3600})
    rows = [made for second in range(40, 190) for made in again.feed("GPU-1", look(second))]
    assert [(made.start - T0, made.seconds) for made in rows] == [
        (1, pytest.approx(21.0)),
        (61, pytest.approx(60.0)),
        (121, pytest.approx(60.0)),
    ]


@pytest.mark.parametrize("text", ["", "{}", "null", '{"check": 1, "body": {"format": 1}}'])
def test_a_damaged_meter_file_is_told_and_not_used(tmp_path: Path, text: str) -> None:
    assert load_meter(tmp_path, "b1", "n1", 1)[2] is None, "none is no damage"
    (tmp_path / "meters.json").write_text(text)
    meter, rows, told = load_meter(tmp_path, "b1", "n1", 1)
    assert rows == [] and told is not None and "is damaged" in told
    assert meter.idle_state("GPU-1") == "lost"
