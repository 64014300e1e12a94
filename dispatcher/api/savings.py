"""What was spent against what running every job at once would have cost: the same work, begun when it was submitted, in the
region where a job without wishes goes. Energy is measured as far as the answer says; every assumption is a caveat in it.

It reads ended jobs and stored signals; it decides nothing.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from dispatcher.api.services import Signals
from dispatcher.config import RegionConfig
from dispatcher.power.accounts import MEASURED, MODELLED, PARTLY_MEASURED, SIMULATED, together
from dispatcher.store import Attempt, Job
from policies.accounting import weighted_mean
from policies.fit import never_fits
from policies.flexibility import PREFIX
from policies.sentences import counted, some
from policies.world import JobState, RegionView, World
from signals.forecast import usable
from signals.points import Kind, SignalError, SignalPoint
from signals.series import SlotSeries
from signals.tariffs import Tariff, price_points

#: The latest ended jobs that a report covers.
JOBS_COVERED = 1000
#: Most that is taken off a run for its restarts, as a share of it: what an owner stated of them was not measured.
RESTARTS_SHARE = 0.1
#: No signal has values that hold for longer.
LONGEST_POINT = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Baseline:
    """One job run at once: energy at the meter, cost in the planning currency and carbon, None where a signal is missing."""

    energy_kwh: float
    cost: float | None
    carbon_kg: float | None


class Means:
    """Means of signals over many intervals; each signal is read once, over all of ``[start, end)``. ``wholesale`` names the
    price feed that is in use, by region."""

    def __init__(self, signals: Signals, start: datetime, end: datetime, as_of: datetime, wholesale: Mapping[str, str]) -> None:
        self._signals, self._start, self._end, self._as_of, self._wholesale = signals, start, end, as_of, wholesale
        self._read: dict[tuple[str, Kind, str], tuple[list[datetime], list[SignalPoint]]] = {}
        self._tariffs: dict[str, Tariff] = {}  # checked as they are made, which a report of a thousand jobs does once

    def over(self, region: str, kind: Kind, series: SlotSeries, start: datetime, end: datetime) -> float | None:
        """Time-weighted mean of what ``series`` is made of over ``[start, end)``; None unless all of it is known."""
        return weighted_mean(usable(self._points(region, kind, series.source, start, end), self._as_of), start, end)

    def price(self, region: RegionConfig, series: SlotSeries, start: datetime, end: datetime) -> float | None:
        """As ``over``, of what the site pays."""
        if region.tariff is None:
            return self.over(region.name, Kind.PRICE, series, start, end)
        if region.name not in self._tariffs:
            self._tariffs[region.name] = region.tariff.tariff(region.name)
        tariff = self._tariffs[region.name]
        points: list[SignalPoint] | None = None
        if tariff.needs_wholesale:
            source = self._wholesale.get(region.name)
            if source is None:
                return None
            points = usable(self._points(region.name, Kind.PRICE, source, start, end), self._as_of)
        try:
            retail = price_points(tariff, points, start, end, region=region.name, known_at=self._as_of)
        except SignalError:
            return None  # wholesale in other money than the contract's: the signal's alarm says so
        return weighted_mean(retail, start, end)

    def _points(self, region: str, kind: Kind, source: str, start: datetime, end: datetime) -> list[SignalPoint]:
        key = (region, kind, source)
        if key not in self._read:
            points = self._signals.read(region, kind, self._start, self._end, self._as_of, source=source)
            self._read[key] = [point.start for point in points], points
        starts, points = self._read[key]
        return points[bisect_right(starts, start - LONGEST_POINT) : bisect_right(starts, end)]


def ran_seconds(attempts: Sequence[Attempt]) -> float:
    """For how long a job's attempts ran together, without the time in which they stood frozen, seconds."""
    runs = [(one.started_at or one.accepted_at, one.ended_at, one.frozen_s) for one in attempts]
    return sum(
        max(0.0, (end - start).total_seconds() - frozen_s)
        for start, end, frozen_s in runs
        if start is not None and end is not None
    )


def run_seconds(job: Job, pue: float, ran_s: float | None = None) -> float:
    """How long a job would have run without pauses: ``ran_s``, or else what its modelled energy says, less its restarts as far
    as they are known; 0 when that says nothing. What its owner did not state of a restart is not known: what planning assumes
    then may be as long as the whole job."""
    draw_w = job.flex.power_w * pue
    if ran_s is None:
        ran_s = (job.energy_kwh or 0.0) * 3_600_000 / draw_w if draw_w > 0 else 0.0
    stated_s = job.pauses * job.flex.restart_s if f"{PREFIX}restart_s" in job.request.metadata else 0.0
    return ran_s - min(stated_s, RESTARTS_SHARE * ran_s)


