"""What an event earned or cost under a programme's terms, in the programme's currency.

The terms are the operator's contract, given as numbers; nothing is assumed about them. An event outside the terms is said
to be so, and the amounts are not changed for it: whether it counts is for the contract to say.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from dispatcher.errors import BadInput
from dispatcher.verification.like_days import EventWindow


@dataclass(frozen=True)
class Programme:
    """Terms. Rates are amounts of ``currency``, at least 0, and each is 0 unless given.

    - ``per_kwh``: paid for each kWh delivered, up to ``paid_up_to`` times the committed energy (None: without end).
    - ``per_kw``: paid once an event for each kW committed, in proportion to the performance, never more than in full.
    - ``per_kw_season``: paid for the season whatever one event did: told beside an event, never counted in it.
    - ``penalty_per_kwh``: for each kWh of ``penalty_on``: ``shortfall`` (committed and not delivered) or ``excess`` (drawn
    above the limit, as with a firm service level).
    - ``minimum_performance``: below it nothing is paid. ``opt_out_cost``: what an opt-out costs, instead of payment and
    penalty.
    - ``notice_s``, ``months``, ``hours`` (local, from and to), ``max_event_hours``, ``max_events``, ``max_hours`` (both a
    season): when the programme may call. None: no such term.
    """

    name: str
    currency: str
    per_kwh: float = 0.0
    per_kw: float = 0.0
    per_kw_season: float = 0.0
    penalty_per_kwh: float = 0.0
    penalty_on: str = "shortfall"
    minimum_performance: float = 0.0
    paid_up_to: float | None = 1.0
    opt_out_cost: float = 0.0
    notice_s: float | None = None
    timezone: str = "UTC"
    months: frozenset[int] | None = None
    hours: tuple[float, float] | None = None
    max_event_hours: float | None = None
    max_events: int | None = None
    max_hours: float | None = None

    def __post_init__(self) -> None:
        problems: list[tuple[str, object, str]] = []
        if len(self.currency) != 3 or not self.currency.isalpha() or not self.currency.isupper():
            problems.append(("currency", self.currency, "must be three capital letters such as EUR"))
        names = ("per_kwh", "per_kw", "per_kw_season", "penalty_per_kwh", "minimum_performance", "opt_out_cost", "paid_up_to")
        for name in (*names, "notice_s", "max_event_hours", "max_events", "max_hours"):
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value) and value >= 0):
                problems.append((name, value, "must be at least 0"))
        if self.penalty_on not in ("shortfall", "excess"):
            problems.append(("penalty_on", self.penalty_on, "must be shortfall or excess"))
        if self.months is not None and not self.months <= frozenset(range(1, 13)):
            problems.append(("months", sorted(self.months), "must be numbers from 1 to 12"))
        if self.hours is not None and not 0 <= self.hours[0] < self.hours[1] <= 24:
            problems.append(("hours", self.hours, "must be from and to, within 0 to 24"))
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            problems.append(("timezone", self.timezone, "must be a name such as Europe/Berlin"))
        if problems:
            raise BadInput(problems)


@dataclass(frozen=True)
class Line:
    """One item: a quantity, what a unit of it is worth (below 0: a cost), and the amount; None where the quantity is not
    known."""

    name: str
    quantity: float | None
    unit: str
    rate: float
    amount: float | None


@dataclass(frozen=True)
class Settlement:
    """What the event was worth by our meter: an estimate until the utility settles.

    ``total`` counts what was measured; ``least`` also takes every kWh that was not measured for a shortfall. None: not known.
    ``breaches``: terms that the call itself did not keep.
    """

    programme: str
    currency: str
    lines: tuple[Line, ...]
    total: float | None
    least: float | None
    breaches: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What settling needs of an event: energies in kWh, the commitment in kW; None where it is not known or there is none."""

    delivered_kwh: float | None
    committed_kwh: float | None
    committed_kw: float | None
    shortfall_kwh: float | None
    unmeasured_kwh: float
    over_cap_kwh: float | None
    unmeasured_over_cap: bool = False
    opted_out: bool = False

    @property
    def performance(self) -> float | None:
        """Delivered over committed; None where either is unknown or nothing was committed."""
        if self.delivered_kwh is None or not self.committed_kwh:
            return None
        return self.delivered_kwh / self.committed_kwh


