"""The jobs of a plan as columns of numbers, one row a job, kept from one plan to the next. Pure.

A row is read from a JobView once and again only when that view changes, so that a plan of ten thousand waiting jobs costs
little to set up. Times are seconds since the book's ``origin``. It knows no prices.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

import numpy as np

from policies.power_allocation import TIER_LOSS
from policies.problem import Floats, Ints
from policies.world import Flexibility, JobState, JobView, Pausable

#: The columns of ``Book.table``.
(
    SUBMITTED, EARLIEST, DEADLINE, REMAINING, RUN_STARTED, GPUS, POWER_W, CHECKPOINT, RESTART, PRIORITY, DATA_GB, MAX_PRICE,
    MAX_CARBON, LEAST_SPEED, LEAST_CAP, PLANNED, PAUSABLE, MOVABLE, RESUMED, WAITS,
) = range(20)  # fmt: skip
NONE = -1


class Book:
    """Rows of the jobs that may be planned. ``rows`` are those in use, in the order of the world's jobs."""

    def __init__(self, origin: datetime) -> None:
        self.origin = origin
        self.row_of: dict[str, int] = {}
        self.views: list[JobView | None] = []
        self._spare: list[int] = []
        self.table: Floats = np.zeros((0, 20))
        #: Indices into what is named below, or of regions; NONE for none.
        self.allowed, self.types, self.team = (np.zeros(0, dtype=np.int64) for _ in range(3))
        self.region, self.data_region, self.planned_region = (np.zeros(0, dtype=np.int64) for _ in range(3))
        self._allowed_sets: dict[tuple[str, ...], int] = {}
        self._type_sets: dict[tuple[tuple[str, float], ...], int] = {}
        self._names: dict[str, int] = {}
        self._teams: dict[str, int] = {}

    # --- names ----------------------------------------------------------------------------------------------------

    def region_index(self, name: str | None) -> int:
        """A number for a region's name, NONE for None."""
        return NONE if name is None else self._names.setdefault(name, len(self._names))

    def team_index(self, name: str | None) -> int:
        """A number for a team, 0 for none."""
        return 0 if name is None else self._teams.setdefault(name, len(self._teams) + 1)

    @property
    def teams(self) -> dict[str, int]:
        """Numbers of the teams there are."""
        return self._teams

    @property
    def allowed_sets(self) -> Sequence[tuple[str, ...]]:
        """The sets of allowed regions, by index; an empty one allows all."""
        return tuple(self._allowed_sets)

    @property
    def type_sets(self) -> Sequence[tuple[tuple[str, float], ...]]:
        """The sets of acceptable GPU types with their speeds, by index; an empty one accepts all."""
        return tuple(self._type_sets)

    # --- rows -----------------------------------------------------------------------------------------------------

    def take_in(self, jobs: Iterable[JobView], left_alone: Callable[[JobView], bool] = lambda job: False) -> Ints:
        """Bring the book up to date with all of ``jobs`` and drop every other row; the rows of those that a plan may place, in
        their order, but for those that are ``left_alone``."""
        seen: dict[str, None] = {}
        rows = []
        for job in jobs:
            seen[job.id] = None
            if plannable(job) and not left_alone(job):
                rows.append(self.add(job))
        for job_id in [one for one in self.row_of if one not in seen]:
            self.drop(job_id)
        return np.array(rows, dtype=np.int64)

    def add(self, job: JobView) -> int:
        """The row of one job, written where its view is new."""
        row = self.row_of.get(job.id)
        if row is None:
            row = self._spare.pop() if self._spare else self._grow()
            self.row_of[job.id] = row
        elif self.views[row] is job:
            return row
        self.views[row] = job
        self._write(row, job)
        return row

    def drop(self, job_id: str) -> int | None:
        """Forget a job; its row, None for one that is not here."""
        row = self.row_of.pop(job_id, None)
        if row is not None:
            self.views[row] = None
            self._spare.append(row)
        return row

    def _grow(self) -> int:
        row = len(self.views)
        if row == len(self.table):
            size = max(64, 2 * row)
            self.table = np.concatenate((self.table, np.zeros((size - row, 20))))
            for name in ("allowed", "types", "team", "region", "data_region", "planned_region"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate((old, np.full(size - row, NONE, dtype=np.int64))))
        self.views.append(None)
        return row

    def seconds(self, when: datetime | None, otherwise: float) -> float:
        """A moment in seconds since the origin."""
        return otherwise if when is None else (when - self.origin).total_seconds()

    def _write(self, row: int, job: JobView) -> None:
        flex, inf = job.flex, np.inf
        running = job.state is JobState.RUNNING
        earliest = max(self.seconds(flex.earliest_at, -inf), self.seconds(job.not_before_at, -inf))
        self.table[row] = (
            self.seconds(job.submitted_at, 0.0), earliest, self.seconds(flex.deadline_at, inf), job.remaining_s,
            self.seconds(job.run_started_at, np.nan), flex.gpus, flex.power_w, flex.checkpoint_s, flex.restart_s, flex.priority,
            flex.data_gb, np.nan if flex.max_price is None else flex.max_price,
            np.nan if flex.max_carbon is None else flex.max_carbon,
            1.0 - TIER_LOSS.get(flex.tier, 0.0), _least_cap(flex),
            self.seconds(job.planned_start_at, np.nan), flex.pausable is Pausable.CHECKPOINT, running,
            running or job.state is JobState.PAUSED, running and job.attempt > 1,
        )  # fmt: skip
        self.allowed[row] = self._allowed_sets.setdefault(flex.regions, len(self._allowed_sets))
        self.types[row] = self._type_sets.setdefault(tuple(flex.gpu_types.items()), len(self._type_sets))
        self.team[row] = self.team_index(flex.team)
        self.region[row] = self.region_index(job.region)
        self.data_region[row] = self.region_index(flex.data_region)
        self.planned_region[row] = self.region_index(job.planned_region)


def _least_cap(flex: Flexibility) -> float:
    """The lowest cap a job stands: below half of the default limit pausing is better, flex-0 is never touched, and a cap on
    GPUs does nothing to a job that has none."""
    if not flex.may_be_slowed or flex.gpus <= 0:
        return 1.0
    return 0.5 if flex.min_cap is None else flex.min_cap


def plannable(job: JobView) -> bool:
    """Whether a plan may say when and where this job runs."""
    if not job.flex.flexible or job.held or job.cancel_requested or job.pause_requested:
        return False
    if job.state is JobState.RUNNING:
        return job.flex.pausable is Pausable.CHECKPOINT and not job.run_now
    return job.state is JobState.QUEUED or job.state is JobState.PAUSED


def speeds(types: tuple[tuple[str, float], ...], gpu_type: str) -> float:
    """How fast a job runs on a GPU type, relative to what its run time is for; 0: not at all. A job that names none runs on
    any."""
    return 1.0 if not types else dict(types).get(gpu_type, 0.0)
