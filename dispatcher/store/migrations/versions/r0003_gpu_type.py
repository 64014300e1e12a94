"""The GPU type that an attempt was sent to, so that it is asked for again when the launch is repeated after a crash."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision: str | None = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Earlier attempts went to GPUs of any type."""
    op.add_column("attempt", sa.Column("gpu_type", sa.String(), nullable=True))
