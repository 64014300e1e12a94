"""Signals kept as they became known: every revision is a row of its own, every read is as of a moment.

It knows nothing of feeds or of what a value is used for; resampling is done by whoever reads (signals.forecast). What the rows
look like is in signals.rows, what is thinned when in signals.retention.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Row,
    Select,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    text,
    update,
)

from signals.gaps import SignalGap
from signals.points import Kind, Quality, SignalError, SignalPoint, require_utc
from signals.retention import KEEP, Retention, Thinned, hour_of, hourly
from signals.rows import (
    FORECAST_CODE,
    GAP,
    POINT,
    POINT_COLUMNS,
    SERIES,
    SUSPECT_CODE,
    PointRow,
    SignalGapRow,
    SignalPointRow,
    SignalSeriesRow,
    UTCDateTime,
    micros,
    moment,
    point_row,
    points_of,
    worth,
)

__all__ = [
    "MAX_SPAN",
    "SignalGapRow",
    "SignalPointRow",
    "SignalSeriesRow",
    "SignalStore",
    "Signals",
    "UTCDateTime",
    "new_points",
]

#: The longest interval a stored point may have. It bounds how far before a window a read must look for points reaching into it.
MAX_SPAN = timedelta(days=31)
#: Rows that one transaction of thinning or pruning passes over: some tens of milliseconds, in which other writers wait.
CHUNK_ROWS = 1000
#: Rest between two such transactions, so that others who write to the database get their turn.
PAUSE_S = 0.05
#: Key of the PostgreSQL advisory lock that keeps those who write signals in one line.
WRITE_LOCK = 7_241_559_064
_BATCH = 2000
#: Issue times that are worth naming one by one in a query.
_MANY_ISSUES = 200


class Signals(Protocol):
    """What every signal store does; SQL and memory behave alike. All times are aware UTC, a naive one raises SignalError."""

    def append(self, points: Iterable[SignalPoint]) -> int:
        """Store what is new or changed, durably when this returns; returns the number of new rows.

        A point that says what the newest revision of its identity (as of its ``retrieved_at``) says already is not stored
        again. A point without a publisher's issue time (``issued_at`` equal to ``retrieved_at``) is compared with the newest
        of its kind for that interval. Raises SignalError, storing nothing, for an interval longer than MAX_SPAN.
        """
        ...

    def note_gaps(self, gaps: Iterable[SignalGap], noted_at: datetime) -> int:
        """Write down gaps, each once, with the time it was first noticed; returns how many were new."""
        ...

    def read(
        self,
        region: str,
        kind: Kind,
        start: datetime,
        end: datetime,
        as_of: datetime,
        source: str | None = None,
        variant: str | None = None,
    ) -> list[SignalPoint]:
        """Points that overlap ``[start, end)`` as they were known at ``as_of``, by start.

        For each (source, variant, interval) the one in force: an actual before a forecast, then the newest issue, then the
        newest retrieval. Nothing issued or retrieved after ``as_of`` is visible.
        """
        ...

    def read_gaps(self, region: str, kind: Kind, start: datetime, end: datetime, as_of: datetime) -> list[SignalGap]:
        """Gaps noted by ``as_of`` that overlap ``[start, end)``. A gap stays on record when values arrive later."""
        ...

    def latest_retrieved(self, region: str, kind: Kind, source: str | None = None) -> datetime | None:
        """When the newest row was learned, or None. An identical re-delivery makes no row and does not show here."""
        ...

    def prune(self, before: datetime) -> int:
        """Delete points and gaps that end at or before ``before``; returns how many rows went."""
        ...

    def thin(self, now: datetime, retention: Retention = KEEP, transactions: int | None = None) -> Thinned:
        """Do what ``retention`` says of old points; run again it does nothing more. Gaps go with the points too old to keep.

        Where revisions were dropped, a read ``as_of`` a time before the value in force was known finds nothing there. It works
        in short transactions; ``transactions`` is how many at most, then the rest is left for the next run.
        """
        ...


# --- pure, shared by both stores --------------------------------------------------------------

_Interval = tuple[str, str, Kind, str, datetime, datetime, object]
_AT_RETRIEVAL = "issued at retrieval"


def _identity(point: SignalPoint) -> _Interval:
    issued: object = point.issued_at
    if point.issued_at == point.retrieved_at:
        # The publisher gives no issue time: each poll would be a new identity, and equal values would pile up.
        issued = _AT_RETRIEVAL
    return (point.source, point.region, point.kind, point.variant, point.start, point.end, issued)


def _says(point: SignalPoint) -> tuple[float, str, Quality]:
    return (point.value, point.unit, point.quality)


def new_points(known: Iterable[SignalPoint], offered: Iterable[SignalPoint]) -> list[SignalPoint]:
    """Of ``offered``, in order of retrieval, those that say something that ``known`` did not say at that time."""
    revisions: dict[_Interval, list[SignalPoint]] = defaultdict(list)
    for point in known:
        revisions[_identity(point)].append(point)
    fresh = []
    for point in sorted(offered, key=lambda p: p.retrieved_at):
        history = revisions[_identity(point)]
        earlier = [p for p in history if p.retrieved_at <= point.retrieved_at]
        if earlier and _says(max(earlier, key=lambda p: p.retrieved_at)) == _says(point):
            continue
        history.append(point)
        fresh.append(point)
    return fresh


def checked(points: Iterable[SignalPoint]) -> list[SignalPoint]:
    """``points`` as a list; raises SignalError for an interval that is longer than MAX_SPAN."""
    batch = list(points)
    for point in batch:
        if point.end - point.start > MAX_SPAN:
            raise SignalError(
                f"end: {point.end.isoformat()} is {point.end - point.start} after start; "
                f"an interval may span at most {MAX_SPAN.days} days, split it"
            )
    return batch


def utc_times(start: datetime, end: datetime, as_of: datetime) -> tuple[datetime, datetime, datetime]:
    """The times of a reading in UTC; raises SignalError for a naive one."""
    return require_utc("start", start), require_utc("end", end), require_utc("as_of", as_of)


def in_order(points: Iterable[SignalPoint]) -> list[SignalPoint]:
    """``points`` by start, as a reading gives them."""
    return sorted(points, key=lambda p: (p.start, p.end, p.source, p.variant))


@dataclass(frozen=True, slots=True)
class _Series:
    """A row of signal_series."""

    id: int
    region: str
    kind: str
    source: str
    variant: str
    unit: str
    longest_us: int
    latest_us: int
    next_seq: int
    hourly_until_us: int | None

    def common(self) -> dict[str, Any]:
        """What all its points share."""
        return {
            "region": self.region,
            "kind": Kind(self.kind),
            "source": self.source,
            "variant": self.variant,
            "unit": self.unit,
        }


_SERIES_COLUMNS = tuple(SERIES.c[name] for name in _Series.__dataclass_fields__)
_P = POINT.c
_IN_FORCE, _OUTRANKED = 0, 1
_KEY: dict[str, Any] = {name: bindparam(f"key_{name}") for name in ("start_us", "end_us", "seq")}
_THIS_ROW = [_P.series_id == bindparam("key_series_id"), *(_P[name] == value for name, value in _KEY.items())]
_OUTRANK = update(POINT).where(_P.outranked == _IN_FORCE, *_THIS_ROW).values(outranked=_OUTRANKED)
_REMOVE = delete(POINT).where(_P.outranked == _IN_FORCE, *_THIS_ROW)
_HEADS = (
    select(*POINT_COLUMNS)
    .where(
        _P.series_id == bindparam("series_id"),
        _P.outranked == _IN_FORCE,
        _P.start_us > bindparam("after_us"),
        _P.start_us < bindparam("until_us"),
        _P.end_us > bindparam("from_us"),
    )
    .order_by(_P.start_us, _P.end_us)
)
#: The first parts of rows.worth as one number: what is doubted, above it any forecast, above it any actual; then the newer
#: issue is above the older.
_STANDING = case((_P.quality == SUSPECT_CODE, 0), (_P.quality == FORECAST_CODE, 1 << 60), else_=1 << 61)
_SCORE = _STANDING + func.coalesce(_P.issued_us, _P.retrieved_us)
_VISIBLE_PAST = [
    _P.series_id == bindparam("series_id"),
    _P.outranked == _OUTRANKED,
    _P.start_us >= bindparam("first_us"),
    _P.start_us <= bindparam("last_us"),
    _P.end_us > bindparam("from_us"),
    _P.retrieved_us <= bindparam("as_of_us"),
    or_(_P.issued_us.is_(None), _P.issued_us <= bindparam("as_of_us")),
]
_BEST = (
    select(_P.start_us, _P.end_us, func.max(_SCORE).label("score"))
    .where(*_VISIBLE_PAST)
    .group_by(_P.start_us, _P.end_us)
    .subquery()
)
# The database leaves one row an interval, of the hundred that issues of a forecast make, or a few that are alike in score.
_PAST = (
    select(*POINT_COLUMNS)
    .join(_BEST, and_(_P.start_us == _BEST.c.start_us, _P.end_us == _BEST.c.end_us, _BEST.c.score == _SCORE))
    .where(*_VISIBLE_PAST)
)


class SignalStore:
    """The store in a SQL database (SQLite or PostgreSQL) whose tables exist already.

    Several processes may write at once, provided that on SQLite the engine begins a transaction with the execution option
    ``write`` by taking the write lock. A database that fails raises SQLAlchemy's own error and leaves nothing half written.
    ``pause`` is called with the seconds to rest between the transactions of ``thin`` and ``prune``.
    """

    def __init__(self, engine: Engine, *, pause: Callable[[float], None] = time.sleep) -> None:
        self.engine = engine
        # SQLite takes its write lock when such a transaction begins, and so waits for others instead of failing later.
        self._writer = engine.execution_options(write=True)
        self._pause = pause
        self._writing = threading.Lock()

    def append(self, points: Iterable[SignalPoint]) -> int:
        """See Signals.append."""
        batch = checked(points)
        by_series: dict[tuple[str, Kind, str, str], list[SignalPoint]] = defaultdict(list)
        for point in batch:
            by_series[point.region, point.kind, point.source, point.variant].append(point)
        with self._writing:
            # What was said before is the usual case, and needs no write lock.
            with self.engine.connect() as connection:
                changed = {key: offered for key, offered in by_series.items() if _fresh(connection, key, offered)[1]}
            count = 0
            if changed:
                with self._write() as connection:
                    for key, offered in changed.items():
                        series, fresh = _fresh(connection, key, offered)  # another process may have stored meanwhile
                        if fresh:
                            _store(connection, series, fresh, _heads(connection, series, fresh) if series else {})
                            count += len(fresh)
            return count

    def note_gaps(self, gaps: Iterable[SignalGap], noted_at: datetime) -> int:
        """See Signals.note_gaps."""
        noted_at = require_utc("noted_at", noted_at)
        by_series: dict[tuple[str, Kind], dict[SignalGap, None]] = defaultdict(dict)
        for gap in gaps:
            by_series[gap.region, gap.kind][gap] = None
        with self._writing:
            with self.engine.connect() as connection:
                changed = {key: offered for key, offered in by_series.items() if _fresh_gaps(connection, key, offered)}
            count = 0
            if changed:
                with self._write() as connection:
                    for key, offered in changed.items():
                        if fresh := _fresh_gaps(connection, key, offered):
                            connection.execute(insert(GAP), [_gap_values(gap, noted_at) for gap in fresh])
                            count += len(fresh)
            return count

    def read(
        self,
        region: str,
        kind: Kind,
        start: datetime,
        end: datetime,
        as_of: datetime,
        source: str | None = None,
        variant: str | None = None,
    ) -> list[SignalPoint]:
        """See Signals.read."""
        start, end, as_of = utc_times(start, end, as_of)
        start_us, end_us, as_of_us = micros(start), micros(end), micros(as_of)
        found, count = list[SignalPoint](), 0
        with self.engine.connect() as connection:
            for series in _find_series(connection, region, kind, source, variant):
                rows = _in_force(connection, series, start_us, end_us, as_of_us)
                found += points_of(rows, series.common())
                count += bool(rows)
        return in_order(found) if count > 1 else found  # one series comes in order

    def read_gaps(self, region: str, kind: Kind, start: datetime, end: datetime, as_of: datetime) -> list[SignalGap]:
        """See Signals.read_gaps."""
        start, end, as_of = utc_times(start, end, as_of)
        at = GAP.c
        query = (
            select(GAP)
            .where(at.region == region, at.kind == str(kind), at.start < end, at.end > start, at.noted_at <= as_of)
            .order_by(at.start, at.end, at.source, at.variant)
        )
        with self.engine.connect() as connection:
            return [_gap(row) for row in connection.execute(query)]

    def latest_retrieved(self, region: str, kind: Kind, source: str | None = None) -> datetime | None:
        """See Signals.latest_retrieved."""
        with self.engine.connect() as connection:
            found = _find_series(connection, region, kind, source)
        return max((moment(series.latest_us) for series in found), default=None)

    def prune(self, before: datetime) -> int:
        """See Signals.prune."""
        before = require_utc("before", before)
        run = _Run(self._pause, None)
        gone = sum(self._prune(series, micros(before), run) for series in self._all_series())
        return gone + self._prune_gaps(before)

    def thin(self, now: datetime, retention: Retention = KEEP, transactions: int | None = None) -> Thinned:
        """See Signals.thin."""
        cutoffs = retention.cutoffs(now)
        run = _Run(self._pause, transactions)
        dropped = merged = pruned = 0
        for series in self._all_series():
            pruned += self._prune(series, micros(cutoffs.drop_before), run)
            dropped += self._forget(series, _OUTRANKED, micros(cutoffs.revisions_before), run)
            merged += self._merge(series.id, cutoffs.fine_before, run)
        if not run.stopped:
            pruned += self._prune_gaps(cutoffs.drop_before)
        return Thinned(dropped, merged, pruned, finished=not run.stopped)

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        """A transaction that is alone in writing signals, other processes included: what it reads stays true until it ends.

        On SQLite it holds the write lock from its first moment; on PostgreSQL writers form a line.
        """
        with self._writer.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": WRITE_LOCK})
            yield connection

    # --- thinning -------------------------------------------------------------------------------------------------

    def _all_series(self) -> list[_Series]:
        with self.engine.connect() as connection:
            return [_Series(*row) for row in connection.execute(select(*_SERIES_COLUMNS).order_by(SERIES.c.id))]

    def _prune_gaps(self, before: datetime) -> int:
        with self._writing, self._write() as connection:
            return connection.execute(delete(GAP).where(GAP.c.end <= before)).rowcount

    def _prune(self, series: _Series, before_us: int, run: "_Run") -> int:
        gone = sum(self._forget(series, outranked, before_us, run) for outranked in (_OUTRANKED, _IN_FORCE))
        if gone:
            with self._writing, self._write() as connection:
                any_left = exists().where(_P.series_id == series.id)
                connection.execute(delete(SERIES).where(SERIES.c.id == series.id, ~any_left))
        return gone

    def _forget(self, series: _Series, outranked: int, before_us: int, run: "_Run") -> int:
        """Delete a series' rows that end at or before ``before_us``, a chunk a transaction; returns how many went."""
        gone, newest_us = 0, 0
        here = [_P.series_id == series.id, _P.outranked == outranked, _P.start_us < before_us]
        after_us: int | None = None
        while True:
            rest = [*here] if after_us is None else [*here, _P.start_us > after_us]
            ahead = select(_P.start_us).where(*rest).order_by(_P.start_us)
            with self.engine.connect() as connection:
                if connection.execute(ahead.limit(1)).first() is None:
                    break
                last_us = connection.execute(ahead.offset(CHUNK_ROWS - 1).limit(1)).scalar()
                chunk = [*rest, _P.end_us <= before_us] + ([] if last_us is None else [_P.start_us <= last_us])
                count, chunk_newest_us = connection.execute(select(func.count(), func.max(_P.retrieved_us)).where(*chunk)).one()
            if count:
                if not run.next():
                    break
                with self._writing, self._write() as connection:
                    gone += connection.execute(delete(POINT).where(*chunk)).rowcount
                newest_us = max(newest_us, chunk_newest_us)
            if last_us is None:
                break
            after_us = last_us
        if newest_us >= series.latest_us:
            self._note_latest(series.id)
        return gone

    def _note_latest(self, series_id: int) -> None:
        """The newest row of a series went: find which is the newest now."""
        with self._writing, self._write() as connection:
            latest_us = connection.execute(select(func.max(_P.retrieved_us)).where(_P.series_id == series_id)).scalar()
            if latest_us is not None:
                connection.execute(update(SERIES).where(SERIES.c.id == series_id).values(latest_us=latest_us))

    def _merge(self, series_id: int, before: datetime, run: "_Run") -> int:
        """Make hourly means of a series' points in force that end at or before ``before``; returns how many rows went."""
        merged, before_us = 0, micros(before)
        while True:
            with self._writing:
                with self.engine.connect() as connection:
                    if _next_coarser(connection, series_id, before_us) is None:
                        return merged
                if not run.next():
                    return merged
                with self._write() as connection:
                    found = _next_coarser(connection, series_id, before_us)
                    if found is None:
                        return merged
                    series, until_us, old, new = found
                    if old:
                        connection.execute(_REMOVE, [_key_of(series.id, row) for row in old])
                    if new:
                        connection.execute(insert(POINT), [_values(series.id, _IN_FORCE, row) for row in new])
                    changed: dict[str, int] = {"hourly_until_us": until_us, "next_seq": series.next_seq + 1}
                    connection.execute(update(SERIES).where(SERIES.c.id == series.id).values(changed))
            merged += len(old)
            # A part that finer ones hid leaves no trace in the means.
            if max((row[4] for row in old), default=0) > max((row[4] for row in new), default=0):
                self._note_latest(series.id)


