"""What an OpenADR 3 event wants reported: which reports are due when, and what stands in them, in the event's own interval ids.

Pure: readings and times are given. A number that is not known is left out and said as DATA_QUALITY MISSING. Sources: OpenADR
3.1 Definition (report payloads, operating states, data quality), the schemas of 3.1.0 and 3.0.1.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from dispatcher.dr.model import DrEvent, ReportDue, iso

#: The name that the standard gives to a total.
AGGREGATED = "AGGREGATED_REPORT"
#: A mean of which so much was measured stands for its interval; below HALF it says too little to be more than doubtful.
WHOLE, HALF = 0.99, 0.5
#: How long after an interval's end its last readings may come, seconds.
LATE_S = 60.0
#: Units by what they measure, each with how many W or Wh one is.
_POWER = {"KW": 1e3, "W": 1.0, "MW": 1e6}
_ENERGY = {"KWH": 1e3, "WH": 1.0, "MWH": 1e6}
_READING = {"USAGE": "SUMMED", "DELTA_USAGE": "SUMMED", "LOAD_SHED_DELTA_AVAILABLE": "FORECAST"}
_NUMBER = ("DEMAND", "USAGE", "BASELINE", "DELTA_USAGE", "LOAD_SHED_DELTA_AVAILABLE")

Window = tuple[datetime, datetime | None]


@dataclass(frozen=True, slots=True)
class Reading:
    """A mean power over an interval, W. ``coverage`` is the share of it (0 to 1) that the mean rests on; ``measured`` is False
    for what is estimated, such as GPUs times PUE."""

    mean_w: float
    coverage: float = 1.0
    measured: bool = True


class Readings(Protocol):
    """What a site can tell of itself. All may be called from any thread; None: not known, and nothing is made up for it."""

    def draw(self, source: str, start: datetime, end: datetime) -> Reading | None:
        """What the source's site (or branch) drew over ``[start, end)``."""
        ...

    def baseline(self, source: str, event_id: str, start: datetime, end: datetime) -> Reading | None:
        """What it would have drawn without the event, by the method agreed on."""
        ...

    def shed_available_w(self, source: str, start: datetime, end: datetime) -> float | None:
        """By how much it could lower its draw over all of ``[start, end)``, W."""
        ...

    def operating_state(self, source: str, event_id: str, start: datetime, end: datetime) -> str | None:
        """One of the standard's operating states, such as NORMAL, RUNNING_CURTAILED, RUNNING_OPTED_OUT or ERROR."""
        ...


class NothingKnown:
    """Readings of a site that can tell nothing."""

    def draw(self, source: str, start: datetime, end: datetime) -> Reading | None:
        """None."""
        return None

    def baseline(self, source: str, event_id: str, start: datetime, end: datetime) -> Reading | None:
        """None."""
        return None

    def shed_available_w(self, source: str, start: datetime, end: datetime) -> float | None:
        """None."""
        return None

    def operating_state(self, source: str, event_id: str, start: datetime, end: datetime) -> str | None:
        """None."""
        return None


# --- what is due --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Planned:
    """One report that a VTN waits for. ``due`` None: when the event is released. ``tries`` counts attempts to send it."""

    event_id: str
    program_id: str | None
    due: datetime | None
    payload_type: str
    reading_type: str | None
    units: str | None
    aggregate: bool
    ids: tuple[int | str, ...]
    windows: tuple[Window, ...]
    tries: int = 0
    not_before: datetime | None = None

    @property
    def name(self) -> str:
        """Its name among the event's reports; the same after a restart, and after a version that changes nothing of it."""
        first = self.windows[0][0].strftime("%Y%m%dT%H%M%SZ") if self.windows else ""
        return f"{self.payload_type} {self.reading_type or 'MEAN'} {self.ids[0] if self.ids else ''}-{len(self.ids)} {first}"

    @property
    def key(self) -> tuple[str, str]:
        """Event and name."""
        return self.event_id, self.name


def planned(event: DrEvent) -> list[Planned]:
    """The reports that an event asks for. One that was over when it came is owed none."""
    if event.cancelled or (event.end is not None and event.end <= event.received_at):
        return []
    return [_planned(event, report) for report in event.reports_due if report.windows]


