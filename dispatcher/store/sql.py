"""The store in SQLite or PostgreSQL. Reads go straight to the database from any thread; writes stand in line (writer.py).

It knows rows and queries; what a change may do is decided in changes.py.
"""

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, and_, delete, func, insert, or_, select, text, tuple_, update
from sqlalchemy.exc import SQLAlchemyError

from dispatcher.clock import always
from dispatcher.errors import AlreadyExists, GridshiftError, NotFound, StoreUnavailable
from dispatcher.store import (
    Attempt,
    BeforeEvent,
    Change,
    GridEvent,
    GridEventChange,
    Job,
    JobEvent,
    Page,
    ServingQuarter,
    Token,
)
from dispatcher.store.changes import checked_submission, storable
from dispatcher.store.codec import (
    ATTEMPT_COLUMNS,
    BEFORE_EVENT_COLUMNS,
    EVENT_COLUMNS,
    GRID_EVENT_CHANGE_COLUMNS,
    GRID_EVENT_COLUMNS,
    JOB_COLUMNS,
    SERVING_QUARTER_COLUMNS,
    TOKEN_COLUMNS,
    attempt_of,
    before_event_of,
    before_event_values,
    event_of,
    grid_event_change_of,
    grid_event_change_values,
    grid_event_of,
    grid_event_values,
    job_of,
    serving_quarter_of,
    serving_quarter_values,
)
from dispatcher.store.engine import database, describe, make_engine, sqlite_path
from dispatcher.store.migrate import check_revision
from dispatcher.store.paging import CHANGES_KEPT, RECEIPTS_KEPT, check_limit, cursor_of, position_of
from dispatcher.store.tables import (
    API_TOKEN,
    ATTEMPT,
    GRID_EVENT,
    GRID_EVENT_BEFORE,
    GRID_EVENT_CHANGE,
    JOB,
    JOB_EVENT,
    SERVING_QUARTER,
    SETTING,
    WEBHOOK_RECEIPT,
)
from dispatcher.store.writer import AddJob, Call, Operation, Ticket, Writer
from policies.world import JobState

_JOBS = select(*JOB_COLUMNS)
_ATTEMPTS = select(*ATTEMPT_COLUMNS)
_MAX_SEQ = select(func.coalesce(func.max(JOB.c.seq), 0))
# Partial indexes hold exactly these rows; SQLite sees that only from the same words.
_UNFINISHED = text("finished_at IS NULL")
_ENDED_JOBS = _JOBS.where(text("finished_at IS NOT NULL AND deleted_at IS NULL")).order_by(
    JOB.c.finished_at.desc(), JOB.c.id.desc()
)
_DELETED_JOBS = _JOBS.where(text("finished_at IS NOT NULL AND deleted_at IS NOT NULL")).order_by(
    JOB.c.finished_at.desc(), JOB.c.id.desc()
)


def _by_end(job: Job) -> tuple[datetime | None, str]:
    return job.finished_at, job.id


