"""From a message that was read to a stored event that binds: what is held of each source, durable before it is answered.

It knows no wire format (readers make `model.Message`), no transport, and not what a limit does to jobs.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from dispatcher.api.flood import Bucket
from dispatcher.clock import Clock
from dispatcher.config import Config
from dispatcher.config_events import EventSourceConfig
from dispatcher.dr.kept import event_of, grid_event, text_of
from dispatcher.dr.ledger import Ledger, receive, view
from dispatcher.dr.model import Answer, DrEvent, Message, Refused, State, iso, kw, refusal, shown
from dispatcher.dr.openadr3 import Context
from dispatcher.dr.payloads import Terms
from dispatcher.dr.site import Site, above_floor
from dispatcher.store import GridEventChange, Store

log = logging.getLogger(__name__)

#: Events that ended longer ago are looked up in the store when they are spoken of.
AT_HAND = timedelta(days=14)
#: How often what is not at hand any more is let go of, and what our own API's open events are looked at.
_THIN_EACH, _OPEN_EACH = timedelta(hours=1), timedelta(minutes=1)
#: After how long an open event is told that no source has a watchdog for.
_WATCHDOG = timedelta(hours=4)
#: For how long a message that was refused, or contradicts another, stays an alarm.
TOLD_FOR = timedelta(hours=24)
#: Ids of messages of one source that are remembered, the latest.
_SEEN = 10_000
#: Such alarms of one source, the latest.
_TROUBLES = 20
#: Characters of a message that history keeps.
_KEPT = 16_384
#: Lines of history a second for messages that change nothing, and how many at once.
_NOTES_PER_S, _NOTES_AT_ONCE = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class _Trouble:
    """A message that an operator should look at."""

    at: datetime
    sentence: str


class _Source:
    """What is known of one source while the process lives; guarded by the intake's lock."""

    def __init__(self, config: EventSourceConfig, site: Site, held: dict[str, DrEvent]) -> None:
        self.config, self.site, self.held = config, site, held
        self.thinned_at: datetime | None = None
        self.troubles: dict[str, _Trouble] = {}
        self.contradicts: dict[str, str] = {}  # what a sender said, when asked, under a version that said something else
        self.noted: dict[str, str] = {}  # the last line of history of an event for what changed nothing
        self.notes = Bucket(_NOTES_PER_S, _NOTES_AT_ONCE, _NOTES_AT_ONCE, time.monotonic())
        self.seen: dict[str, None] = {}  # ids of messages that were taken, the latest; the store knows the others

    def remember(self, message_id: str) -> None:
        """A message with this id was taken, and its receipt is on disk."""
        self.seen[message_id] = None
        if len(self.seen) > _SEEN:
            del self.seen[next(iter(self.seen))]


