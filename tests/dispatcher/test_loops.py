"""The loop table, live and under virtual time."""

import threading
import time
from datetime import UTC, datetime, timedelta, tzinfo

import pytest
from apscheduler.schedulers import base as schedulers_base
from apscheduler.triggers import interval

from dispatcher import clock as clock_module
from dispatcher.clock import ReplayClock, SystemClock, VirtualClock
from dispatcher.loops import LiveLoops, Loop, run_virtual
from tests.helpers import wait_until

START = datetime(2026, 3, 1, tzinfo=UTC)


def test_virtual_time_runs_each_loop_at_its_period_and_jumps_in_between() -> None:
    seen: list[tuple[str, int]] = []
    clock = VirtualClock(START)

    def note(name: str) -> "Loop":
        def run(now: datetime) -> None:
            seen.append((name, int((now - START).total_seconds())))

        return Loop(name, 10.0 if name == "fast" else 25.0, run)

    run_virtual([note("fast"), note("slow")], clock, START + timedelta(seconds=50))
    assert [at for name, at in seen if name == "fast"] == [0, 10, 20, 30, 40, 50]
    assert [at for name, at in seen if name == "slow"] == [0, 25, 50]


def test_an_outside_event_is_a_moment_at_which_due_loops_run() -> None:
    clock = VirtualClock(START)
    moments: list[datetime] = []
    events = iter([START + timedelta(seconds=7)])
    run_virtual([Loop("a", 10.0, moments.append)], clock, START + timedelta(seconds=10), events=lambda: next(events, None))
    assert moments == [START, START + timedelta(seconds=10)]


def test_an_error_ends_a_simulation() -> None:
    def broken(_: datetime) -> None:
        raise ValueError("no")

    with pytest.raises(RuntimeError, match=r"loop broken.*ValueError: no"):
        run_virtual([Loop("broken", 1.0, broken)], VirtualClock(START), START + timedelta(seconds=1))


def test_a_live_loop_survives_an_error_and_tells_it() -> None:
    runs = 0

    def sometimes(_: datetime) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise ValueError("once")

    loop = Loop("sometimes", 3600.0, sometimes)
    live = LiveLoops([loop], SystemClock(), nudged={"sometimes": 0.0})
    live.start()
    try:
        wait_until(lambda: loop.last_error == "ValueError: once", 5, "the error to be told")
        live.nudge("sometimes")
        wait_until(lambda: loop.runs == 2 and loop.last_error is None, 5, "the next run")
    finally:
        live.stop()


def test_a_nudge_during_a_run_is_not_lost() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(_: datetime) -> None:
        inside.set()
        assert go_on.wait(5)

    loop = Loop("slow", 3600.0, slow)
    live = LiveLoops([loop], SystemClock(), nudged={"slow": 0.0})
    live.start()
    try:
        assert inside.wait(5)
        live.nudge("slow")
        live.nudge("slow")
        wait_until(loop._again.is_set, 5, "the nudge to be noted")
        go_on.set()
        wait_until(lambda: loop.runs >= 2, 5, "the run that the nudge asked for")
    finally:
        live.stop()
    assert loop.runs == 2


def test_loops_go_on_when_the_clock_of_the_machine_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    set_by_s = 0.0
    wall = time.time

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Clock":
            return cls.fromtimestamp(wall() + set_by_s, tz)

    for module in (schedulers_base, interval):  # where APScheduler asks for the time
        monkeypatch.setattr(module, "datetime", Clock)
    monkeypatch.setattr(clock_module, "datetime", Clock)
    monkeypatch.setattr(time, "time", lambda: wall() + set_by_s)
    loop = Loop("steady", 0.2, lambda _: None)
    live = LiveLoops([loop], SystemClock())
    live.start()
    try:
        wait_until(lambda: loop.runs >= 3, 10, "the loop to run")
        assert live.alarms(START) == []
        set_by_s = -7200.0
        wait_until(lambda: bool(live.alarms(START)), 10, "the change of the clock to be told")
        assert "back by 7200 s" in live.alarms(START)[0][2]
        runs = loop.runs
        wait_until(lambda: loop.runs >= runs + 3, 10, "the loop to go on")
    finally:
        live.stop()


def test_a_replay_goes_on_where_it_was_and_never_back() -> None:
    first = ReplayClock(START, 1000.0)
    then = first.now()
    again = ReplayClock(START, 1000.0, first.origin_wall)
    assert START <= then <= again.now() < START + timedelta(hours=1)
