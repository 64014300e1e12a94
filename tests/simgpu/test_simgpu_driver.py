"""The simulated driver under the real pynvml: what it says of its GPUs, and what limits, clocks and work do to them."""

import time
from collections.abc import Iterator
from pathlib import Path

import pynvml as nv
import pytest

from dispatcher.errors import BadInput, GridshiftError
from dispatcher.simgpu import LIBRARY, SimGpus, build
from dispatcher.simgpu.workload import Workload
from tests.simgpu.simulated import simulated

TABLE = {"a100": {0.75: 0.87, 0.60: 0.75, 0.50: 0.63}, "a100-inference": {0.75: 0.94, 0.60: 0.86, 0.50: 0.78}}


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[SimGpus]:
    with simulated(tmp_path, 2) as gpus:
        nv.nvmlInit()
        yield gpus


def boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def do_work(gpus: SimGpus, work_s: float, intensity: float = 1.0) -> None:
    with Workload(intensity, library=str(build() / LIBRARY)) as workload:
        assert list(workload.run(work_s))[-1] == 1.0


def test_it_introduces_its_gpus_as_simulated_ones_with_full_uuids(gpus: SimGpus) -> None:
    assert "gridshift-simulated" in nv.nvmlSystemGetDriverVersion()
    assert nv.nvmlDeviceGetCount() == len(gpus) == 2
    uuids = []
    for index, gpu in enumerate(gpus):
        handle = nv.nvmlDeviceGetHandleByIndex(index)
        assert nv.nvmlDeviceGetName(handle) == gpu.name == "NVIDIA A100-SXM4-80GB (simulated)"
        uuids.append(nv.nvmlDeviceGetUUID(handle))
        assert nv.nvmlDeviceGetIndex(nv.nvmlDeviceGetHandleByUUID(uuids[-1])) == index
        assert nv.nvmlDeviceGetArchitecture(handle) == nv.NVML_DEVICE_ARCH_AMPERE
        assert nv.nvmlDeviceGetMigMode(handle) == [0, 0]
        assert (
            nv.nvmlDeviceGetMemoryInfo(handle).total == nv.nvmlDeviceGetMemoryInfo(handle, nv.nvmlMemory_v2).total == 80 << 30
        )
    assert len(set(uuids)) == 2 and all(len(uuid) == 40 and uuid.startswith("GPU-") for uuid in uuids)
    with pytest.raises(nv.NVMLError_NotFound):
        nv.nvmlDeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-000000000000")
    with pytest.raises(nv.NVMLError_InvalidArgument):
        nv.nvmlDeviceGetHandleByIndex(2)
    with pytest.raises(nv.NVMLError_FunctionNotFound):
        nv.nvmlDeviceGetVbiosVersion(nv.nvmlDeviceGetHandleByIndex(0))