class EventIntake:
    """See the module. All methods may be called from any thread (not from an event loop: they wait for the disk)."""

    def __init__(
        self,
        config: Config,
        store: Store,
        clock: Clock,
        *,
        load: Callable[[str, str | None], float | None],
        nudge: Callable[[], None],
        draw: Callable[[], float] = lambda: random.uniform(-1.0, 1.0),
    ) -> None:
        """``load`` tells what a region (or a branch of it) draws at its meter now, W, None where that is not known;
        ``nudge`` lets the control loop look at once; ``draw`` draws random starts. Raises StoreUnavailable."""
        self._store, self._clock, self._load, self._nudge, self._draw = store, clock, load, nudge, draw
        self._lock = threading.RLock()
        since = clock.now() - AT_HAND
        self._open_at: datetime | None = None
        self._open: list[tuple[str, str | None, str]] = []
        self._sources: dict[str, _Source] = {}
        for source in config.event_sources:
            texts = store.held_grid_events(source.name, since)
            held = {event_id: event for event_id, text in texts.items() if (event := _read(source.name, event_id, text))}
            self._sources[source.name] = _Source(source, source.terms(), held)

    def context(self, source_name: str) -> Context:
        """What a message of this source is to be read against, now: the site's terms, the load at receipt and the random
        draw (those of the first receipt for an event that is held). For every message ask anew. Add programs with
        ``dataclasses.replace(context, programs=...)``. Raises KeyError for a source that is not configured."""
        source = self._sources[source_name]
        load_w = self._load(source.config.region, source.config.branch)

        def recall(event_id: str) -> tuple[float | None, float]:
            with self._lock:
                held = self._held(source, event_id)
            first_w = load_w if held is None or held.load_w is None else held.load_w
            return first_w, self._draw() if held is None or held.drawn is None else held.drawn

        return Context(self._clock.now(), Terms(source.site, load_w), recall=recall)

    def take(
        self,
        source_name: str,
        message: Message,
        *,
        complete_listing: bool = False,
        message_id: str | None = None,
        raw: str = "",
    ) -> list[Answer]:
        """Take a message: an answer for each of its items, in order; what changes something is on disk on return.

        ``complete_listing``: an authorised list of all there is. In OpenADR 2.0b what is held and not in it is cancelled (its
        answers follow); in the others nothing follows: ask for it by id, and hand in a ``DrEvent`` with ``cancelled``,
        ``final`` and ``polled`` when its sender says that there is none. ``message_id``: proved identity of a message, for
        replays. ``raw``: the text as it came, for the record of what was refused.
        Raises StoreUnavailable when not all of it was stored, KeyError for a source that is not configured.
        """
        source, now = self._sources[source_name], self._clock.now()
        message_id = message_id if message_id is not None else message.message_id
        answers: list[Answer] = []
        receipts: dict[str, Future[str]] = {}
        with self._lock:
            for index, given in enumerate(message.items):
                item = _named(given)
                if isinstance(item, Answer):
                    answers.append(self._told(source, item, now, raw))
                    continue
                one = message_id if message_id is None or index == 0 else f"{message_id} {index}"
                if one is not None and one in source.seen:
                    answers.append(self._seen(source, item, now))
                    continue
                listed = message.listing or complete_listing
                answers.append(self._take(source, item, now, listed=listed, message_id=one, receipts=receipts))
            if complete_listing and source.config.protocol == "openadr-2.0b":
                answers += self._omitted(source, {item.event_id for item in message.items}, now)
        for one, receipt in receipts.items():  # without the lock: many wait for one sync of the disk
            receipt.result()
            with self._lock:
                source.remember(one)
        return answers

    def held(self, source_name: str) -> Ledger:
        """Events by id as they are held: also cancelled ones and those that ended within the last two weeks."""
        with self._lock:
            return dict(self._sources[source_name].held)

    def opted_out(self, source_name: str) -> dict[str, str]:
        """Ids of events that an operator has opted out of and that are not over, and why."""
        live = self._store.grid_events(ended_after=self._clock.now())
        return {e.event_id: e.opted_out for e in live if e.source == source_name and e.opted_out is not None}

    # --- one event ----------------------------------------------------------------------------------------------------

    def _held(self, source: _Source, event_id: str) -> DrEvent | None:
        """What is held of an event, however old it is."""
        if event_id not in source.held:
            text = self._store.held_grid_event(source.config.name, event_id)
            event = None if text is None else _read(source.config.name, event_id, text)
            if event is None:
                return None
            source.held[event_id] = event
        return source.held[event_id]

    def _thin(self, source: _Source, now: datetime) -> None:
        """Let go of what ended long ago; the store still has it."""
        if source.thinned_at is not None and now - source.thinned_at < _THIN_EACH:
            return
        source.thinned_at = now
        for event_id, event in list(source.held.items()):
            ended = event.received_at if event.cancelled else event.end
            if ended is not None and now - max(ended, event.received_at) > AT_HAND:
                del source.held[event_id]

    def _seen(self, source: _Source, event: DrEvent, now: datetime) -> Answer:
        """A message sent again, under the id that it has over all attempts."""
        old = self._held(source, event.event_id)
        answer = view(event if old is None else old, now)
        return replace(answer, state=State.IGNORED).warned("a duplicate: a message with this id came before")

    def _take(
        self,
        source: _Source,
        event: DrEvent,
        now: datetime,
        *,
        listed: bool,
        message_id: str | None,
        receipts: dict[str, Future[str]],
    ) -> Answer:
        old = self._held(source, event.event_id)
        ledger, answer = receive({} if old is None else {event.event_id: old}, event, now, listed=listed)
        if answer.code == "version_conflict" and old is not None and event.polled:
            # Asked again it says the same again: then that is what it wants, whatever it calls it.
            if source.contradicts.pop(event.event_id, None) == event.body:
                ledger, answer = receive({event.event_id: replace(old, version=None)}, event, now, listed=listed)
                answer = answer.warned(
                    "another text under the same version, said twice when asked: it is what its sender wants"
                )
            else:
                source.contradicts[event.event_id] = event.body
        answer = self._judged(source, answer, event)
        taken = ledger.get(event.event_id)
        if taken is None or taken is old:
            if message_id is not None and (stored := self._store.grid_event(source.config.name, event.event_id)) is not None:
                # A retry of this message must not count as news once something newer is held.
                receipts[message_id] = self._store.save_grid_event(replace(stored, received_at=now), message_id)
            return self._unchanged(source, event, answer, now)
        if old is not None and old.load_w is not None:  # the first load and draw are those of all versions
            taken = replace(taken, load_w=old.load_w)
        if old is not None and old.drawn is not None:
            taken = replace(taken, drawn=old.drawn)
        outcome = self._save(source, taken, answer, now, message_id, event.body)
        if message_id is not None:
            source.remember(message_id)
        if outcome != "accepted":
            return self._seen(source, event, now)
        source.held[event.event_id] = taken
        source.troubles.pop(event.event_id, None)
        source.noted.pop(event.event_id, None)
        source.contradicts.pop(event.event_id, None)
        self._thin(source, now)
        self._nudge()
        return answer

    def _save(
        self, source: _Source, event: DrEvent, answer: Answer, now: datetime, message_id: str | None, message: str
    ) -> str:
        before = self._store.grid_event(source.config.name, event.event_id)
        stored = grid_event(event, source.config, before)
        what = "cancelled" if event.cancelled else "accepted" if before is None else "changed"
        line = self._line(source, event.event_id, now, what, _sentence(answer), message, stored.version)
        change = replace(line, steps=stored.steps)
        return self._store.save_grid_event(stored, message_id, change=change, held=text_of(event)).result()

    def _unchanged(self, source: _Source, event: DrEvent, answer: Answer, now: datetime) -> Answer:
        if answer.code is not None and answer.message is not None:
            self._trouble(source, event.event_id, f"event {event.event_id}: {answer.message}", now)
        if answer.state is State.IGNORED:
            self._note(source, event.event_id, now, "ignored", answer.warnings[-1] if answer.warnings else "", event.body)
        return answer

    def _told(self, source: _Source, answer: Answer, now: datetime, raw: str) -> Answer:
        """A reader's answer that needs no more; what was refused is recorded, and said aloud."""
        if answer.state is State.REJECTED:
            held = self._held(source, answer.event_id) if answer.event_id is not None else None
            if held is not None:
                answer = answer.warned("what was held of it before stays in force")
            name = f"event {answer.event_id}" if answer.event_id is not None else "a message"
            self._trouble(source, answer.event_id or "", f"{name} was refused: {answer.code}: {answer.message}", now)
            self._note(source, answer.event_id or "", now, "rejected", f"{answer.code}: {answer.message}", raw)
        return answer

    def _omitted(self, source: _Source, named: set[str | None], now: datetime) -> list[Answer]:
        """OpenADR 2.0b: an event that its sender does not list any more is cancelled."""
        answers = []
        for event_id, event in list(source.held.items()):
            if event_id in named or event.cancelled or (event.end is not None and event.end <= now):
                continue
            over = replace(event, cancelled=True, received_at=now, segments=(), signals=(), reports_due=())
            answer = view(over, now).warned("not in a message that lists all events: cancelled by omission")
            if self._save(source, over, answer, now, None, "") == "accepted":
                source.held[event_id] = over
                answers.append(answer)
        if answers:
            self._nudge()
        return answers

    def _judged(self, source: _Source, answer: Answer, event: DrEvent) -> Answer:
        if source.config.emergency:
            answer = replace(answer, segments=tuple(replace(segment, emergency=True) for segment in answer.segments))
        if event.test and source.config.test_events == "log" and answer.segments:
            answer = answer.warned("a test: recorded, and not acted on (test_events = 'log')")
        if answer.segments and answer.notice_s is not None and answer.notice_s < source.config.response_s:
            promised = f"a response within {source.config.response} is promised: until then it may be held in part"
            answer = answer.warned(f"notice of {max(answer.notice_s, 0.0):g} s; {promised}")
        return above_floor(answer, source.site)

    # --- history and alarms -------------------------------------------------------------------------------------------

    @staticmethod
    def _line(
        source: _Source, event_id: str, now: datetime, what: str, sentence: str, message: str, version: int | None = None
    ) -> GridEventChange:
        return GridEventChange(source.config.name, event_id, now, version, what, sentence, message[:_KEPT])

    def _note(self, source: _Source, event_id: str, now: datetime, what: str, sentence: str, message: str) -> None:
        """History of what changed nothing: each thing once, and never so much of it that it fills the disk."""
        if source.noted.get(event_id) == sentence or not source.notes.take(1.0, time.monotonic()):
            return
        if len(source.noted) >= 1000:
            source.noted.clear()
        source.noted[event_id] = sentence
        self._store.note_grid_event(self._line(source, event_id, now, what, sentence, message))

    def _trouble(self, source: _Source, event_id: str, sentence: str, now: datetime) -> None:
        source.troubles.pop(event_id, None)
        source.troubles[event_id] = _Trouble(now, sentence)
        while len(source.troubles) > _TROUBLES:
            del source.troubles[next(iter(source.troubles))]

    def alarms(self, now: datetime) -> Iterator[tuple[str, str | None, str]]:
        """(key, region, sentence): messages refused, versions that contradict each other, limits below the serving floor,
        events open for too long."""
        # Without the lock, which is held while the disk is waited for: the control loop asks.
        for config, site, held, troubles in [(s.config, s.site, s.held, s.troubles) for s in self._sources.values()]:
            for event_id, trouble in list(troubles.items()):
                if now - trouble.at < TOLD_FOR:
                    yield f"message {config.name} {event_id}", config.region, f"{config.name}: {trouble.sentence}"
            for event in list(held.values()):
                if event.cancelled or event.completed or (event.test and config.test_events == "log"):
                    continue
                for key, sentence in _looked_at(event, config, site, now):
                    yield f"{key} {config.name} {event.event_id}", config.region, f"{config.name}: {sentence}"
        if self._open_at is None or now - self._open_at >= _OPEN_EACH:
            self._open_at, self._open = now, list(self._open_without_watchdog(now))
        yield from self._open

    def _open_without_watchdog(self, now: datetime) -> Iterator[tuple[str, str | None, str]]:
        for event in self._store.grid_events(ended_after=now):
            if event.source not in self._sources and event.end is None and now - event.start >= _WATCHDOG and not event.test:
                whose = f"{event.source}: event {event.event_id}"
                sentence = f"{whose} has been open since {iso(event.start)} and has no end: does it still hold?"
                yield f"open {event.source} {event.event_id}", event.region, sentence


