"""The Python client of gridshift, and the helpers that user code calls inside a job.

It speaks HTTP and knows nothing of the rest of gridshift: this one file is shipped to clusters, so it needs the standard
library and ``requests`` only (cloudpickle, or Ray's copy of it, for function jobs), on Python 3.9 or later.

A script that submits::

    client = Client("http://127.0.0.1:8700")
    job = client.submit("python train.py", deadline="8h", runtime="2h", pausable="checkpoint", working_dir=".")
    job.wait()

A job that can be paused::

    for step in range(load_last_step(), steps):
        train(step)
        if checkpoint_requested():
            save(checkpoint_dir() / "last.pt", step)
            if checkpoint_saved():
                sys.exit(0)  # no work after this point: it would be done twice
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import hashlib
import importlib
import inspect
import io
import json
import os
import pickle
import re
import secrets
import shlex
import signal
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn, TypeVar
from urllib.parse import quote, urlsplit

import requests

DEFAULT_ADDRESS = "http://127.0.0.1:8700"
ENDED = frozenset({"succeeded", "failed", "cancelled"})
#: Ray takes no larger package; the control plane's own limit may be lower.
MAX_PACKAGE_BYTES = 512 * 1024 * 1024

_Objects = list[dict[str, Any]]
_TIMEOUT_S = (5.0, 60.0)  # to connect, between bytes
_RECONNECT_S = 300.0  # how long waiting goes on while the control plane does not answer
_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


# --- errors -------------------------------------------------------------------------------------------------------


class ClientError(Exception):
    """Something went wrong between this program and gridshift."""


class NotReachable(ClientError, ConnectionError):
    """The control plane did not answer."""


class GridshiftApiError(ClientError):
    """The control plane (or this client, before asking it) refused.

    ``status`` is the HTTP status, None when the client itself refused. ``problems`` lists {"field", "value", "remedy"}.
    """

    def __init__(self, message: str, status: int | None = None, problems: Iterable[Mapping[str, Any]] = ()) -> None:
        self.message, self.status, self.problems = message, status, [dict(p) for p in problems]
        super().__init__(message)

    def __str__(self) -> str:
        lines = [problem_line(p) for p in self.problems]
        return "\n".join([self.message, *(line for line in lines if line != self.message)])


class JobFailed(ClientError):
    """The job ended without bringing a result; the message has its reason and the end of its log."""


class JobCancelled(ClientError):
    """The job was cancelled."""


class RemoteError(ClientError):
    """A function failed on the cluster and its exception could not be brought back as an object; the message tells it."""


class RemoteTraceback(Exception):
    """The traceback of an exception raised on the cluster; it is the ``__cause__`` of the exception here."""

    def __str__(self) -> str:
        return "\n\n" + str(self.args[0])


def problem_line(problem: Mapping[str, Any]) -> str:
    """A problem as ``field: value: remedy``."""
    return f"{problem.get('field', '')}: {problem.get('value')!r}: {problem.get('remedy', '')}"


def _refuse(field: str, value: object, remedy: str) -> NoReturn:
    raise GridshiftApiError("bad input", None, [{"field": field, "value": value, "remedy": remedy}])


# --- the client ---------------------------------------------------------------------------------------------------


class _Bearer(requests.auth.AuthBase):
    """Our token, and never one from a .netrc."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _sendable(token: str | None, field: str) -> str | None:
    """A token as it can be sent: what surrounds it, such as the newline of a file, is left out. Raises GridshiftApiError,
    without the token, for one that no header can carry; requests and http.client would tell it in their message."""
    token = (token or "").strip()
    if not all(" " <= char <= "~" or "\xa0" <= char <= "\xff" for char in token):
        _refuse(field, "(not shown)", "has characters that no HTTP header can carry; give the token alone, as it was printed")
    return token or None


def open_session(address: str, token: str | None) -> requests.Session:
    """What speaks to the control plane at ``address``; close it."""
    session = requests.Session()
    session.auth = _Bearer(token)
    # A proxy of the environment cannot know this machine's own loopback.
    session.trust_env = urlsplit(address).hostname not in {"127.0.0.1", "localhost", "::1"}
    return session


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _names_checked(method: _Method) -> _Method:
    """A method that, called with an argument it does not have, says which it has that is like it."""
    known = tuple(inspect.signature(method).parameters)

    @functools.wraps(method)
    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_names(kwargs, known)
        return method(*args, **kwargs)

    checked.known = known  # type: ignore[attr-defined]
    return checked  # type: ignore[return-value]


