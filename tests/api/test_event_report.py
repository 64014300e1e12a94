"""Reports of events over the real API: readings pushed by a meter's gateway, events as operators and utilities send them."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dispatcher.cli import main
from dispatcher.clock import VirtualClock
from dispatcher.power.energy import KnownNode
from dispatcher.power.meter_store import MeterStore
from dispatcher.power.site_meters import SiteMeters
from dispatcher.store.engine import database, make_engine
from dispatcher.store.migrate import upgrade
from policies.world import JobState, Placement, Plan
from tests.api.fake import FakeServices, Server

#: A Tuesday; the event is from 16 to 18 h.
DAY = datetime(2026, 6, 23, tzinfo=UTC)
REGION: dict[str, Any] = {
    "name": "north",
    "address": "http://127.0.0.1:1",
    "pue": 1.5,
    "power_limit_w": 200_000.0,
    "branch": [{"name": "rack-1"}],
    "meter": [{"name": "main", "source": "push"}],
}
PROGRAMME: dict[str, Any] = {
    "name": "interruptible",
    "event_source": ["api"],
    "currency": "EUR",
    "per_kwh": 0.5,
    "penalty_per_kwh": 2.0,
    "notice": "30m",
    "hours": [16, 21],
}
Level = Callable[[datetime], float | None]


def at(hour: float, day: int = 0) -> datetime:
    return DAY + timedelta(days=day, hours=hour)


class Site:
    """A control plane, its clock, and the gateway of its meter."""

    def __init__(self, server: Server, clock: VirtualClock) -> None:
        self.server, self.clock = server, clock

    def push(self, readings: list[dict[str, Any]]) -> None:
        for k in range(0, len(readings), 500):
            answer = self.server.call("POST", "/v1/meters/north/main", json=readings[k : k + 500])
            assert answer.status_code == 202, answer.text

    def hours_of_days_before(self, days: int, watts: float) -> None:
        """A reading an hour for each of the days before."""
        for back in range(days, 0, -1):
            self.clock.move_to(at(24, -back))
            hours = [(at(hour, -back), at(hour + 1, -back)) for hour in range(24)]
            self.push([{"start": a.isoformat(), "end": b.isoformat(), "value": watts} for a, b in hours])

    def minutes(self, start: datetime, end: datetime, level: Level) -> None:
        """A reading a minute, each of the minute before it; None: the gateway says nothing."""
        self.clock.move_to(end)
        stamps = [start + timedelta(minutes=k + 1) for k in range(round((end - start).total_seconds() / 60))]
        told = [(stamp, level(stamp - timedelta(minutes=1))) for stamp in stamps]
        self.push([{"at": stamp.isoformat(), "value": value} for stamp, value in told if value is not None])

    def create(self, *more: str) -> Result:
        return self.command("events", "create", "--region", "north", "--id", "e1", "--start", at(16).isoformat(), *more)

    def command(self, *args: str) -> Result:
        return CliRunner().invoke(main, [*args, "--address", self.server.url])

    def report(self, *args: str) -> dict[str, Any]:
        done = self.command("events", "report", "e1", *args, "--json")
        assert done.exit_code == 0, done.output
        told: dict[str, Any] = json.loads(done.stdout)
        return told


@contextmanager
def site_of(tmp_path: Path, region: dict[str, Any] = REGION, **config: Any) -> Iterator[Site]:
    services = FakeServices(tmp_path, region=[region], **config)
    services.clock = clock = VirtualClock(at(0, -20))
    url = f"sqlite:///{tmp_path}/meters.db"
    upgrade(url)
    engine = make_engine(database(url))
    services.meters = SiteMeters(services.config, MeterStore(engine))
    with Server(services) as server:
        yield Site(server, clock)
    services.meters.close()
    engine.dispose()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_of(tmp_path, programme=[PROGRAMME]) as made:
        yield made


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Site]:
    with site_of(tmp_path) as made:
        yield made


def cut(low_w: float, start: float = 16.0, end: float = 18.0, base_w: float = 100_000.0) -> Level:
    return lambda when: low_w if at(start) <= when < at(end) else base_w


def test_delivery_and_money_are_those_of_the_meter_and_the_terms(site: Site, tmp_path: Path) -> None:
    site.hours_of_days_before(15, 100_000.0)
    site.minutes(at(0), at(15), cut(60_000.0))
    assert site.create("--end", at(18).isoformat(), "--limit-w", "65000", "--reason", "hot evening").exit_code == 0
    site.minutes(at(15), at(21), cut(60_000.0))
    report = site.report()
    # 100 kW for two hours were to be expected, 60 kW were drawn; the limit asked for 35 kW of it.
    assert (report["verdict"], report["coverage"]) == ("met", 1.0)
    assert report["baseline"]["method"] == "10-in-10, same-day multiplicative"
    assert report["delivered"]["mean_w"]["value"] == pytest.approx(40_000.0)
    assert report["delivered"]["energy_kwh"]["value"] == pytest.approx(80.0)
    assert report["delivered"]["committed_kwh"] == pytest.approx(70.0)
    assert report["delivered"]["performance"] == pytest.approx(80 / 70)
    minute = next(one for one in report["compliance"] if one["window_s"] == 60.0)
    assert (minute["windows"], minute["within"]) == (120, 120)
    assert report["tracking"]["over_cap_kwh"] == 0.0 and report["tracking"]["over_shed_w"] == pytest.approx(5000.0)
    # Paid up to what was committed: 70 kWh at 0.5; nothing was missing.
    settlement = report["settlement"]
    assert [(line["name"], line["amount"]) for line in settlement["lines"]] == [
        ("energy delivered, as far as it is paid", pytest.approx(35.0)),
        ("penalty: energy not delivered", 0.0),
    ]
    assert (settlement["total"], settlement["currency"], settlement["breaches"]) == (pytest.approx(35.0), "EUR", [])
    assert any("Past readings are longer" in line for line in report["caveats"])
    assert report["facts"]["reason"] == "hot evening" and report["facts"]["window"]["notice_at"] == "2026-06-23T15:00:00Z"

    table = site.command("events", "report", "e1")
    assert table.exit_code == 0 and "met" in table.output and "40 kW mean, 80.000 kWh" in table.output
    written = site.command("events", "report", "e1", "--csv", str(tmp_path / "e1.csv"), "--html", str(tmp_path / "e1.html"))
    assert written.exit_code == 0, written.output
    rows = list(csv.DictReader(io.StringIO((tmp_path / "e1.csv").read_text())))
    inside = [row for row in rows if "2026-06-23T16:00:00" <= row["slot_start_utc"][:19] < "2026-06-23T18:00:00"]
    assert len(inside) == 120
    assert sum(float(row["delivered_w"]) / 60_000 for row in inside) == pytest.approx(80.0)
    page = (tmp_path / "e1.html").read_text()
    assert page.startswith("<!doctype html>") and "80.0 kWh" in page and "35.00 EUR" in page


def test_a_gap_of_the_meter_is_told_and_is_neither_delivered_nor_within(plain: Site) -> None:
    plain.minutes(at(3), at(15), cut(60_000.0))
    assert plain.create("--duration", "2h", "--limit-w", "65000").exit_code == 0

    def with_gap(when: datetime) -> float | None:
        return None if at(17) <= when < at(17.5) else cut(60_000.0)(when)

    plain.minutes(at(15), at(21), with_gap)
    report = plain.report()
    assert report["coverage"] == pytest.approx(0.75) and report["verdict"] == "not proven"
    # There are no past days here: the meter's last ten minutes before the notice stand for them.
    assert report["baseline"]["method"] == "meter before"
    assert [name for name, _ in report["refused"]] == ["10-in-10, same-day multiplicative", "10-in-10"]
    assert report["delivered"]["energy_kwh"] == {"value": pytest.approx(60.0), "coverage": pytest.approx(0.75)}
    assert report["delivered"]["unmeasured_kwh"] == pytest.approx(17.5)
    assert any("covers 75 % of the event" in line for line in report["caveats"])
    text = plain.server.call("GET", "/v1/events/api/e1/report", params={"format": "csv"}).text
    missing = [row for row in csv.DictReader(io.StringIO(text)) if row["quality"] == "missing" and row["limit_w"]]
    assert len(missing) == 30 and all(row["metered_w"] == row["delivered_w"] == "" for row in missing)


def test_a_modification_counts_from_its_receipt(plain: Site) -> None:
    plain.minutes(at(3), at(15), cut(60_000.0))
    assert plain.create("--end", at(18).isoformat(), "--limit-w", "80000").exit_code == 0

    def stepped(when: datetime) -> float:
        return 78_000.0 if at(16) <= when < at(17) else 58_000.0 if at(17) <= when < at(18.5) else 100_000.0

    plain.minutes(at(15), at(17), stepped)
    assert plain.create("--end", at(18.5).isoformat(), "--limit-w", "60000").exit_code == 0
    plain.minutes(at(17), at(22), stepped)
    report = plain.report()
    owed = [(one["start"], one["end"], one["limit_w"]) for one in report["owed"]]
    assert owed == [
        ("2026-06-23T16:00:00Z", "2026-06-23T17:00:00Z", 80_000.0),
        ("2026-06-23T17:00:00Z", "2026-06-23T18:30:00Z", 60_000.0),
    ]
    assert report["verdict"] == "met"
    # 22 kW for an hour and 42 kW for an hour and a half.
    assert report["delivered"]["energy_kwh"]["value"] == pytest.approx(22 + 63)
    assert [one["name"] for one in report["versions"]] == ["version 1", "version 2"]


def test_a_change_before_the_start_leaves_nothing_of_the_first_hours(plain: Site) -> None:
    plain.minutes(at(3), at(15), cut(60_000.0))
    assert plain.create("--end", at(17).isoformat(), "--limit-w", "80000").exit_code == 0
    moved = ("events", "create", "--region", "north", "--id", "e1", "--start", at(19).isoformat(), "--end", at(20).isoformat())
    assert plain.command(*moved, "--limit-w", "80000").exit_code == 0
    plain.minutes(at(15), at(23), cut(70_000.0, 19, 20))
    report = plain.report()
    assert report["facts"]["window"]["start"] == "2026-06-23T19:00:00Z"
    assert report["facts"]["asked_until"] is None and len(report["owed"]) == 1
    assert report["delivered"]["energy_kwh"]["value"] == pytest.approx(30.0)


def test_cancelled_midway_it_is_measured_up_to_then(plain: Site) -> None:
    plain.minutes(at(3), at(15), cut(60_000.0))
    assert plain.create("--end", at(18).isoformat(), "--limit-w", "65000").exit_code == 0
    plain.minutes(at(15), at(17), cut(60_000.0, 16, 17))
    assert plain.command("events", "cancel", "e1").exit_code == 0
    plain.minutes(at(17), at(21), cut(60_000.0, 16, 17))
    report = plain.report()
    assert report["facts"]["window"]["end"] == "2026-06-23T17:00:00Z"
    assert report["facts"]["asked_until"] == "2026-06-23T18:00:00Z"
    assert report["delivered"]["energy_kwh"]["value"] == pytest.approx(40.0)
    assert report["verdict"] == "met" and report["versions"][-1]["segments"] == []


def test_cancelled_before_it_began_nothing_was_owed(plain: Site) -> None:
    plain.minutes(at(3), at(15), cut(100_000.0))
    assert plain.create("--end", at(18).isoformat(), "--limit-w", "65000").exit_code == 0
    assert plain.command("events", "cancel", "e1").exit_code == 0
    report = plain.report()
    assert (report["verdict"], report["owed"]) == ("nothing owed", [])
    said = "The event was cancelled before it began: nothing was owed."
    assert (report["headline"], report["compliance"], report["caveats"], report["refused"]) == (said, [], [], [])
    shown = " ".join(plain.command("events", "report", "e1").stdout.split())
    page = plain.server.call("GET", "/v1/events/api/e1/report?format=html").text
    for told in (shown, page):
        assert said in told
        assert not any(word in told for word in ("ask again", "covered", "covers", "not possible", "Limit held", "within"))


def test_an_open_event_is_reported_so_far_and_a_coming_one_says_that_it_is_to_come(plain: Site) -> None:
    plain.minutes(at(3), at(15), cut(60_000.0))
    assert plain.create("--limit-w", "65000").exit_code == 0
    coming = plain.command("events", "report", "e1")
    assert coming.exit_code == 1 and "is scheduled from 2026-06-23 16:00:00 UTC to its release" in coming.output
    assert plain.server.call("GET", "/v1/events/api/e1/report").status_code == 409
    plain.minutes(at(15), at(16.5), cut(60_000.0, 16, 24))
    report = plain.report()
    assert report["facts"]["open_end"] and report["facts"]["window"]["end"] == "2026-06-23T16:30:00Z"
    assert report["headline"].startswith("So far: ")
    assert report["delivered"]["energy_kwh"]["value"] == pytest.approx(20.0)


def test_a_running_event_with_an_end_says_until_when(plain: Site) -> None:
    plain.minutes(at(3), at(15), cut(60_000.0))
    assert plain.create("--end", at(18).isoformat(), "--limit-w", "65000").exit_code == 0
    plain.minutes(at(15), at(16.5), cut(60_000.0))
    plain.clock.advance(100)  # the gateway's next readings are on their way
    report = plain.report()
    assert (report["facts"]["runs_until"], report["facts"]["window"]["end"]) == ("2026-06-23T18:00:00Z", "2026-06-23T16:30:00Z")
    assert (report["verdict"], report["coverage"]) == ("met", 1.0)
    plain.clock.advance(1000)  # and now they are missed: three minutes may be late
    late = plain.report()
    assert late["facts"]["window"]["end"] == "2026-06-23T16:45:20Z" and late["coverage"] < 0.7


def test_a_test_event_was_not_acted_on(plain: Site) -> None:
    plain.minutes(at(3), at(15), cut(100_000.0))
    assert plain.create("--end", at(18).isoformat(), "--limit-w", "65000", "--test").exit_code == 0
    plain.minutes(at(15), at(21), lambda when: 100_000.0)
    report = plain.report()
    assert report["verdict"] == "missed" and report["facts"]["test"]
    assert any("recorded and not acted on" in line for line in report["caveats"])


def test_days_of_other_events_and_holidays_are_passed_over(tmp_path: Path) -> None:
    terms = {**PROGRAMME, "holidays": ["2026-06-18"], "baseline": "5-in-10", "adjustment": "none"}
    with site_of(tmp_path, programme=[terms]) as site:
        site.hours_of_days_before(16, 100_000.0)
        site.minutes(at(0), at(15), cut(60_000.0))
        other = ("events", "create", "--region", "north", "--id", "e0", "--start", at(15.5).isoformat(), "--duration", "10m")
        assert site.command(*other, "--limit-w", "99000").exit_code == 0
        assert site.create("--end", at(18).isoformat(), "--limit-w", "65000").exit_code == 0
        site.minutes(at(15), at(21), cut(60_000.0))
        report = site.report()
        assert report["baseline"]["method"] == "5-in-10" and len(report["baseline"]["days"]) == 5
        passed = dict(report["baseline"]["passed_over"])
        assert passed["2026-06-18"] == "holiday" and passed["2026-06-20"].startswith("weekend")
        assert report["delivered"]["energy_kwh"]["value"] == pytest.approx(80.0)


def test_a_firm_service_level_is_judged_without_a_baseline(tmp_path: Path) -> None:
    terms = {
        "name": "bip",
        "event_source": "api",
        "currency": "USD",
        "baseline": "firm-service-level",
        "firm_service_level_w": 55_000,
        "penalty_per_kwh": 6,
        "penalty_on": "excess",
        "tolerance_w": 100,
    }
    with site_of(tmp_path, programme=[terms]) as site:
        site.minutes(at(3), at(15), cut(60_000.0))
        assert site.create("--end", at(18).isoformat(), "--limit-w", "65000").exit_code == 0
        site.minutes(at(15), at(21), cut(60_000.0))
        report = site.report()
        assert (report["verdict"], report["delivered"], report["owed"][0]["limit_w"]) == ("missed", None, 55_000.0)
        # 5 kW above the level for two hours, at 6 USD a kWh.
        assert report["settlement"]["total"] == pytest.approx(-60.0)


def rows_of(start: datetime, end: datetime, watts: float) -> list[dict[str, Any]]:
    """Energy of one GPU by the minute, as its agent sends it."""
    made = []
    for k in range(round((end - start).total_seconds() / 60)):
        begin_s = (start + timedelta(minutes=k)).timestamp()
        gpu = {"node_id": "n1", "uuid": "GPU-1", "region": "north", "simulated": False}
        measured = {"line": "idle", "energy_wh": watts / 60, "seconds": 60.0, "quality": "measured"}
        made.append({**gpu, "start": begin_s, "end": begin_s + 60, **measured})
    return made


def test_agents_stand_in_for_a_meter_and_what_they_did_not_measure_is_unknown(tmp_path: Path) -> None:
    region = {name: value for name, value in REGION.items() if name != "meter"}
    with site_of(tmp_path, region) as site:
        book, gpu = site.server.services.energy, {"uuid": "GPU-1", "index": 0, "name": "H100"}
        site.clock.move_to(at(15))
        node = KnownNode("n1", "host-1", "north", None, False, (gpu,), at(3))
        book.note_nodes([node])
        book.take(rows_of(at(3), at(15), 600.0), at(15)).result()
        assert site.create("--end", at(18).isoformat(), "--limit-w", "700").exit_code == 0
        site.clock.move_to(at(20))
        parts = [(15.0, 16.0, 600.0), (16.0, 17.0, 400.0), (17.25, 18.0, 400.0), (18.0, 20.0, 600.0)]
        for start, end, watts in parts:
            book.take(rows_of(at(start), at(end), watts), at(20)).result()
        book.note_nodes([replace(node, last_seen_at=at(20))])
        report = site.report()
        # 200 W less at the GPU are 300 W less at the meter, in the seven eighths that were measured.
        assert report["metered"]["basis"] == "GPUs times PUE 1.5" and report["estimated"] == 1.0
        assert report["coverage"] == pytest.approx(105 / 120)
        assert report["delivered"]["mean_w"]["value"] == pytest.approx(300.0)
        assert report["verdict"] == "not proven"


@contextmanager
def metered_by_agents(tmp_path: Path) -> Iterator[Site]:
    """A site without a meter of its own, at 15 h; its one GPU is known since 3 h."""
    region = {name: value for name, value in REGION.items() if name != "meter"}
    with site_of(tmp_path, region) as site:
        book, gpu = site.server.services.energy, {"uuid": "GPU-1", "index": 0, "name": "H100"}
        book.note_nodes([KnownNode("n1", "host-1", "north", None, False, (gpu,), at(3))])
        site.clock.move_to(at(15))
        yield site


def half_a_minute_off(site: Site, low_w: float, bridged: range = range(0)) -> None:
    """An event from 16:00:30 to 16:10:30 of which the GPU's rows are whole minutes, with 600 W before and after it."""
    start, end = at(16) + timedelta(seconds=30), at(16) + timedelta(minutes=10, seconds=30)
    made = site.command(
        *("events", "create", "--region", "north", "--id", "e1", "--limit-w", "700"),
        *("--start", start.isoformat(), "--end", end.isoformat()),
    )
    assert made.exit_code == 0, made.output
    mean_w = (600.0 + low_w) / 2
    parts = [(-120, 0, 600.0), (0, 1, mean_w), (1, 10, low_w), (10, 11, mean_w), (11, 60, 600.0)]
    rows = [row for a, b, watts in parts for row in rows_of(at(16 + a / 60), at(16 + b / 60), watts)]
    for k in bridged:
        rows[120 + k]["bridged_s"] = 60.0
    site.clock.move_to(at(17))
    site.server.services.energy.take(rows, at(17)).result()
    site.server.services.energy.note_nodes(
        [replace(one, last_seen_at=at(17)) for one in site.server.services.energy.known_nodes()]
    )


