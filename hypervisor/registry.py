"""Creating, listing, changing and deleting actors."""

from __future__ import annotations

from statevisor.hypervisor.catalog_port import ActorQuery, Catalog, Guard
from statevisor.hypervisor.commands import ActorView, CreateActor, DeleteActor, UpdateActor
from statevisor.hypervisor.conversations import Conversations
from statevisor.hypervisor.errors import ActorNotFound, InvalidRequest, NoFreeSlot
from statevisor.hypervisor.history import Paths
from statevisor.hypervisor.replies import revive_actor
from statevisor.hypervisor.roster import Roster
from statevisor.hypervisor.tasks import Tasks
from statevisor.hypervisor.vocab import check_name


class Registry:
    """The actors of the catalog as the API lists them."""

    def __init__(
        self,
        *,
        roster: Roster,
        conversations: Conversations,
        tasks: Tasks,
        catalog: Catalog,
        paths: Paths,
    ) -> None:
        self._roster = roster
        self._conversations = conversations
        self._tasks = tasks
        self._catalog = catalog
        self._paths = paths

    async def create(self, command: CreateActor) -> ActorView:
        """Create an actor, or begin one from a version; the prompt is absorbed first."""
        if (told := await self._roster.told(command.once)) is not None:
            # one that began from a version was made as a fork, of which there may be many
            stored = told["actor"] if command.source is None else told["actors"][0]
            return await self._roster.view_of(revive_actor(stored))
        return await self._tasks.whole(self._create(command))

    async def _create(self, command: CreateActor) -> ActorView:
        source = None if command.source is None else await self._catalog.version(command.source)
        if source is None:
            batcher = self._roster.named(command.model)
        else:
            parent = await self._catalog.actor(source.actor_id)
            if command.model not in (None, parent.model):
                raise InvalidRequest(f"{source.handle} belongs to the model {parent.model}")
            batcher = self._roster.named(parent.model)
        first = source is None or source.position == 0
        tokens: tuple[int, ...] = ()
        if command.prompt is not None:
            tokens = self._roster.encode(batcher, command.prompt, first=first)
        new = self._roster.new_actor(command.name, batcher, command.seed, command.labels)
        if source is None:
            record = await self._catalog.create(new, tokens, once=command.once)
            self._paths.begun(record)
        else:
            path = await self._paths.of(source.segment)
            origin = await self._roster.histories[batcher.guest.name].origin(
                source.actor_id, path, source.position, 0, source.handle
            )
            (record,) = await self._catalog.fork((new,), origin, prompt=tokens, once=command.once)
        actor = await self._roster.admit(record)
        if tokens:
            try:
                async with actor.mailbox.turn():
                    actor.new = tokens if source is None and actor.record is record else None
                    await batcher.residency.resume(actor)
            except (NoFreeSlot, ActorNotFound):
                pass  # it is committed; its prompt is absorbed when it is touched next, if ever
            finally:
                actor.new = None
        return self._roster.view(actor)

    async def actors(
        self,
        *,
        status: str | None = None,
        model: str | None = None,
        tier: str | None = None,
        label: tuple[str, str | None] | None = None,
        q: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> tuple[tuple[ActorView, ...], bool]:
        """One page of actors, oldest first."""
        ids, exclude = self._roster.filter(status, tier)
        query = ActorQuery(
            model=model, label=label, q=q, ids=ids, exclude=exclude, after=after, limit=limit
        )
        records, more = await self._catalog.actors(query)
        return tuple([await self._roster.view_of(record) for record in records]), more

    async def update(self, command: UpdateActor) -> ActorView:
        """Change an actor's name, labels, pin or ttl."""
        if (told := await self._roster.told(command.once)) is not None:
            return await self._roster.view_of(revive_actor(told["actor"]))
        return await self._tasks.whole(self._update(command))

    async def _update(self, command: UpdateActor) -> ActorView:
        actor = await self._roster.find(command.actor)
        if command.name is not None:
            check_name(command.name)
        async with actor.mailbox.turn():
            actor.record = await self._catalog.update(
                actor.id,
                guard=self._roster.guard(actor, command),
                name=command.name,
                labels=command.labels,
                pinned=command.pinned,
                ttl_s=command.ttl_s,
            )
            if command.name is not None:
                self._roster.renamed()
        return self._roster.view(actor)

    async def delete(self, command: DeleteActor) -> None:
        """Cancel what runs, then tombstone the actor and free all it holds."""
        await self._tasks.whole(self._delete(command))

    async def _delete(self, command: DeleteActor) -> None:
        actor = await self._roster.find(command.actor)
        self._roster.check_generation(actor, command)
        self._conversations.cancel_turns(actor, None)
        async with actor.mailbox.turn():
            guard = Guard(epoch=actor.record.epoch, once=command.once)
            await self._catalog.delete(actor.id, guard=guard)
            self._roster.renamed()
            self._roster.residency(actor).delete(actor)
            self._roster.actors.pop(actor.id, None)
            actor.mailbox.end(f"{actor.record.name} has been deleted")
