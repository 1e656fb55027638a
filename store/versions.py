"""Rows of versions: immutable places of a history, with what made them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import BigInteger, Connection, and_, bindparam, func, select, text

from statevisor.hypervisor.errors import VersionNotFound
from statevisor.hypervisor.records import VersionRecord
from statevisor.hypervisor.vocab import Op, parse_handle
from statevisor.store import brood_versions, broods
from statevisor.store.names import shown_name
from statevisor.store.prepared import Prepared, PreparedIn
from statevisor.store.segments import Segment, get, path
from statevisor.store.tables import (
    actor,
    build,
    checkpoint,
    image,
    mutation,
    tag,
    version,
    version_parent,
)

_OPS = {op.value: op for op in Op}
#: What sets each field of a record.
_PUT = tuple(getattr(VersionRecord, one.name).__set__ for one in fields(VersionRecord))
_name = shown_name(actor)
_why = mutation.c
_ROWS = (
    select(
        version.c.id,
        version.c.actor_id,
        _name.label("name"),
        version.c.seq,
        version.c.segment,
        version.c.position,
        version.c.op,
        checkpoint.c.digest,
        image.c.nbytes,
        _why.rule,
        _why.rule_version,
        _why.params,
        _why.selection,
        _why.agent,
        _why.reason,
        _why.before,
        version.c.drift,
        build.c.name.label("build"),
        version.c.labels,
        version.c.hidden,
        version.c.created_us,
    )
    .join(actor, actor.c.id == version.c.actor_id)
    .outerjoin(build, build.c.id == version.c.build)
    .outerjoin(mutation, _why.version == version.c.id)
    .outerjoin(
        checkpoint,
        and_(checkpoint.c.segment == version.c.place, checkpoint.c.position == version.c.position),
    )
    .outerjoin(image, image.c.digest == checkpoint.c.digest)
)
_BY_IDS = PreparedIn(lambda keys: _ROWS.where(version.c.id.in_(keys)))
_PARENTS = PreparedIn(
    lambda keys: (
        select(version_parent.c.child, version.c.actor_id, version.c.seq)
        .join(version, version.c.id == version_parent.c.parent)
        .where(version_parent.c.child.in_(keys))
        .order_by(version_parent.c.child, version_parent.c.ord)
    )
)
_NAMES = PreparedIn(
    lambda keys: select(actor.c.id, _name.label("name")).where(actor.c.id.in_(keys))
)
_TAGS = PreparedIn(lambda keys: select(tag.c.version, tag.c.name).where(tag.c.version.in_(keys)))
_BY_TAG = Prepared(select(tag.c.version).where(tag.c.name == bindparam("key")))
_named = select(actor.c.id).where(actor.c.name == bindparam("key"), actor.c.deleted_us.is_(None))
_of_id = select(actor.c.id).where(actor.c.id == bindparam("key"))
#: What finds a version by `name@seq` or `id@seq`.
BY_HANDLE = (
    version.c.actor_id == func.coalesce(_of_id.scalar_subquery(), _named.scalar_subquery()),
    version.c.seq == bindparam("seq"),
)
_BY_HANDLE = Prepared(select(version.c.id).where(*BY_HANDLE))
_PAGE = Prepared(
    select(version.c.id)
    .where(
        version.c.actor_id == bindparam("key"),
        version.c.seq > bindparam("after"),
        version.c.hidden.is_(False),
    )
    .order_by(version.c.seq)
    .limit(bindparam("limit"))
)
#: By halves: times along an actor's versions never go back, and no seq is left out.
_AS_OF = Prepared(
    text(
        """
    WITH RECURSIVE halves(low, high) AS (
        SELECT 0, (SELECT a.next_seq FROM actor a WHERE a.id = :key)
        UNION ALL
        SELECT CASE WHEN (SELECT v.created_us FROM version v WHERE v.actor_id = :key
                          AND v.seq = (low + high) / 2) <= :at
                    THEN (low + high) / 2 + 1 ELSE low END,
               CASE WHEN (SELECT v.created_us FROM version v WHERE v.actor_id = :key
                          AND v.seq = (low + high) / 2) <= :at
                    THEN high ELSE (low + high) / 2 END
        FROM halves WHERE low < high
    )
    SELECT v.id FROM version v
    WHERE v.actor_id = :key AND v.seq < (SELECT h.low FROM halves h WHERE h.low = h.high)
    AND v.op <> 'snapshot' ORDER BY v.seq DESC LIMIT 1
    """
    ).columns(id=BigInteger)
)
_VISIBLE = select(version.c.id).where(
    version.c.segment == bindparam("at"), version.c.hidden.is_(False)
)
_LATEST = Prepared(
    _VISIBLE.where(version.c.position <= bindparam("top"))
    .order_by(version.c.position.desc(), version.c.id.desc())
    .limit(1)
)
_MAKER = Prepared(
    _VISIBLE.where(version.c.position >= bindparam("top"))
    .order_by(version.c.position, version.c.id)
    .limit(1)
)
_AT = Prepared(
    select(version.c.id)
    .where(
        version.c.segment == bindparam("at"),
        version.c.position == bindparam("top"),
        version.c.hidden == bindparam("hidden"),
    )
    .order_by(version.c.id.desc())
    .limit(1)
)
_SHORT = PreparedIn(
    lambda keys: (
        select(version.c.id, _name.label("name"), version.c.seq, version.c.op)
        .join(actor, actor.c.id == version.c.actor_id)
        .where(version.c.id.in_(keys))
    )
)
#: Rows of `as_made`, each with its actor joined.
MADE = select(
    version.c.id,
    version.c.segment,
    version.c.place,
    version.c.position,
    version.c.build,
    version.c.drift,
    _name.label("name"),
    version.c.seq,
).join(actor, actor.c.id == version.c.actor_id)
_MADE = Prepared(MADE.where(version.c.id == bindparam("key")))
_MADE_BY_HANDLE = Prepared(MADE.where(*BY_HANDLE))


@dataclass(frozen=True, slots=True)
class Made:
    """What a version hands on to those that begin at it."""

    id: int
    segment: int  #: it stands on
    place: int  #: the segment under which its image is kept
    position: int
    build: int | None  #: its number
    drift: bool
    handle: str  #: how it is shown


def load(
    conn: Connection, ids: Sequence[int], edges: Sequence[tuple[int, int]] | None = None
) -> tuple[VersionRecord, ...]:
    """Records of versions, in the order asked for.

    `edges`: child and parent of every edge up from them, if they are known.
    """
    rows = {row.id: row for row in _BY_IDS.all(conn, ids)}
    waiting = brood_versions.numbered(conn, [number for number in ids if number not in rows])
    parents = _parents(conn, rows) if edges is None else _named_parents(conn, rows, edges)
    tags: dict[int, list[str]] = {}
    for row in _TAGS.all(conn, ids):
        tags.setdefault(row.version, []).append(row.name)
    return tuple(
        _record(rows[number], parents.get(number, ()), tags.get(number, ()))
        if number in rows
        else waiting[number].version()
        for number in ids
    )


def _parents(conn: Connection, rows: Mapping[int, Any]) -> dict[int, list[str]]:
    """Handles of parents, by child."""
    edges = _PARENTS.all(conn, tuple(rows))
    names = {row.actor_id: row.name for row in rows.values()}  # most follow one of their own actor
    strangers = {edge.actor_id for edge in edges} - names.keys()
    names |= {row.id: row.name for row in _NAMES.all(conn, tuple(strangers))}
    found: dict[int, list[str]] = {}
    for edge in edges:
        found.setdefault(edge.child, []).append(f"{names[edge.actor_id]}@{edge.seq}")
    return found


def _named_parents(
    conn: Connection, rows: Mapping[int, Any], edges: Sequence[tuple[int, int]]
) -> dict[int, list[str]]:
    """As `_parents`, of edges that are known: most lead to what was read."""
    handles = {number: f"{row.name}@{row.seq}" for number, row in rows.items()}
    strangers = {parent for _, parent in edges} - handles.keys()
    handles |= {number: handle for number, (handle, _) in short(conn, tuple(strangers)).items()}
    found: dict[int, list[str]] = {}
    for child, parent in edges:
        if child in rows:
            found.setdefault(child, []).append(handles[parent])
    return found


def one(conn: Connection, number: int) -> VersionRecord:
    """The record of one version."""
    return load(conn, (number,))[0]


def resolve(conn: Connection, handle: str) -> int:
    """The id behind `name@seq`, `id@seq` or a tag. Raises: VersionNotFound."""
    parsed = parse_handle(handle)
    if parsed is None:
        found = _BY_TAG.scalar(conn, {"key": handle})
    else:
        found = _BY_HANDLE.scalar(conn, {"key": parsed.name, "seq": parsed.seq})
        if found is None and parsed.seq == 0:
            child = broods.find(conn, parsed.name)
            found = None if child is None else child.number
    if found is None:
        raise _missing(handle)
    return int(found)


def page(
    conn: Connection, actor_id: str, after: int | None, limit: int
) -> tuple[tuple[VersionRecord, ...], bool]:
    """Visible versions of one actor by seq, and whether more follow."""
    start = -1 if after is None else after
    params = {"key": actor_id, "after": start, "limit": limit + 1}
    ids = [row.id for row in _PAGE.all(conn, params)]
    if not ids and start < 0 and (child := broods.of_id(conn, actor_id)) is not None:
        ids = [child.number]
    return load(conn, ids[:limit]), len(ids) > limit


def as_of(conn: Connection, actor_id: str, at_us: int) -> int | None:
    """The version that was an actor's head at a time."""
    found = _AS_OF.scalar(conn, {"key": actor_id, "at": at_us})
    if found is None:
        child = broods.of_id(conn, actor_id)
        return child.number if child is not None and child.brood.created_us <= at_us else None
    return int(found)


