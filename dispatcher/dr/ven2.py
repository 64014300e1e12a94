"""A virtual end node of OpenADR 2.0b: registers with one VTN, asks it for messages again and again, answers events, reports.

Events go to the intake, whose ledger knows what is stale. Silence, an outage, an answer that is no list, or a VTN that lost its
memory lift nothing; a list without an event does, when it is given twice. It knows no store of events and no meter.
"""

import json
import logging
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import uuid4

from dispatcher.clock import Clock
from dispatcher.config_events import EventSourceConfig
from dispatcher.dr import ven2_messages as xml
from dispatcher.dr.model import DrEvent, Message, Notes, Refused
from dispatcher.dr.openadr2 import read
from dispatcher.dr.safe_xml import Element
from dispatcher.dr.timing import Duration, parse_duration
from dispatcher.dr.ven import BACK_OFF_MOST_S, GONE_S, JITTER, REST_S, Intake, Settings, Ven
from dispatcher.dr.ven2_answers import absent, changed, ended_by_status, is_live, released, reply, standing, wants_answer
from dispatcher.dr.ven2_client import LIMITS, Vtn2Client, VtnRefused
from dispatcher.dr.ven2_messages import NOT_REGISTERED, Registration, Reply, request_id_of
from dispatcher.dr.ven2_outbox import Outbox2
from dispatcher.dr.ven3_reports import NothingKnown, Readings
from dispatcher.dr.ven3_state import alarms_of
from dispatcher.dr.vtn_client import VtnError
from dispatcher.errors import StoreUnavailable

log = logging.getLogger(__name__)

#: Between two requests for all events, whatever polls brought, seconds.
LIST_EACH_S = 600.0
#: For how long an omission must stand when the VTN has failed within so many seconds: it may know us before its events.
GONE_AFTER_OUTAGE_S, OUTAGE_S = 60.0, 300.0
#: Messages taken in one go before the next wait.
MESSAGES = 50
#: The shortest and the longest time between two polls that a VTN may wish for, seconds.
LEAST_POLL_S, MOST_POLL_S = 1.0, 3600.0
#: For how long, and how many of the odd things that it hears are told.
ODD_FOR, ODD_MOST = timedelta(hours=1), 20


class Intake2(Intake, Protocol):
    """What the VEN needs of `intake.EventIntake`."""

    def opted_out(self, source_name: str) -> dict[str, str]:
        """Ids of events that an operator has opted out of, and why."""
        ...


class _Unknown(Exception):
    """The VTN does not know us, or wants us to register again."""


