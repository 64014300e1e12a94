"""The knobs of a server that are turned over HTTP: requests at work at once, and replicas of Ray Serve. It decides nothing.

Ray's side is as in Ray 2.60, dashboard/modules/serve/serve_head.py and serve/schema.py.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import urllib3

from dispatcher.errors import GridshiftError

CONNECT_S, READ_S = 2.0, 5.0
MAX_BYTES = 8 * 2**20


class KnobError(GridshiftError):
    """A knob could not be turned; the message says why."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """A deployment of Ray Serve as Ray tells of it: replicas wanted and running, and the GPUs of each (0: none are asked)."""

    target: int
    running: int
    gpus_per_replica: float


class _Http:
    def __init__(self, url: str, token: str | None) -> None:
        self.url = url
        # Ray takes either, a proxy in front of it may keep the first for itself.
        bearer = {"Authorization": f"Bearer {token}", "X-Ray-Authorization": f"Bearer {token}"} if token else {}
        self._headers = {"Accept": "application/json", "User-Agent": "gridshift", **bearer}
        self._pool = urllib3.PoolManager(maxsize=1, retries=False, timeout=urllib3.Timeout(connect=CONNECT_S, read=READ_S))

    def ask(self, method: str, path: str = "", body: Mapping[str, Any] | None = None) -> tuple[int, str]:
        """(status, what was answered). Raises KnobError where nothing is."""
        given: dict[str, Any] = {} if body is None else {"body": json.dumps(body)}
        headers = self._headers if body is None else {**self._headers, "Content-Type": "application/json"}
        try:
            answer = self._pool.request(
                method, f"{self.url}{path}", headers=headers, redirect=False, preload_content=False, **given
            )
            try:
                text = answer.read(MAX_BYTES + 1)
            finally:
                answer.close()
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise KnobError(f"{self.url} cannot be asked ({type(error).__name__})") from None
        if len(text) > MAX_BYTES:
            raise KnobError(f"{self.url} answers more than {MAX_BYTES >> 20} MiB")
        return answer.status, text.decode("utf-8", "replace")

    def close(self) -> None:
        self._pool.clear()


class ConcurrencyKnob:
    """An operator's own endpoint that limits the requests at work at once. Servers such as vLLM have none that does so at run
    time: a gateway in front of them may."""

    def __init__(self, url: str, token: str | None) -> None:
        self._http = _Http(url, token)

    def put(self, most: int) -> None:
        """Ask for a limit. Raises KnobError unless the answer says that it holds."""
        status, text = self._http.ask("PUT", body={"max_concurrency": most})
        if status != 200:
            raise KnobError(f"{self._http.url} answers {status} to max_concurrency {most}: {text[:200]}")
        try:
            holds = json.loads(text)["max_concurrency"]
        except (ValueError, KeyError, TypeError):
            raise KnobError(f"{self._http.url} does not answer with the max_concurrency that holds") from None
        if isinstance(holds, bool) or holds != most:
            raise KnobError(f"{self._http.url} holds max_concurrency {str(holds)[:20]} where {most} was asked for")

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()


class RayServeKnob:
    """The replicas of one deployment, through the dashboard of its cluster."""

    def __init__(self, url: str, token: str | None, application: str, deployment: str) -> None:
        self._http, self._application, self._deployment = _Http(url, token), application, deployment

    def read(self) -> Deployment:
        """How it stands. Raises KnobError."""
        status, text = self._http.ask("GET", "/api/serve/applications/")
        if status != 200:
            raise KnobError(f"{self._http.url} answers {status} when asked for its Serve applications: {text[:200]}")
        try:
            applications = json.loads(text)["applications"]
            application = applications.get(self._application)
            if application is None:
                known = ", ".join(sorted(applications)) or "none"
                raise KnobError(f"there is no Serve application {self._application!r} at {self._http.url}; known are: {known}")
            one = application["deployments"].get(self._deployment)
            if one is None:
                known = ", ".join(sorted(application["deployments"])) or "none"
                raise KnobError(f"{self._application} has no deployment {self._deployment!r}; known are: {known}")
            # Older versions of Ray know no external scalers, and say nothing of them.
            if not application.get("external_scaler_enabled", False):
                raise KnobError(
                    f"{self._application} takes no external scaling; deploy it with external_scaler_enabled: true and without "
                    "autoscaling of Ray's own"
                )
            running = sum(replica["state"] == "RUNNING" for replica in one["replicas"])
            gpus = float((one.get("required_resources") or {}).get("GPU", 0.0))
            return Deployment(int(one["target_num_replicas"]), running, gpus)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise KnobError(f"{self._http.url} does not answer as Ray's dashboard does; is it one?") from None

    def scale(self, replicas: int) -> None:
        """Ask for so many replicas; Ray starts and stops them by and by. Raises KnobError."""
        application, deployment = quote(self._application, safe=""), quote(self._deployment, safe="")
        path = f"/api/v1/applications/{application}/deployments/{deployment}/scale"
        status, text = self._http.ask("POST", path, {"target_num_replicas": replicas})
        if status != 200:
            try:
                why = str(json.loads(text)["error"])
            except (ValueError, KeyError, TypeError):
                why = text
            raise KnobError(f"Ray Serve answers {status} when asked for {replicas} replicas: {why[:300]}")

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()
