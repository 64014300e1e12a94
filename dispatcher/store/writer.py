"""One thread that writes for everybody: what many callers wait for shares one transaction and one sync to disk.

A batch is planned in memory by the rules of changes.py on the rows as they are (nobody else writes), then written in bulk. It
decides nothing itself, and knows no more of operations than whether they add a job, change one, or do something of their own.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, Connection, Engine, bindparam, func, insert, select, text, update
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from dispatcher.errors import AlreadyExists, BadInput, GridshiftError, NotFound, StoreUnavailable
from dispatcher.store import Attempt, Change, Job, JobEvent
from dispatcher.store.changes import STORY_EVENTS, Written, changed, submitted
from dispatcher.store.codec import (
    ATTEMPT_COLUMNS,
    EVENT_COLUMNS,
    JOB_COLUMNS,
    attempt_of,
    attempt_values,
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
_TAKEN = select(JOB.c.id).where(JOB.c.id.in_(_IDS))
_JOBS = select(*JOB_COLUMNS).where(JOB.c.id.in_(_IDS))
_CURRENT_ATTEMPTS = (
    select(*ATTEMPT_COLUMNS)
    .join(JOB, JOB.c.id == ATTEMPT.c.job_id)
    .where(ATTEMPT.c.job_id.in_(_IDS), JOB.c.attempt == ATTEMPT.c.attempt)
)
_INSERT_JOB, _INSERT_ATTEMPT, _INSERT_EVENT = insert(JOB), insert(ATTEMPT), insert(JOB_EVENT)
_CHANGING = [c.name for c in JOB_COLUMNS if c.name not in ("id", "submitted_at", "request", "flex")]
_UPDATE_JOB = update(JOB).where(JOB.c.id == bindparam("key")).values({name: bindparam(name) for name in _CHANGING})
_SPEC = ("request", "flex", "team", "submitted_at")
_UPDATE_SPEC = update(JOB).where(JOB.c.id == bindparam("key")).values({name: bindparam(name) for name in _SPEC})
_KEPT = ("job_id", "attempt", "submission_id")
_UPDATE_ATTEMPT = (
    update(ATTEMPT)
    .where(ATTEMPT.c.job_id == bindparam("key"), ATTEMPT.c.attempt == bindparam("number"))
    .values({c.name: bindparam(c.name) for c in ATTEMPT_COLUMNS if c.name not in _KEPT})
)


@dataclass(slots=True)
class AddJob:
    """A job as ``checked_submission`` returned it, its row, and its first attempt."""

    job: Job
    row: dict[str, Any]
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

    def __init__(self, connection: Connection, operations: Iterable[Operation]) -> None:
        self._connection = connection
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
        self._new_jobs: dict[str, dict[str, Any] | None] = {}
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
            self._taken.update(connection.execute(_TAKEN, {"ids": ids}).scalars())
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
        new_rows, job_rows, spec_rows = [], [], []
        for job_id, job in self._jobs.items():
            if job_id in self._new_jobs:
                new_rows.append((self._new_jobs[job_id] or job_values(job)) | {"seq": job.seq})
                continue
            stored = self._stored[job_id]
            if job is stored:
                continue
            values = {name: getattr(job, name) for name in _CHANGING}
            job_rows.append(values | {"key": job_id, "state": job.state.value})
            if (job.request, job.flex, job.submitted_at) != (stored.request, stored.flex, stored.submitted_at):
                spec_rows.append({name: job_values(job)[name] for name in _SPEC} | {"key": job_id})
        run = self._connection.execute
        if new_rows:
            run(_INSERT_JOB, new_rows)
        if job_rows:
            run(_UPDATE_JOB, job_rows)
        if spec_rows:
            run(_UPDATE_SPEC, spec_rows)
        # Ends before beginnings: a job has one live attempt at any moment.
        ended = [self._attempts[key] for key in self._changed_attempts if key not in self._new_attempts]
        if ended:
            rows = [attempt_values(a) | {"key": a.job_id, "number": a.attempt} for a in ended]
            run(_UPDATE_ATTEMPT, [{name: value for name, value in row.items() if name not in _KEPT} for row in rows])
        if self._new_attempts:
            run(_INSERT_ATTEMPT, [attempt_values(self._attempts[key]) for key in self._new_attempts])
        if self.events:
            run(_INSERT_EVENT, [event_values(event) for event in self.events])


def _chunks(ids: Iterable[str]) -> Iterable[list[str]]:
    every = list(ids)
    return (every[at : at + _CHUNK] for at in range(0, len(every), _CHUNK))


class Writer:
    """The thread, and the line in front of it. ``where`` names the database in messages; ``look`` is called before each
    transaction and raises OSError when the database is not where it was."""

    def __init__(self, engine: Engine, where: str, look: Callable[[], None], full_hint: Callable[[], str]) -> None:
        self._engine, self._where, self._look, self._full_hint = engine, where, look, full_hint
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
        self._engine.dispose()

    def close(self) -> None:
        """Write what is in line, then end."""
        with self._lock:
            already, self._closed = self._closed, True
            if not already:
                self._line.put(None)
        self._thread.join()
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
        with self._engine.connect() as connection:
            transaction = connection.begin()
            batch = Batch(connection, operations)
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
