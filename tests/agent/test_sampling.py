"""Readings of many GPUs: all by one thread while the driver answers, and none held up by one that hangs."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dispatcher.agent import sampling
from dispatcher.agent.devices import DeviceLost, Reading
from dispatcher.agent.sampling import NOTHING, GpuLook, Samplers

READING = Reading(1.0, 1.0, 100.0, None, 400.0, 400.0, 40.0, 0.5, 0.1, (), None)


class Driver:
    """Answers at once, but for GPUs that ``hang`` until ``go``; knows which threads asked."""

    def __init__(self) -> None:
        self.hang: set[str] = set()
        self.lost: set[str] = set()
        self.go = threading.Event()
        self.threads: set[str] = set()

    def processes(self, uuid: str) -> list[Any]:
        self.threads.add(threading.current_thread().name)
        if uuid in self.hang:
            self.go.wait(20)
        return []

    def reading(self, uuid: str) -> Reading:
        if uuid in self.lost:
            raise DeviceLost("gone")
        return READING


@pytest.fixture
def samplers() -> Iterator[Samplers]:
    made = Samplers()
    yield made
    made.close()


def look(samplers: Samplers, driver: Driver, *uuids: str) -> dict[str, GpuLook]:
    return samplers.look(driver, uuids)  # type: ignore[arg-type]


def test_one_thread_reads_all_that_answer(samplers: Samplers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "STALL_S", 10.0)  # a busy machine is no driver that hangs
    monkeypatch.setattr(sampling, "LOOK_S", 10.0)
    driver = Driver()
    driver.lost = {"b"}
    whole = GpuLook(READING, [])
    for _ in range(3):
        assert look(samplers, driver, "a", "b", "c") == {"a": whole, "b": GpuLook(None, []), "c": whole}
    assert len(driver.threads) == 1
    assert look(samplers, driver) == {}


def test_those_that_hang_are_unknown_and_hold_up_no_other(samplers: Samplers, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, whole = Driver(), GpuLook(READING, [])
    driver.hang = {"a", "b"}
    monkeypatch.setattr(sampling, "LOOK_S", 1.5)
    for _ in range(2):
        assert look(samplers, driver, "a", "b", "c", "d") == {"a": NOTHING, "b": NOTHING, "c": whole, "d": whole}
    monkeypatch.setattr(sampling, "LOOK_S", 10.0)
    driver.go.set()
    assert look(samplers, driver, "a", "b", "c", "d") == dict.fromkeys("abcd", whole)
