"""What every GPU draws now, put together by node, branch and region; pure, from what the hub and the book of energy know.

A sum tells what is unknown in it: a node that is silent, or a GPU that does not tell its power, draws an unknown amount, not
zero. All powers are W at the GPUs, without PUE. Anything simulated makes the sum that holds it simulated.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from dispatcher.power.accounts import MEASURED, MODELLED, PARTLY_MEASURED, SIMULATED
from dispatcher.power.energy import KnownNode
from dispatcher.power.hub import FORGET_S, CapLive, FrozenJob, GpuLive, LeaseLive, NodeAlarm, NodeLive

#: Reasons for a low clock that are no throttling: there was nothing to do.
_NO_THROTTLING = frozenset({"idle", "gpu_idle"})


@dataclass(frozen=True, slots=True)
class Draw:
    """What some GPUs draw together. ``power_w`` is None unless every one of them is known; ``known_w`` is the sum of those that
    are (None: none is), ``unknown_gpus`` how many are not."""

    power_w: float | None
    known_w: float | None
    gpus: int
    unknown_gpus: int
    simulated: bool


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU; None is unknown. ``state`` is active, execution_idle, deep_idle, lost or unknown; ``throttle`` has the reasons
    for which it is held below what it could do; ``enforced_w`` is the limit that holds, whoever set it."""

    uuid: str
    index: int
    name: str
    simulated: bool
    state: str
    jobs: tuple[str, ...] | None
    power_w: float | None
    limit_w: float | None
    enforced_w: float | None
    default_w: float | None
    temperature_c: float | None
    sm_util: float | None
    throttle: tuple[str, ...]
    cap: CapLive
    mig: bool
    #: Why economic leases leave it alone: work of no job of ours is on it; empty when none is.
    protected: str = ""


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node. ``silent`` means that nobody hears its agent: its figures are unknown, and its leases go on without us."""

    node_id: str
    hostname: str
    silent: bool
    last_seen_at: datetime
    can_cap: bool | None
    why_not: str
    simulated: bool
    draw: Draw
    gpus: tuple[GpuView, ...]
    alarms: tuple[NodeAlarm, ...] = ()
    frozen: tuple[FrozenJob, ...] = ()
    leases: tuple[LeaseLive, ...] = ()


@dataclass(frozen=True, slots=True)
class BranchView:
    """A rack or PDU; ``name`` None holds the nodes that are on none. ``power_limit_w`` is W at its meter (None: no limit)."""

    name: str | None
    power_limit_w: float | None
    draw: Draw
    nodes: tuple[NodeView, ...]


@dataclass(frozen=True, slots=True)
class RegionFleet:
    """A region; without any node nothing is measured there."""

    name: str
    draw: Draw
    branches: tuple[BranchView, ...]


@dataclass(frozen=True, slots=True)
class Fleet:
    """Every region with its draw."""

    at: datetime
    draw: Draw
    regions: tuple[RegionFleet, ...]


def fleet_of(
    live: Iterable[NodeLive],
    known: Iterable[KnownNode],
    regions: Sequence[str],
    branch_limits: Mapping[tuple[str, str], float],
    now: datetime,
) -> Fleet:
    """The fleet from nodes that are connected or went silent (``live``) and nodes that were heard of before the control plane
    started (``known``), which count as silent for as long as one that went silent is told of. ``regions`` are shown even when
    empty, ``branch_limits`` (region, branch) -> W likewise."""
    nodes = {node.node_id: (node.region, node.branch, node_view(node)) for node in live}
    for node in known:
        if node.node_id not in nodes and now - node.last_seen_at <= timedelta(seconds=FORGET_S):
            nodes[node.node_id] = (node.region, node.branch, _silent(node))
    # A Ray that was started anew gives its nodes new ids: the same GPUs must not be told of twice, once as silent.
    heard = {(view.hostname, gpu.uuid) for _, _, view in nodes.values() if not view.silent for gpu in view.gpus}
    nodes = {node_id: node for node_id, node in nodes.items() if not _is_followed(node[2], heard)}
    places: dict[str, dict[str | None, list[NodeView]]] = {name: {} for name in regions}
    for region, limited in branch_limits:
        places.setdefault(region, {}).setdefault(limited, [])
    for region, place, view in nodes.values():
        places.setdefault(region, {}).setdefault(place, []).append(view)
    views = []
    for region, by_branch in places.items():
        branches = [
            BranchView(branch, branch_limits.get((region, branch or "")), together(here), tuple(sorted(here, key=_name)))
            for branch, here in sorted(by_branch.items(), key=lambda one: (one[0] is None, one[0] or ""))
        ]
        views.append(RegionFleet(region, _sum(branch.draw for branch in branches), tuple(branches)))
    return Fleet(now, _sum(view.draw for view in views), tuple(views))


def _is_followed(node: NodeView, heard: set[tuple[str, str]]) -> bool:
    """Whether a silent node has been followed by one of the same machine that tells of all its GPUs."""
    return node.silent and bool(node.gpus) and heard.issuperset((node.hostname, gpu.uuid) for gpu in node.gpus)


def _name(node: NodeView) -> tuple[str, str]:
    return (node.hostname, node.node_id)


def node_view(node: NodeLive) -> NodeView:
    """A node as the hub tells of it."""
    gpus = tuple(_gpu_view(gpu, node) for gpu in sorted(node.gpus, key=lambda gpu: gpu.index))
    return NodeView(
        node.node_id,
        node.hostname,
        not node.connected,
        node.last_seen_at,
        node.can_cap,
        node.why_not,
        node.simulated or any(gpu.simulated for gpu in gpus),
        draw_of(gpus),
        gpus,
        tuple(node.alarms),
        tuple(node.frozen),
        tuple(node.leases),
    )


def _gpu_view(gpu: GpuLive, node: NodeLive) -> GpuView:
    # A lost GPU may have told a last figure: it is of the past.
    heard = node.connected and gpu.idle_state != "lost"
    return GpuView(
        uuid=gpu.uuid,
        index=gpu.index,
        name=gpu.name,
        simulated=gpu.simulated or node.simulated,
        state=(gpu.idle_state or "unknown") if node.connected else "unknown",
        jobs=gpu.jobs if heard else None,
        power_w=gpu.power_w if heard else None,
        limit_w=gpu.limit_w if heard else None,
        enforced_w=gpu.enforced_w if heard else None,
        default_w=gpu.default_w,
        temperature_c=gpu.temperature_c if heard else None,
        sm_util=gpu.sm_util if heard else None,
        throttle=tuple(reason for reason in gpu.throttle if reason not in _NO_THROTTLING) if heard else (),
        cap=gpu.cap if heard else CapLive("unknown"),
        mig=gpu.mig,
        protected=gpu.protected if heard else "",
    )


def _silent(node: KnownNode) -> NodeView:
    """A node of which nothing was heard since the control plane started."""
    gpus = tuple(
        GpuView(
            uuid=str(gpu.get("uuid")),
            index=int(gpu.get("index") or 0),
            name=str(gpu.get("name") or ""),
            simulated=node.simulated,
            state="unknown",
            jobs=None,
            power_w=None,
            limit_w=None,
            enforced_w=None,
            default_w=None,
            temperature_c=None,
            sm_util=None,
            throttle=(),
            cap=CapLive("unknown"),
            mig=False,
        )
        for gpu in node.gpus
    )
    seen = node.last_seen_at
    return NodeView(node.node_id, node.hostname, True, seen, None, "", node.simulated, draw_of(gpus), gpus)


def draw_of(gpus: Iterable[GpuView]) -> Draw:
    """What some GPUs draw together."""
    return _sum(Draw(gpu.power_w, gpu.power_w, 1, int(gpu.power_w is None), gpu.simulated) for gpu in gpus)


def together(nodes: Iterable[NodeView]) -> Draw:
    """What some nodes draw together."""
    return _sum(node.draw for node in nodes)


def _sum(draws: Iterable[Draw]) -> Draw:
    every = list(draws)
    gpus, unknown = sum(one.gpus for one in every), sum(one.unknown_gpus for one in every)
    known = [one.known_w for one in every if one.known_w is not None]
    known_w = sum(known) if known else None
    return Draw(known_w if gpus and not unknown else None, known_w, gpus, unknown, any(one.simulated for one in every))


def said(draw: Draw) -> str:
    """A sum in words that hide nothing."""
    mark = "SIMULATED " if draw.simulated else ""
    if draw.gpus == 0:
        return "unknown: no agent tells of any GPU here"
    if draw.known_w is None:
        return f"{mark}unknown: none of {draw.gpus} GPUs tells its power"
    if draw.unknown_gpus:
        return f"{mark}{draw.known_w:,.0f} W known; {draw.unknown_gpus} of {draw.gpus} GPUs unknown"
    return f"{mark}{draw.known_w:,.0f} W of {draw.gpus} GPU{'s' if draw.gpus > 1 else ''}"


def basis_of(fleet: Fleet) -> str:
    """What is known of the fleet's power rests on: measured where every region's GPUs tell theirs."""
    if fleet.draw.known_w is None:
        return MODELLED
    if fleet.draw.simulated:
        return SIMULATED
    return MEASURED if all(region.draw.power_w is not None for region in fleet.regions) else PARTLY_MEASURED


def caps_on(fleet: Fleet, job_id: str) -> list[tuple[GpuView, LeaseLive]]:
    """The GPUs of a job that are held below their default limit, each with the lease that holds it: the lowest."""
    found = []
    for node in (node for region in fleet.regions for branch in region.branches for node in branch.nodes):
        for gpu in node.gpus:
            here = [lease for lease in node.leases if lease.uuid == gpu.uuid]
            if job_id in (gpu.jobs or ()) and here:
                lease = min(here, key=lambda one: one.limit_w)
                if gpu.default_w is None or lease.limit_w < gpu.default_w:
                    found.append((gpu, lease))
    return found


def by_job(nodes: Iterable[NodeView]) -> dict[str, tuple[GpuView, ...]]:
    """The GPUs on which each job has a process now, as far as they are heard."""
    found: dict[str, list[GpuView]] = defaultdict(list)
    for node in nodes:
        for gpu in node.gpus:
            for job_id in gpu.jobs or ():
                found[job_id].append(gpu)
    return {job_id: tuple(gpus) for job_id, gpus in found.items()}


def known_of(node: NodeLive) -> KnownNode:
    """What is remembered of a node over a restart."""
    gpus = tuple({"uuid": gpu.uuid, "index": gpu.index, "name": gpu.name} for gpu in node.gpus)
    return KnownNode(node.node_id, node.hostname, node.region, node.branch, node.simulated, gpus, node.last_seen_at)
