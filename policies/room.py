"""What a region, or a branch of it, can still take at this moment: GPUs, jobs and power. Pure; a tick makes one a region and
fills it."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from policies.branches import Offers, arrives, no_place, unknown_share
from policies.fit import uses_room
from policies.freezing import frozen_w
from policies.sentences import counted, hhmm, kw
from policies.serving import Level
from policies.world import SLACK, BranchView, Budget, Flexibility, Guarded, JobState, JobView, RegionView, World

#: How far ahead a coming limit is looked at: no job is asked earlier than its own checkpoint takes.
LEAD_S = 1800.0


@dataclass
class Room:
    """One region's use and limits now, or one branch's (``branch``); ``take`` counts what is launched in the same tick.

    ``draw_w`` is at the meter: jobs' mean draw x PUE and what bypasses gridshift. ``leaving_w`` is the part of it that is being
    paused or stopped already (``leaving_gpus`` likewise), ``caps_w`` what power caps can take off the rest. ``limit_w`` is the
    lowest limit in force, None when there is none; ``limit_reason`` names it. ``coming`` are the limits that begin within
    LEAD_S, the first one first. ``kept_gpus`` and ``kept_w`` (at the meter) are left to serving now. ``gate`` bounds the GPUs
    of flexible work (None: no bound), of which ``flexible_gpus`` are in use. ``pool_gpus`` and ``pool_w`` (at the meter) are in
    use by GPU type. ``now`` is the moment all this is of. ``back_w`` is what may be drawn so far on the way back from a limit
    that has ended (None: there is none), counted without caps; ``back_reason`` names it.

    ``places`` are the rooms of a region's branches while one of them has a limit. On a branch a job counts with its share.
    ``arriving_w`` and ``arriving_gpus`` are of jobs that have just been launched in the region and may appear there, ``here``
    are the placed jobs that count there, and ``unlocated`` is how many of them do because no agent tells where they run: the
    branches of which no agent tells share those in equal parts, ``blind_share`` each (0: agents tell of this one). What is "at
    the meter" is on a branch what its GPUs draw: its meter sees no cooling, so the ``view`` of a branch's room has PUE 1.
    ``asked_in``, ``answers`` and ``offers`` are what ``no_place`` has found out since the room last changed.
    """

    view: RegionView
    gpus_used: float
    jobs_placed: int
    draw_w: float
    leaving_w: float
    limit_w: float | None
    limit_reason: str
    coming: tuple[Budget, ...] = ()
    kept_gpus: float = 0.0
    kept_w: float = 0.0
    gate: float | None = None
    flexible_gpus: float = 0.0
    pool_gpus: dict[str, float] = field(default_factory=dict)
    pool_w: dict[str, float] = field(default_factory=dict)
    leaving_gpus: float = 0.0
    caps_w: float = 0.0
    now: datetime | None = None
    back_w: float | None = None
    back_reason: str = ""
    branch: BranchView | None = None
    places: tuple["Room", ...] = ()
    arriving_w: float = 0.0
    arriving_gpus: float = 0.0
    here: list[JobView] = field(default_factory=list)
    unlocated: int = 0
    blind_share: float = 0.0
    asked_in: tuple[float, ...] | None = field(default=None, repr=False, compare=False)
    answers: dict[tuple[object, ...], str | None] = field(default_factory=dict, repr=False, compare=False)
    offers: dict[tuple[object, ...], Offers] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        """What sentences call it."""
        if self.branch is None:
            return self.view.name
        return f"branch {self.branch.name} of {self.view.name}" if self.branch.name else f"{self.view.name} off its branches"

    @property
    def standing_w(self) -> float | None:
        """The limit that stands whatever is called for, W."""
        return self.view.power_limit_w if self.branch is None else self.branch.power_limit_w

    @property
    def other_w(self) -> float:
        """What is known to draw here and is none of gridshift's jobs, W at the meter."""
        return self.view.bypass_w if self.branch is None else self.branch.other_w or 0.0

    @property
    def is_dark(self) -> bool:
        """Whether some of what draws here is not known, so that nothing more may be put on it while it has a limit."""
        return self.branch is not None and self.branch.other_w is None

    @property
    def guarded(self) -> Guarded | None:
        """The serving for which nothing is started here now; None: there is none."""
        return next((one for one in self.view.guards if one.level >= Level.HOLD), None)

    def share_of(self, job: JobView) -> float:
        """The share of a placed job that counts here. On a branch of which no agent tells, its part of what is not known to be
        elsewhere counts too: that is not nothing, and cannot be everywhere at once."""
        if self.branch is None:
            return 1.0
        share = job.on_branches.get(self.branch.name, 0.0)
        return share + self.blind_share * unknown_share(job) if self.blind_share else share

    def is_told(self, job: JobView) -> bool:
        """Whether a placed job of the region is known to be here."""
        return self.branch is None or self.branch.name in job.on_branches

    def draw_of(self, power_w: float, gpu_type: str | None, cap: float) -> float:
        """What a job that states ``power_w`` draws at the GPU on that type under that cap, W."""
        view = self.view
        if gpu_type is not None:
            power_w *= next((pool.draw for pool in view.pools if pool.gpu_type == gpu_type), 1.0)
        if cap != 1.0:
            power_w *= next((point.draw for point in view.caps if point.cap == cap), 1.0)
        return power_w

    def fits(
        self, gpus: float, power_w: float, *, gpu_type: str | None = None, gated: bool = False, lead_s: float = 0.0
    ) -> bool:
        """Whether ``refusal`` is None, without its sentence."""
        view = self.view
        if not view.reachable or (view.guards and self.guarded is not None):
            return False
        if view.gpus is not None and gpus > 0 and self.gpus_used + gpus > view.gpus - self.kept_gpus + SLACK:
            return False
        if view.max_jobs is not None and self.jobs_placed + 1 > view.max_jobs:
            return False
        if self.limit_w is not None and self.draw_w + power_w * view.pue > self.limit_w - self.kept_w + SLACK:
            return False
        if self.back_w is not None and self.draw_w + power_w * view.pue > self.back_w + SLACK:
            return False
        if gated and self.gate is not None and self.flexible_gpus + gpus > self.gate + SLACK:
            return False
        return not (
            (gpu_type is not None and self._pool_refusal(gpu_type, gpus, power_w))
            or (self.coming and self._coming_refusal(power_w, lead_s))
            or (self.places and no_place(self, gpus, power_w, gpu_type=gpu_type, lead_s=lead_s))
        )

    def refusal(
        self,
        gpus: float,
        power_w: float,
        *,
        limits_only: bool = False,
        gpu_type: str | None = None,
        gated: bool = False,
        lead_s: float = 0.0,
        wherever: bool = False,
    ) -> str | None:
        """Why a job of that size and draw (at the GPU) has no room here now, or None when it has. With ``limits_only`` GPUs do
        not count, unless some are kept for serving: the cluster itself queues for them. With ``gated`` the policy's own bound
        on flexible work counts too. A limit that begins within ``lead_s`` counts as one in force: what starts now would be
        asked to pause at once. With ``wherever`` it needs power on each branch on which it could land."""
        view = self.view
        if not view.reachable:
            return f"{view.name} does not answer"
        if self.guarded is not None:
            return f"{view.name} starts nothing: {self.guarded.reason}"
        room = None if view.gpus is None else view.gpus - self.kept_gpus
        gpus_count = not limits_only or self.kept_gpus > 0  # the cluster would give away what is kept
        if gpus_count and view.gpus is not None and room is not None and gpus > 0 and self.gpus_used + gpus > room + SLACK:
            kept = f" besides {self.kept_gpus:g} kept for serving" if self.kept_gpus > 0 else ""
            free = f"{max(0.0, room - self.gpus_used):g} of {counted(view.gpus, 'GPU')} free"
            return f"{view.name} has {free}{kept} and it needs {gpus:g}"
        if view.max_jobs is not None and self.jobs_placed + 1 > view.max_jobs:
            return f"{view.name} holds {self.jobs_placed} of at most {counted(view.max_jobs, 'job')}"
        if self.limit_w is not None and self.draw_w + power_w * view.pue > self.limit_w - self.kept_w + SLACK:
            kept = f", of which {kw(self.kept_w)} are kept for serving" if self.kept_w else ""
            return (
                f"{view.name} may draw {kw(self.limit_w)} ({self.limit_reason}){kept}, draws {kw(self.draw_w)} and this job "
                f"would add {kw(power_w * view.pue)}"
            )
        if not limits_only and self.back_w is not None and self.draw_w + power_w * view.pue > self.back_w + SLACK:
            return f"{view.name} comes back step by step {self.back_reason}: {kw(self.back_w)} so far"
        if gated and self.gate is not None and self.flexible_gpus + gpus > self.gate + SLACK:
            used = f"uses {self.flexible_gpus:g} and it needs {gpus:g}"
            return f"flexible work may use {counted(self.gate, 'GPU')} in {view.name} now, {used}"
        if gpu_type is not None and not limits_only and (full := self._pool_refusal(gpu_type, gpus, power_w)):
            return full
        if self.coming and (soon := self._coming_refusal(power_w, lead_s)):
            return soon
        if not self.places:
            return None
        return no_place(self, gpus, power_w, gpu_type=gpu_type, lead_s=lead_s, limits_only=limits_only, wherever=wherever)

    def _pool_refusal(self, gpu_type: str, gpus: float, power_w: float) -> str | None:
        view = self.view
        pool = next((one for one in view.pools if one.gpu_type == gpu_type), None)
        if pool is None:
            return f"{view.name} has no {gpu_type}" if view.pools else None
        used = self.pool_gpus.get(gpu_type, 0.0)
        if used + gpus > pool.gpus + SLACK:
            return f"{view.name} has {max(0.0, pool.gpus - used):g} of {pool.gpus:g} {gpu_type} free and it needs {gpus:g}"
        draw_w = self.pool_w.get(gpu_type, 0.0)
        if pool.power_limit_w is not None and draw_w + power_w * view.pue > pool.power_limit_w + SLACK:
            return (
                f"the {gpu_type} of {view.name} may draw {kw(pool.power_limit_w)}, draw {kw(draw_w)} and this job would add "
                f"{kw(power_w * view.pue)}"
            )
        return None

    def _coming_refusal(self, power_w: float, lead_s: float) -> str | None:
        for budget in self.coming:
            soon = self.now is not None and (budget.start - self.now).total_seconds() <= lead_s
            left_w = budget.limit_w - self.kept_w_at(budget.start)
            if soon and self.draw_w - self.leaving_w + power_w * self.view.pue > left_w + SLACK:
                return f"{self.view.name} may draw {kw(budget.limit_w)} from {hhmm(budget.start)} ({budget.why})"
        return None

    def kept_w_at(self, when: datetime) -> float:
        """What is left to serving at a later moment, as far as it is known now, W at the meter."""
        return kept_at(self.view, when)[1] if self.branch is None else 0.0

    def take(self, gpus: float, power_w: float, *, gpu_type: str | None = None, flexible: bool = False, times: int = 1) -> None:
        """Count a job that is launched here (``times`` -1: one that has left). ``power_w`` is what it draws at the GPU."""
        self.gpus_used += times * gpus
        self.jobs_placed += times
        self.draw_w += times * power_w * self.view.pue
        if flexible:
            self.flexible_gpus += times * gpus
        if gpu_type is not None:
            self.pool_gpus[gpu_type] = self.pool_gpus.get(gpu_type, 0.0) + times * gpus
            self.pool_w[gpu_type] = self.pool_w.get(gpu_type, 0.0) + times * power_w * self.view.pue
        for place in self.places:  # on which of them it lands is the cluster's to decide
            place.arriving_w += times * power_w
            place.arriving_gpus += times * gpus

    @property
    def excess_w(self) -> float:
        """Draw above the limit that is not leaving already and that caps cannot take off, W; 0 when there is none."""
        return 0.0 if self.limit_w is None else max(0.0, self.staying_w - self.limit_w + self.kept_w - SLACK)

    @property
    def staying_w(self) -> float:
        """What is drawn, at the meter, once what is leaving is gone and caps have taken off what they can, W."""
        return self.draw_w - self.leaving_w - self.caps_w

    @property
    def excess_gpus(self) -> float:
        """GPUs in use that serving should have, and that are not leaving already; 0 when there are none."""
        if self.view.gpus is None or self.kept_gpus <= 0 or self.branch is not None:
            return 0.0
        return max(0.0, self.gpus_used - self.leaving_gpus - self.view.gpus + self.kept_gpus - SLACK)


