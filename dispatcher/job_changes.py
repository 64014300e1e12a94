"""Jobs as policies see them, and the changes to them that are recorded. Pure; a live control plane and a backtest share it."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from dispatcher.launch import submission_id
from dispatcher.store import Attempt, Change, Job
from dispatcher.store.copying import maker
from policies.world import JobState, JobView

# A backtest makes hundreds of thousands of these.
_new_attempt, _new_change, _new_view = maker(Attempt), maker(Change), maker(JobView)


def change(
    job: Job,
    at: datetime,
    kind: str,
    reason: str,
    *,
    expect: JobState | None = None,
    expect_seq: int | None = None,
    attempt: Attempt | None = None,
    to: JobState | None = None,
    fields: Mapping[str, Any] | None = None,
    attempt_fields: Mapping[str, Any] | None = None,
) -> Change:
    """A change to ``job`` expected as it was seen."""
    return Change(
        job_id=job.id,
        at=at,
        kind=kind,
        reason=reason,
        expect=expect or job.state,
        expect_attempt=attempt.attempt if attempt else job.attempt,
        expect_seq=expect_seq,
        to=to,
        fields=fields or {},
        attempt_fields=attempt_fields or {},
    )


def launch_change(job: Job, region: str, reason: str, now: datetime, gpu_type: str | None = None) -> Change:
    """The change that starts the next attempt of ``job`` in ``region``, on GPUs of ``gpu_type`` (None: any)."""
    number = job.attempt + 1
    attempt = _new_attempt(job.id, number, region, submission_id(job.id, number), launched_at=now, gpu_type=gpu_type)
    fields = {"attempt": number, "region": region, "not_before_at": None, "run_started_at": None}
    return _new_change(
        job_id=job.id,
        at=now,
        kind="state",
        reason=reason,
        expect=job.state,
        expect_attempt=job.attempt,
        expect_seq=job.seq,  # a cancel or a pause that came meanwhile wins
        to=JobState.LAUNCHING,
        fields=fields,
        new_attempt=attempt,
    )


def freezing_view(view: JobView, job: Job, frozen_s: float, now: datetime, cannot: str, frozen_w: float | None) -> JobView:
    """The view of a running job that may be frozen, or is. ``frozen_s`` is for how long its attempt stood frozen before,
    ``cannot`` why it cannot be frozen (empty: it can), ``frozen_w`` what it draws while it is (None: not measured)."""
    if job.frozen_at is not None:
        frozen_s += max(0.0, (now - job.frozen_at).total_seconds())
    return replace(
        view,
        run_started_at=None if view.run_started_at is None else min(now, view.run_started_at + timedelta(seconds=frozen_s)),
        frozen_at=job.frozen_at,
        rested_at=job.rested_at,
        frozen_w=frozen_w,
        cannot_freeze=cannot,
    )


def view_of(job: Job, learned_s: float | None = None, gpu_type: str | None = None) -> JobView:
    """What policies see of a job. ``learned_s`` is the run time that its group's earlier jobs tell where its owner gave none,
    ``gpu_type`` what its live attempt runs on."""
    flex = job.flex if learned_s is None else replace(job.flex, runtime_s=max(learned_s, 1.0))
    least_s = min(60.0, 0.1 * flex.runtime_s)
    return _new_view(
        id=job.id,
        state=job.state,
        state_since=job.state_since,
        submitted_at=job.submitted_at,
        flex=flex,
        remaining_s=max(flex.runtime_s - job.progress_s, least_s),
        region=job.region,
        run_started_at=job.run_started_at,
        attempt=job.attempt,
        held=job.held,
        cancel_requested=job.cancel_requested_at is not None,
        pause_requested=job.state is JobState.PAUSING,
        checkpoint_saved=job.checkpoint_saved_at is not None,
        checkpoint_misses=job.checkpoint_misses,
        last_pause_asked_at=job.pause_requested_at,
        not_before_at=job.not_before_at,
        reason=job.reason,
        planned_region=job.planned_region,
        planned_start_at=job.planned_start_at,
        gpu_type=gpu_type,
        run_now=job.run_now_at is not None,
    )
