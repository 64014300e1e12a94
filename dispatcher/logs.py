"""The logs of jobs, kept here so that they outlive clusters: one file an attempt, read as one log a job.

The store knows files and nothing of clusters; the follower copies what clusters say into it and decides nothing. It fetches
whole logs now and then rather than holding Ray's websocket tails open: Ray's head holds one of the 100 connections that it has
to a node for each, also for those whose client has gone, until their job prints again or ends; with all of them taken it
answers no request any more that has to do with jobs on that node.
"""

import asyncio
import codecs
import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from dispatcher.clusters.ray_http import RayCluster
from dispatcher.errors import ClusterUnreachable, GridshiftError
from dispatcher.store import Attempt

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Bytes kept of one attempt's log.
MAX_ATTEMPT_BYTES = 64 << 20
#: Wall seconds between looks at a file that somebody tails.
TAIL_POLL_S = 0.2
#: How long a tail waits after the job's end for the last lines, wall seconds.
SETTLE_S = 10.0
CHUNK = 1 << 16
#: Wall seconds from one fetch of a running attempt's log to the next, while somebody reads it and else. It is fetched whole: a
#: long one takes its time, and then is fetched for at most these shares of it.
READ_S, KEEP_S = 1.0, 20.0
READ_SHARE, KEEP_SHARE = 0.2, 0.02
#: Fetches a second at most of all running attempts of a control plane that nobody reads.
KEEP_RATE = 5.0
#: How long reading waits for what has come since the last fetch, wall seconds.
FRESH_S = 3.0
MAX_BACKOFF_S = 30.0
#: What Ray says of a log with bytes that are no UTF-8: it gives none of it then.
_NOT_TEXT = "codec can't decode"
_UNREADABLE = b"--- what was printed is not all UTF-8, and Ray hands out no such log; its files on the node have it ---\n"
FETCHES_AT_ONCE = 4
FETCH_TRIES = 3


