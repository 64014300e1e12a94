"""Which past days may stand for an event day, and the load of the same wall-clock time on them.

It knows calendars and clock changes, not prices or methods. A day that may not be used is listed with the reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from dispatcher.errors import BadInput
from dispatcher.verification.series import MIN_COVERAGE, Floats, MeteredSeries, aware, resampled

Span = tuple[datetime, datetime]


@dataclass(frozen=True)
class EventWindow:
    """What a baseline must know of an event: the event is ``[start, end)``, and who was to act knew of it from ``notice_at``.

    ``end`` is where measuring ends: for an event that is still open, the last moment that is to be judged. Raises BadInput
    for naive times and an end that is not after the start. A notice after the start (joined late) counts as notice at the
    start.
    """

    notice_at: datetime
    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        for name in ("notice_at", "start", "end"):
            object.__setattr__(self, name, aware(name, getattr(self, name)))
        if self.end <= self.start:
            raise BadInput([("end", self.end.isoformat(), f"must be after the start {self.start.isoformat()}")])

    @property
    def known_at(self) -> datetime:
        """From here on the load may already answer to the event."""
        return min(self.notice_at, self.start)


@dataclass(frozen=True)
class Calendar:
    """The site's days: its time zone, holidays, days with an outage, and every other span of demand response, past or to come.

    Raises BadInput for an unknown time zone, naive times or a span that does not end after its start.
    """

    timezone: str
    holidays: frozenset[date] = frozenset()
    outage_days: frozenset[date] = frozenset()
    events: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise BadInput([("timezone", self.timezone, "must be a name such as Europe/Berlin")]) from None
        spans = tuple((aware("events", start), aware("events", end)) for start, end in self.events)
        for start, end in spans:
            if end <= start:
                raise BadInput([("events", end.isoformat(), f"must be after the start {start.isoformat()}")])
        object.__setattr__(self, "events", spans)

    @property
    def zone(self) -> ZoneInfo:
        """The time zone itself."""
        return ZoneInfo(self.timezone)

    def day(self, at: datetime) -> date:
        """The local day of a moment."""
        return at.astimezone(self.zone).date()

    def days(self, start: datetime, end: datetime) -> list[date]:
        """The local days that ``[start, end)`` touches."""
        first, last = self.day(start), self.day(max(start, end - timedelta(microseconds=1)))
        return [first + timedelta(days=i) for i in range((last - first).days + 1)]

    def event_days(self) -> frozenset[date]:
        """The local days that any event touches."""
        return frozenset(day for start, end in self.events for day in self.days(start, end))

    def kind(self, day: date) -> str:
        """``working day`` (Monday to Friday) or ``weekend or holiday``."""
        return "working day" if day.weekday() < 5 and day not in self.holidays else "weekend or holiday"


def moments(calendar: Calendar, at: datetime, days_back: int) -> list[datetime]:
    """When clocks showed, ``days_back`` days earlier, what they show at ``at``.

    One moment; none in the hour that a clock change skips; two in the hour that it repeats.
    """
    local = at.astimezone(calendar.zone)
    wall = local.replace(tzinfo=None) - timedelta(days=days_back)
    found = {wall.replace(tzinfo=calendar.zone, fold=fold).astimezone(UTC) for fold in (0, 1)}
    return sorted(moment for moment in found if moment.astimezone(calendar.zone).replace(tzinfo=None) == wall)


def slots_in(span: Span, step_s: float) -> int:
    """How many slots of ``step_s`` cover a span; the last may stick out."""
    return max(1, int(np.ceil((span[1] - span[0]).total_seconds() / step_s - 1e-9)))


def load_on(series: MeteredSeries, calendar: Calendar, start: datetime, step_s: float, count: int, days_back: int) -> Floats:
    """The load (W) of the slots from ``start`` on, as it was ``days_back`` days earlier by the clock; NaN where unknown.

    NaN too in slots that a clock change of that day skipped or repeated. A change on the event's own day is no hindrance:
    an hour that it repeats has the same equal twice.
    """
    plain = _shifted(calendar, start, start + timedelta(seconds=step_s * count), days_back)
    if plain is not None:
        return resampled(series, plain, step_s, count).watts
    begins = [moments(calendar, start + timedelta(seconds=k * step_s), days_back) for k in range(count)]
    watts = np.full(count, np.nan)
    k = 0
    while k < count:  # in runs between clock changes
        if len(begins[k]) != 1:
            k += 1
            continue
        stop = k + 1
        while stop < count and _follows(begins[k], begins[stop], (stop - k) * step_s):
            stop += 1
        watts[k:stop] = resampled(series, begins[k][0], step_s, stop - k).watts
        k = stop
    return watts


def _shifted(calendar: Calendar, start: datetime, end: datetime, days_back: int) -> datetime | None:
    """The equal of ``start`` where no clock change is near, so that all slots up to ``end`` move alike; else None."""
    if end - start > timedelta(days=14):
        return None
    then = timedelta(days=days_back)
    near = timedelta(hours=26)  # more than any change, and any difference of offsets, can move a time
    own = {one.astimezone(calendar.zone).utcoffset() for one in (start, end)}
    old = {one.astimezone(calendar.zone).utcoffset() for one in (start - then - near, end - then + near)}
    if len(own) != 1 or len(old) != 1:
        return None
    return start - then + (own.pop() or timedelta()) - (old.pop() or timedelta())


def _follows(first: list[datetime], later: list[datetime], by_s: float) -> bool:
    return len(later) == 1 and (later[0] - first[0]).total_seconds() == by_s


@dataclass(frozen=True)
class LikeDays:
    """Eligible days, latest first, as days before the event's first local day; and days passed over, with reasons."""

    eligible: tuple[int, ...]
    passed_over: tuple[tuple[date, str], ...]


