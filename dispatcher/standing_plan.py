"""The plan that stands: made anew now and then, and between that given places for jobs that come.

Answers of whoever plans may arrive in another order than they were given in, since new jobs get their places while a plan is
made; their versions tell. It asks no store and no cluster, and does not decide when to plan.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from dispatcher.planning import Made, NoPlanThere, Placed, Planning
from dispatcher.store import Job
from policies.world import Alternative, JobState, JobView, Plan, World

#: More new jobs than this are not given places one after the other: a whole plan is quicker.
MANY = 200


def wants_place(job: Job | JobView) -> bool:
    """Whether a job waits for the plan to say when and where it runs."""
    cancelled = job.cancel_requested if isinstance(job, JobView) else job.cancel_requested_at is not None
    return job.flex.flexible and not job.held and not cancelled and job.state in (JobState.QUEUED, JobState.PAUSED)


class StandingPlan:
    """See the module. Thread-safe."""

    def __init__(self, planning: Planning) -> None:
        self._planning = planning
        self._lock = threading.Lock()
        self._made: Made | None = None
        #: Places given since, as far as a plan that is still on its way may not have them.
        self._since: list[Placed] = []
        self._new: dict[str, Job] = {}
        self._back: dict[str, None] = {}
        self._gone: dict[str, None] = {}
        self._plan: Plan | None = None

    @property
    def plan(self) -> Plan | None:
        """The plan; None before the first."""
        return self._plan

    @property
    def notes(self) -> tuple[str, str | None]:
        """How whoever plans is, in words, and what is wrong with that (None: nothing)."""
        if self._planning.trouble is not None:
            return self._planning.trouble, self._planning.trouble
        return ("planner warming up" if self._planning.warming_up else "ready"), None

    @property
    def warming_up(self) -> bool:
        """Whether jobs are placed one by one until the policy is ready."""
        return self._planning.warming_up

    # --- what happened to jobs --------------------------------------------------------------------------------------

    def came(self, job: Job) -> None:
        """A job was submitted."""
        with self._lock:
            self._new[job.id] = job

    def came_back(self, job_id: str) -> None:
        """A job waits again: it was paused, lost, or is held no longer."""
        with self._lock:
            self._back[job_id] = None

    def left(self, job_id: str) -> None:
        """A job ended, or its owner holds it."""
        with self._lock:
            self._gone[job_id] = None
            self._new.pop(job_id, None)
            self._back.pop(job_id, None)

    @property
    def behind(self) -> bool:
        """Whether anything happened that the plan does not know of."""
        return bool(self._new or self._back or self._gone)

    # --- planning ---------------------------------------------------------------------------------------------------

    def renew(self, world: World) -> None:
        """Make a plan and wait for it. Raises PlanFailed; the old plan stands then."""
        made = self._planning.plan(replace(world, plan=self._plan))
        with self._lock:
            self._made = made
            self._since = [placed for placed in self._since if placed.version > made.version]
            self._plan = made.plan
            for placed in self._since:
                self._plan = placed.put_into(self._plan)

    def takes_in(self, now: datetime, oldest: timedelta) -> bool:
        """Whether jobs that came can be added to the plan: not to one that is too old, and not very many."""
        plan = self._plan
        return plan is not None and now - plan.made_at <= oldest and len(self._new) + len(self._back) <= MANY

    def take_in(self, world: World, known: Iterable[JobView], view_of: "ViewOf") -> bool:
        """Give places to the jobs that came and forget those that left; whether places changed. ``known`` are jobs that the
        plan may have missed; ``view_of`` tells how a job is now, None for one that needs no place. Raises PlanFailed."""
        with self._lock:
            gone, self._gone = list(self._gone), {}
            new, self._new = self._new, {}
            back, self._back = self._back, {}
        if gone:
            self._planning.forget(gone)
        plan = self._plan
        has = (plan.placements.keys() | plan.unplaced.keys()) if plan is not None else set()
        views = [view_of(job_id, job) for job_id, job in new.items() if job_id not in has or job_id in back]
        views += [view_of(job_id, None) for job_id in back if job_id not in new]
        jobs = {view.id: view for view in views if view is not None}
        jobs.update((view.id, view) for view in known if view.id not in has and wants_place(view))
        if not jobs:
            return False
        try:
            placed = self._planning.insert(world, list(jobs.values()))
        except NoPlanThere:
            with self._lock:
                self._made = None
            raise
        with self._lock:
            if self._made is not None and placed.version > self._made.version and self._plan is not None:
                self._plan = placed.put_into(self._plan)
            self._since.append(placed)
        return True
