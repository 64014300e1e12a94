"""Asks an OpenADR 2.0b VTN over simple HTTP: one POST a message, to the service it is for.

Connections, TLS with our certificate, and the limits of an answer are those of `vtn_client`.
"""

from dispatcher.dr.model import Refused
from dispatcher.dr.safe_xml import MAX_BYTES, Element, parse
from dispatcher.dr.ven2_messages import code_of, spoken
from dispatcher.dr.vtn_client import Limits, VtnClient, VtnError

#: What one answer may cost.
LIMITS = Limits(max_bytes=MAX_BYTES)
_XML = "application/xml"


class VtnRefused(VtnError):
    """The VTN answered, with a ``code`` of the profile that is no 2xx."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Vtn2Client(VtnClient):
    """The VTN of one ``[[event_source]]``, whose url ends before the names of services (``.../OpenADR2/Simple/2.0b``)."""

    def ask(self, service: str, message: bytes) -> tuple[Element, bytes]:
        """The message that one service answers with: read, and the whole as it came; an empty answer is one without a name.
        Raises VtnError, and VtnRefused where that is what the message says."""
        reply = self._checked(service, self._send("POST", f"{self._base}/{service}", message, _XML, None))
        if not reply.body.strip():
            return Element(""), b""
        try:
            answer = spoken(parse(reply.body))
        except Refused as error:
            raise VtnError(f"{service}: its answer cannot be read: {error.message}"[:500]) from None
        code, said = code_of(answer)
        if not code.startswith("2"):
            raise VtnRefused(f"{service}: the VTN says {code} {said}"[:500], code)
        if not answer.name.startswith("oadr"):
            raise VtnError(f"{service}: its answer is no OpenADR 2.0b: {answer.name[:100]!r}")
        return answer, reply.body
