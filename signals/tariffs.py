"""What a site pays for power: a contract (fixed, time of use or indexed) with grid fees, taxes, VAT and a demand charge. Pure.

It turns a contract, and wholesale prices where the contract follows them, into the retail price. It fetches nothing, and what
is unknown of wholesale stays unknown here. Retail points carry the variant "retail" and are never mixed with wholesale.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from zoneinfo import ZoneInfo

from signals.points import Kind, Quality, SignalError, SignalPoint, require_utc
from signals.series import SlotSeries
from signals.time_of_use import Period, cover_problems, segments

#: The variant of every retail point.
RETAIL = "retail"
#: How a slot of a contract is known (see SlotSeries).
_PUBLISHED = "published"


class TariffType(StrEnum):
    """How the price of energy itself is set."""

    FIXED = "fixed"
    TIME_OF_USE = "time_of_use"
    INDEXED = "indexed"


@dataclass(frozen=True, slots=True)
class DemandTerms:
    """A charge on a month's highest mean draw: ``per_kw_month`` in the tariff's currency, the mean taken over intervals of
    ``interval_s``. ``windows`` are the hours that count (empty: all). ``peak_kw`` is a peak that is reached or paid anyway, in
    ``peak_month`` ("2026-12") or, without one, in every month; None: only what was measured is known.
    """

    per_kw_month: float
    interval_s: int = 900
    windows: tuple[Period, ...] = ()
    peak_kw: float | None = None
    peak_month: str | None = None

    def given_peak_kw(self, month: datetime, zone: ZoneInfo) -> float | None:
        """The peak stated for the month that begins at ``month``, None when none is."""
        if self.peak_month is not None and month.astimezone(zone).strftime("%Y-%m") != self.peak_month:
            return None
        return self.peak_kw


@dataclass(frozen=True, slots=True)
class Tariff:
    """A contract for power. Prices are ``currency``/MWh without VAT; ``vat`` is a fraction, applied last, to everything.

    Fixed: ``energy_per_mwh``. Time of use: ``periods``, which cover every hour of the year once. Indexed: wholesale x
    ``factor`` + ``adder_per_mwh``. ``grid_fee_per_mwh`` or ``grid_fee_periods``, ``taxes_per_mwh``, ``vat`` and ``demand`` are
    None (empty) where the contract has none. Holidays count as Sundays. Raises SignalError with everything that is wrong.
    """

    name: str
    type: TariffType
    currency: str
    timezone: str
    energy_per_mwh: float | None = None
    periods: tuple[Period, ...] = ()
    factor: float | None = None
    adder_per_mwh: float | None = None
    grid_fee_per_mwh: float | None = None
    grid_fee_periods: tuple[Period, ...] = ()
    taxes_per_mwh: float | None = None
    vat: float | None = None
    holidays: frozenset[date] = frozenset()
    demand: DemandTerms | None = None

    def __post_init__(self) -> None:
        problems = [*_wrong_figures(self), *_wrong_energy(self)]
        if self.grid_fee_per_mwh is not None and self.grid_fee_periods:
            problems.append("grid fee: give one figure or one for each period, not both")
        for what, periods in (("period", self.periods), ("grid fee", self.grid_fee_periods)):
            problems += [f"{what}: {problem}" for problem in cover_problems(periods)] if periods else []
            problems += [f"{what} {p.name!r}: has no price; give one, 0 when it is free" for p in periods if p.per_mwh is None]
        if problems:
            raise SignalError("; ".join(problems))

    @property
    def unit(self) -> str:
        """Unit of its prices."""
        return f"{self.currency}/MWh"

    @property
    def source(self) -> str:
        """Source of its points."""
        return f"tariff:{self.name}"

    @property
    def zone(self) -> ZoneInfo:
        """Its time zone."""
        return ZoneInfo(self.timezone)

    @property
    def with_vat(self) -> float:
        """What every amount is multiplied with at last."""
        return 1.0 if self.vat is None else 1.0 + self.vat

    @property
    def needs_wholesale(self) -> bool:
        """Whether its price follows the wholesale price."""
        return self.type is TariffType.INDEXED

    def energy_price(self, wholesale_per_mwh: float | None, period: Period | None) -> float | None:
        """The price of energy alone, without fees, taxes and VAT; None where it follows an unknown wholesale price."""
        if self.type is TariffType.FIXED:
            return self.energy_per_mwh
        if self.type is TariffType.TIME_OF_USE:
            return period.per_mwh if period is not None else None
        if wholesale_per_mwh is None or self.factor is None or self.adder_per_mwh is None:
            return None
        return wholesale_per_mwh * self.factor + self.adder_per_mwh


def _wrong_figures(tariff: Tariff) -> Iterator[str]:
    figures = {
        "energy_per_mwh": tariff.energy_per_mwh,
        "factor": tariff.factor,
        "adder_per_mwh": tariff.adder_per_mwh,
        "grid_fee_per_mwh": tariff.grid_fee_per_mwh,
        "taxes_per_mwh": tariff.taxes_per_mwh,
        "vat": tariff.vat,
        "per_kw_month": tariff.demand.per_kw_month if tariff.demand else None,
        "peak_kw": tariff.demand.peak_kw if tariff.demand else None,
    }
    figures |= {f"{p.name!r}": p.per_mwh for p in (*tariff.periods, *tariff.grid_fee_periods)}
    for key, value in figures.items():
        if value is not None and not math.isfinite(value):
            yield f"{key}: {value!r} is not a finite number"
        elif value is not None and value < 0 and key in ("factor", "vat", "per_kw_month", "peak_kw"):
            yield f"{key}: {value!r} must not be negative"
    if tariff.vat is not None and tariff.vat >= 1:
        yield f"vat: {tariff.vat!r} is a fraction below 1, such as 0.19"
    if tariff.demand is not None and (tariff.demand.interval_s <= 0 or 3600 % tariff.demand.interval_s):
        yield f"interval_s: {tariff.demand.interval_s!r} must divide an hour, such as 900"
    if len(tariff.currency) != 3 or not tariff.currency.isupper():
        yield f"currency: {tariff.currency!r} must be a code of three capital letters, such as 'EUR'"
    try:
        ZoneInfo(tariff.timezone)
    except (KeyError, ValueError, OSError):
        yield f"timezone: {tariff.timezone!r} must be an IANA time zone such as 'Europe/Berlin'"


def _wrong_energy(tariff: Tariff) -> Iterator[str]:
    """Each type has its own figures, and none of another's."""
    given = {
        TariffType.FIXED: tariff.energy_per_mwh is not None,
        TariffType.TIME_OF_USE: bool(tariff.periods),
        TariffType.INDEXED: tariff.factor is not None or tariff.adder_per_mwh is not None,
    }
    names = {
        TariffType.FIXED: "energy_per_mwh",
        TariffType.TIME_OF_USE: "periods with a price each",
        TariffType.INDEXED: "factor and adder_per_mwh",
    }
    if not given[tariff.type] or (tariff.type is TariffType.INDEXED and None in (tariff.factor, tariff.adder_per_mwh)):
        yield f"type: {'an' if tariff.needs_wholesale else 'a'} {tariff.type} tariff needs {names[tariff.type]}"
    for other, there in given.items():
        if there and other is not tariff.type:
            yield f"type: {names[other]} belong to a tariff of type {other}, not {tariff.type}; remove them or change the type"


