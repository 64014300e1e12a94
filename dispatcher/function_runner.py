"""Runs one pickled function on a cluster and brings its result to the control plane.

The client ships this file as ``gridshift_run.py`` beside the pickle; it knows the standard library only, and the cloudpickle
that is there (Ray has one). It must at least start on any Python 3, to say clearly when it is the wrong one.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import pickle
import sys
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

#: How long delivery is tried while the control plane is away; the job's work is lost when it gives up.
DELIVER_S = float(os.environ.get("GRIDSHIFT_RESULT_RETRY_S", "900"))
#: How the line of the log begins that tells why the function failed.
FAILED = "gridshift: the function failed: "


def cloudpickle() -> Any:
    """The cloudpickle module that is here, or None."""
    for name in ("cloudpickle", "ray.cloudpickle"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


class Unpickler(pickle.Unpickler):
    """Opens what cloudpickle or Ray's copy of it wrote, with whichever of the two is here."""

    def find_class(self, module: str, name: str) -> Any:
        """Look a class up, under the name that the module has here."""
        if module.split(".")[0] == "cloudpickle" or module.startswith("ray.cloudpickle"):
            here = cloudpickle()
            if here is None:
                raise ImportError("this cluster has neither cloudpickle nor ray.cloudpickle")
            module = here.__name__ + module[module.index("cloudpickle") + len("cloudpickle") :]
        return super().find_class(module, name)


def dumps(value: object) -> bytes:
    """Pickle with cloudpickle when it is here."""
    payload: bytes = (cloudpickle() or pickle).dumps(value)
    return payload


def failure(kind: str, message: str, trace: str = "", exception: bytes | None = None) -> dict[str, Any]:
    """The outcome of a function that raised, or could not be run: plain types, and the exception's own pickle or None."""
    return {"ok": False, "type": kind, "message": message, "traceback": trace or message, "exception": exception}


def trace_of(error: BaseException) -> str:
    """The traceback as text, without this file's own first frame, which says nothing to the function's author."""
    tb = error.__traceback__.tb_next if error.__traceback__ is not None else None
    return "".join(traceback.format_exception(type(error), error, tb))


def raised(error: Exception) -> dict[str, Any]:
    """The outcome of a function that raised ``error``."""
    trace = trace_of(error)
    print(trace, file=sys.stderr, flush=True)
    pickled: bytes | None
    try:
        pickled = dumps(error.with_traceback(None))
        Unpickler(io.BytesIO(pickled)).load()  # many exceptions pickle but do not open again
    except Exception:  # noqa: BLE001 - whatever a foreign __reduce__ does: the text still travels
        pickled = None
    return failure(type(error).__name__, str(error), trace, pickled)


def outcome_of_call(here: Path) -> dict[str, Any]:
    """Run the function and say how it went. SystemExit passes through: a job that saved its checkpoint leaves that way."""
    facts = json.loads((here / "gridshift_fn.json").read_text(encoding="utf-8"))
    name, wanted, python = facts["function"], facts["python"], f"{sys.version_info[0]}.{sys.version_info[1]}"
    if wanted != python:
        remedy = "submit from the same minor version, or give the cluster that Python"
        message = f"{name} was pickled by Python {wanted}, but this cluster runs Python {python}; {remedy}"
        return failure("PythonVersionMismatch", message)
    try:
        function, args, kwargs = Unpickler(io.BytesIO((here / "gridshift_fn.pkl").read_bytes())).load()
    except Exception as error:  # noqa: BLE001 - importing the user's modules may raise anything
        hint = "; modules of your own must be in working_dir or installed on the cluster"
        message = f"{name} cannot be loaded on the cluster: {type(error).__name__}: {error}"
        return failure("CannotLoad", message + (hint if isinstance(error, ImportError) else ""), trace_of(error))
    try:
        value = function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - it is raised again in the caller
        return raised(error)
    try:
        return {"ok": True, "value": dumps(value)}
    except Exception as error:  # noqa: BLE001 - whatever a foreign __reduce__ does
        message = f"{name} returned a {type(value).__name__} that cannot be pickled: {error}"
        return failure("UnpicklableResult", message, trace_of(error))


def put(url: str, token: str, payload: bytes) -> tuple[int, str]:
    """Send the result once; returns (status, text). Raises OSError when no answer came."""
    host = urllib.parse.urlsplit(url).hostname
    local = host in ("127.0.0.1", "localhost", "::1")
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if local else []))
    headers = {"Authorization": "Bearer " + token, "Content-Type": "application/octet-stream"}
    request = urllib.request.Request(url, data=payload, headers=headers, method="PUT")
    try:
        with opener.open(request, timeout=60) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(500).decode("utf-8", "replace")


def deliver(outcome: dict[str, Any]) -> bool:
    """Bring the outcome to the control plane, trying while it is away; returns whether it took it."""
    base, token = os.environ.get("GRIDSHIFT_URL"), os.environ.get("GRIDSHIFT_JOB_TOKEN")
    if not base or not token:
        print("gridshift: GRIDSHIFT_URL is not set: this is no job of gridshift, the result goes nowhere", file=sys.stderr)
        return False
    url = base.rstrip("/") + "/v1/self/result"
    payload = pickle.dumps(outcome, protocol=4)
    end, pause_s = time.monotonic() + DELIVER_S, 0.2
    while True:
        try:
            status, text = put(url, token, payload)
        except OSError as error:
            status, text = 0, str(error)
        if 200 <= status < 300:
            return True
        if status == 413 and outcome["ok"]:
            size = f"{len(payload) / 1e6:.1f} MB"
            message = f"the result has {size}, more than the control plane takes; write it to storage and return its place"
            deliver(failure("ResultTooLarge", message))
            return False
        if 0 < status < 500 and status not in (408, 429):
            print(f"gridshift: the control plane refused the result (HTTP {status}): {text}", file=sys.stderr)
            return False
        if time.monotonic() + pause_s > end:
            print(f"gridshift: the result could not be delivered within {DELIVER_S:g} s: {text}", file=sys.stderr)
            return False
        print(f"gridshift: the control plane is away ({text or status}); trying again", file=sys.stderr, flush=True)
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 10.0)


def main() -> int:
    """Run the function in the folder of this file; returns the exit code."""
    outcome = outcome_of_call(Path(__file__).resolve().parent)
    if not outcome["ok"]:
        message = " ".join(outcome["message"].split())[:500]  # one line, which the control plane finds in the log's end
        print(f"{FAILED}{outcome['type']}{': ' + message if message else ''}", file=sys.stderr, flush=True)
    return 0 if deliver(outcome) and outcome["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
