"""An interval of which a source says, or shows, that it has no value.

A gap is listed beside the points, so that missing is never mistaken for zero; it knows nothing of why the value is missing.
"""

from dataclasses import dataclass
from datetime import datetime

from signals.points import Kind, SignalError, require_utc


@dataclass(frozen=True, slots=True)
class SignalGap:
    """No value over ``[start, end)`` (aware UTC) for this source, region, kind and variant."""

    source: str
    region: str
    kind: Kind
    start: datetime
    end: datetime
    variant: str = ""

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            object.__setattr__(self, name, require_utc(name, getattr(self, name)))
        if self.end <= self.start:
            raise SignalError(f"end: gap end {self.end.isoformat()} must be after start {self.start.isoformat()}")
