"""OpenADR 3: versions, cancellation, payload types and units, lists, programs beside events."""

import json
from typing import Any

import pytest

from dispatcher.dr.site import Site, site_from
from tests.dr.dr_events import SITE_FILE, asking, at, cap, event, interval, limits, told, understood

LATER = {"modificationDateTime": "2026-03-02T11:30:00Z"}
LATEST = {"modificationDateTime": "2026-03-02T11:45:00Z"}


def code(answer: dict[str, Any]) -> str | None:
    """Its error's code; a refused message never holds a limit."""
    if answer["state"] == "rejected":
        assert answer["segments"] == [] and answer["signals"] == []
    return answer["error"] and answer["error"]["code"]


# --- envelopes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["CREATE", "POST", "UPDATE", "PUT", "READ", "GET", "update"])
@pytest.mark.parametrize("protocol", ["openadr-3.1", "openadr-3.0"])
def test_both_vocabularies_of_operations_are_read(operation: str, protocol: str) -> None:
    answer = understood(told(operation, event()), protocol=protocol)
    assert (answer["state"], limits(answer)) == ("scheduled", [("14:00", "15:00", 120000.0)])


def test_an_unknown_operation_is_refused() -> None:
    assert code(understood(told("MERGE", event()))) == "bad_operation"


def test_an_event_alone_is_read() -> None:
    assert understood(event())["state"] == "scheduled"


@pytest.mark.parametrize("kind", ["REPORT", "VEN", "SUBSCRIPTION", "RESOURCE", "PROGRAM"])
def test_other_objects_are_ignored(kind: str) -> None:
    answer = understood({"objectType": kind, "operation": "CREATE", "object": {"id": "x-1", "objectType": kind}})
    assert (answer["state"], answer["error"]) == ("ignored", None)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"null", b"7", b'"x"', b"\xff", b"{}", b'{"object": 3, "operation": "CREATE"}', b"[" * 99999]
)
def test_what_is_no_event_is_refused(body: bytes) -> None:
    assert understood(body)["state"] == "rejected"


def test_a_number_that_is_none_is_refused() -> None:
    for text in ("NaN", "Infinity", "1e999"):
        body = json.dumps(event(intervals=[cap(12345)])).replace("12345", text).encode()
        assert code(understood(body)) == "bad_json"


def test_what_says_a_thing_twice_is_refused() -> None:
    body = json.dumps(event(intervals=[cap(80)])).replace('"intervals"', '"intervals": [], "intervals"').encode()
    answer = understood(body)
    assert code(answer) == "bad_json" and "'intervals': this key is given twice" in answer["error"]["message"]


# --- versions -------------------------------------------------------------------------------------------------------


def test_the_newest_version_counts_whatever_comes_first() -> None:
    newest = told("UPDATE", event(intervals=[cap(80)], **LATEST))
    older = told("UPDATE", event(intervals=[cap(90)], **LATER))
    answer = understood(older, told("CREATE", event()), newest)
    assert (answer["state"], answer["version"]) == ("ignored", "2026-03-02T11:45:00Z")
    assert limits(answer) == [("14:00", "15:00", 80000.0)] and "stale" in answer["warnings"][0]


def test_a_duplicate_changes_nothing() -> None:
    answer = understood(told("CREATE", event()), told("CREATE", event()))
    assert (answer["state"], limits(answer), code(answer)) == ("ignored", [("14:00", "15:00", 120000.0)], None)


def test_another_text_under_the_same_version_is_an_alarm() -> None:
    answer = understood(told("UPDATE", event(intervals=[cap(500)])), told("CREATE", event()))
    assert (answer["state"], limits(answer)) == ("ignored", [("14:00", "15:00", 120000.0)])
    assert code(answer) == "version_conflict"


def test_an_offset_does_not_change_a_version() -> None:
    same = event(modificationDateTime="2026-03-02T12:00:00+01:00")
    newer = event(modificationDateTime="2026-03-02T12:00:01+01:00", intervals=[cap(70)])
    assert understood(told("UPDATE", newer), told("CREATE", same))["state"] == "scheduled"


