"""The tables that signals are kept in, and how a point becomes a row and a row a point.

It knows nothing of which rows are new or in force (signals.store). Times are whole microseconds since 1970 in UTC: they sort as
time does, take eight bytes on SQLite and PostgreSQL alike, and cost little to read by the thousand.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Integer,
    SmallInteger,
    String,
    TypeDecorator,
    UniqueConstraint,
)
from sqlmodel import Field, SQLModel

from signals.points import Quality, SignalPoint, require_utc, standing

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

#: Quality as it is stored, from the best to the worst. Numbers are never given a second meaning.
QUALITIES = (
    Quality.MEASURED,
    Quality.ESTIMATED,
    Quality.IMPUTED,
    Quality.FORECAST,
    Quality.HELD,
    Quality.SUSPECT,
)
QUALITY_CODE = {quality: code for code, quality in enumerate(QUALITIES)}
FORECAST_CODE, SUSPECT_CODE = QUALITY_CODE[Quality.FORECAST], QUALITY_CODE[Quality.SUSPECT]
_STANDING = {code: standing(quality) for quality, code in QUALITY_CODE.items()}


def micros(when: datetime) -> int:
    """Microseconds since 1970 of an aware time, exactly."""
    return (when - _EPOCH) // _MICROSECOND


def moment(us: int) -> datetime:
    """The aware UTC time of so many microseconds since 1970."""
    return _EPOCH + us * _MICROSECOND


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


class SignalSeriesRow(SQLModel, table=True):
    """What the points of one source for one region, kind and variant have in common."""

    __tablename__ = "signal_series"
    __table_args__ = (UniqueConstraint("region", "kind", "source", "variant", name="uq_signal_series"),)

    id: int | None = Field(default=None, sa_column=Column("id", Integer(), primary_key=True, autoincrement=True))
    region: str = Field(sa_column=Column("region", String(), nullable=False))
    kind: str = Field(sa_column=Column("kind", String(), nullable=False))
    source: str = Field(sa_column=Column("source", String(), nullable=False))
    variant: str = Field(sa_column=Column("variant", String(), nullable=False))
    #: The unit of every point that does not name another.
    unit: str = Field(sa_column=Column("unit", String(), nullable=False))
    #: No point was ever longer, so a read looks no further back than this for points that reach into its window.
    longest_us: int = Field(sa_column=Column("longest_us", BigInteger(), nullable=False))
    #: When the newest of the points was retrieved.
    latest_us: int = Field(sa_column=Column("latest_us", BigInteger(), nullable=False))
    #: The ``seq`` of the next row.
    next_seq: int = Field(sa_column=Column("next_seq", BigInteger(), nullable=False))
    #: Up to here points are hourly means already; None when nothing was thinned.
    hourly_until_us: int | None = Field(default=None, sa_column=Column("hourly_until_us", BigInteger(), nullable=True))


class SignalPointRow(SQLModel, table=True):
    """One revision of one point.

    ``outranked`` is 0 for the row in force by all that is known (one an interval), 1 for every other. It leads the key, after
    the series, so that rows in force lie side by side on disk and a reading of what is known now passes over no revision.
    """

    __tablename__ = "signal_point"
    __table_args__ = (
        CheckConstraint("end_us > start_us", name="ck_signal_point_span"),
        # Rows live in the primary key itself: no second copy of the key, and neighbours in time are neighbours on disk.
        {"sqlite_with_rowid": False},
    )

    series_id: int = Field(
        sa_column=Column("series_id", Integer(), ForeignKey("signal_series.id"), primary_key=True, autoincrement=False)
    )
    outranked: int = Field(sa_column=Column("outranked", SmallInteger(), primary_key=True, autoincrement=False))
    start_us: int = Field(sa_column=Column("start_us", BigInteger(), primary_key=True, autoincrement=False))
    end_us: int = Field(sa_column=Column("end_us", BigInteger(), primary_key=True, autoincrement=False))
    #: Rows of one interval in the order in which they were stored.
    seq: int = Field(sa_column=Column("seq", BigInteger(), primary_key=True, autoincrement=False))
    issued_us: int | None = Field(default=None, sa_column=Column("issued_us", BigInteger(), nullable=True))
    retrieved_us: int = Field(sa_column=Column("retrieved_us", BigInteger(), nullable=False))
    value: float = Field(sa_column=Column("value", Float(), nullable=False))
    quality: int = Field(sa_column=Column("quality", SmallInteger(), nullable=False))
    #: None: that of the series.
    unit: str | None = Field(default=None, sa_column=Column("unit", String(), nullable=True))


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


SERIES = SQLModel.metadata.tables["signal_series"]
POINT = SQLModel.metadata.tables["signal_point"]
GAP = SQLModel.metadata.tables["signal_gap"]


# --- rows and points ------------------------------------------------------------------------------------------------

#: The columns of a point's row that are read, in this order: (start, end, seq, issued, retrieved, value, quality, unit).
POINT_COLUMNS = tuple(
    POINT.c[name] for name in ("start_us", "end_us", "seq", "issued_us", "retrieved_us", "value", "quality", "unit")
)
PointRow = tuple[int, int, int, int | None, int, float, int, str | None]


def worth(row: PointRow) -> tuple[int, int, int, int]:
    """What decides between rows of one interval: an actual before a forecast before what is doubted, then the newer issue,
    retrieval and storing; the largest wins."""
    _, _, seq, issued, retrieved, _, quality, _ = row
    return (_STANDING[quality], retrieved if issued is None else issued, retrieved, seq)


def point_row(point: SignalPoint, series_unit: str, seq: int) -> PointRow:
    """``point`` as a row of a series whose unit is ``series_unit``."""
    return (
        micros(point.start),
        micros(point.end),
        seq,
        None if point.issued_at is None else micros(point.issued_at),
        micros(point.retrieved_at),
        point.value,
        QUALITY_CODE[point.quality],
        None if point.unit == series_unit else point.unit,
    )


_SETTERS: dict[str, Callable[[SignalPoint, Any], None]] = {
    name: SignalPoint.__dict__[name].__set__ for name in SignalPoint.__dataclass_fields__
}


def points_of(rows: Sequence[PointRow], common: dict[str, Any]) -> list[SignalPoint]:
    """Points of ``rows``; ``common`` has their region, kind, source, variant, and the unit of rows that name none.

    They were checked when they came in and are not checked again, and are filled a column at a time: so thousands are read in a
    few milliseconds.
    """
    if not rows:
        return []
    starts, ends, _, issued, retrieved, values, qualities, units = zip(*rows, strict=True)
    # An interval's end is the next one's start, and a batch was retrieved at one moment: most times come several times.
    times: dict[int | None, datetime | None] = {
        us: _EPOCH + us * _MICROSECOND for us in {*starts, *ends, *retrieved, *issued} if us is not None
    }
    times[None] = None
    at = times.__getitem__
    columns: dict[str, Iterable[Any]] = {name: repeat(common[name]) for name in ("region", "kind", "source", "variant")}
    columns |= {
        "start": map(at, starts),
        "end": map(at, ends),
        "issued_at": map(at, issued),
        "retrieved_at": map(at, retrieved),
    }
    columns |= {"value": values, "quality": map(QUALITIES.__getitem__, qualities)}
    columns["unit"] = [unit or common["unit"] for unit in units] if any(units) else repeat(common["unit"])
    points = list(map(SignalPoint.__new__, repeat(SignalPoint, len(rows))))
    for name, column in columns.items():
        deque(map(_SETTERS[name], points, column), maxlen=0)
    return points
