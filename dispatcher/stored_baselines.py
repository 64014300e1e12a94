"""The baselines of an event that were kept when notice of it came: by the plan of then, and without any shifting.

From what the store keeps (before_events.py makes it) to `verification`'s baselines, with what is to be said of them. Jobs that
came after the notice are in neither: how many they were, and what they drew, is told beside.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from dispatcher.power.energy import EnergyBook
from dispatcher.store import Attempt, BeforeEvent, Job, Store
from dispatcher.verification.baselines import (
    COUNTERFACTUAL,
    STORED_PLAN,
    Baseline,
    BaselineRefused,
    Refusable,
    counterfactual,
    stored_plan,
)
from dispatcher.verification.like_days import EventWindow, Span
from dispatcher.verification.series import MeteredSeries
from policies.sentences import kw

#: Jobs that came late whose energy is looked up, the first.
_LOOKED_UP = 200
_MINUTE_S = 60


@dataclass(frozen=True, slots=True)
class Later:
    """Jobs that came after the notice and ran in the event; what ``measured`` of them drew in it, kWh at the meter."""

    jobs: int = 0
    measured: int = 0
    energy_kwh: float = 0.0

    @property
    def told(self) -> str:
        """In words; empty where there were none."""
        if not self.jobs:
            return ""
        many = "1 job that came after the notice is" if self.jobs == 1 else f"{self.jobs:,} jobs that came after the notice are"
        if not self.measured:
            return f"{many} not in it; what they drew in the event was not measured"
        known = "" if self.measured == self.jobs else f", as far as is known of {self.measured:,} of them"
        they = "it" if self.jobs == 1 else "they"
        return f"{many} not in it; {they} drew {self.energy_kwh:,.2f} kWh in the event{known}"


def stored_baselines(
    kept: BeforeEvent | None, window: EventWindow, over: Span, later: Later
) -> tuple[tuple[str, Refusable], tuple[str, Refusable]]:
    """The stored plan and the schedule without shifting, each as a method that refuses where nothing was kept."""
    if kept is None:
        return (STORED_PLAN, _nothing), (COUNTERFACTUAL, _nothing)
    told, flags = _told(kept), _flags(kept, later)

    def plan() -> Baseline:
        if kept.plan_w is None or kept.plan_made_at is None:
            raise BaselineRefused("no_plan", kept.plan_why)
        return stored_plan(_series(kept, kept.plan_w), window, kept.plan_made_at, told=told, flags=flags, over=over)

    def unshifted() -> Baseline:
        if kept.unshifted_w is None or kept.looked_at is None:
            raise BaselineRefused("not_told", kept.unshifted_why)
        at = min(kept.looked_at, kept.notice_at)  # jobs from between the two are left out
        return counterfactual(_series(kept, kept.unshifted_w), window, at, told=told, flags=flags, over=over)

    return (STORED_PLAN, plan), (COUNTERFACTUAL, unshifted)


def _nothing() -> Baseline:
    raise BaselineRefused("nothing_kept", "nothing was kept when notice of the event came")


def _series(kept: BeforeEvent, watts: tuple[float, ...]) -> MeteredSeries:
    return MeteredSeries(kept.start, float(kept.slot_s), np.asarray(watts, dtype=np.float64), basis="as stored")


def _told(kept: BeforeEvent) -> list[str]:
    jobs = "1 job is" if kept.jobs == 1 else f"{kept.jobs:,} jobs are"
    said = [f"{jobs} in it, in slots of {kept.slot_s / 60:g} min."]
    if kept.other_w:
        said.append(f"{kw(kept.other_w)} that were no job's, as measured then, count throughout.")
    return said


def _flags(kept: BeforeEvent, later: Later) -> list[str]:
    return [*kept.notes, *([later.told] if later.told else [])]


def jobs_since(
    store: Store, energy: EnergyBook, jobs: Iterable[Job], kept: BeforeEvent, region: str, pue: float, window: EventWindow
) -> Later:
    """Of ``jobs`` those that came to ``region`` after the notice and ran in the event. Reads the store and the book of energy.
    Raises StoreUnavailable."""
    since = kept.notice_at
    maybe = [job for job in jobs if job.submitted_at > since and _may_have_run(job, window)]
    late = [job for job in maybe if any(_ran_in(one, region, window) for one in store.attempts(job.id))]
    measured, kwh = 0, 0.0
    for job in late[:_LOOKED_UP]:
        sums = energy.sums(window.start, window.end, _MINUTE_S, region=region, job_id=job.id)
        known = [one.energy_wh for one in sums if one.energy_wh is not None]
        if known:
            measured, kwh = measured + 1, kwh + sum(known) / 1000 * pue
    return Later(len(late), measured, kwh)


def _may_have_run(job: Job, window: EventWindow) -> bool:
    return job.submitted_at < window.end and job.attempt > 0 and (job.finished_at is None or job.finished_at > window.start)


def _ran_in(attempt: Attempt, region: str, window: EventWindow) -> bool:
    start: datetime | None = attempt.started_at or attempt.accepted_at
    if attempt.region != region or start is None:
        return False
    return start < window.end and (attempt.ended_at is None or attempt.ended_at > window.start)
