"""Power limits from outside, over our own API or by webhook: from a JSON object to a stored event, or to what is wrong with it.

It knows nothing of signatures or of what a limit does to jobs.
"""

import asyncio
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from dispatcher.api.answers import in_thread
from dispatcher.api.services import Services
from dispatcher.config import Config
from dispatcher.config_events import MAX_RECOVERY_S
from dispatcher.errors import AlreadyExists, BadInput, IllegalMove, NotFound
from dispatcher.store import GridEvent, GridEventChange, GridStep
from policies.durations import parse_duration
from policies.sentences import kw

_EVENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,127}", re.ASCII)
_OF_A_STEP = ("start", "end", "duration", "limit_w")
_FIELDS = frozenset(
    {"event_id", "version", "region", "branch", "steps", "reason", "test", "recovery", "emergency", *_OF_A_STEP}
)
#: Characters of a reason, and steps of an event.
MAX_REASON, MAX_STEPS = 500, 500
#: A limit lasts a second and a year and a day at the most (longer ones are open), and begins within ten years.
_SHORTEST, _LONGEST, _FURTHEST = timedelta(seconds=1), timedelta(days=366), timedelta(days=3653)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_VERSION = 1 << 53

Problem = tuple[str, object, str]
#: The names of regions, with those of their branches.
Regions = Mapping[str, Sequence[str]]


def event_from(
    data: Any, source: str, regions: Regions, now: datetime, *, marked: bool = False
) -> tuple[GridEvent, int | None]:
    """The event that a JSON object asks for, and its version as given (None: not given, then 1). ``marked``: all events of
    this source are emergencies. Raises BadInput."""
    if not isinstance(data, dict):
        raise BadInput([("data", data, "must be an object")])
    problems: list[Problem] = [
        (name, data[name], "no such field; known are " + ", ".join(sorted(_FIELDS))) for name in data if name not in _FIELDS
    ]
    event_id = _event_id(data, problems)
    version = _version(data, problems)
    region, branch = data.get("region"), data.get("branch")
    if not isinstance(region, str) or region not in regions:
        problems.append(("region", region, "must be one of " + (", ".join(regions) or "the configured regions")))
    elif branch is not None and branch not in regions[region]:
        known = ", ".join(regions[region]) or "it has none"
        problems.append(("branch", branch, f"must be a [[region.branch]] of {region}: {known}"))
    reason = _reason("reason", data, problems)
    steps = _steps(data, reason, now, problems)
    test = data.get("test", False)
    emergency = data.get("emergency", False)
    problems += [
        (name, one, "must be true or false")
        for name, one in (("test", test), ("emergency", emergency))
        if not isinstance(one, bool)
    ]
    recovery_s = _seconds("recovery", data.get("recovery"), MAX_RECOVERY_S, problems)
    if problems or not steps:
        raise BadInput(problems)
    event = GridEvent(
        source=source,
        event_id=event_id,
        version=1 if version is None else version,
        region=str(region),
        start=steps[0].start,
        end=steps[-1].end,
        limit_w=min(step.limit_w for step in steps),
        received_at=now,
        reason=reason,
        test=test,
        steps=tuple(replace(step, emergency=emergency or marked) for step in steps),
        branch=branch,
        recovery_s=recovery_s,
    )
    return event, version


def regions_of(config: Config) -> Regions:
    """The configured regions, each with its branches."""
    return {region.name: [branch.name for branch in region.branches] for region in config.regions}


def _reason(field: str, data: Mapping[str, Any], problems: list[Problem]) -> str:
    reason = data.get("reason", "") or ""
    if not isinstance(reason, str) or len(reason) > MAX_REASON:
        problems.append((field, reason, f"must be a sentence of at most {MAX_REASON} characters"))
        return ""
    return reason


