"""Power from interactive serving in an emergency: which caps its GPUs get for what batch cannot give, and what is said of it.

Only of serving that its operator has set ``allow_emergency`` for, never below its floor, and last of all: while any job there
could still pause, nothing is asked of it. It sends nothing.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dispatcher.power.cap_wishes import Emergency, Limit, Wish, lease_id, least_w, why_unable
from dispatcher.power.hub import GpuLive, NodeLive
from policies.cap_model import LEAST_CAP, Learned
from policies.freezing import may_freeze
from policies.sentences import counted, kw
from policies.turns import leaving, may_ask, pausable_now
from policies.world import PLACED, JobState, JobView, Pausable, RegionView, World

#: How fast a remembered draw follows a lower one, each second, and below which share of its limit a GPU is not held by it.
FALL, BINDS = 0.02, 0.8
#: Caps that move by less than this share of the default limits are not told of anew.
TOLD = 0.05


class Step(NamedTuple):
    """One step of what serving gives, in a sentence: for the history of the event and of the serving."""

    region: str
    serving: str
    source: str
    event_id: str
    sentence: str


@dataclass(slots=True)
class _Given:
    """What is asked of one serving for one limit: the sum of its caps, W at the GPUs, for which event, and what is said."""

    caps_w: float
    event: Emergency
    sentence: str


@dataclass
class ServedDraws:
    """What GPUs of serving draw uncapped, remembered from when no lease held them: a cap must not make its cause go away."""

    _full_w: dict[tuple[str, str], float] = field(default_factory=dict)

    def look(self, nodes: Iterable[NodeLive]) -> dict[str, float]:
        """W by uuid, of those GPUs of a region's nodes that may be capped in an emergency and have a lease now."""
        found = {}
        for node in nodes:
            leased = {lease.uuid for lease in node.leases if lease.kind == "event"}
            for gpu in node.gpus:
                if not gpu.yields or not node.connected or gpu.power_w is None:
                    continue
                place, holds = (node.region, gpu.uuid), gpu.uuid in leased
                # One whose lease was there before us may draw anything more.
                known_w = self._full_w.get(place, (gpu.default_w or gpu.power_w) if holds else gpu.power_w)
                limit_w = gpu.enforced_w if gpu.enforced_w is not None else gpu.limit_w
                if gpu.power_w > known_w:
                    known_w = gpu.power_w
                elif not holds or limit_w is None or gpu.power_w < BINDS * limit_w:
                    known_w += FALL * (gpu.power_w - known_w)
                self._full_w[place] = known_w
                if holds:
                    found[gpu.uuid] = known_w
        return found

    def forget(self, nodes: Mapping[str, Iterable[NodeLive]]) -> None:
        """Drop what no node has any more."""
        there = {(node.region, gpu.uuid) for some_nodes in nodes.values() for node in some_nodes for gpu in node.gpus}
        for place in self._full_w.keys() - there:
            del self._full_w[place]


def could_give(view: RegionView, world: World, on: Collection[str] | None) -> list[str]:
    """Ids of the jobs placed in a region that could still pause or freeze, or are about to; ``on`` are those on the branch in
    question (None: all). Of a cluster that does not answer nobody can."""
    if not view.reachable:
        return []
    here = (job for job in world.jobs if job.state in PLACED and job.region == view.name and (on is None or job.id in on))
    return [job.id for job in here if _could_give(job, world)]


def _could_give(job: JobView, world: World) -> bool:
    if leaving(job) or may_freeze(job, world.now):
        return True
    if job.state is JobState.LAUNCHING:  # it is asked once it runs
        return job.flex.flexible and job.flex.pausable is not Pausable.NO
    return pausable_now(job) and may_ask(job, world)