def latest(conn: Connection, segment: int, position: int) -> int | None:
    """The newest visible version at or before a place of a path."""
    found = _LATEST.scalar(conn, {"at": segment, "top": position})
    if found is not None:
        return int(found)
    for step in path(conn, segment, position):
        found = _LATEST.scalar(conn, {"at": step.id, "top": step.top})
        if found is not None:
            return int(found)
    return None


def at(conn: Connection, segment: Segment, position: int, *, hidden: bool = False) -> int | None:
    """The newest version at exactly a place, whose home segment is given."""
    here = segment
    while True:
        found = _AT.scalar(conn, {"at": here.record.id, "top": position, "hidden": hidden})
        if found is not None:
            return int(found)
        if here.child is not None and position == here.record.position and not hidden:
            return here.child.number
        if here.record.parent is None or here.place_of(position) == here.record.id:
            return None
        here = get(conn, here.record.parent)


def maker(conn: Connection, segment: int, position: int) -> int | None:
    """The version whose making computed the state at a place of this very segment."""
    return _MAKER.scalar(conn, {"at": segment, "top": position})


def short(conn: Connection, ids: Sequence[int]) -> dict[int, tuple[str, Op]]:
    """How versions are shown and what made them, by id."""
    found = {row.id: (f"{row.name}@{row.seq}", Op(row.op)) for row in _SHORT.all(conn, ids)}
    waiting = brood_versions.handles(conn, [number for number in ids if number not in found])
    return found | {number: (handle, Op.FORK) for number, handle in waiting.items()}


