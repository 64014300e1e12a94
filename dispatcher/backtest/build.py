"""From files and plain options to a Scenario, with every assumption as a sentence."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import numpy as np

from dispatcher.backtest import traces
from dispatcher.backtest.extras import read_events, read_serving
from dispatcher.backtest.forecasts import DAYS, LEARNED, AsOf, Noisy, Perfect, Progress, hindcasts, zone_of
from dispatcher.backtest.noise import error_model
from dispatcher.backtest.rows import uncollected
from dispatcher.backtest.scenario import Foresight, Scenario, SignalTable, SimRegion, TraceJob
from dispatcher.backtest.signals import Tables, check_covered, covered, extended, gaps
from dispatcher.backtest.signals import read as read_signals
from dispatcher.errors import BadInput
from policies.durations import parse_duration
from policies.sentences import kw
from policies.world import CapPoint, Pausable, Settings
from signals.forecasting.model import MAX_DAYS

T = TypeVar("T")
FORECASTS = ("perfect", "as-of", "noisy")
#: GAIA's longest wait of either queue, and its time step.
GAIA_WAIT_S, GAIA_STEP_S = 6 * 86400.0, 5.0
#: What a policy that knows only a job's queue is told until jobs of it have ended.
PRIOR_S = {"short": 3600.0, "long": 6 * 3600.0}
PRIOR_OTHER_S = 3600.0
_MOST_DAYS = 3660
#: Signals are laid out beyond the last job's end in steps of this, so that traces of about one length share kept forecasts.
_BEYOND = timedelta(days=28)


@dataclass(frozen=True)
class Options:
    """What ``gridshift backtest`` was asked for. Files may be plain or gzipped CSV; durations are texts such as "6h".

    Mappings by region fall back to their "" entry. ``signals`` are files or "REGION=FILE" for a file without a region column.
    ``max_wait`` is "24h" or "short:6h,long:24h" (jobs under ``queue_boundary`` are short); without it jobs may wait as long as
    the trace says, or for ever. ``forecast`` is "perfect", "as-of" or "noisy"; ``carbon`` is "lca" or "direct". ``settings``
    has what policies go by; its currency becomes that of the signals when ``currency`` is None, its slots those of the signals
    when ``slot_s`` is None. ``tables`` are signals that were read elsewhere (signals.from_store) in place of files.
    """

    jobs: Sequence[Path]
    signals: Sequence[Path | str]
    regions: Sequence[str]
    start: datetime | None = None
    days: float | None = None
    time_unit: str | None = None
    clip: str | None = None
    skip_unknown_lengths: bool = False
    carbon: str = "lca"
    gpus: Mapping[str, float] = field(default_factory=dict)
    max_jobs: Mapping[str, int] = field(default_factory=dict)
    power_limit_w: Mapping[str, float] = field(default_factory=dict)
    pue: Mapping[str, float] = field(default_factory=dict)
    caps: Sequence[CapPoint] = ()
    max_wait: str | None = None
    queue_boundary: str = "2h"
    w_per_gpu: float = 400.0
    w_per_cpu: float = 1.0
    pausable: bool = False
    checkpoint: str = "0s"
    restart: str = "0s"
    forecast: str = "as-of"
    published_prices: bool = False
    zones: Mapping[str, str] = field(default_factory=dict)
    seed: int = 1
    noise: float = 1.0
    serving: Path | None = None
    events: Path | None = None
    currency: str | None = None
    fx: Mapping[str, float] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    slot_s: int | None = None
    plan_s: float = 3600.0
    gaia_compatible: bool = False
    start_index: int = 0
    cache_dir: Path | None = None
    workers: int = 1
    tables: Tables | None = None


def build(options: Options, progress: Progress | None = None) -> Scenario:
    """The scenario. ``progress(what, done, of)`` is told how far long preparations are. Forecasts are kept in ``cache_dir``
    where one is given. Raises BadInput, naming the file, line, column, value and what would be right."""
    said: list[str] = []
    options = _checked(options, said)
    tables = options.tables or read_signals(options.signals, options.regions, carbon=options.carbon)
    said += tables.said
    trace_files = [_read_trace(path, options) for path in options.jobs]
    for trace in trace_files:
        said += trace.said
    start, end = _span(options, tables.by_region, trace_files, said)
    check_covered(tables.by_region, start, end)
    warnings = [word for table in tables.by_region.values() for word in gaps(table, start, end)]
    with uncollected():
        jobs, means = _jobs(options, trace_files, start, end, said)
    if not jobs:
        raise BadInput([("jobs", f"{start.isoformat()} to {end.isoformat()}", "no job arrives in this time")])
    longest = _longest_wait_s(jobs)
    last = max([end, *(job.submitted_at + timedelta(seconds=(job.max_wait_s or 0.0) + job.length_s) for job in jobs)])
    until = end + math.ceil((last - end + timedelta(days=7)) / _BEYOND) * _BEYOND
    known_until = min(covered(table)[1] for table in tables.by_region.values())
    laid = {name: extended(table, until) for name, table in tables.by_region.items()}
    if last > known_until:
        said.append(f"Signals end at {known_until.isoformat()}; for jobs that run on beyond, the last week known is repeated.")
    # decisions are over when the last job has waited and run for a while; what runs for years after that needs no forecast
    decided = min(until, end + math.ceil((timedelta(seconds=longest, days=7) + _BEYOND) / _BEYOND) * _BEYOND)
    if decided < until and options.forecast != "perfect":
        said.append(f"Nothing is forecast from {decided.isoformat()} on, when only jobs that came before still run.")
    foresight = _foresight(options, laid, start, decided, longest, said, progress)
    currency, fx = _money(options, laid, said)
    settings = replace(
        options.settings,
        currency=currency,
        slot_s=options.slot_s or min(table.slot_s for table in laid.values()),
        horizon_s=max(options.settings.horizon_s, int(min(longest, MAX_DAYS * 86400 - 86400)) + 86400),
        default_region=options.settings.default_region or options.regions[0],
    )
    reserved = read_serving(options.serving, options.regions) if options.serving is not None else {}
    events = read_events(options.events, options.regions) if options.events is not None else ()
    regions = tuple(
        SimRegion(
            name=name,
            signals=laid[name],
            gpus=_of(options.gpus, name),
            max_jobs=_of(options.max_jobs, name),
            power_limit_w=_of(options.power_limit_w, name),
            pue=_of(options.pue, name) or 1.0,
            fx=fx[name],
            caps=tuple(options.caps),
            reserved=reserved.get(name, ()),
        )
        for name in options.regions
    )
    _say_rest(options, regions, means, bool(reserved), len(events), said)
    return Scenario(
        start=start,
        end=end,
        jobs=jobs,
        regions=regions,
        foresight=foresight,
        settings=settings,
        events=events,
        step_s=GAIA_STEP_S if options.gaia_compatible else 0.0,
        plan_s=options.plan_s,
        mean_by_queue_s=means,
        means_fixed=options.gaia_compatible,
        jobs_file=", ".join(trace.file for trace in trace_files),
        assumptions=tuple(said),
        warnings=tuple(warnings),
    )


def _of(by_region: Mapping[str, T], name: str) -> T | None:
    return by_region.get(name, by_region.get(""))


def _seconds(what: str, text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise BadInput([(what, text, str(error))]) from error


def _checked(options: Options, said: list[str]) -> Options:
    """The options as they are used, after plain checks; GAIA's rules put in where they were asked for."""
    problems: list[tuple[str, object, str]] = []
    if options.forecast not in FORECASTS:
        problems.append(("forecast", options.forecast, "must be one of " + ", ".join(FORECASTS)))
    if not options.jobs:
        problems.append(("jobs", "", "name at least one CSV file"))
    if options.start is not None and options.start.tzinfo is None:
        problems.append(("start", options.start.isoformat(), "needs its UTC offset, such as Z"))
    elif options.start is not None and not 1970 < options.start.year < 2200:
        problems.append(("start", options.start.isoformat(), "must be a time of the signals"))
    if options.days is not None and not 0 < options.days <= _MOST_DAYS:
        problems.append(("days", options.days, f"must be more than 0 and at most {_MOST_DAYS}"))
    if not 0 <= options.start_index <= 24 * _MOST_DAYS:
        problems.append(("start index", options.start_index, "must be hours of the signals, 0 or more"))
    if not (math.isfinite(options.plan_s) and options.plan_s > 0):
        problems.append(("plan period", options.plan_s, "must be more than 0 seconds"))
    for what, value in (("W per GPU", options.w_per_gpu), ("W per CPU", options.w_per_cpu), ("noise", options.noise)):
        if not (math.isfinite(value) and value >= 0):
            problems.append((what, value, "must be 0 or more"))
    by_region: list[tuple[str, Mapping[str, float]]] = [
        ("GPUs", options.gpus),
        ("max jobs", options.max_jobs),
        ("power limit", options.power_limit_w),
    ]
    for what, values in [*by_region, ("PUE", options.pue), ("time zone", dict.fromkeys(options.zones, 1.0))]:
        for name, number in values.items():
            if name and name not in options.regions:
                problems.append((f"{what} of {name}", number, "is none of the regions " + ", ".join(options.regions)))
            least = 1.0 if what == "PUE" else 0.0
            if not (math.isfinite(number) and number >= least):
                problems.append((f"{what} of {name or 'all regions'}", number, f"must be {least:g} or more"))
    if problems:
        raise BadInput(problems)
    if not options.gaia_compatible:
        return options
    if options.gpus or options.max_jobs or options.power_limit_w or options.serving or options.events:
        raise BadInput(
            [("gaia compatible", "limits", "GAIA's rules have no capacity limit: leave out GPUs, limits and events")]
        )
    said.append(
        "GAIA's rules: 1 W a CPU, steps of 5 s, two queues divided at 2 h whose mean lengths over the whole trace are known "
        "(a look-ahead), hourly carbon known perfectly, free suspension, no capacity limit, PUE 1, no time to launch, no slack."
    )
    return replace(
        options,
        w_per_cpu=1.0,
        queue_boundary="2h",
        max_wait=options.max_wait or f"{GAIA_WAIT_S:g}",
        pausable=True,
        checkpoint="0s",
        restart="0s",
        forecast="perfect",
        pue={},
        settings=replace(
            options.settings, launch_s=0.0, runtime_slack=0.0, min_chunk_s=0.0, deadline_margin_s=0.0, checkpoint_retry_s=0.0
        ),
    )


