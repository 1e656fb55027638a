"""Lanes: stretches of a history without a branch, so that a search passes each at once.

A rule opens a segment where its actor stands, and no other segment ever goes on in the same way
from there: the actor has left. So a segment and those that rules opened behind it, one after
another, are a lane. It is named by its first segment, and in it a lower id is earlier. A path that
enters a lane passes all that lies before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Boolean, Connection, bindparam, func, select, text, tuple_

from statevisor.store import broods
from statevisor.store.prepared import Prepared, inserting
from statevisor.store.tables import blend, lane, version

#: Blends of a lane that are read at a time.
PART = 64
#: Lanes that are read at a time.
NEAR = 16
#: Greater than the order of every parent.
LAST = 2**31 - 1

_ADD = inserting(lane)
_ADD_BLEND = inserting(blend)
_LANE = Prepared(select(lane.c.head).where(lane.c.segment == bindparam("at")))
_PLACE = Prepared(
    select(
        version.c.segment,
        version.c.position,
        func.coalesce(lane.c.head, version.c.segment).label("lane"),
    )
    .outerjoin(lane, lane.c.segment == version.c.segment)
    .where(version.c.id == bindparam("key"))
)
#: A lane and those above it, nearest first, each with the place that it begins at.
UP = Prepared(
    text(
        """
    WITH RECURSIVE up(lane, segment, position, above, n) AS (
        SELECT s.id, s.parent, s.position,
               coalesce((SELECT l.head FROM lane l WHERE l.segment = s.parent), s.parent), 1
        FROM segment s WHERE s.id = :at
        UNION ALL
        SELECT up.above,
               (SELECT s.parent FROM segment s WHERE s.id = up.above),
               (SELECT s.position FROM segment s WHERE s.id = up.above),
               (SELECT coalesce((SELECT l.head FROM lane l WHERE l.segment = s.parent), s.parent)
                FROM segment s WHERE s.id = up.above),
               n + 1
        FROM up WHERE up.above IS NOT NULL AND n < :most
    )
    SELECT lane, segment, position, above,
           EXISTS (SELECT 1 FROM blend b WHERE b.head = up.lane) AS blends
    FROM up ORDER BY n
    """
    ).columns(
        lane=BigInteger,
        segment=BigInteger,
        position=BigInteger,
        above=BigInteger,
        blends=Boolean,
    )
)
_BLENDED = Prepared(
    select(
        blend.c.segment.label("behind"),
        blend.c.ord,
        blend.c.source.label("segment"),
        blend.c.position,
        func.coalesce(lane.c.head, blend.c.source).label("lane"),
    )
    .outerjoin(lane, lane.c.segment == blend.c.source)
    .where(
        blend.c.head == bindparam("at"),
        tuple_(blend.c.segment, blend.c.ord) < tuple_(bindparam("low"), bindparam("before")),
    )
    .order_by(blend.c.segment.desc(), blend.c.ord.desc())
    .limit(bindparam("most"))
)


def prolong(conn: Connection, made: int, parent: int) -> None:
    """Let a segment that a rule opened be in its parent's lane."""
    _ADD.run(conn, {"segment": made, "head": of(conn, parent)})


def join(conn: Connection, made: int, merged: Iterable[int]) -> None:
    """Note which versions the rule that opened a segment took in beside its actor's own state."""
    head = of(conn, made)
    places = [place(conn, number) for number in merged]
    rows = [
        {"head": head, "segment": made, "ord": n, "source": at.segment, "position": at.position}
        for n, at in enumerate(places, start=1)
    ]
    _ADD_BLEND.many(conn, rows)


def of(conn: Connection, at: int) -> int:
    """The lane of a segment."""
    found = _LANE.scalar(conn, {"at": at})
    return at if found is None else int(found)


class Place(NamedTuple):
    """Where a version stands."""

    segment: int
    position: int
    lane: int
    below: int | None = None  #: the segment that this one goes on from, if it has no row yet


def place(conn: Connection, number: int) -> Place:
    """Where a version stands."""
    row = _PLACE.first(conn, {"key": number})
    if row is not None:
        return Place(*row)
    child = broods.of_number(conn, number)
    assert child is not None  # every version has a row or is one of a brood
    return Place(child.segment, child.brood.position, child.segment, child.brood.below)


class Above(NamedTuple):
    """A row of `UP`."""

    lane: int
    segment: int | None
    position: int
    above: int | None
    blends: bool


def up(conn: Connection, at: int) -> list[Any]:
    """A lane and some of those above it, nearest first, with what `UP` says of each."""
    rows = UP.all(conn, {"at": at, "most": NEAR})
    if rows:
        return rows
    child = broods.of_segment(conn, at)
    assert child is not None  # as in `place`
    above = of(conn, child.brood.below)
    return [Above(at, child.brood.below, child.brood.position, above, False), *up(conn, above)]


def blended(conn: Connection, at: int, low: int, before: int) -> list[Any]:
    """The next places blended into a lane, last first, with the segment behind each blend.

    Those of segments before `low`, and those of `low` whose order is less than `before`.
    """
    return _BLENDED.all(conn, {"at": at, "low": low, "before": before, "most": PART})
