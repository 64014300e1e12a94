"""The OpenADR 2.0b VEN against a scripted VTN over real HTTP: versions, omission, answers, registration, reports, faults."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher.doctor import check_event_source
from dispatcher.dr.ven2_messages import leaf, node, payload, response
from tests.dr.test_openadr2 import one, signal
from tests.dr.test_vtn_client import self_signed
from tests.dr.ven2_site import Site2
from tests.dr.vtn2 import Vtn2, listing, ok, report_request


@pytest.fixture(name="vtn")
def vtn_fixture() -> Iterator[Vtn2]:
    running = Vtn2()
    yield running
    running.close()
    assert running.problems == []


@pytest.fixture(name="site")
def site_fixture(vtn: Vtn2) -> Iterator[Site2]:
    beside = Site2(vtn.url)
    vtn.now = beside.clock.now
    beside.clock.s = 600  # long after its start
    yield beside
    beside.close()


def cap(event_id: str, limit_kw: float, number: int = 0, *, required: str = "always", **given: Any) -> str:
    """A setpoint for two hours from ten minutes on."""
    start = (datetime.now(UTC) + timedelta(minutes=10)).strftime("%Y-%m-%dT%H:00:00Z")
    given = {"start": start, "length": "PT8H", **given}
    text = one(signal("LOAD_DISPATCH", "setpoint", (given["length"], limit_kw)), event_id=event_id, number=number, **given)
    return text.replace(">always<", f">{required}<")


# --- versions and omission ------------------------------------------------------------------------------------------


def test_all_events_are_asked_for_at_the_start_and_polled_after(vtn: Vtn2, site: Site2) -> None:
    vtn.events = [cap("a", 40)]
    site.poll()
    assert [m.name for m in vtn.heard] == [
        "oadrCreatePartyRegistration", "oadrRequestEvent", "oadrCreatedEvent", "oadrRegisterReport", "oadrPoll",
    ]  # fmt: skip
    assert (site.limits_kw, vtn.opts(), 10 <= site.wait_s <= 11) == ([40.0], {"a": ("optIn", "200", "0")}, True)
    vtn.heard.clear()
    vtn.queue = [listing(cap("a", 30, 1))]
    site.poll()
    assert [m.name for m in vtn.heard] == ["oadrPoll", "oadrCreatedEvent", "oadrPoll"], "the answer comes before the next poll"
    assert site.limits_kw == [30.0]


def test_a_stale_number_is_refused_and_answered_so(vtn: Vtn2, site: Site2) -> None:
    vtn.events = [cap("a", 40, 2), cap("b", 50)]
    site.poll()
    vtn.opts()
    vtn.queue = [listing(cap("a", 90, 1), cap("b", 50))]
    site.poll()
    assert (site.limits_kw, vtn.opts()) == ([40.0, 50.0], {"a": ("optIn", "450", "1"), "b": ("optIn", "200", "0")})


def test_a_message_with_one_event_cancels_no_other(vtn: Vtn2, site: Site2) -> None:
    vtn.events = [cap("a", 40), cap("b", 50)]
    vtn.queue = [listing(cap("a", 40)), listing(cap("b", 50))]  # as VTNs do that send each event by itself
    site.poll(4)
    assert site.limits_kw == [40.0, 50.0]
    assert len(vtn.take("oadrRequestEvent")) == 2, "at the start, and once because the messages left something out"


def test_what_a_list_leaves_out_is_cancelled_when_it_does_so_again(vtn: Vtn2, site: Site2) -> None:
    vtn.events = [cap("a", 40, 3), cap("b", 50)]
    site.poll()
    vtn.events, vtn.queue = [cap("b", 50)], [listing(cap("b", 50))]
    site.poll()
    assert site.limits_kw == [40.0, 50.0] and site.wait_s <= 5
    site.poll(2)
    assert site.limits_kw == [50.0]
    vtn.events, vtn.queue = [cap("a", 90, 2), cap("b", 50)], [listing(cap("a", 90, 2), cap("b", 50))]
    site.poll()
    assert site.limits_kw == [50.0], "an older version brings nothing back"
    vtn.queue = [listing(cap("a", 40, 3), cap("b", 50))]
    site.poll()
    assert site.limits_kw == [40.0, 50.0], "it was not meant"


def test_an_empty_list_releases_and_no_list_does_not(vtn: Vtn2, site: Site2) -> None:
    vtn.events = [cap("a", 40)]
    site.poll()
    vtn.events = None  # as a VTN of openleadr that has none: oadrResponse
    site.start()
    site.poll(3)
    assert site.limits_kw == [40.0] and "oadrResponse" in site.alarms
    vtn.events = []
    site.start()
    site.poll(6)
    assert site.limits_kw == [40.0], "both may have been away"
    site.poll(3)
    assert site.limits_kw == [] and site.alarms == ""


def test_an_omission_soon_after_an_outage_must_stand_for_longer(vtn: Vtn2, site: Site2) -> None:
    vtn.events = [cap("a", 40)]
    site.poll()
    vtn.replies["oadrPoll"] = lambda _: 503
    site.poll()
    del vtn.replies["oadrPoll"]
    vtn.events = []
    site.poll(5)
    assert site.limits_kw == [40.0]
    site.poll(4)
    assert site.limits_kw == []


def test_cancelled_or_completed_under_the_number_that_is_held(vtn: Vtn2, site: Site2) -> None:
    open_end = {"start": "2026-01-01T00:00:00Z", "length": "PT0S"}
    vtn.events = [cap("a", 40), cap("b", 50), cap("open", 60, **open_end)]
    site.poll()
    assert site.limits_kw == [40.0, 50.0, 60.0]
    vtn.queue = [listing(cap("a", 40, status="cancelled"), cap("b", 50, status="completed"),
                         cap("open", 60, status="completed", **open_end))]  # fmt: skip
    site.poll()
    assert site.limits_kw == [50.0], "an end that is known is kept: clocks differ"
    vtn.queue *= 2
    site.poll(2)
    stored = site.store.grid_event("utility", "open")
    assert stored is not None and stored.end is not None and all(step.end is not None for step in stored.steps)
    assert site.limits_kw == [50.0]


def test_after_a_restart_of_ours_the_list_is_asked_for_and_versions_go_on(vtn: Vtn2, site: Site2) -> None:
    vtn.events = [cap("a", 40, 2)]
    site.poll()
    vtn.heard.clear()
    vtn.events = [cap("a", 90, 1)]
    site.start()
    site.poll()
    assert site.limits_kw == [40.0]
    assert [m.name for m in vtn.heard][:2] == ["oadrRequestEvent", "oadrCreatedEvent"], "and we are still registered"


# --- answers --------------------------------------------------------------------------------------------------------


def test_a_wrong_event_is_answered_by_itself(vtn: Vtn2, site: Site2) -> None:
    vtn.events = [cap("good", 40), cap("bad", -5), cap("quiet", -5, required="never"), cap("", 30)]
    site.poll()
    created = vtn.heard[2]
    assert vtn.opts() == {"good": ("optIn", "200", "0"), "bad": ("optOut", "454", "0")}
    assert "LOAD_DISPATCH" in [r.word("responseDescription") or "" for r in created.find("eventResponse")][1]
    assert [r.word("requestID") for r in created.find("eventResponse")] == ["request-7"] * 2
    assert site.limits_kw == [40.0]


@pytest.mark.parametrize("required", ["always", "never", "", "ALWAYS"])
def test_only_never_gets_no_answer(vtn: Vtn2, site: Site2, required: str) -> None:
    vtn.events = [cap("a", 40, required=required)]
    site.poll()
    site.opt_out("a", "no")
    site.poll()
    assert bool(vtn.opts()) == (required != "never")


def test_what_cannot_be_done_is_opted_out_of_with_the_reason(vtn: Vtn2) -> None:
    site = Site2(vtn.url, serving_floor_w=45_000.0, reference_w=None)
    vtn.events = [
        cap("floor", 40),
        cap("reachable", 50),
        cap("share", 0).replace(">setpoint<", ">delta<").replace(">0</ei:value>", ">-30</ei:value>"),
        cap("test", 60, about="<ei:testEvent>true</ei:testEvent>"),
        cap("other", 70).replace(">LOAD_DISPATCH<", ">LOAD_CONTROL<").replace(">setpoint<", ">x-loadControlSetpoint<"),
        cap("over", 70, status="completed"),
        cap("cancelled", 70, status="cancelled"),
    ]
    site.poll()
    created = vtn.heard[2]
    said = {r.word("qualifiedEventID", "eventID"): r.word("responseDescription") or "" for r in created.find("eventResponse")}
    opts = {name: opt for name, (opt, _, _) in vtn.opts().items()}
    assert opts == {"floor": "optOut", "reachable": "optIn", "share": "optOut", "test": "optOut", "other": "optOut",
                    "cancelled": "optIn"}  # fmt: skip
    for name, word in {"floor": "45 kW", "share": "reference_w", "test": "a test", "other": "nothing of it"}.items():
        assert word in said[name]
    site.close()


def test_an_operators_change_of_mind_is_said_once_each_time(vtn: Vtn2, site: Site2) -> None:
    vtn.events = [cap("a", 40), cap("b", 50)]
    site.poll()
    vtn.opts()
    site.opt_out("a", "a deadline <& more>")
    site.poll()
    created = next(m for m in vtn.heard if m.name == "oadrCreatedEvent")
    assert "a deadline <& more>" in (next(created.find("eventResponse")).word("responseDescription") or "")
    assert vtn.opts() == {"a": ("optOut", "200", "0")}
    site.poll(3)
    assert vtn.opts() == {}
    site.opt_out("a", None)
    site.poll()
    assert vtn.opts() == {"a": ("optIn", "200", "0")}


def test_an_answer_that_was_not_taken_is_given_again(vtn: Vtn2, site: Site2) -> None:
    vtn.events = [cap("a", 40)]
    vtn.replies["oadrCreatedEvent"] = lambda _: 500
    site.poll()
    assert site.limits_kw == [40.0] and site.problem is None and "tried again" in site.alarms
    del vtn.replies["oadrCreatedEvent"]
    vtn.opts()
    site.poll()
    assert vtn.opts() == {"a": ("optIn", "200", "0")} and site.alarms == ""


def test_an_answer_that_is_refused_is_not_repeated(vtn: Vtn2, site: Site2) -> None:
    vtn.events = [cap("a", 40)]
    vtn.replies["oadrCreatedEvent"] = lambda _: payload("oadrResponse", response("", 452, "no such event"))
    site.poll()
    assert site.limits_kw == [40.0] and "no such event" in site.alarms
    vtn.opts()
    site.poll()
    assert vtn.opts() == {} and len(vtn.take("oadrCreatePartyRegistration")) == 1


# --- registration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["code", "message", "cancel"])
def test_a_registration_that_is_lost_is_made_anew_with_our_ids(vtn: Vtn2, site: Site2, how: str) -> None:
    vtn.events = [cap("a", 40)]
    site.poll()
    vtn.heard.clear()
    if how == "code":
        vtn.registered = False
    else:
        name = "oadrRequestReregistration" if how == "message" else "oadrCancelPartyRegistration"
        vtn.queue = [payload(name, leaf("pyld:requestID", "9"), leaf("ei:venID", "ven-1"))]
    site.poll(2)
    again = vtn.take("oadrCreatePartyRegistration")
    assert [(m.word("registrationID"), m.word("venID")) for m in again] == [("reg-1", "ven-1")]
    assert site.problem is None and site.limits_kw == [40.0]
    assert vtn.take("oadrRequestEvent") and vtn.take("oadrRegisterReport"), "all is asked for and offered anew"
    if how == "cancel":
        assert vtn.take("oadrCanceledPartyRegistration")
    # Known under the same ids, the VTN has lost nothing: what it leaves out is over.
    vtn.events, vtn.queue = [], [listing()]
    site.poll(9)
    assert site.limits_kw == []


def test_a_vtn_that_forgot_us_releases_nothing_it_does_not_know(vtn: Vtn2, site: Site2) -> None:
    vtn.events = [cap("a", 40), cap("b", 50)]
    site.poll()
    vtn.ids, vtn.registered, vtn.events = ("reg-2", "ven-2"), False, []
    site.poll(9)
    assert site.limits_kw == [40.0, 50.0] and "does not list event a" in site.alarms
    site.start()  # and we do not forget that
    site.poll(9)
    assert site.limits_kw == [40.0, 50.0]
    vtn.events = [cap("a", 40)]  # it has read its backup
    site.start()
    site.poll()
    vtn.events = []
    site.start()
    site.poll(9)
    assert site.limits_kw == [50.0], "a is its own again, and b is not"
    assert site.ven.state().ven_id == "ven-2"


def test_a_registration_that_our_ids_spoil_is_made_without_them(vtn: Vtn2, site: Site2) -> None:
    site.poll()
    vtn.registered = False
    refused = payload("oadrCreatedPartyRegistration", response("", 452, "no such registration"))

    def create(message: Any) -> bytes:
        if message.word("registrationID"):
            return refused
        vtn.registered = True
        return vtn.registration()

    vtn.replies["oadrCreatePartyRegistration"] = create
    site.poll()
    assert site.problem is None and vtn.registered


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (payload("oadrCreatedPartyRegistration", response(""), leaf("ei:vtnID", "VTN")), "must know us first"),
        (payload("oadrCreatedPartyRegistration", response("", 451, "who are you")), "who are you"),
        (payload("oadrResponse", response("", 463, "no")), "463"),
        (ok(), "must know us first"),
        (b"<html/>", "no OpenADR 2.0b"),
        (b"{}", "cannot be read"),
        (500, "500"),
        (302, "redirects"),
    ],
)
def test_a_registration_that_is_not_given_is_told_and_tried_again(vtn: Vtn2, site: Site2, answer: Any, word: str) -> None:
    vtn.replies["oadrCreatePartyRegistration"] = lambda _: answer
    site.poll(3)
    assert site.problem is not None and word in site.problem and word in site.alarms
    del vtn.replies["oadrCreatePartyRegistration"]
    site.poll()
    assert (site.problem, site.alarms) == (None, "")


def test_a_vtn_that_wants_us_to_register_for_ever_is_not_asked_for_ever(vtn: Vtn2, site: Site2) -> None:
    vtn.replies["oadrPoll"] = lambda _: payload("oadrRequestReregistration", leaf("ei:venID", "ven-1"))
    site.poll()
    assert "again and again" in (site.problem or "") and len(vtn.take("oadrCreatePartyRegistration")) <= 2


def test_our_ven_id_is_shown_where_it_is_configured(vtn: Vtn2) -> None:
    site = Site2(vtn.url, ven_id="TH_VEN")
    site.poll()
    assert vtn.take("oadrCreatePartyRegistration")[0].word("venID") == "TH_VEN"
    site.close()


@pytest.mark.parametrize(
    ("told", "least_s"), [("PT7S", 7), ("PT0.01S", 1), ("P1D", 3600), ("", 30), ("PT0S", 30), ("soon", 30), ("P9999Y", 30)]
)
def test_it_polls_as_often_as_the_vtn_says(vtn: Vtn2, site: Site2, told: str, least_s: float) -> None:
    vtn.poll_freq = told
    site.poll()
    assert least_s <= site.wait_s <= least_s * 1.1
    assert ("too seldom" in site.alarms) == (told == "P1D")


# --- faults ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [500, 404, 302, b"", b"<oadrPayload", b"<!DOCTYPE a [<!ENTITY e 'x'>]><a>&e;</a>", b"x" * (2 << 20),
     payload("oadrResponse", response("", 500, "trouble")), payload("oadrDistributeEvent", response("", 454, "trouble"))],
)  # fmt: skip
def test_garbage_and_errors_change_nothing(vtn: Vtn2, site: Site2, answer: Any) -> None:
    vtn.events = [cap("a", 40)]
    site.poll()
    vtn.replies["oadrRequestEvent"] = vtn.replies["oadrPoll"] = lambda _: answer
    site.start()
    site.poll(12)
    assert site.limits_kw == [40.0]
    assert (site.problem is None) == (answer == b"")
    vtn.replies.clear()
    vtn.events, vtn.queue = [cap("a", 30, 1)], [listing(cap("a", 30, 1))]
    site.poll()
    assert (site.problem, site.limits_kw) == (None, [30.0])


def test_a_vtn_that_is_down_holds_everything_and_waits_grow(vtn: Vtn2, site: Site2) -> None:
    vtn.events = [cap("a", 40)]
    site.poll()
    vtn.close()
    waits = []
    for _ in range(6):
        site.poll()
        waits.append(site.wait_s)
    assert site.limits_kw == [40.0] and "what is held stays in force" in site.alarms
    assert waits[0] <= 2 and waits[-1] >= 40


def test_with_clocks_apart_nothing_new_is_taken_for_a_fast_class(vtn: Vtn2) -> None:
    site = Site2(vtn.url, response="10s")
    vtn.events = [cap("a", 40)]
    site.clock.s = -60
    site.poll()
    assert site.limits_kw == [] and "s apart" in (site.problem or "")
    site.clock.s = 0
    site.poll()
    assert (site.problem, site.limits_kw) == (None, [40.0])
    site.close()


def test_messages_without_end_do_not_keep_it(vtn: Vtn2, site: Site2) -> None:
    vtn.replies["oadrPoll"] = lambda _: listing(cap("a", 40))
    site.poll()
    assert site.limits_kw == [40.0] and len(vtn.take("oadrPoll")) == 50


def test_what_it_does_not_know_is_told(vtn: Vtn2, site: Site2) -> None:
    vtn.queue = [payload("oadrSomethingNew", leaf("pyld:requestID", "1"))]
    site.poll()
    assert "oadrSomethingNew" in site.alarms


# --- reports --------------------------------------------------------------------------------------------------------


def ask(vtn: Vtn2, *requests: str) -> None:
    vtn.queue.append(payload("oadrCreateReport", leaf("pyld:requestID", "c-1"), *requests, leaf("ei:venID", "ven-1")))


def values(vtn: Vtn2) -> list[tuple[str, float]]:
    return [
        (one.word("rID") or "", float(one.word("payloadFloat", "value") or "nan"))
        for message in vtn.take("oadrUpdateReport")
        for one in message.find("oadrReportPayload")
    ]


def test_a_report_that_is_asked_for_is_confirmed_sent_and_cancelled(vtn: Vtn2, site: Site2) -> None:
    ask(vtn, report_request("r-1"), report_request("r-2", wanted="baseline", back="PT1H"))
    site.poll()
    confirmed = vtn.take("oadrCreatedReport")[-1]
    assert [e.text for e in confirmed.all("oadrPendingReports", "reportRequestID")] == ["r-1", "r-2"]
    site.clock.s += 301
    site.ven.report()
    assert values(vtn) == [("demand", 50.0)] * 5
    cancel = [leaf("ei:reportRequestID", "r-1"), leaf("pyld:reportToFollow", "true")]
    vtn.queue = [payload("oadrCancelReport", leaf("pyld:requestID", "c-2"), *cancel)]
    site.clock.s += 120
    site.poll()
    assert values(vtn)[:2] == [("demand", 50.0)] * 2
    assert [e.text for e in vtn.take("oadrCanceledReport")[0].all("oadrPendingReports", "reportRequestID")] == ["r-2"]
    site.clock.s += 301
    site.ven.report()
    assert values(vtn) == []


def test_a_report_waits_out_an_outage_and_both_restarts(vtn: Vtn2, site: Site2) -> None:
    ask(vtn, report_request("r-1"))
    site.poll()
    vtn.replies["oadrUpdateReport"] = lambda _: 503
    site.clock.s += 301
    assert site.ven.report() > 0 and "tried again" in site.alarms
    vtn.replies.clear()
    vtn.take("oadrUpdateReport")
    site.start()
    site.poll()
    site.clock.s += 300
    site.ven.report()
    assert values(vtn) == [("demand", 50.0)] * 10


def test_a_vtn_that_forgot_a_report_is_offered_it_anew(vtn: Vtn2, site: Site2) -> None:
    ask(vtn, report_request("r-1"))
    site.poll()
    vtn.replies["oadrUpdateReport"] = lambda _: payload("oadrUpdatedReport", response("", 452, "no such request"))
    site.clock.s += 301
    site.ven.report()
    vtn.replies = {"oadrRegisterReport": lambda _: payload("oadrRegisteredReport", response("x"), report_request("r-9"))}
    vtn.heard.clear()
    site.poll()
    assert vtn.take("oadrRegisterReport") and vtn.take("oadrCreatedReport")
    site.clock.s += 301
    site.ven.report()
    assert len(values(vtn)) == 5 and site.ven.state().reports_waiting == 1


def test_an_outage_offers_reports_anew_and_the_new_request_takes_the_old_ones_place(vtn: Vtn2, site: Site2) -> None:
    vtn.replies["oadrRegisterReport"] = lambda _: payload("oadrRegisteredReport", response("x"), report_request("r-1"))
    site.poll()
    vtn.replies["oadrPoll"] = lambda _: 503
    site.poll()
    vtn.replies = {"oadrRegisterReport": lambda _: payload("oadrRegisteredReport", response("x"), report_request("r-2"))}
    site.poll()
    assert site.ven.state().reports_waiting == 1
    site.clock.s += 301
    site.ven.report()
    assert {m.word("oadrReport", "reportRequestID") for m in vtn.take("oadrUpdateReport")} == {"r-2"}


def test_what_is_not_known_is_not_reported(vtn: Vtn2, site: Site2) -> None:
    ask(vtn, report_request("r-1"))
    site.poll()
    site.readings.coverage = None
    site.clock.s += 301
    site.ven.report()
    assert values(vtn) == [] and site.ven.state().report_problem is None, "its readings may still come"
    site.clock.s += 61
    site.ven.report()
    assert values(vtn) == [] and "nothing is known" in site.alarms
    site.readings.coverage = 0.4
    site.clock.s += 361
    site.ven.report()
    sent = vtn.take("oadrUpdateReport")[0]
    assert {q.text for q in sent.find("oadrDataQuality")} == {"Quality Bad - Non Specific"}
    assert {q.text for q in sent.find("confidence")} == {"40"}


def test_one_report_of_now_and_one_over_a_while(vtn: Vtn2, site: Site2) -> None:
    ask(vtn, report_request("now", step="PT0S", back="PT0S"), report_request("hour", step="PT15M", back="PT0S", lasts="PT1H"))
    site.poll()
    site.clock.s += 61
    site.ven.report()
    assert values(vtn) == [("demand", 50.0)]
    site.clock.s += 3600
    site.ven.report()
    assert values(vtn) == [("demand", 50.0)] * 4
    assert site.ven.state().reports_waiting == 0


@pytest.mark.parametrize(
    "request_xml",
    [
        report_request("x", wanted="colour"),
        report_request("x", step="often"),
        report_request(""),
        report_request("x").replace("gridshift-usage", "another"),
    ],
)
def test_a_report_that_we_do_not_have_is_told_and_not_confirmed(vtn: Vtn2, site: Site2, request_xml: str) -> None:
    ask(vtn, request_xml, report_request("good"))
    site.poll()
    confirmed = vtn.take("oadrCreatedReport")[-1]
    assert [e.text for e in confirmed.all("oadrPendingReports", "reportRequestID")] == ["good"]
    assert "report request" in site.alarms


def test_what_we_offer_is_asked_for_by_name(vtn: Vtn2, site: Site2) -> None:
    site.poll()
    vtn.take("oadrRegisterReport")
    ask(vtn, report_request("m").replace("gridshift-usage", "METADATA"))
    site.poll()
    offered = vtn.take("oadrRegisterReport")[0]
    assert [e.word("rID") for e in offered.find("oadrReportDescription")] == ["demand", "usage", "baseline"]


def test_what_a_vtn_offers_us_is_taken_note_of(vtn: Vtn2, site: Site2) -> None:
    vtn.queue = [payload(name, leaf("pyld:requestID", "5")) for name in ("oadrRegisterReport", "oadrUpdateReport")]
    site.poll()
    assert vtn.take("oadrRegisteredReport") and vtn.take("oadrUpdatedReport") and site.alarms == ""


# --- its surroundings -----------------------------------------------------------------------------------------------


def test_its_thread_polls_and_ends(vtn: Vtn2, site: Site2) -> None:
    from tests.helpers import wait_until

    vtn.events = [cap("a", 40)]
    site.ven.start()
    wait_until(lambda: site.limits_kw == [40.0], 10, "the event")
    site.ven.stop()
    assert site.ven.state().problem is None


def test_doctor_tells_whether_it_answers(vtn: Vtn2, site: Site2) -> None:
    vtn.replies["oadrQueryRegistration"] = lambda _: vtn.registration()
    source = site.config.event_sources[0]
    assert [(f.level, "answers" in f.says) for f in check_event_source(source, site.clock.now)] == [("ok", True)]
    vtn.replies["oadrQueryRegistration"] = lambda _: 403
    assert [f.level for f in check_event_source(source, site.clock.now)] == ["fail"]
    assert not vtn.registered


def test_our_certificate_is_shown_and_theirs_is_checked(tmp_path: Path) -> None:
    certificate, key = tls = self_signed(tmp_path)
    vtn = Vtn2(tls)
    shown = {"client_cert_file": certificate, "client_key_file": key}
    known, nameless, trusting = (
        Site2(vtn.url, ca_file=certificate, **shown),
        Site2(vtn.url, ca_file=certificate),
        Site2(vtn.url, **shown),
    )
    for site in (known, nameless, trusting):
        site.poll()
        site.close()
    vtn.close()
    assert known.problem is None and nameless.problem is not None
    assert "certificate or TLS is not accepted" in (trusting.problem or "")
    assert len(vtn.take("oadrCreatePartyRegistration")) == 1


def test_texts_of_ours_are_safe_in_xml() -> None:
    assert node("a", leaf("b", 'x<y> & "z"\x00\x1b')) == '<a><b>x&lt;y&gt; &amp; "z"  </b></a>'
