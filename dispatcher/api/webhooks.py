"""Events by webhook, signed as Standard Webhooks says: who sent it is proved before anything of it is read, and what it says
is stored durably before it is answered.

It knows senders' secrets and what kinds of message there are; what an event means is `grid_events`'.
"""

import time
from typing import Any

from standardwebhooks import Webhook, WebhookVerificationError
from starlette.requests import Request
from starlette.responses import Response

from dispatcher.api.answers import Refused, in_thread, json_response
from dispatcher.api.flood import Bucket
from dispatcher.api.grid_events import GridEvents, cancel_from, event_from, regions_of
from dispatcher.api.services import Services
from dispatcher.api.strict_json import parse_object
from dispatcher.config import Config
from dispatcher.dr.hints import TooManyHints
from dispatcher.dr.model import Answer, State, answer_json
from dispatcher.dr.webhooks import content
from dispatcher.errors import AlreadyExists, BadInput, ConfigError, NotFound
from dispatcher.webhook_secrets import checker

#: Signed messages of our own kind that a source may send: a burst, and how many a second after it.
BURST, PER_S = 60, 5.0
#: Of others, who may repeat each of theirs many times; what changes nothing costs no write.
OTHERS_BURST, OTHERS_PER_S = 1000, 200.0


def verifiers(config: Config) -> dict[str, list[Webhook]]:
    """For each source of signed events the checkers of its secrets. Raises ConfigError for a secret that is missing or
    unusable."""
    secrets = {webhook.source: webhook.secrets() for webhook in config.webhooks}
    secrets |= {source.name: source.secrets() for source in config.event_sources if source.protocol == "webhook"}
    return {name: [_verifier(name, secret) for secret in some] for name, some in secrets.items()}


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
        self._native = {webhook.source for webhook in services.config.webhooks}
        self._emergencies = {webhook.source for webhook in services.config.webhooks if webhook.emergency}
        rates = {name: (PER_S, BURST) if name in self._native else (OTHERS_PER_S, OTHERS_BURST) for name in self._verifiers}
        rates |= dict.fromkeys(services.hints, (OTHERS_PER_S, OTHERS_BURST))
        self._buckets = {
            name: Bucket(per_s, float(most), float(most), time.monotonic()) for name, (per_s, most) in rates.items()
        }

    async def receive(self, request: Request) -> Response:
        """Take a signed message: ``{"type": "power_budget" | "power_budget.cancelled", "data": {...}}``.

        202 with ``{"outcome": "accepted" | "duplicate" | "stale"}`` once it is durable; 401 for a signature that does not fit.
        A source of another kind sends what it has agreed on: signed events (the answer says how they are understood), or
        unsigned hints, which are answered with 200 and fetched.
        """
        source = request.path_params["source"]
        if source not in self._buckets:
            raise NotFound(f"no webhook source {source[:64]!r} is configured")
        body = await request.body()
        if source in self._services.hints:
            self._spend(source)
            try:
                answer = await in_thread(self._services.hints[source].add, body)
            except TooManyHints as error:
                raise Refused(429, str(error), {"Retry-After": "10"}) from None
            return json_response({"outcome": str(answer.state), "event_id": answer.event_id})
        message_id = self._proved(source, body, request)
        self._spend(source)
        if source not in self._native:
            answers = await in_thread(self._take_events, source, message_id, body)
            return json_response({"events": [answer_json(answer) for answer in answers]}, 202)
        outcome = await self._take(source, message_id, parse_object(body))
        return json_response({"outcome": outcome}, 202)

    def _spend(self, source: str) -> None:
        if not self._buckets[source].take(1.0, time.monotonic()):
            raise Refused(429, f"{source} sends too many messages; send again later", {"Retry-After": "1"})

    def _take_events(self, source: str, message_id: str, body: bytes) -> list[Answer]:
        """What a proved message says, durably; one with nothing that can be used is an error to its sender."""
        intake = self._services.event_intake
        message = content(parse_object(body), intake.context(source))
        answers = intake.take(source, message, message_id=message_id, raw=body.decode())
        if answers and all(answer.state is State.REJECTED for answer in answers):
            raise BadInput([("body", answer.code, answer.message or "") for answer in answers])
        if len(answers) == 1 and answers[0].code == "version_conflict":
            raise AlreadyExists(answers[0].message)
        return answers

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
            regions, marked = regions_of(self._services.config), source in self._emergencies
            event, version = event_from(data, source, regions, now, marked=marked)
            outcome, _ = await self._events.save(event, version, message_id)
            return outcome
        if kind == "power_budget.cancelled":
            event_id, version = cancel_from(data)
            outcome, _ = await self._events.cancel(source, event_id, version=version, message_id=message_id)
            return outcome
        raise BadInput([("type", kind, "must be 'power_budget' or 'power_budget.cancelled'")])
