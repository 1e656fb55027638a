"""Taking out what nothing needs: deleted actors without living descendants, images without a place.

An image is freed in two steps, at least a grace apart: first it is no longer found by its digest,
then it is given back. Whoever found it just before the first step has until the second to name it.
"""

from __future__ import annotations

from sqlalchemy import and_, bindparam, delete, exists, select, update

from statevisor.hypervisor.records import ImageRef
from statevisor.store.owned import segments_of
from statevisor.store.prepared import Prepared
from statevisor.store.scope import Scope
from statevisor.store.tables import (
    actor,
    blend,
    brood,
    checkpoint,
    image,
    lane,
    mutation,
    segment,
    tag,
    token_run,
    touched,
    turn,
    version,
    version_parent,
    version_term,
)

#: Actors that one transaction takes out, so that no other operation waits long for it.
ACTORS = 64

_child = segment.alias("child")
#: Whoever goes on from a segment begins at a version there.
_branched = exists(
    select(_child.c.id)
    .join(version, version.c.segment == _child.c.parent)
    .where(version.c.actor_id == actor.c.id, _child.c.actor_id != actor.c.id)
)
_above, _below = version.alias("above"), version.alias("below")
_derived = exists(
    select(version_parent.c.child)
    .join(_above, _above.c.id == version_parent.c.parent)
    .join(_below, _below.c.id == version_parent.c.child)
    .where(_above.c.actor_id == actor.c.id, _below.c.actor_id != actor.c.id)
)
_bred = exists(
    select(brood.c.id)
    .join(version, version.c.id == brood.c.parent)
    .where(version.c.actor_id == actor.c.id)
)
_DEAD = Prepared(
    select(actor.c.id)
    .where(actor.c.deleted_us.is_not(None), ~_branched, ~_derived, ~_bred)
    .limit(bindparam("most"))
)
_owned = segments_of(lambda actor_id: actor_id == bindparam("key"))
_OWN = Prepared(
    select(segment.c.id).where(segment.c.id.in_(_owned)).order_by(segment.c.depth.desc())
)
_versions = select(version.c.id).where(version.c.actor_id == bindparam("key"))
#: In an order that never leaves a row whose foreign key leads nowhere; versions tell the segments.
_PURGE = (
    Prepared(delete(tag).where(tag.c.version.in_(_versions))),
    Prepared(delete(touched).where(touched.c.segment.in_(_owned))),
    Prepared(delete(blend).where(blend.c.head.in_(_owned))),
    Prepared(delete(lane).where(lane.c.segment.in_(_owned))),
    Prepared(delete(checkpoint).where(checkpoint.c.segment.in_(_owned))),
    Prepared(delete(token_run).where(token_run.c.segment.in_(_owned))),
    Prepared(delete(mutation).where(mutation.c.version.in_(_versions))),
    Prepared(delete(version_term).where(version_term.c.version.in_(_versions))),
    Prepared(delete(version_parent).where(version_parent.c.child.in_(_versions))),
    Prepared(delete(version).where(version.c.actor_id == bindparam("key"))),
    Prepared(delete(turn).where(turn.c.actor_id == bindparam("key"))),
    Prepared(delete(actor).where(actor.c.id == bindparam("key"))),
)
_DROP_SEGMENT = Prepared(delete(segment).where(segment.c.id == bindparam("key")))

_unnamed = ~exists(select(checkpoint.c.digest).where(checkpoint.c.digest == image.c.digest))
_NAMED = Prepared(select(checkpoint.c.digest).where(checkpoint.c.segment.in_(_owned)).distinct())
ORPHAN = Prepared(
    update(image)
    .where(image.c.digest == bindparam("key"), _unnamed)
    .values(orphaned_us=bindparam("now"))
)
_old = and_(image.c.orphaned_us.is_not(None), image.c.orphaned_us < bindparam("before"), _unnamed)
_FREED = Prepared(
    select(*[column for column in image.c if column.name != "orphaned_us"])
    .where(_old)
    .order_by(image.c.digest)
)
_FREE = Prepared(delete(image).where(_old))


def sweep(scope: Scope, grace_us: int) -> tuple[ImageRef, ...]:
    """Take out what nothing needs; returns the images whose bytes may be freed after the commit."""
    left = ACTORS
    while left and (dead := _DEAD.all(scope.conn, {"most": left})):
        for row in dead:
            _purge(scope, row.id)
        left -= len(dead)
    before = {"before": scope.now_us - grace_us}
    freed = tuple(ImageRef(**row._asdict()) for row in _FREED.all(scope.conn, before))
    _FREE.run(scope.conn, before)
    return freed


def _purge(scope: Scope, actor_id: str) -> None:
    key = {"key": actor_id}
    own, images = _OWN.all(scope.conn, key), _NAMED.all(scope.conn, key)
    for statement in _PURGE:
        statement.run(scope.conn, key)
    for row in own:
        _DROP_SEGMENT.run(scope.conn, {"key": row.id})
    for row in images:
        ORPHAN.run(scope.conn, {"key": row.digest, "now": scope.now_us})
