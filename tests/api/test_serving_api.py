"""``GET /v1/serving``: how each serving stands, and what happened to one of them."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from dispatcher.serving.watch import ServingStatus
from dispatcher.store import GridEventChange, Judged, ObjectiveCounts, ServingQuarter
from policies.serving import Batch, Level, Risk
from policies.world import Reserved
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
        "batch": {"running": 3, "cappable": 1, "freezable": 1, "pausable": 2}, "kept_free": [],
    }  # fmt: skip
    assert (south["level"], south["unmet_alone"], south["error"]) == ("calm", True, "it answers 500")
    (one,) = server.get("/v1/serving?region=north&name=chat")["serving"]
    assert [line["sentence"] for line in one["history"]] == ["batch is frozen: why", "no batch starts: why"], "newest first"
    assert server.get("/v1/serving?region=north&name=other") == {"serving": []}


CHAT = ServingStatus("north", "chat", Level.CALM, AT, "batch runs freely: why", False, (), Batch(0, 0, 0, 0), "")


def test_what_is_kept_free_for_it_is_told(server: Server, services: FakeServices) -> None:
    services.servings = [CHAT]
    (north, *_) = services.snapshot().world.regions
    mine, other = (
        Reserved(AT, AT + timedelta(hours=1), 3.0, 0.0, f"kept free for serving {name} (its floor)", f"serving {name}")
        for name in ("chat", "code")
    )
    services.views = (replace(north, gpus=8.0, reserved=(other, mine)),)
    (one,) = server.get("/v1/serving")["serving"]
    (kept,) = one["kept_free"]
    assert kept["gpus"] == 3.0 and kept["sentence"].endswith("3 of 8 GPUs kept free for serving chat (its floor)")


def test_a_report_tells_what_was_kept_alone_and_beside_batch(server: Server, services: FakeServices) -> None:
    services.servings = [CHAT]
    counts = ObjectiveCounts("e2e p95 <= 0.2 s", 0.95, Judged(1000, 10, 800, 100), Judged(100, 10, 100, 0))
    quarter = ServingQuarter("north", "chat", AT, "a", (counts,), (900, 90, 0, 10, 0), 100, 200.0, 300.0, 2, 1, 1, 0, 0, (1.5,))
    quiet = ObjectiveCounts("e2e p95 <= 0.2 s", 0.95, Judged(), Judged(10, 0, 900, 0))
    trough = ServingQuarter("north", "chat", AT + timedelta(minutes=15), "b", (quiet,), (900, 0, 0, 0, 0), 900, 1800.0, 1800.0)
    services.store.keep_serving([quarter, trough]).result()
    told = server.get("/v1/serving/report?start=2026-03-01T00:00:00Z&end=2026-03-02T00:00:00Z")
    (one,) = told["serving"]
    (slo,) = one["objectives"]
    assert (slo["alone"]["share"], slo["alone"]["is_met"], slo["alone"]["unknown_s"]) == (0.99, True, 100)
    assert slo["beside"]["share"] == pytest.approx(1 - 10 / 110) and slo["beside"]["is_met"] is False
    assert slo["beside"]["low"] < slo["beside"]["share"] < slo["beside"]["high"]
    assert one["batch_gpu_h"] == pytest.approx(2000 / 3600) and one["trough_gpu_h"] == pytest.approx(0.5), (
        "fewer were asked then"
    )
    assert (one["rises"], one["frozen"], one["yield_s"], one["level_s"]["freeze"]) == (2, 1, [1.5], 10)
    assert "proves no cause" in told["note"]
    # what was not seen is not met
    (empty,) = server.get("/v1/serving/report?start=2025-03-01T00:00:00Z&end=2025-03-02T00:00:00Z")["serving"]
    assert empty["objectives"] == [] and empty["watched_s"] == 0 and empty["trough_gpu_h"] is None


@pytest.mark.parametrize(
    ("query", "field", "remedy"),
    [
        ("region=nort", "region", "must be one of north"),
        ("start=2026-03-01", "start", "must be a time with an offset"),
        ("start=2026-03-02T00:00:00Z&end=2026-03-01T00:00:00Z", "end", "must be after start"),
        ("start=2020-03-02T00:00:00Z&end=2026-03-01T00:00:00Z", "end", "by 366 days at most"),
        ("to=x", "to", ""),
    ],
)
def test_a_report_that_cannot_be_made_says_why(
    server: Server, services: FakeServices, query: str, field: str, remedy: str
) -> None:
    services.servings = [CHAT]
    answer = server.call("GET", f"/v1/serving/report?{query}")
    assert answer.status_code == 422 and field in answer.text and remedy in answer.text
