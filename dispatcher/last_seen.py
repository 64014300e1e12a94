"""When attempts were last known to run, so that one that is lost counts up to then and no further. It is kept over restarts by
region, roughly: a cluster that ends together with its control plane takes its jobs along, and nobody sees when.

It knows no clusters; whoever looks at them tells it what was seen.
"""

from collections.abc import Callable
from datetime import UTC, datetime

from dispatcher.store import Attempt, Store

#: Wall seconds between two writes for a region in which attempts run.
WRITE_S = 10.0


class LastSeen:
    """See the module. ``wall`` measures the time between writes. Used by one thread."""

    def __init__(self, store: Store, wall: Callable[[], float]) -> None:
        self._store, self._wall = store, wall
        self._seen: dict[str, datetime] = {}
        self._before: dict[str, datetime | None] = {}
        self._written: dict[str, float] = {}

    def saw(self, attempt: Attempt, at: datetime) -> None:
        """The attempt ran at ``at``."""
        before = self._of_region(attempt.region)
        self._seen[attempt.submission_id] = at
        if self._wall() - self._written.get(attempt.region, float("-inf")) >= WRITE_S and (before is None or at != before):
            self._written[attempt.region] = self._wall()
            self._store.set_setting(_key(attempt.region), at.isoformat())

    def until(self, attempt: Attempt, now: datetime) -> datetime:
        """When the attempt was last known to run: as seen, or as all attempts of its region were before a restart. Not before
        it began, nor after ``now``."""
        began = attempt.started_at or attempt.accepted_at or attempt.launched_at
        seen = self._seen.get(attempt.submission_id) or self._of_region(attempt.region) or began
        return min(max(seen, began), now)

    def forget(self, submission_id: str) -> None:
        """The attempt has ended."""
        self._seen.pop(submission_id, None)

    def _of_region(self, region: str) -> datetime | None:
        """What was written before this control plane began: read once, before the first write."""
        if region not in self._before:
            told = self._store.setting(_key(region))
            self._before[region] = datetime.fromisoformat(told).astimezone(UTC) if told is not None else None
        return self._before[region]


def _key(region: str) -> str:
    return f"region.{region}.ran_at"
