"""The durable memory of the control plane: values, and the interface that both stores keep.

A change and its event row are one transaction with a compare on the old state. Values here are frozen dataclasses; only
`sql.py` knows rows. Signals have a store of their own (signals.store).
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from policies.world import Flexibility, JobState


@dataclass(frozen=True, slots=True)
class Request:
    """What Ray's ``POST /api/jobs/`` carried, without the id; kept verbatim so that every attempt gets the same."""

    entrypoint: str
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    entrypoint_num_cpus: float | None = None
    entrypoint_num_gpus: float | None = None
    entrypoint_memory: int | None = None
    entrypoint_resources: Mapping[str, float] | None = None
    entrypoint_label_selector: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One job. ``seq`` is the number of the last event of the whole store that changed it: whoever remembers the highest
    seq it has seen can ask for what changed since. ``progress_s`` is run time that a saved checkpoint makes durable.
    ``energy_kwh``, ``cost`` (in ``cost_currency``) and ``carbon_kg`` are None until known; ``energy_basis`` says what they rest
    on: measured, partly measured (the rest modelled), modelled, simulated. ``frozen_at`` is since when a running job stands
    frozen (None: it does not; the store sees to it that no other job has one), ``rested_at`` when it will have run for as long
    as it was frozen before. ``run_now_at`` is since when its owner has wanted it to run whatever power costs (None: the plan
    says when)."""

    id: str
    request: Request
    flex: Flexibility
    state: JobState
    state_since: datetime
    submitted_at: datetime
    reason: str = ""
    seq: int = 0
    region: str | None = None
    attempt: int = 0
    planned_region: str | None = None
    planned_start_at: datetime | None = None
    held: bool = False
    cancel_requested_at: datetime | None = None
    pause_requested_at: datetime | None = None
    checkpoint_saved_at: datetime | None = None
    checkpoint_misses: int = 0
    not_before_at: datetime | None = None
    progress_s: float = 0.0
    pauses: int = 0
    started_at: datetime | None = None
    run_started_at: datetime | None = None
    finished_at: datetime | None = None
    error_type: str | None = None
    exit_code: int | None = None
    energy_kwh: float | None = None
    cost: float | None = None
    cost_currency: str | None = None
    carbon_kg: float | None = None
    energy_basis: str | None = None
    has_result: bool = False
    deleted_at: datetime | None = None
    owner: str | None = None
    frozen_at: datetime | None = None
    rested_at: datetime | None = None
    run_now_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a job on one cluster. ``submission_id`` is ``<job id>-<attempt>``; ``ray_session`` is the session_name of
    the cluster that took it (None until known). ``outcome``: succeeded, failed, stopped, lost, refused,
    unstarted (its cluster took it and could not start it); None while it lives. ``gpu_type`` is the type of GPU it was sent to
    (None: any), ``frozen_s`` for how long it stood frozen, without the freeze that still lasts."""

    job_id: str
    attempt: int
    region: str
    submission_id: str
    launched_at: datetime
    ray_session: str | None = None
    accepted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: str | None = None
    message: str = ""
    deleted_upstream: bool = False
    gpu_type: str | None = None
    frozen_s: float = 0.0


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One change of one job, in the order of ``seq``. ``kind``: submitted, state, intent, plan, checkpoint, freeze, thaw, note,
    result."""

    seq: int
    job_id: str
    at: datetime
    kind: str
    old_state: JobState | None
    new_state: JobState
    reason: str
    attempt: int = 0
    region: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A change to one job, written with its event or not at all.

    ``expect`` is the state it was decided on (None: any unfinished state); ``expect_attempt`` likewise, and ``expect_seq`` is
    the exact version of the job where any other change in between would make this one wrong. ``to`` None leaves the state.
    ``fields`` are new values of Job's fields (never id, seq or state). ``new_attempt`` starts an attempt (the database refuses
    a second live one) and sets the job's ``attempt`` and ``region``; ``attempt_fields`` changes the fields of the job's current
    attempt, before ``new_attempt`` takes its place. The store itself keeps ``state_since``, ``finished_at`` (an ended job has
    one, no other job has), and ``frozen_at`` away from jobs that do not run."""

    job_id: str
    at: datetime
    kind: str
    reason: str
    expect: JobState | None = None
    expect_attempt: int | None = None
    expect_seq: int | None = None
    to: JobState | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    new_attempt: Attempt | None = None
    attempt_fields: Mapping[str, Any] = field(default_factory=dict)