def limit_at(view: RegionView, budgets: Iterable[Budget], when: datetime) -> tuple[float | None, str]:
    """The lowest limit in force in a region at ``when`` (the strictest wins) and whose it is."""
    return _lowest(view.power_limit_w, "site limit", (b for b in budgets if b.region == view.name), when)


def _lowest(limit: float | None, reason: str, budgets: Iterable[Budget], when: datetime) -> tuple[float | None, str]:
    for budget in budgets:
        if budget.holds(when) and (limit is None or budget.limit_w < limit):
            limit, reason = budget.limit_w, budget.why
    return limit, reason


def coming_at(view: RegionView, budgets: Iterable[Budget], when: datetime) -> tuple[Budget, ...]:
    """The limits on a region that begin within LEAD_S after ``when``, the first one first."""
    return _ahead((b for b in budgets if b.region == view.name), when)


def _ahead(budgets: Iterable[Budget], when: datetime) -> tuple[Budget, ...]:
    return tuple(sorted((b for b in budgets if 0 < (b.start - when).total_seconds() <= LEAD_S), key=lambda b: b.start))


def kept_at(view: RegionView, when: datetime) -> tuple[float, float]:
    """GPUs and W (at the meter) that are left to serving in a region at ``when``."""
    now = [one for one in view.reserved if one.start <= when < one.end]
    return sum(one.gpus for one in now), sum(one.power_w for one in now)


