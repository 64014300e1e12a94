"""One observation or forecast of a grid signal, and the units it may have.

This module knows nothing of feeds, stores or time zones: every time is an aware UTC datetime, every interval half open.
"""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum


class SignalError(Exception):
    """A signal is not what it claims to be; the message names the field, the value and what would be right."""


class Kind(StrEnum):
    """What a signal measures. Average and marginal carbon are different kinds and are never mixed."""

    PRICE = "price"
    CARBON_AVERAGE = "carbon_average"
    CARBON_MARGINAL = "carbon_marginal"
    CARBON_RANK = "carbon_rank"
    LOAD = "load"
    GENERATION = "generation"
    #: No signal of a grid: what interactive serving had to do.
    SERVING = "serving"


class Quality(StrEnum):
    """How a value came about. A missing value has no quality: it has no row."""

    MEASURED = "measured"
    ESTIMATED = "estimated"
    IMPUTED = "imputed"
    FORECAST = "forecast"
    HELD = "held"
    SUSPECT = "suspect"


def standing(quality: Quality) -> int:
    """Which of two values of one interval is believed, the higher: what is doubted last, then a forecast, then an actual."""
    return {Quality.SUSPECT: 0, Quality.FORECAST: 1}.get(quality, 2)


#: Canonical unit of each kind; a price is "<ISO 4217 code>/MWh".
UNITS = {
    Kind.CARBON_AVERAGE: "gCO2e/kWh",
    Kind.CARBON_MARGINAL: "gCO2e/kWh",
    Kind.CARBON_RANK: "percentile",
    Kind.LOAD: "MW",
    Kind.GENERATION: "MW",
    Kind.SERVING: "requests",
}


#: No grid has seen the millionth part of this in any unit; sums and products of such values stay finite.
MAX_VALUE = 1e9


def require_utc(name: str, value: datetime) -> datetime:
    """Return ``value`` in UTC; raise SignalError when it carries no offset."""
    if value.tzinfo is None:
        raise SignalError(f"{name}: {value.isoformat()} has no UTC offset; give an aware time such as {value.isoformat()}Z")
    return value.astimezone(UTC)


@dataclass(frozen=True, slots=True)
class SignalPoint:
    """One value over ``[start, end)``.

    ``issued_at`` is when the publisher issued it (None for an actual without an issue time), ``retrieved_at`` is when we
    learned it. Identity is (source, region, kind, variant, start, end, issued_at); a revision is another point with a later
    ``retrieved_at``. ``value`` is in ``unit``; zero and negative prices are values.
    """

    region: str
    kind: Kind
    unit: str
    start: datetime
    end: datetime
    issued_at: datetime | None
    retrieved_at: datetime
    value: float
    quality: Quality
    source: str
    variant: str = ""

    def __post_init__(self) -> None:
        for name in ("start", "end", "retrieved_at"):
            object.__setattr__(self, name, require_utc(name, getattr(self, name)))
        if self.issued_at is not None:
            object.__setattr__(self, "issued_at", require_utc("issued_at", self.issued_at))
        if self.end <= self.start:
            raise SignalError(f"end: {self.end.isoformat()} must be after start {self.start.isoformat()}")
        if not math.isfinite(self.value):
            raise SignalError(f"value: {self.value!r} is not a finite number; leave a missing value out")
        if abs(self.value) > MAX_VALUE:
            raise SignalError(f"value: {self.value!r} is not possible in {self.unit}; at most {MAX_VALUE:g}")
        expected = UNITS.get(self.kind)
        if expected is not None and self.unit != expected:
            raise SignalError(f"unit: {self.unit!r} for {self.kind}; must be {expected!r}")
        if expected is None and not (self.unit.endswith("/MWh") and len(self.unit) == 7):
            raise SignalError(f"unit: {self.unit!r} for a price; must be a currency code per MWh, such as 'EUR/MWh'")
