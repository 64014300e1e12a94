"""The tables as SQLModel rows; the columns mean what the fields of the dataclasses in dispatcher.store mean.

The database keeps the promises: states, ids used once, one live attempt a job. It knows nothing of how rows become values
(codec.py). Times are aware UTC on every database.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, Index, Integer, Table, UniqueConstraint, text
from sqlmodel import Field, SQLModel

from policies.world import ENDED, JobState
from signals.store import UTCDateTime

_STATES = ", ".join(f"'{state}'" for state in JobState)
#: Whose a row of energy is.
ENERGY_LINES = ("job", "idle", "unattributed")
_ENDED = ", ".join(f"'{state}'" for state in JobState if state in ENDED)
# SQLite numbers and orders rows by an INTEGER key only.
_SEQ = BigInteger().with_variant(Integer(), "sqlite")


def _time(**more: Any) -> Any:
    return Field(sa_type=UTCDateTime, **more)


class JobRow(SQLModel, table=True):
    """One job. ``team`` is a copy of ``flex.team``, so that it can be searched for."""

    __tablename__ = "job"
    __table_args__ = (
        CheckConstraint(f"state IN ({_STATES})", name="ck_job_state"),
        # "The latest ended" is found by the end time, so exactly the ended jobs have one.
        CheckConstraint(f"(state IN ({_ENDED})) = (finished_at IS NOT NULL)", name="ck_job_finished"),
        UniqueConstraint("seq", name="uq_job_seq"),
        Index("ix_job_state", "state", "submitted_at", "id", "deleted_at"),
        Index(
            "ix_job_team",
            "team",
            "submitted_at",
            "id",
            sqlite_where=text("team IS NOT NULL"),
            postgresql_where=text("team IS NOT NULL"),
        ),
        Index(
            "ix_job_submitted",
            "submitted_at",
            "id",
            sqlite_where=text("deleted_at IS NULL"),
            postgresql_where=text("deleted_at IS NULL"),
        ),
        Index(
            "ix_job_unfinished",
            "seq",
            sqlite_where=text("finished_at IS NULL"),
            postgresql_where=text("finished_at IS NULL"),
        ),
        Index(
            "ix_job_ended",
            "finished_at",
            "id",
            sqlite_where=text("finished_at IS NOT NULL AND deleted_at IS NULL"),
            postgresql_where=text("finished_at IS NOT NULL AND deleted_at IS NULL"),
        ),
    )

    id: str = Field(primary_key=True)
    request: dict[str, Any] = Field(sa_type=JSON)
    flex: dict[str, Any] = Field(sa_type=JSON)
    team: str | None = None
    state: str
    state_since: datetime = _time()
    submitted_at: datetime = _time()
    reason: str
    seq: int = Field(sa_type=_SEQ)
    region: str | None = None
    attempt: int
    planned_region: str | None = None
    planned_start_at: datetime | None = _time(default=None)
    held: bool
    cancel_requested_at: datetime | None = _time(default=None)
    pause_requested_at: datetime | None = _time(default=None)
    checkpoint_saved_at: datetime | None = _time(default=None)
    checkpoint_misses: int
    not_before_at: datetime | None = _time(default=None)
    progress_s: float
    pauses: int
    started_at: datetime | None = _time(default=None)
    run_started_at: datetime | None = _time(default=None)
    finished_at: datetime | None = _time(default=None)
    error_type: str | None = None
    exit_code: int | None = None
    energy_kwh: float | None = None
    cost: float | None = None
    cost_currency: str | None = None
    carbon_kg: float | None = None
    energy_basis: str | None = None
    has_result: bool
    deleted_at: datetime | None = _time(default=None)
    owner: str | None = None
    frozen_at: datetime | None = _time(default=None)
    rested_at: datetime | None = _time(default=None)
    run_now_at: datetime | None = _time(default=None)


class AttemptRow(SQLModel, table=True):
    """One attempt; the partial unique index allows a job one that lives."""

    __tablename__ = "attempt"
    __table_args__ = (
        UniqueConstraint("submission_id", name="uq_attempt_submission_id"),
        CheckConstraint("attempt >= 1", name="ck_attempt_number"),
        Index(
            "uq_attempt_live",
            "job_id",
            unique=True,
            sqlite_where=text("ended_at IS NULL"),
            postgresql_where=text("ended_at IS NULL"),
        ),
        Index(
            "ix_attempt_upstream",
            "region",
            "ended_at",
            sqlite_where=text("ended_at IS NOT NULL AND deleted_upstream = 0"),
            postgresql_where=text("ended_at IS NOT NULL AND NOT deleted_upstream"),
        ),
    )

    job_id: str = Field(primary_key=True, foreign_key="job.id")
    attempt: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    region: str
    submission_id: str
    launched_at: datetime = _time()
    ray_session: str | None = None
    accepted_at: datetime | None = _time(default=None)
    started_at: datetime | None = _time(default=None)
    ended_at: datetime | None = _time(default=None)
    outcome: str | None = None
    message: str
    deleted_upstream: bool
    gpu_type: str | None = None
    frozen_s: float = Field(default=0.0, sa_column_kwargs={"server_default": text("0")})


class JobEventRow(SQLModel, table=True):
    """One change of a job. The single writer numbers events itself, so that a batch needs no answer row by row."""

    __tablename__ = "job_event"
    __table_args__ = (
        CheckConstraint(f"new_state IN ({_STATES})", name="ck_job_event_new_state"),
        CheckConstraint(f"old_state IS NULL OR old_state IN ({_STATES})", name="ck_job_event_old_state"),
        Index("ix_job_event_job", "job_id", "seq"),
    )

    seq: int = Field(primary_key=True, sa_type=_SEQ, sa_column_kwargs={"autoincrement": False})
    job_id: str = Field(foreign_key="job.id")
    at: datetime = _time()
    kind: str
    old_state: str | None = None
    new_state: str
    reason: str
    attempt: int
    region: str | None = None


class GridEventRow(SQLModel, table=True):
    """The highest version of each grid event."""

    __tablename__ = "grid_event"

    source: str = Field(primary_key=True)
    event_id: str = Field(primary_key=True)
    version: int = Field(sa_type=BigInteger)
    region: str
    start: datetime = _time()
    end: datetime | None = _time(default=None)
    limit_w: float | None = None
    received_at: datetime = _time()
    reason: str
    cancelled: bool
    test: bool
    steps: Any = Field(sa_type=JSON, default=None, nullable=True)
    branch: str | None = None
    protocol: str
    said_version: str | None = None
    rank: int | None = Field(sa_type=BigInteger, default=None)
    opted_out: str | None = None
    recovery_s: float | None = None
    held: str | None = None


class GridEventChangeRow(SQLModel, table=True):
    """One line of an event's history."""

    __tablename__ = "grid_event_change"
    __table_args__ = (Index("ix_grid_event_change_event", "source", "event_id", "seq"),)

    seq: int = Field(primary_key=True, sa_type=_SEQ, sa_column_kwargs={"autoincrement": False})
    source: str
    event_id: str
    at: datetime = _time()
    version: int | None = Field(sa_type=BigInteger, default=None)
    what: str
    sentence: str
    message: str
    steps: Any = Field(sa_type=JSON, default=None, nullable=True)


