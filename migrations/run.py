"""Bring a database to the newest schema.

The migrations travel inside the package; the caller holds whatever lock keeps others away.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    insert,
    inspect,
    select,
)

if TYPE_CHECKING:
    from alembic.config import Config

# Alembic is imported where it is used: a server whose database is new or up to date starts without
# it, half a second sooner.

_LOCATION = "statevisor.migrations:."
#: Alembic's own table, as it makes it.
_VERSION = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


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


def upgrade(conn: Connection, newest: MetaData | None = None) -> None:
    """Apply what is missing, inside the connection's transaction.

    An empty database gets the tables of `newest` at once, which are what all migrations lead to.
    Raises: NewerSchema.
    """
    if current(conn) == head():
        return
    if newest is not None and not inspect(conn).get_table_names():
        newest.create_all(conn, checkfirst=False)
        _VERSION.create(conn, checkfirst=False)
        conn.execute(insert(_VERSION).values(version_num=head()))
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