def _planned(event: DrEvent, report: ReportDue) -> Planned:
    ends = [end for _, end in report.windows]
    last = None if None in ends else max(end for end in ends if end is not None)
    return Planned(
        event.event_id,
        event.source,
        report.at or last,
        report.payload_type,
        report.reading_type,
        report.units,
        report.aggregate,
        report.interval_ids,
        report.windows,
    )


def replanned(
    waiting: Mapping[tuple[str, str], Planned], sent: Mapping[tuple[str, str], Any], held: Iterable[DrEvent], now: datetime
) -> dict[tuple[str, str], Planned]:
    """What is waited for after another look at the events that are held: new ones are added, changed ones follow their event,
    those of a released event are cut at its release."""
    out = dict(waiting)
    for event in held:
        mine = {key: plan for key, plan in out.items() if key[0] == event.event_id}
        if event.cancelled:
            for key, plan in mine.items():
                del out[key]
                cut = cut_at(plan, event.received_at)
                if cut is not None and cut.key not in sent:
                    out[cut.key] = cut  # its name tells of how many intervals it is
            continue
        wanted = {plan.key: plan for plan in planned(event)}
        for key, plan in mine.items():
            # What was due already is told as it was; what was to come is as the present version wants it.
            if key not in wanted and (plan.due is None or plan.due > now):
                del out[key]
        for key, plan in wanted.items():
            if key in sent:
                continue
            old = out.get(key)
            out[key] = plan if old is None else replace(plan, tries=old.tries, not_before=old.not_before)
    return out


def cut_at(plan: Planned, at: datetime) -> Planned | None:
    """The same for an event that was released at ``at``; None when nothing of it had begun."""
    if plan.due is not None and plan.due <= at:
        return plan
    kept = [(name, start, end) for name, (start, end) in zip(plan.ids, plan.windows, strict=True) if start < at]
    if not kept:
        return None
    windows = tuple((start, at if end is None or end > at else end) for _, start, end in kept)
    return replace(plan, due=at, ids=tuple(name for name, _, _ in kept), windows=windows)


# --- what stands in it --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Report:
    """A report as it is sent. ``whole`` is False where readings of it may still come in."""

    body: dict[str, Any]
    whole: bool


@dataclass(frozen=True, slots=True)
class Teller:
    """Makes reports for one source. ``resource`` is the site's name where no total is asked for; ``with_program``: 3.0.1
    wants the program's id too."""

    source: str
    client_name: str
    resource: str
    readings: Readings = field(default_factory=NothingKnown)
    with_program: bool = False

    def report(self, plan: Planned, now: datetime) -> Report:
        """What is known now of what the plan asks for."""
        scale, units = _units(plan)
        intervals: list[dict[str, Any]] = []
        whole = True
        for name, (start, end) in zip(plan.ids, plan.windows, strict=True):
            end = min(end, now) if end is not None and plan.payload_type != "LOAD_SHED_DELTA_AVAILABLE" else end or now
            value, quality, covered = self._value(plan, start, end, scale)
            whole = whole and covered
            payloads = [] if value is None else [{"type": plan.payload_type, "values": [value]}]
            if quality is not None and plan.payload_type != "DATA_QUALITY":
                payloads.append({"type": "DATA_QUALITY", "values": [quality]})
            period = {"start": iso(start), "duration": _duration(end - start)}
            intervals.append({"id": name, "intervalPeriod": period, "payloads": payloads})
        described: dict[str, Any] = {"objectType": "REPORT_PAYLOAD_DESCRIPTOR", "payloadType": plan.payload_type}
        if units is not None:
            described |= {"units": units, "readingType": _READING.get(plan.payload_type, "MEAN")}
        body: dict[str, Any] = {
            "eventID": plan.event_id,
            "clientName": self.client_name,
            "reportName": plan.name,
            "payloadDescriptors": [described],
            "resources": [{"resourceName": AGGREGATED if plan.aggregate else self.resource, "intervals": intervals}],
        }
        if self.with_program:
            body["programID"] = plan.program_id or ""
        return Report(body, whole)

    def _value(
        self, plan: Planned, start: datetime, end: datetime, scale: float
    ) -> tuple[float | str | None, str | None, bool]:
        """The value (None: not known), its DATA_QUALITY (None: needs no saying), and whether all readings for it are in."""
        kind, source = plan.payload_type, self.source
        if end <= start:
            return None, "MISSING", True
        if kind == "OPERATING_STATE":
            state = self.readings.operating_state(source, plan.event_id, start, end)
            return state, None if state is not None else "MISSING", True
        if kind == "LOAD_SHED_DELTA_AVAILABLE":
            shed_w = self.readings.shed_available_w(source, start, end)
            return (None, "MISSING", True) if shed_w is None else (_tidy(shed_w / scale), "ESTIMATED", True)
        base = None if kind not in ("BASELINE", "DELTA_USAGE") else self.readings.baseline(source, plan.event_id, start, end)
        if kind == "BASELINE":
            return (*_told(base, plan, start, end, scale), True)
        draw = self.readings.draw(source, start, end) if kind in ("DEMAND", "USAGE", "DELTA_USAGE", "DATA_QUALITY") else None
        covered = draw is not None and draw.coverage >= WHOLE
        if kind == "DATA_QUALITY":
            return _quality(draw), None, covered
        if kind == "DELTA_USAGE" and (draw is None or base is None):
            return None, "MISSING", covered
        if kind == "DELTA_USAGE" and draw is not None and base is not None:
            draw = Reading(draw.mean_w - base.mean_w, min(draw.coverage, base.coverage), measured=False)
        return (*_told(draw, plan, start, end, scale), covered or kind not in _NUMBER)