def test_deletion_is_final_whatever_its_version() -> None:
    gone = told("DELETE", event(modificationDateTime="2026-03-02T10:00:00Z"))
    answer = understood(told("UPDATE", event(**LATEST)), told("CREATE", event()), gone)
    assert (answer["state"], answer["segments"]) == ("ignored", [])
    assert understood(gone, told("CREATE", event()))["state"] == "cancelled"


def test_a_deletion_needs_nothing_but_the_id() -> None:
    gone = {"objectType": "EVENT", "operation": "DELETE", "object": {"id": "evt-1", "objectType": "EVENT", "intervals": 7}}
    assert understood(gone, event())["state"] == "cancelled"


def test_only_the_senders_own_answer_brings_a_deleted_event_back() -> None:
    gone = told("DELETE", event())
    assert understood(event(**LATER), gone)["state"] == "scheduled"
    assert understood(event(), gone)["state"] == "ignored"


def test_a_refused_update_leaves_what_is_held() -> None:
    answer = understood(told("UPDATE", event(intervals=[cap(-1)], **LATER)), event())
    assert code(answer) == "bad_value" and "version 2026-03-02T11:00:00Z stays in force" in answer["warnings"]


@pytest.mark.parametrize(
    ("held", "state", "version"),
    [
        ("2026-03-02T12:00:00+01:00", "ignored", "2026-03-02T11:00:00Z"),
        ("2026-03-02T11:00:01Z", "ignored", "2026-03-02T11:00:01Z"),
        ("2026-03-02T10:00:00Z", "scheduled", "2026-03-02T11:00:00Z"),
    ],
)
def test_the_version_held_may_be_all_that_is_known(held: str, state: str, version: str) -> None:
    answer = understood(told("UPDATE", event()), held_version=held)
    assert (answer["state"], answer["version"]) == (state, version)


def test_a_limit_tightened_on_the_way_keeps_its_start_and_says_since_when() -> None:
    tighter = event(intervals=[cap(80)], modificationDateTime="2026-03-02T14:20:00Z")
    answer = understood(told("UPDATE", tighter), told("CREATE", event()), now=at("14:20:01"))
    assert limits(answer) == [("14:00", "15:00", 80000.0)]
    assert answer["segments"][0]["effective_from"] == "2026-03-02T14:20:01Z"
    assert "120 kW until 2026-03-02T14:20:01Z" in answer["segments"][0]["reason"]


# --- payloads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("level", "limit_w"), [(1, 180000.0), (2, 150000.0), (3, 40000.0)])
def test_levels_mean_what_the_site_says(level: int, limit_w: float) -> None:
    answer = understood(asking("SIMPLE", [level]))
    assert limits(answer) == [("14:00", "15:00", limit_w)] and answer["segments"][0]["reason"] == f"SIMPLE={level}"
    assert (answer["signals"][0]["kind"], answer["signals"][0]["value"]) == ("level", level)


def test_level_0_is_normal_operation() -> None:
    answer = understood(asking("SIMPLE", [0]))
    assert (answer["state"], answer["segments"]) == ("scheduled", [])


def test_a_level_of_which_nobody_knows_the_meaning_limits_nothing_and_says_so() -> None:
    answer = understood(asking("SIMPLE", [2]), site=Site())
    assert (answer["state"], answer["segments"], code(answer)) == ("scheduled", [], "no_reference")
    assert "simple_map" in answer["error"]["message"] and answer["signals"][0]["value"] == 2


@pytest.mark.parametrize("value", [4, -1, 1.5, "2", True, None, [1]])
def test_other_levels_are_refused(value: Any) -> None:
    assert code(understood(asking("SIMPLE", [value]))) == "bad_value"


@pytest.mark.parametrize("kind", ["IMPORT_CAPACITY_LIMIT", "DISPATCH_SETPOINT"])
@pytest.mark.parametrize(
    ("value", "units", "wanted"),
    [
        (62.5, "KW", 62500.0),
        (0, "KW", 0.0),
        (0.3, "PERCENT", 60000.0),
        (30, "PERCENT", "bad_value"),
        (62.5, None, "missing_units"),
        (62.5, "", "missing_units"),
        (1, "MW", "bad_units"),
        (1, "KWH", "bad_units"),
        (1, "KVA", "bad_units"),
        (-0.1, "KW", "bad_value"),
        (1e15, "KW", "bad_value"),
        ("62.5", "KW", "bad_value"),
        (True, "KW", "bad_value"),
        (None, "KW", "bad_value"),
    ],
)
def test_a_limit_needs_a_unit_of_power_and_a_sane_number(kind: str, value: Any, units: str | None, wanted: Any) -> None:
    answer = understood(asking(kind, [value], units))
    if isinstance(wanted, str):
        assert code(answer) == wanted and answer["error"]["message"]
    else:
        assert limits(answer) == [("14:00", "15:00", wanted)]


