"""``GET /v1/serving``: how each serving stands, and what happened to one of them."""

from datetime import UTC, datetime

from dispatcher.serving.watch import ServingStatus
from dispatcher.store import GridEventChange
from policies.serving import Batch, Level, Risk
from tests.api.fake import FakeServices, Server

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_serving_is_told_with_its_promises_and_its_history(server: Server, services: FakeServices) -> None:
    assert server.get("/v1/serving") == {"serving": []}
    risk = Risk("at_risk", 12.34567, 1.5, "e2e p99 <= 0.5 s is at risk")
    services.servings = [
        ServingStatus("north", "chat", Level.FREEZE, AT, "batch is frozen: why", False, (risk,), Batch(3, 1, 1, 2), ""),
        ServingStatus("south", "chat", Level.CALM, AT, "batch runs freely: why", True, (), Batch(0, 0, 0, 0), "it answers 500"),
    ]
    for number, sentence in enumerate(("no batch starts: why", "batch is frozen: why")):
        line = GridEventChange("serving north", "chat", AT.replace(second=number), None, "note", sentence)
        services.store.note_grid_event(line).result()
    north, south = server.get("/v1/serving")["serving"]
    assert north == {
        "region": "north", "name": "chat", "level": "freeze", "since": "2026-03-01T12:00:00+00:00",
        "sentence": "batch is frozen: why", "unmet_alone": False, "error": None,
        "objectives": [
            {"state": "at_risk", "short_burn": 12.346, "long_burn": 1.5, "sentence": "e2e p99 <= 0.5 s is at risk"}
        ],
        "batch": {"running": 3, "cappable": 1, "freezable": 1, "pausable": 2},
    }  # fmt: skip
    assert (south["level"], south["unmet_alone"], south["error"]) == ("calm", True, "it answers 500")
    (one,) = server.get("/v1/serving?region=north&name=chat")["serving"]
    assert [line["sentence"] for line in one["history"]] == ["batch is frozen: why", "no batch starts: why"], "newest first"
    assert server.get("/v1/serving?region=north&name=other") == {"serving": []}