class SqlStore:
    """See dispatcher.store.Store. ``url`` is an upgraded database (migrate.upgrade); raises StoreUnavailable for another.

    ``data_dir`` is where the control plane keeps its files; a full disk is reported with the room left there.
    ``wait_s`` is how long a write waits for a lock that somebody else holds; ``steady`` tells whether old receipts may be
    dropped by a time (see clock.Steady). Whoever waits for a Future inside a callback of
    another Future waits for ever: callbacks run on the writer's thread.
    """

    def __init__(
        self,
        url: str,
        *,
        data_dir: Path | None = None,
        wait_s: float = 5.0,
        steady: Callable[[datetime], bool] = always,
    ) -> None:
        parsed = database(url)
        self._steady = steady
        self._where = describe(parsed)
        self._path, self._data_dir = sqlite_path(parsed), data_dir
        #: For readers, and for stores that share the database (signals.store).
        self.engine = make_engine(parsed, wait_s=wait_s)
        self._closed = threading.Event()
        self._identity = self._file_identity(missing_ok=True)
        try:
            with self._reading() as connection:
                check_revision(connection, self._where)
        except StoreUnavailable:
            self.engine.dispose()
            raise
        self._writer = Writer(
            make_engine(parsed, wait_s=wait_s, pool_size=1).execution_options(write=True), self._where, self._look, self._room
        )

    # --- the database itself --------------------------------------------------------------------------------------

    def _file_identity(self, *, missing_ok: bool = False) -> tuple[int, int] | None:
        if self._path is None:
            return None
        try:
            found = self._path.stat()
        except FileNotFoundError:
            if missing_ok:
                return None
            raise FileNotFoundError(f"the database file {self._path} is gone") from None
        return (found.st_dev, found.st_ino)

    def _look(self) -> None:
        """Notice a SQLite file that was removed or replaced: an open connection would go on writing into the lost one."""
        identity = self._file_identity()
        if identity != self._identity:
            self.engine.dispose()
            self._writer.reconnect()
            self._identity = identity

    def _room(self) -> str:
        folder = self._data_dir or (self._path.parent if self._path else None)
        if folder is None:
            return ""
        return f" ({shutil.disk_usage(folder).free / 1e6:.1f} MB are free in {folder})"

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """A connection that sees one state of the database. Raises StoreUnavailable."""
        try:
            with self.engine.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            cause = str(getattr(error, "orig", None) or error).strip()
            raise StoreUnavailable(f"{self._where} cannot be read: {cause}") from error

    def _rows(self, query: Any) -> list[Any]:
        with self._reading() as connection:
            return list(connection.execute(query).all())

    def healthy(self) -> bool:
        """See Store."""
        if self._closed.is_set():
            return False
        try:
            self._file_identity()
            self._rows(select(1))
        except (GridshiftError, OSError):
            return False
        return True

    def close(self) -> None:
        """See Store."""
        self._closed.set()
        self._writer.close()
        self.engine.dispose()

    # --- writes ---------------------------------------------------------------------------------------------------

    def _submit(self, operations: Sequence[Operation], *, many: bool = False) -> "Future[Any]":
        future: Future[Any] = Future()
        self._writer.submit(Ticket(operations, future, many))
        return future

    def _call(self, do: Callable[[Connection], Any]) -> "Future[Any]":
        return self._submit([Call(do)])

    def add_job(self, job: Job, reason: str, attempt: Attempt | None = None) -> "Future[Job]":
        """See Store. The row is made on the caller's thread; the writer's time is everybody's."""
        try:
            new, first = checked_submission(job, reason, attempt)
            row = self._writer.statements.new_job(new)
        except GridshiftError as error:
            refused: Future[Job] = Future()
            refused.set_exception(error)
            return refused
        return self._submit([AddJob(new, row, reason, first)])

    def apply(self, changes: Sequence[Change]) -> "Future[list[Job | Exception]]":
        """See Store."""
        return self._submit(list(changes), many=True)

    def mark_deleted_upstream(self, submission_ids: Sequence[str]) -> "Future[None]":
        """See Store."""
        ids = list(submission_ids)

        def mark(connection: Connection) -> None:
            for at in range(0, len(ids), 500):
                chosen = ATTEMPT.c.submission_id.in_(ids[at : at + 500])
                connection.execute(update(ATTEMPT).where(chosen).values(deleted_upstream=True))

        return self._call(mark)

    def save_grid_event(
        self, event: GridEvent, message_id: str | None, *, change: GridEventChange | None = None, held: str | None = None
    ) -> "Future[str]":
        """See Store."""

        def save(connection: Connection) -> str:
            if message_id is not None and self._steady(event.received_at):
                _drop_receipts(connection, event.received_at - timedelta(days=RECEIPTS_KEPT))
            outcome = _save_grid_event(connection, storable(event), message_id, held)
            if outcome == "accepted" and change is not None:
                _note_grid_event(connection, storable(change))
            return outcome

        return self._call(save)

    def opt_out_grid_event(self, change: GridEventChange, reason: str | None) -> "Future[None]":
        """See Store."""

        def store(connection: Connection) -> None:
            line = storable(change)
            done = connection.execute(update(GRID_EVENT).where(_this(line.source, line.event_id)).values(opted_out=reason))
            if done.rowcount == 0:
                raise NotFound(f"there is no event {line.event_id} from {line.source}")
            _note_grid_event(connection, line)

        return self._call(store)

    def note_grid_event(self, change: GridEventChange) -> "Future[None]":
        """See Store."""
        return self._call(lambda connection: _note_grid_event(connection, storable(change)))

    def keep_before_event(self, kept: BeforeEvent) -> "Future[bool]":
        """See Store."""

        def keep(connection: Connection) -> bool:
            new = storable(kept)
            if connection.execute(_before(new.source, new.event_id)).first() is not None:
                return False
            connection.execute(insert(GRID_EVENT_BEFORE), before_event_values(new))
            return True

        return self._call(keep)

    def keep_serving(self, quarters: Sequence[ServingQuarter]) -> "Future[None]":
        """See Store."""

        def keep(connection: Connection) -> None:
            key = SERVING_QUARTER.primary_key.columns
            for one in [serving_quarter_values(storable(quarter)) for quarter in quarters]:
                connection.execute(delete(SERVING_QUARTER).where(*(column == one[column.name] for column in key)))
                connection.execute(insert(SERVING_QUARTER), one)

        return self._call(keep)

    def add_token(self, token: Token) -> "Future[None]":
        """See Store."""

        def add(connection: Connection) -> None:
            new = storable(token)
            taken = or_(API_TOKEN.c.name == new.name, API_TOKEN.c.sha256 == new.sha256)
            if connection.execute(select(API_TOKEN.c.name).where(taken)).first() is not None:
                raise AlreadyExists(f"a token named {new.name!r}, or the same token, exists already")
            connection.execute(insert(API_TOKEN), {"name": new.name, "sha256": new.sha256, "created_at": new.created_at})

        return self._call(add)

    def revoke_token(self, name: str) -> "Future[None]":
        """See Store."""

        def revoke(connection: Connection) -> None:
            if connection.execute(delete(API_TOKEN).where(API_TOKEN.c.name == name)).rowcount == 0:
                raise NotFound(f"no token named {name!r}")

        return self._call(revoke)

    def set_setting(self, key: str, value: str) -> "Future[None]":
        """See Store."""

        def store(connection: Connection) -> None:
            if connection.execute(update(SETTING).where(SETTING.c.key == key).values(value=value)).rowcount == 0:
                connection.execute(insert(SETTING), {"key": key, "value": value})

        return self._call(store)

    # --- reads ----------------------------------------------------------------------------------------------------

    def job(self, job_id: str) -> Job | None:
        """See Store."""
        rows = self._rows(_JOBS.where(JOB.c.id == job_id))
        return job_of(rows[0]) if rows else None

    def jobs_changed_since(self, seq: int) -> tuple[list[Job], int]:
        """See Store."""
        wanted: Any = _UNFINISHED if seq == 0 else JOB.c.seq > seq
        with self._reading() as connection:
            # The highest seq first: what is committed between the two queries is told again, never left out.
            highest = connection.execute(_MAX_SEQ).scalar_one() if seq == 0 else seq
            rows = connection.execute(_JOBS.where(wanted)).all()
        jobs = sorted(map(job_of, rows), key=lambda job: job.seq)
        if seq and jobs:
            highest = jobs[-1].seq
        return jobs, highest

    def ray_jobs(self, ended_limit: int = 1000, *, deleted: bool = False) -> list[Job]:
        """See Store."""
        with self._reading() as connection:
            # In this order a job that ends between the two queries is told as ended, once, and never left out.
            unfinished = connection.execute(_JOBS.where(_UNFINISHED, JOB.c.deleted_at.is_(None))).all()
            ended = connection.execute(_ENDED_JOBS.limit(ended_limit)).all()
            # The one query has an index, the other takes what is left: one deleted between the two is told once.
            gone = connection.execute(_DELETED_JOBS.limit(ended_limit)).all() if deleted else []
        jobs = {job.id: job for job in map(job_of, [*unfinished, *ended, *gone])}
        if gone:
            latest = sorted((job for job in jobs.values() if job.finished_at is not None), key=_by_end, reverse=True)
            for job in latest[ended_limit:]:
                del jobs[job.id]
        return sorted(jobs.values(), key=lambda job: (job.submitted_at, job.id), reverse=True)

    def page(
        self, *, state: JobState | None = None, team: str | None = None, cursor: str | None = None, limit: int = 100
    ) -> Page:
        """See Store."""
        check_limit(limit)
        query = _JOBS.where(text("deleted_at IS NULL")).order_by(JOB.c.submitted_at.desc(), JOB.c.id.desc()).limit(limit + 1)
        if state is not None:
            query = query.where(JOB.c.state == state.value)
        if team is not None:
            query = query.where(JOB.c.team == team)
        if cursor is not None:
            position = tuple_(*position_of(cursor), types=[JOB.c.submitted_at.type, JOB.c.id.type])
            query = query.where(tuple_(JOB.c.submitted_at, JOB.c.id) < position)
        jobs = [job_of(row) for row in self._rows(query)]
        return Page(tuple(jobs[:limit]), cursor_of(jobs[limit - 1]) if len(jobs) > limit else None)

    def counts(self) -> dict[JobState, int]:
        """See Store."""
        query = select(JOB.c.state, func.count()).where(JOB.c.deleted_at.is_(None)).group_by(JOB.c.state)
        return {JobState(state): count for state, count in self._rows(query)}

    def events(self, job_id: str) -> list[JobEvent]:
        """See Store."""
        query = select(*EVENT_COLUMNS).where(JOB_EVENT.c.job_id == job_id).order_by(JOB_EVENT.c.seq)
        return [event_of(row) for row in self._rows(query)]

    def attempts(self, job_id: str) -> list[Attempt]:
        """See Store."""
        return [attempt_of(row) for row in self._rows(_ATTEMPTS.where(ATTEMPT.c.job_id == job_id).order_by(ATTEMPT.c.attempt))]

    def live_attempts(self) -> list[Attempt]:
        """See Store."""
        query = _ATTEMPTS.where(text("ended_at IS NULL")).order_by(ATTEMPT.c.launched_at, ATTEMPT.c.submission_id)
        return [attempt_of(row) for row in self._rows(query)]

    def ended_attempts_upstream(self, region: str, before: datetime, limit: int = 100) -> list[Attempt]:
        """See Store."""
        query = (
            _ATTEMPTS.where(ATTEMPT.c.region == region, text("ended_at IS NOT NULL"), ~ATTEMPT.c.deleted_upstream)
            .where(ATTEMPT.c.ended_at < before)
            .order_by(ATTEMPT.c.ended_at, ATTEMPT.c.submission_id)
            .limit(limit)
        )
        return [attempt_of(row) for row in self._rows(query)]

    def grid_events(self, *, ended_after: datetime | None = None) -> list[GridEvent]:
        """See Store."""
        held = GRID_EVENT.c
        query = select(*GRID_EVENT_COLUMNS).order_by(held.start, held.source, held.event_id)
        if ended_after is not None:
            lasts = and_(~held.cancelled, or_(held.end.is_(None), held.end > ended_after))
            query = query.where(or_(lasts, and_(held.cancelled, held.received_at > ended_after)))
        return [grid_event_of(row) for row in self._rows(query)]

    def grid_event(self, source: str, event_id: str) -> GridEvent | None:
        """See Store."""
        rows = self._rows(select(*GRID_EVENT_COLUMNS).where(_this(source, event_id)))
        return grid_event_of(rows[0]) if rows else None

    def grid_event_changes(self, source: str, event_id: str) -> list[GridEventChange]:
        """See Store."""
        line = GRID_EVENT_CHANGE.c
        query = select(*GRID_EVENT_CHANGE_COLUMNS).where(line.source == source, line.event_id == event_id).order_by(line.seq)
        return [grid_event_change_of(row) for row in self._rows(query)]

    def before_event(self, source: str, event_id: str) -> BeforeEvent | None:
        """See Store."""
        rows = self._rows(_before(source, event_id))
        return before_event_of(rows[0]) if rows else None

    def serving_quarters(self, region: str, name: str, start: datetime, end: datetime) -> list[ServingQuarter]:
        """See Store."""
        kept = SERVING_QUARTER.c
        mine = (kept.region == region, kept.name == name, kept.start >= start, kept.start < end)
        query = select(*SERVING_QUARTER_COLUMNS).where(*mine).order_by(kept.start, kept.part)
        return [serving_quarter_of(row) for row in self._rows(query)]

    def held_grid_events(self, source: str, since: datetime) -> dict[str, str]:
        """See Store."""
        event = GRID_EVENT.c
        recent = or_(event.end.is_(None), event.end > since, event.received_at > since)
        query = select(event.event_id, event.held).where(event.source == source, event.held.is_not(None), recent)
        return {row[0]: row[1] for row in self._rows(query)}

    def held_grid_event(self, source: str, event_id: str) -> str | None:
        """See Store."""
        rows = self._rows(select(GRID_EVENT.c.held).where(_this(source, event_id)))
        return rows[0][0] if rows else None

    def tokens(self) -> list[Token]:
        """See Store."""
        return [Token(*row) for row in self._rows(select(*TOKEN_COLUMNS).order_by(API_TOKEN.c.name))]

    def setting(self, key: str) -> str | None:
        """See Store."""
        rows = self._rows(select(SETTING.c.value).where(SETTING.c.key == key))
        return rows[0][0] if rows else None