def _check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Raises TypeError for arguments of submit() that are not ``known``, with the nearest right ones."""
    known = [name for name in known if name != "self"]
    for name in given:
        if name not in known:
            like = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            meant = f"did you mean {like[0]!r}?" if like else "it has " + ", ".join(known)
            raise TypeError(f"submit() has no argument {name!r}; {meant}")


class Client:
    """A connection to one control plane.

    ``address`` defaults to GRIDSHIFT_ADDRESS, in a job to GRIDSHIFT_URL, else http://127.0.0.1:8700; ``token`` to
    GRIDSHIFT_TOKEN; blanks and newlines around it do not matter. Methods raise GridshiftApiError when the control plane refuses
    and NotReachable when it does not answer.
    """

    def __init__(self, address: str | None = None, token: str | None = None) -> None:
        env = os.environ
        self.address = (address or env.get("GRIDSHIFT_ADDRESS") or env.get("GRIDSHIFT_URL") or DEFAULT_ADDRESS).rstrip("/")
        parts = urlsplit(self.address)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            _refuse("address", self.address, f"give a URL such as {DEFAULT_ADDRESS}")
        given, field = (token, "token") if token else (env.get("GRIDSHIFT_TOKEN"), "GRIDSHIFT_TOKEN")
        self._http = open_session(self.address, _sendable(given, field))

    def __reduce__(self) -> tuple[Any, ...]:
        # A client that travels to a cluster with a function leaves its token and address behind.
        return (Client, ())

    def __repr__(self) -> str:
        return f"Client({self.address!r})"

    def call(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        data: bytes | IO[bytes] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> requests.Response:
        """One HTTP request. Raises GridshiftApiError for any status but 2xx, NotReachable when no answer came."""
        headers = {"Content-Type": "application/octet-stream"} if data is not None else {}
        try:
            response = self._http.request(
                method,
                self.address + path,
                json=json,
                data=data,
                params={k: v for k, v in (params or {}).items() if v is not None},
                headers=headers,
                timeout=_TIMEOUT_S,
                allow_redirects=False,
            )
        except (requests.ConnectionError, requests.Timeout) as error:
            raise NotReachable(
                f"gridshift at {self.address} does not answer ({type(error).__name__}); is it running?"
            ) from error
        except (requests.RequestException, UnicodeError) as error:
            raise ClientError(f"{method} {self.address}{path}: {error}") from error
        if not 200 <= response.status_code < 300:
            raise _api_error(response)
        return response

    def get_json(self, path: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """GET an object. Raises ClientError when the answer is not one (something else listens there)."""
        return _object(self.call("GET", path, params=params))

    @_names_checked
    def submit(
        self,
        entrypoint: str | Sequence[str],
        *,
        deadline: str | float | timedelta | datetime | None = None,
        earliest: str | float | timedelta | datetime | None = None,
        runtime: str | float | timedelta | None = None,
        gpus: float | None = None,
        power_w: float | None = None,
        pausable: str | bool | None = None,
        checkpoint_s: str | float | None = None,
        restart_s: str | float | None = None,
        min_cap: float | None = None,
        regions: str | Iterable[str] | None = None,
        data_gb: float | None = None,
        data_region: str | None = None,
        tier: str | None = None,
        priority: int | None = None,
        group: str | None = None,
        team: str | None = None,
        max_price: float | None = None,
        max_carbon: float | None = None,
        gpu_types: str | Mapping[str, float] | None = None,
        freeze_max_s: str | float | None = None,
        max_attempts: int | None = None,
        num_gpus: float | None = None,
        num_cpus: float | None = None,
        memory: int | None = None,
        resources: Mapping[str, float] | None = None,
        label_selector: Mapping[str, str] | None = None,
        working_dir: str | Path | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        metadata: Mapping[str, str] | None = None,
        submission_id: str | None = None,
    ) -> Job:
        """Submit a shell command as a job; it is durably stored when this returns.

        ``deadline`` to ``max_attempts`` are the ``gridshift.*`` metadata keys of the same names (durations "90m", "6h", "2d",
        seconds or timedelta; times ISO 8601 with offset or aware datetimes; ``power_w`` in W, ``data_gb`` in GB); the control
        plane checks them. ``num_gpus``, ``num_cpus``, ``memory`` (bytes), ``resources`` and ``label_selector`` are what Ray
        reserves for the entrypoint. A local ``working_dir`` is zipped and uploaded, less what .gitignore, .rayignore and
        ``runtime_env["excludes"]`` name.
        """
        flexibility = {
            "deadline": deadline,
            "earliest": earliest,
            "runtime": runtime,
            "gpus": gpus,
            "power_w": power_w,
            "pausable": pausable,
            "checkpoint_s": checkpoint_s,
            "restart_s": restart_s,
            "min_cap": min_cap,
            "regions": regions,
            "data_gb": data_gb,
            "data_region": data_region,
            "tier": tier,
            "priority": priority,
            "group": group,
            "team": team,
            "max_price": max_price,
            "max_carbon": max_carbon,
            "gpu_types": gpu_types,
            "freeze_max_s": freeze_max_s,
            "max_attempts": max_attempts,
        }
        env = self._runtime_env(runtime_env, working_dir)
        body = {
            "entrypoint": entrypoint if isinstance(entrypoint, str) else shlex.join(entrypoint),
            "submission_id": submission_id or f"gs-{secrets.token_hex(6)}",
            "runtime_env": env,
            "metadata": _metadata(metadata, flexibility),
            "entrypoint_num_cpus": num_cpus,
            "entrypoint_num_gpus": num_gpus,
            "entrypoint_memory": memory,
            "entrypoint_resources": dict(resources) if resources is not None else None,
            "entrypoint_label_selector": dict(label_selector) if label_selector is not None else None,
        }
        return Job(self, self._post_once({k: v for k, v in body.items() if v is not None}))

    def _post_once(self, body: dict[str, Any]) -> dict[str, Any]:
        """POST a job. The id is ours, so that a request whose answer got lost can be sent again without a second job."""
        path = f"/v1/jobs/{quote(body['submission_id'], safe='')}"
        maybe_stored = False
        for pause_s in (0.2, 0.5, 1.0, 2.0, 4.0, None):
            try:
                return _object(self.call("POST", "/v1/jobs", json=body))
            except NotReachable as error:
                cause = error.__cause__
                never_sent = isinstance(cause, requests.exceptions.ConnectTimeout) or "refused" in str(cause)
                maybe_stored = maybe_stored or not never_sent
                if pause_s is None or not maybe_stored:
                    raise
                time.sleep(pause_s)
            except GridshiftApiError as error:
                if error.status == 409 and maybe_stored:
                    stored = self.get_json(path)
                    if stored.get("entrypoint") == body["entrypoint"]:
                        return stored
                raise
        raise AssertionError("unreachable")

    def _runtime_env(
        self, runtime_env: Mapping[str, Any] | None, working_dir: str | Path | None, extra: Mapping[str, bytes] | None = None
    ) -> dict[str, Any] | None:
        """The runtime_env as a cluster can use it: local folders and files of the caller replaced."""
        env = dict(runtime_env or {})
        if working_dir is not None:
            if env.get("working_dir") not in (None, working_dir):
                _refuse("working_dir", str(working_dir), "give it as argument or in runtime_env, not both")
            env["working_dir"] = str(working_dir)
        excludes = env.pop("excludes", None) or []
        place = env.get("working_dir")
        if place is not None and "://" in str(place):
            if extra is not None:
                _refuse("working_dir", place, "a function job needs a local folder; its files are shipped with the function")
        elif place is not None or extra is not None:
            env["working_dir"] = self.upload(Path(place).expanduser() if place is not None else None, excludes, extra or {})
        for module in env.get("py_modules") or []:
            if not isinstance(module, str) or "://" not in module:
                _refuse("runtime_env.py_modules", str(module), "put local code into working_dir, or give the URI of a package")
        if isinstance(env.get("pip"), str):
            lines = (line.strip() for line in Path(env["pip"]).expanduser().read_text(encoding="utf-8").splitlines())
            env["pip"] = [line for line in lines if line and not line.startswith("#")]
        return env or None

    def upload(self, folder: Path | None, excludes: Iterable[str] = (), extra: Mapping[str, bytes] | None = None) -> str:
        """Upload a folder's contents (and ``extra`` files by name) as a package, unless it is there; returns its URI."""
        entries = package_entries(folder, excludes, extra or {})
        name = package_name(entries)
        if self._has_package(name):
            return f"gcs://{name}"
        with tempfile.TemporaryFile() as file:
            name = write_package(entries, file)  # a file may have changed since: the name is that of what was packed
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            try:
                self.call("PUT", f"/api/packages/gcs/{name}", data=file)
            except NotReachable as error:
                # A server that refuses an upload for its size may hang up before the client has read why.
                hint = "; perhaps it is more than server.max_package_mb there" if size > 1_000_000 else ""
                raise NotReachable(f"the upload of a package of {size / 1e6:.1f} MB broke off{hint}: {error}") from error
        return f"gcs://{name}"

    def _has_package(self, name: str) -> bool:
        try:
            self.call("GET", f"/api/packages/gcs/{name}")
        except GridshiftApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def get(self, job: str | Job) -> Job:
        """A job as it stands now."""
        return Job(self, self.get_json(_job_path(job)))

    def list(self, *, state: str | None = None, team: str | None = None, limit: int | None = None) -> Iterator[Job]:
        """Jobs, newest first, page by page as they are needed; at most ``limit``."""
        cursor, left = None, limit
        while left is None or left > 0:
            size = 100 if left is None else min(left, 100)
            page = self.get_json("/v1/jobs", {"state": state, "team": team, "cursor": cursor, "limit": size})
            jobs = page["jobs"] if left is None else page["jobs"][:left]
            yield from (Job(self, data) for data in jobs)
            cursor = page.get("next_cursor")
            if cursor is None:
                return
            left = None if left is None else left - len(jobs)

    def cancel(self, job: str | Job) -> Job:
        """Cancel a job; a running one is stopped."""
        return Job(self, _object(self.call("POST", _job_path(job, "/cancel"))))

    def pause(self, job: str | Job) -> Job:
        """Hold a job: it is not started, or asked for a checkpoint and stopped, until it is resumed."""
        return Job(self, _object(self.call("POST", _job_path(job, "/pause"))))

    def resume(self, job: str | Job) -> Job:
        """Let a held job go on when its turn comes."""
        return Job(self, _object(self.call("POST", _job_path(job, "/resume"))))

    def run_now(self, job: str | Job) -> Job:
        """Let a waiting job start at once, whatever power costs, as soon as limits leave room."""
        return Job(self, _object(self.call("POST", _job_path(job, "/run-now"))))

    def delete(self, job: str | Job) -> None:
        """Take an ended job off the lists; its id stays used. Raises GridshiftApiError (409) for one that has not ended."""
        self.call("DELETE", _job_path(job))

    def logs(self, job: str | Job) -> str:
        """The log of all attempts as one text."""
        return self.call("GET", _job_path(job, "/logs")).content.decode("utf-8", errors="replace")

    def events(self, job: str | Job) -> _Objects:
        """What happened to a job, in order, each change with its reason."""
        events: _Objects = self.get_json(_job_path(job, "/events"))["events"]
        return events

    def wait(self, job: str | Job, timeout: float | None = None) -> Job:
        """The job once it has ended. Raises TimeoutError after ``timeout`` seconds; rides out a control plane that is away
        for up to five minutes."""
        return self._wait(job, timeout, lambda data: data["state"] in ENDED)

    def _wait(self, job: str | Job, timeout: float | None, done: Callable[[Mapping[str, Any]], bool]) -> Job:
        end = None if timeout is None else time.monotonic() + timeout
        silent_since: float | None = None
        pause_s, last = 0.1, "its state is not known: the control plane did not answer"
        while True:
            try:
                now = self.get(job)
                if done(now.data):
                    return now
                silent_since, last = None, f"it is {now.state}: {now.reason}"
            except (NotReachable, GridshiftApiError) as error:
                if isinstance(error, GridshiftApiError) and error.status not in {502, 503, 504}:
                    raise
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > _RECONNECT_S:
                    raise
            if end is not None and time.monotonic() + pause_s > end:
                pause_s = end - time.monotonic()
                if pause_s <= 0:
                    raise TimeoutError(f"job {_job_id(job)} has not ended after {timeout:g} s; {last}")
            time.sleep(pause_s)
            pause_s = min(2.0, max(pause_s, 0.05) * 1.5)

    def flexible(self, **options: Any) -> Callable[[Callable[..., Any]], FlexibleFunction]:
        """Turn a function into a job: ``@client.flexible(deadline="8h", num_gpus=1)``, then ``f.remote(...).result()``.

        ``options`` are the arguments of submit(), less the entrypoint. The function, its arguments and its result travel as
        pickles that the control plane never opens; caller and cluster need the same Python minor version. Modules of your
        own that the function imports must be in ``working_dir`` or installed on the cluster.
        """
        return lambda function: FlexibleFunction(self, function, options)


