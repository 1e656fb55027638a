"""How an actor's history takes another way: snapshots, mutations, rollbacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from statevisor.hypervisor.catalog_port import Guard, Origin, Provenance
from statevisor.hypervisor.records import ActorRecord, ImageRef, VersionRecord
from statevisor.hypervisor.vocab import Op
from statevisor.store import (
    actors,
    builds,
    checkpoints,
    hatching,
    lanes,
    making,
    operations,
    origins,
    segments,
    versions,
)
from statevisor.store.actors import Actor
from statevisor.store.guards import check_own
from statevisor.store.scope import Scope
from statevisor.store.segments import Segment


def snapshot(
    scope: Scope,
    actor_id: str,
    origin: Origin,
    tag: str | None,
    labels: Mapping[str, str],
    guard: Guard,
) -> VersionRecord:
    """A version at a committed place; the actor itself stays as it is, an open turn goes on.

    Raises: ActorNotFound, Fenced, GenerationConflict, NotFound, VersionNotFound.
    """
    operations.check(scope, guard.once)
    actor = actors.guarded(scope, actor_id, guard)
    here = origins.home(scope, origin)
    check_own(actor.record, here.record, origin.position)
    seq, epoch, drift = actors.reserve_seq(scope.conn, actor_id)
    number = making.add(
        scope,
        actor_id=actor.record.id,
        epoch=epoch,
        seq=seq,
        segment=here,
        position=origin.position,
        op=Op.SNAPSHOT,
        parents=origins.before(scope, here, origin.position),
        build=origins.build(scope, here, origin.position),
        drift=drift,
        labels=labels,
    )
    if tag is not None:
        making.set_tag(scope, tag, number)
    made = versions.one(scope.conn, number)
    operations.keep(scope, guard.once, version=made)
    return made


def mutate(
    scope: Scope, actor_id: str, image: ImageRef, why: Provenance, guard: Guard
) -> tuple[ActorRecord, VersionRecord]:
    """A rooted segment where the actor stands, beginning with that image.

    A blend with a drifted parent makes the actor drifted. `why.weights` belong to the parents in
    order: the actor's own first if there is one weight more than `why.parents`.
    Raises: ActorNotFound, Fenced, GenerationConflict, Conflict (a turn is open), VersionNotFound.
    """
    operations.check(scope, guard.once)
    actor = actors.guarded(scope, actor_id, guard, idle=True)
    old = actor.record
    merged = [versions.resolve(scope.conn, handle) for handle in why.parents]
    for number in merged:
        hatching.by_number(scope, number)
    drift = old.drift or any(versions.made(scope.conn, number).drift for number in merged)
    below = segments.get(scope.conn, old.segment)
    segment = segments.insert_segment(scope.conn, actor_id, old.position, parent=below, rooted=True)
    checkpoints.keep(scope, segment.record.id, old.position, image)
    own = origins.before(scope, below, old.position)
    actor, number = _move(
        scope,
        actor,
        Op.MUTATE,
        segment,
        parents=(*own, *merged),
        build=builds.number(scope.conn, image.build),
        weights=why.weights if len(why.weights) > len(merged) else (0.0, *why.weights),
        drift=drift,
    )
    making.explain(scope, number, segment.record.id, why)
    lanes.join(scope.conn, segment.record.id, merged)
    return _done(scope, actor, number, guard)


def rollback(
    scope: Scope, actor_id: str, origin: Origin, seed: int | None, guard: Guard
) -> tuple[ActorRecord, VersionRecord]:
    """A segment that begins at an earlier place; lifts a quarantine.

    Raises: ActorNotFound, Fenced, GenerationConflict, Conflict (a turn is open), NotFound,
    VersionNotFound.
    """
    operations.check(scope, guard.once)
    actor = actors.guarded(scope, actor_id, guard, idle=True)
    start = origins.start(scope, origin)
    actor = actors.get(scope.conn, actor_id)  # an anchor may have taken a seq of this very actor
    segment = segments.insert_segment(scope.conn, actor_id, origin.position, parent=start.here)
    actor, number = _move(
        scope,
        actor,
        Op.ROLLBACK,
        segment,
        parents=(start.parent.id,),
        build=start.parent.build,
        drift=actor.record.drift or start.parent.drift,
        base=start.base,
        quarantine=None,
        seed=actor.record.seed if seed is None else seed,
    )
    return _done(scope, actor, number, guard)


def _move(
    scope: Scope,
    actor: Actor,
    op: Op,
    segment: Segment,
    *,
    parents: Iterable[int],
    build: int | None,
    drift: bool,
    weights: Sequence[float] = (),
    **columns: Any,
) -> tuple[Actor, int]:
    """Let the actor stand at the beginning of a new segment, under a new version."""
    position = segment.record.position
    number = making.add(
        scope,
        actor_id=actor.record.id,
        epoch=actor.record.epoch,
        seq=actor.next_seq,
        segment=segment,
        position=position,
        op=op,
        parents=parents,
        build=build,
        drift=drift,
        weights=weights,
    )
    moved = actors.change(
        scope,
        actor,
        segment=segment.record.id,
        position=position,
        head=actor.next_seq,
        next_seq=actor.next_seq + 1,
        drift=drift,
        **columns,
    )
    return moved, number


def _done(
    scope: Scope, actor: Actor, number: int, guard: Guard
) -> tuple[ActorRecord, VersionRecord]:
    made = actor.record, versions.one(scope.conn, number)
    operations.keep(scope, guard.once, actor=made[0], version=made[1])
    return made
