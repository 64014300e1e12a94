"""Signed webhooks (Standard Webhooks), and our own body for a limit: who sent it is proved before anything of it is read.

A file holds the headers and the body as they came: JSON ``{"headers": {..}, "body": "text"}``, or the text of the HTTP request.
Our own body is read by the API's own reader. Sources: Standard Webhooks 1.0.
"""

import base64
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from standardwebhooks import Webhook

from dispatcher.api.grid_events import event_from
from dispatcher.dr import openadr3, pointers
from dispatcher.dr.model import Answer, DrEvent, Message, Notes, Refused, Segment, json_of, refusal, shown, span
from dispatcher.dr.openadr3 import Context
from dispatcher.dr.signed_events import read_signed_event
from dispatcher.errors import BadInput
from dispatcher.webhook_secrets import checker

#: How far a message's time may lie from ours.
TOLERANCE = timedelta(minutes=5)
_BODY_KEYS = ("body", "raw_body", "body_raw", "raw", "payload")
_BASE64_KEYS = ("body_b64", "body_base64", "raw_body_b64", "raw_body_base64")


@dataclass(frozen=True, slots=True)
class Delivery:
    """A webhook as it came: headers by lower-case name, and the texts its body may have been (a file may have rewritten it)."""

    headers: Mapping[str, str]
    bodies: tuple[str, ...]


def verifiers(secrets: Sequence[str]) -> list[Webhook]:
    """The checkers of secrets. Raises BadInput for one that is no base64 of at least 16 bytes."""
    try:
        return [checker(secret) for secret in secrets]
    except ValueError as error:
        raise BadInput([("secret", "(not shown)", str(error))]) from None


# --- Standard Webhooks ----------------------------------------------------------------------------------------------


def read_signed(body: bytes, checkers: Sequence[Webhook], context: Context) -> Message:
    """The event of a signed webhook. Raises Refused where the signature does not prove its sender."""
    delivery = delivered(body)
    message_id, sent_at, text = proved(delivery, checkers, None if context.earlier else context.now)
    at = min(context.now, sent_at) if context.earlier else context.now
    data = json_of(text.encode())
    return replace(content(data, replace(context, now=at, earlier=False)), message_id=message_id)


def content(data: Any, context: Context) -> Message:
    """A proved body in whichever of the shapes that are sent signed."""
    if pointers.is_pointer(data):
        return pointers.read(data, context)
    if isinstance(data, dict) and str(data.get("type", "")).startswith("power_budget"):
        return read_native(data, context)
    inner = data.get("data") if isinstance(data, dict) else None
    for candidate in (data, inner):
        if isinstance(candidate, dict) and ("object" in candidate or {"intervals", "programID"} <= candidate.keys()):
            return openadr3.read(candidate, openadr3.V31, context)
    return Message((read_signed_event(data, context),))