def _job_id(job: str | Job) -> str:
    return job if isinstance(job, str) else job.id


def _job_path(job: str | Job, tail: str = "") -> str:
    return f"/v1/jobs/{quote(_job_id(job), safe='')}{tail}"


def _object(response: requests.Response) -> dict[str, Any]:
    try:
        value = response.json()
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ClientError(f"{response.url} did not answer with a JSON object; is that gridshift?")
    return value


def _api_error(response: requests.Response) -> GridshiftApiError:
    status, text = response.status_code, response.text.strip()
    try:
        error = response.json()["error"]
        return GridshiftApiError(str(error["message"]), status, error.get("problems") or ())
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    if 300 <= status < 400:
        return GridshiftApiError(f"the address redirects to {response.headers.get('Location')}; use that address", status)
    return GridshiftApiError(f"HTTP {status}: {text[:500] or response.reason}", status)


def _metadata(metadata: Mapping[str, str] | None, flexibility: Mapping[str, Any]) -> dict[str, str] | None:
    """User metadata and flexibility in one, all strings, as the Ray Jobs API wants them."""
    merged = dict(metadata or {})
    for name, value in flexibility.items():
        if value is None:
            continue
        key = f"gridshift.{name}"
        if key in merged:
            _refuse(name, value, f"is given twice: as argument and as metadata {key!r}; leave one out")
        merged[key] = _text(value)
    return merged or None


