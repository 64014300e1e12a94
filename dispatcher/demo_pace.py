"""How fast the demonstration's clock may run on this machine, and whether the machine kept up with it. Pure.

A replay's clock does not wait: where Ray takes long to start a job, hours of the replay pass meanwhile, and deadlines are
missed that were easy. So a probe tells before the start how long it takes, and the clock is slowed down by as much.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

#: As fast as it goes: a day in two minutes.
FULL_SPEED = 720.0
#: Wall s that Ray takes to start a job on a machine that keeps up with that, as the plan counts with.
LAUNCH_S = 4.0
#: Wall s that the probe takes there: several jobs at once, from their submission to their end.
PROBE_S = 7.0
#: Slower than this the clock is not made: the demonstration would take a quarter of an hour.
MOST_STRETCH = 6.0
#: A launch, or an answer of the control plane, may take so many times as long as counted with before figures mean little; less
#: where deadlines were missed.
TOLERANCE, TOLERANCE_MISSED = 3.0, 1.5
#: Wall s within which the control plane answers on a machine that keeps up at full speed.
ANSWER_S = 2.0


@dataclass(frozen=True, slots=True)
class Pace:
    """``stretch`` is how many times slower the clock runs than FULL_SPEED; steps of jobs take as many times longer, so that the
    day stays the same. ``probe_s`` is what the probe took."""

    stretch: float
    probe_s: float

    @property
    def speed(self) -> float:
        """Seconds of the replay in one on the wall."""
        return FULL_SPEED / self.stretch

    @property
    def launch_s(self) -> float:
        """Wall s that a launch may take by the plan."""
        return LAUNCH_S * self.stretch


def pace_for(probe_s: float) -> Pace:
    """The pace of a machine on which the probe took so long."""
    return Pace(round(min(MOST_STRETCH, max(1.0, probe_s / PROBE_S)), 2), probe_s)


def launches_s(jobs: Iterable[Mapping[str, Any]], speed: float) -> list[float]:
    """Wall s from the launch of each attempt until it ran, from jobs as the API tells them."""
    return [
        (datetime.fromisoformat(one["started_at"]) - datetime.fromisoformat(one["launched_at"])).total_seconds() / speed
        for job in jobs
        for one in job.get("attempts") or ()
        if one.get("launched_at") and one.get("started_at")
    ]


def why_behind(pace: Pace, launches: Iterable[float], slowest_answer_s: float, misses: int = 0) -> str | None:
    """Why the machine could not keep up with the clock, as a sentence; None when it did. ``misses`` deadlines were missed."""
    reasons = []
    tolerance = TOLERANCE_MISSED if misses else TOLERANCE
    slow = [one for one in launches if one > tolerance * pace.launch_s]
    if slow:
        some = "a job was" if len(slow) == 1 else f"{len(slow)} jobs were"
        hours = max(slow) * pace.speed / 3600
        reasons.append(f"{some} started only after up to {max(slow):.0f} s, which is {hours:.1f} h of the replay")
    if slowest_answer_s > tolerance * ANSWER_S * pace.stretch:
        reasons.append(f"the control plane took up to {slowest_answer_s:.0f} s to answer")
    if pace.probe_s > PROBE_S * MOST_STRETCH:
        reasons.append(f"Ray took {pace.probe_s:.0f} s to run a job that does nothing")
    if not reasons:
        return None
    return (
        f"this machine could not keep up: {' and '.join(reasons)}. Missed deadlines and the figures say more of that than of "
        "gridshift; run it again when the machine is idle"
    )
