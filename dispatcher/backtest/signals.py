"""Prices and carbon intensities that a backtest runs on: from CSV files, or from what an installation has stored.

Several files are joined by region and time. What is missing stays unknown, and is told; it knows nothing of jobs or policies.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dispatcher.backtest.rows import Chunk, Floats, Problems, Table, uncollected
from dispatcher.backtest.scenario import SignalTable
from dispatcher.errors import BadInput
from signals.forecast import usable
from signals.points import Kind, Quality
from signals.store import Signals

#: Lengths of slots that are known; anything else is a slip.
STEPS_S = (300, 900, 1800, 3600)
CARBON_COLUMNS = ("lca", "direct")
#: What the end of a table is repeated from when jobs run on beyond it.
TAIL = timedelta(days=7)
_PRICE = re.compile(r"price_(?!mwh|per)([a-z]{3})(?:_(?:per_)?mwh)?|price \(([a-z]{3})/mwh\)")
_REGIONS = ("region", "zone_id", "zone id", "zone")
#: Regions that a message lists at most.
_LISTED = 60


@dataclass
class _Column:
    """What files said of one region's price or carbon: seconds since the epoch, values, and where each one stands."""

    seconds: list[Floats] = field(default_factory=list)
    values: list[Floats] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    lines: list[NDArray[np.int64]] = field(default_factory=list)
    unit: str = ""


@dataclass(frozen=True)
class Tables:
    """Each wanted region's table, and sentences on what was found while reading."""

    by_region: Mapping[str, SignalTable]
    said: tuple[str, ...]


def read(paths: Sequence[Path | str], regions: Sequence[str], *, carbon: str = "lca") -> Tables:
    """The tables of ``regions`` out of CSV files with a time, a region, and a price or carbon column (or both).

    A file without a region column belongs to the only region, or to the one named before its path, as in "DE-LU=prices.csv".
    ``carbon`` chooses life-cycle ("lca") or "direct" intensities. Raises BadInput naming file, line, column and value.
    """
    if carbon not in CARBON_COLUMNS:
        raise BadInput([("carbon", carbon, "must be one of " + ", ".join(CARBON_COLUMNS))])
    if not regions:
        raise BadInput([("regions", "", "name at least one")])
    twice = sorted({name for name in regions if list(regions).count(name) > 1})
    if twice:
        raise BadInput([("regions", ", ".join(twice), "name each once")])
    if not paths:
        raise BadInput([("signals", "", "name at least one CSV file")])
    problems = Problems()
    found: dict[tuple[str, str], _Column] = {}
    seen: set[str] = set()
    with uncollected():
        for given in paths:
            _read_file(given, regions, carbon, found, seen, problems)
    problems.check()
    unknown = [name for name in regions if (name, "price") not in found and (name, "carbon") not in found]
    if unknown:
        there = ", ".join(sorted(seen)[:_LISTED]) or "none"
        raise BadInput([("regions", name, f"is in none of the signal files; there are {there}") for name in unknown])
    said: list[str] = []
    tables = {}
    for name in regions:
        columns = {what: found[name, what] for what in ("price", "carbon") if (name, what) in found}
        laid = {what: _laid(name, what, column, problems, said) for what, column in columns.items()}
        problems.check()
        tables[name] = _table(name, laid, {what: column.unit for what, column in columns.items()}, carbon)
    return Tables(tables, tuple(said))


def _read_file(
    given: Path | str,
    regions: Sequence[str],
    carbon: str,
    found: dict[tuple[str, str], _Column],
    seen: set[str],
    problems: Problems,
) -> None:
    own, equals, path = str(given).rpartition("=")
    if equals and own not in regions:
        raise BadInput([("signals", str(given), f"{own!r} is none of the regions {', '.join(regions)}")])
    with Table(Path(path if equals else given), problems) as table:
        _read_table(table, own, regions, carbon, found, seen, problems)