@pytest.mark.parametrize(
    ("low_w", "verdict", "said"),
    [(400.0, "met", "in every minute that lies wholly within its time"), (500.0, "missed", "over it by up to 50 W")],
)
def test_without_a_meter_minutes_half_outside_the_event_are_not_judged(
    tmp_path: Path, low_w: float, verdict: str, said: str
) -> None:
    with metered_by_agents(tmp_path) as site:
        half_a_minute_off(site, low_w)
        report = site.report()
        assert (report["verdict"], report["coverage"]) == (verdict, 1.0)
        assert said in report["headline"]
        shown = site.command("events", "report", "e1").output
        assert " W mean" in shown and "0.0 kW" not in shown and "0.1 kW" not in shown


def test_minutes_without_agents_are_energy_and_do_not_count_as_measured(tmp_path: Path) -> None:
    with metered_by_agents(tmp_path) as site:
        half_a_minute_off(site, 400.0, range(3, 8))
        report = site.report()
        assert report["verdict"] == "not proven" and report["coverage"] == pytest.approx(0.5)
        assert report["metered"]["step_s"] == 60.0 and report["delivered"]["energy_kwh"]["coverage"] == 1.0
        assert any("For 5 min of the event (50 %) only the energy" in line for line in report["caveats"])


def test_just_after_an_event_the_report_says_when_to_ask_again(tmp_path: Path) -> None:
    with metered_by_agents(tmp_path) as site:
        assert site.create("--end", at(17).isoformat(), "--limit-w", "700").exit_code == 0
        book = site.server.services.energy
        site.clock.move_to(at(17) + timedelta(seconds=20))
        book.take(rows_of(at(15), at(16), 600.0), at(17)).result()
        book.take(rows_of(at(16), at(17) - timedelta(minutes=1), 400.0), at(17)).result()
        early = site.report()
        assert early["verdict"] == "not proven" and early["headline"].endswith("ask again later (from 17:03 UTC).")
        site.clock.move_to(at(17) + timedelta(minutes=3))
        book.take(rows_of(at(17) - timedelta(minutes=1), at(17), 400.0), at(17.1)).result()
        book.note_nodes([replace(one, last_seen_at=at(17.05)) for one in book.known_nodes()])
        assert site.report()["verdict"] == "met"


