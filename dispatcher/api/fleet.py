"""What the fleet draws now and what it drew, over HTTP. It reads the hub and the book of energy; it decides nothing.

Powers are W and energies Wh at the GPUs, without PUE; a job's own figures (``/v1/jobs``) are at the meter.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dispatcher.api import intents
from dispatcher.api.answers import given_time, in_thread, json_response, strange_parameters
from dispatcher.api.services import Services
from dispatcher.api.views import time_of
from dispatcher.clock import SystemClock
from dispatcher.errors import BadInput
from dispatcher.power.energy import EnergySum
from dispatcher.power.fleet import BranchView, Draw, Fleet, GpuView, NodeView, RegionFleet, basis_of, said
from dispatcher.power.presence import Presence

#: Intervals that one answer tells at most.
MOST_INTERVALS = 3000
STEPS = {"minute": 60, "hour": 3600}
#: Up to this long a question without a step is answered by the minute.
_BY_THE_MINUTE = timedelta(hours=6)
#: Seconds after its end within which a minute's rows come in; until then it is not called a gap.
_ARRIVES_S = 20.0
OF = "the GPUs, without PUE"


class FleetApi:
    """``GET /v1/fleet`` and ``GET /v1/energy``."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def fleet(self, request: Request) -> Response:
        """Every GPU with its job, draw, limit, temperature and state, by region, branch and node (``?region=R``: one region). A
        sum tells how many GPUs are unknown in it; those of nodes whose agent is silent are."""
        query = request.query_params
        problems = strange_parameters(query, ("region",))
        names = [region.name for region in self._services.config.regions]
        chosen = query.get("region")
        if chosen is not None and chosen not in names:
            problems.append(("region", chosen, "must be one of " + ", ".join(names)))
        if problems:
            raise BadInput(problems)
        return json_response(fleet_json(await in_thread(self._services.fleet), chosen))

    async def energy(self, request: Request) -> Response:
        """What was measured, by interval: ``?job=ID`` or ``?region=R`` (default: everything), ``start``, ``end`` (ISO 8601 with
        offset), ``step=minute|hour``. An interval in which nothing was measured is null, and listed among the gaps."""
        return json_response(await in_thread(self._energy, dict(request.query_params)))

    def _energy(self, query: Mapping[str, str]) -> dict[str, Any]:
        problems = strange_parameters(query, ("job", "region", "start", "end", "step"))
        job_id, region = query.get("job"), query.get("region")
        names = [one.name for one in self._services.config.regions]
        if job_id is not None and region is not None:
            problems.append(("region", region, "give job or region, not both"))
        elif region is not None and region not in names:
            problems.append(("region", region, "must be one of " + ", ".join(names)))
        if query.get("step") not in (None, *STEPS):
            problems.append(("step", query["step"], "must be minute or hour"))
        given = {name: given_time(name, query.get(name), problems) for name in ("start", "end")}
        if problems:
            raise BadInput(problems)
        start, end = self._span(job_id, given["start"], given["end"], query.get("step"))
        if end <= start:
            raise BadInput([("end", time_of(end), f"must be after start, which is {time_of(start)}")])
        step = query.get("step") or ("minute" if end - start <= _BY_THE_MINUTE else "hour")
        step_s = STEPS[step]
        if (end - start).total_seconds() / step_s > MOST_INTERVALS:
            finer = ", or step=hour" if step == "minute" else ""
            remedy = f"more than {MOST_INTERVALS} intervals up to end; ask for less at a time{finer}"
            raise BadInput([("start", time_of(start), remedy)])
        sums = self._services.energy.sums(start, end, step_s, region=region, job_id=job_id)
        there = None
        if job_id is None:
            there = Presence(self._services.energy.known_nodes(region), SystemClock().now() - timedelta(seconds=_ARRIVES_S))
        return {
            "start": time_of(start),
            "end": time_of(end),
            "step": step,
            "job": job_id,
            "region": region,
            "of": OF,
            "note": _REPLAYED if self._services.config.replay is not None else None,
            **energy_json(sums, step_s, there),
        }

    def _span(
        self, job_id: str | None, start: datetime | None, end: datetime | None, step: str | None
    ) -> tuple[datetime, datetime]:
        """The time to tell of, where it is not given: a job's run, or the last hour (by the hour: the last day). Raises
        NotFound for no such job."""
        # Meters run by the wall's clock, whatever time is replayed.
        last = (SystemClock().now() - timedelta(seconds=_ARRIVES_S)).replace(second=0, microsecond=0)
        job = intents.visible_job(self._services, job_id) if job_id is not None else None
        if job is not None and self._services.config.replay is None:
            start = start or job.started_at
            if job.finished_at is not None:
                last = min(last, job.finished_at + timedelta(minutes=1))
        if end is None:
            end = last if start is None else max(last, start + timedelta(minutes=1))
        return start or end - (timedelta(days=1) if step == "hour" else timedelta(hours=1)), end


_REPLAYED = (
    "time is replayed here, but meters run by the wall's clock: the times are the wall's, and jobs' own figures are modelled"
)