def _read_table(
    table: Table,
    own: str,
    regions: Sequence[str],
    carbon: str,
    found: dict[tuple[str, str], _Column],
    seen: set[str],
    problems: Problems,
) -> None:
    """One file; all of it is region ``own``'s where that is not blank."""
    header = [" ".join(name.replace("\u2082", "2").split()) for name in table.header]
    at = next((i for i, name in enumerate(header) if name.startswith("datetime")), None)
    wanted = _value_columns(header, carbon)
    if at is None or not wanted:
        raise BadInput(
            [
                (
                    f"{table.name} line 1",
                    ",".join(header),
                    "needs a column datetime_utc and a price column such as price_eur_mwh or a carbon column such as "
                    f"ci_{carbon}_gco2_kwh",
                )
            ]
        )
    zones = [table.header[i] for i, name in enumerate(header) if name in _REGIONS]
    if not zones and not own and len(regions) > 1:
        raise BadInput([(table.name, ",".join(header), "has no region column; say whose it is, as in REGION=FILE")])
    moments: dict[str, float] = {}
    for chunk in table.chunks():
        seconds = _moments(table, chunk, table.header[at], "utc" in header[at], moments, problems)
        rows = _rows_by_region(chunk, [] if own else zones, own or regions[0], regions, seen)
        lines = np.asarray(chunk.lines, dtype=np.int64)
        for what, (index, unit) in wanted.items():
            name = table.header[index]
            for region, picked in rows.items():
                texts = chunk.columns[name]
                part = (
                    chunk
                    if len(picked) == len(texts)
                    else Chunk({name: tuple(texts[i] for i in picked.tolist())}, lines[picked].tolist())
                )
                values = table.numbers(
                    part,
                    name,
                    wanted=_WANTED[what],
                    good=_within_a_million if what == "price" else _intensity,
                    empty=math.nan,
                )
                column = found.setdefault((region, what), _Column(unit=unit))
                if column.unit != unit:
                    raise BadInput(
                        [(f"{table.name} line 1, column {name}", unit, f"{region} has {column.unit} in another file")]
                    )
                column.seconds.append(seconds[picked])
                column.values.append(values)
                column.files.append(table.name)
                column.lines.append(lines[picked])


_WANTED = {
    "price": "a number within a million, or blank where it is not known",
    "carbon": "a number from 0 to 100000, or blank where it is not known",
}


def _within_a_million(values: Floats) -> NDArray[np.bool_]:
    return np.abs(values) <= 1e6


def _intensity(values: Floats) -> NDArray[np.bool_]:
    return (values >= 0) & (values <= 1e5)


def _value_columns(header: Sequence[str], carbon: str) -> dict[str, tuple[int, str]]:
    """Where price and carbon stand, and the price's currency."""
    out: dict[str, tuple[int, str]] = {}
    words = ("life cycle", "lca", "lifecycle") if carbon == "lca" else ("direct",)
    for i, name in enumerate(header):
        match = _PRICE.fullmatch(name)
        if match:
            out.setdefault("price", (i, (match[1] or match[2]).upper()))
        elif name == f"ci_{carbon}_gco2_kwh" or (name.startswith("carbon intensity") and any(word in name for word in words)):
            out.setdefault("carbon", (i, carbon))
    return out


def _rows_by_region(
    chunk: Chunk, zones: Sequence[str], only: str, regions: Sequence[str], seen: set[str]
) -> dict[str, NDArray[np.int64]]:
    """Which rows are whose; where a file has several columns for the region the first that names a wanted one counts."""
    if not zones:
        return {only: np.arange(len(chunk.lines))}
    index = {name: i for i, name in enumerate(regions)}
    owner = np.full(len(chunk.lines), -1)
    for zone in zones:
        names = chunk.columns[zone]
        here = {name: index.get(name.strip(), -1) for name in set(names)}
        seen.update(name.strip() for name in here)
        owner = np.where(owner >= 0, owner, np.fromiter(map(here.__getitem__, names), np.int64, len(names)))
    rows = {name: np.flatnonzero(owner == i) for i, name in enumerate(regions)}
    return {name: picked for name, picked in rows.items() if len(picked)}


def _moments(table: Table, chunk: Chunk, name: str, utc: bool, known: dict[str, float], problems: Problems) -> Floats:
    """ISO times as seconds since the epoch; one without an offset is UTC where the column's name says so."""
    texts = chunk.columns[name]
    for text in set(texts).difference(known):
        known[text] = math.nan
        try:
            at = datetime.fromisoformat(text.strip())
        except ValueError:
            continue
        if (at.tzinfo is not None or utc) and 1970 < at.year < 9000:
            known[text] = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    out = np.fromiter(map(known.__getitem__, texts), np.float64, len(texts))
    for i in np.flatnonzero(np.isnan(out)).tolist():
        where = f"{table.name} line {chunk.lines[i]}, column {name}"
        problems.add(where, texts[i], "must be a time with its UTC offset, such as 2026-01-31T12:00Z")
    return out


# --- from rows to a regular grid ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Laid:
    start_s: float
    step_s: int
    values: Floats


