"""Manners towards providers: not too often, not again what has not changed, not at all while it fails or asks for peace.

It keeps what must be remembered between requests, for each host, and is safe to share between threads; it sends nothing and
never sleeps: who asks is told how long to wait. Nothing here outlives the process, and no secret is kept except sessions'
tokens, which only ``token`` gives out.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Literal

from signals.feeds.base import ACCESS, FeedError

#: So many failures in a row and a host is left alone, at first for OPEN_FIRST_S, then doubling to OPEN_MOST_S.
FAILURES_TO_OPEN = 5
OPEN_FIRST_S, OPEN_MOST_S = 60.0, 3600.0
#: A provider that asks for more peace than this is asked again after it all the same.
PEACE_MOST_S = 86400.0
#: Clocks that differ by more than this are worth a word.
SKEW_S = 300.0
#: Answers remembered for conditional requests; windows move on, so old ones are of no use.
_VALIDATORS_KEPT = 1024

State = Literal["ok", "failing", "left alone", "trying"]


@dataclass(frozen=True, slots=True)
class Validators:
    """What a provider said of an answer, to be sent back so that it need not be sent again."""

    etag: str | None = None
    last_modified: str | None = None

    def headers(self) -> dict[str, str]:
        """The request headers that make a request conditional."""
        asked = {"If-None-Match": self.etag, "If-Modified-Since": self.last_modified}
        return {name: value for name, value in asked.items() if value is not None}


@dataclass(frozen=True, slots=True)
class HostStatus:
    """How one host stands. ``until`` is when it may be asked again (None: now), ``last_error`` why it failed last,
    ``skew_s`` how far its clock is ahead of ours, ``unchanged`` how many of the ``asked`` requests brought nothing new."""

    host: str
    state: State
    failures: int
    until: datetime | None
    last_error: str | None
    skew_s: float | None
    asked: int
    unchanged: int


class _Host:
    """What is remembered of one host; times are monotonic seconds."""

    def __init__(self) -> None:
        self.next_at = 0.0  # when the next request may go
        self.peace_until = 0.0  # the provider asked for it, or it failed too often
        self.asked_for_peace = False
        self.opened = 0  # how often in a row it was left alone
        self.trying = False  # one request is out to see whether it works again
        self.failures = 0
        self.last_error: str | None = None
        self.skew_s: float | None = None
        self.asked = 0
        self.unchanged = 0


class Manners:
    """The memory behind polite requests. ``monotonic`` measures waiting, ``wall`` says times of day (aware UTC)."""

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._monotonic, self._wall = monotonic, wall
        self._lock = threading.Lock()
        self._hosts: dict[str, _Host] = {}
        self._validators: OrderedDict[tuple[str, str], Validators] = OrderedDict()
        self._tokens: dict[str, tuple[str, float]] = {}
        self._logins: dict[str, threading.Lock] = {}

    # --- whether and when ---------------------------------------------------------------------------------------------

    def turn(self, host: str, pace_s: float) -> float:
        """Take the next turn at ``host`` and return how many seconds to wait for it.

        Raises FeedError (access), at once, while the host is left alone. Whoever took a turn must tell how it went:
        ``went_well``, ``failed`` or ``gave_up``.
        """
        with self._lock:
            known = self._hosts.setdefault(host, _Host())
            now = self._monotonic()
            self._refuse(host, known, now)
            if known.opened:  # it was left alone, and that time is over: one request shows whether it works again
                known.trying = True
            at = max(now, known.next_at)
            known.next_at = at + pace_s
            known.asked += 1
            return at - now

    def check(self, host: str) -> None:
        """Raise FeedError (access) while the host is left alone; takes no turn."""
        with self._lock:
            known = self._hosts.get(host)
            if known is not None:
                self._refuse(host, known, self._monotonic())

    def _refuse(self, host: str, known: _Host, now: float) -> None:
        if now >= known.peace_until and not known.trying:
            return
        if now < known.peace_until and known.asked_for_peace:
            raise FeedError(ACCESS, f"{host} asks not to be asked until {self._clock(known.peace_until)}: {known.last_error}")
        until = f"until {self._clock(known.peace_until)}" if now < known.peace_until else "while one request tries it again"
        why = f"{known.failures} failures in a row, last: {known.last_error}"
        raise FeedError(ACCESS, f"{host} is left alone {until}: {why}")

    def wait_s(self, host: str) -> float:
        """Seconds until the host may be asked again; 0 when it may now."""
        with self._lock:
            known = self._hosts.get(host)
            return 0.0 if known is None else max(known.peace_until - self._monotonic(), 0.0)

    def postpone(self, host: str, wait_s: float) -> None:
        """Let the host's next turn come no sooner than ``wait_s`` from now: it asked for a short pause."""
        with self._lock:
            known = self._hosts.setdefault(host, _Host())
            known.next_at = max(known.next_at, self._monotonic() + wait_s)

    def leave_alone(self, host: str, wait_s: float, why: str) -> None:
        """Refuse all turns at the host for ``wait_s``: it asked for a long pause."""
        with self._lock:
            known = self._hosts.setdefault(host, _Host())
            known.peace_until = max(known.peace_until, self._monotonic() + min(wait_s, PEACE_MOST_S))
            known.asked_for_peace, known.last_error = True, why
            known.trying = False  # the trial is over: after the pause there is another

    def went_well(self, host: str, *, unchanged: bool = False) -> None:
        """The host answered, whatever it said."""
        with self._lock:
            known = self._hosts.setdefault(host, _Host())
            known.failures, known.opened, known.trying = 0, 0, False
            known.unchanged += unchanged
            if not (known.asked_for_peace and self._monotonic() < known.peace_until):
                known.peace_until, known.asked_for_peace, known.last_error = 0.0, False, None

    def failed(self, host: str, why: str) -> None:
        """The host did not answer, or only that it cannot. After FAILURES_TO_OPEN in a row it is left alone for a while."""
        with self._lock:
            known = self._hosts.setdefault(host, _Host())
            known.failures += 1
            known.last_error = why
            if known.trying or known.failures >= FAILURES_TO_OPEN:
                # Requests that were under way when it was first left alone fail too; that says nothing new.
                if known.trying or not known.opened:
                    open_s = min(OPEN_FIRST_S * 2 ** min(known.opened, 10), OPEN_MOST_S)
                    now = self._monotonic()
                    known.asked_for_peace = known.asked_for_peace and now < known.peace_until
                    known.peace_until = max(known.peace_until, now + open_s)
                    known.opened += 1
                known.trying = False

    def gave_up(self, host: str) -> None:
        """A turn was taken and nothing was learned by it (the asking was broken off)."""
        with self._lock:
            known = self._hosts.get(host)
            if known is not None:
                known.trying = False

    def _clock(self, at: float) -> str:
        when = self._wall() + timedelta(seconds=at - self._monotonic())
        return f"{when:%H:%M}Z" if when.date() == self._wall().date() else f"{when:%Y-%m-%d %H:%M}Z"

    # --- what was said before -----------------------------------------------------------------------------------------

    def validators(self, owner: str, request: str) -> Validators | None:
        """What ``remember`` was told of this request of this owner."""
        with self._lock:
            found = self._validators.get((owner, request))
            if found is not None:
                self._validators.move_to_end((owner, request))
            return found

    def remember(self, owner: str, request: str, validators: Validators | None) -> None:
        """Keep what was said of an answer that was understood. ``owner`` is who keeps the answer's points, ``request`` its
        identity: an answer that another owner got must not be passed over."""
        if validators is None or not validators.headers():
            return
        with self._lock:
            self._validators[(owner, request)] = validators
            self._validators.move_to_end((owner, request))
            while len(self._validators) > _VALIDATORS_KEPT:
                self._validators.popitem(last=False)

    def forget(self, owner: str) -> None:
        """Ask for everything again: what this owner got could not be kept."""
        with self._lock:
            for key in [key for key in self._validators if key[0] == owner]:
                del self._validators[key]

    # --- sessions -----------------------------------------------------------------------------------------------------

    @contextmanager
    def login(self, key: str) -> Iterator[None]:
        """Only one of those who need the same session logs in; the others wait and then find its token."""
        with self._lock:
            lock = self._logins.setdefault(key, threading.Lock())
        with lock:
            yield

    def token(self, key: str) -> str | None:
        """The live session's token, None when there is none or it is too old."""
        with self._lock:
            token, until = self._tokens.get(key, ("", 0.0))
            return token if token and self._monotonic() < until else None

    def keep_token(self, key: str, token: str, ttl_s: float) -> None:
        """Keep a session's token for ``ttl_s``."""
        with self._lock:
            self._tokens[key] = (token, self._monotonic() + ttl_s)

    def drop_token(self, key: str, token: str) -> None:
        """The provider refuses this token; a newer one stays."""
        with self._lock:
            if self._tokens.get(key, ("", 0.0))[0] == token:
                del self._tokens[key]

    # --- clocks -------------------------------------------------------------------------------------------------------

    def skew(self, host: str, date: str | None, age: str | None = None) -> str | None:
        """A sentence when the host's ``Date`` header and our clock differ by more than SKEW_S, else None.

        ``age`` is the header Age: a cache passes on an answer of so many seconds ago.
        """
        theirs = http_date(date)
        if theirs is None:
            return None
        if age is not None and age.strip().isdigit():
            theirs += timedelta(seconds=min(int(age.strip()), 7 * 86400))
        ahead_s = (theirs - self._wall()).total_seconds()
        with self._lock:
            self._hosts.setdefault(host, _Host()).skew_s = ahead_s
        if abs(ahead_s) <= SKEW_S:
            return None
        return f"our clock is {_roughly(abs(ahead_s))} {'behind' if ahead_s > 0 else 'ahead of'} {host}'s"

    def retry_after_s(self, value: str | None) -> float | None:
        """How many seconds a ``Retry-After`` header asks for, given in seconds or as a date; None when it says nothing."""
        if value is None:
            return None
        if value.strip().isdigit():
            return float(min(int(value.strip()), 10**9))
        when = http_date(value)
        return None if when is None else max((when - self._wall()).total_seconds(), 0.0)

    # --- telling ------------------------------------------------------------------------------------------------------

    def status(self) -> list[HostStatus]:
        """Every host that was asked, by name."""
        with self._lock:
            now, wall = self._monotonic(), self._wall()
            return [
                HostStatus(
                    host,
                    "trying" if h.trying else "left alone" if now < h.peace_until else "failing" if h.failures else "ok",
                    h.failures,
                    wall + timedelta(seconds=h.peace_until - now) if now < h.peace_until else None,
                    h.last_error,
                    h.skew_s,
                    h.asked,
                    h.unchanged,
                )
                for host, h in sorted(self._hosts.items())
            ]


def http_date(value: str | None) -> datetime | None:
    """A date of an HTTP header as aware UTC; None when it is none."""
    try:
        when = parsedate_to_datetime(value or "")
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)


def _roughly(seconds: float) -> str:
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * length or unit == "min":
            return f"{round(seconds / length)} {unit}"
    return f"{seconds:.0f} s"
