"""How long jobs of a group run, learned from those that ended. Pure; what a job's owner states is never overruled here."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil
from statistics import median

#: So many of a group's latest runs count.
LATEST = 50
#: Fewer runs say too little.
ENOUGH = 3
#: The share of runs that are no longer than the estimate of a job with a deadline.
CAUTIOUS = 0.9


@dataclass(frozen=True, slots=True)
class Estimate:
    """Run times of a group, s: half of its latest ``runs`` were no longer than ``median_s``, nine of ten than ``high_s``."""

    median_s: float
    high_s: float
    runs: int

    def for_job(self, has_deadline: bool) -> float:
        """The estimate for one job: the high one where being late would matter."""
        return self.high_s if has_deadline else self.median_s


def estimate(run_s: Iterable[float]) -> Estimate | None:
    """What the latest of some run times (oldest first, s) say; None when there are too few. Raises ValueError for one that is
    negative."""
    latest = list(run_s)[-LATEST:]
    if any(not 0 <= one < float("inf") for one in latest):
        raise ValueError(f"run times must be 0 s or more, and finite: {[one for one in latest if not one >= 0][:3]}")
    if len(latest) < ENOUGH:
        return None
    ordered = sorted(latest)
    return Estimate(median(ordered), ordered[ceil(CAUTIOUS * len(ordered)) - 1], len(ordered))


@dataclass(slots=True)
class Learned:
    """The latest run times of every group, and the estimate of each."""

    _runs: dict[str, deque[float]] = field(default_factory=dict)
    _estimates: dict[str, Estimate | None] = field(default_factory=dict)

    def note(self, group: str, run_s: float) -> None:
        """A job of ``group`` has succeeded after ``run_s`` seconds of run."""
        self._runs.setdefault(group, deque(maxlen=LATEST)).append(run_s)
        self._estimates.pop(group, None)

    def of(self, group: str) -> Estimate | None:
        """The estimate of a group; None while too little is known of it."""
        if group not in self._estimates:
            self._estimates[group] = estimate(self._runs.get(group, ()))
        return self._estimates[group]
