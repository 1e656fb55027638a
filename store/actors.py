"""Rows of actors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

from sqlalchemy import (
    Connection,
    String,
    bindparam,
    cast,
    delete,
    func,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from statevisor.hypervisor.catalog_port import Guard, NewActor
from statevisor.hypervisor.errors import ActorExists, ActorNotFound, Conflict
from statevisor.hypervisor.records import ActorRecord
from statevisor.store import broods, hatching
from statevisor.store.broods import Child
from statevisor.store.guards import check_guard
from statevisor.store.names import shown_name
from statevisor.store.prepared import Prepared, inserting
from statevisor.store.scope import Scope
from statevisor.store.tables import actor, actor_label, version

_parent = version.alias("parent_version")
_parent_actor = actor.alias("parent_actor")
_ROWS = (
    select(
        actor,
        (shown_name(_parent_actor) + "@" + cast(_parent.c.seq, String)).label("parent_handle"),
    )
    .outerjoin(_parent, _parent.c.id == actor.c.parent)
    .outerjoin(_parent_actor, _parent_actor.c.id == _parent.c.actor_id)
)
#: Rows of living actors, with the handle of the version each was forked from.
LIVING = _ROWS.where(actor.c.deleted_us.is_(None))
_BY_ID = Prepared(LIVING.where(actor.c.id == bindparam("key")))
_BY_NAME = Prepared(LIVING.where(actor.c.name == bindparam("key")))
_COUNT = Prepared(select(func.count()).select_from(actor).where(actor.c.deleted_us.is_(None)))
_HERITAGE = Prepared(
    select(actor.c.model, actor.c.base, actor.c.drift).where(actor.c.id == bindparam("key"))
)
_SEQ = Prepared(
    select(actor.c.next_seq, actor.c.epoch, actor.c.drift).where(actor.c.id == bindparam("key"))
)
_TAKE_SEQ = Prepared(
    update(actor).where(actor.c.id == bindparam("key")).values(next_seq=actor.c.next_seq + 1)
)
_TAKE_OVER = Prepared(
    update(actor)
    .where(actor.c.deleted_us.is_(None))
    .values(epoch=actor.c.epoch + 1, owner=bindparam("by"))
)
_INSERT = inserting(actor)
_INSERT_LABEL = inserting(actor_label)
_DROP_LABELS = Prepared(delete(actor_label).where(actor_label.c.actor_id == bindparam("key")))


@dataclass(frozen=True, slots=True)
class Actor:
    """A living actor's row."""

    record: ActorRecord  #: position without the journalled tokens of an open turn
    next_seq: int
    turn_id: str | None

    def shown(self, ends: Mapping[str, int]) -> ActorRecord:
        """The record with the committed tokens of its open turn counted in."""
        end = ends.get(self.turn_id) if self.turn_id is not None else None
        return self.record if end is None else replace(self.record, position=end)


def get(conn: Connection, key: str) -> Actor:
    """By id or name. Raises: ActorNotFound."""
    row = _BY_ID.first(conn, {"key": key}) or _BY_NAME.first(conn, {"key": key})
    if row is not None:
        return from_row(row)
    child = broods.find(conn, key)
    if child is None:
        raise ActorNotFound(f"there is no actor {key!r}")
    return from_brood(child)


def guarded(scope: Scope, actor_id: str, guard: Guard, *, idle: bool = False) -> Actor:
    """A living actor, by its id alone, that passes a guard; it has rows of its own from here on.

    Raises: ActorNotFound; Fenced, GenerationConflict; Conflict (a turn is open, and none may be).
    """
    row = _BY_ID.first(scope.conn, {"key": actor_id})
    if row is None and hatching.by_id(scope, actor_id):
        row = _BY_ID.one(scope.conn, {"key": actor_id})
    if row is None:
        raise ActorNotFound(f"there is no actor {actor_id!r}")
    found = from_row(row)
    check_guard(found.record, guard)
    if idle and found.turn_id is not None:
        raise Conflict(f"{found.record.name} has an open turn: {found.turn_id}")
    return found


