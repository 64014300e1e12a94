"""The Ray Jobs HTTP API, so that ``ray job ...`` and JobSubmissionClient work against gridshift unchanged.

Submissions are the hot path: one parse, one durable commit shared with others, one small answer. Errors are plain text, as
Ray's client shows them. It writes intents only and asks no cluster.
"""

import asyncio
import contextlib
from concurrent.futures import Future
from importlib import metadata
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from dispatcher.api import intents, views
from dispatcher.api.answers import guarded, in_thread, json_bytes, json_response, text_response
from dispatcher.api.health import Health
from dispatcher.api.services import Services
from dispatcher.api.submissions import job_from_body
from dispatcher.errors import AlreadyExists, BadInput, GridshiftError, NotFound, StoreUnavailable
from dispatcher.packages import Upload
from dispatcher.store import Job
from policies.world import ENDED

#: The version of the Jobs protocol that is spoken here.
PROTOCOL_VERSION = "4"
#: Told to clients where Ray itself is not installed beside the control plane.
_RAY_VERSION = "2.60.0"
_BLOCK = 1 << 20
#: Where submissions are posted, with and without the slash.
SUBMIT_PATHS = ("/api/jobs/", "/api/jobs")
#: Ended jobs in Ray's list, which knows no pages.
ENDED_LISTED = 1000
#: How often the store is asked whether a job whose log is tailed has ended, wall seconds.
END_LOOK_S = 0.5

# Writing and checking packages takes long; it must not use up the threads that reads need.
_uploads = CapacityLimiter(4)


def ray_version() -> str:
    """What we say we are: Ray's version and our name, a version that packaging.version can read."""
    try:
        installed = metadata.version("ray")
    except metadata.PackageNotFoundError:
        installed = _RAY_VERSION
    return f"{installed.split('+')[0]}+gridshift"