def delivered(body: bytes) -> Delivery:
    """The headers and the body in a file. Raises Refused."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused("bad_json", f"body: byte {error.start}: must be UTF-8 text") from None
    if not text.lstrip().startswith(("{", "[")):
        head, blank, rest = text.replace("\r\n", "\n").partition("\n\n")
        lines = [line.partition(":") for line in head.split("\n")]
        headers = {name.strip().lower(): value.strip() for name, colon, value in lines if colon}
        if not blank or not any(name.startswith("webhook-") for name in headers):
            raise Refused("bad_json", "file: must be JSON with headers and body, or the text of an HTTP request")
        return Delivery(headers, tuple(dict.fromkeys((rest, rest.rstrip("\n")))))
    data = json_of(body)
    if isinstance(data, dict) and isinstance(data.get("request"), dict):
        data = data["request"]
    given = data.get("headers") if isinstance(data, dict) else None
    if isinstance(data, dict) and given is None and "webhook-id" in data:
        given = data
    if not isinstance(data, dict) or not isinstance(given, dict):
        raise Refused(
            "unsigned", "headers: missing: the file must hold the webhook's headers and body; unsigned, nothing of it is used"
        )
    headers = {str(name).lower(): str(value) for name, value in given.items() if isinstance(value, str | int)}
    return Delivery(headers, _bodies(data))


def _bodies(data: Mapping[str, Any]) -> tuple[str, ...]:
    for key in _BASE64_KEYS:
        if isinstance(data.get(key), str):
            try:
                return (base64.b64decode(data[key], validate=True).decode("utf-8"),)
            except (ValueError, UnicodeDecodeError):
                raise Refused("bad_field", f"{key}: must be base64 of UTF-8 text") from None
    for key in _BODY_KEYS:
        value = data.get(key)
        if isinstance(value, str):
            return (value,)
        if isinstance(value, dict | list):
            # The text that was signed is gone: one of the usual ways to write the same JSON may be it.
            ways: list[dict[str, Any]] = [{"separators": (",", ":")}, {}, {"indent": 1}, {"indent": 2}]
            return tuple(json.dumps(value, ensure_ascii=ascii_only, **way) for way in ways for ascii_only in (False, True))
    raise Refused("missing_field", f"body: missing: must be the text of the body, under one of {', '.join(_BODY_KEYS)}")


def proved(delivery: Delivery, checkers: Sequence[Webhook], now: datetime | None) -> tuple[str, datetime, str]:
    """(message id, when it was sent, body) of a delivery that one of the secrets signed. Raises Refused.

    ``now`` None: it came earlier, and how late is not known. The library's own check looks at the machine's clock and stops
    at the first signature it cannot parse; so it signs, and the comparison is ours.
    """
    message_id, stamp, signatures = (delivery.headers.get(f"webhook-{name}") for name in ("id", "timestamp", "signature"))
    if not (message_id and stamp and signatures):
        raise Refused(
            "unsigned", "headers: webhook-id, webhook-timestamp and webhook-signature must be given; unsigned, nothing is used"
        )
    if not checkers:
        raise Refused("no_secret", "secret: missing: give --secret; who sent it is not proved, so nothing of it is used")
    if not stamp.isascii() or not stamp.isdigit() or len(stamp) > 12:
        raise Refused("bad_time", f"webhook-timestamp: {shown(stamp)}: must be seconds since 1970")
    try:
        sent_at = datetime.fromtimestamp(int(stamp), UTC)
    except (OverflowError, ValueError, OSError):
        raise Refused("bad_time", f"webhook-timestamp: {shown(stamp)}: must be seconds since 1970") from None
    given = [item.partition(",")[2] for item in signatures.split() if item.startswith("v1,")]
    found = None
    for text in delivery.bodies:
        for known in checkers:
            wanted = known.sign(message_id, sent_at, text).partition(",")[2]
            fits = [hmac.compare_digest(wanted.encode(), one.encode()) for one in given]  # all of them: time must tell nothing
            found = text if any(fits) else found
    if found is None:
        raise Refused(
            "bad_signature", "webhook-signature: does not fit: check the secret, and that the body is as it was signed"
        )
    if now is not None and abs(now - sent_at) > TOLERANCE:
        off = (now - sent_at).total_seconds()
        raise Refused(
            "bad_timestamp", f"webhook-timestamp: {off:+g} s from now: at most {TOLERANCE.total_seconds():g} s are accepted"
        )
    return message_id, sent_at, found


# --- our own body ---------------------------------------------------------------------------------------------------


def read_native(data: Any, context: Context) -> Message:
    """Our own body, as POST /v1/events and /v1/webhooks take it: one, or a list of them."""
    if isinstance(data, dict) and isinstance(data.get("events"), list):
        data = data["events"]
    if isinstance(data, list):
        return Message(tuple(_native(item, context) for item in data), listing=True)
    return Message((_native(data, context),))


def _native(data: Any, context: Context) -> DrEvent | Answer:
    event_id: str | None = None
    try:
        kind = data.get("type") if isinstance(data, dict) else None
        inner = data.get("data") if kind is not None and isinstance(data, dict) else data
        event_id = inner.get("event_id") if isinstance(inner, dict) and isinstance(inner.get("event_id"), str) else None
        if kind not in (None, "power_budget", "power_budget.cancelled"):
            raise Refused("bad_field", f"type: {shown(kind)}: must be 'power_budget' or 'power_budget.cancelled'")
        if kind == "power_budget.cancelled":
            version = inner.get("version") if isinstance(inner, dict) else None
            if event_id is None or isinstance(version, bool) or not isinstance(version, int | None):
                raise Refused("bad_field", f"data: {shown(inner)}: must be an object with the event_id, and perhaps a version")
            return DrEvent("native", event_id, version, context.now, cancelled=True, final=version is None, counted=True)
        return _limit(inner, context)
    except Refused as error:
        return refusal(error, event_id, "native")


def _limit(data: Any, context: Context) -> DrEvent:
    # Which regions there are is the control plane's business: any name will do here, and a file without one means the site's.
    region = data.get("region", context.terms.site.name or "site") if isinstance(data, dict) else None
    branch = data.get("branch") if isinstance(data, dict) else None
    regions = {region: [branch] if isinstance(branch, str) else []} if isinstance(region, str) and region else {}
    given = {**data, "region": region} if isinstance(data, dict) else data
    late = False
    try:
        try:
            event, version = event_from(given, "native", regions, context.now)
        except BadInput as error:
            late = [problem[0] for problem in error.problems] == ["end"] and "has passed" in error.problems[0][2]
            if not late:
                raise
            begun = datetime.fromisoformat(data.get("start") or data["end"])  # read as it would have been then
            event, version = event_from(given, "native", regions, span(begun.astimezone(UTC), -1.0))
    except BadInput as error:
        raise Refused("bad_field", str(error)) from None
    notes = Notes()
    if "region" not in data:
        notes.add("region: missing: the control plane wants one; read for this site")
    reason = event.reason or "limit"
    start = event.start if not late or data.get("start") is not None else None
    return DrEvent(
        source="native",
        event_id=event.event_id,
        version=version,
        received_at=context.now,
        start=start,
        end=event.end,
        segments=()
        if late
        else tuple(
            Segment(s.start, s.end, s.limit_w, s.interval_id, None, s.reason or reason, emergency=s.emergency)
            for s in event.steps
        ),
        test=event.test,
        counted=True,
        body=json.dumps(data, sort_keys=True, default=str),
        warnings=notes.all(),
    )
