"""Job traces: what each kind means, and that every fault is named and nothing is dropped unsaid."""

import gzip
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.backtest import traces
from dispatcher.backtest.rows import MAX_PROBLEMS
from dispatcher.errors import BadInput
from dispatcher.store import Attempt, Job, Request
from policies.world import Flexibility, JobState, Pausable
from tests.helpers import data_dir

T0 = datetime(2023, 3, 1, tzinfo=UTC)


def put(folder: Path, text: str, name: str = "jobs.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def problems_of(path: Path, **options: object) -> list[tuple[str, object, str]]:
    with pytest.raises(BadInput) as caught:
        traces.read(path, **options)  # type: ignore[arg-type]
    return caught.value.problems


@pytest.mark.parametrize(
    ("rows", "unit", "first_s"),
    [
        ("0,1.5,2\n8000,3,1\n", "hours", 5400.0),
        ("0,600,2\n604800,700,1\n", "seconds", 600.0),
        ("0,600,2\n900,4000,1\n", "seconds", 600.0),  # a short trace: nobody's typical job takes a month
    ],
)
def test_the_unit_of_time_is_detected_and_said(tmp_path: Path, rows: str, unit: str, first_s: float) -> None:
    trace = traces.read(put(tmp_path, "arrival_time,length,cpus\n" + rows))
    assert trace.length_s[0] == first_s
    assert any(f"taken to be in {unit}" in word and "--time-unit" in word for word in trace.said)


def test_the_unit_of_time_can_be_told(tmp_path: Path) -> None:
    path = put(tmp_path, "arrival_time,length,cpus\n0,600,2\n604800,700,1\n")
    trace = traces.read(path, time_unit="minutes")
    assert trace.length_s.tolist() == [36000.0, 42000.0]
    assert problems_of(path, time_unit="days")[0][2].startswith("must be one of seconds, minutes, hours")


@pytest.mark.parametrize("kind", [traces.GAIA, traces.PHILLY, traces.NEEDED, traces.COLUMNS])
def test_a_header_alone_has_no_jobs(tmp_path: Path, kind: tuple[str, ...]) -> None:
    assert problems_of(put(tmp_path, ",".join(kind) + "\n")) == [("jobs.csv", "", "has a header but no job")]


def test_rows_out_of_order_are_sorted_and_said(tmp_path: Path) -> None:
    trace = traces.read(put(tmp_path, "arrival_time,length,cpus\n500000,600,2\n100,0,1\n200,900,3\n\n"))
    assert trace.arrival_s.tolist() == [100.0, 200.0, 500000.0]
    assert list(trace.ids) == ["2", "3", "1"]
    assert any("not in order" in word for word in trace.said)
    assert any("of no length" in word for word in trace.said)
    assert any("blank" in word for word in trace.said)


def test_every_bad_row_is_named(tmp_path: Path) -> None:
    bad = ["1,-5,1", "2,nan,1", "inf,5,1", "4,x,1", "5,5,0", "6,5", "7,1_000,1"]
    path = put(tmp_path, "arrival_time,length,cpus\n0,600,1\n" + "\n".join(bad) + "\n")
    found = problems_of(path)
    where = " ".join(str(each[0]) for each in found)
    for line in range(3, 10):
        assert f"line {line}" in where
    assert ("jobs.csv line 3, column length", "-5", "must be a length of 0 or more") in found
    assert any(value == "6,5" and "2 fields" in remedy for _, value, remedy in found)


def test_numbers_that_no_job_has_are_refused(tmp_path: Path) -> None:
    path = put(tmp_path, "arrival_time,length,cpus\n0,1e300,1\n0,1,1e300\n1e15,5,1\n")
    found = problems_of(path, time_unit="seconds")
    assert [each[0] for each in found] == ["jobs.csv, job 3, arrival_s", "jobs.csv, job 1, length_s", "jobs.csv, job 2, gpus"]
    assert len(traces.read(put(tmp_path, "arrival_time,length,cpus\n0,1e300,1\n"), time_unit="seconds", clip_s=60)) == 1


def test_many_bad_rows_are_counted(tmp_path: Path) -> None:
    path = put(tmp_path, "arrival_time,length,cpus\n" + "0,oops,1\n" * 1000)
    found = problems_of(path)
    assert len(found) == MAX_PROBLEMS + 1
    assert found[-1][1] == 1000 - MAX_PROBLEMS


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "empty"),
        ("arrival_time,length,cpus\n", "no job"),
        ("when,length,cpus\n1,2,3\n", "no job trace"),
        ("arrival_time,length,length,cpus\n", "once only"),
        ('arrival_time,length,cpus\n1,"2,3\n', "not CSV"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, text: str, word: str) -> None:
    assert any(word in remedy for _, _, remedy in problems_of(put(tmp_path, text)))


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress(b"arrival_time,length,cpus\n" + b"0,600,1\n" * 5000)
    short = tmp_path / "short.csv.gz"
    short.write_bytes(packed[:-20])
    assert "ends too early" in problems_of(short)[0][2]
    latin = tmp_path / "latin.csv"
    latin.write_bytes(b"arrival_time,length,cpus\n0,\xff,1\n")
    assert "UTF-8" in problems_of(latin)[0][2]
    assert "cannot be read" in problems_of(tmp_path / "absent.csv")[0][2]


