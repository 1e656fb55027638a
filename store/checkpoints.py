"""Which image stands for which place."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Connection, bindparam, select, text, update

from statevisor.hypervisor.errors import VersionNotFound
from statevisor.hypervisor.records import ImageRef
from statevisor.store.extents import Extents
from statevisor.store.prepared import Prepared, inserting
from statevisor.store.scope import Scope
from statevisor.store.segments import above, find_home, home
from statevisor.store.tables import checkpoint, image

_COLUMNS = [column for column in image.c if column.name != "orphaned_us"]
_KNOWN = Prepared(select(image.c.digest).where(image.c.digest == bindparam("key")))
_GET = Prepared(
    select(*_COLUMNS).where(image.c.digest == bindparam("key"), image.c.orphaned_us.is_(None))
)
_AT = Prepared(
    select(*_COLUMNS)
    .join(checkpoint, checkpoint.c.digest == image.c.digest)
    .where(checkpoint.c.segment == bindparam("at"), checkpoint.c.position == bindparam("top"))
)
_ALL = Prepared(select(*_COLUMNS).order_by(image.c.digest))
#: In parts: all of them at once would leave the process large.
_EXTENTS = Prepared(
    select(image.c.digest, image.c.slab, image.c.offset, image.c.length)
    .where(image.c.digest > bindparam("after"))
    .order_by(image.c.digest)
    .limit(bindparam("limit"))
)
_PART = 5000
_INSERT_IMAGE = inserting(image)
_INSERT = inserting(checkpoint)
_MOVE = Prepared(
    update(image)
    .where(image.c.digest == bindparam("key"))
    .values(
        slab=bindparam("new_slab"),
        offset=bindparam("new_offset"),
        length=bindparam("new_length"),
        orphaned_us=None,
    )
)

#: Every segment of a path with its last image there, up to the first that has one or is rooted.
NEAREST = Prepared(
    text(
        """
    WITH RECURSIVE path(id, top, parent, position, rooted, depth, hit) AS (
        SELECT id, CAST(:top AS BIGINT), parent, position, rooted, depth,
               (SELECT max(c.position) FROM checkpoint c
                WHERE c.segment = segment.id AND c.position <= :top)
        FROM segment WHERE id = :at
        UNION ALL
        SELECT path.parent,
               CASE WHEN path.top < path.position THEN path.top ELSE path.position END,
               (SELECT s.parent FROM segment s WHERE s.id = path.parent),
               (SELECT s.position FROM segment s WHERE s.id = path.parent),
               (SELECT s.rooted FROM segment s WHERE s.id = path.parent),
               path.depth - 1,
               (SELECT max(c.position) FROM checkpoint c
                WHERE c.segment = path.parent
                  AND c.position <= CASE WHEN path.top < path.position
                                         THEN path.top ELSE path.position END)
        FROM path
        WHERE path.parent IS NOT NULL AND path.hit IS NULL
          AND NOT (path.rooted AND path.top >= path.position)
    )
    SELECT id, hit, rooted FROM path ORDER BY depth LIMIT 1
    """
    ).columns(id=BigInteger, hit=BigInteger, rooted=Boolean)
)


def get(conn: Connection, digest: str) -> ImageRef | None:
    """An image by its digest, unless it is about to be freed."""
    row = _GET.first(conn, {"key": digest})
    return None if row is None else _ref(row)


def at(conn: Connection, segment: int, position: int) -> ImageRef | None:
    """The image of exactly one place."""
    here = find_home(conn, segment, position)
    if here is None:
        return None
    place = here.place_of(position)
    row = _AT.first(conn, {"at": place, "top": position})
    return None if row is None else _ref(row)


def nearest(conn: Connection, segment: int, position: int) -> tuple[int, ImageRef] | None:
    """The last image at or before a place.

    Raises: NotFound; VersionNotFound, if nothing leads to the state there.
    """
    home(conn, segment, position)
    row = NEAREST.first(conn, {"at": segment, "top": position})
    if row is None:  # the segment of a child without rows, which has no images
        place = above(conn, segment, position)
        assert place is not None  # it was found
        row = NEAREST.one(conn, {"at": place[0], "top": place[1]})
    if row.hit is not None:
        found = _AT.one(conn, {"at": row.id, "top": row.hit})
        return int(row.hit), _ref(found)
    if row.rooted:
        raise VersionNotFound(f"the image that segment {row.id} begins with is missing")
    return None


def live(conn: Connection) -> tuple[ImageRef, ...]:
    """Every image that has not been given back, whether a place names it still or not."""
    return tuple(_ref(row) for row in _ALL.all(conn, {}))


def extents(conn: Connection) -> Extents:
    """Where everything lies that has not been given back."""
    found, after = Extents(), ""
    while part := _EXTENTS.all(conn, {"after": after, "limit": _PART}):
        for row in part:
            found.add(row.slab, row.offset, row.length)
        after = part[-1].digest
    return found


def keep(
    scope: Scope, segment: int, position: int, ref: ImageRef, *, anew: bool = True
) -> ImageRef:
    """Name an image as that of a place given by its own segment; returns the one it has now.

    The first image named stays: its digest is part of versions. Where the same digest was written
    again (say, since its bytes were damaged) the newest bytes count, unless it is not `anew`.
    """
    named = _AT.first(scope.conn, {"at": segment, "top": position})
    if named is not None and named.digest != ref.digest:
        return _ref(named)
    if _KNOWN.first(scope.conn, {"key": ref.digest}) is None:
        _INSERT_IMAGE.run(scope.conn, _values(ref))
    elif (known := get(scope.conn, ref.digest)) != ref:
        if known is not None and not anew:
            ref = known
        else:
            moved = {"new_slab": ref.slab, "new_offset": ref.offset, "new_length": ref.length}
            _MOVE.run(scope.conn, {"key": ref.digest, **moved})
    if named is None:
        row = {"segment": segment, "position": position, "digest": ref.digest}
        _INSERT.run(scope.conn, {**row, "created_us": scope.now_us})
    return ref


def _values(ref: ImageRef) -> dict[str, object]:
    return {column.name: getattr(ref, column.name) for column in _COLUMNS}


def _ref(row: Any) -> ImageRef:
    return ImageRef(**row._asdict())
