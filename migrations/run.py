"""Bring a database to the newest schema.

The migrations travel inside the package; the caller holds whatever lock keeps others away.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from sqlalchemy import Connection, column, inspect, select, table

if TYPE_CHECKING:
    from alembic.config import Config

# Alembic is imported where it is used: a server whose database is up to date starts without it,
# half a second sooner.

_LOCATION = "statevisor.migrations:."
_VERSION = table("alembic_version", column("version_num"))


class NewerSchema(Exception):
    """The database was migrated by a newer version of this package."""


def head() -> str:
    """The newest revision that this package knows: `0007` of `versions/v0007_title.py`."""
    names = [path.name for path in files("statevisor.migrations.versions").iterdir()]
    return max(name[1:5] for name in names if name.startswith("v") and name.endswith(".py"))


def current(conn: Connection) -> str | None:
    """The revision a database is at; None if it is empty."""
    if not inspect(conn).has_table(_VERSION.name):
        return None
    revision: str | None = conn.scalar(select(_VERSION.c.version_num))
    return revision


def upgrade(conn: Connection) -> None:
    """Apply what is missing, inside the connection's transaction. Raises: NewerSchema."""
    if current(conn) == head():
        return
    from alembic import command
    from alembic.util import CommandError

    config = _config()
    config.attributes["connection"] = conn
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise NewerSchema(str(error)) from error


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", _LOCATION)
    config.set_main_option("path_separator", "os")
    return config
