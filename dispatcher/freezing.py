"""Keeps frozen what is recorded as frozen: orders to the agents of a job's nodes, renewed while the record says so.

Nothing is decided here. A freeze is lent for a minute and renewed; should this control plane die, the agents wake the job when
that minute is over. What came of an order is told to the control loop, which records it. It knows agents, and no clusters.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from dispatcher.power.hub import FreezeResult, NodeLive
from dispatcher.store import Job
from policies.freezing import freeze_max_s, frozen_until, used_s
from policies.world import JobState, Pausable

log = logging.getLogger(__name__)

#: For how long a freeze is lent, and how often it is renewed, wall s.
LEASE_S, RENEW_S = 60.0, 20.0
#: An order that did not succeed is sent again after this, wall s.
AGAIN_S = 2.0
#: A job that could not be frozen is not tried again for this long, wall s.
REFUSED_S = 60.0
#: A freeze that an earlier control plane ordered is believed to have ended only when the agents, once the first of them is
#: back, had this long to tell of it, wall s; without any of them it has ended by itself when its lease has.
TELL_S = 12.0
#: Draw is read this long after a job was stopped: telemetry averages over the second before. Wall s.
SETTLED_S = 5.0
#: Draws are told in steps of this, W, so that noise is no news.
STEP_W = 5.0


class Agents(Protocol):
    """What is needed of the hub of agents (dispatcher.power.hub.Hub)."""

    def nodes(self) -> list[NodeLive]:
        """Every node known."""
        ...

    def freeze(
        self, job_id: str, *, ttl_s: float, freeze_max_s: float, region: str | None = None
    ) -> "Future[list[FreezeResult]]":
        """Stop a job's processes on every connected node of a region."""
        ...

    def thaw(self, job_id: str, *, region: str | None = None) -> "Future[list[FreezeResult]]":
        """Let them run again."""
        ...


@dataclass(frozen=True, slots=True)
class Standing:
    """How a job stands with its agents: why it cannot be frozen (empty: it can), and what it draws while it is, W (None: not
    measured)."""

    cannot: str
    frozen_w: float | None = None


@dataclass(frozen=True, slots=True)
class Lapse:
    """Why a recorded freeze is none (any more), and for how long it can have lasted, s of the control plane's clock."""

    reason: str
    at_most_s: float


@dataclass(slots=True, eq=False)
class _Held:
    """A freeze as it was ordered. ``adopted``: by an earlier control plane, and no agent has told of it yet. ``most_s`` is what
    the job stood at its start. ``good_s`` is when all nodes that have processes of the job last said that they stand (wall;
    None: never yet), ``heard_s`` when an agent of its region was first seen."""

    job_id: str
    region: str | None
    adopted: bool
    since_s: float
    most_s: float
    sent_s: float = float("-inf")
    flying: bool = False
    good_s: float | None = None
    heard_s: float | None = None
    trouble: str = ""
    lapse: Lapse | None = None


@dataclass(slots=True, eq=False)
class _Wake:
    """A job to be woken, until every agent has said that it was or its lease is over."""

    job_id: str
    region: str | None
    until_s: float
    sent_s: float = float("-inf")
    flying: bool = False
    done: bool = False


