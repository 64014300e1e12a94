"""What a region can still take at this moment: GPUs, jobs and power. Pure; a tick makes one a region and fills it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from policies.freezing import frozen_w
from policies.sentences import hhmm, kw
from policies.world import PLACED, Budget, Flexibility, JobState, JobView, RegionView, World

#: Sums of floats are compared with this slack, in GPUs or W.
SLACK = 1e-6
#: How far ahead a coming limit is looked at: no job is asked earlier than its own checkpoint takes.
LEAD_S = 1800.0


@dataclass
class Room:
    """One region's use and limits now; ``take`` counts what is launched in the same tick.

    ``draw_w`` is at the meter: jobs' mean draw x PUE and what bypasses gridshift. ``leaving_w`` is the part of it that is being
    paused or stopped already (``leaving_gpus`` likewise), ``caps_w`` what power caps can take off the rest. ``limit_w`` is the
    lowest limit in force, None when there is none; ``limit_reason`` names it. ``coming`` are the limits that begin within
    LEAD_S, the first one first. ``kept_gpus`` and ``kept_w`` (at the meter) are left to serving now. ``gate`` bounds the GPUs
    of flexible work (None: no bound), of which ``flexible_gpus`` are in use. ``pool_gpus`` and ``pool_w`` (at the meter) are in
    use by GPU type. ``now`` is the moment all this is of. ``back_w`` is what may be drawn so far on the way back from a limit
    that has ended (None: there is none), counted without caps; ``back_reason`` names it.
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
        if not view.reachable:
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
    ) -> str | None:
        """Why a job of that size and draw (at the GPU) has no room here now, or None when it has. With ``limits_only`` GPUs do
        not count: the cluster itself queues for them. With ``gated`` the policy's own bound on flexible work counts too. A
        limit that begins within ``lead_s`` counts as one in force: what starts now would be asked to pause at once."""
        view = self.view
        if not view.reachable:
            return f"{view.name} does not answer"
        room = None if view.gpus is None else view.gpus - self.kept_gpus
        if not limits_only and room is not None and gpus > 0 and self.gpus_used + gpus > room + SLACK:
            return f"{view.name} has {max(0.0, room - self.gpus_used):g} of {view.gpus:g} GPUs free and it needs {gpus:g}"
        if view.max_jobs is not None and self.jobs_placed + 1 > view.max_jobs:
            return f"{view.name} holds {self.jobs_placed} of at most {view.max_jobs} jobs"
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
            return f"flexible work may use {self.gate:g} GPUs in {view.name} now, {used}"
        if gpu_type is not None and not limits_only and (full := self._pool_refusal(gpu_type, gpus, power_w)):
            return full
        return self._coming_refusal(power_w, lead_s) if self.coming else None

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
            if soon and self.draw_w - self.leaving_w + power_w * self.view.pue > budget.limit_w - self.kept_w + SLACK:
                return f"{self.view.name} may draw {kw(budget.limit_w)} from {hhmm(budget.start)} ({budget.why})"
        return None

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
        if self.view.gpus is None or self.kept_gpus <= 0:
            return 0.0
        return max(0.0, self.gpus_used - self.leaving_gpus - self.view.gpus + self.kept_gpus - SLACK)


def limit_at(view: RegionView, budgets: Iterable[Budget], when: datetime) -> tuple[float | None, str]:
    """The lowest limit in force in a region at ``when`` (the strictest wins) and whose it is."""
    limit, reason = view.power_limit_w, "site limit"
    for budget in budgets:
        if budget.region == view.name and budget.holds(when) and (limit is None or budget.limit_w < limit):
            limit, reason = budget.limit_w, budget.why
    return limit, reason


def coming_at(view: RegionView, budgets: Iterable[Budget], when: datetime) -> tuple[Budget, ...]:
    """The limits on a region that begin within LEAD_S after ``when``, the first one first."""
    ahead = (b for b in budgets if b.region == view.name and 0 < (b.start - when).total_seconds() <= LEAD_S)
    return tuple(sorted(ahead, key=lambda b: b.start))


def kept_at(view: RegionView, when: datetime) -> tuple[float, float]:
    """GPUs and W (at the meter) that are left to serving in a region at ``when``."""
    now = [one for one in view.reserved if one.start <= when < one.end]
    return sum(one.gpus for one in now), sum(one.power_w for one in now)


def empty_room(view: RegionView, budgets: Iterable[Budget], when: datetime, gate: float | None = None) -> Room:
    """A region's room at ``when`` with nothing of gridshift's in it."""
    budgets = tuple(budgets)
    limit_w, reason = limit_at(view, budgets, when)
    kept_gpus, kept_w = kept_at(view, when) if view.reserved else (0.0, 0.0)
    coming = coming_at(view, budgets, when)
    return Room(view, 0.0, 0, view.bypass_w, 0.0, limit_w, reason, coming, kept_gpus, kept_w, gate, now=when)


def drawn_w(room: Room, job: JobView) -> float:
    """What a placed job draws at the GPU, W; a frozen one goes on drawing some."""
    return running_w(room, job) if job.frozen_at is None else frozen_w(job)


def least_w(room: Room, job: JobView) -> float:
    """What a placed job draws at the GPU once it is capped as far as it accepts, W. Caps slow it down, so they come before it
    is paused; one that stands frozen draws what it draws."""
    power_w = drawn_w(room, job)
    return power_w if job.capped_w is None or job.frozen_at is not None else min(power_w, job.capped_w)


def running_w(room: Room, job: JobView) -> float:
    """What a placed job draws at the GPU while it works, W."""
    flex: Flexibility = job.flex
    if job.gpu_type is None and job.cap == 1.0:
        return flex.power_w
    return room.draw_of(flex.power_w, job.gpu_type, job.cap)


def _way_back(room: Room, world: World, paused_w: float) -> None:
    """Note how far a region may have come back from limits that have ended: on a straight line from the limit to what all
    draws that runs there, uncapped, or was paused there. All at once would be the next peak."""
    view, whole_w = room.view, room.draw_w + paused_w
    for budget in world.budgets:
        share = budget.way_back(world.now) if budget.region == view.name else None
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
        if job.state in PLACED and job.region is not None and (room := made.get(job.region)) is not None:
            power_w = drawn_w(room, job)
            room.take(job.flex.gpus, power_w, gpu_type=job.gpu_type, flexible=job.flex.flexible)
            if job.pause_requested or job.cancel_requested:
                room.leaving_w += power_w * room.view.pue
                room.leaving_gpus += job.flex.gpus
            elif job.capped_w is not None:
                room.caps_w += (power_w - least_w(room, job)) * room.view.pue
    if any(budget.way_back(world.now) is not None for budget in world.budgets):
        paused_w = dict.fromkeys(made, 0.0)
        for job in world.jobs:
            if job.state is JobState.PAUSED and job.region in made:
                paused_w[job.region] += running_w(made[job.region], job) * made[job.region].view.pue
        for room in made.values():
            _way_back(room, world, paused_w[room.view.name])
    return made
