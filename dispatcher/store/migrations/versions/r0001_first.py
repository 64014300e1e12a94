"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision: str | None = None
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_STATES = "'queued', 'launching', 'running', 'pausing', 'paused', 'succeeded', 'failed', 'cancelled'"


def upgrade() -> None:
    """Create every table."""
    op.create_table(
        "api_token",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("name"),
        sa.UniqueConstraint("sha256", name="uq_api_token_sha256"),
    )
    op.create_table(
        "grid_event",
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("event_id", sa.String(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("region", sa.String(), nullable=False),
        sa.Column("start", _TIME, nullable=False),
        sa.Column("end", _TIME, nullable=True),
        sa.Column("limit_w", sa.Float(), nullable=False),
        sa.Column("received_at", _TIME, nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("cancelled", sa.Boolean(), nullable=False),
        sa.Column("test", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("source", "event_id"),
    )
    op.create_table(
        "job",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("flex", sa.JSON(), nullable=False),
        sa.Column("team", sa.String(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("state_since", _TIME, nullable=False),
        sa.Column("submitted_at", _TIME, nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("region", sa.String(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("planned_region", sa.String(), nullable=True),
        sa.Column("planned_start_at", _TIME, nullable=True),
        sa.Column("held", sa.Boolean(), nullable=False),
        sa.Column("cancel_requested_at", _TIME, nullable=True),
        sa.Column("pause_requested_at", _TIME, nullable=True),
        sa.Column("checkpoint_saved_at", _TIME, nullable=True),
        sa.Column("checkpoint_misses", sa.Integer(), nullable=False),
        sa.Column("not_before_at", _TIME, nullable=True),
        sa.Column("progress_s", sa.Float(), nullable=False),
        sa.Column("pauses", sa.Integer(), nullable=False),
        sa.Column("started_at", _TIME, nullable=True),
        sa.Column("run_started_at", _TIME, nullable=True),
        sa.Column("finished_at", _TIME, nullable=True),
        sa.Column("error_type", sa.String(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("energy_kwh", sa.Float(), nullable=True),
        sa.Column("cost", sa.Float(), nullable=True),
        sa.Column("cost_currency", sa.String(), nullable=True),
        sa.Column("carbon_kg", sa.Float(), nullable=True),
        sa.Column("has_result", sa.Boolean(), nullable=False),
        sa.Column("deleted_at", _TIME, nullable=True),
        sa.Column("owner", sa.String(), nullable=True),
        sa.CheckConstraint(
            "(state IN ('succeeded', 'failed', 'cancelled')) = (finished_at IS NOT NULL)", name="ck_job_finished"
        ),
        sa.CheckConstraint(
            f"state IN ({_STATES})",
            name="ck_job_state",
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("seq", name="uq_job_seq"),
    )
    op.create_index(
        "ix_job_ended",
        "job",
        ["finished_at", "id"],
        unique=False,
        sqlite_where=sa.text("finished_at IS NOT NULL AND deleted_at IS NULL"),
        postgresql_where=sa.text("finished_at IS NOT NULL AND deleted_at IS NULL"),
    )
    op.create_index("ix_job_state", "job", ["state", "submitted_at", "id", "deleted_at"], unique=False)
    op.create_index(
        "ix_job_submitted",
        "job",
        ["submitted_at", "id"],
        unique=False,
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_index(
        "ix_job_team",
        "job",
        ["team", "submitted_at", "id"],
        unique=False,
        sqlite_where=sa.text("team IS NOT NULL"),
        postgresql_where=sa.text("team IS NOT NULL"),
    )
    op.create_index(
        "ix_job_unfinished",
        "job",
        ["seq"],
        unique=False,
        sqlite_where=sa.text("finished_at IS NULL"),
        postgresql_where=sa.text("finished_at IS NULL"),
    )
    op.create_table(
        "setting",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "signal_gap",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("region", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("variant", sa.String(), nullable=False),
        sa.Column("start", _TIME, nullable=False),
        sa.Column("end", _TIME, nullable=False),
        sa.Column("noted_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("region", "kind", "start", "end", "source", "variant", name="uq_signal_gap"),
    )
    op.create_table(
        "signal_point",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("region", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("variant", sa.String(), nullable=False),
        sa.Column("unit", sa.String(), nullable=False),
        sa.Column("start", _TIME, nullable=False),
        sa.Column("end", _TIME, nullable=False),
        sa.Column("issued_at", _TIME, nullable=True),
        sa.Column("retrieved_at", _TIME, nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("quality", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "ix_signal_point_region_kind_source_retrieved",
        "signal_point",
        ["region", "kind", "source", "retrieved_at"],
        unique=False,
    )
    op.create_index("ix_signal_point_region_kind_start", "signal_point", ["region", "kind", "start"], unique=False)
    op.create_table(
        "webhook_receipt",
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("message_id", sa.String(), nullable=False),
        sa.Column("received_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("source", "message_id"),
    )
    op.create_index("ix_webhook_receipt_received", "webhook_receipt", ["received_at"], unique=False)
    op.create_table(
        "attempt",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("region", sa.String(), nullable=False),
        sa.Column("submission_id", sa.String(), nullable=False),
        sa.Column("launched_at", _TIME, nullable=False),
        sa.Column("ray_session", sa.String(), nullable=True),
        sa.Column("accepted_at", _TIME, nullable=True),
        sa.Column("started_at", _TIME, nullable=True),
        sa.Column("ended_at", _TIME, nullable=True),
        sa.Column("outcome", sa.String(), nullable=True),
        sa.Column("message", sa.String(), nullable=False),
        sa.Column("deleted_upstream", sa.Boolean(), nullable=False),
        sa.CheckConstraint("attempt >= 1", name="ck_attempt_number"),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"]),
        sa.PrimaryKeyConstraint("job_id", "attempt"),
        sa.UniqueConstraint("submission_id", name="uq_attempt_submission_id"),
    )
    op.create_index(
        "ix_attempt_upstream",
        "attempt",
        ["region", "ended_at"],
        unique=False,
        sqlite_where=sa.text("ended_at IS NOT NULL AND deleted_upstream = 0"),
        postgresql_where=sa.text("ended_at IS NOT NULL AND NOT deleted_upstream"),
    )
    op.create_index(
        "uq_attempt_live",
        "attempt",
        ["job_id"],
        unique=True,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_table(
        "job_event",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("old_state", sa.String(), nullable=True),
        sa.Column("new_state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("region", sa.String(), nullable=True),
        sa.CheckConstraint(
            f"new_state IN ({_STATES})",
            name="ck_job_event_new_state",
        ),
        sa.CheckConstraint(
            f"old_state IS NULL OR old_state IN ({_STATES})",
            name="ck_job_event_old_state",
        ),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"]),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("ix_job_event_job", "job_event", ["job_id", "seq"], unique=False)
