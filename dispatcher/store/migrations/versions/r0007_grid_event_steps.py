"""Events with a whole schedule, what is held of each for its sender's next message, and what happened to it.

What was stored before had one limit, which its row says.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision: str | None = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and the history."""
    with op.batch_alter_table("grid_event") as table:
        table.alter_column("limit_w", existing_type=sa.Float(), nullable=True)
        table.add_column(sa.Column("steps", sa.JSON(), nullable=True))
        table.add_column(sa.Column("branch", sa.String(), nullable=True))
        table.add_column(sa.Column("protocol", sa.String(), nullable=False, server_default="native"))
        table.add_column(sa.Column("said_version", sa.String(), nullable=True))
        table.add_column(sa.Column("rank", sa.BigInteger(), nullable=True))
        table.add_column(sa.Column("opted_out", sa.String(), nullable=True))
        table.add_column(sa.Column("recovery_s", sa.Float(), nullable=True))
        table.add_column(sa.Column("held", sa.String(), nullable=True))
    op.create_table(
        "grid_event_change",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("event_id", sa.String(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=True),
        sa.Column("what", sa.String(), nullable=False),
        sa.Column("sentence", sa.String(), nullable=False),
        sa.Column("message", sa.String(), nullable=False),
        sa.Column("steps", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("ix_grid_event_change_event", "grid_event_change", ["source", "event_id", "seq"], unique=False)
