"""When an OpenADR 3 event wants reports, and over which intervals.

Source: OpenADR 3.1 User Guide 7.5. It knows nothing of what is in a report.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from dispatcher.dr.model import MAX_STEPS, Notes, Refused, ReportDue, shown
from dispatcher.dr.timing import Slot

_COUNTS = {"startInterval": -1, "numIntervals": -1, "frequency": -1, "repeat": 1}


def reports_due(descriptors: object, slots: Sequence[Slot], ids: Sequence[int | str], notes: Notes) -> tuple[ReportDue, ...]:
    """The reports that ``reportDescriptors`` ask for, in order of time; ``ids`` are the intervals' own. Raises Refused."""
    if descriptors is None:
        return ()
    if not isinstance(descriptors, list):
        raise Refused("bad_field", f"reportDescriptors: {shown(descriptors)}: must be a list")
    due: list[ReportDue] = []
    for index, descriptor in enumerate(descriptors):
        where = f"reportDescriptors[{index}]"
        if not isinstance(descriptor, dict) or not isinstance(descriptor.get("payloadType"), str):
            raise Refused("bad_field", f"{where}.payloadType: must be given, such as DEMAND or USAGE")
        due += _one(descriptor, where, slots, ids, notes)
    return tuple(sorted(due, key=lambda report: (report.at is None, report.at.timestamp() if report.at else 0.0)))


def _one(
    descriptor: Mapping[str, Any], where: str, slots: Sequence[Slot], ids: Sequence[int | str], notes: Notes
) -> list[ReportDue]:
    start, length, every, repeat = (_count(descriptor, key, default, where) for key, default in _COUNTS.items())
    historical = descriptor.get("historical") is not False
    name = descriptor["payloadType"]

    def report(at: datetime | None, chosen: Sequence[Slot]) -> ReportDue:
        reading, units = descriptor.get("readingType"), descriptor.get("units")
        return ReportDue(
            at,
            name,
            tuple(ids[slot.index] for slot in chosen),
            reading if isinstance(reading, str) else None,
            units if isinstance(units, str) else None,
            descriptor.get("aggregate") is True,
            tuple((slot.start, slot.end) for slot in chosen),
        )

    if descriptor.get("reportIntervals") == "OPEN_INTERVALS":
        notes.add(f"{where}: the report's intervals are ours to choose")
    if every == 0 or not slots:
        notes.add(f"{where}: {name} is reported when we think it useful")
        return [report(None, slots)]
    out: list[ReportDue] = []
    reported = -1
    for position in _positions(len(slots), start, length, every, repeat, historical):
        if historical:
            begin = position + 1 - length if length > 0 else reported + 1 if every > 0 else 0
            chosen = slots[max(0, begin) : position + 1]
            reported = position
            at = chosen[-1].end
            if at is None:
                notes.add(f"{where}: the interval it follows has no end: {name} is due when the event is released")
        else:
            chosen = slots[position : position + length if length > 0 else None]
            at = chosen[0].start
        out.append(report(at, chosen))
    return out


def _positions(count: int, start: int, length: int, every: int, repeat: int, historical: bool) -> list[int]:
    """The intervals at whose ends (of a forecast: at whose starts) there is a report."""
    step = every if every > 0 else length if length > 0 else count
    if start >= 0:
        first, most = start, repeat
    elif historical:
        # "At the end of the last one", unless reports come more often: then after every so many, from the first on.
        first, most = (step - 1, repeat if repeat > 1 else -1) if every > 0 else (count - 1, 1 if repeat <= 1 else repeat)
    else:
        first, most = 0, repeat if every > 0 else 1
    positions = list(range(first, count, step))[:MAX_STEPS]
    if every > 0 and start < 0 and historical and most < 0 and (not positions or positions[-1] != count - 1):
        positions.append(count - 1)  # what is left over is reported too
    return positions if most < 0 else positions[:most]


def _count(descriptor: Mapping[str, Any], key: str, default: int, where: str) -> int:
    value = descriptor.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value < 1 << 31:
        raise Refused("bad_field", f"{where}.{key}: {shown(value)}: must be a whole number, -1 or more")
    return value
