"""What a running attempt may ask and say of itself, proved by the token from its own environment.

It knows attempts and the store; what a checkpoint or a result contains is the job's own business.
"""

import asyncio
import contextlib
import hashlib
import os
import secrets
import time
from collections import OrderedDict
from datetime import timedelta
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dispatcher.api.answers import Refused, in_thread, json_response
from dispatcher.api.auth import presented
from dispatcher.api.services import Services
from dispatcher.api.strict_json import parse_object
from dispatcher.api.views import time_of
from dispatcher.errors import BadInput, NotFound, StaleState, StoreUnavailable
from dispatcher.store import Change, Job
from policies.world import PLACED, JobState

#: Attempts remembered by their tokens, ended ones too, so that a stale one is told 409 and not 401.
REMEMBERED = 20_000
#: Live attempts are read at most this often for tokens that are not known.
LOOK_AGAIN_S = 0.25


def result_path(data_dir: Path, job_id: str, attempt: int) -> Path:
    """Where the result of an attempt lies."""
    return data_dir / "results" / f"{job_id}-{attempt}"


def find_result(data_dir: Path, job: Job) -> Path | None:
    """The result of the latest attempt that handed one in, or None."""
    paths = (result_path(data_dir, job.id, attempt) for attempt in range(job.attempt, 0, -1))
    return next((path for path in paths if path.is_file()), None)


class Attempts:
    """Which attempt a token belongs to. Keys are hashes, so looking one up tells nothing by its time."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._known: OrderedDict[bytes, tuple[str, int]] = OrderedDict()
        self._looked_at = self._began_at = float("-inf")
        self._lock = asyncio.Lock()

    async def of(self, request: Request) -> tuple[str, int]:
        """(job id, attempt) of the request's token. Raises Refused 401."""
        keys = [hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest() for token in presented(request.headers)]
        for again in (False, True):
            for key in keys:
                if key in self._known:
                    return self._known[key]
            if keys and not again:
                await self._look(keys)
        what = "this is not the token of an attempt that runs" if keys else "the attempt's token is needed"
        raise Refused(401, f"{what}; a job finds its own in GRIDSHIFT_JOB_TOKEN", {"WWW-Authenticate": "Bearer"})

    async def _look(self, keys: list[bytes]) -> None:
        arrived = time.monotonic()
        async with self._lock:
            # Whoever came before a look began shares what it found: a flood of strangers costs one look, not one each.
            if self._began_at >= arrived or any(key in self._known for key in keys):
                return
            wait_s = self._looked_at + LOOK_AGAIN_S - time.monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self._began_at = time.monotonic()
            for attempt in await in_thread(self._services.store.live_attempts):
                token = self._services.job_token(attempt.submission_id)
                self._known[hashlib.sha256(token.encode()).digest()] = (attempt.job_id, attempt.attempt)
            self._looked_at = time.monotonic()
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)


