"""Compiling the simulated driver, and its layout on the Python side."""

import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dispatcher.config import Config
from dispatcher.errors import GridshiftError
from dispatcher.simgpu import LIBRARY, GpuRecord, ProcessRecord, SimGpus, build, environment
from dispatcher.simgpu.build import SOURCE
from dispatcher.up import main as run_up
from dispatcher.up import simulate_gpus
from tests.helpers import free_port


def test_without_a_compiler_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GridshiftError, match="need a C compiler"):
        build(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GridshiftError, match=r"cannot write the simulated driver to .*/file/"):
        build(tmp_path / "file")


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'no such header: stdio.h' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GridshiftError, match=r"no such header: stdio\.h"):
        build(tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_it_is_compiled_once_also_by_several_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(build(tmp_path))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 3 and len(set(folders)) == 1
    assert [path.name for path in folders[0].iterdir()] == [LIBRARY]
    monkeypatch.setenv("PATH", "")  # no compiler now, and none is needed
    assert build(tmp_path) == folders[0]
    assert len(SimGpus.create(tmp_path / "gpus", 1, cache_dir=tmp_path)) == 1


def members(name: str) -> list[str]:
    """The members of a struct of driver.c, in order."""
    body = re.search(r"typedef struct \{([^}]*)\} " + name + ";", SOURCE.read_text())
    assert body
    text = re.sub(r"/\*.*?\*/", "", body[1], flags=re.S)
    text = re.sub(r"\[\w+\]|\b(char|uint64_t|double|Process)\b", "", text)
    return re.findall(r"\w+", text)


def test_the_layout_is_the_same_on_both_sides() -> None:
    for name, record in (("Gpu", GpuRecord), ("Process", ProcessRecord)):
        assert members(name) == [field[0] for field in record._fields_]


def test_the_environment_puts_the_driver_first_and_keeps_what_was_there(tmp_path: Path) -> None:
    env = environment(tmp_path / "x", base={"LD_LIBRARY_PATH": "/opt/lib"})
    folder, rest = env["LD_LIBRARY_PATH"].split(":", 1)
    assert (Path(folder) / LIBRARY).exists() and rest == "/opt/lib"
    assert env["GRIDSHIFT_SIMGPU"] == str(tmp_path / "x")
    assert environment(tmp_path / "x", base={})["LD_LIBRARY_PATH"] == folder


def test_it_is_importable_where_pynvml_is_not() -> None:
    code = "import sys; sys.modules['pynvml'] = None; import dispatcher.simgpu, dispatcher.simgpu.workload; print('fine')"
    done = subprocess.run([sys.executable, "-c", code], cwd=SOURCE.parents[2], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_a_second_start_has_the_same_gpus(tmp_path: Path) -> None:
    first = simulate_gpus(tmp_path, 2)
    path = Path(first["GRIDSHIFT_SIMGPU"])
    uuids = [gpu.uuid for gpu in SimGpus.open(path)]
    assert simulate_gpus(tmp_path, 2) == first
    assert [gpu.uuid for gpu in SimGpus.open(path)] == uuids
    assert Path(first["GRIDSHIFT_AGENT_DIR"]).parent == tmp_path, "not where an agent of real GPUs keeps its leases"
    assert len(SimGpus.open(Path(simulate_gpus(tmp_path, 3)["GRIDSHIFT_SIMGPU"]))) == 3
    path.write_bytes(b"damaged")
    assert simulate_gpus(tmp_path, 2) == first
    assert len(SimGpus.open(path)) == 2


def test_up_refuses_to_simulate_gpus_where_it_starts_no_ray(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    region = {"name": "a", "address": "http://127.0.0.1:1"}
    config = Config.model_validate({"region": [region], "server": {"port": free_port(), "data_dir": str(tmp_path)}})
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert run_up(config, console=False, simulated_gpus=2) == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "--simulate-gpus is for the local Ray" in capsys.readouterr().err
