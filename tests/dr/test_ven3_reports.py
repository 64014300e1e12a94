"""Reports of the OpenADR 3 VEN: in the event's own interval ids, until they are taken, and no number that is not known."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.dr.ven3_site import Site, site_fixture, soon, vtn_fixture
from tests.dr.vtn3 import Vtn, cap, stamp

__all__ = ["site_fixture", "vtn_fixture"]


def reporting(*wanted: dict[str, Any], start: datetime, kw: float = 40.0) -> dict[str, Any]:
    """An event of two intervals with ids of their own, half an hour and an hour, that wants reports."""
    parts = cap(kw, start, 30, 10)
    period = {"start": stamp(start + timedelta(minutes=30)), "duration": "PT1H"}
    second = {"id": 11, "intervalPeriod": period, "payloads": parts["intervals"][0]["payloads"]}
    return {**parts, "intervals": [*parts["intervals"], second], "reportDescriptors": list(wanted)}


EACH = {"frequency": 1, "repeat": -1}


def test_reports_go_back_in_the_events_own_interval_ids(vtn: Vtn, site: Site) -> None:
    start = soon(5)
    wanted = [
        {"payloadType": "DEMAND", "readingType": "MEAN", "units": "KW", "aggregate": True, **EACH},
        {"payloadType": "USAGE", "units": "KWH"},
        {"payloadType": "OPERATING_STATE"},
        {"payloadType": "BASELINE", "units": "KW"},
        {"payloadType": "DATA_QUALITY"},
    ]
    event = vtn.event(vtn.program(), **reporting(*wanted, start=start))
    site.poll()
    site.ven.report()
    assert vtn.reports == []
    assert site.ven.state().reports_waiting == 6
    site.later(5 * 60 + 30 * 60 + 1)
    site.ven.report()
    assert [r["reportName"].split()[0] for r in vtn.reports] == ["DEMAND"]
    first = vtn.reports[0]["resources"][0]
    assert first["resourceName"] == "AGGREGATED_REPORT"
    assert [(i["id"], i["intervalPeriod"], i["payloads"]) for i in first["intervals"]] == [
        (
            10,
            {"start": stamp(start), "duration": "PT1800S"},
            [{"type": "DEMAND", "values": [50.0]}, {"type": "DATA_QUALITY", "values": ["OK"]}],
        )
    ]
    site.later(60 * 60)
    site.ven.report()
    told = {r["reportName"].split()[0] + str(len(r["resources"][0]["intervals"])): r for r in vtn.reports}
    assert sorted(told) == ["BASELINE2", "DATA_QUALITY2", "DEMAND1", "OPERATING_STATE2", "USAGE2"]
    assert {r["eventID"] for r in vtn.reports} == {event}
    assert [i["id"] for i in told["DEMAND1"]["resources"][0]["intervals"]] == [11]
    usage = told["USAGE2"]["resources"][0]
    assert usage["resourceName"] == "hall-9"
    assert [(i["id"], i["payloads"][0]["values"]) for i in usage["intervals"]] == [(10, [25.0]), (11, [50.0])]
    assert told["OPERATING_STATE2"]["resources"][0]["intervals"][0]["payloads"][0]["values"] == ["RUNNING_CURTAILED"]
    assert told["DATA_QUALITY2"]["resources"][0]["intervals"][0]["payloads"] == [{"type": "DATA_QUALITY", "values": ["OK"]}]
    site.ven.report()
    assert len(vtn.reports) == 6
    assert site.ven.state().reports_waiting == 0


def test_what_is_not_known_is_missing_and_never_a_number(vtn: Vtn, site: Site) -> None:
    vtn.event(vtn.program(), **reporting({"payloadType": "DEMAND", "units": "KW"}, start=soon(5)))
    site.poll()
    site.readings.coverage = None
    site.later(95 * 60 + 1)
    site.ven.report()
    assert vtn.reports == [], "its readings may still come"
    site.later(60)
    site.ven.report()
    intervals = vtn.reports[0]["resources"][0]["intervals"]
    assert [i["payloads"] for i in intervals] == [[{"type": "DATA_QUALITY", "values": ["MISSING"]}]] * 2


@pytest.mark.parametrize(("coverage", "quality"), [(0.8, "ESTIMATED"), (0.2, "BAD")])
def test_a_mean_of_a_part_says_so(vtn: Vtn, site: Site, coverage: float, quality: str) -> None:
    vtn.event(vtn.program(), **reporting({"payloadType": "DEMAND"}, start=soon(5)))
    site.poll()
    site.readings.coverage = coverage
    site.later(97 * 60)
    site.ven.report()
    assert vtn.reports[0]["resources"][0]["intervals"][0]["payloads"][1]["values"] == [quality]


def test_what_could_be_shed_is_told_before_the_event(vtn: Vtn, site: Site) -> None:
    wanted = {"payloadType": "LOAD_SHED_DELTA_AVAILABLE", "units": "KW", "historical": False}
    vtn.event(vtn.program(), **reporting(wanted, start=soon(5)))
    site.poll()
    site.later(5 * 60 + 1)
    site.ven.report()
    intervals = vtn.reports[0]["resources"][0]["intervals"]
    assert [(i["id"], i["payloads"][0]["values"]) for i in intervals] == [(10, [12.0]), (11, [12.0])]
    assert vtn.reports[0]["payloadDescriptors"][0]["readingType"] == "FORECAST"


def test_a_report_is_sent_until_it_is_taken_also_over_a_restart(vtn: Vtn, site: Site) -> None:
    vtn.event(vtn.program(), **reporting({"payloadType": "DEMAND"}, start=soon(5)))
    site.poll()
    site.later(96 * 60)
    vtn.faults.status, vtn.faults.only = 500, "/reports"
    site.ven.report()
    assert "tried again" in site.alarms
    vtn.faults.status = None
    site.ven.report()
    assert vtn.reports == [], "not at once"
    site.start()
    site.later(10)
    site.poll()
    site.ven.report()
    assert len(vtn.reports) == 1
    site.start()
    site.poll()
    site.ven.report()
    assert len(vtn.reports) == 1


def test_a_report_whose_answer_was_lost_is_not_sent_twice(vtn: Vtn, site: Site) -> None:
    vtn.event(vtn.program(), **reporting({"payloadType": "DEMAND"}, start=soon(5)))
    site.poll()
    site.later(96 * 60)
    vtn.faults.lose_reports = 1
    site.ven.report()
    assert (len(vtn.reports), site.ven.state().reports_waiting) == (1, 1)
    site.later(10)
    site.ven.report()
    assert (len(vtn.reports), site.ven.state().reports_waiting) == (1, 0)


def test_a_report_that_is_refused_is_told_and_not_sent_for_ever(vtn: Vtn, site: Site) -> None:
    vtn.event(vtn.program(), **reporting({"payloadType": "DEMAND"}, start=soon(5)))
    site.poll()
    site.later(96 * 60)
    vtn.faults.status, vtn.faults.only = 400, "/reports"
    site.ven.report()
    assert "not sent again" in site.alarms
    assert site.ven.state().reports_waiting == 0


def test_a_released_event_is_reported_up_to_its_release(vtn: Vtn, site: Site) -> None:
    start = soon(0)
    parts = {**cap(40.0, start, 1, 7), "intervalPeriod": {"start": stamp(start), "duration": "P9999Y"}}
    event = vtn.event(vtn.program(), **parts, reportDescriptors=[{"payloadType": "DEMAND"}])
    site.poll()
    site.later(600)
    site.ven.report()
    assert vtn.reports == [], "an interval without end is due when it is released"
    vtn.delete(event)
    site.poll(2)
    site.ven.report()
    (interval,) = vtn.reports[0]["resources"][0]["intervals"]
    assert interval["id"] == 7
    assert 590 < float(interval["intervalPeriod"]["duration"][2:-1]) < 620


def test_a_cut_report_is_sent_once(vtn: Vtn, site: Site) -> None:
    """Of two intervals only the first had begun."""
    event = vtn.event(vtn.program(), **reporting({"payloadType": "USAGE"}, {"payloadType": "DEMAND"}, start=soon(-1)))
    site.poll()
    site.ven.report()
    site.later(600)
    vtn.delete(event)
    site.poll(2)
    for _ in range(3):
        site.ven.report()
        site.start()
    told = {r["reportName"].split()[0]: r["resources"][0]["intervals"] for r in vtn.reports}
    assert len(vtn.reports) == 2
    assert {name: [i["id"] for i in intervals] for name, intervals in told.items()} == {"USAGE": [10], "DEMAND": [10]}