def _read_trace(path: Path, options: Options) -> traces.Trace:
    clip_s = None if options.clip is None else _seconds("clip", options.clip)
    return traces.read(path, time_unit=options.time_unit, clip_s=clip_s, skip_unknown=options.skip_unknown_lengths)


def _span(
    options: Options, tables: Mapping[str, SignalTable], files: Sequence[traces.Trace], said: list[str]
) -> tuple[datetime, datetime]:
    """From when to when, where that is not given: from the trace's first job and its signals."""
    first = max(covered(table)[0] for table in tables.values())
    last = min(covered(table)[1] for table in tables.values())
    origins = [(trace.origin, float(trace.arrival_s[-1])) for trace in files if trace.origin is not None]
    longest_s = max([float(trace.arrival_s[-1]) for trace in files if trace.origin is None], default=0.0)
    # one microsecond more than the last arrival, as the end is not part of it
    span = timedelta(days=options.days) if options.days is not None else timedelta(days=math.ceil((longest_s + 1e-6) / 86400))
    start = options.start.astimezone(UTC) if options.start is not None else None
    if start is None and options.gaia_compatible:
        start = min(table.start for table in tables.values()) + timedelta(hours=options.start_index)
    if start is None and origins:
        start = min(origin for origin, _ in origins).replace(minute=0, second=0, microsecond=0)
    elif start is None:
        # as much history as there is for the forecasts to learn from
        start = max(first, last - span) if options.forecast != "perfect" else first
        said.append(f"The trace has no calendar; its start was put at {start.isoformat()}.")
    if start is None:
        raise AssertionError("a start was chosen above")
    if options.days is None and origins:
        reach = max(origin + timedelta(seconds=seconds, microseconds=1) for origin, seconds in origins)
        span = max(span, timedelta(days=max(math.ceil((reach - start) / timedelta(days=1)), 1)))
    return start, start + span


