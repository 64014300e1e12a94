"""Where OpenADR 3 VTNs call back: the echo that says we want it; notifications, durable before they are answered.

A notification only makes its VEN ask the VTN; what it says is not acted on here. It knows VENs by the token that each gave its
VTN, and nothing of events.
"""

import asyncio
import hmac
import time
from dataclasses import asdict
from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dispatcher.api.answers import Refused, json_response, text_response
from dispatcher.api.flood import Bucket
from dispatcher.api.services import Services
from dispatcher.api.strict_json import parse_object
from dispatcher.dr.openadr3 import OPERATIONS
from dispatcher.dr.ven3 import Ven3
from dispatcher.dr.ven3_state import VenState
from dispatcher.errors import BadInput, NotFound

#: Notifications that one VTN may send: a burst, and how many a second after it.
BURST, PER_S = 60, 5.0
#: The longest echo that is given back.
_ECHO = 512
_TYPES = ("PROGRAM", "EVENT", "REPORT", "SUBSCRIPTION", "VEN", "RESOURCE")


class OpenAdr3:
    """The endpoints ``/v1/openadr3`` and ``/v1/openadr3/callback``."""

    def __init__(self, services: Services) -> None:
        self._vens = services.vens
        self._buckets = {id(ven): Bucket(PER_S, float(BURST), float(BURST), time.monotonic()) for ven in self._vens}

    async def show(self, _: Request) -> Response:
        """How the VEN of each OpenADR source (2.0b too) stands: its last good poll, and why there was none since."""
        return json_response({"vens": [ven_json(state) for state in self._vens.states()]})

    async def echo(self, request: Request) -> Response:
        """Give back the value of ``echo``: so a VTN sees that this address wants its notifications."""
        if not any(ven.source.callback_url for ven in self._vens):
            raise NotFound("no event source has a callback_url")
        value = request.query_params.get("echo")
        if value is None or not 0 < len(value) <= _ECHO or not value.isprintable():
            raise BadInput([("echo", value, f"must be given in the query: 1 to {_ECHO} printable characters")])
        return text_response(value, headers={"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"})

    async def notify(self, request: Request) -> Response:
        """Take a notification ``{objectType, operation, object}`` with the bearer token of the subscription.

        200 once it is durable; 401 for another token. The VTN is asked at once, and its answer is what counts.
        """
        ven = self._proved(request.headers.get("authorization", ""))
        if not self._buckets[id(ven)].take(1.0, time.monotonic()):
            raise Refused(429, "too many notifications; send again later", {"Retry-After": "1"})
        notice = _checked(parse_object(await request.body()))
        kept = ven.notify(notice)
        if kept is not None:
            await asyncio.wrap_future(kept)
        return json_response({"outcome": "duplicate" if kept is None else "accepted"})

    def _proved(self, header: str) -> Ven3:
        token = header[7:].strip().encode() if header[:7].lower() == "bearer " else b""
        # All of them, so that the time taken tells nothing.
        found = [v for v in self._vens if hmac.compare_digest(token, v.callback_token.encode()) and v.callback_token]
        if not found or not found[0].source.callback_url:
            raise Refused(
                401,
                "the bearer token is not that of a subscription; send the one that the subscription gave",
                {"WWW-Authenticate": 'Bearer realm="openadr3"'},
            )
        return found[0]


def _checked(notice: dict[str, Any]) -> dict[str, Any]:
    """What of a notification is kept. Raises BadInput."""
    problems: list[tuple[str, object, str]] = []
    if notice.get("objectType") not in _TYPES:
        problems.append(("objectType", notice.get("objectType"), f"must be one of {', '.join(_TYPES)}"))
    operation = notice.get("operation")
    if not isinstance(operation, str) or operation.upper() not in OPERATIONS:
        problems.append(("operation", operation, f"must be one of {', '.join(OPERATIONS)}"))
    if not isinstance(notice.get("object"), dict):
        problems.append(("object", type(notice.get("object")).__name__, "must be the object that it is about"))
    if problems:
        raise BadInput(problems)
    return {"objectType": notice["objectType"], "operation": str(operation).upper(), "object": notice["object"]}


def ven_json(state: VenState) -> dict[str, Any]:
    """A VEN's state as JSON."""
    return {key: value.isoformat() if isinstance(value, datetime) else value for key, value in asdict(state).items()}
