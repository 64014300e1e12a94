"""Real processes for tests: each starts a session of its own, and none outlives its test."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.api.conftest import server, services  # noqa: F401 - the API that agents talk to


@pytest.fixture
def started() -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Starts processes as Popen does; at the end the whole session of each is killed."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*args: Any, **kwargs: Any) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(*args, start_new_session=True, **kwargs)
        processes.append(process)
        return process

    yield start
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stdin):
            if pipe is not None:
                pipe.close()
