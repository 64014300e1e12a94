"""What the command line shows to people: tables and what charts are made of, from the JSON of the HTTP API.

It knows nothing of HTTP, files or the present: everything it shows is in what it is given. Times are shown in UTC.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from dispatcher.client import ENDED
from policies.sentences import amount, counted, kw

Json = Mapping[str, Any]

STATE_STYLES = {
    "queued": "cyan",
    "launching": "blue",
    "running": "green",
    "pausing": "yellow",
    "paused": "yellow",
    "succeeded": "bold green",
    "failed": "bold red",
    "cancelled": "dim",
}
_BLOCKS = "▁▂▃▄▅▆▇█"
#: Columns of sentences: they take several lines where the others would lose theirs.
_FOLDED = ("reason", "message")
_PLAIN_WIDTH = 160  # where no terminal says how wide it is


def console(*, stderr: bool = False) -> Console:
    """A console that is quiet, wide and colourless where its output is not a terminal."""
    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made = Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=_PLAIN_WIDTH, color_system=None)
    return made


def clean(value: object) -> str:
    """Text without control characters: what a job's owner wrote must not steer the reader's terminal."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "�" for c in str(value))


def cell(value: object, style: str = "") -> Text:
    """A table cell; "-" for what is not known."""
    return Text("-" if value is None or value == "" else clean(value), style=style)


def state_cell(state: object) -> Text:
    """A job's state in its colour."""
    return cell(state, STATE_STYLES.get(str(state), ""))


def time_of(text: object) -> datetime | None:
    """An ISO 8601 time of the API, or None."""
    return datetime.fromisoformat(text).astimezone(UTC) if isinstance(text, str) else None


def when(text: object, *, seconds: bool = False) -> str | None:
    """A time of the API as "12-31 23:59" (UTC), or "12-31 23:59:30"."""
    at = time_of(text)
    return (f"{at:%m-%d %H:%M:%S}" if seconds else f"{at:%m-%d %H:%M}") if at else None


def number(value: object, digits: int = 2, unit: str = "") -> str | None:
    """A number with its unit, None when it is not known."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    told = f"{value:,.{digits}f}"
    told = told.removeprefix("-") if not told.strip("-0.,") else told  # nothing has no sign
    return f"{told}{' ' + unit if unit else ''}"


def quantity(value: object, digits: int = 2, unit: str = "") -> str | None:
    """As ``number``, of what may be very little: with as many more digits as say something."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return amount(value, unit, digits)


def span(seconds: object) -> str | None:
    """A duration in its two largest units."""
    if not isinstance(seconds, int | float):
        return None
    rest, parts = round(seconds), []
    for name, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if rest >= size:
            parts.append(f"{rest // size}{name}")
            rest %= size
    return " ".join(parts[:2]) or "0s"


