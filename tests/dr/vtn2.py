"""A scripted OpenADR 2.0b VTN on loopback: what it says is XML that a test gives, so that it can be as wrong as some are."""

import importlib.util
import re
import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from dispatcher.dr.safe_xml import Element, parse
from dispatcher.dr.ven2_messages import leaf, node, payload, response, spoken

_SCHEMA = importlib.util.find_spec("openleadr") is not None
if _SCHEMA:  # it ships the profile's schema
    from lxml.etree import XMLSyntaxError
    from openleadr.messaging import validate_xml_schema

PATH = "/OpenADR2/Simple/2.0b"


class Vtn2:
    """Registers whoever asks, lists ``events``, and says once what waits in ``queue``. ``problems`` is what the schema of the
    profile has against our messages. ``heard`` is what came, by its order;
    ``replies`` answers a kind of message otherwise (a body, or a status)."""

    def __init__(self, tls: tuple[str, str] | None = None) -> None:
        """``tls``: files of a certificate and its key; then only who has the same certificate is let in."""
        self.events: list[str] | None = []
        self.queue: list[bytes] = []
        self.heard: list[Element] = []
        self.problems: list[str] = []
        self.replies: dict[str, Callable[[Element], bytes | int]] = {}
        self.registered = False
        self.ids = ("reg-1", "ven-1")
        self.poll_freq = "PT10S"
        self.now: Callable[[], datetime] = lambda: datetime.now(UTC)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                said = outer.answer(self.path, body)
                status, text = (said, b"") if isinstance(said, int) else (200, said)
                self.send_response(status)
                self.send_header("Content-Type", "application/xml")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def date_time_string(self, timestamp: float | None = None) -> str:
                return format_datetime(outer.now(), usegmt=True)

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls[0])
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_cert_chain(*tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._server.server_address[1]}{PATH}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    # --- what it says ---------------------------------------------------------------------------------------------

    def answer(self, path: str, body: bytes) -> bytes | int:
        if _SCHEMA:
            try:
                validate_xml_schema(body)
            except XMLSyntaxError as error:
                self.problems.append(f"{error}: {body[:2000]!r}")
        message = spoken(parse(body))
        self.heard.append(message)
        service = {"EiEvent": "Event", "EiReport": "Report", "EiRegisterParty": "Registration", "OadrPoll": "Poll"}
        assert re.search(service[path.rpartition("/")[2]] + r"|oadrResponse", message.name), f"{message.name} sent to {path}"
        if message.name in self.replies:
            return self.replies[message.name](message)
        if message.name == "oadrCreatePartyRegistration":
            self.registered = True
            return self.registration()
        if not self.registered:
            return payload("oadrResponse", response("", 463, "not registered"))
        if message.name == "oadrRequestEvent" and self.events is not None:
            return listing(*self.events)
        if message.name == "oadrPoll" and self.queue:
            return self.queue.pop(0)
        return ok()

    def registration(self) -> bytes:
        ids = [leaf("ei:registrationID", self.ids[0]), leaf("ei:venID", self.ids[1]), leaf("ei:vtnID", "VTN")]
        freq = node("oadr:oadrRequestedOadrPollFreq", leaf("xcal:duration", self.poll_freq)) if self.poll_freq else ""
        return payload("oadrCreatedPartyRegistration", response(""), *ids, freq)

    # --- what it heard --------------------------------------------------------------------------------------------

    def take(self, name: str) -> list[Element]:
        """The messages of one kind since they were last taken."""
        found = [one for one in self.heard if one.name == name]
        self.heard = [one for one in self.heard if one.name != name]
        return found

    def opts(self) -> dict[str, tuple[str, str, str]]:
        """The answers to events since they were last taken: opt, code and modification number by event."""
        return {
            one.word("qualifiedEventID", "eventID") or "": (
                one.word("optType") or "",
                one.word("responseCode") or "",
                one.word("qualifiedEventID", "modificationNumber") or "",
            )
            for message in self.take("oadrCreatedEvent")
            for one in message.find("eventResponse")
        }


def ok() -> bytes:
    return payload("oadrResponse", response(""))


def listing(*events: str) -> bytes:
    """An oadrDistributeEvent."""
    parts = (response(""), leaf("pyld:requestID", "request-7"), leaf("ei:vtnID", "VTN"))
    text = payload("oadrDistributeEvent", *parts, *events).decode()
    return text.replace("<oadr:oadrPayload ", '<oadr:oadrPayload xmlns="urn:ietf:params:xml:ns:icalendar-2.0" ', 1).encode()


def report_request(name: str, *, step: str = "PT1M", back: str = "PT5M", wanted: str = "demand", lasts: str = "PT0S") -> str:
    """An oadrReportRequest from now on."""
    interval = node("xcal:properties", node("xcal:duration", leaf("xcal:duration", lasts)))
    return node(
        "oadr:oadrReportRequest",
        leaf("ei:reportRequestID", name),
        node(
            "ei:reportSpecifier",
            leaf("ei:reportSpecifierID", "gridshift-usage"),
            node("xcal:granularity", leaf("xcal:duration", step)),
            node("ei:reportBackDuration", leaf("xcal:duration", back)),
            node("ei:reportInterval", interval),
            node("ei:specifierPayload", leaf("ei:rID", wanted), leaf("ei:readingType", "Mean")),
        ),
    )
