"""Making broods: the children of one fork as few rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import ColumnElement, bindparam, exists, func, literal, or_, select

from statevisor.hypervisor.catalog_port import NewActor
from statevisor.hypervisor.errors import ActorExists
from statevisor.hypervisor.ids import ALIKE, actor_id, name_parts, nth_seed, own_name, parts
from statevisor.hypervisor.records import ActorRecord
from statevisor.store import broods
from statevisor.store.db import reserve
from statevisor.store.prepared import Prepared, PreparedIn, inserting
from statevisor.store.scope import Scope
from statevisor.store.tables import actor, brood

_INSERT = inserting(brood)
_newest = select(func.max(brood.c.id)).scalar_subquery()


def _named(keys: Sequence[Any]) -> ColumnElement[bool]:
    """Whether one of some names is a living actor's, or was given to an only child."""
    return or_(
        exists(select(actor.c.id).where(actor.c.name.in_(keys), actor.c.deleted_us.is_(None))),
        exists(select(brood.c.id).where(brood.c.name.in_(keys))),
    )


#: The newest brood, if there is one, and whether ids, random bits or a name are in use.
_ROOM = Prepared(
    select(
        select(brood.c.at + brood.c.count)
        .where(brood.c.id == _newest)
        .scalar_subquery()
        .label("next"),
        select(brood.c.created_us).where(brood.c.id == _newest).scalar_subquery().label("last_us"),
        exists(
            select(actor.c.id).where(actor.c.id.between(bindparam("low"), bindparam("high")))
        ).label("taken"),
        exists(select(brood.c.id).where(brood.c.salt == bindparam("salt"))).label("salted"),
        _named([bindparam("name")]).label("named"),
    )
)
_NAMED = PreparedIn(lambda keys: select(literal(1)).where(_named(keys)))


class Parent(Protocol):
    """The version that a brood comes from."""

    @property
    def id(self) -> int: ...
    @property
    def handle(self) -> str: ...
    @property
    def position(self) -> int: ...


@dataclass(slots=True)
class _Run:
    """Children of whom all follows from the first."""

    first: NewActor
    at: int
    salt: int
    given: bool  #: its name
    count: int = 1
    alike: bool = False

    def takes(self, new: NewActor, at: int, salt: int) -> bool:
        """Whether this is the next of them; counts it if it is."""
        alike = new.seed == self.first.seed
        if (
            self.given
            or new.name != own_name(new.id)
            or (at, salt) != (self.at + self.count, self.salt)
            or self.count == ALIKE
            or (new.model, new.labels) != (self.first.model, self.first.labels)
            or not (alike or new.seed == nth_seed(self.first.seed, self.count))
            or (self.count > 1 and alike is not self.alike)
        ):
            return False
        self.count += 1
        self.alike = alike
        return True


def lay(
    scope: Scope,
    children: Sequence[NewActor],
    parent: Parent,
    *,
    base: int,
    drift: bool,
) -> tuple[ActorRecord, ...] | None:
    """Insert children as broods; None: their ids are not such that it can be done.

    Raises: ActorExists.
    """
    runs = _runs(children)
    if runs is None:
        return None
    rooms = [_room(scope, run) for run in runs]
    for run, room in zip(runs, rooms, strict=True):
        behind = room.next is None or (run.at >= room.next and scope.now_us >= room.last_us)
        if room.taken or not behind:
            return None
    _check_names(scope, children, runs, rooms)
    first, beside = reserve(scope.conn, ("version", "segment"), len(children))
    at = first
    for run in runs:
        values = {
            "id": at,
            "segment": beside + at - first,
            "parent": parent.id,
            "count": run.count,
            "waiting": run.count,
            "at": run.at,
            "salt": run.salt,
            "name": run.first.name if run.given else None,
            "model": run.first.model,
            "seed": run.first.seed,
            "alike": run.alike,
            "base": base,
            "drift": drift,
            "labels": dict(run.first.labels) or None,
            "epoch": 1,
            "owner": scope.incarnation,
            "created_us": scope.now_us,
        }
        _INSERT.run(scope.conn, values)
        at += run.count
    return tuple(
        ActorRecord(
            id=new.id,
            name=new.name,
            model=new.model,
            segment=beside + n,
            position=parent.position,
            base=base,
            head=0,
            generation=1,
            seed=new.seed,
            epoch=1,
            labels=dict(new.labels),
            parent=parent.handle,
            drift=drift,
            created_at=scope.now_us,
            updated_at=scope.now_us,
        )
        for n, new in enumerate(children)
    )


def _runs(children: Sequence[NewActor]) -> list[_Run] | None:
    """Children as few rows; None: their ids do not say when they were made, or go back."""
    runs: list[_Run] = []
    for new in children:
        known = parts(new.id)
        if known is None or (runs and known[0] < runs[-1].at + runs[-1].count):
            return None
        if not runs or not runs[-1].takes(new, *known):
            runs.append(_Run(new, *known, given=new.name != own_name(new.id)))
    return runs


def _room(scope: Scope, run: _Run) -> Any:
    """What `_ROOM` says of a run."""
    last = run.first.id if run.count == 1 else actor_id(run.at + run.count - 1, run.salt)
    given = {"low": run.first.id, "high": last, "salt": run.salt, "name": run.first.name}
    return _ROOM.one(scope.conn, given)


def _check_names(
    scope: Scope, children: Sequence[NewActor], runs: Sequence[_Run], rooms: Sequence[Any]
) -> None:
    """Raises: ActorExists, if a living actor has one of the names, or two of these do."""
    names = [new.name for new in children]
    firsts = {run.first.name for run in runs}
    salted = any(room.salted for room in rooms)
    # no other brood has own names of these salts, but someone may have been given one of them
    suspects = [
        new.name
        for new in children
        if salted or (new.name != own_name(new.id) and name_parts(new.name) is not None)
    ]
    if (
        len(set(names)) < len(names)
        or any(room.named for room in rooms)
        or _NAMED.all(scope.conn, [name for name in names if name not in firsts])
        or any(broods.of_name(scope.conn, name) is not None for name in suspects)
    ):
        raise ActorExists(f"an actor named {names[0]!r} exists, or one named as another of these")
