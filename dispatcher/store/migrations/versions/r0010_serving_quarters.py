"""What interactive serving and the batch beside it did, by quarter hour. Of earlier time nothing was kept."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision: str | None = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "serving_quarter",
        sa.Column("region", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("start", sa.DateTime(timezone=True), nullable=False),
        sa.Column("part", sa.String(), nullable=False),
        sa.Column("objectives", sa.JSON(), nullable=False),
        sa.Column("level_s", sa.JSON(), nullable=False),
        *(sa.Column(name, sa.Float(), nullable=False) for name in ("beside_s", "beside_gpu_s", "region_gpu_s")),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("rises", "rises_beside", "frozen", "capped", "asked")),
        sa.Column("yield_s", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("region", "name", "start", "part"),
    )