def energy_json(sums: Sequence[EnergySum], step_s: int, there: Presence | None = None) -> dict[str, Any]:
    """Sums by interval, their total, and where nothing was measured. ``covered`` is the share of the GPUs' time that was
    measured: of those that were ``there``, else of those that were measured at all."""
    most = max((one.gpus for one in sums), default=0)
    known = [one for one in sums if one.energy_wh is not None]
    wanted_s = [_wanted_s(one, there) if there is not None else float(most * step_s) for one in sums]

    def total(name: str) -> float | None:
        values = [value for one in known if (value := getattr(one, name)) is not None]
        return sum(values) if values else None

    names = ("energy_wh", "job_wh", "idle_wh", "unattributed_wh", "execution_idle_wh")
    return {
        "simulated": any(one.simulated for one in sums),
        "total": {**{name: total(name) for name in names}, "gpu_seconds": sum(one.gpu_seconds for one in sums)}
        | {"covered": _share(sum(one.gpu_seconds for one in sums), sum(wanted_s))},
        "gaps": _gaps(sums),
        "intervals": [
            {
                "start": time_of(one.start),
                "end": time_of(one.end),
                **{name: getattr(one, name) for name in names},
                "gpus": one.gpus,
                "gpu_seconds": one.gpu_seconds,
                "covered": _share(one.gpu_seconds, one_wanted_s),
                "simulated": one.simulated,
            }
            for one, one_wanted_s in zip(sums, wanted_s, strict=True)
        ],
    }


def _wanted_s(one: EnergySum, there: Presence) -> float:
    """For how many GPU seconds of an interval there should be figures. Rows of GPUs that nobody knows count in full."""
    if there.gpus(one.start, one.end) < one.gpus:
        return one.gpus * (one.end - one.start).total_seconds()
    return max(there.gpu_seconds(one.start, one.end), one.gpu_seconds)


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole > 0 else 0.0


def _gaps(sums: Sequence[EnergySum]) -> list[dict[str, Any]]:
    found: list[list[datetime]] = []
    for one in sums:
        if one.energy_wh is not None:
            continue
        if found and found[-1][1] == one.start:
            found[-1][1] = one.end
        else:
            found.append([one.start, one.end])
    return [{"start": time_of(start), "end": time_of(end)} for start, end in found]


# --- the fleet ----------------------------------------------------------------------------------------------------


def fleet_json(fleet: Fleet, region: str | None = None) -> dict[str, Any]:
    """The fleet, or one region of it."""
    return {
        "at": time_of(fleet.at),
        "of": OF,
        "basis": basis_of(fleet),
        "draw": draw_json(fleet.draw),
        "regions": [_region(one) for one in fleet.regions if region in (None, one.name)],
    }


def draw_json(draw: Draw) -> dict[str, Any]:
    """A sum, and what is unknown in it."""
    return {
        "power_w": draw.power_w,
        "known_w": draw.known_w,
        "gpus": draw.gpus,
        "unknown_gpus": draw.unknown_gpus,
        "simulated": draw.simulated,
        "sentence": said(draw),
    }


def _region(region: RegionFleet) -> dict[str, Any]:
    return {"name": region.name, "draw": draw_json(region.draw), "branches": [_branch(one) for one in region.branches]}


def _branch(branch: BranchView) -> dict[str, Any]:
    return {
        "name": branch.name,
        "power_limit_w": branch.power_limit_w,
        "draw": draw_json(branch.draw),
        "nodes": [_node(one) for one in branch.nodes],
    }


def _node(node: NodeView) -> dict[str, Any]:
    return {
        "node_id": node.node_id,
        "hostname": node.hostname,
        "silent": node.silent,
        "last_seen_at": time_of(node.last_seen_at),
        "can_cap": node.can_cap,
        "why_not": node.why_not or None,
        "simulated": node.simulated,
        "draw": draw_json(node.draw),
        "gpus": [_gpu(one) for one in node.gpus],
        "alarms": [{"key": one.key, "sentence": one.sentence} for one in node.alarms],
        "frozen": [{"job_id": one.job_id, "until": time_of(one.until)} for one in node.frozen],
        "leases": [
            {
                "lease_id": one.lease_id,
                "kind": one.kind,
                "uuid": one.uuid,
                "limit_w": one.limit_w,
                "reason": one.reason,
                "ends_at": time_of(one.ends_at),
            }
            for one in node.leases
        ],
    }


def _gpu(gpu: GpuView) -> dict[str, Any]:
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "name": gpu.name,
        "simulated": gpu.simulated,
        "state": gpu.state,
        "jobs": None if gpu.jobs is None else list(gpu.jobs),
        "power_w": gpu.power_w,
        "limit_w": gpu.limit_w,
        "enforced_w": gpu.enforced_w,
        "default_w": gpu.default_w,
        "temperature_c": gpu.temperature_c,
        "sm_util": gpu.sm_util,
        "throttle": list(gpu.throttle),
        "cap": {
            "state": gpu.cap.state,
            "wanted_w": gpu.cap.wanted_w,
            "since": time_of(gpu.cap.since),
            "detail": gpu.cap.detail or None,
        },
        "mig": gpu.mig,
        "protected": gpu.protected or None,
    }
