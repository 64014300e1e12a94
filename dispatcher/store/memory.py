"""The store in memory: the same rules and answers as the SQL store, gone when the process ends.

For simulation and tests. Its futures are resolved when they are returned; it does no I/O.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar

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
from dispatcher.store.changes import Written, changed, checked_submission, storable, submitted
from dispatcher.store.paging import CHANGES_KEPT, RECEIPTS_KEPT, check_limit, cursor_of, position_of
from policies.world import ENDED, JobState

T = TypeVar("T")


class MemoryStore:
    """See dispatcher.store.Store."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._seq = 0
        # In the order of seq: a changed job moves to the end.
        self._jobs: dict[str, Job] = {}
        self._unfinished: dict[str, None] = {}
        self._events: dict[str, list[JobEvent]] = {}
        self._attempts: dict[str, dict[int, Attempt]] = {}
        self._live: dict[str, Attempt] = {}
        self._upstream: dict[str, Attempt] = {}  # ended, not yet deleted on their cluster, by submission id
        self._by_submission: dict[str, tuple[str, int]] = {}
        self._grid_events: dict[tuple[str, str], GridEvent] = {}
        self._grid_held: dict[tuple[str, str], str] = {}
        self._grid_changes: dict[tuple[str, str], list[GridEventChange]] = {}
        self._grid_changes_noted = 0
        self._before_events: dict[tuple[str, str], BeforeEvent] = {}
        self._serving: dict[tuple[str, str, datetime, str], ServingQuarter] = {}
        self._receipts: dict[tuple[str, str], datetime] = {}
        self._tokens: dict[str, Token] = {}
        self._settings: dict[str, str] = {}
        self._closed = False

    # --- writes ---------------------------------------------------------------------------------------------------

    def _write(self, action: Callable[[], T]) -> "Future[T]":
        future: Future[T] = Future()
        try:
            with self._lock:
                if self._closed:
                    raise StoreUnavailable("the store is closed; nothing was stored")
                result = action()
        except GridshiftError as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        return future

    def add_job(self, job: Job, reason: str, attempt: Attempt | None = None) -> "Future[Job]":
        """See Store."""

        def add() -> Job:
            return self._add_one(job, reason, attempt)

        return self._write(add)

    def _add_one(self, job: Job, reason: str, attempt: Attempt | None) -> Job:
        new, first = checked_submission(job, reason, attempt)
        if new.id in self._jobs:
            raise AlreadyExists(f"a job with the id {new.id} exists already")
        return self._keep(submitted(new, reason, first, self._seq + 1))

    def add_now(self, job: Job, reason: str) -> Job:
        """``add_job(...).result()`` without a Future, for whoever runs alone and does it a million times."""
        with self._lock:
            return self._add_one(job, reason, None)

    def apply_now(self, change: Change) -> Job | Exception:
        """``apply([change]).result()[0]`` without a Future, likewise."""
        with self._lock:
            return self._apply_one(change)

    def apply(self, changes: Sequence[Change]) -> "Future[list[Job | Exception]]":
        """See Store."""
        return self._write(lambda: [self._apply_one(change) for change in changes])

    def _apply_one(self, change: Change) -> Job | Exception:
        try:
            job = self._jobs.get(change.job_id)
            if job is None:
                raise NotFound(f"no job {change.job_id}")
            attempts = self._attempts.get(job.id)
            current = attempts.get(job.attempt) if attempts is not None else None
            return self._keep(changed(job, current, change, self._seq + 1, lambda: self._events[job.id]))
        except GridshiftError as error:
            return error

    def _keep(self, written: Written) -> Job:
        job = written.job
        if written.new_attempt is not None and written.new_attempt.submission_id in self._by_submission:
            raise AlreadyExists(f"submission id {written.new_attempt.submission_id} was used before")
        for attempt in (written.changed_attempt, written.new_attempt):
            if attempt is not None:
                self._keep_attempt(attempt)
        self._jobs.pop(job.id, None)
        self._jobs[job.id] = job
        if job.state in ENDED:
            self._unfinished.pop(job.id, None)
        else:
            self._unfinished.setdefault(job.id)
        self._events.setdefault(job.id, []).extend(written.events)
        self._seq = job.seq
        return job

    def _keep_attempt(self, attempt: Attempt) -> None:
        self._attempts.setdefault(attempt.job_id, {})[attempt.attempt] = attempt
        self._by_submission[attempt.submission_id] = (attempt.job_id, attempt.attempt)
        if attempt.ended_at is None:
            self._live[attempt.job_id] = attempt
            self._upstream.pop(attempt.submission_id, None)
            return
        live = self._live.get(attempt.job_id)
        if live is not None and live.attempt == attempt.attempt:
            del self._live[attempt.job_id]
        if attempt.deleted_upstream:
            self._upstream.pop(attempt.submission_id, None)
        else:
            self._upstream[attempt.submission_id] = attempt

    def mark_deleted_upstream(self, submission_ids: Sequence[str]) -> "Future[None]":
        """See Store."""

        def mark() -> None:
            for submission_id in submission_ids:
                place = self._by_submission.get(submission_id)
                if place is not None:
                    self._keep_attempt(replace(self._attempts[place[0]][place[1]], deleted_upstream=True))

        return self._write(mark)

    def save_grid_event(
        self, event: GridEvent, message_id: str | None, *, change: GridEventChange | None = None, held: str | None = None
    ) -> "Future[str]":
        """See Store."""
        kept = held

        def save() -> str:
            new = storable(event)
            if message_id is not None:
                oldest = new.received_at - timedelta(days=RECEIPTS_KEPT)
                self._receipts = {key: at for key, at in self._receipts.items() if at >= oldest}
                if (new.source, message_id) in self._receipts:
                    return "duplicate"
                self._receipts[(new.source, message_id)] = new.received_at
            held = self._grid_events.get((new.source, new.event_id))
            if held is not None and held.version >= new.version:
                return "duplicate" if held.version == new.version else "stale"
            if held is not None:
                new = replace(new, opted_out=held.opted_out)  # the operator's, whatever its sender says
            self._grid_events[(new.source, new.event_id)] = new
            if kept is not None:
                self._grid_held[(new.source, new.event_id)] = kept
            if change is not None:
                self._note(storable(change))
            return "accepted"

        return self._write(save)

    def opt_out_grid_event(self, change: GridEventChange, reason: str | None) -> "Future[None]":
        """See Store."""

        def store() -> None:
            line = storable(change)
            key = (line.source, line.event_id)
            if key not in self._grid_events:
                raise NotFound(f"there is no event {line.event_id} from {line.source}")
            self._grid_events[key] = replace(self._grid_events[key], opted_out=reason)
            self._note(line)

        return self._write(store)

    def note_grid_event(self, change: GridEventChange) -> "Future[None]":
        """See Store."""
        return self._write(lambda: self._note(storable(change)))

    def _note(self, change: GridEventChange) -> None:
        self._grid_changes_noted += 1
        lines = self._grid_changes.setdefault((change.source, change.event_id), [])
        lines.append(replace(change, seq=self._grid_changes_noted))
        del lines[:-CHANGES_KEPT]

    def keep_before_event(self, kept: BeforeEvent) -> "Future[bool]":
        """See Store."""

        def keep() -> bool:
            new = storable(kept)
            return self._before_events.setdefault((new.source, new.event_id), new) is new

        return self._write(keep)

    def keep_serving(self, quarters: Sequence[ServingQuarter]) -> "Future[None]":
        """See Store."""

        def keep() -> None:
            for one in [storable(quarter) for quarter in quarters]:
                self._serving[one.region, one.name, one.start, one.part] = one

        return self._write(keep)

    def add_token(self, token: Token) -> "Future[None]":
        """See Store."""

        def add() -> None:
            new = storable(token)
            if new.name in self._tokens or any(t.sha256 == new.sha256 for t in self._tokens.values()):
                raise AlreadyExists(f"a token named {new.name!r}, or the same token, exists already")
            self._tokens[new.name] = new

        return self._write(add)

    def revoke_token(self, name: str) -> "Future[None]":
        """See Store."""

        def revoke() -> None:
            if self._tokens.pop(name, None) is None:
                raise NotFound(f"no token named {name!r}")

        return self._write(revoke)

    def set_setting(self, key: str, value: str) -> "Future[None]":
        """See Store."""
        return self._write(lambda: self._settings.update({key: value}))

    # --- reads ----------------------------------------------------------------------------------------------------

    def job(self, job_id: str) -> Job | None:
        """See Store."""
        with self._lock:
            return self._jobs.get(job_id)

    def jobs_changed_since(self, seq: int) -> tuple[list[Job], int]:
        """See Store."""
        with self._lock:
            if seq == 0:
                return sorted((self._jobs[i] for i in self._unfinished), key=lambda job: job.seq), self._seq
            found = []
            for job in reversed(self._jobs.values()):
                if job.seq <= seq:
                    break
                found.append(job)
            return found[::-1], self._seq

    def _newest_first(self, deleted: bool = False) -> list[Job]:
        return sorted(
            (job for job in self._jobs.values() if deleted or job.deleted_at is None),
            key=lambda job: (job.submitted_at, job.id),
            reverse=True,
        )

    def ray_jobs(self, ended_limit: int = 1000, *, deleted: bool = False) -> list[Job]:
        """See Store."""
        with self._lock:
            jobs = self._newest_first(deleted)
        ended = [job for job in jobs if job.finished_at is not None]
        ended.sort(key=lambda job: (job.finished_at, job.id), reverse=True)
        kept = {job.id for job in ended[:ended_limit]}
        return [job for job in jobs if job.finished_at is None or job.id in kept]

    def page(
        self, *, state: JobState | None = None, team: str | None = None, cursor: str | None = None, limit: int = 100
    ) -> Page:
        """See Store."""
        check_limit(limit)
        before = position_of(cursor) if cursor is not None else None
        with self._lock:
            jobs = self._newest_first()
        chosen = [
            job
            for job in jobs
            if (state is None or job.state is state)
            and (team is None or job.flex.team == team)
            and (before is None or (job.submitted_at, job.id) < before)
        ]
        return Page(tuple(chosen[:limit]), cursor_of(chosen[limit - 1]) if len(chosen) > limit else None)

    def counts(self) -> dict[JobState, int]:
        """See Store."""
        with self._lock:
            return dict(Counter(job.state for job in self._jobs.values() if job.deleted_at is None))

    def events(self, job_id: str) -> list[JobEvent]:
        """See Store."""
        with self._lock:
            return list(self._events.get(job_id, ()))

    def attempts(self, job_id: str) -> list[Attempt]:
        """See Store."""
        with self._lock:
            return [attempt for _, attempt in sorted(self._attempts.get(job_id, {}).items())]

    def live_attempts(self) -> list[Attempt]:
        """See Store."""
        with self._lock:
            return sorted(self._live.values(), key=lambda a: (a.launched_at, a.submission_id))

    def ended_attempts_upstream(self, region: str, before: datetime, limit: int = 100) -> list[Attempt]:
        """See Store."""
        with self._lock:
            found = [
                (a.ended_at, a.submission_id, a)
                for a in self._upstream.values()
                if a.region == region and a.ended_at is not None and a.ended_at < before
            ]
        return [attempt for _, _, attempt in sorted(found, key=lambda one: one[:2])[:limit]]

    def grid_events(self, *, ended_after: datetime | None = None) -> list[GridEvent]:
        """See Store."""
        with self._lock:
            held = sorted(self._grid_events.values(), key=lambda e: (e.start, e.source, e.event_id))
        if ended_after is None:
            return held
        return [e for e in held if (e.received_at > ended_after if e.cancelled else e.end is None or e.end > ended_after)]

    def grid_event(self, source: str, event_id: str) -> GridEvent | None:
        """See Store."""
        with self._lock:
            return self._grid_events.get((source, event_id))

    def grid_event_changes(self, source: str, event_id: str) -> list[GridEventChange]:
        """See Store."""
        with self._lock:
            return list(self._grid_changes.get((source, event_id), ()))

    def before_event(self, source: str, event_id: str) -> BeforeEvent | None:
        """See Store."""
        with self._lock:
            return self._before_events.get((source, event_id))

    def serving_quarters(self, region: str, name: str, start: datetime, end: datetime) -> list[ServingQuarter]:
        """See Store."""
        with self._lock:
            found = [one for one in self._serving.values() if (one.region, one.name) == (region, name)]
        return sorted((one for one in found if start <= one.start < end), key=lambda one: (one.start, one.part))

    def held_grid_events(self, source: str, since: datetime) -> dict[str, str]:
        """See Store."""
        with self._lock:
            return {
                event.event_id: self._grid_held[key]
                for key, event in self._grid_events.items()
                if event.source == source and key in self._grid_held
                if event.end is None or event.end > since or event.received_at > since
            }

    def held_grid_event(self, source: str, event_id: str) -> str | None:
        """See Store."""
        with self._lock:
            return self._grid_held.get((source, event_id))

    def tokens(self) -> list[Token]:
        """See Store."""
        with self._lock:
            return [self._tokens[name] for name in sorted(self._tokens)]

    def setting(self, key: str) -> str | None:
        """See Store."""
        with self._lock:
            return self._settings.get(key)

    def healthy(self) -> bool:
        """See Store."""
        return not self._closed

    def close(self) -> None:
        """See Store. What was stored can still be read."""
        self._closed = True
