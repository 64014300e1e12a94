"""The guard before an entrypoint, in real shells below a stand-in for Ray's supervisor: what it ends, and what it leaves."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dispatcher.api.submissions import MAX_ENTRYPOINT
from dispatcher.launch import JobEnvironment, submission_for
from dispatcher.store import Attempt, Job, Request
from policies.world import Flexibility, JobState
from tests.helpers import wait_until

NOW = datetime(2026, 3, 1, tzinfo=UTC)
#: Runs an entrypoint as Ray's supervisor does: by a shell, in a session of its own, with our variables, expanded as Ray does.
SUPERVISOR = """
import json, os, subprocess, sys
entrypoint, variables, log = sys.argv[1], json.loads(sys.argv[2]), open(sys.argv[3], "a")
env = {**os.environ, **{name: os.path.expandvars(value) for name, value in variables.items()}}
child = subprocess.Popen(entrypoint, shell=True, start_new_session=True, stdout=log, stderr=log, env=env)
print(child.pid, flush=True)
print(child.wait(), flush=True)
"""


def job_of(pid: int) -> str | None:
    """The job that a process says it is of."""
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((word.split(b"=", 1)[1].decode() for word in words if word.startswith(b"GRIDSHIFT_JOB_ID=")), None)


def mark(attempt: int) -> str:
    return f"guarded.{os.getpid()}-{attempt}"


def submission(entrypoint: str, attempt: int = 1) -> tuple[str, dict[str, str]]:
    flex = Flexibility(True, None, None, 60.0, True, 1.0, 400.0)
    job = Job("j", Request(entrypoint, {}, {}), flex, JobState.LAUNCHING, NOW, NOW, attempt=attempt)
    env = JobEnvironment("http://plane:8700", "secret-token", "/shared/j", None)
    sent = submission_for(job, Attempt("j", attempt, "r", mark(attempt), NOW), env)
    return sent.entrypoint, sent.runtime_env["env_vars"]


class Supervised:
    """An entrypoint under a supervisor of its own."""

    def __init__(self, log: Path, entrypoint: str, attempt: int = 1) -> None:
        command, variables = submission(entrypoint, attempt)
        argv = [sys.executable, "-c", SUPERVISOR, command, json.dumps(variables), str(log)]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.shell = int(self.process.stdout.readline())
        self.mark = f"GRIDSHIFT_ENTRYPOINT={mark(attempt)}".encode()

    def marked(self) -> set[int]:
        """The processes that carry the mark of this entrypoint."""
        found = set()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.add(int(folder.name))
            except OSError:
                continue
        return found

    def guards(self) -> set[int]:
        """The guards that watch its supervisor."""
        found = set()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"gridshift-guard" in words and str(self.process.pid).encode() in words:
                found.add(int(folder.name))
        return found

    def is_gone(self) -> bool:
        """Whether nothing of it is left."""
        return not self.marked() and not self.guards()

    def lose(self) -> None:
        """What Ray does when a worker loses its raylet: its direct children die first, then it."""
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True)
        for pid in map(int, children.stdout.split()):
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()


@pytest.fixture
def begun() -> Iterator[list[Supervised]]:
    """What a test starts, ended with it."""
    all_of_it: list[Supervised] = []
    yield all_of_it
    for one in all_of_it:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()
        assert one.process.stdout is not None
        one.process.stdout.close()
        wait_until(one.is_gone, 15, "nothing to be left")


def start(begun: list[Supervised], log: Path, entrypoint: str, attempt: int = 1) -> Supervised:
    begun.append(Supervised(log, entrypoint, attempt))
    return begun[-1]


def test_all_that_a_lost_entrypoint_started_ends(tmp_path: Path, begun: list[Supervised]) -> None:
    log = tmp_path / "log"
    one = start(begun, log, "(setsid sh -c 'sleep 301 & sleep 302' &); sh -c 'sleep 303; true'; echo end")
    other = start(begun, log, "sh -c 'sleep 304; true'; true", attempt=11)
    wait_until(lambda: len(one.marked()) >= 5 and len(other.marked()) >= 2, 10, "their processes to be there")
    before = other.marked()
    one.lose()
    wait_until(lambda: not one.marked(), 10, "all of them to be gone")
    assert other.marked() == before, "one whose mark begins alike is another's"
    assert other.guards() and "end" not in log.read_text()


@pytest.mark.parametrize("entrypoint", ["exit 3", "true", "no-such-command-here", "sh -c 'kill -15 $$'", "kill -9 $$"])
def test_the_exit_code_is_the_entrypoints(tmp_path: Path, begun: list[Supervised], entrypoint: str) -> None:
    one = start(begun, tmp_path / "log", entrypoint)
    assert one.process.stdout is not None
    plain = subprocess.run(entrypoint, shell=True, capture_output=True, check=False).returncode
    assert int(one.process.stdout.readline()) == plain


def test_nothing_but_its_output_is_in_the_log_and_a_comment_or_lines_do_no_harm(
    tmp_path: Path, begun: list[Supervised]
) -> None:
    log = tmp_path / "log"
    one = start(begun, log, "# what it does\n\ncd /; echo \"$GRIDSHIFT_JOB_ID\" '#'\necho second")
    one.process.wait(10)
    assert log.read_text() == "j #\nsecond\n"


def test_what_outlives_the_entrypoint_ends_with_the_supervisor_and_not_before(tmp_path: Path, begun: list[Supervised]) -> None:
    one = start(begun, tmp_path / "log", "setsid sleep 305 & sleep 0.2")
    wait_until(lambda: one.guards() and len(one.marked()) >= 1, 10, "it to have begun")
    assert one.process.wait(10) == 0
    wait_until(one.is_gone, 10, "what it left to be ended, and the guard with it")


def test_a_supervisor_that_nobody_reaps_is_gone(tmp_path: Path, begun: list[Supervised]) -> None:
    one = start(begun, tmp_path / "log", "sh -c 'sleep 306; true'; true")
    wait_until(lambda: one.guards() and len(one.marked()) >= 2, 10, "it to have begun")
    one.process.kill()  # and not waited for
    wait_until(lambda: not one.marked(), 10, "its processes to be gone")


def test_a_freeze_of_the_job_leaves_its_guard_awake(tmp_path: Path, begun: list[Supervised]) -> None:
    one = start(begun, tmp_path / "log", "sh -c 'sleep 307; true'; true")
    wait_until(lambda: one.guards() and len(one.marked()) >= 2, 10, "it to have begun")
    assert {job_of(pid) for pid in one.marked()} == {"j"} and {job_of(pid) for pid in one.guards()} == {None}
    frozen = one.marked()
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    one.lose()
    wait_until(lambda: not one.marked(), 10, "what is frozen to be ended")


def test_the_longest_entrypoint_that_is_taken_runs_behind_its_guard(tmp_path: Path, begun: list[Supervised]) -> None:
    head = "exit 4 #"
    one = start(begun, tmp_path / "log", head + "x" * (MAX_ENTRYPOINT - len(head)))
    assert one.process.stdout is not None and int(one.process.stdout.readline()) == 4


def test_without_setsid_it_runs_unguarded(tmp_path: Path) -> None:
    command, variables = submission("echo ran")
    for name in ("sh", "sleep", "grep"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    done = subprocess.run(
        ["/bin/sh", "-c", command], env={**variables, "PATH": str(tmp_path)}, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"ran\n", b"")


def test_a_job_that_is_passed_through_has_no_guard() -> None:
    flex = Flexibility(False, None, None, 60.0, False, 1.0, 400.0)
    job = Job("j", Request("sleep 5", {}, {}), flex, JobState.LAUNCHING, NOW, NOW, attempt=1)
    sent = submission_for(job, Attempt("j", 1, "r", "j-1", NOW), JobEnvironment("http://plane", "t", "/c", None))
    assert sent.entrypoint == "sleep 5" and "GRIDSHIFT_GUARD" not in sent.runtime_env["env_vars"]
