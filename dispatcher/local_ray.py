"""A real Ray head on this machine as our child: started on free ports, stopped with every process it made.

It knows nothing of jobs. It never touches another Ray: its processes carry a mark of their own in their environment.
"""

import atexit
import contextlib
import fcntl
import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

import requests

from dispatcher.errors import GridshiftError

#: Every process below a local Ray inherits this variable; its value is that Ray's temp dir.
MARK = "GRIDSHIFT_LOCAL_RAY"
#: Wall seconds within which a head must answer; a loaded two-core machine needs 20 or more.
START_LIMIT_S = 120.0
#: Wall seconds between asking processes to end and making them.
STOP_GRACE_S = 1.0
#: Ray's sockets lie about 65 characters below its temp dir and may have 107 in all.
MAX_TEMP_DIR_CHARS = 40
#: Wall seconds after which a killed process that is still there is an error.
KILL_LIMIT_S = 10.0
MIB = 1 << 20
#: How Ray is installed, in the README's words: the name on the package index is not ours.
HOW_TO_INSTALL = "pip install '.[ray]' in the clone of gridshift"
_TOO_BUSY = "this machine is too busy to start it in time; end other work here, or try again later"
#: What Ray's own words mean, where that is known.
_REASONS = (
    ("timed out during startup", _TOO_BUSY),
    ("No space left on device", "the disk is full; free some space"),
    ("Cannot allocate memory", "there is not enough memory; end other work here"),
    ("Address already in use", "another process took one of its ports; try again"),
)


def free_port() -> int:
    """A TCP port on loopback that nobody uses at this moment."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """``count`` different TCP ports that nobody uses at this moment, on any address."""
    with contextlib.ExitStack() as stack:
        held = []
        for _ in range(count):
            sock = stack.enter_context(socket.socket())
            sock.bind(("", 0))
            held.append(int(sock.getsockname()[1]))
        return held


def marked_processes(home: Path | str) -> set[int]:
    """The pids of all live processes that belong to the local Ray whose folder is ``home``.

    They are known by their environment, command line, working directory, output files or parent: Ray's workers overwrite their
    environment with a title, and a user's process may change any one of the others.
    """
    mark, below = f"{MARK}={home}\0".encode(), f"{home}/"
    parents: dict[int, int] = {}
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        pid = int(entry.name)
        try:
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            state, parent, terminal = fields[0], int(fields[1]), int(fields[4])
            if state in "ZX":
                continue
            parents[pid] = parent
            ours = mark in (entry / "environ").read_bytes() + b"\0"
            # Ours have no terminal; somebody's shell or pager that looks into the folder has one, and is let be.
            if not ours and terminal == 0:
                ours = below.encode() in (entry / "cmdline").read_bytes() or any(
                    _link(entry / link).startswith(below) for link in ("cwd", "fd/1", "fd/2")
                )
            if ours:
                found.add(pid)
        except (OSError, ValueError):
            continue  # it ended while we looked, or it is another user's
    while children := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= children
    return found


def _link(path: Path) -> str:
    try:
        return f"{path.readlink()}/"
    except OSError:
        return ""


def end_marked(home: Path | str, grace_s: float) -> None:
    """End every process of that local Ray: ask, wait up to ``grace_s``, then make. Returns when none is left."""
    deadline = time.monotonic() + grace_s
    asked: set[int] = set()
    while left := marked_processes(home):
        late = time.monotonic() > deadline
        for pid in left if late else left - asked:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        asked |= left
        if time.monotonic() > deadline + KILL_LIMIT_S:
            raise GridshiftError(f"processes {sorted(left)} of the local Ray in {home} do not end")
        time.sleep(0.05)


def clean_up(home: Path) -> None:
    """End whatever still belongs to the local Ray in ``home`` and remove the folder."""
    end_marked(home, grace_s=STOP_GRACE_S)
    shutil.rmtree(home, ignore_errors=True)


def start_guard(home: Path) -> "subprocess.Popen[bytes]":
    """Start a small process that ends what has the mark of ``home``, and removes that, once we are gone, however we went: a
    closed terminal or a SIGKILL runs no handler of ours. It waits for the end of a pipe that only we hold open; ``end_guard``
    before an orderly clean-up."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return subprocess.Popen(
        ["/bin/sh", "-c", 'read -r _; exec "$0" -m dispatcher.local_ray "$1"', sys.executable, str(home)],
        env={**os.environ, "PYTHONPATH": path},
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def end_guard(guard: "subprocess.Popen[bytes]") -> None:
    """End a guard without any cleaning up, and wait until it is gone."""
    guard.kill()
    guard.communicate()


