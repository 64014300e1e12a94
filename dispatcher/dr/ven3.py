"""A virtual end node of OpenADR 3: asks one VTN what it wants, again and again, and hands what it says to the intake.

Polling is the base; a callback only makes it poll at once. Nothing is ever lifted because the VTN is silent, empty or broken:
only a release that the VTN confirms lifts a limit. It knows no store of events and nothing of what a limit does.
"""

import json
import logging
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime
from typing import Any

from dispatcher.clock import Clock
from dispatcher.config_events import EventSourceConfig
from dispatcher.dr.model import DrEvent, Message, Segment, kw
from dispatcher.dr.openadr3 import V30, V31, Context, Dialect, programs_in, read
from dispatcher.dr.ven import BACK_OFF_MOST_S, GONE_S, JITTER, REST_S, Intake, Settings, Ven
from dispatcher.dr.ven3_enrol import Enrolment
from dispatcher.dr.ven3_outbox import Outbox
from dispatcher.dr.ven3_reports import NothingKnown, Readings, Teller
from dispatcher.dr.ven3_rules import lifts, released, subscription_w
from dispatcher.dr.ven3_state import FAILURES_TO_TELL, VenState
from dispatcher.dr.vtn_client import Listing, Query, VtnClient, VtnError, path_of
from dispatcher.errors import StoreUnavailable

log = logging.getLogger(__name__)

#: Between two looks at programs, at the registration and at the subscription, seconds.
ENROL_EACH_S = 600.0
#: Between two listings of all events, past ones too, where the VTN can leave those out, seconds.
FULL_EACH_S = 3600.0
#: Events asked for by id in one poll, and notices that wait for one.
ASKED_AT_ONCE, NOTICES = 100, 16
#: Between two polls, however many callbacks come, seconds.
LEAST_S = 1.0
#: Events handed over at once; a reader takes no more than so many.
_AT_ONCE = 1000
#: The id under which the limit for times of silence is held.
FALLBACK = "fallback-of-gridshift"