class RayJobs:
    """The endpoints under ``/api``."""

    def __init__(self, services: Services, health: Health) -> None:
        self._services = services
        self._accepted = health.submissions.labels("accepted")
        self._refused = health.submissions.labels("refused")
        self._version = {
            "version": PROTOCOL_VERSION,
            "ray_version": ray_version(),
            "ray_commit": "gridshift",
            "session_name": "gridshift",
        }

    def routes(self) -> list[BaseRoute]:
        """All routes but the one for submissions, with and without the slash at the end where clients differ."""
        table: list[tuple[str, str, Any]] = [
            ("GET", "/api/version", self.version),
            ("GET", "/api/packages/{protocol}/{name}", self.has_package),
            ("PUT", "/api/packages/{protocol}/{name}", self.take_package),
            ("GET", "/api/jobs/", self.list),
            ("GET", "/api/jobs", self.list),
            ("GET", "/api/jobs/{job_id}", self.show),
            ("DELETE", "/api/jobs/{job_id}", self.delete),
            ("POST", "/api/jobs/{job_id}/stop", self.stop),
            ("GET", "/api/jobs/{job_id}/logs", self.logs),
        ]
        http: list[BaseRoute] = [Route(path, guarded(handler), methods=[method]) for method, path, handler in table]
        return [*http, WebSocketRoute("/api/jobs/{job_id}/logs/tail", self.tail)]

    async def version(self, request: Request) -> Response:
        """Who is there; Ray's client checks it before anything else."""
        return json_response(self._version)

    # --- packages -------------------------------------------------------------------------------------------------

    async def has_package(self, request: Request) -> Response:
        """200 when the package is held intact, 404 when the client should upload it."""
        protocol, name = request.path_params["protocol"], request.path_params["name"]
        if protocol != "gcs" or not await to_thread.run_sync(self._services.packages.verify, name, limiter=_uploads):
            raise NotFound(f"Package {protocol[:20]}://{name[:200]} does not exist")
        return Response()

    async def take_package(self, request: Request) -> Response:
        """Store an uploaded package; it is durable and checked when this answers."""
        protocol, name = request.path_params["protocol"], request.path_params["name"]
        if protocol != "gcs":
            raise BadInput([("protocol", protocol, "packages are uploaded under 'gcs'")])
        upload = await to_thread.run_sync(self._services.packages.upload, name, limiter=_uploads)
        try:
            await _write_stream(request, upload)
            await to_thread.run_sync(upload.commit, limiter=_uploads)
        finally:
            with contextlib.suppress(OSError):  # whatever went wrong is on its way already
                upload.__exit__(None, None, None)
        return Response()

    # --- jobs -----------------------------------------------------------------------------------------------------

    async def submit(self, request: Request) -> Response:
        """Take a job; it is durably stored when this answers."""
        job = await self.admit(await request.body())
        return json_response({"job_id": job.id, "submission_id": job.id})

    async def admit(self, body: bytes) -> Job:
        """Parse, check and durably store a submission. Raises BadInput, AlreadyExists or StoreUnavailable."""
        job_id, future = self.begin(body)
        with contextlib.suppress(GridshiftError):
            await asyncio.wrap_future(future)
        return self.end(job_id, future)

    def begin(self, body: bytes) -> "tuple[str, Future[Job]]":
        """Parse and check a submission and put it in line; ``end`` knows what its Future means. Raises BadInput."""
        try:
            job = job_from_body(body, self._services, self._services.clock.now())
            return job.id, self._services.admit(job)
        except GridshiftError:
            self._refused.inc()
            raise

    def end(self, job_id: str, done: "Future[Job]") -> Job:
        """The job, durably stored. Raises AlreadyExists, with Ray's own words, BadInput or StoreUnavailable."""
        try:
            job = done.result()
        except AlreadyExists:
            self._refused.inc()
            raise AlreadyExists(
                f"Job with submission_id {job_id} already exists. Please use a different submission_id."
            ) from None
        except GridshiftError:
            self._refused.inc()
            raise
        self._accepted.inc()
        return job

    async def list(self, request: Request) -> Response:
        """Every active job and the latest ended ones, newest first, as a bare array."""
        redact = _is_browser(request)

        def body() -> bytes:
            jobs = self._services.store.ray_jobs(ENDED_LISTED)
            return json_bytes([views.ray_job_json(job, redact=redact) for job in jobs])

        return Response(await in_thread(body), media_type="application/json")

    async def show(self, request: Request) -> Response:
        """One job."""
        job = await in_thread(intents.visible_job, self._services, request.path_params["job_id"])
        return json_response(views.ray_job_json(job, redact=_is_browser(request)))

    async def stop(self, request: Request) -> Response:
        """Write down that a job is to be cancelled; false when it had ended already."""
        job_id = request.path_params["job_id"]
        job = await in_thread(intents.visible_job, self._services, job_id)
        if job.state in ENDED:
            return json_response({"stopped": False})
        await in_thread(intents.cancel, self._services, job_id)
        return json_response({"stopped": True})

    async def delete(self, request: Request) -> Response:
        """Hide an ended job."""
        await in_thread(intents.delete, self._services, request.path_params["job_id"])
        return json_response({"deleted": True})

    async def logs(self, request: Request) -> Response:
        """The logs of all attempts as one text."""

        def body() -> bytes:
            return json_bytes({"logs": intents.whole_log(self._services, request.path_params["job_id"])})

        return Response(await in_thread(body), media_type="application/json")

    async def tail(self, socket: WebSocket) -> None:
        """Send the log as it grows. Closed (1000) only when the stored job has ended: Ray's client takes every close for the
        job's end, and asks the status once."""
        job_id = socket.path_params["job_id"]
        try:
            await in_thread(intents.visible_job, self._services, job_id)
        except NotFound as error:
            await socket.send_denial_response(text_response(str(error), 404))
            return
        await socket.accept()
        tasks = [asyncio.create_task(task) for task in (self._follow(socket, job_id), _gone(socket))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except WebSocketDisconnect:
            pass
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, socket: WebSocket, job_id: str) -> None:
        """Send the log until the job has ended in the store. An error is raised, and so cuts the connection: Ray's client
        reports that, where it would take a close for success."""
        ended = asyncio.Event()
        watching = asyncio.create_task(self._watch_end(job_id, ended))

        def is_ended() -> bool:
            if watching.done():
                watching.result()  # raises what stopped it
            return ended.is_set()

        try:
            async for text in self._services.logs.tail(job_id, is_ended):
                await socket.send_text(text)
            await socket.close(1000)
        finally:
            watching.cancel()

    async def _watch_end(self, job_id: str, ended: asyncio.Event) -> None:
        while not ended.is_set():
            with contextlib.suppress(StoreUnavailable):  # not known is not ended
                job = await in_thread(self._services.store.job, job_id)
                if job is None or job.state in ENDED:
                    ended.set()
            await asyncio.sleep(END_LOOK_S)


async def _gone(socket: WebSocket) -> None:
    """Returns when the client has gone; what it says meanwhile is of no interest."""
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass


async def _write_stream(request: Request, upload: Upload) -> None:
    """Write a body to disk as it arrives, a block at a time, beside the event loop."""
    waiting: list[bytes] = []
    size = 0
    async for piece in request.stream():
        waiting.append(piece)
        size += len(piece)
        if size >= _BLOCK:
            await to_thread.run_sync(upload.write, b"".join(waiting), limiter=_uploads)
            waiting, size = [], 0
    if waiting:
        await to_thread.run_sync(upload.write, b"".join(waiting), limiter=_uploads)


def _is_browser(request: Request) -> bool:
    return "mozilla" in request.headers.get("user-agent", "").lower()
