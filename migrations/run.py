"""Bring a database to the newest schema.

The migrations travel inside the package; the caller holds whatever lock keeps others away.
"""

from __future__ import annotations

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

_LOCATION = "statevisor.migrations:."


def head() -> str:
    """The newest revision that this package knows."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None, "the package ships at least one migration"
    return revision


def current(conn: Connection) -> str | None:
    """The revision a database is at; None if it is empty."""
    return MigrationContext.configure(conn).get_current_revision()


def upgrade(conn: Connection) -> None:
    """Apply what is missing, inside the connection's transaction.

    Raises: alembic.util.CommandError, if the database is newer than this package.
    """
    if current(conn) == head():
        return
    config = _config()
    config.attributes["connection"] = conn
    command.upgrade(config, "head")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", _LOCATION)
    config.set_main_option("path_separator", "os")
    return config
