"""Each way in which a real driver or GPU fails can be set, shows under pynvml as it does there, and can be ended."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml as nv
import pytest

from dispatcher.errors import BadInput
from dispatcher.simgpu import LIBRARY, NVML_TIMEOUT, SimGpus, build
from dispatcher.simgpu.workload import Workload, WorkloadError
from tests.helpers import wait_until
from tests.simgpu.simulated import simulated


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[SimGpus]:
    with simulated(tmp_path, 2) as gpus:
        nv.nvmlInit()
        yield gpus


def test_without_permission_only_setters_are_refused(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    gpus[0].set_no_permission()
    setters: list[tuple[Callable[..., Any], tuple[int, ...]]] = [
        (nv.nvmlDeviceSetPowerManagementLimit, (400_000,)),  # also where it would change nothing
        (nv.nvmlDeviceSetGpuLockedClocks, (210, 705)),
        (nv.nvmlDeviceResetGpuLockedClocks, ()),
        (nv.nvmlDeviceSetMemoryLockedClocks, (1593, 1593)),
        (nv.nvmlDeviceSetPersistenceMode, (1,)),
    ]
    for setter, arguments in setters:
        with pytest.raises(nv.NVMLError_NoPermission):
            setter(handle, *arguments)
    assert nv.nvmlDeviceGetPowerUsage(handle) == 55_000
    nv.nvmlDeviceSetPowerManagementLimit(nv.nvmlDeviceGetHandleByIndex(1), 200_000)
    gpus[0].set_no_permission(False)
    nv.nvmlDeviceSetPowerManagementLimit(handle, 200_000)
    assert [gpu.limit_w for gpu in gpus] == [200, 200]


def test_a_lost_gpu_answers_nothing_draws_nothing_and_stops_its_work(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    with Workload(library=str(build() / LIBRARY)) as workload:
        work = workload.run(float("inf"))
        next(work)
        gpus[0].set_lost()
        with pytest.raises(WorkloadError, match="GPU is lost"):
            next(work)
    for call in (nv.nvmlDeviceGetPowerUsage, nv.nvmlDeviceGetUUID, nv.nvmlDeviceGetTotalEnergyConsumption):
        with pytest.raises(nv.NVMLError_GpuIsLost):
            call(handle)
    with pytest.raises(nv.NVMLError_GpuIsLost):
        nv.nvmlDeviceGetHandleByIndex(0)
    assert nv.nvmlDeviceGetCount() == 2
    energy_j = gpus[0].energy_j
    assert gpus[0].energy_j == energy_j
    gpus[0].set_lost(False)
    assert nv.nvmlDeviceGetPowerUsage(handle) == 55_000
    assert gpus[0].energy_j > energy_j


def test_a_lag_shows_the_old_limit_until_it_is_over(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    gpus[0].set_lag(0.2)
    nv.nvmlDeviceSetPowerManagementLimit(handle, 200_000)
    record = gpus[0].read()
    if record.pending_at_ns:  # else this machine was so busy that the lag is over
        assert record.limit_mw == 400_000 and record.pending_mw == 200_000
    wait_until(lambda: nv.nvmlDeviceGetPowerManagementLimit(handle) == 200_000, 10, "the limit to work")
    assert gpus[0].read().updated_ns >= record.updated_ns + 0.2e9 - 1e6 or not record.pending_at_ns


def test_work_under_a_lagging_limit_goes_at_full_speed_until_it_works(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    gpus[0].set_lag(0.3)
    with Workload(library=str(build() / LIBRARY)) as workload:
        before = gpus[0].read()
        nv.nvmlDeviceSetPowerManagementLimit(handle, 200_000)
        assert list(workload.run(0.5))[-1] == 1
    after = gpus[0].read()
    # at most 0.3 s went at full speed; what was left took 1 / .6437 times as long
    assert (0.5 - 0.3) / 0.6437 - 0.001 <= after.capped_s <= 0.5 / 0.6437
    assert after.work_done_s - before.work_done_s == pytest.approx(0.5)


def test_a_limit_changed_behind_our_back_shows(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    nv.nvmlDeviceSetPowerManagementLimit(handle, 200_000)
    gpus[0].set_limit(400)
    assert nv.nvmlDeviceGetPowerManagementLimit(handle) == 400_000


def test_a_rival_sets_its_limit_again_and_again_until_it_is_ended(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    gpus[0].set_rival(350, every_s=0.05)
    for _ in range(2):
        nv.nvmlDeviceSetPowerManagementLimit(handle, 200_000)
        wait_until(lambda: nv.nvmlDeviceGetPowerManagementLimit(handle) == 350_000, 10, "the rival")
    gpus[0].set_rival(0, every_s=0)
    nv.nvmlDeviceSetPowerManagementLimit(handle, 200_000)
    time.sleep(0.1)  # twice the rival's period: there is nothing else to wait for
    assert nv.nvmlDeviceGetPowerManagementLimit(handle) == 200_000


def test_a_lower_limit_from_outside_is_enforced_and_not_shown_as_ours(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    gpus[0].set_outside_limit(150)
    assert nv.nvmlDeviceGetPowerManagementLimit(handle) == 400_000
    assert nv.nvmlDeviceGetEnforcedPowerLimit(handle) == 150_000
    with Workload(library=str(build() / LIBRARY)) as workload:
        next(workload.run(float("inf")))
        assert gpus[0].power_w == pytest.approx(150, abs=0.01)
    gpus[0].set_outside_limit(None)
    assert nv.nvmlDeviceGetEnforcedPowerLimit(handle) == 400_000


def test_one_call_in_n_fails_with_the_code_that_was_set(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    gpus[0].set_failing(3)
    told = []
    for _ in range(9):
        try:
            told.append(nv.nvmlDeviceGetPowerUsage(handle))
        except nv.NVMLError_Unknown:
            told.append(None)
    assert told.count(None) == 3
    gpus[0].set_failing(1, NVML_TIMEOUT)
    with pytest.raises(nv.NVMLError_Timeout):
        nv.nvmlDeviceSetPowerManagementLimit(handle, 200_000)
    assert gpus[0].limit_w == 400
    gpus[0].set_failing(0)
    assert nv.nvmlDeviceGetPowerUsage(handle) == 55_000


def test_calls_can_be_slow(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    gpus[0].set_slow(0.05)
    begin = time.monotonic()
    nv.nvmlDeviceGetPowerUsage(handle)
    assert time.monotonic() - begin >= 0.05


def test_noise_is_bounded_repeatable_and_not_in_the_energy(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    gpus[0].set_noise(0.1, seed=7)
    first = nv.nvmlDeviceGetPowerUsage(handle)
    other = wait_until(lambda: nv.nvmlDeviceGetPowerUsage(handle) - first, 10, "another value")
    for shown in (first, first + other):
        assert 55_000 * 0.9 <= shown <= 55_000 * 1.1
    before, after = gpus[0].read(), gpus[0].read()
    assert after.energy_mj - before.energy_mj == pytest.approx((after.updated_ns - before.updated_ns) * 55 / 1e6)
    gpus[0].set_noise(0)
    assert nv.nvmlDeviceGetPowerUsage(handle) == 55_000


def test_the_energy_counter_misleads_in_five_ways(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)

    def counter() -> int:
        return int(nv.nvmlDeviceGetTotalEnergyConsumption(handle))

    def burn() -> None:
        with Workload(library=str(build() / LIBRARY)) as workload:
            assert list(workload.run(0.3))[-1] == 1  # 114 J

    burn()
    gpus[0].set_energy_counter("stuck")
    stuck = counter()
    burn()
    assert counter() == stuck
    gpus[0].set_energy_counter("backwards")
    high = counter()
    burn()
    assert counter() < high
    gpus[0].set_energy_counter("jumps")
    before = counter()
    burn()
    assert counter() - before > 1e9
    gpus[0].set_energy_counter("ok", factor=2.0)
    assert counter() == pytest.approx(2 * gpus[0].energy_j * 1000, rel=0.01)
    gpus[0].set_energy_counter("absent")
    with pytest.raises(nv.NVMLError_NotSupported):
        counter()
    (field,) = nv.nvmlDeviceGetFieldValues(handle, [nv.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION])
    assert field.nvmlReturn == nv.NVML_ERROR_NOT_SUPPORTED
    gpus[0].set_energy_counter("ok")
    assert counter() == pytest.approx(gpus[0].energy_j * 1000, rel=0.01)
    with pytest.raises(BadInput, match="sideways"):
        gpus[0].set_energy_counter("sideways")


def test_parts_can_be_missing_as_on_an_old_or_small_gpu(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    calls = {
        "power": nv.nvmlDeviceGetPowerUsage,
        "limits": nv.nvmlDeviceGetPowerManagementLimit,
        "energy": nv.nvmlDeviceGetTotalEnergyConsumption,
        "utilization": nv.nvmlDeviceGetUtilizationRates,
        "processes": nv.nvmlDeviceGetComputeRunningProcesses,
        "clocks": nv.nvmlDeviceGetCurrentClocksEventReasons,
        "mig": nv.nvmlDeviceGetMigMode,
    }
    for part, call in calls.items():
        gpus[0].set_missing(part)
        with pytest.raises(nv.NVMLError_NotSupported):
            call(handle)
        gpus[0].set_missing()
        call(handle)
    with pytest.raises(BadInput, match="steam"):
        gpus[0].set_missing("steam")


def test_without_a_driver_nothing_starts(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    gpus.set_driver_absent()
    with pytest.raises(nv.NVMLError_DriverNotLoaded):
        nv.nvmlDeviceGetPowerUsage(handle)
    with pytest.raises(nv.NVMLError_DriverNotLoaded):
        nv.nvmlInit()
    gpus.set_driver_absent(False)
    nv.nvmlInit()
    assert nv.nvmlDeviceGetPowerUsage(handle) == 55_000


def test_a_reboot_forgets_limits_clocks_counters_and_processes(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    uuid = gpus[0].uuid
    nv.nvmlDeviceSetPowerManagementLimit(handle, 200_000)
    nv.nvmlDeviceSetGpuLockedClocks(handle, 210, 705)
    nv.nvmlDeviceSetPersistenceMode(handle, 1)
    with Workload(library=str(build() / LIBRARY)) as workload:
        work = workload.run(float("inf"))
        next(work)
        energy_j = gpus[0].energy_j
        gpus.reboot()
        with pytest.raises(WorkloadError, match="stopped"):
            next(work)
    record = gpus[0].read()
    assert (record.limit_mw, record.lock_max_mhz, record.process_count, record.boots) == (400_000, 0, 0, 1)
    assert gpus[0].energy_j < energy_j and gpus[0].uuid == uuid
    assert nv.nvmlDeviceGetPersistenceMode(handle) == 0


def test_a_file_from_before_the_machine_was_booted_is_as_after_a_reboot(tmp_path: Path) -> None:
    gpus = SimGpus.create(tmp_path / "old", 1)
    gpus[0].set_limit(123)
    old = (tmp_path / "old").read_bytes()
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    assert old.count(boot_id) == 1
    (tmp_path / "copy").write_bytes(old.replace(boot_id, b"0" * len(boot_id)))
    copy = SimGpus.open(tmp_path / "copy")
    assert (copy[0].limit_w, copy[0].read().boots) == (400, 1)
    assert gpus[0].limit_w == 123


def test_a_split_gpu_says_so_and_tells_no_utilization(gpus: SimGpus) -> None:
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    gpus[0].set_mig()
    assert nv.nvmlDeviceGetMigMode(handle) == [1, 1]
    with pytest.raises(nv.NVMLError_NotSupported):
        nv.nvmlDeviceGetUtilizationRates(handle)
    assert nv.nvmlDeviceGetPowerUsage(handle) == 55_000