def empty_room(view: RegionView, budgets: Iterable[Budget], when: datetime, gate: float | None = None) -> Room:
    """A region's room at ``when`` with nothing of gridshift's in it."""
    budgets = tuple(budgets)
    limit_w, reason = limit_at(view, budgets, when)
    kept_gpus, kept_w = kept_at(view, when) if view.reserved else (0.0, 0.0)
    kept_w = max(kept_w, view.beside_w)
    coming = coming_at(view, budgets, when)
    return Room(view, 0.0, 0, view.bypass_w, 0.0, limit_w, reason, coming, kept_gpus, kept_w, gate, now=when)


def _branch_room(view: RegionView, branch: BranchView, budgets: Iterable[Budget], when: datetime) -> Room:
    """A branch's room at ``when`` with nothing of gridshift's in it; ``budgets`` are its own. ``view`` has PUE 1."""
    budgets = tuple(budgets)
    limit_w, reason = _lowest(branch.power_limit_w, "branch limit", budgets, when)
    coming = _ahead(budgets, when)
    return Room(view, 0.0, 0, branch.other_w or 0.0, 0.0, limit_w, reason, coming, now=when, branch=branch)


def limits_on(room: Room, world: World) -> list[Budget]:
    """The events' limits on a region, or on the branch that a room is of, whenever they hold."""
    if room.branch is None:
        return [budget for budget in world.budgets if budget.region == room.view.name]
    place = (room.view.name, room.branch.name)
    return [budget for budget in world.branch_budgets if (budget.region, budget.branch) == place]


