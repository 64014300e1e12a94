"""gridshift's own HTTP API under ``/v1``: JSON in and out, each error with field, value and remedy.

It reads the store and the last snapshot, and writes intents; it decides nothing and asks no cluster.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from dispatcher.api import intents, savings, views
from dispatcher.api.answers import in_thread, json_bytes, json_response, strange_parameters
from dispatcher.api.draws import measured_now
from dispatcher.api.event_reports import event_json, warned
from dispatcher.api.grid_events import MAX_REASON, GridEvents, event_from, regions_of
from dispatcher.api.ray_jobs import RayJobs
from dispatcher.api.self_service import read_result
from dispatcher.api.services import RegionStatus, Services
from dispatcher.api.strict_json import parse_object
from dispatcher.api.submissions import default_region
from dispatcher.errors import BadInput, GridshiftError, NotFound
from dispatcher.power.accounts import MODELLED
from dispatcher.power.fleet import basis_of, caps_on
from dispatcher.store import OWN_SOURCE, Job
from policies.turns import HELD, WAITING
from policies.world import ENDED, PLACED, Alternative, JobState, Pausable, Placement, Plan, World

#: Seconds that a savings report is shown again before it is made anew.
_REPORT_KEPT_S = 5.0
#: Jobs whose alternatives are worked out at the same time; each takes as long as a plan of one job among all others.
EXPLAINED_AT_ONCE = 2


class V1:
    """The endpoints under ``/v1``, but for webhooks and what jobs ask of themselves."""

    def __init__(self, services: Services, ray_jobs: RayJobs, events: GridEvents, version: str) -> None:
        self._services, self._ray_jobs, self._events, self._version = services, ray_jobs, events, version
        self._explaining = anyio.CapacityLimiter(EXPLAINED_AT_ONCE)
        self._savings = savings.Remembered(self._make_savings, _REPORT_KEPT_S, time.monotonic)

    def _job_json(self, job: Job) -> dict[str, Any]:
        services, frozen_s = self._services, 0.0
        if job.flex.pausable is Pausable.FREEZE and job.run_started_at is not None:
            frozen_s = sum(one.frozen_s for one in services.store.attempts(job.id) if one.attempt == job.attempt)
        return views.job_json(job, services.region_views(), default_region(services.config), services.clock.now(), frozen_s)

    # --- jobs -----------------------------------------------------------------------------------------------------

    async def submit(self, request: Request) -> Response:
        """Submit a job: Ray's fields (entrypoint, submission_id, runtime_env, metadata, entrypoint_num_gpus ...)."""
        job = await self._ray_jobs.admit(await request.body())
        return json_response(self._job_json(job), 201)

    async def jobs(self, request: Request) -> Response:
        """A page of jobs, newest first: ``?state=&team=&cursor=&limit=`` (100 without a limit)."""
        query = request.query_params
        problems = strange_parameters(query, ("state", "team", "cursor", "limit"))
        state_text, limit_text = query.get("state") or None, query.get("limit") or "100"
        if state_text is not None and state_text not in list(JobState):
            problems.append(("state", state_text, "must be one of " + ", ".join(JobState)))
        if not (limit_text.isascii() and limit_text.isdigit() and 1 <= int(limit_text[:9]) <= 10_000):
            problems.append(("limit", limit_text, "must be a number from 1 to 10000"))
        if problems:
            raise BadInput(problems)
        state = JobState(state_text) if state_text is not None else None

        def body() -> bytes:
            page = self._services.store.page(
                state=state, team=query.get("team") or None, cursor=query.get("cursor") or None, limit=int(limit_text)
            )
            return json_bytes({"jobs": [self._job_json(job) for job in page.jobs], "next_cursor": page.next_cursor})

        return Response(await in_thread(body), media_type="application/json")

    async def job(self, request: Request) -> Response:
        """One job and its attempts."""

        def read() -> dict[str, Any]:
            job = intents.visible_job(self._services, request.path_params["job_id"])
            attempts = [views.attempt_json(attempt) for attempt in self._services.store.attempts(job.id)]
            caps = caps_on(self._services.fleet(), job.id) if job.state in PLACED else []
            return {**self._job_json(job), "attempts": attempts, "caps": [views.cap_json(*one) for one in caps]}

        return json_response(await in_thread(read))

    async def job_events(self, request: Request) -> Response:
        """Everything that happened to a job, in order."""

        def read() -> dict[str, Any]:
            job = intents.visible_job(self._services, request.path_params["job_id"])
            return {"events": [views.event_json(event) for event in self._services.store.events(job.id)]}

        return json_response(await in_thread(read))

    async def cancel(self, request: Request) -> Response:
        """Cancel a job; 409 when it has ended otherwise."""
        return json_response(self._job_json(await in_thread(intents.cancel, self._services, request.path_params["job_id"])))

    async def delete(self, request: Request) -> Response:
        """Hide an ended job; its id stays used. 409 for one that has not ended."""
        job_id = request.path_params["job_id"]
        await in_thread(intents.delete, self._services, job_id)
        return json_response({"id": job_id, "deleted": True})

    async def pause(self, request: Request) -> Response:
        """Hold a job until it is resumed; a running one is asked for a checkpoint first. 409 when it cannot be paused."""
        return json_response(self._job_json(await in_thread(intents.pause, self._services, request.path_params["job_id"])))

    async def resume(self, request: Request) -> Response:
        """Let a held job go on as the plan has it."""
        return json_response(self._job_json(await in_thread(intents.resume, self._services, request.path_params["job_id"])))

    async def run_now(self, request: Request) -> Response:
        """Let a waiting job start at once, whatever power costs, as soon as limits leave room. 409 for one that has ended."""
        return json_response(self._job_json(await in_thread(intents.run_now, self._services, request.path_params["job_id"])))

    async def logs(self, request: Request) -> Response:
        """The logs of all attempts as one text."""
        text = await in_thread(intents.whole_log, self._services, request.path_params["job_id"])
        return Response(text.encode("utf-8", "replace"), media_type="text/plain")

    async def result(self, request: Request) -> Response:
        """What the job handed in as its result; 404 until then."""

        def read() -> bytes:
            job = intents.visible_job(self._services, request.path_params["job_id"])
            return read_result(self._services.data_dir, job)

        # The bytes are a job's: a browser must neither show nor run them.
        headers = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff"}
        return Response(await in_thread(read), headers=headers, media_type="application/octet-stream")

    # --- the plan -------------------------------------------------------------------------------------------------

    def _made_plan(self, world: World) -> Plan:
        plan = world.plan
        if plan is None:
            raise NotFound("there is no plan yet; one is made when the first flexible job is submitted")
        return plan

    async def plan(self, request: Request) -> Response:
        """What would run when and where; 404 before the first plan."""
        world = self._services.snapshot().world
        plan = self._made_plan(world)
        return json_response(views.plan_json(plan, self._services.config.planning.currency, world))

    async def plan_of_job(self, request: Request) -> Response:
        """When and where a job will run, why, and what else was considered."""
        job = await in_thread(intents.visible_job, self._services, request.path_params["job_id"])
        world = self._services.snapshot().world
        plan = world.plan
        # What its owner has had started at once runs whatever is planned, and what is held does not, whatever was planned.
        left_alone = job.state in ENDED or job.held
        as_planned = not left_alone and not (job.run_now_at is not None and job.state in PLACED)
        placement = plan.placements.get(job.id) if plan is not None and as_planned else None
        unplaced = plan.unplaced.get(job.id) if plan is not None and not left_alone else None
        others, not_told = await self._alternatives(placement)
        return json_response(
            {
                "job": self._job_json(job),
                "placement": (
                    {**views.placement_json(placement), "cap": placement.cap, "gpu_type": placement.gpu_type}
                    if placement is not None
                    else None
                ),
                "alternatives": views.alternatives_json(others),
                "alternatives_missing": not_told,
                "planning": views.planning_json(world.settings, world.regions),
                "why": _why(job, placement, unplaced),
                "kept_free": views.kept_for_json(plan, job, placement, world.now) if job.state not in ENDED else [],
            }
        )

    async def _alternatives(self, placement: Placement | None) -> tuple[Sequence[Alternative], str | None]:
        """What else could have been done, and why that cannot be said now (None: it is said). Policies that make no list
        while they plan are asked here, for a few seconds at most."""
        if placement is None or placement.alternatives:
            return (placement.alternatives if placement is not None else ()), None
        try:
            told = await anyio.to_thread.run_sync(self._services.explain, placement.job_id, limiter=self._explaining)
        except GridshiftError as error:
            return (), f"not available now: {error}"
        return told, None

    # --- regions -----------------------------------------------------------------------------------------------

    async def regions(self, request: Request) -> Response:
        """Each region: what was observed there, what it draws and pays."""
        snapshot, now = self._services.snapshot(), self._services.clock.now()
        configured = {region.name: region for region in self._services.config.regions}
        seen = {view.name: view for view in snapshot.world.regions}

        def told(status: RegionStatus) -> dict[str, Any]:
            site = measured_now(self._services, status.name)
            return views.region_json(status, configured[status.name], seen.get(status.name), now, site)

        there = [status for status in snapshot.regions if status.name in configured]
        return json_response({"regions": await in_thread(lambda: [told(status) for status in there])})

    # --- events ---------------------------------------------------------------------------------------------------

    async def create_event(self, request: Request) -> Response:
        """Limit a region's power: ``{event_id, region, branch?, limit_w, start?, end?|duration?, version?, reason?,
        test?, emergency?}``.

        Several limits one after another: ``steps``, a list of ``{limit_w, start?, end?|duration?, reason?}``, in their place.
        """
        data, now = parse_object(await request.body()), self._services.clock.now()
        event, version = event_from(data, OWN_SOURCE, regions_of(self._services.config), now)
        outcome, held = await self._events.save(event, version)
        return json_response(
            {"outcome": outcome, "event": warned(views.grid_event_json(held, now), self._services.snapshot().alarms)},
            201 if outcome == "accepted" else 200,
        )

    async def cancel_event(self, request: Request) -> Response:
        """End an event, whoever asked for it."""
        outcome, event = await self._events.cancel(request.path_params["source"], request.path_params["event_id"])
        now = self._services.clock.now()
        return json_response({"outcome": outcome, "event": views.grid_event_json(event, now)})

    async def event(self, request: Request) -> Response:
        """One event: its steps, and what happened to it."""
        store = self._services.store
        source, event_id = request.path_params["source"], request.path_params["event_id"]

        def read() -> dict[str, Any]:
            found, lines = store.grid_event(source, event_id), store.grid_event_changes(source, event_id)
            if found is None and not lines:
                raise NotFound(f"there is no event {event_id} from {source}")
            told = (
                event_json(self._services, found, store.grid_events(), self._services.snapshot().alarms)
                if found is not None
                else None
            )
            return {"event": told, "history": [views.grid_event_change_json(line) for line in lines]}

        return json_response(await in_thread(read))

    async def opt_out(self, request: Request) -> Response:
        """Stop acting on an event that somebody else asked for: ``{reason}``. It stays what was asked for."""
        data = parse_object(await request.body())
        reason = data.get("reason")
        if not isinstance(reason, str) or not 0 < len(reason.strip()) <= MAX_REASON or data.keys() != {"reason"}:
            raise BadInput([("reason", reason, f"must be why, in a sentence of at most {MAX_REASON} characters")])
        return await self._opted(request, reason.strip())

    async def opt_in(self, request: Request) -> Response:
        """Act on an event again that was opted out of."""
        return await self._opted(request, None)

    async def _opted(self, request: Request, reason: str | None) -> Response:
        event = await self._events.opt_out(request.path_params["source"], request.path_params["event_id"], reason)
        return json_response({"event": views.grid_event_json(event, self._services.clock.now())})

    # --- the control plane itself ---------------------------------------------------------------------------------

    async def status(self, request: Request) -> Response:
        """The present, jobs by state, loops and alarms."""
        counts: Mapping[JobState, int] = await in_thread(self._services.store.counts)
        snapshot, clock = self._services.snapshot(), self._services.clock
        return json_response(
            {
                "now": views.time_of(clock.now()),
                "speed": clock.speed,
                "version": self._version,
                "counts": {state.value: counts.get(state, 0) for state in JobState},
                "loops": [views.loop_json(loop) for loop in snapshot.loops],
                "planner": snapshot.planner,
                "alarms": [views.alarm_json(alarm) for alarm in snapshot.alarms],
                "energy_basis": basis_of(self._services.fleet()),
                "replay": self._services.config.replay is not None,
            }
        )

    async def savings(self, request: Request) -> Response:
        """Cost and carbon of ended jobs against running each at once."""
        return json_response(await in_thread(self._savings.get))

    def _make_savings(self) -> dict[str, Any]:
        services = self._services
        known = services.store.ray_jobs(savings.JOBS_COVERED, deleted=True)
        jobs, waiting = [job for job in known if job.state in ENDED], [job for job in known if job.state in WAITING]
        regions = {region.name: region for region in services.config.regions}
        now = services.clock.now()
        chains = [chain for chain in services.signal_chains(now) if chain.what == "price"]
        feeds = {chain.region: source.source for chain in chains for source in chain.sources if source.chosen}
        # What a job drew tells how long it ran only where that was worked out of its run time.
        measured = [job for job in jobs if job.energy_kwh and job.energy_basis not in (None, MODELLED)]
        ran_s = {job.id: savings.ran_seconds(services.store.attempts(job.id)) for job in measured}
        report = savings.report(jobs, services.snapshot().world, regions, services.signals, now, feeds, ran_s)
        return savings.with_waiting(report, waiting, services.region_views(), default_region(services.config), now)


def waits_as_planned(job: Job) -> bool:
    """Whether a job's sentence is that of a plan: of the one that stands, or an older one of the same place."""
    return job.state in WAITING and job.planned_start_at is not None


def _why(job: Job, placement: Placement | None, unplaced: str | None) -> str:
    """One sentence: that of the plan that stands where the job waits for it; else the job's own, and the plan's where it says
    something else."""
    if job.held and job.state in WAITING:
        return HELD
    if placement is not None and waits_as_planned(job):
        return placement.reason
    parts = [job.reason or str(job.state)]
    if placement is not None and placement.reason not in parts[0]:
        parts.append(f"plan: {placement.reason}")
    if unplaced is not None and unplaced not in parts[0]:
        parts.append(f"not placed: {unplaced}")
    return "; ".join(parts)
