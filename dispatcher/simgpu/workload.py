"""Work for simulated GPUs: ``python workload.py --work-s 20`` keeps the visible GPUs busy for 20 s of full-speed work.

Only the standard library is used, so that the file runs by its path under any Python 3.9 or newer. It finds the driver as any
program does, by its library's name, and stops with a sentence where that driver is a real one.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
STATE_VARIABLE = "GRIDSHIFT_SIMGPU"
#: Wall seconds after which the driver hands back to Python, which then looks at signals and writes progress.
SLICE_S = 0.2
GIB = 1 << 30
UUID_OFFSET, UUID_SIZE = 64, 64


class WorkloadError(Exception):
    """The work cannot be done on this machine's GPUs."""


class Workload:
    """This process on the GPUs that it may see. Use as a context manager: it lets go of them at the end."""

    def __init__(self, intensity: float = 1.0, memory_bytes: int = GIB, *, library: str = LIBRARY) -> None:
        path = os.environ.get(STATE_VARIABLE)
        if not path:
            raise WorkloadError(f"{STATE_VARIABLE} is not set: this process sees no simulated GPU")
        if not 0 <= intensity <= 1:
            raise WorkloadError(f"intensity {intensity:g}: a number from 0 to 1")
        try:
            self._library: Any = ctypes.CDLL(library)
            self._library.gridshift_simgpu_open.restype = ctypes.c_void_p
        except OSError as error:
            raise WorkloadError(f"no GPU driver: {error}; LD_LIBRARY_PATH names its folder") from None
        except AttributeError:
            raise WorkloadError(f"{library} is a real GPU driver, and this work runs on simulated GPUs only") from None
        handle = self._library.gridshift_simgpu_open(os.fsencode(path))
        if not handle:
            raise WorkloadError(f"{path} holds no simulated GPUs")
        self._handle = ctypes.c_void_p(handle)
        self._library.gridshift_simgpu_attach.restype = ctypes.c_int64
        self._library.gridshift_simgpu_count.restype = ctypes.c_uint64
        self.indexes = visible(os.environ.get("CUDA_VISIBLE_DEVICES"), self._uuids())
        self._serials: list[int] = []
        for index in self.indexes:
            serial = self._library.gridshift_simgpu_attach(
                self._handle, ctypes.c_uint64(index), ctypes.c_double(intensity), ctypes.c_uint64(memory_bytes)
            )
            if serial < 0:
                self.close()
                raise WorkloadError(f"GPU {index} does not take this process (NVML code {-serial})")
            self._serials.append(serial)

    def _uuids(self) -> list[str]:
        record = ctypes.create_string_buffer(self._gpu_size())
        uuids = []
        for index in range(self._library.gridshift_simgpu_count(self._handle)):
            self._library.gridshift_simgpu_read(self._handle, ctypes.c_uint64(index), record)
            uuids.append(record.raw[UUID_OFFSET : UUID_OFFSET + UUID_SIZE].rstrip(b"\0").decode())
        return uuids

    def _gpu_size(self) -> int:
        self._library.gridshift_simgpu_gpu_size.restype = ctypes.c_uint64
        return int(self._library.gridshift_simgpu_gpu_size())

    def run(self, work_s: float) -> Iterator[float]:
        """Do so many seconds of full-speed work on each GPU; yields the part done (0..1) about each 0.2 s, 1 last.

        Raises WorkloadError when a GPU is lost or has forgotten this process."""
        count = len(self.indexes)
        indexes, serials = (ctypes.c_uint64 * count)(*self.indexes), (ctypes.c_uint64 * count)(*self._serials)
        add, left = (ctypes.c_double * count)(*[work_s] * count), (ctypes.c_double * count)()
        more: Any = add
        while True:
            code = self._library.gridshift_simgpu_run(
                self._handle, indexes, serials, ctypes.c_uint64(count), more, left, ctypes.c_double(SLICE_S)
            )
            if code:
                raise WorkloadError(f"the work stopped: NVML code {code}" + (" (GPU is lost)" if code == 15 else ""))
            more = None
            if max(left) <= 0:
                yield 1.0
                return
            yield max(0.0, 1 - max(left) / work_s) if work_s < float("inf") else 0.0

    def close(self) -> None:
        """Let go of the GPUs."""
        while self._serials:  # in the order of indexes, and fewer when attaching failed half-way
            index, serial = self.indexes[len(self._serials) - 1], self._serials.pop()
            self._library.gridshift_simgpu_detach(self._handle, ctypes.c_uint64(index), ctypes.c_uint64(serial))

    def __enter__(self) -> Workload:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def visible(variable: str | None, uuids: list[str]) -> list[int]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves visible, in its order: indexes, or UUIDs and beginnings of UUIDs.

    As CUDA does, the first unknown entry ends the list. Raises WorkloadError when none is left."""
    if variable is None:
        found = list(range(len(uuids)))
    else:
        found = []
        for entry in (part.strip() for part in variable.split(",")):
            matches = [i for i, uuid in enumerate(uuids) if entry == str(i) or (len(entry) > 4 and uuid.startswith(entry))]
            if len(matches) != 1:
                break
            found += matches
    if not found:
        raise WorkloadError(f"CUDA_VISIBLE_DEVICES={variable!r} leaves none of the {len(uuids)} GPUs visible")
    return found


def work(
    work_s: float, *, intensity: float = 1.0, memory_bytes: int = GIB, progress: str | None = None, library: str = LIBRARY
) -> float:
    """Attach to the visible GPUs, do the work, let go; returns the wall seconds. ``progress``: a file for the part done."""
    started = time.monotonic()
    with Workload(intensity, memory_bytes, library=library) as workload:
        for part in workload.run(work_s):
            if progress:
                write_whole(progress, f"{part:.6f}\n")
    return time.monotonic() - started


def write_whole(path: str, text: str) -> None:
    """Write a file so that a reader sees the old or the new text and never a part."""
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w") as file:  # noqa: PTH123 (kept to what the oldest Python has)
        file.write(text)
    os.replace(temporary, path)  # noqa: PTH105


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Keep the visible simulated GPUs busy.")
    parser.add_argument("--work-s", type=float, required=True, help="seconds of full-speed work on each GPU; inf: without end")
    parser.add_argument("--intensity", type=float, default=1.0, help="how much of the GPU's draw it causes, 0..1")
    parser.add_argument("--memory-gib", type=float, default=1.0, help="GPU memory that it holds")
    parser.add_argument("--hold-s", type=float, default=0.0, help="then stay on the GPUs without work for so long")
    parser.add_argument("--progress", help="a file that always holds the part done, 0..1")
    options = parser.parse_args(argv)
    try:
        with Workload(options.intensity, int(options.memory_gib * GIB)) as workload, contextlib.suppress(KeyboardInterrupt):
            print(f"working on GPU {', '.join(map(str, workload.indexes))}", flush=True)
            for part in workload.run(options.work_s):
                if options.progress:
                    write_whole(options.progress, f"{part:.6f}\n")
            time.sleep(options.hold_s)
            print("done", flush=True)
            return 0
    except WorkloadError as error:
        print(f"workload: {error}", file=sys.stderr)
        return 2
    return 130


if __name__ == "__main__":
    sys.exit(main())