class _Run:
    """Counts the transactions of one run, and rests before each but the first."""

    def __init__(self, pause: Callable[[float], None], limit: int | None) -> None:
        self._pause, self._limit, self._count = pause, limit, 0
        self.stopped = False

    def next(self) -> bool:
        """Whether there may be another transaction."""
        if self._limit is not None and self._count >= self._limit:
            self.stopped = True
            return False
        if self._count:
            self._pause(PAUSE_S)
        self._count += 1
        return True


def _rows(connection: Connection, query: Select[Any], values: dict[str, int] | None = None) -> list[PointRow]:
    """Rows of POINT_COLUMNS, as the driver gives them: numbers need no translation."""
    with connection.execute(query, values) as result:
        return list[PointRow](result.cursor.fetchall())


def _find_series(
    connection: Connection, region: str, kind: str, source: str | None = None, variant: str | None = None
) -> list[_Series]:
    query = select(*_SERIES_COLUMNS).where(SERIES.c.region == region, SERIES.c.kind == str(kind))
    if source is not None:
        query = query.where(SERIES.c.source == source)
    if variant is not None:
        query = query.where(SERIES.c.variant == variant)
    return [_Series(*row) for row in connection.execute(query)]


def _in_force(connection: Connection, series: _Series, start_us: int, end_us: int, as_of_us: int) -> list[PointRow]:
    """Of each interval that overlaps a window, the row in force at a time; by start and end."""
    window = {"series_id": series.id, "after_us": start_us - series.longest_us - 1, "until_us": end_us, "from_us": start_us}
    heads = _rows(connection, _HEADS, window)
    visible: list[PointRow] = []
    hidden: set[tuple[int, int]] = set()
    for row in heads:
        # What is in force by all that is known was so from the moment it was known itself.
        if row[4] <= as_of_us and (row[3] is None or row[3] <= as_of_us):
            visible.append(row)
        else:
            hidden.add((row[0], row[1]))
    if not hidden:
        return visible
    best: dict[tuple[int, int], PointRow] = {}
    span = {"first_us": min(hidden)[0], "last_us": max(hidden)[0], "from_us": start_us, "as_of_us": as_of_us}
    for row in _rows(connection, _PAST, {"series_id": series.id, **span}):
        interval = (row[0], row[1])
        if interval in hidden and (interval not in best or worth(row) > worth(best[interval])):
            best[interval] = row
    return sorted([*visible, *best.values()], key=lambda row: row[:2]) if best else visible


