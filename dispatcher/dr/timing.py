"""Times, durations and schedules as OpenADR writes them: ISO 8601 durations, "now", infinity, follow-on, repetition, chance.

Sources: OpenADR 3.1 User Guide 7.3 and 7.4, its schema, ISO 8601. It knows nothing of what an interval asks for.
"""

import calendar
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TypeVar

from dispatcher.dr.model import Notes, Refused, shown

#: OpenADR's infinity is P9999Y; anything near it is meant so too, and no calendar could hold the sum.
_INFINITE_YEARS = 1000
#: A set of intervals that repeats for ever is shown for so long ahead.
SHOWN_AHEAD = timedelta(days=7)
_MOST_REPEATED = 2500
#: No start lies beyond it, and sums with what does not always have a meaning.
LAST_YEAR = 2200

_NUMBER = r"(\d+(?:[.,]\d+)?)"
_DURATION = re.compile(
    rf"([+-]?)P(?:{_NUMBER}Y)?(?:{_NUMBER}M)?(?:{_NUMBER}W)?(?:{_NUMBER}D)?(?:(T?)(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?",
    re.ASCII,
)
_PARTS = (2, 3, 4, 5, 7, 8, 9)  # groups of years, months, weeks, days, hours, minutes, seconds
_NOW = re.compile(r"0|000[01]-0[01]-0[01](?:[T ]00:00(?::00(?:\.0+)?)?)?(?:Z|[+-]00:?00)?", re.ASCII | re.IGNORECASE)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time; months are calendar months, whatever days they have. ``endless`` has no length at all."""

    months: int = 0
    rest: timedelta = timedelta()
    endless: bool = False

    @property
    def zero(self) -> bool:
        """Whether it has no extent."""
        return not self.endless and self.months == 0 and not self.rest

    def after(self, at: datetime) -> datetime | None:
        """``at`` and so much later; None is never. 31 January and a month is the last of February."""
        if self.endless:
            return None
        try:
            if self.months:
                month = at.month - 1 + self.months
                year, month = at.year + month // 12, month % 12 + 1
                at = at.replace(year=year, month=month, day=min(at.day, calendar.monthrange(year, month)[1]))
            return at + self.rest
        except (OverflowError, ValueError):
            return None


def parse_duration(value: object, where: str, notes: Notes, *, signed: bool = False) -> Duration:
    """An ISO 8601 duration. Raises Refused for anything else, and for a negative one unless ``signed``."""
    found = _DURATION.fullmatch(value) if isinstance(value, str) and len(value) <= 64 else None
    if found is None or not any(found[i] for i in _PARTS):
        raise Refused(
            "bad_duration", f"{where}: {shown(value)}: must be an ISO 8601 duration such as PT1H, or P9999Y for no end"
        )
    sign, time_mark = found[1], found[6]
    years, months, weeks, days, hours, minutes, seconds = (
        float(found[i].replace(",", ".")) if found[i] else 0.0 for i in _PARTS
    )
    if not time_mark and any(found[i] for i in (7, 8, 9)):
        notes.add(f"{where}: {value} lacks the T before its hours, minutes or seconds; read as if it had one")
    if years >= _INFINITE_YEARS:
        if years != 9999:
            notes.add(f"{where}: {value} is read as no end")
        return Duration(endless=True)
    whole_months = years * 12 + months
    if whole_months != math.floor(whole_months):
        raise Refused(
            "bad_duration", f"{where}: {shown(value)}: part of a month has no fixed length; write it in days or hours"
        )
    try:
        rest = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        notes.add(f"{where}: {value} is read as no end")
        return Duration(endless=True)
    if sign == "-":
        if not signed and (whole_months or rest):
            raise Refused("bad_duration", f"{where}: {shown(value)}: must not be negative")
        return Duration(-int(whole_months), -rest)
    return Duration(int(whole_months), rest)


def means_now(value: object) -> bool:
    """Whether a start is one of the ways to write "now": 0001-01-01 and 0000-01-01, with or without a time, 0000-00-00, 0."""
    return value == 0 or (isinstance(value, str) and _NOW.fullmatch(value.strip()) is not None)


def parse_time(value: object, where: str, zone: tzinfo | None, notes: Notes, *, is_end: bool = False) -> datetime:
    """A time as aware UTC; one without an offset is local time of ``zone``. Raises Refused.

    Of the two meanings of an hour that the clock repeats, a start takes the first and an end the second, so that a limit is
    never shorter than it was meant; an hour that the clock leaves out is counted on from before the jump (as RFC 5545 does).
    """
    wrong = f"{where}: {shown(value)}: must be a time with an offset, such as 2026-01-31T17:00:00Z"
    if not isinstance(value, str) or len(value) > 64 or not value[:4].isdigit():
        raise Refused("bad_time", wrong)
    try:
        at = datetime.fromisoformat(value.strip())
    except ValueError:
        raise Refused("bad_time", wrong) from None
    if at.year > LAST_YEAR and not is_end:
        raise Refused("bad_time", f"{where}: {shown(value)}: must not be after {LAST_YEAR}")
    try:
        if at.tzinfo is not None:
            return at.astimezone(UTC)
        if zone is None:
            raise Refused("naive_time", f"{wrong}; neither the program nor the site says which time zone is meant")
        first, second = (at.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    except OverflowError:
        raise Refused("bad_time", wrong) from None
    if first < second:
        notes.add(
            f"{where}: {value} comes twice in {zone}; the {'second' if is_end else 'first'} is meant, which is the safe reading"
        )
    elif first > second:
        notes.add(f"{where}: {value} does not exist in {zone}: the clock jumps over it; read as {first:%H:%M} UTC")
        return first
    else:
        notes.add(f"{where}: {value} has no offset; read as time of {zone}")
    return second if is_end else first


@dataclass(frozen=True, slots=True)
class Period:
    """When something begins and how long it lasts, as far as it says. ``now``: at once, or right after what was before."""

    start: datetime | None = None
    now: bool = False
    duration: Duration | None = None
    randomize: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """An interval's place in time; ``index`` counts from the first one, again in each repetition."""

    index: int
    start: datetime
    end: datetime | None