# --- prices -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rates:
    """What a contract asks over ``[start, end)``, per MWh without VAT; ``energy`` is the period of a time-of-use contract."""

    start: datetime
    end: datetime
    period: Period | None
    grid_fee_per_mwh: float
    grid_fee_name: str
    taxes_per_mwh: float


def rates(tariff: Tariff, start: datetime, end: datetime) -> Iterator[Rates]:
    """``[start, end)`` cut wherever a period of the contract begins or ends, in order of time."""
    zone, holidays = tariff.zone, tariff.holidays
    energy = list(segments(tariff.periods, zone, holidays, start, end))
    fees = list(segments(tariff.grid_fee_periods, zone, holidays, start, end))
    cuts = sorted({start, end, *(begin for begin, _, _ in energy), *(begin for begin, _, _ in fees)})
    at_energy = at_fee = 0
    for begin, stop in pairwise(cuts):
        while energy[at_energy][1] <= begin:
            at_energy += 1
        while fees[at_fee][1] <= begin:
            at_fee += 1
        fee = fees[at_fee][2]
        yield Rates(
            begin,
            stop,
            energy[at_energy][2],
            (fee.per_mwh or 0.0) if fee is not None else (tariff.grid_fee_per_mwh or 0.0),
            fee.name if fee is not None else "",
            tariff.taxes_per_mwh or 0.0,
        )


def _retail(tariff: Tariff, wholesale_per_mwh: float | None, part: Rates) -> float | None:
    energy = tariff.energy_price(wholesale_per_mwh, part.period)
    return None if energy is None else (energy + part.grid_fee_per_mwh + part.taxes_per_mwh) * tariff.with_vat


