"""The console's way to the control plane: HTTP with time limits, and every failure as a sentence with a remedy.

It knows paths and status codes, and nothing of what the answers mean.
"""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import requests

#: Seconds to wait for a connection and for an answer; the page waits with us, so both are short.
TIMEOUT_S = (2.0, 6.0)
#: Largest answer that is read, bytes: more would only stall the page.
MAX_BYTES = 32_000_000
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}

Params = Mapping[str, str | int]


class ApiError(Exception):
    """A request that brought no answer. ``status`` is HTTP's (None: nobody answered), ``remedy`` what to do about it."""

    def __init__(self, message: str, remedy: str = "", status: int | None = None) -> None:
        super().__init__(message)
        self.message, self.remedy, self.status = message, remedy, status

    @property
    def fatal(self) -> bool:
        """Whether nothing else of this control plane can be had either."""
        return self.status in (None, 401, 403, 421)


def job_path(job_id: str, tail: str = "") -> str:
    """The path of a job, whatever characters were typed as its id."""
    return f"/v1/jobs/{quote(job_id, safe='')}{tail}"


class _Bearer(requests.auth.AuthBase):
    """Our token, and never one from a .netrc."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class Api:
    """One browser session's connection. Reads are remembered for a few seconds, failures too, so that several parts of the
    page ask once; ``clock`` is monotonic seconds."""

    def __init__(self, address: str, token: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self.address = address.rstrip("/")
        #: Clock reading at the last answer of the control plane; None before the first.
        self.answered_at: float | None = None
        self._clock = clock
        self._kept: dict[tuple[str, tuple[tuple[str, str | int], ...]], tuple[float, Any]] = {}
        self._problem = self._address_problem()
        #: Whether requests carry a token, which a link for a browser does not.
        self.has_token = bool(token.strip())
        self._session = requests.Session()
        self._session.auth = _Bearer(token.strip())
        # A proxy of the environment cannot reach a control plane on this machine.
        self._session.trust_env = not self._problem and urlsplit(self.address).hostname not in _LOOPBACK

    def _address_problem(self) -> ApiError | None:
        try:
            parts = urlsplit(self.address)
            fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:
            fine = False
        remedy = "Set it to the control plane's URL, such as http://127.0.0.1:8700, and start the console again."
        return None if fine else ApiError(f"GRIDSHIFT_ADDRESS is {self.address!r}, which is not a URL", remedy)

    def silence_s(self) -> float | None:
        """Seconds since the control plane last answered; None when it never did."""
        return None if self.answered_at is None else self._clock() - self.answered_at

    def read(self, path: str, params: Params | None = None, keep_s: float = 1.0) -> Any:
        """The JSON at ``path``, not older than ``keep_s`` seconds. Raises ApiError."""
        key = (path, tuple(sorted((params or {}).items())))
        now = self._clock()
        held = self._kept.get(key)
        if held is None or now - held[0] > keep_s:
            self._kept = {k: v for k, v in self._kept.items() if now - v[0] < 60.0}
            try:
                answer: Any = self._call("GET", path, params)
            except ApiError as error:
                answer = error
            held = self._kept[key] = (self._clock(), answer)
        if isinstance(held[1], ApiError):
            raise held[1]
        return held[1]

    def act(self, path: str, body: Mapping[str, Any] | None = None, method: str = "POST") -> Any:
        """Send ``body`` to ``path`` and return the JSON that comes back; what was remembered is forgotten. Raises ApiError."""
        self._kept.clear()
        return self._call(method, path, None, body)

    def ask(self, path: str) -> Any:
        """The JSON at ``path`` as it is now, which is not remembered; from any thread. Raises ApiError."""
        return self._call("GET", path, None)

    def _call(self, method: str, path: str, params: Params | None, body_json: Mapping[str, Any] | None = None) -> Any:
        if self._problem is not None:
            raise self._problem
        try:
            with self._session.request(
                method,
                self.address + path,
                params=params,
                json=body_json,
                timeout=TIMEOUT_S,
                allow_redirects=False,
                stream=True,
            ) as response:
                body = self._body(response)
        except requests.Timeout:
            remedy = "It may be overloaded or stopped: look at its log, and run `gridshift doctor` beside it."
            raise ApiError(f"no answer from {self.address} within {TIMEOUT_S[1]:g} s", remedy) from None
        except (requests.RequestException, OSError) as error:
            remedy = "Start it with `gridshift serve` (or `gridshift up`), or set GRIDSHIFT_ADDRESS to where it listens."
            raise ApiError(f"no connection to {self.address}: {_cause(error)}", remedy) from None
        return self._value(path, response.status_code, body)

    def _body(self, response: requests.Response) -> bytes:
        body, until = bytearray(), self._clock() + TIMEOUT_S[1]
        for chunk in response.iter_content(1 << 16):
            body += chunk
            if len(body) > MAX_BYTES:
                raise ApiError(f"the answer is over {MAX_BYTES / 1e6:g} MB", "Narrow what is shown.", response.status_code)
            if self._clock() > until:  # an answer that drips never meets the time limit of a single read
                raise requests.Timeout
        return bytes(body)

    def _value(self, path: str, status: int, body: bytes) -> Any:
        foreign = ApiError(
            f"what answers at {self.address} is not a gridshift control plane (HTTP {status} for {path})",
            "Set GRIDSHIFT_ADDRESS to the control plane's URL and start the console again.",
        )
        try:
            value = json.loads(body)
        except ValueError:
            if 500 <= status < 600:
                raise ApiError(f"the control plane answered HTTP {status} for {path}", "Look at its log.", status) from None
            raise foreign from None
        if 200 <= status < 300:
            self.answered_at = self._clock()
            return value
        error = value.get("error") if isinstance(value, dict) else None
        if not isinstance(error, dict):
            raise foreign
        self.answered_at = self._clock()
        problems = [f"{p.get('field')}: {p.get('remedy')}" for p in error.get("problems") or () if isinstance(p, dict)]
        remedy = {
            401: "Make a token with `gridshift tokens create console`, set GRIDSHIFT_TOKEN to it and start the console again.",
            503: "Its database may be locked or gone: look at its log, and run `gridshift doctor` beside it.",
        }.get(status, "")
        raise ApiError("; ".join([str(error.get("message")), *problems]), remedy, status)


def _cause(error: BaseException) -> str:
    """The innermost reason in words, without the noise of the layers above it."""
    seen: BaseException = error
    while (inner := seen.__cause__ or seen.__context__) is not None:
        seen = inner
    text = seen.strerror if isinstance(seen, OSError) and seen.strerror else str(seen)
    return (text or type(seen).__name__).lower()[:200]
