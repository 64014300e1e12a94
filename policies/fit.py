"""Whether a region could ever take a job, even with nothing else in it, and the sentence for one that none can. Pure.

It knows nothing of what runs there, nor of limits that come and go: what is said here changes only when a region does. What
serving always keeps is as good as not there.
"""

from collections.abc import Iterable

from policies.sentences import counted
from policies.world import PLACED, SLACK, Flexibility, GpuPool, JobState, JobView, RegionView

#: How the sentence of a job begins that none of its regions could ever run.
NEVER = "can never start as things are: "
_NOT_BEGUN = frozenset({JobState.QUEUED, JobState.LAUNCHING, JobState.PAUSED})
#: So many regions are named one by one.
_NAMED = 3


def pool_for(flex: Flexibility, view: RegionView) -> GpuPool | None:
    """The pool on which a job would run fastest, of those that it accepts and fits into; None without one."""
    types = flex.gpu_types
    able = [pool for pool in view.pools if pool.gpus + SLACK >= flex.gpus and (not types or pool.gpu_type in types)]
    return max(able, key=lambda pool: types.get(pool.gpu_type, 1.0), default=None)


def fits(flex: Flexibility, view: RegionView) -> bool:
    """Whether the region could take the job as it states itself, uncapped."""
    limit_w = _limit_w(view)
    power_fits = limit_w is None or flex.power_w * view.pue <= limit_w + SLACK
    return _has_gpus(flex, view) and power_fits and (view.max_jobs is None or view.max_jobs > 0)


def _has_gpus(flex: Flexibility, view: RegionView) -> bool:
    left = _gpus_left(view)
    if left is not None and flex.gpus > left + SLACK:
        return False
    return not view.pools or pool_for(flex, view) is not None


def always_kept(view: RegionView) -> tuple[float, float]:
    """GPUs and W (at the meter) that serving keeps in a region whatever its demand is."""
    return sum(one.gpus for one in view.floors), sum(one.power_w for one in view.floors)


def _gpus_left(view: RegionView) -> float | None:
    """The GPUs of a region that serving does not always keep; None: not known."""
    return None if view.gpus is None else max(0.0, view.gpus - always_kept(view)[0])


def _limit_w(view: RegionView) -> float | None:
    """What of a region's limit serving does not always keep, W at the meter; None without a limit."""
    return None if view.power_limit_w is None else max(0.0, view.power_limit_w - always_kept(view)[1])


def _for_whom(view: RegionView, *, power: bool = False) -> str:
    return " and ".join(one.whom for one in view.floors if (one.power_w if power else one.gpus) > 0)


def cannot_begin(job: JobView, view: RegionView) -> bool:
    """Whether a job that has not begun lacks GPUs in that region even with nothing else in it: its cluster lets it wait there,
    and it uses nothing meanwhile. Not while the region does not answer: how large it is now is not known."""
    return job.state in _NOT_BEGUN and view.reachable and not _has_gpus(job.flex, view)


def uses_room(job: JobView, view: RegionView) -> bool:
    """Whether a job is placed in that region and takes something of it, or will once it begins."""
    return job.state in PLACED and job.region == view.name and not cannot_begin(job, view)


def why_unfit(flex: Flexibility, named: Iterable[RegionView]) -> str:
    """Why none of these regions, which are all that a job may use, can take it now, one clause each."""
    named = list(named)
    silent = [view.name for view in named if not view.reachable]
    clauses = [f"{', '.join(silent)} {'does' if len(silent) == 1 else 'do'} not answer"] if silent else []
    clauses += [_clause(flex, view) for view in named if view.reachable]
    return "; ".join(clauses) or "no region is configured"


