"""Job traces: what a cluster was asked for, from published files and from our own history, checked row by row.

Three kinds are known by their headers: GAIA's (arrival_time, length, cpus), Gavel's form of Philly's (vc, arrival_s, num_gpus,
duration_s_v100_est, ...) and our own (COLUMNS). It knows nothing of signals or policies. No row is dropped but where asked for,
and then it is said.
"""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dispatcher.backtest.rows import Chunk, Floats, Problems, Table, uncollected
from dispatcher.errors import BadInput
from dispatcher.store import Attempt, Job
from policies.durations import parse_duration
from policies.flexibility import TIERS
from policies.world import JobState, Pausable

GAIA = ("arrival_time", "length", "cpus")
PHILLY = ("vc", "arrival_s", "num_gpus", "duration_s_v100_est")
NEEDED = ("id", "submitted_at", "length_s", "gpus")
#: The columns of our own trace, in the order that ``export`` writes them. Times are ISO 8601 with offset, durations seconds;
#: blank means not given. ``regions`` are separated by blanks.
COLUMNS = (
    *NEEDED,
    "power_w",
    "queue",
    "earliest_at",
    "deadline_at",
    "max_wait_s",
    "declared_s",
    "pausable",
    "checkpoint_s",
    "restart_s",
    "regions",
    "tier",
    "priority",
    "team",
    "group",
    "data_gb",
    "data_region",
    "min_cap",
)
TIME_UNITS_S = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}
#: A trace whose arrivals span more than this many units counts seconds (in hours it would be more than four years), and so does
#: one whose jobs are typically longer than this many units (in hours it would be a fortnight).
_HOURS_SPAN, _HOURS_LENGTH = 40_000.0, 336.0


@dataclass(frozen=True)
class Trace:
    """The jobs of a file, a column each, in order of arrival. ``arrival_s`` counts from ``origin``, which is None where the
    trace has no calendar. ``length_s`` is NaN where it is not known. ``texts`` are further columns, blank where not given;
    ``numbers`` likewise, NaN where not given. ``widths`` is "cpus" or "gpus". ``said`` are sentences for a report."""

    file: str
    kind: str
    origin: datetime | None
    ids: Sequence[str]
    arrival_s: Floats
    length_s: Floats
    gpus: Floats
    widths: str
    texts: Mapping[str, Sequence[str]]
    numbers: Mapping[str, Floats]
    said: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.arrival_s)


def read(path: Path, *, time_unit: str | None = None, clip_s: float | None = None, skip_unknown: bool = False) -> Trace:
    """The trace in a file. ``time_unit`` overrides what is detected in a GAIA trace; ``clip_s`` shortens longer jobs;
    ``skip_unknown`` leaves out jobs without a length, which are refused otherwise. Raises BadInput naming what is wrong."""
    if time_unit is not None and time_unit not in TIME_UNITS_S:
        raise BadInput([("time unit", time_unit, "must be one of " + ", ".join(TIME_UNITS_S))])
    if clip_s is not None and not (math.isfinite(clip_s) and clip_s > 0):
        raise BadInput([("clip", clip_s, "must be a length in seconds, more than 0")])
    problems = Problems()
    with Table(path, problems) as table, uncollected():
        trace = _read(table, problems)
    problems.check()
    if not len(trace):
        raise BadInput([(table.name, "", "has a header but no job")])
    said = [*trace.said]
    if table.blank:
        said.append(f"{table.name}: {table.blank} blank lines are no jobs.")
    if trace.kind == "gaia":
        trace, sentence = _in_seconds(trace, time_unit)
        said.append(sentence)
    elif time_unit not in (None, "seconds"):
        raise BadInput([("time unit", time_unit, f"{table.name} is in seconds by its column names")])
    trace = _settled(trace, said, clip_s, skip_unknown)
    _check_sizes(trace)
    return trace