def _jobs(
    options: Options, files: Sequence[traces.Trace], start: datetime, end: datetime, said: list[str]
) -> tuple[tuple[TraceJob, ...], dict[str, float]]:
    """The jobs that arrive in ``[start, end)`` in order, and what is told of run times by queue."""
    waits = traces.waits_of(options.max_wait)
    boundary_s = _seconds("queue boundary", options.queue_boundary)
    checkpoint_s, restart_s = _seconds("checkpoint", options.checkpoint), _seconds("restart", options.restart)
    shared = _Shared(
        waits,
        boundary_s,
        Pausable.CHECKPOINT if options.pausable else Pausable.NO,
        checkpoint_s,
        restart_s,
        options.w_per_gpu,
        options.w_per_cpu,
        frozenset(options.regions),
    )
    jobs: list[TraceJob] = []
    taken: set[str] = set()
    lengths: dict[str, list[float]] = {}
    for trace in files:
        origin = trace.origin or start
        queues = _queues(trace, boundary_s)
        for queue, length_s in zip(queues, trace.length_s.tolist(), strict=True):
            lengths.setdefault(queue, []).append(length_s)
        low, high = ((at - origin).total_seconds() for at in (start, end))
        left, right = np.searchsorted(trace.arrival_s, [low, high], side="left").tolist()
        if right - left < len(trace):
            said.append(
                f"{trace.file}: {len(trace) - (right - left)} of {len(trace)} jobs arrive outside of {start.isoformat()} to "
                f"{end.isoformat()} and are left out."
            )
        made = _made(trace, origin, queues, range(left, right), shared)
        if len(files) > 1 and not taken.isdisjoint(job.id for job in made):
            made = [replace(job, id=f"{trace.file}:{job.id}") for job in made]
        taken.update(job.id for job in made)
        jobs += made
    if len(taken) != len(jobs):
        raise BadInput([("jobs", ", ".join(trace.file for trace in files), "the same job twice; name each file once")])
    if len(files) > 1:
        jobs.sort(key=lambda job: job.submitted_at)
    _say_jobs(options, files, waits, jobs, said)
    if options.gaia_compatible:
        return tuple(jobs), {queue: float(np.mean(each)) for queue, each in lengths.items()}
    return tuple(jobs), {queue: PRIOR_S.get(queue, PRIOR_OTHER_S) for queue in lengths}