class BeforeEventRow(SQLModel, table=True):
    """What a site was expected to draw without an event, as it was when notice of it came."""

    __tablename__ = "grid_event_before"

    source: str = Field(primary_key=True)
    event_id: str = Field(primary_key=True)
    notice_at: datetime = _time()
    looked_at: datetime | None = _time(default=None)
    plan_made_at: datetime | None = _time(default=None)
    start: datetime = _time()
    slot_s: int = Field(sa_type=BigInteger)
    plan_w: Any = Field(sa_type=JSON, default=None, nullable=True)
    plan_why: str
    unshifted_w: Any = Field(sa_type=JSON, default=None, nullable=True)
    unshifted_why: str
    jobs: int = Field(sa_type=BigInteger)
    measured_w: float | None = None
    other_w: float | None = None
    job_share: float
    notes: Any = Field(sa_type=JSON)


class ServingQuarterRow(SQLModel, table=True):
    """What one control plane saw of a serving in a part of a quarter hour. A part has a name of its own, so that writing it
    again replaces it, and neither a restart nor a clock that is set back writes over another."""

    __tablename__ = "serving_quarter"

    region: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    start: datetime = _time(primary_key=True)
    part: str = Field(primary_key=True)
    objectives: Any = Field(sa_type=JSON)
    level_s: Any = Field(sa_type=JSON)
    beside_s: float
    beside_gpu_s: float
    region_gpu_s: float
    rises: int = Field(sa_type=BigInteger)
    rises_beside: int = Field(sa_type=BigInteger)
    frozen: int = Field(sa_type=BigInteger)
    capped: int = Field(sa_type=BigInteger)
    asked: int = Field(sa_type=BigInteger)
    yield_s: Any = Field(sa_type=JSON)


class WebhookReceiptRow(SQLModel, table=True):
    """A webhook message that was taken, so that its repetition is known."""

    __tablename__ = "webhook_receipt"
    __table_args__ = (Index("ix_webhook_receipt_received", "received_at"),)

    source: str = Field(primary_key=True)
    message_id: str = Field(primary_key=True)
    received_at: datetime = _time()


