"""The demonstration's clock goes by what the machine can, and it says so where the machine could not keep up."""

import io
from typing import Any, cast

import pytest
from rich.console import Console

from dispatcher import demo
from dispatcher.demo_pace import FULL_SPEED, LAUNCH_S, MOST_STRETCH, PROBE_S, Pace, launches_s, pace_for, why_behind
from dispatcher.errors import GridshiftError
from dispatcher.local_ray import LocalRay


@pytest.mark.parametrize(
    ("probe_s", "stretch"), [(3.0, 1.0), (PROBE_S, 1.0), (PROBE_S * 2, 2.0), (PROBE_S * 100, MOST_STRETCH)]
)
def test_the_clock_is_slowed_down_by_what_the_probe_took(probe_s: float, stretch: float) -> None:
    pace = pace_for(probe_s)
    assert (pace.stretch, pace.speed, pace.launch_s) == (stretch, FULL_SPEED / stretch, LAUNCH_S * stretch)


def attempt(launched: str, started: str | None) -> dict[str, Any]:
    return {"launched_at": f"2026-01-14T{launched}:00+00:00", "started_at": started and f"2026-01-14T{started}:00+00:00"}


def test_launches_are_told_in_seconds_of_the_wall() -> None:
    jobs = [{"attempts": [attempt("06:00", "07:00"), attempt("08:00", None)]}, {"attempts": [attempt("05:00", "05:12")]}, {}]
    assert launches_s(jobs, 720.0) == [5.0, 1.0]


@pytest.mark.parametrize(
    ("pace", "launches", "answer_s", "said"),
    [
        (Pace(1.0, 5.0), [4.0, 8.0], 1.0, None),
        (Pace(3.0, 21.0), [20.0], 10.0, None),
        (Pace(1.0, 5.0), [], 1.0, None),
        (Pace(1.0, 5.0), [4.0, 15.0], 1.0, "a job was started only after up to 15 s, which is 3.0 h of the replay"),
        (Pace(1.0, 5.0), [4.0], 9.0, "the control plane took up to 9 s to answer"),
        (Pace(6.0, 80.0), [4.0], 1.0, "Ray took 80 s to run a job that does nothing"),
    ],
)
def test_a_machine_that_could_not_keep_up_is_told_of(
    pace: Pace, launches: list[float], answer_s: float, said: str | None
) -> None:
    told = why_behind(pace, launches, answer_s)
    if launches == [4.0, 8.0]:
        assert why_behind(pace, launches, answer_s, misses=1) is not None, "less counts where deadlines are missed"
    assert (
        told is None if said is None else told is not None and said in told and "run it again when the machine is idle" in told
    )


class Head:
    """A local Ray that starts at its ``works_at``-th try."""

    def __init__(self, works_at: int) -> None:
        self.works_at, self.tries = works_at, 0

    def start(self) -> None:
        self.tries += 1
        if self.tries < self.works_at:
            raise GridshiftError("the local Ray 'north' ended while starting: this machine is too busy")


def test_a_cluster_that_a_busy_machine_did_not_start_is_tried_once_more_and_that_is_said() -> None:
    out = io.StringIO()
    heads = [Head(1), Head(2)]
    demo.start_all(cast(list[LocalRay], heads), Console(file=out, width=200))
    assert [head.tries for head in heads] == [1, 2] and "too busy; trying once more, alone" in out.getvalue()
    with pytest.raises(GridshiftError, match="too busy"):
        demo.start_all(cast(list[LocalRay], [Head(3)]), Console(file=out))


def test_a_pipe_gets_a_line_for_each_phase() -> None:
    out = io.StringIO()
    say = Console(file=out, width=200)
    with demo.phase(say, "starting ..."):
        pass
    now_s = [100.0]
    teller = demo.Teller(say, clock=lambda: now_s[0])
    for at_s in (100.0, 105.0, 116.0, 140.0):
        now_s[0] = at_s
        teller.look({"now": "2026-01-14T06:00:00+00:00", "counts": {"running": 2, "queued": 3, "failed": 0}})
    lines = out.getvalue().splitlines()
    assert lines[0] == "starting ..."
    assert lines[1:] == [f"{seconds:4} s  Wed 06:00Z: 2 running, 3 queued" for seconds in (0, 16, 40)]


def outcome(says: str | None) -> dict[str, Any]:
    totals = dict.fromkeys(("energy_kwh", "cost", "cost_run_now", "carbon_kg", "carbon_kg_run_now"), 1.0)
    machine = {"kept_up": says is None, "says": says}
    return {"jobs": [], "totals": {**totals, "deadline_misses": 9}, "machine": machine}


def test_the_end_says_when_the_figures_mean_little() -> None:
    out = io.StringIO()
    demo.show(outcome("this machine could not keep up"), Console(file=out, width=200))
    assert out.getvalue().splitlines()[-1].strip() == "this machine could not keep up"
    out = io.StringIO()
    demo.show(outcome(None), Console(file=out, width=200))
    assert out.getvalue().splitlines()[-1].startswith("missed deadlines")
