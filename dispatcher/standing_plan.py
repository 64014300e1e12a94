"""The plan that stands: made anew now and then, and between that given places for jobs that come.

Answers of whoever plans may arrive in another order than they were given in, since new jobs get their places while a plan is
made; their versions tell. It asks no store and no cluster, and does not decide when to plan.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from dispatcher.errors import GridshiftError
from dispatcher.planning import Placed, Planning, Version
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
        self._version: Version = (-1, 0)
        #: Places given since, as far as a plan that is still on its way may not have them.
        self._since: list[Placed] = []
        self._new: dict[str, Job] = {}
        self._back: dict[str, None] = {}
        self._gone: dict[str, None] = {}
        self._plan: Plan | None = None
        self._renewing = False

    @property
    def plan(self) -> Plan | None:
        """The plan; None before the first."""
        return self._plan

    @property
    def is_being_made(self) -> bool:
        """Whether a whole plan is on its way."""
        return self._renewing

    @property
    def trouble(self) -> str | None:
        """Why the plan is not the policy's own; None when it is."""
        return self._planning.trouble

    @property
    def told(self) -> str:
        """How whoever plans is, in words."""
        return self._planning.trouble or ("planner warming up" if self._planning.warming_up else "ready")

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
        self._renewing = True
        try:
            made = self._planning.plan(replace(world, plan=self._plan))
        finally:
            self._renewing = False
        with self._lock:
            self._version = made.version
            self._since = [placed for placed in self._since if placed.version > made.version]
            plan = made.plan
            for placed in self._since:
                plan = placed.put_into(plan)
            self._plan = plan
            for view in world.jobs:
                if not wants_place(view):
                    continue
                if view.id in plan.placements or view.id in plan.unplaced:
                    self._new.pop(view.id, None)
                    self._back.pop(view.id, None)
                else:  # whoever planned began anew meanwhile, and lost a job that came in between
                    self._back[view.id] = None

    def takes_in(self, now: datetime, oldest: timedelta) -> bool:
        """Whether jobs that came can be added to the plan: not to one that is too old, and not very many."""
        plan = self._plan
        return plan is not None and now - plan.made_at <= oldest and len(self._new) + len(self._back) <= MANY

    def take_in(self, world: World, view_of: Callable[[str, Job | None], JobView | None]) -> bool:
        """Give places to the jobs that came and forget those that left; whether places changed. ``view_of`` tells how a job is
        now, as far as it is known beside what was submitted; None for one that needs no place. Raises PlanFailed, NoPlanThere;
        the jobs are remembered then."""
        with self._lock:
            gone, self._gone = list(self._gone), {}
            new, self._new = self._new, {}
            back, self._back = self._back, {}
            plan = self._plan
        has = (plan.placements.keys() | plan.unplaced.keys()) if plan is not None else set()
        views = [view_of(job_id, job) for job_id, job in new.items() if job_id not in has]
        views += [view_of(job_id, None) for job_id in back if job_id not in new]
        jobs = [view for view in views if view is not None]
        try:
            if gone:
                self._planning.forget(gone)
            placed = self._planning.insert(world, jobs) if jobs else None
        except GridshiftError:
            with self._lock:
                self._new, self._back = new | self._new, back | self._back
            raise
        if placed is None:
            return False
        with self._lock:
            self._since.append(placed)
            if placed.version > self._version and self._plan is not None:
                self._plan = placed.put_into(self._plan)
        return True

    def explain(self, world: World, job_id: str) -> tuple[Alternative, ...]:
        """What else could have been done with a job. Raises PlanFailed, NoPlanThere."""
        return self._planning.explain(world, job_id)
