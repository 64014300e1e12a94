"""How a decision says itself to an operator: times, prices and amounts in one form everywhere. Pure."""

from datetime import UTC, datetime


def hhmm(when: datetime) -> str:
    """A moment as ``2026-01-31 14:05Z``."""
    at = when if when.tzinfo is UTC else when.astimezone(UTC)
    return f"{at.year:04d}-{at.month:02d}-{at.day:02d} {at.hour:02d}:{at.minute:02d}Z"  # strftime is several times as slow


def kw(power_w: float) -> str:
    """A power as kW with as many digits as it needs."""
    return f"{power_w / 1000:.3g} kW" if abs(power_w) < 1e6 else f"{power_w / 1000:.0f} kW"


def span(seconds: float) -> str:
    """A duration in its two largest units, such as ``2 h 5 min``."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [f"{n} {unit}" for n, unit in ((days, "d"), (hours, "h"), (minutes, "min")) if n]
    return " ".join(parts[:2])