@dataclass(frozen=True)
class _Shared:
    """What the options say of every job."""

    waits: Mapping[str, float]
    boundary_s: float
    pausable: Pausable
    checkpoint_s: float
    restart_s: float
    w_per_gpu: float
    w_per_cpu: float
    regions: frozenset[str]


def _queues(trace: traces.Trace, boundary_s: float) -> list[str]:
    given = trace.texts.get("queue")
    short = (trace.length_s < boundary_s).tolist()
    sized = ["short" if each else "long" for each in short]
    return sized if given is None else [name or other for name, other in zip(given, sized, strict=True)]


def _made(trace: traces.Trace, origin: datetime, queues: Sequence[str], rows: range, shared: _Shared) -> list[TraceJob]:
    """Rows of a trace as jobs."""
    watts = shared.w_per_cpu if trace.widths == "cpus" else shared.w_per_gpu
    wait_of = {queue: shared.waits.get(queue, shared.waits.get("")) for queue in set(queues)}
    part = slice(rows.start, rows.stop)
    micros = np.round(trace.arrival_s[part] * 1e6).astype(np.int64).tolist()
    columns = zip(trace.ids[part], micros, trace.length_s[part].tolist(), trace.gpus[part].tolist(), queues[part], strict=True)
    step = timedelta(microseconds=1)
    if not trace.texts and not trace.numbers:
        return [
            TraceJob(
                name,
                origin + at * step,
                length_s,
                gpus,
                gpus * watts,
                queue,
                wait_of[queue],
                None,
                shared.pausable,
                shared.restart_s,
                shared.checkpoint_s,
            )
            for name, at, length_s, gpus, queue in columns
        ]
    out = []
    problems: list[tuple[str, object, str]] = []
    for row, (name, at, length_s, gpus, queue) in zip(rows, columns, strict=True):
        job = _full(trace, row, TraceJob(name, origin + at * step, length_s, gpus, gpus * watts, queue), shared, wait_of[queue])
        strange = [region for region in job.regions if region not in shared.regions]
        if strange and len(problems) < 20:
            known = ", ".join(sorted(shared.regions))
            problems.append((f"{trace.file}, job {name}, regions", ", ".join(strange), f"are not simulated; there are {known}"))
        out.append(job)
    if problems:
        raise BadInput(problems)
    return out


