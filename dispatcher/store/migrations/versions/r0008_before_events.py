"""What sites were expected to draw without an event, kept when notice of it came. Of earlier events nothing was kept."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision: str | None = "0007"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "grid_event_before",
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("event_id", sa.String(), nullable=False),
        sa.Column("notice_at", _TIME, nullable=False),
        sa.Column("looked_at", _TIME, nullable=True),
        sa.Column("plan_made_at", _TIME, nullable=True),
        sa.Column("start", _TIME, nullable=False),
        sa.Column("slot_s", sa.BigInteger(), nullable=False),
        sa.Column("plan_w", sa.JSON(), nullable=True),
        sa.Column("plan_why", sa.String(), nullable=False),
        sa.Column("unshifted_w", sa.JSON(), nullable=True),
        sa.Column("unshifted_why", sa.String(), nullable=False),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.Column("measured_w", sa.Float(), nullable=True),
        sa.Column("other_w", sa.Float(), nullable=True),
        sa.Column("job_share", sa.Float(), nullable=False),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("source", "event_id"),
    )