def test_long_after_only_hours_are_left_and_they_say_nothing_of_minutes(tmp_path: Path) -> None:
    region = {name: value for name, value in REGION.items() if name != "meter"}
    with site_of(tmp_path, region) as site:
        book, gpu = site.server.services.energy, {"uuid": "GPU-1", "index": 0, "name": "H100"}
        node = KnownNode("n1", "host-1", "north", None, False, (gpu,), at(0, -14))
        book.note_nodes([node])
        for back in range(14, 0, -1):
            book.take(rows_of(at(0, -back), at(24, -back), 600.0), at(24, -back)).result()
        site.clock.move_to(at(15))
        assert site.create("--end", at(18).isoformat(), "--limit-w", "700").exit_code == 0
        parts = [(0.0, 16.0, 600.0), (16.0, 18.0, 400.0), (18.0, 21.0, 600.0)]
        for start, end, watts in parts:
            book.take(rows_of(at(start), at(end), watts), at(21)).result()
        book.note_nodes([replace(node, last_seen_at=at(21))])
        book.thin(at(21))
        site.clock.move_to(at(21))
        report = site.report()
        assert report["metered"]["step_s"] == 60.0 and report["baseline"]["method"].startswith("10-in-10")
        assert any("from before 2026-06-22 00:00 UTC are sums of hours" in line for line in report["caveats"])
        site.clock.move_to(at(21, 40))
        book.thin(at(21, 40))
        late = site.report()
        assert late["metered"]["step_s"] == 3600.0
        assert late["delivered"]["energy_kwh"]["value"] == pytest.approx(0.6)
        minute = next(one for one in late["compliance"] if one["window_s"] == 60.0)
        assert minute["reason"] is not None and "in every window of 60 min" in late["headline"]


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        ("/v1/events/api/none/report", 404, None),
        ("/v1/events/api/e1/report?format=pdf", 422, "format"),
        ("/v1/events/api/e1/report?colour=red", 422, "colour"),
    ],
)
def test_wrong_questions(plain: Site, path: str, status: int, field: str | None) -> None:
    answer = plain.server.call("GET", path)
    assert answer.status_code == status
    assert [one["field"] for one in answer.json()["error"]["problems"]] == ([field] if field else [])


