"""Where a backtest writes: a store in memory, which answers at once, and beside it a database when one was given.

Both apply the same rules; the database takes many changes a commit, and what it makes of each must be what the memory made.
"""

from collections import deque
from concurrent.futures import Future
from typing import Any

from dispatcher.errors import GridshiftError
from dispatcher.store import Change, Job, Store
from dispatcher.store.memory import MemoryStore

#: So many writes to a database may be under way.
_OPEN_WRITES = 2000


class Journal:
    """Submissions and changes, one by one. An error of the store is raised; one of the database perhaps a little later."""

    def __init__(self, store: Store | None) -> None:
        self._memory = store if isinstance(store, MemoryStore) else MemoryStore()
        self._copy = _Copy(store) if store is not None and store is not self._memory else None

    def add(self, job: Job, reason: str) -> Job:
        """Submit a job."""
        stored = self._memory.add_now(job, reason)
        if self._copy is not None:
            self._copy.add(job, reason, stored)
        return stored

    def apply(self, change: Change) -> Job:
        """Write a change."""
        outcome = self._memory.apply_now(change)
        if isinstance(outcome, Exception):
            raise outcome
        if self._copy is not None:
            self._copy.apply(change, outcome)
        return outcome

    def close(self) -> None:
        """Wait until all is written."""
        if self._copy is not None:
            self._copy.close()


class _Copy:
    """Writes to a database what is written in memory, many changes a commit, and checks that it makes the same of them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: deque[tuple[Future[Any], Job]] = deque()

    def add(self, job: Job, reason: str, expected: Job) -> None:
        """Submit a job."""
        self._open.append((self._store.add_job(job, reason), expected))

    def apply(self, change: Change, expected: Job) -> None:
        """Write a change."""
        self._open.append((self._store.apply([change]), expected))
        if len(self._open) > _OPEN_WRITES:
            self._check()

    def close(self) -> None:
        """Wait for all of it."""
        while self._open:
            self._check()

    def _check(self) -> None:
        future, expected = self._open.popleft()
        outcome = future.result()
        if isinstance(outcome, list):
            outcome = outcome[0]
        if isinstance(outcome, Exception):
            raise outcome
        if outcome != expected:
            raise GridshiftError(f"the database made {outcome} of job {expected.id}, and the memory {expected}")
