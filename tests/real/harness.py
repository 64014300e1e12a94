"""Real processes for real tests: Ray clusters, a control plane, and the commands that users type."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import requests

from dispatcher.local_ray import LocalRay
from tests.helpers import free_port, wait_until

BIN = Path(sys.executable).parent


def clean_env(**more: str) -> dict[str, str]:
    """Our environment without anything that could steer Ray or gridshift elsewhere."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "GRIDSHIFT_"))}
    return {**kept, "RAY_AUTH_MODE": "disabled", "PATH": f"{BIN}:{kept.get('PATH', '')}", **more}


def run(*argv: str, env: dict[str, str] | None = None, timeout_s: float = 120.0, cwd: Path | None = None) -> str:
    """Run a command to its end and return its output; its failure fails the test, with what it said."""
    done = subprocess.run(argv, env=env or clean_env(), capture_output=True, text=True, timeout=timeout_s, cwd=cwd, check=False)
    assert done.returncode == 0, f"{argv} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def ray_clusters(base: Path, *names: str, num_gpus: int = 2) -> Iterator[dict[str, LocalRay]]:
    """Ray clusters side by side, stopped at the end."""
    rays = {name: LocalRay(name, base_dir=base, num_cpus=8, num_gpus=num_gpus) for name in names}
    try:
        for ray in rays.values():
            ray.start()
        yield rays
    finally:
        for ray in rays.values():
            ray.stop()


@contextlib.contextmanager
def answering(argv: Sequence[str], url: str, what: str, log: Path | None = None) -> Iterator[None]:
    """A server in a process of its own, once ``url`` answers; ended afterwards. What it says goes to ``log``, if any."""
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(log.open("wb")) if log is not None else None
        process = subprocess.Popen(argv, env=clean_env(), stdout=out, stderr=out)

        def answers() -> bool:
            assert process.poll() is None, f"{what} ended" + (f": {log.read_text()[-2000:]}" if log is not None else "")
            with contextlib.suppress(requests.RequestException):
                return requests.get(url, timeout=5).ok
            return False

        try:
            wait_until(answers, 30, what)
            yield
        finally:
            process.terminate()
            process.wait(20)


@contextlib.contextmanager
def chat_server(beside: Path) -> Iterator[str]:
    """The address of a server that is slow while ``beside`` grows (chat_server.py)."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    argv = [sys.executable, str(Path(__file__).with_name("chat_server.py")), str(port), str(beside)]
    with answering(argv, f"{url}/metrics", "the server"):
        yield url


class Plane:
    """A control plane in a process of its own."""

    def __init__(self, base: Path, config: str, *, port: int | None = None, **env: str) -> None:
        self.base, self.port = base, port or free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.config = base / "gridshift.toml"
        data_dir = base / "data"
        self.config.write_text(f'[server]\nport = {self.port}\ndata_dir = "{data_dir}"\n{config}', encoding="utf-8")
        # Agents are sent to clusters only by the tests that are about them.
        self.env = clean_env(**{"GRIDSHIFT_AGENTS__DEPLOY": "off", **env})
        self.log = base / "serve.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Plane":
        """Start it and wait until it is ready."""
        self.launch()
        wait_until(self.ready, 40, f"the control plane ({self.log.read_text()[-1500:]})")
        return self

    def launch(self) -> None:
        """Start it; it is not ready yet."""
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [str(BIN / "gridshift"), "serve", "--config", str(self.config)],
                env=self.env,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def ready(self) -> bool:
        """Whether it answers; its early death fails the test, with its log."""
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        with contextlib.suppress(requests.RequestException):
            return requests.get(f"{self.address}/readyz", timeout=2).ok
        return False

    def kill(self) -> None:
        """kill -9, as a crash would."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Ask it to end."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    def __enter__(self) -> "Plane":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def gridshift(self, *argv: str) -> Any:
        """A gridshift command with --json, against this control plane."""
        return json.loads(run(str(BIN / "gridshift"), *argv, "--json", env={**self.env, "GRIDSHIFT_ADDRESS": self.address}))

    def ray(self, *argv: str) -> str:
        """Ray's own ``ray job`` command, unchanged, against this control plane."""
        verb, *rest = argv
        return run(str(BIN / "ray"), "job", verb, "--address", self.address, *rest, env=self.env)

    def job(self, job_id: str) -> dict[str, Any]:
        """A job as the API tells it."""
        answer = requests.get(f"{self.address}/v1/jobs/{job_id}", timeout=10)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def wait_state(self, job_id: str, *states: str, timeout_s: float = 60.0) -> dict[str, Any]:
        """Wait until a job is in one of ``states``."""

        def there() -> dict[str, Any] | None:
            job = self.job(job_id)
            return job if job["state"] in states else None

        try:
            return wait_until(there, timeout_s, f"{job_id} to be {states}")  # type: ignore[return-value]
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.job(job_id)}\n{self.log.read_text()[-2000:]}") from None


def region(name: str, address: str, price: float, *, gpus: int = 2, **more: Any) -> str:
    """A [[region]] with a flat synthetic price and carbon."""
    extra = "".join(f"{key} = {json.dumps(value)}\n" for key, value in more.items())
    return f"""
[[region]]
name = "{name}"
address = "{address}"
gpus = {gpus}
currency = "EUR"
observe_s = 0.5
{extra}
[[region.price]]
feed = "synthetic"
currency = "EUR"
price_mean = {price}
price_swing = 0
[[region.carbon]]
feed = "synthetic"
carbon_mean = {price}
carbon_swing = 0
"""