#: What is beyond these is taken for a slip of the unit; 10 and 100 years, a billion of anything else.
_MOST = {
    "length_s": 3.2e8,
    "arrival_s": 3.2e9,
    "max_wait_s": 3.2e8,
    "declared_s": 3.2e8,
    "checkpoint_s": 3.2e8,
    "restart_s": 3.2e8,
}
_MOST_ELSE = 1e9


def _check_sizes(trace: Trace) -> None:
    """Raise BadInput for numbers that no job has."""
    problems = Problems()
    columns = {"arrival_s": trace.arrival_s, "length_s": trace.length_s, "gpus": trace.gpus, **trace.numbers}
    for column, values in columns.items():
        most = _MOST.get(column, _MOST_ELSE)
        if column in _TIMES:
            continue
        for row in np.flatnonzero(np.abs(values) > most).tolist():
            problems.add(f"{trace.file}, job {trace.ids[row]}, {column}", float(values[row]), f"must be at most {most:g}")
    problems.check()


def _read(table: Table, problems: Problems) -> Trace:
    """The rows, by the kind that the header tells."""
    columns = set(table.header)
    for wanted, reader in ((GAIA, _gaia), (PHILLY, _philly), (NEEDED, _own)):
        if columns >= set(wanted):
            return reader(table, problems)
    known = "; ".join(",".join(each) for each in (GAIA, PHILLY, NEEDED))
    raise BadInput([(f"{table.name} line 1", ",".join(table.header), f"is no job trace that is known; need {known}")])


def _settled(trace: Trace, said: list[str], clip_s: float | None, skip_unknown: bool) -> Trace:
    """In order of arrival, without jobs of unknown length where that is asked for, clipped."""
    name = trace.file
    kept = np.arange(len(trace))
    backwards = int((np.diff(trace.arrival_s) < 0).sum())
    if backwards:
        kept = np.argsort(trace.arrival_s, kind="stable")
        said.append(f"{name}: {backwards} rows were not in order of arrival; sorted.")
    unknown = int(np.isnan(trace.length_s).sum())
    if unknown and not skip_unknown:
        raise BadInput(
            [(f"{name}", unknown, "jobs have no length; leave them out with --skip-unknown-lengths, which the report will say")]
        )
    if unknown:
        kept = kept[~np.isnan(trace.length_s[kept])]
        said.append(f"{name}: {unknown} of {len(trace)} jobs have no length and are left out.")
        if not len(kept):
            raise BadInput([(name, unknown, "jobs, and none has a length")])
    length_s = trace.length_s[kept]
    if clip_s is not None:
        longer = int((length_s > clip_s).sum())
        length_s = np.minimum(length_s, clip_s)
        said.append(f"{name}: {longer} jobs longer than {clip_s / 3600:g} h count as {clip_s / 3600:g} h.")
    nothing = int((length_s == 0).sum())
    if nothing:
        said.append(f"{name}: {nothing} jobs of no length start and end at once.")
    return Trace(
        file=name,
        kind=trace.kind,
        origin=trace.origin,
        ids=_taken(trace.ids, kept),
        arrival_s=trace.arrival_s[kept],
        length_s=length_s,
        gpus=trace.gpus[kept],
        widths=trace.widths,
        texts={column: _taken(values, kept) for column, values in trace.texts.items()},
        numbers={column: values[kept] for column, values in trace.numbers.items()},
        said=tuple(said),
    )


def _taken(values: Sequence[str], kept: NDArray[np.int64]) -> list[str]:
    if len(kept) == len(values) and (not len(kept) or bool((np.diff(kept) == 1).all())):
        return list(values)
    return [values[i] for i in kept.tolist()]


# --- the kinds ------------------------------------------------------------------------------------------------------


def _not_negative(values: Floats) -> NDArray[np.bool_]:
    return values >= 0


def _positive(values: Floats) -> NDArray[np.bool_]:
    return values > 0


def _joined(parts: list[Floats]) -> Floats:
    return np.concatenate(parts) if parts else np.empty(0)


