"""What ``gridshift fleet`` shows of the GPUs, from the JSON of the HTTP API. What is unknown is a "?", and never a zero."""

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dispatcher.render import Json, cell, clean, number, table, when

_STATES = {
    "active": "green",
    "execution_idle": "yellow",
    "deep_idle": "dim",
    "lost": "bold red",
    "unknown": "bold red",
}
#: How a cap is told that is as it should be, or in nobody's hands.
_QUIET_CAPS = frozenset({"none", "enforced", "unknown"})


def fleet_view(fleet: Json) -> RenderableType:
    """The fleet's sum, and under it every GPU by region, branch and node."""
    parts: list[RenderableType] = [Text(f"GPUs draw {clean(fleet['draw']['sentence'])} (without PUE)", style="bold")]
    if fleet["draw"]["simulated"]:
        parts.append(Text("SIMULATED: GPUs of a simulated driver, no real power", style="bold yellow"))
    if not fleet["draw"]["gpus"]:
        parts.append(
            Text("Power agents tell of GPUs: gridshift starts them in each region, or run 'gridshift agent' on a node.")
        )
        return Group(*parts)
    made = table("GPU", "job", "draw", "limit", "temp", "busy", "state", "note", right=["draw", "limit", "temp", "busy"])
    for column in (made.columns[1], made.columns[-1]):  # long words give way to figures
        column.no_wrap, column.overflow = False, "fold"
    for region in fleet["regions"]:
        _heading(made, f"{region['name']}", region["draw"], "bold")
        for branch in region["branches"]:
            if branch["name"] is not None:
                _heading(made, f"  {branch['name']}", branch["draw"], "bold", branch.get("power_limit_w"))
            for node in branch["nodes"]:
                _node(made, node)
    return Group(*parts, Text(), made)


def _heading(made: Table, name: str, draw: Json, style: str, limit_w: float | None = None) -> None:
    note = clean(draw["sentence"])
    made.add_row(cell(name, style), Text(), _watts(draw["known_w"], style), _limit(limit_w), Text(), Text(), Text(), cell(note))


def _node(made: Table, node: Json) -> None:
    silent = node["silent"]
    notes = [f"SILENT since {when(node['last_seen_at'])} UTC: its draw is unknown"] if silent else []
    notes += [] if node["can_cap"] or silent else [f"cannot cap: {node['why_not'] or 'no right to'}"]
    notes += [f"frozen here: {one['job_id']}" for one in node["frozen"]]
    notes += [one["sentence"] for one in node["alarms"] if f"cannot cap: {one['sentence']}" not in notes]
    draw = _watts(node["draw"]["known_w"], "")
    row = [cell(f"    {node['hostname']}"), Text(), draw, Text(), Text(), Text(), Text()]
    made.add_row(*row, cell("; ".join(notes) or " ", "bold red" if silent or node["alarms"] else ""))
    for gpu in node["gpus"]:
        _gpu(made, gpu, node.get("leases") or ())


def _gpu(made: Table, gpu: Json, leases: Iterable[Json]) -> None:
    state = str(gpu["state"])
    shown = {"execution_idle": "idle, held", "deep_idle": "idle"}.get(state, state)
    made.add_row(
        cell(f"      {gpu['index']} {gpu['name']}" + (" SIMULATED" if _needs_mark(gpu) else "")),
        cell("unknown" if gpu["jobs"] is None else ", ".join(gpu["jobs"])),
        _watts(gpu["power_w"], ""),
        _limit(gpu["enforced_w"]),
        cell(number(gpu["temperature_c"], 0, "°C")),
        cell(None if gpu["sm_util"] is None else f"{gpu['sm_util']:.0%}"),
        cell(shown, _STATES.get(state, "")),
        cell("; ".join(_notes(gpu, leases)) or " "),
    )


def _needs_mark(gpu: Json) -> bool:
    """Whether a simulated GPU does not say so by its name."""
    return bool(gpu["simulated"]) and "simulated" not in str(gpu["name"]).lower()


def _notes(gpu: Json, leases: Iterable[Json]) -> Iterator[str]:
    """What holds a GPU back, and what of its limit is not as it should be."""
    cap = gpu["cap"]
    capped = gpu["enforced_w"] is not None and gpu["default_w"] is not None and gpu["enforced_w"] < gpu["default_w"] - 0.5
    if capped:
        yield f"capped to {gpu['enforced_w'] / gpu['default_w']:.0%}{_why(gpu, leases)}"
    if gpu["throttle"]:
        yield f"throttled: {_words(gpu['throttle'])}"
    if cap["state"] not in _QUIET_CAPS:
        yield f"cap {cap['state']}" + (f": {cap['detail']}" if cap.get("detail") else "")
    if gpu["mig"]:
        yield "MIG: one draw for all its parts"


def _why(gpu: Json, leases: Iterable[Json]) -> str:
    """The reason of the lease that is in force, the lowest, and the end of one that nobody renews."""
    lowest = min((one for one in leases if one["uuid"] == gpu["uuid"]), key=lambda one: float(one["limit_w"]), default=None)
    if lowest is None:
        return ""
    until = f", until {when(lowest['ends_at']) or 'released'}" if lowest["kind"] == "event" else ""
    return f" ({lowest['reason'] or lowest['lease_id']}{until})"


def _words(reasons: Iterable[str]) -> str:
    return ", ".join(reason.replace("_", " ") for reason in reasons)


def _watts(value: float | None, style: str) -> Text:
    return cell(number(value, 0, "W") or "?", style)


def _limit(value: float | None) -> Text:
    return cell(number(value, 0, "W") or " ")
