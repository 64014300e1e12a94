"""How the ``gridshift`` command speaks: options that many commands share, JSON or a view for people, errors and exit codes.

It knows no command. Everything but click is imported when it is used, so that the command starts at once.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType

    from dispatcher.client import Client
    from dispatcher.config import Config
    from dispatcher.store.sql import SqlStore

BAD_INPUT, FAILURE, INTERRUPTED = 2, 1, 130
#: Statuses of the API that mean: what you gave is wrong.
_INPUT_STATUSES = frozenset({None, 400, 413, 422})


def fail(error: Exception | str, code: int) -> NoReturn:
    """End the command with a line on stderr."""
    click.echo(f"gridshift: {error}", err=True)
    raise click.exceptions.Exit(code)


def fail_with_problems(error: Any, code: int) -> NoReturn:
    """Show an error that lists problems: one line each, ``field: value: remedy``."""
    from dispatcher.client import problem_line

    lines = [problem_line(p) for p in error.problems]
    for line in lines or [f"gridshift: {error.message}"]:
        click.echo(line, err=True)
    if error.status == 401:
        click.echo("give the token in $GRIDSHIFT_TOKEN; 'gridshift tokens create NAME' on its machine makes one", err=True)
    raise click.exceptions.Exit(code)


class Commands(click.Group):
    """A group that turns our errors into a line on stderr and an exit code, and may have a default command."""

    default: str | None = None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command in where none is named."""
        if self.default and (not args or (args[0].startswith("-") and args[0] not in {"--help", "-h"})):
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; our own errors end it."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except Exception as error:
            from dispatcher.client import ClientError, GridshiftApiError
            from dispatcher.errors import BadInput, ConfigError, GridshiftError

            if isinstance(error, GridshiftApiError):
                fail_with_problems(error, BAD_INPUT if error.problems or error.status in _INPUT_STATUSES else FAILURE)
            if isinstance(error, GridshiftError):
                fail(error, BAD_INPUT if isinstance(error, BadInput | ConfigError) else FAILURE)
            if isinstance(error, ClientError | TimeoutError):
                fail(error, FAILURE)
            raise


def group(parent: click.Group | None, name: str, help_text: str, default: str | None = None) -> Commands:
    """A group of commands, ``default`` being the one that is meant when none is named."""
    made = Commands(name=name, help=help_text + (f" (default: {default})" if default else ""))
    made.default = default
    if parent is not None:
        parent.add_command(made)
    return made


Options = Callable[[Callable[..., Any]], Callable[..., Any]]
json_option: Options = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def config_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--config."""
    return click.option(
        "--config",
        "config_path",
        type=click.Path(path_type=Path),
        help="The configuration file; default $GRIDSHIFT_CONFIG, else ./gridshift.toml, else the defaults.",
    )(command)


def address_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--address and --token, as they were given; None where they were not."""
    address = click.option("--address", envvar="GRIDSHIFT_ADDRESS", help="The control plane; default http://127.0.0.1:8700.")
    token = click.option("--token", envvar="GRIDSHIFT_TOKEN", help="API token; better given in $GRIDSHIFT_TOKEN.")
    return address(token(command))


def over_http(command: Callable[..., Any]) -> Callable[..., Any]:
    """--address, --token and --json; the command gets a client and ``as_json``."""

    @address_options
    @json_option
    @functools.wraps(command)
    def with_client(*args: Any, address: str | None, token: str | None, **kwargs: Any) -> Any:
        from dispatcher.client import Client

        return command(Client(address, token), *args, **kwargs)

    return with_client


def standing_alarms(client: Client) -> list[dict[str, Any]] | None:
    """What an operator must know now; None where that cannot be had: what else was asked for does not fail over it."""
    from dispatcher.client import ClientError

    try:
        return list(client.get_json("/v1/status")["alarms"])
    except (ClientError, KeyError):
        return None


def show_with_alarms(client: Client, value: dict[str, Any], as_json: bool, view: Callable[[], RenderableType]) -> None:
    """``show``, and what an operator must know now: on stderr, or under "alarms" in the JSON."""
    alarms = standing_alarms(client)
    show({**value, "alarms": alarms} if as_json else value, as_json, view)
    if not as_json:
        from dispatcher.render import alarm_lines

        for line in alarm_lines(alarms):
            click.echo(line, err=True)


def print_json(value: object) -> None:
    """Print one line of JSON."""
    click.echo(json.dumps(value, ensure_ascii=False))


def show(value: object, as_json: bool, view: Callable[[], RenderableType]) -> None:
    """Print a value as JSON, or as people like it."""
    if as_json:
        print_json(value)
        return
    from dispatcher.render import console

    console().print(view())


def pairs(values: Sequence[str], flag: str) -> dict[str, str]:
    """KEY=VALUE options as a dictionary."""
    out = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{value!r} must be KEY=VALUE", param_hint=flag)
        out[key] = text
    return out


def load_config(path: Path | None) -> Config:
    """The configuration that --config means. Raises ConfigError."""
    from dispatcher.config import load

    return load(path)


def open_store(config: Config) -> SqlStore:
    """The configured database, brought to the present schema; close it. A control plane may use it at the same time."""
    from dispatcher.store.migrate import upgrade
    from dispatcher.store.sql import SqlStore

    url = config.database_url()
    data_dir = config.make_data_dir()
    upgrade(url)
    return SqlStore(url, data_dir=data_dir)


def time_option(text: str | None, flag: str) -> datetime | None:
    """The aware time that an option gives, in UTC; None when it is not given."""
    from datetime import UTC, datetime

    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise click.BadParameter(f"{text!r}: give a time such as 2026-01-31T12:00Z", param_hint=flag)
    return at.astimezone(UTC)


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Say on a terminal what takes its time; elsewhere say nothing."""
    from dispatcher.render import console

    out = console(stderr=True)
    with out.status(what) if out.is_terminal else nullcontext():
        yield