def like_days(
    series: MeteredSeries,
    calendar: Calendar,
    window: EventWindow,
    spans: Sequence[Span],
    wanted: int,
    step_s: float,
    *,
    lookback_days: int = 45,
    min_coverage: float = MIN_COVERAGE,
) -> LikeDays:
    """The latest ``wanted`` days whose load may stand for that of ``spans``, no more than ``lookback_days`` back.

    ``spans`` are the event and, where there is one, the window that the same-day adjustment looks at.

    A day is eligible if each local day it touches is of the same type as the event's, is no holiday, event day or outage
    day and lies before the event was known, if clocks were not changed within the spans, and if the meter knows at least
    ``min_coverage`` of the slots (``step_s``) of each span.
    """
    base = calendar.day(window.start)
    touched = sorted({day for span in spans for day in calendar.days(*span)})
    events = calendar.event_days()
    eligible: list[int] = []
    passed_over: list[tuple[date, str]] = []
    for back in range(1, lookback_days + 1):
        if len(eligible) == wanted:
            break
        day = base - timedelta(days=back)
        pairs = [(own, own - timedelta(days=back)) for own in touched]
        reason = next(filter(None, (_unlike(calendar, events, own, then) for own, then in pairs)), None)
        if reason is None and any(then >= calendar.day(window.known_at) for _, then in pairs):
            reason = "not before the day of the notice"
        if reason is None:
            reason = next(
                filter(None, (_uncovered(series, calendar, span, back, step_s, min_coverage) for span in spans)), None
            )
        if reason is None:
            eligible.append(back)
        else:
            passed_over.append((day, reason))
    return LikeDays(tuple(eligible), tuple(passed_over))


def _unlike(calendar: Calendar, events: frozenset[date], own: date, then: date) -> str | None:
    if then in calendar.holidays:
        return "holiday"
    if then in events:
        return "event day"
    if then in calendar.outage_days:
        return "outage day"
    if calendar.kind(own) != calendar.kind(then):
        return f"{calendar.kind(then)}, not {calendar.kind(own)}"
    return None


def _uncovered(
    series: MeteredSeries, calendar: Calendar, span: Span, back: int, step_s: float, min_coverage: float
) -> str | None:
    count = slots_in(span, step_s)
    near_change = _shifted(calendar, span[0], span[0] + timedelta(seconds=count * step_s), back) is None
    if near_change and any(len(moments(calendar, span[0] + timedelta(seconds=k * step_s), back)) != 1 for k in range(count)):
        return "clocks changed"
    share = float((~np.isnan(load_on(series, calendar, span[0], step_s, count, back))).mean())
    return None if share >= min_coverage - 1e-9 else f"meter covers {share:.0%}"
