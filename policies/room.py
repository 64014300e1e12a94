"""What a region can still take at this moment: GPUs, jobs and power. Pure; a tick makes one a region and fills it."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from policies.sentences import kw
from policies.world import PLACED, Budget, JobView, RegionView, World

#: Sums of floats are compared with this slack, in GPUs or W.
SLACK = 1e-6
#: How far ahead a coming limit is looked at: no job is asked earlier than its own checkpoint takes.
LEAD_S = 1800.0


@dataclass
class Room:
    """One region's use and limits now; ``take`` counts what is launched in the same tick.

    ``draw_w`` is at the meter: jobs' mean draw x PUE and what bypasses gridshift. ``leaving_w`` is the part of it that is being
    paused or stopped already. ``limit_w`` is the lowest limit in force, None when there is none; ``limit_reason`` names it.
    ``coming`` are the limits that begin within LEAD_S, the first one first.
    """

    view: RegionView
    gpus_used: float
    jobs_placed: int
    draw_w: float
    leaving_w: float
    limit_w: float | None
    limit_reason: str
    coming: tuple[Budget, ...] = ()

    def refusal(self, gpus: float, power_w: float, *, limits_only: bool = False) -> str | None:
        """Why a job of that size has no room here now, or None when it has. With ``limits_only`` GPUs do not count: the
        cluster itself queues for them."""
        view = self.view
        if not view.reachable:
            return f"{view.name} does not answer"
        if not limits_only and view.gpus is not None and gpus > 0 and self.gpus_used + gpus > view.gpus + SLACK:
            return f"{view.name} has {max(0.0, view.gpus - self.gpus_used):g} of {view.gpus:g} GPUs free and it needs {gpus:g}"
        if view.max_jobs is not None and self.jobs_placed + 1 > view.max_jobs:
            return f"{view.name} holds {self.jobs_placed} of at most {view.max_jobs} jobs"
        if self.limit_w is not None and self.draw_w + power_w * view.pue > self.limit_w + SLACK:
            return (
                f"{view.name} may draw {kw(self.limit_w)} ({self.limit_reason}), draws {kw(self.draw_w)} and this job would "
                f"add {kw(power_w * view.pue)}"
            )
        return None

    def take(self, gpus: float, power_w: float) -> None:
        """Count a job that is launched here in this tick."""
        self.gpus_used += gpus
        self.jobs_placed += 1
        self.draw_w += power_w * self.view.pue

    @property
    def excess_w(self) -> float:
        """Draw above the limit that is not leaving already, W; 0 when there is none."""
        return 0.0 if self.limit_w is None else max(0.0, self.draw_w - self.leaving_w - self.limit_w - SLACK)


def limit_at(view: RegionView, budgets: Iterable[Budget], when: datetime) -> tuple[float | None, str]:
    """The lowest limit in force in a region at ``when`` (the strictest wins) and whose it is."""
    limit, reason = view.power_limit_w, "site limit"
    for budget in budgets:
        in_force = budget.region == view.name and budget.start <= when and (budget.end is None or when < budget.end)
        if in_force and (limit is None or budget.limit_w < limit):
            limit, reason = budget.limit_w, budget.reason or f"event {budget.event_id}"
    return limit, reason


def rooms(world: World) -> dict[str, Room]:
    """A Room for each region, filled with what is placed there."""
    placed: dict[str, list[JobView]] = {view.name: [] for view in world.regions}
    for job in world.jobs:
        if job.state in PLACED and job.region in placed:
            placed[job.region].append(job)
    made = {}
    for view in world.regions:
        jobs = placed[view.name]
        limit_w, reason = limit_at(view, world.budgets, world.now)
        leaving = [job for job in jobs if job.pause_requested or job.cancel_requested]
        made[view.name] = Room(
            view=view,
            gpus_used=sum(job.flex.gpus for job in jobs),
            jobs_placed=len(jobs),
            draw_w=sum(job.flex.power_w for job in jobs) * view.pue + view.bypass_w,
            leaving_w=sum(job.flex.power_w for job in leaving) * view.pue,
            limit_w=limit_w,
            limit_reason=reason,
            coming=tuple(
                sorted(
                    (b for b in world.budgets if b.region == view.name and 0 < (b.start - world.now).total_seconds() <= LEAD_S),
                    key=lambda b: b.start,
                )
            ),
        )
    return made
