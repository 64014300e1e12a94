"""``gridshift up``: the control plane, a local Ray when no region is configured, and the console, in one command.

It starts and stops processes and decides nothing; everything it started is gone when it ends.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import requests

from dispatcher.config import Config, RegionConfig
from dispatcher.errors import ConfigError, GridshiftError
from dispatcher.local_ray import LocalRay, free_port
from dispatcher.serve import listen, main_serve
from dispatcher.simgpu import SimGpus, environment

#: Wall seconds within which the console must answer.
CONSOLE_LIMIT_S = 40.0


def local_region(config: Config, address: str) -> Config:
    """The configuration with one region, "local", at ``address``, priced by the shipped synthetic profile."""
    if config.planning.default_region not in ("", "local"):
        raise ConfigError(
            f"planning.default_region: {config.planning.default_region!r}: no region is configured, so there is only 'local'"
        )
    region = RegionConfig.model_validate(
        {
            "name": "local",
            "address": address,
            "currency": config.planning.currency,
            "price": [{"feed": "synthetic", "currency": config.planning.currency}],
            "carbon": [{"feed": "synthetic"}],
        }
    )
    return config.model_copy(update={"regions": [region]})


def simulate_gpus(folder: Path, count: int) -> dict[str, str]:
    """The environment in which a node has ``count`` simulated GPUs. They stay the same GPUs from one start to the next, and
    what their agent writes down lies beside them: it must not mix with what an agent of this machine's real GPUs keeps.

    Raises GridshiftError when there is no C compiler."""
    path = folder / f"simulated-gpus-{count}"
    env = {**environment(path), "GRIDSHIFT_AGENT_DIR": str((folder / f"simulated-gpus-{count}-agent").absolute())}
    with contextlib.suppress(GridshiftError):
        if len(SimGpus.open(path)) == count:
            return env
    SimGpus.create(path, count)
    return env


def start_console(config: Config, port: int, token: str | None) -> subprocess.Popen[bytes]:
    """Start the Streamlit console on loopback and wait until it answers. Raises GridshiftError when it does not."""
    from ui.launch import command

    argv, env = command(f"http://127.0.0.1:{config.server.port}", port, token)
    log_path = config.data_dir() / "console.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(argv, env={**os.environ, **env}, stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + CONSOLE_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(requests.RequestException):
            if requests.get(f"http://127.0.0.1:{port}/_stcore/health", timeout=1).ok:
                return process
        time.sleep(0.2)
    end_process(process)
    raise GridshiftError(f"the console did not start on port {port}; see {log_path}")


def end_process(process: subprocess.Popen[bytes], limit_s: float = 5.0) -> None:
    """Ask a process of ours to end, and make it when it does not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _finish_in_peace() -> None:
    """A second Ctrl-C must not leave half of Ray behind."""
    print("stopping what was started here ...", file=sys.stderr, flush=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def main(
    config: Config,
    *,
    console: bool = True,
    console_port: int | None = None,
    token: str | None = None,
    simulated_gpus: int | None = None,
) -> int:
    """Run until SIGINT or SIGTERM; returns the exit code. The local Ray's node gets so many simulated GPUs."""
    data_dir: Path = config.data_dir()
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.ExitStack() as stack:
        # Until the control plane takes over these signals, they must still end what was started here.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        try:
            listen(config).close()  # before anything is started: is the port free?
            if simulated_gpus and config.regions:
                raise GridshiftError("--simulate-gpus is for the local Ray, which is started only when no region is configured")
            if not config.regions:
                env = simulate_gpus(data_dir, simulated_gpus) if simulated_gpus else None
                if env:
                    what = "powers, energy and speeds are a model's, not measured"
                    print(f"the local Ray's {simulated_gpus} GPUs are SIMULATED: {what}", file=sys.stderr, flush=True)
                print("no region is configured: starting a local Ray (about 10 s) ...", file=sys.stderr, flush=True)
                ray = LocalRay("local", base_dir=data_dir, num_cpus=os.cpu_count() or 1, env=env)
                stack.callback(ray.stop)
                ray.start()
                config = local_region(config, ray.address)
            if console:
                port = console_port or free_port()
                process = start_console(config, port, token)
                stack.callback(end_process, process)
                print(f"console: http://127.0.0.1:{port}", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            print("stopped while starting", file=sys.stderr)
            return 1
        except GridshiftError as error:
            print(f"gridshift: {error}", file=sys.stderr)
            return 1
        stack.callback(_finish_in_peace)  # runs first of all when the stack unwinds
        return main_serve(config)
