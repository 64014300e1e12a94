"""Reports of an OpenADR 2.0b VEN on their way: offered to the VTN, asked for by it, sent when due, over restarts of both sides.

It knows no readings' source and no thread: whoever owns it calls it from one.
"""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import uuid4

from dispatcher.dr import ven2_messages as xml
from dispatcher.dr.safe_xml import Element
from dispatcher.dr.ven2_client import Vtn2Client, VtnRefused
from dispatcher.dr.ven2_messages import request_id_of
from dispatcher.dr.ven2_reports import (
    Request,
    joined,
    register_report,
    report,
    request_from,
    request_json,
    requests_in,
    update_report,
)
from dispatcher.dr.ven3_outbox import Settings
from dispatcher.dr.ven3_reports import LATE_S, Readings
from dispatcher.dr.vtn_client import VtnError

log = logging.getLogger(__name__)

#: A VTN that does not take our offer is asked again after this, seconds.
OFFER_AGAIN_S = 600.0
#: Reports sent in one go, the first wait after a failure, and the longest, seconds.
AT_ONCE, RETRY_S, RETRY_MOST_S = 20, 5.0, 300.0
#: How soon a report whose readings are not all in is looked at again, seconds.
_LOOK_AGAIN_S = 5.0
_TELL = timedelta(hours=24)