def _clause(flex: Flexibility, view: RegionView) -> str:
    if view.pools and pool_for(flex, view) is None:
        there = ", ".join(f"{pool.gpus:g} {pool.gpu_type}" for pool in view.pools)
        wanted = f" of {', '.join(flex.gpu_types)}" if flex.gpu_types else ""
        return f"{view.name} has {there} and it needs {flex.gpus:g}{wanted}"
    kept_gpus, kept_w = always_kept(view)
    if not _has_gpus(flex, view):
        kept = f", of which {kept_gpus:g} are always kept free for {_for_whom(view)}," if kept_gpus else ""
        return f"{view.name} has {counted(view.gpus or 0.0, 'GPU')}{kept} and it needs {flex.gpus:g}"
    limit_w = _limit_w(view)
    if limit_w is not None and flex.power_w * view.pue > limit_w + SLACK:
        kept = f", of which {kept_w:g} W are always kept free for {_for_whom(view, power=True)}," if kept_w else ""
        return f"{view.name} may draw {view.power_limit_w:g} W{kept} and it needs {flex.power_w * view.pue:g} W there"
    return f"{view.name} takes no jobs"


def why_no_place(flex: Flexibility, views: Iterable[RegionView], home: str | None) -> str | None:
    """Why a waiting job has no place while its regions are as they are; None where one of them could take it. ``home`` is the
    default region."""
    named = [view for view in views if _may_use(flex, view, home)]
    if any(view.reachable and fits(flex, view) for view in named):
        return None
    return never_fits(flex, named, home) or f"waits: {why_unfit(flex, named)}"


def never_fits(flex: Flexibility, views: Iterable[RegionView], home: str | None) -> str | None:
    """What is to be said of a job that no region it may use could run even with nothing else in it; None for others, and while
    one of those regions does not answer: how large it is now is not known. ``home`` is the default region."""
    named = []
    for view in views:
        if _may_use(flex, view, home):
            if not view.reachable or not _is_too_small(flex, view):
                return None
            named.append(view)
    if not named:
        return None
    if any(_has_gpus(flex, view) for view in named):
        told = "; ".join(_clause(flex, view) for view in named[:_NAMED])
        more = f"; and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        return f"{NEVER}{told}{more}; ask for less, or raise what they may take"
    largest = max(named, key=lambda view: _most_gpus(flex, view))
    most = _most_gpus(flex, largest)
    types = f" of {' or '.join(flex.gpu_types)}" if flex.gpu_types and any(view.pools for view in named) else ""
    where = f"its region, {largest.name}," if len(named) == 1 else f"the largest of its {len(named)} regions, {largest.name},"
    right = f"ask for at most {most:g}" if most > 0 else "ask for none"
    kept = always_kept(largest)[0]
    if kept:
        of = f" left: {kept:g} of its {largest.gpus or 0.0:g} are always kept free for {_for_whom(largest)}"
        right = f"{right}, lower floor_gpus of what is served there"
    else:
        of = ""
    return f"{NEVER}it needs {counted(flex.gpus, 'GPU')}{types} and {where} has {most:g}{of}; {right}, or add GPUs there"


def _most_gpus(flex: Flexibility, view: RegionView) -> float:
    """The most GPUs that a region has for one job of those types."""
    left = _gpus_left(view)
    if not view.pools:
        return left or 0.0
    most = max((pool.gpus for pool in view.pools if not flex.gpu_types or pool.gpu_type in flex.gpu_types), default=0.0)
    return most if left is None else min(most, left)


def _is_too_small(flex: Flexibility, view: RegionView) -> bool:
    """Whether a region could not even take the job on the GPUs and under the cap that draw least."""
    if not _has_gpus(flex, view) or view.max_jobs == 0:
        return True
    limit_w = _limit_w(view)
    if limit_w is None or view.unheard:
        return False
    least = min((pool.draw for pool in view.pools), default=1.0)
    if flex.may_be_slowed:
        least *= min((point.draw for point in view.caps), default=1.0)
    return flex.power_w * min(1.0, least) * view.pue > limit_w + SLACK


def _may_use(flex: Flexibility, view: RegionView, home: str | None) -> bool:
    if not flex.flexible:
        return view.name == home
    return not flex.regions or view.name in flex.regions