def price_points(
    tariff: Tariff,
    wholesale: Sequence[SignalPoint] | None,
    start: datetime,
    end: datetime,
    *,
    region: str,
    known_at: datetime,
) -> list[SignalPoint]:
    """Retail price over ``[start, end)``, source "tariff:NAME", variant "retail", per MWh in the tariff's currency.

    A fixed or time-of-use contract needs no ``wholesale``; its points are known at ``known_at``. An indexed one gives a point
    for each wholesale point (cut where fees change), with that point's quality and times, and nothing where there is none.
    Raises SignalError for wholesale points of another currency, or that are retail already.
    """
    start, end, known_at = require_utc("start", start), require_utc("end", end), require_utc("known_at", known_at)
    if start >= end:
        return []
    if not tariff.needs_wholesale:
        return [
            SignalPoint(
                region,
                Kind.PRICE,
                tariff.unit,
                part.start,
                part.end,
                None,
                known_at,
                price,
                Quality.MEASURED,
                tariff.source,
                RETAIL,
            )
            for part in _merged(tariff, rates(tariff, start, end))
            if (price := _retail(tariff, None, part)) is not None
        ]
    points = []
    parts = list(rates(tariff, start, end))
    for point in sorted(wholesale or (), key=lambda p: (p.start, p.end)):
        _check_wholesale(tariff, point.unit, point.variant)
        while parts and parts[0].end <= point.start:
            parts.pop(0)
        for part in parts:
            if part.start >= point.end:
                break
            begin, stop = max(point.start, part.start), min(point.end, part.end)
            price = _retail(tariff, point.value, part)
            if stop > begin and price is not None:
                points.append(
                    SignalPoint(
                        region,
                        Kind.PRICE,
                        tariff.unit,
                        begin,
                        stop,
                        point.issued_at,
                        point.retrieved_at,
                        price,
                        point.quality,
                        tariff.source,
                        RETAIL,
                    )
                )
    return points


def _merged(tariff: Tariff, parts: Iterator[Rates]) -> Iterator[Rates]:
    """Neighbours with the same price as one."""
    held: Rates | None = None
    for part in parts:
        if held is not None and _retail(tariff, None, held) == _retail(tariff, None, part):
            part = Rates(held.start, part.end, held.period, held.grid_fee_per_mwh, held.grid_fee_name, held.taxes_per_mwh)
        elif held is not None:
            yield held
        held = part
    if held is not None:
        yield held


def _check_wholesale(tariff: Tariff, unit: str, variant: str = "") -> None:
    if unit != tariff.unit:
        raise SignalError(
            f"tariff {tariff.name}: its currency is {tariff.currency}, the wholesale price it follows is in {unit}; "
            f"use a feed in {tariff.currency}, or give the tariff's figures in the feed's currency"
        )
    if variant == RETAIL:
        raise SignalError(f"tariff {tariff.name}: the price it follows is retail already; an indexed tariff follows wholesale")


def price_series(
    tariff: Tariff, wholesale: SlotSeries | None, *, start: datetime, slot_s: int, slots: int
) -> SlotSeries | None:
    """Retail price on a planner's slots, each the time-weighted mean of its slot.

    A fixed or time-of-use contract is laid on ``slots`` slots of ``slot_s`` seconds from ``start``. An indexed one is laid on
    the slots of ``wholesale``: unknown where that is unknown, known as it is known, with its quantiles; None without a series.
    Raises SignalError for a wholesale series of another currency.
    """
    if not tariff.needs_wholesale:
        means = _means(tariff, require_utc("start", start), slot_s, slots)
        return SlotSeries(start, slot_s, tuple(means), (_PUBLISHED,) * slots, tariff.unit, tariff.source)
    if wholesale is None:
        return None
    _check_wholesale(tariff, wholesale.unit)
    rest = _means(tariff, wholesale.start, wholesale.slot_s, len(wholesale.values))
    times = (tariff.factor or 0.0) * tariff.with_vat

    def retail(values: tuple[float | None, ...]) -> tuple[float | None, ...]:
        return tuple(None if value is None else value * times + more for value, more in zip(values, rest, strict=bool(values)))

    low, high = retail(wholesale.low), retail(wholesale.high)
    return replace(wholesale, values=retail(wholesale.values), low=low, high=high, unit=tariff.unit, source=tariff.source)


def _means(tariff: Tariff, start: datetime, slot_s: int, slots: int) -> list[float]:
    """The mean over each slot of what the contract asks (at a wholesale price of 0)."""
    sums = [0.0] * slots
    for part in rates(tariff, start, start + timedelta(seconds=slot_s * slots)) if slots else ():
        price = _retail(tariff, 0.0, part) or 0.0
        begin, stop = (part.start - start).total_seconds(), (part.end - start).total_seconds()
        for index in range(int(begin // slot_s), min(math.ceil(stop / slot_s), slots)):
            share = (min(stop, (index + 1) * slot_s) - max(begin, index * slot_s)) / slot_s
            sums[index] += share * price
    return sums
