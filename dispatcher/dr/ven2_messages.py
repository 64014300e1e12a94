"""The messages of an OpenADR 2.0b VEN as XML, and what a VTN's answer says beside its events.

Pure. Nothing is signed: who we are is shown by the TLS certificate. Source: the OpenADR 2.0b profile's schema.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from xml.sax.saxutils import escape

from dispatcher.dr.model import iso
from dispatcher.dr.safe_xml import Element

_SPACES = {
    "oadr": "http://openadr.org/oadr-2.0b/2012/07",
    "ei": "http://docs.oasis-open.org/ns/energyinterop/201110",
    "pyld": "http://docs.oasis-open.org/ns/energyinterop/201110/payloads",
    "xcal": "urn:ietf:params:xml:ns:icalendar-2.0",
    "strm": "urn:ietf:params:xml:ns:icalendar-2.0:stream",
    "emix": "http://docs.oasis-open.org/ns/emix/2011/06",
    "power": "http://docs.oasis-open.org/ns/emix/2011/06/power",
    "scale": "http://docs.oasis-open.org/ns/emix/2011/06/siscale",
}
#: Codes of the profile that say that the VTN does not know us.
NOT_REGISTERED = frozenset({"452", "463"})
#: The longest description that is sent.
_SAID = 200


@dataclass(frozen=True, slots=True)
class Reply:
    """Our answer to one version of one event: whether we take part, and why where we do not."""

    event_id: str
    number: int
    opt_in: bool
    code: int = 200
    said: str = "OK"
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Registration:
    """Who we are to a VTN, and how often it wants to be asked, seconds (None: it does not say)."""

    registration_id: str
    ven_id: str
    vtn_id: str = ""
    poll_s: float | None = None


def node(name: str, *children: str) -> str:
    """An element around elements."""
    return f"<{name}>{''.join(children)}</{name}>"


def leaf(name: str, value: object) -> str:
    """An element around a text; what XML cannot hold becomes a blank."""
    text = "".join(char if char.isprintable() else " " for char in str(value))
    return f"<{name}>{escape(text)}</{name}>"


def payload(name: str, *children: str) -> bytes:
    """A whole message."""
    spaces = "".join(f' xmlns:{prefix}="{uri}"' for prefix, uri in _SPACES.items())
    body = f'<oadr:{name} ei:schemaVersion="2.0b">{"".join(children)}</oadr:{name}>'
    signed = node("oadr:oadrSignedObject", body)
    return f'<?xml version="1.0" encoding="UTF-8"?><oadr:oadrPayload{spaces}>{signed}</oadr:oadrPayload>'.encode()


def response(request_id: str, code: int = 200, said: str = "OK") -> str:
    """An ``eiResponse``."""
    return node(
        "ei:eiResponse",
        leaf("ei:responseCode", code),
        leaf("ei:responseDescription", said[:_SAID]),
        leaf("pyld:requestID", request_id),
    )


def ven(ven_id: str) -> str:
    """Who we are."""
    return leaf("ei:venID", ven_id)


# --- registration and events --------------------------------------------------------------------------------------


def query_registration(request_id: str) -> bytes:
    """Asks what a VTN offers, without registering."""
    return payload("oadrQueryRegistration", leaf("pyld:requestID", request_id))


def create_registration(request_id: str, name: str, registration_id: str, ven_id: str) -> bytes:
    """Registers, or registers again; an empty id is left out."""
    return payload(
        "oadrCreatePartyRegistration",
        leaf("pyld:requestID", request_id),
        leaf("ei:registrationID", registration_id) if registration_id else "",
        ven(ven_id) if ven_id else "",
        leaf("oadr:oadrProfileName", "2.0b"),
        leaf("oadr:oadrTransportName", "simpleHttp"),
        leaf("oadr:oadrReportOnly", "false"),
        leaf("oadr:oadrXmlSignature", "false"),
        leaf("oadr:oadrVenName", name),
        leaf("oadr:oadrHttpPullModel", "true"),
    )


def poll(ven_id: str) -> bytes:
    """Asks for the next message."""
    return payload("oadrPoll", ven(ven_id))


def request_event(request_id: str, ven_id: str) -> bytes:
    """Asks for all events."""
    return payload("oadrRequestEvent", node("pyld:eiRequestEvent", leaf("pyld:requestID", request_id), ven(ven_id)))


def created_event(ven_id: str, replies: Iterable[Reply]) -> bytes:
    """Our answers to events."""
    answers = [
        node(
            "ei:eventResponse",
            leaf("ei:responseCode", reply.code),
            leaf("ei:responseDescription", reply.said[:_SAID]),
            leaf("pyld:requestID", reply.request_id),
            node(
                "ei:qualifiedEventID", leaf("ei:eventID", reply.event_id), leaf("ei:modificationNumber", max(0, reply.number))
            ),
            leaf("ei:optType", "optIn" if reply.opt_in else "optOut"),
        )
        for reply in replies
    ]
    return payload(
        "oadrCreatedEvent", node("pyld:eiCreatedEvent", response(""), node("ei:eventResponses", *answers), ven(ven_id))
    )


def plain_response(request_id: str, ven_id: str) -> bytes:
    """Says that a message was understood."""
    return payload("oadrResponse", response(request_id), ven(ven_id))


def canceled_registration(request_id: str, registration: Registration) -> bytes:
    """Says that we take note of the end of our registration."""
    return payload(
        "oadrCanceledPartyRegistration",
        response(request_id),
        leaf("ei:registrationID", registration.registration_id),
        ven(registration.ven_id),
    )


# --- reports ------------------------------------------------------------------------------------------------------


def pending_reports(name: str, request_id: str, ven_id: str, pending: Sequence[str]) -> bytes:
    """``oadrCreatedReport`` or ``oadrCanceledReport``: which requests for reports we hold now."""
    ids = [leaf("ei:reportRequestID", one) for one in pending]
    return payload(name, response(request_id), node("oadr:oadrPendingReports", *ids), ven(ven_id))


def registered_report(request_id: str, ven_id: str) -> bytes:
    """Takes note of what a VTN could report to us; we want none of it."""
    return payload("oadrRegisteredReport", response(request_id), ven(ven_id))


def updated_report(request_id: str, ven_id: str) -> bytes:
    """Takes note of a VTN's report."""
    return payload("oadrUpdatedReport", response(request_id), ven(ven_id))


def at(name: str, moment: datetime) -> str:
    """A time inside an element."""
    return node(name, leaf("xcal:date-time", iso(moment)))


def lasting(name: str, seconds: float) -> str:
    """A duration inside an element."""
    return node(name, leaf("xcal:duration", f"PT{round(seconds)}S"))


# --- answers ------------------------------------------------------------------------------------------------------


def spoken(root: Element) -> Element:
    """The message in a payload."""
    signed = next(root.find("oadrSignedObject"), None)
    return signed.children[0] if signed is not None and signed.children else root


def code_of(message: Element) -> tuple[str, str]:
    """A message's response code ("200" where it has none) and what it says to it."""
    found = message.first("eiResponse") or Element("eiResponse")
    return found.word("responseCode") or "200", (found.word("responseDescription") or "")[:_SAID]


def request_id_of(message: Element) -> str:
    """The id of a message, "" where it has none."""
    return message.word("requestID") or ""
