"""A control plane for tests of the client: it keeps jobs and packages in memory and runs nothing by itself."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Reply = tuple[int, Any]


def error(status: int, message: str, *problems: tuple[str, object, str]) -> Reply:
    """An error as the API tells it."""
    listed = [{"field": f, "value": v, "remedy": r} for f, v, r in problems]
    return status, {"error": {"message": message, "problems": listed}}


class FakeApi:
    """Listens on loopback from start() to stop(); ``port`` may be given, to come back at the same place."""

    def __init__(self, port: int = 0) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.results: dict[str, bytes] = {}
        self.logs: dict[str, str] = {}
        self.packages: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.answers: dict[tuple[str, str], Callable[[bytes], Reply]] = {}
        self.self_answer: dict[str, Any] = {"job_id": "j", "attempt": 1, "current": True, "checkpoint_requested": False}
        self.acks: list[dict[str, Any]] = []
        self.max_result = 1 << 20
        self.token: str | None = None
        self.drop_answers = 0  # take the next so many POSTs of a job without answering
        self._port = port
        self._server: ThreadingHTTPServer | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> "FakeApi":
        """Listen."""
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def _any(self) -> None:
                api._answer(self)

            do_GET = do_POST = do_PUT = do_DELETE = _any

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Stop listening."""
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    def finish(self, job_id: str, state: str, reason: str = "", result: bytes | None = None) -> None:
        """End a job."""
        if result is not None:
            self.results[job_id] = result
        self.jobs[job_id] |= {"state": state, "reason": reason, "has_result": job_id in self.results}

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        query = {k: v[0] for k, v in parse_qs(url.query).items()}
        self.requests.append((handler.command, url.path, query))
        if self.token and handler.headers.get("Authorization") != f"Bearer {self.token}":
            status, answer = error(401, "a token is needed")
        elif (handler.command, url.path) in self.answers:
            status, answer = self.answers[handler.command, url.path](body)
        else:
            status, answer = self._route(handler.command, url.path, query, body)
        if self.drop_answers and handler.command == "POST" and url.path == "/v1/jobs":
            self.drop_answers -= 1
            handler.close_connection = True
            handler.connection.close()
            return
        payload = answer if isinstance(answer, bytes) else b"" if answer is None else json.dumps(answer).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(payload)))
        handler.end_headers()
        handler.wfile.write(payload)

    def _route(self, method: str, path: str, query: dict[str, str], body: bytes) -> Reply:
        parts = path.strip("/").split("/")
        match (method, parts):
            case ("POST", ["v1", "jobs"]):
                return self._submit(json.loads(body))
            case ("GET", ["v1", "jobs"]):
                return self._page(query)
            case (_, ["v1", "jobs", job_id, *rest]) if job_id in self.jobs:
                return self._job(method, job_id, rest)
            case ("GET", ["api", "packages", "gcs", name]):
                return (200, self.packages[name]) if name in self.packages else (404, b"not here")
            case ("PUT", ["api", "packages", "gcs", name]):
                self.packages[name] = body
                return 200, None
            case ("GET", ["v1", "self"]):
                return 200, self.self_answer
            case ("POST", ["v1", "self", "checkpoint"]):
                self.acks.append(json.loads(body))
                return 200, {}
            case ("PUT", ["v1", "self", "result"]):
                if len(body) > self.max_result:
                    return error(413, "too large")
                self.results["self"] = body
                return 204, None
        return error(404, "no such thing")

    def _submit(self, body: dict[str, Any]) -> Reply:
        job_id = body["submission_id"]
        if job_id in self.jobs:
            return error(409, f"job {job_id} exists already")
        if body.get("metadata", {}).get("gridshift.deadline") == "yesterday":
            return error(422, "1 problem", ("gridshift.deadline", "yesterday", "give a time to come"))
        job = {**body, "id": job_id, "state": "queued", "reason": "waits", "has_result": False}
        self.jobs[job_id] = job
        return 201, job

    def _page(self, query: dict[str, str]) -> Reply:
        found = [job for job in self.jobs.values() if query.get("state") in (None, job["state"])]
        start, size = int(query.get("cursor", 0)), int(query.get("limit", 100))
        more = start + size < len(found)
        return 200, {"jobs": found[start : start + size], "next_cursor": str(start + size) if more else None}

    def _job(self, method: str, job_id: str, rest: list[str]) -> Reply:
        job = self.jobs[job_id]
        match (method, rest):
            case ("GET", []):
                return 200, job
            case ("DELETE", []):
                if job["state"] not in ("succeeded", "failed", "cancelled"):
                    return error(409, f"Attempted to delete job '{job_id}', but it is in a non-terminal state ({job['state']})")
                del self.jobs[job_id]
                return 200, {"id": job_id, "deleted": True}
            case ("GET", ["logs"]):
                return 200, self.logs.get(job_id, "").encode()
            case ("GET", ["events"]):
                return 200, {"events": [{"seq": 1, "at": "2026-01-01T00:00:00Z", "kind": "submitted", "new_state": "queued",
                                         "old_state": None, "reason": "asked for", "attempt": 0, "region": None}]}  # fmt: skip
            case ("GET", ["result"]) if job_id in self.results:
                return 200, self.results[job_id]
            case ("POST", ["cancel"]):
                self.finish(job_id, "cancelled", "cancelled before it started")
                return 200, job
            case ("POST", ["pause"]):
                job["held"] = True
                return 200, job
            case ("POST", ["run-now"]):
                job |= {"held": False, "run_now": True, "reason": "its owner asked for it to run now, whatever power costs"}
                return 200, job
            case ("POST", ["resume"]):
                if not job.get("held"):
                    return error(409, f"job {job_id} is not held")
                job["held"] = False
                return 200, job
        return error(404, "no such thing")
