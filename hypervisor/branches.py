"""Snapshot, fork, mutate, rollback, import: how histories branch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from statevisor.hypervisor.actor import Actor
from statevisor.hypervisor.catalog_port import Catalog, Provenance
from statevisor.hypervisor.commands import (
    ActorView,
    Fork,
    ImportImage,
    Mutate,
    Rollback,
    Snapshot,
)
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.errors import InvalidRequest, VersionNotFound
from statevisor.hypervisor.history import Paths
from statevisor.hypervisor.ids import Ids, nth_seed
from statevisor.hypervisor.image_ports import Images
from statevisor.hypervisor.lifecycle import Power
from statevisor.hypervisor.ports import Clock, Meter, Mutation
from statevisor.hypervisor.records import VersionRecord
from statevisor.hypervisor.replies import revive_actor, revive_version
from statevisor.hypervisor.roster import Roster
from statevisor.hypervisor.tasks import Tasks
from statevisor.hypervisor.vocab import Rng, check_name


class Branches:
    """Operations that add to the lineage."""

    def __init__(
        self,
        *,
        roster: Roster,
        tasks: Tasks,
        catalog: Catalog,
        images: Images,
        paths: Paths,
        ids: Ids,
        config: VisorConfig,
        clock: Clock,
        meter: Meter,
    ) -> None:
        self._roster = roster
        self._tasks = tasks
        self._catalog = catalog
        self._images = images
        self._paths = paths
        self._ids = ids
        self._config = config
        self._clock = clock
        self._meter = meter

    async def snapshot(self, command: Snapshot) -> VersionRecord:
        """Name the last committed position; does not wait for a running turn."""
        if (told := await self._roster.told(command.once)) is not None:
            return revive_version(told["version"])
        return await self._tasks.whole(self._snapshot(command))

    async def _snapshot(self, command: Snapshot) -> VersionRecord:
        began = self._clock.monotonic()
        actor = await self._roster.find(command.actor)
        record = actor.committed()
        if command.tag is not None:
            await self._check_tag(actor, command.tag)
        version = await self._catalog.snapshot(
            actor.id,
            record.segment,
            record.position,
            tag=command.tag,
            labels=command.labels,
            guard=self._roster.guard(actor, command),
        )
        self._meter.observe("snapshot_seconds", self._clock.monotonic() - began)
        if command.wait:
            await self._image(actor, version)
            version = await self._catalog.version(f"{version.actor_id}@{version.seq}")
        return version

    async def _check_tag(self, actor: Actor, tag: str) -> None:
        """A tag is one name for all actors: it moves along its own, and from no other's version."""
        try:
            named = await self._catalog.version(check_name(tag))
        except VersionNotFound:
            return
        if named.actor_id != actor.id:
            raise InvalidRequest(
                f"the tag {tag!r} names {named.handle} already, and tags are shared by all actors",
                hint=f"Choose another, for example {actor.record.name}-{tag}.",
            )

    async def _image(self, actor: Actor, version: VersionRecord) -> None:
        """Write a version's image: from the actor's slot if it rests just there, else by replay."""
        if actor.mailbox.try_enter():
            try:
                place = (actor.segment, actor.record.position)
                rests = actor.power is Power.IDLE and actor.absorbed == actor.rest and actor.rest
                if rests and place == (version.segment, version.position):
                    await self._roster.residency(actor).checkpoint(actor)
            finally:
                actor.mailbox.leave()
        await self._roster.history(actor.record).image(version)

    async def fork(self, command: Fork) -> tuple[ActorView, ...]:
        """Begin `count` actors at a place of this one's history; one small transaction.

        Ids and fresh seeds of the others follow from those of the first.
        """
        if (told := await self._roster.told(command.once)) is not None:
            return tuple([await self._roster.view_of(revive_actor(a)) for a in told["actors"]])
        return await self._tasks.whole(self._fork(command))

    async def _fork(self, command: Fork) -> tuple[ActorView, ...]:
        began = self._clock.monotonic()
        actor = await self._roster.find(command.actor)
        self._roster.check_generation(actor, command)
        record = actor.committed()
        batcher = self._roster.batcher(record)
        if not 1 <= command.count <= self._config.fork_count:
            raise InvalidRequest(f"count must be in 1..{self._config.fork_count}")
        names = command.names or (None,) * command.count
        if len(names) != command.count:
            raise InvalidRequest(f"{len(names)} names for {command.count} forks")
        # what follows from the first child is kept once for all of them
        first = self._ids.seed()
        seeds = command.seeds or tuple(
            record.seed if command.rng is Rng.INHERIT else nth_seed(first, n)
            for n in range(command.count)
        )
        if len(seeds) != command.count:
            raise InvalidRequest(f"{len(seeds)} seeds for {command.count} forks")
        origin = await self._roster.histories[record.model].origin(
            actor.id,
            actor.path,
            record.position,
            record.base,
            record.position if command.at is None else command.at,
        )
        keys = self._ids.actors(command.count)
        children = tuple(
            self._roster.new_actor(name, batcher, seed, record.labels, key=key)
            for key, name, seed in zip(keys, names, seeds, strict=True)
        )
        records = await self._catalog.fork(children, origin, once=command.once)
        self._meter.observe("fork_seconds", self._clock.monotonic() - began)
        return tuple([await self._roster.view_of(child) for child in records])

    async def mutate(self, command: Mutate) -> VersionRecord:
        """Run a rule on the actor's state; the head moves to the result."""
        if (told := await self._roster.told(command.once)) is not None:
            return revive_version(told["version"])
        return await self._tasks.whole(self._mutate(command))

    async def _mutate(self, command: Mutate) -> VersionRecord:
        began = self._clock.monotonic()
        actor = await self._roster.find(command.actor)
        batcher, history = self._roster.batcher(actor.record), self._roster.history(actor.record)
        mutation = command.mutation
        version = batcher.guest.rules.get(mutation.rule)
        if version is None:
            known = ", ".join(sorted(batcher.guest.rules))
            raise InvalidRequest(f"there is no rule {mutation.rule!r}", hint=f"Rules: {known}.")
        others = await history.parents(mutation)
        mutation = _by_id(mutation, others)
        for other in others:
            if (await self._catalog.actor(other.actor_id)).model != actor.record.model:
                raise InvalidRequest(f"{other.handle} belongs to another model")
        rows = [(await history.row(other))[0] for other in others]
        async with actor.mailbox.turn():
            self._roster.check_generation(actor, command)
            await batcher.residency.resume(actor)
            own = await batcher.residency.row(actor)
            views = [memoryview(row) for row in (own, *rows)]
            row = await asyncio.to_thread(batcher.guest.mutate, mutation, views)
            if not batcher.guest.finite(memoryview(row)):
                raise InvalidRequest("the result of this rule is not finite")
            position, absorbed = actor.record.position, actor.absorbed
            pending = await batcher.residency.states.tokens(actor.segment, absorbed, position)
            meta = batcher.residency.states.meta(position, absorbed, pending)
            before = await asyncio.to_thread(self._images.digest, memoryview(own), meta)
            image = await batcher.residency.states.store(row, meta)
            why = Provenance(
                rule=mutation.rule,
                rule_version=version,
                params=mutation.params,
                select={
                    key: list(value)
                    for key in ("families", "layers", "heads")
                    if (value := getattr(mutation, key)) is not None
                },
                agent=command.agent,
                reason=command.reason,
                before=before,
                parents=tuple(other.handle for other in others),
                weights=tuple(mutation.params.get("weights", ())),
            )
            actor.record, made = await self._catalog.mutate(
                actor.id, image, why, guard=self._roster.guard(actor, command)
            )
            actor.path = await self._paths.of(actor.segment)
            await batcher.residency.replace(actor, row)
        self._meter.observe("mutate_seconds", self._clock.monotonic() - began)
        return made

    async def rollback(self, command: Rollback) -> ActorView:
        """Move an actor back to a place of its history; the branch it leaves stays."""
        if (told := await self._roster.told(command.once)) is not None:
            return await self._roster.view_of(revive_actor(told["actor"]))
        return await self._tasks.whole(self._rollback(command))

    async def _rollback(self, command: Rollback) -> ActorView:
        actor = await self._roster.find(command.actor)
        async with actor.mailbox.turn():
            record = actor.record
            origin = await self._roster.history(record).origin(
                actor.id, actor.path, record.position, record.base, command.to
            )
            actor.record, _ = await self._catalog.rollback(
                actor.id,
                origin,
                seed=self._ids.seed() if command.rng is Rng.RESEED else None,
                guard=self._roster.guard(actor, command),
            )
            residency = self._roster.residency(actor)
            residency.cure(actor)
            residency.discard(actor)
            actor.path = await self._paths.of(actor.segment)
            actor.imaged = 0
        return self._roster.view(actor)

    async def import_image(self, command: ImportImage) -> VersionRecord:
        """Make an actor of an exported file. Raises: ImageCorrupt, IncompatibleImage."""
        if (told := await self._roster.told(command.once)) is not None:
            return revive_version(told["version"])
        return await self._tasks.whole(self._import(command))

    async def _import(self, command: ImportImage) -> VersionRecord:
        self._roster.accepting()
        batcher = self._roster.named(command.model)
        guest = batcher.guest
        row = bytearray(guest.layout.row_bytes)
        meta = await asyncio.to_thread(
            self._images.decode, command.file, memoryview(row), guest.fingerprints
        )
        if not guest.finite(memoryview(row)):
            raise InvalidRequest("the state in this file is not finite")
        self._roster.check_tokens(batcher, meta.pending)
        new = self._roster.new_actor(command.name, batcher, None, {})
        image = await batcher.residency.states.store(row, meta)
        _, version = await self._catalog.import_image(new, image, meta, once=command.once)
        return version


def _by_id(mutation: Mutation, others: Sequence[VersionRecord]) -> Mutation:
    """The same mutation with its versions named by id: names and tags may move, ids do not."""
    handles = [f"{other.actor_id}@{other.seq}" for other in others]
    params = dict(mutation.params)
    if "from" in params:
        params["from"] = handles.pop()
    if handles:
        params["others"] = handles
    return replace(mutation, params=params)