class Outbox2:
    """See the module. Its methods raise StoreUnavailable, and only `offer` and `send` speak to the VTN at length; what goes
    wrong is ``problem`` and stops no poll."""

    def __init__(
        self,
        source: str,
        resource: str,
        readings: Readings,
        client: Vtn2Client,
        settings: Settings,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._resource, self._readings = source, resource, readings
        self._client, self._settings, self._monotonic = client, settings, monotonic
        self._key = f"openadr2.reports.{source}"
        self._requests = _kept(settings.setting(self._key))
        self._offer_due = float("-inf")
        self._tries, self._not_before = 0, float("-inf")
        self._trouble: tuple[datetime, str] | None = None
        self.sent_count = 0

    @property
    def waiting(self) -> int:
        """How many requests for reports are held."""
        return len(self._requests)

    @property
    def problem(self) -> str | None:
        """What went wrong last, within a day."""
        return self._trouble[1] if self._trouble is not None else None

    # --- what may be asked, and is ------------------------------------------------------------------------------------

    def offer_again(self) -> None:
        """The VTN may have forgotten what we offered and what it asked for."""
        self._offer_due = float("-inf")

    def offer(self, ven_id: str, now: datetime, *, meant: str = "0") -> None:
        """Tell the VTN what it can ask for, where that is due; it may ask in the same breath."""
        if self._trouble is not None and now - self._trouble[0] > _TELL:
            self._trouble = None
        if self._monotonic() < self._offer_due:
            return
        self._offer_due = self._monotonic() + OFFER_AGAIN_S
        try:
            answer, _ = self._client.ask("EiReport", register_report(_id(), ven_id, self._resource, now, meant=meant))
        except VtnError as error:
            self._trouble = (now, f"our reports could not be offered: {error}; tried again")
            return
        self._offer_due = float("inf")
        new, wrong, _ = requests_in(answer, now)
        if new:
            self._hold(joined(self._requests, new, now, anew=True))
            self._confirm("oadrCreatedReport", request_id_of(answer), ven_id)
        self._trouble = (now, wrong[0]) if wrong else None

    def asked(self, message: Element, ven_id: str, now: datetime) -> list[str]:
        """An ``oadrCreateReport``: hold what it asks for, and say so. Returns what is wrong with it."""
        new, wrong, offer = requests_in(message, now)
        self._hold(joined(self._requests, new, now))
        self._confirm("oadrCreatedReport", request_id_of(message), ven_id)
        if offer:
            self.offer_again()
            self.offer(ven_id, now)
        return wrong

    def cancelled(self, message: Element, ven_id: str, now: datetime) -> list[str]:
        """An ``oadrCancelReport``: report what is still to be told where it wants that, and forget it. Returns nothing."""
        ids = {one.text.strip() for one in message.all("reportRequestID")}
        if message.word("reportToFollow") in ("true", "1"):
            for request in [one for one in self._requests if one.request_id in ids and one.told_until < now]:
                last = replace(request, end=now if request.end is None else min(now, request.end))
                body = report(last, self._readings, self._source, now).body
                if body is not None:
                    self._say(update_report(_id(), ven_id, body))
        self._hold(tuple(one for one in self._requests if one.request_id not in ids))
        self._confirm("oadrCanceledReport", request_id_of(message), ven_id)
        return []

    def _confirm(self, name: str, request_id: str, ven_id: str) -> None:
        self._say(xml.pending_reports(name, request_id, ven_id, [one.request_id for one in self._requests]))

    def _say(self, message: bytes) -> None:
        """What need not be taken: it is a courtesy."""
        try:
            self._client.ask("EiReport", message)
        except VtnError as error:
            log.info("%s: %s", self._source, error)

    def _hold(self, requests: tuple[Request, ...]) -> None:
        if requests != self._requests:
            self._requests = requests
            kept = json.dumps([request_json(one) for one in requests], separators=(",", ":"))
            self._settings.set_setting(self._key, kept).result()

    # --- what is due --------------------------------------------------------------------------------------------------

    def send(self, ven_id: str, now: datetime) -> float:
        """Send what is due; returns for how many seconds nothing is."""
        wait_s = self._not_before - self._monotonic()
        if wait_s > 0:
            return wait_s
        for request in [one for one in self._requests if one.due <= now][:AT_ONCE]:
            made = report(request, self._readings, self._source, now)
            if not made.whole and (now - request.due).total_seconds() < LATE_S:
                continue
            if made.body is None:
                self._trouble = (now, f"report {request.request_id[:64]}: nothing is known of what it asks for")
            elif not self._sent(request, update_report(_id(), ven_id, made.body), ven_id, now):
                break
            self._told(request, made.until)
        if self._not_before > self._monotonic():
            return self._not_before - self._monotonic()
        due = min((one.due for one in self._requests), default=None)
        return 3600.0 if due is None else max(_LOOK_AGAIN_S, (due - now).total_seconds())

    def _sent(self, request: Request, message: bytes, ven_id: str, now: datetime) -> bool:
        """Whether a report was taken; False where the others need not be tried now."""
        try:
            answer, _ = self._client.ask("EiReport", message)
        except VtnRefused as error:  # it does not know of it any more: offered anew, it may ask for it anew
            self._trouble = (now, f"report {request.request_id[:64]}: {error}; offered anew")
            self._hold(tuple(one for one in self._requests if one.request_id != request.request_id))
            self.offer_again()
            return True
        except VtnError as error:
            self._trouble = (now, f"report {request.request_id[:64]}: {error}; tried again")
            self._not_before = self._monotonic() + min(RETRY_MOST_S, RETRY_S * 2.0 ** min(self._tries, 10))
            self._tries += 1
            return False
        self._tries, self._trouble = 0, None
        self.sent_count += 1
        for cancel in answer.all("oadrCancelReport"):
            self.cancelled(cancel, ven_id, now)
        return True

    def _told(self, request: Request, until: datetime) -> None:
        later = [replace(o, told_until=until) if o.request_id == request.request_id else o for o in self._requests]
        self._hold(tuple(one for one in later if not one.over))


def _id() -> str:
    return uuid4().hex


def _kept(text: str | None) -> tuple[Request, ...]:
    try:
        return tuple(request_from(one) for one in json.loads(text or "[]"))
    except (ValueError, TypeError) as error:
        log.warning("requests for reports cannot be read; the VTN asks for them anew: %s", error)
        return ()
