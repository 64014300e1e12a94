"""``gridshift events report``: what a demand-response event delivered, as a table, JSON, CSV or a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from dispatcher.cli_common import over_http, print_json

if TYPE_CHECKING:
    from dispatcher.client import Client

_OUT = click.Path(dir_okay=False, writable=True, path_type=Path)


def the_event(client: Client, event_id: str, source: str | None) -> dict[str, Any]:
    """The event with that id, of ``source`` where several have one."""
    from dispatcher.client import GridshiftApiError

    told = client.get_json("/v1/events", {"event_id": event_id})["events"]
    found = [e for e in told if e["event_id"] == event_id and source in (None, e["source"])]
    if not found:
        raise GridshiftApiError(f"there is no event {event_id}" + (f" from {source}" if source else ""), 404)
    if len(found) > 1:
        sources = ", ".join(sorted(e["source"] for e in found))
        raise click.UsageError(f"several sources have an event {event_id}: give --source, one of {sources}")
    only: dict[str, Any] = found[0]
    return only


@click.command("report")
@click.argument("event_id")
@click.option("--source", help="Where it came from, when several sources have this id.")
@click.option("--csv", "csv_path", type=_OUT, help="Write the series to this file.")
@click.option("--html", "html_path", type=_OUT, help="Write a page with plots, which needs nothing else, to this file.")
@over_http
def report(
    client: Client, event_id: str, source: str | None, csv_path: Path | None, html_path: Path | None, as_json: bool
) -> None:
    """Say what an event delivered: by the meter, against what would have been drawn; so far, if it still runs."""
    event = the_event(client, event_id, source)
    path = f"/v1/events/{quote(event['source'], safe='')}/{quote(event_id, safe='')}/report"
    for target, form in ((csv_path, "csv"), (html_path, "html")):
        if target is not None:
            answer = client.call("GET", path, params={"format": form})
            try:
                target.write_bytes(answer.content)
            except OSError as error:
                raise click.FileError(str(target), hint=error.strerror or str(error)) from error
            click.echo(f"wrote {target}", err=True)
    if as_json:
        print_json(client.get_json(path))
    elif csv_path is None and html_path is None:
        from dispatcher.render import console
        from dispatcher.render_events import report_view

        console().print(report_view(client.get_json(path)))


@click.command("flexibility")
@click.option("--region", help="Only this region.")
@over_http
def flexibility(client: Client, region: str | None, as_json: bool) -> None:
    """Say how much less each site and branch could draw now, and in the plan's next 24 hours, for how long."""
    answer = client.get_json("/v1/flexibility", {"region": region} if region is not None else None)
    if as_json:
        print_json(answer)
        return
    from dispatcher.render import console
    from dispatcher.render_events import flexibility_view

    console().print(flexibility_view(answer))
