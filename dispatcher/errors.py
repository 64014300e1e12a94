"""The errors of the dispatcher, all in one place; the docstring is the default message."""


class GridshiftError(Exception):
    """Something went wrong in gridshift."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class BadInput(GridshiftError):
    """Input is wrong. ``problems`` lists (field, value, remedy)."""

    def __init__(self, problems: list[tuple[str, object, str]]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{field}: {value!r}: {remedy}" for field, value, remedy in problems))


class ConfigError(GridshiftError):
    """The configuration is wrong; the message names the key, its line or path, and what would be right."""


class NotFound(GridshiftError):
    """No such thing."""


class AlreadyExists(GridshiftError):
    """A job with this id exists already."""


class StaleState(GridshiftError):
    """The job is no longer in the state this change was decided on; nothing was written."""


class IllegalMove(GridshiftError):
    """The state table has no such edge; the message tells the job's story."""


class StoreUnavailable(GridshiftError):
    """The database did not take the write (locked, gone, or the disk is full); nothing was stored."""


class NotTheLeader(GridshiftError):
    """Another control plane works on this database."""


class ClusterUnreachable(GridshiftError):
    """The cluster did not answer; whether it acted is unknown.

    ``maybe_sent`` is False only where the request certainly never left (no connection could be made)."""

    def __init__(self, message: str | None = None, *, maybe_sent: bool = True) -> None:
        super().__init__(message or "The cluster did not answer; whether it acted is unknown.")
        self.maybe_sent = maybe_sent


class ClusterAccessDenied(ClusterUnreachable):
    """The cluster wants a token, or does not accept ours."""


class LaunchRefused(GridshiftError):
    """The cluster answered that it will not run this job."""


class PackageRejected(GridshiftError):
    """The package is not acceptable; the message says why."""
