"""What events delivered and what the fleet could give, over HTTP. It reads; it decides nothing."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import anyio.to_thread
from anyio import CapacityLimiter
from starlette.requests import Request
from starlette.responses import Response

from dispatcher.api.answers import Refused, in_thread, json_response
from dispatcher.api.draws import measured_now
from dispatcher.api.services import AlarmStatus, Services
from dispatcher.api.views import grid_event_json, time_of
from dispatcher.errors import BadInput, ConfigError
from dispatcher.flexibility import FOR_S, NO_BRANCHES, NO_PLAN, Outlook, ahead_of, now_of
from dispatcher.power.hub import REFUSED
from dispatcher.store import GridEvent

FORMATS = ("json", "csv", "html")
#: Reports that are made at the same time: each reads weeks of measurements.
AT_ONCE = 2


class EventReports:
    """``GET /v1/events/{source}/{event_id}/report`` and ``GET /v1/flexibility``."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._making = CapacityLimiter(AT_ONCE)

    async def report(self, request: Request) -> Response:
        """What an event delivered and was worth, so far if it goes on; 409 for one that has not begun. ``?format=json`` (the
        default), ``csv`` (the series) or ``html`` (a page that stands alone)."""
        query = request.query_params
        problems: list[tuple[str, object, str]] = [
            (name, query[name], "no such parameter; known is format") for name in query if name != "format"
        ]
        form = query.get("format") or "json"
        if form not in FORMATS:
            problems.append(("format", form, "must be one of " + ", ".join(FORMATS)))
        if problems:
            raise BadInput(problems)
        source, event_id = request.path_params["source"], request.path_params["event_id"]
        return await anyio.to_thread.run_sync(self._made, source, event_id, form, limiter=self._making)

    def _made(self, source: str, event_id: str, form: str) -> Response:
        # Numerics are loaded for the first report, not when the control plane starts.
        from dispatcher.backtest.figures import NoDrawing
        from dispatcher.event_report import Sources, report_of
        from dispatcher.verification.report import to_csv, to_json
        from dispatcher.verification.report_html import page

        services = self._services
        sources = Sources(services.config, services.store, services.meters, services.energy)
        report = report_of(sources, source, event_id, services.clock.now())
        if form == "csv":
            return Response(to_csv(report), media_type="text/csv; charset=utf-8", headers=_named(event_id, "csv"))
        if form == "html":
            try:
                # What is in it was escaped; should something slip through, the browser still runs no script of it.
                headers = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
                return Response(page(report), media_type="text/html; charset=utf-8", headers=headers)
            except NoDrawing as error:
                raise Refused(501, f"on the control plane: {error}") from error
        body: dict[str, Any] = to_json(report)
        return json_response(body)

    async def flexibility(self, request: Request) -> Response:
        """What each site and branch draws now and how much less it could, for how long, and the same by slot for the plan's
        next 24 hours (``?region=R``: one region). W at the meter."""
        query, services = request.query_params, self._services
        names = [region.name for region in services.config.regions]
        problems: list[tuple[str, object, str]] = [
            (name, query[name], "no such parameter; known is region") for name in query if name != "region"
        ]
        chosen = query.get("region")
        if chosen is not None and chosen not in names:
            problems.append(("region", chosen, "must be one of " + ", ".join(names)))
        if problems:
            raise BadInput(problems)
        return json_response(await in_thread(flexibility_json, services, chosen))


def flexibility_json(services: Services, chosen: str | None) -> dict[str, Any]:
    """See EventReports.flexibility."""
    world, fleet = services.snapshot().world, services.fleet()
    views = {view.name: view for view in world.regions}
    told = []
    for region in services.config.regions:
        view = views.get(region.name)
        if chosen not in (None, region.name) or view is None:
            continue
        places = [None, *(branch.name for branch in region.branches)]
        ahead = ahead_of(world, view)
        told.append(
            {
                "region": region.name,
                "now": [
                    outlook_json(now_of(world, fleet, view, place, measured_now(services, region.name, place)))
                    for place in places
                ],
                "ahead": [outlook_json(one) for one in ahead] if ahead else None,
                "ahead_missing": None if ahead else NO_PLAN,
                "ahead_of_branches": None,
                "ahead_of_branches_missing": NO_BRANCHES if region.branches else None,
            }
        )
    return {"at": time_of(world.now), "for_s": list(FOR_S), "of": "the meter, PUE included", "regions": told}


def outlook_json(one: Outlook) -> dict[str, Any]:
    """A place at a time."""
    return {
        "branch": one.branch,
        "start": time_of(one.start),
        "end": time_of(one.end),
        "draw_w": one.draw_w,
        "basis": one.basis,
        "reason": one.reason or None,
        "sheds": [{**asdict(part), "total_w": part.total_w} for part in one.sheds],
        "stays": None if one.stays is None else asdict(one.stays),
        "notes": list(one.notes),
    }


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox allow-downloads allow-popups"


def _named(event_id: str, ending: str) -> dict[str, str]:
    """A download with the event's name, as far as it fits in a header."""
    name = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_" for letter in event_id)[:100]
    return {"Content-Disposition": f'attachment; filename="event-{name}.{ending}"'}


# --- what an event is worth -------------------------------------------------------------------------------------------


def warned(told: dict[str, Any], alarms: Sequence[AlarmStatus]) -> dict[str, Any]:
    """An event's JSON with ``warning``: why nodes of its region do not keep it, though it is held; null where nothing is known
    to be in the way, or the event is over."""
    refused = [alarm.sentence for alarm in alarms if alarm.region == told["region"] and alarm.key.split(" ")[0] == REFUSED]
    live = told["state"] in ("scheduled", "active")
    return told | {"warning": f"not in force on GPUs there: {'; '.join(refused)}" if live and refused else None}


def event_json(
    services: Services, event: GridEvent, others: Sequence[GridEvent], alarms: Sequence[AlarmStatus]
) -> dict[str, Any]:
    """An event as `views.grid_event_json` tells it, and under ``programme`` what it is worth by its programme's terms: null for
    one that is over, a test or of a source without a programme. ``warning``: see warned."""
    now = services.clock.now()
    told = warned(grid_event_json(event, now), alarms)
    told["programme"] = None
    config = next((one for one in services.config.programmes if event.source in one.event_source), None)
    known = any(region.name == event.region for region in services.config.regions)
    if config is None or event.test or told["state"] not in ("scheduled", "active") or not event.steps or not known:
        return told
    from dispatcher.event_report import earlier_in_season
    from dispatcher.event_worth import worth_of

    world = services.snapshot().world
    try:
        fx = services.config.fx_rate(config.currency)
    except ConfigError:
        fx = None
    worth = worth_of(
        event,
        config,
        now,
        draw_w=measured_now(services, event.region, event.branch).draw_w,
        jobs=world.jobs,
        late_cost_per_h=world.settings.late_cost_per_h,
        jobs_currency=world.settings.currency,
        fx=fx,
        earlier=earlier_in_season(config, event, others, now),
    )
    told["programme"] = asdict(worth)
    return told