def _gaia(table: Table, problems: Problems) -> Trace:
    arrivals, lengths, cpus = [], [], []
    for chunk in table.chunks():
        arrivals.append(table.numbers(chunk, "arrival_time", wanted="a time of 0 or more", good=_not_negative))
        lengths.append(table.numbers(chunk, "length", wanted="a length of 0 or more", good=_not_negative))
        cpus.append(table.numbers(chunk, "cpus", wanted="a number of CPUs above 0", good=_positive))
    arrival = _joined(arrivals)
    ids = list(map(str, range(1, len(arrival) + 1)))
    return Trace(table.name, "gaia", None, ids, arrival, _joined(lengths), _joined(cpus), "cpus", {}, {}, ())


def _in_seconds(trace: Trace, time_unit: str | None) -> tuple[Trace, str]:
    """A GAIA trace in seconds, and by what it was taken to count before."""
    span = float(trace.arrival_s.max() - trace.arrival_s.min())
    if time_unit is None:
        unit = "seconds" if span > _HOURS_SPAN or float(np.median(trace.length_s)) > _HOURS_LENGTH else "hours"
        how = f"by its span of {span:.6g} {unit}; --time-unit says otherwise"
    else:
        unit, how = time_unit, "as told"
    factor = TIME_UNITS_S[unit]
    scaled = Trace(
        trace.file,
        trace.kind,
        None,
        trace.ids,
        trace.arrival_s * factor,
        trace.length_s * factor,
        trace.gpus,
        trace.widths,
        trace.texts,
        trace.numbers,
        trace.said,
    )
    return scaled, f"{trace.file}: times are taken to be in {unit} ({how})."


def _philly(table: Table, problems: Problems) -> Trace:
    arrivals, lengths, gpus = [], [], []
    clusters: list[str] = []
    for chunk in table.chunks():
        arrivals.append(table.numbers(chunk, "arrival_s", wanted="seconds of 0 or more", good=_not_negative))
        lengths.append(
            table.numbers(
                chunk, "duration_s_v100_est", wanted="seconds of 0 or more, or blank", good=_not_negative, empty=math.nan
            )
        )
        gpus.append(table.numbers(chunk, "num_gpus", wanted="a number of GPUs above 0", good=_positive))
        clusters += chunk.columns["vc"]
    ids = [f"{vc}-{number}" for number, vc in enumerate(clusters, 1)]
    said = (f"{table.name}: each virtual cluster's arrivals count from the same start; lengths are estimates on V100 GPUs.",)
    return Trace(
        table.name,
        "philly",
        None,
        ids,
        _joined(arrivals),
        _joined(lengths),
        _joined(gpus),
        "gpus",
        {"team": clusters},
        {},
        said,
    )


#: Optional columns of numbers: what is wanted, and the test of it.
_NUMBERS: dict[str, tuple[str, Callable[[Floats], NDArray[np.bool_]]]] = {
    "power_w": ("watts of 0 or more, or blank", _not_negative),
    "max_wait_s": ("seconds of 0 or more, or blank", _not_negative),
    "declared_s": ("seconds above 0, or blank", _positive),
    "checkpoint_s": ("seconds of 0 or more, or blank", _not_negative),
    "restart_s": ("seconds of 0 or more, or blank", _not_negative),
    "priority": ("a whole number, or blank", lambda values: values == np.round(values)),
    "data_gb": ("GB of 0 or more, or blank", _not_negative),
    "min_cap": ("a share above 0 and at most 1, or blank", lambda values: (values > 0) & (values <= 1)),
}
_TEXTS = {"pausable": tuple(Pausable), "tier": TIERS, "queue": (), "regions": (), "team": (), "group": (), "data_region": ()}
_TIMES = ("earliest_at", "deadline_at")


