"""How far batch has to step aside for interactive serving beside it. Pure: times are monotonic seconds that callers give."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal


class Level(IntEnum):
    """What batch has to give; each level includes those below it."""

    CALM = 0
    HOLD = 1
    CAP = 2
    FREEZE = 3
    PAUSE = 4


#: Burns of the short and the long window from which on an objective is at risk, and the bad requests that takes.
SHORT_BURN, LONG_BURN, LEAST_BAD = 2.0, 1.0, 2
#: A gauge is judged by its readings of this long, s, and never by fewer than two.
GAUGE_S = 2.0
MOST_CALM_S = 300.0
FORGIVEN_S = 600.0
IGNORED_S = 60.0


@dataclass(frozen=True, slots=True)
class Objective:
    """An SLO: ``share`` of requests (above 0, below 1) must be within ``limit``, in the unit of what is measured (for an error
    rate, 1 - limit). None: a gauge that must stay at or below ``limit``."""

    name: str
    share: float | None
    limit: float

    def __post_init__(self) -> None:
        """Refuse a share that leaves no budget to burn."""
        if self.share is not None and not 0 < self.share < 1:
            raise ValueError(f"{self.name}: share must lie between 0 and 1, not {self.share}")


@dataclass(frozen=True, slots=True)
class Reading:
    """Requests within the limit and in all, both counted since the server began, or the ``value`` of a gauge."""

    at_s: float
    good: float | None = None
    total: float | None = None
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Risk:
    """How an objective stands. A gauge's burns are its last value over its limit."""

    state: Literal["met", "at_risk", "unknown"]
    short_burn: float
    long_burn: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Passed:
    """What came between two readings: requests in all and bad ones; of a gauge the seconds, and those above its limit."""

    total: float
    bad: float


@dataclass(slots=True)
class _Span:
    from_s: float
    to_s: float
    total: float
    bad: float


