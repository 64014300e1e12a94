"""The list of grid events over HTTP: what is in force first, and the limits that they and the site set now and next.

It reads; what an event is worth is worked out elsewhere.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dispatcher.api.answers import in_thread, json_response, strange_parameters
from dispatcher.api.event_reports import event_json
from dispatcher.api.services import Services
from dispatcher.api.views import grid_event_state, time_of
from dispatcher.errors import BadInput
from dispatcher.store import OWN_SOURCE, GridEvent
from policies.world import Budget, World

STATES = ("scheduled", "active", "expired", "cancelled")
#: Events that are over are told for so long, and so many events at once, unless more is asked for.
SINCE, LIMIT, MOST = timedelta(days=30), 1000, 10_000
#: The longest season of a programme.
SEASON = timedelta(days=366)
_FIRST = datetime(1970, 1, 1, tzinfo=UTC)
_KNOWN = ("since", "state", "limit", "event_id")
_LIVE = ("active", "scheduled")


class EventList:
    """``GET /v1/events``."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def list(self, request: Request) -> Response:
        """The latest version of the events that are not over, and of those that ended lately: what is in force
        first, then what is to come by its start, then what is over, newest start first.

        ``since`` (a time with offset; default: 30 days ago): when those that are over ended at the earliest; ``state``:
        scheduled, active, expired or cancelled, several with commas; ``event_id``: that id of any source, however old;
        ``limit``: so many at most (1,000), but all that are in force. ``left_out`` is how many more there are.
        ``limits`` are those in force or to come, and those from which load still comes back.
        """
        asked = asked_of(request.query_params, self._services.clock.now())
        return json_response(await in_thread(self._told, *asked))

    def _told(self, since: datetime | None, states: Sequence[str], limit: int, event_id: str | None) -> dict[str, Any]:
        services = self._services
        now = services.clock.now()
        # What an event is worth may depend on how many calls its season has seen.
        first = since
        if since is not None and services.config.programmes:
            first = max(since, _FIRST) - SEASON
        whole = services.store.grid_events(ended_after=first)
        found = [one for one in whole if since is None or (over := ended_at(one)) is None or over > since]
        found = [one for one in found if event_id in (None, one.event_id) and grid_event_state(one, now) in states]
        chosen, snapshot = listed(found, now, limit), services.snapshot()
        return {
            "events": [event_json(services, one, whole, snapshot.alarms) for one in chosen],
            "left_out": len(found) - len(chosen),
            "limits": limits_json(snapshot.world, now),
        }


def asked_of(query: Mapping[str, str], now: datetime) -> tuple[datetime | None, Sequence[str], int, str | None]:
    """(since, states, limit, event_id) of a request. Raises BadInput, naming everything that is wrong."""
    problems = strange_parameters(query, _KNOWN)
    event_id = query.get("event_id")
    since = now - SINCE if event_id is None else None
    if (text := query.get("since")) is not None:
        try:
            at = datetime.fromisoformat(text.replace(" ", "+"))  # a plus sign that was not encoded
            since = at.astimezone(UTC) if at.tzinfo is not None else None
        except (ValueError, OverflowError):
            since = None
        if since is None:
            problems.append(("since", text, "must be a time with an offset, such as 2026-01-31T12:00:00Z"))
    states = [one.strip() for one in query["state"].split(",")] if query.get("state") else list(STATES)
    problems += [("state", one, "must be one of " + ", ".join(STATES)) for one in states if one not in STATES]
    limit = query.get("limit", str(LIMIT))
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 5 and 1 <= int(limit) <= MOST):
        problems.append(("limit", limit, f"must be a whole number from 1 to {MOST}"))
    if problems:
        raise BadInput(problems)
    return since, states, int(limit), event_id


def ended_at(event: GridEvent) -> datetime | None:
    """When an event was over, or will be; None: open. One that was cancelled ended when that came."""
    return event.received_at if event.cancelled else event.end


def listed(events: Sequence[GridEvent], now: datetime, limit: int) -> list[GridEvent]:
    """At most ``limit`` events, but all that are in force: those first, then those to come by their start, then those that are
    over, the newest start first."""
    ordered = sorted(events, key=lambda e: (e.start, e.source, e.event_id))
    states = [(one, grid_event_state(one, now)) for one in ordered]
    active = [one for one, state in states if state == "active"]
    ahead = [one for one, state in states if state == "scheduled"]
    over = [one for one, state in states if state not in _LIVE]
    over.sort(key=lambda one: one.start, reverse=True)
    return [*active, *ahead, *over][: max(limit, len(active))]


def limits_json(world: World, now: datetime) -> list[dict[str, Any]]:
    """The limits on each region and branch: its own that always hold, and one for each step of an event that binds, with the
    overlap rules of its source applied. Those that are over are told while load comes back from them."""
    told = [
        _standing(view.name, branch, limit_w)
        for view in world.regions
        for branch, limit_w in ((None, view.power_limit_w), *((one.name, one.power_limit_w) for one in view.branches))
        if limit_w is not None
    ]
    budgets = sorted((*world.budgets, *world.branch_budgets), key=lambda one: (one.start, one.limit_w))
    return told + [_of_event(one, now) for one in budgets if not one.is_over(now) or one.way_back(now) is not None]


def _standing(region: str, branch: str | None, limit_w: float) -> dict[str, Any]:
    of = "branch" if branch else "site"
    place: dict[str, Any] = {"region": region, "branch": branch, "limit_w": limit_w, "start": None, "end": None}
    return place | {"holds": True, "source": None, "event_id": None, "reason": f"{of} limit", "ramp_s": None, "way_back": None}


def _of_event(budget: Budget, now: datetime) -> dict[str, Any]:
    return {
        "region": budget.region,
        "branch": budget.branch,
        "limit_w": budget.limit_w,
        "start": time_of(budget.start),
        "end": time_of(budget.end),
        "holds": budget.holds(now),
        "source": budget.source or OWN_SOURCE,
        # A step's limit carries its event's id and its own start.
        "event_id": budget.event_id.removesuffix(f" from {budget.start:%Y-%m-%dT%H:%M:%S.%fZ}"),
        "reason": budget.reason,
        "ramp_s": budget.ramp_s,
        "way_back": budget.way_back(now),
    }
