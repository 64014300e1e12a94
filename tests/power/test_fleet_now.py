"""What is remembered of the fleet over a restart, and how seldom that is written."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dispatcher.clock import VirtualClock
from dispatcher.config import Config
from dispatcher.power.energy import EnergyBook
from dispatcher.power.fleet_now import FleetNow
from dispatcher.power.hub import Hub
from dispatcher.store.engine import database, make_engine

START = datetime(2026, 3, 2, tzinfo=UTC)
CONFIG = Config.model_validate(
    {"region": [{"name": "north", "address": "http://a", "branch": [{"name": "rack-1", "power_limit_w": 9000.0}]}]}
)


@pytest.fixture
def book(sqlite_url: str) -> Iterator[EnergyBook]:
    engine = make_engine(database(sqlite_url))
    one = EnergyBook(engine)
    yield one
    one.close()
    engine.dispose()


class Session:
    """An agent's connection that hears nothing."""

    def send(self, text: str, *, is_order: bool = False) -> None:
        """Nothing."""

    def close(self, why: str) -> None:
        """Nothing."""


def hello(hub: Hub, session: Session, gpus: int = 1) -> None:
    node = {"node_id": "n1", "hostname": "host", "region": "north", "branch": "rack-1", "boot_id": "b", "version": "1"}
    infos = [
        {"uuid": f"GPU-{n}", "index": n, "name": "H100", "min_w": 200.0, "max_w": 700.0, "default_w": 700.0, "limit_w": 700.0}
        | {
            "mig": False,
            "energy_counter": True,
            "power_is_average": True,
            "module_scope": False,
            "simulated": False,
            "notes": [],
        }
        for n in range(gpus)
    ]
    frame: dict[str, Any] = {"type": "hello", "protocol": 1, "can_cap": True, "why_not": "", "leases": [], "epoch": 0}
    frame |= {"node": node | {"ray_node_id": None, "simulated": False, "started_at": 1.0}, "gpus": infos}
    answer = hub.receive(session, "north", json.dumps(frame))
    assert answer is None, answer


def test_a_node_is_still_known_after_a_restart(book: EnergyBook, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock(START)
    hub, session = Hub(epoch=1, now=clock.now, mono=lambda: clock.now().timestamp()), Session()
    fleet = FleetNow(CONFIG, hub, book, clock)
    assert [one.name for one in fleet.view().regions[0].branches] == ["rack-1"] and fleet.view().draw.gpus == 0
    written: list[list[str]] = []
    note = book.note_nodes
    monkeypatch.setattr(book, "note_nodes", lambda nodes: (written.append([one.node_id for one in nodes]), note(nodes)))
    hello(hub, session)
    fleet.keep(clock.now())
    clock.advance(5)
    hello(hub, session)
    fleet.keep(clock.now())
    assert written == [["n1"]], "nothing changed but when it was heard"
    hello(hub, session, gpus=2)
    fleet.keep(clock.now())
    assert len(written) == 2 and len(book.known_nodes()[0].gpus) == 2
    for _ in range(20):
        clock.advance(5)
        hello(hub, session, gpus=2)
        fleet.keep(clock.now())
    assert len(written) == 3, "once a minute"

    again = FleetNow(CONFIG, Hub(epoch=2, now=clock.now), book, clock)
    (node,) = again.view().regions[0].branches[0].nodes
    assert node.silent and len(node.gpus) == 2 and again.view().draw.unknown_gpus == 2 and again.view().draw.power_w is None
    clock.advance(3600)
    assert again.view().draw.gpus == 0, "gone for an hour, it is told of no more"


def test_old_energy_is_summed_up_once_an_hour(book: EnergyBook, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = VirtualClock(START)
    fleet = FleetNow(CONFIG, Hub(epoch=1), book, clock)
    thinned: list[datetime] = []
    monkeypatch.setattr(book, "thin", thinned.append)
    for _ in range(130):
        fleet.keep(clock.now())
        clock.advance(60)
    assert thinned == [START + timedelta(hours=n) for n in range(3)]


def test_no_energy_is_dropped_by_a_clock_that_was_set(book: EnergyBook, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, steady = VirtualClock(START), False
    fleet = FleetNow(CONFIG, Hub(epoch=1), book, clock, steady=lambda _: steady)
    thinned: list[datetime] = []
    monkeypatch.setattr(book, "thin", thinned.append)
    fleet.keep(START)
    assert thinned == []
    steady = True
    fleet.keep(START)
    assert thinned == [START]