class Ven3(Ven):
    """The VEN of one ``[[event_source]]`` with an OpenADR 3 protocol, in a thread of its own between `start` and `stop`.

    ``callback_token`` is what the VTN must show when it calls back. Making one raises ConfigError, and StoreUnavailable.
    """

    def __init__(
        self,
        source: EventSourceConfig,
        intake: Intake,
        settings: Settings,
        clock: Clock,
        *,
        callback_token: str = "",
        readings: Readings | None = None,
        client: VtnClient | None = None,
        enrol_each_s: float = ENROL_EACH_S,
    ) -> None:
        super().__init__(source, intake, settings, clock, client or VtnClient(source, now=clock.now))
        self.callback_token = callback_token
        self._dialect: Dialect = V30 if source.protocol == "openadr-3.0" else V31
        teller = Teller(source.name, self._name, source.site or self._name, readings or NothingKnown(), self._dialect is V30)
        self._outbox: Outbox = Outbox(teller, self._client, settings)
        self._enrolment = Enrolment(source, self._name, self._client, callback_token)
        self._enrol_each_s = enrol_each_s
        self._inbox_key = f"openadr3.inbox.{source.name}"
        self._inbox: list[dict[str, Any]] = _notices(settings.setting(self._inbox_key))
        self._programs: dict[str, dict[str, Any]] = {}
        self._gone: dict[str, datetime] = {}
        self._knows_active = self._dialect is V31
        self._enrolled_at = self._full_at = float("-inf")
        fallback = intake.held(source.name).get(FALLBACK)
        self._fallback_since = None if fallback is None or fallback.cancelled else fallback.received_at

    # --- its thread -----------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Poll at once."""
        self._wake.set()

    def _run(self) -> None:
        next_poll, polled, next_report, reports_well = 0.0, float("-inf"), 0.0, True
        while not self._stopping.is_set():
            if self._wake.is_set():
                self._wake.clear()
                next_poll = min(next_poll, polled + LEAST_S)
            if time.monotonic() >= next_poll:
                polled = time.monotonic()
                try:
                    next_poll = polled + self.poll()
                except Exception as error:  # a slip in here must not end the thread that hears of releases and sheds
                    log.exception("event source %s cannot be polled", self.source.name)
                    self._failed(f"{type(error).__name__}: {error}", self._clock.now())
                    next_poll = polled + BACK_OFF_MOST_S
                next_report = 0.0 if reports_well else next_report  # there may be new ones
            if time.monotonic() >= next_report:
                try:
                    next_report = time.monotonic() + max(0.2, self.report())
                    reports_well = True
                except Exception:
                    log.exception("reports of event source %s cannot be sent", self.source.name)
                    next_report, reports_well = time.monotonic() + REST_S, False
            self._wake.wait(max(0.0, min(next_poll, next_report) - time.monotonic()))

    # --- one poll -------------------------------------------------------------------------------------------------

    def poll(self) -> float:
        """Ask the VTN once and take what it says; returns for how many seconds to wait. It does not raise for what a VTN or a
        database does."""
        now = self._clock.now()
        with self._lock:
            notices = list(self._inbox)
        try:
            self._client.offset_s = None
            found, events = self._look(notices, now)
        except (VtnError, StoreUnavailable) as error:
            self._failed(str(error), now)
            try:
                self._take_notices(notices, now)
                self._fall_back(now)
            except StoreUnavailable as again:
                log.warning("%s: %s", self.source.name, again)
            asked_s = error.retry_after_s if isinstance(error, VtnError) else None
            return self._back_off_s(asked_s)
        self._good(found, events, now)
        self._answered(notices)
        return self.source.poll_every_s * random.uniform(1 - JITTER, 1.0)

    def _look(self, notices: Sequence[Mapping[str, Any]], now: datetime) -> tuple[Listing, int]:
        """Everything the VTN has for us, taken. Raises VtnError and StoreUnavailable; then what was taken before stays."""
        if self._enrolment_due(notices):
            self._find_programs()
        if self.source.programs and not self._programs and self._live_held(now):
            raise VtnError(
                "the VTN knows none of our programs any more, as after a loss of its data: what is held stays in force"
            )
        found = self._listing()
        if any(_text(item.get("programID")) not in self._programs for item in found.items):
            self._find_programs()
            found = replace(found, items=tuple(self._ours(found.items)))
        self._check_clock()
        context = replace(self._intake.context(self.source.name), programs=programs_in(list(self._programs.values())))
        for first in range(0, len(found.items), _AT_ONCE):
            message = read(list(found.items[first : first + _AT_ONCE]), self._dialect, context)
            self._intake.take(self.source.name, message, complete_listing=found.complete)
        if found.complete:
            self._ask_absent({_text(item.get("id")) for item in found.items}, notices, context, now)
        if self._fallback_since is not None:
            self._end_fallback(now)
        if self._enrolment_due(notices):
            self._enrolment.enrol(list(self._programs) if self.source.programs or self._dialect is V30 else [])
            self._enrolled_at = time.monotonic()
        return found, len(found.items)

    def _enrolment_due(self, notices: Sequence[Mapping[str, Any]]) -> bool:
        after_outage = self._state.failures > 0
        told = any(notice.get("objectType") in ("PROGRAM", "SUBSCRIPTION", "VEN") for notice in notices)
        return after_outage or told or time.monotonic() - self._enrolled_at >= self._enrol_each_s

    def _find_programs(self) -> None:
        listing = self._client.all("/programs", self._targets())
        wanted = set(self.source.programs)
        self._programs = {
            item["id"]: item
            for item in listing.items
            if isinstance(item.get("id"), str) and (not wanted or {item["id"], _text(item.get("programName"))} & wanted)
        }

    def _listing(self) -> Listing:
        """All events, of the configured programs or of all."""
        query: list[tuple[str, str]] = list(self._targets())
        full = not self._knows_active or time.monotonic() - self._full_at >= FULL_EACH_S
        if not full:
            query.append(("active", "true"))
        try:
            parts = [self._client.all("/events", (*query, *program)) for program in self._program_queries()]
        except VtnError as error:
            if error.status not in (400, 422) or full:
                raise
            self._knows_active = False  # it does not take the word: then past events are read each time
            return self._listing()
        if full:
            self._full_at = time.monotonic()
        items = {str(item.get("id")): item for part in parts for item in part.items}
        unread = tuple(text for part in parts for text in part.unread)
        return Listing(tuple(items.values()), bool(parts) and all(part.complete for part in parts), unread)

    def _program_queries(self) -> list[Query]:
        if not self.source.programs:
            return [()]
        return [(("programID", program_id),) for program_id in self._programs]

    def _targets(self) -> Query:
        if self._dialect is V31:
            return [("targets", target) for target in self.source.targets]
        pairs = [target.partition("=") for target in self.source.targets]
        types = {kind for kind, _, _ in pairs}
        if len(types) != 1:
            return []  # its query knows one type of target: then what we may see is the VTN's to say
        return [("targetType", types.pop()), *(("targetValues", value) for _, _, value in pairs)]

    def _ours(self, items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        if not self.source.programs:
            return list(items)
        return [item for item in items if _text(item.get("programID")) in self._programs]

    def _check_clock(self) -> None:
        """With a clock that is off, a promise of seconds cannot be kept: then nothing new is taken, and nothing is lifted."""
        offset = self._client.offset_s
        if offset is not None and self._is_too_skewed():
            raise VtnError(
                f"the VTN's clock is {abs(offset):.0f} s {'ahead of' if offset > 0 else 'behind'} ours, too far for a response "
                f"within {self.source.response}: nothing new is taken until both keep time (what is held stays)"
            )

    # --- what is not listed ---------------------------------------------------------------------------------------

    def _live_held(self, now: datetime) -> dict[str, DrEvent]:
        held = self._intake.held(self.source.name)
        return {
            name: event
            for name, event in held.items()
            if not (event.cancelled or event.completed or (event.end is not None and event.end <= now))
        }

    def _ask_absent(self, listed: set[str], notices: Sequence[Mapping[str, Any]], context: Context, now: datetime) -> None:
        """Ask for each event that is held and not listed by its id: 404 is a release, anything else changes nothing.

        A VTN that lost its memory says 404 too; one that knows the event's program no more is not believed. A 404 that nobody
        announced must stand for GONE_S: a VTN that is just starting may know its programs before its events.
        """
        absent = [e for name, e in self._live_held(now).items() if name not in listed and name != FALLBACK]
        self._gone = {e.event_id: self._gone[e.event_id] for e in absent if e.event_id in self._gone}
        said_released = {_event_id(notice) for notice in notices if notice.get("operation") == "DELETE"}
        known: dict[str, bool] = {}
        lost: DrEvent | None = None
        for event in absent[:ASKED_AT_ONCE]:
            item = self._client.one(path_of("events", event.event_id))
            if item is not None:
                self._gone.pop(event.event_id, None)
                self._intake.take(self.source.name, read([item], self._dialect, context))
                continue
            program = event.source or ""
            if program not in known:
                known[program] = self._client.one(path_of("programs", program)) is not None
            if not known[program]:
                lost = event
                continue
            since = self._gone.setdefault(event.event_id, now)
            if event.event_id in said_released or (now - since).total_seconds() >= GONE_S:
                self._intake.take(self.source.name, Message((released(event, now),)))
                del self._gone[event.event_id]
        if lost is not None:
            raise VtnError(
                f"the VTN knows neither event {lost.event_id} nor its program {lost.source} any more, as after a loss of its "
                "data: the event stays in force until it is released here or listed again"
            )

    # --- callbacks ------------------------------------------------------------------------------------------------

    def notify(self, notice: Mapping[str, Any]) -> "Future[None] | None":
        """A notification came, from whoever knows the token: it is kept durably (wait for what is returned; None: it is kept
        already), and the VTN is asked at once. Callable from any thread."""
        with self._lock:
            self._state = replace(self._state, callback_at=self._clock.now())
            if notice in self._inbox:
                kept: Future[None] | None = None
            else:
                # Beyond so many the oldest go: the poll that all of them ask for brings everything.
                self._inbox = [*self._inbox, dict(notice)][-NOTICES:]
                kept = self._settings.set_setting(self._inbox_key, json.dumps(self._inbox))
        if kept is None:
            self.wake()
        else:
            kept.add_done_callback(lambda _: self.wake())
        return kept

    def _take_notices(self, notices: Sequence[Mapping[str, Any]], now: datetime) -> None:
        """While the VTN cannot be asked, what it sent is believed where it takes away; what gives back waits for its word."""
        if not notices or self._is_too_skewed():
            return
        context = replace(self._intake.context(self.source.name), programs=programs_in(list(self._programs.values())))
        held = self._intake.held(self.source.name)
        for notice in notices:
            if notice.get("objectType") != "EVENT":
                continue
            message = read(dict(notice), self._dialect, context)
            tightening = [
                item
                for item in message.items
                if isinstance(item, DrEvent) and item.segments and not lifts(held.get(item.event_id), item, now)
                if not self.source.programs or not self._programs or item.source in self._programs
            ]
            if tightening:
                self._intake.take(self.source.name, replace(message, items=tuple(tightening)))

    def _answered(self, notices: Sequence[Mapping[str, Any]]) -> None:
        """A good poll has brought all that these notices could say."""
        if not notices:
            return
        with self._lock:
            self._inbox = [one for one in self._inbox if one not in notices]
            self._settings.set_setting(self._inbox_key, json.dumps(self._inbox))

    # --- silence --------------------------------------------------------------------------------------------------

    def _fall_back(self, now: datetime) -> None:
        """When a schedule of limits has run out while the VTN is silent, the subscribed capacity is the limit, where one is
        known (User Guide 8.10.1)."""
        state = self._state
        since = state.good_at or self._started_at
        if self._fallback_since is not None or state.failures < FAILURES_TO_TELL:
            return
        held = self._intake.held(self.source.name)
        limits = [s for e in held.values() if not e.cancelled and not e.test for s in e.segments]
        if any(s.end is None or s.end > now for s in limits) or not any(s.end is not None and s.end > since for s in limits):
            return
        subscribed = subscription_w(held, now)
        if subscribed is None:
            return
        reason = f"IMPORT_CAPACITY_SUBSCRIPTION={kw(subscribed)}: the schedule of limits ended while the VTN does not answer"
        segment = Segment(now, None, subscribed, reason=reason)
        event = DrEvent(None, FALLBACK, now, now, start=now, segments=(segment,), body=reason)
        self._intake.take(self.source.name, Message((event,)))
        self._fallback_since = now

    def _end_fallback(self, now: datetime) -> None:
        if FALLBACK in self._live_held(now):
            over = DrEvent(None, FALLBACK, now, now, cancelled=True, polled=True, body="the VTN answers again")
            self._intake.take(self.source.name, Message((over,)))
        self._fallback_since = None

    # --- reports and state ----------------------------------------------------------------------------------------

    def report(self) -> float:
        """Send the reports that are due; returns for how many seconds there is none. It does not raise for what a VTN or a
        database does."""
        now = self._clock.now()
        try:
            self._outbox.plan(self._intake.held(self.source.name).values(), now)
            self._outbox.send(now)
        except StoreUnavailable as error:
            log.warning("%s: %s", self.source.name, error)
            return REST_S
        return self._outbox.next_in_s(self._clock.now())

    def _good(self, found: Listing, events: int, now: datetime) -> None:
        names = tuple(_text(p.get("programName")) or p["id"] for p in self._programs.values())
        missing = set(self.source.programs) - set(names) - set(self._programs)
        notes = [*found.unread, *self._enrolment.notes]
        notes += [f"the VTN has no program {name!r} for us" for name in sorted(missing)]
        if not found.complete:
            notes.append("the listing of events was not complete: absence from it means nothing")
        if self._state.failures:
            log.warning("event source %s: the VTN answers again", self.source.name)
        with self._lock:
            self._state = replace(
                self._state,
                polled_at=now,
                good_at=now,
                failures=0,
                problem=None,
                offset_s=self._client.offset_s,
                events=events,
                programs=names,
                ven_id=self._enrolment.ven_id,
                subscription=self._enrolment.subscription,
                notes=tuple(notes),
            )

    def state(self) -> VenState:
        """How it stands. Cheap."""
        return replace(super().state(), fallback_since=self._fallback_since)


def _text(value: object) -> str:
    """A text that somebody else sent, "" for anything else: what comes may have any shape."""
    return value if isinstance(value, str) else ""


def _event_id(notice: Mapping[str, Any]) -> str:
    item = notice.get("object")
    return _text(item.get("id")) if isinstance(item, dict) and notice.get("objectType") == "EVENT" else ""


def _notices(text: str | None) -> list[dict[str, Any]]:
    try:
        found = json.loads(text or "[]")
    except ValueError:
        return []
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