def _fresh(
    connection: Connection, key: tuple[str, Kind, str, str], offered: Sequence[SignalPoint]
) -> tuple[_Series | None, list[SignalPoint]]:
    """A series (region, kind, source, variant; None when there is none yet), and those of ``offered`` that are new in it."""
    region, kind, source, variant = key
    found = _find_series(connection, region, kind, source, variant)
    series = found[0] if found else None
    return series, new_points(_known(connection, series, offered) if series else (), offered)


def _fresh_gaps(connection: Connection, key: tuple[str, Kind], offered: Iterable[SignalGap]) -> list[SignalGap]:
    """Those of ``offered``, gaps of one region and kind, that are not on record."""
    starts = [gap.start for gap in offered]
    query = select(GAP).where(
        GAP.c.region == key[0], GAP.c.kind == str(key[1]), GAP.c.start >= min(starts), GAP.c.start <= max(starts)
    )
    known = {_gap(row) for row in connection.execute(query)}
    return [gap for gap in offered if gap not in known]


def _known(connection: Connection, series: _Series, offered: Sequence[SignalPoint]) -> list[SignalPoint]:
    """Stored points that may have the identity of one of ``offered``, in the order in which they were stored."""
    issued = {micros(p.issued_at) for p in offered if p.issued_at is not None and p.issued_at != p.retrieved_at}
    same: list[ColumnElement[bool]] = []
    if any(p.issued_at is None for p in offered):
        same.append(_P.issued_us.is_(None))
    if any(p.issued_at == p.retrieved_at for p in offered):
        same.append(_P.issued_us == _P.retrieved_us)
    if len(issued) > _MANY_ISSUES:
        same.append(_P.issued_us.is_not(None))
    elif issued:
        same.append(_P.issued_us.in_(sorted(issued)))
    query = select(*POINT_COLUMNS).where(_P.outranked.in_((_IN_FORCE, _OUTRANKED)), *_started_with(series, offered), or_(*same))
    return points_of(_rows(connection, query.order_by(_P.seq)), series.common())


