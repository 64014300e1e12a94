"""``gridshift agent``: the agent of this machine, for nodes whose agent does not come with Ray, and limits let go of by hand.

It puts the words of a command together; what an agent does stands in dispatcher.agent.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dispatcher.cli_common import FAILURE, fail, json_option, print_json

if TYPE_CHECKING:
    from dispatcher.agent.node import Settings


class _Agent(click.Group):
    """Our own errors as a line on stderr."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what went wrong is said in a line."""
        try:
            return super().invoke(ctx)
        except (OSError, ValueError) as error:
            fail(error, FAILURE)


def _state_dir_option(command: Any) -> Any:
    return click.option(
        "--state-dir",
        type=click.Path(path_type=Path),
        help="Where leases are kept; default $GRIDSHIFT_AGENT_DIR, else /var/lib/gridshift/agent for root, "
        "~/.local/state/gridshift/agent for others.",
    )(command)


@click.group(cls=_Agent, invoke_without_command=True)
@click.option(
    "--server", envvar="GRIDSHIFT_AGENT_SERVER", help="The control plane, such as https://gridshift.example.org:8700."
)
@click.option("--region", envvar="GRIDSHIFT_AGENT_REGION", help="The region that this machine belongs to.")
@click.option("--token-env", metavar="NAME", help="Environment variable that holds an API token.")
@click.option("--token-file", type=click.Path(path_type=Path), help="File that holds an API token.")
@click.option("--branch", envvar="GRIDSHIFT_AGENT_BRANCH", help="The branch (rack, PDU) that this machine hangs on.")
@click.option("--node-id", help="Name of this machine; default its machine id.")
@click.option(
    "--protect-foreign/--no-protect-foreign",
    envvar="GRIDSHIFT_AGENT_PROTECT_FOREIGN",
    default=True,
    help="Leave GPUs uncapped on which a process of no job of gridshift's works (default), or cap them all the same.",
)
@click.option("--once", is_flag=True, help="Print what the agent would see here, as JSON, and end; sets nothing.")
@_state_dir_option
@click.pass_context
def agent(ctx: click.Context, /, **options: Any) -> None:
    """Measure this machine's GPUs, hold power limits that the control plane leases, and give them back.

    Runs until it is ended; under systemd see deploy/gridshift-agent.service. Setting limits needs root. Event limits stand when
    it is ended; a guard that stays behind gives them back at their ends.
    """
    if ctx.invoked_subcommand is not None:
        ctx.obj = options["state_dir"]
        return
    if options["once"]:
        from dispatcher.agent.runner import once

        print_json(once())
        return
    from dispatcher.agent.service import set_up_log, supervise

    settings = _settings(options)
    set_up_log()
    ctx.exit(supervise(settings))


def _settings(options: dict[str, Any]) -> Settings:
    import socket
    from importlib import metadata

    from dispatcher.agent.channel import channel_url
    from dispatcher.agent.node import Settings, default_state_dir, machine_id

    for name in ("server", "region"):
        if not options[name]:
            raise click.UsageError(f"--{name} is needed to run an agent (or --once for a look at what it would see)")
    try:
        channel_url(options["server"], options["region"])
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--server") from None
    try:
        version: str | None = metadata.version("gridshift")
    except metadata.PackageNotFoundError:
        version = None
    return Settings(
        server=options["server"],
        region=options["region"],
        token=_token(options["token_env"], options["token_file"]),
        state_dir=options["state_dir"] or default_state_dir(),
        node_id=options["node_id"] or machine_id(),
        hostname=socket.gethostname(),
        branch=options["branch"],
        version=version,
        protect_foreign=options["protect_foreign"],
    )


def _token(variable: str | None, file: Path | None) -> str | None:
    if variable and file:
        raise click.UsageError("give --token-env or --token-file, not both")
    if variable:
        token = os.environ.get(variable, "").strip()
        if not token:
            raise click.BadParameter(f"the variable {variable} is not set or empty", param_hint="--token-env")
        return token
    if file is None:
        return None
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{file} cannot be read: {error}", param_hint="--token-file") from None
    if not token:
        raise click.BadParameter(f"{file} is empty", param_hint="--token-file")
    return token


@agent.command()
@click.option("--lease", "lease_id", help="The event lease to let go of.")
@click.option("--all", "every", is_flag=True, help="All event leases of this machine.")
@_state_dir_option
@json_option
@click.pass_obj
def release(above: Path | None, /, *, lease_id: str | None, every: bool, state_dir: Path | None, as_json: bool) -> None:
    """Let go of event leases on this machine and give the limits back, whether or not an agent runs here.

    For when the control plane is gone and a limit must be lifted. What ended while no agent was here is given back too.
    Economic leases end by themselves within a minute.
    """
    if every == bool(lease_id):
        raise click.UsageError("give --lease ID or --all")
    from dispatcher.agent.node import default_state_dir
    from dispatcher.agent.release import NotReleased, release_here

    folder = state_dir or above or default_state_dir()
    try:
        released = release_here(folder, lease_id)
    except NotReleased as error:
        fail(error, FAILURE)
    if as_json:
        print_json({"released": released})
    for one in [] if as_json else released:
        how = "given back" if one["ok"] else one["error"]
        click.echo(f"{one['lease_id']}: {one['limit_w']:g} W on {one['uuid']}: {how}")
    if lease_id and not released:
        fail(f"no event lease {lease_id} stands here", FAILURE)
    if not as_json and not released:
        click.echo("no event lease stands here")
    if not all(one["ok"] for one in released):
        raise click.exceptions.Exit(FAILURE)