def drawn_w(room: Room, job: JobView) -> float:
    """What a placed job draws at the GPU, W; a frozen one goes on drawing some."""
    return running_w(room, job) if job.frozen_at is None else rests_w(room, job)


def rests_w(room: Room, job: JobView) -> float:
    """What a placed job draws at the GPU while it is frozen, W."""
    return frozen_w(job) if room.branch is None else frozen_w(job) * room.share_of(job)


def least_w(room: Room, job: JobView) -> float:
    """What a placed job draws at the GPU once it is capped as far as it accepts, W. Caps slow it down, so they come before it
    is paused; one that stands frozen draws what it draws."""
    power_w = drawn_w(room, job)
    if job.capped_w is None or job.frozen_at is not None:
        return power_w
    return min(power_w, job.capped_w if room.branch is None else job.capped_w * room.share_of(job))


def running_w(room: Room, job: JobView) -> float:
    """What a placed job draws at the GPU while it works, W."""
    flex: Flexibility = job.flex
    power_w = flex.power_w if room.branch is None else flex.power_w * room.share_of(job)
    if job.gpu_type is None and job.cap == 1.0:
        return power_w
    return room.draw_of(power_w, job.gpu_type, job.cap)


def _way_back(room: Room, world: World, paused_w: float) -> None:
    """Note how far a region, or a branch, may have come back from limits that have ended: on a straight line from the limit to
    what all draws that runs there, uncapped, or was paused in the region. All at once would be the next peak."""
    whole_w = room.draw_w + paused_w
    for budget in limits_on(room, world):
        share = budget.way_back(world.now)
        if share is None or whole_w <= budget.limit_w or budget.end is None or budget.recovery_s is None:
            continue
        back_w = budget.limit_w + (whole_w - budget.limit_w) * share
        if room.back_w is None or back_w < room.back_w:
            until = hhmm(budget.end + timedelta(seconds=budget.recovery_s))
            room.back_w, room.back_reason = back_w, f"until {until} from {budget.why}"


