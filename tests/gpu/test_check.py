"""The check for machines with a GPU, tried where there is none: its arithmetic, and a whole run against simulated GPUs."""

import ctypes
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pynvml
import pytest

from dispatcher.simgpu import SimGpus
from tests.gpu import check, load
from tests.gpu.check import Sample
from tests.helpers import wait_until
from tests.simgpu.simulated import child_environment, simulated

SCRIPT = Path(check.__file__)
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="the simulated driver needs a C compiler")


def ramp(power_w: Sequence[float], *, every_s: float = 0.1, energy_factor: float = 1.0) -> list[Sample]:
    """Samples of these powers, with a counter that agrees but for a factor."""
    samples, energy_j = [], 1000.0
    for i, one in enumerate(power_w):
        if i:
            energy_j += energy_factor * every_s * (one + power_w[i - 1]) / 2
        samples.append(Sample(i * every_s, one, None, energy_j))
    return samples


# --- figures ------------------------------------------------------------------------------------------------------


def test_draw_and_its_integral() -> None:
    samples = ramp([100.0] * 5 + [300.0] * 6)
    told = check.draw(samples)
    assert (told["lowest_power_w"], told["highest_power_w"]) == (100.0, 300.0) and told["seconds"] == pytest.approx(1.0)
    assert check.integral_j(samples) == pytest.approx(0.4 * 100 + 0.1 * 200 + 0.5 * 300)
    assert check.draw([Sample(0.0, None, None, None)]) == {"mean_power_w": None}


def test_the_counter_beside_the_integral() -> None:
    told = check.counter_against_integral(ramp([200.0] * 50, energy_factor=0.6))
    assert told["counter_over_integral"] == pytest.approx(0.6) and told["integral_of_instant_j"] is None
    stuck = [Sample(i / 10, 200.0, None, 5.0) for i in range(50)]
    assert check.counter_against_integral(stuck)["counter_over_integral"] is None


