"""What senders, networks and clocks do wrong, and what follows: the limit that binds, what is stored, who is told."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher.clusters.simulated import SimulatedCluster
from dispatcher.dr import openadr2, openadr3, webhooks
from dispatcher.dr.model import State
from dispatcher.errors import StoreUnavailable
from dispatcher.regions import Region
from dispatcher.signal_book import SignalBook
from dispatcher.store import GridEvent
from dispatcher.store.migrate import upgrade
from dispatcher.store.sql import SqlStore
from dispatcher.world_builder import WorldBuilder
from signals.memory_store import MemorySignalStore
from tests.dr.dr_events import NOW, asking, cap, event, told
from tests.dr.rig import Rig, source

T11_30, T14_30 = "2026-03-02T11:30:00Z", "2026-03-02T14:30:00Z"


def states(answers: list[Any]) -> list[str]:
    return [str(answer.state) for answer in answers]


# --- order and repetition -------------------------------------------------------------------------------------------


def test_a_duplicate_has_no_second_effect() -> None:
    rig = Rig()
    assert states(rig.tell(told("CREATE", event()))) == ["scheduled"]
    before, nudges = rig.stored(), rig.nudges
    assert states(rig.tell(told("CREATE", event()))) == ["ignored"]
    assert (rig.stored(), rig.nudges) == (before, nudges)
    assert rig.history() == ["accepted", "ignored"]


def test_a_listing_that_repeats_what_is_held_says_nothing() -> None:
    rig = Rig()
    for _ in range(3):
        assert states(rig.tell({"events": [event()]}, complete=True)) == ["scheduled"]
    assert rig.history() == ["accepted"] and rig.nudges == 1


def test_ten_thousand_duplicates_in_a_minute_write_nothing() -> None:
    rig = Rig()
    rig.tell(event())
    message = openadr3.read(told("CREATE", event()), openadr3.V31, rig.intake.context("utility"))
    before, began = rig.stored(), time.monotonic()
    for _ in range(10_000):
        rig.intake.take("utility", message)
    assert time.monotonic() - began < 30
    assert rig.stored() == before and rig.history() == ["accepted", "ignored"] and rig.nudges == 1


def test_out_of_order_the_highest_version_stays() -> None:
    rig = Rig()
    rig.tell(event(modificationDateTime=T11_30, intervals=[cap(80.0)]))
    assert states(rig.tell(told("UPDATE", event()))) == ["ignored"]
    assert [b.limit_w for b in rig.budgets()] == [80_000.0]


def test_another_text_under_the_same_version_changes_nothing_and_is_told() -> None:
    rig = Rig()
    rig.tell(event())
    answer = rig.tell(told("UPDATE", event(intervals=[cap(1.0)])))[0]
    assert (answer.state, answer.code) == (State.IGNORED, "version_conflict")
    assert [b.limit_w for b in rig.budgets()] == [120_000.0]
    assert any("says something else" in sentence for sentence in rig.alarms())
    rig.tell(event(modificationDateTime=T11_30))
    assert rig.alarms() == []


def test_what_a_sender_says_twice_when_it_is_asked_counts_whatever_its_version() -> None:
    rig = Rig()
    rig.tell(event())
    other = {"events": [event(intervals=[cap(70.0)])]}
    assert states(rig.tell(other, complete=True)) == ["ignored"]
    assert rig.alarms() != []
    assert states(rig.tell(other, complete=True)) == ["scheduled"]
    assert [b.limit_w for b in rig.budgets()] == [70_000.0] and rig.alarms() == []
    assert states(rig.tell(other, complete=True)) == ["scheduled"] and rig.history() == ["accepted", "ignored", "changed"]


def test_many_at_once_in_any_order_end_with_the_newest(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/g.db"
    upgrade(url)
    store = SqlStore(url)
    rig = Rig(store=store)
    versions = [event(modificationDateTime=f"2026-03-02T11:{n:02d}:00Z", intervals=[cap(100.0 - n)]) for n in range(30)] * 3
    random.Random(7).shuffle(versions)

    def send(number: int) -> None:
        message = openadr3.read(told("UPDATE", versions[number]), openadr3.V31, rig.intake.context("utility"))
        rig.intake.take("utility", message, message_id=f"m{number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(send, range(len(versions))))
    assert [b.limit_w for b in rig.budgets()] == [71_000.0]
    taken = [line for line in store.grid_event_changes("utility", "evt-1") if line.what in ("accepted", "changed")]
    assert [line.version for line in taken] == list(range(1, len(taken) + 1)) and rig.stored().version == len(taken)
    store.close()


# --- changes on the way ---------------------------------------------------------------------------------------------


def test_modified_mid_flight_the_old_limit_stays_the_obligation_until_then() -> None:
    rig = Rig()
    rig.tell(event())
    rig.at("14:30")
    rig.tell(told("UPDATE", event(modificationDateTime=T14_30, intervals=[cap(90.0)])))
    assert rig.limit_w() == 90_000.0
    steps = [(f"{s.start:%H:%M}", f"{s.end:%H:%M}", s.limit_w) for s in rig.stored().steps if s.end is not None]
    assert steps == [("14:00", "14:30", 120_000.0), ("14:30", "15:00", 90_000.0)]
    assert rig.history() == ["accepted", "changed"]


def test_a_cancel_lifts_at_once_and_no_later_update_brings_it_back_but_the_senders_own_listing() -> None:
    rig = Rig()
    rig.tell(event())
    rig.at("14:30")
    assert rig.limit_w() == 120_000.0
    assert states(rig.tell(told("DELETE", event(modificationDateTime=T14_30)))) == ["cancelled"]
    assert rig.limit_w() is None and rig.budgets() == []
    newer = event(modificationDateTime="2026-03-02T14:31:00Z", intervals=[cap(70.0)])
    rig.at("14:35")
    assert states(rig.tell(told("UPDATE", newer))) == ["ignored"]
    assert rig.limit_w() is None
    assert states(rig.tell({"events": [newer]}, complete=True)) == ["active"]
    assert rig.limit_w() == 70_000.0
    # what was asked for before the release is still on record
    assert [s.limit_w for s in rig.stored().steps] == [120_000.0, 70_000.0]


def test_a_cancel_of_an_event_never_heard_of_is_kept() -> None:
    rig = Rig()
    rig.tell(told("DELETE", event(modificationDateTime=T11_30)))
    assert states(rig.tell(told("CREATE", event()))) == ["ignored"]
    assert rig.budgets() == []
    rig.started()
    assert states(rig.tell(told("CREATE", event()))) == ["ignored"], "also after a restart"


def test_a_tombstone_outlives_what_is_at_hand() -> None:
    rig = Rig()
    rig.tell(event())
    rig.tell(told("DELETE", event(modificationDateTime=T11_30)))
    rig.clock.advance(40 * 86400.0)
    rig.started()
    assert rig.intake.held("utility") == {}
    later = event(intervalPeriod={"start": "2026-05-02T14:00:00Z", "duration": "PT1H"})
    assert states(rig.tell(told("UPDATE", later))) == ["ignored"]


def test_an_event_that_is_not_listed_is_held_until_its_sender_says_404() -> None:
    rig = Rig()
    rig.tell({"events": [event()]}, complete=True)
    rig.at("14:10")
    assert rig.tell({"events": []}, complete=True) == []
    assert rig.limit_w() == 120_000.0
    assert states(rig.gone("evt-1")) == ["cancelled"]
    assert rig.limit_w() is None


# --- time -----------------------------------------------------------------------------------------------------------


def test_late_is_joined_midway_and_expired_is_only_recorded() -> None:
    rig = Rig()
    rig.at("14:20")
    answer = rig.tell(event())[0]
    assert answer.state is State.ACTIVE and any("joined midway" in text for text in answer.warnings)
    assert [(b.start, b.limit_w) for b in rig.budgets()] == [(rig.clock.now(), 120_000.0)]
    rig.at("16:00")
    assert states(rig.tell(event(id="evt-2"))) == ["expired"]
    assert rig.budgets() == [] and rig.history("evt-2") == ["accepted"]
    assert rig.stored("evt-2").steps == ()


def test_a_notice_shorter_than_the_promise_is_told() -> None:
    rig = Rig(source(response="30min"))
    assert not any("promised" in text for text in rig.tell(event())[0].warnings)
    rig.at("13:50")
    answer = rig.tell(event(id="evt-2"))[0]
    assert "notice of 600 s; a response within 30min is promised: until then it may be held in part" in answer.warnings


def test_an_open_event_is_never_released_by_itself_and_the_watchdog_barks() -> None:
    rig = Rig(source(watchdog="4h"))
    rig.tell(event(intervalPeriod={"start": "2026-03-02T14:00:00Z", "duration": "P9999Y"}))
    rig.at("17:59")
    assert rig.alarms() == []
    rig.at("18:01")
    assert any("has no end" in sentence for sentence in rig.alarms())
    rig.clock.advance(400 * 86400.0)
    assert rig.limit_w() == 120_000.0
    rig.started()
    assert rig.limit_w() == 120_000.0 and any("has no end" in sentence for sentence in rig.alarms())


def test_a_naive_time_is_refused_without_a_zone_and_nothing_is_stored() -> None:
    naive = event(intervalPeriod={"start": "2026-03-02T14:00:00", "duration": "PT1H"})
    rig = Rig()
    answer = rig.tell(naive)[0]
    assert (answer.state, answer.code) == (State.REJECTED, "naive_time")
    assert rig.store.grid_events() == [] and any("naive_time" in sentence for sentence in rig.alarms())
    agreed = Rig(source(timezone="Europe/Berlin"))
    agreed.tell(naive)
    assert f"{agreed.budgets()[0].start:%H:%M}" == "13:00"


@pytest.mark.parametrize(
    ("start", "utc"),
    [("2026-03-29T02:30:00", "2026-03-29T01:30"), ("2026-10-25T02:30:00", "2026-10-25T00:30")],
    ids=["in the gap of spring", "in the fold of autumn"],
)
def test_clocks_that_are_changed(start: str, utc: str) -> None:
    rig = Rig(source(timezone="Europe/Berlin"))
    answer = rig.tell(event(intervalPeriod={"start": start, "duration": "PT1H"}))[0]
    assert f"{rig.budgets()[0].start:%Y-%m-%dT%H:%M}" == utc
    assert any("Europe/Berlin" in text for text in answer.warnings), "it is said how it was read"
    assert rig.budgets()[0].end == rig.budgets()[0].start + timedelta(hours=1)


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (event(payloadDescriptors=None), "missing_units"),
        (asking("IMPORT_CAPACITY_LIMIT", [5.0], "FURLONGS"), "bad_units"),
        (asking("IMPORT_CAPACITY_LIMIT", [-5.0], "KW"), "bad_value"),
        (asking("IMPORT_CAPACITY_LIMIT", [1e15], "KW"), "bad_value"),
        (asking("IMPORT_CAPACITY_LIMIT", [float("nan")], "KW"), "bad_value"),
        (asking("IMPORT_CAPACITY_LIMIT", [float("inf")], "KW"), "bad_value"),
        (asking("IMPORT_CAPACITY_LIMIT", ["5"], "KW"), "bad_value"),
        (asking("IMPORT_CAPACITY_LIMIT", [True], "KW"), "bad_value"),
    ],
)
def test_what_cannot_be_a_limit_is_refused_and_what_was_held_stays(body: dict[str, Any], code: str) -> None:
    rig = Rig()
    assert rig.tell(body)[0].code == code
    assert rig.store.grid_events() == [] and rig.nudges == 0 and rig.history() == ["rejected"]
    assert any(code in sentence for sentence in rig.alarms())
    rig.tell(event())
    rig.tell({**body, "modificationDateTime": T11_30})
    assert [b.limit_w for b in rig.budgets()] == [120_000.0]


@pytest.mark.parametrize("event_id", ["a\x00b", "\ud800", "", "x" * 257, "a\nb"])
def test_a_name_that_no_store_can_hold_is_refused(event_id: str) -> None:
    rig = Rig(source(protocol="webhook", url="", secret_env="S"))
    data = {"type": "event.created", "data": {"event_id": event_id, "limit_kw": 90, "duration": "PT1H"}}
    message = webhooks.content(data, rig.intake.context("utility"))
    assert states(rig.intake.take("utility", message, message_id="m", raw=str(data))) == ["rejected"]
    assert rig.store.grid_events() == []


def test_a_limit_below_the_serving_floor_is_told_at_once() -> None:
    rig = Rig()
    answer = rig.tell(event(intervals=[cap(25.0)]))[0]
    assert any("below the serving floor" in text for text in answer.warnings)
    assert rig.alarms() == ["utility: event evt-1 asks for 25 kW, below the serving floor of 40 kW: 15 kW cannot be had"]
    rig.at("15:00")
    assert rig.alarms() == []


def test_open_events_of_our_own_are_told_too() -> None:
    rig = Rig()
    mine = GridEvent("api", "mine", 1, "north", NOW, None, 5000.0, NOW)
    assert rig.store.save_grid_event(mine, None).result() == "accepted"
    assert rig.alarms() == []
    rig.at("16:00")
    assert rig.alarms() == ["api: event mine has been open since 2026-03-02T12:00:00Z and has no end: does it still hold?"]


def test_what_is_kept_and_cannot_be_read_still_binds() -> None:
    rig = Rig()
    rig.tell(event())
    stored = rig.stored()
    for text in ("nonsense", "[]", "{}", '{"event_id": "evt-1"}'):
        rig.store.save_grid_event(replace(stored, version=rig.stored().version + 1), None, held=text).result()
        rig.started()
        assert [b.limit_w for b in rig.budgets()] == [120_000.0] and rig.intake.held("utility") == {}
    assert states(rig.tell(event(modificationDateTime=T11_30, intervals=[cap(90.0)]))) == ["scheduled"]
    assert [b.limit_w for b in rig.budgets()] == [90_000.0]


def test_what_ended_long_ago_is_let_go_of() -> None:
    rig = Rig()
    rig.tell(event())
    rig.clock.advance(20 * 86400.0)
    rig.tell(event(id="evt-2", intervalPeriod={"start": "2026-03-25T14:00:00Z", "duration": "PT1H"}))
    assert list(rig.intake.held("utility")) == ["evt-2"]
    assert states(rig.tell(told("CREATE", event()))) == ["ignored"], "the store still knows it"


# --- several events -------------------------------------------------------------------------------------------------


def test_where_events_overlap_the_strictest_binds() -> None:
    rig = Rig()
    rig.tell([event(priority=0), event(id="evt-2", priority=5, intervals=[cap(60.0)])])
    rig.at("14:05")
    assert rig.limit_w() == 60_000.0


def test_by_agreement_the_highest_priority_binds_for_as_long_as_it_lasts() -> None:
    rig = Rig(source(overlap="priority"))
    short = {"start": "2026-03-02T14:15:00Z", "duration": "PT15M"}
    rig.tell([event(priority=5, intervals=[cap(60.0)]), event(id="evt-2", priority=0, intervalPeriod=short)])
    for hhmm, limit_w in (("14:05", 60_000.0), ("14:20", 120_000.0), ("14:40", 60_000.0)):
        rig.at(hhmm)
        assert rig.limit_w() == limit_w, hhmm


def test_two_utilities_that_contradict_each_other() -> None:
    rig = Rig(source(), source("other", overlap="priority"))
    rig.tell(event(priority=9, intervals=[cap(60.0)]))
    rig.tell(event(priority=0, intervals=[cap(150.0)]), "other")
    rig.at("14:05")
    assert rig.limit_w() == 60_000.0, "a priority counts among its sender's own events only"
    rig.tell(told("DELETE", event(modificationDateTime=T14_30)), "other")
    assert rig.limit_w() == 60_000.0, "nobody releases what somebody else asked for"
    rig.tell(told("DELETE", event(modificationDateTime=T14_30)))
    assert rig.limit_w() is None


def test_a_branch_of_the_site_is_limited_alone() -> None:
    rig = Rig(source(branch="rack-1"))
    rig.tell(event())
    world = world_of(rig)
    assert world.budgets == () and [(b.branch, b.limit_w) for b in world.branch_budgets] == [("rack-1", 120_000.0)]


def test_steps_of_one_event_bind_one_after_another() -> None:
    rig = Rig()
    rig.tell(event(intervals=[cap(120.0), cap(90.0, 1)]))
    rig.at("14:30")
    assert rig.limit_w() == 120_000.0
    rig.at("15:00")
    assert rig.limit_w() == 90_000.0
    assert len({budget.event_id for budget in rig.budgets()}) == len(rig.budgets())


# --- tests, opting out ----------------------------------------------------------------------------------------------


def oadr2(test: bool) -> str:
    return textwrap.dedent(f"""\
        <oadrDistributeEvent xmlns="http://openadr.org/oadr-2.0b/2012/07" xmlns:ei="http://docs.oasis-open.org/ns/energyinterop/201110"
          xmlns:emix="http://docs.oasis-open.org/ns/emix/2011/06" xmlns:power="http://docs.oasis-open.org/ns/emix/2011/06/power"
          xmlns:xcal="urn:ietf:params:xml:ns:icalendar-2.0" xmlns:strm="urn:ietf:params:xml:ns:icalendar-2.0:stream">
        <vtnID>v</vtnID><oadrEvent><ei:eiEvent><ei:eventDescriptor><ei:eventID>evt-1</ei:eventID>
        <ei:modificationNumber>0</ei:modificationNumber><ei:eventStatus>far</ei:eventStatus>
        <ei:testEvent>{str(test).lower()}</ei:testEvent></ei:eventDescriptor>
        <ei:eiActivePeriod><xcal:properties><xcal:dtstart><xcal:date-time>2026-03-02T14:00:00Z</xcal:date-time></xcal:dtstart>
        <xcal:duration><xcal:duration>PT1H</xcal:duration></xcal:duration></xcal:properties></ei:eiActivePeriod>
        <ei:eiEventSignals><ei:eiEventSignal><strm:intervals><ei:interval><xcal:duration><xcal:duration>PT1H</xcal:duration>
        </xcal:duration><xcal:uid><xcal:text>0</xcal:text></xcal:uid><ei:signalPayload><ei:payloadFloat><ei:value>2</ei:value>
        </ei:payloadFloat></ei:signalPayload></ei:interval></strm:intervals><ei:signalName>SIMPLE</ei:signalName>
        <ei:signalType>level</ei:signalType><ei:signalID>s</ei:signalID></ei:eiEventSignal></ei:eiEventSignals>
        </ei:eiEvent></oadrEvent></oadrDistributeEvent>""")


@pytest.mark.parametrize(("choice", "limits"), [("log", []), ("act", [150_000.0])])
def test_a_test_event_is_recorded_or_acted_on_as_configured(choice: str, limits: list[float]) -> None:
    rig = Rig(source(protocol="openadr-2.0b", test_events=choice))
    message = openadr2.read(oadr2(True).encode(), rig.intake.context("utility"))
    answer = rig.intake.take("utility", message)[0]
    assert answer.test and [b.limit_w for b in rig.budgets()] == limits
    assert rig.stored().test and any("not acted on" in text for text in answer.warnings) is (choice == "log")


def test_in_2b_what_a_complete_message_leaves_out_is_cancelled() -> None:
    rig = Rig(source(protocol="openadr-2.0b"))
    rig.intake.take("utility", openadr2.read(oadr2(False).encode(), rig.intake.context("utility")), complete_listing=True)
    assert [b.limit_w for b in rig.budgets()] == [150_000.0]
    empty = oadr2(False)
    empty = empty[: empty.index("<oadrEvent>")] + "</oadrDistributeEvent>"
    message = openadr2.read(empty.encode(), rig.intake.context("utility"))
    assert states(rig.intake.take("utility", message, complete_listing=True)) == ["cancelled"]
    assert rig.budgets() == [] and rig.history() == ["accepted", "cancelled"]


# --- random starts, loads -------------------------------------------------------------------------------------------


def test_a_random_start_is_drawn_once_and_kept() -> None:
    rig = Rig()
    period = {"start": "2026-03-02T14:00:00Z", "duration": "PT1H", "randomizeStart": "PT10M"}
    rig.tell(event(intervalPeriod=period))
    assert f"{rig.budgets()[0].start:%H:%M}" == "14:05"
    rig.tell(event(intervalPeriod=period, modificationDateTime=T11_30, intervals=[cap(90.0)]))
    assert (f"{rig.budgets()[0].start:%H:%M}", rig.budgets()[0].limit_w) == ("14:05", 90_000.0)
    rig.started()
    rig.tell(event(intervalPeriod=period, modificationDateTime="2026-03-02T11:45:00Z", intervals=[cap(80.0)]))
    assert (f"{rig.budgets()[0].start:%H:%M}", rig.budgets()[0].limit_w) == ("14:05", 80_000.0)
    assert rig.draws == [-0.25]


def test_a_change_of_the_load_counts_from_the_load_at_the_first_receipt() -> None:
    rig = Rig(source(reference_w=None))
    unknown = rig.tell(asking("DISPATCH_SETPOINT_RELATIVE", [30.0], "KW", id="evt-0"))[0]
    assert unknown.code == "no_reference" and rig.budgets() == []
    assert any("limits nothing" in sentence for sentence in rig.alarms())
    rig.load_w = 180_000.0
    rig.tell(asking("DISPATCH_SETPOINT_RELATIVE", [30.0], "KW"))
    assert [b.limit_w for b in rig.budgets()] == [150_000.0]
    rig.load_w = 150_000.0  # it has done what was asked; asking again must not take another 30 kW
    rig.started()
    rig.tell(asking("DISPATCH_SETPOINT_RELATIVE", [30.0], "KW", modificationDateTime=T11_30))
    assert [b.limit_w for b in rig.budgets()] == [150_000.0]


# --- crashes --------------------------------------------------------------------------------------------------------


def world_of(rig: Rig) -> Any:
    """The world of a control plane's first look."""
    region = Region(rig.config.regions[0], SimulatedCluster("north", 8.0), rig.clock)  # type: ignore[arg-type]
    builder = WorldBuilder(
        rig.config,
        rig.config.planner_settings(),
        rig.store,
        SignalBook(rig.config, MemorySignalStore()),
        {"north": region},
    )
    return builder.build(rig.clock.now(), builder.region_views(), [], None)