def _told(reading: Reading | None, plan: Planned, start: datetime, end: datetime, scale: float) -> tuple[float | None, str]:
    if reading is None:
        return None, "MISSING"
    hours = (end - start).total_seconds() / 3600 if _is_energy(plan) else 1.0
    quality = _quality(reading if plan.payload_type != "BASELINE" else replace(reading, measured=False))
    return _tidy(reading.mean_w * hours / scale), quality


def _quality(reading: Reading | None) -> str:
    if reading is None:
        return "MISSING"
    if reading.coverage < HALF:
        return "BAD"
    return "OK" if reading.measured and reading.coverage >= WHOLE else "ESTIMATED"


def _is_energy(plan: Planned) -> bool:
    if plan.payload_type in ("USAGE", "DELTA_USAGE"):
        return True
    return plan.payload_type == "BASELINE" and (plan.units or "").upper() in _ENERGY


def _units(plan: Planned) -> tuple[float, str | None]:
    """What one unit of the report is in W or Wh, and its name; the standard's own where the event wants none that fits."""
    if plan.payload_type not in _NUMBER:
        return 1.0, None
    known = _ENERGY if _is_energy(plan) else _POWER
    asked = (plan.units or "").upper()
    units = asked if asked in known else "KWH" if known is _ENERGY else "KW"
    return known[units], units


def _tidy(value: float) -> float:
    return round(value, 6)


def _duration(length: timedelta) -> str:
    return f"PT{max(0.0, length.total_seconds()):.3f}".rstrip("0").rstrip(".") + "S"


# --- over a restart -----------------------------------------------------------------------------------------------


def plan_json(plan: Planned) -> list[Any]:
    """A plan as JSON, as short as it gets: there may be thousands."""
    windows = [[iso(start), iso(end)] for start, end in plan.windows]
    head = [plan.event_id, plan.program_id, iso(plan.due), plan.payload_type, plan.reading_type, plan.units, plan.aggregate]
    return [*head, list(plan.ids), windows, plan.tries]


def plan_from(data: Sequence[Any]) -> Planned:
    """The plan of `plan_json`."""
    event_id, program_id, due, kind, reading, units, aggregate, ids, windows, tries = data
    spans = tuple((datetime.fromisoformat(start), _time(end)) for start, end in windows)
    return Planned(event_id, program_id, _time(due), kind, reading, units, aggregate, tuple(ids), spans, tries)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