class ForkedFrom(Protocol):
    """The version that an actor was forked from."""

    @property
    def id(self) -> int: ...
    @property
    def handle(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Heritage:
    """What forks take from an actor, living or not."""

    model: str
    base: int
    drift: bool


def heritage(conn: Connection, actor_id: str) -> Heritage:
    """What forks take from an actor."""
    row = _HERITAGE.one(conn, {"key": actor_id})
    return Heritage(row.model, row.base, row.drift)


def reserve_seq(conn: Connection, actor_id: str) -> tuple[int, int, bool]:
    """Take the next seq of an actor, living or not; returns it with its epoch and drift."""
    row = _SEQ.one(conn, {"key": actor_id})
    _TAKE_SEQ.run(conn, {"key": actor_id})
    return row.next_seq, row.epoch, row.drift


def count(conn: Connection) -> int:
    """Living actors."""
    return (_COUNT.scalar(conn, {}) or 0) + broods.count(conn)


def add(
    scope: Scope,
    new: NewActor,
    *,
    segment: int,
    position: int,
    base: int,
    next_seq: int,
    parent: ForkedFrom | None = None,
    drift: bool = False,
) -> ActorRecord:
    """Insert an actor that stands at its newest version. Raises: ActorExists."""
    values = {
        "id": new.id,
        "name": new.name,
        "model": new.model,
        "segment": segment,
        "position": position,
        "base": base,
        "head": next_seq - 1,
        "next_seq": next_seq,
        "generation": 1,
        "seed": new.seed,
        "epoch": 1,
        "owner": scope.incarnation,
        "pinned": False,
        "drift": drift,
        "labels": dict(new.labels),
        "parent": None if parent is None else parent.id,
        "created_us": scope.now_us,
        "updated_us": scope.now_us,
    }
    if broods.clashes(scope.conn, new.id, new.name):
        raise ActorExists(f"an actor named {new.name!r} exists")
    try:
        _INSERT.run(scope.conn, values)
    except IntegrityError as error:
        raise ActorExists(f"an actor named {new.name!r} exists") from error
    _label(scope.conn, new.id, new.labels)
    return ActorRecord(
        id=new.id,
        name=new.name,
        model=new.model,
        segment=segment,
        position=position,
        base=base,
        head=next_seq - 1,
        generation=1,
        seed=new.seed,
        epoch=1,
        labels=dict(new.labels),
        parent=None if parent is None else parent.handle,
        drift=drift,
        created_at=scope.now_us,
        updated_at=scope.now_us,
    )


def change(scope: Scope, old: Actor, **columns: Any) -> Actor:
    """Set an actor's columns and bump its generation. Raises: ActorExists."""
    columns |= {"generation": old.record.generation + 1, "updated_us": scope.now_us}
    if "name" in columns and broods.clashes(scope.conn, old.record.id, columns["name"]):
        raise ActorExists(f"an actor named {columns['name']!r} exists")
    try:
        _setting(*sorted(columns)).run(scope.conn, {"key": old.record.id} | _marks(columns))
    except IntegrityError as error:
        raise ActorExists(f"an actor named {columns.get('name')!r} exists") from error
    if "labels" in columns:
        _DROP_LABELS.run(scope.conn, {"key": old.record.id})
        _label(scope.conn, old.record.id, columns["labels"])
    columns["updated_at"] = columns.pop("updated_us")
    row = {key: columns.pop(key) for key in ("next_seq", "turn_id") if key in columns}
    return replace(old, record=replace(old.record, **columns), **row)


def bury(scope: Scope, old: Actor) -> None:
    """Make an actor a deleted one; its row stays, its name is free."""
    columns = {
        "deleted_us": scope.now_us,
        "updated_us": scope.now_us,
        "generation": old.record.generation + 1,
    }
    _setting(*sorted(columns)).run(scope.conn, {"key": old.record.id} | _marks(columns))
    _DROP_LABELS.run(scope.conn, {"key": old.record.id})


def take_over(scope: Scope, incarnation: int) -> None:
    """Make a new incarnation the owner of every living actor; older epochs are stale."""
    _TAKE_OVER.run(scope.conn, {"by": incarnation})
    hatching.take_over(scope, incarnation)


@cache
def _setting(*columns: str) -> Prepared:
    """An UPDATE of these columns of one actor."""
    marks: dict[str, Any] = {name: bindparam(f"new_{name}") for name in columns}
    return Prepared(update(actor).where(actor.c.id == bindparam("key")).values(marks))


def _marks(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {f"new_{name}": value for name, value in columns.items()}


def _label(conn: Connection, actor_id: str, labels: Mapping[str, str]) -> None:
    rows = [{"key": key, "actor_id": actor_id, "value": one} for key, one in labels.items()]
    _INSERT_LABEL.many(conn, rows)


def from_row(row: Any) -> Actor:
    """A row of `LIVING` as what the others work with."""
    record = ActorRecord(
        id=row.id,
        name=row.name,
        model=row.model,
        segment=row.segment,
        position=row.position,
        base=row.base,
        head=row.head,
        generation=row.generation,
        seed=row.seed,
        epoch=row.epoch,
        pinned=row.pinned,
        labels=row.labels,
        ttl_s=row.ttl_s,
        parent=row.parent_handle,
        quarantine=row.quarantine,
        drift=row.drift,
        created_at=row.created_us,
        updated_at=row.updated_us,
    )
    return Actor(record, row.next_seq, row.turn_id)


def from_brood(child: Child) -> Actor:
    """A child without a row as what the others work with."""
    return Actor(child.actor(), next_seq=1, turn_id=None)