class LogStore:
    """Files ``root/<job id>/<attempt>.log``. Methods may be called from any thread.

    ``max_bytes`` is kept of each attempt, its beginning; what is cut off is said in a line at the end.
    """

    def __init__(self, root: Path, max_bytes: int = MAX_ATTEMPT_BYTES) -> None:
        self._root, self._max_bytes = root, max_bytes
        self._lock = threading.Lock()
        self._open: set[tuple[str, int]] = set()
        self._tails = Counter[str]()
        #: Told of a job whose log somebody begins to read, with the seconds for which it may wait for newer lines to come.
        self.on_read: Callable[[str, float], object] = lambda job_id, wait_s: None

    def is_read(self, job_id: str) -> bool:
        """Whether somebody tails the job's log now."""
        return self._tails[job_id] > 0

    def begin(self, job_id: str, attempt: int, region: str, at: datetime) -> None:
        """An attempt begins, and its log stays open until ``settle``. From the second on, a line says where and when."""
        self._open.add((job_id, attempt))
        head = self._path(job_id, attempt, "head")
        if attempt > 1 and not head.exists():
            head.parent.mkdir(parents=True, exist_ok=True)
            line = f"--- attempt {attempt} in region {region}, {at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ---\n"
            self._write(head, line.encode())

    def settle(self, job_id: str, attempt: int) -> None:
        """No more will come of this attempt."""
        self._open.discard((job_id, attempt))

    def is_settled(self, job_id: str) -> bool:
        """Whether no attempt of the job is open."""
        return not any(job == job_id for job, _ in self._open.copy())

    def append(self, job_id: str, attempt: int, data: bytes) -> None:
        """Add to an attempt's log, up to the limit."""
        path = self._path(job_id, attempt)
        with self._lock:
            room = self._max_bytes - self._size(path)
            if not data or room <= 0:
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(self._cut(data, room))

    def replace(self, job_id: str, attempt: int, copy: Callable[[Callable[[str], bool]], object]) -> None:
        """Make what ``copy`` hands on in pieces the whole log of an attempt, at once or not at all, unless more is held.
        What ``copy`` raises is raised, and nothing has changed then."""
        path = self._path(job_id, attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{threading.get_ident()}.new")  # the last fetch may overlap one before it
        size = 0
        try:
            with temporary.open("wb") as file:

                def take(piece: str) -> bool:
                    nonlocal size
                    data, room = piece.encode("utf-8", "replace"), self._max_bytes - size
                    size += len(data)
                    file.write(self._cut(data, room))
                    return size <= self._max_bytes

                copy(take)
            with self._lock:
                if temporary.stat().st_size > self._size(path):
                    temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def size(self, job_id: str, attempt: int) -> int:
        """Bytes held of an attempt's log."""
        return self._size(self._path(job_id, attempt))

    def is_full(self, job_id: str, attempt: int) -> bool:
        """Whether the limit is reached and the rest is dropped."""
        return self.size(job_id, attempt) >= self._max_bytes

    def attempts(self, job_id: str) -> list[int]:
        """The attempts of which something is held, in order."""
        folder = self._folder(job_id)
        names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        return sorted({int(name.partition(".")[0]) for name in names if name.endswith((".log", ".head"))})

    def read_all(self, job_id: str) -> str:
        """All attempts as one text, each after the first under its own line; "" when nothing is held. Blocks."""
        self.on_read(job_id, FRESH_S)
        text = ""
        for attempt in self.attempts(job_id):
            text = _joined(text, self._head(job_id, attempt))
            path = self._path(job_id, attempt)
            text += path.read_bytes().decode("utf-8", "replace") if path.exists() else ""
        return text

    async def tail(self, job_id: str, is_ended: Callable[[], bool]) -> AsyncIterator[str]:
        """The same text from its beginning, and then what is added, until ``is_ended()`` and the last lines have come."""
        self._tails[job_id] += 1
        self.on_read(job_id, 0.0)
        try:
            async for piece in self._pieces(job_id, is_ended):
                yield piece
        finally:
            self._tails[job_id] -= 1
            if not self._tails[job_id]:
                del self._tails[job_id]

    async def _pieces(self, job_id: str, is_ended: Callable[[], bool]) -> AsyncIterator[str]:
        current, offset, at_line_start = 0, 0, True
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        ended_at: float | None = None
        while True:
            # Asked before reading: what was written before the end is then read before we stop.
            if ended_at is None and is_ended():
                ended_at = time.monotonic()
            last = ended_at is not None and (self.is_settled(job_id) or time.monotonic() - ended_at > SETTLE_S)
            for attempt in self.attempts(job_id):
                if attempt < current:
                    continue
                piece = ""
                if attempt > current:
                    piece = decoder.decode(b"", final=True)
                    at_line_start = piece.endswith("\n") if piece else at_line_start
                    head = self._head(job_id, attempt)
                    piece += head if at_line_start or not head else f"\n{head}"
                    current, offset = attempt, 0
                    decoder.reset()
                while True:
                    data = _read(self._path(job_id, attempt), offset)
                    offset += len(data)
                    piece += decoder.decode(data)
                    if piece:
                        at_line_start = piece.endswith("\n")
                        yield piece
                        piece = ""
                    if len(data) < CHUNK:
                        break
            if last:
                if rest := decoder.decode(b"", final=True):
                    yield rest
                return
            await asyncio.sleep(TAIL_POLL_S)

    def delete(self, job_id: str) -> None:
        """Forget all logs of a job."""
        with self._lock:
            folder = self._folder(job_id)
            if folder.is_dir():
                for entry in folder.iterdir():
                    entry.unlink(missing_ok=True)
                folder.rmdir()
            self._open = {pair for pair in self._open if pair[0] != job_id}

    def _folder(self, job_id: str) -> Path:
        if not job_id or "/" in job_id or "\0" in job_id or job_id.startswith("."):
            raise ValueError(f"not a job id: {job_id!r}")
        return self._root / job_id

    def _path(self, job_id: str, attempt: int, kind: str = "log") -> Path:
        return self._folder(job_id) / f"{attempt}.{kind}"

    def _head(self, job_id: str, attempt: int) -> str:
        path = self._path(job_id, attempt, "head")
        return path.read_text(encoding="utf-8") if path.exists() else ""

    @staticmethod
    def _size(path: Path) -> int:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return 0

    def _cut(self, data: bytes, room: int) -> bytes:
        if len(data) <= room:
            return data
        # Cut between characters, not inside one; the line makes the file longer than the limit, which marks it as full.
        kept = data[:room].decode("utf-8", "ignore").encode()
        return kept + f"\n--- the log is cut here: only its first {self._max_bytes} bytes are kept ---\n".encode()

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        temporary = path.with_name(f"{path.name}.new")
        temporary.write_bytes(data)
        temporary.replace(path)


def _joined(text: str, head: str) -> str:
    return f"{text}\n{head}" if head and text and not text.endswith("\n") else text + head


def _read(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(CHUNK)
    except FileNotFoundError:
        return b""


class LogFollower:
    """Copies the logs of live attempts from their clusters into a LogStore while ``run`` runs: each second while somebody reads
    one, else every KEEP_S or so, and once more when an attempt has ended.

    ``clusters`` gives the (address, token) of a region. ``watch``, ``unwatch`` and ``finish`` may be called from any thread,
    also before ``run``; they return at once.
    """

    def __init__(self, store: LogStore, clusters: Callable[[str], tuple[str, str | None]]) -> None:
        self._store, self._clusters = store, clusters
        self._lock = threading.Lock()
        self._wanted: dict[str, Attempt] = {}
        self._finishing: dict[str, Attempt] = {}
        #: Attempts whose last lines have not come yet.
        self._ending: dict[str, Attempt] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._https: dict[str, RayCluster] = {}
        # By region: one whose cluster hangs must not keep the others waiting.
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._asked: dict[str, asyncio.Event] = {}
        #: When the last fetch of each attempt began that succeeded, mono s.
        self._fetched: dict[str, float] = {}
        self._news = threading.Condition(self._lock)
        store.on_read = self.refresh

    def watch(self, attempt: Attempt) -> None:
        """Follow this attempt's log until told otherwise; again is no error."""
        self._store.begin(attempt.job_id, attempt.attempt, attempt.region, attempt.launched_at)
        with self._lock:
            self._wanted[attempt.submission_id] = attempt
        self._nudge()

    def unwatch(self, submission_id: str) -> None:
        """Stop following, and leave the log as it is."""
        with self._lock:
            attempt = self._wanted.pop(submission_id, None)
            self._fetched.pop(submission_id, None)
        if attempt is not None:
            self._store.settle(attempt.job_id, attempt.attempt)
        self._nudge()

    def finish(self, attempt: Attempt) -> None:
        """The attempt has ended: stop following and fetch its whole log once more, soon."""
        self._store.begin(attempt.job_id, attempt.attempt, attempt.region, attempt.launched_at)
        with self._lock:
            self._wanted.pop(attempt.submission_id, None)
            self._fetched.pop(attempt.submission_id, None)
            self._finishing[attempt.submission_id] = self._ending[attempt.submission_id] = attempt
        self._nudge()

    def refresh(self, job_id: str, wait_s: float) -> None:
        """Fetch the logs of a job's live attempts soon, and wait so long for them, and for the last lines of those that have
        just ended, at most; not on the loop that fetches."""
        asked, here = time.monotonic(), _running_loop()
        with self._lock:
            sids = [sid for held in (self._wanted, self._ending) for sid, one in held.items() if one.job_id == job_id]
            if self._loop is None or not sids:
                return
            for sid in sids:
                self._call(self._ask, sid)
            if wait_s > 0 and here is not self._loop:
                self._news.wait_for(lambda: all(self._is_fresh(sid, asked) for sid in sids), wait_s)

    def _is_fresh(self, submission_id: str, asked: float) -> bool:
        if submission_id in self._ending:
            return False
        return submission_id not in self._wanted or self._fetched.get(submission_id, float("-inf")) >= asked

    def _ask(self, submission_id: str) -> None:
        if (event := self._asked.get(submission_id)) is not None:
            event.set()

    async def finalize(self, attempt: Attempt) -> None:
        """Fetch the whole log over HTTP and put it in the place of what we hold, unless the cluster is gone or knows less."""
        job_id, number = attempt.job_id, attempt.attempt
        copy = partial(self._http(attempt.region).copy_logs, attempt.submission_id)
        try:
            for again in range(FETCH_TRIES):
                try:
                    await self._in_thread(attempt.region, self._store.replace, job_id, number, copy)
                except (ClusterUnreachable, OSError) as error:
                    undecodable = _NOT_TEXT in str(error)
                    sent = not isinstance(error, ClusterUnreachable) or error.maybe_sent
                    if again + 1 == FETCH_TRIES or not sent or undecodable:
                        log.warning("the last lines of %s could not be fetched: %s", attempt.submission_id, error)
                        if undecodable:
                            self._store.append(job_id, number, _UNREADABLE)
                        return
                    await asyncio.sleep(2.0**again)
                    continue
                return
        finally:
            self._store.settle(job_id, number)
            with self._news:
                self._ending.pop(attempt.submission_id, None)
                self._news.notify_all()

    async def run(self) -> None:
        """Follow what is watched, until cancelled."""
        self._loop = asyncio.get_running_loop()
        following: dict[str, asyncio.Task[None]] = {}
        ending: set[asyncio.Task[None]] = set()
        try:
            while True:
                self._wake.clear()
                with self._lock:
                    wanted, finishing = dict(self._wanted), self._finishing
                    self._finishing = {}
                for sid in following.keys() - wanted.keys():
                    task = following.pop(sid)
                    # Its last fetch may be under way; it is waited for like the others that end.
                    ending.add(task)
                    task.add_done_callback(ending.discard)
                    task.cancel()
                for sid in wanted.keys() - following.keys():
                    following[sid] = asyncio.create_task(self._follow(wanted[sid]))
                for attempt in finishing.values():
                    task = asyncio.create_task(self.finalize(attempt))
                    ending.add(task)
                    task.add_done_callback(ending.discard)
                await self._wake.wait()
        finally:
            self._loop = None
            tasks = [*following.values(), *ending]
            for task in tasks:
                if not task.cancelling():
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for threads in self._threads.values():
                threads.shutdown(wait=False, cancel_futures=True)
            for http in self._https.values():
                http.close()

    async def _follow(self, attempt: Attempt) -> None:
        """Keep the copy of an attempt's log up to date, until cancelled or the copy is full."""
        job_id, number, sid = attempt.job_id, attempt.attempt, attempt.submission_id
        asked = self._asked[sid] = asyncio.Event()
        backoff_s = 0.0
        try:
            while not self._store.is_full(job_id, number):
                asked.clear()
                took_s = await self._in_thread(attempt.region, self._fetch, attempt, self._http(attempt.region))
                backoff_s = min(max(2 * backoff_s, READ_S), MAX_BACKOFF_S) if took_s is None else 0.0
                await self._pause(job_id, asked, took_s or 0.0, backoff_s)
        finally:
            if self._asked.get(sid) is asked:
                del self._asked[sid]

    def _fetch(self, attempt: Attempt, cluster: RayCluster) -> float | None:
        """Copy an attempt's whole log as it is now; how long that took, s, or None where it was not to be had."""
        began = time.monotonic()
        copy = partial(cluster.copy_logs, attempt.submission_id)
        try:
            self._store.replace(attempt.job_id, attempt.attempt, copy)
        except (GridshiftError, OSError) as error:
            log.debug("the log of %s was not fetched: %s", attempt.submission_id, error)
            return None
        with self._news:
            if attempt.submission_id in self._wanted:
                self._fetched[attempt.submission_id] = began
            self._news.notify_all()
        return time.monotonic() - began

    async def _in_thread(self, region: str, function: Callable[..., T], *args: object) -> T:
        threads = self._threads.get(region)
        if threads is None:
            threads = self._threads[region] = ThreadPoolExecutor(FETCHES_AT_ONCE, thread_name_prefix=f"logs of {region}")
        return await asyncio.get_running_loop().run_in_executor(threads, partial(function, *args))

    async def _pause(self, job_id: str, asked: asyncio.Event, took_s: float, backoff_s: float) -> None:
        """Wait until the next fetch is due after one that took so long; sooner when somebody begins to read, or after one that
        did not work (``backoff_s`` > 0)."""
        often_s = max(READ_S, took_s / READ_SHARE, backoff_s)
        await asyncio.sleep(often_s)
        if not backoff_s and not self._store.is_read(job_id):
            seldom_s = max(KEEP_S, took_s / KEEP_SHARE, len(self._wanted) / KEEP_RATE)
            # Not wait_for: up to Python 3.11 it swallows a cancellation that comes with the event, and we would never end.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, seldom_s - often_s)):
                    await asked.wait()

    def _http(self, region: str) -> RayCluster:
        if region not in self._https:
            self._https[region] = RayCluster(region, *self._clusters(region))
        return self._https[region]

    def _nudge(self) -> None:
        self._call(self._wake.set)

    def _call(self, function: Callable[..., object], *args: object) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(function, *args)
            except RuntimeError:  # the loop closed in between: run() has ended, and there is nobody to tell
                return


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