def _text(value: Any) -> str:
    if value is False:
        return "no"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return ",".join(f"{k}:{v}" for k, v in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ",".join(str(v) for v in value)
    return str(value)


class Job:
    """A job as it stood when it was last asked for; ``data`` is the control plane's own JSON (see /docs there)."""

    def __init__(self, client: Client, data: Mapping[str, Any]) -> None:
        self._client = client
        self.data: Mapping[str, Any] = dict(data)

    @property
    def id(self) -> str:
        """Its id."""
        return str(self.data["id"])

    @property
    def state(self) -> str:
        """queued, launching, running, pausing, paused, succeeded, failed or cancelled."""
        return str(self.data["state"])

    @property
    def reason(self) -> str:
        """Why it is in that state, as a sentence."""
        return str(self.data.get("reason") or "")

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.state in ENDED

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, {self.state}: {self.reason})"

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def refresh(self) -> str:
        """Ask anew; returns the state."""
        self.data = self._client.get(self.id).data
        return self.state

    def status(self) -> str:
        """The state now."""
        return self.refresh()

    def wait(self, timeout: float | None = None) -> str:
        """Wait for the end; returns the state. Raises TimeoutError after ``timeout`` seconds."""
        self.data = self._client.wait(self.id, timeout).data
        return self.state

    def cancel(self) -> None:
        """Cancel it."""
        self.data = self._client.cancel(self.id).data

    def pause(self) -> None:
        """Hold it until it is resumed."""
        self.data = self._client.pause(self.id).data

    def resume(self) -> None:
        """Let it go on."""
        self.data = self._client.resume(self.id).data

    def run_now(self) -> None:
        """Let it start at once, whatever power costs."""
        self.data = self._client.run_now(self.id).data

    def delete(self) -> None:
        """Take it off the lists, once it has ended."""
        self._client.delete(self.id)

    def logs(self) -> str:
        """Its log so far."""
        return self._client.logs(self.id)

    def events(self) -> list[dict[str, Any]]:
        """What happened to it."""
        return self._client.events(self.id)


