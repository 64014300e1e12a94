"""Stored values as the JSON that clients see: our own, and Ray's JobDetails. Pure; knows no store and no requests."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from dispatcher.api.savings import missed
from dispatcher.api.services import AlarmStatus, LoopStatus, RegionStatus
from dispatcher.config import RegionConfig
from dispatcher.flexibility import Measured
from dispatcher.power.accounts import MODELLED
from dispatcher.power.fleet import GpuView
from dispatcher.power.hub import LeaseLive
from dispatcher.signal_book import SourceStatus
from dispatcher.store import Attempt, GridEvent, GridEventChange, Job, JobEvent
from policies.fit import never_fits
from policies.flexibility import deadline_warning
from policies.sentences import hhmm
from policies.turns import WAITING
from policies.world import (
    PLACED,
    Alternative,
    JobState,
    JobView,
    KeptFree,
    Placement,
    Plan,
    RegionView,
    Settings,
    World,
)
from signals.series import SlotSeries

RAY_STATUS = {
    JobState.QUEUED: "PENDING",
    JobState.LAUNCHING: "PENDING",
    JobState.RUNNING: "RUNNING",
    JobState.PAUSING: "RUNNING",
    JobState.PAUSED: "PENDING",
    JobState.SUCCEEDED: "SUCCEEDED",
    JobState.FAILED: "FAILED",
    JobState.CANCELLED: "STOPPED",
}
REDACTED = "<redacted>"


def time_of(at: datetime | None) -> str | None:
    """ISO 8601 with offset, or None."""
    return None if at is None else at.isoformat()


def _ms(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp() * 1000)


def remaining_s(job: Job, now: datetime | None = None, frozen_s: float = 0.0) -> float:
    """Expected run time still to do, seconds; 0 once it has ended. It counts down while the job runs, up to ``now`` (None: as
    of its last durable progress), and stands while it is frozen; ``frozen_s`` is for how long its run stood so before."""
    if job.finished_at is not None:
        return 0.0
    left_s = job.flex.runtime_s - job.progress_s
    if job.run_started_at is not None and now is not None:
        until = now if job.frozen_at is None else min(now, job.frozen_at)
        restart_s = job.flex.restart_s if job.pauses else 0.0  # what a resumed run does first is no progress
        left_s -= max(0.0, (until - job.run_started_at).total_seconds() - frozen_s - restart_s)
    return max(0.0, left_s)


def late_s(job: Job, now: datetime | None = None) -> float | None:
    """By how much a job missed its deadline, seconds, so far where it has not ended by ``now``; None without a deadline, for
    one that is not late yet, and for one that was cancelled."""
    deadline = job.flex.deadline_at
    if deadline is None or job.state is JobState.CANCELLED:
        return None
    if job.finished_at is not None:
        return max(0.0, (job.finished_at - deadline).total_seconds())
    return (now - deadline).total_seconds() if now is not None and now > deadline else None


def deadline_met(job: Job, now: datetime | None = None) -> bool | None:
    """Whether a job kept its deadline; None without one, while it can still be kept, and for one that was cancelled. A job that
    failed did not do by then what it was for."""
    if job.flex.deadline_at is None or job.state is JobState.CANCELLED:
        return None
    if job.finished_at is not None:
        return not missed(job)
    return False if late_s(job, now) is not None else None


def warning_of(job: Job, regions: Sequence[RegionView] = (), home: str | None = None) -> str | None:
    """What its owner should know of a job that will not go as was asked; None for others. ``home`` is the default region."""
    if job.finished_at is not None:
        return None
    waits = job.state in WAITING or job.state is JobState.LAUNCHING
    never = never_fits(job.flex, regions, home) if waits else None
    return never or deadline_warning(job.flex, job.submitted_at)


def job_json(
    job: Job,
    regions: Sequence[RegionView] = (),
    home: str | None = None,
    now: datetime | None = None,
    frozen_s: float = 0.0,
) -> dict[str, Any]:
    """A job as our API tells it ``now``, where ``regions`` are as they are; ``home`` is the default one, ``frozen_s`` is for
    how long its run stood frozen before. Its runtime_env stays out: it may carry secrets."""
    flex = job.flex
    return {
        "id": job.id,
        "state": job.state.value,
        "reason": job.reason,
        "warning": warning_of(job, regions, home),
        "entrypoint": job.request.entrypoint,
        "metadata": dict(job.request.metadata),
        "region": job.region,
        "attempt": job.attempt,
        "submitted_at": time_of(job.submitted_at),
        "started_at": time_of(job.started_at),
        "finished_at": time_of(job.finished_at),
        "planned_region": job.planned_region,
        "planned_start_at": time_of(job.planned_start_at),
        "deadline_at": time_of(flex.deadline_at),
        "late_s": late_s(job, now),
        "deadline_met": deadline_met(job, now),
        "earliest_at": time_of(flex.earliest_at),
        "runtime_s": flex.runtime_s,
        "remaining_s": remaining_s(job, now, frozen_s),
        "gpus": flex.gpus,
        "power_w": flex.power_w,
        "pausable": flex.pausable.value,
        "tier": flex.tier,
        "priority": flex.priority,
        "team": flex.team,
        "group": flex.group,
        "flexible": flex.flexible,
        "held": job.held,
        "run_now": job.run_now_at is not None,
        "cancel_requested": job.cancel_requested_at is not None,
        "pauses": job.pauses,
        "frozen_at": time_of(job.frozen_at),
        "energy_kwh": job.energy_kwh,
        "energy_basis": job.energy_basis or MODELLED,
        "cost": job.cost,
        "cost_currency": job.cost_currency,
        "carbon_kg": job.carbon_kg,
        "error_type": job.error_type,
        "exit_code": job.exit_code,
        "has_result": job.has_result,
    }


def attempt_json(attempt: Attempt) -> dict[str, Any]:
    """One try at a job."""
    return {
        "attempt": attempt.attempt,
        "region": attempt.region,
        "submission_id": attempt.submission_id,
        "launched_at": time_of(attempt.launched_at),
        "accepted_at": time_of(attempt.accepted_at),
        "started_at": time_of(attempt.started_at),
        "ended_at": time_of(attempt.ended_at),
        "outcome": attempt.outcome,
        "message": attempt.message,
        "gpu_type": attempt.gpu_type,
    }


def event_json(event: JobEvent) -> dict[str, Any]:
    """One change of one job."""
    return {
        "seq": event.seq,
        "at": time_of(event.at),
        "kind": event.kind,
        "old_state": event.old_state.value if event.old_state is not None else None,
        "new_state": event.new_state.value,
        "reason": event.reason,
        "attempt": event.attempt,
        "region": event.region,
    }


def ray_message(job: Job) -> str:
    """The sentence that ``ray job status`` shows: why, and for a waiting job when and where it is planned, unless its reason
    says so."""
    text = job.reason or job.state.value
    if job.state in WAITING and job.planned_start_at is not None:
        start = hhmm(job.planned_start_at)
        if f"{job.planned_region} from {start}" not in text:  # the words of a plan's own sentence
            text += f" (planned start {start}{f' in {job.planned_region}' if job.planned_region else ''})"
    return text


def ray_job_json(job: Job, *, redact: bool) -> dict[str, Any]:
    """A job as Ray's JobDetails; with ``redact`` its environment variables are masked, as Ray does for browsers."""
    runtime_env: Mapping[str, Any] = job.request.runtime_env
    if redact and isinstance(runtime_env.get("env_vars"), Mapping):
        runtime_env = {**runtime_env, "env_vars": dict.fromkeys(runtime_env["env_vars"], REDACTED)}
    return {
        "type": "SUBMISSION",
        "job_id": None,
        "submission_id": job.id,
        "driver_info": None,
        "status": RAY_STATUS[job.state],
        "entrypoint": job.request.entrypoint,
        "message": ray_message(job),
        "error_type": job.error_type,
        "start_time": _ms(job.started_at),
        "end_time": _ms(job.finished_at),
        "metadata": dict(job.request.metadata),
        "runtime_env": dict(runtime_env),
        "driver_agent_http_address": None,
        "driver_node_id": None,
        "driver_exit_code": job.exit_code,
    }