def test_fields_with_line_breaks_do_not_shift_lines(tmp_path: Path) -> None:
    text = 'id,submitted_at,length_s,gpus,team\na,2023-03-01T00:00Z,5,1,"x\ny"\nb,2023-03-01T00:00Z,-1,1,\n'
    assert problems_of(put(tmp_path, text))[0][0] == "jobs.csv line 4, column length_s"


PHILLY = "vc,arrival_s,num_gpus,duration_s_v100_est,job_type,total_steps\n"


def test_jobs_without_a_length_are_left_out_only_when_asked(tmp_path: Path) -> None:
    path = put(tmp_path, PHILLY + "a,0,1,100,m,5\nb,10,2,,m,5\na,20,8,90000,m,5\n")
    assert problems_of(path)[0][1] == 1
    trace = traces.read(path, skip_unknown=True, clip_s=3600)
    assert list(trace.ids) == ["a-1", "a-3"]
    assert trace.length_s.tolist() == [100.0, 3600.0]
    assert list(trace.texts["team"]) == ["a", "a"]
    assert any("1 of 3 jobs have no length and are left out" in word for word in trace.said)
    assert any("1 jobs longer than 1 h" in word for word in trace.said)


def test_our_own_format_refuses_what_is_not_clear(tmp_path: Path) -> None:
    path = put(
        tmp_path,
        "id,submitted_at,length_s,gpus,pausable,deadline_at\n"
        "a,2023-03-01T00:00,5,1,no,\n"
        "b,2023-03-01T00:00Z,5,1,maybe,\n"
        "b,2023-03-01T00:00Z,5,1,no,tomorrow\n"
        ",2023-03-01T00:00Z,5,1,no,\n",
    )
    found = problems_of(path)
    assert (
        "jobs.csv line 2, column submitted_at",
        "2023-03-01T00:00",
        "has no UTC offset; write 2023-03-01T00:00Z for UTC",
    ) in found
    assert any(each[0] == "jobs.csv line 3, column pausable" for each in found)
    assert any("stands in line 3 too" in each[2] for each in found)
    assert any(each[0] == "jobs.csv line 4, column deadline_at" for each in found)
    assert any("blank" in each[2] for each in found)
    strange = problems_of(put(tmp_path, "id,submitted_at,length_s,gpus,gpsu\n", "b.csv"))
    assert strange[0][1] == "gpsu"


