"""Asks an OpenADR 2.0b VTN over simple HTTP: one POST a message, to the service it is for.

Connections, TLS with our certificate, and the limits of an answer are those of `vtn_client`.
"""

from dispatcher.dr.model import Refused
from dispatcher.dr.safe_xml import MAX_BYTES, Element, parse
from dispatcher.dr.vtn_client import Limits, VtnClient, VtnError

#: What one answer may cost.
LIMITS = Limits(max_bytes=MAX_BYTES)
_XML = "application/xml"


class Vtn2Client(VtnClient):
    """The VTN of one ``[[event_source]]``, whose url ends before the names of services (``.../OpenADR2/Simple/2.0b``)."""

    def ask(self, service: str, message: bytes) -> tuple[Element, bytes]:
        """The answer of one service: read, and as it came; an empty one is a message without a name. Raises VtnError."""
        reply = self._checked(service, self._send("POST", f"{self._base}/{service}", message, _XML, None))
        if not reply.body.strip():
            return Element(""), b""
        try:
            return parse(reply.body), reply.body
        except Refused as error:
            raise VtnError(f"{service}: its answer cannot be read: {error.message}"[:500]) from None