def placement_json(placement: Placement) -> dict[str, Any]:
    """Where and when the plan would run a job."""
    return {
        "job_id": placement.job_id,
        "region": placement.region,
        "intervals": [[time_of(start), time_of(end)] for start, end in placement.intervals],
        "cost": placement.cost,
        "run_now_cost": placement.run_now_cost,
        "energy_kwh": placement.energy_kwh,
        "carbon_kg": placement.carbon_kg,
        "late_s": placement.late_s,
        "reason": placement.reason,
    }


def plan_json(plan: Plan, currency: str, world: World) -> dict[str, Any]:
    """The whole plan, with what it is laid around: the jobs that have a place now, and the limits up to its horizon."""
    return {
        "made_at": time_of(plan.made_at),
        "horizon_end": time_of(plan.horizon_end),
        "slot_s": plan.slot_s,
        "currency": currency,
        "objective": plan.objective,
        "bound": plan.bound,
        "gap": plan.gap,
        "note": plan.note or None,
        "placements": [placement_json(placement) for placement in plan.placements.values()],
        "unplaced": dict(plan.unplaced),
        "peaks": [
            {
                "region": peak.region,
                "standing_w": peak.standing_w,
                "planned_w": peak.planned_w,
                "cost": peak.cost,
                "sentence": peak.sentence,
            }
            for peak in plan.peaks
        ],
        "kept_free": [kept_json(one) for one in plan.kept],
        "running": [_running_json(job, plan, world.now) for job in world.jobs if job.state in PLACED],
        "limits": [*_standing_limits(world.regions), *_event_limits(world, plan.horizon_end)],
    }


