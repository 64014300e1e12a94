"""``gridshift serving``: how interactive serving stands, and what batch gives for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dispatcher.cli_common import over_http, show

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dispatcher.client import Client


@click.command()
@click.argument("region", required=False)
@click.argument("name", required=False)
@over_http
def serving(client: Client, region: str | None, name: str | None, as_json: bool) -> None:
    """Show each declared serving, its promises, and how far batch steps aside; with REGION NAME also what happened."""
    if (region is None) != (name is None):
        raise click.UsageError("give REGION and NAME, or neither")
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
            if one["error"]:
                lines.append(Text(clean(f"{one['name']}: {one['error']}"), style="yellow"))
            lines += [Text(clean(f"{line['at'][:19]}Z  {line['sentence']}")) for line in one.get("history", ())]
        return Group(made, *lines)

    show(answer, as_json, view)