@given(
    st.lists(
        st.tuples(st.floats(0, 1e8), st.floats(0, 1e6), st.floats(0.01, 1e4)),
        min_size=1,
        max_size=30,
    )
)
def test_what_is_written_is_what_is_read(rows: list[tuple[float, float, float]]) -> None:
    """No row is lost or changed, whatever the numbers."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        text = "arrival_time,length,cpus\n" + "".join(f"{a!r},{n!r},{c!r}\n" for a, n, c in rows)
        trace = traces.read(put(Path(folder), text), time_unit="seconds")
    order = sorted(range(len(rows)), key=lambda i: rows[i][0])
    assert [trace.arrival_s.tolist(), trace.length_s.tolist(), trace.gpus.tolist()] == [
        [rows[i][column] for i in order] for column in range(3)
    ]


def test_waits_by_queue() -> None:
    assert traces.waits_of("short:6h, long:24h") == {"short": 21600.0, "long": 86400.0}
    assert traces.waits_of("24h") == {"": 86400.0}
    assert traces.waits_of(None) == {}
    for wrong in ("short:", "short:6h,short:7h", ":6h", "soon"):
        with pytest.raises(BadInput):
            traces.waits_of(wrong)


def job(name: str, state: JobState, **fields: object) -> Job:
    flex = Flexibility(
        True, T0 + timedelta(hours=9), None, 7200.0, True, 4.0, 1600.0, Pausable.CHECKPOINT, 60.0, 120.0, ("a", "b")
    )
    base: dict[str, object] = {"state_since": T0, "submitted_at": T0, "attempt": 1}
    if state in (JobState.SUCCEEDED, JobState.FAILED):
        base["finished_at"] = T0 + timedelta(hours=5)
    return Job(name, Request("x"), flex, state, **(base | fields))  # type: ignore[arg-type]


def attempt(name: str, number: int, start_h: float, end_h: float, outcome: str) -> Attempt:
    begin, end = (T0 + timedelta(hours=hours) for hours in (start_h, end_h))
    return Attempt(name, number, "a", f"{name}-{number}", begin, started_at=begin, ended_at=end, outcome=outcome)


def test_our_own_history_comes_back(tmp_path: Path) -> None:
    runs = {
        "once": [attempt("once", 1, 0, 1, "succeeded")],
        "paused": [attempt("paused", 1, 0, 1, "stopped"), attempt("paused", 2, 3, 5, "succeeded")],
        "lost": [attempt("lost", 1, 0, 2, "lost"), attempt("lost", 2, 2, 3, "succeeded")],
        "failed": [attempt("failed", 1, 0, 2, "failed")],
    }
    jobs = [
        job("once", JobState.SUCCEEDED),
        job("paused", JobState.SUCCEEDED, pauses=1, progress_s=3000.0, energy_kwh=3.0),
        job("lost", JobState.SUCCEEDED),
        job("failed", JobState.FAILED),
        job("waiting", JobState.QUEUED),
    ]
    text, left = traces.export(jobs, lambda name: runs.get(name, []), {"a": 1.25})
    assert sorted(left) == [
        "1 jobs failed and are left out: their length is not known.",
        "1 jobs had not ended and are left out: their length is not known.",
    ]
    trace = traces.read(put(tmp_path, text))
    lengths = dict(zip(trace.ids, trace.length_s.tolist(), strict=True))
    # two hours of the last run, less what was lost on restarting, and what the checkpoint had saved
    assert lengths == {"once": 3600.0, "paused": 7200.0 - 120.0 + 3000.0, "lost": 3600.0}
    power = dict(zip(trace.ids, trace.numbers["power_w"].tolist(), strict=True))
    assert power == {"once": 1600.0, "paused": 800.0, "lost": 1600.0}
    assert trace.origin == T0
    assert set(trace.texts["regions"]) == {"a b"}


def test_a_million_rows(tmp_path: Path) -> None:
    """Memory is what grows first; time is measured in the benchmarks."""
    path = put(tmp_path, "arrival_time,length,cpus\n" + "".join(f"{i * 31},{i % 9000},{1 + i % 8}\n" for i in range(100_000)))
    tracemalloc.start()
    try:
        trace = traces.read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(trace) == 100_000
    assert peak < 60e6  # a tenth of a million rows, so a million stay far below 1 GB


@pytest.mark.parametrize(
    ("name", "jobs", "longest_h"),
    [("jobs_gaia_pai-100k.csv.gz", 99998, 71.14), ("jobs_gaia_pai_1k.csv.gz", 1000, 59.66)],
)
def test_the_published_traces(name: str, jobs: int, longest_h: float) -> None:
    trace = traces.read(data_dir() / "traces" / name)
    assert len(trace) == jobs
    assert float(trace.length_s.max()) / 3600 == pytest.approx(longest_h, abs=0.01)
    assert bool((np.diff(trace.arrival_s) >= 0).all())
