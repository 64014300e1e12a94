"""What the configuration points to outside its file: secrets in variables and files, certificates. All that is missing is named
at once, before anything is started.

It knows nothing of what they are used for.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dispatcher.config import Config, EventSourceConfig
from dispatcher.errors import ConfigError
from dispatcher.webhook_secrets import checker


@dataclass(frozen=True, slots=True)
class Outside:
    """One thing outside the file: ``read`` raises ConfigError where it is not there or cannot be used, ``files`` are where it
    is kept. ``needed``: no control plane starts without it."""

    what: str
    read: Callable[[], object]
    files: tuple[str, ...] = ()
    needed: bool = True

    def problems(self) -> Iterator[str]:
        """What is wrong with it, a sentence each."""
        try:
            self.read()
        except ConfigError as error:
            yield from str(error).splitlines()


def outside(config: Config) -> list[Outside]:
    """The secrets that the configuration points to."""
    found = [Outside("server.database_url", config.database_url, (config.server.database_url_file,))]
    found += [Outside(f"region {one.name}: token", one.token, (one.token_file,)) for one in config.regions]
    found += [
        Outside(f"webhook {one.source}: secret", _checked(one.source, one.secrets), (one.secret_file, *one.secret_files))
        for one in config.webhooks
    ]
    for one in config.event_sources:
        what, asked = f"event_source {one.name}", _is_asked(config, one)
        found += [
            # Whoever follows hints reads it when it fetches, and says then that it is missing.
            Outside(f"{what}: client_secret", one.client_secret, (one.client_secret_file,), asked and bool(one.client_id)),
            Outside(f"{what}: secret", _checked(one.name, one.secrets), (one.secret_file, *one.secret_files)),
        ]
    return found


def check_outside(config: Config) -> None:
    """Raises ConfigError that names all that a control plane needs and that is missing or cannot be used, one a line."""
    asked = [Outside(one.name, _client(one)) for one in config.event_sources if _is_asked(config, one)]
    needed = [one for one in outside(config) if one.needed]
    problems = [problem for one in (*needed, *asked) for problem in one.problems()]
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))


def _is_asked(config: Config, source: EventSourceConfig) -> bool:
    """Whether the control plane asks a sender, from its start on; in a replay it asks none."""
    return source.protocol.startswith("openadr-") and config.replay is None


def _checked(name: str, secrets: Callable[[], tuple[str, ...]]) -> Callable[[], None]:
    """Reads the secrets of a webhook, and looks at whether signatures can be checked with them."""

    def read() -> None:
        problems = []
        for secret in secrets():
            try:
                checker(secret)
            except ValueError as error:
                problems.append(f"webhook {name}: a secret {error}")
        if problems:
            raise ConfigError("\n".join(problems))

    return read


def _client(source: EventSourceConfig) -> Callable[[], None]:
    """Makes whoever would ask a sender, with its certificates, and asks nothing."""

    def read() -> None:
        from dispatcher.clock import SystemClock
        from dispatcher.dr.ven2_client import Vtn2Client
        from dispatcher.dr.vtn_client import VtnClient

        made = (Vtn2Client if source.protocol == "openadr-2.0b" else VtnClient)(source, now=SystemClock().now)
        made.close()

    return read