#: The source of grid events that came by our own API.
OWN_SOURCE = "api"


@dataclass(frozen=True, slots=True)
class GridStep:
    """One limit of an event over ``[start, end)``; ``end`` None is open. ``interval_id`` is its sender's own name for it,
    ``ramp_s`` how long the way down to it may take (None: not said)."""

    start: datetime
    end: datetime | None
    limit_w: float
    interval_id: int | str | None = None
    ramp_s: float | None = None
    reason: str = ""
    emergency: bool = False


@dataclass(frozen=True, slots=True)
class GridEvent:
    """What somebody outside asked for, from receipt to its end. Identity is (source, event_id); a higher ``version``, which is
    our count where a protocol has versions of its own (``said_version``), replaces a lower one. ``cancelled`` ends it. ``end``
    None is open until released.

    ``steps`` is its whole schedule, ``limit_w`` the lowest of it; None: it limits nothing, such as a price. Made with a limit
    and without steps it has that one step. ``branch`` None: it holds for the whole site. ``rank`` orders events of one source
    that has priorities, the lowest first, None last. ``opted_out`` is why an operator has opted out of it; then it binds no
    more, and stays what was asked for. ``recovery_s`` is how long the way back takes, None where it is not said."""

    source: str
    event_id: str
    version: int
    region: str
    start: datetime
    end: datetime | None
    limit_w: float | None
    received_at: datetime
    reason: str = ""
    cancelled: bool = False
    test: bool = False
    steps: tuple[GridStep, ...] = ()
    branch: str | None = None
    protocol: str = "native"
    said_version: str | None = None
    rank: int | None = None
    opted_out: str | None = None
    recovery_s: float | None = None

    def __post_init__(self) -> None:
        if not self.steps and self.limit_w is not None:
            step = GridStep(self.start, self.end, self.limit_w, reason=self.reason)
            object.__setattr__(self, "steps", (step,))

    @property
    def emergency(self) -> bool:
        """Whether it says of any of its steps that the grid is in danger."""
        return any(step.emergency for step in self.steps)


@dataclass(frozen=True, slots=True)
class GridEventChange:
    """One line of what happened to an event: a version that was taken, refused or changed nothing, an operator's word.

    ``what``: accepted, changed, cancelled, ignored, rejected, opted_out, opted_in, note. ``version`` is that of the event as
    it is held after it (None: nothing is held), ``message`` what came, cut where it is long. ``steps`` is the schedule that
    held from then on, where this line is of a version that was taken (None: it is not, or that was not recorded). ``seq`` is
    given by the store."""

    source: str
    event_id: str
    at: datetime
    version: int | None
    what: str
    sentence: str
    message: str = ""
    seq: int = 0
    steps: tuple[GridStep, ...] | None = None


@dataclass(frozen=True, slots=True)
class BeforeEvent:
    """What a site was expected to draw without an event, kept once: when the first version of it came that binds.

    ``notice_at`` is the receipt of that version, ``looked_at`` when jobs were last looked at before anything answered to it
    (None: never), ``plan_made_at`` when the plan was made that stood then (None: none stood). ``plan_w`` is the draw by that
    plan, ``unshifted_w`` what it would have been had each job that was there run on its arrival: means of slots of ``slot_s``
    from ``start`` on, W at the meter; None, with ``plan_why`` and ``unshifted_why``, where it is not known. ``jobs`` of the
    site are in it. ``measured_w`` is what the site drew at the look (None: not measured), ``other_w`` the part of it that was
    no job's and counts throughout (None: not known, and not in it), ``job_share`` what jobs drew of what is expected of them.
    ``notes`` say what is not in it, or less than sure."""

    source: str
    event_id: str
    notice_at: datetime
    looked_at: datetime | None
    plan_made_at: datetime | None
    start: datetime
    slot_s: int
    plan_w: tuple[float, ...] | None
    plan_why: str
    unshifted_w: tuple[float, ...] | None
    unshifted_why: str
    jobs: int
    measured_w: float | None = None
    other_w: float | None = None
    job_share: float = 1.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judged:
    """What one objective of a serving counted: requests in all and ``bad`` ones (of a gauge: seconds that were judged, and
    those above its limit), and for how many seconds it was known how it stood, and was not."""

    total: float = 0.0
    bad: float = 0.0
    known_s: float = 0.0
    unknown_s: float = 0.0

    def __add__(self, more: "Judged") -> "Judged":
        """Both together."""
        return Judged(
            self.total + more.total, self.bad + more.bad, self.known_s + more.known_s, self.unknown_s + more.unknown_s
        )