def _steps(data: Mapping[str, Any], reason: str, now: datetime, problems: list[Problem]) -> list[GridStep]:
    """The one limit that the object itself is, or those of its ``steps``, each of which begins where the one before it ends
    unless it says otherwise."""
    given = data.get("steps")
    if given is None:
        step = _step(data, "", now, True, now, reason, problems)
        return [step] if step is not None else []
    problems += [(name, data[name], "leave it out: the steps say it") for name in _OF_A_STEP if data.get(name) is not None]
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_STEPS or not all(isinstance(one, dict) for one in given):
        problems.append(
            ("steps", given, f"must be a list of 1 to {MAX_STEPS} objects with limit_w, and start, end or duration")
        )
        return []
    steps: list[GridStep] = []
    begins: datetime | None = now
    for index, one in enumerate(given):
        where = f"steps[{index}]."
        problems += [(f"{where}{name}", one[name], "no such field") for name in one if name not in (*_OF_A_STEP, "reason")]
        if begins is None:
            problems.append((f"steps[{index - 1}].end", None, "only the last step may be open"))
            return []
        its_reason = _reason(f"{where}reason", one, problems)
        step = _step(one, where, now, index == len(given) - 1, begins, its_reason, problems)
        if step is None:
            return []
        if steps and step.start < begins:
            problems.append(
                (f"{where}start", one.get("start"), f"must not be before the step before it ends, {begins.isoformat()}")
            )
        begins = step.end
        steps.append(replace(step, interval_id=index, reason=step.reason or reason))
    return steps


def _step(
    data: Mapping[str, Any], where: str, now: datetime, last: bool, begins: datetime, reason: str, problems: list[Problem]
) -> GridStep | None:
    limit_w = data.get("limit_w")
    if isinstance(limit_w, bool) or not isinstance(limit_w, int | float) or not 0 <= limit_w <= 1e12:
        problems.append((f"{where}limit_w", limit_w, "must be a power in W, 0 or more"))
        limit_w = None
    start, end = _interval(data, where, now, last, begins, problems)
    return None if limit_w is None else GridStep(start, end, float(limit_w), reason=reason)


def _event_id(data: Mapping[str, Any], problems: list[Problem]) -> str:
    event_id = data.get("event_id")
    if not isinstance(event_id, str) or not _EVENT_ID.fullmatch(event_id):
        problems.append(
            ("event_id", event_id, "must be 1 to 128 letters, digits and ._:@/+- that begin with a letter or digit")
        )
        return ""
    return event_id


def cancel_from(data: Any) -> tuple[str, int | None]:
    """The event that a JSON object cancels, and the version that does so (None: not given). Raises BadInput."""
    if not isinstance(data, dict):
        raise BadInput([("data", data, "must be an object with the event_id, and perhaps a version")])
    problems: list[Problem] = []
    event_id, version = _event_id(data, problems), _version(data, problems)
    if problems:
        raise BadInput(problems)
    return event_id, version


def _version(data: Mapping[str, Any], problems: list[Problem]) -> int | None:
    version = data.get("version")
    if version is not None and (isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < _MAX_VERSION):
        problems.append(("version", version, "must be a whole number below 2**53; a higher one replaces a lower one"))
        return None
    return version


def _interval(
    data: Mapping[str, Any], where: str, now: datetime, last: bool, begins: datetime, problems: list[Problem]
) -> tuple[datetime, datetime | None]:
    """Start and end; the ``last`` one must not be over at ``now``."""
    start = _time(f"{where}start", data.get("start"), problems) or begins
    end = _time(f"{where}end", data.get("end"), problems)
    duration = data.get("duration")
    if duration is not None:
        if data.get("end") is not None:
            problems.append((f"{where}duration", duration, "give end or duration, not both"))
        seconds = _seconds(f"{where}duration", duration, _LONGEST.total_seconds(), problems)
    if start > now + _FURTHEST:
        # Nothing is added to a time that far ahead: there may be none after it.
        problems.append((f"{where}start", data.get("start"), f"must be within ten years; it is {now.isoformat()}"))
        return start, end
    if duration is not None:
        end = None if seconds is None else start + timedelta(seconds=seconds)
    field = "end" if duration is None else "duration"
    if end is not None and end <= start:
        problems.append((f"{where}end", data.get("end"), f"must be after start, {start.isoformat()}"))
    elif end is not None and end - start < _SHORTEST:
        problems.append((f"{where}{field}", data.get(field), "must be a second after start or more"))
    elif end is not None and end - start > _LONGEST:
        remedy = f"must be at most {_LONGEST.days} days after start; leave it out for a limit that holds until it is released"
        problems.append((f"{where}end", data.get("end"), remedy))
    elif end is not None and last and end <= now:
        problems.append((f"{where}end", data.get("end"), f"has passed already; it is {now.isoformat()}"))
    return start, end


