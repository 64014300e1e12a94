"""The OpenADR 3 VEN against our own VTN, over real HTTP: what is taken, and what is held when the VTN fails."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dispatcher.dr.model import DrEvent, Segment
from dispatcher.dr.ven3 import FALLBACK
from dispatcher.dr.ven3_rules import lifts
from tests.dr.ven3_site import Site, site_fixture, soon, vtn_fixture
from tests.dr.vtn3 import Vtn, cap, stamp

__all__ = ["site_fixture", "vtn_fixture"]


# --- events ---------------------------------------------------------------------------------------------------------


def test_an_event_is_created_modified_and_cancelled(vtn: Vtn, site: Site) -> None:
    program = vtn.program()
    event = vtn.event(program, **cap(40.0, soon(), 60))
    site.poll()
    assert site.limits_kw == [40.0]
    vtn.change(event, **cap(30.0, soon(), 90))
    site.poll()
    assert site.limits_kw == [30.0]
    vtn.change(event, **cap(55.0, soon(), 90))  # its sender may give back, when asked
    site.poll()
    assert site.limits_kw == [55.0]
    vtn.delete(event)
    site.poll()
    assert site.limits_kw == [55.0], "one 404 that nobody announced is not yet a release"
    site.later(5)
    site.poll()
    assert site.limits_kw == []
    state = site.ven.state()
    assert (state.problem, state.events, state.programs) == (None, 0, ("curtailment",))


def test_an_event_that_is_listed_again_after_its_404_binds_again(vtn: Vtn, site: Site) -> None:
    event = vtn.event(vtn.program(), **cap(40.0, soon(), 60))
    site.poll()
    item = vtn.objects["events"].pop(event)
    site.poll(2)
    assert site.limits_kw == []
    vtn.objects["events"][event] = item
    site.poll()
    assert site.limits_kw == [40.0]


def test_120_events_come_in_pages(vtn: Vtn, site: Site) -> None:
    program = vtn.program()
    for k in range(120):
        vtn.event(program, **cap(100.0 + k, soon(10 + 120 * k), 60))
    site.poll()
    assert site.limits_kw == [100.0 + k for k in range(120)]
    assert sum("GET /events?" in line for line in vtn.asked) == 4  # three full or partial pages, and the empty one


def test_pages_shorter_than_asked_for_hide_nothing(vtn: Vtn, site: Site) -> None:
    program = vtn.program()
    for k in range(45):
        vtn.event(program, **cap(100.0 + k, soon(10 + 120 * k), 60))
    vtn.faults.cut = 20
    site.poll()
    assert len(site.limits_kw) == 45


def test_a_vtn_that_knows_no_pages_gives_all_at_once(vtn: Vtn, site: Site) -> None:
    program = vtn.program()
    for k in range(60):
        vtn.event(program, **cap(100.0 + k, soon(10 + 120 * k), 60))
    vtn.faults.no_paging = True
    site.poll()
    assert len(site.limits_kw) == 60
    assert site.ven.state().notes == ()


def test_past_events_are_left_out_where_the_vtn_can(vtn: Vtn, site: Site) -> None:
    program = vtn.program()
    vtn.event(program, **cap(40.0, soon(), 60))
    site.poll(2)
    assert sum("active=true" in line for line in vtn.asked) == (2 if vtn.version == "3.1" else 0)
    vtn.faults.strict = True
    vtn.event(program, **cap(30.0, soon(), 60))
    site.poll()
    assert (site.limits_kw, site.ven.state().problem) == ([30.0, 40.0], None)


def test_only_the_programs_that_are_configured_are_followed(vtn: Vtn, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(vtn, monkeypatch, programs=["curtailment", "not there"])
    vtn.event(vtn.program(), **cap(40.0, soon(), 60))
    vtn.event(vtn.program("another"), **cap(10.0, soon(), 60))
    site.poll()
    assert site.limits_kw == [40.0]
    assert "no program 'not there'" in site.alarms


def test_one_broken_event_does_not_hide_the_others(vtn: Vtn, site: Site, caplog: pytest.LogCaptureFixture) -> None:
    program = vtn.program()
    good = vtn.event(program, **cap(40.0, soon(), 60))
    bad = vtn.event(program, **cap(20.0, soon(), 60))
    site.poll()
    items = [vtn.objects["events"][good], {**vtn.objects["events"][bad], "priority": float("nan")}]
    vtn.faults.body, vtn.faults.only = json.dumps(items).encode(), "/events"
    vtn.faults.no_paging = True
    site.poll()
    assert site.limits_kw == [20.0, 40.0]
    twice = json.dumps(vtn.objects["events"][bad]).replace('"intervals"', '"intervals": [], "intervals"')
    vtn.faults.body = f"[{json.dumps(vtn.objects['events'][good])}, {twice}]".encode()
    site.poll()
    assert site.limits_kw == [20.0, 40.0] and "body: 'intervals': this key is given twice" in caplog.text


@pytest.mark.parametrize(
    "odd",
    [
        {"id": ["x"], "programID": {"a": 1}},
        {"id": None},
        {},
        {"id": "odd", "programID": [], "intervals": "none", "intervalPeriod": 7, "targets": 5},
        {"object": {"id": "inner"}, "operation": "DELETE", "id": "outer"},
    ],
)
def test_objects_of_any_shape_hide_no_event(vtn: Vtn, site: Site, odd: dict[str, Any]) -> None:
    good = vtn.objects["events"][vtn.event(vtn.program(), **cap(40.0, soon(), 60))]
    site.poll()
    vtn.faults.body, vtn.faults.only = json.dumps([odd, good]).encode(), "/events"
    site.poll()
    assert (site.limits_kw, site.ven.state().problem) == ([40.0], None)


# --- a VTN that fails lifts nothing ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "faults",
    [
        {"status": 500},
        {"status": 401},
        {"status": 404},
        {"status": 429},
        {"body": b"<html>not today</html>"},
        {"body": b'{"events": []}'},
        {"body": b"[1, 2]"},
        {"body": b"[" * 100_000},
        {"body": b'"' + b"x" * (2 << 20) + b'"'},
        {"redirect": "http://127.0.0.1:1/elsewhere"},
        {"slow_s": 0.8},
    ],
    ids=["500", "401", "404", "429", "html", "object", "numbers", "deep", "large", "redirect", "slow"],
)
def test_no_fault_of_a_vtn_lifts_a_limit(vtn: Vtn, site: Site, faults: dict[str, Any]) -> None:
    vtn.event(vtn.program(), **cap(40.0, soon(), 60))
    site.poll()
    for key, value in {"only": "/events", **faults}.items():
        setattr(vtn.faults, key, value)
    site.poll(3)
    assert site.limits_kw == [40.0]
    assert site.ven.state().failures == 3
    assert "stays in force" in site.alarms
    vtn.faults = type(vtn.faults)()
    site.poll()
    assert (site.ven.state().problem, site.limits_kw) == (None, [40.0])


def test_a_redirect_is_not_followed_with_our_token(vtn: Vtn, site: Site) -> None:
    vtn.program()
    site.poll()
    with Vtn(vtn.version) as other:
        vtn.faults.redirect, vtn.faults.only = f"{other.url}/events", "/events"
        site.poll()
        assert other.asked == []
    assert "redirects" in str(site.ven.state().problem)


def test_an_empty_list_after_a_restart_lifts_nothing(vtn: Vtn, site: Site) -> None:
    event = vtn.event(vtn.program(), **cap(40.0, soon(), 60))
    site.poll()
    kept = {kind: dict(objects) for kind, objects in vtn.objects.items()}
    vtn.restart()
    vtn.faults.hide = True  # the list is empty, and by its id the event is not there yet either
    site.poll(3)
    assert site.limits_kw == [40.0]
    vtn.faults.hide = False
    vtn.restart(forget=("events", "programs", "vens", "subscriptions"))  # everything lost: 404, and no program either
    site.poll(4)
    assert site.limits_kw == [40.0]
    assert "loss of its data" in site.alarms
    vtn.objects |= kept
    site.poll()
    assert (site.limits_kw, site.ven.state().problem) == ([40.0], None)
    vtn.delete(event)
    site.poll(2)
    assert site.limits_kw == []


def test_during_an_outage_what_is_held_holds_and_its_end_brings_the_subscribed_capacity(vtn: Vtn, site: Site) -> None:
    program = vtn.program()
    subscribed = {
        "payloadDescriptors": [
            {"objectType": "EVENT_PAYLOAD_DESCRIPTOR", "payloadType": "IMPORT_CAPACITY_SUBSCRIPTION", "units": "KW"}
        ],
        "intervalPeriod": {"start": stamp(soon(-60)), "duration": "P30D"},
        "intervals": [{"id": 0, "payloads": [{"type": "IMPORT_CAPACITY_SUBSCRIPTION", "values": [75.0]}]}],
    }
    vtn.event(program, **subscribed)
    vtn.event(program, **cap(40.0, soon(-1), 10))
    site.poll()
    assert site.limits_kw == [40.0]
    vtn.stop()
    site.poll(4)
    assert site.limits_kw == [40.0]
    site.later(600)
    site.poll()
    assert site.limits_kw == [75.0]
    assert "its subscribed capacity is the limit" in site.alarms
    site.start()  # a restart in the middle of it
    site.poll()
    assert site.limits_kw == [75.0]
    with vtn:
        site.poll()
        assert site.limits_kw == []
        assert site.intake.held("utility")[FALLBACK].cancelled
        assert site.alarms == ""


def test_a_restart_of_ours_during_an_outage_holds_what_is_stored(vtn: Vtn, site: Site) -> None:
    vtn.event(vtn.program(), **cap(40.0, soon(-1), 60))
    site.poll()
    vtn.stop()
    site.start()
    site.poll(3)
    assert site.limits_kw == [40.0]
    assert "no good poll since the start" in site.alarms
    vtn.__enter__()


def test_waits_grow_while_a_vtn_fails_and_obey_retry_after(site: Site, vtn: Vtn) -> None:
    vtn.faults.status = 500
    waits = [site.ven.poll() for _ in range(8)]
    assert waits[0] <= 2.0 < waits[3] < waits[5] <= 60.0
    assert waits[7] <= 60.0
    vtn.faults.status = None
    assert site.ven.poll() <= 30.0


# --- what lifts ------------------------------------------------------------------------------------------------------


def _event(*steps: tuple[int, int | None, float], cancelled: bool = False) -> DrEvent:
    base = datetime(2026, 1, 1, tzinfo=UTC)

    def at(minute: int) -> datetime:
        return base + timedelta(minutes=minute)

    segments = tuple(Segment(at(a), None if b is None else at(b), kw * 1e3) for a, b, kw in steps)
    return DrEvent("p", "e", base, base, segments=segments, cancelled=cancelled)


@pytest.mark.parametrize(
    ("held", "new", "expected"),
    [
        (_event((0, 60, 40)), _event((0, 60, 40)), False),
        (_event((0, 60, 40)), _event((0, 60, 30)), False),
        (_event((0, 60, 40)), _event((0, 90, 40)), False),
        (_event((0, 60, 40)), _event((0, 60, 41)), True),
        (_event((0, 60, 40)), _event((0, 59, 40)), True),
        (_event((0, None, 40)), _event((0, 600, 40)), True),
        (_event((0, 60, 40)), _event((0, 30, 20), (30, 60, 50)), True),
        (_event((20, 60, 40)), _event((30, 60, 40)), True),
        (_event((0, 60, 40)), _event(cancelled=True), True),
        (_event(cancelled=True), _event((0, 60, 40)), False),
        (_event((0, 5, 10), (5, 60, 40)), _event((5, 60, 40)), False),  # what is over is over
    ],
)
def test_lifts(held: DrEvent, new: DrEvent, expected: bool) -> None:
    assert lifts(held, new, datetime(2026, 1, 1, 0, 10, tzinfo=UTC)) is expected


def test_a_new_event_lifts_nothing() -> None:
    assert not lifts(None, _event((0, 60, 40)), datetime(2026, 1, 1, tzinfo=UTC))


def test_a_program_that_is_gone_keeps_no_other_event(vtn: Vtn, site: Site) -> None:
    lost, kept = vtn.program("lost"), vtn.program("kept")
    vtn.event(lost, **cap(40.0, soon(), 60))
    other = vtn.event(kept, **cap(30.0, soon(), 60))
    site.poll()
    del vtn.objects["programs"][lost]
    vtn.objects["events"].clear()
    site.poll(3)
    assert site.limits_kw == [40.0]
    assert f"nor its program {lost}" in site.alarms
    assert other not in site.alarms


def test_who_promised_seconds_looks_again_within_seconds(vtn: Vtn, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(vtn, monkeypatch, response="10s", poll_every="5s")
    vtn.faults.status = 500
    assert max(site.ven.poll() for _ in range(8)) <= 10.0