def test_a_limit_is_refused_out_of_range_and_else_read_back(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(1)
    assert nv.nvmlDeviceGetPowerManagementLimitConstraints(handle) == [100_000, 400_000]
    assert nv.nvmlDeviceGetPowerManagementDefaultLimit(handle) == nv.nvmlDeviceGetPowerManagementLimit(handle) == 400_000
    nv.nvmlDeviceSetPowerManagementLimit(handle, 250_000)
    assert nv.nvmlDeviceGetPowerManagementLimit(handle) == nv.nvmlDeviceGetEnforcedPowerLimit(handle) == 250_000
    for limit_mw in (99_999, 400_001):
        with pytest.raises(nv.NVMLError_InvalidArgument):
            nv.nvmlDeviceSetPowerManagementLimit(handle, limit_mw)
    assert nv.nvmlDeviceGetPowerManagementLimit(handle) == 250_000
    gpus[0].set_limit(400)  # not by NVML
    assert gpus[0].limit_w == 400 and [gpu.limit_calls for gpu in gpus] == [0, 3]


def test_the_second_setter_answers_as_the_real_one_whose_binding_hides_errors(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    nv.nvmlDeviceSetPowerManagementLimit_v2(handle, nv.NVML_POWER_SCOPE_GPU, 200_000)
    assert gpus[0].limit_w == 200
    assert nv.nvmlDeviceSetPowerManagementLimit_v2(handle, nv.NVML_POWER_SCOPE_GPU, 1_000) == nv.NVML_SUCCESS
    assert nv.nvmlDeviceSetPowerManagementLimit_v2(handle, nv.NVML_POWER_SCOPE_MODULE, 300_000) == nv.NVML_SUCCESS
    assert gpus[0].limit_w == 200, "both were refused, and the binding said success"


@pytest.mark.parametrize("model", TABLE)
def test_a_limit_takes_speed_and_power_as_the_published_curves_do(tmp_path: Path, model: str) -> None:
    with simulated(tmp_path, 1, model=model) as gpus:
        nv.nvmlInit()
        handle = nv.nvmlDeviceGetHandleByIndex(0)
        with Workload(library=str(build() / LIBRARY)) as workload:
            work = workload.run(float("inf"))
            next(work)
            for part, speed in TABLE[model].items():
                nv.nvmlDeviceSetPowerManagementLimit(handle, round(part * 400_000))
                next(work)
                moment = gpus[0].moment()
                assert moment.speed == pytest.approx(speed, abs=0.03)
                assert moment.power_w == pytest.approx(part * 400, abs=0.01)
                assert nv.nvmlDeviceGetPowerUsage(handle) == pytest.approx(part * 400_000, abs=1)
                assert nv.nvmlDeviceGetCurrentClocksEventReasons(handle) == nv.nvmlClocksEventReasonSwPowerCap
                clock_mhz = nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_SM)
                assert clock_mhz == pytest.approx(moment.clock * 1410, abs=8) and clock_mhz < 1410


def test_work_takes_longer_under_a_limit_by_exactly_the_lost_speed(gpus: SimGpus) -> None:
    before = gpus[0].read()
    do_work(gpus, 0.2)
    assert gpus[0].read().work_done_s - before.work_done_s == pytest.approx(0.2, abs=1e-6)
    assert gpus[0].read().capped_s == 0
    gpus[0].set_limit(200)
    do_work(gpus, 0.2)
    # what the model says of 200 W: a clock of .5999 and a speed of .6437
    assert gpus[0].read().capped_s == pytest.approx(0.2 / 0.64369, rel=1e-3)


def test_the_energy_counter_is_power_times_time(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    begin_s, begin_mj = boot_s(), nv.nvmlDeviceGetTotalEnergyConsumption(handle)
    do_work(gpus, 0.4)
    gpus[0].set_limit(150)
    do_work(gpus, 0.1)
    capped_s = gpus[0].read().capped_s
    end_s, end_mj = boot_s(), nv.nvmlDeviceGetTotalEnergyConsumption(handle)
    busy_j, rest_s = 380 * 0.4 + 150 * capped_s, end_s - begin_s - 0.4 - capped_s
    # The rest, a few ms on an unhurried machine, was idle or waiting with a program on the GPU.
    assert (busy_j + 55 * rest_s) * 0.999 <= (end_mj - begin_mj) / 1000 <= (busy_j + 90 * rest_s) * 1.001
    assert gpus[0].energy_j >= end_mj / 1000


def test_an_idle_gpu_draws_its_idle_power_and_says_so(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    assert nv.nvmlDeviceGetPowerUsage(handle) == 55_000
    assert nv.nvmlDeviceGetCurrentClocksEventReasons(handle) == nv.nvmlClocksEventReasonGpuIdle
    rates = nv.nvmlDeviceGetUtilizationRates(handle)
    assert (rates.gpu, rates.memory) == (0, 0)
    assert nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_SM) == 210
    before, after = gpus[0].read(), gpus[0].read()
    seconds = (after.updated_ns - before.updated_ns) / 1e9
    assert seconds > 0
    assert after.energy_mj - before.energy_mj == pytest.approx(55_000 * seconds, rel=1e-6)


def test_a_program_that_waits_on_the_gpu_draws_more_than_an_empty_one_and_less_with_low_clocks(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    with Workload(library=str(build() / LIBRARY)):
        assert gpus[0].power_w == 90
        nv.nvmlDeviceSetGpuLockedClocks(handle, 210, 210)
        assert gpus[0].power_w == pytest.approx(55 + 35 * 210 / 1410)
        nv.nvmlDeviceResetGpuLockedClocks(handle)
        assert gpus[0].power_w == 90
    assert gpus[0].power_w == 55


def test_locked_clocks_slow_work_and_outlive_the_process(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    nv.nvmlDeviceSetGpuLockedClocks(handle, 210, 705)
    nv.nvmlShutdown()
    nv.nvmlInit()
    with Workload(library=str(build() / LIBRARY)) as workload:
        next(workload.run(float("inf")))
        assert gpus[0].moment().clock == 0.5
        assert nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_SM) == 705
        assert nv.nvmlDeviceGetCurrentClocksEventReasons(handle) == nv.nvmlClocksEventReasonApplicationsClocksSetting
    with pytest.raises(nv.NVMLError_InvalidArgument):
        nv.nvmlDeviceSetGpuLockedClocks(handle, 705, 210)
    clocks = nv.nvmlDeviceGetSupportedGraphicsClocks(handle, nv.nvmlDeviceGetSupportedMemoryClocks(handle)[0])
    assert (clocks[0], clocks[-1]) == (1410, 210)


def test_temperature_follows_power(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    cold = gpus[0].read().temperature_c
    assert nv.nvmlDeviceGetTemperatureV(handle, nv.NVML_TEMPERATURE_GPU) == round(cold)
    do_work(gpus, 0.3)
    warm = gpus[0].read().temperature_c
    assert cold + 0.3 < warm < 28 + 45
    gpus[0].write(temperature_c=60.0)
    assert nv.nvmlDeviceGetTemperature(handle, nv.NVML_TEMPERATURE_GPU) == 60


def test_several_attachments_share_one_gpu_and_are_one_process_to_nvml(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    library = str(build() / LIBRARY)
    with Workload(0.5, 1 << 30, library=library) as first, Workload(1.0, 2 << 30, library=library) as second:
        one, two = first.run(float("inf")), second.run(float("inf"))
        next(one)
        assert gpus[0].moment().load == 0.5 and gpus[0].moment().speed == 1
        assert nv.nvmlDeviceGetUtilizationRates(handle).gpu == 50
        next(two)
        next(one)
        moment = gpus[0].moment()
        assert moment.load == 1 and moment.speed == pytest.approx(1 / 1.5) and moment.power_w == pytest.approx(380)
        (process,) = nv.nvmlDeviceGetComputeRunningProcesses(handle)
        assert process.usedGpuMemory == 3 << 30 == nv.nvmlDeviceGetMemoryInfo(handle).used
        assert process.gpuInstanceId == 0xFFFFFFFF
        assert [process.pid] == gpus[0].pids
        (sample,) = nv.nvmlDeviceGetProcessUtilization(handle, 0)
        assert (sample.pid, sample.smUtil) == (process.pid, 100)
    assert nv.nvmlDeviceGetComputeRunningProcesses(handle) == []
    assert nv.nvmlDeviceGetGraphicsRunningProcesses(handle) == []


def test_field_values_tell_the_same_and_what_they_do_not_know(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    gpus[0].set_outside_limit(300)
    nv.nvmlDeviceSetPowerManagementLimit(handle, 350_000)
    fields = [nv.NVML_FI_DEV_POWER_INSTANT, nv.NVML_FI_DEV_POWER_AVERAGE, nv.NVML_FI_DEV_POWER_MIN_LIMIT]
    fields += [nv.NVML_FI_DEV_POWER_MAX_LIMIT, nv.NVML_FI_DEV_POWER_DEFAULT_LIMIT, nv.NVML_FI_DEV_POWER_CURRENT_LIMIT]
    values = nv.nvmlDeviceGetFieldValues(handle, [*fields, nv.NVML_FI_DEV_POWER_REQUESTED_LIMIT])
    assert [value.value.uiVal for value in values] == [55_000, 55_000, 100_000, 400_000, 400_000, 300_000, 350_000]
    counter = nv.nvmlDeviceGetTotalEnergyConsumption(handle)
    (energy,) = nv.nvmlDeviceGetFieldValues(handle, [nv.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION])
    assert energy.value.ullVal >= counter and energy.valueType == nv.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    module, unknown = nv.nvmlDeviceGetFieldValues(handle, [(nv.NVML_FI_DEV_POWER_INSTANT, 1), nv.NVML_FI_DEV_ECC_CURRENT])
    assert module.nvmlReturn == unknown.nvmlReturn == nv.NVML_ERROR_NOT_SUPPORTED


def test_a_module_with_a_processor_tells_its_power_in_its_own_scope(tmp_path: Path) -> None:
    with simulated(tmp_path, 1, model="gh200"):
        nv.nvmlInit()
        handle = nv.nvmlDeviceGetHandleByIndex(0)
        instant = nv.NVML_FI_DEV_POWER_INSTANT
        gpu, module = nv.nvmlDeviceGetFieldValues(handle, [(instant, 0), (instant, 1)])
        assert (gpu.value.uiVal, module.value.uiVal) == (70_000, 160_000)
        assert nv.nvmlDeviceGetPowerUsage(handle) == 160_000


def test_a_later_chip_shows_the_mean_power_of_about_a_second(tmp_path: Path) -> None:
    with simulated(tmp_path, 1, model="h100") as gpus:
        nv.nvmlInit()
        handle = nv.nvmlDeviceGetHandleByIndex(0)
        with Workload(library=str(build() / LIBRARY)) as workload:
            next(workload.run(float("inf")))
            shown_w = nv.nvmlDeviceGetPowerUsage(handle) / 1000
            assert 70 < shown_w < gpus[0].power_w == 665
        (instant,) = nv.nvmlDeviceGetFieldValues(handle, [nv.NVML_FI_DEV_POWER_INSTANT])
        assert instant.value.uiVal == 70_000


def test_one_process_can_look_at_one_state_file_after_the_other(tmp_path: Path) -> None:
    seen = []
    for name, count in (("a", 1), ("b", 3)):
        (tmp_path / name).mkdir()
        with simulated(tmp_path / name, count):
            nv.nvmlInit()
            seen.append((nv.nvmlDeviceGetCount(), nv.nvmlDeviceGetUUID(nv.nvmlDeviceGetHandleByIndex(0))))
    assert [count for count, _ in seen] == [1, 3] and seen[0][1] != seen[1][1]


def test_without_init_nothing_is_told(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    nv.nvmlShutdown()
    with pytest.raises(nv.NVMLError_Uninitialized):
        nv.nvmlDeviceGetPowerUsage(handle)


@pytest.mark.parametrize(("count", "model", "named"), [(0, "a100", "count"), (17, "a100", "count"), (1, "z80", "model")])
def test_gpus_that_cannot_be_are_refused_by_name(tmp_path: Path, count: int, model: str, named: str) -> None:
    with pytest.raises(BadInput, match=named):
        SimGpus.create(tmp_path / "x", count, model=model)
    assert not list(tmp_path.iterdir())


def test_a_file_that_holds_no_gpus_is_refused(tmp_path: Path) -> None:
    for text in ("", "x" * 100_000):
        (tmp_path / "x").write_text(text)
        with pytest.raises(GridshiftError, match="holds no simulated GPUs"):
            SimGpus.open(tmp_path / "x")
    with pytest.raises(GridshiftError, match="No such file"):
        SimGpus.open(tmp_path / "absent")
    with pytest.raises(GridshiftError, match="cannot write simulated GPUs"):
        SimGpus.create(tmp_path / "absent" / "x", 1)
