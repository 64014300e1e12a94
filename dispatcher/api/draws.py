"""What a site or a branch drew lately, over HTTP: by its meter, or without one by what agents measured. It decides nothing."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dispatcher.api.answers import in_thread, json_response, strange_parameters
from dispatcher.api.services import Services
from dispatcher.api.views import time_of
from dispatcher.errors import BadInput
from dispatcher.flexibility import Measured

#: Told unless asked otherwise, and at most.
USUAL_H, MOST_H = 4.0, 48.0
#: Slots of one answer.
MOST_SLOTS = 480
_KNOWN = ("region", "branch", "hours")
_MINUTE_S = 60
REPLAYED = "time is replayed here, and meters run by the wall's clock"


class Draws:
    """``GET /v1/draw``."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def get(self, request: Request) -> Response:
        """The draw of ``region`` (or of its ``branch``) over the last ``hours`` (4; at most 48), W at the meter on equal slots;
        null where it is not known. ``basis`` says by what, ``estimated`` that no meter measured it."""
        region, branch, hours = self._asked(request.query_params)
        return json_response(await in_thread(draw_json, self._services, region, branch, hours))

    def _asked(self, query: Mapping[str, str]) -> tuple[str, str | None, float]:
        problems = strange_parameters(query, _KNOWN)
        known = {one.name: [branch.name for branch in one.branches] for one in self._services.config.regions}
        region, branch = query.get("region"), query.get("branch")
        if region not in known:
            problems.append(("region", region, "must be one of " + (", ".join(known) or "the configured regions")))
        elif branch is not None and branch not in known[region]:
            problems.append(("branch", branch, f"must be a branch of {region}: {', '.join(known[region]) or 'it has none'}"))
        try:
            hours = float(query.get("hours", USUAL_H))
        except ValueError:
            hours = math.nan
        if not 0 < hours <= MOST_H:
            problems.append(("hours", query.get("hours"), f"must be a number above 0, at most {MOST_H:g}"))
        if problems:
            raise BadInput(problems)
        return str(region), branch, hours


def draw_json(services: Services, region: str, branch: str | None, hours: float) -> dict[str, Any]:
    """See Draws.get. Raises StoreUnavailable."""
    # Numerics are loaded for the first question, not when the control plane starts.
    from dispatcher.event_series import BRIDGED, drawn_by_agents, series_of, usual_length_s

    told: dict[str, Any] = {"region": region, "branch": branch, "start": None, "step_s": None, "watts": []}
    if services.config.replay is not None:
        return told | {"basis": "unknown", "estimated": False, "simulated": False, "note": REPLAYED}
    end = services.clock.now()
    start = end - timedelta(hours=hours)
    meter, simulated = services.meters.meter_of(region, branch), False
    if meter is not None:
        spans, own_s = services.meters.history(region, branch, start, end).spans, meter.cadence_s
        basis = "site meter" if branch is None else "the branch's meter"
    else:
        # Whole minutes, as they are kept.
        start, end = _minute(start), _minute(end)
        nodes = [one for one in services.energy.known_nodes(region) if branch in (None, one.branch)]
        node_ids = None if branch is None else [one.node_id for one in nodes]
        sums = services.energy.sums(start, end, _MINUTE_S, region=region, node_ids=node_ids)
        spans, basis, simulated = drawn_by_agents(sums, nodes, services.config.region(region).pue, branch, end)
        own_s = float(_MINUTE_S)
    read = [one for one in spans if one.reason != BRIDGED]
    step_s = max(own_s, usual_length_s(read, start, end), math.ceil((end - start).total_seconds() / MOST_SLOTS))
    made = series_of(spans, start, end, step_s, basis)
    watts = [float(value) if known else None for value, known in zip(made.watts, made.known, strict=True)]
    return told | {
        "start": time_of(made.start),
        "step_s": step_s,
        "watts": watts,
        "basis": basis,
        "estimated": meter is None,
        "simulated": simulated,
        "note": None if any(value is not None for value in watts) else "nothing was measured in this time",
    }


def _minute(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(second=0, microsecond=0)


def measured_now(services: Services, region: str, branch: str | None = None) -> Measured:
    """What a site, or a branch of it, draws now by the best that is known."""
    if services.config.replay is not None:
        return Measured(None, "unknown", REPLAYED)
    now, meters = services.clock.now(), services.meters
    power = meters.site_power(region, now) if branch is None else meters.branch_power(region, branch, now)
    return Measured(power.value_w, power.quality, power.reason)
