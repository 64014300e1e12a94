"""Puts the HTTP API together: routes, who may call, and how much they may send.

It makes no decision of its own; each part stands in its own module.
"""

from importlib import metadata
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from dispatcher.api.agents import AgentsApi
from dispatcher.api.answers import Handler, Refused, error_response, guarded
from dispatcher.api.auth import Auth
from dispatcher.api.draws import Draws
from dispatcher.api.event_list import EventList
from dispatcher.api.event_reports import EventReports
from dispatcher.api.fleet import FleetApi
from dispatcher.api.grid_events import GridEvents
from dispatcher.api.health import Health, healthz
from dispatcher.api.intake import Express
from dispatcher.api.limits import BodyLimit, body_bytes
from dispatcher.api.meters import Meters
from dispatcher.api.openadr3 import OpenAdr3
from dispatcher.api.ray_jobs import SUBMIT_PATHS, RayJobs
from dispatcher.api.self_service import SelfService
from dispatcher.api.services import Services
from dispatcher.api.serving import ServingApi
from dispatcher.api.signals import SignalsApi
from dispatcher.api.v1 import V1
from dispatcher.api.webhooks import Webhooks


def our_version() -> str:
    """The version that is installed."""
    try:
        return metadata.version("gridshift")
    except metadata.PackageNotFoundError:
        return "0+unknown"


