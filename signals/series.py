"""A signal laid on a planner's grid of equal slots. Pure; knows nothing of where the values came from."""

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class SlotSeries:
    """Values on ``len(values)`` slots of ``slot_s`` seconds from ``start`` (aware UTC).

    ``values[i]`` covers ``[start + i*slot_s, start + (i+1)*slot_s)``; None means unknown, never zero. ``basis[i]`` says where
    the value comes from: "published" (measured or the publisher's own forecast), "repeat-day" (the same time of an earlier
    day) or "unknown". ``source`` names the feed that was used.
    """

    start: datetime
    slot_s: int
    values: tuple[float | None, ...]
    basis: tuple[str, ...]
    unit: str
    source: str

    def at(self, when: datetime) -> float | None:
        """The value in force at ``when``, or None when unknown or off the grid."""
        index = int((when - self.start).total_seconds() // self.slot_s)
        return self.values[index] if 0 <= index < len(self.values) else None

    @property
    def end(self) -> datetime:
        """End of the last slot."""
        return self.start + timedelta(seconds=self.slot_s * len(self.values))