@dataclass(frozen=True, slots=True)
class ObjectiveCounts:
    """What one objective counted while no batch ran beside its serving (``alone``) and while some did (``beside``). ``share``
    is what was promised of requests then (None: a gauge, that must stay at or below its limit)."""

    name: str
    share: float | None
    alone: Judged
    beside: Judged


@dataclass(frozen=True, slots=True)
class ServingQuarter:
    """What one control plane saw of a serving in a part of the quarter hour from ``start`` on; parts add up.

    ``level_s`` are seconds at each of policies.serving.Level, the lowest first: together what was watched. ``beside_s`` are
    those of them in which batch ran beside it, ``beside_gpu_s`` that batch's GPU-seconds, ``region_gpu_s`` those of all batch
    that ran in the region. ``rises`` counts how often batch was asked to step aside, ``rises_beside`` those at which batch ran
    beside it; ``frozen``, ``capped`` and ``asked`` (for a checkpoint) the jobs to which that happened meanwhile. ``yield_s``
    has, for each rise after which batch gave way, the seconds until the first job had."""

    region: str
    name: str
    start: datetime
    part: str
    objectives: tuple[ObjectiveCounts, ...] = ()
    level_s: tuple[float, ...] = ()
    beside_s: float = 0.0
    beside_gpu_s: float = 0.0
    region_gpu_s: float = 0.0
    rises: int = 0
    rises_beside: int = 0
    frozen: int = 0
    capped: int = 0
    asked: int = 0
    yield_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Token:
    """An API token; only its SHA-256 (hex) is stored."""

    name: str
    sha256: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Page:
    """One page of jobs, newest submission first; pass ``next_cursor`` on for the next (None: the last page)."""

    jobs: tuple[Job, ...]
    next_cursor: str | None


