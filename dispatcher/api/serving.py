"""Interactive serving over HTTP: how each of its promises stands, how far batch steps aside, and reports of what was kept."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dispatcher.api.answers import given_time, in_thread, json_response, strange_parameters
from dispatcher.api.services import Services
from dispatcher.api.views import kept_json, time_of
from dispatcher.errors import BadInput
from dispatcher.serving.report import ServingReport, make_report
from dispatcher.serving.watch import ServingStatus, source_of
from policies.serving_headroom import told_of
from policies.world import RegionView

#: A report without a start looks back so far; the longest looks back a year and a day.
USUAL, LONGEST = timedelta(days=7), timedelta(days=366)
#: So many stretches of what is kept free are told of each serving.
MOST_KEPT = 12
NOTE = (
    "seen at different hours: batch runs most when there is least to serve, so the difference between with and without it "
    "alone proves no cause"
)


class ServingApi:
    """``GET /v1/serving`` and ``GET /v1/serving/report``."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def get(self, request: Request) -> Response:
        """Every declared serving; with ``?region=R&name=N`` one of them with its history, newest first."""
        query = request.query_params
        views = {view.name: view for view in self._services.region_views()}
        told = [_json(one, views.get(one.region)) for one in self._services.serving()]
        if "region" in query or "name" in query:
            told = [one for one in told if (one["region"], one["name"]) == (query.get("region"), query.get("name"))]
            for one in told:
                lines = self._services.store.grid_event_changes(source_of(one["region"]), one["name"])
                one["history"] = [{"at": line.at.isoformat(), "sentence": line.sentence} for line in reversed(lines)][:200]
        return json_response({"serving": told})

    async def report(self, request: Request) -> Response:
        """What was kept of each promise without batch beside it and with it, what batch got done, and how often it stepped
        aside: of every serving, or of ``?region=R`` and ``name=N``, between ``start`` (default: a week before the end) and
        ``end`` (default: now), ISO 8601 with offset, by whole quarter hours that begin between them."""
        return json_response(await in_thread(self._report, dict(request.query_params)))

    def _report(self, query: Mapping[str, str]) -> dict[str, Any]:
        problems = strange_parameters(query, ("region", "name", "start", "end"))
        declared = [(one.region, one.name) for one in self._services.serving()]
        for number, key in enumerate(("region", "name")):
            known = sorted({one[number] for one in declared})
            if key in query and query[key] not in known:
                problems.append((key, query[key], "must be one of " + ", ".join(known) if known else "no serving is declared"))
        given = {key: given_time(key, query.get(key), problems) for key in ("start", "end")}
        if problems:
            raise BadInput(problems)
        end = given["end"] or self._services.clock.now()
        start = given["start"] or end - USUAL
        if not start < end <= start + LONGEST:
            remedy = f"must be after start, which is {time_of(start)}, by {LONGEST.days} days at most"
            raise BadInput([("end", time_of(end), remedy)])
        wanted = [
            (region, name)
            for region, name in declared
            if query.get("region", region) == region and query.get("name", name) == name
        ]
        read = self._services.store.serving_quarters
        reports = [make_report(region, name, start, end, read(region, name, start, end)) for region, name in wanted]
        return {"start": time_of(start), "end": time_of(end), "note": NOTE, "serving": [_report_json(one) for one in reports]}


def _report_json(one: ServingReport) -> dict[str, Any]:
    told = asdict(one)
    del told["start"], told["end"]
    return told


def _json(one: ServingStatus, view: RegionView | None) -> dict[str, Any]:
    return {
        "region": one.region,
        "name": one.name,
        "level": one.level.name.lower(),
        "since": one.since.isoformat(),
        "sentence": one.sentence,
        "unmet_alone": one.unmet_alone,
        "objectives": [
            {
                "state": risk.state,
                "short_burn": round(risk.short_burn, 3),
                "long_burn": round(risk.long_burn, 3),
                "sentence": risk.sentence,
            }
            for risk in one.risks
        ],
        "batch": {
            "running": one.batch.running,
            "cappable": one.batch.cappable,
            "freezable": one.batch.freezable,
            "pausable": one.batch.pausable,
        },
        "kept_free": [] if view is None else _kept(one, view),
        "error": one.read_error or None,
    }


def _kept(one: ServingStatus, view: RegionView) -> list[dict[str, Any]]:
    """What batch leaves free for it from now on, the next of it."""
    mine = sorted((kept for kept in view.reserved if kept.whom == f"serving {one.name}"), key=lambda kept: kept.start)
    return [kept_json(told_of(view, kept)) for kept in mine[:MOST_KEPT]]
