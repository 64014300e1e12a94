"""Meters of the site over HTTP: readings that a gateway sends, and every meter as it stands.

It checks what a message says and knows nothing of what readings mean.
"""

from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dispatcher.api.answers import in_thread, json_response
from dispatcher.api.services import Services
from dispatcher.api.strict_json import parse
from dispatcher.errors import BadInput
from dispatcher.power.meter_sources import MAX_VALUE, Said, parse_time
from dispatcher.power.meter_state import MeterView
from dispatcher.power.meter_values import SUSPECT, MeterReading, Span
from dispatcher.power.site_meters import SitePower

#: Readings in one message.
MAX_READINGS = 10_000
#: Problems that are told of one message.
_TOLD = 20

Problem = tuple[str, object, str]


def readings_from(data: Any) -> list[Said]:
    """The readings of a message: an object, or a list of them, with ``value`` and either ``at`` or ``start`` and ``end``.

    Raises BadInput.
    """
    items = data if isinstance(data, list) else [data]
    if not 1 <= len(items) <= MAX_READINGS:
        raise BadInput([("body", f"{len(items)} readings", f"must be 1 to {MAX_READINGS} readings")])
    problems: list[Problem] = []
    found: list[Said] = []
    for i, item in enumerate(items):
        said = _reading(f"[{i}]" if isinstance(data, list) else "", item, problems)
        if said is not None:
            found.append(said)
        if len(problems) >= _TOLD:
            break
    if problems:
        raise BadInput(problems)
    return found


def _reading(where: str, item: Any, problems: list[Problem]) -> Said | None:
    dot = f"{where}." if where else ""
    if not isinstance(item, dict):
        problems.append((where or "body", item, 'must be an object such as {"at": "2026-01-31T17:00:00Z", "value": 41250.0}'))
        return None
    before = len(problems)
    known = ("at", "start", "end", "value")
    problems += [(f"{dot}{k}", item[k], f"no such field; known are {', '.join(known)}") for k in item if k not in known]
    value = item.get("value")
    if isinstance(value, bool) or not isinstance(value, int | float) or not -MAX_VALUE <= value <= MAX_VALUE:
        problems.append((f"{dot}value", value, "must be a number in the meter's unit; leave out a reading that has none"))
    times: dict[str, datetime] = {}
    for name in known[:3]:
        if item.get(name) is not None:
            try:
                times[name] = parse_time(item[name])
            except ValueError as error:
                problems.append((f"{dot}{name}", item[name], str(error)))
    if len(problems) > before or not isinstance(value, int | float):
        return None
    if set(times) == {"at"}:
        return Said(times["at"], float(value))
    if set(times) != {"start", "end"}:
        problems.append((f"{dot}at", item.get("at"), "give the time of the reading as at, or its interval as start and end"))
    elif not 0 < (times["end"] - times["start"]).total_seconds() <= 86400:
        problems.append((f"{dot}end", item["end"], "must be after start, by a day at most"))
    else:
        return Said(times["end"], float(value), times["start"])
    return None


class Meters:
    """``/v1/meters``."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def push(self, request: Request) -> Response:
        """Take readings of a meter with ``source = "push"``: ``{"at", "value"}``, ``{"start", "end", "value"}`` or a list.

        Times have an offset. Readings may come late, out of order and again; 202 with ``{"accepted", "duplicates"}`` once they
        are stored. One of the future, or one that differs from what is held for its time, is refused, and all beside it.
        """
        region, meter = request.path_params["region"], request.path_params["meter"]
        said = readings_from(parse(await request.body()))
        now = self._services.clock.now()
        new, held = await in_thread(self._services.meters.push, region, meter, said, now)
        return json_response({"accepted": new, "duplicates": held}, 202)

    async def show(self, _: Request) -> Response:
        """Every meter as it stands, and what each site and branch draws now by the best that is known.

        ``state``: ok, stopped, suspect or waiting. ``level`` is the last value that is believed, in W or degC. In ``power``,
        ``difference_w`` is what a meter sees beyond the GPUs (for a site: beyond GPUs x PUE).
        """
        now = self._services.clock.now()
        return json_response(await in_thread(self._told, now))

    def _told(self, now: datetime) -> dict[str, Any]:
        meters = self._services.meters
        power = []
        for region in self._services.config.regions:
            power.append({"region": region.name, "branch": None} | _power(meters.site_power(region.name, now)))
            for branch in region.branches:
                told = _power(meters.branch_power(region.name, branch.name, now))
                power.append({"region": region.name, "branch": branch.name} | told)
        return {"meters": [_meter(view) for view in meters.views(now)], "power": power}


def _meter(view: MeterView) -> dict[str, Any]:
    config, last = view.config, view.last
    return {
        "region": view.region,
        "name": config.name,
        "scope": config.scope,
        "of": config.of or None,
        "unit": config.unit,
        "source": config.source,
        "counter": config.cumulative,
        "cadence_s": config.cadence_s,
        "delay_s": config.delay_s,
        "state": view.state,
        "age_s": view.age_s,
        "quality": _quality(view),
        "last": _last(last) if last is not None else None,
        "level": _level(view.level, config.is_power) if view.level is not None else None,
        "problem": view.problem,
        "gap": view.gap,
    }


def _quality(view: MeterView) -> str:
    """What the meter is worth now: unknown while it says nothing, suspect while it is not believed, else measured."""
    if view.state in ("stopped", "waiting"):
        return "unknown"
    return SUSPECT if view.state == "suspect" or (view.last is not None and view.last.quality == SUSPECT) else "measured"


def _last(reading: MeterReading) -> dict[str, Any]:
    return {
        "start": reading.start.isoformat(),
        "end": reading.end.isoformat() if reading.end is not None else None,
        "value": reading.value,
        "quality": reading.quality,
        "received_at": reading.received_at.isoformat(),
    }


def _level(span: Span, is_power: bool) -> dict[str, Any]:
    key = "power_w" if is_power else "temperature_c"
    return {"start": span.start.isoformat(), "end": span.end.isoformat(), key: span.value}


def _power(power: SitePower) -> dict[str, Any]:
    return {
        "power_w": power.value_w,
        "quality": power.quality,
        "source": power.source,
        "difference_w": power.difference_w,
        "at": power.at.isoformat(),
        "start": power.start.isoformat() if power.start is not None else None,
        "end": power.end.isoformat() if power.end is not None else None,
        "reason": power.reason,
    }
