"""What a month cost: energy, fees, taxes, the demand charge and VAT as the lines of a bill, from a load and a tariff. Pure.

Where the load, or the wholesale price that an indexed tariff follows, is unknown, the bill says so and has no total: a missing
hour is not an hour without cost.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from signals.demand_months import counted
from signals.points import SignalError, SignalPoint, require_utc
from signals.tariffs import Tariff, TariffType, price_points, rates
from signals.time_of_use import months


@dataclass(frozen=True, slots=True)
class Load:
    """Mean draw of a site over ``[start, end)``, kW at the meter."""

    start: datetime
    end: datetime
    load_kw: float


@dataclass(frozen=True, slots=True)
class BillLine:
    """One line: ``quantity`` in ``unit`` (kWh, kW, or the currency that VAT is taken of), and the ``amount`` it costs."""

    what: str
    quantity: float
    unit: str
    amount: float


@dataclass(frozen=True, slots=True)
class Bill:
    """A bill over ``[start, end)`` in ``currency``.

    Lines hold what is known; ``missing`` are the parts of which the load or the price is unknown, and then ``total`` is None
    while ``known_total`` sums the lines. ``peaks_kw`` has each month's highest mean that counts, with its interval's start.
    """

    start: datetime
    end: datetime
    currency: str
    energy_kwh: float
    lines: tuple[BillLine, ...]
    missing: tuple[tuple[datetime, datetime], ...]
    peaks_kw: tuple[tuple[datetime, float], ...] = ()

    @property
    def known_total(self) -> float:
        """Sum of what is known."""
        return sum(line.amount for line in self.lines)

    @property
    def total(self) -> float | None:
        """What the interval cost, None while part of it is unknown."""
        return None if self.missing else self.known_total


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch with one draw and one price of energy (None: unknown)."""

    start: datetime
    end: datetime
    load_kw: float

    @property
    def kwh(self) -> float:
        return self.load_kw * (self.end - self.start).total_seconds() / 3600.0


def bill(
    tariff: Tariff,
    load: Sequence[Load],
    start: datetime,
    end: datetime,
    *,
    wholesale: Sequence[SignalPoint] | None = None,
    peak_kw: float | None = None,
) -> Bill:
    """The bill over ``[start, end)``: a line for each price of energy and grid fee, for taxes, each month's demand, and VAT.

    ``load`` must not overlap; ``wholesale`` are the points (not overlapping either) that an indexed tariff follows. The demand
    charge is the whole month's, on its highest interval that was seen here, or on ``peak_kw`` when that is higher (such as a
    peak from before ``start``). Raises SignalError for a load that overlaps or is not a draw.
    """
    start, end = require_utc("start", start), require_utc("end", end)
    pieces = _pieces(load, start, end)
    missing = _holes([(piece.start, piece.end) for piece in pieces], start, end)
    energy: dict[str, list[float]] = {}
    fees: dict[str, list[float]] = {}
    taxed_kwh = 0.0
    prices = [(p.start, p.end, p.value) for p in sorted(wholesale or (), key=lambda p: p.start)]
    if tariff.needs_wholesale:
        price_points(tariff, wholesale, start, end, region="", known_at=start)  # refuses another currency
        _refuse_overlap("wholesale", [(begin, stop) for begin, stop, _ in prices])
        missing += _uncovered(pieces, [(begin, stop) for begin, stop, _ in prices])
    for part in rates(tariff, start, end) if start < end else ():
        for piece in _cut(pieces, part.start, part.end):
            _add(fees, part.grid_fee_name or "grid fee", piece.kwh, part.grid_fee_per_mwh)
            taxed_kwh += piece.kwh
            if not tariff.needs_wholesale:
                name = part.period.name if part.period is not None else "energy"
                _add(energy, name, piece.kwh, tariff.energy_price(None, part.period) or 0.0)
    for begin, stop, value in prices if tariff.needs_wholesale else ():
        for piece in _cut(pieces, begin, stop):
            _add(energy, "energy, indexed", piece.kwh, tariff.energy_price(value, None) or 0.0)
    lines = [BillLine(_energy_name(tariff, name), kwh, "kWh", amount) for name, (kwh, amount) in energy.items()]
    if tariff.grid_fee_per_mwh is not None or tariff.grid_fee_periods:
        lines += [
            BillLine("grid fee" if name == "grid fee" else f"grid fee, {name}", kwh, "kWh", amount)
            for name, (kwh, amount) in fees.items()
        ]
    if tariff.taxes_per_mwh is not None:
        lines.append(BillLine("taxes", taxed_kwh, "kWh", taxed_kwh * tariff.taxes_per_mwh / 1000.0))
    peaks = []
    if tariff.demand is not None:
        for begin, stop in months(tariff.zone, start, end):
            found = peak(tariff, load, max(begin, start), min(stop, end))
            charged_kw = max([value for value in (peak_kw, found[1] if found else None) if value is not None], default=None)
            if charged_kw is None:
                continue
            peaks.append((found[0] if found else begin, charged_kw))
            label = begin.astimezone(tariff.zone).strftime("%Y-%m")
            lines.append(BillLine(f"demand {label}", charged_kw, "kW", charged_kw * tariff.demand.per_kw_month))
    if tariff.vat is not None:
        before = sum(line.amount for line in lines)
        lines.append(BillLine("VAT", before, tariff.currency, before * tariff.vat))
    return Bill(start, end, tariff.currency, sum(p.kwh for p in pieces), tuple(lines), tuple(_joined(missing)), tuple(peaks))


