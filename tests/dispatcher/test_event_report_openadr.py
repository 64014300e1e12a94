"""Reports of events as utilities send them: OpenADR 3 through the intake, with versions, a response class and a meter."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher.config import Config
from dispatcher.event_report import NotBegun, Sources, report_of
from dispatcher.power.energy import EnergyBook
from dispatcher.power.meter_store import MeterStore
from dispatcher.power.meter_values import MeterReading
from dispatcher.power.site_meters import SiteMeters
from dispatcher.store.engine import database, make_engine
from dispatcher.store.migrate import upgrade
from dispatcher.store.sql import SqlStore
from dispatcher.verification.report import EventReport
from tests.dr.dr_events import NOW, cap, event, told
from tests.dr.rig import Rig, source

#: The event is from 14 to 15 h; NOW is 12 h.
START = NOW + timedelta(hours=2)
METERS = [
    {"name": "main", "source": "push"},
    {"name": "pdu", "source": "push", "scope": "branch", "of": "rack-1"},
]
REGION: dict[str, Any] = {
    "name": "north",
    "address": "http://127.0.0.1:1",
    "branch": [{"name": "rack-1"}],
    "meter": METERS,
}


class Reported(Rig):
    """A rig with meters, on one database."""

    def __init__(self, base: Path, **more: Any) -> None:
        url = f"sqlite:///{base}/all.db"
        upgrade(url)
        self.engine = make_engine(database(url))
        super().__init__(source(**more), store=SqlStore(url))
        self.config = Config(**{"region": [REGION], "event_source": [source(**more)]})
        self.meters, self.book = SiteMeters(self.config, MeterStore(self.engine)), EnergyBook(self.engine)

    def measured(self, levels: list[tuple[float, float, float]], meter: str = "main") -> None:
        """Readings by the minute: (from, to, W), in minutes after the event's start."""
        made = []
        for first, last, watts in levels:
            for k in range(int(first), int(last)):
                begin = START + timedelta(minutes=k)
                end = begin + timedelta(minutes=1)
                made.append(MeterReading("north", meter, begin, watts, "W", end, end))
        MeterStore(self.engine).add(made)

    def report(self, minute: float) -> EventReport:
        now = START + timedelta(minutes=minute)
        self.clock.move_to(now)
        return report_of(Sources(self.config, self.store, self.meters, self.book), "utility", "evt-1", now)


@pytest.fixture
def rig(tmp_path: Path) -> Reported:
    return Reported(tmp_path)


def minutes(at: datetime) -> float:
    return (at - START).total_seconds() / 60


def owed(report: EventReport) -> list[tuple[float, float, float, float | None]]:
    return [(minutes(one.start), minutes(one.hold_at), minutes(one.end), one.limit_w) for one in report.owed]


def test_a_modification_midway_holds_from_its_receipt_and_is_judged_after_the_response_time(rig: Reported) -> None:
    rig.tell(event(intervals=[cap(120.0), cap(110.0, 1)]))
    with pytest.raises(NotBegun, match="is scheduled from 2026-03-02 14:00:00 UTC to 2026-03-02 16:00:00 UTC"):
        rig.report(-30)
    rig.clock.move_to(START + timedelta(minutes=30))
    rig.tell(told("UPDATE", event(modificationDateTime="2026-03-02T14:29:00Z", intervals=[cap(90.0)])))
    rig.measured([(-240, 0, 150e3), (0, 38, 118e3), (38, 60, 88e3), (60, 200, 150e3)])
    report = rig.report(200)
    # Its class is ten minutes: the first version came in time, the second one may take until 14:40.
    assert owed(report) == [(0, 0, 30, 120e3), (30, 40, 60, 90e3)]
    assert report.verdict == "met" and report.facts.asked_until == START + timedelta(hours=2)
    assert report.delivered is not None
    assert report.delivered.energy_kwh.value == pytest.approx(32 * 38 / 60 + 62 * 22 / 60)
    assert [len(one.segments) for one in report.versions] == [2, 1]


def test_deleted_midway_and_after_a_restart_it_is_the_same_report(rig: Reported) -> None:
    rig.tell(event())
    rig.clock.move_to(START + timedelta(minutes=20))
    rig.gone("evt-1")
    rig.measured([(-240, 0, 150e3), (0, 20, 100e3), (20, 200, 150e3)])
    report = rig.report(200)
    assert owed(report) == [(0, 0, 20, 120e3)] and report.verdict == "met"
    rig.started()
    again = rig.report(201)
    assert again.headline == report.headline and owed(again) == owed(report)


def test_joined_midway_nothing_is_owed_before(rig: Reported) -> None:
    rig.clock.move_to(START + timedelta(minutes=15))
    rig.tell(event())
    rig.measured([(-240, 20, 150e3), (20, 60, 100e3), (60, 200, 150e3)])
    report = rig.report(200)
    assert owed(report) == [(15, 25, 60, 120e3)] and report.verdict == "met"


def test_an_event_of_a_branch_is_measured_by_the_branchs_meter(tmp_path: Path) -> None:
    rig = Reported(tmp_path, branch="rack-1")
    rig.tell(event(intervals=[cap(12.0)]))
    rig.measured([(-240, 200, 150e3)])
    rig.measured([(-240, 0, 15e3), (0, 60, 11e3), (60, 200, 15e3)], "pdu")
    report = rig.report(200)
    assert (report.verdict, report.facts.region) == ("met", "north / rack-1")
    assert report.delivered is not None and report.delivered.energy_kwh.value == pytest.approx(4.0)
