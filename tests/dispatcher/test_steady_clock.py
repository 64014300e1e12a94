"""By which times what is old may be dropped."""

from datetime import UTC, datetime, timedelta

import pytest

from dispatcher.clock import STEADY_S, Steady

START = datetime(2026, 3, 1, tzinfo=UTC)


class Played:
    """A clock that can be set, and a monotonic one beside it."""

    def __init__(self, speed: float = 1.0) -> None:
        self.speed, self.mono_s, self.ahead_s = speed, 1000.0, 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.mono_s * self.speed + self.ahead_s)

    def mono(self) -> float:
        return self.mono_s


@pytest.mark.parametrize("speed", [1.0, 720.0])
def test_an_hour_after_the_start_and_after_each_change(speed: float) -> None:
    clock = Played(speed)
    steady = Steady(clock, clock.mono)
    assert not steady(clock.now()), "a machine may start with a wrong clock"
    clock.mono_s += STEADY_S - 1
    assert not steady(clock.now())
    clock.mono_s += 1
    assert steady(clock.now())
    clock.ahead_s = 60 * 3600.0
    assert not steady(clock.now())
    clock.mono_s += 8
    clock.ahead_s = 0.0
    assert not steady(clock.now())
    clock.mono_s += STEADY_S - 1
    assert not steady(clock.now())
    clock.mono_s += 1
    assert steady(clock.now())


def test_a_time_that_was_read_while_the_clock_was_ahead_is_not_trusted_after_it() -> None:
    clock = Played()
    steady = Steady(clock, clock.mono)
    clock.mono_s += 2 * STEADY_S
    before = clock.now()
    wrong = clock.now() + timedelta(hours=60)
    clock.mono_s += 8  # a loop that was under way meanwhile
    assert not steady(wrong)
    assert steady(before) and steady(clock.now())


def test_a_clock_that_drifts_a_little_is_steady() -> None:
    clock = Played()
    steady = Steady(clock, clock.mono)
    for _ in range(100):
        clock.mono_s += 60.0
        clock.ahead_s += 0.05
        told = steady(clock.now())
    assert told
