"""The GPUs of this machine, through NVIDIA's library: what they are, what they draw, what their limits are, setting a limit.

The only place that calls `pynvml`. It does not know leases or jobs, and keeps no history.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

try:
    import pynvml
except ImportError:  # a node without GPUs need not have it
    pynvml = None


class DeviceError(Exception):
    """The GPU did not do what was asked."""


class NoDriver(DeviceError):
    """No NVIDIA driver answers on this machine."""


class NoGpus(NoDriver):
    """This machine has no NVIDIA GPU."""


class NoPermission(DeviceError):
    """The driver refuses: only root (in a container: with SYS_ADMIN) may do this."""


class DeviceLost(DeviceError):
    """The GPU does not answer any more."""


class OutOfRange(DeviceError):
    """The limit is outside what this GPU allows."""


class HeldByAnother(DeviceError):
    """Another agent looks after the GPU."""


class NotSupported(DeviceError):
    """This GPU or driver cannot do this."""


class DriverBusy(DeviceError):
    """The driver failed for the moment; asking again may help."""


def has_nvidia_hardware(root: Path = Path("/")) -> bool:
    """Whether a GPU of NVIDIA's can be seen without its driver: on the PCI bus (vendor 10de, class 03, a display controller),
    by a device node, or as a Jetson board by its device tree. ``root`` is where the file system begins."""
    for device in (root / "sys/bus/pci/devices").glob("*"):
        with contextlib.suppress(OSError):
            is_display = (device / "class").read_text().startswith("0x03")
            if is_display and (device / "vendor").read_text().strip() == "0x10de":
                return True
    with contextlib.suppress(OSError):
        if b"nvidia,tegra" in (root / "proc/device-tree/compatible").read_bytes():
            return True
    return any((root / "dev").glob("nvidia[0-9]*"))


@dataclass(frozen=True)
class DeviceInfo:
    """What a GPU is, limits in W; None means the GPU or driver does not tell. `notes` are sentences for people."""

    uuid: str
    index: int
    name: str
    min_w: float | None
    max_w: float | None
    default_w: float | None
    limit_w: float | None
    mig: bool
    energy_counter: bool
    power_is_average: bool
    module_scope: bool
    simulated: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reading:
    """One look at a GPU. `energy_j` counts since the driver was loaded; utilisation is 0..1; None means not known now."""

    at: float
    boot_s: float
    power_w: float | None
    energy_j: float | None
    limit_w: float | None
    enforced_w: float | None
    temperature_c: float | None
    sm_util: float | None
    mem_util: float | None
    throttle: tuple[str, ...]
    sm_clock_mhz: float | None


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU; the instances are those of a MIG GPU."""

    pid: int
    memory_bytes: int | None
    gpu_instance: int | None
    compute_instance: int | None


# NVML's error codes by what they mean to us; all others are DriverBusy
_ERRORS: dict[int, type[DeviceError]] = {
    1: NoDriver,  # uninitialised
    2: OutOfRange,  # invalid argument
    3: NotSupported,
    4: NoPermission,
    6: DeviceLost,  # not found
    9: NoDriver,  # driver not loaded
    12: NoDriver,  # library not found
    13: NotSupported,  # function not found: an old driver
    15: DeviceLost,
    16: DeviceLost,  # needs a reset
    17: NoPermission,  # blocked by the operating system (a container's device rules)
    18: NoDriver,  # library and kernel module of different versions
    25: NotSupported,  # a struct's version this driver does not know
    26: NotSupported,  # deprecated
    28: DeviceLost,  # GPU not found
}
_THROTTLE = (
    (0x1, "idle"),
    (0x2, "app_clocks"),
    (0x4, "sw_power_cap"),
    (0x8, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal"),
    (0x40, "hw_thermal"),
    (0x80, "hw_power_brake"),
    (0x100, "display_clocks"),
)
_FIELD_ENERGY, _FIELD_AVERAGE, _FIELD_INSTANT = 83, 185, 186
_SCOPE_GPU, _SCOPE_MODULE = 0, 1
_AMPERE = 7
_GA100 = ("A100", "A800", "A30", "PG506")  # the one Ampere chip whose power reading is of the instant
_NO_INSTANCE = 0xFFFFFFFF
#: What stands for an answer of a GPU that was not asked.
SPARED = "others are at work on every GPU here, whose limits are not set just to try"
_REOPEN_S = 5.0  # a driver that went away is not asked more often than this
#: How long a look at all GPUs waits for those that are slow to answer, s.
MEET_S = 3.0


def _wait_for(threads: Iterable[threading.Thread]) -> None:
    """Wait until all have ended, for MEET_S together at most."""
    until_s = time.monotonic() + MEET_S
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))


