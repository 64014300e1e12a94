"""Power limits from outside, over our own API or by webhook: from a JSON object to a stored event, or to what is wrong with it.

It knows nothing of signatures or of what a limit does to jobs.
"""

import asyncio
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from dispatcher.api.answers import in_thread
from dispatcher.api.services import Services
from dispatcher.errors import AlreadyExists, BadInput, NotFound
from dispatcher.store import GridEvent
from policies.durations import parse_duration

_EVENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,127}", re.ASCII)
_FIELDS = frozenset({"event_id", "version", "region", "start", "end", "duration", "limit_w", "reason", "test"})
_MAX_REASON = 500
_MAX_VERSION = 1 << 53

Problem = tuple[str, object, str]


def event_from(data: Any, source: str, regions: list[str], now: datetime) -> tuple[GridEvent, int | None]:
    """The event that a JSON object asks for, and its version as given (None: not given, then 1). Raises BadInput."""
    if not isinstance(data, dict):
        raise BadInput([("data", data, "must be an object")])
    problems: list[Problem] = [
        (name, data[name], "no such field; known are " + ", ".join(sorted(_FIELDS))) for name in data if name not in _FIELDS
    ]
    event_id = _event_id(data, problems)
    version = _version(data, problems)
    region, limit_w = data.get("region"), data.get("limit_w")
    if not isinstance(region, str) or region not in regions:
        problems.append(("region", region, "must be one of " + (", ".join(regions) or "the configured regions")))
    if isinstance(limit_w, bool) or not isinstance(limit_w, int | float) or not 0 <= limit_w <= 1e12:
        problems.append(("limit_w", limit_w, "must be a power in W, 0 or more"))
    start, end = _interval(data, now, problems)
    reason = data.get("reason", "") or ""
    if not isinstance(reason, str) or len(reason) > _MAX_REASON:
        problems.append(("reason", reason, f"must be a sentence of at most {_MAX_REASON} characters"))
    test = data.get("test", False)
    if not isinstance(test, bool):
        problems.append(("test", test, "must be true or false"))
    if problems or not isinstance(limit_w, int | float):
        raise BadInput(problems)
    event = GridEvent(
        source=source,
        event_id=event_id,
        version=1 if version is None else version,
        region=str(region),
        start=start,
        end=end,
        limit_w=float(limit_w),
        received_at=now,
        reason=reason,
        test=test,
    )
    return event, version


def _event_id(data: Mapping[str, Any], problems: list[Problem]) -> str:
    event_id = data.get("event_id")
    if not isinstance(event_id, str) or not _EVENT_ID.fullmatch(event_id):
        problems.append(
            ("event_id", event_id, "must be 1 to 128 letters, digits and ._:@/+- that begin with a letter or digit")
        )
        return ""
    return event_id


def _version(data: Mapping[str, Any], problems: list[Problem]) -> int | None:
    version = data.get("version")
    if version is not None and (isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < _MAX_VERSION):
        problems.append(("version", version, "must be a whole number; a higher one replaces a lower one"))
        return None
    return version


def _interval(data: Mapping[str, Any], now: datetime, problems: list[Problem]) -> tuple[datetime, datetime | None]:
    start = _time("start", data.get("start"), problems) or now
    end = _time("end", data.get("end"), problems)
    duration = data.get("duration")
    if duration is not None:
        if data.get("end") is not None:
            problems.append(("duration", duration, "give end or duration, not both"))
        try:
            seconds = duration if isinstance(duration, int | float) else parse_duration(str(duration))
            if isinstance(duration, bool) or not math.isfinite(seconds) or not 0 < seconds <= 366 * 86400:
                raise ValueError("out of range")
            end = start + timedelta(seconds=float(seconds))
        except (ValueError, OverflowError):
            problems.append(("duration", duration, "must be a duration such as '2h' or a number of seconds"))
    if end is not None and end <= start:
        problems.append(("end", data.get("end"), f"must be after start, {start.isoformat()}"))
    elif end is not None and end <= now:
        problems.append(("end", data.get("end"), f"has passed already; it is {now.isoformat()}"))
    return start, end


def _time(name: str, value: Any, problems: list[Problem]) -> datetime | None:
    if value is None:
        return None
    try:
        at = datetime.fromisoformat(value)
        if at.tzinfo is not None:
            return at.astimezone(UTC)
    except (ValueError, TypeError, OverflowError):
        pass
    problems.append((name, value, "must be a time with an offset, such as 2026-01-31T17:00:00Z"))
    return None


def _differ(event: GridEvent, held: GridEvent) -> bool:
    """Whether two texts of one version ask for different things. A start that was not given is the time of receipt, and a
    message sent again is received later."""
    if (event.region, event.limit_w, event.test) != (held.region, held.limit_w, held.test):
        return True
    if event.start == event.received_at and held.start == held.received_at:
        length, held_length = ((one.end - one.start) if one.end is not None else None for one in (event, held))
        return length != held_length
    return (event.start, event.end) != (held.start, held.end)


class GridEvents:
    """Stores events durably, one after another, so that a version made from the one that is held is the next one."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lock = asyncio.Lock()

    def _held(self, source: str, event_id: str) -> GridEvent | None:
        return next((e for e in self._services.store.grid_events() if (e.source, e.event_id) == (source, event_id)), None)

    async def save(self, event: GridEvent, version: int | None, message_id: str | None = None) -> tuple[str, GridEvent]:
        """Store; returns "accepted", "duplicate" or "stale", and the event as it is held now.

        Without a version, what differs from the event that is held replaces it. Raises AlreadyExists for another content under
        the version that is held: its sender would believe that its limit is in force.
        """
        async with self._lock:
            held = await in_thread(self._held, event.source, event.event_id)
            if version is None and held is not None and not held.region:
                return "stale", held  # its sender cancelled it before it came
            if version is None and held is not None:
                same = replace(event, version=held.version, received_at=held.received_at) == held
                event = replace(event, version=held.version if same else held.version + 1)
            elif held is not None and version == held.version and not held.cancelled and _differ(event, held):
                raise AlreadyExists(
                    f"version {version} of event {event.event_id} is held already and says something else; "
                    "send the change under a higher version"
                )
            outcome = await self._write(event, message_id)
            return outcome, event if outcome == "accepted" or held is None else held

    async def cancel(
        self, source: str, event_id: str, *, version: int | None = None, message_id: str | None = None
    ) -> tuple[str, GridEvent]:
        """End an event, whatever its length. A sender's messages (those with an id) come in any order, so one that cancels an
        event not heard of yet is kept, and the event is ignored when it comes. Otherwise raises NotFound for one not held."""
        async with self._lock:
            held = await in_thread(self._held, source, event_id)
            now = self._services.clock.now()
            if held is None and message_id is not None:
                final = _MAX_VERSION - 1 if version is None else version
                unseen = "cancelled before it was heard of"
                held = GridEvent(source, event_id, final, "", now, now, 0.0, now, unseen, cancelled=True)
                return await self._write(held, message_id), held
            if held is None:
                raise NotFound(f"there is no event {event_id} from {source}")
            if held.cancelled and version is None:
                return "duplicate", held
            ended = replace(held, version=held.version + 1 if version is None else version, cancelled=True, received_at=now)
            outcome = await self._write(ended, message_id)
            return outcome, ended if outcome == "accepted" else held

    async def _write(self, event: GridEvent, message_id: str | None) -> str:
        outcome = await asyncio.wrap_future(self._services.store.save_grid_event(event, message_id))
        if outcome == "accepted":
            self._services.nudge()
        return outcome
