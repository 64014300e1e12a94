"""Durations as people write them. Pure; knows nothing of what they are for."""

import math
import re
from functools import lru_cache

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_WORDS = {
    "s": "s", "sec": "s", "secs": "s", "second": "s", "seconds": "s",
    "m": "m", "min": "m", "mins": "m", "minute": "m", "minutes": "m",
    "h": "h", "hr": "h", "hrs": "h", "hour": "h", "hours": "h",
    "d": "d", "day": "d", "days": "d", "w": "w", "week": "w", "weeks": "w",
}  # fmt: skip
_PARTS = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.ASCII)
_ISO = re.compile(
    r"P(?:(?P<w>\d+(?:\.\d+)?)W)?(?:(?P<d>\d+(?:\.\d+)?)D)?"
    r"(?:T(?:(?P<h>\d+(?:\.\d+)?)H)?(?:(?P<m>\d+(?:\.\d+)?)M)?(?:(?P<s>\d+(?:\.\d+)?)S)?)?",
    re.ASCII,
)
#: A longer text is no duration; to search it for parts would take time that grows with the square of its length.
_LONGEST = 100
#: A longer duration is taken for a slip of the unit.
MAX_S = 366 * 86400.0


@lru_cache(1024)  # the same few are read again and again, with every submission
def parse_duration(text: str) -> float:
    """Seconds in "90m", "1h30m", "6 hours", "2d", "PT6H", "P1DT2H" (ISO 8601 without months and years) or plain seconds.

    Raises ValueError, with what would be right, for anything else, for a negative one and for one beyond a year.
    """
    wanted = "must be a duration such as '90m', '6h', '2d', 'PT6H' or a number of seconds"
    given = text.strip()
    seconds = _seconds(given) if len(given) <= _LONGEST else None
    if seconds is None or not math.isfinite(seconds):
        raise ValueError(wanted)
    if seconds > MAX_S:
        raise ValueError(f"{wanted}, and at most 366 days")
    return seconds


def _seconds(text: str) -> float | None:
    if re.fullmatch(r"\d+(?:\.\d+)?", text, re.ASCII):
        return float(text)
    lowered = text.lower()
    parts = _PARTS.findall(lowered)
    if parts and "".join(re.split(r"\s+", lowered)) == "".join(number + unit for number, unit in parts):
        units = [_WORDS.get(word) for _, word in parts]
        if None in units or len(set(units)) < len(units):
            return None
        return sum(float(number) * _UNITS_S[_WORDS[word]] for number, word in parts)
    iso = _ISO.fullmatch(text.upper())
    if iso is None or not any(iso.groupdict().values()) or text.upper().endswith("T"):
        return None
    return sum(float(value) * _UNITS_S[unit] for unit, value in iso.groupdict().items() if value is not None)
