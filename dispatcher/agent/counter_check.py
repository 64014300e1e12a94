"""Whether a GPU's energy counter can be believed, judged against the power readings beside it: pure, fed one stretch at a time.

Drivers are known whose counter stands still, leaps, or counts another chip's energy as well. It does not know which of the two
is right when they differ; the power reading is then preferred, because limits and breakers go by power.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

#: Readings over which counter and integral are compared, s.
CHECK_WINDOW_S = 60.0
#: Less than this says nothing: both sides lag by about a second at each end.
CHECK_MIN_S = 20.0
#: Counter and integral may differ by this share of the larger.
AGREE_SHARE = 0.2
#: Below this mean draw, W, a difference means little, and a counter may well stand still.
DRAW_MIN_W = 5.0
#: A counter that has not moved for so long in spite of a draw is stuck, s.
STUCK_S = 10.0
#: A counter that rises faster than this multiple of anything the GPU was seen or allowed to draw has jumped.
JUMP_FACTOR = 2.0
#: An unreliable counter is trusted again after this long without an objection, s.
DISTRUST_S = 60.0


@dataclass(frozen=True)
class Step:
    """One stretch between two readings, as the counter check sees it."""

    end_boot_s: float
    duration_s: float
    counter_j: float
    integral_j: float


class CounterCheck:
    """Whether a GPU's energy counter can be believed: it moves with the draw, never back, never faster than possible."""

    def __init__(self) -> None:
        self.distrusted_until_s = -math.inf
        self.why = ""
        self._steps: deque[Step] = deque()
        self._still_s = 0.0
        self._still_j = 0.0

    def is_reliable(self, boot_s: float) -> bool:
        """Whether nothing has spoken against it lately."""
        return boot_s >= self.distrusted_until_s

    def take(self, boot_s: float, duration_s: float, counter_j: float, integral_j: float | None, ceiling_w: float) -> bool:
        """Judge one stretch; False when its counter figure is impossible in itself. ``ceiling_w``: the most that was seen or
        allowed."""
        if counter_j < 0:
            return self._object(boot_s, f"it went back by {-counter_j:.0f} J")
        if counter_j > JUMP_FACTOR * ceiling_w * max(duration_s, 1.0):
            return self._object(boot_s, f"it jumped by {counter_j:.0f} J in {duration_s:.1f} s")
        if integral_j is None:
            return True
        self._still_s, self._still_j = (0.0, 0.0) if counter_j > 0 else (self._still_s + duration_s, self._still_j + integral_j)
        if self._still_s >= STUCK_S and self._still_j >= DRAW_MIN_W * self._still_s:
            self._object(boot_s, f"it stood still for {self._still_s:.0f} s while {self._still_j:.0f} J were drawn")
        self._steps.append(Step(boot_s, duration_s, counter_j, integral_j))
        while self._steps[0].end_boot_s <= boot_s - CHECK_WINDOW_S:
            self._steps.popleft()
        span_s = math.fsum(step.duration_s for step in self._steps)
        counted = math.fsum(step.counter_j for step in self._steps)
        drawn = math.fsum(step.integral_j for step in self._steps)
        larger = max(counted, drawn)
        if span_s >= CHECK_MIN_S and larger >= DRAW_MIN_W * span_s and abs(counted - drawn) > AGREE_SHARE * larger:
            self._object(boot_s, f"it says {counted:.0f} J where power over {span_s:.0f} s makes {drawn:.0f} J")
        return True

    def _object(self, boot_s: float, why: str) -> bool:
        self.distrusted_until_s, self.why = boot_s + DISTRUST_S, why
        return False
