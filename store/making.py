"""Making versions: the row, its edges, what explains it, its tags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Connection, bindparam, delete, select

from statevisor.hypervisor.catalog_port import Provenance
from statevisor.hypervisor.vocab import Op
from statevisor.store import search, terms
from statevisor.store.prepared import Numbered, Prepared, inserting
from statevisor.store.scope import Scope
from statevisor.store.segments import Segment
from statevisor.store.tables import mutation, tag, touched, version, version_parent

EVERY_LAYER = -1  #: in `touched`: the rule had no selection of layers

_INSERT = Numbered(version)
_BEFORE = Prepared(
    select(version.c.created_us).where(
        version.c.actor_id == bindparam("key"), version.c.seq == bindparam("seq")
    )
)
_INSERT_PARENT = inserting(version_parent)
_INSERT_WHY = inserting(mutation)
_INSERT_TOUCHED = inserting(touched)
_INSERT_TAG = inserting(tag)
_DROP_TAG = Prepared(delete(tag).where(tag.c.name == bindparam("key")))
_DROP_TAGS = Prepared(
    delete(tag).where(
        tag.c.version.in_(select(version.c.id).where(version.c.actor_id == bindparam("key")))
    )
)


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
    build: int | None,
    drift: bool,
    hidden: bool = False,
    labels: Mapping[str, str] | None = None,
    weights: Sequence[float] = (),
) -> int:
    """Insert a version with its edges: the first parent is followed, the others are merged in.

    It is never older than the actor's version before, also when the clock was set back.
    """
    before = _BEFORE.scalar(scope.conn, {"key": actor_id, "seq": seq - 1}) if seq else None
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
        "created_us": max(scope.now_us, before or 0),
    }
    number = _INSERT.add(scope.conn, values)
    edges = [
        {
            "child": number,
            "ord": order,
            "parent": parent,
            "weight": weights[order] if order < len(weights) else None,
        }
        for order, parent in enumerate(parents)
    ]
    _INSERT_PARENT.many(scope.conn, edges)
    for term in terms.of_labels(labels or {}):
        search.add_term(scope.conn, number, term)
    return number


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
    _INSERT_WHY.run(scope.conn, values)
    for term in terms.of_maker(why.agent, why.rule):
        search.add_term(scope.conn, number, term)
    if why.rule is None:
        return
    layers = (why.select or {}).get("layers")
    touches = (EVERY_LAYER,) if layers is None else tuple(dict.fromkeys(layers))
    rows = [{"segment": segment, "layer": layer, "version": number} for layer in touches]
    _INSERT_TOUCHED.many(scope.conn, rows)


def set_tag(scope: Scope, name: str, number: int) -> None:
    """Put a tag on a version; it leaves the one it was on."""
    _DROP_TAG.run(scope.conn, {"key": name})
    _INSERT_TAG.run(scope.conn, {"name": name, "version": number, "updated_us": scope.now_us})


def drop_tags(conn: Connection, actor_id: str) -> None:
    """Take all tags off an actor's versions."""
    _DROP_TAGS.run(conn, {"key": actor_id})
