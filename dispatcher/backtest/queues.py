"""Jobs whose time has come and that wait for room, by region, so that freed room finds the most urgent one that fits at once.

Jobs of one size stand in one line, in order of urgency: a region with thousands of waiting jobs has few sizes. It knows nothing
of why a job waits; a line is searched lazily, and entries of jobs that wait no more are dropped when they come up.
"""

import heapq
from datetime import datetime
from typing import Generic, NamedTuple, Protocol, TypeVar

from policies.room import Room

Urgency = tuple[bool, int, datetime, str]


class Waits(Protocol):
    """What a waiting job is to a queue: ``ticket`` is the number of its present wait, 0 when it does not wait."""

    ticket: int


W = TypeVar("W", bound=Waits)


class Size(NamedTuple):
    """All that matters of a job for whether it fits."""

    gpus: float
    power_w: float
    gpu_type: str | None
    gated: bool
    lead_s: float


class Lines(Generic[W]):
    """The waiting jobs of one region."""

    def __init__(self) -> None:
        self._lines: dict[Size, list[tuple[Urgency, int, W]]] = {}

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, size: Size, urgency: Urgency, job: W) -> None:
        """Let a job wait here, with its present ticket."""
        heapq.heappush(self._lines.setdefault(size, []), (urgency, job.ticket, job))

    def first_fitting(self, room: Room) -> tuple[Urgency, W] | None:
        """The most urgent job that has room now; it stays in line."""
        best: tuple[Urgency, int, W] | None = None
        for size, line in list(self._lines.items()):
            while line and line[0][2].ticket != line[0][1]:
                heapq.heappop(line)
            if not line:
                del self._lines[size]
                continue
            if (best is None or line[0][0] < best[0]) and room.fits(
                size.gpus, size.power_w, gpu_type=size.gpu_type, gated=size.gated, lead_s=size.lead_s
            ):
                best = line[0]
        return None if best is None else (best[0], best[2])
