"""``gridshift plan``: the plan as a chart of characters, and why one job is planned as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from dispatcher.cli_common import group, over_http, show

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType

    from dispatcher.client import Client

plan = group(None, "plan", "What would run when and where.", default="show")


@plan.command("show")
@click.option("--carbon", is_flag=True, help="Also draw each region's carbon intensity.")
@click.option("--limit", type=click.IntRange(1), default=200, show_default=True, help="How many jobs, by their start.")
@over_http
def plan_show(client: Client, carbon: bool, limit: int, as_json: bool) -> None:
    """Draw the plan: by region jobs as bars over time, under what power costs there."""
    made = client.get_json("/v1/plan")

    def view() -> RenderableType:
        from dispatcher.render import console
        from dispatcher.render_plan import gantt

        signals = _signals(client, ("price", "carbon") if carbon else ("price",))
        return gantt(made, _jobs(client, made), signals, console().width, now=_now(client), limit=limit)

    show(made, as_json, view)


def _jobs(client: Client, made: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The planned jobs by id, as far as they are among the newest."""
    planned = {placement["job_id"] for placement in made["placements"]}
    known: dict[str, dict[str, Any]] = {}
    for job in client.list(limit=2000):
        known[job.id] = dict(job.data)
        if planned <= known.keys():
            break
    return known


def _signals(client: Client, kinds: tuple[str, ...]) -> list[dict[str, Any]]:
    from dispatcher.client import GridshiftApiError

    found = []
    for region in client.get_json("/v1/regions")["regions"]:
        for kind in kinds:
            try:
                found.append(client.get_json("/v1/signals", {"region": region["name"], "kind": kind}))
            except GridshiftApiError as error:
                if error.status != 404:  # a region need not have every signal
                    raise
    return found


def _now(client: Client) -> datetime | None:
    """The control plane's present, which is not ours when it replays the past."""
    from dispatcher.client import GridshiftApiError
    from dispatcher.render import time_of

    try:
        return time_of(client.get_json("/v1/status").get("now"))
    except GridshiftApiError as error:
        if error.status != 404:
            raise
        return None


@plan.command("explain")
@click.argument("job_id")
@over_http
def plan_explain(client: Client, job_id: str, as_json: bool) -> None:
    """Say when and where a job will run, why, what else was considered, and what each would have cost."""
    told = client.get_json(f"/v1/plan/{quote(job_id, safe='')}")

    def view() -> RenderableType:
        from dispatcher.render_plan import explanation

        return explanation(told)

    show(told, as_json, view)
