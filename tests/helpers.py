"""Small helpers that tests share."""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from dispatcher.clusters import Cluster

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout_s: float, what: str = "condition") -> T:
    """Poll ``condition`` until it returns something true, and return that; fail with ``what`` after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s} s in vain for {what}; last value: {value!r}")
        time.sleep(0.05)


def log_of(cluster: Cluster, submission_id: str) -> str | None:
    """The whole log of a submission; None when the cluster does not know it."""
    pieces: list[str] = []
    return "".join(pieces) if cluster.copy_logs(submission_id, lambda piece: pieces.append(piece) is None) else None


def free_port() -> int:
    """A TCP port on loopback that nobody uses at this moment."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def data_dir() -> Path:
    """The folder of real traces and responses; skips the test, saying so, where it is absent."""
    path = Path(os.environ.get("GRIDSHIFT_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not path.is_dir():
        pytest.skip(f"real data folder {path} is absent (set GRIDSHIFT_DATA)")
    return path
