"""When prices, or the grid's load, make an event of our own: from a rule and the values known now to the events that should be.

Pure. A value that is not known starts nothing and ends nothing. It knows no store, no feed and no limit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

HOUR = timedelta(hours=1)
#: How the highest hours of a day are told.
_HIGHEST = {"price": "highest-priced hours", "load": "hours of highest load"}

Span = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True)
class Rule:
    """See config_trigger.TriggerConfig. With ``highest_hours`` it is about the highest hours of a day; else about a value that
    reaches ``above`` and falls below ``release``, in the unit of ``what``. ``hours`` are of the day in ``zone``."""

    what: Literal["price", "load"]
    above: float | None
    release: float | None
    least_s: float
    longest_s: float
    highest_hours: int | None
    months: frozenset[int] | None
    hours: tuple[float, float] | None
    zone: str
    max_events: int | None
    max_hours: float | None
    per: str

    def may(self, at: datetime) -> bool:
        """Whether it may act at that moment, by its months and hours."""
        local = at.astimezone(ZoneInfo(self.zone))
        hour = local.hour + local.minute / 60 + local.second / 3600
        return (self.months is None or local.month in self.months) and (
            self.hours is None or self.hours[0] <= hour < self.hours[1]
        )

    def period(self, at: datetime) -> datetime:
        """When the month or season began that its budget counts in; without months a season is a year."""
        local = at.astimezone(ZoneInfo(self.zone))
        year, month = local.year, local.month
        if self.per == "season":
            if self.months is None or len(self.months) == 12 or month not in self.months:
                month = 1
            else:
                while (month - 2) % 12 + 1 in self.months:
                    year, month = (year - 1, 12) if month == 1 else (year, month - 1)
        return datetime(year, month, 1, tzinfo=ZoneInfo(self.zone)).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Slot:
    """What energy costs in a slot, a MWh, or the grid's load in it, MW; None: not known."""

    start: datetime
    end: datetime
    value: float | None


@dataclass(frozen=True, slots=True)
class Held:
    """An event that was made before, as it is stored. One that was cancelled before it began has no spans."""

    spans: tuple[Span, ...]
    cancelled: bool = False

    @property
    def hours(self) -> float:
        """For how long it asks for a limit, h."""
        return sum((end - start) / HOUR for start, end in self.spans)

    @property
    def end(self) -> datetime | None:
        """When its last limit ends."""
        return max((end for _, end in self.spans), default=None)


