"""Which node this is, where its agent keeps what must survive, and which GPUs are this agent's to look after.

It reads the machine and nothing of the control plane.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .devices import DeviceInfo, Devices, HeldByAnother
from .durable import is_at, open_lock

#: The name under which an agent claims a GPU, gone with the process that holds it: a socket without a file, which all folders
#: and users of a network namespace share, and a locked file, which network namespaces share that see the same folder.
CLAIM, CLAIM_FILE = "\0gridshift-agent-{}", "gridshift-agent-{}.lock"
CLAIMS_FOLDER = Path("/run/lock")

#: How often a folder is tried, and the seconds between two tries.
TRIES, TRY_AGAIN_S = 4, 0.05


@dataclass(frozen=True)
class Settings:
    """How an agent is to run. ``node_id`` is Ray's, or the machine's own where there is no Ray. ``protect_foreign``: a GPU on
    which a process of no job of ours works is not capped by an economic lease."""

    server: str
    region: str
    token: str | None
    state_dir: Path
    node_id: str
    hostname: str
    branch: str | None = None
    ray_node_id: str | None = None
    version: str | None = None
    protect_foreign: bool = True


def machine_id() -> str:
    """What names this machine where there is no Ray: its machine id, else its host name."""
    try:
        text = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        text = ""
    return text or socket.gethostname()


def default_state_dir() -> Path:
    """Where an agent keeps its leases: $GRIDSHIFT_AGENT_DIR, else a folder of the system for root, of the user for others."""
    named = os.environ.get("GRIDSHIFT_AGENT_DIR")
    if named:
        return Path(named)
    if os.geteuid() == 0:
        return Path("/var/lib/gridshift/agent")
    state_home = os.environ.get("XDG_STATE_HOME")
    return (Path(state_home) if state_home else Path.home() / ".local" / "state") / "gridshift" / "agent"


class FolderBusy(Exception):
    """Another agent works in this folder."""


class FolderLock:
    """One agent at a time in a state folder; the lock ends with the process. Raises FolderBusy, naming who has it."""

    def __init__(self, folder: Path, name: str = "agent.lock", tries: int = TRIES) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._handle = open_lock(folder / name)
        for left in range(tries - 1, -1, -1):
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if left:  # somebody may only be looking whether it is taken
                    time.sleep(TRY_AGAIN_S)
                    continue
                holder = os.read(self._handle, 100).decode(errors="replace").strip() or "another agent"
                os.close(self._handle)
                raise FolderBusy(f"{holder} works in {folder} already; stop that one, or use another folder") from None
        with contextlib.suppress(OSError):  # a disk that takes no writing must not keep us from giving power back
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, f"process {os.getpid()}".encode(), 0)

    def close(self) -> None:
        """Let another agent have the folder; safe to repeat."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


class OwnDevices(Devices):
    """The GPUs of this machine that no other agent looks after, whatever folder or user that one has.

    Two agents on one GPU would count its energy twice and fight over its limit, so who looks after one, or sets its limit, has
    claimed it: agents, guards and releases by hand alike. ``others`` are GPUs that somebody else has. Not seen is an agent in
    another container that shares neither the network nor ``CLAIMS_FOLDER`` with this one.
    """

    def __init__(self) -> None:
        self._claims: dict[str, tuple[socket.socket, int]] = {}
        self._claiming, self._closed = threading.Lock(), False
        self.others: set[str] = set()
        super().__init__()

    def infos(self) -> list[DeviceInfo]:
        """See Devices; GPUs that somebody else has are left out, and are asked for again each time."""
        return [info for info in super().infos() if self._claim(info.uuid)]

    def set_limit(self, uuid: str, limit_w: float) -> None:
        """See Devices. Raises HeldByAnother for a GPU that somebody else has."""
        if not self._claim(uuid):
            raise HeldByAnother(f"another agent looks after GPU {uuid}; this one leaves its limit alone")
        super().set_limit(uuid, limit_w)

    def _claim(self, uuid: str) -> bool:
        with self._claiming:
            if uuid in self._claims:
                return True
            if self._closed:
                return False  # a thread that hung in the driver comes too late
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            try:
                claim.bind(CLAIM.format(uuid))
                self._claims[uuid] = claim, _locked(CLAIMS_FOLDER / CLAIM_FILE.format(uuid))
            except OSError:
                claim.close()
                self.others.add(uuid)
                return False
            self.others.discard(uuid)
            return True

    def close(self) -> None:
        """Let go of the GPUs and of the driver."""
        with self._claiming:
            claims, self._claims, self._closed = self._claims, {}, True
        for uuid, (claim, handle) in claims.items():
            if handle >= 0:
                with contextlib.suppress(OSError):
                    (CLAIMS_FOLDER / CLAIM_FILE.format(uuid)).unlink()
                os.close(handle)
            claim.close()
        super().close()


def _locked(path: Path) -> int:
    """A handle that holds the lock of a file, which is made where it is missing; -1 where no such file can be had. Raises
    BlockingIOError while somebody else holds it."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        try:
            try:
                handle = os.open(path, flags)  # one that another user made can be opened, and by some kernels not "created"
            except FileNotFoundError:
                handle = os.open(path, flags | os.O_CREAT, 0o644)
        except OSError:
            return -1
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if isinstance(error, BlockingIOError):
                raise
            return -1  # a file system without locks
        if is_at(handle, path):
            return handle
        os.close(handle)  # its last owner deleted it in between


def shortened(uuids: Iterable[str]) -> str:
    """A few of them, for a sentence."""
    names = sorted(uuids)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
