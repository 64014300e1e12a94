"""The agent as a service: started again when it dies, ended in order, and the command around it."""

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from dispatcher.agent.guard import GUARD_LOCK
from dispatcher.agent.node import FolderLock, Settings, default_state_dir, machine_id
from dispatcher.agent.service import BUSY, Supervisor, from_json, to_json
from dispatcher.power.hub import CapOrder
from dispatcher.simgpu import SimGpus
from tests.api.fake import FakeServices, Server
from tests.helpers import wait_until
from tests.simgpu.simulated import child_environment

BIN = Path(sys.executable).parent
UNIT = Path(__file__).parents[2] / "deploy" / "gridshift-agent.service"
GUARD_UNIT = UNIT.with_name("gridshift-agent-guard.service")


@pytest.fixture
def gpus(tmp_path: Path) -> SimGpus:
    return SimGpus.create(tmp_path / "simgpu", 1)


def settings(folder: Path) -> Settings:
    return Settings("http://127.0.0.1:1", "north", "secret", folder / "state", "n1", "h1", "rack-1")


@contextlib.contextmanager
def running(gpus: SimGpus, server: Server, folder: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """`gridshift agent`, ended in order at the end: a supervisor that is killed leaves its agent at work."""
    argv = [str(BIN / "gridshift"), "agent", "--server", server.url, "--region", "north", "--state-dir", str(folder / "state")]
    with subprocess.Popen([*argv, "--node-id", "n1", "--branch", "rack-1"], env=child_environment(gpus)) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_settings_survive_their_way_to_the_agent(tmp_path: Path) -> None:
    assert from_json(to_json(settings(tmp_path))) == settings(tmp_path)


def test_an_agent_that_dies_is_started_again_within_two_seconds(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    code = f"import sys, time; sys.stdin.read(); open({str(marks)!r}, 'a').write(f'{{time.monotonic()}}\\n'); time.sleep(0.1)"
    supervisor = Supervisor(settings(tmp_path), [sys.executable, "-c", code])
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    wait_until(lambda: marks.exists() and len(marks.read_text().split()) >= 3, 20, "three lives")
    supervisor.stop()
    thread.join(10)
    assert not thread.is_alive()
    times = [float(line) for line in marks.read_text().split()]
    assert max(after - before for before, after in itertools.pairwise(times)) < 2.0


def test_an_agent_that_finds_its_folder_taken_is_not_tried_for_ever(tmp_path: Path) -> None:
    assert Supervisor(settings(tmp_path), [sys.executable, "-c", f"raise SystemExit({BUSY})"]).run() == 1


def test_an_agent_that_is_told_to_end_ends_with_its_supervisor(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = f"import pathlib, time; pathlib.Path({str(ready)!r}).touch(); time.sleep(600)"
    supervisor = Supervisor(settings(tmp_path), [sys.executable, "-c", code])
    status: list[int] = []
    thread = threading.Thread(target=lambda: status.append(supervisor.run()))
    thread.start()
    wait_until(ready.exists, 20, "the agent")
    supervisor.stop()
    thread.join(10)
    assert status == [0]


def test_the_command_runs_an_agent_that_survives_kill_and_gives_back_at_its_end(
    gpus: SimGpus, services: FakeServices, server: Server, tmp_path: Path
) -> None:
    with running(gpus, server, tmp_path) as process:
        wait_until(lambda: services.hub.nodes(), 30, "the agent")
        cap = CapOrder("l1", "economic", "n1", gpus[0].uuid, 250.0, 60.0, "a test")
        event = CapOrder("e1", "event", "n1", gpus[0].uuid, 300.0, None, "an event")
        assert all(one.ok for one in services.hub.order_caps([cap, event]).result(10)) and gpus[0].limit_w == 250.0
        node = services.hub.nodes()[0]
        assert (node.branch, node.simulated, node.can_cap) == ("rack-1", True, True)

        (first,) = children(process.pid)
        os.kill(first, signal.SIGKILL)
        began = time.monotonic()
        wait_until(lambda: [pid for pid in children(process.pid) if pid != first], 10, "its successor")
        assert time.monotonic() - began < 2.0 and gpus[0].limit_w == 250.0
        wait_until(lambda: services.hub.nodes()[0].connected and services.hub.nodes()[0].leases, 20, "it to connect again")
        assert {lease.lease_id for lease in services.hub.nodes()[0].leases} == {"l1", "e1"}

        done = run("agent", "release", "--all", "--json", "--state-dir", str(tmp_path / "state"), env=child_environment(gpus))
        assert [one["lease_id"] for one in json.loads(done.stdout)["released"]] == ["e1"] and gpus[0].limit_w == 250.0
        process.terminate()
        assert process.wait(20) == 0 and gpus[0].limit_w == 400.0
        wait_until(lambda: not services.hub.nodes()[0].connected, 10, "its goodbye")


def test_an_event_limit_outlives_an_agent_that_is_stopped_with_a_word_and_ends_on_time(
    gpus: SimGpus, services: FakeServices, server: Server, tmp_path: Path
) -> None:
    argv = [
        str(BIN / "gridshift"),
        "agent",
        "--server",
        server.url,
        "--region",
        "north",
        "--state-dir",
        str(tmp_path / "state"),
    ]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*argv, "--node-id", "n1"], env=child_environment(gpus), stderr=log)
    try:
        wait_until(lambda: services.hub.nodes(), 30, "the agent")
        event = CapOrder("e1", "event", "n1", gpus[0].uuid, 300.0, 10.0, "event e1")
        assert services.hub.order_caps([event]).result(10)[0].ok
        ends_s, ends_at = time.monotonic() + 10.0, time.time() + 10.0
        process.terminate()
        assert process.wait(20) == 0 and gpus[0].limit_w == 300.0
        said = (tmp_path / "log").read_text()
        found = re.search(f"stands after this agent: 300 W on {gpus[0].uuid} until (.*) UTC [(]event e1[)]", said)
        assert found is not None and "gridshift agent release" in said
        assert abs(datetime.fromisoformat(f"{found[1]}+00:00").timestamp() - ends_at) < 3.0
        wait_until(lambda: gpus[0].limit_w == 400.0, 30, "the limit to be given back by the guard")
        assert -1.0 < time.monotonic() - ends_s < 10.0
    finally:
        process.kill()
        process.wait()


def test_limits_are_given_back_though_nothing_of_the_control_plane_is_left(
    gpus: SimGpus, services: FakeServices, server: Server, tmp_path: Path
) -> None:
    with running(gpus, server, tmp_path) as process:
        wait_until(lambda: services.hub.nodes(), 30, "the agent")
        ends_s = time.monotonic() + 4.0
        assert services.hub.order_caps([CapOrder("l1", "economic", "n1", gpus[0].uuid, 250.0, 4.0, "")]).result(10)[0].ok
        server.server.should_exit = server.server.force_exit = True
        os.kill(children(process.pid)[0], signal.SIGKILL)
        wait_until(lambda: gpus[0].limit_w == 400.0, 15, "the limit to be given back")
        assert time.monotonic() - ends_s < 10.0


def run(*argv: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    argv = (str(BIN / "gridshift"), *argv)
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env, check=False, stdin=subprocess.DEVNULL)


def test_a_look_at_what_it_sees(gpus: SimGpus) -> None:
    done = run("agent", "--once", env=child_environment(gpus))
    seen = json.loads(done.stdout)
    assert done.returncode == 0 and seen["simulated"] and seen["gpus"][0]["uuid"] == gpus[0].uuid


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["agent"], "--server is needed"),
        (["agent", "--server", "http://cp"], "--region is needed"),
        (["agent", "--server", "ftp://cp", "--region", "r"], "address of the control plane"),
        (["agent", "--server", "cp", "--region", "r", "--token-env", "NOT_SET_HERE"], "NOT_SET_HERE is not set"),
        (["agent", "--server", "cp", "--region", "r", "--token-file", "/nowhere/token"], "/nowhere/token cannot be read"),
        (["agent", "release"], "give --lease ID or --all"),
        (["agent", "release", "--lease", "a", "--all"], "give --lease ID or --all"),
    ],
)
def test_bad_input_is_said_in_a_line(argv: list[str], says: str) -> None:
    done = run(*argv)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr


