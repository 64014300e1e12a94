"""OpenADR 2.0b: signals, random starts, open ends, versions, omission; and XML that means harm."""

from typing import Any

import pytest

from dispatcher.dr.site import Site, site_from
from tests.dr.dr_events import SITE, SITE_FILE, at, limits, understood

PERIOD = "<dtstart><date-time>{start}</date-time></dtstart><duration><duration>{length}</duration></duration>"


def signal(name: str, kind: str, *steps: tuple[str, object], base: str = "") -> str:
    intervals = "".join(
        f"<ei:interval><duration><duration>{length}</duration></duration><uid><text>{i}</text></uid>"
        f"<ei:signalPayload><ei:payloadFloat><ei:value>{value}</ei:value></ei:payloadFloat></ei:signalPayload></ei:interval>"
        for i, (length, value) in enumerate(steps)
    )
    names = f"<ei:signalName>{name}</ei:signalName><ei:signalType>{kind}</ei:signalType>"
    return f"<ei:eiEventSignal><strm:intervals>{intervals}</strm:intervals>{names}{base}</ei:eiEventSignal>"


def one(
    *signals: str,
    event_id: str = "evt-2",
    number: object = 0,
    status: str = "far",
    start: str = "2026-03-02T14:00:00Z",
    length: str = "PT2H",
    priority: str = "1",
    more: str = "",
    about: str = "",
) -> str:
    period = PERIOD.format(start=start, length=length) + more
    return (
        f"<oadr:oadrEvent><ei:eiEvent><ei:eventDescriptor><ei:eventID>{event_id}</ei:eventID>"
        f"<ei:modificationNumber>{number}</ei:modificationNumber><ei:priority>{priority}</ei:priority>"
        f"<ei:eiMarketContext><marketContext>http://market.example</marketContext></ei:eiMarketContext>"
        f"<ei:eventStatus>{status}</ei:eventStatus>{about}</ei:eventDescriptor>"
        f"<ei:eiActivePeriod><properties>{period}</properties></ei:eiActivePeriod>"
        f"<ei:eiEventSignals>{''.join(signals)}</ei:eiEventSignals><ei:eiTarget><ei:venID>ven-1</ei:venID></ei:eiTarget>"
        f"</ei:eiEvent><oadr:oadrResponseRequired>always</oadr:oadrResponseRequired></oadr:oadrEvent>"
    )


def message(*events: str) -> bytes:
    spaces = (
        'xmlns:oadr="http://openadr.org/oadr-2.0b/2012/07" xmlns:ei="http://docs.oasis-open.org/ns/energyinterop/201110" '
        'xmlns:strm="urn:ietf:params:xml:ns:icalendar-2.0:stream" '
        'xmlns:power="http://docs.oasis-open.org/ns/emix/2011/06/power" '
        'xmlns="urn:ietf:params:xml:ns:icalendar-2.0"'
    )
    body = f"<oadr:oadrDistributeEvent><ei:vtnID>VTN</ei:vtnID>{''.join(events)}</oadr:oadrDistributeEvent>"
    return f"<oadr:oadrPayload {spaces}><oadr:oadrSignedObject>{body}</oadr:oadrSignedObject></oadr:oadrPayload>".encode()


def read(*events: str, after: tuple[bytes, ...] = (), **given: Any) -> dict[str, Any]:
    return understood(message(*events), *after, protocol="openadr-2.0b", **given)


SIMPLE = signal("SIMPLE", "level", ("PT2H", 2))


def test_a_level_is_what_the_site_says() -> None:
    answer = read(one(SIMPLE))
    assert (answer["state"], answer["version"], answer["source"]) == ("scheduled", 0, "http://market.example")
    assert limits(answer) == [("14:00", "16:00", 150000.0)]


@pytest.mark.parametrize(
    ("kind", "value", "limit_w"),
    [("setpoint", 60, 60000.0), ("delta", -30, 170000.0), ("multiplier", 0.4, 80000.0), ("percent", -25, 150000.0)],
)
def test_a_dispatch_is_a_limit(kind: str, value: float, limit_w: float) -> None:
    assert limits(read(one(signal("LOAD_DISPATCH", kind, ("PT2H", value))))) == [("14:00", "16:00", limit_w)]


@pytest.mark.parametrize(("kind", "value"), [("delta", 30), ("multiplier", 1.2), ("percent", 10)])
def test_a_dispatch_for_more_load_limits_nothing(kind: str, value: float) -> None:
    answer = read(one(signal("LOAD_DISPATCH", kind, ("PT2H", value))))
    assert answer["segments"] == [] and any("more load" in w for w in answer["warnings"])


@pytest.mark.parametrize(("scale", "limit_w"), [("k", 60000.0), ("none", 60.0), ("M", 60e6)])
def test_units_in_the_signal_count(scale: str, limit_w: float) -> None:
    base = f"<power:powerReal><power:itemUnits>W</power:itemUnits><siScaleCode>{scale}</siScaleCode></power:powerReal>"
    answer = read(one(signal("LOAD_DISPATCH", "setpoint", ("PT2H", 60), base=base)))
    assert limits(answer) == [("14:00", "16:00", limit_w)] and not any("unit" in w for w in answer["warnings"])