def _own(table: Table, problems: Problems) -> Trace:
    strange = [name for name in table.header if name not in COLUMNS]
    if strange:
        raise BadInput(
            [(f"{table.name} line 1", ", ".join(strange), "are no columns of a trace; known are " + ", ".join(COLUMNS))]
        )
    have = set(table.header)
    ids: list[str] = []
    first_line: dict[str, int] = {}
    texts: dict[str, list[str]] = {column: [] for column in _TEXTS if column in have}
    # There without a row too: a file without jobs is told as such by the caller.
    parts: dict[str, list[Floats]] = {"submitted_at": [], "length_s": [], "gpus": []}
    for chunk in table.chunks():
        _note_ids(table, chunk, problems, ids, first_line)
        parts["submitted_at"].append(_moments(table, chunk, "submitted_at", problems, may_be_blank=False))
        parts["length_s"].append(table.numbers(chunk, "length_s", wanted="seconds of 0 or more", good=_not_negative))
        parts["gpus"].append(table.numbers(chunk, "gpus", wanted="a number of GPUs of 0 or more", good=_not_negative))
        for column, (wanted, good) in _NUMBERS.items():
            if column in have:
                parts.setdefault(column, []).append(table.numbers(chunk, column, wanted=wanted, good=good, empty=math.nan))
        for column in _TIMES:
            if column in have:
                parts.setdefault(column, []).append(_moments(table, chunk, column, problems, may_be_blank=True))
        for column, values in texts.items():
            allowed = _TEXTS[column]
            if allowed and not set(chunk.columns[column]) <= {"", *allowed}:
                for line, text in zip(chunk.lines, chunk.columns[column], strict=True):
                    if text and text not in allowed:
                        problems.add(f"{table.name} line {line}, column {column}", text, "must be one of " + ", ".join(allowed))
            values += chunk.columns[column]
    joined = {column: _joined(each) for column, each in parts.items()}
    problems.check()
    origin_s = float(joined["submitted_at"].min()) if ids else 0.0
    origin = datetime.fromtimestamp(origin_s, UTC)
    for column in ("submitted_at", *_TIMES):
        if column in joined:
            joined[column] = joined[column] - origin_s
    arrival_s, length_s, gpus = joined.pop("submitted_at"), joined.pop("length_s"), joined.pop("gpus")
    return Trace(table.name, "own", origin, ids, arrival_s, length_s, gpus, "gpus", texts, joined, ())


def _note_ids(table: Table, chunk: Chunk, problems: Problems, ids: list[str], first_line: dict[str, int]) -> None:
    for line, text in zip(chunk.lines, chunk.columns["id"], strict=True):
        if not text.strip():
            problems.add(f"{table.name} line {line}, column id", text, "must not be blank")
        elif first_line.setdefault(text, line) != line:
            problems.add(f"{table.name} line {line}, column id", text, f"stands in line {first_line[text]} too; each job once")
        ids.append(text)


def _moments(table: Table, chunk: Chunk, column: str, problems: Problems, *, may_be_blank: bool) -> Floats:
    """A column of ISO times with offset, as seconds since the epoch."""
    out = np.empty(len(chunk.lines))
    for index, text in enumerate(chunk.columns[column]):
        seconds = math.nan
        if not may_be_blank or text.strip():
            remedy = "must be a time such as 2026-01-31T12:00Z"
            try:
                at = datetime.fromisoformat(text.strip())
                if at.tzinfo is None:
                    remedy = f"has no UTC offset; write {text.strip()[:40]}Z for UTC"
                elif 1970 < at.year < 9000:
                    seconds = at.timestamp()
            except ValueError:
                pass
            if math.isnan(seconds):
                problems.add(f"{table.name} line {chunk.lines[index]}, column {column}", text, remedy)
        out[index] = seconds
    return out


# --- waits ----------------------------------------------------------------------------------------------------------


