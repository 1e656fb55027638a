"""Rows of versions: immutable places of a history, with what made them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, delete, insert, select

from statevisor.hypervisor.errors import VersionNotFound
from statevisor.hypervisor.ports import Provenance
from statevisor.hypervisor.records import VersionRecord
from statevisor.hypervisor.vocab import Op, parse_handle
from statevisor.store.actors import shown_name
from statevisor.store.scope import Scope
from statevisor.store.segments import Segment, get, path
from statevisor.store.tables import (
    actor,
    checkpoint,
    image,
    mutation,
    tag,
    touched,
    version,
    version_parent,
)

_CHUNK = 500
EVERY_LAYER = -1  #: in `touched`: the rule had no selection of layers

_name = shown_name(actor, actor.alias("namesake"))
_why = mutation.c
_ROWS = (
    select(
        version,
        _name.label("name"),
        checkpoint.c.digest,
        image.c.nbytes,
        _why.rule,
        _why.rule_version,
        _why.params,
        _why.selection,
        _why.agent,
        _why.reason,
        _why.before,
    )
    .join(actor, actor.c.id == version.c.actor_id)
    .outerjoin(mutation, _why.version == version.c.id)
    .outerjoin(
        checkpoint,
        and_(checkpoint.c.segment == version.c.place, checkpoint.c.position == version.c.position),
    )
    .outerjoin(image, image.c.digest == checkpoint.c.digest)
)
_BY_IDS = _ROWS.where(version.c.id.in_(bindparam("ids", expanding=True)))
_PARENTS = (
    select(version_parent.c.child, version_parent.c.parent, _name.label("name"), version.c.seq)
    .join(version, version.c.id == version_parent.c.parent)
    .join(actor, actor.c.id == version.c.actor_id)
    .where(version_parent.c.child.in_(bindparam("ids", expanding=True)))
    .order_by(version_parent.c.child, version_parent.c.ord)
)
_TAGS = (
    select(tag.c.version, tag.c.name)
    .where(tag.c.version.in_(bindparam("ids", expanding=True)))
    .order_by(tag.c.name)
)
_BY_TAG = select(tag.c.version).where(tag.c.name == bindparam("key"))
_OWN = select(version.c.id).where(version.c.seq == bindparam("seq"))
_BY_ACTOR_ID = _OWN.where(version.c.actor_id == bindparam("key"))
_BY_ACTOR_NAME = _OWN.join(actor, actor.c.id == version.c.actor_id).where(
    actor.c.name == bindparam("key"), actor.c.deleted_us.is_(None)
)
_IS_ACTOR = select(actor.c.id).where(actor.c.id == bindparam("key"))
_PAGE = (
    select(version.c.id)
    .where(
        version.c.actor_id == bindparam("key"),
        version.c.seq > bindparam("after"),
        version.c.hidden.is_(False),
    )
    .order_by(version.c.seq)
    .limit(bindparam("limit"))
)
_VISIBLE = select(version.c.id).where(
    version.c.segment == bindparam("at"), version.c.hidden.is_(False)
)
_LATEST = (
    _VISIBLE.where(version.c.position <= bindparam("top"))
    .order_by(version.c.position.desc(), version.c.id.desc())
    .limit(1)
)
_MAKER = (
    _VISIBLE.where(version.c.position >= bindparam("top"))
    .order_by(version.c.position, version.c.id)
    .limit(1)
)
_AT = (
    select(version.c.id)
    .where(
        version.c.segment == bindparam("at"),
        version.c.position == bindparam("top"),
        version.c.hidden == bindparam("hidden"),
    )
    .order_by(version.c.id.desc())
    .limit(1)
)
_MADE = select(version.c.build, version.c.drift).where(version.c.id == bindparam("key"))
_PLACE = select(version.c.place, version.c.position).where(version.c.id == bindparam("key"))
_INSERT = insert(version)
_INSERT_PARENT = insert(version_parent)
_INSERT_WHY = insert(mutation)
_INSERT_TOUCHED = insert(touched)
_INSERT_TAG = insert(tag)
_DROP_TAG = delete(tag).where(tag.c.name == bindparam("key"))
_DROP_TAGS = delete(tag).where(
    tag.c.version.in_(select(version.c.id).where(version.c.actor_id == bindparam("key")))
)


@dataclass(frozen=True, slots=True)
class Made:
    """What a version hands on to those that begin at it."""

    build: str | None
    drift: bool


# -- reading -------------------------------------------------------------------------------------
def load(conn: Connection, ids: Sequence[int]) -> tuple[VersionRecord, ...]:
    """Records of versions, in the order asked for."""
    found: dict[int, VersionRecord] = {}
    for at in range(0, len(ids), _CHUNK):
        part = {"ids": list(ids[at : at + _CHUNK])}
        parents: dict[int, list[str]] = {}
        for row in conn.execute(_PARENTS, part):
            parents.setdefault(row.child, []).append(f"{row.name}@{row.seq}")
        tags: dict[int, list[str]] = {}
        for row in conn.execute(_TAGS, part):
            tags.setdefault(row.version, []).append(row.name)
        for row in conn.execute(_BY_IDS, part):
            found[row.id] = _record(row, parents.get(row.id, ()), tags.get(row.id, ()))
    return tuple(found[one] for one in ids)


def one(conn: Connection, number: int) -> VersionRecord:
    """The record of one version."""
    return load(conn, (number,))[0]


def resolve(conn: Connection, handle: str) -> int:
    """The id behind `name@seq`, `id@seq` or a tag. Raises: VersionNotFound."""
    parsed = parse_handle(handle)
    if parsed is None:
        found = conn.scalar(_BY_TAG, {"key": handle})
    else:
        known = conn.scalar(_IS_ACTOR, {"key": parsed.name}) is not None
        query = _BY_ACTOR_ID if known else _BY_ACTOR_NAME
        found = conn.scalar(query, {"key": parsed.name, "seq": parsed.seq})
    if found is None:
        raise VersionNotFound(f"there is no version {handle!r}")
    return int(found)


def page(
    conn: Connection, actor_id: str, after: int | None, limit: int
) -> tuple[tuple[VersionRecord, ...], bool]:
    """Visible versions of one actor by seq, and whether more follow."""
    start = -1 if after is None else after
    ids = conn.scalars(_PAGE, {"key": actor_id, "after": start, "limit": limit + 1}).all()
    return load(conn, ids[:limit]), len(ids) > limit


def latest(conn: Connection, segment: int, position: int) -> int | None:
    """The newest visible version at or before a place of a path."""
    found = conn.scalar(_LATEST, {"at": segment, "top": position})
    if found is not None:
        return int(found)
    for step in path(conn, segment, position):
        found = conn.scalar(_LATEST, {"at": step.id, "top": step.top})
        if found is not None:
            return int(found)
    return None


def at(conn: Connection, segment: Segment, position: int, *, hidden: bool = False) -> int | None:
    """The newest version at exactly a place, whose home segment is given."""
    here = segment
    while True:
        found = conn.scalar(_AT, {"at": here.record.id, "top": position, "hidden": hidden})
        if found is not None:
            return int(found)
        if here.record.parent is None or here.place_of(position) == here.record.id:
            return None
        here = get(conn, here.record.parent)


def maker(conn: Connection, segment: int, position: int) -> int | None:
    """The version whose making computed the state at a place of this very segment."""
    return conn.scalar(_MAKER, {"at": segment, "top": position})


def made(conn: Connection, number: int) -> Made:
    """What a version hands on."""
    row = conn.execute(_MADE, {"key": number}).one()
    return Made(row.build, row.drift)


def place(conn: Connection, number: int) -> tuple[int, int]:
    """The segment and position under which a version's image is kept."""
    row = conn.execute(_PLACE, {"key": number}).one()
    return row.place, row.position