def _seconds(field: str, value: Any, most_s: float, problems: list[Problem]) -> float | None:
    """A length of time that was given, s, above 0; None where it was not, or is wrong."""
    if value is None:
        return None
    try:
        seconds = value if isinstance(value, int | float) else parse_duration(str(value))
        if not isinstance(value, bool) and math.isfinite(seconds) and 0 < seconds <= most_s:
            return float(seconds)
    except (ValueError, OverflowError):
        pass
    problems.append(
        (field, value, f"must be a duration such as '2h' or a number of seconds, of at most {most_s / 86400:g} days")
    )
    return None


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
    if (event.region, event.branch, event.test) != (held.region, held.branch, held.test):
        return True
    relative = event.start == event.received_at and held.start == held.received_at
    asked, asked_before = (
        [(s.start - since, s.end - since if s.end is not None else None, s.limit_w, s.emergency) for s in one.steps]
        for one in (event, held)
        for since in (one.start if relative else _EPOCH,)
    )
    return asked != asked_before


class GridEvents:
    """Stores events durably, one after another, so that a version made from the one that is held is the next one."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lock = asyncio.Lock()

    def _held(self, source: str, event_id: str) -> GridEvent | None:
        return self._services.store.grid_event(source, event_id)

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
                same = replace(event, version=held.version, received_at=held.received_at, opted_out=held.opted_out) == held
                event = replace(event, version=held.version if same else held.version + 1)
            elif held is not None and version == held.version and not held.cancelled and _differ(event, held):
                raise AlreadyExists(
                    f"version {version} of event {event.event_id} is held already and says something else; "
                    "send the change under a higher version"
                )
            outcome = await self._write(event, message_id)
            return outcome, event if outcome == "accepted" or held is None else held

    async def opt_out(self, source: str, event_id: str, reason: str | None) -> GridEvent:
        """Opt out of an event: it binds no more, and stays what its sender asked for. ``reason`` None takes that back.

        Raises NotFound, and IllegalMove for an event that is over."""
        async with self._lock:
            held, now = await in_thread(self._held, source, event_id), self._services.clock.now()
            if held is None or not held.region:
                raise NotFound(f"there is no event {event_id} from {source}")
            if held.cancelled or (held.end is not None and held.end <= now):
                raise IllegalMove(f"event {event_id} from {source} is over: there is nothing to opt out of")
            what, sentence = ("opted_in", "taken part in after all") if reason is None else ("opted_out", reason)
            change = GridEventChange(source, event_id, now, held.version, what, sentence)
            await asyncio.wrap_future(self._services.store.opt_out_grid_event(change, reason))
            self._services.nudge()
            return replace(held, opted_out=reason)

    async def cancel(
        self, source: str, event_id: str, *, version: int | None = None, message_id: str | None = None
    ) -> tuple[str, GridEvent]:
        """End an event, whatever its length. A sender's messages (those with an id) come in any order, so one that cancels an
        event not heard of yet is kept, and the event is ignored when it comes. Otherwise raises NotFound for one not held, and
        IllegalMove for one of an ``[[event_source]]``, which only its sender ends."""
        if any(source == one.name for one in self._services.config.event_sources):
            raise IllegalMove(
                f"event {event_id} is {source}'s, and only its sender can end it; to stop acting on it, opt out of it"
            )
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
        what = "cancelled" if event.cancelled else "accepted"
        limit = "" if event.limit_w is None or event.cancelled else f"at most {kw(event.limit_w, exact=True)}"
        danger = "an emergency" if event.emergency and not event.cancelled else ""
        sentence = "; ".join(part for part in (limit, danger, event.reason) if part) or what
        steps = () if event.cancelled else event.steps
        change = GridEventChange(event.source, event.event_id, event.received_at, event.version, what, sentence, steps=steps)
        outcome = await asyncio.wrap_future(self._services.store.save_grid_event(event, message_id, change=change))
        if outcome == "accepted":
            self._services.nudge()
        return outcome
