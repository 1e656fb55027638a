"""Giving a child of a brood rows of its own, before something changes it."""

from __future__ import annotations

from sqlalchemy import bindparam, delete, update

from statevisor.hypervisor.vocab import Op
from statevisor.store import broods, segments
from statevisor.store.broods import Child
from statevisor.store.prepared import Prepared, inserting
from statevisor.store.scope import Scope
from statevisor.store.tables import actor, actor_label, brood, segment, version, version_parent

_INSERT_SEGMENT = inserting(segment)
_INSERT_ACTOR = inserting(actor)
_INSERT_LABEL = inserting(actor_label)
_INSERT_VERSION = inserting(version)
_INSERT_EDGE = inserting(version_parent)
_DROP = Prepared(delete(brood).where(brood.c.id == bindparam("key")))
_MARK = Prepared(
    update(brood)
    .where(brood.c.id == bindparam("key"))
    .values(waiting=brood.c.waiting - 1, hatched=bindparam("bits"))
)
_TAKE_OVER = Prepared(update(brood).values(epoch=brood.c.epoch + 1, owner=bindparam("by")))


def hatch(scope: Scope, child: Child) -> None:
    """Give a child rows of its own, as every other fork has them."""
    row, conn, key = child.brood, scope.conn, child.id
    shared = {"owner": row.owner, "drift": row.drift, "created_us": row.created_us}
    stands = {"segment": child.segment, "position": row.position}
    _INSERT_SEGMENT.run(
        conn,
        {
            **{"id": child.segment, "actor_id": key, "parent": row.below, "place": row.place},
            **{"position": row.position, "rooted": False, "depth": row.depth + 1},
        },
    )
    _INSERT_ACTOR.run(
        conn,
        {
            **{"id": key, "name": child.name, "model": row.model, "seed": child.seed},
            **{"base": row.base, "head": 0, "next_seq": 1, "generation": 1, "pinned": False},
            **{"labels": row.labels or {}, "epoch": row.epoch, "parent": row.parent},
            **{"updated_us": row.created_us, **stands, **shared},
        },
    )
    labels = (row.labels or {}).items()
    _INSERT_LABEL.many(conn, [{"key": k, "actor_id": key, "value": one} for k, one in labels])
    _INSERT_VERSION.run(
        conn,
        {
            **{"id": child.number, "actor_id": key, "seq": 0, "place": row.place},
            **{"op": Op.FORK.value, "hidden": False, "build": row.build, "labels": {}},
            **{"epoch": 1, **stands, **shared},
        },
    )
    _INSERT_EDGE.run(conn, {"child": child.number, "ord": 0, "parent": row.parent})
    if row.waiting == 1:
        _DROP.run(conn, {"key": row.id})
    else:
        bits = bytearray(row.hatched or bytes((row.count + 7) // 8))
        bits[child.nth >> 3] |= 1 << (child.nth & 7)
        _MARK.run(conn, {"key": row.id, "bits": bytes(bits)})


def by_id(scope: Scope, key: str) -> bool:
    """Let the actor of an id have rows; says whether it had none before."""
    return _hatched(scope, broods.of_id(scope.conn, key))


def by_segment(scope: Scope, at: int) -> bool:
    """As `by_id`, of a segment."""
    return _hatched(scope, broods.of_segment(scope.conn, at))


def by_number(scope: Scope, number: int) -> bool:
    """As `by_id`, of a version."""
    return _hatched(scope, broods.of_number(scope.conn, number))


def place(scope: Scope, at: int, position: int) -> int:
    """The segment that an image of a place is kept under; it has a row from here on.

    Raises: NotFound, VersionNotFound.
    """
    here = segments.home(scope.conn, at, position)
    found = here.place_of(position)
    if here.child is not None and found == here.record.id:
        hatch(scope, here.child)
    return found


def take_over(scope: Scope, incarnation: int) -> None:
    """Make a new incarnation the owner of all that have no rows."""
    _TAKE_OVER.run(scope.conn, {"by": incarnation})


def _hatched(scope: Scope, child: Child | None) -> bool:
    if child is None:
        return False
    hatch(scope, child)
    return True