# --- packages -----------------------------------------------------------------------------------------------------
# Ray's own format and name, so that `ray job submit` and this client share uploads: a zip of the folder's contents named
# by the XOR of the first 8 bytes of SHA-1(relative path + content) over every file and folder that the walk visits.


class _Entry(NamedTuple):
    """``source`` is where the bytes are (None: it has none: a folder, a socket); ``packed``: it goes into the zip."""

    name: str
    source: Path | bytes | None
    packed: bool


def package_entries(folder: Path | None, excludes: Iterable[str], extra: Mapping[str, bytes]) -> list[_Entry]:
    """What a package of ``folder`` has, sorted. Raises GridshiftApiError when it is no folder or holds a loop of links."""
    found: dict[str, tuple[Path | bytes | None, bool]] = {".": (None, False)}
    if folder is not None:
        folder = folder.absolute()
        if not folder.is_dir():
            _refuse("working_dir", str(folder), "must be an existing folder (or the URI of a package)")
        found = {}
        keep_gitignored = os.environ.get("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "0") == "1"
        names = (".rayignore",) if keep_gitignored else (".gitignore", ".rayignore")
        _walk(folder, folder, [(folder, [rule for rule in map(_ignore_rule, excludes) if rule])], names, (), found)
    for name, content in extra.items():
        parts = name.split("/")
        for depth in range(1, len(parts)):
            found["/".join(parts[:depth])] = (None, False)
        found[name] = (content, True)
    return [_Entry(name, source, packed) for name, (source, packed) in sorted(found.items())]


_Rule = tuple["re.Pattern[str]", bool]  # what it matches, whether it excludes


def _walk(
    path: Path,
    root: Path,
    ignores: list[tuple[Path, list[_Rule]]],
    ignore_files: tuple[str, ...],
    above: tuple[Path, ...],
    found: dict[str, tuple[Path | bytes | None, bool]],
) -> None:
    is_dir = path.is_dir()
    if is_dir:
        ignores = [*ignores, *((path, _read_rules(path / name)) for name in ignore_files if (path / name).is_file())]
    if any(_ignored(path.relative_to(base).as_posix(), rules) for base, rules in ignores):
        return
    name = path.relative_to(root).as_posix()
    if not is_dir:
        # Sockets, pipes and dead links count by name only: opening them may block for ever.
        found[name] = (path, True) if path.is_file() else (None, False)
        return
    real = path.resolve()
    if real in above:
        _refuse("working_dir", str(path), "this link leads back to a folder above it; remove or exclude it")
    children = sorted(path.iterdir())
    found[name] = (None, not children and path != root)
    for child in children:
        _walk(child, root, ignores, ignore_files, (*above, real), found)


def _read_rules(file: Path) -> list[_Rule]:
    lines = file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return [rule for rule in map(_ignore_rule, lines) if rule]


def _ignored(relative: str, rules: list[_Rule]) -> bool:
    verdict = False
    for pattern, excludes in rules:  # the last rule that matches wins
        if pattern.match(relative):
            verdict = excludes
    return verdict


def _ignore_rule(line: str) -> _Rule | None:
    """A line of a .gitignore as a pattern on paths relative to its folder; None for blanks and comments."""
    text = line.strip()
    if not text or text.startswith("#") or text == "/":
        return None
    excludes = not text.startswith("!")
    text = text[0 if excludes else 1 :]
    text = text[1:] if text.startswith("\\") else text
    anchored = "/" in text[:-1]
    below_only = text.endswith("/") and text != "/"
    parts = text.strip("/").split("/")
    pattern = "" if anchored or parts[0] == "**" else "(?:.+/)?"
    last = len(parts) - 1
    for i, part in enumerate(parts):
        if part == "**":
            pattern += ".+" if i == last else "(?:.+/)?"
        else:
            # a lone star stands for one whole name
            pattern += ("[^/]+" if part == "*" else _glob(part)) + ("/" if i < last else "")
    if below_only:
        pattern += "/.*"
    elif excludes and parts[-1] not in {"*", "**"}:
        pattern += "(?:/.*)?"
    return re.compile(pattern + r"\Z", re.DOTALL), excludes


def _glob(part: str) -> str:
    """One path segment of a pattern as a regular expression."""
    out, i = "", 0
    while i < len(part):
        char = part[i]
        i += 1
        if char == "*":
            out += "[^/]*"
        elif char == "?":
            out += "[^/]"
        elif char == "\\" and i < len(part):
            out += re.escape(part[i])
            i += 1
        elif char == "[" and (close := part.find("]", i + (2 if part[i : i + 1] in {"!", "^"} else 1))) > 0:
            inner = part[i:close].replace("\\", "\\\\")
            out += "[" + ("^" + inner[1:] if inner[0] in "!^" else inner) + "]"
            i = close + 1
        else:
            out += re.escape(char)
    return out


def _digest(name: str, source: Path | bytes | None, sink: IO[bytes] | None = None) -> bytes:
    """What an entry adds to the package's name; copies its content to ``sink`` on the way."""
    sha = hashlib.sha1(name.encode("utf-8", errors="surrogateescape"))
    with source.open("rb") if isinstance(source, Path) else io.BytesIO(source or b"") as file:
        while chunk := file.read(1 << 20):
            sha.update(chunk)
            if sink is not None:
                sink.write(chunk)
    return sha.digest()


def _name_of(digests: Iterable[bytes]) -> str:
    value = int.from_bytes(b"0" * 8, "big")
    for digest in digests:
        value ^= int.from_bytes(digest[:8], "big")
    return f"_ray_pkg_{value:016x}.zip"


def package_name(entries: list[_Entry]) -> str:
    """The name Ray would give to a package with these entries."""
    return _name_of(_digest(name, source) for name, source, _ in entries)


def write_package(entries: list[_Entry], file: IO[bytes], max_bytes: int = MAX_PACKAGE_BYTES) -> str:
    """Write the zip, the same bytes for the same contents; returns its name. Raises GridshiftApiError over ``max_bytes``."""
    digests = []
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source, packed in entries:
            if not packed:
                digests.append(_digest(name, source))
                continue
            info = zipfile.ZipInfo(name if source is not None else f"{name}/", date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            runs = source is None or (isinstance(source, Path) and source.stat().st_mode & 0o100)
            info.external_attr = (0o755 if runs else 0o644) << 16
            with archive.open(info, "w", force_zip64=True) as sink:
                digests.append(_digest(name, source, sink))
            if file.tell() > max_bytes:
                limit = f"{max_bytes / 1e6:g} MB"
                _refuse("working_dir", name, f"with this file the package is over {limit}; exclude large files")
    return _name_of(digests)


# --- functions as jobs --------------------------------------------------------------------------------------------


class FlexibleFunction:
    """A function that runs as a job: ``.remote(*args)`` submits it; calling it runs it here and now."""

    def __init__(self, client: Client, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        # Now, and not when it is first called: that may be hours into a script.
        _check_names(options, [name for name in Client.submit.known if name != "entrypoint"])  # type: ignore[attr-defined]
        functools.update_wrapper(self, function)
        self._client, self._function, self._options = client, function, dict(options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it here and now, not as a job."""
        return self._function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> FlexibleFunction:
        if instance is None:
            return self
        return FlexibleFunction(self._client, functools.partial(self._function, instance), self._options)

    def options(self, **options: Any) -> FlexibleFunction:
        """The same function with other submit() arguments."""
        return FlexibleFunction(self._client, self._function, {**self._options, **options})

    def remote(self, *args: Any, **kwargs: Any) -> FunctionJob:
        """Submit a call; returns as soon as the job is durably stored."""
        options = dict(self._options)
        inner = self._function.func if isinstance(self._function, functools.partial) else self._function
        name = f"{getattr(inner, '__module__', '?')}.{getattr(inner, '__qualname__', repr(inner))}"
        try:
            pickled = _cloudpickle().dumps((self._function, args, kwargs))
        except Exception as error:
            raise ClientError(f"{name} or its arguments cannot be pickled: {error}") from error
        facts = {"python": _PYTHON, "function": name}
        files = {"gridshift_fn.pkl": pickled, "gridshift_fn.json": json.dumps(facts, sort_keys=True).encode()}
        files["gridshift_run.py"] = _runner_source().encode()
        folder = options.pop("working_dir", None)
        runtime_env = options.pop("runtime_env", None) or {}
        local = Path(folder or runtime_env.get("working_dir") or ".").expanduser()
        uses_ours = (folder or runtime_env.get("working_dir")) and any(
            (local / taken).exists() for taken in ("dispatcher", "dispatcher.py")
        )
        if not uses_ours:  # so that checkpoint_requested() and the like are there without an installation
            files["dispatcher/__init__.py"] = b""
            files["dispatcher/client.py"] = Path(__file__).read_bytes()
        env = self._client._runtime_env(runtime_env, folder, files)
        job = self._client.submit("python gridshift_run.py", runtime_env=env, **options)
        return FunctionJob(self._client, job.data)


class FunctionJob(Job):
    """A submitted call of a function."""

    def result(self, timeout: float | None = None) -> Any:
        """The value the function returned, or its exception raised here with the remote traceback as ``__cause__``.

        Raises JobFailed when the job ended without either, JobCancelled, RemoteError when the exception itself could not
        travel, TimeoutError after ``timeout`` seconds.
        """
        now = self._client._wait(self.id, timeout, lambda data: bool(data.get("has_result")) or data["state"] in ENDED)
        self.data = now.data
        if not now.data.get("has_result"):
            if now.state == "cancelled":
                raise JobCancelled(f"job {self.id} was cancelled: {now.reason}")
            raise JobFailed(self._obituary())
        payload = self._client.call("GET", _job_path(self, "/result")).content
        return _open_result(payload, self.id)

    def _obituary(self) -> str:
        try:
            tail = "\n".join(self.logs().splitlines()[-30:]) or "(empty)"
        except ClientError as error:
            tail = f"(not available: {error})"
        what = "left no result" if self.state == "succeeded" else self.state
        return f"job {self.id} {what}: {self.reason}\nend of its log:\n{tail}"


def _runner_source() -> str:
    path = Path(__file__).with_name("function_runner.py")
    if not path.is_file():
        raise ClientError("function jobs can be submitted only where gridshift is installed (pip install gridshift)")
    return path.read_text(encoding="utf-8")


def _cloudpickle() -> Any:
    for name in ("cloudpickle", "ray.cloudpickle"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    raise ClientError("function jobs need cloudpickle: pip install cloudpickle")


class _Unpickler(pickle.Unpickler):
    """Opens what cloudpickle or Ray's copy of it wrote, with whichever of the two is here."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "cloudpickle" or module.startswith("ray.cloudpickle"):
            module = _cloudpickle().__name__ + module[module.index("cloudpickle") + len("cloudpickle") :]
        return super().find_class(module, name)


def _open_result(payload: bytes, job_id: str) -> Any:
    outcome = pickle.loads(payload)
    if outcome["ok"]:
        try:
            return _Unpickler(io.BytesIO(outcome["value"])).load()
        except Exception as error:
            raise ClientError(f"the result of job {job_id} cannot be opened here: {type(error).__name__}: {error}") from error
    trace = RemoteTraceback(outcome["traceback"])
    remote: BaseException | None = None
    if outcome["exception"] is not None:
        with contextlib.suppress(Exception):  # its class may not exist here; then its text must do
            remote = _Unpickler(io.BytesIO(outcome["exception"])).load()
    if not isinstance(remote, Exception):
        remote = RemoteError(f"{outcome['type']}: {outcome['message']} (in job {job_id})")
    raise remote from trace


# --- inside a job -------------------------------------------------------------------------------------------------


def attempt() -> int:
    """Which attempt of the job this is, from 1; after a pause or a loss it is one more. 1 outside of gridshift."""
    text = os.environ.get("GRIDSHIFT_ATTEMPT", "")
    return int(text) if text.isdigit() else 1


def checkpoint_dir() -> Path:
    """The job's own folder for checkpoints, the same for every attempt, created when missing.

    Outside of gridshift it is ``./gridshift-checkpoint``.
    """
    path = Path(os.environ.get("GRIDSHIFT_CHECKPOINT_DIR") or "gridshift-checkpoint")
    path.mkdir(parents=True, exist_ok=True)
    return path


class _Watch:
    """Asks the control plane once a second, in the background, whether this attempt should save a checkpoint."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.pid = url.rstrip("/"), os.getpid()
        self.asked = False  # by the control plane
        self.terminated = False  # by SIGTERM
        self.handles_sigterm = False
        self.http = open_session(self.url, token)

    def start(self) -> None:
        """Begin to ask."""
        threading.Thread(target=self._run, name="gridshift-checkpoint", daemon=True).start()

    def _run(self) -> None:
        pause_s = 1.0
        while True:
            try:
                answer = self.http.get(f"{self.url}/v1/self", timeout=(5, 10), allow_redirects=False)
                if answer.status_code == 200:
                    told = answer.json()
                    if told.get("superseded") is True:
                        self._give_way()
                    self.asked = bool(told["checkpoint_requested"])
                pause_s = 1.0 if answer.status_code == 200 else min(10.0, pause_s * 2)
            except (requests.RequestException, ValueError, KeyError, TypeError):
                pause_s = min(10.0, pause_s * 2)  # while the control plane is away nobody can ask for anything
            time.sleep(pause_s)

    def _give_way(self) -> None:
        """End this process at once: its cluster was lost, it outlived that, and a newer attempt does the same work. It must not
        even save: the checkpoint is the newer one's."""
        with contextlib.suppress(OSError, ValueError):
            print("gridshift: a newer attempt of this job has taken over; this one ends", file=sys.stderr, flush=True)
        os._exit(1)

    def handle_sigterm(self) -> None:
        """Take SIGTERM as a request for a checkpoint too, unless the program has its own use for it."""
        if self.handles_sigterm or threading.current_thread() is not threading.main_thread():
            return
        with contextlib.suppress(ValueError, OSError):
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, self._on_sigterm)
                self.handles_sigterm = True

    def _on_sigterm(self, number: int, frame: object) -> None:
        self.terminated = True

    def leave_sigterm(self) -> None:
        """Let SIGTERM end the process again: the checkpoint is saved."""
        if self.handles_sigterm and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self.handles_sigterm = False


_watch: _Watch | None = None
_watch_lock = threading.Lock()


def _watcher() -> _Watch | None:
    """The watch of this process (a fork needs its own), None outside of gridshift."""
    global _watch
    url, token = os.environ.get("GRIDSHIFT_URL"), os.environ.get("GRIDSHIFT_JOB_TOKEN")
    if not url or not token:
        return None
    with _watch_lock:
        if _watch is None or _watch.pid != os.getpid():
            watch = _Watch(url, token)
            with contextlib.suppress(RuntimeError):  # no thread to be had now: try again at the next call
                watch.start()
                _watch = watch
        return _watch


def checkpoint_requested() -> bool:
    """Whether the job should save a checkpoint now and then call checkpoint_saved(). Cheap; call it in every step.

    From the first call on, a process whose attempt was lost with its cluster, and lived on, ends when a newer one takes over.
    True when the control plane asks (known within about a second), and after SIGTERM when this was called in the main
    thread of a program that does not handle SIGTERM itself. Never raises; False outside of gridshift.
    """
    watch = _watcher()
    if watch is None:
        return False
    watch.handle_sigterm()
    return watch.asked or watch.terminated


def checkpoint_saved() -> bool:
    """Tell the control plane that the checkpoint is saved; tries for up to 30 s.

    On True the job must do no more work and should exit: it is stopped now and, unless it is being cancelled, resumes later
    from this checkpoint; anything done after it would be done twice. False: nobody took note (the control plane is away, this
    attempt is no longer the current one, or this is not a job of gridshift); the checkpoint is good, and the job may go on.
    Never raises.
    """
    watch = _watcher()
    if watch is None:
        return False
    end, pause_s = time.monotonic() + 30.0, 0.2
    while True:
        try:
            answer = watch.http.post(
                f"{watch.url}/v1/self/checkpoint", json={"attempt": attempt()}, timeout=(5, 10), allow_redirects=False
            )
            if 200 <= answer.status_code < 300:
                watch.leave_sigterm()
                return True
            if answer.status_code < 500 and answer.status_code != 429:
                return False
        except requests.RequestException:
            pass
        if time.monotonic() + pause_s > end:
            return False
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 5.0)