@dataclass
class Taking:
    """What one round takes from the serving of one region. ``floors_w`` has the floor of each that allows it, W at the meter;
    ``served_w`` is what their GPUs that have a lease would draw without it. ``told`` and ``silent`` are by serving and
    limit: what is asked, and where caps stand on nodes that do not answer. ``unmet_w`` is what is missing at the site
    while jobs could still give, W at the meter."""

    view: RegionView
    nodes: Sequence[NodeLive]
    world: World
    floors_w: Mapping[str, float]
    served_w: Mapping[str, float]
    learned: Learned
    wishes: list[Wish] = field(default_factory=list)
    told: dict[tuple[str, str], _Given] = field(default_factory=dict)
    silent: set[tuple[str, str]] = field(default_factory=set)
    unmet_w: float = 0.0

    def take(self, limit: Limit, danger: Emergency, missing_w: float, margin_w: float) -> float:
        """Caps for what a limit misses with batch at its least, W at the meter; returns what they take off. ``margin_w`` is the
        part of it that only eats into the margin: nothing begins for that alone."""
        gpus = [gpu for node in self.nodes if self._counts(node, limit) for gpu in node.gpus if self._may_cap(gpu)]
        for node in self.nodes:
            names = {lease.lease_id for lease in node.leases} if why_unable(node) else set()
            self.silent |= {(g.serving, limit.key) for g in node.gpus if g.yields and lease_id(limit.key, g.uuid) in names}
        stands = {lease.lease_id: lease for node in self.nodes for lease in node.leases}
        ours = [stands[name] for gpu in gpus if (name := lease_id(limit.key, gpu.uuid)) in stands]
        if self.view.unheard:  # what caps and pauses can do is not known yet: what stands does
            by_uuid = {gpu.uuid: gpu for gpu in gpus}
            for lease in ours:
                self._wish(by_uuid[lease.uuid], limit, lease.limit_w, lease.reason)
            return 0.0
        need_w = missing_w - (0.0 if ours else margin_w)
        if not gpus or need_w <= 0:
            return 0.0
        if could_give(self.view, self.world, self._on(limit)):
            self.unmet_w = max(self.unmet_w, need_w if limit.branch is None else 0.0)
            return 0.0
        full_w = {gpu.uuid: self._full_w(gpu) for gpu in gpus}
        caps_w = even_caps(gpus, self._least(gpus, full_w), full_w, sum(full_w.values()) - missing_w / self.view.pue)
        by_serving: dict[str, list[GpuLive]] = {}
        for gpu in gpus:
            if caps_w[gpu.uuid] < (gpu.default_w or 0.0):
                by_serving.setdefault(gpu.serving, []).append(gpu)
        for name, some_gpus in by_serving.items():
            caps = [caps_w[gpu.uuid] for gpu in some_gpus]
            for gpu, cap_w in zip(some_gpus, caps, strict=True):
                self._wish(gpu, limit, cap_w, f"an emergency ({limit.reason}), and batch has given all that it may")
            self.told[name, limit.key] = _Given(sum(caps), danger, self._sentence(name, limit, caps, need_w))
        return sum(max(0.0, full_w[gpu.uuid] - caps_w[gpu.uuid]) for gpu in gpus) * self.view.pue

    def beside_w(self) -> float:
        """What GPUs without jobs draw, those of serving without caps, W at the meter."""
        gpus = [gpu for node in self.nodes for gpu in node.gpus if not gpu.jobs]
        return sum(self._full_w(gpu) if gpu.yields else gpu.power_w or 0.0 for gpu in gpus) * self.view.pue

    def default_w(self) -> float:
        """The default limits of its GPUs together, W."""
        return sum(gpu.default_w or 0.0 for node in self.nodes for gpu in node.gpus if gpu.yields)

    def _counts(self, node: NodeLive, limit: Limit) -> bool:
        return not why_unable(node) and (limit.branch is None or node.branch == limit.branch)

    def _may_cap(self, gpu: GpuLive) -> bool:
        return gpu.yields and gpu.serving in self.floors_w and bool(gpu.default_w) and gpu.min_w is not None

    def _on(self, limit: Limit) -> set[str] | None:
        """The jobs on a limit's branch; all of the region where a node there does not tell who is on it."""
        if limit.branch is None:
            return None
        gpus = [gpu for node in self.nodes if node.branch == limit.branch for gpu in node.gpus]
        return None if any(gpu.jobs is None for gpu in gpus) else {job_id for gpu in gpus for job_id in gpu.jobs or ()}

    def _full_w(self, gpu: GpuLive) -> float:
        if gpu.uuid in self.served_w:
            return self.served_w[gpu.uuid]
        return gpu.power_w if gpu.power_w is not None else gpu.default_w or 0.0

    def _least(self, gpus: Iterable[GpuLive], full_w: Mapping[str, float]) -> dict[str, float]:
        """The lowest cap of each GPU, W: the same share of the default limit for all of one serving, such that together they
        keep its floor wherever they are; and what jobs beside it there accept."""
        jobs = {job.id: job.flex for job in self.world.jobs}
        default_w: dict[str, float] = {}
        for gpu in (gpu for node in self.nodes if node.connected for gpu in node.gpus if self._may_cap(gpu)):
            default_w[gpu.serving] = default_w.get(gpu.serving, 0.0) + (gpu.default_w or 0.0)
        least = {}
        for gpu in gpus:
            share = max(LEAST_CAP, self.floors_w[gpu.serving] / (default_w[gpu.serving] * self.view.pue))
            own_w = gpu.default_w or 0.0
            low_w = float(math.ceil(max(share * own_w, gpu.min_w or 0.0) - 1e-6))  # without the dust of a division
            beside = [jobs.get(job_id) for job_id in gpu.jobs or ()]
            if slowed := [flex for flex in beside if flex is not None and flex.may_be_slowed]:
                curve = self.learned.curve(slowed[0].group, gpu.name, round(full_w[gpu.uuid] / own_w, 2))
                low_w = max(low_w, least_w(gpu, own_w, slowed, curve))
            least[gpu.uuid] = min(own_w, low_w) if len(slowed) == len(beside) else own_w
        return least

    def _wish(self, gpu: GpuLive, limit: Limit, cap_w: float, reason: str) -> None:
        name = lease_id(limit.key, gpu.uuid)
        self.wishes.append(Wish(gpu.node_id, gpu.uuid, name, "event", cap_w, limit.ends_at, reason))

    def _sentence(self, name: str, limit: Limit, caps_w: Sequence[float], need_w: float) -> str:
        where = self.view.name if limit.branch is None else f"branch {limit.branch} of {self.view.name}"
        draws = f"serving {name} may draw {kw(sum(caps_w))} on {counted(len(caps_w), 'GPU')}"
        floor = f"its floor is {kw(self.floors_w[name])} at the meter"
        why = f"in an emergency ({limit.reason}) batch in {where} has given all that it may, and {kw(need_w)} are missing"
        return f"{draws} ({floor}): {why}"


