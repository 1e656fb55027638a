"""Segments and the paths they form.

Recursion runs over segments, never over versions, and its steps are scalar subqueries: SQLite
builds a Bloom filter over the whole table for the join form, on every query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Boolean, Connection, Integer, Text, bindparam, select, text

from statevisor.hypervisor.errors import NotFound, VersionNotFound
from statevisor.hypervisor.records import SegmentRecord
from statevisor.store import broods, lanes
from statevisor.store.broods import Child
from statevisor.store.prepared import Numbered, Prepared
from statevisor.store.tables import segment as table

_GET = Prepared(select(table).where(table.c.id == bindparam("at")))
_INSERT = Numbered(table)

#: Every segment of a path down to the one that holds `floor`, nearest first, and how far it goes.
PATH = Prepared(
    text(
        """
    WITH RECURSIVE path(id, top, parent, position, rooted, depth) AS (
        SELECT id, CAST(:top AS BIGINT), parent, position, rooted, depth FROM segment WHERE id = :at
        UNION ALL
        SELECT path.parent,
               CASE WHEN path.top < path.position THEN path.top ELSE path.position END,
               (SELECT s.parent FROM segment s WHERE s.id = path.parent),
               (SELECT s.position FROM segment s WHERE s.id = path.parent),
               (SELECT s.rooted FROM segment s WHERE s.id = path.parent),
               path.depth - 1
        FROM path WHERE path.parent IS NOT NULL AND path.position > :floor
    )
    SELECT id, top, position, rooted, depth FROM path WHERE top >= position ORDER BY depth DESC
    """
    ).columns(id=BigInteger, top=BigInteger, position=BigInteger, rooted=Boolean, depth=Integer)
)

#: A segment and those above it, nearest first.
UP = Prepared(
    text(
        """
    WITH RECURSIVE up(id, n) AS (
        SELECT CAST(:at AS BIGINT), 1
        UNION ALL
        SELECT (SELECT s.parent FROM segment s WHERE s.id = up.id), n + 1
        FROM up WHERE up.id IS NOT NULL AND n < :most
    )
    SELECT s.id, s.actor_id, s.parent, s.position, s.rooted, s.depth
    FROM up JOIN segment s ON s.id = up.id ORDER BY up.n
    """
    ).columns(
        id=BigInteger,
        actor_id=Text,
        parent=BigInteger,
        position=BigInteger,
        rooted=Boolean,
        depth=Integer,
    )
)

#: The segment that holds the last event at a position: the first on the way up not above it.
HOME = Prepared(
    text(
        """
    WITH RECURSIVE up(id, parent, position, depth) AS (
        SELECT id, parent, position, depth FROM segment WHERE id = :at
        UNION ALL
        SELECT up.parent,
               (SELECT s.parent FROM segment s WHERE s.id = up.parent),
               (SELECT s.position FROM segment s WHERE s.id = up.parent),
               up.depth - 1
        FROM up WHERE up.parent IS NOT NULL AND up.position > :top
    )
    SELECT id FROM up WHERE position <= :top ORDER BY depth DESC LIMIT 1
    """
    ).columns(id=BigInteger)
)


@dataclass(frozen=True, slots=True)
class Step:
    """One segment of a path."""

    id: int
    top: int  #: the path follows it up to here
    position: int
    rooted: bool
    depth: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment's row."""

    record: SegmentRecord
    place: int  #: the segment that its first state belongs to
    child: Child | None = None  #: whose it is, if that has no rows yet, nor has this

    def place_of(self, position: int) -> int:
        """The segment under which the image of a position on this one is kept."""
        return self.place if position == self.record.position else self.record.id


def get(conn: Connection, segment: int) -> Segment:
    """Raises: NotFound."""
    row = _GET.first(conn, {"at": segment})
    if row is not None:
        return Segment(_record(row), row.id if row.place is None else row.place)
    child = broods.of_segment(conn, segment)
    if child is None:
        raise NotFound(f"there is no segment {segment}")
    return Segment(child.stretch(), child.brood.place, child)


def above(conn: Connection, segment: int, position: int) -> tuple[int, int] | None:
    """Where the path of a child without rows goes on, from its segment and a position there."""
    child = broods.of_segment(conn, segment)
    return None if child is None else (child.brood.below, min(position, child.brood.position))


def up(conn: Connection, segment: int, limit: int) -> tuple[SegmentRecord, ...]:
    """A segment and those that its path comes from, nearest first. Raises: NotFound."""
    rows = UP.all(conn, {"at": segment, "most": limit})
    if rows:
        return tuple(map(_record, rows))
    child = broods.of_segment(conn, segment)
    if child is None:
        raise NotFound(f"there is no segment {segment}")
    return (child.stretch(), *up(conn, child.brood.below, limit))[:limit]


def _record(row: Any) -> SegmentRecord:
    return SegmentRecord(
        id=row.id,
        actor_id=row.actor_id,
        parent=row.parent,
        position=row.position,
        rooted=row.rooted,
        depth=row.depth,
    )


def find_home(conn: Connection, segment: int, position: int) -> Segment | None:
    """The segment that holds the last event at a place of a path.

    None if the state there is not known, as before an import. Raises: NotFound.
    """
    here = get(conn, segment)
    if position < here.record.position:
        at = segment if here.child is None else here.record.parent
        found = HOME.scalar(conn, {"at": at, "top": position})
        if found is None:
            return None
        here = get(conn, found)
    record = here.record
    unknown = record.parent is None and not record.rooted and record.position > 0
    return None if unknown else here


def home(conn: Connection, segment: int, position: int) -> Segment:
    """As `find_home`. Raises: NotFound; VersionNotFound, if the state is not known."""
    here = find_home(conn, segment, position)
    if here is None:
        raise VersionNotFound(f"the state at position {position} is not part of this history")
    return here


def path(conn: Connection, segment: int, position: int, floor: int = -1) -> list[Step]:
    """Segments of a path, nearest first, down to the one that holds `floor`."""
    rows = PATH.all(conn, {"at": segment, "top": position, "floor": floor})
    if not rows and (child := broods.of_segment(conn, segment)) is not None:
        begin, below = child.brood.position, child.brood.below
        more = path(conn, below, min(position, begin), floor) if begin > floor else []
        first = Step(segment, position, begin, False, child.brood.depth + 1)
        return [first, *more] if position >= begin else more
    return [Step(row.id, row.top, row.position, row.rooted, row.depth) for row in rows]


def insert_segment(
    conn: Connection,
    actor_id: str,
    position: int,
    *,
    parent: Segment | None = None,
    rooted: bool = False,
) -> Segment:
    """Add a segment; one with a parent begins at that position of it."""
    shares = parent is not None and not rooted
    place = parent.place_of(position) if parent is not None and shares else None
    values = {
        "actor_id": actor_id,
        "parent": None if parent is None else parent.record.id,
        "position": position,
        "rooted": rooted,
        "depth": 0 if parent is None else parent.record.depth + 1,
        "place": place,
    }
    made = SegmentRecord(
        id=_INSERT.add(conn, values),
        actor_id=actor_id,
        parent=None if parent is None else parent.record.id,
        position=position,
        rooted=rooted,
        depth=0 if parent is None else parent.record.depth + 1,
    )
    if parent is not None and rooted:
        lanes.prolong(conn, made.id, parent.record.id)
    return Segment(made, made.id if place is None else place)
