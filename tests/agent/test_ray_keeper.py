"""The keeper of agents on a Ray cluster, against a Ray that has only what it uses."""

from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher.agent.ray_actor import Keeper, RayNode, Replaced, actor_name, live_nodes, stamp


class RayError(Exception):
    pass


class RayActorError(RayError):
    pass


class ActorUnavailableError(RayActorError):
    pass


def node(letter: str) -> str:
    """A node's id: Ray's own are 56 hex digits."""
    return letter * 56


def actor(letter: str) -> str:
    return actor_name(node(letter))


class Handle:
    """An actor: ``answer`` is what about() gives, or the error it raises; None: no answer."""

    def __init__(self, name: str, answer: Any) -> None:
        self.name, self.answer = name, answer
        self.stops = 0
        self.about = SimpleNamespace(remote=lambda: Reference(self))
        self.stop = SimpleNamespace(remote=self._stop)

    def _stop(self) -> "Reference":
        self.stops += 1
        return Reference(self)


class Reference:
    def __init__(self, handle: Handle) -> None:
        self.handle = handle


class Ray:
    """A cluster: nodes and named actors. A killed actor's name is free at the next look."""

    exceptions = SimpleNamespace(RayError=RayError, RayActorError=RayActorError, ActorUnavailableError=ActorUnavailableError)

    def __init__(self, own_stamp: float) -> None:
        self.stamp = own_stamp
        self.alive: list[dict[str, Any]] = []
        self.actors: dict[str, Handle] = {}
        self.made: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.killed: list[str] = []

    def add(self, letter: str, branch: str | None = None, alive: bool = True) -> None:
        self.alive.append({"NodeID": node(letter), "Alive": alive, "Labels": {"gridshift.branch": branch} if branch else {}})

    def nodes(self) -> list[dict[str, Any]]:
        return self.alive

    def get_actor(self, name: str, namespace: str) -> Handle:
        assert namespace == "gridshift"
        if name not in self.actors:
            raise ValueError(f"no actor {name}")
        return self.actors[name]

    def remote(self, _: type) -> "Ray":
        return self

    def options(self, **options: Any) -> Any:
        def make(*args: Any) -> Handle:
            handle = Handle(options["name"], {"stamp": self.stamp})
            self.actors[handle.name] = handle
            self.made.append((handle.name, args, options))
            return handle

        return SimpleNamespace(remote=make)

    def wait(self, references: list[Reference], num_returns: int, timeout: float) -> tuple[list[Reference], list[Reference]]:
        done = [one for one in references if one.handle.answer is not None]
        return done, [one for one in references if one not in done]

    def get(self, reference: Reference) -> Any:
        if isinstance(reference.handle.answer, Exception):
            raise reference.handle.answer
        return reference.handle.answer

    def kill(self, handle: Handle, no_restart: bool) -> None:
        assert no_restart
        self.killed.append(handle.name)
        self.actors.pop(handle.name, None)


class Time:
    s = 0.0

    def mono(self) -> float:
        return self.s


@pytest.fixture
def ray() -> Ray:
    return Ray(100.0)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def keeper(ray: Ray, time: Time) -> Keeper:
    return Keeper(ray, 100.0, time.mono)


def test_nodes_and_their_branches() -> None:
    told = [
        {"NodeID": "a", "Alive": True, "Labels": {"gridshift.branch": "rack-1"}},
        {"NodeID": "b", "Alive": False, "Labels": {}},
        {"NodeID": "c", "Alive": True, "Labels": None},
        {"NodeID": "d", "Alive": True},
    ]
    assert live_nodes(told) == [RayNode("a", "rack-1"), RayNode("c", None), RayNode("d", None)]


def test_a_stamp_that_is_none_is_the_earliest() -> None:
    assert stamp({"GRIDSHIFT_AGENT_STAMP": "12.5"}) == 12.5 and stamp({}) == 0.0 == stamp({"GRIDSHIFT_AGENT_STAMP": "x"})


def test_one_actor_a_node_pinned_there_and_restarted_for_ever(ray: Ray, keeper: Keeper) -> None:
    ray.add("a", "rack-1")
    ray.add("b")
    ray.add("d", alive=False)
    keeper.look()
    keeper.look()
    assert [(name, args) for name, args, _ in ray.made] == [
        (actor("a"), (node("a"), "rack-1")),
        (actor("b"), (node("b"), None)),
    ]
    options = ray.made[0][2]
    assert (options["lifetime"], options["max_restarts"], options["num_cpus"]) == ("detached", -1, 0)
    assert (options["scheduling_strategy"].node_id, options["scheduling_strategy"].soft) == (node("a"), False)
    ray.add("c")
    keeper.look()
    assert len(ray.made) == 3


def test_actors_of_this_deployment_are_taken_over(ray: Ray) -> None:
    ray.add("a")
    Keeper(ray, 100.0).look()
    Keeper(ray, 100.0).look()  # the keeper's own process was started again
    assert len(ray.made) == 1 and ray.killed == []


def test_actors_of_an_earlier_deployment_are_replaced(ray: Ray, keeper: Keeper) -> None:
    ray.add("a")
    ray.actors[actor("a")] = Handle(actor("a"), {"stamp": 50.0})
    keeper.look()
    assert ray.killed == [actor("a")]
    keeper.look()
    keeper.look()
    assert len(ray.made) == 1 and len(ray.killed) == 1


def test_a_later_deployment_is_left_alone(ray: Ray, keeper: Keeper, time: Time) -> None:
    ray.add("a")
    keeper.look()
    ray.actors[actor("a")].answer = {"stamp": 200.0}
    time.s = 31.0
    with pytest.raises(Replaced):
        keeper.look()
    assert ray.killed == []
    with pytest.raises(Replaced):
        Keeper(ray, 100.0).look()


def test_an_actor_that_is_being_started_again_is_waited_for_and_a_dead_one_made_anew(
    ray: Ray, keeper: Keeper, time: Time
) -> None:
    ray.add("a")
    ray.add("b")
    ray.add("c")
    keeper.look()
    ray.actors[actor("a")].answer = ActorUnavailableError("being restarted")
    ray.actors[actor("b")].answer = RayActorError("its node's disk is full")
    ray.actors[actor("c")].answer = None
    time.s = 31.0
    keeper.look()
    assert ray.killed == [actor("b")]
    keeper.look()
    assert [name for name, _, _ in ray.made] == [actor(letter) for letter in "abcb"]


def test_an_actor_that_answers_late_holds_up_no_new_node_and_is_heard_later(ray: Ray, keeper: Keeper, time: Time) -> None:
    ray.add("a")
    ray.actors[actor("a")] = Handle(actor("a"), None)
    keeper.look()
    ray.add("b")
    time.s = 1.0
    keeper.look()
    assert [name for name, _, _ in ray.made] == [actor("b")] and ray.killed == []
    ray.actors[actor("a")].answer = {"stamp": 50.0}
    time.s = 2.0
    keeper.look()
    assert ray.killed == [actor("a")]


def test_the_actor_of_a_node_that_is_gone_is_let_go(ray: Ray, keeper: Keeper) -> None:
    ray.add("a")
    keeper.look()
    ray.alive[0]["Alive"] = False
    keeper.look()
    keeper.look()
    assert ray.killed == [actor("a")]


def test_stopped_on_purpose_all_end_in_order(ray: Ray, keeper: Keeper) -> None:
    ray.add("a")
    ray.add("b")
    keeper.look()
    handles = list(ray.actors.values())
    keeper.end_all()
    assert [handle.stops for handle in handles] == [1, 1] and len(ray.killed) == 2