class SloWatch:
    """Burn rates of one objective over a short and a long window, as in Google's "The Site Reliability Workbook", chapter 5
    ("Alerting on SLOs", multiwindow, multi-burn-rate): the share of bad requests over the share that may be bad.

    Windows end at the last reading. They are empty after a start, and what there is, is judged. A total below the last one is a
    restart, counted from zero; give each series of a server its own watch, or sums whose members do not vanish.
    """

    def __init__(self, objective: Objective, stale_s: float = 10, short_s: float = 5, long_s: float = 60) -> None:
        """``stale_s`` without a reading makes the objective unknown."""
        self.objective = objective
        self._stale_s, self._short_s, self._long_s = stale_s, short_s, long_s
        self._spans: deque[_Span] = deque()
        self._values: deque[tuple[float, float]] = deque(maxlen=1000)
        self._last: Reading | None = None
        self._why = ""

    def add(self, reading: Reading) -> Passed | None:
        """Take a reading; one that is not newer than the last is dropped, one without usable figures counts as missing. Says
        what came since the one before; None where there is none. A gauge's reading stands for the time since the one before,
        where that is not stale."""
        if not math.isfinite(reading.at_s) or (self._last is not None and reading.at_s <= self._last.at_s):
            return None
        counted = self.objective.share is not None
        figures = (reading.good, reading.total) if counted else (reading.value,)
        if any(f is None or not math.isfinite(f) or (counted and f < 0) for f in figures):
            self.missing(reading.at_s, "a reading without a figure")
            return None
        passed = None
        if self.objective.share is None:
            assert reading.value is not None
            self._values.append((reading.at_s, reading.value))
            if self._last is not None and reading.at_s - self._last.at_s <= self._stale_s:
                seconds = reading.at_s - self._last.at_s
                passed = Passed(seconds, seconds if reading.value > self.objective.limit else 0.0)
        elif self._last is not None:
            passed = self._count(self._last, reading)
        self._last, self._why = reading, ""
        return passed

    def missing(self, at_s: float, why: str) -> None:
        """A reading could not be had at ``at_s``; told once what there is has become stale."""
        if self._last is None or at_s >= self._last.at_s:
            self._why = why

    def _count(self, last: Reading, new: Reading) -> Passed:
        assert last.good is not None and last.total is not None and new.good is not None and new.total is not None
        good, total = (new.good, new.total) if new.total < last.total else (new.good - last.good, new.total - last.total)
        if good < 0 or total < 0:  # only a part went backwards: what happened since cannot be told
            good = total = 0.0
        bad = max(0.0, total - good)
        # Readings that come fast share an entry, so that memory is bounded by time.
        if self._spans and new.at_s - self._spans[-1].from_s < self._short_s / 100:
            tail = self._spans[-1]
            tail.to_s, tail.total, tail.bad = new.at_s, tail.total + total, tail.bad + bad
        else:
            self._spans.append(_Span(last.at_s, new.at_s, total, bad))
        while self._spans and self._spans[0].to_s <= new.at_s - self._long_s:
            self._spans.popleft()
        return Passed(total, bad)

    def _window(self, end_s: float, window_s: float) -> tuple[float, float]:
        """Requests and bad requests; what came between two readings is spread evenly between them."""
        total = bad = 0.0
        for span in self._spans:
            inside = (span.to_s - max(span.from_s, end_s - window_s)) / (span.to_s - span.from_s)
            if inside > 0:
                total, bad = total + inside * span.total, bad + inside * span.bad
        return total, bad

    def risk(self, now_s: float) -> Risk:
        """How the objective stands now."""
        name, last = self.objective.name, self._last
        if last is None or now_s - last.at_s > self._stale_s:
            heard = "nothing heard yet" if last is None else f"nothing heard for {now_s - last.at_s:.0f} s"
            return Risk("unknown", 0.0, 0.0, f"{name} is unknown: {heard}{': ' + self._why if self._why else ''}")
        if self.objective.share is None:
            return self._gauge(last.at_s)
        may_be_bad = 1 - self.objective.share
        short_total, short_bad = self._window(last.at_s, self._short_s)
        long_total, long_bad = self._window(last.at_s, self._long_s)
        if long_total <= 0:
            return Risk("met", 0.0, 0.0, f"{name} is met: no requests")
        short = short_bad / short_total / may_be_bad if short_total > 0 else 0.0
        long = long_bad / long_total / may_be_bad
        at_risk = short >= SHORT_BURN and long >= LONG_BURN and short_bad >= LEAST_BAD - 1e-6
        sentence = (
            f"{name} is {'at risk' if at_risk else 'met'}: p{100 * self.objective.share:g} within {self.objective.limit:g}, "
            f"burning {short:.1f} times its budget over {self._short_s:g} s and {long:.1f} times over {self._long_s:g} s"
        )
        return Risk("at_risk" if at_risk else "met", short, long, sentence)

    def _gauge(self, end_s: float) -> Risk:
        limit = self.objective.limit
        values = list(self._values)
        # Readings that come slower than that are judged by the last two.
        judged = [v for i, (at, v) in enumerate(values) if at >= end_s - GAUGE_S or i >= len(values) - 2]
        at_risk = len(judged) >= 2 and min(judged) > limit
        burn = judged[-1] / limit if limit > 0 else 0.0
        told = f"{self.objective.name} is {'at risk' if at_risk else 'met'}: {judged[-1]:g}, limit {limit:g}"
        return Risk("at_risk" if at_risk else "met", burn, burn, told)


@dataclass(frozen=True, slots=True)
class Batch:
    """Batch jobs on the same GPUs: how many run, and how many of them could still be capped, frozen or paused."""

    running: int
    cappable: int
    freezable: int
    pausable: int


@dataclass(frozen=True, slots=True)
class GuardState:
    """The level asked of batch, since when, and why. ``unmet_alone``: the SLO is at risk without any batch beside it."""

    level: Level
    since_s: float
    sentence: str
    unmet_alone: bool


