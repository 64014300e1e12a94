"""Ray nodes of a test: the raylets of a local cluster, and more nodes that join it."""

import contextlib
import subprocess
import sys
from pathlib import Path

from dispatcher.local_ray import LocalRay
from dispatcher.simgpu import SimGpus, environment


def raylets(ray: LocalRay) -> dict[int, list[str]]:
    """The cluster's raylets: their command lines by pid, the head's first."""
    found = {}
    for pid in sorted(ray.processes()):
        with contextlib.suppress(OSError):
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            if argv[0].endswith("/raylet"):
                found[pid] = argv
    return found


def second_node(ray: LocalRay, gpus: SimGpus, folder: Path, branch: str = "rack-2") -> "subprocess.Popen[bytes]":
    """A node that joins the cluster, with GPUs of its own, a label that names its branch, and ``folder`` for its agent."""
    head = next(iter(raylets(ray).values()))
    address = next(part.partition("=")[2] for part in head if part.startswith("--gcs-address="))
    assert ray.temp_dir is not None
    home = ray.temp_dir.parent
    env = {**ray._env(home), **environment(gpus.path, base={}), "GRIDSHIFT_AGENT_DIR": str(folder)}
    options = ("--num-cpus=2", f"--labels=gridshift.branch={branch}", "--object-store-memory=100000000", "--block")
    argv = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={address}", "--disable-usage-stats", *options]
    with (home / "second.log").open("wb") as log:
        return subprocess.Popen(
            argv, env=env, cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
