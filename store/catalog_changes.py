"""What changes the catalog: each call is one transaction, on the writer's thread.

What a method promises stands in `hypervisor/catalog_port.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from statevisor.hypervisor.catalog_port import (
    Guard,
    JournalEntry,
    NewActor,
    Once,
    Origin,
    Provenance,
)
from statevisor.hypervisor.image_ports import ImageMeta
from statevisor.hypervisor.records import (
    ActorRecord,
    ImageRef,
    TurnRecord,
    VersionRecord,
)
from statevisor.hypervisor.vocab import FinishReason
from statevisor.store import (
    actors,
    births,
    branches,
    checkpoints,
    hatching,
    journal,
    keeping,
    making,
    operations,
    sweep,
    turns,
)
from statevisor.store.scope import Scope
from statevisor.store.writer import Writer


class CatalogChanges:
    """The changing part of a `Catalog`."""

    def __init__(self, writer: Writer[Scope]) -> None:
        self._writer = writer

    async def create(
        self, new: NewActor, prompt: Sequence[int], *, once: Once | None = None
    ) -> ActorRecord:
        return await self._writer.submit(lambda scope: births.create(scope, new, prompt, once))

    async def fork(
        self,
        children: Sequence[NewActor],
        origin: Origin,
        *,
        prompt: Sequence[int] = (),
        once: Once | None = None,
    ) -> tuple[ActorRecord, ...]:
        return await self._writer.submit(
            lambda scope: births.fork(scope, children, origin, prompt, once)
        )

    async def import_image(
        self,
        new: NewActor,
        image: ImageRef,
        meta: ImageMeta,
        *,
        agent: str | None = None,
        once: Once | None = None,
    ) -> tuple[ActorRecord, VersionRecord]:
        return await self._writer.submit(
            lambda scope: births.import_image(scope, new, image, meta, agent, once)
        )

    async def update(
        self,
        actor_id: str,
        *,
        guard: Guard,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        pinned: bool | None = None,
        ttl_s: int | None = None,
        seed: int | None = None,
        drift: bool | None = None,
    ) -> ActorRecord:
        given = {
            "name": name,
            "labels": None if labels is None else dict(labels),
            "pinned": pinned,
            "ttl_s": ttl_s,
            "seed": seed,
            "drift": drift,
        }
        columns: dict[str, Any] = {key: one for key, one in given.items() if one is not None}
        if ttl_s == 0:
            columns["ttl_s"] = None
        return await self._change(actor_id, guard, columns)

    async def quarantine(self, actor_id: str, reason: str | None, *, guard: Guard) -> ActorRecord:
        return await self._change(actor_id, guard, {"quarantine": reason})

    async def delete(self, actor_id: str, *, guard: Guard) -> None:
        def bury(scope: Scope) -> None:
            operations.check(scope, guard.once)
            actor = actors.guarded(scope, actor_id, guard, idle=True)
            making.drop_tags(scope.conn, actor_id)
            actors.bury(scope, actor)
            operations.keep(scope, guard.once)

        await self._writer.submit(bury)

    async def begin_turn(
        self, turn: TurnRecord, prompt: Sequence[int], *, guard: Guard
    ) -> ActorRecord:
        return await self._writer.submit(lambda scope: turns.begin(scope, turn, prompt, guard))

    async def journal(self, entries: Sequence[JournalEntry], *, incarnation: int) -> None:
        await self._writer.submit(lambda scope: journal.append(scope, entries, incarnation))

    async def end_turn(
        self,
        turn_id: str,
        *,
        finish: FinishReason,
        position: int,
        text: str,
        result: Mapping[str, Any] | None,
        guard: Guard,
        broken: bool = False,
    ) -> ActorRecord:
        return await self._writer.submit(
            lambda scope: turns.end(
                scope,
                turn_id,
                finish=finish,
                position=position,
                text=text,
                result=result,
                guard=guard,
                broken=broken,
            )
        )

    async def snapshot(
        self,
        actor_id: str,
        segment: int,
        position: int,
        *,
        tag: str | None,
        labels: Mapping[str, str],
        guard: Guard,
    ) -> VersionRecord:
        origin = Origin(segment=segment, position=position, handle=None)
        return await self._writer.submit(
            lambda scope: branches.snapshot(scope, actor_id, origin, tag, labels, guard)
        )

    async def mutate(
        self, actor_id: str, image: ImageRef, why: Provenance, *, guard: Guard
    ) -> tuple[ActorRecord, VersionRecord]:
        return await self._writer.submit(
            lambda scope: branches.mutate(scope, actor_id, image, why, guard)
        )

    async def rollback(
        self, actor_id: str, origin: Origin, *, seed: int | None, guard: Guard
    ) -> tuple[ActorRecord, VersionRecord]:
        return await self._writer.submit(
            lambda scope: branches.rollback(scope, actor_id, origin, seed, guard)
        )

    async def add_image(self, segment: int, position: int, image: ImageRef) -> None:
        def keep(scope: Scope) -> None:
            place = hatching.place(scope, segment, position)
            checkpoints.keep(scope, place, position, image)

        await self._writer.submit(keep)

    async def keep_image(self, segment: int, position: int, image: ImageRef) -> ImageRef:
        def keep(scope: Scope) -> ImageRef:
            place = hatching.place(scope, segment, position)
            return checkpoints.keep(scope, place, position, image, anew=False)

        return await self._writer.submit(keep)

    async def remember(self, once: Once, result: Mapping[str, Any]) -> None:
        await self._writer.submit(lambda scope: operations.remember(scope, once, result))

    async def forget(self, places: Sequence[tuple[int, int]]) -> None:
        await self._writer.submit(lambda scope: keeping.forget(scope, places))

    async def sweep(self, *, grace_us: int) -> tuple[ImageRef, ...]:
        """As the port says; one call takes out a bounded number of actors."""
        return await self._writer.submit(lambda scope: sweep.sweep(scope, grace_us))

    async def _change(self, actor_id: str, guard: Guard, columns: dict[str, Any]) -> ActorRecord:
        def change(scope: Scope) -> ActorRecord:
            operations.check(scope, guard.once)
            actor = actors.guarded(scope, actor_id, guard)
            actor = actors.change(scope, actor, **columns)
            if "name" in columns:  # its parent may have had that name, deleted
                actor = actors.get(scope.conn, actor_id)
            made = actor.shown(scope.tails.all_ends())
            operations.keep(scope, guard.once, actor=made)
            return made

        return await self._writer.submit(change)
