"""What an OpenADR 2.0b VTN may ask us to report, which reports are due when, and what stands in them.

Pure: readings and times are given. What is not known is left out, for a payload must have a number. Source: the profile's
schema (TELEMETRY_USAGE).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from dispatcher.dr.model import Notes, Refused, iso, span
from dispatcher.dr.safe_xml import Element
from dispatcher.dr.timing import parse_duration, parse_time
from dispatcher.dr.ven2_messages import at, lasting, leaf, node, payload, ven
from dispatcher.dr.ven3_reports import HALF, WHOLE, Reading, Readings

#: The one report that we offer, and what a request names to hear what we offer.
SPECIFIER, METADATA = "gridshift-usage", "METADATA"
#: Requests held at once, and intervals in one report.
MOST_REQUESTS, MOST_INTERVALS = 50, 1000
#: Seconds of an interval at least, and what a request without one gets.
LEAST_S, USUAL_S = 10.0, 60.0
#: What could not be sent is sent later, for so long.
KEPT = timedelta(hours=24)
_POWER = ("powerReal", "RealPower", "W")
_ENERGY = ("energyReal", "RealEnergy", "Wh")
#: What we offer: report type, reading type, and the quantity.
_OFFERED = {
    "demand": ("demand", "Mean", _POWER),
    "usage": ("usage", "Summed", _ENERGY),
    "baseline": ("baseline", "Mean", _POWER),
}


@dataclass(frozen=True, slots=True)
class Request:
    """A report that a VTN asked for: every ``back_s`` one with the intervals of ``step_s`` since ``told_until``; until ``end``
    (None: until it is cancelled)."""

    request_id: str
    wanted: tuple[str, ...]
    step_s: float
    back_s: float
    told_until: datetime
    end: datetime | None

    @property
    def due(self) -> datetime:
        """When its next report can be made."""
        later = span(self.told_until, self.back_s)
        return later if self.end is None else min(later, self.end)

    @property
    def over(self) -> bool:
        """Whether nothing more is to be reported."""
        return self.end is not None and self.told_until >= self.end


# --- what we offer ------------------------------------------------------------------------------------------------


def register_report(request_id: str, ven_id: str, resource: str, now: datetime, *, meant: str = "0") -> bytes:
    """Tells a VTN what it can ask for. ``meant``: the request that asked for it, "0" for none."""
    described = [
        node(
            "oadr:oadrReportDescription",
            leaf("ei:rID", name),
            node("ei:reportDataSource", leaf("ei:resourceID", resource)),
            leaf("ei:reportType", kind),
            _quantity(*quantity),
            leaf("ei:readingType", reading),
            node(
                "oadr:oadrSamplingRate",
                leaf("oadr:oadrMinPeriod", f"PT{LEAST_S:g}S"),
                leaf("oadr:oadrMaxPeriod", "PT1H"),
                leaf("oadr:oadrOnChange", "false"),
            ),
        )
        for name, (kind, reading, quantity) in _OFFERED.items()
    ]
    report = node(
        "oadr:oadrReport",
        lasting("xcal:duration", KEPT.total_seconds()),
        *described,
        leaf("ei:reportRequestID", meant),
        leaf("ei:reportSpecifierID", SPECIFIER),
        leaf("ei:reportName", "METADATA_TELEMETRY_USAGE"),
        leaf("ei:createdDateTime", iso(now)),
    )
    return payload("oadrRegisterReport", leaf("pyld:requestID", request_id), report, ven(ven_id))


def _quantity(name: str, said: str, unit: str) -> str:
    parts = [leaf("power:itemDescription", said), leaf("power:itemUnits", unit), leaf("scale:siScaleCode", "k")]
    if name == "powerReal":  # the schema wants them, and nobody told us what they are here: 0
        parts.append(node("power:powerAttributes", leaf("power:hertz", 0), leaf("power:voltage", 0), leaf("power:ac", "true")))
    return node(f"power:{name}", *parts)


# --- what is asked for --------------------------------------------------------------------------------------------


def requests_in(message: Element, now: datetime) -> tuple[list[Request], list[str], bool]:
    """The requests in a message, what is wrong with others, and whether it asks what we offer."""
    found: list[Request] = []
    wrong: list[str] = []
    offer = False
    for one in message.all("oadrReportRequest"):
        name = one.word("reportRequestID") or ""
        if one.word("reportSpecifier", "reportSpecifierID") == METADATA:
            offer = True
            continue
        try:
            found.append(_request(one, name, now))
        except Refused as error:
            wrong.append(f"report request {name[:64]!r}: {error.message}")
    return found, wrong, offer


def _request(one: Element, name: str, now: datetime) -> Request:
    asked = one.first("reportSpecifier") or Element("reportSpecifier")
    if not name or len(name) > 256:
        raise Refused("missing_field", "reportRequestID: must be given")
    if asked.word("reportSpecifierID") != SPECIFIER:
        raise Refused("bad_field", f"reportSpecifierID: must be {SPECIFIER}, which is all that is offered")
    wanted = [text for part in asked.all("specifierPayload") if (text := part.word("rID")) in _OFFERED]
    if not wanted:
        raise Refused("bad_field", f"rID: must be among {', '.join(_OFFERED)}")
    step_s = _seconds(asked, "granularity")
    back_s = _seconds(asked, "reportBackDuration")
    begins, lasts = _interval(asked)
    now = now.replace(microsecond=0)
    start = begins or now
    if step_s == back_s == 0 and not lasts:  # one report of what is so now
        start = now if start <= now else start
        return Request(name, tuple(wanted), USUAL_S, USUAL_S, start, span(start, USUAL_S))
    step_s = max(step_s or back_s or USUAL_S, LEAST_S)
    end = span(start, lasts) if lasts else None
    back_s = max(back_s or (lasts or step_s), step_s)  # no going back before its end: one report of it all
    return Request(name, tuple(dict.fromkeys(wanted)), step_s, back_s, start, end)


def _interval(asked: Element) -> tuple[datetime | None, float]:
    """When reports begin (None: now) and for how many seconds (0: until they are cancelled)."""
    properties = asked.first("reportInterval", "properties")
    if properties is None:
        return None, 0.0
    start = properties.word("dtstart", "date-time")
    lasts = properties.word("duration", "duration")
    at_ = None if start is None else parse_time(start, "reportInterval.dtstart", None, Notes())
    return at_, 0.0 if lasts is None else _length(lasts, "reportInterval.duration")


def _seconds(asked: Element, name: str) -> float:
    text = asked.word(name, "duration")
    return 0.0 if text is None else _length(text, name)


def _length(text: str, where: str) -> float:
    duration = parse_duration(text, where, Notes())
    if duration.endless:
        return 0.0
    seconds = duration.rest.total_seconds() + duration.months * 30 * 86400.0
    if seconds < 0:
        raise Refused("bad_duration", f"{where}: {text[:40]!r}: must be 0 or more")
    return seconds


def joined(held: Sequence[Request], new: Sequence[Request], now: datetime, *, anew: bool = False) -> tuple[Request, ...]:
    """The requests after new ones came; one under the same id replaces what was asked before. ``anew``: they answer our offer,
    so that one for the same quantities replaces it too: a VTN that lost its memory gives it another id."""
    kept = [one for one in held if not any(n.request_id == one.request_id or (anew and n.wanted == one.wanted) for n in new)]
    # The same request once more does not tell the past anew.
    before = {one.request_id: one for one in held}
    came = [replace(n, told_until=max(n.told_until, b.told_until)) if (b := before.get(n.request_id)) else n for n in new]
    oldest = now - KEPT
    return tuple(replace(o, told_until=max(o.told_until, oldest)) for o in (*kept, *came))[-MOST_REQUESTS:]


# --- what is reported ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Report:
    """A report's XML (None: nothing is known of it), until when it tells, and whether readings of it may still come."""

    body: str | None
    until: datetime
    whole: bool