def test_how_often_a_value_changes() -> None:
    samples = [Sample(i / 100, float(i // 10), None, None) for i in range(100)]
    assert check.refresh_s(samples, lambda s: s.power_w) == pytest.approx(0.1)
    assert check.refresh_s(samples, lambda s: s.energy_j) is None


def test_how_late_telemetry_tells_of_a_load() -> None:
    samples = ramp([100.0] * 10 + [100.0, 100.0, 180.0, 260.0, 300.0] + [300.0] * 20)
    told = check.delays(samples, samples[10].at)
    assert told["power_rises_10_percent_after_s"] == pytest.approx(0.2)
    assert told["power_rises_90_percent_after_s"] == pytest.approx(0.4)
    assert told["instant_power_rises_50_percent_after_s"] is None
    assert check.delay_s(ramp([100.0] * 30), 1.0, 0.5, lambda s: s.power_w) is None, "it never rose"


def test_when_a_cap_is_felt_for_good() -> None:
    samples = ramp([390.0, 380.0, 290.0, 330.0, 301.0, 299.0, 300.0])
    assert check.below_after_s(samples, 0.0, 300.0, lambda s: s.power_w) == pytest.approx(0.4)
    assert check.below_after_s(samples, 0.0, 400.0, lambda s: s.power_w) == 0.0
    assert check.below_after_s(samples, 0.0, 200.0, lambda s: s.power_w) is None


def test_steps_a_second() -> None:
    progress = [(float(i), 10 * i) for i in range(10)]
    assert check.rate_per_s(progress, 2.0, 6.5) == 10.0
    assert check.rate_per_s(progress, 2.1, 2.9) is None


def test_caps_stay_at_half_of_the_default_or_above() -> None:
    assert check.cap_points(100.0, 400.0, 400.0) == [400.0, 350.0, 300.0, 250.0, 200.0]
    assert check.cap_points(300.0, 400.0, 500.0)[-1] == 300.0
    assert check.cap_points(100.0, 400.0, 300.0) == [300.0, 275.0, 250.0, 225.0, 200.0], "never above what was found"
    assert check.cap_points(100.0, 400.0, 150.0) == [150.0]


# --- the load -----------------------------------------------------------------------------------------------------


def test_without_cuda_the_load_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for way in ("torch_way", "cupy_way"):
        assert callable(getattr(load, way))
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_: (_ for _ in ()).throw(OSError("no such library")))
    with pytest.raises(load.NotHere) as caught:
        load.any_way()
    assert str(caught.value) == "PyTorch is not installed; CuPy is not installed; there is no CUDA driver (libcuda.so.1)"


TORCH = """
import time
__version__ = "pretended"
bfloat16 = float32 = None
class cuda:
    is_available = staticmethod(lambda: True)
    synchronize = staticmethod(lambda: time.sleep(0.002))
randn = randn_like = ones = empty_like = lambda *a, **k: 0
matmul = add = lambda *a, **k: None
"""


@pytest.mark.real
@needs_compiler
def test_a_load_a_cap_and_the_limit_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    phases = check.Phases(
        idle_s=0.1, load_s=1.0, resident_s=0.1, settle_s=0.0, rest_s=0.1, cap_settle_s=0.1, cap_s=0.8, restore_s=2.0
    )
    with simulated(tmp_path) as gpus:
        pynvml.nvmlInit()
        gpus[0].set_limit(360.0)
        told = check.Check(check.Gpu(pynvml, 0), phases, simulated=False).run(allow_cap=True)
        assert gpus[0].limit_w == 360.0
    assert told["load"] == "PyTorch pretended"
    assert told["matrix_product"]["steps_per_s"] > 0 and told["memory_bound"]["steps_per_s"] > 0
    points = told["caps"]["points"]
    assert [point["enforced_limit_w"] for point in points] == [360.0, 320.0, 280.0, 240.0, 200.0]
    assert points[0]["throughput_share"] == 1.0 and all(point["throughput_share"] > 0 for point in points)
    assert told["caps"]["restored"]["ok"] and told["caps"]["restored"]["read_back_w"] == 360.0


# --- a whole run --------------------------------------------------------------------------------------------------


def start(gpus: SimGpus, *arguments: str) -> "subprocess.Popen[str]":
    argv = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.Popen(argv, env=child_environment(gpus), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: "subprocess.Popen[str]") -> tuple[int, dict[str, Any], str]:
    with process:
        out, err = process.communicate(timeout=60)
    return process.returncode, json.loads(out), err


@pytest.mark.real
@needs_compiler
def test_a_run_that_only_reads(tmp_path: Path) -> None:
    with simulated(tmp_path) as gpus:
        rc, told, err = finish(start(gpus, "--quick"))
        assert gpus[0].limit_w == 400.0
    assert (rc, err, told["simulated"]) == (0, "", True) and "caps" not in told
    gpu = told["gpu"]
    assert gpu["uuid"].startswith("GPU-") and (gpu["lowest_limit_w"], gpu["default_limit_w"]) == (100.0, 400.0)
    assert 40 < told["deep_idle"]["mean_power_w"] < 70
    assert told["energy_at_idle"]["counter_over_integral"] == pytest.approx(1.0, abs=0.1)
    for part in ("load", "matrix_product", "memory_bound", "resident_idle", "telemetry_delay"):
        assert told[part]["possible"] is False and told[part]["reason"].startswith("not possible here"), part
    assert told["took_s"] < 30


@pytest.mark.real
@needs_compiler
def test_caps_are_set_only_when_allowed_and_put_back(tmp_path: Path) -> None:
    with simulated(tmp_path) as gpus:
        gpus[0].set_limit(340.0)
        rc, told, err = finish(start(gpus, "--quick", "--allow-cap"))
        assert gpus[0].limit_w == 340.0
    assert rc == 0 and "if this is killed: nvidia-smi -i 0 -pl 340" in err
    assert [point["enforced_limit_w"] for point in told["caps"]["points"]] == [340.0, 305.0, 270.0, 235.0, 200.0]
    assert told["caps"]["restored"] == {"limit_w": 340.0, "read_back_w": 340.0, "tries": 1, "ok": True, "reason": None}


@pytest.mark.real
@needs_compiler
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_puts_the_limit_back_first(tmp_path: Path, number: int) -> None:
    with simulated(tmp_path) as gpus:
        process = start(gpus, "--quick", "--allow-cap")
        wait_until(lambda: gpus[0].limit_w < 400.0, 30, "a cap to be set")
        process.send_signal(number)
        rc, told, _ = finish(process)
        assert gpus[0].limit_w == 400.0
    assert rc == 130 and told["caps"]["interrupted"] and told["caps"]["restored"]["ok"]


@needs_compiler
def test_without_the_right_to_set_limits_it_says_so(tmp_path: Path) -> None:
    with simulated(tmp_path) as gpus:
        pynvml.nvmlInit()
        gpus[0].set_no_permission()
        one = check.Check(check.Gpu(pynvml, 0), check.QUICK, simulated=True)
        told = one.caps(check.Load(None, True, 1.0), one.gpu.identity())
    assert told["possible"] is False and "limits cannot be set here" in told["reason"]


@needs_compiler
def test_without_a_driver_or_that_gpu_it_is_no_failure(tmp_path: Path) -> None:
    with simulated(tmp_path) as gpus:
        told = check.check(7, False, check.QUICK)
        assert told["gpu"] is None and told["reason"] == "there is no GPU 7; the driver knows 1"
        gpus.set_driver_absent()
        told = check.check(0, False, check.QUICK)
    assert told["gpu"] is None and told["reason"].startswith("no NVIDIA driver answers")
