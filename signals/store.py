"""Signals kept as they became known: every revision is a row of its own, every read is as of a moment.

It knows nothing of feeds or of what a value is used for; resampling is done by whoever reads (signals.forecast).
"""

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Dialect,
    Engine,
    Float,
    Index,
    Integer,
    Row,
    String,
    TypeDecorator,
    UniqueConstraint,
    case,
    delete,
    func,
    insert,
    or_,
    select,
)
from sqlmodel import Field, SQLModel

from signals.gaps import SignalGap
from signals.points import Kind, Quality, SignalError, SignalPoint, require_utc

#: The longest interval a stored point may have. It bounds how far before a window a read must look for points reaching into it.
MAX_SPAN = timedelta(days=31)
_BATCH = 2000


class UTCDateTime(TypeDecorator[datetime]):
    """An aware UTC datetime on every database: ``timestamptz`` on PostgreSQL, naive UTC text of fixed width on SQLite."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse naive times; hand SQLite the UTC wall time, whose text sorts as time does."""
        if value is None:
            return None
        value = require_utc("datetime", value)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give back aware UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _row_id() -> Column[Any]:
    # SQLite numbers rows by itself only for INTEGER primary keys.
    return Column("id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True)


class SignalPointRow(SQLModel, table=True):
    """One revision of one point; the columns mean what the fields of SignalPoint mean."""

    __tablename__ = "signal_point"
    __table_args__ = (
        Index("ix_signal_point_region_kind_start", "region", "kind", "start"),
        Index("ix_signal_point_region_kind_source_retrieved", "region", "kind", "source", "retrieved_at"),
    )

    id: int | None = Field(default=None, sa_column=_row_id())
    source: str = Field(sa_column=Column("source", String(), nullable=False))
    region: str = Field(sa_column=Column("region", String(), nullable=False))
    kind: str = Field(sa_column=Column("kind", String(), nullable=False))
    variant: str = Field(default="", sa_column=Column("variant", String(), nullable=False))
    unit: str = Field(sa_column=Column("unit", String(), nullable=False))
    start: datetime = Field(sa_column=Column("start", UTCDateTime(), nullable=False))
    end: datetime = Field(sa_column=Column("end", UTCDateTime(), nullable=False))
    issued_at: datetime | None = Field(default=None, sa_column=Column("issued_at", UTCDateTime(), nullable=True))
    retrieved_at: datetime = Field(sa_column=Column("retrieved_at", UTCDateTime(), nullable=False))
    value: float = Field(sa_column=Column("value", Float(), nullable=False))
    quality: str = Field(sa_column=Column("quality", String(), nullable=False))


class SignalGapRow(SQLModel, table=True):
    """An explicit gap and when we first noticed it."""

    __tablename__ = "signal_gap"
    __table_args__ = (UniqueConstraint("region", "kind", "start", "end", "source", "variant", name="uq_signal_gap"),)

    id: int | None = Field(default=None, sa_column=_row_id())
    source: str = Field(sa_column=Column("source", String(), nullable=False))
    region: str = Field(sa_column=Column("region", String(), nullable=False))
    kind: str = Field(sa_column=Column("kind", String(), nullable=False))
    variant: str = Field(default="", sa_column=Column("variant", String(), nullable=False))
    start: datetime = Field(sa_column=Column("start", UTCDateTime(), nullable=False))
    end: datetime = Field(sa_column=Column("end", UTCDateTime(), nullable=False))
    noted_at: datetime = Field(sa_column=Column("noted_at", UTCDateTime(), nullable=False))


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


# --- which points are new: pure, shared by both stores --------------------------------------------------------------

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


def _checked(points: Iterable[SignalPoint]) -> list[SignalPoint]:
    batch = list(points)
    for point in batch:
        if point.end - point.start > MAX_SPAN:
            raise SignalError(
                f"end: {point.end.isoformat()} is {point.end - point.start} after start; "
                f"an interval may span at most {MAX_SPAN.days} days, split it"
            )
    return batch


def _rank(point: SignalPoint) -> tuple[bool, datetime, datetime]:
    return (point.quality is not Quality.FORECAST, point.issued_at or point.retrieved_at, point.retrieved_at)


class MemorySignalStore:
    """The store kept in this process, for simulation and tests."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, Kind], list[SignalPoint]] = defaultdict(list)
        self._gaps: dict[SignalGap, datetime] = {}
        self._lock = threading.RLock()

    def append(self, points: Iterable[SignalPoint]) -> int:
        """See Signals.append."""
        batch = _checked(points)
        by_series: dict[tuple[str, Kind], list[SignalPoint]] = defaultdict(list)
        for point in batch:
            by_series[point.region, point.kind].append(point)
        with self._lock:
            count = 0
            for key, offered in by_series.items():
                fresh = new_points(self._series[key], offered)
                self._series[key].extend(fresh)
                count += len(fresh)
            return count

    def note_gaps(self, gaps: Iterable[SignalGap], noted_at: datetime) -> int:
        """See Signals.note_gaps."""
        noted_at = require_utc("noted_at", noted_at)
        with self._lock:
            fresh = {gap: noted_at for gap in gaps if gap not in self._gaps}
            self._gaps.update(fresh)
            return len(fresh)

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
        start, end, as_of = _times(start, end, as_of)
        best: dict[tuple[str, str, datetime, datetime], SignalPoint] = {}
        with self._lock:
            for point in self._series.get((region, Kind(kind)), ()):
                if point.end <= start or point.start >= end or point.retrieved_at > as_of:
                    continue
                if point.issued_at is not None and point.issued_at > as_of:
                    continue
                if (source is not None and point.source != source) or (variant is not None and point.variant != variant):
                    continue
                key = (point.source, point.variant, point.start, point.end)
                if key not in best or _rank(point) >= _rank(best[key]):
                    best[key] = point
        return _in_order(best.values())

    def read_gaps(self, region: str, kind: Kind, start: datetime, end: datetime, as_of: datetime) -> list[SignalGap]:
        """See Signals.read_gaps."""
        start, end, as_of = _times(start, end, as_of)
        with self._lock:
            found = [
                gap
                for gap, noted_at in self._gaps.items()
                if gap.region == region and gap.kind == kind and gap.start < end and gap.end > start and noted_at <= as_of
            ]
        return sorted(found, key=lambda g: (g.start, g.end, g.source, g.variant))

    def latest_retrieved(self, region: str, kind: Kind, source: str | None = None) -> datetime | None:
        """See Signals.latest_retrieved."""
        with self._lock:
            points = self._series.get((region, Kind(kind)), ())
            return max((p.retrieved_at for p in points if source is None or p.source == source), default=None)

    def prune(self, before: datetime) -> int:
        """See Signals.prune."""
        before = require_utc("before", before)
        with self._lock:
            gone = 0
            for key, points in self._series.items():
                kept = [p for p in points if p.end > before]
                gone += len(points) - len(kept)
                self._series[key] = kept
            old = [gap for gap in self._gaps if gap.end <= before]
            for gap in old:
                del self._gaps[gap]
            return gone + len(old)


_POINT = SQLModel.metadata.tables["signal_point"].c
_GAP = SQLModel.metadata.tables["signal_gap"].c


class SignalStore:
    """The store in a SQL database (SQLite or PostgreSQL) whose tables exist already.

    One process writes; a database that fails raises SQLAlchemy's own error and leaves nothing half written.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._writing = threading.Lock()

    def append(self, points: Iterable[SignalPoint]) -> int:
        """See Signals.append."""
        batch = _checked(points)
        by_series: dict[tuple[str, str, str, str], list[SignalPoint]] = defaultdict(list)
        for point in batch:
            by_series[point.region, point.kind, point.source, point.variant].append(point)
        with self._writing:
            fresh: list[SignalPoint] = []
            # Read first, write in a transaction of its own: SQLite refuses to turn a read snapshot into a write.
            with self.engine.connect() as connection:
                for (region, kind, source, variant), offered in by_series.items():
                    query = select(SignalPointRow.__table__).where(  # type: ignore[attr-defined]
                        _POINT.region == region,
                        _POINT.kind == kind,
                        _POINT.source == source,
                        _POINT.variant == variant,
                        _POINT.start >= min(p.start for p in offered),
                        _POINT.start <= max(p.start for p in offered),
                    )
                    fresh += new_points([_point(row) for row in connection.execute(query)], offered)
            if fresh:
                with self.engine.begin() as connection:
                    for at in range(0, len(fresh), _BATCH):
                        rows = [_point_values(p) for p in fresh[at : at + _BATCH]]
                        connection.execute(insert(SignalPointRow), rows)
            return len(fresh)

    def note_gaps(self, gaps: Iterable[SignalGap], noted_at: datetime) -> int:
        """See Signals.note_gaps."""
        noted_at = require_utc("noted_at", noted_at)
        by_series: dict[tuple[str, str], dict[SignalGap, None]] = defaultdict(dict)
        for gap in gaps:
            by_series[gap.region, gap.kind][gap] = None
        with self._writing:
            fresh: list[SignalGap] = []
            with self.engine.connect() as connection:
                for (region, kind), offered in by_series.items():
                    query = select(SignalGapRow.__table__).where(  # type: ignore[attr-defined]
                        _GAP.region == region,
                        _GAP.kind == kind,
                        _GAP.start >= min(g.start for g in offered),
                        _GAP.start <= max(g.start for g in offered),
                    )
                    known = {_gap(row) for row in connection.execute(query)}
                    fresh += [gap for gap in offered if gap not in known]
            if fresh:
                with self.engine.begin() as connection:
                    connection.execute(insert(SignalGapRow), [_gap_values(g, noted_at) for g in fresh])
            return len(fresh)

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
        start, end, as_of = _times(start, end, as_of)
        wanted = [
            _POINT.region == region,
            _POINT.kind == str(kind),
            # No point is longer than MAX_SPAN, so the index is searched from there and not from the beginning of time.
            _POINT.start > start - MAX_SPAN - timedelta(microseconds=1),
            _POINT.start < end,
            _POINT.end > start,
            _POINT.retrieved_at <= as_of,
            or_(_POINT.issued_at.is_(None), _POINT.issued_at <= as_of),
        ]
        if source is not None:
            wanted.append(_POINT.source == source)
        if variant is not None:
            wanted.append(_POINT.variant == variant)
        place = func.row_number().over(
            partition_by=(_POINT.source, _POINT.variant, _POINT.start, _POINT.end),
            order_by=(
                case((_POINT.quality == str(Quality.FORECAST), 1), else_=0),
                func.coalesce(_POINT.issued_at, _POINT.retrieved_at).desc(),
                _POINT.retrieved_at.desc(),
                _POINT.id.desc(),
            ),
        )
        ranked = select(SignalPointRow.__table__, place.label("place")).where(*wanted).subquery()  # type: ignore[attr-defined]
        with self.engine.connect() as connection:
            return _in_order(_point(row) for row in connection.execute(select(ranked).where(ranked.c.place == 1)))

    def read_gaps(self, region: str, kind: Kind, start: datetime, end: datetime, as_of: datetime) -> list[SignalGap]:
        """See Signals.read_gaps."""
        start, end, as_of = _times(start, end, as_of)
        query = (
            select(SignalGapRow.__table__)  # type: ignore[attr-defined]
            .where(_GAP.region == region, _GAP.kind == str(kind), _GAP.start < end, _GAP.end > start, _GAP.noted_at <= as_of)
            .order_by(_GAP.start, _GAP.end, _GAP.source, _GAP.variant)
        )
        with self.engine.connect() as connection:
            return [_gap(row) for row in connection.execute(query)]

    def latest_retrieved(self, region: str, kind: Kind, source: str | None = None) -> datetime | None:
        """See Signals.latest_retrieved."""
        query = select(func.max(_POINT.retrieved_at)).where(_POINT.region == region, _POINT.kind == str(kind))
        if source is not None:
            query = query.where(_POINT.source == source)
        with self.engine.connect() as connection:
            found: datetime | None = connection.execute(query).scalar_one()
            return found

    def prune(self, before: datetime) -> int:
        """See Signals.prune."""
        before = require_utc("before", before)
        with self._writing, self.engine.begin() as connection:
            points = connection.execute(delete(SignalPointRow).where(_POINT.end <= before)).rowcount
            gaps = connection.execute(delete(SignalGapRow).where(_GAP.end <= before)).rowcount
            return points + gaps


def _times(start: datetime, end: datetime, as_of: datetime) -> tuple[datetime, datetime, datetime]:
    return require_utc("start", start), require_utc("end", end), require_utc("as_of", as_of)


def _in_order(points: Iterable[SignalPoint]) -> list[SignalPoint]:
    return sorted(points, key=lambda p: (p.start, p.end, p.source, p.variant))


def _point(row: Row[Any]) -> SignalPoint:
    return SignalPoint(
        region=row.region,
        kind=Kind(row.kind),
        unit=row.unit,
        start=row.start,
        end=row.end,
        issued_at=row.issued_at,
        retrieved_at=row.retrieved_at,
        value=row.value,
        quality=Quality(row.quality),
        source=row.source,
        variant=row.variant,
    )


_POINT_FIELDS: Sequence[str] = tuple(SignalPoint.__dataclass_fields__)


def _point_values(point: SignalPoint) -> dict[str, Any]:
    values = {name: getattr(point, name) for name in _POINT_FIELDS}
    return values | {"kind": str(point.kind), "quality": str(point.quality)}


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
