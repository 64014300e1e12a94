"""What VENs of all OpenADR versions share: a thread that polls, how the VEN stands, and how long it waits after failures.

It speaks no protocol: what a poll is, and when the next one is due, is each VEN's own.
"""

import logging
import random
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from dispatcher.clock import Clock
from dispatcher.config_events import EventSourceConfig
from dispatcher.dr.ledger import Ledger
from dispatcher.dr.model import Answer, Message
from dispatcher.dr.openadr3 import Context
from dispatcher.dr.ven3_state import VenState, alarms_of
from dispatcher.dr.vtn_client import VtnClient

log = logging.getLogger(__name__)

#: The first wait after a failure, and the longest, seconds; they double in between.
BACK_OFF_S, BACK_OFF_MOST_S = 2.0, 60.0
#: Waits differ by this share, so that many sites do not come at the same moment.
JITTER = 0.1
#: A class of response this fast, in seconds, cannot be kept with a wrong clock.
FAST_S = 30.0
#: For how long what nobody announced must stand before it is a release, seconds.
GONE_S = 5.0
#: How long reports rest after something that should not happen, seconds.
REST_S = 60.0


class Intake(Protocol):
    """What a VEN needs of `intake.EventIntake`."""

    def context(self, source_name: str) -> Context:
        """What a message is read against."""
        ...

    def take(
        self,
        source_name: str,
        message: Message,
        *,
        complete_listing: bool = False,
        message_id: str | None = None,
        raw: str = "",
    ) -> list[Answer]:
        """Take a message durably."""
        ...

    def held(self, source_name: str) -> Ledger:
        """Events as they are held."""
        ...


class Settings(Protocol):
    """What a VEN needs of the store: small values that outlive the process."""

    def setting(self, key: str) -> str | None:
        """A value, or None."""
        ...

    def set_setting(self, key: str, value: str) -> "Future[None]":
        """Store one."""
        ...


class Reports(Protocol):
    """What a VEN tells of its reports."""

    @property
    def waiting(self) -> int:
        """Reports that wait to be taken."""
        ...

    @property
    def sent_count(self) -> int:
        """Reports that the VTN has taken."""
        ...

    @property
    def problem(self) -> str | None:
        """Why reports are not taken; None while they are."""
        ...


class Ven:
    """A VEN in a thread of its own between `start` and `stop`; what that does is ``_run``."""

    _outbox: Reports

    def __init__(self, source: EventSourceConfig, intake: Intake, settings: Settings, clock: Clock, client: VtnClient) -> None:
        self.source = source
        self._intake, self._settings, self._clock, self._client = intake, settings, clock, client
        self._name = source.ven_name or f"gridshift-{source.name}"
        self._started_at = clock.now()
        self._lock, self._wake, self._stopping = threading.Lock(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._state = VenState(
            source.name, source.protocol, source.url, None, None, 0, "not polled yet", None, 0, (), None, "none", None, 0, 0,
            None, None, (),
        )  # fmt: skip

    def start(self) -> None:
        """Poll from now on."""
        self._thread = threading.Thread(target=self._run, name=f"ven-{self.source.name}", daemon=True)
        self._thread.start()

    def halt(self) -> None:
        """Begin no more polls."""
        self._stopping.set()
        self._wake.set()

    def stop(self, limit_s: float = 5.0) -> None:
        """Poll no more; what is under way may finish for ``limit_s``."""
        self.halt()
        if self._thread is not None:
            self._thread.join(limit_s)
        self._client.close()

    def _run(self) -> None:
        raise NotImplementedError

    @property
    def _pace_s(self) -> float:
        """Seconds between two polls."""
        return self.source.poll_every_s

    def _is_too_skewed(self) -> bool:
        """Whether the VTN's clock and ours are too far apart to keep a promise of seconds."""
        offset_s = self._client.offset_s
        return self.source.response_s <= FAST_S and offset_s is not None and abs(offset_s) > self.source.max_skew_s

    def _failed(self, problem: str, now: datetime) -> None:
        if self._state.problem != problem:
            log.warning("event source %s: %s", self.source.name, problem)
        with self._lock:
            self._state = replace(
                self._state, polled_at=now, failures=self._state.failures + 1, problem=problem, offset_s=self._client.offset_s
            )

    def _back_off_s(self, asked_s: float | None) -> float:
        """Seconds to wait after a failure; ``asked_s`` is how long the VTN asked for at least."""
        doubled = BACK_OFF_S * 2.0 ** min(self._state.failures - 1, 16)
        # Who has promised seconds looks again within seconds.
        most_s = max(self._pace_s, min(BACK_OFF_MOST_S, self.source.response_s))
        return max(min(doubled, most_s) * random.uniform(1 - 2 * JITTER, 1.0), asked_s or 0.0)

    def state(self) -> VenState:
        """How it stands. Cheap."""
        with self._lock:
            return replace(
                self._state,
                reports_waiting=self._outbox.waiting,
                reports_sent=self._outbox.sent_count,
                report_problem=self._outbox.problem,
            )

    def alarms(self, now: datetime) -> Iterator[tuple[str, str | None, str]]:
        """(key, region, sentence) of what an operator must know."""
        return alarms_of(self.state(), self.source, self._started_at, now)
