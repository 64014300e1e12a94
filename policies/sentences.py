"""How a decision says itself to an operator: times, prices and amounts in one form everywhere. Pure."""

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime

#: Sums are told no finer: a millionth of a euro is less than a second of one GPU.
FINEST = 1e-6


def hhmm(when: datetime) -> str:
    """A moment as ``2026-01-31 14:05Z``."""
    at = when if when.tzinfo is UTC else when.astimezone(UTC)
    return f"{at.year:04d}-{at.month:02d}-{at.day:02d} {at.hour:02d}:{at.minute:02d}Z"  # strftime is several times as slow


def kw(power_w: float | None, exact: bool = False) -> str:
    """A power for people, the one way in which it is written: in W below 10 kW, where tenths of a kW would hide a whole site,
    else in kW with one decimal where it needs one. ``exact``: one that somebody stated, with every digit that it has. None is
    "unknown"."""
    if power_w is None:
        return "unknown"
    size = round(abs(power_w), 3)
    if size < 10_000:
        text = (
            f"{size:,.3f}" if exact else f"{size:,.0f}" if size >= 99.95 else f"{size:,.1f}" if size >= 0.05 else f"{size:.3f}"
        )
        unit = "W"
    else:
        text, unit = f"{size / 1000:,.{6 if exact else 1}f}", "kW"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return f"{'-' if power_w < 0 and text != '0' else ''}{text} {unit}"


def span(seconds: float) -> str:
    """A duration in its two largest units, such as ``2 h 5 min``."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [f"{n} {unit}" for n, unit in ((days, "d"), (hours, "h"), (minutes, "min")) if n]
    return " ".join(parts[:2])


def amount(value: float, unit: str = "", digits: int = 2) -> str:
    """A quantity with ``digits`` decimals, and with more where two figures that say something need them: 0.000055 EUR. What
    is finer than FINEST is told as nothing, and nothing has no sign."""
    size = abs(value)
    if size < FINEST or not math.isfinite(value):
        decimals, value = digits, 0.0 if size < FINEST else value
    else:
        decimals = max(digits, 1 - math.floor(math.log10(size)))
    return f"{value:,.{decimals}f}{' ' + unit if unit else ''}"


def counted(number: float, what: str, plural: str | None = None) -> str:
    """So many of something: "1 GPU", "0.5 GPUs", "3 jobs"; ``plural`` where that is not made with an s."""
    told = f"{number:.0f}" if number == round(number) else f"{number:g}"
    return f"{told} {what if number == 1 else plural or what + 's'}"


def some(names: Sequence[str], most: int) -> str:
    """The first ``most`` of some names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def words(sentence: str) -> str:
    """What a sentence says, whatever its figures and times are."""
    return re.sub(r"-?\d[\d.,:-]*", "#", sentence)


def rates(one: float, other: float) -> tuple[str, str]:
    """Two prices for comparison, with as many decimals (two at most) as show that they differ."""
    for decimals in (0, 1, 2):
        told = _rate(one, decimals), _rate(other, decimals)
        if told[0] != told[1]:
            return told
    return _rate(one, 0), _rate(other, 0)


def _rate(value: float, decimals: int) -> str:
    told = f"{value:.{decimals}f}"
    return told.removeprefix("-") if float(told) == 0.0 else told
