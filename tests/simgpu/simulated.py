"""Simulated GPUs for tests: in this process (as a pytest fixture uses it) or around a child process."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml

from dispatcher.simgpu import LIBRARY, STATE_VARIABLE, SimGpus, build, environment

WORKLOAD = Path(__file__).parents[2] / "dispatcher" / "simgpu" / "workload.py"


@contextlib.contextmanager
def simulated(folder: Path, count: int = 1, *, model: str = "a100") -> Iterator[SimGpus]:
    """``pynvml`` of this process sees ``count`` fresh GPUs: call nvmlInit (again) inside. All is put back at the end."""
    gpus = SimGpus.create(folder / "simgpu", count, model=model)
    before = os.environ.get(STATE_VARIABLE), pynvml.nvmlLib
    os.environ[STATE_VARIABLE] = str(gpus.path)
    pynvml.nvmlLib = ctypes.CDLL(str(build() / LIBRARY))
    pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        yield gpus
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            while True:
                pynvml.nvmlShutdown()
        gpus.set_driver_absent(False)
        os.environ.pop(STATE_VARIABLE)
        if before[0] is not None:
            os.environ[STATE_VARIABLE] = before[0]
        pynvml.nvmlLib = before[1]
        pynvml._nvmlGetFunctionPointer_cache.clear()


def child_environment(gpus: SimGpus, visible: str | None = None, **more: str) -> dict[str, str]:
    """The environment of a child process that sees the GPUs, or only those that ``visible`` names as CUDA would."""
    env = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"} | environment(gpus.path) | more
    return env if visible is None else env | {"CUDA_VISIBLE_DEVICES": visible}


def _interruptible() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def working(
    gpus: SimGpus,
    work_s: float = float("inf"),
    *,
    visible: str = "0",
    intensity: float = 1.0,
    arguments: tuple[str, ...] = (),
    **env: str,
) -> "Iterator[subprocess.Popen[str]]":
    """A process that works on the GPUs; returns once it is attached, and kills it at the end if it still runs."""
    argv = [sys.executable, str(WORKLOAD), f"--work-s={work_s}", f"--intensity={intensity}", *arguments]
    surroundings = child_environment(gpus, visible, **env)
    # Whoever runs the tests in the background of a shell has interrupts ignored, and children inherit that.
    with subprocess.Popen(argv, env=surroundings, stdout=subprocess.PIPE, text=True, preexec_fn=_interruptible) as process:
        try:
            stdout: Any = process.stdout
            if not stdout.readline().startswith("working"):
                raise AssertionError("the workload did not start")
            yield process
        finally:
            process.kill()
