"""A signal laid on a planner's grid of equal slots. Pure; knows nothing of where the values came from."""

from array import array
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class SlotSeries:
    """Values on ``len(values)`` slots of ``slot_s`` seconds from ``start`` (aware UTC).

    ``values[i]`` covers ``[start + i*slot_s, start + (i+1)*slot_s)``; None means unknown, never zero. ``basis[i]`` says where
    the value comes from: "published" (measured or the publisher's own forecast), "held" (the last value, for a while), "model"
    or "blend" (our forecast), "repeat-day" (the same time of an earlier day), "suspect" (published, but hardly right) or
    "unknown". ``source`` names the feed that was used, ``variant`` which of its series. ``low`` and ``high`` are the 10 and
    90 % quantiles where our forecast has them, else None (empty: nowhere); ``reason`` says what that forecast is made of.
    """

    start: datetime
    slot_s: int
    values: tuple[float | None, ...]
    basis: tuple[str, ...]
    unit: str
    source: str
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    reason: str = ""
    variant: str = ""

    def at(self, when: datetime) -> float | None:
        """The value in force at ``when``, or None when unknown or off the grid."""
        index = int((when - self.start).total_seconds() // self.slot_s)
        return self.values[index] if 0 <= index < len(self.values) else None

    @property
    def end(self) -> datetime:
        """End of the last slot."""
        return self.start + timedelta(seconds=self.slot_s * len(self.values))


@dataclass(frozen=True, slots=True)
class Past:
    """What is known of one series, compact enough to be handed to another process: ``values[i]`` held over
    ``[starts_s[i], ends_s[i])``, seconds since the epoch."""

    starts_s: "array[float]"
    ends_s: "array[float]"
    values: "array[float]"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which forecast is wanted: from ``origin``, the end of what is known, ``days`` ahead in slots of ``slot_s``, in the
    calendar of ``zone``; ``positive`` for what cannot be zero or less, such as a carbon intensity."""

    origin: datetime
    slot_s: int
    days: int
    zone: str
    positive: bool


@dataclass(frozen=True, slots=True)
class SlotForecast:
    """A forecast on slots of ``slot_s`` from ``start``: the value and its 10 and 90 % quantiles, None where nothing is said.

    ``basis`` is "model", "blend", "repeat-day" or "unknown"; ``reason`` says it in a sentence.
    """

    start: datetime
    slot_s: int
    values: tuple[float | None, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    basis: str
    reason: str

    def at(self, start: datetime) -> tuple[float, float, float] | None:
        """(value, low, high) of the slot that begins at ``start``; None when there is none or nothing is said of it."""
        index, rest = divmod((start - self.start).total_seconds(), self.slot_s)
        if rest or not 0 <= index < len(self.values):
            return None
        value, low, high = self.values[int(index)], self.low[int(index)], self.high[int(index)]
        return None if value is None or low is None or high is None else (value, low, high)