def _read(source: str, event_id: str, text: str) -> DrEvent | None:
    """What is kept of an event. What cannot be read binds as it is stored; only its sender's next message is a first one."""
    try:
        return event_of(text)
    except ValueError as error:
        log.error("what is kept of event %s from %s cannot be read: %s", event_id, source, error)
        return None


def _named(item: DrEvent | Answer) -> DrEvent | Answer:
    """The item, unless its event's name is none that everything after can hold."""
    if item.event_id is None or (item.event_id.isprintable() and 0 < len(item.event_id) <= 256):
        return item
    wrong = f"event_id: {shown(item.event_id)}: must be 1 to 256 printable characters"
    return refusal(Refused("bad_field", wrong))


def _looked_at(event: DrEvent, config: EventSourceConfig, site: Site, now: datetime) -> Iterator[tuple[str, str]]:
    """(kind, sentence) of what an operator must know of an event that is held."""
    live = [s for s in event.segments if s.end is None or s.end > now]
    if site.floor_w is not None and live and min(s.limit_w for s in live) < site.floor_w:
        lowest_w = min(s.limit_w for s in live)
        missing = f"{kw(site.floor_w - lowest_w)} cannot be had"
        sentence = f"event {event.event_id} asks for {kw(lowest_w)}, below the serving floor of {kw(site.floor_w)}: {missing}"
        yield "floor", sentence
    if event.lacking is not None and (event.end is None or event.end > now):
        yield "reference", f"event {event.event_id} limits nothing, for what it asks is not known: {event.lacking}"
    opened = min((s.start for s in live if s.end is None), default=None)
    if opened is not None and (now - opened).total_seconds() >= config.watchdog_s:
        sentence = (
            f"event {event.event_id} has been open since {iso(opened)} and has no end: ask its sender whether it still holds"
        )
        yield "open", sentence


def _sentence(answer: Answer) -> str:
    """What was understood, for the history."""
    parts = [str(answer.state)]
    parts += [
        f"at most {kw(s.limit_w)} from {iso(s.start)} to {iso(s.end) or 'its release'}{', an emergency' if s.emergency else ''}"
        for s in answer.segments[:3]
    ]
    if len(answer.segments) > 3:
        parts.append(f"and {len(answer.segments) - 3} more")
    parts += answer.warnings[:3]
    return "; ".join(parts)