def test_a_missing_unit_is_the_sites_or_kw_and_said() -> None:
    plain = one(signal("LOAD_DISPATCH", "setpoint", ("PT2H", 0.06)))
    site = site_from({**SITE_FILE, "power_unit": "MW"})
    assert limits(read(plain, site=site)) == [("14:00", "16:00", 60000.0)]
    assert any("kW" in w for w in read(plain)["warnings"])


def test_other_units_are_refused() -> None:
    base = "<power:energyReal><power:itemUnits>Wh</power:itemUnits><siScaleCode>k</siScaleCode></power:energyReal>"
    answer = read(one(signal("LOAD_DISPATCH", "setpoint", ("PT2H", 60), base=base)))
    assert (answer["state"], answer["error"]["code"], answer["segments"]) == ("rejected", "bad_units", [])


@pytest.mark.parametrize("status", ["far", "active"])
def test_a_duration_of_zero_has_no_end(status: str) -> None:
    answer = read(one(signal("SIMPLE", "level", ("PT0S", 1)), length="PT0S", status=status), now=at("14:30:00"))
    assert (answer["state"], limits(answer)) == ("active", [("14:30", None, 180000.0)])


def test_intervals_follow_each_other_and_end_with_the_event() -> None:
    answer = read(one(signal("SIMPLE", "level", ("PT1H", 1), ("PT30M", 2), ("PT5H", 3))))
    assert limits(answer) == [("14:00", "15:00", 180000.0), ("15:00", "15:30", 150000.0), ("15:30", "16:00", 40000.0)]
    assert [s["interval_id"] for s in answer["segments"]] == [0, 1, 2]


@pytest.mark.parametrize(("draw_s", "start"), [(None, "14:00"), (120.0, "14:02"), (-50.0, "14:00"), (9999.0, "14:05")])
def test_a_random_start_lies_after_the_given_one(draw_s: float | None, start: str) -> None:
    after = "<tolerance><tolerate><startafter>PT5M</startafter></tolerate></tolerance>"
    answer = read(one(SIMPLE, more=after), draw_s=draw_s)
    assert limits(answer)[0][0] == start


def test_ramp_and_recovery_are_told() -> None:
    ramps = (
        "<ei:x-eiRampUp><duration>PT5M</duration></ei:x-eiRampUp><ei:x-eiRecovery><duration>PT10M</duration></ei:x-eiRecovery>"
    )
    answer = read(one(SIMPLE, more=ramps))
    assert answer["segments"][0]["ramp_s"] == 300 and any("600 s" in w for w in answer["warnings"])


@pytest.mark.parametrize(("held", "came", "state"), [(1, 2, "scheduled"), (2, 1, "ignored"), (2, 2, "ignored")])
def test_a_lower_or_equal_number_is_ignored(held: int, came: int, state: str) -> None:
    answer = read(one(SIMPLE, number=came), after=(message(one(SIMPLE, number=held)),))
    assert (answer["state"], answer["version"]) == (state, max(held, came))
    assert read(one(SIMPLE, number=came), held_version=str(held))["state"] == state


def test_a_status_that_advances_is_no_other_text() -> None:
    answer = read(one(SIMPLE, status="active"), after=(message(one(SIMPLE)),), now=at("14:10:00"))
    assert (answer["state"], answer["error"]) == ("ignored", None)
    changed = read(one(signal("SIMPLE", "level", ("PT2H", 3))), after=(message(one(SIMPLE)),))
    assert changed["error"]["code"] == "version_conflict" and limits(changed) == [("14:00", "16:00", 150000.0)]


def test_cancelled_and_completed_limit_nothing() -> None:
    assert (read(one(SIMPLE, status="cancelled"))["state"], read(one(SIMPLE, status="completed"))["state"]) == (
        "cancelled",
        "expired",
    )
    assert read(one(SIMPLE, status="cancelled"))["segments"] == read(one(SIMPLE, status="completed"))["segments"] == []


def test_priority_0_is_the_lowest() -> None:
    low = one(signal("LOAD_DISPATCH", "setpoint", ("PT2H", 60)), event_id="low", priority="0")
    high = one(signal("LOAD_DISPATCH", "setpoint", ("PT2H", 90)), event_id="high", priority="2")
    site = site_from({**SITE_FILE, "overlap": "priority"})
    assert [b["limit_w"] for b in read(low, high, site=site)["binding"]] == [90000.0]
    assert [b["limit_w"] for b in read(low, high)["binding"]] == [60000.0]


def test_what_a_message_of_all_events_leaves_out_is_cancelled() -> None:
    held = message(one(SIMPLE, event_id="a"), one(SIMPLE, event_id="b"))
    answer = read(one(SIMPLE, event_id="a"), one(SIMPLE, event_id="c"), after=(held,))
    assert {e["event_id"]: e["state"] for e in answer["events"]} == {"a": "scheduled", "c": "scheduled", "b": "cancelled"}
    assert read(after=(held,))["binding"] == []
    alone = read(one(SIMPLE, event_id="c"), after=(held,))
    assert alone["state"] == "scheduled" and sum("omission" in w for w in alone["warnings"]) == 2