def even_caps(
    gpus: Sequence[GpuLive], low_w: Mapping[str, float], full_w: Mapping[str, float], allowed_w: float
) -> dict[str, float]:
    """Caps, whole W by uuid, under which GPUs that would draw ``full_w`` draw ``allowed_w`` together at most: the same share of
    the default limit for all, but none below its least."""

    def caps(share: float) -> dict[str, float]:
        return {gpu.uuid: max(low_w[gpu.uuid], float(math.floor(share * (gpu.default_w or 0.0)))) for gpu in gpus}

    def drawn_w(share: float) -> float:
        return sum(min(full_w[uuid], cap_w) for uuid, cap_w in caps(share).items())

    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if drawn_w(middle) <= allowed_w else (low, middle)
    return caps(low)


@dataclass
class Steps:
    """What is asked of serving now, by region, serving and limit, so that each step is told once."""

    _now: dict[tuple[str, str, str], _Given] = field(default_factory=dict)

    def sentences(self) -> list[tuple[str, str, str]]:
        """(region, serving, sentence) of what is asked now."""
        return [(region, name, one.sentence) for (region, name, _), one in self._now.items()]

    def note(self, takes: Taking, limits: Collection[str]) -> list[Step]:
        """What has changed in a region. ``limits`` are those in force, by key."""
        steps, region, told = [], takes.view.name, takes.told
        for (name, key), one in told.items():
            before = self._now.get((region, name, key))
            if before is None or abs(before.caps_w - one.caps_w) >= TOLD * takes.default_w():
                steps.append(Step(region, name, one.event.source, one.event.event_id, one.sentence))
                self._now[region, name, key] = one
        for place in [place for place in self._now if place[0] == region and place[1:] not in told]:
            if place[1:] in takes.silent:
                continue
            event = self._now.pop(place).event
            why = "it is not needed" if place[2] in limits else "the emergency is over"
            sentence = f"serving {place[1]} is not capped any more: {why}"
            steps.append(Step(region, place[1], event.source, event.event_id, sentence))
        return steps


#: Told of steps, outside of the power loop's lock.
Note = Callable[[Step], object]
