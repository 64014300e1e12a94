"""The ``gridshift`` command: words on a terminal to calls of the client, the configuration and the long-running parts.

It decides nothing and checks little: the control plane says what is wrong with an input, and this shows it. Everything but
click is imported inside the commands, so that the command starts at once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dispatcher.cli_agent import agent
from dispatcher.cli_backtest import backtest
from dispatcher.cli_common import (
    FAILURE,
    INTERRUPTED,
    Commands,
    address_options,
    config_option,
    group,
    json_option,
    load_config,
    open_store,
    over_http,
    pairs,
    print_json,
    show,
    show_with_alarms,
)
from dispatcher.cli_event_report import flexibility as events_flexibility
from dispatcher.cli_event_report import report as events_report
from dispatcher.cli_event_report import the_event
from dispatcher.cli_events import explain as events_explain
from dispatcher.cli_fleet import fleet
from dispatcher.cli_plan import plan
from dispatcher.cli_serving import serving
from dispatcher.cli_signals import signals

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dispatcher.client import Client, Job

#: Metadata keys of a job's flexibility, each a flag of ``submit``, with its help.
FLEXIBILITY = {
    "deadline": "must be finished by: a time (ISO 8601 with offset) or a duration from now, such as 8h",
    "earliest": "do not start before: a time or a duration from now",
    "runtime": "expected run time, such as 90m",
    "gpus": "GPUs the whole job uses",
    "power_w": "expected mean draw of the whole job while it runs, W",
    "pausable": "no, checkpoint or freeze",
    "checkpoint_s": "time it needs to write a checkpoint when asked",
    "restart_s": "time lost when it resumes",
    "min_cap": "lowest power cap it accepts, as a fraction of the GPU's default limit",
    "regions": "allowed regions, comma separated",
    "data_gb": "data that moves with the job, GB",
    "data_region": "region in which that data lies",
    "tier": "flex-0 (never touched) to flex-3",
    "priority": "order among equals, an integer",
    "group": "jobs of one kind; run times are learned by group",
    "team": "who it is reported under, and whose quota of GPUs it uses",
    "max_price": "not to run while power costs more, where its deadline leaves time, currency/MWh",
    "max_carbon": "the same for what power emits, gCO2e/kWh",
    "gpu_types": "acceptable GPU types with relative speed: H100:1,A100:0.45",
    "freeze_max_s": "longest freeze it stands",
    "max_attempts": "attempts after losses",
}


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="gridshift", prog_name="gridshift")
def main() -> None:
    """Dispatch batch GPU work on Ray clusters by the state of the grid."""


main.add_command(signals)
main.add_command(plan)
main.add_command(fleet)
main.add_command(backtest)
main.add_command(agent)
main.add_command(serving)


# --- jobs ---------------------------------------------------------------------------------------------------------


def _flexibility_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, help_text in reversed(FLEXIBILITY.items()):
        flag = "--" + name.replace("_", "-")
        names = [flag] if "_" not in name else [flag, f"--{name}"]
        command = click.option(*names, name, metavar="VALUE", help=help_text)(command)
    return command


@main.command(context_settings={"ignore_unknown_options": False})
@click.argument("command", nargs=-1, required=True)
@_flexibility_flags
@click.option("--num-gpus", type=float, help="GPUs Ray reserves for the command.")
@click.option("--num-cpus", type=float, help="CPUs Ray reserves for the command.")
@click.option("--memory", type=int, help="Memory Ray reserves for the command, bytes.")
@click.option(
    "--resource", "resources", multiple=True, metavar="NAME=AMOUNT", help="Custom resource Ray reserves for the command."
)
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Node label that Ray must find for the command.")
@click.option("--working-dir", help="Folder to ship, or the URI of a package.")
@click.option("--exclude", "excludes", multiple=True, metavar="PATTERN", help="Leave out of the working dir, as in .gitignore.")
@click.option("--env", "env_vars", multiple=True, metavar="KEY=VALUE", help="Environment variable of the job.")
@click.option("--runtime-env-json", metavar="JSON", help="Ray runtime_env.")
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Metadata of your own.")
@click.option("--submission-id", "--id", help="Id of the job; default: a new one.")
@click.option("--wait/--no-wait", default=False, help="Follow the log to the end and exit 1 unless the job succeeds.")
@over_http
def submit(client: Client, command: tuple[str, ...], *, wait: bool, as_json: bool, **options: Any) -> None:
    """Submit COMMAND as a job: gridshift submit --deadline 8h -- python train.py

    Prints the job's id. Without any flag from --deadline to --max-attempts the job starts at once.
    """
    flexibility = {name: options[name] for name in FLEXIBILITY}
    resources = {}
    for name, amount in pairs(options["resources"], "--resource").items():
        try:
            resources[name] = float(amount)
        except ValueError:
            raise click.BadParameter(f"{name}={amount}: {amount!r} is not a number", param_hint="--resource") from None
    job = client.submit(
        command[0] if len(command) == 1 else list(command),
        **flexibility,
        num_gpus=options["num_gpus"],
        num_cpus=options["num_cpus"],
        memory=options["memory"],
        resources=resources or None,
        label_selector=pairs(options["labels"], "--label") or None,
        working_dir=options["working_dir"],
        runtime_env=_runtime_env(options),
        metadata=pairs(options["metadata"], "--metadata") or None,
        submission_id=options["submission_id"],
    )
    warning, told = job.data.get("warning"), f"{job.state}: {job.reason}"
    if warning:
        click.echo(f"warning: job {job.id} {warning}", err=True)
        told = job.state if warning in job.reason else told
    if not wait:
        if as_json:
            print_json(job.data)
        else:
            click.echo(job.id)
            click.echo(told, err=True)
        return
    click.echo(f"job {job.id}: {told}", err=True)
    job = _follow(client, job, sys.stderr if as_json else sys.stdout)
    click.echo(f"job {job.id}: {job.state}: {job.reason}", err=True)
    if as_json:
        print_json(job.data)
    if job.state != "succeeded":
        raise click.exceptions.Exit(FAILURE)


def _runtime_env(options: dict[str, Any]) -> dict[str, Any] | None:
    env: Any = {}
    if options["runtime_env_json"]:
        from dispatcher.api.strict_json import parse
        from dispatcher.errors import BadInput

        try:
            env = parse(options["runtime_env_json"].encode("utf-8", "surrogateescape"))
        except BadInput as error:
            raise click.BadParameter(f"not JSON: {error}", param_hint="--runtime-env-json") from None
        if not isinstance(env, dict):
            raise click.BadParameter("must be a JSON object", param_hint="--runtime-env-json")
    if options["env_vars"]:
        env["env_vars"] = {**(env.get("env_vars") or {}), **pairs(options["env_vars"], "--env")}
    if options["excludes"]:
        env["excludes"] = [*(env.get("excludes") or []), *options["excludes"]]
    return env or None


def _follow(client: Client, job: Job, out: Any) -> Job:
    """Print a job's log as it grows, and on stderr why it waits; returns the job once it has ended."""
    from dispatcher.client import NotReachable

    shown, said, silent_since, ended = 0, (job.state, job.reason), None, False
    try:
        while True:
            try:
                job = client.get(job)
                text = client.logs(job)
                silent_since = None
            except NotReachable:
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since > 300:
                    raise
            else:
                if len(text) > shown:
                    out.write(text[shown:])
                    out.flush()
                    shown = len(text)
                if ended:
                    return job
                ended = job.ended  # the last lines may reach the control plane a moment after the news of the end
                if (job.state, job.reason) != said:
                    said = (job.state, job.reason)
                    click.echo(f"job {job.id}: {job.state}: {job.reason}", err=True)
            time.sleep(1.0)
    except KeyboardInterrupt:
        click.echo(f"job {job.id} goes on; 'gridshift jobs logs -f {job.id}' shows it again", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None


jobs = group(main, "jobs", "Look at jobs and steer them.", default="list")


@jobs.command("list")
@click.option("--state", help="Only jobs in this state.")
@click.option("--team", help="Only jobs of this team.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="How many, newest first.")
@click.option("--cursor", help="next_cursor of an earlier answer, to go on there.")
@over_http
def jobs_list(client: Client, state: str | None, team: str | None, limit: int, cursor: str | None, as_json: bool) -> None:
    """List jobs, newest first."""
    page = client.get_json("/v1/jobs", {"state": state, "team": team, "limit": limit, "cursor": cursor})

    def view() -> RenderableType:
        from dispatcher.render import jobs_table

        return jobs_table(page["jobs"])

    show_with_alarms(client, page, as_json, view)
    if page.get("next_cursor") and not as_json:
        click.echo(f"more: --cursor {page['next_cursor']}", err=True)


@jobs.command("show")
@click.argument("job_id")
@over_http
def jobs_show(client: Client, job_id: str, as_json: bool) -> None:
    """Show everything about a job."""
    job = client.get(job_id).data

    def view() -> RenderableType:
        from dispatcher.render import job_view

        return job_view(job)

    show(job, as_json, view)


def _steering(name: str, help_text: str) -> None:
    @jobs.command(name, help=help_text)
    @click.argument("job_ids", nargs=-1, required=True, metavar="JOB...")
    @over_http
    def steer(client: Client, job_ids: tuple[str, ...], as_json: bool) -> None:
        done = []
        for job_id in job_ids:
            job = getattr(client, name.replace("-", "_"))(job_id)
            done.append(job.data)
            if not as_json:
                click.echo(f"job {job.id}: {job.state}: {job.reason}")
        if as_json:
            print_json(done[0] if len(done) == 1 else done)


_steering("cancel", "Cancel jobs; running ones are stopped.")
_steering("pause", "Hold jobs until they are resumed; running ones are asked for a checkpoint.")
_steering("resume", "Let held jobs go on.")
_steering("run-now", "Start waiting jobs at once, whatever power costs, as soon as power limits leave room.")


@jobs.command("delete")
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB...")
@over_http
def jobs_delete(client: Client, job_ids: tuple[str, ...], as_json: bool) -> None:
    """Take ended jobs off the lists; their ids stay used.

    What they drew and cost stays in `gridshift savings` and in the reports of events, which name them as deleted.
    """
    for job_id in job_ids:
        client.delete(job_id)
        if not as_json:
            click.echo(f"job {job_id}: deleted")
    if as_json:
        print_json({"deleted": list(job_ids)})


@jobs.command("logs")
@click.argument("job_id")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@over_http
def jobs_logs(client: Client, job_id: str, follow: bool, as_json: bool) -> None:
    """Print the log of all attempts."""
    if follow and as_json:
        raise click.UsageError("--json prints one object; leave --follow out")
    text = client.logs(job_id)
    if not text:
        job = client.get(job_id)
        silent = "has written nothing" if job.data.get("started_at") else "has not begun"
        click.echo(f"job {job_id} {silent}: {job.state}: {job.reason}", err=True)
    if follow:
        _follow(client, client.get(job_id), sys.stdout)
    elif as_json:
        print_json({"id": job_id, "logs": text})
    else:
        sys.stdout.write(text)


@jobs.command("events")
@click.argument("job_id")
@over_http
def jobs_events(client: Client, job_id: str, as_json: bool) -> None:
    """Show what happened to a job, and why."""
    answer = client.get_json(f"/v1/jobs/{_quoted(job_id)}/events")

    def view() -> RenderableType:
        from dispatcher.render import job_events_table

        return job_events_table(answer["events"])

    show(answer, as_json, view)


def _quoted(part: str) -> str:
    from urllib.parse import quote

    return quote(part, safe="")


# --- savings ------------------------------------------------------------------------------------------------------


@main.command()
@over_http
def savings(client: Client, as_json: bool) -> None:
    """Show cost and carbon against running every job at once."""
    answer = client.get_json("/v1/savings")

    def view() -> RenderableType:
        from dispatcher.render import savings_view

        return savings_view(answer)

    show(answer, as_json, view)


# --- events -------------------------------------------------------------------------------------------------------


events = group(main, "events", "Limits on a region's power.", default="list")


@events.command("list")
@click.option("--all", "all_of_them", is_flag=True, help="Those that ended more than 30 days ago too, up to 10,000.")
@over_http
def events_list(client: Client, all_of_them: bool, as_json: bool) -> None:
    """List events: those in force, then those to come by their start, then those that ended in the last 30 days."""
    answer = client.get_json("/v1/events", {"since": "1970-01-01T00:00:00Z", "limit": 10_000} if all_of_them else None)
    if answer.get("left_out"):
        click.echo(f"{answer['left_out']:,} more events are not listed", err=True)

    def view() -> RenderableType:
        from dispatcher.render import grid_events_table

        return grid_events_table(answer["events"])

    show_with_alarms(client, answer, as_json, view)


events.add_command(events_explain)
events.add_command(events_report)
events.add_command(events_flexibility)


@events.command("create")
@click.option("--region", required=True)
@click.option("--branch", help="Only this branch of the region.")
@click.option("--limit-w", required=True, type=float, help="What the region may draw, W.")
@click.option("--start", help="ISO 8601 with offset; default: now.")
@click.option("--end", help="ISO 8601 with offset.")
@click.option("--duration", help="Instead of --end, such as 2h; with neither it is open until cancelled.")
@click.option("--recovery", help="How long load takes to come back after it, such as 15m; without it, all comes back at once.")
@click.option("--id", "event_id", help="Default: a new one.")
@click.option("--version", type=int, help="A higher version replaces a lower one of the same id.")
@click.option("--reason", help="Why, as a sentence.")
@click.option("--test", is_flag=True, help="Say that it is a test.")
@click.option(
    "--emergency", is_flag=True, help="The grid is in danger: serving that allows it is capped where batch is not enough."
)
@over_http
def events_create(client: Client, *, event_id: str | None, as_json: bool, **given: Any) -> None:
    """Limit a region's power for a time."""
    import secrets

    if given["end"] and given["duration"]:
        raise click.UsageError("give --end or --duration, not both")
    body = {"event_id": event_id or f"evt-{secrets.token_hex(6)}", **{k: v for k, v in given.items() if v is not None}}
    if not given["emergency"]:
        del body["emergency"]
    answer = client.call("POST", "/v1/events", json=body).json()
    if as_json:
        print_json(answer)
    else:
        click.echo(body["event_id"])
    if answer["event"].get("warning"):
        click.echo(answer["event"]["warning"], err=True)


@events.command("cancel")
@click.argument("event_id")
@click.option("--source", help="Where it came from, when several sources have this id.")
@over_http
def events_cancel(client: Client, event_id: str, source: str | None, as_json: bool) -> None:
    """End an event."""
    event = the_event(client, event_id, source)
    response = client.call("DELETE", f"/v1/events/{_quoted(event['source'])}/{_quoted(event_id)}")
    if as_json:
        print_json(response.json() if response.content else {"event_id": event_id, "state": "cancelled"})
    else:
        click.echo(f"event {event_id} is cancelled")


@events.command("opt-out")
@click.argument("event_id")
@click.option("--source", help="Where it came from, when several sources have this id.")
@click.option("--reason", help="Why, as a sentence; it stays on record.")
@click.option("--back", is_flag=True, help="Take part after all.")
@over_http
def events_opt_out(client: Client, event_id: str, source: str | None, reason: str | None, back: bool, as_json: bool) -> None:
    """Stop acting on an event that somebody else asked for; what was asked for stays on record."""
    if back == bool(reason):
        raise click.UsageError("give --reason, or --back to take part after all")
    event = the_event(client, event_id, source)
    path = f"/v1/events/{_quoted(event['source'])}/{_quoted(event_id)}/opt-out"
    response = client.call("DELETE", path) if back else client.call("POST", path, json={"reason": reason})
    if as_json:
        print_json(response.json())
    else:
        click.echo(f"event {event_id} binds again" if back else f"event {event_id} binds no more: opted out")


@events.command("show")
@click.argument("event_id")
@click.option("--source", help="Where it came from, when several sources have this id.")
@over_http
def events_show(client: Client, event_id: str, source: str | None, as_json: bool) -> None:
    """Show one event: its steps, and what happened to it."""
    event = the_event(client, event_id, source)
    answer = client.get_json(f"/v1/events/{_quoted(event['source'])}/{_quoted(event_id)}")

    def view() -> RenderableType:
        from dispatcher.render import grid_event_view

        return grid_event_view(answer)

    show({**(answer["event"] or event), "history": answer["history"]}, as_json, view)


# --- the machine itself -------------------------------------------------------------------------------------------


@main.command()
@click.argument("path", type=click.Path(path_type=Path), default="gridshift.toml")
@json_option
def init(path: Path, as_json: bool) -> None:
    """Write a commented configuration to start from."""
    from dispatcher.config import write_example

    write_example(path)
    if as_json:
        print_json({"path": str(path)})
    else:
        click.echo(f"wrote {path}; edit it, then 'gridshift doctor', and 'gridshift up' (with a console) or 'gridshift serve'")


@main.command()
@config_option
def serve(config_path: Path | None) -> None:
    """Run the control plane until it is stopped."""
    config = load_config(config_path)  # before the imports, so that a mistake in it is told at once
    from dispatcher.serve import main_serve

    raise click.exceptions.Exit(main_serve(config))


@main.command()
@config_option
@click.option("--console/--no-console", default=True, show_default=True, help="Start the console in the browser's port too.")
@click.option("--console-port", type=click.IntRange(1, 65535), help="Default: a free one.")
@click.option("--token", envvar="GRIDSHIFT_TOKEN", help="API token for the console; better given in $GRIDSHIFT_TOKEN.")
@click.option("--simulate-gpus", type=click.IntRange(1, 16), help="Give the local Ray N SIMULATED GPUs; needs a C compiler.")
def up(config_path: Path | None, console: bool, console_port: int | None, token: str | None, simulate_gpus: int | None) -> None:
    """Run everything: control plane, a local Ray when no region is configured, console."""
    config = load_config(config_path)
    from dispatcher.up import main as run_up

    code = run_up(config, console=console, console_port=console_port, token=token, simulated_gpus=simulate_gpus)
    raise click.exceptions.Exit(code)


@main.command()
@json_option
def demo(as_json: bool) -> None:
    """Show it working: two Ray clusters on this machine, a dozen jobs, a day in two minutes."""
    from dispatcher.demo import main as run_demo

    raise click.exceptions.Exit(run_demo(as_json=as_json))


@main.command()
@config_option
@address_options
@json_option
def doctor(config_path: Path | None, address: str | None, token: str | None, as_json: bool) -> None:
    """Check configuration, database, regions, feeds, clock and GPUs, and say what to do; with --address the control plane
    there too."""
    from dispatcher.client import Client
    from dispatcher.doctor import main as run_doctor

    if address:
        address = Client(address, token).address  # refuses what is no address, as it does for every command
    raise click.exceptions.Exit(run_doctor(config_path, as_json=as_json, address=address, token=token))


db = group(main, "db", "The database.")


@db.command("upgrade")
@config_option
@json_option
def db_upgrade(config_path: Path | None, as_json: bool) -> None:
    """Bring the database to the present schema."""
    from dispatcher.store.migrate import upgrade

    config = load_config(config_path)
    url = config.database_url()
    config.make_data_dir()
    upgrade(url)
    if as_json:
        print_json({"upgraded": True})
    else:
        click.echo("the database has the present schema")


tokens = group(main, "tokens", "API tokens, kept as hashes in the configured database.", default="list")


@tokens.command("create")
@click.argument("name")
@config_option
@json_option
def tokens_create(name: str, config_path: Path | None, as_json: bool) -> None:
    """Make a token and print it, this once. With the first one the control plane begins to ask every client for one, on
    loopback too: the command line takes it from $GRIDSHIFT_TOKEN, and so does a console when it starts."""
    import hashlib
    import re
    import secrets
    from contextlib import closing

    from dispatcher.clock import SystemClock
    from dispatcher.store import Token

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise click.BadParameter(f"{name!r}: letters, digits, '.', '_' and '-' only, at most 64", param_hint="NAME")
    secret = f"gs_{secrets.token_urlsafe(32)}"
    token = Token(name, hashlib.sha256(secret.encode()).hexdigest(), SystemClock().now())
    with closing(open_store(load_config(config_path))) as store:
        store.add_token(token).result()
    if as_json:
        print_json({"name": name, "token": secret, "created_at": token.created_at.isoformat()})
    else:
        click.echo(secret)
        click.echo(
            "keep it: only its hash is stored. From now on every client needs a token, on this machine too. Next:\n"
            "  export GRIDSHIFT_TOKEN=...   (the line above)\n"
            "and start the console again with it, where one runs. Ray's command: --headers "
            '\'{"Authorization": "Bearer TOKEN"}\'',
            err=True,
        )


@tokens.command("list")
@config_option
@json_option
def tokens_list(config_path: Path | None, as_json: bool) -> None:
    """List the tokens' names."""
    from contextlib import closing

    with closing(open_store(load_config(config_path))) as store:
        rows = [{"name": token.name, "created_at": token.created_at.isoformat()} for token in store.tokens()]

    def view() -> RenderableType:
        from dispatcher.render import cell, table, when

        made = table("name", "created (UTC)")
        for row in rows:
            made.add_row(cell(row["name"]), cell(when(row["created_at"])))
        return made

    show({"tokens": rows}, as_json, view)


@tokens.command("revoke")
@click.argument("name")
@config_option
@json_option
def tokens_revoke(name: str, config_path: Path | None, as_json: bool) -> None:
    """Make a token worthless. Without the last one a control plane on loopback is open again to everybody on its machine."""
    from contextlib import closing

    config = load_config(config_path)
    with closing(open_store(config)) as store:
        store.revoke_token(name).result()
        left = len(store.tokens())
    if as_json:
        print_json({"name": name, "revoked": True, "tokens_left": left, "open": left == 0 and config.server.is_loopback})
    else:
        click.echo(f"token {name} is revoked")
    if left == 0:
        now = (
            f"the control plane at {config.server.host} is now open to everybody on this machine, who may submit, cancel and "
            "delete jobs, and events too, without a token"
            if config.server.is_loopback
            else f"the control plane at {config.server.host} now refuses everybody"
        )
        click.echo(f"warning: that was the last token: {now}. 'gridshift tokens create NAME' makes another", err=True)


if __name__ == "__main__":
    main(prog_name="gridshift")