class ApiTokenRow(SQLModel, table=True):
    """An API token's hash."""

    __tablename__ = "api_token"
    __table_args__ = (UniqueConstraint("sha256", name="uq_api_token_sha256"),)

    name: str = Field(primary_key=True)
    sha256: str
    created_at: datetime = _time()


class SettingRow(SQLModel, table=True):
    """A small value of the control plane's own."""

    __tablename__ = "setting"

    key: str = Field(primary_key=True)
    value: str


class AgentNodeRow(SQLModel, table=True):
    """A node whose power agent was heard of; ``gpus`` is a list of {uuid, name, index} as it said last. A GPU that is gone from
    it keeps its energy rows."""

    __tablename__ = "agent_node"
    __table_args__ = (Index("ix_agent_node_region", "region", "branch"),)

    node_id: str = Field(primary_key=True)
    region: str
    branch: str | None = None
    hostname: str
    simulated: bool
    gpus: list[dict[str, Any]] = Field(sa_type=JSON)
    first_seen_at: datetime = _time()
    last_seen_at: datetime = _time()


class _EnergyColumns(SQLModel):
    """What rows of energy say, of whatever interval. Times are whole seconds since 1970; ``job_id`` is empty where there is
    none, since a key has no NULL; ``seconds`` is how much of the interval was measured; ``idle_wh`` is the part of
    ``energy_wh`` drawn by a job that sat idle (NULL: not known)."""

    node_id: str = Field(primary_key=True)
    uuid: str = Field(primary_key=True)
    start_s: int = Field(primary_key=True, sa_type=BigInteger, sa_column_kwargs={"autoincrement": False})
    job_id: str = Field(primary_key=True)
    line: str = Field(primary_key=True)
    end_s: int = Field(sa_type=BigInteger)
    region: str
    energy_wh: float
    idle_wh: float | None = None
    seconds: float
    quality: str
    split: str
    simulated: bool
    bridged_s: float = Field(default=0.0, sa_column_kwargs={"server_default": text("0")})


def _energy_table(name: str) -> tuple[CheckConstraint | Index, ...]:
    """The rules and indexes of a table of energy."""
    lines = ", ".join(f"'{line}'" for line in ENERGY_LINES)
    has_job = text("job_id <> ''")
    return (
        CheckConstraint(f"line IN ({lines}) AND (line = 'job') = (job_id <> '')", name=f"ck_{name}_line"),
        Index(f"ix_{name}_job", "job_id", "start_s", sqlite_where=has_job, postgresql_where=has_job),
        Index(f"ix_{name}_region", "region", "start_s"),
    )


class EnergyMinuteRow(_EnergyColumns, table=True):
    """What one GPU drew in one minute, as far as it belongs to one job, to nobody (``idle``) or to nobody known
    (``unattributed``). The key counts a row once, however often an agent sends it."""

    __tablename__ = "energy_minute"
    __table_args__ = _energy_table("energy_minute")


class EnergyHourRow(_EnergyColumns, table=True):
    """Sums of minutes that are complete, by hour of UTC. ``quality`` is the worst of them; ``seconds`` of those who shared a
    GPU are divided among them (``split`` is then "summed"), so that they add up to what its meter was read."""

    __tablename__ = "energy_hour"
    __table_args__ = _energy_table("energy_hour")


class MeterReadingRow(SQLModel, table=True):
    """What a site's own meter or thermometer said: a mean over ``[start, end)``, or, with ``end`` None, the reading of a
    moment. A cumulative kWh counter is stored as read. Each interval or moment of a meter is kept once."""

    __tablename__ = "meter_reading"
    __table_args__ = (
        CheckConstraint("unit IN ('W', 'kWh', 'degC')", name="ck_meter_reading_unit"),
        Index("ix_meter_reading_start", "start"),
    )

    region: str = Field(primary_key=True)
    meter: str = Field(primary_key=True)
    start: datetime = _time(primary_key=True)
    end: datetime | None = _time(default=None)
    branch: str | None = None
    unit: str
    value: float
    quality: str
    received_at: datetime = _time()


def _table(name: str) -> Table:
    return SQLModel.metadata.tables[name]


JOB, ATTEMPT, JOB_EVENT = _table("job"), _table("attempt"), _table("job_event")
GRID_EVENT, WEBHOOK_RECEIPT = _table("grid_event"), _table("webhook_receipt")
GRID_EVENT_CHANGE, GRID_EVENT_BEFORE = _table("grid_event_change"), _table("grid_event_before")
SERVING_QUARTER = _table("serving_quarter")
API_TOKEN, SETTING = _table("api_token"), _table("setting")
AGENT_NODE, METER_READING = _table("agent_node"), _table("meter_reading")
ENERGY_MINUTE, ENERGY_HOUR = _table("energy_minute"), _table("energy_hour")