def peak(tariff: Tariff, load: Iterable[Load], start: datetime, end: datetime) -> tuple[datetime, float] | None:
    """The highest mean draw (kW) of a measurement interval in ``[start, end)`` that counts for the demand charge, and that
    interval's start; None when no such interval is wholly known."""
    terms = tariff.demand
    if terms is None:
        return None
    pieces = _pieces(load, start, end)
    best: tuple[datetime, float] | None = None
    step = timedelta(seconds=terms.interval_s)
    windows = counted(tariff, start, end)
    sums: dict[datetime, list[float]] = {}
    for piece in pieces:
        at = _floor(piece.start, terms.interval_s)
        while at < piece.end:
            seconds = (min(piece.end, at + step) - max(piece.start, at)).total_seconds()
            entry = sums.setdefault(at, [0.0, 0.0])
            entry[0] += piece.load_kw * seconds
            entry[1] += seconds
            at += step
    for at, (kws, seconds) in sorted(sums.items()):
        whole = seconds >= terms.interval_s - 1.0
        counts = any(begin < at + step and at < stop for begin, stop in windows)
        if whole and counts and (best is None or kws / seconds > best[1]):
            best = (at, kws / seconds)
    return best


def _floor(when: datetime, step_s: int) -> datetime:
    return when - timedelta(seconds=when.timestamp() % step_s)


def _pieces(load: Iterable[Load], start: datetime, end: datetime) -> list[_Piece]:
    spans = sorted((require_utc("load", item.start), require_utc("load", item.end), item.load_kw) for item in load)
    _refuse_overlap("load", [(begin, stop) for begin, stop, _ in spans])
    for begin, stop, kw in spans:
        if not kw >= 0 or stop <= begin:
            raise SignalError(f"load: {kw!r} kW from {begin.isoformat()} to {stop.isoformat()}; must be a draw over some time")
    return [_Piece(max(b, start), min(s, end), kw) for b, s, kw in spans if b < end and s > start]


def _refuse_overlap(what: str, spans: Sequence[tuple[datetime, datetime]]) -> None:
    for one, other in pairwise(spans):
        if other[0] < one[1]:
            raise SignalError(f"{what}: two values at {other[0].isoformat()}; give one for each moment")


def _cut(pieces: Sequence[_Piece], start: datetime, end: datetime) -> list[_Piece]:
    inside = pieces[bisect_right(pieces, start, key=lambda p: p.end) : bisect_left(pieces, end, key=lambda p: p.start)]
    return [_Piece(max(p.start, start), min(p.end, end), p.load_kw) for p in inside]


def _add(sums: dict[str, list[float]], name: str, kwh: float, per_mwh: float) -> None:
    entry = sums.setdefault(name, [0.0, 0.0])
    entry[0] += kwh
    entry[1] += kwh * per_mwh / 1000.0


def _energy_name(tariff: Tariff, name: str) -> str:
    return f"energy, {name}" if tariff.type is TariffType.TIME_OF_USE else name


def _holes(spans: Sequence[tuple[datetime, datetime]], start: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    """What of ``[start, end)`` the spans, in order, leave open."""
    found, reached = [], start
    for begin, stop in spans:
        if begin > reached:
            found.append((reached, min(begin, end)))
        reached = max(reached, stop)
    if reached < end:
        found.append((reached, end))
    return found


def _uncovered(pieces: Sequence[_Piece], prices: Sequence[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Stretches with a draw, even of 0, but no price."""
    found: list[tuple[datetime, datetime]] = []
    for piece in pieces:
        first = bisect_right(prices, piece.start, key=lambda span: span[1])
        inside = prices[first : bisect_left(prices, piece.end, key=lambda span: span[0])]
        found += _holes(inside, piece.start, piece.end)
    return found


def _joined(spans: list[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    merged: list[tuple[datetime, datetime]] = []
    for begin, stop in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((begin, stop))
    return merged
