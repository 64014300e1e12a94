"""Hints that something is to be fetched: kept durably, fetched until they are, and handed to the intake as what was fetched.

It trusts a hint with nothing but where to look. It knows no HTTP (`fetching` does) and no route.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import quote

from dispatcher.api.strict_json import parse
from dispatcher.clock import Clock
from dispatcher.config_events import EventSourceConfig
from dispatcher.dr import pointers
from dispatcher.dr.fetching import NotFetched, address_of, fetch
from dispatcher.dr.intake import EventIntake
from dispatcher.dr.model import Answer, DrEvent, Message, State
from dispatcher.errors import BadInput, GridshiftError
from dispatcher.store import Store

log = logging.getLogger(__name__)

#: The same dispatch is not fetched again within this, however often its hint comes.
_GAP_S = 1.0
#: Hints that wait at the same time; more are refused, and their sender sends again.
MOST = 200
#: Wall seconds until the next try, by tries so far; the last one goes on.
_AGAIN_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
#: From so many failed tries on an operator is told; one that is not there is then given up.
TELL_AFTER = 3


class TooManyHints(GridshiftError):
    """Too many dispatches wait to be fetched; send again later."""


@dataclass
class _Hint:
    """A dispatch to fetch: where, what was said of it, how often it was tried, when it is tried next (monotonic s), what was
    wrong. ``ours``: nobody said anything, it is looked after."""

    url: str
    pointer: dict[str, Any]
    tries: int = 0
    due: float = 0.0
    wrong: str = ""
    ours: bool = False


class Hints:
    """The hints of one ``pointer`` source, and the thread that follows them. `add` may be called from any thread."""

    def __init__(
        self,
        source: EventSourceConfig,
        intake: EventIntake,
        store: Store,
        clock: Clock,
        *,
        get: Callable[[EventSourceConfig, str], bytes] = fetch,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes up what an earlier process was told and did not fetch. Raises StoreUnavailable."""
        self._source, self._intake, self._store, self._clock, self._get, self._mono = source, intake, store, clock, get, mono
        self._setting = f"events.hints.{source.name}"
        self._changed = threading.Condition()
        self._hints: dict[str, _Hint] = {}
        for event_id, url, pointer in json.loads(store.setting(self._setting) or "[]"):
            self._hints[event_id] = _Hint(url, pointer)
        self._fetched_at: dict[str, float] = {}  # monotonic s
        self._list_tries, self._list_wrong = 0, ""
        self._listed: dict[str, Any] = {}  # what was fetched because it was listed, and as which version
        self._again_at = 0.0  # the first round looks after all that is held
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to follow hints."""
        self._thread = threading.Thread(target=self._run, name=f"hints-{self._source.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; what is not fetched is still known after a restart."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(5.0)  # it may be waiting for an answer; what it was after is on disk

    def add(self, body: bytes) -> Answer:
        """Take a hint, durably: the answer's state is fetch, ping, or rejected with why. Raises BadInput for what is no JSON,
        TooManyHints, StoreUnavailable."""
        data = parse(body)
        if not pointers.is_pointer(data):
            wrong = "must be an object with event and resource: what a stranger says of a dispatch itself is not used"
            raise BadInput([("body", "(not shown)", wrong)])
        answer = pointers.read(data, self._intake.context(self._source.name)).items[0]
        if not isinstance(answer, Answer) or answer.state not in (State.FETCH, State.PING):
            raise BadInput([("body", getattr(answer, "code", None), getattr(answer, "message", None) or "must be a hint")])
        if answer.state is State.PING or answer.event_id is None:
            return answer
        try:
            url = address_of(self._source, data["resource"])
        except NotFetched as error:
            raise BadInput([("resource", data["resource"], str(error))]) from None
        with self._changed:
            known = self._hints.get(answer.event_id)
            if known is None and sum(not one.ours for one in self._hints.values()) >= MOST:
                raise TooManyHints
            # Always a new one: what is just being fetched may be older than what this hint is about.
            hint = self._hints[answer.event_id] = _Hint(url, data)
            hint.due = self._fetched_at.get(answer.event_id, -_GAP_S) + _GAP_S
            if known is not None:
                hint.tries, hint.wrong = known.tries, known.wrong
            if known is None or known.url != url or known.ours:
                self._keep()
            self._changed.notify_all()
        return answer

    def _keep(self) -> None:
        """Write down what is to be fetched; called with the lock."""
        waiting = [[event_id, hint.url, hint.pointer] for event_id, hint in self._hints.items() if not hint.ours]
        self._store.set_setting(self._setting, json.dumps(waiting)).result()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                due = min([self._again_at, *(hint.due for hint in self._hints.values())])
                wait_s = due - self._mono()
                if wait_s > 0:
                    self._changed.wait(min(wait_s, 60.0))
                    continue
            try:
                self.follow()
            except Exception:  # the thread must outlive whatever it is
                log.exception("hints of %s", self._source.name)
                with self._changed:
                    self._changed.wait(5.0)

    def follow(self) -> None:
        """Fetch what is due; each `poll_every` also what is held and not over, and what is listed and not known: a webhook may
        have been lost."""
        now_s = self._mono()
        if now_s >= self._again_at:
            self._again_at = now_s + self._source.poll_every_s
            with self._changed:
                self._look_after_held()
            if self._source.list_url:
                self._look_at_list()
        with self._changed:
            due = [(event_id, hint) for event_id, hint in self._hints.items() if hint.due <= now_s]
        for event_id, hint in due:
            if self._closed:
                return
            self._try(event_id, hint)

    def _look_after_held(self) -> None:
        now = self._clock.now()
        for event_id, event in self._intake.held(self._source.name).items():
            over = event.cancelled or (event.end is not None and event.end <= now)
            if not over and event_id not in self._hints:
                self._hints[event_id] = self._our_own(event_id)

    def _look_at_list(self) -> None:
        """Ask which dispatches there are, and fetch what is not known of them. What is not listed is not over for that."""
        try:
            found = pointers.listed(
                parse(self._get(self._source, address_of(self._source, self._source.list_url))), self._clock.now()
            )
        except GridshiftError as error:
            self._list_tries, self._list_wrong = self._list_tries + 1, str(error)
            return
        self._list_tries = 0
        with self._changed:
            known = self._intake.held(self._source.name).keys() | self._hints.keys()
            self._listed = {event_id: version for event_id, version in self._listed.items() if event_id in found}
            for event_id, version in found.items():
                if event_id in known or (event_id in self._listed and self._listed[event_id] == version):
                    continue
                if len(self._hints) >= MOST:
                    break  # the next time
                self._listed[event_id] = version
                self._hints[event_id] = self._our_own(event_id)

    def _our_own(self, event_id: str) -> _Hint:
        pointer = {"event": {"name": "poll"}, "resource": f"/{event_id}"}
        return _Hint(f"{self._source.url}/{quote(event_id, safe='')}", pointer, ours=True)

    def _try(self, event_id: str, hint: _Hint) -> None:
        if len(self._fetched_at) > 10 * MOST:
            self._fetched_at.clear()
        self._fetched_at[event_id] = self._mono()
        try:
            answers = self._intake.take(self._source.name, self._fetched(hint))
            refused = next((a for a in answers if a.state is State.REJECTED), None)
            wrong = "" if refused is None else f"what was fetched is refused: {refused.code}: {refused.message}"
            self._done(event_id, hint)
            if wrong:
                log.warning("%s: dispatch %s: %s", self._source.name, event_id, wrong)
            return
        except NotFetched as error:
            gone = error.never or (error.status == 404 and hint.tries + 1 >= TELL_AFTER)
            if gone and event_id not in self._intake.held(self._source.name):
                log.warning("%s: dispatch %s: %s; given up", self._source.name, event_id, error)
                self._done(event_id, hint)
                return
            wrong = str(error)
        except GridshiftError as error:
            wrong = str(error)
        with self._changed:
            hint.tries += 1
            hint.wrong = wrong
            hint.due = self._mono() + _AGAIN_S[min(hint.tries, len(_AGAIN_S)) - 1]

    def _fetched(self, hint: _Hint) -> Message:
        body = self._get(self._source, hint.url)
        try:
            dispatch = parse(body)
        except BadInput as error:
            raise NotFetched(f"what is fetched is no JSON: {error}") from None
        read = pointers.read({"webhook": hint.pointer, "fetched": dispatch}, self._intake.context(self._source.name))
        # What its sender answers is the truth, and that it answers the same again is nothing to remark on.
        items = tuple(replace(item, polled=True) if isinstance(item, DrEvent) else item for item in read.items)
        return replace(read, items=items, listing=True)

    def _done(self, event_id: str, hint: _Hint) -> None:
        with self._changed:
            if self._hints.get(event_id) is hint:
                del self._hints[event_id]
                if not hint.ours:
                    self._keep()

    def alarms(self, _: datetime) -> Iterator[tuple[str, str | None, str]]:
        """(key, region, sentence) for each dispatch that cannot be fetched, and for a list that cannot."""
        if self._list_tries >= TELL_AFTER:
            sentence = f"{self._source.name}: its list of dispatches cannot be fetched ({self._list_wrong}); only webhooks tell"
            yield f"hint list {self._source.name}", self._source.region, f"{sentence} of new ones"
        for event_id, hint in list(self._hints.items()):
            if hint.tries >= TELL_AFTER:
                held = event_id in self._intake.held(self._source.name)
                stays = "what is held of it stays in force" if held else "nothing is known of it yet"
                sentence = f"{self._source.name}: dispatch {event_id} cannot be fetched ({hint.wrong}); {stays}"
                yield f"hint {self._source.name} {event_id}", self._source.region, sentence