def waits_of(text: str | None) -> dict[str, float]:
    """Longest waits in seconds by queue, of "24h" (every queue, under "") or "short:6h,long:24h". Raises BadInput."""
    out: dict[str, float] = {}
    for part in (text or "").split(","):
        if not part.strip():
            continue
        queue, colon, given = part.rpartition(":")
        try:
            seconds = parse_duration(given)
        except ValueError as error:
            raise BadInput([("max wait", part.strip(), str(error))]) from error
        if (colon and not queue.strip()) or queue.strip() in out:
            raise BadInput([("max wait", part.strip(), "name each queue once, such as short:6h,long:24h")])
        out[queue.strip()] = seconds
    return out


# --- our own history ------------------------------------------------------------------------------------------------


_ENDS = {JobState.FAILED: "failed", JobState.CANCELLED: "were cancelled"}


def export(
    jobs: Iterable[Job], attempts: Callable[[str], Sequence[Attempt]], pue: Mapping[str, float] | None = None
) -> tuple[str, tuple[str, ...]]:
    """A trace of jobs that succeeded, as CSV text, and sentences on those that are left out.

    A job's length is what its last run took (less what a resumed one lost on restarting) and the progress saved before it: what
    was lost on the way is no part of the work. ``attempts`` gives a job's attempts in order. Power is before PUE: the mean over
    its runs, from its energy at the meter and each region's ``pue``, where both are known; else what its owner stated.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    left: dict[str, int] = {}
    for job in sorted(jobs, key=lambda one: (one.submitted_at, one.id)):
        if job.state is not JobState.SUCCEEDED:
            why = _ENDS.get(job.state, "had not ended")
            left[why] = left.get(why, 0) + 1
            continue
        runs = [one for one in attempts(job.id) if one.started_at is not None and one.ended_at is not None]
        if not runs or runs[-1].outcome != "succeeded":
            left["have no run on record"] = left.get("have no run on record", 0) + 1
            continue
        writer.writerow(_row(job, runs, pue or {}))
    return out.getvalue(), tuple(
        f"{count} jobs {why} and are left out: their length is not known." for why, count in left.items()
    )


def _row(job: Job, runs: Sequence[Attempt], pue: Mapping[str, float]) -> list[str]:
    flex = job.flex
    spans_s = [(one.ended_at - one.started_at).total_seconds() for one in runs if one.ended_at and one.started_at]
    again_s = flex.restart_s if job.pauses else 0.0
    length_s = max(0.0, spans_s[-1] - again_s) + job.progress_s
    power_w = flex.power_w
    if job.energy_kwh is not None and sum(spans_s) > 0 and all(one.region in pue for one in runs):
        power_w = job.energy_kwh * 3.6e6 / sum(s * pue[one.region] for s, one in zip(spans_s, runs, strict=True))
    given: dict[str, object] = {
        "id": job.id,
        "submitted_at": _iso(job.submitted_at),
        "length_s": _plain(length_s),
        "gpus": _plain(flex.gpus),
        "power_w": _plain(power_w),
        "earliest_at": _iso(flex.earliest_at),
        "deadline_at": _iso(flex.deadline_at),
        "declared_s": _plain(flex.runtime_s) if flex.runtime_given else "",
        # a job that is not flexible starts at once
        "max_wait_s": "" if flex.flexible else "0",
        "pausable": flex.pausable.value,
        "checkpoint_s": _plain(flex.checkpoint_s),
        "restart_s": _plain(flex.restart_s),
        "regions": " ".join(flex.regions),
        "tier": flex.tier,
        "priority": flex.priority,
        "team": flex.team or "",
        "group": flex.group or "",
        "data_gb": _plain(flex.data_gb),
        "data_region": flex.data_region or "",
        "min_cap": "" if flex.min_cap is None else _plain(flex.min_cap),
    }
    return [str(given.get(column, "")) for column in COLUMNS]


def _plain(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")


def _iso(at: datetime | None) -> str:
    return "" if at is None else at.isoformat().replace("+00:00", "Z")


def after(origin: datetime, seconds: float) -> datetime:
    """The moment so many seconds after ``origin``, to the microsecond."""
    return origin + timedelta(seconds=seconds)