# -- changing ------------------------------------------------------------------------------------
def add(
    scope: Scope,
    *,
    actor_id: str,
    epoch: int,
    seq: int,
    segment: Segment,
    position: int,
    op: Op,
    parents: Iterable[int],
    build: str | None,
    drift: bool,
    hidden: bool = False,
    labels: Mapping[str, str] | None = None,
    weights: Sequence[float] = (),
) -> int:
    """Insert a version with its edges: the first parent is followed, the others are merged in."""
    values = {
        "actor_id": actor_id,
        "seq": seq,
        "segment": segment.record.id,
        "position": position,
        "place": segment.place_of(position),
        "op": op.value,
        "hidden": hidden,
        "drift": drift,
        "build": build,
        "labels": dict(labels or {}),
        "epoch": epoch,
        "owner": scope.incarnation,
        "created_us": scope.now_us,
    }
    key = scope.conn.execute(_INSERT, values).inserted_primary_key
    assert key is not None
    edges = [
        {
            "child": key[0],
            "ord": order,
            "parent": parent,
            "kind": "merge" if order else "main",
            "weight": weights[order] if order < len(weights) else None,
        }
        for order, parent in enumerate(parents)
    ]
    if edges:
        scope.conn.execute(_INSERT_PARENT, edges)
    return int(key[0])


def explain(scope: Scope, number: int, segment: int, why: Provenance) -> None:
    """Keep what made a version, and which layers of its segment's first state a rule touched."""
    values = {
        "version": number,
        "rule": why.rule,
        "rule_version": why.rule_version,
        "params": dict(why.params or {}),
        "selection": dict(why.select or {}),
        "agent": why.agent,
        "reason": why.reason,
        "before": why.before,
    }
    scope.conn.execute(_INSERT_WHY, values)
    if why.rule is None:
        return
    layers = (why.select or {}).get("layers")
    touches = (EVERY_LAYER,) if layers is None else tuple(dict.fromkeys(layers))
    rows = [{"segment": segment, "layer": layer, "version": number} for layer in touches]
    if rows:
        scope.conn.execute(_INSERT_TOUCHED, rows)


def set_tag(scope: Scope, name: str, number: int) -> None:
    """Put a tag on a version; it leaves the one it was on."""
    scope.conn.execute(_DROP_TAG, {"key": name})
    scope.conn.execute(_INSERT_TAG, {"name": name, "version": number, "updated_us": scope.now_us})


def drop_tags(conn: Connection, actor_id: str) -> None:
    """Take all tags off an actor's versions."""
    conn.execute(_DROP_TAGS, {"key": actor_id})


def _record(row: Row[Any], parents: Iterable[str], tags: Iterable[str]) -> VersionRecord:
    return VersionRecord(
        actor_id=row.actor_id,
        actor=row.name,
        seq=row.seq,
        segment=row.segment,
        position=row.position,
        op=Op(row.op),
        parents=tuple(parents),
        digest=row.digest,
        nbytes=row.nbytes,
        rule=row.rule,
        rule_version=row.rule_version,
        params=row.params or {},
        select=row.selection or {},
        agent=row.agent,
        reason=row.reason,
        before=row.before,
        drift=row.drift,
        build=row.build,
        tags=tuple(tags),
        labels=row.labels,
        hidden=row.hidden,
        created_at=row.created_us,
    )