def _heads(connection: Connection, series: _Series, points: Sequence[SignalPoint]) -> dict[tuple[int, int], PointRow]:
    """The rows in force that start when ``points`` do, by interval."""
    query = select(*POINT_COLUMNS).where(_P.outranked == _IN_FORCE, *_started_with(series, points))
    return {(row[0], row[1]): row for row in _rows(connection, query)}


def _started_with(series: _Series, points: Sequence[SignalPoint]) -> list[ColumnElement[bool]]:
    first_us, last_us = micros(min(p.start for p in points)), micros(max(p.start for p in points))
    return [_P.series_id == series.id, _P.start_us >= first_us, _P.start_us <= last_us]


def _store(
    connection: Connection, series: _Series | None, fresh: Sequence[SignalPoint], heads: dict[tuple[int, int], PointRow]
) -> None:
    """Write new points of one series, and see to it that one row an interval is in force."""
    longest_us = max(micros(p.end) - micros(p.start) for p in fresh)
    latest_us = max(micros(p.retrieved_at) for p in fresh)
    first = fresh[0]
    known: dict[str, Any]
    if series is None:
        known = {"unit": first.unit, "longest_us": longest_us, "latest_us": latest_us, "next_seq": 0, "hourly_until_us": None}
        names = {"region": first.region, "kind": str(first.kind), "source": first.source, "variant": first.variant}
        key = connection.execute(insert(SERIES).values(names | known)).inserted_primary_key
        series_id = int(key[0])  # type: ignore[index]
    else:
        series_id = series.id
        known = {
            "unit": series.unit,
            "longest_us": max(series.longest_us, longest_us),
            "latest_us": max(series.latest_us, latest_us),
            "next_seq": series.next_seq,
            "hourly_until_us": series.hourly_until_us,
        }
    oldest_us = micros(hour_of(min(p.start for p in fresh)))
    if known["hourly_until_us"] is not None and oldest_us < known["hourly_until_us"]:
        known["hourly_until_us"] = oldest_us  # what came late is thinned in its turn
    turns: dict[tuple[int, int], int] = defaultdict(int)
    best, outranked = dict(heads), list[PointRow]()
    for point in fresh:
        row = point_row(point, known["unit"], 0)
        interval = (row[0], row[1])
        row = (*row[:2], known["next_seq"] + turns[interval], *row[3:])
        turns[interval] += 1
        rival = best.get(interval)
        if rival is None or worth(row) > worth(rival):
            best[interval] = row
            if rival is not None:
                outranked.append(rival)
        else:
            outranked.append(row)
    demoted = [row for row in outranked if heads.get((row[0], row[1])) is row]
    if demoted:
        connection.execute(_OUTRANK, [_key_of(series_id, row) for row in demoted])
    rows = [_values(series_id, _OUTRANKED, row) for row in outranked if heads.get((row[0], row[1])) is not row]
    rows += [_values(series_id, _IN_FORCE, row) for key, row in best.items() if heads.get(key) is not row]
    for at in range(0, len(rows), _BATCH):
        connection.execute(insert(POINT), rows[at : at + _BATCH])
    known["next_seq"] += max(turns.values())
    connection.execute(update(SERIES).where(SERIES.c.id == series_id).values(known))