def test_a_folder_that_cannot_be_made_is_said_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("agent", "--server", "cp", "--region", "r", "--state-dir", str(tmp_path / "file" / "state"))
    assert done.returncode == 1 and "Traceback" not in done.stderr and "file" in done.stderr


def test_releasing_where_no_agent_ever_was_says_so(tmp_path: Path) -> None:
    done = run("agent", "release", "--all", "--state-dir", str(tmp_path / "nothing"))
    assert done.returncode == 1 and "no agent has worked there" in done.stderr


def test_where_leases_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GRIDSHIFT_AGENT_DIR", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_state_dir() == Path("/var/lib/gridshift/agent")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_state_dir() == tmp_path / ".local/state/gridshift/agent"
    monkeypatch.setenv("GRIDSHIFT_AGENT_DIR", "/elsewhere")
    assert default_state_dir() == Path("/elsewhere") and machine_id()


def test_the_unit_starts_it_again_whatever_happens_and_both_pass_systemd_analyze(tmp_path: Path) -> None:
    text = UNIT.read_text()
    for line in ("Restart=always", "StartLimitIntervalSec=0", "NoNewPrivileges=yes", "ProtectSystem=strict", "User=root"):
        assert line in text
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed (Debian: systemd)")
    here = [tmp_path / unit.name for unit in (UNIT, GUARD_UNIT)]
    for unit in (UNIT, GUARD_UNIT):
        text = re.sub(r"^ExecStart=/opt/gridshift/bin/\S+", "ExecStart=/bin/true", unit.read_text(), flags=re.MULTILINE)
        (tmp_path / unit.name).write_text(text)
    argv = [analyze, "verify", "--man=no", *map(str, here)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "gridshift" not in done.stdout + done.stderr, done.stdout + done.stderr


def test_the_guards_unit_starts_a_guard_that_waits_for_the_agents_own(gpus: SimGpus, tmp_path: Path) -> None:
    (line,) = (line for line in GUARD_UNIT.read_text().splitlines() if line.startswith("ExecStart="))
    argv = line.removeprefix("ExecStart=").replace("/opt/gridshift/bin/python", sys.executable).split()
    argv[-1] = str(tmp_path)
    own = FolderLock(tmp_path, GUARD_LOCK)
    with subprocess.Popen(argv, env=child_environment(gpus), stderr=subprocess.PIPE) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3)
        own.close()  # that one is killed with the agent
        assert process.wait(30) == 0, "there was nothing left to guard"
    assert f"Wants={GUARD_UNIT.name}" in UNIT.read_text()
