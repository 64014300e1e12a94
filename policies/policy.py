"""What every scheduling policy offers, live and in a backtest alike.

A policy says when and where a job should run; limits, owners' wishes and last safe starts are kept by policies.decide
whatever the policy says. It knows nothing of clocks, clusters or stores.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from policies.world import JobView, Placement, Plan, RegionView, World


class Knows(StrEnum):
    """What a policy is entitled to know of a job's length before it ran; a backtest tells it no more."""

    NOTHING = "nothing"
    #: the mean of its kind of jobs
    GROUP_MEAN = "group mean"
    #: the run time its owner expects (``gridshift.runtime``)
    RUNTIME = "runtime"


class Policy(Protocol):
    """A policy with its memory of one run. Not thread-safe; deterministic: the same calls give the same answers.

    ``name`` is its name in policies.registry and ``knows`` what it may know of jobs. ``replans`` tells whether ``plan``
    changes placements made before (then it is called each slot), or every job keeps the place it got when it came.
    """

    name: str
    knows: Knows
    replans: bool

    def plan(self, world: World) -> Plan:
        """A place for every job of ``world`` that can be placed; what ``world.plan`` has is the plan so far."""
        ...

    def insert(self, world: World, jobs: Sequence[JobView]) -> Mapping[str, Placement]:
        """Places for jobs that came since the last ``plan`` or ``insert``, and the new places of others that had to make room.
        Quick. It goes by ``world``'s moment, regions, limits and settings and by its own memory of the rest: ``world.jobs``
        may be empty. A job that is left out of the answer cannot be placed."""
        ...

    def forget(self, job_ids: Iterable[str]) -> None:
        """These jobs have ended, or are not to be planned any more."""
        ...

    def gate(self, view: RegionView, now: datetime) -> float | None:
        """GPUs that flexible work may use in a region at this moment; None where the policy sets no such bound."""
        ...
