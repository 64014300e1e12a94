"""What a site tells a VTN of itself: by its meter, else by its GPUs; nothing where nothing is known."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dispatcher.config import Config
from dispatcher.dr.site_readings import SiteReadings
from dispatcher.dr.ven3_reports import Reading
from dispatcher.flexibility import Outlook, Shed
from dispatcher.power.energy import EnergySum
from dispatcher.power.meter_store import MemoryMeterStore
from dispatcher.power.meter_values import MeterReading
from dispatcher.store import GridEvent

T = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
METER = {"name": "main", "scope": "site", "source": "push", "unit": "W", "cadence_s": 60}
SOURCE = {
    "name": "utility",
    "protocol": "openadr-3.1",
    "region": "north",
    "url": "https://vtn.example",
    "reference_w": 90_000.0,
}


def at(minute: float) -> datetime:
    return T + timedelta(minutes=minute)


class Energy:
    """A book in which each minute's sum is given."""

    def __init__(self, *watts: float | None, simulated: bool = False) -> None:
        self.watts, self.simulated = watts, simulated

    def sums(self, start: datetime, end: datetime, step_s: int, **_: Any) -> list[EnergySum]:
        return [
            EnergySum(
                at(k), at(k + 1), None if w is None else w / 60, None, None, None, None, 0 if w is None else 2,
                0.0 if w is None else 120.0, self.simulated,
            )
            for k, w in enumerate(self.watts)
        ]  # fmt: skip

    def known_nodes(self, region: str | None = None) -> list[Any]:
        return []


class Events:
    """One stored event."""

    def __init__(self, limit_w: float | None = None, *, told: float = -60, **more: Any) -> None:
        self.event = GridEvent("utility", "e", 1, "north", at(0), at(9), limit_w, at(told), **more)

    def grid_event(self, source: str, event_id: str) -> GridEvent | None:
        return self.event if event_id == "e" else None


def outlook(start: datetime, end: datetime | None, *totals: float) -> Outlook:
    sheds = tuple(Shed(for_s, total, 0.0, None, 1, 0) for for_s, total in zip((600.0, 3600.0), totals, strict=True))
    return Outlook("north", None, start, end, None, "planned", "", sheds, None)


def test_what_could_be_shed_is_the_least_that_is_foreseen_for_long_enough() -> None:
    told = [outlook(at(0), None, 500.0, 400.0), outlook(at(0), at(15), 300.0, 200.0), outlook(at(15), at(30), 90.0, 80.0)]
    config = Config(**{"region": [{"name": "north", "address": "http://north"}], "event_source": [SOURCE]})
    asked: Any = Energy(), Events()
    readings = SiteReadings(config, MemoryMeterStore(), *asked, lambda region, branch: told if region == "north" else [])
    assert readings.shed_available_w("utility", at(1), at(6)) == 300.0
    assert readings.shed_available_w("utility", at(6), at(20)) == 80.0, "for longer than ten minutes"
    assert readings.shed_available_w("utility", at(40), at(50)) is None
    assert SiteReadings(config, MemoryMeterStore(), *asked).shed_available_w("utility", at(1), at(6)) is None


def site(energy: Any = None, events: Any = None, *, meter: bool = False, readings: tuple[float, ...] = ()) -> SiteReadings:
    region = {"name": "north", "address": "http://127.0.0.1:1", "pue": 1.5, "meter": [METER] if meter else []}
    store = MemoryMeterStore()
    store.add([MeterReading("north", "main", at(k), w, "W", at(k + 1), at(k + 1)) for k, w in enumerate(readings)])
    return SiteReadings(Config(**{"region": [region], "event_source": [SOURCE]}), store, energy or Energy(), events or Events())


def test_the_meter_is_the_truth() -> None:
    found = site(Energy(1.0, 1.0), meter=True, readings=(40_000.0, 50_000.0)).draw("utility", at(0), at(2))
    assert found == Reading(45_000.0, 1.0, measured=True)


def test_a_part_of_an_interval_lowers_the_coverage() -> None:
    one = site(meter=True, readings=(40_000.0, 50_000.0))
    assert one.draw("utility", at(1), at(5)) == Reading(50_000.0, 0.25)
    assert one.draw("utility", at(0.5), at(1.5)) == Reading(45_000.0, 1.0)


def test_while_a_meter_says_nothing_gpus_are_an_estimate() -> None:
    assert site(Energy(1000.0), meter=True).draw("utility", at(0), at(1)) == Reading(1500.0, 1.0, measured=False)
    assert site(meter=True).draw("utility", at(0), at(1)) is None


def test_without_a_meter_gpus_times_pue_are_an_estimate() -> None:
    assert site(Energy(1000.0, 3000.0)).draw("utility", at(0), at(2)) == Reading(3000.0, 1.0, measured=False)


def test_a_minute_that_nobody_told_is_a_gap() -> None:
    assert site(Energy(1000.0, None)).draw("utility", at(0), at(2)) == Reading(1500.0, 0.5, measured=False)


def test_what_is_played_is_not_told() -> None:
    assert site(Energy(1000.0, simulated=True)).draw("utility", at(0), at(1)) is None


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (Events(60_000.0), "RUNNING_CURTAILED"),
        (Events(60_000.0, cancelled=True), "RUNNING_CURTAILED"),
        (Events(30_000.0), "ERROR"),
        (Events(45_000.0, told=-9), "RUNNING_CURTAILED"),  # ten minutes to get there, of which one is left
        (Events(30_000.0, told=-9), "ERROR"),
        (Events(30_000.0, told=0), None),  # nothing is owed yet
        (Events(60_000.0, opted_out="maintenance"), "RUNNING_OPTED_OUT"),
        (Events(30_000.0, test=True), "NORMAL"),
        (Events(), "NORMAL"),
    ],
)
def test_operating_states(event: Events, expected: str | None) -> None:
    one = site(events=event, meter=True, readings=(60_000.0, 40_000.0))
    assert one.operating_state("utility", "e", at(0), at(2)) == expected


def test_a_draw_that_is_not_known_is_no_state() -> None:
    one = site(events=Events(60_000.0))
    assert one.operating_state("utility", "e", at(0), at(2)) is None
    assert one.operating_state("utility", "another", at(0), at(2)) is None


def test_the_baseline_is_what_was_agreed() -> None:
    assert site().baseline("utility", "e", at(0), at(1)) == Reading(90_000.0, measured=False)