def test_units_may_stand_in_the_program() -> None:
    program = {
        "id": "prog-1",
        "objectType": "PROGRAM",
        "programName": "limits",
        "payloadDescriptors": [
            {"objectType": "EVENT_PAYLOAD_DESCRIPTOR", "payloadType": "IMPORT_CAPACITY_LIMIT", "units": "KW"},
            {"objectType": "REPORT_PAYLOAD_DESCRIPTOR", "payloadType": "IMPORT_CAPACITY_LIMIT", "units": "KVA"},
        ],
    }
    bare = event(payloadDescriptors=None)
    assert code(understood(bare)) == "missing_units"
    wanted = [("14:00", "15:00", 120000.0)]
    assert limits(understood(bare, program)) == wanted
    assert limits(understood({"programs": [program], "event": bare})) == wanted
    assert limits(understood([program, bare])["events"][0]) == wanted


@pytest.mark.parametrize(
    ("value", "units", "load_w", "limit_w"),
    [(18, "KW", 97000.0, 79000.0), (0.25, "PERCENT", 80000.0, 60000.0), (18, "KW", None, 182000.0), (500, "KW", 97000.0, 0.0)],
)
def test_a_relative_dispatch_counts_from_the_load_at_receipt(
    value: float, units: str, load_w: float | None, limit_w: float
) -> None:
    answer = understood(asking("DISPATCH_SETPOINT_RELATIVE", [value], units), load_w=load_w)
    assert limits(answer) == [("14:00", "15:00", limit_w)]


def test_the_sign_of_a_relative_dispatch_is_the_sites() -> None:
    negative = site_from({**SITE_FILE, "relative_sign": "negative value = reduce by"})
    down, up = asking("DISPATCH_SETPOINT_RELATIVE", [-18], "KW"), asking("DISPATCH_SETPOINT_RELATIVE", [18], "KW")
    assert limits(understood(down, site=negative, load_w=100000.0)) == [("14:00", "15:00", 82000.0)]
    assert understood(up, site=negative, load_w=100000.0)["segments"] == []
    assert code(understood(down)) == "bad_value"


def test_without_a_load_no_limit_follows_from_a_relative_dispatch() -> None:
    relative = asking("DISPATCH_SETPOINT_RELATIVE", [18], "KW")
    answer = understood(relative, site=Site())
    assert (answer["state"], answer["segments"], code(answer)) == ("scheduled", [], "no_reference")
    assert understood(relative, site=Site(), now=at("16:00:00"))["error"] is None


@pytest.mark.parametrize("kind", ["ALERT_GRID_EMERGENCY", "ALERT_BLACK_START"])
def test_an_emergency_alone_is_the_highest_level(kind: str) -> None:
    answer = understood(asking(kind, ["hold"]))
    assert limits(answer) == [("14:00", "15:00", 40000.0)] and "hold" in answer["segments"][0]["reason"]


def test_an_emergency_with_a_limit_is_that_limit() -> None:
    both = {"id": 0, "payloads": [{"type": "ALERT_GRID_EMERGENCY", "values": ["hold"]}, *cap(90)["payloads"]]}
    assert limits(understood(event(intervals=[both]))) == [("14:00", "15:00", 90000.0)]


