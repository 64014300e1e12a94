"""What a real GPU does about power, as JSON: limits, draw under load and idle, counters, delays, and caps if allowed.

    python tests/gpu/check.py [--index 0] [--allow-cap] [--quick]

It takes less than five minutes and only reads, unless --allow-cap is given: then it sets five power limits, one after another,
and puts back the one that it found, also when it is interrupted or fails. It needs pynvml alone; load.py beside it puts on the
load, where that is possible. Without a GPU it says so, and that is no failure. Exit code 1: the limit could not be put back.
"""

import argparse
import json
import math
import os
import queue
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

LOAD = Path(__file__).with_name("load.py")
#: The whole run, in seconds, and what is kept of it for putting things back.
BUDGET_S, RESERVE_S = 280.0, 15.0
#: Time between two looks at the power.
SAMPLE_S = 0.01
#: Points between the lowest cap that makes sense and the default limit.
CAP_POINTS = 5
LOWEST_SHARE = 0.5
INSTANT, AVERAGE = 186, 185


@dataclass(frozen=True)
class Phases:
    """How long each part is looked at, in seconds."""

    idle_s: float = 15.0
    load_s: float = 20.0
    resident_s: float = 15.0
    settle_s: float = 5.0
    rest_s: float = 3.0
    cap_settle_s: float = 3.0
    cap_s: float = 7.0
    restore_s: float = 5.0


QUICK = Phases(idle_s=1.0, load_s=3.0, resident_s=1.0, settle_s=0.2, rest_s=1.5, cap_settle_s=0.3, cap_s=0.9, restore_s=2.0)


@dataclass(frozen=True)
class Sample:
    """One look: monotonic seconds, W, J since the driver was loaded; None where the GPU does not say."""

    at: float
    power_w: float | None
    instant_w: float | None
    energy_j: float | None


class Gpu:
    """One GPU through pynvml, in W, J and s."""

    def __init__(self, nvml: Any, index: int) -> None:
        self.nvml, self.index = nvml, index
        self.handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(self, call: str, *arguments: Any) -> Any:
        """What NVML answers; None where the GPU or the driver has no answer."""
        try:
            return getattr(self.nvml, call)(self.handle, *arguments)
        except (self.nvml.NVMLError, AttributeError):
            return None

    def watts(self, call: str) -> float | None:
        """A call that answers in mW."""
        mw = self.ask(call)
        return mw / 1000.0 if mw is not None else None

    def field_w(self, field: int) -> float | None:
        """A power field in mW, of the GPU itself."""
        values = self.ask("nvmlDeviceGetFieldValues", [(field, 0)])
        if not values or values[0].nvmlReturn != 0:
            return None
        return float(values[0].value.uiVal) / 1000.0

    def sample(self) -> Sample:
        """One look."""
        energy_mj = self.ask("nvmlDeviceGetTotalEnergyConsumption")
        at = time.monotonic()
        return Sample(
            at,
            self.watts("nvmlDeviceGetPowerUsage"),
            self.field_w(INSTANT),
            energy_mj / 1000.0 if energy_mj is not None else None,
        )

    def watch(self, seconds: float) -> list[Sample]:
        """Look for so long."""
        samples, until = [self.sample()], time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(SAMPLE_S)
            samples.append(self.sample())
        return samples

    def set_limit(self, limit_w: float) -> str | None:
        """Set the limit; None when it was taken, else why not. Only the first version of this call tells of a refusal."""
        try:
            self.nvml.nvmlDeviceSetPowerManagementLimit(self.handle, round(limit_w * 1000))
        except self.nvml.NVMLError as error:
            return str(error)
        return None

    def identity(self) -> dict[str, Any]:
        """Who it is and what it may be set to."""
        constraints = self.ask("nvmlDeviceGetPowerManagementLimitConstraints")
        mig = self.ask("nvmlDeviceGetMigMode")
        clocks = {name: self.ask("nvmlDeviceGetMaxClockInfo", kind) for name, kind in (("sm", 1), ("memory", 2))}
        processes = self.ask("nvmlDeviceGetComputeRunningProcesses")
        return {
            "index": self.index,
            "name": _text(self.ask("nvmlDeviceGetName")),
            "uuid": _text(self.ask("nvmlDeviceGetUUID")),
            "architecture": self.ask("nvmlDeviceGetArchitecture"),
            "limit_w": self.watts("nvmlDeviceGetPowerManagementLimit"),
            "enforced_limit_w": self.watts("nvmlDeviceGetEnforcedPowerLimit"),
            "default_limit_w": self.watts("nvmlDeviceGetPowerManagementDefaultLimit"),
            "lowest_limit_w": constraints[0] / 1000.0 if constraints else None,
            "highest_limit_w": constraints[1] / 1000.0 if constraints else None,
            "max_sm_clock_mhz": clocks["sm"],
            "max_memory_clock_mhz": clocks["memory"],
            "persistence_mode": self.ask("nvmlDeviceGetPersistenceMode"),
            "mig": bool(mig[0]) if mig else False,
            "average_power_field_w": self.field_w(AVERAGE),
            "instant_power_field_w": self.field_w(INSTANT),
            "energy_counter": self.ask("nvmlDeviceGetTotalEnergyConsumption") is not None,
            "processes_of_others": len(processes) if processes is not None else None,
        }