def test_an_event_tells_what_it_is_worth_before_it_begins(site: Site) -> None:
    site.minutes(at(14), at(15), cut(60_000.0))
    assert site.create("--end", at(18).isoformat(), "--limit-w", "65000").exit_code == 0
    (told,) = site.server.get("/v1/events")["events"]
    worth = told["programme"]
    # Two hours of 35 kW: 70 kWh at 0.5, or 70 kWh missing at 2.
    assert (worth["programme"], worth["committed_kwh"], worth["if_met"], worth["if_nothing"]) == (
        "interruptible",
        pytest.approx(70.0),
        pytest.approx(35.0),
        pytest.approx(-140.0),
    )
    assert worth["breaches"] == [] and worth["jobs_cost_at_most"] == 0.0
    assert site.server.get("/v1/events/api/e1")["event"]["programme"] == worth
    shown = site.command("events", "show", "e1")
    assert shown.exit_code == 0 and "35.00 EUR if it is met" in " ".join(shown.output.split())
    site.clock.move_to(at(19))
    assert site.server.get("/v1/events/api/e1")["event"]["programme"] is None


def test_an_opted_out_event_costs_what_the_terms_say(tmp_path: Path) -> None:
    with site_of(tmp_path, programme=[{**PROGRAMME, "opt_out_cost": 120}]) as site:
        site.minutes(at(3), at(15), cut(60_000.0))
        assert site.create("--end", at(18).isoformat(), "--limit-w", "65000").exit_code == 0
        assert site.command("events", "opt-out", "e1", "--reason", "a release is due").exit_code == 0
        site.minutes(at(15), at(21), lambda when: 100_000.0)
        report = site.report()
        assert (report["verdict"], report["settlement"]["total"]) == ("opted out", -120.0)
        assert report["headline"] == "The site opted out: a release is due."
        assert report["owed"][0]["limit_w"] == 65_000.0  # what was asked for stays on record


