"""Event leases let go of by hand on the node itself, whether or not an agent runs and whatever the control plane does.

Whoever may write into the agent's folder may do this. It knows no network.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from pathlib import Path
from typing import Any

from .caps import CapOrders, Enforcer
from .devices import DeviceError
from .durable import write_durably
from .lease_terms import Lease, is_owed
from .leases import LeaseBook
from .node import FolderBusy, FolderLock, OwnDevices

log = logging.getLogger("gridshift.agent")

#: Seconds that a running agent has to answer.
ANSWER_S = 15.0

Released = dict[str, Any]


class NotReleased(Exception):
    """It was not released; the message says why."""


def release_events(book: LeaseBook, enforcer: Enforcer, lease_id: str | None) -> list[Released]:
    """End the event lease of that id, or all of them, and wait until their limits are given back. One answer a lease:
    {lease_id, uuid, limit_w, ok, error}."""
    found = {lease.lease_id: lease for lease in book.leases() if lease.kind == "event" and lease_id in (None, lease.lease_id)}
    results = enforcer.apply(CapOrders(book.epoch, release=list(found)))
    return [_released(found[one.lease_id], one.error, one.ok) for one in results]


def _released(lease: Lease, error: str | None, ok: bool) -> Released:
    return {"lease_id": lease.lease_id, "uuid": lease.uuid, "limit_w": lease.limit_w, "ok": ok, "error": error}


def release_here(folder: Path, lease_id: str | None, answer_s: float = ANSWER_S) -> list[Released]:
    """The same for the agent of ``folder``: by asking it or its guard where one is at work, else directly; then the limits of
    event leases that ended while nobody was there are given back too, and told of. Raises NotReleased."""
    if not folder.is_dir():
        raise NotReleased(f"{folder} does not exist: no agent has worked there; name its folder with --state-dir")
    try:
        lock = FolderLock(folder)
    except FolderBusy:
        return _ask(folder, lease_id, answer_s)
    except OSError as error:
        raise NotReleased(f"{folder} cannot be used: {error.strerror}; run this as the user that the agent runs as") from error
    try:
        return _release_alone(folder, lease_id)
    finally:
        lock.close()


def _release_alone(folder: Path, lease_id: str | None) -> list[Released]:
    try:
        devices = OwnDevices()
    except DeviceError as error:
        raise NotReleased(f"the limits cannot be given back: {error}") from error
    try:
        book = LeaseBook(folder / "leases")
        now_s = book.clock.boot_s()
        over = [lease for record in book.load().values() for lease in record.leases if not lease.live(now_s)]
        enforcer = Enforcer(devices, book, meet=False)
        try:
            released = release_events(book, enforcer, lease_id)
            left = _give_back_ended(book, enforcer)
            ended = [
                _released(one, left.get(one.uuid), one.uuid not in left)
                for one in over
                if one.kind == "event" and lease_id in (None, one.lease_id)
            ]
            return [*released, *ended]
        finally:
            enforcer.close()
    finally:
        devices.close()


def _give_back_ended(book: LeaseBook, enforcer: Enforcer) -> dict[str, str]:
    """Wait until the limits of GPUs whose leases have all ended stand as before; why those that do not, by GPU."""
    deadline = time.monotonic() + ANSWER_S
    while (left := [uuid for uuid in book.held() if is_owed(book.record(uuid))]) and time.monotonic() < deadline:
        time.sleep(0.05)
        enforcer.step()
    states = {state.uuid: state for state in enforcer.states()}
    return {uuid: f"it is not given back yet ({states[uuid].state}: {states[uuid].detail})" for uuid in left}


# --- asking an agent that runs ------------------------------------------------------------------------------------


def _ask(folder: Path, lease_id: str | None, answer_s: float) -> list[Released]:
    name = secrets.token_hex(8)
    request, answer = _requests(folder) / f"{name}.request", _requests(folder) / f"{name}.answer"
    try:
        _requests(folder).mkdir(exist_ok=True, mode=0o700)
        write_durably(request, json.dumps({"lease_id": lease_id}))
    except OSError as error:
        raise NotReleased(f"the agent of {folder} cannot be asked: {error.strerror}") from error
    deadline = time.monotonic() + answer_s
    while not answer.exists():
        if time.monotonic() > deadline:
            request.unlink(missing_ok=True)
            raise NotReleased(
                f"the agent that works in {folder} did not answer within {answer_s:g} s; stop it, then run this again"
            )
        time.sleep(0.05)
    said = json.loads(answer.read_text(encoding="utf-8"))
    answer.unlink(missing_ok=True)
    if said.get("error"):
        raise NotReleased(str(said["error"]))
    released: list[Released] = said["released"]
    return released


def answer_requests(folder: Path, book: LeaseBook | None, enforcer: Enforcer | None) -> int:
    """Carry out what was asked by hand since the last look; how many requests there were. For the agent that runs."""
    requests = sorted(_requests(folder).glob("*.request"))
    for request in requests:
        said: dict[str, Any]
        try:
            asked = json.loads(request.read_text(encoding="utf-8"))
            if book is None or enforcer is None:
                said = {"error": "this agent has no GPU driver now, so it cannot give limits back"}
            else:
                said = {"released": release_events(book, enforcer, asked.get("lease_id"))}
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            said = {"error": f"{request.name}: {error}"}
        try:
            request.unlink(missing_ok=True)
            write_durably(request.with_suffix(".answer"), json.dumps(said))
        except OSError as error:  # what is left here is carried out once more, which changes nothing
            log.warning("the answer to %s could not be written: %s", request.name, error.strerror)
    return len(requests)


def _requests(folder: Path) -> Path:
    return folder / "requests"
