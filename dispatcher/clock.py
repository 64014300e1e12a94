"""Where time comes from. Decisions take ``now`` as an argument; only the shell asks a Clock.

A replay runs faster than the wall: its day may pass in two minutes. Loop periods, HTTP time-outs and grace periods of
processes are wall seconds; everything that a job or a signal speaks of is the clock's own time.
"""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """``now`` is aware UTC; ``speed`` is how many of its seconds pass in one second on the wall."""

    speed: float

    def now(self) -> datetime:
        """The present."""
        ...


class SystemClock:
    """The machine's clock."""

    speed = 1.0

    def now(self) -> datetime:
        """The present, aware UTC."""
        return datetime.now(UTC)


class ReplayClock:
    """Starts at ``start`` and runs ``speed`` times as fast as the machine's clock, whatever that is set to.

    ``origin_wall`` (seconds since the epoch) is the wall moment at which the replay stood at ``start``; a control plane
    that restarts passes the one it stored, so that the replay's time goes on and never jumps back.
    """

    def __init__(self, start: datetime, speed: float, origin_wall: float | None = None) -> None:
        self.start, self.speed = start, speed
        self.origin_wall = time.time() if origin_wall is None else origin_wall
        self._base = start + timedelta(seconds=(time.time() - self.origin_wall) * speed)
        self._mono = time.monotonic()

    def now(self) -> datetime:
        """The replay's present, aware UTC."""
        return self._base + timedelta(seconds=(time.monotonic() - self._mono) * self.speed)


#: What is old is dropped only once the clock has agreed with the monotonic one for so long, s; by more than STEP_S it was set.
STEADY_S, STEP_S = 3600.0, 1.0


class Steady:
    """Whether a time may be trusted with dropping what is older than it is kept: by a clock that is ahead for a moment, all of
    it is. It may where ``clock`` has run beside the monotonic clock for STEADY_S, since this was made at the earliest, and the
    time is not ahead of it. Thread-safe; calls may be seldom: a clock that was ahead in between did no harm."""

    def __init__(self, clock: Clock, mono: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._mono, self._lock = clock, mono, threading.Lock()
        self._offset_s, self._since = self._offset(), mono()

    def _offset(self) -> float:
        return self._clock.now().timestamp() - self._mono() * self._clock.speed

    def __call__(self, now: datetime) -> bool:
        """Whether what is old at ``now`` may be dropped."""
        with self._lock:
            before_s, self._offset_s = self._offset_s, self._offset()
            step_s, mono = STEP_S * max(1.0, self._clock.speed), self._mono()
            if abs(self._offset_s - before_s) > step_s:
                self._since = mono
            ahead_s = now.timestamp() - (self._offset_s + mono * self._clock.speed)
            return mono - self._since >= STEADY_S and ahead_s <= step_s


def always(_: datetime) -> bool:
    """In place of Steady where time is played."""
    return True


class VirtualClock:
    """Stands still until it is told to move; for simulation and tests."""

    speed = 1.0

    def __init__(self, start: datetime) -> None:
        self._now = start
        self._lock = threading.Lock()

    def now(self) -> datetime:
        """The virtual present, aware UTC."""
        with self._lock:
            return self._now

    def move_to(self, when: datetime) -> None:
        """Jump to ``when``; time never goes back."""
        with self._lock:
            self._now = max(self._now, when)

    def advance(self, seconds: float) -> datetime:
        """Move ``seconds`` ahead and return the new present."""
        with self._lock:
            self._now += timedelta(seconds=seconds)
            return self._now
