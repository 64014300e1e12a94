"""For how long GPUs were there to be measured."""

from dispatcher.power.energy import KnownNode
from dispatcher.power.hub import FORGET_S
from dispatcher.power.presence import Presence
from tests.power.energy_samples import T0, at


def node(node_id: str, first_s: float, last_s: float, gpus: int = 2, hostname: str = "") -> KnownNode:
    told = tuple({"uuid": f"GPU-{index}"} for index in range(gpus))
    return KnownNode(node_id, hostname or node_id, "north", None, False, told, at(last_s), at(first_s))


def test_a_node_counts_from_its_first_word_until_it_is_forgotten() -> None:
    there = Presence([node("a", 30, 600)], until=at(10 * FORGET_S))
    assert (there.gpus(T0, at(60)), there.gpu_seconds(T0, at(60))) == (2, 60.0)
    assert there.gpu_seconds(at(60), at(120)) == 120.0
    end_s = 600 + FORGET_S
    assert there.gpu_seconds(at(end_s - 10), at(end_s + 50)) == 20.0
    assert there.gpus(at(end_s), at(end_s + 60)) == 0 == there.gpus(at(-60), T0)


def test_what_is_not_over_is_not_missed_yet() -> None:
    assert Presence([node("a", 0, 600)], until=at(90)).gpu_seconds(at(60), at(120)) == 60.0


def test_a_machine_that_comes_back_under_another_id_counts_once() -> None:
    there = Presence([node("old", 0, 100, hostname="h"), node("new", 120, 900, hostname="h")], until=at(900))
    assert (there.gpus(at(60), at(180)), there.gpu_seconds(at(60), at(180))) == (2, 240.0)
    assert Presence([], until=T0).gpu_seconds(T0, at(60)) == 0.0