class Intake:
    """ASGI: submissions go straight to their handler, everything else to the framework, whose layers would cost a submission
    as much as its commit."""

    def __init__(self, app: ASGIApp, submit: Handler) -> None:
        self._app, self._submit = app, guarded(submit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the class."""
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in SUBMIT_PATHS:
            response = await self._submit(Request(scope, receive))
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def create_app(services: Services) -> ASGIApp:
    """The application. Raises ConfigError when a webhook's secret is missing or unusable."""
    version = our_version()
    app = FastAPI(
        title="gridshift",
        version=version,
        description="Dispatch of batch GPU work on Ray by the state of the grid. Ray's own Jobs API is served under /api.",
        redoc_url=None,
    )
    health = Health(services)
    events = GridEvents(services)
    ray_jobs = RayJobs(services, health)
    v1, own, webhooks = V1(services, ray_jobs, events, version), SelfService(services), Webhooks(services, events)
    meters = Meters(services)
    serving = ServingApi(services)
    fleet, openadr3, reports = FleetApi(services), OpenAdr3(services), EventReports(services)
    router = APIRouter()
    for method, path, handler, what in (
        ("POST", "/v1/jobs", v1.submit, "jobs"),
        ("GET", "/v1/jobs", v1.jobs, "jobs"),
        ("GET", "/v1/jobs/{job_id}", v1.job, "jobs"),
        ("DELETE", "/v1/jobs/{job_id}", v1.delete, "jobs"),
        ("GET", "/v1/jobs/{job_id}/events", v1.job_events, "jobs"),
        ("POST", "/v1/jobs/{job_id}/cancel", v1.cancel, "jobs"),
        ("POST", "/v1/jobs/{job_id}/pause", v1.pause, "jobs"),
        ("POST", "/v1/jobs/{job_id}/resume", v1.resume, "jobs"),
        ("POST", "/v1/jobs/{job_id}/run-now", v1.run_now, "jobs"),
        ("GET", "/v1/jobs/{job_id}/logs", v1.logs, "jobs"),
        ("GET", "/v1/jobs/{job_id}/result", v1.result, "jobs"),
        ("GET", "/v1/plan", v1.plan, "plan"),
        ("GET", "/v1/plan/{job_id}", v1.plan_of_job, "plan"),
        ("GET", "/v1/regions", v1.regions, "regions"),
        ("GET", "/v1/fleet", fleet.fleet, "fleet"),
        ("GET", "/v1/energy", fleet.energy, "fleet"),
        ("GET", "/v1/signals", SignalsApi(services).get, "regions"),
        ("GET", "/v1/serving", serving.get, "regions"),
        ("GET", "/v1/serving/report", serving.report, "regions"),
        ("GET", "/v1/events", EventList(services).list, "events"),
        ("POST", "/v1/events", v1.create_event, "events"),
        ("POST", "/v1/events/{source}/{event_id:path}/opt-out", v1.opt_out, "events"),
        ("DELETE", "/v1/events/{source}/{event_id:path}/opt-out", v1.opt_in, "events"),
        ("GET", "/v1/events/{source}/{event_id:path}/report", reports.report, "events"),
        ("GET", "/v1/flexibility", reports.flexibility, "events"),
        ("GET", "/v1/events/{source}/{event_id:path}", v1.event, "events"),
        ("DELETE", "/v1/events/{source}/{event_id:path}", v1.cancel_event, "events"),
        ("POST", "/v1/webhooks/{source}", webhooks.receive, "events"),
        ("GET", "/v1/openadr3", openadr3.show, "events"),
        ("GET", "/v1/openadr3/callback", openadr3.echo, "events"),
        ("POST", "/v1/openadr3/callback", openadr3.notify, "events"),
        ("GET", "/v1/meters", meters.show, "meters"),
        ("GET", "/v1/draw", Draws(services).get, "meters"),
        ("POST", "/v1/meters/{region}/{meter}", meters.push, "meters"),
        ("GET", "/v1/status", v1.status, "control plane"),
        ("GET", "/v1/savings", v1.savings, "control plane"),
        ("GET", "/v1/self", own.tell, "inside a job"),
        ("POST", "/v1/self/checkpoint", own.checkpoint_saved, "inside a job"),
        ("PUT", "/v1/self/result", own.take_result, "inside a job"),
        ("GET", "/healthz", healthz, "control plane"),
        ("GET", "/readyz", health.readyz, "control plane"),
        ("GET", "/metrics", health.metrics, "control plane"),
    ):
        _add(router, method, path, handler, what)
    app.include_router(router)
    app.router.routes[:0] = [*ray_jobs.routes(), *AgentsApi(services).routes()]
    app.add_exception_handler(HTTPException, _unknown)
    # Who may call is asked first: a stranger's body is not even looked at.
    auth = Auth(BodyLimit(Intake(app, ray_jobs.submit), services.config), services)
    auth.express = Express(auth, ray_jobs, body_bytes(services.config))
    return auth


def _add(router: APIRouter, method: str, path: str, handler: Handler, tag: str) -> None:
    """A route that is documented, but whose values are checked by our own code, which names every problem at once."""
    router.add_api_route(
        path,
        guarded(handler),
        methods=[method],
        tags=[tag],
        summary=(handler.__doc__ or "").split("\n\n")[0].split(". ")[0].strip().rstrip("."),
        description=handler.__doc__,
        response_model=None,
        openapi_extra=_documented(method, path),
    )


def _documented(method: str, path: str) -> dict[str, Any]:
    """The parameters and body that OpenAPI shows."""
    named = [part.strip("{}").split(":")[0] for part in path.split("/") if part.startswith("{")]
    extra: dict[str, Any] = {
        "parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in named]
    }
    if method in ("POST", "PUT") and not path.endswith(("/cancel", "/pause", "/resume", "/run-now")):
        kind = "application/octet-stream" if method == "PUT" else "application/json"
        extra["requestBody"] = {"content": {kind: {"schema": {"type": "object"} if method == "POST" else {}}}}
    return extra


async def _unknown(request: Request, error: Exception) -> Response:
    """The framework's own errors (no such path, wrong method) in the form of ours."""
    if not isinstance(error, HTTPException):
        raise error
    what = {404: f"there is no {request.url.path[:200]} here", 405: f"{request.method} is not possible here"}
    return error_response(
        request.url.path, Refused(error.status_code, what.get(error.status_code, str(error.detail)), dict(error.headers or {}))
    )


__all__ = ["create_app"]