def settle(programme: Programme, outcome: Outcome, breaches: tuple[str, ...] = ()) -> Settlement:
    """The event's amounts under the programme: payments are above 0, penalties below."""
    remarks: list[str] = []
    if programme.per_kw_season:
        remarks.append(
            f"The season pays {programme.per_kw_season:,.2f} {programme.currency} a kW; that is no event's and not counted."
        )
    if outcome.opted_out:
        line = Line("opt-out", 1.0, "event", -programme.opt_out_cost, -programme.opt_out_cost)
        return Settlement(
            programme.name, programme.currency, (line,), line.amount, line.amount, breaches, ("The site opted out.", *remarks)
        )
    lines = _payments(programme, outcome, remarks)
    penalty = outcome.shortfall_kwh if programme.penalty_on == "shortfall" else outcome.over_cap_kwh
    if programme.penalty_per_kwh:
        what = "energy not delivered" if programme.penalty_on == "shortfall" else "energy above the limit"
        lines.append(_line(f"penalty: {what}", penalty, "kWh", -programme.penalty_per_kwh))
    amounts = [line.amount for line in lines]
    total = None if not lines or any(one is None for one in amounts) else float(sum(one or 0.0 for one in amounts))
    least = total
    if total is not None and programme.penalty_per_kwh:
        if programme.penalty_on == "shortfall":
            least = total - outcome.unmeasured_kwh * programme.penalty_per_kwh
        elif outcome.unmeasured_over_cap:
            least = None
            remarks.append("How much was drawn above the limit while nothing was measured cannot be bounded.")
    return Settlement(programme.name, programme.currency, tuple(lines), total, least, breaches, tuple(remarks))


def _payments(programme: Programme, outcome: Outcome, remarks: list[str]) -> list[Line]:
    lines: list[Line] = []
    performance = outcome.performance
    enough = performance is None or performance >= programme.minimum_performance
    if not enough:
        remarks.append(f"Nothing is paid below a performance of {programme.minimum_performance:.0%}.")
    if programme.per_kwh:
        paid = outcome.delivered_kwh
        if paid is not None:
            most = np.inf
            if programme.paid_up_to is not None and outcome.committed_kwh is not None:
                most = programme.paid_up_to * outcome.committed_kwh
            paid = min(max(paid, 0.0), most) if enough else 0.0
        lines.append(_line("energy delivered, as far as it is paid", paid, "kWh", programme.per_kwh))
    if programme.per_kw:
        share = None if performance is None else min(1.0, max(0.0, performance)) if enough else 0.0
        kw = None if share is None or outcome.committed_kw is None else outcome.committed_kw * share
        lines.append(_line("capacity, by performance", kw, "kW", programme.per_kw))
    return lines


def _line(name: str, quantity: float | None, unit: str, rate: float) -> Line:
    return Line(name, quantity, unit, rate, None if quantity is None else quantity * rate + 0.0)  # nothing has no sign


def breaches_of(
    programme: Programme, window: EventWindow, earlier: tuple[tuple[datetime, datetime], ...] = ()
) -> tuple[str, ...]:
    """What the call did not keep of the programme's terms; ``earlier`` are the season's events before this one."""
    found: list[str] = []
    zone = ZoneInfo(programme.timezone)
    notice_s = (window.start - window.notice_at).total_seconds()
    if programme.notice_s is not None and notice_s < programme.notice_s:
        found.append(f"notice was {max(0.0, notice_s) / 60:,.1f} min, the terms say {programme.notice_s / 60:,.1f} min")
    begin, end = window.start.astimezone(zone), window.end.astimezone(zone)
    if programme.months is not None and begin.month not in programme.months:
        found.append(f"{begin:%B} is outside the season")
    if programme.hours is not None:
        last = end - timedelta(microseconds=1)
        outside = any(not programme.hours[0] <= _hour(one) < programme.hours[1] for one in (begin, last))
        if outside or last.date() != begin.date():
            told = f"{begin:%H:%M} to {end:%H:%M} {programme.timezone}"
            found.append(f"{told} is not within {programme.hours[0]:g} to {programme.hours[1]:g} h")
    length_h = (window.end - window.start).total_seconds() / 3600
    if programme.max_event_hours is not None and length_h > programme.max_event_hours:
        found.append(f"it lasted {length_h:g} h, the terms say {programme.max_event_hours:g} h at most")
    if programme.max_events is not None and len(earlier) >= programme.max_events:
        found.append(f"it was event {len(earlier) + 1} of a season that may have {programme.max_events}")
    hours = sum((last - first).total_seconds() for first, last in earlier) / 3600 + length_h
    if programme.max_hours is not None and hours > programme.max_hours:
        found.append(f"it brought the season to {hours:g} h, the terms say {programme.max_hours:g} h")
    return tuple(found)


def _hour(at: datetime) -> float:
    return at.hour + at.minute / 60 + (at.second + at.microsecond / 1e6) / 3600
