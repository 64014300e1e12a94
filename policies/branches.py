"""Limits of a branch of the power tree (a row, rack or PDU) in what is decided at a moment: where a launch could land. Pure.

Which job runs on which branch is known only as far as agents tell. On which node a job lands is the cluster's to decide: a
launch is held while no branch has room for it, and never directed. A branch's limit is of what its GPUs draw (what a PDU or
row meter sees), without the cooling that a site's PUE stands for.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from policies.sentences import hhmm, kw
from policies.world import SLACK, JobState, JobView

if TYPE_CHECKING:
    from policies.room import Room

#: A job that has run for less may not have been seen on its GPUs yet, s: programs load their data first.
SEEN_AFTER_S = 60.0
#: Branches that a sentence names at most.
NAMED = 3


def unknown_share(job: JobView) -> float:
    """The share of a placed job of which no agent tells where it runs."""
    return max(0.0, 1.0 - sum(job.on_branches.values())) if job.on_branches else 1.0


def arrives(job: JobView, now: datetime) -> bool:
    """Whether a placed job has come so lately that agents may not have seen it yet."""
    if job.state is JobState.LAUNCHING or job.run_started_at is None:
        return True
    return (now - job.run_started_at).total_seconds() < SEEN_AFTER_S


def unlocated(place: "Room") -> str:
    """How jobs count on a branch of which no agent tells, in words."""
    jobs = "1 job runs" if place.unlocated == 1 else f"{place.unlocated} jobs run"
    part = "" if place.blind_share >= 1.0 else f"with {place.blind_share:.0%} "
    return f"no agent tells where {jobs}, which {'counts' if place.unlocated == 1 else 'count'} {part}here"


def no_place(
    room: "Room",
    gpus: float,
    power_w: float,
    *,
    gpu_type: str | None = None,
    lead_s: float = 0.0,
    limits_only: bool = False,
    wherever: bool = False,
) -> str | None:
    """Why a job of that size and draw (at the GPU) must not be launched in a region now, None when it may: no branch with free
    GPUs has power for it. One that is larger than each branch must find all its GPUs on several. With ``limits_only`` the way
    back from a limit does not count. A limit that begins within ``lead_s`` counts as one in force. With ``wherever`` every
    branch with free GPUs must have power for it: one that was paused would be paused again, and again, on any that has not."""
    state = (room.draw_w, room.leaving_w, room.gpus_used, room.jobs_placed)
    if state != room.asked_in:  # what was found out is of before a launch, or a thaw
        room.asked_in = state
        room.answers.clear()
        room.offers.clear()
    if not any(place.coming for place in room.places):
        lead_s = 0.0  # jobs differ in it, and nothing depends on it
    asked = (gpus, power_w, gpu_type, lead_s, limits_only, wherever)
    if asked not in room.answers:
        room.answers[asked] = _no_place(room, *asked)
    return room.answers[asked]


@dataclass(slots=True)
class Offers:
    """What the branches with GPUs of a type can take at a moment: each with its free GPUs, those of them on which no job may be
    arriving, its GPUs in all (inf: not known), and W; and in words once somebody asks."""

    places: Sequence[tuple["Room", float, float, float, float]]
    told: str = ""


def _offers(room: "Room", gpu_type: str | None, lead_s: float, limits_only: bool) -> Offers:
    key = (gpu_type, lead_s, limits_only)
    if (known := room.offers.get(key)) is not None:
        return known
    found = []
    for place in _of_type(room, gpu_type):
        size = place.branch.gpus if place.branch is not None and place.branch.gpus is not None else math.inf
        free = max(0.0, size - place.gpus_used)
        found.append((place, free, free - place.arriving_gpus, size, _power_w(place, lead_s, limits_only)))
    return room.offers.setdefault(key, Offers(found))


def _no_place(
    room: "Room", gpus: float, more_w: float, gpu_type: str | None, lead_s: float, limits_only: bool, wherever: bool
) -> str | None:
    offers = _offers(room, gpu_type, lead_s, limits_only)
    each_w = more_w / gpus if gpus > 0 else 0.0
    together, whole = 0.0, True
    short: Room | None = None
    for place, free, surely_free, size, left_w in offers.places:
        could_w = left_w + SLACK
        if gpus <= 0:
            if more_w <= could_w:
                return None
            short, whole = place, False
            continue
        takes = max(0.0, min(surely_free, could_w / each_w if each_w > 0 else math.inf))
        if takes >= gpus - SLACK and not wherever:
            return None
        together += takes
        if free > 0 and each_w * min(gpus, free) > could_w:
            short = place
        whole = whole and size < gpus
    if short is None or (whole and together >= gpus - SLACK and not wherever):
        return None  # no branch's limit is in its way, or it lies on several
    if wherever and gpus > 0:
        told = _as_told(short, _power_w(short, lead_s, limits_only))
        return f"its cluster could put it where there is no power for its {kw(more_w)}, to be paused again: {told}"
    return _sentence(room, offers, more_w)


def _of_type(room: "Room", gpu_type: str | None) -> Sequence["Room"]:
    """The branches that have GPUs of a type; all of them where that is not said."""
    on = {pool.branch for pool in room.view.pools if pool.gpu_type == gpu_type}
    if gpu_type is None or not on or "" in on:
        return room.places
    return [place for place in room.places if place.branch is not None and place.branch.name in on] or room.places


def _power_w(place: "Room", lead_s: float, limits_only: bool) -> float:
    """What may still be added on a branch, W at its GPUs (inf: it has no limit; -inf: what it draws is not known)."""
    left_w = math.inf
    if place.limit_w is not None:
        left_w = place.limit_w - place.draw_w
    if place.back_w is not None and not limits_only:
        left_w = min(left_w, place.back_w - place.draw_w)
    for budget in place.coming:
        if place.now is not None and (budget.start - place.now).total_seconds() <= lead_s:
            left_w = min(left_w, budget.limit_w - place.draw_w + place.leaving_w)
    if place.is_dark and not math.isinf(left_w):
        return -math.inf  # unknown is not nothing
    return left_w - place.arriving_w


def _sentence(room: "Room", offers: Offers, more_w: float) -> str:
    if not offers.told:
        ranked = sorted(offers.places, key=lambda one: -one[-1])
        more = f"; and {len(ranked) - NAMED} more" if len(ranked) > NAMED else ""
        offers.told = "; ".join(_as_told(one[0], one[-1]) for one in ranked[:NAMED]) + more
    return (
        f"no branch of {room.view.name} with free GPUs has power for the {kw(more_w)} of this job, and on which one it lands "
        f"is for its cluster to decide: {offers.told}"
    )


def _as_told(place: "Room", left_w: float) -> str:
    """What a branch may draw and draws, in words; ``left_w`` is what may be added there (inf: it has no limit)."""
    name = place.branch.name if place.branch is not None and place.branch.name else "what is on no branch"
    if left_w == math.inf:
        return f"{name} has too few GPUs free"
    if place.limit_w is not None:
        may = f"may draw {kw(place.limit_w)} ({place.limit_reason})"
    elif place.back_w is not None:
        may = f"comes back step by step {place.back_reason}"
    else:
        soon = min(place.coming, key=lambda budget: budget.limit_w)
        may = f"may draw {kw(soon.limit_w)} from {hhmm(soon.start)} ({soon.why})"
    blind = f" ({unlocated(place)})" if place.unlocated else ""
    coming = f" and {kw(place.arriving_w)} more may be on the way there" if place.arriving_w > 0 else ""
    more = " and what GPUs there draw that tell nothing of it" if place.is_dark else ""
    return f"{name} {may}, draws {kw(place.draw_w)}{more}{blind}{coming}"