def made(conn: Connection, number: int) -> Made:
    """What a version hands on."""
    return as_made(_MADE.one(conn, {"key": number}))


def named(conn: Connection, handle: str) -> Made:
    """What a version hands on, by `name@seq`, `id@seq` or a tag. Raises: VersionNotFound."""
    parsed = parse_handle(handle)
    if parsed is None:
        return made(conn, resolve(conn, handle))
    row = _MADE_BY_HANDLE.first(conn, {"key": parsed.name, "seq": parsed.seq})
    if row is None:
        raise _missing(handle)
    return as_made(row)


def as_made(row: Any) -> Made:
    """A row of `MADE` as what the version hands on."""
    handle = f"{row.name}@{row.seq}"
    return Made(row.id, row.segment, row.place, row.position, row.build, row.drift, handle)


def _missing(handle: str) -> VersionNotFound:
    return VersionNotFound(f"there is no version {handle!r}")


def _record(row: Any, parents: Iterable[str], tags: Iterable[str]) -> VersionRecord:
    # in the order of the record's fields
    values = (
        row.actor_id,
        row.name,
        row.seq,
        row.segment,
        row.position,
        _OPS[row.op],
        tuple(parents),
        row.digest,
        row.nbytes,
        row.rule,
        row.rule_version,
        row.params or {},
        row.selection or {},
        row.agent,
        row.reason,
        row.before,
        row.drift,
        row.build,
        tuple(sorted(tags)) if tags else (),
        row.labels,
        row.hidden,
        row.created_us,
    )
    # Measured: what is frozen takes its own constructor more than twice as long, and a graph has
    # thousands.
    record = object.__new__(VersionRecord)
    for put, value in zip(_PUT, values, strict=True):
        put(record, value)
    return record
