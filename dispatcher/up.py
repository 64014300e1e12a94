"""``gridshift up``: the control plane, a local Ray when no region is configured, and the console, in one command.

It starts and stops processes and decides nothing; a local Ray that dies is started again, and everything it started is gone
when it ends, however it ends.
"""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import requests

from dispatcher.config import Config, RegionConfig
from dispatcher.config_outside import check_outside
from dispatcher.errors import ConfigError, GridshiftError
from dispatcher.local_ray import MARK, LocalRay, end_guard, free_port, start_guard
from dispatcher.serve import listen, main_serve
from dispatcher.simgpu import SimGpus, environment

#: Wall seconds within which the console must answer.
CONSOLE_LIMIT_S = 40.0
#: Wall seconds between two looks at whether the local Ray still lives.
LOOK_S = 1.0
#: So many deaths of the local Ray within so many wall seconds are its end: what kills it will do so again.
MAX_DEATHS, DEATHS_WITHIN_S = 3, 300.0


def check_installed(config: Config, console: bool) -> None:
    """Raises GridshiftError when something to be started is not installed, naming the extra as the README does."""
    missing, extras, instead = [], [], []
    if not config.regions and importlib.util.find_spec("ray") is None:
        missing, extras, instead = ["Ray"], ["ray"], ["name a region of your own in gridshift.toml"]
    if console and importlib.util.find_spec("streamlit") is None:
        missing, extras = [*missing, "the console"], [*extras, "ui"]
        instead.append("do without the console: 'gridshift up --no-console' or 'gridshift serve'")
    if missing:
        is_missing = f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not installed here"
        install = f"pip install '.[{','.join(extras)}]' in the clone of gridshift"
        raise GridshiftError(f"{is_missing}; install with: {install}, or {' and '.join(instead)}")


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


@contextlib.contextmanager
def running_console(config: Config, port: int, token: str | None) -> Iterator[None]:
    """The Streamlit console on loopback: it answers from the start of the context, is ended with it, and does not outlive this
    process either. Raises GridshiftError when it does not start."""
    from ui.launch import command

    argv, env = command(f"http://127.0.0.1:{config.server.port}", port, token)
    log_path = config.data_dir() / "console.log"
    # No folder, but a name that only our console has in its environment, by which the guard knows it.
    mark = config.data_dir().absolute() / f"console-of-{os.getpid()}"
    env = {**os.environ, **env, MARK: str(mark)}
    with contextlib.ExitStack() as stack:
        stack.callback(end_guard, start_guard(mark))
        with log_path.open("wb") as log:
            process = subprocess.Popen(argv, env=env, stdout=log, stderr=log, start_new_session=True)
        stack.callback(end_process, process)
        if not _answers(process, port):
            raise GridshiftError(f"the console did not start on port {port}; see {log_path}")
        yield


def _answers(console: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + CONSOLE_LIMIT_S
    while time.monotonic() < deadline and console.poll() is None:
        with contextlib.suppress(requests.RequestException):
            if requests.get(f"http://127.0.0.1:{port}/_stcore/health", timeout=1).ok:
                return True
        time.sleep(0.2)
    return False


def end_process(process: subprocess.Popen[bytes], limit_s: float = 5.0) -> None:
    """Ask a process of ours to end, and make it when it does not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class RayKeeper:
    """Looks after the local Ray and starts it again, at its old address, when it has died. When it dies again and again, or
    does not start, ``failed`` is true and this process is told to end."""

    def __init__(self, ray: LocalRay) -> None:
        self.failed = False
        self._ray = ray
        self._deaths_s: list[float] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="local-ray", daemon=True)

    def start(self) -> None:
        """Look after it from now on; it runs already."""
        self._thread.start()

    def close(self) -> None:
        """Look after it no more, and stop it."""
        self._closing.set()
        self._ray.stop()  # this ends a start that is under way, too
        if self._thread.is_alive():
            self._thread.join()

    def look(self, now_s: float) -> None:
        """Start it again when it has died; ``now_s`` is monotonic. Raises GridshiftError when it died too often or does not
        start."""
        death = self._ray.death()
        if death is None:
            return
        self._deaths_s = [at_s for at_s in self._deaths_s if now_s - at_s < DEATHS_WITHIN_S] + [now_s]
        if len(self._deaths_s) >= MAX_DEATHS:
            raise GridshiftError(f"{death}, {MAX_DEATHS} times within {DEATHS_WITHIN_S / 60:g} minutes")
        print(f"{death}; starting it again; what ran on it is lost", file=sys.stderr, flush=True)
        self._ray.start()

    def _run(self) -> None:
        try:
            while not self._closing.wait(LOOK_S):
                self.look(time.monotonic())
        except (GridshiftError, OSError) as error:
            if not self._closing.is_set():
                self.failed = True
                print(f"gridshift: {error}; ending; 'gridshift up' starts everything again", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGTERM)


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
    try:
        check_outside(config)  # a local Ray and a console take long to start
    except ConfigError as error:
        print(f"gridshift: {error}", file=sys.stderr)
        return 2
    data_dir = config.make_data_dir()
    keeper: RayKeeper | None = None
    with contextlib.ExitStack() as stack:
        # Until the control plane takes over these signals, they must still end what was started here.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        try:
            listen(config).close()  # before anything is started: is the port free?
            if simulated_gpus and config.regions:
                raise GridshiftError("--simulate-gpus is for the local Ray, which is started only when no region is configured")
            check_installed(config, console)
            if not config.regions:
                env = simulate_gpus(data_dir, simulated_gpus) if simulated_gpus else None
                if env:
                    what = "powers, energy and speeds are a model's, not measured"
                    print(f"the local Ray's {simulated_gpus} GPUs are SIMULATED: {what}", file=sys.stderr, flush=True)
                print("no region is configured: starting a local Ray (about 10 s) ...", file=sys.stderr, flush=True)
                ray = LocalRay("local", base_dir=data_dir, num_cpus=os.cpu_count() or 1, env=env)
                keeper = RayKeeper(ray)
                stack.callback(keeper.close)
                ray.start()
                keeper.start()
                config = local_region(config, ray.address)
            if console:
                port = console_port or free_port()
                stack.enter_context(running_console(config, port, token))
                print(f"console: http://127.0.0.1:{port}", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            print("stopped while starting", file=sys.stderr)
            return 1
        except GridshiftError as error:
            print(f"gridshift: {error}", file=sys.stderr)
            return 1
        stack.callback(_finish_in_peace)  # runs first of all when the stack unwinds
        code = main_serve(config)
        return 1 if keeper is not None and keeper.failed else code
