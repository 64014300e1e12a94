"""For how long GPUs were there to be measured, from when their nodes were first and last heard of. Pure.

What was measured is one thing, what should have been another: a node that is there and tells nothing draws an unknown amount.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from itertools import accumulate

from dispatcher.power.energy import KnownNode
from dispatcher.power.hub import FORGET_S


class Presence:
    """When the GPUs of some nodes were there, as far as ``until``. A node that fell silent counts for as long as it is told of
    as silent; one GPU whose machine came back under another node id counts once."""

    def __init__(self, nodes: Iterable[KnownNode], until: datetime) -> None:
        stays: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        for node in nodes:
            start_s = (node.first_seen_at or node.last_seen_at).timestamp()
            end_s = min(node.last_seen_at.timestamp() + FORGET_S, until.timestamp())
            for gpu in node.gpus if start_s < end_s else ():
                stays[node.hostname, str(gpu.get("uuid"))].append((start_s, end_s))
        whole = [stay for some in stays.values() for stay in _joined(some)]
        self._starts, self._ends = sorted(start_s for start_s, _ in whole), sorted(end_s for _, end_s in whole)
        self._start_sums, self._end_sums = [0.0, *accumulate(self._starts)], [0.0, *accumulate(self._ends)]

    def gpus(self, start: datetime, end: datetime) -> int:
        """How many were there at any time of ``[start, end)``."""
        return bisect_left(self._starts, end.timestamp()) - bisect_right(self._ends, start.timestamp())

    def gpu_seconds(self, start: datetime, end: datetime) -> float:
        """For how long all of them together."""
        return self._until(end.timestamp()) - self._until(start.timestamp())

    def _until(self, at_s: float) -> float:
        """GPU seconds before a moment."""
        begun, over = bisect_left(self._starts, at_s), bisect_left(self._ends, at_s)
        return begun * at_s - self._start_sums[begun] - (over * at_s - self._end_sums[over])


def _joined(stays: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Intervals that overlap or meet, as one."""
    found: list[tuple[float, float]] = []
    for start_s, end_s in sorted(stays):
        if found and start_s <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end_s))
        else:
            found.append((start_s, end_s))
    return found
