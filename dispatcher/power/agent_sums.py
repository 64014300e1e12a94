"""What the agents say a place's GPUs draw together, remembered for as long as a site meter may lag behind.

A sum that is not complete (a node is silent, a GPU unreadable) is none at all. It knows no meters.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from dispatcher.power.hub import NodeLive
from dispatcher.power.meter_values import Piece, mean_w

#: A region, and one of its branches or all of it.
Place = tuple[str, str | None]

#: Sums of a place that are remembered: eleven hours of one every five seconds.
_KEPT = 8000
#: A sum holds until the next, but not for longer than this, seconds.
_HOLDS_S = 15.0


@dataclass(frozen=True, slots=True)
class AgentsDraw:
    """The sum of the GPUs of a place, W; ``simulated`` when any of them is played by the simulated driver."""

    power_w: float
    simulated: bool = False


def draw_of(nodes: Iterable[NodeLive], region: str, branch: str | None) -> AgentsDraw | None:
    """What the GPUs of a region, or of one of its branches, draw now; None while any of them is unknown, or none is known."""
    here = [node for node in nodes if node.region == region and (branch is None or node.branch == branch)]
    powers = [gpu.power_w if node.connected else None for node in here for gpu in node.gpus]
    known = [power_w for power_w in powers if power_w is not None]
    if not known or len(known) < len(powers) or not all(node.connected for node in here):
        return None
    return AgentsDraw(sum(known), any(node.simulated for node in here))


class AgentSums:
    """Sums by place. Thread-safe."""

    def __init__(self, agents: Callable[[str, str | None], AgentsDraw | None]) -> None:
        self._agents = agents
        self._lock = threading.Lock()
        self._pieces: dict[Place, deque[Piece]] = {}
        self._simulated: dict[Place, bool] = {}

    def note(self, places: Iterable[Place], now: datetime) -> None:
        """Ask for the sums of ``places`` and remember them as of ``now``; what was there before held until now."""
        for place in places:
            draw = self._agents(*place)
            with self._lock:
                pieces = self._pieces.setdefault(place, deque(maxlen=_KEPT))
                if pieces and pieces[-1].end > now:
                    pieces[-1] = replace(pieces[-1], end=max(now, pieces[-1].start))
                if draw is not None:
                    pieces.append(Piece(now, now + timedelta(seconds=_HOLDS_S), draw.power_w))
                    self._simulated[place] = draw.simulated

    def pieces(self, place: Place) -> list[Piece]:
        """All that is remembered, by time."""
        with self._lock:
            return list(self._pieces.get(place, ()))

    def at(self, place: Place, at: datetime) -> AgentsDraw | None:
        """The sum that held at ``at``."""
        found = next((piece for piece in reversed(self.pieces(place)) if piece.start <= at < piece.end), None)
        return AgentsDraw(found.power_w, self._simulated[place]) if found is not None else None

    def mean(self, place: Place, start: datetime, end: datetime) -> AgentsDraw | None:
        """The mean over ``[start, end)``; None where the sums do not cover it."""
        power_w = mean_w(self.pieces(place), start, end)
        return AgentsDraw(power_w, self._simulated[place]) if power_w is not None else None
