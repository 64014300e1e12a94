"""Why a job could not start as soon as it may, whatever that would cost: a limit, what is kept for serving, no GPUs free. Pure.

It knows the rooms of this moment and the limits that are announced, and nothing of what other jobs are planned to do: what it
names is what the job would be refused with if it tried.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from policies.room import Room, empty_room, rooms
from policies.sentences import hhmm
from policies.turns import lead_s
from policies.world import JobView, Pausable, World

_NOW_S = 1.0


class Bars:
    """What stands in the way of runs in a world. Rooms are made when they are first asked for."""

    def __init__(self, world: Callable[[], World]) -> None:
        self._make = world
        self._world: World | None = None
        self._rooms: dict[str, Room] = {}
        self._empty: dict[tuple[str, datetime], Room] = {}
        self._told: dict[object, str | None] = {}

    def why_not(self, job: JobView, region: str, begin_s: float, end_s: float) -> str | None:
        """Why a waiting job could not run in a region over ``[begin_s, end_s)``, seconds from now; None where nothing that is
        known forbids it, and for a job that runs."""
        if job.run_started_at is not None:
            return None
        if self._world is None:
            self._world = self._make()
            self._rooms = rooms(self._world)
        lead = lead_s(job, self._world)
        whole = job.flex.pausable is Pausable.NO
        key = (region, job.flex.gpus, job.flex.power_w, lead, begin_s, end_s if whole else None)
        if key not in self._told:
            self._told[key] = self._look(job, region, begin_s, end_s if whole else begin_s, lead)
        return self._told[key]

    def _look(self, job: JobView, region: str, begin_s: float, end_s: float, lead: float) -> str | None:
        assert self._world is not None
        now, flex = self._world.now, job.flex
        room = self._rooms.get(region)
        if room is None:
            return None
        begin, end = now + timedelta(seconds=begin_s), now + timedelta(seconds=end_s)
        soon = begin_s <= _NOW_S
        refusal = room.refusal(flex.gpus, flex.power_w, lead_s=lead) if soon else self._alone(job, room, begin)
        if refusal is not None:
            return refusal
        starts = [one.start for one in self._world.budgets if one.region == region and one.branch is None]
        starts += [one.start for one in room.view.reserved]
        for start in sorted(start for start in starts if begin < start < end):
            if (refusal := self._alone(job, room, start)) is not None:
                return f"from {hhmm(start)} {refusal}"
        return None

    def _alone(self, job: JobView, room: Room, when: datetime) -> str | None:
        """Why it would find no room there even without other jobs."""
        assert self._world is not None
        key = (room.view.name, when)
        if key not in self._empty:
            self._empty[key] = empty_room(room.view, self._world.budgets, when)
        return self._empty[key].refusal(job.flex.gpus, job.flex.power_w)
