"""What gc asks of the catalog: which images stand where, which must stay, what is rubbish."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Connection, and_, bindparam, case, delete, func, literal, or_, select

from statevisor.hypervisor.catalog_port import Checkpoint, Rubbish
from statevisor.hypervisor.records import ImageRef
from statevisor.hypervisor.retention import Keep
from statevisor.hypervisor.vocab import Op
from statevisor.store.checkpoints import NEAREST
from statevisor.store.owned import segments_of
from statevisor.store.prepared import Prepared, PreparedIn
from statevisor.store.scope import Scope
from statevisor.store.sweep import ORPHAN
from statevisor.store.tables import (
    actor,
    brood,
    checkpoint,
    image,
    segment,
    tag,
    token_run,
    version,
    version_parent,
)

_NEXT = Prepared(
    select(checkpoint.c.segment)
    .where(checkpoint.c.segment > bindparam("after"))
    .distinct()
    .order_by(checkpoint.c.segment)
    .limit(bindparam("most"))
)
_refs = [column for column in image.c if column.name in ImageRef.__dataclass_fields__]
_ROWS = PreparedIn(
    lambda keys: (
        select(
            checkpoint.c.segment,
            checkpoint.c.position,
            checkpoint.c.created_us,
            segment.c.actor_id,
            and_(segment.c.rooted, segment.c.position == checkpoint.c.position).label("rooted"),
            actor.c.model,
            actor.c.pinned,
            *_refs,
        )
        .join(segment, segment.c.id == checkpoint.c.segment)
        .join(actor, actor.c.id == segment.c.actor_id)
        .join(image, image.c.digest == checkpoint.c.digest)
        .where(checkpoint.c.segment.in_(keys))
        .order_by(checkpoint.c.segment, checkpoint.c.position)
    )
)
_SNAPSHOTS = Prepared(
    select(version.c.place, version.c.position)
    .outerjoin(tag, tag.c.version == version.c.id)
    .where(
        or_(
            tag.c.name.is_not(None),
            and_(version.c.op == literal(Op.SNAPSHOT.value), version.c.hidden.is_(False)),
        )
    )
    .distinct()
)
_STANDS = Prepared(
    select(segment.c.parent, segment.c.position)
    .join(actor, actor.c.segment == segment.c.id)
    .where(actor.c.deleted_us.is_(None), segment.c.parent.is_not(None), segment.c.rooted.is_(False))
    .distinct()
)
_WAITING = Prepared(
    select(version.c.segment.label("parent"), version.c.position)
    .where(version.c.id.in_(select(brood.c.parent)))
    .distinct()
)
_DROP = Prepared(
    delete(checkpoint).where(
        checkpoint.c.segment == bindparam("at"), checkpoint.c.position == bindparam("top")
    )
)
_DIGEST = Prepared(
    select(checkpoint.c.digest)
    .join(segment, segment.c.id == checkpoint.c.segment)
    .where(
        checkpoint.c.segment == bindparam("at"),
        checkpoint.c.position == bindparam("top"),
        or_(segment.c.rooted.is_(False), segment.c.position != checkpoint.c.position),
    )
)

_ripe = image.c.orphaned_us < bindparam("before")
_DELETED = Prepared(select(actor.c.id).where(actor.c.deleted_us.is_not(None)))
_child = segment.alias("child")
_above, _below = version.alias("above"), version.alias("below")
#: Pairs of actors: the second needs the first.
_NEEDS = PreparedIn(
    lambda keys: (
        select(version.c.actor_id, _child.c.actor_id.label("by"))
        .join(_child, _child.c.parent == version.c.segment)
        .where(version.c.actor_id.in_(keys), _child.c.actor_id != version.c.actor_id)
        .distinct()
    )
)
_BLENDED = PreparedIn(
    lambda keys: (
        select(_above.c.actor_id, _below.c.actor_id.label("by"))
        .join(version_parent, version_parent.c.parent == _above.c.id)
        .join(_below, _below.c.id == version_parent.c.child)
        .where(_above.c.actor_id.in_(keys), _below.c.actor_id != _above.c.actor_id)
        .distinct()
    )
)
_BROODS = PreparedIn(
    lambda keys: (
        select(version.c.actor_id, brood.c.id.label("by"))
        .join(brood, brood.c.parent == version.c.id)
        .where(version.c.actor_id.in_(keys))
    )
)
_VERSIONS = PreparedIn(
    lambda keys: select(func.count().label("n")).where(version.c.actor_id.in_(keys))
)
_TOKENS = PreparedIn(
    lambda keys: select(func.coalesce(func.sum(token_run.c.count), 0).label("n")).where(
        token_run.c.segment.in_(segments_of(lambda actor_id: actor_id.in_(keys)))
    )
)
_ORPHANS = Prepared(
    select(
        func.count(),
        func.coalesce(func.sum(image.c.length), 0),
        func.coalesce(func.sum(case((_ripe, 1), else_=0)), 0),
        func.coalesce(func.sum(case((_ripe, image.c.length), else_=0)), 0),
    ).where(image.c.orphaned_us.is_not(None))
)


def page(conn: Connection, after: int, limit: int) -> tuple[Checkpoint, ...]:
    """The images of some segments, whole segments only."""
    keys = [row.segment for row in _NEXT.all(conn, {"after": after, "most": limit})]
    return tuple(
        Checkpoint(
            segment=row.segment,
            position=row.position,
            image=ImageRef(**{column.name: getattr(row, column.name) for column in _refs}),
            actor_id=row.actor_id,
            model=row.model,
            rooted=bool(row.rooted),
            pinned=row.pinned,
            created_at=row.created_us,
        )
        for row in (_ROWS.all(conn, keys) if keys else ())
    )


def anchors(conn: Connection) -> Mapping[tuple[int, int], str]:
    """Places whose images stay, and why."""
    found: dict[tuple[int, int], str] = {}
    for row in (*_STANDS.all(conn, {}), *_WAITING.all(conn, {})):
        near = NEAREST.one(conn, {"at": row.parent, "top": row.position})
        if near.hit is not None:
            found[near.id, near.hit] = Keep.BASE.value
    for row in _SNAPSHOTS.all(conn, {}):
        found[row.place, row.position] = Keep.NAMED.value
    return found


def forget(scope: Scope, places: Sequence[tuple[int, int]]) -> None:
    """Take images from places, but for those that rooted segments begin with."""
    for at, top in places:
        digest = _DIGEST.scalar(scope.conn, {"at": at, "top": top})
        if digest is not None:
            _DROP.run(scope.conn, {"at": at, "top": top})
            ORPHAN.run(scope.conn, {"key": digest, "now": scope.now_us})


def rubbish(conn: Connection, before_us: int) -> Rubbish:
    """What sweeps would take out, whose grace began at `before_us`."""
    gone = _dead(conn)
    orphans, orphan_bytes, ripe, ripe_bytes = map(int, _ORPHANS.one(conn, {"before": before_us}))
    return Rubbish(
        actors=tuple(gone),
        versions=_total(_VERSIONS, conn, gone),
        tokens=_total(_TOKENS, conn, gone),
        orphans=orphans,
        orphan_bytes=orphan_bytes,
        ripe=ripe,
        ripe_bytes=ripe_bytes,
    )


def _total(counting: PreparedIn, conn: Connection, keys: Sequence[str]) -> int:
    return sum(int(row.n) for row in counting.all(conn, keys)) if keys else 0


def _dead(conn: Connection) -> list[str]:
    """Deleted actors that nothing living descends from."""
    deleted = [row.id for row in _DELETED.all(conn, {})]
    if not deleted:
        return []
    needs: Iterable[tuple[str, str]] = [
        (row.actor_id, str(row.by))
        for asked in (_NEEDS, _BLENDED, _BROODS)
        for row in asked.all(conn, deleted)
    ]
    return released(deleted, needs)


def released(deleted: Iterable[str], needs: Iterable[tuple[str, str]]) -> list[str]:
    """Those deleted actors that can be taken out, one after the other.

    Two that need each other stay, as a sweep takes out one actor at a time.
    """
    by: dict[str, set[str]] = {one: set() for one in deleted}
    of: dict[str, set[str]] = {}
    for needed, needing in needs:
        by[needed].add(needing)
        of.setdefault(needing, set()).add(needed)
    found = [one for one, waiting in by.items() if not waiting]
    for one in found:
        for needed in of.get(one, ()):
            by[needed].discard(one)
            if not by[needed]:
                found.append(needed)
    return sorted(found)
