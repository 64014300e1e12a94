"""What jobs can be brought down to by power caps before anybody has to pause: pure, from the power loop's picture of a region.

It decides nothing and sets nothing: the power loop sets caps, and policies.decide pauses for what they cannot take off.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from dispatcher.power.cap_wishes import Draw, known_draw, least_w, why_unable
from dispatcher.power.hub import GpuLive, NodeLive
from policies.cap_model import Learned
from policies.world import Flexibility, JobView


def lowest_draws(
    nodes: Iterable[NodeLive],
    jobs: Mapping[str, JobView],
    draws: Mapping[str, Draw],
    learned: Learned,
    unheld: Collection[str] = (),
) -> dict[str, float]:
    """What each job draws at the lowest caps that it accepts and that can be set on its GPUs, W at the GPUs, by id.

    Only of jobs that agents see alone on their GPUs, some of which can be capped. Their other GPUs count with all they draw,
    those of a silent node with what an event's lease leaves them, and what no agent sees of a job with what its owner says. A
    job is left out while one of its GPUs is ``unheld`` (by uuid: it does not hold a cap that was ordered).
    """
    seen: dict[str, int] = defaultdict(int)
    found: dict[str, float] = defaultdict(float)
    able: set[str] = set()
    left_out: set[str] = set()
    known: dict[tuple[object, ...], float] = {}
    for node in nodes:
        may_cap = not why_unable(node)
        for gpu in node.gpus:
            draw = draws.get(gpu.uuid)
            job = jobs.get(draw.jobs[0]) if draw is not None and draw.jobs else None
            if draw is None or job is None:
                continue
            if len(draw.jobs) > 1 or gpu.uuid in unheld:
                left_out.update(draw.jobs)
            low_w = draw.full_w
            if not node.connected:
                held_w = known_draw(gpu, node, draw)
                low_w = held_w if held_w is not None else low_w
            elif (
                may_cap
                and not gpu.protected
                and not gpu.serving
                and job.flex.may_be_slowed
                and gpu.min_w is not None
                and gpu.default_w
            ):
                low_w = min(low_w, _least_w(gpu, gpu.default_w, job.flex, draw.full_w, learned, known))
            seen[job.id] += 1
            found[job.id] += low_w
            if low_w < draw.full_w:
                able.add(job.id)
    told = {}
    for job_id in able - left_out:
        flex = jobs[job_id].flex
        unseen = max(0.0, 1.0 - seen[job_id] / flex.gpus) if flex.gpus > 0 else 0.0
        told[job_id] = float(math.ceil(found[job_id] + unseen * flex.power_w))
    return told


def _least_w(
    gpu: GpuLive,
    default_w: float,
    flex: Flexibility,
    full_w: float,
    learned: Learned,
    known: dict[tuple[object, ...], float],
) -> float:
    """The lowest cap that a job alone on a GPU accepts there, W; many are alike, and worked out once (``known``)."""
    share = round(full_w / default_w, 2)
    kind = (gpu.name, default_w, gpu.min_w, share, flex.group, flex.tier, flex.min_cap)
    if kind not in known:
        known[kind] = least_w(gpu, default_w, [flex], learned.curve(flex.group, gpu.name, share))
    return known[kind]
