"""Which image stands for which place."""

from __future__ import annotations

from sqlalchemy import Connection, Row, bindparam, insert, select, text, update

from statevisor.hypervisor.errors import VersionNotFound
from statevisor.hypervisor.records import ImageRef
from statevisor.store.scope import Scope
from statevisor.store.segments import home
from statevisor.store.tables import checkpoint, image

_GET = select(image).where(image.c.digest == bindparam("key"))
_AT = (
    select(image)
    .join(checkpoint, checkpoint.c.digest == image.c.digest)
    .where(checkpoint.c.segment == bindparam("at"), checkpoint.c.position == bindparam("top"))
)
_LIVE = (
    select(image).where(image.c.digest.in_(select(checkpoint.c.digest))).order_by(image.c.digest)
)
_INSERT_IMAGE = insert(image)
_INSERT = insert(checkpoint)
_MOVE = (
    update(image)
    .where(image.c.digest == bindparam("key"))
    .values(
        slab=bindparam("new_slab"), offset=bindparam("new_offset"), length=bindparam("new_length")
    )
)

#: Every segment of a path with its last image there, up to the first that has one or is rooted.
NEAREST = text(
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
)


def get(conn: Connection, digest: str) -> ImageRef | None:
    """An image by its digest."""
    row = conn.execute(_GET, {"key": digest}).first()
    return None if row is None else _ref(row)


def at(conn: Connection, segment: int, position: int) -> ImageRef | None:
    """The image of exactly one place."""
    place = home(conn, segment, position).place_of(position)
    row = conn.execute(_AT, {"at": place, "top": position}).first()
    return None if row is None else _ref(row)


def nearest(conn: Connection, segment: int, position: int) -> tuple[int, ImageRef] | None:
    """The last image at or before a place.

    Raises: NotFound; VersionNotFound, if nothing leads to the state there.
    """
    home(conn, segment, position)
    row = conn.execute(NEAREST, {"at": segment, "top": position}).one()
    if row.hit is not None:
        found = conn.execute(_AT, {"at": row.id, "top": row.hit}).one()
        return int(row.hit), _ref(found)
    if row.rooted:
        raise VersionNotFound(f"the image that segment {row.id} begins with is missing")
    return None


def live(conn: Connection) -> tuple[ImageRef, ...]:
    """Every image that stands for a place."""
    return tuple(_ref(row) for row in conn.execute(_LIVE))


def keep(scope: Scope, segment: int, position: int, ref: ImageRef) -> None:
    """Name an image as that of a place given by its own segment.

    The first image named stays: its digest is part of versions. Where the same digest was written
    again (say, since its bytes were damaged) the newest bytes count.
    """
    named = scope.conn.execute(_AT, {"at": segment, "top": position}).first()
    if named is not None and named.digest != ref.digest:
        return
    known = get(scope.conn, ref.digest)
    if known is None:
        scope.conn.execute(_INSERT_IMAGE, _values(ref))
    elif known != ref:
        moved = {"new_slab": ref.slab, "new_offset": ref.offset, "new_length": ref.length}
        scope.conn.execute(_MOVE, {"key": ref.digest, **moved})
    if named is None:
        row = {"segment": segment, "position": position, "digest": ref.digest}
        scope.conn.execute(_INSERT, {**row, "created_us": scope.now_us})


def _values(ref: ImageRef) -> dict[str, object]:
    return {column.name: getattr(ref, column.name) for column in image.c}


def _ref(row: Row[tuple[object, ...]]) -> ImageRef:
    return ImageRef(**row._mapping)
