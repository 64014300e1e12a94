"""Reports on their way to a VTN: planned from the events that are held, sent when due, again until taken, over restarts.

It knows no readings (`ven3_reports` does) and no thread: whoever owns it calls it from one.
"""

import json
import logging
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from dispatcher.dr.model import DrEvent, iso
from dispatcher.dr.ven3_reports import LATE_S, Planned, Teller, plan_from, plan_json, replanned
from dispatcher.dr.vtn_client import VtnClient, VtnError

log = logging.getLogger(__name__)

#: Reports sent in one go, so that a backlog does not keep the VEN from polling.
AT_ONCE = 20
#: The first wait before another try, and the longest, seconds.
RETRY_S, RETRY_MOST_S = 5.0, 300.0
#: How soon a report whose readings are not all in is looked at again, seconds.
_LOOK_AGAIN_S = 5.0
#: A VTN that forbids it is asked again after this, seconds: somebody may give us the right.
_FORBIDDEN_S = 3600.0
#: Answers that will not change when the same report is sent again.
_FINAL = (400, 404, 405, 413, 415, 422, 501)
#: For how long what was sent is remembered: longer than the events are held that ask for it.
_KEEP = timedelta(days=20)
_TELL = timedelta(hours=24)


class Settings(Protocol):
    """What it needs of the store."""

    def setting(self, key: str) -> str | None:
        """A value, or None."""
        ...

    def set_setting(self, key: str, value: str) -> "Future[None]":
        """Store one."""
        ...


class Outbox:
    """See the module. ``send`` and ``plan`` raise StoreUnavailable."""

    def __init__(self, teller: Teller, client: VtnClient, settings: Settings) -> None:
        self._teller, self._client, self._settings = teller, client, settings
        self._key = f"openadr3.reports.{teller.source}"
        self._waiting: dict[tuple[str, str], Planned] = {}
        self._sent: dict[tuple[str, str], datetime] = {}
        self._trouble: tuple[datetime, str] | None = None
        self._read()
        #: What was waiting before this process may have reached the VTN already.
        self._inherited = set(self._waiting)

    def _read(self) -> None:
        try:
            kept = json.loads(self._settings.setting(self._key) or "{}")
            plans = [plan_from(one) for one in kept.get("waiting", [])]
            self._sent = {(e, n): datetime.fromisoformat(at) for e, n, at in kept.get("sent", [])}
        except (ValueError, TypeError, AttributeError) as error:
            log.warning(
                "reports of %s that were on their way cannot be read and are planned anew: %s", self._teller.source, error
            )
            return
        self._waiting = {plan.key: plan for plan in plans}

    def _write(self) -> None:
        kept = {
            "waiting": [plan_json(plan) for plan in self._waiting.values()],
            "sent": [[e, n, iso(at)] for (e, n), at in self._sent.items()],
        }
        self._settings.set_setting(self._key, json.dumps(kept, separators=(",", ":"))).result()

    @property
    def waiting(self) -> int:
        """How many reports are due now or later."""
        return len(self._waiting)

    @property
    def sent_count(self) -> int:
        """How many were taken, of those that are remembered."""
        return len(self._sent)

    @property
    def problem(self) -> str | None:
        """What went wrong last, within a day."""
        return self._trouble[1] if self._trouble is not None else None

    def plan(self, held: Iterable[DrEvent], now: datetime) -> None:
        """Look at the events that are held, and plan what they ask for."""
        waiting = replanned(self._waiting, self._sent, held, now)
        sent = {key: at for key, at in self._sent.items() if now - at < _KEEP}
        if self._trouble is not None and now - self._trouble[0] > _TELL:
            self._trouble = None
        if waiting != self._waiting or sent != self._sent:
            self._waiting, self._sent = waiting, sent
            self._write()

    def next_in_s(self, now: datetime) -> float:
        """Seconds until something may be sent."""
        times = [max(plan.due, plan.not_before or plan.due) for plan in self._waiting.values() if plan.due is not None]
        return max(0.0, (min(times) - now).total_seconds()) if times else 3600.0

    def send(self, now: datetime) -> None:
        """Send what is due. A failure is tried again later."""
        due = [p for p in self._waiting.values() if p.due is not None and max(p.due, p.not_before or p.due) <= now]
        for plan in sorted(due, key=lambda p: p.due or now)[:AT_ONCE]:
            report = self._teller.report(plan, now)
            if not report.whole and plan.due is not None and (now - plan.due).total_seconds() < LATE_S:
                self._waiting[plan.key] = replace(plan, not_before=now + timedelta(seconds=_LOOK_AGAIN_S))
                continue
            try:
                if not ((plan.tries or plan.key in self._inherited) and self._is_there(plan)):
                    self._client.create("/reports", report.body)
            except VtnError as error:
                if not self._failed(plan, error, now):
                    break
                continue
            self._done(plan, now)
            self._trouble = None

    def _done(self, plan: Planned, now: datetime) -> None:
        self._waiting.pop(plan.key, None)
        self._sent[plan.key] = now
        self._write()

    def _failed(self, plan: Planned, error: VtnError, now: datetime) -> bool:
        """Note a failure; False when the VTN cannot be reached, so that the others need not be tried now."""
        said = f"report {plan.name} of event {plan.event_id}: {error}"
        if error.status == 409:  # the same report is there
            self._done(plan, now)
            return True
        if error.status in _FINAL:
            log.warning("%s: %s; it is not sent again", self._teller.source, said)
            if error.status != 404:  # an event that its VTN deleted needs none
                self._trouble = (now, f"{said}; it is not sent again")
            self._done(plan, now)
            return True
        wait_s = _FORBIDDEN_S if error.status == 403 else min(RETRY_MOST_S, RETRY_S * 2.0 ** min(plan.tries, 10))
        wait_s = max(wait_s, error.retry_after_s or 0.0)
        self._waiting[plan.key] = replace(plan, tries=plan.tries + 1, not_before=now + timedelta(seconds=wait_s))
        self._trouble = (now, f"{said}; tried again")
        return error.status is not None

    def _is_there(self, plan: Planned) -> bool:
        """Whether a report whose sending was not answered has come all the same."""
        query = [("eventID", plan.event_id), ("clientName", self._teller.client_name)]
        return any(item.get("reportName") == plan.name for item in self._client.all("/reports", query).items)