class Devices:
    """The GPUs behind the driver of this machine, by UUID. Raises NoDriver where there is none. Safe from several threads.

    Each call may raise DeviceLost, NoPermission, NotSupported, DriverBusy or NoDriver. A call waits as long as the driver does:
    whoever must not wait calls from a thread of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handles: dict[str, Any] = {}
        self._absent: set[tuple[str, str]] = set()  # calls a GPU does not know, by (uuid, call)
        self._known: dict[str, DeviceInfo] = {}
        self._meetings: dict[int, threading.Thread] = {}
        self._met: dict[int, DeviceInfo] = {}
        #: The indices of GPUs that did not answer in time at the last look at all of them.
        self.silent: list[int] = []
        self._opened_s = 0.0
        self._open()

    def _open(self) -> None:
        if pynvml is None:
            if not has_nvidia_hardware():
                raise NoGpus(_said(NoGpus))
            raise NoDriver(f"{_said(NoDriver)} The Python package nvidia-ml-py, which talks to it, is not installed")
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            if error.value == 12:
                if not has_nvidia_hardware():
                    raise NoGpus(_said(NoGpus)) from None
                raise NoDriver(f"{_said(NoDriver)} There is no libnvidia-ml.so.1 (Jetson boards have none either)") from None
            raise NoDriver(f"{_said(NoDriver)} Starting its library failed: {error}") from None
        self._opened_s = time.monotonic()
        try:
            version = str(pynvml.nvmlSystemGetDriverVersion())
        except pynvml.NVMLError:
            version = "unknown"
        self.driver_version = version
        self.simulated = "gridshift-simulated" in version

    def close(self) -> None:
        """Lets go of the driver."""
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    # -- what there is

    def infos(self) -> list[DeviceInfo]:
        """All GPUs, those that were seen once and do not answer now included (with a note and no limit).

        Each is asked by a thread of its own, and one that does not answer within MEET_S is told of as soon as it does.
        """
        found: dict[str, DeviceInfo] = {}
        indices = range(int(self._steady(pynvml.nvmlDeviceGetCount)))
        for index in indices:
            thread = self._meetings.get(index)
            if index not in self._met and (thread is None or not thread.is_alive()):  # else an earlier look's answer is to come
                thread = self._meetings[index] = threading.Thread(target=self._meet, args=[index], daemon=True)
                thread.start()
        _wait_for(self._meetings[index] for index in indices)
        self.silent = [index for index in indices if self._meetings[index].is_alive()]
        for index in indices:
            if (info := self._met.pop(index, None)) is not None:
                found[info.uuid] = info
        for uuid, info in self._known.items():
            if uuid not in found:
                note = "it does not answer now (lost, or taken out)"
                found[uuid] = replace(info, limit_w=None, notes=(*(n for n in info.notes if n != note), note))
        self._known = {**self._known, **found}
        return sorted(found.values(), key=lambda info: (info.index, info.uuid))

    def _meet(self, index: int) -> None:
        with contextlib.suppress(DeviceError):
            handle = self._steady(pynvml.nvmlDeviceGetHandleByIndex, index)
            uuid = str(self._steady(pynvml.nvmlDeviceGetUUID, handle))
            with self._lock:
                self._handles[uuid] = handle
            self._met[index] = self._info(uuid, index)

    def default_w(self, uuid: str) -> float | None:
        """The limit that the GPU starts with, W; None where it does not tell."""
        return _watts(self._maybe(uuid, pynvml.nvmlDeviceGetPowerManagementDefaultLimit))

    def _info(self, uuid: str, index: int) -> DeviceInfo:
        name = str(self._maybe(uuid, pynvml.nvmlDeviceGetName) or "unknown GPU")
        low, high = self._maybe(uuid, pynvml.nvmlDeviceGetPowerManagementLimitConstraints) or (None, None)
        mig = (self._maybe(uuid, pynvml.nvmlDeviceGetMigMode) or (0, 0))[0] == 1
        module = self._field(uuid, _FIELD_INSTANT, _SCOPE_MODULE) is not None
        arch = self._maybe(uuid, pynvml.nvmlDeviceGetArchitecture)
        average = arch is not None and _AMPERE <= arch < 0xFF and not (arch == _AMPERE and _is_ga100(name))
        counter = not module and self._maybe(uuid, pynvml.nvmlDeviceGetTotalEnergyConsumption) is not None
        limit_w = _watts(self._maybe(uuid, pynvml.nvmlDeviceGetPowerManagementLimit))
        notes = []
        if mig:
            notes.append("MIG is on: power, limit and temperature are the whole GPU's, and utilisation is not known")
        if module:
            notes.append(
                "its energy counter covers the whole module (CPU too), so energy is integrated from the GPU's own power"
            )
        elif not counter:
            notes.append("it has no energy counter: energy is integrated from power")
        if limit_w is None:
            notes.append("its power limit cannot be read, so it is never capped")
        return DeviceInfo(
            uuid=uuid,
            index=index,
            name=name,
            min_w=_watts(low),
            max_w=_watts(high),
            default_w=_watts(self._maybe(uuid, pynvml.nvmlDeviceGetPowerManagementDefaultLimit)),
            limit_w=limit_w,
            mig=mig,
            energy_counter=counter,
            power_is_average=average,
            module_scope=module,
            simulated=self.simulated,
            notes=tuple(notes),
        )

    # -- what it does now

    def reading(self, uuid: str) -> Reading:
        """One look at a GPU; single figures it cannot give are None. Raises DeviceLost when it is gone."""
        at, boot_s = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
        info = self._known.get(uuid)
        if info and info.module_scope:
            # the plain call would be fine for power, but says nothing of its scope; the field does
            power = self._field(uuid, _FIELD_AVERAGE, _SCOPE_GPU)
        else:
            power = self._maybe(uuid, pynvml.nvmlDeviceGetPowerUsage)
        energy = self._maybe(uuid, pynvml.nvmlDeviceGetTotalEnergyConsumption) if not info or info.energy_counter else None
        used = self._maybe(uuid, pynvml.nvmlDeviceGetUtilizationRates)
        reasons = self._maybe(uuid, pynvml.nvmlDeviceGetCurrentClocksEventReasons)
        if reasons is None:
            reasons = self._maybe(uuid, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
        heat = self._maybe(uuid, pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU)
        if heat is None:
            heat = self._maybe(uuid, pynvml.nvmlDeviceGetTemperatureV, pynvml.NVML_TEMPERATURE_GPU)
        return Reading(
            at=at,
            boot_s=boot_s,
            power_w=_watts(power),
            energy_j=None if energy is None else energy / 1000.0,
            limit_w=_watts(self._maybe(uuid, pynvml.nvmlDeviceGetPowerManagementLimit)),
            enforced_w=_watts(self._maybe(uuid, pynvml.nvmlDeviceGetEnforcedPowerLimit)),
            temperature_c=None if heat is None else float(heat),
            sm_util=None if used is None else used.gpu / 100.0,
            mem_util=None if used is None else used.memory / 100.0,
            throttle=tuple(word for bit, word in _THROTTLE if reasons & bit),
            sm_clock_mhz=self._maybe(uuid, pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
        )

    def processes(self, uuid: str) -> list[GpuProcess]:
        """The compute processes on a GPU, those that share it through MPS included."""
        try:
            rows = list(self._call(uuid, pynvml.nvmlDeviceGetComputeRunningProcesses_v3))
        except NotSupported:
            rows = list(self._call(uuid, pynvml.nvmlDeviceGetComputeRunningProcesses_v2))  # drivers before 510
        rows += self._maybe(uuid, pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3) or []
        found = {
            (row.pid, row.gpuInstanceId, row.computeInstanceId): GpuProcess(
                pid=int(row.pid),
                memory_bytes=None if row.usedGpuMemory is None else int(row.usedGpuMemory),
                gpu_instance=_instance(row.gpuInstanceId),
                compute_instance=_instance(row.computeInstanceId),
            )
            for row in rows
        }
        return list(found.values())

    # -- limits

    def limits(self, uuid: str) -> tuple[float, float]:
        """The limit that is set and the one that is enforced, in W. The second can be lower: set out of band, by a BMC."""
        limit_mw = self._call(uuid, pynvml.nvmlDeviceGetPowerManagementLimit)
        enforced_mw = self._call(uuid, pynvml.nvmlDeviceGetEnforcedPowerLimit)
        return limit_mw / 1000.0, enforced_mw / 1000.0

    def set_limit(self, uuid: str, limit_w: float) -> None:
        """Asks for a limit in W, once. Success means the driver took the call: read back what came of it.

        Uses the first version of the call: the binding of the second drops the driver's answer, so that a refusal looks fine.
        """
        try:
            self._once(uuid, pynvml.nvmlDeviceSetPowerManagementLimit, round(limit_w * 1000.0))
        except OutOfRange as error:
            info = self._known.get(uuid)
            span = f"{info.min_w:g} to {info.max_w:g} W" if info and info.min_w and info.max_w else "not known"
            raise OutOfRange(f"{limit_w:g} W is outside what GPU {uuid} allows: {span}") from error

    def can_cap(
        self, uuids: Sequence[str] | None = None, *, spared: Callable[[str], bool] = lambda uuid: False
    ) -> tuple[bool, str]:
        """Whether limits can be set here, found by setting the limits already set on these GPUs, by default on all; the
        sentence says why not. To be asked while no cap of ours is being set on them. One that hangs is not waited for, and one
        that is ``spared`` is not asked: where all are, root is taken to have the right."""
        asked = [info.uuid for info in self.infos()] if uuids is None else list(uuids)
        if not asked:
            return False, "there is no NVIDIA GPU on this machine"
        refusals = {uuid: f"GPU {uuid} does not answer" for uuid in asked}
        threads = [threading.Thread(target=self._try_to_set, args=(uuid, refusals, spared), daemon=True) for uuid in asked]
        for thread in threads:
            thread.start()
        _wait_for(threads)
        asked = [uuid for uuid in asked if refusals[uuid] != SPARED]
        said = [refusals[uuid] for uuid in asked if refusals[uuid]]
        if not asked:
            return os.geteuid() == 0, "" if os.geteuid() == 0 else f"only root may set limits, and {SPARED}"
        if len(said) == len(asked):
            return False, said[0]
        return True, "; ".join(said)

    def _try_to_set(self, uuid: str, refusals: dict[str, str], spared: Callable[[str], bool]) -> None:
        try:
            if spared(uuid):
                refusals[uuid] = SPARED
                return
            for attempt in (1, 2, 3):
                try:
                    self.set_limit(uuid, self.limits(uuid)[0])
                    break
                except DriverBusy:
                    if attempt == 3:
                        raise
            refusals[uuid] = ""
        except DeviceError as error:
            refusals[uuid] = str(error)

    # -- calling

    def _handle(self, uuid: str) -> Any:
        with self._lock:
            if uuid in self._handles:
                return self._handles[uuid]
        handle = self._steady(pynvml.nvmlDeviceGetHandleByUUID, uuid, who=f"GPU {uuid}")
        with self._lock:
            self._handles[uuid] = handle
        return handle

    def _once(self, uuid: str, call: Callable[..., Any], *args: Any) -> Any:
        """One call to the driver for a GPU, its errors as ours."""
        handle = self._handle(uuid)
        try:
            return call(handle, *args)
        except pynvml.NVMLError as error:
            ours = _ours(error, f"GPU {uuid}")
            if isinstance(ours, (DeviceLost, NoDriver)):
                with self._lock:
                    self._handles.pop(uuid, None)  # a GPU that comes back, comes back under a new handle
                self._reopen(ours)
            raise ours from None

    def _call(self, uuid: str, call: Callable[..., Any], *args: Any) -> Any:
        """A reading call: a passing failure is tried once more."""
        try:
            return self._once(uuid, call, *args)
        except DriverBusy:
            return self._once(uuid, call, *args)

    def _maybe(self, uuid: str, call: Callable[..., Any], *args: Any) -> Any:
        """A reading call whose figure may be missing: None then, and not asked again where it does not exist."""
        key = (uuid, call.__name__)
        if key in self._absent:
            return None
        try:
            return self._call(uuid, call, *args)
        except NotSupported:
            self._absent.add(key)
        except (DriverBusy, OutOfRange, NoPermission):
            return None
        return None

    def _field(self, uuid: str, field: int, scope: int) -> int | None:
        """A field value (power: mW), None where this GPU has not got it in that scope."""
        key = (uuid, f"field {field} {scope}")
        if key in self._absent:
            return None
        values = self._maybe(uuid, pynvml.nvmlDeviceGetFieldValues, [(field, scope)])
        if not values:
            return None
        if values[0].nvmlReturn == 0:
            return int(values[0].value.uiVal)
        if _ERRORS.get(values[0].nvmlReturn) in (NotSupported, OutOfRange):
            self._absent.add(key)
        return None

    def _steady(self, call: Callable[..., Any], *args: Any, who: str = "") -> Any:
        """A call that is not about one GPU's state: tried three times, its errors as ours."""
        for attempt in (1, 2, 3):
            try:
                return call(*args)
            except pynvml.NVMLError as error:
                ours = _ours(error, who or f"the driver ({call.__name__})")
                if isinstance(ours, NoDriver):
                    self._reopen(ours)
                if attempt == 3 or not isinstance(ours, DriverBusy):
                    raise ours from None
        raise AssertionError("unreachable")

    def _reopen(self, error: DeviceError) -> None:
        """After the driver was unloaded and loaded again the library must be started again, or it knows nothing."""
        if not isinstance(error, NoDriver) or time.monotonic() - self._opened_s < _REOPEN_S:
            return
        with contextlib.suppress(NoDriver):
            self._opened_s = time.monotonic()
            self._open()
            with self._lock:
                self._handles.clear()
            self._absent.clear()


def _ours(error: Any, who: str) -> DeviceError:
    kind = _ERRORS.get(error.value, DriverBusy)
    return kind(f"{_said(kind)} {who}: {error} (code {error.value})")


def _said(kind: type[DeviceError]) -> str:
    return (kind.__doc__ or "").strip()


def _watts(milliwatts: float | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000.0


def _instance(number: int | None) -> int | None:
    return None if number is None or number == _NO_INSTANCE else int(number)


def _is_ga100(name: str) -> bool:
    words = name.replace("-", " ").split()
    return any(word.startswith(chip) for word in words for chip in _GA100)
