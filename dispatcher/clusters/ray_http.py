"""A real Ray cluster over the HTTP of its Jobs API, as Ray 2.40 to 2.60 speak it.

It knows no job states and keeps no memory of submissions: it reports what the cluster answered, and takes nothing for an answer
that Ray itself did not give.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError, ReadTimeoutError

from dispatcher.clusters import AttemptStatus, ClusterInfo, RayStatus, Submission
from dispatcher.clusters.long_text import LongText
from dispatcher.errors import ClusterAccessDenied, ClusterUnreachable, LaunchRefused

log = logging.getLogger(__name__)

#: Up to this many submissions are asked for one by one; for more, the whole list is one request.
ONE_BY_ONE = 16
#: How old, wall seconds, the number of GPUs may be: nodes join and leave slowly, and info() is asked every second.
GPUS_TTL_S = 10.0
#: How long the last number of GPUs stands while it cannot be read anew.
GPUS_HELD_S = 60.0
CONNECT_S = 3.0
#: Ray's first answer to a submission after a head start takes seconds, and it waits for its own agent.
SUBMIT_S = 60.0
#: The slowest upload or log download that is worth waiting for.
MIN_BYTES_PER_S = 1_000_000
#: Whoever sends more than this is not Ray; a list of 100,000 jobs has less.
MAX_ANSWER_BYTES = 256 << 20
NO_SUCH_JOB = "Job {} does not exist"
#: What Ray's agent writes of a body that is too large: it takes none above 1 MiB, whatever its head takes.
TOO_LARGE = ("Request Entity Too Large", "RequestEntityTooLarge", "Maximum request body size", "failed with status code 413")


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer."""

    status: int
    content_type: str
    text: str

    def json(self) -> Any:
        """The body as JSON; None when it is none."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None


def last_words(text: str, limit: int = 300) -> str:
    """The sentence of an error that Ray sent: of a traceback (they come nested) the exception's line, else the first line."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip(" .\t")]
    if not lines:
        return "no reason given"
    if "Traceback (most recent call last)" in text:
        line = lines[-1].removesuffix(".").rstrip(" .")
        head, _, rest = line.partition(": ")
        line = rest if rest and head.replace(".", "").replace("_", "").isalnum() else line
    else:
        line = lines[0]
    return line if len(line) <= limit else line[: limit - 1] + "…"


def parse_status(body: Any) -> AttemptStatus | None:
    """One job of Ray's answer; None when it does not have the shape of one."""
    if not isinstance(body, dict) or not isinstance(body.get("entrypoint"), str):
        return None
    try:
        return AttemptStatus(
            status=RayStatus(body["status"]),
            message=str(body.get("message") or ""),
            error_type=body.get("error_type"),
            exit_code=body.get("driver_exit_code"),
            started_at=_time(body.get("start_time")),
            ended_at=_time(body.get("end_time")),
        )
    except (KeyError, ValueError, TypeError, OverflowError):
        return None


def _time(ms: Any) -> datetime | None:
    # Ray writes 0 where it does not know.
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None


def parse_gpus(body: Any) -> float | None:
    """The GPUs of all live nodes in an answer to /api/v0/nodes; None when it names no node or has another shape."""
    try:
        nodes = body["data"]["result"]["result"]
        alive = [node["resources_total"] for node in nodes if node["state"] == "ALIVE"]
        return float(sum(resources.get("GPU", 0.0) for resources in alive)) if alive else None
    except (KeyError, TypeError, AttributeError):
        return None


