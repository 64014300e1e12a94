"""One thread that writes for everybody: what many callers wait for shares one transaction and one sync to disk.

A batch is planned in memory by the rules of changes.py on the rows as they are (nobody else writes), then written in bulk. It
decides nothing itself, and knows no more of operations than whether they add a job, change one, or do something of their own.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, Connection, Dialect, Engine, bindparam, func, select, text
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from dispatcher.errors import AlreadyExists, BadInput, GridshiftError, NotFound, StoreUnavailable
from dispatcher.store import Attempt, Change, Job, JobEvent
from dispatcher.store.bulk import Bulk, Row, held_among
from dispatcher.store.changes import STORY_EVENTS, Written, changed, submitted
from dispatcher.store.codec import (
    ATTEMPT_CHANGING,
    ATTEMPT_COLUMNS,
    ATTEMPT_INSERT,
    EVENT_COLUMNS,
    EVENT_INSERT,
    JOB_CHANGING,
    JOB_COLUMNS,
    JOB_INSERT,
    attempt_of,
    attempt_values,
    changed_attempt_values,
    changed_job_values,
    event_of,
    event_values,
    job_of,
    job_values,
)
from dispatcher.store.tables import ATTEMPT, JOB, JOB_EVENT

log = logging.getLogger(__name__)

#: Operations that share a transaction at most, so that the first of them does not wait long for the last.
BATCH = 256
#: Values in one IN (...).
_CHUNK = 500
#: Key of the PostgreSQL advisory lock that keeps writers in one line, so that the order of seq is the order of commits.
WRITE_LOCK = 0x6772_6964_7772
#: Seconds to look whether a commit whose answer was lost took place.
_ASK_AGAIN_S = 10.0

# Statements made once: the engine's cache then knows them by identity, which is a good part of what a small batch costs.
_LAST_SEQ = select(func.coalesce(func.max(JOB_EVENT.c.seq), 0))
_IDS: BindParameter[Any] = bindparam("ids", expanding=True)
_JOBS = select(*JOB_COLUMNS).where(JOB.c.id.in_(_IDS))
_CURRENT_ATTEMPTS = (
    select(*ATTEMPT_COLUMNS)
    .join(JOB, JOB.c.id == ATTEMPT.c.job_id)
    .where(ATTEMPT.c.job_id.in_(_IDS), JOB.c.attempt == ATTEMPT.c.attempt)
)
# What a change of a job's request or deadline touches besides.
_SPEC = ("request", "flex", "team", "submitted_at")


class Statements:
    """The statements that write jobs, attempts and events, in one database's words."""

    def __init__(self, dialect: Dialect) -> None:
        self.insert_job = Bulk(dialect, JOB, JOB_INSERT)
        self.update_job = Bulk(dialect, JOB, JOB_CHANGING, ["id"])
        self.update_spec = Bulk(dialect, JOB, _SPEC, ["id"])
        self.insert_attempt = Bulk(dialect, ATTEMPT, ATTEMPT_INSERT)
        self.update_attempt = Bulk(dialect, ATTEMPT, ATTEMPT_CHANGING, ["job_id", "attempt"])
        self.insert_event = Bulk(dialect, JOB_EVENT, EVENT_INSERT)

    def new_job(self, job: Job) -> Row:
        """A new job's row. Raises BadInput for a request that JSON cannot say."""
        return self.insert_job.row(job_values(job))


@dataclass(slots=True)
class AddJob:
    """A job as ``checked_submission`` returned it, its row (all but the seq, which is last), and its first attempt."""

    job: Job
    row: Row
    reason: str
    attempt: Attempt | None


@dataclass(slots=True)
class Call:
    """Anything else: ``do`` runs in a savepoint of its own."""

    do: Callable[[Connection], Any]


Operation = AddJob | Change | Call


@dataclass(slots=True)
class Ticket:
    """What one caller waits for: one operation, or ``many``, whose results it wants in a list."""

    operations: Sequence[Operation]
    future: "Future[Any]"
    many: bool = False


