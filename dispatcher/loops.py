"""The table of loops that drive everything: APScheduler runs it live, a virtual clock runs it in simulation.

A loop is a name, a period and a function of ``now``. This module knows nothing of what the functions do.
"""

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler

from dispatcher.clock import Clock, SystemClock, VirtualClock

log = logging.getLogger(__name__)

#: A nudged loop rests this many times as long as its last run took.
REST = 4.0
#: The wall clock is set, and does not only drift, where it moves by more than this against the monotonic one between two looks.
CLOCK_SET_S = 1.0
#: Seconds between two looks at the clocks, and for which a clock that was set is told of.
LOOK_S, TELL_S = 1.0, 600.0


@dataclass
class Loop:
    """One row of the table. ``period_s`` is wall seconds when live and clock seconds in simulation. ``run`` gets ``now``."""

    name: str
    period_s: float
    run: Callable[[datetime], None]
    runs: int = 0
    last_run_at: datetime | None = None
    last_run_mono: float | None = None
    last_s: float = 0.0
    last_error: str | None = None
    failing_since: datetime | None = None
    _again: threading.Event = field(default_factory=threading.Event, repr=False)
    _busy: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def once(self, clock: Clock) -> None:
        """Run now; a call that comes while it runs makes it run once more instead of being lost."""
        self._again.set()
        while self._again.is_set() and self._busy.acquire(blocking=False):
            try:
                self._again.clear()
                self._run(clock)
            finally:
                self._busy.release()

    def _run(self, clock: Clock) -> None:
        started = time.perf_counter()
        self.last_run_mono = time.monotonic()
        now = clock.now()
        try:
            self.run(now)
            self.last_error = self.failing_since = None
        except Exception as error:
            if self.last_error is None:
                log.exception("loop %s failed", self.name)
                self.failing_since = now
            self.last_error = f"{type(error).__name__}: {error}"
        self.runs += 1
        self.last_run_at = now
        self.last_s = time.perf_counter() - started


class LiveLoops:
    """Runs a table under APScheduler; ``nudge`` runs a loop between its periods."""

    def __init__(self, loops: Sequence[Loop], clock: Clock, nudged: Mapping[str, float] | None = None) -> None:
        """``nudged`` has the loops that may be nudged, with the wall seconds within which nudges share one run, so that a
        flood of submissions does not become a flood of runs."""
        self.loops, self._clock = list(loops), clock
        pool = ThreadPoolExecutor(max_workers=len(self.loops) + 2)
        self._scheduler = BackgroundScheduler(executors={"default": pool}, timezone="UTC", daemon=True)
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        self._stopping = threading.Event()
        self._clock_was_set: tuple[float, float] | None = None
        self._watch = threading.Thread(target=self._watch_clock, name="clock-watch", daemon=True)
        self._gaps = dict(nudged or {})
        self._wake = {name: threading.Event() for name in self._gaps}
        self._nudgers = [
            threading.Thread(target=self._serve_nudges, args=[loop], name=f"nudge-{loop.name}", daemon=True)
            for loop in self.loops
            if loop.name in self._wake
        ]

    def start(self) -> None:
        """Start every loop, the first run of each at once."""
        for loop in self.loops:
            self._scheduler.add_job(
                loop.once,
                "interval",
                seconds=loop.period_s,
                args=[self._clock],
                id=loop.name,
                max_instances=2,
                coalesce=True,
                misfire_grace_time=None,
                next_run_time=SystemClock().now(),
            )
        self._scheduler.start()
        for thread in [*self._nudgers, self._watch]:
            thread.start()

    def nudge(self, name: str) -> None:
        """Run a loop as soon as it can; cheap, from any thread."""
        self._wake[name].set()

    def alarms(self, _: datetime) -> list[tuple[str, str | None, str]]:
        """(key, region, sentence) of a wall clock that was set a short while ago."""
        by_s, mono = self._clock_was_set or (0.0, -math.inf)
        if time.monotonic() - mono > TELL_S:
            return []
        how = f"{'ahead' if by_s > 0 else 'back'} by {abs(by_s):.0f} s"
        return [("clock", None, f"this machine's clock was set {how}: times noted around then are off by as much")]

    def _watch_clock(self) -> None:
        """APScheduler sleeps until times of the wall clock: where that is set back, loops would stand still for as long."""
        offset_s = time.time() - time.monotonic()
        while not self._stopping.wait(LOOK_S):
            before_s, offset_s = offset_s, time.time() - time.monotonic()
            if abs(offset_s - before_s) <= CLOCK_SET_S:
                continue
            log.error("the clock of this machine was set by %+.1f s", offset_s - before_s)
            self._clock_was_set = (offset_s - before_s, time.monotonic())
            for loop in self.loops:
                with contextlib.suppress(JobLookupError):  # it is being shut down
                    self._scheduler.modify_job(loop.name, next_run_time=SystemClock().now())

    def _serve_nudges(self, loop: Loop) -> None:
        wake = self._wake[loop.name]
        while not self._stopping.is_set():
            wake.wait()
            wake.clear()
            if not self._stopping.is_set():
                loop.once(self._clock)
                # under a flood of nudges a loop still leaves most of its time to others
                self._stopping.wait(max(self._gaps[loop.name], REST * loop.last_s))

    def stop(self, limit_s: float = 10.0) -> None:
        """Start no more runs, and let those under way finish for up to ``limit_s``: what they were doing is in the store."""
        self._stopping.set()
        for wake in self._wake.values():
            wake.set()
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)
        deadline = time.monotonic() + limit_s
        for loop in self.loops:
            if loop._busy.acquire(timeout=max(0.0, deadline - time.monotonic())):
                loop._busy.release()
            else:
                log.warning("loop %s did not finish within %g s", loop.name, limit_s)


def run_virtual(
    loops: Sequence[Loop], clock: VirtualClock, until: datetime, *, events: Callable[[], datetime | None] | None = None
) -> None:
    """Run a table under virtual time: jump to the next due loop or outside event, run what is due, until ``until``.

    ``events`` tells when something outside happens next (a simulated cluster's next change), or None. An error in a loop is
    raised: a simulation must not go on over it.
    """
    due = {loop.name: clock.now() for loop in loops}
    while clock.now() < until:
        soonest = min(due.values())
        outside = events() if events is not None else None
        when = min(soonest, outside) if outside is not None and outside > clock.now() else soonest
        clock.move_to(min(when, until))
        now = clock.now()
        for loop in loops:
            if due[loop.name] <= now:
                loop.once(clock)
                if loop.last_error is not None:
                    raise RuntimeError(f"loop {loop.name} at {now.isoformat()}: {loop.last_error}")
                due[loop.name] = now + timedelta(seconds=loop.period_s)
