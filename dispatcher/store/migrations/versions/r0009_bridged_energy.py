"""How much of a row of energy is known from the counter alone, so that nobody takes its mean for power."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision: str | None = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Of earlier rows it was not kept: they count as read throughout, as they did."""
    for table in ("energy_minute", "energy_hour"):
        op.add_column(table, sa.Column("bridged_s", sa.Float(), nullable=False, server_default=sa.text("0")))