@pytest.mark.parametrize(
    ("kind", "values", "units"),
    [
        ("ALERT_FLEX_ALERT", ["save"], None),
        ("ALERT_POSSIBLE_OUTAGE", ["soon"], None),
        ("X_PRIVATE", [1, "a", {"x": 1.0, "y": 2.0}], "FURLONG"),
        ("IMPORT_CAPACITY_SUBSCRIPTION", [50], "KW"),
        ("IMPORT_CAPACITY_RESERVATION", [50], "KW"),
        ("EXPORT_CAPACITY_LIMIT", [50], "KW"),
        ("CONTROL_LEVEL_OFFSET", [-3], None),
        ("CURVE", [[{"x": 1.0, "y": 2.0}]], None),
        ("GHG", [412.5], "GHG"),
        ("EXPORT_PRICE", [-0.02], "KWH"),
    ],
)
def test_other_payloads_are_kept_and_limit_nothing(kind: str, values: list[Any], units: str | None) -> None:
    answer = understood(asking(kind, values, units))
    assert (answer["state"], answer["segments"], answer["error"]) == ("scheduled", [], None)
    assert [s["kind"].lower() for s in answer["signals"]] == [kind.lower()]


@pytest.mark.parametrize(
    ("kind", "value"), [("CONTROL_LEVEL_OFFSET", 11), ("CONTROL_LEVEL_OFFSET_PERCENT", 20), ("GHG", "much"), ("PRICE", None)]
)
def test_values_out_of_range_are_refused(kind: str, value: Any) -> None:
    assert code(understood(asking(kind, [value]))) == "bad_value"


def test_an_instruction_that_nobody_configured_is_refused() -> None:
    assert code(understood(asking("DISPATCH_INSTRUCTION", ["go"]))) == "unmapped_instruction"


def test_the_lowest_of_several_limits_in_an_interval_holds() -> None:
    two = {"id": 0, "payloads": [*cap(90)["payloads"], {"type": "SIMPLE", "values": [3]}]}
    assert limits(understood(event(intervals=[two]))) == [("14:00", "15:00", 40000.0)]


def test_a_limit_below_the_serving_floor_is_kept_and_its_shortfall_said() -> None:
    answer = understood(event(intervals=[cap(30)]))
    assert limits(answer) == [("14:00", "15:00", 30000.0)]
    assert any("serving floor of 40 kW" in w and "10 kW" in w for w in answer["warnings"])


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"id": None}, "bad_field"),
        ({"id": "a/b"}, "bad_field"),
        ({"programID": None}, "missing_field"),
        ({"priority": -1}, "bad_field"),
        ({"priority": 1.5}, "bad_field"),
        ({"intervals": {}}, "missing_field"),
        ({"intervals": [7]}, "bad_field"),
        ({"intervals": [{"id": 0}]}, "bad_field"),
        ({"intervals": [{"id": "x", "payloads": []}]}, "bad_field"),
        ({"intervalPeriod": {"start": "tomorrow", "duration": "PT1H"}}, "bad_time"),
        ({"intervalPeriod": {"start": "2026-03-02T14:00:00Z", "duration": "-PT1H"}}, "bad_duration"),
        ({"intervalPeriod": {"start": "2026-03-02T14:00:00Z", "duration": "1h"}}, "bad_duration"),
        ({"modificationDateTime": "yesterday"}, "bad_time"),
        ({"payloadDescriptors": [{"units": "KW"}]}, "bad_field"),
        ({"reportDescriptors": [{"frequency": "often"}]}, "bad_field"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], wanted: str) -> None:
    answer = understood(event(**changes))
    assert code(answer) == wanted
    assert next(iter(changes)).rstrip("s") in answer["error"]["message"]


# --- lists ----------------------------------------------------------------------------------------------------------


def listed(*limits_kw: tuple[float, int | None, str, str]) -> list[dict[str, Any]]:
    """Events with (limit, priority, start, duration)."""
    return [
        event(
            id=f"evt-{i}",
            priority=priority,
            intervals=[cap(kw)],
            intervalPeriod={"start": f"2026-03-02T{start}:00Z", "duration": length},
        )
        for i, (kw, priority, start, length) in enumerate(limits_kw)
    ]


def bound(answer: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(b["start"][11:16], b["end"] and b["end"][11:16], b["limit_w"]) for b in answer["binding"]]


def test_the_strictest_of_several_events_binds() -> None:
    answer = understood(listed((100, 0, "14:00", "PT2H"), (80, 5, "15:00", "PT2H"), (90, None, "15:30", "PT10M")))
    assert [e["event_id"] for e in answer["events"]] == ["evt-0", "evt-1", "evt-2"]
    assert bound(answer) == [("14:00", "15:00", 100000.0), ("15:00", "17:00", 80000.0)]


