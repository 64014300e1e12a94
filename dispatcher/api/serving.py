"""Interactive serving over HTTP: how each of its promises stands, and how far batch steps aside for it."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dispatcher.api.answers import json_response
from dispatcher.api.services import Services
from dispatcher.serving.watch import ServingStatus, source_of


class ServingApi:
    """``GET /v1/serving``."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def get(self, request: Request) -> Response:
        """Every declared serving; with ``?region=R&name=N`` one of them with its history, newest first."""
        query = request.query_params
        told = [_json(one) for one in self._services.serving()]
        if "region" in query or "name" in query:
            told = [one for one in told if (one["region"], one["name"]) == (query.get("region"), query.get("name"))]
            for one in told:
                lines = self._services.store.grid_event_changes(source_of(one["region"]), one["name"])
                one["history"] = [{"at": line.at.isoformat(), "sentence": line.sentence} for line in reversed(lines)][:200]
        return json_response({"serving": told})


def _json(one: ServingStatus) -> dict[str, Any]:
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
        "error": one.read_error or None,
    }