@dataclass(frozen=True, slots=True)
class Wanted:
    """An event as it should be: its limits' spans, and why, with the figures. Without spans it ends now."""

    event_id: str
    spans: tuple[Span, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Events to be made or changed (those that stay as they are may be among them), and what an operator must be told: what
    each alarm is of, and its sentence."""

    wanted: tuple[Wanted, ...] = ()
    alarms: tuple[tuple[str, str], ...] = ()


def decide(rule: Rule, slots: Sequence[Slot], held: Mapping[str, Held], now: datetime, unit: str = "") -> Decision:
    """What should be, by the values known at ``now``: slots in order of time, those behind us as far as they matter, a
    day and two hours ago. ``held`` are all events of this trigger so far."""
    current = next((slot for slot in slots if slot.start <= now < slot.end), None)
    alarms: list[tuple[str, str]] = []
    if current is None or current.value is None:
        alarms.append((rule.what, f"the {rule.what} of now is not known: nothing is started by it, and nothing ended"))
    elif rule.highest_hours and _hours(now.astimezone(ZoneInfo(rule.zone)).date(), ZoneInfo(rule.zone), slots) is None:
        alarms.append(("day", f"the {rule.what} is not known for all of today: its {_HIGHEST[rule.what]} cannot be told"))
    found = _highest(rule, slots, held, now, unit) if rule.highest_hours else _above(rule, slots, held, now, unit)
    return _within_budget(rule, tuple(found), held, now, tuple(alarms))


# --- the price or load is above a value -----------------------------------------------------------------------------------


def _above(rule: Rule, slots: Sequence[Slot], held: Mapping[str, Held], now: datetime, unit: str) -> Iterator[Wanted]:
    live = sorted(
        ((key, one) for key, one in held.items() if not one.cancelled and one.end is not None and one.end > now),
        key=lambda item: item[1].spans[0],
    )
    ahead = [slot for slot in slots if slot.end > now]
    used: set[str] = set()
    # 1. what has begun ends when the value is known to be below the release, and not before its least length
    free_at, armed = now, _armed(rule, held, slots, now)
    for key, one in live:
        start, end = one.spans[0]
        if start > now:
            continue
        used.add(key)
        until, low = _fall(rule, ahead, start)
        known = all(slot.value is not None for slot in ahead if slot.start < until and end < slot.end)
        if low is not None and (until < end or (until > end and known)):
            why = f"{_said(rule, low, unit)}, below {rule.release:g}" if rule.may(low.start) else "its hours are over"
            yield Wanted(key, ((start, until),) if until > now else (), why)
            end = until
        free_at, armed = max(free_at, end), _ended_early(rule, ((start, end),))
    # 2. what begins later, or now
    for start, end, first in _runs(rule, [slot for slot in ahead if slot.end > free_at], max(now, free_at), armed):
        same = next((k for k, one in live if k not in used and one.spans[0][0] < end and start < one.spans[0][1]), None)
        key = same or f"{start:%Y-%m-%dT%H%MZ}"
        used.add(key)
        yield Wanted(key, ((start, end),), f"{_said(rule, first, unit)}, at or above {rule.above:g}")
    # 3. what was to begin, and is known not to any more
    for key, one in live:
        start, end = one.spans[0]
        covering = [slot for slot in ahead if slot.start < end and start < slot.end]
        if key not in used and covering and all(slot.value is not None for slot in covering):
            yield Wanted(key, (), f"the {rule.what} was revised: {_said(rule, covering[0], unit)}")


def _low(rule: Rule, slot: Slot) -> bool:
    """Whether it is known that nothing is to be asked for in this slot."""
    return not rule.may(slot.start) or (slot.value is not None and rule.release is not None and slot.value < rule.release)


def _fall(rule: Rule, slots: Sequence[Slot], start: datetime) -> tuple[datetime, Slot | None]:
    """When what began at ``start`` ends, and the slot that ends it; None: no fall is known, and its longest length does."""
    least_end, last_end = start + timedelta(seconds=rule.least_s), start + timedelta(seconds=rule.longest_s)
    low = next((p for p in slots if p.end > least_end and p.end > start and _low(rule, p)), None)
    until = last_end if low is None else max(low.start, least_end)
    return min(until, last_end), low


def _ended_early(rule: Rule, spans: Sequence[Span]) -> bool:
    """Whether an event ended before its longest length was over, which is: because the value fell."""
    return spans[-1][1] - spans[0][0] < timedelta(seconds=rule.longest_s)


def _armed(rule: Rule, held: Mapping[str, Held], slots: Sequence[Slot], now: datetime) -> bool:
    """Whether a new event may begin: after one that ended by its longest length the value must have been below first."""
    over = [one for one in held.values() if one.end is not None and one.end <= now]
    last = max(over, key=lambda one: max(end for _, end in one.spans), default=None)
    if last is None or last.end is None or not slots or last.end < slots[0].start or _ended_early(rule, last.spans):
        return True
    return any(_low(rule, slot) for slot in slots if slot.end > last.end and slot.start <= now)


def _runs(rule: Rule, slots: Sequence[Slot], begin: datetime, armed: bool) -> Iterator[tuple[datetime, datetime, Slot]]:
    """(start, end, first slot) of each stretch from the value's rise to its fall. What is not known changes nothing on the way;
    where no fall is known the longest length ends it, and the value must fall before another begins."""
    busy_until = begin
    for slot in slots:
        if slot.end <= busy_until:
            continue
        if _low(rule, slot):
            armed = True
        elif armed and slot.value is not None and rule.above is not None and slot.value >= rule.above:
            start = max(slot.start, busy_until)
            busy_until, _ = _fall(rule, slots, start)
            armed = _ended_early(rule, ((start, busy_until),))
            yield start, busy_until, slot


# --- the highest hours of a day -----------------------------------------------------------------------------------


def _highest(rule: Rule, slots: Sequence[Slot], held: Mapping[str, Held], now: datetime, unit: str) -> Iterator[Wanted]:
    zone = ZoneInfo(rule.zone)
    days = sorted({slot.start.astimezone(zone).date() for slot in slots if slot.end > now})
    for day in days:
        hours = _hours(day, zone, slots)
        if hours is None:
            continue  # not all of it is known (yet)
        key = day.isoformat()
        before = held.get(key)
        begun = _begun(before.spans, now) if before is not None else ()
        left = (rule.highest_hours or 0) - sum((end - start) / HOUR for start, end in begun)
        allowed = [(at, mean) for at, mean in hours if rule.may(at) and (rule.above is None or mean >= rule.above)]
        best = sorted(allowed, key=lambda one: (-one[1], one[0]))[: rule.highest_hours]
        busy_until = max((end for _, end in begun), default=now)
        coming = [(at, mean) for at, mean in best if at >= busy_until][: max(0, round(left))]
        spans = _joined([*begun, *((at, at + HOUR) for at, _ in coming)])
        if spans or (before is not None and before.spans and not before.cancelled):
            means = [mean for at, mean in hours if any(start < at + HOUR and at < end for start, end in spans)]
            told = f", each at {min(means):.6g}{unit and ' ' + unit} or more" if means else ""
            hours_said = _HIGHEST[rule.what].replace("hours", "hour" if len(means) == 1 else "hours")
            yield Wanted(key, spans, f"the {len(means)} {hours_said} of {key}{told}")


def _begun(spans: Sequence[Span], now: datetime) -> tuple[Span, ...]:
    """The hours of spans that have begun: those that follow in one span are decided again."""
    return tuple((start, min(end, start + ((now - start) // HOUR + 1) * HOUR)) for start, end in spans if start <= now)


def _hours(day: date, zone: ZoneInfo, slots: Sequence[Slot]) -> list[tuple[datetime, float]] | None:
    """The hours of a local day with their mean value; None unless all of it is known."""
    begin = datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)
    following = day + timedelta(days=1)
    end = datetime(following.year, following.month, following.day, tzinfo=zone).astimezone(UTC)
    found = []
    at = begin
    while at < end:
        parts = [
            ((min(p.end, at + HOUR) - max(p.start, at)) / HOUR, p.value) for p in slots if p.start < at + HOUR and at < p.end
        ]
        if abs(sum(share for share, _ in parts) - 1) > 1e-9:
            return None
        mean = 0.0
        for share, value in parts:
            if value is None:
                return None
            mean += share * value
        found.append((at, mean))
        at += HOUR
    return found


def _joined(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Spans that follow one another as one."""
    out: list[Span] = []
    for start, end in sorted(spans):
        if out and out[-1][1] == start:
            out[-1] = (out[-1][0], end)
        else:
            out.append((start, end))
    return tuple(out)


# --- the budget ---------------------------------------------------------------------------------------------------


def _within_budget(
    rule: Rule, found: tuple[Wanted, ...], held: Mapping[str, Held], now: datetime, alarms: tuple[tuple[str, str], ...]
) -> Decision:
    """What is within the events and hours of each period. An event that does not fit is cut or left out, and said; one that has
    begun keeps the hours that it was made with, though the budget was lowered since."""
    others = {key: one for key, one in held.items() if key not in {w.event_id for w in found}}
    counted = [one.spans for one in others.values() if one.spans]
    kept: list[Wanted] = []
    said = list(alarms)
    for one in sorted(found, key=lambda w: w.spans[:1]):
        if not one.spans:
            kept.append(one)
            continue
        period = rule.period(one.spans[0][0])
        same = [spans for spans in counted if rule.period(spans[0][0]) == period]
        hours_left = None
        if rule.max_hours is not None:
            hours_left = rule.max_hours - sum((end - start) / HOUR for spans in same for start, end in spans)
        before = held.get(one.event_id)
        has_begun = before is not None and bool(before.spans) and before.spans[0][0] <= now
        if hours_left is not None and before is not None and has_begun:
            hours_left = max(hours_left, before.hours)
        if rule.max_events is not None and len(same) >= rule.max_events and not has_begun:
            said.append((f"budget {one.event_id}", _used_up(rule, period, f"{rule.max_events} events", one)))
            spans: tuple[Span, ...] = ()
        elif hours_left is not None:
            spans = _cut(one.spans, hours_left)
            if spans != one.spans:
                said.append((f"budget {one.event_id}", _used_up(rule, period, f"{rule.max_hours:g} hours", one)))
        else:
            spans = one.spans
        if spans:
            counted.append(spans)
            kept.append(Wanted(one.event_id, spans, one.sentence))
        elif before is not None and before.spans:
            kept.append(Wanted(one.event_id, (), "its budget is used up"))
    return Decision(tuple(kept), tuple(dict.fromkeys(said)))


def _cut(spans: Sequence[Span], hours: float) -> tuple[Span, ...]:
    """The first so many hours of the spans."""
    out: list[Span] = []
    for start, end in spans:
        part = min((end - start) / HOUR, hours)
        if part > 1e-9:
            out.append((start, end if part == (end - start) / HOUR else start + part * HOUR))
        hours -= part
    return tuple(out)


def _used_up(rule: Rule, period: datetime, what: str, one: Wanted) -> str:
    return f"the {what} of its {rule.per} since {period:%Y-%m-%d} are used up: no limit or a shorter one, though {one.sentence}"


def _said(rule: Rule, slot: Slot, unit: str) -> str:
    value = "unknown" if slot.value is None else f"{slot.value:.6g}{unit and ' ' + unit}"
    return f"the {rule.what} from {slot.start:%Y-%m-%d %H:%M}Z is {value}"