def _full(trace: traces.Trace, row: int, job: TraceJob, shared: _Shared, wait_s: float | None) -> TraceJob:
    """A job with everything that its row says; what it does not say comes from the options."""

    def number(column: str) -> float | None:
        values = trace.numbers.get(column)
        value = math.nan if values is None else float(values[row])
        return None if math.isnan(value) else value

    def text(column: str) -> str:
        values = trace.texts.get(column)
        return "" if values is None else values[row]

    def moment(column: str) -> datetime | None:
        seconds = number(column)
        return None if seconds is None or trace.origin is None else trace.origin + timedelta(seconds=seconds)

    power_w, own_wait_s = number("power_w"), number("max_wait_s")
    checkpoint_s, restart_s, deadline_at = number("checkpoint_s"), number("restart_s"), moment("deadline_at")
    return replace(
        job,
        power_w=job.power_w if power_w is None else power_w,
        # a job's own deadline or wait comes before its queue's
        max_wait_s=own_wait_s if own_wait_s is not None or deadline_at is not None else wait_s,
        deadline_at=deadline_at,
        pausable=Pausable(text("pausable")) if text("pausable") else shared.pausable,
        restart_s=shared.restart_s if restart_s is None else restart_s,
        checkpoint_s=shared.checkpoint_s if checkpoint_s is None else checkpoint_s,
        declared_s=number("declared_s"),
        earliest_at=moment("earliest_at"),
        regions=tuple(text("regions").split()),
        tier=text("tier") or "flex-0",
        priority=int(number("priority") or 0),
        team=text("team") or None,
        group=text("group") or None,
        data_gb=number("data_gb") or 0.0,
        data_region=text("data_region") or None,
        min_cap=number("min_cap"),
    )


def _longest_wait_s(jobs: Sequence[TraceJob]) -> float:
    """The longest that a job may wait for the right time, as far as it is bounded."""
    longest = 0.0
    for job in jobs:
        if job.max_wait_s is not None and job.max_wait_s > longest:
            longest = job.max_wait_s
        elif job.deadline_at is not None:
            longest = max(longest, (job.deadline_at - job.submitted_at).total_seconds() - job.length_s)
    return longest


def _foresight(
    options: Options,
    tables: Mapping[str, SignalTable],
    start: datetime,
    until: datetime,
    longest_wait_s: float,
    said: list[str],
    progress: Progress | None,
) -> Foresight:
    days = max(DAYS, math.ceil(longest_wait_s / 86400) + 2)
    if options.forecast == "perfect":
        said.append(f"Policies know prices and carbon of the next {days} days perfectly.")
        return Perfect(tables, days=days)
    days = min(days, MAX_DAYS)
    rows = hindcasts(
        tables,
        start,
        until,
        days=days,
        zones=options.zones,
        cache_dir=options.cache_dir,
        workers=options.workers,
        progress=progress,
    )
    for name, table in tables.items():
        history = start - covered(table)[0]
        if history < LEARNED:
            said.append(f"Forecasts of {name} begin with {max(history.days, 0)} days of history; {LEARNED.days} would be used.")
    if options.forecast == "noisy":
        models = {key: error_model(tables[key[0]], key[1], made) for key, made in rows.items()}
        said.append(f"Policies know prices and carbon of the next {days} days with errors drawn from seed {options.seed}.")
        said += [model.sentence(f"{what} of {name}") for (name, what), model in models.items()]
        return Noisy(tables, models, start, until, seed=options.seed, scale=options.noise)
    published: dict[str, str] | None = None
    if options.published_prices:
        published = {name: zone_of(options.zones, name) for name in tables}
    said.append(
        f"Policies know what our forecaster would have said at each hour from the hours before it, {days} days ahead, its "
        "coefficients found anew each week; "
        + (
            "prices of the next day are known from 13:00 local time on."
            if published is not None
            else "prices too are forecast, day-ahead ones that were published by then included."
        )
    )
    return AsOf(tables, rows, published)


