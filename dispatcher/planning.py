"""One policy object and what it knows: the jobs and the plan that stands, and what to do while it cannot be asked.

The same Planner works in the live control plane's worker process, where a plan is made while new jobs get their places, and in
a simulation. It knows nothing of processes, stores and clocks.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from dispatcher.errors import GridshiftError
from policies import registry
from policies.fit import fits, why_no_place
from policies.policy import Policy
from policies.serving_headroom import kept_free, why_nowhere
from policies.turns import WAITING
from policies.world import Alternative, JobView, Placement, Plan, Settings, World

#: Which answer is the newer one: the number of the planner that gave it, and how often its plan had changed by then.
Version = tuple[int, int]
#: Why a job has no place although it was asked for.
NO_PLACE = "no region can take it"

WARMING_UP = (
    "the planner is warming up: its solver is being compiled for this machine, once after an installation or an upgrade, which"
    " takes a few minutes, and more where its processors are busy; until then jobs are placed one by one, within the same"
    " limits and deadlines, without power caps"
)


class PlanFailed(GridshiftError):
    """No plan could be made; the last one is kept and jobs still start at their last safe moment."""


class NoPlanThere(GridshiftError):
    """The planner has made no plan yet, so there is nothing to add a job to or to explain one by."""


@dataclass(frozen=True, slots=True)
class Made:
    """A whole plan."""

    version: Version
    plan: Plan


@dataclass(frozen=True, slots=True)
class Placed:
    """Places of new jobs, and new places of jobs that made room for them; ``unplaced`` has why others got none."""

    version: Version
    placements: Mapping[str, Placement]
    unplaced: Mapping[str, str]

    def put_into(self, plan: Plan) -> Plan:
        """``plan`` with these places."""
        unplaced = {job_id: why for job_id, why in plan.unplaced.items() if job_id not in self.placements}
        placements = {job_id: one for job_id, one in plan.placements.items() if job_id not in self.unplaced}
        return replace(plan, placements={**placements, **self.placements}, unplaced={**unplaced, **self.unplaced})


class Planning(Protocol):
    """Whoever makes plans for the control plane. Methods may be called from any thread."""

    @property
    def warming_up(self) -> bool:
        """Whether the policy cannot be asked yet, so that jobs are placed one by one."""
        ...

    @property
    def trouble(self) -> str | None:
        """What went wrong with the last plan; None when nothing did."""
        ...

    def plan(self, world: World) -> Made:
        """Make a plan and wait for it. Raises PlanFailed."""
        ...

    def insert(self, world: World, jobs: Sequence[JobView]) -> Placed:
        """Places for jobs beside the plan that stands; ``world`` needs no jobs. Raises PlanFailed, NoPlanThere."""
        ...

    def forget(self, job_ids: Sequence[str]) -> None:
        """These jobs need no place any more. Raises PlanFailed."""
        ...

    def explain(self, world: World, job_id: str) -> tuple[Alternative, ...]:
        """What else could have been done with a job; ``world`` needs no jobs. Raises PlanFailed, NoPlanThere."""
        ...


class Planner:
    """See the module. Thread-safe; one plan is made at a time.

    ``number`` is the first part of its versions; ``ready`` tells whether policies that have to be compiled have been.
    """

    def __init__(
        self,
        number: int = 0,
        make: Callable[[str, Settings], Policy] = registry.make,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._number, self._make, self._ready = number, make, ready
        self._policy: Policy | None = None
        self._made_as = ""
        #: Whether the standing plan is the policy's own, so that it can add to it.
        self._own = False
        self._jobs: dict[str, JobView] = {}
        self._plan: Plan | None = None
        self._changes = 0
        #: Jobs that came, and that left, while a plan is being made; None at other times.
        self._came: dict[str, JobView] | None = None
        self._left: set[str] = set()
        self._lock, self._one_plan = threading.Lock(), threading.Lock()

    @property
    def warming_up(self) -> bool:
        """See Planning."""
        return not self._ready()

    @property
    def trouble(self) -> str | None:
        """None: what goes wrong is raised."""
        return None

    def plan(self, world: World, instead: str = "") -> Made:
        """The policy's plan; or, where ``instead`` says why not, the jobs placed one by one. Raises what the policy raises."""
        with self._one_plan:
            with self._lock:
                self._came, self._left = {}, set()
            try:
                own, plan = self._new_plan(world, instead)
                plan = replace(plan, unplaced=_told(world, world.jobs, plan.unplaced))
                if any(view.reserved for view in world.regions):
                    plan = replace(plan, kept=kept_free(world, plan.horizon_end))
                with self._lock:
                    self._jobs = {job.id: job for job in world.jobs}
                    self._plan, self._own = plan, own
                    came, left, self._came = self._came, self._left, None
                    self._drop(left)
                    came = {job_id: job for job_id, job in came.items() if job_id not in left}
                    if came:
                        self._place(world, list(came.values()))
                    self._changes += 1
                    return Made(self._version, self._plan)
            finally:
                with self._lock:
                    self._came = None

    def insert(self, world: World, jobs: Sequence[JobView]) -> Placed:
        """See Planning. While a plan is being made these are places for the time being: the policy is asked when it is done."""
        with self._lock:
            if self._came is not None:
                self._came.update((job.id, job) for job in jobs)
                self._left.difference_update(job.id for job in jobs)
            if self._plan is None:
                raise NoPlanThere("no plan has been made yet")
            placed = self._place(world, jobs)
            self._changes += 1
            return replace(placed, version=self._version)

    def forget(self, job_ids: Sequence[str]) -> None:
        """See Planning."""
        with self._lock:
            if self._came is not None:
                self._left.update(job_ids)
                self._drop(job_ids, tell=False)
            else:
                self._drop(job_ids)

    def explain(self, world: World, job_id: str) -> tuple[Alternative, ...]:
        """See Planning."""
        from policies import one_by_one

        with self._lock:
            if self._plan is None:
                raise NoPlanThere("no plan has been made yet")
            placement = self._plan.placements.get(job_id)
            if placement is None or placement.alternatives:
                return placement.alternatives if placement is not None else ()
            world = self._around(world)
            own = getattr(self._policy, "explain", None) if self._own and self._came is None else None
            if own is not None:
                told: tuple[Alternative, ...] = own(world, job_id)
                return told
        return one_by_one.alternatives(world, job_id)

    # --- parts ----------------------------------------------------------------------------------------------------

    @property
    def _version(self) -> Version:
        return self._number, self._changes

    def _new_plan(self, world: World, instead: str) -> tuple[bool, Plan]:
        if not instead and self._ready():
            policy = self._policy_of(world.settings)
            # where a peak is paid for, our own policy keeps no memory of what it placed
            own = not (compiles(world.settings.policy) and any(view.demand for view in world.regions))
            return own, policy.plan(world)
        from policies import one_by_one

        return False, replace(one_by_one.plan(world), note=instead or WARMING_UP)

    def _policy_of(self, settings: Settings) -> Policy:
        if self._policy is None or self._made_as != settings.policy:
            self._policy, self._made_as = self._make(settings.policy, settings), settings.policy
        return self._policy

    def _around(self, world: World) -> World:
        return replace(world, jobs=tuple(self._jobs.values()), plan=self._plan)

    def _place(self, world: World, jobs: Sequence[JobView]) -> Placed:
        """Add jobs to the standing plan, by its own policy or one by one."""
        assert self._plan is not None
        self._jobs.update((job.id, job) for job in jobs)
        around = self._around(world)
        if self._own and self._policy is not None and self._came is None:
            placements = dict(self._policy.insert(around, jobs))
            unplaced = {job.id: NO_PLACE for job in jobs if job.id not in placements}
        else:
            from policies import one_by_one

            new = {job.id for job in jobs}
            beside = {job_id: one for job_id, one in self._plan.placements.items() if job_id not in new}
            filled = one_by_one.fill_in(around, jobs, beside)
            placements, unplaced = filled.placements, filled.unplaced
        placed = Placed(self._version, placements, _told(around, jobs, unplaced))
        self._plan = placed.put_into(self._plan)
        return placed

    def _drop(self, job_ids: Sequence[str] | set[str], tell: bool = True) -> None:
        gone = set(job_ids)
        for job_id in gone:
            self._jobs.pop(job_id, None)
        if self._plan is not None and gone:
            placements = {job_id: one for job_id, one in self._plan.placements.items() if job_id not in gone}
            unplaced = {job_id: why for job_id, why in self._plan.unplaced.items() if job_id not in gone}
            self._plan = replace(self._plan, placements=placements, unplaced=unplaced)
        if tell and self._policy is not None:
            self._policy.forget(sorted(gone))


def _told(world: World, jobs: Sequence[JobView], unplaced: Mapping[str, str]) -> Mapping[str, str]:
    """Why jobs have no place, in the same words whichever policy was asked and whether it planned anew or added to a plan."""
    home, told = world.settings.default_region, dict(unplaced)
    for job in jobs if unplaced else ():
        if job.id in unplaced and job.state in WAITING:
            told[job.id] = why_no_place(job.flex, world.regions, home) or _why_left(job, world, unplaced[job.id])
    return told


def _why_left(job: JobView, world: World, why: str) -> str:
    """Why a job that a region could take has no place; a policy that only says that there is none is asked no further."""
    if why != NO_PLACE or not any(view.reserved for view in world.regions):
        return why
    named = [view for view in world.regions if view.reachable and (not job.flex.regions or view.name in job.flex.regions)]
    return f"{NO_PLACE}: {why_nowhere(job.flex, (view for view in named if fits(job.flex, view)), world.now)}"


def compiles(name: str) -> bool:
    """Whether the policy of that name has to be compiled before it is quick."""
    return name.rpartition("/")[2] == registry.OURS
