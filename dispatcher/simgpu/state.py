"""Simulated GPUs from the outside: make them, look at them, and break them in the ways that real ones break."""

import ctypes
import dataclasses
import os
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from dispatcher.errors import BadInput, GridshiftError
from dispatcher.simgpu.build import LIBRARY, build
from dispatcher.simgpu.layout import MAX_GPUS, GpuRecord
from dispatcher.simgpu.models import MODELS

#: The environment variable that names the state file to the driver.
STATE_VARIABLE = "GRIDSHIFT_SIMGPU"
#: What the driver says its version is; who looks for "gridshift-simulated" in it knows that nothing is real.
DRIVER_VERSION = "570.00 gridshift-simulated"

NVML_TIMEOUT, NVML_UNKNOWN = 10, 999
ENERGY_MODES = {"ok": 0, "stuck": 1, "backwards": 2, "absent": 3, "jumps": 4}
#: What a driver can lack; a call for it then answers NOT_SUPPORTED.
PARTS = {
    "power": 1,
    "limits": 2,
    "energy": 4,
    "fields": 8,
    "utilization": 16,
    "temperature": 32,
    "processes": 64,
    "clocks": 128,
    "mig": 256,
}


@cache
def _library(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path, use_errno=True)
    handle, u64, double = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_double
    library.gridshift_simgpu_gpu_size.restype = u64
    library.gridshift_simgpu_create.argtypes = [ctypes.c_char_p, ctypes.POINTER(GpuRecord), u64, ctypes.c_char_p]
    library.gridshift_simgpu_open.argtypes = [ctypes.c_char_p]
    library.gridshift_simgpu_open.restype = handle
    library.gridshift_simgpu_count.argtypes = [handle]
    library.gridshift_simgpu_count.restype = u64
    library.gridshift_simgpu_read.argtypes = [handle, u64, ctypes.POINTER(GpuRecord)]
    library.gridshift_simgpu_write.argtypes = [handle, u64, u64, ctypes.c_void_p, u64]
    library.gridshift_simgpu_model.argtypes = [handle, u64, ctypes.POINTER(double)]
    library.gridshift_simgpu_reboot.argtypes = [handle]
    library.gridshift_simgpu_reboot.restype = None
    library.gridshift_simgpu_driver_absent.argtypes = [handle, ctypes.c_int]
    library.gridshift_simgpu_driver_absent.restype = None
    library.gridshift_simgpu_begin_and_leave.argtypes = [handle, u64]
    if library.gridshift_simgpu_gpu_size() != ctypes.sizeof(GpuRecord):
        raise GridshiftError(f"{path} lays a GPU out in another way than dispatcher/simgpu/layout.py")
    return library


@dataclasses.dataclass(frozen=True)
class Moment:
    """What the model says of a GPU now: power in W without noise, clock, speed of a lone process and load as parts of 1."""

    power_w: float
    clock: float
    speed: float
    load: float


class SimGpu:
    """One simulated GPU. Every method looks at, or changes, the state that all processes share."""

    def __init__(self, library: ctypes.CDLL, handle: int, index: int) -> None:
        self._library, self._handle, self.index = library, handle, index

    def read(self) -> GpuRecord:
        """A copy of its record, brought up to now."""
        record = GpuRecord()
        self._library.gridshift_simgpu_read(self._handle, self.index, ctypes.byref(record))
        return record

    def write(self, **members: float) -> None:
        """Set members of its record (names and units as in GpuRecord), each in one step."""
        for name, value in members.items():
            field: Any = getattr(GpuRecord, name)
            kind: Any = ctypes.c_double if isinstance(getattr(GpuRecord(), name), float) else ctypes.c_uint64
            bytes_ = kind(value)
            self._library.gridshift_simgpu_write(self._handle, self.index, field.offset, ctypes.byref(bytes_), field.size)

    def moment(self) -> Moment:
        """What the model says now."""
        out = (ctypes.c_double * 4)()
        self._library.gridshift_simgpu_model(self._handle, self.index, out)
        return Moment(*out)

    @property
    def uuid(self) -> str:
        """Its full UUID."""
        return str(self.read().uuid.decode())

    @property
    def name(self) -> str:
        """The model's name, as NVML tells it."""
        return str(self.read().name.decode())

    @property
    def limit_w(self) -> float:
        """The limit that was set last and is in force, in W; from outside a lower one may be."""
        return float(self.read().limit_mw / 1000)

    @property
    def limit_calls(self) -> int:
        """How often NVML was called to set its limit, granted or not."""
        return int(self.read().limit_calls)

    @property
    def power_w(self) -> float:
        """The power of this moment in W, without noise."""
        return self.moment().power_w

    @property
    def energy_j(self) -> float:
        """The true energy since the driver was loaded, in J, whatever the counter shows."""
        return float(self.read().energy_mj / 1000)

    @property
    def pids(self) -> list[int]:
        """The live processes on it."""
        record = self.read()
        return sorted({int(process.pid) for process in record.processes[: record.process_count]})

    def set_limit(self, limit_w: float) -> None:
        """Somebody else sets the limit: no range, no permission and no lag stand in the way."""
        self.write(limit_mw=round(limit_w * 1000), pending_at_ns=0)

    def set_rival(self, limit_w: float, every_s: float) -> None:
        """Somebody else sets the limit to ``limit_w`` each ``every_s`` seconds from now on; 0 s ends it."""
        self.write(rival_mw=round(limit_w * 1000), rival_period_ns=round(every_s * 1e9))

    def set_outside_limit(self, limit_w: float | None) -> None:
        """The board's controller enforces a lower limit than the driver's; None ends it."""
        self.write(outside_mw=round((limit_w or 0) * 1000))

    def set_lag(self, lag_s: float) -> None:
        """A set limit takes this long until it works and shows in the read-back."""
        self.write(lag_ns=round(lag_s * 1e9))

    def set_no_permission(self, on: bool = True) -> None:
        """Setters say NO_PERMISSION, as they do to anybody but root."""
        self.write(no_permission=int(on))

    def set_lost(self, on: bool = True) -> None:
        """The GPU has fallen off the bus: every call says GPU_IS_LOST, nothing works or accrues."""
        self.write(lost=int(on))

    def set_failing(self, every: int, code: int = NVML_UNKNOWN) -> None:
        """Each ``every``-th call says ``code``; 0 ends it."""
        self.write(fail_code=code, fail_every=every)

    def set_slow(self, call_s: float) -> None:
        """Each call takes this long."""
        self.write(slow_ms=round(call_s * 1000))

    def set_noise(self, share: float, seed: int = 0) -> None:
        """Shown power is off by up to this part of it, another value each 0.1 s; the energy counter is not."""
        self.write(noise_seed=seed, noise=share)

    def set_energy_counter(self, mode: str = "ok", factor: float = 1.0) -> None:
        """How the counter misleads from now on: "ok" (times ``factor``), "stuck", "backwards", "absent" or "jumps"."""
        if mode not in ENERGY_MODES:
            raise BadInput([("mode", mode, f"one of {', '.join(ENERGY_MODES)}")])
        self.write(energy_factor=factor, energy_mode=ENERGY_MODES[mode])

    def set_missing(self, *parts: str) -> None:
        """Calls for these parts say NOT_SUPPORTED (see PARTS); none ends it."""
        if unknown := set(parts) - set(PARTS):
            raise BadInput([("parts", sorted(unknown), f"of {', '.join(PARTS)}")])
        self.write(missing=sum(PARTS[part] for part in set(parts)))

    def set_mig(self, on: bool = True) -> None:
        """Split the GPU (as far as this driver goes: it says so, and tells no utilization)."""
        self.write(mig_pending=int(on), mig=int(on))

    def begin_change_and_leave(self) -> int:
        """For tests: begin a change of the record as a process does that is then killed or stopped in the middle."""
        return int(self._library.gridshift_simgpu_begin_and_leave(self._handle, self.index))


