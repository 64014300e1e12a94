"""Which node this is, where its agent keeps what must survive, and which GPUs are this agent's to look after.

It reads the machine and nothing of the control plane.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .devices import DeviceInfo, Devices
from .durable import open_lock

#: The machine-wide name under which an agent claims a GPU: a socket name without a file, gone with the process that holds it.
CLAIM = "\0gridshift-agent-{}"

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

    Two agents on one GPU would count its energy twice and fight over its limit. ``others`` are GPUs that somebody else has.
    """

    def __init__(self) -> None:
        self._claims: dict[str, socket.socket] = {}
        self.others: set[str] = set()
        super().__init__()

    def infos(self) -> list[DeviceInfo]:
        """See Devices; GPUs that somebody else has are left out, and are asked for again each time."""
        return [info for info in super().infos() if self._claim(info.uuid)]

    def _claim(self, uuid: str) -> bool:
        if uuid in self._claims:
            return True
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            claim.bind(CLAIM.format(uuid))
        except OSError:
            claim.close()
            self.others.add(uuid)
            return False
        self._claims[uuid] = claim
        self.others.discard(uuid)
        return True

    def close(self) -> None:
        """Let go of the GPUs and of the driver."""
        claims, self._claims = self._claims, {}
        for claim in claims.values():
            claim.close()
        super().close()


def shortened(uuids: Iterable[str]) -> str:
    """A few of them, for a sentence."""
    names = sorted(uuids)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
