"""Events that say that the grid is in danger: how each protocol tells it; it is kept and handed on by the step."""

from typing import Any

import pytest

from dispatcher.dr.kept import event_of, text_of
from tests.dr.dr_events import cap, event, interval, understood
from tests.dr.rig import Rig, source
from tests.dr.test_webhooks import DATA, delivery, message, signed

ALERT = {"type": "ALERT_GRID_EMERGENCY", "values": ["a line is down"]}


def with_alert(kw: float, number: int, kind: str = "ALERT_GRID_EMERGENCY") -> dict[str, Any]:
    return {"id": number, "payloads": [{**ALERT, "type": kind}, *cap(kw)["payloads"]]}


def emergencies(answer: dict[str, Any]) -> list[bool]:
    return [one.get("emergency", False) for one in answer["segments"]]


@pytest.mark.parametrize("protocol", ["openadr-3.1", "openadr-3.0"])
def test_openadr_3_tells_it_by_an_alert_in_the_interval(protocol: str) -> None:
    both = event(intervals=[cap(120), with_alert(60, 1)], intervalPeriod={"start": "2026-03-02T14:00:00Z", "duration": "PT30M"})
    assert emergencies(understood(both, protocol=protocol)) == [False, True]
    alone = event(intervals=[interval("ALERT_GRID_EMERGENCY", ["a line is down"])])
    assert emergencies(understood(alone, protocol=protocol)) == [True], "at what the site agreed to as level 3"


@pytest.mark.parametrize("kind", ["ALERT_BLACK_START", "ALERT_FLEX_ALERT", "ALERT_POSSIBLE_OUTAGE"])
def test_other_alerts_and_levels_are_none(kind: str) -> None:
    assert emergencies(understood(event(intervals=[with_alert(60, 0, kind)]))) == [False]
    assert emergencies(understood(event(intervals=[interval("SIMPLE", [3])]))) == [False]


def test_signed_events_say_it_as_a_whole_or_by_the_segment() -> None:
    assert emergencies(signed(delivery(message({**DATA, "emergency": True})))) == [True]
    assert emergencies(signed(delivery(message({**DATA, "emergency": False})))) == [False]
    end = {"end": DATA["end"], "limit_kw": 60}
    parts = [{"end": "2026-03-02T14:30:00Z", "limit_kw": 90}, {"start": "2026-03-02T14:30:00Z", "emergency": True, **end}]
    whole = {key: value for key, value in DATA.items() if key != "limit_kw"}
    assert emergencies(signed(delivery(message({**whole, "segments": parts})))) == [False, True]


@pytest.mark.parametrize("wrong", ["yes", 1, 0, "", [True]])
def test_what_is_neither_true_nor_false_is_refused(wrong: Any) -> None:
    answer = signed(delivery(message({**DATA, "emergency": wrong})))
    assert answer["state"] == "rejected" and "emergency" in answer["error"]["message"] and "true or false" in str(answer)
    body = {"event_id": "e", "limit_w": 1000, "start": "2026-03-02T14:00:00Z", "duration": "1h", "emergency": wrong}
    answer = understood(body, protocol="native")
    assert answer["state"] == "rejected" and "true or false" in answer["error"]["message"]


def test_our_own_body_says_it_of_all_its_steps() -> None:
    steps = [{"limit_w": 1000, "start": "2026-03-02T14:00:00Z", "duration": "1h"}, {"limit_w": 500, "duration": "1h"}]
    assert emergencies(understood({"event_id": "e", "steps": steps, "emergency": True}, protocol="native")) == [True, True]
    assert emergencies(understood({"event_id": "e", "steps": steps}, protocol="native")) == [False, False]


def test_it_is_kept_and_handed_on_with_the_limit() -> None:
    rig = Rig()
    rig.tell(
        event(intervals=[cap(120), with_alert(60, 1)], intervalPeriod={"start": "2026-03-02T14:00:00Z", "duration": "PT30M"})
    )
    assert [step.emergency for step in rig.stored().steps] == [False, True] and rig.stored().emergency
    assert [one.emergency for one in rig.budgets()] == [False, True]
    (line,) = rig.store.grid_event_changes("utility", "evt-1")
    assert "at most 60 kW from 2026-03-02T14:30:00Z to 2026-03-02T15:00:00Z, an emergency" in line.sentence
    held = rig.intake.held("utility")["evt-1"]
    assert event_of(text_of(held)) == held
    older = text_of(held).replace(',"emergency":true', "").replace(',"emergency":false', "")
    assert [one.emergency for one in event_of(older).segments] == [False, False], "kept before anybody asked that"


def test_an_event_that_becomes_an_emergency_on_the_way_is_one_from_then_on() -> None:
    rig = Rig()
    rig.tell(event())
    rig.at("14:20")
    rig.tell(event(modificationDateTime="2026-03-02T14:20:00Z", intervals=[with_alert(120, 0)]))
    assert [(f"{step.start:%H:%M}", step.emergency) for step in rig.stored().steps] == [("14:00", False), ("14:20", True)]


def test_a_source_may_mark_all_its_events() -> None:
    rig = Rig(source(emergency=True), source("other"))
    (answer,) = rig.tell(event())
    rig.tell(event(id="evt-2"), "other")
    assert answer.segments[0].emergency and rig.stored().emergency and not rig.stored("evt-2", "other").emergency
