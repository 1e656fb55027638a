"""Who holds the data folder."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from statevisor.store import actors, journal
from statevisor.store.prepared import Prepared, inserting
from statevisor.store.scope import Scope
from statevisor.store.tables import owner

_CURRENT = Prepared(select(func.max(owner.c.incarnation)))
_INSERT = inserting(owner)


def current(conn: Connection) -> int:
    """The highest incarnation; 0 before the first claim."""
    return _CURRENT.scalar(conn, {}) or 0


def claim(scope: Scope, name: str) -> int:
    """Take the folder: older writers and older epochs are stale from here on.

    What an earlier owner has journalled up to now is read again, as it may have written after this
    catalog was opened.
    """
    incarnation = current(scope.conn) + 1
    row = {"incarnation": incarnation, "name": name, "claimed_us": scope.now_us}
    _INSERT.run(scope.conn, row)
    actors.take_over(scope, incarnation)
    scope.incarnation = incarnation
    journal.load(scope.conn, scope.tails)
    return incarnation
