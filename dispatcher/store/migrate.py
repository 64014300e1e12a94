"""Brings a database to the tables that this version of gridshift needs, and tells when that cannot be.

Each upgrade is one transaction: a database is at one revision or the next, never between. What the revisions do stands in
``migrations/versions``.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from dispatcher.errors import StoreUnavailable
from dispatcher.store.engine import database, describe, make_engine, sqlite_path

_MIGRATIONS = Path(__file__).parent / "migrations"
#: Key of the PostgreSQL advisory lock that lets one process upgrade at a time.
_UPGRADE_LOCK = 0x6772_6964_7570


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def head() -> str:
    """The revision that this version of gridshift needs."""
    return str(ScriptDirectory.from_config(_config()).get_current_head())


def check_revision(connection: Connection, where: str) -> None:
    """Raise StoreUnavailable, with the remedy, unless the database is at the revision that this version needs."""
    current = MigrationContext.configure(connection).get_current_revision()
    if current == head():
        return
    _refuse_newer(current, where)
    raise StoreUnavailable(f"{where} is at revision {current or 'none'}, {head()} is needed; run 'gridshift db upgrade'")


def _refuse_newer(current: str | None, where: str) -> None:
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if current is not None and current not in known:
        raise StoreUnavailable(
            f"{where} was upgraded by a newer gridshift (its revision {current} is unknown to this version, which knows up to "
            f"{head()}); install that newer version, or restore the backup made before the upgrade"
        )


def upgrade(url: str) -> str:
    """Bring the database to the newest revision, making a SQLite file that does not exist; returns that revision.

    Raises StoreUnavailable for a database that a newer gridshift upgraded, or that cannot be reached; nothing is changed then.
    """
    parsed = database(url)
    where = describe(parsed)
    path = sqlite_path(parsed)
    engine = make_engine(parsed, create=True, wait_s=60.0, pool_size=1)
    try:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with engine.execution_options(write=True).begin() as connection:
            if path is None:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
            _refuse_newer(MigrationContext.configure(connection).get_current_revision(), where)
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except (SQLAlchemyError, OSError) as error:
        reason = getattr(error, "orig", None) or error
        raise StoreUnavailable(f"{where} could not be upgraded: {reason}; nothing was changed") from error
    finally:
        engine.dispose()
    return head()