def report(request: Request, readings: Readings, source: str, now: datetime) -> Report:
    """What is known now of what a request that is due asks for, up to the last whole interval."""
    start = max(request.told_until, now - KEPT)
    until = min(request.end, now) if request.end is not None else now
    steps = min(int((until - start).total_seconds() / request.step_s), MOST_INTERVALS)
    if request.end is not None and request.end <= now and steps < MOST_INTERVALS:
        end = request.end  # a last interval may be shorter
    else:
        end = span(start, steps * request.step_s)
    parts: list[str] = []
    whole = True
    for a, b in _windows(start, end, request.step_s):
        known = [(name, _reading(name, readings, source, a, b)) for name in request.wanted]
        whole = whole and all(r is not None and r.coverage >= WHOLE for name, r in known if name != "baseline")
        period = at("xcal:dtstart", a) + lasting("xcal:duration", (b - a).total_seconds())
        # An interval for each value: a VTN of openleadr reads no two in one.
        parts += [node("ei:interval", period, _payload(name, r, a, b)) for name, r in known if r is not None]
    if not parts:
        return Report(None, end, whole)
    first = leaf("ei:eiReportID", f"{request.request_id} {iso(start)}")
    tail = [
        leaf("ei:reportRequestID", request.request_id),
        leaf("ei:reportSpecifierID", SPECIFIER),
        leaf("ei:reportName", "TELEMETRY_USAGE"),
        leaf("ei:createdDateTime", iso(now)),
    ]
    body = node("oadr:oadrReport", at("xcal:dtstart", start), node("strm:intervals", *parts), first, *tail)
    return Report(body, end, whole)


def _windows(start: datetime, end: datetime, step_s: float) -> Iterator[tuple[datetime, datetime]]:
    while start < end:
        until = min(end, span(start, step_s))
        yield start, until
        start = until


def _reading(name: str, readings: Readings, source: str, start: datetime, end: datetime) -> Reading | None:
    return readings.baseline(source, "", start, end) if name == "baseline" else readings.draw(source, start, end)


def _payload(name: str, reading: Reading, start: datetime, end: datetime) -> str:
    value = reading.mean_w / 1e3 * ((end - start).total_seconds() / 3600 if name == "usage" else 1.0)
    good = reading.coverage >= HALF
    # The profile has no word for an estimate; its accuracy is not known, which the confidence says.
    confidence = round(100 * max(0.0, min(1.0, reading.coverage)))
    return node(
        "oadr:oadrReportPayload",
        leaf("ei:rID", name),
        leaf("ei:confidence", confidence if reading.measured else min(confidence, 50)),
        node("ei:payloadFloat", leaf("ei:value", round(value, 6))),
        leaf("oadr:oadrDataQuality", "Quality Good - Non Specific" if good else "Quality Bad - Non Specific"),
    )


def update_report(request_id: str, ven_id: str, body: str) -> bytes:
    """A report as it is sent."""
    return payload("oadrUpdateReport", leaf("pyld:requestID", request_id), body, ven(ven_id))


# --- over a restart -----------------------------------------------------------------------------------------------


def request_json(request: Request) -> list[Any]:
    """A request as JSON."""
    return [request.request_id, list(request.wanted), request.step_s, request.back_s, iso(request.told_until), iso(request.end)]


def request_from(data: Sequence[Any]) -> Request:
    """The request of `request_json`."""
    name, wanted, step_s, back_s, told, end = data
    until = None if end is None else datetime.fromisoformat(end)
    return Request(name, tuple(wanted), step_s, back_s, datetime.fromisoformat(told), until)
