"""The plan as the command line shows it: a chart of all jobs over time by region, and why one job is planned as it is.

It makes everything from the JSON of the HTTP API and knows nothing of HTTP or the present. What differs by colour differs by
character too. Times are shown in UTC.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from rich.console import Group, RenderableType
from rich.text import Text

from dispatcher.render import (
    Axis,
    Json,
    cell,
    clean,
    facts,
    quantity,
    sampled,
    span,
    sparkline,
    state_cell,
    table,
    time_of,
    when,
)
from policies.sentences import FINEST, kw, some

RUNS, PAUSED, WAITS, DEADLINE, NOW = "█", "─", "·", "|", "┊"
#: Shortest time ahead that the chart shows.
_MIN_SPAN = timedelta(hours=6)
_REGION_STYLES = ("green", "cyan", "magenta", "yellow", "blue", "bright_red")
#: Least columns for a chart of time; names and figures beside it give way to it.
_MIN_CHART = 24


def cost(amount: object, currency: str) -> str | None:
    """A sum such as "1.23 EUR"; small ones keep figures that say something. None when it is not known."""
    small = isinstance(amount, int | float) and FINEST <= abs(amount) < 0.1
    return quantity(amount, 4 if small else 2, currency)


# --- the chart ------------------------------------------------------------------------------------------------------------


def gantt(
    plan: Json, jobs: Mapping[str, Json], signals: Sequence[Json], width: int, *, now: datetime | None = None, limit: int = 200
) -> RenderableType:
    """The plan over time on ``width`` columns: by region its signals, and below them a bar a job, ``limit`` jobs in all."""
    made_at, horizon = _known(plan["made_at"]), _known(plan["horizon_end"])
    money = str(plan.get("currency") or "")
    placements = sorted(plan["placements"], key=lambda p: (p["intervals"][0][0] if p["intervals"] else "", p["job_id"]))
    shown, left_out = placements[:limit], placements[limit:]
    axis, label = _columns(shown, jobs, signals, money, made_at, horizon, width, now, plan["slot_s"])

    parts: list[RenderableType] = [Text(clean(_headline(plan, made_at)))]
    parts += [Text(clean(plan["note"]), style="yellow")] if plan.get("note") else []
    parts.append(Text(_LEGEND, style="dim"))
    parts += [_line("", _now_mark(axis, now), "", label)] if now is not None else []
    parts.append(_line("", axis.ticks(), "", label))
    beside = [*(plan.get("running") or ()), *(plan.get("limits") or ())]
    regions = list(
        dict.fromkeys([s["region"] for s in signals] + sorted({p["region"] for p in [*placements, *beside] if p["region"]}))
    )
    for i, region in enumerate(regions):
        own = [p for p in shown if p["region"] == region]
        missing = sum(p["region"] == region for p in left_out)
        parts.append(Text(f"{clean(region)}: {_jobs_told(len(own), missing)}", style="bold"))
        parts += [_signal_line(s, axis, label) for s in signals if s["region"] == region]
        parts += [Text(line) for line in _running_and_limits(plan, region)]
        style = _REGION_STYLES[i % len(_REGION_STYLES)]
        parts += [_job_line(p, jobs.get(p["job_id"], {}), axis, label, style, money, now) for p in own]
    if not placements:
        parts.append(Text("nothing is planned"))
    parts += [Text(f"{clean(peak['region'])}: {clean(peak['sentence'])}") for peak in plan.get("peaks") or ()]
    parts += [Text(line) for line in _kept_free(plan.get("kept_free") or (), axis.start + axis.step * axis.width)]
    parts += [Text(f"{clean(name)}: not placed: {clean(why)}", style="yellow") for name, why in plan["unplaced"].items()]
    return Group(*parts)


#: So many lines are told of what is kept free for serving; a plan reaches over days.
_KEPT_LINES = 8


def _kept_free(kept: Sequence[Json], until: datetime | None = None) -> Iterator[str]:
    """What is kept free for serving, by region, as far as it begins before ``until``; times in UTC."""
    told = [one for one in kept if until is None or (time_of(one["start"]) or until) < until]
    for one in told[:_KEPT_LINES]:
        yield f"{clean(one['region'])}: {clean(one['sentence'])}"
    if len(told) > _KEPT_LINES:
        yield f"and {len(told) - _KEPT_LINES} more that are kept free for serving: --json shows all"


#: So many jobs that run, and limits, are told by region.
_TOLD = 5


def _running_and_limits(plan: Json, region: str) -> Iterator[str]:
    """The jobs that have a place in a region now, in a line, and the limits up to the horizon, a line each."""
    running = [one for one in plan.get("running") or () if one["region"] == region]
    if running:
        told = [f"{clean(one['job_id'])} {_until(one)}" for one in running]
        yield f"  running: {some(told, _TOLD)}"
    limits = [one for one in plan.get("limits") or () if one["region"] == region]
    for one in limits[:_TOLD]:
        where = f" of branch {clean(one['branch'])}" if one.get("branch") else ""
        if one.get("event_id") is None:
            yield f"  limit{where} {kw(one['limit_w'])}: {clean(one['why'])}"
            continue
        end = f"until {when(one['end'])}" if one.get("end") else "without an end yet"
        yield f"  limit{where} {kw(one['limit_w'])} from {when(one['start'])} {end}: event {clean(one['event_id'])}"
    if len(limits) > _TOLD:
        yield f"  and {len(limits) - _TOLD} limits more: --json shows all"


def _until(running: Json) -> str:
    if running["state"] != "running":
        return f"({running['state']})"
    end = running.get("expected_end_at")
    return f"until about {when(end)}" if end else "(has run for longer than expected)"


_LEGEND = f"{RUNS} runs  {PAUSED} paused  {WAITS} waits  {DEADLINE} deadline  {NOW} now; times UTC"


def _jobs_told(count: int, missing: int) -> str:
    told = "no job" if count + missing == 0 else f"{count + missing} job{'s' if count + missing > 1 else ''}"
    return f"{told}, {missing} of them not shown: --limit shows more" if missing else told


def _columns(
    placements: Sequence[Json],
    jobs: Mapping[str, Json],
    signals: Sequence[Json],
    money: str,
    made_at: datetime,
    horizon: datetime,
    width: int,
    now: datetime | None,
    slot_s: float,
) -> tuple[Axis, int]:
    """The axis of time, and the columns that names get."""
    times = [time_of(jobs.get(p["job_id"], {}).get("deadline_at")) for p in placements]
    times += [time_of(end) for p in placements for _, end in p["intervals"]]
    wanted = max([made_at + _MIN_SPAN, *(at for at in times if at is not None)])
    begin = min(made_at, now) if now is not None else made_at
    label = max([9, *(len(clean(p["job_id"])) + 2 for p in placements)])
    tail = max([0, *(len(_range(s)) for s in signals), *(len(_tail(p, money)) for p in placements)])
    label = min(label, max(9, min(width // 4, width - tail - 2 - _MIN_CHART)))
    return Axis(begin, min(horizon, wanted + timedelta(seconds=slot_s)), max(1, width - label - tail - 2)), label


def _now_mark(axis: Axis, now: datetime) -> Text:
    column = max(0, min(axis.width - 1, axis.column(now)))
    told = f"now {now:%H:%M}"
    at = column if column + len(told) + 1 <= axis.width else max(0, column - len(told))
    text = f"{NOW}{told}" if at == column else f"{told}{NOW}"
    return Text((" " * at + text)[: axis.width].ljust(axis.width), style="bold")


def _signal_line(signal: Json, axis: Axis, label: int) -> Text:
    known = [v for v in signal["values"] if v is not None]
    blocks = sparkline(sampled(signal, axis), min(known), max(known)) if known else "·" * axis.width
    return _line(
        f"  {signal['kind']}", Text(blocks, style="cyan" if signal["kind"] == "price" else "magenta"), _range(signal), label
    )


def _job_line(placement: Json, job: Json, axis: Axis, label: int, style: str, money: str, now: datetime | None) -> Text:
    line: list[tuple[str, str]] = [(" ", "")] * axis.width
    present = axis.column(now) if now is not None else 0
    spans = [_cells(axis, _known(begin), _known(end)) for begin, end in placement["intervals"]]
    if spans:
        for column in range(max(0, present), min(axis.width, spans[0][0])):
            line[column] = (WAITS, "dim")
        for column in range(max(0, spans[0][0]), min(axis.width, spans[-1][1])):
            line[column] = (PAUSED, style)
    for first, last in spans:
        for column in range(max(0, first), min(axis.width, last)):
            line[column] = (RUNS, style)
    if now is not None and 0 <= present < axis.width and line[present][0] in (" ", WAITS):
        line[present] = (NOW, "dim")
    deadline = time_of(job.get("deadline_at"))
    late = bool(placement.get("late_s"))
    if deadline is not None and 0 <= (column := axis.column(deadline)) < axis.width:
        line[column] = (DEADLINE, "bold red" if late else "bold")
    chart = Text()
    for character, its_style in line:
        chart.append(character, style=its_style)
    return _line(f"  {placement['job_id']}", chart, _tail(placement, money), label, "bold red" if late else "")


def _cells(axis: Axis, begin: datetime, end: datetime) -> tuple[int, int]:
    """The columns of a run, one at least."""
    first = axis.column(begin)
    return first, max(first + 1, math.ceil((end - axis.start) / axis.step))


def _tail(placement: Json, money: str) -> str:
    """What stands behind a bar: that it is late, else what it costs."""
    return f"late {span(placement['late_s'])}" if placement.get("late_s") else cost(placement.get("cost"), money) or ""


def _line(name: str, chart: Text, tail: str, label: int, tail_style: str = "") -> Text:
    name = "  " + clean(name.strip()) if name.startswith("  ") else clean(name)
    shown = name if len(name) <= label else name[: label - 1] + "…"
    made = Text(f"{shown:<{label}} ", no_wrap=True, overflow="crop") + chart
    made.append(f" {clean(tail)}".rstrip(), style=tail_style)
    made.rstrip()
    return made


def _range(signal: Json) -> str:
    known = [v for v in signal["values"] if v is not None]
    return f"{min(known):.0f}..{max(known):.0f} {signal['unit']}" if known else "unknown"


def _headline(plan: Json, made_at: datetime) -> str:
    money = str(plan.get("currency") or "")
    parts = [f"plan of {made_at:%Y-%m-%d %H:%M} UTC"]
    if (total := cost(plan.get("objective"), money)) is not None:
        parts.append(f"objective {total}")
    if (bound := cost(plan.get("bound"), money)) is not None:
        parts.append(f"proven lower bound {bound}")
    if (gap := _gap(plan, money)) is not None:
        parts.append(gap)
    return ", ".join(parts)


def _gap(plan: Json, money: str) -> str | None:
    """How far the plan may be above the least there is, in money; as a share too where that says something: of next to
    nothing, or of a sum that is smaller than the gap, a share is no measure."""
    objective, bound, share = plan.get("objective"), plan.get("bound"), plan.get("gap")
    if not isinstance(objective, int | float) or not isinstance(bound, int | float):
        return None
    apart = max(0.0, objective - bound)
    if apart < FINEST:
        return "gap 0.0%"
    told = f"at most {cost(apart, money)} above it"
    if not isinstance(share, int | float) or abs(share) > 1.0 or abs(objective) < FINEST:
        return told
    return f"gap {share:.1%} ({told})"


def _known(text: object) -> datetime:
    at = time_of(text)
    if at is None:
        raise ValueError(f"{text!r} is not a time")
    return at


# --- one job ----------------------------------------------------------------------------------------------------------------


def explanation(told: Json) -> RenderableType:
    """Why a job is planned when and where it is, what else was considered, and what each would have cost."""
    job, placement, planning = told["job"], told.get("placement"), told.get("planning") or {}
    money = str(planning.get("currency") or "")
    parts: list[RenderableType] = [Text.assemble(clean(job["id"]), " is ", state_cell(job["state"])), Text(clean(told["why"]))]
    if placement:
        parts += [Text(), _chosen(placement, job, money)]
    if placement and told.get("alternatives"):
        parts += [Text(), _alternatives(told["alternatives"], placement, money)]
    if placement and told.get("alternatives_missing"):
        parts += [Text(), Text(f"what else could have been done is {clean(told['alternatives_missing'])}", style="yellow")]
    if kept := list(_kept_free(told.get("kept_free") or ())):
        parts += [Text(), Text("kept free for serving meanwhile:"), *(Text(f"  {line}") for line in kept)]
    if placement:
        parts += [Text(clean(line), style="dim") for line in _what_costs_hold(placement, planning)]
    return Group(*parts)


def _chosen(placement: Json, job: Json, money: str) -> RenderableType:
    intervals = ", ".join(f"{when(begin)} to {when(end)}" for begin, end in placement["intervals"])
    cap = placement.get("cap")
    return facts(
        [
            ("where", placement["region"]),
            ("GPU type", placement.get("gpu_type")),
            ("power cap", f"{cap:.0%} of the default limit" if isinstance(cap, int | float) and cap < 1 else None),
            ("when (UTC)", intervals),
            ("deadline", when(job.get("deadline_at"))),
            ("late", span(placement["late_s"]) if placement.get("late_s") else None),
            ("cost", cost(placement.get("cost"), money) or "unknown: a price is missing"),
            ("if run now", _against(placement.get("run_now_cost"), placement.get("cost"), money)),
            ("energy", quantity(placement.get("energy_kwh"), 3, "kWh")),
            ("carbon", quantity(placement.get("carbon_kg"), 3, "kg CO2e") or "unknown"),
        ]
    )


def _against(other: object, chosen: object, money: str) -> str | None:
    """What something else would have cost, and by how much that is more."""
    told, difference = cost(other, money), _difference(other, chosen, money)
    return f"{told} ({difference})" if told is not None and difference else told


def _difference(other: object, chosen: object, money: str) -> str:
    """ "1.50 EUR more"; empty when one is not known or nothing lies between them."""
    if not isinstance(other, int | float) or not isinstance(chosen, int | float) or abs(other - chosen) < FINEST:
        return ""
    return f"{cost(abs(other - chosen), money)} {'more' if other > chosen else 'less'}"


def _alternatives(others: Sequence[Json], placement: Json, money: str) -> RenderableType:
    made = table("instead in", "from", "cost", "", "why not", right=["cost"])
    chosen = placement.get("cost")
    for other in others:
        amount = other.get("cost")
        told = str(other["why_not"]).startswith(("costs ", "would save "))  # what lies between the two is in its words already
        made.add_row(
            cell(other["region"]),
            cell(when(other["start_at"])),
            cell(cost(amount, money) or "unknown"),
            Text("" if told else _difference(amount, chosen, money)),
            cell(other["why_not"]),
        )
    made.columns[-1].no_wrap = False
    made.columns[-1].overflow = "fold"
    return made


def _what_costs_hold(placement: Json, planning: Json) -> Iterator[str]:
    """What is in the sums above, in words; nothing when the control plane does not say."""
    if not planning:
        return
    money = planning.get("currency") or ""
    pue = (planning.get("pue") or {}).get(placement["region"])
    parts = ["energy at the expected price"]
    if isinstance(pue, int | float):
        parts[0] += f", PUE {pue:g} included" if pue != 1 else ", PUE 1"
    if (weight := planning.get("price_weight")) not in (None, 1, 1.0):
        parts[0] += f", weighted by {weight:g}"
    price = planning.get("carbon_price")
    parts.append(f"carbon at {price:g} {money}/t" if price else "carbon is not priced")
    yield f"costs are as planned: {'; '.join(parts)}; moving and restarting included"