class Ven2(Ven):
    """The VEN of one ``[[event_source]]`` with protocol openadr-2.0b, in a thread of its own between `start` and `stop`.

    Making one raises ConfigError, and StoreUnavailable.
    """

    def __init__(
        self,
        source: EventSourceConfig,
        intake: Intake2,
        settings: Settings,
        clock: Clock,
        *,
        readings: Readings | None = None,
        client: Vtn2Client | None = None,
    ) -> None:
        made = client or Vtn2Client(source, now=clock.now, limits=LIMITS)
        super().__init__(source, intake, settings, clock, made)
        self._intake: Intake2 = intake
        self._client: Vtn2Client = made
        self._floor_w = source.terms().floor_w
        self._key = f"openadr2.ven.{source.name}"
        self._known, self._lost = _kept(settings.setting(self._key))
        self._registered = self._known is not None
        self._outbox: Outbox2 = Outbox2(
            source.name, source.site or self._name, readings or NothingKnown(), self._client, settings
        )
        self._list_due = True
        self._listed_at = float("-inf")
        self._gone: dict[str, datetime] = {}
        # Both may have been away, so a start counts as a failure.
        self._failed_at = self._started_at
        self._pending: dict[str, Reply] = {}
        self._said: dict[str, Reply] = {}
        self._answer_problem: str | None = None
        self._odd: dict[str, datetime] = {}
        self._no_list: str | None = None

    # --- its thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        next_poll = next_report = 0.0
        while not self._stopping.is_set():
            if time.monotonic() >= next_poll:
                try:
                    next_poll = time.monotonic() + self.poll()
                    next_report = 0.0  # a report may have been asked for
                except Exception as error:  # a slip in here must not end the thread that hears of releases and sheds
                    log.exception("event source %s cannot be polled", self.source.name)
                    self._failed(f"{type(error).__name__}: {error}", self._clock.now())
                    next_poll = time.monotonic() + BACK_OFF_MOST_S
            if time.monotonic() >= next_report:
                try:
                    next_report = time.monotonic() + max(0.5, self.report())
                except Exception:
                    log.exception("reports of event source %s cannot be sent", self.source.name)
                    next_report = time.monotonic() + REST_S
            self._wake.wait(max(0.0, min(next_poll, next_report) - time.monotonic()))

    # --- one poll -------------------------------------------------------------------------------------------------

    def poll(self) -> float:
        """Ask the VTN for what it has and take it; returns for how many seconds to wait. It does not raise for what a VTN or a
        database does."""
        now = self._clock.now()
        self._client.offset_s = None
        try:
            try:
                self._look(now)
            except _Unknown:
                self._registered = False
                self._look(now)
        except (VtnError, StoreUnavailable, _Unknown) as error:
            said = "the VTN asks us to register again and again" if isinstance(error, _Unknown) else str(error)
            self._failed(said, now)
            return self._back_off_s(error.retry_after_s if isinstance(error, VtnError) else None)
        self._good(now)
        wait_s = self._pace_s * random.uniform(1.0, 1.0 + JITTER)
        return min(wait_s, self._settle_s(now)) if self._gone else wait_s

    def _look(self, now: datetime) -> None:
        """Everything the VTN has for us. Raises VtnError, StoreUnavailable, and _Unknown; what was taken before stays."""
        if not self._registered:
            self._register(now)
        if self._list_due or time.monotonic() - self._listed_at >= LIST_EACH_S:
            self._list(now)
        self._outbox.offer(self._ven_id, now)
        for _ in range(MESSAGES):
            message, body = self._ask("OadrPoll", xml.poll(self._ven_id))
            if not self._taken(message, body, now):
                break
        if self._list_due and not self._gone:  # a message that may not have been all: what does the VTN list?
            self._list(now)
        self._answer_changes()
        self._answer()

    def _ask(self, service: str, message: bytes) -> tuple[Element, bytes]:
        try:
            answer, body = self._client.ask(service, message)
        except VtnRefused as error:
            if error.code in NOT_REGISTERED:
                raise _Unknown from None
            raise
        self._check_clock()
        if answer.name == "oadrRequestReregistration":
            self._acknowledge("EiRegisterParty", xml.plain_response(request_id_of(answer), self._ven_id))
            raise _Unknown
        return answer, body

    def _taken(self, message: Element, body: bytes, now: datetime) -> bool:
        """Take a message of the VTN; returns whether there may be another."""
        name, number = message.name, request_id_of(message)
        if name in ("", "oadrResponse"):
            return False
        if name == "oadrDistributeEvent":
            self._events(message, body, now, asked=False)
        elif name in ("oadrCreateReport", "oadrCancelReport"):
            reported = self._outbox.asked if name == "oadrCreateReport" else self._outbox.cancelled
            for wrong in reported(message, self._ven_id, now):
                self._note(wrong)
        elif name == "oadrRegisterReport":
            self._acknowledge("EiReport", xml.registered_report(number, self._ven_id))
        elif name == "oadrUpdateReport":
            self._acknowledge("EiReport", xml.updated_report(number, self._ven_id))
        elif name == "oadrCancelPartyRegistration":
            if self._known is not None:
                self._acknowledge("EiRegisterParty", xml.canceled_registration(number, self._known))
            self._registered = False
            raise VtnError("the VTN ended our registration; we register again (what is held stays)")
        else:
            self._note(f"a message that is not known here: {name[:60]}")
            return False
        return True

    def _note(self, odd: str) -> None:
        """Something that an operator may want to know for a while."""
        self._odd[odd[:300]] = self._clock.now()
        while len(self._odd) > ODD_MOST:
            del self._odd[next(iter(self._odd))]

    def _acknowledge(self, service: str, message: bytes) -> None:
        """An answer that nothing depends on."""
        try:
            self._client.ask(service, message)
        except VtnError as error:
            self._note(f"an answer of ours was not taken: {error}")

    def _check_clock(self) -> None:
        """With a clock that is off, a promise of seconds cannot be kept: then nothing new is taken, and nothing is lifted."""
        offset = self._client.offset_s
        if offset is not None and self._is_too_skewed():
            raise VtnError(
                f"the VTN's clock and ours are {abs(offset):.0f} s apart, too far for a response within "
                f"{self.source.response}: nothing new is taken until both keep time (what is held stays)"
            )

    # --- registration ---------------------------------------------------------------------------------------------

    @property
    def _ven_id(self) -> str:
        return self._known.ven_id if self._known is not None else self.source.ven_id

    @property
    def _pace_s(self) -> float:
        """Seconds between two polls: as the VTN says, else as is configured."""
        told = self._known.poll_s if self._known is not None else None
        return min(MOST_POLL_S, max(LEAST_POLL_S, self.source.poll_every_s if told is None else told))

    def _register(self, now: datetime) -> None:
        """Register, with the ids that we have. A VTN that gives others has lost what it knew: then no list of its says anything
        about what is held, until it lists that again."""
        old = self._known
        try:
            answer = self._create(old.registration_id if old else "", old.ven_id if old else self.source.ven_id)
        except VtnRefused:
            if old is None:
                raise
            answer = self._create("", self.source.ven_id)
        ven_id = answer.word("venID")
        if answer.name != "oadrCreatedPartyRegistration" or not ven_id:
            raise VtnError(f"the VTN did not register us as {self._name}: it must know us first (its answer gives no venID)")
        number = answer.word("registrationID") or ""
        new = Registration(number, ven_id, answer.word("vtnID") or "", self._wished_s(answer))
        if old is not None and (old.registration_id, old.ven_id) != (new.registration_id, new.ven_id):
            self._lost |= {name for name, event in self._intake.held(self.source.name).items() if is_live(event, now)}
        self._known, self._registered, self._list_due = new, True, True
        self._keep()
        self._outbox.offer_again()
        log.warning("event source %s: registered with the VTN as %s", self.source.name, ven_id)

    def _create(self, registration_id: str, ven_id: str) -> Element:
        return self._client.ask("EiRegisterParty", xml.create_registration(_id(), self._name, registration_id, ven_id))[0]

    def _wished_s(self, answer: Element) -> float | None:
        text = answer.word("oadrRequestedOadrPollFreq", "duration")
        try:
            duration = parse_duration(text, "oadrRequestedOadrPollFreq", Notes()) if text is not None else Duration()
        except Refused as error:
            self._note(error.message)
            return None
        return None if duration.endless or duration.months or not duration.rest else duration.rest.total_seconds()

    def _keep(self) -> None:
        one = self._known
        ids = None if one is None else [one.registration_id, one.ven_id, one.vtn_id, one.poll_s]
        self._settings.set_setting(self._key, json.dumps({"registration": ids, "lost": sorted(self._lost)})).result()

    # --- events ---------------------------------------------------------------------------------------------------

    def _list(self, now: datetime) -> None:
        """Ask for all events. Only a list says something of what is not in it."""
        message, body = self._ask("EiEvent", xml.request_event(_id(), self._ven_id))
        self._list_due, self._no_list = False, None
        if message.name == "oadrDistributeEvent":
            self._events(message, body, now, asked=True)
        elif any(is_live(event, now) for event in self._intake.held(self.source.name).values()):
            self._gone = {}
            said = message.name or "nothing"
            self._no_list = f"asked for all events the VTN answers with {said}, which is no list: what is held stays"
        self._listed_at = time.monotonic()

    def _events(self, message: Element, body: bytes, now: datetime, *, asked: bool) -> None:
        """Take a list of events and answer each that wants it. What one of them has wrong is its own."""
        name = self.source.name
        try:
            found = read(body, self._intake.context(name))
        except Refused as error:
            raise VtnError(f"its events cannot be read: {error.message}"[:500]) from None
        held = self._intake.held(name)
        items = tuple(
            released(held[item.event_id], now, "its VTN says that it is over, under the number that is held")
            if isinstance(item, DrEvent) and ended_by_status(item, held.get(item.event_id), now)
            else item
            for item in found.items
        )
        answers = self._intake.take(name, replace(found, items=items, listing=True), raw=body.decode(errors="replace"))
        stances = self._stances(self._intake.held(name))
        wrappers = list(message.all("oadrEvent"))
        for wrapper, item, answer in zip(wrappers, found.items, answers, strict=False):
            if item.event_id is None or not wants_answer(wrapper) or (isinstance(item, DrEvent) and item.completed):
                continue
            said = reply(answer, item.version, stances.get(item.event_id))
            if said is not None:
                self._pending[item.event_id] = replace(said, request_id=request_id_of(message))
        listed = {item.event_id for item in found.items if item.event_id is not None}
        if self._lost & listed:
            self._lost -= listed
            self._keep()
        if asked:
            self._omitted(listed, now)
        elif self._not_listed(listed, now):
            self._list_due = True
        self._answer()

    def _not_listed(self, listed: set[str], now: datetime) -> list[DrEvent]:
        return [e for e in absent(self._intake.held(self.source.name), listed, now) if e.event_id not in self._lost]

    def _omitted(self, listed: set[str], now: datetime) -> None:
        """What a complete list leaves out is cancelled, once it has been left out for a while: some VTNs send one event a
        message, and one that is just starting may know us before its events."""
        missing = self._not_listed(listed, now)
        self._gone = {event.event_id: self._gone.get(event.event_id, now) for event in missing}
        for event in missing:
            if (now - self._gone[event.event_id]).total_seconds() >= self._settle_s(now):
                over = released(event, now, "its VTN lists all events without it: cancelled by omission")
                self._intake.take(self.source.name, Message((over,)))
                del self._gone[event.event_id]
        self._list_due = bool(self._gone)

    def _settle_s(self, now: datetime) -> float:
        return GONE_AFTER_OUTAGE_S if (now - self._failed_at).total_seconds() < OUTAGE_S else GONE_S

    # --- answers --------------------------------------------------------------------------------------------------

    def _stances(self, held: Any) -> dict[str, Reply]:
        out = self._intake.opted_out(self.source.name)
        logs = self.source.test_events == "log"
        return {
            name: standing(event, opted_out=out.get(name), floor_w=self._floor_w, logs_tests=logs)
            for name, event in held.items()
        }

    def _answer_changes(self) -> None:
        """An operator has opted out of what was answered, or back in."""
        if self._said:
            for one in changed(self._said, self._stances(self._intake.held(self.source.name))):
                self._pending.setdefault(one.event_id, one)

    def _answer(self) -> None:
        """Send the answers that are due, before anything else is asked; what is not taken is sent again with the next poll."""
        if not self._pending:
            return
        sent = dict(self._pending)
        try:
            self._client.ask("EiEvent", xml.created_event(self._ven_id, sent.values()))
        except VtnRefused as error:  # said again it would be refused again
            if error.code == "463":
                raise _Unknown from None
            self._note(f"our answer to {', '.join(sent)[:100]} was refused: {error}")
        except VtnError as error:
            self._answer_problem = f"our answer to {', '.join(sent)[:100]} could not be given: {error}; tried again"
            return
        self._answer_problem = None
        self._pending = {}
        self._said |= sent
        held = self._intake.held(self.source.name)
        self._said = {name: one for name, one in self._said.items() if name in held and not held[name].cancelled}

    # --- reports and state ----------------------------------------------------------------------------------------

    def report(self) -> float:
        """Send the reports that are due; returns for how many seconds there is none. It does not raise for what a VTN or a
        database does."""
        if not self._registered:
            return REST_S
        try:
            return self._outbox.send(self._ven_id, self._clock.now())
        except StoreUnavailable as error:
            log.warning("%s: %s", self.source.name, error)
            return REST_S

    def _good(self, now: datetime) -> None:
        if self._state.failures:
            log.warning("event source %s: the VTN answers again", self.source.name)
        held = self._intake.held(self.source.name)
        self._lost &= {name for name, event in held.items() if is_live(event, now)}
        notes = [
            f"the VTN has lost what it knew and does not list event {name}: it stays in force until it is listed again "
            "or ends, or an operator opts out of it"
            for name in sorted(self._lost)
        ]
        notes += [note for note in (self._no_list, self._answer_problem) if note is not None]
        self._odd = {note: at for note, at in self._odd.items() if now - at < ODD_FOR}
        if self._pace_s > self.source.response_s:
            notes.append(f"the VTN wants to be asked every {self._pace_s:g} s, too seldom for a response within "
                         f"{self.source.response}")  # fmt: skip
        with self._lock:
            self._state = replace(
                self._state,
                polled_at=now,
                good_at=now,
                failures=0,
                problem=None,
                offset_s=self._client.offset_s,
                events=sum(is_live(event, now) for event in held.values()),
                ven_id=self._ven_id,
                notes=(*notes, *self._odd),
            )

    def _failed(self, problem: str, now: datetime) -> None:
        self._failed_at, self._list_due, self._gone = now, True, {}
        self._outbox.offer_again()  # a VTN that was away may have forgotten what it wanted to hear
        super()._failed(problem, now)

    def alarms(self, now: datetime) -> Iterator[tuple[str, str | None, str]]:
        """(key, region, sentence) of what an operator must know."""
        paced = self.source.model_copy(update={"poll_every": f"{self._pace_s:g}s"})
        return alarms_of(self.state(), paced, self._started_at, now)


def _id() -> str:
    return uuid4().hex


def _kept(text: str | None) -> tuple[Registration | None, set[str]]:
    """Our registration, and the events that the VTN has forgotten, as they were kept."""
    try:
        found = json.loads(text or "{}")
        ids = found.get("registration")
        return (Registration(*ids) if ids else None), set(found.get("lost", ()))
    except (ValueError, TypeError, AttributeError) as error:
        log.warning("the registration with a VTN cannot be read, and is made anew: %s", error)
        return None, set()