def table(*columns: str, right: Iterable[str] = ()) -> Table:
    """A plain table; the columns named in ``right`` hold numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    numbers = set(right)
    for title in columns:
        made.add_column(
            title, justify="right" if title in numbers else "left", no_wrap=title not in _FOLDED, overflow="ellipsis"
        )
    return made


def facts(pairs: Iterable[tuple[str, object]]) -> Table:
    """Names and values below each other; what is not known is left out."""
    made = Table(box=None, pad_edge=False, show_header=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None and value != "":
            made.add_row(name, value if isinstance(value, Text) else cell(value))
    return made


def jobs_table(jobs: Sequence[Json]) -> RenderableType:
    """The list of jobs."""
    if not jobs:
        return Text("no jobs")
    made = table("id", "state", "region", "planned", "deadline", "reason")
    for job in jobs:
        region = (
            job.get("region") if job["state"] not in {"queued", "paused"} else job.get("planned_region") or job.get("region")
        )
        made.add_row(
            cell(job["id"]),
            state_cell(job["state"]),
            cell(region),
            cell(when(job.get("planned_start_at")) if job["state"] not in ENDED else None),
            cell(when(job.get("deadline_at"))),
            cell(job.get("reason")),
        )
    return made


def job_view(job: Json) -> RenderableType:
    """Everything about one job."""
    money = job.get("cost_currency") or ""
    ended = job["state"] in ENDED
    parts: list[RenderableType] = [
        facts(
            [
                ("job", job["id"]),
                ("state", state_cell(job["state"])),
                ("why", job.get("reason")),
                ("warning", job.get("warning")),
                ("entrypoint", job.get("entrypoint")),
                ("region", job.get("region")),
                ("attempt", job.get("attempt") or None),
                ("planned", None if ended else _planned(job)),
                ("submitted", when(job.get("submitted_at"))),
                ("started", when(job.get("started_at"))),
                ("finished", when(job.get("finished_at"))),
                ("earliest", when(job.get("earliest_at"))),
                ("deadline", when(job.get("deadline_at"))),
                ("deadline met", None if job.get("deadline_met") is None else "yes" if job["deadline_met"] else "no"),
                ("late by", span(job.get("late_s")) if job.get("late_s") else None),
                ("run time", span(job.get("runtime_s"))),
                ("remaining", None if ended else span(job.get("remaining_s"))),
                ("GPUs", f"{job['gpus']:g}" if isinstance(job.get("gpus"), int | float) else None),
                ("mean draw", number(job.get("power_w"), 0, "W")),
                ("power cap", _caps(job.get("caps") or ())),
                ("pausable", job.get("pausable")),
                ("pauses", job.get("pauses") or None),
                ("held by owner", "yes" if job.get("held") else None),
                ("run now", "whatever power costs, as its owner asked" if job.get("run_now") else None),
                ("group", job.get("group")),
                ("team", job.get("team")),
                ("energy", _energy(job)),
                ("cost", quantity(job.get("cost"), 3, money)),
                ("carbon", quantity(job.get("carbon_kg"), 3, "kg CO2e")),
                ("error", job.get("error_type")),
                ("exit code", job.get("exit_code")),
                ("times", "UTC"),
            ]
        )
    ]
    if job.get("attempts"):
        made = table("attempt", "region", "launched", "started", "ended", "outcome", "message")
        for one in job["attempts"]:
            times = [cell(when(one.get(key))) for key in ("launched_at", "started_at", "ended_at")]
            made.add_row(
                cell(one["attempt"]), cell(one["region"]), *times, cell(one.get("outcome") or "lives"), cell(one.get("message"))
            )
        parts += [Text(), made]
    return Group(*parts)


def _caps(caps: Sequence[Json]) -> str | None:
    """Which of its GPUs are slowed, and why; those of one reason together."""
    by_reason: dict[str, list[str]] = {}
    for one in caps:
        which = f"{'SIMULATED ' if one.get('simulated') else ''}GPU {one['gpu']}"
        by_reason.setdefault(one.get("reason") or f"{one['limit_w']:.0f} W", []).append(which)
    told = [f"{', '.join(names[:8])}{' and more' if len(names) > 8 else ''}: {why}" for why, names in by_reason.items()]
    return "; ".join(told) or None


def _energy(job: Json) -> str | None:
    """What a job used, and what that rests on."""
    told = quantity(job.get("energy_kwh"), 3, "kWh")
    return f"{told} ({job.get('energy_basis') or 'basis unknown'}, PUE included)" if told else None


def _planned(job: Json) -> str | None:
    at, region = when(job.get("planned_start_at")), job.get("planned_region")
    return f"{at or '?'} in {region or '?'}" if at or region else None


def job_events_table(events: Sequence[Json]) -> RenderableType:
    """What happened to one job."""
    made = table("time (UTC)", "kind", "state", "attempt", "region", "reason")
    for event in events:
        at, old, new = time_of(event["at"]), event.get("old_state"), event.get("new_state")
        made.add_row(
            cell(f"{at:%m-%d %H:%M:%S}" if at else None),
            cell(event["kind"]),
            Text(f"{clean(old)} > ") + state_cell(new) if old and old != new else state_cell(new),
            cell(event.get("attempt") or None),
            cell(event.get("region")),
            cell(event.get("reason")),
        )
    return made


def regions_table(regions: Sequence[Json]) -> RenderableType:
    """The regions with what they run, draw and pay."""
    made = table(
        "region", "cluster", "GPUs", "jobs", "draw", "limit", "price now", "carbon now", "note", right=["GPUs", "jobs"]
    )
    for region in regions:
        limits = [w for w in (region.get("power_limit_w"), region.get("budget_w")) if w is not None]
        used, total = region.get("gpus_used"), region.get("gpus")
        made.add_row(
            cell(region["name"]),
            cell("up", "green") if region.get("reachable") else cell("unknown", "bold red"),
            cell("/".join("?" if gpus is None else f"{gpus:g}" for gpus in (used, total))),
            cell(region.get("jobs_running")),
            cell(_drawn(region)),
            cell(number(min(limits), 0, "W") if limits else None),
            cell(_signal_now(region.get("price"))),
            cell(_signal_now(region.get("carbon"))),
            cell(region.get("error")),
        )
    return made


def _drawn(region: Json) -> str | None:
    """What a site draws, or what its jobs are stated to, where nobody measures it."""
    if region.get("site_w") is not None:
        return number(region["site_w"], 0, "W")
    stated = number(region.get("draw_w"), 0, "W")
    return f"{stated} stated" if stated else None


def _signal_now(signal: Json | None) -> str | None:
    if not signal:
        return None
    value = number(signal.get("now"), 1)
    return f"{value} {signal.get('unit', '')}" if value else f"unknown ({signal.get('source', '?')})"


def alarm_lines(alarms: Iterable[Json] | None) -> list[str]:
    """What an operator must know, one line each; None says that it is not known."""
    if alarms is None:
        return ["the control plane does not say whether there are alarms"]
    return [f"ALARM since {when(alarm.get('since')) or '?'}Z: {clean(alarm['sentence'])}" for alarm in alarms]


def grid_events_table(events: Sequence[Json]) -> RenderableType:
    """Limits that somebody asked for."""
    if not events:
        return Text("no events")
    made = table("source", "id", "version", "region", "state", "start", "end", "limit", "reason", right=["version", "limit"])
    for event in events:
        marks = (("test", "test"), ("emergency", "emergency"), ("opted out", "opted_out"), ("not in force", "warning"))
        notes = [note for note, key in marks if event.get(key)]
        note = f" ({', '.join(notes)})" if notes else ""
        branch = f"/{event['branch']}" if event.get("branch") else ""
        made.add_row(
            cell(event["source"]),
            cell(event["event_id"]),
            cell(event["version"]),
            cell(f"{event['region']}{branch}"),
            cell(f"{event['state']}{note}"),
            cell(when(event["start"], seconds=True)),
            cell(when(event["end"], seconds=True) or "open"),
            cell(_limit(event["limit_w"])),
            cell(event.get("reason")),
        )
    return made


def _limit(watts: float | None) -> str | None:
    return None if watts is None else kw(watts, exact=True)


def grid_event_view(answer: Json) -> RenderableType:
    """One event, its steps and what happened to it."""
    parts: list[RenderableType] = []
    if (event := answer.get("event")) is not None:
        times, parted = ("start", "end", "received_at"), ("steps", "programme")
        pairs = [(k, when(v, seconds=True) if k in times else v) for k, v in event.items() if k not in parted]
        if (worth := event.get("programme")) is not None:
            pairs += [("worth", worth["sentence"]), *(("outside the terms", told) for told in worth["breaches"])]
        parts.append(facts([(key, "open" if key == "end" and value is None else value) for key, value in pairs]))
        steps = table("start", "end", "limit", "interval", "ramp", "reason", right=["limit", "ramp"])
        for step in event["steps"]:
            steps.add_row(
                cell(when(step["start"], seconds=True)),
                cell(when(step["end"], seconds=True) or "open"),
                cell(_limit(step["limit_w"])),
                cell(step.get("interval_id")),
                cell(number(step.get("ramp_s"), 0, "s")),
                cell(step.get("reason")),
            )
        parts.append(steps)
    for line in answer["history"]:
        parts.append(Text(f"{when(line['at'], seconds=True)}  {clean(line['what'])}: {clean(line['sentence'])}"))
    return Group(*parts)


def savings_view(savings: Json) -> RenderableType:
    """What was saved against running every job at once."""
    totals, money = savings["totals"], savings.get("currency", "")
    made = table("", "with gridshift", "run now", "saved", right=["with gridshift", "run now", "saved"])
    for name, key, unit, digits in (("cost", "cost", money, 2), ("carbon", "carbon_kg", "kg CO2e", 2)):
        got, base = totals.get(key), totals.get(f"{key}_run_now")
        saved = None
        if got is not None and base is not None:
            saved = f"{quantity(base - got, digits, unit)}" + (f" ({_share(base - got, base)})" if base > 0 else "")
        made.add_row(name, cell(quantity(got, digits, unit)), cell(quantity(base, digits, unit)), cell(saved))
    lines: list[RenderableType] = [
        facts(
            [
                ("jobs", totals.get("jobs")),
                ("energy", f"{quantity(totals.get('energy_kwh'), 2, 'kWh') or 'unknown'} ({_basis(savings)})"),
                *_deadlines(totals),
            ]
        ),
        made,
    ]
    return Group(*lines, *(Text(f"note: {clean(caveat)}", style="dim") for caveat in savings.get("caveats") or ()))


def _deadlines(totals: Json) -> list[tuple[str, Any]]:
    """Jobs that were late apart from those that never finished; an older control plane tells only their sum."""
    if "finished_late" not in totals:
        return [("deadlines missed", totals.get("deadline_misses"))]
    failed, cancelled = totals["failed_with_deadline"], totals["cancelled_with_deadline"]
    late = totals["finished_late"]
    return [
        ("finished late", "1 job finished after its deadline" if late == 1 else f"{late} jobs finished after their deadline"),
        (
            "never finished",
            f"{counted(failed, 'job')} with a deadline failed, {cancelled} {'was' if cancelled == 1 else 'were'} cancelled",
        ),
    ]


def _share(part: float, whole: float) -> str:
    told = f"{part / whole:.0%}"
    return "0%" if told == "-0%" else told


def _basis(savings: Json) -> str:
    """What an energy rests on: of several kinds, how many jobs each."""
    counts: Mapping[str, int] = savings.get("energy_bases") or {}
    if len(counts) < 2:
        return str(savings.get("energy_basis"))
    return f"mixed: {', '.join(f'{count} {basis}' for basis, count in counts.items())}"


# --- time as columns -----------------------------------------------------------------------------------------------


class Axis:
    """``width`` columns over ``[start, end)``."""

    def __init__(self, start: datetime, end: datetime, width: int) -> None:
        self.start, self.width = start, max(1, width)
        self.step = (end - start) / self.width

    def column(self, at: datetime) -> int:
        """The column that holds ``at``; below 0 or from ``width`` on when it is off the chart."""
        return math.floor((at - self.start) / self.step)

    def ticks(self) -> Text:
        """A line of hours, and of days where they begin."""
        hour = timedelta(hours=1)
        every = next((h for h in (1, 2, 3, 6, 12, 24) if hour * h / self.step >= 7), 48)
        line = [" "] * self.width
        at = self.start.replace(hour=0, minute=0, second=0, microsecond=0)
        while at < self.start + self.step * self.width:
            column = self.column(at)
            label = f"{at:%m-%d}" if at.hour == 0 else f"{at:%H:%M}"
            if 0 <= column <= self.width - len(label):
                line[column : column + len(label)] = label
            at += hour * every
        return Text("".join(line), style="dim")


def sparkline(values: Sequence[float | None], low: float, high: float) -> str:
    """One block a value between ``low`` and ``high``; a dot for an unknown one, which is not a low one."""
    top = len(_BLOCKS) - 1
    width = high - low or 1.0
    return "".join("·" if v is None else _BLOCKS[max(0, min(top, round(top * (v - low) / width)))] for v in values)


def sampled(signal: Json, axis: Axis) -> list[float | None]:
    """Mean of the known values of a signal in each column; None in a column without any."""
    start, slot = time_of(signal["start"]), timedelta(seconds=signal["slot_s"])
    values: Sequence[float | None] = signal["values"]
    out: list[float | None] = []
    for column in range(axis.width):
        left = axis.start + axis.step * column
        first = math.floor((left - start) / slot) if start else 0
        last = max(first, math.ceil((left + axis.step - start) / slot) - 1) if start else -1
        known = [v for i in range(max(first, 0), min(last + 1, len(values))) if (v := values[i]) is not None]
        out.append(sum(known) / len(known) if known else None)
    return out
