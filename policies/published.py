"""Scheduling policies as others published them, in our own words and code, to be run live and to be measured against.

Each looks at one job at a time and at carbon alone, whatever the settings say of prices; a region without carbon is judged by
its price, and the names with ``:price`` look at the price first. They come from papers on one site: with several allowed
regions a job stays in its home (policies.single_site.home), and ``deadline_at`` less now and its run time is the waiting limit
W of the papers. Our own additions, the same for all: a value that is not known is never taken for a clean one, a job of which
nothing is known starts at once, and owners' ceilings on price and carbon are kept while there is time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import e, exp, isfinite, nan, sqrt

from policies.policy import Knows, Policy
from policies.single_site import WAITING, Answer, Ask, SingleSite, once, unknown
from policies.timeline import DAY_S, SAME_S, Market, Span, Timeline
from policies.world import JobView, Pausable, Placement, Plan, RegionView, World

#: Signals that differ by less than this share are the same: running sums round.
_SAME = 1e-9


# --- one start --------------------------------------------------------------------------------------------------------


class RunNow(SingleSite):
    """Every job as soon as it may: what a cluster does by itself, and the baseline of all the papers."""

    title = "run-now"

    def answer(self, ask: Ask) -> Answer:
        """At once."""
        return once(0.0, ask.run_s), "starts at once"

    def below_ceilings(self, ask: Ask, market: Market) -> Answer:
        """At once: it looks at no signal."""
        return self.answer(ask)


class LowestSlot(SingleSite):
    """Starts in the slot of the lowest signal up to W, the first one on ties; needs no run time.

    Hanafy et al., "Going Green for Less Green: Optimizing the Cost of Reducing Cloud Carbon Emissions" (GAIA), ASPLOS 2024.
    """

    title = "lowest-slot"

    def choose(self, ask: Ask, line: Timeline) -> Answer:
        """The start of the lowest slot, now when that is the one under way."""
        # a slot that begins with W's last moment counts
        first, values = line.pieces(ask.begin_s, ask.begin_s + ask.wait_s + 2 * SAME_S)
        best = _least(values)
        if best is None:
            return unknown(ask)
        begin_s = (first + best) * line.slot_s - ask.begin_s if best else 0.0
        return _start(ask, begin_s, values[0], values[best], "slot before its last start")


class LowestWindow(SingleSite):
    """Starts where the signal summed over the expected run time is lowest: now, a slot later, two slots later .. up to W; the
    first on ties. The expected run time is the mean of the job's kind.

    Hanafy et al. (GAIA), ASPLOS 2024; with the run time known it is the non-interrupting strategy of Wiesner et al., "Let's
    Wait Awhile: How Temporal Workload Shifting Can Reduce Carbon Emissions in the Cloud", Middleware 2021.
    """

    title = "lowest-window"
    knows = Knows.GROUP_MEAN

    def choose(self, ask: Ask, line: Timeline) -> Answer:
        """The start of the lowest window."""
        return _lowest_window(ask, line)


class CarbonTime(SingleSite):
    """Starts where most is saved for each second until the job would end: the largest (C(now) - C(s)) / (wait(s) + e), with C
    the signal summed over the expected run time e, over the same starts as lowest-window. Favours short waits.

    Hanafy et al. (GAIA), ASPLOS 2024. Where C(now) is not known, it starts as lowest-window does.
    """

    title = "carbon-time"
    knows = Knows.GROUP_MEAN

    def choose(self, ask: Ask, line: Timeline) -> Answer:
        """The start that saves most for its wait; now when none saves anything."""
        totals = line.windows(ask.begin_s, ask.run_s, ask.wait_s)
        at_once = totals[0]
        if at_once != at_once:
            return _lowest_window(ask, line)
        enough = at_once - _SAME * abs(at_once)
        slot_s, run_s = line.slot_s, ask.run_s
        best, most = 0, 0.0
        for index, total in enumerate(totals):
            if total < enough:
                rate = (at_once - total) / (index * slot_s + run_s)
                if rate > most * (1 + _SAME):
                    best, most = index, rate
        return _start(ask, float(best * slot_s), at_once, totals[best], "start for its wait")


def _lowest_window(ask: Ask, line: Timeline) -> Answer:
    totals = line.windows(ask.begin_s, ask.run_s, ask.wait_s)
    best = _least(totals)
    return unknown(ask) if best is None else _start(ask, float(best * line.slot_s), totals[0], totals[best], "start in time")


def _least(values: Sequence[float]) -> int | None:
    """The first of the least values, those that are the same but for rounding counted as one; None when none is known."""
    if isfinite(sum(values)):
        best = min(values)
    else:
        known = [value for value in values if value == value]
        if not known:
            return None
        best = min(known)
    bound = best + _SAME * abs(best)
    return next(index for index, value in enumerate(values) if value <= bound)


def _start(ask: Ask, begin_s: float, at_once: float, then: float, what: str) -> Answer:
    """One start in words: what it is, and how far its signal lies below that of starting at once."""
    if begin_s <= 0:
        return once(0.0, ask.run_s), f"starts at once, the {ask.best} {what}"
    below = f", {100 * (1 - then / at_once):.0f} % below starting at once" if at_once > 0 else ""
    return once(begin_s, ask.run_s), f"the {ask.best} {what}{below}"


# --- suspending and resuming ------------------------------------------------------------------------------------------


class WaitAwhile(SingleSite):
    """Suspends and resumes: runs in the slots of the lowest signal over the next run time + W, just as many as the job needs,
    the earliest on ties. The run time is known, and suspending costs nothing.

    Wiesner et al., "Let's Wait Awhile", Middleware 2021, its interrupting strategy. A job that may not be paused gets their
    non-interrupting one: the lowest window of its run time. Jobs that resume from a checkpoint lose ``restart_s`` each time,
    which this policy does not see.
    """

    title = "wait-awhile"
    knows = Knows.RUNTIME

    def choose(self, ask: Ask, line: Timeline) -> Answer:
        """The lowest slots, or the lowest window where there may be no pause."""
        if ask.job.flex.pausable is not Pausable.CHECKPOINT:
            return _lowest_window(ask, line)
        slot_s, begin_s, length_s = line.slot_s, ask.begin_s, ask.run_s + ask.wait_s
        first, values = line.pieces(begin_s, begin_s + length_s)
        order = sorted([index for index, value in enumerate(values) if value == value], key=values.__getitem__)
        if not order:
            return unknown(ask)
        if len(order) < len(values):  # what is unknown comes after all else
            order += [index for index, value in enumerate(values) if value != value]
        taken: list[Span] = []
        left = ask.run_s
        for index in order:
            begin = max(0.0, (first + index) * slot_s - begin_s)
            end = min(length_s, (first + index + 1) * slot_s - begin_s)
            taken.append((begin, min(end, begin + left)))
            left -= end - begin
            if left <= SAME_S:
                break
        spans = _joined(taken)
        pauses = len(spans) - 1
        at_once = "starts at once, " if spans[0][0] <= SAME_S else ""
        with_pauses = f", with {pauses} pause{'s' if pauses > 1 else ''}" if pauses else ""
        return spans, f"{at_once}the {ask.best} slots in time{with_pauses}"


def _joined(spans: list[Span]) -> list[Span]:
    """Spans in order, those that touch made one."""
    spans.sort()
    joined = spans[:1]
    for begin, end in spans[1:]:
        if begin - joined[-1][1] <= SAME_S:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return joined


@dataclass(slots=True)
class _Waited:
    """What Ecovisor remembers of a job: its threshold, fixed at arrival (NaN: nothing was known), its whole waiting limit, and
    how long it had waited by ``since``."""

    threshold: float
    limit_s: float
    since: datetime
    waited_s: float = 0.0


class Ecovisor(SingleSite):
    """Suspends and resumes by a threshold: runs while the signal is below the 30th percentile of the 24 h after the job's
    arrival, else waits; once it has waited W in all it runs straight through. Needs no run time; decides anew each slot by what
    is known then, with the threshold as it was at arrival.

    Souza et al., "Ecovisor: A Virtual Energy System for Carbon-Efficient Applications", ASPLOS 2023, as the threshold policy of
    GAIA (ASPLOS 2024) has it. A job that may not be paused waits for the first moment below the threshold, at most W, and then
    runs straight through. The intervals of a placement go on beyond the run time that is assumed: the policy does not know when
    the job will end.
    """

    title = "ecovisor"
    replans = True
    #: Share of the 24 h after arrival that lies below the threshold.
    share = 0.3
    #: A placement looks no more than so many slots ahead before it runs straight through; it is made anew before that.
    slots_ahead = 400

    def __init__(self, by_price: bool = False) -> None:
        super().__init__(by_price)
        self._jobs: dict[str, _Waited] = {}

    def forget(self, job_ids: Iterable[str]) -> None:
        """Their thresholds and waits are not needed any more."""
        for job_id in job_ids:
            self._jobs.pop(job_id, None)

    def kept(
        self, job: JobView, placement: Placement | None, views: Mapping[str, RegionView], world: World
    ) -> Placement | None:
        """The place so far while it agrees with what is known of this moment, else one made anew from here on."""
        kept = super().kept(job, placement, views, world)
        memory = self._jobs.get(job.id)
        if kept is None or memory is None or memory.threshold != memory.threshold:
            return kept
        now = world.now
        runs = any(begin <= now < end for begin, end in kept.intervals)
        if runs and job.flex.pausable is not Pausable.CHECKPOINT:
            return kept
        line = self.market(views[kept.region], now).signal
        value = nan if line is None else line.at((now - line.start).total_seconds())
        if (value < memory.threshold) == runs:
            return kept
        if now > memory.since:
            ran_s = sum(max(0.0, (min(b, now) - max(a, memory.since)).total_seconds()) for a, b in kept.intervals)
            memory.waited_s += (now - memory.since).total_seconds() - ran_s
            memory.since = now
        if runs and memory.waited_s >= memory.limit_s - SAME_S:
            return kept
        return self.place(job, views[kept.region], world)

    def answer(self, ask: Ask) -> Answer:
        """When it would run by what is known now."""
        line, memory = ask.line, self._jobs.get(ask.job.id)
        if memory is None:
            threshold = nan if line is None else _percentile(line, ask.begin_s, self.share)
            memory = self._jobs[ask.job.id] = _Waited(threshold, ask.wait_s, ask.ready)
        elif ask.ready > memory.since and ask.job.state in WAITING:  # it found no room when its time came
            memory.waited_s += (ask.ready - memory.since).total_seconds()
            memory.since = ask.ready
        return super().answer(ask._replace(wait_s=max(0.0, memory.limit_s - memory.waited_s)))

    def choose(self, ask: Ask, line: Timeline) -> Answer:
        """While the signal is below the job's threshold, and straight on once its waiting limit is used up."""
        threshold = self._jobs[ask.job.id].threshold
        if threshold != threshold:
            return unknown(ask)
        may_pause = ask.job.flex.pausable is Pausable.CHECKPOINT
        what = f"{ask.word} is below {threshold:.4g}"
        reason = f"runs while {what}, waits at most its limit" if may_pause else f"starts once {what}, waits at most its limit"
        slot_s, at, left_s = line.slot_s, 0.0, ask.wait_s
        first = int(ask.begin_s // slot_s)
        line.reach(first + self.slots_ahead)
        spans: list[Span] = []
        for index in range(first, first + self.slots_ahead):
            end = (index + 1) * slot_s - ask.begin_s
            if line.values[index] < threshold:
                if not may_pause:
                    break
                spans.append((at, end))
            elif left_s <= end - at:
                at += left_s
                break
            else:
                left_s -= end - at
            at = end
        spans.append((at, at + ask.run_s))
        return _joined(spans), reason


def _percentile(line: Timeline, begin_s: float, share: float) -> float:
    """The value below which ``share`` of the known time of the next 24 h lies; NaN when nothing of it is known."""
    first, values = line.pieces(begin_s, begin_s + DAY_S)
    weighted = []
    for index, value in enumerate(values, first):
        if value == value:
            begin, end = max(begin_s, index * line.slot_s), min(begin_s + DAY_S, (index + 1) * line.slot_s)
            weighted.append((value, end - begin))
    weighted.sort()
    bound, sum_s = share * sum(weight for _, weight in weighted), 0.0
    for value, weight in weighted:
        sum_s += weight
        if sum_s > bound + SAME_S:
            return value
    return weighted[-1][0] if weighted else nan


# --- a quota around any policy ----------------------------------------------------------------------------------------


class CapQuota:
    """A quota on each region's GPUs that follows its signal, around any other policy: of K GPUs a floor B is always free for
    use, and each of the k = K - B others only while the signal is at or below a threshold of its own. The thresholds fall from
    the one to the next between the highest signal U and the lowest L of the look-ahead, in the way that makes the worst case
    least bad. Needs to know nothing of jobs.

    Lechowicz et al., "Carbon- and Precedence-Aware Scheduling for Data Processing Clusters" (PCAPS), 2025, its provisioning
    scheme CAP: theta_i = U (1 - (1 - 1/a) (1 + 1/(a k))^(i-1)) with a = 1 / (1 + W0((L/U - 1) / e)), W0 the Lambert function.
    The look-ahead is ``look_ahead_s``, the floor ``floor`` of a region's GPUs. A region without a known number of GPUs or
    without any known signal has no quota; where only this moment is unknown, the floor is all. A signal of zero or less
    (prices) counts as the thousandth part of the highest.
    """

    def __init__(self, inner: Policy, *, by_price: bool = False, floor: float = 0.2, look_ahead_s: float = 48 * 3600) -> None:
        if not 0 <= floor <= 1:
            raise ValueError(f"floor {floor!r} must be a share of a region's GPUs from 0 to 1")
        self.inner, self.floor, self.look_ahead_s = inner, floor, look_ahead_s
        wrapped = "" if inner.name in (RunNow.title, f"{RunNow.title}:price") else f"/{inner.name.removesuffix(':price')}"
        self.name = f"cap-quota{wrapped}{':price' if by_price else ''}"
        self.knows, self.replans = inner.knows, inner.replans
        self._by_price = by_price
        self._markets: dict[str, Market] = {}

    def plan(self, world: World) -> Plan:
        """The inner policy's plan."""
        return self.inner.plan(world)

    def insert(self, world: World, jobs: Sequence[JobView]) -> Mapping[str, Placement]:
        """The inner policy's places."""
        return self.inner.insert(world, jobs)

    def forget(self, job_ids: Iterable[str]) -> None:
        """The inner policy forgets them."""
        self.inner.forget(job_ids)

    def gate(self, view: RegionView, now: datetime) -> float | None:
        """GPUs that may be used now: the floor, and one for each threshold that is not below the signal."""
        inner = self.inner.gate(view, now)
        if view.gpus is None:
            return inner
        market = self._markets.get(view.name)
        if market is None or not market.holds(view, now):
            market = self._markets[view.name] = Market(view, now, self._by_price)
        line = market.signal
        if line is None:
            return inner
        begin_s = (now - line.start).total_seconds()
        _, values = line.pieces(begin_s, begin_s + self.look_ahead_s)
        known = [value for value in values if value == value]
        if not known:
            return inner
        reserved = self.floor * view.gpus
        quota = reserved + thresholds_met(values[0], min(known), max(known), int(view.gpus - reserved + SAME_S))
        # what is left of a GPU, where the floor is no whole number of them, belongs to the last one
        quota = view.gpus if quota > view.gpus - 1 else quota
        return quota if inner is None else min(quota, inner)


def thresholds_met(signal: float, low: float, high: float, count: int) -> int:
    """How many of CAP's ``count`` thresholds between ``low`` and ``high`` are at or above ``signal``; none when it is NaN."""
    if signal != signal or count <= 0:
        return 0
    if high <= 0:
        return count  # power is free, or better, all the time
    low, signal = max(low, high / 1000.0), max(signal, high / 1000.0)
    share = 1.0 + lambert_w((low / high - 1.0) / e)  # 1 / alpha
    if share >= 1.0:
        return count
    ratio = 1.0 + share / count
    met, above = 0, count + 1  # the thresholds fall: the last that is met lies in [met, above)
    while above - met > 1:
        middle = (met + above) // 2
        theta = high * (1.0 - (1.0 - share) * ratio ** (middle - 1))
        met, above = (middle, above) if theta >= signal * (1 - _SAME) else (met, middle)
    return met


def lambert_w(x: float) -> float:
    """W0 for x in [-1/e, 0]: the w in [-1, 0] with w exp(w) = x. Raises ValueError outside."""
    if not -1.0 / e - 1e-15 <= x <= 0:
        raise ValueError(f"lambert_w({x!r}): must lie in [-1/e, 0]")
    near = 2.0 * (1.0 + e * x)
    if near <= 1e-14:
        return -1.0
    w = -1.0 + sqrt(near) if x < -0.25 else x
    for _ in range(50):
        step = (w * exp(w) - x) / (exp(w) * (w + 1.0))
        w -= step
        if abs(step) < 1e-14:
            break
    return w
