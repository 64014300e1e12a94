"""An agent killed at any moment: what then stands, the next one brings to what the leases say, and in the end all back."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher.simgpu import SimGpus
from tests.simgpu.simulated import child_environment, simulated

CHILD = Path(__file__).parent / "caps_child.py"
ROUNDS = int(os.environ.get("GRIDSHIFT_CHAOS_ROUNDS", "20"))
BEFORE_W = (380.0, 400.0)


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[SimGpus]:
    with simulated(tmp_path, count=2) as some:
        for gpu, before_w in zip(some, BEFORE_W, strict=True):
            gpu.set_limit(before_w)
            gpu.set_failing(50)
        yield some


class Agent:
    """The child process and the lines to and from it."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self.leases = self.read()["leases"]

    def read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.endswith(b"\n"), "the agent ended by itself"
        return json.loads(line)

    def send(self, what: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, what: object) -> Any:
        self.send(what)
        return self.read()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(started: Start, tmp_path: Path, gpus: SimGpus) -> Callable[[], Agent]:
    def one() -> Agent:
        argv = [sys.executable, str(CHILD), str(tmp_path / "state")]
        env = child_environment(gpus)
        return Agent(started(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE))

    return one


def settled(gpus: SimGpus, wanted: list[set[float]], within_s: float = 2.0) -> bool:
    """Whether each GPU comes to one of its possible limits, and stays."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        if all(gpu.limit_w in each for gpu, each in zip(gpus, wanted, strict=True)):
            return True
        time.sleep(0.02)
    return False


def test_killed_at_random_and_started_again(gpus: SimGpus, start: Callable[[], Agent]) -> None:
    """Event leases only: an economic one could end on its own while nobody looks. Each order is either carried out or not."""
    chance = random.Random(20)
    sure: dict[str, tuple[int, float]] = {}  # leases that were confirmed: GPU, limit
    last: dict[str, Any] = {"epoch": 1, "set": [], "release": []}  # the order that the kill fell into
    for number in range(ROUNDS):
        for gpu in gpus:
            gpu.set_lag(chance.choice([0.0, 0.0, 0.2]))
        agent = start()
        # 1. what was confirmed stands again, and nothing else; the order that was cut off is carried out, or it is not
        new = terms_of(last, gpus)
        assert set(agent.leases) <= set(sure) | set(new), f"round {number}"
        assert set(sure) - set(agent.leases) <= set(last["release"]), f"round {number}"
        sure = {name: (sure | new)[name] for name in agent.leases}
        caps = [[limit_w for index, limit_w in sure.values() if index == i] for i in (0, 1)]
        wanted = [{min([*caps[i], BEFORE_W[i]])} for i in (0, 1)]
        assert settled(gpus, wanted), f"round {number}: {[gpu.limit_w for gpu in gpus]}, wanted {wanted}"
        # 2. some orders, confirmed
        for _ in range(chance.randrange(3)):
            sure = confirmed(agent, gpus, sure, chance)
        # 3. one more, and the end at any moment of it
        last = an_order(gpus, sure, chance)
        agent.send(last)
        time.sleep(chance.random() * chance.choice([0.002, 0.02, 0.3]))
        agent.kill()
    agent = start()
    agent.ask({"epoch": 1, "set": [], "release": agent.leases})
    assert settled(gpus, [{w} for w in BEFORE_W])
    agent.kill()


def terms_of(order: dict[str, Any], gpus: SimGpus) -> dict[str, tuple[int, float]]:
    """The GPU and the limit of each lease that an order sets."""
    index = {gpu.uuid: gpu.index for gpu in gpus}
    return {one["lease_id"]: (index[one["uuid"]], one["limit_w"]) for one in order["set"]}


def an_order(gpus: SimGpus, sure: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    if sure and chance.random() < 0.45:
        return {"epoch": 1, "set": [], "release": chance.sample(sorted(sure), 1)}
    index, limit_w = chance.randrange(2), chance.choice([220.0, 260.0, 300.0, 390.0])
    name = f"lease {chance.randrange(10**9)}"
    one = {"lease_id": name, "kind": "event", "uuid": gpus[index].uuid, "limit_w": limit_w, "ttl_s": None}
    return {"epoch": 1, "set": [one], "release": []}


def confirmed(agent: Agent, gpus: SimGpus, sure: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    order = an_order(gpus, sure, chance)
    [result] = agent.ask(order)["results"]
    assert result["ok"], result
    left = {name: terms for name, terms in sure.items() if name not in order["release"]}
    return left | terms_of(order, gpus)


def test_a_killed_agent_gives_back_what_ended_while_it_was_away(gpus: SimGpus, start: Callable[[], Agent]) -> None:
    agent = start()
    cap = {"lease_id": "short", "kind": "economic", "uuid": gpus[0].uuid, "limit_w": 250.0, "ttl_s": 1.0}
    assert agent.ask({"epoch": 1, "set": [cap], "release": []})["results"][0]["ok"]
    agent.kill()
    assert gpus[0].limit_w == 250.0
    time.sleep(0.7)  # the time it is away is what is tested
    assert start().leases in ([], ["short"])
    assert settled(gpus, [{w} for w in BEFORE_W])


def test_two_agents_on_one_node(gpus: SimGpus, start: Callable[[], Agent]) -> None:
    first, second = start(), start()
    [state, _] = second.ask("states")["states"].values()
    assert state[0] == "unable" and f"held by process {first.process.pid}" in state[1]
    cap = {"lease_id": "x", "kind": "event", "uuid": gpus[0].uuid, "limit_w": 250.0, "ttl_s": None}
    assert not second.ask({"epoch": 1, "set": [cap], "release": []})["results"][0]["ok"]
    assert gpus[0].limit_w == BEFORE_W[0]
    assert first.ask({"epoch": 1, "set": [cap], "release": []})["results"][0]["ok"]
    first.kill()
    until_s = time.monotonic() + 5.0
    while second.ask("states")["states"][gpus[0].uuid][0] != "enforced":
        assert time.monotonic() < until_s
    assert gpus[0].limit_w == 250.0