def _text(value: Any) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


# --- figures ------------------------------------------------------------------------------------------------------


def draw(samples: Sequence[Sample]) -> dict[str, float | None]:
    """What was drawn over the samples."""
    powers = [s.power_w for s in samples if s.power_w is not None]
    if not powers:
        return {"mean_power_w": None}
    ordered = sorted(powers)
    return {
        "mean_power_w": statistics.fmean(powers),
        "lowest_power_w": ordered[0],
        "median_power_w": statistics.median(ordered),
        "highest_power_w": ordered[-1],
        "seconds": samples[-1].at - samples[0].at,
    }


def integral_j(samples: Sequence[Sample], power: Callable[[Sample], float | None] = lambda s: s.power_w) -> float | None:
    """The area under the power, by trapezoids."""
    known = [(s.at, p) for s in samples if (p := power(s)) is not None]
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(known)) if len(known) > 1 else None


def counter_against_integral(samples: Sequence[Sample]) -> dict[str, float | None]:
    """The energy counter between its first and last change, beside the integral of power over the same time."""
    changes = [
        b for a, b in pairwise(samples) if a.energy_j is not None and b.energy_j is not None and a.energy_j != b.energy_j
    ]
    if len(changes) < 2:
        return {"counter_j": None, "integral_j": integral_j(samples), "counter_over_integral": None}
    first, last = changes[0], changes[-1]
    counted = (last.energy_j or 0.0) - (first.energy_j or 0.0)
    over = [s for s in samples if first.at <= s.at <= last.at]
    drawn, instant = integral_j(over), integral_j(over, lambda s: s.instant_w)
    return {
        "counter_j": counted,
        "integral_j": drawn,
        "integral_of_instant_j": instant,
        "counter_over_integral": counted / drawn if drawn else None,
        "counter_over_integral_of_instant": counted / instant if instant else None,
        "seconds": last.at - first.at,
    }


def refresh_s(samples: Sequence[Sample], value: Callable[[Sample], float | None]) -> float | None:
    """The median time between two changes of a value; None where it hardly changes."""
    at = [b.at for a, b in pairwise(samples) if value(a) is not None and value(a) != value(b)]
    return statistics.median(b - a for a, b in pairwise(at)) if len(at) > 2 else None


