"""How a demand-response event is understood: a file, what came before, the present, the site, to answers. It acts on nothing.

It composes the readers, what is held, and what binds when several events do. A message that is wrong is an answer too, with the
state ``rejected`` and an error; only wrong arguments raise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from dispatcher.dr import openadr2, openadr3, pointers
from dispatcher.dr.ledger import Ledger, joined, order, receive, stale, view
from dispatcher.dr.model import (
    Answer,
    DrEvent,
    Message,
    Notes,
    Refused,
    State,
    Version,
    answer_json,
    json_of,
    refusal,
    version_json,
)
from dispatcher.dr.overlap import Binding, binding, binding_json
from dispatcher.dr.payloads import Terms
from dispatcher.dr.site import Site, above_floor
from dispatcher.dr.timing import parse_time
from dispatcher.errors import BadInput

PROTOCOLS = ("openadr-3.1", "openadr-3.0", "openadr-2.0b", "standard-webhook", "pointer", "native")
MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Given:
    """What events are read with. ``secrets`` are those of signed webhooks; ``held_version`` what is held of an event of which
    nothing came before."""

    now: datetime
    site: Site = field(default_factory=Site)
    load_w: float | None = None
    draw_s: float | None = None
    secrets: tuple[str, ...] = ()
    held_version: str | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answers for a file, and which limits bind over time when it held a list."""

    answers: tuple[Answer, ...]
    listing: bool
    binding: tuple[Binding, ...] = ()

    def json(self) -> dict[str, Any]:
        """One object, or for a list ``{"events", "binding"}``."""
        if not self.listing:
            return answer_json(self.answers[0])
        return {"events": [answer_json(a) for a in self.answers], "binding": binding_json(self.binding)}


def explain(protocol: str, body: bytes, given: Given, after: Sequence[bytes] = ()) -> Explanation:
    """What ``body`` means after the messages ``after`` came in that order. Raises BadInput for wrong arguments."""
    if protocol not in PROTOCOLS:
        raise BadInput([("protocol", protocol, f"must be one of {', '.join(PROTOCOLS)}")])
    held_version = None if given.held_version is None else _version(given.held_version)
    reader = _Reader(protocol, given)
    held: Ledger = {}
    seen: set[str] = set()
    earlier: list[str] = []
    for number, message in enumerate(after, 1):
        try:
            read = reader.read(message, earlier=True)
        except Refused as error:
            earlier.append(f"message {number} before this one is not counted: {error.message}")
            continue
        if read.message_id is not None and read.message_id in seen:
            continue
        seen.update([read.message_id] if read.message_id is not None else [])
        for item in read.items:
            if isinstance(item, DrEvent):
                held, _ = receive(held, _when_it_came(item, given.now), given.now)
            elif item.message is not None:
                earlier.append(f"message {number} before this one is not counted: {item.message}")
    try:
        read = reader.read(body, earlier=False)
    except Refused as error:
        return Explanation((refusal(error).warned(*earlier),), listing=False)
    answers: list[Answer] = []
    repeated = read.message_id is not None and read.message_id in seen
    for item in read.items:
        if isinstance(item, Answer):
            answers.append(_beside_held(item, held))
            continue
        if repeated:
            answers.append(_repeated(item, held, given.now))
            continue
        held, answer = _received(held, item, held_version, given.now, read.listing)
        answers.append(answer)
    held, answers = _absent(read, held, answers, given.now)
    told = tuple(above_floor(answer, given.site).warned(*earlier) for answer in answers)
    if not read.listing:
        return Explanation(told, listing=False)
    return Explanation(told, True, tuple(binding(held.values(), given.now, by_priority=given.site.by_priority)))