@pytest.mark.parametrize(("text", "test"), [("false", False), ("FALSE", False), ("true", True), ("drill", True)])
def test_a_test_is_recorded_and_binds_nothing(text: str, test: bool) -> None:
    drill = one(SIMPLE, about=f"<ei:testEvent>{text}</ei:testEvent><ei:vtnComment>hello</ei:vtnComment>")
    answer = read(drill, one(SIMPLE, event_id="other", status="cancelled"))
    assert (answer["binding"] == []) == test
    assert any("a test" in w for w in answer["events"][0]["warnings"]) == test
    assert "the sender's comment: hello" in answer["events"][0]["warnings"]


def test_prices_are_signals_in_our_unit() -> None:
    base = "<oadr:currencyPerKWh><oadr:itemUnits>USD</oadr:itemUnits><siScaleCode>none</siScaleCode></oadr:currencyPerKWh>"
    answer = read(one(signal("ELECTRICITY_PRICE", "price", ("PT2H", 0.25), base=base)))
    assert [(s["kind"], s["value"], s["unit"]) for s in answer["signals"]] == [("price", 250.0, "USD/MWh")]
    assert answer["segments"] == []


@pytest.mark.parametrize(
    ("event", "word"),
    [
        (one(SIMPLE, number="x"), "modificationNumber"),
        (one(SIMPLE, number=""), "modificationNumber"),
        (one(SIMPLE, status="soon"), "eventStatus"),
        (one(SIMPLE, start="2026-03-02T14:00:00"), "dtstart"),
        (one(SIMPLE, length="2h"), "duration"),
        (one(SIMPLE, event_id=""), "eventID"),
        (one(signal("SIMPLE", "level", ("PT2H", 7))), "SIMPLE"),
        (one(signal("SIMPLE", "level", ("PT2H", "NaN"))), "signalPayload"),
        (one(signal("LOAD_DISPATCH", "setpoint", ("PT2H", -5))), "LOAD_DISPATCH"),
        (one(signal("LOAD_DISPATCH", "setpoint", ("PT2H", "1e300"))), "LOAD_DISPATCH"),
        (one(signal("LOAD_DISPATCH", "multiplier", ("PT2H", -0.5))), "LOAD_DISPATCH"),
        (one(signal("SIMPLE", "level")), "intervals"),
    ],
)
def test_a_wrong_event_is_refused_with_its_field(event: str, word: str) -> None:
    answer = read(event)
    assert (answer["state"], answer["segments"]) == ("rejected", []) and word in answer["error"]["message"]


def test_without_a_baseline_no_limit_follows_from_a_share_of_it() -> None:
    answer = read(one(signal("LOAD_DISPATCH", "delta", ("PT2H", -30))), site=Site())
    assert (answer["state"], answer["segments"], answer["error"]["code"]) == ("scheduled", [], "no_reference")
    answer = read(one(signal("LOAD_DISPATCH", "delta", ("PT2H", -30))), site=Site(), load_w=90000.0)
    assert limits(answer) == [("14:00", "16:00", 60000.0)]


def test_a_message_without_events_is_ignored() -> None:
    body = b"<oadrPayload><oadrSignedObject><oadrResponse/></oadrSignedObject></oadrPayload>"
    assert understood(body, protocol="openadr-2.0b")["state"] == "ignored"
    assert understood(b"<html/>", protocol="openadr-2.0b")["state"] == "rejected"


BOMB = "<!DOCTYPE a [" + "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10 if i else "ha"}">' for i in range(12)) + "]><a>&e11;</a>"


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (BOMB.encode(), "unsafe_xml"),
        (b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>', "unsafe_xml"),
        (b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>', "unsafe_xml"),
        (b'<!DOCTYPE a [<!ENTITY % p SYSTEM "http://x.example/d">%p;]><a/>', "unsafe_xml"),
        (b"<a>&x;</a>", "bad_xml"),
        (b"<a" * 3, "bad_xml"),
        (b"", "bad_xml"),
        (b"\x00\x01", "bad_xml"),
        (b'<?xml version="1.0" encoding="no-such"?><a/>', "bad_xml"),
        (b"<a>" * 5000, "too_large"),
        (b"<a>" + b"<b/>" * 20_001 + b"</a>", "too_large"),
        (b"<a>" + b"x" * (1 << 20) + b"</a>", "too_large"),
    ],
)
def test_xml_that_means_harm_is_refused(body: bytes, wanted: str) -> None:
    answer = understood(body, protocol="openadr-2.0b")
    assert (answer["state"], answer["error"]["code"], answer["segments"]) == ("rejected", wanted, [])


def test_the_sites_terms_are_those_of_the_tests() -> None:
    assert SITE.reference_w == 200000.0