class Store(Protocol):
    """What the dispatcher needs of a database. All methods may be called from any thread.

    Writes are grouped: many callers share one commit, and a Future resolves only after that commit is durable. The Future
    raises AlreadyExists, NotFound, StaleState, IllegalMove or StoreUnavailable. In a batch each item succeeds or fails
    alone: ``apply`` resolves to a list with a Job or an exception a change, in order (StoreUnavailable is raised for all).
    Callbacks of a Future run on the thread that writes: they must not wait for another Future of the store.
    """

    def add_job(self, job: Job, reason: str, attempt: Attempt | None = None) -> "Future[Job]":
        """Store a new job with its ``submitted`` event, and, when ``attempt`` is given, at once in ``launching`` with that
        attempt (two events, one transaction). Raises AlreadyExists for a used id (deleted ids too: ids are never reused)."""
        ...

    def apply(self, changes: Sequence[Change]) -> "Future[list[Job | Exception]]":
        """Write changes, each with its event, each with compare-and-set."""
        ...

    def job(self, job_id: str) -> Job | None:
        """One job, or None."""
        ...

    def jobs_changed_since(self, seq: int) -> tuple[list[Job], int]:
        """Jobs whose seq is higher, and the highest seq there is. With ``seq`` 0: every unfinished job."""
        ...

    def ray_jobs(self, ended_limit: int = 1000, *, deleted: bool = False) -> list[Job]:
        """Every unfinished job and the latest ``ended_limit`` ended ones, newest first; those that were deleted only with
        ``deleted``, for accounts, which nobody's tidying may change."""
        ...

    def page(
        self, *, state: JobState | None = None, team: str | None = None, cursor: str | None = None, limit: int = 100
    ) -> Page:
        """A page of jobs that are not deleted. Raises BadInput for a cursor it did not give out."""
        ...

    def counts(self) -> dict[JobState, int]:
        """Jobs by state."""
        ...

    def events(self, job_id: str) -> list[JobEvent]:
        """A job's events in order."""
        ...

    def attempts(self, job_id: str) -> list[Attempt]:
        """A job's attempts in order."""
        ...

    def live_attempts(self) -> list[Attempt]:
        """Attempts that have not ended, of all jobs."""
        ...

    def ended_attempts_upstream(self, region: str, before: datetime, limit: int = 100) -> list[Attempt]:
        """Attempts that ended before ``before`` and were not yet deleted on their cluster."""
        ...

    def mark_deleted_upstream(self, submission_ids: Sequence[str]) -> "Future[None]":
        """Remember that these attempts were deleted on their cluster."""
        ...

    def save_grid_event(
        self, event: GridEvent, message_id: str | None, *, change: GridEventChange | None = None, held: str | None = None
    ) -> "Future[str]":
        """Store a grid event durably. Resolves to "accepted", "duplicate" (this message id from this source was seen, or
        this version is held already) or "stale" (a higher version is held). The receipt is kept for duplicates either way.

        With "accepted" ``change`` becomes part of the event's history, and ``held`` is kept beside the event for whoever reads
        its sender's next message (None: what is kept stays)."""
        ...

    def opt_out_grid_event(self, change: GridEventChange, reason: str | None) -> "Future[None]":
        """Remember why an operator has opted out of an event (None: has not, after all), with its line of history. New versions
        of the event leave that as it is. Raises NotFound."""
        ...

    def note_grid_event(self, change: GridEventChange) -> "Future[None]":
        """Add a line to an event's history; the event need not be held. Of each event the latest lines are kept."""
        ...

    def grid_event_changes(self, source: str, event_id: str) -> list[GridEventChange]:
        """An event's history, the first line first."""
        ...

    def held_grid_events(self, source: str, since: datetime) -> dict[str, str]:
        """What is kept beside the events of a source that are open, or were received or ended after ``since``, by id."""
        ...

    def held_grid_event(self, source: str, event_id: str) -> str | None:
        """What is kept beside one event, however old."""
        ...

    def grid_event(self, source: str, event_id: str) -> GridEvent | None:
        """The latest version of one event, or None."""
        ...

    def grid_events(self, *, ended_after: datetime | None = None) -> list[GridEvent]:
        """Latest version of each event; with ``ended_after`` only those open, or ending after it. One that is cancelled has
        ended when that came."""
        ...

    def keep_before_event(self, kept: BeforeEvent) -> "Future[bool]":
        """Keep what was expected without an event, for as long as the event; whether it is the first of this event. A later one
        changes nothing."""
        ...

    def before_event(self, source: str, event_id: str) -> BeforeEvent | None:
        """What was expected without an event when notice of it came; None where nothing was kept."""
        ...

    def keep_serving(self, quarters: Sequence[ServingQuarter]) -> "Future[None]":
        """Keep what was seen of serving; a part that is kept already is replaced."""
        ...

    def serving_quarters(self, region: str, name: str, start: datetime, end: datetime) -> list[ServingQuarter]:
        """What was seen of a serving in quarter hours that begin in ``[start, end)``, by start and part."""
        ...

    def add_token(self, token: Token) -> "Future[None]":
        """Store a token; raises AlreadyExists for a used name."""
        ...

    def revoke_token(self, name: str) -> "Future[None]":
        """Remove a token; raises NotFound."""
        ...

    def tokens(self) -> list[Token]:
        """All tokens."""
        ...

    def setting(self, key: str) -> str | None:
        """A small value of the control plane's own, such as the origin of a replay."""
        ...

    def set_setting(self, key: str, value: str) -> "Future[None]":
        """Store such a value."""
        ...

    def healthy(self) -> bool:
        """Whether a trivial read works now."""
        ...

    def close(self) -> None:
        """Finish pending writes and let go of the database."""
        ...
