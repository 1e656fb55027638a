"""How actors come into being: created, forked, imported."""

from __future__ import annotations

from collections.abc import Sequence

from statevisor.hypervisor.catalog_port import NewActor, Once, Origin, Provenance
from statevisor.hypervisor.image_ports import ImageMeta
from statevisor.hypervisor.records import ActorRecord, ImageRef, VersionRecord
from statevisor.hypervisor.vocab import Op
from statevisor.store import (
    actors,
    builds,
    checkpoints,
    journal,
    laying,
    making,
    operations,
    origins,
    runs,
    segments,
    versions,
)
from statevisor.store.scope import Scope
from statevisor.store.segments import Segment


def create(scope: Scope, new: NewActor, prompt: Sequence[int], once: Once | None) -> ActorRecord:
    """An actor with a root segment and version 0 behind its prompt. Raises: ActorExists."""
    operations.check(scope, once)
    segment = segments.insert_segment(scope.conn, new.id, 0)
    made = actors.add(
        scope, new, segment=segment.record.id, position=len(prompt), base=0, next_seq=1
    )
    runs.insert_run(scope.conn, segment.record.id, 0, "prompt", prompt)
    _version(scope, new, 0, segment, len(prompt), Op.CREATE, (), builds.of_model(scope, new.model))
    operations.keep(scope, once, actor=made)
    return made


def fork(
    scope: Scope,
    children: Sequence[NewActor],
    origin: Origin,
    prompt: Sequence[int],
    once: Once | None,
) -> tuple[ActorRecord, ...]:
    """Actors that begin at a place of another's history, all or none.

    Version 0 (fork) stands at the origin; with a prompt, version 1 (turn) behind it. Without one
    they are a brood, if their ids allow it.
    Raises: ActorExists, NotFound, VersionNotFound.
    """
    operations.check(scope, once)
    start = origins.start(scope, origin)
    journal.settle(scope, start.here.record.id, origin.position)
    parent, drift = start.parent, start.parent.drift or start.drift
    if not prompt and parent.segment == start.here.record.id:
        laid = laying.lay(scope, children, parent, base=start.base, drift=drift)
        if laid is not None:
            operations.keep(scope, once, actors=laid)
            return laid
    made = []
    for new in children:
        segment = segments.insert_segment(scope.conn, new.id, origin.position, parent=start.here)
        child = actors.add(
            scope,
            new,
            segment=segment.record.id,
            position=origin.position + len(prompt),
            base=start.base,
            next_seq=2 if prompt else 1,
            parent=parent,
            drift=drift,
        )
        made.append(child)
        first = _version(
            scope, new, 0, segment, origin.position, Op.FORK, (parent.id,), parent.build, drift
        )
        if prompt:
            end = origin.position + len(prompt)
            runs.insert_run(scope.conn, segment.record.id, origin.position, "prompt", prompt)
            build = builds.of_model(scope, new.model)
            _version(scope, new, 1, segment, end, Op.TURN, (first,), build, drift)
    records = tuple(made)
    operations.keep(scope, once, actors=records)
    return records


def import_image(
    scope: Scope,
    new: NewActor,
    image: ImageRef,
    meta: ImageMeta,
    agent: str | None,
    once: Once | None,
) -> tuple[ActorRecord, VersionRecord]:
    """An actor that begins at an image from elsewhere. Raises: ActorExists.

    Tokens that the image's state has not absorbed lie on a segment below the rooted one: they are
    known, but no state before the image is.
    """
    operations.check(scope, once)
    base = meta.position - len(meta.pending)
    below: Segment | None = None
    if meta.pending:
        below = segments.insert_segment(scope.conn, new.id, base)
        runs.insert_run(scope.conn, below.record.id, base, "prompt", meta.pending)
    segment = segments.insert_segment(scope.conn, new.id, meta.position, parent=below, rooted=True)
    actor = actors.add(
        scope, new, segment=segment.record.id, position=meta.position, base=base, next_seq=1
    )
    checkpoints.keep(scope, segment.record.id, meta.position, image)
    build = builds.number(scope.conn, image.build)
    number = _version(scope, new, 0, segment, meta.position, Op.IMPORT, (), build)
    making.explain(scope, number, segment.record.id, Provenance(agent=agent))
    made = actor, versions.one(scope.conn, number)
    operations.keep(scope, once, actor=made[0], version=made[1])
    return made


def _version(
    scope: Scope,
    new: NewActor,
    seq: int,
    segment: Segment,
    position: int,
    op: Op,
    parents: Sequence[int],
    build: int | None,
    drift: bool = False,
) -> int:
    return making.add(
        scope,
        actor_id=new.id,
        epoch=1,
        seq=seq,
        segment=segment,
        position=position,
        op=op,
        parents=parents,
        build=build,
        drift=drift,
    )