def submit_body(submission: Submission) -> dict[str, Any]:
    """What POST /api/jobs/ takes; absent fields are left out, for older Rays refuse keys that they do not know."""
    body: dict[str, Any] = {
        "submission_id": submission.submission_id,
        "entrypoint": submission.entrypoint,
        "runtime_env": dict(submission.runtime_env),
        "metadata": dict(submission.metadata),
        "entrypoint_num_cpus": submission.entrypoint_num_cpus,
        "entrypoint_num_gpus": submission.entrypoint_num_gpus,
        "entrypoint_memory": submission.entrypoint_memory,
        "entrypoint_resources": submission.entrypoint_resources,
        "entrypoint_label_selector": submission.entrypoint_label_selector,
    }
    return {key: value for key, value in body.items() if value is not None}


def body_size(body: Mapping[str, Any]) -> tuple[int, dict[str, int]]:
    """The bytes of a ``submit_body`` as JSON, and of its largest field and those nearly as large, the largest first."""
    total = len(json.dumps(body))
    sizes = sorted(((name, len(json.dumps(value))) for name, value in body.items()), key=lambda one: -one[1])
    return total, {name: size for name, size in sizes if 5 * size >= sizes[0][1]}


class _Unreadable(ClusterUnreachable):
    """The cluster told of the right submission, and not what is known here: of a later Ray, perhaps."""