class SelfService:
    """The endpoints under ``/v1/self``."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._attempts = Attempts(services)

    async def tell(self, request: Request) -> Response:
        """Say whether the attempt is the current one, whether a newer one has taken its place (then it must end), and whether a
        checkpoint is wanted, and by when."""
        job_id, attempt = await self._attempts.of(request)
        job = await in_thread(self._services.store.job, job_id)
        current = job is not None and is_current(job, attempt)
        wanted = current and job is not None and job.state is JobState.PAUSING
        answer: dict[str, Any] = {
            "job_id": job_id,
            "attempt": attempt,
            "current": current,
            "superseded": job is not None and job.attempt > attempt,
            "checkpoint_requested": wanted,
            "checkpoint_by": None,
        }
        if wanted and job is not None and job.pause_requested_at is not None:
            answer["checkpoint_by"] = time_of(job.pause_requested_at + timedelta(seconds=job.flex.checkpoint_s))
        return json_response(answer)

    async def checkpoint_saved(self, request: Request) -> Response:
        """Take note that the checkpoint which was asked for is saved; the attempt is stopped then. 409 where none was, unless
        the job is being cancelled: its end is asked for, and the answer says so.
        """
        job_id, attempt = await self._attempts.of(request)
        number = parse_object(await request.body()).get("attempt")
        if type(number) is not int:
            raise BadInput([("attempt", number, "must be the number in GRIDSHIFT_ATTEMPT")])
        if number != attempt:
            raise StaleState(f"this token belongs to attempt {attempt} of job {job_id}, not to attempt {number}")
        cancelled = await self._note_checkpoint(job_id, attempt)
        return json_response({"job_id": job_id, "attempt": attempt, "saved": True, "cancel_requested": cancelled})

    async def _note_checkpoint(self, job_id: str, attempt: int) -> bool:
        """Write down that a checkpoint is saved; whether the job is being cancelled. Raises StaleState where none is wanted."""
        store = self._services.store
        for _ in range(5):
            job = await in_thread(store.job, job_id)
            if job is None or not is_current(job, attempt):
                raise StaleState(f"attempt {attempt} is not the current attempt of job {job_id}")
            cancelled = job.cancel_requested_at is not None
            if cancelled and job.state is not JobState.PAUSING:
                return True  # SIGTERM made it save; told to go on, it would save after every step until it is killed
            if job.state is not JobState.PAUSING:
                raise StaleState(f"no checkpoint is asked of job {job_id} now ({job.state}); it may go on")
            if job.checkpoint_saved_at is not None:
                return cancelled  # told before: the answer got lost on its way
            now = self._services.clock.now()
            change = Change(
                job_id,
                now,
                "checkpoint",
                f"attempt {attempt} saved its checkpoint",
                expect=JobState.PAUSING,
                expect_attempt=attempt,
                fields={"checkpoint_saved_at": now},
            )
            if await self._applied(change):
                return cancelled
        raise StaleState(f"job {job_id} keeps changing; try again")

    async def _applied(self, change: Change) -> bool:
        """Write a change; False when the job changed meanwhile."""
        outcome = (await asyncio.wrap_future(self._services.store.apply([change])))[0]
        if isinstance(outcome, Job):
            self._services.nudge()
            return True
        if isinstance(outcome, StaleState):
            return False
        raise outcome

    async def take_result(self, request: Request) -> Response:
        """Keep the attempt's result, any bytes; a second one replaces the first."""
        job_id, attempt = await self._attempts.of(request)
        job = await in_thread(self._services.store.job, job_id)
        if job is None or not is_current(job, attempt):
            raise StaleState(f"attempt {attempt} is not the current attempt of job {job_id}; its result is not taken")
        body = await request.body()
        await in_thread(_write_result, result_path(self._services.data_dir, job_id, attempt), body)
        for _ in range(5):
            job = await in_thread(self._services.store.job, job_id)
            if job is None or not is_current(job, attempt):
                raise StaleState(f"attempt {attempt} is no longer the current attempt of job {job_id}")
            if job.has_result:
                break
            sentence = job.reason  # a result is no reason to be in a state
            change = Change(
                job_id,
                self._services.clock.now(),
                "result",
                sentence,
                expect=job.state,
                expect_seq=job.seq,
                expect_attempt=attempt,
                fields={"has_result": True},
            )
            if await self._applied(change):
                break
        else:
            raise StoreUnavailable(f"job {job_id} keeps changing; try again")
        return Response(status_code=204)


def is_current(job: Job, attempt: int) -> bool:
    """Whether an attempt is the one that runs now."""
    return job.attempt == attempt and job.state in PLACED


def _write_result(path: Path, body: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with temporary.open("xb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise StoreUnavailable(f"the disk did not take the result ({error.strerror}); nothing was stored") from error


def read_result(data_dir: Path, job: Job) -> bytes:
    """The result's bytes. Raises NotFound."""
    path = find_result(data_dir, job) if job.has_result else None
    if path is None:
        raise NotFound(f"job {job.id} has no result" + (" (yet)" if job.finished_at is None else ""))
    return path.read_bytes()
