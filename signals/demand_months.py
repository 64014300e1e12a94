"""The months of a tariff's demand charge: what a kW more costs, the peak so far, and the hours in which draw counts. Pure."""

from dataclasses import dataclass
from datetime import datetime

from signals.points import require_utc
from signals.tariffs import Tariff
from signals.time_of_use import months, segments


@dataclass(frozen=True, slots=True)
class DemandMonth:
    """A month of a demand charge: what a kW above ``peak_kw`` costs (VAT included, in the tariff's currency) when it is drawn
    in one of ``windows`` (half open, within the month)."""

    start: datetime
    end: datetime
    per_kw: float
    interval_s: int
    peak_kw: float
    windows: tuple[tuple[datetime, datetime], ...]


def demand_months(tariff: Tariff, start: datetime, end: datetime, measured_kw: dict[datetime, float]) -> list[DemandMonth]:
    """The months that overlap ``[start, end)``, each with its peak so far: the higher of the peak that the contract states and
    of ``measured_kw``, the highest mean seen, by the month's first moment. A month of which nothing is known has no peak yet,
    so that any draw in it is a new one. Empty without a demand charge."""
    terms = tariff.demand
    if terms is None:
        return []
    found = []
    for begin, stop in months(tariff.zone, require_utc("start", start), require_utc("end", end)):
        given = terms.given_peak_kw(begin, tariff.zone)
        peak_kw = max([value for value in (given, measured_kw.get(begin)) if value is not None], default=0.0)
        found.append(
            DemandMonth(
                begin,
                stop,
                terms.per_kw_month * tariff.with_vat,
                terms.interval_s,
                peak_kw,
                counted(tariff, max(begin, start), min(stop, end)),
            )
        )
    return found


def counted(tariff: Tariff, start: datetime, end: datetime) -> tuple[tuple[datetime, datetime], ...]:
    """The parts of ``[start, end)`` in which draw counts for the demand charge."""
    terms = tariff.demand
    if terms is None:
        return ()
    if not terms.windows:
        return ((start, end),)
    joined: list[tuple[datetime, datetime]] = []
    for begin, stop, period in segments(terms.windows, tariff.zone, tariff.holidays, start, end):
        if period is None:
            continue
        if joined and joined[-1][1] == begin:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((begin, stop))
    return tuple(joined)