_CHILD = """
import sys
from dispatcher.store.sql import SqlStore
from tests.dr.dr_events import cap, event
from tests.dr.rig import Rig, source
rig = Rig(source(), store=SqlStore(sys.argv[1]))
rig.at("13:59")
print(rig.tell(event(intervals=[cap(120.0), cap(90.0, 1)]))[0].state, flush=True)
sys.stdin.read()
"""


def test_killed_in_the_middle_of_an_event_the_limit_is_in_the_first_look_after_the_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/g.db"
    upgrade(url)
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert child.stdout is not None and child.stdin is not None
    with child.stdout, child.stdin:
        assert child.stdout.readline().strip() == "scheduled"
        os.kill(child.pid, signal.SIGKILL)
        child.wait(20)
    store = SqlStore(url)
    rig = Rig(source(), store=store)
    rig.at("14:40")
    world = world_of(rig)
    now = rig.clock.now()
    in_force = [b.limit_w for b in world.budgets if b.start <= now and b.end is not None and now < b.end]
    assert in_force == [120_000.0] and [b.limit_w for b in world.budgets] == [120_000.0, 90_000.0]
    # the ledger goes on where it was
    assert states(rig.tell(told("CREATE", event(intervals=[cap(120.0), cap(90.0, 1)])))) == ["ignored"]
    assert states(rig.tell(told("DELETE", event(modificationDateTime=T14_30)))) == ["cancelled"]
    assert all(budget.is_over(now) for budget in world_of(rig).budgets)
    store.close()


def test_a_store_that_does_not_take_it_leaves_what_was_held() -> None:
    rig = Rig()
    rig.tell(event())
    rig.store.close()
    with pytest.raises(StoreUnavailable):
        rig.tell(told("DELETE", event(modificationDateTime=T11_30)))
    assert not rig.intake.held("utility")["evt-1"].cancelled
    assert [b.limit_w for b in rig.budgets()] == [120_000.0]
