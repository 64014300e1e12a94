"""On which branches of a region's power tree its jobs run, and what else draws there: from what agents tell of their GPUs.

It decides nothing. What no agent tells is left out, so that whoever asks sees that it is not known.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dispatcher.power.cap_wishes import known_draw
from dispatcher.power.hub import NodeLive
from policies.world import BranchView, JobView


class Placed(NamedTuple):
    """The ``branches`` of a region, and for each job of which agents tell the share of its GPUs on each of them."""

    branches: tuple[BranchView, ...]
    shares: Mapping[str, Mapping[str, float]]


@dataclass
class Placements:
    """See the module. It remembers who was last seen on a GPU, for the times in which nobody tells."""

    _last: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)

    def of(
        self,
        region: str,
        nodes: Iterable[NodeLive],
        jobs: Mapping[str, JobView],
        limits_w: Mapping[str, float | None],
        *,
        off_branches: bool = False,
        gpus: float | None = None,
    ) -> Placed:
        """What is where in a region now. ``jobs`` are those placed there, by id; ``limits_w`` has the branches that are known
        without agents, with their standing limits (W at the GPUs; None: none); ``gpus`` is how many the region has (None: not
        known). GPUs that no agent tells of are on the branches that no agent tells of. Where agents tell of every branch they
        may lie on any of those: they offer no room of their own, unless the configuration says that the region has GPUs on no
        branch (``off_branches``); then they count as those ("")."""
        counts: dict[str, int] = {}
        other_w: dict[str, float] = defaultdict(float)
        dark: set[str] = set()  # branches with a GPU of which neither what it draws is known nor what it may
        seen: dict[str, dict[str, int]] = {}
        before, last = self._last.get(region, {}), dict[str, tuple[str, ...]]()
        for node in nodes:
            if node.region != region:
                continue
            branch = node.branch or ""
            counts[branch] = counts.get(branch, 0) + len(node.gpus)
            for gpu in node.gpus:
                uuid = gpu.uuid
                on_it = gpu.jobs if gpu.jobs is not None else before.get(uuid, ())
                if not all(map(jobs.__contains__, on_it)):
                    on_it = tuple(one for one in on_it if one in jobs)
                if not on_it:
                    drawn_w = known_draw(gpu, node, None)
                    other_w[branch] += drawn_w or 0.0
                    if drawn_w is None:
                        dark.add(branch)
                    continue
                last[uuid] = on_it
                for job_id in on_it:
                    by_branch = seen.get(job_id)
                    if by_branch is None:
                        seen[job_id] = {branch: 1}
                    else:
                        by_branch[branch] = by_branch.get(branch, 0) + 1
        self._last[region] = last
        names = list(dict.fromkeys([*limits_w, *counts]))
        untold = 0.0 if gpus is None else max(0.0, gpus - sum(counts.values()))
        if untold > 0 and off_branches and all(name in counts for name in names):
            names = list(dict.fromkeys([*names, ""]))
            counts[""] = counts.get("", 0) + round(untold)
        branches = tuple(
            BranchView(
                name,
                limits_w.get(name),
                None if name in dark else other_w.get(name, 0.0),
                float(counts[name]) if name in counts else None,
            )
            for name in names
        )
        return Placed(branches, {job_id: _shares(jobs[job_id], on) for job_id, on in seen.items()})


def _shares(job: JobView, seen: Mapping[str, int]) -> dict[str, float]:
    whole = max(job.flex.gpus, sum(seen.values()))
    return {branch: count / whole for branch, count in seen.items()}