def _running_json(job: JobView, plan: Plan, now: datetime) -> dict[str, Any]:
    """A job that has a place. ``expected_end_at`` is as planned, else by its run time; None where it has not begun, or has run
    for longer than was expected."""
    placement, end = plan.placements.get(job.id), None
    if placement is not None and placement.intervals:
        end = placement.intervals[-1][1]
    elif job.run_started_at is not None:
        end = job.run_started_at + timedelta(seconds=job.remaining_s)
    return {
        "job_id": job.id,
        "region": job.region,
        "state": job.state.value,
        "started_at": time_of(job.run_started_at),
        "expected_end_at": time_of(end if end is not None and end > now else None),
    }


def _standing_limits(regions: Sequence[RegionView]) -> Iterator[dict[str, Any]]:
    for view in regions:
        if view.power_limit_w is not None:
            yield _limit_json(view.name, None, None, view.power_limit_w, None, None, "standing limit of the site")


def _event_limits(world: World, until: datetime) -> Iterator[dict[str, Any]]:
    """Limits by events that hold now or will before ``until``, of sites and of branches, by their beginning."""
    coming = [one for one in (*world.budgets, *world.branch_budgets) if one.start < until and not one.is_over(world.now)]
    for one in sorted(coming, key=lambda one: (one.start, one.region, one.event_id)):
        yield _limit_json(one.region, one.branch, one.event_id, one.limit_w, one.start, one.end, one.why)


def _limit_json(
    region: str,
    branch: str | None,
    event_id: str | None,
    limit_w: float,
    start: datetime | None,
    end: datetime | None,
    why: str,
) -> dict[str, Any]:
    return {
        "region": region,
        "branch": branch,
        "event_id": event_id,
        "limit_w": limit_w,
        "start": time_of(start),
        "end": time_of(end),
        "why": why,
    }


def kept_json(one: KeptFree) -> dict[str, Any]:
    """What a plan leaves free for interactive serving."""
    return {
        "region": one.region,
        "start": time_of(one.start),
        "end": time_of(one.end),
        "gpus": one.gpus,
        "power_w": one.power_w,
        "sentence": one.sentence,
    }


def kept_for_json(plan: Plan | None, job: Job, placement: Placement | None, now: datetime) -> list[dict[str, Any]]:
    """What is kept free for serving where a job is planned, until it is done; without a place, now and wherever it may run."""
    if plan is None:
        return []
    regions, until = job.flex.regions, now
    if placement is not None:
        regions, until = (placement.region,), max(now, placement.intervals[-1][1]) if placement.intervals else now
    return [
        kept_json(one) for one in plan.kept if (not regions or one.region in regions) and one.end > now and one.start <= until
    ]


def planning_json(settings: Settings, regions: Sequence[RegionView]) -> dict[str, Any]:
    """What a planned cost is made of: its currency, carbon's price per tonne, the weight of money, and each region's PUE."""
    return {
        "currency": settings.currency,
        "carbon_price": settings.carbon_price,
        "price_weight": settings.price_weight,
        "pue": {region.name: region.pue for region in regions},
    }


def alternatives_json(others: Sequence[Alternative]) -> list[dict[str, Any]]:
    """What could have been done with a job and was not chosen."""
    return [
        {"region": other.region, "start_at": time_of(other.start_at), "cost": other.cost, "why_not": other.why_not}
        for other in others
    ]