def schedule(
    default: Period | None,
    own: Sequence[Period],
    *,
    received: datetime,
    draw_s: float | None,
    zero_is_open: Sequence[bool],
    notes: Notes,
    drawn: float | None = None,
    fallback: Duration | None = None,
) -> list[Slot]:
    """Places intervals in time.

    ``default`` is the event's period, ``own`` those of its intervals, which override it field by field. ``zero_is_open`` says
    for each interval whether a duration of zero means that it has no end (3.0.1 and 2.0b) or nothing at all. ``fallback`` is
    the duration where none is given.
    Raises Refused for an interval of which the end cannot be known.
    """
    slots: list[Slot] = []
    at: datetime | None = received
    shift, base = timedelta(), default or Period()
    for index, period in enumerate(own):
        where = f"intervals[{index}].intervalPeriod"
        given = period.start
        if index == 0:
            if given is None and not period.now:
                given = base.start
            shift = _drawn(period.randomize or base.randomize, draw_s, drawn, notes)
        elif period.randomize:
            shift = _drawn(period.randomize, draw_s, drawn, notes)
        if given is not None:
            at = _moved(given, shift)
        elif index == 0:
            at = _moved(received, max(shift, timedelta()))
        if at is None:
            notes.add(f"{where}: follows an interval without end, so it never begins")
            continue
        duration = period.duration or base.duration or fallback
        if duration is None:
            raise Refused("missing_duration", f"{where}.duration: missing: give a duration, P9999Y for no end")
        end = None if duration.zero and zero_is_open[index] else duration.after(at)
        slots.append(Slot(index, at, end))
        at = end
    return slots


