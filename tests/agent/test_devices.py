"""What the agent reads of GPUs, through the real pynvml, from a simulated driver that breaks in the ways real ones do."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.agent import devices as devices_module
from dispatcher.agent.devices import (
    DeviceLost,
    Devices,
    DriverBusy,
    NoDriver,
    NoPermission,
    NotSupported,
    OutOfRange,
)
from dispatcher.simgpu import NVML_TIMEOUT, SimGpus
from tests.simgpu.simulated import child_environment, simulated, working


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[SimGpus]:
    with simulated(tmp_path, count=2) as some:
        yield some


@pytest.fixture
def devices(gpus: SimGpus) -> Iterator[Devices]:
    found = Devices()
    yield found
    found.close()


def test_what_a_gpu_is(gpus: SimGpus, devices: Devices) -> None:
    first, second = devices.infos()
    assert (first.uuid, second.uuid) == (gpus[0].uuid, gpus[1].uuid)
    assert (first.index, second.index) == (0, 1)
    assert (first.min_w, first.max_w, first.default_w, first.limit_w) == (100.0, 400.0, 400.0, 400.0)
    assert first.simulated and "A100" in first.name
    assert first.energy_counter and not first.mig and not first.module_scope
    assert not first.power_is_average  # GA100 tells the power of the instant
    assert first.notes == ()


def test_a_hopper_tells_averages(tmp_path: Path) -> None:
    with simulated(tmp_path, model="h100"):
        assert Devices().infos()[0].power_is_average


def test_on_grace_hopper_power_is_the_gpus_and_the_modules_counter_is_not_used(tmp_path: Path) -> None:
    with simulated(tmp_path, model="gh200") as gpus:
        devices = Devices()
        [info] = devices.infos()
        assert info.module_scope and not info.energy_counter
        assert "whole module" in info.notes[0]
        reading = devices.reading(info.uuid)
        assert reading.energy_j is None
        assert reading.power_w == pytest.approx(gpus[0].power_w, rel=0.05)


def test_mig_is_told_and_figures_it_hides_are_missing_not_zero(gpus: SimGpus, devices: Devices) -> None:
    gpus[0].set_mig()
    info = devices.infos()[0]
    assert info.mig and "whole GPU's" in info.notes[0]
    reading = devices.reading(info.uuid)
    assert reading.sm_util is None and reading.mem_util is None
    assert reading.power_w is not None


def test_a_reading(gpus: SimGpus, devices: Devices) -> None:
    with working(gpus, visible="0") as process:
        uuid = gpus[0].uuid
        reading = devices.reading(uuid)
        assert abs(reading.at - time.time()) < 5
        assert abs(reading.boot_s - time.clock_gettime(time.CLOCK_BOOTTIME)) < 5
        assert reading.power_w is not None and reading.power_w > 55
        assert reading.energy_j is not None and reading.energy_j >= 0
        assert (reading.limit_w, reading.enforced_w) == (400.0, 400.0)
        assert reading.sm_util is not None and 0 <= reading.sm_util <= 1
        assert reading.temperature_c is not None and 10 < reading.temperature_c < 110
        assert reading.sm_clock_mhz is not None and reading.sm_clock_mhz > 100
        [found] = devices.processes(uuid)
        assert found.pid == process.pid
        assert found.memory_bytes is not None and found.memory_bytes > 0
        assert found.gpu_instance is None
    assert devices.processes(gpus[1].uuid) == []
    assert devices.reading(gpus[1].uuid).throttle == ("idle",)


def test_a_capped_gpu_says_so(gpus: SimGpus, devices: Devices) -> None:
    with working(gpus, visible="0"):
        devices.set_limit(gpus[0].uuid, 200.0)
        assert devices.limits(gpus[0].uuid) == (200.0, 200.0)
        until_s = time.monotonic() + 5.0  # on a busy machine the work itself can be late
        while "sw_power_cap" not in devices.reading(gpus[0].uuid).throttle:
            assert time.monotonic() < until_s
            time.sleep(0.02)


def test_limits_from_outside_show_as_enforced(gpus: SimGpus, devices: Devices) -> None:
    gpus[0].set_outside_limit(250)
    assert devices.limits(gpus[0].uuid) == (400.0, 250.0)


def test_figures_a_gpu_has_not_got_are_missing(gpus: SimGpus, devices: Devices) -> None:
    gpus[0].set_missing("power", "energy", "fields", "utilization", "temperature", "clocks", "mig")
    info = devices.infos()[0]
    assert not info.energy_counter and "integrated from power" in info.notes[0]
    reading = devices.reading(info.uuid)
    assert (reading.power_w, reading.energy_j, reading.sm_util, reading.temperature_c) == (None, None, None, None)
    assert reading.limit_w == 400.0


def test_a_gpu_without_limits_is_told(gpus: SimGpus, devices: Devices) -> None:
    gpus[0].set_missing("limits")
    info = devices.infos()[0]
    assert (info.min_w, info.max_w, info.default_w, info.limit_w) == (None, None, None, None)
    assert "never capped" in info.notes[-1]
    with pytest.raises(NotSupported, match=f"cannot do this. GPU {info.uuid}"):
        devices.limits(info.uuid)


def test_a_refused_limit_names_the_range(gpus: SimGpus, devices: Devices) -> None:
    devices.infos()
    for limit_w in (99.0, 401.0):
        with pytest.raises(OutOfRange, match=f"{limit_w:g} W is outside what GPU {gpus[0].uuid} allows: 100 to 400 W"):
            devices.set_limit(gpus[0].uuid, limit_w)
    assert gpus[0].limit_w == 400.0


def test_without_the_right_the_refusal_is_plain(gpus: SimGpus, devices: Devices) -> None:
    assert devices.can_cap() == (True, "")
    for gpu in gpus:
        gpu.set_no_permission()
    able, why = devices.can_cap()
    assert not able and "only root" in why and gpus[0].uuid in why
    with pytest.raises(NoPermission):
        devices.set_limit(gpus[0].uuid, 300.0)
    gpus[1].set_no_permission(False)
    able, why = devices.can_cap()
    assert able and gpus[0].uuid in why  # one of two: told, but able
    assert [gpu.limit_w for gpu in gpus] == [400.0, 400.0]


def test_a_lost_gpu_is_lost_until_it_comes_back(gpus: SimGpus, devices: Devices) -> None:
    uuid = devices.infos()[0].uuid
    gpus[0].set_lost()
    for ask in (devices.reading, devices.limits, devices.processes):
        with pytest.raises(DeviceLost, match=f"does not answer any more. GPU {uuid}"):
            ask(uuid)
    lost, well = devices.infos()
    assert lost.limit_w is None and "does not answer now" in lost.notes[-1]
    assert well.limit_w == 400.0
    gpus[0].set_lost(False)
    assert devices.infos()[0].notes == ()
    assert devices.reading(lost.uuid).limit_w == 400.0


def test_one_failing_call_in_a_few_is_asked_again_when_reading(gpus: SimGpus, devices: Devices) -> None:
    uuid = gpus[0].uuid
    gpus[0].set_failing(3, NVML_TIMEOUT)
    for _ in range(20):
        reading = devices.reading(uuid)
        assert None not in (reading.power_w, reading.energy_j, reading.limit_w, reading.sm_util)
    gpus[0].set_failing(1)
    with pytest.raises(DriverBusy, match="failed for the moment"):
        devices.limits(uuid)
    with pytest.raises(DriverBusy):
        devices.set_limit(uuid, 300.0)


def test_no_driver(gpus: SimGpus) -> None:
    gpus.set_driver_absent()
    with pytest.raises(NoDriver, match="No NVIDIA driver answers on this machine"):
        Devices()


def test_a_driver_that_goes_away_and_comes_back(gpus: SimGpus, devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices_module, "_REOPEN_S", 0.0)
    uuid = devices.infos()[0].uuid
    gpus.set_driver_absent()
    with pytest.raises(NoDriver):
        devices.reading(uuid)
    gpus.set_driver_absent(False)
    assert devices.reading(uuid).limit_w == 400.0


def test_hardware_is_seen_without_its_driver(tmp_path: Path) -> None:
    assert not devices_module.has_nvidia_hardware(tmp_path)
    for number, (vendor, kind) in enumerate((("0x8086", "0x030000"), ("0x10de", "0x0c0330"), ("0x10de", "0x030200"))):
        device = tmp_path / "sys/bus/pci/devices" / f"0000:0{number}:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
        assert devices_module.has_nvidia_hardware(tmp_path) == (number == 2)  # not Intel's, nor the GPU's USB controller
    (tmp_path / "other/dev").mkdir(parents=True)
    (tmp_path / "other/dev/nvidia0").touch()
    assert devices_module.has_nvidia_hardware(tmp_path / "other")


def test_without_the_library_the_error_says_what_is_missing() -> None:
    env = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    script = "from dispatcher.agent.devices import Devices, NoDriver\ntry: Devices()\nexcept NoDriver as error: print(error)"
    said = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True).stdout
    if devices_module.has_nvidia_hardware():
        assert "No NVIDIA driver answers" in said and ("libnvidia-ml.so.1" in said or "Starting its library failed" in said)
    else:
        assert "no NVIDIA GPU" in said


def test_a_process_of_its_own_sees_the_same_gpus(gpus: SimGpus) -> None:
    script = "from dispatcher.agent.devices import Devices\nprint(*[info.uuid for info in Devices().infos()])"
    run = subprocess.run(
        [sys.executable, "-c", script], env=child_environment(gpus), capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == [gpu.uuid for gpu in gpus]