def now_json(series: SlotSeries | None, now: datetime) -> dict[str, Any] | None:
    """A signal's value now and where that comes from; ``low`` and ``high`` when it is our own forecast. None without one."""
    if series is None:
        return None
    index = int((now - series.start).total_seconds() // series.slot_s)
    known = 0 <= index < len(series.values)
    return {
        "unit": series.unit,
        "source": series.source,
        "now": series.values[index] if known else None,
        "basis": series.basis[index] if known else "unknown",
        "low": series.low[index] if known and series.low else None,
        "high": series.high[index] if known and series.high else None,
    }


def source_json(source: SourceStatus) -> dict[str, Any]:
    """How one source of a signal stands. Its options stay out: they may name where secrets are."""
    return {
        "feed": source.feed,
        "source": source.source,
        "state": source.state,
        "chosen": source.chosen,
        "why": source.why,
        "age_s": source.age_s,
        "known_until": time_of(source.known_until),
        "quality": source.quality,
        "due_at": time_of(source.due_at),
        "error": source.error,
        "warnings": list(source.warnings),
    }


def region_json(
    status: RegionStatus, config: RegionConfig, view: RegionView | None, now: datetime, site: Measured
) -> dict[str, Any]:
    """A region: what was observed, what is configured, its signals now, and what its site draws (``site_w``, W at the meter,
    and what that rests on), beside what its jobs are stated to draw (``draw_w``)."""
    return {
        "name": status.name,
        "address": status.address,
        "reachable": status.reachable,
        "observed_at": time_of(status.observed_at),
        "error": status.error,
        "ray_version": status.ray_version,
        "gpus": status.gpus,
        "gpus_used": status.gpus_used,
        "jobs_running": status.jobs_running,
        "draw_w": status.draw_w,
        "site_w": site.draw_w,
        "site_basis": site.quality,
        "power_limit_w": config.power_limit_w or None,
        "budget_w": status.budget_w,
        "currency": view.currency if view is not None else config.currency,
        "pue": config.pue,
        "price": now_json(view.price if view is not None else None, now),
        "carbon": now_json(view.carbon if view is not None else None, now),
    }


def slots_json(series: SlotSeries) -> dict[str, Any]:
    """A signal on the planner's slots; null where it is unknown, or where nothing is said of its quantiles."""
    nowhere = [None] * len(series.values)
    return {
        "start": time_of(series.start),
        "slot_s": series.slot_s,
        "values": list(series.values),
        "basis": list(series.basis),
        "low": list(series.low) or nowhere,
        "high": list(series.high) or nowhere,
        "reason": series.reason,
    }


def grid_event_state(event: GridEvent, now: datetime) -> str:
    """scheduled, active, expired or cancelled."""
    if event.cancelled:
        return "cancelled"
    if event.end is not None and event.end <= now:
        return "expired"
    return "scheduled" if event.start > now else "active"


def grid_event_json(event: GridEvent, now: datetime) -> dict[str, Any]:
    """A limit that somebody asked for."""
    return {
        "source": event.source,
        "event_id": event.event_id,
        "version": event.version,
        "region": event.region,
        "start": time_of(event.start),
        "end": time_of(event.end),
        "limit_w": event.limit_w,
        "state": grid_event_state(event, now),
        "received_at": time_of(event.received_at),
        "reason": event.reason,
        "test": event.test,
        "emergency": event.emergency,
        "branch": event.branch,
        "protocol": event.protocol,
        "said_version": event.said_version,
        "opted_out": event.opted_out,
        "steps": [
            {
                "start": time_of(step.start),
                "end": time_of(step.end),
                "limit_w": step.limit_w,
                "interval_id": step.interval_id,
                "ramp_s": step.ramp_s,
                "reason": step.reason,
                "emergency": step.emergency,
            }
            for step in event.steps
        ],
    }


def grid_event_change_json(change: GridEventChange) -> dict[str, Any]:
    """One line of an event's history."""
    return {
        "at": time_of(change.at),
        "version": change.version,
        "what": change.what,
        "sentence": change.sentence,
        "message": change.message,
    }


def cap_json(gpu: GpuView, lease: LeaseLive) -> dict[str, Any]:
    """A GPU of a job that is held below its default limit, and why."""
    return {
        "gpu": gpu.index,
        "uuid": gpu.uuid,
        "limit_w": lease.limit_w,
        "default_w": gpu.default_w,
        "ends_at": time_of(lease.ends_at),
        "reason": lease.reason,
        "simulated": gpu.simulated,
    }


def loop_json(loop: LoopStatus) -> dict[str, Any]:
    """One loop of the control plane."""
    return {
        "name": loop.name,
        "period_s": loop.period_s,
        "last_run_at": time_of(loop.last_run_at),
        "last_s": loop.last_s,
        "runs": loop.runs,
        "last_error": loop.last_error,
    }


def alarm_json(alarm: AlarmStatus) -> dict[str, Any]:
    """Something an operator must know."""
    return {"key": alarm.key, "region": alarm.region, "sentence": alarm.sentence, "since": time_of(alarm.since)}