class Batch:
    """Operations of one transaction: ``run`` each, then ``flush`` what they amount to."""

    def __init__(self, connection: Connection, statements: Statements, operations: Iterable[Operation]) -> None:
        self._connection, self._statements = connection, statements
        adding: set[str] = set()
        changing: set[str] = set()
        for operation in operations:
            if isinstance(operation, AddJob):
                adding.add(operation.job.id)
            elif isinstance(operation, Change):
                changing.add(operation.job_id)
        self._jobs: dict[str, Job] = {}
        self._attempts: dict[tuple[str, int], Attempt] = {}
        self._stored: dict[str, Job] = {}
        self._taken: set[str] = set()
        self._new_jobs: dict[str, Row | None] = {}
        self._new_attempts: dict[tuple[str, int], None] = {}
        self._changed_attempts: dict[tuple[str, int], None] = {}
        self.events: list[JobEvent] = []
        self._seq = 0
        if adding or changing:
            self._load(adding, changing)

    def _load(self, adding: set[str], changing: set[str]) -> None:
        connection = self._connection
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": WRITE_LOCK})
        self._seq = connection.execute(_LAST_SEQ).scalar_one()
        for ids in _chunks(adding):
            self._taken |= held_among(connection, JOB.c.id, ids)
        for ids in _chunks(changing):
            for row in connection.execute(_JOBS, {"ids": ids}):
                job = job_of(row)
                self._jobs[job.id] = self._stored[job.id] = job
            for row in connection.execute(_CURRENT_ATTEMPTS, {"ids": ids}):
                attempt = attempt_of(row)
                self._attempts[attempt.job_id, attempt.attempt] = attempt

    def run(self, operation: AddJob | Change) -> Job:
        """What the operation makes of its job. Raises what changes.py raises, and then leaves no trace."""
        if isinstance(operation, AddJob):
            return self._add(operation)
        job = self._jobs.get(operation.job_id)
        if job is None:
            raise NotFound(f"no job {operation.job_id}")
        current = self._attempts.get((job.id, job.attempt))
        written = changed(job, current, operation, self._seq + 1, lambda: self._story(operation.job_id))
        if written.job.request is not job.request or written.job.flex is not job.flex:
            job_values(written.job)  # what JSON cannot say fails here, and alone
        if job.id in self._new_jobs:
            self._new_jobs[job.id] = None  # changed in the batch that adds it: its row is made anew
        return self._note(written)

    def _add(self, operation: AddJob) -> Job:
        job_id = operation.job.id
        if job_id in self._taken:
            raise AlreadyExists(f"a job with the id {job_id} exists already")
        self._taken.add(job_id)
        self._new_jobs[job_id] = operation.row
        return self._note(submitted(operation.job, operation.reason, operation.attempt, self._seq + 1))

    def _note(self, written: Written) -> Job:
        job = self._jobs[written.job.id] = written.job
        self.events.extend(written.events)
        self._seq = job.seq
        if written.changed_attempt is not None:
            key = (job.id, written.changed_attempt.attempt)
            self._attempts[key] = written.changed_attempt
            self._changed_attempts[key] = None
        if written.new_attempt is not None:
            key = (job.id, written.new_attempt.attempt)
            self._attempts[key] = written.new_attempt
            self._new_attempts[key] = None
        return job

    def _story(self, job_id: str) -> list[JobEvent]:
        query = select(*EVENT_COLUMNS).where(JOB_EVENT.c.job_id == job_id).order_by(JOB_EVENT.c.seq.desc()).limit(STORY_EVENTS)
        told = [event_of(row) for row in self._connection.execute(query)][::-1]
        return told + [event for event in self.events if event.job_id == job_id]

    def flush(self) -> None:
        """Write everything, in an order that every constraint allows."""
        put, run = self._statements, self._connection
        new_rows, job_rows, spec_rows = [], [], []
        for job_id, job in self._jobs.items():
            if job_id in self._new_jobs:
                row = self._new_jobs[job_id] or put.new_job(job)
                new_rows.append((*row[:-1], job.seq))
                continue
            stored = self._stored[job_id]
            if job is stored:
                continue
            job_rows.append(put.update_job.row([*changed_job_values(job), job_id]))
            if (job.request, job.flex, job.submitted_at) != (stored.request, stored.flex, stored.submitted_at):
                values = dict(zip(JOB_INSERT, job_values(job), strict=True))
                spec_rows.append(put.update_spec.row([*(values[name] for name in _SPEC), job_id]))
        put.insert_job.run(run, new_rows)
        put.update_job.run(run, job_rows)
        put.update_spec.run(run, spec_rows)
        # Ends before beginnings: a job has one live attempt at any moment.
        ended = [self._attempts[key] for key in self._changed_attempts if key not in self._new_attempts]
        change, begin = put.update_attempt, put.insert_attempt
        change.run(run, [change.row([*changed_attempt_values(a), a.job_id, a.attempt]) for a in ended])
        begin.run(run, [begin.row(attempt_values(self._attempts[key])) for key in self._new_attempts])
        put.insert_event.run(run, [put.insert_event.row(event_values(event)) for event in self.events])


