"""Which power leases should stand on a region's GPUs at this moment, from one picture of it. Pure: it sends nothing.

Limits of the site, of its branches and of events become caps by policies.power_allocation; a plan's caps are taken as they are.
A GPU that must not or cannot be capped counts with what it draws, one whose draw is unknown with the most it may draw.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

import numpy as np

from dispatcher.power.hub import GpuLive, NodeLive
from policies.cap_model import GRID, LEAST_CAP, CapCurve, Learned
from policies.freezing import frozen_w
from policies.power_allocation import TIER_LOSS, Allocation, Tree, Units, allocate
from policies.sentences import hhmm, kw, some
from policies.serving import Level
from policies.turns import leaving, limit_key, pausable_now
from policies.world import PLACED, Flexibility, JobView, RegionView

#: What limits are kept below by, as a share: meters and drivers are not exact. The least is enough where what is measured has
#: long been within the limit.
MARGIN, LEAST_MARGIN = 0.01, 0.004
#: Lease ids of ours begin with one of these words; what else is on a node is somebody else's.
OURS = ("plan ", "site ", "event ", "serving ", "tuning ")
#: How it begins why GPUs are not capped that serving has.
SERVING = "interactive serving"
#: Why GPUs are not capped on which other work than ours runs.
FOREIGN = "work of no job of gridshift's runs on them"


class Wish(NamedTuple):  # ten thousand of them at once, so what is made fastest
    """A lease that should stand; ``ends_at`` None is open (an economic lease is renewed for as long as it is wished for). It
    stays for ``stays_s`` after that, so that not all load comes back at once. ``foreign_ok``: on work of others too."""

    node_id: str
    uuid: str
    lease_id: str
    kind: str
    limit_w: float
    ends_at: datetime | None
    reason: str
    stays_s: float = 0.0
    foreign_ok: bool = False


@dataclass(frozen=True, slots=True)
class Emergency:
    """An event that is an emergency: what it asks for itself, W as its limit counts them (a standing limit may be lower, and is
    none of its own), its source and its id."""

    limit_w: float
    source: str
    event_id: str


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on a region's draw, W at the meter (inf: none of the site, only its branches'), and whose it is. With ``branch``
    it is that branch's alone, and of what the GPUs there draw: a branch's meter sees no cooling. ``recovery_s`` is how long
    load takes to come back after it. ``emergency`` is the emergency that it is of; None: of none."""

    key: str
    kind: str
    limit_w: float
    ends_at: datetime | None
    reason: str
    branch: str | None = None
    recovery_s: float = 0.0
    emergency: Emergency | None = None


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something an operator must know."""

    key: str
    region: str
    sentence: str


@dataclass(slots=True)
class Group:
    """GPUs below one branch that run the same jobs and so get one cap. ``full_w`` is what one draws uncapped, ``unused`` the
    share of a limit that one leaves undrawn, on average."""

    jobs: tuple[str, ...]
    leaf: int
    gpus: list[GpuLive] = field(default_factory=list)
    full_w: float = 0.0
    may_cap: bool = True
    why_not: str = ""
    unused: float = 0.0


@dataclass(slots=True)
class Draw:
    """What a GPU draws uncapped, W, while it runs ``jobs``, as far as it is known; since when (s of the caller's clock); and
    which share of its limit it left undrawn while that held it: work that waits now and then draws less than it may."""

    jobs: tuple[str, ...]
    since_mono: float
    full_w: float
    unused: float = 0.0


def lease_id(key: str, uuid: str) -> str:
    """A lease's name: the same for the same limit and GPU, and short enough for an agent."""
    if len(key) > 120:
        key = f"{key[:80]} {hashlib.sha256(key.encode()).hexdigest()[:24]}"
    return f"{key} {uuid}"


def _nothing(limit: Limit, danger: Emergency, missing_w: float, margin_w: float) -> float:
    return 0.0


def on_limits(
    view: RegionView,
    nodes: Sequence[NodeLive],
    jobs: Mapping[str, JobView],
    limits: Iterable[Limit],
    branches: Mapping[str, float],
    draws: Mapping[str, Draw],
    learned: Learned,
    trust: float = 1.0,
    served_w: Mapping[str, float] | None = None,
    serving_gives: Callable[[Limit, Emergency, float, float], float] = _nothing,
) -> tuple[list[Wish], list[Trouble]]:
    """Leases that keep each of ``limits`` and the limits of ``branches`` (W at the GPUs), and what they cannot do. ``draws``
    is what each GPU draws uncapped, by uuid; one that is missing there is idle or unknown. ``trust``, 0 to 1: how
    far what is measured allows to do with a small margin, and to give GPUs on top what they leave undrawn of their limits.
    ``served_w`` is what GPUs of serving that are capped in an emergency would draw, by uuid. ``serving_gives`` tells what caps
    on such GPUs take off, of what an emergency's limit misses and the part of it that is in the margin, W at the meter."""
    limits = [one for one in limits if math.isfinite(one.limit_w) or any(branches.values())]
    if not limits:
        return [], []
    of_limits = [one.branch for one in limits if one.branch is not None]
    names = list(dict.fromkeys([*branches, *of_limits, *(node.branch for node in nodes if node.branch is not None)]))
    leaf_of = {name: at + 1 for at, name in enumerate(names)}
    spares = any(gpu.protected for node in nodes for gpu in node.gpus)
    # The work of others is spared by limits that stand, not by events; mostly there is none, and one look serves both.
    kinds = {limit.kind if spares else "" for limit in limits}
    looks = {
        kind: _groups(view, nodes, jobs, leaf_of, draws, served_w or {}, spare_foreign=kind == "economic") for kind in kinds
    }
    units_of = {kind: _units(look.groups, jobs, learned) for kind, look in looks.items()}
    unknown = max(look.unknown for look in looks.values())
    wishes: list[Wish] = []
    troubles: list[Trouble] = []
    if unknown:
        sentence = (
            f"{unknown} GPUs in {view.name} tell neither what they draw nor what they may: limits there are kept without them"
        )
        troubles.append(Trouble(f"draw unknown {view.name}", view.name, sentence))
    for limit in limits:
        kind = limit.kind if spares else ""
        look, units = looks[kind], units_of[kind]
        groups = look.groups
        caps = [limit.limit_w if limit.branch is None else view.power_limit_w or math.inf]
        for name in names:
            # The tree counts W at the site's meter throughout; a branch's limit is of its GPUs alone.
            most_w = min(branches.get(name) or math.inf, limit.limit_w if limit.branch == name else math.inf)
            caps.append(most_w * view.pue)
        margin = MARGIN + (LEAST_MARGIN - MARGIN) * trust
        tree = Tree(
            (view.name, *names),
            np.array([-1] + [0] * len(names), dtype=np.int64),
            np.array(caps) * (1.0 - margin),
            np.array(look.fixed_w),
            view.pue,
        )
        found = allocate(units, tree)
        if found.shortfalls:
            found = allocate(replace(units, pause_rank=_pause_ranks(groups, jobs)), tree)
        wishes += _leases(found, groups, limit, jobs, trust)
        spare_w = {name: cap * margin for name, cap in zip((view.name, *names), caps, strict=True)}
        if limit.emergency is not None:
            at = 0 if limit.branch is None else leaf_of[limit.branch]
            own_w = limit.emergency.limit_w * (1.0 if limit.branch is None else view.pue)
            short_w = sum(short.short_w for short in found.shortfalls if short.name == tree.names[at])
            missing_w = short_w - _given_w(found, groups, jobs, at or None, view.pue)[0] - max(0.0, own_w - caps[at])
            spare_w[tree.names[at]] += serving_gives(limit, limit.emergency, missing_w, spare_w[tree.names[at]])
        troubles += _told(found, look, limit, view, leaf_of, jobs, spare_w)
    return wishes, troubles


class _Look(NamedTuple):
    """GPUs by what they run; W at the meter that no cap changes, of the site and of each branch; how many GPUs tell neither
    what they draw nor what they may; and which part of the site's W is only stated, by jobs that no agent sees. ``at_limits``
    and ``as_known`` are how many GPUs, of no branch and of each, do not tell what they draw: they count with the most they may
    draw, or with what their work was known or said to draw."""

    groups: list[Group]
    fixed_w: list[float]
    unknown: int
    unseen_w: float
    at_limits: list[int]
    as_known: list[int]


def _groups(
    view: RegionView,
    nodes: Sequence[NodeLive],
    jobs: Mapping[str, JobView],
    leaf_of: Mapping[str, int],
    draws: Mapping[str, Draw],
    served_w: Mapping[str, float],
    *,
    spare_foreign: bool,
) -> _Look:
    """See _Look. ``spare_foreign``: GPUs with work of others on them are not to be capped."""
    fixed_w = [view.bypass_w, *[0.0] * len(leaf_of)]
    groups: dict[tuple[str | tuple[str, ...], int, str, str], Group] = {}
    seen: dict[str, int] = {}
    at_limits, as_known = [0] * len(fixed_w), [0] * len(fixed_w)
    unknown, unseen_w = 0, 0.0
    kept = {job_id for job_id, job in jobs.items() if job.flex.may_be_slowed}
    for node in nodes:
        leaf = leaf_of.get(node.branch, 0) if node.branch is not None else 0
        unable = why_unable(node)
        for gpu in node.gpus:
            draw, on_it = draws.get(gpu.uuid), gpu.jobs or ()
            for job in draw.jobs if draw is not None else on_it:
                seen[job] = seen.get(job, 0) + 1
            blind = not node.connected or gpu.power_w is None
            as_known[leaf] += blind and draw is not None
            if draw is None or not on_it:
                drawn_w = known_draw(gpu, node, draw)
                if gpu.uuid in served_w:
                    drawn_w = max(drawn_w or 0.0, served_w[gpu.uuid])
                fixed_w[leaf] += (drawn_w or 0.0) * view.pue
                unknown += drawn_w is None
                at_limits[leaf] += blind and draw is None and drawn_w is not None
                continue
            why_not, full_w = unable, draw.full_w
            if gpu.serving:
                why_not = f"{SERVING} {gpu.serving} has them"
            elif gpu.protected and spare_foreign:
                why_not = FOREIGN
            elif not kept.issuperset(on_it):
                why_not = "its work is never capped, or not known here"
            elif gpu.default_w is None or gpu.min_w is None:
                why_not = "it does not tell which limits it allows"
            key = (on_it[0] if len(on_it) == 1 else on_it, leaf, why_not, gpu.name)
            if why_not:
                full_w = _held_w(gpu, node, full_w, leased=not node.connected or keeps_event_caps(gpu, node, jobs))
                full_w = max(full_w, served_w.get(gpu.uuid, 0.0))
            group = groups.get(key)
            if group is None:
                groups[key] = Group(on_it, leaf, [gpu], full_w, not why_not, why_not, draw.unused)
            else:
                group.gpus.append(gpu)
                group.full_w += full_w
                group.unused += draw.unused
    for one in jobs.values():
        if one.region == view.name and one.state in PLACED:
            # Work that no agent has seen (yet): what its owner says it draws.
            unseen = 1.0 if one.flex.gpus <= 0 else max(0.0, 1.0 - seen.get(one.id, 0) / one.flex.gpus)
            unseen_w += unseen * one.flex.power_w * view.pue
    fixed_w[0] += unseen_w
    for group in groups.values():
        group.full_w /= len(group.gpus)
        group.unused /= len(group.gpus)
    return _Look(list(groups.values()), fixed_w, unknown, unseen_w, at_limits, as_known)


def known_draw(gpu: GpuLive, node: NodeLive, draw: Draw | None) -> float | None:
    """What a GPU draws that no cap of ours changes. While that is unknown, the most it may draw; None when that is unknown
    too."""
    if node.connected and gpu.power_w is not None:
        return gpu.power_w
    most_w = draw.full_w if draw is not None else gpu.default_w if gpu.default_w is not None else gpu.max_w
    return min([most_w, *_event_limits_w(gpu, node)]) if most_w is not None else None


def _event_limits_w(gpu: GpuLive, node: NodeLive) -> list[float]:
    """The limits of the event leases that stand on a GPU."""
    return [lease.limit_w for lease in node.leases if lease.uuid == gpu.uuid and lease.kind == "event"]


def _held_w(gpu: GpuLive, node: NodeLive, full_w: float, *, leased: bool) -> float:
    """What a GPU draws that we cannot cap and that would draw ``full_w`` but for the limit that it holds, whoever set that,
    and, with ``leased``, for event leases that stand on it until they end; never less than is measured."""
    holds = [gpu.enforced_w] if node.connected and gpu.enforced_w is not None else []
    leases = _event_limits_w(gpu, node) if leased else []
    return max(min([full_w, *holds, *leases]), gpu.power_w or 0.0)


def why_unable(node: NodeLive) -> str:
    """Why no GPU of a node can be capped; empty when they can be."""
    if not node.connected:
        return "its agent is silent"
    if not node.can_cap:
        return f"the agent there cannot cap: {node.why_not or 'it does not say why'}"
    return ""


def _units(groups: Sequence[Group], jobs: Mapping[str, JobView], learned: Learned) -> Units:
    """The groups as the allocation takes them."""
    numbers: dict[tuple[str, ...], int] = {}
    full = np.array([group.full_w for group in groups])
    kinds: dict[tuple[object, ...], int] = {}  # many groups are alike, and share a curve
    curves: list[CapCurve] = []
    least: list[float] = []
    which = []
    for group in groups:
        gpu, views = group.gpus[0], [jobs[one].flex for one in group.jobs if one in jobs]
        default_w = gpu.default_w or group.full_w or 1.0
        name = views[0].group if len(views) == 1 else None
        share = round(group.full_w / default_w, 2)
        asks = (views[0].tier, views[0].min_cap) if len(views) == 1 else (*((flex.tier, flex.min_cap) for flex in views),)
        kind = (name, gpu.name, share, default_w, gpu.min_w, asks)
        number = kinds.get(kind)
        if number is None:
            number = kinds[kind] = len(curves)
            curves.append(learned.curve(name, gpu.name, share))
            least.append(least_w(gpu, default_w, views, curves[-1]))
        which.append(number)
    low = np.where([group.may_cap for group in groups], np.minimum(full, np.array(least)[which]), full)
    scale = full / np.array([curve.draw for curve in curves])[which]  # a curve's draw is rounded
    points = (-1, len(GRID) + 1)
    watts = np.array([curve.caps for curve in curves]).reshape(points)[which] * scale[:, None]
    speed = np.array([curve.speeds for curve in curves]).reshape(points)[which]
    return Units(
        leaf=np.array([group.leaf for group in groups], dtype=np.int64),
        gpus=np.array([float(len(group.gpus)) for group in groups]),
        watts=watts,
        speed=speed,
        full_w=full,
        low_w=low,
        weight=np.ones(len(groups)),
        job=np.array([numbers.setdefault(group.jobs, len(numbers)) for group in groups], dtype=np.int64),
        pause_rank=np.full(len(groups), np.nan),
    )


def _pause_ranks(groups: Sequence[Group], jobs: Mapping[str, JobView]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Which groups' jobs would be asked first to pause; nan for those that are not asked."""
    alone = (jobs.get(group.jobs[0]) for group in groups if len(group.jobs) == 1)
    able = {job.id: job for job in alone if job is not None and pausable_now(job) and not leaving(job)}
    order = sorted(able, key=lambda job_id: _pause_order(able[job_id]))
    rank = {job_id: float(at) for at, job_id in enumerate(order)}
    return np.array([rank.get(group.jobs[0], math.nan) if len(group.jobs) == 1 else math.nan for group in groups])


def least_w(gpu: GpuLive, default_w: float, jobs: Sequence[Flexibility], curve: CapCurve) -> float:
    """The lowest cap that all of these jobs on a GPU accept, W: their tiers, their own least caps, half of the default limit,
    and what the GPU allows."""
    loss = min((TIER_LOSS.get(flex.tier, 0.0) for flex in jobs), default=0.0)
    share = max([curve.least_cap(loss), LEAST_CAP, *[flex.min_cap or 0.0 for flex in jobs]])
    return float(math.ceil(max(share * default_w, gpu.min_w or 0.0)))


def _pause_order(job: JobView) -> tuple[int, int, float, str]:
    overhead = (job.flex.checkpoint_s + job.flex.restart_s) * job.flex.power_w
    return (job.flex.priority, -int(job.flex.tier[-1]), overhead, job.id)


def _leases(found: Allocation, groups: Sequence[Group], limit: Limit, jobs: Mapping[str, JobView], trust: float) -> list[Wish]:
    """The allocation as leases: whole W, rounded down, never below what a group accepts."""
    wishes = []
    unused = np.array([group.unused for group in groups]) * trust
    limits_w, speeds = np.floor(found.draw_w / (1.0 - unused) + 1e-3).tolist(), np.round(found.speed, 2).tolist()
    stays_s = _stays(found, groups, limit, jobs)
    reasons: dict[tuple[float, float, float | None], str] = {}  # many groups have the same
    for number, (group, is_capped, limit_w, speed) in enumerate(
        zip(groups, found.capped.tolist(), limits_w, speeds, strict=True)
    ):
        if not is_capped or not group.may_cap:
            continue
        default_w = group.gpus[0].default_w
        reason = reasons.get((limit_w, speed, default_w))
        if reason is None:
            share = limit_w / default_w if default_w else 1.0
            reason = f"{limit.reason}: {limit_w:.0f} W ({share:.0%} of the default), about {speed:.0%} of its speed"
            reasons[limit_w, speed, default_w] = reason
        first_s, each_s = stays_s.get(number, (0.0, 0.0))
        for at, gpu in enumerate(group.gpus, 1):
            name = lease_id(limit.key, gpu.uuid)
            lasts_s = first_s + at * each_s
            wishes.append(Wish(gpu.node_id, gpu.uuid, name, limit.kind, limit_w, limit.ends_at, reason, lasts_s))
    return wishes


def _stays(
    found: Allocation, groups: Sequence[Group], limit: Limit, jobs: Mapping[str, JobView]
) -> dict[int, tuple[float, float]]:
    """For how long, s, caps stay after a limit's end, so that load comes back on a straight line whoever is alive then: by the
    group's number, when its turn begins and how far its GPUs are apart. The least flexible come back first."""
    if limit.recovery_s <= 0:
        return {}
    back_w = [
        (number, (group.full_w - draw_w) * len(group.gpus))
        for number, (group, draw_w) in enumerate(zip(groups, found.draw_w.tolist(), strict=True))
        if found.capped[number] and group.may_cap
    ]
    total_w = sum(watts for _, watts in back_w)
    stays: dict[int, tuple[float, float]] = {}
    done_w = 0.0
    for number, watts in sorted(back_w, key=lambda one: _back_order(groups[one[0]], jobs)):
        share_s = limit.recovery_s * watts / total_w
        stays[number] = (limit.recovery_s * done_w / total_w, share_s / len(groups[number].gpus))
        done_w += watts
    return stays


def _back_order(group: Group, jobs: Mapping[str, JobView]) -> tuple[int, int, tuple[str, ...], int]:
    views = [jobs[job_id].flex for job_id in group.jobs if job_id in jobs]
    return (
        -max((flex.priority for flex in views), default=0),
        min((int(flex.tier[-1]) for flex in views), default=0),
        group.jobs,
        group.leaf,
    )


def coming_back(nodes: Sequence[NodeLive], jobs: Mapping[str, JobView], ended: Mapping[str, datetime]) -> list[Wish]:
    """Leases of limits that are over (their keys, and when each ended) as they stand: each goes on to its own end. ``stays_s``
    is what its node tells of that; who ordered it knows better."""
    wishes = []
    for node in nodes:
        if not node.leases:
            continue
        on = {gpu.uuid: gpu.jobs or () for gpu in node.gpus}
        for lease in node.leases:
            end = next((at for key, at in ended.items() if lease_id(key, lease.uuid) == lease.lease_id), None)
            if end is None or any(job in jobs and not jobs[job].flex.may_be_slowed for job in on.get(lease.uuid, ())):
                continue
            stays_s = max(0.0, (lease.ends_at - end).total_seconds()) if lease.ends_at is not None else 0.0
            wishes.append(Wish(node.node_id, lease.uuid, lease.lease_id, "event", lease.limit_w, end, lease.reason, stays_s))
    return wishes


def _given_w(
    found: Allocation, groups: Sequence[Group], jobs: Mapping[str, JobView], leaf: int | None, pue: float
) -> tuple[float, list[str]]:
    """What the jobs below a branch (None: the whole site) that have just given way still draw, W at the meter, and their ids:
    they are being paused or stopped, or stand frozen, and the readings of their GPUs have not come down yet."""
    given_w, ids = 0.0, list[str]()
    for group, draw_w in zip(groups, found.draw_w.tolist(), strict=True):
        views = [jobs[job_id] for job_id in group.jobs if job_id in jobs]
        if leaf not in (None, group.leaf) or len(views) < len(group.jobs):
            continue
        if not all(leaving(view) or view.frozen_at is not None for view in views):
            continue
        stays_w = sum(0.0 if leaving(view) else frozen_w(view) / max(view.flex.gpus, 1.0) for view in views)
        given_w += len(group.gpus) * max(0.0, draw_w - stays_w) * pue
        ids += group.jobs
    return given_w, ids


def _told(
    found: Allocation,
    look: _Look,
    limit: Limit,
    view: RegionView,
    leaf_of: Mapping[str, int],
    jobs: Mapping[str, JobView],
    spare_w: Mapping[str, float],
) -> list[Trouble]:
    """What caps alone cannot reach, and who would have to pause. What gives way already is no trouble, nor is what eats into
    the margin (``spare_w``, W at the meter)."""
    groups = look.groups
    by_number = list(dict.fromkeys(group.jobs for group in groups))
    unable: dict[str, int] = {}
    for group in groups:
        if group.why_not == FOREIGN or group.why_not.startswith(("the agent there", SERVING)):
            unable[group.why_not] = unable.get(group.why_not, 0) + len(group.gpus)
    more = "".join(f"; {count} GPUs are not capped: {why}" for why, count in unable.items())
    troubles = []
    for short in found.shortfalls:
        is_site = short.name == view.name
        leaf = None if is_site else leaf_of[short.name]
        given_w, gone = _given_w(found, groups, jobs, leaf, view.pue)
        given_w += spare_w[short.name]
        of_limit = 1.0 if is_site else view.pue  # a branch's limit is of its GPUs alone
        short_w, missing_w = (short.short_w - given_w) / of_limit, (short.missing_w - given_w) / of_limit
        if short_w <= 0:
            continue
        ids = [job_id for number in short.pause for job_id in by_number[number]]
        named = some(ids, 5)
        where = view.name if is_site else f"branch {short.name} of {view.name}"
        nothing = "nothing else there can pause" if gone else "nothing there can pause"
        does = f"pausing {named} would meet it" if ids else nothing
        if missing_w > 0:
            does = f"even with {named} paused {kw(missing_w)} would be missing" if ids else does
        until = f" until {hhmm(limit.ends_at)}" if limit.ends_at is not None else ""
        troubles.append(
            Trouble(
                # The same trouble as what the control loop tells of this limit from what jobs state.
                limit_key(view.name) if is_site else limit_key(view.name, short.name),
                view.name,
                f"{_basis(look, leaf)} {where} is {kw(short_w)} above its limit ({limit.reason}{until}) "
                f"with every GPU that may be capped at its lowest cap: {does}{more}",
            )
        )
    return troubles


def _basis(look: _Look, leaf: int | None) -> str:
    """What the draw of a branch (None: the whole site) that a limit is held against rests on."""

    def gpus(counts: Sequence[int]) -> str:
        count = sum(counts) if leaf is None else counts[leaf]
        return "" if not count else "1 GPU whose power is unknown" if count == 1 else f"{count} GPUs whose power is unknown"

    beside = []
    if leaf is None and look.unseen_w > 0:  # on no branch do they count
        beside.append(f"with {kw(look.unseen_w)} that jobs are stated to draw which no agent sees")
    if told := gpus(look.at_limits):
        beside.append(f"with {told} counted at the limit")
    if told := gpus(look.as_known):
        beside.append(f"with {told} counted at what the jobs there are known or stated to draw")
    return f"as measured, and {' and '.join(beside)}," if beside else "as measured"


def on_plan(nodes: Sequence[NodeLive], jobs: Mapping[str, JobView], caps: Mapping[str, float]) -> list[Wish]:
    """Leases for the caps that the plan runs jobs under (share of the default limit, by job id)."""
    if not caps:
        return []
    wishes = []
    for node in nodes:
        for gpu in node.gpus:
            on_it = gpu.jobs or ()
            planned = [caps[job_id] for job_id in on_it if job_id in caps] if not (gpu.protected or gpu.serving) else []
            able = all(job in jobs and jobs[job].flex.may_be_slowed for job in on_it)
            if not planned or len(planned) < len(on_it) or not able or why_unable(node) or gpu.default_w is None:
                continue
            cap = max(LEAST_CAP, *planned, *(jobs[job_id].flex.min_cap or 0.0 for job_id in on_it))
            limit_w = float(math.ceil(max(cap * gpu.default_w, gpu.min_w or 0.0)))
            name = lease_id(f"plan {' '.join(on_it)}", gpu.uuid)
            reason = f"planned at {cap:.0%} of the default limit, where power is used best"
            wishes.append(Wish(gpu.node_id, gpu.uuid, name, "economic", limit_w, None, reason))
    return wishes


def on_guards(
    view: RegionView, nodes: Sequence[NodeLive], jobs: Mapping[str, JobView], draws: Mapping[str, Draw], learned: Learned
) -> list[Wish]:
    """Leases that cap batch beside serving at risk as far as its jobs accept. They last a minute, and are
    renewed while it is."""
    guards = [guard for guard in view.guards if guard.level >= Level.CAP]
    wishes = []
    for node in nodes if guards else ():
        if why_unable(node):
            continue
        for gpu in node.gpus:
            on_it = [jobs[job_id] for job_id in gpu.jobs or () if job_id in jobs]
            guard = next((one for one in guards if on_it and any(map(one.concerns, on_it))), None)
            able = gpu.default_w and len(on_it) == len(gpu.jobs or ()) and all(job.flex.may_be_slowed for job in on_it)
            if guard is None or not able or gpu.protected or gpu.serving or gpu.default_w is None:
                continue
            full_w = draws[gpu.uuid].full_w if gpu.uuid in draws else gpu.default_w
            curve = learned.curve(on_it[0].flex.group, gpu.name, round(full_w / gpu.default_w, 2))
            limit_w = least_w(gpu, gpu.default_w, [job.flex for job in on_it], curve)
            if limit_w < gpu.default_w:
                name = lease_id(f"serving {guard.name}", gpu.uuid)
                wishes.append(Wish(gpu.node_id, gpu.uuid, name, "economic", limit_w, None, guard.reason))
    return wishes


def keeps_event_caps(gpu: GpuLive, node: NodeLive, jobs: Mapping[str, JobView]) -> bool:
    """Whether too little is known of a GPU to judge its caps, so that those of an event must stand until it ends: who is there,
    which limits the GPU allows, whether its agent can cap. Work that is never to be capped is let go of all the same."""
    if not node.connected:
        return False  # it keeps its leases by itself
    if gpu.yields:
        return False  # serving gets its power back first, and at once
    if gpu.jobs is None:
        return True
    if any(job in jobs and not jobs[job].flex.may_be_slowed for job in gpu.jobs):
        return False
    if not gpu.jobs:
        return bool(gpu.protected)
    tells = gpu.default_w is not None and gpu.min_w is not None
    return not (node.can_cap and tells and all(job in jobs for job in gpu.jobs))


def as_they_stand(
    nodes: Sequence[NodeLive], jobs: Mapping[str, JobView], limits: Sequence[Limit], caps: Mapping[str, float]
) -> list[Wish]:
    """Leases that stay as they are while what they are for lasts: those of an event (among ``limits``) on GPUs of which too
    little is known to judge, and where nobody knows who is there also those of a standing limit and of a plan (``caps``)."""
    wishes = []
    for node in nodes:
        kept = {gpu.uuid: gpu for gpu in node.gpus if keeps_event_caps(gpu, node, jobs)} if node.leases else {}
        lasting = {
            lease_id(limit.key, uuid): limit
            for limit in limits
            for uuid, gpu in kept.items()
            if limit.kind == "event" or gpu.jobs is None
        }
        for lease in node.leases if kept else ():
            limit, gpu = lasting.get(lease.lease_id), kept.get(lease.uuid)
            unknown = gpu is not None and gpu.jobs is None
            planned = unknown and lease.lease_id.startswith("plan ") and lease.lease_id.split(" ")[1] in caps
            if limit is not None or planned:
                ends_at = limit.ends_at if limit is not None else None
                stays_s = 0.0
                if limit is not None and limit.recovery_s and lease.ends_at is not None and ends_at is not None:
                    stays_s = min(limit.recovery_s, max(0.0, (lease.ends_at - ends_at).total_seconds()))
                of_lease = (lease.lease_id, lease.kind, lease.limit_w, ends_at, lease.reason, stays_s)
                wishes.append(Wish(node.node_id, lease.uuid, *of_lease))
    return wishes