class LocalRay:
    """One Ray head named ``name``; two with different names (or base dirs) run side by side.

    Its state file lies in ``base_dir``, so that the next start there cleans up what a crash left behind. ``num_gpus`` None
    lets Ray count the GPUs. ``token_mode`` makes the cluster demand a token, which is then in ``token``. Raises GridshiftError
    when Ray is not installed, does not start in time, or when another live process already runs this one; what Ray said then
    stays in ``log_dir`` (None: ``base_dir``).
    """

    def __init__(
        self,
        name: str,
        *,
        base_dir: Path,
        num_cpus: int,
        num_gpus: int | None = None,
        token_mode: bool = False,
        object_store_mb: int = 100,
        env: dict[str, str] | None = None,
        start_limit_s: float = START_LIMIT_S,
        log_dir: Path | None = None,
    ) -> None:
        self.name = name
        self.token: str | None = secrets.token_urlsafe(24) if token_mode else None
        self._base_dir = base_dir
        self._num_cpus, self._num_gpus, self._object_store_mb = num_cpus, num_gpus, object_store_mb
        self._extra_env = dict(env or {})
        self._limit_s, self._log_dir = start_limit_s, log_dir or base_dir
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._home: Path | None = None
        self._lock_file: IO[str] | None = None
        self._lock = threading.Lock()
        self._stopped = False

    @property
    def address(self) -> str:
        """Where its Jobs API listens; raises GridshiftError before start."""
        if self._port is None:
            raise GridshiftError(f"the local Ray {self.name!r} has not been started")
        return f"http://127.0.0.1:{self._port}"

    @property
    def temp_dir(self) -> Path | None:
        """Ray's own temp dir while it runs."""
        return None if self._home is None else self._home / "r"

    @property
    def pid(self) -> int | None:
        """The pid of the head's first process while it runs."""
        return None if self._process is None else self._process.pid

    def processes(self) -> set[int]:
        """The pids of everything that belongs to it now."""
        return set() if self._home is None else marked_processes(self._home)

    def start(self) -> "LocalRay":
        """Start the head and wait until its Jobs API answers; after ``kill`` or its death, at the same address but without any
        memory, and with everything of the former one ended.

        On failure nothing is left behind. Raises GridshiftError after ``stop``, and when that is called meanwhile."""
        if self._process is not None and self._process.poll() is None:
            raise GridshiftError(f"the local Ray {self.name!r} runs already")
        if importlib.util.find_spec("ray") is None:
            raise GridshiftError(f"Ray is not installed here; install it with: {HOW_TO_INSTALL}")
        if self._lock_file is None:
            self._take_over()
        atexit.register(self.stop)
        killed = self._process is not None
        try:
            # A port found free can be taken before Ray binds it; a second try with new ones settles that.
            if not self._try_start(self._port) and not self._try_start(self._port if killed else None):
                raise GridshiftError(self._story("ended while starting"))
        except BaseException:
            self._tidy()
            raise
        return self

    def death(self) -> str | None:
        """One sentence on its end when it was started and has ended by itself since, else None."""
        process = self._process
        if process is None or process.poll() is None:
            return None
        return self._story("has ended unexpectedly", starting=False)

    def stop(self) -> None:
        """End every process that it started and remove its temp dir, for good; safe to call twice and from any thread, also
        while another one starts it."""
        self._stopped = True
        self._tidy()

    def _tidy(self) -> None:
        with self._lock:
            self._end()
            self._port = None
            if self._lock_file is not None:
                self._state_path().unlink(missing_ok=True)
                self._lock_file.close()
                self._lock_file = None
            atexit.unregister(self.stop)

    def kill(self) -> None:
        """SIGKILL everything at once, as a machine that loses power would; for tests. ``stop`` still tidies up."""
        if self._home is not None:
            end_marked(self._home, grace_s=-1.0)
        if self._process is not None:
            self._process.wait()

    def __enter__(self) -> "LocalRay":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _state_path(self) -> Path:
        return self._base_dir / f"local-ray-{self.name}.json"

    def _take_over(self) -> None:
        """Make this Ray ours alone, and clean up after a predecessor that crashed."""
        self._base_dir.mkdir(parents=True, exist_ok=True)
        lock_file = self._state_path().with_suffix(".lock").open("w")
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock_file.close()
            raise GridshiftError(
                f"another gridshift process runs the local Ray {self.name!r} of {self._base_dir}; stop that one first"
            ) from None
        self._lock_file = lock_file
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
            left = Path(json.loads(self._state_path().read_text())["home"])
            if left.name.startswith("gs") and left.is_absolute():
                clean_up(left)

    def _try_start(self, port: int | None) -> bool:
        """One try, at ``port`` or a free one; False when the head ended at once."""
        with self._lock:
            if self._stopped:
                raise GridshiftError(f"the local Ray {self.name!r} has been stopped")
            process = self._launch(port)
        return self._wait_ready(process)

    def _launch(self, port: int | None) -> "subprocess.Popen[bytes]":
        self._end()
        root = tempfile.gettempdir()
        if len(root) + len("/gsxxxxxxxx/r") > MAX_TEMP_DIR_CHARS:
            root = "/tmp"
        home = Path(tempfile.mkdtemp(prefix="gs", dir=root))
        self._home = home
        self._state_path().write_text(json.dumps({"home": str(home)}))
        self._guard = start_guard(home)
        ports = free_ports(9)
        if port is not None:
            ports[1] = port
        self._port = ports[1]
        (home / "r").mkdir()
        with (home / "head.log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command(home, ports),
                env=self._env(home),
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C in our terminal must reach us alone: we end Ray, in order.
                start_new_session=True,
            )
        return self._process

    def _command(self, home: Path, ports: list[int]) -> list[str]:
        gcs, dashboard, client, agent_http, agent_grpc, node, objects, metrics, env_agent = map(str, ports)
        options = {
            "port": gcs,
            "dashboard-host": "127.0.0.1",
            "dashboard-port": dashboard,
            "ray-client-server-port": client,
            "dashboard-agent-listen-port": agent_http,
            "dashboard-agent-grpc-port": agent_grpc,
            "node-manager-port": node,
            "object-manager-port": objects,
            "metrics-export-port": metrics,
            "runtime-env-agent-port": env_agent,
            # 0 lets the system give each worker a free port, so that two heads never hand out the same one.
            "min-worker-port": "0",
            "max-worker-port": "0",
            "temp-dir": str(home / "r"),
            "node-ip-address": "127.0.0.1",
            "object-store-memory": str(self._object_store_mb * MIB),
            "num-cpus": str(self._num_cpus),
            "include-dashboard": "true",
            **({} if self._num_gpus is None else {"num-gpus": str(self._num_gpus)}),
        }
        flags = [f"--{key}={value}" for key, value in options.items()]
        return [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--head",
            "--block",
            "--no-monitor",
            "--disable-usage-stats",
            *flags,
        ]

    def _env(self, home: Path) -> dict[str, str]:
        # Our own variables may hold tokens and another Ray's address; jobs inherit what Ray gets.
        env = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "GRIDSHIFT_"))}
        env |= {
            MARK: str(home),
            "PATH": f"{Path(sys.executable).parent}:{env.get('PATH', os.defpath)}",
            "RAY_AUTH_MODE": "disabled",
            # One idle Python process per CPU, started ahead of any task, is memory that a laptop lacks.
            "RAY_enable_worker_prestart": "0",
            "RAY_prestart_worker_first_driver": "0",
            "PYTHONUNBUFFERED": "1",
            **self._extra_env,
        }
        if home.parent == Path(tempfile.gettempdir()):
            # Python's forkservers below the head leave a folder each where temporary files go; so these go with the head.
            (home / "t").mkdir(exist_ok=True)
            env["TMPDIR"] = str(home / "t")
        if self.token is not None:
            path = home / "token"
            path.touch(mode=0o600)
            path.write_text(self.token)
            env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}
        return env

    def _wait_ready(self, process: "subprocess.Popen[bytes]") -> bool:
        address = f"http://127.0.0.1:{self._port}"
        deadline = time.monotonic() + self._limit_s
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        with requests.Session() as http:
            http.trust_env = False
            while process.poll() is None:
                with contextlib.suppress(requests.RequestException, ValueError, KeyError, TypeError):
                    version = http.get(f"{address}/api/version", headers=headers, timeout=5)
                    if version.ok and "session_name" in version.json():
                        jobs: Any = http.get(f"{address}/api/jobs/", headers=headers, timeout=5)
                        if jobs.ok and isinstance(jobs.json(), list) and self._has_node(http, address, headers):
                            return True
                if time.monotonic() > deadline:
                    raise GridshiftError(self._story(f"did not answer within {self._limit_s:g} s"))
                time.sleep(0.1)
        return False

    def _has_node(self, http: requests.Session, address: str, headers: dict[str, str]) -> bool:
        """Whether the node itself has registered; the Jobs API answers a second earlier, with no GPU in the cluster."""
        nodes: Any = http.get(f"{address}/api/v0/nodes", headers=headers, timeout=5)
        return bool(nodes.ok and nodes.json()["data"]["result"]["result"])

    def _story(self, what: str, *, starting: bool = True) -> str:
        """One sentence for people; all that Ray said goes to a file that stays, for it says much and rarely why."""
        head = self._home / "head.log" if self._home else None
        said = head.read_bytes() if head is not None and head.exists() else b""
        where = ""
        with contextlib.suppress(OSError):  # the disk may be what is full, or the file somebody else's
            kept = self._log_dir / f"local-ray-{self.name}.log"
            kept.write_bytes(said)
            where = f"; what Ray said is in {kept}"
        tail = said.decode(errors="replace")
        why = next((reason for words, reason in _REASONS if words in tail), "")
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
        if starting and not why and load > 2 * cores:
            why = _TOO_BUSY
        why = f": {why}" if why else ""
        return f"the local Ray {self.name!r} {what}{why} (load {load:.0f} on {cores} cores{where})"

    def _end(self) -> None:
        """End the processes of this try and remove its folder."""
        process, home, guard = self._process, self._home, self._guard
        if guard is not None:
            end_guard(guard)
        if home is not None:
            # The head's own orderly end takes 5 s and more, and nothing of it is kept; the grace is for the users' processes.
            clean_up(home)
            if process is not None:
                process.wait()
        self._process = self._home = self._guard = None


if __name__ == "__main__":
    clean_up(Path(sys.argv[1]))
