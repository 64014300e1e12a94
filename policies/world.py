"""The picture of the world that policies decide on, and the actions they may return.

Everything here is a frozen value. Nothing here knows of clocks, databases or Ray; whoever builds a World fills it from one
reading of the store and of the last observations, and does not peek again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from signals.series import SlotSeries


class JobState(StrEnum):
    """States of a job; the edges between them, with their reasons, stand in dispatcher.states."""

    QUEUED = "queued"
    LAUNCHING = "launching"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
#: Sums of floats are compared with this slack, in GPUs or W.
SLACK = 1e-6
#: States in which an attempt occupies (or may occupy) a cluster.
PLACED = frozenset({JobState.LAUNCHING, JobState.RUNNING, JobState.PAUSING})


class Pausable(StrEnum):
    """Whether a running job may be interrupted, and how."""

    NO = "no"
    CHECKPOINT = "checkpoint"
    FREEZE = "freeze"


@dataclass(frozen=True, slots=True)
class Flexibility:
    """What a job's owner allows, parsed from its ``gridshift.*`` metadata (see policies.flexibility).

    ``flexible`` is False for a job without any such metadata: it starts at once and is never moved or paused.
    Times are aware UTC, durations seconds, power W (the whole job's mean draw), data GB.
    ``runtime_s`` is always filled (the configured default when the owner gave none; ``runtime_given`` tells).
    ``regions`` empty means any region.
    """

    flexible: bool
    deadline_at: datetime | None
    earliest_at: datetime | None
    runtime_s: float
    runtime_given: bool
    gpus: float
    power_w: float
    pausable: Pausable = Pausable.NO
    checkpoint_s: float = 60.0
    restart_s: float = 60.0
    regions: tuple[str, ...] = ()
    data_gb: float = 0.0
    data_region: str | None = None
    tier: str = "flex-0"
    priority: int = 0
    group: str | None = None
    team: str | None = None
    max_price: float | None = None
    max_carbon: float | None = None
    min_cap: float | None = None
    gpu_types: Mapping[str, float] = field(default_factory=dict)
    freeze_max_s: float | None = None
    max_attempts: int = 1

    @property
    def may_be_slowed(self) -> bool:
        """Whether power caps may slow it down: flex-0 loses nothing."""
        return self.tier != "flex-0"


@dataclass(frozen=True, slots=True)
class JobView:
    """One unfinished job as policies see it.

    ``remaining_s`` is expected run time still to do at the last durable progress (full run time when never started).
    ``run_started_at`` is when the current attempt began to run (None when it is not running), later by the time for which it
    has stood frozen. ``region`` is where the current or last attempt ran. ``held`` means its owner paused it.
    ``checkpoint_misses`` counts checkpoint requests that the job left unanswered, ``last_pause_asked_at`` when the last one was
    made. A placed job runs on ``gpu_type`` (None: any, or not known) under the power cap ``cap`` (1: none).

    ``frozen_at`` is since when a running job stands frozen (None: it does not), ``rested_at`` when it will have run for as long
    as it was frozen before, ``frozen_w`` what it draws meanwhile at the GPU (None: not measured), ``cannot_freeze`` why it
    cannot be frozen where it runs (empty: it can; see policies.freezing). ``capped_w`` is what it draws at the GPU under the
    lowest caps that its tier accepts and that can be set where it runs (None: it cannot be capped, or that is not known).
    ``run_now`` means its owner wants it to run whatever power costs; limits hold all the same. ``on_branches`` is the share of
    its GPUs that lies on each branch of the region (that of "" on none), as far as agents tell: what is missing to 1 is not
    known, and neither is anything while it is empty. It is told only where a branch has a limit.
    """

    id: str
    state: JobState
    state_since: datetime
    submitted_at: datetime
    flex: Flexibility
    remaining_s: float
    region: str | None = None
    run_started_at: datetime | None = None
    attempt: int = 0
    held: bool = False
    cancel_requested: bool = False
    pause_requested: bool = False
    checkpoint_saved: bool = False
    checkpoint_misses: int = 0
    last_pause_asked_at: datetime | None = None
    not_before_at: datetime | None = None
    reason: str = ""
    planned_region: str | None = None
    planned_start_at: datetime | None = None
    gpu_type: str | None = None
    cap: float = 1.0
    frozen_at: datetime | None = None
    rested_at: datetime | None = None
    frozen_w: float | None = None
    cannot_freeze: str = "nothing here can freeze it"
    capped_w: float | None = None
    run_now: bool = False
    on_branches: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DemandCharge:
    """A month of a site's demand charge: each kW of mean draw above ``peak_w`` costs ``per_kw`` in the region's currency, once.

    ``peak_w`` is the month's highest mean over intervals of ``interval_s`` so far, at the meter; draw counts in ``windows``
    (half open, within the month) only.
    """

    per_kw: float
    peak_w: float
    windows: tuple[tuple[datetime, datetime], ...]
    interval_s: float = 900.0


@dataclass(frozen=True, slots=True)
class CapPoint:
    """A power cap that a region's GPUs can be given: ``cap`` is a fraction of their default limit, ``draw`` and ``speed`` are
    the mean draw and the throughput expected under it, relative to running without a cap."""

    cap: float
    draw: float
    speed: float


@dataclass(frozen=True, slots=True)
class GpuPool:
    """GPUs of one type in a region, on one branch of its power tree: ``gpus`` of them, together within ``power_limit_w`` (W at
    the meter; None: only the site's limit counts). ``draw`` is what a job draws on them relative to what it states."""

    gpu_type: str
    gpus: float
    power_limit_w: float | None = None
    draw: float = 1.0
    branch: str = ""


@dataclass(frozen=True, slots=True)
class Reserved:
    """GPUs and W (at the meter) that batch leaves alone over ``[start, end)``: headroom for ``whom``, interactive serving."""

    start: datetime
    end: datetime
    gpus: float
    power_w: float
    reason: str = "kept for serving"
    whom: str = "serving"


@dataclass(frozen=True, slots=True)
class Floor:
    """GPUs and W (at the meter) that batch leaves to ``whom``, interactive serving, whatever its demand is, without an end."""

    whom: str
    gpus: float
    power_w: float


@dataclass(frozen=True, slots=True)
class Guarded:
    """What batch has to give for interactive serving in a region now: ``level`` is one of policies.serving.Level, ``reason``
    why. ``job_ids`` are the placed jobs on the same GPUs, nodes or branch (None: all of the region). Nobody can tell where a
    job that is launched will land, so that a level above CALM holds up launches in the whole region."""

    name: str
    level: int
    reason: str
    job_ids: frozenset[str] | None = None

    def concerns(self, job: JobView) -> bool:
        """Whether a placed job of the region has to give."""
        return self.job_ids is None or job.id in self.job_ids


@dataclass(frozen=True, slots=True)
class BranchView:
    """One branch of a region's power tree (a row, rack or PDU; the name "" is for GPUs on no branch). ``power_limit_w`` is its
    standing limit and ``other_w`` what GPUs there draw that run none of gridshift's jobs, or nobody knows whose (None: not
    known), both in W at the GPUs: a branch's meter sees no cooling. ``gpus`` is how many GPUs agents tell of there; None: no
    agent does, and jobs of which nobody knows where they run may be there."""

    name: str
    power_limit_w: float | None = None
    other_w: float | None = 0.0
    gpus: float | None = None


@dataclass(frozen=True, slots=True)
class RegionView:
    """One region as policies see it.

    ``reachable`` False means its cluster did not answer lately: what runs there is unknown and nothing new is sent there.
    ``gpus`` is the number of GPUs that batch may use (None: not known, then GPUs do not limit). ``max_jobs`` bounds the
    jobs placed at once (None: no bound). ``power_limit_w`` is the standing site limit in W (None: none). ``price`` is in
    ``currency``/MWh, ``carbon`` in gCO2e/kWh; each is None when the region has no such signal. ``fx`` converts one unit of
    ``currency`` into the planning currency. ``bypass_w`` is draw that does not come from gridshift's jobs. ``demand`` has the
    months of a demand charge, empty when the site has none. ``pools`` divide ``gpus`` by type (empty: all are alike), ``caps``
    are the power caps that can be set there besides none at all, ``reserved`` is what batch leaves to serving, and ``floors``
    what of that never ends. ``unheard`` is
    True for some seconds after a start, until the agents there have told what they hold: caps of limits stand there meanwhile.
    ``branches`` are all that are known while one of them has a limit, now or soon; else there are none. ``guards`` are of the
    interactive serving there that batch has to step aside for. ``beside_w`` is what is drawn besides what is expected of jobs,
    W at the meter, while the site is in an emergency in which serving may be capped (batch comes first, and back last); else 0.
    """

    name: str
    reachable: bool
    gpus: float | None
    max_jobs: int | None
    power_limit_w: float | None
    price: SlotSeries | None
    carbon: SlotSeries | None
    currency: str = "EUR"
    fx: float = 1.0
    pue: float = 1.0
    carbon_kind: str = "carbon_average"
    bypass_w: float = 0.0
    note: str = ""
    demand: tuple[DemandCharge, ...] = ()
    pools: tuple[GpuPool, ...] = ()
    caps: tuple[CapPoint, ...] = ()
    reserved: tuple[Reserved, ...] = ()
    unheard: bool = False
    branches: tuple[BranchView, ...] = ()
    guards: tuple[Guarded, ...] = ()
    floors: tuple[Floor, ...] = ()
    beside_w: float = 0.0


@dataclass(frozen=True, slots=True)
class TeamShare:
    """A team's part in the fleet: never more than ``quota_gpus`` at once (None: no bound); where jobs compete, the team with
    the least GPU time a unit of ``share`` goes first."""

    name: str
    quota_gpus: float | None = None
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Budget:
    """A power limit on a region, or on one branch of it, over ``[start, end)``; ``end`` None is open, until released. Two
    sources may give their events the same id; ``source`` tells them apart, and is empty for the operator's own. ``ramp_s`` is
    how long the way down to it may take, ``recovery_s`` how long the way back takes; None where that was not said.
    ``emergency``: whoever asks for it says that the grid is in danger. ``of_event`` is the event's own id where this is one of
    its steps, each of which has an id of its own."""

    region: str
    start: datetime
    end: datetime | None
    limit_w: float
    event_id: str
    reason: str
    source: str = ""
    branch: str | None = None
    ramp_s: float | None = None
    recovery_s: float | None = None
    emergency: bool = False
    of_event: str = ""

    @property
    def why(self) -> str:
        """What it is for, in words."""
        return self.reason or f"event {self.event_id}"

    def is_over(self, when: datetime) -> bool:
        """Whether it limits nothing any more; load may still be coming back from it."""
        return self.end is not None and self.end <= when

    def holds(self, when: datetime) -> bool:
        """Whether it is in force."""
        return self.start <= when and not self.is_over(when)

    def way_back(self, when: datetime) -> float | None:
        """Which share of the way back from it is behind us, from 0 to below 1; None where load is not coming back from it."""
        if self.end is None or not self.recovery_s:
            return None
        share = (when - self.end).total_seconds() / self.recovery_s
        return share if 0.0 <= share < 1.0 else None


@dataclass(frozen=True, slots=True)
class ShiftWindow:
    """One occurrence of a ``[[shift]]`` rule: in ``[start, end)`` flexible work of ``source`` belongs in ``target``."""

    name: str
    source: str
    target: str
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator set for planning. ``carbon_price`` is planning currency per tonne CO2e; ``move_cost_per_gb`` is
    planning currency per GB; ``move_gb_per_s`` is the transfer rate assumed between regions; ``launch_s`` is the time from a
    launch until the job runs, ``runtime_slack`` the share of a run time that may be added by its being an estimate.

    ``policy`` is a name of policies.registry. ``price_weight`` weighs money against carbon in the objective: 0 plans by carbon
    alone. ``daily_carbon_kg`` and ``daily_cost`` (planning currency) are hard budgets of all regions together for each UTC day,
    None without one."""

    slot_s: int = 900
    horizon_s: int = 48 * 3600
    currency: str = "EUR"
    carbon_price: float = 0.0
    move_cost_per_gb: float = 0.02
    move_gb_per_s: float = 0.1
    default_region: str | None = None
    min_chunk_s: float = 900.0
    late_cost_per_h: float = 1000.0
    runtime_slack: float = 0.1
    checkpoint_retry_s: float = 600.0
    deadline_margin_s: float = 60.0
    launch_s: float = 10.0
    policy: str = "gridshift"
    price_weight: float = 1.0
    daily_carbon_kg: float | None = None
    daily_cost: float | None = None
    teams: tuple[TeamShare, ...] = ()


@dataclass(frozen=True, slots=True)
class Alternative:
    """A placement that the plan considered and did not choose; costs are in the planning currency."""

    region: str
    start_at: datetime
    cost: float | None
    why_not: str


@dataclass(frozen=True, slots=True)
class Placement:
    """When and where the plan would run a job. ``cost`` is energy, carbon at its price, moving and restarting, in the
    planning currency (None when no price is known); ``run_now_cost`` is the same for starting at once. ``cap`` is the power cap
    it would run under (1: none), ``gpu_type`` the pool it was given (None: any)."""

    job_id: str
    region: str
    intervals: tuple[tuple[datetime, datetime], ...]
    cost: float | None
    energy_kwh: float
    carbon_kg: float | None
    late_s: float
    reason: str
    run_now_cost: float | None = None
    alternatives: tuple[Alternative, ...] = ()
    cap: float = 1.0
    gpu_type: str | None = None


@dataclass(frozen=True, slots=True)
class NewPeak:
    """What a plan does to a month's demand charge: ``standing_w`` is the peak the month has anyway, ``planned_w`` the one after
    this plan, ``cost`` what the difference costs in the planning currency, ``sentence`` why it is so."""

    region: str
    standing_w: float
    planned_w: float
    cost: float
    sentence: str


@dataclass(frozen=True, slots=True)
class KeptFree:
    """What a plan leaves free over ``[start, end)`` for interactive serving: GPUs, W (at the meter), and why in a sentence."""

    region: str
    start: datetime
    end: datetime
    gpus: float
    power_w: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What we would do from ``made_at`` on; disposable, made anew as truth arrives. ``bound`` is a proven lower bound on
    ``objective`` (planning currency) and ``gap`` their relative difference. ``peaks`` has the months whose demand charge the
    plan raises, or holds where it would have been raised otherwise. ``note`` says what an operator should know of how it was
    made, empty when all is as it should be. ``kept`` is what it leaves free for interactive serving."""

    made_at: datetime
    horizon_end: datetime
    slot_s: int
    placements: Mapping[str, Placement]
    unplaced: Mapping[str, str]
    objective: float
    bound: float | None = None
    gap: float | None = None
    peaks: tuple[NewPeak, ...] = ()
    note: str = ""
    kept: tuple[KeptFree, ...] = ()


@dataclass(frozen=True, slots=True)
class World:
    """Everything a decision may look at, as known at ``now``. ``budgets`` are those of whole sites, ``branch_budgets`` those of
    their branches, which plans know nothing of. ``gates`` bound the GPUs that flexible work may use in a region
    now (Policy.gate); a region without an entry has no such bound."""

    now: datetime
    jobs: tuple[JobView, ...]
    regions: tuple[RegionView, ...]
    budgets: tuple[Budget, ...] = ()
    shifts: tuple[ShiftWindow, ...] = ()
    settings: Settings = Settings()
    plan: Plan | None = None
    gates: Mapping[str, float] = field(default_factory=dict)
    branch_budgets: tuple[Budget, ...] = ()


# --- actions: small values that the dispatcher performs, each with its sentence -----------------------------------


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a queued or paused job in ``region`` now, on GPUs of ``gpu_type`` (None: any), under the power cap ``cap`` (1:
    none)."""

    job_id: str
    region: str
    reason: str
    gpu_type: str | None = None
    cap: float = 1.0


@dataclass(frozen=True, slots=True)
class AskCheckpoint:
    """Move a running job to ``pausing``: ask it to save a checkpoint, then stop it."""

    job_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Freeze:
    """Stop the processes of a running job where they are; it stays ``running``."""

    job_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Thaw:
    """Let a frozen job run on. ``used_up``: because it has stood all that it stands, not because nothing speaks against it."""

    job_id: str
    reason: str
    used_up: bool = False


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """Stop the attempt of a job that is being cancelled."""

    job_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class EndCancelled:
    """End a job that holds no cluster (queued or paused) as cancelled."""

    job_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep a queued or paused job waiting (or say something new of a placed one): only its sentence and planned start
    change."""

    job_id: str
    reason: str
    planned_region: str | None = None
    planned_start_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something an operator must know: a limit that cannot be met, with the shortfall and what would meet it."""

    key: str
    region: str | None
    sentence: str


Action = Launch | AskCheckpoint | Freeze | Thaw | StopAttempt | EndCancelled | Hold | Alarm
