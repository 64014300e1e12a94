"""The agent as a service of the machine: a small supervisor that starts the agent's process anew whenever it dies.

The supervisor holds no GPU and no connection, so what kills the agent does not kill it. Where the supervisor itself is killed
the agent goes on, for limits must be given back by somebody.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from .node import FolderBusy, Settings

Made = TypeVar("Made")

log = logging.getLogger("gridshift.agent")

#: Seconds before an agent that died is started again; the longer one after it died at once several times.
AGAIN_S, AGAIN_LATER_S = 0.3, 2.0
#: An agent that lived for less than this, s, died at once.
AT_ONCE_S = 5.0
#: Seconds that an agent has to end in order.
END_S = 20.0
#: Seconds within which a guard lets go of the folder for an agent that starts; a driver that is slow holds it longer.
GUARD_LETS_GO_S = 15.0
#: Exit status of an agent that has not got its folder: another one works in it, or it cannot be made.
BUSY = 75


def to_json(settings: Settings) -> str:
    """Settings as text, for a child's standard input: a token belongs neither into arguments nor into an environment."""
    return json.dumps({**asdict(settings), "state_dir": str(settings.state_dir)})


def from_json(text: str) -> Settings:
    """Settings from that text."""
    values = json.loads(text)
    return Settings(**{**values, "state_dir": Path(values["state_dir"])})


def run_agent(settings: Settings) -> int:
    """Run an agent in this process until SIGTERM or SIGINT; returns the exit status."""
    from .runner import Agent

    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        agent = taking_over(lambda: Agent(settings), settings.state_dir)
    except (FolderBusy, OSError) as error:
        print(f"gridshift agent: {error}", file=sys.stderr, flush=True)
        return BUSY
    agent.start()
    ended.wait()
    agent.stop()
    return 0


def taking_over(begin: Callable[[], Made], folder: Path) -> Made:
    """What ``begin`` makes; while a guard works in the folder it is tried again, for that one lets go every few seconds."""
    from . import guard

    deadline = time.monotonic() + GUARD_LETS_GO_S
    while True:
        try:
            return begin()
        except FolderBusy:
            if time.monotonic() > deadline or not guard.holds(folder):
                raise
        time.sleep(0.1)


class Supervisor:
    """Keeps one agent process running; ``command`` is what it is started with, by default this module."""

    def __init__(self, settings: Settings, command: Sequence[str] | None = None) -> None:
        self._text = to_json(settings)
        self._command = list(command or (sys.executable, "-m", __name__))
        self._child: subprocess.Popen[str] | None = None
        self._stopping = threading.Event()

    def run(self) -> int:
        """Run until ``stop``; returns the exit status."""
        quick, first = 0, True
        while not self._stopping.is_set():
            began = time.monotonic()
            status = self._run_once()
            if self._stopping.is_set():
                break
            if status == BUSY and first and time.monotonic() - began < AT_ONCE_S:
                return 1  # it has said why; a later one finds the folder taken only for a while, as by a release by hand
            first = False
            quick = quick + 1 if time.monotonic() - began < AT_ONCE_S else 0
            wait_s = AGAIN_LATER_S if quick > 3 else AGAIN_S
            log.warning("the agent ended with status %s; it is started again in %g s", status, wait_s)
            self._stopping.wait(wait_s)
        return 0

    def _run_once(self) -> int:
        # A session of its own: Ctrl-C in our terminal reaches us alone, and we end it in order.
        child = subprocess.Popen(self._command, stdin=subprocess.PIPE, text=True, start_new_session=True)
        self._child = child
        try:
            assert child.stdin is not None
            child.stdin.write(self._text)
            child.stdin.close()
        except OSError:
            pass  # it died already; its status says more
        if self._stopping.is_set():
            child.terminate()
        return child.wait()

    def stop(self) -> None:
        """End the agent in order, and with it ``run``; may be called from a signal handler."""
        self._stopping.set()
        child = self._child
        if child is not None and child.poll() is None:
            child.terminate()
            threading.Thread(target=_insist, args=[child], daemon=True).start()


def _insist(child: subprocess.Popen[str]) -> None:
    """Kill an agent that does not end: its successor takes up what it left."""
    deadline = time.monotonic() + END_S
    while child.returncode is None and time.monotonic() < deadline:
        time.sleep(0.2)
    if child.returncode is None:
        child.kill()


def supervise(settings: Settings) -> int:
    """``gridshift agent``: run the supervisor until SIGTERM or SIGINT, and a guard, which gives event limits back at their ends
    where nobody starts it again."""
    from . import guard

    try:
        guard.start(settings.state_dir)
    except OSError as error:  # no shell, as in a bare container
        log.warning("no guard could be started (%s): once this agent is stopped, event limits may outlive their ends", error)
    supervisor = Supervisor(settings)

    def end(_: int, __: FrameType | None) -> None:
        supervisor.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    return supervisor.run()


def set_up_log() -> None:
    """Messages to stderr, where a service's journal finds them."""
    level: Any = os.environ.get("GRIDSHIFT_LOG", "INFO").upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("websockets").setLevel(logging.WARNING)


if __name__ == "__main__":
    set_up_log()
    sys.exit(run_agent(from_json(sys.stdin.read())))