def rooms(world: World) -> dict[str, Room]:
    """A Room for each region, filled with what is placed there."""
    made = {view.name: empty_room(view, world.budgets, world.now, world.gates.get(view.name)) for view in world.regions}
    for job in world.jobs:
        if job.region is not None and (room := made.get(job.region)) is not None and uses_room(job, room.view):
            power_w = drawn_w(room, job)
            room.take(job.flex.gpus, power_w, gpu_type=job.gpu_type, flexible=job.flex.flexible)
            _count(room, job, power_w)
    for room in made.values():
        if room.view.branches:
            _add_places(room, world)
    if any(budget.way_back(world.now) is not None for budget in (*world.budgets, *world.branch_budgets)):
        paused_w = dict.fromkeys(made, 0.0)
        for job in world.jobs:
            if job.state is JobState.PAUSED and job.region in made:
                paused_w[job.region] += running_w(made[job.region], job) * made[job.region].view.pue
        for room in made.values():
            for one in (room, *room.places):
                _way_back(one, world, paused_w[room.view.name] / room.view.pue * one.view.pue)
    return made


def _count(room: Room, job: JobView, power_w: float) -> None:
    """Note what of a placed job's draw goes away, or can."""
    if job.pause_requested or job.cancel_requested:
        room.leaving_w += power_w * room.view.pue
        room.leaving_gpus += job.flex.gpus
    elif job.capped_w is not None:
        room.caps_w += (power_w - least_w(room, job)) * room.view.pue


def _add_places(room: Room, world: World) -> None:
    """Give a region the rooms of its branches, filled with the shares of jobs that are there, or may be."""
    view = replace(room.view, pue=1.0)  # a branch's meter sees no cooling
    mine = [budget for budget in world.branch_budgets if budget.region == view.name]
    places = {
        branch.name: _branch_room(view, branch, (one for one in mine if one.branch == branch.name), world.now)
        for branch in view.branches
    }
    untold = [places[branch.name] for branch in view.branches if branch.gpus is None]
    for place in untold:
        place.blind_share = 1.0 / len(untold)
    for job in world.jobs:
        if not uses_room(job, view):
            continue
        unknown = unknown_share(job)
        there = [places[name] for name in job.on_branches if name in places]
        if unknown > SLACK:
            there += [one for one in untold if not one.is_told(job)]
        for place in there:
            power_w = drawn_w(place, job)
            place.here.append(job)
            place.gpus_used += job.flex.gpus * place.share_of(job)
            place.draw_w += power_w * view.pue
            _count(place, job, power_w)
            place.unlocated += unknown > SLACK and place.blind_share > 0
        if unknown <= SLACK:
            continue
        if arrives(job, world.now):
            for place in places.values():
                if not place.blind_share:
                    place.arriving_w += running_w(room, job) * unknown * view.pue
                    place.arriving_gpus += job.flex.gpus * unknown
        elif "" in places and not untold:
            places[""].gpus_used += job.flex.gpus * unknown  # every branch's agents would have seen it by now
    room.places = tuple(places.values())
