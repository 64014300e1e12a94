"""``gridshift fleet``: the regions, and every GPU with its job, draw, limit and state; a terminal is kept up to date."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from dispatcher.cli_common import over_http, print_json, standing_alarms

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dispatcher.client import Client

#: Seconds between two looks; agents tell of a change each second.
EVERY_S = 2.0


@click.command()
@click.option("--region", help="Only this region.")
@click.option("--once", is_flag=True, help="Print once, on a terminal too.")
@over_http
def fleet(client: Client, region: str | None, once: bool, as_json: bool) -> None:
    """Show the regions and their GPUs: what runs there, what they draw, how they are limited.

    On a terminal it refreshes until Ctrl-C; elsewhere, and with --once or --json, it prints once.
    """
    if as_json:
        print_json(_look(client, region))
        return
    from dispatcher.render import console

    out = console()
    if once or not out.is_terminal:
        out.print(_view(_look(client, region)))
        return
    _watch(client, region)


def _look(client: Client, region: str | None) -> dict[str, Any]:
    """The regions as they are observed, the fleet as the agents tell it, and what an operator must know."""
    told = client.get_json("/v1/fleet", {"region": region} if region is not None else None)
    regions = client.get_json("/v1/regions")["regions"]
    shown = [one for one in regions if region in (None, one["name"])]
    return {"regions": shown, "fleet": told, "alarms": standing_alarms(client)}


def _view(answer: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from dispatcher.render import alarm_lines, regions_table
    from dispatcher.render_fleet import fleet_view

    told = Text("draw above: what the jobs there are expected to draw, at the meter (PUE included)", style="dim")
    alarms = [Text(line, style="bold red") for line in alarm_lines(answer["alarms"])]
    return Group(
        regions_table(answer["regions"]), told, Text(), fleet_view(answer["fleet"]), *([Text(), *alarms] if alarms else [])
    )


def _watch(client: Client, region: str | None) -> None:
    """Redraw the view until the user has seen enough. What cannot be had is said in its place, and asked for again."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from dispatcher.client import GridshiftApiError, NotReachable
    from dispatcher.render import clean, console

    shown = _view(_look(client, region))  # a mistake in what was asked for ends the command
    with Live(shown, console=console(), auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            try:
                time.sleep(EVERY_S)
                shown = _view(_look(client, region))
                live.update(shown, refresh=True)
            except (GridshiftApiError, NotReachable) as error:
                told = Text(f"no news: {clean(error)}; what stands above is of the past", style="bold red")
                live.update(Group(shown, Text(), told), refresh=True)
            except KeyboardInterrupt:
                return
