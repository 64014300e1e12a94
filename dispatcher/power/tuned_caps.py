"""Leases on the GPUs of interactive serving itself: the only economic ones there, where its operator allowed them. Pure."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dispatcher.power.cap_wishes import Wish, lease_id, why_unable
from dispatcher.power.hub import NodeLive
from policies.cap_model import LEAST_CAP


class TunedCap(NamedTuple):
    """A cap that a serving asks for on one of its GPUs, W, and why."""

    serving: str
    limit_w: float
    reason: str


def on_tuned(nodes: Iterable[NodeLive], caps: Mapping[str, TunedCap]) -> list[Wish]:
    """Leases for ``caps`` (by GPU). They last a minute and are renewed while they are asked for.

    A GPU is capped only where it is that serving's as the configuration names it, and where it is known that no job of ours is
    beside it: that job's tier was not asked, and what was measured was the server alone.
    """
    wishes = []
    for node in nodes if caps else ():
        if why_unable(node):
            continue
        for gpu in node.gpus:
            cap = caps.get(gpu.uuid)
            if cap is None or gpu.serving != cap.serving or gpu.jobs is None or gpu.jobs:
                continue
            if gpu.default_w is None or gpu.min_w is None:
                continue
            limit_w = float(math.ceil(max(cap.limit_w, LEAST_CAP * gpu.default_w, gpu.min_w)))
            if limit_w < gpu.default_w:
                name = lease_id(f"tuning {cap.serving}", gpu.uuid)
                wishes.append(Wish(gpu.node_id, gpu.uuid, name, "economic", limit_w, None, cap.reason, foreign_ok=True))
    return wishes
