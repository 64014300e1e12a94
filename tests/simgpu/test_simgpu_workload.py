"""Work on simulated GPUs: which GPUs it takes, how it ends, and that it runs by its path under a bare Python."""

import ast
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.simgpu import LIBRARY, SimGpus, build
from dispatcher.simgpu.workload import Workload, WorkloadError, visible, work
from tests.helpers import wait_until
from tests.simgpu.simulated import WORKLOAD, child_environment, simulated, working

UUIDS = ["GPU-aaaa1111-0000-0000-0000-000000000000", "GPU-aaaa2222-0000-0000-0000-000000000000", "GPU-bbbb0000-x"]


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[SimGpus]:
    with simulated(tmp_path, 2) as gpus:
        yield gpus


def run(gpus: SimGpus, *arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-I", "-S", str(WORKLOAD), *arguments]
    return subprocess.run(argv, env=child_environment(gpus) | env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("variable", "indexes"),
    [
        (None, [0, 1, 2]),
        ("1", [1]),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        (UUIDS[1], [1]),
        ("GPU-bbbb", [2]),
        ("0,7,1", [0]),  # the first unknown entry ends the list
        ("0,GPU-aaaa,1", [0]),  # as does one that could be two
    ],
)
def test_it_takes_the_gpus_that_cuda_would(variable: str | None, indexes: list[int]) -> None:
    assert visible(variable, UUIDS) == indexes


@pytest.mark.parametrize("variable", ["", "-1", "3", "NoDevFiles", "GPU-aaaa"])
def test_where_no_gpu_is_visible_it_says_so(variable: str) -> None:
    with pytest.raises(WorkloadError, match="leaves none of the 3 GPUs visible"):
        visible(variable, UUIDS)


def test_it_runs_by_its_path_and_tells_its_progress(gpus: SimGpus, tmp_path: Path) -> None:
    done = run(gpus, "--work-s=0.3", f"--progress={tmp_path / 'part'}", CUDA_VISIBLE_DEVICES="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "working on GPU 1\ndone\n", "")
    assert float((tmp_path / "part").read_text()) == 1
    assert [gpu.read().work_done_s for gpu in gpus] == [0, pytest.approx(0.3, abs=1e-6)]
    assert [gpu.pids for gpu in gpus] == [[], []]


def test_it_needs_nothing_but_an_old_standard_library() -> None:
    tree = ast.parse(WORKLOAD.read_text(), feature_version=(3, 9))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= set(sys.stdlib_module_names)


def test_it_runs_as_a_module_of_ours(gpus: SimGpus) -> None:
    argv = [sys.executable, "-m", "dispatcher.simgpu.workload", "--work-s=0.01"]
    done = subprocess.run(
        argv, env=child_environment(gpus), cwd=WORKLOAD.parents[2], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "working on GPU 0, 1\ndone\n" and done.stderr == ""


def test_several_gpus_work_together_and_the_slowest_sets_the_time(gpus: SimGpus) -> None:
    gpus[1].set_limit(200)
    work(0.2, library=str(build() / LIBRARY))
    assert [gpu.read().work_done_s for gpu in gpus] == [pytest.approx(0.2, abs=1e-6)] * 2
    assert gpus[1].read().capped_s == pytest.approx(0.2 / 0.64369, rel=1e-3)
    assert gpus[0].read().capped_s == 0


def test_an_interrupt_ends_it_and_frees_the_gpu(gpus: SimGpus) -> None:
    with working(gpus) as process:
        assert gpus[0].pids == [process.pid]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert gpus[0].read().process_count == 0


def test_it_can_stay_on_the_gpu_without_work(gpus: SimGpus) -> None:
    with working(gpus, 0.01, arguments=("--hold-s=60",)) as process:
        wait_until(lambda: gpus[0].read().work_done_s == pytest.approx(0.01), 10, "the work")
        assert gpus[0].power_w == 90 and gpus[0].pids == [process.pid]


def test_without_simulated_gpus_it_says_what_is_missing(gpus: SimGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = run(gpus, "--work-s=1", GRIDSHIFT_SIMGPU="/nowhere")
    assert absent.returncode == 2 and "/nowhere holds no simulated GPUs" in absent.stderr
    none_visible = run(gpus, "--work-s=1", CUDA_VISIBLE_DEVICES="")
    assert none_visible.returncode == 2 and "leaves none of the 2 GPUs visible" in none_visible.stderr
    with pytest.raises(WorkloadError, match=r"intensity 1\.5"):
        Workload(1.5)
    with pytest.raises(WorkloadError, match="real GPU driver"):
        Workload(library="libc.so.6")  # a library without our functions, as NVIDIA's is
    with pytest.raises(WorkloadError, match="no GPU driver"):
        Workload(library="libnothing.so.1")
    monkeypatch.delenv("GRIDSHIFT_SIMGPU")
    with pytest.raises(WorkloadError, match="GRIDSHIFT_SIMGPU is not set"):
        Workload()


def test_a_gpu_takes_a_limited_number_of_attachments(gpus: SimGpus) -> None:
    library = str(build() / LIBRARY)
    held = [Workload(0, library=library) for _ in range(32)]
    with pytest.raises(WorkloadError, match="GPU 0 does not take this process"):
        Workload(0, library=library)
    for workload in held:
        workload.close()
    assert [gpu.read().process_count for gpu in gpus] == [0, 0]
