"""The Fleet page's parts: every GPU with its job, draw, limit and state, and what was drawn lately.

Each turns answers of the control plane into HTML or into a chart; it asks nobody anything. What is unknown is called unknown,
and what is simulated is called so wherever it stands.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

import altair as alt
import pandas as pd

from ui.words import UNKNOWN, Json, away_text, bar, box, clock_text, number_text, power_text, table, time_of

#: Whose the energy was: title, colour.
LINES = (("job_wh", "jobs", "#0072B2"), ("unattributed_wh", "unattributed", "#CC79A7"), ("idle_wh", "idle GPUs", "#E69F00"))
_STATES = {"execution_idle": "idle, held by a job", "deep_idle": "idle", "lost": "LOST", "unknown": UNKNOWN}
_WRONG_CAPS = frozenset({"setting", "drifted", "restoring", "failed", "unable"})
#: GPUs shown at most; a page of more takes long to draw, and nobody reads it.
MOST_GPUS = 256
_CHART_HEIGHT = 150
SIMULATED = '<span class="gs-badge gs-replay">SIMULATED</span>'


def tabs(page: str) -> str:
    """Links between the pages, the present one in bold."""
    pages = (("", "Jobs and plan"), ("events", "Demand response"), ("fleet", "Fleet"))
    links = [f"<b>{title}</b>" if name == page else f'<a href="?page={name}">{title}</a>' for name, title in pages]
    return f'<div class="gs gs-counts" role="navigation">{" · ".join(links)}</div>'


def summary(fleet: Json) -> str:
    """What all GPUs draw together, and what is unknown in that."""
    draw: Json = fleet.get("draw") or {}
    pieces = [f"<b>{_known(draw)}</b> at the GPUs, without PUE"]
    pieces += (
        [f'<span class="gs-red">{draw["unknown_gpus"]} of {draw["gpus"]} GPUs unknown</span>']
        if draw.get("unknown_gpus")
        else []
    )
    pieces += [f"{draw['gpus']} GPUs"] if draw.get("gpus") and not draw.get("unknown_gpus") else []
    pieces += [f"{SIMULATED} GPUs of a simulated driver: no real power"] if draw.get("simulated") else []
    return f'<div class="gs gs-head"><span class="gs-name">Fleet</span><span>{"</span><span>".join(pieces)}</span></div>'


def _known(draw: Json) -> str:
    if draw.get("known_w") is None:
        return UNKNOWN
    return power_text(draw["known_w"]) + (" known" if draw.get("unknown_gpus") else "")


def nothing() -> str:
    """What to do where no agent tells of any GPU."""
    return box(
        "warn",
        "<b>No agent tells of any GPU.</b> gridshift starts its power agents in each region where Ray has GPUs; on a node"
        " without Ray run <code>gridshift agent</code>. Until then energy and power are modelled.",
    )


def regions(fleet: Json, now: datetime | None, wanted: str = "") -> str:
    """A table of GPUs a region, by branch and node; with ``wanted`` only nodes whose name, branch, region or jobs hold that
    text. The sums are always those of all."""
    left, parts = MOST_GPUS, []
    for region in fleet.get("regions") or ():
        text, shown = _region(region, now, wanted.strip().lower(), left)
        left -= shown
        parts.append(text)
    return "".join(parts)


def _region(region: Json, now: datetime | None, wanted: str, most: int) -> tuple[str, int]:
    draw: Json = region["draw"]
    title = f"<div class='gs'><h4>{escape(str(region['name']))} · {_sum(draw)}</h4></div>"
    if not draw.get("gpus"):
        return title + '<div class="gs gs-dim">no agent tells of any GPU here</div>', 0
    rows: list[Sequence[str]] = []
    gpus = left_out = 0
    for branch in region.get("branches") or ():
        place = f"{region['name']} {branch.get('name') or ''}"
        nodes = [node for node in branch.get("nodes") or () if _holds(node, place, wanted)]
        if branch.get("name") is not None and (nodes or not wanted):
            limit = branch.get("power_limit_w")
            told = f"limit {power_text(limit)} at its meter" if limit else ""
            rows.append(_heading(f"branch {branch['name']}", branch["draw"], told))
        for node in nodes:
            if gpus + len(node["gpus"]) > most:
                left_out += len(node["gpus"])
                continue
            gpus += len(node["gpus"])
            rows.append(_node(node, now))
            rows += [_gpu(gpu, node.get("leases") or (), now) for gpu in node["gpus"]]
    more = f'<div class="gs gs-dim">and {left_out:,} more GPUs: narrow by node, branch, region or job</div>' if left_out else ""
    if not rows:
        return title + '<div class="gs gs-dim">no node here holds that text</div>', 0
    head = [("GPU", ""), ("Job", ""), ("Draw", "gs-num"), ("Limit", "gs-num"), ("Temp.", "gs-num"), ("Busy", "gs-num")]
    return title + table([*head, ("State", ""), ("Note", "")], rows) + more, gpus


def _holds(node: Json, place: str, wanted: str) -> bool:
    jobs = " ".join(job for gpu in node.get("gpus") or () for job in gpu.get("jobs") or ())
    return wanted in f"{place} {node['hostname']} {node['node_id']} {jobs}".lower()


def _sum(draw: Json) -> str:
    text = escape(_known(draw))
    if draw.get("unknown_gpus"):
        text += f' <span class="gs-red">{draw["unknown_gpus"]} of {draw["gpus"]} GPUs unknown</span>'
    return text + (f" {SIMULATED}" if draw.get("simulated") else "")


def _heading(name: str, draw: Json, note: str) -> Sequence[str]:
    return (f"<b>{escape(name)}</b>", "", f"<b>{escape(_known(draw))}</b>", "", "", "", "", _unknown(draw) + escape(note))


def _unknown(draw: Json) -> str:
    return f"{draw['unknown_gpus']} of {draw['gpus']} GPUs unknown. " if draw.get("unknown_gpus") else ""


def _node(node: Json, now: datetime | None) -> Sequence[str]:
    seen = time_of(node.get("last_seen_at"))
    away = f" ({away_text(seen, now)})" if seen is not None and now is not None else ""
    notes = (
        [f'<span class="gs-red">SILENT</span> since {clock_text(seen, now)} UTC{away}: its draw is unknown']
        if node["silent"]
        else []
    )
    if not node["silent"] and not node.get("can_cap"):
        notes.append(escape(f"cannot cap: {node.get('why_not') or 'it has no right to'}"))
    notes += [escape(f"frozen here: {one['job_id']}") for one in node.get("frozen") or ()]
    alarms = [escape(str(one["sentence"])) for one in node.get("alarms") or ()]
    notes += [f'<span class="gs-red">{one}</span>' for one in alarms if f"cannot cap: {one}" not in notes]
    name = f"{escape(str(node['hostname']))}{' ' + SIMULATED if node.get('simulated') else ''}"
    return (f"<b>{name}</b>", "", escape(_known(node["draw"])), "", "", "", "", "<br>".join(notes))


def _gpu(gpu: Json, leases: Sequence[Json], now: datetime | None) -> Sequence[str]:
    power, limit, state = gpu.get("power_w"), gpu.get("enforced_w"), str(gpu["state"])
    share = None if power is None or not limit else float(power) / float(limit)
    name = f"{gpu['index']} · {gpu['name']}"
    shown = _STATES.get(state, state)
    mark = f'<span class="gs-red">{escape(shown)}</span>' if state in ("lost", "unknown") else escape(shown)
    return (
        f'<span class="gs-keep" title="{escape(str(gpu["uuid"]), quote=True)}">{escape(name)}</span>',
        f'<span class="gs-id">{escape(UNKNOWN if gpu.get("jobs") is None else ", ".join(gpu["jobs"]))}</span>',
        f"{power_text(power)}{bar(share)}",
        power_text(limit) if limit is not None else "",
        number_text(gpu.get("temperature_c"), "°C", 0) if gpu.get("temperature_c") is not None else "",
        f"{float(gpu['sm_util']):.0%}" if gpu.get("sm_util") is not None else "",
        mark,
        "<br>".join(_notes(gpu, leases, now)),
    )


def _notes(gpu: Json, leases: Sequence[Json], now: datetime | None) -> list[str]:
    """What holds a GPU back, and what of its limit is not as it should be."""
    cap: Mapping[str, Any] = gpu.get("cap") or {}
    limit, default = gpu.get("enforced_w"), gpu.get("default_w")
    notes = []
    if limit is not None and default and limit < default - 0.5:
        notes.append(f"capped to {limit / default:.0%} of {power_text(default)}{_why(gpu, leases, now)}")
    if gpu.get("throttle"):
        notes.append(escape("throttled: " + ", ".join(str(one).replace("_", " ") for one in gpu["throttle"])))
    if cap.get("state") in _WRONG_CAPS:
        told = escape(f"cap {cap['state']}" + (f": {cap['detail']}" if cap.get("detail") else ""))
        notes.append(f'<span class="gs-red">{told}</span>')
    notes += ["MIG: one draw for all its parts"] if gpu.get("mig") else []
    return notes


def _why(gpu: Json, leases: Sequence[Json], now: datetime | None) -> str:
    """The reason of the lease that is in force, the lowest, and the end of one that nobody renews."""
    lowest = min((one for one in leases if one["uuid"] == gpu["uuid"]), key=lambda one: float(one["limit_w"]), default=None)
    if lowest is None:
        return ""
    ends = time_of(lowest.get("ends_at"))
    until = f", until {clock_text(ends, now) + ' UTC' if ends else 'released'}" if lowest.get("kind") == "event" else ""
    return escape(f": {lowest.get('reason') or lowest['lease_id']}{until}")


# --- what was drawn -------------------------------------------------------------------------------------------------


def energy_frame(answer: Json) -> pd.DataFrame:
    """What was measured by interval and line, as rectangles: ``low`` to ``high`` kW over ``at`` to ``until``, one line on the
    other. An interval in which nothing was measured has none."""
    rows: list[dict[str, Any]] = []
    for one in answer.get("intervals") or ():
        start, end = time_of(one.get("start")), time_of(one.get("end"))
        if one.get("energy_wh") is None or start is None or end is None:
            continue
        hours, low = (end - start).total_seconds() / 3600.0, 0.0
        for name, title, _ in LINES:
            kw = float(one.get(name) or 0.0) / hours / 1000.0
            rows.append({"at": start, "until": end, "line": title, "kw": kw, "low": low, "high": low + kw})
            low += kw
    frame = pd.DataFrame(rows, columns=["at", "until", "line", "kw", "low", "high"])
    for column in ("at", "until"):
        frame[column] = pd.to_datetime(frame[column], utc=True)
    return frame


def energy_chart(answer: Json) -> Any:
    """What the measured GPUs drew, by whose it was; gaps stay gaps. None where nothing was measured."""
    frame = energy_frame(answer)
    start, end = time_of(answer.get("start")), time_of(answer.get("end"))
    if frame.empty or start is None or end is None:
        return None
    titles, colours = [title for _, title, _ in LINES], [colour for _, _, colour in LINES]
    domain = [start.isoformat(), end.isoformat()]
    axis = alt.Axis(format="%H:%M", tickCount=12, title=None, grid=True, labelOverlap=True, labelFlush=True)
    tips = [
        alt.Tooltip("line:N", title="for"),
        alt.Tooltip("at:T", title="from (UTC)", format="%H:%M", timeUnit="utcyearmonthdatehoursminutes"),
        alt.Tooltip("kw:Q", title="measured, kW", format=".3f"),
    ]
    return (
        alt.Chart(frame, height=_CHART_HEIGHT, padding={"left": 0, "right": 16, "top": 2, "bottom": 2})
        .mark_rect(opacity=0.75)
        .encode(
            x=alt.X("at:T", scale=alt.Scale(type="utc", domain=domain, nice=False), axis=axis),
            x2="until:T",
            y=alt.Y("low:Q", axis=alt.Axis(title="kW", tickCount=4, grid=True)),
            y2="high:Q",
            color=alt.Color("line:N", scale=alt.Scale(domain=titles, range=colours), legend=None),
            tooltip=tips,
        )
        .configure_view(strokeOpacity=0)
    )


def energy_line(answer: Json) -> str:
    """The energy of the time shown in words: what it was for, and where nothing was measured."""
    total: Json = answer.get("total") or {}

    def kwh(name: str) -> str:
        value = total.get(name)
        return UNKNOWN if value is None else number_text(float(value) / 1000.0, "kWh", 3)

    pieces = [f"<b>{kwh('energy_wh')}</b> measured at the GPUs (without PUE)", f"jobs {kwh('job_wh')}"]
    pieces += [f"of it while idle {kwh('execution_idle_wh')}"] if total.get("execution_idle_wh") is not None else []
    pieces += [f"unattributed {kwh('unattributed_wh')}", f"idle GPUs {kwh('idle_wh')}"]
    gaps: Sequence[Json] = answer.get("gaps") or ()
    missing = sum(
        (end - start).total_seconds() for g in gaps if (start := time_of(g["start"])) and (end := time_of(g["end"])) is not None
    )
    pieces += [f"nothing measured for {missing / 60:,.0f} min"] if gaps else []
    mark = f"{SIMULATED} " if answer.get("simulated") else ""
    note = f'<div class="gs gs-dim">{escape(str(answer["note"]))}</div>' if answer.get("note") else ""
    chips = "".join(
        f'<span><span class="gs-chip" style="background:{colour}"></span>{title}</span>' for _, title, colour in LINES
    )
    legend = f'<div class="gs gs-legend">{chips}<span class="gs-dim">kW by minute, time in UTC; a gap is a gap</span></div>'
    return f'<div class="gs">{mark}{" · ".join(pieces)}</div>{note}{legend}'
