"""``GET /v1/signals``: where every price and carbon stands and why, and one of them on the planner's slots."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from dispatcher.clock import VirtualClock
from signals.series import SlotSeries
from tests.api.fake import FakeServices, Server

CHAIN = [
    {"feed": "energy_charts", "bzn": "DE-LU", "base_url": "http://user:hunter2@10.0.0.1"},
    {"feed": "csv", "file": "p.csv"},
]


def test_all_signals_with_their_sources(server: Server, services: FakeServices) -> None:
    signals = server.get("/v1/signals")["signals"]
    assert [(s["region"], s["kind"], s["signal"]) for s in signals] == [
        ("north", "price", "price"),
        ("north", "carbon", "carbon_average"),
        ("south", "price", "price"),
        ("south", "carbon", "carbon_average"),
    ]
    price, carbon = signals[:2]
    assert {key: price[key] for key in ("unit", "now", "basis", "low", "high", "source", "why")} == {
        "unit": "EUR/MWh", "now": 50.0, "basis": "published", "low": None, "high": None, "source": "csv",
        "why": "energy_charts: no answer; csv: is fresh",
    }  # fmt: skip
    first, second = price["sources"]
    assert first == {
        "feed": "energy_charts", "source": "energy_charts", "state": "failed", "chosen": False, "why": "no answer",
        "age_s": None, "known_until": None, "quality": None, "due_at": "2026-01-01T00:00:00+00:00", "error": "no answer",
        "warnings": ["odd row"],
    }  # fmt: skip
    assert (second["state"], second["chosen"], second["age_s"], second["quality"]) == ("fresh", True, 12.5, "measured")
    assert (carbon["now"], carbon["unit"], carbon["source"], carbon["basis"]) == (None, None, None, "unknown")
    assert carbon["why"] == "no source is configured" and carbon["sources"] == []


def test_a_grids_load_is_told_where_it_is_configured(server: Server, services: FakeServices) -> None:
    assert server.call("GET", "/v1/signals?region=south&kind=load").status_code == 404
    services.config.regions[1].load.append({"feed": "csv", "file": "load.csv"})
    load = server.get("/v1/signals")["signals"][-1]
    assert (load["region"], load["kind"], load["now"], load["why"]) == ("south", "load", None, "not asked yet")
    start = services.clock.now().replace(minute=0, second=0, microsecond=0)
    services.loads["south"] = SlotSeries(start, 3600, (41_000.0, None), ("published", "unknown"), "MW", "csv")
    load = server.get("/v1/signals?region=south&kind=load")
    assert (load["signal"], load["now"], load["unit"], load["values"]) == ("load", 41_000.0, "MW", [41_000.0, None])


def test_one_signal_on_the_planners_slots(shared: Server) -> None:
    one = shared.get("/v1/signals?region=north&kind=price")
    assert one["values"] == [50.0, None, -3.0] and one["basis"] == ["published", "unknown", "model"]
    assert one["low"] == [None, None, -9.0] and one["high"] == [None, None, 4.5]
    assert one["reason"] == "model of 182 days of history" and one["slot_s"] == 900
    assert one["now"] == 50.0 and one["source"] == "csv" and len(one["sources"]) == 2
    answer = shared.call("GET", "/v1/signals?region=north&kind=carbon")
    assert answer.status_code == 404 and "no source is configured" in answer.text
    for wrong in ("region=x&kind=price", "region=north&kind=wind", "region=north", "kind=price", "region="):
        assert shared.call("GET", f"/v1/signals?{wrong}").status_code == 422, wrong


def test_a_value_that_is_our_forecast_has_its_quantiles(server: Server, services: FakeServices) -> None:
    services.clock = VirtualClock(datetime(2026, 1, 1, tzinfo=UTC))
    price = server.get("/v1/signals")["signals"][0]
    assert (price["now"], price["low"], price["high"]) == (50.0, None, None)
    assert services.asked_as_of == datetime(2026, 1, 1, tzinfo=UTC), "ages are as of the control plane's own time"
    shown = services.snapshot
    later = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=30)
    held = shown()
    services.snapshot = lambda: held  # type: ignore[method-assign]
    services.clock = VirtualClock(later)
    price = server.get("/v1/signals")["signals"][0]
    assert (price["now"], price["basis"], price["low"], price["high"]) == (-3.0, "model", -9.0, 4.5)


def test_nothing_of_a_sources_options_is_told(tmp_path: Path) -> None:
    regions = [
        {"name": "north", "address": "http://127.0.0.1:1", "price": CHAIN, "carbon_signal": "marginal"},
        {"name": "south", "address": "http://127.0.0.1:2"},
    ]
    services = FakeServices(tmp_path, region=regions)
    services.chains = []
    with Server(services) as server:
        answer = server.call("GET", "/v1/signals")
    assert "hunter2" not in answer.text and "10.0.0.1" not in answer.text
    price, carbon = answer.json()["signals"][:2]
    assert price["why"] == "not asked yet" and carbon["signal"] == "carbon_marginal"
