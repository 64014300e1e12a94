"""Signals in compact rows: what a series' points share stands once, times are numbers, rows in force lie together."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision: str | None = "0001"
branch_labels = None
depends_on = None

#: Microseconds since 1970. SQLite has them as text of fixed width ("2026-03-01 00:00:00.000000"), PostgreSQL as timestamptz.
_US = {
    "sqlite": "(CAST(strftime('%s', substr({0}, 1, 19)) AS INTEGER) * 1000000 + CAST(substr({0}, 21, 6) AS INTEGER))",
    "postgresql": "CAST(round(extract(epoch FROM {0}) * 1000000) AS BIGINT)",
}
_QUALITIES = ("measured", "estimated", "imputed", "forecast", "held", "suspect")


def upgrade() -> None:
    """Make the new tables and carry every row over, with the same order of revisions."""
    op.drop_index("ix_signal_point_region_kind_source_retrieved", table_name="signal_point")
    op.drop_index("ix_signal_point_region_kind_start", table_name="signal_point")
    op.rename_table("signal_point", "signal_point_0001")
    op.create_table(
        "signal_series",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("region", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("variant", sa.String(), nullable=False),
        sa.Column("unit", sa.String(), nullable=False),
        sa.Column("longest_us", sa.BigInteger(), nullable=False),
        sa.Column("latest_us", sa.BigInteger(), nullable=False),
        sa.Column("next_seq", sa.BigInteger(), nullable=False),
        sa.Column("hourly_until_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("region", "kind", "source", "variant", name="uq_signal_series"),
    )
    op.create_table(
        "signal_point",
        sa.Column("series_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("outranked", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("start_us", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("end_us", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("issued_us", sa.BigInteger(), nullable=True),
        sa.Column("retrieved_us", sa.BigInteger(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("quality", sa.SmallInteger(), nullable=False),
        sa.Column("unit", sa.String(), nullable=True),
        sa.CheckConstraint("end_us > start_us", name="ck_signal_point_span"),
        sa.ForeignKeyConstraint(["series_id"], ["signal_series.id"]),
        sa.PrimaryKeyConstraint("series_id", "outranked", "start_us", "end_us", "seq"),
        sqlite_with_rowid=False,
    )
    _carry_over(op.get_bind())
    op.drop_table("signal_point_0001")


def _carry_over(connection: sa.Connection) -> None:
    us = _US[connection.dialect.name]
    start, end, issued, retrieved = (us.format(f'p."{name}"') for name in ("start", "end", "issued_at", "retrieved_at"))
    connection.execute(
        sa.text(f"""
        INSERT INTO signal_series (region, kind, source, variant, unit, longest_us, latest_us, next_seq)
        SELECT region, kind, source, variant, min(unit), max({end} - {start}), max({retrieved}), 0
        FROM signal_point_0001 p GROUP BY region, kind, source, variant
        ORDER BY region, kind, source, variant
        """)
    )
    quality = " ".join(f"WHEN '{name}' THEN {code}" for code, name in enumerate(_QUALITIES))
    connection.execute(
        sa.text(f"""
        INSERT INTO signal_point (
            series_id, outranked, start_us, end_us, seq, issued_us, retrieved_us, value, quality, unit
        )
        SELECT s.id,
            CASE WHEN row_number() OVER (
                PARTITION BY s.id, p.start, p."end"
                ORDER BY CASE WHEN p.quality = 'forecast' THEN 1 ELSE 0 END,
                    coalesce(p.issued_at, p.retrieved_at) DESC, p.retrieved_at DESC, p.id DESC
            ) = 1 THEN 0 ELSE 1 END,
            {start}, {end},
            row_number() OVER (PARTITION BY s.id, p.start, p."end" ORDER BY p.id) - 1,
            CASE WHEN p.issued_at IS NULL THEN NULL ELSE {issued} END, {retrieved}, p.value,
            CASE p.quality {quality} END, CASE WHEN p.unit = s.unit THEN NULL ELSE p.unit END
        FROM signal_point_0001 p JOIN signal_series s
            ON s.region = p.region AND s.kind = p.kind AND s.source = p.source AND s.variant = p.variant
        """)
    )
    most = "(SELECT coalesce(max(seq) + 1, 0) FROM signal_point WHERE series_id = signal_series.id)"
    connection.execute(sa.text(f"UPDATE signal_series SET next_seq = {most}"))
