"""Edges between versions, read one way: whole lines of them, or all around one version at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Connection, bindparam, select, text

from statevisor.store import brood_versions
from statevisor.store.prepared import Prepared, PreparedIn
from statevisor.store.tables import version_parent

#: So many versions are worth a look at each one's children alone.
_FEW = 200

_edge = version_parent.c
_UP = PreparedIn(
    lambda keys: (
        select(_edge.child.label("here"), _edge.parent.label("near"))
        .where(_edge.child.in_(keys))
        .order_by(_edge.child, _edge.ord)
    )
)
_DOWN = PreparedIn(
    lambda keys: (
        select(_edge.parent.label("here"), _edge.child.label("near"))
        .where(_edge.parent.in_(keys))
        .order_by(_edge.parent, _edge.child)
    )
)
_CHILDREN = (
    select(_edge.parent.label("here"), _edge.child.label("near"))
    .order_by(_edge.parent, _edge.child)
    .limit(bindparam("rows"))
)
_SOME_DOWN = PreparedIn(lambda keys: _CHILDREN.where(_edge.parent.in_(keys)))
#: One that was blended with itself has two edges to its child.
_FIRST_DOWN = Prepared(_CHILDREN.where(_edge.parent == bindparam("at")).distinct())
#: Versions without rows, which are next to none but their parents, are left out of all below.
#: A version and those after it, for as long as each has one neighbour and none else is next.
_LINE_UP = Prepared(
    text(
        """
    WITH RECURSIVE line(id, n) AS (
        SELECT CAST(:at AS BIGINT), 1
        UNION ALL
        SELECT (SELECT CASE WHEN count(*) = 1 THEN max(e.parent) END
                FROM version_parent e WHERE e.child = line.id), n + 1
        FROM line WHERE line.id > :bound AND n < :most
    )
    SELECT id FROM line WHERE id > :bound ORDER BY n
    """
    ).columns(id=BigInteger)
)
_LINE_DOWN = Prepared(
    text(
        """
    WITH RECURSIVE line(id, n) AS (
        SELECT CAST(:at AS BIGINT), 1
        UNION ALL
        SELECT (SELECT CASE WHEN count(*) = 1 AND NOT EXISTS
                            (SELECT 1 FROM brood b WHERE b.parent = line.id) THEN max(e.child) END
                FROM version_parent e WHERE e.parent = line.id), n + 1
        FROM line WHERE line.id < :bound AND n < :most
    )
    SELECT id FROM line WHERE id < :bound ORDER BY n
    """
    ).columns(id=BigInteger)
)
#: Versions around one, nearest first, as far as a depth, each once for every distance from it.
#: CROSS: the edges must be looked up, one version after another.
_REACH_UP = Prepared(
    text(
        """
    WITH RECURSIVE near(id, n) AS (
        SELECT CAST(:at AS BIGINT), 0
        UNION
        SELECT e.parent, near.n + 1 FROM near CROSS JOIN version_parent e
        WHERE e.child = near.id AND near.n < :depth
    )
    SELECT id FROM near LIMIT :most
    """
    ).columns(id=BigInteger)
)
_REACH_DOWN = Prepared(
    text(
        """
    WITH RECURSIVE near(id, n) AS (
        SELECT CAST(:at AS BIGINT), 0
        UNION
        SELECT e.child, near.n + 1 FROM near CROSS JOIN version_parent e
        WHERE e.parent = near.id AND near.n < :depth
        AND e.child < coalesce(
            (SELECT x.child FROM version_parent x WHERE x.parent = near.id
             ORDER BY x.child LIMIT 1 OFFSET :most), 9223372036854775807)
    )
    SELECT id FROM near LIMIT :most
    """
    ).columns(id=BigInteger)
)


class Direction(NamedTuple):
    """Up or down a lineage."""

    up: bool
    near: PreparedIn  #: neighbours that have rows
    line: Prepared
    reach: Prepared  #: versions around one
    bound: int  #: beyond every id that may be met

    def around(self, conn: Connection, ids: Sequence[int]) -> list[Any]:
        """All edges at versions, each a version and a neighbour."""
        found = self.near.all(conn, ids)
        if not self.up:
            return _merged(found, brood_versions.below(conn, ids))
        known = {row.here for row in found}
        return found + brood_versions.above(conn, [number for number in ids if number not in known])

    def follow(self, conn: Connection, number: int, bound: int, most: int) -> list[int]:
        """A version and those after it for as long as each has one neighbour, short of a bound."""
        rows = self.line.all(conn, {"at": number, "bound": bound, "most": most})
        return [row.id for row in rows]


UPWARD = Direction(True, _UP, _LINE_UP, _REACH_UP, 0)
DOWNWARD = Direction(False, _DOWN, _LINE_DOWN, _REACH_DOWN, 2**63 - 1)


class Edges:
    """Neighbours of versions one way, those of versions around one read ahead."""

    def __init__(self, conn: Connection, way: Direction, limit: int) -> None:
        self._conn = conn
        self._way = way
        self._limit = limit  #: versions that are wanted
        self._known: dict[int, list[int]] = {}

    def ahead(self, start: int, depth: int) -> None:
        """Read those of a version and of what is around it: two statements, whatever its form."""
        params = {"at": start, "depth": depth, "most": self._limit}
        found = self._way.reach.all(self._conn, params)
        self._read(list(dict.fromkeys(row.id for row in found)))

    def of(self, ids: Iterable[int]) -> list[tuple[int, int]]:
        """Edges at versions, in the order of the versions asked for."""
        ids = tuple(ids)
        if missing := [number for number in ids if number not in self._known]:
            self._read(missing)
        return [(here, near) for here in ids for near in self._known[here]]

    def _read(self, ids: Sequence[int]) -> None:
        for number in ids:
            self._known[number] = []
        for here, near in self._rows(ids):
            self._known[here].append(near)

    def _rows(self, ids: Sequence[int]) -> list[Any]:
        # One version may have very many children. No more of them count than versions are wanted,
        # and one that tells that some were left out.
        if self._way is UPWARD or self._limit > _FEW:
            return self._way.around(self._conn, ids)
        most = self._limit + 1
        found = _SOME_DOWN.all(self._conn, ids, {"rows": 2 * _FEW})
        if len(found) >= 2 * _FEW:
            one = {"rows": most}
            found = [row for at in ids for row in _FIRST_DOWN.all(self._conn, {"at": at, **one})]
        return _merged(found, brood_versions.below(self._conn, ids, most))


def _merged(rows: list[Any], more: list[Any]) -> list[Any]:
    """Edges downwards, of versions with rows and of those without, by version."""
    return sorted([*rows, *more]) if more else rows
