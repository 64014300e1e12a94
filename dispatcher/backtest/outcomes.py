"""What became of each job of a backtest, as arrays, and the sums that are told of a policy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dispatcher.backtest.results import Floats, PolicyRun
from dispatcher.backtest.scenario import Scenario

Bools = NDArray[np.bool_]
#: Ends this much after a deadline are rounding, not lateness, s.
_ROUNDING_S = 1e-3
#: Percentiles of the delay that a run tells, 0..100.
PERCENTILES = np.arange(101.0)


@dataclass(frozen=True)
class JobOutcomes:
    """All jobs of a scenario in its order. ``submitted_s`` and ``ended_s`` count from the scenario's start; ``ended_s`` and
    ``delay_h`` are NaN for a job that had not ended. ``energy_kwh`` is all that it used by the end of the backtest; ``cost``
    (planning currency) and ``carbon_kg`` are NaN where a signal was missing for a part of it. ``late`` jobs missed their
    deadlines, ``impossible`` ones could not have met them."""

    submitted_s: Floats
    ended_s: Floats
    delay_h: Floats
    energy_kwh: Floats
    cost: Floats
    carbon_kg: Floats
    late: Bools
    impossible: Bools


@dataclass(frozen=True)
class Finished:
    """A policy's run, what became of each job in it, and what is to be said of it beside its figures."""

    run: PolicyRun
    jobs: JobOutcomes
    warnings: tuple[str, ...]


@dataclass
class Tally:
    """What the engine counts while it runs; by job in the scenario's order."""

    ended_s: Floats
    energy_kwh: Floats
    cost: Floats
    carbon_kg: Floats
    pauses: int = 0
    moves: int = 0
    gaps: list[float] = field(default_factory=list)
    alarms: dict[str, str] = field(default_factory=dict)


def new_tally(jobs: int) -> Tally:
    """Nothing counted yet."""
    return Tally(np.full(jobs, np.nan), np.zeros(jobs), np.zeros(jobs), np.zeros(jobs))


def job_outcomes(scenario: Scenario, tally: Tally, stopped_s: float) -> JobOutcomes:
    """What became of each job; the backtest stopped ``stopped_s`` after its start."""
    start, settings = scenario.start, scenario.settings
    count = len(scenario.jobs)
    submitted_s = np.fromiter(((job.submitted_at - start).total_seconds() for job in scenario.jobs), float, count)
    length_s = np.fromiter((job.length_s for job in scenario.jobs), float, count)
    due = [job.due_at for job in scenario.jobs]
    due_s = np.fromiter(((at - start).total_seconds() if at is not None else np.inf for at in due), float, count)
    earliest_s = np.fromiter(
        ((job.earliest_at - start).total_seconds() if job.earliest_at is not None else -np.inf for job in scenario.jobs),
        float,
        count,
    )
    slack_s = _ROUNDING_S + scenario.step_s
    ended = ~np.isnan(tally.ended_s)
    late = np.where(ended, tally.ended_s, np.where(due_s < stopped_s, np.inf, -np.inf)) > due_s + slack_s
    soonest_s = np.maximum(submitted_s, earliest_s) + settings.launch_s + length_s
    return JobOutcomes(
        submitted_s=submitted_s,
        ended_s=tally.ended_s,
        delay_h=(tally.ended_s - submitted_s - length_s) / 3600.0,
        energy_kwh=tally.energy_kwh,
        cost=tally.cost,
        carbon_kg=tally.carbon_kg,
        late=np.asarray(late),
        impossible=np.asarray(late & (soonest_s > due_s + slack_s)),
    )


def summary(
    scenario: Scenario, name: str, jobs: JobOutcomes, tally: Tally, load_w: Mapping[str, Floats], wall_s: float
) -> tuple[PolicyRun, tuple[str, ...]]:
    """A policy's figures, and sentences on what they lack."""
    settings = scenario.settings
    ended = ~np.isnan(jobs.ended_s)
    delays = jobs.delay_h[ended]
    run = PolicyRun(
        policy=name,
        label=name,
        settings={"carbon_price": settings.carbon_price, "price_weight": settings.price_weight},
        jobs=len(jobs.ended_s),
        energy_kwh=float(jobs.energy_kwh.sum()),
        cost=_total(jobs.cost),
        carbon_kg=_total(jobs.carbon_kg),
        delay_mean_h=float(delays.mean()) if len(delays) else np.nan,
        delay_p95_h=float(np.percentile(delays, 95)) if len(delays) else np.nan,
        delay_percentiles_h=np.percentile(delays, PERCENTILES) if len(delays) else np.full(len(PERCENTILES), np.nan),
        deadline_misses=int(jobs.late.sum()),
        impossible=int(jobs.impossible.sum()),
        unfinished=int((~ended).sum()),
        pauses=tally.pauses,
        moves=tally.moves,
        gap=sum(tally.gaps) / len(tally.gaps) if tally.gaps else None,
        wall_s=wall_s,
        load_w=load_w,
    )
    return run, _warnings(scenario, jobs, run, tally)


def _total(values: Floats) -> float | None:
    total = float(values.sum())
    return None if np.isnan(total) else total


def _warnings(scenario: Scenario, jobs: JobOutcomes, run: PolicyRun, tally: Tally) -> tuple[str, ...]:
    said: list[str] = []
    for what, values in (("cost", jobs.cost), ("carbon", jobs.carbon_kg)):
        unknown = int(np.isnan(values).sum())
        if unknown:
            said.append(f"{run.policy}: the {what} of {unknown} jobs is unknown, because a value was missing while they ran")
    if run.unfinished:
        said.append(f"{run.policy}: {run.unfinished} of {run.jobs} jobs had not ended; their energy so far counts")
    said += _few(run.policy, list(tally.alarms.values()))
    return tuple(said)


def _few(policy: str, sentences: Sequence[str]) -> list[str]:
    return [f"{policy}: {sentence}" for sentence in sentences[:3]] + (
        [f"{policy}: and {len(sentences) - 3} more limits that could not be met"] if len(sentences) > 3 else []
    )
