"""Only one control plane works on a database (and on a data folder) at a time; this is how it makes sure.

A lock on a file, and on PostgreSQL an advisory lock of a session of its own. Both end with the process that holds them, so
nobody has to clean up after a crash. It knows nothing of what the leader does.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import socket
import time
import weakref
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import URL, Connection, text
from sqlalchemy.exc import SQLAlchemyError

from dispatcher.errors import NotTheLeader, StoreUnavailable
from dispatcher.store.engine import database, describe, make_engine, sqlite_path

log = logging.getLogger(__name__)

#: Seconds for which a leader whose PostgreSQL does not answer may go on. A server takes at least 25 s to notice that a client
#: is gone (10 s idle and 3 probes 5 s apart, set by the session), so nobody else leads before that.
GRACE_S = 15.0

_HOLDER = text(
    "SELECT a.application_name, a.client_addr FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
    "WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.database = a.datid "
    "AND a.datname = current_database() AND l.classid = :high AND l.objid = :low"
)

_held: "weakref.WeakSet[Leadership]" = weakref.WeakSet()


def _after_fork() -> None:
    # A forked child (a worker process) shares the lock; without this it would outlive the leader in it.
    for one in list(_held):
        one._let_go_in_child()


os.register_at_fork(after_in_child=_after_fork)


class _FileLock:
    """A lock on a file, for as long as the file is the one at its path; ``what`` is what the lock is about."""

    def __init__(self, path: Path, what: str) -> None:
        self._path, self._what = path, what
        self._fd: int | None = None

    def take(self) -> None:
        """Take it, or raise NotTheLeader with the holder's name."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                who = _who(os.read(fd, 1000))
                os.close(fd)
                raise NotTheLeader(
                    f"{who} is the control plane of {self._what}, or of the folder {self._path.parent}; stop that one first, "
                    "or give this one a database and a data_dir of its own"
                ) from None
            self._fd = fd
            if self.is_held():
                break
            os.close(fd)  # it was removed between opening and locking; lock the one that is there now
        me = {"pid": os.getpid(), "host": socket.gethostname(), "since": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(me).encode(), 0)

    def is_held(self) -> bool:
        """Whether it is taken, and its file still the one at its path."""
        if self._fd is None:
            return False
        try:
            there, ours = self._path.stat(), os.fstat(self._fd)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def release(self) -> None:
        """Give it back; safe to repeat."""
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        self.close()

    def close(self) -> None:
        """Close the file without giving the lock back, as a forked child must."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class Leadership:
    """The right to be the control plane of the database at ``url``; ``data_dir`` belongs to it too.

    Use ``acquire``/``release`` or ``with``. Raises NotTheLeader, saying who leads, or StoreUnavailable.
    """

    def __init__(self, url: str, data_dir: Path) -> None:
        self._url = database(url)
        path = sqlite_path(self._url)
        # The file itself, whatever links lead to it: two names of one database are one database.
        self._database = Path(path).resolve() if path is not None else None
        files = [Path(f"{self._database}.lock")] if self._database is not None else []
        self._locks = [_FileLock(file, describe(self._url)) for file in (*files, data_dir / "control.lock")]
        self._session: Connection | None = None
        self._seen_at = 0.0

    def acquire(self) -> None:
        """Become the leader. Raises NotTheLeader or StoreUnavailable."""
        if self._database is not None and self._database.exists() and self._database.stat().st_nlink > 1:
            raise StoreUnavailable(
                f"{self._database} has several names (hard links), under which SQLite misses its own log; remove the others"
            )
        try:
            for lock in self._locks:
                lock.take()
            if self._url.get_backend_name() == "postgresql":
                self._lock_database()
        except BaseException:
            self.release()
            raise
        _held.add(self)

    def _lock_database(self) -> None:
        name = f"gridshift pid {os.getpid()} on {socket.gethostname()}"[:63]
        session = _session(self._url, name)
        try:
            key = _key(session)
            if not session.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": key}).scalar_one():
                holder = session.execute(_HOLDER, {"high": (key >> 32) & 0xFFFFFFFF, "low": key & 0xFFFFFFFF}).first()
                who = f"{holder[0]} (from {holder[1] or 'the same machine'})" if holder else "another control plane"
                where = describe(self._url)
                raise NotTheLeader(
                    f"{who} is the control plane of {where}; stop that one first, or give this one another database"
                )
        except (SQLAlchemyError, NotTheLeader):
            _close(session)
            raise
        self._session, self._seen_at = session, time.monotonic()

    def still_held(self) -> bool:
        """Whether this process still leads; cheap, for a check every few seconds.

        A PostgreSQL server that does not answer leaves the answer at True for GRACE_S; when it is back (a restart ends the
        session) the lock is taken again, unless somebody else was faster.
        """
        if not all(lock.is_held() for lock in self._locks):
            return False
        if self._url.get_backend_name() != "postgresql":
            return True
        try:
            if self._session is None:
                self._lock_database()
            else:
                self._session.execute(text("SELECT 1"))
            self._seen_at = time.monotonic()
            return True
        except NotTheLeader:
            return False
        except (SQLAlchemyError, StoreUnavailable) as error:
            log.warning("the session that holds the leadership was lost: %s", error)
            if self._session is not None:
                _close(self._session)
                self._session = None
                return self._try_again()
            return time.monotonic() - self._seen_at < GRACE_S

    def _try_again(self) -> bool:
        try:
            self._lock_database()
        except NotTheLeader:
            return False
        except (SQLAlchemyError, StoreUnavailable):
            return time.monotonic() - self._seen_at < GRACE_S
        return True

    def release(self) -> None:
        """Stop being the leader; safe to repeat."""
        _held.discard(self)
        if self._session is not None:
            _close(self._session)
            self._session = None
        for lock in self._locks:
            lock.release()

    def _let_go_in_child(self) -> None:
        for lock in self._locks:
            lock.close()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def _who(content: bytes) -> str:
    try:
        held = json.loads(content)
        return f"the process {held['pid']} on {held['host']} (since {held['since']})"
    except (ValueError, KeyError, TypeError):
        return "another process"


def _session(url: URL, name: str) -> Connection:
    """A session of its own that tells its name, and that the server ends soon after this process cannot be reached."""
    engine = make_engine(url, pool_size=1).execution_options(isolation_level="AUTOCOMMIT")
    settings = {
        "application_name": name,
        "tcp_keepalives_idle": "10",
        "tcp_keepalives_interval": "5",
        "tcp_keepalives_count": "3",
    }
    session: Connection | None = None
    try:
        session = engine.connect()
        for setting, value in settings.items():
            session.execute(text("SELECT set_config(:setting, :value, false)"), {"setting": setting, "value": value})
        return session
    except SQLAlchemyError as error:
        if session is not None:
            _close(session)
        engine.dispose()
        raise StoreUnavailable(f"{describe(url)} cannot be reached: {getattr(error, 'orig', None) or error}") from error


def _close(session: Connection) -> None:
    with contextlib.suppress(SQLAlchemyError):
        session.invalidate()  # end the session itself: the lock is its
        session.close()
    session.engine.dispose()


def _key(session: Connection) -> int:
    """The lock's key: databases are apart by themselves, schemas by their name."""
    schema = session.execute(text("SELECT current_schema()")).scalar_one()
    digest = hashlib.sha256(f"gridshift control plane {schema}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