class SimGpus:
    """All GPUs of one state file."""

    def __init__(self, path: Path, library: ctypes.CDLL, handle: int) -> None:
        self.path, self._library, self._handle = path, library, handle

    @classmethod
    def create(cls, path: Path, count: int, *, model: str = "a100", cache_dir: Path | None = None) -> "SimGpus":
        """Make ``count`` GPUs with new UUIDs in a new state file at ``path``; who has an old one open there keeps that.

        Raises BadInput for a count or model that cannot be, GridshiftError when there is no compiler or the file cannot be."""
        if not 1 <= count <= MAX_GPUS:
            raise BadInput([("count", count, f"a number from 1 to {MAX_GPUS}")])
        if model not in MODELS:
            raise BadInput([("model", model, f"one of {', '.join(MODELS)}")])
        library = _library(str(build(cache_dir) / LIBRARY))
        records = (GpuRecord * count)(*(MODELS[model].record(f"GPU-{uuid.uuid4()}") for _ in range(count)))
        problem = library.gridshift_simgpu_create(os.fsencode(path), records, count, DRIVER_VERSION.encode())
        if problem:
            raise GridshiftError(f"cannot write simulated GPUs to {path}: {os.strerror(problem)}")
        return cls.open(path, cache_dir=cache_dir)

    @classmethod
    def open(cls, path: Path, *, cache_dir: Path | None = None) -> "SimGpus":
        """The GPUs of the state file at ``path``. Raises GridshiftError when it is none."""
        library = _library(str(build(cache_dir) / LIBRARY))
        handle = library.gridshift_simgpu_open(os.fsencode(path))
        if not handle:
            raise GridshiftError(f"{path} holds no simulated GPUs of this version: {os.strerror(ctypes.get_errno())}")
        return cls(path, library, handle)

    def __len__(self) -> int:
        return int(self._library.gridshift_simgpu_count(self._handle))

    def __getitem__(self, index: int) -> SimGpu:
        if not 0 <= index < len(self):
            raise IndexError(f"GPU {index} of {len(self)}")
        return SimGpu(self._library, self._handle, index)

    def __iter__(self) -> Iterator[SimGpu]:
        return (self[index] for index in range(len(self)))

    def by_uuid(self, uuid_: str) -> SimGpu:
        """The GPU of that UUID. Raises KeyError."""
        for gpu in self:
            if gpu.uuid == uuid_:
                return gpu
        raise KeyError(uuid_)

    def reboot(self) -> None:
        """The machine boots: limits at their defaults, counters at zero, clocks free, no process left."""
        self._library.gridshift_simgpu_reboot(self._handle)

    def set_driver_absent(self, on: bool = True) -> None:
        """There is no driver: nvmlInit and all calls say DRIVER_NOT_LOADED."""
        self._library.gridshift_simgpu_driver_absent(self._handle, int(on))


def environment(path: Path, *, cache_dir: Path | None = None, base: dict[str, str] | None = None) -> dict[str, str]:
    """The variables with which a child process sees the GPUs of the state file at ``path``; ``base`` is its environment so far.

    The driver is found because its folder comes first in LD_LIBRARY_PATH, which must stand before the child starts."""
    before: Any = (os.environ if base is None else base).get("LD_LIBRARY_PATH")
    folder = str(build(cache_dir).resolve())
    return {
        "LD_LIBRARY_PATH": f"{folder}:{before}" if before else folder,
        STATE_VARIABLE: str(path.resolve()),
    }