def _next_coarser(
    connection: Connection, series_id: int, before_us: int
) -> tuple[_Series, int, list[PointRow], list[PointRow]] | None:
    """The series as it is, and what ``_coarser`` says of it; None when there is nothing more to look at."""
    row = connection.execute(select(*_SERIES_COLUMNS).where(SERIES.c.id == series_id)).first()
    if row is None:
        return None
    series = _Series(*row)
    until_us, old, new = _coarser(connection, series, before_us)
    return None if until_us is None else (series, until_us, old, new)


def _coarser(connection: Connection, series: _Series, before_us: int) -> tuple[int | None, list[PointRow], list[PointRow]]:
    """The next hours of a series that are old enough for means: (until when, rows that go, rows that come in their place).

    None when there is nothing more to look at.
    """
    here = [_P.series_id == series.id, _P.outranked == _IN_FORCE, _P.start_us < before_us]
    if series.hourly_until_us is not None:
        here.append(_P.start_us >= series.hourly_until_us)
    query = select(*POINT_COLUMNS).where(*here).order_by(_P.start_us, _P.end_us)
    rows = _rows(connection, query.limit(CHUNK_ROWS))
    if not rows:
        return None, [], []
    until_us = before_us
    if len(rows) == CHUNK_ROWS:  # the last hour may go on behind the limit
        until_us = micros(hour_of(moment(rows[-1][0])))
        if until_us <= micros(hour_of(moment(rows[0][0]))):
            until_us = min(before_us, until_us + micros(moment(0) + timedelta(hours=1)))
        rows = _rows(connection, query.where(_P.start_us < until_us))
    points = points_of(rows, series.common())
    row_of = dict(zip(points, rows, strict=True))
    coarse = hourly(point for point in points if point.end <= moment(before_us))
    stay = set(coarse)
    old = [row for point, row in row_of.items() if point not in stay and point.end <= moment(before_us)]
    new = [point_row(point, series.unit, series.next_seq) for point in coarse if point not in row_of]
    return until_us, old, new


def _key_of(series_id: int, row: PointRow) -> dict[str, int]:
    return {"key_series_id": series_id, "key_start_us": row[0], "key_end_us": row[1], "key_seq": row[2]}


def _values(series_id: int, outranked: int, row: PointRow) -> dict[str, Any]:
    names = (column.name for column in POINT_COLUMNS)
    return {"series_id": series_id, "outranked": outranked, **dict(zip(names, row, strict=True))}


def _gap(row: Row[Any]) -> SignalGap:
    return SignalGap(row.source, row.region, Kind(row.kind), row.start, row.end, row.variant)


def _gap_values(gap: SignalGap, noted_at: datetime) -> dict[str, Any]:
    return {
        "source": gap.source,
        "region": gap.region,
        "kind": str(gap.kind),
        "variant": gap.variant,
        "start": gap.start,
        "end": gap.end,
        "noted_at": noted_at,
    }