def _money(options: Options, tables: Mapping[str, SignalTable], said: list[str]) -> tuple[str, dict[str, float]]:
    """The planning currency, and what one unit of each region's is worth in it."""
    priced = {name: table.currency for name, table in tables.items() if table.price is not None}
    there = sorted(set(priced.values()))
    currency = (options.currency or (there[0] if len(there) == 1 else options.settings.currency)).upper()
    missing = [code for code in there if code != currency and code not in options.fx]
    if missing:
        raise BadInput([("fx", code, f"say what 1 {code} is worth in {currency}") for code in missing])
    bad = [(code, rate) for code, rate in options.fx.items() if not (math.isfinite(rate) and rate > 0)]
    if bad:
        raise BadInput([(f"fx of {code}", rate, "must be more than 0") for code, rate in bad])
    for code in there:
        if code != currency:
            said.append(f"1 {code} counts as {options.fx[code]:g} {currency} throughout.")
    rates = {name: 1.0 if priced.get(name, currency) == currency else options.fx[priced[name]] for name in tables}
    return currency, rates


# --- what was assumed -----------------------------------------------------------------------------------------------


def _say_jobs(
    options: Options, files: Sequence[traces.Trace], waits: Mapping[str, float], jobs: Sequence[TraceJob], said: list[str]
) -> None:
    units = {trace.widths for trace in files if "power_w" not in trace.numbers}
    for unit in sorted(units):
        watts = options.w_per_cpu if unit == "cpus" else options.w_per_gpu
        said.append(f"A job draws {watts:g} W for each of its {'CPUs' if unit == 'cpus' else 'GPUs'} while it runs.")
    if "cpus" in {trace.widths for trace in files} and options.gpus:
        said.append("The trace counts CPUs; each takes the place of one GPU.")
    if waits:
        each = ", ".join(f"{name or 'every other'} {seconds / 3600:g} h" for name, seconds in waits.items())
        said.append(f"Jobs may wait beyond their run time, by queue: {each}; short ones are under {options.queue_boundary}.")
    unbounded = sum(job.max_wait_s is None and job.deadline_at is None for job in jobs)
    if unbounded:
        said.append(f"{unbounded} jobs have neither a longest wait nor a deadline and can miss none.")
    if options.pausable:
        said.append(f"Jobs may be paused; a checkpoint takes {options.checkpoint}, going on {options.restart} of extra run.")
    unknown = sum(job.declared_s is None for job in jobs)
    if unknown:
        said.append(f"For {unknown} jobs the owner's run time is taken to be the true one, for policies that may know it.")


def _say_rest(
    options: Options,
    regions: Sequence[SimRegion],
    means: Mapping[str, float],
    serving: bool,
    events: int,
    said: list[str],
) -> None:
    for region in regions:
        limits = [
            "no GPU limit" if region.gpus is None else f"{region.gpus:g} GPUs",
            *([] if region.power_limit_w is None else [kw(region.power_limit_w, exact=True)]),
            *([] if region.max_jobs is None else [f"{region.max_jobs} jobs at once"]),
        ]
        said.append(f"{region.name}: {', '.join(limits)}, PUE {region.pue:g}.")
    if any(region.signals.carbon is not None and region.signals.source == "file" for region in regions):
        kind = "life-cycle" if options.carbon == "lca" else "direct"
        said.append(f"Carbon intensities are {kind} averages.")
    if serving:
        said.append("GPUs and power kept for serving are left alone by batch and do not count in any total.")
    if events:
        said.append(f"{events} grid events limit power.")
    if not options.gaia_compatible:
        each = ", ".join(f"{queue} {seconds / 3600:g} h" for queue, seconds in sorted(means.items()))
        said.append(f"A policy that knows only a job's queue is told its mean run time so far, before any ended {each}.")
    said.append("A job draws the same power all the time it runs; nothing is drawn by idle GPUs.")