def delay_s(samples: Sequence[Sample], started: float, share: float, value: Callable[[Sample], float | None]) -> float | None:
    """From the start of a load until the power had risen by ``share`` of what it rises in the end."""
    before = [p for s in samples if s.at < started and (p := value(s)) is not None]
    after = [(s.at, p) for s in samples if s.at >= started and (p := value(s)) is not None]
    if not before or len(after) < 4:
        return None
    low = statistics.median(before)
    high = statistics.median([p for _, p in after[len(after) // 2 :]])
    if high - low < 10.0:
        return None
    return next((at - started for at, p in after if p >= low + share * (high - low)), None)


def delays(samples: Sequence[Sample], started: float) -> dict[str, float | None]:
    """How late telemetry tells of a load: the usual power reading, and the instantaneous one."""
    told = {}
    for name, value in (("power", lambda s: s.power_w), ("instant_power", lambda s: s.instant_w)):
        for share in (0.1, 0.5, 0.9):
            told[f"{name}_rises_{share:.0%}_after_s".replace("%", "_percent")] = delay_s(samples, started, share, value)
    return told


def rate_per_s(progress: Sequence[tuple[float, int]], start: float, end: float) -> float | None:
    """Steps a second between the first and the last word of progress within ``[start, end]``."""
    within = [(at, done) for at, done in progress if start <= at <= end]
    if len(within) < 2 or within[-1][0] <= within[0][0]:
        return None
    return (within[-1][1] - within[0][1]) / (within[-1][0] - within[0][0])


def cap_points(lowest_w: float, default_w: float, found_w: float) -> list[float]:
    """Limits to try: from the default, but never above the limit that was found (somebody may need it), down to half of the
    default, or to the lowest that the GPU takes."""
    top = min(default_w, found_w)
    low = min(max(lowest_w, LOWEST_SHARE * default_w), top)
    return list(dict.fromkeys(round(top - i * (top - low) / (CAP_POINTS - 1), 1) for i in range(CAP_POINTS)))


# --- load ---------------------------------------------------------------------------------------------------------


class Load:
    """The child process that puts load on the GPU, and what it said. ``reason`` is why it cannot, None when it can."""

    def __init__(self, uuid: str | None, simulated: bool, ready_s: float) -> None:
        self.way: str | None = None
        self.reason: str | None = "the driver is simulated, and plays no kernels" if simulated else None
        self.progress: list[tuple[float, int]] = []
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._process: subprocess.Popen[str] | None = None
        if simulated:
            return
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": uuid or "0"}
        self._process = subprocess.Popen(
            [sys.executable, str(LOAD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        said = self.wait("ready", ready_s)
        self.way = said.get("way") if said is not None else None
        self.reason = None if self.way else (said or {}).get("reason", f"the load was not ready within {ready_s:.0f} s")

    def _listen(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._take(json.loads(line))
        self._take({"event": "failed", "reason": "the load ended by itself", "t": time.monotonic()})

    def _take(self, event: dict[str, Any]) -> None:
        if event["event"] == "progress":
            self.progress.append((event["t"], event["done"]))
        else:
            self._events.put(event)

    def wait(self, event: str, seconds: float) -> dict[str, Any] | None:
        """The next event of that name, or what came in its place (not_here, failed); None when nothing comes in time."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                said = self._events.get(timeout=left)
            except queue.Empty:
                return None
            if said["event"] in (event, "not_here", "failed"):
                return said
        return None

    def begin(self, kind: str, seconds: float, rest_s: float) -> None:
        """Let it start; ``start`` comes when the GPU is at work."""
        assert self._process is not None and self._process.stdin is not None
        self.progress.clear()
        self._process.stdin.write(f"{kind} {seconds} {rest_s}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._listener.join()
            with self._process:  # closes its pipes, and waits
                pass


@contextmanager
def watching(gpu: Gpu) -> Iterator[list[Sample]]:
    """Samples that gather while something else happens."""
    samples: list[Sample] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            samples.append(gpu.sample())
            time.sleep(SAMPLE_S)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()


# --- the check ----------------------------------------------------------------------------------------------------


class Check:
    """One run. Parts for which no time is left are skipped, and say so."""

    def __init__(self, gpu: Gpu, phases: Phases, simulated: bool) -> None:
        self.gpu, self.phases, self.simulated = gpu, phases, simulated
        self.until = time.monotonic() + BUDGET_S - RESERVE_S

    def left_s(self) -> float:
        """Seconds left for measuring."""
        return self.until - time.monotonic()

    def run(self, allow_cap: bool) -> dict[str, Any]:
        """Everything, in the order in which it disturbs least."""
        gpu, phases = self.gpu, self.phases
        told: dict[str, Any] = {"gpu": gpu.identity()}
        idle = gpu.watch(phases.idle_s)
        told["deep_idle"] = draw(idle) | {"others_present": bool(told["gpu"]["processes_of_others"])}
        told["energy_at_idle"] = counter_against_integral(idle)
        load = Load(told["gpu"]["uuid"], self.simulated, min(90.0, self.left_s()))
        try:
            told["load"] = load.way or {"possible": False, "reason": f"not possible here: {load.reason}"}
            told |= self.under_load(load)
            if allow_cap:
                told["caps"] = self.caps(load, told["gpu"])
        finally:
            load.close()
        return told

    def under_load(self, load: Load) -> dict[str, Any]:
        """A matrix product, a memory-bound pass, and a process that is there and does nothing."""
        names = {"matrix": "matrix_product", "memory": "memory_bound"}
        if load.reason is not None:
            missing = {"possible": False, "reason": f"not possible here: {load.reason}"}
            return dict.fromkeys((*names.values(), "resident_idle", "telemetry_delay", "energy_under_load"), missing)
        told: dict[str, Any] = {}
        time.sleep(self.phases.settle_s)
        told["resident_idle"] = draw(self.gpu.watch(self.phases.resident_s))
        for kind, name in names.items():
            seconds = self.phases.load_s
            if self.left_s() < seconds + 20.0:
                told[name] = {"possible": False, "reason": "no time was left for it"}
                continue
            told[name] = self.one_load(load, kind, seconds, told)
        return told

    def one_load(self, load: Load, kind: str, seconds: float, told: dict[str, Any]) -> dict[str, Any]:
        """One kind of load, and, with the matrix product, what it tells of telemetry."""
        with watching(self.gpu) as samples:
            load.begin(kind, seconds, self.phases.rest_s)
            started = load.wait("start", 30.0)
            ended = load.wait("end", seconds + 15.0) if started is not None and started["event"] == "start" else None
        if started is None or ended is None or ended["event"] != "end":
            reason = (ended or started or {}).get("reason", "the load did not answer in time")
            return {"possible": False, "reason": reason}
        start, end = started["t"], ended["t"]
        steady = [s for s in samples if start + min(2.0, seconds / 3) <= s.at <= end]
        if kind == "matrix":
            around = [s for s in samples if start - 0.5 <= s.at <= end]
            told["telemetry_delay"] = delays(around, start)
            told["telemetry_refresh"] = {
                "power_changes_each_s": refresh_s(steady, lambda s: s.power_w),
                "instant_power_changes_each_s": refresh_s(steady, lambda s: s.instant_w),
                "energy_changes_each_s": refresh_s(steady, lambda s: s.energy_j),
            }
            told["energy_under_load"] = counter_against_integral(steady)
        return draw(steady) | {"step": started["step"], "steps_per_s": rate_per_s(load.progress, start, end)}

    # --- caps: the only part that sets anything -------------------------------------------------------------------

    def caps(self, load: Load, identity: dict[str, Any]) -> dict[str, Any]:
        """Draw and throughput under five limits, and how long a limit takes; then the limit that was found, read back."""
        found_w, default_w, lowest_w = (identity[key] for key in ("limit_w", "default_limit_w", "lowest_limit_w"))
        if found_w is None or default_w is None or lowest_w is None:
            return {"possible": False, "reason": "this GPU does not tell its power limits"}
        refused = self.gpu.set_limit(found_w)
        if refused is not None:
            return {"possible": False, "reason": f"limits cannot be set here: {refused}"}
        print(f"if this is killed: nvidia-smi -i {self.gpu.index} -pl {found_w:g}", file=sys.stderr)
        told: dict[str, Any] = {"found_limit_w": found_w, "points": []}
        try:
            self.points(load, cap_points(lowest_w, default_w, found_w), told["points"])
        except KeyboardInterrupt:
            told["interrupted"] = True
        except (self.gpu.nvml.NVMLError, OSError) as error:
            told["failed"] = f"{type(error).__name__}: {error}"
        finally:
            told["restored"] = self.restore(found_w)
        return told

    def points(self, load: Load, limits: Sequence[float], points: list[dict[str, Any]]) -> None:
        """Add a point for each limit, the highest first: throughput is told relative to that."""
        phases = self.phases
        per_point_s = phases.cap_settle_s + phases.cap_s
        if load.reason is None:
            load.begin("matrix", min(len(limits) * per_point_s + 10.0, self.left_s()), phases.rest_s)
            started = load.wait("start", 30.0)
            if started is None or started["event"] != "start":
                points.append({"reason": "the load did not start"})
                return
        for limit_w in limits:
            if self.left_s() < per_point_s:
                points.append({"cap_w": limit_w, "reason": "no time was left for it"})
                continue
            points.append(self.point(load, limit_w))
        rates = [point.get("steps_per_s") for point in points]
        for point in points:
            share = point["steps_per_s"] / rates[0] if point.get("steps_per_s") and rates[0] else None
            point["throughput_share"] = share

    def point(self, load: Load, limit_w: float) -> dict[str, Any]:
        """One limit: how long it takes to be read back and to be felt, and what is drawn and done under it."""
        with watching(self.gpu) as samples:
            called = time.monotonic()
            refused = self.gpu.set_limit(limit_w)
            returned = time.monotonic()
            if refused is not None:
                return {"cap_w": limit_w, "reason": refused}
            read_back = self.wait_for_limit(limit_w, 5.0)
            time.sleep(max(0.0, called + self.phases.cap_settle_s - time.monotonic()))
            steady_from = time.monotonic()
            time.sleep(self.phases.cap_s)
        steady = [s for s in samples if s.at >= steady_from]
        return {
            "cap_w": limit_w,
            "enforced_limit_w": self.gpu.watts("nvmlDeviceGetEnforcedPowerLimit"),
            "call_s": returned - called,
            "read_back_after_s": read_back - called if read_back is not None else None,
            "power_below_cap_after_s": below_after_s(samples, called, limit_w, lambda s: s.power_w),
            "instant_power_below_cap_after_s": below_after_s(samples, called, limit_w, lambda s: s.instant_w),
            "steps_per_s": rate_per_s(load.progress, steady_from, steady_from + self.phases.cap_s),
            **draw(steady),
        }

    def wait_for_limit(self, limit_w: float, seconds: float) -> float | None:
        """When the limit was read back as set; None when it is not within ``seconds``."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            held_w = self.gpu.watts("nvmlDeviceGetPowerManagementLimit")
            if held_w is not None and math.isclose(held_w, limit_w, abs_tol=0.6):
                return time.monotonic()
            time.sleep(SAMPLE_S)
        return None

    def restore(self, limit_w: float) -> dict[str, Any]:
        """Put the limit back and read it; nothing may interrupt this."""
        held = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
        try:
            refused, tries = self.gpu.set_limit(limit_w), 1
            while (refused is not None or self.wait_for_limit(limit_w, 1.0) is None) and tries < self.phases.restore_s:
                time.sleep(1.0)
                refused, tries = self.gpu.set_limit(limit_w), tries + 1
            read_w = self.gpu.watts("nvmlDeviceGetPowerManagementLimit")
            ok = refused is None and read_w is not None and math.isclose(read_w, limit_w, abs_tol=0.6)
            return {"limit_w": limit_w, "read_back_w": read_w, "tries": tries, "ok": ok, "reason": refused}
        finally:
            for number, handler in held.items():
                signal.signal(number, handler)


def below_after_s(
    samples: Sequence[Sample], called: float, limit_w: float, value: Callable[[Sample], float | None]
) -> float | None:
    """From the call until the power was, for good, no more than 5 % above the limit; None where it never was."""
    after = [(s.at, p) for s in samples if s.at >= called and (p := value(s)) is not None]
    above = [at for at, p in after if p > 1.05 * limit_w]
    if not after or (above and above[-1] >= after[-1][0]):
        return None
    return next(at for at, _ in after if at > above[-1]) - called if above else 0.0


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _interrupt(number: int, _: object) -> None:
    for other in _SIGNALS:  # what is set is being put back now; an impatient second signal must not stop that
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt(f"signal {number}")


def check(index: int, allow_cap: bool, phases: Phases) -> dict[str, Any]:
    """The whole result."""
    began = time.monotonic()
    try:
        import pynvml as nvml
    except ImportError:
        return {"gpu": None, "reason": "pynvml is not installed (distribution nvidia-ml-py)"}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return {"gpu": None, "reason": f"no NVIDIA driver answers: {error}"}
    try:
        count = nvml.nvmlDeviceGetCount()
        driver = _text(nvml.nvmlSystemGetDriverVersion()) or ""
        if not 0 <= index < count:
            return {"gpu": None, "reason": f"there is no GPU {index}; the driver knows {count}", "driver": driver}
        simulated = "gridshift-simulated" in driver
        told = Check(Gpu(nvml, index), phases, simulated).run(allow_cap)
        return {"driver": driver, "simulated": simulated, **told, "took_s": time.monotonic() - began}
    except nvml.NVMLError as error:
        return {"gpu": None, "reason": f"the GPU does not answer: {error}"}
    finally:
        nvml.nvmlShutdown()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the result as JSON."""
    parser = argparse.ArgumentParser(description="What a GPU does about power. Reads only, unless --allow-cap is given.")
    parser.add_argument("--index", type=int, default=0, help="which GPU (NVML's number)")
    parser.add_argument("--allow-cap", action="store_true", help="set five power limits, then put back the one that was there")
    parser.add_argument("--quick", action="store_true", help="short looks, for trying the script itself")
    options = parser.parse_args(arguments)
    for number in _SIGNALS:
        signal.signal(number, _interrupt)
    try:
        told = check(options.index, options.allow_cap, QUICK if options.quick else Phases())
    except KeyboardInterrupt:
        print("interrupted; nothing is left set", file=sys.stderr)
        return 130
    print(json.dumps(told, indent=2))
    caps = told.get("caps") or {}
    if "restored" in caps and not caps["restored"]["ok"]:
        found_w = caps["found_limit_w"]
        print(f"the limit was NOT put back: run nvidia-smi -i {options.index} -pl {found_w:g}", file=sys.stderr)
        return 1
    return 130 if caps.get("interrupted") else 0


if __name__ == "__main__":
    sys.exit(main())