class Guard:
    """Turns risks into a level: up at once and then a level each ``step_s``, down a level each ``restore_s`` after ``calm_s``
    in which all was met. Risk that returns once batch came back doubles the calm asked for (to 300 s, for 10 min of calm)."""

    def __init__(
        self,
        when_unknown: Literal["hold", "cap", "pause"],
        when_unmet: Literal["run", "wait"],
        step_s: float = 1.0,
        calm_s: float = 30.0,
        restore_s: float = 10.0,
        alone_s: float = 120.0,
    ) -> None:
        """``when_unmet``: whether batch runs or waits while the SLO is at risk for ``alone_s`` without batch."""
        self._ceiling = {"hold": Level.HOLD, "cap": Level.CAP, "pause": Level.PAUSE}[when_unknown]
        self._when_unmet = when_unmet
        self._step_s, self._restore_s, self._alone_s = step_s, restore_s, alone_s
        self._normal_calm_s = self._calm_s = calm_s
        self._now_s = self._since_s = self._moved_s = -math.inf
        self._level = Level.CALM
        self._met_since_s: float | None = None
        self._alone_since_s: float | None = None
        self._unmet_alone = self._came_down = False

    def step(self, now_s: float, risks: Sequence[Risk], batch: Batch) -> GuardState:
        """The level from now on; a clock that goes backwards stands still."""
        if self._now_s == -math.inf:
            self._since_s = now_s
        now_s = self._now_s = max(now_s, self._now_s)
        worst = [r for r in risks if r.state == "at_risk"] or [r for r in risks if r.state == "unknown"]
        state = worst[0].state if worst else "met"
        told = "; ".join(r.sentence for r in worst or risks) or "no objective is set"
        if state != "met":
            self._met_since_s = None
        alone = state == "at_risk" and batch.running <= 0
        self._alone_since_s = (now_s if self._alone_since_s is None else self._alone_since_s) if alone else None
        if self._alone_since_s is not None and now_s - self._alone_since_s >= self._alone_s:
            self._unmet_alone = True
        if state == "met":
            self._down(now_s)
        elif self._unmet_alone:
            self._move(now_s, Level.CALM if self._when_unmet == "run" else Level.HOLD)
        else:
            if state == "at_risk" and self._came_down:
                self._calm_s = max(self._calm_s, min(2 * self._calm_s, MOST_CALM_S))
                self._came_down = False
            self._up(now_s, batch, Level.PAUSE if state == "at_risk" else self._ceiling)
        return GuardState(self._level, self._since_s, self._sentence(now_s, state, told, batch), self._unmet_alone)

    def _move(self, now_s: float, level: Level) -> None:
        if level != self._level:
            self._level, self._since_s, self._moved_s = level, now_s, now_s

    def _up(self, now_s: float, batch: Batch, ceiling: Level) -> None:
        gives = {Level.HOLD: 1, Level.CAP: batch.cappable, Level.FREEZE: batch.freezable, Level.PAUSE: batch.pausable}
        left = [level for level, count in gives.items() if self._level < level <= ceiling and count > 0]
        if left and (self._level == Level.CALM or now_s - self._moved_s >= self._step_s - 1e-9):
            self._move(now_s, left[0])

    def _down(self, now_s: float) -> None:
        if self._met_since_s is None:
            self._met_since_s = now_s
        calm_s = now_s - self._met_since_s
        if calm_s >= self._calm_s:
            self._unmet_alone = False
            if self._level > Level.CALM and now_s - self._moved_s >= self._restore_s:
                self._move(now_s, Level(self._level - 1))
                self._came_down = True
        if calm_s >= FORGIVEN_S:
            self._calm_s, self._came_down = self._normal_calm_s, False

    def _sentence(self, now_s: float, state: str, told: str, batch: Batch) -> str:
        asked = {
            Level.CALM: "batch runs freely",
            Level.HOLD: "no batch starts",
            Level.CAP: "batch is capped as far as its tiers accept",
            Level.FREEZE: "batch is frozen",
            Level.PAUSE: "batch is asked for checkpoints",
        }[self._level]
        if self._unmet_alone and state != "met":
            kept = "so batch is not kept away" if self._when_unmet == "run" else "and batch waits all the same"
            return f"{asked}: {told}; not met even without batch, {kept}"
        if state == "met" and self._level > Level.CALM and self._met_since_s is not None:
            return f"{asked}: {told}; calm for {now_s - self._met_since_s:.0f} s of {self._calm_s:.0f} s"
        if self._level == Level.PAUSE and batch.running > 0 and now_s - self._since_s >= IGNORED_S:
            return f"{asked}: {told}; {batch.running} still running {now_s - self._since_s:.0f} s after they were asked"
        return f"{asked}: {told}"