class RayCluster:
    """The cluster of ``region`` at ``address`` ("http://host:8265"); calls may come from many threads.

    ``timeout_s`` bounds each small request as a whole, from connect to the last byte. Raises ClusterUnreachable for anything
    that is not Ray's own answer, ClusterAccessDenied where a token is missing or wrong.
    """

    def __init__(self, region: str, address: str, token: str | None, timeout_s: float = 10.0) -> None:
        self.region = region
        self._base = address.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s
        self._local = threading.local()
        self._lock = threading.Lock()
        self._sessions: list[requests.Session] = []
        self._gpus: float | None = None
        self._gpus_read, self._gpus_tried = float("-inf"), float("-inf")

    def info(self) -> ClusterInfo:
        """Ask who is there; the number of GPUs is at most a few seconds old."""
        body = self._ask("GET", "/api/version").json()
        if not isinstance(body, dict) or not isinstance(body.get("ray_version"), str):
            raise self._not_ray("/api/version", "it names no ray_version")
        # Rays before 2.9 did not tell it; then restarts are noticed by their lost submissions alone.
        session = body.get("session_name") or ""
        return ClusterInfo(session=str(session), ray_version=body["ray_version"], gpus=self._read_gpus())

    def statuses(self, submission_ids: Sequence[str]) -> dict[str, AttemptStatus | None]:
        """The status of each; None only where Ray itself said that it knows no such submission. One whose status means nothing
        to us is left out, and the others are told."""
        if len(submission_ids) <= ONE_BY_ONE:
            return self._one_by_one(submission_ids)
        path = "/api/jobs/"
        body = self._ask("GET", path, limit_s=3 * self._timeout_s).json()
        if not isinstance(body, list):
            raise self._not_ray(path, "it is no list of jobs")
        listed: dict[str, AttemptStatus] = {}
        for job in body:
            if not isinstance(job, dict):
                raise self._not_ray(path, "what it lists are no jobs")
            status = parse_status(job)
            if status is not None and isinstance(job.get("submission_id"), str):
                listed[job["submission_id"]] = status
        found: dict[str, AttemptStatus | None] = {sid: listed[sid] for sid in submission_ids if sid in listed}
        # An empty list proves little; that a job is unknown is believed only of an answer about that job. Of those that are not
        # asked about this time nothing is said.
        missing = [sid for sid in submission_ids if sid not in listed]
        return found | self._one_by_one(missing[:ONE_BY_ONE])

    def _one_by_one(self, submission_ids: Sequence[str]) -> dict[str, AttemptStatus | None]:
        found: dict[str, AttemptStatus | None] = {}
        for sid in submission_ids:
            try:
                found[sid] = self._status(sid)
            except _Unreadable as error:
                log.warning("%s", error)
        return found

    def submit(self, submission: Submission, packages: Mapping[str, Path], *, maybe_sent: bool) -> None:
        """Deliver the packages that the cluster lacks, then submit (see Cluster.submit)."""
        sid = submission.submission_id
        if maybe_sent and self._status(sid) is not None:
            return
        # Uploaded packages can vanish on a live cluster, and Ray accepts a job whose package is gone: look at each launch.
        for name, file in packages.items():
            self._deliver(name, file)
        data = json.dumps(submit_body(submission)).encode()
        answer = self._ask(
            "POST", "/api/jobs/", data=data, expect=(200, 400, 413, 422, 500), limit_s=max(SUBMIT_S, self._timeout_s)
        )
        if answer.status == 200:
            body = answer.json()
            if not isinstance(body, dict) or sid not in (body.get("submission_id"), body.get("job_id")):
                raise self._not_ray("/api/jobs/", "it does not name the submission")
        elif f"submission_id {sid} already exists" in answer.text:
            if not maybe_sent:
                raise LaunchRefused(self._says(f"has a submission {sid} that is not this one; choose another submission id"))
        else:
            # Ray gives its reasons as a traceback, and its head passes its agent's 400 on inside the one of a 500. Without one
            # it was somebody between us, who does not decide what becomes of the job.
            words, by_ray = last_words(answer.text), "Traceback" in answer.text
            if answer.status == 413 or (by_ray and answer.status == 500 and any(said in answer.text for said in TOO_LARGE)):
                # Too large is too large, whoever says so.
                limit = words if answer.status == 413 else "Ray takes no body above 1 MiB"
                raise LaunchRefused(self._says(f"refused the job: {limit}, and {_sizes(submission)}"))
            if not by_ray or (answer.status == 500 and "failed with status code 400" not in answer.text):
                raise ClusterUnreachable(self._says(f"could not take the job: {words}"))
            raise LaunchRefused(self._says(f"refused the job: {words}"))

    def stop(self, submission_id: str) -> None:
        """Ask for a stop; a submission that is unknown or has ended is no error."""
        self._job("POST", submission_id, "/stop", "stopped")

    def delete(self, submission_id: str) -> None:
        """Forget an ended submission; unknown is no error."""
        self._job("DELETE", submission_id, "", "deleted")

    def copy_logs(self, submission_id: str, take: Callable[[str], bool]) -> bool:
        """Hand the log to ``take`` in pieces, until it wants no more; False when the cluster knows no such submission."""
        path = f"/api/jobs/{quote(submission_id, safe='')}/logs"
        text, wants_more = LongText("logs"), True

        def pieces(data: bytes) -> bool:
            nonlocal wants_more
            try:
                piece = text.feed(data)
            except ValueError as error:
                raise self._not_ray(path, str(error)) from None
            wants_more = not piece or take(piece)
            return wants_more and not text.ended

        answer = self._ask("GET", path, expect=(200, 404), limit_s=6 * self._timeout_s, take=pieces)
        if answer.status == 404:
            self._check_unknown(answer, submission_id, path)
            return False
        if wants_more and not text.ended:
            raise self._not_ray(path, "the log in it has no end")
        return True

    def close(self) -> None:
        """Let go of connections; a later call makes new ones."""
        with self._lock:
            sessions, self._sessions = self._sessions, []
            self._local = threading.local()
        for session in sessions:
            session.close()

    def _status(self, submission_id: str) -> AttemptStatus | None:
        body = self._job("GET", submission_id, "", "submission_id")
        if body is None:
            return None
        if body["submission_id"] != submission_id or not isinstance(body.get("entrypoint"), str):
            raise self._not_ray(f"/api/jobs/{submission_id}", "it is not that job")
        status = parse_status(body)
        if status is None:
            raise _Unreadable(self._says(f"tells of {submission_id} what nobody here understands: {str(body)[:200]}"))
        return status

    def _job(self, verb: str, sid: str, tail: str, key: str, limit_s: float | None = None) -> dict[str, Any] | None:
        """A request about one submission: an object that has ``key``, or None where Ray knows no such job."""
        path = f"/api/jobs/{quote(sid, safe='')}{tail}"
        answer = self._ask(verb, path, expect=(200, 404), limit_s=limit_s)
        if answer.status == 404:
            self._check_unknown(answer, sid, path)
            return None
        body = answer.json()
        if not isinstance(body, dict) or key not in body:
            raise self._not_ray(path, f"it has no {key!r}")
        return body

    def _check_unknown(self, answer: Answer, sid: str, path: str) -> None:
        """A proxy in front of a dead head also says 404, and would make us believe that the job is lost."""
        if answer.text.strip() != NO_SUCH_JOB.format(sid):
            raise self._not_ray(path, "its 404 is not Ray's")

    def _deliver(self, name: str, file: Path) -> None:
        path = f"/api/packages/gcs/{quote(name, safe='')}"
        answer = self._ask("GET", path, expect=(200, 404))
        if answer.status == 200 and not answer.text:
            return
        if answer.status == 200 or "does not exist" not in answer.text or name not in answer.text:
            raise self._not_ray(path, "neither a yes nor a no of Ray's")
        try:
            size = file.stat().st_size
            with file.open("rb") as data:
                limit_s = self._timeout_s + size / MIN_BYTES_PER_S
                put = self._ask("PUT", path, data=data, expect=(200, 400, 413, 500), limit_s=limit_s)
        except OSError as error:
            raise LaunchRefused(f"package {name} cannot be read here: {error.strerror or error}") from error
        if put.status == 500 and "exceeds the maximum size" not in put.text:
            raise ClusterUnreachable(self._says(f"could not take package {name}: {last_words(put.text)}"))
        if put.status != 200:
            raise LaunchRefused(self._says(f"refused package {name} ({size} bytes): {last_words(put.text)}"))

    def _read_gpus(self) -> float | None:
        now = time.monotonic()
        with self._lock:
            if now - self._gpus_tried < (GPUS_TTL_S if self._gpus is not None else 1.0):
                return self._gpus
            self._gpus_tried = now
        try:
            answer = self._ask("GET", "/api/v0/nodes?limit=10000", limit_s=min(CONNECT_S, self._timeout_s))
            gpus = parse_gpus(answer.json())
        except ClusterUnreachable:
            gpus = None
        with self._lock:
            if gpus is not None:
                self._gpus, self._gpus_read = gpus, now
            elif now - self._gpus_read > GPUS_HELD_S:
                self._gpus = None
            return self._gpus

    def _ask(
        self,
        verb: str,
        path: str,
        *,
        data: Any = None,
        expect: tuple[int, ...] = (200,),
        limit_s: float | None = None,
        take: Callable[[bytes], bool] | None = None,
    ) -> Answer:
        """One request; raises ClusterUnreachable unless Ray answers with an ``expect``-ed status within ``limit_s``. The body
        of a 200 goes to ``take`` where that is given, in pieces, until it wants no more."""
        limit, begun = self._timeout_s if limit_s is None else limit_s, False

        def passed_on(chunk: bytes) -> bool:
            nonlocal begun
            begun = True
            return take is not None and take(chunk)

        sink = passed_on if take is not None else None
        try:
            answer = self._send(verb, path, data, limit, sink)
        except requests.ConnectionError as error:
            # A kept connection that the far end closed meanwhile; asking again is harmless only for a question.
            if verb != "GET" or begun or _never_sent(error) or _timed_out(error):
                raise self._no_answer(error) from error
            try:
                answer = self._send(verb, path, data, limit, sink)
            except requests.RequestException as again:
                raise self._no_answer(again) from again
        except requests.RequestException as error:
            raise self._no_answer(error) from error
        if answer.status in (401, 403):
            raise ClusterAccessDenied(
                self._says("wants a token, and none is configured" if self._token is None else "does not accept our token")
                + f" (HTTP {answer.status}); set token_env or token_file of the region",
                maybe_sent=False,
            )
        if 300 <= answer.status < 400:
            raise self._not_ray(path, "a redirect; give the address where Ray's dashboard itself listens")
        if answer.status not in expect:
            raise self._not_ray(path, f"HTTP {answer.status}: {last_words(answer.text, 120)}")
        if "html" in answer.content_type:
            raise self._not_ray(path, f"a web page with HTTP {answer.status}")
        return answer

    def _send(self, verb: str, path: str, data: Any, limit_s: float, take: Callable[[bytes], bool] | None = None) -> Answer:
        if hasattr(data, "seek"):
            data.seek(0)
        deadline = time.monotonic() + limit_s
        with self._session().request(
            verb,
            self._base + path,
            data=data,
            timeout=(min(CONNECT_S, limit_s), limit_s),
            allow_redirects=False,
            stream=True,
            headers={"Content-Type": "application/json"} if isinstance(data, bytes) else None,
        ) as response:
            # A socket's time-out starts anew with each byte; the deadline is for the answer as a whole.
            chunks, size = list[bytes](), 0
            for chunk in response.iter_content(1 << 16):
                if take is not None and response.status_code == 200:
                    if not take(chunk):
                        break
                else:
                    chunks.append(chunk)
                    size += len(chunk)
                if size > MAX_ANSWER_BYTES:
                    raise self._not_ray(path, f"it has more than {MAX_ANSWER_BYTES >> 20} MiB")
                if time.monotonic() > deadline:
                    raise requests.ReadTimeout(f"the answer took longer than {limit_s:g} s")
            text = b"".join(chunks).decode("utf-8", "replace")
            return Answer(response.status_code, response.headers.get("Content-Type", ""), text)

    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = requests.Session()
            # A .netrc entry would replace our token, and a proxy meant for the internet would hide the cluster.
            session.trust_env = False
            session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True
            session.headers["User-Agent"] = "gridshift"
            if self._token is not None:
                bearer = f"Bearer {self._token}"
                session.headers.update({"Authorization": bearer, "X-Ray-Authorization": bearer})
            for scheme in ("http://", "https://"):
                session.mount(scheme, HTTPAdapter(pool_connections=1, pool_maxsize=1, max_retries=0))
            self._local.session = session
            with self._lock:
                self._sessions.append(session)
        return session

    def _says(self, what: str) -> str:
        return f"the cluster of {self.region} at {self._base} {what}"

    def _not_ray(self, path: str, why: str) -> ClusterUnreachable:
        return ClusterUnreachable(self._says(f"gave an answer to {path} that is not Ray's: {why}"))

    def _no_answer(self, error: requests.RequestException) -> ClusterUnreachable:
        if _timed_out(error):
            return ClusterUnreachable(self._says("did not answer in time"))
        if _never_sent(error):
            return ClusterUnreachable(self._says("cannot be reached: no connection"), maybe_sent=False)
        return ClusterUnreachable(self._says(f"did not answer: {type(error).__name__}"))


def _sizes(submission: Submission) -> str:
    total, fields = body_size(submit_body(submission))
    return f"this one has {total:,} bytes ({', '.join(f'{name} {size:,}' for name, size in fields.items())})"


def _never_sent(error: requests.RequestException) -> bool:
    """Whether not even a connection was made."""
    if isinstance(error, requests.ConnectTimeout):
        return True
    reason = getattr(error.args[0], "reason", None) if error.args else None
    return isinstance(reason, NewConnectionError | ConnectTimeoutError)


def _timed_out(error: requests.RequestException) -> bool:
    """Whether a connection was made and then nothing came; in the midst of a body it is told as a ConnectionError."""
    if isinstance(error, requests.ReadTimeout):
        return True
    return bool(error.args) and isinstance(error.args[0], ReadTimeoutError)
