import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dispatcher.client import attempt, checkpoint_dir, checkpoint_requested, checkpoint_saved
from tests.client.fake_api import FakeApi
from tests.helpers import free_port, wait_until

LOOP = """
import signal, sys, time
from dispatcher.client import checkpoint_requested, checkpoint_saved
{before}
checkpoint_requested()
print("started", flush=True)
end = time.monotonic() + 20
while not checkpoint_requested():
    if time.monotonic() > end:
        sys.exit(9)
    time.sleep(0.01)
print("asked", flush=True)
print("saved", checkpoint_saved(), flush=True)
{after}
"""


@contextmanager
def job(code: str, url: str | None, **env: str) -> Iterator["subprocess.Popen[str]"]:
    ours = {"GRIDSHIFT_URL": url, "GRIDSHIFT_JOB_TOKEN": "t", "GRIDSHIFT_ATTEMPT": "3"} if url else {}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **ours, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_outside_of_gridshift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    assert (checkpoint_requested(), checkpoint_saved(), attempt()) == (False, False, 1)
    assert signal.getsignal(signal.SIGTERM) is before
    assert checkpoint_dir() == Path("gridshift-checkpoint") and (tmp_path / "gridshift-checkpoint").is_dir()


def test_attempt_and_folder_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDSHIFT_ATTEMPT", "4")
    monkeypatch.setenv("GRIDSHIFT_CHECKPOINT_DIR", str(tmp_path / "a" / "b"))
    assert attempt() == 4
    assert checkpoint_dir() == tmp_path / "a" / "b" and (tmp_path / "a" / "b").is_dir()


@pytest.mark.real
def test_a_request_is_seen_and_acknowledged_with_the_attempt(api: FakeApi) -> None:
    with job(LOOP.format(before="", after="sys.exit(0)"), api.address) as process:
        wait_until(lambda: ("GET", "/v1/self", {}) in api.requests, 20, "the first question")
        api.self_answer["checkpoint_requested"] = True
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "started\nasked\nsaved True\n", "")
    assert api.acks == [{"attempt": 3}]


@pytest.mark.real
def test_an_attempt_whose_place_a_newer_one_has_taken_ends_at_once(api: FakeApi) -> None:
    with job(LOOP.format(before="", after=""), api.address) as process:
        wait_until(lambda: ("GET", "/v1/self", {}) in api.requests, 20, "the first question")
        api.self_answer |= {"superseded": True, "checkpoint_requested": True}
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (1, "started\n"), "it neither goes on nor saves"
    assert err == "gridshift: a newer attempt of this job has taken over; this one ends\n" and api.acks == []


@pytest.mark.real
def test_it_asks_at_most_once_a_second(api: FakeApi) -> None:
    began = time.monotonic()
    with job(LOOP.format(before="", after=""), api.address):
        wait_until(lambda: len(api.requests) >= 3, 20, "three questions")
        assert time.monotonic() - began > 2.0


@pytest.mark.real
def test_a_restart_of_the_control_plane_is_ridden_out(api: FakeApi) -> None:
    later = FakeApi(free_port())
    later.self_answer["checkpoint_requested"] = True
    with job(LOOP.format(before="", after=""), later.address) as process:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        later.start()
        out, err = process.communicate(timeout=20)
        later.stop()
    assert (process.returncode, out, err) == (0, "asked\nsaved True\n", "")


@pytest.mark.real
def test_sigterm_asks_too_and_ends_the_process_once_saved(api: FakeApi) -> None:
    with job(LOOP.format(before="", after="time.sleep(20)"), api.address) as process:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGTERM)
        assert [process.stdout.readline() for _ in range(2)] == ["asked\n", "saved True\n"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == -signal.SIGTERM


@pytest.mark.real
def test_a_handler_of_the_users_own_stays(api: FakeApi) -> None:
    mine = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))"
    with job(LOOP.format(before=mine, after=""), api.address) as process:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 7


@pytest.mark.real
def test_it_works_in_another_thread_and_after_a_fork(api: FakeApi) -> None:
    api.self_answer["checkpoint_requested"] = True
    code = """
import os, sys, threading, time
from dispatcher.client import checkpoint_requested
def wait():
    end = time.monotonic() + 15
    while not checkpoint_requested() and time.monotonic() < end:
        time.sleep(0.01)
    print("asked" if checkpoint_requested() else "never", flush=True)
thread = threading.Thread(target=wait); thread.start(); thread.join()
pid = os.fork()
if pid == 0:
    wait(); os._exit(0)
os.waitpid(pid, 0)
"""
    with job(code, api.address) as process:
        out, _ = process.communicate(timeout=40)
    assert out == "asked\nasked\n"


@pytest.mark.real
@pytest.mark.parametrize(("status", "calls"), [(409, 1), (401, 1), (500, 3)])
def test_an_acknowledgement_that_nobody_takes(api: FakeApi, status: int, calls: int) -> None:
    answers = iter([(status, b"")] * (calls if status == 409 or status == 401 else calls - 1) + [(200, {})])
    api.answers["POST", "/v1/self/checkpoint"] = lambda _: next(answers)
    with job("from dispatcher.client import checkpoint_saved as s; print(s())", api.address) as process:
        out, err = process.communicate(timeout=20)
    assert (out, err) == (f"{status == 500}\n", "")
    assert len([r for r in api.requests if r[0] == "POST"]) == calls
