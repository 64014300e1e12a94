"""Since when a job's owner has wanted it to run whatever power costs."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision: str | None = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nobody has asked for it yet."""
    op.add_column("job", sa.Column("run_now_at", sa.DateTime(timezone=True), nullable=True))