class Freezes:
    """See the module. All calls are the control loop's; answers come from the hub's threads and wait for the next ``look``."""

    def __init__(
        self, agents: Agents, begun_at: datetime, *, speed: float = 1.0, wall: Callable[[], float] = time.monotonic
    ) -> None:
        """``begun_at`` is when this control plane began, ``speed`` how many seconds of its clock pass in one of the wall's."""
        self._agents, self._begun_at, self._speed, self._wall = agents, begun_at, speed, wall
        self._nodes: dict[str, list[NodeLive]] = {}
        self._held: dict[str, _Held] = {}
        self._wakes: dict[str, _Wake] = {}
        self._refused: dict[str, tuple[float, str]] = {}
        #: Nodes on which processes of a running job were found: they must answer, or the job would be frozen in part.
        self._found_on: dict[str, frozenset[str]] = {}
        self._answers: deque[tuple[_Held | _Wake, Sequence[FreezeResult]]] = deque()

    # --- what is known ------------------------------------------------------------------------------------------------

    def look(self, jobs: Iterable[Job]) -> dict[str, Lapse]:
        """Take in what the agents said since; returns why recorded freezes are no more, by job."""
        freezable = [job for job in jobs if job.flex.pausable is Pausable.FREEZE and job.state is JobState.RUNNING]
        self._nodes = {}
        if freezable:
            for node in self._agents.nodes():
                self._nodes.setdefault(node.region, []).append(node)
        while self._answers:
            asked, results = self._answers.popleft()
            asked.flying = False
            if isinstance(asked, _Wake):
                asked.done = all(result.ok for result in results)
            elif self._held.get(asked.job_id) is asked:
                self._take(asked, results)
        ids = {job.id for job in freezable}
        for gone in [job_id for job_id in self._found_on if job_id not in ids]:
            del self._found_on[gone]
        lapses = {}
        for job in freezable:
            if job.frozen_at is not None:
                held = self._held_of(job)
                if held.lapse is None:
                    held.lapse = self._lapse(held)
                if held.lapse is not None:
                    lapses[job.id] = held.lapse
                    self._let_go(held)
        return lapses

    def _let_go(self, held: _Held) -> None:
        """Have a job run on wherever it may still stand."""
        self._held.pop(held.job_id, None)
        if held.lapse is not None and held.trouble:
            self._refused[held.job_id] = (self._wall(), held.trouble)
        self._wakes[held.job_id] = _Wake(held.job_id, held.region, self._wall() + LEASE_S)

    def _held_of(self, job: Job) -> _Held:
        """What is kept of a job that is recorded as frozen."""
        held = self._held.get(job.id)
        if held is None:
            assert job.frozen_at is not None
            most_s = max(0.0, freeze_max_s(job.flex) - used_s(job.rested_at, job.frozen_at))
            held = _Held(job.id, job.region, job.frozen_at < self._begun_at, self._wall(), most_s)
            self._held[job.id] = held
        return held

    def of(self, job: Job) -> Standing:
        """How a running job stands with its agents."""
        held = self._held.get(job.id)
        if job.frozen_at is not None:
            return Standing("", self._measured_w(held) if held is not None else None)
        refused = self._refused.get(job.id)
        if refused is not None:
            if self._wall() - refused[0] < REFUSED_S:
                return Standing(refused[1])
            del self._refused[job.id]
        if not any(node.connected for node in self._nodes.get(job.region or "", ())):
            return Standing(f"no power agent in {job.region} is connected")
        return Standing("")

    def _take(self, held: _Held, results: Sequence[FreezeResult]) -> None:
        """What came of an order to freeze."""
        absent = f"no process of {held.job_id} runs on this node"
        stand = frozenset(result.node_id for result in results if result.ok)
        names = {node.node_id: node.hostname for nodes in self._nodes.values() for node in nodes}
        troubles = [
            f"{names.get(result.node_id, result.node_id)}: {result.error}"
            for result in results
            if not result.ok and result.error != absent
        ]
        missing = self._found_on.get(held.job_id, frozenset()) - {result.node_id for result in results}
        troubles += [f"{names.get(node_id, node_id)}: its agent is not connected" for node_id in sorted(missing)]
        if stand and not troubles:
            held.good_s, held.trouble = self._wall(), ""
            self._found_on[held.job_id] = stand
            return
        finds = "finds a process of it" if results else "is connected"
        held.trouble = "; ".join(troubles) or f"no power agent in {held.region} {finds}"
        log.info("freezing %s: %s", held.job_id, held.trouble)
        if held.good_s is None:
            held.lapse = Lapse(f"runs on, it could not be frozen: {held.trouble}", 0.0)

    def _lapse(self, held: _Held) -> Lapse | None:
        """Whether a freeze has ended by itself."""
        now_s = self._wall()
        if held.adopted:
            here = [node for node in self._nodes.get(held.region or "", ()) if node.connected]
            if here and held.heard_s is None:
                held.heard_s = now_s
            if any(one.job_id == held.job_id for node in here for one in node.frozen):
                held.adopted = False  # it stands, and is renewed
                return None
            late = now_s - held.since_s > LEASE_S if held.heard_s is None else now_s - held.heard_s > TELL_S
            return Lapse("runs on: its freeze ended while the control plane was away", held.most_s) if late else None
        if held.good_s is None or now_s - held.good_s <= LEASE_S:
            return None
        reason = f"runs on: its agents do not answer ({held.trouble or 'they are silent'}) and wake it by themselves"
        return Lapse(reason, (held.good_s + LEASE_S - held.since_s) * self._speed)

    def _measured_w(self, held: _Held) -> float | None:
        """What the GPUs of a frozen job draw, where they are its alone."""
        if held.good_s is None or self._wall() - held.since_s < SETTLED_S:
            return None
        found_on = self._found_on.get(held.job_id, frozenset())
        there = [gpu for node in self._nodes.get(held.region or "", ()) if node.node_id in found_on for gpu in node.gpus]
        if any(gpu.jobs is None for gpu in there):
            return None  # it may have one more, or one less
        gpus = [gpu for gpu in there if held.job_id in (gpu.jobs or ())]
        draws = [gpu.power_w for gpu in gpus if gpu.jobs == (held.job_id,) and gpu.power_w is not None]
        if not draws or len(draws) < len(gpus):
            return None
        return round(sum(draws) / STEP_W) * STEP_W

    # --- orders -------------------------------------------------------------------------------------------------------

    def drive(self, jobs: Mapping[str, Job], now: datetime) -> None:
        """Bring the agents to what is recorded. Safe to repeat."""
        for job_id, held in list(self._held.items()):
            job = jobs.get(job_id)
            if job is None or not _stands(job):
                self._let_go(held)
        for job in jobs.values():
            if _stands(job):
                self._wakes.pop(job.id, None)
                self._renew(job, self._held_of(job), now)
        for job_id in [one for one in self._refused if one not in jobs]:
            del self._refused[job_id]
        self._wake()

    def _renew(self, job: Job, held: _Held, now: datetime) -> None:
        assert job.frozen_at is not None
        pause_s = RENEW_S if held.good_s is not None and not held.trouble else AGAIN_S
        if held.adopted or held.flying or held.lapse is not None or self._wall() - held.sent_s < pause_s:
            return
        # The agents count wall seconds by clocks of their own: ours only says how many are left.
        left_s = (frozen_until(job.flex, job.frozen_at, job.rested_at) - now).total_seconds() / self._speed
        if left_s <= 0:
            return
        held.sent_s, held.flying = self._wall(), True
        asked = self._agents.freeze(
            job.id, ttl_s=min(LEASE_S, left_s), freeze_max_s=max(left_s, held.most_s / self._speed), region=job.region
        )
        asked.add_done_callback(lambda done: self._answers.append((held, done.result())))

    def _wake(self) -> None:
        for job_id, wake in list(self._wakes.items()):
            if wake.done or self._wall() > wake.until_s:
                del self._wakes[job_id]
            elif not wake.flying and self._wall() - wake.sent_s >= AGAIN_S:
                wake.sent_s, wake.flying = self._wall(), True
                asked = self._agents.thaw(job_id, region=wake.region)
                asked.add_done_callback(lambda done, wake=wake: self._answers.append((wake, done.result())))  # type: ignore[misc]


def _stands(job: Job) -> bool:
    """Whether a job is to stand frozen. One that is being cancelled is woken: a stopped process cannot end in order."""
    return job.frozen_at is not None and job.state is JobState.RUNNING and job.cancel_requested_at is None
