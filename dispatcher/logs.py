"""The logs of jobs, kept here so that they outlive clusters: one file an attempt, read as one log a job.

The store knows files and nothing of clusters; the follower copies what clusters say into it and decides nothing.
"""

import asyncio
import codecs
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from dispatcher.clusters.ray_http import RayCluster
from dispatcher.errors import ClusterUnreachable
from dispatcher.store import Attempt

log = logging.getLogger(__name__)

#: Bytes kept of one attempt's log.
MAX_ATTEMPT_BYTES = 64 << 20
#: Wall seconds between looks at a file that somebody tails.
TAIL_POLL_S = 0.2
#: How long a tail waits after the job's end for the last lines, wall seconds.
SETTLE_S = 10.0
CHUNK = 1 << 16
#: Ray sends up to ten lines at a time; a longer frame than this is left to the final fetch.
MAX_FRAME_BYTES = 16 << 20
MAX_BACKOFF_S = 30.0
#: Websockets open at once to one cluster: each costs Ray's head a look at a file every second.
MAX_FOLLOWED = 256
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
        temporary = path.with_name(f"{path.name}.new")
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
        """All attempts as one text, each after the first under its own line; "" when nothing is held."""
        text = ""
        for attempt in self.attempts(job_id):
            text = _joined(text, self._head(job_id, attempt))
            path = self._path(job_id, attempt)
            text += path.read_bytes().decode("utf-8", "replace") if path.exists() else ""
        return text

    async def tail(self, job_id: str, is_ended: Callable[[], bool]) -> AsyncIterator[str]:
        """The same text from its beginning, and then what is added, until ``is_ended()`` and the last lines have come."""
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


class _Connect(connect):
    """A connection that is where we asked for it or nowhere: a redirect could carry the token elsewhere."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """Refuse."""
        return exc


class LogFollower:
    """Copies the logs of live attempts from their clusters into a LogStore while ``run`` runs.

    ``clusters`` gives the (address, token) of a region. ``watch``, ``unwatch`` and ``finish`` may be called from any thread,
    also before ``run``; they return at once.
    """

    def __init__(self, store: LogStore, clusters: Callable[[str], tuple[str, str | None]]) -> None:
        self._store, self._clusters = store, clusters
        self._lock = threading.Lock()
        self._wanted: dict[str, Attempt] = {}
        self._finishing: dict[str, Attempt] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._https: dict[str, RayCluster] = {}
        self._slots: dict[str, asyncio.Semaphore] = {}

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
        if attempt is not None:
            self._store.settle(attempt.job_id, attempt.attempt)
        self._nudge()

    def finish(self, attempt: Attempt) -> None:
        """The attempt has ended: stop following and fetch its whole log once more, soon."""
        self._store.begin(attempt.job_id, attempt.attempt, attempt.region, attempt.launched_at)
        with self._lock:
            self._wanted.pop(attempt.submission_id, None)
            self._finishing[attempt.submission_id] = attempt
        self._nudge()

    async def finalize(self, attempt: Attempt) -> None:
        """Fetch the whole log over HTTP and put it in the place of what we hold, unless the cluster is gone or knows less."""
        job_id, number = attempt.job_id, attempt.attempt
        copy = partial(self._http(attempt.region).copy_logs, attempt.submission_id)
        try:
            for again in range(FETCH_TRIES):
                try:
                    await asyncio.to_thread(self._store.replace, job_id, number, copy)
                except ClusterUnreachable as error:
                    if again + 1 == FETCH_TRIES or not error.maybe_sent:
                        log.warning("the last lines of %s could not be fetched: %s", attempt.submission_id, error)
                        return
                    await asyncio.sleep(2.0**again)
                    continue
                return
        finally:
            self._store.settle(job_id, number)

    async def run(self) -> None:
        """Follow what is watched, until cancelled."""
        self._loop = asyncio.get_running_loop()
        following: dict[str, asyncio.Task[None]] = {}
        ending: set[asyncio.Task[None]] = set()
        fetches = asyncio.Semaphore(FETCHES_AT_ONCE)

        async def fetch(attempt: Attempt) -> None:
            async with fetches:
                await self.finalize(attempt)

        try:
            while True:
                self._wake.clear()
                with self._lock:
                    wanted, finishing = dict(self._wanted), self._finishing
                    self._finishing = {}
                for sid in following.keys() - wanted.keys():
                    task = following.pop(sid)
                    # It says goodbye to the cluster before it ends; it is waited for like a fetch.
                    ending.add(task)
                    task.add_done_callback(ending.discard)
                    task.cancel()
                for sid in wanted.keys() - following.keys():
                    following[sid] = asyncio.create_task(self._follow(wanted[sid]))
                for attempt in finishing.values():
                    task = asyncio.create_task(fetch(attempt))
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
            for http in self._https.values():
                http.close()

    async def _follow(self, attempt: Attempt) -> None:
        slots = self._slots.setdefault(attempt.region, asyncio.Semaphore(MAX_FOLLOWED))
        backoff_s = 0.5
        while True:
            async with slots:
                try:
                    if await self._copy(attempt):
                        backoff_s = 0.5
                except (OSError, EOFError, WebSocketException) as error:
                    log.debug("tail of %s: %s", attempt.submission_id, error)
            # A polite close also ends here: Ray's agent may have gone, or the job ended and we shall hear of it.
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)

    async def _copy(self, attempt: Attempt) -> bool:
        """Copy one tail until it closes; return whether anything new came. Ray's tail starts at the beginning each time."""
        address, token = self._clusters(attempt.region)
        url = f"ws{address.rstrip('/').removeprefix('http')}/api/jobs/{attempt.submission_id}/logs/tail"
        headers = {} if token is None else {"Authorization": f"Bearer {token}", "X-Ray-Authorization": f"Bearer {token}"}
        job_id, number = attempt.job_id, attempt.attempt
        fresh = False
        async with _Connect(
            url,
            additional_headers=headers,
            proxy=None,
            # Ray's dashboard hands an offer of compression on to its own backend, and then every frame gets lost.
            compression=None,
            max_size=MAX_FRAME_BYTES,
            open_timeout=10,
            close_timeout=1,
        ) as tail:
            skip = self._store.size(job_id, number)
            async for frame in tail:
                data = frame.encode("utf-8", "replace") if isinstance(frame, str) else frame
                if self._store.is_full(job_id, number):
                    continue
                new, skip = data[skip:], max(0, skip - len(data))
                if new:
                    fresh = True
                    self._store.append(job_id, number, new)
        return fresh

    def _http(self, region: str) -> RayCluster:
        if region not in self._https:
            self._https[region] = RayCluster(region, *self._clusters(region))
        return self._https[region]

    def _nudge(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(self._wake.set)
            except RuntimeError:  # the loop closed in between: run() has ended, and there is nobody to tell
                return