def report(
    jobs: Sequence[Job],
    world: World,
    regions: dict[str, RegionConfig],
    signals: Signals,
    now: datetime,
    wholesale: Mapping[str, str],
    ran_s: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The answer of ``/v1/savings`` for ended jobs; those that were deleted since count too and are named.

    ``wholesale`` names the price feed in use, by region; ``ran_s`` has, by id, how long jobs ran whose energy was measured.
    """
    ran = [job for job in jobs if job.energy_kwh]
    totals: dict[str, Any] = {
        "jobs": len(ran),
        "energy_kwh": sum(job.energy_kwh or 0.0 for job in ran),
        "deadline_misses": sum(missed(job) for job in jobs),
        **_deadlines(jobs),
    }
    baselines = _baselines(ran, world, regions, signals, now, wholesale, ran_s or {})
    basis = together(*(job.energy_basis or MODELLED for job in ran)) or MODELLED
    caveats = [
        *_energy_caveats(ran, basis),
        "run now: the time that the job ran, from submission on, in its first allowed region (else the default region), as if "
        "there were always room",
        *_restart_caveats(ran),
        "prices are those of the configured feeds and tariffs, without demand charges: not a bill",
    ]
    for name, ours, theirs in (
        ("cost", [job.cost for job in ran], [b.cost if b else None for b in baselines]),
        ("carbon_kg", [job.carbon_kg for job in ran], [b.carbon_kg if b else None for b in baselines]),
    ):
        pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
        left_out = len(ran) - len(pairs)
        known = bool(pairs) or not ran
        totals[name] = sum(a for a, _ in pairs) if known else None
        totals[f"{name}_run_now"] = sum(b for _, b in pairs) if known else None
        if left_out:
            why = (
                "a signal is unknown" if _signals_read(name, world, regions) else "signals are still being read: ask again soon"
            )
            caveats.append(f"{name}: {left_out} of {len(ran)} jobs are left out on both sides, because {why}")
    gone = sorted(job.id for job in jobs if job.deleted_at is not None)
    if gone:
        caveats.append(f"{len(gone)} of the ended jobs were deleted since, and count all the same: {some(gone, 5)}")
    if len(jobs) >= JOBS_COVERED:
        caveats.append(f"only the latest {JOBS_COVERED} ended jobs are covered")
    return {
        "energy_basis": basis,
        "energy_bases": _bases(ran),
        "currency": world.settings.currency,
        "totals": totals,
        "deleted_jobs": gone,
        "caveats": caveats,
    }


def with_waiting(
    report: dict[str, Any], waiting: Sequence[Job], regions: Sequence[RegionView], home: str, now: datetime
) -> dict[str, Any]:
    """The report, and what it has to say of jobs that wait: after its deadline one has missed it already, and one that no
    region could ever run is in none of the figures. ``home`` is the default region."""
    waiting = [job for job in waiting if job.cancel_requested_at is None]
    overdue = [job for job in waiting if job.flex.deadline_at is not None and job.flex.deadline_at < now]
    never = [job.id for job in waiting if never_fits(job.flex, regions, home) is not None]
    caveats = list(report["caveats"])
    if overdue:
        caveats.append(f"deadline misses count {len(overdue)} of jobs that wait and whose deadlines have passed")
    if never:
        waits = counted(len(never), "job waits", "jobs wait")
        caveats.append(f"{waits} that no region can ever run as things are: {some(never, 5)}")
    totals = {**report["totals"], "deadline_misses": report["totals"]["deadline_misses"] + len(overdue)}
    return {**report, "totals": totals, "caveats": caveats}


def _restart_caveats(ran: Sequence[Job]) -> list[str]:
    """What is done about the restarts of jobs that were paused."""
    if not any(job.pauses for job in ran):
        return []
    return [
        f"run now: each pause takes {PREFIX}restart_s off that time where the job's owner stated it, all of them at most "
        f"{RESTARTS_SHARE:.0%} of it; what else pauses cost stays in it"
    ]


def _signals_read(name: str, world: World, regions: Mapping[str, RegionConfig]) -> bool:
    """Whether every signal that is configured for this total was read since the control plane began."""
    views = {view.name: (view.price if name == "cost" else view.carbon) for view in world.regions}
    wanted = [one.name for one in regions.values() if (one.price or one.tariff if name == "cost" else one.carbon)]
    return all(views.get(one) is not None for one in wanted)


def _bases(ran: Sequence[Job]) -> dict[str, int]:
    """How many jobs' energies rest on what."""
    counts = Counter(job.energy_basis or MODELLED for job in ran)
    return {one: counts[one] for one in (MEASURED, PARTLY_MEASURED, SIMULATED, MODELLED) if counts[one]}


def _energy_caveats(ran: Sequence[Job], basis: str) -> list[str]:
    """What the energies rest on."""
    if basis == MODELLED:
        return ["energy is modelled: stated mean draw x run time x PUE, not measured"]
    counts = _bases(ran)
    told = ", ".join(f"{count} {one}" for one, count in counts.items())
    caveats = [f"energy of jobs: {told}; what was measured at the GPUs counts times the region's PUE"]
    if SIMULATED in counts:
        caveats.append("SIMULATED: GPUs of a simulated driver stand for real ones")
    return [*caveats, "run now: a job that was measured draws the same mean power at its GPUs as it did"]


def _deadlines(jobs: Sequence[Job]) -> dict[str, int]:
    """Of ended jobs with a deadline: those that succeeded after it, and those that never finished their work. Only the first
    were late; what failed was no matter of when it ran, and what was cancelled was its owner's choice."""
    due = [(job.state, job.finished_at, job.flex.deadline_at) for job in jobs if job.flex.deadline_at is not None]
    late = [at is not None and by is not None and at > by for state, at, by in due if state is JobState.SUCCEEDED]
    return {
        "finished_late": sum(late),
        "failed_with_deadline": sum(state is JobState.FAILED for state, _, _ in due),
        "cancelled_with_deadline": sum(state is JobState.CANCELLED for state, _, _ in due),
    }


def missed(job: Job) -> bool:
    """Whether a job ended after its deadline (or failed, having one); a cancelled one misses nothing."""
    deadline = job.flex.deadline_at
    if deadline is None or job.finished_at is None or job.state is JobState.CANCELLED:
        return False
    return job.finished_at > deadline or job.state is JobState.FAILED


def _baselines(
    ran: Sequence[Job],
    world: World,
    regions: dict[str, RegionConfig],
    signals: Signals,
    now: datetime,
    wholesale: Mapping[str, str],
    ran_s: Mapping[str, float],
) -> list[Baseline | None]:
    runs = [_run_now(job, world, regions, ran_s.get(job.id)) for job in ran]
    starts = [start for _, start, _ in filter(None, runs)]
    ends = [end for _, _, end in filter(None, runs)]
    if not starts:
        return [None] * len(ran)
    means = Means(signals, min(starts), max(ends), now, wholesale)
    return [
        _baseline(job, run, world, regions, means, ran_s.get(job.id)) if run else None
        for job, run in zip(ran, runs, strict=True)
    ]


def _run_now(
    job: Job, world: World, regions: dict[str, RegionConfig], ran_s: float | None
) -> tuple[str, datetime, datetime] | None:
    """Where and when the job would have run if it had begun when it was submitted."""
    home = job.flex.regions[0] if job.flex.regions else world.settings.default_region
    if home not in regions or job.region not in regions:
        return None
    seconds = run_seconds(job, regions[job.region].pue, ran_s)
    start = job.submitted_at.astimezone(UTC)
    return (home, start, start + timedelta(seconds=seconds)) if seconds > 0 else None


def _baseline(
    job: Job,
    run: tuple[str, datetime, datetime],
    world: World,
    regions: dict[str, RegionConfig],
    means: Means,
    ran_s: float | None,
) -> Baseline | None:
    home, start, end = run
    view = next((one for one in world.regions if one.name == home), None)
    if view is None:
        return None
    if ran_s is None:
        energy = job.flex.power_w * regions[home].pue * (end - start).total_seconds() / 3_600_000
    else:  # as much as it drew, in the other building, without its restarts
        share = (end - start).total_seconds() / ran_s
        energy = (job.energy_kwh or 0.0) * share * regions[home].pue / regions[job.region or home].pue
    price = means.price(regions[home], view.price, start, end) if view.price else None
    carbon = means.over(home, Kind(view.carbon_kind), view.carbon, start, end) if view.carbon else None
    rate = view.fx if view.fx == view.fx else None  # NaN: no exchange rate is configured
    return Baseline(
        energy,
        None if price is None or rate is None else energy * price * rate / 1000.0,
        None if carbon is None else energy * carbon / 1000.0,
    )


class Remembered:
    """A report that is made at most every few seconds, however often it is asked for."""

    def __init__(self, make: Callable[[], dict[str, Any]], keep_s: float, wall: Callable[[], float]) -> None:
        self._make, self._keep_s, self._wall = make, keep_s, wall
        self._made: dict[str, Any] | None = None
        self._made_at = float("-inf")

    def get(self) -> dict[str, Any]:
        """The report, at most ``keep_s`` old."""
        if self._made is None or self._wall() - self._made_at > self._keep_s:
            self._made, self._made_at = self._make(), self._wall()
        return self._made