def test_an_opt_out_within_an_event_is_told_with_its_times(plain: Site) -> None:
    plain.minutes(at(3), at(15), cut(60_000.0))
    assert plain.create("--end", at(18).isoformat(), "--limit-w", "65000").exit_code == 0
    plain.minutes(at(15), at(16.5), cut(60_000.0))
    assert plain.command("events", "opt-out", "e1", "--reason", "a release is due").exit_code == 0
    plain.minutes(at(16.5), at(17), lambda when: 100_000.0)
    assert plain.server.call("DELETE", "/v1/events/api/e1/opt-out").ok
    plain.minutes(at(17), at(21), cut(60_000.0))
    report = plain.report()
    assert report["facts"]["opted_out_spans"] == [["2026-06-23T16:30:00Z", "2026-06-23T17:00:00Z"]]
    assert report["verdict"] == "met"
    assert "The site had opted out from 16:30:00 to 17:00:00 UTC: that time is not judged." in report["headline"]


def test_flexibility_over_http_and_on_the_command_line(plain: Site) -> None:
    plain.minutes(at(14), at(15), cut(60_000.0))
    run = Placement("j", "north", ((at(16), at(17)),), None, 2.0, None, 0.0, "cheapest")
    plain.server.services.plan = Plan(at(15), at(15, 2), 900, {"j": run}, {}, 0.0)
    answer = plain.server.get("/v1/flexibility", params={"region": "north"})
    (north,) = answer["regions"]
    site, rack = north["now"]
    assert (site["draw_w"], site["basis"], site["stays"]["other_w"]) == (100_000.0, "measured", 100_000.0)
    assert [one["for_s"] for one in site["sheds"]] == answer["for_s"] == [10.0, 30.0, 600.0, 1800.0, 7200.0]
    assert all(one["total_w"] == 0.0 for one in site["sheds"])
    assert (rack["branch"], rack["draw_w"]) == ("rack-1", None) and "no meter" in rack["reason"]
    assert len(north["ahead"]) == 96 and north["ahead_of_branches"] is None and north["ahead_of_branches_missing"]
    shown = plain.command("events", "flexibility", "--region", "north")
    assert shown.exit_code == 0 and "north, now: draws 100 kW (measured)" in shown.output
    assert json.loads(plain.command("events", "flexibility", "--json").stdout) == answer
    plain.minutes(at(15), at(15.5), lambda when: 640.0)
    shown = plain.command("events", "flexibility", "--region", "north")
    assert "north, now: draws 640 W (measured)" in shown.output and "0.0 kW" not in shown.output
    assert plain.create("--end", at(18).isoformat(), "--limit-w", "450").exit_code == 0
    for command in (("events", "list"), ("events", "show", "e1")):
        assert "450 W" in plain.command(*command).output
    refused = plain.server.call("GET", "/v1/flexibility", params={"region": "mars"})
    assert refused.status_code == 422 and refused.json()["error"]["problems"][0]["remedy"] == "must be one of north"


def test_a_job_that_was_deleted_since_stays_in_the_report(plain: Site) -> None:
    plain.minutes(at(3), at(15), cut(60_000.0))
    assert plain.create("--duration", "2h", "--limit-w", "65000").exit_code == 0
    assert plain.server.submit("waits").ok and plain.server.submit("goes").ok
    plain.minutes(at(15), at(21), cut(60_000.0))
    for job_id in ("waits", "goes"):
        plain.server.services.change(job_id, to=JobState.CANCELLED)
    before = plain.report()
    assert plain.server.call("DELETE", "/v1/jobs/goes").ok
    after = plain.report()
    assert after["jobs"] == before["jobs"]
    assert "Jobs that were deleted since count as they were: goes." in after["caveats"]
    assert not any("deleted" in one for one in before["caveats"])
