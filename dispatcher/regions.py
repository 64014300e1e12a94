"""One region as the control plane keeps it: its cluster, and the last picture of it that was taken.

A picture is taken by a loop of its own, so a region that is slow or down delays nobody. This module decides nothing.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from dispatcher.clock import Clock
from dispatcher.clusters import AttemptStatus, Cluster, ClusterInfo
from dispatcher.config import RegionConfig
from dispatcher.errors import ClusterUnreachable
from dispatcher.reconcile import Seen

log = logging.getLogger(__name__)

#: How often an idle region is looked at, wall seconds: often enough to notice an outage before a launch is due.
IDLE_OBSERVE_S = 5.0
#: A picture older than this many looks (but at least MIN_STALE_S wall seconds) no longer counts as reachable.
STALE_LOOKS = 5
MIN_STALE_S = 10.0


@dataclass(frozen=True, slots=True)
class Picture:
    """What a region's cluster said when it last answered, and what went wrong since (None: nothing)."""

    taken_at: datetime
    taken_wall: float
    info: ClusterInfo
    seen: dict[str, Seen]


class Region:
    """A region's configuration, cluster and last picture. ``observe`` may run beside everything else."""

    def __init__(
        self,
        config: RegionConfig,
        cluster: Cluster,
        clock: Clock,
        wall: Callable[[], float] = time.monotonic,
        epoch: Callable[[], float] = time.time,
    ) -> None:
        """``wall`` measures how long ago something was; ``epoch`` is the wall clock that clusters tell their times by."""
        self.config, self.cluster, self.clock = config, cluster, clock
        self.name = config.name
        self._wall, self._epoch = wall, epoch
        self._lock = threading.Lock()
        self._picture: Picture | None = None
        self._error: str | None = "not asked yet"
        self._missing: Counter[str] = Counter()
        self._last_try_wall = float("-inf")

    def due(self, live: int) -> bool:
        """Whether it is time to look again, given how many attempts live there."""
        period = self.config.observe_s if live else max(IDLE_OBSERVE_S, self.config.observe_s)
        return self._wall() - self._last_try_wall >= period * 0.9

    def observe(self, submission_ids: Sequence[str]) -> bool:
        """Take a new picture; return whether it differs from the last one in a way that matters."""
        self._last_try_wall = self._wall()
        asked_at = self.clock.now()
        try:
            info = self.cluster.info()
            statuses = self.cluster.statuses(submission_ids) if submission_ids else {}
        except ClusterUnreachable as error:
            with self._lock:
                changed = self._error is None
                self._error = str(error)
            if changed:
                log.warning("region %s does not answer: %s", self.name, error)
            return changed
        seen = {sid: self._seen(status, asked_at, info) for sid, status in statuses.items()}
        with self._lock:
            before = self._picture
            changed = self._error is not None or before is None or _gist(before) != _gist_of(info, seen)
            for sid, one in seen.items():
                self._missing[sid] = self._missing[sid] + 1 if one.status is None else 0
            for sid in list(self._missing):
                if sid not in seen:
                    del self._missing[sid]
            changed = changed or any(self._missing.values())
            self._picture = Picture(self.clock.now(), self._wall(), info, seen)
            self._error = None
        return changed

    def _seen(self, status: AttemptStatus | None, asked_at: datetime, info: ClusterInfo) -> Seen:
        """Translate the cluster's own wall-clock end into the control plane's time (they differ in a replay)."""
        ended_at = None
        if status is not None and status.ended_at is not None:
            ago_s = self._epoch() - status.ended_at.timestamp()
            ended_at = self.clock.now() - timedelta(seconds=max(0.0, ago_s) * self.clock.speed)
        return Seen(status, asked_at, info.session, ended_at)

    def picture(self) -> tuple[Picture | None, str | None, Counter[str]]:
        """The last picture, the error since then, and how often in a row each attempt was missing."""
        with self._lock:
            return self._picture, self._error, Counter(self._missing)

    def reachable(self) -> bool:
        """Whether the cluster answered lately."""
        with self._lock:
            if self._picture is None:
                return False
            stale_s = max(MIN_STALE_S, STALE_LOOKS * max(self.config.observe_s, IDLE_OBSERVE_S))
            return self._error is None and self._wall() - self._picture.taken_wall < stale_s

    def gpus(self) -> float | None:
        """GPUs that batch may use: the configured number, else what the cluster reports."""
        if self.config.gpus is not None:
            return float(self.config.gpus)
        with self._lock:
            return self._picture.info.gpus if self._picture else None


def _gist_of(info: ClusterInfo, seen: dict[str, Seen]) -> object:
    return info.session, {sid: one.status for sid, one in seen.items()}


def _gist(picture: Picture) -> object:
    return _gist_of(picture.info, picture.seen)