def _chunks(ids: Iterable[str]) -> Iterable[list[str]]:
    every = list(ids)
    return (every[at : at + _CHUNK] for at in range(0, len(every), _CHUNK))


class Writer:
    """The thread, and the line in front of it. ``where`` names the database in messages; ``look`` is called before each
    transaction and raises OSError when the database is not where it was."""

    def __init__(self, engine: Engine, where: str, look: Callable[[], None], full_hint: Callable[[], str]) -> None:
        self._engine, self._where, self._look, self._full_hint = engine, where, look, full_hint
        self.statements = Statements(engine.dialect)
        # A file is always there; a server's sessions come and go, and the pool notices.
        self._keeps = engine.dialect.name == "sqlite"
        self._kept: Connection | None = None
        self._renew = False
        self._line: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def submit(self, ticket: Ticket) -> None:
        """Put a ticket in line; its future resolves after its commit, on the writer's thread."""
        with self._lock:
            if not self._closed:
                self._line.put(ticket)
                return
        ticket.future.set_exception(StoreUnavailable("the store is closed; nothing was stored"))

    def reconnect(self) -> None:
        """Begin the next transaction on a new connection."""
        self._renew = True
        self._engine.dispose()

    def close(self) -> None:
        """Write what is in line, then end."""
        with self._lock:
            already, self._closed = self._closed, True
            if not already:
                self._line.put(None)
        self._thread.join()
        if self._kept is not None:
            self._kept.close()
        self._engine.dispose()

    def _run(self) -> None:
        open_ = True
        while open_:
            ticket = self._line.get()
            tickets: list[Ticket] = []
            size = 0
            while ticket is not None:
                tickets.append(ticket)
                size += len(ticket.operations)
                if size >= BATCH:
                    break
                try:
                    ticket = self._line.get_nowait()
                except queue.Empty:
                    break
            else:
                open_ = False
            # Whoever has stopped waiting before its turn has nothing written for it.
            wanted = [one for one in tickets if one.future.set_running_or_notify_cancel()]
            if wanted:
                self._serve(wanted)

    def _serve(self, tickets: Sequence[Ticket]) -> None:
        operations = [operation for ticket in tickets for operation in ticket.operations]
        try:
            results = iter(self._write(operations))
        except Exception as error:  # the thread must outlive whatever it is, and the callers must hear of it
            if not self._failing:
                log.exception("writes fail from now on: %s", error)
            self._failing = True
            for ticket in tickets:
                ticket.future.set_exception(error)
            return
        if self._failing:
            log.warning("%s takes writes again", self._where)
            self._failing = False
        for ticket in tickets:
            mine = [next(results) for _ in ticket.operations]
            if ticket.many:
                ticket.future.set_result(mine)
            elif isinstance(mine[0], Exception):
                ticket.future.set_exception(mine[0])
            else:
                ticket.future.set_result(mine[0])

    def _write(self, operations: Sequence[Operation]) -> list[Any]:
        """A result or an exception an operation. Raises StoreUnavailable when nothing was stored."""
        first: Exception
        try:
            return self._transaction(operations)
        except (SQLAlchemyError, OSError) as error:
            if _is_unavailable(error):
                raise self._unavailable(error) from error
            first = error
        except (ValueError, TypeError, OverflowError) as error:  # a value that the driver cannot say
            first = error
        if len(operations) == 1:
            return [_refusal(first)]
        # One of them is at fault; alone, each shows whether it is the one.
        results: list[Any] = []
        for operation in operations:
            try:
                results += self._write([operation])
            except StoreUnavailable as error:
                results += [error] * (len(operations) - len(results))
                break
        return results

    def _transaction(self, operations: Sequence[Operation]) -> list[Any]:
        self._look()
        with self._connected() as connection:
            transaction = connection.begin()
            batch = Batch(connection, self.statements, operations)
            results: list[Any] = []
            for operation in operations:
                try:
                    results.append(None if isinstance(operation, Call) else batch.run(operation))
                except GridshiftError as error:
                    results.append(error)
            batch.flush()
            for at, operation in enumerate(operations):
                if isinstance(operation, Call):
                    results[at] = _call(connection, operation)
            try:
                transaction.commit()
            except DBAPIError:
                connection.invalidate()  # whatever it holds, it lets go of
                if not batch.events or not self._took_place(batch.events[-1]):
                    raise
        return results

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """A connection without a transaction; the one of last time where nothing went wrong with it."""
        connection, self._kept = self._kept, None
        if connection is not None and self._renew:
            connection.invalidate()
            connection.close()
            connection = None
        self._renew = False
        connection = connection or self._engine.connect()
        try:
            yield connection
        except BaseException:
            connection.close()  # rolls back
            raise
        if self._keeps and not connection.invalidated:
            self._kept = connection
        else:
            connection.close()

    def _took_place(self, last: JobEvent) -> bool:
        """Whether a commit whose answer was an error is in the database after all (a connection lost in the middle of it)."""
        deadline = time.monotonic() + _ASK_AGAIN_S
        query = select(JOB_EVENT.c.job_id, JOB_EVENT.c.at).where(JOB_EVENT.c.seq == last.seq)
        while True:
            self._engine.dispose()
            try:
                with self._engine.begin() as connection:
                    if connection.dialect.name == "postgresql":  # wait until the lost session has ended, either way
                        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": WRITE_LOCK})
                    return tuple(connection.execute(query).one_or_none() or ()) == (last.job_id, last.at)
            except SQLAlchemyError as error:
                if time.monotonic() > deadline:
                    log.error("%s: whether the last commit took place is unknown: %s", self._where, error)
                    return False
            time.sleep(0.2)

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        self._engine.dispose()  # begin the next batch on a new connection
        cause = str(getattr(error, "orig", None) or error).strip()
        if "full" in cause or "No space" in cause:
            cause += self._full_hint()
        return StoreUnavailable(f"{self._where} did not take the write: {cause}; nothing was stored")


def _is_unavailable(error: Exception) -> bool:
    """Whether the database is at fault, not one operation."""
    if isinstance(error, DBAPIError):
        return not isinstance(error, IntegrityError | DataError | ProgrammingError)
    return isinstance(error, OSError | PoolTimeout)


def _refusal(error: Exception) -> GridshiftError:
    """Why the database refused this one operation."""
    cause = str(getattr(error, "orig", None) or error).strip()
    if isinstance(error, IntegrityError) and "unique" in cause.lower():
        return AlreadyExists(f"it exists already, nothing was written ({cause})")
    return BadInput([("value", "...", f"the database cannot hold it: {cause}")])


def _call(connection: Connection, operation: Call) -> Any:
    try:
        with connection.begin_nested():
            return operation.do(connection)
    except GridshiftError as error:
        return error
    except IntegrityError as error:
        return _refusal(error)
