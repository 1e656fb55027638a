"""The actors in memory and the guests they run on: finding, showing, checking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from statevisor.hypervisor.actor import Actor
from statevisor.hypervisor.batcher import Batcher
from statevisor.hypervisor.catalog_port import Catalog, Guard, NewActor, Once
from statevisor.hypervisor.commands import ActorView, Change, Prompt
from statevisor.hypervisor.config import VisorConfig
from statevisor.hypervisor.errors import (
    ContextLengthExceeded,
    Draining,
    GenerationConflict,
    IdempotencyMismatch,
    InvalidRequest,
    ModelNotFound,
)
from statevisor.hypervisor.history import History, Paths
from statevisor.hypervisor.ids import Ids, own_name
from statevisor.hypervisor.lifecycle import Power
from statevisor.hypervisor.mailbox import Mailbox
from statevisor.hypervisor.ports import Clock
from statevisor.hypervisor.records import ActorRecord
from statevisor.hypervisor.residency import Residency
from statevisor.hypervisor.vocab import MAX_SEED, Tier, check_name


class Roster:
    """Who is known right now. It lives on the event loop; everything durable is in the catalog."""

    def __init__(
        self,
        *,
        batchers: Mapping[str, Batcher],
        histories: Mapping[str, History],
        catalog: Catalog,
        paths: Paths,
        ids: Ids,
        config: VisorConfig,
        clock: Clock,
    ) -> None:
        self.batchers = batchers
        self.histories = histories
        self.actors: dict[str, Actor] = {}
        # as they were called when they were last looked for
        self._named = WeakValueDictionary[str, Actor]()
        self.draining = False
        self._renames = 0  #: names that were changed or taken away; each may be part of a handle
        self._catalog = catalog
        self._paths = paths
        self._ids = ids
        self._config = config
        self._forget_at = config.actors_in_memory
        self._clock = clock

    def accepting(self) -> None:
        """Raises: Draining."""
        if self.draining:
            raise Draining

    async def find(self, key: str) -> Actor:
        """The actor in memory; its record is as committed. Raises: ActorNotFound."""
        actor = self._known(key)
        if actor is not None:
            return actor
        return await self.admit(await self._catalog.actor(key))

    async def look(self, key: str) -> ActorView:
        """An actor as committed; who is not in memory stays where it is. Raises: ActorNotFound."""
        known = self.glance(key)
        if known is not None:
            return known
        before = self._renames
        record = await self._catalog.actor(key)
        actor = self.actors.get(record.id)
        if actor is not None:
            self._named[actor.record.name] = actor
            actor.parent = (before, record.parent)
        return await self.view_of(record)

    def glance(self, key: str) -> ActorView | None:
        """The same, if it is known without the catalog; else None."""
        actor = self._known(key)
        if actor is None:
            return None
        # the handle of its parent follows the parent's name, which its own record does not
        as_of, parent = actor.parent
        if actor.record.parent is not None and as_of != self._renames:
            return None
        view = self.view(actor)
        if view.record.parent == parent:
            return view
        return replace(view, record=replace(view.record, parent=parent))

    def renamed(self) -> None:
        """A name was changed or taken away: handles that were read before may have it still."""
        self._renames += 1

    def _known(self, key: str) -> Actor | None:
        actor = self.actors.get(key) or self._by_name(key)
        return None if actor is None or actor.power is Power.DELETED else actor

    def _by_name(self, name: str) -> Actor | None:
        """Who is called so, if that is known; a name is given again once its actor is deleted."""
        actor = self._named.get(name)
        if actor is None or actor.record.name != name or self.actors.get(actor.id) is not actor:
            return None
        return actor

    async def admit(self, record: ActorRecord) -> Actor:
        """The actor of a record, in memory and to be found by its name."""
        actor = self.actors.get(record.id)
        if actor is None:
            path = await self._paths.of(record.segment)
            self._forget()
            made = Actor(record, path, Mailbox(self._config.mailbox), self._clock.monotonic())
            actor = self.actors.setdefault(record.id, made)
        self._named[actor.record.name] = actor
        return actor

    def _forget(self) -> None:
        """Keep the table small: an actor at rest on nvme is nothing but its row in the catalog.

        Who is not at rest stays, however many; so the next look through all comes only after the
        table has grown by an eighth.
        """
        if len(self.actors) < self._forget_at:
            return
        for actor in [a for a in self.actors.values() if self._at_rest(a)]:
            del self.actors[actor.id]
        limit = self._config.actors_in_memory
        self._forget_at = max(limit, len(self.actors) + len(self.actors) // 8)

    def _at_rest(self, actor: Actor) -> bool:
        quiet = not actor.mailbox.held and not actor.turns
        return quiet and self.tier(actor) is Tier.NVME

    async def view_of(self, record: ActorRecord) -> ActorView:
        actor = self.actors.get(record.id)
        if actor is not None:
            view = self.view(actor)
            # the handle of its parent follows the parent's name: this row has the present one
            return replace(view, record=replace(view.record, parent=record.parent))
        status = Power.QUARANTINED if record.quarantine else Power.HIBERNATED
        return ActorView(
            record=record,
            status=status.value,
            tier=Tier.NVME,
            durable_position=record.position,
        )

    def view(self, actor: Actor) -> ActorView:
        record = actor.committed()
        return ActorView(
            record=record,
            status=actor.power.value,
            tier=self.tier(actor),
            durable_position=record.position,
        )

    def name(self, actor_id: str) -> str:
        actor = self.actors.get(actor_id)
        return actor.record.name if actor else actor_id

    def batcher(self, record: ActorRecord) -> Batcher:
        return self.named(record.model)

    def named(self, model: str | None) -> Batcher:
        if model is None:
            return next(iter(self.batchers.values()))
        try:
            return self.batchers[model]
        except KeyError:
            raise ModelNotFound(f"no model {model!r} is loaded") from None

    def history(self, record: ActorRecord) -> History:
        self.batcher(record)
        return self.histories[record.model]

    def residency(self, actor: Actor) -> Residency:
        return self.batcher(actor.record).residency

    def tier(self, actor: Actor) -> Tier:
        batcher = self.batchers.get(actor.record.model)
        return Tier.NVME if batcher is None else batcher.residency.tier(actor)

    def filter(
        self, status: str | None, tier: str | None
    ) -> tuple[frozenset[str] | None, frozenset[str] | None]:
        """Status and tier live in memory: as sets of ids to keep or to leave out."""
        keep: frozenset[str] | None = None
        drop: frozenset[str] = frozenset()
        for value, lowest, of in (
            (status, Power.HIBERNATED.value, lambda a: a.power.value),
            (tier, Tier.NVME.value, lambda a: self.tier(a).value),
        ):
            if value is None:
                continue
            if value == lowest:
                drop |= {a.id for a in self.actors.values() if of(a) != value}
            else:
                same = frozenset(a.id for a in self.actors.values() if of(a) == value)
                keep = same if keep is None else keep & same
        return keep, drop or None

    def guard(self, actor: Actor, change: Change) -> Guard:
        return Guard(epoch=actor.record.epoch, generation=change.if_generation, once=change.once)

    def check_generation(self, actor: Actor, change: Change) -> None:
        """If-Match of an operation that has no transaction of its own to check it in."""
        if change.if_generation not in (None, actor.record.generation):
            raise GenerationConflict(
                f"{actor.record.name} is at generation {actor.record.generation}, "
                f"not {change.if_generation}"
            )

    def check_tokens(self, batcher: Batcher, tokens: Sequence[int]) -> None:
        size = batcher.guest.vocab_size
        for token in tokens:
            if not 0 <= token < size:
                raise InvalidRequest(f"token id {token} is not in the vocabulary of {size}")

    def encode(self, batcher: Batcher, prompt: Prompt | None, *, first: bool) -> tuple[int, ...]:
        """A prompt as tokens; the first of an actor is preceded by the guest's BOS."""
        tokenizer = batcher.guest.tokenizer
        if isinstance(prompt, str):
            tokens = tokenizer.encode(prompt)
        else:
            tokens = tuple(prompt or ())
            self.check_tokens(batcher, tokens)
        if first and tokenizer.bos is not None and tokens[:1] != (tokenizer.bos,):
            tokens = (tokenizer.bos, *tokens)
        if len(tokens) > self._config.prompt_tokens:
            raise ContextLengthExceeded(
                f"{len(tokens)} tokens; one prompt may have {self._config.prompt_tokens}"
            )
        return tokens

    def text(self, batcher: Batcher, tokens: Sequence[int]) -> str:
        return b"".join(map(batcher.guest.tokenizer.token_bytes, tokens)).decode(errors="replace")

    def new_actor(
        self,
        name: str | None,
        batcher: Batcher,
        seed: int | None,
        labels: Mapping[str, str],
        *,
        key: str | None = None,
    ) -> NewActor:
        key = self._ids.new("act") if key is None else key
        if seed is not None and not 0 <= seed < MAX_SEED:
            raise InvalidRequest("a seed must be in 0..2^53-1")
        return NewActor(
            id=key,
            name=check_name(name) if name is not None else own_name(key),
            model=batcher.guest.name,
            seed=self._ids.seed() if seed is None else seed,
            labels=labels,
        )

    async def told(self, once: Once | None) -> Mapping[str, Any] | None:
        """What this Idempotency-Key gave before. Raises: IdempotencyMismatch, Draining."""
        self.accepting()
        return None if once is None else await self.kept(once)

    async def kept(self, once: Once) -> Mapping[str, Any] | None:
        """The same, while the server drains too. Raises: IdempotencyMismatch."""
        operation = await self._catalog.operation(once.key)
        if operation is None:
            return None
        if operation.request != once.request:
            raise IdempotencyMismatch
        return operation.result