def _this(source: str, event_id: str) -> Any:
    return (GRID_EVENT.c.source == source) & (GRID_EVENT.c.event_id == event_id)


def _before(source: str, event_id: str) -> Any:
    kept = GRID_EVENT_BEFORE.c
    return select(*BEFORE_EVENT_COLUMNS).where(kept.source == source, kept.event_id == event_id)


def _note_grid_event(connection: Connection, change: GridEventChange) -> None:
    line = GRID_EVENT_CHANGE.c
    last: int = connection.execute(select(func.coalesce(func.max(line.seq), 0))).scalar_one()
    connection.execute(insert(GRID_EVENT_CHANGE), grid_event_change_values(change) | {"seq": last + 1})
    mine = (line.source == change.source) & (line.event_id == change.event_id)
    old = select(line.seq).where(mine).order_by(line.seq.desc()).offset(CHANGES_KEPT).limit(1).scalar_subquery()
    connection.execute(delete(GRID_EVENT_CHANGE).where(mine, line.seq <= old))


def _drop_receipts(connection: Connection, before: datetime) -> None:
    connection.execute(delete(WEBHOOK_RECEIPT).where(WEBHOOK_RECEIPT.c.received_at < before))


def _save_grid_event(connection: Connection, event: GridEvent, message_id: str | None, kept: str | None) -> str:
    receipts = WEBHOOK_RECEIPT.c
    if message_id is not None:
        seen = select(receipts.source).where(receipts.source == event.source, receipts.message_id == message_id)
        if connection.execute(seen).first() is not None:
            return "duplicate"
        receipt = {"source": event.source, "message_id": message_id, "received_at": event.received_at}
        connection.execute(insert(WEBHOOK_RECEIPT), receipt)
    same = _this(event.source, event.event_id)
    held: int | None = connection.execute(select(GRID_EVENT.c.version).where(same)).scalar_one_or_none()
    if held is not None and held >= event.version:
        return "duplicate" if held == event.version else "stale"
    values = grid_event_values(event) | ({"held": kept} if kept is not None else {})
    if held is None:
        connection.execute(insert(GRID_EVENT), values)
    else:
        del values["opted_out"]  # the operator's, whatever its sender says
        connection.execute(update(GRID_EVENT).where(same).values(values))
    return "accepted"
