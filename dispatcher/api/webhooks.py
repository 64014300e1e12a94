"""Events by webhook, signed as Standard Webhooks says: who sent it is proved before anything of it is read, and what it says
is stored durably before it is answered.

It knows senders' secrets and what kinds of message there are; what an event means is `grid_events`'.
"""

import time
from typing import Any

from standardwebhooks import Webhook, WebhookVerificationError
from starlette.requests import Request
from starlette.responses import Response

from dispatcher.api.answers import Refused, json_response
from dispatcher.api.flood import Bucket
from dispatcher.api.grid_events import GridEvents, event_from
from dispatcher.api.services import Services
from dispatcher.api.strict_json import parse_object
from dispatcher.config import Config
from dispatcher.errors import BadInput, ConfigError, NotFound
from dispatcher.webhook_secrets import checker

#: Signed messages a source may send: a burst, and how many a second after it.
BURST, PER_S = 60, 5.0


def verifiers(config: Config) -> dict[str, list[Webhook]]:
    """For each source the checkers of its secrets. Raises ConfigError for a secret that is missing or unusable."""
    return {webhook.source: [_verifier(webhook.source, secret) for secret in webhook.secrets()] for webhook in config.webhooks}


def _verifier(source: str, secret: str) -> Webhook:
    try:
        return checker(secret)
    except ValueError as error:
        raise ConfigError(f"webhook {source}: a secret {error}") from None


class Webhooks:
    """The endpoint ``/v1/webhooks/{source}``."""

    def __init__(self, services: Services, events: GridEvents) -> None:
        self._services, self._events = services, events
        self._verifiers = verifiers(services.config)
        self._buckets = {source: Bucket(PER_S, float(BURST), float(BURST), time.monotonic()) for source in self._verifiers}

    async def receive(self, request: Request) -> Response:
        """Take a signed message: ``{"type": "power_budget" | "power_budget.cancelled", "data": {...}}``.

        202 with ``{"outcome": "accepted" | "duplicate" | "stale"}`` once it is durable; 401 for a signature that does not fit.
        """
        source = request.path_params["source"]
        if source not in self._verifiers:
            raise NotFound(f"no webhook source {source[:64]!r} is configured")
        body = await request.body()
        message_id = self._proved(source, body, request)
        if not self._buckets[source].take(1.0, time.monotonic()):
            raise Refused(429, f"{source} sends too many messages; send again later", {"Retry-After": "1"})
        outcome = await self._take(source, message_id, parse_object(body))
        return json_response({"outcome": outcome}, 202)

    def _proved(self, source: str, body: bytes, request: Request) -> str:
        headers = {name: request.headers[name] for name in request.headers if name.startswith("webhook-")}
        for verifier in self._verifiers[source]:
            try:
                verifier.verify(body, headers, json_parse=False)
            except (WebhookVerificationError, ValueError):  # ValueError: a malformed signature or body
                continue
            return headers["webhook-id"]
        raise Refused(
            401, "the signature does not fit: check the secret, the clock, and that the body is sent as it was signed"
        )

    async def _take(self, source: str, message_id: str, message: dict[str, Any]) -> str:
        kind, data, now = message.get("type"), message.get("data"), self._services.clock.now()
        if kind == "power_budget":
            regions = [region.name for region in self._services.config.regions]
            event, version = event_from(data, source, regions, now)
            outcome, _ = await self._events.save(event, version, message_id)
            return outcome
        if kind == "power_budget.cancelled":
            event_id, version = (data.get("event_id"), data.get("version")) if isinstance(data, dict) else (None, None)
            if not isinstance(event_id, str) or not (version is None or type(version) is int):
                raise BadInput([("data", data, "must be an object with the event_id, and perhaps a version")])
            outcome, _ = await self._events.cancel(source, event_id, version=version, message_id=message_id)
            return outcome
        raise BadInput([("type", kind, "must be 'power_budget' or 'power_budget.cancelled'")])