def test_the_highest_priority_binds_where_the_site_says_so() -> None:
    site = site_from({**SITE_FILE, "overlap": "priority"})
    answer = understood(listed((100, 0, "14:00", "PT2H"), (80, 5, "15:00", "PT2H"), (50, None, "14:00", "P9999Y")), site=site)
    assert bound(answer) == [("14:00", "16:00", 100000.0), ("16:00", "17:00", 80000.0), ("17:00", None, 50000.0)]


def test_a_gap_between_events_binds_nothing() -> None:
    answer = understood(listed((100, 0, "14:00", "PT1H"), (100, 0, "16:00", "PT1H")))
    assert bound(answer) == [("14:00", "15:00", 100000.0), ("16:00", "17:00", 100000.0)]


def test_an_empty_list_ends_nothing_that_is_held() -> None:
    answer = understood([], told("CREATE", event()))
    assert [e["state"] for e in answer["events"]] == ["scheduled"] and "404" in answer["events"][0]["warnings"][0]
    assert bound(answer) == [("14:00", "15:00", 120000.0)]
    assert understood([]) == {"events": [], "binding": []}


def test_a_wrong_event_in_a_list_does_not_take_the_others_with_it() -> None:
    answer = understood([event(), event(id="evt-2", intervals=[cap("x")])])
    assert [e["state"] for e in answer["events"]] == ["scheduled", "rejected"]
    assert bound(answer) == [("14:00", "15:00", 120000.0)]


def test_listing_again_what_is_held_is_no_news() -> None:
    assert [e["state"] for e in understood({"events": [event()]}, [event()])["events"]] == ["scheduled"]


# --- reports --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("descriptor", "wanted"),
    [
        ({}, [("18:00", [10, 11, 12, 13])]),
        ({"frequency": 1, "repeat": -1}, [("15:00", [10]), ("16:00", [11]), ("17:00", [12]), ("18:00", [13])]),
        ({"frequency": 2}, [("16:00", [10, 11]), ("18:00", [12, 13])]),
        ({"frequency": 3, "repeat": -1}, [("17:00", [10, 11, 12]), ("18:00", [13])]),
        ({"startInterval": 1, "numIntervals": 2, "frequency": 2, "repeat": 3}, [("16:00", [10, 11]), ("18:00", [12, 13])]),
        ({"startInterval": 2, "numIntervals": 1}, [("17:00", [12])]),
        ({"historical": False}, [("14:00", [10, 11, 12, 13])]),
        (
            {"historical": False, "startInterval": 0, "numIntervals": 3, "frequency": 1, "repeat": 2},
            [("14:00", [10, 11, 12]), ("15:00", [11, 12, 13])],
        ),
        ({"frequency": 0}, [(None, [10, 11, 12, 13])]),
    ],
)
def test_reports_are_due_when_the_descriptor_says(descriptor: dict[str, Any], wanted: list[Any]) -> None:
    steps = [cap(90 + i, 10 + i) for i in range(4)]
    answer = understood(event(intervals=steps, reportDescriptors=[{"payloadType": "DEMAND", **descriptor}]))
    assert [(r["at"] and r["at"][11:16], r["interval_ids"]) for r in answer["reports_due"]] == wanted
    assert all(r["payloadType"] == "DEMAND" for r in answer["reports_due"])


def test_an_event_may_only_ask_for_reports() -> None:
    answer = understood(event(intervals=None, reportDescriptors=[{"payloadType": "USAGE"}]), now=at("14:30:00"))
    assert (answer["state"], answer["segments"], len(answer["reports_due"])) == ("active", [], 1)


def test_targets_of_either_version_are_kept() -> None:
    old = event(targets=[{"type": "VEN_NAME", "values": ["ven-1"]}])
    assert understood(old, protocol="openadr-3.0")["state"] == understood(event(targets=["group-1"]))["state"] == "scheduled"


def test_an_interval_with_a_price_and_a_limit_gives_both() -> None:
    both = {"id": 0, "payloads": [*cap(90)["payloads"], *interval("PRICE", [0.2])["payloads"]]}
    answer = understood(event(intervals=[both]))
    assert len(answer["segments"]) == len(answer["signals"]) == 1
