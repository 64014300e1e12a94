"""Periods of the week and the year by the wall clock of a time zone, such as "weekdays 08:00-20:00 in winter". Pure.

A day on which clocks change has 23 or 25 hours: an hour that comes twice counts twice, one that is skipped never holds. It
knows no prices beyond the figure that a period carries.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december",
)  # fmt: skip
_DAY_NAMES = ("Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays", "Sundays")
_MONTH_NAMES = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
ALL_DAYS, ALL_MONTHS = frozenset(range(7)), frozenset(range(1, 13))
DAY_MINUTES = 1440


@dataclass(frozen=True, slots=True)
class Period:
    """Hours that belong together: on ``days`` (0 is Monday) of ``months`` (1 is January) from ``from_min`` to ``to_min``.

    Minutes after midnight on the wall clock, half open; ``to_min`` at or before ``from_min`` means the evening and the early
    morning of the same days. ``per_mwh`` is what a MWh costs then, None where only the hours matter.
    """

    name: str
    days: frozenset[int] = ALL_DAYS
    months: frozenset[int] = ALL_MONTHS
    from_min: int = 0
    to_min: int = DAY_MINUTES
    per_mwh: float | None = None

    def holds(self, month: int, day: int, minute: float) -> bool:
        """Whether it covers a minute of a day."""
        if month not in self.months or day not in self.days:
            return False
        if self.from_min < self.to_min:
            return self.from_min <= minute < self.to_min
        return minute >= self.from_min or minute < self.to_min


# --- reading ----------------------------------------------------------------------------------------------------------


def _parse_names(text: str, names: Sequence[str], what: str) -> frozenset[int]:
    """Positions of names in a list such as "mon-fri,sun"; a range may pass the end, as in "nov-mar"."""
    found: set[int] = set()
    for part in text.lower().split(","):
        match = re.fullmatch(r"\s*([a-z]+)\s*(?:-\s*([a-z]+)\s*)?", part)
        first, last = (_position(word, names) for word in (match[1], match[2] or match[1])) if match else (None, None)
        if first is None or last is None:
            one, three, five = names[0][:3], names[2][:3], names[4][:3]
            raise ValueError(f"{part.strip()!r} is not a {what}; write them as '{one}-{five}' or '{one},{three}'")
        found.update((first + step) % len(names) for step in range((last - first) % len(names) + 1))
    return frozenset(found)


def _position(word: str, names: Sequence[str]) -> int | None:
    """Which name a word means: the name in full, or its beginning of three letters at least; None: none of them."""
    return next((at for at, name in enumerate(names) if len(word) >= 3 and name.startswith(word)), None)


def parse_days(text: str) -> frozenset[int]:
    """Days of the week from text such as "mon-fri" or "sat,sun", 0 for Monday. Raises ValueError with the remedy."""
    return _parse_names(text, DAYS, "day of the week")


def parse_months(text: str) -> frozenset[int]:
    """Months from text such as "nov-mar", 1 for January. Raises ValueError with the remedy."""
    return frozenset(month + 1 for month in _parse_names(text, MONTHS, "month"))


def parse_minute(text: str) -> int:
    """Minutes after midnight from "08:30"; "24:00" is the end of the day. Raises ValueError with the remedy."""
    match = re.fullmatch(r"(\d{1,2}):(\d{2})(?::00)?", text.strip())
    minute = int(match[1]) * 60 + int(match[2]) if match and int(match[2]) < 60 else -1
    if not 0 <= minute <= DAY_MINUTES:
        raise ValueError(f"{text!r} is not a time of day; write it as '08:00', and '24:00' for the end of the day")
    return minute


def clock(minute: int) -> str:
    """Minutes after midnight as 08:30."""
    return f"{minute // 60:02d}:{minute % 60:02d}"


# --- checking ---------------------------------------------------------------------------------------------------------


def cover_problems(periods: Sequence[Period]) -> list[str]:
    """What keeps ``periods`` from covering every hour of the year exactly once, each with the hours and the remedy: the first
    hours without a period, and the first hours of each two periods that overlap."""
    cuts = sorted({0, DAY_MINUTES, *(edge for p in periods for edge in (p.from_min, p.to_min))})
    gaps: list[tuple[int, int, int, int]] = []
    overlaps: dict[tuple[str, str], str] = {}
    for month in sorted(ALL_MONTHS):
        for day in sorted(ALL_DAYS):
            for begin, end in pairwise(cuts):
                there = [p for p in periods if p.holds(month, day, begin)]
                if not there:
                    gaps.append((month, day, begin, end))
                if len(there) > 1:
                    overlaps.setdefault((there[0].name, there[1].name), _hours(month, day, begin, end))
    problems = [
        f"{a!r} and {b!r} both cover {hours}; change the hours, days or months of one" for (a, b), hours in overlaps.items()
    ]
    if gaps:
        month, day, begin, end = gaps[0]
        for other in gaps[1:]:
            end = other[3] if other[:3] == (month, day, end) else end
        more = sum(e - b for _, _, b, e in gaps) - (end - begin)
        and_more = " and other hours" if more > 0 else ""
        problems.append(f"no period covers {_hours(month, day, begin, end)}{and_more}; add one that does")
    return problems


def _hours(month: int, day: int, begin: int, end: int) -> str:
    return f"{_DAY_NAMES[day]} {clock(begin)}-{clock(end)} in {_MONTH_NAMES[month - 1]}"


# --- laying on time ---------------------------------------------------------------------------------------------------


def segments(
    periods: Sequence[Period], zone: ZoneInfo, holidays: frozenset[date], start: datetime, end: datetime
) -> Iterator[tuple[datetime, datetime, Period | None]]:
    """``[start, end)`` cut (UTC) wherever the period in force changes, with that period, None where there is none. A holiday
    counts as a Sunday."""
    open_at, current = start, _in_force(periods, zone, holidays, start)
    for cut in _cuts(periods, zone, start, end):
        found = _in_force(periods, zone, holidays, cut)
        if found is not current:
            yield open_at, cut, current
            open_at, current = cut, found
    if open_at < end:
        yield open_at, end, current


def _in_force(periods: Sequence[Period], zone: ZoneInfo, holidays: frozenset[date], when: datetime) -> Period | None:
    wall = when.astimezone(zone)
    day = 6 if wall.date() in holidays else wall.weekday()
    minute = wall.hour * 60 + wall.minute + wall.second / 60
    return next((period for period in periods if period.holds(wall.month, day, minute)), None)


def _cuts(periods: Sequence[Period], zone: ZoneInfo, start: datetime, end: datetime) -> list[datetime]:
    """Moments strictly inside ``[start, end)`` at which another period may begin: the periods' edges on each day, midnights,
    and the moments at which clocks change."""
    edges = sorted({0, *(edge % DAY_MINUTES for period in periods for edge in (period.from_min, period.to_min))})
    found: set[datetime] = set()
    day, last = start.astimezone(zone).date() - timedelta(days=1), end.astimezone(zone).date()
    while day <= last:
        noons = [_at(zone, day + timedelta(days=n), 12 * 60) for n in (-1, 0, 1)]
        changes = [_change(zone, a, b) for a, b in pairwise(noons) if _offset(zone, a) != _offset(zone, b)]
        found.update(changes)
        for minute in edges:
            found.add(_at(zone, day, minute))
            if changes:  # a wall time may come twice
                found.add(_at(zone, day, minute, fold=1))
        day += timedelta(days=1)
    return sorted(moment for moment in found if start < moment < end)


def _at(zone: ZoneInfo, day: date, minute: int, fold: int = 0) -> datetime:
    return datetime.combine(day, time(minute // 60, minute % 60), tzinfo=zone).replace(fold=fold).astimezone(UTC)


def _offset(zone: ZoneInfo, when: datetime) -> timedelta | None:
    return when.astimezone(zone).utcoffset()


def _change(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """The moment between two at which the offset changes, to the second."""
    old = _offset(zone, before)
    while (after - before).total_seconds() > 1:
        middle = before + timedelta(seconds=int((after - before).total_seconds()) // 2)
        if _offset(zone, middle) == old:
            before = middle
        else:
            after = middle
    return after


def months(zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Calendar months of a time zone that overlap ``[start, end)``, each whole, as UTC moments."""
    first = start.astimezone(zone).date().replace(day=1)
    while (begin := _at(zone, first, 0)) < end:
        first = (first + timedelta(days=32)).replace(day=1)
        yield begin, _at(zone, first, 0)
