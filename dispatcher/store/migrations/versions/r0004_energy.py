"""Measured energy: nodes with power agents, what their GPUs drew by minute and by hour, readings of site meters.

A job's energy says on what it is based. What was booked before was modelled.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision: str | None = "0003"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_LINE = "line IN ('job', 'idle', 'unattributed') AND (line = 'job') = (job_id <> '')"


def upgrade() -> None:
    """Add the tables, and the basis of every energy that is known."""
    op.add_column("job", sa.Column("energy_basis", sa.String(), nullable=True))
    op.execute("UPDATE job SET energy_basis = 'modelled' WHERE energy_kwh IS NOT NULL")
    op.create_table(
        "agent_node",
        sa.Column("node_id", sa.String(), nullable=False),
        sa.Column("region", sa.String(), nullable=False),
        sa.Column("branch", sa.String(), nullable=True),
        sa.Column("hostname", sa.String(), nullable=False),
        sa.Column("simulated", sa.Boolean(), nullable=False),
        sa.Column("gpus", sa.JSON(), nullable=False),
        sa.Column("first_seen_at", _TIME, nullable=False),
        sa.Column("last_seen_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("node_id"),
    )
    op.create_index("ix_agent_node_region", "agent_node", ["region", "branch"], unique=False)
    for name in ("energy_minute", "energy_hour"):
        op.create_table(name, *_energy_columns(), sa.CheckConstraint(_LINE, name=f"ck_{name}_line"))
        op.create_index(
            f"ix_{name}_job",
            name,
            ["job_id", "start_s"],
            unique=False,
            sqlite_where=sa.text("job_id <> ''"),
            postgresql_where=sa.text("job_id <> ''"),
        )
        op.create_index(f"ix_{name}_region", name, ["region", "start_s"], unique=False)
    op.create_table(
        "meter_reading",
        sa.Column("region", sa.String(), nullable=False),
        sa.Column("meter", sa.String(), nullable=False),
        sa.Column("start", _TIME, nullable=False),
        sa.Column("end", _TIME, nullable=True),
        sa.Column("branch", sa.String(), nullable=True),
        sa.Column("unit", sa.String(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("quality", sa.String(), nullable=False),
        sa.Column("received_at", _TIME, nullable=False),
        sa.CheckConstraint("unit IN ('W', 'kWh', 'degC')", name="ck_meter_reading_unit"),
        sa.PrimaryKeyConstraint("region", "meter", "start"),
    )
    op.create_index("ix_meter_reading_start", "meter_reading", ["start"], unique=False)


def _energy_columns() -> list[Any]:
    return [
        sa.Column("node_id", sa.String(), nullable=False),
        sa.Column("uuid", sa.String(), nullable=False),
        sa.Column("start_s", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("line", sa.String(), nullable=False),
        sa.Column("end_s", sa.BigInteger(), nullable=False),
        sa.Column("region", sa.String(), nullable=False),
        sa.Column("energy_wh", sa.Float(), nullable=False),
        sa.Column("idle_wh", sa.Float(), nullable=True),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("quality", sa.String(), nullable=False),
        sa.Column("split", sa.String(), nullable=False),
        sa.Column("simulated", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("node_id", "uuid", "start_s", "job_id", "line"),
    ]