def _laid(region: str, what: str, column: _Column, problems: Problems, said: list[str]) -> _Laid:
    """One signal of one region on its own regular grid; NaN where nothing is known."""
    seconds, values = np.concatenate(column.seconds), np.concatenate(column.values)
    lines = np.concatenate(column.lines)
    files = np.repeat(np.arange(len(column.files)), [len(each) for each in column.lines])
    label = f"{what} of {region}"
    backwards = int((np.diff(seconds) < 0).sum())
    if backwards:
        order = np.argsort(seconds, kind="stable")
        seconds, values, lines, files = seconds[order], values[order], lines[order], files[order]
        said.append(f"The {label} was out of order at {backwards} rows; sorted by time.")
    again = np.flatnonzero(np.diff(seconds) == 0)
    if len(again):
        same = (values[again] == values[again + 1]) | (np.isnan(values[again]) & np.isnan(values[again + 1]))
        for i in again[~same].tolist():
            first, second = (f"{column.files[files[k]]} line {lines[k]}" for k in (i, i + 1))
            at = datetime.fromtimestamp(float(seconds[i]), UTC).isoformat()
            problems.add(
                f"{first} and {second}", f"{values[i]:g} and {values[i + 1]:g}", f"the {label} at {at} can be one only"
            )
        keep = np.ones(len(seconds), dtype=bool)
        keep[again + 1] = False
        seconds, values = seconds[keep], values[keep]
        said.append(f"The {label} has {len(again)} rows twice with the same value; counted once.")
    if len(seconds) < 2:
        problems.add(label, len(seconds), "rows; at least two are needed to know how long each holds")
        return _Laid(0.0, 3600, np.empty(0))
    gaps_s = np.diff(seconds)
    step_s = int(gaps_s.min())
    if step_s not in STEPS_S or bool((gaps_s % step_s).any()):
        odd = int(np.argmax(gaps_s % step_s != 0)) if step_s in STEPS_S else int(np.argmin(gaps_s))
        at = datetime.fromtimestamp(float(seconds[odd + 1]), UTC).isoformat()
        problems.add(label, at, f"is {gaps_s[odd]:g} s after the row before; rows must be 5, 15, 30 or 60 minutes apart")
        return _Laid(0.0, 3600, np.empty(0))
    # A row holds until the next, but no longer than its neighbours' distance: a missing row is not covered by the one before.
    holds_s = np.minimum(np.append(gaps_s, gaps_s[-1]), np.insert(gaps_s, 0, gaps_s[0]))
    holds_s = np.minimum(holds_s, STEPS_S[-1])
    out = np.full(round((seconds[-1] - seconds[0] + holds_s[-1]) / step_s), np.nan)
    first = np.round((seconds - seconds[0]) / step_s).astype(np.int64)
    for ahead in range(int(holds_s.max()) // step_s):
        here = holds_s > ahead * step_s
        out[first[here] + ahead] = values[here]
    return _Laid(float(seconds[0]), step_s, out)


def _table(region: str, laid: Mapping[str, _Laid], units: Mapping[str, str], carbon: str) -> SignalTable:
    """Price and carbon on one grid: the finer of theirs, from the first to the last that either knows."""
    step_s = min(one.step_s for one in laid.values())
    start_s = min(one.start_s for one in laid.values())
    end_s = max(one.start_s + len(one.values) * one.step_s for one in laid.values())
    values: dict[str, Floats] = {}
    for what, one in laid.items():
        out = np.full(round((end_s - start_s) / step_s), np.nan)
        finer = np.repeat(one.values, one.step_s // step_s)
        begin = round((one.start_s - start_s) / step_s)
        out[begin : begin + len(finer)] = finer
        values[what] = out
    return SignalTable(
        region=region,
        start=datetime.fromtimestamp(start_s, UTC),
        slot_s=step_s,
        price=values.get("price"),
        carbon=values.get("carbon"),
        currency=units.get("price", "EUR"),
        carbon_variant=carbon if "carbon" in laid else "",
    )


# --- what an installation has stored --------------------------------------------------------------------------------


def from_store(
    signals: Signals,
    regions: Sequence[str],
    start: datetime,
    end: datetime,
    now: datetime,
    *,
    sources: Mapping[tuple[str, str], str] | None = None,
    marginal: Collection[str] = (),
) -> Tables:
    """The tables of ``regions`` from a signal store, as known at ``now``, over ``[start, end)``; it only reads.

    ``sources`` chooses the source by (region, "price" or "carbon"), else the one retrieved last counts. ``marginal`` names
    regions whose carbon signal is a marginal one. Raises BadInput for a region that has nothing there.
    """
    said: list[str] = []
    tables: dict[str, SignalTable] = {}
    for region in regions:
        laid: dict[str, _Laid] = {}
        units: dict[str, str] = {}
        variant = ""
        carbon_kind = Kind.CARBON_MARGINAL if region in marginal else Kind.CARBON_AVERAGE
        for what, kind in (("price", Kind.PRICE), ("carbon", carbon_kind)):
            source = (sources or {}).get((region, what))
            points = usable(signals.read(region, kind, start, end, now, source=source), now)
            points = [p for p in points if p.quality not in (Quality.FORECAST, Quality.SUSPECT)]
            if points and source is None:
                chosen = max(points, key=lambda p: (p.retrieved_at, p.source)).source
                points = [p for p in points if p.source == chosen]
            if not points:
                continue
            laid[what] = _of_spans([(p.start.timestamp(), p.end.timestamp(), p.value) for p in points], start, end)
            units[what] = points[0].unit.split("/")[0]
            variant = points[0].variant if what == "carbon" else variant
            said.append(f"The {what} of {region} is what {points[0].source} said, as stored.")
        if not laid:
            raise BadInput([("regions", region, "has no stored price or carbon over this time; see gridshift signals list")])
        made = _table(region, laid, units, variant)
        tables[region] = replace(made, carbon_kind=str(carbon_kind), source="store")
    return Tables(tables, tuple(said))


def _of_spans(spans: Sequence[tuple[float, float, float]], start: datetime, end: datetime) -> _Laid:
    """Values over spans of time on a grid of the shortest span; the later of two that overlap wins."""
    shortest = min(right - left for left, right, _ in spans)
    step_s = next((step for step in reversed(STEPS_S) if step <= shortest), STEPS_S[0])
    begin_s = max(start.timestamp(), min(left for left, _, _ in spans)) // step_s * step_s
    end_s = min(end.timestamp(), max(right for _, right, _ in spans))
    out = np.full(max(int(-(-(end_s - begin_s) // step_s)), 0), np.nan)
    for left, right, value in sorted(spans):
        out[max(round((left - begin_s) / step_s), 0) : max(round((right - begin_s) / step_s), 0)] = value
    return _Laid(begin_s, step_s, out)


# --- what is covered ------------------------------------------------------------------------------------------------


def covered(table: SignalTable) -> tuple[datetime, datetime]:
    """From when to when every signal that the region has is known, gaps within aside."""
    begin, end = 0, table.slots
    for values in (table.price, table.carbon):
        if values is not None:
            known = np.flatnonzero(np.isfinite(values))
            begin = max(begin, int(known[0]) if len(known) else table.slots)
            end = min(end, int(known[-1]) + 1 if len(known) else 0)
    slot = timedelta(seconds=table.slot_s)
    return table.start + begin * slot, table.start + max(end, begin) * slot


def check_covered(tables: Mapping[str, SignalTable], start: datetime, end: datetime) -> None:
    """Raise BadInput when a region's signals do not reach from ``start`` to ``end``, saying how far they do."""
    problems: list[tuple[str, object, str]] = []
    for name, table in tables.items():
        first, last = covered(table)
        if start < first or end > last:
            wanted = f"{start.isoformat()} to {end.isoformat()}"
            reach = (
                f"its signals cover {first.isoformat()} to {last.isoformat()}" if first < last else "its signals never overlap"
            )
            problems.append((f"signals of {name}", wanted, f"{reach}; choose --start and --days within"))
    if problems:
        raise BadInput(problems)


def gaps(table: SignalTable, start: datetime, end: datetime) -> list[str]:
    """Sentences on what is unknown in ``[start, end)``: how much, and the longest stretch."""
    begin = max(int((start - table.start).total_seconds() // table.slot_s), 0)
    stop = max(int(-(-(end - table.start).total_seconds() // table.slot_s)), begin)
    out = []
    for what, values in (("price", table.price), ("carbon", table.carbon)):
        if values is None:
            out.append(f"{table.region} has no {what} signal.")
            continue
        unknown = np.isnan(values[begin:stop])
        if unknown.any():
            edges = np.flatnonzero(np.diff(np.concatenate(([False], unknown, [False])).astype(np.int8)))
            longest = int((edges[1::2] - edges[::2]).max())
            hours, longest_h = (count * table.slot_s / 3600 for count in (int(unknown.sum()), longest))
            out.append(
                f"The {what} of {table.region} is unknown for {hours:g} h, the longest stretch being {longest_h:g} h; "
                "what runs then has no known total."
            )
    return out


def extended(table: SignalTable, until: datetime) -> SignalTable:
    """The table up to ``until`` at least, its last week (or what whole days there are) repeated beyond where it is known."""
    known_end = covered(table)[1]
    known = int((known_end - table.start).total_seconds() // table.slot_s)
    wanted = int(-(-(until - table.start).total_seconds() // table.slot_s))
    day = 86400 // table.slot_s
    period = min(int(TAIL.total_seconds()) // table.slot_s, known // day * day or known)
    if wanted <= known or not period:
        return table
    index = np.arange(wanted)
    index[known:] = known - period + (index[known:] - known) % period

    def longer(values: Floats | None) -> Floats | None:
        return None if values is None else values[index]

    return replace(table, price=longer(table.price), carbon=longer(table.carbon))
