"""Who holds the data folder."""

from __future__ import annotations

from sqlalchemy import Connection, func, insert, select

from statevisor.store import actors, journal
from statevisor.store.scope import Scope
from statevisor.store.tables import owner

_CURRENT = select(func.max(owner.c.incarnation))
_INSERT = insert(owner)


def current(conn: Connection) -> int:
    """The highest incarnation; 0 before the first claim."""
    return conn.scalar(_CURRENT) or 0


def claim(scope: Scope, name: str) -> int:
    """Take the folder: older writers and older epochs are stale from here on.

    What an earlier owner has journalled up to now is read again, as it may have written after this
    catalog was opened.
    """
    incarnation = current(scope.conn) + 1
    row = {"incarnation": incarnation, "name": name, "claimed_us": scope.now_us}
    scope.conn.execute(_INSERT, row)
    actors.take_over(scope, incarnation)
    scope.incarnation = incarnation
    journal.load(scope.conn, scope.tails)
    return incarnation