def _moved(at: datetime, shift: timedelta) -> datetime:
    try:
        return at + shift
    except OverflowError:
        return at


def _drawn(randomize: timedelta | None, draw_s: float | None, share: float | None, notes: Notes) -> timedelta:
    if not randomize:
        return timedelta()
    most = abs(randomize)
    if draw_s is None and share is not None:
        notes.add(f"the start was drawn at random within {most.total_seconds():g} s either way")
        return most * share
    if draw_s is None:
        notes.add(
            f"the start is drawn at random within {most.total_seconds():g} s either way, once an event; shown without the draw"
        )
        return timedelta()
    drawn = max(-most, min(most, timedelta(seconds=draw_s)))
    if drawn.total_seconds() != draw_s:
        notes.add(f"draw {draw_s:g} s is outside ±{most.total_seconds():g} s; used {drawn.total_seconds():g} s")
    return drawn


@dataclass(frozen=True, slots=True)
class Life:
    """A whole event in time. ``slots`` are what to follow (one that repeats is one long one), ``cycles`` each repetition."""

    start: datetime | None
    end: datetime | None
    slots: tuple[Slot, ...]
    cycles: tuple[tuple[Slot, ...], ...]


def fitted(slots: Sequence[Slot], length: Duration | None, now: datetime, notes: Notes) -> Life:
    """Repeats or cuts a set of intervals to the length of the whole event (``event.duration``)."""
    if not slots:
        return Life(None, None, (), ())
    first = min(slot.start for slot in slots)
    ends = [slot.end for slot in slots if slot.end is not None]
    last = max(ends) if len(ends) == len(slots) else None
    if length is None or length.zero:
        return Life(first, last, tuple(slots), (tuple(slots),))
    stop = length.after(first)
    if last is None or last == first or (stop is not None and stop <= last):
        cut = _cut(slots, stop)
        end = stop if last is None or (stop is not None and stop < last) else last
        return Life(first, end, cut, (cut,))
    cycles = _cycles(slots, first, last - first, stop, now, notes)
    whole = (Slot(slots[0].index, first, stop),) if len(slots) == 1 else tuple(slot for cycle in cycles for slot in cycle)
    return Life(first, stop, whole, cycles)


def _cut(slots: Sequence[Slot], stop: datetime | None) -> tuple[Slot, ...]:
    if stop is None:
        return tuple(slots)
    return tuple(
        slot if slot.end is not None and slot.end <= stop else Slot(slot.index, slot.start, stop)
        for slot in slots
        if slot.start < stop
    )


def _cycles(
    slots: Sequence[Slot], first: datetime, length: timedelta, stop: datetime | None, now: datetime, notes: Notes
) -> tuple[tuple[Slot, ...], ...]:
    """The repetitions from the present one on, for a while."""
    shown_until = max(now, first) + SHOWN_AHEAD
    out: list[tuple[Slot, ...]] = []
    n = max(0, (now - first) // length)
    while not out or len(out) * len(slots) < _MOST_REPEATED:
        offset = length * n
        if (stop is not None and first + offset >= stop) or (out and first + offset >= shown_until):
            break
        again = [Slot(s.index, s.start + offset, None if s.end is None else s.end + offset) for s in slots]
        out.append(_cut(again, stop))
        n += 1
    if stop is None or first + length * n < stop:
        notes.add(f"the intervals repeat {'for ever' if stop is None else f'until {stop:%Y-%m-%dT%H:%MZ}'}; shown for a while")
    return tuple(out)


def split(slot: Slot, values: Sequence[T]) -> list[tuple[datetime, datetime | None, T]]:
    """Several values in one interval share it evenly."""
    if len(values) == 1 or slot.end is None:
        return [(slot.start, slot.end, value) for value in values[:1]]
    part = (slot.end - slot.start) / len(values)
    edges = [slot.start + part * i for i in range(len(values))] + [slot.end]
    return [(edges[i], edges[i + 1], value) for i, value in enumerate(values)]