class _Reader:
    """Reads files of one protocol, and keeps what later ones need of earlier ones: programs."""

    def __init__(self, protocol: str, given: Given) -> None:
        self._protocol = protocol
        self._context = openadr3.Context(given.now, Terms(given.site, given.load_w), given.draw_s)
        self._secrets = given.secrets

    def read(self, body: bytes, *, earlier: bool) -> Message:
        """What a file holds. Raises Refused where nothing of it can be read."""
        if len(body) > MAX_BYTES:
            raise Refused("too_large", f"body: {len(body)} bytes: at most {MAX_BYTES}")
        context = replace(self._context, earlier=earlier)
        if self._protocol == "openadr-2.0b":
            return openadr2.read(body, context)
        if self._protocol in ("standard-webhook", "native"):
            from dispatcher.dr import webhooks  # it brings the API's reader, and with it half of the control plane

            if self._protocol == "standard-webhook":
                return webhooks.read_signed(body, webhooks.verifiers(self._secrets), context)
            return webhooks.read_native(json_of(body), context)
        data = json_of(body)
        if self._protocol == "pointer":
            return pointers.read(data, context)
        programs = {**context.programs, **openadr3.programs_in(data)}
        self._context = replace(self._context, programs=programs)
        dialect = openadr3.V30 if self._protocol == "openadr-3.0" else openadr3.V31
        return openadr3.read(data, dialect, replace(context, programs=programs))


def _version(text: str) -> Version:
    if text.isascii() and text.isdigit() and len(text) < 16:
        return int(text)
    try:
        return parse_time(text, "held_version", None, Notes())
    except Refused:
        remedy = "must be a whole number or a time with an offset, such as 2026-01-31T17:00:00Z"
        raise BadInput([("held_version", text, remedy)]) from None


def _when_it_came(event: DrEvent, now: datetime) -> DrEvent:
    """Where a message does not say when it was sent, it is taken to have come before its start, not late."""
    if event.received_at == now and event.start is not None and event.start < now:
        return replace(event, received_at=event.start)
    return event


def _received(held: Ledger, event: DrEvent, held_version: Version, now: datetime, listed: bool) -> tuple[Ledger, Answer]:
    """One more version, where perhaps only the number of the held one is known."""
    came = order(event.version, held_version) if event.event_id not in held and not event.final else None
    if came == -1:
        text = stale(event.version, held_version)
        answer = Answer(State.IGNORED, event.event_id, event.source, held_version, event.priority, warnings=(text,))
        return held, answer
    held, answer = receive(held, event, now, listed=listed)
    if came == 0:
        text = f"a duplicate of version {version_json(held_version)}, which is held"
        answer = replace(answer, state=State.IGNORED).warned(text)
    return held, answer


def _repeated(event: DrEvent, held: Ledger, now: datetime) -> Answer:
    """A webhook sent again: its id is the same over all attempts."""
    old = held.get(event.event_id, joined(event, None))
    return replace(view(old, now), state=State.IGNORED).warned("a duplicate: a webhook with this id came before")


def _beside_held(answer: Answer, held: Ledger) -> Answer:
    """A refused version of an event that is held changes nothing of it."""
    old = held.get(answer.event_id or "")
    if answer.state is not State.REJECTED or old is None:
        return answer
    return answer.warned(f"version {version_json(old.version)} stays in force")


def _absent(read: Message, held: Ledger, answers: list[Answer], now: datetime) -> tuple[Ledger, list[Answer]]:
    """Events that are held and not in a message that should list all: over in OpenADR 2.0b, to be asked about in 3."""
    if not read.complete:
        return held, answers
    named = {item.event_id for item in read.items}
    implied = not any(
        isinstance(item, DrEvent) and isinstance(item.version, datetime) for item in (*read.items, *held.values())
    )
    for event_id, event in list(held.items()):
        if event_id in named or event.cancelled:
            continue
        if not implied:
            text = "held, but not in this listing: ask for it by its id; it stays in force until its sender says 404"
            answers = [*answers, view(event, now).warned(text)]
        elif read.listing:
            over = replace(event, cancelled=True, received_at=now, segments=(), signals=(), reports_due=())
            held = {**held, event_id: over}
            answers = [*answers, view(over, now).warned("not in this message, which lists all events: cancelled by omission")]
        else:
            text = (
                f"event {event_id}, held before, is not in here: if this message lists all events, it is cancelled by omission"
            )
            answers = [answer.warned(text) for answer in answers]
    return held, answers
