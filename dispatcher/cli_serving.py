"""``gridshift serving``: how interactive serving stands, and what batch gives for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dispatcher.cli_common import over_http, show

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dispatcher.client import Client

#: So many stretches of what is kept free for a serving are shown.
_KEPT = 4


@click.command()
@click.argument("region", required=False)
@click.argument("name", required=False)
@click.option("--report", is_flag=True, help="Tell what was kept of each promise without batch beside it and with it.")
@click.option("--start", help="Report from then on (ISO 8601 with offset); default: a week before the end.")
@click.option("--end", help="Report up to then; default: now.")
@over_http
def serving(
    client: Client, region: str | None, name: str | None, report: bool, start: str | None, end: str | None, as_json: bool
) -> None:
    """Show each declared serving, its promises, what is kept free for it, and how far batch steps aside; with REGION NAME also
    what happened."""
    if (region is None) != (name is None):
        raise click.UsageError("give REGION and NAME, or neither")
    if report:
        given = {"region": region, "name": name, "start": start, "end": end}
        told = client.get_json("/v1/serving/report", {key: value for key, value in given.items() if value is not None})
        show(told, as_json, lambda: _report(told))
        return
    if start or end:
        raise click.UsageError(f"{'--start' if start else '--end'} is for --report; add it")
    answer = client.get_json("/v1/serving", {"region": region, "name": name} if region and name else None)
    if region and not answer["serving"]:
        raise click.UsageError(f"{region} has no serving {name!r}; 'gridshift serving' lists all")

    def view() -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        from dispatcher.render import cell, clean, table, when

        if not answer["serving"]:
            return Text("no serving is declared; [[region.serving]] declares one")
        made = table("region", "serving", "batch", "since", "message")
        lines = []
        for one in answer["serving"]:
            told = one["objectives"] or [{"sentence": one["error"], "state": "unknown"}]
            for number, objective in enumerate(told):
                style = {"at_risk": "red", "unknown": "yellow"}.get(objective["state"], "")
                first = (
                    [one["region"], one["name"], one["level"], when(one["since"], seconds=True)] if number == 0 else [" "] * 4
                )
                made.add_row(*(cell(text) for text in first), cell(objective["sentence"], style))
            lines += [Text(clean(kept["sentence"])) for kept in one.get("kept_free", ())[:_KEPT]]
            if one["error"]:
                lines.append(Text(clean(f"{one['name']}: {one['error']}"), style="yellow"))
            lines += [Text(clean(f"{line['at'][:19]}Z  {line['sentence']}")) for line in one.get("history", ())]
        return Group(made, *lines)

    show(answer, as_json, view)


def _report(told: dict[str, Any]) -> RenderableType:
    """What was kept, a line for each promise, and what batch did beside it."""
    from rich.console import Group
    from rich.text import Text

    from dispatcher.render import cell, clean, table, when

    if not told["serving"]:
        return Text("no serving is declared; [[region.serving]] declares one")
    made = table("region", "serving", "promise", "kept alone", "kept beside batch", "unknown")
    lines = []
    for one in told["serving"]:
        if not one["objectives"]:
            made.add_row(cell(one["region"]), cell(one["name"]), cell("nothing was seen"), *(cell("") for _ in range(3)))
            continue
        for objective in one["objectives"]:
            alone, beside = objective["alone"], objective["beside"]
            seen_s = sum(part["known_s"] + part["unknown_s"] for part in (alone, beside))
            unknown_s = alone["unknown_s"] + beside["unknown_s"]
            unknown = "" if seen_s <= 0 else f"{100 * unknown_s / seen_s:.1f} %"
            parts = [cell(_kept(part, objective["promised"]), _style(part)) for part in (alone, beside)]
            made.add_row(cell(one["region"]), cell(one["name"]), cell(objective["name"]), *parts, cell(unknown))
        trough = one["trough_gpu_h"]
        troughs = "" if trough is None else f", {trough:.2f} of them while less than usual was asked"
        yields = one["yield_s"]
        took = f", the first job after {yields[len(yields) // 2]:.1f} s (median of {len(yields)})" if yields else ""
        above_s = sum(s for level, s in one["level_s"].items() if level != "calm")
        lines += [
            f"{one['name']}: batch ran beside it for {one['beside_s'] / 3600:.1f} of {one['watched_s'] / 3600:.1f} h watched, "
            f"{one['batch_gpu_h']:.2f} GPU-hours{troughs}",
            f"{one['name']}: batch was asked to step aside {one['rises']} times, {one['rises_beside']} times while it ran "
            f"({one['capped']} jobs capped, {one['frozen']} frozen, {one['asked']} asked for checkpoints), for "
            f"{above_s / 60:.0f} min in all{took}",
        ]
    span = f"{when(told['start'])} to {when(told['end'])}; {told['note']}"
    return Group(made, *(Text(clean(line)) for line in lines), Text(clean(span), style="dim"))


def _kept(part: dict[str, Any], promised: float | None) -> str:
    """How much was good, of how many, with the interval in which that lies."""
    if part["share"] is None:
        return "nothing counted"
    if promised is None:
        return f"{100 * part['share']:.2f} % of {part['total'] / 60:.0f} min"
    between = f"{100 * part['low']:.2f}-{100 * part['high']:.2f}"
    return f"{100 * part['share']:.2f} % ({between}) of {part['total']:.0f}"


def _style(part: dict[str, Any]) -> str:
    return "red" if part["is_met"] is False else ""
