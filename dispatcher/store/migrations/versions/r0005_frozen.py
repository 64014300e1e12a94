"""Freezing: since when a running job stands still, when it has recovered from standing, and how long each attempt stood."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision: str | None = "0004"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """No earlier attempt stood frozen."""
    op.add_column("job", sa.Column("frozen_at", _TIME, nullable=True))
    op.add_column("job", sa.Column("rested_at", _TIME, nullable=True))
    op.add_column("attempt", sa.Column("frozen_s", sa.Float(), nullable=False, server_default=sa.text("0")))
